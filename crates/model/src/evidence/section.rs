//! Sections of evidence: conclusions in sentences, tables and figures, with the numbers behind them.
//!
//! A report shows sections and knows nothing else of an experiment. The numbers are those that a command prints as JSON.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::figure::Figure;

/// Whether a requirement or an expected effect was confirmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    /// The requirement or the effect was confirmed.
    Holds,
    /// A requirement is violated.
    Violated,
    /// The measurement shows that there is no effect.
    NoGain,
    /// The measurement does not suffice to decide.
    Inconclusive,
}

/// One experiment or run, as a report shows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Section {
    /// Identifier of the kind of section, such as `crpd`.
    pub id: String,
    /// Heading of the section.
    pub title: String,
    /// Whether the section confirms what was to be shown; `None` if nothing was to be shown.
    pub standing: Option<Standing>,
    /// The conclusion in a sentence.
    pub headline: String,
    /// Basis of the conclusion, in a sentence or two.
    pub basis: String,
    /// Parts of the section, in order.
    pub content: Vec<Content>,
    /// All numbers of the section, by name.
    pub numbers: Value,
}

/// A part of a section.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Content {
    /// A heading.
    Heading(String),
    /// A paragraph.
    Text(String),
    /// Conclusions, one sentence each.
    Findings(Vec<String>),
    /// A table.
    Table(Table),
    /// A figure.
    Figure(Figure),
}

/// A table of text cells. A column holds numbers if its cells begin like numbers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Table {
    /// Heads of the columns.
    pub columns: Vec<String>,
    /// Rows, each with a cell for every column. A row with a single cell is a heading for the rows below it.
    pub rows: Vec<Vec<String>>,
    /// Whether the table is for reference: a report folds it, and a terminal does not show it.
    #[serde(default)]
    pub reference: bool,
}

impl Table {
    /// Whether the cells of `column` are numbers, which are aligned to the right.
    pub fn is_number(&self, column: usize) -> bool {
        let starts = |cell: &str| cell.starts_with(|c: char| c.is_ascii_digit() || "+-−–<".contains(c));
        let mut cells = self.rows.iter().filter(|row| row.len() > 1).filter_map(|row| row.get(column));
        cells.all(|cell| cell.is_empty() || starts(cell))
    }
}

impl Section {
    /// Returns a section about `numbers`, without content. `headline` comes with the standing and the basis.
    pub fn new(
        id: &str,
        title: &str,
        (standing, headline, basis): (Option<Standing>, String, String),
        numbers: &impl Serialize,
    ) -> Section {
        // All maps in results have string keys, so every result becomes JSON.
        let numbers = serde_json::to_value(numbers).unwrap_or_default();
        let (id, title) = (id.to_owned(), title.to_owned());
        Section { id, title, standing, headline, basis, content: Vec::new(), numbers }
    }

    /// Adds a heading to the section.
    pub fn heading(self, text: impl Into<String>) -> Section {
        self.with(Content::Heading(text.into()))
    }

    /// Adds a paragraph to the section.
    pub fn text(self, text: impl Into<String>) -> Section {
        self.with(Content::Text(text.into()))
    }

    /// Adds conclusions to the section; an empty list adds nothing.
    pub fn findings(self, findings: Vec<String>) -> Section {
        if findings.is_empty() { self } else { self.with(Content::Findings(findings)) }
    }

    /// Adds a table to the section; a table without rows adds nothing.
    pub fn table(self, columns: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> Section {
        self.with_table(columns, rows, false)
    }

    /// Adds a table for reference to the section; a table without rows adds nothing.
    pub fn reference(self, columns: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> Section {
        self.with_table(columns, rows, true)
    }

    fn with_table(self, columns: &[&str], rows: impl IntoIterator<Item = Vec<String>>, reference: bool) -> Section {
        let columns = columns.iter().map(|&name| name.to_owned()).collect();
        let table = Table { columns, rows: rows.into_iter().collect(), reference };
        if table.rows.is_empty() { self } else { self.with(Content::Table(table)) }
    }

    /// Adds a figure to the section.
    pub fn figure(self, figure: impl Into<Figure>) -> Section {
        self.with(Content::Figure(figure.into()))
    }

    fn with(mut self, content: Content) -> Section {
        self.content.push(content);
        self
    }

    /// Returns the figures of the section.
    pub fn figures(&self) -> impl Iterator<Item = &Figure> {
        self.content.iter().filter_map(|content| match content {
            Content::Figure(figure) => Some(figure),
            _ => None,
        })
    }

    /// Returns a section that has numbers only.
    pub fn of_numbers(id: &str, numbers: Value) -> Section {
        Section { numbers, ..Section::new(id, "", (None, String::new(), String::new()), &()) }
    }
}
