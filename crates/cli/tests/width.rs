//! Tests that text fits 80 columns where no terminal has another width. The formats of measured results are tested beside their code.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use isochrome_model::layout::{WIDTH, columns, is_command};

/// Verbs that need no hardware, run from the root of the repository. `@` stands for a folder with a plan.
const COMMANDS: [&str; 24] = [
    "plan examples/kim2013-table1.json --cores 4 --memory 1G --copies 4 --method cata",
    "plan examples/kim2013-table1.json --cores 1 --memory 1G --copies 4 --method cata",
    "plan examples/kim2013-table1.json --cores 4 --memory 1G --method cata --objective partitions,margin,refill",
    "plan examples/kim2013-table1.json --cores 4 --memory 1G --compare --time-limit 1s",
    "analyze examples/kim2013-table1.json --cores 4 --memory 1G --allocation @/plan.json",
    "analyze examples/kim2013-table1.json --cores 4 --memory 1G --allocation @/plan.json --analysis combined-multiset",
    "simulate --machine zen3 --workload matmul",
    "simulate --machine 486-33 --workload matmul",
    "simulate --scenario examples/interference.toml",
    "simulate --scenario examples/interference-shared.toml",
    "simulate machines",
    "simulate curve --workload matmul",
    "simulate flood --machine pentium-ii",
    "export resctrl @/plan.json --ways 32",
    "export xen @/plan.json --ways 32",
    "export jailhouse @/plan.json --ways 32",
    "export pqos @/plan.json --ways 32",
    "lab paper --list",
    "lab paper sebek2002/10",
    "lab paper kim2013/10",
    "lab paper kim2013/table-2",
    "lab workload --miss-ratio 33% --machine zen3 --policy lru",
    "lab crpd --machine i7-2600 --mhz 1000",
    "policy check examples/serve/policy.toml",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns the exit code and the text of `words`, which stand behind `isochrome`.
fn output(words: &[&str]) -> (i32, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_isochrome")).args(words).current_dir(root()).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let code = output.status.code().unwrap_or(-1);
    assert!(code != 1 || errors.contains("hint"), "{words:?}: {errors}");
    (code, text)
}

/// Checks that no line is too wide, but for commands that are to be copied and for single words, such as paths.
fn assert_fits(what: &str, text: &str) {
    for line in text.lines() {
        let is_word = !line.trim().contains(' ');
        assert!(columns(line) <= WIDTH || is_command(line) || is_word, "{what}: {} columns: {line}", columns(line));
    }
}

#[test]
fn what_verbs_print_fits_80_columns() {
    let folder = tempfile::tempdir().unwrap();
    let plan = folder.path().join("plan.json");
    let words = "plan examples/kim2013-table1.json --cores 4 --memory 1G --method cata -o";
    let words: Vec<&str> = words.split(' ').chain([plan.to_str().unwrap()]).collect();
    assert_eq!(output(&words).0, 0);
    for command in COMMANDS {
        let command = command.replace('@', folder.path().to_str().unwrap());
        let (code, text) = output(&command.split(' ').collect::<Vec<_>>());
        // Only what depends on this machine may fail.
        assert!([0, 2].contains(&code) || command.starts_with("policy"), "{command}: exit code {code}: {text}");
        // The files of an export are what other programs read.
        if !command.starts_with("export") {
            assert_fits(&command, &text);
        }
    }
}

#[test]
fn reports_on_all_evidence_fit_80_columns() {
    let mut count = 0;
    for entry in fs::read_dir(root().join("docs/results/evidence")).unwrap() {
        let path = entry.unwrap().path();
        let (code, text) = output(&["report", path.to_str().unwrap(), "--text"]);
        assert_eq!(code, 0, "{}", path.display());
        assert_fits(&path.display().to_string(), &text);
        count += 1;
    }
    assert!(count >= 10, "{count} files of evidence");
}

#[test]
fn a_report_in_a_file_fits_80_columns() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("report.txt");
    output(&["report", "docs/results/evidence/crpd.json", "--text", "-o", file.to_str().unwrap()]);
    assert_fits("report -o", &fs::read_to_string(file).unwrap());
}

#[test]
fn help_fits_80_columns() {
    for verb in
        ["", "plan", "simulate", "report", "lab", "lab crpd", "compare", "run", "export", "serve", "policy join"]
    {
        for option in ["-h", "--help"] {
            let words: Vec<&str> = verb.split(' ').filter(|word| !word.is_empty()).chain([option]).collect();
            assert_fits(verb, &output(&words).1);
        }
    }
}
