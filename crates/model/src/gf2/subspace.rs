//! Subspaces of the 64-bit vectors over GF(2), and their orthogonal complements.

/// A subspace of the 64-bit vectors over GF(2), stored as its reduced basis. Each basis vector is the only one that has its own
/// lowest bit set, and the vectors are ordered by this bit. Equal subspaces have equal bases.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Subspace {
    basis: Vec<u64>,
}

impl Subspace {
    /// Adds a vector to the space, and returns `false` if the space contained it already.
    pub fn insert(&mut self, vector: u64) -> bool {
        let vector = self.reduce(vector);
        if vector == 0 {
            return false;
        }
        let lowest_bit = lowest(vector);
        for other in &mut self.basis {
            if *other & lowest_bit != 0 {
                *other ^= vector;
            }
        }
        let index = self.basis.partition_point(|&other| lowest(other) < lowest_bit);
        self.basis.insert(index, vector);
        true
    }

    /// Whether the space contains `vector`, that is, whether `vector` is a XOR of basis vectors.
    pub fn contains(&self, vector: u64) -> bool {
        self.reduce(vector) == 0
    }

    /// Returns the number of dimensions.
    pub fn rank(&self) -> usize {
        self.basis.len()
    }

    /// Returns the reduced basis, by ascending lowest bit.
    pub fn basis(&self) -> &[u64] {
        &self.basis
    }

    /// Returns the lowest bits of the basis vectors. The values of these coordinates determine a vector of the space.
    pub fn pivots(&self) -> u64 {
        self.basis.iter().fold(0, |pivots, &vector| pivots | lowest(vector))
    }

    /// Returns all vectors over the coordinates `within` that have even parity with every vector of the space.
    pub fn annihilator(&self, within: u64) -> Self {
        let projected: Self = self.basis.iter().map(|vector| vector & within).collect();
        let pivots = projected.pivots();
        // Any bit that is not a pivot may be set; each pivot is then set if that makes the parity with its vector even.
        let free = bits(within & !pivots);
        free.map(|bit| {
            let meeting = projected.basis.iter().filter(|&&vector| vector & bit != 0);
            meeting.fold(bit, |mask, &vector| mask | lowest(vector))
        })
        .collect()
    }

    /// Returns a basis with the fewest set bits, in ascending order.
    ///
    /// The search tries every vector of the space, so it is limited to 16 dimensions. For more dimensions, this returns the
    /// reduced basis.
    pub fn fewest_bits_basis(&self) -> Vec<u64> {
        if self.rank() > 16 {
            return self.basis.clone();
        }
        let mut vectors = vec![0];
        for basis_vector in &self.basis {
            vectors.extend_from_within(..);
            let half = vectors.len() / 2;
            vectors[half..].iter_mut().for_each(|vector| *vector ^= basis_vector);
        }
        // Taking the lightest first is optimal: independent sets of vectors form a matroid.
        vectors.sort_unstable_by_key(|vector| (vector.count_ones(), *vector));
        let mut spanned = Self::default();
        vectors.retain(|&vector| spanned.insert(vector));
        vectors.sort_unstable();
        vectors
    }

    fn reduce(&self, vector: u64) -> u64 {
        self.basis.iter().fold(vector, |rest, other| if rest & lowest(*other) != 0 { rest ^ other } else { rest })
    }
}

impl Extend<u64> for Subspace {
    fn extend<T: IntoIterator<Item = u64>>(&mut self, vectors: T) {
        for vector in vectors {
            self.insert(vector);
        }
    }
}

impl FromIterator<u64> for Subspace {
    fn from_iter<T: IntoIterator<Item = u64>>(vectors: T) -> Self {
        let mut spanned = Self::default();
        spanned.extend(vectors);
        spanned
    }
}

/// Returns the lowest set bit alone.
fn lowest(vector: u64) -> u64 {
    vector & vector.wrapping_neg()
}

/// Returns the set bits one by one, lowest first.
pub(super) fn bits(mut vector: u64) -> impl Iterator<Item = u64> {
    std::iter::from_fn(move || {
        let bit = lowest(vector);
        vector ^= bit;
        (bit != 0).then_some(bit)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    /// Returns all XORs of subsets of `vectors`: the span by its definition.
    fn naive_span(vectors: &[u64]) -> BTreeSet<u64> {
        let xor_of = |subset: u32| {
            let chosen = vectors.iter().enumerate().filter(|(i, _)| subset >> i & 1 == 1);
            chosen.fold(0, |xor, (_, vector)| xor ^ vector)
        };
        (0..1u32 << vectors.len()).map(xor_of).collect()
    }

    proptest! {
        #[test]
        fn subspace_is_the_naive_span(vectors in prop::collection::vec(0u64..64, 0..7)) {
            let spanned: Subspace = vectors.iter().copied().collect();
            let naive = naive_span(&vectors);
            prop_assert_eq!(1 << spanned.rank(), naive.len());
            for vector in 0..64 {
                prop_assert_eq!(spanned.contains(vector), naive.contains(&vector));
            }
            prop_assert_eq!(naive_span(spanned.basis()), naive_span(&vectors));
            let reversed: Subspace = vectors.iter().rev().copied().collect();
            prop_assert_eq!(&spanned, &reversed, "the basis depends on the space alone");
        }

        #[test]
        fn annihilator_is_all_masks_of_even_parity(
            vectors in prop::collection::vec(0u64..64, 0..7), within in 0u64..64
        ) {
            let spanned: Subspace = vectors.iter().copied().collect();
            let annihilator = spanned.annihilator(within);
            for mask in 0u64..64 {
                let even = vectors.iter().all(|vector| (vector & mask).count_ones() % 2 == 0);
                prop_assert_eq!(annihilator.contains(mask), even && mask & !within == 0);
            }
        }

        #[test]
        fn fewest_bits_basis_spans_the_same_with_no_lighter_one(vectors in prop::collection::vec(0u64..64, 0..4)) {
            let spanned: Subspace = vectors.iter().copied().collect();
            let basis = spanned.fewest_bits_basis();
            prop_assert_eq!(basis.iter().copied().collect::<Subspace>(), spanned.clone());
            let weight = |vectors: &[u64]| vectors.iter().map(|vector| vector.count_ones()).sum::<u32>();
            let all: Vec<u64> = naive_span(&vectors).into_iter().collect();
            // Every choice of `rank` vectors (at most 8 vectors, so at most 256 subsets) that spans the space.
            for subset in 0..1u32 << all.len() {
                let chosen: Vec<u64> = (0..all.len()).filter(|i| subset >> i & 1 == 1).map(|i| all[i]).collect();
                if chosen.len() == spanned.rank() && chosen.iter().copied().collect::<Subspace>() == spanned {
                    prop_assert!(weight(&basis) <= weight(&chosen));
                }
            }
        }
    }
}
