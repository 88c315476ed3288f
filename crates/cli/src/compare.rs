//! `isochrome compare`: measures what own colors are worth to a program that runs, by a randomized crossover.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use isochrome_host::color::ColorError;
use isochrome_host::color::ledger::{self, Owner};
use isochrome_host::coloring::Coloring;
use isochrome_host::counters::Counters;
use isochrome_host::counters::events::{CYCLES, Event, INSTRUCTIONS, PAGE_FAULTS, events_of};
use isochrome_host::interrupt;
use isochrome_host::load::kernels::{Walk, Writer};
use isochrome_host::machine::sysfs::Sysfs;
use isochrome_host::process::Pid;
use isochrome_host::run::calls::CallReader;
use isochrome_host::run::marks::MarkReader;
use isochrome_host::runtime;
use isochrome_lab::compare::measure::{Calls, Counts, Lines, LoadGenerator, Measure, Reader, Reports, Socket, Wakeups};
use isochrome_lab::compare::party::Party;
use isochrome_lab::compare::place::{Side, Sides};
use isochrome_lab::compare::{
    About, Compared, Condition, Experiment, Program, Progress, Settings, Statistic, Window, block_windows, conclude,
    csv, once, preparation, run as measure, section,
};
use isochrome_lab::interference::expected::refill;
use isochrome_model::evidence::Standing;
use isochrome_model::machine::CacheLevel;
use isochrome_model::stats::blocks_needed;
use isochrome_model::units::{Bytes, Color, CpuId, Ns, format_list};
use isochrome_report::html;
use regex_lite::Regex;

use crate::args::{CompareOptions, Measured};
use crate::context::{self, Context};
use crate::verdict::{COULD_NOT_RUN, Verdict};
use crate::{coloring, evidence, files, hints, progress, results};

/// Numbers of colors of a curve.
const CURVE: [u32; 6] = [1, 2, 4, 8, 12, 16];

/// Number of times that programs are started anew for a window in each of the two conditions, if they can be.
const RESTARTS: u64 = 8;
/// Number of marks that the victim can set between two readings.
const MARKS: usize = 1 << 16;

/// Time between two checks while programs warm up.
const GLANCE: Duration = Duration::from_millis(20);

pub fn run(options: &CompareOptions) -> Result<Verdict> {
    options.output.as_deref().map_or(Ok(()), files::make_folder)?;
    let context = Context::at(None, context::seed(options.frames.seed))?;
    eprintln!("seed {}", context.seed);
    match measured(options, &context)? {
        Some(measured) => leave(options, &context, &measured),
        None => Ok(Verdict::Inconclusive),
    }
}

/// Runs the experiment that `options` describe; `None` where nothing can be won, after saying why.
pub fn measured(options: &CompareOptions, context: &Context) -> Result<Option<Compared>> {
    let begin = Instant::now();
    let patterns = Patterns::of(options)?;
    let mut settings = settings(options, context.seed)?;
    let mut programs = Programs::start(options, &patterns)?;
    let pairs = restarts(options, &programs)?;
    for party in programs.parties() {
        // A program that cannot be moved is reported before anything is measured.
        match party.pid.check() {
            Err(error) if !error.may_pass() => return Err(anyhow!(error).context(party.name.clone())),
            _ => {}
        }
    }
    let colored = Colored::of(options, &programs, settings.seed)?;
    if options.curve {
        settings.curve = CURVE.into_iter().filter(|own| *own < colored.all.color_count()).collect();
        settings.blocks = (options.windows / block_windows(&settings.curve)).max(blocks_needed(settings.curve.len()));
    }
    let (expected, refill) = (colored.expected(), colored.refill());
    expected.iter().for_each(|text| eprintln!("{text}"));
    if colored.is_hopeless() && !options.anyway {
        eprintln!("So nothing is measured (--anyway measures it nevertheless).");
        return Ok(None);
    }
    let mut measure_of = programs.measure(options, &patterns)?;
    let unit = if settings.statistic == Statistic::Throughput { "1/s" } else { measure_of.unit() }.to_owned();
    let mut sides = Sides::new(colored.sides(&programs)?);
    let bar = progress::parts("comparing", 1, "the result");
    let mut recorded = measure(programs.experiment(&settings, &mut sides, measure_of.as_mut(), &mut |progress| {
        bar.set_length(progress.most);
        bar.set_position(progress.done);
    }));
    bar.finish_and_clear();
    let (placements, seconds) = sides.placements;
    let measured = options.measure.with_statistic(options.statistic).0;
    let about = About {
        victim: colored.program(&programs.victim, &colored.victim),
        neighbor: programs.neighbor.as_ref().map(|neighbor| colored.program(neighbor, &colored.neighbor)),
        level: colored.all.level(),
        colors: colored.all.color_count(),
        measure: measure_text(options),
        unit,
        larger_is_better: options.larger_is_better
            || settings.statistic == Statistic::Throughput && !matches!(measured, Measured::Counter(_)),
        expected,
        refill_us: refill.map(|time| time.0 as f64 / 1e3),
        placing_s: if placements == 0 { 0.0 } else { seconds / placements as f64 },
    };
    let pairs = if recorded.as_planned && !options.curve { pairs } else { 0 };
    let times = (begin, settings.limit.map(|limit| begin + limit));
    // The programs that are started anew must have the machine for themselves.
    drop((measure_of, sides, programs));
    let preparation = preparation(&recorded.windows);
    recorded.restarts = restarted((options, &patterns), &settings, &colored, pairs, times, preparation);
    Ok(Some(conclude(recorded, &settings, about)))
}

/// Returns the number of pairs of windows for which the programs are started anew: the number in the options, or else [`RESTARTS`] if all programs
/// were started here. Fails if the options request restarts that are impossible.
fn restarts(options: &CompareOptions, programs: &Programs) -> Result<u64> {
    let running = programs.parties().find(|party| !party.is_ours());
    match (options.restarts, running) {
        (Some(1..), Some(party)) => {
            bail!(
                "{} runs already, and cannot be started anew\n  hint: give its command line, or --restarts 0",
                party.name
            )
        }
        (None, Some(_)) => Ok(0),
        (asked, _) => Ok(asked.unwrap_or(RESTARTS)),
    }
}

/// Starts the programs anew for one window as found and one apart in each pair, in random order, and returns the windows. No window begins after
/// `until`. If no window can be measured any more, prints the reason and stops.
fn restarted(
    (options, patterns): (&CompareOptions, &Patterns),
    settings: &Settings,
    colored: &Colored,
    pairs: u64,
    (begin, until): (Instant, Option<Instant>),
    preparation: Duration,
) -> Vec<Window> {
    let mut rng = fastrand::Rng::with_seed(!settings.seed);
    let bar = progress::parts("starting anew", 2 * pairs, "the result");
    let mut windows = Vec::new();
    // A program as found is as old as one that was moved when its window begins.
    let waits = Settings { settle: preparation.max(settings.settle), ..settings.clone() };
    let order = (0..pairs).flat_map(|pair| {
        let mut conditions = [Condition::AsFound, Condition::Apart];
        rng.shuffle(&mut conditions);
        conditions.map(|condition| (pair, condition))
    });
    for (pair, condition) in order.take_while(|_| until.is_none_or(|until| Instant::now() < until)) {
        let window = || -> Result<Window> {
            let mut programs = Programs::start(options, patterns)?;
            let mut measure = programs.measure(options, patterns)?;
            let mut sides = Sides::new(colored.sides(&programs)?);
            let (mut none, settings) = (|_| {}, if condition == Condition::AsFound { &waits } else { settings });
            let experiment = programs.experiment(settings, &mut sides, measure.as_mut(), &mut none);
            once(experiment, begin, pair, condition).map_err(|why| anyhow!(why))
        };
        match window() {
            Ok(window) => windows.push(window),
            Err(error) => {
                let count = windows.len();
                progress::tell(&bar, &format!("isochrome: restarts end after {count} windows: {error:#}"));
                break;
            }
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    windows
}

/// The programs of the experiment, and the readers of their output.
struct Programs {
    victim: Party,
    neighbor: Option<Party>,
    lines: Option<Lines>,
    neighbor_lines: Option<Lines>,
    marks: Option<MarkReader>,
}

impl Programs {
    /// Starts the programs, or finds those that run already, and lets those that were started warm up.
    fn start(options: &CompareOptions, patterns: &Patterns) -> Result<Programs> {
        let measured = options.measure.with_statistic(options.statistic).0;
        let marks = (*measured == Measured::Marks).then(|| MarkReader::new(MARKS)).transpose()?;
        let (mut victim, output) = party(&options.victim, matches!(measured, Measured::Lines(_)), marks.as_ref())?;
        let neighbor =
            options.neighbor.as_ref().map(|text| party(text, patterns.neighbor.is_some(), None)).transpose()?;
        let (mut neighbor, neighbor_output) = neighbor.map_or((None, None), |(party, output)| (Some(party), output));
        let lines = output.zip(patterns.lines.clone()).map(|(output, pattern)| Lines::of(output, pattern));
        let neighbor_lines = neighbor_output.zip(patterns.neighbor.clone()).map(|(output, it)| Lines::of(output, it));
        warm_up(options, &mut victim, neighbor.as_mut())?;
        Ok(Programs { victim, neighbor, lines, neighbor_lines, marks })
    }

    fn parties(&self) -> impl Iterator<Item = &Party> {
        std::iter::once(&self.victim).chain(&self.neighbor)
    }

    /// Returns the measure that `options` choose. The measure takes over the victim's output, so there can be only one.
    fn measure(&mut self, options: &CompareOptions, patterns: &Patterns) -> Result<Box<dyn Measure>> {
        let measured = options.measure.with_statistic(options.statistic).0;
        let (lines, marks) = (self.lines.take(), self.marks.take());
        measure_of((options, measured), &self.victim, lines, marks, patterns.number.clone())
    }

    /// Returns the experiment with these programs.
    fn experiment<'a>(
        &'a mut self,
        settings: &'a Settings,
        sides: &'a mut Sides,
        measure: &'a mut dyn Measure,
        progress: &'a mut dyn FnMut(Progress),
    ) -> Experiment<'a> {
        Experiment {
            settings,
            victim: &mut self.victim,
            neighbor: self.neighbor.as_mut(),
            place: sides,
            measure,
            neighbor_lines: self.neighbor_lines.as_mut(),
            progress,
        }
    }
}

/// Prints the result, writes the folder, and returns the verdict.
fn leave(options: &CompareOptions, context: &Context, measured: &Compared) -> Result<Verdict> {
    let section = section(measured);
    if let Some(folder) = &options.output {
        let raw = files::write_raw(&folder.join("windows.csv"), &csv(measured))?;
        let raw = isochrome_model::evidence::RawFile { path: "windows.csv".to_owned(), ..raw };
        let warnings = context.notes.iter().map(evidence::note_text).collect();
        let evidence = evidence::of(context, None, vec![section.clone()], &[raw], warnings);
        files::write_json(&folder.join("evidence.json"), &evidence)?;
        files::write(&folder.join("index.html"), &html(&evidence))?;
    }
    results::print(options.json, &section, context.seed)?;
    if !measured.as_planned {
        let hint = if measured.lacks_frames() { hints::RARE_FRAMES } else { "" };
        eprintln!("isochrome: the experiment ended early: {}{hint}", measured.ended);
    }
    let has_any = measured.windows.iter().any(|window| window.excluded.is_none());
    Ok(match () {
        () if !has_any && !interrupt::interrupted() => Verdict::Ended(ExitCode::from(COULD_NOT_RUN)),
        () if measured.shows_effect() || measured.shows_equivalence() => Verdict::Holds,
        () if !measured.curve.is_empty() && section.standing == Some(Standing::Holds) => Verdict::Holds,
        () => Verdict::Inconclusive,
    })
}

/// The patterns in the options.
struct Patterns {
    lines: Option<Regex>,
    number: Option<Regex>,
    neighbor: Option<Regex>,
}

impl Patterns {
    fn of(options: &CompareOptions) -> Result<Patterns> {
        let one = |text: Option<&String>| text.map(|text| pattern(text)).transpose();
        let lines = match options.measure.with_statistic(options.statistic).0 {
            Measured::Lines(text) => Some(text),
            _ => None,
        };
        Ok(Patterns {
            lines: one(lines)?,
            number: one(options.number.as_ref())?,
            neighbor: one(options.neighbor_lines.as_ref())?,
        })
    }
}

/// Returns the pattern `text`, which has to have one group.
fn pattern(text: &str) -> Result<Regex> {
    let pattern = Regex::new(text).map_err(|error| anyhow!("`{text}` is not a pattern: {error}"))?;
    ensure!(
        pattern.captures_len() == 2,
        "`{text}` has {} groups, and the number has to be the only one\n  hint: 'took ([0-9.]+) us'; (?:…) is not a group",
        pattern.captures_len() - 1
    );
    Ok(pattern)
}

fn settings(options: &CompareOptions, seed: u64) -> Result<Settings> {
    let duration = |time: Ns| Duration::from_nanos(time.0);
    ensure!(options.window.0 > 0, "the length of a window is 0\n  hint: --window 1s");
    ensure!(options.margin > 0.0, "a margin of 0 cannot be ruled out\n  hint: --margin 3");
    ensure!(options.rate > 0.0 && options.rate.is_finite(), "the rate must be above 0\n  hint: --rate 1000");
    Ok(Settings {
        blocks: options.windows / block_windows(&[]),
        found: options.found,
        window: duration(options.window),
        settle: duration(options.settle),
        limit: options.limit.map(duration),
        seed,
        statistic: options.measure.with_statistic(options.statistic).1,
        margin: options.margin / 100.0,
        stops_early: !options.all_windows,
        curve: Vec::new(),
    })
}

/// Returns the program that `text` names, by its number or by a command line, which is started and sets its marks for `marks`. If its `lines` are
/// wanted, the other side of its output is returned.
fn party(text: &str, lines: bool, marks: Option<&MarkReader>) -> Result<(Party, Option<std::os::fd::OwnedFd>)> {
    if let Ok(pid) = text.trim().parse::<i32>() {
        ensure!(
            !lines,
            "the output of process {pid} goes elsewhere, so its lines cannot be read\n  hint: give its command line, or another measure"
        );
        ensure!(
            marks.is_none(),
            "process {pid} runs already, and marks go only to the program that started it\n  hint: give its command line, or another measure"
        );
        let party = Party::running(Pid(pid)).with_context(|| format!("there is no process {pid}"))?;
        return Ok((party, None));
    }
    let words = words(text)?;
    Party::start(&words, lines, marks).with_context(|| format!("`{text}` cannot be started\n  hint: is it in PATH?"))
}

/// Splits a command line at spaces, except in quotes.
fn words(text: &str) -> Result<Vec<String>> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    for c in text.chars() {
        match quote {
            Some(open) if c == open => quote = None,
            None if c == '\'' || c == '"' => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            None if c.is_whitespace() => words.extend(word.take()),
            _ => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    ensure!(quote.is_none(), "`{text}`: a quote is not closed");
    ensure!(!words.is_empty(), "an empty command line\n  hint: a process number, or a program with its arguments");
    Ok(words)
}

/// Lets programs that were started here run for a while.
fn warm_up(options: &CompareOptions, victim: &mut Party, mut neighbor: Option<&mut Party>) -> Result<()> {
    let starts = victim.is_ours() || neighbor.as_ref().is_some_and(|neighbor| neighbor.is_ours());
    let end = Instant::now() + Duration::from_nanos(if starts { options.warm_up.0 } else { 0 });
    loop {
        for party in std::iter::once(&mut *victim).chain(neighbor.as_deref_mut()) {
            if let Some(end) = party.ended() {
                bail!(
                    "{} ended before anything was measured ({end})\n  hint: run it by hand; it has to go on by itself",
                    party.name
                );
            }
        }
        if Instant::now() >= end || interrupt::interrupted() {
            return Ok(());
        }
        std::thread::sleep(GLANCE);
    }
}

/// Returns the measured quantity, in the words of the command line.
fn measure_text(options: &CompareOptions) -> String {
    let (measured, statistic) = options.measure.with_statistic(options.statistic);
    match measured {
        Measured::Throughput(_) => "how many per second".to_owned(),
        Measured::Calls(file, name) if statistic == Statistic::Throughput => {
            format!("calls of `{name}` in {}", file.display())
        }
        Measured::Calls(file, name) => format!("time of a call of `{name}` in {}", file.display()),
        Measured::Marks if statistic == Statistic::Throughput => "jobs that the victim marks".to_owned(),
        Measured::Marks => "time of a job that the victim marks".to_owned(),
        Measured::Counter(event) => format!("counts of {event}"),
        Measured::Wakeups(quantity) => format!("{quantity:?} time per wake-up").to_lowercase(),
        Measured::Lines(pattern) => format!("numbers that the victim prints: {pattern}"),
        Measured::Command(command) => format!("numbers that `{command}` prints"),
        Measured::Socket(target) => format!("{:?} requests to {}", target.protocol, target.address).to_lowercase(),
    }
}

/// Returns the measure that `options` choose.
fn measure_of(
    (options, measured): (&CompareOptions, &Measured),
    victim: &Party,
    lines: Option<Lines>,
    marks: Option<MarkReader>,
    number: Option<Regex>,
) -> Result<Box<dyn Measure>> {
    let statistic = options.measure.with_statistic(options.statistic).1;
    Ok(match measured {
        Measured::Throughput(_) => bail!("a number per second of a number per second"),
        Measured::Calls(file, name) => {
            Box::new(Calls::new(victim.pid, Reports::Calls(CallReader::open(&victim.pid.cpus()?, file, name)?)))
        }
        Measured::Marks => Box::new(Calls::new(victim.pid, Reports::Marks(marks.context("the victim sets no marks")?))),
        Measured::Counter(name) => Box::new(Counts::new(victim.pid, counted(name)?)),
        Measured::Lines(_) => Box::new(lines.context("the victim has no output")?),
        Measured::Socket(target) => Box::new(Socket::new(target.clone(), options.rate)),
        Measured::Wakeups(quantity) => {
            let cpus = victim.pid.cpus()?;
            let [cpu] = cpus[..] else {
                bail!(
                    "{} may run on {} CPUs, and jobs by wake-ups are followed on one\n  hint: taskset -pc {} {}",
                    victim.name,
                    cpus.len(),
                    cpus.last().map_or(0, |cpu| cpu.0),
                    victim.pid.0
                );
            };
            Box::new(Wakeups::new(victim.pid, cpu, *quantity)?)
        }
        Measured::Command(command) => {
            let program = command.split_whitespace().next().unwrap_or_default();
            let (program, reader) = match number {
                Some(pattern) => (program, Reader::Numbers(pattern)),
                None => Reader::of_command(command).with_context(|| {
                    format!("the output format of `{program}` is not known\n  hint: --number 'took ([0-9.]+) ms'")
                })?,
            };
            ensure!(
                reader.statistics().contains(&statistic),
                "`{program}` prints no {}\n  hint: --statistic {}",
                statistic.name(),
                reader.statistics().iter().map(|it| serde_name(*it)).collect::<Vec<_>>().join(", ")
            );
            Box::new(LoadGenerator { command: command.clone(), reader, statistic })
        }
    })
}

/// Returns the event `name`, once it has proved to count.
fn counted(name: &str) -> Result<Event> {
    let processor = Sysfs::system().processor()?;
    let known = || [INSTRUCTIONS, CYCLES, PAGE_FAULTS].into_iter().chain(events_of(&processor).iter().copied());
    let event = known().find(|event| event.name.eq_ignore_ascii_case(name)).with_context(|| {
        let names: Vec<&str> = known().map(|event| event.name).collect();
        format!("no event `{name}` is known of this processor\n  hint: {}", names.join(", "))
    })?;
    Counters::open(&[event])?;
    Ok(event)
}

/// Returns the name of a statistic on the command line.
fn serde_name(statistic: Statistic) -> String {
    serde_json::to_value(statistic).ok().and_then(|name| name.as_str().map(str::to_owned)).unwrap_or_default()
}

/// The colors of both programs.
struct Colored {
    /// All colors.
    all: Coloring,
    cache: CacheLevel,
    victim: Vec<Color>,
    neighbor: Vec<Color>,
    /// CPUs of the victim and of the neighbor.
    cpus: [Vec<CpuId>; 2],
    has_neighbor: bool,
}

impl Colored {
    fn of(options: &CompareOptions, programs: &Programs, seed: u64) -> Result<Colored> {
        let Programs { victim, neighbor, .. } = programs;
        let cpus = [victim.pid.cpus()?, neighbor.as_ref().map_or(Ok(Vec::new()), |neighbor| neighbor.pid.cpus())?];
        let mut all = coloring::resolve(&options.chosen(), cpus[0].clone(), seed)?;
        all.search_frames().map_err(ColorError::from)?;
        let count = all.color_count();
        ensure!(count > 1, "level {} has one color only, which cannot be divided", all.level());
        let (own, theirs) = divided(options.colors.as_deref(), &options.neighbor_colors, count)?;
        let cache = all.cache()?.clone();
        Ok(Colored { all, cache, victim: own, neighbor: theirs, cpus, has_neighbor: neighbor.is_some() })
    }

    fn program(&self, party: &Party, colors: &[Color]) -> Program {
        let cpus = if party.pid.0 == 0 { Vec::new() } else { party.pid.cpus().unwrap_or_default() };
        Program {
            name: party.name.clone(),
            pid: party.pid.0,
            colors: colors.iter().map(|color| u32::from(color.0)).collect(),
            cpus: cpus.iter().map(|cpu| cpu.0).collect(),
        }
    }

    /// Returns both programs with the colorings that move them.
    fn sides(&self, programs: &Programs) -> Result<Vec<Side>> {
        let parties = std::iter::once((&programs.victim, &self.victim, &self.cpus[0]));
        let neighbor = programs.neighbor.as_ref();
        let parties = parties.chain(neighbor.map(|neighbor| (neighbor, &self.neighbor, &self.cpus[1])));
        parties
            .map(|(party, own, cpus)| {
                let all: Vec<Color> = (0..self.all.color_count() as u16).map(Color).collect();
                let owner = Owner::of(party.pid.0 as u32)?;
                Ok(Side {
                    name: party.name.clone(),
                    pid: party.pid,
                    is_ours: party.is_ours(),
                    spread: self.all.of_another(all, cpus.clone()),
                    apart: self.all.of_another(own.clone(), cpus.clone()),
                    held: ledger::colors_of(&runtime::folder(), &owner, self.all.level()),
                    placed: Vec::new(),
                })
            })
            .collect()
    }

    /// Whether nothing can be won: the programs never use the same cache.
    fn is_hopeless(&self) -> bool {
        let [own, theirs] = &self.cpus;
        let share = |group: &Vec<CpuId>| {
            own.iter().any(|cpu| group.contains(cpu)) && theirs.iter().any(|cpu| group.contains(cpu))
        };
        self.has_neighbor && !self.cache.shared_by.value.iter().any(share)
    }

    /// Measures the time in which half of the level is read again; `None` if there is no memory for that.
    fn refill(&self) -> Option<Ns> {
        let level = self.cache.geometry.value.cache_bytes();
        let (walk, mut writer) = (Walk::new(Bytes(level.0 / 2)).ok()?, Writer::new(Bytes(2 * level.0)).ok()?);
        Some(refill(&walk, &mut writer))
    }

    /// Describes the effect that is expected before anything is measured, in sentences.
    fn expected(&self) -> Vec<String> {
        if !self.is_hopeless() {
            return Vec::new();
        }
        let [own, theirs] =
            self.cpus.each_ref().map(|cpus| format_list(&cpus.iter().map(|cpu| cpu.0).collect::<Vec<_>>()));
        vec![format!(
            "The victim runs on CPU {own} and the neighbor on CPU {theirs}, which do not share a cache of level {}: the neighbor \
             cannot take lines of it from the victim",
            self.cache.level
        )]
    }
}

/// Returns the colors of the victim and of the neighbor out of `count`.
fn divided(own: Option<&str>, theirs: &str, count: u32) -> Result<(Vec<Color>, Vec<Color>)> {
    let own = match own {
        None => coloring::own_colors(None, count)?,
        Some(text) => match text.trim().parse::<u32>() {
            Ok(number) => {
                ensure!(
                    (1..count).contains(&number),
                    "{number} of {count} colors\n  hint: --colors 1 to {}",
                    count - 1
                );
                (0..number as u16).map(Color).collect()
            }
            Err(_) => coloring::own_colors(Some(text), count)?,
        },
    };
    let theirs = match theirs {
        "rest" => (0..count as u16).map(Color).filter(|color| !own.contains(color)).collect(),
        list => coloring::listed(list, count)?,
    };
    ensure!(
        !theirs.iter().any(|color| own.contains(color)),
        "the programs have colors in common\n  hint: --neighbor-colors rest"
    );
    Ok((own, theirs))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_line_is_split_at_spaces_except_in_quotes() {
        assert_eq!(words("taskset -c 1 sh -c 'a  b' \"\"").unwrap(), ["taskset", "-c", "1", "sh", "-c", "a  b", ""]);
        assert!(words("'a").is_err() && words("  ").is_err());
    }

    #[test]
    fn colors_are_a_number_or_a_list_and_the_neighbor_has_the_rest() {
        let of = |own, theirs| {
            let (own, theirs) = divided(own, theirs, 8)?;
            Ok::<_, anyhow::Error>([own, theirs].map(|it| it.iter().map(|color| color.0).collect::<Vec<_>>()))
        };
        assert_eq!(of(None, "rest").unwrap(), [vec![0, 1, 2, 3], vec![4, 5, 6, 7]]);
        assert_eq!(of(Some("2"), "rest").unwrap()[0], [0, 1]);
        assert_eq!(of(Some("2-3"), "6,7").unwrap(), [vec![2, 3], vec![6, 7]]);
        for (own, theirs) in [("8", "rest"), ("0", "rest"), ("0-3", "3"), ("9-10", "rest")] {
            assert!(of(Some(own), theirs).is_err(), "{own} {theirs}");
        }
    }

    #[test]
    fn a_pattern_has_one_group() {
        assert!(pattern("took ([0-9]+)").is_ok());
        assert!(pattern("took").is_err() && pattern("(a)(b)").is_err() && pattern("(").is_err());
    }
}
