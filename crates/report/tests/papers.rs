//! Compares docs/results/papers.md and its drawings with simulated figures, except figures that take long. After an intended change run `make
//! papers`, and inspect the files.

use std::collections::BTreeSet;
use std::path::Path;
use std::{fs, thread};

use isochrome_model::papers::{Agreement, Paper, PaperFigure};
use isochrome_report::papers::{Entry, page};

const RESULTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/results");

/// Checks that the file at `path` of docs/results contains `actual`.
fn checked_in(path: &str, actual: &str) {
    let path = Path::new(RESULTS).join(path);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, actual).unwrap();
    }
    let expected = fs::read_to_string(&path).unwrap_or_default();
    let differs = expected.lines().zip(actual.lines()).find(|(a, b)| a != b);
    assert!(expected == actual, "{} differs, first at {differs:.300?}; see the head of this file", path.display());
}

/// Plays `figure`, and checks what must hold of every entry.
fn entry<'a>(paper: &'a Paper, figure: &'a PaperFigure) -> Entry<'a> {
    let name = figure.full_name(paper);
    let played = figure.play(paper).unwrap_or_else(|error| panic!("{error}"));
    let compared = figure.compare(paper, &played).unwrap_or_else(|error| panic!("{error}"));
    assert!(!played.figures.is_empty(), "{name} draws nothing");
    for it in &compared {
        let needs_a_cause = matches!(it.agreement, Agreement::Differs | Agreement::Missing);
        assert!(!needs_a_cause || it.why.is_some(), "{name}: {}: why does it differ?", it.what);
        assert!(it.tolerance <= 0.1, "{name}: {}: the tolerance is too wide to show agreement", it.what);
    }
    assert!(!figure.measured.is_empty() || figure.unmeasured.is_some(), "{name}: why is nothing measured?");
    if let Some(kept) = &figure.page {
        assert!(Path::new(RESULTS).join(kept).exists(), "{name}: docs/results has no {kept}");
    }
    let section = figure.section(paper, &played, &compared);
    let kept = Path::new(RESULTS).join(format!("papers/{}-hardware.json", name.replace('/', "-")));
    let kept = fs::read_to_string(kept).ok().map(|text| serde_json::from_str(&text).unwrap());
    Entry { paper, figure, compared, section, hardware: kept }
}

#[test]
fn the_page_is_what_is_played_and_every_difference_has_a_cause() {
    let papers = Paper::all();
    let figures: Vec<_> =
        papers.iter().flat_map(|paper| paper.figures.iter().map(move |figure| (paper, figure))).collect();
    let names: BTreeSet<String> = figures.iter().map(|(paper, figure)| figure.full_name(paper)).collect();
    assert_eq!(names.len(), figures.len(), "a name is there twice");
    // `make papers` plays the slow ones too, and writes the whole page.
    let all = std::env::var_os("UPDATE_GOLDEN").is_some();
    let figures: Vec<_> = figures.into_iter().filter(|(_, figure)| all || !figure.slow).collect();
    // One thread for each figure: the machine shares its CPUs among them.
    let entries: Vec<Entry> = thread::scope(|scope| {
        let playing: Vec<_> =
            figures.iter().map(|&(paper, figure)| scope.spawn(move || entry(paper, figure))).collect();
        playing.into_iter().map(|thread| thread.join().expect("it has printed why")).collect()
    });
    for entry in &entries {
        checked_in(&format!("figures/{}.svg", entry.file_name()), &entry.svg());
    }
    if all {
        checked_in("papers.md", &page(&entries, "figures"));
    }
    let kept = fs::read_to_string(Path::new(RESULTS).join("papers.md")).unwrap();
    for entry in &entries {
        let text = entry.text("figures");
        assert!(kept.contains(&text), "docs/results/papers.md differs; see the head of this file. It is now:\n{text}");
    }
}
