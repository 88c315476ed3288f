//! Finding out, inside a process, how its pages can be moved.

use std::io;

use super::calls::{DROP_LOCKED, USERFAULT_FLAGS};
use super::error::RecolorError;
use super::hold::Hold;
use super::scratch_area::ScratchArea;
use crate::sys::memory::page_bytes;
use crate::sys::userfault;

/// How the pages of a process can be moved.
#[derive(Clone, Copy)]
pub struct Means {
    /// How to open a userfaultfd that can move pages; `None` if that is impossible.
    pub mover: Option<Mover>,
    /// The madvise(2) advice with which pages are dropped.
    pub advice: u64,
}

/// How to open a userfaultfd inside the process that can move pages.
#[derive(Clone, Copy)]
pub struct Mover {
    /// Flags for userfaultfd(2).
    flags: u64,
    /// Whether an access of the kernel itself to a page that is being moved would fail instead of waiting.
    pub for_user_mode: bool,
}

impl ScratchArea<'_> {
    /// Finds out how pages can be moved, and touches the page that other pages are saved in, so that it is resident when it is needed.
    ///
    /// This is done once, when the area is mapped, because every further stop of the process takes about a millisecond.
    pub(super) fn find_means(&mut self, hold: &mut Hold) -> Result<(), RecolorError> {
        let trial = [self.layout.scratch, page_bytes() as u64, DROP_LOCKED, 0, 0, 0];
        if hold.call(libc::SYS_madvise, trial)?.is_ok() {
            self.means.advice = DROP_LOCKED;
        }
        self.means.mover = self.find_mover(hold)?;
        self.populate_saved(hold)
    }

    /// Returns how to open a userfaultfd inside the process that can move pages; `None` if that is impossible.
    fn find_mover(&self, hold: &mut Hold) -> Result<Option<Mover>, RecolorError> {
        // Lets tests run as if the kernel had no UFFDIO_MOVE.
        if std::env::var_os("ISOCHROME_WITHOUT_MOVE").is_some() {
            return Ok(None);
        }
        for (mode, for_user_mode) in [(0, false), (userfault::USER_MODE_ONLY as u64, true)] {
            let mover = Mover { flags: USERFAULT_FLAGS | mode, for_user_mode };
            let Some((descriptor, features)) = self.open_userfault(hold, mover)? else { continue };
            let (start, end) = (self.layout.scratch, self.layout.pool);
            let request = [start, end - start, userfault::REGISTER_MODE_MISSING, 0];
            let moves = features & userfault::FEATURE_MOVE != 0
                && self.ioctl(hold, descriptor, userfault::UFFDIO_REGISTER, request)?.is_ok();
            hold.must("close a userfaultfd", libc::SYS_close, [descriptor, 0, 0, 0, 0, 0])?;
            hold.journal.userfault = None;
            if moves {
                return Ok(Some(mover));
            }
        }
        Ok(None)
    }

    /// Opens a userfaultfd in the process, and returns its number and its features; `None` if that is refused.
    pub fn open_userfault(&self, hold: &mut Hold, mover: Mover) -> Result<Option<(u64, u64)>, RecolorError> {
        let Ok(descriptor) = hold.call(libc::SYS_userfaultfd, [mover.flags, 0, 0, 0, 0, 0])? else { return Ok(None) };
        hold.journal.userfault = Some(descriptor as i32);
        hold.journal.write()?;
        let answer = self.ioctl(hold, descriptor, u64::from(userfault::UFFDIO_API), [userfault::API, 0, 0])?;
        Ok(Some((descriptor, answer.map_or(0, |answer| answer[1]))))
    }

    /// Makes the process issue an ioctl whose argument is a structure of words, and returns the structure as the kernel leaves it.
    fn ioctl<const N: usize>(
        &self,
        hold: &mut Hold,
        descriptor: u64,
        request: u64,
        words: [u64; N],
    ) -> Result<io::Result<[u64; N]>, RecolorError> {
        let address = self.layout.table;
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        hold.write(&bytes, address)?;
        let outcome = hold.call(libc::SYS_ioctl, [descriptor, request, address, 0, 0, 0])?;
        let mut bytes = vec![0; N * 8];
        hold.read(&mut bytes, address)?;
        let mut answer = [0; N];
        for (word, bytes) in answer.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = u64::from_ne_bytes(bytes.try_into().expect("chunks of eight bytes"));
        }
        Ok(outcome.map(|_| answer))
    }

    /// Makes the process touch the page that other pages are saved in.
    fn populate_saved(&self, hold: &mut Hold) -> Result<(), RecolorError> {
        let (start, bytes) = (self.layout.saved, page_bytes() as u64);
        match hold.call(libc::SYS_madvise, [start, bytes, libc::MADV_POPULATE_WRITE as u64, 0, 0, 0])? {
            Ok(_) => Ok(()),
            // Linux before 5.14 does not know the advice.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => hold.write(&[1], start),
            Err(source) => Err(RecolorError::Refused { pid: self.pid.0, action: "have that much memory", source }),
        }
    }
}
