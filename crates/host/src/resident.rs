//! The resident pages of a process, mapping by mapping, from /proc/PID/maps and /proc/PID/pagemap.

use std::fs::{self, File};
use std::io;
use std::path::PathBuf;

use isochrome_model::palette::Palette;
use isochrome_model::placement::{Assessment, ColorMap, ColorShape, MappingColors, ResidentPage, SCHEMA};
use isochrome_model::units::Bytes;

use crate::error::HostError;
use crate::pagemap;
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

impl Mapping {
    /// A line of /proc/PID/maps, without the pages.
    fn parse(line: &str) -> Option<Mapping> {
        let mut fields = line.splitn(6, ' ');
        let (start, end) = fields.next()?.split_once('-')?;
        let permissions = fields.next()?.to_owned();
        let name = fields.nth(3).unwrap_or_default().trim().to_owned();
        let address = |text| u64::from_str_radix(text, 16).ok();
        Some(Mapping { start: address(start)?, end: address(end)?, permissions, name, pages: Vec::new() })
    }
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
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).map_err(|error| failed("maps", error))?;
    if maps.is_empty() {
        return Err(HostError::NoUserMemory { pid, command });
    }
    let pagemap = File::open(format!("/proc/{pid}/pagemap")).map_err(|error| failed("pagemap", error))?;
    let page = page_bytes() as u64;
    let mut found = Vec::new();
    // The vsyscall page lies outside of user space and has no entry.
    for mut mapping in maps.lines().filter_map(Mapping::parse).filter(|mapping| mapping.name != "[vsyscall]") {
        pagemap::resident(&pagemap, mapping.start / page..mapping.end / page, &mut mapping.pages)
            .map_err(|error| failed("pagemap", error))?;
        if !mapping.pages.is_empty() {
            found.push(mapping);
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
    fn lines_of_maps_are_read_with_names_that_hold_spaces() {
        let line = "7f00deadb000-7f00deade000 r-xp 00001000 fe:00 1234                       /opt/a b/lib.so (deleted)";
        let mapping = Mapping::parse(line).unwrap();
        assert_eq!((mapping.start, mapping.end), (0x7f00_dead_b000, 0x7f00_dead_e000));
        assert_eq!((mapping.permissions.as_str(), mapping.name.as_str()), ("r-xp", "/opt/a b/lib.so (deleted)"));
        assert_eq!(Mapping::parse("1000-2000 rw-p 00000000 00:00 0").unwrap().name, "");
        assert_eq!(Mapping::parse("nonsense"), None);
    }

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
