//! Tests of the memory of programs: on which colors it lies, and whether it is locked.

use std::fs;
use std::process::{Command, Output, Stdio};

use serde_json::json;

use crate::fixture::{Fixture, during, json_of, wait_until};
use crate::trial::{NotRun, Outcome};

pub fn colors_and_comparison(fixture: &Fixture) -> Outcome {
    let palette = fixture.path("bits.json");
    fs::write(&palette, r#"{"schema":"isochrome-palette/1","level":2,"colors":16,"rule":"bits"}"#).unwrap();
    let fast = fixture.task("fast", &["line", "50"], 1000, 900, "line");
    let plan = fixture.plan("colors", vec![fast, fixture.good()]);
    let options = [
        "--duration",
        "1s",
        "--memory",
        "1G",
        "--compare",
        "none",
        "--trust-palette",
        "--palette",
        palette.to_str().unwrap(),
    ];
    let evidence = fixture.evidence(&plan, &options);
    let run = &evidence.run;
    for (task, first) in run["tasks"].as_array().unwrap().iter().zip([0, 4]) {
        let placement = &task["placement"];
        assert_eq!(placement["colors"], json!([first, first + 1, first + 2, first + 3]));
        let number = |name: &str| placement[name].as_u64().unwrap();
        let off = number("resident") - number("on_color") - number("immovable");
        assert!(off * 100 <= number("resident"), "{placement}");
    }
    let compared = run["comparison"]["tasks"].as_array().unwrap();
    for (task, jobs) in compared.iter().zip([1000, 200]) {
        for side in ["partitioned", "unpartitioned"] {
            // Two blocks of half a second each, in windows of a quarter second. A late job may lie in one window more.
            assert!(task[side]["windows"].as_u64().unwrap() <= 6, "{task}");
            assert!(task[side]["jobs"].as_u64().unwrap() <= jobs, "{task}");
        }
        // Two pairs are too few to show a difference, and the evidence says so.
        assert!(task["execution"]["n"].as_u64().is_none_or(|pairs| pairs <= 2), "{task}");
    }
    evidence.undisturbed()?;
    assert_eq!(evidence.failures(), [], "{}", evidence.text);
    for task in compared {
        for side in ["partitioned", "unpartitioned"] {
            assert!(task[side]["windows"].as_u64().unwrap() >= 4, "{task}");
        }
    }
    Ok(())
}

pub fn evenly(fixture: &Fixture) -> Outcome {
    let palette = fixture.path("bits.json");
    fs::write(&palette, r#"{"schema":"isochrome-palette/1","level":2,"colors":16,"rule":"bits"}"#).unwrap();
    let trusted = ["--memory", "1G", "--trust-palette", "--palette", palette.to_str().unwrap()];
    let told = fixture.path("told");
    // For each start of the program: how many of its 32 pages have the most frequent color. All had the same color when it began.
    let most = || -> Vec<u32> {
        let text = fs::read_to_string(&told).unwrap_or_default();
        let _ = fs::remove_file(&told);
        text.lines().map(|line| line.parse().unwrap()).collect()
    };
    let program = fixture.task("same", &["same-color", "50", told.to_str().unwrap()], 5000, 4000, "line");
    let run = fixture.plan("colors", vec![program]);
    let evidence = fixture.evidence(&run, &[&["--duration", "1s", "--compare", "none"], &trusted[..]].concat());
    assert_eq!(evidence.failures(), [], "{}", evidence.text);
    // On four colors there are 8 pages of each, on all there are 2. Two blocks of each kind.
    let mut of_run = most();
    of_run.sort_unstable();
    assert!(of_run.len() == 4 && of_run[1] <= 5 && (8..=11).contains(&of_run[3]), "{of_run:?}");
    let text = format!(
        "cpus = \"{}\"\nmethod = \"colors\"\nrefill_ns_per_partition = 1\n[[tasks]]\nname = \"same\"\ncommand = \"./task same-color 50 {}\"\nperiod = \"2ms\"\njobs = \"line\"\n",
        fixture.cpu,
        told.display()
    );
    fs::write(fixture.path("taskset.toml"), text).unwrap();
    let mut profile = fixture.tool(&["profile", "--exceed", "0.2", "--jobs-per-run", "14", "--flat", "1000"]);
    profile.args(["-o", "profile.json", "taskset.toml"]).args(trusted).current_dir(fixture.folder.path());
    let output = profile.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    // With 1 partition and with 16.
    let mut of_profile = most();
    of_profile.sort_unstable();
    assert!(of_profile.first().is_some_and(|most| *most <= 5) && of_profile.last() == Some(&32), "{of_profile:?}");
    Ok(())
}

pub fn hidden_frames(fixture: &Fixture) -> Outcome {
    // The runtime folder lies in memory, so that the frames of its files stay the same for the boot.
    let folder = tempfile::tempdir_in("/dev/shm").map_err(|error| NotRun(format!("/dev/shm: {error}")))?;
    let ran = |command: &mut Command| -> Result<(Output, String), NotRun> {
        let output = command.env("ISOCHROME_RUNTIME_DIR", folder.path()).output();
        let output = output.map_err(|error| NotRun(format!("{}: {error}", command.get_program().display())))?;
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        Ok((output, stderr))
    };
    let (saved, stderr) = ran(&mut fixture.tool(&["palette", "--save", "--memory", "1G"]))?;
    if !saved.status.success() || !folder.path().join("reference-l2").exists() {
        return Err(NotRun(stderr.lines().last().unwrap_or_default().to_owned()));
    }
    let mut good = fixture.good();
    // Eviction tests use memory inside the program.
    good.program["memory_bytes"] = json!(8 << 20);
    let plan = fixture.plan("colors", vec![good]);
    let mut run = Command::new("setpriv");
    run.args(["--bounding-set=-sys_admin", "--inh-caps=-sys_admin"]).arg(env!("CARGO_BIN_EXE_isochrome"));
    run.args(["run", "--json", "--share-cpus", "--duration", "500ms", "-o"]).arg(fixture.path("out")).arg(plan);
    let (output, stderr) = ran(&mut run)?;
    let reasons = ["too close to tell apart", "events of the scheduler cannot be recorded"];
    if let Some(line) = stderr.lines().find(|line| reasons.iter().any(|reason| line.contains(reason))) {
        return Err(NotRun(line.to_owned()));
    }
    let run = &json_of(&output)["sections"][0]["numbers"];
    assert_eq!(run["failures"], json!([]));
    let placement = &run["tasks"][0]["placement"];
    assert_eq!(placement["colors"], json!([0, 1, 2, 3]));
    let number = |name: &str| placement[name].as_u64().unwrap();
    let off = number("resident") - number("on_color") - number("immovable");
    assert!(number("on_color") > 0 && off * 100 <= number("resident"), "{placement}");
    Ok(())
}

pub fn locked(fixture: &Fixture) -> Outcome {
    let plan = fixture.plan("none", vec![fixture.good()]);
    // Waits until the state was observed, however long that takes.
    let seen = |options: &[&str], locked: bool| {
        let mut run = fixture.run(&plan, options);
        let run = run.args(["--share-cpus", "--duration", "60s"]).stdout(Stdio::piped()).spawn().unwrap();
        if locked {
            wait_until("locked memory", || fixture.programs().iter().any(|program| has_locked(program)));
        }
        wait_until("100 jobs", || {
            fs::read_to_string(fixture.path("out/jobs.csv")).is_ok_and(|text| text.lines().count() > 100)
        });
        assert_eq!(fixture.programs().iter().any(|program| has_locked(program)), locked);
        assert!(Command::new("kill").arg(run.id().to_string()).status().unwrap().success());
        let run = json_of(&run.wait_with_output().unwrap())["sections"][0]["numbers"].clone();
        fs::remove_dir_all(fixture.path("out")).unwrap();
        during(&run, "memory of the tasks")
    };
    let shown = seen(&[], true);
    assert!(shown.starts_with("good: ") && shown.ends_with("kB locked"), "{shown}");
    assert_eq!(seen(&["--no-mlock"], false), "not locked");
    Ok(())
}

/// Whether a process has locked memory.
fn has_locked(process: &str) -> bool {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    status.lines().any(|line| line.starts_with("VmLck:") && !line.ends_with("\t       0 kB"))
}
