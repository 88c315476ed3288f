//! Recorded noise, on which experiments are simulated.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Returns the ticks of the recorded jobs after spinning, block by block.
pub fn recorded_noise() -> Vec<Vec<f64>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../lab/tests/corpus/filter.csv");
    let text = fs::read_to_string(path).unwrap();
    let mut lines = text.lines();
    let head: Vec<&str> = lines.next().unwrap().split(',').collect();
    let column = |name: &str| head.iter().position(|column| *column == name).unwrap();
    let (block, condition, arm, cycles) = (column("block"), column("condition"), column("arm"), column("cycles"));
    let mut blocks = BTreeMap::<&str, Vec<f64>>::new();
    for line in lines {
        let fields: Vec<&str> = line.split(',').collect();
        // In the condition `alone`, nothing floods the cache before any job.
        if fields[arm] == "control" || fields[condition] == "alone" {
            blocks.entry(fields[block]).or_default().push(fields[cycles].parse().unwrap());
        }
    }
    blocks.into_values().collect()
}
