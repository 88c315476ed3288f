//! What this machine allows, what it keeps back, and the command that would change it.
//!
//! Trials touch the machine ([`Trials::run`]); judging them together with the kernel's files is a function of both
//! ([`checks`]), so a described machine can be examined as well. How it is shown is up to the caller.

use std::io;
use std::time::Duration;

use isochrome_model::machine::{Holds, Machine};
use isochrome_model::miss_ratio::Touches;
use isochrome_model::units::{Bytes, format_list, parse_list};
use rustix::process::{Resource, getrlimit};
use schemars::JsonSchema;
use serde::Serialize;

use crate::color::pagemap;
use crate::counters::events::{events_of, miss_events};
use crate::counters::{Slots, usable_slots};
use crate::error::HostError;
use crate::machine::setting::{CAP_IPC_LOCK, CAP_SYS_PTRACE, has_capability};
use crate::machine::steal::CpuTicks;
use crate::machine::sysfs::{CPU_LIMIT, Note, Processor, Sysfs};
use crate::sys::memory::Arena;
use crate::sys::scheduling::Scheduling;
use crate::sys::userfault;

/// How well something is available.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// As good as isochrome can use it.
    Ok,
    /// Available in part, or with an effect on results.
    Limited,
    /// Not available.
    Missing,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Check {
    /// What.
    pub name: String,
    /// How well it is available.
    pub status: Status,
    /// What was found.
    pub found: String,
    /// What it means for isochrome.
    pub why: String,
    /// The command that improves it.
    pub remedy: Option<String>,
    /// Who may give that command.
    pub privilege: Option<String>,
}

impl Check {
    fn new(name: impl Into<String>, status: Status, found: impl Into<String>, why: impl Into<String>) -> Check {
        Check { name: name.into(), status, found: found.into(), why: why.into(), remedy: None, privilege: None }
    }

    fn remedy(mut self, command: impl Into<String>, privilege: &str) -> Check {
        self.remedy = Some(command.into());
        self.privilege = Some(privilege.to_owned());
        self
    }
}

const ROOT: &str = "root";

/// Gives the program every capability that a check asks for: setcap replaces, so single ones would undo each other.
const SETCAP: &str =
    "setcap cap_sys_admin,cap_sys_ptrace,cap_sys_nice,cap_ipc_lock,cap_perfmon+ep \"$(command -v isochrome)\"";

/// What trying things on this machine showed.
#[derive(Debug)]
pub struct Trials {
    /// Counters that work together.
    pub counters: Result<Slots, HostError>,
    /// Frame number of a page just touched, 0 when the kernel hides it.
    pub frame_number: io::Result<u64>,
    /// Features of a userfaultfd for faults of user mode only.
    pub userfault_user: io::Result<u64>,
    /// Features of a userfaultfd for all faults, by the system call or by /dev/userfaultfd.
    pub userfault_full: io::Result<u64>,
    /// Whether a thread may become SCHED_FIFO.
    pub fifo: io::Result<()>,
    /// Whether any process may be traced: CAP_SYS_PTRACE.
    pub may_trace_all: bool,
    /// Limit of locked memory; `None` when there is none or it does not apply.
    pub memlock_limit: Option<Bytes>,
    /// Share of CPU time that the hypervisor gave to others, over a short interval.
    pub steal: Option<f64>,
}

impl Trials {
    /// Tries everything; takes `interval` and some milliseconds, and leaves nothing changed.
    pub fn run(interval: Duration) -> Trials {
        let system = Sysfs::system();
        let before = CpuTicks::read(&system, None);
        std::thread::sleep(interval);
        let steal = before.and_then(|before| CpuTicks::read(&system, None)?.steal_share_since(before));
        // A thread of its own, so that no trial changes the caller's policy.
        let fifo = std::thread::spawn(|| Scheduling::fifo(1).apply())
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("the trial thread panicked")));
        Trials {
            counters: usable_slots(),
            frame_number: own_frame_number(),
            userfault_user: userfault::features_for_user_mode(),
            userfault_full: userfault::features_for_all_faults(),
            fifo,
            may_trace_all: has_capability(CAP_SYS_PTRACE),
            memlock_limit: getrlimit(Resource::Memlock).current.filter(|_| !has_capability(CAP_IPC_LOCK)).map(Bytes),
            steal,
        }
    }
}

/// Everything about this machine; the steal time is watched for `interval`.
pub fn examine(interval: Duration) -> Vec<Check> {
    checks(&Sysfs::system(), &Trials::run(interval))
}

/// Judges what the kernel's files and the trials say.
pub fn checks(sysfs: &Sysfs, trials: &Trials) -> Vec<Check> {
    let processor = sysfs.processor().unwrap_or_default();
    let (machine, notes) = match sysfs.machine() {
        Ok((machine, notes)) => (Some(machine), notes),
        Err(error) => {
            let note = Note { subject: "machine".to_owned(), reason: error.to_string(), hint: String::new() };
            (None, vec![note])
        }
    };
    let hypervisor = machine.as_ref().and_then(|m| m.hypervisor.clone());
    let mut all = vec![virtualization(hypervisor.as_deref())];
    all.extend(machine.as_ref().map(caches).unwrap_or_default());
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
    all.push(fifo(&trials.fifo));
    all.extend(throttling(sysfs));
    all.push(memlock(trials.memlock_limit));
    all.extend(map_count(sysfs, can_move(trials)));
    all.extend(movers(sysfs));
    all.push(isolation(sysfs, machine.as_ref()));
    all.push(governor(sysfs, machine.as_ref()));
    all.push(threads(sysfs, hypervisor.is_some()));
    all.push(resctrl(sysfs));
    all.extend(cpuset(sysfs, machine.as_ref()));
    all.push(steal(trials.steal, hypervisor.is_some()));
    all
}

/// What moves pages to other frames behind a program's back, so that its colors drift: one check per mover this kernel has.
pub fn movers(sysfs: &Sysfs) -> Vec<Check> {
    let mut all = vec![compaction(sysfs)];
    all.extend(proactive_compaction(sysfs));
    all.extend(huge_pages(sysfs));
    all.push(same_page_merging(sysfs));
    all.push(numa_balancing(sysfs));
    all.extend(swap(sysfs));
    all.extend(free_page_reporting(sysfs));
    all
}

fn virtualization(hypervisor: Option<&str>) -> Check {
    match hypervisor {
        None => {
            Check::new("virtualization", Status::Ok, "none seen", "frame numbers are physical: colors follow from them")
        }
        Some(name) => Check::new(
            "virtualization",
            Status::Limited,
            format!("virtual machine ({name})"),
            "frame numbers are the guest's own, so colors must be measured; unseen neighbors may share every cache",
        )
        .remedy("isochrome palette --by timing", "none"),
    }
}

fn caches(machine: &Machine) -> Vec<Check> {
    let outermost = machine.levels.iter().map(|level| level.level).max().unwrap_or(0);
    let data = machine.levels.iter().filter(|level| level.holds != Holds::Instruction);
    data.map(|level| {
        let geometry = level.geometry.value;
        let colors = geometry.color_count(machine.page_bytes);
        let groups = &level.shared_by.value;
        let shared = if groups.iter().all(|group| group.len() == 1) {
            "private to each CPU".to_owned()
        } else {
            let lists = groups.iter().map(|group| format_list(&group.iter().map(|cpu| cpu.0).collect::<Vec<_>>()));
            format!("shared by CPUs {}", lists.collect::<Vec<_>>().join(" and "))
        };
        let found = format!(
            "{}, {} ways, {} sets, {}{colors} color{}, {shared}",
            geometry.cache_bytes(),
            geometry.ways,
            geometry.set_count,
            // The kernel counts the sets of all slices; the hash that chooses a slice takes its bits from the colors.
            if level.level >= 3 { "up to " } else { "" },
            if colors == 1 { "" } else { "s" },
        );
        let (status, why) = if colors == 1 {
            (Status::Ok, "one color: pages cannot partition it")
        } else if machine.hypervisor.is_some() && level.level == outermost && level.level >= 3 {
            (Status::Limited, "other guests of the host may share it, whatever is partitioned here")
        } else {
            (Status::Ok, "pages can partition it")
        };
        Check::new(format!("cache level {}", level.level), status, found, why)
    })
    .collect()
}

fn timer(sysfs: &Sysfs, processor: &Processor) -> Check {
    let source = sysfs
        .text("sys/devices/system/clocksource/clocksource0/current_clocksource")
        .unwrap_or_else(|| "unknown".to_owned());
    if processor.is_arm() {
        return Check::new(
            "timer",
            Status::Ok,
            format!("generic timer, clock source {source}"),
            "its rate is constant",
        );
    }
    let missing: Vec<&str> = ["constant_tsc", "nonstop_tsc"].into_iter().filter(|flag| !processor.has(flag)).collect();
    if missing.is_empty() {
        let found = format!("constant and nonstop TSC, clock source {source}");
        Check::new("timer", Status::Ok, found, "ticks are time, whatever the frequency")
    } else {
        let found = format!("TSC without {}, clock source {source}", missing.join(" and "));
        Check::new("timer", Status::Limited, found, "ticks may stop or change their rate: times are uncertain")
    }
}

fn counters(processor: &Processor, trial: &Result<Slots, HostError>) -> Check {
    const NAME: &str = "performance counters";
    const BY_TIMING: &str = "what is measured by timing works without; misses cannot be counted";
    match trial {
        Ok(slots) => {
            let defect = slots.defect.as_ref().map(|defect| format!("; {defect}")).unwrap_or_default();
            let found = format!("{} work together{defect}", slots.usable);
            let counts_l2 = miss_events(processor, 2, Touches::Data).next().is_some();
            match slots.usable {
                0 => Check::new(NAME, Status::Missing, found, BY_TIMING),
                _ if events_of(processor).is_empty() => {
                    Check::new(NAME, Status::Limited, found, "no cache events are known for this processor")
                }
                _ if !counts_l2 => {
                    Check::new(NAME, Status::Limited, found, "no second-level event is known for this processor")
                }
                1 | 2 => Check::new(NAME, Status::Limited, found, "few events at once: miss ratios need several runs"),
                _ => Check::new(NAME, Status::Ok, found, "misses can be counted per job"),
            }
        }
        Err(HostError::CountersForbidden { paranoid, .. }) => {
            Check::new(NAME, Status::Missing, format!("forbidden, kernel.perf_event_paranoid is {paranoid}"), BY_TIMING)
                .remedy("sysctl kernel.perf_event_paranoid=2", ROOT)
        }
        Err(HostError::CountersAbsent { source, .. }) => Check::new(
            NAME,
            Status::Missing,
            format!("none ({source}); a host can give its guest a virtual PMU"),
            BY_TIMING,
        ),
        Err(error) => Check::new(NAME, Status::Missing, first_line(error), BY_TIMING),
    }
}

fn frame_numbers(trial: &io::Result<u64>, is_virtual: bool) -> Check {
    const NAME: &str = "frame numbers";
    match trial {
        Ok(0) => Check::new(NAME, Status::Limited, "hidden", "colors must be measured").remedy(SETCAP, ROOT),
        Ok(_) if is_virtual => {
            Check::new(NAME, Status::Ok, "visible", "the guest's own: they name frames, they do not tell colors")
        }
        Ok(_) => Check::new(NAME, Status::Ok, "visible", "colors can be computed and checked"),
        Err(error) => {
            Check::new(NAME, Status::Missing, format!("/proc/self/pagemap: {error}"), "colors must be measured")
        }
    }
}

fn can_move(trials: &Trials) -> bool {
    [&trials.userfault_user, &trials.userfault_full]
        .iter()
        .any(|trial| trial.as_ref().is_ok_and(|features| features & userfault::FEATURE_MOVE != 0))
}

fn userfaultfd(sysfs: &Sysfs, trials: &Trials) -> Check {
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
            check.remedy("sysctl vm.unprivileged_userfaultfd=1", ROOT)
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
            Check::new(NAME, Status::Limited, found, why).remedy("sysctl vm.unprivileged_userfaultfd=1", ROOT)
        }
    }
}

fn huge_pages(sysfs: &Sysfs) -> Option<Check> {
    const FILE: &str = "sys/kernel/mm/transparent_hugepage/enabled";
    let text = sysfs.text(FILE)?;
    let mode = text.split_once('[')?.1.split_once(']')?.0;
    Some(match mode {
        "always" => Check::new(
            "transparent huge pages",
            Status::Limited,
            mode,
            "a huge page has every color; it is split when moved, which takes milliseconds, and may form again",
        )
        .remedy(format!("echo madvise > /{FILE}"), ROOT),
        _ => Check::new("transparent huge pages", Status::Ok, mode, "pages stay small unless a program asks otherwise"),
    })
}

fn tracing(sysfs: &Sysfs, may_trace_all: bool) -> Check {
    const NAME: &str = "tracing processes";
    const WHY: &str = "exec and recolor stop a program while its pages move";
    let scope = sysfs.text("proc/sys/kernel/yama/ptrace_scope");
    match scope.as_deref() {
        Some("3") => {
            Check::new(NAME, Status::Missing, "forbidden to all until the next boot (kernel.yama.ptrace_scope 3)", WHY)
                .remedy("sed -i '/ptrace_scope/d' /etc/sysctl.d/*.conf && reboot", ROOT)
        }
        _ if may_trace_all => Check::new(NAME, Status::Ok, "permitted", WHY),
        Some("2") => Check::new(NAME, Status::Missing, "needs CAP_SYS_PTRACE (kernel.yama.ptrace_scope 2)", WHY)
            .remedy("sysctl kernel.yama.ptrace_scope=1", ROOT),
        Some("1") => {
            let why = "exec reaches the programs it starts; recolor does not reach those that run already";
            Check::new(NAME, Status::Limited, "children only (kernel.yama.ptrace_scope 1)", why)
                .remedy("sysctl kernel.yama.ptrace_scope=0", ROOT)
        }
        _ => Check::new(NAME, Status::Limited, "this user's processes", "those of other users are out of reach")
            .remedy(SETCAP, ROOT),
    }
}

fn fifo(trial: &io::Result<()>) -> Check {
    match trial {
        Ok(()) => Check::new("SCHED_FIFO", Status::Ok, "permitted", "jobs can run before everything else"),
        Err(error) => Check::new(
            "SCHED_FIFO",
            Status::Missing,
            error.to_string(),
            "jobs share the CPU with everything else: response times are the scheduler's",
        )
        .remedy(SETCAP, ROOT),
    }
}

fn throttling(sysfs: &Sysfs) -> Option<Check> {
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
        .remedy("sysctl kernel.sched_rt_runtime_us=-1", ROOT)
    })
}

fn memlock(limit: Option<Bytes>) -> Check {
    match limit {
        None => Check::new("locked memory", Status::Ok, "unlimited", "jobs need not wait for paging"),
        Some(limit) => Check::new(
            "locked memory",
            Status::Limited,
            format!("{limit} at most"),
            "larger jobs can be paged out, and locking fails beyond the limit",
        )
        .remedy("prlimit --pid $$ --memlock=unlimited:unlimited", ROOT),
    }
}

/// Mappings that suffice where every moved page splits one: 4 GiB of pages.
const MAP_COUNT_WANTED: u64 = 1 << 20;

fn map_count(sysfs: &Sysfs, can_move: bool) -> Option<Check> {
    let count: u64 = sysfs.text("proc/sys/vm/max_map_count")?.parse().ok()?;
    let found = format!("{count} per process");
    Some(if can_move || count >= MAP_COUNT_WANTED {
        Check::new("mappings", Status::Ok, found, "moving pages does not run out of them")
    } else {
        let why = "without UFFDIO_MOVE every moved page may become a mapping of its own";
        Check::new("mappings", Status::Limited, found, why)
            .remedy(format!("sysctl vm.max_map_count={MAP_COUNT_WANTED}"), ROOT)
    })
}

fn compaction(sysfs: &Sysfs) -> Check {
    const NAME: &str = "compaction";
    match sysfs.text("proc/sys/vm/compact_unevictable_allowed").as_deref() {
        None => Check::new(NAME, Status::Ok, "not in this kernel", "it moves no pages"),
        Some("0") => Check::new(NAME, Status::Ok, "spares locked pages", "colors of locked memory last"),
        Some(_) => Check::new(NAME, Status::Limited, "may move locked pages", "colors can change while a task runs")
            .remedy("sysctl vm.compact_unevictable_allowed=0", ROOT),
    }
}

fn proactive_compaction(sysfs: &Sysfs) -> Option<Check> {
    const NAME: &str = "compaction in advance";
    Some(match sysfs.text("proc/sys/vm/compaction_proactiveness")?.as_str() {
        "0" => Check::new(NAME, Status::Ok, "off", "pages are moved only when large pieces of memory are asked for"),
        level => Check::new(
            NAME,
            Status::Limited,
            format!("vm.compaction_proactiveness {level}"),
            "the kernel moves pages in the background to make large pieces: their colors drift",
        )
        .remedy("sysctl vm.compaction_proactiveness=0", ROOT),
    })
}

fn same_page_merging(sysfs: &Sysfs) -> Check {
    const NAME: &str = "same-page merging";
    match sysfs.text("sys/kernel/mm/ksm/run").as_deref() {
        None => Check::new(NAME, Status::Ok, "not in this kernel", "it moves no pages"),
        Some("1") => Check::new(
            NAME,
            Status::Limited,
            "on",
            "equal pages become one frame, and get another when written: their colors drift, and merged pages cannot be moved",
        )
        .remedy("echo 2 > /sys/kernel/mm/ksm/run", ROOT),
        Some(_) => Check::new(NAME, Status::Ok, "off", "it moves no pages"),
    }
}

fn numa_balancing(sysfs: &Sysfs) -> Check {
    const NAME: &str = "NUMA balancing";
    match sysfs.text("proc/sys/kernel/numa_balancing").as_deref() {
        None => Check::new(NAME, Status::Ok, "not in this kernel", "it moves no pages"),
        Some("0") => Check::new(NAME, Status::Ok, "off", "it moves no pages"),
        Some(_) => Check::new(NAME, Status::Limited, "on", "pages move to the node that uses them: their colors drift")
            .remedy("sysctl kernel.numa_balancing=0", ROOT),
    }
}

fn free_page_reporting(sysfs: &Sysfs) -> Option<Check> {
    let frames = sysfs.reported_block_frames()?;
    let check = Check::new(
        "free page reporting",
        Status::Limited,
        format!("free memory goes to the host in pieces of {frames} pages"),
        "when used again they lie on other frames of the host: colors of free memory drift, those of memory in use do not",
    );
    Some(check.remedy("echo 10 > /sys/module/page_reporting/parameters/page_reporting_order", ROOT))
}

fn isolation(sysfs: &Sysfs, machine: Option<&Machine>) -> Check {
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
            check.remedy(
                format!(
                    "grubby --update-kernel=ALL --args=\"isolcpus=managed_irq,domain,{cpu} nohz_full={cpu} rcu_nocbs={cpu}\" && reboot"
                ),
                ROOT,
            )
        }
        _ => check,
    }
}

fn governor(sysfs: &Sysfs, machine: Option<&Machine>) -> Check {
    const NAME: &str = "frequency scaling";
    let mut modes: Vec<String> = machine
        .iter()
        .flat_map(|m| &m.cpus)
        .filter_map(|cpu| sysfs.text(&format!("sys/devices/system/cpu/cpu{}/cpufreq/scaling_governor", cpu.0)))
        .collect();
    modes.sort();
    modes.dedup();
    match modes.as_slice() {
        [] => Check::new(
            NAME,
            Status::Ok,
            "not done by this kernel",
            "the frequency is fixed, or the firmware's or host's own",
        ),
        [mode] if mode == "performance" => {
            Check::new(NAME, Status::Ok, mode.as_str(), "the frequency stays high between jobs")
        }
        _ => Check::new(NAME, Status::Limited, modes.join(", "), "jobs start slow after every pause")
            .remedy("echo performance | tee /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor", ROOT),
    }
}

fn threads(sysfs: &Sysfs, is_virtual: bool) -> Check {
    const NAME: &str = "hardware threads";
    match sysfs.text("sys/devices/system/cpu/smt/active").as_deref() {
        Some("1") => Check::new(NAME, Status::Limited, "on", "two CPUs share one core with its first and second level")
            .remedy("echo off > /sys/devices/system/cpu/smt/control", ROOT),
        _ if is_virtual => Check::new(
            NAME,
            Status::Limited,
            "not visible in a virtual machine",
            "an unseen sibling may share the core",
        )
        .remedy("isochrome probe", "none"),
        _ => Check::new(NAME, Status::Ok, "off or none", "each CPU has its core for itself"),
    }
}

fn resctrl(sysfs: &Sysfs) -> Check {
    const NAME: &str = "resctrl";
    let has = |file: &str| {
        sysfs
            .text(file)
            .is_some_and(|text| text.lines().any(|line| line.split_whitespace().any(|word| word == "resctrl")))
    };
    if has("proc/self/mounts") {
        Check::new(NAME, Status::Ok, "mounted", "caches can be partitioned by ways")
    } else if has("proc/filesystems") {
        Check::new(NAME, Status::Limited, "offered, not mounted", "caches could be partitioned by ways")
            .remedy("mount -t resctrl resctrl /sys/fs/resctrl", ROOT)
    } else {
        Check::new(NAME, Status::Missing, "not in this kernel or processor", "caches are partitioned by colors only")
    }
}

fn cpuset(sysfs: &Sysfs, machine: Option<&Machine>) -> Option<Check> {
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
        Check::new(NAME, Status::Limited, found, "tasks can be placed on these only")
            .remedy(format!("systemd-run --scope --property=AllowedCPUs={online_text} isochrome doctor"), ROOT)
    })
}

fn swap(sysfs: &Sysfs) -> Option<Check> {
    let areas = sysfs.text("proc/swaps")?.lines().skip(1).filter(|line| !line.trim().is_empty()).count();
    Some(match areas {
        0 => Check::new("swap", Status::Ok, "off", "pages stay where they are"),
        _ => Check::new(
            "swap",
            Status::Limited,
            format!("{areas} in use"),
            "a page that was out returns in another frame",
        )
        .remedy("swapoff -a", ROOT),
    })
}

/// Share of steal time above which times of jobs are suspect.
const STEAL_TOLERATED: f64 = 0.005;

fn steal(share: Option<f64>, is_virtual: bool) -> Check {
    const NAME: &str = "steal time";
    match share {
        None => Check::new(
            NAME,
            Status::Missing,
            "/proc/stat does not tell",
            "time taken by the host cannot be told from a job's",
        ),
        Some(share) if share > STEAL_TOLERATED => Check::new(
            NAME,
            Status::Limited,
            format!("{:.1} % of the time", share * 100.0),
            "the host runs others on these CPUs: maxima are the host's, not the task's",
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

fn first_line(error: &HostError) -> String {
    error.to_string().lines().next().unwrap_or_default().to_owned()
}

/// Frame number of an own page as /proc/self/pagemap shows it; 0 when hidden.
fn own_frame_number() -> io::Result<u64> {
    let mut arena = Arena::map(1)?;
    arena.bytes_mut()[0] = 1;
    std::fs::File::open("/proc/self/pagemap")?;
    Ok(pagemap::frames(&arena, 0..1)[0].map_or(0, |frame| frame.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn described(name: &str) -> Sysfs {
        Sysfs::at(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../machines").join(name))
    }

    fn denied() -> io::Error {
        io::Error::from_raw_os_error(libc::EPERM)
    }

    /// A machine that allows everything.
    fn generous() -> Trials {
        Trials {
            counters: Ok(Slots { usable: 5, defect: None }),
            frame_number: Ok(77),
            userfault_user: Ok(userfault::FEATURE_MOVE),
            userfault_full: Ok(userfault::FEATURE_MOVE),
            fifo: Ok(()),
            may_trace_all: true,
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
            counters: Err(HostError::CountersForbidden {
                event: "instructions".into(),
                paranoid: "4".into(),
                source: denied(),
            }),
            frame_number: Ok(0),
            userfault_user: Err(denied()),
            userfault_full: Err(denied()),
            fifo: Err(denied()),
            may_trace_all: false,
            memlock_limit: Some(Bytes(8 << 20)),
            steal: Some(0.02),
        };
        let checks = checks(&described("i7-2600"), &trials);
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
    fn in_a_virtual_machine_visible_frame_numbers_do_not_promise_colors() {
        let guest = checks(&described("zen3-vm"), &generous());
        assert_eq!(find(&guest, "virtualization").status, Status::Limited);
        assert!(find(&guest, "frame numbers").why.contains("guest's own"));
        assert!(find(&guest, "hardware threads").why.contains("unseen"));
        let metal = checks(&described("i7-2600"), &generous());
        assert_eq!(find(&metal, "virtualization").status, Status::Ok);
        assert!(find(&metal, "frame numbers").why.contains("computed"));
    }

    #[test]
    fn each_cache_level_tells_its_colors_and_hidden_ones_are_missing() {
        let all = checks(&described("zen3-vm"), &generous());
        assert_eq!(find(&all, "cache level 2").found, "512 KiB, 8 ways, 1024 sets, 16 colors, private to each CPU");
        // 32 MiB / (16 ways x 4 KiB) = 512 colors, if it were one slice.
        let outer = find(&all, "cache level 3");
        assert_eq!(outer.found, "32 MiB, 16 ways, 32768 sets, up to 512 colors, shared by CPUs 0-1");
        assert_eq!(outer.status, Status::Limited);
        assert!(find(&all, "cache level 1").why.contains("cannot partition"));
        let sparse = checks(&described("sparse"), &generous());
        assert_eq!(find(&sparse, "cache level 3 (unified)").status, Status::Missing);
    }

    #[test]
    fn counters_without_a_known_second_level_event_are_limited() {
        // Sandy Bridge: first-level event only. The made-up Arm has all.
        assert_eq!(find(&checks(&described("i7-2600"), &generous()), "performance counters").status, Status::Limited);
        assert_eq!(find(&checks(&described("sparse"), &generous()), "performance counters").status, Status::Ok);
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
        assert_eq!(resctrl(&sysfs).remedy.as_deref(), Some("mount -t resctrl resctrl /sys/fs/resctrl"));
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
            assert!(tracing(&sysfs, false).remedy.is_some());
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
        assert!(movers(&sysfs).iter().filter(|check| check.status != Status::Ok).all(|check| check.remedy.is_some()));
    }
}
