//! What floods achieved, for the terminal.

use std::fmt::Write;

use maud::{Markup, html};

use super::chart::{self, Bar};
use super::reading::Standing;
use super::{format, scroll};
use crate::evidence::Evidence;
use crate::flood::verify::{LEFT_AT_MOST, Verification};

/// The self-check of the flooder, a line for each pattern.
pub fn text(verified: &Verification) -> String {
    let mut text = format!(
        "floods of L{} ({} ways, {} inside), {} lines of a victim looked at; lines gone judged {}\n\n{:<13} {:>8} {:>9} {:>8} {:>15} {:>24} {:>11} {:>9}\n",
        verified.level,
        verified.ways[1],
        verified.ways[0],
        verified.lines,
        if verified.counted { "by counters" } else { "by time, between the controls" },
        "flood",
        "memory",
        "takes us",
        "gone",
        "controls",
        "ns: there / after / gone",
        "write-backs",
        "quiet"
    );
    for flood in &verified.achieved {
        let _ = writeln!(
            text,
            "{:<13} {:>8} {:>9.1} {:>6.1} % {:>15} {:>24} {:>11} {:>9}",
            flood.pattern,
            flood.memory.to_string(),
            flood.flood_ns / 1e3,
            100.0 * flood.gone,
            flood.gone_controls.map_or(format::DASH.to_owned(), |[there, gone]| {
                format!("{:.1}, {:.1} %", 100.0 * there, 100.0 * gone)
            }),
            format!("{:.1} / {:.1} / {:.1}", flood.hit_ns, flood.flooded_ns, flood.sure_ns),
            flood.write_backs_per_refill.map_or(format::DASH.to_owned(), |count| format!("{count:.2}")),
            format!("{}/{}", flood.blocks_quiet, flood.blocks)
        );
    }
    text.push('\n');
    for finding in findings(verified).iter().chain(&verified.parameters) {
        let _ = writeln!(text, "{finding}");
    }
    text
}

/// What it comes to, a sentence each.
fn findings(verified: &Verification) -> Vec<String> {
    let short = verified.achieved.iter().filter(|flood| flood.falls_short()).map(|flood| {
        format!(
            "{} leaves {:.1} % of the lines, more than {:.0} %: it does not flood this cache",
            flood.pattern,
            100.0 * (1.0 - flood.gone),
            100.0 * LEFT_AT_MOST
        )
    });
    let not_tried =
        verified.not_tried.iter().map(|pattern| format!("{} was not tried: {}", pattern.pattern, pattern.reason));
    let worst = match verified.worst() {
        Some(worst) => format!(
            "worst: {}; a load after it takes {:.1} ns, {:.1} where the line is there",
            worst.pattern, worst.flooded_ns, worst.hit_ns
        ),
        None => "no block was quiet: nothing can be said of any flood".to_owned(),
    };
    short.chain(not_tried).chain([worst]).collect()
}

/// What the report begins with where there is nothing else.
pub(super) fn headline(verified: &Verification) -> (Option<Standing>, String, String) {
    let judged = if verified.counted { "counted" } else { "judged by time, between two controls" };
    let basis = format!(
        "{} lines of a victim in L{} looked at each time; lines gone are {judged}.",
        verified.lines, verified.level
    );
    match verified.worst() {
        Some(worst) => {
            let sentence = format!(
                "After the worst flood, {}, {:.1} % of a victim’s lines are gone, and a load takes {:.1} ns instead of {:.1}.",
                worst.pattern,
                100.0 * worst.gone,
                worst.flooded_ns,
                worst.hit_ns
            );
            (Some(if worst.falls_short() { Standing::Violated } else { Standing::Holds }), sentence, basis)
        }
        None => {
            let text = "What floods leave of the cache cannot be told from this run.";
            (Some(Standing::Inconclusive(String::new())), text.to_owned(), basis)
        }
    }
}

pub(super) fn section(evidence: &Evidence) -> Markup {
    html! {
        @for verified in &evidence.floods {
            section id="floods" {
                h2 { "What a flood leaves" }
                p {
                    "A victim of " (verified.lines) " lines in the colors of L" (verified.level) " is loaded, then the cache is flooded, then the victim is loaded again. A bar is the time of \
                    such a load: as long as one of a line that is there, and what it takes longer. [Loeser1999, §3]"
                }
                figure.wide { (bars(verified)) }
                ul { @for finding in findings(verified) { li { (finding) } } @for parameter in &verified.parameters { li { (parameter) } } }
                (scroll(html! {
                    table {
                        thead { tr {
                            th scope="col" { "flood" } th.number scope="col" { "memory" } th.number scope="col" { "takes, µs" } th.number scope="col" { "lines gone" }
                            th.number scope="col" { "controls" } th.number scope="col" { "write-backs a refill" } th.number scope="col" { "quiet blocks" }
                        } }
                        tbody {
                            @for flood in &verified.achieved {
                                tr {
                                    td { (flood.pattern) } td.number { (flood.memory) } td.number { (format!("{:.1}", flood.flood_ns / 1e3)) }
                                    td.number { (format!("{:.1} %", 100.0 * flood.gone)) }
                                    td.number {
                                        (flood.gone_controls.map_or(format::DASH.to_owned(), |[there, gone]| format!("{:.1}, {:.1} %", 100.0 * there, 100.0 * gone)))
                                    }
                                    td.number { (flood.write_backs_per_refill.map_or(format::DASH.to_owned(), |count| format!("{count:.2}"))) }
                                    td.number { (flood.blocks_quiet) " of " (flood.blocks) }
                                }
                            }
                        }
                    }
                }))
            }
        }
    }
}

/// A bar for each flood: a load of a line that is there, and behind it what one takes longer after the flood.
fn bars(verified: &Verification) -> Markup {
    let bars: Vec<Bar> = verified
        .achieved
        .iter()
        .map(|flood| Bar {
            name: flood.pattern.to_string(),
            parts: [flood.hit_ns, flood.flooded_ns - flood.hit_ns],
            class: "unpartitioned",
            text: format!("{:.1} of {:.1}", flood.flooded_ns, flood.sure_ns),
        })
        .collect();
    chart::bars("Time of a load after a flood, of that of a line that is surely gone, ns", &bars)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flood::verify::tests::verified;

    #[test]
    fn a_flood_that_falls_short_is_named_and_so_is_the_worst() {
        let text = text(&verified());
        assert!(text.contains("read leaves 50.0 % of the lines"), "{text}");
        assert!(!text.contains("write leaves"), "{text}");
        assert!(text.contains("double-purge was not tried: the first level is direct-mapped"), "{text}");
        assert!(text.contains("worst: write; a load after it takes 40.0 ns, 4.0 where"), "{text}");
        let nothing = crate::flood::verify::Verification { achieved: vec![], ..verified() };
        assert!(super::text(&nothing).contains("no block was quiet"));
        assert!(matches!(headline(&nothing).0, Some(Standing::Inconclusive(_))));
    }

    #[test]
    fn the_figure_has_a_bar_for_each_flood_and_the_headline_is_the_worst() {
        let svg = bars(&verified()).into_string();
        assert!(svg.contains("write") && svg.contains("read") && !svg.contains("NaN"), "{svg}");
        let (standing, sentence, _) = headline(&verified());
        assert!(matches!(standing, Some(Standing::Holds)) && sentence.contains("worst flood, write"), "{sentence}");
    }
}
