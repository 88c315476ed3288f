//! What the kernel says of a process: its mappings, the frames behind them, and why it must be left alone.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::Duration;

use isochrome_model::placement::Kind;
use isochrome_model::units::{Bytes, CpuId, parse_list};

use super::RecolorError;
use super::turn::Turn;
use crate::color::pagemap::{self, PageEntry};
use crate::sys::mapping::{self, Found};
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
    /// Whether some of it is in huge pages.
    pub huge: bool,
    /// Why its pages must not be moved.
    pub immovable: Option<&'static str>,
}

/// What /proc/PID/task/TID/stat says of a thread.
#[derive(Clone, Copy, Debug)]
pub struct ThreadState {
    /// R runs, S waits, D waits and cannot be stopped.
    pub letter: char,
    flags: u64,
    priority: i64,
    /// The CPU that it runs on, or ran on last.
    pub cpu: usize,
}

impl ThreadState {
    /// Whether it has not ended yet.
    pub fn is_running(self) -> bool {
        !matches!(self.letter, 'Z' | 'X' | 'x')
    }

    /// Whether it has no real-time priority and no deadline: the kernel shows those as negative priorities.
    pub fn is_ordinary(&self) -> bool {
        self.priority >= 0
    }

    /// Whether the kernel made it to work for the program, as io_uring and vhost do. Such a thread never runs the program's
    /// code, and never reports that it has stopped. [Linux, include/linux/sched.h, PF_IO_WORKER and PF_USER_WORKER]
    pub fn is_kernel_worker(self) -> bool {
        self.flags & (0x10 | 0x4000) != 0
    }
}

/// Open files of a process that matter to a recoloring.
#[derive(Clone, Debug, Default)]
pub struct Descriptors {
    /// Userfaultfds.
    pub userfaults: Vec<i32>,
    /// io_urings.
    pub rings: Vec<i32>,
    /// How many descriptors there are of any kind, as the kernel counts them (Linux 6.2).
    pub count: u64,
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

    /// Whose memory it is.
    pub fn kind(&self) -> Kind {
        match self.immovable {
            None => Kind::Private,
            Some(DEVICE) => Kind::Device,
            Some(HUGE) => Kind::Hugetlbfs,
            Some(KERNELS) => Kind::Kernel,
            // What is shared without a name the kernel backs with a file of its own.
            Some(SHARED) if self.name.starts_with("/dev/zero") => Kind::SharedMemory,
            Some(SHARED) if self.name.starts_with("/memfd:") => Kind::Memfd,
            Some(SHARED) if self.name.starts_with("/dev/shm/") => Kind::DevShm,
            Some(SHARED) if self.name.starts_with("/SYSV") => Kind::SysV,
            Some(SHARED) => Kind::SharedFile,
            Some(_) => Kind::InUse,
        }
    }

    /// Whether the other is a mapping of the same, as far as /proc/PID/maps tells.
    fn is_like(&self, other: &Region) -> bool {
        let kind = |region: &Region| (region.protection, region.shared, region.of_file);
        kind(self) == kind(other) && self.name == other.name
    }
}

/// Mappings by the text of /proc/PID/smaps, or of /proc/PID/maps, which does not tell what is resident or locked, nor of every mapping
/// what keeps it in place. They ascend, and no two of them overlap.
pub fn regions_of(smaps: &str) -> Option<Vec<Region>> {
    let mut regions: Vec<Region> = Vec::new();
    for line in smaps.lines() {
        let mut words = line.split_ascii_whitespace();
        let Some(first) = words.next() else { continue };
        if let Some(key) = first.strip_suffix(':') {
            let region = regions.last_mut()?;
            match key {
                "Rss" => region.resident = Bytes(words.next()?.parse::<u64>().ok()? * 1024),
                "AnonHugePages" => region.huge = words.next()? != "0",
                "ProtectionKey" if words.next() != Some("0") => region.immovable = Some("has a protection key"),
                "VmFlags" => {
                    for flag in words {
                        region.locked |= flag == "lo";
                        region.immovable = match immovable_by(flag) {
                            Some(why @ (DEVICE | HUGE)) if region.immovable == Some(SHARED) => Some(why),
                            found => region.immovable.or(found),
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
        let immovable = match name.as_str() {
            "[vsyscall]" => Some(KERNELS),
            name if name.starts_with("[vvar") || name == "[vdso]" || name == "[uprobes]" => Some(KERNELS),
            "/[aio]" | "/[aio] (deleted)" => Some(RING),
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
            huge: false,
            immovable: immovable.or(shared.then_some(SHARED)),
        });
    }
    // The text is read in parts, between which the program runs: a mapping that was joined to the next one meanwhile is listed once more.
    let mut behind = 0;
    regions.retain_mut(|region| {
        region.start = region.start.max(behind);
        behind = behind.max(region.end);
        region.start < region.end
    });
    Some(regions)
}

/// Why pages under this flag must stay. [Linux, Documentation/filesystems/proc.rst, VmFlags]
fn immovable_by(flag: &str) -> Option<&'static str> {
    match flag {
        "sh" => Some(SHARED),
        "pf" | "io" | "mm" => Some(DEVICE),
        "ht" => Some(HUGE),
        "um" | "uw" | "ui" => Some("is served by the program's own userfaultfd"),
        "ss" => Some("is a shadow stack"),
        _ => None,
    }
}

/// Huge pages of hugetlbfs.
const HUGE: &str = "is made of huge pages of hugetlbfs";

/// Pages that the kernel maps into every process.
const KERNELS: &str = "is the kernel's";

/// Memory that others map as well.
const SHARED: &str = "is shared memory";

/// Requests of asynchronous I/O, as libaio makes them.
const RING: &str = "is a ring of asynchronous I/O";

/// Memory of a device.
pub const DEVICE: &str = "is memory of a device";

impl Pid {
    fn path(self, file: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/{file}", self.0))
    }

    fn failed(self, file: &str) -> impl Fn(io::Error) -> RecolorError + '_ {
        move |source| match source.kind() {
            io::ErrorKind::NotFound => RecolorError::NoSuchProcess { pid: self.0 },
            // What is ending belongs to root.
            io::ErrorKind::PermissionDenied if !self.is_running(self.0) => RecolorError::Ended { pid: self.0 },
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
        if now.len() == known.len()
            && now
                .iter()
                .zip(&known)
                .all(|(now, known)| (now.start, now.end) == (known.start, known.end) && now.is_like(known))
        {
            return Ok(known);
        }
        let mut regions = self.regions()?;
        regions.retain(theirs);
        Ok(regions)
    }

    /// Its threads, those that have ended but are still listed left out.
    pub fn threads(self) -> Result<Vec<i32>, RecolorError> {
        Ok(self.thread_numbers()?.into_iter().filter(|thread| self.is_running(*thread)).collect())
    }

    /// The numbers of its threads, those that have ended but are still listed included.
    pub fn thread_numbers(self) -> Result<Vec<i32>, RecolorError> {
        let listed = fs::read_dir(self.path("task")).map_err(self.failed("task"))?;
        Ok(listed.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect())
    }

    /// Whether a thread has not ended yet.
    pub fn is_running(self, thread: i32) -> bool {
        self.thread_state(thread).is_some_and(|state| state.is_running())
    }

    /// What a thread does; `None` where there is no such thread any more.
    pub fn thread_state(self, thread: i32) -> Option<ThreadState> {
        let stat = fs::read(self.path(&format!("task/{thread}/stat"))).ok()?;
        let stat = String::from_utf8_lossy(&stat).into_owned();
        let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
        let letter = fields.next()?.chars().next()?;
        // The letter is field 3, the flags are field 9, the priority is field 18, the CPU is field 39.
        let flags = fields.nth(5)?.parse().ok()?;
        let priority = fields.nth(8)?.parse().ok()?;
        Some(ThreadState { letter, flags, priority, cpu: fields.nth(20)?.parse().ok()? })
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

    /// The process that started it, or took it over when that one ended; `None` where there is none, or it is none that can be seen.
    pub fn parent(self) -> Option<Pid> {
        self.stat(4).ok().filter(|pid| *pid != 0).map(|pid| Pid(pid as i32))
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

    /// Where the kernel has put its vDSO, if it has one. [Linux, include/uapi/linux/auxvec.h, AT_SYSINFO_EHDR]
    pub fn vdso(self) -> Option<u64> {
        let words = fs::read(self.path("auxv")).ok()?;
        let word = |bytes: &[u8]| u64::from_ne_bytes(bytes.try_into().expect("eight bytes"));
        let found = words.chunks_exact(16).find(|pair| word(&pair[..8]) == 33)?;
        Some(word(&found[8..])).filter(|address| *address != 0)
    }

    /// Its memory, to be read and written through whatever protection it has.
    pub fn memory(self) -> Result<File, RecolorError> {
        File::options().read(true).write(true).open(self.path("mem")).map_err(self.failed("mem"))
    }

    /// Where its frame numbers are read.
    pub fn page_map(self) -> Result<PageMap, RecolorError> {
        Ok(PageMap { pid: self, file: File::open(self.path("pagemap")).map_err(self.failed("pagemap"))? })
    }

    /// Its open files, as far as they matter.
    pub fn descriptors(self) -> Result<Descriptors, RecolorError> {
        let mut found = Descriptors { count: self.descriptor_count()?, ..Descriptors::default() };
        for entry in fs::read_dir(self.path("fd")).map_err(self.failed("fd"))?.flatten() {
            let Ok(target) = fs::read_link(entry.path()) else { continue };
            let list = match target.to_str() {
                Some(USERFAULT) => &mut found.userfaults,
                Some("anon_inode:[io_uring]") => &mut found.rings,
                _ => continue,
            };
            list.extend(entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()));
        }
        Ok(found)
    }

    /// Whether it has an io_uring, or more than `most` descriptors, so that nobody looked.
    pub fn has_rings(self, most: usize) -> Result<bool, RecolorError> {
        let few = fs::read_dir(self.path("fd")).map_err(self.failed("fd"))?.nth(most).is_none();
        Ok(!few || !self.descriptors()?.rings.is_empty())
    }

    /// How many descriptors it has; 0 before Linux 6.2.
    pub fn descriptor_count(self) -> Result<u64, RecolorError> {
        Ok(fs::metadata(self.path("fd")).map_err(self.failed("fd"))?.len())
    }

    /// Whether a descriptor is a userfaultfd.
    pub fn is_userfault(self, descriptor: i32) -> bool {
        fs::read_link(self.path(&format!("fd/{descriptor}"))).is_ok_and(|target| target.as_os_str() == USERFAULT)
    }

    /// What shows that the kernel or a device may read and write its memory while its threads stand still, if something does.
    pub fn asynchronous_io(self, regions: &[Region]) -> Result<Option<&'static str>, RecolorError> {
        let threads = self.thread_numbers()?;
        if threads.into_iter().any(|thread| self.thread_state(thread).is_some_and(ThreadState::is_kernel_worker)) {
            return Ok(Some("threads of the kernel"));
        }
        if !self.descriptors()?.rings.is_empty() {
            return Ok(Some("an io_uring"));
        }
        if self.pinned()?.0 > 0 {
            return Ok(Some("pinned memory"));
        }
        Ok(regions.iter().find_map(|region| match region.immovable {
            Some(RING) => Some("asynchronous I/O"),
            Some(DEVICE) => Some("memory of a device"),
            _ => None,
        }))
    }

    /// Memory pinned for devices.
    fn pinned(self) -> Result<Bytes, RecolorError> {
        let status = self.status("VmPin")?;
        let kib = status.split_ascii_whitespace().next().and_then(|kib| kib.parse::<u64>().ok());
        Ok(Bytes(kib.unwrap_or(0) * 1024))
    }

    /// A kind of file system on which it has a file open for direct I/O, and which then holds pages without pinning them: where the
    /// kernel is to refuse to move what is in use, it would move them.
    pub fn unpinned_direct_io(self) -> Result<Option<String>, RecolorError> {
        let mut mounts = None;
        for entry in fs::read_dir(self.path("fdinfo")).map_err(self.failed("fdinfo"))?.flatten() {
            let Ok(info) = fs::read_to_string(entry.path()) else { continue };
            let flags = i32::from_str_radix(status_of(&info, "flags"), 8).unwrap_or(0);
            if flags & libc::O_DIRECT == 0 {
                continue;
            }
            if mounts.is_none() {
                mounts = Some(self.text("mountinfo")?);
            }
            let kind = mounts.as_deref().and_then(|mounts| file_system_of(mounts, status_of(&info, "mnt_id")));
            let base = |kind: &str| kind.split('.').next().map(str::to_owned);
            if let Some(kind) = kind.and_then(base).filter(|kind| UNPINNED.contains(&kind.as_str())) {
                return Ok(Some(kind));
            }
        }
        Ok(None)
    }

    /// How much of its memory is pinned by something else than the buffers that it registered with io_urings.
    pub fn pinned_otherwise(self) -> Result<Bytes, RecolorError> {
        let pinned = self.pinned()?;
        if pinned.0 == 0 {
            return Ok(pinned);
        }
        let rings = self.descriptors()?.rings;
        let registered = rings.into_iter().map(|ring| self.registered(ring)).sum::<Result<u64, RecolorError>>()?;
        Ok(Bytes(pinned.0.saturating_sub(registered)))
    }

    /// Most memory that the buffers registered with an io_uring can pin; 0 where the kernel does not say.
    fn registered(self, ring: i32) -> Result<u64, RecolorError> {
        /// The kernel leaves the buffers out while the ring is busy.
        const ATTEMPTS: u32 = 20;
        for _ in 0..ATTEMPTS {
            let text = self.text(&format!("fdinfo/{ring}"))?;
            if let Some(bytes) = registered_buffers(&text) {
                return Ok(bytes);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(0)
    }

    /// Refuses what must not be touched, before it is touched; the mappings of what may be. Another isochrome that is at work on it is
    /// waited for.
    pub fn check(self) -> Result<Vec<Region>, RecolorError> {
        match self.check_in_turn() {
            Err(RecolorError::Traced { .. }) => {
                // Kept until the tracer was read again: the other one may have more to do.
                let _turn = Turn::wait(self)?;
                self.check_in_turn()
            }
            checked => checked,
        }
    }

    /// As [`check`](Self::check), where it is this program's turn already.
    pub fn check_in_turn(self) -> Result<Vec<Region>, RecolorError> {
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
            return Err(RecolorError::Traced { pid, by: number("TracerPid") });
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
        self.regions()
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

/// File systems whose direct I/O takes references to pages instead of pinning them. [Linux, callers of iov_iter_get_pages2 and
/// iov_iter_get_pages_alloc2; fuse before Linux 6.14]
const UNPINNED: [&str; 8] = ["nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "fuse", "virtiofs"];

/// The kind of the file system that /proc/PID/mountinfo names for a mount.
fn file_system_of<'a>(mountinfo: &'a str, mount: &str) -> Option<&'a str> {
    let line = mountinfo.lines().find(|line| line.split(' ').next() == Some(mount))?;
    // Optional fields end with a dash.
    line.split_once(" - ")?.1.split(' ').next()
}

/// Where a link among the descriptors of a process leads to that is a userfaultfd.
const USERFAULT: &str = "anon_inode:[userfaultfd]";

/// Most memory that the registered buffers named in the text of an io_uring's /proc/PID/fdinfo can pin; `None` where it names none,
/// not even that there are none.
///
/// A buffer in a huge page pins all of it. [Linux, io_uring/fdinfo.c and io_uring/rsrc.c]
fn registered_buffers(fdinfo: &str) -> Option<u64> {
    const HUGE: u64 = 2 << 20;
    let mut lines = fdinfo.lines().skip_while(|line| !line.starts_with("UserBufs:"));
    let count: usize = lines.next()?.split_ascii_whitespace().nth(1)?.parse().ok()?;
    let mut bytes = 0;
    for line in lines.take(count) {
        // `    0: 0x7f0000000000/65536`, or `    0: <none>`.
        let Some((address, length)) = line.split_once("0x").and_then(|(_, rest)| rest.split_once('/')) else {
            continue;
        };
        let (start, length) = (u64::from_str_radix(address, 16).ok()?, length.trim().parse::<u64>().ok()?);
        bytes += (start + length).next_multiple_of(HUGE) - start / HUGE * HUGE;
    }
    Some(bytes)
}

/// Mappings of a process as they are now.
pub struct Mappings {
    pid: Pid,
    maps: File,
    /// All of them, where the kernel does not answer for single ones (before Linux 6.11).
    all: Option<Vec<Region>>,
}

impl Mappings {
    /// Those of `pid`.
    pub fn of(pid: Pid) -> Result<Mappings, RecolorError> {
        let maps = File::open(pid.path("maps")).map_err(pid.failed("maps"))?;
        let mut found = Mappings { pid, maps, all: None };
        match mapping::at(&found.maps, 0) {
            Err(error) if error.raw_os_error() == Some(libc::ENOTTY) => found.all = Some(pid.mappings()?),
            Err(error) => return Err(pid.failed("maps")(error)),
            Ok(_) => {}
        }
        Ok(found)
    }

    /// The mapping around `address`, first address and end, if it is like `region` as far as the kernel tells quickly: it may have grown,
    /// shrunk, or been joined to another one since.
    pub fn around(&self, address: u64, region: &Region) -> Result<Option<(u64, u64)>, RecolorError> {
        if let Some(all) = &self.all {
            let next = all.partition_point(|now| now.start <= address);
            let now = all[..next].last().filter(|now| address < now.end && now.is_like(region));
            return Ok(now.map(|now| (now.start, now.end)));
        }
        let Protection { read, write, execute } = region.protection;
        let like = |now: &Found| {
            now.permissions == [read, write, execute, region.shared] && (now.inode != 0) == region.of_file
        };
        Ok(self.at(address)?.filter(like).map(|now| (now.start, now.end)))
    }

    /// The private mapping around `address` that may be read and executed: its end.
    pub fn executable_end(&self, address: u64) -> Result<Option<u64>, RecolorError> {
        if let Some(all) = &self.all {
            let found = all.iter().find(|region| (region.start..region.end).contains(&address));
            let wanted = |region: &&Region| region.protection.read && region.protection.execute && !region.shared;
            return Ok(found.filter(wanted).map(|region| region.end));
        }
        let found = self.at(address)?.filter(|now| now.permissions[0] && now.permissions[2] && !now.permissions[3]);
        Ok(found.map(|now| now.end))
    }

    fn at(&self, address: u64) -> Result<Option<Found>, RecolorError> {
        mapping::at(&self.maps, address).map_err(self.pid.failed("maps"))
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

    /// What is behind each of `pages`, which ascend.
    pub fn entries(&self, pages: &[u64]) -> Result<Vec<PageEntry>, RecolorError> {
        /// Pages between two of them that are read over, which costs less than another call.
        const GAP: u64 = 64;
        let page = page_bytes() as u64;
        let mut found = Vec::with_capacity(pages.len());
        for near in pages.chunk_by(|one, next| next - one <= GAP * page) {
            let (first, last) = (near[0] / page, near[near.len() - 1] / page);
            let count = (last - first + 1) as usize;
            let entries = pagemap::entries(&self.file, first, count).map_err(self.pid.failed("pagemap"))?;
            found.extend(near.iter().map(|address| entries[(address / page - first) as usize]));
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_system_of_an_open_file_is_found_by_its_mount() {
        let mounts = "\
24 1 254:1 / / rw,relatime - ext4 /dev/vda1 rw
241 24 0:51 / /mnt/a\\040b rw,relatime shared:90 master:1 - nfs4 server:/export rw,vers=4.2
242 24 0:52 / /media rw - fuse.sshfs host: rw
";
        let kinds = ["24", "241", "242", "2", ""].map(|mount| file_system_of(mounts, mount));
        assert_eq!(kinds, [Some("ext4"), Some("nfs4"), Some("fuse.sshfs"), None, None]);
    }

    #[test]
    fn direct_io_on_a_local_file_system_is_refused_nothing() {
        let file = tempfile::NamedTempFile::new_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let options = libc::O_DIRECT;
        let direct = std::os::unix::fs::OpenOptionsExt::custom_flags(File::options().read(true), options).open(&file);
        // Not every file system has it.
        if let Ok(_direct) = direct {
            assert_eq!(Pid(std::process::id() as i32).unpinned_direct_io().unwrap(), None);
        }
    }

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
        assert!(heap.locked && !heap.of_file && heap.immovable.is_none() && heap.protection.bits() == 3);
        assert_eq!(regions[1].name, "/usr/lib/a library.so (deleted)");
        assert_eq!(
            regions.iter().map(Region::permissions).collect::<Vec<_>>(),
            ["rw-p", "r-xp", "rw-s", "rw-p", "rw-p", "rw-s", "r--p"]
        );
        assert!(regions[1].of_file && regions[1].immovable.is_none() && regions[1].protection.bits() == 5);
        assert_eq!(regions[2].immovable, Some("is shared memory"));
        assert_eq!(regions[3].immovable, Some("has a protection key"));
        assert_eq!(regions[4].immovable, Some("is served by the program's own userfaultfd"));
        assert_eq!(regions[5].immovable, Some(DEVICE));
        assert_eq!(regions[6].immovable, Some("is the kernel's"));
    }

    #[test]
    fn registered_buffers_are_counted_as_all_that_they_may_pin() {
        let text = "pos:\t0\nUserFiles:\t1\nUserBufs:\t3\n    0: 0x7f0000000000/65536\n    1: <none>\n    2: 0x7f00001ff000/8192\nPollList:\n";
        // One huge page, and two, as the last lies across a border.
        assert_eq!(registered_buffers(text), Some(6 << 20));
        assert_eq!(registered_buffers("UserBufs:\t0\n"), Some(0));
        assert_eq!(registered_buffers("SqMask:\t0x3\n"), None);
    }

    #[test]
    fn a_mapping_that_is_listed_again_counts_once() {
        // The first two were joined after the first was listed, and the last grew down after the one before it was gone.
        let text = "1000-3000 rw-p 0 0 0\n1000-5000 rw-p 0 0 0\n8000-9000 rw-p 0 0 0\n7000-8000 rw-p 0 0 0\n";
        let regions = regions_of(text).unwrap();
        let found: Vec<(u64, u64)> = regions.iter().map(|region| (region.start, region.end)).collect();
        assert_eq!(found, [(0x1000, 0x3000), (0x3000, 0x5000), (0x8000, 0x9000)]);
    }

    #[test]
    fn what_is_no_smaps_is_no_list_of_mappings() {
        for text in ["x", "1-2", "zz-1 rw-p 0 0 0", "Rss: 4 kB", "1-2 rw-p 0 0 0\nRss: many"] {
            assert_eq!(regions_of(text), None, "{text}");
        }
    }
}
