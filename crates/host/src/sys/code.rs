//! Machine code in an arena: written first, executed then, never both at a time.

use std::io;

use isochrome_model::miss_ratio::{Processor, Visit, machine_code};
use isochrome_model::units::Cycles;

use super::clock;
use super::memory::{Arena, page_bytes};

/// Machine code that can be executed. The arena becomes writable again when this is dropped.
pub struct Code<'a> {
    arena: &'a Arena,
    entry: usize,
}

impl Arena {
    /// Fills the arena with a loop over `visits` (see [`machine_code`]), and makes it executable instead of writable.
    ///
    /// Fails if no code can be generated for this processor, or the kernel does not let memory become executable. Panics if a visit does not lie
    /// inside the arena.
    pub fn code(&mut self, visits: &[Visit]) -> io::Result<Code<'_>> {
        let processor = Processor::here().ok_or(io::ErrorKind::Unsupported)?;
        let bytes = self.page_count() * page_bytes();
        self.bytes_mut().copy_from_slice(&machine_code(processor, bytes, visits));
        // From here on, dropping `code` makes the memory writable again, even if a call below fails.
        let code = Code { arena: self, entry: visits[0].offset as usize };
        code.protect(libc::PROT_READ | libc::PROT_EXEC)?;
        code.synchronize();
        Ok(code)
    }
}

impl Code<'_> {
    fn protect(&self, protection: libc::c_int) -> io::Result<()> {
        let base = self.arena.page_ptr(0);
        // SAFETY: the range is the arena's own mapping; while it is not writable this value borrows the arena, and nothing writes to it.
        let result = unsafe { libc::mprotect(base.cast(), self.arena.page_count() * page_bytes(), protection) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Makes the written code visible to instruction fetches. Does nothing on x86, where written code always is.
    fn synchronize(&self) {
        #[cfg(target_arch = "aarch64")]
        for offset in (0..self.arena.page_count() * page_bytes()).step_by(16) {
            // 16 bytes is the least that a line can have. [Arm Architecture Reference Manual, CTR_EL0]
            // SAFETY: the address lies in the mapping, which is readable; cleaning and invalidating lines changes no contents.
            unsafe {
                let address = self.arena.page_ptr(0).add(offset);
                core::arch::asm!("dc cvau, {0}", "dsb ish", "ic ivau, {0}", in(reg) address, options(nostack, preserves_flags));
            }
        }
        #[cfg(target_arch = "aarch64")]
        // SAFETY: barriers only.
        unsafe {
            core::arch::asm!("dsb ish", "isb", options(nostack, preserves_flags));
        }
    }

    /// Executes the code for `passes` passes, 1 or more, and returns the time.
    #[inline]
    pub fn run(&self, passes: u64) -> Cycles {
        let entry =
            &raw const *self.arena.page_ptr((self.entry / page_bytes()) as u32).wrapping_add(self.entry % page_bytes());
        // SAFETY: `entry` is where `machine_code` has its first visit, in memory that was made executable and that nothing can have
        // changed since: the function there takes a number as C functions do, uses registers that they may change, and returns.
        let function: extern "C" fn(u64) = unsafe { std::mem::transmute(entry) };
        let begin = clock::now();
        function(passes.max(1));
        let end = clock::now();
        Cycles(end.0 - begin.0)
    }
}

impl Drop for Code<'_> {
    fn drop(&mut self) {
        self.protect(libc::PROT_READ | libc::PROT_WRITE).expect("memory of one's own can be made writable again");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_runs_its_passes_and_its_memory_can_be_written_afterwards() {
        let mut arena = Arena::map(3).unwrap();
        let visits: Vec<Visit> = [64, 8192 + 32, 4096, 0].map(|offset| Visit { offset, instructions: 5 }).to_vec();
        let code = arena.code(&visits).unwrap();
        let few = (0..9).map(|_| code.run(1).0).min();
        let many = (0..9).map(|_| code.run(100_000).0).min();
        // 100 000 passes of 20 instructions take far longer than one pass. A factor of 1000 suffices, because timing adds to the one pass.
        assert!(many.unwrap() > 1000 * few.unwrap().min(100), "{few:?} {many:?}");
        drop(code);
        arena.bytes_mut().fill(1);
    }
}
