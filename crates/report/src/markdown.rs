//! Evidence as Markdown, for pages of results that are kept under version control.

use std::fmt::Write as _;

use isochrome_model::evidence::{Content, Evidence, Section, Standing, Table, format};
use isochrome_model::machine::Machine;

use super::text::plain;
use super::{NOTHING, command_line};

/// Formats `evidence` as a page: machine, command and date, the sections without figures, and the warnings.
pub fn markdown(evidence: &Evidence) -> String {
    let title = evidence.sections.first().map_or("The machine", |section| &section.title);
    let mut page = format!("# {}\n\n", escaped(title));
    let facts = [
        ("Machine", escaped(&machine(&evidence.machine))),
        ("Command", format!("`{}`", plain(&command_line(&evidence.command)).replace('`', "'"))),
        ("Date", format::utc(evidence.taken_unix_s)),
        ("By", format!("isochrome {}", escaped(&evidence.isochrome))),
    ];
    for (name, fact) in facts {
        writeln!(page, "- **{name}:** {fact}").expect("strings do not fail");
    }
    if evidence.sections.is_empty() {
        paragraph(&mut page, NOTHING);
    }
    for (number, section) in evidence.sections.iter().enumerate() {
        if number > 0 {
            write!(page, "\n## {}\n", escaped(&section.title)).expect("strings do not fail");
        }
        append(&mut page, section);
    }
    if !evidence.warnings.is_empty() {
        page.push_str("\n**Mind when reading**\n\n");
        list(&mut page, &evidence.warnings);
    }
    page
}

/// Appends the conclusion and the contents of `section`. Figures are left out.
pub(super) fn append(page: &mut String, section: &Section) {
    let standing = match section.standing {
        None => "",
        Some(Standing::Holds) => "**Holds.** ",
        Some(Standing::Violated) => "**Violated.** ",
        Some(Standing::NoGain) => "**No gain.** ",
        Some(Standing::Inconclusive) => "**Inconclusive.** ",
    };
    let conclusion = format!("{} {}", section.headline, section.basis);
    write!(page, "\n{standing}{}\n", escaped(conclusion.trim())).expect("strings do not fail");
    for content in &section.content {
        match content {
            Content::Heading(heading) => write!(page, "\n### {}\n", escaped(heading)).expect("strings do not fail"),
            Content::Text(text) => paragraph(page, text),
            Content::Findings(found) => {
                page.push('\n');
                list(page, found);
            }
            Content::Table(all) if all.reference => {
                page.push_str("\n<details><summary>Numbers</summary>\n");
                table(page, all);
                page.push_str("\n</details>\n");
            }
            Content::Table(shown) => table(page, shown),
            Content::Figure(_) => {}
        }
    }
}

fn paragraph(page: &mut String, text: &str) {
    write!(page, "\n{}\n", escaped(text)).expect("strings do not fail");
}

fn list(page: &mut String, items: &[String]) {
    items.iter().for_each(|item| writeln!(page, "- {}", escaped(item)).expect("strings do not fail"));
}

/// Appends `table`. A row with one cell is a heading of the rows below it.
fn table(page: &mut String, table: &Table) {
    page.push('\n');
    let mut row = |cells: &mut dyn Iterator<Item = String>| {
        page.push('|');
        cells.for_each(|cell| write!(page, " {cell} |").expect("strings do not fail"));
        page.push('\n');
    };
    let count = table.columns.len();
    row(&mut table.columns.iter().map(|column| escaped(column)));
    row(&mut (0..count).map(|column| if table.is_number(column) { "---:" } else { "---" }.to_owned()));
    for cells in &table.rows {
        match &cells[..] {
            [heading] if count > 1 => {
                let rest = std::iter::repeat_n(String::new(), count.saturating_sub(1));
                row(&mut std::iter::once(format!("**{}**", escaped(heading).trim_end())).chain(rest));
            }
            cells => row(&mut cells.iter().map(|cell| escaped(cell))),
        }
    }
}

/// Describes `machine` in one line: processor, hypervisor, CPUs, and cache levels for data with their colors.
pub(super) fn machine(machine: &Machine) -> String {
    let mut line = machine.cpu_model.clone();
    if let Some(hypervisor) = &machine.hypervisor {
        write!(line, ", a virtual machine under {hypervisor}").expect("strings do not fail");
    }
    write!(line, ", {} CPUs", machine.cpus.len()).expect("strings do not fail");
    for level in (1..).map_while(|level| machine.data_level(level)) {
        let geometry = level.geometry.value;
        write!(line, ", L{} {} in {} ways", level.level, geometry.cache_bytes(), geometry.ways)
            .expect("strings do not fail");
        if machine.page_bytes.0 > 0 && level.level > 1 {
            write!(line, " ({} colors)", geometry.color_count(machine.page_bytes)).expect("strings do not fail");
        }
    }
    line
}

/// Escapes characters that Markdown would take for markup. Text between backticks becomes code, as in the HTML report.
fn escaped(text: &str) -> String {
    let text = plain(text);
    let parts: Vec<&str> = text.split('`').collect();
    let is_code = |part: &str| !part.trim().is_empty() && !part.contains('|');
    if parts.len().is_multiple_of(2) || !parts.iter().skip(1).step_by(2).all(|part| is_code(part)) {
        return without_markup(&text);
    }
    let marked = parts.iter().enumerate().map(|(at, part)| match at % 2 {
        1 => format!("`{part}`"),
        _ if at == 0 => without_markup(part),
        _ => letters_escaped(part),
    });
    marked.collect()
}

/// Escapes all that Markdown would take for markup at the beginning of a line and within it.
fn without_markup(text: &str) -> String {
    let escaped = letters_escaped(text);
    let is_definition = escaped.starts_with('[') && escaped.contains("]:");
    if is_definition || escaped.starts_with(['#', '-', '+', '>']) { format!("\\{escaped}") } else { escaped }
}

/// Escapes letters that Markdown would take for markup within a line.
fn letters_escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    let mut before = ' ';
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        let after = letters.peek().copied().unwrap_or(' ');
        let is_markup = match letter {
            '\\' | '*' | '`' | '|' | '<' => true,
            '(' => before == ']',
            '[' => before == '!',
            // Within a word they are letters.
            '_' => !(before.is_alphanumeric() && after.is_alphanumeric()),
            '&' => after == '#' || after.is_ascii_alphabetic(),
            '~' => after == '~' || before == '~',
            _ => false,
        };
        if is_markup {
            escaped.push('\\');
        }
        escaped.push(letter);
        before = letter;
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_markdown_would_interpret_is_escaped() {
        assert_eq!(escaped("a*b | c<d> `e*` \\"), "a\\*b \\| c\\<d> `e*` \\\\");
        assert_eq!(escaped("an odd ` and `two`"), "an odd \\` and \\`two\\`");
        assert_eq!(escaped("a `b|c` ``"), "a \\`b\\|c\\` \\`\\`");
        assert_eq!(escaped("&lt;b> & a_b _c_ ![i](x)"), "\\&lt;b> & a_b \\_c\\_ !\\[i]\\(x)");
        assert_eq!(escaped("[Kim2013] (p. 3), [a](b)"), "[Kim2013] (p. 3), [a]\\(b)");
        assert_eq!(escaped("# 1"), "\\# 1");
        assert_eq!(escaped("3 - 2"), "3 - 2");
    }

    #[test]
    fn tables_have_headings_of_rows_and_numbers_to_the_right() {
        let rows = vec![vec!["L2".to_owned()], vec!["walk".to_owned(), "1.5".to_owned()]];
        let section =
            Section::new("x", "X", (None, "It is so.".to_owned(), String::new()), &()).table(&["test", "us"], rows);
        let mut page = String::new();
        append(&mut page, &section);
        assert_eq!(page, "\nIt is so.\n\n| test | us |\n| --- | ---: |\n| **L2** |  |\n| walk | 1.5 |\n");
    }
}
