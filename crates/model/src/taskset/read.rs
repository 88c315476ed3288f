//! Task sets and allocations from JSON or TOML. Whatever is wrong is named with its line, column and field.

use std::str::FromStr;

use super::{Invalid, MemoryRule, Platform, RefillChoice, RefillKind, Refills, Scope, Task, TaskSet};
use crate::taskset::PartitionSet;
use crate::units::{Bytes, Ns, ParseError};

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
    #[error("{at}: {problem}\n  hint: this was read as {format}; a JSON file begins with {{")]
    Syntax {
        /// Where.
        at: Spot,
        /// What the parser says.
        problem: String,
        /// `JSON` or `TOML`.
        format: &'static str,
    },
    /// A field is missing, or its value is not usable.
    #[error("{at}: {what}")]
    Field {
        /// Where, or the beginning of what lacks it.
        at: Spot,
        /// Which field and why.
        what: Invalid,
    },
}

/// A place in a file, both counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spot {
    /// Line.
    pub line: usize,
    /// Column, in bytes.
    pub column: usize,
}

impl Spot {
    const BEGIN: Spot = Spot { line: 1, column: 1 };
}

impl std::fmt::Display for Spot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "line {}, column {}", self.line, self.column)
    }
}

/// A value and where it begins.
#[derive(Debug)]
pub(super) struct Placed {
    pub(super) at: Spot,
    pub(super) value: Value,
}

#[derive(Debug)]
pub(super) enum Value {
    Table(Vec<(String, Placed)>),
    List(Vec<Placed>),
    Number(String),
    Text(String),
    Flag(bool),
    Other,
}

impl Value {
    pub(super) fn kind(&self) -> &'static str {
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

    fn spot(&self, at: usize) -> Spot {
        let before = self.0.partition_point(|&newline| newline < at);
        let begin = before.checked_sub(1).map_or(0, |last| self.0[last] + 1);
        Spot { line: before + 1, column: at - begin + 1 }
    }
}

pub(super) fn parse(text: &str) -> Result<Placed, ReadError> {
    let lines = Lines::of(text);
    if text.trim_start().starts_with(['{', '[']) {
        // serde_json decides what JSON is, and limits its depth; the other parser knows where things are.
        if let Err(error) = serde_json::from_str::<serde::de::IgnoredAny>(text) {
            return Err(ReadError::Syntax {
                at: Spot { line: error.line().max(1), column: error.column().max(1) },
                problem: error.to_string(),
                format: "JSON",
            });
        }
        let syntax = |at, problem| ReadError::Syntax { at, problem, format: "JSON" };
        let tree = jsonc_parser::parse_to_ast(text, &Default::default(), &Default::default())
            .map_err(|error| syntax(lines.spot(error.range().start), error.to_string()))?;
        let root = tree.value.ok_or_else(|| syntax(Spot::BEGIN, "nothing here".to_owned()))?;
        Ok(from_json(&root, &lines))
    } else {
        let root = toml::de::DeTable::parse(text).map_err(|error| ReadError::Syntax {
            at: error.span().map_or(Spot::BEGIN, |span| lines.spot(span.start)),
            problem: error.message().to_owned(),
            format: "TOML",
        })?;
        Ok(Placed { at: Spot::BEGIN, value: Value::Table(from_table(root.get_ref(), &lines)) })
    }
}

fn from_json(value: &jsonc_parser::ast::Value, lines: &Lines) -> Placed {
    use jsonc_parser::ast::Value as Json;
    use jsonc_parser::common::Ranged;
    let at = lines.spot(value.range().start);
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
    Placed { at, value }
}

fn from_table(table: &toml::de::DeTable, lines: &Lines) -> Vec<(String, Placed)> {
    table.iter().map(|(name, value)| (name.get_ref().to_string(), from_toml(value, lines))).collect()
}

fn from_toml(value: &toml::Spanned<toml::de::DeValue>, lines: &Lines) -> Placed {
    use toml::de::DeValue as Toml;
    let at = lines.spot(value.span().start);
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
    Placed { at, value }
}

/// A table being read: knows where it is, and which of its fields nobody asked for.
pub(super) struct Fields<'a> {
    place: String,
    at: Spot,
    fields: &'a [(String, Placed)],
}

impl<'a> Fields<'a> {
    pub(super) fn of(place: String, placed: &'a Placed) -> Result<Self, ReadError> {
        match &placed.value {
            Value::Table(fields) => Ok(Self { place, at: placed.at, fields }),
            other => Err(wrong(placed.at, place, format!("must be a table of named fields, this is {}", other.kind()))),
        }
    }

    pub(super) fn named(&self, name: &str) -> String {
        if self.place.is_empty() { name.to_owned() } else { format!("{}.{name}", self.place) }
    }

    pub(super) fn get(&self, name: &str) -> Option<&'a Placed> {
        self.fields.iter().find(|(field, _)| field == name).map(|(_, placed)| placed)
    }

    pub(super) fn missing(&self, name: &str, hint: &str) -> ReadError {
        wrong(self.at, self.named(name), format!("is missing\n  hint: {hint}"))
    }

    pub(super) fn require(&self, name: &str, hint: &str) -> Result<&'a Placed, ReadError> {
        self.get(name).ok_or_else(|| self.missing(name, hint))
    }

    pub(super) fn number(&self, name: &str) -> Result<Option<u64>, ReadError> {
        self.get(name).map(|placed| number(placed, &self.named(name))).transpose()
    }

    pub(super) fn small(&self, name: &str) -> Result<Option<u32>, ReadError> {
        let Some(placed) = self.get(name) else { return Ok(None) };
        let value = number(placed, &self.named(name))?;
        let small = u32::try_from(value);
        Ok(Some(small.map_err(|_| wrong(placed.at, self.named(name), format!("{value} is too large")))?))
    }

    pub(super) fn flag(&self, name: &str) -> Result<bool, ReadError> {
        match self.get(name) {
            None => Ok(false),
            Some(Placed { value: Value::Flag(flag), .. }) => Ok(*flag),
            Some(other) => {
                Err(wrong(other.at, self.named(name), format!("must be true or false, this is {}", other.value.kind())))
            }
        }
    }

    /// One of several words; the first if the field is missing.
    pub(super) fn choice<T: Copy>(&self, name: &str, choices: &[(&str, T)]) -> Result<T, ReadError> {
        let Some(given) = self.text(name)? else { return Ok(choices[0].1) };
        let known = choices.iter().find(|(word, _)| *word == given).map(|(_, choice)| *choice);
        known.ok_or_else(|| {
            let at = self.get(name).map_or(self.at, |placed| placed.at);
            let words: Vec<String> = choices.iter().map(|(word, _)| format!("`{word}`")).collect();
            wrong(at, self.named(name), format!("`{given}` is not one of {}", words.join(", ")))
        })
    }

    pub(super) fn text(&self, name: &str) -> Result<Option<String>, ReadError> {
        match self.get(name) {
            None => Ok(None),
            Some(Placed { value: Value::Text(text), .. }) => Ok(Some(text.clone())),
            Some(other) => {
                Err(wrong(other.at, self.named(name), format!("must be a text, this is {}", other.value.kind())))
            }
        }
    }

    pub(super) fn list(&self, name: &str, hint: &str) -> Result<&'a [Placed], ReadError> {
        let placed = self.require(name, hint)?;
        match &placed.value {
            Value::List(items) => Ok(items),
            other => Err(wrong(placed.at, self.named(name), format!("must be a list, this is {}", other.kind()))),
        }
    }

    /// A text in the syntax of the command line.
    pub(super) fn parsed<T: FromStr<Err = ParseError>>(&self, name: &str) -> Result<Option<T>, ReadError> {
        let Some(text) = self.text(name)? else { return Ok(None) };
        let parsed = text.parse().map_err(|error: ParseError| self.wrong(name, error.to_string()));
        parsed.map(Some)
    }

    /// What is wrong with the value of a field.
    pub(super) fn wrong(&self, name: &str, problem: impl Into<String>) -> ReadError {
        wrong(self.get(name).map_or(self.at, |placed| placed.at), self.named(name), problem)
    }

    /// The one of several spellings of a fact that is used.
    fn spelled<T>(&self, spellings: &[(&str, Option<T>)]) -> Result<Option<T>, ReadError>
    where
        T: Copy,
    {
        let mut given = spellings.iter().filter_map(|&(name, value)| Some((name, value?)));
        let Some((first, value)) = given.next() else { return Ok(None) };
        match given.next() {
            Some((second, _)) => Err(self.wrong(second, format!("is there already, as `{first}`"))),
            None => Ok(Some(value)),
        }
    }

    /// A time: `period = "200us"` or `period_ns = 200_000`.
    pub(super) fn time(&self, name: &str) -> Result<Option<Ns>, ReadError> {
        let whole = format!("{name}_ns");
        self.spelled(&[(name, self.parsed(name)?), (&whole, self.number(&whole)?.map(Ns))])
    }

    /// Memory: `memory = "64K"`, `memory_mib = 2` or `memory_bytes = 65_536`.
    pub(super) fn memory(&self) -> Result<Option<Bytes>, ReadError> {
        let mib = self.number("memory_mib")?.map(|mib| {
            let bytes = mib.checked_mul(1 << 20).map(Bytes);
            bytes.ok_or_else(|| self.wrong("memory_mib", format!("{mib} MiB are more than any machine has")))
        });
        self.spelled(&[
            ("memory", self.parsed("memory")?),
            ("memory_mib", mib.transpose()?),
            ("memory_bytes", self.number("memory_bytes")?.map(Bytes)),
        ])
    }

    pub(super) fn warn_about_others(&self, known: &[&str], warnings: &mut Vec<String>) {
        for (name, placed) in self.fields.iter().filter(|(name, _)| !known.contains(&name.as_str())) {
            warnings.push(format!("{}: {} is not a field known here; it is ignored", placed.at, self.named(name)));
        }
    }
}

pub(super) fn wrong(at: Spot, place: impl Into<String>, problem: impl Into<String>) -> ReadError {
    ReadError::Field { at, what: Invalid { place: place.into(), problem: problem.into() } }
}

/// A whole number from 0; everything else is named for what it is.
pub(super) fn number(placed: &Placed, place: &str) -> Result<u64, ReadError> {
    let fail = |problem: String| Err(wrong(placed.at, place, problem));
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

/// What a set can say of itself, to be planned or to be run.
pub(super) const SET_FIELDS: &[&str] = &[
    "comment",
    "schema",
    "fingerprint",
    "by",
    "input",
    "margin",
    "complete",
    "refill_ns_per_partition",
    "refill_dirty_ns_per_partition",
    "lines_per_partition",
    "miss_ns",
    "partitions",
    "memory",
    "memory_mib",
    "memory_bytes",
    "cores",
    "switch_ns",
    "cache",
    "page_bytes",
    "memory_rule",
    "cold_start",
    "cpus",
    "level",
    "method",
    "tasks",
];

/// What a set can say of a task, to be planned or to be run.
pub(super) const TASK_FIELDS: &[&str] = &[
    "comment",
    "measured",
    "utilization_difference",
    "name",
    "period",
    "period_ns",
    "deadline",
    "deadline_ns",
    "memory",
    "memory_mib",
    "memory_bytes",
    "wcet_ns",
    "jitter_ns",
    "blocking_ns",
    "nonpreemptive_ns",
    "priority",
    "bundle",
    "exclusive",
    "command",
    "workload",
    "cpu",
    "budget",
    "budget_ns",
    "jobs",
    "best_effort",
];

/// Reads a task set. Programs that run as best they can are not part of what is planned. Also returns warnings, about fields nobody knows and curves that had to be changed.
pub fn task_set(text: &str, overrides: Overrides) -> Result<(TaskSet, Vec<String>), ReadError> {
    let root = parse(text)?;
    let file = Fields::of(String::new(), &root)?;
    let mut warnings = Vec::new();
    file.warn_about_others(SET_FIELDS, &mut warnings);
    let absent = |name: &str, option: &str| {
        wrong(Spot::BEGIN, name, format!("is missing\n  hint: write it into the file, or give {option}"))
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
            .or(file.memory()?)
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
        let fields = Fields::of(format!("tasks[{index}]"), placed)?;
        if !fields.flag("best_effort")? {
            tasks.push(task(&fields, &mut warnings)?);
        }
    }
    let (set, more) =
        TaskSet::new(platform, tasks).map_err(|what| ReadError::Field { at: spot_of(&root, &what.place), what })?;
    warnings.extend(more);
    Ok((set, warnings))
}

fn task(fields: &Fields, warnings: &mut Vec<String>) -> Result<Task, ReadError> {
    fields.warn_about_others(TASK_FIELDS, warnings);
    let period_ns = match fields.time("period")? {
        Some(period) => period.0,
        None => return Err(fields.missing("period_ns", "every task has a period")),
    };
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
        deadline_ns: fields.time("deadline")?.map_or(period_ns, |deadline| deadline.0),
        memory: fields.memory()?.unwrap_or(Bytes(0)),
        wcet_ns,
        jitter_ns: fields.number("jitter_ns")?.unwrap_or(0),
        blocking_ns: fields.number("blocking_ns")?.unwrap_or(0),
        nonpreemptive_ns: fields.number("nonpreemptive_ns")?.unwrap_or(0),
        priority: fields.small("priority")?,
        bundle: fields.text("bundle")?,
        exclusive: fields.flag("exclusive")?,
    })
}

/// The place of `tasks[2].wcet_ns[0]`, or of the innermost part of it that is there.
fn spot_of(root: &Placed, place: &str) -> Spot {
    let mut at = root;
    for step in place.split(['.', '[']) {
        let next = match (&at.value, step.strip_suffix(']')) {
            (Value::List(items), Some(index)) => index.parse().ok().and_then(|index: usize| items.get(index)),
            (Value::Table(fields), None) => {
                // `period_ns` may have been given as `period`.
                let spelled =
                    |name: &str| name == step || step.strip_suffix("_ns").or(step.strip_suffix("_mib")) == Some(name);
                fields.iter().find(|(name, _)| spelled(name)).map(|(_, placed)| placed)
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
            return Err(wrong(core.at, core.named("cpu"), format!("CPU {cpu} is there already")));
        }
        let mut members = Vec::new();
        for (index, placed) in core.list("tasks", "a list of tasks with name and partitions")?.iter().enumerate() {
            let member = Fields::of(format!("{}.tasks[{index}]", core.place), placed)?;
            member.require("name", "the name of a task of the set")?;
            let name = member.text("name")?.unwrap_or_default();
            let Some(&task) = by_name.get(name.as_str()) else {
                return Err(wrong(member.at, member.named("name"), format!("`{name}` is not a task of the set")));
            };
            if let Some(other) = places[task].replace(cpu) {
                return Err(wrong(member.at, member.named("name"), format!("`{name}` is on CPU {other} already")));
            }
            let partitions = partitions(&member, "partitions", set)?;
            for partition in partitions.iter() {
                let owner = owners[partition as usize].get_or_insert(cpu);
                if *owner != cpu && set.platform().scope == Scope::Shared {
                    let problem = format!(
                        "partition {} belongs to CPU {owner} already; cores do not share partitions",
                        partition + 1
                    );
                    return Err(wrong(member.at, member.named("partitions"), problem));
                }
            }
            let useful =
                if member.get("useful").is_some() { self::partitions(&member, "useful", set)? } else { partitions };
            if useful.union(&partitions) != partitions {
                return Err(wrong(member.at, member.named("useful"), "names partitions that are not the task's"));
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
                placed.at,
                place,
                format!("{partition} is not a partition: they are numbered 1 to {most}"),
            ));
        }
        partitions.insert(partition as u32 - 1);
    }
    if partitions.is_empty() && name == "partitions" {
        return Err(wrong(member.at, member.named(name), "is empty; a task needs at least one partition"));
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
        assert!(
            charged(SAME, Some("serial")).unwrap_err().starts_with("line 1, column 1: lines_per_partition: is missing")
        );
        let half = format!("miss_ns = 60\n{SAME}");
        assert!(charged(&half, None).unwrap_err().starts_with("line 1, column 1: lines_per_partition: is missing"));
        let huge = format!("lines_per_partition = 4294967296\nmiss_ns = 4294967296\n{SAME}");
        assert!(charged(&huge, None).unwrap_err().contains("exceeds the longest time"));
    }

    #[test]
    fn fields_that_nobody_knows_are_warned_about() {
        let (_, warnings) =
            task_set(&FILE.replace("\"cores\"", "\"corse\": 1, \"cores\""), Overrides::default()).unwrap();
        assert_eq!(warnings, ["line 5, column 12: corse is not a field known here; it is ignored"]);
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
        assert_eq!(error, "line 10005, column 9: tasks[9999].name: `t9998` is taken already");
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
