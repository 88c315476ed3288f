//! CPU shielding: keeps other programs off the CPUs of the tasks for the length of a run.
//!
//! Where cgroup v2 can make a partition for each CPU (`cpuset`), the kernel keeps others off. Elsewhere the affinity of other threads is
//! set so that they keep off, and the run reports why. A journal in the runtime folder has the affinities from before; it is written before
//! the first change. Whoever finds the journal of a process that has ended puts things right ([`restore_left`]): other programs get their
//! CPUs back, and programs that the process started and that still run are ended. They carry a variable in their environment, which forks
//! inherit. Threads of the kernel stay where they are.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use isochrome_model::units::CpuId;
use rustix::thread::{CpuSet, Pid as ThreadId, sched_getaffinity, sched_setaffinity};
use serde::{Deserialize, Serialize};

use crate::color::ledger::Owner;
use crate::error::SystemError;
use crate::partition::cpuset::Partitions;
use crate::partition::resctrl;
use crate::run::error::RunError;
use crate::runtime;
use crate::sched::tracefs;
use crate::sys::launch;

/// Version of the file.
const SCHEMA: &str = "isochrome-run/1";

/// The variable by which programs of a run are known.
pub const VARIABLE: &str = "ISOCHROME_RUN";

/// SIGKILL.
const KILL: i32 = 9;

/// Rounds over all threads: those that were started meanwhile inherit what their parents had.
const ROUNDS: usize = 4;

/// A thread that was kept off some CPUs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Moved {
    thread: i32,
    start_ticks: u64,
    before: Vec<u32>,
    now: Vec<u32>,
}

#[derive(Serialize, Deserialize)]
struct Journal {
    schema: String,
    boot_id: String,
    owner: Owner,
    /// CPUs of its tasks.
    cpus: Vec<CpuId>,
    /// The value of [`VARIABLE`].
    mark: String,
    /// When it was written, in ticks since boot.
    written_ticks: u64,
    moved: Vec<Moved>,
    /// Partitions of cgroup v2 that were made, or were about to be.
    #[serde(default)]
    partitions: Partitions,
}

/// What was put right.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Restored {
    /// Threads that have their CPUs back.
    pub threads: usize,
    /// Programs that were ended.
    pub programs: usize,
    /// Whether cache ways were given back.
    pub ways: bool,
    /// What could not be put right, and will be tried again.
    pub trouble: Option<String>,
}

/// Keeps other programs off some CPUs until it is dropped.
pub struct CpuShield {
    path: PathBuf,
    journal: Journal,
    /// Threads that may run on these CPUs only.
    pub staying: usize,
    /// Why the CPUs are no partitions of cgroup v2, where others are kept off by affinity.
    pub by_affinity: Option<String>,
    restored: bool,
}

fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

/// Flags and start of a thread, from /proc/PID/task/TID/stat.
fn stat(path: &Path) -> Option<(u64, u64)> {
    let stat = fs::read(path.join("stat")).ok()?;
    let stat = String::from_utf8_lossy(&stat).into_owned();
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    // Fields 9 and 22; the state is field 3.
    Some((fields.get(6)?.parse().ok()?, fields.get(19)?.parse().ok()?))
}

fn numbers(folder: &Path) -> impl Iterator<Item = i32> {
    fs::read_dir(folder).into_iter().flatten().flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Threads of programs: number, start.
fn threads() -> Vec<(i32, u64)> {
    /// [Linux, include/linux/sched.h, PF_KTHREAD]
    const OF_KERNEL: u64 = 1 << 21;
    let mut found = Vec::new();
    for process in numbers(Path::new("/proc")) {
        let folder = PathBuf::from(format!("/proc/{process}/task"));
        for thread in numbers(&folder) {
            match stat(&folder.join(thread.to_string())) {
                Some((flags, start)) if flags & OF_KERNEL == 0 => found.push((thread, start)),
                _ => {}
            }
        }
    }
    found
}

fn affinity(thread: i32) -> Option<Vec<u32>> {
    let set = sched_getaffinity(ThreadId::from_raw(thread)).ok()?;
    Some((0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).map(|cpu| cpu as u32).collect())
}

fn set_affinity(thread: i32, cpus: &[u32]) -> io::Result<()> {
    let mut set = CpuSet::new();
    cpus.iter().for_each(|&cpu| set.set(cpu as usize));
    Ok(sched_setaffinity(ThreadId::from_raw(thread), &set)?)
}

/// Numbers of the processes with this mark in their environment.
fn marked(mark: &str) -> Vec<i32> {
    let wanted = format!("{VARIABLE}={mark}");
    let has = |process: &i32| {
        let environment = fs::read(format!("/proc/{process}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|variable| variable == wanted.as_bytes())
    };
    numbers(Path::new("/proc")).filter(has).collect()
}

impl Journal {
    fn path(folder: &Path, owner: u32) -> PathBuf {
        folder.join(format!("run-{owner}.json"))
    }

    /// The journals in `folder`, with their files.
    fn all(folder: &Path) -> Vec<(PathBuf, Journal)> {
        let paths = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
        let of_run = |path: &PathBuf| {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            name.strip_prefix("run-").is_some_and(|rest| rest.ends_with(".json"))
        };
        let read = |path: PathBuf| {
            let journal: Journal = serde_json::from_slice(&runtime::read(&path).ok()??).ok()?;
            (journal.schema == SCHEMA).then_some((path, journal))
        };
        paths.filter(of_run).filter_map(read).collect()
    }

    fn write(&self, path: &Path) -> Result<(), SystemError> {
        runtime::replace(path, &serde_json::to_vec(self).expect("a journal is plain data"))
    }

    /// Ends what it started and gives back what it took.
    fn undo(&self) -> Restored {
        let mut restored = Restored { programs: self.end_programs(), ..Restored::default() };
        restored.trouble = self.partitions.undo().err();
        // What programs started since have inherited.
        let mut inherited: BTreeMap<&[u32], &[u32]> = BTreeMap::new();
        for moved in &self.moved {
            inherited.entry(&moved.now).or_insert(&moved.before);
        }
        for (thread, start) in threads() {
            let Some(now) = affinity(thread) else { continue };
            let own = self.moved.iter().find(|moved| moved.thread == thread && moved.start_ticks == start);
            let before = match own {
                Some(moved) if moved.now == now => Some(moved.before.as_slice()),
                // It has been given other CPUs since.
                Some(_) => None,
                None if start >= self.written_ticks => inherited.get(now.as_slice()).copied(),
                None => None,
            };
            if let Some(before) = before {
                restored.threads += usize::from(set_affinity(thread, before).is_ok());
            }
        }
        restored
    }

    fn end_programs(&self) -> usize {
        let mut ended = 0;
        // One that forks faster than this is ended in a later round.
        for _ in 0..ROUNDS {
            let left: Vec<i32> =
                marked(&self.mark).into_iter().filter(|pid| *pid as u32 != std::process::id()).collect();
            if left.is_empty() {
                break;
            }
            ended += left.iter().filter(|pid| launch::send(**pid, KILL).is_ok()).count();
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        ended
    }
}

impl CpuShield {
    /// Keeps other programs off `cpus` where `alone`; enters the run in the journal in any case.
    ///
    /// Fails with [`RunError::CpuTaken`] where another run has one of them.
    pub fn new(folder: &Path, cpus: &[CpuId], alone: bool) -> Result<CpuShield, RunError> {
        runtime::make(folder)?;
        let owner = Owner::of(std::process::id())?;
        let others = Journal::all(folder).into_iter().map(|(_, journal)| journal);
        for other in others.filter(|other| other.owner != owner && other.owner.is_alive()) {
            if let Some(cpu) = cpus.iter().find(|cpu| other.cpus.contains(cpu)) {
                return Err(RunError::CpuTaken { cpu: cpu.0, pid: other.owner.pid });
            }
        }
        let mark = format!("{}.{}", owner.pid, owner.start_ticks);
        let path = Journal::path(folder, owner.pid);
        let journal = Journal {
            schema: SCHEMA.to_owned(),
            boot_id: boot_id(),
            owner,
            cpus: cpus.to_vec(),
            mark,
            written_ticks: ticks_since_boot(),
            moved: Vec::new(),
            partitions: Partitions::default(),
        };
        journal.write(&path)?;
        let mut shield = CpuShield { path, journal, staying: 0, by_affinity: None, restored: false };
        if alone && let Err(why) = shield.shield_by_partitions(cpus)? {
            shield.by_affinity = Some(why);
            shield.shield_by_affinity(cpus)?;
        }
        Ok(shield)
    }

    /// Makes a partition of cgroup v2 for each CPU. The inner error says why that is not possible here.
    fn shield_by_partitions(&mut self, cpus: &[CpuId]) -> Result<Result<(), String>, SystemError> {
        let intended = match Partitions::intended(self.journal.owner.pid, cpus) {
            Ok(intended) => intended,
            Err(why) => return Ok(Err(why)),
        };
        // The journal first, as below.
        self.journal.partitions = intended;
        self.journal.write(&self.path)?;
        let made = self.journal.partitions.make();
        // What cannot be taken back now stays in the journal.
        if made.is_err() && self.journal.partitions.undo().is_ok() {
            self.journal.partitions = Partitions::default();
            self.journal.write(&self.path)?;
        }
        Ok(made)
    }

    /// `cgroup.procs` of the cpuset partition that owns `cpu`, if there is one.
    pub fn partition_of(&self, cpu: CpuId) -> Option<PathBuf> {
        self.journal.partitions.of(cpu).filter(|_| self.by_affinity.is_none())
    }

    /// Takes `cpus` from the affinity of every thread that can run elsewhere.
    fn shield_by_affinity(&mut self, cpus: &[CpuId]) -> Result<(), SystemError> {
        for _ in 0..ROUNDS {
            let known = self.journal.moved.len();
            self.staying = 0;
            for (thread, start_ticks) in threads() {
                let Some(before) = affinity(thread) else { continue };
                let now: Vec<u32> = before.iter().copied().filter(|&cpu| !cpus.contains(&CpuId(cpu))).collect();
                if now.len() == before.len() {
                    continue;
                }
                if now.is_empty() {
                    self.staying += 1;
                    continue;
                }
                self.journal.moved.push(Moved { thread, start_ticks, before, now });
            }
            if self.journal.moved.len() == known {
                break;
            }
            // The journal first: whoever comes after a crash must know all that may have been done.
            self.journal.write(&self.path)?;
            for moved in &self.journal.moved[known..] {
                // One that has ended needs nothing.
                let _ = set_affinity(moved.thread, &moved.now);
            }
        }
        Ok(())
    }

    /// Threads that were kept off.
    pub fn moved(&self) -> usize {
        self.journal.moved.len()
    }

    /// The value of [`VARIABLE`] for programs of this run.
    pub fn mark(&self) -> &str {
        &self.journal.mark
    }

    /// Processes of this run.
    pub fn programs(&self) -> Vec<i32> {
        marked(self.mark())
    }

    /// Ends the programs of this run.
    pub fn end_programs(&self) {
        self.journal.end_programs();
    }

    /// Puts everything back now.
    pub fn restore(mut self) -> Restored {
        self.put_back()
    }

    fn put_back(&mut self) -> Restored {
        if std::mem::replace(&mut self.restored, true) {
            return Restored::default();
        }
        let restored = self.journal.undo();
        if restored.trouble.is_none() {
            let _ = fs::remove_file(&self.path);
        }
        restored
    }
}

impl Drop for CpuShield {
    fn drop(&mut self) {
        self.put_back();
    }
}

fn ticks_since_boot() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let per_second = rustix::param::clock_ticks_per_second();
    now.tv_sec as u64 * per_second + now.tv_nsec as u64 * per_second / 1_000_000_000
}

/// Puts right what runs left whose process has ended; nothing where there was none.
pub fn restore_left(folder: &Path) -> Option<Restored> {
    let mut all: Option<Restored> = None;
    for (path, journal) in Journal::all(folder) {
        if journal.owner.is_alive() {
            continue;
        }
        if journal.boot_id == boot_id() {
            let restored = journal.undo();
            let all = all.get_or_insert_default();
            all.threads += restored.threads;
            all.programs += restored.programs;
            if restored.trouble.is_some() {
                all.trouble = restored.trouble;
                continue;
            }
        }
        let _ = fs::remove_file(&path);
    }
    match resctrl::repair_left(folder) {
        Ok(false) => {}
        Ok(true) => all.get_or_insert_default().ways = true,
        Err(error) => all.get_or_insert_default().trouble = Some(error.to_string()),
    }
    if all.is_some() {
        tracefs::remove_left();
    }
    all
}
