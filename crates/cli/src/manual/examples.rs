//! Checks the command lines in the help and in the documentation: each one is parsed, and none is run.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use regex_lite::Regex;

use super::Verb;
use crate::args::Arguments;

/// Returns the words of every call of isochrome in a line for a shell.
fn calls(line: &str) -> Vec<Vec<String>> {
    // What another command prints is a number of a process.
    let line = Regex::new(r"\$\([^)]*\)").unwrap().replace_all(line, "4711");
    let words = shlex::split(&line).unwrap_or_else(|| panic!("{line}: a quote is not closed"));
    let mut found: Vec<Vec<String>> = Vec::new();
    let mut open = false;
    for word in words {
        let (is_last, word) = word.strip_suffix(';').map_or((false, word.as_str()), |word| (true, word));
        match word {
            "|" | "&&" | "&" | "<" | ">" | "2>&1" => open = false,
            "isochrome" if !open => {
                open = true;
                found.push(vec![word.to_owned()]);
            }
            _ if open => found.last_mut().expect("a call is open").push(word.to_owned()),
            _ => {}
        }
        open &= !is_last;
    }
    found
}

/// Returns the verbs that `line` calls, each with its sub-verb if there is one. Fails with the reason if a call is not understood.
fn parsed(line: &str) -> Result<Vec<String>, String> {
    let mut verbs = Vec::new();
    for words in calls(line) {
        match Arguments::of(words.iter().map(OsString::from)) {
            Err(error) if error.use_stderr() => return Err(format!("{line}\n{error}")),
            _ => {
                let path = |count| words.iter().skip(1).take(count).cloned().collect::<Vec<_>>().join(" ");
                verbs.extend([path(1), path(2)]);
            }
        }
    }
    Ok(verbs)
}

#[test]
fn every_example_in_the_help_is_understood_and_every_verb_has_one() {
    let all = Verb::all();
    let mut shown = BTreeSet::new();
    for verb in &all {
        for example in &verb.help.examples {
            let verbs = parsed(example).unwrap_or_else(|error| panic!("{}: {error}", verb.name()));
            assert!(!verbs.is_empty(), "{}: {example}: calls nothing", verb.name());
            shown.extend(verbs);
        }
    }
    let without: Vec<&str> =
        all.iter().map(|verb| verb.path.as_str()).filter(|path| !path.is_empty() && !shown.contains(*path)).collect();
    assert!(without.is_empty(), "no example has {without:?}");
}

#[test]
fn every_command_line_in_the_documentation_is_understood() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut pages = vec![root.join("README.md")];
    let mut folders = vec![root.join("docs")];
    while let Some(folder) = folders.pop() {
        let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let (inner, files): (Vec<PathBuf>, Vec<PathBuf>) = entries.partition(|path| path.is_dir());
        folders.extend(inner);
        pages.extend(files.into_iter().filter(|path| path.extension().is_some_and(|extension| extension == "md")));
    }
    let (mut count, mut wrong) = (0, Vec::new());
    for page in pages {
        let text = fs::read_to_string(&page).unwrap();
        let mut lines = text.lines();
        while let Some(line) = lines.next() {
            let Some(line) = line.strip_prefix("    ").or(line.strip_prefix("$ ")) else { continue };
            let mut line = line.to_owned();
            while line.ends_with('\\') {
                line.pop();
                line += lines.next().unwrap_or_default();
            }
            // A line with brackets, as `[--json]`, says what there is and is not to be typed; a usage has them too. `sweep` is of the Python package.
            let is_call = line.starts_with("isochrome ") || line.starts_with("sudo isochrome ");
            if is_call && ![" [", "<", "...", "isochrome sweep"].iter().any(|sign| line.contains(sign)) {
                match parsed(&line) {
                    Ok(verbs) => count += verbs.len(),
                    Err(error) => wrong.push(format!("{}: {error}", page.display())),
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(count > 100, "{count} verbs were found");
}

#[test]
fn calls_are_found_behind_pipes_and_other_commands() {
    let words = |line| calls(line).iter().map(|words| words.join(" ")).collect::<Vec<_>>();
    assert_eq!(words("isochrome ps --json | jq '.a > 1'"), ["isochrome ps --json"]);
    assert_eq!(words("a; isochrome map $(pidof x) # why"), ["isochrome map 4711"]);
    assert_eq!(
        words("isochrome exec -- a; isochrome report b -o c"),
        ["isochrome exec -- a", "isochrome report b -o c"]
    );
    assert_eq!(words("isochrome lab --program 'isochrome job write'"), ["isochrome lab --program isochrome job write"]);
}
