//! Cache ways for tasks through resctrl (Intel CAT, AMD QoS, Arm MPAM).
//!
//! A mask limits the ways that a load may fill, not the ways where it may hit: lines that were loaded before stay until they are evicted. The
//! former state is in a journal before the first change, so that a later command can restore it after a crash.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use isochrome_model::export::ways::WayRules;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use crate::color::ledger::Owner;
use crate::error::SystemError;
use crate::process::ProcessError;
use crate::runtime;

/// Prefix of the names of the groups that isochrome makes.
const OURS: &str = "isochrome-";
/// File name of the journal in the runtime folder.
const JOURNAL: &str = "resctrl.json";

/// Reasons why resctrl cannot give cache ways to tasks.
#[derive(Debug, thiserror::Error)]
pub enum ResctrlError {
    /// Resctrl is not mounted.
    #[error(
        "{path}: {source}\n  hint: mount -t resctrl resctrl /sys/fs/resctrl; where that fails, this machine does not divide its caches by ways: use colors"
    )]
    Absent {
        /// Folder where resctrl should be mounted.
        path: PathBuf,
        /// Error that the kernel reported.
        source: io::Error,
    },
    /// Caches of this level are not divided by ways.
    #[error(
        "resctrl does not divide caches of level {level} here\n  hint: `ls /sys/fs/resctrl/info` says which it does; those split into code and data (mount option cdp) are not supported"
    )]
    Level {
        /// The level.
        level: u8,
    },
    /// Groups of an earlier run are still there.
    #[error(
        "resctrl has a group {group} that an earlier run has made\n  hint: if none is running: rmdir /sys/fs/resctrl/{group}"
    )]
    Left {
        /// Name of the group.
        group: String,
    },
    /// The kernel refused a change.
    #[error("resctrl: {what}: {source}{}\n  hint: {hint}", if status.is_empty() || status == "ok" { String::new() } else { format!(" ({status})") })]
    Refused {
        /// The action that failed.
        what: String,
        /// Text of `info/last_cmd_status`.
        status: String,
        /// Error that the call returned.
        source: io::Error,
        /// Advice on what to do.
        hint: &'static str,
    },
    /// Information about this process cannot be read from /proc.
    #[error("{0}")]
    Process(#[from] ProcessError),
    /// A file cannot be read, understood or written.
    #[error("{0}")]
    System(#[from] SystemError),
}

/// Returns the folder where resctrl is mounted: `$ISOCHROME_RESCTRL`, else /sys/fs/resctrl.
pub fn root() -> PathBuf {
    let named = std::env::var_os("ISOCHROME_RESCTRL").filter(|value| !value.is_empty());
    named.map_or_else(|| PathBuf::from("/sys/fs/resctrl"), PathBuf::from)
}

/// Returns the file below [`root`] by which a process joins a group that was given ways. A process should join before its program
/// begins: lines that it loads earlier stay in other ways and keep hitting there.
pub fn tasks_of(group: &str) -> PathBuf {
    root().join(format!("{OURS}{group}/tasks"))
}

/// Operations on the file system of resctrl; paths are relative to its root.
pub trait Tree {
    /// Locks the groups against changes by other tools until the returned file is dropped; `None` where no lock is needed.
    fn lock(&self) -> io::Result<Option<File>> {
        Ok(None)
    }
    /// Reads the text of a file.
    fn read(&self, path: &str) -> io::Result<String>;
    /// Writes a file in one call, as the kernel requires.
    fn write(&mut self, path: &str, text: &str) -> io::Result<()>;
    /// Creates a group.
    fn make(&mut self, group: &str) -> io::Result<()>;
    /// Removes a group; its tasks fall back to the default group.
    fn remove(&mut self, group: &str) -> io::Result<()>;
    /// Returns the names of the groups that can be given ways, without the default one.
    fn groups(&self) -> io::Result<Vec<String>>;
}

/// The file system of resctrl as the kernel mounts it.
pub struct Mounted {
    root: PathBuf,
}

impl Mounted {
    /// Opens the file system that is mounted at `root`; see [`root`].
    ///
    /// Fails with [`ResctrlError::Absent`] if resctrl is not mounted there.
    pub fn at(root: &Path) -> Result<Mounted, ResctrlError> {
        match fs::metadata(root.join("schemata")) {
            Ok(_) => Ok(Mounted { root: root.to_owned() }),
            Err(source) => Err(ResctrlError::Absent { path: root.to_owned(), source }),
        }
    }
}

impl Tree for Mounted {
    /// Locks the root, as other tools do. [Linux, Documentation/filesystems/resctrl.rst, Resource alloc and monitor groups, Locking]
    fn lock(&self) -> io::Result<Option<File>> {
        let root = File::open(&self.root)?;
        flock(&root, FlockOperation::LockExclusive)?;
        Ok(Some(root))
    }

    fn read(&self, path: &str) -> io::Result<String> {
        fs::read_to_string(self.root.join(path))
    }

    fn write(&mut self, path: &str, text: &str) -> io::Result<()> {
        let mut file = File::options().write(true).open(self.root.join(path))?;
        io::Write::write_all(&mut file, text.as_bytes())
    }

    fn make(&mut self, group: &str) -> io::Result<()> {
        fs::create_dir(self.root.join(group))
    }

    fn remove(&mut self, group: &str) -> io::Result<()> {
        fs::remove_dir(self.root.join(group))
    }

    fn groups(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.root)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if entry.file_type()?.is_dir() && !matches!(name.as_str(), "info" | "mon_groups" | "mon_data") {
                names.push(name);
            }
        }
        names.sort();
        Ok(names)
    }
}

/// Contents of a `schemata` file: for each resource (`L3`, `L2`, `MB`), the text of the value of each instance.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Schemata(pub BTreeMap<String, BTreeMap<u32, String>>);

impl Schemata {
    /// Parses the text of the file. Instances and values are separated as in `L3:0=ff;1=f0`.
    ///
    /// Fails with [`SystemError::Malformed`] if a line has another form.
    pub fn parse(text: &str, path: &Path) -> Result<Schemata, SystemError> {
        let malformed = |line: &str| SystemError::Malformed {
            path: path.to_owned(),
            text: line.chars().take(80).collect(),
            expected: "a line such as L3:0=ff;1=f0",
        };
        let mut lines = BTreeMap::new();
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
            let (resource, values) = line.split_once(':').ok_or_else(|| malformed(line))?;
            let mut instances = BTreeMap::new();
            for value in values.split(';') {
                let (id, value) = value.split_once('=').ok_or_else(|| malformed(line))?;
                instances.insert(id.trim().parse().map_err(|_| malformed(line))?, value.trim().to_owned());
            }
            lines.insert(resource.trim().to_owned(), instances);
        }
        Ok(Schemata(lines))
    }

    /// Returns the line of one resource, as it is written to the file; `None` if there is no such resource.
    pub fn line(&self, resource: &str) -> Option<String> {
        let values: Vec<String> = self.0.get(resource)?.iter().map(|(id, value)| format!("{id}={value}")).collect();
        Some(format!("{resource}:{}\n", values.join(";")))
    }

    /// Returns the mask of one instance of a cache; `None` if there is no such instance.
    pub fn mask(&self, resource: &str, id: u32) -> Option<u64> {
        u64::from_str_radix(self.0.get(resource)?.get(&id)?, 16).ok()
    }
}

/// Ways for the tasks of one group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Name of the group, without the prefix of isochrome's groups.
    pub name: String,
    /// Mask of ways for each instance of the cache.
    pub masks: BTreeMap<u32, u64>,
}

#[derive(Serialize, Deserialize)]
struct Journal {
    boot_id: String,
    owner: Owner,
    /// Line of the default group's schemata as it was before the first change.
    before: String,
    groups: BTreeSet<String>,
}

impl Journal {
    /// Reads the journal in `folder`; `None` unless it is complete. An incomplete journal needs no repair, because the journal is written before
    /// the first change.
    fn of(folder: &Path) -> Option<Journal> {
        serde_json::from_slice(&runtime::read(&folder.join(JOURNAL)).ok()??).ok()
    }
}

/// Ways given to groups, until [`restore`](Self::restore) or drop. Changes that a killed process leaves behind are undone at the next start.
pub struct Ways<T: Tree> {
    tree: T,
    folder: PathBuf,
    journal: Journal,
    resource: String,
    given: Vec<Group>,
    restored: bool,
}

impl<T: Tree> Ways<T> {
    /// Gives the ways of the caches of `level` to `groups`, and the ways `others` to everything else. `folder`: where the journal is kept.
    ///
    /// Fails with [`ResctrlError::Refused`], which carries the text of `info/last_cmd_status`, and with [`ResctrlError::Left`] where an earlier
    /// run has left its groups. After a failure no change stays.
    pub fn give(
        tree: T,
        level: u8,
        others: &BTreeMap<u32, u64>,
        groups: &[Group],
        folder: &Path,
    ) -> Result<Ways<T>, ResctrlError> {
        let resource = format!("L{level}");
        let lock = tree.lock().map_err(|source| failed(&tree, "locking the groups", source))?;
        let left = tree.groups().map_err(|source| failed(&tree, "reading the groups", source))?;
        if let Some(group) = left.into_iter().find(|group| group.starts_with(OURS)) {
            return Err(ResctrlError::Left { group });
        }
        let before = schemata(&tree)?;
        let before = before.line(&resource).ok_or(ResctrlError::Level { level })?;
        let owner = Owner::of(std::process::id())?;
        // All names are in the journal before the first group is made.
        let names = groups.iter().map(|group| format!("{OURS}{}", group.name)).collect();
        let journal = Journal { boot_id: runtime::boot_id(), owner, before, groups: names };
        runtime::make(folder)?;
        let text = serde_json::to_vec(&journal).expect("a journal is plain data");
        runtime::replace(&folder.join(JOURNAL), &text)?;
        let folder = folder.to_owned();
        let mut ways = Ways { tree, folder, journal, resource, given: groups.to_vec(), restored: false };
        let changed = ways.change(others);
        // `put_back` takes the lock again.
        drop(lock);
        match changed {
            Ok(()) => Ok(ways),
            Err(error) => {
                // The first error is reported, not a failure to undo the changes.
                let _ = ways.put_back();
                Err(error)
            }
        }
    }

    fn change(&mut self, others: &BTreeMap<u32, u64>) -> Result<(), ResctrlError> {
        // A new group begins with the ways that no exclusive group has, so the default group must give up its ways first.
        let line = line(&self.resource, others);
        self.put("schemata", &line)?;
        for group in self.given.clone() {
            let name = format!("{OURS}{}", group.name);
            self.tree.make(&name).map_err(|source| failed(&self.tree, &format!("making group {name}"), source))?;
            self.put(&format!("{name}/schemata"), &self::line(&self.resource, &group.masks))?;
            if let Some(difference) = self.difference(&group)? {
                return Err(failed(&self.tree, &name, io::Error::other(difference)));
            }
        }
        Ok(())
    }

    /// Returns how the masks of a group differ from the masks that it was given; `None` if they are equal.
    fn difference(&self, group: &Group) -> Result<Option<String>, ResctrlError> {
        let path = format!("{OURS}{}/schemata", group.name);
        let text = self.tree.read(&path).map_err(|source| failed(&self.tree, &format!("reading {path}"), source))?;
        let read = Schemata::parse(&text, Path::new(&path))?;
        let other = group.masks.iter().find(|(id, mask)| read.mask(&self.resource, **id) != Some(**mask));
        Ok(other.map(|(id, mask)| {
            let now = read.mask(&self.resource, *id).map_or_else(|| "nothing".to_owned(), |mask| format!("{mask:x}"));
            format!("{}:{id}={mask:x} was written, and {now} is there", self.resource)
        }))
    }

    /// Returns how the masks of the group called `group` differ now from the masks that it was given; `None` if they are equal.
    pub fn changed(&self, group: &str) -> Option<String> {
        let given = self.given.iter().find(|given| given.name == group)?;
        self.difference(given).unwrap_or_else(|error| Some(error.to_string()))
    }

    fn put(&mut self, path: &str, text: &str) -> Result<(), ResctrlError> {
        self.tree.write(path, text).map_err(|source| {
            let what = format!("writing {} to {path}", text.trim_end());
            failed(&self.tree, &what, source)
        })
    }

    /// Puts a thread into the group called `group`. Threads that it starts are in that group, too.
    pub fn assign(&mut self, group: &str, thread: i32) -> Result<(), ResctrlError> {
        self.put(&format!("{OURS}{group}/tasks"), &format!("{thread}\n"))
    }

    /// Removes the groups and gives the default group its ways back.
    ///
    /// Fails with [`ResctrlError::Refused`]; the journal is kept then, and the next start tries again.
    pub fn restore(mut self) -> Result<(), ResctrlError> {
        self.put_back()
    }

    fn put_back(&mut self) -> Result<(), ResctrlError> {
        if !std::mem::replace(&mut self.restored, true) {
            restore(&mut self.tree, &self.journal)?;
            let _ = fs::remove_file(self.folder.join(JOURNAL));
        }
        Ok(())
    }
}

impl<T: Tree> Drop for Ways<T> {
    fn drop(&mut self) {
        // After a failure the journal is kept, and the next start tries again.
        let _ = self.put_back();
    }
}

fn restore(tree: &mut impl Tree, journal: &Journal) -> Result<(), ResctrlError> {
    let _lock = tree.lock().map_err(|source| failed(tree, "locking the groups", source))?;
    let there = tree.groups().map_err(|source| failed(tree, "reading the groups", source))?;
    for group in there.iter().filter(|group| journal.groups.contains(*group)) {
        tree.remove(group).map_err(|source| failed(tree, &format!("removing group {group}"), source))?;
    }
    tree.write("schemata", &journal.before).map_err(|source| failed(tree, "writing schemata", source))
}

/// Undoes the changes of a killed run according to its journal in `folder`, and returns whether there were any.
///
/// Fails with [`ResctrlError::Refused`]; the journal stays then.
pub fn repair(tree: &mut impl Tree, folder: &Path) -> Result<bool, ResctrlError> {
    let journal = Journal::of(folder);
    // A reboot has undone the changes of an earlier boot.
    let journal = journal.filter(|journal| journal.boot_id == runtime::boot_id());
    if let Some(journal) = &journal {
        restore(tree, journal)?;
    }
    let _ = fs::remove_file(folder.join(JOURNAL));
    Ok(journal.is_some())
}

/// Applies [`repair`] to the tree at [`root`] if the process that changed it has ended, and returns whether there were changes.
pub fn repair_left(folder: &Path) -> Result<bool, ResctrlError> {
    if Journal::of(folder).is_none_or(|journal| journal.owner.is_alive()) {
        return Ok(false);
    }
    match Mounted::at(&root()) {
        Ok(mut tree) => repair(&mut tree, folder),
        // Unmounting resctrl has returned all ways to all tasks.
        Err(_) => {
            let _ = fs::remove_file(folder.join(JOURNAL));
            Ok(true)
        }
    }
}

/// Returns the rules for masks of the caches of `level`.
///
/// Fails with [`ResctrlError::Level`] where this level takes no masks, for example because its caches are split into code and data.
pub fn rules(tree: &impl Tree, level: u8) -> Result<WayRules, ResctrlError> {
    let folder = format!("info/L{level}");
    let text = |name: &str| tree.read(&format!("{folder}/{name}")).map_err(|_| ResctrlError::Level { level });
    let number = |name: &str, radix: u32| -> Result<u64, ResctrlError> {
        let text = text(name)?;
        u64::from_str_radix(text.trim(), radix).map_err(|_| {
            SystemError::Malformed {
                path: Path::new(&folder).join(name),
                text: text.chars().take(80).collect(),
                expected: "a number",
            }
            .into()
        })
    };
    let count = number("cbm_mask", 16)?.count_ones();
    Ok(WayRules {
        count,
        least: u32::try_from(number("min_cbm_bits", 10)?).unwrap_or(u32::MAX),
        // The file is absent before Linux 6.7, where masks had no gaps on Intel.
        sparse: number("sparse_masks", 10).is_ok_and(|sparse| sparse != 0),
        classes: u32::try_from(number("num_closids", 10)?).unwrap_or(u32::MAX),
    })
}

/// Returns the mask of the ways of the caches of `level` that other agents, such as devices, may fill too; 0 if not reported.
pub fn shareable(tree: &impl Tree, level: u8) -> u64 {
    let text = tree.read(&format!("info/L{level}/shareable_bits")).unwrap_or_default();
    u64::from_str_radix(text.trim(), 16).unwrap_or(0)
}

fn schemata(tree: &impl Tree) -> Result<Schemata, ResctrlError> {
    let text = tree.read("schemata").map_err(|source| failed(tree, "reading schemata", source))?;
    Ok(Schemata::parse(&text, Path::new("schemata"))?)
}

fn line(resource: &str, masks: &BTreeMap<u32, u64>) -> String {
    let values: Vec<String> = masks.iter().map(|(id, mask)| format!("{id}={mask:x}")).collect();
    format!("{resource}:{}\n", values.join(";"))
}

/// Returns the error for the failed action `what`, with the kernel's own explanation if there is one.
fn failed(tree: &impl Tree, what: &str, source: io::Error) -> ResctrlError {
    let status = tree.read("info/last_cmd_status").unwrap_or_default();
    let status = status.trim().to_owned();
    let hint = match source.raw_os_error() {
        Some(libc::ENOSPC) => "every class of service is in use: remove groups, or let tasks share partitions",
        Some(libc::EBUSY) => "another tool is using resctrl, or a group is pseudo-locked",
        Some(libc::EACCES | libc::EPERM) => "run as root",
        _ => "the kernel says why; the masks it takes are in info/",
    };
    ResctrlError::Refused { what: what.to_owned(), status, source, hint }
}
