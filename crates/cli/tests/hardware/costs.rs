//! Tests of the experiments on interference, preemptions, switches, conflicts and kernels.

use serde_json::Value;

use crate::fixture::{conclusive, isochrome, json, judged, output, reported};
use crate::trial::{NotRun, Outcome};

pub fn bench_crpd_of_data() -> Outcome {
    let output =
        isochrome(&["lab", "crpd", "--step", "50", "--blocks", "10", "--jobs", "6", "--json"]).output().unwrap();
    // Exit code 2, a threshold that was not reached, is an answer too.
    let output = if output.status.code() == Some(2) { output } else { judged(output)? };
    let result = json(&output);
    // There are points for 5, 50, 100 and 130 %, for two walks, with and without partitions.
    let points = result["points"].as_array().unwrap();
    assert_eq!(points.len(), 4 * 2 * 2);
    let interval = |percent: u64, partitioned: bool| {
        let is = |point: &&Value| {
            point["walk"] == "random" && point["percent"] == percent && point["partitioned"] == partitioned
        };
        let point = points.iter().find(is).unwrap();
        match point["interval_ns"].as_array() {
            Some(ends) => Ok([ends[0].as_f64().unwrap(), ends[1].as_f64().unwrap()]),
            None => Err(NotRun(format!("{} blocks count at {percent} % of the partition", point["blocks_quiet"]))),
        }
    };
    let (small, half, own) = (interval(5, false)?, interval(50, false)?, interval(50, true)?);
    if half[0] <= 0.0 {
        return Err(NotRun(format!("no delay can be told from noise at 50 % of the partition: {half:?} ns")));
    }
    // Each delay is the time after a flood less that of its control, with its interval. A tenth of the lines, or lines in colors of their own,
    // must not be delayed longer.
    assert!(half[1] > small[0], "{half:?} ns at 50 %, {small:?} at 5 %");
    assert!(half[1] > own[0], "{half:?} ns unpartitioned, {own:?} partitioned");
    Ok(())
}

pub fn bench_crpd_of_code() -> Outcome {
    let folder = tempfile::tempdir().unwrap();
    let evidence = folder.path().join("crpd.json");
    let arguments = ["lab", "crpd", "--kind", "code", "--step", "50", "--blocks", "3", "--jobs", "3", "--json", "-o"];
    let mut command = isochrome(&arguments);
    command.arg(&evidence);
    let result = json(&output(command)?);
    assert_eq!(result["touches"], "code");
    // There are points for 5, 50, 100 and 130 %, for two walks, with and without partitions.
    let points = result["points"].as_array().unwrap();
    assert_eq!(points.len(), 4 * 2 * 2);
    assert!(points.iter().all(|point| point["pass_ns"].as_f64().unwrap() > 0.0), "{result}");
    assert!(reported(&evidence).contains("code of a jump per 8 lines"));
    Ok(())
}

pub fn bench_interference() -> Outcome {
    let folder = tempfile::tempdir().unwrap();
    let [evidence, raw, palette] = ["evidence.json", "runs.csv", "bits.json"].map(|name| folder.path().join(name));
    // Colors are the lowest bits of frame numbers, whether or not the cache has these colors: the test is whether runs and colors fit
    // together.
    std::fs::write(&palette, r#"{"schema":"isochrome-palette/1","level":2,"colors":16,"rule":"bits"}"#).unwrap();
    let root = std::os::unix::fs::MetadataExt::uid(&std::fs::metadata("/proc/self").unwrap()) == 0;
    let mut command = isochrome(&["lab", "interference", "--blocks", "1", "--warm-up", "100ms", "--json", "-o"]);
    command.arg(&evidence);
    for program in ["isochrome job --jobs 150000 filter 8192", "isochrome job --jobs 8600 write 1024"] {
        command.arg("--program").arg(program);
    }
    command.arg("--raw").arg(&raw).env("ISOCHROME_RUNTIME_DIR", folder.path());
    if root {
        command.args(["--memory", "1G", "--trust-palette", "--palette"]).arg(&palette);
    }
    let output = output(command)?;
    let result = json(&output);
    let divided = result["divided"].as_array().unwrap();
    let colors = divided.iter().find(|divided| divided["by"] == "colors");
    assert!(colors.is_some() || !root);
    assert!(colors.is_none_or(|colors| colors["shares"][1].as_array().unwrap().len() == 8));
    for program in result["programs"].as_array().unwrap() {
        assert!(!root || program["placed"].as_f64().unwrap() > 0.5, "{program}");
    }
    let rows = result["rows"].as_array().unwrap();
    assert!(!rows.is_empty() && rows.iter().all(|row| row["alone_ns"].as_f64().unwrap() > 0.0), "{result}");
    for row in rows {
        let (accepted, blocks) = (row["blocks_quiet"].as_u64().unwrap(), row["blocks"].as_u64().unwrap());
        assert!(accepted <= blocks, "{row}");
        let beside = row["together"].as_f64().unwrap() - row["control"].as_f64().unwrap();
        assert!(blocks > 1 || (beside - row["interference"].as_f64().unwrap()).abs() < 1e-9, "{row}");
    }
    // Every block has a run alone, one beside other programs that spin, and one beside the programs themselves.
    let blocks: u64 = rows.iter().map(|row| row["blocks"].as_u64().unwrap()).sum();
    assert_eq!(std::fs::read_to_string(&raw).unwrap().lines().count() as u64, 1 + 3 * blocks);
    assert!(reported(&evidence).contains("What programs cost each other"));
    Ok(())
}

pub fn bench_filter() -> Outcome {
    let folder = tempfile::tempdir().unwrap();
    let raw = folder.path().join("jobs.csv");
    let (raw_text, evidence) = (raw.to_str().unwrap(), folder.path().join("evidence.json"));
    let arguments =
        ["lab", "filter", "--taps", "1024", "--blocks", "4", "--jobs", "5", "--json", "--raw", raw_text, "-o"];
    let mut command = isochrome(&arguments);
    command.arg(&evidence);
    let output = output(command)?;
    let experiment = json(&output);
    assert_eq!((experiment["bench"].as_str(), experiment["taps"].as_u64()), (Some("filter"), Some(1024)));
    let mut counts = Vec::new();
    for condition in ["alone", "unpartitioned", "partitioned", "single_writer"] {
        let outcome = &experiment["conditions"][condition];
        for key in
            ["n", "cycles_min", "cycles_median", "cycles_p99", "cycles_p999", "cycles_max", "blocks", "blocks_quiet"]
        {
            assert!(outcome[key].is_u64(), "{condition} {key}: {}", outcome[key]);
        }
        assert!(outcome.get("l2_misses_median").is_some(), "null where there are no counters, but present");
        counts.push(outcome["n"].as_u64().unwrap());
        // Whatever was counted or timed, the quantiles are in order.
        let quantile = |key: &str| outcome[key].as_u64().unwrap();
        assert!(
            quantile("cycles_min") <= quantile("cycles_median") && quantile("cycles_p999") <= quantile("cycles_max")
        );
    }
    counts.retain(|n| *n > 0);
    assert!(counts.iter().all(|n| *n == counts[0]), "{counts:?}");
    // Every job of every block is in the raw file: four conditions and both kinds, times the number of rounds.
    let lines = std::fs::read_to_string(&raw).unwrap().lines().count() - 1;
    assert!(lines >= 4 * 4 * 2 * 5 && lines.is_multiple_of(4 * 4 * 2 * 5), "{lines}");
    assert!(isochrome(&["report", evidence.to_str().unwrap()]).output().unwrap().status.success());
    Ok(())
}

pub fn bench_conflicts() -> Outcome {
    let folder = tempfile::tempdir().unwrap();
    let evidence = folder.path().join("evidence.json");
    let mut command = isochrome(&["lab", "conflicts", "--buffers", "10", "--rounds", "20", "--json", "-o"]);
    command.arg(&evidence);
    let output = output(command)?;
    let result = json(&output);
    assert_eq!(result["walks"].as_array().unwrap().len(), 30);
    for walk in result["walks"].as_array().unwrap() {
        assert_eq!(walk["sum"] == 0, walk["placing"] == "balanced", "{walk}");
    }
    assert!(reported(&evidence).contains("What a conflict costs"));
    conclusive(&output)?;
    // The exit code and the numbers agree. A prefetcher may hide what conflicts cost on a walk in order, so nothing is asserted of that.
    assert_eq!((&result["random"]["rises"], &result["random"]["n"]), (&true.into(), &30.into()), "{result}");
    Ok(())
}

pub fn bench_switch() -> Outcome {
    let folder = tempfile::tempdir().unwrap();
    let evidence = folder.path().join("evidence.json");
    let mut command = isochrome(&["lab", "switch", "--blocks", "5", "--jobs", "3", "--json", "-o"]);
    command.arg(&evidence);
    let output = output(command)?;
    let result = json(&output);
    let rows = result["rows"].as_array().unwrap();
    let has = |means: &str| rows.iter().any(|row| row["kind"] == "switch" && row["means"] == means);
    assert!(["futex", "pipe", "signal"].into_iter().all(has), "{result}");
    for row in rows {
        for part in ["interrupt_ns", "resume_ns", "cost_ns"] {
            assert!(row["best"][part].as_f64().unwrap() > 0.0, "{row}");
        }
        assert!(row["blocks_quiet"].as_u64() <= row["blocks"].as_u64());
    }
    assert!(reported(&evidence).contains("What passing the CPU costs"));
    // Five blocks are too few for a conclusion. If some were disturbed, there were more rounds, and there may be enough.
    let few = rows.iter().any(|row| row["blocks_quiet"].as_u64().unwrap() < 6);
    assert!(!few || output.status.code() == Some(3), "{result}");
    Ok(())
}

pub fn demo() -> Outcome {
    let folder = tempfile::tempdir().unwrap();
    let report = folder.path().join("report");
    let mut command = isochrome(&["demo", "--quick", "-o"]);
    command.arg(&report);
    output(command)?;
    let html = std::fs::read_to_string(report.join("index.html")).unwrap();
    assert!(html.contains("<svg") && html.trim_end().ends_with("</html>"));
    let evidence: Value =
        serde_json::from_str(&std::fs::read_to_string(report.join("evidence.json")).unwrap()).unwrap();
    assert_eq!(evidence["schema"], "isochrome-evidence/2");
    for raw in evidence["raw"].as_array().unwrap() {
        assert!(report.join(raw["path"].as_str().unwrap()).is_file(), "{raw}");
    }
    Ok(())
}
