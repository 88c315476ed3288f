//! The isochrome command: parses the arguments, carries out the verb, and turns its verdict into the exit code.

/// Prints a line on standard error, as the macro of the standard library does, but without control sequences for the terminal: messages hold names of
/// programs and files.
macro_rules! eprintln {
    ($($argument:tt)*) => { ::std::eprintln!("{}", ::isochrome_model::printable::lines(&format!($($argument)*))) };
}

mod args;
mod bench;
mod coloring;
mod compare;
mod conflicts;
mod context;
mod crpd;
mod demo;
mod doctor;
mod evidence;
mod exec;
mod export;
mod external;
mod files;
mod flood;
mod hints;
mod import;
mod interference;
mod job;
mod manual;
mod map;
mod metrics;
mod net;
mod notify;
mod palette;
mod paper;
mod placement;
mod plan;
mod policy;
mod probe;
mod profile;
mod progress;
mod ps;
mod recolor;
mod report;
mod results;
mod run;
#[cfg(test)]
mod schemas;
mod serve;
mod simulate;
mod switch;
mod trace;
mod usage;
mod verdict;
mod view;
mod watch;
mod ways;
mod workload;

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use isochrome_host::interrupt;
use isochrome_host::sys::heap::HeapAllocator;

use args::{Arguments, Experiment, Generated, Verb};
use context::InDoubt;
use verdict::{COULD_NOT_RUN, INCONCLUSIVE, VIOLATED, Verdict};

/// Lets measured jobs allocate in memory of chosen colors.
#[global_allocator]
static ALLOCATOR: HeapAllocator = HeapAllocator;

fn main() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().collect();
    let arguments = match Arguments::of(words.clone()) {
        Ok(arguments) => arguments,
        Err(error) => {
            if let Some(message) = external::replace(&words, &error) {
                eprintln!("isochrome: {message}");
                return ExitCode::from(COULD_NOT_RUN);
            }
            // Printing fails only if the reader has closed the stream.
            let _ = match error.use_stderr() {
                true => write!(std::io::stderr(), "{}", usage::text(&error, &words)),
                false => error.print(),
            };
            // `exec` has the exit codes of env(1).
            let is_exec = words.get(1).is_some_and(|verb| verb == "exec");
            let code = if is_exec { exec::FAILED } else { COULD_NOT_RUN };
            return if error.use_stderr() { ExitCode::from(code) } else { ExitCode::SUCCESS };
        }
    };
    let run = || -> anyhow::Result<Verdict> {
        // `exec` passes signals on to its program instead, and `job` is itself such a program.
        if !matches!(arguments.verb, Verb::Exec(_) | Verb::Job(_)) {
            interrupt::install()?;
        }
        if let Some(restored) = isochrome_host::run::shielding::restore_left(&isochrome_host::runtime::folder()) {
            eprintln!(
                "isochrome: a run was killed; {} of its programs were ended, {} threads of others have their CPUs back{}",
                restored.programs,
                restored.threads,
                if restored.ways { ", all have all cache ways" } else { "" }
            );
            if let Some(trouble) = restored.trouble {
                eprintln!("isochrome: {trouble}");
            }
        }
        // Nobody waits for minutes to learn that a result cannot be written.
        if long_work(&arguments.verb).is_some() {
            arguments.outputs.iter().try_for_each(|path| files::check_writable(path))?;
        }
        carry_out(arguments.verb)
    };
    match run() {
        Ok(Verdict::Holds) => ExitCode::SUCCESS,
        Ok(Verdict::Violated) => ExitCode::from(VIOLATED),
        Ok(Verdict::Ended(code)) => code,
        Ok(Verdict::Inconclusive) => ExitCode::from(INCONCLUSIVE),
        Err(error) if files::nobody_listens(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("isochrome: {}", hints::whole(&*error, &words));
            ExitCode::from(if error.is::<InDoubt>() { INCONCLUSIVE } else { COULD_NOT_RUN })
        }
    }
}

/// Returns the name of a verb that may work for a while before it prints anything. Returns `None` for a verb that is quick, hands the terminal to a
/// program, or goes on until it is stopped.
fn long_work(verb: &Verb) -> Option<&'static str> {
    Some(match verb {
        Verb::Doctor { .. } => "doctor",
        Verb::Probe(_) => "probe",
        Verb::Palette(_) => "palette",
        Verb::Map(options) if !options.watch => "map",
        Verb::Ps { .. } => "ps",
        Verb::Recolor(_) => "recolor",
        Verb::Demo(_) => "demo",
        Verb::Simulate(_) => "simulate",
        Verb::Trace(_) => "trace",
        Verb::Compare(_) => "compare",
        Verb::Profile(_) => "profile",
        Verb::Plan(_) => "plan",
        Verb::Analyze(_) => "analyze",
        Verb::Run(_) => "run",
        Verb::Lab(_) => "lab",
        _ => return None,
    })
}

/// Carries out `verb` and returns its verdict.
fn carry_out(verb: Verb) -> anyhow::Result<Verdict> {
    let _whole = long_work(&verb).map(progress::whole);
    match verb {
        Verb::Doctor(options) => doctor::run(&options),
        Verb::Probe(options) => probe::run(&options),
        Verb::Palette(options) => palette::run(&options),
        Verb::Map(options) => map::run(&options),
        Verb::Ps { json } => ps::run(json),
        Verb::Serve(options) => serve::run(&options),
        Verb::Policy { verb } => policy::run(&verb),
        Verb::Demo(options) => demo::run(&options, carry_out),
        Verb::Simulate(options) => simulate::run(&options),
        Verb::Trace(options) => trace::run(&options),
        Verb::Watch(options) => watch::run(&options),
        Verb::Compare(options) => compare::run(&options),
        Verb::Profile(options) => profile::run(&options),
        Verb::Plan(options) => plan::plan(&options),
        Verb::Analyze(options) => plan::analyze(&options),
        Verb::Run(options) => run::run(&options),
        Verb::Recolor(options) => recolor::run(&options),
        Verb::Export(options) => export::run(&options),
        Verb::Exec(options) => Ok(exec::run(&options)),
        Verb::Import { file, output, .. } => import::run(&file, output.as_deref()),
        Verb::Job(options) => job::run(&options),
        Verb::Report { evidence, output, form } => report::run(&evidence, output.as_deref(), form),
        Verb::Lab(Experiment::Interference(options)) => interference::run(&options),
        Verb::Lab(Experiment::Conflicts(options)) => conflicts::run(&options),
        Verb::Lab(Experiment::Crpd(options)) => crpd::run(&options),
        Verb::Lab(Experiment::Switch(options)) => switch::run(&options),
        Verb::Lab(Experiment::Net(options)) => net::run(&options),
        Verb::Lab(Experiment::Flood(options)) => flood::run(&options),
        Verb::Lab(Experiment::Workload(options)) => workload::run(&options),
        Verb::Lab(Experiment::Paper(options)) => paper::run(&options, carry_out),
        Verb::Lab(Experiment::Kernel(kernel)) => bench::run(&kernel),
        Verb::Generate(Generated::Man { output }) => manual::pages(&output),
        Verb::Generate(Generated::Reference { output }) => manual::reference(&output),
        Verb::Generate(Generated::Completions { shell }) => manual::completions(shell),
    }
}
