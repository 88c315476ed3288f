//! The command on the machine the tests run on.
//!
//! A shared machine can be too noisy to measure on. So these tests assert what must hold of any answer (files, forms, that the
//! tool says so when it is not sure), and of the measurement only what the tool itself calls conclusive. Where a machine
//! cannot answer at all the test is reported as ignored, with the reason; `HARDWARE_REQUIRED=1` makes that a failure.

mod trial;

use std::io::Write;
use std::process::{Command, ExitCode, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use trial::{NotRun, Outcome, run as run_trials, trial};

fn main() -> ExitCode {
    let trials = vec![
        trial("palette_by_timing_finds_the_colors_or_says_that_it_is_not_sure", palette_by_timing),
        trial("palette_classifies_again_as_before", palette_again),
        trial("palette_without_privileges_needs_no_frame_numbers", palette_unprivileged),
        trial("bench_filter_reports_every_condition_with_equal_n", bench_filter),
        trial("a_saved_palette_maps_a_program_and_is_verified", map_of_a_program),
        trial("an_unprivileged_user_starts_a_program_on_colors", exec_unprivileged),
        trial("a_program_gets_its_colors_with_nothing_set_up", exec_as_root),
        trial("a_program_gets_its_colors_after_the_pages_of_known_color_were_lost", exec_after_loss),
        trial("exec_stands_aside_while_its_program_is_recolored_and_takes_the_colors_over", exec_stands_aside),
        trial("bench_conflicts_tells_the_miss_penalty", bench_conflicts),
        trial("bench_switch_tells_direct_part_and_cache_part", bench_switch),
        trial("a_workload_is_executed_and_reported_with_its_prediction", workload),
        trial("a_search_lists_every_try_and_claims_only_what_was_measured_twice", workload_search),
        trial("watch_sees_a_program_get_its_cpu_again_and_again", watch),
        trial("watch_without_privilege_sees_ones_own_programs_and_says_what_it_does_not_know", watch_unprivileged),
        trial("watch_polls_at_the_rate_asked_for_and_tells_what_that_costs", watch_polls),
        trial("flood_verifies_each_pattern_and_names_the_worst", flood_verify),
        trial("bench_net_reports_every_size_both_ways_and_draws_the_figures", bench_net),
        trial("packets_cross_a_tap_device_where_the_kernels_settings_are_read_only", bench_net_read_only),
        trial("bench_crpd_of_data_delays_larger_working_sets_for_longer", bench_crpd_of_data),
        trial("bench_crpd_of_code_has_every_size_walk_and_condition", bench_crpd_of_code),
        trial("bench_interference_runs_every_program_alone_beside_spinning_and_beside_others", bench_interference),
        trial("demo_leaves_a_report_evidence_and_raw_jobs", demo),
        trial("trace_by_lackey_has_every_load_store_and_fetch", || trace("lackey")),
        trial("trace_by_qemu_has_every_load_store_and_fetch", || trace("qemu")),
    ];
    run_trials(trials)
}

fn isochrome(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_isochrome"));
    command.args(arguments);
    command
}

/// Runs; a machine without colors or usable timing is a reason not to run the test.
fn output(mut command: Command) -> Result<Output, NotRun> {
    judged(command.output().expect("the command starts"))
}

fn judged(output: Output) -> Result<Output, NotRun> {
    const REASONS: [&str; 7] = [
        "loses its contents by itself",
        "too close to tell apart",
        "single page color",
        "no set of pages evicts",
        "palette is in doubt",
        // Where memory of 64 MiB was measured, others may have taken it meanwhile.
        "the palette cannot be tested",
        "frame numbers read as zero",
    ];
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    let reason = message.lines().find(|line| REASONS.iter().any(|reason| line.contains(reason)));
    match (output.status.code(), reason) {
        (Some(0), _) => Ok(output),
        (Some(3), _) if !message.contains("palette is in doubt") => Ok(output),
        (_, Some(reason)) => Err(NotRun(reason.to_owned())),
        (code, None) => panic!("exit code {code:?}: {message}"),
    }
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).expect("JSON on standard output")
}

/// What must hold of any palette: pages add up, and exit code 0 is given exactly when nothing is in doubt.
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

fn palette_by_timing() -> Outcome {
    let output = output(isochrome(&["palette", "--by", "timing", "--pages", "2048", "--json"]))?;
    let palette = check_palette(&output, 2048);
    assert_eq!(palette["method"], "timing");
    Ok(())
}

fn palette_again() -> Outcome {
    let arguments = ["palette", "--by", "timing", "--pages", "2048", "--again", "timing", "--verify", "--json"];
    let output = output(isochrome(&arguments))?;
    let palette = check_palette(&output, 2048);
    if output.status.code() == Some(0) {
        let agreement = palette["again"][0]["agreement"].as_f64().unwrap();
        assert!(agreement >= 0.98, "{agreement}");
    }
    Ok(())
}

/// A folder whose files keep their frames.
fn in_memory() -> Result<tempfile::TempDir, NotRun> {
    tempfile::tempdir_in("/dev/shm").map_err(|error| NotRun(format!("/dev/shm: {error}")))
}

/// The command as a user without any right runs it, with a runtime folder in memory.
struct Nobody(tempfile::TempDir);

impl Nobody {
    fn new() -> Result<Nobody, NotRun> {
        let folder = in_memory()?;
        // The program is copied to where everybody may run it.
        let program = folder.path().join("isochrome");
        std::fs::copy(env!("CARGO_BIN_EXE_isochrome"), &program).unwrap();
        let runtime = folder.path().join("runtime");
        std::fs::create_dir(&runtime).unwrap();
        for (path, mode) in [(folder.path(), 0o755), (&program, 0o755), (&runtime, 0o700)] {
            std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
        }
        std::os::unix::fs::chown(&runtime, Some(65534), Some(65534))
            .map_err(|error| NotRun(format!("giving a folder away takes root: {error}")))?;
        let nobody = Nobody(folder);
        if !nobody.command(&["--version"]).output().is_ok_and(|output| output.status.success()) {
            return Err(NotRun("becoming an unprivileged user takes root and setpriv".to_owned()));
        }
        Ok(nobody)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.program(self.0.path().join("isochrome"));
        command.args(arguments);
        command.env("ISOCHROME_RUNTIME_DIR", self.0.path().join("runtime"));
        command
    }

    /// Any program as that user runs it.
    fn program(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--no-new-privs", "--bounding-set=-all"]);
        command.arg(program);
        command
    }
}

fn exec_unprivileged() -> Outcome {
    let nobody = Nobody::new()?;
    lies_in_four_colors(nobody.command(&["exec"]), &nobody.0.path().join("runtime/outcome"))
}

fn exec_as_root() -> Outcome {
    let folder = in_memory()?;
    let mut exec = isochrome(&["exec"]);
    exec.env("ISOCHROME_RUNTIME_DIR", folder.path());
    lies_in_four_colors(exec, &folder.path().join("outcome"))
}

/// What `exec` moves to four colors lies there by eviction tests, too, with nothing measured or saved before.
fn lies_in_four_colors(mut exec: Command, outcome: &std::path::Path) -> Outcome {
    exec.args(["--colors", "0-3", "--interval", "200ms", "-o"]).arg(outcome);
    exec.args(["dd", "if=/dev/zero", "of=/dev/null", "bs=64M", "status=none"]);
    let mut program = exec.stderr(Stdio::piped()).spawn().unwrap();
    let begin = Instant::now();
    while !outcome.exists() && begin.elapsed() < Duration::from_secs(60) {
        assert_eq!(program.try_wait().unwrap(), None, "exec ends before its program");
        std::thread::sleep(Duration::from_millis(50));
    }
    let in_time = outcome.exists();
    // Its program gets the signal, and ends by it.
    assert!(Command::new("kill").arg(program.id().to_string()).status().unwrap().success());
    let said = std::io::read_to_string(program.stderr.take().unwrap()).unwrap();
    program.wait().unwrap();
    let outcome: Value = serde_json::from_str(&std::fs::read_to_string(outcome).unwrap()).unwrap();
    let errors: Vec<&str> = outcome["errors"].as_array().unwrap().iter().map(|error| error.as_str().unwrap()).collect();
    // On a machine too busy for timing it is the tool that says so.
    let reasons = [
        "cannot be measured",
        "loses its contents by itself",
        "too close to tell apart",
        "single page color",
        "the palette is in doubt",
    ];
    if let Some(error) = errors.iter().find(|error| reasons.iter().any(|reason| error.contains(reason))) {
        return Err(NotRun((*error).to_owned()));
    }
    assert!(in_time, "not on its colors after a minute: {said}");
    let count = |value: &Value| value.as_u64().unwrap();
    let (on_color, off_color) = (count(&outcome["on_color"]), count(&outcome["off_color"]));
    let [pages, verified] = ["pages", "right"].map(|key| count(&outcome["verified"][key]));
    println!("{on_color} pages on color, {off_color} off color; by eviction tests {verified} of {pages}; {outcome}");
    // The buffer of 64 MiB.
    assert!(on_color >= 16384 && on_color as f64 >= 0.99 * (on_color + off_color) as f64, "{outcome}");
    assert!(pages > 0 && verified as f64 >= 0.99 * pages as f64, "{outcome}");
    Ok(())
}

/// Pages of known color that have other frames, as when the kernel has moved their contents, are found out while a program grows.
fn exec_after_loss() -> Outcome {
    let folder = in_memory()?;
    let outcome = folder.path().join("outcome");
    let mut exec = isochrome(&["exec", "--colors", "0-3", "--interval", "200ms", "-o"]);
    exec.env("ISOCHROME_RUNTIME_DIR", folder.path()).arg(&outcome);
    let grow = "import sys\na=bytearray(b'x'*(4<<20))\nsys.stdin.readline()\nb=bytearray(b'x'*(16<<20))\nsys.stdin.readline()\n";
    let mut program = exec.args(["python3", "-c", grow]).stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let begin = Instant::now();
    while !outcome.exists() && begin.elapsed() < Duration::from_secs(30) {
        std::thread::sleep(Duration::from_millis(50));
    }
    let pages = || {
        let files = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path());
        files.filter(|path| path.extension().is_some_and(|extension| extension == "pages")).collect::<Vec<_>>()
    };
    let before = pages();
    // The copy is made while the frames of the original are still held, so that it has others.
    for path in &before {
        let copy = path.with_extension("copy");
        std::fs::copy(path, &copy).and_then(|_| std::fs::rename(&copy, path)).unwrap();
    }
    program.stdin.as_ref().unwrap().write_all(b"\n").unwrap();
    // Until new pages have taken their place, however long that takes, and the program is on its colors again.
    let begin = Instant::now();
    while (pages() == before || pages().len() > 1) && begin.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(50));
    }
    std::thread::sleep(Duration::from_secs(8));
    drop(program.stdin.take());
    let output = program.wait_with_output().unwrap();
    let output = judged(output)?;
    let outcome: Value = serde_json::from_str(&std::fs::read_to_string(outcome).unwrap()).unwrap();
    println!("{outcome}; {}", String::from_utf8_lossy(&output.stderr));
    let count = |key: &str| outcome[key].as_u64().unwrap();
    let (on_color, off_color) = (count("on_color"), count("off_color"));
    assert!(on_color >= 5120 && on_color as f64 >= 0.99 * (on_color + off_color) as f64, "{outcome}");
    assert_eq!(outcome["numbers"], "replaced", "what they had been before could not be found out");
    Ok(())
}

/// An `exec` that competed with `recolor` moved every page once more after each of them, and counted all pages as drifted.
fn exec_stands_aside() -> Outcome {
    let folder = in_memory()?;
    let outcome = folder.path().join("outcome");
    let mut exec = isochrome(&["exec", "--colors", "0-3", "--interval", "100ms", "-o"]);
    exec.env("ISOCHROME_RUNTIME_DIR", folder.path()).arg(&outcome);
    exec.args([
        "python3",
        "-c",
        "import os\na=bytearray(b'x'*(32<<20))\nprint(os.getpid(),flush=True)\nos.read(0,1)\n",
    ]);
    let program = exec.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut program = program.expect("the command starts");
    let mut said = std::io::BufReader::new(program.stdout.take().unwrap());
    let mut pid = String::new();
    std::io::BufRead::read_line(&mut said, &mut pid).unwrap();
    let begin = Instant::now();
    while !outcome.exists() && begin.elapsed() < Duration::from_secs(30) {
        std::thread::sleep(Duration::from_millis(50));
    }
    let recolored: Vec<Result<Output, NotRun>> = ["4-7", "0-3", "4-7"]
        .map(|colors| {
            let mut recolor = isochrome(&["recolor", pid.trim(), "--colors", colors, "--json"]);
            recolor.env("ISOCHROME_RUNTIME_DIR", folder.path());
            let recolored = output(recolor);
            // Several rounds of the watch.
            std::thread::sleep(Duration::from_millis(500));
            recolored
        })
        .into();
    drop(program.stdin.take());
    let ended = program.wait_with_output().unwrap();
    for recolored in recolored {
        let report = json(&recolored?);
        assert!(report["on_color"].as_u64().unwrap() >= 8192, "{report}");
    }
    judged(ended)?;
    let outcome: Value = serde_json::from_str(&std::fs::read_to_string(outcome).unwrap()).unwrap();
    println!("{outcome}");
    assert_eq!(outcome["drifted"], 0, "pages that a recoloring moved were moved once more: {outcome}");
    Ok(())
}

fn palette_unprivileged() -> Outcome {
    let output = output(Nobody::new()?.command(&["palette", "--pages", "1024", "--json"]))?;
    let palette = check_palette(&output, 1024);
    assert_eq!(palette["method"], "timing");
    assert!(palette["rule"].as_str().unwrap().contains("hidden"), "{}", palette["rule"]);
    Ok(())
}

/// Exit codes 2 and 3 are answers too: a flood that leaves lines, a machine that is never quiet.
fn answer(mut command: Command) -> Result<Output, NotRun> {
    let ran = command.output().expect("the command starts");
    if ran.status.code() == Some(2) { Ok(ran) } else { judged(ran) }
}

fn flood_verify() -> Outcome {
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
    // Holds exactly where the worst leaves no more than 5 % of the lines.
    let holds = most.is_some_and(|worst| worst["gone"].as_f64().unwrap() >= 0.95);
    assert_eq!(output.status.code(), Some(if holds { 0 } else { 2 }));
    let patterns = 5 - verified["not_tried"].as_array().unwrap().len();
    let rows = std::fs::read_to_string(&raw).unwrap().lines().count() - 1;
    assert!(rows > 0 && rows.is_multiple_of(patterns * 8 * 3 * 4), "{rows}");
    assert!(reported(&evidence).contains("What a flood leaves"));
    Ok(())
}

fn bench_net() -> Outcome {
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
        // Two directions of two sizes, flooded in three ways, in up to four rounds.
        assert_eq!(points.len(), 2 * 2 * 3);
        for point in points {
            assert!([6, 12, 18, 24].contains(&point["blocks"].as_u64().unwrap()), "{point}");
            assert!(point["blocks_quiet"].as_u64() <= point["blocks"].as_u64());
            assert!(point["control_ns"].as_f64().unwrap() > 0.0, "{point}");
        }
    }
    // Six blocks in a round of two sizes and three settings on every path, both ways, three packets of each kind.
    let lines = std::fs::read_to_string(&raw).unwrap().lines().count() - 1;
    assert!(lines >= 6 * 2 * 3 * expected.len() * 2 * 2 * 3 && lines.is_multiple_of(6 * 2 * 3 * 2 * 2 * 3), "{lines}");
    assert!(std::fs::read_to_string(&svg).unwrap().starts_with("<svg"));
    assert!(reported(&evidence).contains("What a packet costs after a flood"));
    Ok(())
}

/// As in a container.
fn bench_net_read_only() -> Outcome {
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

fn bench_crpd_of_data() -> Outcome {
    let output =
        isochrome(&["lab", "crpd", "--step", "45", "--blocks", "12", "--jobs", "6", "--json"]).output().unwrap();
    // A missed bar is an answer.
    let output = if output.status.code() == Some(2) { output } else { judged(output)? };
    let result = json(&output);
    // 5, 45, 50, 90, 100 and 130 %, two walks, partitioned and not.
    let points = result["points"].as_array().unwrap();
    assert_eq!(points.len(), 6 * 2 * 2);
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
    // Each a flood less its control, with its interval: a tenth of the lines, and lines that nobody else's colors reach, are not delayed for longer.
    assert!(half[1] > small[0], "{half:?} ns at 50 %, {small:?} at 5 %");
    assert!(half[1] > own[0], "{half:?} ns unpartitioned, {own:?} partitioned");
    Ok(())
}

fn bench_crpd_of_code() -> Outcome {
    let folder = tempfile::tempdir().unwrap();
    let evidence = folder.path().join("crpd.json");
    let arguments = ["lab", "crpd", "--kind", "code", "--step", "50", "--blocks", "3", "--jobs", "3", "--json", "-o"];
    let mut command = isochrome(&arguments);
    command.arg(&evidence);
    let result = json(&output(command)?);
    assert_eq!(result["touches"], "code");
    // 5, 50, 100 and 130 %, two walks, partitioned and not.
    let points = result["points"].as_array().unwrap();
    assert_eq!(points.len(), 4 * 2 * 2);
    assert!(points.iter().all(|point| point["pass_ns"].as_f64().unwrap() > 0.0), "{result}");
    assert!(reported(&evidence).contains("code of a jump per 8 lines"));
    Ok(())
}

fn bench_interference() -> Outcome {
    let folder = tempfile::tempdir().unwrap();
    let [evidence, raw, palette] = ["evidence.json", "runs.csv", "bits.json"].map(|name| folder.path().join(name));
    // By the lowest bits of frame numbers, whether or not these are the cache's colors: what is tested is that runs and colors go together.
    std::fs::write(&palette, r#"{"schema":"isochrome-palette/1","level":2,"colors":16,"rule":"bits"}"#).unwrap();
    let root = std::os::unix::fs::MetadataExt::uid(&std::fs::metadata("/proc/self").unwrap()) == 0;
    let mut command = isochrome(&["lab", "interference", "--blocks", "1", "--warm-up", "600ms", "--json", "-o"]);
    command.arg(&evidence);
    for program in ["isochrome job --jobs 900000 filter 8192", "isochrome job --jobs 130000 write 1024"] {
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
        let (quiet, blocks) = (row["blocks_quiet"].as_u64().unwrap(), row["blocks"].as_u64().unwrap());
        assert!(quiet <= blocks, "{row}");
        let beside = row["together"].as_f64().unwrap() - row["control"].as_f64().unwrap();
        assert!(blocks > 1 || (beside - row["interference"].as_f64().unwrap()).abs() < 1e-9, "{row}");
    }
    // Every block has a run alone, one beside others that spin, and one beside programs.
    let blocks: u64 = rows.iter().map(|row| row["blocks"].as_u64().unwrap()).sum();
    assert_eq!(std::fs::read_to_string(&raw).unwrap().lines().count() as u64, 1 + 3 * blocks);
    assert!(reported(&evidence).contains("What programs cost each other"));
    Ok(())
}

/// The report on what a command left.
fn reported(evidence: &std::path::Path) -> String {
    let report = isochrome(&["report", evidence.to_str().unwrap()]).output().unwrap();
    assert!(report.status.success());
    String::from_utf8(report.stdout).unwrap()
}

fn bench_filter() -> Outcome {
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
    // Every job of every block is in the raw file: four conditions, both kinds, times whatever rounds were needed.
    let lines = std::fs::read_to_string(&raw).unwrap().lines().count() - 1;
    assert!(lines >= 4 * 4 * 2 * 5 && lines.is_multiple_of(4 * 4 * 2 * 5), "{lines}");
    assert!(isochrome(&["report", evidence.to_str().unwrap()]).output().unwrap().status.success());
    Ok(())
}

/// Saves a palette of 64 MiB in a folder of its own.
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

fn map_of_a_program() -> Outcome {
    let folder = saved_palette()?;
    let drawing = folder.path().join("map.svg");
    let mut command = isochrome(&["map", "--verify", "--json", "--after", "300ms", "-o"]);
    command.arg(&drawing).args(["--", "sleep", "1"]).env("ISOCHROME_RUNTIME_DIR", folder.path());
    let output = match command.output().expect("the command starts") {
        // Frames were remapped meanwhile, or taken by others: the tool says so, and that is no failure of it.
        output if matches!(output.status.code(), Some(2 | 3)) && !output.stdout.is_empty() => {
            let map = json(&output);
            let verification = &map["verification"];
            if verification["agreement"].as_f64().is_none_or(|share| share < 0.98) {
                return Err(NotRun(format!("the palette did not last: {verification}")));
            }
            // What the program shares with others is not measured, so the map may not be whole.
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

fn bench_conflicts() -> Outcome {
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
    if output.status.code() == Some(0) {
        for walk in ["linear", "random"] {
            assert!(result[walk]["rises"].as_bool().unwrap() && result[walk]["ns_per_line"].as_f64().unwrap() > 0.0);
        }
    }
    let report = isochrome(&["report", evidence.to_str().unwrap()]).output().unwrap();
    assert!(String::from_utf8(report.stdout).unwrap().contains("What a conflict costs"));
    Ok(())
}

fn bench_switch() -> Outcome {
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
        // What is called conclusive costs more after a flood.
        if output.status.code() == Some(0) && row["partitioned"] == false {
            assert!(row["flooded"]["cost_ns"].as_f64() > row["best"]["cost_ns"].as_f64(), "{row}");
        }
    }
    let report = isochrome(&["report", evidence.to_str().unwrap()]).output().unwrap();
    assert!(String::from_utf8(report.stdout).unwrap().contains("What passing the CPU costs"));
    Ok(())
}

fn workload() -> Outcome {
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
        assert!(accepted == 0 || result["executed"]["access_ns"].as_f64().unwrap() > 0.0, "{result}");
    }
    Ok(())
}

fn workload_search() -> Outcome {
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
    // The outcome is one of the tries, and every sample of every try is in the raw file: six of each of three kinds in a block.
    let outcome = (result["task"]["lines"].as_u64().unwrap(), result["executed"]["miss_ratio"].as_f64().unwrap());
    assert!(tries.contains(&outcome), "{outcome:?} of {tries:?}");
    let blocks: u64 = result["search"].as_array().unwrap().iter().map(|tried| tried["blocks"].as_u64().unwrap()).sum();
    assert_eq!(std::fs::read_to_string(raw).unwrap().lines().count() as u64, 1 + 18 * blocks);
    assert!(reported(&evidence).contains("Misses of a loop in level 1"));
    Ok(())
}

fn watch() -> Outcome {
    let folder = tempfile::tempdir().unwrap();
    let record = folder.path().join("record");
    let mut command = isochrome(&["watch", "--json", "--duration", "2s", "--record"]);
    command.arg(&record).args(["--", "sh", "-c", "for i in 1 2 3 4 5; do sleep 0.1; done"]);
    let output = command.output().expect("the command starts");
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.code() == Some(1) && message.contains("events") {
        return Err(NotRun(message.lines().next().unwrap_or_default().to_owned()));
    }
    let result = json(&output);
    let tasks: Vec<&Value> = result["tasks"].as_object().unwrap().values().collect();
    // The shell sleeps while each of the five runs; each of them sleeps, as what it has become, and ends. The watch begins before the shell.
    // Some kernels do not tell of a switch from idle: then one which only ran on a CPU that was idle otherwise has no slice, or is known
    // by what it was before it became `sleep`.
    let named = |name: &str| tasks.iter().filter(|task| task["name"] == name).count();
    assert!(named("sh") >= 1 && named("sleep") >= 1 && named("sh") + named("sleep") == tasks.len(), "{result}");
    assert!((4..=6).contains(&tasks.len()), "{result}");
    assert!(tasks.iter().all(|task| task["run_ns"].as_u64().unwrap() > 0));
    let replayed = isochrome(&["watch", "--json", "--replay", record.to_str().unwrap()]).output().unwrap();
    let replayed = json(&replayed);
    assert_eq!(replayed["tasks"], result["tasks"]);
    // What was known of the watch as a whole is in the record too.
    assert_eq!(replayed["notes"], result["notes"]);
    let [reported, again] = [&result, &replayed].map(|of| of["cost"]["cpu_share"].as_f64().unwrap());
    assert!(reported > 0.0 && (reported - again).abs() < 1e-9, "{reported} {again}");
    let record_ns = result["cost"]["record"]["ns"].as_f64().unwrap();
    assert!((-1000.0..1e6).contains(&record_ns), "{result}");
    Ok(())
}

fn watch_unprivileged() -> Outcome {
    let nobody = Nobody::new()?;
    let evidence = nobody.0.path().join("runtime/watch.json");
    let program = ["--", "sh", "-c", "for i in 1 2 3 4 5; do sleep 0.1; done"];
    let mut command = nobody.command(&["watch", "--json", "--duration", "2s", "-o", evidence.to_str().unwrap()]);
    let output = command.args(program).output().expect("the command starts");
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.code() == Some(1) && message.contains("perf_event_paranoid") {
        return Err(NotRun(message.lines().next().unwrap_or_default().to_owned()));
    }
    let result = json(&output);
    let tasks: Vec<&Value> = result["tasks"].as_object().unwrap().values().collect();
    let named = |name: &str| tasks.iter().filter(|task| task["name"] == name).count();
    // The shell and what it starts, all of them and nobody else: the watch begins before them.
    assert!(named("sh") >= 1 && named("sleep") >= 4 && named("sh") + named("sleep") == tasks.len(), "{result}");
    assert!(tasks.iter().all(|task| task["run_ns"].as_u64().unwrap() > 0 && task["ended"] == true), "{result}");
    assert!(tasks.iter().all(|task| task["counts"].is_null()), "{result}");
    assert!(result["notes"][0].as_str().unwrap().contains("is all that is reported to this user"), "{result}");
    let report = isochrome(&["report", evidence.to_str().unwrap()]).output().unwrap();
    assert!(String::from_utf8_lossy(&report.stdout).contains("What tasks did over time"));

    // A process that has started before, with its threads; and one of another user, which is none of his business.
    let mut sleeper = nobody.program("sh").args(["-c", "while :; do sleep 0.05; done"]).spawn().unwrap();
    let pid = sleeper.id().to_string();
    let own = nobody.command(&["watch", "--json", "--duration", "1s", &pid]).output().unwrap();
    let strangers =
        nobody.command(&["watch", "--json", "--duration", "1s", &std::process::id().to_string()]).output().unwrap();
    let everybody = nobody.command(&["watch", "--cpu", "0", "--duration", "1s"]).output().unwrap();
    // It may have ended.
    let _ = sleeper.kill();
    let _ = sleeper.wait();
    assert!(json(&own)["tasks"][&pid]["slices"].as_u64().unwrap() >= 3, "{own:?}");
    for (refused, reported) in [(strangers, "processes of one's own"), (everybody, "setcap cap_perfmon")] {
        assert_eq!(refused.status.code(), Some(1));
        assert!(String::from_utf8_lossy(&refused.stderr).contains(reported), "{refused:?}");
    }
    Ok(())
}

fn watch_polls() -> Outcome {
    let mut command = isochrome(&["watch", "--json", "--duration", "1s", "--cpu", "0", "--poll", "500Hz"]);
    let output = command.output().expect("the command starts");
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.code() == Some(1) && message.contains("events") {
        return Err(NotRun(message.lines().next().unwrap_or_default().to_owned()));
    }
    let result = json(&output);
    // A host that takes the CPU away makes polls fall out, never come more often.
    let polls = result["cost"]["polls_per_second"].as_f64().unwrap();
    assert!((50.0..=510.0).contains(&polls), "{result}");
    assert!(result["cost"]["cpu_share"].as_f64().unwrap() > 0.0);
    // The task that polls is one of those that are watched.
    let poll = result["tasks"].as_object().unwrap().values().find(|task| task["name"] == "poll").unwrap();
    assert!(poll["slices"].as_f64().unwrap() >= 0.9 * polls, "{result}");
    Ok(())
}

fn demo() -> Outcome {
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

/// A program without a library, at addresses known beforehand: 3000 loads and 2000 stores of 4 bytes in an array of 1000.
const PROGRAM: &str = "
__attribute__((section(\".bss.array\"), aligned(4096))) volatile unsigned array[1024];
void _start(void) {
    unsigned i, sum = 0;
    for (i = 0; i < 1000; i++) array[i] = i;
    for (i = 0; i < 1000; i++) array[i] += array[(i * 7) % 1000];
    for (i = 0; i < 1000; i++) sum += array[i];
#if defined __x86_64__
    __asm__ volatile(\"syscall\" : : \"a\"(60), \"D\"(sum & 0) : \"memory\");
#else
    register long number __asm__(\"x8\") = 93; register long code __asm__(\"x0\") = sum & 0;
    __asm__ volatile(\"svc 0\" : : \"r\"(number), \"r\"(code) : \"memory\");
#endif
}
";

fn trace(by: &str) -> Outcome {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    std::fs::write(path("program.c"), PROGRAM).unwrap();
    let flags = ["-O1", "-fno-tree-vectorize", "-fno-stack-protector", "-static", "-nostdlib", "-no-pie", "-o"];
    let built = Command::new("cc").args(flags).args([path("program"), path("program.c")]).output();
    if !built.is_ok_and(|output| output.status.success()) {
        return Err(NotRun("no C compiler that can link a program without a library".to_owned()));
    }
    let recorded =
        isochrome(&["trace", "--by", by, "--format", "lackey", "-o", &path("trace"), "--", &path("program")]).output();
    let recorded = recorded.expect("the command starts");
    let message = String::from_utf8_lossy(&recorded.stderr).into_owned();
    if message.contains("is not installed") {
        return Err(NotRun(message.lines().next().unwrap_or_default().to_owned()));
    }
    assert!(recorded.status.success(), "{message}");
    let text = std::fs::read_to_string(path("trace")).unwrap();
    let accesses: Vec<(&str, u64, u32)> = text
        .lines()
        .map(|line| {
            let (address, bytes) = line[3..].split_once(',').unwrap();
            (line[..2].trim(), u64::from_str_radix(address, 16).unwrap(), bytes.parse().unwrap())
        })
        .collect();
    // The array fills the page in which most stores fall.
    let mut pages: Vec<u64> =
        accesses.iter().filter(|(kind, ..)| *kind == "S").map(|(_, address, _)| address >> 12).collect();
    pages.sort_unstable();
    let array = *pages.chunk_by(|a, b| a == b).max_by_key(|page| page.len()).unwrap().first().unwrap();
    let count = |wanted: &str| {
        accesses
            .iter()
            .filter(|(kind, address, bytes)| *kind == wanted && address >> 12 == array && *bytes == 4)
            .count()
    };
    assert_eq!((count("L"), count("S")), (3000, 2000), "{by}");
    assert!(accesses.iter().filter(|(kind, ..)| *kind == "I").count() > 10_000);
    let counts =
        isochrome(&["simulate", "--json", "--machine", "cortex-a72", "--trace", &path("trace"), "--format", "lackey"])
            .output();
    let counts: Value = serde_json::from_slice(&counts.unwrap().stdout).unwrap();
    assert!(counts["levels"][0]["reads"].as_u64().is_some());
    Ok(())
}
