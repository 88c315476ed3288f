//! Touching and locking all memory of an unmodified program, by making one of its threads call madvise(2) and mlockall(2).
//!
//! Locked pages stay in memory, but the kernel may move them to other frames (compaction), so a lock does not keep a color. A recoloring
//! moves locked pages by a slower method, and in a locked program the kernel would touch all memory that a recoloring maps. So lock after
//! recoloring.

use isochrome_model::units::Bytes;

use super::error::RecolorError;
use super::exclusive::ExclusiveLock;
use super::hold::Hold;
use crate::process::{Pid, Region};

/// mlockall(2) flag: lock all memory that is mapped now.
const CURRENT: u64 = libc::MCL_CURRENT as u64;
/// mlockall(2) flag: lock all memory that is mapped from now on.
const FUTURE: u64 = libc::MCL_FUTURE as u64;
/// mlockall(2) flag: lock each page when it is first touched, instead of touching all pages.
const ON_FAULT: u64 = libc::MCL_ONFAULT as u64;

/// Returns how much of a program's private writable memory is mapped but not resident.
pub fn untouched(regions: &[Region]) -> Bytes {
    let own = regions.iter().filter(|region| region.protection.write && !region.shared && region.immovable.is_none());
    Bytes(own.map(|region| (region.end - region.start).saturating_sub(region.resident.0)).sum())
}

/// Makes the private memory of `pid` resident, so that later accesses cause no page faults and pages can be moved. The locks of the program
/// stay as they are. Returns whether all writable memory was touched.
///
/// mlockall(2) would touch the memory too, but munlockall(2) would then also remove locks that the program has made.
pub fn prefault(pid: Pid) -> Result<bool, RecolorError> {
    within(pid, "madvise", |hold| {
        // Another isochrome may have worked on the program until now, so only now is it known what is mapped.
        let mut regions = pid.regions()?;
        regions.retain(|region| region.protection.read && !region.shared && region.immovable.is_none());
        let mut whole = true;
        for Region { start, end, protection, .. } in regions {
            let advice = if protection.write { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
            let touched = hold.call(libc::SYS_madvise, [start, end - start, advice as u64, 0, 0, 0])?.is_ok();
            // Pages of a file behind its end cannot be touched. Memory that other threads of the program have unmapped in between cannot either.
            whole &= touched || !protection.write;
        }
        Ok(whole)
    })
}

/// Locks all memory of `pid`, present and future. `whole`: touch all of it now; otherwise each page is locked when it is first touched.
pub fn lock(pid: Pid, whole: bool) -> Result<(), RecolorError> {
    let flags = CURRENT | FUTURE | if whole { 0 } else { ON_FAULT };
    within(pid, "mlockall", |hold| hold.must("lock its memory", libc::SYS_mlockall, [flags, 0, 0, 0, 0, 0]).map(drop))
}

/// Does `work`, which makes the system call `call`, while one thread of `pid` is held.
fn within<T>(
    pid: Pid,
    call: &'static str,
    work: impl FnOnce(&mut Hold) -> Result<T, RecolorError>,
) -> Result<T, RecolorError> {
    let _exclusive = ExclusiveLock::wait(pid)?;
    for thread in pid.threads()? {
        // A filter might kill the program for the call, because filters are evaluated only for the calls of a recoloring.
        if !matches!(crate::process::status_of(&pid.text(&format!("task/{thread}/status"))?, "Seccomp"), "" | "0") {
            return Err(RecolorError::CallForbidden { pid: pid.0, thread, call });
        }
    }
    let mut hold = Hold::one(pid, (0, 0))?;
    let done = work(&mut hold);
    hold.resume()?;
    done
}
