//! Memory of an unmodified program, touched beforehand and locked: by mlockall(2), which a held thread of it makes.
//!
//! Locked pages stay in memory, but the kernel may move them (compaction), so a lock keeps no color. A recoloring takes the slow way
//! around locked pages, and what it maps would be touched as a whole: lock last.

use isochrome_model::units::Bytes;

use super::error::RecolorError;
use super::hold::Hold;
use super::turn::Turn;
use crate::process::{Pid, Region};

/// All that is mapped now.
const CURRENT: u64 = libc::MCL_CURRENT as u64;
/// What is mapped from now on, too.
const FUTURE: u64 = libc::MCL_FUTURE as u64;
/// Only what is touched, when it is.
const ON_FAULT: u64 = libc::MCL_ONFAULT as u64;

/// How much of a program's own memory is mapped and was never touched.
pub fn untouched(regions: &[Region]) -> Bytes {
    let own = regions.iter().filter(|region| region.protection.write && !region.shared && region.immovable.is_none());
    Bytes(own.map(|region| (region.end - region.start).saturating_sub(region.resident.0)).sum())
}

/// Touches all memory that is mapped, and leaves it unlocked: what comes later is a fault less, and its pages can be moved.
pub fn prefault(pid: Pid) -> Result<(), RecolorError> {
    within(pid, |hold| {
        hold.must("touch its memory", libc::SYS_mlockall, [CURRENT, 0, 0, 0, 0, 0])?;
        hold.must("unlock its memory", libc::SYS_munlockall, [0; 6]).map(drop)
    })
}

/// Locks what is mapped and what will be; `whole`: touching all of it, else as it is touched.
pub fn lock(pid: Pid, whole: bool) -> Result<(), RecolorError> {
    let flags = CURRENT | FUTURE | if whole { 0 } else { ON_FAULT };
    within(pid, |hold| hold.must("lock its memory", libc::SYS_mlockall, [flags, 0, 0, 0, 0, 0]).map(drop))
}

fn within(pid: Pid, work: impl FnOnce(&mut Hold) -> Result<(), RecolorError>) -> Result<(), RecolorError> {
    let _turn = Turn::wait(pid)?;
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
