//! Pages of known color that outlive the process that measured them: what gives colors their numbers.
//!
//! They lie in a file in memory (tmpfs) of the runtime folder, whose frames are the same for whoever maps it and stay for as
//! long as it is there: an eviction set for each color. What one of them evicts has its color, so colors have the same numbers
//! in every process, whether frame numbers can be seen or not. All other pages of the file are holes. Another file says in
//! JSON which pages these are, and for which boot.
//!
//! Nobody has to make them beforehand: the first command that needs colors measures them, and the others check them before use.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use std::{io, iter};

use isochrome_model::geometry::Geometry;
use isochrome_model::palette::Palette;
use isochrome_model::palette::decode::Answer;
use isochrome_model::palette::infer::{self, Doubt};
use isochrome_model::units::{Bytes, Color};
use rustix::fs::{FallocateFlags, FlockOperation, FsWord, OFlags, fallocate, flock, fstatfs, ftruncate};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::eviction::{ArenaEvictionTest, LevelSizes, TimedEvictionTest, Traversal};
use super::local::LocalEvictionTest;
use super::saved::Boot;
use super::tester::{Effort, Tester};
use super::{Target, discover};
use crate::color::ledger::Ledger;
use crate::error::HostError;
use crate::interrupt;
use crate::machine::sysfs::Sysfs;
use crate::runtime;
use crate::sys::memory::{Arena, page_bytes};

/// Version of the file.
const SCHEMA: &str = "isochrome-reference/3";

/// `TMPFS_MAGIC`. [Linux, include/uapi/linux/magic.h]
const TMPFS: FsWord = 0x0102_1994;

/// Memory among which pages of all colors are sought, at most; next to nothing of it is kept.
const MEMORY_MAX: Bytes = Bytes(128 << 20);

/// Time in which pages are sought on one CPU until none is in doubt.
const LIMIT: Duration = Duration::from_secs(3);

/// Pages of an eviction set by which its color is matched, at least.
const VOTES_MIN: usize = 3;

/// Checks that pages left by an earlier command fail before they are measured anew.
const CHECKS: u64 = 3;

/// Pages of known color.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reference {
    saved: String,
    fingerprint: String,
    boot_id: String,
    /// Identifies the numbering: two references with the same value give each color the same number.
    #[serde(default)]
    pub numbering: String,
    /// Which level's colors they are.
    pub level: u8,
    /// Of that level.
    pub geometry: Geometry,
    /// The level inside it.
    inner: Bytes,
    /// The file with the pages; `None` where there is no folder in memory to keep it in.
    pub path: Option<PathBuf>,
    /// How long it is.
    pub bytes: Bytes,
    /// Page numbers in it, for each color those of an eviction set.
    pub sets: Vec<Vec<u32>>,
    /// What of these pages has to be touched.
    pub traversal: Traversal,
    /// How frame numbers lead to colors, where a rule does.
    #[serde(default)]
    pub rule: Option<Palette>,
}

/// Pages of known color, checked and ready to test others by.
pub struct Ready {
    /// Which pages they are.
    pub reference: Reference,
    /// Tests pages of any process by them.
    pub tester: Tester<LocalEvictionTest>,
    /// What became of the color numbers.
    pub numbers: Numbers,
}

/// For each of `sets`, which are pages of `arena`, the color of `tester` that most of them have; `None` where that is not one each.
/// `ready`: whether the pages hold chains to walk along. Gives the memory back.
pub fn order_by_eviction(
    tester: &mut Tester<LocalEvictionTest>,
    arena: Arena,
    sets: &[Vec<u32>],
    ready: bool,
) -> (Option<Vec<Color>>, Option<Arena>) {
    let first = tester.eviction_test.set_second(arena, &sets.concat(), ready);
    let order = order_of(tester, first, sets);
    (order, tester.eviction_test.take_second())
}

fn order_of(tester: &mut Tester<LocalEvictionTest>, first: u32, sets: &[Vec<u32>]) -> Option<Vec<Color>> {
    if sets.len() != tester.colors() as usize {
        return None;
    }
    let targets: Vec<u32> = sets.iter().flatten().map(|page| first + page).collect();
    let all: Vec<Color> = (0..tester.colors() as u16).map(Color).collect();
    let mut answers = tester.classify(&targets, &all, Effort::STATEMENT).ok()?.into_iter();
    let mut order = Vec::new();
    for set in sets {
        let mut votes = BTreeMap::<Color, usize>::new();
        for answer in answers.by_ref().take(set.len()).flatten() {
            if let Answer::Color(color) = answer {
                *votes.entry(color).or_default() += 1;
            }
        }
        // Pages that have other frames now have any color.
        let all_votes: usize = votes.values().sum();
        let most = votes.into_iter().max_by_key(|(_, count)| *count);
        let color = most.filter(|(_, count)| 2 * count > all_votes && *count >= VOTES_MIN).map(|(color, _)| color);
        order.push(color.filter(|color| !order.contains(&Some(*color))));
    }
    // A single one that cannot be matched is the one that is left.
    let mut left = all.into_iter().filter(|color| !order.contains(&Some(*color)));
    let last = left.next().filter(|_| left.next().is_none());
    order.iter().map(|color| color.or(last)).collect()
}

/// Where color numbers come from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Numbers {
    /// They are those of earlier commands.
    Kept,
    /// They are new: nothing was measured before.
    New,
    /// Pages had lost their colors, and were measured anew; the numbers are as before.
    Matched,
    /// Pages had lost their colors, and too few were left to match the numbers by.
    Replaced,
    /// The machine's numbers, matched by eviction tests; this user's own numbers were different.
    Machines,
}

/// A name that no other numbering has.
fn new_numbering() -> String {
    format!("{:032x}", fastrand::u128(..))
}

fn path(folder: &Path, level: u8) -> PathBuf {
    folder.join(format!("reference-l{level}"))
}

fn pages_path(folder: &Path, level: u8, maker: &str) -> PathBuf {
    folder.join(format!("reference-l{level}.{maker}.pages"))
}

/// The name in /dev/shm for a file of pages that belongs to a folder elsewhere.
fn in_shared_memory(path: &Path) -> PathBuf {
    let mut hasher = DefaultHasher::new();
    path.parent().hash(&mut hasher);
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let folder = format!("isochrome-{}", rustix::process::geteuid().as_raw());
    Path::new("/dev/shm").join(folder).join(format!("{:016x}-{name}", hasher.finish()))
}

/// A file of pages that are being measured, removed where it comes to nothing.
struct Measuring {
    path: PathBuf,
}

impl Drop for Measuring {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
        let _ = fs::remove_file(in_shared_memory(&self.path));
    }
}

/// Removes files of pages whose measurement was killed.
fn remove_left(folder: &Path, level: u8) {
    let kept = Reference::read(&path(folder, level)).ok().flatten().and_then(|reference| reference.path);
    let beside = pages_path(folder, level, "");
    let shared = in_shared_memory(&beside);
    for pages in [beside, shared] {
        let name = pages.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let prefix = name.strip_suffix(".pages").unwrap_or(&name);
        remove_dead(pages.parent().unwrap_or(folder), prefix, kept.as_ref());
    }
}

/// Removes files whose names are `prefix`, the number of a process that has ended, another number, and `.pages`, but not `kept`.
fn remove_dead(folder: &Path, prefix: &str, kept: Option<&PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name().into_string().unwrap_or_default();
        let maker = name.strip_prefix(prefix).and_then(|rest| rest.strip_suffix(".pages"));
        let pid = maker.and_then(|maker| maker.split('-').next()?.parse::<u32>().ok());
        let Some(pid) = pid.filter(|_| Some(&entry.path()) != kept) else { continue };
        if !Path::new("/proc").join(pid.to_string()).exists() {
            let _ = fs::remove_file(entry.path());
        }
    }
}

impl Reference {
    /// Pages of known color of `target` in `folder`: those that were left there, once they pass the eviction test, else new
    /// ones, with the numbers of the old where these can still be matched. An ordinary user's get the machine's numbers where root has given
    /// colors numbers, and so do the grants in the folder. The calling thread should stay on one CPU.
    ///
    /// Fails with [`HostError::CacheUnsteady`], with [`HostError::ReferenceInDoubt`], and where walks cannot be told apart.
    pub fn obtain(folder: &Path, target: Target, seed: u64, boot: &Boot) -> Result<Ready, HostError> {
        let machines = runtime::machines().ok().flatten().filter(|machines| machines != folder);
        let machines = machines.and_then(|machines| Self::load(&machines, target.level, boot).ok());
        Self::obtain_as(folder, target, seed, boot, machines.as_ref())
    }

    /// As [`obtain`](Self::obtain), with the numbers of `machines`.
    pub fn obtain_as(
        folder: &Path,
        target: Target,
        seed: u64,
        boot: &Boot,
        machines: Option<&Reference>,
    ) -> Result<Ready, HostError> {
        let keeps = runtime::make(folder).is_ok();
        // One process measures, the others wait and find what it has measured. Whoever may only read does not wait.
        let lock = File::options().create(true).truncate(false).write(true).open(folder.join("reference.lock"));
        let _lock = lock.ok().filter(|lock| flock(lock, FlockOperation::LockExclusive).is_ok());
        let mut ready = Self::kept_or_made(folder, keeps, target, seed, boot)?;
        let differs = |machines: &&Reference| machines.numbering != ready.reference.numbering;
        let machines = machines.filter(differs).filter(|machines| machines.geometry == target.geometry);
        let mut order = None;
        if let Some(machines) = machines
            && let Some(number_of) = (0..CHECKS).find_map(|_| machines.numbers_by(&mut ready.tester))
        {
            ready.reference.renumber(&number_of);
            ready.tester.renumber(&number_of);
            ready.reference.numbering = machines.numbering.clone();
            ready.numbers = Numbers::Machines;
            let mut new_of = vec![Color(0); number_of.len()];
            (0u16..).zip(&number_of).for_each(|(new, old)| new_of[usize::from(old.0)] = Color(new));
            order = Some(new_of);
            if keeps {
                ready.reference.save(folder, None)?;
            }
        }
        if keeps {
            Ledger::open(folder)?.renumber(target.level, &ready.reference.numbering, order.as_deref())?;
        }
        Ok(ready)
    }

    /// Those that were left in the folder, or new ones, which are `kept` there.
    fn kept_or_made(folder: &Path, keeps: bool, target: Target, seed: u64, boot: &Boot) -> Result<Ready, HostError> {
        let old = Self::load(folder, target.level, boot).ok().filter(|old| old.geometry == target.geometry);
        let mut numbers = Numbers::New;
        if let Some(old) = &old {
            numbers = Numbers::Replaced;
            for attempt in 0..CHECKS {
                if let Some(ready) = old.clone().checked(seed.wrapping_add(attempt))? {
                    return Ok(ready);
                }
            }
        }
        let (mut made, mut tester) = Self::make(folder, target, seed, boot)?;
        // Other numbers would be wrong for every program that is on its colors: not for a moment's noise.
        let mut order_of_old = |old: &Reference| (0..CHECKS).find_map(|_| old.numbers_by(&mut tester));
        let old = old.as_ref();
        if let Some(order) = old.and_then(&mut order_of_old) {
            made.renumber(&order);
            tester.renumber(&order);
            made.numbering = old.map_or(made.numbering, |old| old.numbering.clone());
            numbers = Numbers::Matched;
        }
        if keeps && made.path.is_some() {
            made.save(folder, old)?;
        }
        Ok(Ready { reference: made, tester, numbers })
    }

    /// The same pages, if they still have their colors, or those in `folder` that have taken their place, or new ones.
    pub fn renewed(&self, folder: &Path, seed: u64) -> Result<Ready, HostError> {
        let boot = Boot { fingerprint: self.fingerprint.clone(), boot_id: self.boot_id.clone() };
        Self::obtain(folder, self.target(), seed, &boot)
    }

    /// A tester by these pages, if they still have their colors; those few that have lost it are left out.
    fn checked(mut self, seed: u64) -> Result<Option<Ready>, HostError> {
        let Some(arena) = self.map() else { return Ok(None) };
        let line_bytes = self.geometry.line_bytes.0 as usize;
        let eviction_test = match LocalEvictionTest::new(arena, line_bytes, &self.sets, true, self.traversal, seed) {
            // Pages of which no set evicts its own look like that, too.
            Err(HostError::TimingBlurred { .. }) => return Ok(None),
            eviction_test => eviction_test?,
        };
        let mut tester = Tester::new(eviction_test, self.sets.clone(), seed);
        let answers = match tester.classify_sets(Effort::STATEMENT) {
            Err(HostError::ReferenceMixed { .. }) => return Ok(None),
            answers => answers?,
        };
        let enough = self.target().search().set_len_min();
        for (color, (set, answers)) in self.sets.iter_mut().zip(answers).enumerate() {
            let confirmed =
                answers.iter().filter(|answer| **answer == Some(Answer::Color(Color(color as u16)))).count();
            // A page keeps its color unless a test decided otherwise, as long as most of its set have theirs.
            if 2 * confirmed < set.len() {
                return Ok(None);
            }
            let mut kept = answers.iter().map(|answer| match answer {
                Some(Answer::Color(of_page)) => usize::from(of_page.0) == color,
                Some(Answer::Other) => false,
                Some(Answer::Unsteady) | None => true,
            });
            set.retain(|_| kept.next() == Some(true));
            if set.len() < enough {
                return Ok(None);
            }
        }
        tester.set_sets(self.sets.clone());
        Ok(Some(Ready { reference: self, tester, numbers: Numbers::Kept }))
    }

    /// For each color of this reference, the color of `tester` that most of its pages have; `None` where that is not one each.
    pub fn numbers_by(&self, tester: &mut Tester<LocalEvictionTest>) -> Option<Vec<Color>> {
        order_by_eviction(tester, self.map()?, &self.sets, true).0
    }

    /// Makes this the numbering of the machine: colors get the numbers that `rule` gives their frames, by `order`.
    pub fn adopt(&mut self, folder: &Path, rule: &Palette, order: &[Color]) -> Result<(), HostError> {
        self.renumber(order);
        self.rule = Some(rule.clone());
        self.numbering = new_numbering();
        self.save(folder, None)
    }

    /// For each color of `palette`, the color here whose pages have frames of it: `None` where the palette knows no frame of theirs, so
    /// that its numbers have to be the same.
    ///
    /// Fails with [`HostError::PaletteContradicted`] where frames of one color here have several by the palette.
    pub fn order_by_frames(
        &self,
        tester: &Tester<LocalEvictionTest>,
        palette: &Palette,
    ) -> Result<Option<Vec<Color>>, HostError> {
        let mut order = vec![None; palette.colors as usize];
        let (mut known, mut wrong) = (0, 0);
        for (color, set) in self.sets.iter().enumerate() {
            let mut votes = BTreeMap::<Color, usize>::new();
            for frame in set.iter().filter_map(|page| tester.eviction_test.frame(*page)) {
                if let Some(of_frame) = palette.color_of(frame) {
                    *votes.entry(of_frame).or_default() += 1;
                }
            }
            let all: usize = votes.values().sum();
            known += usize::from(all > 0);
            let most = votes.into_iter().max_by_key(|(_, count)| *count);
            let here = Some(Color(color as u16));
            match most.filter(|(_, count)| 10 * count >= 9 * all) {
                Some((number, _)) if order.get(usize::from(number.0)) == Some(&None) => {
                    order[usize::from(number.0)] = here
                }
                _ => wrong += usize::from(all > 0),
            }
        }
        match order.into_iter().collect() {
            _ if known == 0 => Ok(None),
            Some(order) if wrong == 0 => Ok(Some(order)),
            // A table that knows pages of some colors only says nothing about the numbers of the others.
            None if wrong == 0 => Ok(None),
            _ => Err(HostError::PaletteContradicted { wrong, tested: self.sets.len() }),
        }
    }

    /// How frame numbers lead to colors, where they can be seen and a linear function does it.
    fn linear_rule(&self, tester: &Tester<LocalEvictionTest>) -> Option<Palette> {
        let frames = (0u16..).zip(&self.sets).flat_map(|(color, set)| {
            set.iter().filter_map(move |page| Some((tester.eviction_test.frame(*page)?, Color(color))))
        });
        infer::linear_palette(self.level, self.colors(), &frames.collect::<Vec<_>>())
    }

    /// Gives the color numbered `order[i]` the number i.
    fn renumber(&mut self, order: &[Color]) {
        self.sets = order.iter().map(|color| self.sets[usize::from(color.0)].clone()).collect();
        // A rule has numbers of its own.
        self.rule = None;
    }

    /// Maps the pages: read only, as others use them.
    fn map(&self) -> Option<Arena> {
        let file = runtime::open(self.path.as_ref()?).ok()??;
        Arena::map_file_private(file.as_fd(), self.bytes.0 as usize / page_bytes()).ok()
    }

    /// Measures pages of a new file in `folder`, again while the outcome is in doubt.
    fn make(
        folder: &Path,
        target: Target,
        seed: u64,
        boot: &Boot,
    ) -> Result<(Reference, Tester<LocalEvictionTest>), HostError> {
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

    /// Writes down which pages these are, in place of `old`.
    fn save(&self, folder: &Path, old: Option<&Reference>) -> Result<(), HostError> {
        let text = serde_json::to_vec(self).expect("a reference is plain data");
        runtime::replace(&path(folder, self.level), &text)?;
        if let Some(before) = old.and_then(|old| old.path.as_ref()).filter(|before| Some(*before) != self.path.as_ref())
        {
            let _ = fs::remove_file(before);
        }
        remove_left(folder, self.level);
        Ok(())
    }

    /// The file for the pages: `path` where that lies in memory, else one for the same folder in the memory that programs share.
    fn file(path: &Path) -> Result<(File, PathBuf), HostError> {
        let mut refused = None;
        for path in [path.to_owned(), in_shared_memory(path)] {
            let folder = path.parent().unwrap_or(Path::new("/"));
            let opened = runtime::make(folder).and_then(|()| {
                // A link there would lead elsewhere.
                let _ = fs::remove_file(&path);
                let mut options = File::options();
                options.read(true).write(true).create_new(true).mode(0o644);
                let file = options.custom_flags(OFlags::NOFOLLOW.bits() as i32).open(&path);
                file.map_err(|source| HostError::Unwritable { path: path.clone(), source })
            });
            match opened {
                // Pages of a file on a disk come and go.
                Ok(file) if fstatfs(&file).is_ok_and(|system| system.f_type == TMPFS) => return Ok((file, path)),
                Ok(_) => drop(fs::remove_file(&path)),
                Err(error) => refused = Some(error),
            }
        }
        let source = io::Error::other("there is no tmpfs to write to");
        Err(refused.unwrap_or(HostError::Unwritable { path: path.to_owned(), source }))
    }

    fn measure(
        path: &Path,
        target: Target,
        seed: u64,
        boot: &Boot,
    ) -> Result<(Reference, Tester<LocalEvictionTest>), HostError> {
        let unwritable = |source| HostError::Unwritable { path: path.to_owned(), source };
        let (file, kept) = Self::file(path)?;
        let huge = Sysfs::system().huge_page_bytes().unwrap_or(page_bytes());
        let step = huge / page_bytes();
        let ready = target.pages_to_search().next_multiple_of(step);
        let count = ready.max(MEMORY_MAX.0 as usize / page_bytes());
        ftruncate(&file, (count * page_bytes()) as u64).map_err(|error| unwritable(error.into()))?;
        let arena =
            Arena::map_file(file.as_fd(), count, huge).map_err(|source| HostError::Memory { pages: count, source })?;
        // Single frames are handed out as they were freed, perhaps by color, and the kernel moves their contents to make room for huge
        // pages. Frames of a huge page have all colors, and stay.
        let gathered = if step > 1 { arena.gather(ready, huge) } else { 0 } as u32;
        let mut eviction_test = TimedEvictionTest::calibrate(arena, target.sizes(), seed)?;
        eviction_test.make_ready(0..ready as u32);
        let begin = Instant::now();
        let stop = || interrupt::interrupted() || begin.elapsed() > LIMIT;
        let mut rng = fastrand::Rng::with_seed(seed);
        let (groups, _) = discover::groups(&mut eviction_test, target.search(), ready as u32, &mut rng, &stop);
        if interrupt::interrupted() {
            return Err(HostError::Interrupted);
        }
        let (found, expected) = (groups.len() as u32, target.search().colors_expected as u32);
        if found == 0 {
            return Err(HostError::NoEviction { level: target.level });
        }
        if found != expected {
            return Err(HostError::ReferenceInDoubt { doubt: Doubt::Count { found, expected }.to_string() });
        }
        let sets: Vec<Vec<u32>> = groups.into_iter().map(|group| group.set).collect();
        // What is no part of a set goes back, but for huge pages, which stay whole.
        let mut kept_pages = sets.concat();
        kept_pages.extend(0..gathered);
        kept_pages.sort_unstable();
        kept_pages.dedup();
        let offset = |page: u32| u64::from(page) * page_bytes() as u64;
        let behind = kept_pages.iter().map(|page| page + 1);
        for (hole, next) in iter::once(0).chain(behind).zip(kept_pages.iter().copied()) {
            if hole < next {
                let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                let punched = fallocate(&file, flags, offset(hole), offset(next) - offset(hole));
                punched.map_err(|error| unwritable(error.into()))?;
            }
        }
        let bytes = Bytes(offset(kept_pages.last().map_or(0, |page| page + 1)));
        ftruncate(&file, bytes.0).map_err(|error| unwritable(error.into()))?;
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
        // The search and this test share no decision: a set that was found by accident does not pass.
        let answers = tester.classify_sets(Effort::STATEMENT)?;
        let wrong = answers
            .iter()
            .enumerate()
            .flat_map(|(color, answers)| answers.iter().map(move |a| *a != Some(Answer::Color(Color(color as u16)))))
            .filter(|wrong| *wrong)
            .count();
        // Single pages may fail where noise is high; a set that is short of some still evicts.
        if 20 * wrong > reference.sets.iter().map(Vec::len).sum() {
            return Err(HostError::ReferenceInDoubt { doubt: format!("{wrong} pages fail the eviction test") });
        }
        if let Some(rule) = reference.linear_rule(&tester)
            && let Some(order) = reference.order_by_frames(&tester, &rule)?
        {
            reference.renumber(&order);
            tester.renumber(&order);
            reference.rule = Some(rule);
        }
        Ok((reference, tester))
    }

    /// What the file at `path` says; `None` where it says nothing that is understood.
    fn read(path: &Path) -> Result<Option<Reference>, HostError> {
        let text = runtime::read(path)?.unwrap_or_default();
        let reference = serde_json::from_slice(&text).ok();
        Ok(reference.filter(|reference: &Reference| reference.saved == SCHEMA))
    }

    /// What was saved in `folder` for `level`, if it is of `boot`. Whoever uses it puts it to the test.
    pub fn load(folder: &Path, level: u8, boot: &Boot) -> Result<Reference, HostError> {
        let path = path(folder, level);
        if !path.exists() {
            return Err(HostError::NoReference { path, level });
        }
        let Some(reference) = Self::read(&path)? else { return Err(HostError::SavedPaletteDamaged { path }) };
        if reference.fingerprint != boot.fingerprint || reference.level != level {
            return Err(HostError::SavedPaletteForeign { path });
        }
        if reference.boot_id != boot.boot_id {
            return Err(HostError::SavedPaletteStale { path });
        }
        let pages = reference.path.as_deref().map(runtime::open).transpose()?.flatten();
        let there = pages.is_some_and(|pages| pages.metadata().is_ok_and(|file| file.len() == reference.bytes.0));
        if there && reference.is_sound() { Ok(reference) } else { Err(HostError::SavedPaletteDamaged { path }) }
    }

    /// Whether what it says can be worked with: a program would end by SIGBUS that is made to touch what lies behind the file.
    fn is_sound(&self) -> bool {
        let pages = self.bytes.0 / page_bytes() as u64;
        let sound = |set: &Vec<u32>| set.len() >= 2 && set.iter().all(|page| u64::from(*page) < pages);
        self.sets.len() >= 2 && self.sets.iter().all(sound) && self.geometry.line_bytes.0.is_power_of_two()
    }

    /// The same with other sets of its pages.
    pub fn with_sets(self, sets: Vec<Vec<u32>>) -> Reference {
        Reference { sets, ..self }
    }

    /// How many colors there are.
    pub fn colors(&self) -> u32 {
        self.sets.len() as u32
    }

    fn target(&self) -> Target {
        Target { level: self.level, geometry: self.geometry, inner: self.inner }
    }

    /// The level and the one inside it.
    pub(crate) fn sizes(&self) -> LevelSizes {
        self.target().sizes()
    }
}
