//! Records the colors of a process's pages after a recoloring.

use std::collections::BTreeMap;

use super::pool::Pool;
use super::work::{Fate, Planned};
use super::{RecolorError, Wanted, zero_frame};
use crate::process::{Pid, Region};

/// Records the colors of the pages of `pid` in `regions`, of which `pages` were to be moved and have these `fates`.
///
/// Colors of frames are known already; where free frames change, those of frames that were drawn and not used are forgotten. Where frame numbers
/// are hidden, colors are known by address, so the moved pages are entered.
pub fn record(
    pid: Pid,
    regions: &[Region],
    wanted: &Wanted,
    pool: &Pool,
    (pages, fates): (&[Planned], &[Fate]),
) -> Result<(), RecolorError> {
    let map = pid.page_map()?;
    if zero_frame().is_some() {
        if wanted.known.free_frames_change() {
            let mut frames = Vec::new();
            for region in regions.iter().filter(|region| region.name != "[vsyscall]") {
                frames.extend(map.resident(region.start, region.end)?.iter().filter_map(|(_, entry)| entry.frame()));
            }
            wanted.known.hold(pid.0, frames);
        }
        return Ok(());
    }
    let colors: BTreeMap<u64, usize> = pool.slots.iter().map(|slot| (slot.address, slot.color)).collect();
    let moved: Vec<&Planned> =
        pages.iter().zip(fates).filter(|(_, fate)| **fate == Fate::Moved).map(|(page, _)| page).collect();
    let addresses: Vec<u64> = moved.iter().map(|planned| planned.page).collect();
    for (planned, entry) in moved.into_iter().zip(map.entries(&addresses)?) {
        if entry.is_resident() && entry.frame().is_none() {
            wanted.known.learn(pid.0, (planned.page, entry), wanted.colors[colors[&planned.slot]]);
        }
    }
    Ok(())
}
