//! `isochrome demo`: answers what own colors are worth on this machine, and writes a report.
//!
//! First come two plain programs that know nothing of colors, spread over all colors against apart. Then preemption delays against the size of
//! the working set, and the cache as it was found. With `--full` the experiments of [Liedtke1997, §5] follow.

mod kernels;
mod pair;
mod taskset;

use std::fs;
use std::time::Duration;

use anyhow::{Result, bail};
use isochrome_host::color::pool::FramePool;
use isochrome_host::color::{ColorError, Target};
use isochrome_host::doctor;
use isochrome_host::interrupt;
use isochrome_host::machine::sysfs::Sysfs;
use isochrome_model::evidence::{Evidence, RawFile, Section};
use isochrome_model::units::CpuId;
use isochrome_report::{html, text::table};

use crate::args::{DemoOf, DemoOptions, Verb};
use crate::context::{Context, InDoubt};
use crate::verdict::Verdict;
use crate::{crpd, evidence, files, hints, probe, results};

/// Working sets of the preempted walk, in percent of half of the colors, for a measurement and for an impression.
const PERCENTS: [&[u32]; 2] = [&[25, 50, 75, 100], &[50, 100]];
/// Number of blocks of each condition and number of preemptions of each kind in a block, for a measurement and for an impression.
const PREEMPTIONS: [(u32, u32); 2] = [(12, 8), (6, 5)];
/// The modeled machine on which preemptions are played where none is named or this machine has nothing to show, and its clock rate in MHz.
const MODEL: (&str, u32) = ("cortex-a72", 1500);

/// Carries out `demo`. `carry_out` carries out the verbs of which `demo taskset` consists.
pub fn run(options: &DemoOptions, carry_out: fn(Verb) -> Result<Verdict>) -> Result<Verdict> {
    if let Some(DemoOf::Taskset(options)) = &options.of {
        return taskset::run_all(options, carry_out);
    }
    if let Some(name) = &options.model {
        let machine = match (name, options.mhz) {
            (Some(name), Some(mhz)) => (&**name, mhz),
            (Some(name), None) => bail!("{name}: its clock rate is needed\n  hint: --model {name} --mhz 1500"),
            (None, mhz) => (MODEL.0, mhz.unwrap_or(MODEL.1)),
        };
        return on_a_model(options, machine, Vec::new());
    }
    files::make_folder(&options.output)?;
    let measurement = &options.measurement;
    let mut context = Context::new(measurement)?;
    let quick = usize::from(options.quick);
    let colored = context.target(measurement).and_then(|target| {
        let colors = target.geometry.color_count(context.machine.page_bytes) as usize;
        let pages = crpd::pages_in_short(target, PERCENTS[quick], colors.div_ceil(2));
        Ok((target, context.collect_at_least(measurement, target, pages)?))
    });
    let (target, found) = match colored {
        Ok((target, found)) => (target, found),
        // A limitation of the machine is an answer; a wrong option is an error.
        Err(error) if is_of_the_machine(&error) => return nothing_to_show(options, &hints::text(&*error)),
        Err(error) => return Err(error),
    };
    let (palette, pool) = found;
    eprintln!("{}", crate::doctor::brief(&doctor::examine(Duration::from_millis(100)).checks));
    eprintln!("level {}: {} colors by {} in {:.1} s", palette.level, palette.colors, palette.method, palette.seconds);

    let mut shown = Shown::default();
    shown.pair(options, &context)?;
    if !options.quick && !interrupt::interrupted() {
        let cpus = probed_cpus(&context);
        let notes = probe::measure(&mut context, Some((&pool, palette.level)), cpus)?;
        shown.warnings.extend(notes.iter().map(evidence::note_text));
    }
    if !interrupt::interrupted() {
        let (section, raw) = crpd::in_short(&context, (&pool, target), PERCENTS[quick].to_vec(), PREEMPTIONS[quick])?;
        shown.add(options, section, "preemptions.csv", &raw)?;
    }
    if options.full && !interrupt::interrupted() {
        kernels::measure(options, &context, (&pool, target), &palette, &mut shown)?;
    }
    let Shown { sections, raw, warnings } = shown;
    leave(options, evidence::of(&context, Some(palette), sections, &raw, warnings))
}

/// Contents of the report.
#[derive(Default)]
struct Shown {
    sections: Vec<Section>,
    raw: Vec<RawFile>,
    warnings: Vec<String>,
}

impl Shown {
    /// Adds a section whose samples go to the file `name`.
    fn add(&mut self, options: &DemoOptions, section: Section, name: &str, raw: &str) -> Result<()> {
        let file = files::write_raw(&options.output.join(name), raw)?;
        self.raw.push(RawFile { path: name.to_owned(), ..file });
        self.sections.push(section);
        Ok(())
    }

    /// Compares the pair of plain programs. Where they cannot be moved, a warning says why, and the rest is shown.
    fn pair(&mut self, options: &DemoOptions, context: &Context) -> Result<()> {
        match pair::measure(options, context) {
            Ok(Some((section, raw))) => self.add(options, section, "windows.csv", &raw),
            Ok(None) => Ok(()),
            Err(error) => {
                let why = format!("Two plain programs could not be compared: {}", hints::text(&*error));
                eprintln!("{why}");
                self.warnings.push(why);
                Ok(())
            }
        }
    }
}

/// Says in the first line why this machine has nothing to show, and plays preemptions on a modeled machine instead.
fn nothing_to_show(options: &DemoOptions, why: &str) -> Result<Verdict> {
    let why =
        format!("Nothing can be shown on this machine, because programs cannot be given parts of its cache: {why}");
    files::print(&format!("{why}\n"))?;
    on_a_model(options, MODEL, vec![why])?;
    Ok(Verdict::Inconclusive)
}

/// Plays preemptions on a modeled machine, given by its name and clock rate, and writes the report.
fn on_a_model(options: &DemoOptions, (name, mhz): (&str, u32), warnings: Vec<String>) -> Result<Verdict> {
    let mut section = crpd::on_a_model(name, mhz, PERCENTS[0])?;
    section.title =
        format!("{} (played on a model of {name} at {mhz} MHz: none of it was measured here)", section.title);
    files::make_folder(&options.output)?;
    // Evidence names the machine that this process runs on, which is not the modeled one.
    let evidence = evidence::about(&Sysfs::system().machine()?.0, &[], warnings);
    leave(options, Evidence { sections: vec![section], ..evidence })
}

/// Writes the report and prints the tables. The verdict is that of the first section.
fn leave(options: &DemoOptions, evidence: Evidence) -> Result<Verdict> {
    files::write_json(&options.output.join("evidence.json"), &evidence)?;
    let index = options.output.join("index.html");
    files::write(&index, &html(&evidence))?;
    files::print(&table(&evidence, files::width()))?;
    let index = fs::canonicalize(&index).unwrap_or(index);
    files::print(&format!("\nreport: {}\n", index.display()))?;
    Ok(evidence.sections.first().map_or(Verdict::Inconclusive, results::verdict))
}

/// Whether `error` is due to the machine or its present state, and not to wrong options.
fn is_of_the_machine(error: &anyhow::Error) -> bool {
    error.is::<InDoubt>()
        || error
            .chain()
            .filter_map(|cause| cause.downcast_ref::<ColorError>())
            .any(|error| error.may_pass() || matches!(error, ColorError::OneColor { .. }))
}

/// Returns the CPU of the context and a few others, which are probed to find out whether they share caches with it.
fn probed_cpus(context: &Context) -> Vec<CpuId> {
    const OTHERS: usize = 2;
    let others = context.allowed.iter().copied().filter(|cpu| *cpu != context.cpu).take(OTHERS);
    std::iter::once(context.cpu).chain(others).collect()
}

/// Memory whose pages have colors, and the level of these colors.
type Colored<'a> = (&'a FramePool, Target);
