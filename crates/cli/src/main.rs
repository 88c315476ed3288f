//! The isochrome command: arguments become calls, results become files.

mod args;
mod bench;
mod demo;
mod doctor;
mod files;
mod manual;
mod palette;
mod probe;
mod report;
mod station;

use std::process::ExitCode;

use clap::Parser;
use isochrome_host::interrupt;
use isochrome_host::sys::heap::HeapAllocator;

use args::{Arguments, Verb};

/// Lets measured jobs allocate in memory of chosen colors.
#[global_allocator]
static ALLOCATOR: HeapAllocator = HeapAllocator;

/// What a run came to; its exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// Done, and what was to hold holds.
    Holds,
    /// It ran, but what it shows is not conclusive.
    Inconclusive,
}

/// Exit code for anything that could not run, bad arguments included.
const COULD_NOT_RUN: u8 = 1;

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            // Printing fails only when nobody listens any more.
            let _ = error.print();
            return if error.use_stderr() { ExitCode::from(COULD_NOT_RUN) } else { ExitCode::SUCCESS };
        }
    };
    let run = || -> anyhow::Result<Verdict> {
        interrupt::install()?;
        match arguments.verb {
            Verb::Doctor(options) => doctor::run(&options),
            Verb::Probe(options) => probe::run(&options),
            Verb::Palette(options) => palette::run(&options),
            Verb::Bench(options) => bench::run(&options),
            Verb::Demo(options) => demo::run(&options),
            Verb::Report(options) => report::run(&options),
            Verb::Man(options) => manual::pages(&options),
            Verb::Completions(options) => manual::completions(&options),
        }
    };
    match run() {
        Ok(Verdict::Holds) => ExitCode::SUCCESS,
        Ok(Verdict::Inconclusive) => ExitCode::from(3),
        Err(error) if files::nobody_listens(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("isochrome: {error:#}");
            ExitCode::from(COULD_NOT_RUN)
        }
    }
}
