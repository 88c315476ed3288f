//! The batch of scripts/python_speed.py without Python: bounds of every task of many cores.
//!
//! Usage: `cargo run --release -p isochrome-python --example batch -- FILE`. FILE holds words of 64 bits: the numbers of sets
//! and of tasks, then execution times, periods, deadlines and masks of partitions. For each line of standard input, the program
//! prints the number of sets that it bounds per second of CPU time, and the sum of all bounds.

use std::hint::black_box;

use isochrome_model::analysis::{Analysis, Charges, CoreTask, Workspace, responses};
use isochrome_model::taskset::PartitionSet;
use rustix::time::{ClockId, clock_gettime};

fn cpu_s() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

fn main() {
    let path = std::env::args().nth(1).expect("a file of words");
    let bytes = std::fs::read(path).expect("a file of words");
    let words: Vec<u64> = bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect();
    let (sets, tasks) = (words[0] as usize, words[1] as usize);
    let columns: Vec<&[u64]> = words[2..].chunks_exact(sets * tasks).collect();
    let charges = Charges { refill_ns: 45_300, ..Charges::default() };
    for _ in std::io::stdin().lines() {
        let start = cpu_s();
        let (mut workspace, mut core) = (Workspace::default(), Vec::new());
        let mut found: Vec<i64> = Vec::with_capacity(sets * tasks);
        for set in 0..sets {
            core.clear();
            core.extend((set * tasks..(set + 1) * tasks).map(|at| CoreTask {
                deadline_ns: columns[2][at],
                ..CoreTask::new(columns[0][at], columns[1][at], PartitionSet::from_words(&[columns[3][at]]))
            }));
            let verdicts = responses(&core, charges, Analysis::Kim2013, &mut workspace);
            found.extend(verdicts.map(|verdict| verdict.response_ns().map_or(-1, |time| time as i64)));
        }
        let sum: i64 = black_box(&found).iter().sum();
        println!("{} {sum}", sets as f64 / (cpu_s() - start));
    }
}
