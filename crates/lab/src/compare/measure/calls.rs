//! Times from a beginning to its end: of jobs that the program marks itself, and of calls of a function.

use std::collections::BTreeMap;
use std::time::Duration;

use isochrome_host::process::Pid;
use isochrome_host::recolor::watch::family;
use isochrome_host::run::calls::CallReader;
use isochrome_host::run::marks::{Edge, Mark, MarkReader};
use isochrome_host::sys::clock::monotonic;
use isochrome_model::units::Ns;

use super::{BATCH, MayGoOn, Measure, Reading, Trouble, sleep};

/// Most beginnings of a thread that wait for their end. An end may never come, for example if an exception leaves a function.
const OPEN_MAX: usize = 256;

/// Source of the beginnings and ends.
pub enum Reports {
    /// Marks that the program sets.
    Marks(MarkReader),
    /// Calls of a function, which the kernel reports.
    Calls(CallReader),
}

impl Reports {
    fn read(&mut self, of: &[Pid], marks: &mut Vec<Mark>) {
        match self {
            Reports::Marks(reader) => reader.read(marks),
            Reports::Calls(reader) => reader.read(of, marks),
        }
    }

    fn lost(&self) -> u64 {
        match self {
            Reports::Marks(reader) => reader.lost(),
            Reports::Calls(reader) => reader.lost(),
        }
    }
}

/// Measures the time from each beginning to its end, in all threads of a program and of its descendants.
pub struct Calls {
    pid: Pid,
    reports: Reports,
}

impl Calls {
    /// Measures the beginnings and ends that `reports` has of `pid`.
    pub fn new(pid: Pid, reports: Reports) -> Calls {
        Calls { pid, reports }
    }
}

/// Beginnings without an end so far, by thread.
#[derive(Default)]
struct Open(BTreeMap<u32, Vec<Ns>>);

impl Open {
    /// Notes `mark`, and returns the time since its beginning if it is an end. A call within a call ends first.
    fn note(&mut self, Mark { at, thread, edge }: Mark) -> Option<Ns> {
        let begun = self.0.entry(thread).or_default();
        match edge {
            Edge::Begin if begun.len() >= OPEN_MAX => begun.clear(),
            Edge::Begin => begun.push(at),
            Edge::End => return begun.pop().map(|begin| Ns(at.0.saturating_sub(begin.0))),
        }
        None
    }
}

impl Measure for Calls {
    fn unit(&self) -> &str {
        "µs"
    }

    fn window(&mut self, length: Duration, may_go_on: &mut MayGoOn<'_>) -> Result<Reading, Trouble> {
        let pids = family(self.pid);
        // What happened before the window is dropped.
        self.reports.read(&pids, &mut Vec::new());
        let (mut marks, mut open, mut values) = (Vec::new(), Open::default(), Vec::new());
        let (end, mut lost) = (monotonic().0 + length.as_nanos() as u64, self.reports.lost());
        loop {
            sleep(BATCH.min(Duration::from_nanos(end.saturating_sub(monotonic().0))), may_go_on)?;
            // Reports of several CPUs come CPU by CPU. Those before the reading began have all come.
            let horizon = monotonic();
            self.reports.read(&pids, &mut marks);
            marks.sort_by_key(|mark| mark.at);
            if std::mem::replace(&mut lost, self.reports.lost()) != lost {
                open = Open::default();
            }
            let known = marks.partition_point(|mark| mark.at < horizon);
            values.extend(marks.drain(..known).filter_map(|mark| open.note(mark)).map(|time| time.0 as f64 / 1e3));
            if horizon.0 >= end {
                return Ok(Reading::Values(values));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_within_calls_and_of_several_threads_are_told_apart() {
        let mut open = Open::default();
        let mut note = |at, thread, edge| open.note(Mark { at: Ns(at), thread, edge });
        assert_eq!(note(5, 1, Edge::End), None, "the beginning was before the window");
        assert_eq!(note(10, 1, Edge::Begin), None);
        assert_eq!(note(11, 2, Edge::Begin), None);
        assert_eq!(note(12, 1, Edge::Begin), None);
        assert_eq!(note(15, 1, Edge::End), Some(Ns(3)));
        assert_eq!(note(16, 2, Edge::End), Some(Ns(5)));
        assert_eq!(note(30, 1, Edge::End), Some(Ns(20)));
        assert_eq!(note(31, 1, Edge::End), None);
    }

    #[test]
    fn beginnings_that_never_end_take_no_memory() {
        let mut open = Open::default();
        for at in 0..10 * OPEN_MAX as u64 {
            open.note(Mark { at: Ns(at), thread: 1, edge: Edge::Begin });
        }
        assert!(open.0[&1].len() <= OPEN_MAX);
    }
}
