//! The section of a report on the cost of handing the CPU from one thread to another: the table of [Sebek2002, Table 1], and bars of the direct
//! part and the cache part.

use std::fmt::Write;

use isochrome_model::evidence::figure::{Bar, Bars, Hue};
use isochrome_model::evidence::format::{DASH, p_value};
use isochrome_model::evidence::{Section, Standing};

use super::{Condition, Cost, Kind, Means, Row, Switches};
use crate::us;

/// Returns the name of a condition, such as `preemption by futex`. The name leaves out whether the cache is partitioned.
fn name(condition: Condition) -> String {
    let means = match condition.means {
        Means::Futex => "futex",
        Means::Pipe => "pipe",
        Means::Signal => "signal",
        Means::Timer => "timer",
    };
    let kind = match condition.kind {
        Kind::Preemption => "preemption by",
        Kind::Switch => "switch by",
    };
    format!("{kind} {means}")
}

fn headline(switches: &Switches) -> (Option<Standing>, String, String) {
    let basis =
        format!("{} conditions; each flood of L{} against spinning for as long.", switches.rows.len(), switches.level);
    // The row is chosen before anything is measured. Conditions are sorted, so it is a preemption by futex if preemptions are possible.
    match switches.rows.iter().find(|row| !row.condition.partitioned) {
        Some(row) if switches.is_conclusive() => {
            let (best, cache) = (us(row.best.cost_ns), us(row.cache_ns));
            let name = name(row.condition);
            let sentence = format!("A {name} costs {best} µs, and {cache} µs more after a flood of the cache.");
            (Some(Standing::Holds), sentence, basis)
        }
        _ => {
            let text = "The cost of passing the CPU through the cache cannot be concluded from this run.";
            (Some(Standing::Inconclusive), text.to_owned(), basis)
        }
    }
}

/// Returns the situations of `row` in the order of [Sebek2002, Table 1], each with its cost and its cache part. The cache part is three times
/// in ns: of the interrupt, of the resumption, and of both together; `None` if the situation has no cache part.
fn situations(row: &Row) -> Vec<(&'static str, Cost, Option<[f64; 3]>)> {
    let cache = Some([row.cache_interrupt_ns, row.cache_resume_ns, row.cache_ns]);
    if row.condition.partitioned {
        return vec![("flooded, colors apart", row.flooded, cache)];
    }
    vec![("best case", row.best, None), ("after spinning", row.control, None), ("flooded", row.flooded, cache)]
}

/// Returns the conclusion from `row`, as one sentence.
fn finding(switches: &Switches, row: &Row) -> String {
    let probability = row.p.map_or_else(String::new, |p| format!(" ({})", p_value(p)));
    let name = name(row.condition);
    if !row.has_cache_part() {
        return format!("{name}: no significant cache part{probability}");
    }
    let share = row.cache_ns / (row.cache_ns + row.best.cost_ns) * 100.0;
    let within = row.cache_interval_ns.map_or_else(String::new, |[low, high]| format!(" [{}, {}]", us(low), us(high)));
    let mut text =
        format!("{name}: the cache part is {} µs{within}, {share:.0} % of both{probability}", us(row.cache_ns));
    if let Some(own) = switches.partitioned(row) {
        let left = own.cache_ns / row.cache_ns * 100.0;
        let _ = write!(text, "; {left:.0} % of it is left if the flood keeps to other colors");
    }
    text
}

/// Returns the section of a report on the experiment.
pub fn section(switches: &Switches) -> Section {
    let cells = |row: &Row| {
        situations(row)
            .into_iter()
            .map(|(situation, cost, cache)| {
                let cache = cache.map_or_else(
                    || DASH.to_owned(),
                    |[interrupt, resume, both]| format!("{} ({}+{})", us(both), us(interrupt), us(resume)),
                );
                vec![
                    name(row.condition),
                    situation.to_owned(),
                    us(cost.interrupt_ns),
                    us(cost.resume_ns),
                    us(cost.cost_ns),
                    cache,
                    us(cost.cost_ns_max.value as f64),
                    format!("{}/{}", row.blocks_quiet, row.blocks),
                ]
            })
            .collect::<Vec<_>>()
    };
    let bar = |row: &Row| Bar {
        name: if row.condition.partitioned { "  colors apart".to_owned() } else { name(row.condition) },
        parts: [row.best.cost_ns, row.cache_ns],
        hue: if row.condition.partitioned { Hue::Partitioned } else { Hue::Unpartitioned },
        text: format!("{} + {}", us(row.best.cost_ns), us(row.cache_ns)),
    };
    let colors = switches.colors.map_or_else(String::new, |[own, all]| {
        format!(" With colors apart, floods keep to {} of {all} colors.", all - own)
    });
    let longest = switches.rows.first().map_or_else(String::new, |row| {
        format!(" The longest of {} handoffs each is an observation, not a bound.", row.best.cost_ns_max.n)
    });
    let open = switches.rows.iter().filter(|row| !row.condition.partitioned);
    Section::new("switch", "What passing the CPU costs", headline(switches), switches)
        .text(format!(
            "Two threads on one CPU. In a preemption the other thread has the higher priority and takes the CPU as soon as it is woken; in a \
             switch both have the same priority and wait for each other. Before each handoff the cache is flooded or, as the control, the \
             same time is spent spinning. The cache part is the cost after a flood less the cost after its control, with the parts of both \
             directions.{colors}{longest} [Sebek2002, Table 1]"
        ))
        .figure(Bars {
            title: "Direct part and cache part of passing the CPU".to_owned(),
            bars: switches.rows.iter().map(bar).collect(),
        })
        .table(
            &["", "situation", "interrupt, µs", "resume, µs", "cost, µs", "cache part, µs", "longest, µs", "blocks"],
            switches.rows.iter().flat_map(cells),
        )
        .findings(open.map(|row| finding(switches, row)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::switch::tests::modeled;
    use isochrome_report::chart::draw;

    /// Returns the text of `section` in lines so long that sentences are seldom broken.
    fn text(section: &Section) -> String {
        isochrome_report::text::section(section, 200)
    }

    #[test]
    fn the_table_has_both_parts_of_every_condition() {
        let text = text(&section(&modeled()));
        assert!(text.contains("preemption by futex") && text.contains("switch by pipe"), "{text}");
        // The direct part takes 1000 ns and the cache part 1500 ns; with colors apart, the cache part is half as long.
        assert!(text.contains("1.50 (0.50+1.00)"), "{text}");
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains("60 % of both (p = 0.031); 50 % of it is left"), "{text}");
    }

    #[test]
    fn the_bars_are_drawn_and_the_headline_is_of_the_first_condition() {
        let section = section(&modeled());
        let svg = draw(section.figures().next().unwrap()).0.into_string();
        assert!(svg.contains("switch by pipe") && !svg.contains("NaN"), "{svg}");
        // The headline is not about the switch by pipe, whose cache part has the larger share: 1.00 µs, and 1.50 µs more.
        assert!(section.headline.contains("preemption by futex") && section.headline.contains("1.50 µs more"));
    }
}
