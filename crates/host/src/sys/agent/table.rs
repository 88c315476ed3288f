//! The table that tells the agent what to do: its header, and an entry for each page.

use super::Record;

/// Largest number of pages that are moved at a time.
pub const RUN: usize = 64;

/// Method by which an entry of the table is carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum MoveMethod {
    /// Moves a page: UFFDIO_MOVE to scratch memory, a copy, and UFFDIO_MOVE of the new frame into place.
    Move = 0,
    /// Moves a page of a file that is mapped privately and was not written to: gives the new frame back to the system and writes to the
    /// page. The kernel then makes the private copy in the frame that was freed last.
    Copy = 1,
    /// Moves any other page: saves it, drops it, gives the new frame back, writes to the page, and restores the saved contents.
    Replace = 2,
    /// Moves no page, but gives the kernel the advice `run` about the memory from `page` on, `slot` bytes. The result is the status.
    Advise = 3,
    /// Moves no page, but registers the memory from `page` on, `slot` bytes, with the userfaultfd `run`. The result of the ioctl is the
    /// status.
    Register = 5,
    /// Moves no page, but gives the memory from `page` on, `slot` bytes, the protection `run`. The result of mprotect is the status.
    Protect = 6,
    /// Moves no page, but answers the requests of the [`TestHeader`](super::TestHeader) at the address `page`, until the last request is made.
    Test = 4,
}

/// A page to be moved, as the agent reads it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Entry {
    /// Address of the page.
    pub page: u64,
    /// Address of the page of the pool whose frame the page is to have.
    pub slot: u64,
    /// Move method: a [`MoveMethod`] as a number.
    pub method: u32,
    /// In the first entry of a run (pages that are moved together): the number of entries of the run. In the others: [`NEIGHBOR`], or 1 if the
    /// page is not a neighbor. In entries that move no page: the argument that their [`MoveMethod`] describes, or 1 if it describes none.
    pub run: u32,
    /// 0 before the entry is handled; afterwards [`DONE`], or a negative error number if the page was left as it was.
    pub status: i64,
}

/// Value of [`Entry::run`] for a page within a run that follows the previous one in the same mapping, so that both are moved out together.
pub const NEIGHBOR: u32 = 0;

/// [`Entry::status`] of a page that was given its new frame.
pub const DONE: i64 = 2;

/// Arguments of the agent's code; the entries are separate.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Table {
    /// A userfaultfd with which all pages to be moved are registered. It is closed at the end.
    pub userfault: i64,
    /// Address of the first entry.
    pub entries: u64,
    /// Number of entries.
    pub count: u64,
    /// Address of [`RUN`] empty pages.
    pub scratch: u64,
    /// Bytes of a page.
    pub page_bytes: u64,
    /// Advice that drops pages: MADV_DONTNEED, or the advice that drops locked pages too.
    pub advice: u64,
    /// Number of entries that were begun. After the helpers have ended, all of these are finished, and each helper that found no entry left
    /// has added one.
    pub begun: u64,
    /// A `struct uffdio_move`, followed by room for an error number.
    pub request: [u64; 6],
    /// Address of a page in which the contents of another page can be saved.
    pub saved: u64,
    /// Counter value from which on no entry and no run is begun, except the first.
    pub deadline: u64,
    /// Value of the counter when the last entry was finished.
    pub ended: u64,
}

/// Offset of the deadline in a [`Table`], in bytes.
pub const DEADLINE_AT: u64 = std::mem::offset_of!(Table, deadline) as u64;

// The agent's code relies on these sizes.
const _: () = assert!(size_of::<Entry>() == 32 && size_of::<Table>() == 128);
// SAFETY: two u64, two u32 and one i64, in this order: no padding (32 bytes, asserted above).
unsafe impl Record for Entry {}
// SAFETY: sixteen words (128 bytes, asserted above).
unsafe impl Record for Table {}
