//! One access of a program.

/// Kind of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Loads data.
    Read,
    /// Stores data.
    Write,
    /// Fetches an instruction.
    Fetch,
}

/// One access of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Access {
    /// Address of the first byte.
    pub address: u64,
    /// Number of bytes touched, at least 1.
    pub bytes: u32,
    /// Whether the access reads, writes or fetches.
    pub kind: Kind,
}

impl Access {
    /// Creates a load of one byte.
    pub fn read(address: u64) -> Access {
        Access { address, bytes: 1, kind: Kind::Read }
    }

    /// Creates a store of one byte.
    pub fn write(address: u64) -> Access {
        Access { address, bytes: 1, kind: Kind::Write }
    }

    /// Returns the address of the last byte; the end of the address space if the access reaches beyond it.
    pub(crate) fn last(self) -> u64 {
        self.address.saturating_add(u64::from(self.bytes.max(1)) - 1)
    }

    /// Splits the access into its parts in each page of `1 << page_shift` bytes that it touches.
    pub fn by_pages(self, page_shift: u32) -> impl Iterator<Item = Access> {
        let last = self.last();
        (self.address >> page_shift..=last >> page_shift).map(move |page| {
            let address = self.address.max(page << page_shift);
            let end = last.min(page << page_shift | ((1 << page_shift) - 1));
            Access { address, bytes: (end - address + 1) as u32, kind: self.kind }
        })
    }
}
