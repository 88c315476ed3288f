//! Reports on evidence: one self-contained HTML file, text for the terminal, or Markdown for pages of results.
//!
//! All reports are pure functions of the [`Evidence`] and show its sections, whatever they are about. The HTML needs neither
//! scripts nor anything outside itself. Figures are inline SVG that takes its colors from the style sheet, so the same file
//! serves light, dark, a phone and paper.

mod cache;
pub mod chart;
mod data;
pub mod figure;
pub mod heat;
mod junit;
mod machine;
pub mod map;
mod markdown;
mod palette;
pub mod papers;
mod retention;
pub mod text;

use isochrome_model::evidence::format;
use isochrome_model::evidence::{Content, Evidence, Section, Standing, Table};
use isochrome_model::printable;
use maud::{DOCTYPE, Markup, PreEscaped, html};

pub use junit::junit;
pub use markdown::markdown;
pub use retention::retention_sentence;

/// Headline of evidence without a section.
const NOTHING: &str = "No experiment was run: this describes the machine only.";

/// Returns the report on `evidence` as one HTML file.
pub fn html(evidence: &Evidence) -> String {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                meta name="generator" content=(format!("isochrome {}", evidence.isochrome));
                title { "isochrome: " (evidence.machine.cpu_model) }
                style { (PreEscaped(include_str!("figure.css"))) (PreEscaped(include_str!("style.css"))) }
            }
            body {
                (verdict(evidence))
                main {
                    @for section in &evidence.sections { (body(section)) }
                    (machine::section(evidence))
                    @if let Some(palette) = &evidence.palette { (palette::section(palette)) }
                    (origin(evidence))
                }
            }
        }
    };
    // Control characters have no meaning in HTML, SVG forbids them, and others would order or hide the text around them.
    printable::lines(&page.into_string())
}

/// Wraps a table that may be wider than the screen, so that it scrolls and the page does not.
fn scroll(table: Markup) -> Markup {
    html! { div.scroll tabindex="0" role="region" aria-label="Table" { (table) } }
}

fn tag(standing: Standing) -> Markup {
    match standing {
        Standing::Holds => html! { span.tag.holds { "✓ holds" } },
        Standing::Violated => html! { span.tag.doubt { "✗ violated" } },
        Standing::NoGain => html! { span.tag { "= no gain" } },
        Standing::Inconclusive => html! { span.tag.doubt { "? inconclusive" } },
    }
}

/// Renders the head of the page: the conclusion of the first section, and the warnings.
fn verdict(evidence: &Evidence) -> Markup {
    let first = evidence.sections.first();
    let altered = evidence.fingerprint != evidence.machine.fingerprint();
    html! {
        header {
            p.eyebrow { "isochrome · on " b { (evidence.machine.cpu_model) } }
            h1 { (sentence(first.map_or(NOTHING, |section| &section.headline))) }
            @if let Some(section) = first {
                p.basis {
                    @if let Some(standing) = section.standing { (tag(standing)) " " }
                    (sentence(&section.basis))
                }
            }
            @if altered || !evidence.warnings.is_empty() {
                section.warnings aria-label="Warnings" {
                    h2 { "Mind when reading" }
                    ol {
                        @if altered {
                            li { "The fingerprint in this evidence is not that of the machine it describes: one of them was changed." }
                        }
                        @for warning in &evidence.warnings { li { (sentence(warning)) } }
                    }
                }
            }
        }
    }
}

/// Renders text in which code and names of programs stand between backticks. Text with an odd number of backticks is left as it is. A line does
/// not end between a number and its percent sign, or within a p-value.
fn sentence(text: &str) -> Markup {
    let text = text.replace(" %", "\u{a0}%").replace("p = ", "p\u{a0}=\u{a0}").replace("p < ", "p\u{a0}<\u{a0}");
    let parts: Vec<&str> = text.split('`').collect();
    if parts.len().is_multiple_of(2) {
        return html! { (text) };
    }
    html! { @for (at, part) in parts.iter().enumerate() { @if at % 2 == 1 { code { (part) } } @else { (part) } } }
}

fn body(section: &Section) -> Markup {
    html! {
        section id=(section.id) {
            h2 { (sentence(&section.title)) }
            p { @if let Some(standing) = section.standing { (tag(standing)) " " } (sentence(&section.headline)) " " (sentence(&section.basis)) }
            // A chunk begins with a heading, or with figures, which its tables and texts are about.
            @for chunk in section.content.chunk_by(|a, b| !matches!(b, Content::Heading(_)) && (!is_figure(b) || is_figure(a))) {
                @let (figures, others) = chunk.split_at(chunk.iter().take_while(|content| is_figure(content)).count());
                @match (figures, others) {
                    ([], _) => { @for other in others { (part(other)) } }
                    ([one], [_, ..]) => div.beside { (part(one)) div { @for other in others { (part(other)) } } },
                    _ => { div.figures { @for drawn in figures { (part(drawn)) } } @for other in others { (part(other)) } }
                }
            }
        }
    }
}

fn is_figure(content: &Content) -> bool {
    matches!(content, Content::Figure(_))
}

fn part(content: &Content) -> Markup {
    html! {
        @match content {
            Content::Heading(text) => h3 { (sentence(text)) },
            Content::Text(text) => p { (sentence(text)) },
            Content::Findings(found) => ul { @for finding in found { li { (sentence(finding)) } } },
            Content::Table(all) if all.reference => details { summary { "Numbers" } (table(all)) },
            Content::Table(shown) => { (table(shown)) }
            Content::Figure(drawn) => (data::with_own_data(drawn)),
        }
    }
}

fn table(table: &Table) -> Markup {
    let numbers: Vec<bool> = (0..table.columns.len()).map(|column| table.is_number(column)).collect();
    scroll(html! {
        table {
            thead { tr { @for (head, number) in table.columns.iter().zip(&numbers) { th.number[*number] scope="col" { (sentence(head)) } } } }
            tbody {
                @for row in &table.rows {
                    @if let [heading] = &row[..] {
                        tr.size { th colspan=(table.columns.len()) scope="rowgroup" { (sentence(heading)) } }
                    } @else {
                        tr { @for (cell, number) in row.iter().zip(&numbers) { td.number[*number] { (sentence(cell)) } } }
                    }
                }
            }
        }
    })
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
                        // A leading ./ makes the browser treat every path as relative.
                        div { a href=(format!("./{}", file.path)) { (file.path) } " " code.hash { (file.sha256) } }
                    }
                }
            }
        }
    }
}

/// Formats the command so that it can be pasted into a shell.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_between_backticks_is_code_and_stays_escaped() {
        assert_eq!(sentence("the median of `a<b>` falls").into_string(), "the median of <code>a&lt;b&gt;</code> falls");
        assert_eq!(sentence("an odd ` stays").into_string(), "an odd ` stays");
        assert_eq!(sentence("`x`").into_string(), "<code>x</code>");
    }
}
