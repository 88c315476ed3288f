//! The journal of a hold: a file that records what has to be restored, written before the first change.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::process::Pid;
use crate::recolor::error::RecolorError;
use crate::runtime;
use crate::sys::trace::{Registers, ThreadId};

/// Number of checks of whether a process has ended.
const ENDING_CHECKS: u32 = 50;
/// Time between two checks of whether a process has ended.
const ENDING_REST: Duration = Duration::from_millis(2);

/// The record of what has to be restored in a process if this program is killed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Journal {
    pub(super) pid: i32,
    pub(super) start_time: u64,
    pub(super) threads: Vec<Thread>,
    pub(super) cave: u64,
    /// The words that the cave held before the first change.
    pub(super) covered: Vec<u64>,
    /// Memory mapped for the work: first address, bytes. The length is 0 until just before it is mapped, and after it
    /// was unmapped.
    pub area: (u64, u64),
    /// Ranges whose protection was changed for the work: first address, bytes, protection to restore.
    pub protections: Vec<(u64, u64, u64)>,
    /// The userfaultfd opened for the work.
    pub userfault: Option<i32>,
    /// Userfaultfds of the program itself; `None` where only one thread is held. Any other userfaultfd was opened for the work just before
    /// the journal could record it.
    pub(super) own_userfaults: Option<Vec<i32>>,
}

/// A parked thread, with the registers and blocked signals that it resumes with.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Thread {
    pub(super) id: ThreadId,
    pub(super) registers: Registers,
    pub(super) blocked: u64,
}

impl Journal {
    fn path(pid: Pid) -> PathBuf {
        runtime::folder().join(format!("recolor-{}.json", pid.0))
    }

    /// Returns the path where the next journal is written before it replaces the last one.
    fn beside(pid: Pid) -> PathBuf {
        runtime::folder().join(format!("recolor-{}.new", pid.0))
    }

    /// Returns the journal left for `pid`, if any. A journal of an earlier process with this number is removed.
    pub fn left_for(pid: Pid) -> Result<Option<Journal>, RecolorError> {
        let path = Journal::path(pid);
        // A command that was killed while it wrote a journal leaves this file.
        let _ = fs::remove_file(Journal::beside(pid));
        let text = match fs::read_to_string(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(RecolorError::Journal { path, source }),
            Ok(text) => text,
        };
        let journal: Journal = serde_json::from_str(&text)
            .map_err(|error| RecolorError::Journal { path: path.clone(), source: error.into() })?;
        if pid.start_time() == Some(journal.start_time) {
            return Ok(Some(journal));
        }
        journal.remove()?;
        Ok(None)
    }

    /// Writes the journal, as a whole or not at all. It has to outlive this program but not the machine, so it is not forced to disk.
    pub fn write(&self) -> Result<(), RecolorError> {
        let path = Journal::path(Pid(self.pid));
        let failed = |source| RecolorError::Journal { path: path.clone(), source };
        let text = serde_json::to_vec(self).map_err(|error| failed(error.into()))?;
        let beside = Journal::beside(Pid(self.pid));
        // Registers may hold secrets, so only the user of this program may read them.
        let mut options = File::options();
        let file = options.write(true).create(true).truncate(true).mode(0o600).open(&beside);
        file.and_then(|mut file| file.write_all(&text)).map_err(failed)?;
        fs::rename(&beside, &path).map_err(failed)
    }

    /// Removes the journal left for `pid`, if any.
    pub fn forget(pid: Pid) -> Result<(), RecolorError> {
        Journal::left_for(pid)?.map_or(Ok(()), |journal| journal.remove())
    }

    /// Removes the journal left for `pid` if the process ends within 100 ms, because nothing is left to restore then.
    ///
    /// A process that is being killed takes a moment to end, and work on the process fails already in that moment.
    pub fn forget_ended(pid: Pid) {
        for _ in 0..ENDING_CHECKS {
            if pid.start_time().is_none() {
                // A journal that cannot be removed is removed by the next command for a process with this number.
                let _ = Journal::left_for(pid);
                return;
            }
            thread::sleep(ENDING_REST);
        }
    }

    pub(super) fn remove(&self) -> Result<(), RecolorError> {
        let path = Journal::path(Pid(self.pid));
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(RecolorError::Journal { path, source: error }),
            _ => Ok(()),
        }
    }
}
