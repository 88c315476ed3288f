//! Tests of the page colors of the machine that they run on.

use std::process::Output;

use serde_json::Value;

use crate::fixture::{Nobody, conclusive, isochrome, json, output};
use crate::trial::{NotRun, Outcome};

/// Checks what must hold of any palette: the pages add up, and the exit code is 0 only if nothing is in doubt.
fn check_palette(output: &Output, pages: u64) -> Value {
    let palette = json(output);
    let per_color: Vec<u64> = palette["per_color"].as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).collect();
    assert_eq!(palette["pages"], pages);
    assert_eq!(per_color.len() as u64, palette["colors"].as_u64().unwrap());
    assert_eq!(per_color.iter().sum::<u64>() + palette["ambiguous"].as_u64().unwrap(), pages);
    let sure = palette["doubts"].as_array().unwrap().is_empty();
    if output.status.code() == Some(0) {
        assert!(sure);
        assert_eq!(palette["colors"], palette["colors_expected"]);
    }
    palette
}

pub fn palette_by_timing() -> Outcome {
    let output = output(isochrome(&["palette", "--by", "timing", "--pages", "2048", "--json"]))?;
    let palette = check_palette(&output, 2048);
    assert_eq!(palette["method"], "timing");
    certain(&palette)
}

/// Fails with a reason to ignore the test if the tool doubts its own measurement.
fn certain(palette: &Value) -> Outcome {
    match palette["doubts"].as_array().unwrap().first() {
        Some(doubt) => Err(NotRun(format!("inconclusive: {doubt}"))),
        None => Ok(()),
    }
}

pub fn palette_again() -> Outcome {
    let arguments = ["palette", "--by", "timing", "--pages", "2048", "--again", "timing", "--verify", "--json"];
    let output = output(isochrome(&arguments))?;
    let palette = check_palette(&output, 2048);
    certain(&palette)?;
    conclusive(&output)?;
    let agreement = palette["again"][0]["agreement"].as_f64().unwrap();
    assert!(agreement >= 0.98, "{agreement}");
    Ok(())
}

pub fn palette_unprivileged() -> Outcome {
    let output = output(Nobody::new()?.command(&["palette", "--pages", "1024", "--json"]))?;
    let palette = check_palette(&output, 1024);
    assert_eq!(palette["method"], "timing");
    assert!(palette["rule"].as_str().unwrap().contains("hidden"), "{}", palette["rule"]);
    certain(&palette)
}

/// Saves a palette of 64 MiB and returns the runtime folder that holds it.
fn saved_palette() -> Result<tempfile::TempDir, NotRun> {
    let folder = tempfile::tempdir().unwrap();
    let mut command = isochrome(&["palette", "--save", "--memory", "64M", "--json"]);
    command.env("ISOCHROME_RUNTIME_DIR", folder.path());
    let output = output(command)?;
    let palette = json(&output);
    if palette["saved"].is_null() {
        return Err(NotRun(format!("no palette was saved: {}, {}", palette["doubts"], palette["rule"])));
    }
    Ok(folder)
}

pub fn map_of_a_program() -> Outcome {
    let folder = saved_palette()?;
    let drawing = folder.path().join("map.svg");
    let mut command = isochrome(&["map", "--verify", "--json", "--after", "300ms", "-o"]);
    command.arg(&drawing).args(["--", "sleep", "5"]).env("ISOCHROME_RUNTIME_DIR", folder.path());
    let output = match command.output().expect("the command starts") {
        // The host may remap frames during the test, or other programs may take them. The tool must say so, and then the test is ignored.
        output if matches!(output.status.code(), Some(2 | 3)) && !output.stdout.is_empty() => {
            let map = json(&output);
            let verification = &map["verification"];
            if verification["agreement"].as_f64().is_none_or(|share| share < 0.98) {
                return Err(NotRun(format!("the palette did not last: {verification}")));
            }
            // Memory that the program shares with others is not measured, so the map may be incomplete.
            let [unknown, pages] = ["unknown", "pages"].map(|key| map["total"][key].as_u64().unwrap());
            assert!(output.status.code() == Some(3) && 100 * unknown > pages, "{}", map["total"]);
            output
        }
        _ => output(command)?,
    };
    let map = json(&output);
    assert!(map["verification"]["agreement"].as_f64().is_some_and(|share| share >= 0.98), "{}", map["verification"]);
    let of = |map: &Value| {
        let known: u64 = map["per_color"].as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).sum();
        (known + map["unknown"].as_u64().unwrap(), map["pages"].as_u64().unwrap())
    };
    for mapping in map["mappings"].as_array().unwrap().iter().chain([&map["total"]]) {
        let (sum, pages) = of(mapping);
        assert_eq!(sum, pages, "{mapping}");
    }
    assert!(std::fs::read_to_string(drawing).unwrap().starts_with("<svg xmlns"));
    Ok(())
}
