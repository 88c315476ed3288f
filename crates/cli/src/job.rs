//! `isochrome job`: the built-in workloads of task sets, released and completed by lines, or so many jobs one after the other.

use std::hint::black_box;
use std::io::{Read, Write};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use isochrome_host::kernels::{Kernel, KernelKind};
use isochrome_host::sys::clock::process_cpu;

use crate::Verdict;
use crate::args::JobOptions;

/// Most KiB that are written to.
const WRITE_MAX: usize = 1 << 20;

/// What a job does.
enum Work {
    Kernel(Box<dyn Kernel>),
    /// Computes for so many nanoseconds.
    Spin(u64),
    /// Writes to all of this memory, in order.
    Write(Vec<u8>),
}

impl Work {
    fn new(kernel: &str, size: usize) -> Result<Work> {
        Ok(match kernel {
            "spin" => Work::Spin((size as u64).saturating_mul(1000)),
            "write" => {
                anyhow::ensure!((1..=WRITE_MAX).contains(&size), "`write` takes 1 to {WRITE_MAX} KiB");
                Work::Write(vec![0; size << 10])
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
            Work::Write(bytes) => {
                let next = black_box(bytes[0].wrapping_add(1));
                bytes.fill(next);
            }
        }
        Ok(())
    }
}

/// How many jobs are done in `time` here; at least one.
pub fn jobs_within(kernel: &str, size: usize, time: Duration) -> Result<u64> {
    let mut work = Work::new(kernel, size)?;
    let (begin, mut jobs) = (Instant::now(), 0);
    while jobs == 0 || begin.elapsed() < time {
        work.job()?;
        jobs += 1;
    }
    Ok(jobs)
}

/// Memory that was moved must not have changed.
fn ended(work: &Work) -> Result<Verdict> {
    match work {
        Work::Kernel(kernel) => kernel.check()?,
        Work::Write(bytes) => anyhow::ensure!(bytes.iter().all(|byte| *byte == bytes[0]), "memory has changed"),
        Work::Spin(_) => {}
    }
    Ok(Verdict::Holds)
}

pub fn run(options: &JobOptions) -> Result<Verdict> {
    let mut work = Work::new(&options.kernel, options.size)?;
    work.job()?;
    if let Some(jobs) = options.jobs {
        (0..jobs).try_for_each(|_| work.job())?;
        return ended(&work);
    }
    let (mut input, mut output) = (std::io::stdin().lock(), std::io::stdout().lock());
    let mut say = |line: &[u8]| output.write_all(line).and_then(|()| output.flush());
    say(b"ready\n")?;
    let mut bytes = [0; 256];
    loop {
        let length = input.read(&mut bytes).context("standard input")?;
        if length == 0 {
            return ended(&work);
        }
        for _ in bytes[..length].iter().filter(|byte| **byte == b'\n') {
            work.job()?;
            say(b"done\n")?;
        }
    }
}
