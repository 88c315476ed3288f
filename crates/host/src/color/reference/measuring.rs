//! Measures pages of known color: they are found in the memory of a new file and tested, and all other pages are given back.

use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::fd::AsFd;
use std::os::unix::fs::{OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use std::{io, iter};

use isochrome_model::palette::decode::Answer;
use isochrome_model::palette::infer::Doubt;
use isochrome_model::units::{Bytes, Color};
use rustix::fs::{FallocateFlags, FsWord, OFlags, fallocate, fstatfs, ftruncate};

use super::{Reference, SCHEMA, Undecided, confirmed_sets, new_numbering, path};
use crate::color::error::ColorError;
use crate::color::eviction::{ArenaEvictionTest, TimedEvictionTest};
use crate::color::local::LocalEvictionTest;
use crate::color::saved::Boot;
use crate::color::tester::{Effort, Tester};
use crate::color::{Target, discover};
use crate::error::SystemError;
use crate::interrupt;
use crate::machine::sysfs::Sysfs;
use crate::runtime;
use crate::sys::memory::{Arena, page_bytes};

/// `TMPFS_MAGIC`. [Linux, include/uapi/linux/magic.h]
const TMPFS: FsWord = 0x0102_1994;

/// Least size of the file in which pages of all colors are searched. Hardly any of its pages are kept.
const FILE_MIN: Bytes = Bytes(128 << 20);

/// Time limit of one search, and of repeating the measurement while pages are in doubt.
const LIMIT: Duration = Duration::from_secs(3);

/// A file of pages that are being measured. Dropping this value, as a failed measurement does, removes the file.
struct Measuring {
    path: PathBuf,
}

impl Drop for Measuring {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
        let _ = fs::remove_file(in_shared_memory(&self.path));
    }
}

fn pages_path(folder: &Path, level: u8, maker: &str) -> PathBuf {
    folder.join(format!("reference-l{level}.{maker}.pages"))
}

/// Returns the path in /dev/shm for a file of pages that belongs to a folder elsewhere.
fn in_shared_memory(path: &Path) -> PathBuf {
    let mut hasher = DefaultHasher::new();
    path.parent().hash(&mut hasher);
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let folder = format!("isochrome-{}", rustix::process::geteuid().as_raw());
    Path::new("/dev/shm").join(folder).join(format!("{:016x}-{name}", hasher.finish()))
}

/// Ending of the link that lies beside files of pages in /dev/shm and leads to the folder to which they belong.
const OWNER: &str = "-folder";

/// Notes beside `shared`, a path that [`in_shared_memory`] returned, that its pages belong to `folder`.
fn note_owner(shared: &Path, folder: &Path) -> io::Result<()> {
    let name = shared.file_name().unwrap_or_default().to_string_lossy();
    let hash = name.split('-').next().unwrap_or_default();
    match symlink(std::path::absolute(folder)?, shared.with_file_name(format!("{hash}{OWNER}"))) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

/// Removes files of pages that killed measurements have left behind, and those whose folder is gone.
pub(super) fn remove_left(folder: &Path, level: u8) {
    let kept = Reference::read(&path(folder, level)).ok().flatten().and_then(|reference| reference.path);
    let beside = pages_path(folder, level, "");
    let shared = in_shared_memory(&beside);
    for pages in [&beside, &shared] {
        let name = pages.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let prefix = name.strip_suffix(".pages").unwrap_or(&name);
        remove_dead(pages.parent().unwrap_or(folder), prefix, kept.as_ref());
    }
    for link in fs::read_dir(shared.parent().unwrap_or(folder)).into_iter().flatten().flatten() {
        let name = link.file_name().into_string().unwrap_or_default();
        let is_gone = || fs::read_link(link.path()).is_ok_and(|owner| !owner.exists());
        if let Some(hash) = name.strip_suffix(OWNER).filter(|_| is_gone())
            && remove_dead(shared.parent().unwrap_or(folder), &format!("{hash}-"), None)
        {
            let _ = fs::remove_file(link.path());
        }
    }
}

/// Removes files whose names begin with `prefix` and end with the number of a process that has ended, another number, and `.pages`, except
/// for `kept`. Returns whether no such file of a process that runs is left.
fn remove_dead(folder: &Path, prefix: &str, kept: Option<&PathBuf>) -> bool {
    let mut none_left = true;
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name().into_string().unwrap_or_default();
        let maker = name.strip_suffix(".pages").filter(|name| name.starts_with(prefix));
        let pid = maker.and_then(|maker| maker.rsplit('.').next()?.split('-').next()?.parse::<u32>().ok());
        let Some(pid) = pid.filter(|_| Some(&entry.path()) != kept) else { continue };
        let is_dead = !Path::new("/proc").join(pid.to_string()).exists();
        none_left &= is_dead && fs::remove_file(entry.path()).is_ok();
    }
    none_left
}

impl Reference {
    /// Measures pages of a new file in `folder`, and returns them with their tester. Repeats the measurement while its outcome is in doubt.
    pub(super) fn make(
        folder: &Path,
        target: Target,
        seed: u64,
        boot: &Boot,
    ) -> Result<(Reference, Tester<LocalEvictionTest>), ColorError> {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let measuring =
            Measuring { path: pages_path(folder, target.level, &format!("{}-{number}", std::process::id())) };
        let begin = Instant::now();
        for attempt in 0.. {
            let seed = seed.wrapping_add(attempt);
            match Self::measure(&measuring.path, target, seed, boot) {
                Err(error) if error.may_pass() && begin.elapsed() < LIMIT => {}
                Err(error) => return Err(error),
                Ok(made) => {
                    std::mem::forget(measuring);
                    return Ok(made);
                }
            }
        }
        unreachable!("attempts do not end")
    }

    /// Creates the file for the pages, and returns the file and its path. The path is `path` if that is on a tmpfs, or else a path in /dev/shm
    /// for the same folder.
    fn file(path: &Path) -> Result<(File, PathBuf), SystemError> {
        let mut refused = None;
        let of_owner = path.parent().unwrap_or(Path::new("/"));
        for path in [path.to_owned(), in_shared_memory(path)] {
            let folder = path.parent().unwrap_or(Path::new("/"));
            let opened = runtime::make(folder).and_then(|()| {
                if folder != of_owner {
                    note_owner(&path, of_owner)
                        .map_err(|source| SystemError::Unwritable { path: path.clone(), source })?;
                }
                // A symbolic link at this path would lead elsewhere.
                let _ = fs::remove_file(&path);
                let mut options = File::options();
                options.read(true).write(true).create_new(true).mode(0o644);
                let file = options.custom_flags(OFlags::NOFOLLOW.bits() as i32).open(&path);
                file.map_err(|source| SystemError::Unwritable { path: path.clone(), source })
            });
            match opened {
                // Pages of a file on a disk are not kept in memory, so their frames change.
                Ok(file) if fstatfs(&file).is_ok_and(|system| system.f_type == TMPFS) => return Ok((file, path)),
                Ok(_) => drop(fs::remove_file(&path)),
                Err(error) => refused = Some(error),
            }
        }
        let source = io::Error::other("there is no tmpfs to write to");
        Err(refused.unwrap_or(SystemError::Unwritable { path: path.to_owned(), source }))
    }

    fn measure(
        path: &Path,
        target: Target,
        seed: u64,
        boot: &Boot,
    ) -> Result<(Reference, Tester<LocalEvictionTest>), ColorError> {
        let unwritable = |source| SystemError::Unwritable { path: path.to_owned(), source };
        let (file, kept) = Self::file(path)?;
        let huge = Sysfs::system().huge_page_bytes().unwrap_or(page_bytes());
        let step = huge / page_bytes();
        let ready = target.pages_to_search().next_multiple_of(step);
        let count = ready.max(FILE_MIN.0 as usize / page_bytes());
        ftruncate(&file, (count * page_bytes()) as u64).map_err(|error| unwritable(error.into()))?;
        let arena = Arena::map_file(file.as_fd(), count, huge)
            .map_err(|source| SystemError::Memory { pages: count, source })?;
        // The kernel hands out single frames in the order in which they were freed, perhaps by color, and moves their contents to make room
        // for huge pages. The frames of a huge page have all colors, and their contents stay.
        let gathered = if step > 1 { arena.gather(ready, huge) } else { 0 } as u32;
        let mut eviction_test = TimedEvictionTest::calibrate(arena, target.sizes(), seed)?;
        eviction_test.make_ready(0..ready as u32);
        let begin = Instant::now();
        let stop = || interrupt::interrupted() || begin.elapsed() > LIMIT;
        let mut rng = fastrand::Rng::with_seed(seed);
        let (groups, _) = discover::groups(&mut eviction_test, target.search(), ready as u32, &mut rng, &stop);
        if interrupt::interrupted() {
            return Err(SystemError::Interrupted.into());
        }
        let (found, expected) = (groups.len() as u32, target.search().colors_expected as u32);
        if found == 0 {
            return Err(ColorError::NoEviction { level: target.level });
        }
        if found != expected {
            return Err(ColorError::ReferenceInDoubt { doubt: Doubt::Count { found, expected }.to_string() });
        }
        let sets: Vec<Vec<u32>> = groups.into_iter().map(|group| group.set).collect();
        // Pages outside of the sets are given back, except for huge pages, which stay whole.
        let kept_pages = sets.iter().flatten().copied().chain(0..gathered).collect();
        let bytes = keep_only(&file, kept_pages).map_err(unwritable)?;
        let mut reference = Reference {
            saved: SCHEMA.to_owned(),
            fingerprint: boot.fingerprint.clone(),
            boot_id: boot.boot_id.clone(),
            numbering: new_numbering(),
            level: target.level,
            geometry: target.geometry,
            inner: target.inner,
            path: Some(kept),
            bytes,
            rule: None,
            sets,
            traversal: eviction_test.traversal(),
        };
        let arena = Box::new(eviction_test).into_arena();
        let line_bytes = target.sizes().line_bytes;
        let eviction_test =
            LocalEvictionTest::new(arena, line_bytes, &reference.sets, true, reference.traversal, seed)?;
        let mut tester = Tester::new(eviction_test, reference.sets.clone(), seed);
        // This test uses no decision of the search, so a set that was found by accident fails.
        let answers = tester.classify_sets(Effort::STATEMENT)?;
        let of_its_set = |(color, answers): (u16, &Vec<Option<Answer>>)| {
            answers.iter().filter(|answer| **answer == Some(Answer::Color(Color(color)))).count()
        };
        let all: usize = reference.sets.iter().map(Vec::len).sum();
        let wrong = all - (0..).zip(&answers).map(of_its_set).sum::<usize>();
        // Single pages may fail if noise is high. A set that lacks some pages still evicts.
        let sets = confirmed_sets(&reference.sets, &answers, target.search().set_len_min(), Undecided::Dropped);
        let Some(sets) = sets.ok().filter(|_| 20 * wrong <= all) else {
            return Err(ColorError::ReferenceInDoubt { doubt: format!("{wrong} pages fail the eviction test") });
        };
        tester.set_sets(sets.clone());
        reference.sets = sets;
        if let Some(rule) = reference.linear_rule(&tester)
            && let Some(order) = reference.order_by_frames(&tester, &rule)?
        {
            reference.renumber(&order);
            tester.renumber(&order);
            reference.rule = Some(rule);
        }
        Ok((reference, tester))
    }
}

/// Gives back the memory of all pages of `file` except those of `kept`, and returns the length of the file afterwards.
fn keep_only(file: &File, mut kept: Vec<u32>) -> io::Result<Bytes> {
    kept.sort_unstable();
    kept.dedup();
    let offset = |page: u32| u64::from(page) * page_bytes() as u64;
    let behind = kept.iter().map(|page| page + 1);
    for (hole, next) in iter::once(0).chain(behind).zip(kept.iter().copied()) {
        if hole < next {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            fallocate(file, flags, offset(hole), offset(next) - offset(hole))?;
        }
    }
    let bytes = Bytes(offset(kept.last().map_or(0, |page| page + 1)));
    ftruncate(file, bytes.0)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_in_shared_memory_go_with_the_folder_to_which_they_belong() {
        let (kept, gone) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        // No process has number 0, so the makers of these files have ended.
        let of = |folder: &Path, maker: &str| {
            let path = in_shared_memory(&pages_path(folder, 2, maker));
            runtime::make(path.parent().unwrap()).unwrap();
            fs::write(&path, b"pages").unwrap();
            note_owner(&path, folder).unwrap();
            note_owner(&path, folder).unwrap();
            path
        };
        let runs = std::process::id();
        let of_kept = of(kept.path(), "0-0");
        let (dead, living) = (of(gone.path(), "0-0"), of(gone.path(), &format!("{runs}-0")));
        drop(gone);
        let other = tempfile::tempdir().unwrap();
        remove_left(other.path(), 2);
        assert_eq!((of_kept.exists(), dead.exists(), living.exists()), (true, false, true));
        // What a process that runs has made is looked for once more by the next one.
        let later =
            living.with_file_name(living.file_name().unwrap().to_str().unwrap().replace(&format!(".{runs}-"), ".0-"));
        fs::rename(&living, &later).unwrap();
        remove_left(other.path(), 2);
        let links = |path: &Path| {
            let hash = path.file_name().unwrap().to_str().unwrap().split('-').next().unwrap().to_owned();
            fs::symlink_metadata(path.with_file_name(format!("{hash}{OWNER}"))).is_ok()
        };
        assert_eq!((later.exists(), links(&later), links(&of_kept)), (false, false, true));
        drop(kept);
        remove_left(other.path(), 2);
        assert_eq!((of_kept.exists(), links(&of_kept)), (false, false));
    }
}
