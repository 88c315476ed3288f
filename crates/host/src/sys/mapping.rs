//! One mapping of a process, reported by the kernel without a list of all of them (Linux 6.11).

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// `struct procmap_query`. [Linux, include/uapi/linux/fs.h]
#[repr(C)]
struct Query {
    size: u64,
    flags: u64,
    address: u64,
    start: u64,
    end: u64,
    permissions: u64,
    page_bytes: u64,
    offset: u64,
    inode: u64,
    device: [u32; 2],
    name_bytes: u32,
    build_id_bytes: u32,
    name: u64,
    build_id: u64,
}

/// `PROCMAP_QUERY`: `_IOWR('f', 17, struct procmap_query)`.
const PROCMAP_QUERY: u32 = 3 << 30 | (size_of::<Query>() as u32) << 16 | (b'f' as u32) << 8 | 17;

/// State of a mapping as the kernel reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// First address of the mapping.
    pub start: u64,
    /// First address behind the mapping.
    pub end: u64,
    /// Whether the mapping may be read, written and executed, and whether it is shared.
    pub permissions: [bool; 4],
    /// Inode number of the mapped file; 0 for anonymous memory.
    pub inode: u64,
}

/// Returns the mapping that holds `address`; `None` if nothing is mapped there. `maps`: the open file /proc/PID/maps of the process.
///
/// Fails with `ENOTTY` where the kernel does not know the request.
pub fn at(maps: &File, address: u64) -> io::Result<Option<Found>> {
    let mut query = Query {
        size: size_of::<Query>() as u64,
        flags: 0,
        address,
        start: 0,
        end: 0,
        permissions: 0,
        page_bytes: 0,
        offset: 0,
        inode: 0,
        device: [0; 2],
        name_bytes: 0,
        build_id_bytes: 0,
        name: 0,
        build_id: 0,
    };
    // SAFETY: the kernel reads and writes one `struct procmap_query` at the address of a live, exclusively borrowed structure of that
    // layout, which is made of integers; the query requests no name and no build number, so it writes nowhere else.
    if unsafe { libc::ioctl(maps.as_raw_fd(), PROCMAP_QUERY as _, &raw mut query) } < 0 {
        let error = io::Error::last_os_error();
        return if error.raw_os_error() == Some(libc::ENOENT) { Ok(None) } else { Err(error) };
    }
    let permissions = [1, 2, 4, 8].map(|bit| query.permissions & bit != 0);
    Ok(Some(Found { start: query.start, end: query.end, permissions, inode: query.inode }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::memory::{Arena, page_bytes};

    #[test]
    fn the_request_number_is_the_kernels() {
        // <linux/fs.h>: _IOWR('f', 17, 104 bytes) = 0xc0686611.
        assert_eq!(PROCMAP_QUERY, 0xc068_6611);
    }

    #[test]
    fn a_mapping_is_found_by_an_address_within_it() {
        let maps = File::open("/proc/self/maps").unwrap();
        let arena = Arena::map(4).unwrap();
        let address = arena.address() as u64;
        let found = match at(&maps, address + page_bytes() as u64) {
            // Kernels before 6.11 do not know the request.
            Err(error) if error.raw_os_error() == Some(libc::ENOTTY) => return,
            found => found.unwrap().unwrap(),
        };
        // The kernel joins mappings that are alike.
        assert!(found.start <= address && address + 4 * page_bytes() as u64 <= found.end, "{found:?}");
        assert_eq!((found.permissions, found.inode), ([true, true, false, false], 0));
        assert_eq!(at(&maps, 0).unwrap(), None);
    }
}
