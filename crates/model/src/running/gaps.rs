//! Gaps that nobody reports: times in which a CPU did nothing although the kernel accounted them to the thread that had it.
//!
//! A hypervisor that takes a CPU without counting this as steal time causes such gaps, and so does firmware. A job that meets one seems to execute
//! for longer. Its record is that of an overrun, so no job can be excused by itself. But gaps meet whatever has the CPU. From the first such job on,
//! the clock is therefore watched on its CPU in the time that the tasks leave. If this does not show whether gaps were the cause, the clock is
//! watched on all CPUs after the run. The module `comparison` compares the jobs with the gaps.

mod comparison;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use self::comparison::GapComparison;
use super::observed::{GapCount, Spread};
use crate::units::{CpuId, Ns};

/// Largest probability that a task which does nothing wrong is accused because of gaps, for each of its limits.
pub const ACCUSED_WRONGLY: f64 = 0.01;

/// Shortest and longest interval. In between, a run has ten.
const INTERVAL: [Ns; 2] = [Ns(50_000_000), Ns(1_000_000_000)];

/// Returns the length of the intervals in which gaps are counted after a run for `duration`.
pub fn gap_interval(duration: Ns) -> Ns {
    Ns(duration.0 / 10).clamp(INTERVAL[0], INTERVAL[1])
}

/// Returns the length of the intervals in which gaps are counted during a run for `duration`, of which there are at most 512.
pub fn gap_interval_of_run(duration: Ns) -> Ns {
    gap_interval(duration).max(Ns(duration.0 / NeededGaps::MAX as u64))
}

fn longest_interval() -> Ns {
    INTERVAL[1]
}

/// The gaps of a CPU that nobody reports, as a thread saw them that only watched the clock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct UnreportedGaps {
    /// The CPU.
    pub cpu: CpuId,
    /// Time of the run from which on the clock was watched while the tasks ran; `None` if it was watched after the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<Ns>,
    /// Time for which the clock was watched: that in which the watching thread had the CPU.
    pub watched: Ns,
    /// Shortest time between two readings that is a gap.
    pub threshold: Ns,
    /// The gaps, ascending by length.
    pub gaps: Vec<GapCount>,
    /// Time in which 99 % of the jobs are complete: a job may meet all gaps that begin in this time; 0 in evidence of earlier versions.
    #[serde(default)]
    pub within: Ns,
    /// Length of an interval.
    #[serde(default = "longest_interval")]
    pub interval: Ns,
    /// For each interval of watching with gaps: the time that a job loses if the first gap that it meets lies in this interval. This is the sum of
    /// all gaps from this one on that begin in the time `within`. Empty in evidence of earlier versions, where each gap is taken to lie alone in an
    /// interval.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub by_interval: Vec<Vec<GapCount>>,
    /// Numbers of the intervals in `by_interval`, counted from the beginning of the run, if the clock was watched during it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub numbers: Vec<u64>,
}

impl UnreportedGaps {
    /// Begins an account of the gaps of a CPU.
    ///
    /// `watched`: time for which the clock was watched. `threshold`: shortest gap.
    pub fn new(cpu: CpuId, watched: Ns, threshold: Ns) -> UnreportedGaps {
        UnreportedGaps {
            cpu,
            from: None,
            watched,
            threshold,
            gaps: Vec::new(),
            within: Ns(0),
            interval: longest_interval(),
            by_interval: Vec::new(),
            numbers: Vec::new(),
        }
    }

    /// Sums up gaps for a comparison with jobs.
    ///
    /// `within`: time in which nearly all jobs are complete. `interval`: length of an interval ([`gap_interval`], [`gap_interval_of_run`]).
    /// `gaps`: time at which each gap was seen (time of watching, or time of the run if watched during it), and its length, in the order of time.
    pub fn with(self, within: Ns, interval: Ns, gaps: &[(Ns, Ns)]) -> UnreportedGaps {
        let counts = |gaps: &[(Ns, Ns)]| {
            let mut spread = Spread::default();
            gaps.iter().for_each(|(_, length)| spread.push(length.0));
            spread.counts()
        };
        let lost = lost(within, gaps);
        let number = |(at, _): &(Ns, Ns)| at.0 / interval.0.max(1);
        let intervals = || lost.chunk_by(|a, b| number(a) == number(b));
        let numbers = self.from.map(|_| intervals().map(|of| number(&of[0])).collect()).unwrap_or_default();
        let by_interval = intervals().map(counts).collect();
        UnreportedGaps { gaps: counts(gaps), within, interval, by_interval, numbers, ..self }
    }

    /// Returns the number of gaps that last for about `length` or longer.
    fn at_least(&self, length: Ns) -> u64 {
        counted_from(&self.gaps, length)
    }

    /// Returns the number of intervals in a time; a part of an interval counts as one.
    fn intervals(&self, time: Ns) -> u64 {
        time.0.div_ceil(self.interval.0.max(1)).max(1)
    }

    /// Returns the number of gaps in each interval from which on a job loses about `length` or more, where there are any.
    fn at_least_by_interval(&self, length: Ns) -> Vec<u64> {
        let counts: Vec<u64> = match self.by_interval.is_empty() {
            true => vec![1; self.at_least(length).min(self.intervals(self.watched)) as usize],
            false => self.by_interval.iter().map(|gaps| counted_from(gaps, length)).collect(),
        };
        counts.into_iter().filter(|count| *count > 0).collect()
    }
}

/// Returns the time of each gap, and the sum of all that begin `within` this time from there on.
fn lost(within: Ns, gaps: &[(Ns, Ns)]) -> Vec<(Ns, Ns)> {
    let (mut end, mut sum) = (0, 0);
    let from = |(first, (at, length)): (usize, &(Ns, Ns))| {
        // The windows of consecutive gaps begin and end in the same order, so each gap is added and taken away once.
        if end <= first {
            (end, sum) = (first, 0);
        }
        while end < gaps.len() && (end == first || gaps[end].0.0 < at.0 + within.0) {
            sum += gaps[end].1.0;
            end += 1;
        }
        let lost = Ns(sum);
        sum -= length.0;
        (*at, lost)
    };
    gaps.iter().enumerate().map(from).collect()
}

/// Returns the number of gaps that last for `length` or longer, or for up to 1/64 less.
fn counted_from(gaps: &[GapCount], length: Ns) -> u64 {
    let long = gaps.iter().filter(|gap| gap.least.0.saturating_add(gap.least.0 / 64) >= length.0);
    long.fold(0, |sum, gap| sum.saturating_add(gap.count))
}

/// A gap that jobs would have needed not to exceed a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NeededGap {
    /// Release of the first of these jobs. In evidence of earlier versions all are 0, so that the jobs are taken for those of one interval.
    #[serde(default)]
    pub at: Ns,
    /// Longest gap that one of these jobs would have needed.
    #[serde(alias = "least")]
    pub gap: Ns,
}

/// The longest needed gap of each interval, in bounded memory: if there are too many intervals, longer intervals are used.
#[derive(Clone, Debug)]
pub(super) struct NeededGaps {
    interval: Ns,
    gaps: Vec<NeededGap>,
}

impl Default for NeededGaps {
    fn default() -> NeededGaps {
        NeededGaps { interval: INTERVAL[0], gaps: Vec::new() }
    }
}

impl NeededGaps {
    pub(super) const MAX: usize = 512;

    /// Adds a gap that a job would have needed which was released at `at`.
    pub(super) fn push(&mut self, at: Ns, gap: Ns) {
        match self.gaps.last_mut() {
            Some(last) if last.at.0 / self.interval.0 == at.0 / self.interval.0 => last.gap = last.gap.max(gap),
            _ => self.gaps.push(NeededGap { at, gap }),
        }
        while self.gaps.len() > Self::MAX {
            self.interval.0 *= 2;
            self.gaps = by_interval(&self.gaps, self.interval);
        }
    }

    pub(super) fn gaps(&self) -> &[NeededGap] {
        &self.gaps
    }
}

/// Returns the first release and the longest needed gap of each interval.
fn by_interval(gaps: &[NeededGap], interval: Ns) -> Vec<NeededGap> {
    let of_one = |gaps: &[NeededGap]| {
        gaps.iter().copied().reduce(|first, gap| NeededGap { gap: first.gap.max(gap.gap), ..first })
    };
    let number = |gap: &NeededGap| gap.at.0 / interval.0.max(1);
    gaps.chunk_by(|a, b| number(a) == number(b)).filter_map(of_one).collect()
}

#[cfg(test)]
mod tests;
