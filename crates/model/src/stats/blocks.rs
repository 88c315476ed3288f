//! Which blocks of an experiment count.

use super::quantile;

/// What decides whether a block counts. Nothing of it depends on the effect: neither on the treatment nor on the half of the controls that
/// the treatment is compared with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gate {
    /// Share (0 to 1) of the canary lines that were gone although nothing had displaced them; `None` where an experiment has none.
    pub canaries_lost: Option<f64>,
    /// Share (0 to 1) of the block's time that the hypervisor took.
    pub steal: f64,
    /// Median of the controls that serve for this alone.
    pub control: f64,
}

/// Largest share of the canary lines that may be gone.
const CANARIES_LOST_MAX: f64 = 0.10;

/// Largest share of a block's time that may be steal time.
const STEAL_MAX: f64 = 0.05;

/// By what share a control may exceed the lower quartile of its condition.
const CONTROL_TOLERANCE: f64 = 0.10;

/// Which blocks of one condition count.
///
/// A block is left out where its canaries or its steal time show a disturbance, and where its control is slow. Slow means slower than the
/// lower quartile of the condition by more than 10 %: a disturbance that lasts for less than three quarters of an experiment shows, and one
/// exceptionally fast block does not make all others look slow.
pub fn accepted(gates: &[Gate]) -> Vec<bool> {
    let controls: Vec<f64> = gates.iter().map(|gate| gate.control).collect();
    let quartile = quantile(&controls, 0.25).unwrap_or_default();
    let passes = |gate: &Gate| {
        gate.canaries_lost.is_none_or(|lost| lost <= CANARIES_LOST_MAX)
            && gate.steal <= STEAL_MAX
            && gate.control <= (1.0 + CONTROL_TOLERANCE) * quartile
    };
    gates.iter().map(passes).collect()
}

/// Deals the controls of a block, in the order measured: those that decide whether it counts ([`Gate::control`]), and those that the
/// treatment is compared with.
pub fn halves<T: Copy>(controls: &[T]) -> [Vec<T>; 2] {
    [0, 1].map(|half| controls.iter().copied().skip(half).step_by(2).collect())
}

/// Which blocks of each condition count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuietBlocks {
    /// Per condition, the blocks that count, ascending: equally many of each condition that has any. Empty exactly
    /// where a condition has no blocks.
    pub kept: Vec<Vec<usize>>,
    /// Per condition, how many blocks were quiet before the numbers were made equal.
    pub quiet_n: Vec<usize>,
}

/// All blocks of a condition that are quiet as in [`quiet_blocks`], the quietest first: for medians, which do not grow with the number
/// of samples as maxima do.
pub fn all_quiet(control_medians: &[u64], tolerance: f64) -> Vec<usize> {
    assert!(tolerance >= 0.0, "tolerance {tolerance} is negative");
    let floor = control_medians.iter().min().map_or(0.0, |&lowest| lowest as f64 * (1.0 + tolerance));
    let mut quiet: Vec<usize> =
        (0..control_medians.len()).filter(|&block| control_medians[block] as f64 <= floor).collect();
    quiet.sort_by_key(|&block| control_medians[block]);
    quiet
}

/// The quiet blocks of an experiment that ran all its conditions in blocks, each with a paired control.
///
/// A block is quiet if its control's median is at most `1 + tolerance` times the lowest control median *of the same
/// condition*: a task in few colors has a higher floor than one in ordinary memory. So that all conditions have equally
/// many samples, each keeps only its `k` quietest, where `k` is the smallest number of quiet blocks of any condition
/// that has any. Between equals the earlier block is kept.
///
/// `control_medians`: per condition, the control median of each of its blocks.
pub fn quiet_blocks(control_medians: &[impl AsRef<[u64]>], tolerance: f64) -> QuietBlocks {
    let mut kept: Vec<Vec<usize>> =
        control_medians.iter().map(|medians| all_quiet(medians.as_ref(), tolerance)).collect();
    let quiet_n: Vec<usize> = kept.iter().map(Vec::len).collect();
    let k = quiet_n.iter().copied().filter(|&n| n > 0).min().unwrap_or(0);
    for blocks in &mut kept {
        blocks.truncate(k);
        blocks.sort_unstable();
    }
    QuietBlocks { kept, quiet_n }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_block_counts_unless_canaries_steal_or_a_slow_control_show_a_disturbance() {
        let gate = Gate { canaries_lost: Some(0.02), steal: 0.0, control: 100.0 };
        let gates = [
            gate,
            Gate { control: 60.0, ..gate },
            Gate { control: 109.0, ..gate },
            Gate { control: 111.0, ..gate },
            Gate { canaries_lost: Some(0.11), ..gate },
            Gate { canaries_lost: None, ..gate },
            Gate { steal: 0.06, ..gate },
        ];
        assert_eq!(accepted(&gates), [true, true, true, false, false, true, false]);
        assert!(accepted(&[]).is_empty());
    }

    #[test]
    fn controls_are_dealt_in_turn() {
        assert_eq!(halves(&[1, 2, 3, 4, 5]), [vec![1, 3, 5], vec![2, 4]]);
        assert_eq!(halves(&[1]), [vec![1], vec![]]);
    }

    #[test]
    fn quiet_is_judged_within_a_condition_and_numbers_are_made_equal() {
        // Floors 100 and 1000. Quiet within 10 %: blocks 0, 2, 3 of the first, 1 and 3 of the second; so two of each,
        // and of the first its two quietest, 2 and 3.
        let quiet = quiet_blocks(&[vec![110, 500, 100, 101], vec![2000, 1000, 1101, 1100]], 0.1);
        assert_eq!(quiet, QuietBlocks { kept: vec![vec![2, 3], vec![1, 3]], quiet_n: vec![3, 2] });
    }

    #[test]
    fn a_condition_without_blocks_is_named_and_does_not_empty_the_others() {
        let quiet = quiet_blocks(&[vec![], vec![7, 7, 9]], 0.0);
        assert_eq!(quiet.kept, [vec![], vec![0, 1]]);
        assert_eq!(quiet_blocks(&[[0u64; 0]; 0], 0.0), QuietBlocks { kept: vec![], quiet_n: vec![] });
    }

    proptest! {
        #[test]
        fn kept_blocks_are_quiet_equal_in_number_and_the_quietest(
            medians in prop::collection::vec(prop::collection::vec(100u64..130, 1..12), 1..5)
        ) {
            let result = quiet_blocks(&medians, 0.1);
            let k = result.quiet_n.iter().copied().min().expect("conditions");
            for (medians, kept) in medians.iter().zip(&result.kept) {
                prop_assert_eq!(kept.len(), k);
                prop_assert!(kept.is_sorted_by(|a, b| a < b));
                let loudest = kept.iter().map(|&b| medians[b]).max().expect("some");
                prop_assert!(loudest as f64 <= 1.1 * *medians.iter().min().expect("some") as f64);
                let mut by_value = medians.clone();
                by_value.sort_unstable();
                prop_assert_eq!(loudest, by_value[k - 1]);
            }
        }
    }
}
