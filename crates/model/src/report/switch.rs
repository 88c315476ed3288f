//! What it costs to pass a CPU from one task to another: the table of [Sebek2002, Table 1], and bars of its two parts.

use std::fmt::Write;

use maud::{Markup, html};

use super::chart::{self, Bar};
use super::format::p_value;
use super::reading::Standing;
use super::{format, scroll};
use crate::evidence::Evidence;
use crate::switch::{Condition, Cost, Kind, Means, Row, Switches};

/// A condition in words.
fn name(condition: Condition) -> String {
    let means = match condition.means {
        Means::Futex => "futex",
        Means::Pipe => "pipe",
        Means::Signal => "signal",
        Means::Timer => "timer",
    };
    let kind = match condition.kind {
        Kind::Preemption => "pre-emption by",
        Kind::Switch => "switch by",
    };
    format!("{kind} {means}")
}

fn us(ns: f64) -> String {
    format!("{:.2}", ns / 1e3)
}

/// What the report begins with where there is nothing else.
pub(super) fn headline(switches: &Switches) -> (Option<Standing>, String, String) {
    let basis =
        format!("{} conditions; each flood of L{} against spinning for as long.", switches.rows.len(), switches.level);
    // Chosen before anything is measured: conditions are sorted, so a preemption by futex where preemptions can be had.
    match switches.rows.iter().find(|row| !row.condition.partitioned) {
        Some(row) if switches.is_conclusive() => {
            let sentence = format!(
                "A {} costs {} µs, and {} µs more after a flood of the cache.",
                name(row.condition),
                us(row.best.cost_ns),
                us(row.cache_ns)
            );
            (Some(Standing::Holds), sentence, basis)
        }
        _ => {
            let text = "What passing the CPU costs through the cache cannot be told from this run.";
            (Some(Standing::Inconclusive(String::new())), text.to_owned(), basis)
        }
    }
}

/// The situations of a row, in the order of [Sebek2002, Table 1], with the cost of each.
fn situations(row: &Row) -> Vec<(&'static str, Cost, Option<[f64; 3]>)> {
    let cache = Some([row.cache_interrupt_ns, row.cache_resume_ns, row.cache_ns]);
    if row.condition.partitioned {
        return vec![("flooded, colors apart", row.flooded, cache)];
    }
    vec![("best case", row.best, None), ("after spinning", row.control, None), ("flooded", row.flooded, cache)]
}

/// The corrected p-value of a row's cache part, in brackets.
fn probability(row: &Row) -> String {
    row.p.map_or_else(String::new, |p| format!(" ({})", p_value(p)))
}

/// What a row comes to, where it is worth a sentence.
fn finding(switches: &Switches, row: &Row) -> String {
    let mut text = if row.has_cache_part() {
        let share = row.cache_ns / (row.cache_ns + row.best.cost_ns) * 100.0;
        let within =
            row.cache_interval_ns.map_or_else(String::new, |[low, high]| format!(" [{}, {}]", us(low), us(high)));
        format!("the cache part is {} us{within}, {share:.0} % of both{}", us(row.cache_ns), probability(row))
    } else {
        format!("no significant cache part{}", probability(row))
    };
    if let Some(own) = switches.partitioned(row).filter(|_| row.has_cache_part()) {
        let _ = write!(
            text,
            "; {:.0} % of it is left if the flood keeps to other colors",
            own.cache_ns / row.cache_ns * 100.0
        );
    }
    text
}

/// The experiment for the terminal.
pub fn text(switches: &Switches) -> String {
    let mut text = format!(
        "passing the CPU from one thread to another and back, in us; medians over accepted blocks; cache part: a flood of L{} less its control\n",
        switches.level
    );
    if let Some([own, all]) = switches.colors {
        let _ = writeln!(text, "colors apart: floods keep to {} of {all} colors", all - own);
    }
    let _ = writeln!(
        text,
        "\n{:24} {:>9} {:>7} {:>7} {:>22} {:>8} {:>7}",
        "", "interrupt", "resume", "cost", "cache part (int+res)", "longest", "blocks"
    );
    for row in &switches.rows {
        if !row.condition.partitioned {
            let _ = writeln!(text, "{}", name(row.condition));
        }
        for (situation, cost, cache) in situations(row) {
            let cache = cache.map_or_else(String::new, |[interrupt, resume, both]| {
                format!("{} ({}+{})", us(both), us(interrupt), us(resume))
            });
            let _ = writeln!(
                text,
                "  {situation:22} {:>9} {:>7} {:>7} {cache:>22} {:>8} {:>7}",
                us(cost.interrupt_ns),
                us(cost.resume_ns),
                us(cost.cost_ns),
                us(cost.cost_ns_max.value as f64),
                format!("{}/{}", row.blocks_quiet, row.blocks)
            );
        }
    }
    text.push('\n');
    for row in switches.rows.iter().filter(|row| !row.condition.partitioned) {
        let _ = writeln!(text, "{}: {}", name(row.condition), finding(switches, row));
    }
    if let Some(row) = switches.rows.first() {
        let n = row.best.cost_ns_max.n;
        let _ = writeln!(text, "longest: of {n} handoffs each, an observation and no bound. [Sebek2002, Table 1]");
    }
    text
}

pub(super) fn section(evidence: &Evidence) -> Markup {
    html! {
        @for switches in &evidence.switches {
            section id="switch" {
                h2 { "What passing the CPU costs" }
                p {
                    "Two threads on one CPU. In a pre-emption the other has the higher priority and takes the CPU as soon as it is woken; in a switch both have the same \
                    and wait for each other. Before each way the cache is flooded, or, as the control, as much time is spent spinning."
                }
                figure.wide { (bars(switches)) }
                ul {
                    @for row in switches.rows.iter().filter(|row| !row.condition.partitioned) {
                        li { (name(row.condition)) ": " (finding(switches, row)) }
                    }
                }
                (scroll(html! {
                    table {
                        thead { tr {
                            th scope="col" { "" } th scope="col" { "situation" } th.number scope="col" { "interrupt, µs" } th.number scope="col" { "resume, µs" }
                            th.number scope="col" { "cost, µs" } th.number scope="col" { "cache part, µs" } th.number scope="col" { "longest, µs" } th.number scope="col" { "accepted blocks" }
                        } }
                        tbody {
                            @for row in &switches.rows {
                                @for (situation, cost, cache) in situations(row) {
                                    tr {
                                        td { (name(row.condition)) } td { (situation) }
                                        td.number { (us(cost.interrupt_ns)) } td.number { (us(cost.resume_ns)) } td.number { (us(cost.cost_ns)) }
                                        td.number { (cache.map_or(format::DASH.to_owned(), |cache| us(cache[2]))) }
                                        td.number { (us(cost.cost_ns_max.value as f64)) } td.number { (row.blocks_quiet) " of " (row.blocks) }
                                    }
                                }
                            }
                        }
                    }
                }))
            }
        }
    }
}

/// A bar per condition: the direct part, and behind it the cache part.
fn bars(switches: &Switches) -> Markup {
    let bar = |row: &Row| Bar {
        name: if row.condition.partitioned { "  colors apart".to_owned() } else { name(row.condition) },
        parts: [row.best.cost_ns, row.cache_ns],
        class: if row.condition.partitioned { "partitioned" } else { "unpartitioned" },
        text: format!("{} + {}", us(row.best.cost_ns), us(row.cache_ns)),
    };
    let bars: Vec<Bar> = switches.rows.iter().map(bar).collect();
    chart::bars("Direct part and cache part of passing the CPU", &bars)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::switch::tests::modeled;

    #[test]
    fn the_table_has_both_parts_of_every_condition() {
        let text = text(&modeled());
        assert!(text.contains("pre-emption by futex") && text.contains("switch by pipe"), "{text}");
        // 1500 of 1000 + 1500 ns, and half of it with colors apart.
        assert!(
            text.contains("1.50 (0.50+1.00)") && text.contains("60 % of both (p = 0.031); 50 % of it is left"),
            "{text}"
        );
    }

    #[test]
    fn the_bars_are_drawn_and_named() {
        let switches = modeled();
        let svg = bars(&switches).into_string();
        assert!(svg.contains("switch by pipe") && !svg.contains("NaN"), "{svg}");
        let (_, sentence, _) = headline(&switches);
        // The first condition, not the one that stands out: 1.00 us, and 1.5 more.
        assert!(sentence.contains("pre-emption by futex") && sentence.contains("1.50 µs more"), "{sentence}");
    }
}
