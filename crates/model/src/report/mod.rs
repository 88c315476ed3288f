//! Evidence made readable: one self-contained HTML file, or a table for the terminal.
//!
//! Both are pure functions of the [`Evidence`]. The HTML needs neither scripts nor anything outside itself; figures are inline
//! SVG that takes its colors from the style sheet, so the same file serves light, dark, a phone and paper.

mod cache;
pub mod chart;
pub mod conflicts;
pub mod crpd;
pub mod figure;
pub mod flood;
mod format;
pub mod heat;
pub mod interference;
mod kernels;
mod machine;
pub mod map;
pub mod net;
mod palette;
mod reading;
mod retention;
pub mod run;
pub mod switch;
pub mod text;
pub mod watch;
pub mod workload;

use maud::{DOCTYPE, Markup, PreEscaped, html};

use crate::evidence::{Condition, Evidence};
use chart::{Dash, Look};
use reading::{FLOODED, Kernel, Standing};

pub use retention::retention_sentence;

/// Whether the experiments of `evidence` say anything: whether own colors help, or that they bring nothing, in at least one setting.
pub fn is_conclusive(evidence: &Evidence) -> bool {
    let kernels = reading::kernels(evidence);
    let standing = reading::headline(evidence, &kernels).0;
    matches!(standing, Some(reading::Standing::Holds | reading::Standing::NoGain))
}

/// The report on `evidence` as one HTML file.
pub fn html(evidence: &Evidence) -> String {
    let kernels = reading::kernels(evidence);
    let watched_only = is_watched_only(evidence);
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                meta name="generator" content=(format!("isochrome {}", evidence.isochrome));
                title { "isochrome: " (evidence.machine.cpu_model) }
                style { (PreEscaped(include_str!("style.css"))) }
            }
            body {
                (verdict(evidence, &kernels))
                main {
                    (run::section(evidence))
                    (watch::section(evidence))
                    (machine::section(evidence))
                    @if evidence.run.is_none() && !watched_only {
                        div.pair { (cache_section(evidence, &kernels)) (palette::section(evidence)) }
                        (kernels::unpredictability(evidence, &kernels))
                        (kernels::long_jobs(evidence, &kernels))
                        (kernels::left_in_cache(evidence, &kernels))
                        (conflicts::section(evidence))
                        (crpd::section(evidence))
                        (switch::section(evidence))
                        (interference::section(evidence))
                        (flood::section(evidence))
                        (net::section(evidence))
                        (workload::section(evidence))
                    }
                    (origin(evidence))
                    @if evidence.run.is_none() && !watched_only { (glossary()) }
                }
            }
        }
    };
    // No control character means anything in HTML, and SVG forbids them.
    page.into_string().replace(|c: char| c.is_control() && c != '\n', " ")
}

/// Whether it says what tasks did, and nothing of colors.
fn is_watched_only(evidence: &Evidence) -> bool {
    !evidence.watches.is_empty() && evidence.experiments.is_empty() && evidence.palette.is_none()
}

/// How lines of a condition look: solid, dotted and dashed as in [Liedtke1997, Figure 4].
fn look(condition: Condition) -> Look {
    let (class, dash) = match condition {
        Condition::Alone => ("alone", Dash::Thin),
        Condition::Unpartitioned => ("unpartitioned", Dash::Solid),
        Condition::Partitioned => ("partitioned", Dash::Dotted),
        Condition::SingleWriter => ("single-writer", Dash::Dashed),
    };
    Look { class, dash }
}

/// A table that may be wider than the screen: it scrolls, the page does not.
fn scroll(table: Markup) -> Markup {
    html! { div.scroll tabindex="0" { (table) } }
}

fn tag(standing: &Standing) -> Markup {
    match standing {
        Standing::Holds => html! { span.tag.holds { "✓ holds" } },
        Standing::Violated => html! { span.tag.doubt { "✗ violated" } },
        Standing::NoGain => html! { span.tag { "= no gain" } },
        Standing::Inconclusive(why) if why.is_empty() => html! { span.tag.doubt { "? inconclusive" } },
        Standing::Inconclusive(why) => html! { span.tag.doubt title=(why) { "? inconclusive" } },
    }
}

fn verdict(evidence: &Evidence, kernels: &[Kernel<'_>]) -> Markup {
    let (standing, sentence, basis) = reading::headline(evidence, kernels);
    let machine = &evidence.machine;
    let altered = evidence.fingerprint != machine.fingerprint();
    html! {
        header {
            p.eyebrow {
                "isochrome · " @if evidence.run.is_some() { "programs against their bounds on " } @else if is_watched_only(evidence) { "what tasks did on " } @else { "what own cache colors are worth on " }
                b { (machine.cpu_model) }
            }
            h1 { (sentence) }
            p.basis {
                @if let Some(standing) = &standing { (tag(standing)) " " }
                (basis)
            }
            @if !kernels.is_empty() { (overview(kernels)) }
            @if altered || !evidence.warnings.is_empty() {
                section.warnings aria-label="Warnings" {
                    h2 { "Mind when reading" }
                    ol {
                        @if altered {
                            li { "The fingerprint in this evidence is not that of the machine it describes: one of them was changed." }
                        }
                        @for warning in &evidence.warnings { li { (warning) } }
                    }
                }
            }
        }
    }
}

/// One row per kernel at its biggest effect.
fn overview(kernels: &[Kernel<'_>]) -> Markup {
    let rows: Vec<_> = kernels.iter().filter_map(|kernel| Some((kernel, kernel.biggest_effect()?))).collect();
    let ratios = rows.iter().flat_map(|(_, reading)| FLOODED.iter().filter_map(|&c| reading.median(c)));
    let (_, largest) = chart::extent(ratios.chain([1.0]));
    html! {
        (scroll(html! {
            table.overview {
                caption {
                    "Each kernel where own colors change most: what the median job takes more than the shortest undisturbed one; below "
                    "it, how much of the task’s cache was lost before"
                }
                thead {
                    tr {
                        th scope="col" { "kernel" }
                        th.strip scope="col" aria-hidden="true" {}
                        @for condition in FLOODED { th.number scope="col" { (chart::sample(look(condition))) br; (reading::name(condition)) } }
                    }
                }
                tbody {
                    @for (kernel, reading) in &rows {
                        tr {
                            th scope="row" {
                                (kernel.title()) small { (kernel.size_text(reading.size)) " " (tag(&reading.standing())) }
                            }
                            td.strip { (strip(reading, largest)) }
                            @for condition in FLOODED {
                                td.number {
                                    (reading.median(condition).map_or(format::DASH.to_owned(), format::overhead))
                                    @if let Some(lost) = reading.lost(condition) { small { (format::share(lost)) " lost" } }
                                }
                            }
                        }
                    }
                }
            }
        }))
    }
}

/// The conditions of one reading as dots on a logarithmic line from 1 to `largest`.
fn strip(reading: &reading::Reading<'_>, largest: f64) -> Markup {
    let x = |ratio: f64| chart::at(6.0 + 148.0 * (ratio.ln() / largest.ln().max(1e-9)).clamp(0.0, 1.0));
    let dots: Vec<_> = FLOODED.iter().filter_map(|&c| Some((c, reading.median(c)?))).collect();
    let (low, high) = chart::extent(dots.iter().map(|dot| dot.1));
    html! {
        @if !dots.is_empty() {
            svg.strip viewBox="0 0 160 14" aria-hidden="true" {
                line.grid x1="6" y1="7" x2="154" y2="7" {}
                line.span x1=(x(low)) y1="7" x2=(x(high)) y2="7" {}
                @for (condition, ratio) in &dots {
                    g class=(look(*condition).class) {
                        circle class=(if reading.doubt(*condition).is_some() { "mark hollow" } else { "mark" }) cx=(x(*ratio)) cy="7" r="4" {}
                    }
                }
            }
        }
    }
}

fn cache_section(evidence: &Evidence, kernels: &[Kernel<'_>]) -> Markup {
    let machine = &evidence.machine;
    let level = match &evidence.palette {
        Some(palette) => machine.data_level(palette.level),
        None => machine.cpus.first().and_then(|&cpu| machine.colorable_level(cpu)),
    };
    let shown =
        kernels.iter().filter_map(|kernel| Some((kernel, kernel.biggest_effect()?))).find_map(|(kernel, reading)| {
            let colors = &reading.experiment.conditions.get(&Condition::Partitioned)?.colors;
            (!colors.is_empty()).then(|| (kernel.title(), kernel.size_text(reading.size), colors.as_slice()))
        });
    html! {
        section id="cache" {
            h2 { "Who may use which part of the cache" }
            @match level.map(|level| (level, level.geometry.value)).filter(|(_, g)| machine.page_bytes.0 > 0 && g.set_count > 0 && g.ways > 0) {
                Some((level, geometry)) => {
                    // What was measured goes before what the size suggests: slices hide some of the colors.
                    @let found = evidence.palette.as_ref().map(|palette| palette.colors).filter(|&found| found > 0);
                    @let colors = found.unwrap_or(geometry.color_count(machine.page_bytes)).min(4096);
                    p {
                        "The L" (level.level) " of " (geometry.cache_bytes()) " has " (colors) " page colors. A band is one color: "
                        (format::grouped(geometry.set_count / u64::from(colors))) " sets × " (geometry.ways) " ways × " (geometry.line_bytes) " = "
                        (crate::units::Bytes(geometry.cache_bytes().0 / u64::from(colors))) "; across it run the " (geometry.ways) " ways."
                        @match &shown {
                            Some((kernel, size, own)) => { " Drawn for: " (kernel) ", " (size) "; the task has " (count(own.len(), "color")) "." }
                            None => " No task was given colors.",
                        }
                    }
                    figure.wide { (cache::picture(&geometry, colors, shown.map_or(&[], |shown| shown.2))) }
                    p.key {
                        span { (swatch("task")) " only the task" }
                        span { (swatch("readers")) " the task; others read" }
                        span { (swatch("flooded")) " anyone, reading and writing" }
                    }
                }
                None => p { "No cache of this machine has more than one page color." }
            }
        }
    }
}

fn swatch(class: &str) -> Markup {
    html! { svg.swatch viewBox="0 0 22 12" width="22" height="12" aria-hidden="true" { rect class=(class) width="22" height="12" {} } }
}

fn count(n: usize, noun: &str) -> String {
    format!("{n} {noun}{}", if n == 1 { "" } else { "s" })
}

fn origin(evidence: &Evidence) -> Markup {
    html! {
        section id="origin" {
            h2 { "Where this comes from" }
            dl {
                dt { "Taken" } dd { (format::utc(evidence.taken_unix_s)) }
                dt { "By" } dd { "isochrome " (evidence.isochrome) ", " (evidence.schema) }
                dt { "Command" } dd { code { (command_line(&evidence.command)) } }
                dt { "Machine" } dd { code.hash { (evidence.fingerprint) } }
                dt { "Raw samples" }
                dd {
                    @if evidence.raw.is_empty() { "none kept" }
                    @for file in &evidence.raw {
                        // A leading ./ keeps a path relative, whatever it looks like.
                        div { a href=(format!("./{}", file.path)) { (file.path) } " " code.hash { (file.sha256) } }
                    }
                }
            }
        }
    }
}

/// The command as it could be typed into a shell.
fn command_line(words: &[String]) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./,:=+%@".contains(c);
    let quoted = words.iter().map(|word| {
        if !word.is_empty() && word.chars().all(plain) {
            word.clone()
        } else {
            format!("'{}'", word.replace('\'', r"'\''"))
        }
    });
    quoted.collect::<Vec<_>>().join(" ")
}

fn glossary() -> Markup {
    let terms = [
        (
            "Color",
            "The part of a cache that a page of memory can occupy. Pages of different colors never displace each other there.",
        ),
        ("Undisturbed time, c_min", "The shortest job while the co-runner only spins. All times are divided by it."),
        (
            "Unpredictability",
            "How much longer than c_min a job takes: +50 % means 1.5 times as long. The lines show the median job after a flood. The \
          99 % quantile, p99, is in the tables, and so is the paper’s c_max/c_min, where the conditions have equally many jobs.",
        ),
        (
            "Unpartitioned",
            "The task lives in ordinary memory; before each job or timeslice the co-runner fills the whole cache with dirty lines.",
        ),
        ("Partitioned", "The task has colors of its own; the co-runner does the same to all others."),
        (
            "Single-writer",
            "As partitioned, but others may also read in the task’s colors. They never make a line there dirty, so replacing it costs \
          no write-back.",
        ),
        (
            "Lost lines",
            "Before each job a few witness pages, in the same colors as the task’s memory, are walked. The time this takes tells which \
          share of their lines no longer comes from the colored cache level.",
        ),
        (
            "Quiet block",
            "Jobs run in blocks, each with control jobs that follow no flood. Only blocks whose control shows no interference from \
          outside count.",
        ),
        (
            "High-water mark",
            "The longest job seen. It is an observation: a longer one may come. It is given with the number of jobs it was seen in.",
        ),
        (
            "Exceeded by ≤",
            "With 95 % confidence, the probability that one further job takes longer than the high-water mark, if jobs are \
          independent and nothing changes: 1 − 0.05^(1/n) for n jobs.",
        ),
        ("Cycles", "Ticks of the constant-rate counter, not of the core’s clock."),
    ];
    html! {
        section id="glossary" {
            h2 { "How to read this" }
            dl.glossary { @for (term, meaning) in terms { dt { (term) } dd { (meaning) } } }
        }
    }
}
