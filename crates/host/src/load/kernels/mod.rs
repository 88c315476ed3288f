//! The measured jobs: digital filter, discrete cosine and Fourier transform, matrix multiplication. [Liedtke1997, §5.2–5.5]
//!
//! The caller decides where the memory lies. [`Filter`] and [`Matmul`] live in slices the caller supplies. The transforms
//! take all their memory from the global allocator while they are constructed, because their crates allocate the tables there;
//! the caller constructs them while the allocator hands out pages of the desired colors. A job itself allocates nothing.
//!
//! Inputs are seeded, hence the same in every run, and every kernel can [check](Kernel::check) its last result against the
//! plain definition: a run on moved or recolored pages is worth nothing if the pages lost their contents.

mod dct;
mod fft;
mod filter;
mod kept;
mod matmul;
mod memory;
mod sample;

use isochrome_model::named;
use isochrome_model::units::Bytes;

pub use dct::Dct;
pub use fft::Fft;
pub use filter::Filter;
pub use matmul::{Matmul, Matrices};
pub use memory::{Walk, Writer};
pub use sample::Sample;

/// A short job that is released again and again.
pub trait Kernel: Send {
    /// Runs one job: filters one sample, or makes one transform. Allocates nothing.
    fn job(&mut self);

    /// Returns the size of the memory that every job touches: arrays and tables, without code and stack.
    fn working_set(&self) -> Bytes;

    /// Compares the result of the last job with the plain definition, computed from the seed.
    ///
    /// This is slow, so call it after measuring. Before the first job there is nothing to compare, and the result is `Ok`.
    fn check(&self) -> Result<(), KernelError>;
}

named! {
    /// The kernels that run as short jobs.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum KernelKind, "a kernel" {
        /// [`Filter`] of 64-bit floating-point numbers.
        FilterF64 = "filter",
        /// [`Filter`] of 32-bit integers.
        FilterI32 = "filter-i32",
        /// [`Dct`].
        Dct = "dct",
        /// [`Fft`].
        Fft = "fft",
    }
}

/// The sizes that a kernel accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Smallest size.
    pub min: usize,
    /// Largest size.
    pub max: usize,
    /// Whether only powers of two are accepted.
    pub power_of_two: bool,
    /// Unit of the size: `taps` or `points`.
    pub unit: &'static str,
    /// Sizes for a sweep, ascending.
    pub sweep: &'static [usize],
}

impl KernelKind {
    /// Returns the sizes that are accepted. The sizes of the filter are those of [Liedtke1997, §5.2].
    pub const fn sizes(self) -> Sizes {
        match self {
            KernelKind::FilterF64 | KernelKind::FilterI32 => Sizes {
                min: 4,
                max: 8192,
                power_of_two: false,
                unit: "taps",
                sweep: &[4, 16, 64, 256, 1024, 2048, 4096, 8192],
            },
            KernelKind::Dct => Sizes {
                min: 64,
                max: 8192,
                power_of_two: true,
                unit: "points",
                sweep: &[64, 128, 256, 512, 1024, 2048, 4096, 8192],
            },
            KernelKind::Fft => Sizes {
                min: 64,
                max: 4096,
                power_of_two: true,
                unit: "points",
                sweep: &[64, 128, 256, 512, 1024, 2048, 4096],
            },
        }
    }

    /// Checks that [`sizes`](Self::sizes) includes `size`; fails otherwise.
    pub fn check_size(self, size: usize) -> Result<(), KernelError> {
        let sizes = self.sizes();
        let accepted = (sizes.min..=sizes.max).contains(&size) && (size.is_power_of_two() || !sizes.power_of_two);
        if accepted { Ok(()) } else { Err(KernelError::Size { kind: self, size }) }
    }

    /// Builds a kernel of this kind with all its memory from the global allocator, the filter's included.
    pub fn build(self, size: usize) -> Result<Box<dyn Kernel>, KernelError> {
        // Refused before allocating: a size from the command line may be absurdly large.
        self.check_size(size)?;
        Ok(match self {
            KernelKind::FilterF64 => {
                Box::new(Filter::<f64, _>::new_in(vec![0.0; Filter::<f64>::memory_len(size)], size)?)
            }
            KernelKind::FilterI32 => {
                Box::new(Filter::<i32, _>::new_in(vec![0; Filter::<i32>::memory_len(size)], size)?)
            }
            KernelKind::Dct => Box::new(Dct::new(size)?),
            KernelKind::Fft => Box::new(Fft::new(size)?),
        })
    }
}

/// Error of a kernel: the request cannot be fulfilled, or a result is wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KernelError {
    /// A size outside the range of the kernel.
    #[error(
        "{kind}: {size} {unit} cannot be run\n  hint: choose {article} from {min} to {max}",
        unit = kind.sizes().unit,
        article = if kind.sizes().power_of_two { "a power of two" } else { "a number" },
        min = kind.sizes().min,
        max = kind.sizes().max
    )]
    Size {
        /// The requested kernel.
        kind: KernelKind,
        /// The requested size.
        size: usize,
    },
    /// A slice of the wrong length was supplied.
    #[error("{what} has {found} elements, {needed} are needed\n  hint: hand over a slice of exactly {needed} elements")]
    MemoryLength {
        /// Name of the slice.
        what: &'static str,
        /// Number of elements needed.
        needed: usize,
        /// Number of elements supplied.
        found: usize,
    },
    /// The last result differs from the plain definition.
    #[error(
        "{kernel}: {what} is {found}, expected {expected}\n  hint: discard the measurement; the memory lost its contents or the CPU is unreliable"
    )]
    WrongResult {
        /// Name of the kernel.
        kernel: &'static str,
        /// Name of the wrong number, such as `element (3, 5)`.
        what: String,
        /// Value by the definition.
        expected: String,
        /// Value that the kernel computed.
        found: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_of_a_sweep_runs_and_computes_what_its_definition_says() {
        for kind in KernelKind::ALL {
            for &size in kind.sizes().sweep {
                let mut kernel = kind.build(size).unwrap();
                kernel.check().unwrap();
                for _ in 0..3 {
                    kernel.job();
                    kernel.check().unwrap_or_else(|error| panic!("{size}: {error}"));
                }
            }
        }
    }

    #[test]
    fn sizes_out_of_range_are_refused_with_the_range() {
        for (kind, bad) in [
            (KernelKind::FilterF64, [0, 3, 8193, usize::MAX]),
            (KernelKind::FilterI32, [0, 3, 8193, usize::MAX]),
            (KernelKind::Dct, [0, 32, 100, 16384]),
            (KernelKind::Fft, [0, 32, 100, 8192]),
        ] {
            for size in bad {
                assert_eq!(kind.build(size).err(), Some(KernelError::Size { kind, size }));
            }
        }
        assert_eq!(
            KernelKind::Fft.check_size(100).unwrap_err().to_string(),
            "fft: 100 points cannot be run\n  hint: choose a power of two from 64 to 4096"
        );
        assert_eq!(
            KernelKind::FilterF64.check_size(3).unwrap_err().to_string(),
            "filter: 3 taps cannot be run\n  hint: choose a number from 4 to 8192"
        );
    }

    #[test]
    fn names_read_back() {
        for kind in KernelKind::ALL {
            assert_eq!(kind.to_string().parse(), Ok(kind));
        }
        assert_eq!(
            "fir".parse::<KernelKind>().unwrap_err().to_string(),
            "`fir` is not a kernel\n  hint: there are filter, filter-i32, dct, fft"
        );
    }

    #[test]
    fn sweeps_ascend_within_the_accepted_sizes() {
        for kind in KernelKind::ALL {
            let sweep = kind.sizes().sweep;
            assert!(sweep.is_sorted());
            assert!(sweep.iter().all(|&size| kind.check_size(size).is_ok()));
            assert_eq!((sweep.first(), sweep.last()), (Some(&kind.sizes().min), Some(&kind.sizes().max)));
        }
    }
}
