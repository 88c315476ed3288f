//! Bounds on the response times of the tasks on a core, where tasks share cache partitions.
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
//! n is the lowest-priority task of the core. The first job of τ(j) in the window may follow any task of the core and pays ω(j,n); later jobs can
//! only follow tasks of hep(i). All families but the last share this treatment of ω and differ in how they bound γ. All families rest on the
//! [`assumptions`]. If nothing is assumed about the replacement policy, refills have no limit, and tasks that share partitions have no bound.
//!
//! If a hypervisor or the kernel may withhold the core, the analysis of restricted supply applies to all families alike: R is the least time such
//! that the part of it that is not withheld holds the demand. \[Prosa\]
//!
//! ```text
//! R - B(R) >= W(R) + (N(R) + 1) (Δ |∪{S(k) : k ∈ hep(i)}| + P)
//! ```
//!
//! W is the right side of (2). B and N are the most time withheld in a window, and the most times ([`Supply`]). Each time may displace all
//! partitions. One further time is charged for partitions that were displaced before the window. docs/reference/planning.md has the proof.

mod blocking;
pub mod falsify;
mod families;
mod multiset;
mod persistence;
mod priorities;
mod recurrence;
pub mod reservation;
pub mod schedule;
pub mod sensitivity;
pub mod sharing;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::named;
use crate::replacement::Replacement;
use crate::supply::Supply;
use crate::taskset::read::Allotted;
use crate::taskset::{Holds, PartitionSet, TaskSet};
pub use families::{Workspace, analyze, responses, schedulable};
pub use priorities::{Audsley, audsley};
pub use recurrence::{Recurrence, Steal};

/// Returns the assumptions that every bound here rests on; they are printed with the results. `replacement`: the assumption about the replacement
/// policy.
pub fn assumptions(replacement: Replacement) -> [&'static str; 7] {
    let [partitions, refills, kernel] = match replacement {
        Replacement::Lru => [
            "partitions are exclusive to a core, and replacement within one is LRU",
            "a partition is refilled in at most the given time, clean or dirty, and private levels in theirs, whatever the other cores do",
            "the kernel's own use of the partitions is part of C^p or of the switch cost",
        ],
        Replacement::Any => [
            "partitions are exclusive to a task, memory that it shares with others included, and nothing outside a partition changes which of its lines are replaced: true of sets, not of all ways",
            "private levels (L1, TLB) are refilled in at most the given time, whatever their replacement policy and whatever the other cores do",
            "the kernel's own use of the partitions, and what this changes in their replacement, is part of C^p or of the switch cost",
        ],
    };
    [
        "tasks do not suspend themselves, and deadlines do not exceed periods",
        partitions,
        "C^p was measured with p partitions warm and nothing else running; a measured maximum does not prove a bound",
        refills,
        kernel,
        "locks nest and follow the immediate priority ceiling protocol; a nonpreemptive interval contains a critical section, lies within it, or is apart from it",
        "every task of a core has a priority of its own, and nothing of higher priority runs there",
    ]
}

named! {
    /// A response-time analysis.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
    #[serde(rename_all = "kebab-case")]
    pub enum Analysis, "an analysis" {
        /// γ: the preempting task's partitions that any task in between uses. [Kim2013, eq. 2]
        #[default]
        Kim2013 = "kim2013",
        /// No cache delays at all: NoCInt of \[Kim2013\]. Optimistic whenever partitions are shared.
        NoInterference = "no-interference",
        /// γ: all partitions of the preempting task. \[Busquets1996\]
        EcbOnly = "ecb-only",
        /// γ: the largest useful set among the tasks that can be preempted. \[Lee1998\]
        UcbOnly = "ucb-only",
        /// γ: the preempting task's partitions that are useful to any task in between. \[Tan2007\]
        UcbUnion = "ucb-union",
        /// γ: the most partitions of one useful set that the preempting task and all tasks above it displace. \[Altmeyer2011\]
        EcbUnion = "ecb-union",
        /// UCB-union counted over all preemptions of the window together. \[Altmeyer2012\]
        UcbUnionMultiset = "ucb-union-multiset",
        /// ECB-union counted over all preemptions of the window together. \[Altmeyer2012\]
        EcbUnionMultiset = "ecb-union-multiset",
        /// For each task the smaller of the two multiset bounds. \[Altmeyer2012\]
        CombinedMultiset = "combined-multiset",
        /// The combined multiset, where a partition is loaded no more often than other tasks can have displaced it. docs/reference/planning.md
        /// derives it.
        PersistenceMultiset = "persistence-multiset",
    }
}

impl Analysis {
    /// Whether refills are counted over the whole window, and not for each preemption.
    pub(crate) fn is_multiset(self) -> bool {
        use Analysis::{CombinedMultiset, EcbUnionMultiset, PersistenceMultiset, UcbUnionMultiset};
        matches!(self, UcbUnionMultiset | EcbUnionMultiset | CombinedMultiset | PersistenceMultiset)
    }
}

/// A task with its partitions decided. A core is a slice of these, highest priority first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CoreTask {
    /// Worst-case execution time C, in ns, with as many warm partitions as the task has.
    pub wcet_ns: u64,
    /// Shortest time T between arrivals, in ns.
    pub period_ns: u64,
    /// Relative deadline in ns, `D <= T`.
    pub deadline_ns: u64,
    /// Longest delay between arrival and release, in ns.
    pub jitter_ns: u64,
    /// Longest time that a lower-priority task executes while this task waits for it, in ns. It is not known which task
    /// that is.
    pub blocking_ns: u64,
    /// Longest interval in which the task cannot be preempted, in ns.
    pub nonpreemptive_ns: u64,
    /// Locks that the task takes, under the immediate priority ceiling protocol.
    pub holds: Holds,
    /// Partitions that the task may load into, `S(i)`: its evicting cache blocks.
    pub partitions: PartitionSet,
    /// Partitions whose contents the task uses again after a preemption: its useful cache blocks. All its partitions,
    /// unless fewer are known to be useful.
    pub useful: PartitionSet,
}

impl CoreTask {
    /// Creates a task with D = T that uses all its partitions again after a preemption, without jitter, locks, blocking and
    /// nonpreemptive intervals.
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

/// Costs of the hardware and the kernel that the analyses charge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Charges {
    /// Time Δ to refill a partition, in ns.
    pub refill_ns: u64,
    /// Cost of a context switch, in ns; a job pays for two.
    pub switch_ns: u64,
    /// Cost of releasing a job by an interrupt, in ns: every release of every task of the core delays whatever runs there.
    pub release_interrupt_ns: u64,
    /// Time to refill private levels (L1, TLB) that others displaced, in ns: every job pays it once when it begins, and
    /// once more for the job that it preempts.
    pub preemption_ns: u64,
    /// Whether first jobs find even private partitions cold.
    pub cold_start: bool,
    /// Assumption about the replacement policy. Only LRU makes Δ a bound on the refill of a displaced partition.
    #[serde(default)]
    pub replacement: Replacement,
}

impl Charges {
    /// Returns the charges of the platform of `set`.
    pub fn of(set: &TaskSet) -> Self {
        let platform = set.platform();
        Self {
            refill_ns: platform.refill_ns,
            switch_ns: platform.switch_ns,
            release_interrupt_ns: platform.release_interrupt_ns,
            preemption_ns: platform.preemption_ns,
            cold_start: platform.cold_start,
            replacement: platform.replacement,
        }
    }

    /// Returns the charges that `analysis` applies: without interference, nothing ever has to be refilled.
    pub(crate) fn by(self, analysis: Analysis) -> Self {
        match analysis {
            Analysis::NoInterference => Self { refill_ns: 0, preemption_ns: 0, replacement: Replacement::Lru, ..self },
            _ => self,
        }
    }

    /// Returns the execution time of a job with its context switches, in ns.
    fn execution_ns(self, task: &CoreTask) -> u64 {
        task.wcet_ns.saturating_add(self.switch_ns.saturating_mul(2))
    }

    /// Returns the cost of every job besides its execution and its partitions, in ns: two switches, its release, and the refill of displaced private
    /// levels.
    pub(crate) fn per_job_ns(self) -> u64 {
        let switches = self.switch_ns.saturating_mul(2);
        switches.saturating_add(self.release_interrupt_ns).saturating_add(self.preemption_ns)
    }
}

/// Conditions on a core that the analyses assume besides its tasks: costs, and the supply.
///
/// [`Charges`] alone stand for a core that is never withheld.
#[derive(Clone, Copy, Debug)]
pub struct Conditions<'a> {
    /// Costs of the hardware and the kernel.
    pub charges: Charges,
    /// The most time that may be withheld from the core; `None` if it is never withheld.
    pub supply: Option<&'a Supply>,
}

impl<'a> Conditions<'a> {
    /// Returns the conditions of the platform of `set`.
    pub fn of(set: &'a TaskSet) -> Self {
        Self { charges: Charges::of(set), supply: set.platform().supply.as_ref().map(|charged| &charged.steps) }
    }

    /// Returns the same conditions with another refill time Δ.
    pub fn with_refill(self, refill_ns: u64) -> Self {
        Self { charges: Charges { refill_ns, ..self.charges }, ..self }
    }
}

impl From<Charges> for Conditions<'_> {
    fn from(charges: Charges) -> Self {
        Self { charges, supply: None }
    }
}

/// Whether a task meets its deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The task always meets its deadline: no job completes later than `response_ns` after its arrival.
    Meets {
        /// The bound on the response time in ns, at most the deadline.
        response_ns: u64,
    },
    /// The task is not shown to meet its deadline: the bound exceeds the deadline.
    Misses,
}

impl Verdict {
    /// Returns the bound in ns; `None` if it exceeds the deadline.
    pub fn response_ns(self) -> Option<u64> {
        match self {
            Self::Meets { response_ns } => Some(response_ns),
            Self::Misses => None,
        }
    }
}

/// The bound of one task and its parts. For a miss, these are the parts at the moment at which the bound passed the
/// deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Bound {
    /// Whether the task meets its deadline.
    #[serde(skip)]
    pub verdict: Verdict,
    /// Execution of the task itself, with its switches, in ns.
    pub own_ns: u64,
    /// Execution of higher-priority jobs, with their switches, in ns.
    pub interference_ns: u64,
    /// Warm-up delays of the task itself and of higher-priority jobs, in ns.
    pub omega_ns: u64,
    /// Preemption delays, in ns.
    pub gamma_ns: u64,
    /// Blocking by a lower-priority task, with the refills of that task, in ns.
    pub blocking_ns: u64,
    /// Interrupts that release jobs of this and all other tasks of the core, in ns.
    pub interrupts_ns: u64,
    /// Time for which the core may be withheld, with the refills of partitions that are displaced in this time, in ns.
    pub withheld_ns: u64,
    /// Release jitter, in ns.
    pub jitter_ns: u64,
}

/// The bound of one task of a set, with the name of the task, as it is written to files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct BoundOfTask {
    /// Name of the task.
    pub name: String,
    /// CPU that the task runs on.
    pub cpu: u32,
    /// Bound on the response time, in ns; `None` if it exceeds the deadline.
    pub response_ns: Option<u64>,
    /// Relative deadline of the task, in ns.
    pub deadline_ns: u64,
    /// Parts of the bound.
    #[serde(flatten)]
    pub parts: Bound,
}

impl Bound {
    /// A miss whose parts are all 0.
    const NOTHING: Self = Self {
        verdict: Verdict::Misses,
        own_ns: 0,
        interference_ns: 0,
        omega_ns: 0,
        gamma_ns: 0,
        blocking_ns: 0,
        interrupts_ns: 0,
        withheld_ns: 0,
        jitter_ns: 0,
    };

    /// Returns this bound with `cpu`, and with the name and the deadline of `task` of `set`.
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

/// Returns the tasks of one core in priority order, in the form that the analyses use.
///
/// `members`: pairs of a task's index in `set` and its partitions.
pub fn core_tasks(set: &TaskSet, members: &[(usize, PartitionSet)]) -> Vec<CoreTask> {
    let mut ordered = members.to_vec();
    ordered.sort_by_key(|&(task, _)| set.rank(task));
    ordered.iter().map(|&(task, partitions)| core_task(set, task, partitions)).collect()
}

/// Returns the tasks that an allocation gives one core, in priority order: their indices in `set`, and the form that the
/// analyses use.
pub fn allotted(set: &TaskSet, members: &[Allotted]) -> (Vec<usize>, Vec<CoreTask>) {
    let mut ordered = members.to_vec();
    ordered.sort_by_key(|member| set.rank(member.task));
    let of = |it: &Allotted| CoreTask { useful: it.useful, ..core_task(set, it.task, it.partitions) };
    ordered.iter().map(|member| (member.task, of(member))).unzip()
}

/// Returns `task` of `set` with these partitions. Panics if there are none, or more than the task has execution times for.
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

/// Returns the utilization of a core, cache delays included. [Kim2013, eq. 1]
///
/// `U = Σ (C(i) + ω(i,n) + γ(i,n)) / T(i)`, with the costs of switches, releases and private levels in C(i). Planners
/// minimize this value. For its use as a schedulability test see [`passes_utilization_test`].
pub fn utilization(core: &[CoreTask], charges: Charges) -> f64 {
    let mut total = 0.0;
    each_utilization(core, charges, |_, share| total += share);
    total
}

/// Calls `each` with the index of every task in `core` and its share of the [`utilization`] of the core, lowest priority
/// first.
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

/// Returns the right side of Eq. 1: `n (2^(1/n) - 1)`. Up to this utilization, rate-monotonic tasks with D = T always meet
/// their deadlines.
pub fn liu_layland_bound(tasks: usize) -> f64 {
    let n = tasks.max(1) as f64;
    n * (libm::exp2(1.0 / n) - 1.0)
}

/// Whether Eq. 1 shows that all deadlines are met. The test is sufficient, and only for D = T under rate-monotonic
/// priorities (checked here).
///
/// The test is weak: the paper's own Table 2 fails it (0.7814 > 0.7568) and meets all deadlines by Eq. 2.
pub fn passes_utilization_test(core: &[CoreTask], charges: Charges) -> bool {
    let implicit = core.iter().all(|task| {
        task.deadline_ns == task.period_ns
            && task.jitter_ns == 0
            && task.blocking_ns == 0
            && task.nonpreemptive_ns == 0
            && task.holds.is_empty()
    });
    let rate_monotonic = core.windows(2).all(|pair| pair[0].period_ns <= pair[1].period_ns);
    // Interrupts of slow tasks delay fast tasks, so the priorities are not rate-monotonic then.
    let in_order = rate_monotonic && charges.release_interrupt_ns == 0;
    implicit && in_order && !charges.cold_start && utilization(core, charges) <= liu_layland_bound(core.len())
}

#[cfg(test)]
mod tests;
