//! The cave: a few unused bytes of executable memory, in which parked threads wait.

use std::fs::File;
use std::os::unix::fs::FileExt;

use crate::process::{Mappings, Pid};
use crate::recolor::error::RecolorError;
use crate::sys::agent::CAVE;

/// Returns the address of unused zeros at the end of executable memory: in the vDSO, or else in another private mapping of the program.
///
/// `area`: memory mapped for the work, which is left out. Fails with [`RecolorError::NoCave`] if no mapping ends in enough zeros.
pub(super) fn cave_in(pid: Pid, memory: &File, area: (u64, u64)) -> Result<u64, RecolorError> {
    if let Some(vdso) = pid.vdso()
        && let Some(end) = Mappings::of(pid)?.executable_end(vdso)?
        && is_cave(memory, end - CAVE.len() as u64)
    {
        return Ok(end - CAVE.len() as u64);
    }
    let regions: Vec<_> = pid
        .mappings()?
        .into_iter()
        .filter(|region| region.protection.execute && region.protection.read && region.immovable.is_none())
        .filter(|region| region.end <= area.0 || area.0 + area.1 <= region.start)
        .collect();
    let mut caves = regions.iter().map(|region| region.end - CAVE.len() as u64);
    caves.find(|cave| is_cave(memory, *cave)).ok_or(RecolorError::NoCave { pid: pid.0 })
}

/// Whether there are enough zeros at address `cave`, and eight more before it: the last instruction before the zeros may itself end in zeros.
pub(super) fn is_cave(memory: &File, cave: u64) -> bool {
    let mut found = [0xff; CAVE.len() + 8];
    memory.read_exact_at(&mut found, cave - 8).is_ok() && found.iter().all(|byte| *byte == 0)
}
