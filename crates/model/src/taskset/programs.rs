//! The programs of a task set: the command of every task, and how its jobs are observed.

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::read::{Fields, ReadError, SET_FIELDS, Spanned, TASK_FIELDS, Value, number, parse, wrong};
use super::{Others, TIME_MAX_NS};
use crate::costs::Costs;
use crate::units::{Bytes, CpuId, Ns, parse_list};

/// The first word of a built-in workload's command. The program that starts the command puts isochrome's own executable in its
/// place.
pub const OWN: &str = "isochrome";

/// The second word of a built-in workload's command: the subcommand of isochrome that runs its jobs.
pub const JOB_VERB: &str = "job";

/// Upper limit of CPU numbers: every CPU has a number below this.
const CPUS_MAX: u32 = 8192;

/// Programs to run together, with their CPUs and the partitioning of the cache.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Programs {
    /// CPUs for the tasks, ascending, at least one.
    pub cpus: Vec<CpuId>,
    /// Cache level that is partitioned.
    pub level: u8,
    /// Means by which the cache is partitioned.
    pub method: Partitioning,
    /// The programs; names are unique.
    pub tasks: Vec<Program>,
}

/// Means by which a cache is partitioned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Partitioning {
    /// The cache is not partitioned.
    None,
    /// Page colors.
    #[default]
    Colors,
    /// Ways, through resctrl.
    Ways,
    /// Page colors within ways.
    Both,
}

/// How the jobs of a program are observed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Jobs {
    /// The kernel shows the jobs: a job begins when a timer wakes the program, and is complete when the program sleeps again.
    #[default]
    Wakeup,
    /// A line on standard input releases a job, a line on standard output completes it.
    Line,
    /// The program marks the begin and the end of its jobs (isochrome.h).
    Marks,
}

/// A program of a task set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Program {
    /// Name of the program, unique in the set.
    pub name: String,
    /// The program and its arguments, at least one text. The command of a built-in workload begins with [`OWN`] and
    /// [`JOB_VERB`].
    pub command: Vec<String>,
    /// Time between releases, in ns; 0 for a best-effort program.
    #[serde(rename = "period_ns", default, skip_serializing_if = "is_default")]
    pub period: Ns,
    /// Relative deadline, at most the period, in ns.
    #[serde(rename = "deadline_ns", default, skip_serializing_if = "is_default")]
    pub deadline: Ns,
    /// Memory that the program uses, in bytes.
    #[serde(rename = "memory_bytes", default)]
    pub memory: Bytes,
    /// Priority, the larger number first. If no program has a priority, priorities are deadline-monotonic.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<u32>,
    /// The CPU that the program must run on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<CpuId>,
    /// Execution time that no job may exceed, in ns.
    #[serde(rename = "budget_ns", default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<Ns>,
    /// How the jobs of the program are observed.
    #[serde(default, skip_serializing_if = "is_default")]
    pub jobs: Jobs,
    /// Whether the period is only the shortest time between two releases, so that no release can be missing. A program whose
    /// jobs are lines cannot be sporadic.
    #[serde(default, skip_serializing_if = "is_default")]
    pub sporadic: bool,
    /// Name of the program's bundle. Programs of one bundle share memory and stay on one CPU. [Kim2013, §4.5]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bundle: Option<String>,
    /// Whether the program has no period and no bound, and runs at ordinary priority beside the others.
    #[serde(default, skip_serializing_if = "is_default")]
    pub best_effort: bool,
}

/// Whether a field has the value that is read if the field is missing.
fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl Programs {
    /// Returns the programs that have periods and bounds.
    pub fn periodic(&self) -> impl Iterator<Item = &Program> {
        self.tasks.iter().filter(|program| !program.best_effort)
    }
}

/// The programs to run that a file contains, and facts about the machine that they were measured on.
#[derive(Clone, Debug, PartialEq)]
pub struct Runnable {
    /// The programs.
    pub programs: Programs,
    /// [`Machine::fingerprint`](crate::machine::Machine::fingerprint) of the measured machine; `None` if the file is not a
    /// profile.
    pub fingerprint: Option<String>,
    /// The measured costs that the file charges.
    pub costs: Option<Costs>,
}

/// Reads the programs of a file that may be for planning alone; `None` if no task has a program. Gives no warnings.
pub fn runnable(text: &str) -> Result<Option<Runnable>, ReadError> {
    let root = parse(text)?;
    let file = Fields::of(String::new(), &root)?;
    let has_program = |task: &Spanned| match &task.value {
        Value::Table(fields) => fields.iter().any(|(name, _)| name == "command" || name == "workload"),
        _ => false,
    };
    if !file.list("tasks", "a list of tasks")?.iter().any(has_program) {
        return Ok(None);
    }
    let (programs, _) = programs(text)?;
    Ok(Some(Runnable { programs, fingerprint: file.text("fingerprint")?, costs: Costs::stated(text) }))
}

/// A task set as its file declares it: the programs to run, and the fields for planning.
#[derive(Clone, Debug, PartialEq)]
pub struct Declared {
    /// The programs.
    pub programs: Programs,
    /// Fields of the set that `programs` does not contain.
    pub set: Others,
    /// Fields of each task that `programs` does not contain.
    pub tasks: Vec<Others>,
}

/// Reads the programs of a `taskset.toml`, or of a profile. Also returns warnings about unknown fields.
pub fn programs(text: &str) -> Result<(Programs, Vec<String>), ReadError> {
    declared(text).map(|(declared, warnings)| (declared.programs, warnings))
}

/// Reads all fields of a `taskset.toml` or of a profile. Also returns warnings about unknown fields.
pub fn declared(text: &str) -> Result<(Declared, Vec<String>), ReadError> {
    let root = parse(text)?;
    let file = Fields::of(String::new(), &root)?;
    let mut warnings = Vec::new();
    file.warn_about_others(SET_FIELDS, &mut warnings);
    let cpus = cpus(&file)?;
    let level = match file.small("level")? {
        None => 2,
        Some(level @ 1..=4) => level as u8,
        Some(level) => return Err(file.wrong("level", format!("{level} is not a cache level from 1 to 4"))),
    };
    let method = file.choice(
        "method",
        &[
            ("colors", Partitioning::Colors),
            ("ways", Partitioning::Ways),
            ("both", Partitioning::Both),
            ("none", Partitioning::None),
        ],
    )?;
    let (mut tasks, mut others) = (Vec::new(), Vec::new());
    let mut names = BTreeSet::new();
    for (index, spanned) in file.list("tasks", "one [[tasks]] for every program")?.iter().enumerate() {
        let fields = Fields::of(format!("tasks[{index}]"), spanned)?;
        fields.warn_about_others(TASK_FIELDS, &mut warnings);
        let program = program(&fields, &cpus)?;
        if !names.insert(program.name.clone()) {
            return Err(fields.wrong("name", format!("`{}` is taken already", program.name)));
        }
        tasks.push(program);
        others.push(fields.others(TASK_FIELDS));
    }
    let memory = file.memory()?;
    let programs = Programs { cpus, level, method, tasks };
    let periodic = programs.periodic().count();
    if periodic == 0 {
        return Err(file.wrong("tasks", "none of them has a period"));
    }
    if !matches!(programs.periodic().filter(|program| program.priority.is_some()).count(), 0) {
        let without = programs.tasks.iter().position(|program| !program.best_effort && program.priority.is_none());
        if let Some(index) = without {
            let hint = "missing, while other tasks have one\n  hint: give every task a priority, or none for deadline-monotonic";
            let fields = Fields::of(format!("tasks[{index}]"), &file.list("tasks", "")?[index])?;
            return Err(fields.wrong("priority", hint));
        }
    }
    let mut set = file.others(SET_FIELDS);
    set.extend(memory.map(|memory| ("memory_bytes".to_owned(), memory.0.into())));
    Ok((Declared { programs, set, tasks: others }, warnings))
}

/// Reads the CPUs, such as `cpus = "0-1"` or a list of numbers, and returns them in ascending order.
fn cpus(file: &Fields) -> Result<Vec<CpuId>, ReadError> {
    let spanned = file.require("cpus", "the CPUs for the tasks, such as cpus = \"1\" or cpus = \"0-3,8\"")?;
    let members = match &spanned.value {
        Value::Text(text) => parse_list(text, CPUS_MAX).map_err(|error| file.wrong("cpus", error.to_string()))?,
        Value::List(items) => {
            let mut members = BTreeSet::new();
            for (index, item) in items.iter().enumerate() {
                let path = format!("{}[{index}]", file.named("cpus"));
                let cpu = number(item, &path)?;
                match u32::try_from(cpu) {
                    Ok(cpu) if cpu < CPUS_MAX => members.insert(cpu),
                    _ => return Err(wrong(item.at, path, format!("{cpu} is not the number of a CPU"))),
                };
            }
            members.into_iter().collect()
        }
        other => {
            let problem = format!("must be a text such as \"0-1\" or a list of numbers, this is {}", other.kind());
            return Err(file.wrong("cpus", problem));
        }
    };
    if members.is_empty() {
        return Err(file.wrong("cpus", "names no CPU"));
    }
    Ok(members.into_iter().map(CpuId).collect())
}

fn program(fields: &Fields, cpus: &[CpuId]) -> Result<Program, ReadError> {
    fields.require("name", "every task has a name")?;
    let name = fields.text("name")?.unwrap_or_default();
    if name.is_empty() {
        return Err(fields.wrong("name", "is empty"));
    }
    let (command, built_in) = command(fields)?;
    let best_effort = fields.flag("best_effort")?;
    if best_effort {
        let of_periodic =
            ["period", "period_ns", "deadline", "deadline_ns", "priority", "budget", "budget_ns", "jobs", "sporadic"];
        if let Some(name) = of_periodic.into_iter().find(|name| fields.get(name).is_some()) {
            return Err(fields.wrong(name, "does not apply to a best-effort program"));
        }
    }
    let times = [
        ("period", fields.time("period")?),
        ("deadline", fields.time("deadline")?),
        ("budget", fields.time("budget")?),
    ];
    for (name, time) in times {
        let spelled = if fields.get(name).is_some() { name.to_owned() } else { format!("{name}_ns") };
        match time {
            Some(Ns(0)) => return Err(fields.wrong(&spelled, "a time must be positive, this is 0")),
            Some(Ns(time)) if time > TIME_MAX_NS => {
                return Err(fields.wrong(&spelled, format!("{time} ns exceeds the longest time, {TIME_MAX_NS} ns")));
            }
            _ => {}
        }
    }
    let [(_, period), (_, deadline), (_, budget)] = times;
    let Some(period) = period.or(best_effort.then_some(Ns(0))) else {
        return Err(fields.missing(
            "period",
            "every task has a period, such as \"5ms\"; a program without one is best_effort = true",
        ));
    };
    let deadline = deadline.unwrap_or(period);
    if deadline > period {
        let spelled = if fields.get("deadline").is_some() { "deadline" } else { "deadline_ns" };
        let problem = format!(
            "{} ns exceeds the period, {} ns\n  hint: deadlines up to the period are analyzed",
            deadline.0, period.0
        );
        return Err(fields.wrong(spelled, problem));
    }
    let cpu = fields.small("cpu")?.map(CpuId);
    if let Some(cpu) = cpu.filter(|cpu| !cpus.contains(cpu)) {
        return Err(fields.wrong("cpu", format!("CPU {} is not among `cpus`", cpu.0)));
    }
    let seen = [("wakeup", Jobs::Wakeup), ("line", Jobs::Line), ("marks", Jobs::Marks)];
    let jobs = match fields.choice("jobs", &seen)? {
        _ if built_in && fields.get("jobs").is_none() => Jobs::Line,
        jobs => jobs,
    };
    let sporadic = fields.flag("sporadic")?;
    if sporadic && jobs == Jobs::Line {
        return Err(
            fields.wrong("sporadic", "does not apply to a message-driven program, which is released every period")
        );
    }
    Ok(Program {
        name,
        command,
        period,
        deadline,
        memory: fields.memory()?.unwrap_or_default(),
        priority: fields.small("priority")?,
        cpu,
        budget,
        jobs,
        sporadic,
        bundle: fields.text("bundle")?,
        best_effort,
    })
}

/// Returns the command, and whether it is that of a built-in workload.
fn command(fields: &Fields) -> Result<(Vec<String>, bool), ReadError> {
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let (name, command) = match (fields.get("command"), fields.text("workload")?) {
        (Some(_), Some(_)) => return Err(fields.wrong("workload", "must not be given together with `command`")),
        (None, None) => {
            return Err(
                fields.missing("command", "the program and its arguments, or `workload` for one that is built in")
            );
        }
        (None, Some(workload)) if words(&workload).is_empty() => ("workload", Vec::new()),
        (None, Some(workload)) => ("workload", [words(&format!("{OWN} {JOB_VERB}")), words(&workload)].concat()),
        (Some(Spanned { value: Value::Text(text), .. }), None) if text.contains(['"', '\'', '\\']) => {
            let problem = format!(
                "`{text}` holds quotes, which are not read here\n  hint: write a list: command = [\"program\", \"argument\"]"
            );
            return Err(fields.wrong("command", problem));
        }
        (Some(Spanned { value: Value::Text(text), .. }), None) => ("command", words(text)),
        (Some(_), None) => {
            let texts = fields.list("command", "")?.iter().enumerate().map(|(index, item)| match &item.value {
                Value::Text(text) => Ok(text.clone()),
                other => {
                    let path = format!("{}[{index}]", fields.named("command"));
                    Err(wrong(item.at, path, format!("must be a text, this is {}", other.kind())))
                }
            });
            ("command", texts.collect::<Result<Vec<_>, _>>()?)
        }
    };
    if command.first().is_none_or(String::is_empty) {
        return Err(fields.wrong(name, "names no program"));
    }
    if command.iter().any(|word| word.contains('\0')) {
        return Err(fields.wrong(name, "contains a zero byte, which no argument can contain"));
    }
    Ok((command, name == "workload"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SET: &str = r#"cpus = "0-1"
level = 3
method = "both"

[[tasks]]
name = "control"
command = "./control --rate 1000"
period = "1ms"
deadline = "800us"
memory = "64K"
cpu = 1
budget = "0.5ms"
bundle = "arm"

[[tasks]]
name = "filter"
workload = "filter 4096"
period_ns = 200_000

[[tasks]]
name = "log"
command = ["./log", "--to", "a file"]
best_effort = true
"#;

    fn read(text: &str) -> Result<Programs, String> {
        programs(text).map(|(programs, _)| programs).map_err(|error| error.to_string())
    }

    #[test]
    fn a_task_set_says_what_runs_how_often_and_on_what() {
        let (set, warnings) = programs(SET).unwrap();
        assert!(warnings.is_empty(), "{warnings:?}");
        assert_eq!((set.cpus.as_slice(), set.level, set.method), (&[CpuId(0), CpuId(1)][..], 3, Partitioning::Both));
        let [control, filter, log] = set.tasks.as_slice() else { panic!("{set:?}") };
        assert_eq!(control.command, ["./control", "--rate", "1000"]);
        assert_eq!((control.period, control.deadline, control.budget), (Ns(1_000_000), Ns(800_000), Some(Ns(500_000))));
        assert_eq!((control.memory, control.cpu, control.jobs), (Bytes(65_536), Some(CpuId(1)), Jobs::Wakeup));
        assert_eq!(control.bundle.as_deref(), Some("arm"));
        assert_eq!(filter.command, ["isochrome", "job", "filter", "4096"]);
        assert_eq!((filter.period, filter.deadline, filter.jobs), (Ns(200_000), Ns(200_000), Jobs::Line));
        assert_eq!((log.command[2].as_str(), log.best_effort), ("a file", true));
        assert_eq!(set.periodic().count(), 2);
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line_column_and_field() {
        let wrong = |from: &str, to: &str| {
            assert!(SET.contains(from), "{from}");
            read(&SET.replace(from, to)).unwrap_err()
        };
        let begins = |error: String, text: &str| assert!(error.starts_with(text), "{error}");
        begins(wrong("\"0-1\"", "\"a\""), "line 1, column 8: cpus: `a` is not a list");
        begins(wrong("\"0-1\"", "[0, -1]"), "line 1, column 12: cpus[1]: -1 is negative");
        begins(wrong("\"0-1\"", "\"\""), "line 1, column 8: cpus: names no CPU");
        begins(wrong("cpus = \"0-1\"\n", ""), "line 1, column 1: cpus: is missing");
        begins(wrong("level = 3", "level = 7"), "line 2, column 9: level: 7 is not a cache level");
        begins(wrong("\"both\"", "\"magic\""), "line 3, column 10: method: `magic` is not one of `colors`");
        begins(wrong("\"1ms\"", "\"1 m\""), "line 8, column 10: tasks[0].period: `1 m` is not a time");
        begins(wrong("\"1ms\"", "\"0ms\""), "line 8, column 10: tasks[0].period: a time must be positive");
        begins(wrong("\"800us\"", "\"2ms\""), "line 9, column 12: tasks[0].deadline: 2000000 ns exceeds the period");
        begins(wrong("\"64K\"", "\"64Q\""), "line 10, column 10: tasks[0].memory: `64Q` is not a size");
        begins(wrong("cpu = 1", "cpu = 2"), "line 11, column 7: tasks[0].cpu: CPU 2 is not among `cpus`");
        begins(wrong("bundle = \"arm\"", "jobs = \"seen\""), "line 13, column 8: tasks[0].jobs: `seen` is not one of");
        begins(wrong("\"filter\"", "\"control\""), "line 16, column 8: tasks[1].name: `control` is taken already");
        begins(wrong("period_ns = 200_000", ""), "line 15, column 1: tasks[1].period: is missing");
        begins(
            wrong("period_ns = 200_000", "period_ns = 1\nperiod = \"1us\""),
            "line 18, column 13: tasks[1].period_ns: is there already, as `period`",
        );
        begins(
            wrong("workload = \"filter 4096\"", "command = 'a \"b\"'"),
            "line 17, column 11: tasks[1].command: `a \"b\"` holds quotes",
        );
        begins(
            wrong("workload = \"filter 4096\"", "command = []"),
            "line 17, column 11: tasks[1].command: names no program",
        );
        begins(wrong("workload = \"filter 4096\"\n", ""), "line 15, column 1: tasks[1].command: is missing");
        begins(
            wrong("workload", "command = \"a\"\nworkload"),
            "line 18, column 12: tasks[1].workload: must not be given together with `command`",
        );
        begins(
            wrong("best_effort = true", "best_effort = true\nperiod = \"1s\""),
            "line 24, column 10: tasks[2].period: does not apply",
        );
        begins(
            wrong("period_ns = 200_000", "period_ns = 200_000\nsporadic = true"),
            "line 19, column 12: tasks[1].sporadic: does not apply to a message-driven program",
        );
        begins(
            wrong("cpu = 1", "priority = 3"),
            "line 15, column 1: tasks[1].priority: missing, while other tasks have one",
        );
        begins(read("cpus = \"0\"\ntasks = []").unwrap_err(), "line 2, column 9: tasks: none of them has a period");
    }

    #[test]
    fn what_was_read_reads_back() {
        let (set, warnings) = programs(&SET.replace("cpu = 1", "cpu = 1\nsporadic = true")).unwrap();
        assert!(warnings.is_empty() && set.tasks[0].sporadic && !set.tasks[1].sporadic, "{warnings:?}");
        assert_eq!(serde_json::from_str::<Programs>(&serde_json::to_string(&set).unwrap()).unwrap(), set);
        let (set, _) = programs(SET).unwrap();
        let (again, warnings) = programs(&serde_json::to_string(&set).unwrap()).unwrap();
        assert!(warnings.is_empty(), "{warnings:?}");
        assert_eq!(again, set);
        assert_eq!(serde_json::from_str::<Programs>(&serde_json::to_string(&set).unwrap()).unwrap(), set);
        assert_eq!(runnable(SET).unwrap().unwrap().programs, set);
        assert_eq!(runnable("tasks = [{name = \"a\"}]").unwrap(), None);
    }

    #[test]
    fn no_damaged_task_set_makes_the_reader_panic() {
        let mut random = fastrand::Rng::with_seed(6);
        let pieces =
            ["-", "0", "18446744073709551616", "[", "]", "\"", "=", "\n", "é", "\\u0000", "true", "us", "[[tasks]]\n"];
        let mut accepted = 0;
        for _ in 0..5_000 {
            let mut text: Vec<char> = SET.chars().collect();
            for _ in 0..random.usize(0..=3) {
                let at = random.usize(0..text.len());
                let end = (at + random.usize(0..=6)).min(text.len());
                text.splice(at..end, pieces[random.usize(0..pieces.len())].chars());
            }
            accepted += usize::from(programs(&text.into_iter().collect::<String>()).is_ok());
        }
        assert!((500..4_500).contains(&accepted), "{accepted}");
    }
}
