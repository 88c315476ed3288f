//! Outcome of placing a program's pages, as one line of text: the report of `exec` and `recolor`.

use std::fmt::Write;

use isochrome_host::color::verified::Verified;
use isochrome_host::coloring::report::{Event, PlacementReport};
use isochrome_model::units::Bytes;

/// Formats `report` in one line, for people.
pub fn line(report: &PlacementReport) -> String {
    let movable = report.tally.on_color + report.tally.off_color;
    if report.event == Event::End && report.tally.sweeps == 0 && movable == 0 && report.errors.is_empty() {
        return "ended before it was on its colors".to_owned();
    }
    let mut line = match report.event {
        Event::DryRun => String::new(),
        _ if !report.moved => "NOT on its colors: ".to_owned(),
        Event::OnColors if !report.tally.is_placed() => "only partly on its colors: ".to_owned(),
        Event::OnColors => "on its colors: ".to_owned(),
        Event::End => "ended: ".to_owned(),
    };
    let _ = write!(line, "{} of {movable} movable pages ({:.1} %)", report.tally.on_color, 100.0 * report.share());
    let immovable: usize = report.tally.immovable.values().sum();
    if immovable > 0 {
        let reasons: Vec<String> = report.tally.immovable.iter().map(|(why, pages)| format!("{pages} {why}")).collect();
        let _ = write!(line, ", {immovable} cannot be moved ({})", reasons.join(", "));
    }
    if let Some(Verified { pages, on_color, .. }) = report.verified {
        let _ = write!(line, "; verified by eviction tests: {on_color} of {pages}");
    }
    if let Some(seconds) = report.seconds_to_colors {
        let _ = write!(line, "; {seconds:.2} s after its start");
    }
    if report.tally.sweeps > 0 {
        let (pause, touched) = (report.tally.pause_ns_max as f64 / 1e6, report.tally.touched_max);
        let plural = if report.tally.sweeps == 1 { "" } else { "s" };
        let _ = write!(line, "; longest pause {pause:.1} ms, {touched} touched, {} sweep{plural}", report.tally.sweeps);
    }
    if report.tally.drifted > 0 {
        let _ = write!(line, ", {} pages had drifted", report.tally.drifted);
    }
    let is_partly = report.event == Event::OnColors && report.moved && !report.tally.is_placed();
    if (report.tally.drifted > 0 || is_partly) && !report.movers.is_empty() {
        let _ = write!(line, "; what may move pages here: {}", report.movers.join(", "));
    }
    if let Some(expected) = report.expected {
        let _ = write!(
            line,
            "; to move: {} pages, touching about {} of memory, in about {:.1} s and {} pauses",
            expected.pages,
            Bytes(expected.touched_bytes),
            expected.seconds,
            expected.pauses
        );
    }
    line
}

#[cfg(test)]
mod tests {
    use isochrome_host::recolor::watch::Tally;

    use super::*;

    #[test]
    fn a_program_with_less_than_99_percent_on_color_is_only_partly_on_its_colors() {
        let said = |on_color| {
            let tally = Tally { sweeps: 5, resident: 100, on_color, off_color: 100 - on_color, ..Tally::default() };
            let movers = vec!["compaction".to_owned()];
            line(&PlacementReport { movers, ..PlacementReport::of(Event::OnColors, 1, &tally) })
        };
        assert!(said(99).starts_with("on its colors: 99 of 100 movable pages"), "{}", said(99));
        assert!(!said(99).contains("compaction"), "{}", said(99));
        assert!(said(55).starts_with("only partly on its colors: 55 of 100 movable pages (55.0 %)"), "{}", said(55));
        assert!(said(55).ends_with("; what may move pages here: compaction"), "{}", said(55));
    }
}
