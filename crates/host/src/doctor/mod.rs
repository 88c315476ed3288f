//! Checks of what this machine permits and what it refuses, with the command that would lift each refusal.
//!
//! [`Trials::run`] tries operations on this machine. [`examination`] judges the results together with the machine's files and needs nothing
//! else, so a machine model can be examined as well. The caller decides how the checks are shown. [`Changes`] makes the harmless settings
//! among the remedies, and undoes them.

mod drop_in;
mod fix;
mod hardware;
mod memory;
mod movers;
mod remedy;
mod scheduling;
mod summary;
mod trials;

use std::time::Duration;

use isochrome_model::machine::Machine;
use schemars::JsonSchema;
use serde::Serialize;

pub use self::fix::{Changes, Fix, FixError, Persisted, Undone, harmless};
use self::hardware::{caches, counters, governor, threads, timer, virtualization};
use self::memory::{can_move, frame_numbers, map_count, memlock, tracing, userfaultfd};
pub use self::movers::movers;
use self::remedy::{Action, Platform};
pub use self::remedy::{Gain, Price, Setting};
use self::scheduling::{cpuset, fifo, isolation, new_processes, resctrl, steal, throttling};
pub use self::summary::Step;
use self::summary::{abilities, first_steps};
pub use self::trials::Trials;
use crate::machine::distribution::Distribution;
use crate::machine::sysfs::{Note, Sysfs};

/// Availability of a feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// Available as isochrome needs it.
    Ok,
    /// Available in part, or with an effect on results.
    Limited,
    /// Not available.
    Missing,
}

/// One feature that was checked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Check {
    /// Name of the feature.
    pub name: String,
    /// Availability of the feature.
    pub status: Status,
    /// Description of what was found.
    pub found: String,
    /// Meaning of the finding for isochrome.
    pub why: String,
    /// Command that improves the availability, until the next boot if there is a persistent one as well.
    pub remedy: Option<String>,
    /// Who may run that command.
    pub privilege: Option<String>,
    /// Command that makes the improvement last beyond the next boot, if it differs from the remedy and this machine has one.
    pub persistent: Option<String>,
    /// How the command's program is installed, if it is missing.
    pub package: Option<String>,
    /// Benefit of the remedy, if the remedy is a fix and not an alternative to one.
    pub gain: Option<Gain>,
    /// Cost of the fix for the rest of the machine.
    pub price: Option<Price>,
    /// Whether isochrome applies the remedy on request (`doctor --fix`), because it is harmless and sets a value of the kernel.
    pub fixable: bool,
    /// Action of the commands.
    #[serde(skip)]
    action: Option<Action>,
}

impl Check {
    fn new(name: impl Into<String>, status: Status, found: impl Into<String>, why: impl Into<String>) -> Check {
        Check {
            name: name.into(),
            status,
            found: found.into(),
            why: why.into(),
            remedy: None,
            privilege: None,
            persistent: None,
            package: None,
            gain: None,
            price: None,
            fixable: false,
            action: None,
        }
    }

    /// Names a command that is an alternative to a fix of the finding.
    fn advice(mut self, command: impl Into<String>, privilege: &str) -> Check {
        self.remedy = Some(command.into());
        self.privilege = Some(privilege.to_owned());
        self
    }

    /// Names the action that fixes the finding. Its commands depend on the machine: see [`Platform::name_commands`].
    fn fix(mut self, action: Action, gain: Gain, price: Price) -> Check {
        self.fixable = price == Price::Harmless && matches!(action, Action::Set(_));
        (self.action, self.gain, self.price) = (Some(action), Some(gain), Some(price));
        self
    }
}

/// Everything that is known of a machine after its examination.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Examination {
    /// All checks, in the order of the text.
    pub checks: Vec<Check>,
    /// The distribution.
    pub distribution: Distribution,
    /// Boot loader by which the kernel's command line is changed; `null` if none is installed here.
    pub boot_loader: Option<String>,
    /// Phrases that say what the machine can do.
    pub can: Vec<String>,
    /// Phrases that say what the machine cannot do, each with the checks that say why.
    pub cannot: Vec<String>,
    /// Recommended fixes, the most useful fix first; empty if nothing is to be done.
    pub first: Vec<Step>,
}

const ROOT: &str = "root";

/// Command that gives the program all capabilities that the checks need. `setcap` replaces capabilities, so a command for a single one
/// would remove the others.
const SETCAP: &str =
    "setcap cap_sys_admin,cap_sys_ptrace,cap_sys_nice,cap_ipc_lock,cap_perfmon+ep \"$(command -v isochrome)\"";

/// Examines this machine. Steal time is watched for `interval`.
pub fn examine(interval: Duration) -> Examination {
    examination(&Sysfs::system(), &Trials::run(interval))
}

/// Judges a machine by its files below the root `sysfs` and by the results of the trials.
pub fn examination(sysfs: &Sysfs, trials: &Trials) -> Examination {
    let platform = Platform::read(sysfs);
    let (machine, notes) = match sysfs.machine() {
        Ok((machine, notes)) => (Some(machine), notes),
        Err(error) => {
            let note = Note { subject: "machine".to_owned(), reason: error.to_string(), hint: String::new() };
            (None, vec![note])
        }
    };
    let mut checks = checks(sysfs, trials, machine.as_ref(), &notes);
    checks.iter_mut().for_each(|check| platform.name_commands(check));
    let (can, cannot) = abilities(sysfs, machine.as_ref(), trials, &checks, &movers(sysfs));
    Examination {
        first: first_steps(&checks),
        checks,
        boot_loader: platform.boot_loader.as_ref().ok().map(|loader| loader.name.to_owned()),
        distribution: platform.distribution,
        can,
        cannot,
    }
}

/// Returns all checks, in the order of the text.
fn checks(sysfs: &Sysfs, trials: &Trials, machine: Option<&Machine>, notes: &[Note]) -> Vec<Check> {
    let processor = sysfs.processor().unwrap_or_default();
    let hypervisor = machine.and_then(|m| m.hypervisor.as_deref());
    let mut all = vec![virtualization(hypervisor)];
    all.extend(machine.map(caches).unwrap_or_default());
    all.extend(notes.iter().map(|note| {
        let why = if note.hint.is_empty() {
            note.reason.clone()
        } else {
            format!("not colored until declared: {}", note.hint)
        };
        Check::new(format!("cache {}", note.subject), Status::Missing, note.reason.clone(), why)
    }));
    all.push(timer(sysfs, &processor));
    all.push(counters(&processor, &trials.counters));
    all.push(frame_numbers(&trials.frame_number, hypervisor.is_some()));
    all.push(userfaultfd(sysfs, trials));
    all.push(tracing(sysfs, trials.may_trace_all));
    all.push(new_processes(trials.sees_processes));
    all.push(fifo(&trials.fifo));
    all.extend(throttling(sysfs));
    all.push(memlock(trials.memlock_limit));
    all.extend(map_count(sysfs, can_move(trials)));
    all.extend(movers(sysfs));
    all.push(isolation(sysfs, machine));
    all.push(governor(sysfs, machine));
    all.push(threads(sysfs, hypervisor.is_some()));
    all.push(resctrl(sysfs));
    all.extend(cpuset(sysfs, machine));
    all.push(steal(trials.steal, hypervisor.is_some()));
    all
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::path::Path;

    use isochrome_model::units::Bytes;

    use super::movers::{free_page_reporting, huge_pages, swap};
    use super::*;
    use crate::counters::{CounterError, Slots};
    use crate::sys::userfault;

    pub(super) fn described(name: &str) -> Sysfs {
        Sysfs::at(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../machines").join(name))
    }

    fn denied() -> io::Error {
        io::Error::from_raw_os_error(libc::EPERM)
    }

    /// Returns the results of trials on a machine that allows everything.
    pub(super) fn generous() -> Trials {
        Trials {
            counters: Ok(Slots { usable: 5, defect: None }),
            frame_number: Ok(77),
            userfault_user: Ok(userfault::FEATURE_MOVE),
            userfault_full: Ok(userfault::FEATURE_MOVE),
            fifo: Ok(()),
            may_trace_all: true,
            sees_processes: true,
            memlock_limit: None,
            steal: Some(0.0),
        }
    }

    fn find<'a>(checks: &'a [Check], name: &str) -> &'a Check {
        checks.iter().find(|check| check.name == name).unwrap_or_else(|| panic!("no check named {name}"))
    }

    #[test]
    fn whatever_is_kept_back_and_can_be_had_names_the_command_and_who_may_give_it() {
        let trials = Trials {
            counters: Err(CounterError::Forbidden {
                event: "instructions".into(),
                paranoid: "4".into(),
                source: denied(),
            }),
            frame_number: Ok(0),
            userfault_user: Err(denied()),
            userfault_full: Err(denied()),
            fifo: Err(denied()),
            may_trace_all: false,
            sees_processes: false,
            memlock_limit: Some(Bytes(8 << 20)),
            steal: Some(0.02),
        };
        let checks = examination(&described("i7-2600"), &trials).checks;
        for name in [
            "performance counters",
            "frame numbers",
            "moving pages",
            "tracing processes",
            "SCHED_FIFO",
            "locked memory",
        ] {
            let check = find(&checks, name);
            assert_ne!(check.status, Status::Ok, "{name}");
            assert!(check.remedy.is_some() && check.privilege.as_deref() == Some("root"), "{check:?}");
        }
        assert_eq!(find(&checks, "steal time").found, "2.0 % of the time");
    }

    #[test]
    fn in_a_virtual_machine_visible_frame_numbers_do_not_give_colors() {
        let guest = examination(&described("zen3-vm"), &generous()).checks;
        assert_eq!(find(&guest, "virtualization").status, Status::Limited);
        assert!(find(&guest, "frame numbers").why.contains("guest's own"));
        assert!(find(&guest, "hardware threads").why.contains("unseen"));
        let metal = examination(&described("i7-2600"), &generous()).checks;
        assert_eq!(find(&metal, "virtualization").status, Status::Ok);
        assert!(find(&metal, "frame numbers").why.contains("computed"));
    }

    #[test]
    fn each_cache_level_tells_its_colors_and_hidden_ones_are_missing() {
        let all = examination(&described("zen3-vm"), &generous()).checks;
        assert_eq!(find(&all, "cache level 2").found, "512 KiB, 8 ways, 1024 sets, 16 colors, private to each CPU");
        // 32 MiB / (16 ways x 4 KiB) = 512 colors, if it were one slice.
        let outer = find(&all, "cache level 3");
        assert_eq!(outer.found, "32 MiB, 16 ways, 32768 sets, up to 512 colors, shared by CPUs 0-1");
        assert_eq!(outer.status, Status::Limited);
        assert!(find(&all, "cache level 1").why.contains("cannot partition"));
        let sparse = examination(&described("sparse"), &generous()).checks;
        assert_eq!(find(&sparse, "cache level 3 (unified)").status, Status::Missing);
    }

    #[test]
    fn counters_without_a_known_second_level_event_are_limited() {
        // Sandy Bridge has no event for second-level data misses. The made-up Arm machine has one.
        assert_eq!(
            find(&examination(&described("i7-2600"), &generous()).checks, "performance counters").status,
            Status::Limited
        );
        assert_eq!(
            find(&examination(&described("sparse"), &generous()).checks, "performance counters").status,
            Status::Ok
        );
    }

    #[test]
    fn kernel_files_are_judged_by_their_text() {
        let root = tempfile::tempdir().unwrap();
        let write = |file: &str, text: &str| {
            let path = root.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        let sysfs = Sysfs::at(root.path());
        write("sys/kernel/mm/transparent_hugepage/enabled", "[always] madvise never\n");
        assert_eq!(huge_pages(&sysfs).unwrap().status, Status::Limited);
        write("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
        assert_eq!(huge_pages(&sysfs).unwrap().status, Status::Ok);
        write("proc/sys/kernel/sched_rt_runtime_us", "950000\n");
        write("proc/sys/kernel/sched_rt_period_us", "1000000\n");
        assert_eq!(throttling(&sysfs).unwrap().found, "950000 of 1000000 us");
        write("proc/sys/kernel/sched_rt_runtime_us", "-1\n");
        assert_eq!(throttling(&sysfs).unwrap().status, Status::Ok);
        write("proc/filesystems", "nodev\tsysfs\nnodev\tresctrl\n");
        let mount = "mount -t resctrl resctrl /sys/fs/resctrl";
        assert!(matches!(resctrl(&sysfs).action, Some(Action::Run { now, .. }) if now == mount));
        write("proc/self/mounts", "resctrl /sys/fs/resctrl resctrl rw 0 0\n");
        assert_eq!(resctrl(&sysfs).status, Status::Ok);
        let machine = described("i7-2600").machine().unwrap().0;
        write("proc/self/status", "Cpus_allowed_list:\t0-15\n");
        assert_eq!(cpuset(&sysfs, Some(&machine)).unwrap().status, Status::Ok);
        write("proc/self/status", "Cpus_allowed_list:\t2-3\n");
        assert_eq!(cpuset(&sysfs, Some(&machine)).unwrap().found, "2-3 of 0-7");
        for (scope, status) in
            [("0", Status::Limited), ("1", Status::Limited), ("2", Status::Missing), ("3", Status::Missing)]
        {
            write("proc/sys/kernel/yama/ptrace_scope", scope);
            assert_eq!(tracing(&sysfs, false).status, status, "{scope}");
            assert!(tracing(&sysfs, false).action.is_some());
            assert_eq!(tracing(&sysfs, true).status == Status::Ok, scope != "3");
        }
        write("proc/swaps", "Filename\t\tType\n/dev/sda2 partition 1 0 -2\n");
        assert_eq!(swap(&sysfs).unwrap().status, Status::Limited);
        for (file, drifts, stays) in [
            ("proc/sys/vm/compact_unevictable_allowed", "1", "0"),
            ("proc/sys/vm/compaction_proactiveness", "20", "0"),
            ("sys/kernel/mm/ksm/run", "1", "2"),
            ("proc/sys/kernel/numa_balancing", "1", "0"),
        ] {
            let drifting = || movers(&sysfs).iter().filter(|check| check.status != Status::Ok).count();
            write(file, stays);
            let before = drifting();
            write(file, drifts);
            assert_eq!(drifting(), before + 1, "{file}");
        }
        write("sys/bus/virtio/drivers/virtio_balloon/virtio0/features", "0110010100000000\n");
        write("sys/module/page_reporting/parameters/page_reporting_order", "9\n");
        assert!(free_page_reporting(&sysfs).unwrap().found.contains("512 pages"));
        write("sys/bus/virtio/drivers/virtio_balloon/virtio0/features", "0110000100000000\n");
        assert_eq!(free_page_reporting(&sysfs), None);
        assert!(movers(&sysfs).iter().filter(|check| check.status != Status::Ok).all(|check| check.action.is_some()));
    }
}
