//! Commands that work on a process now, and what they leave for whoever watches over it.
//!
//! `exec` watches over its program for as long as that runs. When `recolor` moves the same program, both would draw memory for the same
//! pages and take turns at holding the program still. So a command *claims* the processes that it works on. Who watches stands aside while
//! a process is claimed, also in the middle of a sweep, and takes over the colors that the command has measured.
//!
//! A claim is a lock on one byte of a file, at the number of the process. The kernel releases it when the command ends, however it ends.

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

/// Processes that a command works on, until this is dropped.
pub struct Claim {
    _file: File,
}

impl Claim {
    /// Claims `pids`. Several commands may claim the same process; the lock in `exclusive` decides which of them holds it.
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

/// Fails with [`RecolorError::Claimed`] if `limits` say to give way and another command has claimed `pid`.
pub fn give_way(pid: Pid, limits: &Limits) -> Result<(), RecolorError> {
    let claimed = || {
        // Without the file nobody has claimed anything.
        let file = File::open(claims(&runtime::folder())).ok()?;
        // The file is open for reading, which is enough to ask.
        lock::is_byte_shared(&file, u64::from(pid.0.unsigned_abs())).ok()
    };
    if limits.gives_way && claimed() == Some(true) { Err(RecolorError::Claimed { pid: pid.0 }) } else { Ok(()) }
}

/// Colors of the pages of a process, as measured by a command.
#[derive(Serialize, Deserialize)]
struct Handover {
    /// Start time of the process, which tells it from a later one of the same number.
    start_time: u64,
    /// Identifier of the numbering of the colors.
    numbering: String,
    /// The pages: address, frame (`None` where frame numbers are hidden) and color.
    pages: Vec<(u64, Option<FrameNumber>, Color)>,
}

/// Leaves the colors of `pages` of `pid`, addresses in ascending order, for the command that watches over the process.
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

/// Learns the colors that the last command left for `pid`, if any. Pages that have other frames now are left out.
pub fn take_over(pid: Pid, known: &KnownColors) -> Result<(), RecolorError> {
    let path = handover_path(pid);
    let Some(reference) = known.reference() else { return Ok(()) };
    let Some(text) = runtime::read(&path).map_err(RecolorError::unmeasured(pid.0))? else { return Ok(()) };
    // It is of use once.
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
