//! `isochrome palette`: the page colors of a cache level.

use std::fmt::Write;

use anyhow::{Context, Result};
use isochrome_host::palette::{Collection, Survey, Verification};
use isochrome_model::evidence::PaletteEvidence;
use isochrome_model::palette::{Doubt, Inference, Samples, agreement, infer, samples};
use isochrome_model::units::format_list;
use serde::Serialize;

use crate::args::PaletteOptions;
use crate::station::{Station, method, spinner};
use crate::{Verdict, files};

/// The result as printed.
#[derive(Serialize)]
struct Outcome {
    #[serde(flatten)]
    palette: PaletteEvidence,
    /// Why not to trust it; empty when nothing speaks against it.
    doubts: Vec<Doubt>,
    #[serde(skip_serializing_if = "Option::is_none")]
    verification: Option<Verification>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    again: Vec<Again>,
    #[serde(skip_serializing_if = "Option::is_none")]
    seed: Option<u64>,
}

/// A second look at the same pages.
#[derive(Serialize)]
struct Again {
    method: &'static str,
    /// Share of the pages colored by both that both give the same color.
    agreement: Option<f64>,
    ambiguous: usize,
    seconds: f64,
}

pub fn run(options: &PaletteOptions) -> Result<Verdict> {
    let outcome = match &options.replay {
        Some(path) => {
            let samples: Samples = files::read_json(path, samples::SCHEMA)?;
            samples.check().with_context(|| format!("{}", path.display()))?;
            replayed(&samples)
        }
        None => measured(options)?,
    };
    if options.json {
        files::print_json(&outcome)?;
    } else {
        files::print(&text(&outcome))?;
    }
    let verified = outcome.verification.as_ref().is_none_or(Verification::holds);
    Ok(if outcome.doubts.is_empty() && verified { Verdict::Holds } else { Verdict::Inconclusive })
}

fn measured(options: &PaletteOptions) -> Result<Outcome> {
    anyhow::ensure!(options.pages > 0, "0 pages have no colors\n  hint: --pages 8192");
    let place = &options.place;
    let station = Station::new(place)?;
    let target = station.target(place)?;
    let pages_limit = crate::station::pages_in(place.memory, station.machine.page_bytes);
    anyhow::ensure!(
        options.pages as u64 <= pages_limit,
        "{} pages do not fit into the memory limit of {}\n  hint: raise --memory or lower --pages",
        options.pages,
        place.memory
    );
    let _settings = station.pin();
    let bar = spinner("finding colors");
    let mut survey = station.survey(place, target, options.pages)?;
    let verification = options.verify.then(|| survey.verify());
    let first = survey.finish();
    let palette = first.evidence();
    let Collection { mut arena, samples: seen, inference, .. } = first;
    if let Some(path) = &options.samples {
        files::write_json_compact(path, &seen)?;
    }
    let mut again = Vec::new();
    for (i, by) in options.again.iter().enumerate() {
        let method = method(*by).unwrap_or(seen.method);
        let seed = station.seed.wrapping_add(1 + i as u64);
        let mut survey = Survey::start_by(method, target, arena, &station.processor, seed)?;
        survey.classify(options.pages);
        let second = survey.finish();
        again.push(Again {
            method: method.name(),
            agreement: agreement(&inference.page_colors, &second.inference.page_colors),
            ambiguous: second.inference.ambiguous.len(),
            seconds: second.elapsed.as_secs_f64(),
        });
        arena = second.arena;
    }
    bar.finish_and_clear();
    if let Some(path) = &options.output {
        let mut palette = inference.palette.clone();
        palette.fingerprint = Some(station.machine.fingerprint());
        palette.boot_id = station.sysfs.text("proc/sys/kernel/random/boot_id").map(|id| id.trim().to_owned());
        files::write_json_compact(path, &palette)?;
    }
    Ok(Outcome { palette, doubts: inference.doubts, verification, again, seed: Some(station.seed) })
}

fn replayed(samples: &Samples) -> Outcome {
    let Inference { palette, colors_expected, per_color, ambiguous, eviction, doubts, rule_in_words, .. } =
        infer(samples);
    let palette = PaletteEvidence {
        level: samples.level,
        colors: palette.colors,
        colors_expected,
        method: samples.method.name().to_owned(),
        pages: samples.pages.len() as u64,
        ambiguous: ambiguous.len() as u64,
        seconds: 0.0,
        us_per_page: 0.0,
        per_color,
        eviction,
        rule: rule_in_words,
    };
    Outcome { palette, doubts, verification: None, again: Vec::new(), seed: None }
}

fn text(outcome: &Outcome) -> String {
    let palette = &outcome.palette;
    let mut text = format!(
        "level {}: {} page colors (the geometry has {}), found by {} in {:.2} s\n",
        palette.level, palette.colors, palette.colors_expected, palette.method, palette.seconds
    );
    let _ = writeln!(
        text,
        "{} pages classified at {:.1} us each, {} ambiguous; {} to {} pages per color",
        palette.pages,
        palette.us_per_page,
        palette.ambiguous,
        palette.per_color.iter().min().unwrap_or(&0),
        palette.per_color.iter().max().unwrap_or(&0),
    );
    let _ = writeln!(text, "{}", palette.rule);
    if let Some(verification) = &outcome.verification {
        let [fits, thrashes, spread, control] = verification.means().map(|share| share * 100.0);
        let _ = writeln!(
            text,
            "verified without eviction sets: as many pages of a color as ways lose {fits:.1} %, half as many more {thrashes:.1} %, \
             half as many of every color {spread:.1} % (control {control:.1} %): {}",
            if verification.holds() { "these are colors" } else { "these are NOT colors" }
        );
    }
    for again in &outcome.again {
        let share =
            again.agreement.map_or_else(|| "nothing in common".to_owned(), |a| format!("{:.2} % agree", a * 100.0));
        let _ = writeln!(
            text,
            "again by {} in {:.2} s: {share}, {} ambiguous",
            again.method, again.seconds, again.ambiguous
        );
    }
    if outcome.doubts.is_empty() {
        let colors: Vec<u32> = (0..palette.colors).collect();
        let _ = writeln!(text, "colors {}", format_list(&colors));
    }
    for doubt in &outcome.doubts {
        let _ = writeln!(text, "in doubt: {doubt}");
    }
    text
}
