//! Outcome of placing a program's pages, as one line of text: the report of `exec` and `recolor`.

use std::fmt::Write;

use isochrome_host::color::known::Verified;
use isochrome_host::coloring::placed::{Event, Placed};
use isochrome_model::units::Bytes;

/// Formats `placed` in one line, for people.
pub fn line(placed: &Placed) -> String {
    let movable = placed.tally.on_color + placed.tally.off_color;
    if placed.event == Event::End && placed.tally.sweeps == 0 && movable == 0 && placed.errors.is_empty() {
        return "ended before it was on its colors".to_owned();
    }
    let mut line = match placed.event {
        Event::DryRun => String::new(),
        _ if !placed.moved => "NOT on its colors: ".to_owned(),
        Event::OnColors => "on its colors: ".to_owned(),
        Event::End => "ended: ".to_owned(),
    };
    let _ = write!(line, "{} of {movable} movable pages ({:.1} %)", placed.tally.on_color, 100.0 * placed.share());
    let immovable: usize = placed.tally.immovable.values().sum();
    if immovable > 0 {
        let reasons: Vec<String> = placed.tally.immovable.iter().map(|(why, pages)| format!("{pages} {why}")).collect();
        let _ = write!(line, ", {immovable} cannot be moved ({})", reasons.join(", "));
    }
    if let Some(Verified { pages, on_color, .. }) = placed.verified {
        let _ = write!(line, "; verified by eviction tests: {on_color} of {pages}");
    }
    if let Some(seconds) = placed.seconds_to_colors {
        let _ = write!(line, "; {seconds:.2} s after its start");
    }
    if placed.tally.sweeps > 0 {
        let (pause, touched) = (placed.tally.pause_ns_max as f64 / 1e6, placed.tally.touched_max);
        let plural = if placed.tally.sweeps == 1 { "" } else { "s" };
        let _ = write!(line, "; longest pause {pause:.1} ms, {touched} touched, {} sweep{plural}", placed.tally.sweeps);
    }
    if placed.tally.drifted > 0 {
        let _ = write!(line, ", {} pages had drifted", placed.tally.drifted);
    }
    if let Some(expected) = placed.expected {
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
