//! The section of a report on the cache-related preemption delay against the size of the working set.

use std::fmt::Write;

use isochrome_model::evidence::figure::{Chart, Dash, Hue, Line, range_of};
use isochrome_model::evidence::format::{DASH, p_value};
use isochrome_model::evidence::{Section, Standing};
use isochrome_model::miss_ratio::Touches;
use isochrome_model::stats::BLOCKS_MIN;

use super::{Crpd, FALLEN, LEFT_AT_HALF, LINEAR_R_SQUARED, Point, Walk};
use crate::us;

/// Relative difference of the refill times of two methods above which the report explains the difference.
const AGREEMENT: f64 = 0.25;

fn headline(crpd: &Crpd) -> (Option<Standing>, String, String) {
    let machine = crpd.modeled.as_ref().map_or_else(String::new, |machine| format!("On the modeled {machine}: "));
    let basis = format!(
        "{machine}{} conditions, working sets up to {} colors of L{}.",
        crpd.points.len(),
        crpd.colors[0],
        crpd.level
    );
    let fewest = crpd.points.iter().map(|point| point.blocks_quiet).min().unwrap_or(0);
    let walk = crpd.walks().last().unwrap_or(Walk::InOrder);
    match crpd.reading(walk).growth {
        Some(line) if crpd.is_conclusive() => {
            let sentence =
                format!("A preemption costs {:.1} ns for every line of the cache that was in use.", line.slope);
            (Some(if crpd.holds() { Standing::Holds } else { Standing::Violated }), sentence, basis)
        }
        _ => {
            let why = if crpd.modeled.is_none() && fewest < BLOCKS_MIN {
                format!("a condition has {fewest} accepted blocks, and {BLOCKS_MIN} are needed")
            } else {
                "the delay does not grow significantly with the working set".to_owned()
            };
            let text = format!("The cost of a preemption through the cache cannot be concluded from this run: {why}.");
            (Some(Standing::Inconclusive), text, basis)
        }
    }
}

/// Describes the content of the working set.
fn set(crpd: &Crpd) -> String {
    match (crpd.touches, crpd.lines_per_jump) {
        (Touches::Data, _) => "data".to_owned(),
        (Touches::Code, 1) => "code of a jump per line".to_owned(),
        (Touches::Code, lines) => format!("code of a jump per {lines} lines"),
    }
}

fn walk_name(walk: Walk) -> &'static str {
    if walk == Walk::InOrder { "in order" } else { "at random" }
}

/// Returns the conclusions from the points of a walk. Each is a sentence that begins with the name of its threshold.
fn findings(crpd: &Crpd, walk: Walk) -> Vec<String> {
    let reading = crpd.reading(walk);
    let verdict = |held: bool| if held { "held" } else { "missed" };
    let mut found = Vec::new();
    if let Some(line) = reading.growth {
        let straight = verdict(line.r_squared >= LINEAR_R_SQUARED);
        found.push(format!(
            "linear from 10 to 90 %: {:.2} ± {:.2} ns per line, r² {:.3}, at least {LINEAR_R_SQUARED} required: {straight}",
            line.slope, line.slope_error, line.r_squared
        ));
    }
    if let Some(straight) = reading.straight {
        found.push(format!(
            "lack of fit from 10 to 90 %: bend of {:.0} % of the rise, {}: {}",
            straight.bend * 100.0,
            p_value(straight.p),
            verdict(straight.holds())
        ));
    }
    if let Some(left) = reading.left_beyond {
        let why = if left <= FALLEN { "" } else { "; this cache keeps part of the lines that do not fit" };
        found.push(format!(
            "falls beyond 100 %: {:.0} % of the longest delay at the largest size, at most {:.0} % allowed: {}{why}",
            left * 100.0,
            FALLEN * 100.0,
            verdict(left <= FALLEN)
        ));
    }
    if let Some(left) = reading.left_at_half {
        found.push(format!(
            "partitioned at 50 %: {:.0} % of unpartitioned, at most {:.0} % allowed: {}",
            left * 100.0,
            LEFT_AT_HALF * 100.0,
            verdict(left <= LEFT_AT_HALF)
        ));
    }
    if let Some(refill) = reading.refill_ns {
        let mut text = format!("refill time of a color by the slope: {refill:.0} ns");
        if let Some([clean, dirty]) = crpd.refill_ns {
            let off = (refill - dirty).abs() / dirty;
            let why = if off > AGREEMENT { apart(crpd, walk) } else { "" };
            let _ = write!(text, ", by probe {clean:.0} clean, {dirty:.0} dirty: {:.0} % apart{why}", off * 100.0);
        } else if crpd.modeled.is_none() {
            text.push_str("; probe measured none for comparison");
        }
        found.push(text);
    }
    found
}

fn apart(crpd: &Crpd, walk: Walk) -> &'static str {
    match walk {
        _ if crpd.touches == Touches::Code => ": probe reads data, which are fetched otherwise than code",
        Walk::InOrder => ": probe refills one color at a time, which leaves the memory system less to overlap",
        Walk::Random => ": probe's misses overlap, each of these is waited for",
    }
}

/// Draws the unpartitioned, the partitioned and the predicted delay against the size of the working set.
fn chart(crpd: &Crpd, walk: Walk) -> Chart {
    let points = |partitioned| -> Vec<(f64, f64)> {
        let of = crpd.points_of(walk, partitioned);
        of.map(|point| (f64::from(point.condition.percent), point.delay_ns / 1e3)).collect()
    };
    let (open, own) = (points(false), points(true));
    let (_, most) = range_of(open.iter().map(|point| point.1));
    let last = open.last().map_or(130.0, |point| point.0);
    let tent = [0.0, 100.0, 100.0 + 100.0 / f64::from(crpd.ways.max(1)), last].into_iter();
    let theory =
        tent.filter(|percent| *percent <= last).map(|percent| (percent, most * crpd.theory(percent))).collect();
    Chart::linear(
        &format!("Delay of a preemption, {}, lines {}", set(crpd), walk_name(walk)),
        "Median over accepted blocks, a flood less its control.",
        ["working set, % of its colors", "µs"],
        vec![
            Line::new("theory", Hue::Alone, Dash::Thin, theory),
            Line::new("unpartitioned", Hue::Unpartitioned, Dash::Solid, open).marked(),
            Line::new("partitioned", Hue::Partitioned, Dash::Dotted, own).marked(),
        ],
    )
}

/// Returns the section of a report on the experiment.
pub fn section(crpd: &Crpd) -> Section {
    let [own, all] = crpd.colors;
    let mut section = Section::new("crpd", "What a preemption costs through the cache", headline(crpd), crpd).text(format!(
        "A task loops over a working set, {}, in {own} of {all} colors of {} ways, {} passes in an iteration, and is preempted in the middle of \
         one, by a flood of all colors (unpartitioned) or of the other colors (partitioned). The figure shows by how much longer that \
         iteration takes than the one before, less the same after mere spinning. In theory the delay grows to 100 % and is gone one way \
         later; the theory is scaled to the longest median. The longest delays are observations, not bounds. [Sebek2002, Figures 7, 10]",
        set(crpd),
        crpd.ways,
        crpd.passes
    ));
    for walk in crpd.walks() {
        let (_, most) = range_of(crpd.points_of(walk, false).map(|point| point.delay_ns));
        let rows = crpd.points_of(walk, false).map(|open| {
            let percent = open.condition.percent;
            let own = crpd.points_of(walk, true).find(|own| own.condition.percent == percent);
            let shown = |point: &Point| [us(point.delay_ns), us(point.delay_ns_max.value as f64)];
            let accepted = open.blocks_quiet.min(own.map_or(u64::MAX, |own| own.blocks_quiet));
            let theory = us(most * crpd.theory(f64::from(percent)));
            let mut row = vec![format!("{percent} %"), open.lines.to_string(), theory];
            row.extend(shown(open));
            row.extend(own.map_or_else(|| [DASH.to_owned(), DASH.to_owned()], shown));
            row.push(format!("{accepted}/{}", open.blocks));
            row
        });
        section = section
            .heading(format!("lines {}", walk_name(walk)))
            .figure(chart(crpd, walk))
            .table(
                &["size", "lines", "theory, µs", "unpartitioned", "longest", "partitioned", "longest", "blocks"],
                rows.collect::<Vec<_>>(),
            )
            .findings(findings(crpd, walk));
    }
    section
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crpd::tests::modeled;
    use isochrome_report::chart::draw;

    /// Returns the text of `section` in lines so long that sentences are seldom broken.
    fn text(section: &Section) -> String {
        isochrome_report::text::section(section, 200)
    }

    fn words(crpd: &Crpd) -> String {
        text(&section(crpd)).split_whitespace().collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn every_threshold_is_said_with_its_name() {
        let text = words(&modeled());
        for threshold in [
            "linear from 10 to 90 %: 10.00 ± 0.0",
            "r² 1.000, at least 0.95 required: held",
            "falls beyond 100 %: 0 % of the longest delay at the largest size, at most 50 % allowed: held",
            "partitioned at 50 %: 0 % of unpartitioned, at most 30 % allowed: held",
        ] {
            assert_eq!(text.matches(threshold).count(), 2, "of each walk: {threshold}\n{text}");
        }
        assert_eq!(section(&modeled()).standing, Some(Standing::Holds));
    }

    #[test]
    fn refill_times_that_differ_by_more_than_a_quarter_are_explained_and_others_are_not() {
        let mut crpd = modeled();
        // The slope gives about 512 lines at 12 ns each, and the probe measured 12 000 ns after dirty lines.
        let text = words(&crpd);
        assert!(text.contains("12000 dirty: 49 % apart: probe refills one color"), "{text}");
        assert!(text.contains("apart: probe's misses overlap, each of these is waited for"), "{text}");
        crpd.touches = Touches::Code;
        assert!(words(&crpd).contains("apart: probe reads data, which are fetched otherwise than code"));
        // The slope gives 6144 ns: 23 and 28 % more than these times after dirty lines.
        for (dirty, explained) in [(5000.0, false), (4800.0, true)] {
            crpd.refill_ns = Some([4000.0, dirty]);
            assert_eq!(words(&crpd).contains("apart: probe reads data"), explained, "{}", words(&crpd));
        }
    }

    #[test]
    fn a_missed_threshold_and_a_missing_refill_time_are_said() {
        let mut crpd = modeled();
        crpd.refill_ns = None;
        for point in &mut crpd.points {
            match (point.condition.partitioned, point.condition.percent) {
                (true, _) => point.delay_ns = 5.0 * point.lines as f64,
                (false, 130) => point.delay_ns = 0.6 * 10.0 * 2048.0,
                (false, 80) => point.delay_ns *= 0.4,
                _ => {}
            }
        }
        let text = words(&crpd);
        for missed in [
            "at least 0.95 required: missed",
            "60 % of the longest delay at the largest size, at most 50 % allowed: missed; this",
            "partitioned at 50 %: 50 % of unpartitioned, at most 30 % allowed: missed",
            "probe measured none for comparison",
        ] {
            assert!(text.contains(missed), "{missed}: {text}");
        }
        assert_eq!(section(&crpd).standing, Some(Standing::Violated));
        crpd.points[0].blocks_quiet = BLOCKS_MIN - 1;
        assert!(words(&crpd).contains("accepted blocks, and"), "{}", words(&crpd));
        assert_eq!(section(&crpd).standing, Some(Standing::Inconclusive));
    }

    #[test]
    fn both_walks_are_drawn() {
        for (figure, name) in section(&modeled()).figures().zip(["in order", "at random"]) {
            let svg = draw(figure).0.into_string();
            assert!(svg.contains("unpartitioned") && svg.contains(name) && !svg.contains("NaN"), "{svg}");
        }
    }
}
