//! Claims of commands on processes, and the colors that a command hands over to the `exec` that watches over the process.
//!
//! `exec` watches over its program for as long as the program runs. If `recolor` moved the same program at the same time, both would draw memory for
//! the same pages and hold the program still alternately. So a command *claims* the processes that it works on. The `exec` stands aside while its
//! process is claimed, also in the middle of a sweep, and takes over the colors that the command has measured.
//!
//! A claim is a lock on one byte of a file; the offset of the byte is the process number. The kernel releases the lock however the command ends.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use isochrome_model::units::{Color, FrameNumber};
use serde::{Deserialize, Serialize};

use super::error::RecolorError;
use super::wanted::Limits;
use crate::color::known::KnownColors;
use crate::process::Pid;
use crate::runtime;
use crate::sys::lock;

/// Claim of a command on processes that it works on, until the claim is dropped.
pub struct Claim {
    _file: File,
}

impl Claim {
    /// Claims `pids`. Several commands may claim the same process; the lock in `exclusive` decides which of them may work on it.
    ///
    /// Fails with [`RecolorError::Journal`] if the runtime folder cannot be written.
    pub fn of(pids: &[Pid]) -> Result<Claim, RecolorError> {
        let folder = runtime::folder();
        let path = claims(&folder);
        let failed = |source| RecolorError::Journal { path: path.clone(), source };
        fs::create_dir_all(&folder).map_err(failed)?;
        let mut options = File::options();
        let file = options.read(true).write(true).create(true).truncate(false).open(&path).map_err(failed)?;
        for pid in pids {
            lock::share_byte(&file, u64::from(pid.0.unsigned_abs())).map_err(failed)?;
        }
        Ok(Claim { _file: file })
    }
}

/// Checks for a claim of another command on `pid`; fails with [`RecolorError::Claimed`] if there is one and `limits` require to give way.
pub fn give_way(pid: Pid, limits: &Limits) -> Result<(), RecolorError> {
    let claimed = || {
        // Without the file nobody has claimed anything.
        let file = File::open(claims(&runtime::folder())).ok()?;
        // A file that is open for reading is enough to query the lock.
        lock::is_byte_shared(&file, u64::from(pid.0.unsigned_abs())).ok()
    };
    if limits.gives_way && claimed() == Some(true) { Err(RecolorError::Claimed { pid: pid.0 }) } else { Ok(()) }
}

/// Colors of the pages of a process, as measured by a command.
#[derive(Serialize, Deserialize)]
struct Handover {
    /// Start time of the process, which distinguishes it from a later process with the same number.
    start_time: u64,
    /// Identifier of the numbering of the colors.
    numbering: String,
    /// The pages: address, frame (`None` where frame numbers are hidden) and color.
    pages: Vec<(u64, Option<FrameNumber>, Color)>,
}

/// Writes the known colors of `pages` of `pid`, addresses in ascending order, to a file for the `exec` that watches over the process.
pub fn hand_over(pid: Pid, known: &KnownColors, pages: &[u64]) -> Result<(), RecolorError> {
    let (Some(reference), Some(start_time)) = (known.reference(), pid.start_time()) else { return Ok(()) };
    let entries = pages.iter().zip(pid.page_map()?.entries(pages)?);
    let color = |(page, entry): (&u64, _)| Some((*page, known.of(pid.0, (*page, entry))?, entry.frame()));
    let pages = entries.filter_map(color).map(|(page, color, frame)| (page, frame, color)).collect();
    let handover = Handover { start_time, numbering: reference.numbering.clone(), pages };
    let path = handover_path(pid);
    let text = serde_json::to_vec(&handover).expect("a handover is plain data");
    runtime::replace(&path, &text).map_err(RecolorError::unmeasured(pid.0))
}

/// Adds the colors that the last command has handed over for `pid`, if any, to `known`. Pages that have other frames now are left out.
pub fn take_over(pid: Pid, known: &KnownColors) -> Result<(), RecolorError> {
    let path = handover_path(pid);
    let Some(reference) = known.reference() else { return Ok(()) };
    let Some(text) = runtime::read(&path).map_err(RecolorError::unmeasured(pid.0))? else { return Ok(()) };
    // A handover is used only once.
    let _ = fs::remove_file(&path);
    let Ok(handover) = serde_json::from_slice::<Handover>(&text) else { return Ok(()) };
    if Some(handover.start_time) != pid.start_time() || handover.numbering != reference.numbering {
        return Ok(());
    }
    let addresses: Vec<u64> = handover.pages.iter().map(|(page, ..)| *page).collect();
    for ((page, frame, color), entry) in handover.pages.into_iter().zip(pid.page_map()?.entries(&addresses)?) {
        if entry.is_resident() && entry.frame() == frame {
            known.learn(pid.0, (page, entry), color);
        }
    }
    Ok(())
}

fn claims(folder: &Path) -> PathBuf {
    folder.join("claims")
}

fn handover_path(pid: Pid) -> PathBuf {
    runtime::folder().join(format!("colors-{}.json", pid.0))
}
