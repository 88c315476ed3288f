//! The data of a figure, as a table below it and as files that a reader can keep: CSV, and the drawing as SVG.

use maud::{Markup, html};

use isochrome_model::evidence::figure::{Bars, CacheMap, Changes, Chart, Figure, Tracks};
use isochrome_model::evidence::{Table, format};
use isochrome_model::printable;

use super::{figure, table};

/// Most rows that the table below a figure shows. The file has all rows.
const SHOWN: usize = 100;

/// Renders a drawing, given with its height, with `note` below it, a table to unfold, and the data to keep. `title` names the files.
pub(super) fn with_data(
    title: &str,
    (drawing, height): (Markup, f64),
    note: Markup,
    (shown, kept): (&Table, &Table),
) -> Markup {
    let name = file_name(title);
    let svg = figure::file(title, &[(drawing.clone(), height)]);
    let count = shown.rows.len();
    let (columns, rows) = (shown.columns.clone(), shown.rows.iter().take(SHOWN).cloned().collect());
    let shown = Table { columns, rows, reference: true };
    html! {
        figure {
            (drawing)
            (note)
            details.data {
                summary { "Data" }
                (table(&shown))
                @if count > SHOWN { p { "The first " (SHOWN) " of " (format::grouped(count as u64)) " rows; the file has all." } }
                p.downloads {
                    a download=(format!("{name}.csv")) href=(uri("text/csv", &csv(kept))) { "Data as CSV" } " · "
                    a download=(format!("{name}.svg")) href=(uri("image/svg+xml", &svg)) { "Figure as SVG" }
                }
            }
        }
    }
}

/// Renders `figure` with its data.
pub(super) fn with_own_data(drawn: &Figure) -> Markup {
    let title = match drawn {
        Figure::Chart(Chart { title, .. })
        | Figure::Bars(Bars { title, .. })
        | Figure::Changes(Changes { title, .. })
        | Figure::Tracks(Tracks { title, .. }) => title,
        Figure::Cache(_) => "The cache by colors and ways",
    };
    let data = of(drawn);
    with_data(title, super::chart::draw(drawn), html! {}, (&data, &data))
}

/// Returns the data of `figure`, a row for each point, bar or color.
pub(super) fn of(figure: &Figure) -> Table {
    match figure {
        Figure::Chart(chart) => of_chart(chart),
        Figure::Bars(drawn) => new(
            &["bar", "first part", "second part", "text"],
            drawn
                .bars
                .iter()
                .map(|bar| vec![bar.name.clone(), number(bar.parts[0]), number(bar.parts[1]), bar.text.clone()]),
        ),
        Figure::Changes(drawn) => new(
            &["quantity", "change, %"],
            drawn.changes.iter().map(|change| {
                vec![change.name.clone(), change.share.map_or_else(String::new, |share| number(100.0 * share))]
            }),
        ),
        Figure::Tracks(drawn) => {
            let rows = drawn.tracks.iter().flat_map(|track| {
                track.bars.iter().map(|bar| {
                    let [from, to] = bar.range.map(number);
                    vec![track.name.clone(), track.note.clone(), from, to, number(bar.pale), number(bar.solid)]
                })
            });
            new(&["track", "note", &format!("from, {}", drawn.label), "to", "pale height", "solid height"], rows)
        }
        Figure::Cache(CacheMap { colors, task, .. }) => {
            let is_own = |color: u32| task.iter().any(|own| u32::from(own.0) == color);
            let whose = |color| if is_own(color) { "task" } else { "others" }.to_owned();
            new(&["color", "of"], (0..*colors).map(|color| vec![color.to_string(), whose(color)]))
        }
    }
}

fn of_chart(chart: &Chart) -> Table {
    let rows = chart.lines.iter().flat_map(|line| {
        let band = |x: f64| line.band.iter().find(|band| band.0 == x);
        let points = line.points.iter().map(move |&(x, y)| {
            let [low, high] = band(x).map_or_else(Default::default, |band| [number(band.1), number(band.2)]);
            vec![line.name.clone(), number(x), number(y), low, high]
        });
        points.collect::<Vec<_>>()
    });
    let rules =
        chart.rules.iter().map(|(x, text)| vec![text.clone(), number(*x), String::new(), String::new(), String::new()]);
    new(&["line", &chart.x.label, &chart.y.label, "lowest", "highest"], rows.chain(rules))
}

/// Returns a table without the columns that are empty in every row.
fn new(columns: &[&str], rows: impl Iterator<Item = Vec<String>>) -> Table {
    let rows: Vec<Vec<String>> = rows.collect();
    let used: Vec<bool> = (0..columns.len()).map(|column| rows.iter().any(|row| !row[column].is_empty())).collect();
    fn kept<T>(all: impl IntoIterator<Item = T>, used: &[bool]) -> Vec<T> {
        all.into_iter().zip(used).filter(|(_, used)| **used).map(|(one, _)| one).collect()
    }
    Table {
        columns: kept(columns.iter().map(|&name| name.to_owned()), &used),
        rows: rows.into_iter().map(|row| kept(row, &used)).collect(),
        reference: true,
    }
}

/// Formats a number with all its digits; empty if it is not finite.
pub(super) fn number(number: f64) -> String {
    if number.is_finite() { number.to_string() } else { String::new() }
}

/// Formats `table` as CSV. [RFC 4180]
fn csv(table: &Table) -> String {
    let mut text = String::new();
    for row in [&table.columns].into_iter().chain(&table.rows) {
        text.push_str(&row.iter().map(|text| cell(text)).collect::<Vec<_>>().join(","));
        text.push('\n');
    }
    text
}

/// Formats a cell of a CSV file. A name that begins like a formula gets an apostrophe in front, so that no spreadsheet computes it.
fn cell(text: &str) -> String {
    let text = printable::line(text);
    let is_formula = text.starts_with(['=', '+', '-', '@']) && text.parse::<f64>().is_err();
    let text = if is_formula { format!("'{text}") } else { text };
    if text.contains([',', '"']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text }
}

/// Returns a name for a file: letters and digits of `title` and dashes, at most 60.
fn file_name(title: &str) -> String {
    let words = title.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    let name = words.collect::<Vec<_>>().join("-").to_ascii_lowercase();
    format!("isochrome-{}", name.get(..60).unwrap_or(&name))
}

/// Returns a URI that contains `text` itself. [RFC 2397]
fn uri(kind: &str, text: &str) -> String {
    let mut uri = format!("data:{kind};charset=utf-8,");
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z'
            | b'A'..=b'Z'
            | b'0'..=b'9'
            | b'-'
            | b'_'
            | b'.'
            | b'~'
            | b','
            | b';'
            | b'/'
            | b'='
            | b'('
            | b')'
            | b'*' => {
                uri.push(char::from(byte));
            }
            byte => uri.push_str(&format!("%{byte:02X}")),
        }
    }
    uri
}

#[cfg(test)]
mod tests {
    use super::*;
    use isochrome_model::evidence::figure::{Dash, Hue, Line};

    #[test]
    fn the_file_of_a_chart_has_every_point_with_its_band() {
        let band = vec![(1.0, 2.0, 4.5)];
        let line = Line { band, ..Line::new("a, \"b\"", Hue::Alone, Dash::Solid, vec![(0.0, 0.1), (1.0, 3.0)]) };
        let chart = Chart::linear("t", "d", ["x", "y, µs"], vec![line]);
        let table = of(&chart.into());
        assert_eq!(
            csv(&table),
            "line,x,\"y, µs\",lowest,highest\n\"a, \"\"b\"\"\",0,0.1,,\n\"a, \"\"b\"\"\",1,3,2,4.5\n"
        );
    }

    #[test]
    fn a_name_is_no_formula_and_a_number_stays_a_number() {
        assert_eq!(cell("=HYPERLINK(\"x\")"), "\"'=HYPERLINK(\"\"x\"\")\"");
        assert_eq!(
            [cell("-1.5"), cell("+3"), cell("@a"), cell("a\n\u{1b}b")],
            ["-1.5", "+3", "'@a", "a\u{fffd}\u{fffd}b"]
        );
    }

    #[test]
    fn what_names_a_file_has_no_path_and_no_markup() {
        assert_eq!(file_name("../Response times of <b>\"µ"), "isochrome-response-times-of-b");
        assert_eq!(file_name(&"x".repeat(300)).len(), 70);
        assert_eq!(uri("text/csv", "a b\n\"<µ"), "data:text/csv;charset=utf-8,a%20b%0A%22%3C%C2%B5");
    }
}
