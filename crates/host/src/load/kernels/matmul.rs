//! Matrix multiplication `c = a b` of 64x64 floating-point numbers, one 8x8 submatrix of the product after another. [Liedtke1997, §5.4]

use std::hint::black_box;

use isochrome_model::units::Bytes;

use super::KernelError;
use super::sample::{Stream, dot, seeded};

/// Number of rows and of columns of each matrix.
const ORDER: usize = 64;
/// Number of rows and of columns of a submatrix of the product.
const BLOCK: usize = 8;

/// Memory of the three matrices, [`Matmul::ELEMENTS`] numbers each.
pub struct Matrices<M = Vec<f64>> {
    /// Left factor, stored by rows.
    pub a: M,
    /// Right factor, stored by columns.
    pub b: M,
    /// The product, stored by rows.
    pub c: M,
}

impl Matrices {
    /// Allocates three matrices of zeros with the global allocator.
    pub fn allocate() -> Matrices {
        let matrix = || vec![0.0; Matmul::ELEMENTS];
        Matrices { a: matrix(), b: matrix(), c: matrix() }
    }
}

/// A matrix multiplication: a long job that can be interrupted between any two steps.
///
/// Each submatrix of the product needs eight rows of `a` and eight columns of `b`: one 4 KiB page of each if the slices are page-aligned. A
/// step computes one row of one submatrix, eight dot products. It is 1/512 of the job; the shortest time slice of the paper, 25 µs, is
/// 1/436 of its 10.9 ms.
pub struct Matmul<M = Vec<f64>> {
    matrices: Matrices<M>,
    step_count: usize,
}

impl Matmul {
    /// Number of elements of each matrix: 32 KiB, eight pages.
    pub const ELEMENTS: usize = ORDER * ORDER;

    /// Number of steps of one multiplication.
    pub const STEPS: usize = ORDER * ORDER / BLOCK;
}

impl<M: AsRef<[f64]> + AsMut<[f64]>> Matmul<M> {
    /// Fills `a` and `b` with seeded values and clears `c`.
    pub fn new(mut matrices: Matrices<M>) -> Result<Matmul<M>, KernelError> {
        let Matrices { a, b, c } = &mut matrices;
        let (a, b, c) = (a.as_mut(), b.as_mut(), c.as_mut());
        for (what, found) in [("matrix a", a.len()), ("matrix b", b.len()), ("matrix c", c.len())] {
            if found != Matmul::ELEMENTS {
                return Err(KernelError::MemoryLength { what, needed: Matmul::ELEMENTS, found });
            }
        }
        for (matrix, stream) in [(a, Stream::Left), (b, Stream::Right)] {
            for (index, element) in matrix.iter_mut().enumerate() {
                *element = seeded(stream, index as u64);
            }
        }
        c.fill(0.0);
        Ok(Matmul { matrices, step_count: 0 })
    }

    /// Computes the next eight elements of the product; returns `false` if the product was already complete.
    ///
    /// A whole multiplication is `while matmul.step() {}`.
    #[inline]
    pub fn step(&mut self) -> bool {
        if self.step_count == Matmul::STEPS {
            return false;
        }
        let (row, first_column) = elements_of(self.step_count);
        let Matrices { a, b, c } = &mut self.matrices;
        let (a, b, c) = (a.as_ref(), b.as_ref(), c.as_mut());
        let a_row = &a[row * ORDER..][..ORDER];
        let b_columns = b[first_column * ORDER..][..BLOCK * ORDER].chunks_exact(ORDER);
        let c_elements = &mut c[row * ORDER + first_column..][..BLOCK];
        for (element, b_column) in c_elements.iter_mut().zip(b_columns) {
            *element = dot(a_row, b_column);
        }
        black_box(c_elements);
        self.step_count += 1;
        true
    }

    /// Starts over with the first step. `c` keeps its contents until they are overwritten.
    pub fn restart(&mut self) {
        self.step_count = 0;
    }

    /// Returns the number of steps done since the start.
    pub fn step_count(&self) -> usize {
        self.step_count
    }

    /// Returns the product, by rows; it is complete after [`Matmul::STEPS`] steps.
    pub fn product(&self) -> &[f64] {
        self.matrices.c.as_ref()
    }

    /// Returns the size of the memory that one multiplication touches: the three matrices.
    pub fn working_set(&self) -> Bytes {
        Bytes((3 * Matmul::ELEMENTS * size_of::<f64>()) as u64)
    }

    /// Compares the elements computed so far with the plain triple loop over freshly seeded factors; fails at the first wrong element.
    pub fn check(&self) -> Result<(), KernelError> {
        for (row, first_column) in (0..self.step_count).map(elements_of) {
            for column in first_column..first_column + BLOCK {
                let (expected, found) = (by_definition(row, column), self.product()[row * ORDER + column]);
                // Each sum of 64 products below 1 rounds by less than 64 * 64 * 2^-53 < 1e-12. A NaN counts as wrong.
                let agrees = (found - expected).abs() <= 1e-12;
                if !agrees {
                    return Err(KernelError::WrongResult {
                        kernel: "matmul",
                        what: format!("element ({row}, {column})"),
                        expected: expected.to_string(),
                        found: found.to_string(),
                    });
                }
            }
        }
        Ok(())
    }
}

/// Returns the row and the first column of the eight elements that a step computes. Submatrices follow one another along the rows of the
/// product, so that the eight rows of `a` stay in the cache while all of `b` passes by.
fn elements_of(step: usize) -> (usize, usize) {
    let (block, row_in_block) = (step / BLOCK, step % BLOCK);
    let (block_row, block_column) = (block / (ORDER / BLOCK), block % (ORDER / BLOCK));
    (block_row * BLOCK + row_in_block, block_column * BLOCK)
}

/// Returns `c_ij = sum_k a_ik b_kj` with `a` by rows and `b` by columns.
fn by_definition(row: usize, column: usize) -> f64 {
    let element = |stream, line: usize, k: usize| -> f64 { seeded(stream, (line * ORDER + k) as u64) };
    (0..ORDER).map(|k| element(Stream::Left, row, k) * element(Stream::Right, column, k)).sum()
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use super::*;
    use proptest::prelude::*;

    struct Memory([Vec<f64>; 3]);

    impl Memory {
        fn new() -> Memory {
            Memory([(); 3].map(|()| vec![f64::NAN; Matmul::ELEMENTS]))
        }

        fn matmul(&mut self) -> Matmul<&mut Vec<f64>> {
            let [a, b, c] = &mut self.0;
            Matmul::new(Matrices { a, b, c }).unwrap()
        }
    }

    /// The product of one uninterrupted multiplication.
    static WHOLE: LazyLock<Vec<f64>> = LazyLock::new(|| {
        let mut memory = Memory::new();
        let mut matmul = memory.matmul();
        while matmul.step() {}
        matmul.check().unwrap();
        matmul.product().to_vec()
    });

    #[test]
    fn the_product_is_that_of_the_triple_loop() {
        let mut memory = Memory::new();
        let mut matmul = memory.matmul();
        while matmul.step() {}
        matmul.check().unwrap();
        let Matrices { a, b, c } = &matmul.matrices;
        for i in 0..64 {
            for j in 0..64 {
                let mut sum = 0.0;
                for k in 0..64 {
                    sum += a[64 * i + k] * b[64 * j + k];
                }
                assert!((c[64 * i + j] - sum).abs() <= 1e-12, "element ({i}, {j})");
            }
        }
    }

    #[test]
    fn the_unit_matrix_leaves_the_other_factor_as_it_is() {
        let mut memory = Memory::new();
        let mut matmul = memory.matmul();
        matmul.matrices.a.fill(0.0);
        (0..64).for_each(|i| matmul.matrices.a[64 * i + i] = 1.0);
        while matmul.step() {}
        // b is stored by columns, c by rows.
        assert!((0..64 * 64).all(|i| matmul.product()[i] == matmul.matrices.b[64 * (i % 64) + i / 64]));
    }

    #[test]
    fn a_multiplication_takes_exactly_its_number_of_steps() {
        let mut memory = Memory::new();
        let mut matmul = memory.matmul();
        for _ in 0..2 {
            assert_eq!((0..Matmul::STEPS).filter(|_| matmul.step()).count(), 512);
            assert!(!matmul.step() && !matmul.step());
            assert_eq!(matmul.step_count(), 512);
            matmul.restart();
        }
    }

    #[test]
    fn a_submatrix_is_finished_before_the_next_is_begun() {
        let mut memory = Memory::new();
        let mut matmul = memory.matmul();
        matmul.matrices.c.fill(f64::NAN);
        (0..8).for_each(|_| assert!(matmul.step()));
        for i in 0..64 * 64 {
            assert_eq!(matmul.product()[i].is_nan(), i / 64 >= 8 || i % 64 >= 8, "element {i}");
        }
    }

    #[test]
    fn the_check_notices_a_factor_that_lost_its_contents() {
        let mut memory = Memory::new();
        let mut matmul = memory.matmul();
        (0..256).for_each(|_| assert!(matmul.step()));
        matmul.check().unwrap();
        matmul.matrices.b.fill(0.0);
        matmul.step();
        assert!(matches!(matmul.check(), Err(KernelError::WrongResult { .. })));
    }

    #[test]
    fn matrices_of_another_length_are_refused() {
        for short in 0..3 {
            let mut memory = Memory::new();
            memory.0[short].pop();
            let [a, b, c] = &mut memory.0;
            let error = Matmul::new(Matrices { a, b, c }).err().unwrap();
            let what = ["matrix a", "matrix b", "matrix c"][short];
            assert_eq!(error, KernelError::MemoryLength { what, needed: 4096, found: 4095 });
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// The product is the same to the last bit if the multiplication is interrupted at any points, and restarted after any number of steps.
        #[test]
        fn interruptions_do_not_change_the_product(
            abandoned in 0usize..600,
            slices in proptest::collection::vec(1usize..100, 1..40),
        ) {
            let mut memory = Memory::new();
            let mut matmul = memory.matmul();
            (0..abandoned).for_each(|_| { matmul.step(); });
            matmul.restart();
            matmul.matrices.c.fill(f64::NAN);
            let mut slices = slices.iter().cycle();
            let mut interruption_count = 0;
            'job: loop {
                for _ in 0..*slices.next().unwrap() {
                    if !matmul.step() {
                        break 'job;
                    }
                }
                interruption_count += 1;
            }
            prop_assert!(interruption_count > 0);
            prop_assert_eq!(matmul.product(), WHOLE.as_slice());
        }
    }
}
