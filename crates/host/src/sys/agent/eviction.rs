//! Requests for the eviction tests that the agent makes.

use super::Record;

/// Requests for eviction tests, which measure how long walks over pages take after other pages were traversed. The pages are only read.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct TestHeader {
    /// Number of the latest request; [`LAST`] tells the agent that there will be no more.
    pub request: u64,
    /// Number of the latest request that was answered.
    pub answer: u64,
    /// Ticks without a request after which the agent ends, because the process that makes the requests must have ended.
    pub patience: u64,
    /// Number of traversals of each set.
    pub passes: u64,
    /// Address of the first of the [tests](Test).
    pub tests: u64,
    /// Number of tests.
    pub tests_len: u64,
    /// Number of tests that are left in the current request.
    pub left: u64,
}

/// One eviction test.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Test {
    /// Address of the addresses of the pages that are traversed.
    pub set: u64,
    /// Number of pages in the set.
    pub set_len: u64,
    /// Address of the addresses of the pages that are touched before the traversal and walked after it.
    pub targets: u64,
    /// Number of targets.
    pub targets_len: u64,
    /// Address of the offsets of the words that are touched in each page of the set.
    pub order: u64,
    /// Number of offsets in the order.
    pub order_len: u64,
    /// Number of offsets, from the first on, that are touched and walked in the targets: a power of two.
    pub walked_len: u64,
    /// Address where the ticks of each walk are written.
    pub ticks: u64,
}

/// Value of [`TestHeader::request`] that tells the agent to end.
pub const LAST: u64 = u64::MAX;

// The agent's code relies on these sizes.
const _: () = assert!(size_of::<TestHeader>() == 56 && size_of::<Test>() == 64);
// SAFETY: seven words (56 bytes, asserted above).
unsafe impl Record for TestHeader {}
// SAFETY: eight words (64 bytes, asserted above).
unsafe impl Record for Test {}
