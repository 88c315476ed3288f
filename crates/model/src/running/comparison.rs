//! Compares the same set with and without partitions, block by block.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::JobRecord;
use crate::stats::{Effect, Gate, accepted, blocks_needed, holm, median, visible_effect};
use crate::units::Ns;

/// Comparison of the same set with and without partitions, in pairs of blocks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Comparison {
    /// Length of a window.
    pub window: Ns,
    /// Number of blocks of each kind. Programs are started anew for each block.
    pub blocks: u64,
    /// Comparisons of the single tasks.
    pub tasks: Vec<TaskComparison>,
}

impl Comparison {
    /// Compares tasks, each given with its name and its windows as planned and without partitions, in `blocks` pairs of blocks.
    ///
    /// Each pair of blocks gives one difference. The windows of a block are not independent of each other, because they share one
    /// start of the programs and one placement of their memory. All windows count, fast and slow, except those with much steal
    /// time ([`accepted`]). A block is represented by the mean of its jobs, so that an effect in a minority of the windows shows
    /// as well.
    pub fn of<'a>(
        window: Ns,
        blocks: u64,
        tasks: impl IntoIterator<Item = (&'a str, [&'a [Window]; 2])>,
    ) -> Comparison {
        let compare = |(name, sides)| TaskComparison::of(name, sides, window);
        let mut comparison = Comparison { window, blocks, tasks: tasks.into_iter().map(compare).collect() };
        let mut differences: Vec<&mut Difference> =
            comparison.tasks.iter_mut().flat_map(TaskComparison::differences_mut).collect();
        let p = holm(&differences.iter().map(|difference| difference.effect.p).collect::<Vec<_>>());
        let effects = p.len();
        for (difference, p) in differences.iter_mut().zip(p) {
            difference.effect.p = p;
            difference.visible *= visible_effect(difference.effect.n, effects);
        }
        comparison
    }

    /// Returns the fewest pairs of blocks with which each of the effects that are judged together can be significant.
    pub fn pairs_needed(&self) -> u64 {
        blocks_needed(self.tasks.iter().cloned().map(|mut task| task.differences_mut().count()).sum())
    }
}

/// Comparison of one task with and without partitions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TaskComparison {
    /// Name of the task.
    pub name: String,
    /// The side with partitions, as planned.
    pub partitioned: Side,
    /// The side without partitions.
    pub unpartitioned: Side,
    /// Difference of the execution times of jobs, in ns; `None` if no pair of blocks is complete, and in files of earlier
    /// versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub execution: Option<Difference>,
    /// Difference of the response times of jobs, in ns; `None` as for `execution`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response: Option<Difference>,
    /// Difference of the misses of jobs; `None` if they were not counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub misses: Option<Difference>,
}

impl TaskComparison {
    fn of(name: &str, sides: [&[Window]; 2], length: Ns) -> TaskComparison {
        let undisturbed = |windows: &[Window]| -> Vec<Window> {
            let steal = |window: &Window| window.steal_time.0 as f64 / length.0.max(1) as f64;
            let gate = |window| Gate { canaries_lost: None, steal: steal(window), control: 0.0 };
            let counts = accepted(&windows.iter().map(gate).collect::<Vec<_>>());
            windows.iter().zip(counts).filter(|(_, counts)| *counts).map(|(window, _)| *window).collect()
        };
        let counted = sides.map(undisturbed);
        let blocks = counted.each_ref().map(|windows| {
            let mut blocks = BTreeMap::new();
            for window in windows {
                blocks.entry(window.block).or_insert_with(|| Window::new(window.block)).add(window);
            }
            blocks
        });
        let [planned, without] = &blocks;
        let pairs: Vec<[Window; 2]> =
            planned.iter().filter_map(|(block, planned)| Some([*planned, *without.get(block)?])).collect();
        let difference = |value: fn(&Window) -> Option<f64>| {
            let of = |[planned, without]: &[Window; 2]| Some(value(without)? - value(planned)?);
            Difference::of(&pairs.iter().map(of).collect::<Option<Vec<f64>>>()?)
        };
        let side = |at: usize| {
            // The median is as robust as the effect. A mean over blocks could be decided by a single disturbance of the run.
            let typical = |value: fn(&Window) -> Option<f64>| {
                median(&pairs.iter().map(|pair| value(&pair[at])).collect::<Option<Vec<f64>>>()?)
            };
            Side {
                windows: sides[at].len() as u64,
                accepted: counted[at].len() as u64,
                jobs: pairs.iter().map(|pair| pair[at].jobs).sum(),
                execution_ns: typical(execution_ns).unwrap_or_default(),
                response_ns: typical(response_ns).unwrap_or_default(),
                response_max: pairs.iter().map(|pair| pair[at].response_max).max().unwrap_or_default(),
                misses: typical(misses_per_job),
            }
        };
        TaskComparison {
            name: name.to_owned(),
            partitioned: side(0),
            unpartitioned: side(1),
            execution: difference(execution_ns),
            response: difference(response_ns),
            misses: difference(misses_per_job),
        }
    }

    fn differences_mut(&mut self) -> impl Iterator<Item = &mut Difference> {
        [&mut self.execution, &mut self.response, &mut self.misses].into_iter().flatten()
    }
}

/// One side of a comparison, over its accepted windows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Side {
    /// Number of windows that were run.
    pub windows: u64,
    /// Number of accepted windows.
    #[serde(alias = "quiet")]
    pub accepted: u64,
    /// Number of jobs in the accepted windows.
    pub jobs: u64,
    /// Execution time of a job, in ns: the median over all pairs of the mean of a block.
    pub execution_ns: f64,
    /// Response time of a job, in ns: the median over all pairs of the mean of a block.
    pub response_ns: f64,
    /// Longest response time. This is an observation, not a bound.
    pub response_max: Ns,
    /// Misses of a job: the median over all pairs of the mean of a block; `None` if they were not counted.
    pub misses: Option<f64>,
}

/// Difference by which the mean of a quantity over the jobs of a block is larger without partitions.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Difference {
    /// Effect over all pairs of blocks. Its p-value is corrected for all quantities and tasks of the comparison.
    #[serde(flatten)]
    pub effect: Effect,
    /// Smallest effect that as many pairs with the same spread would show in 80 % of all comparisons.
    pub visible: f64,
}

impl Difference {
    /// Returns the effect over pairs of blocks, with the standard deviation in place of [`visible`](Self::visible), which depends
    /// on how many effects are judged together; `None` without pairs.
    fn of(differences: &[f64]) -> Option<Difference> {
        let effect = Effect::of(differences)?;
        let n = differences.len() as f64;
        let mean = differences.iter().sum::<f64>() / n;
        let squares: f64 = differences.iter().map(|difference| (difference - mean).powi(2)).sum();
        Some(Difference { effect, visible: (squares / (n - 1.0).max(1.0)).sqrt() })
    }
}

/// Jobs of a task that were released in one window, or in all accepted windows of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Number of the pair of blocks.
    pub block: u64,
    /// Number of jobs.
    pub jobs: u64,
    /// Sum of the execution times of the jobs.
    pub execution: Ns,
    /// Sum of the response times of the jobs.
    pub response: Ns,
    /// Longest response time of the jobs.
    pub response_max: Ns,
    /// Sum of the misses of the jobs; `None` if they were not counted for every job.
    pub misses: Option<u64>,
    /// Steal time on the CPU during the window.
    pub steal_time: Ns,
}

impl Window {
    /// Returns a window of the pair `block`, without jobs.
    pub fn new(block: u64) -> Window {
        let none = Ns(0);
        Window {
            block,
            jobs: 0,
            execution: none,
            response: none,
            response_max: none,
            misses: Some(0),
            steal_time: none,
        }
    }

    /// Adds a job to the window.
    pub fn push(&mut self, job: &JobRecord) {
        self.add(&Window {
            block: self.block,
            jobs: 1,
            execution: job.execution,
            response: job.response(),
            response_max: job.response(),
            misses: job.misses,
            // Steal time before the release is counted with the job before.
            steal_time: job.steal_time.min(job.response()),
        });
    }

    fn add(&mut self, more: &Window) {
        self.jobs += more.jobs;
        self.execution.0 += more.execution.0;
        self.response.0 += more.response.0;
        self.response_max = self.response_max.max(more.response_max);
        self.misses = self.misses.zip(more.misses).map(|(misses, more)| misses + more);
        self.steal_time.0 += more.steal_time.0;
    }

    fn per_job(&self, sum: u64) -> f64 {
        sum as f64 / self.jobs as f64
    }
}

fn execution_ns(block: &Window) -> Option<f64> {
    Some(block.per_job(block.execution.0))
}

fn response_ns(block: &Window) -> Option<f64> {
    Some(block.per_job(block.response.0))
}

fn misses_per_job(block: &Window) -> Option<f64> {
    block.misses.map(|misses| block.per_job(misses))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::running::fixture::job;

    /// Returns a window of ten jobs of `execution` ns each, whose response times are 5 ns longer.
    fn window(block: u64, execution: u64) -> Window {
        let mut window = Window::new(block);
        (0..10).for_each(|instance| window.push(&job(instance, execution + 5, execution, 0)));
        window
    }

    fn compared(sides: [&[Window]; 2]) -> TaskComparison {
        Comparison::of(Ns(10_000), 20, [("a", sides)]).tasks.remove(0)
    }

    #[test]
    fn a_comparison_has_a_difference_for_every_pair_of_blocks() {
        // Without partitions jobs take 10, 11, ... 15 ns more, pair by pair. The block without a partner is not used.
        let planned: Vec<Window> = (0..6).map(|block| window(block, 100 + block % 3)).collect();
        let without: Vec<Window> = (0..7).map(|block| window(block, 110 + block % 3 + block)).collect();
        let task = compared([&planned, &without]);
        let execution = task.execution.unwrap();
        assert_eq!((execution.effect.n, execution.effect.estimate), (6, 12.5));
        // For six differences of one sign, 2 of 64 assignments of signs are as extreme. Execution and response are judged together, which
        // doubles p.
        assert_eq!((execution.effect.p, task.response.unwrap().effect.p), (0.0625, 0.0625));
        assert_eq!((task.partitioned.execution_ns, task.unpartitioned.response_ns), (101.0, 118.5));
        assert_eq!((task.unpartitioned.windows, task.unpartitioned.accepted, task.unpartitioned.jobs), (7, 7, 60));
        assert_eq!((task.misses, task.partitioned.misses), (None, None));
        // The standard deviation of 10 to 15 is 1.87. With two effects, 80 % of comparisons of six pairs show an effect of 3.08 √(π/18) =
        // 1.29 deviations.
        assert!((execution.visible - 2.41).abs() < 0.01, "{execution:?}");
    }

    #[test]
    fn misses_are_compared_where_every_job_was_counted() {
        let counted = |block, misses: Option<u64>| {
            let mut window = window(block, 100);
            window.misses = misses;
            window
        };
        let planned: Vec<Window> = (0..8).map(|block| counted(block, Some(10 * block))).collect();
        let without: Vec<Window> = (0..8).map(|block| counted(block, Some(10 * block + 20))).collect();
        let task = compared([&planned, &without]);
        assert_eq!((task.misses.unwrap().effect.estimate, task.partitioned.misses), (2.0, Some(3.5)));
        let [first, rest @ ..] = &planned[..] else { panic!() };
        let partly = [&[Window { misses: None, ..*first }], rest].concat();
        assert_eq!(compared([&partly, &without]).misses, None);
        let mut pushed = Window::new(0);
        pushed.push(&JobRecord { misses: Some(3), ..job(0, 9, 9, 0) });
        assert_eq!(pushed.misses, Some(3));
    }

    #[test]
    fn a_difference_in_most_windows_is_not_selected_away() {
        // 12 of 20 windows take half as long again without partitions: 30 % more on average. A selection of the quickest windows of either
        // kind would compare 100 with 101, conclusively.
        let planned: Vec<Window> = (0..20).map(|block| window(block, 100 + block % 3)).collect();
        let without: Vec<Window> = (0..20).map(|block| window(block, if block % 5 < 3 { 150 } else { 101 })).collect();
        let execution = compared([&planned, &without]).execution.unwrap().effect;
        assert!(
            execution.is_significant() && execution.interval.is_some_and(|[low, high]| low < 29.0 && high > 29.0),
            "{execution:?}"
        );
    }

    #[test]
    fn windows_with_much_steal_time_do_not_count_and_slow_ones_do() {
        let planned: Vec<Window> = (0..6).map(|block| window(block, 100)).collect();
        let mut without: Vec<Window> = (0..6).map(|block| window(block, 200)).collect();
        // Steal time of 5 % of 10 000 ns, and of more.
        without[1].steal_time = Ns(500);
        without[2].steal_time = Ns(501);
        let task = compared([&planned, &without]);
        assert_eq!((task.partitioned.accepted, task.unpartitioned.accepted), (6, 5));
        assert_eq!(task.execution.unwrap().effect.n, 5);
        // A job that waits for 30 ns has at most 30 ns of steal time, however much there was before.
        let mut window = Window::new(0);
        window.push(&job(0, 30, 20, 5000));
        assert_eq!(window.steal_time, Ns(30));
    }

    #[test]
    fn comparisons_of_earlier_versions_are_read() {
        let side = r#"{"windows":12,"quiet":5,"jobs":60,"execution_ns":100.0,"response_ns":105.0,"response_max":9,"misses":null}"#;
        let task = format!(r#"{{"name":"a","partitioned":{side},"unpartitioned":{side}}}"#);
        let task: TaskComparison = serde_json::from_str(&task).unwrap();
        assert_eq!((task.partitioned.accepted, task.execution), (5, None));
    }
}
