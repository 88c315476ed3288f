//! Tests of `lab paper` from the outside: what it lists, prints, writes and refuses.

use std::fs;
use std::process::{Command, Output};

use serde_json::Value;

fn paper(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_isochrome")).args(["lab", "paper"]).args(arguments).output().unwrap()
}

fn printed(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn figures_are_listed_without_a_name() {
    let list = printed(&paper(&[]));
    assert_eq!(list, printed(&paper(&["--list"])));
    for name in ["liedtke1997/4", "hanemaaijer1993/penalty", "kim2013/table-2", "loeser1999/8", "sebek2002/10"] {
        assert!(list.lines().any(|line| line.starts_with(&format!("{name} "))), "{name} in {list}");
    }
}

#[test]
fn a_figure_is_printed_beside_the_paper_and_left_as_drawing_numbers_and_points() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("new");
    let text = printed(&paper(&["Sebek2002/table-1", "-o", output.to_str().unwrap()]));
    assert!(text.contains("28.4 us (Table 1)") && text.contains("28.21 us"), "{text}");
    let file = |ending: &str| fs::read_to_string(output.join(format!("sebek2002-table-1.{ending}"))).unwrap();
    let numbers: Value = serde_json::from_str(&file("json")).unwrap();
    assert_eq!(numbers["schema"], "isochrome-paper/1");
    assert_eq!(
        (&numbers["compared"][0]["printed"], &numbers["compared"][0]["agreement"]),
        (&28.4.into(), &"agrees".into())
    );
    assert!(file("svg").starts_with("<svg") && file("csv").contains("\"worst case, resume, us\",,36.7"));
}

#[test]
fn what_is_no_figure_or_cannot_be_measured_is_refused_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().to_str().unwrap();
    for (arguments, what) in [
        (&["sebek2002/99"][..], "--list"),
        (&["sebek2002/10", "--measured"], "--output"),
        (&["kim2013/14", "--measured", "-o", folder], "nothing to measure"),
    ] {
        let output = paper(arguments);
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {message}");
        assert!(message.contains(what), "{arguments:?}: {message}");
    }
}
