//! Tests of `simulate` and `trace` from the outside: what they print, write and refuse.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use isochrome_model::sim::MachineModel;
use serde_json::{Value, json};

fn isochrome(arguments: &[&str], input: &[u8]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_isochrome"));
    let mut child =
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // A command that never reads its input may be gone already.
    let _ = child.stdin.take().unwrap().write_all(input);
    child.wait_with_output().unwrap()
}

fn simulate(arguments: &[&str], input: &[u8]) -> Output {
    isochrome(&[&["simulate"], arguments].concat(), input)
}

fn json_of(output: &Output) -> Value {
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Checks that `arguments` are refused with exit code 1, nothing on standard output, and a message that mentions `what`, without a panic.
fn refused(arguments: &[&str], input: &[u8], what: &str) {
    let output = simulate(arguments, input);
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{arguments:?}: {message}");
    assert!(output.stdout.is_empty(), "{arguments:?} printed a result");
    assert!(message.contains(what), "{arguments:?}: {message}");
    assert!(!message.contains("panicked"), "{message}");
}

fn file(folder: &Path, name: &str, bytes: &[u8]) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, bytes).unwrap();
    path
}

const LEVEL: [&str; 2] = ["--level", "256:2:32:lru:wb:wa"];

#[test]
fn counts_are_printed_in_the_documented_form() {
    // Lines 0, 4 and 8 share a set of two ways. Lines 0 and 4 are dirty; then 8 evicts 0, and 0 evicts 4.
    let trace = b"1 0\n1 80\n0 100\n0 0\n2 0\n";
    let output = simulate(&[&LEVEL[..], &["--trace", "-", "--json"]].concat(), trace);
    assert_eq!(
        String::from_utf8(output.stdout).unwrap(),
        "{\"schema\":\"isochrome-simulation/1\",\"levels\":[{\"name\":\"L1\",\"reads\":3,\"writes\":2,\"read_misses\":2,\"write_misses\":2,\"writebacks\":2}],\
         \"memory\":{\"reads\":4,\"writes\":2}}\n"
    );
    let data = simulate(&[&LEVEL[..], &["--trace", "-", "--json", "--data-only"]].concat(), trace);
    assert_eq!(json_of(&data)["levels"][0]["reads"], 2);
    let text = simulate(&[&LEVEL[..], &["--trace", "-"]].concat(), trace);
    assert!(String::from_utf8(text.stdout).unwrap().contains("write-backs"));
}

#[test]
fn levels_given_in_the_short_form_are_named_from_the_innermost_out_and_written_to_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("counts.json");
    let levels = ["--level", "32K:8:64:tree-plru:wb:wa", "--level", "512K:8:64:lru:wb:wa:inclusive"];
    let rest = ["--workload", "matmul", "--json", "-o", path.to_str().unwrap()];
    let printed = json_of(&simulate(&[&levels[..], &rest].concat(), b""));
    assert_eq!(printed["levels"][0]["name"], "L1");
    assert_eq!(printed["levels"][1]["name"], "L2");
    // 64^3 products of two loads, 64^2 stores; three matrices of 32 KiB in lines of 64 bytes, each read once.
    assert_eq!(printed["levels"][0]["reads"], 2 * 64 * 64 * 64);
    assert_eq!(printed["levels"][0]["writes"], 64 * 64);
    assert_eq!(printed["memory"]["reads"], 3 * 512);
    let written: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    assert_eq!(written, printed);
}

#[test]
fn every_described_machine_runs_and_is_listed_with_its_sources() {
    let listed = String::from_utf8(simulate(&["machines"], b"").stdout).unwrap();
    for name in MachineModel::names() {
        assert!(listed.lines().any(|line| line.starts_with(name)), "{name}");
        let counts = json_of(&simulate(&["--machine", name, "--workload", "fft:points=256", "--json"], b""));
        assert!(counts["memory"]["reads"].as_u64().unwrap() > 0, "{name}");
    }
    assert!(!listed.contains("not yet checked"));
}

#[test]
fn a_machine_file_is_a_machine() {
    let folder = tempfile::tempdir().unwrap();
    let text = include_str!("../../../machines/zen3/described.json");
    let path = file(folder.path(), "machine.json", text.as_bytes());
    let of = |machine: &str| simulate(&["--machine", machine, "--workload", "dct:points=1024", "--json"], b"").stdout;
    assert_eq!(of(path.to_str().unwrap()), of("zen3"));
    let cut = file(folder.path(), "cut.json", &text.as_bytes()[..300]);
    refused(&["--machine", cut.to_str().unwrap(), "--workload", "matmul"], b"", "cut.json: not a JSON object");
    let mut untimed: Value = serde_json::from_str(text).unwrap();
    untimed["timing"]["read_cycles"] = json!([8]);
    let untimed = file(folder.path(), "untimed.json", untimed.to_string().as_bytes());
    refused(&["--machine", untimed.to_str().unwrap(), "--workload", "matmul"], b"", "no time for each data level");
}

#[test]
fn malformed_traces_are_refused_by_file_and_line() {
    let folder = tempfile::tempdir().unwrap();
    let bad = |name: &str, bytes: &[u8], form: &str, what: &str| {
        let path = file(folder.path(), name, bytes);
        let path = path.to_str().unwrap();
        refused(&[&LEVEL[..], &["--trace", path, "--format", form]].concat(), b"", &format!("{path}{what}"));
        // The curve reads traces in the same way.
        refused(&["curve", "--level", "4K:2:64", "--trace", path, "--format", form], b"", &format!("{path}{what}"));
    };
    bad("a.din", b"0 10\n1 20\n5 30\n", "din", ":3: unknown label");
    bad("b.din", b"0 10\n0 wxyz\n", "din", ":2: no hexadecimal address");
    bad("c.din", b"0 11112222333344445\n", "din", ":1: address beyond 64 bits");
    bad("a.lackey", b" L 10,4\nI  20\n", "lackey", ":2: no size");
    bad("b.lackey", b" L 10,999999999\n", "lackey", ":1: size is not");
    bad("a.u64", b"1234567812345", "u64", ": byte 13: the trace ends 5 bytes into an address");
    bad("a.iso", b"isotrace\x02", "iso", ": byte 9: this is not a trace");
    bad("b.iso", b"isotrace\x01\x05\0\0\0", "iso", ": byte 13: the trace is truncated");
    bad(
        "c.iso",
        b"isotrace\x01\xff\xff\xff\xff\xff\xff\xff\xff",
        "iso",
        ": byte 17: a block cannot have 4294967295 accesses",
    );
    refused(&[&LEVEL[..], &["--trace", "-"]].concat(), b"x", "-:1: unknown label");
    let none = folder.path().join("none.din");
    refused(&[&LEVEL[..], &["--trace", none.to_str().unwrap()]].concat(), b"", "none.din");
}

#[test]
fn machines_that_cannot_be_are_refused_with_the_reason() {
    let cases = [
        ("32K:0:64:lru:wb:wa", "0 ways"),
        ("32K:7:64:lru:wb:wa", "do not divide"),
        ("0:8:64:lru:wb:wa", "do not divide"),
        ("36K:8:48:lru:wb:wa", "not a power of two"),
        ("48K:12:64:tree-plru:wb:wa", "does not exist for 12 ways"),
        ("32K:8:64:lru:wb", "5 of at least 6 fields"),
        ("32K:8:64:best:wb:wa", "not a replacement policy"),
        ("32K:4294967296:64:lru:wb:wa", "not a number of ways"),
        ("99999999999G:8:64:lru:wb:wa", "not a size"),
        ("17179869183G:1:1:lru:wb:wa", "more than"),
        ("1048576G:16:64:lru:wb:wa", "more than"),
    ];
    for (level, what) in cases {
        refused(&["--level", level, "--workload", "matmul"], b"", what);
    }
    // A set index of address bits needs a number of sets that is a power of two.
    let folder = tempfile::tempdir().unwrap();
    let text = include_str!("../../../machines/pentium-ii/described.json");
    let odd = text.replace("\"set_count\": 4096", "\"set_count\": 4095").replace(
        "\"write_miss\": \"allocate_unless_dirty\"",
        "\"write_miss\": \"allocate_unless_dirty\", \"index\": \"bits\"",
    );
    let odd = file(folder.path(), "odd.json", odd.as_bytes());
    refused(
        &["--machine", odd.to_str().unwrap(), "--workload", "matmul"],
        b"",
        "4095 sets cannot be selected by address bits",
    );
    refused(&["--machine", "vax", "--workload", "matmul"], b"", "vax: no such machine");
    refused(&["--workload", "matmul"], b"", "no machine");
    refused(&["--machine", "zen3"], b"", "no program");
    refused(&["curve", "--level", "96K:16:64", "--workload", "matmul"], b"", "96 sets are not a power of two");
    refused(&["curve", "--level", "4G:16:64", "--workload", "matmul"], b"", "more than");
    refused(&["flood", "--level", "8K:2:32:lru:wb:wa"], b"", "needs two levels");
    for (workload, what) in [
        ("sieve", "not a workload"),
        ("walk:area=1K,stride=0", "stride=0"),
        ("walk:area=99999999999G,stride=1", "area"),
    ] {
        refused(&[&LEVEL[..], &["--workload", workload]].concat(), b"", what);
    }
}

#[test]
fn a_curve_counts_as_the_full_simulator_and_is_drawn() {
    let folder = tempfile::tempdir().unwrap();
    let svg = folder.path().join("curve.svg");
    let arguments = ["curve", "--level", "64K:4:64", "--workload", "fft:points=2048", "--verify", "--json", "--svg"];
    let curve = json_of(&simulate(&[&arguments[..], &[svg.to_str().unwrap()]].concat(), b""));
    // 64 KiB with 4 ways have 4 colors. The full simulator counts the misses with 1, 2 and all of them.
    assert_eq!(curve["colors"], json!([1, 2, 3, 4]));
    let [misses, ways] = ["misses_by_colors", "misses_by_ways"].map(|key| curve[key].as_array().unwrap().clone());
    for verified in curve["verified"].as_array().unwrap() {
        let colors = verified["colors"].as_u64().unwrap() as usize;
        assert_eq!(verified["misses"], misses[colors - 1]);
    }
    assert_eq!(curve["verified"].as_array().unwrap().len(), 3);
    assert_eq!((ways.len(), &ways[0]), (5, &curve["accesses"]));
    // All colors and all ways are the same whole cache, in which pages 0, 1, 2... lie one behind the other.
    assert_eq!(misses[3], ways[4]);
    assert!(std::fs::read_to_string(svg).unwrap().starts_with("<svg"));
}

#[test]
fn the_flood_of_the_pentium_ii_says_by_how_much_the_naive_one_falls_short() {
    let flood = json_of(&simulate(&["flood", "--machine", "pentium-ii", "--json"], b""));
    assert_eq!(flood["double_purged"], flood["lines"]);
    // A line costs one read and one write instead of one read and two writes: a third of the transfers is missing. With 120 cycles per write and
    // 40 per read, 120 of 280 cycles are missing.
    assert!((flood["naive_shortfall_transfers"].as_f64().unwrap() - 1.0 / 3.0).abs() < 1e-9);
    assert!((flood["naive_shortfall_cycles"].as_f64().unwrap() - 120.0 / 280.0).abs() < 1e-9);
    let text = String::from_utf8(simulate(&["flood", "--machine", "pentium-ii"], b"").stdout).unwrap();
    assert!(text.contains("33 % of the transfers and 43 % of their time") && text.contains("50 %"), "{text}");
    // For other machines a pattern is searched.
    let text = String::from_utf8(
        simulate(&["flood", "--level", "4K:4:32:tree-plru:wb:wa", "--level", "32K:4:32:lru:wb:wau"], b"").stdout,
    );
    assert!(text.unwrap().contains("searched"));
    refused(
        &["flood", "--level", "4K:1:32:lru:wb:wa", "--level", "32K:4:32:lru:wb:wa"],
        b"",
        "direct-mapped first level",
    );
}

#[test]
fn the_example_scenario_keeps_its_tasks_apart_at_the_partitioned_level_and_is_drawn() {
    let folder = tempfile::tempdir().unwrap();
    let svg = folder.path().join("scenario.svg");
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/interference.toml");
    let outcome = json_of(&simulate(&["--scenario", example, "--json", "--svg", svg.to_str().unwrap()], b""));
    let matrix = |outcome: &Value| -> Vec<Vec<u64>> {
        let caches = outcome["caches"].as_array().unwrap();
        serde_json::from_value(caches.iter().find(|cache| cache["name"] == "L2").unwrap()["evictions"].clone()).unwrap()
    };
    let between = |matrix: Vec<Vec<u64>>| -> u64 {
        let row = |(i, row): (usize, &Vec<u64>)| row.iter().sum::<u64>() - row[i];
        matrix.iter().enumerate().map(row).sum()
    };
    assert_eq!(between(matrix(&outcome)), 0);
    let tasks = outcome["tasks"].as_array().unwrap();
    assert_eq!((&tasks[0]["jobs"], &tasks[0]["preempted"], &tasks[1]["jobs"]), (&json!(2), &json!(3), &json!(3)));
    assert!(std::fs::read_to_string(svg).unwrap().starts_with("<svg"));
    // As the head of the example states, the tasks evict each other once `stream` has all colors.
    let open = std::fs::read_to_string(example).unwrap().replace("colors = \"6-15\"", "colors = \"0-15\"");
    let outcome = json_of(&simulate(&["--scenario", "-", "--json"], open.as_bytes()));
    assert!(between(matrix(&outcome)) > 0);
    let text = simulate(&["--scenario", example], b"");
    assert!(String::from_utf8(text.stdout).unwrap().contains("L2: 0 evictions between tasks"));
}

#[test]
fn a_scenario_reads_its_traces_and_says_which_line_of_which_is_wrong() {
    let folder = tempfile::tempdir().unwrap();
    let good = file(folder.path(), "good.din", b"0 0\n1 40\n0 0\n");
    let bad = file(folder.path(), "bad.din", b"0 0\n9 40\n");
    let scenario = |path: &Path| {
        format!(
            "schema = 'isochrome-scenario/1'\nlevels = ['4K:2:64:lru:wb:wa']\n[[task]]\nname = 'a'\ntrace = '{}'\njobs = 2",
            path.display()
        )
    };
    let outcome = json_of(&simulate(&["--scenario", "-", "--json"], scenario(&good).as_bytes()));
    assert_eq!(outcome["tasks"][0]["accesses"], 6);
    assert_eq!(
        outcome["tasks"][0]["levels"][0]["causes"],
        json!({"cold": 2, "capacity": 0, "conflict": 0, "extrinsic": 0})
    );
    refused(&["--scenario", "-"], scenario(&bad).as_bytes(), "bad.din:2: unknown label");
    refused(&["--scenario", "-"], scenario(&folder.path().join("none")).as_bytes(), "none");
    refused(&["--scenario", "-"], b"schema = 'isochrome-scenario/2'", "not `isochrome-scenario/1`");
    refused(&["--scenario", "-"], b"]", "not a scenario");
    refused(&["--scenario", "x.toml", "--machine", "zen3"], b"", "cannot be used with");
}

#[test]
fn trace_refuses_what_is_not_there() {
    let trace = |arguments: &[&str], what: &str| {
        let output = isochrome(&[&["trace"], arguments].concat(), b"");
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{message}");
        assert!(message.contains(what), "{message}");
    };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.iso");
    let path = path.to_str().unwrap();
    trace(&["-o", path, "--", "/no/such/program"], "/no/such/program: not found");
    trace(&["-o", "/no/such/folder/t", "--", "true"], "/no/such/folder/t: cannot write");
    trace(&["--by", "pen", "--", "true"], "not a tool that records programs");
    trace(&[], "PROGRAM");
    // Without the tools, the message names the packages.
    for (by, package) in [("lackey", "apt-get install valgrind"), ("qemu", "apt-get install qemu-user")] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_isochrome"));
        let output = command
            .env("PATH", "/nowhere")
            .args(["trace", "--by", by, "-o", path, "--", "/bin/true"])
            .output()
            .unwrap();
        assert!(String::from_utf8_lossy(&output.stderr).contains(package));
    }
    assert!(!Path::new(path).exists(), "nothing half-written stays");
}
