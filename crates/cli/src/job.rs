//! `isochrome job`: runs jobs of a built-in workload, one for each line on standard input, or a given number in a row.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use isochrome_host::load::kernels::{Kernel, KernelKind, Walk, Writer};
use isochrome_host::run::marks::{Edge, MarkWriter};
use isochrome_host::sys::clock::process_cpu;
use isochrome_model::units::Bytes;
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::args::JobOptions;
use crate::files;
use crate::verdict::Verdict;

/// Largest memory, in KiB, that is walked over or written to.
const MEMORY_MAX: usize = 1 << 20;

/// The work of one job.
enum Work {
    Kernel(Box<dyn Kernel>),
    /// Busy loop for this much CPU time, in ns.
    Spin(u64),
    /// One pass over all lines, in which each load waits for the one before it.
    Walk(Walk),
    /// One pass of writes to every line.
    Write(Writer),
}

impl Work {
    fn new(kernel: &str, size: usize) -> Result<Work> {
        Ok(match kernel {
            "spin" => Work::Spin((size as u64).saturating_mul(1000)),
            "walk" | "write" => {
                anyhow::ensure!((1..=MEMORY_MAX).contains(&size), "`{kernel}` takes 1 to {MEMORY_MAX} KiB");
                let bytes = Bytes((size as u64) << 10);
                if kernel == "walk" { Work::Walk(Walk::new(bytes)?) } else { Work::Write(Writer::new(bytes)?) }
            }
            name => Work::Kernel(name.parse::<KernelKind>()?.build(size)?),
        })
    }

    fn job(&mut self) -> Result<()> {
        match self {
            Work::Kernel(kernel) => kernel.job(),
            Work::Spin(time) => {
                let own = std::process::id() as i32;
                let until = process_cpu(own)?.0.saturating_add(*time);
                while process_cpu(own)?.0 < until {}
            }
            Work::Walk(walk) => drop(walk.pass()),
            Work::Write(writer) => writer.pass(),
        }
        Ok(())
    }
}

/// Returns the number of jobs that are done in `time` on this machine, at least 1.
pub fn jobs_within(kernel: &str, size: usize, time: Duration) -> Result<u64> {
    let mut work = Work::new(kernel, size)?;
    let (begin, mut jobs) = (Instant::now(), 0);
    while jobs == 0 || begin.elapsed() < time {
        work.job()?;
        jobs += 1;
    }
    Ok(jobs)
}

/// Fails if the contents of the work's memory have changed: moving its pages must keep them.
fn ended(work: &mut Work) -> Result<Verdict> {
    match work {
        Work::Kernel(kernel) => kernel.check()?,
        Work::Write(writer) => anyhow::ensure!(writer.is_intact(), "memory has changed"),
        Work::Spin(_) | Work::Walk(_) => {}
    }
    Ok(Verdict::Holds)
}

/// Runs a job every `period`, and prints how long each took, until the reader closes the output. Marks its jobs if the environment requests that.
fn periodic(work: &mut Work, period: Duration) -> Result<Verdict> {
    let mut output = std::io::stdout().lock();
    let marks = MarkWriter::inherited();
    let mark = |edge| marks.iter().for_each(|marks| marks.mark(edge));
    let mut due = Instant::now();
    loop {
        let begin = Instant::now();
        mark(Edge::Begin);
        work.job()?;
        mark(Edge::End);
        let took = begin.elapsed();
        if writeln!(output, "took {:.3} us", took.as_secs_f64() * 1e6).and_then(|()| output.flush()).is_err() {
            return ended(work);
        }
        // Jobs that could not be run in time are left out.
        due = (due + period).max(Instant::now());
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
    }
}

pub fn run(options: &JobOptions) -> Result<Verdict> {
    if let Some(cpu) = options.cpu {
        let mut set = CpuSet::new();
        set.set(cpu as usize);
        sched_setaffinity(None, &set).context("the CPU cannot be chosen")?;
    }
    let mut work = Work::new(&options.kernel, options.size)?;
    work.job()?;
    if options.refill {
        let Work::Walk(walk) = &work else { anyhow::bail!("only a walk is refilled") };
        let mut writer = Writer::new(Bytes(((options.size as u64) << 12).max(2 << 20)))?;
        println!("refill {:.3} us", isochrome_lab::interference::expected::refill(walk, &mut writer).0 as f64 / 1e3);
        return Ok(Verdict::Holds);
    }
    if let Some(jobs) = options.jobs {
        (0..jobs).try_for_each(|_| work.job())?;
        return ended(&mut work);
    }
    if let Some(period) = options.every {
        return periodic(&mut work, Duration::from_nanos(period.0));
    }
    let mut input = std::io::stdin().lock();
    files::print_whole("ready\n")?;
    let mut bytes = [0; 256];
    loop {
        let length = input.read(&mut bytes).context("standard input")?;
        if length == 0 {
            return ended(&mut work);
        }
        for _ in bytes[..length].iter().filter(|byte| **byte == b'\n') {
            work.job()?;
            files::print_whole("done\n")?;
        }
    }
}
