//! The section of a report on interference: by how much longer each program takes beside the others, as in [Kim2013, Figure 3].

use std::fmt::Write;

use isochrome_model::evidence::figure::{Bar, Bars, Change, Changes, Hue};
use isochrome_model::evidence::format::{DASH, p_value};
use isochrome_model::evidence::{Section, Standing};
use isochrome_model::taskset::programs::Partitioning;
use isochrome_model::units::format_list;

use super::{Divided, Interference, Row, Sharing, change};

const SHARINGS: [Sharing; 2] = [Sharing::InterCore, Sharing::IntraCore];

/// Greatest number of characters of a command in a table.
const SHOWN: usize = 20;

fn target(sharing: Sharing) -> &'static str {
    match sharing {
        Sharing::InterCore => "different CPUs (inter-core)",
        Sharing::IntraCore => "one CPU in time slices (intra-core)",
    }
}

/// Describes on which CPUs the others run in the condition of `row`, with the length of the time slices.
fn target_of(row: &Row) -> String {
    match row.condition.slice_ns.0 {
        0 => target(row.condition.sharing).to_owned(),
        ns => format!("one CPU in time slices of {} ms", ns as f64 / 1e6),
    }
}

/// Returns the length of a row's time slices, if it has any, and its command.
fn name(measured: &Interference, row: &Row) -> String {
    let slice = row.condition.slice_ns.0;
    let slice = if slice == 0 { String::new() } else { format!("{} ms: ", slice as f64 / 1e6) };
    slice + &command(measured, row)
}

/// Returns the command of a row. A long command is cut to its end, which distinguishes programs better than its beginning.
fn command(measured: &Interference, row: &Row) -> String {
    let command = measured.programs.get(row.condition.program).map_or("", |program| program.command.as_str());
    match command.chars().count() {
        ..=SHOWN => command.to_owned(),
        length => ['…'].into_iter().chain(command.chars().skip(length + 1 - SHOWN)).collect(),
    }
}

fn percent(share: f64) -> String {
    format!("{:+.1}", 100.0 * share)
}

/// Formats the interference of a row in percent, with "at least" if co-runners ran out before the program ended.
fn interference(row: &Row) -> String {
    let least = if row.blocks_censored > 0 { "at least " } else { "" };
    format!("{least}{}", percent(row.interference))
}

fn rows(measured: &Interference, sharing: Sharing) -> impl Iterator<Item = &Row> {
    measured.rows.iter().filter(move |row| row.condition.sharing == sharing)
}

/// Returns which part of the cache the program of a row has, in words, and the hue for it.
fn part(row: &Row) -> (&'static str, Hue) {
    match row.condition.partitioning {
        Partitioning::None => ("all of it", Hue::Unpartitioned),
        Partitioning::Colors => ("own colors", Hue::Partitioned),
        Partitioning::Ways => ("own ways", Hue::ByWays),
        Partitioning::Both => ("own colors and ways", Hue::SingleWriter),
    }
}

fn is_open(row: &Row) -> bool {
    row.condition.partitioning == Partitioning::None
}

/// Formats the interval and the corrected p-value of a row's interference in parentheses; empty if one is missing.
fn interval(row: &Row) -> String {
    match (row.interval, row.p) {
        (Some([low, high]), Some(p)) => format!(" (95 %: {} to {} %, {})", percent(low), percent(high), p_value(p)),
        _ => String::new(),
    }
}

fn changed(counts: [f64; 3]) -> String {
    change(counts).map_or(DASH.to_owned(), percent)
}

/// Describes the part of a cache that program `number` has.
fn has(divided: &Divided, number: usize) -> String {
    let what = if divided.by == Partitioning::Ways { "ways" } else { "colors" };
    let list = divided.shares.get(number).map_or_else(String::new, |share| format_list(share));
    format!("{what} {list} of {} of level {}", divided.count, divided.level)
}

fn headline(measured: &Interference) -> (Option<Standing>, String, String) {
    let modeled = measured.modeled.as_ref();
    let basis = format!(
        "{}{} programs, {} conditions; each run beside the others against one where the others only spin.",
        modeled.map_or_else(String::new, |machine| format!("On the modeled {machine}, nothing here was measured: ")),
        measured.programs.len(),
        measured.rows.len()
    );
    // The headline is about the program that was named first, a choice that does not depend on the results.
    let first = SHARINGS.iter().find_map(|sharing| rows(measured, *sharing).find(|row| is_open(row)));
    let Some(row) = first.filter(|_| measured.is_conclusive()) else {
        let text = "The cost of programs for each other cannot be concluded from this run.";
        return (Some(Standing::Inconclusive), text.to_owned(), basis);
    };
    let (target, command, interval) = (target_of(row), command(measured, row), interval(row));
    if !measured.interferes(row) {
        let sentence = format!(
            "On {target}, `{command}` was not seen to lose time through the others' use of caches and memory{interval}."
        );
        return (Some(Standing::NoGain), sentence, basis);
    }
    let longer = 100.0 * row.interference;
    let least = if row.blocks_censored > 0 { "at least " } else { "" };
    let mut sentence = format!(
        "On {target}, `{command}` takes {least}{longer:.0} % longer through the others' use of caches and memory{interval}"
    );
    for own in measured.divided_rows(row) {
        let _ = write!(sentence, ", {:.0} % with its {}", 100.0 * own.interference, part(own).0);
    }
    (Some(Standing::Holds), sentence + ".", basis)
}

/// Returns the conclusions, one sentence each.
fn findings(measured: &Interference) -> Vec<String> {
    let mut found = measured.expected.clone();
    for sharing in SHARINGS.into_iter().filter(|sharing| rows(measured, *sharing).next().is_some()) {
        let Some(row) = measured.worst(sharing) else {
            found.push(format!("{}: no program is slowed down significantly", target(sharing)));
            continue;
        };
        let mut text = format!(
            "{}: most for `{}`, {} % of its time alone{}",
            target_of(row),
            command(measured, row),
            interference(row),
            interval(row)
        );
        for own in measured.divided_rows(row) {
            let _ = write!(text, "; {} % with its {}", interference(own), part(own).0);
        }
        found.push(text);
    }
    for (of, less) in [(Partitioning::Colors, "colors"), (Partitioning::Ways, "ways")] {
        let open = rows(measured, Sharing::IntraCore).filter(|row| is_open(row) && row.alone_ns > 0.0);
        let price = open.filter_map(|row| {
            let own =
                measured.divided_rows(row).find(|own| own.condition.partitioning == of && own.blocks_quiet > 0)?;
            Some(format!("{} {}", percent(own.alone_ns / row.alone_ns - 1.0), name(measured, row)))
        });
        let price: Vec<String> = price.collect();
        if !price.is_empty() {
            found.push(format!("cost of fewer {less} alone, %: {}", price.join(", ")));
        }
    }
    for counted in &measured.counted {
        found.push(format!(
            "{}: requests are {}, misses {}",
            counted.level,
            counted.accesses.join(" + "),
            counted.misses.join(" + ")
        ));
    }
    for (number, program) in measured.programs.iter().enumerate() {
        let has_share = |divided: &&Divided| divided.shares.get(number).is_some_and(|share| !share.is_empty());
        for divided in measured.divided.iter().filter(has_share) {
            let placed = program.placed.filter(|_| divided.by == Partitioning::Colors);
            let placed = placed
                .map_or_else(String::new, |placed| format!(", at least {:.0} % of its resident pages", 100.0 * placed));
            found.push(format!("program {}, `{}`: {}{placed}", number + 1, program.command, has(divided, number)));
        }
    }
    found
}

/// Draws by how much the others change the time, hits and misses of one program. Below each change follow those with parts of a cache of its
/// own.
fn changes(measured: &Interference, row: &Row) -> Changes {
    let rows: Vec<&Row> = [row].into_iter().chain(measured.divided_rows(row)).collect();
    let mut changes = Vec::new();
    let mut add = |name: String, of: &dyn Fn(&Row) -> Option<f64>| {
        let names = std::iter::once(name).chain(std::iter::repeat(String::new()));
        changes.extend(rows.iter().zip(names).map(|(row, name)| Change { name, share: of(row), hue: part(row).1 }));
    };
    add("time".to_owned(), &|row| Some(row.together));
    for (at, counted) in measured.counted.iter().enumerate() {
        add(format!("{} hits", counted.level), &|row| row.requests.get(at).and_then(|of| change(of.hits)));
        add(format!("{} misses", counted.level), &|row| row.requests.get(at).and_then(|of| change(of.misses)));
    }
    let title = format!("Changes for {} on {}, in %", command(measured, row), target_of(row));
    Changes { title, changes }
}

/// Draws a bar for each program, and below it one for each partitioning.
fn bars(measured: &Interference, sharing: Sharing) -> Bars {
    let bar = |row: &Row| Bar {
        name: if is_open(row) { name(measured, row) } else { format!("  {}", part(row).0) },
        parts: [row.control, row.interference],
        hue: part(row).1,
        text: format!("{} {} %{}", percent(row.control), interference(row), doubt(measured, row)),
    };
    Bars { title: format!("Time longer on {}", target(sharing)), bars: rows(measured, sharing).map(bar).collect() }
}

fn doubt(measured: &Interference, row: &Row) -> &'static str {
    if measured.interferes(row) { "" } else { " ?" }
}

/// Returns the section of a report on the experiment.
pub fn section(measured: &Interference) -> Section {
    let mut section = Section::new("interference", "What programs cost each other", headline(measured), measured).text(
        "Each program runs to its end alone, beside others on other CPUs, and on one CPU with the others, in time slices. The first part of a \
         bar is what the run takes longer where the others only spin, the second their cost through caches and memory, in % of the time \
         alone. With a question mark, that is not significant (p > 0.05 by a signed-rank test of the blocks, corrected for all conditions): \
         nothing is claimed there. Where co-runners had ended before the program, it is at least this much.",
    );
    let levels =
        measured.counted.iter().flat_map(|it| [format!("{} hits, %", it.level), format!("{} misses, %", it.level)]);
    let columns = ["program", "in", "alone, ms", "others spin, %", "together, %", "interference, %", "blocks"];
    let columns: Vec<String> = columns.map(str::to_owned).into_iter().chain(levels).collect();
    let columns: Vec<&str> = columns.iter().map(String::as_str).collect();
    for sharing in SHARINGS.into_iter().filter(|sharing| rows(measured, *sharing).next().is_some()) {
        let cells = rows(measured, sharing).map(|row| {
            let mut cells = vec![
                name(measured, row),
                part(row).0.to_owned(),
                format!("{:.1}", row.alone_ns / 1e6),
                percent(row.control),
                percent(row.together),
                format!("{}{}", interference(row), doubt(measured, row)),
                format!("{}/{}", row.blocks_quiet, row.blocks),
            ];
            for at in 0..measured.counted.len() {
                let requests = row.requests.get(at);
                cells.push(requests.map_or(DASH.to_owned(), |of| changed(of.hits)));
                cells.push(requests.map_or(DASH.to_owned(), |of| changed(of.misses)));
            }
            cells
        });
        let cells: Vec<_> = cells.collect();
        section =
            section.heading(format!("On {}", target(sharing))).figure(bars(measured, sharing)).table(&columns, cells);
        if rows(measured, sharing).any(|row| !row.requests.is_empty()) {
            let open = rows(measured, sharing).filter(|row| is_open(row));
            section = open.fold(section, |section, row| section.figure(changes(measured, row)));
        }
    }
    section.findings(findings(measured))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interference::tests::modeled;
    use isochrome_report::chart::draw;

    /// Returns the text of `section` in lines so long that sentences are seldom broken.
    fn text(section: &Section) -> String {
        isochrome_report::text::section(section, 200)
    }

    #[test]
    fn the_table_tells_interference_apart_from_what_spinning_costs() {
        let text = text(&section(&modeled()));
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        for expected in [
            "most for `hungry --much`, +44.8 % of its time alone (95 %: +44.7 to +44.9 %, p = 0.012); +9.0 % with its own colors; +5.0 % with its own ways",
            "Half of level 2 is read again in 1000 µs.",
            "2.5 ms: hungry --much",
            "`modest`: colors 2-3 of 4 of level 2, at least 95 %",
            "`modest`: ways 0-1 of 4 of level 3",
            "L2: requests are L1 misses, misses L2 misses",
        ] {
            assert!(words.contains(expected), "{expected}: {text}");
        }
        let row = text.lines().find(|line| line.trim_start().starts_with("hungry")).unwrap();
        // Without misses alone there is no share.
        assert!(row.contains("11/12") && row.contains("+49.6") && row.trim_end().ends_with('–'), "{row}");
    }

    #[test]
    fn the_headline_names_the_first_program_and_nothing_is_claimed_of_too_few_blocks() {
        let first = section(&modeled());
        assert!(
            first.standing == Some(Standing::Holds) && first.headline.contains("45 % longer"),
            "{}",
            first.headline
        );
        let mut none = modeled();
        none.rows[0].p = Some(0.2);
        let none = section(&none);
        assert!(none.standing == Some(Standing::NoGain) && none.headline.contains("`hungry --much` was not seen"));
        let mut few = modeled();
        few.rows[0].blocks_quiet = 1;
        assert_eq!(section(&few).standing, Some(Standing::Inconclusive));
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
            let svg = draw(&bars(&modeled(), sharing).into()).0.into_string();
            // The description, which readers of screens read, has them once more.
            let drawn = svg.split_once("</desc>").unwrap().1;
            assert_eq!((drawn.matches("own colors").count(), drawn.matches("own ways").count()), (2, 2), "{svg}");
            assert!(!svg.contains("NaN"), "{svg}");
            // Time, hits and misses of two levels, three times each, but not the second level's misses: there are none alone, hence no share.
            let svg = draw(&changes(&modeled(), &modeled().rows[0]).into()).0.into_string();
            assert_eq!(svg.matches("<rect class=\"solid\"").count(), 3 * 4, "{svg}");
            assert!(svg.contains("L2 misses") && !svg.contains("NaN"), "{svg}");
        }
    }
}
