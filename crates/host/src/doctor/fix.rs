//! Making the harmless settings among the remedies, and undoing that.
//!
//! A setting is harmless if
//!
//! - one write takes it back at once, to the value that was there;
//! - it ends no program and refuses nothing that was allowed before;
//! - it gives no user a right, so nothing that guards against other users is among them (`kernel.perf_event_paranoid`,
//!   `vm.unprivileged_userfaultfd`, `kernel.yama.ptrace_scope`);
//! - it leaves all CPUs, all memory and the guard against runaway real-time threads as they are.
//!
//! It may make other programs a little slower. These are the mechanisms that move pages (compaction, huge pages for those who did not ask
//! for them, merging of equal pages if there is memory to separate them, NUMA balancing, reports of free memory) and the number of mappings.
//!
//! A journal in the runtime folder records the former value before each write, so an interrupted fix can be undone. [`Changes::persist`] also
//! writes files that make the settings at every start. These files record the former values themselves, because the runtime folder does not
//! outlive the boot. Undoing leaves alone what somebody else has changed since.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use super::drop_in::{DropIn, Made};
use super::remedy::Action;
use super::{Check, Setting};
use crate::error::SystemError;
use crate::machine::sysfs::Sysfs;
use crate::runtime;

/// Version of the journal's format.
const SCHEMA: &str = "isochrome-doctor-journal/1";
/// Name of the journal in the runtime folder.
const JOURNAL: &str = "doctor.json";

/// An error of making or undoing settings.
#[derive(Debug, thiserror::Error)]
pub enum FixError {
    /// A file of the kernel, or of the system's configuration, could not be written.
    #[error("{path}: {source}\n  hint: in a container, settings of the kernel are made on its host")]
    Write {
        /// The file.
        path: PathBuf,
        /// Error of writing the file.
        source: io::Error,
    },
    /// The kernel took another value than the one that was written.
    #[error(
        "{name} is {found} after {wanted} was written\n  hint: this kernel does not allow {wanted}; the value was put back"
    )]
    Refused {
        /// Name of the setting.
        name: String,
        /// The value that was written.
        wanted: String,
        /// The value that the kernel shows.
        found: String,
    },
    /// Nothing on this machine makes settings when it starts.
    #[error("nothing applies /etc/sysctl.d when this machine starts\n  hint: make the settings again at every start")]
    NotAtStart,
    /// A file of that name holds something else.
    #[error(
        "{path}: holds lines that doctor did not write\n  hint: remove lines that came from the remedies, as they are written again"
    )]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// The journal could not be read or written.
    #[error(transparent)]
    System(#[from] SystemError),
}

/// A harmless setting that this machine does not have yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fix {
    /// Name of the check that the setting improves.
    pub check: String,
    /// Finding of the check, and its meaning.
    pub why: String,
    /// The setting.
    pub setting: Setting,
    /// The present value.
    pub before: String,
}

/// Returns the harmless settings among the remedies of `checks`, each once, in the order of the checks. Present values are read from `files`.
pub fn harmless(checks: &[Check], files: &Sysfs) -> Vec<Fix> {
    let fix = |check: &Check| match &check.action {
        Some(Action::Set(setting)) if check.fixable => Some(Fix {
            check: check.name.clone(),
            why: format!("{}; {}", check.found, check.why),
            before: value(&files.text(&setting.file)?).to_owned(),
            setting: setting.clone(),
        }),
        _ => None,
    };
    checks.iter().filter_map(fix).collect()
}

/// Returns the value in the text of a file of the kernel: the word in brackets, if it is a choice such as `always [madvise] never`.
fn value(text: &str) -> &str {
    let chosen = text.split_once('[').and_then(|(_, rest)| Some(rest.split_once(']')?.0));
    chosen.unwrap_or(text).trim()
}

#[derive(Debug, Serialize, Deserialize)]
struct Journal {
    schema: String,
    boot_id: String,
    made: Vec<Made>,
}

/// Outcome of [`Changes::persist`].
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Persisted {
    /// Files that were written.
    pub files: Vec<PathBuf>,
    /// Names of settings that nothing here can make at every start.
    pub not: Vec<String>,
}

/// Outcome of [`Changes::undo`].
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Undone {
    /// Settings that have their former value, such as `vm.compaction_proactiveness=20`.
    pub restored: Vec<String>,
    /// Files that were removed.
    pub removed: Vec<PathBuf>,
    /// Settings and files that were left alone because somebody else has changed them, each with the reason.
    pub left: Vec<String>,
    /// Settings and files that could not be restored, each with the reason. They are tried again when the changes are undone again.
    pub failed: Vec<String>,
}

/// The settings that were made on this machine, and are not undone.
#[derive(Debug)]
pub struct Changes {
    files: Sysfs,
    folder: PathBuf,
    journal: Journal,
    /// The lock file, which is locked for as long as it is open; `None` if nothing may be changed.
    lock: Option<File>,
}

impl Changes {
    /// Reads the changes that were made below the root of `files`, from the journal in the runtime folder `folder`. The result can change nothing.
    pub fn read(files: &Sysfs, folder: &Path) -> Result<Changes, FixError> {
        let empty = || Journal { schema: SCHEMA.to_owned(), boot_id: runtime::boot_id(), made: Vec::new() };
        let path = folder.join(JOURNAL);
        let journal = match runtime::read(&path)? {
            None => empty(),
            Some(bytes) => serde_json::from_slice(&bytes)
                .ok()
                .filter(|journal: &Journal| journal.schema == SCHEMA && journal.made.iter().all(Made::is_plausible))
                .ok_or_else(|| SystemError::Untrusted {
                    path,
                    reason: "it is damaged, or of another version".to_owned(),
                })?,
        };
        // Settings end with the boot.
        let journal = if journal.boot_id == runtime::boot_id() { journal } else { empty() };
        Ok(Changes { files: files.clone(), folder: folder.to_owned(), journal, lock: None })
    }

    /// Reads the changes as [`Changes::read`] does, in order to make more changes or undo them. Waits while another process does so.
    pub fn lock(files: &Sysfs, folder: &Path) -> Result<Changes, FixError> {
        runtime::make(folder)?;
        let path = folder.join("doctor.lock");
        let lock = File::options().create(true).truncate(false).write(true).open(&path);
        let lock = lock.and_then(|file| flock(&file, FlockOperation::LockExclusive).map(|()| file).map_err(Into::into));
        let lock = lock.map_err(|source| SystemError::Unwritable { path, source })?;
        Ok(Changes { lock: Some(lock), ..Changes::read(files, folder)? })
    }

    /// Makes a setting. Its former value is recorded before.
    pub fn make(&mut self, fix: &Fix) -> Result<(), FixError> {
        assert!(self.lock.is_some(), "changes are made under the lock");
        let Setting { file, value: wanted, .. } = &fix.setting;
        let path = self.files.path(file);
        let unreadable = |source| FixError::Write { path: path.clone(), source };
        let text = fs::read_to_string(&path).map_err(unreadable)?;
        // The text of a choice lists all values; any other text is written back as it is.
        let before = if text.contains('[') { format!("{}\n", value(&text)) } else { text };
        // A former entry of this file has been overtaken by whoever has changed the value since.
        self.journal.made.retain(|made| made.file != *file);
        self.journal.made.push(Made { file: file.clone(), before: before.clone(), now: wanted.clone() });
        self.write_journal()?;
        let written = write(&path, &format!("{wanted}\n"));
        let found = self.files.text(file).map(|text| value(&text).to_owned()).unwrap_or_default();
        if written.is_ok() && found == *wanted {
            return Ok(());
        }
        // Whatever the kernel took instead is not what the caller agreed to.
        let restored = if written.is_ok() { write(&path, &before) } else { Ok(()) };
        restored.map_err(|source| FixError::Write { path: path.clone(), source })?;
        self.journal.made.pop();
        self.write_journal()?;
        written.map_err(|source| FixError::Write { path, source })?;
        Err(FixError::Refused { name: fix.setting.name(), wanted: wanted.clone(), found })
    }

    /// Fails if [`Changes::persist`] could not do anything.
    pub fn can_persist(&self) -> Result<(), FixError> {
        let files = DropIn::all(&self.files);
        if files.is_empty() {
            return Err(FixError::NotAtStart);
        }
        let foreign = files.iter().find(|file| file.path(&self.files).exists() && file.made(&self.files).is_none());
        foreign.map_or(Ok(()), |file| Err(FixError::Foreign { path: file.path(&self.files) }))
    }

    /// Writes files that make, at every start, the settings made since this one.
    pub fn persist(&self) -> Result<Persisted, FixError> {
        assert!(self.lock.is_some(), "changes are made under the lock");
        self.can_persist()?;
        let (mut persisted, mut left) = (Persisted::default(), self.journal.made.clone());
        for file in DropIn::all(&self.files) {
            let mut lines = file.made(&self.files).unwrap_or_default();
            let (own, others) = left.into_iter().partition(|made| file.takes(made));
            left = others;
            // What is in the file keeps its former value, which is older.
            let fresh: Vec<Made> = own;
            lines.extend(
                fresh.into_iter().filter(|made| !lines.iter().any(|line| line.file == made.file)).collect::<Vec<_>>(),
            );
            if lines.is_empty() {
                continue;
            }
            let path = file.path(&self.files);
            let folder = path.parent().unwrap_or(Path::new("/"));
            fs::create_dir_all(folder).map_err(|source| FixError::Write { path: folder.to_owned(), source })?;
            runtime::replace(&path, DropIn::text(&lines).as_bytes()).map_err(|error| match error {
                SystemError::Unwritable { path, source } => FixError::Write { path, source },
                other => other.into(),
            })?;
            persisted.files.push(path);
        }
        persisted.not = left.iter().map(|made| made.setting().name()).collect();
        Ok(persisted)
    }

    /// Whether there is nothing to undo.
    pub fn is_empty(&self) -> bool {
        self.journal.made.is_empty() && !DropIn::possible().iter().any(|file| file.is_ours(&self.files))
    }

    /// Restores the former values and removes the files that make settings at every start. Settings that somebody else has changed since are left
    /// alone.
    ///
    /// Without the lock nothing is changed, and the result says what would be changed.
    pub fn undo(&mut self) -> Result<Undone, FixError> {
        let mut undone = Undone::default();
        let files = DropIn::possible().into_iter().filter(|file| file.is_ours(&self.files)).collect::<Vec<_>>();
        let mut all = self.journal.made.clone();
        for made in files.iter().filter_map(|file| file.made(&self.files)).flatten() {
            if !all.iter().any(|known| known.file == made.file) {
                all.push(made);
            }
        }
        let mut failed: Vec<Made> = all.iter().rev().filter(|made| !self.restore(made, &mut undone)).cloned().collect();
        failed.reverse();
        if self.lock.is_some() && (!failed.is_empty() || !self.journal.made.is_empty()) {
            // Before the files are removed, so that what failed is not forgotten.
            self.journal.made = failed;
            self.write_journal()?;
        }
        for file in files {
            let path = file.path(&self.files);
            if file.made(&self.files).is_none() {
                undone.left.push(format!("{}: it was changed since; remove it by hand", path.display()));
                continue;
            }
            if self.lock.is_some() {
                fs::remove_file(&path).map_err(|source| FixError::Write { path: path.clone(), source })?;
            }
            undone.removed.push(path);
        }
        let path = self.folder.join(JOURNAL);
        if self.lock.is_some() && self.journal.made.is_empty() && path.exists() {
            fs::remove_file(&path).map_err(|source| FixError::Write { path, source })?;
        }
        Ok(undone)
    }

    /// Restores the former value of one setting, if its value is still the one that was made. Returns false if that failed.
    fn restore(&self, made: &Made, undone: &mut Undone) -> bool {
        let name = made.setting().name();
        let before = value(&made.before);
        match self.files.text(&made.file) {
            None => undone.left.push(format!("{name}: this kernel does not have it")),
            Some(text) if value(&text) == made.now => {
                let restored = match &self.lock {
                    Some(_) => write(&self.files.path(&made.file), &made.before),
                    None => Ok(()),
                };
                if let Err(error) = restored {
                    undone.failed.push(format!("{name}={before}: {error}"));
                    return false;
                }
                undone.restored.push(format!("{name}={before}"));
            }
            // The fix was interrupted before the write, or somebody has undone it.
            Some(text) if value(&text) == before => {}
            Some(text) => undone.left.push(format!(
                "{name}: somebody has set {} since, instead of {}; it was {before} before",
                value(&text),
                made.now
            )),
        }
        true
    }

    fn write_journal(&self) -> Result<(), SystemError> {
        runtime::replace(
            &self.folder.join(JOURNAL),
            &serde_json::to_vec(&self.journal).expect("a journal is plain data"),
        )
    }
}

/// Writes `text` to a file of the kernel in one call. The file must exist.
fn write(path: &Path, text: &str) -> io::Result<()> {
    let mut file = File::options().write(true).truncate(true).open(path)?;
    file.write_all(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::doctor::movers;
    use crate::machine::sysfs::fake::Fake;

    const COMPACTION: &str = "proc/sys/vm/compact_unevictable_allowed";
    const PROACTIVE: &str = "proc/sys/vm/compaction_proactiveness";
    const NUMA: &str = "proc/sys/kernel/numa_balancing";
    const HUGE: &str = "sys/kernel/mm/transparent_hugepage/enabled";
    const SYSCTL_FILE: &str = "etc/sysctl.d/60-isochrome.conf";
    const TMPFILES_FILE: &str = "etc/tmpfiles.d/60-isochrome.conf";

    /// Returns a machine that runs systemd, whose settings are not those that isochrome wants.
    fn machine() -> Fake {
        Fake::new(&[
            ("proc/1/comm", "systemd\n"),
            ("usr/bin/systemd-tmpfiles", ""),
            (COMPACTION, "1\n"),
            (PROACTIVE, "20\n"),
            (NUMA, "1\n"),
            ("proc/sys/vm/untouched", "7\n"),
        ])
    }

    /// Returns every file below `folder` of the machine, with its text.
    fn tree(machine: &Fake, folder: &str) -> BTreeMap<PathBuf, String> {
        let mut found = BTreeMap::new();
        let mut folders = vec![machine.files().path(folder)];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(&folder).into_iter().flatten() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                } else {
                    found.insert(path.clone(), fs::read_to_string(path).unwrap());
                }
            }
        }
        found
    }

    fn fixes(machine: &Fake) -> Vec<Fix> {
        harmless(&movers(&machine.files()), &machine.files())
    }

    /// Makes all harmless settings, at every start as well if `persistent`.
    fn fix(machine: &Fake, folder: &Path, persistent: bool) -> usize {
        let mut changes = Changes::lock(&machine.files(), folder).unwrap();
        let fixes = fixes(machine);
        fixes.iter().for_each(|fix| changes.make(fix).unwrap());
        if persistent {
            changes.persist().unwrap();
        }
        fixes.len()
    }

    fn undo(machine: &Fake, folder: &Path) -> Undone {
        Changes::lock(&machine.files(), folder).unwrap().undo().unwrap()
    }

    #[test]
    fn undoing_restores_every_byte_and_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let machine = machine();
        let before = tree(&machine, "");
        for persistent in [false, true] {
            assert_eq!(fix(&machine, folder.path(), persistent), 3);
            assert_eq!([COMPACTION, PROACTIVE, NUMA].map(|file| machine.text(file)), ["0\n"; 3]);
            assert!(fixes(&machine).is_empty(), "what is made is not offered again");
            assert_eq!(machine.files().has(SYSCTL_FILE), persistent);
            assert!(!Changes::read(&machine.files(), folder.path()).unwrap().is_empty());
            let undone = undo(&machine, folder.path());
            assert_eq!((undone.restored.len(), undone.removed.len(), undone.left.len()), (3, persistent.into(), 0));
            assert_eq!(tree(&machine, ""), before);
            assert!(Changes::read(&machine.files(), folder.path()).unwrap().is_empty());
            assert!(!folder.path().join(JOURNAL).exists());
        }
        assert_eq!(undo(&machine, folder.path()), Undone::default());
    }

    #[test]
    fn a_value_that_somebody_else_has_set_is_left_alone_and_named() {
        let folder = tempfile::tempdir().unwrap();
        let machine = machine();
        fix(&machine, folder.path(), false);
        machine.write(PROACTIVE, "50\n");
        fs::remove_file(machine.files().path(NUMA)).unwrap();
        let undone = undo(&machine, folder.path());
        assert_eq!(undone.restored, ["vm.compact_unevictable_allowed=1"]);
        assert_eq!(undone.left.len(), 2, "{undone:?}");
        assert!(undone.left[0].starts_with("kernel.numa_balancing") && undone.left[1].contains("set 50 since"));
        assert_eq!((machine.text(PROACTIVE).as_str(), machine.text(COMPACTION).as_str()), ("50\n", "1\n"));
        assert_eq!(undo(&machine, folder.path()), Undone::default());
    }

    #[test]
    fn an_interrupted_fix_can_be_undone() {
        let folder = tempfile::tempdir().unwrap();
        let machine = machine();
        let before = tree(&machine, "proc");
        let mut changes = Changes::lock(&machine.files(), folder.path()).unwrap();
        let fixes = fixes(&machine);
        changes.make(&fixes[0]).unwrap();
        // The second one ends between the journal and the write: the journal as it is then, and the machine as it was.
        let second = fixes[1].setting.file.clone();
        let value_before = machine.text(&second);
        changes.make(&fixes[1]).unwrap();
        machine.write(&second, &value_before);
        drop(changes);
        let undone = undo(&machine, folder.path());
        assert_eq!((undone.restored.len(), undone.left.len()), (1, 0), "{undone:?}");
        assert_eq!(tree(&machine, "proc"), before);
    }

    #[test]
    fn an_interrupted_undo_goes_on() {
        let folder = tempfile::tempdir().unwrap();
        let machine = machine();
        let before = tree(&machine, "");
        fix(&machine, folder.path(), true);
        // The undo was killed after its first write; the journal is whole.
        machine.write(NUMA, "1\n");
        assert_eq!(undo(&machine, folder.path()).restored.len(), 2);
        assert_eq!(tree(&machine, ""), before);
    }

    #[test]
    fn a_fix_over_another_ones_value_restores_that_value() {
        let folder = tempfile::tempdir().unwrap();
        let machine = machine();
        fix(&machine, folder.path(), false);
        machine.write(PROACTIVE, "50\n");
        assert_eq!(fix(&machine, folder.path(), false), 1);
        undo(&machine, folder.path());
        assert_eq!(machine.text(PROACTIVE), "50\n");
        assert_eq!(machine.text(COMPACTION), "1\n");
    }

    #[test]
    fn settings_for_every_start_are_undone_after_a_boot() {
        let machine = machine();
        let before = tree(&machine, "");
        fix(&machine, tempfile::tempdir().unwrap().path(), true);
        let lines = machine.text(SYSCTL_FILE);
        assert!(lines.lines().any(|line| line == "vm.compact_unevictable_allowed=0"), "{lines}");
        // Everything else in the file is a comment to sysctl.
        let settings = lines.lines().filter(|line| !line.starts_with('#'));
        assert!(settings.clone().all(|line| line.contains('=')) && settings.count() == 3, "{lines}");
        // The runtime folder is empty after a boot.
        let folder = tempfile::tempdir().unwrap();
        let undone = undo(&machine, folder.path());
        assert_eq!((undone.restored.len(), undone.removed.len()), (3, 1));
        assert_eq!(tree(&machine, ""), before);
    }

    #[test]
    fn files_that_others_have_written_or_changed_stay() {
        let folder = tempfile::tempdir().unwrap();
        let machine = machine();
        machine.write(SYSCTL_FILE, "vm.swappiness=10\n");
        let mut changes = Changes::lock(&machine.files(), folder.path()).unwrap();
        assert!(matches!(changes.can_persist(), Err(FixError::Foreign { .. })));
        assert_eq!(changes.undo().unwrap(), Undone::default());
        drop(changes);
        fs::remove_file(machine.files().path(SYSCTL_FILE)).unwrap();
        fix(&machine, folder.path(), true);
        let more = machine.text(SYSCTL_FILE) + "vm.swappiness=10\n";
        machine.write(SYSCTL_FILE, &more);
        let undone = undo(&machine, folder.path());
        assert!(undone.left[0].contains("60-isochrome.conf") && undone.removed.is_empty(), "{undone:?}");
        assert_eq!(machine.text(SYSCTL_FILE), more);
        assert_eq!(machine.text(PROACTIVE), "20\n");
    }

    #[test]
    fn what_is_no_sysctl_is_made_by_tmpfiles_and_its_choice_is_restored() {
        let folder = tempfile::tempdir().unwrap();
        let machine = machine();
        machine.write(HUGE, "[always] madvise never\n");
        // A plain file shows what was written, and not the choices as the kernel does.
        assert_eq!(fix(&machine, folder.path(), true), 4);
        assert_eq!(machine.text(HUGE), "madvise\n");
        let line = "w /sys/kernel/mm/transparent_hugepage/enabled - - - - madvise";
        assert!(machine.text(TMPFILES_FILE).lines().any(|text| text == line));
        undo(&machine, folder.path());
        assert_eq!(machine.text(HUGE), "always\n");
        assert!(!machine.files().has(TMPFILES_FILE) && !machine.files().has(SYSCTL_FILE));
    }

    #[test]
    fn what_cannot_be_restored_is_named_and_tried_again_and_the_rest_is_restored() {
        let folder = tempfile::tempdir().unwrap();
        let machine = machine();
        fix(&machine, folder.path(), false);
        // Nobody may write this file of the kernel, not even root.
        let name = "proc/sys/kernel/ostype";
        std::os::unix::fs::symlink(Path::new("/").join(name), machine.files().path(name)).unwrap();
        let mut changes = Changes::lock(&machine.files(), folder.path()).unwrap();
        let stuck =
            Made { file: name.to_owned(), before: "Minix\n".to_owned(), now: machine.text(name).trim().to_owned() };
        changes.journal.made.insert(1, stuck.clone());
        let undone = changes.undo().unwrap();
        assert_eq!((undone.restored.len(), undone.failed.len()), (3, 1), "{undone:?}");
        assert!(undone.failed[0].starts_with("kernel.ostype=Minix: "), "{undone:?}");
        drop(changes);
        assert_eq!(Changes::read(&machine.files(), folder.path()).unwrap().journal.made, [stuck]);
        assert_eq!(undo(&machine, folder.path()).failed, undone.failed);
    }

    #[test]
    fn a_machine_that_applies_no_files_is_told_so_before_anything_is_changed() {
        let folder = tempfile::tempdir().unwrap();
        let machine = machine();
        machine.write("proc/1/comm", "sleep\n");
        let changes = Changes::lock(&machine.files(), folder.path()).unwrap();
        assert!(matches!(changes.can_persist(), Err(FixError::NotAtStart)));
    }

    #[test]
    fn without_the_lock_undoing_only_says_what_it_would_do() {
        let folder = tempfile::tempdir().unwrap();
        let machine = machine();
        fix(&machine, folder.path(), true);
        let before = (tree(&machine, ""), tree(&machine, "").len());
        let would = Changes::read(&machine.files(), folder.path()).unwrap().undo().unwrap();
        assert_eq!((would.restored.len(), would.removed.len()), (3, 1));
        assert_eq!((tree(&machine, ""), tree(&machine, "").len()), before);
        assert_eq!(undo(&machine, folder.path()), would);
    }

    #[test]
    fn what_gives_rights_or_takes_from_the_host_is_never_made() {
        let machine = machine();
        machine.write("proc/swaps", "Filename\t\tType\n/dev/sda2 partition 1 0 -2\n");
        let names: Vec<String> = fixes(&machine).iter().map(|fix| fix.setting.name()).collect();
        assert_eq!(names, ["vm.compact_unevictable_allowed", "vm.compaction_proactiveness", "kernel.numa_balancing"]);
        // Separating merged pages needs memory.
        machine.write("sys/kernel/mm/ksm/run", "1\n");
        machine.write("proc/self/smaps", "KernelPageSize:        4 kB\n");
        machine.write("sys/kernel/mm/ksm/pages_sharing", "1000\n");
        let with_memory = |kib: u32| {
            machine.write("proc/meminfo", &format!("MemAvailable:    {kib} kB\n"));
            fixes(&machine).len()
        };
        assert_eq!((with_memory(4000), with_memory(8000)), (3, 4));
    }

    #[test]
    fn a_damaged_journal_is_refused_and_names_no_other_file() {
        let folder = tempfile::tempdir().unwrap();
        let machine = machine();
        for made in ["{", r#"{"schema":"other/9","boot_id":"","made":[]}"#] {
            fs::write(folder.path().join(JOURNAL), made).unwrap();
            assert!(Changes::read(&machine.files(), folder.path()).is_err(), "{made}");
        }
        for (file, is_plausible) in
            [("proc/sys/vm/a", true), ("sys/kernel/mm/a", true), ("etc/shadow", false), ("sys/../etc/shadow", false)]
        {
            let made = Made { file: file.to_owned(), before: "1\n".to_owned(), now: "0".to_owned() };
            assert_eq!(made.is_plausible(), is_plausible, "{file}");
        }
    }
}
