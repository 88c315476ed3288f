//! The section of a report on conflicts: the time to walk over a buffer against the conflicts of its pages, and the miss penalty that follows.

use isochrome_model::evidence::figure::{Chart, Dash, Hue, Line, Mark, range_of};
use isochrome_model::evidence::format::DASH;
use isochrome_model::evidence::{Section, Standing};
use isochrome_model::stats;
use isochrome_model::units::Bytes;

use super::{BufferWalk, Conflicts, MissPenalty, Placing};

/// Miss penalties of the three machines of \[Hanemaaijer1993\], in ns per line and in cycles: a 486 at 40 MHz, the same with one wait state
/// less, and a 486 at 33 MHz.
const PAPER: [(f64, f64); 3] = [(980.0, 40.0), (780.0, 31.0), (1004.0, 30.0)];

const PLACINGS: [(Placing, &str); 3] =
    [(Placing::Balanced, "balanced"), (Placing::Random, "random"), (Placing::Conflicting, "conflicting")];

/// A kind of walk: its name, its time in ns, and the style of its line.
type Walk = (&'static str, fn(&BufferWalk) -> f64, Hue, Dash);

const WALKS: [Walk; 2] = [
    ("in order", |walk| walk.linear_ns, Hue::Partitioned, Dash::Solid),
    ("at random", |walk| walk.random_ns, Hue::Unpartitioned, Dash::Dashed),
];

fn cost(penalty: &MissPenalty) -> String {
    let cycles = penalty.cycles_per_line.zip(penalty.cycles_error);
    let cycles = cycles.map_or(String::new(), |(c, e)| format!(", {c:.1} ± {e:.1} cycles"));
    format!("{:.2} ± {:.2} ns{cycles}", penalty.ns_per_line, penalty.ns_error)
}

fn headline(conflicts: &Conflicts) -> (Option<Standing>, String, String) {
    let basis = format!("{} buffers of {} pages, {} rounds.", conflicts.walks.len(), conflicts.pages, conflicts.rounds);
    match conflicts.random() {
        Some(penalty) if conflicts.is_conclusive() => {
            let sentence = format!("A line of a page that competes costs {} on a walk at random.", cost(&penalty));
            (Some(Standing::Holds), sentence, basis)
        }
        _ => {
            let text = "The cost of a conflict cannot be concluded from this run.";
            (Some(Standing::Inconclusive), text.to_owned(), basis)
        }
    }
}

fn chart(conflicts: &Conflicts) -> Chart {
    let (_, most) = range_of(conflicts.walks.iter().map(|walk| walk.sum as f64));
    let line = |(name, ns, hue, dash): Walk| {
        let points: Vec<(f64, f64)> = conflicts.walks.iter().map(|walk| (walk.sum as f64, ns(walk) / 1e3)).collect();
        let fit = stats::Line::through(&points);
        let ends = fit.map_or(vec![], |fit| [0.0, most].map(|x| (x, fit.at(x))).to_vec());
        let marks = points.into_iter().map(|at| Mark { at, hollow: false }).collect();
        Line { marks, ..Line::new(name, hue, dash, ends) }
    };
    Chart::linear(
        "Run time against conflicts",
        "Each mark is one buffer; the lines are those of least squares.",
        ["sum, pages that compete", "µs per pass"],
        WALKS.into_iter().map(line).collect(),
    )
}

/// Returns the section of a report on the experiment.
pub fn section(conflicts: &Conflicts) -> Section {
    let rows = PLACINGS.into_iter().filter_map(|(placing, name)| {
        let of = || conflicts.walks.iter().filter(move |walk| walk.placing == placing);
        let range = |value: fn(&BufferWalk) -> f64| {
            let (low, high) = range_of(of().map(value));
            format!("{low:.0} to {high:.0}")
        };
        of().next()?;
        let ranges = [range(|w| w.sum as f64), range(|w| w.linear_ns), range(|w| w.random_ns)];
        Some([name.to_owned(), of().count().to_string()].into_iter().chain(ranges).collect())
    });
    let penalties = WALKS.into_iter().flat_map(|(name, ns, ..)| {
        [
            ("sum", conflicts.penalty(|walk| walk.sum, ns)),
            ("pages that do not fit", conflicts.penalty(|walk| walk.excess, ns)),
        ]
        .map(|(of, penalty)| {
            let cells = match penalty {
                Some(it) if it.rises => [cost(&it), format!("{:.3}", it.r_squared)],
                Some(it) => [format!("{} (inconclusive)", cost(&it)), format!("{:.3}", it.r_squared)],
                None => [DASH.to_owned(), DASH.to_owned()],
            };
            [name.to_owned(), of.to_owned()].into_iter().chain(cells).collect()
        })
    });
    let paper = PAPER.map(|(ns, cycles)| format!("{ns:.0} ns ({cycles:.0} cycles)")).join(", ");
    let shape = conflicts.shape;
    Section::new("conflicts", "What a conflict costs", headline(conflicts), &conflicts.numbers())
        .text(format!(
            "{} buffers of {} pages ({}), as many as the {} colors of {} ways of L{} hold, were placed evenly, at random, and with some \
             colors overfull. Of each buffer the shortest walk counts. sum counts the pages in colors that hold more pages than the cache has \
             ways; run time is proportional to it where the least recently used line is replaced. A cache that replaces otherwise keeps \
             some of these lines, which lowers the penalty per line of sum.",
            conflicts.walks.len(),
            conflicts.pages,
            Bytes(conflicts.pages * conflicts.page_bytes.0),
            shape.colors,
            shape.ways,
            conflicts.level
        ))
        .figure(chart(conflicts))
        .table(&["placing", "buffers", "sum", "in order, ns", "at random, ns"], rows)
        .table(&["walk", "run time over", "miss penalty per line", "r²"], penalties)
        .text(format!(
            "± is half of a 95 % confidence interval. Cycles are ticks of the constant-rate counter. [Hanemaaijer1993] has, of three 486 \
             boards with 256 KiB direct-mapped: {paper}."
        ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use isochrome_model::placement::ColorShape;
    use isochrome_report::chart::draw;

    /// Returns the text of `section` in lines so long that sentences are seldom broken.
    fn text(section: &Section) -> String {
        isochrome_report::text::section(section, 200)
    }

    fn conflicts(slope: f64) -> Conflicts {
        let walk = |placing, sum: u64| BufferWalk {
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
            counter_hz: Some(2_000_000_000),
            walks: sums.map(|sum| walk(if sum == 0 { Placing::Balanced } else { Placing::Random }, sum)).collect(),
        }
    }

    #[test]
    fn the_penalty_is_the_slope_over_the_lines_of_a_page() {
        // Each page that competes costs 640 ns and has 64 lines: 10 ns per line, or 20 ticks at 2 GHz.
        let section = section(&conflicts(640.0));
        let text = text(&section);
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains("in order sum 10.00 ± 0.0"), "{text}");
        assert!(text.contains("20.0 ± 0.") && text.contains("980 ns (40 cycles)"), "{text}");
        assert!(section.standing == Some(Standing::Holds) && !text.contains("inconclusive"));
        assert!(!draw(section.figures().next().unwrap()).0.into_string().contains("NaN"));
    }

    #[test]
    fn a_walk_in_order_whose_misses_are_hidden_leaves_the_verdict_to_the_walk_at_random() {
        let mut hidden = conflicts(640.0);
        hidden.walks.iter_mut().for_each(|walk| walk.linear_ns = 30_000.0 + (walk.excess % 5) as f64);
        let section = section(&hidden);
        assert!(
            section.standing == Some(Standing::Holds) && text(&section).contains("(inconclusive)"),
            "{}",
            text(&section)
        );
    }

    #[test]
    fn time_that_does_not_rise_with_conflicts_is_inconclusive() {
        let section = section(&conflicts(0.0));
        assert!(section.standing == Some(Standing::Inconclusive) && text(&section).contains("(inconclusive)"));
    }
}
