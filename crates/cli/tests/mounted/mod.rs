//! File systems of the kernel, imitated in user space by FUSE for machines without them: resctrl, with the state from the tests of `host`, and
//! cgroup v2 with cpuset.

#![allow(dead_code, reason = "no test uses all of it")]

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{
    BackgroundSession, BsdFileFlags, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation,
    INodeNo, LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite,
    Request, TimeOrNow, WriteFlags,
};

use crate::kernel::State;
use crate::trial::NotRun;

/// Time for which the kernel may cache entries: none, so that it requests them every time.
const NOW: Duration = Duration::ZERO;

/// Contents and behavior of a tree of files. Paths are relative to the root.
pub trait Tree: Send + 'static {
    fn read(&self, path: &str) -> io::Result<String>;
    /// Writes a file. `by`: the thread that writes.
    fn write(&mut self, path: &str, text: &str, by: u32) -> io::Result<()>;
    fn make(&mut self, folder: &str) -> io::Result<()>;
    fn remove(&mut self, folder: &str) -> io::Result<()>;
    fn is_folder(&self, path: &str) -> bool;
    /// Returns the folders in the root.
    fn folders(&self) -> Vec<String>;
}

impl Tree for State {
    fn read(&self, path: &str) -> io::Result<String> {
        State::read(self, path)
    }

    fn write(&mut self, path: &str, text: &str, by: u32) -> io::Result<()> {
        // 0 stands for the thread that writes.
        if text.trim() == "0" { State::write(self, path, &by.to_string()) } else { State::write(self, path, text) }
    }

    fn make(&mut self, folder: &str) -> io::Result<()> {
        State::make(self, folder)
    }

    fn remove(&mut self, folder: &str) -> io::Result<()> {
        State::remove(self, folder)
    }

    fn is_folder(&self, path: &str) -> bool {
        path == "info" || path == format!("info/L{}", self.level) || self.groups.contains_key(path)
    }

    fn folders(&self) -> Vec<String> {
        [self.names(), vec!["info".to_owned()]].concat()
    }
}

/// A cgroup v2 with the cpuset controller.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cgroup {
    /// Whether the controller is enabled, so that groups have its files.
    pub switched_on: bool,
    /// CPUs, partition type and processes of each group, by its name.
    pub groups: BTreeMap<String, (String, String, Vec<String>)>,
    /// Reason why partitions are invalid.
    pub invalid: Option<String>,
}

fn refused(code: i32) -> io::Error {
    io::Error::from_raw_os_error(code)
}

/// Whether the process has not ended, even if nobody has waited for it.
fn runs(process: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

impl Tree for Cgroup {
    fn read(&self, path: &str) -> io::Result<String> {
        let Some((group, file)) = path.rsplit_once('/') else {
            return match path {
                "cgroup.controllers" => Ok("cpuset cpu memory\n".to_owned()),
                "cgroup.subtree_control" => Ok(if self.switched_on { "cpuset\n" } else { "\n" }.to_owned()),
                _ => Err(refused(2)),
            };
        };
        let (cpus, partition, processes) = self.groups.get(group).ok_or_else(|| refused(2))?;
        match file {
            "cpuset.cpus" if self.switched_on => Ok(format!("{cpus}\n")),
            "cpuset.cpus.partition" if self.switched_on => match &self.invalid {
                Some(why) if partition == "root" => Ok(format!("root invalid ({why})\n")),
                _ => Ok(format!("{partition}\n")),
            },
            "cgroup.procs" => Ok(processes.join("\n")),
            _ => Err(refused(2)),
        }
    }

    fn write(&mut self, path: &str, text: &str, by: u32) -> io::Result<()> {
        if let ("cgroup.subtree_control", "+cpuset" | "-cpuset") = (path, text) {
            self.switched_on = text.starts_with('+');
            return Ok(());
        }
        let (group, file) = path.rsplit_once('/').ok_or_else(|| refused(22))?;
        let (cpus, partition, processes) = self.groups.get_mut(group).ok_or_else(|| refused(2))?;
        match file {
            "cpuset.cpus" => *cpus = text.to_owned(),
            "cpuset.cpus.partition" if matches!(text, "root" | "member") => *partition = text.to_owned(),
            "cgroup.procs" if text == "0" => processes.push(by.to_string()),
            _ => return Err(refused(22)),
        }
        Ok(())
    }

    fn make(&mut self, folder: &str) -> io::Result<()> {
        let new = (String::new(), "member".to_owned(), Vec::new());
        self.groups.insert(folder.to_owned(), new).map_or(Ok(()), |_| Err(refused(17)))
    }

    fn remove(&mut self, folder: &str) -> io::Result<()> {
        let (_, _, processes) = self.groups.get(folder).ok_or_else(|| refused(2))?;
        if processes.iter().any(|process| runs(process)) {
            return Err(refused(16));
        }
        self.groups.remove(folder);
        Ok(())
    }

    fn is_folder(&self, path: &str) -> bool {
        path.is_empty() || self.groups.contains_key(path)
    }

    fn folders(&self) -> Vec<String> {
        self.groups.keys().cloned().collect()
    }
}

/// A tree that is mounted until this is dropped.
pub struct Mounted<T> {
    state: Arc<Mutex<T>>,
    root: PathBuf,
    _session: BackgroundSession,
}

impl Mounted<State> {
    /// Mounts a resctrl tree with caches of `level`.
    pub fn resctrl(level: u8, root: PathBuf) -> Result<Mounted<State>, NotRun> {
        let mut state = State::new(level);
        state.exists = |thread| Path::new("/proc").join(thread).exists();
        Mounted::of(state, root)
    }
}

impl<T: Tree> Mounted<T> {
    /// Mounts `state` at `root`, which is created.
    pub fn of(state: T, root: PathBuf) -> Result<Mounted<T>, NotRun> {
        fs::create_dir(&root).unwrap();
        let state = Arc::new(Mutex::new(state));
        let served = Served { state: Arc::clone(&state), paths: Mutex::new(vec![String::new()]) };
        let session = fuser::spawn_mount(served, &root, &Config::default());
        let session = session.map_err(|error| NotRun(format!("no file system can be mounted by FUSE: {error}")))?;
        Ok(Mounted { state, root, _session: session })
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    pub fn state(&self) -> MutexGuard<'_, T> {
        self.state.lock().unwrap()
    }
}

struct Served<T> {
    state: Arc<Mutex<T>>,
    /// Paths by inode number; number 1 is the root.
    paths: Mutex<Vec<String>>,
}

fn errno(error: &io::Error) -> Errno {
    Errno::from_i32(error.raw_os_error().unwrap_or(5))
}

impl<T: Tree> Served<T> {
    fn path(&self, number: INodeNo) -> String {
        self.paths.lock().unwrap()[number.0 as usize - 1].clone()
    }

    fn inside(&self, parent: INodeNo, name: &OsStr) -> String {
        let name = name.to_string_lossy();
        match self.path(parent).as_str() {
            "" => name.into_owned(),
            parent => format!("{parent}/{name}"),
        }
    }

    fn number(&self, path: &str) -> INodeNo {
        let mut paths = self.paths.lock().unwrap();
        let at = paths.iter().position(|known| known == path).unwrap_or_else(|| {
            paths.push(path.to_owned());
            paths.len() - 1
        });
        INodeNo(at as u64 + 1)
    }

    fn attributes(&self, path: &str) -> Option<FileAttr> {
        let state = self.state.lock().unwrap();
        let folder = state.is_folder(path);
        if !folder && state.read(path).is_err() {
            return None;
        }
        drop(state);
        Some(FileAttr {
            ino: self.number(path),
            size: 0,
            blocks: 0,
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind: if folder { FileType::Directory } else { FileType::RegularFile },
            perm: if folder { 0o755 } else { 0o644 },
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        })
    }
}

impl<T: Tree> Filesystem for Served<T> {
    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.attributes(&self.inside(parent, name)) {
            Some(attributes) => reply.entry(&NOW, &attributes, Generation(0)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, number: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.attributes(&self.path(number)) {
            Some(attributes) => reply.attr(&NOW, &attributes),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn setattr(
        &self,
        request: &Request,
        number: INodeNo,
        _: Option<u32>,
        _: Option<u32>,
        _: Option<u32>,
        _: Option<u64>,
        _: Option<TimeOrNow>,
        _: Option<TimeOrNow>,
        _: Option<SystemTime>,
        handle: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        // A shell truncates a file when it opens it, which changes nothing here.
        self.getattr(request, number, handle, reply);
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        // The files report no size, like those of the kernel, so reads must bypass the page cache.
        reply.opened(FileHandle(0), FopenFlags::FOPEN_DIRECT_IO);
    }

    fn read(
        &self,
        _: &Request,
        number: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        match self.state.lock().unwrap().read(&self.path(number)) {
            Ok(text) => {
                let rest = text.as_bytes().get(offset as usize..).unwrap_or_default();
                reply.data(&rest[..rest.len().min(size as usize)]);
            }
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn write(
        &self,
        request: &Request,
        number: INodeNo,
        _: FileHandle,
        _: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let text = String::from_utf8_lossy(data);
        match self.state.lock().unwrap().write(&self.path(number), &text, request.pid()) {
            Ok(()) => reply.written(data.len() as u32),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn mkdir(&self, _: &Request, parent: INodeNo, name: &OsStr, _: u32, _: u32, reply: ReplyEntry) {
        let path = self.inside(parent, name);
        let made = self.state.lock().unwrap().make(&path);
        match (made, self.attributes(&path)) {
            (Ok(()), Some(attributes)) => reply.entry(&NOW, &attributes, Generation(0)),
            (Err(error), _) => reply.error(errno(&error)),
            (Ok(()), None) => reply.error(Errno::ENOENT),
        }
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let removed = self.state.lock().unwrap().remove(&self.inside(parent, name));
        match removed {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn readdir(&self, _: &Request, number: INodeNo, _: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        // Only the folders in the root are ever listed, so other folders and files are left out.
        let folders = if number == INodeNo::ROOT { self.state.lock().unwrap().folders() } else { Vec::new() };
        let names = folders.into_iter().map(|folder| (folder, FileType::Directory));
        for (index, (name, kind)) in names.enumerate().skip(offset as usize) {
            if reply.add(self.number(&name), index as u64 + 1, kind, &name) {
                break;
            }
        }
        reply.ok();
    }
}
