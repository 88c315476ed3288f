//! What experiments in blocks have in common: they go on until enough was quiet, and leave rows, evidence and a table.

use anyhow::Result;
use isochrome_host::error::HostError;
use isochrome_host::interrupt;
use isochrome_host::sys::clock;
use isochrome_model::evidence::{Evidence, RawFile};
use serde::Serialize;

use crate::args::Results;
use crate::bench::{QUIET_BLOCKS, ROUNDS};
use crate::files;
use crate::station::progress;

/// The blocks of as many rounds of `run` as it takes until each condition has enough quiet ones, [`ROUNDS`] at most.
///
/// `run` gets the number of the round and what to call with the blocks done and of all; `quiet`: of the condition with the fewest.
pub fn until_quiet<B>(
    doing: &'static str,
    blocks_asked: u32,
    mut run: impl FnMut(u64, &mut dyn FnMut(usize, usize)) -> Result<Vec<B>, HostError>,
    quiet: impl Fn(&[B]) -> Option<u64>,
) -> Result<Vec<B>> {
    let mut blocks = Vec::new();
    for round in 0..ROUNDS {
        let bar = progress(doing, 1);
        blocks.extend(run(round, &mut |done, total| {
            bar.set_length(total as u64);
            bar.set_position(done as u64);
        })?);
        bar.finish_and_clear();
        if quiet(&blocks).unwrap_or(0) >= QUIET_BLOCKS.min(u64::from(blocks_asked)) || interrupt::interrupted() {
            break;
        }
    }
    Ok(blocks)
}

/// The result as printed.
#[derive(Serialize)]
struct Printed<'a, T> {
    #[serde(flatten)]
    measured: &'a T,
    counter_hz: u64,
    seed: u64,
}

/// Writes rows and evidence where they are asked for, and prints what was measured.
pub fn leave<T: Serialize>(
    results: &Results,
    measured: &T,
    text: String,
    seed: u64,
    rows: impl FnOnce() -> String,
    evidence: impl FnOnce(&[RawFile]) -> Evidence,
) -> Result<()> {
    let mut raw = Vec::new();
    if let Some(path) = &results.raw {
        let text = rows();
        files::write(path, &text)?;
        raw.push(RawFile { path: path.display().to_string(), sha256: files::sha256(&text) });
    }
    if let Some(path) = &results.output {
        files::write_json(path, &evidence(&raw))?;
    }
    if results.json {
        files::print_json(&Printed { measured, counter_hz: clock::rate_hz(), seed })
    } else {
        files::print(&text)
    }
}
