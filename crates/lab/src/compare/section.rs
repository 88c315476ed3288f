//! The section of a report on the experiment: the answer in a sentence, the windows over time, the two distributions.

use std::fmt::Write;

use isochrome_model::evidence::figure::{Axis, Chart, Dash, Hue, Line, Mark, range_of};
use isochrome_model::evidence::format::{self, DASH, p_value};
use isochrome_model::evidence::{Section, Standing};
use isochrome_model::stats::{Crossover, SIGNIFICANT};
use isochrome_model::units::format_list;

use super::{Compared, Condition, Distribution, Program, Statistic, Step, Window};

const CONDITIONS: [Condition; 3] = [Condition::AsFound, Condition::Spread, Condition::Apart];

fn percent(share: f64) -> String {
    format!("{:+.1} %", 100.0 * share)
}

/// Formats an interval in percent.
fn interval(effect: &Crossover) -> String {
    effect
        .interval
        .map_or("no interval".to_owned(), |[low, high]| format!("95 %: {} to {}", percent(low), percent(high)))
}

/// Formats a value with its unit.
fn value(measured: &Compared, value: f64) -> String {
    match measured.unit.as_str() {
        "" => format::significant(value),
        unit => format!("{}\u{a0}{unit}", format::significant(value)),
    }
}

fn hue(condition: Condition) -> Hue {
    match condition {
        Condition::AsFound => Hue::Alone,
        Condition::Spread => Hue::Unpartitioned,
        Condition::Apart => Hue::Partitioned,
    }
}

fn distribution(measured: &Compared, condition: Condition) -> Option<&Distribution> {
    measured.distributions.iter().find(|distribution| distribution.condition == condition)
}

fn typical(measured: &Compared, condition: Condition) -> Option<f64> {
    distribution(measured, condition)?.typical
}

/// Describes the colors of a program where the programs are apart.
fn colors(program: &Program, count: u32) -> String {
    format!("colors {} of {count}", format_list(&program.colors))
}

/// Returns the verb for a change of the statistic.
fn changes(measured: &Compared, share: f64) -> String {
    let size = format!("{:.1} %", 100.0 * share.abs());
    let word = match (measured.statistic, share < 0.0) {
        (Statistic::Throughput, true) => "lower",
        (Statistic::Throughput, false) => "higher",
        _ if measured.larger_is_better => {
            if share < 0.0 {
                "lower"
            } else {
                "higher"
            }
        }
        (_, true) => "shorter",
        (_, false) => "longer",
    };
    // Numbers of unknown meaning are neither short nor long.
    let word = match (measured.unit.is_empty(), word) {
        (true, "shorter") => "lower",
        (true, "longer") => "higher",
        (_, word) => word,
    };
    format!("{size} {word}")
}

/// Returns the answer of a curve.
fn headline_of_curve(measured: &Compared) -> (Option<Standing>, String, String) {
    let basis = format!(
        "Each number of colors against spread in every block, in random order; p-values corrected (Holm) for {} numbers. The \
         experiment ended because {}.",
        measured.curve.len(),
        measured.ended
    );
    let gains = |step: &&Step| {
        let gains = (step.effect.estimate > 0.0) == measured.larger_is_better;
        gains && step.effect.differs() && step.p <= SIGNIFICANT
    };
    let victim = &measured.victim.name;
    match (measured.curve.iter().filter(gains).map(|step| step.colors).min(), measured.knee) {
        (Some(first), Some(knee)) => {
            let text = format!(
                "`{victim}` gains from {first} of {} colors on, and more than {knee} bring less than {:.0} %.",
                measured.colors,
                100.0 * measured.margin
            );
            (Some(Standing::Holds), text, basis)
        }
        _ => {
            let text = format!("For `{victim}` no number of own colors was seen to be better than spread over all.");
            (Some(Standing::Inconclusive), text, basis)
        }
    }
}

/// Draws the victim against the number of its colors.
fn curve(measured: &Compared) -> Chart {
    let points: Vec<(f64, f64)> = measured.curve.iter().map(|step| (f64::from(step.colors), step.typical)).collect();
    let end = points.iter().map(|point| point.0).fold(0.0, f64::max);
    let mut apart = Line::new("apart", hue(Condition::Apart), Dash::Solid, points).marked();
    let spread = typical(measured, Condition::Spread);
    if let Some(spread) = spread {
        apart.band = measured
            .curve
            .iter()
            .filter_map(|step| {
                let [low, high] = step.effect.interval?;
                Some((f64::from(step.colors), spread * (1.0 + low), spread * (1.0 + high)))
            })
            .collect();
    }
    let spread = spread.map(|at| Line::new("spread", hue(Condition::Spread), Dash::Dashed, vec![(0.0, at), (end, at)]));
    let description = "Median of the windows with each number of colors; the band is the 95 % interval against spread.";
    Chart::linear(
        "Own colors",
        description,
        ["colors of the victim", &y_label(measured)],
        [apart].into_iter().chain(spread).collect(),
    )
}

/// Returns what the programs, started anew for each window, gain or lose against as found, in a sentence; nothing if that is not significant.
fn anew(measured: &Compared) -> String {
    let Some(effect) = measured.restarts_effect.filter(Crossover::differs) else { return String::new() };
    let (what, p) = (changes(measured, effect.estimate), p_value(effect.p));
    format!(" Started anew, it is {what} than as found ({}, {p}).", interval(&effect))
}

/// Returns whether the experiment answers its question, and the answer in a sentence.
fn headline(measured: &Compared) -> (Option<Standing>, String, String) {
    if !measured.curve.is_empty() {
        return headline_of_curve(measured);
    }
    let victim = &measured.victim.name;
    let (statistic, own) = (measured.statistic.name(), measured.victim.colors.len());
    let blocks = measured.effect.map_or(0, |effect| effect.blocks);
    let corrected = match measured.looks.len() {
        0 | 1 => String::new(),
        looks => format!(", corrected for {looks} looks"),
    };
    let basis = format!(
        "{blocks} blocks of four windows in random order, all pages moved before each window; p by all other orders that \
         could have been drawn{corrected}. The experiment ended because {}.",
        measured.ended
    );
    let Some(effect) = measured.effect else {
        let text =
            format!("No conclusion about `{victim}`: no block of windows is complete, because {}.", measured.ended);
        return (Some(Standing::Inconclusive), text, basis);
    };
    let p = measured.p.map_or(String::new(), |p| format!(", {}", p_value(p)));
    let beside = measured.neighbor.as_ref().map_or(String::new(), |neighbor| format!(" beside `{}`", neighbor.name));
    let condition =
        format!("With {own} of {} colors of its own, the {statistic} of `{victim}`{beside}", measured.colors);
    if measured.shows_effect() {
        let what = changes(measured, effect.estimate);
        let text =
            format!("{condition} is {what} than spread over all colors ({}{p}).{}", interval(&effect), anew(measured));
        let standing = if measured.is_gain() == Some(true) { Standing::Holds } else { Standing::NoGain };
        return (Some(standing), text, basis);
    }
    match effect.at_most() {
        Some(most) if measured.shows_equivalence() => {
            let most = 100.0 * most;
            let text = format!(
                "{condition} does not change by more than {most:.1} % ({}{p}).{}",
                interval(&effect),
                anew(measured)
            );
            (Some(Standing::NoGain), text, basis)
        }
        Some(most) => {
            let text = format!(
                "{condition}: no effect was seen, and one above {:.1} % is ruled out ({}{p}). Whether there is a smaller one \
                 above {:.1} % cannot be told from this run.{}",
                100.0 * most,
                interval(&effect),
                100.0 * measured.margin,
                anew(measured)
            );
            (Some(Standing::Inconclusive), text, basis)
        }
        None => {
            let text = format!("{condition}: {blocks} complete blocks are too few to tell.");
            (Some(Standing::Inconclusive), text, basis)
        }
    }
}

/// Returns what changes for the neighbor, in a sentence.
fn of_neighbor(measured: &Compared) -> Option<String> {
    let neighbor = measured.neighbor.as_ref()?;
    let name = &neighbor.name;
    let cpu = measured.neighbor_cpu_effect.map_or(String::new(), |effect| {
        format!("; the CPU time it had: {} ({})", percent(effect.estimate), interval(&effect))
    });
    Some(match measured.neighbor_effect {
        Some(effect) => format!(
            "output of the neighbor `{name}`, apart against spread: {} ({}, {}){cpu}",
            percent(effect.estimate),
            interval(&effect),
            p_value(effect.p)
        ),
        None => format!("the loss of the neighbor `{name}` was not measured (--neighbor-lines){cpu}"),
    })
}

/// Returns the conclusions besides the answer, one sentence each.
fn findings(measured: &Compared) -> Vec<String> {
    let mut found = measured.expected.clone();
    if let Some(effect) = measured.restarts_effect {
        found.push(format!(
            "started anew for each window, in random order, apart against as found: {} ({}, {}), {} pairs",
            percent(effect.estimate),
            interval(&effect),
            p_value(effect.p),
            effect.blocks
        ));
    }
    if let (Some(before), Some(apart)) = (typical(measured, Condition::AsFound), typical(measured, Condition::Apart)) {
        let mut text = format!(
            "as found, before any page was moved: {}, apart {} ({})",
            value(measured, before),
            value(measured, apart),
            percent(apart / before - 1.0)
        );
        let _ = write!(text, "; these windows came first and not in random order, so no p-value belongs to this");
        found.push(text);
    }
    if let Some(same) = measured.same {
        found.push(format!(
            "two windows of the same condition, moved as often, differ by {} ({}, {}): moving and noise alone have this effect",
            percent(same.estimate),
            interval(&same),
            p_value(same.p)
        ));
    }
    found.extend(at_most_lost(measured));
    found.extend(of_neighbor(measured));
    for (windows, what) in [(&measured.windows, ""), (&measured.restarts, "started anew, ")] {
        let excluded: Vec<&String> = windows.iter().filter_map(|window| window.excluded.as_ref()).collect();
        if let Some(last) = excluded.last() {
            found.push(format!("{what}{} windows do not count; the last: {last}", excluded.len()));
        }
    }
    for (program, at) in std::iter::once(&measured.victim).chain(&measured.neighbor).zip(0..) {
        found.extend(of_placement(measured, program, at));
    }
    if measured.placing_s > 0.0 {
        found.push(format!("a placement of all pages took {:.2} s on average", measured.placing_s));
    }
    if measured.is_gain() == Some(true) {
        let list = format_list(&measured.victim.colors);
        found.push(format!(
            "to keep it so: isochrome exec --colors {list} CMD, or isochrome recolor PID --colors {list}"
        ));
    }
    if let Some(knee) = measured.knee.filter(|_| measured.curve.iter().any(|step| step.effect.differs())) {
        found.push(format!(
            "to place it so: isochrome exec --colors auto:{knee} CMD, or isochrome recolor PID --colors auto:{knee}"
        ));
    }
    found.extend(measured.left.iter().map(|left| left.trim_end_matches('.').to_owned()));
    found
}

/// Returns the most that a program that uses half of the level could lose, given the number of times that it got the CPU, in a sentence.
fn at_most_lost(measured: &Compared) -> Option<String> {
    let refill_us = measured.refill_us?;
    let switches: Vec<f64> = counting(measured, Condition::Spread).filter_map(|window| window.switches).collect();
    let switches = isochrome_model::stats::median(&switches)?;
    Some(format!(
        "the victim got the CPU {} times a second; reading half of level {} again each time, in {} µs, would be {} of a CPU",
        format::significant(switches),
        measured.level,
        format::significant(refill_us),
        format::share(switches * refill_us / 1e6)
    ))
}

/// Describes where the pages of the program at index `at` were.
fn of_placement(measured: &Compared, program: &Program, at: usize) -> Option<String> {
    let placed: Vec<_> = measured
        .windows
        .iter()
        .filter(|window| window.excluded.is_none() && window.condition == Condition::Apart)
        .filter_map(|window| window.placed.get(at))
        .collect();
    let last = placed.last()?;
    let least = placed.iter().map(|placed| placed.on_color).fold(1.0, f64::min);
    let tested: Vec<f64> = placed.iter().filter_map(|placed| placed.verified).collect();
    let tested = match tested.iter().copied().reduce(f64::min) {
        Some(least) => format!(", {:.0} % by eviction tests of samples in {} windows", 100.0 * least, tested.len()),
        None => String::new(),
    };
    Some(format!(
        "`{}`, apart: {}, {} pages, at least {:.0} % of them on color{tested}; {} more cannot be moved",
        program.name,
        colors(program, measured.colors),
        last.pages,
        100.0 * least,
        last.immovable
    ))
}

fn counting(measured: &Compared, condition: Condition) -> impl Iterator<Item = &Window> {
    measured.windows.iter().filter(move |window| window.condition == condition && window.excluded.is_none())
}

fn y_label(measured: &Compared) -> String {
    let name = measured.statistic.name();
    if measured.unit.is_empty() { name.to_owned() } else { format!("{name}, {}", measured.unit) }
}

/// Draws the statistic of every window that counts over the time of the experiment.
fn over_time(measured: &Compared) -> Chart {
    let line = |condition: Condition| {
        let at = |window: &Window| Some(Mark { at: (window.at_s, window.value?), hollow: false });
        let marks: Vec<Mark> = counting(measured, condition).filter_map(at).collect();
        Line { marks, ..Line::new(condition.name(), hue(condition), Dash::Thin, Vec::new()) }
    };
    let lines: Vec<Line> = CONDITIONS.map(line).into_iter().filter(|line| !line.marks.is_empty()).collect();
    // Names are written at the ends of lines: a short one begins at the last mark.
    let lines: Vec<Line> = lines
        .into_iter()
        .map(|line| Line { points: line.marks.last().map(|mark| vec![mark.at, mark.at]).unwrap_or_default(), ..line })
        .collect();
    let description = "One mark for each window that counts, in the order of the experiment.";
    Chart::linear("Windows over time", description, ["time, s", &y_label(measured)], lines)
}

/// Draws the distribution of all values in each condition.
fn distributions(measured: &Compared) -> Chart {
    let line = |distribution: &Distribution| {
        let points = distribution.quantiles.iter().filter(|(share, _)| *share < 1.0);
        let points = points.map(|(share, value)| (*value, 100.0 * share)).collect();
        let dash = if distribution.condition == Condition::Apart { Dash::Solid } else { Dash::Dashed };
        Line::new(distribution.condition.name(), hue(distribution.condition), dash, points)
    };
    let lines: Vec<Line> = measured.distributions.iter().map(line).collect();
    let (low, high) = range_of(lines.iter().flat_map(|line| line.points.iter().map(|point| point.0)));
    let unit = if measured.unit.is_empty() { "value".to_owned() } else { format!("value, {}", measured.unit) };
    let x = if low > 0.0 && high / low > 20.0 {
        Axis::log(&unit, (low, high), format::tick)
    } else {
        Axis::linear_rounded(&unit, (low, high), format::tick)
    };
    Chart {
        title: "Distributions".to_owned(),
        description: "Share of the values that are at most this large, in each condition.".to_owned(),
        x,
        y: Axis::linear("at most this large, %", (0.0, 100.0), format::tick),
        lines,
        rules: Vec::new(),
    }
}

/// Returns the section of a report on the experiment.
pub fn section(measured: &Compared) -> Section {
    let mut section = Section::new("compare", "What own colors are worth to this program", headline(measured), measured)
        .text(
            "The pages of the running programs were moved between two layouts: spread, where both lie evenly on all colors, \
             and apart, where each has its own. Before every window all pages got fresh frames, so that moving costs the same in \
             both. A window counts if the placement was right before and after it, whatever was measured in it.",
        );
    if !measured.curve.is_empty() {
        let rows = measured.curve.iter().map(|step| {
            let knee = if measured.knee == Some(step.colors) { "knee" } else { "" };
            vec![
                step.colors.to_string(),
                format::significant(step.typical),
                percent(step.effect.estimate),
                interval(&step.effect),
                p_value(step.p),
                knee.to_owned(),
            ]
        });
        let head = ["colors", measured.statistic.name(), "against spread", "interval", "p (Holm)", ""];
        section = section.figure(curve(measured)).table(&head, rows);
    }
    if measured.distributions.iter().any(|distribution| distribution.windows > 0) {
        section = section.figure(over_time(measured)).figure(distributions(measured));
    }
    let number = |number: Option<f64>| number.map_or(DASH.to_owned(), format::significant);
    let rows = measured.distributions.iter().map(|distribution| {
        let quantile = |share: f64| {
            let enough = distribution.values as f64 * (1.0 - share) >= 1.0 || share <= 0.5;
            let at = distribution.quantiles.iter().find(|(of, _)| (of - share).abs() < 1e-9).map(|(_, value)| *value);
            number(at.filter(|_| enough && distribution.values > distribution.windows))
        };
        vec![
            distribution.condition.name().to_owned(),
            number(distribution.typical),
            quantile(0.5),
            quantile(0.9),
            quantile(0.99),
            quantile(0.999),
            distribution.windows.to_string(),
            distribution.values.to_string(),
        ]
    });
    let typical = format!("{} of a window", measured.statistic.name());
    section
        .table(&["pages", &typical, "50 %", "90 %", "99 %", "99.9 %", "windows", "values"], rows)
        .findings(findings(measured))
}

/// Returns all windows as CSV.
pub fn csv(measured: &Compared) -> String {
    let mut text =
        "block,condition,again,at_s,length_s,value,values,neighbor,neighbor_cpu,victim_on_color,neighbor_on_color,\
                    excluded,restarted\n"
            .to_owned();
    let number = |number: Option<f64>| number.map_or(String::new(), |number| number.to_string());
    let restarted = measured.restarts.iter().map(|window| (window, true));
    for (window, restarted) in measured.windows.iter().map(|window| (window, false)).chain(restarted) {
        let on_color = |at: usize| number(window.placed.get(at).map(|placed| placed.on_color));
        let excluded = window.excluded.as_deref().unwrap_or_default().replace(['"', '\n'], " ");
        let _ = writeln!(
            text,
            "{},{},{},{:.3},{:.3},{},{},{},{},{},{},\"{excluded}\",{restarted}",
            window.block.map_or(String::new(), |block| block.to_string()),
            window.condition.name(),
            window.again,
            window.at_s,
            window.length_s,
            number(window.value),
            window.values,
            number(window.neighbor),
            number(window.neighbor_cpu),
            on_color(0),
            on_color(1),
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use isochrome_report::chart::draw;

    use super::*;
    use crate::compare::conclude::{About, Samples, conclude};
    use crate::compare::run::{Recorded, Settings};

    /// Returns the text of `section` in lines so long that sentences are seldom broken.
    fn text(section: &Section) -> String {
        isochrome_report::text::section(section, 200)
    }

    /// Returns the result of `blocks` blocks in which windows apart take `factor` times as long, in a noise of ±1 %.
    fn compared(blocks: u64, factor: f64) -> Compared {
        let mut rng = fastrand::Rng::with_seed(7);
        let (mut samples, mut windows) = (Samples::default(), Vec::new());
        let mut add = |block: Option<u64>, condition: Condition, again: bool, number: usize| {
            let noise = 0.99 + 0.02 * rng.f64();
            let value = 100.0 * noise * if condition == Condition::Apart { factor } else { 1.0 };
            samples.add(condition, vec![value; 10], &mut rng);
            windows.push(Window {
                block,
                condition,
                again,
                own: None,
                at_s: number as f64,
                length_s: 1.0,
                value: Some(value),
                values: 10,
                neighbor: Some(5.0),
                neighbor_cpu: Some(0.5),
                switches: Some(200.0),
                placed: Vec::new(),
                excluded: None,
            });
        };
        (0..4).for_each(|number| add(None, Condition::AsFound, false, number));
        for block in 0..blocks {
            let order = crate::compare::order(&mut fastrand::Rng::with_seed(block), &[]);
            for (number, cell) in order.into_iter().enumerate() {
                add(Some(block), cell.condition, cell.again, 4 + 4 * block as usize + number);
            }
        }
        let restarts = (0..16)
            .map(|number| {
                let is_apart = number % 2 == 1;
                let condition = if is_apart { Condition::Apart } else { Condition::AsFound };
                let value = (100.0 + (number * 7 % 11) as f64 / 10.0) * if is_apart { factor } else { 1.0 };
                Window { block: Some(number / 2), condition, value: Some(value), ..windows[0].clone() }
            })
            .collect();
        let settings = Settings {
            blocks: 10,
            found: 4,
            window: std::time::Duration::from_secs(1),
            settle: std::time::Duration::ZERO,
            limit: None,
            seed: 1,
            statistic: Statistic::Median,
            margin: 0.03,
            stops_early: true,
            curve: Vec::new(),
        };
        let program = |name: &str, colors: &[u32]| Program {
            name: name.to_owned(),
            pid: 1,
            colors: colors.to_vec(),
            cpus: vec![1],
        };
        let about = About {
            victim: program("control", &[0, 1, 2, 3]),
            neighbor: Some(program("batch", &[4, 5, 6, 7])),
            level: 2,
            colors: 8,
            measure: "wakeups".to_owned(),
            unit: "µs".to_owned(),
            larger_is_better: false,
            expected: Vec::new(),
            refill_us: Some(100.0),
            placing_s: 0.1,
        };
        let ended = "all windows were measured".to_owned();
        let recorded = Recorded { windows, samples, restarts, ended, ..Recorded::default() };
        conclude(recorded, &settings, about)
    }

    #[test]
    fn a_gain_is_said_with_its_uncertainty_and_what_to_type() {
        let measured = compared(10, 0.8);
        let section = section(&measured);
        assert_eq!((section.standing, measured.is_gain()), (Some(Standing::Holds), Some(true)));
        let headline = &section.headline;
        assert!(headline.starts_with("With 4 of 8 colors of its own, the median of `control` beside `batch` is "));
        assert!(
            headline.contains(" % shorter than spread over all colors (95 %: -2") && headline.contains("p < 0.001")
        );
        assert!(
            headline.contains(" Started anew, it is ") && headline.contains(" shorter than as found"),
            "{headline}"
        );
        let text = text(&section);
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        for expected in [
            "isochrome exec --colors 0-3",
            "as found, before any page was moved: 1",
            "started anew for each window, in random order, apart against as found: -",
            "differ by ",
            "neighbor `batch`",
            "would be 2.0 % of a CPU",
        ] {
            assert!(words.contains(expected), "{expected}: {words}");
        }
        let estimates = [measured.effect, measured.restarts_effect].map(|effect| effect.unwrap().estimate);
        assert!(estimates.iter().all(|estimate| (estimate + 0.2).abs() < 0.01), "{estimates:?}");
        assert_eq!(csv(&measured).lines().count(), 1 + 44 + 16);
        for figure in section.figures() {
            let svg = draw(figure).0.into_string();
            assert!(svg.contains("apart") && !svg.contains("NaN"), "{svg}");
        }
    }

    #[test]
    fn no_effect_above_the_margin_is_an_answer_and_too_few_blocks_are_none() {
        let equal = compared(10, 1.0);
        let of_equal = section(&equal);
        assert_eq!(of_equal.standing, Some(Standing::NoGain));
        assert!(of_equal.headline.contains("does not change by more than"), "{}", of_equal.headline);
        assert!(equal.restarts_effect.is_some() && !of_equal.headline.contains("Started anew"));
        let few = section(&compared(2, 0.5));
        assert_eq!(few.standing, Some(Standing::Inconclusive));
        assert!(few.headline.contains("2 complete blocks are too few to tell"), "{}", few.headline);
        let none = section(&compared(0, 0.5));
        assert!(none.standing == Some(Standing::Inconclusive) && none.headline.starts_with("No conclusion about"));
    }

    #[test]
    fn a_loss_is_no_gain() {
        let measured = compared(10, 1.3);
        assert_eq!((section(&measured).standing, measured.is_gain()), (Some(Standing::NoGain), Some(false)));
        assert!(section(&measured).headline.contains("longer than spread"));
        // What is better than spread and worse than as found is not recommended.
        let mut against = compared(10, 0.8);
        against.restarts_effect = compared(10, 1.3).restarts_effect;
        let section = section(&against);
        assert_eq!((section.standing, against.is_gain()), (Some(Standing::NoGain), Some(false)));
        assert!(section.headline.contains("Started anew, it is 30") && !text(&section).contains("to keep it so"));
    }
}
