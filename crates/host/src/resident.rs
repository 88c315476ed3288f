//! The resident pages of a process, mapping by mapping, from /proc/PID/maps and /proc/PID/pagemap.

use std::fs::{self, File};
use std::io;
use std::path::PathBuf;

use isochrome_model::palette::Palette;
use isochrome_model::placement::{Assessment, ColorMap, ColorShape, MappingColors, ResidentPage, SCHEMA};
use isochrome_model::units::Bytes;

use crate::error::HostError;
use crate::pagemap;
use crate::recolor::process::regions_of;
use crate::sys::memory::page_bytes;

/// One mapping of a process with its resident pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// First address.
    pub start: u64,
    /// Address behind the last.
    pub end: u64,
    /// `rwx` and `p`rivate or `s`hared.
    pub permissions: String,
    /// The file behind it, or `[heap]` and the like; empty for anonymous memory.
    pub name: String,
    /// Its resident pages, by address.
    pub pages: Vec<ResidentPage>,
}

/// The name of process `pid`.
///
/// Fails with [`HostError::NoSuchProcess`].
pub fn command(pid: u32) -> Result<String, HostError> {
    let text = fs::read_to_string(format!("/proc/{pid}/comm")).map_err(|_| HostError::NoSuchProcess { pid })?;
    Ok(text.trim_end().to_owned())
}

/// The mappings of process `pid` that have resident pages, by address.
///
/// Fails with [`HostError::NoSuchProcess`], with [`HostError::NoUserMemory`] for a thread of the kernel or a process that has ended,
/// with [`HostError::ProcessDenied`] where its memory is not this user's to see, and with [`HostError::FramesHidden`].
pub fn mappings(pid: u32) -> Result<Vec<Mapping>, HostError> {
    let command = command(pid)?;
    let failed = |file: &str, source: io::Error| match source.kind() {
        io::ErrorKind::NotFound => HostError::NoSuchProcess { pid },
        io::ErrorKind::PermissionDenied => HostError::ProcessDenied { pid, command: command.clone(), source },
        _ => HostError::Unreadable {
            path: PathBuf::from(format!("/proc/{pid}/{file}")),
            source,
            hint: "the process may be ending; try again",
        },
    };
    // Names of files need not be UTF-8.
    let maps = fs::read(format!("/proc/{pid}/maps")).map_err(|error| failed("maps", error))?;
    let maps = String::from_utf8_lossy(&maps);
    if maps.is_empty() {
        return Err(HostError::NoUserMemory { pid, command });
    }
    let pagemap = File::open(format!("/proc/{pid}/pagemap")).map_err(|error| failed("pagemap", error))?;
    let page = page_bytes() as u64;
    let malformed = io::Error::from(io::ErrorKind::InvalidData);
    let regions = regions_of(&maps).ok_or_else(|| failed("maps", malformed))?;
    let mut found = Vec::new();
    // The vsyscall page lies outside of user space and has no entry.
    for region in regions.into_iter().filter(|region| region.name != "[vsyscall]") {
        let mut pages = Vec::new();
        pagemap::resident(&pagemap, region.start / page..region.end / page, &mut pages)
            .map_err(|error| failed("pagemap", error))?;
        if !pages.is_empty() {
            let permissions = region.permissions();
            found.push(Mapping { start: region.start, end: region.end, permissions, name: region.name, pages });
        }
    }
    let all = || found.iter().flat_map(|mapping| &mapping.pages);
    if all().next().is_some() && all().all(|page| page.frame.is_none()) {
        return Err(HostError::FramesHidden);
    }
    Ok(found)
}

/// The colors of the resident pages of process `pid` by `palette`.
pub fn color_map(pid: u32, palette: &Palette, shape: ColorShape) -> Result<ColorMap, HostError> {
    let mappings = mappings(pid)?;
    let all: Vec<ResidentPage> = mappings.iter().flat_map(|mapping| mapping.pages.iter().copied()).collect();
    Ok(ColorMap {
        schema: SCHEMA.to_owned(),
        pid,
        command: command(pid)?,
        level: palette.level,
        shape,
        page_bytes: Bytes(page_bytes() as u64),
        total: Assessment::of(&all, palette, shape),
        mappings: mappings
            .into_iter()
            .map(|Mapping { start, end, permissions, name, pages }| MappingColors {
                start,
                end,
                permissions,
                name,
                assessment: Assessment::of(&pages, palette, shape),
            })
            .collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::memory::Arena;

    #[test]
    fn pages_that_were_touched_are_resident_and_others_are_not() {
        let mut arena = Arena::map(64).unwrap();
        for page in [3, 4, 17] {
            arena.bytes_mut()[page * page_bytes()] = 1;
        }
        let first = (arena.address() / page_bytes()) as u64;
        let mut pages = Vec::new();
        let pagemap = File::open("/proc/self/pagemap").unwrap();
        pagemap::resident(&pagemap, first..first + 64, &mut pages).unwrap();
        assert_eq!(pages.iter().map(|page| page.page - first).collect::<Vec<_>>(), [3, 4, 17]);
        assert!(pages.iter().all(|page| page.anonymous));
    }

    #[test]
    fn what_has_no_memory_to_map_is_refused() {
        // Process numbers end at 4 194 304.
        assert!(matches!(mappings(u32::MAX), Err(HostError::NoSuchProcess { pid: u32::MAX })));
        // The parent of the kernel's threads, where this process namespace shows it.
        if command(2).is_ok_and(|name| name == "kthreadd") {
            assert!(matches!(mappings(2), Err(HostError::NoUserMemory { pid: 2, .. })));
        }
    }
}
