//! Reads the fields of a table by type, and lists the names of all fields that a set and a task may have.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::str::FromStr;

use super::values::{Spanned, Spot, Value};
use super::{Invalid, ReadError};
use crate::taskset::Others;
use crate::units::{Bytes, Ns, ParseError};

/// A table being read, with its location and the fields that were read so far.
pub(in crate::taskset) struct Fields<'a> {
    pub(super) path: String,
    pub(super) at: Spot,
    fields: &'a [(String, Spanned)],
    /// Indices of the fields that were read.
    requested: RefCell<BTreeSet<usize>>,
}

impl<'a> Fields<'a> {
    pub(in crate::taskset) fn of(path: String, spanned: &'a Spanned) -> Result<Self, ReadError> {
        match &spanned.value {
            Value::Table(fields) => Ok(Self { path, at: spanned.at, fields, requested: RefCell::default() }),
            other => Err(wrong(spanned.at, path, format!("must be a table of named fields, this is {}", other.kind()))),
        }
    }

    pub(in crate::taskset) fn named(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    pub(in crate::taskset) fn get(&self, name: &str) -> Option<&'a Spanned> {
        let index = self.fields.iter().position(|(field, _)| field == name)?;
        self.requested.borrow_mut().insert(index);
        Some(&self.fields[index].1)
    }

    /// Returns the fields that have one of the known names and were not read.
    pub(in crate::taskset) fn others(&self, known: &[&str]) -> Others {
        let requested = self.requested.borrow();
        let fields = self.fields.iter().enumerate();
        let others = fields.filter(|(index, (name, _))| !requested.contains(index) && known.contains(&name.as_str()));
        others.map(|(_, (name, spanned))| (name.clone(), spanned.value.to_json())).collect()
    }

    pub(in crate::taskset) fn missing(&self, name: &str, hint: &str) -> ReadError {
        wrong(self.at, self.named(name), format!("is missing\n  hint: {hint}"))
    }

    pub(in crate::taskset) fn require(&self, name: &str, hint: &str) -> Result<&'a Spanned, ReadError> {
        self.get(name).ok_or_else(|| self.missing(name, hint))
    }

    pub(in crate::taskset) fn number(&self, name: &str) -> Result<Option<u64>, ReadError> {
        self.get(name).map(|spanned| number(spanned, &self.named(name))).transpose()
    }

    pub(in crate::taskset) fn small(&self, name: &str) -> Result<Option<u32>, ReadError> {
        let Some(spanned) = self.get(name) else { return Ok(None) };
        let value = number(spanned, &self.named(name))?;
        let small = u32::try_from(value);
        Ok(Some(small.map_err(|_| wrong(spanned.at, self.named(name), format!("{value} is too large")))?))
    }

    pub(in crate::taskset) fn flag(&self, name: &str) -> Result<bool, ReadError> {
        match self.get(name) {
            None => Ok(false),
            Some(Spanned { value: Value::Flag(flag), .. }) => Ok(*flag),
            Some(other) => {
                Err(wrong(other.at, self.named(name), format!("must be true or false, this is {}", other.value.kind())))
            }
        }
    }

    /// Reads a field whose text must be one of several words, and returns the choice; the first choice if the field is missing.
    pub(in crate::taskset) fn choice<T: Copy>(&self, name: &str, choices: &[(&str, T)]) -> Result<T, ReadError> {
        let Some(given) = self.text(name)? else { return Ok(choices[0].1) };
        let known = choices.iter().find(|(word, _)| *word == given).map(|(_, choice)| *choice);
        known.ok_or_else(|| {
            let at = self.get(name).map_or(self.at, |spanned| spanned.at);
            let words: Vec<String> = choices.iter().map(|(word, _)| format!("`{word}`")).collect();
            wrong(at, self.named(name), format!("`{given}` is not one of {}", words.join(", ")))
        })
    }

    pub(in crate::taskset) fn text(&self, name: &str) -> Result<Option<String>, ReadError> {
        match self.get(name) {
            None => Ok(None),
            Some(Spanned { value: Value::Text(text), .. }) => Ok(Some(text.clone())),
            Some(other) => {
                Err(wrong(other.at, self.named(name), format!("must be a text, this is {}", other.value.kind())))
            }
        }
    }

    pub(in crate::taskset) fn list(&self, name: &str, hint: &str) -> Result<&'a [Spanned], ReadError> {
        let spanned = self.require(name, hint)?;
        match &spanned.value {
            Value::List(items) => Ok(items),
            other => Err(wrong(spanned.at, self.named(name), format!("must be a list, this is {}", other.kind()))),
        }
    }

    /// Reads a text in the syntax of the command line; `None` if the field is missing.
    pub(in crate::taskset) fn parsed<T: FromStr<Err = ParseError>>(&self, name: &str) -> Result<Option<T>, ReadError> {
        let Some(text) = self.text(name)? else { return Ok(None) };
        let parsed = text.parse().map_err(|error: ParseError| self.wrong(name, error.to_string()));
        parsed.map(Some)
    }

    /// Returns an error at the location of a field, or of the table if the field is missing.
    pub(in crate::taskset) fn wrong(&self, name: &str, problem: impl Into<String>) -> ReadError {
        wrong(self.get(name).map_or(self.at, |spanned| spanned.at), self.named(name), problem)
    }

    /// Returns the value under the one spelling that the file uses; `None` if it uses none. Two spellings of a field are an
    /// error.
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

    /// Reads a time, such as `period = "200us"` or `period_ns = 200_000`; `None` if the field is missing.
    pub(in crate::taskset) fn time(&self, name: &str) -> Result<Option<Ns>, ReadError> {
        let whole = format!("{name}_ns");
        self.spelled(&[(name, self.parsed(name)?), (&whole, self.number(&whole)?.map(Ns))])
    }

    /// Reads a memory size, such as `memory = "64K"`, `memory_mib = 2` or `memory_bytes = 65_536`; `None` if the field is
    /// missing.
    pub(in crate::taskset) fn memory(&self) -> Result<Option<Bytes>, ReadError> {
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

    pub(in crate::taskset) fn warn_about_others(&self, known: &[&str], warnings: &mut Vec<String>) {
        for (name, spanned) in self.fields.iter().filter(|(name, _)| !known.contains(&name.as_str())) {
            warnings.push(format!("{}: {} is not a field known here; it is ignored", spanned.at, self.named(name)));
        }
    }
}

pub(in crate::taskset) fn wrong(at: Spot, path: impl Into<String>, problem: impl Into<String>) -> ReadError {
    ReadError::Field { at, what: Invalid { field: path.into(), problem: problem.into() } }
}

/// Reads a whole number from 0. The error for a value of another kind names the kind.
pub(in crate::taskset) fn number(spanned: &Spanned, path: &str) -> Result<u64, ReadError> {
    let fail = |problem: String| Err(wrong(spanned.at, path, problem));
    match &spanned.value {
        Value::Number(text) => match text.parse() {
            Ok(number) => Ok(number),
            Err(_) if text.starts_with('-') => fail(format!("{text} is negative")),
            Err(_) if text.bytes().all(|byte| byte.is_ascii_digit()) => fail(format!("{text} is too large")),
            Err(_) => fail(format!("{text} is not a whole number\n  hint: times are whole nanoseconds")),
        },
        other => fail(format!("must be a number, this is {}", other.kind())),
    }
}

/// Fields that a set can have, for planning or for running.
pub(in crate::taskset) const SET_FIELDS: &[&str] = &[
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
    "release_interrupt_ns",
    "preemption_ns",
    "costs",
    "supply",
    "lock_protocol",
    "replacement",
    "replacement_test",
    "cache",
    "page_bytes",
    "memory_rule",
    "cold_start",
    "cpus",
    "level",
    "method",
    "tasks",
];

/// Fields that a task can have, for planning or for running.
pub(in crate::taskset) const TASK_FIELDS: &[&str] = &[
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
    "locks",
    "priority",
    "bundle",
    "exclusive",
    "command",
    "workload",
    "cpu",
    "budget",
    "budget_ns",
    "jobs",
    "sporadic",
    "best_effort",
];
