//! The fixed-point iteration, shared by all families.
//!
//! Tasks are taken from the highest priority down, so everything about a pair (j, i) is updated, not recomputed, when i
//! advances: which partitions two tasks of hep(i) use (for ω), what lies below j (for γ), how many jobs of τ(j) the window
//! holds. `R(i) >= R(i-1) + C(i) + ω(i,n)`, so the iteration for i starts there, with the job counts of i-1; a division is
//! only needed where a window passes a further release.
//!
//! All sums saturate. A saturated sum exceeds every deadline, as the true one would, so verdicts are exact.

use super::{Analysis, Bound, Charges, CoreTask, Verdict};
use crate::taskset::partitions::WORDS;

/// Memory that analyses reuse from one core to the next.
#[derive(Debug, Default)]
pub struct Workspace {
    rows: Vec<Row>,
    /// Per task: ω(j,n), or all its partitions at a cold start.
    first_omega: Vec<u64>,
    blocking: Vec<u64>,
    /// Windows of the tasks above, for the multiset forms: `None` where one passed its deadline.
    windows: Vec<Option<u64>>,
    bounds: Vec<Bound>,
    below: Vec<u64>,
    worst: Vec<(u64, u64)>,
}

/// What is known of τ(j) while some i below it is analyzed.
#[derive(Clone, Copy, Debug, Default)]
struct Row {
    /// Windows up to here hold no further job.
    until: u64,
    /// Jobs in the window.
    jobs: u64,
    /// What every job adds: execution, switches, ω(j,i) and γ(j,i).
    cost: u64,
    omega: u64,
    gamma: u64,
    /// The largest useful set it can hit so far (UCB-only, ECB-union), in partitions.
    largest: u64,
}

/// Bounds for all tasks of a core, highest priority first.
pub fn analyze(core: &[CoreTask], charges: Charges, analysis: Analysis) -> Vec<Bound> {
    let mut workspace = Workspace::default();
    dispatch::<true>(core, charges, analysis, &mut workspace);
    workspace.bounds
}

/// The same bounds without the parts they consist of, in memory that is reused.
pub fn responses<'a>(
    core: &[CoreTask],
    charges: Charges,
    analysis: Analysis,
    workspace: &'a mut Workspace,
) -> impl Iterator<Item = Verdict> + use<'a> {
    dispatch::<false>(core, charges, analysis, workspace);
    workspace.bounds.iter().map(|bound| bound.verdict)
}

/// Whether every task of the core meets its deadline.
pub fn schedulable(core: &[CoreTask], charges: Charges, analysis: Analysis, workspace: &mut Workspace) -> bool {
    dispatch::<false>(core, charges, analysis, workspace);
    workspace.bounds.iter().all(|bound| bound.verdict != Verdict::Misses)
}

fn dispatch<const PARTS: bool>(core: &[CoreTask], charges: Charges, analysis: Analysis, workspace: &mut Workspace) {
    // Nearly every machine has at most 64 partitions, and a word is much faster than sixteen.
    if core.iter().all(|task| task.partitions.0[1..].iter().all(|&word| word == 0)) {
        iterate::<1, PARTS>(core, charges, analysis, workspace);
    } else {
        iterate::<WORDS, PARTS>(core, charges, analysis, workspace);
    }
}

fn first<const W: usize>(words: &[u64; WORDS]) -> [u64; W] {
    std::array::from_fn(|word| words[word])
}

fn common<const W: usize>(a: &[u64; WORDS], b: &[u64]) -> u64 {
    (0..W).map(|word| u64::from((a[word] & b[word]).count_ones())).sum()
}

fn iterate<const W: usize, const PARTS: bool>(
    core: &[CoreTask],
    charges: Charges,
    analysis: Analysis,
    workspace: &mut Workspace,
) {
    // Without interference nothing ever has to be refilled.
    let refill = if analysis == Analysis::NoInterference { 0 } else { charges.refill_ns };
    let switches = charges.switch_ns.saturating_mul(2);
    let multiset =
        matches!(analysis, Analysis::UcbUnionMultiset | Analysis::EcbUnionMultiset | Analysis::CombinedMultiset);
    let Workspace { rows, first_omega, blocking, windows, bounds, below, worst } = workspace;
    rows.clear();
    bounds.clear();
    windows.clear();
    below.clear();
    below.resize(core.len() * W, 0);

    // Partitions used by two tasks or more of the whole core.
    let (mut once, mut twice) = ([0u64; W], [0u64; W]);
    for task in core {
        for word in 0..W {
            twice[word] |= once[word] & task.partitions.0[word];
            once[word] |= task.partitions.0[word];
        }
    }
    first_omega.clear();
    first_omega.extend(core.iter().map(|task| {
        let cold = if charges.cold_start { u64::MAX } else { 0 };
        let cold_words: [u64; W] = std::array::from_fn(|word| twice[word] | cold);
        common::<W>(&task.partitions.0, &cold_words).saturating_mul(refill)
    }));

    // A task can wait for the nonpreemptive stretch of a lower one, with the refills in it; and, pushed by its own
    // previous job's last stretch, for its own.
    blocking.clear();
    blocking.resize(core.len(), 0);
    let mut longest = 0;
    for (index, task) in core.iter().enumerate().rev() {
        if task.nonpreemptive_ns > 0 {
            longest = longest.max(task.nonpreemptive_ns.saturating_add(first_omega[index]));
        }
        blocking[index] = task.blocking_ns.saturating_add(longest);
    }

    // Partitions used by two tasks or more of hep(i).
    let (mut once, mut twice) = ([0u64; W], [0u64; W]);
    let mut reached: u64 = 0;
    for (i, task) in core.iter().enumerate() {
        let own: [u64; W] = first(&task.partitions.0);
        for word in 0..W {
            twice[word] |= once[word] & own[word];
            once[word] |= own[word];
        }
        let own_ns = task.wcet_ns.saturating_add(switches);
        // What does not depend on the window.
        let mut fixed = own_ns.saturating_add(first_omega[i]).saturating_add(blocking[i]);
        let mut first_extra: u64 = 0;
        for (j, row) in rows.iter_mut().enumerate() {
            let above = &core[j];
            row.omega = common::<W>(&above.partitions.0, &twice).saturating_mul(refill);
            let hit = match analysis {
                Analysis::Kim2013 | Analysis::UcbUnion => {
                    let reused = if analysis == Analysis::Kim2013 { &task.partitions.0 } else { &task.useful.0 };
                    let union = &mut below[j * W..(j + 1) * W];
                    for word in 0..W {
                        union[word] |= reused[word];
                    }
                    common::<W>(&above.partitions.0, union)
                }
                Analysis::EcbOnly => u64::from(above.partitions.len()),
                Analysis::UcbOnly => {
                    row.largest = row.largest.max(u64::from(task.useful.len()));
                    row.largest
                }
                Analysis::EcbUnion => {
                    // `below` holds the union of everything down to j here, set when j was taken.
                    row.largest = row.largest.max(common::<W>(&task.useful.0, &below[j * W..(j + 1) * W]));
                    row.largest
                }
                _ => 0,
            };
            row.gamma = hit.saturating_mul(refill);
            row.cost = above.wcet_ns.saturating_add(switches).saturating_add(row.omega).saturating_add(row.gamma);
            first_extra = first_extra.saturating_add(first_omega[j] - row.omega);
        }
        fixed = fixed.saturating_add(first_extra);

        // The window of i-1 may be extended if it held no blocking that is gone now; multiset delays may also shrink.
        let extend = i > 0 && !multiset && blocking[i - 1] <= blocking[i];
        let start = if extend { reached.saturating_add(own_ns).saturating_add(first_omega[i]) } else { fixed };
        if !extend {
            for row in rows.iter_mut() {
                (row.jobs, row.until) = (0, 0);
            }
        }
        let deadline = task.deadline_ns.checked_sub(task.jitter_ns);
        let (window, met, gamma_ns) = if multiset {
            let forms: &[Analysis] = match analysis {
                Analysis::CombinedMultiset => &[Analysis::UcbUnionMultiset, Analysis::EcbUnionMultiset],
                Analysis::UcbUnionMultiset => &[Analysis::UcbUnionMultiset],
                _ => &[Analysis::EcbUnionMultiset],
            };
            let mut best = (u64::MAX, false, 0);
            for &form in forms {
                for row in rows.iter_mut() {
                    (row.jobs, row.until) = (0, 0);
                }
                let mut gamma_ns = 0;
                let delay = |rows: &[Row], window| {
                    gamma_ns =
                        multiset_gamma::<W>(core, i, rows, windows, window, form, below, worst).saturating_mul(refill);
                    gamma_ns
                };
                let (window, met) = settle(core, rows, start, fixed, deadline, delay);
                if (!met, window) < (!best.1, best.0) {
                    best = (window, met, gamma_ns);
                }
            }
            if PARTS {
                // The job counts of the better form, for the parts.
                for (row, above) in rows.iter_mut().zip(core) {
                    count_jobs(row, above, best.0);
                }
            }
            best
        } else {
            let (window, met) = settle(core, rows, start, fixed, deadline, |_, _| 0);
            let sum =
                |rows: &[Row]| rows.iter().map(|row| row.jobs.saturating_mul(row.gamma)).fold(0, u64::saturating_add);
            (window, met, if PARTS { sum(rows) } else { 0 })
        };
        let response_ns = window.saturating_add(task.jitter_ns);
        let verdict = if met { Verdict::Meets { response_ns } } else { Verdict::Misses };
        let total = |part: &dyn Fn(usize, &Row) -> u64| {
            rows.iter().enumerate().map(|(j, row)| row.jobs.saturating_mul(part(j, row))).fold(0, u64::saturating_add)
        };
        bounds.push(Bound {
            verdict,
            own_ns,
            interference_ns: if PARTS { total(&|j, _| core[j].wcet_ns.saturating_add(switches)) } else { 0 },
            omega_ns: if PARTS {
                first_omega[i].saturating_add(first_extra).saturating_add(total(&|_, row| row.omega))
            } else {
                0
            },
            gamma_ns,
            blocking_ns: blocking[i],
            jitter_ns: task.jitter_ns,
        });
        reached = window;
        if multiset {
            windows.push(met.then_some(window));
        }
        // Now τ(i) is one of those above.
        let mut row = Row::default();
        count_jobs(&mut row, task, window);
        rows.push(row);
        if matches!(analysis, Analysis::EcbUnion | Analysis::EcbUnionMultiset | Analysis::CombinedMultiset) {
            below[i * W..(i + 1) * W].copy_from_slice(&once);
        }
    }
}

fn count_jobs(row: &mut Row, task: &CoreTask, window: u64) {
    row.jobs = jobs_in(window, task);
    row.until = row.jobs.saturating_mul(task.period_ns).saturating_sub(task.jitter_ns);
}

/// `ceil((window + J) / T)`.
fn jobs_in(window: u64, task: &CoreTask) -> u64 {
    window.saturating_add(task.jitter_ns).div_ceil(task.period_ns)
}

/// Grows the window from `window` until it holds what is demanded of it, or passes the deadline. Returns it, and whether
/// it settled in time.
fn settle(
    core: &[CoreTask],
    rows: &mut [Row],
    mut window: u64,
    fixed: u64,
    deadline: Option<u64>,
    mut delay: impl FnMut(&[Row], u64) -> u64,
) -> (u64, bool) {
    let Some(deadline) = deadline else { return (window, false) };
    let mut demand = rows.iter().fold(fixed, |sum, row| sum.saturating_add(row.jobs.saturating_mul(row.cost)));
    // Each turn adds a job to the window, at least a nanosecond, or is the last.
    loop {
        for (row, task) in rows.iter_mut().zip(core) {
            if window > row.until {
                let before = row.jobs;
                count_jobs(row, task, window);
                demand = demand.saturating_add((row.jobs - before).saturating_mul(row.cost));
            }
        }
        let needed = demand.saturating_add(delay(rows, window));
        if window > deadline || needed > deadline {
            return (needed.max(window), false);
        }
        if needed <= window {
            return (window, true);
        }
        window = needed;
    }
}

/// Refills, in partitions, after all preemptions in a window of τ(i) together. [Altmeyer2012, §4]
#[allow(clippy::too_many_arguments)]
fn multiset_gamma<const W: usize>(
    core: &[CoreTask],
    i: usize,
    rows: &[Row],
    windows: &[Option<u64>],
    window: u64,
    form: Analysis,
    unions: &[u64],
    worst: &mut Vec<(u64, u64)>,
) -> u64 {
    let mut refills: u64 = 0;
    for (j, row) in rows.iter().enumerate() {
        // How often jobs of τ(j) can preempt jobs of τ(k) in the window: E_j(R_k) E_k(R_i), never more than E_j(R_i).
        let preemptions = |k: usize| match windows.get(k) {
            Some(&Some(above)) if k < i => {
                jobs_in(above, &core[j]).saturating_mul(jobs_in(window, &core[k])).min(row.jobs)
            }
            _ => row.jobs,
        };
        if form == Analysis::EcbUnionMultiset {
            worst.clear();
            let evicting = &unions[j * W..(j + 1) * W];
            worst.extend((j + 1..=i).map(|k| (common::<W>(&core[k].useful.0, evicting), preemptions(k))));
            worst.sort_unstable_by(|a, b| b.cmp(a));
            let mut left = row.jobs;
            for &(partitions, times) in worst.iter() {
                let times = times.min(left);
                refills = refills.saturating_add(partitions.saturating_mul(times));
                left -= times;
            }
        } else {
            for partition in core[j].partitions.iter() {
                let useful = (j + 1..=i)
                    .filter(|&k| core[k].useful.contains(partition))
                    .map(preemptions)
                    .fold(0, u64::saturating_add);
                refills = refills.saturating_add(useful.min(row.jobs));
            }
        }
    }
    refills
}
