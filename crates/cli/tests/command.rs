//! Tests of the command from the outside: exit codes, messages, files. Tests that need working hardware are in `hardware`.

use std::path::Path;
use std::process::{Command, Output};

fn isochrome(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_isochrome")).args(arguments).output().expect("the command starts")
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("output is text")
}

/// Checks that `arguments` are refused with exit code 1, nothing on standard output, and a message that mentions `what` and has a hint.
fn refused(arguments: &[&str], what: &str) {
    let output = isochrome(arguments);
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{arguments:?}: {message}");
    assert!(output.stdout.is_empty(), "{arguments:?} printed a result");
    assert!(message.contains(what), "{arguments:?}: {message}");
    assert!(message.contains("hint:"), "{arguments:?} gives no hint: {message}");
}

#[test]
fn bad_numbers_are_refused_with_a_hint() {
    refused(&["palette", "--pages", "0"], "0 pages");
    refused(&["palette", "--cpu", "4095"], "CPU 4095");
    refused(&["palette", "--level", "9"], "level 9");
    refused(&["palette", "--level", "1"], "single page color");
    refused(&["palette", "--memory", "64K", "--pages", "8"], "memory limit of 64 KiB");
    refused(&["palette", "--memory", "1M"], "do not fit into the memory limit");
    refused(&["lab", "filter", "--taps", "3"], "3 taps");
    refused(&["lab", "filter", "--taps", "9999999999"], "taps");
    refused(&["lab", "fft", "--points", "1000"], "1000 points");
    refused(&["lab", "dct", "--colors", "0-9999"], "out of range");
    refused(&["lab", "dct", "--colors", "x"], "`x` is not a list");
}

#[test]
fn arguments_that_do_not_parse_exit_with_1_and_help_with_0() {
    for arguments in
        [&["palete"][..], &["lab"], &["palette", "--memory", "lots"], &["lab", "matmul", "--slice-us", "0"]]
    {
        assert_eq!(isochrome(arguments).status.code(), Some(1), "{arguments:?}");
    }
    for arguments in [&["--help"][..], &["palette", "--help"], &["lab", "filter", "--help"], &["--version"]] {
        let output = isochrome(arguments);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}");
        assert!(!output.stdout.is_empty());
    }
    // Every verb shows examples.
    for verb in ["doctor", "probe", "palette", "lab", "demo", "report", "generate"] {
        assert!(stdout(&isochrome(&[verb, "--help"])).contains("Example"), "{verb}");
    }
}

/// Writes an executable script `name` into `folder`.
fn script(folder: &Path, name: &str, text: &str) {
    use std::os::unix::fs::PermissionsExt;
    let path = folder.join(name);
    std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

/// Runs `arguments` in `folder` with this PATH.
fn isochrome_in(folder: &Path, path: &str, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_isochrome"));
    command.args(arguments).current_dir(folder).env("PATH", path).output().expect("the command starts")
}

#[test]
fn an_unknown_verb_is_a_program_of_that_name_in_path() {
    use std::os::unix::process::ExitStatusExt;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    script(folder.path(), "isochrome-sweep", "echo \"$#: $*\"; read line; echo \"$line\" >&2; exit 42");
    script(folder.path(), "isochrome-doctor", "echo taken over");
    script(folder.path(), "isochrome-killed", "kill -TERM $$");
    let run = |arguments: &[&str]| isochrome_in(folder.path(), path, arguments);

    let output = run(&["sweep", "a file.toml", "--workers", "2", "-o", "out", "--help"]);
    assert_eq!(stdout(&output), "6: a file.toml --workers 2 -o out --help\n");
    assert_eq!(output.status.code(), Some(42), "the exit code is the program's");
    assert_eq!(stdout(&run(&["help", "sweep"])), "1: --help\n");
    assert_eq!(run(&["killed"]).status.signal(), Some(15), "the program is executed in place of the command");
    // What isochrome has itself comes first, and a folder's or an option's name is not a verb.
    assert!(!stdout(&run(&["doctor", "--json"])).contains("taken over"));
    std::fs::create_dir(folder.path().join("isochrome-x")).unwrap();
    script(&folder.path().join("isochrome-x"), "y", "echo executed");
    for arguments in [&["x/y"][..], &["x"], &["--sweep"], &["-sweep"], &[""], &["lab", "sweep"]] {
        let output = run(arguments);
        assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(1), ""), "{arguments:?}");
    }
}

#[test]
fn an_unknown_verb_without_a_program_gets_a_suggestion_or_says_how_to_install_it() {
    let folder = tempfile::tempdir().unwrap();
    script(folder.path(), "isochrome-sweep", "echo executed");
    // Entries of PATH that are empty or relative mean the current folder, and are not searched.
    for path in ["", ":", ".", ":/nonexistent:", "./", "../x:."] {
        let output = isochrome_in(folder.path(), path, &["sweep", "x.toml"]);
        let message = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(1), ""), "{path}: {message}");
        assert!(message.contains("isochrome-sweep") && message.contains("hint: pip install"), "{path}: {message}");
    }
    let output = isochrome_in(folder.path(), folder.path().to_str().unwrap(), &["palete"]);
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(message.contains("unrecognized subcommand 'palete'") && message.contains("'palette'"), "{message}");
    // A program that cannot be executed is named.
    std::fs::write(folder.path().join("isochrome-sweep"), "#!/nonexistent/python\n").unwrap();
    let output = isochrome_in(folder.path(), folder.path().to_str().unwrap(), &["sweep"]);
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(message.contains("isochrome-sweep: cannot be executed") && message.contains("hint:"), "{message}");
}

#[test]
fn a_terminal_obeys_no_file_name_and_no_evidence() {
    let folder = tempfile::tempdir().unwrap();
    let hostile = "\u{1b}[2J\u{9b}31m\u{202e}";
    let obeyed = |text: &[u8]| String::from_utf8_lossy(text).contains(['\u{1b}', '\u{9b}', '\u{202e}']);
    let file = folder.path().join(hostile);
    let missing = isochrome(&["report", file.to_str().unwrap()]);
    assert_eq!(missing.status.code(), Some(1));
    assert!(!obeyed(&missing.stderr), "{:?}", String::from_utf8_lossy(&missing.stderr));
    let saved = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/results/evidence/switch.json");
    let mut evidence: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(saved).unwrap()).unwrap();
    for key in ["headline", "basis"] {
        evidence["sections"][0][key] = hostile.into();
    }
    evidence["warnings"] = vec![hostile].into();
    evidence["machine"]["cpu_model"] = hostile.into();
    std::fs::write(&file, evidence.to_string()).unwrap();
    for form in [&[][..], &["--text"], &["--markdown"], &["--junit"]] {
        let output = isochrome(&[&["report", file.to_str().unwrap()], form].concat());
        assert_eq!(output.status.code(), Some(0), "{form:?}");
        assert!(output.stdout.len() > 100 && !obeyed(&output.stdout), "{form:?}");
    }
}

#[test]
fn what_cannot_be_mapped_is_refused_with_a_hint() {
    let folder = tempfile::tempdir().unwrap();
    let refused_in = |arguments: &[&str], what: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_isochrome"));
        let output = command.args(arguments).env("ISOCHROME_RUNTIME_DIR", folder.path()).output().unwrap();
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {message}");
        assert!(message.contains(what) && message.contains("hint:"), "{arguments:?}: {message}");
    };
    refused_in(&["map", "4294967295"], "no process 4294967295");
    std::fs::write(folder.path().join("ledger.json"), "{").unwrap();
    refused_in(&["ps"], "ledger.json");
    std::fs::write(folder.path().join("ledger.json"), r#"{"schema":"isochrome-ledger/1","boot_id":"","grants":[]}"#)
        .unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_isochrome"));
    let output = command.arg("ps").env("ISOCHROME_RUNTIME_DIR", folder.path()).output().unwrap();
    assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(0), "no colors are granted\n"));
}

#[test]
fn corrupt_files_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    refused(&["report", &file("garbage.json", "]{")], "garbage.json: not a JSON object");
    refused(&["report", &file("other.json", r#"{"schema":"something/9"}"#)], "`something/9`");
    refused(&["report", &file("none.json", "{}")], "schema is missing");
    refused(&["report", &file("cut.json", r#"{"schema":"isochrome-evidence/1","experiments":["#)], "cut.json");
    refused(&["report", &file("part.json", r#"{"schema":"isochrome-evidence/1"}"#)], "missing field");
    refused(
        &["palette", "--replay", &file("samples.json", r#"{"schema":"isochrome-palette-samples/1"}"#)],
        "missing field",
    );
    let whole = include_str!("../../model/tests/data/zen3-vm-samples.json");
    let ragged = whole.replacen("\"looks\":[[", "\"looks\":[[1,", 1);
    refused(&["palette", "--replay", &file("ragged.json", &ragged)], "17 entries where 16");
}

#[test]
fn saved_samples_replay_to_the_same_palette_anywhere() {
    let samples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/data/zen3-vm-samples.json");
    let output = isochrome(&["palette", "--replay", samples.to_str().unwrap(), "--json"]);
    assert_eq!(output.status.code(), Some(0));
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (json["colors"].as_u64(), json["pages"].as_u64(), json["ambiguous"].as_u64()),
        (Some(16), Some(1024), Some(0))
    );
    assert_eq!(json["per_color"].as_array().unwrap().len(), 16);
}

#[test]
fn a_preemption_costs_on_a_modeled_machine_what_theory_says() {
    let output = isochrome(&["lab", "crpd", "--machine", "i7-2600", "--mhz", "1000"]);
    let text = stdout(&output).split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(text.starts_with("A preemption costs") && text.contains("On the modeled Intel Core"), "{text}");
    refused(&["lab", "crpd", "--machine", "i7-2600", "--mhz", "1000", "--level", "9"], "has no level 9");
}

#[test]
fn doctor_checks_the_machine_and_says_what_helps() {
    let output = isochrome(&["doctor", "--json"]);
    assert_eq!(output.status.code(), Some(0));
    let checks: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let checks = checks["checks"].as_array().unwrap();
    assert!(checks.len() > 10);
    for check in checks {
        assert!(check["why"].as_str().is_some_and(|why| !why.is_empty()), "{check}");
    }
    let text = stdout(&isochrome(&["doctor"]));
    assert!(text.contains("cache level 2") && text.contains("\nThis machine can: "), "{text}");
}

#[test]
fn doctor_names_only_commands_that_exist_here() {
    let output = isochrome(&["doctor", "--json"]);
    let found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let named = |entry: &serde_json::Value, key: &str| entry[key].as_str().map(str::to_owned);
    let checks = found["checks"].as_array().unwrap().iter().filter(|check| check["package"].is_null());
    let commands = checks.flat_map(|check| [named(check, "remedy"), named(check, "persistent")]).flatten();
    let mut count = 0;
    for command in commands {
        // Programs stand at the start and behind a pipe, an `&&` or a parenthesis.
        for part in command.split("&& ").flat_map(|part| part.split("| ")).flat_map(|part| part.split("$(")) {
            let program = part.split(' ').next().unwrap();
            let known = Command::new("sh").args(["-c", &format!("command -v {program}")]).output().unwrap();
            // `isochrome` is this program, and may not be installed.
            assert!(program == "isochrome" || known.status.success(), "{program}: {command}");
            count += 1;
        }
    }
    assert!(count > 0 || found["first"].as_array().unwrap().is_empty());
}

#[test]
fn doctor_changes_nothing_that_was_not_asked_for() {
    let refused = |arguments: &[&str]| assert_eq!(isochrome(arguments).status.code(), Some(1), "{arguments:?}");
    refused(&["doctor", "--yes"]);
    refused(&["doctor", "--persistent"]);
    refused(&["doctor", "--dry-run"]);
    refused(&["doctor", "--fix", "--undo"]);
    refused(&["doctor", "--fix", "--json"]);
}

#[test]
fn manual_pages_and_completions_come_from_the_same_definition() {
    let folder = tempfile::tempdir().unwrap();
    let output = isochrome(&["generate", "man", "-o", folder.path().join("man1").to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0));
    let page = std::fs::read_to_string(folder.path().join("man1/isochrome-palette.1")).unwrap();
    assert!(page.contains("verify") && page.contains("EXAMPLES") || page.contains("Examples"));
    for shell in ["bash", "zsh", "fish"] {
        assert!(stdout(&isochrome(&["generate", "completions", shell])).contains("isochrome"));
    }
}

#[test]
fn a_report_that_cannot_be_written_says_where_and_leaves_nothing() {
    let output = isochrome(&["demo", "--quick", "-o", "/proc/nowhere/report"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("hint:"));
}

#[test]
fn a_workload_misses_on_a_modeled_lru_as_predicted() {
    for level in ["1", "2"] {
        for kind in ["data", "code"] {
            for locality in ["temporal", "spatial", "combined"] {
                let output = isochrome(&[
                    "lab",
                    "workload",
                    "--miss-ratio",
                    "33%",
                    "--machine",
                    "zen3",
                    "--policy",
                    "lru",
                    "--json",
                    "--level",
                    level,
                    "--kind",
                    kind,
                    "--locality",
                    locality,
                ]);
                assert!(output.status.success());
                let result: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
                let [modeled, predicted] =
                    [&result["modeled"]["miss_ratio"], &result["predicted_lru"]].map(|ratio| ratio.as_f64().unwrap());
                assert!(
                    (modeled - predicted).abs() < 1e-9,
                    "level {level}, {kind}, {locality}: {modeled}, not {predicted}"
                );
                // The predicted ratio is as near to the requested one as whole lines of the smaller level allow.
                assert!((predicted - 0.33).abs() < 0.01, "{predicted}");
            }
        }
    }
}

#[test]
fn a_workload_that_cannot_be_is_refused() {
    refused(
        &["lab", "workload", "--miss-ratio", "5%", "--locality", "spatial", "--machine", "zen3"],
        "more than 8 words",
    );
    refused(&["lab", "workload", "--miss-ratio", "33%", "--machine", "zen3", "--level", "7"], "no level 7");
    refused(&["lab", "workload", "--miss-ratio", "33%", "--locality", "spatial", "--search"], "whatever its size");
    for file in ["-o", "--raw"] {
        let output = isochrome(&["lab", "workload", "--miss-ratio", "33%", "--machine", "zen3", file, "never-written"]);
        assert_eq!(output.status.code(), Some(1));
        assert!(String::from_utf8_lossy(&output.stderr).contains("cannot be used with"), "{file}");
    }
    let output = isochrome(&["lab", "workload", "--miss-ratio", "140%"]);
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn recorded_slices_are_replayed() {
    let folder = tempfile::tempdir().unwrap();
    let record = folder.path().join("record");
    let record = record.to_str().unwrap();
    let slices = [
        r#"{"schema":"isochrome-slices/1"}"#,
        r#"{"cpu":0,"thread":7,"name":"control","begin":0,"end":1000,"left":"preempted","counts":{"accesses":8000,"misses":4000,"instructions":1,"cycles":2}}"#,
        r#"{"cpu":1,"thread":7,"name":"control","begin":2000,"end":2500,"left":"asleep"}"#,
    ];
    std::fs::write(record, slices.join("\n")).unwrap();
    let csv = folder.path().join("slices.csv");
    let output = isochrome(&["watch", "--replay", record, "--json", "--csv", csv.to_str().unwrap()]);
    let result: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let task = &result["tasks"]["7"];
    assert_eq!(
        [&task["slices"], &task["migrations"], &task["run_ns"], &task["job_ns_max"]["value"]],
        [2, 1, 1500, 1500],
        "{result}"
    );
    assert_eq!(task["miss_ratio_worst"], 0.5);
    assert_eq!(std::fs::read_to_string(&csv).unwrap().lines().count(), 3);

    // A record in the present schema also has the state of the watch as a whole. Replaying it leaves a figure and evidence.
    let today = folder.path().join("today");
    let state = r#"{"steal":[{"cpu":0,"share":0.25}],"cost":{"cpu_share":0.01,"looks_per_second":20.0,"events_per_second":9000.0},"notes":["as it was"]}"#;
    std::fs::write(&today, [slices.join("\n").replace("slices/1", "slices/2").as_str(), state].join("\n")).unwrap();
    let [evidence, svg] = ["evidence.json", "figure.svg"].map(|name| folder.path().join(name));
    let [evidence, svg] = [&evidence, &svg].map(|path| path.to_str().unwrap());
    let output = isochrome(&["watch", "--replay", today.to_str().unwrap(), "-o", evidence, "--svg", svg]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.contains("CPU 0 steal 25.0 %") && text.contains("watching took 1.00 %") && text.contains("as it was"),
        "{text}"
    );
    let drawn = std::fs::read_to_string(svg).unwrap();
    assert!(drawn.contains("All of the watch") && drawn.contains("control"), "{drawn}");
    let report = isochrome(&["report", evidence]);
    let html = String::from_utf8(report.stdout).unwrap();
    assert!(html.contains("control had a CPU for 60") && html.contains("replayed") && html.contains("today"), "{html}");

    // The record is not overwritten, whichever path names it, and two outputs do not share a file.
    let twisted = format!("{}/./slices.csv", folder.path().display());
    refused(&["watch", "--replay", record, "--csv", record], "would be overwritten");
    refused(&["watch", "--record", csv.to_str().unwrap(), "--csv", &twisted, "--", "true"], "would be overwritten");
    assert_eq!(std::fs::read_to_string(record).unwrap(), slices.join("\n"));

    // A full disk is an error.
    refused(&["watch", "--replay", record, "--csv", "/dev/full"], "/dev/full: cannot write");
    refused(&["watch", "--replay", "/nonexistent"], "/nonexistent");
    std::fs::write(record, "something else\n").unwrap();
    refused(&["watch", "--replay", record], "not a record of slices");
    std::fs::write(record, format!("{}\nnot a slice\n", slices[0])).unwrap();
    refused(&["watch", "--replay", record], "line 2");
}

#[test]
fn a_demo_on_a_model_says_that_nothing_was_measured() {
    let folder = tempfile::tempdir().unwrap();
    let output = isochrome(&["demo", "--model", "imx8mm", "--mhz", "1800", "-o", folder.path().to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(stdout(&output).contains("i.MX 8M Mini"));
    let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
    let evidence: serde_json::Value = serde_json::from_str(&read("evidence.json")).unwrap();
    let sections = evidence["sections"].as_array().unwrap();
    assert_eq!((sections.len(), &sections[0]["numbers"]["modeled"]), (1, &"i.MX 8M Mini: four Cortex-A53".into()));
    for text in [sections[0]["title"].as_str().unwrap(), &read("index.html")] {
        assert!(text.contains("none of it was measured here"), "{text}");
    }
    let not_made = folder.path().join("not-made");
    let output = ["-o", not_made.to_str().unwrap()];
    refused(&[&["demo", "--model", "no-such-machine", "--mhz", "1"], &output[..]].concat(), "no such machine");
    refused(&[&["demo", "--model", "zen3"], &output[..]].concat(), "clock rate");
    refused(&[&["demo", "--model", "--full"], &output[..]].concat(), "cannot be used with");
    assert!(!not_made.exists());
}

#[test]
fn the_colors_of_a_curve_depend_on_the_size_of_a_page() {
    let colors = |page: &str| {
        let curve = ["simulate", "curve", "--level", "64K:4:64", "--workload", "fft:points=256", "--json", "--page"];
        let output = isochrome(&[&curve[..], &[page]].concat());
        let curve: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
        curve["colors"].as_array().unwrap().last().unwrap().as_u64().unwrap()
    };
    assert_eq!((colors("4K"), colors("16K")), (4, 1));
    refused(&["simulate", "curve", "--workload", "fft:points=256", "--page", "12K"], "not a power of two");
}
