//! What packets cost, for the terminal and as figures.

use std::fmt::Write;

use maud::{Markup, html};

use super::chart::{Axis, Chart, Dash, Line, Look, Mark, extent};
use super::reading::Standing;
use super::{figure, format, scroll};
use crate::evidence::Evidence;
use crate::net::{BETWEEN_AT_LEAST, BYTES_STATED, Direction, Net, Path, Row, Setting};
use crate::stats::median;

fn through(path: Path) -> &'static str {
    match path {
        Path::Memory => "smoltcp, a card in memory",
        Path::Tap => "smoltcp, a TAP device and the kernel behind it",
        Path::Kernel => "the kernel's UDP, of which only the application has colors",
    }
}

fn way(direction: Direction) -> &'static str {
    match direction {
        Direction::Send => "send",
        Direction::Receive => "receive",
    }
}

fn us(ns: f64) -> String {
    format!("{:.2}", ns / 1e3)
}

/// A time, and how many cycles of the counter it is.
fn cost(net: &Net, ns: f64) -> String {
    match net.counter_hz {
        0 => us(ns),
        hz => format!("{} ({:.0})", us(ns), ns * hz as f64 / 1e9),
    }
}

/// The experiment for the terminal.
pub fn text(net: &Net) -> String {
    let mut text = format!(
        "{}; L{} flooded by {} (right) and by mere writing (naive); colors of driver, server, client, flooder: {}\n",
        through(net.path),
        net.level,
        net.pattern,
        net.colors.map(|count| count.to_string()).join(", ")
    );
    for direction in Direction::ALL {
        let rows = net.rows(direction);
        if rows.is_empty() {
            continue;
        }
        let _ = writeln!(
            text,
            "\n{:<8} {:>15} {:>15} {:>15} {:>15} {:>15} {:>8} {:>7}   driver/server/client: alone, right, partitioned",
            way(direction),
            "alone us (cyc.)",
            "naive",
            "right",
            "partitioned",
            "overhead %",
            "between",
            "quiet"
        );
        for row in &rows {
            let [naive, right, own] = row.overheads();
            let _ = writeln!(
                text,
                "{:<8} {:>15} {:>15} {:>15} {:>15} {:>15} {:>8} {:>7}   {}",
                row.bytes,
                cost(net, row.alone_ns),
                cost(net, row.naive_ns),
                cost(net, row.flooded_ns),
                cost(net, row.partitioned_ns),
                format!("{naive:.0}, {right:.0} -> {own:.0}"),
                if row.is_between() { "yes" } else { "no" },
                row.blocks_quiet,
                parts(net, direction, row)
            );
        }
        for finding in findings(net, direction) {
            let _ = writeln!(text, "  {finding}");
        }
    }
    if net.points.is_empty() {
        text.push_str("no block was quiet: nothing can be said\n");
    }
    text
}

/// Who spends it: alone, after the right flood, and partitioned.
fn parts(net: &Net, direction: Direction, row: &Row) -> String {
    let of = |setting| net.point(crate::net::Condition { direction, bytes: row.bytes, setting });
    let (Some(open), Some(own)) = (of(Setting::Flooded), of(Setting::Partitioned)) else { return String::new() };
    let shown = |ns: [f64; 3]| ns.map(us).join("/");
    [open.control_by_component_ns, open.flooded_by_component_ns, own.flooded_by_component_ns].map(shown).join(", ")
}

/// What it comes to, a sentence each.
fn findings(net: &Net, direction: Direction) -> Vec<String> {
    let mut found = Vec::new();
    if let Some(share) = net.between(direction, Row::is_between) {
        let verdict = if share >= BETWEEN_AT_LEAST { "" } else { " - missed" };
        found.push(format!(
            "partitioned lies between alone and flooded at {:.0} % of the sizes (bar {:.0} %{verdict})",
            100.0 * share,
            100.0 * BETWEEN_AT_LEAST
        ));
    }
    if let Some(share) = net.between(direction, Row::is_plainly_between) {
        found.push(format!(
            "by the plain medians, which hold what fewer colors cost and what the core's clock did from block to block, at {:.0} %",
            100.0 * share
        ));
    }
    let few = net.rows(direction).iter().filter(|row| !row.is_conclusive()).count();
    if few > 0 {
        found.push(format!("too few quiet blocks at {few} of the sizes: nothing follows from them"));
    }
    let colors: Vec<f64> = net.rows(direction).iter().map(|row| 100.0 * row.colors_alone).collect();
    if let Some(by_themselves) = median(&colors) {
        found.push(format!(
            "colors by themselves lengthen a packet by {by_themselves:.0} % (median over the sizes, not flooded)"
        ));
    }
    if let Some(row) = net.stated(direction) {
        let [naive, right, own] = row.overheads();
        let [paper, paper_own] = direction.paper();
        found.push(format!(
            "overhead at {} bytes: {right:.0} % -> {own:.0} % partitioned; the paper at {BYTES_STATED}: {paper:.0} % -> {paper_own:.0} %",
            row.bytes
        ));
        found.push(format!(
            "the naive flood brings {naive:.0} %: it {} the right one by {:.2} us",
            if row.naive_ns < row.flooded_ns { "misses" } else { "exceeds" },
            (row.flooded_ns - row.naive_ns).abs() / 1e3
        ));
    }
    found
}

/// The figures of the paper: sending (7), receiving (8), and both after the naive flood and the right one (9), of every path.
pub fn figures(nets: &[Net]) -> String {
    let measured = nets.iter().filter(|net| !net.points.is_empty());
    let drawings: Vec<(Markup, f64)> = measured.flat_map(drawings).map(|drawing| (drawing, 240.0)).collect();
    figure::file("What a packet costs after a flood", &drawings)
}

/// The figures of one path.
fn drawings(net: &Net) -> [Markup; 4] {
    let partitioned = |row: &Row| {
        [
            (row.alone_ns, "alone", "alone", Dash::Thin),
            (row.flooded_ns, "flooded", "unpartitioned", Dash::Solid),
            (row.partitioned_ns, "partitioned", "partitioned", Dash::Dotted),
        ]
    };
    let naive = |row: &Row| {
        [
            (row.alone_ns, "alone", "alone", Dash::Thin),
            (row.flooded_ns, "right flood", "unpartitioned", Dash::Solid),
            (row.naive_ns, "naive flood", "single-writer", Dash::Dashed),
        ]
    };
    [
        chart(net, Direction::Send, 7, partitioned),
        chart(net, Direction::Receive, 8, partitioned),
        chart(net, Direction::Send, 9, naive),
        chart(net, Direction::Receive, 9, naive),
    ]
}

/// What the report begins with where there is nothing else.
pub(super) fn headline(nets: &[Net]) -> (Option<Standing>, String, String) {
    let basis =
        "Each packet after a flood against one after spinning for as long; medians over quiet blocks.".to_owned();
    let stated = nets.iter().find_map(|net| Some((net, net.stated(Direction::Send)?, net.stated(Direction::Receive)?)));
    match stated {
        Some((net, send, receive)) => {
            let [_, sent, sent_own] = send.overheads();
            let [_, received, received_own] = receive.overheads();
            let sentence = format!(
                "After a flood of L{} a packet of {} bytes costs {sent:.0} % more to send and {received:.0} % more to receive, {sent_own:.0} % and {received_own:.0} % \
                 with colors for the parts of the stack.",
                net.level, send.bytes
            );
            let standing = match (net.is_conclusive(), net.holds()) {
                (false, _) => Standing::Inconclusive("a size has too few quiet blocks".to_owned()),
                (true, true) => Standing::Holds,
                (true, false) => Standing::Violated,
            };
            (Some(standing), sentence, basis)
        }
        None => {
            let text = "What packets cost after a flood cannot be told from this run.";
            (Some(Standing::Inconclusive(String::new())), text.to_owned(), basis)
        }
    }
}

pub(super) fn section(evidence: &Evidence) -> Markup {
    html! {
        @if !evidence.packets.is_empty() {
            section id="packets" {
                h2 { "What a packet costs after a flood" }
                p {
                    "Before each packet the cache is flooded, or, as the control, as much time is spent spinning; twice for one that is received. Partitioned means that driver, \
                    server, client and flooder have colors of their own. Alone is the control. [Loeser1999, Figures 7 to 9]"
                }
                @for net in &evidence.packets {
                    h3 { (through(net.path)) }
                    @if net.points.is_empty() { p { "No block was quiet." } } @else {
                        @for drawing in drawings(net) { figure.wide { (drawing) } }
                    }
                    @for direction in Direction::ALL {
                        @let rows = net.rows(direction);
                        @if !rows.is_empty() {
                            ul { @for finding in findings(net, direction) { li { (way(direction)) ": " (finding) } } }
                            (scroll(html! {
                                table {
                                    thead { tr {
                                        th.number scope="col" { (way(direction)) ", bytes" } th.number scope="col" { "alone, µs (cycles)" } th.number scope="col" { "naive flood" }
                                        th.number scope="col" { "right flood" } th.number scope="col" { "partitioned" } th scope="col" { "between" }
                                        th.number scope="col" { "quiet blocks" }
                                    } }
                                    tbody {
                                        @for row in &rows {
                                            tr {
                                                td.number { (row.bytes) } td.number { (cost(net, row.alone_ns)) } td.number { (cost(net, row.naive_ns)) }
                                                td.number { (cost(net, row.flooded_ns)) } td.number { (cost(net, row.partitioned_ns)) }
                                                td { @if row.is_between() { "yes" } @else { "no" } } td.number { (row.blocks_quiet) }
                                            }
                                        }
                                    }
                                }
                            }))
                        }
                    }
                }
            }
        }
    }
}

/// A time, the name and class of its line, and its dashes.
type Drawn = (f64, &'static str, &'static str, Dash);

fn chart(net: &Net, direction: Direction, number: u8, pick: fn(&Row) -> [Drawn; 3]) -> Markup {
    let rows = net.rows(direction);
    let picked: Vec<(f64, _)> = rows.iter().map(|row| (row.bytes as f64, pick(row))).collect();
    let (_, most) = extent(picked.iter().flat_map(|(_, lines)| lines.map(|line| line.0 / 1e3)));
    let lines = (0..3).filter_map(|at| {
        let points: Vec<(f64, f64)> = picked.iter().map(|(bytes, lines)| (*bytes, lines[at].0 / 1e3)).collect();
        let (_, name, class, dash) = picked.first()?.1[at];
        let marks = points.iter().map(|&(x, y)| Mark { x, y, hollow: false }).collect();
        Some(Line { name: name.to_owned(), look: Look { class, dash }, points, marks, band: vec![] })
    });
    let title = format!("{} ({}, as Figure {number})", way(direction), through(net.path));
    Chart {
        description:
            "Median time of a packet alone, over quiet blocks, and what becomes of it by each setting's overhead."
                .to_owned(),
        x: Axis::linear("bytes", (0.0, rows.last().map_or(1.0, |row| row.bytes as f64)), format::tick),
        y: Axis::linear_rounded(&format!("us, {title}"), (0.0, most), format::tick),
        title,
        lines: lines.collect(),
        rules: vec![],
        named_lines: true,
    }
    .svg()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::tests::measured;

    #[test]
    fn the_table_sets_the_overheads_beside_the_papers_and_says_what_was_missed() {
        let text = text(&measured());
        assert!(text.contains("at 67 % of the sizes (bar 80 % - missed)"), "{text}");
        assert!(
            text.contains("overhead at 1500 bytes: 200 % -> 50 % partitioned; the paper at 1500: 310 % -> 90 %"),
            "{text}"
        );
        assert!(text.contains("the naive flood brings 100 %: it misses the right one by 2.50 us"), "{text}");
    }

    #[test]
    fn the_headline_holds_only_where_partitioned_lies_between() {
        // 67 % of the sizes are too few.
        let (standing, sentence, _) = headline(&[measured()]);
        assert!(matches!(standing, Some(Standing::Violated)) && sentence.contains("of 1500 bytes"), "{sentence}");
        assert!(matches!(headline(&[Net { points: vec![], ..measured() }]).0, Some(Standing::Inconclusive(_))));
        let mut few = measured();
        few.points.iter_mut().for_each(|point| point.blocks_quiet = 4);
        assert!(matches!(headline(&[few.clone()]).0, Some(Standing::Inconclusive(_))));
        assert!(super::text(&few).contains("too few quiet blocks at 3 of the sizes"));
    }

    #[test]
    fn each_path_has_four_drawings_of_three_lines() {
        let svg = figures(&[measured(), Net { path: Path::Kernel, ..measured() }]);
        let document = roxmltree::Document::parse(&svg).unwrap();
        let lines = document
            .descendants()
            .filter(|node| node.attribute("class").is_some_and(|class| class.starts_with("line ")));
        assert_eq!(lines.count(), 2 * 4 * 3);
        roxmltree::Document::parse(&figures(&[])).unwrap();
        assert!(super::text(&Net { points: vec![], ..measured() }).contains("no block was quiet"));
    }
}
