//! The numbers that the kernels compute with: seeded values and the dot product.

use std::fmt;

use super::KernelKind;

/// The array of a kernel that a seeded value belongs to.
#[derive(Clone, Copy)]
pub enum Stream {
    /// The signal that is filtered or transformed.
    Signal = 1,
    /// The filter's coefficients.
    Coefficients,
    /// The left factor of the matrix product.
    Left,
    /// The right factor of the matrix product.
    Right,
}

/// An element of the filter's arrays: `f64`, or `i32` with wrapping arithmetic.
pub trait Sample: sealed::Sealed + Copy + fmt::Debug + Send + 'static {
    /// Kind of the filter that has such elements.
    const FILTER: KernelKind;
    /// Relative error of one operation: the machine epsilon, 0 for integers.
    const EPSILON: f64;
    /// Zero.
    const ZERO: Self;

    /// Returns the sum.
    fn plus(self, other: Self) -> Self;

    /// Returns the product.
    fn times(self, other: Self) -> Self;

    /// Returns the value as a floating-point number, exactly.
    fn to_f64(self) -> f64;

    /// Draws a random value: an `i32` from its whole range, an `f64` from [-1, 1).
    fn random(random: &mut fastrand::Rng) -> Self;
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for f64 {}
    impl Sealed for i32 {}
}

impl Sample for f64 {
    const FILTER: KernelKind = KernelKind::FilterF64;
    const EPSILON: f64 = f64::EPSILON;
    const ZERO: f64 = 0.0;

    #[inline]
    fn plus(self, other: f64) -> f64 {
        self + other
    }

    #[inline]
    fn times(self, other: f64) -> f64 {
        self * other
    }

    fn to_f64(self) -> f64 {
        self
    }

    #[inline]
    fn random(random: &mut fastrand::Rng) -> f64 {
        2.0 * random.f64() - 1.0
    }
}

impl Sample for i32 {
    const FILTER: KernelKind = KernelKind::FilterI32;
    const EPSILON: f64 = 0.0;
    const ZERO: i32 = 0;

    #[inline]
    fn plus(self, other: i32) -> i32 {
        self.wrapping_add(other)
    }

    #[inline]
    fn times(self, other: i32) -> i32 {
        self.wrapping_mul(other)
    }

    fn to_f64(self) -> f64 {
        f64::from(self)
    }

    #[inline]
    fn random(random: &mut fastrand::Rng) -> i32 {
        random.i32(..)
    }
}

/// Returns element `index` of `stream`, the same in every run. The element depends on `stream` and `index` alone, so a check need not
/// trust the memory under test.
#[inline]
pub fn seeded<T: Sample>(stream: Stream, index: u64) -> T {
    T::random(&mut fastrand::Rng::with_seed((stream as u64) << 48 ^ index))
}

/// Returns `sum_i a_i b_i` over two slices of equal length.
#[inline]
pub fn dot<T: Sample>(a: &[T], b: &[T]) -> T {
    // The compiler does not reorder floating-point sums; eight independent sums let it use vector registers.
    let (a_blocks, a_rest) = a.as_chunks::<8>();
    let (b_blocks, b_rest) = b.as_chunks::<8>();
    let mut sums = [T::ZERO; 8];
    for (a, b) in a_blocks.iter().zip(b_blocks) {
        for lane in 0..8 {
            sums[lane] = sums[lane].plus(a[lane].times(b[lane]));
        }
    }
    let rest = a_rest.iter().zip(b_rest).fold(T::ZERO, |sum, (&a, &b)| sum.plus(a.times(b)));
    sums.into_iter().fold(rest, T::plus)
}
