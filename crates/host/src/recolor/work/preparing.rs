//! Preparations while the program runs: mapping memory, splitting huge pages, and finding out how pages can be moved.

use std::io;

use isochrome_model::units::Bytes;

use super::{Planned, Work};
use crate::machine::sysfs::Sysfs;
use crate::recolor::calls::{DROP_LOCKED, USERFAULT_FLAGS};
use crate::recolor::error::RecolorError;
use crate::recolor::hold::Hold;
use crate::sys::memory::page_bytes;
use crate::sys::userfault;

/// How to open a userfaultfd inside the process that can move pages.
#[derive(Clone, Copy)]
pub(super) struct Mover {
    /// Flags for userfaultfd(2).
    flags: u64,
    /// Whether an access of the kernel itself to a page that is being moved would fail instead of waiting.
    pub(super) for_user_mode: bool,
}

impl Work<'_, '_> {
    /// Maps the scratch area unless it is mapped already, finds out how pages can be moved, and lets a helper split huge pages while the
    /// program runs.
    pub(super) fn prepare(&mut self) -> Result<(), RecolorError> {
        let plan = self.plan;
        let blocks = self.huge_blocks();
        let mut hold = Hold::one(plan.pid, if self.area.left { self.area.range() } else { (0, 0) })?;
        let was_left = std::mem::take(&mut self.area.left);
        if !was_left {
            self.area.map(&mut hold)?;
        }
        // Otherwise the kernel would join the pages to huge pages again, which have all colors.
        hold.call(libc::SYS_prctl, [libc::PR_SET_THP_DISABLE as u64, 1, 0, 0, 0, 0])?.ok();
        let trial = [self.area.layout.scratch, page_bytes() as u64, DROP_LOCKED, 0, 0, 0];
        if hold.call(libc::SYS_madvise, trial)?.is_ok() {
            self.advice = DROP_LOCKED;
        }
        self.mover = self.find_mover(&mut hold)?;
        self.populate_saved(&mut hold)?;
        let allowed = self.check_io();
        if !blocks.is_empty() && allowed.is_ok() {
            self.area.split(&mut hold, &blocks)?;
        }
        let (helpers, stop) = hold.leave()?;
        // From here on dropping the scratch area unmaps it.
        self.area.left = true;
        self.pauses.push(stop.as_nanos() as u64);
        helpers.wait()?;
        allowed
    }

    /// Checks that pages can be moved safely; fails with [`RecolorError::AsynchronousIo`] if the kernel or a device may write to them meanwhile.
    fn check_io(&self) -> Result<(), RecolorError> {
        let Some(sign) = self.sign.filter(|_| !self.plan.limits.force) else { return Ok(()) };
        let pid = self.plan.pid;
        let why = match self.mover {
            None => "this kernel cannot move pages under that (UFFDIO_MOVE, Linux 6.8)".to_owned(),
            Some(mover) if mover.for_user_mode => {
                "it may only open userfaultfds that do not have the kernel wait (see vm.unprivileged_userfaultfd)"
                    .to_owned()
            }
            Some(_) => match (pid.pinned_otherwise()?, pid.unpinned_direct_io()?) {
                (Bytes(0), None) => return Ok(()),
                (Bytes(0), Some(kind)) => {
                    format!("the kernel does not tell which pages are in use by direct I/O on a {kind} file system")
                }
                (bytes, _) => format!("of the memory that it has pinned, nobody can tell what holds {bytes}"),
            },
        };
        Err(RecolorError::AsynchronousIo { pid: pid.0, sign, why })
    }

    /// Returns the addresses of the huge pages that hold pages to move and can be split before the pause. A split in the pause would take
    /// milliseconds.
    fn huge_blocks(&self) -> Vec<u64> {
        let Some(size) = Sysfs::system().huge_page_bytes().map(|size| size as u64) else { return Vec::new() };
        let in_huge = |planned: &&Planned| {
            let (region, block) = (&self.plan.regions[planned.region], planned.page & !(size - 1));
            region.huge && !region.locked && region.start <= block && block + size <= region.end
        };
        let mut blocks: Vec<u64> = self.plan.pages.iter().filter(in_huge).map(|page| page.page & !(size - 1)).collect();
        blocks.dedup();
        blocks
    }

    /// Returns how to open a userfaultfd inside the process that can move pages; `None` if that is impossible.
    fn find_mover(&self, hold: &mut Hold) -> Result<Option<Mover>, RecolorError> {
        // Lets tests run as if the kernel had no UFFDIO_MOVE.
        if std::env::var_os("ISOCHROME_WITHOUT_MOVE").is_some() {
            return Ok(None);
        }
        for (mode, for_user_mode) in [(0, false), (userfault::USER_MODE_ONLY as u64, true)] {
            let mover = Mover { flags: USERFAULT_FLAGS | mode, for_user_mode };
            let Some((descriptor, features)) = self.open(hold, mover)? else { continue };
            let (start, end) = (self.area.layout.scratch, self.area.layout.pool);
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
    pub(super) fn open(&self, hold: &mut Hold, mover: Mover) -> Result<Option<(u64, u64)>, RecolorError> {
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
        let address = self.area.layout.table;
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

    /// Makes the process touch the page that other pages are saved in, so that it is resident when it is needed.
    fn populate_saved(&self, hold: &mut Hold) -> Result<(), RecolorError> {
        let (start, bytes) = (self.area.layout.saved, page_bytes() as u64);
        match hold.call(libc::SYS_madvise, [start, bytes, libc::MADV_POPULATE_WRITE as u64, 0, 0, 0])? {
            Ok(_) => Ok(()),
            // Linux before 5.14 does not know the advice.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => hold.write(&[1], start),
            Err(source) => Err(RecolorError::Refused { pid: self.plan.pid.0, action: "have that much memory", source }),
        }
    }
}
