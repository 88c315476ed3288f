//! How late each task on a core can be, when tasks share cache partitions.
//!
//! A task that shares partitions pays twice. At the start of a job it refills what others displaced since its last job:
//! the *warm-up delay* ω. When a higher-priority job preempts it, it refills what that job displaced: the *preemption
//! delay* γ (CRPD). [Kim2013, §4.2] bounds both in units of Δ, the time to refill one partition:
//!
//! ```text
//! ω(j,i) = |S(j) ∩ ∪{S(k) : k ≠ j, k ∈ hep(i)}| Δ          hep(i)   = priorities of i and above
//! γ(j,i) = |S(j) ∩ ∪{S(k) : k ∈ int(j,i)}| Δ               int(j,i) = below j, down to and including i
//! R = C(i) + ω(i,n) + Σ j∈hp(i): n(j) C(j) + ω(j,n) + (n(j) - 1) ω(j,i) + n(j) γ(j,i),   n(j) = ceil(R / T(j))   (2)
//! ```
//!
//! n is the lowest-priority task of the core. The first job of τ(j) in the window may follow any task of the core and
//! pays ω(j,n); later ones can only follow tasks of hep(i). All families here share this treatment of ω and differ in
//! how they bound γ. All assume what [`ASSUMPTIONS`] says.

mod blocking;
pub mod falsify;
mod families;
mod priorities;
mod recurrence;
pub mod reservation;
pub mod schedule;
pub mod sensitivity;

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::taskset::read::Allotted;
use crate::taskset::{Holds, PartitionSet, TaskSet};
pub use families::{Workspace, analyze, responses, schedulable};
pub use priorities::{Audsley, audsley};
pub use recurrence::{Recurrence, Steal};

/// What every bound here rests on; printed with the results.
pub const ASSUMPTIONS: [&str; 7] = [
    "tasks do not suspend themselves, and deadlines do not exceed periods",
    "partitions are exclusive to a core, and replacement within one is LRU",
    "C^p was measured with p partitions warm and nothing else running; a measured maximum is no proof of a bound",
    "a partition is refilled in at most the given time, clean or dirty, whatever the other cores do",
    "the kernel's own use of the partitions is part of C^p or of the switch cost",
    "locks nest and follow the immediate priority ceiling protocol; a nonpreemptive interval contains a critical section, lies within it, or is apart from it",
    "every task of a core has a priority of its own, and nothing of higher priority runs there",
];

/// An analysis, by name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Analysis {
    /// [Kim2013, eq. 2]
    #[default]
    Kim2013,
    /// No cache delays at all: the paper's NoCInt. Optimistic whenever partitions are shared.
    NoInterference,
    /// γ: all partitions of the preempting task. \[Busquets1996\]
    EcbOnly,
    /// γ: the largest useful set among the tasks that can be preempted. \[Lee1998\]
    UcbOnly,
    /// γ: the preempting task's partitions that are useful to any task in between. \[Tan2007\]
    UcbUnion,
    /// γ: the largest useful set hit by the preempting task and everything above it. \[Altmeyer2011\]
    EcbUnion,
    /// UCB-union counted over all preemptions of the window together. \[Altmeyer2012\]
    UcbUnionMultiset,
    /// ECB-union counted over all preemptions of the window together. \[Altmeyer2012\]
    EcbUnionMultiset,
    /// For each task the smaller of the two multiset bounds. \[Altmeyer2012\]
    CombinedMultiset,
}

impl Analysis {
    /// Every analysis, in the order of the documentation.
    pub const ALL: [Self; 9] = [
        Self::Kim2013,
        Self::NoInterference,
        Self::EcbOnly,
        Self::UcbOnly,
        Self::UcbUnion,
        Self::EcbUnion,
        Self::UcbUnionMultiset,
        Self::EcbUnionMultiset,
        Self::CombinedMultiset,
    ];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Kim2013 => "kim2013",
            Self::NoInterference => "no-interference",
            Self::EcbOnly => "ecb-only",
            Self::UcbOnly => "ucb-only",
            Self::UcbUnion => "ucb-union",
            Self::EcbUnion => "ecb-union",
            Self::UcbUnionMultiset => "ucb-union-multiset",
            Self::EcbUnionMultiset => "ecb-union-multiset",
            Self::CombinedMultiset => "combined-multiset",
        }
    }
}

impl fmt::Display for Analysis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// No analysis has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not an analysis\n  hint: there are kim2013, no-interference, ecb-only, ucb-only, ucb-union, ecb-union, ucb-union-multiset, ecb-union-multiset, combined-multiset"
)]
pub struct UnknownAnalysis(String);

impl FromStr for Analysis {
    type Err = UnknownAnalysis;

    fn from_str(name: &str) -> Result<Self, UnknownAnalysis> {
        Self::ALL.into_iter().find(|analysis| analysis.name() == name).ok_or_else(|| UnknownAnalysis(name.to_owned()))
    }
}

/// A task with its partitions decided. A core is a slice of these, highest priority first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CoreTask {
    /// Worst-case execution time with as many warm partitions as it has, C.
    pub wcet_ns: u64,
    /// Shortest time between releases, T.
    pub period_ns: u64,
    /// Relative deadline, `D <= T`.
    pub deadline_ns: u64,
    /// Longest delay between arrival and release.
    pub jitter_ns: u64,
    /// Longest time that one lower-priority task, it is not known which, executes while this one waits for it.
    pub blocking_ns: u64,
    /// Longest stretch in which it cannot be preempted.
    pub nonpreemptive_ns: u64,
    /// Locks it takes, under the immediate priority ceiling protocol.
    pub holds: Holds,
    /// Partitions it may load into, `S(i)`: its evicting cache blocks.
    pub partitions: PartitionSet,
    /// Those whose contents it uses again after a preemption: its useful cache blocks. All of them, unless known better.
    pub useful: PartitionSet,
}

impl CoreTask {
    /// A task with D = T that uses all its partitions again, and nothing else that delays it.
    pub fn new(wcet_ns: u64, period_ns: u64, partitions: PartitionSet) -> Self {
        Self {
            wcet_ns,
            period_ns,
            deadline_ns: period_ns,
            jitter_ns: 0,
            blocking_ns: 0,
            nonpreemptive_ns: 0,
            holds: Holds::default(),
            partitions,
            useful: partitions,
        }
    }
}

/// What the hardware and the kernel charge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Charges {
    /// Time to refill a partition, Δ.
    pub refill_ns: u64,
    /// Cost of a context switch; a job pays for two.
    pub switch_ns: u64,
    /// Cost of releasing a job by an interrupt, in ns: every release of every task of the core delays whatever runs there.
    pub release_interrupt_ns: u64,
    /// Time to refill private levels (L1, TLB) that others displaced, in ns: every job pays it once when it begins, and
    /// once more for the job that it preempts.
    pub preemption_ns: u64,
    /// First jobs find even private partitions cold.
    pub cold_start: bool,
}

impl Charges {
    /// Those of the platform of `set`.
    pub fn of(set: &TaskSet) -> Self {
        let platform = set.platform();
        Self {
            refill_ns: platform.refill_ns,
            switch_ns: platform.switch_ns,
            release_interrupt_ns: platform.release_interrupt_ns,
            preemption_ns: platform.preemption_ns,
            cold_start: platform.cold_start,
        }
    }

    /// What `analysis` charges of these: without interference nothing ever has to be refilled.
    pub(crate) fn by(self, analysis: Analysis) -> Self {
        match analysis {
            Analysis::NoInterference => Self { refill_ns: 0, preemption_ns: 0, ..self },
            _ => self,
        }
    }

    /// Execution of a job, with its switches, in ns.
    fn execution_ns(self, task: &CoreTask) -> u64 {
        task.wcet_ns.saturating_add(self.switch_ns.saturating_mul(2))
    }

    /// What every job costs besides its execution and its partitions, in ns: two switches, its release, and private levels
    /// that it finds displaced.
    pub(crate) fn per_job_ns(self) -> u64 {
        let switches = self.switch_ns.saturating_mul(2);
        switches.saturating_add(self.release_interrupt_ns).saturating_add(self.preemption_ns)
    }
}

/// Whether a task meets its deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Always: no job responds later than this after its arrival.
    Meets {
        /// The bound on the response time in ns, at most the deadline.
        response_ns: u64,
    },
    /// Not shown to: the bound passes the deadline.
    Misses,
}

impl Verdict {
    /// The bound, if it is within the deadline.
    pub fn response_ns(self) -> Option<u64> {
        match self {
            Self::Meets { response_ns } => Some(response_ns),
            Self::Misses => None,
        }
    }
}

/// The bound for one task and what it consists of. For a miss, the parts at the moment the deadline was passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Bound {
    /// Whether the deadline holds.
    #[serde(skip)]
    pub verdict: Verdict,
    /// Its own execution, with its switches.
    pub own_ns: u64,
    /// Execution of higher-priority jobs, with their switches.
    pub interference_ns: u64,
    /// Warm-up delays, its own and those of higher-priority jobs.
    pub omega_ns: u64,
    /// Preemption delays.
    pub gamma_ns: u64,
    /// Blocking by a lower-priority task, with what it refills.
    pub blocking_ns: u64,
    /// Interrupts that release jobs of this and all other tasks of the core.
    pub interrupts_ns: u64,
    /// Release jitter.
    pub jitter_ns: u64,
}

/// The bound of one task of a set, written out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct BoundOfTask {
    /// Its name.
    pub name: String,
    /// Where it runs.
    pub cpu: u32,
    /// The bound; `None` where it passes the deadline.
    pub response_ns: Option<u64>,
    /// Its deadline.
    pub deadline_ns: u64,
    /// What the bound consists of.
    #[serde(flatten)]
    pub parts: Bound,
}

impl Bound {
    /// A miss that consists of nothing.
    const NOTHING: Self = Self {
        verdict: Verdict::Misses,
        own_ns: 0,
        interference_ns: 0,
        omega_ns: 0,
        gamma_ns: 0,
        blocking_ns: 0,
        interrupts_ns: 0,
        jitter_ns: 0,
    };

    /// Returns this bound with the name of `task` of `set`, its period and deadline, and `cpu`.
    pub fn of_task(&self, set: &TaskSet, task: usize, cpu: u32) -> BoundOfTask {
        let known = &set.tasks()[task];
        BoundOfTask {
            name: known.name.clone(),
            cpu,
            response_ns: self.verdict.response_ns(),
            deadline_ns: known.deadline_ns,
            parts: *self,
        }
    }
}

/// The tasks of one core in priority order, as the analyses want them.
///
/// `members`: pairs of a task's index in `set` and its partitions.
pub fn core_tasks(set: &TaskSet, members: &[(usize, PartitionSet)]) -> Vec<CoreTask> {
    let mut ordered = members.to_vec();
    ordered.sort_by_key(|&(task, _)| set.rank(task));
    ordered.iter().map(|&(task, partitions)| core_task(set, task, partitions)).collect()
}

/// The tasks that an allocation gives one core, in priority order: their indices in `set`, and as the analyses want them.
pub fn allotted(set: &TaskSet, members: &[Allotted]) -> (Vec<usize>, Vec<CoreTask>) {
    let mut ordered = members.to_vec();
    ordered.sort_by_key(|member| set.rank(member.task));
    let of = |it: &Allotted| CoreTask { useful: it.useful, ..core_task(set, it.task, it.partitions) };
    ordered.iter().map(|member| (member.task, of(member))).unzip()
}

/// `task` of `set` with these partitions. Panics if there are none, or more than the machine has.
pub fn core_task(set: &TaskSet, task: usize, partitions: PartitionSet) -> CoreTask {
    let known = &set.tasks()[task];
    let count = partitions.len() as usize;
    assert!((1..=known.wcet_ns.len()).contains(&count), "C^p is known for p = 1..{}, not {count}", known.wcet_ns.len());
    CoreTask {
        wcet_ns: known.wcet_ns[count - 1],
        period_ns: known.period_ns,
        deadline_ns: known.deadline_ns,
        jitter_ns: known.jitter_ns,
        blocking_ns: known.blocking_ns,
        nonpreemptive_ns: known.nonpreemptive_ns,
        holds: set.holds(task),
        partitions,
        useful: partitions,
    }
}

/// Utilization of a core, cache delays included. [Kim2013, eq. 1]
///
/// `U = Σ (C(i) + ω(i,n) + γ(i,n)) / T(i)`, with the costs of switches, releases and private levels in C(i). What a planner
/// minimizes; as a schedulability test see [`passes_utilization_test`].
pub fn utilization(core: &[CoreTask], charges: Charges) -> f64 {
    let mut total = 0.0;
    each_utilization(core, charges, |_, share| total += share);
    total
}

/// What each task adds to the [`utilization`] of its core, lowest priority first: its place in `core`, its share.
pub fn each_utilization(core: &[CoreTask], charges: Charges, mut each: impl FnMut(usize, f64)) {
    let (mut once, mut twice) = (PartitionSet::default(), PartitionSet::default());
    for task in core {
        twice = twice.union(&once.intersection(&task.partitions));
        once = once.union(&task.partitions);
    }
    let mut below = PartitionSet::default();
    for (place, task) in core.iter().enumerate().rev() {
        let refills = task.partitions.intersection(&twice).len() + task.partitions.intersection(&below).len();
        // The lowest task preempts nobody.
        let preempts = if place + 1 < core.len() { charges.preemption_ns as f64 } else { 0.0 };
        let delays = f64::from(refills) * charges.refill_ns as f64 + charges.per_job_ns() as f64 + preempts;
        each(place, (task.wcet_ns as f64 + delays) / task.period_ns as f64);
        below = below.union(&task.partitions);
    }
}

/// The right side of Eq. 1: `n (2^(1/n) - 1)`, below which rate-monotonic tasks with D = T always meet their deadlines.
pub fn liu_layland_bound(tasks: usize) -> f64 {
    let n = tasks.max(1) as f64;
    n * (libm::exp2(1.0 / n) - 1.0)
}

/// Eq. 1 as a test: sufficient, and only for D = T under rate-monotonic priorities (checked here).
///
/// It is weak: the paper's own Table 2 fails it (0.7814 > 0.7568) and meets all deadlines by Eq. 2.
pub fn passes_utilization_test(core: &[CoreTask], charges: Charges) -> bool {
    let implicit = core.iter().all(|task| {
        task.deadline_ns == task.period_ns
            && task.jitter_ns == 0
            && task.blocking_ns == 0
            && task.nonpreemptive_ns == 0
            && task.holds.is_empty()
    });
    let rate_monotonic = core.windows(2).all(|pair| pair[0].period_ns <= pair[1].period_ns);
    // Interrupts of slow tasks delay fast ones: that order is not rate-monotonic.
    let in_order = rate_monotonic && charges.release_interrupt_ns == 0;
    implicit && in_order && !charges.cold_start && utilization(core, charges) <= liu_layland_bound(core.len())
}

#[cfg(test)]
mod tests;
