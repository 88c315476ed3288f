//! Evidence as text for the terminal.

use isochrome_model::evidence::{Content, Evidence, Section, Table};
use isochrome_model::printable;

/// Greatest number of columns of a line in a terminal.
const WIDTH: usize = 100;

/// Formats every section as [`section`] does, then the warnings.
pub fn table(evidence: &Evidence) -> String {
    let mut text: String = evidence.sections.iter().map(section).collect::<Vec<_>>().join("\n");
    if evidence.sections.is_empty() {
        wrap(&mut text, super::NOTHING);
    }
    for warning in &evidence.warnings {
        wrap(&mut text, &format!("warning: {warning}"));
    }
    text
}

/// Formats the conclusion, the texts and findings, and the tables that are not for reference. Figures are left out.
pub fn section(section: &Section) -> String {
    let mut text = String::new();
    wrap(&mut text, &format!("{} {}", section.headline, section.basis));
    for content in &section.content {
        match content {
            Content::Heading(heading) => {
                text.push('\n');
                wrap(&mut text, heading);
            }
            Content::Text(paragraph) => {
                text.push('\n');
                wrap(&mut text, paragraph);
            }
            Content::Findings(found) => found.iter().for_each(|sentence| wrap(&mut text, &format!("- {sentence}"))),
            Content::Table(shown) if !shown.reference => {
                text.push('\n');
                align(&mut text, shown);
            }
            Content::Table(_) | Content::Figure(_) => {}
        }
    }
    text
}

/// Appends `table` with its columns aligned.
fn align(text: &mut String, table: &Table) {
    let plain_row = |row: &Vec<String>| row.iter().map(|cell| plain(cell)).collect::<Vec<_>>();
    let rows: Vec<Vec<String>> = [&table.columns].into_iter().chain(&table.rows).map(plain_row).collect();
    let cells = || rows.iter().filter(|row| row.len() > 1);
    let width = |column: usize| cells().filter_map(|row| Some(row.get(column)?.chars().count())).max().unwrap_or(0);
    let columns: Vec<(usize, bool)> =
        (0..table.columns.len()).map(|column| (width(column), table.is_number(column))).collect();
    for row in &rows {
        let cells = row.iter().zip(&columns).map(|(cell, (width, number))| match number {
            _ if row.len() == 1 => cell.clone(),
            true => format!("{cell:>width$}"),
            false => format!("{cell:<width$}"),
        });
        text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
}

/// Returns `text` on one line, without the narrow spaces that terminals show badly, and without what a terminal would obey.
pub(super) fn plain(text: &str) -> String {
    let text = text.chars().filter(|&c| c != '\u{202f}').map(|c| if c.is_whitespace() { ' ' } else { c });
    printable::line(&text.collect::<String>())
}

/// Appends `paragraph` in lines of at most [`WIDTH`] columns.
pub(super) fn wrap(text: &mut String, paragraph: &str) {
    let mut column = 0;
    for word in plain(paragraph).split_whitespace() {
        let width = word.chars().count();
        if column > 0 && column + 1 + width > WIDTH {
            text.push('\n');
            column = 0;
        }
        if column > 0 {
            text.push(' ');
            column += 1;
        }
        text.push_str(word);
        column += width;
    }
    text.push('\n');
}
