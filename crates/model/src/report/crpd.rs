//! The delay a pre-emption causes through the cache, against the working set.

use std::fmt::Write;

use maud::{Markup, html};

use super::chart::{Axis, Chart, Dash, Line, Look, Mark, extent};
use super::reading::Standing;
use super::{format, scroll};
use crate::crpd::{Crpd, FALLEN, LEFT_AT_HALF, LINEAR_R_SQUARED, Point, QUIET_MIN, Walk};
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

/// What the points of a walk come to, a sentence for each bar, which it begins with.
fn findings(crpd: &Crpd, walk: Walk) -> Vec<String> {
    let reading = crpd.reading(walk);
    let verdict = |held: bool| if held { "held" } else { "missed" };
    let mut found = Vec::new();
    if let Some(line) = reading.growth {
        found.push(format!(
            "linear from 10 to 90 %: {:.2} ± {:.2} ns per line, r² {:.3}, at least {LINEAR_R_SQUARED} asked: {}",
            line.slope,
            line.slope_error,
            line.r_squared,
            verdict(line.r_squared >= LINEAR_R_SQUARED)
        ));
    }
    if let Some(left) = reading.left_beyond {
        let held = left <= FALLEN;
        let why = if held { "" } else { "; this cache keeps part of what does not fit" };
        found.push(format!(
            "falls beyond 100 %: {:.0} % of the longest delay at the largest size, at most {:.0} % asked: {}{why}",
            left * 100.0,
            FALLEN * 100.0,
            verdict(held)
        ));
    }
    if let Some(left) = reading.left_at_half {
        found.push(format!(
            "partitioned at 50 %: {:.0} % of unpartitioned, at most {:.0} % asked: {}",
            left * 100.0,
            LEFT_AT_HALF * 100.0,
            verdict(left <= LEFT_AT_HALF)
        ));
    }
    if let Some(refill) = reading.refill_ns {
        let mut text = format!("refill time of a color by the slope: {refill:.0} ns");
        if let Some([clean, dirty]) = crpd.refill_ns {
            let off = (refill - dirty).abs() / dirty;
            let why = if off > AGREEMENT { format!(": {}", apart(crpd, walk)) } else { String::new() };
            let _ = write!(
                text,
                ", by probe {clean:.0} clean, {dirty:.0} dirty: {:.0} % apart, {:.0} % are expected at most{why}",
                off * 100.0,
                AGREEMENT * 100.0
            );
        } else if crpd.modeled.is_none() {
            text.push_str("; probe gave none to compare it with");
        }
        found.push(text);
    }
    found
}

/// What all bars come to.
fn verdict(crpd: &Crpd) -> String {
    let fewest = crpd.points.iter().map(|point| point.blocks_quiet).min().unwrap_or(0);
    if crpd.modeled.is_none() && fewest < QUIET_MIN {
        format!("inconclusive: a condition has {fewest} quiet blocks, and {QUIET_MIN} are asked for")
    } else if !crpd.is_conclusive() {
        "inconclusive: the delay does not grow with the working set beyond doubt".to_owned()
    } else if crpd.holds() {
        "holds: no bar is missed".to_owned()
    } else {
        "violated: a bar is missed".to_owned()
    }
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
    let _ = writeln!(text, "{}", verdict(crpd));
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
                p { (verdict(crpd)) "." }
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
    fn the_table_shows_every_bar_by_its_name() {
        let text = text(&modeled());
        for bar in [
            "linear from 10 to 90 %: 10.00 ± 0.0",
            "r² 1.000, at least 0.95 asked: held",
            "falls beyond 100 %: 0 % of the longest delay at the largest size, at most 50 % asked: held",
            "partitioned at 50 %: 0 % of unpartitioned, at most 30 % asked: held",
        ] {
            assert_eq!(text.matches(bar).count(), 2, "of each walk: {bar}\n{text}");
        }
        assert!(text.ends_with("holds: no bar is missed\n"), "{text}");
    }

    #[test]
    fn refill_times_that_differ_by_more_than_a_quarter_are_explained_and_others_are_not() {
        let mut crpd = modeled();
        // About 512 lines at 12 ns, and probe said 12 000 dirty.
        let told = text(&crpd);
        assert!(told.contains("12000 dirty: 49 % apart, 25 % are expected at most: probe refills one color"), "{told}");
        assert!(told.contains("at most: probe's misses overlap, each of these is waited for"), "{told}");
        crpd.touches = Touches::Code;
        assert!(text(&crpd).contains("at most: probe reads data, which are fetched otherwise than code"));
        // 6144 ns by the slope: 23 and 28 % more.
        for (dirty, explained) in [(5000.0, false), (4800.0, true)] {
            crpd.refill_ns = Some([4000.0, dirty]);
            assert_eq!(text(&crpd).contains("expected at most: probe reads data"), explained, "{}", text(&crpd));
        }
    }

    #[test]
    fn a_missed_bar_and_a_missing_refill_time_are_said() {
        let mut crpd = modeled();
        assert!(matches!(headline(&crpd).0, Some(Standing::Holds)));
        crpd.refill_ns = None;
        for point in &mut crpd.points {
            match (point.condition.partitioned, point.condition.percent) {
                (true, _) => point.delay_ns = 5.0 * point.lines as f64,
                (false, 130) => point.delay_ns = 0.6 * 10.0 * 2048.0,
                (false, 80) => point.delay_ns *= 0.4,
                _ => {}
            }
        }
        let told = text(&crpd);
        assert!(told.contains("at least 0.95 asked: missed"), "{told}");
        assert!(
            told.contains("60 % of the longest delay at the largest size, at most 50 % asked: missed; this"),
            "{told}"
        );
        assert!(told.contains("partitioned at 50 %: 50 % of unpartitioned, at most 30 % asked: missed"), "{told}");
        assert!(told.contains("probe gave none to compare it with"), "{told}");
        assert!(told.ends_with("violated: a bar is missed\n"), "{told}");
        assert!(matches!(headline(&crpd).0, Some(Standing::Violated)));
        crpd.points[0].blocks_quiet = 4;
        assert!(text(&crpd).ends_with("inconclusive: a condition has 4 quiet blocks, and 5 are asked for\n"));
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
