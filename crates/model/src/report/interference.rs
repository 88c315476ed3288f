//! What programs cost each other: by how much each takes longer beside the others, as [Kim2013, Figure 3] shows it.

use std::fmt::Write;

use maud::{Markup, html};

use super::chart::{self, Bar};
use super::reading::Standing;
use super::{format, scroll};
use crate::evidence::Evidence;
use crate::interference::{Interference, Row, Sharing};
use crate::units::Ns;

const SHARINGS: [Sharing; 2] = [Sharing::InterCore, Sharing::IntraCore];

/// Letters of a command in a table.
const SHOWN: usize = 20;

fn place(sharing: Sharing) -> &'static str {
    match sharing {
        Sharing::InterCore => "different CPUs (inter-core)",
        Sharing::IntraCore => "one CPU by turns (intra-core)",
    }
}

/// The command of a row, or its end, which tells more than its beginning.
fn command(measured: &Interference, row: &Row) -> String {
    let command = measured.programs.get(row.condition.program).map_or("", |program| program.command.as_str());
    match command.chars().count() {
        ..=SHOWN => command.to_owned(),
        length => ['…'].into_iter().chain(command.chars().skip(length + 1 - SHOWN)).collect(),
    }
}

fn ms(time: Ns) -> f64 {
    time.0 as f64 / 1e6
}

fn percent(share: f64) -> String {
    format!("{:+.1}", 100.0 * share)
}

fn rows(measured: &Interference, sharing: Sharing) -> impl Iterator<Item = &Row> {
    measured.rows.iter().filter(move |row| row.condition.sharing == sharing)
}

fn colors(row: &Row) -> &'static str {
    if row.condition.colored { "own colors" } else { "all colors" }
}

/// What the report begins with where there is nothing else.
pub(super) fn headline(measured: &Interference) -> (Option<Standing>, String, String) {
    let basis = format!(
        "{} programs, {} conditions; each run beside the others against one where the others only spin.",
        measured.programs.len(),
        measured.rows.len()
    );
    let worst = SHARINGS.iter().filter_map(|sharing| measured.worst(*sharing));
    let worst = worst.max_by(|a, b| a.interference.total_cmp(&b.interference));
    match worst {
        _ if !measured.is_conclusive() => {
            let text = "What programs cost each other cannot be told from this run.";
            (Some(Standing::Inconclusive(String::new())), text.to_owned(), basis)
        }
        None => (Some(Standing::NoGain), "No program was seen to cost another one time.".to_owned(), basis),
        Some(row) => {
            let mut sentence = format!(
                "On {}, `{}` takes {} % longer by what the others do to caches and memory",
                place(row.condition.sharing),
                command(measured, row),
                format_args!("{:.0}", 100.0 * row.interference)
            );
            if let Some(own) = measured.other(row) {
                let _ = write!(sentence, ", {:.0} % with colors of its own", 100.0 * own.interference);
            }
            sentence.push('.');
            (Some(Standing::Holds), sentence, basis)
        }
    }
}

/// What it comes to, a sentence each.
fn findings(measured: &Interference) -> Vec<String> {
    let mut found = Vec::new();
    for sharing in SHARINGS {
        if rows(measured, sharing).next().is_none() {
            continue;
        }
        match measured.worst(sharing) {
            None => found.push(format!("{}: no program is slowed down beyond doubt", place(sharing))),
            Some(row) => {
                let mut text = format!(
                    "{}: most for `{}`, {} % of its time alone",
                    place(sharing),
                    command(measured, row),
                    percent(row.interference)
                );
                if let Some(own) = measured.other(row) {
                    let _ = write!(text, "; {} % with colors of its own", percent(own.interference));
                }
                found.push(text);
            }
        }
    }
    let mut price: Vec<String> = Vec::new();
    for row in rows(measured, Sharing::IntraCore).filter(|row| !row.condition.colored && row.alone_ns > 0.0) {
        if let Some(own) = measured.other(row).filter(|own| own.blocks_quiet > 0) {
            price.push(format!("{} {}", percent(own.alone_ns / row.alone_ns - 1.0), command(measured, row)));
        }
    }
    if !price.is_empty() {
        found.push(format!("what fewer colors cost by themselves, %: {}", price.join(", ")));
    }
    found
}

/// The experiment for the terminal.
pub fn text(measured: &Interference) -> String {
    let mut text = format!(
        "{} programs; time on a CPU from the mark to the end, in % of the run alone; {} beside it on other CPUs; turns of {} ms every {} ms\n",
        measured.programs.len(),
        measured.beside,
        ms(measured.turn_ns[0]),
        ms(measured.turn_ns[1])
    );
    for sharing in SHARINGS {
        if rows(measured, sharing).next().is_none() {
            continue;
        }
        let _ = writeln!(
            text,
            "\n{:<36} {:>9} {:>10} {:>10} {:>13} {:>8}",
            place(sharing),
            "alone ms",
            "spinning %",
            "together %",
            "interference",
            "quiet"
        );
        for row in rows(measured, sharing) {
            let _ = writeln!(
                text,
                "  {:<24} {:<9} {:>9.1} {:>10} {:>10} {:>13} {:>8}",
                command(measured, row),
                if row.condition.colored { "  colors" } else { "" },
                row.alone_ns / 1e6,
                percent(row.control),
                percent(row.together),
                format!("{}{}", percent(row.interference), if row.interferes() { "  " } else { " ?" }),
                format!("{}/{}", row.blocks_quiet, row.blocks)
            );
            for (event, [alone, control, together]) in measured.events.iter().zip(&row.counts) {
                let _ = writeln!(text, "    {event}: {alone:.0} alone, {control:.0} spinning, {together:.0} together");
            }
        }
    }
    text.push_str("\n?: the run with the others was not the longer one in 90 % of the quiet blocks\n");
    for finding in findings(measured) {
        let _ = writeln!(text, "{finding}");
    }
    for (program, number) in measured.programs.iter().zip(1..) {
        if let Some(placed) = program.placed {
            let list: Vec<u32> = program.colors.iter().map(|color| u32::from(color.0)).collect();
            let _ = writeln!(
                text,
                "program {number}, `{}`: colors {}, at least {:.0} % of its resident pages",
                program.command,
                crate::units::format_list(&list),
                100.0 * placed
            );
        }
    }
    text
}

pub(super) fn section(evidence: &Evidence) -> Markup {
    html! {
        @for measured in &evidence.interference {
            section id="interference" {
                h2 { "What programs cost each other" }
                p {
                    "Each of " (measured.programs.len()) " programs runs to its end alone, with " (measured.beside) " of the others on other CPUs, and on one CPU with the others, "
                    (ms(measured.turn_ns[0])) " of every " (ms(measured.turn_ns[1])) " ms each. The first part of a bar is what the run takes longer where the others only spin, \
                    the second what they cost through caches and memory, in % of the time alone. With a question mark, the run with the others was not the longer one in nearly all quiet blocks: \
                    nothing is claimed there."
                }
                @for sharing in SHARINGS {
                    @if rows(measured, sharing).next().is_some() {
                        h3 { "On " (place(sharing)) }
                        figure.wide { (bars(measured, sharing)) }
                    }
                }
                ul { @for finding in findings(measured) { li { (finding) } } }
                (scroll(html! {
                    table {
                        thead { tr {
                            th scope="col" { "on" } th scope="col" { "program" } th scope="col" { "in" } th.number scope="col" { "alone, ms" }
                            th.number scope="col" { "others spin, %" } th.number scope="col" { "together, %" } th.number scope="col" { "interference, %" }
                            @for event in &measured.events { th.number scope="col" { (event) ", alone, together" } }
                            th.number scope="col" { "quiet blocks" }
                        } }
                        tbody {
                            @for row in &measured.rows {
                                tr {
                                    td { (place(row.condition.sharing)) } td { code { (command(measured, row)) } } td { (colors(row)) }
                                    td.number { (format!("{:.1}", row.alone_ns / 1e6)) } td.number { (percent(row.control)) } td.number { (percent(row.together)) }
                                    td.number { (percent(row.interference)) }
                                    @for at in 0..measured.events.len() {
                                        td.number {
                                            (row.counts.get(at).map_or(format::DASH.to_owned(), |[alone, _, together]| format!("{alone:.0}, {together:.0}")))
                                        }
                                    }
                                    td.number { (row.blocks_quiet) " of " (row.blocks) }
                                }
                            }
                        }
                    }
                }))
            }
        }
    }
}

/// The figure: a bar for each program, and below it one with colors.
fn bars(measured: &Interference, sharing: Sharing) -> Markup {
    let bar = |row: &Row| Bar {
        name: if row.condition.colored { "  own colors".to_owned() } else { command(measured, row) },
        parts: [row.control, row.interference],
        class: if row.condition.colored { "partitioned" } else { "unpartitioned" },
        text: format!(
            "{} {} %{}",
            percent(row.control),
            percent(row.interference),
            if row.interferes() { "" } else { " ?" }
        ),
    };
    let bars: Vec<Bar> = rows(measured, sharing).map(bar).collect();
    chart::bars(&format!("Time longer on {}", place(sharing)), &bars)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interference::tests::modeled;

    #[test]
    fn the_table_tells_interference_apart_from_what_spinning_costs() {
        let text = text(&modeled());
        assert!(text.contains("most for `hungry --much`, +44.9 % of its time alone; +9.0 % with colors"), "{text}");
        assert!(
            text.contains("  modest") && text.contains("5/7") && text.contains("turns of 2.5 ms every 10 ms"),
            "{text}"
        );
        assert!(text.contains("`modest`: colors 2-3, at least 95 %"), "{text}");
        assert!(text.contains("refills: 1002 alone, 1052 spinning, 1502 together"), "{text}");
    }

    #[test]
    fn the_headline_names_the_worst_and_nothing_is_claimed_of_too_few_blocks() {
        let (standing, sentence, _) = headline(&modeled());
        assert!(matches!(standing, Some(Standing::Holds)) && sentence.contains("45 % longer"), "{sentence}");
        let mut few = modeled();
        few.rows[0].blocks_quiet = 1;
        assert!(matches!(headline(&few).0, Some(Standing::Inconclusive(_))));
    }

    #[test]
    fn of_a_long_command_the_end_is_shown() {
        let mut measured = modeled();
        measured.programs[0].command = "/usr/local/bin/program --with many arguments".to_owned();
        assert_eq!(command(&measured, &measured.rows[0]), "…with many arguments");
        assert_eq!(command(&measured, &measured.rows[0]).chars().count(), SHOWN);
    }

    #[test]
    fn both_figures_have_a_bar_for_each_program_with_and_without_colors() {
        for sharing in SHARINGS {
            let svg = bars(&modeled(), sharing).into_string();
            assert_eq!(svg.matches("own colors").count(), 2, "{svg}");
            assert!(!svg.contains("NaN"), "{svg}");
        }
    }
}
