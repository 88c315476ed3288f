//! `isochrome palette`: finds the page colors of a cache level.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use isochrome_host::color::ledger;
use isochrome_host::color::pagemap;
use isochrome_host::color::reference::{Numbers, Ready, Reference, order_by_eviction};
use isochrome_host::color::{Collection, Survey, Target, Verification, saved};
use isochrome_host::error::without_hint;
use isochrome_host::interrupt;
use isochrome_host::runtime;
use isochrome_host::sys::memory::Arena;
use isochrome_model::evidence::PaletteEvidence;
use isochrome_model::palette::{
    Doubt, Inference, Rule, Samples, agreement, infer, merge,
    samples::{self, Method},
};
use isochrome_model::units::{Bytes, format_list};
use schemars::JsonSchema;
use serde::Serialize;

use crate::args::PaletteOptions;
use crate::context::{Context, finding_colors, method};
use crate::files;
use crate::progress::{self, Takes, tell};
use crate::verdict::Verdict;

/// Share of pages on which two surveys have to agree.
const SAME: f64 = isochrome_model::palette::merge::SAME;
/// Default number of pages to classify, and number of pages that are classified at once.
const PAGES: usize = 8192;

/// Schema of the printed JSON.
pub const SCHEMA: &str = "isochrome-palette-found/1";

/// The colors that were found, and reasons to doubt them.
#[derive(Serialize, JsonSchema)]
pub struct Outcome {
    #[serde(flatten)]
    palette: PaletteEvidence,
    /// Number of surveys until one was not in doubt, including the last. Their time is part of `seconds`.
    #[serde(skip_serializing_if = "Option::is_none")]
    attempts: Option<u64>,
    /// Reasons not to trust the palette; empty if nothing speaks against it.
    doubts: Vec<Doubt>,
    #[serde(skip_serializing_if = "Option::is_none")]
    verification: Option<Verification>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    again: Vec<Again>,
    #[serde(skip_serializing_if = "Option::is_none")]
    saved: Option<Saved>,
    #[serde(skip_serializing_if = "Option::is_none")]
    seed: Option<u64>,
}

/// What was saved for this boot.
#[derive(Serialize, JsonSchema)]
struct Saved {
    path: PathBuf,
    /// Number of frames whose color is known from now on; `None` if a rule gives the color of every frame.
    frames: Option<usize>,
    /// Number of pages of known color that are kept in memory, by which colors are found if frame numbers are hidden.
    pages: usize,
    /// Number of frames that were left out, because they go back to the host of this virtual machine as soon as they are free.
    reported: usize,
    /// Relation to an earlier palette.
    before: Before,
}

/// Relation between an earlier palette and the new one.
#[derive(Serialize, JsonSchema)]
#[serde(tag = "before", rename_all = "snake_case")]
enum Before {
    /// This boot has no earlier palette.
    None,
    /// The earlier palette knows some of the frames measured now.
    Merged {
        /// Number of frames that both palettes know.
        common: usize,
        /// Share of the common frames whose color is the same in both palettes.
        agreement: f64,
        /// Whether the earlier palette keeps the colors of its other frames.
        kept: bool,
    },
    /// The earlier palette contradicts the new one, so the colors have new numbers from now on.
    Replaced,
}

/// A second survey of the same pages.
#[derive(Serialize, JsonSchema)]
struct Again {
    method: &'static str,
    /// Share of the pages colored by both surveys on which they agree.
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
    files::show(options.output.json, &files::versioned(SCHEMA, &outcome), || text(&outcome))?;
    let verified = outcome.verification.as_ref().is_none_or(Verification::holds);
    let same = outcome.again.iter().all(|again| again.agreement.is_some_and(|share| share >= SAME));
    Ok(if outcome.doubts.is_empty() && verified && same { Verdict::Holds } else { Verdict::Inconclusive })
}

fn measured(options: &PaletteOptions) -> Result<Outcome> {
    anyhow::ensure!(options.pages != Some(0), "0 pages have no colors\n  hint: --pages 8192");
    let mut measurement = options.measurement.clone();
    let context = Context::new(&measurement)?;
    let hidden = pagemap::hidden();
    if options.save && !hidden && measurement.memory.is_none() {
        measurement.memory = context.sysfs.memory("MemFree").map(|free| Bytes(free.0 / 4 * 3));
    }
    let measurement = &measurement;
    let target = context.target(measurement)?;
    let pages_limit = (measurement.memory().0 / context.machine.page_bytes.0) as usize;
    let pages = options.pages.unwrap_or(if options.save && !hidden { pages_limit } else { PAGES });
    anyhow::ensure!(
        pages <= pages_limit,
        "{pages} pages do not fit into the memory limit of {}\n  hint: --memory {}M, or lower --pages",
        measurement.memory(),
        (pages as u64 * context.machine.page_bytes.0).div_ceil(1 << 20)
    );
    let folder = runtime::folder();
    if options.save {
        // A folder that cannot be written to is reported before anything is measured.
        runtime::make(&folder)?;
    }
    let _settings = context.pin();
    let bar = finding_colors("the color of every page");
    let (mut survey, attempts) = context.survey(measurement, target, pages.min(PAGES))?;
    for (method, error) in survey.refused() {
        tell(&bar, &format!("not by {}: {}", method.name(), without_hint(error)));
    }
    bar.finish_and_clear();
    let bar = progress::parts("classifying pages", pages as u64, "conclusions");
    while survey.pages() < pages && !interrupt::interrupted() {
        survey.classify(PAGES.min(pages - survey.pages()))?;
        bar.set_position(survey.pages() as u64);
    }
    bar.finish_and_clear();
    let bar = progress::step("concluding", Takes::Words("seconds; longer with --again"), "the palette");
    let verification = (options.verify || options.save).then(|| survey.verify());
    let first = survey.finish();
    let palette = first.evidence();
    let Collection { mut arena, samples: seen, inference, .. } = first;
    if let Some(path) = &options.samples {
        files::write_json_compact(path, &seen)?;
    }
    if let Some(path) = &options.output.output {
        anyhow::ensure!(
            inference.doubts.is_empty(),
            "{}: not written, the palette is in doubt: {}\n  hint: try again when the machine is less busy",
            path.display(),
            inference.doubts[0]
        );
        let mut palette = inference.palette.clone();
        let boot = saved::Boot::of(&context.machine, &context.sysfs);
        (palette.fingerprint, palette.boot_id) = (Some(boot.fingerprint), Some(boot.boot_id));
        files::write_json_compact(path, &palette)?;
    }
    let saved = match (options.save, &verification) {
        (true, Some(verification)) if inference.doubts.is_empty() && verification.holds() => {
            let (saved, memory) = save(&folder, target, &context, &inference, arena)?;
            arena = memory;
            Some(saved)
        }
        (true, _) => {
            tell(&bar, "not saved: the palette is in doubt (hint: try again when the machine is less busy)");
            None
        }
        _ => None,
    };
    let again = measured_again(options, &context, target, (&inference, seen.pages.len(), seen.method), arena)?;
    bar.finish_and_clear();
    Ok(Outcome {
        palette,
        attempts: Some(attempts),
        doubts: inference.doubts,
        verification,
        again,
        saved,
        seed: Some(context.seed),
    })
}

/// Classifies the same pages again by each method of `--again`, and returns how the results compare with the first palette.
///
/// The tuple holds the first palette, the number of its pages, and the method that made it.
fn measured_again(
    options: &PaletteOptions,
    context: &Context,
    target: Target,
    (first, pages, by_first): (&Inference, usize, Method),
    mut arena: Arena,
) -> Result<Vec<Again>> {
    let mut again = Vec::new();
    for (i, by) in options.again.iter().enumerate() {
        let seed = context.seed.wrapping_add(1 + i as u64);
        let method = method(*by).unwrap_or(by_first);
        let mut survey = Survey::start_by(method, target, arena, &context.processor, seed)?;
        survey.classify(pages)?;
        let second = survey.finish();
        again.push(Again {
            method: method.name(),
            agreement: agreement(&first.page_colors, &second.inference.page_colors),
            ambiguous: second.inference.ambiguous.len(),
            seconds: second.elapsed.as_secs_f64(),
        });
        arena = second.arena;
    }
    Ok(again)
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
    Outcome { palette, attempts: None, doubts, verification: None, again: Vec::new(), saved: None, seed: None }
}

/// Saves the colors of the measured frames for this boot. They are numbered as in an earlier palette of this boot, or get new numbers if there
/// is none. Returns what was saved, and the measured memory.
fn save(
    folder: &Path,
    target: Target,
    context: &Context,
    found: &Inference,
    mut arena: Arena,
) -> Result<(Saved, Arena)> {
    let boot = saved::Boot::of(&context.machine, &context.sysfs);
    let ready = Reference::obtain(folder, target, context.seed, &boot)?;
    let Ready { mut reference, mut tester, numbers } = ready;
    let pages = reference.sets.iter().map(Vec::len).sum();
    let numbers_path = reference.path.clone();
    let mut palette = found.palette.clone();
    match (&mut palette.rule, &reference.rule) {
        (Rule::Hidden, _) => {
            let path = numbers_path.unwrap_or_else(|| folder.to_owned());
            let before = if numbers == Numbers::Replaced { Before::Replaced } else { Before::None };
            return Ok((Saved { path, frames: None, pages, reported: 0, before }, arena));
        }
        (Rule::Table { colors, .. }, _) => {
            let sets = pages_per_color(found, reference.sets.iter().map(Vec::len).max().unwrap_or(0));
            let (order, memory) = order_by_eviction(&mut tester, arena, &sets, true);
            arena = memory.context("the memory measured is lost")?;
            let order = order.complete(tester.colors()).context(
                "the colors measured now contradict the pages of known color\n  hint: try again when the machine is less busy",
            )?;
            colors.iter_mut().for_each(|color| *color = order[usize::from(color.0)]);
        }
        (Rule::Bits | Rule::Linear { .. }, Some(rule)) => palette = rule.clone(),
        (Rule::Bits | Rule::Linear { .. }, None) => {
            let order = reference.order_by_frames(&tester, &palette)?.context(
                "the rule measured now contradicts the pages of known color\n  hint: try again when the machine is less busy",
            )?;
            let holders = ledger::grants_in(folder)?;
            if let Some(holder) = holders.iter().find(|grant| grant.level == target.level) {
                anyhow::bail!(
                    "{} ({}) holds colors by the pages of known color that are saved: new ones would have other numbers\n  hint: wait until it has ended (`isochrome ps`)",
                    holder.owner.name,
                    holder.owner.pid
                );
            }
            reference.adopt(folder, &palette, &order)?;
        }
    }
    let (mut palette, before) = match saved::load_numbered(folder, palette.level, &boot, Some(&reference.numbering)) {
        // An older palette that cannot be used any more is replaced.
        Err(_) => (palette, Before::None),
        Ok(older) => {
            let merged = merge(&palette, &older);
            let (common, agreement, kept) = (merged.common, merged.agreement, merged.holds());
            let before = if common > 0 { Before::Merged { common, agreement, kept } } else { Before::None };
            (merged.palette, before)
        }
    };
    let reported = context.sysfs.reported_block_frames().map_or(0, |frames| palette.forget_whole_blocks(frames));
    let frames = palette.frames().map(<[_]>::len);
    Ok((
        Saved {
            path: saved::save(folder, palette, &boot, Some(&reference.numbering))?,
            frames,
            pages,
            reported,
            before,
        },
        arena,
    ))
}

/// Returns the first `count` measured pages of each color, or fewer if fewer were found.
fn pages_per_color(found: &Inference, count: usize) -> Vec<Vec<u32>> {
    let mut sets = vec![Vec::new(); found.palette.colors as usize];
    for (page, color) in (0u32..).zip(&found.page_colors) {
        if let Some(set) = color.and_then(|color| sets.get_mut(usize::from(color.0))).filter(|set| set.len() < count) {
            set.push(page);
        }
    }
    sets
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
        let worst = verification.worst();
        let percent = [worst.fits, worst.thrashes, worst.spread, worst.control].map(|share| share * 100.0);
        let _ = writeln!(
            text,
            "verified without eviction sets, worst color: as many pages of it as ways lose {:.1} %, half as many more {:.1} % (median), \
             half as many of every color {:.1} % (control {:.1} %): {}",
            percent[0],
            percent[1],
            percent[2],
            percent[3],
            match verification.failed().as_slice() {
                [] => "these are colors".to_owned(),
                failed => format!("NOT colors: {}", format_list(failed)),
            }
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
    if let Some(Saved { path, frames, pages, reported, before }) = &outcome.saved {
        let frames = match frames {
            Some(frames) => format!("colors of {frames} frames, "),
            None if palette.rule.starts_with("frame numbers are hidden") => String::new(),
            None => "the rule for every frame, ".to_owned(),
        };
        let _ = writeln!(text, "saved for this boot in {}: {frames}{pages} pages of known color", path.display());
        if *reported > 0 {
            let _ = writeln!(
                text,
                "{reported} frames are left out: free, they go back to the host of this virtual machine, and return with other colors"
            );
        }
        let _ = match before {
            Before::None => Ok(()),
            Before::Merged { common, agreement, kept } => writeln!(
                text,
                "of the frames saved before {common} were measured again: {:.2} % have the same color{}",
                agreement * 100.0,
                if *kept { "" } else { "; frames were remapped, so the colors of the others are forgotten" }
            ),
            Before::Replaced => writeln!(
                text,
                "COLORS HAVE NEW NUMBERS: the saved colors contradict the colors measured now; \
                 programs on colors must be moved again"
            ),
        };
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
