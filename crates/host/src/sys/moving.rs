//! Moving resident pages to other addresses: the frame, and with it the color, stays the same.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use super::memory::{Arena, page_bytes};
use super::userfault;

/// How pages are moved.
pub enum Mover {
    /// UFFDIO_MOVE (Linux 6.8 and later): splits no VMA.
    Userfault(OwnedFd),
    /// `mremap` page by page: every page that does not follow its neighbor becomes a VMA of its own.
    Remap,
}

// linux/userfaultfd.h, alike on x86-64 and aarch64.
const UFFDIO_REGISTER: u64 = 0xc020_aa00;
const UFFDIO_UNREGISTER: u64 = 0x8010_aa01;
const UFFDIO_MOVE: u64 = 0xc028_aa05;
const UFFDIO_REGISTER_MODE_MISSING: u64 = 1;

#[repr(C)]
#[derive(Default)]
struct Register {
    start: u64,
    len: u64,
    mode: u64,
    ioctls: u64,
}

#[repr(C)]
#[derive(Default)]
struct Move {
    dst: u64,
    src: u64,
    len: u64,
    mode: u64,
    moved: i64,
}

/// Tries after which a page that the kernel keeps busy is given up.
const TRIES: u32 = 1000;

impl Mover {
    /// The best way this kernel allows; neither needs a privilege.
    pub fn open() -> Mover {
        match userfault::open_for_user_mode() {
            Ok((fd, features)) if features & userfault::FEATURE_MOVE != 0 => Mover::Userfault(fd),
            _ => Mover::Remap,
        }
    }

    /// Moves page `from_pages[k]` of `from` to page `to_pages[k]` of `to`, for every k.
    ///
    /// The places moved from are empty afterwards and read as zeros. On an error some pages may have moved.
    pub fn move_pages(&self, from: &Arena, from_pages: &[u32], to: &Arena, to_pages: &[u32]) -> io::Result<()> {
        assert_eq!(from_pages.len(), to_pages.len());
        match self {
            Mover::Userfault(fd) => {
                let (start, len) = (to.address() as u64, (to.page_count() * page_bytes()) as u64);
                ioctl(
                    fd,
                    UFFDIO_REGISTER,
                    &mut Register { start, len, mode: UFFDIO_REGISTER_MODE_MISSING, ioctls: 0 },
                )?;
                let moved = pages_in_runs(from_pages, to_pages)
                    .try_for_each(|(src, dst, count)| move_run(fd, from, src, to, dst, count));
                ioctl(fd, UFFDIO_UNREGISTER, &mut [start, len])?;
                moved
            }
            Mover::Remap => pages_in_runs(from_pages, to_pages)
                .try_for_each(|(src, dst, count)| remap_run(from.page_ptr(src), to.page_ptr(dst), count)),
        }
    }
}

/// Runs of pages that are neighbors on both sides: (first source, first destination, count).
fn pages_in_runs<'a>(from: &'a [u32], to: &'a [u32]) -> impl Iterator<Item = (u32, u32, usize)> + 'a {
    let mut begin = 0;
    std::iter::from_fn(move || {
        let (src, dst) = (*from.get(begin)?, to[begin]);
        let count = (0u32..)
            .zip(from[begin..].iter().zip(&to[begin..]))
            .take_while(|(i, (f, t))| **f == src + i && **t == dst + i)
            .count();
        begin += count;
        Some((src, dst, count))
    })
}

fn move_run(fd: &OwnedFd, from: &Arena, src: u32, to: &Arena, dst: u32, count: usize) -> io::Result<()> {
    let (mut src, mut dst) = (from.page_ptr(src) as u64, to.page_ptr(dst) as u64);
    let mut len = (count * page_bytes()) as u64;
    let mut tries = 0;
    while len > 0 {
        let mut request = Move { dst, src, len, mode: 0, moved: 0 };
        let result = ioctl(fd, UFFDIO_MOVE, &mut request);
        // A short move reports how far it came; the rest is asked for again.
        let moved = request.moved.max(0) as u64;
        (src, dst, len) = (src + moved, dst + moved, len - moved);
        match result {
            Ok(()) => {}
            Err(_) if moved > 0 => {}
            Err(error) if tries < TRIES && matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EBUSY)) => {
                tries += 1
            }
            Err(error) if error.raw_os_error() == Some(libc::EEXIST) && tries < TRIES => {
                tries += 1;
                // Something is at the destination already: a page of zeros that a stray touch brought in.
                // SAFETY: `dst` lies in `to`, which this crate owns and whose old contents the move replaces.
                unsafe { libc::madvise(dst as *mut libc::c_void, page_bytes(), libc::MADV_DONTNEED) };
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn remap_run(src: *mut u8, dst: *mut u8, count: usize) -> io::Result<()> {
    let bytes = count * page_bytes();
    // DONTUNMAP (Linux 5.7) leaves an empty mapping behind, so that nobody else is given the address meanwhile.
    // SAFETY: both ranges are pages of arenas of this crate; the kernel replaces the destination and empties the source.
    let address = unsafe {
        libc::mremap(
            src.cast(),
            bytes,
            bytes,
            libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP,
            dst.cast::<libc::c_void>(),
        )
    };
    if address == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn ioctl<T>(fd: &OwnedFd, request: u64, argument: &mut T) -> io::Result<()> {
    // SAFETY: each request above is used with the structure of its definition in linux/userfaultfd.h, which the kernel
    // reads and writes; the addresses inside name pages of arenas of this crate.
    match unsafe { libc::ioctl(fd.as_raw_fd(), request, std::ptr::from_mut(argument)) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pagemap;

    fn filled(pages: usize) -> Arena {
        let mut arena = Arena::map(pages).unwrap();
        for (page, bytes) in arena.bytes_mut().chunks_mut(page_bytes()).enumerate() {
            bytes.fill(page as u8 + 1);
        }
        arena
    }

    fn last_bytes(arena: &mut Arena) -> Vec<u8> {
        arena.bytes_mut().chunks(page_bytes()).map(|page| page[page.len() - 1]).collect()
    }

    fn moves_contents_and_frames(mover: &Mover) {
        let (mut from, mut to) = (filled(8), Arena::map(4).unwrap());
        let frames = pagemap::frames(&from);
        mover.move_pages(&from, &[7, 1, 2, 5], &to, &[0, 1, 2, 3]).unwrap();
        assert_eq!(last_bytes(&mut to), [8, 2, 3, 6]);
        let moved = pagemap::frames(&to);
        if frames.iter().all(Option::is_some) {
            assert_eq!(moved, [frames[7], frames[1], frames[2], frames[5]]);
        }
        // And back again, to where they came from.
        mover.move_pages(&to, &[0, 1, 2, 3], &from, &[7, 1, 2, 5]).unwrap();
        assert_eq!(last_bytes(&mut from), [1, 2, 3, 4, 5, 6, 7, 8]);
    }

    #[test]
    fn pages_keep_contents_and_frames_when_remapped() {
        moves_contents_and_frames(&Mover::Remap);
    }

    #[test]
    fn pages_keep_contents_and_frames_when_moved_the_best_way() {
        moves_contents_and_frames(&Mover::open());
    }

    #[test]
    fn neighbors_move_together() {
        let runs: Vec<_> = pages_in_runs(&[3, 4, 5, 9, 1], &[0, 1, 2, 3, 4]).collect();
        assert_eq!(runs, [(3, 0, 3), (9, 3, 1), (1, 4, 1)]);
    }
}
