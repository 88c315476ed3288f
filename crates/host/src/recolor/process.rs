//! What the kernel says of a process: its mappings, the frames behind them, and why it must be left alone.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use isochrome_model::units::{Bytes, CpuId, parse_list};

use super::RecolorError;
use super::hold::Turn;
use crate::pagemap::{self, PageEntry};
use crate::sys::memory::page_bytes;
use crate::sys::trace;

/// A process, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pid(pub i32);

/// A mapping of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Region {
    /// First address.
    pub start: u64,
    /// First address behind it.
    pub end: u64,
    /// May be read, written, executed.
    pub protection: Protection,
    /// The file, or the kernel's name in brackets; empty for anonymous memory.
    pub name: String,
    /// Whether a file is behind it.
    pub of_file: bool,
    /// Whether what is written to it is seen by others who map it.
    pub shared: bool,
    /// Resident bytes.
    pub resident: Bytes,
    /// Whether the pages are locked.
    pub locked: bool,
    /// Why its pages must not be moved.
    pub fixed: Option<&'static str>,
}

/// What may be done with a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Protection {
    /// Reading.
    pub read: bool,
    /// Writing.
    pub write: bool,
    /// Executing.
    pub execute: bool,
}

impl Protection {
    /// As mprotect(2) takes it.
    pub fn bits(self) -> u64 {
        let bit = |set: bool, bit: i32| if set { bit as u64 } else { 0 };
        bit(self.read, libc::PROT_READ) | bit(self.write, libc::PROT_WRITE) | bit(self.execute, libc::PROT_EXEC)
    }
}

impl Region {
    /// `rwx` and `p`rivate or `s`hared, as /proc/PID/maps writes it.
    pub fn permissions(&self) -> String {
        let Protection { read, write, execute } = self.protection;
        let letters = [(read, 'r', '-'), (write, 'w', '-'), (execute, 'x', '-'), (self.shared, 's', 'p')];
        letters.into_iter().map(|(set, yes, no)| if set { yes } else { no }).collect()
    }

    /// Whether the other is the same mapping, as far as /proc/PID/maps tells.
    fn is(&self, other: &Region) -> bool {
        let told = |region: &Region| (region.start, region.end, region.protection, region.shared, region.of_file);
        told(self) == told(other) && self.name == other.name
    }
}

/// Mappings by the text of /proc/PID/smaps, or of /proc/PID/maps, which does not tell what is resident or locked, nor of every mapping
/// what keeps it in place.
pub fn regions_of(smaps: &str) -> Option<Vec<Region>> {
    let mut regions: Vec<Region> = Vec::new();
    for line in smaps.lines() {
        let mut words = line.split_ascii_whitespace();
        let Some(first) = words.next() else { continue };
        if let Some(key) = first.strip_suffix(':') {
            let region = regions.last_mut()?;
            match key {
                "Rss" => region.resident = Bytes(words.next()?.parse::<u64>().ok()? * 1024),
                "ProtectionKey" if words.next() != Some("0") => region.fixed = Some("has a protection key"),
                "VmFlags" => {
                    for flag in words {
                        region.locked |= flag == "lo";
                        region.fixed = match fixed_by(flag) {
                            Some(DEVICE) if region.fixed == Some(SHARED) => Some(DEVICE),
                            found => region.fixed.or(found),
                        };
                    }
                }
                _ => {}
            }
            continue;
        }
        let (start, end) = first.split_once('-')?;
        let protection = words.next()?.as_bytes();
        let (_offset, _device, inode) = (words.next()?, words.next()?, words.next()?);
        // The name may hold spaces.
        let name = line.splitn(6, ' ').nth(5).unwrap_or_default().trim_start().to_owned();
        let fixed = match name.as_str() {
            "[vsyscall]" => Some("is the kernel's"),
            name if name.starts_with("[vvar") || name == "[vdso]" || name == "[uprobes]" => Some("is the kernel's"),
            "/[aio]" | "/[aio] (deleted)" => Some("is a ring of asynchronous I/O"),
            _ => None,
        };
        let shared = protection.get(3) == Some(&b's');
        regions.push(Region {
            start: u64::from_str_radix(start, 16).ok()?,
            end: u64::from_str_radix(end, 16).ok()?,
            protection: Protection {
                read: protection.first() == Some(&b'r'),
                write: protection.get(1) == Some(&b'w'),
                execute: protection.get(2) == Some(&b'x'),
            },
            name,
            of_file: inode != "0",
            shared,
            resident: Bytes(0),
            locked: false,
            fixed: fixed.or(shared.then_some(SHARED)),
        });
    }
    Some(regions)
}

/// Why pages under this flag must stay. [Linux, Documentation/filesystems/proc.rst, VmFlags]
fn fixed_by(flag: &str) -> Option<&'static str> {
    match flag {
        "sh" => Some(SHARED),
        "pf" | "io" | "mm" => Some(DEVICE),
        "ht" => Some("is made of huge pages of hugetlbfs"),
        "um" | "uw" | "ui" => Some("is served by the program's own userfaultfd"),
        "ss" => Some("is a shadow stack"),
        _ => None,
    }
}

/// Memory that others map as well.
const SHARED: &str = "is shared memory";

/// Memory of a device.
pub const DEVICE: &str = "is memory of a device";

impl Pid {
    fn path(self, file: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/{file}", self.0))
    }

    fn failed(self, file: &str) -> impl Fn(io::Error) -> RecolorError + '_ {
        move |source| match source.kind() {
            io::ErrorKind::NotFound => RecolorError::NoSuchProcess { pid: self.0 },
            io::ErrorKind::PermissionDenied => RecolorError::Denied { pid: self.0 },
            _ if source.raw_os_error() == Some(libc::ESRCH) => RecolorError::NoSuchProcess { pid: self.0 },
            // A process that is ending has no memory any more.
            io::ErrorKind::UnexpectedEof => RecolorError::Ended { pid: self.0 },
            _ => RecolorError::Unreadable { path: self.path(file), source },
        }
    }

    /// The text of a file of the process.
    pub fn text(self, file: &str) -> Result<String, RecolorError> {
        // Names of programs and files need not be UTF-8.
        let bytes = fs::read(self.path(file)).map_err(self.failed(file))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// What /proc/PID/status says of `key`; empty where it does not.
    pub fn status(self, key: &str) -> Result<String, RecolorError> {
        Ok(status_of(&self.text("status")?, key).to_owned())
    }

    /// CPUs that its first thread may run on.
    pub fn cpus(self) -> Result<Vec<CpuId>, RecolorError> {
        let list = parse_list(&self.status("Cpus_allowed_list")?, u32::MAX);
        let list = list.map_err(|_| RecolorError::Malformed { path: self.path("status") })?;
        Ok(list.into_iter().map(CpuId).collect())
    }

    /// Its mappings.
    pub fn regions(self) -> Result<Vec<Region>, RecolorError> {
        let text = self.text("smaps")?;
        regions_of(&text).ok_or(RecolorError::Malformed { path: self.path("smaps") })
    }

    /// Its mappings, without what is resident or locked of them.
    pub fn mappings(self) -> Result<Vec<Region>, RecolorError> {
        regions_of(&self.text("maps")?).ok_or(RecolorError::Malformed { path: self.path("maps") })
    }

    /// Its mappings, where `known` are those it had a while ago: only where others have come is the kernel made to look at all pages, as
    /// telling which are resident takes milliseconds. What lies in `ours`, an address and the bytes behind it, is left out.
    pub fn regions_now(self, known: Vec<Region>, ours: (u64, u64)) -> Result<Vec<Region>, RecolorError> {
        let theirs = |region: &Region| region.end <= ours.0 || ours.0 + ours.1 <= region.start;
        let mut now = self.mappings()?;
        now.retain(theirs);
        if now.len() == known.len() && now.iter().zip(&known).all(|(now, known)| now.is(known)) {
            return Ok(known);
        }
        let mut regions = self.regions()?;
        regions.retain(theirs);
        Ok(regions)
    }

    /// Its threads, those that have ended but are still listed left out.
    pub fn threads(self) -> Result<Vec<i32>, RecolorError> {
        let listed = fs::read_dir(self.path("task")).map_err(self.failed("task"))?;
        let mut threads = Vec::new();
        for entry in listed.flatten() {
            let Some(thread) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else { continue };
            if self.is_running(thread) {
                threads.push(thread);
            }
        }
        Ok(threads)
    }

    /// Whether a thread has not ended yet.
    pub fn is_running(self, thread: i32) -> bool {
        self.thread_state(thread).is_some_and(|state| !matches!(state, 'Z' | 'X' | 'x'))
    }

    /// The state of a thread: R runs, S waits.
    pub fn thread_state(self, thread: i32) -> Option<char> {
        let stat = fs::read(self.path(&format!("task/{thread}/stat"))).ok()?;
        let stat = String::from_utf8_lossy(&stat).into_owned();
        stat.rsplit_once(')')?.1.trim_start().chars().next()
    }

    /// The system call that a thread waits in; `None` where it does not, or the kernel does not say.
    pub fn waits_in(self, thread: i32) -> Option<i64> {
        let text = fs::read_to_string(self.path(&format!("task/{thread}/syscall"))).ok()?;
        text.split_ascii_whitespace().next()?.parse().ok()
    }

    /// When it started, in ticks since boot: with the number, what tells a process from a later one. `None` where it has ended, also
    /// when nobody has waited for it yet.
    pub fn start_time(self) -> Option<u64> {
        self.stat(22).ok().filter(|_| self.threads().is_ok_and(|threads| !threads.is_empty()))
    }

    /// Whether it is a thread of the kernel. [Linux, include/linux/sched.h, PF_KTHREAD]
    fn is_the_kernels(self) -> Result<bool, RecolorError> {
        Ok(self.stat(9)? >> 21 & 1 == 1)
    }

    /// A number in /proc/PID/stat, counted from 1; the name is field 2, the state field 3.
    fn stat(self, field: usize) -> Result<u64, RecolorError> {
        let stat = self.text("stat")?;
        let malformed = || RecolorError::Malformed { path: self.path("stat") };
        // The name may hold spaces and parentheses.
        let behind_name = stat.rsplit_once(')').ok_or_else(malformed)?.1;
        behind_name.split_ascii_whitespace().nth(field - 3).and_then(|field| field.parse().ok()).ok_or_else(malformed)
    }

    /// Its memory, to be read and written through whatever protection it has.
    pub fn memory(self) -> Result<File, RecolorError> {
        File::options().read(true).write(true).open(self.path("mem")).map_err(self.failed("mem"))
    }

    /// Where its frame numbers are read.
    pub fn page_map(self) -> Result<PageMap, RecolorError> {
        Ok(PageMap { pid: self, file: File::open(self.path("pagemap")).map_err(self.failed("pagemap"))? })
    }

    /// Numbers of its open userfaultfds.
    pub fn userfaults(self) -> Result<Vec<i32>, RecolorError> {
        Ok(self.descriptors("anon_inode:[userfaultfd]")?.collect())
    }

    fn descriptors(self, link: &'static str) -> Result<impl Iterator<Item = i32>, RecolorError> {
        let open = fs::read_dir(self.path("fd")).map_err(self.failed("fd"))?;
        Ok(open
            .flatten()
            .filter(move |entry| fs::read_link(entry.path()).is_ok_and(|target| target.as_os_str() == link))
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok()))
    }

    /// Refuses what must not be touched, before it is touched; the mappings of what may be. `force`: allows what is a risk for the
    /// process's I/O only.
    pub fn check(self, force: bool) -> Result<Vec<Region>, RecolorError> {
        let pid = self.0;
        let status = self.text("status")?;
        let number = |key: &str| {
            status_of(&status, key).split_ascii_whitespace().next().and_then(|n| n.parse::<u64>().ok()).unwrap_or(0)
        };
        if pid as u32 == std::process::id() {
            return Err(RecolorError::Itself);
        }
        if number("Tgid") != pid as u64 {
            return Err(RecolorError::NotAProcess { thread: pid, pid: number("Tgid") });
        }
        if self.is_the_kernels()? {
            return Err(RecolorError::KernelThread { pid });
        }
        if status_of(&status, "VmSize").is_empty() {
            return Err(RecolorError::Ended { pid });
        }
        if number("TracerPid") != 0 {
            // Another isochrome that is at work on it is waited for.
            drop(Turn::wait());
            let tracer = self.status("TracerPid")?.parse().unwrap_or(0);
            if tracer != 0 {
                return Err(RecolorError::Traced { pid, by: tracer });
            }
        }
        let mut class = [0; 5];
        File::open(self.path("exe"))
            .and_then(|program| program.read_exact_at(&mut class, 0))
            .map_err(self.failed("exe"))?;
        // EI_CLASS: 2 is a 64-bit program.
        if class[4] != 2 {
            return Err(RecolorError::WordSize { pid });
        }
        self.check_alone()?;
        if force {
            return self.regions();
        }
        let pinned = number("VmPin");
        if pinned > 0 {
            return Err(RecolorError::Pinned { pid, bytes: Bytes(pinned * 1024) });
        }
        if self.descriptors("anon_inode:[io_uring]")?.next().is_some() {
            return Err(RecolorError::Ring { pid, ring: "an io_uring" });
        }
        let regions = self.regions()?;
        for region in &regions {
            match region.fixed {
                Some("is a ring of asynchronous I/O") => {
                    return Err(RecolorError::Ring { pid, ring: "asynchronous I/O" });
                }
                Some(DEVICE) => return Err(RecolorError::Device { pid, name: region.name.clone() }),
                _ => {}
            }
        }
        Ok(regions)
    }

    /// Memory that it may take before its group of processes reaches a limit, where there is one: at the limit the kernel would end a
    /// process of the group. What could be reclaimed is not counted.
    pub fn memory_room(self) -> Option<Bytes> {
        let groups = self.text("cgroup").ok()?;
        let rooms = groups.lines().filter_map(|line| {
            // hierarchy:controllers:path, without controllers in version 2.
            let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
            let (root, limit, used) = match controllers {
                "" => ("/sys/fs/cgroup", "memory.max", "memory.current"),
                _ if controllers.split(',').any(|name| name == "memory") => {
                    ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes")
                }
                _ => return None,
            };
            let (root, group) = (PathBuf::from(root), PathBuf::from(root).join(path.trim_start_matches('/')));
            let number = |file: PathBuf| fs::read_to_string(file).ok()?.trim().parse::<u64>().ok();
            let inside = group.ancestors().take_while(|folder| folder.starts_with(&root));
            // A limit of `max` is none.
            inside.filter_map(|at| Some(number(at.join(limit))?.saturating_sub(number(at.join(used))?))).min()
        });
        rooms.min().map(Bytes)
    }

    /// Its children.
    pub fn children(self) -> Vec<Pid> {
        let threads = fs::read_dir(self.path("task")).into_iter().flatten().flatten();
        let lists = threads.map(|thread| fs::read_to_string(thread.path().join("children")).unwrap_or_default());
        lists
            .flat_map(|list| list.split_whitespace().filter_map(|n| n.parse().ok()).map(Pid).collect::<Vec<_>>())
            .collect()
    }

    /// Refuses a process in whose memory another one runs, as far as parents and children show it.
    pub fn check_alone(self) -> Result<(), RecolorError> {
        let parent = self.status("PPid")?.parse().map(Pid);
        match self.children().into_iter().chain(parent).find(|other| trace::same_memory(self.0, other.0)) {
            Some(other) => Err(RecolorError::SharesMemory { pid: self.0, other: other.0 }),
            None => Ok(()),
        }
    }
}

/// What the text of /proc/PID/status says of `key`.
pub fn status_of<'a>(status: &'a str, key: &str) -> &'a str {
    status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':')).unwrap_or_default().trim()
}

/// The frames behind a process's pages.
pub struct PageMap {
    pid: Pid,
    file: File,
}

impl PageMap {
    /// The resident pages between two addresses, ascending.
    pub fn resident(&self, start: u64, end: u64) -> Result<Vec<(u64, PageEntry)>, RecolorError> {
        let page = page_bytes() as u64;
        let mut found = Vec::new();
        pagemap::each_resident(&self.file, start / page..end / page, |number, entry| {
            found.push((number * page, entry));
        })
        .map_err(self.pid.failed("pagemap"))?;
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMAPS: &str = "\
55f4c3a00000-55f4c3a21000 rw-p 00000000 00:00 0                          [heap]
Size:                132 kB
Rss:                 100 kB
VmFlags: rd wr mr mw me ac lo sd
7f2b3c000000-7f2b3c001000 r-xp 00001000 fe:00 1234                       /usr/lib/a library.so (deleted)
Rss:                   4 kB
ProtectionKey:         0
VmFlags: rd ex mr mw me sd
7f2b3d000000-7f2b3d001000 rw-s 00000000 00:01 77                         /dev/shm/x
Rss:                   4 kB
VmFlags: rd wr sh mr mw me ms sd
7f2b3e000000-7f2b3e001000 rw-p 00000000 00:00 0 
Rss:                   4 kB
ProtectionKey:         3
VmFlags: rd wr mr mw me ac sd
7f2b3f000000-7f2b3f001000 rw-p 00000000 00:00 0 
Rss:                   4 kB
ProtectionKey:         0
VmFlags: rd wr mr mw me ac sd um
7f2b40000000-7f2b40001000 rw-s 00000000 00:10 9                          /dev/a device
Rss:                   4 kB
VmFlags: rd wr sh mr mw me ms pf io dc de dd
7f2b41000000-7f2b41001000 r--p 00000000 00:00 0                          [vvar]
Rss:                   4 kB
VmFlags: rd mr pf io de dd
";

    #[test]
    fn mappings_are_read_with_what_keeps_them_in_place() {
        let regions = regions_of(SMAPS).unwrap();
        assert_eq!(regions.len(), 7);
        let heap = &regions[0];
        assert_eq!((heap.start, heap.end, heap.resident), (0x55f4_c3a0_0000, 0x55f4_c3a2_1000, Bytes(100 << 10)));
        assert!(heap.locked && !heap.of_file && heap.fixed.is_none() && heap.protection.bits() == 3);
        assert_eq!(regions[1].name, "/usr/lib/a library.so (deleted)");
        assert_eq!(
            regions.iter().map(Region::permissions).collect::<Vec<_>>(),
            ["rw-p", "r-xp", "rw-s", "rw-p", "rw-p", "rw-s", "r--p"]
        );
        assert!(regions[1].of_file && regions[1].fixed.is_none() && regions[1].protection.bits() == 5);
        assert_eq!(regions[2].fixed, Some("is shared memory"));
        assert_eq!(regions[3].fixed, Some("has a protection key"));
        assert_eq!(regions[4].fixed, Some("is served by the program's own userfaultfd"));
        assert_eq!(regions[5].fixed, Some(DEVICE));
        assert_eq!(regions[6].fixed, Some("is the kernel's"));
    }

    #[test]
    fn what_is_no_smaps_is_no_list_of_mappings() {
        for text in ["x", "1-2", "zz-1 rw-p 0 0 0", "Rss: 4 kB", "1-2 rw-p 0 0 0\nRss: many"] {
            assert_eq!(regions_of(text), None, "{text}");
        }
    }
}
