//! An imitation of the kernel's resctrl. It refuses masks that are out of range, too small, have gaps or overlap an exclusive group, more
//! groups than classes of service, and threads that do not exist.

#![allow(dead_code, reason = "no test uses all of it")]

use std::collections::BTreeMap;
use std::io;

const EBUSY: i32 = 16;
const EEXIST: i32 = 17;
const EINVAL: i32 = 22;
const ENOENT: i32 = 2;
const ENOSPC: i32 = 28;
const ESRCH: i32 = 3;

/// State of two caches of one level, as on a server with two sockets.
pub struct State {
    pub level: u8,
    pub ways: u32,
    pub least: u32,
    pub sparse: Option<bool>,
    pub classes: usize,
    /// Masks of both caches by group; "" is the default group.
    pub groups: BTreeMap<String, [u64; 2]>,
    pub exclusive: Option<String>,
    /// Group that cannot be removed, as if it were pseudo-locked.
    pub busy: Option<String>,
    /// Threads by group. A thread in no list belongs to the default group.
    pub tasks: BTreeMap<String, Vec<String>>,
    pub status: String,
    /// Masks that were written, as `GROUP LINE`, with "" for the default group.
    pub written: Vec<String>,
    /// Number of changing calls that still succeed before the tool is killed; `None` if it is not killed.
    pub calls_left: Option<u32>,
    /// Whether a thread of this number exists.
    pub exists: fn(&str) -> bool,
}

fn refused(code: i32) -> io::Error {
    io::Error::from_raw_os_error(code)
}

impl State {
    pub fn new(level: u8) -> State {
        State {
            level,
            ways: 16,
            least: 1,
            sparse: Some(false),
            classes: 16,
            groups: BTreeMap::from([(String::new(), [0xffff; 2])]),
            exclusive: None,
            busy: None,
            tasks: BTreeMap::new(),
            status: "ok".to_owned(),
            written: Vec::new(),
            calls_left: None,
            exists: |thread| thread != "999999",
        }
    }

    fn alive(&mut self) -> io::Result<()> {
        match &mut self.calls_left {
            Some(0) => Err(io::Error::other("killed")),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn fail(&mut self, code: i32, status: &str) -> io::Result<()> {
        self.status = status.to_owned();
        Err(refused(code))
    }

    fn schemata(&mut self, group: &str, text: &str) -> io::Result<()> {
        let Some(line) = text.strip_suffix('\n') else { return self.fail(EINVAL, "") };
        let resource = format!("L{}", self.level);
        let Some((_, values)) = line.split_once(':').filter(|(name, _)| *name == resource) else {
            return self.fail(EINVAL, "Unknown or unsupported resource name");
        };
        let mut masks = self.groups[group];
        for value in values.split(';') {
            let (id, mask) = value.split_once('=').ok_or_else(|| refused(EINVAL))?;
            let mask = u64::from_str_radix(mask, 16).map_err(|_| refused(EINVAL))?;
            let Some(slot) = id.parse().ok().and_then(|id: usize| masks.get_mut(id)) else {
                return self.fail(EINVAL, "Invalid domain id");
            };
            *slot = mask;
            let run = mask >> mask.trailing_zeros().min(63);
            if mask == 0 || mask >> self.ways != 0 {
                return self.fail(EINVAL, "Mask out of range");
            }
            if run & (run + 1) != 0 && self.sparse != Some(true) {
                return self.fail(EINVAL, &format!("The mask {mask:x} has non-consecutive 1-bits"));
            }
            if mask.count_ones() < self.least {
                return self.fail(EINVAL, &format!("Need at least {} bits in the mask", self.least));
            }
        }
        if let Some(exclusive) = self.exclusive.as_ref().filter(|exclusive| *exclusive != group) {
            let theirs = self.groups[exclusive];
            if (0..2).any(|id| masks[id] & theirs[id] != 0 && masks[id] != self.groups[group][id]) {
                return self.fail(EINVAL, "Overlaps with exclusive group");
            }
        }
        self.groups.insert(group.to_owned(), masks);
        self.written.push(format!("{group} {line}"));
        self.status = "ok".to_owned();
        Ok(())
    }

    /// Returns the text of a file. Paths are relative to the root of the resctrl tree.
    pub fn read(&self, path: &str) -> io::Result<String> {
        let level = self.level;
        if let Some(file) = path.strip_prefix(&format!("info/L{level}/")) {
            return Ok(match file {
                "cbm_mask" => format!("{:x}\n", (1u64 << self.ways) - 1),
                "min_cbm_bits" => format!("{}\n", self.least),
                "num_closids" => format!("{}\n", self.classes),
                "sparse_masks" => format!("{}\n", u8::from(self.sparse.ok_or_else(|| refused(ENOENT))?)),
                _ => return Err(refused(ENOENT)),
            });
        }
        let (group, file) = path.rsplit_once('/').unwrap_or(("", path));
        match (group, file) {
            ("info", "last_cmd_status") => Ok(format!("{}\n", self.status)),
            (_, "schemata") => {
                let masks = self.groups.get(group).ok_or_else(|| refused(ENOENT))?;
                Ok(format!("    MB:0=100;1=100\n    L{level}:0={:04x};1={:04x}\n", masks[0], masks[1]))
            }
            (_, "tasks") if self.groups.contains_key(group) => {
                Ok(self.tasks.get(group).map_or_else(String::new, |tasks| tasks.join("\n") + "\n"))
            }
            _ => Err(refused(ENOENT)),
        }
    }

    /// Writes a file in one call.
    pub fn write(&mut self, path: &str, text: &str) -> io::Result<()> {
        self.alive()?;
        let (group, file) = path.rsplit_once('/').unwrap_or(("", path));
        if !self.groups.contains_key(group) {
            return Err(refused(ENOENT));
        }
        let task = text.trim();
        match file {
            "schemata" => self.schemata(group, text),
            "tasks" if !(self.exists)(task) => self.fail(ESRCH, &format!("No task {task}")),
            "tasks" => {
                self.tasks.values_mut().for_each(|tasks| tasks.retain(|one| one != task));
                if !group.is_empty() {
                    self.tasks.entry(group.to_owned()).or_default().push(task.to_owned());
                }
                self.status = "ok".to_owned();
                Ok(())
            }
            _ => Err(refused(ENOENT)),
        }
    }

    /// Makes a group.
    pub fn make(&mut self, group: &str) -> io::Result<()> {
        self.alive()?;
        if self.groups.contains_key(group) {
            return Err(refused(EEXIST));
        }
        if self.groups.len() == self.classes {
            return self.fail(ENOSPC, "Out of CLOSIDs");
        }
        // A new group gets all ways except those of the exclusive group.
        let all = (1u64 << self.ways) - 1;
        let theirs = self.exclusive.as_ref().map_or([0; 2], |exclusive| self.groups[exclusive]);
        self.groups.insert(group.to_owned(), theirs.map(|mask| all & !mask));
        Ok(())
    }

    /// Removes a group, whose tasks then belong to the default group.
    pub fn remove(&mut self, group: &str) -> io::Result<()> {
        self.alive()?;
        if self.busy.as_deref() == Some(group) {
            return Err(refused(EBUSY));
        }
        self.tasks.remove(group);
        self.groups.remove(group).map(|_| ()).ok_or_else(|| refused(ENOENT))
    }

    /// Returns the names of the groups without the default one.
    pub fn names(&self) -> Vec<String> {
        self.groups.keys().filter(|name| !name.is_empty()).cloned().collect()
    }
}
