//! The bound with persistence over jobs: calculations by hand, a reference implementation, and mutants of it.

use std::collections::BTreeSet;

use super::super::schedule::Arrival;
use super::mutants::{Mutant, Naive};
use super::*;

/// A term of the bound that the mutant leaves out or weakens.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Weakened {
    Nothing,
    /// The first load of a partition in the window is free.
    NoFirstLoad,
    /// Others displace a partition only when their jobs begin, and not when they go on after a preemption.
    NoReloadsOfOthers,
    /// A task is displaced by one of the others only.
    OneOther,
    /// Each job of a task is preempted at most once by the jobs of another one.
    OnePreemption,
    /// The holders of locks displace nothing.
    NoHolders,
    /// A job that goes on displaces what it uses again, and not what it was loading.
    UsefulOnly,
    /// What the task itself uses is not displaced by those above it after each preemption.
    OwnLikeOthers,
}

/// The bound as docs/reference/planning.md derives it, in 128-bit integers and with sets of numbers.
struct Persistence<'a> {
    naive: Naive<'a>,
    weakened: Weakened,
}

impl Persistence<'_> {
    fn jobs(&self, k: usize, window: u128) -> u128 {
        let task = self.naive.core[k];
        (window + u128::from(task.jitter_ns)).div_ceil(u128::from(task.period_ns))
    }

    /// Returns b(j,i).
    fn holders(&self, j: usize, i: usize) -> Vec<usize> {
        if self.weakened == Weakened::NoHolders {
            return Vec::new();
        }
        self.naive.holders(j, i, Mutant::HolderNotPreempted)
    }

    fn affected(&self, j: usize, i: usize) -> BTreeSet<usize> {
        (j + 1..=i).chain(self.holders(j, i)).collect()
    }

    /// Returns e(j,k). `windows`: those of the tasks above i.
    fn preemptions(&self, j: usize, k: usize, window: u128, windows: &[Option<u128>]) -> u128 {
        let jobs = self.jobs(j, window);
        match windows.get(k) {
            Some(&Some(_)) if self.weakened == Weakened::OnePreemption => self.jobs(k, window).min(jobs),
            Some(&Some(above)) => (self.jobs(j, above) * self.jobs(k, window)).min(jobs),
            _ => jobs,
        }
    }

    /// Returns the refills of all partitions in a window of τ(i). `jointly`: those after preemptions by the UCB-union multiset; else by the
    /// ECB-union multiset.
    fn refills(&self, i: usize, window: u128, windows: &[Option<u128>], jointly: bool) -> u128 {
        let core = self.naive.core;
        let all: BTreeSet<u32> = core[..=i].iter().flat_map(|task| task.partitions.iter()).collect();
        let partitions = all.into_iter().map(|p| self.loads(p, i, window, windows, jointly)).sum::<u128>();
        partitions + if jointly { 0 } else { self.ecb_union(i, window, windows) }
    }

    fn ecb_union(&self, i: usize, window: u128, windows: &[Option<u128>]) -> u128 {
        let core = self.naive.core;
        let of = |j: usize| {
            let evicting: BTreeSet<u32> = core[..=j].iter().flat_map(|task| task.partitions.iter()).collect();
            let hit = |k: usize| core[k].useful.iter().filter(|p| evicting.contains(p)).count() as u128;
            let mut each: Vec<u128> = self
                .affected(j, i)
                .into_iter()
                .flat_map(|k| vec![hit(k); self.preemptions(j, k, window, windows) as usize])
                .collect();
            each.sort_unstable_by(|a, b| b.cmp(a));
            each.iter().take(self.jobs(j, window) as usize).sum::<u128>()
        };
        (0..i).map(of).sum()
    }

    fn loads(&self, p: u32, i: usize, window: u128, windows: &[Option<u128>], jointly: bool) -> u128 {
        let Naive { core, charges, .. } = self.naive;
        let uses = |k: &usize| core[*k].partitions.contains(p);
        let users: Vec<usize> = (0..=i).filter(uses).collect();
        let n = |k: usize| if k == i { 1 } else { self.jobs(k, window) };
        // What every family charges when jobs begin.
        let begins = |j: usize| {
            let first = charges.cold_start || (0..core.len()).any(|k| k != j && uses(&k));
            let later = (0..=i).chain(self.holders(j, i)).any(|k| k != j && uses(&k));
            u128::from(first) + if later { n(j) - 1 } else { 0 }
        };
        let again = |j: usize, counts: &dyn Fn(usize) -> bool| {
            let preempted = self.affected(j, i).into_iter().filter(|&k| counts(k));
            preempted.map(|k| self.preemptions(j, k, window, windows)).sum::<u128>().min(n(j))
        };
        let above = || users.iter().copied().filter(|&j| j < i);
        let begun: u128 = users.iter().map(|&j| begins(j)).sum();
        let resumed: u128 = above().map(|j| again(j, &|k| core[k].useful.contains(p))).sum();
        let charged = if jointly { begun + resumed } else { begun };
        let mut least = charged;
        for &m in &users {
            let below = self.holders(m, i);
            if below.iter().any(uses) {
                continue;
            }
            let reloads = |k: usize| match self.weakened {
                Weakened::UsefulOnly => core[k].useful.contains(p),
                Weakened::OwnLikeOthers => uses(&k) && k != i,
                _ => uses(&k),
            };
            let others = || users.iter().copied().filter(|&k| k != m);
            let begun: u128 = others().map(n).sum();
            let resumed = |counts: &dyn Fn(usize) -> bool| above().map(|j| again(j, counts)).sum::<u128>();
            let others = match self.weakened {
                Weakened::NoReloadsOfOthers => begun,
                Weakened::OneOther => others().map(|k| n(k) + resumed(&|of| of == k)).max().unwrap_or(0),
                _ => begun + resumed(&|k| k != m && reloads(k)),
            };
            let first = u128::from(self.weakened != Weakened::NoFirstLoad);
            let limit = match jointly {
                true => first + 2 * others,
                false => charged - begins(m) + begins(m).min(first + others),
            };
            least = least.min(limit);
        }
        least
    }

    fn window(&self, i: usize, windows: &[Option<u128>], jointly: bool) -> Option<u128> {
        let Naive { core, charges, .. } = self.naive;
        let (interrupt, private) = (u128::from(charges.release_interrupt_ns), u128::from(charges.preemption_ns));
        let each = |k: usize| self.naive.executes(k) + interrupt + private;
        let last = u128::from(core[i].deadline_ns.checked_sub(core[i].jitter_ns)?);
        let mut window = 1;
        while window <= last {
            let above: u128 = (0..i).map(|j| self.jobs(j, window) * (each(j) + private)).sum();
            let below: u128 = (i + 1..core.len()).map(|l| self.jobs(l, window) * interrupt).sum();
            let refills = self.refills(i, window, windows, jointly) * u128::from(charges.refill_ns);
            let next = each(i) + self.naive.blocking(i) + above + below + refills + self.naive.withheld(i, window);
            if next <= window {
                return Some(window);
            }
            window = next;
        }
        None
    }

    fn responses(&self) -> Vec<Option<u64>> {
        let mut windows: Vec<Option<u128>> = Vec::new();
        for i in 0..self.naive.core.len() {
            let forms = [true, false].map(|jointly| self.window(i, &windows, jointly));
            windows.push(forms.into_iter().flatten().min());
        }
        let jitter = self.naive.core.iter().map(|task| u128::from(task.jitter_ns));
        windows
            .iter()
            .zip(jitter)
            .map(|(window, jitter)| window.map(|it| u64::try_from(it + jitter).unwrap()))
            .collect()
    }
}

fn naive<'a>(
    core: &'a [CoreTask],
    charges: Charges,
    supply: Option<&'a Supply>,
    weakened: Weakened,
) -> Persistence<'a> {
    Persistence { naive: Naive { core, charges, supply, mutant: Mutant::None }, weakened }
}

/// Returns a core with Δ = 3: t1 (C = 2, T = 20) and t2 (C = 4, T = 200) share a partition that t3 (C = 60, T = 200) does not use.
fn shared_above() -> [CoreTask; 3] {
    [core_task(2, 20, &[1]), core_task(4, 200, &[1]), core_task(60, 200, &[2])]
}

#[test]
fn a_rare_task_displaces_what_a_frequent_one_loads_only_now_and_then() {
    let core = shared_above();
    let bound = |analysis| analyze(&core, refill(3), analysis)[2];
    // t2 alone: 4 + 3 + t1's 2 + 3 + 3 = 15, in which t1 is released once.
    assert_eq!(analyze(&core, refill(3), Analysis::PersistenceMultiset)[1].verdict.response_ns(), Some(15));
    // Combined: each job of t1 loads the partition, t2 loads it once and once more after its preemption:
    //   60 + 4 + 6 + n (2 + 3): n = 5 -> 95.
    assert_eq!(bound(Analysis::CombinedMultiset).verdict.response_ns(), Some(95));
    // t2 loads it twice at most, so t1 loads it three times at most: 64 + 5 * 3 + 2 n = 87 with n = 4 -> 5: 89.
    let persistent = bound(Analysis::PersistenceMultiset);
    assert_eq!(persistent.verdict.response_ns(), Some(89));
    assert_eq!((persistent.omega_ns, persistent.gamma_ns), (12, 3));
    // If t3 uses the partition too, each job of t1 and t2 displaces it: 60 + 3 + 4 + 6 + n (2 + 6): n = 7 -> 129.
    let mut all = core;
    all[2].partitions = [1].into_iter().collect();
    all[2].useful = all[2].partitions;
    for analysis in [Analysis::CombinedMultiset, Analysis::PersistenceMultiset] {
        assert_eq!(analyze(&all, refill(3), analysis)[2].verdict.response_ns(), Some(129), "{analysis}");
    }
}

#[test]
fn a_partition_is_loaded_as_often_as_the_bound_with_persistence_allows() {
    let core = shared_above();
    let arrival = |task: usize, arrival_ns| Arrival {
        task,
        arrival_ns,
        release_ns: arrival_ns,
        execution_ns: core[task].wcet_ns,
        section: None,
    };
    // t1 comes every 20 from 0 on, t3 at 0 and t2 at 18, so that t1 preempts t2 at 20. The partition is loaded by t1 at 0, by t2 at 18, by t1 at
    // 20, by t2 once more, and by t1 at 40, but neither at 60 nor at 80. The first load of t2 is cut off after 2 of 3.
    let mut arrivals: Vec<Arrival> = (0..5).map(|job| arrival(0, 20 * job)).collect();
    arrivals.extend([arrival(1, 18), arrival(2, 0)]);
    arrivals.sort_by_key(|arrival| (arrival.release_ns, arrival.task));
    let played = play(&core, refill(3), &arrivals, 200);
    // 60 + 4 + 5 * 2 + 3 * 3 + 2 + 3.
    assert_eq!(played.responses_ns[2], 88);
    let bounds = responses_of(&core, refill(3), Analysis::PersistenceMultiset);
    assert_eq!(bounds[2], Some(89));
}

#[test]
fn the_bound_with_persistence_equals_its_derivation_literally() {
    let mut smaller = 0;
    for seed in 0..SETS / 4 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut case = Case::random(&mut random, seed % 2 == 0);
        case.withhold(&mut random);
        let supply = case.supply();
        let core = &case.analyzed;
        for supply in [None, Some(&supply)] {
            let conditions = Conditions { charges: case.charges, supply };
            let of = |analysis| -> Vec<Option<u64>> {
                analyze(core, conditions, analysis).iter().map(|bound| bound.verdict.response_ns()).collect()
            };
            let fast = of(Analysis::PersistenceMultiset);
            assert_eq!(fast, naive(core, case.charges, supply, Weakened::Nothing).responses(), "seed {seed}: {case:?}");
            smaller += fast.iter().zip(of(Analysis::CombinedMultiset)).filter(|(fast, other)| **fast != *other).count();
        }
    }
    assert!(smaller > 100, "{smaller} bounds are smaller than the combined multiset");
}

#[test]
fn schedules_catch_every_mutant_of_persistence() {
    use Weakened::*;
    let mut alive = vec![NoFirstLoad, NoReloadsOfOthers, OneOther, OnePreemption, NoHolders, UsefulOnly, OwnLikeOthers];
    for seed in 0..SETS {
        let mut random = fastrand::Rng::with_seed(seed);
        let case = Case::random(&mut random, seed % 2 == 0);
        let longest = case.observed(&mut random);
        let Case { analyzed, charges, .. } = &case;
        alive.retain(|&weakened| {
            let bounds = naive(analyzed, *charges, None, weakened).responses();
            let caught =
                bounds.iter().zip(&longest).any(|(bound, longest)| bound.is_some_and(|bound| *longest > bound));
            if caught {
                println!("seed {seed}: {weakened:?}");
            }
            !caught
        });
        if alive.is_empty() {
            return;
        }
    }
    panic!("{alive:?} survive {SETS} sets");
}
