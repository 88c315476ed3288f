//! Task sets and allocations from JSON or TOML. Whatever is wrong is named with its line and field.

use super::{Invalid, MemoryRule, Platform, RefillChoice, RefillKind, Refills, Scope, Task, TaskSet};
use crate::taskset::PartitionSet;
use crate::units::Bytes;

/// Numbers of the file that the command line replaces, or that it must supply because the file lacks them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Overrides {
    /// `cores`
    pub cores: Option<u32>,
    /// `partitions`
    pub partitions: Option<u32>,
    /// `memory_mib`
    pub memory: Option<Bytes>,
    /// The refill time to charge.
    pub refill: Option<RefillChoice>,
    /// Memory to assume where neither says; only for questions that memory does not decide.
    pub memory_default: Option<Bytes>,
    /// Cores to assume where neither says.
    pub cores_default: Option<u32>,
}

/// A file that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// Neither JSON nor TOML.
    #[error("line {line}: {problem}\n  hint: this was read as {format}; a JSON file begins with {{")]
    Syntax {
        /// Where.
        line: usize,
        /// What the parser says.
        problem: String,
        /// `JSON` or `TOML`.
        format: &'static str,
    },
    /// A field is missing, or its value is not usable.
    #[error("line {line}: {what}")]
    Field {
        /// Where, or the beginning of what lacks it.
        line: usize,
        /// Which field and why.
        what: Invalid,
    },
}

/// A value and the line it begins on.
#[derive(Debug)]
struct Placed {
    line: usize,
    value: Value,
}

#[derive(Debug)]
enum Value {
    Table(Vec<(String, Placed)>),
    List(Vec<Placed>),
    Number(String),
    Text(String),
    Flag(bool),
    Other,
}

impl Value {
    fn kind(&self) -> &'static str {
        match self {
            Self::Table(_) => "a table",
            Self::List(_) => "a list",
            Self::Number(_) => "a number",
            Self::Text(_) => "a text",
            Self::Flag(_) => "true or false",
            Self::Other => "neither text, number, list nor table",
        }
    }
}

/// Finds lines by binary search: a file has many values.
struct Lines(Vec<usize>);

impl Lines {
    fn of(text: &str) -> Self {
        Self(text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n').map(|(at, _)| at).collect())
    }

    fn line(&self, at: usize) -> usize {
        self.0.partition_point(|&newline| newline < at) + 1
    }
}

fn parse(text: &str) -> Result<Placed, ReadError> {
    let lines = Lines::of(text);
    if text.trim_start().starts_with(['{', '[']) {
        // serde_json decides what JSON is, and limits its depth; the other parser knows where things are.
        if let Err(error) = serde_json::from_str::<serde::de::IgnoredAny>(text) {
            return Err(ReadError::Syntax { line: error.line().max(1), problem: error.to_string(), format: "JSON" });
        }
        let syntax = |line, problem| ReadError::Syntax { line, problem, format: "JSON" };
        let tree = jsonc_parser::parse_to_ast(text, &Default::default(), &Default::default())
            .map_err(|error| syntax(lines.line(error.range().start), error.to_string()))?;
        let root = tree.value.ok_or_else(|| syntax(1, "nothing here".to_owned()))?;
        Ok(from_json(&root, &lines))
    } else {
        let root = toml::de::DeTable::parse(text).map_err(|error| ReadError::Syntax {
            line: error.span().map_or(1, |span| lines.line(span.start)),
            problem: error.message().to_owned(),
            format: "TOML",
        })?;
        Ok(Placed { line: 1, value: Value::Table(from_table(root.get_ref(), &lines)) })
    }
}

fn from_json(value: &jsonc_parser::ast::Value, lines: &Lines) -> Placed {
    use jsonc_parser::ast::Value as Json;
    use jsonc_parser::common::Ranged;
    let line = lines.line(value.range().start);
    let value = match value {
        Json::Object(object) => Value::Table(
            object.properties.iter().map(|p| (p.name.as_str().to_owned(), from_json(&p.value, lines))).collect(),
        ),
        Json::Array(array) => Value::List(array.elements.iter().map(|element| from_json(element, lines)).collect()),
        Json::NumberLit(number) => Value::Number(number.value.to_owned()),
        Json::StringLit(text) => Value::Text(text.value.to_string()),
        Json::BooleanLit(flag) => Value::Flag(flag.value),
        Json::NullKeyword(_) => Value::Other,
    };
    Placed { line, value }
}

fn from_table(table: &toml::de::DeTable, lines: &Lines) -> Vec<(String, Placed)> {
    table.iter().map(|(name, value)| (name.get_ref().to_string(), from_toml(value, lines))).collect()
}

fn from_toml(value: &toml::Spanned<toml::de::DeValue>, lines: &Lines) -> Placed {
    use toml::de::DeValue as Toml;
    let line = lines.line(value.span().start);
    let value = match value.get_ref() {
        Toml::Table(table) => Value::Table(from_table(table, lines)),
        Toml::Array(array) => Value::List(array.iter().map(|element| from_toml(element, lines)).collect()),
        // Only a plain decimal number reads the same in both formats.
        Toml::Integer(number) if number.radix() == 10 => Value::Number(number.as_str().to_owned()),
        Toml::Integer(number) => Value::Number(
            u64::from_str_radix(number.as_str(), number.radix())
                .map_or_else(|_| number.as_str().to_owned(), |n| n.to_string()),
        ),
        Toml::Float(number) => Value::Number(number.as_str().to_owned()),
        Toml::String(text) => Value::Text(text.to_string()),
        Toml::Boolean(flag) => Value::Flag(*flag),
        Toml::Datetime(_) => Value::Other,
    };
    Placed { line, value }
}

/// A table being read: knows where it is, and which of its fields nobody asked for.
struct Fields<'a> {
    place: String,
    line: usize,
    fields: &'a [(String, Placed)],
}

impl<'a> Fields<'a> {
    fn of(place: String, placed: &'a Placed) -> Result<Self, ReadError> {
        match &placed.value {
            Value::Table(fields) => Ok(Self { place, line: placed.line, fields }),
            other => {
                Err(wrong(placed.line, place, format!("must be a table of named fields, this is {}", other.kind())))
            }
        }
    }

    fn named(&self, name: &str) -> String {
        if self.place.is_empty() { name.to_owned() } else { format!("{}.{name}", self.place) }
    }

    fn get(&self, name: &str) -> Option<&'a Placed> {
        self.fields.iter().find(|(field, _)| field == name).map(|(_, placed)| placed)
    }

    fn require(&self, name: &str, hint: &str) -> Result<&'a Placed, ReadError> {
        self.get(name).ok_or_else(|| wrong(self.line, self.named(name), format!("is missing\n  hint: {hint}")))
    }

    fn number(&self, name: &str) -> Result<Option<u64>, ReadError> {
        self.get(name).map(|placed| number(placed, &self.named(name))).transpose()
    }

    fn small(&self, name: &str) -> Result<Option<u32>, ReadError> {
        let Some(placed) = self.get(name) else { return Ok(None) };
        let value = number(placed, &self.named(name))?;
        let small = u32::try_from(value);
        Ok(Some(small.map_err(|_| wrong(placed.line, self.named(name), format!("{value} is too large")))?))
    }

    fn flag(&self, name: &str) -> Result<bool, ReadError> {
        match self.get(name) {
            None => Ok(false),
            Some(Placed { value: Value::Flag(flag), .. }) => Ok(*flag),
            Some(other) => Err(wrong(
                other.line,
                self.named(name),
                format!("must be true or false, this is {}", other.value.kind()),
            )),
        }
    }

    /// One of several words; the first if the field is missing.
    fn choice<T: Copy>(&self, name: &str, choices: &[(&str, T)]) -> Result<T, ReadError> {
        let Some(given) = self.text(name)? else { return Ok(choices[0].1) };
        let known = choices.iter().find(|(word, _)| *word == given).map(|(_, choice)| *choice);
        known.ok_or_else(|| {
            let line = self.get(name).map_or(self.line, |placed| placed.line);
            let words: Vec<String> = choices.iter().map(|(word, _)| format!("`{word}`")).collect();
            wrong(line, self.named(name), format!("`{given}` is not one of {}", words.join(", ")))
        })
    }

    fn text(&self, name: &str) -> Result<Option<String>, ReadError> {
        match self.get(name) {
            None => Ok(None),
            Some(Placed { value: Value::Text(text), .. }) => Ok(Some(text.clone())),
            Some(other) => {
                Err(wrong(other.line, self.named(name), format!("must be a text, this is {}", other.value.kind())))
            }
        }
    }

    fn list(&self, name: &str, hint: &str) -> Result<&'a [Placed], ReadError> {
        let placed = self.require(name, hint)?;
        match &placed.value {
            Value::List(items) => Ok(items),
            other => Err(wrong(placed.line, self.named(name), format!("must be a list, this is {}", other.kind()))),
        }
    }

    fn memory(&self, name: &str) -> Result<Option<Bytes>, ReadError> {
        let Some(placed) = self.get(name) else { return Ok(None) };
        let mib = number(placed, &self.named(name))?;
        let bytes = mib.checked_mul(1 << 20).map(Bytes);
        Ok(Some(
            bytes.ok_or_else(|| {
                wrong(placed.line, self.named(name), format!("{mib} MiB are more than any machine has"))
            })?,
        ))
    }

    fn warn_about_others(&self, known: &[&str], warnings: &mut Vec<String>) {
        for (name, placed) in self.fields.iter().filter(|(name, _)| !known.contains(&name.as_str())) {
            warnings.push(format!(
                "line {}: {} is not a field known here; it is ignored",
                placed.line,
                self.named(name)
            ));
        }
    }
}

fn wrong(line: usize, place: impl Into<String>, problem: impl Into<String>) -> ReadError {
    ReadError::Field { line, what: Invalid { place: place.into(), problem: problem.into() } }
}

/// A whole number from 0; everything else is named for what it is.
fn number(placed: &Placed, place: &str) -> Result<u64, ReadError> {
    let fail = |problem: String| Err(wrong(placed.line, place, problem));
    match &placed.value {
        Value::Number(text) => match text.parse() {
            Ok(number) => Ok(number),
            Err(_) if text.starts_with('-') => fail(format!("{text} is negative")),
            Err(_) if text.bytes().all(|byte| byte.is_ascii_digit()) => fail(format!("{text} is too large")),
            Err(_) => fail(format!("{text} is not a whole number\n  hint: times are whole nanoseconds")),
        },
        other => fail(format!("must be a number, this is {}", other.kind())),
    }
}

/// Reads a task set. Also returns warnings, about fields nobody knows and curves that had to be changed.
pub fn task_set(text: &str, overrides: Overrides) -> Result<(TaskSet, Vec<String>), ReadError> {
    let root = parse(text)?;
    let file = Fields::of(String::new(), &root)?;
    let mut warnings = Vec::new();
    file.warn_about_others(
        &[
            "comment",
            "refill_ns_per_partition",
            "refill_dirty_ns_per_partition",
            "lines_per_partition",
            "miss_ns",
            "partitions",
            "memory_mib",
            "cores",
            "switch_ns",
            "cache",
            "page_bytes",
            "memory_rule",
            "cold_start",
            "tasks",
        ],
        &mut warnings,
    );
    let absent = |name: &str, option: &str| {
        wrong(1, name, format!("is missing\n  hint: write it into the file, or give {option}"))
    };
    let refills = Refills {
        clean_ns: file.number("refill_ns_per_partition")?,
        dirty_ns: file.number("refill_dirty_ns_per_partition")?,
        serial_ns: match (file.number("lines_per_partition")?, file.number("miss_ns")?) {
            (Some(lines), Some(miss_ns)) => Some(lines.saturating_mul(miss_ns)),
            (None, None) => None,
            (Some(_), None) => return Err(absent("miss_ns", "no lines_per_partition")),
            (None, Some(_)) => return Err(absent("lines_per_partition", "no miss_ns")),
        },
    };
    let refill_ns = match overrides.refill {
        Some(RefillChoice::Time(time)) => time.0,
        Some(RefillChoice::Known(kind)) => match refills.known().find(|&(known, _)| known == kind) {
            Some((_, time)) => time,
            None => {
                let (name, hint) = match kind {
                    RefillKind::Clean => ("refill_ns_per_partition", "--refill TIME"),
                    RefillKind::Dirty => ("refill_dirty_ns_per_partition", "--refill TIME"),
                    RefillKind::Serial => ("lines_per_partition", "--refill TIME"),
                };
                return Err(absent(name, hint));
            }
        },
        // Nobody knows whether what a task displaces was written: the longer time is safe.
        None => {
            refills.clean_ns.max(refills.dirty_ns).ok_or_else(|| absent("refill_ns_per_partition", "--refill TIME"))?
        }
    };
    let platform = Platform {
        cores: overrides
            .cores
            .or(file.small("cores")?)
            .or(overrides.cores_default)
            .ok_or_else(|| absent("cores", "--cores N"))?,
        partitions: overrides
            .partitions
            .or(file.small("partitions")?)
            .ok_or_else(|| absent("partitions", "--partitions N"))?,
        memory: overrides
            .memory
            .or(file.memory("memory_mib")?)
            .or(overrides.memory_default)
            .ok_or_else(|| absent("memory_mib", "--memory SIZE"))?,
        refill_ns,
        refills,
        switch_ns: file.number("switch_ns")?.unwrap_or(0),
        scope: file.choice("cache", &[("shared", Scope::Shared), ("private", Scope::Private)])?,
        page: Bytes(file.number("page_bytes")?.unwrap_or(4096)),
        memory_rule: file.choice("memory_rule", &[("pages", MemoryRule::Pages), ("kim2013", MemoryRule::Kim2013)])?,
        cold_start: file.flag("cold_start")?,
    };
    let mut tasks = Vec::new();
    for (index, placed) in file.list("tasks", "a list of tasks with name, period_ns and wcet_ns")?.iter().enumerate() {
        tasks.push(task(&Fields::of(format!("tasks[{index}]"), placed)?, &mut warnings)?);
    }
    let (set, more) =
        TaskSet::new(platform, tasks).map_err(|what| ReadError::Field { line: line_of(&root, &what.place), what })?;
    warnings.extend(more);
    Ok((set, warnings))
}

fn task(fields: &Fields, warnings: &mut Vec<String>) -> Result<Task, ReadError> {
    fields.warn_about_others(
        &[
            "comment",
            "name",
            "period_ns",
            "deadline_ns",
            "memory_mib",
            "wcet_ns",
            "jitter_ns",
            "blocking_ns",
            "nonpreemptive_ns",
            "priority",
            "bundle",
            "exclusive",
        ],
        warnings,
    );
    let required = |name: &str| {
        let placed = fields.require(name, "every task has a period")?;
        number(placed, &fields.named(name))
    };
    let period_ns = required("period_ns")?;
    let curve = fields.require("wcet_ns", "C^p for p = 1..N_P, or one number if it does not depend on p")?;
    let place = fields.named("wcet_ns");
    let wcet_ns = match &curve.value {
        Value::List(times) => times
            .iter()
            .enumerate()
            .map(|(p, time)| number(time, &format!("{place}[{p}]")))
            .collect::<Result<_, _>>()?,
        _ => vec![number(curve, &place)?],
    };
    fields.require("name", "every task has a name")?;
    Ok(Task {
        name: fields.text("name")?.unwrap_or_default(),
        period_ns,
        deadline_ns: fields.number("deadline_ns")?.unwrap_or(period_ns),
        memory: fields.memory("memory_mib")?.unwrap_or(Bytes(0)),
        wcet_ns,
        jitter_ns: fields.number("jitter_ns")?.unwrap_or(0),
        blocking_ns: fields.number("blocking_ns")?.unwrap_or(0),
        nonpreemptive_ns: fields.number("nonpreemptive_ns")?.unwrap_or(0),
        priority: fields.small("priority")?,
        bundle: fields.text("bundle")?,
        exclusive: fields.flag("exclusive")?,
    })
}

/// The line of `tasks[2].wcet_ns[0]`, or of the innermost part of it that is there.
fn line_of(root: &Placed, place: &str) -> usize {
    let mut at = root;
    for step in place.split(['.', '[']) {
        let next = match (&at.value, step.strip_suffix(']')) {
            (Value::List(items), Some(index)) => index.parse().ok().and_then(|index: usize| items.get(index)),
            (Value::Table(fields), None) => fields.iter().find(|(name, _)| name == step).map(|(_, placed)| placed),
            _ => None,
        };
        match next {
            Some(next) => at = next,
            None => break,
        }
    }
    at.line
}

/// A task of an allocation: its index in the set, its partitions, and those useful to it after a preemption.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allotted {
    /// Index of the task in the set.
    pub task: usize,
    /// Its partitions, from 0.
    pub partitions: PartitionSet,
    /// The useful ones; all if the file does not say.
    pub useful: PartitionSet,
}

/// Which tasks run on which core with which partitions: `(cpu, tasks)` in the order of the file.
pub type Allocation = Vec<(u32, Vec<Allotted>)>;

/// Reads an allocation for `set`: the `cores` of a plan. Also returns warnings about tasks left out.
pub fn allocation(text: &str, set: &TaskSet) -> Result<(Allocation, Vec<String>), ReadError> {
    let root = parse(text)?;
    let file = Fields::of(String::new(), &root)?;
    let mut allocation: Allocation = Vec::new();
    let mut places: Vec<Option<u32>> = vec![None; set.tasks().len()];
    let mut owners: Vec<Option<u32>> = vec![None; set.platform().partitions as usize];
    let by_name: std::collections::HashMap<&str, usize> =
        set.tasks().iter().enumerate().map(|(index, task)| (task.name.as_str(), index)).collect();
    for (index, placed) in file.list("cores", "a list of cores with cpu and tasks")?.iter().enumerate() {
        let core = Fields::of(format!("cores[{index}]"), placed)?;
        let cpu = core.small("cpu")?.unwrap_or(u32::try_from(index).unwrap_or(u32::MAX));
        if allocation.iter().any(|(other, _)| *other == cpu) {
            return Err(wrong(core.line, core.named("cpu"), format!("CPU {cpu} is there already")));
        }
        let mut members = Vec::new();
        for (index, placed) in core.list("tasks", "a list of tasks with name and partitions")?.iter().enumerate() {
            let member = Fields::of(format!("{}.tasks[{index}]", core.place), placed)?;
            member.require("name", "the name of a task of the set")?;
            let name = member.text("name")?.unwrap_or_default();
            let Some(&task) = by_name.get(name.as_str()) else {
                return Err(wrong(member.line, member.named("name"), format!("`{name}` is not a task of the set")));
            };
            if let Some(other) = places[task].replace(cpu) {
                return Err(wrong(member.line, member.named("name"), format!("`{name}` is on CPU {other} already")));
            }
            let partitions = partitions(&member, "partitions", set)?;
            for partition in partitions.iter() {
                let owner = owners[partition as usize].get_or_insert(cpu);
                if *owner != cpu && set.platform().scope == Scope::Shared {
                    let problem = format!(
                        "partition {} belongs to CPU {owner} already; cores do not share partitions",
                        partition + 1
                    );
                    return Err(wrong(member.line, member.named("partitions"), problem));
                }
            }
            let useful =
                if member.get("useful").is_some() { self::partitions(&member, "useful", set)? } else { partitions };
            if useful.union(&partitions) != partitions {
                return Err(wrong(member.line, member.named("useful"), "names partitions that are not the task's"));
            }
            members.push(Allotted { task, partitions, useful });
        }
        allocation.push((cpu, members));
    }
    let left_out = set.tasks().iter().zip(&places).filter(|(_, place)| place.is_none());
    let warnings = left_out.map(|(task, _)| format!("{} is on no core", task.name)).collect();
    Ok((allocation, warnings))
}

fn partitions(member: &Fields, name: &str, set: &TaskSet) -> Result<PartitionSet, ReadError> {
    let most = set.platform().partitions;
    let mut partitions = PartitionSet::default();
    for (index, placed) in member.list(name, "numbers of partitions, from 1")?.iter().enumerate() {
        let place = format!("{}[{index}]", member.named(name));
        let partition = number(placed, &place)?;
        if partition == 0 || partition > u64::from(most) {
            return Err(wrong(
                placed.line,
                place,
                format!("{partition} is not a partition: they are numbered 1 to {most}"),
            ));
        }
        partitions.insert(partition as u32 - 1);
    }
    if partitions.is_empty() && name == "partitions" {
        return Err(wrong(member.line, member.named(name), "is empty; a task needs at least one partition"));
    }
    Ok(partitions)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::{Analysis, Charges, analyze, core_tasks};

    const FILE: &str = r#"{
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

    fn read(text: &str) -> Result<TaskSet, String> {
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
    fn an_error_names_the_line_and_the_field() {
        let wrong = |from: &str, to: &str| read(&FILE.replace(from, to)).unwrap_err();
        assert_eq!(wrong("1000000", "-5"), "line 7: tasks[0].period_ns: -5 is negative");
        assert_eq!(
            wrong("[9, 8, 7, 6]", "[9, 8, 0, 0]"),
            "line 8: tasks[0].wcet_ns[2]: a time must be positive, this is 0"
        );
        assert!(
            wrong("1500000", "2500000")
                .starts_with("line 9: tasks[1].deadline_ns: deadline 2500000 ns exceeds the period")
        );
        assert_eq!(wrong("\"b\"", "\"a\""), "line 9: tasks[1].name: `a` is taken already");
        assert_eq!(
            wrong("\"memory_mib\": 3", "\"memory_mib\": 65"),
            "line 7: tasks[0].memory_mib: 65 MiB exceeds the 64 MiB of the whole machine"
        );
        assert!(
            wrong("1000000", "9223372036854775808")
                .starts_with("line 7: tasks[0].period_ns: 9223372036854775808 ns exceeds")
        );
        assert_eq!(
            wrong("1000000", "99999999999999999999"),
            "line 7: tasks[0].period_ns: 99999999999999999999 is too large"
        );
        assert!(wrong("1000000", "1.5").starts_with("line 7: tasks[0].period_ns: 1.5 is not a whole number"));
        assert_eq!(wrong("\"cores\": 2", "\"cores\": 0"), "line 5: cores: 0 is not a number of cores from 1 to 4096");
        assert!(wrong("\"cores\": 2,", "").starts_with("line 1: cores: is missing"));
        assert!(wrong("\"tasks\": [", "\"tasks\": [[").starts_with("line 11: "));
        let toml = read(&SAME.replace("deadline_ns = 1_500_000", "deadline_ns = -1")).unwrap_err();
        assert_eq!(toml, "line 16: tasks[1].deadline_ns: -1 is negative");
        assert!(read(&SAME.replace("cores = 2", "cores 2")).unwrap_err().starts_with("line 5: "));
    }

    #[test]
    fn the_command_line_overrides_the_file() {
        let overrides = Overrides { cores: Some(7), memory: Some(Bytes(128 << 20)), ..Overrides::default() };
        let (set, _) = task_set(FILE, overrides).unwrap();
        assert_eq!((set.platform().cores, set.platform().memory), (7, Bytes(128 << 20)));
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
        assert!(charged(SAME, Some("serial")).unwrap_err().starts_with("line 1: lines_per_partition: is missing"));
        let half = format!("miss_ns = 60\n{SAME}");
        assert!(charged(&half, None).unwrap_err().starts_with("line 1: lines_per_partition: is missing"));
        let huge = format!("lines_per_partition = 4294967296\nmiss_ns = 4294967296\n{SAME}");
        assert!(charged(&huge, None).unwrap_err().contains("exceeds the longest time"));
    }

    #[test]
    fn fields_that_nobody_knows_are_warned_about() {
        let (_, warnings) =
            task_set(&FILE.replace("\"cores\"", "\"corse\": 1, \"cores\""), Overrides::default()).unwrap();
        assert_eq!(warnings, ["line 5: corse is not a field known here; it is ignored"]);
    }

    #[test]
    fn an_allocation_is_held_against_its_set() {
        let set = read(FILE).unwrap();
        let good = r#"{"cores":[{"cpu":0,"tasks":[{"name":"a","partitions":[1,2]}]},{"cpu":3,"tasks":[]}]}"#;
        let (found, warnings) = allocation(good, &set).unwrap();
        assert_eq!(found[0].1[0].partitions, PartitionSet::range(0, 2));
        assert_eq!(warnings, ["b is on no core"]);
        let wrong = |from: &str, to: &str| allocation(&good.replace(from, to), &set).unwrap_err().to_string();
        assert!(
            wrong("[1,2]", "[0]")
                .contains("cores[0].tasks[0].partitions[0]: 0 is not a partition: they are numbered 1 to 4")
        );
        assert!(wrong("[1,2]", "[5]").contains("5 is not a partition"));
        assert!(wrong("[1,2]", "[]").contains("at least one partition"));
        assert!(wrong("\"a\"", "\"x\"").contains("`x` is not a task of the set"));
        let twice = "[{\"name\":\"b\",\"partitions\":[2]}]";
        assert!(
            wrong("\"cpu\":3,\"tasks\":[]", &format!("\"cpu\":3,\"tasks\":{twice}"))
                .contains("belongs to CPU 0 already")
        );
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
        assert_eq!(error, "line 10005: tasks[9999].name: `t9998` is taken already");
    }

    #[test]
    fn no_damaged_file_makes_the_readers_panic_or_the_analyses_of_what_they_accept() {
        let set = read(FILE).unwrap();
        let allocated = r#"{"cores":[{"cpu":0,"tasks":[{"name":"a","partitions":[1,2],"useful":[1]}]}]}"#;
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
            // And a few bytes changed, whatever they are.
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
