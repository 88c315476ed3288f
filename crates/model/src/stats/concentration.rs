//! Whether some values are more alike than others of the same kind.

/// Number of choices that are drawn at most.
const DRAWS: u32 = 9999;
/// Number of choices at least as much alike as the values after which no more are drawn.
const ENOUGH: u32 = 50;

/// Returns the probability that as many values, chosen at random from `values` and `others` together, are as much alike as `values`: that two
/// thirds of them lie within as short a range.
///
/// If `values` have the same distribution as `others`, every choice is as likely, so this is a p-value, whatever the distribution is. Choices
/// are drawn until 50 are as much alike, or up to 9999 times. \[BesagClifford1991\] The result is 1 for fewer than three values.
pub fn concentration(values: &[u64], others: &[u64]) -> f64 {
    let count = values.len();
    if count < 3 {
        return 1.0;
    }
    let seen = shortest_range(values.to_vec());
    let mut all = [values, others].concat();
    let mut rng = fastrand::Rng::with_seed(1);
    let mut alike = 0;
    for draws in 1..=DRAWS {
        for at in 0..count {
            let other = rng.usize(at..all.len());
            all.swap(at, other);
        }
        alike += u32::from(shortest_range(all[..count].to_vec()) <= seen);
        if alike == ENOUGH {
            return f64::from(alike) / f64::from(draws);
        }
    }
    f64::from(alike + 1) / f64::from(DRAWS + 1)
}

/// Returns the length of the shortest range that holds two thirds of `values`.
fn shortest_range(mut values: Vec<u64>) -> u64 {
    values.sort_unstable();
    let within = (2 * values.len()).div_ceil(3);
    values.windows(within).map(|range| range[within - 1] - range[0]).min().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A length of 0.2 to 20 ms, in ns: the logarithm is even.
    fn length(rng: &mut fastrand::Rng) -> u64 {
        (2e5 * 100f64.powf(rng.f64())) as u64
    }

    #[test]
    fn two_thirds_decide_how_much_alike_values_are() {
        assert_eq!(shortest_range(vec![9, 1, 2, 50, 4, 3]), 3);
        assert_eq!(shortest_range(vec![7, 7, 100]), 0);
        // Of 3 in 5 values two lie within 1, which 1 and 2 do and no others: 3 of 10 choices have both.
        let p = concentration(&[1, 2, 100], &[1000, 10_000]);
        assert!((p - 0.3).abs() < 0.12, "{p}");
        assert_eq!(concentration(&[5, 5], &[1, 2, 3]), 1.0);
        assert_eq!(concentration(&[5, 5, 5], &[]), 1.0);
    }

    #[test]
    fn values_of_one_distribution_are_seldom_called_alike_and_those_of_an_overrun_are() {
        let mut rng = fastrand::Rng::with_seed(7);
        let mut found = |alike: usize, by_chance: usize, others: usize, limit: f64| {
            let is_found = |_: &u32| {
                let overrun: Vec<u64> = (0..alike).map(|_| 400_000 + rng.u64(..20_000)).collect();
                let values = [overrun, (0..by_chance).map(|_| length(&mut rng)).collect()].concat();
                let others: Vec<u64> = (0..others).map(|_| length(&mut rng)).collect();
                concentration(&values, &others) < limit
            };
            (0..300).filter(is_found).count()
        };
        // Of 300 with a probability of 0.05, more than 25 or fewer than 6 come with a probability of 0.01.
        for (by_chance, others) in [(7, 50), (12, 20), (30, 3000)] {
            let wrongly = found(0, by_chance, others, 0.05);
            assert!((5..=26).contains(&wrongly), "{wrongly} of 300 with {by_chance} and {others} values");
        }
        let rows =
            [(5, 0), (7, 0), (7, 2), (7, 5), (14, 5)].map(|(alike, by_chance)| found(alike, by_chance, 50, 5e-4));
        println!("of 300 with overruns 5, 7, 7 + 2 others, 7 + 5 others, 14 + 5 others are found: {rows:?}");
        assert!(rows[1] > 270 && rows[4] > 270, "{rows:?}");
    }
}
