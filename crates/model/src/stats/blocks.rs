//! The rule that decides which blocks of an experiment are accepted.

use super::quantile;

/// The values that decide whether a block is accepted. They do not depend on the effect: neither on the treatment nor on the half
/// of the controls that the treatment is compared with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gate {
    /// Share (0 to 1) of the canary lines that were gone although nothing in the experiment had displaced them; `None` if the
    /// experiment has no canaries.
    pub canaries_lost: Option<f64>,
    /// Share (0 to 1) of the block's time that is steal time.
    pub steal: f64,
    /// Median of the controls that only decide whether the block is accepted.
    pub control: f64,
}

/// Largest share of the canary lines that may be gone in an accepted block.
const CANARIES_LOST_MAX: f64 = 0.10;

/// Largest share of an accepted block's time that may be steal time.
const STEAL_MAX: f64 = 0.05;

/// Largest share by which a control may exceed the lower quartile of its condition.
const CONTROL_TOLERANCE: f64 = 0.10;

/// Returns which blocks of one condition are accepted.
///
/// A block is not accepted if its canaries or its steal time show a disturbance, or if its control is slow. Slow means slower
/// than the lower quartile of the condition by more than 10 %. So a disturbance that lasts for less than three quarters of an
/// experiment is detected, and one exceptionally fast block does not make all others look slow.
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

/// Splits the controls of a block alternately, in the order measured, into two lists. The first list decides whether the block
/// is accepted ([`Gate::control`]); the treatment is compared with the second list.
pub fn halves<T: Copy>(controls: &[T]) -> [Vec<T>; 2] {
    [0, 1].map(|half| controls.iter().copied().skip(half).step_by(2).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
