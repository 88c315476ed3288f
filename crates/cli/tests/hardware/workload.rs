//! Tests of tasks with a set miss ratio.

use crate::fixture::{isochrome, json, judged, output, reported};
use crate::trial::{NotRun, Outcome};

pub fn workload() -> Outcome {
    for kind in ["data", "code"] {
        // The first level needs no colors.
        let output = output(isochrome(&[
            "lab",
            "workload",
            "--miss-ratio",
            "33%",
            "--level",
            "1",
            "--kind",
            kind,
            "--blocks",
            "8",
            "--json",
        ]))?;
        let result = json(&output);
        assert!((result["predicted_lru"].as_f64().unwrap() - 0.33).abs() < 0.02, "{result}");
        let accepted = result["executed"]["blocks_quiet"].as_u64().unwrap_or(0);
        assert_eq!(output.status.code() == Some(0), accepted >= 6, "{result}");
        if accepted == 0 {
            return Err(NotRun(format!("no block of the {kind} was accepted")));
        }
        assert!(result["executed"]["access_ns"].as_f64().unwrap() > 0.0, "{result}");
    }
    Ok(())
}

pub fn workload_search() -> Outcome {
    let folder = tempfile::tempdir().unwrap();
    let [evidence, raw] = ["evidence.json", "samples.csv"].map(|name| folder.path().join(name));
    let arguments =
        ["lab", "workload", "--miss-ratio", "33%", "--level", "1", "--search", "--blocks", "8", "--json", "-o"];
    let output = isochrome(&arguments).arg(&evidence).arg("--raw").arg(&raw).output().unwrap();
    let output = if output.status.code() == Some(2) { output } else { judged(output)? };
    let result = json(&output);
    let tries: Vec<(u64, f64)> = result["search"]
        .as_array()
        .unwrap()
        .iter()
        .map(|tried| (tried["lines"].as_u64().unwrap(), tried["miss_ratio"].as_f64().unwrap()))
        .collect();
    let near = |tried: &(u64, f64)| (tried.1 - 0.33).abs() <= 0.02;
    let found = matches!(&tries[..], [.., before, last] if before.0 == last.0 && near(before) && near(last));
    let enough = result["executed"]["blocks_quiet"].as_u64().unwrap() >= 6;
    assert!(found || tries.len() == 24, "{tries:?}");
    let expected = if !enough {
        3
    } else if found {
        0
    } else {
        2
    };
    assert_eq!(output.status.code(), Some(expected), "{result}");
    assert!(result["counter_hz"].is_u64(), "{result}");
    // The outcome is one of the tries, and the raw file has every sample of every try: six of each of three kinds in a block.
    let outcome = (result["task"]["lines"].as_u64().unwrap(), result["executed"]["miss_ratio"].as_f64().unwrap());
    assert!(tries.contains(&outcome), "{outcome:?} of {tries:?}");
    let blocks: u64 = result["search"].as_array().unwrap().iter().map(|tried| tried["blocks"].as_u64().unwrap()).sum();
    assert_eq!(std::fs::read_to_string(raw).unwrap().lines().count() as u64, 1 + 18 * blocks);
    assert!(reported(&evidence).contains("Misses of a loop in level 1"));
    if !enough {
        return Err(NotRun(format!("too few accepted blocks to claim what was found: {}", result["executed"])));
    }
    Ok(())
}
