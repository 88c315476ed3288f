//! Discrete cosine transform of type II, `X_k = sum_j x_j cos(pi k (2j + 1) / 2n)`, not scaled. [Liedtke1997, §5.3]
//!
//! The transform would be orthonormal if it were multiplied by `sqrt(1/n)` for `k = 0` and by `sqrt(2/n)` elsewhere.

use std::f64::consts::TAU;
use std::hint::black_box;
use std::sync::Arc;

use isochrome_model::units::Bytes;
use rustdct::{DctPlanner, TransformType2And3};

use super::kept::Kept;
use super::sample::{Stream, seeded};
use super::{Kernel, KernelError, KernelKind};

/// A cosine transform of real numbers. A job copies the signal, which is kept, and transforms the copy in place.
pub struct Dct {
    plan: Arc<dyn TransformType2And3<f64>>,
    signal: Kept<f64>,
    scratch: Vec<f64>,
    has_run: bool,
}

impl Dct {
    /// Creates a transform of `points` points and its seeded signal.
    ///
    /// The tables of the plan are allocated here, too, by a planner of its own for the reason given at [`Fft::new`](super::Fft::new). For
    /// powers of two it always plans the split-radix algorithm.
    pub fn new(points: usize) -> Result<Dct, KernelError> {
        KernelKind::Dct.check_size(points)?;
        let plan = DctPlanner::new().plan_dct2(points);
        let scratch = vec![0.0; plan.get_scratch_len()];
        Ok(Dct { plan, signal: Kept::new(points, signal_at), scratch, has_run: false })
    }

    /// Returns the result of the last job; zeros before the first.
    pub fn spectrum(&self) -> &[f64] {
        self.signal.copy()
    }
}

impl Kernel for Dct {
    fn job(&mut self) {
        // Transforming the result again would let the values grow without bound.
        let numbers = self.signal.restore();
        self.plan.process_dct2_with_scratch(numbers, &mut self.scratch);
        black_box(numbers);
        self.has_run = true;
    }

    /// Returns the size of signal, result, scratch and tables. The tables are counted as `points` numbers, an upper bound that they nearly
    /// reach: split radix keeps `m / 2` numbers for each power of two `m` from 32 to `points`.
    fn working_set(&self) -> Bytes {
        let table_bytes = self.plan.len() * size_of::<f64>();
        Bytes((self.signal.bytes() + size_of_val(self.scratch.as_slice()) + table_bytes) as u64)
    }

    /// Checks the result by Parseval's identity over all points and by the definition at eight of them.
    fn check(&self) -> Result<(), KernelError> {
        if !self.has_run {
            return Ok(());
        }
        let spectrum = self.spectrum();
        let points = spectrum.len();
        let wrong = |what: String, expected: f64, found: f64| {
            let (expected, found) = (expected.to_string(), found.to_string());
            Err(KernelError::WrongResult { kernel: KernelKind::Dct.name(), what, expected, found })
        };
        let signal: Vec<f64> = (0..points).map(signal_at).collect();
        let expected = signal.iter().map(|x| x * x).sum::<f64>();
        let found = energy_of_spectrum(spectrum);
        // The comparison is written so that a NaN does not agree.
        let agrees = (found - expected).abs() <= 1e-12 * expected;
        if !agrees {
            return wrong("the energy".to_owned(), expected, found);
        }
        let magnitude: f64 = signal.iter().map(|x| x.abs()).sum();
        for k in (0..8).map(|i| i * points / 8 + i) {
            let (expected, found) = (by_definition(&signal, k), spectrum[k]);
            let agrees = (found - expected).abs() <= 1e-12 * magnitude;
            if !agrees {
                return wrong(format!("point {k}"), expected, found);
            }
        }
        Ok(())
    }
}

fn signal_at(index: usize) -> f64 {
    seeded(Stream::Signal, index as u64)
}

/// Returns `sum_j x_j^2` computed from the spectrum, since the orthonormal transform preserves it.
fn energy_of_spectrum(spectrum: &[f64]) -> f64 {
    let twice: f64 = spectrum.iter().map(|x| 2.0 * x * x).sum();
    (twice - spectrum[0] * spectrum[0]) / spectrum.len() as f64
}

/// Returns `X_k` by the definition; the angle is reduced before it is rounded.
fn by_definition(signal: &[f64], k: usize) -> f64 {
    let period = 4 * signal.len();
    let angle = |j: usize| TAU * (k * (2 * j + 1) % period) as f64 / period as f64;
    signal.iter().enumerate().map(|(j, x)| x * angle(j).cos()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_point_follows_the_definition() {
        for points in [64, 128, 256, 512, 1024] {
            let mut dct = Dct::new(points).unwrap();
            dct.job();
            let signal: Vec<f64> = (0..points).map(signal_at).collect();
            for k in 0..points {
                let expected = by_definition(&signal, k);
                assert!((dct.spectrum()[k] - expected).abs() < 1e-11, "{points} points, point {k}");
            }
        }
    }

    #[test]
    fn a_constant_has_only_point_zero_and_a_cosine_only_its_own() {
        let mut dct = Dct::new(64).unwrap();
        // By the definition: sum of 64 ones; and the sum of cos^2 over 64 points is half of 64.
        for (wave, height) in [(0, 64.0), (5, 32.0)] {
            dct.signal = Kept::new(64, |j| (TAU * (wave * (2 * j + 1)) as f64 / 256.0).cos());
            dct.job();
            for k in 0..64 {
                let expected = if k == wave { height } else { 0.0 };
                assert!((dct.spectrum()[k] - expected).abs() < 1e-12);
            }
        }
    }

    #[test]
    fn each_job_starts_from_the_same_signal() {
        let mut dct = Dct::new(8192).unwrap();
        dct.job();
        let first = dct.spectrum().to_vec();
        (0..10).for_each(|_| dct.job());
        assert_eq!(dct.spectrum(), first);
    }

    #[test]
    fn the_check_notices_a_signal_that_lost_its_contents() {
        let mut dct = Dct::new(8192).unwrap();
        dct.job();
        dct.check().unwrap();
        for lost in [f64::NAN, 0.0] {
            dct.signal.signal_mut()[1000] = lost;
            dct.job();
            assert!(matches!(dct.check(), Err(KernelError::WrongResult { .. })));
        }
    }
}
