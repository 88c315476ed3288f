//! The colors of a program's memory: a table with a heat map for the terminal, and the heat map as a drawing.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::figure;
use super::heat::HeatMap;
use super::text::{plain, wrap};
use isochrome_model::layout::{self, Align, Table};
use isochrome_model::placement::{Assessment, ColorMap, ExpectedMisses, Kind, MappingColors};
use isochrome_model::units::Bytes;

/// Characters of a heat map, from no pages to as many pages as the fullest color of the row has.
const SHADES: [char; 5] = [' ', '░', '▒', '▓', '█'];
/// Greatest number of columns of the heat map in a terminal. If there are more colors, neighbors share a column.
const COLUMNS: usize = 64;
/// Columns that the numbers of a row need, and the spaces behind each.
const NUMBERS_WIDE: usize = 36;

/// Formats the map as text in lines of at most `width` columns: the totals per color, then one row per mapping with the colors of its pages in
/// order.
pub fn text(map: &ColorMap, width: usize) -> String {
    let (total, shape) = (&map.total, map.shape);
    let mut text = String::new();
    let unknown = total.placement.unknown;
    wrap(
        &mut text,
        &format!(
            "{} ({}): {} resident pages, {} of a known color, {unknown} unknown{}",
            map.command,
            map.pid,
            total.pages,
            total.placement.known(),
            if unknown == 0 { String::new() } else { format!(" ({:.1} %)", percent(unknown, total.pages)) }
        ),
        width,
    );
    if unknown > 0 {
        wrap(
            &mut text,
            "UNKNOWN: frames that the palette does not know; sum and misses leave them out. The palette learns frames that are free: \
             `isochrome palette --save --memory 4G`, before the program starts.",
            width,
        );
    }
    let kib = |pages: u64| pages * map.page_bytes.0 / 1024;
    let immovable = map.memory.immovable_text(map.page_bytes);
    wrap(
        &mut text,
        &format!(
            "Movable: {} KiB anonymous, {} KiB private pages of files. Immovable: {}.",
            kib(map.memory.anonymous),
            kib(map.memory.private_file),
            if immovable.is_empty() { "none" } else { &immovable }
        ),
        width,
    );
    let _ = writeln!(
        text,
        "level {}: {} colors of {} ways, {} in each\n",
        map.level,
        shape.colors,
        shape.ways,
        // A color holds as many pages as there are ways, whatever the line size.
        Bytes(u64::from(shape.ways) * map.page_bytes.0)
    );
    text += &rows(map, width);
    text += "\n";
    text += &balance(total, width);
    wrap(
        &mut text,
        "pages: resident; sum: pages in colors that hold more pages than ways; adjac.: pages whose frames are neighbors; shades: pages of \
         each color, against the most of the row.",
        width,
    );
    text
}

/// Formats the rows of the mappings. The mapping stands behind its shades if all have room there, and above them otherwise.
fn rows(map: &ColorMap, width: usize) -> String {
    let last = map.shape.colors.saturating_sub(1).to_string();
    let places = map.shape.colors.min(COLUMNS as u32) as usize;
    let colors = format!("0{last:>width$}", width = places.saturating_sub(1));
    let rows: Vec<(&Assessment, String)> = map
        .mappings
        .iter()
        .map(|mapping| (&mapping.assessment, label(mapping)))
        .chain([(&map.total, "all together".to_owned())])
        .collect();
    let numbers = ["pages", "unknown", "sum", "adjac."].map(|head| (head, Align::Right));
    let labels_wide = rows.iter().map(|(_, label)| layout::columns(label)).max().unwrap_or(0);
    let is_beside = NUMBERS_WIDE + places + 2 + labels_wide <= width;
    let (beside, behind) = if is_beside { (colors.as_str(), "mapping") } else { ("mapping", colors.as_str()) };
    let mut table = Table::new(numbers.into_iter().chain([(beside, Align::Left)])).notes(behind);
    for (assessment, label) in rows {
        let shades = shades(&assessment.placement.per_color);
        let (beside, behind) = if is_beside { (shades, label) } else { (label, shades) };
        table.noted(numbers_of(assessment).into_iter().chain([beside]), behind);
    }
    table.text(width)
}

/// Describes how evenly the pages are distributed over the colors, and the expected misses.
fn balance(total: &Assessment, width: usize) -> String {
    let mut text = String::new();
    // In a large program, every color may have another number of pages. Above four pages per way, numbers are rounded up to
    // powers of two.
    let mut occupied = BTreeMap::<u64, u64>::new();
    for (per_way, colors) in &total.occupancy {
        *occupied.entry(if *per_way <= 4 { *per_way } else { per_way.next_power_of_two() }).or_default() += colors;
    }
    let occupied: Vec<String> = occupied
        .iter()
        .map(|(per_way, colors)| match per_way {
            0 => format!("{colors} none"),
            _ => format!("{colors} up to {per_way}"),
        })
        .collect();
    wrap(&mut text, &format!("Colors by pages per way: {}.", occupied.join(", ")), width);
    let most = total.placement.per_color.iter().max().unwrap_or(&0);
    let least = total.placement.per_color.iter().min().unwrap_or(&0);
    wrap(
        &mut text,
        &format!("Pages per color: {least} to {most}. sum {} of {} pages.", total.sum, total.placement.known()),
        width,
    );
    wrap(
        &mut text,
        &format!(
            "Expected misses per pass over all of it: in order {}, at random {}.",
            misses(total, |m| m.linear),
            misses(total, |m| m.random)
        ),
        width,
    );
    text
}

fn misses(assessment: &Assessment, of: impl Fn(&ExpectedMisses) -> f64) -> String {
    format!("{:.0} lines (balanced: {:.0})", of(&assessment.misses), of(&assessment.misses_balanced))
}

fn percent(part: u64, whole: u64) -> f64 {
    part as f64 * 100.0 / whole.max(1) as f64
}

fn numbers_of(assessment: &Assessment) -> [String; 4] {
    let adjacent = assessment.contiguity.share().map_or("-".to_owned(), |share| format!("{:.0} %", share * 100.0));
    [assessment.pages.to_string(), assessment.placement.unknown.to_string(), assessment.sum.to_string(), adjacent]
}

/// Returns one character per color, or per group of neighboring colors if there are too many.
fn shades(per_color: &[u64]) -> String {
    let columns: Vec<u64> =
        per_color.chunks(per_color.len().div_ceil(COLUMNS).max(1)).map(|c| c.iter().sum()).collect();
    let most = columns.iter().copied().max().unwrap_or(0).max(1);
    // Rounded up: a color that has a page at all shows it.
    columns.iter().map(|pages| SHADES[(pages * (SHADES.len() as u64 - 1)).div_ceil(most) as usize]).collect()
}

fn label(mapping: &MappingColors) -> String {
    let kind = match mapping.kind {
        Kind::Private => String::new(),
        kind => format!(" ({})", kind.label()),
    };
    plain(&format!("{:x} {} {}{kind}", mapping.start, mapping.permissions, short_name(mapping)))
}

fn short_name(mapping: &MappingColors) -> &str {
    match mapping.name.rsplit('/').next().unwrap_or_default() {
        "" => "anonymous",
        name => name,
    }
}

/// Returns the heat map of colors and mappings as an SVG file.
pub fn svg(map: &ColorMap) -> String {
    // The drawing has room for 16 characters of a name.
    let name = |mapping: &MappingColors| plain(&format!("{:.16} {}", short_name(mapping), mapping.permissions));
    let rows =
        || map.mappings.iter().map(|m| (name(m), &m.assessment)).chain([("all together".to_owned(), &map.total)]);
    let share = |assessment: &Assessment| {
        let most = assessment.placement.per_color.iter().copied().max().unwrap_or(0).max(1) as f64;
        assessment.placement.per_color.iter().map(|pages| *pages as f64 / most).collect()
    };
    let names: Vec<String> = rows().map(|(name, _)| name).collect();
    let cells: Vec<Vec<f64>> = rows().map(|(_, assessment)| share(assessment)).collect();
    let pages: Vec<u64> = rows().map(|(_, assessment)| assessment.pages).collect();
    let title = format!("Page colors of {} ({})", map.command, map.pid);
    let heat = HeatMap {
        title: title.clone(),
        description: format!(
            "{} resident pages in {} colors of level {}; {} of unknown color. Each row is shaded against its fullest color.",
            map.total.pages, map.shape.colors, map.level, map.total.placement.unknown
        ),
        rows: "mapping",
        columns: "color",
        row_names: &names,
        cells: &cells,
        bars: ("resident pages", &pages),
    };
    figure::file(&title, &[(heat.svg(), heat.height())])
}

#[cfg(test)]
mod tests {
    use super::*;
    use isochrome_model::layout::WIDTH;
    use isochrome_model::palette::{Palette, Rule};
    use isochrome_model::placement::{ColorShape, Residence, ResidentPage, SCHEMA};
    use isochrome_model::printable::is_printable;
    use isochrome_model::units::{Color, FrameNumber};

    /// Returns a map of two mappings in four colors of two ways, with five pages of color 1, one of color 2, and two frames that are not in the
    /// palette.
    fn map() -> ColorMap {
        let frames: Vec<FrameNumber> = (0..6).map(FrameNumber).collect();
        let colors = [1, 1, 1, 1, 1, 2].map(Color).to_vec();
        let rule = Rule::Table { frames, colors };
        let palette = Palette { schema: String::new(), level: 2, colors: 4, rule, fingerprint: None, boot_id: None };
        let shape = ColorShape { colors: 4, ways: 2, page_lines: 64 };
        let pages = |range: std::ops::Range<u64>| -> Vec<ResidentPage> {
            range.map(|i| ResidentPage { page: 0x1000 + i, frame: Some(FrameNumber(i)), anonymous: true }).collect()
        };
        let mut memory = Residence::default();
        memory.add(Kind::Private, &pages(0..3));
        memory.add(Kind::SharedMemory, &pages(3..8));
        let mapping = |name: &str, kind, range: std::ops::Range<u64>| MappingColors {
            start: range.start << 12,
            end: range.end << 12,
            permissions: "rw-p".into(),
            name: name.into(),
            kind,
            assessment: Assessment::of(&pages(range), &palette, shape),
        };
        ColorMap {
            schema: SCHEMA.into(),
            pid: 7,
            command: "a<b>".into(),
            level: 2,
            shape,
            page_bytes: Bytes(4096),
            total: Assessment::of(&pages(0..8), &palette, shape),
            memory,
            mappings: vec![
                mapping("/usr/lib/libc.so.6", Kind::Private, 0..3),
                mapping("/dev/zero (deleted)", Kind::SharedMemory, 3..8),
            ],
        }
    }

    #[test]
    fn a_map_tells_conflicts_misses_and_what_is_unknown() {
        let text = text(&map(), WIDTH);
        for what in [
            "8 resident pages, 6 of a known color, 2 unknown (25.0 %)",
            "UNKNOWN",
            "libc.so.6",
            "zero (deleted) (shared memory)",
            "Movable: 12 KiB anonymous, 0 KiB private pages of files. Immovable: 20 KiB shared memory.",
            // Five pages in two ways are three per way, rounded up. One color has one page, and two colors have none.
            "Colors by pages per way: 2 none, 1 up to 1, 1 up to 3.",
            "sum 5 of 6 pages",
            // Evenly distributed, six pages fit into four colors of two ways.
            "in order 320 lines (balanced: 0), at random 192 lines (balanced: 0)",
        ] {
            assert!(text.split_whitespace().collect::<Vec<_>>().join(" ").contains(what), "{what}: {text}");
        }
    }

    #[test]
    fn the_drawing_is_a_whole_svg_whatever_the_names() {
        let drawing = svg(&map());
        let parsed = roxmltree::Document::parse(&drawing).expect("an SVG file is XML");
        let texts: Vec<&str> = parsed.descendants().filter_map(|node| node.text()).collect();
        assert!(texts.iter().any(|text| text.contains("a<b>")) && texts.iter().any(|text| text.contains("libc.so.6")));
    }

    #[test]
    fn escape_sequences_in_names_of_programs_and_files_stay_text_in_their_row() {
        let hostile = "\u{1b}[2J\u{9b}m\nall together\u{202e}\0";
        let mut map = map();
        map.command = "x".repeat(hostile.len());
        let lines = text(&map, WIDTH).lines().count();
        map.command = hostile.to_owned();
        map.mappings[0].name = format!("/tmp/{hostile}");
        for shown in [text(&map, WIDTH), svg(&map)] {
            assert!(shown.chars().all(|c| is_printable(c) || c == '\n'), "{shown:?}");
        }
        assert_eq!(text(&map, WIDTH).lines().count(), lines, "{}", text(&map, WIDTH));
    }

    #[test]
    fn a_map_of_many_colors_and_long_names_fits_80_columns() {
        let mut map = map();
        map.shape.colors = 64;
        for assessment in map.mappings.iter_mut().map(|mapping| &mut mapping.assessment).chain([&mut map.total]) {
            assessment.pages = 123_456_789;
            assessment.placement.per_color = (0..64).collect();
        }
        map.mappings[0].name = "/usr/lib/x86_64-linux-gnu/libpthread-of-another-machine.so.0.0.1".to_owned();
        let text = text(&map, WIDTH);
        assert!(text.lines().all(|line| layout::columns(line) <= WIDTH), "{text}");
        assert!(text.contains(&shades(&(0..64).collect::<Vec<_>>())), "no color is left out: {text}");
        assert!(text.contains("libpthread-of-another-machine.so.0.0.1"), "{text}");
    }

    #[test]
    fn a_color_with_a_page_shows_it_and_an_empty_one_stays_blank() {
        assert_eq!(shades(&[0, 1, 50, 51, 100]), " ░▒▓█");
        assert_eq!(shades(&[0, 0]), "  ");
        assert_eq!(shades(&[1; 512]).chars().count(), COLUMNS);
    }
}
