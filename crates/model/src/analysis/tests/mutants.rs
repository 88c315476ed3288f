//! The reference implementation of the bound, and mutants of it in which one charge is left out or weakened.

use std::collections::BTreeSet;

use super::super::falsify::Case;
use super::super::schedule::{Arrival, Section};
use super::*;
use crate::supply::Supply;

/// The term that is left out or weakened.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Mutant {
    None,
    NoGamma,
    NoOmega,
    /// γ(j,i) = |S(j) ∩ S(i)|, without the tasks in between.
    GammaOfOneTask,
    /// ω(j,i) is used for the first job too.
    FirstLikeLater,
    /// τ(i) does not pay its own warm-up.
    NoOwnWarmUp,
    /// Locks block no task.
    NoLocks,
    /// The holder of a lock finds its partitions warm.
    WarmHolder,
    /// No task displaces what the holder of a lock uses.
    HolderNotPreempted,
    /// The holder of a lock displaces nothing.
    HolderDisplacesNothing,
    /// If only the blocking time is known, nothing but this time is charged.
    TimeOnly,
    /// Releases of lower-priority jobs cause no interrupts.
    NoInterruptsFromBelow,
    /// τ(i) does not pay for the interrupt of its own release.
    NoOwnInterrupt,
    /// Private levels keep their contents over a preemption.
    PrivateSurvivesPreemption,
    /// A job finds the private levels warm.
    PrivateWarmAtStart,
    /// Nothing is withheld of the core, but its contents are displaced.
    NoWithheldTime,
    /// Whoever runs while the core is withheld displaces nothing.
    NoReload,
    /// Nothing was displaced by what was withheld before the window.
    NoReloadOfBefore,
}

/// The bound by [Kim2013] in 128-bit integers with sets of numbers, as docs/reference/planning.md derives it.
pub(super) struct Naive<'a> {
    pub(super) core: &'a [CoreTask],
    pub(super) charges: Charges,
    pub(super) supply: Option<&'a Supply>,
    pub(super) mutant: Mutant,
}

impl Naive<'_> {
    fn refills(&self, j: usize, others: impl Iterator<Item = usize>) -> u128 {
        let of = |k: usize| self.core[k].partitions.iter().collect::<BTreeSet<u32>>();
        let union: BTreeSet<u32> = others.flat_map(of).collect();
        of(j).intersection(&union).count() as u128 * u128::from(self.charges.refill_ns)
    }

    pub(super) fn executes(&self, k: usize) -> u128 {
        u128::from(self.core[k].wcet_ns) + 2 * u128::from(self.charges.switch_ns)
    }

    fn private(&self, left_out: Mutant) -> u128 {
        if self.mutant == left_out { 0 } else { u128::from(self.charges.preemption_ns) }
    }

    /// Returns ω(j,n), with private levels.
    fn first(&self, j: usize) -> u128 {
        let all = if self.charges.cold_start { self.refills(j, std::iter::once(j)) } else { 0 };
        let shared = self.refills(j, (0..self.core.len()).filter(|&k| k != j));
        let refills = if self.mutant == Mutant::NoOmega { 0 } else { all.max(shared) };
        refills + self.private(Mutant::PrivateWarmAtStart)
    }

    /// Returns the locks that can make τ(i) wait: the holder, the index of the highest task that takes the lock, and the longest
    /// time for which the lock is held, in ns.
    fn sections(&self, i: usize) -> Vec<(usize, usize, u64)> {
        let takes = |k: usize, lock| self.core[k].holds.iter().any(|hold| hold.lock == lock);
        let below = (i + 1..self.core.len()).flat_map(|l| self.core[l].holds.iter().map(move |hold| (l, hold)));
        let with_ceiling = below.map(|(l, hold)| {
            let ceiling = (0..=l).find(|&k| takes(k, hold.lock)).unwrap();
            (l, ceiling, hold.longest_ns)
        });
        with_ceiling.filter(|&(_, ceiling, _)| ceiling <= i && self.mutant != Mutant::NoLocks).collect()
    }

    /// Returns b(j,i): the tasks below i that hold a lock while τ(i) waits and that τ(j) preempts.
    pub(super) fn holders(&self, j: usize, i: usize, left_out: Mutant) -> Vec<usize> {
        if self.mutant == left_out {
            return Vec::new();
        }
        if self.core[i].blocking_ns > 0 {
            return if self.mutant == Mutant::TimeOnly { Vec::new() } else { (i + 1..self.core.len()).collect() };
        }
        self.sections(i).iter().filter(|&&(_, ceiling, _)| j < ceiling).map(|&(l, ..)| l).collect()
    }

    fn omega(&self, j: usize, i: usize) -> u128 {
        let holders = self.holders(j, i, Mutant::HolderDisplacesNothing);
        let others = (0..=i).filter(|&k| k != j).chain(holders);
        let refills = if self.mutant == Mutant::NoOmega { 0 } else { self.refills(j, others) };
        refills + self.private(Mutant::PrivateWarmAtStart)
    }

    fn gamma(&self, j: usize, i: usize) -> u128 {
        let between = if self.mutant == Mutant::GammaOfOneTask { i..i + 1 } else { j + 1..i + 1 };
        let holders = self.holders(j, i, Mutant::HolderNotPreempted);
        let refills = if self.mutant == Mutant::NoGamma { 0 } else { self.refills(j, between.chain(holders)) };
        refills + self.private(Mutant::PrivateSurvivesPreemption)
    }

    pub(super) fn blocking(&self, i: usize) -> u128 {
        let time = u128::from(self.core[i].blocking_ns);
        let interval = |l: usize| u128::from(self.core[l].nonpreemptive_ns) + self.first(l);
        let nonpreemptive = (i..self.core.len()).filter(|&l| self.core[l].nonpreemptive_ns > 0).map(interval).max();
        let unknown = (i + 1..self.core.len()).filter(|_| time > 0 && self.mutant != Mutant::TimeOnly).map(interval);
        let held = self.sections(i).into_iter().map(|(l, _, longest_ns)| {
            let warm_up = if self.mutant == Mutant::WarmHolder { 0 } else { self.first(l) };
            u128::from(longest_ns) + warm_up
        });
        let lower = nonpreemptive.into_iter().chain(unknown).max().unwrap_or(0);
        held.max().unwrap_or(0).max(time + lower)
    }

    /// Returns what withholding the core costs in a window.
    pub(super) fn withheld(&self, i: usize, window: u128) -> u128 {
        let Some(supply) = self.supply.filter(|supply| !supply.is_full()) else { return 0 };
        let window = u64::try_from(window).unwrap();
        let blocks = |k: usize| self.core[k].nonpreemptive_ns > 0 || !self.core[k].holds.is_empty();
        let all = self.core[i].blocking_ns > 0 || (i + 1..self.core.len()).any(blocks);
        let run = 0..if all { self.core.len() } else { i + 1 };
        let lost: BTreeSet<u32> = run.flat_map(|k| self.core[k].partitions.iter()).collect();
        let Charges { refill_ns, preemption_ns, .. } = self.charges;
        let reload = lost.len() as u128 * u128::from(refill_ns) + u128::from(preemption_ns);
        let before = u128::from(self.mutant != Mutant::NoReloadOfBefore);
        let times = u128::from(supply.interruptions(window)) + before;
        let time = if self.mutant == Mutant::NoWithheldTime { 0 } else { u128::from(supply.withheld_ns(window)) };
        time + if self.mutant == Mutant::NoReload { 0 } else { times * reload }
    }

    fn response(&self, i: usize) -> Option<u64> {
        let interrupt = u128::from(self.charges.release_interrupt_ns);
        let executes = |k: usize| self.executes(k);
        let own_warm_up = if self.mutant == Mutant::NoOwnWarmUp { 0 } else { self.first(i) };
        let own_interrupt = if self.mutant == Mutant::NoOwnInterrupt { 0 } else { interrupt };
        let fixed = executes(i) + own_warm_up + own_interrupt + self.blocking(i);
        let jobs = |k: usize, window: u128| {
            (window + u128::from(self.core[k].jitter_ns)).div_ceil(u128::from(self.core[k].period_ns))
        };
        let last = (self.core[i].deadline_ns).checked_sub(self.core[i].jitter_ns)?;
        let mut window = executes(i);
        while window <= u128::from(last) {
            let mut next = fixed + self.withheld(i, window);
            for j in 0..i {
                let jobs = jobs(j, window);
                let first = if self.mutant == Mutant::FirstLikeLater { self.omega(j, i) } else { self.first(j) };
                next += jobs * (executes(j) + interrupt + self.gamma(j, i)) + first + (jobs - 1) * self.omega(j, i);
            }
            if self.mutant != Mutant::NoInterruptsFromBelow {
                next += (i + 1..self.core.len()).map(|l| jobs(l, window) * interrupt).sum::<u128>();
            }
            if next <= window {
                return u64::try_from(window + u128::from(self.core[i].jitter_ns)).ok();
            }
            window = next;
        }
        None
    }
}

fn naive(core: &[CoreTask], charges: Charges, i: usize, mutant: Mutant) -> Option<u64> {
    Naive { core, charges, supply: None, mutant }.response(i)
}

#[test]
fn the_same_schedules_catch_every_mutant_of_the_bound() {
    use Mutant::*;
    let of_the_paper = [NoGamma, NoOmega, GammaOfOneTask, FirstLikeLater, NoOwnWarmUp];
    let of_locks = [NoLocks, WarmHolder, HolderNotPreempted, TimeOnly];
    let of_costs = [NoInterruptsFromBelow, NoOwnInterrupt, PrivateSurvivesPreemption, PrivateWarmAtStart];
    let mut alive: Vec<Mutant> = [&of_the_paper[..], &of_locks, &of_costs].concat();
    for seed in 0..SETS {
        let mut random = fastrand::Rng::with_seed(seed);
        let case = Case::random(&mut random, seed % 2 == 0);
        let longest = case.observed(&mut random);
        let Case { analyzed, charges, .. } = case;
        let exceeds =
            |mutant: Mutant, i: usize| naive(&analyzed, charges, i, mutant).is_some_and(|bound| longest[i] > bound);
        alive.retain(|&mutant| !(0..analyzed.len()).any(|i| exceeds(mutant, i)));
        if alive.is_empty() {
            return;
        }
    }
    panic!("{alive:?} survive {SETS} sets");
}

#[test]
fn schedules_of_a_withheld_core_catch_every_mutant_of_its_bound() {
    use Mutant::*;
    let mut alive = vec![NoWithheldTime, NoReload, NoReloadOfBefore];
    for seed in 0..SETS {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut case = Case::random(&mut random, seed % 2 == 0);
        case.withhold(&mut random);
        let (longest, supply) = (case.observed(&mut random), case.supply());
        let Case { analyzed, charges, .. } = &case;
        let exceeds = |mutant: Mutant, i: usize| {
            let naive = Naive { core: analyzed, charges: *charges, supply: Some(&supply), mutant };
            naive.response(i).is_some_and(|bound| longest[i] > bound)
        };
        alive.retain(|&mutant| !(0..analyzed.len()).any(|i| exceeds(mutant, i)));
        if alive.is_empty() {
            return;
        }
    }
    panic!("{alive:?} survive {SETS} sets");
}

#[test]
fn a_holder_that_displaces_nothing_is_a_mutant_too() {
    // This needs two preemptions of one critical section, which random schedules rarely have.
    let mut core = [core_task(1, 20, &[0, 1, 2]), core_task(1, 100, &[3]), core_task(8, 200, &[0, 1, 2])];
    core[1].holds.insert(0, 1);
    core[2].holds.insert(0, 8);
    // t3 takes the lock at 0 and refills until 6; t1 refills and executes until 13; t3 refills until 19 and executes until 26;
    // t1 refills once more and executes until 33; t3 refills until 39 and leaves the lock at 40; t2 executes until 41.
    let arrival = |task: usize, arrival_ns, section| Arrival {
        task,
        arrival_ns,
        release_ns: arrival_ns,
        execution_ns: core[task].wcet_ns,
        section,
    };
    let section = Some(Section { lock: 0, start_ns: 0, length_ns: 8 });
    let arrivals = [arrival(2, 0, section), arrival(1, 1, None), arrival(0, 6, None), arrival(0, 26, None)];
    let response = play(&core, refill(2), &arrivals, 100).responses_ns[1];
    assert_eq!(response, 40);
    // B = 8 + 6. t1 takes 1 + 6 + 6 for the first job, and for later jobs the same, or 1 + 6 without the displacement: 15 + 13 =
    // 28 -> 41 -> 54, settles; 28 -> 35, settles.
    assert_eq!(naive(&core, refill(2), 1, Mutant::None), Some(54));
    assert_eq!(naive(&core, refill(2), 1, Mutant::HolderDisplacesNothing), Some(35));
}

#[test]
fn the_incremental_iteration_equals_the_paper_literally() {
    for seed in 0..SETS {
        let mut random = fastrand::Rng::with_seed(seed);
        let (core, charges) = random_core(&mut random, seed % 2 == 0);
        let fast = responses_of(&core, charges, Analysis::Kim2013);
        for (i, fast) in fast.into_iter().enumerate() {
            assert_eq!(fast, naive(&core, charges, i, Mutant::None), "seed {seed}, task {i}: {core:?} {charges:?}");
        }
        let mut case = Case { core: core.clone(), analyzed: core.clone(), charges, withheld: Vec::new() };
        case.withhold(&mut random);
        let supply = case.supply();
        let withheld = Naive { core: &core, charges, supply: Some(&supply), mutant: Mutant::None };
        let bounds = analyze(&core, Conditions { charges, supply: Some(&supply) }, Analysis::Kim2013);
        for (i, bound) in bounds.iter().enumerate() {
            let bound = bound.verdict.response_ns();
            assert_eq!(bound, withheld.response(i), "seed {seed}, task {i}: {core:?} {charges:?} {supply:?}");
        }
        // The same partitions are moved far up in the set, so that all words are used.
        let moved: Vec<CoreTask> = core
            .iter()
            .map(|task| {
                let up = |set: PartitionSet| set.iter().map(|partition| partition * 150 + 20).collect();
                CoreTask { partitions: up(task.partitions), useful: up(task.useful), ..*task }
            })
            .collect();
        for analysis in Analysis::ALL {
            assert_eq!(analyze(&moved, charges, analysis), analyze(&core, charges, analysis), "seed {seed} {analysis}");
        }
    }
}
