//! `isochrome job`: the built-in workloads of task sets, released and completed by lines.

use std::io::{Read, Write};

use anyhow::{Context, Result};
use isochrome_host::kernels::{Kernel, KernelKind};
use isochrome_host::sys::clock::process_cpu;

use crate::Verdict;
use crate::args::JobOptions;

/// What a job does.
enum Work {
    Kernel(Box<dyn Kernel>),
    /// Computes for so many nanoseconds.
    Spin(u64),
}

impl Work {
    fn job(&mut self) -> Result<()> {
        match self {
            Work::Kernel(kernel) => kernel.job(),
            Work::Spin(time) => {
                let own = std::process::id() as i32;
                let until = process_cpu(own)?.0.saturating_add(*time);
                while process_cpu(own)?.0 < until {}
            }
        }
        Ok(())
    }
}

pub fn run(options: &JobOptions) -> Result<Verdict> {
    let mut work = match options.kernel.as_str() {
        "spin" => Work::Spin((options.size as u64).saturating_mul(1000)),
        name => Work::Kernel(name.parse::<KernelKind>()?.build(options.size)?),
    };
    work.job()?;
    let (mut input, mut output) = (std::io::stdin().lock(), std::io::stdout().lock());
    let mut say = |line: &[u8]| output.write_all(line).and_then(|()| output.flush());
    say(b"ready\n")?;
    let mut bytes = [0; 256];
    loop {
        let length = input.read(&mut bytes).context("standard input")?;
        if length == 0 {
            if let Work::Kernel(kernel) = &work {
                // Memory that was moved must not have changed.
                kernel.check()?;
            }
            return Ok(Verdict::Holds);
        }
        for _ in bytes[..length].iter().filter(|byte| **byte == b'\n') {
            work.job()?;
            say(b"done\n")?;
        }
    }
}
