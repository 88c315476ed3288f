//! The report, held against a checked-in copy and against what any report must be.
//!
//! After a wanted change: `UPDATE_GOLDEN=1 cargo test -p isochrome-model --test report`, then look at the files.

mod synthetic;

use std::path::Path;

use isochrome_model::evidence::{Condition, Evidence, JobSummary};
use isochrome_model::geometry::Geometry;
use isochrome_model::miss_ratio::measured::{Comparison, Passes, Turn, conclude};
use isochrome_model::miss_ratio::search::Tried;
use isochrome_model::miss_ratio::{Locality, Task, Touches};
use isochrome_model::report::{self, text};
use isochrome_model::units::{Bytes, Cycles};

fn golden(name: &str, actual: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, actual).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    let differs = expected.lines().zip(actual.lines()).find(|(a, b)| a != b);
    assert!(
        expected == actual,
        "{name} differs from the checked-in copy, first at {differs:.300?}; see the head of this file"
    );
}

fn svgs(html: &str) -> Vec<&str> {
    html.split("<svg").skip(1).map(|rest| &rest[..rest.find("</svg>").expect("every svg ends")]).collect()
}

/// What must hold of every report, whatever the evidence.
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
    let text = text::table(evidence);
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
    let evidence = synthetic::full();
    golden("report.html", &check(&evidence));
    golden("report.txt", &text::table(&evidence));
}

#[test]
fn evidence_read_back_from_its_file_gives_the_same_report() {
    let evidence = synthetic::full();
    let json = serde_json::to_string(&evidence).unwrap();
    assert_eq!(report::html(&serde_json::from_str(&json).unwrap()), report::html(&evidence));
}

#[test]
fn the_verdict_states_the_numbers_of_the_evidence() {
    let evidence = synthetic::full();
    let html = report::html(&evidence);
    let verdict = &html[html.find("<h1>").unwrap() + 4..html.find("</h1>").unwrap()];
    let ratio = |condition| {
        let best = evidence
            .experiments
            .iter()
            .find(|e| verdict.contains(&tap_text(e.parameter.get("taps").copied())))
            .unwrap();
        let time = best.conditions[&condition].jobs.cycles_median.0 as f64;
        time / best.conditions[&Condition::Alone].jobs.cycles_min.0 as f64
    };
    let (with, without) = (ratio(Condition::Partitioned), ratio(Condition::Unpartitioned));
    assert!(
        verdict.contains(&format!("takes {with:.2} times its undisturbed time; without, {without:.2} times")),
        "{verdict}"
    );
    assert!(html.contains("✓ holds") && html.contains("? inconclusive"));
}

fn tap_text(taps: Option<u64>) -> String {
    taps.map_or("no filter".into(), |taps| format!(" {taps}-tap filter"))
}

#[test]
fn every_kernel_size_and_condition_is_in_it() {
    let evidence = synthetic::full();
    let (html, text) = (report::html(&evidence), text::table(&evidence));
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
    let html = report::html(&synthetic::full());
    for (at, _) in html.match_indices("bound") {
        let before: String = html[..at].chars().rev().take(60).collect::<String>().chars().rev().collect();
        assert!(before.contains("not a"), "…{before}bound");
    }
}

#[test]
fn maxima_of_unequal_numbers_of_jobs_are_not_compared() {
    // The made-up filters have equally many jobs in every flooded condition, the transforms have not.
    let text = text::table(&synthetic::full());
    let row = |size: &str| text.lines().find(|line| line.trim_start().starts_with(size)).unwrap().to_owned();
    assert!(!row("8192").contains(" - "), "{}", row("8192"));
    assert_eq!(row("25 ").matches(" - ").count(), 3, "{}", row("25 "));
}

#[test]
fn a_99_percent_quantile_is_given_from_100_jobs_on() {
    let explained = "A dash for p99: of fewer than 100 jobs it is the longest.";
    let mut evidence = synthetic::full();
    assert!(!report::html(&evidence).contains(explained));
    evidence.experiments.truncate(1);
    let outcomes = &mut evidence.experiments[0].conditions;
    // 777 times the shortest: nothing else in the report is.
    let p99 = Cycles(777 * outcomes[&Condition::Alone].jobs.cycles_min.0);
    for (n, cells) in [(100, 2 * outcomes.len()), (99, 0)] {
        let outcomes = &mut evidence.experiments[0].conditions;
        for jobs in outcomes.values_mut().flat_map(|outcome| [&mut outcome.jobs, &mut outcome.control]) {
            (jobs.n, jobs.cycles_p99) = (n, p99);
        }
        let html = report::html(&evidence);
        assert_eq!((html.contains(explained), html.matches(">777<").count()), (cells == 0, cells), "{n} jobs");
    }
}

#[test]
fn a_workload_is_drawn_over_both_curves_and_told_beside_its_prediction() {
    let geometry = Geometry::of_size(Bytes(512 << 10), 8, Bytes(64)).unwrap();
    let task = Task::of_ratio(Touches::Data, geometry, 0.33, Locality::Temporal).unwrap();
    let passes = |access_ns| Passes { access_ns, misses: None };
    let turn = Turn { task: passes(7.0), fitting: passes(2.0), missing: passes(12.0) };
    let executed = conclude(&task, &[turn; 20]).unwrap();
    let workload = Comparison {
        executed: Some(executed),
        colored: true,
        not_counted: Some("this machine offers no <counters>".into()),
        search: [8504, 9000].repeat(12).into_iter().map(|lines| Tried { lines, executed }).collect(),
        ..Comparison::of(task, 2, 16, Locality::Temporal, 0.33)
    };
    let mut evidence = Evidence { workloads: vec![workload], ..synthetic::minimal() };
    let html = check(&evidence);
    assert!(html.contains("A task made to miss in 33.0 % of its accesses was seen to miss in 50.0 %."));
    assert!(html.contains("Misses of a loop in level 2") && html.contains("task: 8504 lines"));
    assert!(html.contains("+17.0 points from LRU") && html.contains("no &lt;counters&gt;"));
    let json = serde_json::to_string(&evidence).unwrap();
    assert_eq!(serde_json::from_str::<Evidence>(&json).unwrap(), evidence);
    // Numbers beyond measure.
    if let Some(executed) = &mut evidence.workloads[0].executed {
        (executed.miss_ratio, executed.quartiles) = (1e9, [-1e9, 1e300]);
    }
    check(&evidence);
}

#[test]
fn hostile_strings_stay_text() {
    let evil = "<script>alert(1)</script>\"'&\u{1b}[2J";
    let mut evidence = synthetic::full();
    evidence.machine.cpu_model = evil.into();
    evidence.machine.architecture = evil.into();
    evidence.machine.hypervisor = Some(evil.into());
    evidence.command = vec![evil.into()];
    evidence.warnings = vec![evil.into()];
    evidence.isochrome = evil.into();
    evidence.fingerprint = evil.into();
    evidence.raw[0].path = "javascript:alert(1)".into();
    let palette = evidence.palette.as_mut().unwrap();
    palette.rule = evil.into();
    palette.method = evil.into();
    for experiment in &mut evidence.experiments {
        experiment.bench = evil.into();
        experiment.element = evil.into();
        experiment.parameter = [(evil.to_owned(), experiment.parameter.values().sum())].into();
    }
    let html = check(&evidence);
    assert!(html.contains("href=\"./javascript:alert(1)\""));
    assert!(!text::table(&evidence).contains('\u{1b}'), "a terminal would obey it");
}

#[test]
fn evidence_with_almost_nothing_still_reads() {
    let html = check(&synthetic::minimal());
    assert!(html.contains("No experiment was run") && html.contains("No colors were measured"));

    let mut evidence = synthetic::full();
    evidence.palette = None;
    assert!(check(&evidence).contains("No colors were measured"));

    let mut evidence = synthetic::full();
    evidence.experiments.truncate(1);
    check(&evidence);
    evidence.experiments[0].conditions.clear();
    assert!(check(&evidence).contains("? inconclusive"));

    let mut evidence = synthetic::full();
    if let Some(palette) = &mut evidence.palette {
        (palette.per_color, palette.eviction) = (vec![], vec![vec![], vec![0.5], vec![0.1; 70]]);
    }
    evidence.machine.page_bytes = Bytes(0);
    evidence.machine.levels[2].geometry.value.set_count = 0;
    check(&evidence);
}

#[test]
fn a_host_without_counters_is_told_so() {
    let mut evidence = synthetic::full();
    evidence.machine.counter_hz = None;
    for outcome in evidence.experiments.iter_mut().flat_map(|e| e.conditions.values_mut()) {
        (outcome.jobs.l1_misses_median, outcome.jobs.l2_misses_median) = (None, None);
    }
    let html = check(&evidence);
    assert!(html.contains("No counters on this host"));
    assert!(html.contains("time of a job, cycles"));
    let text = text::table(&evidence);
    assert!(text.contains("No counters on this host"));
    let row = text.lines().find(|line| line.starts_with("8192")).unwrap();
    assert!(row.contains("  93 %   8.0 %  31"), "lines lost, by time, stand in for misses: {row}");
}

#[test]
fn where_neither_time_nor_counters_tell_what_is_left_the_report_says_so() {
    let mut evidence = synthetic::full();
    for outcome in evidence.experiments.iter_mut().flat_map(|e| e.conditions.values_mut()) {
        (outcome.jobs.l2_misses_median, outcome.jobs.lost_median) = (None, None);
    }
    let html = check(&evidence);
    assert!(html.contains("Time could not tell which lines are gone. No counters on this host."));
    assert!(!html.contains("its lines lost before a job") && !html.contains(" lost<"));
}

#[test]
fn the_verdict_states_what_was_lost_before_a_job() {
    let html = report::html(&synthetic::full());
    let lost = "its lines lost before a job: 93\u{a0}% without own colors, 8.0\u{a0}% with";
    assert!(html.contains(lost));
}

#[test]
fn a_flood_that_its_own_control_equals_proves_nothing() {
    let mut evidence = synthetic::full();
    for outcome in evidence.experiments.iter_mut().flat_map(|e| e.conditions.values_mut()) {
        outcome.control.cycles_median = outcome.jobs.cycles_median;
    }
    let html = check(&evidence);
    assert!(html.contains("jobs without a flood took as long") && !html.contains("✓ holds"));
}

#[test]
fn sharing_that_contradicts_the_declaration_is_said_in_words() {
    let words = "declared private to each CPU, but CPUs were seen to evict each other’s lines";
    let mut evidence = synthetic::full();
    assert!(!check(&evidence).contains(words), "the third level is declared shared, the second was not seen to be");
    evidence.machine.levels[2].sharing_seen.as_mut().unwrap().value = true;
    assert!(check(&evidence).contains(&format!("L2 is {words}")));
}

#[test]
fn without_quiet_blocks_nothing_is_claimed() {
    let mut evidence = synthetic::full();
    for outcome in evidence.experiments.iter_mut().flat_map(|e| e.conditions.values_mut()) {
        let none = JobSummary {
            n: 0,
            cycles_min: Cycles(0),
            cycles_median: Cycles(0),
            cycles_p99: Cycles(0),
            cycles_p999: Cycles(0),
            cycles_max: Cycles(0),
            l2_misses_median: None,
            l1_misses_median: None,
            lost_median: None,
        };
        (outcome.jobs, outcome.control) = (none.clone(), none);
        (outcome.blocks_quiet, outcome.high_water_mark.n) = (0, 0);
        outcome.ccdf.clear();
    }
    let html = check(&evidence);
    assert!(html.contains("cannot be told from this run") && html.contains("no block was quiet"));
    assert!(!html.contains("✓ holds"));
}

#[test]
fn numbers_beyond_measure_do_no_harm() {
    let mut evidence = synthetic::full();
    if let Some(palette) = &mut evidence.palette {
        palette.seconds = f64::NAN;
        palette.us_per_page = f64::INFINITY;
        palette.eviction[0][0] = f64::NAN;
        palette.eviction[1][2] = f64::INFINITY;
        palette.per_color[3] = u64::MAX / 64;
    }
    evidence.machine.memory_load_ns.as_mut().unwrap().value = f64::NAN;
    for retention in &mut evidence.machine.levels[2].retention {
        (retention.lost_median, retention.lost_max) = (f64::NAN, f64::INFINITY);
    }
    for outcome in evidence.experiments.iter_mut().flat_map(|e| e.conditions.values_mut()) {
        (outcome.jobs.cycles_median, outcome.jobs.cycles_p99) = (Cycles(u64::MAX), Cycles(u64::MAX));
        outcome.jobs.lost_median = Some(f64::INFINITY);
        outcome.jobs.l2_misses_median = Some(f64::INFINITY);
        outcome.high_water_mark.value = u64::MAX;
        outcome.ccdf.push((Cycles(u64::MAX), f64::NAN));
    }
    evidence.taken_unix_s = u64::MAX;
    check(&evidence);
}

#[test]
fn a_machine_of_many_colors_still_makes_a_small_file() {
    let mut evidence = synthetic::full();
    let palette = evidence.palette.as_mut().unwrap();
    palette.eviction = (0..64).map(|i| (0..64).map(|j| if i == j { 0.95 } else { 0.03 }).collect()).collect();
    palette.per_color = vec![30; 64];
    (palette.level, palette.colors) = (3, 64);
    let html = check(&evidence);
    assert!(
        html.contains("The L3 of 32 MiB has 64 page colors"),
        "the colors measured, not the 512 that the size suggests"
    );
    assert!(html.len() < 400_000);
}
