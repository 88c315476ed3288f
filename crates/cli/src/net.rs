//! `isochrome bench net`: what packets cost after a flood, with and without colors.

use std::fmt::Write;

use anyhow::Result;
use isochrome_host::interrupt;
use isochrome_host::net::stack::BYTES_MAX;
use isochrome_host::net::{NetRequest, divide, net, pages_per_color};
use isochrome_host::sys::clock;
use isochrome_model::net::{Block, Direction, Net, Path, Setting, conclude};
use isochrome_model::report::net::{figures, text};
use serde::Serialize;

use crate::args::{NetOptions, NetPath};
use crate::flood::first_level;
use crate::station::{Station, progress};
use crate::{Verdict, evidence, files, results};

/// Packet sizes measured where none are given.
const SIZES: [usize; 13] = [1, 64, 256, 512, 1024, 1500, 2048, 3072, 4096, 5120, 6144, 7168, 8192];

/// What was measured.
#[derive(Serialize)]
struct Measured<'a> {
    paths: &'a [Net],
}

pub fn run(options: &NetOptions) -> Result<Verdict> {
    let place = &options.place;
    let station = Station::new(place)?;
    let target = station.target(place)?;
    let first = first_level(&station);
    let mut sizes = if options.sizes.is_empty() { SIZES.to_vec() } else { options.sizes.clone() };
    sizes.sort_unstable();
    sizes.dedup();
    anyhow::ensure!(
        sizes.iter().all(|bytes| (1..=BYTES_MAX).contains(bytes)),
        "a packet holds 1 to {BYTES_MAX} bytes\n  hint: --sizes 1,64,1500"
    );
    let (palette, pool) = station.collect_pages(place, target, pages_per_color(target, first))?;
    let paths: &[Path] = match options.path {
        None => &[Path::Memory, Path::Tap, Path::Kernel],
        Some(NetPath::Memory) => &[Path::Memory],
        Some(NetPath::Tap) => &[Path::Tap],
        Some(NetPath::Kernel) => &[Path::Kernel],
    };
    let settings = station.settle();
    let (mut nets, mut raw, mut missing) = (Vec::new(), String::from(RAW_HEAD), Vec::new());
    for &path in paths {
        let division = divide(&pool, first, path)?;
        let request = NetRequest {
            path,
            sizes: sizes.clone(),
            pattern: options.pattern,
            blocks: options.blocks as usize,
            packets: options.packets as usize,
            gap: options.gap,
            seed: station.seed,
        };
        let bar = progress("sending and receiving", 1);
        let blocks = net(&pool, target, first, &division, &request, |done, total| {
            bar.set_length(total as u64);
            bar.set_position(done as u64);
        });
        bar.finish_and_clear();
        let blocks = match blocks {
            // Not asked for by name, it is left out: what needs the kernel may not be had. Memory always is.
            Err(error) if options.path.is_none() && path != Path::Memory => {
                missing.push(format!("the path {} is left out: {error}", name(path)));
                continue;
            }
            blocks => blocks?,
        };
        csv(&mut raw, path, &blocks);
        let [driver, server, client] = division.components.map(|colors| colors.len() as u32);
        nets.push(Net {
            path,
            level: target.level,
            pattern: options.pattern,
            colors: [driver, server, client, division.flooder.len() as u32],
            counter_hz: clock::rate_hz(),
            points: conclude(&blocks, clock::rate_hz()),
        });
    }
    let mut warnings: Vec<String> = station.notes.iter().chain(settings.notes()).map(evidence::told).collect();
    warnings.extend(missing);
    warnings.iter().for_each(|warning| eprintln!("{warning}"));
    drop(settings);
    if let Some(path) = &options.svg {
        files::write(path, &figures(&nets))?;
    }
    let measured = Measured { paths: &nets };
    let text = nets.iter().map(text).collect::<Vec<_>>().join("\n");
    results::leave(
        &options.results,
        &measured,
        text,
        station.seed,
        || raw,
        |raw| {
            let mut evidence = evidence::of(&station, Some(palette), Vec::new(), raw, warnings);
            evidence.packets = nets.clone();
            evidence
        },
    )?;
    // The kernel's path is there to be compared with: nothing is expected of it.
    Ok(if interrupt::interrupted() || !nets.iter().all(Net::is_conclusive) {
        Verdict::Inconclusive
    } else if nets.iter().filter(|net| net.path != Path::Kernel).all(Net::holds) {
        Verdict::Holds
    } else {
        Verdict::Violated
    })
}

const RAW_HEAD: &str = "path,block,direction,setting,bytes,flooded,driver,server,client\n";

fn name(path: Path) -> &'static str {
    match path {
        Path::Memory => "memory",
        Path::Tap => "tap",
        Path::Kernel => "kernel",
    }
}

/// Every packet, one line each; times are ticks of the constant-rate counter.
fn csv(text: &mut String, path: Path, blocks: &[Block]) {
    let path = name(path);
    for (at, block) in blocks.iter().enumerate() {
        let direction = if block.condition.direction == Direction::Send { "send" } else { "receive" };
        let setting = match block.condition.setting {
            Setting::Naive => "naive",
            Setting::Flooded => "flooded",
            Setting::Partitioned => "partitioned",
        };
        for (flooded, packets) in [(1, &block.packets), (0, &block.control)] {
            for packet in packets {
                let [driver, server, client] = packet.spent.map(|spent| spent.0);
                let bytes = block.condition.bytes;
                let _ =
                    writeln!(text, "{path},{at},{direction},{setting},{bytes},{flooded},{driver},{server},{client}");
            }
        }
    }
}
