//! Tests of programs that get colors, verified by eviction tests.

use std::io::Write;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::fixture::{Nobody, in_memory, isochrome, json, judged, output};
use crate::trial::{NotRun, Outcome};

pub fn exec_unprivileged() -> Outcome {
    let nobody = Nobody::new()?;
    lies_in_four_colors(nobody.command(&["exec"]), &nobody.0.path().join("runtime/outcome"))
}

pub fn exec_as_root() -> Outcome {
    let folder = in_memory()?;
    let mut exec = isochrome(&["exec"]);
    exec.env("ISOCHROME_RUNTIME_DIR", folder.path());
    lies_in_four_colors(exec, &folder.path().join("outcome"))
}

/// Checks by eviction tests that a program lies on the four colors to which `exec` moved it, without any earlier measurement.
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
    // `exec` passes the signal on to the program, which ends by it.
    assert!(Command::new("kill").arg(program.id().to_string()).status().unwrap().success());
    let message = std::io::read_to_string(program.stderr.take().unwrap()).unwrap();
    program.wait().unwrap();
    let outcome: Value = serde_json::from_str(&std::fs::read_to_string(outcome).unwrap()).unwrap();
    let errors: Vec<&str> = outcome["errors"].as_array().unwrap().iter().map(|error| error.as_str().unwrap()).collect();
    // The tool says so if the machine is too busy for timing.
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
    assert!(in_time, "not on its colors after a minute: {message}");
    let count = |value: &Value| value.as_u64().unwrap();
    let (on_color, off_color) = (count(&outcome["on_color"]), count(&outcome["off_color"]));
    let [pages, verified] = ["pages", "right"].map(|key| count(&outcome["verified"][key]));
    println!("{on_color} pages on color, {off_color} off color; by eviction tests {verified} of {pages}; {outcome}");
    // The buffer of 64 MiB has 16384 pages.
    assert!(on_color >= 16384 && on_color as f64 >= 0.99 * (on_color + off_color) as f64, "{outcome}");
    assert!(pages > 0 && verified as f64 >= 0.99 * pages as f64, "{outcome}");
    Ok(())
}

/// Checks that `exec` notices when pages of known color get other frames while its program grows, as when the kernel moves their contents.
pub fn exec_after_loss() -> Outcome {
    let folder = in_memory()?;
    let outcome = folder.path().join("outcome");
    let mut exec = isochrome(&["exec", "--colors", "0-3", "--interval", "200ms", "-o"]);
    exec.env("ISOCHROME_RUNTIME_DIR", folder.path()).arg(&outcome);
    // It ends at once: a look while the interpreter gives its memory back would find only a part of the pages.
    let grow = "import os,sys\na=bytearray(b'x'*(4<<20))\nsys.stdin.readline()\nb=bytearray(b'x'*(16<<20))\nsys.stdin.readline()\nos._exit(0)\n";
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
    // The copy gets other frames, because the original still holds its own.
    for path in &before {
        let copy = path.with_extension("copy");
        std::fs::copy(path, &copy).and_then(|_| std::fs::rename(&copy, path)).unwrap();
    }
    program.stdin.as_ref().unwrap().write_all(b"\n").unwrap();
    // Wait, however long it takes, until new pages have replaced the lost ones and the program is on its colors again.
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

/// Checks that `exec` neither moves the pages again that a `recolor` has moved, nor counts them as drifted.
pub fn exec_stands_aside() -> Outcome {
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
    let mut lines = std::io::BufReader::new(program.stdout.take().unwrap());
    let mut pid = String::new();
    std::io::BufRead::read_line(&mut lines, &mut pid).unwrap();
    let begin = Instant::now();
    while !outcome.exists() && begin.elapsed() < Duration::from_secs(30) {
        std::thread::sleep(Duration::from_millis(50));
    }
    let recolored: Vec<Result<Output, NotRun>> = ["4-7", "0-3", "4-7"]
        .map(|colors| {
            let mut recolor = isochrome(&["recolor", pid.trim(), "--colors", colors, "--json"]);
            recolor.env("ISOCHROME_RUNTIME_DIR", folder.path());
            let recolored = output(recolor);
            // `exec` checks the pages several times in this period.
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
    // Each recoloring moves more than 8192 pages, all of which would drift if `exec` moved them again. Pages that the kernel moves by itself drift
    // too: up to about a thousand were seen.
    let drifted = outcome["drifted"].as_u64().unwrap();
    assert!(drifted < 4096, "pages that a recoloring moved were moved once more: {outcome}");
    Ok(())
}
