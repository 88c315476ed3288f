//! The fixed-point iteration, shared by all families.
//!
//! Tasks are analyzed from the highest priority down. When i advances, everything about a pair (j, i) is updated, not recomputed: the
//! partitions that two tasks of hep(i) use (for ω), the partitions of the tasks below j (for γ), and the number of jobs of τ(j) in the
//! window. `R(i) >= R(i-1) + C(i) + ω(i,n)`, so the iteration for i starts with this sum and with the job counts of i-1. A division is
//! only needed when a window passes a further release.
//!
//! All sums saturate. A saturated sum exceeds every deadline, as the true one would, so verdicts are exact.

use super::blocking::{Blocking, Holder, preempted_by};
use super::multiset::{Multiset, Refills, Scratch};
use super::recurrence::reload_ns;
use super::sharing::remove_bounds;
use super::{Analysis, Bound, Charges, Conditions, CoreTask, Verdict};
use crate::supply::Supply;
use crate::taskset::partitions::WORDS;

/// Memory that analyses reuse from one core to the next.
#[derive(Debug, Default)]
pub struct Workspace {
    rows: Vec<Row>,
    /// ω(j,n) of each task, in ns. At a cold start, ω(j,n) covers all partitions of the task.
    first_omega: Vec<u64>,
    /// Partitions that the first jobs of tasks may miss.
    first_displaced: Vec<u64>,
    blocking: Blocking,
    /// Tasks that may hold a lock while the task being analyzed waits.
    holders: Vec<Holder>,
    /// Window of each task above, in ns, for the multiset forms; `None` if the window passes the deadline.
    windows: Vec<Option<u64>>,
    bounds: Vec<Bound>,
    below: Vec<u64>,
    scratch: Scratch,
}

/// State of τ(j) while a task τ(i) below it is analyzed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Row {
    /// Longest window, in ns, with no more than `jobs` jobs.
    pub(super) until: u64,
    /// Number of jobs of τ(j) in the window.
    pub(super) jobs: u64,
    /// Time that every job adds, in ns: execution, switches, the release interrupt, ω(j,i) and γ(j,i).
    pub(super) cost: u64,
    pub(super) omega: u64,
    pub(super) gamma: u64,
    /// Most partitions of one useful set that τ(j) can displace, over the tasks from j down to i (UCB-only, ECB-union).
    pub(super) largest: u64,
}

impl Row {
    /// Returns the number of partitions refilled after one preemption by `above`, the task of this row. `task` is the lowest task analyzed
    /// so far.
    ///
    /// `union`: the partitions of the tasks below τ(j), or of τ(j) and all tasks above it, depending on the analysis.
    fn hit<const W: usize>(&mut self, above: &CoreTask, task: &CoreTask, union: &mut [u64], analysis: Analysis) -> u64 {
        match analysis {
            Analysis::Kim2013 | Analysis::UcbUnion => {
                let reused = if analysis == Analysis::Kim2013 { &task.partitions.0 } else { &task.useful.0 };
                for word in 0..W {
                    union[word] |= reused[word];
                }
                common::<W>(&above.partitions.0, union)
            }
            Analysis::EcbOnly => u64::from(above.partitions.len()),
            Analysis::UcbOnly => {
                self.largest = self.largest.max(u64::from(task.useful.len()));
                self.largest
            }
            Analysis::EcbUnion => {
                // Here `union` holds the partitions of τ(j) and all tasks above it; it was set when τ(j) was analyzed.
                self.largest = self.largest.max(common::<W>(&task.useful.0, union));
                self.largest
            }
            _ => 0,
        }
    }
}

/// Returns the same number as [`Row::hit`] if `above` also preempts the `holders` of locks. `hit`: the number without holders.
fn hit_with_holders<const W: usize>(
    above: &CoreTask,
    holders: impl Iterator<Item = CoreTask>,
    union: &[u64],
    analysis: Analysis,
    hit: u64,
) -> u64 {
    match analysis {
        Analysis::Kim2013 | Analysis::UcbUnion => {
            let mut reused: [u64; W] = std::array::from_fn(|word| union[word]);
            for holder in holders {
                let more = if analysis == Analysis::Kim2013 { holder.partitions } else { holder.useful };
                add::<W>(&mut reused, &more.0);
            }
            common::<W>(&above.partitions.0, &reused)
        }
        Analysis::UcbOnly => holders.map(|holder| u64::from(holder.useful.len())).fold(hit, u64::max),
        Analysis::EcbUnion => holders.map(|holder| common::<W>(&holder.useful.0, union)).fold(hit, u64::max),
        _ => hit,
    }
}

impl Workspace {
    /// Clears the workspace for `core`, and computes what does not depend on windows: ω(j,n) and the blocking time of every task.
    fn prepare<const W: usize>(&mut self, core: &[CoreTask], charges: Charges, analysis: Analysis) {
        let Self { rows, first_omega, first_displaced, blocking, windows, bounds, below, .. } = self;
        let Charges { refill_ns, preemption_ns, cold_start, .. } = charges;
        rows.clear();
        bounds.clear();
        windows.clear();
        below.clear();
        below.resize(core.len() * W, 0);

        let mut uses = Uses::<W>::NONE;
        core.iter().for_each(|task| uses.add(&task.partitions.0));
        let cold = if cold_start { u64::MAX } else { 0 };
        let displaced = uses.twice.map(|word| word | cold);
        first_displaced.clear();
        first_displaced.extend(displaced);
        first_omega.clear();
        let warm_up = |task: &CoreTask| common::<W>(&task.partitions.0, &displaced).saturating_mul(refill_ns);
        first_omega.extend(core.iter().map(|task| warm_up(task).saturating_add(preemption_ns)));
        blocking.prepare(core, first_omega);
        if analysis == Analysis::PersistenceMultiset {
            // What jobs refill of their partitions when they begin is counted over the whole window.
            first_omega.fill(preemption_ns);
        }
    }
}

/// Returns the bounds of all tasks of a core, highest priority first. `conditions`: [`Conditions`], or [`Charges`] alone.
pub fn analyze<'a>(core: &[CoreTask], conditions: impl Into<Conditions<'a>>, analysis: Analysis) -> Vec<Bound> {
    let mut workspace = Workspace::default();
    dispatch::<true>(core, conditions.into(), analysis, None, &mut workspace);
    workspace.bounds
}

/// Returns the verdicts of all tasks of a core, highest priority first, without the parts of the bounds. The memory of `workspace` is
/// reused.
pub fn responses<'a, 'b, C: Into<Conditions<'b>>>(
    core: &[CoreTask],
    conditions: C,
    analysis: Analysis,
    workspace: &'a mut Workspace,
) -> impl Iterator<Item = Verdict> + use<'a, 'b, C> {
    dispatch::<false>(core, conditions.into(), analysis, None, workspace);
    workspace.bounds.iter().map(|bound| bound.verdict)
}

/// Whether every task of the core meets its deadline.
pub fn schedulable<'a>(
    core: &[CoreTask],
    conditions: impl Into<Conditions<'a>>,
    analysis: Analysis,
    workspace: &mut Workspace,
) -> bool {
    dispatch::<false>(core, conditions.into(), analysis, None, workspace);
    workspace.bounds.iter().all(|bound| bound.verdict != Verdict::Misses)
}

/// Work that delays one job in a busy period in which the CPU was withheld.
#[derive(Clone, Copy, Debug)]
pub(super) struct Backlog {
    /// Index of the task.
    pub(super) index: usize,
    /// Number of earlier jobs of the task itself in the busy period.
    pub(super) jobs: u64,
    /// Time that the earlier jobs and the withheld CPU cost, in ns.
    pub(super) extra_ns: u64,
    /// Longest time, in ns, from the release of a task below to the busy period in which the interrupt of this release is served.
    pub(super) early_ns: u64,
    /// Longest window of interest, in ns.
    pub(super) most_ns: u64,
}

/// Returns the window of the task with this backlog, from the beginning of the busy period to the completion of its job, in ns; `None` if
/// the window is longer than the longest of interest.
///
/// If the CPU was withheld, the windows of the tasks above are longer than their bounds. So the multiset forms then assume that every job
/// above a task can preempt it.
pub(super) fn window_with(
    core: &[CoreTask],
    charges: Charges,
    analysis: Analysis,
    backlog: Backlog,
    workspace: &mut Workspace,
) -> Option<u64> {
    dispatch::<false>(core, charges.into(), analysis, Some(backlog), workspace);
    let response_ns = workspace.bounds.last()?.verdict.response_ns()?;
    Some(response_ns - core[backlog.index].jitter_ns)
}

fn dispatch<const PARTS: bool>(
    core: &[CoreTask],
    conditions: Conditions,
    analysis: Analysis,
    backlog: Option<Backlog>,
    workspace: &mut Workspace,
) {
    // Nearly every machine has at most 64 partitions, and a word is much faster than sixteen.
    if core.iter().all(|task| task.partitions.0[1..].iter().all(|&word| word == 0)) {
        iterate::<1, PARTS>(core, conditions, analysis, backlog, workspace);
    } else {
        iterate::<WORDS, PARTS>(core, conditions, analysis, backlog, workspace);
    }
    remove_bounds(core, conditions.charges.by(analysis), &mut workspace.bounds);
}

/// Partitions used by one task or more, and by two or more.
struct Uses<const W: usize> {
    once: [u64; W],
    twice: [u64; W],
}

impl<const W: usize> Uses<W> {
    const NONE: Self = Self { once: [0; W], twice: [0; W] };

    fn add(&mut self, partitions: &[u64; WORDS]) {
        for ((once, twice), word) in self.once.iter_mut().zip(&mut self.twice).zip(partitions) {
            *twice |= *once & word;
            *once |= word;
        }
    }
}

fn add<const W: usize>(union: &mut [u64; W], partitions: &[u64; WORDS]) {
    union.iter_mut().zip(partitions).for_each(|(word, more)| *word |= more);
}

pub(super) fn common<const W: usize>(a: &[u64; WORDS], b: &[u64]) -> u64 {
    (0..W).map(|word| u64::from((a[word] & b[word]).count_ones())).sum()
}

fn iterate<const W: usize, const PARTS: bool>(
    core: &[CoreTask],
    conditions: Conditions,
    analysis: Analysis,
    backlog: Option<Backlog>,
    workspace: &mut Workspace,
) {
    let charges = conditions.charges.by(analysis);
    let supply = conditions.supply.filter(|supply| !supply.is_full());
    let (refill, interrupt_ns) = (charges.refill_ns, charges.release_interrupt_ns);
    let multiset = analysis.is_multiset();
    workspace.prepare::<W>(core, charges, analysis);
    let Workspace { rows, first_omega, first_displaced, blocking, holders, windows, bounds, below, scratch } =
        workspace;

    // Partitions used by two or more tasks of hep(i).
    let mut uses = Uses::<W>::NONE;
    let mut reached: u64 = 0;
    for (i, task) in core.iter().enumerate() {
        uses.add(&task.partitions.0);
        blocking.holders(core, i, holders);
        let backlog = backlog.filter(|backlog| backlog.index == i);
        let withheld = supply.map(|supply| Withheld { supply, reload_ns: reload_ns(core, charges, i) });
        let level = Level::<W> { core, i, charges, analysis, holders, shared: uses.twice, backlog, withheld };
        let own_ns = charges.execution_ns(task);
        // `fixed` sums the terms that do not depend on the window.
        let mut fixed = own_ns.saturating_add(first_omega[i]).saturating_add(blocking.time_ns[i]);
        let extra_ns = backlog.map_or(0, |backlog| backlog.extra_ns);
        fixed = fixed.saturating_add(interrupt_ns).saturating_add(extra_ns);
        let first_extra = level.descend_all(rows, first_omega, below);
        fixed = fixed.saturating_add(first_extra);

        // The iteration may start from the window of i-1, unless that window contains blocking that τ(i) does not have, or refills after the core
        // was withheld. The delays of the multiset forms may also shrink from i-1 to i, so these forms start anew.
        let extend = i > 0 && !multiset && supply.is_none() && blocking.grows_at(core, i);
        let start = if extend { reached.saturating_add(own_ns).saturating_add(first_omega[i]) } else { fixed };
        if !extend {
            rows.iter_mut().for_each(|row| (row.jobs, row.until) = (0, 0));
        }
        let delays = |window| level.further_interrupts(window).saturating_add(level.withheld_ns(window));
        let deadline = backlog.map_or(task.deadline_ns.checked_sub(task.jitter_ns), |backlog| Some(backlog.most_ns));
        let (window, met, counted) = if multiset {
            let windows: &[Option<u64>] = if extra_ns > 0 { &[] } else { &windows[..] };
            let (first, shared) = (&first_displaced[..], &uses.twice[..]);
            let multiset = Multiset { core, i, windows, unions: below, holders, first, shared };
            let best = multiset.window::<W>(analysis, rows, fixed, deadline, (refill, &delays), scratch);
            if PARTS {
                // The parts of the bound need the job counts of the better form.
                rows.iter_mut().zip(core).for_each(|(row, above)| count_jobs(row, above, best.0));
            }
            best
        } else {
            let (window, met) = settle(core, rows, start, fixed, deadline, |_, window| delays(window));
            (window, met, Refills::default())
        };
        let response_ns = window.saturating_add(task.jitter_ns);
        let verdict = if met { Verdict::Meets { response_ns } } else { Verdict::Misses };
        let (blocking_ns, jitter_ns) = (blocking.time_ns[i], task.jitter_ns);
        let alone = Bound { verdict, own_ns, blocking_ns, jitter_ns, ..Bound::NOTHING };
        let first = first_omega[i].saturating_add(first_extra);
        bounds.push(if PARTS { level.with_parts(alone, rows, window, first, counted) } else { alone });
        if backlog.is_some() {
            return;
        }
        reached = window;
        if multiset {
            windows.push(met.then_some(window));
        }
        // From here on, τ(i) is one of the tasks above.
        let mut row = Row::default();
        count_jobs(&mut row, task, window);
        rows.push(row);
        if analysis == Analysis::EcbUnion || multiset {
            below[i * W..(i + 1) * W].copy_from_slice(&uses.once);
        }
    }
}

/// The task τ(i) that is being analyzed.
struct Level<'a, const W: usize> {
    core: &'a [CoreTask],
    i: usize,
    charges: Charges,
    analysis: Analysis,
    /// Tasks below i that may hold a lock while τ(i) waits.
    holders: &'a [Holder],
    /// Partitions used by two tasks or more of hep(i).
    shared: [u64; W],
    /// Backlog of τ(i); `None` if the window of τ(i) ends before its second job is released.
    backlog: Option<Backlog>,
    /// Time that may be withheld from the core; `None` if it is never withheld.
    withheld: Option<Withheld<'a>>,
}

/// Time that may be withheld from a core, and its further cost for τ(i).
struct Withheld<'a> {
    supply: &'a Supply,
    /// Time, in ns, to refill the partitions that are displaced while the core is withheld once.
    reload_ns: u64,
}

impl<const W: usize> Level<'_, W> {
    /// Updates the rows of all tasks above i. Returns the time that the first of their jobs add, in ns: ω(j,n) - ω(j,i) for each.
    fn descend_all(&self, rows: &mut [Row], first_omega: &[u64], unions: &mut [u64]) -> u64 {
        let mut first_extra: u64 = 0;
        for (j, row) in rows.iter_mut().enumerate() {
            self.descend(row, j, &mut unions[j * W..(j + 1) * W]);
            first_extra = first_extra.saturating_add(first_omega[j] - row.omega);
        }
        first_extra
    }

    /// Updates the row of τ(j) for i: ω(j,i), γ(j,i), and the time that every job adds. `union`: as for [`Row::hit`].
    fn descend(&self, row: &mut Row, j: usize, union: &mut [u64]) {
        let above = &self.core[j];
        let mut displaced = self.shared;
        let mut hit = row.hit::<W>(above, &self.core[self.i], union, self.analysis);
        if !self.holders.is_empty() {
            let preempted = || preempted_by(self.holders, j).map(|holder| self.core[holder]);
            preempted().for_each(|holder| add::<W>(&mut displaced, &holder.partitions.0));
            hit = hit_with_holders::<W>(above, preempted(), union, self.analysis, hit);
        }
        let Charges { refill_ns, preemption_ns, release_interrupt_ns, .. } = self.charges;
        let refills = |partitions: u64| partitions.saturating_mul(refill_ns).saturating_add(preemption_ns);
        let warm_up = match self.analysis {
            Analysis::PersistenceMultiset => 0,
            _ => common::<W>(&above.partitions.0, &displaced),
        };
        (row.omega, row.gamma) = (refills(warm_up), refills(hit));
        let executes = self.charges.execution_ns(above).saturating_add(release_interrupt_ns);
        row.cost = executes.saturating_add(row.omega).saturating_add(row.gamma);
    }

    /// Returns the time, in ns, that release interrupts take in a window, apart from those that are charged with a job: interrupts for the
    /// tasks below i and for later jobs of τ(i). They delay whatever runs.
    fn further_interrupts(&self, window: u64) -> u64 {
        if self.charges.release_interrupt_ns == 0 {
            return 0;
        }
        let (early_ns, later) = self.backlog.map_or((0, 0), |backlog| {
            let charged = backlog.jobs.saturating_add(1);
            (backlog.early_ns, jobs_in(window, &self.core[self.i]).saturating_sub(charged))
        });
        let window = window.saturating_add(early_ns);
        let below = self.core[self.i + 1..].iter().map(|task| jobs_in(window, task));
        let releases = below.fold(later, u64::saturating_add);
        releases.saturating_mul(self.charges.release_interrupt_ns)
    }

    /// Returns the time, in ns, for which the core may be withheld in a window, with the refills of partitions that are displaced in this time and
    /// before the window: `B(w) + (N(w) + 1) reload`.
    fn withheld_ns(&self, window: u64) -> u64 {
        self.withheld.as_ref().map_or(0, |withheld| {
            let times = withheld.supply.interruptions(window).saturating_add(1);
            withheld.supply.withheld_ns(window).saturating_add(times.saturating_mul(withheld.reload_ns))
        })
    }

    /// Returns `alone` with the parts that depend on the window. `first_ns`: warm-up delays that are paid once, in ns. `counted`: the
    /// refills that are not part of the rows.
    fn with_parts(&self, alone: Bound, rows: &[Row], window: u64, first_ns: u64, counted: Refills) -> Bound {
        let interrupt_ns = self.charges.release_interrupt_ns;
        let counted_ns = |refills: u64| refills.saturating_mul(self.charges.refill_ns);
        let (warm_ups_ns, preempted_ns) = (counted_ns(counted.warm_ups), counted_ns(counted.preempted));
        let above_ns = interrupt_ns.saturating_add(total(rows, |_, _| interrupt_ns));
        Bound {
            interference_ns: total(rows, |j, _| self.charges.execution_ns(&self.core[j])),
            omega_ns: first_ns.saturating_add(total(rows, |_, row| row.omega)).saturating_add(warm_ups_ns),
            gamma_ns: total(rows, |_, row| row.gamma).saturating_add(preempted_ns),
            interrupts_ns: above_ns.saturating_add(self.further_interrupts(window)),
            withheld_ns: self.withheld_ns(window),
            ..alone
        }
    }
}

/// Returns the sum of `part` over all higher-priority jobs in the window. `part` gives what each job of τ(j) adds.
fn total(rows: &[Row], part: impl Fn(usize, &Row) -> u64) -> u64 {
    rows.iter().enumerate().map(|(j, row)| row.jobs.saturating_mul(part(j, row))).fold(0, u64::saturating_add)
}

fn count_jobs(row: &mut Row, task: &CoreTask, window: u64) {
    row.jobs = jobs_in(window, task);
    row.until = row.jobs.saturating_mul(task.period_ns).saturating_sub(task.jitter_ns);
}

/// Returns the number of jobs of `task` in a window: `ceil((window + J) / T)`.
pub(super) fn jobs_in(window: u64, task: &CoreTask) -> u64 {
    window.saturating_add(task.jitter_ns).div_ceil(task.period_ns)
}

/// Grows the window from `window` until it holds all demand, or passes the deadline. Returns the window, in ns, and whether it settled in
/// time. `delay` gives the demand in a window that is not in the rows, in ns.
pub(super) fn settle(
    core: &[CoreTask],
    rows: &mut [Row],
    mut window: u64,
    fixed: u64,
    deadline: Option<u64>,
    mut delay: impl FnMut(&[Row], u64) -> u64,
) -> (u64, bool) {
    let Some(deadline) = deadline else { return (window, false) };
    let mut demand = rows.iter().fold(fixed, |sum, row| sum.saturating_add(row.jobs.saturating_mul(row.cost)));
    // Every iteration but the last makes the window at least a nanosecond longer.
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
