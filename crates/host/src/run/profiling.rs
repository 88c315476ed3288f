//! A profiling run: some jobs of one program of a set, run as it will be, with nothing else on its CPU.

use std::path::{Path, PathBuf};

use isochrome_model::profile::{Execution, ProfilingRun};
use isochrome_model::running::{JobRecord, Requirement};
use isochrome_model::taskset::programs::Program;
use isochrome_model::units::{CpuId, Ns};

use super::engine::{self, Hooks, OnViolation, Place, Request};
use super::error::RunError;
use super::planned::{self, Planned};
use crate::counters::events::Event;
use crate::interrupt;

/// Jobs at the beginning that do not count: they find the cache as somebody else left it.
const COLD: u64 = 20;

/// Runs at least `jobs` jobs of `program` at its period on `cpu` and measures them. `None` if it was interrupted.
///
/// The program runs in the groups that it `joins` ([`Planned::joins`]), on the memory that `place` gives it. `counted` is the event to count.
/// Execution is the time the program had the CPU from its release until it slept again; the rest of the response is waiting. Jobs with steal
/// time while they executed are censored: they executed at least as long.
pub fn profiling_run(
    program: &Program,
    cpu: CpuId,
    jobs: u64,
    folder: &Path,
    joins: Vec<PathBuf>,
    counted: Option<Event>,
    place: &mut Place<'_>,
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
        // The last one is released but not seen to be complete.
        length: Ns(program.period.0.saturating_mul(COLD + jobs + 1)),
        on_violation: OnViolation::Trace,
        keep_going: false,
        alone: true,
        lock: true,
        counted,
        folder,
    };
    let (mut jobs, mut last) = (Vec::with_capacity(jobs as usize), Ns(0));
    let mut record = |job: &JobRecord| {
        // What was released while the one before was under way waits for that one.
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
    let outcome = engine::run(&request, &mut Hooks { place, look: &mut |_, _| None, record: &mut record })?;
    if outcome.interrupted || interrupt::interrupted() {
        return Ok(None);
    }
    if let Some(failure) = outcome.failures.first() {
        return Err(RunError::Failed { program: program.name.clone(), what: failure.what.clone() });
    }
    let unknown = || RunError::Failed {
        program: program.name.clone(),
        what: "was not seen to complete a job without steal time".to_owned(),
    };
    Ok(Some(ProfilingRun::of(&jobs).ok_or_else(unknown)?))
}

/// A requirement that every job of `program` meets: here jobs are measured, not checked.
fn unlimited(program: &Program) -> Requirement {
    Requirement { name: program.name.clone(), period: program.period, deadline: Ns(u64::MAX), ..Requirement::default() }
}
