//! Checks a machine and its tasks, and completes their execution-time curves.

use super::{Invalid, PARTITIONS_MAX, Platform, TIME_MAX_NS, Task};

/// Checks that every number of the machine is in range.
pub(super) fn check_platform(platform: &Platform) -> Result<(), Invalid> {
    let Platform { cores, partitions, memory, refill_ns, refills, switch_ns, page, .. } = *platform;
    if cores == 0 || cores > 4096 {
        return Err(Invalid::at("cores", format!("{cores} is not a number of cores from 1 to 4096")));
    }
    if partitions == 0 || partitions > PARTITIONS_MAX {
        let problem = format!("{partitions} is not a number of partitions from 1 to {PARTITIONS_MAX}");
        return Err(Invalid::at("partitions", problem));
    }
    if !page.0.is_power_of_two() {
        return Err(Invalid::at("page_bytes", format!("{} is not a power of two", page.0)));
    }
    if memory.0 / u64::from(partitions) < page.0 {
        let problem = format!("{memory} over {partitions} partitions leaves less than a page for each");
        return Err(Invalid::at("memory_mib", problem));
    }
    let given = [
        ("refill_ns_per_partition", Some(refill_ns)),
        ("switch_ns", Some(switch_ns)),
        ("release_interrupt_ns", Some(platform.release_interrupt_ns)),
        ("preemption_ns", Some(platform.preemption_ns)),
    ];
    let known = [
        ("refill_ns_per_partition", refills.clean_ns),
        ("refill_dirty_ns_per_partition", refills.dirty_ns),
        ("miss_ns", refills.serial_ns),
    ];
    for (field_path, time) in given.into_iter().chain(known) {
        if let Some(time) = time.filter(|&time| time > TIME_MAX_NS) {
            return Err(Invalid::at(field_path, format!("{time} ns exceeds the longest time, {TIME_MAX_NS} ns")));
        }
    }
    Ok(())
}

/// Checks that every number of the task is in range, and that the task fits into the machine.
pub(super) fn check_task(index: usize, task: &Task, platform: &Platform) -> Result<(), Invalid> {
    let field_path = |field: &str| format!("tasks[{index}].{field}");
    let positive = |field: &str, time: u64| match time {
        0 => Err(Invalid::at(field_path(field), "a time must be positive, this is 0")),
        1..=TIME_MAX_NS => Ok(()),
        _ => Err(Invalid::at(field_path(field), format!("{time} ns exceeds the longest time, {TIME_MAX_NS} ns"))),
    };
    if task.name.is_empty() {
        return Err(Invalid::at(field_path("name"), "is empty"));
    }
    positive("period_ns", task.period_ns)?;
    positive("deadline_ns", task.deadline_ns)?;
    if task.deadline_ns > task.period_ns {
        let problem = format!("deadline {} ns exceeds the period {} ns", task.deadline_ns, task.period_ns);
        return Err(Invalid::at(
            field_path("deadline_ns"),
            format!("{problem}\n  hint: deadlines up to the period are analyzed"),
        ));
    }
    if task.wcet_ns.is_empty() {
        return Err(Invalid::at(
            field_path("wcet_ns"),
            "is empty\n  hint: give C^p for p = 1..N_P; one value if it does not depend on p",
        ));
    }
    for (p, &time) in task.wcet_ns.iter().enumerate() {
        positive(&format!("wcet_ns[{p}]"), time)?;
    }
    for (field, time) in
        [("jitter_ns", task.jitter_ns), ("blocking_ns", task.blocking_ns), ("nonpreemptive_ns", task.nonpreemptive_ns)]
    {
        if time > TIME_MAX_NS {
            return Err(Invalid::at(
                field_path(field),
                format!("{time} ns exceeds the longest time, {TIME_MAX_NS} ns"),
            ));
        }
    }
    if task.memory > platform.memory {
        let problem = format!("{} exceeds the {} of the whole machine", task.memory, platform.memory);
        return Err(Invalid::at(field_path("memory_mib"), problem));
    }
    Ok(())
}

/// Makes `C^p` non-increasing from the largest p down, and extends it to all partitions.
pub(super) fn complete_curve(task: &mut Task, partitions: usize, warnings: &mut Vec<String>) {
    if let Some(&last) = task.wcet_ns.last()
        && task.wcet_ns.len() < partitions
    {
        if task.wcet_ns.len() > 1 {
            let given = task.wcet_ns.len();
            warnings.push(format!("{}: C^{given} is used for all of C^{} to C^{partitions}", task.name, given + 1));
        }
        task.wcet_ns.resize(partitions, last);
    }
    // The whole curve is made non-increasing before it is cut, so that values measured beyond N_P count too.
    let mut raised = 0;
    for p in (1..task.wcet_ns.len()).rev() {
        if task.wcet_ns[p - 1] < task.wcet_ns[p] {
            task.wcet_ns[p - 1] = task.wcet_ns[p];
            raised += 1;
        }
    }
    if raised > 0 {
        let values = if raised == 1 { "1 value".to_owned() } else { format!("{raised} values") };
        warnings.push(format!(
            "{}: C^p rises with p; {values} raised to the largest that follows (a bound must hold with more cache too)",
            task.name
        ));
    }
    task.wcet_ns.truncate(partitions);
}

#[cfg(test)]
mod tests {
    use crate::taskset::tests::{platform, task};
    use crate::taskset::{Task, TaskSet};
    use crate::units::Bytes;

    #[test]
    fn a_rising_curve_is_replaced_by_its_upper_envelope_with_a_warning() {
        let (set, warnings) = TaskSet::new(platform(1, 4, 64, 1), vec![task("a", 100, 1, &[9, 5, 7, 6])]).unwrap();
        assert_eq!(set.tasks()[0].wcet_ns, [9, 7, 7, 6]);
        assert!(warnings[0].contains("1 value raised"), "{warnings:?}");
    }

    #[test]
    fn the_first_wrong_field_is_named() {
        let p = || platform(1, 2, 64, 1);
        let fail = |tasks: Vec<Task>| TaskSet::new(p(), tasks).unwrap_err().field;
        let good = || task("a", 100, 1, &[1, 1]);
        assert_eq!(fail(vec![]), "tasks");
        assert_eq!(fail(vec![good(), good()]), "tasks[1].name");
        assert_eq!(fail(vec![Task { deadline_ns: 101, ..good() }]), "tasks[0].deadline_ns");
        assert_eq!(fail(vec![Task { period_ns: 0, ..good() }]), "tasks[0].period_ns");
        assert_eq!(fail(vec![Task { wcet_ns: vec![1, 0], ..good() }]), "tasks[0].wcet_ns[1]");
        assert_eq!(fail(vec![Task { memory: Bytes(65 << 20), ..good() }]), "tasks[0].memory_mib");
        assert_eq!(fail(vec![Task { period_ns: u64::MAX, ..good() }]), "tasks[0].period_ns");
        assert_eq!(
            fail(vec![Task { priority: Some(3), ..good() }, Task { name: "b".into(), ..good() }]),
            "tasks[1].priority"
        );
    }
}
