//! Checks of operations on memory: reading frame numbers, moving pages, tracing processes, locking memory.

use std::io;

use isochrome_model::units::Bytes;

use super::remedy::{Action, run, sysctl};
use super::{Check, Gain, Price, SETCAP, Status, Trials};
use crate::machine::sysfs::Sysfs;
use crate::sys::userfault;

pub(super) fn frame_numbers(trial: &io::Result<u64>, is_virtual: bool) -> Check {
    const NAME: &str = "frame numbers";
    match trial {
        Ok(0) => Check::new(NAME, Status::Limited, "hidden", "colors must be measured").fix(
            run(SETCAP),
            Gain::Ability,
            Price::Protection,
        ),
        Ok(_) if is_virtual => {
            Check::new(NAME, Status::Ok, "visible", "they are the guest's own, and colors do not follow from them")
        }
        Ok(_) => Check::new(NAME, Status::Ok, "visible", "colors can be computed and checked"),
        Err(error) => {
            Check::new(NAME, Status::Missing, format!("/proc/self/pagemap: {error}"), "colors must be measured")
        }
    }
}

pub(super) fn can_move(trials: &Trials) -> bool {
    [&trials.userfault_user, &trials.userfault_full]
        .iter()
        .any(|trial| trial.as_ref().is_ok_and(|features| features & userfault::FEATURE_MOVE != 0))
}

pub(super) fn userfaultfd(sysfs: &Sysfs, trials: &Trials) -> Check {
    const NAME: &str = "moving pages";
    let kernel = sysfs.text("proc/sys/kernel/osrelease").unwrap_or_else(|| "unknown".to_owned());
    let opened = |trial: &io::Result<u64>| match trial {
        Ok(_) => "yes".to_owned(),
        Err(error) => format!("no ({error})"),
    };
    let unprivileged = sysfs.text("proc/sys/vm/unprivileged_userfaultfd").unwrap_or_else(|| "absent".to_owned());
    let found = format!(
        "Linux {kernel}; userfaultfd for user mode: {}; for all faults: {}; UFFDIO_MOVE: {}; vm.unprivileged_userfaultfd {unprivileged}",
        opened(&trials.userfault_user),
        opened(&trials.userfault_full),
        if can_move(trials) { "yes" } else { "no" },
    );
    if trials.userfault_user.is_err() && trials.userfault_full.is_err() {
        let denied = |trial: &io::Result<u64>| {
            trial.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied)
        };
        let check = Check::new(NAME, Status::Missing, found, "live processes cannot be recolored");
        return if denied(&trials.userfault_full) || denied(&trials.userfault_user) {
            check.fix(sysctl("vm.unprivileged_userfaultfd", 1), Gain::Ability, Price::Protection)
        } else {
            check
        };
    }
    if !can_move(trials) {
        return Check::new(
            NAME,
            Status::Limited,
            found,
            "before Linux 6.8 a page is moved with mremap, which splits its mapping",
        );
    }
    let why = "pages can be moved in place";
    match &trials.userfault_full {
        Ok(_) => Check::new(NAME, Status::Ok, found, why),
        Err(_) => {
            let why = format!("{why}; system calls of the target on an empty page fail during a move");
            Check::new(NAME, Status::Limited, found, why).fix(
                sysctl("vm.unprivileged_userfaultfd", 1),
                Gain::Ability,
                Price::Protection,
            )
        }
    }
}

pub(super) fn tracing(sysfs: &Sysfs, may_trace_all: bool) -> Check {
    const NAME: &str = "tracing processes";
    // The kernel does not take this value back. A file of the administrator sets it at every start.
    const FORGET: &str =
        "sed -i '/ptrace_scope/d' $(grep -ls ptrace_scope /etc/sysctl.conf /etc/sysctl.d/*.conf) && reboot";
    const WHY: &str = "exec and recolor stop a program while its pages move";
    let scope = sysfs.text("proc/sys/kernel/yama/ptrace_scope");
    match scope.as_deref() {
        Some("3") => {
            Check::new(NAME, Status::Missing, "forbidden to all until the next boot (kernel.yama.ptrace_scope 3)", WHY)
                .fix(run(FORGET), Gain::Ability, Price::Protection)
        }
        _ if may_trace_all => Check::new(NAME, Status::Ok, "permitted", WHY),
        Some("2") => Check::new(NAME, Status::Missing, "needs CAP_SYS_PTRACE (kernel.yama.ptrace_scope 2)", WHY).fix(
            sysctl("kernel.yama.ptrace_scope", 1),
            Gain::Ability,
            Price::Protection,
        ),
        Some("1") => {
            let why = "exec reaches the programs it starts; recolor does not reach those that run already";
            Check::new(NAME, Status::Limited, "children only (kernel.yama.ptrace_scope 1)", why).fix(
                sysctl("kernel.yama.ptrace_scope", 0),
                Gain::Ability,
                Price::Protection,
            )
        }
        _ => Check::new(NAME, Status::Limited, "this user's processes", "those of other users are out of reach").fix(
            run(SETCAP),
            Gain::Ability,
            Price::Protection,
        ),
    }
}

/// Returns which programs a process without further rights can stop and move, in words; `None` if it can stop none.
pub(super) fn traceable(sysfs: &Sysfs, may_trace_all: bool) -> Option<&'static str> {
    match sysfs.text("proc/sys/kernel/yama/ptrace_scope").as_deref() {
        Some("3") => None,
        _ if may_trace_all => Some("running programs"),
        Some("2") => None,
        Some("1") => Some("programs that it starts"),
        _ => Some("running programs of this user"),
    }
}

pub(super) fn memlock(limit: Option<Bytes>) -> Check {
    match limit {
        None => Check::new("locked memory", Status::Ok, "unlimited", "jobs need not wait for paging"),
        Some(limit) => Check::new(
            "locked memory",
            Status::Limited,
            format!("{limit} at most"),
            "larger jobs can be paged out, and locking fails beyond the limit",
        )
        .fix(
            Action::Run {
                now: "prlimit --pid $$ --memlock=unlimited:unlimited".to_owned(),
                lasting: Some(SETCAP.to_owned()),
            },
            Gain::Times,
            Price::Protection,
        ),
    }
}

/// Number of mappings that suffices even if every moved page splits one: 4 GiB of pages.
const MAP_COUNT_WANTED: u64 = 1 << 20;

pub(super) fn map_count(sysfs: &Sysfs, can_move: bool) -> Option<Check> {
    let count: u64 = sysfs.text("proc/sys/vm/max_map_count")?.parse().ok()?;
    let found = format!("{count} per process");
    Some(if can_move || count >= MAP_COUNT_WANTED {
        Check::new("mappings", Status::Ok, found, "moving pages does not run out of them")
    } else {
        let why = "without UFFDIO_MOVE every moved page may become a mapping of its own";
        Check::new("mappings", Status::Limited, found, why).fix(
            sysctl("vm.max_map_count", MAP_COUNT_WANTED),
            Gain::Ability,
            Price::Harmless,
        )
    })
}
