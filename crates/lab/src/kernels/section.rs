//! The section of a report on the cost of a flood, kernel by kernel: how much longer a job takes, how rare long jobs are, and how many of its
//! lines were evicted.

use isochrome_model::evidence::figure::{Axis, CacheMap, Chart, Dash, Hue, Line, Mark, range_of};
use isochrome_model::evidence::format::{self, Clock, DASH};
use isochrome_model::evidence::{PaletteEvidence, Section, Standing};
use isochrome_model::machine::Machine;
use isochrome_model::stats::{SIGNIFICANT, compare_high_water_marks, exceedance_at, holm};
use isochrome_model::units::Cycles;

use super::{Condition, Experiment, JobSummary, Kernels, Outcome};

/// Least number of accepted blocks that carry a conclusion.
const BLOCKS: u64 = 5;
/// Least number of jobs for which the 99 % quantile is shown. For fewer jobs the quantile is merely the longest job.
const JOBS: u64 = 100;
/// Confidence of the bound on how often a high-water mark is exceeded.
const CONFIDENCE: f64 = 0.95;
/// Least ratio of the ends of a range that is drawn on a logarithmic axis.
const WIDE: f64 = 8.0;
/// Least factor by which own colors must shorten the median job to count as helpful, if blocks were not compared one by one.
const GAIN: f64 = 1.05;

/// The conditions with a flood.
const FLOODED: [Condition; 3] = [Condition::Unpartitioned, Condition::Partitioned, Condition::SingleWriter];

/// Returns the name of a condition and the style of its line: solid, dotted and dashed as in [Liedtke1997, Figure 4].
fn style(condition: Condition) -> (&'static str, Hue, Dash) {
    match condition {
        Condition::Alone => ("alone", Hue::Alone, Dash::Thin),
        Condition::Unpartitioned => ("unpartitioned", Hue::Unpartitioned, Dash::Solid),
        Condition::Partitioned => ("partitioned", Hue::Partitioned, Dash::Dotted),
        Condition::SingleWriter => ("single-writer", Hue::SingleWriter, Dash::Dashed),
    }
}

/// Formats a plausible value by `text`; a dash if it is missing, not finite, or 10^12 or more.
fn or_dash(value: Option<f64>, text: impl Fn(f64) -> String) -> String {
    value.filter(|value| value.abs() < 1e12).map_or(DASH.to_owned(), text)
}

/// An experiment with its corrected p-value.
struct Reading<'a> {
    experiment: &'a Experiment,
    /// The p-value of the gain, corrected for all sizes that were measured together.
    p: Option<f64>,
}

impl Reading<'_> {
    /// Returns the outcome of a condition; `None` if it has no jobs.
    fn outcome(&self, condition: Condition) -> Option<&Outcome> {
        self.experiment.conditions.get(&condition).filter(|outcome| outcome.jobs.n > 0)
    }

    fn size(&self) -> u64 {
        self.experiment.parameter.values().next().copied().unwrap_or(0)
    }

    /// Returns c_min, the shortest undisturbed job; `None` if it is unknown or zero.
    fn cycles_min(&self) -> Option<Cycles> {
        self.outcome(Condition::Alone).map(|alone| alone.jobs.cycles_min).filter(|cycles| cycles.0 > 0)
    }

    /// Returns a time of `jobs`, those of a condition or of its control, divided by c_min.
    fn over_min(&self, jobs: &JobSummary, time: fn(&JobSummary) -> Cycles) -> Option<f64> {
        (jobs.n > 0).then_some(())?;
        Some(time(jobs).0 as f64 / self.cycles_min()?.0 as f64)
    }

    /// Returns the median job of a condition divided by c_min: the unpredictability that is drawn. Every recorded job follows a flood, so the
    /// median job already shows the effect of the flood. On a shared host, longer jobs show other disturbances, which the control shows too.
    fn median(&self, condition: Condition) -> Option<f64> {
        self.over_min(&self.outcome(condition)?.jobs, |jobs| jobs.cycles_median)
    }

    /// Returns the 99 % quantile of `jobs` divided by c_min; `None` if there are too few jobs.
    fn p99(&self, jobs: &JobSummary) -> Option<f64> {
        self.over_min(jobs, |jobs| jobs.cycles_p99).filter(|_| jobs.n >= JOBS)
    }

    /// Returns c_max divided by c_min, as in the paper. `None` if the flooded conditions differ in their number of jobs, since a maximum grows
    /// with that number.
    fn max(&self, condition: Condition) -> Option<f64> {
        let Outcome { jobs, high_water_mark, .. } = self.outcome(condition)?;
        for other in FLOODED.iter().filter_map(|&c| self.outcome(c)) {
            compare_high_water_marks(*high_water_mark, other.high_water_mark).ok()?;
        }
        self.over_min(jobs, |jobs| jobs.cycles_max)
    }

    /// Formats the share of the task's lines that were evicted when a job began, and the misses of the second level.
    fn left(&self, condition: Condition) -> String {
        let jobs = self.outcome(condition).map(|outcome| &outcome.jobs);
        let lost = jobs.and_then(|jobs| jobs.lost_median).filter(|lost| (0.0..=1.0).contains(lost));
        let misses = jobs.and_then(|jobs| jobs.l2_misses_median).filter(|misses| misses.is_finite());
        let misses = misses.map_or_else(String::new, |misses| format!(" ({} misses)", format::grouped(misses as u64)));
        or_dash(lost, format::share) + &misses
    }

    /// Returns the factor by which own colors shorten the median job.
    fn gain(&self) -> Option<f64> {
        let [without, with] =
            [Condition::Unpartitioned, Condition::Partitioned].map(|c| self.outcome(c).map(|o| o.jobs.cycles_median.0));
        let with = with.filter(|with| *with > 0)?;
        Some(without? as f64 / with as f64)
    }

    /// Returns why there are too few blocks or jobs to judge `condition`; `None` if there are enough.
    fn doubt(&self, condition: Condition) -> Option<String> {
        let name = style(condition).0;
        let Some(outcome) = self.experiment.conditions.get(&condition) else {
            return Some(format!("{name} was not run"));
        };
        let Outcome { blocks_quiet, blocks, jobs, .. } = outcome;
        if *blocks_quiet < BLOCKS {
            return Some(format!("{name}: {blocks_quiet} of {blocks} blocks were accepted, {BLOCKS} are needed"));
        }
        (jobs.n < JOBS).then(|| format!("{name}: {} jobs, {JOBS} are needed", jobs.n))
    }

    /// Returns whether own colors help here, and the reason if that cannot be judged, else an empty string.
    fn standing(&self) -> (Standing, String) {
        let doubted = [Condition::Alone, Condition::Unpartitioned, Condition::Partitioned];
        if let Some(doubt) = doubted.into_iter().find_map(|condition| self.doubt(condition)) {
            return (Standing::Inconclusive, doubt);
        }
        let (Some(gain), Some(_), Some(flooded)) =
            (self.gain(), self.cycles_min(), self.outcome(Condition::Unpartitioned))
        else {
            return (Standing::Inconclusive, "a time was recorded as zero".to_owned());
        };
        // The effect of the flood is the excess over the control of the same blocks. Without an effect, own colors can neither help nor fail.
        let effect = match flooded.effect_cycles {
            Some(effect) => effect.estimate > 0.0 && effect.is_significant(),
            None => flooded.control.n > 0 && flooded.control.cycles_median < flooded.jobs.cycles_median,
        };
        if !effect {
            return (Standing::Inconclusive, "jobs without a flood took as long in the same blocks".to_owned());
        }
        let gains = match (self.experiment.gain_cycles, self.p) {
            (Some(gain), Some(p)) => gain.estimate > 0.0 && p <= SIGNIFICANT,
            _ => gain >= GAIN,
        };
        (if gains { Standing::Holds } else { Standing::NoGain }, String::new())
    }
}

/// Experiments of one kernel that differ only in problem size, by ascending size.
struct Kernel<'a>(Vec<Reading<'a>>);

/// Groups the experiments by kernel, in the order of their first appearance.
fn kernels(measured: &Kernels) -> Vec<Kernel<'_>> {
    let gains: Vec<Option<f64>> = measured.experiments.iter().map(|it| it.gain_cycles.map(|gain| gain.p)).collect();
    let mut corrected = holm(&gains.iter().flatten().copied().collect::<Vec<_>>()).into_iter();
    let mut kernels: Vec<Kernel<'_>> = Vec::new();
    for (experiment, gain) in measured.experiments.iter().zip(&gains) {
        let reading = Reading { experiment, p: gain.and_then(|_| corrected.next()) };
        let key =
            |it: &Experiment| (it.bench.clone(), it.element.clone(), it.parameter.keys().cloned().collect::<Vec<_>>());
        match kernels.iter_mut().find(|kernel| key(kernel.0[0].experiment) == key(experiment)) {
            Some(kernel) => kernel.0.push(reading),
            None => kernels.push(Kernel(vec![reading])),
        }
    }
    kernels.iter_mut().for_each(|kernel| kernel.0.sort_by_key(Reading::size));
    kernels
}

impl<'a> Kernel<'a> {
    fn bench(&self) -> &'a str {
        &self.0[0].experiment.bench
    }

    fn parameter(&self) -> &'a str {
        self.0[0].experiment.parameter.keys().next().map_or("", String::as_str)
    }

    /// Returns the name of the kernel as a heading.
    fn title(&self) -> String {
        let name = match self.bench() {
            "filter" => "Filter",
            "dct" => "DCT",
            "fft" => "FFT",
            "matmul" => "Matrix multiplication",
            "combined" => "Filter and matrix together",
            other => other,
        };
        format!("{name}, {}", self.0[0].experiment.element)
    }

    /// Returns the label of the problem size for an axis.
    fn axis(&self) -> &'a str {
        match self.parameter() {
            "taps" => "filter coefficients",
            "slice_us" => "length of each of a job’s four time slices, µs",
            "rate_hz" => "filter activations per second, four a job",
            "" => "problem size",
            other => other,
        }
    }

    /// Returns sentences that explain a job; empty if the name of the kernel says enough.
    fn what_a_job_is(&self) -> &'static str {
        match self.bench() {
            "matmul" => {
                "A job is four time slices of 64 × 64 matrix multiplications, back to back. The co-runner runs before each slice."
            }
            "combined" => {
                "A job is four intervals of 64 × 64 matrix multiplications, back to back, each begun by an activation of the filter. The \
                 co-runner runs before each interval."
            }
            _ => "",
        }
    }

    /// Describes the job at `size` as the subject of a sentence.
    fn job(&self, size: u64) -> String {
        let number = format::grouped(size);
        match self.parameter() {
            "slice_us" => format!("a job of matrix multiplication in slices of {number} µs, each after a cache flood,"),
            "rate_hz" => format!(
                "a job of matrix multiplication with {number} filter activations a second, each after a cache flood,"
            ),
            "" => format!("a {} job after a cache flood", self.bench()),
            parameter => format!("a {} job of {number} {parameter} after a cache flood", self.bench()),
        }
    }
}

/// Returns the standing, the headline and its basis. They are about the largest size of the first kernel, a choice that does not depend on the
/// results.
fn headline(kernels: &[Kernel<'_>]) -> (Option<Standing>, String, String) {
    let Some((kernel, reading)) = kernels.first().and_then(|kernel| Some((kernel, kernel.0.last()?))) else {
        return (Some(Standing::Inconclusive), "No kernel was measured.".to_owned(), String::new());
    };
    let job = kernel.job(reading.size());
    let (standing, why) = reading.standing();
    let all = || kernels.iter().flat_map(|kernel| &kernel.0);
    let helped = all().filter(|reading| reading.standing().0 == Standing::Holds).count();
    let others = match all().count() {
        1 => String::new(),
        count => format!(" Of {count} settings that were measured, own colors help in {helped}; all are shown below."),
    };
    let times = |condition| or_dash(reading.median(condition), format::significant);
    let [without, with] = [Condition::Unpartitioned, Condition::Partitioned].map(times);
    let gain = reading.experiment.gain_cycles.and_then(|gain| Some((gain.interval?, reading.p?)));
    let gain = gain.map_or_else(String::new, |([low, high], p)| {
        format!(" Own colors save {low:.0} to {high:.0} cycles of the median job (95 %, {}).", format::p_value(p))
    });
    let blocks = [Condition::Unpartitioned, Condition::Partitioned].map(|condition| {
        let outcome = reading.outcome(condition);
        outcome.map_or(String::new(), |o| {
            format!(
                "{} jobs in {} of {} blocks {}",
                format::grouped(o.jobs.n),
                o.blocks_quiet,
                o.blocks,
                style(condition).0
            )
        })
    });
    let lost = [Condition::Unpartitioned, Condition::Partitioned].map(|condition| reading.left(condition));
    let basis = format!(
        "“Time” is the median job’s, over the shortest undisturbed job; {}.{gain} Lines of its cache lost before a job: {} without own \
         colors, {} with.{others}",
        blocks.join(", "),
        lost[0],
        lost[1]
    );
    let sentence = match standing {
        Standing::Inconclusive => {
            let text = format!(
                "Whether own colors help {} cannot be concluded from this run: {why}.",
                job.trim_end_matches(',')
            );
            return (Some(standing), text, others);
        }
        Standing::NoGain => {
            format!(
                "Own colors bring nothing measurable here: {job} takes {with} times its undisturbed time with them and {without} times without."
            )
        }
        _ => format!("With its own colors {job} takes {with} times its undisturbed time; without, {without} times."),
    };
    (Some(standing), sentence, basis)
}

/// Draws the median jobs against the problem size.
fn size_chart(machine: &Machine, kernel: &Kernel<'_>) -> Chart {
    let overhead = |ratio: f64| (ratio - 1.0) * 100.0;
    let line = |condition| {
        let (name, hue, dash) = style(condition);
        let of = |reading: &Reading<'_>| Some((reading.size() as f64, overhead(reading.median(condition)?)));
        let marks = kernel.0.iter().filter_map(|it| Some(Mark { at: of(it)?, hollow: it.doubt(condition).is_some() }));
        Line { marks: marks.collect(), ..Line::new(name, hue, dash, kernel.0.iter().filter_map(of).collect()) }
    };
    let lines: Vec<Line> =
        [Condition::Alone].into_iter().chain(FLOODED).map(line).filter(|line| !line.points.is_empty()).collect();
    let sizes: Vec<f64> = kernel.0.iter().map(|reading| reading.size() as f64).collect();
    let (smallest, largest) = range_of(sizes.iter().copied());
    let (low, high) = range_of(lines.iter().flat_map(|line| line.points.iter().map(|p| p.1)).chain([0.0]));
    let x = if smallest > 0.0 && largest / smallest >= WIDE { Axis::log } else { Axis::linear };
    // A single size stands in the middle of the axis.
    let ends = if smallest < largest { (smallest, largest) } else { (smallest * 0.5, smallest * 1.5) };
    let percent = |value: f64| format!("{}{} %", if value > 0.0 { "+" } else { "" }, format::tick(value));
    Chart {
        title: format!("{}: unpredictability", kernel.title()),
        description: "The median job after a flood, over the shortest undisturbed job. Hollow: too few blocks or jobs."
            .to_owned(),
        x: x(kernel.axis(), ends, format::tick).with_ticks(&sizes, format::tick),
        y: Axis::linear_rounded("time added, median job", (low, high), percent),
        lines,
        rules: cache_rules(machine, kernel),
    }
}

/// Returns the sizes at which the working set outgrows a data cache, each with a label, for kernels whose working set grows with the size.
fn cache_rules(machine: &Machine, kernel: &Kernel<'_>) -> Vec<(f64, String)> {
    let levels = (1..=3).filter_map(|level| machine.data_level(level));
    let rule = |level: &isochrome_model::machine::CacheLevel| {
        let cache = level.geometry.value.cache_bytes();
        let crossing = kernel.0.windows(2).find_map(|pair| {
            let [small, large] = [&pair[0], &pair[1]].map(|r| (r.size() as f64, r.experiment.working_set.0 as f64));
            let limit = cache.0 as f64;
            (small.1 > 0.0 && small.1 <= limit && limit < large.1 && small.0 > 0.0).then(|| {
                let part = (limit / small.1).ln() / (large.1 / small.1).ln();
                small.0 * (large.0 / small.0).powf(part)
            })
        });
        crossing.map(|size| (size, format!("L{} {cache}", level.level)))
    };
    levels.filter_map(rule).collect()
}

/// Draws the share of jobs that took longer than a time, as staircases that end at the high-water mark.
fn exceedance_chart(clock: Clock, kernel: &Kernel<'_>, reading: &Reading<'_>) -> Option<Chart> {
    let outcomes: Vec<_> = reading.experiment.conditions.iter().filter(|(_, outcome)| outcome.jobs.n > 0).collect();
    let most = outcomes.iter().map(|(_, outcome)| outcome.jobs.n).max()?;
    let lowest_decade = ((1.0 / most as f64).log10().floor() as i32).min(-1);
    let decades: Vec<f64> = (lowest_decade..=0).map(|decade| 10f64.powi(decade)).collect();
    let line = |(condition, outcome): &(&Condition, &Outcome)| {
        let (name, hue, dash) = style(**condition);
        let mut corners = vec![(clock.number(outcome.jobs.cycles_min), 1.0)];
        let mut height = 1.0;
        for &(cycles, share) in &outcome.ccdf {
            let x = clock.number(cycles);
            corners.push((x, height));
            // No job exceeds the maximum, and a logarithmic axis has no point for a share of 0.
            if share.is_finite() && share > 0.0 {
                height = share.max(decades[0]);
                corners.push((x, height));
            }
        }
        corners.push((clock.number(Cycles(outcome.high_water_mark.value)), height));
        corners.retain(|corner| corner.0 > 0.0);
        let marks = corners.last().map(|&at| Mark { at, hollow: false }).into_iter().collect();
        Line { marks, ..Line::new(name, hue, dash, corners) }
    };
    let lines: Vec<Line> = outcomes.iter().map(line).collect();
    let (shortest, longest) = range_of(lines.iter().flat_map(|line| line.points.iter().map(|p| p.0)));
    let x = if shortest > 0.0 && longest / shortest >= WIDE { Axis::log } else { Axis::linear };
    Some(Chart {
        title: format!("{}: share of jobs longer than a time", kernel.title()),
        description: "Each line ends at its high-water mark, the longest job seen, which is not a bound.".to_owned(),
        x: x(&format!("time of a job, {}", clock.unit()), (shortest, longest), format::tick),
        y: Axis::log("share of jobs that took longer", (decades[0], 1.0), format::power_of_ten)
            .with_ticks(&decades, format::power_of_ten),
        lines,
        rules: vec![],
    })
}

/// Returns the rows of the reference table: all numbers of every condition, by size.
fn reference(clock: Clock, kernel: &Kernel<'_>) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    for reading in &kernel.0 {
        let (_, why) = reading.standing();
        let min = reading.cycles_min().map_or(DASH.to_owned(), |cycles| clock.text(cycles));
        rows.push(vec![format!(
            "{} {}: working set {}, c_min {min} {why}",
            kernel.parameter(),
            format::grouped(reading.size()),
            reading.experiment.working_set
        )]);
        rows.extend(reading.experiment.conditions.iter().map(|(condition, outcome)| {
            let jobs = &outcome.jobs;
            let mark = &outcome.high_water_mark;
            let exceeded = (mark.n > 0).then(|| exceedance_at(mark.n, CONFIDENCE));
            vec![
                style(*condition).0.to_owned(),
                format::grouped(jobs.n),
                or_dash(reading.median(*condition), format::significant),
                or_dash(reading.p99(jobs), format::significant),
                or_dash(reading.max(*condition), format::significant),
                or_dash(reading.over_min(&outcome.control, |jobs| jobs.cycles_median), format::significant),
                or_dash(reading.p99(&outcome.control), format::significant),
                clock.text(Cycles(mark.value)),
                format::grouped(mark.last_rose_at),
                or_dash(exceeded, format::probability),
                reading.left(*condition),
                format!("{}/{}", outcome.blocks_quiet, outcome.blocks),
                format::nanoseconds(outcome.steal_ns.0 as f64),
            ]
        }));
    }
    rows
}

const REFERENCE: [&str; 13] = [
    "condition",
    "jobs",
    "median",
    "p99",
    "c_max",
    "control median",
    "control p99",
    "high-water mark",
    "job number",
    "exceeded by ≤",
    "lost before a job",
    "blocks",
    "steal",
];

const TERMS: [&str; 6] = [
    "c_min, the undisturbed time: the shortest job while the co-runner only spins. All times are divided by it.",
    "Unpartitioned (u): the task lives in ordinary memory; before each job or time slice the co-runner fills the whole cache with dirty lines. \
     Partitioned (p): the task has colors of its own, and the co-runner does the same to all others. Single-writer (s): others may also read \
     in the task’s colors, but never make a line there dirty.",
    "Lost: share of the lines of canary pages, in the colors of the task’s memory, that were gone when a job began, by time; median. Misses: \
     second-level demand misses per job, where they were counted.",
    "Accepted blocks: jobs run in blocks, with control jobs that follow no flood. Canary lines, steal time and half of the controls decide \
     whether a block counts; the other half is what the effect is measured against.",
    "High-water mark: the longest job seen, an observation and no bound. With 95 % confidence a further job exceeds it with at most the \
     probability given, if jobs are independent and nothing changes.",
    "A max is given where u, p and s have equally many jobs, as a maximum grows with their number; a p99 from 100 jobs on. Cycles are ticks of \
     the constant-rate counter.",
];

/// Returns the section of a report on the experiments, measured on `machine` with the colors of `palette`.
pub fn section(measured: &Kernels, machine: &Machine, palette: Option<&PaletteEvidence>) -> Section {
    let kernels = kernels(measured);
    let clock = Clock::of(measured.counter_hz);
    let mut section = Section::new("kernels", "How much longer does a job take?", headline(&kernels), measured).text(
        "The median job after a flood, over the shortest undisturbed job, against the problem size: +50 % is 1.5 times as long.",
    );
    for kernel in &kernels {
        let what = kernel.what_a_job_is();
        section = section.heading(format!("{}, by {}", kernel.title(), kernel.axis()));
        section = if what.is_empty() { section } else { section.text(what) };
        let rows = kernel.0.iter().map(|reading| {
            let mut row = vec![format::grouped(reading.size())];
            row.push(or_dash(reading.cycles_min().map(|cycles| clock.number(cycles)), format::significant));
            row.extend(FLOODED.map(|condition| or_dash(reading.median(condition), format::significant)));
            row.extend(FLOODED.map(|condition| or_dash(reading.max(condition), format::significant)));
            let lost = |condition| reading.outcome(condition).and_then(|outcome| outcome.jobs.lost_median);
            row.extend([Condition::Unpartitioned, Condition::Partitioned].map(|it| or_dash(lost(it), format::share)));
            let accepted =
                |c| reading.experiment.conditions.get(&c).map_or("-".to_owned(), |o| o.blocks_quiet.to_string());
            row.push(FLOODED.map(accepted).join("/"));
            row.push(match reading.standing().0 {
                Standing::Holds => "helps".to_owned(),
                Standing::Violated | Standing::NoGain => "no gain".to_owned(),
                Standing::Inconclusive => "?".to_owned(),
            });
            row
        });
        let unit = format!("c_min, {}", clock.unit());
        let columns =
            ["size", &unit, "med u", "med p", "med s", "max u", "max p", "max s", "lost u", "lost p", "blocks", ""];
        section = section.figure(size_chart(machine, kernel)).table(&columns, rows.collect::<Vec<_>>());
        if let Some(chart) = kernel.0.last().and_then(|reading| exceedance_chart(clock, kernel, reading)) {
            section = section.figure(chart);
        }
        section = section.reference(&REFERENCE, reference(clock, kernel));
    }
    let own = kernels.first().and_then(|kernel| kernel.0.last()?.experiment.conditions.get(&Condition::Partitioned));
    let level = palette.and_then(|palette| Some((machine.data_level(palette.level)?, palette.colors)));
    if let Some((level, colors)) = level.filter(|(level, colors)| level.geometry.value.set_count > 0 && *colors > 0) {
        let geometry = level.geometry.value;
        let task = own.map_or_else(Vec::new, |outcome| outcome.colors.clone());
        section = section
            .heading("Who may use which part of the cache")
            .text(format!(
                "The L{} of {} has {colors} page colors. A band is one color, {} sets; across it run the {} ways.",
                level.level,
                geometry.cache_bytes(),
                format::grouped(geometry.set_count / u64::from(colors)),
                geometry.ways
            ))
            .figure(CacheMap { geometry, colors: colors.min(4096), task });
    }
    section.findings(TERMS.map(str::to_owned).to_vec())
}
