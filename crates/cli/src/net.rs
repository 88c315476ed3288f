//! `isochrome lab net`: measures the cost of packets after a flood, with and without colors.

use anyhow::Result;
use isochrome_host::load::net::stack::BYTES_MAX;
use isochrome_host::sys::clock;
use isochrome_lab::packets::{Net, Packets, Path, Sending, conclude, pages_per_color, section};
use isochrome_lab::runner::Experiment;
use isochrome_lab::samples::csv;
use isochrome_report::figure;

use crate::args::NetOptions;
use crate::context::Context;
use crate::flood::first_level;
use crate::results::{self, Outcome};
use crate::verdict::Verdict;
use crate::{files, hints};

/// Default packet sizes, in bytes.
const SIZES: [usize; 13] = [1, 64, 256, 512, 1024, 1500, 2048, 3072, 4096, 5120, 6144, 7168, 8192];

pub fn run(options: &NetOptions) -> Result<Verdict> {
    let measurement = &options.measurement;
    let context = Context::new(measurement)?;
    let target = context.target(measurement)?;
    let first = first_level(&context);
    let mut sizes = if options.sizes.is_empty() { SIZES.to_vec() } else { options.sizes.clone() };
    sizes.sort_unstable();
    sizes.dedup();
    anyhow::ensure!(
        sizes.iter().all(|bytes| (1..=BYTES_MAX).contains(bytes)),
        "a packet holds 1 to {BYTES_MAX} bytes\n  hint: --sizes 1,64,1500"
    );
    let (palette, pool) = context.collect_pages(measurement, target, pages_per_color(target, first))?;
    let paths = options.path.map_or(vec![Path::Memory, Path::Tap, Path::Kernel], |path| vec![path]);
    let settings = context.settle();
    let (mut nets, mut raw, mut missing) = (Vec::new(), String::new(), Vec::new());
    for path in paths {
        let mut experiment = match Sending::new(&pool, target, first, path) {
            // A path that needs the kernel may not be available. Unless it was requested by name, it is left out.
            Err(error) if options.path.is_none() && path != Path::Memory => {
                missing.push(format!("the path {} is left out: {}", name(path), hints::text(&error)));
                continue;
            }
            experiment => experiment?,
        };
        (experiment.sizes, experiment.pattern, experiment.gap) = (sizes.clone(), options.pattern, options.gap);
        let amount = context.amount(options.blocks, options.packets);
        let blocks = results::measure("sending and receiving", &mut experiment, &amount)?;
        let lines = csv(&blocks, &experiment.columns());
        let rows = lines.lines().enumerate().skip(usize::from(!raw.is_empty()));
        rows.for_each(|(at, row)| raw.push_str(&format!("{},{row}\n", if at == 0 { "path" } else { name(path) })));
        let [driver, server, client] = experiment.division.components.each_ref().map(|colors| colors.len() as u32);
        nets.push(Net {
            path,
            level: target.level,
            pattern: options.pattern,
            colors: [driver, server, client, experiment.division.flooder.len() as u32],
            counter_hz: clock::rate_hz(),
            points: conclude(&blocks, clock::rate_hz()),
        });
    }
    let warnings = context.warnings(&settings).into_iter().chain(missing).collect();
    drop(settings);
    let section = section(&Packets { paths: nets });
    files::write_if(&options.svg, || figure::of_sections("What a packet costs after a flood", [&section]))?;
    results::leave(&options.results, Outcome { context: &context, palette: Some(palette), section, raw, warnings })
}

fn name(path: Path) -> &'static str {
    match path {
        Path::Memory => "memory",
        Path::Tap => "tap",
        Path::Kernel => "kernel",
    }
}
