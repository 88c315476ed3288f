//! Tests of the verdicts as JUnit XML: the counts, the outcome of each verdict, and the elements that CI systems expect.

use isochrome_model::evidence::{Evidence, SCHEMA, Section, Standing};
use isochrome_model::running::Failure;
use isochrome_model::units::Ns;
use isochrome_report::junit;
use roxmltree::{Document, Node};

mod fixture;

use fixture::{machine, run};

fn evidence(sections: Vec<Section>) -> Evidence {
    let machine = machine("Imaginary");
    Evidence {
        schema: SCHEMA.into(),
        isochrome: "0.1.0".into(),
        taken_unix_s: 1_000_000_042,
        command: vec!["isochrome".into(), "run".into(), "a plan.json".into()],
        seed: Some(7),
        cpu: None,
        fingerprint: machine.fingerprint(),
        machine,
        palette: None,
        sections,
        warnings: vec!["A noisy host.".into()],
        raw: vec![],
    }
}

/// Checks that a file has the form that CI systems expect. [junit-10.xsd of Jenkins' xUnit plugin; junit_xml of pytest, family xunit2]
fn check(document: &Document) {
    let number = |node: &Node, name: &str| node.attribute(name).unwrap().parse::<usize>().unwrap();
    let children = |node: Node| -> Vec<String> {
        node.children().filter(Node::is_element).map(|child| child.tag_name().name().to_owned()).collect()
    };
    let root = document.root_element();
    assert_eq!(root.tag_name().name(), "testsuites");
    let mut all = [0; 4];
    for suite in root.children().filter(Node::is_element) {
        assert_eq!(suite.tag_name().name(), "testsuite");
        assert!(!suite.attribute("name").unwrap().is_empty());
        let time = suite.attribute("timestamp").unwrap();
        assert!(time.len() == 19 && time.as_bytes()[10] == b'T', "{time}");
        // Readers want an order: properties, cases, what was printed.
        let kinds = children(suite);
        let rank =
            |kind: &String| ["properties", "testcase", "system-out", "system-err"].iter().position(|it| it == kind);
        assert!(kinds.iter().all(|kind| rank(kind).is_some()) && kinds.is_sorted_by_key(rank), "{kinds:?}");
        let cases: Vec<Node> = suite.children().filter(|node| node.has_tag_name("testcase")).collect();
        let mut names: Vec<_> =
            cases.iter().map(|case| (case.attribute("classname"), case.attribute("name"))).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), cases.len(), "a case is found by its name");
        let mut seen = [cases.len(), 0, 0, 0];
        for case in cases {
            assert!(!case.attribute("name").unwrap().is_empty() && !case.attribute("classname").unwrap().is_empty());
            let seconds: f64 = case.attribute("time").unwrap().parse().unwrap();
            assert!(seconds >= 0.0);
            let outcomes = children(case);
            assert!(outcomes.len() <= 1, "{outcomes:?}");
            for outcome in case.children().filter(Node::is_element) {
                let at =
                    ["", "failure", "error", "skipped"].iter().position(|kind| outcome.has_tag_name(*kind)).unwrap();
                seen[at] += 1;
                assert!(!outcome.attribute("message").unwrap().is_empty());
                assert!(at == 3 || outcome.attribute("type").is_some());
            }
        }
        let counted = ["tests", "failures", "errors", "skipped"].map(|name| number(&suite, name));
        assert_eq!(counted, seen);
        all.iter_mut().zip(seen).for_each(|(all, seen)| *all += seen);
    }
    assert_eq!(["tests", "failures", "errors"].map(|name| number(&root, name)), all[..3]);
    assert_eq!(root.attribute("skipped"), None, "the schema of Jenkins has no such attribute here");
}

/// Returns task, requirement, outcome and message of each case.
fn cases(file: &str) -> Vec<[String; 4]> {
    let document = Document::parse(file).unwrap();
    check(&document);
    let case = |node: Node| {
        let outcome = node.children().find(Node::is_element);
        let text = |text: Option<&str>| text.unwrap_or_default().to_owned();
        [
            text(node.attribute("classname")),
            text(node.attribute("name")),
            text(outcome.map(|outcome| outcome.tag_name().name())),
            text(outcome.and_then(|outcome| outcome.attribute("message"))),
        ]
    };
    document.descendants().filter(|node| node.has_tag_name("testcase")).map(case).collect()
}

#[test]
fn a_run_that_holds_passes_every_case() {
    let file = junit(&evidence(vec![run("control", 400, 0..0).section()]));
    let names: Vec<String> =
        cases(&file).iter().map(|[task, name, outcome, _]| format!("{task} {name} {outcome}")).collect();
    let expected = [
        "control bound ",
        "control deadline ",
        "control budget ",
        "control program ",
        "control jobs ",
        "control releases ",
    ];
    assert_eq!(names[..6], expected);
    assert_eq!(names[6..], ["all tasks record ", "all tasks releases "]);
    // The longest response is the time of the case, the length of the run that of the suite.
    assert!(file.contains("classname=\"control\" name=\"bound\" time=\"0.000300000\"></testcase>"), "{file}");
    assert!(file.contains("time=\"1.500000000\" timestamp=\"2001-09-09T01:47:22\""), "{file}");
    assert!(file.contains("<property name=\"command\" value=\"isochrome run 'a plan.json'\"></property>"), "{file}");
}

#[test]
fn a_job_beyond_its_bound_fails_that_requirement_alone() {
    let cases = cases(&junit(&evidence(vec![run("control", 400, 0..2).section()])));
    let failed: Vec<_> = cases.iter().filter(|case| !case[2].is_empty()).collect();
    let [[task, name, outcome, message]] = &failed[..] else { panic!("{failed:?}") };
    assert_eq!([&task[..], name, outcome], ["control", "bound", "failure"]);
    assert_eq!(
        message.replace('\u{a0}', " "),
        "control: 2 of 400 jobs exceeded the bound: bound 500 µs, longest 600 µs; first: job 0, 600 µs after its release"
    );
}

#[test]
fn what_is_inconclusive_is_an_error_and_never_passes() {
    let cases = cases(&junit(&evidence(vec![run("control", 10, 0..0).section()])));
    let open: Vec<_> = cases.iter().filter(|case| !case[2].is_empty()).collect();
    let [[task, name, outcome, message]] = &open[..] else { panic!("{open:?}") };
    assert_eq!([&task[..], name, outcome], ["control", "jobs", "error"]);
    assert!(message.contains("299 are required"), "{message}");
}

#[test]
fn a_program_without_a_requirement_can_fail_too() {
    let mut run = run("control", 400, 0..0);
    run.failures.push(Failure { task: "hog".to_owned(), at: Ns(0), what: "ended with code 3".to_owned() });
    let last = cases(&junit(&evidence(vec![run.section()]))).pop().unwrap();
    assert_eq!(last, ["hog", "program", "failure", "hog: ended with code 3"]);
}

#[test]
fn other_evidence_has_a_case_for_each_conclusion() {
    let of = |id: &str, standing| Section::new(id, "Title", (standing, "It is so.".into(), "By this.".into()), &());
    let sections = vec![
        of("a", Some(Standing::Holds)),
        of("b", Some(Standing::NoGain)),
        of("c", Some(Standing::Violated)),
        of("d", Some(Standing::Inconclusive)),
        of("e", None),
    ];
    let cases = cases(&junit(&evidence(sections)));
    let outcomes: Vec<&str> = cases.iter().map(|case| &case[2][..]).collect();
    assert_eq!(outcomes, ["", "", "failure", "error", "skipped"]);
    assert_eq!(cases[2][3], "It is so.");
}
