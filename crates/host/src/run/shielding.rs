//! CPU shielding: keeps other programs off the CPUs of the tasks for the length of a run.
//!
//! If cgroup v2 can make a partition for each CPU (`cpuset`), the kernel keeps other programs off. Otherwise the affinity of other threads
//! is changed to keep them off, and the run reports why. A journal in the runtime folder records the former affinities; it is written
//! before the first change. The next invocation finds the journal of a process that has ended, and restores everything ([`restore_left`]):
//! other programs get their CPUs back, and programs that the process has started are killed. These are recognized by a variable in their
//! environment, which forks inherit. Threads of the kernel are not moved.

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

/// Version of the journal's format.
const SCHEMA: &str = "isochrome-run/1";

/// Environment variable that identifies the programs of a run.
pub const VARIABLE: &str = "ISOCHROME_RUN";

/// Signal that kills a program (SIGKILL).
const KILL: i32 = 9;

/// Number of rounds over all threads. Threads that start during a round inherit the affinity of their parents, so one round is not enough.
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
    /// CPUs of the tasks of the run.
    cpus: Vec<CpuId>,
    /// Value of [`VARIABLE`] in the programs of the run.
    mark: String,
    /// Time at which the journal was written, in ticks since boot.
    written_ticks: u64,
    moved: Vec<Moved>,
    /// Partitions of cgroup v2 that were made, or were about to be.
    #[serde(default)]
    partitions: Partitions,
}

/// Outcome of restoring what a run has changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Restored {
    /// Number of threads that have their CPUs back.
    pub threads: usize,
    /// Number of programs that were killed.
    pub programs: usize,
    /// Whether cache ways were given back.
    pub ways: bool,
    /// Description of what could not be restored and will be tried again.
    pub trouble: Option<String>,
}

/// Keeps other programs off some CPUs until it is dropped.
pub struct CpuShield {
    path: PathBuf,
    journal: Journal,
    /// Number of threads that may run on these CPUs only, and stay there.
    pub staying: usize,
    /// Why the CPUs are not partitions of cgroup v2, if other programs are kept off by affinity.
    pub by_affinity: Option<String>,
    restored: bool,
}

fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

/// Returns the flags and the start time of a thread, from /proc/PID/task/TID/stat.
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

/// Returns the number and the start time of every thread, without threads of the kernel.
fn threads() -> Vec<(i32, u64)> {
    /// Flag of a thread of the kernel. [Linux, include/linux/sched.h, PF_KTHREAD]
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
    // A damaged journal may name others.
    cpus.iter().filter(|cpu| (**cpu as usize) < CpuSet::MAX_CPU).for_each(|&cpu| set.set(cpu as usize));
    Ok(sched_setaffinity(ThreadId::from_raw(thread), &set)?)
}

/// Returns the numbers of the processes that have `mark` in their environment.
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

    /// Returns the journals in `folder`, each with its path.
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

    /// Kills the programs of the run, and restores the partitions and affinities that it has changed.
    fn undo(&self) -> Restored {
        let mut restored = Restored { programs: self.end_programs(), ..Restored::default() };
        restored.trouble = self.partitions.undo().err();
        // Affinities that programs started after the change have inherited, each with the affinity to restore.
        let mut inherited: BTreeMap<&[u32], &[u32]> = BTreeMap::new();
        for moved in &self.moved {
            inherited.entry(&moved.now).or_insert(&moved.before);
        }
        for (thread, start) in threads() {
            let Some(now) = affinity(thread) else { continue };
            let own = self.moved.iter().find(|moved| moved.thread == thread && moved.start_ticks == start);
            let before = match own {
                Some(moved) if moved.now == now => Some(moved.before.as_slice()),
                // Somebody has given the thread other CPUs since.
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
        // A program may fork during this round; its children are killed in a later round.
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
    /// Enters the run in the journal and, if `alone`, keeps other programs off `cpus`.
    ///
    /// Fails with [`RunError::CpuTaken`] if another run uses one of them.
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

    /// Makes a partition of cgroup v2 for each CPU. The inner error is the reason why that is impossible.
    fn shield_by_partitions(&mut self, cpus: &[CpuId]) -> Result<Result<(), String>, SystemError> {
        let intended = match Partitions::intended(self.journal.owner.pid, cpus) {
            Ok(intended) => intended,
            Err(why) => return Ok(Err(why)),
        };
        // The journal is written before the change, so that it lists every possible change after a crash.
        self.journal.partitions = intended;
        self.journal.write(&self.path)?;
        let made = self.journal.partitions.make();
        // Partitions that cannot be removed now stay in the journal.
        if made.is_err() && self.journal.partitions.undo().is_ok() {
            self.journal.partitions = Partitions::default();
            self.journal.write(&self.path)?;
        }
        Ok(made)
    }

    /// Returns `cgroup.procs` of the cpuset partition that owns `cpu`; `None` without a partition.
    pub fn partition_of(&self, cpu: CpuId) -> Option<PathBuf> {
        self.journal.partitions.of(cpu).filter(|_| self.by_affinity.is_none())
    }

    /// Removes `cpus` from the affinity of every thread that can run elsewhere.
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
            // The journal is written before the change, so that it lists every possible change after a crash.
            self.journal.write(&self.path)?;
            for moved in &self.journal.moved[known..] {
                // A thread that has ended needs no change.
                let _ = set_affinity(moved.thread, &moved.now);
            }
        }
        Ok(())
    }

    /// Returns the number of threads that were kept off.
    pub fn moved(&self) -> usize {
        self.journal.moved.len()
    }

    /// Returns the value of [`VARIABLE`] for programs of this run.
    pub fn mark(&self) -> &str {
        &self.journal.mark
    }

    /// Returns the processes of this run.
    pub fn programs(&self) -> Vec<i32> {
        marked(self.mark())
    }

    /// Kills the programs of this run.
    pub fn end_programs(&self) {
        self.journal.end_programs();
    }

    /// Restores everything now.
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

/// Restores what is left of runs whose process has ended; returns `None` if there was nothing to restore.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_that_cannot_be_are_refused_by_the_kernel() {
        let own = rustix::thread::gettid().as_raw_nonzero().get();
        let before = affinity(own).unwrap();
        assert!(set_affinity(own, &[u32::MAX, 1024]).is_err());
        assert_eq!(affinity(own).unwrap(), before);
    }
}
