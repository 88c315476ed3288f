//! Checks of who gets the CPUs and the caches: real-time policies, isolation, partitions, steal time.

use std::io;

use isochrome_model::machine::Machine;
use isochrome_model::units::{format_list, parse_list};

use super::remedy::{Action, run, sysctl};
use super::{Check, Gain, Price, ROOT, SETCAP, Status};
use crate::machine::sysfs::{CPU_LIMIT, Sysfs};

pub(super) fn fifo(trial: &io::Result<()>) -> Check {
    match trial {
        Ok(()) => Check::new("SCHED_FIFO", Status::Ok, "permitted", "jobs can run before everything else"),
        Err(error) => Check::new(
            "SCHED_FIFO",
            Status::Missing,
            error.to_string(),
            "jobs share the CPU with everything else: response times are the scheduler's",
        )
        .fix(run(SETCAP), Gain::Ability, Price::Protection),
    }
}

pub(super) fn new_processes(seen: bool) -> Check {
    const NAME: &str = "new processes";
    if seen {
        return Check::new(
            NAME,
            Status::Ok,
            "seen by programs in the kernel",
            "isochrome serve notices them in 100 ms",
        );
    }
    let why =
        "isochrome serve notices new processes in 100 ms, but takes up to 5 s if one executes another program later";
    Check::new(NAME, Status::Limited, "seen by their number", why).advice("isochrome serve", ROOT)
}

pub(super) fn throttling(sysfs: &Sysfs) -> Option<Check> {
    const NAME: &str = "real-time throttling";
    let runtime: i64 = sysfs.text("proc/sys/kernel/sched_rt_runtime_us")?.parse().ok()?;
    let period: i64 = sysfs.text("proc/sys/kernel/sched_rt_period_us").and_then(|t| t.parse().ok()).unwrap_or(0);
    Some(if runtime < 0 || runtime == period {
        Check::new(NAME, Status::Ok, "off", "real-time threads are never held back")
    } else {
        Check::new(
            NAME,
            Status::Limited,
            format!("{runtime} of {period} us"),
            "real-time threads that fill a CPU are stopped for the rest of each period",
        )
        .fix(sysctl("kernel.sched_rt_runtime_us", -1), Gain::Times, Price::Host)
    })
}

pub(super) fn isolation(sysfs: &Sysfs, machine: Option<&Machine>) -> Check {
    const NAME: &str = "isolated CPUs";
    let of = |file: &str| sysfs.text(file).filter(|list| !list.is_empty() && list != "(null)");
    let isolated = of("sys/devices/system/cpu/isolated");
    let tickless = of("sys/devices/system/cpu/nohz_full");
    let shown = |list: &Option<String>| list.clone().unwrap_or_else(|| "none".to_owned());
    let found = format!("isolcpus {}, nohz_full {}", shown(&isolated), shown(&tickless));
    if isolated.is_some() && tickless.is_some() {
        return Check::new(NAME, Status::Ok, found, "nothing else is scheduled there, and the tick stays away");
    }
    let check = Check::new(NAME, Status::Limited, found, "other tasks and the tick interrupt jobs on every CPU");
    match machine.map(|m| m.cpus.as_slice()) {
        Some([_, .., last]) => {
            let cpu = last.0;
            let arguments = format!("isolcpus=managed_irq,domain,{cpu} nohz_full={cpu} rcu_nocbs={cpu}");
            check.fix(Action::Boot(arguments), Gain::Times, Price::Host)
        }
        _ => check,
    }
}

pub(super) fn resctrl(sysfs: &Sysfs) -> Check {
    const NAME: &str = "resctrl";
    let has = |file: &str| {
        sysfs
            .text(file)
            .is_some_and(|text| text.lines().any(|line| line.split_whitespace().any(|word| word == "resctrl")))
    };
    if has("proc/self/mounts") {
        Check::new(NAME, Status::Ok, "mounted", "caches can be partitioned by ways")
    } else if has("proc/filesystems") {
        Check::new(NAME, Status::Limited, "offered, not mounted", "caches could be partitioned by ways").fix(
            Action::Run {
                now: "mount -t resctrl resctrl /sys/fs/resctrl".to_owned(),
                lasting: Some("echo 'resctrl /sys/fs/resctrl resctrl defaults 0 0' >> /etc/fstab".to_owned()),
            },
            Gain::Ability,
            Price::Harmless,
        )
    } else {
        Check::new(NAME, Status::Missing, "not in this kernel or processor", "caches are partitioned by colors only")
    }
}

pub(super) fn cpuset(sysfs: &Sysfs, machine: Option<&Machine>) -> Option<Check> {
    const NAME: &str = "CPUs allowed";
    let online: Vec<u32> = machine?.cpus.iter().map(|cpu| cpu.0).collect();
    let status = sysfs.text("proc/self/status")?;
    let text = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    // The list may name CPUs that are offline or not there at all.
    let named = parse_list(text, CPU_LIMIT).ok()?;
    let allowed: Vec<u32> = online.iter().copied().filter(|cpu| named.contains(cpu)).collect();
    let (allowed_text, online_text) = (format_list(&allowed), format_list(&online));
    Some(if allowed == online {
        Check::new(NAME, Status::Ok, allowed_text, "every CPU")
    } else {
        let found = format!("{allowed_text} of {online_text}");
        let command = if sysfs.has("run/systemd/system") {
            format!("systemd-run --scope --property=AllowedCPUs={online_text} isochrome doctor")
        } else {
            format!("taskset -c {online_text} isochrome doctor")
        };
        Check::new(NAME, Status::Limited, found, "tasks can be placed on these only").advice(command, ROOT)
    })
}

/// Share of steal time above which execution times of jobs are suspect.
const STEAL_TOLERATED: f64 = 0.005;

pub(super) fn steal(share: Option<f64>, is_virtual: bool) -> Check {
    const NAME: &str = "steal time";
    match share {
        None => Check::new(
            NAME,
            Status::Missing,
            "/proc/stat does not tell",
            "time taken by the host cannot be distinguished from a job's",
        ),
        Some(share) if share > STEAL_TOLERATED => Check::new(
            NAME,
            Status::Limited,
            format!("{:.1} % of the time", share * 100.0),
            "the host runs others on these CPUs: the longest times are the host's, not the task's",
        ),
        Some(share) if is_virtual => Check::new(
            NAME,
            Status::Ok,
            format!("{:.1} % of the time", share * 100.0),
            "little at this moment; jobs that overlap it are tagged",
        ),
        Some(_) => Check::new(NAME, Status::Ok, "none", "no host takes time away"),
    }
}
