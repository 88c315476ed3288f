//! What the experiments of an evidence say: unpredictability, whether own colors help, and how sure that is.

use crate::evidence::{Condition, Evidence, Experiment, JobSummary, Outcome};
use crate::stats::{compare_high_water_marks, exceedance_at};
use crate::units::Cycles;

use super::format;

/// Fewer quiet blocks than this carry no verdict.
const QUIET_BLOCKS: u64 = 5;
/// With fewer jobs the quantiles beside the median are the longest job.
const JOBS: u64 = 100;
/// Jobs from which on the 99 % quantile is shown: of fewer it is the longest.
const P99_JOBS: u64 = 100;
/// Confidence of the claim how often a high-water mark is exceeded.
const CONFIDENCE: f64 = 0.95;
/// Own colors help when the median job falls by at least this factor; less is within the scatter of placements.
const GAIN: f64 = 1.05;

/// The conditions in the order they are shown.
pub(super) const CONDITIONS: [Condition; 4] =
    [Condition::Alone, Condition::Unpartitioned, Condition::Partitioned, Condition::SingleWriter];
/// Those with a flood.
pub(super) const FLOODED: [Condition; 3] = [Condition::Unpartitioned, Condition::Partitioned, Condition::SingleWriter];

/// A condition's name.
pub(super) fn name(condition: Condition) -> &'static str {
    match condition {
        Condition::Alone => "alone",
        Condition::Unpartitioned => "unpartitioned",
        Condition::Partitioned => "partitioned",
        Condition::SingleWriter => "single-writer",
    }
}

/// Whether the claim "in its own colors the job stays nearer to its undisturbed time" stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// It does.
    Holds,
    /// What was promised does not.
    Violated,
    /// It was measured and own colors bring nothing.
    NoGain,
    /// It cannot be judged, for the reason given.
    Inconclusive(String),
}

/// Experiments of one kernel that differ in problem size only.
pub(super) struct Kernel<'a> {
    /// `filter`, `dct`...
    pub bench: &'a str,
    /// Element type.
    pub element: &'a str,
    /// Name of the problem size; empty when there is none.
    pub parameter: &'a str,
    /// Parameters that are the same in all of them.
    fixed: Vec<(&'a str, u64)>,
    /// By ascending size.
    pub readings: Vec<Reading<'a>>,
}

/// One experiment, read.
pub(super) struct Reading<'a> {
    /// The experiment.
    pub experiment: &'a Experiment,
    /// Its problem size.
    pub size: u64,
}

/// The experiments by kernel, in the order of their first appearance.
pub(super) fn kernels(evidence: &Evidence) -> Vec<Kernel<'_>> {
    let mut kernels: Vec<Kernel<'_>> = Vec::new();
    for experiment in &evidence.experiments {
        let known =
            ["taps", "points", "slice_us", "rate_hz"].into_iter().find(|&p| experiment.parameter.contains_key(p));
        let (parameter, size) = match known.and_then(|p| experiment.parameter.get_key_value(p)) {
            Some((parameter, &size)) => (parameter.as_str(), size),
            None => experiment.parameter.iter().next().map_or(("", 0), |(parameter, &size)| (parameter.as_str(), size)),
        };
        let others = experiment.parameter.iter().map(|(name, &value)| (name.as_str(), value));
        let fixed: Vec<_> = others.filter(|(name, _)| *name != parameter).collect();
        let reading = Reading { experiment, size };
        let same = kernels.iter_mut().find(|k| {
            (k.bench, k.element, k.parameter) == (&experiment.bench, &experiment.element, parameter) && k.fixed == fixed
        });
        match same {
            Some(kernel) => kernel.readings.push(reading),
            None => kernels.push(Kernel {
                bench: &experiment.bench,
                element: &experiment.element,
                parameter,
                fixed,
                readings: vec![reading],
            }),
        }
    }
    for kernel in &mut kernels {
        kernel.readings.sort_by_key(|reading| reading.size);
    }
    kernels
}

/// Whether second-level misses were counted anywhere.
pub(super) fn counted(kernels: &[Kernel<'_>]) -> bool {
    let mut readings = kernels.iter().flat_map(|kernel| &kernel.readings);
    readings.any(|reading| CONDITIONS.iter().any(|&condition| reading.misses(condition).is_some()))
}

impl<'a> Kernel<'a> {
    /// Its name as a heading.
    pub fn title(&self) -> String {
        let name = match self.bench {
            "filter" => "Filter",
            "dct" => "DCT",
            "fft" => "FFT",
            "matmul" => "Matrix multiplication",
            "combined" => "Filter and matrix together",
            other => other,
        };
        let fixed: String =
            self.fixed.iter().map(|(name, value)| format!(", {name} {}", format::grouped(*value))).collect();
        format!("{name}, {}{fixed}", self.element)
    }

    /// What its problem size is called on an axis.
    pub fn axis(&self) -> &'a str {
        match self.parameter {
            "taps" => "filter coefficients",
            "slice_us" => "length of each of a job’s four time slices, µs",
            "rate_hz" => "filter activations per second, four a job",
            "" => "problem size",
            other => other,
        }
    }

    /// A problem size with its unit.
    pub fn size_text(&self, size: u64) -> String {
        let number = format::grouped(size);
        match self.parameter {
            "slice_us" => format!("{number} µs"),
            "rate_hz" => format!("{number} Hz"),
            "" => format::DASH.to_owned(),
            other => format!("{number} {other}"),
        }
    }

    /// What a job is, where its name does not say it.
    pub fn what_a_job_is(&self) -> Option<&'static str> {
        match self.bench {
            "matmul" => Some(
                "A job is four time slices of 64 × 64 matrix multiplications, back to back. Before each slice the co-runner has its turn.",
            ),
            "combined" => Some(
                "A job is four intervals of 64 × 64 matrix multiplications, back to back, each begun by an activation of the filter. Before \
                 each interval the co-runner has its turn.",
            ),
            _ => None,
        }
    }

    /// The job at `size`, as the subject of a sentence.
    pub fn job(&self, size: u64) -> String {
        let number = format::grouped(size);
        let a = article(size);
        match (self.bench, self.parameter) {
            ("filter", "taps") => format!("{a} {number}-tap filter job after a cache flood"),
            ("dct", "points") => format!("{a} {number}-point DCT job after a cache flood"),
            ("fft", "points") => format!("{a} {number}-point FFT job after a cache flood"),
            ("matmul", "slice_us") => format!(
                "a job of four time slices of matrix multiplication, {number} µs each and each after a cache flood,"
            ),
            ("combined", "rate_hz") => format!(
                "a job of four intervals of matrix multiplication, each begun by a filter activation after a cache flood, {number} a second,"
            ),
            (bench, "") => format!("a {bench} job after a cache flood"),
            (bench, parameter) => format!("a {bench} job ({parameter} {number}) after a cache flood"),
        }
    }

    /// The size at which own colors change most: among those that can be judged, else among all.
    pub fn biggest_effect(&self) -> Option<&Reading<'a>> {
        let judged = self.readings.iter().filter(|r| !matches!(r.standing(), Standing::Inconclusive(_)));
        by_gain(judged).or_else(|| by_gain(self.readings.iter())).or(self.readings.last())
    }
}

/// `an` before numbers spoken with a vowel first: eight..., eleven, eighteen.
fn article(number: u64) -> &'static str {
    let mut leading = number;
    while leading >= 1000 {
        leading /= 1000;
    }
    let eight = number.to_string().starts_with('8');
    if eight || leading == 11 || leading == 18 { "an" } else { "a" }
}

fn by_gain<'r, 'a>(readings: impl Iterator<Item = &'r Reading<'a>>) -> Option<&'r Reading<'a>> {
    let gained = readings.filter_map(|reading| Some((reading, reading.gain()?)));
    gained.max_by(|a, b| a.1.total_cmp(&b.1)).map(|(reading, _)| reading)
}

impl Reading<'_> {
    /// Outcome of a condition that has jobs.
    pub fn outcome(&self, condition: Condition) -> Option<&Outcome> {
        self.experiment.conditions.get(&condition).filter(|outcome| outcome.jobs.n > 0)
    }

    /// c_min: the shortest undisturbed job.
    pub fn cycles_min(&self) -> Option<Cycles> {
        self.outcome(Condition::Alone).map(|alone| alone.jobs.cycles_min).filter(|cycles| cycles.0 > 0)
    }

    /// A time of the jobs, or of their control, over c_min.
    pub fn over_min(&self, jobs: &JobSummary, time: fn(&JobSummary) -> Cycles) -> Option<f64> {
        (jobs.n > 0).then_some(())?;
        Some(time(jobs).0 as f64 / self.cycles_min()?.0 as f64)
    }

    /// The 99 % quantile of the jobs, or of their control, over c_min; of fewer than 100 jobs it would be the longest.
    pub fn p99(&self, jobs: &JobSummary) -> Option<f64> {
        has_p99(jobs).then_some(())?;
        self.over_min(jobs, |jobs| jobs.cycles_p99)
    }

    /// Median over c_min of a condition: the unpredictability drawn.
    ///
    /// Every recorded job follows a flood, so the typical one is already disturbed. What lies above it on a shared host is
    /// other disturbance, which the control shows too.
    pub fn median(&self, condition: Condition) -> Option<f64> {
        self.over_min(&self.outcome(condition)?.jobs, |jobs| jobs.cycles_median)
    }

    /// Share (0 to 1) of the lines of the task's colors that were gone when a job began, by time, median.
    pub fn lost(&self, condition: Condition) -> Option<f64> {
        self.outcome(condition)?.jobs.lost_median.filter(|lost| (0.0..=1.0).contains(lost))
    }

    /// Second-level demand misses per job, median, where they were counted.
    pub fn misses(&self, condition: Condition) -> Option<f64> {
        self.outcome(condition)?.jobs.l2_misses_median.filter(|misses| misses.is_finite())
    }

    /// c_max over c_min of a condition, as the paper has it; only where every flooded condition has equally many jobs, since a
    /// maximum grows with their number.
    pub fn max(&self, condition: Condition) -> Option<f64> {
        let Outcome { jobs, high_water_mark, .. } = self.outcome(condition)?;
        for other in FLOODED.iter().filter_map(|&c| self.outcome(c)) {
            compare_high_water_marks(*high_water_mark, other.high_water_mark).ok()?;
        }
        self.over_min(jobs, |jobs| jobs.cycles_max)
    }

    /// How many times shorter the median job is with own colors.
    pub fn gain(&self) -> Option<f64> {
        let [without, with] = [Condition::Unpartitioned, Condition::Partitioned].map(|c| self.outcome(c));
        let (without, with) = (without?.jobs.cycles_median.0, with?.jobs.cycles_median.0);
        (with > 0).then(|| without as f64 / with as f64)
    }

    /// Whether too little stands behind `condition` to judge it, and why.
    pub fn doubt(&self, condition: Condition) -> Option<String> {
        let label = name(condition);
        let Some(outcome) = self.experiment.conditions.get(&condition) else {
            return Some(format!("{label} was not run"));
        };
        match outcome {
            Outcome { blocks_quiet: 0, .. } => Some(format!("{label}: no block was quiet")),
            Outcome { blocks_quiet, blocks, .. } if *blocks_quiet < QUIET_BLOCKS => {
                Some(format!("{label}: {blocks_quiet} of {blocks} blocks were quiet, {QUIET_BLOCKS} are needed"))
            }
            Outcome { jobs, .. } if jobs.n < JOBS => Some(format!("{label}: {} jobs, {JOBS} are needed", jobs.n)),
            _ => None,
        }
    }

    /// Whether own colors help here.
    pub fn standing(&self) -> Standing {
        let judged = [Condition::Alone, Condition::Unpartitioned, Condition::Partitioned];
        if let Some(doubt) = judged.into_iter().find_map(|condition| self.doubt(condition)) {
            return Standing::Inconclusive(doubt);
        }
        let (Some(gain), Some(_), Some(flooded)) =
            (self.gain(), self.cycles_min(), self.outcome(Condition::Unpartitioned))
        else {
            return Standing::Inconclusive("a time was recorded as zero".to_owned());
        };
        // The effect of the flood is what exceeds the control of the same blocks; without one nothing can be gained or missed.
        if flooded.control.n == 0 {
            return Standing::Inconclusive("no job without a flood to compare with".to_owned());
        }
        if flooded.control.cycles_median >= flooded.jobs.cycles_median {
            return Standing::Inconclusive("jobs without a flood took as long in the same blocks".to_owned());
        }
        if gain < GAIN { Standing::NoGain } else { Standing::Holds }
    }
}

/// Whether there are jobs enough that one lies beyond the 99 % quantile.
pub(super) fn has_p99(jobs: &JobSummary) -> bool {
    jobs.n >= P99_JOBS
}

/// With [`CONFIDENCE`] a further job exceeds the longest of `n` with at most this probability, if jobs were independent and
/// nothing changes. [`exceedance_at`]
pub(super) fn exceedance(n: u64) -> Option<f64> {
    (n > 0).then(|| exceedance_at(n, CONFIDENCE))
}

/// The verdict of the whole evidence in plain words, and what it rests on.
pub(super) fn headline(evidence: &Evidence, kernels: &[Kernel<'_>]) -> (Option<Standing>, String, String) {
    let readings = || kernels.iter().flat_map(|kernel| kernel.readings.iter().map(move |reading| (kernel, reading)));
    let settings = evidence.experiments.len();
    if let Some(run) = &evidence.run {
        return super::run::headline(run);
    }
    if let ([], [conflicts, ..]) = (evidence.experiments.as_slice(), evidence.conflicts.as_slice()) {
        return super::conflicts::headline(conflicts, evidence.machine.counter_hz.map(|fact| fact.value));
    }
    if let ([], [crpd, ..]) = (evidence.experiments.as_slice(), evidence.crpd.as_slice()) {
        return super::crpd::headline(crpd);
    }
    if let ([], [switches, ..]) = (evidence.experiments.as_slice(), evidence.switches.as_slice()) {
        return super::switch::headline(switches);
    }
    if let ([], [interference, ..]) = (evidence.experiments.as_slice(), evidence.interference.as_slice()) {
        return super::interference::headline(interference);
    }
    if let ([], [verified, ..]) = (evidence.experiments.as_slice(), evidence.floods.as_slice()) {
        return super::flood::headline(verified);
    }
    if let ([], [_, ..]) = (evidence.experiments.as_slice(), evidence.packets.as_slice()) {
        return super::net::headline(&evidence.packets);
    }
    if let ([], [watched, ..]) = (evidence.experiments.as_slice(), evidence.watches.as_slice()) {
        return super::watch::headline(watched);
    }
    if let ([], [workload, ..]) = (evidence.experiments.as_slice(), evidence.workloads.as_slice()) {
        return super::workload::headline(workload);
    }
    if settings == 0 {
        let text = "No experiment was run: this describes the machine only.";
        return (None, text.to_owned(), String::new());
    }
    let best = readings()
        .filter(|(_, reading)| !matches!(reading.standing(), Standing::Inconclusive(_)))
        .filter_map(|(kernel, reading)| Some((kernel, reading, reading.gain()?)))
        .max_by(|a, b| a.2.total_cmp(&b.2));
    let Some((kernel, reading, gain)) = best else {
        let why = readings().find_map(|(kernel, reading)| match reading.standing() {
            Standing::Inconclusive(why) => Some(format!("For {}: {why}.", kernel.job(reading.size))),
            _ => None,
        });
        let text = "Whether own colors help cannot be told from this run.";
        return (Some(Standing::Inconclusive(String::new())), text.to_owned(), why.unwrap_or_default());
    };
    let times = |condition| reading.median(condition).map_or(format::DASH.to_owned(), format::significant);
    let job = kernel.job(reading.size);
    let basis = |condition| {
        let outcome = reading.outcome(condition);
        outcome.map_or(String::new(), |o| {
            format!(
                "{} jobs in {} of {} blocks {}",
                format::grouped(o.jobs.n),
                o.blocks_quiet,
                o.blocks,
                name(condition)
            )
        })
    };
    let rest = match settings {
        1 => "The only setting measured".to_owned(),
        _ => format!("The largest effect among {settings} settings; all are shown below"),
    };
    let single = match (reading.median(Condition::SingleWriter), reading.doubt(Condition::SingleWriter)) {
        (Some(ratio), None) => {
            format!(" If others may read but not write those colors, it takes {} times.", format::significant(ratio))
        }
        _ => String::new(),
    };
    let lost = match [Condition::Unpartitioned, Condition::Partitioned].map(|c| reading.lost(c)) {
        [Some(without), Some(with)] => {
            let [without, with] = [without, with].map(format::share);
            format!("; its lines lost before a job: {without} without own colors, {with} with")
        }
        _ => String::new(),
    };
    let basis = format!(
        "{rest}.{single} “Time” is the median job’s, over the shortest undisturbed job; {}, {}{lost}.",
        basis(Condition::Unpartitioned),
        basis(Condition::Partitioned)
    );
    if gain < GAIN {
        let text = format!(
            "Own colors bring nothing measurable here: {job} takes {} times its undisturbed time with them and {} times without.",
            times(Condition::Partitioned),
            times(Condition::Unpartitioned)
        );
        return (Some(Standing::NoGain), text, basis);
    }
    let text = format!(
        "With its own colors {job} takes {} times its undisturbed time; without, {} times.",
        times(Condition::Partitioned),
        times(Condition::Unpartitioned)
    );
    (Some(Standing::Holds), text, basis)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_take_the_article_they_are_spoken_with() {
        for number in [8, 18, 80, 800, 8192, 11_000, 18_000] {
            assert_eq!(article(number), "an", "{number}");
        }
        for number in [4, 16, 110, 180, 1100, 1800, 4096, 128] {
            assert_eq!(article(number), "a", "{number}");
        }
    }
}
