//! Manual pages: the options as clap_mangen formats them, with the sections that it does not know around them.

use clap_mangen::Man;
use clap_mangen::roff::{Inline, Roff, bold, roman};
use regex_lite::Regex;

use super::{Verb, typed};
use crate::args::reference::{ENVIRONMENT, EXITS, FILES, Table};

/// Date of the pages: that of the version that they describe. Readers of manual pages expect one.
const DATE: &str = "2026-11-28";

/// Returns the manual page of `verb`, which is one of `all`.
pub fn page(verb: &Verb, all: &[Verb]) -> String {
    let source = format!("isochrome {}", verb.command.get_version().unwrap_or_default());
    let man = Man::new(verb.command.clone()).title(verb.page()).date(DATE).source(source).manual("isochrome");
    let mut notes = Roff::new();
    if !verb.help.notes.is_empty() {
        notes.control("PP", []).text(inline(&verb.help.notes));
    }
    let has_inner = verb.command.get_subcommands().any(|verb| !verb.is_hide_set());
    let mut page = Vec::new();
    man.render_title(&mut page)
        .and_then(|()| man.render_name_section(&mut page))
        .and_then(|()| man.render_synopsis_section(&mut page))
        .and_then(|()| man.render_description_section(&mut page))
        .and_then(|()| notes.to_writer(&mut page))
        .and_then(|()| man.render_options_section(&mut page))
        .and_then(|()| if has_inner { man.render_subcommands_section(&mut page) } else { Ok(()) })
        .and_then(|()| ours(verb, all).to_writer(&mut page))
        .expect("memory can be written");
    tidied(&String::from_utf8(page).expect("a page is text"))
}

/// Returns `page` with one preamble instead of one for each section, without empty lines between two line breaks, of which mandoc(1) warns,
/// and with bold type instead of backticks.
fn tidied(page: &str) -> String {
    let preamble = Roff::new().render();
    let page = page.replace(&preamble, "").replace(".br\n\n.br\n", ".sp\n");
    let typed = Regex::new("`([^`]+)`").expect("a valid pattern");
    preamble + &typed.replace_all(&page, r"\fB${1}\fR")
}

/// Returns the sections that clap_mangen does not make.
fn ours(verb: &Verb, all: &[Verb]) -> Roff {
    let mut page = Roff::new();
    if !verb.help.examples.is_empty() {
        page.control("SH", ["EXAMPLES"]).control("EX", []);
        for example in &verb.help.examples {
            page.text([roman(example)]);
        }
        page.control("EE", []);
    }
    for (title, tables) in [("FILES", FILES), ("ENVIRONMENT", ENVIRONMENT), ("EXIT STATUS", EXITS)] {
        section(&mut page, title, tables, &verb.path);
    }
    page.control("SH", ["SEE ALSO"]);
    let related = verb.related(all);
    for (number, other) in related.iter().enumerate() {
        let end = if number + 1 == related.len() { "(1)" } else { "(1)," };
        page.control("BR", [other.as_str(), end]);
    }
    page
}

/// Adds a section with the entries of `tables` that concern the verb at `path`; the page of the command itself has all of them, by table.
fn section(page: &mut Roff, title: &str, tables: &[Table], path: &str) {
    if tables.iter().all(|table| table.of(path).next().is_none()) {
        return;
    }
    page.control("SH", [title]);
    for table in tables {
        if path.is_empty() {
            page.control("SS", [table.title]).text(inline(table.about));
        }
        for entry in table.of(path) {
            page.control("TP", []).text([bold(entry.name)]).text(inline(entry.meaning));
        }
    }
}

/// Returns `text` with bold type for the parts in backticks.
fn inline(text: &str) -> Vec<Inline> {
    typed(text).map(|(is_typed, piece)| if is_typed { bold(piece) } else { roman(piece) }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_has_files_environment_exit_status_and_the_way_to_others() {
        let all = Verb::all();
        assert!(all.iter().any(|verb| verb.page() == "isochrome-lab-filter"), "sub-verbs have pages");
        for verb in &all {
            let (name, text) = (verb.page(), page(verb, &all));
            let titles: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix(".SH ")).collect();
            for title in [
                "NAME",
                "SYNOPSIS",
                "DESCRIPTION",
                "OPTIONS",
                "FILES",
                "ENVIRONMENT",
                "\"EXIT STATUS\"",
                "\"SEE ALSO\"",
            ] {
                assert_eq!(titles.iter().filter(|found| **found == title).count(), 1, "{name}: {title} of {titles:?}");
            }
            assert!(!text.contains('`') && !text.contains(".br\n\n"), "{name}");
        }
    }

    #[test]
    fn what_is_typed_is_bold() {
        let page = tidied("see `isochrome ps`\n.br\n\n.br\nmore\n");
        assert!(page.ends_with("see \\fBisochrome ps\\fR\n.sp\nmore\n"), "{page}");
    }
}
