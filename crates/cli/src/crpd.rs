//! `isochrome bench crpd`: what a pre-emption costs through the cache, against the size of what was in use.

use std::fmt::Write;

use anyhow::{Context, Result};
use isochrome_host::crpd::{CrpdRequest, PASSES, crpd, pages_per_color};
use isochrome_host::interrupt;
use isochrome_host::sys::clock;
use isochrome_model::crpd::modeled::{Request, play};
use isochrome_model::crpd::{Block, Crpd, Walk, conclude};
use isochrome_model::miss_ratio::Touches;
use isochrome_model::report::crpd::text;
use isochrome_model::units::{Color, parse_list};

use crate::args::{CrpdOptions, TouchKind};
use crate::simulate::named_machine;
use crate::station::Station;
use crate::workload::can_hold;
use crate::{Verdict, evidence, files, probe, results};

pub fn run(options: &CrpdOptions) -> Result<Verdict> {
    let place = &options.place;
    let touches = match options.kind {
        TouchKind::Data => Touches::Data,
        TouchKind::Code => Touches::Code,
    };
    if let (Some(name), Some(mhz)) = (&options.machine, options.mhz) {
        return modeled(options, name, mhz, touches);
    }
    let mut station = Station::new(place)?;
    let target = station.target(place)?;
    let count = target.geometry.color_count(station.machine.page_bytes);
    let request = CrpdRequest {
        touches,
        percents: sizes(options.step),
        colors: own_colors(options.colors.as_deref(), count)?,
        blocks: options.blocks as usize,
        jobs: options.jobs as usize,
        seed: station.seed,
    };
    let (palette, pool) = station.collect_pages(place, target, pages_per_color(target, &request))?;
    // The refill time that the slope is compared with.
    let cpu = station.cpu;
    let notes = probe::measure(&mut station, Some((&pool, target.level)), vec![cpu])?;
    let refill =
        station.machine.levels.iter().filter(|level| level.level == target.level).find_map(|level| level.refill);

    let settings = station.settle();
    let blocks = results::until_quiet(
        "pre-empting",
        options.blocks,
        |round, progress| {
            crpd(&pool, target, &CrpdRequest { seed: request.seed.wrapping_add(round), ..request.clone() }, progress)
        },
        |blocks| conclude(blocks, PASSES, clock::rate_hz()).iter().map(|point| point.blocks_quiet).min(),
    )?;
    let warnings: Vec<String> =
        station.notes.iter().chain(&notes).chain(settings.notes()).map(evidence::told).collect();
    drop(settings);
    let measured = Crpd {
        touches,
        level: target.level,
        ways: target.geometry.ways,
        lines_per_color: target.geometry.lines_per_color(station.machine.page_bytes),
        colors: [request.colors.len() as u32, pool.colors()],
        passes: PASSES,
        points: conclude(&blocks, PASSES, clock::rate_hz()),
        refill_ns: refill.map(|fact| [fact.value.clean_ns.0 as f64, fact.value.dirty_ns.0 as f64]),
        modeled: None,
    };
    results::leave(
        &options.results,
        &measured,
        text(&measured),
        station.seed,
        || csv(&blocks),
        |raw| {
            let mut evidence = evidence::of(&station, Some(palette), Vec::new(), raw, warnings);
            evidence.crpd = vec![measured.clone()];
            evidence
        },
    )?;
    let conclusive = measured.is_conclusive() && !interrupt::interrupted();
    Ok(match conclusive {
        false => Verdict::Inconclusive,
        true if measured.holds() => Verdict::Holds,
        true => Verdict::Violated,
    })
}

/// The experiment on a modeled machine.
fn modeled(options: &CrpdOptions, name: &str, mhz: u32, touches: Touches) -> Result<Verdict> {
    let machine = named_machine(name)?;
    let number = options.place.level.unwrap_or(2);
    let mut holding = machine.levels.iter().filter(|level| can_hold(level.holds, touches));
    let level = usize::from(number).checked_sub(1).and_then(|index| holding.nth(index));
    let level = &level.with_context(|| format!("{name} has no level {number}\n  hint: --level chooses one"))?.cache;
    let count = level.geometry.color_count(machine.page_bytes);
    let (colors, percents) = (own_colors(options.colors.as_deref(), count)?, sizes(options.step));
    let request = Request { machine: &machine, level, touches, percents: &percents, colors: &colors, passes: PASSES };
    let blocks = play(&request)?;
    let measured = Crpd {
        touches,
        level: number,
        ways: level.geometry.ways,
        lines_per_color: level.geometry.lines_per_color(machine.page_bytes),
        colors: [colors.len() as u32, count],
        passes: PASSES,
        points: conclude(&blocks, PASSES, u64::from(mhz) * 1_000_000),
        refill_ns: None,
        modeled: Some(machine.name.clone()),
    };
    if let Some(path) = &options.results.raw {
        files::write(path, &csv(&blocks))?;
    }
    if options.results.json {
        files::print_json(&measured)?;
    } else {
        files::print(&text(&measured))?;
    }
    Ok(if measured.holds() { Verdict::Holds } else { Verdict::Violated })
}

/// The colors in `list`, or the first half of `count`: some, but not all.
pub fn own_colors(list: Option<&str>, count: u32) -> Result<Vec<Color>> {
    let colors = match list {
        Some(list) => parse_list(list, count)?,
        None => (0..(count / 2).max(1)).collect(),
    };
    anyhow::ensure!(
        !colors.is_empty() && (colors.len() as u32) < count,
        "{} of {count} colors for the task leave none for the rest, or none at all\n  hint: --colors 0-{}",
        colors.len(),
        (count / 2).max(1) - 1
    );
    Ok(colors.into_iter().map(|color| Color(color as u16)).collect())
}

/// Working sets from 5 % to 130 % of the partition in steps of `step`; half and all of it are among them.
fn sizes(step: u32) -> Vec<u32> {
    let mut sizes: Vec<u32> =
        (step..=130).step_by(step as usize).filter(|percent| *percent > 5).chain([5, 50, 100, 130]).collect();
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

/// Every job, one line each; times are ticks of the constant-rate counter.
fn csv(blocks: &[Block]) -> String {
    let mut text = "block,walk,partitioned,percent,lines,flooded,alone,preempted\n".to_owned();
    for (at, block) in blocks.iter().enumerate() {
        let condition = block.condition;
        let walk = if condition.walk == Walk::InOrder { "in_order" } else { "random" };
        for (flooded, jobs) in [(1, &block.jobs), (0, &block.control)] {
            for job in jobs {
                let _ = writeln!(
                    text,
                    "{at},{walk},{},{},{},{flooded},{},{}",
                    u8::from(condition.partitioned),
                    condition.percent,
                    block.lines,
                    job.alone.0,
                    job.preempted.0
                );
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    #[test]
    fn working_sets_go_from_5_to_130_percent() {
        assert_eq!(super::sizes(50), [5, 50, 100, 130]);
        assert_eq!(super::sizes(3).iter().filter(|percent| **percent < 5).count(), 0);
    }
}
