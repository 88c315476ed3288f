//! Parses a JSON or TOML file into values with their locations.

use super::ReadError;

/// A location in a file. Lines and columns are counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spot {
    /// Line.
    pub line: usize,
    /// Column, in bytes.
    pub column: usize,
}

impl Spot {
    pub(super) const BEGIN: Spot = Spot { line: 1, column: 1 };
}

impl std::fmt::Display for Spot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "line {}, column {}", self.line, self.column)
    }
}

/// A value, and the location at which it begins.
#[derive(Debug)]
pub(in crate::taskset) struct Spanned {
    pub(in crate::taskset) at: Spot,
    pub(in crate::taskset) value: Value,
}

#[derive(Debug)]
pub(in crate::taskset) enum Value {
    Table(Vec<(String, Spanned)>),
    List(Vec<Spanned>),
    Number(String),
    Text(String),
    Flag(bool),
    Other,
}

impl Value {
    pub(in crate::taskset) fn kind(&self) -> &'static str {
        match self {
            Self::Table(_) => "a table",
            Self::List(_) => "a list",
            Self::Number(_) => "a number",
            Self::Text(_) => "a text",
            Self::Flag(_) => "true or false",
            Self::Other => "neither text, number, list nor table",
        }
    }

    /// Returns the value as JSON, without locations.
    pub(super) fn to_json(&self) -> serde_json::Value {
        match self {
            Self::Table(fields) => fields.iter().map(|(name, field)| (name.clone(), field.value.to_json())).collect(),
            Self::List(items) => items.iter().map(|item| item.value.to_json()).collect(),
            // A number that is not valid in JSON becomes a text, which the reader of the JSON then refuses.
            Self::Number(text) => serde_json::from_str(text).unwrap_or_else(|_| text.as_str().into()),
            Self::Text(text) => text.as_str().into(),
            Self::Flag(flag) => (*flag).into(),
            Self::Other => serde_json::Value::Null,
        }
    }
}

pub(in crate::taskset) fn parse(text: &str) -> Result<Spanned, ReadError> {
    let lines = Lines::of(text);
    // serde_json checks the syntax and limits the depth; jsonc_parser gives the locations.
    let json = serde_json::from_str::<serde::de::IgnoredAny>(text);
    // What begins with a bracket may be the header of a TOML table.
    if json.is_ok() || text.trim_start().starts_with('{') {
        if let Err(error) = json {
            return Err(ReadError::Syntax {
                at: Spot { line: error.line().max(1), column: error.column().max(1) },
                // The location is said already.
                problem: error.to_string().split(" at line ").next().unwrap_or_default().to_owned(),
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
        Ok(Spanned { at: Spot::BEGIN, value: Value::Table(from_table(root.get_ref(), &lines)) })
    }
}

fn from_json(value: &jsonc_parser::ast::Value, lines: &Lines) -> Spanned {
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
    Spanned { at, value }
}

fn from_table(table: &toml::de::DeTable, lines: &Lines) -> Vec<(String, Spanned)> {
    table.iter().map(|(name, value)| (name.get_ref().to_string(), from_toml(value, lines))).collect()
}

fn from_toml(value: &toml::Spanned<toml::de::DeValue>, lines: &Lines) -> Spanned {
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
    Spanned { at, value }
}

/// Offsets of the line ends of a file. Lines are found by binary search, because a file has many values.
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
