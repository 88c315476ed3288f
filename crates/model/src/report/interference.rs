//! What programs cost each other: by how much each takes longer beside the others, as [Kim2013, Figure 3] shows it.

use std::fmt::Write;

use maud::{Markup, html};

use super::chart::{self, Bar, Change};
use super::reading::Standing;
use super::{format, scroll};
use crate::evidence::Evidence;
use crate::interference::{Divided, Interference, Row, Sharing, change};
use crate::taskset::programs::Partitioning;
use crate::units::{Ns, format_list};

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

/// What the program of a row has, in words, and the class of its hue.
fn part(row: &Row) -> (&'static str, &'static str) {
    match row.condition.partitioning {
        Partitioning::None => ("all of it", "unpartitioned"),
        Partitioning::Colors => ("own colors", "partitioned"),
        Partitioning::Ways => ("own ways", "by-ways"),
        Partitioning::Both => ("own colors and ways", "single-writer"),
    }
}

fn is_open(row: &Row) -> bool {
    row.condition.partitioning == Partitioning::None
}

/// Interval and corrected p-value of a row's interference, in brackets.
fn interval(row: &Row) -> String {
    match (row.interval, row.p) {
        (Some([low, high]), Some(p)) => {
            format!(" (95 %: {} to {} %, {})", percent(low), percent(high), format::p_value(p))
        }
        _ => String::new(),
    }
}

fn changed(counts: [f64; 3]) -> String {
    change(counts).map_or(format::DASH.to_owned(), percent)
}

/// The parts of a cache that program `number` has, in words.
fn has(divided: &Divided, number: usize) -> String {
    let what = if divided.by == Partitioning::Ways { "ways" } else { "colors" };
    let list = divided.shares.get(number).map_or_else(String::new, |share| format_list(share));
    format!("{what} {list} of {} of level {}", divided.count, divided.level)
}

/// What the report begins with where there is nothing else.
pub(super) fn headline(measured: &Interference) -> (Option<Standing>, String, String) {
    let basis = format!(
        "{}{} programs, {} conditions; each run beside the others against one where the others only spin.",
        measured.modeled.as_ref().map_or_else(String::new, |machine| format!("On the modeled {machine}: ")),
        measured.programs.len(),
        measured.rows.len()
    );
    // Chosen before anything is measured: the program that was named first.
    let first = SHARINGS.iter().find_map(|sharing| rows(measured, *sharing).find(|row| is_open(row)));
    match first {
        _ if !measured.is_conclusive() => {
            let text = "What programs cost each other cannot be told from this run.";
            (Some(Standing::Inconclusive(String::new())), text.to_owned(), basis)
        }
        None => (Some(Standing::NoGain), "Nothing was measured of programs that share everything.".to_owned(), basis),
        Some(row) if !measured.interferes(row) => {
            let sentence = format!(
                "On {}, `{}` was not seen to lose time by what the others do to caches and memory{}.",
                place(row.condition.sharing),
                command(measured, row),
                interval(row)
            );
            (Some(Standing::NoGain), sentence, basis)
        }
        Some(row) => {
            let mut sentence = format!(
                "On {}, `{}` takes {:.0} % longer by what the others do to caches and memory{}",
                place(row.condition.sharing),
                command(measured, row),
                100.0 * row.interference,
                interval(row)
            );
            for own in measured.divided_rows(row) {
                let _ = write!(sentence, ", {:.0} % with its {}", 100.0 * own.interference, part(own).0);
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
            None => found.push(format!("{}: no program is slowed down significantly", place(sharing))),
            Some(row) => {
                let mut text = format!(
                    "{}: most for `{}`, {} % of its time alone{}",
                    place(sharing),
                    command(measured, row),
                    percent(row.interference),
                    interval(row)
                );
                for own in measured.divided_rows(row) {
                    let _ = write!(text, "; {} % with its {}", percent(own.interference), part(own).0);
                }
                found.push(text);
            }
        }
    }
    for (of, less) in [(Partitioning::Colors, "colors"), (Partitioning::Ways, "ways")] {
        let mut price: Vec<String> = Vec::new();
        for row in rows(measured, Sharing::IntraCore).filter(|row| is_open(row) && row.alone_ns > 0.0) {
            let own = measured.divided_rows(row).find(|own| own.condition.partitioning == of && own.blocks_quiet > 0);
            price.extend(
                own.map(|own| format!("{} {}", percent(own.alone_ns / row.alone_ns - 1.0), command(measured, row))),
            );
        }
        if !price.is_empty() {
            found.push(format!("what fewer {less} cost by themselves, %: {}", price.join(", ")));
        }
    }
    found
}

/// The experiment for the terminal.
pub fn text(measured: &Interference) -> String {
    let mut text = measured.modeled.as_ref().map_or_else(String::new, |machine| format!("on the modeled {machine}: "));
    let _ = writeln!(
        text,
        "{} programs; time on a CPU from the mark to the end, in % of the run alone; {} beside it on other CPUs; turns of {} ms every {} ms",
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
            "\n{:<37} {:>9} {:>10} {:>10} {:>13} {:>8}",
            place(sharing),
            "alone ms",
            "spinning %",
            "together %",
            "interference",
            "blocks"
        );
        for row in rows(measured, sharing) {
            let _ = writeln!(
                text,
                "  {:<24} {:<10} {:>9.1} {:>10} {:>10} {:>13} {:>8}",
                command(measured, row),
                if is_open(row) { "" } else { part(row).0 },
                row.alone_ns / 1e6,
                percent(row.control),
                percent(row.together),
                format!("{}{}", percent(row.interference), if measured.interferes(row) { "  " } else { " ?" }),
                format!("{}/{}", row.blocks_quiet, row.blocks)
            );
            for (counted, asked) in measured.counted.iter().zip(&row.asked) {
                for (what, counts) in [("hits", asked.hits), ("misses", asked.misses)] {
                    let [alone, _, together] = counts;
                    let _ = writeln!(
                        text,
                        "    {:<22} {alone:>12.0} alone {together:>12.0} together {:>10} %",
                        format!("{} {what}", counted.level),
                        changed(counts)
                    );
                }
            }
        }
    }
    text.push_str(if measured.modeled.is_some() {
        "\n?: the run with the others was not the longer one\n"
    } else {
        "\n?: not significant (p > 0.05 by a signed-rank test of the blocks, corrected for all conditions)\n"
    });
    for finding in findings(measured) {
        let _ = writeln!(text, "{finding}");
    }
    for counted in &measured.counted {
        let names = |names: &[String]| names.join(" + ");
        let _ = writeln!(
            text,
            "{}: asked by {}, missed by {}",
            counted.level,
            names(&counted.accesses),
            names(&counted.misses)
        );
    }
    for (number, program) in measured.programs.iter().enumerate() {
        for divided in &measured.divided {
            let placed = program.placed.filter(|_| divided.by == Partitioning::Colors);
            let placed = placed
                .map_or_else(String::new, |placed| format!(", at least {:.0} % of its resident pages", 100.0 * placed));
            let _ = writeln!(text, "program {}, `{}`: {}{placed}", number + 1, program.command, has(divided, number));
        }
    }
    text
}

pub(super) fn section(evidence: &Evidence) -> Markup {
    html! {
        @for measured in &evidence.interference {
            section id="interference" {
                h2 { "What programs cost each other" }
                @if let Some(machine) = &measured.modeled { p { "On the modeled " (machine) ": nothing here was measured." } }
                p {
                    "Each of " (measured.programs.len()) " programs runs to its end alone, with " (measured.beside) " of the others on other CPUs, and on one CPU with the others, "
                    (ms(measured.turn_ns[0])) " of every " (ms(measured.turn_ns[1])) " ms each. The first part of a bar is what the run takes longer where the others only spin, \
                    the second what they cost through caches and memory, in % of the time alone. With a question mark, that is not significant: nothing is claimed there."
                }
                @for sharing in SHARINGS {
                    @if rows(measured, sharing).next().is_some() {
                        h3 { "On " (place(sharing)) }
                        figure.wide { (bars(measured, sharing)) }
                        @if rows(measured, sharing).any(|row| !row.asked.is_empty()) {
                            p {
                                "Time, and hits and misses of each level, with the others against alone, in %. A bar that fills its side stands for half as much, or more."
                            }
                            div.figures { @for row in rows(measured, sharing).filter(|row| is_open(row)) { figure { (changes(measured, row)) } } }
                        }
                    }
                }
                ul { @for finding in findings(measured) { li { (finding) } } }
                (scroll(html! {
                    table {
                        thead { tr {
                            th scope="col" { "on" } th scope="col" { "program" } th scope="col" { "in" } th.number scope="col" { "alone, ms" }
                            th.number scope="col" { "others spin, %" } th.number scope="col" { "together, %" } th.number scope="col" { "interference, %" }
                            @for counted in &measured.counted {
                                th.number scope="col" { (counted.level) " hits, %" } th.number scope="col" { (counted.level) " misses, %" }
                            }
                            th.number scope="col" { "accepted blocks" }
                        } }
                        tbody {
                            @for row in &measured.rows {
                                tr {
                                    td { (place(row.condition.sharing)) } td { code { (command(measured, row)) } } td { (part(row).0) }
                                    td.number { (format!("{:.1}", row.alone_ns / 1e6)) } td.number { (percent(row.control)) } td.number { (percent(row.together)) }
                                    td.number { (percent(row.interference)) }
                                    @for at in 0..measured.counted.len() {
                                        @let asked = row.asked.get(at);
                                        td.number { (asked.map_or(format::DASH.to_owned(), |asked| changed(asked.hits))) }
                                        td.number { (asked.map_or(format::DASH.to_owned(), |asked| changed(asked.misses))) }
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

/// Of one program: how time, hits and misses change by the others, and below each the same with parts of its own.
fn changes(measured: &Interference, row: &Row) -> Markup {
    let rows: Vec<&Row> = [row].into_iter().chain(measured.divided_rows(row)).collect();
    let mut lines = Vec::new();
    let mut add = |name: &str, of: &dyn Fn(&Row) -> Option<f64>| {
        for (at, row) in rows.iter().enumerate() {
            let name = if at == 0 { name.to_owned() } else { String::new() };
            lines.push(Change { name, share: of(row), class: part(row).1 });
        }
    };
    add("time", &|row| Some(row.together));
    for (at, counted) in measured.counted.iter().enumerate() {
        add(&format!("{} hits", counted.level), &|row| row.asked.get(at).and_then(|asked| change(asked.hits)));
        add(&format!("{} misses", counted.level), &|row| row.asked.get(at).and_then(|asked| change(asked.misses)));
    }
    let title = format!("Changes for {} on {}", command(measured, row), place(row.condition.sharing));
    html! {
        (chart::changes(&title, &lines, |share| format!("{} %", percent(share))))
        figcaption {
            code { (command(measured, row)) } ": "
            @for (at, row) in rows.iter().enumerate() { @if at > 0 { ", " } (super::swatch(&format!("solid {}", part(row).1))) " " (part(row).0) }
        }
    }
}

/// The figure: a bar for each program, and below it one for each kind of parts of its own.
fn bars(measured: &Interference, sharing: Sharing) -> Markup {
    let bar = |row: &Row| Bar {
        name: if is_open(row) { command(measured, row) } else { format!("  {}", part(row).0) },
        parts: [row.control, row.interference],
        class: part(row).1,
        text: format!(
            "{} {} %{}",
            percent(row.control),
            percent(row.interference),
            if measured.interferes(row) { "" } else { " ?" }
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
        assert!(text.contains("most for `hungry --much`, +44.8 % of its time alone (95 %: +44.7 to +44.9 %, p = 0.012); +9.0 % with its own colors; +5.0 % with its own ways"), "{text}");
        assert!(
            text.contains("  modest") && text.contains("11/12") && text.contains("turns of 2.5 ms every 10 ms"),
            "{text}"
        );
        assert!(text.contains("`modest`: colors 2-3 of 4 of level 2, at least 95 %"), "{text}");
        assert!(text.contains("`modest`: ways 0-1 of 4 of level 3\n"), "{text}");
        let line = |beginning: &str| text.lines().find(|line| line.trim_start().starts_with(beginning)).unwrap();
        assert!(line("L1 misses").ends_with("1004 alone         1502 together      +49.6 %"), "{text}");
        assert!(line("L2 misses").ends_with("0 alone            0 together          – %"), "{text}");
        assert!(text.contains("L2: asked by L1 misses, missed by L2 misses"), "{text}");
    }

    #[test]
    fn the_headline_names_the_first_program_and_nothing_is_claimed_of_too_few_blocks() {
        let (standing, sentence, _) = headline(&modeled());
        assert!(matches!(standing, Some(Standing::Holds)) && sentence.contains("45 % longer"), "{sentence}");
        let mut none = modeled();
        none.rows[0].p = Some(0.2);
        let (standing, sentence, _) = headline(&none);
        assert!(
            matches!(standing, Some(Standing::NoGain)) && sentence.contains("`hungry --much` was not seen"),
            "{sentence}"
        );
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
    fn both_figures_have_a_bar_for_each_program_with_and_without_parts_of_its_own() {
        for sharing in SHARINGS {
            let svg = bars(&modeled(), sharing).into_string();
            assert_eq!((svg.matches("own colors").count(), svg.matches("own ways").count()), (2, 2), "{svg}");
            assert!(!svg.contains("NaN"), "{svg}");
            // Time, hits and misses of two levels, three times each; of no misses alone there is no share.
            let svg = changes(&modeled(), &modeled().rows[0]).into_string();
            assert_eq!(svg.matches("<rect class=\"solid\"").count(), 3 * 4, "{svg}");
            assert!(svg.contains("L2 misses") && !svg.contains("NaN"), "{svg}");
        }
    }
}
