//! `isochrome bench switch`: what it costs to pass the CPU from one task to another, and how much of that is the cache's.

use std::fmt::Write;

use anyhow::Result;
use isochrome_host::interrupt;
use isochrome_host::palette::Target;
use isochrome_host::switch::{SwitchRequest, conditions, pages_per_color, switch};
use isochrome_host::sys::clock;
use isochrome_model::report::switch::text;
use isochrome_model::switch::{Before, Block, Kind, Switches, conclude};

use crate::args::SwitchOptions;
use crate::crpd::own_colors;
use crate::station::Station;
use crate::{Verdict, evidence, results};

pub fn run(options: &SwitchOptions) -> Result<Verdict> {
    let place = &options.place;
    let station = Station::new(place)?;
    // Without colors everything but the partitioned rows is measured all the same.
    let colored = station
        .target(place)
        .and_then(|target| Ok((target, station.collect_pages(place, target, pages_per_color(target))?)));
    let mut warnings = Vec::new();
    let (target, palette, pool) = match colored {
        Ok((target, (palette, pool))) => (target, Some(palette), Some(pool)),
        Err(error) => {
            eprintln!("no colors: {error:#}");
            warnings.push(
                "No colors: floods are of ordinary memory, and what partitions are worth is not shown.".to_owned(),
            );
            let target = Target::to_flood(&station.machine, station.cpu);
            (target.ok_or(error)?, None, None)
        }
    };
    let colors = match &pool {
        Some(pool) => own_colors(options.colors.as_deref(), pool.colors())?,
        None => Vec::new(),
    };
    let settings = station.settle();
    let conditions = conditions(pool.is_some());
    if conditions.iter().all(|condition| condition.kind == Kind::Switch) {
        let text =
            "No SCHED_FIFO: nobody is pre-empted, only switches between equals are measured (hint: run as root).";
        eprintln!("{text}");
        warnings.push(text.to_owned());
    }
    let request = SwitchRequest {
        blocks: options.blocks as usize,
        jobs: options.jobs as usize,
        seed: station.seed,
        colors: colors.clone(),
    };
    let blocks = results::until_quiet(
        "switching",
        options.blocks,
        |round, progress| {
            let request = SwitchRequest { seed: request.seed.wrapping_add(round), ..request.clone() };
            switch(pool.as_ref(), target, &conditions, &request, progress)
        },
        |blocks| conclude(blocks, clock::rate_hz()).iter().map(|row| row.blocks_quiet).min(),
    )?;
    warnings.extend(station.notes.iter().chain(settings.notes()).map(evidence::told));
    drop(settings);
    let measured = Switches {
        level: target.level,
        colors: pool.as_ref().map(|pool| [colors.len() as u32, pool.colors()]),
        rows: conclude(&blocks, clock::rate_hz()),
    };
    results::leave(
        &options.results,
        &measured,
        text(&measured),
        station.seed,
        || csv(&blocks),
        |raw| {
            let mut evidence = evidence::of(&station, palette, Vec::new(), raw, warnings);
            evidence.switches = vec![measured.clone()];
            evidence
        },
    )?;
    let conclusive = measured.is_conclusive() && !interrupt::interrupted();
    Ok(if conclusive { Verdict::Holds } else { Verdict::Inconclusive })
}

/// Every handoff, one line each; times are ticks of the constant-rate counter.
fn csv(blocks: &[Block]) -> String {
    let mut text = "block,kind,means,partitioned,before,interrupt,resume\n".to_owned();
    for (at, block) in blocks.iter().enumerate() {
        let condition = block.condition;
        let (kind, means) = (format!("{:?}", condition.kind), format!("{:?}", condition.means));
        for (before, handoffs) in &block.handoffs {
            let before = match before {
                Before::Nothing => "nothing",
                Before::Spin => "spin",
                Before::Flood => "flood",
            };
            for handoff in handoffs {
                let _ = writeln!(
                    text,
                    "{at},{},{},{},{before},{},{}",
                    kind.to_lowercase(),
                    means.to_lowercase(),
                    u8::from(condition.partitioned),
                    handoff.interrupt.0,
                    handoff.resume.0
                );
            }
        }
    }
    text
}
