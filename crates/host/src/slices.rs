//! Slices of tasks, as the scheduler's events tell them: who had which CPU from when to when.
//!
//! The events are those of [`crate::jobs::timeline`], written by the kernel at every switch; nothing runs on the CPU that is watched. They
//! carry no counters, so slices have none.

use std::collections::{BTreeMap, HashSet};
use std::fs;

use isochrome_model::units::{CpuId, Ns};
use isochrome_model::watch::{Left, Slice};

use crate::error::HostError;
use crate::jobs::timeline::{self, Event, Timeline, What};

/// Slices as they end.
pub struct Slices {
    timeline: Timeline,
    splitter: Splitter,
    events: Vec<Event>,
    seen: u64,
}

/// Turns events into slices.
#[derive(Default)]
struct Splitter {
    /// Threads that matter; `None` for all.
    threads: Option<HashSet<i32>>,
    /// Who has a CPU, its name, and since when.
    running: BTreeMap<CpuId, (i32, String, Ns)>,
}

impl Splitter {
    fn matters(&self, thread: i32) -> bool {
        // 0 is nobody.
        thread != 0 && self.threads.as_ref().is_none_or(|threads| threads.contains(&thread))
    }

    /// Whether a thread that matters has started another, which then matters too.
    fn note(&mut self, event: &Event, slices: &mut Vec<Slice>) -> bool {
        match event.what {
            What::Switch { from, left, to, name } => {
                let before = self.running.insert(event.cpu, (to, name.to_string(), event.at));
                // What some kernels do not tell is a switch whose beginning was another's.
                if let Some((thread, name, begin)) = before.filter(|(thread, ..)| *thread == from && self.matters(from))
                {
                    let left = match left {
                        timeline::Left::Runnable => Left::Preempted,
                        timeline::Left::Asleep => Left::Asleep,
                        timeline::Left::Blocked => Left::Blocked,
                        timeline::Left::Ended => Left::Ended,
                    };
                    slices.push(Slice { cpu: event.cpu, thread, name, begin, end: event.at, left, counts: None });
                }
                false
            }
            What::Fork { parent, child } => {
                let ours = self.threads.as_mut().filter(|threads| threads.contains(&parent));
                ours.is_some_and(|threads| threads.insert(child))
            }
            What::Wakeup { .. } | What::Ran { .. } => false,
        }
    }
}

/// The threads of process `pid`.
///
/// Fails with [`HostError::NoSuchProcess`].
pub fn threads_of(pid: u32) -> Result<Vec<i32>, HostError> {
    let entries = fs::read_dir(format!("/proc/{pid}/task")).map_err(|_| HostError::NoSuchProcess { pid })?;
    Ok(entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect())
}

impl Slices {
    /// Of `threads`, and those that they start, or of all, on `cpus`, from now on.
    ///
    /// Fails with [`HostError::Events`] where the kernel has no such events or does not give them to this user.
    pub fn open(cpus: &[CpuId], threads: Option<Vec<i32>>) -> Result<Slices, HostError> {
        let mut timeline = Timeline::open(cpus)?;
        if let Some(threads) = &threads {
            timeline.follow(threads)?;
        }
        let splitter = Splitter { threads: threads.map(HashSet::from_iter), ..Splitter::default() };
        Ok(Slices { timeline, splitter, events: Vec::new(), seen: 0 })
    }

    /// Moves the slices that have ended since the last call behind `slices`, in the order of their ends.
    pub fn drain(&mut self, slices: &mut Vec<Slice>) -> Result<(), HostError> {
        self.events.clear();
        self.timeline.drain(&mut self.events)?;
        self.events.sort_by_key(|event| event.at);
        self.seen += self.events.len() as u64;
        let mut grown = false;
        for event in &self.events {
            grown |= self.splitter.note(event, slices);
        }
        if let Some(threads) = self.splitter.threads.as_ref().filter(|_| grown) {
            let mut threads: Vec<i32> = threads.iter().copied().collect();
            threads.sort_unstable();
            self.timeline.follow(&threads)?;
        }
        Ok(())
    }

    /// Events seen so far.
    pub fn seen(&self) -> u64 {
        self.seen
    }

    /// Events that the kernel had no room for.
    pub fn lost(&self) -> u64 {
        self.timeline.lost()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jobs::timeline::Name;

    fn switch(at: u64, cpu: u32, from: i32, left: timeline::Left, to: i32) -> Event {
        let what = What::Switch { from, left, to, name: Name(*b"task\0\0\0\0\0\0\0\0\0\0\0\0") };
        Event { at: Ns(at), cpu: CpuId(cpu), what }
    }

    #[test]
    fn a_slice_lasts_from_the_switch_to_a_thread_until_the_switch_away() {
        use timeline::Left::{Asleep, Runnable};
        let mut splitter = Splitter { threads: Some(HashSet::from([7])), ..Splitter::default() };
        let mut slices = Vec::new();
        for event in [
            switch(10, 0, 5, Runnable, 7),
            Event { at: Ns(15), cpu: CpuId(0), what: What::Fork { parent: 7, child: 8 } },
            switch(30, 0, 7, Runnable, 8),
            switch(35, 1, 0, Runnable, 7),
            switch(50, 0, 8, Asleep, 5),
            switch(55, 1, 7, Asleep, 0),
            // Not seen to begin.
            switch(70, 2, 7, Asleep, 0),
            switch(90, 0, 5, Asleep, 0),
        ] {
            splitter.note(&event, &mut slices);
        }
        let seen: Vec<_> = slices.iter().map(|s| (s.thread, s.cpu.0, s.begin.0, s.end.0, s.left)).collect();
        assert_eq!(seen, [(7, 0, 10, 30, Left::Preempted), (8, 0, 30, 50, Left::Asleep), (7, 1, 35, 55, Left::Asleep)]);
        assert_eq!(slices[0].name, "task");
    }
}
