//! The kernel's information about a process: its threads, its mappings, its open files, and which of its pages must not be moved.

mod asynchronous_io;
mod error;
mod regions;

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::PathBuf;

use isochrome_model::units::{Bytes, CpuId, parse_list};

pub use self::asynchronous_io::Descriptors;
pub use self::error::ProcessError;
pub use self::regions::{DEVICE, KERNELS, Mappings, Protection, Region, regions_of};
use crate::sys::trace::BlockedCall;

/// A process, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pid(pub i32);

/// The state of a thread by /proc/PID/task/TID/stat.
#[derive(Clone, Copy, Debug)]
pub struct ThreadState {
    /// The kernel's state letter: R is runnable, S waits, D waits and cannot be stopped.
    pub letter: char,
    flags: u64,
    priority: i64,
    /// The CPU that the thread runs on, or ran on last.
    pub cpu: usize,
}

impl ThreadState {
    /// Whether the thread has not ended yet.
    pub fn is_running(self) -> bool {
        !matches!(self.letter, 'Z' | 'X' | 'x')
    }

    /// Whether the thread has neither a real-time priority nor a deadline, which the kernel shows as negative priorities.
    pub fn is_ordinary(&self) -> bool {
        self.priority >= 0
    }

    /// Whether the kernel created the thread to work for the program, as io_uring and vhost do.
    ///
    /// Such a thread never runs the program's code, and never reports that it has stopped. [Linux, include/linux/sched.h, PF_IO_WORKER and
    /// PF_USER_WORKER]
    pub fn is_kernel_worker(self) -> bool {
        self.flags & (0x10 | 0x4000) != 0
    }
}

impl Pid {
    pub(crate) fn path(self, file: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/{file}", self.0))
    }

    pub(crate) fn failed(self, file: &str) -> impl Fn(io::Error) -> ProcessError + '_ {
        move |source| match source.kind() {
            io::ErrorKind::NotFound => ProcessError::NoSuchProcess { pid: self.0 as u32 },
            // The files of a process that is ending belong to root.
            io::ErrorKind::PermissionDenied if !self.is_running(self.0) => ProcessError::Ended { pid: self.0 },
            io::ErrorKind::PermissionDenied => ProcessError::Denied { pid: self.0 },
            _ if source.raw_os_error() == Some(libc::ESRCH) => ProcessError::NoSuchProcess { pid: self.0 as u32 },
            // A process that is ending has no memory any more.
            io::ErrorKind::UnexpectedEof => ProcessError::Ended { pid: self.0 },
            _ => ProcessError::Unreadable { path: self.path(file), source },
        }
    }

    /// Returns the text of `file` in /proc/PID.
    pub fn text(self, file: &str) -> Result<String, ProcessError> {
        let bytes = self.contents(file).map_err(self.failed(file))?;
        // Names of programs and files need not be UTF-8.
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Returns the contents of `file` in /proc/PID. The kernel does not report the sizes of these files, so `fs::read` would begin with a few bytes.
    fn contents(self, file: &str) -> io::Result<Vec<u8>> {
        let mut contents = Vec::with_capacity(4096);
        File::open(self.path(file))?.take(u64::MAX).read_to_end(&mut contents)?;
        Ok(contents)
    }

    /// Returns the value of `key` in /proc/PID/status; empty if there is no such key.
    pub fn status(self, key: &str) -> Result<String, ProcessError> {
        Ok(status_of(&self.text("status")?, key).to_owned())
    }

    /// Returns the CPUs that the first thread of the process may run on.
    pub fn cpus(self) -> Result<Vec<CpuId>, ProcessError> {
        let list = parse_list(&self.status("Cpus_allowed_list")?, u32::MAX);
        let list = list.map_err(|_| ProcessError::Malformed { path: self.path("status") })?;
        Ok(list.into_iter().map(CpuId).collect())
    }

    /// Returns the threads of the process, without those that have ended but are still listed.
    pub fn threads(self) -> Result<Vec<i32>, ProcessError> {
        Ok(self.thread_numbers()?.into_iter().filter(|thread| self.is_running(*thread)).collect())
    }

    /// Returns the numbers of all threads listed for the process, including those that have ended.
    pub fn thread_numbers(self) -> Result<Vec<i32>, ProcessError> {
        let listed = fs::read_dir(self.path("task")).map_err(self.failed("task"))?;
        Ok(listed.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect())
    }

    /// Whether `thread` of the process has not ended yet.
    pub fn is_running(self, thread: i32) -> bool {
        self.thread_state(thread).is_some_and(|state| state.is_running())
    }

    /// Returns the state of `thread`; `None` if there is no such thread any more.
    pub fn thread_state(self, thread: i32) -> Option<ThreadState> {
        let stat = self.text(&format!("task/{thread}/stat")).ok()?;
        let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
        let letter = fields.next()?.chars().next()?;
        // The letter is field 3, the flags are field 9, the priority is field 18, the CPU is field 39.
        let flags = fields.nth(5)?.parse().ok()?;
        let priority = fields.nth(8)?.parse().ok()?;
        Some(ThreadState { letter, flags, priority, cpu: fields.nth(20)?.parse().ok()? })
    }

    /// Returns the system call that `thread` waits in; `None` if it runs or the kernel does not report the call.
    pub fn waits_in(self, thread: i32) -> Option<BlockedCall> {
        BlockedCall::parse(&fs::read_to_string(self.path(&format!("task/{thread}/syscall"))).ok()?)
    }

    /// Returns the start time of the process in ticks since boot; `None` if it has ended, even if its parent has not waited for it yet.
    ///
    /// Number and start time together distinguish a process from a later one with the same number.
    pub fn start_time(self) -> Option<u64> {
        self.stat(22).ok().filter(|_| self.threads().is_ok_and(|threads| !threads.is_empty()))
    }

    /// Returns the parent of the process: the process that started it, or the process that adopted it later; `None` if the parent is not shown.
    pub fn parent(self) -> Option<Pid> {
        self.stat(4).ok().filter(|pid| *pid != 0).map(|pid| Pid(pid as i32))
    }

    /// Returns the numeric field `field` of /proc/PID/stat, counted from 1. The name is field 2, the state field 3.
    pub(crate) fn stat(self, field: usize) -> Result<u64, ProcessError> {
        self.stats([field]).map(|[value]| value)
    }

    /// Returns several numeric fields of /proc/PID/stat, as they are at the same time.
    pub(crate) fn stats<const N: usize>(self, fields: [usize; N]) -> Result<[u64; N], ProcessError> {
        let stat = self.text("stat")?;
        let malformed = || ProcessError::Malformed { path: self.path("stat") };
        // The name may hold spaces and parentheses.
        let behind_name = stat.rsplit_once(')').ok_or_else(malformed)?.1;
        let mut values = [0; N];
        for (value, field) in values.iter_mut().zip(fields) {
            let text = behind_name.split_ascii_whitespace().nth(field - 3);
            *value = text.and_then(|text| text.parse().ok()).ok_or_else(malformed)?;
        }
        Ok(values)
    }

    /// Returns the address of the vDSO of the process, if it has one. [Linux, include/uapi/linux/auxvec.h, AT_SYSINFO_EHDR]
    pub fn vdso(self) -> Option<u64> {
        let words = self.contents("auxv").ok()?;
        let word = |bytes: &[u8]| u64::from_ne_bytes(bytes.try_into().expect("eight bytes"));
        let found = words.chunks_exact(16).find(|pair| word(&pair[..8]) == 33)?;
        Some(word(&found[8..])).filter(|address| *address != 0)
    }

    /// Opens the memory of the process for reading and writing, regardless of the protection of its mappings.
    pub fn memory(self) -> Result<File, ProcessError> {
        File::options().read(true).write(true).open(self.path("mem")).map_err(self.failed("mem"))
    }

    /// Returns how much memory the process may allocate before its control group reaches a limit; `None` if there is no limit.
    ///
    /// At the limit the kernel would kill a process of the group. Reclaimable memory counts as used.
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
            // `max` means that there is no limit.
            inside.filter_map(|at| Some(number(at.join(limit))?.saturating_sub(number(at.join(used))?))).min()
        });
        rooms.min().map(Bytes)
    }

    /// Returns the children of the process.
    pub fn children(self) -> Vec<Pid> {
        let threads = fs::read_dir(self.path("task")).into_iter().flatten().flatten();
        let lists = threads.map(|thread| fs::read_to_string(thread.path().join("children")).unwrap_or_default());
        lists
            .flat_map(|list| list.split_whitespace().filter_map(|n| n.parse().ok()).map(Pid).collect::<Vec<_>>())
            .collect()
    }
}

/// Returns the value of `key` in the text of /proc/PID/status; empty if there is no such key.
pub fn status_of<'a>(status: &'a str, key: &str) -> &'a str {
    status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':')).unwrap_or_default().trim()
}
