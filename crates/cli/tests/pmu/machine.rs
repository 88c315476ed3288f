//! The machine for tests: a Zen 3 with small caches.

use std::fs;
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

use super::cache::Cache;
use super::counters::{Defect, Pmu};
use super::kernel::Kernel;
use super::tracee;
use crate::trial::NotRun;

pub const WAYS: usize = 8;
pub const COLORS: usize = 4;

/// Memory under test: 2048 pages. No other mapping of the program has this size.
pub const MEMORY: &str = "8M";
const MEMORY_BYTES: u64 = 8 << 20;

const CPUINFO: &str = "vendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 1\nmodel name\t: AMD for tests\n";

/// A folder with the files of the machine and the runtime folder of the command.
pub struct Machine {
    pub folder: TempDir,
    pub kernel: Kernel,
    /// Environment of the command.
    pub environment: Vec<(&'static str, String)>,
}

/// Returns the frame of a page. The frames have all colors, in no order.
fn frame(page: u64) -> u64 {
    (1 << 20) + (page * 1237 + 17) % 2048
}

/// Returns the color of a page by its frame, whose color the function `color` returns.
pub fn color_of(page: u64, color: fn(u64) -> usize) -> usize {
    color(frame(page))
}

/// Returns the color of a frame by its lowest bits, as where the index of a cache is linear.
pub fn low_bits(frame: u64) -> usize {
    (frame % COLORS as u64) as usize
}

/// Returns the color of a frame by a hash of its bits. No single bit decides the color.
pub fn hashed(frame: u64) -> usize {
    let parity = |mask: u64| (frame & mask).count_ones() as usize & 1;
    parity(0b1001001) + 2 * parity(0b0110010)
}

impl Machine {
    pub fn new(defect: Defect) -> Machine {
        let folder = tempfile::tempdir().expect("a folder");
        let mut kernel = Kernel::new(Pmu::with(defect));
        fs::write(folder.path().join("cpuinfo"), CPUINFO).expect("a file");
        kernel.files.insert("/proc/cpuinfo".to_owned(), folder.path().join("cpuinfo"));
        for cpu in 0..cpus() {
            let cache = folder.path().join(format!("cpu{cpu}"));
            // Level, type, ways, sets: 16 KiB, 128 KiB of which a page of 4096 bytes takes a quarter of each way.
            for (index, (level, kind, ways, sets)) in
                [("1", "Data", 4, 64), ("1", "Instruction", 4, 64), ("2", "Unified", WAYS, 64 * COLORS)]
                    .iter()
                    .enumerate()
            {
                let folder = cache.join(format!("index{index}"));
                fs::create_dir_all(&folder).expect("a folder");
                let size = format!("{}K", ways * sets * 64 / 1024);
                let [ways, sets, cpu] = [*ways, *sets, cpu].map(|number| number.to_string());
                let files = [
                    ("level", *level),
                    ("type", kind),
                    ("size", &size),
                    ("ways_of_associativity", &ways),
                    ("number_of_sets", &sets),
                    ("coherency_line_size", "64"),
                    ("shared_cpu_list", &cpu),
                ];
                files
                    .iter()
                    .for_each(|(name, text)| fs::write(folder.join(name), format!("{text}\n")).expect("a file"));
            }
            kernel.files.insert(format!("/sys/devices/system/cpu/cpu{cpu}/cache"), cache);
        }
        Machine { folder, kernel, environment: Vec::new() }
    }

    /// Returns the machine with a second cache level that holds pages of the colors that the function `color` returns.
    pub fn with_colors(mut self, color: fn(u64) -> usize) -> Machine {
        self.kernel.cache = Some(Cache::new(WAYS, COLORS, color, frame, MEMORY_BYTES));
        self
    }

    /// Runs isochrome on this machine.
    pub fn output(&mut self, arguments: &[&str]) -> Result<Output, NotRun> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_isochrome"));
        command.args(arguments).env("ISOCHROME_RUNTIME_DIR", self.folder.path().join("runtime"));
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        tracee::output(&command, &mut self.kernel)
    }

    /// Runs isochrome on this machine, and returns what it prints as JSON.
    pub fn json(&mut self, arguments: &[&str]) -> Result<Value, NotRun> {
        let output = self.output(arguments)?;
        let stderr = String::from_utf8_lossy(&output.stderr);
        let value = serde_json::from_slice(&output.stdout);
        Ok(value.unwrap_or_else(|error| panic!("{error}: {:?}: {stderr}", output.status)))
    }
}

fn cpus() -> usize {
    let online = fs::read_dir("/sys/devices/system/cpu").expect("CPUs").flatten();
    let is_cpu = |name: &str| name.strip_prefix("cpu").is_some_and(|rest| rest.parse::<u32>().is_ok());
    online.filter(|entry| entry.file_name().to_str().is_some_and(is_cpu)).count()
}
