//! The delay a pre-emption causes through the cache, against the working set.

use std::fmt::Write;

use maud::{Markup, html};

use super::chart::{Axis, Chart, Dash, Line, Look, Mark, extent};
use super::reading::Standing;
use super::{format, scroll};
use crate::crpd::{Crpd, FALLEN, LEFT_AT_HALF, LINEAR_R_SQUARED, Point, Walk};
use crate::evidence::Evidence;
use crate::miss_ratio::Touches;

const WALKS: [(Walk, &str); 2] = [(Walk::InOrder, "in order"), (Walk::Random, "at random")];
/// Refill times of two methods that differ by more are explained.
const AGREEMENT: f64 = 0.25;

/// What the report begins with where there is nothing else.
pub(super) fn headline(crpd: &Crpd) -> (Option<Standing>, String, String) {
    let basis =
        format!("{} conditions, working sets up to {} colors of L{}.", crpd.points.len(), crpd.colors[0], crpd.level);
    let reading = crpd.reading(Walk::Random);
    match reading.growth {
        Some(line) if crpd.is_conclusive() => {
            let sentence =
                format!("A pre-emption costs {:.1} ns for every line of the cache that was in use.", line.slope);
            (Some(if crpd.holds() { Standing::Holds } else { Standing::Violated }), sentence, basis)
        }
        _ => {
            let text = "What a pre-emption costs through the cache cannot be told from this run.";
            (Some(Standing::Inconclusive(String::new())), text.to_owned(), basis)
        }
    }
}

/// Unpartitioned and partitioned point at each size.
fn rows(crpd: &Crpd, walk: Walk) -> impl Iterator<Item = (&Point, Option<&Point>)> {
    crpd.points_of(walk, false).map(move |open| {
        let percent = open.condition.percent;
        (open, crpd.points_of(walk, true).find(move |own| own.condition.percent == percent))
    })
}

/// What the working set is.
fn set(crpd: &Crpd) -> &'static str {
    match crpd.touches {
        Touches::Data => "data",
        Touches::Code => "code of a jump per line",
    }
}

fn us(ns: f64) -> String {
    format!("{:.2}", ns / 1e3)
}

/// What the points of a walk come to, a sentence each.
fn findings(crpd: &Crpd, walk: Walk) -> Vec<String> {
    let reading = crpd.reading(walk);
    let mut found = Vec::new();
    if let Some(line) = reading.growth {
        let verdict = if line.r_squared >= LINEAR_R_SQUARED { "" } else { ", missed: not a line" };
        found.push(format!(
            "grows by {:.2} ± {:.2} ns per line from 10 to 90 % (r² {:.3}, at least {LINEAR_R_SQUARED} asked{verdict})",
            line.slope, line.slope_error, line.r_squared
        ));
    }
    match reading.falls {
        Some(true) => found.push("falls beyond 100 %, where little useful is left to evict".to_owned()),
        Some(false) => found.push(format!(
            "does not fall beyond 100 %, to at most {:.0} % of the longest: this cache keeps part of what does not fit",
            FALLEN * 100.0
        )),
        None => {}
    }
    if let Some(left) = reading.left_at_half {
        let verdict = if left <= LEFT_AT_HALF { "" } else { ": missed" };
        found.push(format!(
            "with colors of its own, {:.0} % of it is left at half of the partition (at most {:.0} % asked{verdict})",
            left * 100.0,
            LEFT_AT_HALF * 100.0
        ));
    }
    if let Some(refill) = reading.refill_ns {
        let mut text = format!("refill time of a color by the slope: {refill:.0} ns");
        if let Some([clean, dirty]) = crpd.refill_ns {
            let off = (refill - dirty).abs() / dirty;
            let _ = write!(text, ", by probe {clean:.0} clean, {dirty:.0} dirty");
            if off > AGREEMENT {
                let _ = write!(text, " ({:.0} % apart: {})", off * 100.0, apart(crpd, walk));
            }
        } else if crpd.modeled.is_none() {
            text.push_str("; probe gave none to compare it with");
        }
        found.push(text);
    }
    found
}

fn apart(crpd: &Crpd, walk: Walk) -> &'static str {
    match walk {
        _ if crpd.touches == Touches::Code => "probe reads data, which are fetched otherwise than code",
        Walk::InOrder => "probe refills one color at a time, which leaves the memory system less to overlap",
        Walk::Random => "probe's misses overlap, each of these is waited for",
    }
}

/// The experiment for the terminal.
pub fn text(crpd: &Crpd) -> String {
    let machine = crpd.modeled.as_ref().map_or_else(String::new, |machine| format!("on the modeled {machine}: "));
    let mut text = format!(
        "{machine}delay by one pre-emption, {}, working sets in {} of {} colors of L{} ({} ways), {} passes in an iteration; a flood less its control\n",
        set(crpd),
        crpd.colors[0],
        crpd.colors[1],
        crpd.level,
        crpd.ways,
        crpd.passes
    );
    for (walk, name) in WALKS {
        if crpd.points_of(walk, false).next().is_none() {
            continue;
        }
        let _ = writeln!(text, "\nlines {name}");
        let _ = writeln!(
            text,
            "{:>6} {:>7} {:>8} {:>20} {:>20} {:>7}",
            "size", "lines", "theory", "unpartitioned us", "partitioned us", "quiet"
        );
        let (_, most) = extent(crpd.points_of(walk, false).map(|point| point.delay_ns));
        for (open, own) in rows(crpd, walk) {
            let shown = |point: &Point| format!("{} (max {})", us(point.delay_ns), us(point.delay_ns_max.value as f64));
            let quiet = open.blocks_quiet.min(own.map_or(u64::MAX, |own| own.blocks_quiet));
            let _ = writeln!(
                text,
                "{:>4} % {:>7} {:>8} {:>20} {:>20} {:>7}",
                open.condition.percent,
                open.lines,
                us(most * crpd.theory(f64::from(open.condition.percent))),
                shown(open),
                own.map_or(format::DASH.to_owned(), shown),
                format!("{quiet}/{}", open.blocks)
            );
        }
        for finding in findings(crpd, walk) {
            let _ = writeln!(text, "  {finding}");
        }
    }
    if let Some(point) = crpd.points.first() {
        let _ = writeln!(
            text,
            "\nmax is the longest of {} delays, an observation and no bound; theory is scaled to the longest median. [Sebek2002, Figures 7, 10]",
            point.delay_ns_max.n
        );
    }
    text
}

pub(super) fn section(evidence: &Evidence) -> Markup {
    html! {
        @for crpd in &evidence.crpd {
            section id="crpd" {
                h2 { "What a pre-emption costs through the cache" }
                p {
                    "A task loops over a working set, " (set(crpd)) ", in " (crpd.colors[0]) " of " (crpd.colors[1]) " colors and is pre-empted in the middle of an iteration, by a flood of all colors \
                    (unpartitioned) or of the other colors (partitioned). Shown is by how much longer that iteration takes than the one before, less the same after mere \
                    spinning. Theory grows to 100 % and is gone one way later."
                }
                @for (walk, name) in WALKS {
                    @if crpd.points_of(walk, false).next().is_some() {
                        figure.wide { (chart(crpd, walk, name)) }
                        ul { @for finding in findings(crpd, walk) { li { (finding) } } }
                    }
                }
                (scroll(html! {
                    table {
                        thead { tr {
                            th scope="col" { "lines" } th.number scope="col" { "size" } th.number scope="col" { "unpartitioned, µs" } th.number scope="col" { "longest" }
                            th.number scope="col" { "partitioned, µs" } th.number scope="col" { "longest" }
                        } }
                        tbody {
                            @for (walk, name) in WALKS {
                                @for (open, own) in rows(crpd, walk) {
                                    tr {
                                        td { (name) }
                                        td.number { (open.condition.percent) " %" }
                                        td.number { (us(open.delay_ns)) } td.number { (us(open.delay_ns_max.value as f64)) }
                                        td.number { (own.map_or(format::DASH.to_owned(), |own| us(own.delay_ns))) }
                                        td.number { (own.map_or(format::DASH.to_owned(), |own| us(own.delay_ns_max.value as f64))) }
                                    }
                                }
                            }
                        }
                    }
                }))
            }
        }
    }
}

fn chart(crpd: &Crpd, walk: Walk, name: &str) -> Markup {
    let points = |partitioned| -> Vec<(f64, f64)> {
        crpd.points_of(walk, partitioned)
            .map(|point| (f64::from(point.condition.percent), point.delay_ns / 1e3))
            .collect()
    };
    let (open, own) = (points(false), points(true));
    let (_, most) = extent(open.iter().map(|point| point.1));
    let (low, high) = extent(open.iter().chain(&own).map(|point| point.1).chain([0.0]));
    let last = open.last().map_or(130.0, |point| point.0);
    let tent = [0.0, 100.0, 100.0 + 100.0 / f64::from(crpd.ways.max(1)), last];
    let line = |name: &str, class: &'static str, dash, points: Vec<(f64, f64)>, marks: &[(f64, f64)]| Line {
        name: name.to_owned(),
        look: Look { class, dash },
        points,
        marks: marks.iter().map(|&(x, y)| Mark { x, y, hollow: false }).collect(),
        band: vec![],
    };
    let theory =
        tent.into_iter().filter(|percent| *percent <= last).map(|percent| (percent, most * crpd.theory(percent)));
    Chart {
        title: format!("Delay of a pre-emption, {}, lines {name}", set(crpd)),
        description: "Median over quiet blocks, a flood less its control.".to_owned(),
        x: Axis::linear("working set, % of its colors", (0.0, last), format::tick),
        y: Axis::linear_rounded("µs", (low, high), format::tick),
        lines: vec![
            line("theory", "alone", Dash::Thin, theory.collect(), &[]),
            line("unpartitioned", "unpartitioned", Dash::Solid, open.clone(), &open),
            line("partitioned", "partitioned", Dash::Dotted, own.clone(), &own),
        ],
        rules: vec![],
        named_lines: true,
    }
    .svg()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crpd::tests::modeled;

    #[test]
    fn the_table_shows_the_tent_and_says_why_refill_times_differ() {
        let text = text(&modeled());
        assert!(text.contains("grows by 10.00 ± 0.0") && text.contains("falls beyond 100 %"), "{text}");
        // About 512 lines at 12 ns, and probe said 12 000 dirty.
        assert!(text.contains(" ns, by probe 6000 clean, 12000 dirty (49 % apart"), "{text}");
        assert!(text.contains("0 % of it is left"), "{text}");
    }

    #[test]
    fn a_missed_bar_and_a_missing_refill_time_are_said() {
        let mut crpd = modeled();
        assert!(matches!(headline(&crpd).0, Some(Standing::Holds)));
        crpd.refill_ns = None;
        for point in crpd.points.iter_mut().filter(|point| point.condition.partitioned) {
            point.delay_ns = 5.0 * point.lines as f64;
        }
        let text = text(&crpd);
        assert!(text.contains("50 % of it is left at half of the partition (at most 30 % asked: missed)"), "{text}");
        assert!(text.contains("probe gave none to compare it with"), "{text}");
        assert!(matches!(headline(&crpd).0, Some(Standing::Violated)));
    }

    #[test]
    fn both_walks_are_drawn() {
        let crpd = modeled();
        for (walk, name) in WALKS {
            let svg = chart(&crpd, walk, name).into_string();
            assert!(svg.contains("unpartitioned") && svg.contains(name) && !svg.contains("NaN"), "{svg}");
        }
    }
}
