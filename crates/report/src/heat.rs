//! A matrix of shares as a heat map, with an optional bar beside every row.

use maud::{Markup, html};

use super::chart::{at, fit, text_width};
use isochrome_model::evidence::format;

const WIDTH: f64 = 360.0;
const LEFT: f64 = 30.0;
/// Width left of the cells for the names of the rows.
const NAMES: f64 = 130.0;
const TOP: f64 = 34.0;
const SIDE: f64 = 208.0;
const BAR_LENGTH: f64 = 68.0;
/// Height of a row if rows have names.
const NAME_ROW: f64 = 12.0;
/// Number of shades. A cell is drawn in the nearest one.
const SHADES: u32 = 20;

/// A heat map of shares, 0 to 1.
pub struct HeatMap<'a> {
    /// Title of the drawing for screen readers.
    pub title: String,
    /// Description of the drawing for screen readers, one sentence.
    pub description: String,
    /// Label of the rows.
    pub rows: &'a str,
    /// Label of the columns.
    pub columns: &'a str,
    /// A name for each row; empty to show the numbers of the rows.
    pub row_names: &'a [String],
    /// Shares row by row. Cells that are missing or NaN are left blank.
    pub cells: &'a [Vec<f64>],
    /// Label of the bars, and the count of each row's bar, in the order of the rows; empty for no bars.
    pub bars: (&'a str, &'a [u64]),
}

/// Position and size of the cells of a heat map, in units of the drawing.
struct Grid {
    rows: usize,
    columns: usize,
    left: f64,
    width: f64,
    height: f64,
}

impl HeatMap<'_> {
    fn grid(&self) -> Grid {
        let rows = self.cells.len().max(self.bars.1.len()).max(1);
        let columns = self.cells.iter().map(Vec::len).max().unwrap_or(0).max(1);
        if self.row_names.is_empty() {
            let side = SIDE / rows.max(columns) as f64;
            Grid { rows, columns, left: LEFT, width: side, height: side }
        } else {
            Grid { rows, columns, left: NAMES, width: (SIDE + LEFT - NAMES) / columns as f64, height: NAME_ROW }
        }
    }

    /// Returns the height of the drawing, in its own units.
    pub fn height(&self) -> f64 {
        let grid = self.grid();
        TOP + grid.rows as f64 * grid.height + 22.0
    }

    /// Returns the heat map as an SVG element.
    pub fn svg(&self) -> Markup {
        let Grid { rows, columns, left, width, height } = self.grid();
        let bars = LEFT + SIDE + 16.0;
        let bottom = TOP + rows as f64 * height;
        let stride = |cell: f64, room: f64| {
            [1, 2, 4, 8, 16, 32].into_iter().find(|&stride| stride as f64 * cell >= room).unwrap_or(64)
        };
        let (row_stride, column_stride) = (stride(height, 11.0), stride(width, 17.0));
        let middle = |i: usize| (i as f64 + 0.5) * height;
        let largest = self.bars.1.iter().copied().max().unwrap_or(0).max(1) as f64;
        let even = self.bars.1.iter().sum::<u64>() as f64 / self.bars.1.len().max(1) as f64;
        let even_x = bars + BAR_LENGTH * even / largest;
        html! {
            svg.chart viewBox=(format!("0 0 {WIDTH} {}", at(self.height()))) role="img" {
                title { (self.title) }
                desc { (self.description) }
                text.label x="0" y="11" { (self.rows) " ↓   " (self.columns) " →" }
                @for i in (0..columns).step_by(column_stride) {
                    text.tick x=(at(left + (i as f64 + 0.5) * width)) y=(at(TOP - 5.0)) text-anchor="middle" { (i) }
                }
                @for i in (0..rows).step_by(row_stride) {
                    text.tick x=(at(left - 5.0)) y=(at(TOP + middle(i) + 3.5)) text-anchor="end" {
                        @match self.row_names.get(i) { Some(name) => (fit(name, NAMES - 5.0)), None => (i) }
                    }
                }
                rect.frame x=(at(left)) y=(at(TOP)) width=(at(columns as f64 * width)) height=(at(rows as f64 * height)) {}
                @for shade in 1..=SHADES {
                    @let path = self.cells_of_shade(shade);
                    @if !path.is_empty() {
                        path.heat fill-opacity=(format!("{:.2}", f64::from(shade) / f64::from(SHADES))) d=(path) {}
                    }
                }
                @if !self.bars.1.is_empty() {
                    text.label x=(at(bars)) y="11" { (self.bars.0) }
                    @for (i, &count) in self.bars.1.iter().enumerate() {
                        @let length = BAR_LENGTH * count as f64 / largest;
                        rect.bar x=(at(bars)) y=(at(TOP + (i as f64 + 0.15) * height)) width=(at(length)) height=(at(height * 0.7)) {}
                        @if row_stride == 1 {
                            text.tick x=(at(WIDTH)) y=(at(TOP + middle(i) + 3.5)) text-anchor="end" { (format::grouped(count)) }
                        }
                    }
                    @if self.row_names.is_empty() {
                    line.even x1=(at(even_x)) y1=(at(TOP - 3.0)) x2=(at(even_x)) y2=(at(bottom + 4.0)) {}
                    @let text = format!("even: {}", format::significant(even));
                    text.note x=(at(even_x.min(WIDTH - text_width(&text) / 2.0))) y=(at(bottom + 15.0)) text-anchor="middle" { (text) }
                    }
                }
            }
        }
    }

    /// Returns the outline of all cells drawn in `shade`. One path for many cells keeps a matrix of 64 x 64 small.
    fn cells_of_shade(&self, shade: u32) -> String {
        let Grid { left, width, height, .. } = self.grid();
        let mut path = String::new();
        for (i, row) in self.cells.iter().enumerate() {
            for (j, share) in row.iter().enumerate() {
                if (share.clamp(0.0, 1.0) * f64::from(SHADES)).round() as u32 == shade {
                    let (x, y) = (left + j as f64 * width, TOP + i as f64 * height);
                    let (width, height) = (at(width), at(height));
                    path.push_str(&format!("M{} {}h{width}v{height}h-{width}z", at(x), at(y)));
                }
            }
        }
        path
    }
}
