//! The section on the machine, with the source of each fact.

use maud::{Markup, html};

use isochrome_model::evidence::figure::{Axis, Chart, Dash, Figure, Hue, Line, range_of};

use super::chart::draw;
use super::data::{number, with_data};
use isochrome_model::evidence::format;

use super::{retention_sentence, scroll};
use isochrome_model::evidence::{Evidence, Table};
use isochrome_model::machine::{CacheLevel, Fact, Holds, Retention, Source, Waiting};
use isochrome_model::units::{CpuId, Ns, format_list};

fn source(source: Source) -> Markup {
    let name = match source {
        Source::Sysfs => "sysfs",
        Source::Cpuid => "cpuid",
        Source::Measured => "measured",
        Source::Declared => "declared",
    };
    html! { small.source { (name) } }
}

/// Renders a fact as a table cell; a dash if it is unknown.
fn cell<T: Copy>(fact: Option<Fact<T>>, text: impl Fn(T) -> String) -> Markup {
    html! { td { @match fact { Some(fact) => { (text(fact.value)) (source(fact.source)) } None => (format::DASH) } } }
}

fn sharers(groups: &[Vec<CpuId>]) -> String {
    if groups.iter().all(|group| group.len() == 1) {
        return "one per CPU".to_owned();
    }
    let lists = groups.iter().map(|group| format_list(&group.iter().map(|cpu| cpu.0).collect::<Vec<_>>()));
    format!("CPUs {}", lists.collect::<Vec<_>>().join(" · "))
}

/// Whether CPUs were observed to share a level that is declared private to each CPU.
fn shared_against_declaration(level: &CacheLevel) -> bool {
    let declared_private = level.shared_by.value.iter().all(|group| group.len() == 1);
    declared_private && level.sharing_seen.is_some_and(|seen| seen.value)
}

fn level_name(level: &CacheLevel) -> String {
    let suffix = match level.holds {
        Holds::Data => "d",
        Holds::Instruction => "i",
        Holds::Unified => "",
    };
    format!("L{}{suffix}", level.level)
}

pub(super) fn section(evidence: &Evidence) -> Markup {
    let machine = &evidence.machine;
    let levels = &machine.levels;
    let cpus: Vec<u32> = machine.cpus.iter().map(|cpu| cpu.0).collect();
    let colors = |level: &CacheLevel| match machine.page_bytes.0 {
        0 => format::DASH.to_owned(),
        _ => level.geometry.value.color_count(machine.page_bytes).to_string(),
    };
    html! {
        section id="machine" {
            h2 { "The machine" }
            p {
                (machine.cpu_model) " (" (machine.architecture) "), CPUs " (format_list(&cpus)) ", pages of " (machine.page_bytes)
                @if let Some(hypervisor) = &machine.hypervisor { ", a virtual machine under " (hypervisor) }
                "."
                @if let Some(hz) = machine.counter_hz {
                    " Time is read from a counter of " (format::significant(hz.value as f64 / 1e6)) " MHz" (source(hz.source))
                    @if let Some(quantum) = machine.counter_quantum {
                        " that moves in steps of " (format::significant(quantum.value)) " ticks" (source(quantum.source))
                    }
                    "."
                }
                @if let Some(load) = machine.memory_load_ns {
                    " A dependent load from main memory takes " (format::nanoseconds(load.value)) (source(load.source)) "."
                }
            }
            @if levels.is_empty() { p { "Nothing is known about its caches." } } @else {
                (scroll(html! {
                    table.facts {
                        thead { tr { th scope="col" { "cache" } @for level in levels { th scope="col" { (level_name(level)) } } } }
                        tbody {
                            tr { th scope="row" { "size" } @for l in levels { (cell(Some(l.geometry), |g| g.cache_bytes().to_string())) } }
                            tr { th scope="row" { "ways × sets" } @for l in levels { td { (l.geometry.value.ways) " × " (format::grouped(l.geometry.value.set_count)) } } }
                            tr { th scope="row" { "line" } @for l in levels { td { (l.geometry.value.line_bytes) } } }
                            tr { th scope="row" { "page colors" } @for l in levels { td { (colors(l)) } } }
                            tr { th scope="row" { "shared by" } @for l in levels { td { (sharers(&l.shared_by.value)) (source(l.shared_by.source)) } } }
                            tr { th scope="row" { "sharing seen" } @for l in levels { (cell(l.sharing_seen, |seen| if seen { "yes" } else { "no" }.to_owned())) } }
                            tr { th scope="row" { "load" } @for l in levels { (cell(l.load_ns, format::nanoseconds)) } }
                            tr { th scope="row" { "refill of a color, clean" } @for l in levels { (cell(l.refill, |refill| format::nanoseconds(refill.clean_ns.0 as f64))) } }
                            tr { th scope="row" { "refill of a color, dirty" } @for l in levels { (cell(l.refill, |refill| format::nanoseconds(refill.dirty_ns.0 as f64))) } }
                        }
                    }
                }))
                div.figures {
                    @for level in levels.iter().filter(|level| !level.retention.is_empty()) { (retention(level)) }
                }
                @for level in levels.iter().filter(|level| shared_against_declaration(level)) {
                    p { (level_name(level)) " is declared private to each CPU, but CPUs were seen to evict each other’s lines." }
                }
                @if levels.iter().all(|level| level.retention.is_empty()) {
                    p { "How well the caches keep their contents was not measured." }
                }
            }
        }
    }
}

/// A wait, the worst CPU's median loss after it, and the lowest and the highest loss of all CPUs.
type Loss = (Ns, f64, f64, f64);

/// Returns the loss after each wait, in ascending order of the wait.
fn losses(retention: &[Retention], waiting: Waiting) -> Vec<Loss> {
    let mut samples: Vec<&Retention> = retention.iter().filter(|r| r.waiting == waiting && r.wait_ns.0 > 0).collect();
    samples.sort_by_key(|sample| sample.wait_ns);
    let of_wait = samples.chunk_by(|a, b| a.wait_ns == b.wait_ns);
    of_wait
        .map(|samples| {
            let (_, median) = range_of(samples.iter().map(|sample| sample.lost_median));
            let (low, _) = range_of(samples.iter().map(|sample| sample.lost_min));
            let (_, high) = range_of(samples.iter().map(|sample| sample.lost_max));
            (samples[0].wait_ns, median, low, high)
        })
        .collect()
}

fn retention(level: &CacheLevel) -> Markup {
    let name = level_name(level);
    let kinds = [(Waiting::Busy, "busy", Hue::Ink, Dash::Solid), (Waiting::Asleep, "asleep", Hue::Alone, Dash::Dotted)];
    let measured: Vec<_> = kinds
        .into_iter()
        .map(|(waiting, name, hue, dash)| (name, hue, dash, losses(&level.retention, waiting)))
        .filter(|(.., losses)| !losses.is_empty())
        .collect();
    let (shortest, longest) = range_of(measured.iter().flat_map(|m| m.3.iter().map(|loss| loss.0.0 as f64)));
    let time = |ns: f64| format::nanoseconds(ns).replace(".00", "").replace("10.0", "10");
    let line = |(name, hue, dash, losses): &(&str, Hue, Dash, Vec<Loss>)| {
        let points = losses.iter().map(|&(wait, median, ..)| (wait.0 as f64, median)).collect();
        let line = Line::new(name, *hue, *dash, points).marked();
        match dash {
            // Two bands over each other could not be told apart.
            Dash::Solid => {
                Line { band: losses.iter().map(|&(wait, _, low, high)| (wait.0 as f64, low, high)).collect(), ..line }
            }
            _ => line,
        }
    };
    let chart = Chart {
        title: format!("What {name} loses while its CPU touches nothing"),
        description: retention_sentence(level),
        x: Axis::log("wait", (shortest, longest), time),
        y: Axis::linear("share of lines gone (shaded: all samples while busy)", (0.0, 1.0), format::share),
        lines: measured.iter().map(line).collect(),
        rules: vec![],
    };
    let rows = measured.iter().flat_map(|(name, .., losses)| {
        losses.iter().map(|&(wait, median, low, high)| {
            let [median, low, high] = [median, low, high].map(number);
            vec![(*name).to_owned(), wait.0.to_string(), median, low, high]
        })
    });
    let columns = ["while", "wait, ns", "share gone: median", "lowest", "highest"].map(str::to_owned).to_vec();
    let numbers = Table { columns, rows: rows.collect(), reference: true };
    let figure = Figure::from(chart);
    let caption = html! { figcaption { "Retention of " (name) ". " (retention_sentence(level)) } };
    with_data(&format!("Retention of {name}"), draw(&figure), caption, (&numbers, &numbers))
}
