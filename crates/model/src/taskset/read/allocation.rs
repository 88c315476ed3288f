//! Allocations of tasks to cores and partitions, read from a file and checked against a task set.

use std::collections::HashMap;

use super::ReadError;
use super::fields::{Fields, number, wrong};
use super::values::parse;
use crate::taskset::locks::shared_lock_where;
use crate::taskset::{CORE_TASKS_MAX, Numbering, PartitionSet, Scope, TaskSet};

/// A task of an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allotted {
    /// Index of the task in the set.
    pub task: usize,
    /// Partitions of the task, numbered from 0.
    pub partitions: PartitionSet,
    /// Partitions that are useful to the task after a preemption; all its partitions if the file does not say.
    pub useful: PartitionSet,
}

/// The tasks of each core with their partitions: `(cpu, tasks)` in the order of the file.
pub type Allocation = Vec<(u32, Vec<Allotted>)>;

/// Reads an allocation for `set`: a plan of any version, or only its `cores` with partitions from 0. Also returns warnings about tasks that are
/// left out.
pub fn allocation(text: &str, set: &TaskSet) -> Result<(Allocation, Vec<String>), ReadError> {
    let root = parse(text)?;
    let file = Fields::of(String::new(), &root)?;
    let schema = file.text("schema")?;
    let numbering = Numbering::of_plan(schema.as_deref()).map_err(|error| file.wrong("schema", error.to_string()))?;
    let mut allocation: Allocation = Vec::new();
    let mut cpu_of: Vec<Option<u32>> = vec![None; set.tasks().len()];
    let mut owners: Vec<Option<u32>> = vec![None; set.platform().partitions as usize];
    let by_name: HashMap<&str, usize> =
        set.tasks().iter().enumerate().map(|(index, task)| (task.name.as_str(), index)).collect();
    for (index, spanned) in file.list("cores", "a list of cores with cpu and tasks")?.iter().enumerate() {
        let core = Fields::of(format!("cores[{index}]"), spanned)?;
        let cpu = core.small("cpu")?.unwrap_or(u32::try_from(index).unwrap_or(u32::MAX));
        if allocation.iter().any(|(other, _)| *other == cpu) {
            return Err(wrong(core.at, core.named("cpu"), format!("CPU {cpu} is there already")));
        }
        let mut members = Vec::new();
        for (index, spanned) in core.list("tasks", "a list of tasks with name and partitions")?.iter().enumerate() {
            let member = Fields::of(format!("{}.tasks[{index}]", core.path), spanned)?;
            member.require("name", "the name of a task of the set")?;
            let name = member.text("name")?.unwrap_or_default();
            let Some(&task) = by_name.get(name.as_str()) else {
                return Err(wrong(member.at, member.named("name"), format!("`{name}` is not a task of the set")));
            };
            if let Some(other) = cpu_of[task].replace(cpu) {
                return Err(wrong(member.at, member.named("name"), format!("`{name}` is on CPU {other} already")));
            }
            let partitions = partitions(&member, "partitions", set, numbering)?;
            for partition in partitions.iter() {
                let owner = owners[partition as usize].get_or_insert(cpu);
                if *owner != cpu && set.platform().scope == Scope::Shared {
                    let problem =
                        format!("partition {partition} belongs to CPU {owner} already; cores do not share partitions");
                    return Err(wrong(member.at, member.named("partitions"), problem));
                }
            }
            let useful = if member.get("useful").is_some() {
                self::partitions(&member, "useful", set, numbering)?
            } else {
                partitions
            };
            if useful.union(&partitions) != partitions {
                return Err(wrong(member.at, member.named("useful"), "names partitions that are not the task's"));
            }
            members.push(Allotted { task, partitions, useful });
        }
        if members.len() > CORE_TASKS_MAX {
            let count = members.len();
            let problem = format!(
                "{count} tasks are more than the {CORE_TASKS_MAX} a core can run, each with a SCHED_FIFO priority of its own\n  hint: move some to other cores, or make one program of them"
            );
            return Err(wrong(core.at, core.named("tasks"), problem));
        }
        allocation.push((cpu, members));
    }
    let on_different_cpus = |a: usize, b: usize| cpu_of[a].is_some() && cpu_of[b].is_some() && cpu_of[a] != cpu_of[b];
    if let Some((lock, first, second)) = shared_lock_where(set.tasks(), on_different_cpus) {
        let name = |task: usize| &set.tasks()[task].name;
        let problem = format!(
            "`{}` and `{}` share the lock `{lock}` and are on different CPUs\n  hint: a priority ceiling holds on one CPU; put both on the same",
            name(first),
            name(second)
        );
        return Err(wrong(file.at, "cores", problem));
    }
    let left_out = set.tasks().iter().zip(&cpu_of).filter(|(_, cpu)| cpu.is_none());
    let warnings = left_out.map(|(task, _)| format!("{} is on no core", task.name)).collect();
    Ok((allocation, warnings))
}

fn partitions(member: &Fields, name: &str, set: &TaskSet, numbering: Numbering) -> Result<PartitionSet, ReadError> {
    let most = set.platform().partitions;
    let mut partitions = PartitionSet::default();
    for (index, spanned) in member.list(name, "numbers of partitions, from 0")?.iter().enumerate() {
        let path = format!("{}[{index}]", member.named(name));
        let number = number(spanned, &path)?;
        let partition = u32::try_from(number).ok().and_then(|number| numbering.partition(number));
        let Some(partition) = partition.filter(|partition| *partition < most) else {
            let problem = format!("{number} is not a partition: they are numbered {}", numbering.range(most));
            return Err(wrong(spanned.at, path, problem));
        };
        partitions.insert(partition);
    }
    if partitions.is_empty() && name == "partitions" {
        return Err(wrong(member.at, member.named(name), "is empty; a task needs at least one partition"));
    }
    Ok(partitions)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::taskset::read::tests::{FILE, read};

    #[test]
    fn an_allocation_is_held_against_its_set() {
        let set = read(FILE).unwrap();
        let good = r#"{"cores":[{"cpu":0,"tasks":[{"name":"a","partitions":[0,1]}]},{"cpu":3,"tasks":[]}]}"#;
        let (found, warnings) = allocation(good, &set).unwrap();
        assert_eq!(found[0].1[0].partitions, PartitionSet::range(0, 2));
        assert_eq!(warnings, ["b is on no core"]);
        let wrong = |from: &str, to: &str| allocation(&good.replace(from, to), &set).unwrap_err().to_string();
        assert!(
            wrong("[0,1]", "[4]")
                .contains("cores[0].tasks[0].partitions[0]: 4 is not a partition: they are numbered 0 to 3")
        );
        assert!(wrong("[0,1]", "[4294967296]").contains("4294967296 is not a partition"));
        assert!(wrong("[0,1]", "[]").contains("at least one partition"));
        assert!(wrong("\"a\"", "\"x\"").contains("`x` is not a task of the set"));
        let twice = "[{\"name\":\"b\",\"partitions\":[1]}]";
        assert!(
            wrong("\"cpu\":3,\"tasks\":[]", &format!("\"cpu\":3,\"tasks\":{twice}"))
                .contains("belongs to CPU 0 already")
        );
    }

    #[test]
    fn an_allocation_of_the_first_version_numbers_partitions_from_1() {
        let set = read(FILE).unwrap();
        let of = |schema: &str, partitions: &str| {
            let tasks = format!(r#"[{{"name":"a","partitions":{partitions},"useful":{partitions}}}]"#);
            allocation(&format!(r#"{{"schema":"{schema}","cores":[{{"tasks":{tasks}}}]}}"#), &set)
        };
        for (schema, numbers) in [("isochrome-plan/1", "[1,4]"), ("isochrome-plan/2", "[0,3]")] {
            let (found, _) = of(schema, numbers).unwrap();
            let expected: PartitionSet = [0, 3].into_iter().collect();
            assert_eq!((found[0].1[0].partitions, found[0].1[0].useful), (expected, expected), "{schema}");
        }
        let refused = |schema: &str, numbers: &str| of(schema, numbers).unwrap_err().to_string();
        assert!(refused("isochrome-plan/1", "[0]").contains("0 is not a partition: they are numbered 1 to 4"));
        let later = refused("isochrome-plan/3", "[0]");
        assert!(later.contains("schema: schema is `isochrome-plan/3`, not `isochrome-plan/2`"), "{later}");
    }

    #[test]
    fn tasks_that_share_a_lock_are_refused_on_different_cpus() {
        let lock = ", \"locks\": [{\"name\": \"bus\", \"longest_ns\": 1}], \"wcet_ns\"";
        let set = read(&FILE.replace(", \"wcet_ns\"", lock).replace(",\n     \"wcet_ns\"", lock)).unwrap();
        let on = |cpu: u32| {
            let text = format!(
                r#"{{"cores":[{{"cpu":0,"tasks":[{{"name":"a","partitions":[0]}}]}},{{"cpu":{cpu},"tasks":[{{"name":"b","partitions":[1]}}]}}]}}"#
            );
            allocation(&text, &set).unwrap_err().to_string()
        };
        assert!(on(1).contains("cores: `a` and `b` share the lock `bus` and are on different CPUs"), "{}", on(1));
    }

    #[test]
    fn tasks_that_share_a_lock_are_refused_on_different_cpus_also_if_another_one_is_on_no_core() {
        let task = |name: &str| {
            format!(r#"{{"name":"{name}","period_ns":1000,"wcet_ns":[10],"locks":[{{"name":"bus","longest_ns":1}}]}}"#)
        };
        let tasks = ["a", "b", "c"].map(task).join(",");
        let set = read(&format!("{}[{tasks}]}}", &FILE[..FILE.find("[").unwrap()])).unwrap();
        let core =
            |cpu: u32, name: &str| format!(r#"{{"cpu":{cpu},"tasks":[{{"name":"{name}","partitions":[{cpu}]}}]}}"#);
        let text = format!(r#"{{"cores":[{},{}]}}"#, core(0, "b"), core(1, "c"));
        let refused = allocation(&text, &set).unwrap_err().to_string();
        assert!(refused.contains("`b` and `c` share the lock `bus` and are on different CPUs"), "{refused}");
    }

    #[test]
    fn more_tasks_than_priorities_are_refused() {
        let names: Vec<String> = (0..47).map(|task| format!("t{task}")).collect();
        let task = |name: &String| format!(r#"{{"name":"{name}","period_ns":1000,"wcet_ns":1}}"#);
        let tasks: Vec<String> = names.iter().map(task).collect();
        let set = read(&format!("{}[{}]}}", &FILE[..FILE.find("[").unwrap()], tasks.join(","))).unwrap();
        let members = |count: usize| -> String {
            let member = |name: &String| format!(r#"{{"name":"{name}","partitions":[0]}}"#);
            names[..count].iter().map(member).collect::<Vec<_>>().join(",")
        };
        let on_one = |count: usize| allocation(&format!(r#"{{"cores":[{{"tasks":[{}]}}]}}"#, members(count)), &set);
        assert!(on_one(46).is_ok());
        let error = on_one(47).unwrap_err().to_string();
        assert!(error.contains("cores[0].tasks: 47 tasks are more than the 46 a core can run"), "{error}");
    }
}
