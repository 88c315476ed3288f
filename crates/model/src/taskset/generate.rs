//! Random task sets, for experiments over many of them.
//!
//! Set number `index` under a `seed` is the same on every machine and in any order of drawing. Every set has random streams of
//! its own for utilizations, periods, curves and partitions, so that a parameter of one stream does not change the draws of the
//! others.
//!
//! Utilization vectors must be uniform over those that sum to the total, or experiments are biased \[Bini2005\]. UUniFast and a
//! flat Dirichlet vector are uniform if no task has a cap. [`Utilizations::Capped`] is uniform for any caps: it draws from the
//! box of caps by an exponential density that has the right sum on average, and accepts a vector with the probability that
//! cancels the density. The Dirichlet-Rescale algorithm is not offered: its authors found it not always uniform, and deprecate
//! it.

use serde::{Deserialize, Serialize};

use super::{Invalid, PARTITIONS_MAX, PartitionSet, Platform, TIME_MAX_NS, Task, TaskSet};
use crate::analysis::CoreTask;
use crate::stats::chi_square_uniform;
use crate::units::Bytes;

/// Maximum number of vectors that are tried for one set.
const TRIES_MAX: usize = 1_000_000;
/// Maximum number of tasks of a set.
const TASKS_MAX: usize = 10_000;

/// Method of drawing utilizations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Utilizations {
    /// Uniform over all vectors with the sum. Single tasks may exceed 1 if the sum does. \[Bini2005\]
    #[default]
    Uunifast,
    /// As `Uunifast`, but drawn again until no task exceeds its cap. \[Davis2011\]
    UunifastDiscard,
    /// Exponentially distributed numbers divided by their sum: as uniform as UUniFast, by another method.
    Dirichlet,
    /// Uniform over all vectors with the sum in which no task exceeds its cap. The caps are arbitrary.
    Capped,
}

/// Tasks whose execution time depends on the cache in a similar way, with the shape of [Kim2013, Figure 10]: `C^p` falls
/// exponentially from `C^1` to `C^N`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Class {
    /// Frequency of the class relative to the other classes.
    pub weight: f64,
    /// Range of `C^1 / C^N - 1`.
    pub sensitivity: [f64; 2],
    /// Range of the number of partitions over which the excess falls to 1/e.
    pub knee_partitions: [f64; 2],
}

/// The cache-sensitive and the insensitive tasks of [Kim2013, §5.2], as in examples/kim2013-table1.json.
pub const KIM2013_CLASSES: [Class; 2] = [
    Class { weight: 1.0, sensitivity: [0.38, 0.57], knee_partitions: [4.0, 12.5] },
    Class { weight: 1.0, sensitivity: [0.05, 0.08], knee_partitions: [5.0, 6.0] },
];

/// Parameters from which sets are drawn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Generator {
    /// Number of tasks in a set, n.
    pub tasks: usize,
    /// Sum of `C^N / T`, where N is the number of all partitions.
    pub utilization: f64,
    /// Method of dividing the utilization.
    pub utilizations: Utilizations,
    /// Largest utilization of each task; a single value is for all tasks. Used by `capped` and `uunifast-discard`.
    pub caps: Vec<f64>,
    /// Range of the log-uniform periods, in ns. \[Emberson2010\]
    pub period_ns: [u64; 2],
    /// Step of the periods in ns: every period is a multiple of the step.
    pub period_step_ns: u64,
    /// Range of the deadlines as shares of the period. The deadlines are uniform in this range.
    pub deadline: [f64; 2],
    /// Classes of execution-time curves.
    pub classes: Vec<Class>,
    /// Measured curves `C^1, C^2...` that give the shapes instead of classes, each with the same probability.
    pub profiles_ns: Vec<Vec<u64>>,
    /// Range of a task's memory in MiB.
    pub task_memory_mib: [u64; 2],
    /// Range of the number of partitions of a task, for [`Generator::core`], which draws the partitions too.
    pub task_partitions: [u32; 2],
    /// Number of cores of the machine.
    pub cores: u32,
    /// Number of partitions of the machine, N.
    pub partitions: u32,
    /// Size of the machine's memory in MiB.
    pub memory_mib: u64,
    /// Refill time of a partition in ns, Δ.
    pub refill_ns_per_partition: u64,
    /// Cost of a context switch in ns.
    pub switch_ns: u64,
}

/// Returns the parameters for 8 tasks of utilization 0.7 with periods from 10 ms to 1 s, on the machine of [Kim2013, §5].
impl Default for Generator {
    fn default() -> Self {
        Self {
            tasks: 8,
            utilization: 0.7,
            utilizations: Utilizations::default(),
            caps: vec![1.0],
            period_ns: [10_000_000, 1_000_000_000],
            period_step_ns: 1,
            deadline: [1.0, 1.0],
            classes: KIM2013_CLASSES.to_vec(),
            profiles_ns: Vec::new(),
            task_memory_mib: [16, 64],
            task_partitions: [1, 8],
            cores: 4,
            partitions: 32,
            memory_mib: 1024,
            refill_ns_per_partition: 45_300,
            switch_ns: 0,
        }
    }
}

/// The random streams of a set.
enum Stream {
    Utilizations,
    Periods,
    Curves,
    Partitions,
}

impl Generator {
    /// Checks the ranges. The task set that they give is checked when it is made.
    pub fn check(&self) -> Result<(), Invalid> {
        let wrong = |field: &str, problem: String| Err(Invalid::at(field, problem));
        let rises = |range: [f64; 2]| range.iter().all(|x| x.is_finite()) && range[0] <= range[1];
        if self.tasks == 0 || self.tasks > TASKS_MAX {
            return wrong("tasks", format!("{} is not a number of tasks from 1 to {TASKS_MAX}", self.tasks));
        }
        let total = self.utilization;
        if !total.is_finite() || total <= 0.0 {
            return wrong("utilization", format!("{total} is not positive"));
        }
        if ![1, self.tasks].contains(&self.caps.len()) || !self.caps.iter().all(|cap| cap.is_finite() && *cap > 0.0) {
            return wrong("caps", format!("must be one positive number, or one for each of {} tasks", self.tasks));
        }
        let capped = matches!(self.utilizations, Utilizations::UunifastDiscard | Utilizations::Capped);
        let most = self.caps.iter().sum::<f64>() * if self.caps.len() == 1 { self.tasks as f64 } else { 1.0 };
        if capped && total > most {
            return wrong("caps", format!("sum up to {most}, less than the utilization {total}"));
        }
        let [shortest, longest] = self.period_ns;
        // Periods are rounded down to a multiple, which must not leave the range.
        let begins_with_multiple = shortest > 0 && shortest.is_multiple_of(self.period_step_ns);
        if !begins_with_multiple || shortest > longest || longest > TIME_MAX_NS {
            let problem =
                format!("{shortest} to {longest} ns is not a range of multiples of {} ns", self.period_step_ns);
            return wrong("period_ns", problem);
        }
        if !rises(self.deadline) || self.deadline[0] <= 0.0 || self.deadline[1] > 1.0 {
            return wrong("deadline", format!("{:?} is not a range within 0 to 1", self.deadline));
        }
        if self.partitions == 0 || self.partitions > PARTITIONS_MAX {
            return wrong("partitions", format!("{} is not from 1 to {PARTITIONS_MAX}", self.partitions));
        }
        let [fewest, most] = self.task_partitions;
        if fewest == 0 || fewest > most {
            return wrong("task_partitions", format!("{fewest} to {most} is not a range from 1 on"));
        }
        if self.task_memory_mib[0] > self.task_memory_mib[1] || self.task_memory_mib[1] > self.memory_mib {
            return wrong("task_memory_mib", format!("{:?} is not a range within memory_mib", self.task_memory_mib));
        }
        if self.memory_mib >= 1 << 40 {
            return wrong("memory_mib", format!("{} MiB are more than any machine has", self.memory_mib));
        }
        for (index, class) in self.classes.iter().enumerate() {
            let good = class.weight.is_finite() && class.weight > 0.0;
            let shaped = rises(class.sensitivity) && class.sensitivity[0] >= 0.0;
            if !good || !shaped || !rises(class.knee_partitions) || class.knee_partitions[0] <= 0.0 {
                return wrong(&format!("classes[{index}]"), "needs a positive weight and ascending ranges".to_owned());
            }
        }
        if self.classes.is_empty() && self.profiles_ns.is_empty() {
            return wrong("classes", "there are none, and no profiles either".to_owned());
        }
        match self.profiles_ns.iter().position(|curve| curve.is_empty() || curve.contains(&0)) {
            Some(index) => wrong(&format!("profiles_ns[{index}]"), "is empty or holds a 0".to_owned()),
            None => Ok(()),
        }
    }

    /// Returns set number `index`, without an allocation to cores and partitions.
    pub fn task_set(&self, seed: u64, index: u64) -> Result<TaskSet, Invalid> {
        let memory = Bytes(self.memory_mib << 20);
        let platform = Platform::new(self.cores, self.partitions, memory, self.refill_ns_per_partition);
        let platform = Platform { switch_ns: self.switch_ns, ..platform };
        Ok(TaskSet::new(platform, self.draw(seed, index)?)?.0)
    }

    /// Returns set number `index` on one core, highest priority first. Each task has consecutive partitions; partition 0
    /// follows the last one.
    pub fn core(&self, seed: u64, index: u64) -> Result<Vec<CoreTask>, Invalid> {
        if self.task_partitions[1] > self.partitions {
            let problem = format!("{} are more than the {} there are", self.task_partitions[1], self.partitions);
            return Err(Invalid::at("task_partitions", problem));
        }
        let tasks = self.draw(seed, index)?;
        let mut random = stream(seed, index, Stream::Partitions);
        let mut core: Vec<CoreTask> = tasks
            .iter()
            .map(|task| {
                let count = random.u32(self.task_partitions[0]..=self.task_partitions[1]);
                let first = random.u32(0..self.partitions);
                let partitions: PartitionSet = (first..first + count).map(|p| p % self.partitions).collect();
                let wcet_ns = task.wcet_ns[count as usize - 1];
                CoreTask { deadline_ns: task.deadline_ns, ..CoreTask::new(wcet_ns, task.period_ns, partitions) }
            })
            .collect();
        core.sort_by_key(|task| task.deadline_ns);
        Ok(core)
    }

    /// Returns the utilizations of set number `index`.
    pub fn utilizations(&self, seed: u64, index: u64) -> Result<Vec<f64>, Invalid> {
        let mut random = stream(seed, index, Stream::Utilizations);
        let (n, total) = (self.tasks, self.utilization);
        let caps = || self.caps.iter().copied().cycle().take(n).collect::<Vec<f64>>();
        match self.utilizations {
            Utilizations::Uunifast => Ok(uunifast(n, total, &mut random)),
            Utilizations::Dirichlet => {
                let shares: Vec<f64> = (0..n).map(|_| exponential(&mut random)).collect();
                let sum: f64 = shares.iter().sum();
                Ok(shares.iter().map(|share| share / sum * total).collect())
            }
            Utilizations::UunifastDiscard => {
                let caps = caps();
                let fits = |vector: &Vec<f64>| vector.iter().zip(&caps).all(|(x, cap)| x <= cap);
                let mut tries = (0..TRIES_MAX).map(|_| uunifast(n, total, &mut random));
                tries.find(fits).ok_or_else(|| rejected("uunifast-discard"))
            }
            Utilizations::Capped => capped(total, &caps(), &mut random).ok_or_else(|| rejected("capped")),
        }
    }

    fn draw(&self, seed: u64, index: u64) -> Result<Vec<Task>, Invalid> {
        self.check()?;
        let utilizations = self.utilizations(seed, index)?;
        let mut periods = stream(seed, index, Stream::Periods);
        let mut curves = stream(seed, index, Stream::Curves);
        let uniform = |random: &mut fastrand::Rng, [low, high]: [f64; 2]| low + (high - low) * random.f64();
        let task = |(number, utilization): (usize, f64)| {
            let [shortest, longest] = self.period_ns.map(|t| libm::log(t as f64));
            let period = libm::exp(uniform(&mut periods, [shortest, longest])) as u64;
            // The rounding of `log` and `exp` must not leave the range.
            let period_ns =
                period.clamp(self.period_ns[0], self.period_ns[1]) / self.period_step_ns * self.period_step_ns;
            let deadline_ns = ((period_ns as f64 * uniform(&mut periods, self.deadline)) as u64).clamp(1, period_ns);
            let shape = self.shape(&mut curves);
            let memory_mib = curves.u64(self.task_memory_mib[0]..=self.task_memory_mib[1]);
            // Times are limited to `TIME_MAX_NS`; any larger time misses every deadline as well.
            let wcet =
                |factor: f64| ((utilization * period_ns as f64 * factor).round().max(1.0) as u64).min(TIME_MAX_NS);
            let (name, curve) = (format!("task{}", number + 1), shape.into_iter().map(wcet).collect());
            Task { deadline_ns, ..Task::new(name, period_ns, Bytes(memory_mib << 20), curve) }
        };
        Ok(utilizations.into_iter().enumerate().map(task).collect())
    }

    /// Draws `C^p / C^N` for p from 1 to N.
    fn shape(&self, random: &mut fastrand::Rng) -> Vec<f64> {
        let count = self.partitions as usize;
        if !self.profiles_ns.is_empty() {
            let curve = &self.profiles_ns[random.usize(0..self.profiles_ns.len())];
            let at = |p: usize| *curve.get(p).unwrap_or(&curve[curve.len() - 1]) as f64;
            return (0..count).map(|p| at(p) / at(count - 1)).collect();
        }
        let mut left = random.f64() * self.classes.iter().map(|class| class.weight).sum::<f64>();
        let class = self.classes.iter().find(|class| {
            left -= class.weight;
            left < 0.0
        });
        let class = class.unwrap_or(&self.classes[self.classes.len() - 1]);
        let mut within = |[low, high]: [f64; 2]| low + (high - low) * random.f64();
        let (sensitivity, knee) = (within(class.sensitivity), within(class.knee_partitions));
        let rest = |p: usize| libm::exp(-(p as f64) / knee);
        let last = rest(count - 1);
        // With one partition in all, `C^1` is `C^N`.
        let scale = if last < 1.0 { sensitivity / (1.0 - last) } else { 0.0 };
        (0..count).map(|p| 1.0 + scale * (rest(p) - last)).collect()
    }
}

fn rejected(method: &str) -> Invalid {
    let hint = "`capped` draws from any caps; it gives up only on thousands of tasks";
    Invalid::at("utilizations", format!("{method} found no vector in {TRIES_MAX} tries\n  hint: {hint}"))
}

/// Returns a random stream of one set. Seeds that differ in one bit must not give similar streams, so they are mixed.
/// \[Steele2014\]
fn stream(seed: u64, index: u64, stream: Stream) -> fastrand::Rng {
    let mix = |mut z: u64| {
        z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    fastrand::Rng::with_seed(mix(mix(mix(seed) ^ index) ^ stream as u64))
}

fn exponential(random: &mut fastrand::Rng) -> f64 {
    -libm::log1p(-random.f64())
}

/// Draws `n` utilizations that sum up to `total`. \[Bini2005, Figure 3\]
fn uunifast(n: usize, total: f64, random: &mut fastrand::Rng) -> Vec<f64> {
    let mut left = total;
    let mut vector: Vec<f64> = (1..n)
        .map(|i| {
            let next = left * libm::pow(random.f64(), 1.0 / (n - i) as f64);
            std::mem::replace(&mut left, next) - next
        })
        .collect();
    vector.push(left);
    vector
}

/// Draws uniformly from `{x : Σ x = total, 0 <= x(i) <= caps(i)}`; `None` after too many tries.
///
/// All coordinates but one are drawn from `e^(-θx)` on `[0, cap]`, which determines the last. The vector has the density
/// `e^(-θ(total - last))`, so it is accepted with probability `e^(-θ last)` if `last` is within its cap. θ >= 0 is chosen such
/// that the sum is right on average; then about one vector in `sqrt(2πn)` is accepted. For totals above half of the sum of the
/// caps, the differences to the caps are drawn instead.
fn capped(total: f64, caps: &[f64], random: &mut fastrand::Rng) -> Option<Vec<f64>> {
    let most: f64 = caps.iter().sum();
    if total > most / 2.0 {
        let missing = most - total;
        if missing <= 0.0 {
            return Some(caps.to_vec());
        }
        let vector = capped(missing, caps, random)?;
        return Some(vector.iter().zip(caps).map(|(x, cap)| cap - x).collect());
    }
    let mean = |theta: f64, cap: f64| {
        let reach = theta * cap;
        // 1/θ - cap/(e^(θ cap) - 1) loses its digits near 0, where it is nearly a straight line.
        if reach < 1e-6 { cap * (0.5 - reach / 12.0) } else { 1.0 / theta - cap / libm::expm1(reach) }
    };
    // Each mean is below 1/θ, so the sum of the means is too small if θ exceeds n / total.
    let (mut low, mut high) = (0.0, caps.len() as f64 / total);
    for _ in 0..100 {
        let theta = (low + high) / 2.0;
        let sum: f64 = caps.iter().map(|&cap| mean(theta, cap)).sum();
        if sum > total { low = theta } else { high = theta }
    }
    let theta = high;
    let last = (0..caps.len()).max_by(|&a, &b| caps[a].total_cmp(&caps[b]))?;
    let mut vector = vec![0.0; caps.len()];
    (0..TRIES_MAX).find_map(|_| {
        let mut left = total;
        for (_, (x, &cap)) in vector.iter_mut().zip(caps).enumerate().filter(|(i, _)| *i != last) {
            let r = random.f64();
            let reach = theta * cap;
            *x = if reach < 1e-9 { r * cap } else { (-libm::log1p(r * libm::expm1(-reach)) / theta).min(cap) };
            left -= *x;
        }
        let fits = (0.0..=caps[last]).contains(&left) && random.f64() < libm::exp(-theta * left);
        fits.then(|| {
            vector[last] = left;
            vector.clone()
        })
    })
}

/// Maximum number of tasks for which uniformity can be tested. The test takes 2^n steps for a vector.
pub const UNIFORMITY_TASKS_MAX: usize = 12;

/// Returns p-values of chi-square tests of whether `vectors` are uniform over `{x : Σ x = total, 0 <= x(i) <= caps(i)}`: one
/// for each coordinate but the last, and one for each pair of neighbors. `None` unless there are 2 to [`UNIFORMITY_TASKS_MAX`]
/// caps and every vector has as many elements.
///
/// The value of the distribution function at each coordinate, given the coordinates before it, is uniform and independent of
/// them exactly if the vectors are uniform \[Rosenblatt1952\]. Let s be the sum that is left, and `V(s) = Σ_A (-1)^|A| (s -
/// caps(A))₊^m / m!` over all subsets A of the m coordinates that follow. Then the value is `(V(s) - V(s - x)) / (V(s) - V(s -
/// cap))`, with the cap of the coordinate itself.
pub fn uniformity(vectors: &[Vec<f64>], total: f64, caps: &[f64]) -> Option<Vec<f64>> {
    const BINS: usize = 10;
    let n = caps.len();
    if !(2..=UNIFORMITY_TASKS_MAX).contains(&n) || vectors.iter().any(|vector| vector.len() != n) {
        return None;
    }
    let mut single = vec![[0u64; BINS]; n - 1];
    let mut pairs = vec![[0u64; BINS * BINS]; n - 2];
    for vector in vectors {
        let mut left = total;
        let mut before = None;
        for i in 0..n - 1 {
            let quantile = distribution_at(vector[i], left, caps[i], &caps[i + 1..]);
            let bin = ((quantile * BINS as f64) as usize).min(BINS - 1);
            single[i][bin] += 1;
            if let Some(before) = before.replace(bin) {
                pairs[i - 1][before * BINS + bin] += 1;
            }
            left -= vector[i];
        }
    }
    let single = single.iter().map(|counts| chi_square_uniform(counts));
    Some(single.chain(pairs.iter().map(|counts| chi_square_uniform(counts))).collect())
}

/// Returns the distribution function of a coordinate with `cap` at `x`, given that it and the coordinates with the caps `rest`
/// sum up to `total`.
fn distribution_at(x: f64, total: f64, cap: f64, rest: &[f64]) -> f64 {
    // Up to a factor, this is the integral from 0 to `sum` of the volume that is left for the rest.
    let volume = |sum: f64| -> f64 {
        (0u32..1 << rest.len())
            .map(|subset| {
                let taken: f64 =
                    rest.iter().enumerate().filter(|(i, _)| subset >> i & 1 == 1).map(|(_, cap)| cap).sum();
                let sign = if subset.count_ones().is_multiple_of(2) { 1.0 } else { -1.0 };
                sign * libm::pow((sum - taken).max(0.0), rest.len() as f64)
            })
            .sum()
    };
    let (all, none) = (volume(total), volume(total - cap.min(total)));
    ((all - volume(total - x)) / (all - none)).clamp(0.0, 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vectors(generator: &Generator, count: u64) -> Vec<Vec<f64>> {
        (0..count).map(|index| generator.utilizations(1, index).unwrap()).collect()
    }

    /// Returns the p-value of the worst of all tests of uniformity, corrected as if the tests were independent.
    fn worst(vectors: &[Vec<f64>], total: f64, caps: &[f64]) -> f64 {
        let all = uniformity(vectors, total, caps).unwrap();
        let least = all.iter().copied().fold(1.0, f64::min);
        1.0 - libm::pow(1.0 - least, all.len() as f64)
    }

    fn with(tasks: usize, utilization: f64, utilizations: Utilizations, caps: Vec<f64>) -> Generator {
        Generator { tasks, utilization, utilizations, caps, ..Generator::default() }
    }

    #[test]
    fn ranges_of_periods_begin_with_a_multiple_of_the_step() {
        let with = |shortest: u64, period_step_ns: u64| {
            let generator = Generator { period_ns: [shortest, 5000], period_step_ns, ..Generator::default() };
            generator.check().map_err(|error| error.to_string())
        };
        assert_eq!(with(2000, 1000), Ok(()));
        for (shortest, step) in [(2500, 1000), (500, 1000), (2000, 0), (0, 1000)] {
            assert!(with(shortest, step).unwrap_err().contains("not a range of multiples"), "{shortest} by {step}");
        }
    }

    #[test]
    fn every_way_to_divide_a_utilization_is_uniform() {
        let unequal = vec![0.9, 0.2, 0.5, 0.05, 0.7];
        let cases = [
            (with(5, 0.8, Utilizations::Uunifast, vec![1.0]), vec![0.8; 5]),
            (with(5, 0.8, Utilizations::Dirichlet, vec![1.0]), vec![0.8; 5]),
            (with(5, 2.2, Utilizations::UunifastDiscard, vec![1.0]), vec![1.0; 5]),
            (with(5, 2.2, Utilizations::Capped, vec![1.0]), vec![1.0; 5]),
            (with(5, 4.0, Utilizations::Capped, vec![1.0]), vec![1.0; 5]),
            (with(5, 0.3, Utilizations::Capped, unequal.clone()), unequal.clone()),
            (with(5, 1.2, Utilizations::Capped, unequal.clone()), unequal.clone()),
            (with(5, 2.0, Utilizations::Capped, unequal.clone()), unequal),
        ];
        for (generator, caps) in cases {
            let drawn = vectors(&generator, 20_000);
            let total = generator.utilization;
            for vector in &drawn {
                assert!((vector.iter().sum::<f64>() - total).abs() < 1e-9, "{vector:?}");
                assert!(vector.iter().zip(&caps).all(|(x, cap)| (-1e-12..=cap + 1e-9).contains(x)), "{vector:?}");
            }
            let p = worst(&drawn, total, &caps);
            assert!(p > 1e-3, "{:?} {total}: p = {p}", generator.utilizations);
        }
    }

    #[test]
    fn uniform_numbers_divided_by_their_sum_are_found_out() {
        let mut random = fastrand::Rng::with_seed(1);
        let drawn: Vec<Vec<f64>> = (0..20_000)
            .map(|_| {
                let numbers: Vec<f64> = (0..5).map(|_| random.f64()).collect();
                let sum: f64 = numbers.iter().sum();
                numbers.iter().map(|x| x / sum * 0.8).collect()
            })
            .collect();
        assert!(worst(&drawn, 0.8, &[0.8; 5]) < 1e-9);
        // The test also detects a method that cuts the excess over a cap and gives it to the other tasks.
        let uncapped = vectors(&with(5, 0.8, Utilizations::Uunifast, vec![1.0]), 20_000);
        let cut = |vector: &Vec<f64>| {
            let above: f64 = vector.iter().map(|x| (x - 0.4).max(0.0)).sum();
            let room: f64 = vector.iter().map(|x| (0.4 - x).max(0.0)).sum();
            vector.iter().map(|x| x.min(0.4) + (0.4 - x).max(0.0) / room * above).collect()
        };
        assert!(worst(&uncapped.iter().map(cut).collect::<Vec<_>>(), 0.8, &[0.4; 5]) < 1e-9);
    }

    #[test]
    fn many_tasks_under_tight_caps_are_drawn_in_few_tries() {
        for total in [0.01, 10.0, 50.0, 99.0, 100.0] {
            let vector = with(100, total, Utilizations::Capped, vec![1.0]).utilizations(3, 4).unwrap();
            assert!((vector.iter().sum::<f64>() - total).abs() < 1e-9);
        }
    }

    #[test]
    fn a_set_depends_on_seed_and_index_alone() {
        let generator = Generator::default();
        let again = |index| generator.task_set(7, index).unwrap();
        assert_eq!(again(5), again(5));
        assert_ne!(again(5), again(6));
        assert_ne!(again(5), generator.task_set(8, 5).unwrap());
        // Another utilization does not change the periods and the shapes of curves.
        let other = Generator { utilization: 0.4, ..generator.clone() }.task_set(7, 5).unwrap();
        let periods = |set: &TaskSet| set.tasks().iter().map(|task| task.period_ns).collect::<Vec<_>>();
        assert_eq!(periods(&other), periods(&again(5)));
    }

    #[test]
    fn a_set_has_the_utilization_and_the_periods_asked_for() {
        let generator = Generator { period_step_ns: 1_000_000, deadline: [0.5, 0.9], ..Generator::default() };
        let mut thirds = [0u64; 3];
        for index in 0..1000 {
            let set = generator.task_set(1, index).unwrap();
            let sum: f64 = set.tasks().iter().map(|task| task.wcet_ns[31] as f64 / task.period_ns as f64).sum();
            assert!((sum - 0.7).abs() < 1e-6, "{sum}");
            for task in set.tasks() {
                assert!(
                    task.period_ns.is_multiple_of(1_000_000) && (10_000_000..=1_000_000_000).contains(&task.period_ns)
                );
                let share = task.deadline_ns as f64 / task.period_ns as f64;
                assert!((0.4999..=0.9001).contains(&share), "{share}");
                // Thirds of the logarithmic range: 10, 46.4, 215.4, 1000 ms.
                thirds[usize::from(task.period_ns > 46_415_888) + usize::from(task.period_ns > 215_443_469)] += 1;
            }
        }
        assert!(thirds.iter().all(|count| count.abs_diff(8000 / 3) < 250), "{thirds:?}");
    }

    #[test]
    fn a_curve_has_the_sensitivity_of_its_class_or_the_shape_of_its_profile() {
        let class = Class { weight: 1.0, sensitivity: [0.5, 0.5], knee_partitions: [4.0, 4.0] };
        let generator = Generator { classes: vec![class], utilization: 0.5, tasks: 1, ..Generator::default() };
        let curve = generator.task_set(1, 1).unwrap().tasks()[0].wcet_ns.clone();
        assert!((curve[0] as f64 / curve[31] as f64 - 1.5).abs() < 1e-5);
        // After 4 more partitions, 1/e of the excess is left, corrected for the excess that is left after all 31.
        let left = |p: usize| (curve[p] - curve[31]) as f64 / (curve[0] - curve[31]) as f64;
        let tail = (-31.0f64 / 4.0).exp();
        assert!((left(4) - ((-1.0f64).exp() - tail) / (1.0 - tail)).abs() < 1e-4);
        let profiles_ns = vec![vec![300, 200, 100]];
        let generator = Generator { profiles_ns, classes: Vec::new(), ..generator };
        let curve = generator.task_set(1, 1).unwrap().tasks()[0].wcet_ns.clone();
        assert!((curve[0] as f64 / curve[31] as f64 - 3.0).abs() < 1e-5 && curve[2] == curve[31]);
    }

    #[test]
    fn what_cannot_be_drawn_is_refused_by_name() {
        let wrong_field = |generator: Generator| generator.task_set(1, 1).unwrap_err().field;
        assert_eq!(wrong_field(Generator { tasks: 0, ..Generator::default() }), "tasks");
        assert_eq!(wrong_field(with(4, 5.0, Utilizations::Capped, vec![1.0])), "caps");
        assert_eq!(wrong_field(with(4, f64::NAN, Utilizations::Uunifast, vec![1.0])), "utilization");
        assert_eq!(wrong_field(with(4, 1.0, Utilizations::Capped, vec![0.5, 0.5])), "caps");
        assert_eq!(wrong_field(Generator { period_ns: [5, 4], ..Generator::default() }), "period_ns");
        assert_eq!(wrong_field(Generator { task_partitions: [2, 1], ..Generator::default() }), "task_partitions");
        let many = Generator { task_partitions: [1, 33], ..Generator::default() };
        // `task_set` ignores this range, because a planner chooses the partitions.
        assert!(many.task_set(1, 1).is_ok());
        assert_eq!(many.core(1, 1).unwrap_err().field, "task_partitions");
        assert_eq!(wrong_field(Generator { classes: Vec::new(), ..Generator::default() }), "classes");
        assert_eq!(wrong_field(Generator { cores: 0, ..Generator::default() }), "cores");
    }
}
