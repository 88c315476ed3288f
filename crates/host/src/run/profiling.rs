//! A profiling run: executes jobs of one program of a task set under the conditions of the planned run, with nothing else on the program's CPU.

use std::path::{Path, PathBuf};

use isochrome_model::profile::{Execution, ProfilingRun};
use isochrome_model::running::{JobRecord, Requirement};
use isochrome_model::taskset::programs::Program;
use isochrome_model::units::{CpuId, Ns};

use super::engine::{self, Hooks, MoveToColors, OnViolation, Request};
use super::error::RunError;
use super::planned::{self, Planned};
use crate::counters::events::Event;
use crate::interrupt;

/// Number of jobs at the beginning that do not count, because the cache still holds what other programs left there.
const COLD: u64 = 20;

/// Most runs until one has a job without steal time. A host may withhold the CPU for longer than a short run takes.
const RUNS_MAX: usize = 10;

/// Runs at least `jobs` jobs of `program` at its period on `cpu`, and returns their measurements; `None` if the run was interrupted. A run in which
/// all jobs had steal time is repeated.
///
/// The program runs in the groups that it `joins` ([`Planned::joins`]), on the memory that `move_to_colors` gives it. `counted` is the event to count.
/// The execution time of a job is the time for which the program had the CPU from its release until it slept again. The rest of the response
/// time is waiting. Jobs with steal time while they executed are censored: their execution time is at least the measured one.
pub fn profiling_run(
    program: &Program,
    cpu: CpuId,
    jobs: u64,
    folder: &Path,
    joins: Vec<PathBuf>,
    counted: Option<Event>,
    move_to_colors: &mut MoveToColors<'_>,
) -> Result<Option<ProfilingRun>, RunError> {
    assert!(program.period.0 > 0, "a program without a period has no jobs");
    let planned = Planned {
        program: program.clone(),
        cpu,
        scheduling: Some(planned::fifo(0, 1)),
        requirement: Some(unlimited(program)),
        joins,
        partitions: Vec::new(),
    };
    let request = Request {
        programs: &[planned],
        // The last job is released, but may not be complete at the end.
        length: Ns(program.period.0.saturating_mul(COLD + jobs + 1)),
        on_violation: OnViolation::Trace,
        watches_gaps: false,
        keep_going: false,
        alone: true,
        lock: true,
        counted,
        folder,
    };
    for _ in 0..RUNS_MAX {
        let (mut jobs, mut last) = (Vec::with_capacity(jobs as usize), Ns(0));
        let mut record = |job: &JobRecord| {
            // A job that was released before the previous job was complete waits for that job.
            let free = job.release >= std::mem::replace(&mut last, job.completion) && job.steal_time == Ns(0);
            if job.instance >= COLD {
                jobs.push(Execution {
                    time_ns: job.execution.0,
                    is_censored: job.deducted > Ns(0),
                    waiting_ns: if free { job.response().0.saturating_sub(job.execution.0) } else { 0 },
                    misses: job.misses,
                });
            }
            Ok(())
        };
        let hooks = &mut Hooks { move_to_colors, inspect: &mut |_, _| None, record: &mut record };
        let outcome = engine::run(&request, hooks)?;
        if outcome.interrupted || interrupt::interrupted() {
            return Ok(None);
        }
        if let Some(failure) = outcome.failures.first() {
            return Err(RunError::Failed { program: program.name.clone(), what: failure.what.clone() });
        }
        match ProfilingRun::of(&jobs) {
            Some(run) => return Ok(Some(run)),
            None if jobs.is_empty() => break,
            None => {}
        }
    }
    let what = "was not seen to complete a job without steal time".to_owned();
    Err(RunError::Failed { program: program.name.clone(), what })
}

/// Returns a requirement that every job of `program` meets, because profiling measures jobs without checking them.
fn unlimited(program: &Program) -> Requirement {
    Requirement { name: program.name.clone(), period: program.period, deadline: Ns(u64::MAX), ..Requirement::default() }
}
