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
use crate::sys::agent::CAVE;
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
        // A command that was killed while it wrote a journal leaves this file.
        let _ = fs::remove_file(Journal::beside(pid));
        Journal::left_at(Journal::path(pid), pid)
    }

    fn left_at(path: PathBuf, pid: Pid) -> Result<Option<Journal>, RecolorError> {
        let failed = |source| RecolorError::Journal { path: path.clone(), source };
        let text = match fs::read_to_string(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            text => text.map_err(failed)?,
        };
        let journal: Journal = serde_json::from_str(&text).map_err(|error| failed(error.into()))?;
        if !journal.is_of(pid) {
            return Err(failed(io::Error::new(io::ErrorKind::InvalidData, "it is damaged")));
        }
        if pid.start_time() == Some(journal.start_time) {
            return Ok(Some(journal));
        }
        remove_at(path)?;
        Ok(None)
    }

    /// Whether the journal is that of `pid`, and the memory that it names has an end.
    fn is_of(&self, pid: Pid) -> bool {
        let ranges = [(self.cave, CAVE.len().max(8 * self.covered.len()) as u64), self.area];
        let ranges = ranges.into_iter().chain(self.protections.iter().map(|(start, bytes, _)| (*start, *bytes)));
        self.pid == pid.0 && ranges.into_iter().all(|(start, bytes)| start.checked_add(bytes).is_some())
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
        remove_at(Journal::path(Pid(self.pid)))
    }
}

fn remove_at(path: PathBuf) -> Result<(), RecolorError> {
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(RecolorError::Journal { path, source: error }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process that cannot be: numbers end at 2^22.
    const NOBODY: Pid = Pid(i32::MAX);

    fn left(text: &str) -> (Result<Option<Journal>, RecolorError>, bool) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("recolor-2147483647.json");
        fs::write(&path, text).unwrap();
        (Journal::left_at(path.clone(), NOBODY), path.exists())
    }

    #[test]
    fn a_journal_of_a_process_that_has_ended_is_removed_and_one_that_is_not_its_own_is_damaged() {
        let journal = r#"{"pid":2147483647,"start_time":7,"threads":[],"cave":4096,"covered":[1,2],"area":[8192,4096],
            "protections":[[4096,4096,5]],"userfault":3,"own_userfaults":[]}"#;
        assert!(matches!(left(journal), (Ok(None), false)));
        for (field, damaged) in [
            ("2147483647", "2147483646"),
            (r#""cave":4096"#, r#""cave":18446744073709551600"#),
            ("[8192,4096]", "[8192,18446744073709551615]"),
            ("[4096,4096,5]", "[18446744073709551615,4096,5]"),
            ("}", ""),
        ] {
            let text = journal.replace(field, damaged);
            assert!(matches!(left(&text), (Err(RecolorError::Journal { .. }), true)), "{text}");
        }
    }
}
