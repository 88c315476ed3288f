//! Whether the gaps of a CPU account for the jobs that exceed a limit.
//!
//! Gaps come in bursts: on a shared host the variance of their number in a second was 5 to 7 times its mean, which are equal for independent
//! events. So the unit of every comparison is an interval of up to a second. For a given length of a gap, K intervals of the run have jobs that
//! would have needed so long a gap not to exceed their limit, and g(i) is the number of gaps of this length in interval i of a watch, alone or
//! with those that follow while a job is under way.
//!
//! *During the run* the task had the CPU for a share u of the time that it and the watching thread had it together. If gaps account for the jobs,
//! each gap of an interval meets a job with the probability u, whatever the host does in other intervals. So of interval i with n(i) gaps, jobs
//! meet one with a probability of at most p(i) = 1 - (1 - u)^n(i), and the number of intervals in which they do is at most a sum of so many
//! independent events. n(i) is g(i), and 2 more if jobs needed a gap: one that they met, and one that they may have met besides. Intervals
//! before the watch, which the first such job has begun, do not count.
//!
//! *After the run*, of which there are N intervals beside the M of the watch, jobs that have the CPU for a share u of all time would have met a
//! gap in interval i of the watch with the probability 1 - (1 - u)^g(i). W is the number of intervals in which they would have. If gaps account for
//! the jobs, each of the K + W intervals lies in the run with the probability N / (N + M), so K has a binomial distribution for each value of W.
//! [PrzyborowskiWilenski1940] The tail probabilities are averaged over W, and twice the average of p-values is a p-value. [VovkWang2020] This
//! supposes that as much is withheld after the run as during it.
//!
//! *For a budget*, the jobs of the intervals are also compared with the gaps by the time that they lost. A job that met a gap executes for longer by
//! the length of the gap, and gaps have many lengths. An overrun of the task's own takes about the same time in each job. If gaps account for the
//! jobs, the lost times are lengths of gaps that are long enough for an ordinary job to exceed its budget. They are then no more alike than the
//! lengths of as many such gaps.
//!
//! If either is improbable, the jobs are the task's own. Otherwise the comparison neither accuses the task nor clears it. Each watch and each
//! comparison has a part of the probability of a wrong accusation.

use std::collections::BTreeMap;
use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use statrs::distribution::{Binomial, DiscreteCDF};

use super::{ACCUSED_WRONGLY, NeededGap, UnreportedGaps, by_interval, counted_from};
use crate::evidence::format;
use crate::running::{Limit, Run, TaskOutcome};
use crate::stats::concentration;
use crate::units::Ns;

/// Part of the probability of a wrong accusation that the number of intervals has, for the watch during the run. It needs less, because with each
/// further interval the probability falls faster.
const PART_DURING: f64 = 0.15;
/// Part of this probability that the number of intervals has, for the watch after the run.
const PART_AFTER: f64 = 0.79;
/// Part of this probability that the comparison of lost times has, for each of the two watches.
const PART_ALIKE: f64 = 0.03;

/// Greatest number of gaps whose lengths are compared with the time that jobs lost. If there are more, a selection at even distances in ascending
/// order stands for all.
const GAPS_MAX: u64 = 4096;

/// Comparison of the jobs of a task that exceed a limit with the gaps of its CPU.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct GapComparison {
    /// Number of intervals of the run with jobs that would have needed gaps.
    pub intervals: u64,
    /// Shortest gap that was needed in one of these intervals.
    pub needed: Ns,
    /// Number of gaps of the length `needed` or longer that were seen.
    pub seen: u64,
    /// Time for which the clock was watched.
    pub watched: Ns,
    /// Whether the clock was watched during the run, and not after it.
    #[serde(default)]
    pub during: bool,
    /// Probability of at least this number of intervals if gaps meet jobs as often, per time, as the watching thread. This is the smallest
    /// probability for the shortest length needed in each octave, times the number of these lengths. For a budget, also the probability that jobs
    /// which meet gaps lose times as equal as the observed ones. Each of the two is divided by its part of the probability of a wrong accusation, and
    /// the smaller one counts.
    pub p: f64,
}

impl fmt::Display for GapComparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let GapComparison { intervals, seen, .. } = self;
        let [needed, watched] = [self.needed, self.watched].map(|time| format::nanoseconds(time.0 as f64));
        let plural = if *intervals == 1 { "" } else { "s" };
        let when = if self.during {
            "during the run its CPU, in the time that the tasks left"
        } else {
            "after the run its CPU, with nothing to do"
        };
        write!(
            f,
            "in {intervals} interval{plural} of the run, by {needed} or more; {when}, stood still for as long {seen} times in {watched} \
             without a report, so the task need not be the cause (p = {:.2})",
            self.p
        )
    }
}

impl Run {
    /// Compares the jobs of `task` that exceed `limit` without an excuse with the gaps of its CPU. `None` if the gaps do not account for the
    /// jobs: they were not watched for, or there are more intervals with such jobs than is probable.
    pub(in crate::running) fn met_by_gaps(&self, task: &TaskOutcome, limit: Limit) -> Option<GapComparison> {
        let watches = || self.gaps.iter().filter(|gaps| Some(gaps.cpu) == task.cpu);
        let compared: Vec<GapComparison> = watches().filter_map(|gaps| self.compare(task, limit, gaps)).collect();
        // The watch after the run comes last.
        compared.last().copied().filter(|_| compared.iter().all(|compared| compared.p >= ACCUSED_WRONGLY))
    }

    /// Whether a watch after the run may change what is concluded of a task: its jobs exceed limits, and the gaps during the run may account for
    /// those beyond each limit. A task that violates one limit whatever gaps there are is violated.
    pub fn leaves_gaps_open(&self) -> bool {
        let is_open = |task: &TaskOutcome| {
            let watched = self.gaps.iter().any(|gaps| Some(gaps.cpu) == task.cpu);
            let mut exceeded = [Limit::Bound, Limit::Deadline, Limit::Budget]
                .into_iter()
                .filter(|limit| task.violations(*limit).own() > 0)
                .peekable();
            exceeded.peek().is_some() && exceeded.all(|limit| !watched || self.met_by_gaps(task, limit).is_some())
        };
        self.tasks.iter().any(is_open)
    }

    /// Compares jobs of `task` with one watch; `None` if no job of the task exceeded `limit`.
    fn compare(&self, task: &TaskOutcome, limit: Limit, gaps: &UnreportedGaps) -> Option<GapComparison> {
        let observed = if limit == Limit::Budget { task.execution? } else { task.response? };
        let share = observed.mean_ns * task.jobs as f64 / self.duration.0.max(1) as f64;
        let needed = by_interval(&task.violations(limit).needed, gaps.interval);
        let shortest = needed.iter().map(|needed| needed.gap).min()?;
        let (intervals, number) = match gaps.from {
            Some(from) => {
                let (intervals, p) = gaps.during(&needed, share, Ns(self.duration.0.saturating_sub(from.0)));
                (intervals, p / PART_DURING)
            }
            None => (needed.len(), gaps.after(&needed, share.min(1.0), self.duration) / PART_AFTER),
        };
        let spare = task.requirement.budget.filter(|_| limit == Limit::Budget);
        let spare = spare.map(|budget| Ns(budget.0.saturating_sub(observed.mean_ns as u64)));
        let alike = spare.map_or(1.0, |spare| gaps.alike(&needed, spare) / PART_ALIKE);
        Some(GapComparison {
            intervals: intervals as u64,
            needed: shortest,
            seen: gaps.at_least(shortest),
            watched: gaps.watched,
            during: gaps.from.is_some(),
            p: number.min(alike).min(1.0),
        })
    }
}

impl UnreportedGaps {
    /// Returns the probability that jobs which met gaps needed as equal gaps as `needed` not to exceed their budget. `spare`: the time by which an
    /// ordinary job stays below its budget.
    fn alike(&self, needed: &[NeededGap], spare: Ns) -> f64 {
        // A shorter gap would have been missed.
        if spare < self.threshold {
            return 1.0;
        }
        let needed: Vec<u64> = needed.iter().map(|needed| needed.gap.0).collect();
        concentration(&needed, &self.lengths_from(spare).map(|gap| gap.0 - spare.0).collect::<Vec<u64>>())
    }

    /// Returns the lengths of the gaps from `length` on, in ascending order: at most [`GAPS_MAX`] that stand for all.
    pub(super) fn lengths_from(&self, length: Ns) -> impl Iterator<Item = Ns> {
        let long = || self.gaps.iter().filter(move |gap| gap.least >= length);
        let count = long().fold(0u64, |sum, gap| sum.saturating_add(gap.count));
        let used = count.min(GAPS_MAX);
        let number = move |at: u64| (u128::from(2 * at + 1) * u128::from(count) / u128::from(2 * used.max(1))) as u64;
        let mut at = 0;
        let mut below = 0u64;
        long().flat_map(move |gap| {
            below = below.saturating_add(gap.count);
            let first = at;
            while at < used && number(at) < below {
                at += 1;
            }
            std::iter::repeat_n(gap.least, (at - first) as usize)
        })
    }

    /// Returns the number of intervals of the run with jobs that were compared with gaps seen during the run, and the probability of at least this
    /// number of them.
    ///
    /// `share`: share of all time that the task had. `time`: from the beginning of the watch until the end of the run.
    fn during(&self, needed: &[NeededGap], share: f64, time: Ns) -> (usize, f64) {
        let interval = self.interval.0.max(1);
        let first = self.from.map_or(0, |from| (from.0 / interval).saturating_add(1));
        let needed: BTreeMap<u64, Ns> = needed.iter().map(|needed| (needed.at.0 / interval, needed.gap)).collect();
        let needed = needed.range(first..);
        let watched = self.watched.0 as f64 / time.0.max(1) as f64;
        let meets = |gaps: u64| 1.0 - (watched / (share + watched).max(f64::MIN_POSITIVE)).powf(gaps as f64);
        let improbable = |length: Ns| {
            if length < self.threshold {
                return 1.0;
            }
            let mut gaps: BTreeMap<u64, u64> = self
                .numbers
                .iter()
                .copied()
                .zip(self.by_interval.iter().map(|gaps| counted_from(gaps, length)))
                .collect();
            gaps.retain(|number, count| *number >= first && *count > 0);
            let with_jobs = needed.clone().filter(|(_, gap)| **gap >= length);
            for (number, _) in with_jobs.clone() {
                let count = gaps.entry(*number).or_default();
                *count = count.saturating_add(2);
            }
            let met = number_of_events(gaps.into_values().map(meets));
            met.iter().skip(with_jobs.count()).sum()
        };
        (needed.clone().count(), smallest_of_octaves(needed.clone().map(|(_, gap)| *gap), improbable))
    }

    /// Returns the probability of at least the observed number of intervals with jobs in a run for `duration`, by the gaps seen after it. `share`:
    /// share of the time that the task had.
    fn after(&self, needed: &[NeededGap], share: f64, duration: Ns) -> f64 {
        let [run, watch] = [duration, self.watched].map(|time| self.intervals(time) as f64);
        smallest_of_octaves(needed.iter().map(|needed| needed.gap), |length| {
            let intervals = needed.iter().filter(|needed| needed.gap >= length).count() as u64;
            let tail = |others: usize| {
                let all = Binomial::new(run / (run + watch), intervals + others as u64);
                all.map_or(0.0, |all| all.sf(intervals.saturating_sub(1)))
            };
            let meets = |count: u64| 1.0 - (1.0 - share).powf(count as f64);
            let met = number_of_events(self.at_least_by_interval(length).into_iter().map(meets));
            2.0 * met.into_iter().enumerate().map(|(others, p)| p * tail(others)).sum::<f64>()
        })
    }
}

/// Returns the smallest probability for the shortest length of each octave, times the number of octaves; 1 if there are none.
///
/// The jobs of an overrun need much the same. So the shortest length of each octave is enough, and few tests are corrected for.
fn smallest_of_octaves(lengths: impl Iterator<Item = Ns>, improbable: impl Fn(Ns) -> f64) -> f64 {
    let mut lengths: Vec<Ns> = lengths.collect();
    lengths.sort_unstable();
    let octave = |length: Ns| length.0.max(1).ilog2();
    let octaves: Vec<Ns> = lengths.chunk_by(|a, b| octave(*a) == octave(*b)).map(|of| of[0]).collect();
    let corrected = octaves.iter().map(|length| improbable(*length) * octaves.len() as f64);
    corrected.fold(1.0, f64::min)
}

/// Returns the distribution of the number of independent events that occur: the probability of each number from 0 on.
///
/// `events`: probability of each event.
fn number_of_events(events: impl Iterator<Item = f64>) -> Vec<f64> {
    events.fold(vec![1.0], |numbers, p| {
        let mut next = vec![0.0; numbers.len() + 1];
        for (number, probability) in numbers.into_iter().enumerate() {
            next[number] += probability * (1.0 - p);
            next[number + 1] += probability * p;
        }
        next
    })
}
