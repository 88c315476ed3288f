//! Hits and misses of programs that disturb each other.

use std::collections::HashMap;
use std::fs;

use serde_json::{Value, json};

use super::counters::Defect;
use super::machine::Machine;
use crate::trial::{NotRun, Outcome};

/// Codes of events of a Zen 3: accesses of the first level, and lines brought there from the second level, the third, and memory; what each
/// counts in a run.
const COUNTED: [(u64, u64); 4] = [(0x0729, 1000), (0x0143, 80), (0x0243, 15), (0x4843, 5)];

/// Returns the result of measuring two shells that count. Nobody is given a part of a cache, so the result does not depend on the machine's caches.
fn measured(machine: &mut Machine) -> Result<Value, NotRun> {
    machine.kernel.pmu.counts = HashMap::from(COUNTED);
    let script = machine.folder.path().join("counts");
    fs::write(&script, "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done\n").expect("a file");
    let program = format!("sh {}", script.display());
    let nowhere = machine.folder.path().join("nowhere").display().to_string();
    machine.environment.push(("ISOCHROME_RESCTRL", nowhere));
    let options = ["--by", "ways", "--json", "--blocks", "1", "--warm-up", "3ms"];
    machine.json(&[&["lab", "interference"], &options[..], &["--program", &program, "--program", &program]].concat())
}

/// Returns hits and misses of each level in every arm of every row, which must be the same in all, with the names of the levels.
fn requests(result: &Value) -> Vec<(String, [f64; 2])> {
    let rows = result["rows"].as_array().unwrap();
    // Each of the programs beside the other, on another CPU and in time slices.
    assert!(rows.len() >= 2, "{result}");
    let names = result["counted"].as_array().unwrap().iter().map(|level| level["level"].as_str().unwrap().to_owned());
    let of_row = |row: &Value| -> Vec<[f64; 2]> {
        let of_level = |level: &Value| {
            ["hits", "misses"].map(|of| {
                let arms: Vec<f64> = level[of].as_array().unwrap().iter().map(|arm| arm.as_f64().unwrap()).collect();
                assert!(arms.iter().all(|count| *count == arms[0]), "{row}");
                arms[0]
            })
        };
        row["requests"].as_array().into_iter().flatten().map(of_level).collect()
    };
    let first = of_row(&rows[0]);
    assert!(rows.iter().all(|row| of_row(row) == first), "{result}");
    names.zip(first).collect()
}

pub fn levels() -> Outcome {
    let levels = requests(&measured(&mut Machine::new(Defect::None))?);
    let expected = [("L1", [900.0, 100.0]), ("L2", [80.0, 20.0]), ("L3", [15.0, 5.0])];
    assert_eq!(levels, expected.map(|(name, counts)| (name.to_owned(), counts)));
    Ok(())
}

pub fn defects() -> Outcome {
    // Outer levels are kept.
    let levels = requests(&measured(&mut Machine::new(Defect::Few(3)))?);
    let expected = [("L2", [80.0, 20.0]), ("L3", [15.0, 5.0])];
    assert_eq!(levels, expected.map(|(name, counts)| (name.to_owned(), counts)));
    for defect in [Defect::Stuck, Defect::Gone(2)] {
        let result = measured(&mut Machine::new(defect))?;
        assert_eq!((&result["counted"], requests(&result)), (&json!([]), Vec::new()), "{defect:?}: {result}");
    }
    // The runs are measured, and have no counts.
    let result = measured(&mut Machine::new(Defect::GoneFromOthers))?;
    assert_eq!((result["counted"].as_array().unwrap().len(), requests(&result)), (3, Vec::new()), "{result}");
    Ok(())
}
