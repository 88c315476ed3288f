//! `isochrome map`: shows the colors of a program's memory.

use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use isochrome_host::color::resident;
use isochrome_host::color::{Target, saved};
use isochrome_host::interrupt;
use isochrome_host::process::{Pid, ProcessError};
use isochrome_host::recolor;
use isochrome_host::runtime;
use isochrome_model::palette::{agreement, merge};
use isochrome_model::placement::{ColorMap, ColorShape};
use isochrome_report::map::{svg, text};
use schemars::JsonSchema;
use serde::Serialize;

use crate::args::{Frames, MapOptions, MeasurementOptions};
use crate::context::{Context, finding_colors};
use crate::verdict::Verdict;
use crate::{coloring, files, hints};

/// Number of pages that are measured anew to verify the palette.
const VERIFIED_PAGES: usize = 8192;
/// Time between two maps of a started program until `--after` has passed.
const SETTLING_STEP: Duration = Duration::from_millis(50);

/// The colors of a program's memory, and whether they were measured or read from a palette.
#[derive(Serialize, JsonSchema)]
pub struct Outcome {
    #[serde(flatten)]
    map: ColorMap,
    /// Numbers of pages of unknown color, and of those that were measured.
    measured: Measured,
    #[serde(skip_serializing_if = "Option::is_none")]
    verification: Option<Verification>,
}

/// Numbers of pages whose colors were measured while the program was stopped.
#[derive(Clone, Copy, Default, Serialize, JsonSchema)]
struct Measured {
    /// Number of the program's own pages that no saved palette knew.
    requested: usize,
    /// Number of the requested pages whose color is known now.
    found: usize,
}

/// Largest share of pages of unknown color at which the result is conclusive. Memory that other processes map as well is not measured.
const UNKNOWN: f64 = 0.01;

/// Comparison of the palette with colors that were measured again.
#[derive(Clone, Copy, Serialize, JsonSchema)]
struct Verification {
    /// Number of pages of fresh memory that were measured without the palette.
    pages: usize,
    /// Number of pages of fresh memory whose frames the palette knows.
    common: usize,
    /// Share of the pages with known frames that have the same color in the palette; `None` if the palette knows no frame of the fresh memory.
    agreement: Option<f64>,
}

impl Verification {
    fn verdict(self) -> Verdict {
        match self.agreement {
            Some(share) if share >= merge::SAME => Verdict::Holds,
            Some(_) => Verdict::Violated,
            None => Verdict::Inconclusive,
        }
    }
}

pub fn run(options: &MapOptions) -> Result<Verdict> {
    if let Some(pid) = options.pid {
        // A missing process is reported before the palette is tested, which takes a second.
        resident::mappings(pid)?;
    }
    let measurement =
        MeasurementOptions { memory: options.memory, ..MeasurementOptions::at(options.cpu, options.level) };
    let context = Context::new(&measurement)?;
    let target = context.target(&measurement)?;
    let coloring = coloring::resolve(&Frames::default().colors("all", options.level), vec![context.cpu], context.seed)?;
    let verification = options.verify.then(|| verify(&context, &measurement, target)).transpose()?;
    let shape = ColorShape::of(&target.geometry, coloring.color_count(), context.machine.page_bytes);
    let inspect = |pid: u32| -> Result<Outcome> {
        let measured = coloring.with(|wanted| recolor::measure(Pid(pid as i32), wanted, &coloring.limits));
        let measured = match measured {
            Ok((requested, found)) => Measured { requested, found },
            Err(error) if error.is_gone() => Measured::default(),
            Err(error) => {
                eprintln!("isochrome: colors of its pages cannot be measured: {}", hints::text(&error));
                Measured::default()
            }
        };
        Ok(Outcome { map: resident::color_map(pid, &coloring.palette_of(pid)?, shape)?, measured, verification })
    };
    let mut child = None;
    let first = match options.pid {
        Some(pid) => inspect(pid)?,
        None => {
            let started = child.insert(start(&options.program)?);
            settled(started, Duration::from_nanos(options.after.0), inspect)?
        }
    };
    let pid = first.map.pid;
    show(options, &first)?;
    while options.watch && !interrupt::interrupted() {
        thread::sleep(Duration::from_nanos(options.interval.0));
        if child.as_mut().is_some_and(|child| !matches!(child.try_wait(), Ok(None))) {
            break;
        }
        match inspect(pid) {
            Ok(outcome) => show(options, &outcome)?,
            Err(error) if has_ended(&error) => {
                eprintln!("process {pid} has ended");
                break;
            }
            Err(error) => return Err(error),
        }
    }
    if let Some(mut child) = child {
        child.wait().context("waiting for the program")?;
    }
    let unknown = first.map.total.placement.unknown;
    let pages = first.map.total.placement.pages();
    if unknown as f64 > UNKNOWN * pages as f64 {
        eprintln!(
            "isochrome: the colors of {unknown} of {pages} pages are not known: memory that it shares with others is not measured\n  hint: as root, before the program starts: isochrome palette --save"
        );
        return Ok(Verdict::Inconclusive);
    }
    Ok(verification.map_or(Verdict::Holds, Verification::verdict))
}

/// Starts the program. Its output goes to standard error, where it does not mix with the map.
fn start(program: &[String]) -> Result<Child> {
    let (name, arguments) = program.split_first().context("no program is named\n  hint: isochrome map -- CMD ARGS")?;
    let output = Stdio::from(std::io::stderr());
    Command::new(name).args(arguments).stdout(output).spawn().with_context(|| {
        format!("{name}: cannot start\n  hint: give its path, or a name in PATH: isochrome map -- ./program")
    })
}

/// Returns the map of `child` after it has run for `after`, or the last map that could be made if the program ends earlier.
fn settled(child: &mut Child, after: Duration, inspect: impl Fn(u32) -> Result<Outcome>) -> Result<Outcome> {
    let begin = Instant::now();
    let mut last = None;
    loop {
        match inspect(child.id()) {
            Ok(outcome) => last = Some(outcome),
            Err(error) if has_ended(&error) => {
                child.wait().context("waiting for the program")?;
                return last.context("the program ended before it could be mapped\n  hint: map a longer run");
            }
            Err(error) => return Err(error),
        }
        if begin.elapsed() >= after || interrupt::interrupted() {
            return Ok(last.expect("a map was made"));
        }
        thread::sleep(SETTLING_STEP.min(after));
    }
}

/// Whether `error` means that the program has ended. A program that has ended but was not waited for has no memory.
fn has_ended(error: &anyhow::Error) -> bool {
    let gone = |error: &ProcessError| error.is_gone() || matches!(error, ProcessError::NoUserMemory { .. });
    error.chain().filter_map(|cause| cause.downcast_ref()).any(gone)
}

/// Measures the colors of fresh memory without the saved palette, and compares them where the palette knows the frames.
///
/// Frames of another process cannot be timed here, so frames of this process are tested against the same rule or table.
fn verify(context: &Context, measurement: &MeasurementOptions, target: Target) -> Result<Verification> {
    let palette = saved::load(&runtime::folder(), target.level, &saved::Boot::of(&context.machine, &context.sysfs))?;
    let _settings = context.pin();
    let bar = finding_colors("the map");
    let (survey, _) = context.survey(measurement, target, VERIFIED_PAGES)?;
    let collection = survey.finish();
    bar.finish_and_clear();
    let by_palette: Vec<_> = collection.samples.pages.iter().map(|page| palette.color_of(page.frame?)).collect();
    Ok(Verification {
        pages: by_palette.len(),
        common: by_palette.iter().flatten().count(),
        agreement: agreement(&collection.inference.page_colors, &by_palette),
    })
}

fn show(options: &MapOptions, outcome: &Outcome) -> Result<()> {
    files::write_if(&options.output, || svg(&outcome.map))?;
    files::show(options.json, outcome, || outcome_text(outcome))
}

/// Formats the map, and below it the numbers of measured and of verified pages.
fn outcome_text(outcome: &Outcome) -> String {
    let mut shown = text(&outcome.map, files::width());
    let Measured { requested, found } = outcome.measured;
    if requested > 0 {
        shown.push_str(&format!(
            "measured in pauses of the program: {found} of {requested} pages whose colors were not known\n"
        ));
    }
    if let Some(Verification { pages, common, agreement }) = outcome.verification {
        shown.push_str(&match agreement {
            Some(share) => format!(
                "verified: {pages} pages of fresh memory measured without the palette; it knew {common} of their frames, {:.2} % of which have \
                 the color it says\n",
                share * 100.0
            ),
            None => format!("NOT VERIFIED: the palette knew no frame of {pages} pages of fresh memory\n"),
        });
    }
    shown
}
