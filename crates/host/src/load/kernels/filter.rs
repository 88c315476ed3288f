//! Digital filter `y_t = sum_{i=0}^{n} c_i x_{t-i}`. [Liedtke1997, §5.2]

use std::hint::black_box;
use std::marker::PhantomData;

use isochrome_model::units::Bytes;

use super::sample::{Stream, dot, seeded};
use super::{Kernel, KernelError, Sample};

/// A filter of order `n` ("taps"), with `n + 1` coefficients and a delay line of as many words, for the present input and the `n` before
/// it. A job processes one sample.
///
/// `M`: the memory of both arrays, coefficients first; `&mut [T]` or a `Vec<T>`.
///
/// The delay line is a circular buffer that grows downward: newer inputs lie before older ones, like small `i` before large in the
/// coefficients. The sum then consists of two dot products of contiguous pieces, split where the buffer wraps.
pub struct Filter<T, M = Vec<T>> {
    memory: M,
    taps: usize,
    /// Index of `x_t` in the delay line.
    newest: usize,
    /// Number of jobs done, which is the index of the next input.
    job_count: u64,
    /// Result of the last job.
    output: T,
    elements: PhantomData<T>,
}

impl<T: Sample> Filter<T> {
    /// Returns the number of elements of memory that a filter of `taps` needs: two arrays of `taps + 1`.
    pub const fn memory_len(taps: usize) -> usize {
        2 * (taps + 1)
    }
}

impl<T: Sample, M: AsRef<[T]> + AsMut<[T]>> Filter<T, M> {
    /// Creates a filter of `taps` in `memory` of [`Filter::memory_len`] elements, with seeded coefficients and no input yet.
    pub fn new_in(mut memory: M, taps: usize) -> Result<Self, KernelError> {
        T::FILTER.check_size(taps)?;
        let (needed, found) = (Filter::<T>::memory_len(taps), memory.as_ref().len());
        if found != needed {
            return Err(KernelError::MemoryLength { what: "the filter's memory", needed, found });
        }
        let (coefficients, delay_line) = memory.as_mut().split_at_mut(taps + 1);
        for (index, coefficient) in coefficients.iter_mut().enumerate() {
            *coefficient = seeded(Stream::Coefficients, index as u64);
        }
        delay_line.fill(T::ZERO);
        Ok(Filter { memory, taps, newest: 0, job_count: 0, output: T::ZERO, elements: PhantomData })
    }

    /// Returns the result of the last job; zero before the first.
    pub fn output(&self) -> T {
        self.output
    }

    /// Returns `y_t` for the input `x_t`.
    #[inline]
    fn feed(&mut self, input: T) -> T {
        let (coefficients, delay_line) = self.memory.as_mut().split_at_mut(self.taps + 1);
        self.newest = if self.newest == 0 { self.taps } else { self.newest - 1 };
        delay_line[self.newest] = input;
        let (older, newer) = delay_line.split_at(self.newest);
        let (small, large) = coefficients.split_at(newer.len());
        dot(small, newer).plus(dot(large, older))
    }
}

impl<T: Sample, M: AsRef<[T]> + AsMut<[T]> + Send> Kernel for Filter<T, M> {
    fn job(&mut self) {
        self.output = black_box(self.feed(seeded(Stream::Signal, self.job_count)));
        self.job_count += 1;
    }

    fn working_set(&self) -> Bytes {
        Bytes(size_of_val(self.memory.as_ref()) as u64)
    }

    fn check(&self) -> Result<(), KernelError> {
        let inputs = (0..self.job_count).rev().map(|time| seeded(Stream::Signal, time));
        let coefficients = (0..=self.taps as u64).map(|index| seeded(Stream::Coefficients, index));
        let (expected, tolerance) = plain_sum::<T>(coefficients.zip(inputs));
        if (self.output.to_f64() - expected.to_f64()).abs() <= tolerance {
            return Ok(());
        }
        Err(KernelError::WrongResult {
            kernel: T::FILTER.name(),
            what: format!("output {}", self.job_count),
            expected: format!("{expected:?}"),
            found: format!("{:?}", self.output),
        })
    }
}

/// Returns `sum a b` from first to last, and a bound on its distance from the same sum in another order: each order is within
/// `count * epsilon / 2 * sum |a b|` of the exact sum.
fn plain_sum<T: Sample>(pairs: impl Iterator<Item = (T, T)>) -> (T, f64) {
    let (mut sum, mut magnitude, mut count) = (T::ZERO, 0.0, 0.0);
    for (a, b) in pairs {
        sum = sum.plus(a.times(b));
        magnitude += (a.to_f64() * b.to_f64()).abs();
        count += 1.0;
    }
    (sum, count * T::EPSILON * magnitude)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Processes `inputs`, and compares every output with a convolution over the whole history.
    fn assert_convolves<T: Sample>(taps: usize, inputs: &[T]) {
        let mut memory = vec![T::ZERO; Filter::<T>::memory_len(taps)];
        let mut filter = Filter::<T, _>::new_in(memory.as_mut_slice(), taps).unwrap();
        let coefficients: Vec<T> = (0..=taps).map(|index| seeded(Stream::Coefficients, index as u64)).collect();
        for (time, &input) in inputs.iter().enumerate() {
            let output = filter.feed(input);
            let pairs = (0..=taps.min(time)).map(|i| (coefficients[i], inputs[time - i]));
            let (expected, tolerance) = plain_sum(pairs);
            assert!(
                (output.to_f64() - expected.to_f64()).abs() <= tolerance,
                "{taps} taps, time {time}: {output:?}, expected {expected:?}"
            );
        }
    }

    fn assert_convolves_seeded<T: Sample>(taps: usize) {
        let inputs: Vec<T> = (0..3 * taps as u64).map(|time| seeded(Stream::Signal, time)).collect();
        assert_convolves(taps, &inputs);
    }

    #[test]
    fn the_filter_is_a_convolution() {
        for taps in [4, 5, 7, 8, 64, 511, 512, 1024] {
            assert_convolves_seeded::<f64>(taps);
            assert_convolves_seeded::<i32>(taps);
        }
    }

    #[test]
    fn an_impulse_brings_out_the_coefficients_in_order_and_then_nothing() {
        let mut filter = Filter::<i32, _>::new_in(vec![0; 12], 5).unwrap();
        filter.memory[..6].copy_from_slice(&[10, 20, 30, 40, 50, 60]);
        let outputs: Vec<i32> = [1, 0, 0, 0, 0, 0, 0, 0].map(|input| filter.feed(input)).into();
        assert_eq!(outputs, [10, 20, 30, 40, 50, 60, 0, 0]);
    }

    #[test]
    fn integers_wrap() {
        let mut filter = Filter::<i32, _>::new_in(vec![0; 10], 4).unwrap();
        filter.memory[..5].copy_from_slice(&[i32::MAX, i32::MAX, 0, 0, 0]);
        assert_eq!(filter.feed(1), i32::MAX);
        // 2 (2^31 - 1) = 2^32 - 2, which is -2 modulo 2^32.
        assert_eq!(filter.feed(1), -2);
    }

    #[test]
    fn the_footprint_is_two_arrays_of_n_plus_one_words() {
        let filter = Filter::<f64, _>::new_in(vec![0.0; 1024], 511).unwrap();
        assert_eq!(filter.working_set(), Bytes(2 * 4096));
        let filter = Filter::<i32, _>::new_in(vec![0; 1024], 511).unwrap();
        assert_eq!(filter.working_set(), Bytes(2 * 2048));
    }

    #[test]
    fn memory_of_another_length_is_refused() {
        for found in [0, 9, 11] {
            let error = Filter::<f64, _>::new_in(vec![0.0; found], 4).err().unwrap();
            assert_eq!(error, KernelError::MemoryLength { what: "the filter's memory", needed: 10, found });
        }
    }

    #[test]
    fn the_check_notices_memory_that_lost_its_contents() {
        for lost in [3, 10] {
            let mut filter = Filter::<f64, _>::new_in(vec![0.0; 12], 5).unwrap();
            (0..20).for_each(|_| filter.job());
            filter.check().unwrap();
            filter.memory[lost] = 0.0;
            filter.job();
            assert!(matches!(filter.check(), Err(KernelError::WrongResult { .. })), "element {lost}");
        }
    }

    proptest! {
        #[test]
        fn integer_filters_of_any_order_convolve_exactly(
            taps in 4usize..200,
            inputs in proptest::collection::vec(any::<i32>(), 0..600),
        ) {
            assert_convolves(taps, &inputs);
        }

        #[test]
        fn floating_point_filters_of_any_order_convolve_within_rounding(
            taps in 4usize..200,
            inputs in proptest::collection::vec(-1e6f64..1e6, 0..600),
        ) {
            assert_convolves(taps, &inputs);
        }
    }
}
