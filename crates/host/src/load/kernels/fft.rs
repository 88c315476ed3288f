//! Fast Fourier transform `X_k = sum_j x_j exp(-2 pi i j k / n)`, not scaled. [Liedtke1997, §5.3]

use std::f64::consts::TAU;
use std::hint::black_box;
use std::sync::Arc;

use isochrome_model::units::Bytes;
use rustfft::FftPlanner;
use rustfft::num_complex::Complex;

use super::kept::Kept;
use super::sample::{Stream, seeded};
use super::{Kernel, KernelError, KernelKind};

/// A Fourier transform of complex numbers. A job copies the signal, which is kept, and transforms the copy in place.
pub struct Fft {
    plan: Arc<dyn rustfft::Fft<f64>>,
    signal: Kept<Complex<f64>>,
    scratch: Vec<Complex<f64>>,
    has_run: bool,
}

impl Fft {
    /// Creates a transform of `points` points and its seeded signal.
    ///
    /// The tables of the plan are allocated here, too, by a planner of its own. A shared planner could return tables that lie in the colors of
    /// another task. The algorithm that the planner chooses depends on `points` and on the vector instructions of the CPU only.
    pub fn new(points: usize) -> Result<Fft, KernelError> {
        KernelKind::Fft.check_size(points)?;
        let plan = FftPlanner::new().plan_fft_forward(points);
        let scratch = vec![Complex::default(); plan.get_inplace_scratch_len()];
        Ok(Fft { plan, signal: Kept::new(points, signal_at), scratch, has_run: false })
    }

    /// Returns the result of the last job; zeros before the first.
    pub fn spectrum(&self) -> &[Complex<f64>] {
        self.signal.copy()
    }
}

impl Kernel for Fft {
    fn job(&mut self) {
        // Transforming the result again would let the values grow without bound.
        let numbers = self.signal.restore();
        self.plan.process_with_scratch(numbers, &mut self.scratch);
        black_box(numbers);
        self.has_run = true;
    }

    /// Returns the size of signal, result, scratch and tables. The tables are counted as `points` numbers, an upper bound that they nearly
    /// reach: a step of radix `r` that makes `m` points from `m / r` keeps `m - m / r` numbers, which adds up to less than `points`.
    fn working_set(&self) -> Bytes {
        let table_bytes = self.plan.len() * size_of::<Complex<f64>>();
        Bytes((self.signal.bytes() + size_of_val(self.scratch.as_slice()) + table_bytes) as u64)
    }

    /// Checks the result by Parseval's identity over all points and by the definition at eight of them.
    fn check(&self) -> Result<(), KernelError> {
        if !self.has_run {
            return Ok(());
        }
        let spectrum = self.spectrum();
        let points = spectrum.len();
        let wrong = |what: String, expected: String, found: String| {
            Err(KernelError::WrongResult { kernel: KernelKind::Fft.name(), what, expected, found })
        };
        let signal: Vec<Complex<f64>> = (0..points).map(signal_at).collect();
        let expected = points as f64 * signal.iter().map(Complex::norm_sqr).sum::<f64>();
        let found: f64 = spectrum.iter().map(Complex::norm_sqr).sum();
        // The comparison is written so that a NaN does not agree.
        let agrees = (found - expected).abs() <= 1e-12 * expected;
        if !agrees {
            return wrong("the energy".to_owned(), expected.to_string(), found.to_string());
        }
        let magnitude: f64 = signal.iter().map(|x| x.norm()).sum();
        for k in (0..8).map(|i| i * points / 8 + i) {
            let (expected, found) = (by_definition(&signal, k), spectrum[k]);
            let agrees = (found - expected).norm() <= 1e-12 * magnitude;
            if !agrees {
                return wrong(format!("point {k}"), expected.to_string(), found.to_string());
            }
        }
        Ok(())
    }
}

fn signal_at(index: usize) -> Complex<f64> {
    let index = 2 * index as u64;
    Complex::new(seeded(Stream::Signal, index), seeded(Stream::Signal, index + 1))
}

/// Returns `X_k` by the definition; the angle is reduced before it is rounded.
fn by_definition(signal: &[Complex<f64>], k: usize) -> Complex<f64> {
    let n = signal.len();
    let angle = |j: usize| -TAU * (j * k % n) as f64 / n as f64;
    signal.iter().enumerate().map(|(j, x)| x * Complex::cis(angle(j))).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_point_of_a_small_transform_follows_the_definition() {
        for points in [64, 128, 256, 512] {
            let mut fft = Fft::new(points).unwrap();
            fft.job();
            let signal: Vec<Complex<f64>> = (0..points).map(signal_at).collect();
            for k in 0..points {
                let expected = by_definition(&signal, k);
                assert!((fft.spectrum()[k] - expected).norm() < 1e-11, "{points} points, point {k}");
            }
        }
    }

    #[test]
    fn a_constant_has_only_point_zero_and_a_wave_only_its_own() {
        let mut fft = Fft::new(64).unwrap();
        // By the definition: sum of 64 ones; and exp(2 pi i 5 j / 64) cancels every term but that of k = 5.
        for (wave, peak) in [(0, 0), (5, 5)] {
            fft.signal = Kept::new(64, |j| Complex::cis(TAU * (wave * j) as f64 / 64.0));
            fft.job();
            for k in 0..64 {
                let expected = if k == peak { 64.0 } else { 0.0 };
                assert!((fft.spectrum()[k] - expected).norm() < 1e-12);
            }
        }
    }

    #[test]
    fn each_job_starts_from_the_same_signal() {
        let mut fft = Fft::new(4096).unwrap();
        fft.job();
        let first = fft.spectrum().to_vec();
        (0..10).for_each(|_| fft.job());
        assert_eq!(fft.spectrum(), first);
    }

    #[test]
    fn the_check_notices_a_signal_that_lost_its_contents() {
        let mut fft = Fft::new(4096).unwrap();
        fft.job();
        fft.check().unwrap();
        fft.signal.signal_mut()[1000] = Complex::new(f64::NAN, 0.0);
        fft.job();
        assert!(matches!(fft.check(), Err(KernelError::WrongResult { .. })));
        fft.signal.signal_mut()[1000] = Complex::new(0.0, 0.0);
        fft.job();
        assert!(matches!(fft.check(), Err(KernelError::WrongResult { .. })));
    }
}
