//! Touching and locking all memory of an unmodified program, by having one of its threads call mlockall(2).
//!
//! Locked pages stay in memory, but the kernel may move them to other frames (compaction), so a lock does not keep a color. A recoloring
//! moves locked pages by a slower method, and all memory that it maps would be touched at once. So lock after recoloring.

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

/// Makes all mapped memory of `pid` resident and leaves it unlocked, so that later accesses cause no page faults and pages can be moved.
pub fn prefault(pid: Pid) -> Result<(), RecolorError> {
    within(pid, |hold| {
        hold.must("touch its memory", libc::SYS_mlockall, [CURRENT, 0, 0, 0, 0, 0])?;
        hold.must("unlock its memory", libc::SYS_munlockall, [0; 6]).map(drop)
    })
}

/// Locks all memory of `pid`, present and future. `whole`: touch all of it now; otherwise each page is locked when it is first touched.
pub fn lock(pid: Pid, whole: bool) -> Result<(), RecolorError> {
    let flags = CURRENT | FUTURE | if whole { 0 } else { ON_FAULT };
    within(pid, |hold| hold.must("lock its memory", libc::SYS_mlockall, [flags, 0, 0, 0, 0, 0]).map(drop))
}

fn within(pid: Pid, work: impl FnOnce(&mut Hold) -> Result<(), RecolorError>) -> Result<(), RecolorError> {
    let _exclusive = ExclusiveLock::wait(pid)?;
    for thread in pid.threads()? {
        // Which calls a filter kills a program for is looked at for those of a recoloring only.
        if !matches!(crate::process::status_of(&pid.text(&format!("task/{thread}/status"))?, "Seccomp"), "" | "0") {
            return Err(RecolorError::CallForbidden { pid: pid.0, thread, call: "mlockall" });
        }
    }
    let mut hold = Hold::one(pid, (0, 0))?;
    let done = work(&mut hold);
    hold.resume()?;
    done
}
