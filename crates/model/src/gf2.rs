//! Linear functions over GF(2): which XOR masks of frame-number bits explain the colors.
//!
//! A cache picks a set by bits of the physical address, or by parities of several bits (a hash). Then the color of a
//! frame is a linear function of its number over GF(2), the field of two elements where addition is XOR: bit `i` of the
//! color is the parity of `frame & masks[i]`. The masks are found without trying any, by linear algebra:
//!
//! 1. Two frames of one color have equal parities, so a mask has even parity with their XOR. Those differences span a
//!    subspace `D`. The masks are all vectors that have even parity with every vector of `D`: its *annihilator*.
//! 2. Of the `r` dimensions in which the sampled frames vary, `D` takes `r - k` if there are `2^k` colors, which leaves
//!    `k` masks.
//! 3. One wrong label can already fill the space and leave no mask at all. So `D` is spanned from a few random pairs,
//!    just until it has `r - k` dimensions; the masks that follow are checked against all samples; and this is repeated
//!    until a draw without a wrong label must have been among them (RANSAC; Fischler and Bolles, Communications of the
//!    ACM 24, 1981).
//!
//! A small number of labels can always be explained by some masks. [`infer_masks`] therefore needs enough samples that labels
//! unrelated to the frames, as in a virtual machine, cannot pass by luck.

mod subspace;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use subspace::Subspace;
use subspace::bits;

/// Draws stop once the probability that all of them contained a wrong label is at most this.
const MISS_PROBABILITY: f64 = 1e-9;
/// Most draws.
const DRAWS_MAX: f64 = 20_000.0;
/// Fewest draws, since a draw can also fail by spanning too little.
const DRAWS_MIN: f64 = 100.0;
/// Labels unrelated to the frames pass with a probability of at most 2 to the power of minus this.
const LUCK_BITS: f64 = 40.0;

/// Returns the color of `frame` under `masks` (at most 16): bit `i` is the parity of `frame & masks[i]`.
pub fn color_under(masks: &[u64], frame: u64) -> u16 {
    assert!(masks.len() <= 16, "{} masks make more colors than a color number can tell apart", masks.len());
    let parity = |mask: &u64| (frame & mask).count_ones() as u16 & 1;
    masks.iter().enumerate().fold(0, |color, (bit, mask)| color | parity(mask) << bit)
}

/// Whether the label of a frame is a linear function of its number.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "finding", rename_all = "snake_case")]
pub enum Linearity {
    /// Frames have the same label exactly if they have the same color under the masks, except for a share of `1 - agreement`.
    Linear {
        /// The masks, ascending. Every basis of the space they span describes the same classes. This basis has the fewest bits,
        /// and among such bases the lowest bits.
        masks: Vec<u64>,
        /// Label of each color, `labels[color_under(&masks, frame)]`; `None` for a color that no class has.
        labels: Vec<Option<u16>>,
        /// Share (0 to 1) of the samples that have the label of their color.
        agreement: f64,
        /// Frame-number bits whose influence these samples do not show, as a mask: bits that never changed, all bits above the
        /// highest bit seen, and bits that changed only together with others. The color of a frame that differs from the samples
        /// in one of these bits is a guess.
        undetermined_bits: u64,
    },
    /// No masks explain enough of the labels. Either the label is not a linear function of the frame number, as in a virtual
    /// machine, or more than the share `1 - agreement` of the labels is wrong.
    NotLinear {
        /// Largest share (0 to 1) of the samples that any of the tried masks explains. With n labels, chance alone explains a
        /// little more than 1/n.
        best_agreement: f64,
    },
    /// Some masks would explain these labels even if the labels had nothing to do with the frames.
    TooFewSamples {
        /// Number of different frames sampled.
        samples: usize,
        /// Number of different frames needed, with labels spread as unevenly as these. `usize::MAX` if a single label reaches the
        /// requested agreement; then frames of other labels are missing.
        needed: usize,
    },
}

/// Finds the XOR masks under which two frames have equal labels exactly if they have equal colors, if there are such masks.
///
/// `samples`: frame numbers and labels. Labels only name classes, in any numbering; some may be wrong.
/// `agreement`: the share (above 0.5, up to 1) of the samples that the masks must explain, such as 0.99. The best masks found are
/// returned, not the first that suffice.
/// `seed`: seed of the random draws; the same input and seed give the same answer.
///
/// There are as many colors as labels, if that is a power of two. Otherwise both neighboring powers are tried: the smaller
/// one, where the smallest classes count as wrong labels, and the larger one, where some colors have no class.
///
/// Take the frames from all over memory. Neighboring frames may depend on each other (a host that backs its guest with
/// large pages), and then a sample from one region can be linear where memory as a whole is not. A frame-number bit that
/// changes in few samples is decided by those few alone.
///
/// There are enough samples if labels unrelated to the frames pass with a probability of at most 2⁻⁴⁰. Let the largest class have
/// the share `p` of the samples. Then given masks and names explain the share `a` of `n` unrelated labels with a probability of
/// at most `2^(-n K)`, where `K = a log2(a/p) + (1-a) log2((1-a)/(1-p))` (Chernoff's bound). There are at most `2^(k r) 2^k!`
/// masks and names for `k` masks over `r` dimensions. In any case there must be at least twice as many samples as dimensions and
/// colors.
pub fn infer_masks(samples: &[(u64, u16)], agreement: f64, seed: u64) -> Linearity {
    assert!(agreement > 0.5 && agreement <= 1.0, "agreement {agreement} is not in 0.5..=1");
    let mut per_label = BTreeMap::<u16, usize>::new();
    for &(_, label) in samples {
        *per_label.entry(label).or_default() += 1;
    }
    let frames: BTreeSet<u64> = samples.iter().map(|sample| sample.0).collect();
    let Some(&origin) = frames.first() else { return Linearity::TooFewSamples { samples: 0, needed: 2 } };
    let varying: Subspace = frames.iter().map(|frame| frame ^ origin).collect();
    let mut largest_first: Vec<u16> = per_label.keys().copied().collect();
    largest_first.sort_by_key(|label| Reverse(per_label[label]));

    let fewer_masks = largest_first.len().ilog2() as usize;
    let more_masks = largest_first.len().next_power_of_two().ilog2() as usize;
    let largest_share = per_label[&largest_first[0]] as f64 / samples.len() as f64;
    let needed = samples_needed(more_masks, varying.rank(), agreement, largest_share);
    if frames.len() < needed {
        return Linearity::TooFewSamples { samples: frames.len(), needed };
    }

    // There are at most 2^rank different frames, and at least 2 rank + 2 * 2^masks at this point. So the rank exceeds the number
    // of masks.
    let mut random = fastrand::Rng::with_seed(seed);
    let fits = (fewer_masks..=more_masks).filter_map(|mask_count| {
        let labels = &largest_first[..largest_first.len().min(1 << mask_count)];
        Sampled::new(samples, labels, varying.pivots()).best_fit(mask_count, agreement, &mut random)
    });
    // Of equal fits, the earlier is kept, which has fewer masks.
    let best = fits.reduce(|best, fit| if fit.agreement > best.agreement { fit } else { best });
    match best {
        Some(Fit { masks, labels, agreement: reached }) if reached >= agreement => Linearity::Linear {
            masks,
            labels,
            agreement: reached,
            undetermined_bits: varying.annihilator(u64::MAX).basis().iter().fold(0, |all, vector| all | vector),
        },
        best => Linearity::NotLinear { best_agreement: best.map_or(0.0, |fit| fit.agreement) },
    }
}

/// Returns the number of different frames needed so that unrelated labels do not pass; see [`infer_masks`].
fn samples_needed(mask_count: usize, rank: usize, agreement: f64, largest_share: f64) -> usize {
    let least = 2 * (rank + (1 << mask_count));
    if mask_count == 0 {
        return least;
    }
    if largest_share >= agreement {
        return usize::MAX;
    }
    let wrong = 1.0 - agreement;
    let wrong_term = if wrong > 0.0 { wrong * (wrong / (1.0 - largest_share)).log2() } else { 0.0 };
    let bits_per_sample = agreement * (agreement / largest_share).log2() + wrong_term;
    let mask_bits = (mask_count * rank) as f64;
    let name_bits: f64 = (1..=1u32 << mask_count).map(|name| f64::from(name).log2()).sum();
    // A float beyond the range of usize becomes usize::MAX, which means that no number of samples suffices.
    least.max(((mask_bits + name_bits + LUCK_BITS) / bits_per_sample).ceil() as usize)
}

/// The samples, prepared for the draws.
struct Sampled<'a> {
    samples: &'a [(u64, u16)],
    /// The samples with one of the counted labels: the most frequent ones, at most as many as there are colors.
    counted: Vec<(u64, u16)>,
    /// Indices of the samples, by counted label.
    members: BTreeMap<u16, Vec<usize>>,
    /// Frame-number bits that determine all other bits that vary, as a mask.
    pivots: u64,
    /// For each bit of `pivots`, the samples that have the rarer value of the bit. No list is empty, because each of the bits
    /// varies.
    rare: Vec<Vec<usize>>,
}

/// Masks with the label of each color, and the share of samples that they explain.
struct Fit {
    masks: Vec<u64>,
    labels: Vec<Option<u16>>,
    agreement: f64,
}

impl<'a> Sampled<'a> {
    fn new(samples: &'a [(u64, u16)], labels: &[u16], pivots: u64) -> Self {
        let mut members: BTreeMap<u16, Vec<usize>> = labels.iter().map(|&label| (label, Vec::new())).collect();
        for (sample, (_, label)) in samples.iter().enumerate() {
            if let Some(members) = members.get_mut(label) {
                members.push(sample);
            }
        }
        let rarer = |bit| {
            let (set, clear): (Vec<usize>, Vec<usize>) =
                (0..samples.len()).partition(|&sample| samples[sample].0 & bit != 0);
            if set.len() < clear.len() { set } else { clear }
        };
        let counted = samples.iter().copied().filter(|(_, label)| members.contains_key(label)).collect();
        Self { samples, counted, members, pivots, rare: bits(pivots).map(rarer).collect() }
    }

    /// Returns the masks that explain most samples, among those found by drawing random pairs of equal label; `None` if no
    /// draw found any.
    fn best_fit(&self, mask_count: usize, agreement: f64, random: &mut fastrand::Rng) -> Option<Fit> {
        let rank = self.rare.len();
        let mut best: Option<Fit> = None;
        let mut tried = BTreeSet::new();
        for draw in 0.. {
            let reached = best.as_ref().map_or(0.0, |fit| fit.agreement);
            // A useful draw has about `rank` pairs, none with a wrong sample.
            let all_right = reached.max(agreement).powi(2 * rank as i32);
            let draws_needed = (MISS_PROBABILITY.ln() / (-all_right).ln_1p()).clamp(DRAWS_MIN, DRAWS_MAX);
            if reached == 1.0 || f64::from(draw) >= draws_needed {
                break;
            }
            let Some(differences) = self.differences_of_equals(rank - mask_count, random) else { continue };
            let masks = differences.annihilator(self.pivots).fewest_bits_basis();
            if tried.insert(masks.clone()) {
                let fit = self.fit(masks);
                if fit.agreement > reached {
                    best = Some(fit);
                }
            }
        }
        best
    }

    /// Returns a space of `rank` dimensions spanned by differences of random frames of equal label; `None` if the pairs
    /// drawn span less.
    ///
    /// Each bit in turn gives a pair in which a frame has the rarer value of the bit. Uniform draws would go through most
    /// samples, wrong ones included, before they met a bit that changes in only one sample of a hundred.
    fn differences_of_equals(&self, rank: usize, random: &mut fastrand::Rng) -> Option<Subspace> {
        let mut spanned = Subspace::default();
        let mut order: Vec<&Vec<usize>> = self.rare.iter().collect();
        for _ in 0..4 {
            random.shuffle(&mut order);
            for rare in &order {
                if spanned.rank() == rank {
                    return Some(spanned);
                }
                let (frame, label) = self.samples[rare[random.usize(..rare.len())]];
                let Some(equals) = self.members.get(&label) else { continue };
                let (equal, _) = self.samples[equals[random.usize(..equals.len())]];
                spanned.insert((frame ^ equal) & self.pivots);
            }
        }
        (spanned.rank() == rank).then_some(spanned)
    }

    /// Returns `masks` with a one-to-one assignment of labels to colors, and the share of samples that agree with it.
    fn fit(&self, masks: Vec<u64>) -> Fit {
        let mut pairs: Vec<(u16, u16)> =
            self.counted.iter().map(|&(frame, label)| (color_under(&masks, frame), label)).collect();
        pairs.sort_unstable();
        // The most frequent pairs come first, and each color and each label is assigned once. If the masks are right, every color
        // has one label that is far more frequent than all others, so this assignment is the best. Otherwise it need not be.
        let mut pairs: Vec<&[(u16, u16)]> = pairs.chunk_by(|a, b| a == b).collect();
        pairs.sort_by_key(|equal| Reverse(equal.len()));
        let mut labels = vec![None; 1 << masks.len()];
        let mut named = BTreeSet::new();
        let mut agreed = 0;
        for equal in pairs {
            let (color, label) = equal[0];
            if labels[usize::from(color)].is_none() && named.insert(label) {
                labels[usize::from(color)] = Some(label);
                agreed += equal.len();
            }
        }
        Fit { masks, labels, agreement: agreed as f64 / self.samples.len() as f64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Draws `mask_count` independent masks over the lowest `width` bits.
    fn random_masks(random: &mut fastrand::Rng, mask_count: usize, width: u32) -> Vec<u64> {
        let mut spanned = Subspace::default();
        let mut masks = Vec::new();
        while masks.len() < mask_count {
            let mask = random.u64(..1 << width);
            if spanned.insert(mask) {
                masks.push(mask);
            }
        }
        masks
    }

    /// Draws `n` random frames of `width` bits, labeled by their color under `masks` in a shuffled numbering. Exactly `wrong` of
    /// them have another label.
    fn samples_of(random: &mut fastrand::Rng, masks: &[u64], width: u32, n: usize, wrong: usize) -> Vec<(u64, u16)> {
        let mut names: Vec<u16> = (0..1 << masks.len()).map(|name| name * 3 + 7).collect();
        random.shuffle(&mut names);
        (0..n)
            .map(|i| {
                let frame = random.u64(..1 << width);
                let color = color_under(masks, frame) as usize;
                let shift = if i < wrong { random.usize(1..names.len()) } else { 0 };
                (frame, names[(color + shift) % names.len()])
            })
            .collect()
    }

    #[test]
    fn color_is_the_parities_of_the_masked_bits() {
        // 0b1011: parity with 0b0011 is 0, with 0b0110 is 1, with 0b1000 is 1.
        assert_eq!(color_under(&[0b0011, 0b0110, 0b1000], 0b1011), 0b110);
        assert_eq!(color_under(&[], 5), 0);
    }

    #[test]
    fn plain_set_index_bits_come_out_as_themselves() {
        // Sixteen colors in the four lowest bits; frames 0x1000..0x1400: bits 0 to 9 vary, bit 12 and all others do
        // not.
        let samples: Vec<(u64, u16)> = (0x1000..0x1400).map(|frame| (frame, (frame % 16) as u16 + 100)).collect();
        let expected = Linearity::Linear {
            masks: vec![1, 2, 4, 8],
            labels: (100..116).map(Some).collect(),
            agreement: 1.0,
            undetermined_bits: !0x3ff,
        };
        assert_eq!(infer_masks(&samples, 0.99, 1), expected);
    }

    #[test]
    fn bits_that_change_together_are_named_and_the_lowest_is_used() {
        let mut random = fastrand::Rng::with_seed(3);
        // Bit 9 always equals bit 2, so a color by bits 2 and 5 is also one by bits 9 and 5.
        let frames = (0..300).map(|_| random.u64(..1 << 9)).map(|frame| frame | (frame >> 2 & 1) << 9);
        let samples: Vec<(u64, u16)> = frames.map(|frame| (frame, color_under(&[1 << 9, 1 << 5], frame))).collect();
        let Linearity::Linear { masks, agreement, undetermined_bits, .. } = infer_masks(&samples, 0.99, 1) else {
            panic!("linear by construction")
        };
        assert_eq!((masks, agreement), (vec![1 << 2, 1 << 5], 1.0));
        assert_eq!(undetermined_bits, !0x1ff | 1 << 2);
    }

    #[test]
    fn a_bit_that_changes_in_one_of_a_hundred_is_still_decided() {
        let mut random = fastrand::Rng::with_seed(4);
        let masks = [0b1_0000_0001 | 1 << 20, 0b0110, 0b1000, 0b1_0000];
        for seed in 0..5 {
            let mut samples = samples_of(&mut random, &masks, 16, 2000, 40);
            for sample in 0..20 {
                // In samples with right labels, flip bit 20 and bit 0 together, which leaves the color as it was.
                let index = 1000 + sample * 50;
                samples[index].0 ^= 1 << 20 | 1;
            }
            let Linearity::Linear { masks: found, .. } = infer_masks(&samples, 0.95, seed) else {
                panic!("linear by construction")
            };
            assert_eq!(found.into_iter().collect::<Subspace>(), masks.into_iter().collect());
        }
    }

    #[test]
    fn labels_unrelated_to_frames_are_not_linear() {
        // Labels are random, as in a virtual machine: from just enough samples on, and with few labels, which are likeliest to
        // pass by luck.
        let mut random = fastrand::Rng::with_seed(5);
        for label_count in [2, 4, 16] {
            for n in [150, 400, 1000] {
                for seed in 0..2 {
                    let samples: Vec<(u64, u16)> =
                        (0..n).map(|_| (random.u64(..1 << 22), random.u16(..label_count))).collect();
                    let found = infer_masks(&samples, 0.95, seed);
                    let Linearity::NotLinear { best_agreement } = found else { panic!("{n} samples: {found:?}") };
                    assert!(best_agreement < 0.75, "{label_count} labels, {n} samples: {best_agreement}");
                }
            }
        }
    }

    #[test]
    fn few_samples_prove_nothing() {
        let mut random = fastrand::Rng::with_seed(6);
        let masks = random_masks(&mut random, 4, 24);
        // 24 dimensions, 16 labels: at least 2 * (24 + 16) = 80; excluding luck alone needs fewer.
        let samples = samples_of(&mut random, &masks, 24, 79, 0);
        let found = infer_masks(&samples, 0.99, 1);
        assert_eq!(found, Linearity::TooFewSamples { samples: 79, needed: 80 });
        assert_eq!(infer_masks(&[], 0.99, 1), Linearity::TooFewSamples { samples: 0, needed: 2 });
        // The same frame again is not a new sample.
        let repeated: Vec<_> = samples.iter().cycle().take(1000).copied().collect();
        assert_eq!(infer_masks(&repeated, 0.99, 1), found);
        // 1 of 1000 frames has the other label: guessing the first one is 99.9 % right.
        let lopsided: Vec<(u64, u16)> = (0..1000).map(|frame| (frame, (frame == 500).into())).collect();
        assert_eq!(infer_masks(&lopsided, 0.99, 1), Linearity::TooFewSamples { samples: 1000, needed: usize::MAX });
    }

    #[test]
    fn just_enough_samples_are_enough() {
        let mut random = fastrand::Rng::with_seed(9);
        for seed in 0..20 {
            let masks = random_masks(&mut random, 4, 24);
            let samples = samples_of(&mut random, &masks, 24, 90, 0);
            let found = infer_masks(&samples, 1.0, seed);
            let Linearity::Linear { masks: found, .. } = found else { panic!("seed {seed}: {found:?}") };
            assert_eq!(found.into_iter().collect::<Subspace>(), masks.into_iter().collect());
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_answer() {
        let mut random = fastrand::Rng::with_seed(10);
        let samples: Vec<(u64, u16)> = (0..500).map(|_| (random.u64(..1 << 20), random.u16(..16))).collect();
        assert_eq!(infer_masks(&samples, 0.95, 7), infer_masks(&samples, 0.95, 7));
    }

    #[test]
    fn samples_needed_for_two_labels_follow_chernoff() {
        // One mask over 30 dimensions and 2 names: 30 + 1 bits, and 40 for luck. At agreement 1 and even labels each
        // sample is worth one bit: 71. At 0.95 it is worth 1 - H(0.95) = 1 - 0.28640 = 0.71360 bits: 99.5.
        assert_eq!(samples_needed(1, 30, 1.0, 0.5), 71);
        assert_eq!(samples_needed(1, 30, 0.95, 0.5), 100);
    }

    #[test]
    fn one_label_is_one_color() {
        let samples: Vec<(u64, u16)> = (0..100).map(|frame| (frame, 9)).collect();
        let expected =
            Linearity::Linear { masks: vec![], labels: vec![Some(9)], agreement: 1.0, undetermined_bits: !0x7f };
        assert_eq!(infer_masks(&samples, 0.99, 1), expected);
    }

    #[test]
    fn a_stray_class_counts_as_wrong_labels() {
        let mut random = fastrand::Rng::with_seed(7);
        let masks = random_masks(&mut random, 4, 20);
        let mut samples = samples_of(&mut random, &masks, 20, 1000, 0);
        for sample in &mut samples[..5] {
            sample.1 = 999;
        }
        let Linearity::Linear { masks: found, agreement, .. } = infer_masks(&samples, 0.99, 1) else {
            panic!("linear by construction")
        };
        assert_eq!(found.into_iter().collect::<Subspace>(), masks.into_iter().collect());
        assert_eq!(agreement, 0.995);
    }

    #[test]
    fn a_class_never_seen_leaves_its_color_without_label() {
        let mut random = fastrand::Rng::with_seed(11);
        let masks = random_masks(&mut random, 4, 20);
        let mut samples = samples_of(&mut random, &masks, 20, 1000, 0);
        // Names are 7, 10, 13, ...; 10 is one of them.
        samples.retain(|sample| sample.1 != 10);
        let Linearity::Linear { masks: found, labels, agreement, .. } = infer_masks(&samples, 0.99, 1) else {
            panic!("linear by construction")
        };
        assert_eq!(found.into_iter().collect::<Subspace>(), masks.into_iter().collect());
        assert_eq!((labels.iter().flatten().count(), labels.contains(&Some(10)), agreement), (15, false, 1.0));
    }

    #[test]
    fn fewer_right_labels_than_asked_for_are_not_linear() {
        let mut random = fastrand::Rng::with_seed(8);
        let masks = random_masks(&mut random, 4, 20);
        let samples = samples_of(&mut random, &masks, 20, 1000, 30);
        // 30 of 1000 labels are wrong. The right masks are found, but refused.
        assert_eq!(infer_masks(&samples, 0.99, 1), Linearity::NotLinear { best_agreement: 0.97 });
    }

    #[test]
    fn a_function_that_is_not_linear_is_refused() {
        // The majority of three bits has two classes of equal size and is not a parity.
        let samples: Vec<(u64, u16)> =
            (0..1024u64).map(|frame| (frame, ((frame & 7).count_ones() >= 2).into())).collect();
        let Linearity::NotLinear { best_agreement } = infer_masks(&samples, 0.95, 1) else { panic!("not linear") };
        // The best parity is a single bit, which is right in 6 of 8 cases.
        assert!(best_agreement <= 0.75, "{best_agreement}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn random_masks_are_recovered_up_to_their_basis(
            seed in any::<u64>(), mask_count in 4usize..=5, width in 20u32..=26, noisy in any::<bool>()
        ) {
            let mut random = fastrand::Rng::with_seed(seed);
            let masks = random_masks(&mut random, mask_count, width);
            let wrong = if noisy { 24 } else { 0 };
            let samples = samples_of(&mut random, &masks, width, 800, wrong);
            let found = infer_masks(&samples, if noisy { 0.95 } else { 0.99 }, seed);
            let Linearity::Linear { masks: found, labels, agreement, undetermined_bits } = found else {
                return Err(TestCaseError::fail(format!("{found:?}")));
            };
            prop_assert_eq!(agreement, (800 - wrong) as f64 / 800.0);
            prop_assert_eq!(undetermined_bits, !0 << width);
            for &(frame, label) in &samples[wrong..] {
                prop_assert_eq!(labels[usize::from(color_under(&found, frame))], Some(label));
            }
            prop_assert_eq!(found.into_iter().collect::<Subspace>(), masks.into_iter().collect::<Subspace>());
        }
    }
}
