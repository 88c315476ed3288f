//! Tests that names of programs, files and machines stay text in HTML, SVG, Markdown, JUnit XML and on the terminal.

use isochrome_model::evidence::figure::{
    Bar, Bars, Change, Changes, Chart, Dash, Figure, Hue, Line, Track, TrackBar, Tracks,
};
use isochrome_model::evidence::{Evidence, RawFile, SCHEMA, Section, Standing};
use isochrome_model::layout::WIDTH;
use isochrome_model::machine::Machine;
use isochrome_model::printable::is_printable;
use isochrome_model::running::{CpuInterval, Failure, Run};
use isochrome_model::units::{Bytes, Ns};
use isochrome_report::{figure, html, junit, markdown, text};

mod fixture;

/// Returns names that a program can have: markup, ends of quotes, escape sequences, line breaks, directions, and bytes that are not UTF-8.
fn hostile() -> Vec<String> {
    let mut names: Vec<String> = [
        "<script>alert(1)</script>",
        "\"><img src=x onerror=alert(1)>",
        "a' onmouseover='alert(1)",
        "&lt;b&gt; &amp; &#60;i>",
        "</style></svg></title><b>",
        "]]><b/><![CDATA[",
        "--><!-- x",
        "\u{1b}[2J\u{1b}[31mred",
        "\u{1b}]8;;http://example.org\u{1b}\\link\u{1b}]8;;\u{1b}\\",
        "\u{9b}31m\u{7f}\u{8}",
        "line\nbreak\r\n| cell |\ttab",
        "\u{202e}gnp.exe\u{2066}\u{200b}",
        "nul\0byte",
        "`<u>` and `b`",
        "an odd ` and |",
        "[x](javascript:alert(1)) ![i](//example.org)",
        "[x]: //example.org",
        "# heading *bold* __strong__",
        "=cmd|' /C calc'!A0",
        "\u{fffe}\u{feff}",
    ]
    .map(str::to_owned)
    .to_vec();
    names.push("long".repeat(1024));
    names.push(String::from_utf8_lossy(b"not \xff\xc3( UTF-8 \xed\xa0\x80").into_owned());
    names
}

/// Returns a run of a task called `name` that exceeds its bound in job 7 of 400, and beside which a program of the same name failed.
fn run(name: &str) -> Run {
    let mut run = fixture::run(name, 400, 7..8);
    run.violations[0].timeline = vec![CpuInterval { from: Ns(6_900_000), to: Ns(7_400_000), what: format!("{name}!") }];
    run.failures = vec![Failure { task: format!("{name}?"), at: Ns(1), what: format!("{name} ended with code 1") }];
    run.inputs = vec![RawFile { path: name.to_owned(), sha256: "0".to_owned() }];
    run.memory = vec![(name.to_owned(), Bytes(4096))];
    run
}

/// Returns a section in which every text is `name`, with every kind of content and of figure.
fn section(name: &str) -> Section {
    let owned = || name.to_owned();
    let line = Line::new(name, Hue::Partitioned, Dash::Solid, vec![(0.0, 1.0), (1.0, 2.0)]).marked();
    let mut chart = Chart::linear(name, name, [name, name], vec![line]);
    chart.rules.push((0.5, owned()));
    chart.x.ticks.push((0.7, owned()));
    let bar = Bar { name: owned(), parts: [1.0, 2.0], hue: Hue::Alone, text: owned() };
    let track = Track {
        name: owned(),
        note: owned(),
        hue: Hue::Ink,
        bars: vec![TrackBar { range: [0.0, 1.0], pale: 1.0, solid: 0.5 }],
    };
    let tracks = Tracks { title: owned(), description: owned(), label: owned(), span: 1.0, tracks: vec![track] };
    Section::new("x", name, (Some(Standing::Inconclusive), owned(), owned()), &())
        .heading(name)
        .text(name)
        .findings(vec![owned(), owned()])
        .table(&[name, "n"], [vec![owned()], vec![owned(), "1".to_owned()]])
        .reference(&["n", name], [vec!["1".to_owned(), owned()]])
        .figure(chart)
        .figure(Bars { title: owned(), bars: vec![bar] })
        .figure(Changes { title: owned(), changes: vec![Change { name: owned(), share: Some(0.1), hue: Hue::Alone }] })
        .figure(Figure::Tracks(tracks))
}

fn evidence(name: &str) -> Evidence {
    let machine = Machine { hypervisor: Some(name.into()), ..fixture::machine(name) };
    Evidence {
        schema: SCHEMA.into(),
        isochrome: name.into(),
        taken_unix_s: 1_000_000_000,
        command: vec!["isochrome".into(), name.into()],
        seed: Some(1),
        cpu: None,
        fingerprint: machine.fingerprint(),
        machine,
        palette: None,
        sections: vec![run(name).section(), section(name)],
        warnings: vec![name.into()],
        raw: vec![RawFile { path: name.into(), sha256: name.into() }],
    }
}

/// Returns the tags of `page` without the values of their attributes, and without those that set code. Leaves out `text-anchor`, because the position
/// of a label depends on its length.
fn tags(page: &str) -> Vec<String> {
    let mut tags = Vec::new();
    for rest in page.split('<').skip(1) {
        let tag = &rest[..rest.find('>').expect("a tag ends")];
        let outside_quotes = tag.split('"').step_by(2).collect::<String>().replace(" text-anchor=", "");
        if !matches!(&outside_quotes[..], "code" | "/code") {
            tags.push(outside_quotes);
        }
    }
    tags
}

fn only_printable(output: &str, kind: &str, name: &str) {
    let raw: Vec<char> = output.chars().filter(|&c| !is_printable(c) && !matches!(c, '\n' | '\t')).collect();
    assert!(raw.is_empty(), "{raw:?} in the {kind} for {name:?}");
}

#[test]
fn names_change_no_tag_of_the_report() {
    let expected = tags(&html(&evidence("harmless")));
    for name in hostile() {
        let page = html(&evidence(&name));
        only_printable(&page, "HTML", &name);
        let found = tags(&page);
        let differs = found.iter().zip(&expected).find(|(a, b)| a != b);
        assert!(found == expected, "{name:?}: {differs:?}, {} tags for {}", found.len(), expected.len());
        assert!(!page.contains("href=\"javascript:"), "{name:?}");
    }
}

#[test]
fn names_leave_figures_and_test_results_well_formed_xml() {
    for name in hostile() {
        let evidence = evidence(&name);
        for (kind, file) in [("SVG", figure::of_sections(&name, &evidence.sections)), ("JUnit", junit(&evidence))] {
            only_printable(&file, kind, &name);
            roxmltree::Document::parse(&file).unwrap_or_else(|error| panic!("{kind}: {name:?}: {error}"));
        }
    }
}

#[test]
fn a_terminal_obeys_no_name() {
    for name in hostile() {
        only_printable(&text::table(&evidence(&name), WIDTH), "text", &name);
    }
}

#[test]
fn names_are_no_markup_of_markdown() {
    let own = ["details>", "/details>", "summary>", "/summary>"];
    for name in hostile() {
        let page = markdown(&evidence(&name));
        only_printable(&page, "Markdown", &name);
        for line in page.lines() {
            // What stands between backticks that are not escaped is code.
            let text: String = line.replace("\\`", "").split('`').step_by(2).collect();
            for (at, _) in text.match_indices('<') {
                let is_own = own.iter().any(|tag| text[at + 1..].starts_with(tag));
                assert!(is_own || text[..at].ends_with('\\'), "{name:?}: {line}");
            }
            assert!(!text.contains("]("), "{name:?}: {line}");
        }
    }
}

#[test]
fn long_names_leave_the_drawing_as_wide_as_it_is() {
    let file = figure::of_sections("x", &[section(&"x".repeat(4096))]);
    let document = roxmltree::Document::parse(&file).unwrap();
    let texts: Vec<_> = document.descendants().filter(|node| node.tag_name().name() == "text").collect();
    assert!(texts.len() > 10);
    for text in texts {
        // At six units each, sixty letters are as wide as a drawing.
        let text = text.text().unwrap_or_default();
        assert!(text.chars().count() <= 60, "{text}");
    }
}
