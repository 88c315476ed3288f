//! Checks the report against a checked-in copy and against the properties of every report.
//!
//! After an intended change run `make results`, and inspect the files. It also makes the pages of docs/results for new evidence.

mod synthetic;

use std::path::{Path, PathBuf};

use isochrome_lab::kernels::{Condition, JobSummary};
use isochrome_lab::read_evidence;
use isochrome_model::evidence::{Evidence, SCHEMA_1};
use isochrome_model::layout::WIDTH;
use isochrome_model::units::{Bytes, Cycles};
use isochrome_report::{self as report, text};

/// Returns the path of a file of this repository.
fn of_repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

/// Checks that the file at `path` contains `actual`.
fn checked_in(path: &Path, actual: &str) {
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(path, actual).unwrap();
    }
    let expected = std::fs::read_to_string(path).unwrap_or_default();
    let differs = expected.lines().zip(actual.lines()).find(|(a, b)| a != b);
    let path = path.display();
    assert!(expected == actual, "{path} differs, first at {differs:.300?}; see the head of this file");
}

fn golden(name: &str, actual: &str) {
    checked_in(&of_repository("crates/lab/tests/data").join(name), actual);
}

fn svgs(html: &str) -> Vec<&str> {
    html.split("<svg").skip(1).map(|rest| &rest[..rest.find("</svg>").expect("every svg ends")]).collect()
}

/// Checks what must hold of every report, and returns the report.
fn check(evidence: &Evidence) -> String {
    let html = report::html(evidence);
    for svg in svgs(&html) {
        let svg = format!("<svg{svg}</svg>");
        let document = roxmltree::Document::parse(&svg).unwrap_or_else(|error| panic!("{error} in {svg}"));
        let hidden = document.root_element().attribute("aria-hidden") == Some("true");
        let named = document.descendants().any(|node| node.has_tag_name("title"));
        assert!(hidden || named, "an image for nobody: {svg}");
    }
    for outside in ["http:", "https:", " src=", "@import", "<link", "<script"] {
        assert!(!html.contains(outside), "{outside} in the report");
    }
    let text = text::table(evidence, WIDTH);
    for (kind, output) in [("html", &html), ("text", &text)] {
        for word in output.split(|c: char| !c.is_ascii_alphanumeric()) {
            assert!(!["NaN", "inf", "Infinity"].contains(&word), "{word} in the {kind}");
        }
    }
    for line in text.lines() {
        assert!(line.chars().count() <= 100, "wider than 100 columns: {line}");
    }
    html
}

#[test]
fn the_report_is_the_one_checked_in() {
    let evidence = synthetic::full().evidence();
    golden("report.html", &check(&evidence));
    golden("report.md", &report::markdown(&evidence));
    golden("report.txt", &text::table(&evidence, WIDTH));
}

#[test]
fn pages_of_results_are_made_from_their_evidence() {
    let mut pages = 0;
    for file in std::fs::read_dir(of_repository("docs/results/evidence")).unwrap() {
        let file = file.unwrap().path();
        let evidence = read_evidence(&std::fs::read_to_string(&file).unwrap()).unwrap();
        let page = Path::new(file.file_name().unwrap()).with_extension("md");
        checked_in(&of_repository("docs/results").join(page), &report::markdown(&evidence));
        pages += 1;
    }
    assert!(pages > 0);
}

#[test]
fn evidence_read_back_from_its_file_gives_the_same_report() {
    let evidence = synthetic::full().evidence();
    let json = serde_json::to_string(&evidence).unwrap();
    assert_eq!(read_evidence(&json).unwrap(), evidence);
}

#[test]
fn evidence_of_the_first_schema_gives_the_same_report() {
    let made = synthetic::full();
    let mut json = serde_json::to_value(&made.rest).unwrap();
    json.as_object_mut().unwrap().remove("sections");
    json["experiments"] = serde_json::to_value(&made.kernels.experiments).unwrap();
    json["schema"] = SCHEMA_1.into();
    let read = read_evidence(&json.to_string()).unwrap();
    assert_eq!(read.sections, made.evidence().sections);
    assert!(read_evidence("{}").is_err());
}

#[test]
fn the_verdict_states_the_numbers_of_the_evidence() {
    let made = synthetic::full();
    let html = report::html(&made.evidence());
    let verdict = &html[html.find("<h1>").unwrap() + 4..html.find("</h1>").unwrap()];
    // The verdict is about the largest filter, which is chosen before anything is measured.
    assert!(verdict.contains("a filter job of 8192 taps"), "{verdict}");
    let filter = made.kernels.experiments.iter().find(|it| it.parameter.get("taps") == Some(&8192)).unwrap();
    let ratio = |condition| {
        let time = filter.conditions[&condition].jobs.cycles_median.0 as f64;
        time / filter.conditions[&Condition::Alone].jobs.cycles_min.0 as f64
    };
    let (with, without) = (ratio(Condition::Partitioned), ratio(Condition::Unpartitioned));
    assert!(
        verdict.contains(&format!("takes {with:.2} times its undisturbed time; without, {without:.2} times")),
        "{verdict}"
    );
    assert!(html.contains("✓ holds"));
    assert!(html.contains(
        "Lines of its cache lost before a job: 93\u{a0}% (1908 misses) without own colors, 8.0\u{a0}% (164 misses) with"
    ));
}

#[test]
fn every_kernel_size_and_condition_is_in_it() {
    let evidence = synthetic::full().evidence();
    let (html, text) = (report::html(&evidence), text::table(&evidence, WIDTH));
    for condition in ["alone", "unpartitioned", "partitioned", "single-writer"] {
        assert!(html.contains(&format!(">{condition}<")), "{condition}");
    }
    for kernel in ["Filter, f64", "DCT, f64", "FFT, f64", "Matrix multiplication", "Filter and matrix together"] {
        assert!(html.contains(kernel) && text.contains(kernel), "{kernel}");
    }
    assert!(
        html.contains("length of each of a job’s four time slices, µs")
            && html.contains("filter activations per second")
    );
    assert!(text.lines().any(|line| line.trim_start().starts_with("8192")));
}

#[test]
fn a_high_water_mark_is_never_called_a_bound() {
    // Files that the report holds are encoded as URIs.
    let html = report::html(&synthetic::full().evidence()).replace("%20", " ");
    for (at, _) in html.match_indices("bound") {
        let before: String = html[..at].chars().rev().take(60).collect::<String>().chars().rev().collect();
        assert!(before.contains("not a") || before.contains("no "), "…{before}bound");
    }
}

#[test]
fn maxima_of_unequal_numbers_of_jobs_are_not_compared() {
    // The largest made-up filter has equally many jobs in every flooded condition; the matrix multiplication does not.
    let text = text::table(&synthetic::full().evidence(), WIDTH);
    let row = |size: &str| text.lines().find(|line| line.trim_start().starts_with(size)).unwrap().to_owned();
    assert!(!row("8192").contains(" – "), "{}", row("8192"));
    assert_eq!(row("25 ").matches(" – ").count(), 3, "{}", row("25 "));
}

#[test]
fn a_99_percent_quantile_is_given_from_100_jobs_on() {
    let mut made = synthetic::full();
    made.kernels.experiments.truncate(1);
    let outcomes = &made.kernels.experiments[0].conditions;
    // 777 times the shortest job: no other number in the report is 777.
    let p99 = Cycles(777 * outcomes[&Condition::Alone].jobs.cycles_min.0);
    for (n, cells) in [(100, 2 * outcomes.len()), (99, 0)] {
        for outcome in made.outcomes() {
            for jobs in [&mut outcome.jobs, &mut outcome.control] {
                (jobs.n, jobs.cycles_p99) = (n, p99);
            }
        }
        assert_eq!(report::html(&made.evidence()).matches(">777<").count(), cells, "{n} jobs");
    }
}

#[test]
fn hostile_strings_stay_text() {
    let evil = "<script>alert(1)</script>\"'&\u{1b}[2J";
    let mut made = synthetic::full();
    made.rest.machine.cpu_model = evil.into();
    made.rest.machine.architecture = evil.into();
    made.rest.machine.hypervisor = Some(evil.into());
    made.rest.command = vec![evil.into()];
    made.rest.warnings = vec![evil.into()];
    made.rest.isochrome = evil.into();
    made.rest.fingerprint = evil.into();
    made.rest.raw[0].path = "javascript:alert(1)".into();
    let palette = made.rest.palette.as_mut().unwrap();
    palette.rule = evil.into();
    palette.method = evil.into();
    for experiment in &mut made.kernels.experiments {
        experiment.bench = evil.into();
        experiment.element = evil.into();
        experiment.parameter = [(evil.to_owned(), experiment.parameter.values().sum())].into();
    }
    let html = check(&made.evidence());
    assert!(html.contains("href=\"./javascript:alert(1)\""));
    assert!(!text::table(&made.evidence(), WIDTH).contains('\u{1b}'), "a terminal would obey it");
}

#[test]
fn evidence_with_almost_nothing_still_reads() {
    assert!(check(&synthetic::minimal()).contains("No experiment was run"));

    let mut made = synthetic::full();
    made.rest.palette = None;
    check(&made.evidence());

    let mut made = synthetic::full();
    made.kernels.experiments.truncate(1);
    check(&made.evidence());
    made.kernels.experiments[0].conditions.clear();
    assert!(check(&made.evidence()).contains("? inconclusive"));

    let mut made = synthetic::full();
    if let Some(palette) = &mut made.rest.palette {
        (palette.per_color, palette.eviction) = (vec![], vec![vec![], vec![0.5], vec![0.1; 70]]);
    }
    made.rest.machine.page_bytes = Bytes(0);
    made.rest.machine.levels[2].geometry.value.set_count = 0;
    check(&made.evidence());
}

#[test]
fn without_counters_lines_lost_by_time_stand_in_for_misses() {
    let mut made = synthetic::full();
    made.kernels.counter_hz = None;
    for outcome in made.outcomes() {
        (outcome.jobs.l1_misses_median, outcome.jobs.l2_misses_median) = (None, None);
    }
    let html = check(&made.evidence());
    assert!(html.contains("time of a job, cycles"));
    let text = text::table(&made.evidence(), WIDTH);
    let row = text.lines().find(|line| line.trim_start().starts_with("8192")).unwrap();
    assert!(row.contains("  93 %  8.0 %  31"), "{row}");
    made.outcomes().for_each(|outcome| outcome.jobs.lost_median = None);
    assert!(check(&made.evidence()).contains("lost before a job: – without own colors, – with"));
}

#[test]
fn a_flood_that_its_own_control_equals_proves_nothing() {
    let mut made = synthetic::full();
    made.outcomes().for_each(|outcome| outcome.control.cycles_median = outcome.jobs.cycles_median);
    let html = check(&made.evidence());
    assert!(html.contains("jobs without a flood took as long") && !html.contains("✓ holds"));
}

#[test]
fn sharing_that_contradicts_the_declaration_is_said_in_words() {
    let words = "declared private to each CPU, but CPUs were seen to evict each other’s lines";
    let mut made = synthetic::full();
    assert!(
        !check(&made.evidence()).contains(words),
        "the third level is declared shared, the second was not seen to be"
    );
    made.rest.machine.levels[2].sharing_seen.as_mut().unwrap().value = true;
    assert!(check(&made.evidence()).contains(&format!("L2 is {words}")));
}

#[test]
fn without_accepted_blocks_nothing_is_claimed() {
    let mut made = synthetic::full();
    for outcome in made.outcomes() {
        let none = JobSummary::default();
        (outcome.jobs, outcome.control) = (none.clone(), none);
        (outcome.blocks_quiet, outcome.high_water_mark.n) = (0, 0);
        outcome.ccdf.clear();
    }
    let html = check(&made.evidence());
    assert!(html.contains("cannot be concluded from this run") && html.contains("0 of 40 blocks were accepted"));
    assert!(!html.contains("✓ holds"));
}

#[test]
fn numbers_beyond_measure_do_no_harm() {
    let mut made = synthetic::full();
    if let Some(palette) = &mut made.rest.palette {
        palette.seconds = f64::NAN;
        palette.us_per_page = f64::INFINITY;
        palette.eviction[0][0] = f64::NAN;
        palette.eviction[1][2] = f64::INFINITY;
        palette.per_color[3] = u64::MAX / 64;
    }
    made.rest.machine.memory_load_ns.as_mut().unwrap().value = f64::NAN;
    for retention in &mut made.rest.machine.levels[2].retention {
        (retention.lost_median, retention.lost_max) = (f64::NAN, f64::INFINITY);
    }
    for outcome in made.outcomes() {
        (outcome.jobs.cycles_median, outcome.jobs.cycles_p99) = (Cycles(u64::MAX), Cycles(u64::MAX));
        outcome.jobs.lost_median = Some(f64::INFINITY);
        outcome.jobs.l2_misses_median = Some(f64::INFINITY);
        outcome.high_water_mark.value = u64::MAX;
        outcome.ccdf.push((Cycles(u64::MAX), f64::NAN));
    }
    made.rest.taken_unix_s = u64::MAX;
    check(&made.evidence());
}

#[test]
fn a_machine_of_many_colors_still_makes_a_small_file() {
    let mut made = synthetic::full();
    let palette = made.rest.palette.as_mut().unwrap();
    palette.eviction = (0..64).map(|i| (0..64).map(|j| if i == j { 0.95 } else { 0.03 }).collect()).collect();
    palette.per_color = vec![30; 64];
    (palette.level, palette.colors) = (3, 64);
    let html = check(&made.evidence());
    assert!(
        html.contains("The L3 of 32 MiB has 64 page colors"),
        "the colors measured, not the 512 that the size suggests"
    );
    assert!(html.len() < 800_000, "{} bytes", html.len());
}
