//! Tests that read the files of `isochrome export` back: by a shell on an imitated tree, by a C compiler, by systemd if it is installed, by
//! a JSON parser, and by small parsers for the other formats.

mod trial;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode, Output, Stdio};

use libtest_mimic::Trial;

use trial::{NotRun, Outcome, run as run_trials, trial};

/// A plan of two cores that share a cache of 16 partitions. `b` and `c` share partition 5, which is not between their other partitions. One
/// name has every character that shells and units misinterpret.
const PLAN: &str = r#"{
  "schema": "isochrome-plan/2", "schedulable": true, "method": "cata", "objective": "partitions", "analysis": "kim2013", "partitions_used": 8,
  "utilization": 1.2, "bound": null, "gap": null,
  "cores": [
    { "cpu": 0, "partitions": [0, 1, 2], "utilization": 0.6,
      "tasks": [{ "name": "a 'task'; $(rm) % \\", "partitions": [0, 1, 2], "response_ns": 4, "deadline_ns": 5 }] },
    { "cpu": 1, "partitions": [3, 4, 5, 6, 7], "utilization": 0.6,
      "tasks": [{ "name": "b", "partitions": [3, 5], "response_ns": 4, "deadline_ns": 5 },
                { "name": "c", "partitions": [4, 5, 7, 6], "response_ns": 4, "deadline_ns": 5 }] }
  ],
  "programs": { "cpus": [0, 1], "level": 3, "method": "ways", "tasks": [
    { "name": "a 'task'; $(rm) % \\", "command": ["/bin/echo", "100 %", "$HOME", "say \"it\"", "back\\slash", ""], "period_ns": 5 },
    { "name": "b", "command": ["/bin/true"], "period_ns": 5 }, { "name": "c", "command": ["/bin/true", "-x"], "period_ns": 5 }] }
}"#;
const ODD_NAME: &str = r"a 'task'; $(rm) % \";

fn main() -> ExitCode {
    run_trials(vec![
        claim(
            "the_script_for_resctrl_gives_every_task_a_run_of_ways_and_shares_what_the_plan_shares",
            the_script_for_resctrl_gives_every_task_a_run_of_ways_and_shares_what_the_plan_shares,
        ),
        claim(
            "partitions_of_several_ways_and_the_least_mask_are_kept",
            partitions_of_several_ways_and_the_least_mask_are_kept,
        ),
        claim("the_script_for_pqos_says_the_same_masks", the_script_for_pqos_says_the_same_masks),
        claim("fragments_for_oci_are_json_and_carry_the_mask", fragments_for_oci_are_json_and_carry_the_mask),
        claim("guests_get_the_colors_of_their_core", guests_get_the_colors_of_their_core),
        claim("fragments_of_c_compile_in_the_place_they_are_for", fragments_of_c_compile_in_the_place_they_are_for),
        claim(
            "units_start_the_programs_in_their_groups_or_on_their_colors",
            units_start_the_programs_in_their_groups_or_on_their_colors,
        ),
        trial("systemd_accepts_the_units", systemd_accepts_the_units),
    ])
}

/// Returns a test that every machine can run.
fn claim(name: &'static str, test: fn()) -> Trial {
    trial(name, move || {
        test();
        Ok(())
    })
}

fn export(folder: &Path, arguments: &[&str]) -> Output {
    let plan = folder.join("plan.json");
    fs::write(&plan, PLAN).unwrap();
    let (system, rest) = arguments.split_first().unwrap();
    Command::new(env!("CARGO_BIN_EXE_isochrome")).args(["export", system]).arg(plan).args(rest).output().unwrap()
}

/// Runs an export, and returns the files that it writes, by name.
fn exported(arguments: &[&str]) -> BTreeMap<String, String> {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let output = export(folder.path(), &[arguments, &["-o", out.to_str().unwrap()]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let files = fs::read_dir(&out).unwrap().map(|entry| entry.unwrap());
    files.map(|file| (file.file_name().into_string().unwrap(), fs::read_to_string(file.path()).unwrap())).collect()
}

/// Runs a script with `variable` pointing to `root`, and returns its output.
fn shell(script: &str, variable: &str, root: &Path, arguments: &[&str]) -> Output {
    let mut child = Command::new("sh")
        .args(["-s", "--"])
        .args(arguments)
        .env(variable, root)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), script.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

fn read(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path).unwrap().trim().to_owned()
}

fn the_script_for_resctrl_gives_every_task_a_run_of_ways_and_shares_what_the_plan_shares() {
    let script = &exported(&["resctrl", "--ways", "16"])["resctrl.sh"];
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join("schemata"), "L3:0=ffff\n").unwrap();
    let odd = format!("{ODD_NAME}=17");
    let output = shell(script, "RESCTRL", root.path(), &["b=42", &odd]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mask = |group: &str| {
        let text = read(root.path().join(group).join("schemata"));
        u64::from_str_radix(text.strip_prefix("L3:0=").unwrap(), 16).unwrap()
    };
    let masks = [mask("isochrome-1"), mask("isochrome-2"), mask("isochrome-3")];
    // 3, 2 and 4 of the 8 partitions in use; b and c share one; nobody shares with a or with the rest of the system.
    let mut sizes = masks.map(u64::count_ones);
    sizes[1..].sort_unstable();
    assert_eq!(sizes, [3, 2, 4]);
    assert_eq!((masks[1] & masks[2]).count_ones(), 1);
    assert_eq!(masks[0] & (masks[1] | masks[2]), 0);
    assert_eq!(mask(""), 0xff00);
    assert_eq!(masks[0] | masks[1] | masks[2], 0x00ff);
    for mask in masks {
        let run = mask >> mask.trailing_zeros();
        assert_eq!(run & (run + 1), 0, "{mask:x} has gaps");
    }
    let tasks = |group: &str| read(root.path().join(group).join("tasks"));
    assert_eq!(tasks("isochrome-1"), "17");
    let group_of_b = if masks[1].count_ones() == 2 { "isochrome-2" } else { "isochrome-3" };
    assert_eq!(tasks(group_of_b), "42");
    let output = shell("exit 0", "RESCTRL", root.path(), &[]);
    assert!(output.status.success());
    let strange = tempfile::tempdir().unwrap();
    fs::write(strange.path().join("schemata"), "").unwrap();
    let output = shell(script, "RESCTRL", strange.path(), &["nobody=1"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("not a task of this plan"));
}

fn partitions_of_several_ways_and_the_least_mask_are_kept() {
    let script = &exported(&["resctrl", "--ways", "20", "--partitions", "10", "--least-ways", "2"])["resctrl.sh"];
    assert!(script.contains("put schemata 'L3:0=f0000'"), "{script}");
    assert!(script.contains("put isochrome-1/schemata 'L3:0=3f'"), "{script}");
    for (arguments, what) in [
        (&["resctrl", "--ways", "8"][..], "everything else"),
        (&["resctrl", "--ways", "16", "--least-ways", "3"], "has 2 ways"),
        (&["resctrl", "--ways", "15", "--partitions", "8"], "15 ways"),
        (&["resctrl", "--ways", "16", "--classes", "3"], "classes of service"),
        (&["resctrl", "--ways", "99"], "99 ways"),
        (&["xen", "--partitions", "7"], "has partition 7, and there are 7, numbered from 0"),
        (&["jailhouse", "--ways", "16", "--level", "2"], "level 2"),
        (&["oci", "--ways", "16", "--partitions", "0"], "has partition 0, and there are 0"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let output = export(folder.path(), arguments);
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {message}");
        assert!(message.contains(what) && message.contains("hint:"), "{arguments:?}: {message}");
    }
}

fn the_script_for_pqos_says_the_same_masks() {
    let script = &exported(&["pqos", "--ways", "16", "--cache-id", "1"])["pqos.sh"];
    let root = tempfile::tempdir().unwrap();
    // A stand-in for pqos that writes down its arguments.
    let calls = root.path().join("calls");
    let stand_in = format!("pqos() {{ printf '%s\\n' \"$*\" >> '{}'; }}\n", calls.display());
    let output = shell(&(stand_in + script), "X", root.path(), &["c=5"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let calls = read(calls);
    let calls: Vec<&str> = calls.lines().collect();
    assert_eq!(calls[..2], ["-I -e llc@1:0=0xff00", "-I -e llc@1:1=0x7"]);
    assert_eq!(calls.len(), 5);
    assert!(calls[4].starts_with("-I -a pid:") && calls[4].ends_with("=5"), "{calls:?}");
}

fn fragments_for_oci_are_json_and_carry_the_mask() {
    let files = exported(&["oci", "--ways", "16"]);
    assert_eq!(files.len(), 3);
    for (name, text) in files {
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        let control = &value["linux"]["intelRdt"];
        assert!(control["closID"].as_str().unwrap().starts_with("isochrome-"), "{name}");
        let line = control["schemata"][0].as_str().unwrap();
        assert!(u64::from_str_radix(line.strip_prefix("L3:0=").unwrap(), 16).unwrap() < 0x100, "{line}");
    }
}

fn guests_get_the_colors_of_their_core() {
    let xen = exported(&["xen"]);
    assert!(xen["cpu0.cfg"].contains("llc_colors = [\"0-2\"]\n"), "{xen:?}");
    assert!(
        xen["cpu1.cfg"].contains("llc_colors = [\"3-7\"]\n") && xen["cpu1.cfg"].contains("cpus = \"1\""),
        "{xen:?}"
    );
    let script = &exported(&["palloc"])["palloc.sh"];
    let root = tempfile::tempdir().unwrap();
    let output = shell(script, "PALLOC", root.path(), &["c=9"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let bins = [1, 2, 3].map(|group| read(root.path().join(format!("isochrome-{group}/palloc.bins"))));
    assert_eq!(bins, ["0-2", "3,5", "4-7"]);
    assert_eq!(read(root.path().join("isochrome-3/cgroup.procs")), "9");
}

/// Compiles `body` as the initializer of a structure with the members that the fragments use.
fn compiles(declaration: &str, body: &str) {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("configuration.c");
    fs::write(&source, format!("{declaration}\nstruct configuration c = {{\n{body}}};\n")).unwrap();
    let output =
        Command::new("cc").args(["-fsyntax-only", "-Wall", "-Wextra", "-Werror"]).arg(&source).output().unwrap();
    assert!(output.status.success(), "{body}\n{}", String::from_utf8_lossy(&output.stderr));
}

fn fragments_of_c_compile_in_the_place_they_are_for() {
    let bao = exported(&["bao"]);
    assert!(bao["cpu0.c"].contains(".colors = 0x7,") && bao["cpu1.c"].contains(".colors = 0xf8,"), "{bao:?}");
    let jailhouse = exported(&["jailhouse", "--ways", "16"]);
    assert!(jailhouse["cpu0.c"].contains(".start = 0,\n\t\t.size = 3,"), "{jailhouse:?}");
    assert!(jailhouse["cpu1.c"].contains(".start = 3,\n\t\t.size = 5,"), "{jailhouse:?}");
    for text in bao.values() {
        compiles(
            "struct platform { unsigned long cpu_num; };\nstruct configuration { unsigned long colors, cpu_affinity; struct platform platform; };",
            text,
        );
    }
    for text in jailhouse.values() {
        compiles(
            "#define JAILHOUSE_CACHE_L3 3\nstruct cache { unsigned start, size; unsigned char type; };\nstruct configuration { struct cache cache_regions[1]; };",
            text,
        );
    }
}

/// Returns the words of `key` in a unit, as systemd reads them in double quotes: with escapes, doubled dollar signs and doubled percent
/// signs.
fn words(unit: &str, key: &str) -> Vec<String> {
    let line = unit.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('=')).unwrap();
    let mut words = Vec::new();
    let mut letters = line.chars().peekable();
    while letters.peek().is_some() {
        let mut word = String::new();
        let mut quote = None;
        while let Some(letter) = letters.next_if(|letter| quote.is_some() || *letter != ' ') {
            match letter {
                '\'' | '"' if quote == Some(letter) => quote = None,
                '\'' | '"' if quote.is_none() => quote = Some(letter),
                '\\' => word.extend(letters.next()),
                '$' | '%' if letters.peek() == Some(&letter) => word.extend(letters.next()),
                '$' | '%' => panic!("{letter} alone in {line}"),
                letter => word.push(letter),
            }
        }
        words.push(word);
        letters.next();
    }
    words
}

fn units_start_the_programs_in_their_groups_or_on_their_colors() {
    let colors = exported(&["systemd"]);
    let odd = &colors["cpu0-a--task-----rm-----.service"];
    let command = ["/bin/echo", "100 %", "$HOME", "say \"it\"", "back\\slash", ""];
    let start = words(odd, "ExecStart");
    assert_eq!(start[..8], ["/usr/bin/env", "isochrome", "exec", "--colors", "0-2", "--cpu", "0", "--fifo"]);
    assert_eq!(start[10..], command, "{odd}");
    let ways = exported(&["systemd", "--ways", "16"]);
    let start = words(&ways["cpu0-a--task-----rm-----.service"], "ExecStart");
    // The shell joins the group and becomes the program.
    let root = tempfile::tempdir().unwrap();
    let tasks = root.path().join("tasks");
    assert_eq!(start[3], "/sys/fs/resctrl/isochrome-1/tasks");
    let output =
        Command::new(&start[0]).args(&start[1..3]).arg(&tasks).args(&start[4..]).env("HOME", "x").output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "100 % $HOME say \"it\" back\\slash \n");
    assert!(read(tasks).parse::<u32>().is_ok());
}

fn systemd_accepts_the_units() -> Outcome {
    if Command::new("systemd-analyze").arg("--version").output().is_err() {
        return Err(NotRun("systemd-analyze is not installed; apt-get install systemd".to_owned()));
    }
    for (name, unit) in exported(&["systemd"]).iter().chain(&exported(&["systemd", "--ways", "16"])) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        fs::write(&path, unit).unwrap();
        let output = Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&path).output().unwrap();
        assert!(output.status.success(), "{unit}\n{}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}
