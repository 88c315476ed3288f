//! Compares docs/results/papers.md and its figures with what is played. After an intended change run `make papers`, and inspect the files.

use std::fs;
use std::path::Path;

use isochrome_model::papers::Paper;
use isochrome_report::papers::{Entry, page};

/// Checks that the file at `path` of docs/results contains `actual`.
fn checked_in(path: &str, actual: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/results").join(path);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, actual).unwrap();
    }
    let expected = fs::read_to_string(&path).unwrap_or_default();
    let differs = expected.lines().zip(actual.lines()).find(|(a, b)| a != b);
    assert!(expected == actual, "{} differs, first at {differs:.300?}; see the head of this file", path.display());
}

#[test]
fn the_page_is_what_is_played() {
    let papers = Paper::all();
    let mut entries = Vec::new();
    for paper in &papers {
        for figure in &paper.figures {
            let played = figure.play(paper).unwrap();
            let compared = figure.compare(paper, &played).unwrap();
            let section = figure.section(paper, &played, &compared);
            entries.push(Entry { paper, figure, compared, section });
        }
    }
    for entry in &entries {
        checked_in(&format!("figures/{}.svg", entry.file_name()), &entry.svg());
    }
    checked_in("papers.md", &page(&entries, "figures"));
}
