//! Evidence as text for the terminal.

use std::collections::BTreeSet;

use isochrome_model::evidence::{Content, Evidence, Section, Table};
use isochrome_model::layout::{self, Align};
use isochrome_model::printable;

/// Formats every section as [`section`] does, then the warnings.
pub fn table(evidence: &Evidence, width: usize) -> String {
    let sections = evidence.sections.iter().map(|shown| section(shown, width));
    let mut text: String = sections.collect::<Vec<_>>().join("\n");
    if evidence.sections.is_empty() {
        wrap(&mut text, super::NOTHING, width);
    }
    for warning in &evidence.warnings {
        wrap(&mut text, &format!("warning: {warning}"), width);
    }
    text
}

/// Formats the conclusion, the texts and findings, and the tables that are not for reference, in lines of at most `width` columns. Figures are
/// left out.
pub fn section(section: &Section, width: usize) -> String {
    let mut text = String::new();
    wrap(&mut text, &format!("{} {}", section.headline, section.basis), width);
    for content in &section.content {
        match content {
            Content::Heading(heading) => {
                text.push('\n');
                wrap(&mut text, heading, width);
            }
            Content::Text(paragraph) => {
                text.push('\n');
                wrap(&mut text, paragraph, width);
            }
            Content::Findings(found) => {
                found.iter().for_each(|sentence| wrap(&mut text, &format!("- {sentence}"), width));
            }
            Content::Table(shown) if !shown.reference => {
                text.push('\n');
                align(&mut text, shown, width);
            }
            Content::Table(_) | Content::Figure(_) => {}
        }
    }
    text
}

/// Appends `table` with its columns aligned.
fn align(text: &mut String, table: &Table, width: usize) {
    let plain_row = |row: &Vec<String>| row.iter().map(|cell| plain(cell)).collect::<Vec<_>>();
    let side = |column| if table.is_number(column) { Align::Right } else { Align::Left };
    let heads = plain_row(&table.columns).into_iter().enumerate().map(|(column, head)| (head, side(column)));
    let mut shown = layout::Table::new(heads).keys(keys(table));
    table.rows.iter().for_each(|row| shown.row(plain_row(row)));
    text.push_str(&shown.text(width));
}

/// Returns the number of first columns that distinguish the rows; 1 if even all columns do not.
fn keys(table: &Table) -> usize {
    let rows = || table.rows.iter().filter(|row| row.len() > 1);
    let differ = |count: &usize| {
        let named: BTreeSet<&[String]> = rows().map(|row| &row[..(*count).min(row.len())]).collect();
        named.len() == rows().count()
    };
    (1..table.columns.len()).find(differ).unwrap_or(1)
}

/// Returns `text` on one line, without the narrow spaces that terminals show badly, and without control sequences for the terminal.
pub(super) fn plain(text: &str) -> String {
    let text = text.chars().filter(|&c| c != '\u{202f}').map(|c| if c.is_whitespace() { ' ' } else { c });
    printable::line(&text.collect::<String>())
}

/// Appends `paragraph` in lines of at most `width` columns; those of an item of a list are indented after the first.
pub(super) fn wrap(text: &mut String, paragraph: &str, width: usize) {
    let paragraph = plain(paragraph).split_whitespace().collect::<Vec<_>>().join(" ");
    let indent = if paragraph.starts_with("- ") { 2 } else { 0 };
    text.push_str(&layout::wrap(&paragraph, width, indent));
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_in_parts_names_its_rows_by_the_first_columns_that_tell_them_apart() {
        let cells = |cells: [&str; 4]| cells.map(str::to_owned).to_vec();
        let rows = ["all of it", "own colors"].map(|place| cells(["walk 512", place, "28.6", "38.3"])).to_vec();
        let mut table = Table { columns: cells(["program", "in", "alone,ms", "beside,ms"]), rows, reference: false };
        assert_eq!(keys(&table), 2);
        let mut text = String::new();
        align(&mut text, &table, 32);
        assert_eq!(text.matches("own colors").count(), 2, "{text}");
        // Rows that are alike are told apart by nothing.
        table.rows[1] = table.rows[0].clone();
        assert_eq!(keys(&table), 1);
    }
}
