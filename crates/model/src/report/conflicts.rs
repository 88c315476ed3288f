//! The time to walk over a buffer against the conflicts of its pages, and what a miss costs by it.

use std::fmt::Write;

use maud::{Markup, html};

use super::chart::{Axis, Chart, Dash, Line, Look, Mark, extent};
use super::reading::Standing;
use super::{format, scroll};
use crate::evidence::{Conflicts, Evidence, MissPenalty, PlacedWalk, Placing};
use crate::units::Bytes;

/// Nanoseconds per line, and cycles, of the three machines of \[Hanemaaijer1993\]: 486 at 40 MHz, the same with one wait state less,
/// 486 at 33 MHz.
const PAPER: [(f64, f64); 3] = [(980.0, 40.0), (780.0, 31.0), (1004.0, 30.0)];

const PLACINGS: [(Placing, &str); 3] =
    [(Placing::Balanced, "balanced"), (Placing::Random, "random"), (Placing::Conflicting, "conflicting")];

/// One of the two walks.
struct Walk {
    name: &'static str,
    ns: fn(&PlacedWalk) -> f64,
    /// By `sum`.
    penalty: Option<MissPenalty>,
}

fn walks(conflicts: &Conflicts, hz: Option<u64>) -> [Walk; 2] {
    let of = |name, ns: fn(&PlacedWalk) -> f64| Walk { name, ns, penalty: conflicts.penalty(|walk| walk.sum, ns, hz) };
    [of("in order", |walk| walk.linear_ns), of("at random", |walk| walk.random_ns)]
}

/// Whether run time rises with the conflicts beyond doubt, in both walks.
pub fn is_conclusive(conflicts: &Conflicts) -> bool {
    walks(conflicts, None).iter().all(|walk| walk.penalty.is_some_and(|penalty| penalty.rises))
}

fn cost(penalty: &MissPenalty) -> String {
    let cycles = penalty.cycles_per_line.zip(penalty.cycles_error);
    let cycles = cycles.map_or(String::new(), |(c, e)| format!(", {c:.1} ± {e:.1} cycles"));
    format!("{:.2} ± {:.2} ns{cycles}", penalty.ns_per_line, penalty.ns_error)
}

/// What the report begins with where there is nothing else.
pub(super) fn headline(conflicts: &Conflicts, hz: Option<u64>) -> (Option<Standing>, String, String) {
    let buffers =
        format!("{} buffers of {} pages, {} rounds.", conflicts.walks.len(), conflicts.pages, conflicts.rounds);
    match walks(conflicts, hz)[1].penalty {
        Some(penalty) if is_conclusive(conflicts) => {
            let sentence = format!("A line of a page that competes costs {} on a walk at random.", cost(&penalty));
            (Some(Standing::Holds), sentence, buffers)
        }
        _ => {
            let text = "What a conflict costs cannot be told from this run.";
            (Some(Standing::Inconclusive(String::new())), text.to_owned(), buffers)
        }
    }
}

/// The experiment in a few lines for the terminal.
pub fn text(conflicts: &Conflicts, hz: Option<u64>) -> String {
    let shape = conflicts.shape;
    let mut text = format!(
        "{} buffers of {} pages ({}) in {} colors of {} ways, level {}; shortest of {} rounds\n\n",
        conflicts.walks.len(),
        conflicts.pages,
        Bytes(conflicts.pages * conflicts.page_bytes.0),
        shape.colors,
        shape.ways,
        conflicts.level,
        conflicts.rounds
    );
    let _ = writeln!(
        text,
        "{:<12} {:>7} {:>12} {:>17} {:>17}",
        "placing", "buffers", "sum", "in order, ns", "at random, ns"
    );
    for (placing, name) in PLACINGS {
        let of = || conflicts.walks.iter().filter(move |walk| walk.placing == placing);
        let range = |value: fn(&PlacedWalk) -> f64| {
            let (low, high) = extent(of().map(value));
            format!("{low:.0} to {high:.0}")
        };
        if of().next().is_some() {
            let _ = writeln!(
                text,
                "{name:<12} {:>7} {:>12} {:>17} {:>17}",
                of().count(),
                range(|w| w.sum as f64),
                range(|w| w.linear_ns),
                range(|w| w.random_ns)
            );
        }
    }
    text.push_str("\nmiss penalty per line of a page that competes (run time regressed on sum)\n");
    for Walk { name, ns, penalty } in walks(conflicts, hz) {
        let Some(penalty) = penalty else {
            let _ = writeln!(text, "  {name:<10} not to be told: the buffers do not differ");
            continue;
        };
        let doubt = if penalty.rises { "" } else { "   INCONCLUSIVE: not above zero beyond its interval" };
        let _ = writeln!(
            text,
            "  {name:<10} {}, r² {:.3}, {} buffers{doubt}",
            cost(&penalty),
            penalty.r_squared,
            penalty.n
        );
        if let Some(excess) = conflicts.penalty(|walk| walk.excess, ns, hz) {
            let _ =
                writeln!(text, "  {:<10} by pages that do not fit: {}, r² {:.3}", "", cost(&excess), excess.r_squared);
        }
    }
    let paper: Vec<String> = PAPER.iter().map(|(ns, cycles)| format!("{ns:.0} ns ({cycles:.0} cycles)")).collect();
    let _ = writeln!(text, "  [Hanemaaijer1993], three 486 boards, 256 KiB direct-mapped: {}", paper.join(", "));
    text.push_str(
        "± is half of a 95 % confidence interval. Cycles are ticks of the constant-rate counter. sum counts every line of a color that \
         holds more\npages than ways, as under LRU; a cache that replaces otherwise keeps some of them, which lowers the penalty per line \
         of sum.\n",
    );
    text
}

pub(super) fn section(evidence: &Evidence) -> Markup {
    let hz = evidence.machine.counter_hz.map(|fact| fact.value);
    html! {
        @for conflicts in &evidence.conflicts {
            section id="conflicts" {
                h2 { "What a conflict costs" }
                p {
                    (conflicts.walks.len()) " buffers of " (conflicts.pages) " pages, as many as the L" (conflicts.level) " holds, were placed evenly, at random, and \
                    with some colors overfull. sum counts the pages in colors that hold more pages than the cache has ways; to it, run time is \
                    proportional where the least recently used line is replaced."
                }
                figure.wide { (chart(conflicts, hz)) }
                (scroll(html! {
                    table {
                        thead { tr { th scope="col" { "walk" } th.number scope="col" { "miss penalty per line" } th.number scope="col" { "r²" } } }
                        tbody {
                            @for Walk { name, penalty, .. } in walks(conflicts, hz) {
                                tr {
                                    td { (name) }
                                    @match penalty {
                                        Some(penalty) => {
                                            td.number { (cost(&penalty)) @if !penalty.rises { " (inconclusive)" } }
                                            td.number { (format!("{:.3}", penalty.r_squared)) }
                                        }
                                        None => { td.number { (format::DASH) } td.number { (format::DASH) } }
                                    }
                                }
                            }
                            @for (ns, cycles) in PAPER {
                                tr { td { "a 486 board of 1993" } td.number { (format!("{ns:.0} ns, {cycles:.0} cycles")) } td.number { (format::DASH) } }
                            }
                        }
                    }
                }))
            }
        }
    }
}

fn chart(conflicts: &Conflicts, hz: Option<u64>) -> Markup {
    let walks = walks(conflicts, hz);
    let sums = || conflicts.walks.iter().map(|walk| walk.sum as f64);
    let (_, most) = extent(sums());
    let us = |walk: &PlacedWalk, ns: fn(&PlacedWalk) -> f64| ns(walk) / 1e3;
    let (_, longest) = extent(walks.iter().flat_map(|walk| conflicts.walks.iter().map(|placed| us(placed, walk.ns))));
    let looks = [Look { class: "partitioned", dash: Dash::Solid }, Look { class: "unpartitioned", dash: Dash::Dashed }];
    let lines = walks.iter().zip(looks).map(|(Walk { name, ns, .. }, look)| {
        let points: Vec<(f64, f64)> = conflicts.walks.iter().map(|walk| (walk.sum as f64, us(walk, *ns))).collect();
        let fit = crate::stats::Line::through(&points);
        Line {
            name: (*name).to_owned(),
            look,
            points: fit.map_or(vec![], |fit| [0.0, most].map(|x| (x, fit.intercept + fit.slope * x)).to_vec()),
            marks: points.into_iter().map(|(x, y)| Mark { x, y, hollow: false }).collect(),
            band: vec![],
        }
    });
    Chart {
        title: "Run time against conflicts".to_owned(),
        description: "Each mark is one buffer; the lines are those of least squares.".to_owned(),
        x: Axis::linear_rounded("sum, pages that compete", (0.0, most), format::tick),
        y: Axis::linear_rounded("µs per pass", (0.0, longest), format::tick),
        lines: lines.collect(),
        rules: vec![],
        named_lines: true,
    }
    .svg()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::placement::ColorShape;

    fn conflicts(slope: f64) -> Conflicts {
        let walk = |placing, sum: u64| PlacedWalk {
            placing,
            sum,
            excess: sum / 2,
            linear_ns: 30_000.0 + slope * sum as f64 + (sum % 3) as f64,
            random_ns: 50_000.0 + 2.0 * slope * sum as f64 + (sum % 5) as f64,
        };
        let sums = (0..40).map(|i| 3 * i);
        Conflicts {
            level: 2,
            shape: ColorShape { colors: 16, ways: 8, page_lines: 64 },
            page_bytes: Bytes(4096),
            pages: 128,
            rounds: 50,
            walks: sums.map(|sum| walk(if sum == 0 { Placing::Balanced } else { Placing::Random }, sum)).collect(),
        }
    }

    #[test]
    fn the_penalty_is_the_slope_over_the_lines_of_a_page() {
        // 640 ns more per page that competes, 64 lines: 10 ns each, at 2 GHz 20 ticks.
        let text = text(&conflicts(640.0), Some(2_000_000_000));
        assert!(text.contains("in order   10.00 ± 0.0"), "{text}");
        assert!(text.contains("20.0 ± 0.") && text.contains("980 ns (40 cycles)"), "{text}");
        assert!(is_conclusive(&conflicts(640.0)) && !text.contains("INCONCLUSIVE"));
    }

    #[test]
    fn time_that_does_not_rise_with_conflicts_is_inconclusive() {
        assert!(!is_conclusive(&conflicts(0.0)));
        assert!(text(&conflicts(0.0), None).contains("INCONCLUSIVE"));
    }
}
