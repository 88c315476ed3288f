//! Costs of a preemption under other policies than LRU. They exceed what the bounds charge unless the tasks share no partition.
//!
//! The cache has two sets of two ways. A partition is a set, and its refill takes two misses. The task uses the first set; the task that preempts
//! it loads two lines of the first set, too, or of the second.

use super::*;
use crate::geometry::Geometry;
use crate::sim::{Access, Hierarchy, Level, Policy, Semantics};
use crate::units::Bytes;

/// Address of line number `line` of `set`.
fn address(set: u64, line: u64) -> u64 {
    64 * (2 * line + set)
}

/// Misses of one job of the task.
///
/// `job`: the lines that it visits. `preempted_at`: how many it has visited when it is preempted; `None` if it runs alone. `set`: the set that the
/// preempting task uses. The job follows others of its task which were not preempted.
fn misses(policy: Policy, job: &[u64], preempted_at: Option<usize>, set: u64) -> u64 {
    let geometry = Geometry { set_count: 2, ways: 2, line_bytes: Bytes(64) };
    let level = Level { policy, ..Level::lru("L2", geometry) };
    let mut cache = Hierarchy::chain(vec![level], Semantics::default()).unwrap();
    let visit = |cache: &mut Hierarchy, line: u64| {
        let before = cache.level_counts()[0].counts.read_misses;
        cache.access(Access::read(address(0, line)));
        cache.level_counts()[0].counts.read_misses - before
    };
    for _ in 0..20 {
        job.iter().for_each(|&line| {
            visit(&mut cache, line);
        });
    }
    let mut missed = 0;
    for (index, &line) in job.iter().enumerate() {
        if preempted_at == Some(index) {
            [10, 11].into_iter().for_each(|line| cache.access(Access::read(address(set, line))));
        }
        missed += visit(&mut cache, line);
    }
    missed
}

/// The delay of one preemption that the bound charges, in misses. `set`: the set that the preempting task uses.
fn charged(set: u32) -> u64 {
    let core = [core_task(1, 1_000, &[set]), core_task(6, 1_000, &[0])];
    analyze(&core, refill(2), Analysis::Kim2013)[1].gamma_ns
}

#[test]
fn under_fifo_a_preemption_costs_more_than_the_lines_that_it_displaced() {
    // Lines a b b a c b, preempted after the first two. Alone FIFO holds b c at first: a and b replace both, then c replaces a, and b hits: three
    // misses. Preempted, b and a come back in the other order, c replaces b, and b is missed again: a, b, b, a, c and b.
    let job = [1, 2, 2, 1, 3, 2];
    let extra = |policy, set| misses(policy, &job, Some(2), set) - misses(policy, &job, None, set);
    assert_eq!(misses(Policy::Fifo, &job, None, 0), 3);
    assert_eq!((extra(Policy::Fifo, 0), extra(Policy::Lru, 0), charged(0)), (3, 2, 2));
    // In partitions of their own the tasks cost each other nothing, and nothing is charged.
    assert_eq!((extra(Policy::Fifo, 1), extra(Policy::Lru, 1), charged(1)), (0, 0, 0));
}

#[test]
fn under_random_replacement_a_preemption_can_cost_more_than_all_that_is_charged() {
    // Two lines in turn, which hit when both are there. After a preemption each may replace the other for a while.
    let job: Vec<u64> = [1, 2].into_iter().cycle().take(40).collect();
    let extra = |policy, set| misses(policy, &job, Some(20), set) - misses(policy, &job, None, set);
    let most = |set| (0..100).map(|seed| extra(Policy::Random { seed }, set)).max().unwrap();
    // The bound charges a refill for the preemption, and one for the start of the job.
    assert!(most(0) > 2 * charged(0), "{}", most(0));
    assert_eq!((extra(Policy::Lru, 0), most(1)), (2, 0));
}
