//! Pages of known color that every program can map: what colors are told by where frame numbers are hidden.
//!
//! They lie in a file in memory (tmpfs) of the runtime folder, whose frames are the same for whoever maps it, and stay for as long
//! as it is there: for each color an eviction set. What one of them evicts has its color; so colors have the same numbers in every
//! process. All other pages of the file are holes. Another file says in JSON which pages these are, and for which boot.

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use isochrome_model::geometry::Geometry;
use isochrome_model::palette::Method;
use isochrome_model::units::{Bytes, Color};
use rustix::fs::{FallocateFlags, fallocate, fstatfs, ftruncate};
use serde::{Deserialize, Serialize};

use super::look::LevelSizes;
use super::saved::Boot;
use super::{Survey, Target};
use crate::error::HostError;
use crate::runtime;
use crate::sys::memory::{Arena, page_bytes};
use crate::sysfs::Processor;

/// Version of the file.
const SCHEMA: &str = "isochrome-reference/1";

/// `TMPFS_MAGIC`. [Linux, include/uapi/linux/magic.h]
const TMPFS: i64 = 0x0102_1994;

/// Surveys made until none is in doubt.
const ATTEMPTS: u64 = 3;

/// Pages of known color.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reference {
    saved: String,
    fingerprint: String,
    boot_id: String,
    /// Which level's colors they are.
    pub level: u8,
    /// Of that level.
    pub geometry: Geometry,
    /// The level inside it.
    inner: Bytes,
    /// The file with the pages.
    pub path: PathBuf,
    /// How long it is.
    pub bytes: Bytes,
    /// Page numbers in it, for each color those of an eviction set.
    pub sets: Vec<Vec<u32>>,
}

fn path(folder: &Path, level: u8) -> PathBuf {
    folder.join(format!("reference-l{level}"))
}

fn pages_path(folder: &Path, level: u8, pid: u32) -> PathBuf {
    folder.join(format!("reference-l{level}.{pid}.pages"))
}

/// A file of pages that are being measured, removed where it comes to nothing.
struct Measuring {
    path: PathBuf,
}

impl Drop for Measuring {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Removes files of pages whose measurement was killed.
fn remove_left(folder: &Path, level: u8) {
    let kept = Reference::read(&path(folder, level)).map(|reference| reference.path);
    let prefix = format!("reference-l{level}.");
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name().into_string().unwrap_or_default();
        let pid = name.strip_prefix(&prefix).and_then(|rest| rest.strip_suffix(".pages")?.parse::<u32>().ok());
        let Some(pid) = pid.filter(|_| Some(entry.path()) != kept) else { continue };
        if !Path::new("/proc").join(pid.to_string()).exists() {
            let _ = fs::remove_file(entry.path());
        }
    }
}

impl Reference {
    /// Measures pages of a new file in `folder`, in place of what was saved there before: colors get other numbers, so nobody may be using
    /// them.
    pub fn make(
        folder: &Path,
        target: Target,
        processor: &Processor,
        seed: u64,
        boot: &Boot,
    ) -> Result<Reference, HostError> {
        runtime::make(folder)?;
        let measuring = Measuring { path: pages_path(folder, target.level, std::process::id()) };
        let mut attempt = 0;
        let reference = loop {
            match Self::measure(&measuring.path, target, processor, seed.wrapping_add(attempt), boot) {
                Err(error) if error.may_pass() && attempt + 1 < ATTEMPTS => attempt += 1,
                made => break made?,
            }
        };
        let text = serde_json::to_vec(&reference).expect("a reference is plain data");
        let before = Self::read(&path(folder, target.level));
        runtime::replace(&path(folder, target.level), &text)?;
        std::mem::forget(measuring);
        if let Some(before) = before.filter(|before| before.path != reference.path) {
            let _ = fs::remove_file(before.path);
        }
        remove_left(folder, target.level);
        Ok(reference)
    }

    fn measure(
        path: &Path,
        target: Target,
        processor: &Processor,
        seed: u64,
        boot: &Boot,
    ) -> Result<Reference, HostError> {
        let unwritable = |source| HostError::Unwritable { path: path.to_owned(), source };
        let file = File::options().read(true).write(true).create(true).truncate(true).open(path).map_err(unwritable)?;
        // Pages of a file on a disk come and go.
        if fstatfs(&file).map_err(|error| unwritable(error.into()))?.f_type as i64 != TMPFS {
            return Err(HostError::NotInMemory { path: path.to_owned() });
        }
        let set_len = target.search().set_len();
        let count = target.sizes().pages_needed().max(4 * target.search().crowd());
        let bytes = Bytes((count * page_bytes()) as u64);
        ftruncate(&file, bytes.0).map_err(|error| unwritable(error.into()))?;
        let arena =
            Arena::map_file(file.as_fd(), count).map_err(|source| HostError::Memory { pages: count, source })?;
        let mut survey = Survey::start_by(Method::Timing, target, arena, processor, seed)?;
        survey.classify_until(set_len)?;
        let inference = survey.finish().inference;
        if let Some(doubt) = inference.doubts.first() {
            return Err(HostError::ReferenceInDoubt { doubt: doubt.to_string() });
        }
        let members = |color: u16| {
            let of_color = (0u32..).zip(&inference.page_colors).filter(|(_, found)| **found == Some(Color(color)));
            of_color.map(|(page, _)| page).take(set_len).collect::<Vec<u32>>()
        };
        let sets: Vec<Vec<u32>> = (0..inference.palette.colors as u16).map(members).collect();
        let page = page_bytes() as u64;
        for hole in (0..count as u32).filter(|page| !sets.iter().flatten().any(|kept| kept == page)) {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            fallocate(&file, flags, u64::from(hole) * page, page).map_err(|error| unwritable(error.into()))?;
        }
        Ok(Reference {
            saved: SCHEMA.to_owned(),
            fingerprint: boot.fingerprint.clone(),
            boot_id: boot.boot_id.clone(),
            level: target.level,
            geometry: target.geometry,
            inner: target.inner,
            path: path.to_owned(),
            bytes,
            sets,
        })
    }

    fn read(path: &Path) -> Option<Reference> {
        let reference: Reference = serde_json::from_slice(&fs::read(path).ok()?).ok()?;
        (reference.saved == SCHEMA).then_some(reference)
    }

    /// What was saved in `folder` for `level`, if it is of `boot`. Whoever uses it puts it to the test.
    pub fn load(folder: &Path, level: u8, boot: &Boot) -> Result<Reference, HostError> {
        let path = path(folder, level);
        if !path.exists() {
            return Err(HostError::NoReference { path, level });
        }
        let Some(reference) = Self::read(&path) else { return Err(HostError::SavedPaletteDamaged { path }) };
        if reference.fingerprint != boot.fingerprint || reference.level != level {
            return Err(HostError::SavedPaletteForeign { path });
        }
        if reference.boot_id != boot.boot_id {
            return Err(HostError::SavedPaletteStale { path });
        }
        let there = fs::metadata(&reference.path).is_ok_and(|file| file.len() == reference.bytes.0);
        if there && reference.is_sound() { Ok(reference) } else { Err(HostError::SavedPaletteDamaged { path }) }
    }

    /// Whether what it says can be worked with: a program would end by SIGBUS that is made to touch what lies behind the file.
    fn is_sound(&self) -> bool {
        let pages = self.bytes.0 / page_bytes() as u64;
        let sound = |set: &Vec<u32>| set.len() >= 2 && set.iter().all(|page| u64::from(*page) < pages);
        self.sets.len() >= 2 && self.sets.iter().all(sound) && self.geometry.line_bytes.0.is_power_of_two()
    }

    /// How many colors there are.
    pub fn colors(&self) -> u32 {
        self.sets.len() as u32
    }

    /// The level and the one inside it.
    pub(crate) fn sizes(&self) -> LevelSizes {
        Target { level: self.level, geometry: self.geometry, inner: self.inner }.sizes()
    }
}
