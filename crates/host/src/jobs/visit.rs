//! A visit: some jobs of one program, one after the other, with nothing else on its CPU.

use std::time::Duration;

use isochrome_model::profile::Visit;
use isochrome_model::stats::{HighWaterMark, Sorted};
use isochrome_model::units::{Cycles, Ns};

use super::JobError;
use super::line::LineProgram;
use crate::sys::clock;

/// How long a job may take while it is measured.
const JOB_LIMIT: Duration = Duration::from_secs(20);

/// A program whose time on a CPU does not grow over this time is asleep.
const GLANCE_NS: u64 = 2_000;

/// Runs `jobs` jobs that do not count.
pub fn warm_up(program: &mut LineProgram, jobs: u64) -> Result<(), JobError> {
    (0..jobs).try_for_each(|_| program.job(JOB_LIMIT).map(|_| ()))
}

/// Runs `jobs` jobs (at least one), each released when the one before has gone to sleep.
///
/// The execution time of a job is the time that its program was on a CPU, from the line that releases it until it waits for the next one: it
/// contains reading and writing the lines. What is left of the time from release to completion is waiting.
pub fn visit(program: &mut LineProgram, jobs: u64) -> Result<Visit, JobError> {
    assert!(jobs > 0, "a visit has at least one job");
    let mut times = Vec::with_capacity(jobs as usize);
    let mut waiting = 0;
    let mut before = asleep(program)?;
    for _ in 0..jobs {
        let seen = program.job(JOB_LIMIT)?;
        let after = asleep(program)?;
        let time = after.0 - before.0;
        times.push(time);
        waiting = waiting.max((seen.completed.0 - seen.released.0).saturating_sub(time));
        before = after;
    }
    let longest = HighWaterMark::of(&times).expect("there is a job");
    let sum_ns = times.iter().sum();
    let median_ns = Sorted::of(times).expect("there is a job").median();
    Ok(Visit { jobs, sum_ns, median_ns, longest, waiting_ns: waiting, misses: None, cycles_per_instruction: None })
}

/// Waits until the program sleeps; its time on a CPU until then.
fn asleep(program: &LineProgram) -> Result<Ns, JobError> {
    let glance = Cycles(GLANCE_NS * clock::rate_hz() / 1_000_000_000);
    let mut last = program.cpu()?;
    loop {
        clock::spin_until(Cycles(clock::now().0 + glance.0));
        let now = program.cpu()?;
        if now == last {
            return Ok(now);
        }
        last = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::launch::Launch;

    #[test]
    fn the_execution_time_of_a_job_is_what_its_program_computes_and_not_what_it_sleeps() {
        let script = "echo ready; while read line; do i=0; while [ $i -lt 3000 ]; do i=$((i+1)); done; sleep 0.02; echo done; done";
        let words: Vec<String> = ["sh", "-c", script].map(str::to_owned).into();
        let mut program = LineProgram::start(&words, &Launch::default()).unwrap();
        program.ready(JOB_LIMIT).unwrap();
        warm_up(&mut program, 2).unwrap();
        let begin = program.cpu().unwrap();
        let visit = visit(&mut program, 5).unwrap();
        assert_eq!((visit.jobs, visit.longest.n), (5, 5));
        assert!(visit.median_ns > 0 && visit.median_ns <= visit.longest.value && visit.longest.value <= visit.sum_ns);
        // Every nanosecond on a CPU belongs to a job.
        assert_eq!(visit.sum_ns, program.cpu().unwrap().0 - begin.0);
        assert!(visit.waiting_ns >= 15_000_000, "{visit:?}");
    }
}
