//! The section of a report on the cost of packets.

use isochrome_model::evidence::figure::{Chart, Dash, Hue, Line};
use isochrome_model::evidence::{Section, Standing};
use isochrome_model::stats::median;

use super::{BETWEEN_AT_LEAST, BYTES_STATED, Condition, Direction, Net, Packets, Path, Row, Setting};
use crate::us;

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

/// Formats a time in µs, with the cycles of the counter in parentheses if its rate is known.
fn cost(net: &Net, ns: f64) -> String {
    match net.counter_hz {
        0 => us(ns),
        hz => format!("{} ({:.0})", us(ns), ns * hz as f64 / 1e9),
    }
}

/// Formats the times of driver, server and client: alone, after a flood by the chosen pattern, and partitioned.
fn parts(net: &Net, direction: Direction, row: &Row) -> String {
    let of = |setting| net.point(Condition { direction, bytes: row.bytes, setting });
    let (Some(open), Some(own)) = (of(Setting::Flooded), of(Setting::Partitioned)) else { return String::new() };
    let shown = |ns: [f64; 3]| ns.map(us).join("/");
    [open.control_by_component_ns, open.flooded_by_component_ns, own.flooded_by_component_ns].map(shown).join(", ")
}

/// Returns the conclusions, one sentence each.
fn findings(net: &Net, direction: Direction) -> Vec<String> {
    let mut found = Vec::new();
    if let Some(share) = net.between(direction, Row::is_between) {
        let verdict = if share >= BETWEEN_AT_LEAST { "held" } else { "missed" };
        found.push(format!(
            "partitioned lies between alone and flooded at {:.0} % of the sizes, at least {:.0} % required: {verdict}",
            100.0 * share,
            100.0 * BETWEEN_AT_LEAST
        ));
    }
    if let Some(share) = net.between(direction, Row::is_plainly_between) {
        found.push(format!(
            "by the plain medians, which include the cost of fewer colors and changes of the core's clock from block to block, at {:.0} %",
            100.0 * share
        ));
    }
    let few = net.rows(direction).iter().filter(|row| !row.is_conclusive()).count();
    if few > 0 {
        found.push(format!("too few accepted blocks at {few} of the sizes: nothing follows from them"));
    }
    let colors: Vec<f64> = net.rows(direction).iter().map(|row| 100.0 * row.colors_alone).collect();
    if let Some(by_themselves) = median(&colors) {
        found.push(format!(
            "colors by themselves lengthen a packet by {by_themselves:.0} % (median over the sizes, not flooded)"
        ));
    }
    if let Some(row) = net.stated(direction) {
        let [naive, patterned, own] = row.overheads();
        let [paper, paper_own] = direction.paper();
        found.push(format!(
            "overhead at {} bytes: {patterned:.0} %, {own:.0} % partitioned; the paper at {BYTES_STATED}: {paper:.0} % and {paper_own:.0} %",
            row.bytes
        ));
        found.push(format!(
            "the naive flood brings {naive:.0} %: it {} the flood by {} by {:.2} µs",
            if row.naive_ns < row.flooded_ns { "misses" } else { "exceeds" },
            net.pattern,
            (row.flooded_ns - row.naive_ns).abs() / 1e3
        ));
    }
    found
}

fn headline(nets: &[Net]) -> (Option<Standing>, String, String) {
    let basis =
        "Each packet after a flood against one after spinning for as long; medians over accepted blocks.".to_owned();
    let stated = nets.iter().find_map(|net| Some((net, net.stated(Direction::Send)?, net.stated(Direction::Receive)?)));
    let Some((net, send, receive)) = stated else {
        let text = "The cost of packets after a flood cannot be concluded from this run.";
        return (Some(Standing::Inconclusive), text.to_owned(), basis);
    };
    let ([_, sent, sent_own], [_, received, received_own]) = (send.overheads(), receive.overheads());
    let sentence = format!(
        "After a flood of L{} a packet of {} bytes costs {sent:.0} % more to send and {received:.0} % more to receive, {sent_own:.0} % and \
         {received_own:.0} % with colors for the parts of the stack.",
        net.level, send.bytes
    );
    // The kernel's path serves for comparison only, so nothing is required of it.
    let standing = if !nets.iter().all(Net::is_conclusive) {
        Standing::Inconclusive
    } else if nets.iter().filter(|net| net.path != Path::Kernel).all(Net::holds) {
        Standing::Holds
    } else {
        Standing::Violated
    };
    (Some(standing), sentence, basis)
}

/// Draws the times alone, after a flood by the chosen pattern, and a third line, as in figure `number` of the paper.
fn chart(net: &Net, direction: Direction, number: u8) -> Chart {
    let line = |name: &str, hue, dash, ns: fn(&Row) -> f64| {
        let points = net.rows(direction).iter().map(|row| (row.bytes as f64, ns(row) / 1e3)).collect();
        Line::new(name, hue, dash, points).marked()
    };
    let third = match number {
        9 => line("naive flood", Hue::SingleWriter, Dash::Dashed, |row| row.naive_ns),
        _ => line("partitioned", Hue::Partitioned, Dash::Dotted, |row| row.partitioned_ns),
    };
    let title = format!("{} ({}, as Figure {number})", way(direction), through(net.path));
    Chart::linear(
        &title,
        "Median time of a packet alone, over accepted blocks, and the same time with each setting's overhead.",
        ["bytes", &format!("µs, {title}")],
        vec![
            line("alone", Hue::Alone, Dash::Thin, |row| row.alone_ns),
            line("flooded", Hue::Unpartitioned, Dash::Solid, |row| row.flooded_ns),
            third,
        ],
    )
}

/// Returns the section of a report on the experiment.
pub fn section(packets: &Packets) -> Section {
    let mut section =
        Section::new("packets", "What a packet costs after a flood", headline(&packets.paths), packets).text(
            "Before each packet the cache is flooded, or, as the control, as much time is spent spinning; twice for one that is received. \
             Partitioned means that driver, server, client and flooder have colors of their own. Alone is the control; the last column has \
             driver, server and client: alone, after the flood by its pattern, partitioned. [Loeser1999, Figures 7 to 9]",
        );
    for net in &packets.paths {
        let colors = net.colors.map(|count| count.to_string()).join(", ");
        section = section.heading(through(net.path)).text(format!(
            "L{} is flooded by {} and by mere writing (naive); colors of driver, server, client, flooder: {colors}.",
            net.level, net.pattern
        ));
        for (direction, figure) in Direction::ALL.into_iter().zip([7, 8]) {
            let rows = net.rows(direction);
            if rows.is_empty() {
                section = section.text(format!("{}: no block was accepted.", way(direction)));
                continue;
            }
            let cells = rows.iter().map(|row| {
                let [naive, patterned, own] = row.overheads();
                vec![
                    row.bytes.to_string(),
                    cost(net, row.alone_ns),
                    cost(net, row.naive_ns),
                    cost(net, row.flooded_ns),
                    cost(net, row.partitioned_ns),
                    format!("{naive:.0}, {patterned:.0}, {own:.0}"),
                    if row.is_between() { "yes" } else { "no" }.to_owned(),
                    row.blocks_quiet.to_string(),
                    parts(net, direction, row),
                ]
            });
            let head = format!("{}, bytes", way(direction));
            section = section
                .figure(chart(net, direction, figure))
                .figure(chart(net, direction, 9))
                .table(
                    &[
                        &head,
                        "alone, µs (cycles)",
                        "naive",
                        "right",
                        "partitioned",
                        "overheads, %",
                        "between",
                        "blocks",
                        "by component",
                    ],
                    cells,
                )
                .findings(findings(net, direction));
        }
    }
    section
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packets::tests::measured;
    use isochrome_report::chart::draw;

    /// Returns the text of `section` in lines so long that sentences are seldom broken.
    fn text(section: &Section) -> String {
        isochrome_report::text::section(section, 200)
    }

    fn of(paths: Vec<Net>) -> Section {
        section(&Packets { paths })
    }

    #[test]
    fn the_table_sets_the_overheads_beside_the_papers_and_says_what_was_missed() {
        let text = text(&of(vec![measured()])).split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(text.contains("at 67 % of the sizes, at least 80 % required: missed"), "{text}");
        assert!(
            text.contains("overhead at 1500 bytes: 200 %, 50 % partitioned; the paper at 1500: 310 % and 90 %"),
            "{text}"
        );
        assert!(
            text.contains("the naive flood brings 100 %: it misses the flood by double-purge by 2.50 µs"),
            "{text}"
        );
    }

    #[test]
    fn the_headline_holds_only_where_partitioned_lies_between() {
        // 67 % of the sizes are too few.
        let section = of(vec![measured()]);
        assert!(section.standing == Some(Standing::Violated) && section.headline.contains("of 1500 bytes"));
        let nothing = of(vec![Net { points: vec![], ..measured() }]);
        assert!(nothing.standing == Some(Standing::Inconclusive) && text(&nothing).contains("no block was accepted"));
        let mut few = measured();
        few.points.iter_mut().for_each(|point| point.blocks_quiet = 4);
        let few = of(vec![few]);
        assert_eq!(few.standing, Some(Standing::Inconclusive));
        assert!(text(&few).contains("too few accepted blocks at 3 of the sizes"));
    }

    #[test]
    fn each_path_has_four_drawings_of_three_lines() {
        let section = of(vec![measured(), Net { path: Path::Kernel, ..measured() }]);
        let lines = |figure| draw(figure).0.into_string().matches("class=\"line ").count();
        assert_eq!(section.figures().map(lines).collect::<Vec<_>>(), [3; 8]);
    }
}
