//! Checks of the processor: virtualization, caches, the timer, counters, hardware threads and their frequency.

use isochrome_model::machine::{Holds, Machine};
use isochrome_model::miss_ratio::Touches;
use isochrome_model::units::format_list;

use super::remedy::{sysctl, write};
use super::{Check, Gain, Price, Status};
use crate::counters::events::{events_of, miss_events};
use crate::counters::{CounterError, Slots};
use crate::error::without_hint;
use crate::machine::sysfs::{Processor, Sysfs};

pub(super) fn virtualization(hypervisor: Option<&str>) -> Check {
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
        .advice("isochrome palette --by timing", "none"),
    }
}

pub(super) fn caches(machine: &Machine) -> Vec<Check> {
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
            // The kernel reports the sets of all slices together. The hash that selects a slice takes its bits from those of the colors.
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

pub(super) fn timer(sysfs: &Sysfs, processor: &Processor) -> Check {
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

pub(super) fn counters(processor: &Processor, trial: &Result<Slots, CounterError>) -> Check {
    const NAME: &str = "performance counters";
    const BY_TIMING: &str = "measurements by timing work without counters, but misses cannot be counted";
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
        Err(CounterError::Forbidden { paranoid, .. }) => {
            Check::new(NAME, Status::Missing, format!("forbidden, kernel.perf_event_paranoid is {paranoid}"), BY_TIMING)
                .fix(sysctl("kernel.perf_event_paranoid", 2), Gain::Ability, Price::Protection)
        }
        Err(CounterError::Absent { source, .. }) => Check::new(
            NAME,
            Status::Missing,
            format!("none ({source}); a host can give its guest a virtual PMU"),
            BY_TIMING,
        ),
        Err(error) => Check::new(NAME, Status::Missing, without_hint(error), BY_TIMING),
    }
}

pub(super) fn governor(sysfs: &Sysfs, machine: Option<&Machine>) -> Check {
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
        _ => Check::new(NAME, Status::Limited, modes.join(", "), "jobs start slow after every pause").fix(
            write(
                "sys/devices/system/cpu/cpu*/cpufreq/scaling_governor",
                "performance",
                Some("cpufreq.default_governor=performance".to_owned()),
            ),
            Gain::Times,
            Price::Host,
        ),
    }
}

pub(super) fn threads(sysfs: &Sysfs, is_virtual: bool) -> Check {
    const NAME: &str = "hardware threads";
    match sysfs.text("sys/devices/system/cpu/smt/active").as_deref() {
        Some("1") => Check::new(NAME, Status::Limited, "on", "two CPUs share one core with its first and second level")
            .fix(
                write("sys/devices/system/cpu/smt/control", "off", Some("nosmt".to_owned())),
                Gain::Times,
                Price::Host,
            ),
        _ if is_virtual => Check::new(
            NAME,
            Status::Limited,
            "not visible in a virtual machine",
            "an unseen sibling may share the core",
        )
        .advice("isochrome probe", "none"),
        _ => Check::new(NAME, Status::Ok, "off or none", "each CPU has its core for itself"),
    }
}
