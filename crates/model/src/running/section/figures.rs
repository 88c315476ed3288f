//! Figures of a run: response times and misses of each task, and the activity of a CPU until a late job was complete.

use crate::evidence::figure::{Axis, Chart, Dash, Hue, Line, Track, TrackBar, Tracks, range_of};
use crate::evidence::format;
use crate::running::{Envelope, Misses, TaskOutcome, Violation};
use crate::units::Ns;

/// Returns a line through the largest values of `envelope`, with a band from the smallest to the largest values.
fn band(name: &str, envelope: &Envelope, number: fn(Ns) -> f64) -> Line {
    let middle = |index: usize| (index as f64 + 0.5) * envelope.stride as f64;
    let columns = || envelope.ranges.iter().enumerate();
    let points = columns().map(|(index, range)| (middle(index), number(range.high))).collect();
    let band = columns().map(|(index, range)| (middle(index), number(range.low), number(range.high))).collect();
    Line { band, ..Line::new(name, Hue::Partitioned, Dash::Thin, points) }
}

/// Returns a chart of the range of all response times, with bound and deadline.
pub fn responses(task: &TaskOutcome) -> Chart {
    let us = |time: Ns| time.0 as f64 / 1e3;
    let last = (task.jobs as f64).max(1.0);
    let bound = task.requirement.bound.map(|bound| us(bound.0));
    let (_, high) = range_of(task.responses.ranges.iter().map(|range| us(range.high)).chain(bound));
    // A deadline far above the other values would flatten them, so it is left to the table.
    let deadline = Some(us(task.requirement.deadline)).filter(|deadline| *deadline <= 1.5 * high);
    let level = |name, hue, dash, value: Option<f64>| {
        value.map(|value| Line::new(name, hue, dash, vec![(0.0, value), (last, value)]))
    };
    let lines = [
        Some(band("longest", &task.responses, us)),
        level("bound", Hue::Unpartitioned, Dash::Solid, bound),
        level("deadline", Hue::Ink, Dash::Dashed, deadline),
    ];
    let mut chart = Chart::linear(
        &format!("Response times of {}", task.requirement.name),
        "The band spans the shortest and the longest response of as many jobs as lie below a point.",
        ["job", &format!("µs, {}", task.requirement.name)],
        lines.into_iter().flatten().collect(),
    );
    chart.x = Axis::linear("job", (0.0, last), format::tick);
    chart
}

/// Returns a chart of the range of the misses of all jobs.
pub fn misses(task: &TaskOutcome, misses: &Misses) -> Chart {
    Chart::linear(
        &format!("Misses of {}", task.requirement.name),
        "The band spans the fewest and the most misses of as many jobs as lie below a point.",
        ["job", &format!("misses, {}", task.requirement.name)],
        vec![band("most", &misses.by_instance, |misses| misses.0 as f64)],
    )
}

/// Draws which thread had the CPU from shortly before the release of a job until its completion, with one track per program.
pub fn timeline(violation: &Violation) -> Tracks {
    let first = violation.timeline.first().map_or(violation.release, |interval| interval.from).min(violation.release);
    let us = |time: Ns| time.0.saturating_sub(first.0) as f64 / 1e3;
    let mut tracks: Vec<Track> = Vec::new();
    for interval in &violation.timeline {
        let name = if interval.what.is_empty() { "idle" } else { &interval.what };
        let bar = TrackBar { range: [us(interval.from), us(interval.to)], pale: 0.0, solid: 1.0 };
        match tracks.iter_mut().find(|track| track.name == name) {
            Some(track) => track.bars.push(bar),
            None => tracks.push(Track {
                name: name.to_owned(),
                note: String::new(),
                hue: if *name == violation.task { Hue::Partitioned } else { Hue::Unpartitioned },
                bars: vec![bar],
            }),
        }
    }
    let span = us(Ns(violation.release.0 + violation.response.0)).max(1e-3);
    let label = format!("µs; released at {}", format::significant(us(violation.release)));
    let title = format!("Activity of the CPU until job {} of {} was complete", violation.instance, violation.task);
    Tracks { description: title.clone(), title, label, span, tracks }
}
