//! `isochrome doctor --fix` and `--undo`: makes the harmless settings that help, after asking, and takes them back.

use std::io::{self, IsTerminal};
use std::os::fd::AsFd;

use anyhow::{Result, bail, ensure};
use isochrome_host::doctor::{Changes, Fix, examine, harmless};
use isochrome_host::interrupt::interrupted;
use isochrome_host::machine::sysfs::Sysfs;
use isochrome_host::runtime;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::geteuid;

use super::INTERVAL;
use crate::args::DoctorOptions;
use crate::files::print;
use crate::hints;
use crate::verdict::Verdict;

/// Makes the harmless settings that this machine lacks, each after asking.
pub fn fix(options: &DoctorOptions) -> Result<Verdict> {
    let (files, folder) = (Sysfs::system(), runtime::folder());
    if !options.dry_run {
        ensure_root("--fix")?;
        ensure!(
            options.yes || io::stdin().is_terminal(),
            "doctor --fix asks before each setting, and standard input is not a terminal\n  hint: --yes sets all; --dry-run shows them"
        );
    }
    let fixes = harmless(&examine(INTERVAL).checks, &files);
    if options.dry_run {
        print(&fixes.iter().map(|fix| format!("would set {}\n", described(fix))).collect::<String>())?;
        if fixes.is_empty() {
            print("nothing to do: all harmless settings are made already\n")?;
        }
        if options.persistent {
            Changes::read(&files, &folder)?.can_persist()?;
            print("would also make these settings at every start\n")?;
        }
        return Ok(Verdict::Holds);
    }
    let mut changes = Changes::lock(&files, &folder)?;
    if options.persistent {
        // What cannot be had is said before anything is changed.
        changes.can_persist()?;
    }
    if fixes.is_empty() {
        print("nothing to do: all harmless settings are made already\n")?;
    }
    let outcome = make(&mut changes, &fixes, |fix| if options.yes { Ok(true) } else { asked(fix) });
    match outcome.made {
        0 if fixes.is_empty() => {}
        0 => print("nothing was set\n")?,
        made => {
            print(&format!("{made} of {} settings made; to take them back: isochrome doctor --undo\n", fixes.len()))?
        }
    }
    if let Some(error) = outcome.stopped {
        return Err(error);
    }
    if options.persistent {
        let persisted = changes.persist()?;
        for file in &persisted.files {
            print(&format!("{} makes them at every start\n", file.display()))?;
        }
        for name in &persisted.not {
            print(&format!("{name} ends with this boot: nothing here makes it at every start\n"))?;
        }
    }
    ensure!(
        outcome.failed == 0,
        "{} of {} settings could not be made\n  hint: the messages above say why",
        outcome.failed,
        fixes.len()
    );
    Ok(Verdict::Holds)
}

/// Outcome of [`make`].
struct Outcome {
    made: usize,
    failed: usize,
    /// Reason why the remaining fixes were not tried.
    stopped: Option<anyhow::Error>,
}

/// Makes the `fixes` for which `agrees` returns true. A setting that the kernel refuses is reported, and the others are made.
fn make(changes: &mut Changes, fixes: &[Fix], mut agrees: impl FnMut(&Fix) -> Result<bool>) -> Outcome {
    let mut outcome = Outcome { made: 0, failed: 0, stopped: None };
    for fix in fixes {
        match agrees(fix) {
            Ok(false) => continue,
            Err(error) => {
                outcome.stopped = Some(error);
                break;
            }
            Ok(true) => {}
        }
        match changes.make(fix) {
            Ok(()) => {
                outcome.made += 1;
                // The setting counts, whether or not somebody reads about it.
                let _ = print(&format!("set {}\n", described(fix)));
            }
            Err(error) => {
                outcome.failed += 1;
                eprintln!("isochrome: {}", hints::text(&error));
            }
        }
    }
    outcome
}

/// Takes back what `--fix` has changed.
pub fn undo(dry_run: bool) -> Result<Verdict> {
    let (files, folder) = (Sysfs::system(), runtime::folder());
    let mut changes = if dry_run {
        Changes::read(&files, &folder)?
    } else {
        ensure_root("--undo")?;
        Changes::lock(&files, &folder)?
    };
    if changes.is_empty() {
        print("nothing to undo: doctor --fix has changed nothing, or everything is undone already\n")?;
        return Ok(Verdict::Holds);
    }
    let undone = changes.undo()?;
    let would = if dry_run { "would be " } else { "" };
    let mut text = String::new();
    for setting in &undone.restored {
        text += &format!("{would}restored: {setting}\n");
    }
    for file in &undone.removed {
        text += &format!("{would}removed: {}\n", file.display());
    }
    for what in &undone.left {
        text += &format!("left alone: {what}\n");
    }
    print(&text)?;
    ensure!(
        undone.failed.is_empty(),
        "not restored: {}\n  hint: `isochrome doctor --undo` tries again",
        undone.failed.join(", ")
    );
    Ok(Verdict::Holds)
}

fn ensure_root(option: &str) -> Result<()> {
    ensure!(
        geteuid().is_root(),
        "doctor {option} changes settings of the kernel, which only root may do\n  hint: become root; `isochrome doctor {option} --dry-run` shows what it would do"
    );
    Ok(())
}

/// Describes the change that a fix makes.
fn described(fix: &Fix) -> String {
    format!("{}: {} -> {}   ({})", fix.setting.name(), fix.before, fix.setting.value, fix.check)
}

/// Asks on the terminal whether `fix` should be made. Any answer but yes counts as no.
fn asked(fix: &Fix) -> Result<bool> {
    print(&format!(
        "{}: {}\n  {}: {} -> {}\n  set it? [y/N] ",
        fix.check,
        fix.why,
        fix.setting.name(),
        fix.before,
        fix.setting.value
    ))?;
    Ok(is_yes(&line_of_terminal()?))
}

fn is_yes(answer: &str) -> bool {
    ["y", "yes"].iter().any(|yes| answer.trim().eq_ignore_ascii_case(yes))
}

/// Waits for a line from the terminal; empty at its end. Fails if a signal asks the program to finish.
fn line_of_terminal() -> Result<String> {
    /// Time between two looks for a signal that came just before the wait.
    const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
    let input = io::stdin();
    // A terminal returns one line, so nothing is read ahead.
    let mut line = [0; 256];
    loop {
        if interrupted() {
            print("\n")?;
            bail!("interrupted at a question\n  hint: settings made before it stay until `isochrome doctor --undo`");
        }
        match poll(&mut [PollFd::new(&input, PollFlags::IN)], Some(&LOOK)) {
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) => {
                let length = rustix::io::read(input.as_fd(), &mut line)?;
                return Ok(String::from_utf8_lossy(&line[..length]).into_owned());
            }
            Err(error) => return Err(io::Error::from(error).into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use isochrome_host::doctor::movers;

    use super::*;

    const SETTINGS: [(&str, &str); 3] = [
        ("proc/sys/vm/compact_unevictable_allowed", "1\n"),
        ("proc/sys/vm/compaction_proactiveness", "20\n"),
        ("proc/sys/kernel/numa_balancing", "1\n"),
    ];

    /// Makes the settings of a made-up machine for which `agrees` returns true, and returns the number made and the texts afterwards.
    fn after(agrees: impl Fn(&Fix) -> bool) -> (usize, Vec<String>) {
        let (root, folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for (file, text) in SETTINGS {
            let path = root.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let files = Sysfs::at(root.path());
        let fixes = harmless(&movers(&files), &files);
        assert_eq!(fixes.len(), SETTINGS.len());
        let mut changes = Changes::lock(&files, folder.path()).unwrap();
        let outcome = make(&mut changes, &fixes, |fix| Ok(agrees(fix)));
        assert!(outcome.failed == 0 && outcome.stopped.is_none());
        (outcome.made, SETTINGS.map(|(file, _)| fs::read_to_string(root.path().join(file)).unwrap()).to_vec())
    }

    #[test]
    fn what_is_declined_is_not_changed() {
        assert_eq!(after(|_| false), (0, SETTINGS.map(|(_, text)| text.to_owned()).to_vec()));
        let only = |fix: &Fix| fix.setting.name() == "vm.compaction_proactiveness";
        assert_eq!(after(only), (1, vec!["1\n".to_owned(), "0\n".to_owned(), "1\n".to_owned()]));
        assert_eq!(after(|_| true).0, 3);
    }

    #[test]
    fn only_a_yes_is_a_yes() {
        assert!(["y\n", "Y\n", "yes\n", " YES "].iter().all(|answer| is_yes(answer)));
        assert!(!["", "\n", "n\n", "no\n", "yy\n", "sure\n", "0\n"].iter().any(|answer| is_yes(answer)));
    }
}
