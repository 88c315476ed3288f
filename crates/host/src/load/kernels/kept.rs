//! A signal that is kept, and the copy of it that a job transforms in place.

/// Gap between signal and copy.
///
/// Two allocations of a multiple of 4 KiB tend to be apart by that multiple and a 16-byte header. At such a distance the copy is slow: on a
/// Zen 3 it takes up to nine times as long as the Fourier transform, apparently because loads wait for stores with the same lower 12
/// address bits. At a distance of a multiple of 4 KiB and one line the copy takes a quarter of the transform or less. A single allocation
/// fixes the distance, so that execution times do not depend on the allocator.
const GAP_BYTES: usize = 64;

/// A signal and its copy, in one allocation.
pub struct Kept<T> {
    memory: Vec<T>,
    points: usize,
}

impl<T: Copy + Default> Kept<T> {
    /// Creates a signal with the values `signal(0..points)`. All values of the copy are defaults.
    pub fn new(points: usize, signal: impl FnMut(usize) -> T) -> Kept<T> {
        let copy_start = points + GAP_BYTES / size_of::<T>();
        let mut memory = vec![T::default(); copy_start + points];
        memory[..points].iter_mut().zip((0..points).map(signal)).for_each(|(element, value)| *element = value);
        Kept { memory, points }
    }

    /// Makes the copy equal to the signal again, and returns the copy.
    #[inline]
    pub fn restore(&mut self) -> &mut [T] {
        let (signal, rest) = self.memory.split_at_mut(self.points);
        let copy = &mut rest[GAP_BYTES / size_of::<T>()..];
        copy.copy_from_slice(signal);
        copy
    }

    /// Returns the copy as the last job has left it.
    pub fn copy(&self) -> &[T] {
        &self.memory[self.memory.len() - self.points..]
    }

    /// Returns the bytes of both arrays.
    pub fn bytes(&self) -> usize {
        2 * self.points * size_of::<T>()
    }

    /// Returns the signal, so that tests can overwrite it.
    #[cfg(test)]
    pub fn signal_mut(&mut self) -> &mut [T] {
        &mut self.memory[..self.points]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_copy_is_restored_whatever_became_of_it() {
        let mut kept = Kept::new(100, |index| index as f64);
        assert_eq!(kept.copy(), [0.0; 100]);
        for _ in 0..2 {
            assert!(kept.restore().iter().enumerate().all(|(index, &value)| value == index as f64));
            kept.restore().fill(f64::NAN);
            assert!(kept.copy().iter().all(|value| value.is_nan()));
        }
    }
}
