//! Tests of floods, and of the cost of a packet after a flood.

use std::process::Command;

use crate::fixture::{answer, isochrome, json, judged, reported};
use crate::trial::{NotRun, Outcome};

pub fn flood_verify() -> Outcome {
    let folder = tempfile::tempdir().unwrap();
    let (evidence, raw) = (folder.path().join("flood.json"), folder.path().join("flood.csv"));
    let mut command = isochrome(&["lab", "flood", "--verify", "--blocks", "8", "--samples", "4", "--json", "-o"]);
    command.arg(&evidence).arg("--raw").arg(&raw);
    let output = answer(command)?;
    let verified = json(&output);
    let achieved = verified["achieved"].as_array().unwrap();
    if achieved.is_empty() {
        assert_eq!(output.status.code(), Some(3));
        return Err(NotRun("no block was accepted".to_owned()));
    }
    for flood in achieved {
        let gone = flood["gone"].as_f64().unwrap();
        assert!((0.0..=1.0).contains(&gone) && flood["blocks"].as_u64().unwrap().is_multiple_of(8), "{flood}");
        assert!(flood["sure_ns"].as_f64() > flood["hit_ns"].as_f64(), "{flood}");
    }
    let most = achieved.iter().max_by(|a, b| a["flooded_ns"].as_f64().partial_cmp(&b["flooded_ns"].as_f64()).unwrap());
    assert_eq!(most.map(|worst| &worst["pattern"]), Some(&verified["worst"]).filter(|worst| !worst.is_null()));
    // The verdict is positive exactly if the worst flood leaves no more than 5 % of the lines.
    let holds = most.is_some_and(|worst| worst["gone"].as_f64().unwrap() >= 0.95);
    assert_eq!(output.status.code(), Some(if holds { 0 } else { 2 }));
    let patterns = 5 - verified["not_tried"].as_array().unwrap().len();
    let rows = std::fs::read_to_string(&raw).unwrap().lines().count() - 1;
    assert!(rows > 0 && rows.is_multiple_of(patterns * 8 * 3 * 4), "{rows}");
    assert!(reported(&evidence).contains("What a flood leaves"));
    Ok(())
}

pub fn bench_net() -> Outcome {
    let folder = tempfile::tempdir().unwrap();
    let (svg, raw) = (folder.path().join("net.svg"), folder.path().join("net.csv"));
    let evidence = folder.path().join("net.json");
    let mut command = isochrome(&["lab", "net", "--sizes", "1,1500", "--blocks", "6", "--packets", "3", "--json"]);
    command.arg("--svg").arg(&svg).arg("--raw").arg(&raw).arg("-o").arg(&evidence);
    let output = answer(command)?;
    let printed = json(&output);
    let paths = printed["paths"].as_array().unwrap();
    let without = String::from_utf8_lossy(&output.stderr).contains("the path tap is left out: ");
    let expected = if without { vec!["memory", "kernel"] } else { vec!["memory", "tap", "kernel"] };
    assert_eq!(paths.iter().map(|net| net["path"].as_str().unwrap()).collect::<Vec<_>>(), expected);
    for net in paths {
        let points = net["points"].as_array().unwrap();
        // Two directions and two sizes, with three kinds of flood, in up to four rounds.
        assert_eq!(points.len(), 2 * 2 * 3);
        for point in points {
            assert!([6, 12, 18, 24].contains(&point["blocks"].as_u64().unwrap()), "{point}");
            assert!(point["blocks_quiet"].as_u64() <= point["blocks"].as_u64());
            assert!(point["control_ns"].as_f64().unwrap() > 0.0, "{point}");
        }
    }
    // A round has six blocks on every path, for two sizes and three settings, in both directions, with three packets of each kind.
    let lines = std::fs::read_to_string(&raw).unwrap().lines().count() - 1;
    assert!(lines >= 6 * 2 * 3 * expected.len() * 2 * 2 * 3 && lines.is_multiple_of(6 * 2 * 3 * 2 * 2 * 3), "{lines}");
    assert!(std::fs::read_to_string(&svg).unwrap().starts_with("<svg"));
    assert!(reported(&evidence).contains("What a packet costs after a flood"));
    Ok(())
}

/// Checks that packets cross a TAP device while kernel settings are read-only, as in a container.
pub fn bench_net_read_only() -> Outcome {
    const SETTINGS: &str = "mount --bind /proc/sys /proc/sys && mount -o remount,bind,ro /proc/sys";
    let small = ["lab", "net", "--path", "tap", "--sizes", "64", "--blocks", "2", "--packets", "2", "--json"];
    let plain = isochrome(&small).output().unwrap();
    let stderr = String::from_utf8_lossy(&plain.stderr).into_owned();
    if let Some(reason) = stderr.lines().find(|line| line.contains("a TAP device")) {
        return Err(NotRun(reason.to_owned()));
    }
    if plain.status.code() != Some(2) {
        judged(plain)?;
    }
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", &format!("{SETTINGS} || exit 77; exec \"$@\""), "sh"]);
    let output = command.arg(env!("CARGO_BIN_EXE_isochrome")).args(small).output().unwrap();
    if output.status.code() == Some(77) {
        return Err(NotRun("nothing can be mounted here".to_owned()));
    }
    let output = if output.status.code() == Some(2) { output } else { judged(output)? };
    assert_eq!(json(&output)["paths"][0]["path"], "tap");
    Ok(())
}
