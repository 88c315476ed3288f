//! Tests of the properties that every report has whatever its evidence: contrast of the colors, order of headings, data of every figure.

use std::collections::BTreeMap;

/// The style sheets of the report, that of figures first.
const STYLES: [&str; 2] = [include_str!("../src/figure.css"), include_str!("../src/style.css")];

/// Returns the colors that a style sheet defines, in `part` of it.
fn colors(part: &str) -> BTreeMap<&str, [f64; 3]> {
    let mut colors = BTreeMap::new();
    for declaration in part.split(['{', ';', '}']) {
        let Some((name, value)) = declaration.trim().split_once(": #") else { continue };
        let channel = |at: usize| {
            let byte = u8::from_str_radix(&value[at..at + 2], 16).unwrap();
            f64::from(byte) / 255.0
        };
        colors.insert(name, [0, 2, 4].map(channel));
    }
    colors
}

/// Returns the contrast of two colors, from 1 to 21. [WCAG 2.2, contrast ratio]
fn contrast(one: [f64; 3], other: [f64; 3]) -> f64 {
    let linear = |c: f64| if c <= 0.040_45 { c / 12.92 } else { ((c + 0.055) / 1.055).powf(2.4) };
    let luminance = |[r, g, b]: [f64; 3]| 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
    let (one, other) = (luminance(one), luminance(other));
    (one.max(other) + 0.05) / (one.min(other) + 0.05)
}

/// Returns the colors for light screens, for dark screens, and for paper.
fn schemes() -> [BTreeMap<&'static str, [f64; 3]>; 3] {
    let (light, rest) = STYLES[0].split_once("@media screen and (prefers-color-scheme: dark)").unwrap();
    let (dark, rest) = rest.split_once("@media print").unwrap();
    let print = rest.split_once("svg.chart").unwrap().0;
    let light = colors(light);
    let paper = light.clone().into_iter().chain(colors(print)).collect();
    [light, colors(dark), paper]
}

#[test]
fn black_on_white_has_the_contrast_that_the_standard_says() {
    assert!((contrast([0.0; 3], [1.0; 3]) - 21.0).abs() < 1e-9);
    // #777777 on white is the well-known grey that just fails.
    assert!((contrast([0x77 as f64 / 255.0; 3], [1.0; 3]) - 4.48).abs() < 0.005);
}

#[test]
fn every_text_can_be_read_in_light_in_dark_and_on_paper() {
    for (scheme, colors) in ["light", "dark", "paper"].into_iter().zip(schemes()) {
        assert_eq!(colors.len(), 9, "{scheme}: {colors:?}");
        for text in ["--ink", "--muted", "--alone", "--unpartitioned", "--partitioned", "--single-writer"] {
            for ground in ["--paper", "--wash"] {
                let contrast = contrast(colors[text], colors[ground]);
                assert!(contrast >= 4.5, "{scheme}: {text} on {ground} has a contrast of {contrast:.2}");
            }
        }
    }
}

#[test]
fn the_style_sheets_name_no_other_colors() {
    let definitions = STYLES[0].split_once("svg.chart").unwrap().1;
    for style in [definitions, STYLES[1]] {
        assert!(!style.contains(": #") && !style.contains("rgb"), "a color that no scheme changes");
    }
}

#[test]
fn no_text_of_a_figure_is_smaller_than_eleven_pixels_on_a_phone() {
    // A drawing is 360 units wide and has at least 358 pixels: 390 less the margins of 16.
    for size in STYLES[0].split("font-size: ").skip(1) {
        let size: f64 = size.split_once("px").unwrap().0.parse().unwrap();
        assert!(size * 358.0 / 360.0 >= 10.9, "{size} px");
    }
}
