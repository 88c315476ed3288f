//! The section on the palette: how the colors were found, and the eviction matrix that shows them.

use maud::{Markup, html};

use super::heat::HeatMap;
use isochrome_model::evidence::figure::range_of;
use isochrome_model::evidence::format;

use super::data::{number, with_data};
use isochrome_model::evidence::{PaletteEvidence, Table};

pub(super) fn section(palette: &PaletteEvidence) -> Markup {
    html! {
        section id="palette" {
            h2 { "How the colors were found" }
            (found(palette))
        }
    }
}

/// The share of a page's lines that its own color evicts; and the greatest share that another color evicts, with that color.
type Evicted = (Option<f64>, Option<(usize, f64)>);

/// Returns, for each color, the share of its pages' lines that the color itself evicts, and the greatest share that another
/// color evicts, with that color.
fn own_and_other(palette: &PaletteEvidence) -> Vec<Evicted> {
    let finite = |share: &f64| share.is_finite();
    let rows = palette.eviction.iter().enumerate();
    rows.map(|(i, row)| {
        let others = row.iter().copied().enumerate().filter(|(j, share)| *j != i && finite(share));
        (row.get(i).copied().filter(finite), others.max_by(|a, b| a.1.total_cmp(&b.1)))
    })
    .collect()
}

fn found(palette: &PaletteEvidence) -> Markup {
    let shares = own_and_other(palette);
    let (own_low, _) = range_of(shares.iter().filter_map(|row| row.0));
    let (_, other_high) = range_of(shares.iter().filter_map(|row| Some(row.1?.1)).chain([0.0]));
    let tested = shares.iter().any(|row| row.0.is_some());
    let gap = format!(
        "Traversing a color’s own eviction set takes at least {} of a page’s lines, another color’s at most {}.",
        format::share(own_low),
        format::share(other_high)
    );
    let drawn = HeatMap {
        title: "Eviction matrix".to_owned(),
        description: if tested { gap.clone() } else { "Pages of each color.".to_owned() },
        rows: "page of color",
        columns: "evicted by color",
        row_names: &[],
        cells: &palette.eviction,
        bars: ("pages found", &palette.per_color),
    };
    let caption = html! {
        figcaption {
            @if tested { (gap) " " }
            "A share is an estimate: the lowest of 4 tests of a page, the median of 3 pages, and the mean of several eviction sets of a \
             color. The lowest counts, since disturbance only evicts more; so evictions that happen only now and then are understated. "
            "Cells shade from nothing evicted to all lines evicted; a clean diagonal means that the colors are real. Bars: pages of each color against the even share."
        }
    };
    html! {
        p {
            "By " (palette.method) ", " (palette.colors) " colors of L" (palette.level) " in " (format::nanoseconds(palette.seconds * 1e9)) "; "
            (format::grouped(palette.pages)) " pages classified at " (format::nanoseconds(palette.us_per_page * 1e3)) " each, "
            (format::grouped(palette.ambiguous)) " left without a color."
            @if palette.colors != palette.colors_expected {
                strong { " The geometry leads one to expect " (palette.colors_expected) "." }
            }
        }
        p { "Color of a frame number: " (palette.rule) }
        @if shares.is_empty() && palette.per_color.is_empty() { p { "No eviction matrix was recorded." } } @else {
            div.figures { (with_data("Eviction matrix", (drawn.svg(), drawn.height()), caption, (&numbers(palette, &shares), &matrix(palette)))) }
        }
    }
}

/// Returns the numbers of each color.
fn numbers(palette: &PaletteEvidence, shares: &[Evicted]) -> Table {
    let row = |i: usize| {
        let (own, other) = shares.get(i).copied().unwrap_or((None, None));
        let pages = palette.per_color.get(i).map_or(format::DASH.to_owned(), |&pages| format::grouped(pages));
        let other = other.map_or(format::DASH.to_owned(), |(j, share)| format!("{} ({j})", format::share(share)));
        vec![i.to_string(), pages, own.map_or(format::DASH.to_owned(), format::share), other]
    };
    let columns = ["color", "pages", "evicted by its own", "by the worst other"].map(str::to_owned).to_vec();
    Table { columns, rows: (0..shares.len().max(palette.per_color.len())).map(row).collect(), reference: true }
}

/// Returns the eviction matrix, with the pages of each color.
fn matrix(palette: &PaletteEvidence) -> Table {
    let evictors = palette.eviction.iter().map(Vec::len).max().unwrap_or(0);
    let columns = ["page of color".to_owned(), "pages found".to_owned()].into_iter();
    let columns = columns.chain((0..evictors).map(|j| format!("share evicted by {j}"))).collect();
    let row = |i: usize| {
        let pages = palette.per_color.get(i).map_or_else(String::new, u64::to_string);
        let share = |j: usize| {
            palette.eviction.get(i).and_then(|row| row.get(j)).map_or_else(String::new, |share| number(*share))
        };
        [i.to_string(), pages].into_iter().chain((0..evictors).map(share)).collect()
    };
    Table {
        columns,
        rows: (0..palette.eviction.len().max(palette.per_color.len())).map(row).collect(),
        reference: true,
    }
}
