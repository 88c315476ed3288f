//! The resident pages of a process, mapping by mapping, from /proc/PID/smaps and /proc/PID/pagemap.

use std::fs::{self, File};
use std::io;
use std::path::PathBuf;

use isochrome_model::palette::Palette;
use isochrome_model::placement::{
    Assessment, ColorMap, ColorShape, Kind, MappingColors, Residence, ResidentPage, SCHEMA,
};
use isochrome_model::units::Bytes;

use super::error::ColorError;
use super::pagemap;
use crate::process::{Pid, ProcessError, regions_of};
use crate::sys::memory::page_bytes;

/// One mapping of a process with its resident pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// First address of the mapping.
    pub start: u64,
    /// First address behind the mapping.
    pub end: u64,
    /// Permissions of the mapping: `rwx`, and `p`rivate or `s`hared.
    pub permissions: String,
    /// The file that is mapped, or the kernel's name, such as `[heap]`; empty for anonymous memory.
    pub name: String,
    /// Kind of memory that is mapped.
    pub kind: Kind,
    /// Resident pages of the mapping, by address.
    pub pages: Vec<ResidentPage>,
}

/// Returns the name of process `pid`.
///
/// Fails with [`ProcessError::NoSuchProcess`].
pub fn command(pid: u32) -> Result<String, ProcessError> {
    let text = Pid(pid as i32).text("comm").map_err(|_| ProcessError::NoSuchProcess { pid })?;
    Ok(text.trim_end().to_owned())
}

/// Returns the mappings of process `pid` that have resident pages, by address, with the frames of these pages.
///
/// Fails as [`seen_mappings`] does, and with [`ColorError::FramesHidden`].
pub fn mappings(pid: u32) -> Result<Vec<Mapping>, ColorError> {
    let found = seen_mappings(pid)?;
    let all = || found.iter().flat_map(|mapping| &mapping.pages);
    if all().next().is_some() && all().all(|page| page.frame.is_none()) {
        return Err(ColorError::FramesHidden);
    }
    Ok(found)
}

/// Returns the mappings of process `pid` that have resident pages, by address, even if the kernel hides the frames of these pages.
///
/// Fails with [`ProcessError::NoSuchProcess`], with [`ProcessError::NoUserMemory`] for a thread of the kernel or a process that has ended, and
/// with [`ProcessError::MemoryDenied`] if this user may not inspect its memory.
pub fn seen_mappings(pid: u32) -> Result<Vec<Mapping>, ProcessError> {
    let command = command(pid)?;
    let failed = |file: &str, source: io::Error| match source.kind() {
        io::ErrorKind::NotFound => ProcessError::NoSuchProcess { pid },
        io::ErrorKind::PermissionDenied => ProcessError::MemoryDenied { pid, command: command.clone(), source },
        _ => ProcessError::Unreadable { path: PathBuf::from(format!("/proc/{pid}/{file}")), source },
    };
    // Names of files need not be UTF-8.
    let smaps = fs::read(format!("/proc/{pid}/smaps")).map_err(|error| failed("smaps", error))?;
    let smaps = String::from_utf8_lossy(&smaps);
    if smaps.is_empty() {
        return Err(ProcessError::NoUserMemory { pid, command });
    }
    let pagemap = File::open(format!("/proc/{pid}/pagemap")).map_err(|error| failed("pagemap", error))?;
    let page = page_bytes() as u64;
    let malformed = io::Error::from(io::ErrorKind::InvalidData);
    let regions = regions_of(&smaps).ok_or_else(|| failed("smaps", malformed))?;
    let mut found = Vec::new();
    // The vsyscall page lies outside of user space and has no pagemap entry.
    for region in regions.into_iter().filter(|region| region.name != "[vsyscall]") {
        let mut pages = Vec::new();
        pagemap::resident(&pagemap, region.start / page..region.end / page, &mut pages)
            .map_err(|error| failed("pagemap", error))?;
        let kind = region.kind();
        // Mappings of the kernel, such as its clock page, are not memory of the process.
        if kind == Kind::Kernel && region.resident.0 == 0 {
            continue;
        }
        if !pages.is_empty() {
            let permissions = region.permissions();
            found.push(Mapping { start: region.start, end: region.end, permissions, name: region.name, kind, pages });
        }
    }
    Ok(found)
}

/// Returns the colors of the resident pages of process `pid` by `palette`.
pub fn color_map(pid: u32, palette: &Palette, shape: ColorShape) -> Result<ColorMap, ColorError> {
    let mappings = mappings(pid)?;
    let mut memory = Residence::default();
    mappings.iter().for_each(|mapping| memory.add(mapping.kind, &mapping.pages));
    let all: Vec<ResidentPage> = mappings.iter().flat_map(|mapping| mapping.pages.iter().copied()).collect();
    Ok(ColorMap {
        schema: SCHEMA.to_owned(),
        pid,
        command: command(pid)?,
        level: palette.level,
        shape,
        page_bytes: Bytes(page_bytes() as u64),
        total: Assessment::of(&all, palette, shape),
        memory,
        mappings: mappings
            .into_iter()
            .map(|Mapping { start, end, permissions, name, kind, pages }| MappingColors {
                start,
                end,
                permissions,
                name,
                kind,
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
        assert!(matches!(seen_mappings(u32::MAX), Err(ProcessError::NoSuchProcess { pid: u32::MAX })));
        // Process 2 is the parent of the kernel's threads, if this PID namespace shows it.
        if command(2).is_ok_and(|name| name == "kthreadd") {
            assert!(matches!(seen_mappings(2), Err(ProcessError::NoUserMemory { pid: 2, .. })));
        }
    }

    /// Program that maps memory of every kind, prints `ready`, and waits for the end of its input.
    const MAPPER: &str = r#"
import ctypes, mmap, os, sys, tempfile
page = mmap.PAGESIZE
kept = []
def touched(memory, pages):
    for i in range(pages):
        memory[i * page] = 1
    kept.append(memory)
touched(mmap.mmap(-1, 48 * page), 48)
memfd = os.memfd_create("m")
os.ftruncate(memfd, 24 * page)
touched(mmap.mmap(memfd, 24 * page), 24)
with tempfile.TemporaryFile(dir="/dev/shm") as file:
    os.ftruncate(file.fileno(), 12 * page)
    touched(mmap.mmap(file.fileno(), 12 * page), 12)
with tempfile.TemporaryFile(dir=sys.argv[1]) as file:
    os.ftruncate(file.fileno(), 6 * page)
    touched(mmap.mmap(file.fileno(), 6 * page), 6)
libc = ctypes.CDLL(None)
libc.shmat.restype = ctypes.c_void_p
sysv = libc.shmget(0, 3 * page, 0o1600)
at = libc.shmat(sysv, None, 0)
libc.shmctl(sysv, 0, None)
ctypes.memset(at, 1, 3 * page)
print("ready", flush=True)
sys.stdin.read()
"#;

    #[test]
    fn memory_of_every_kind_is_counted_and_adds_up_to_what_the_kernel_says() {
        use std::io::BufRead;
        use std::process::{Command, Stdio};
        use std::time::{Duration, Instant};
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new("python3");
        command.args(["-c", MAPPER]).arg(folder.path()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("python3 is installed");
        let mut line = String::new();
        io::BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        // Until it waits for its input, the program may touch more memory.
        let status = || fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
        let begin = Instant::now();
        while !status().contains("State:\tS") && begin.elapsed() < Duration::from_secs(10) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let (mut residence, mut in_folder) = (Residence::default(), Residence::default());
        for mapping in seen_mappings(child.id()).unwrap() {
            residence.add(mapping.kind, &mapping.pages);
            if mapping.name.starts_with(folder.path().to_str().unwrap()) {
                in_folder.add(mapping.kind, &mapping.pages);
            }
        }
        let rollup = fs::read_to_string(format!("/proc/{}/smaps_rollup", child.id())).unwrap();
        drop(child.stdin.take());
        child.wait().unwrap();
        let kib = |key: &str| -> u64 {
            let line = rollup.lines().find(|line| line.starts_with(key)).unwrap();
            line.split_ascii_whitespace().nth(1).unwrap().parse().unwrap()
        };
        let page_kib = page_bytes() as u64 / 1024;
        assert_eq!(residence.resident * page_kib, kib("Rss:"), "{residence:?} {rollup}");
        // The kernel counts the copies of pages in private mappings as anonymous.
        assert_eq!(residence.anonymous * page_kib, kib("Anonymous:"), "{residence:?} {rollup}");
        let of = |kind| residence.immovable.get(&kind).copied().unwrap_or(0);
        let kinds = [Kind::SharedMemory, Kind::Memfd, Kind::DevShm, Kind::SysV];
        assert_eq!(kinds.map(of), [48, 24, 12, 3], "{residence:?}");
        // The C library may share files of its own, so only files in the folder are compared.
        assert_eq!(in_folder.immovable, [(Kind::SharedFile, 6)].into(), "{in_folder:?}");
    }
}
