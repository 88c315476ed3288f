//! Reads task sets and allocations from JSON or TOML. Errors name the line, the column and the field.

mod allocation;
mod fields;
mod values;

use super::{Invalid, Lock, MemoryRule, Platform, RefillChoice, RefillKind, Refills, Scope, Task, TaskSet};
use crate::machine::Fact;
use crate::replacement::Replacement;
use crate::supply::{ChargedSupply, CpuSupply, SupplyChoice};
use crate::units::Bytes;

pub use allocation::{Allocation, Allotted, allocation};
pub(super) use fields::{Fields, SET_FIELDS, TASK_FIELDS, number, wrong};
pub use values::Spot;
pub(super) use values::{Spanned, Value, parse};

/// Numbers that the command line gives instead of the file, or in addition to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Overrides {
    /// Replaces `cores` of the file.
    pub cores: Option<u32>,
    /// Replaces `partitions` of the file.
    pub partitions: Option<u32>,
    /// Replaces `memory_mib` of the file.
    pub memory: Option<Bytes>,
    /// The refill time to charge; if `None`, the longer of the times for clean and for dirty lines.
    pub refill: Option<RefillChoice>,
    /// Replaces `replacement` of the file.
    pub replacement: Option<Replacement>,
    /// The supply to charge; if `None`, that of the file if it has one.
    pub supply: Option<SupplyChoice>,
    /// Memory to assume if neither the file nor the command line gives it. Use this only where memory has no influence.
    pub memory_default: Option<Bytes>,
    /// Number of cores to assume if neither the file nor the command line gives it.
    pub cores_default: Option<u32>,
}

/// A file that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The file is neither JSON nor TOML.
    #[error("{at}: {problem}\n  hint: this was read as {format}; a JSON file begins with {{")]
    Syntax {
        /// Location of the error.
        at: Spot,
        /// Description by the parser.
        problem: String,
        /// Format that was tried: `JSON` or `TOML`.
        format: &'static str,
    },
    /// A field of the whole set is missing.
    #[error("{at}: {field}: is missing\n  hint: write it into the file{alternative}")]
    Missing {
        /// Beginning of the file.
        at: Spot,
        /// Name of the field.
        field: &'static str,
        /// Alternative to the field, after a comma; empty if nothing in the file can replace the field.
        alternative: &'static str,
    },
    /// A field is missing, or has an unusable value.
    #[error("{at}: {what}")]
    Field {
        /// Location of the field, or the beginning of the object that lacks the field.
        at: Spot,
        /// The field, and a description of the error.
        what: Invalid,
    },
}

/// Reads a task set. Best-effort programs are not planned, so they are left out. Also returns warnings about unknown fields and
/// about curves that had to be changed.
pub fn task_set(text: &str, overrides: Overrides) -> Result<(TaskSet, Vec<String>), ReadError> {
    let root = parse(text)?;
    let file = Fields::of(String::new(), &root)?;
    let mut warnings = Vec::new();
    file.warn_about_others(SET_FIELDS, &mut warnings);
    let instead = |field, alternative| ReadError::Missing { at: Spot::BEGIN, field, alternative };
    let missing = |field| instead(field, "");
    let refills = Refills {
        clean_ns: file.number("refill_ns_per_partition")?,
        dirty_ns: file.number("refill_dirty_ns_per_partition")?,
        serial_ns: match (file.number("lines_per_partition")?, file.number("miss_ns")?) {
            (Some(lines), Some(miss_ns)) => Some(lines.saturating_mul(miss_ns)),
            (None, None) => None,
            (Some(_), None) => return Err(instead("miss_ns", ", or no lines_per_partition")),
            (None, Some(_)) => return Err(instead("lines_per_partition", ", or no miss_ns")),
        },
    };
    let refill_ns = match overrides.refill {
        Some(RefillChoice::Time(time)) => time.0,
        Some(RefillChoice::Known(kind)) => match refills.known().find(|&(known, _)| known == kind) {
            Some((_, time)) => time,
            None => {
                return Err(missing(match kind {
                    RefillKind::Clean => "refill_ns_per_partition",
                    RefillKind::Dirty => "refill_dirty_ns_per_partition",
                    RefillKind::Serial => "lines_per_partition",
                }));
            }
        },
        // It is not known whether the lines that a task displaces are dirty, so the longer time is charged.
        None => refills.clean_ns.max(refills.dirty_ns).ok_or_else(|| missing("refill_ns_per_partition"))?,
    };
    let platform = Platform {
        cores: overrides.cores.or(file.small("cores")?).or(overrides.cores_default).ok_or_else(|| missing("cores"))?,
        partitions: overrides.partitions.or(file.small("partitions")?).ok_or_else(|| missing("partitions"))?,
        memory: overrides
            .memory
            .or(file.memory()?)
            .or(overrides.memory_default)
            .ok_or_else(|| missing("memory_mib"))?,
        refill_ns,
        refills,
        switch_ns: file.number("switch_ns")?.unwrap_or(0),
        release_interrupt_ns: file.number("release_interrupt_ns")?.unwrap_or(0),
        preemption_ns: file.number("preemption_ns")?.unwrap_or(0),
        replacement: overrides
            .replacement
            .unwrap_or(file.choice("replacement", &Replacement::ALL.map(|known| (known.name(), known)))?),
        scope: file.choice("cache", &[("shared", Scope::Shared), ("private", Scope::Private)])?,
        page: Bytes(file.number("page_bytes")?.unwrap_or(4096)),
        memory_rule: file.choice("memory_rule", &[("pages", MemoryRule::Pages), ("kim2013", MemoryRule::Kim2013)])?,
        cold_start: file.flag("cold_start")?,
        supply: supply(&file, overrides.supply, &mut warnings)?,
    };
    // This is the only protocol that the bounds cover; any other word is refused.
    file.choice("lock_protocol", &[("immediate_ceiling", ())])?;
    let mut tasks = Vec::new();
    for (index, spanned) in file.list("tasks", "a list of tasks with name, period_ns and wcet_ns")?.iter().enumerate() {
        let fields = Fields::of(format!("tasks[{index}]"), spanned)?;
        if !fields.flag("best_effort")? {
            tasks.push(task(&fields, &mut warnings)?);
        }
    }
    let (set, more) =
        TaskSet::new(platform, tasks).map_err(|what| ReadError::Field { at: spot_of(&root, &what.field), what })?;
    warnings.extend(more);
    Ok((set, warnings))
}

/// Reads the supply to charge: a list of the supplies of CPUs, each with its source.
fn supply(
    file: &Fields,
    choice: Option<SupplyChoice>,
    warnings: &mut Vec<String>,
) -> Result<Option<ChargedSupply>, ReadError> {
    let known: Vec<Fact<CpuSupply>> = match file.get("supply") {
        Some(placed) => serde_json::from_value(placed.value.to_json())
            .map_err(|error| wrong(placed.at, "supply", format!("is not a list of the supplies of CPUs: {error}")))?,
        None => Vec::new(),
    };
    match (choice, ChargedSupply::of(&known)) {
        (Some(SupplyChoice::Measured), None) => Err(ReadError::Missing {
            at: Spot::BEGIN,
            field: "supply",
            alternative: ", or measure it: isochrome probe -o machine.json, then isochrome profile --machine machine.json",
        }),
        (Some(SupplyChoice::Full), Some(charged)) if !charged.steps.is_full() => {
            warnings
                .push(format!("supply: the bounds hold only while no CPU is withheld. They do not charge {charged}"));
            Ok(None)
        }
        (Some(SupplyChoice::Full), _) => Ok(None),
        (_, charged) => Ok(charged),
    }
}

fn task(fields: &Fields, warnings: &mut Vec<String>) -> Result<Task, ReadError> {
    fields.warn_about_others(TASK_FIELDS, warnings);
    let period_ns = match fields.time("period")? {
        Some(period) => period.0,
        None => return Err(fields.missing("period_ns", "every task has a period")),
    };
    let curve = fields.require("wcet_ns", "C^p for p = 1..N_P, or one number if it does not depend on p")?;
    let path = fields.named("wcet_ns");
    let wcet_ns = match &curve.value {
        Value::List(times) => {
            times.iter().enumerate().map(|(p, time)| number(time, &format!("{path}[{p}]"))).collect::<Result<_, _>>()?
        }
        _ => vec![number(curve, &path)?],
    };
    fields.require("name", "every task has a name")?;
    Ok(Task {
        name: fields.text("name")?.unwrap_or_default(),
        period_ns,
        deadline_ns: fields.time("deadline")?.map_or(period_ns, |deadline| deadline.0),
        memory: fields.memory()?.unwrap_or(Bytes(0)),
        wcet_ns,
        jitter_ns: fields.number("jitter_ns")?.unwrap_or(0),
        blocking_ns: fields.number("blocking_ns")?.unwrap_or(0),
        nonpreemptive_ns: fields.number("nonpreemptive_ns")?.unwrap_or(0),
        locks: locks(fields, warnings)?,
        priority: fields.small("priority")?,
        bundle: fields.text("bundle")?,
        exclusive: fields.flag("exclusive")?,
    })
}

/// Reads the locks of a task: a list of tables with `name` and `longest_ns`.
fn locks(task: &Fields, warnings: &mut Vec<String>) -> Result<Vec<Lock>, ReadError> {
    if task.get("locks").is_none() {
        return Ok(Vec::new());
    }
    let read = |(index, spanned)| {
        let fields = Fields::of(format!("{}[{index}]", task.named("locks")), spanned)?;
        fields.warn_about_others(&["name", "longest", "longest_ns"], warnings);
        fields.require("name", "tasks that name the same lock exclude each other")?;
        let name = fields.text("name")?.unwrap_or_default();
        match fields.time("longest")? {
            Some(longest) => Ok(Lock { name, longest_ns: longest.0 }),
            None => Err(fields.missing("longest_ns", "how long the task holds the lock at most")),
        }
    };
    task.list("locks", "a list of locks with name and longest_ns")?.iter().enumerate().map(read).collect()
}

/// Returns the location of a field such as `tasks[2].wcet_ns[0]`, or of the innermost part of its path that exists.
fn spot_of(root: &Spanned, path: &str) -> Spot {
    let mut at = root;
    for step in path.split(['.', '[']) {
        let next = match (&at.value, step.strip_suffix(']')) {
            (Value::List(items), Some(index)) => index.parse().ok().and_then(|index: usize| items.get(index)),
            (Value::Table(fields), None) => {
                // `period_ns` may have been given as `period`.
                let spelled =
                    |name: &str| name == step || step.strip_suffix("_ns").or(step.strip_suffix("_mib")) == Some(name);
                fields.iter().find(|(name, _)| spelled(name)).map(|(_, spanned)| spanned)
            }
            _ => None,
        };
        match next {
            Some(next) => at = next,
            None => break,
        }
    }
    at.at
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::{Analysis, Charges, analyze, core_tasks};
    use crate::taskset::PartitionSet;

    pub(super) const FILE: &str = r#"{
  "refill_ns_per_partition": 45300,
  "partitions": 4,
  "memory_mib": 64,
  "cores": 2,
  "tasks": [
    {"name": "a", "period_ns": 1000000, "memory_mib": 3,
     "wcet_ns": [9, 8, 7, 6]},
    {"name": "b", "period_ns": 2000000, "deadline_ns": 1500000, "wcet_ns": 5}
  ]
}"#;
    const SAME: &str = r#"
refill_ns_per_partition = 45_300
partitions = 4
memory_mib = 64
cores = 2

[[tasks]]
name = "a"
period_ns = 1_000_000
memory_mib = 3
wcet_ns = [9, 8, 7, 6]

[[tasks]]
name = "b"
period_ns = 2_000_000
deadline_ns = 1_500_000
wcet_ns = 5
"#;

    pub(super) fn read(text: &str) -> Result<TaskSet, String> {
        task_set(text, Overrides::default()).map(|(set, _)| set).map_err(|error| error.to_string())
    }

    #[test]
    fn json_and_toml_say_the_same() {
        let set = read(FILE).unwrap();
        assert_eq!(set, read(SAME).unwrap());
        assert_eq!(set.tasks()[1].wcet_ns, [5, 5, 5, 5]);
        assert_eq!(set.tasks()[0].deadline_ns, 1_000_000);
    }

    #[test]
    fn a_file_that_begins_with_a_table_is_toml() {
        let (tables, list) = ("[[tasks]]\nname = \"a\"\n", "[1, 2]");
        assert!(matches!(values::parse(tables).unwrap().value, Value::Table(_)));
        assert!(matches!(values::parse(list).unwrap().value, Value::List(_)));
    }

    #[test]
    fn an_error_names_the_line_the_column_and_the_field() {
        let wrong = |from: &str, to: &str| read(&FILE.replace(from, to)).unwrap_err();
        assert_eq!(wrong("1000000", "-5"), "line 7, column 32: tasks[0].period_ns: -5 is negative");
        assert_eq!(
            wrong("[9, 8, 7, 6]", "[9, 8, 0, 0]"),
            "line 8, column 24: tasks[0].wcet_ns[2]: a time must be positive, this is 0"
        );
        assert!(
            wrong("1500000", "2500000")
                .starts_with("line 9, column 56: tasks[1].deadline_ns: deadline 2500000 ns exceeds the period")
        );
        assert_eq!(wrong("\"b\"", "\"a\""), "line 9, column 14: tasks[1].name: `a` is taken already");
        assert_eq!(
            wrong("\"memory_mib\": 3", "\"memory_mib\": 65"),
            "line 7, column 55: tasks[0].memory_mib: 65 MiB exceeds the 64 MiB of the whole machine"
        );
        assert!(
            wrong("1000000", "9223372036854775808")
                .starts_with("line 7, column 32: tasks[0].period_ns: 9223372036854775808 ns exceeds")
        );
        assert_eq!(
            wrong("1000000", "99999999999999999999"),
            "line 7, column 32: tasks[0].period_ns: 99999999999999999999 is too large"
        );
        assert!(
            wrong("1000000", "1.5").starts_with("line 7, column 32: tasks[0].period_ns: 1.5 is not a whole number")
        );
        assert_eq!(
            wrong("\"cores\": 2", "\"cores\": 0"),
            "line 5, column 12: cores: 0 is not a number of cores from 1 to 4096"
        );
        assert!(wrong("\"cores\": 2,", "").starts_with("line 1, column 1: cores: is missing"));
        assert!(wrong("\"tasks\": [", "\"tasks\": [[").starts_with("line 11, "));
        let toml = read(&SAME.replace("deadline_ns = 1_500_000", "deadline_ns = -1")).unwrap_err();
        assert_eq!(toml, "line 16, column 15: tasks[1].deadline_ns: -1 is negative");
        assert!(read(&SAME.replace("cores = 2", "cores 2")).unwrap_err().starts_with("line 5, "));
    }

    #[test]
    fn locks_and_costs_are_read_and_other_protocols_are_refused() {
        let file = SAME
            .replace("cores = 2\n", "cores = 2\nrelease_interrupt_ns = 700\npreemption_ns = 900\n")
            .replace("wcet_ns = 5\n", "wcet_ns = 5\nlocks = [{name = \"bus\", longest = \"2us\"}]\n");
        let set = read(&file).unwrap();
        assert_eq!((set.platform().release_interrupt_ns, set.platform().preemption_ns), (700, 900));
        assert_eq!(set.tasks()[1].locks, [Lock { name: "bus".to_owned(), longest_ns: 2_000 }]);
        assert_eq!(read(&format!("lock_protocol = \"immediate_ceiling\"\n{file}")).unwrap(), set);
        let refused = read(&format!("lock_protocol = \"inheritance\"\n{file}")).unwrap_err();
        assert_eq!(refused, "line 1, column 17: lock_protocol: `inheritance` is not one of `immediate_ceiling`");
        let wrong = |lock: &str| read(&file.replace("{name = \"bus\", longest = \"2us\"}", lock)).unwrap_err();
        assert!(wrong("{name = \"bus\"}").contains("tasks[1].locks[0].longest_ns: is missing"));
        assert!(
            wrong("{name = \"bus\", longest_ns = 0}").contains("tasks[1].locks[0].longest_ns: a time must be positive")
        );
        let many: Vec<String> = (0..9).map(|lock| format!("{{name = \"{lock}\", longest_ns = 1}}")).collect();
        assert!(wrong(&many.join(", ")).contains("9 locks are more than the 8 a task can take"));
    }

    #[test]
    fn the_command_line_overrides_the_file() {
        let overrides = Overrides { cores: Some(7), memory: Some(Bytes(128 << 20)), ..Overrides::default() };
        let (set, _) = task_set(FILE, overrides).unwrap();
        assert_eq!((set.platform().cores, set.platform().memory), (7, Bytes(128 << 20)));
    }

    #[test]
    fn lru_is_assumed_unless_the_file_or_the_command_line_allows_any_policy() {
        let assumed = |text: &str, replacement| {
            let (set, warnings) = task_set(text, Overrides { replacement, ..Overrides::default() }).unwrap();
            assert!(warnings.is_empty(), "{warnings:?}");
            set.platform().replacement
        };
        let any = format!("replacement = \"any\"\n{SAME}");
        assert_eq!((assumed(SAME, None), assumed(&any, None)), (Replacement::Lru, Replacement::Any));
        assert_eq!(assumed(SAME, Some(Replacement::Any)), Replacement::Any);
        assert_eq!(assumed(&any, Some(Replacement::Lru)), Replacement::Lru);
        let refused = read(&any.replace("any", "fifo")).unwrap_err();
        assert_eq!(refused, "line 1, column 15: replacement: `fifo` is not one of `lru`, `any`");
    }

    #[test]
    fn the_longer_of_the_measured_refill_times_is_charged_unless_another_is_asked_for() {
        let file = format!("refill_dirty_ns_per_partition = 60_000\nlines_per_partition = 4096\nmiss_ns = 60\n{SAME}");
        let charged = |text: &str, refill: Option<&str>| {
            let refill = refill.map(|refill| refill.parse().unwrap());
            task_set(text, Overrides { refill, ..Overrides::default() })
                .map(|(set, _)| set.platform().refill_ns)
                .map_err(|error| error.to_string())
        };
        assert_eq!(charged(&file, None), Ok(60_000));
        assert_eq!(charged(&file, Some("clean")), Ok(45_300));
        assert_eq!(charged(&file, Some("dirty")), Ok(60_000));
        // 4096 lines, one miss of 60 ns after the other.
        assert_eq!(charged(&file, Some("serial")), Ok(245_760));
        assert_eq!(charged(&file, Some("1us")), Ok(1_000));
        assert_eq!(charged(SAME, None), Ok(45_300));
        assert!(
            charged(SAME, Some("serial")).unwrap_err().starts_with("line 1, column 1: lines_per_partition: is missing")
        );
        let half = format!("miss_ns = 60\n{SAME}");
        assert!(charged(&half, None).unwrap_err().starts_with("line 1, column 1: lines_per_partition: is missing"));
        let huge = format!("lines_per_partition = 4294967296\nmiss_ns = 4294967296\n{SAME}");
        assert!(charged(&huge, None).unwrap_err().contains("exceeds the longest time"));
    }

    #[test]
    fn the_supply_of_a_file_is_charged_unless_the_full_supply_is_asked_for() {
        let of_cpu = |cpu: u32, withheld: u64| {
            format!(
                r#"{{"source": "measured", "value": {{"cpu": {cpu}, "watched_ns": 4000000000, "threshold_ns": 5000,
                "steps": [{{"window_ns": 900000, "withheld_ns": {withheld}, "interruptions": 2}}]}}}}"#
            )
        };
        let with = |supply: &str| FILE.replacen('{', &format!(r#"{{"supply": {supply},"#), 1);
        let both = with(&format!("[{}, {}]", of_cpu(0, 7000), of_cpu(1, 8000)));
        let charged = |text: &str, supply| {
            let (set, warnings) =
                task_set(text, Overrides { supply, ..Overrides::default() }).map_err(|error| error.to_string())?;
            Ok::<_, String>((
                set.platform().supply.as_ref().map(|charged| charged.steps.withheld_ns(900_000)),
                warnings,
            ))
        };
        // The worst of both CPUs is charged.
        for choice in [None, Some(SupplyChoice::Measured)] {
            assert_eq!(charged(&both, choice), Ok((Some(8000), vec![])));
        }
        let (full, warnings) = charged(&both, Some(SupplyChoice::Full)).unwrap();
        assert_eq!(full, None);
        assert!(warnings[0].contains("They do not charge the supply of CPUs 0-1, observed for 4.0 s"), "{warnings:?}");
        assert_eq!(
            (charged(FILE, None), charged(FILE, Some(SupplyChoice::Full))),
            (Ok((None, vec![])), Ok((None, vec![])))
        );
        let missing = charged(FILE, Some(SupplyChoice::Measured)).unwrap_err();
        assert!(missing.contains("supply: is missing") && missing.contains("isochrome probe"), "{missing}");
        // More is withheld than the window is long.
        let impossible = charged(&with(&format!("[{}]", of_cpu(0, 1_000_000))), None).unwrap_err();
        assert!(impossible.starts_with("line 1, column 12: supply: "), "{impossible}");
        assert!(impossible.contains("1000000 ns withheld in a window of 900000 ns"), "{impossible}");
    }

    #[test]
    fn fields_that_nobody_knows_are_warned_about() {
        let (_, warnings) =
            task_set(&FILE.replace("\"cores\"", "\"corse\": 1, \"cores\""), Overrides::default()).unwrap();
        assert_eq!(warnings, ["line 5, column 12: corse is not a field known here; it is ignored"]);
    }

    #[test]
    fn ten_thousand_tasks_are_read_and_analyzed() {
        let task =
            |index: usize| format!("{{\"name\":\"t{index}\",\"period_ns\":{},\"wcet_ns\":1}}", 1_000_000 + index);
        let tasks: Vec<String> = (0..10_000).map(task).collect();
        let text =
            FILE.replace(&FILE[FILE.find("\"tasks\"").unwrap()..], &format!("\"tasks\": [{}]}}", tasks.join(",\n")));
        let set = read(&text).unwrap();
        assert_eq!(set.tasks().len(), 10_000);
        let error = read(&text.replace("{\"name\":\"t9999\"", "{\"name\":\"t9998\"")).unwrap_err();
        assert_eq!(error, "line 10005, column 9: tasks[9999].name: `t9998` is taken already");
    }

    #[test]
    fn no_damaged_file_makes_the_readers_panic_or_the_analyses_of_what_they_accept() {
        let set = read(FILE).unwrap();
        let allocated = r#"{"cores":[{"cpu":0,"tasks":[{"name":"a","partitions":[0,1],"useful":[0]}]}]}"#;
        let mut random = fastrand::Rng::with_seed(4);
        let pieces = [
            "-",
            "0",
            "9223372036854775807",
            "18446744073709551616",
            "1e9",
            "[",
            "]",
            "{",
            "}",
            "\"",
            ",",
            ":",
            "null",
            "true",
            "=",
            "[[",
            "\n",
            "é",
            "\\u0000",
        ];
        let mut accepted = 0;
        for round in 0..20_000 {
            let source = [FILE, SAME, allocated][round % 3];
            let mut text: Vec<char> = source.chars().collect();
            for _ in 0..random.usize(0..=3) {
                let at = random.usize(0..text.len());
                let end = (at + random.usize(0..=6)).min(text.len());
                text.splice(at..end, pieces[random.usize(0..pieces.len())].chars());
            }
            let text: String = text.into_iter().collect();
            // Then up to one byte is changed to any value.
            let mut bytes = text.into_bytes();
            for _ in 0..random.usize(0..=1) {
                let at = random.usize(0..bytes.len());
                bytes[at] = random.u8(..);
            }
            let text = String::from_utf8_lossy(&bytes);
            if let Ok((set, _)) = task_set(&text, Overrides::default()) {
                accepted += 1;
                let members: Vec<_> = (0..set.tasks().len()).map(|task| (task, PartitionSet::range(0, 1))).collect();
                for analysis in Analysis::ALL {
                    let _ = analyze(&core_tasks(&set, &members), Charges::of(&set), analysis);
                }
            }
            let _ = allocation(&text, &set);
        }
        assert!((100..10_000).contains(&accepted), "{accepted}");
        let deep = "[".repeat(100_000);
        assert!(task_set(&format!("{{\"tasks\": {deep}"), Overrides::default()).is_err());
        assert!(task_set(&format!("tasks = {deep}"), Overrides::default()).is_err());
    }
}
