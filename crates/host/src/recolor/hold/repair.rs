//! Repairing a process that a killed recoloring has left stopped or changed.

use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use super::haste::Haste;
use super::helpers::wait_for;
use super::journal::Journal;
use super::seized::{Patience, Seized};
use super::{Hold, failed, is_there};
use crate::process::{Mappings, Pid};
use crate::recolor::error::RecolorError;
use crate::recolor::exclusive::ExclusiveLock;
use crate::sys::agent::CAVE;
use crate::sys::trace::{self, Registers, ThreadId};

/// How long to wait until all threads stop for a repair. It is long because the process already stands still.
const REPAIR_LIMIT: Duration = Duration::from_secs(2);

/// Undoes what a killed recoloring has left in `pid`, and lets the process run. Returns `false` if nothing was left.
pub fn repair(pid: Pid) -> Result<bool, RecolorError> {
    let _exclusive = ExclusiveLock::wait(pid)?;
    let Some(mut journal) = Journal::left_for(pid)? else { return Ok(false) };
    let mut seized = Seized::all(pid, Patience { waiting: REPAIR_LIMIT, runnable: REPAIR_LIMIT })?;
    let cave = journal.cave..journal.cave + CAVE.len() as u64;
    let area = journal.area.0..journal.area.0 + journal.area.1;
    let known: Vec<ThreadId> = journal.threads.iter().map(|thread| thread.id).collect();
    let at = |(_, registers): &(ThreadId, Registers)| registers.instruction();
    // A helper that is at work finishes by itself and ends. Only then is the memory that the helper works on examined.
    let mut held_back = Vec::new();
    for (helper, _) in seized.threads.extract_if(.., |thread| area.contains(&at(thread))) {
        trace::go_on(helper, 0).map_err(failed(pid, helper, "wait for"))?;
        wait_for(pid, helper, &mut held_back, &mut || {})?;
    }
    let (parked, idle): (Vec<ThreadId>, Vec<ThreadId>) = seized
        .threads
        .iter()
        .filter(|thread| cave.contains(&at(thread)))
        .map(|(thread, _)| *thread)
        .partition(|thread| known.contains(thread));
    let memory = pid.memory()?;
    let began = Instant::now();
    if parked.is_empty() {
        // The recoloring was killed before it parked the first thread, or after it released the last one.
        let mut found = vec![0; CAVE.len()];
        let readable = memory.read_exact_at(&mut found, journal.cave).is_ok();
        if let (true, Some((thread, _))) = (readable && found == CAVE, seized.threads.first()) {
            for (i, word) in journal.covered.iter().enumerate() {
                trace::poke(*thread, journal.cave + 8 * i as u64, *word).map_err(failed(
                    pid,
                    *thread,
                    "write into the memory of",
                ))?;
            }
        }
        drop(seized);
        if is_there(pid, journal.area)? {
            let mut hold = Hold::one(pid, journal.area)?;
            // It may have been killed while the process was allowed huge pages.
            hold.call(libc::SYS_prctl, [libc::PR_SET_THP_DISABLE as u64, 1, 0, 0, 0, 0])?.ok();
            hold.resume()?;
        }
        journal.remove()?;
        return Ok(true);
    }
    // Only parked threads need their registers restored; the other threads go on as they are.
    seized.threads.retain(|(thread, _)| !parked.contains(thread) && !idle.contains(thread));
    drop(seized);
    journal.threads.retain(|thread| parked.contains(&thread.id));
    if let (None, Some(own)) = (journal.userfault, &journal.own_userfaults) {
        journal.userfault = pid.descriptors()?.userfaults.into_iter().find(|descriptor| !own.contains(descriptor));
    }
    let mappings = Mappings::of(pid)?;
    let mut hold = Hold {
        pid,
        memory,
        mappings,
        journal,
        leader: 0,
        helpers: Vec::new(),
        held_back,
        resumed: false,
        haste: Haste::begin(),
        began,
        may_have_begun_io: true,
    };
    for helper in idle {
        hold.end_helper(helper)?;
    }
    hold.resume().map(|_| true)
}
