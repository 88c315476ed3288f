//! The colored cache as a picture: one band per color, one column per way, and who may read or write each band.

use maud::{Markup, html};

use super::chart::at;
use isochrome_model::geometry::Geometry;
use isochrome_model::units::{Bytes, Color};

const LEFT: f64 = 42.0;
const TOP: f64 = 20.0;
const PANEL: f64 = 92.0;
const GAP: f64 = 14.0;

/// Use of the band of one color.
#[derive(Clone, Copy, PartialEq)]
enum Band {
    /// The co-runner may replace and dirty any line.
    Flooded,
    /// Only the task's lines may be here.
    Task,
    /// The task's lines, and clean lines of others, may be here.
    TaskAndReaders,
}

impl Band {
    fn class(self) -> &'static str {
        match self {
            Band::Flooded => "flooded",
            Band::Task => "task",
            Band::TaskAndReaders => "readers",
        }
    }
}

/// Draws a cache with `geometry` and `colors` colors, once for each of the three allocations, and returns the drawing with its
/// height. `task` has the colors of the task; if it is empty, only the unpartitioned cache is drawn.
pub(super) fn picture(geometry: &Geometry, colors: u32, task: &[Color]) -> (Markup, f64) {
    let ways = geometry.ways;
    let band = (272.0 / f64::from(colors)).min(14.0);
    let floor = TOP + band * f64::from(colors);
    let own: Vec<u32> = (0..colors).filter(|&color| task.iter().any(|c| u32::from(c.0) == color)).collect();
    let color_bytes = geometry.cache_bytes().0 / u64::from(colors);
    let task_bytes = Bytes(color_bytes * own.len() as u64);
    let other_bytes = Bytes(color_bytes * (u64::from(colors) - own.len() as u64));
    let panels: Vec<(&str, Band, [String; 2])> = if own.is_empty() {
        vec![("unpartitioned", Band::Flooded, ["all shared".into(), geometry.cache_bytes().to_string()])]
    } else {
        vec![
            ("unpartitioned", Band::Flooded, ["task anywhere".into(), format!("flood {}", geometry.cache_bytes())]),
            ("partitioned", Band::Task, [format!("task {task_bytes}"), format!("flood {other_bytes}")]),
            ("single-writer", Band::TaskAndReaders, [format!("task {task_bytes},"), "others only read it".into()]),
        ]
    };
    let stride = [1, 2, 4, 8, 16, 32, 64].into_iter().find(|&s| f64::from(s) * band >= 11.0).unwrap_or(128);
    let width = LEFT + panels.len().max(3) as f64 * (PANEL + GAP);
    let fine = band < 3.0 || PANEL / f64::from(ways) < 3.0;
    let grid = grid(colors, ways, band, fine);
    let drawing = html! {
        svg.chart.cache viewBox=(format!("0 0 {} {}", at(width), at(floor + 34.0))) role="img" {
            title { "The cache by colors and ways" }
            desc {
                "Each band is one color, each column one way. "
                @if own.is_empty() { "No task owns a color." } @else {
                    "Unpartitioned, the flood reaches all " (colors) " colors. Partitioned, the task has " (own.len())
                    " colors to itself. Single-writer, others read but never write these colors."
                }
            }
            defs {
                pattern id="flooded" width="5" height="5" patternUnits="userSpaceOnUse" patternTransform="rotate(45)" {
                    rect.wash width="5" height="5" {}
                    rect.stripe width="1.6" height="5" {}
                }
                pattern id="readers" width="4" height="4" patternUnits="userSpaceOnUse" {
                    rect.owned width="4" height="4" {}
                    circle.speck cx="2" cy="2" r="0.9" {}
                }
            }
            text.label x="0" y="12" { "color" }
            @for color in (0..colors).step_by(stride as usize) {
                text.tick x=(at(LEFT - 6.0)) y=(at(TOP + (f64::from(color) + 0.5) * band + 3.5)) text-anchor="end" { (color) }
            }
            @for (i, (name, panel, notes)) in panels.iter().enumerate() {
                g transform=(format!("translate({} 0)", at(LEFT + i as f64 * (PANEL + GAP)))) {
                    text.name x="0" y="12" { (name) }
                    @for which in [Band::Flooded, Band::Task, Band::TaskAndReaders] {
                        @let path = bands(colors, &own, band, *panel, which);
                        @if !path.is_empty() { path class=(which.class()) d=(path) {} }
                    }
                    path class=(if fine { "cells fine" } else { "cells" }) d=(grid) {}
                    @for (line, note) in notes.iter().enumerate() {
                        text.note x="0" y=(at(floor + 14.0 + 13.0 * line as f64)) { (note) }
                    }
                }
            }
        }
    };
    (drawing, floor + 34.0)
}

/// Returns the outline of all bands of the use `which`, in a panel where the bands of the task have the use `panel`.
fn bands(colors: u32, own: &[u32], band: f64, panel: Band, which: Band) -> String {
    // A thin band of the task must still be seen.
    let height = if which == Band::Flooded { band } else { band.max(2.0) };
    let drawn = |color: &u32| which == if own.contains(color) { panel } else { Band::Flooded };
    let outline = |color: u32| format!("M0 {}h{PANEL}v{}h-{PANEL}z", at(TOP + f64::from(color) * band), at(height));
    (0..colors).filter(drawn).map(outline).collect()
}

/// Returns the lines between cells. If the grid is `fine`, there are none between colors, because they would cover cells that are hardly wider.
fn grid(colors: u32, ways: u32, band: f64, fine: bool) -> String {
    let floor = TOP + band * f64::from(colors);
    let between_colors = |color: u32| format!("M0 {}h{PANEL}", at(TOP + f64::from(color) * band));
    let between_ways =
        |way: u32| format!("M{} {}V{}", at(PANEL * f64::from(way) / f64::from(ways)), at(TOP), at(floor));
    (1..colors).filter(|_| !fine).map(between_colors).chain((1..ways).map(between_ways)).collect()
}
