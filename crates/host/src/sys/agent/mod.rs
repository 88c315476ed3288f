//! The code that a helper thread runs inside another process to give the pages of that process other frames.
//!
//! The code is position-independent, needs no memory but its table, and finishes the table on its own, even if isochrome is killed. No other thread
//! of the process may run until the table is finished. At every instant the contents of a page are in at least one of three places: the page, the
//! scratch memory, or the new frame. The helper goes on until they are in the page again.
//!
//! Linux 6.18 may move pages without reporting them: once a page was busy for an instant, as it is while memory is compacted, the next pages are
//! moved and then refused with EEXIST, because they are there. As nothing else puts pages there, EEXIST means that the page was moved. [Linux 6.18,
//! mm/userfaultfd.c, move_pages: `err` stays -EAGAIN]
//!
//! If frame numbers are hidden, the code also measures which pages evict which. The other threads may run during these tests.

#[cfg(target_arch = "aarch64")]
mod aarch64;
mod cave;
mod eviction;
mod table;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod x86_64;

use std::slice;

pub use cave::{CAVE, WAIT, WAITING_CALL};
pub use eviction::{LAST, Test, TestHeader};
pub use table::{DEADLINE_AT, DONE, Entry, MoveMethod, NEIGHBOR, RUN, Table};

unsafe extern "C" {
    static isochrome_agent_begin: u8;
    static isochrome_agent_end: u8;
}

/// Returns the helper's code. The code begins at its first byte, with the address of the [`Table`] as argument and a stack of 64 bytes.
pub fn code() -> &'static [u8] {
    let (begin, end) = (&raw const isochrome_agent_begin, &raw const isochrome_agent_end);
    // SAFETY: the assembler put both labels into one section, the second behind the first; the text between them is readable
    // and never changes.
    unsafe { slice::from_raw_parts(begin, end.addr() - begin.addr()) }
}

/// Returns the bytes of `record`, as they lie in memory.
pub fn bytes_of<T: Record>(record: &T) -> &[u8] {
    // SAFETY: a `Record` is a `repr(C)` structure of integers without padding, so all its bytes are initialized.
    unsafe { slice::from_raw_parts(std::ptr::from_ref(record).cast(), size_of::<T>()) }
}

/// Returns the record that `bytes` hold. Panics if the number of bytes is not the size of `T`.
pub fn record_from<T: Record>(bytes: &[u8]) -> T {
    assert_eq!(bytes.len(), size_of::<T>());
    // SAFETY: there are as many bytes as a `T` has, and a `Record` consists of integers alone, so any bytes are a valid value.
    unsafe { bytes.as_ptr().cast::<T>().read_unaligned() }
}

/// Structures of integers without padding.
///
/// # Safety
///
/// Every byte belongs to a field, and every combination of bytes is a value.
pub unsafe trait Record: Copy {}
