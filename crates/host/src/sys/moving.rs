//! Moves resident pages to other addresses: the frame, and with it the color, stays the same.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use super::memory::{Arena, page_bytes};
use super::userfault;

/// A mechanism that moves pages.
pub enum Mover {
    /// UFFDIO_MOVE (Linux 6.8 and later), which splits no VMA.
    Userfault(OwnedFd),
    /// `mremap` page by page. Every page that does not follow its neighbor becomes a VMA of its own.
    Remap,
    /// Moves pages as [`Remap`](Self::Remap) does, but fails after `left` pages: once or, when `for_good`, from then on.
    #[cfg(test)]
    #[expect(missing_docs, reason = "explained in one sentence, and for tests only")]
    Tiring { left: std::cell::Cell<usize>, for_good: bool },
}

/// The failure to move some of the pages.
#[derive(Debug, thiserror::Error)]
#[error("only {moved} pages were moved: {source}")]
pub struct MoveError {
    /// Number of pages that were moved: the first ones of the request.
    pub moved: usize,
    /// Error that the kernel returned.
    pub source: io::Error,
}

// linux/userfaultfd.h, alike on x86-64 and aarch64.
const UFFDIO_UNREGISTER: u64 = 0x8010_aa01;
const UFFDIO_MOVE: u64 = 0xc028_aa05;

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

/// Time for which a page that the kernel keeps busy is tried again. A thread that compacts memory may lose its CPU while it moves the page.
const PATIENCE: Duration = Duration::from_secs(2);
/// Time for which a page is tried again that seems to have no frame: its entry is empty for an instant while its contents are moved.
const PATIENCE_WITHOUT_FRAME: Duration = Duration::from_millis(100);
/// Number of attempts that follow each other at once. Later attempts wait in between.
const SPINS: u32 = 100;
/// Time between two later attempts.
const BREAK: Duration = Duration::from_micros(100);

/// Attempts at moving a page that the kernel keeps busy.
#[derive(Default)]
struct Attempts {
    number: u32,
    since: Option<Instant>,
}

impl Attempts {
    /// Returns whether another attempt is worthwhile after `error`. Waits before it if there were many.
    fn go_on(&mut self, error: &io::Error) -> bool {
        let patience = match error.raw_os_error() {
            Some(libc::EAGAIN | libc::EBUSY) => PATIENCE,
            Some(libc::ENOENT) => PATIENCE_WITHOUT_FRAME,
            _ => return false,
        };
        self.number += 1;
        if self.number > SPINS {
            std::thread::sleep(BREAK);
        }
        self.since.get_or_insert_with(Instant::now).elapsed() < patience
    }
}

impl Mover {
    /// Returns the best mechanism that this kernel allows. None of them needs a privilege.
    pub fn open() -> Mover {
        match userfault::open_for_user_mode() {
            Ok((fd, features)) if features & userfault::FEATURE_MOVE != 0 => Mover::Userfault(fd),
            _ => Mover::Remap,
        }
    }

    /// Moves page `from_pages[k]` of `from` to page `to_pages[k]` of `to`, for every k.
    ///
    /// The pages moved from are empty afterwards and read as zeros. After an error some of the first pages may have moved, and the error
    /// reports how many; the others are unchanged, but the pages they were to replace may be empty.
    ///
    /// Panics if the arenas are the same, the lists differ in length, or a page lies outside its arena.
    pub fn move_pages(&self, from: &Arena, from_pages: &[u32], to: &Arena, to_pages: &[u32]) -> Result<(), MoveError> {
        assert_eq!(from_pages.len(), to_pages.len());
        assert_ne!(from.address(), to.address(), "pages move from one arena to another");
        let mut moved = 0;
        self.move_counting(from, from_pages, to, to_pages, &mut moved).map_err(|source| MoveError { moved, source })
    }

    /// Moves the pages as [`move_pages`](Self::move_pages) does, and counts them in `moved` on the way.
    fn move_counting(
        &self,
        from: &Arena,
        from_pages: &[u32],
        to: &Arena,
        to_pages: &[u32],
        moved: &mut usize,
    ) -> io::Result<()> {
        match self {
            Mover::Userfault(fd) => {
                let (start, len) = (to.address() as u64, (to.page_count() * page_bytes()) as u64);
                ioctl(
                    fd,
                    userfault::UFFDIO_REGISTER,
                    &mut Register { start, len, mode: userfault::REGISTER_MODE_MISSING, ioctls: 0 },
                )?;
                let outcome = pages_in_runs(from_pages, to_pages).try_for_each(|(src, dst, count)| {
                    move_run(|this| ioctl(fd, UFFDIO_MOVE, this), (from, src), (to, dst), count, moved)
                });
                ioctl(fd, UFFDIO_UNREGISTER, &mut [start, len])?;
                outcome
            }
            Mover::Remap => from_pages.iter().zip(to_pages).try_for_each(|(src, dst)| {
                remap(from, *src, to, *dst)?;
                *moved += 1;
                Ok(())
            }),
            #[cfg(test)]
            Mover::Tiring { left, for_good } => from_pages.iter().zip(to_pages).try_for_each(|(src, dst)| {
                if left.get() == 0 {
                    left.set(if *for_good { 0 } else { usize::MAX });
                    return Err(io::Error::from_raw_os_error(libc::ENOMEM));
                }
                left.set(left.get() - 1);
                remap(from, *src, to, *dst)?;
                *moved += 1;
                Ok(())
            }),
        }
    }
}

/// Returns runs of pages that are neighbors on both sides, as (first source, first destination, count).
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

/// Moves `count` pages by `request`, which issues UFFDIO_MOVE, and counts them in `moved_pages`.
///
/// The destination is emptied first. So if the kernel refuses to move a page because there is one, it has moved this page without reporting
/// it. [Linux 6.18, mm/userfaultfd.c, move_pages: `err` stays -EAGAIN]
fn move_run(
    mut request: impl FnMut(&mut Move) -> io::Result<()>,
    (from, src): (&Arena, u32),
    (to, dst): (&Arena, u32),
    count: usize,
    moved_pages: &mut usize,
) -> io::Result<()> {
    let (mut src, mut dst) = (from.pages_ptr(src, count) as u64, to.pages_ptr(dst, count) as u64);
    let mut len = (count * page_bytes()) as u64;
    // SAFETY: `pages_ptr` checked that the run lies inside `to`, and its old contents are what the move replaces.
    if unsafe { libc::madvise(dst as *mut libc::c_void, len as usize, libc::MADV_DONTNEED_LOCKED) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut attempts = Attempts::default();
    while len > 0 {
        let mut this = Move { dst, src, len, mode: 0, moved: 0 };
        let result = request(&mut this);
        // A short move reports how far it came; the rest is requested again.
        let moved = match &result {
            Err(error) if this.moved <= 0 && error.raw_os_error() == Some(libc::EEXIST) => page_bytes() as u64,
            _ => this.moved.max(0) as u64,
        };
        (src, dst, len) = (src + moved, dst + moved, len - moved);
        *moved_pages += moved as usize / page_bytes();
        match result {
            Ok(()) => {}
            Err(_) if moved > 0 => attempts = Attempts::default(),
            Err(error) if !attempts.go_on(&error) => return Err(error),
            Err(_) => {}
        }
    }
    Ok(())
}

/// Moves page `src` of `from` to page `dst` of `to`.
///
/// Pages are moved one at a time, because pages that were moved here earlier can be VMAs of their own. Kernels before 6.17 refuse a source
/// of several VMAs only after they have unmapped the destination.
fn remap(from: &Arena, src: u32, to: &Arena, dst: u32) -> io::Result<()> {
    let (src, dst, bytes) = (from.page_ptr(src), to.page_ptr(dst), page_bytes());
    // DONTUNMAP (Linux 5.7) leaves an empty mapping behind, so that nobody else is given the address in between.
    // SAFETY: `page_ptr` checked that each side is one whole page of an arena, and the arenas are different ones, so the pages
    // do not overlap. The kernel replaces the destination, whose contents the move is to replace, and empties the source; no
    // reference into either can exist, as that would borrow its arena exclusively.
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
    // reads and writes. The addresses inside name a whole arena, to be registered or not, or runs of pages that `pages_ptr`
    // checked to lie inside two different arenas, which nothing borrows exclusively.
    match unsafe { libc::ioctl(fd.as_raw_fd(), request as _, std::ptr::from_mut(argument)) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::color::pagemap;

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
        let frames = pagemap::frames(&from, 0..8);
        mover.move_pages(&from, &[7, 1, 2, 5], &to, &[0, 1, 2, 3]).unwrap();
        assert_eq!(last_bytes(&mut to), [8, 2, 3, 6]);
        let moved = pagemap::frames(&to, 0..4);
        if frames.iter().all(Option::is_some) {
            assert_eq!(moved, [frames[7], frames[1], frames[2], frames[5]]);
        }
        // The pages are moved back to where they came from.
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

    fn movers() -> [Mover; 2] {
        [Mover::Remap, Mover::open()]
    }

    #[test]
    fn pages_of_no_arena_are_not_moved() {
        let (from, to) = (filled(8), filled(8));
        for mover in movers() {
            let refused = |from_pages: &[u32], to_pages: &[u32]| {
                let moved = || mover.move_pages(&from, from_pages, &to, to_pages);
                assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(moved)).is_err());
            };
            refused(&[8], &[0]);
            refused(&[0], &[8]);
            refused(&[u32::MAX], &[0]);
        }
    }

    #[test]
    #[should_panic(expected = "2 pages from 7 on lie outside an arena of 8 pages")]
    fn a_run_that_leaves_its_arena_has_no_address() {
        filled(8).pages_ptr(7, 2);
    }

    #[test]
    fn runs_that_leave_their_arena_are_not_moved() {
        let (from, to) = (filled(8), filled(8));
        for mover in movers() {
            for (from_pages, to_pages) in [([7, 8], [0, 1]), ([0, 1], [7, 8])] {
                let moved = || mover.move_pages(&from, &from_pages, &to, &to_pages);
                assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(moved)).is_err());
            }
        }
    }

    #[test]
    #[should_panic(expected = "from one arena to another")]
    fn pages_are_not_moved_within_an_arena() {
        let arena = filled(4);
        let _ = Mover::open().move_pages(&arena, &[0, 1], &arena, &[1, 2]);
    }

    #[test]
    fn an_error_says_how_many_pages_were_moved() {
        let (mut from, mut to) = (filled(6), Arena::map(6).unwrap());
        let mover = Mover::Tiring { left: 4.into(), for_good: true };
        let error = mover.move_pages(&from, &[5, 4, 3, 2, 1, 0], &to, &[0, 1, 2, 3, 4, 5]);
        assert_eq!(error.unwrap_err().moved, 4);
        assert_eq!(last_bytes(&mut to), [6, 5, 4, 3, 0, 0]);
        assert_eq!(last_bytes(&mut from), [1, 2, 0, 0, 0, 0]);
    }

    #[test]
    fn pages_that_came_from_different_places_move_on_as_a_run() {
        for mover in movers() {
            let (first, second, mut to) = (filled(4), filled(4), Arena::map(4).unwrap());
            let middle = Arena::map(4).unwrap();
            mover.move_pages(&first, &[3, 0], &middle, &[0, 1]).unwrap();
            mover.move_pages(&second, &[1, 2], &middle, &[2, 3]).unwrap();
            mover.move_pages(&middle, &[0, 1, 2, 3], &to, &[0, 1, 2, 3]).unwrap();
            assert_eq!(last_bytes(&mut to), [4, 1, 2, 3]);
        }
    }

    /// Moves six pages with a kernel that answers as Linux 6.18 does after a page was busy: it moves all pages and reports `reported` of them.
    fn moves_all_but_reports(reported: usize) {
        let Mover::Userfault(fd) = Mover::open() else {
            eprintln!("not tested: this kernel lacks UFFDIO_MOVE");
            return;
        };
        let (mut from, mut to) = (filled(6), filled(6));
        let mut range = Register {
            start: to.address() as u64,
            len: (to.page_count() * page_bytes()) as u64,
            mode: userfault::REGISTER_MODE_MISSING,
            ioctls: 0,
        };
        ioctl(&fd, userfault::UFFDIO_REGISTER, &mut range).unwrap();
        let mut calls = 0;
        let request = |this: &mut Move| {
            let result = ioctl(&fd, UFFDIO_MOVE, this);
            calls += 1;
            if calls > 1 {
                return result;
            }
            result.unwrap();
            let error = if reported > 0 { libc::EAGAIN } else { libc::EEXIST };
            this.moved = if reported > 0 { (reported * page_bytes()) as i64 } else { -i64::from(error) };
            Err(io::Error::from_raw_os_error(error))
        };
        let mut moved = 0;
        move_run(request, (&from, 0), (&to, 0), 6, &mut moved).unwrap();
        ioctl(&fd, UFFDIO_UNREGISTER, &mut [range.start, range.len]).unwrap();
        // Each page that was not reported takes a request of its own; the first of them may be the request that reports nothing.
        assert_eq!((moved, calls), (6, 6 - reported + usize::from(reported > 0)));
        assert_eq!(last_bytes(&mut to), [1, 2, 3, 4, 5, 6]);
        assert_eq!(last_bytes(&mut from), [0; 6]);
    }

    #[test]
    fn pages_that_the_kernel_moves_without_reporting_are_not_lost() {
        moves_all_but_reports(0);
        moves_all_but_reports(2);
    }

    #[test]
    fn neighbors_move_together() {
        let runs: Vec<_> = pages_in_runs(&[3, 4, 5, 9, 1], &[0, 1, 2, 3, 4]).collect();
        assert_eq!(runs, [(3, 0, 3), (9, 3, 1), (1, 4, 1)]);
    }
}
