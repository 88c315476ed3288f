//! `isochrome job`: runs jobs of a built-in workload, one for each line on standard input, or a given number in a row.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use isochrome_host::load::kernels::{Kernel, KernelKind, Walk, Writer};
use isochrome_host::sys::clock::process_cpu;
use isochrome_model::units::Bytes;

use crate::args::JobOptions;
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

pub fn run(options: &JobOptions) -> Result<Verdict> {
    let mut work = Work::new(&options.kernel, options.size)?;
    work.job()?;
    if let Some(jobs) = options.jobs {
        (0..jobs).try_for_each(|_| work.job())?;
        return ended(&mut work);
    }
    let (mut input, mut output) = (std::io::stdin().lock(), std::io::stdout().lock());
    let mut say = |line: &[u8]| output.write_all(line).and_then(|()| output.flush());
    say(b"ready\n")?;
    let mut bytes = [0; 256];
    loop {
        let length = input.read(&mut bytes).context("standard input")?;
        if length == 0 {
            return ended(&mut work);
        }
        for _ in bytes[..length].iter().filter(|byte| **byte == b'\n') {
            work.job()?;
            say(b"done\n")?;
        }
    }
}
