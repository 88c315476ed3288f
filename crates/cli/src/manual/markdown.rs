//! The reference as Markdown, for the book. It is stored in `docs/reference`.

use std::fmt::Write as _;

use clap::Arg;
use regex_lite::Regex;

use super::{Verb, typed};
use crate::args::GROUPS;
use crate::args::reference::{ENVIRONMENT, EXITS, Entry, FILES, Table};

/// First line of every page, for whoever opens the file.
const MADE: &str = "<!-- Made by `isochrome generate reference`; changes belong into crates/cli/src/args. -->\n\n";

/// Returns the pages, each with its path in the folder of the reference.
pub fn pages() -> Vec<(String, String)> {
    let all = Verb::all();
    let mut pages = vec![("verbs.md".to_owned(), index(&all))];
    for (_, names) in GROUPS {
        for name in names {
            pages.push((format!("verbs/{name}.md"), verb_page(name, &all)));
        }
    }
    for (file, title, about, tables) in [
        (
            "environment.md",
            "Environment",
            "Environment variables that the tool reads, or sets for programs.",
            ENVIRONMENT,
        ),
        ("files.md", "Files", "Files and interfaces of the kernel that the tool reads, writes or changes.", FILES),
        ("exit-codes.md", "Exit codes", "Meaning of the exit code of a command.", EXITS),
    ] {
        pages.push((file.to_owned(), tables_page(title, about, tables)));
    }
    pages
}

fn index(all: &[Verb]) -> String {
    let mut page = format!("# Verbs\n\n{MADE}");
    page += "`isochrome VERB --help` says the same at the terminal, and `man isochrome-VERB` once `isochrome generate man` has written the pages. See \
             also [environment](environment.md), [files](files.md), [exit codes](exit-codes.md) and [JSON](json.md).\n";
    for (title, names) in GROUPS {
        let _ = write!(page, "\n## {title}\n\n| | |\n|---|---|\n");
        for name in names {
            for verb in all.iter().filter(|verb| verb.path.split(' ').next() == Some(name)) {
                let anchor = if verb.path == **name { String::new() } else { format!("#{}", verb.page()) };
                let _ = writeln!(page, "| [`{}`](verbs/{name}.md{anchor}) | {} |", verb.path, prose(&verb.about()));
            }
        }
    }
    page
}

/// Returns the page of the verb `name` with its sub-verbs.
fn verb_page(name: &str, all: &[Verb]) -> String {
    let mut page = String::new();
    for verb in all.iter().filter(|verb| verb.path.split(' ').next() == Some(name)) {
        let is_first = verb.path == name;
        let _ = write!(page, "{}# {}\n\n", if is_first { "" } else { "\n#" }, verb.name());
        if is_first {
            page += MADE;
        }
        describe(verb, &mut page);
    }
    page += "\n## Exit codes, environment and files\n\n| exit code | |\n|---|---|\n";
    let of = |tables: &'static [Table]| tables.iter().flat_map(|table| table.of(name));
    of(EXITS).for_each(|entry| row(entry, &mut page));
    for (kind, file, tables) in [("Environment", "environment", ENVIRONMENT), ("Files", "files", FILES)] {
        let names: Vec<String> = of(tables).map(|entry| code(entry.name)).collect();
        let _ = write!(page, "\n[{kind}](../{file}.md): {}.\n", names.join(", "));
    }
    page
}

fn describe(verb: &Verb, page: &mut String) {
    let command = &verb.command;
    let _ = write!(page, "{}.\n\n", prose(verb.about().trim_end_matches('.')));
    verb.usage().iter().for_each(|line| page.push_str(&format!("    {line}\n")));
    let long = command.get_long_about().map(ToString::to_string).unwrap_or_default();
    let long = long.split_once("\n\n").map_or("", |(_, rest)| rest);
    for note in long.split("\n\n").chain([verb.help.notes.as_str()]).filter(|note| !note.is_empty()) {
        let _ = write!(page, "\n{}\n", prose(note));
    }
    if !verb.help.examples.is_empty() {
        page.push_str("\n**Examples**\n\n");
        verb.help.examples.iter().for_each(|line| page.push_str(&format!("    {line}\n")));
    }
    let is_shown = |arg: &&Arg| !arg.is_hide_set() && !["help", "version"].contains(&arg.get_id().as_str());
    for (title, positional) in [("Arguments", true), ("Options", false)] {
        let mut shown =
            command.get_arguments().filter(is_shown).filter(|arg| arg.is_positional() == positional).peekable();
        if shown.peek().is_some() {
            let _ = write!(page, "\n**{title}**\n\n");
        }
        shown.for_each(|arg| argument(arg, page));
    }
}

fn argument(arg: &Arg, page: &mut String) {
    let help = arg.get_long_help().or(arg.get_help()).map(ToString::to_string).unwrap_or_default();
    let _ = write!(page, "- {}: {}", names(arg), prose(&help.replace('\n', " ")));
    let defaults: Vec<String> =
        arg.get_default_values().iter().map(|value| format!("`{}`", value.to_string_lossy())).collect();
    if arg.get_action().takes_values() && !defaults.is_empty() {
        let _ = write!(page, " [default: {}]", defaults.join(" "));
    }
    page.push('\n');
    if arg.get_action().takes_values() {
        for value in arg.get_possible_values().iter().filter(|value| !value.is_hide_set()) {
            let meaning = value.get_help().map(|help| format!(": {}", prose(&help.to_string()))).unwrap_or_default();
            let _ = writeln!(page, "  - `{}`{meaning}", value.get_name());
        }
    }
}

/// Returns all names of an argument, with the names of its values.
fn names(arg: &Arg) -> String {
    let values = arg.get_value_names().unwrap_or_default();
    let values: Vec<String> = values.iter().map(ToString::to_string).collect();
    if arg.is_positional() {
        return format!("`{}`", values.join(" "));
    }
    let value = if arg.get_action().takes_values() { format!(" {}", values.join(" ")) } else { String::new() };
    let mut names: Vec<String> = arg.get_short().map(|name| format!("`-{name}{value}`")).into_iter().collect();
    names.extend(arg.get_long().map(|name| format!("`--{name}{value}`")));
    names.extend(arg.get_visible_aliases().unwrap_or_default().iter().map(|name| format!("`--{name}{value}`")));
    names.join(", ")
}

fn tables_page(title: &str, about: &str, tables: &[Table]) -> String {
    let mut page = format!("# {title}\n\n{MADE}{about}\n");
    for table in tables {
        let _ = write!(page, "\n## {}\n\n{}\n\n| | | verbs |\n|---|---|---|\n", table.title, table.about);
        for entry in table.entries {
            let verbs: Vec<String> = entry.verbs.iter().map(|verb| link(verb)).collect();
            let verbs = if verbs.is_empty() { "all".to_owned() } else { verbs.join(", ") };
            let _ = writeln!(page, "| {} | {} | {verbs} |", code(entry.name), prose(entry.meaning));
        }
    }
    page
}

fn row(entry: &Entry, page: &mut String) {
    let _ = writeln!(page, "| {} | {} |", code(entry.name), prose(entry.meaning));
}

/// Formats `names`, which may be several with commas between them, as code.
fn code(names: &str) -> String {
    names.split(", ").map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

/// Returns a link to the page of `verb`, which may have a sub-verb.
fn link(verb: &str) -> String {
    if let Some(verb) = verb.strip_prefix('!') {
        return format!("all but {}", link(verb));
    }
    match verb.split_once(' ') {
        Some((first, _)) => format!("[{verb}](verbs/{first}.md#isochrome-{})", verb.replace(' ', "-")),
        None => format!("[{verb}](verbs/{verb}.md)"),
    }
}

/// Returns plain text as Markdown: code and options stay as they are, and characters that Markdown would interpret are escaped.
fn prose(text: &str) -> String {
    let option = Regex::new("--[a-z][a-z-]*").expect("a valid pattern");
    let signs = Regex::new(r"[<*|]").expect("a valid pattern");
    let plain = |piece| option.replace_all(&signs.replace_all(piece, r"\${0}"), "`${0}`").into_owned();
    typed(text).map(|(is_typed, piece)| if is_typed { format!("`{piece}`") } else { plain(piece) }).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    use super::*;

    #[test]
    fn the_reference_in_the_book_is_what_the_tool_writes() {
        const REMEDY: &str = "cargo run -p isochrome-cli -- generate reference docs/reference";
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference");
        let pages = pages();
        for (path, text) in &pages {
            let found = fs::read_to_string(folder.join(path)).unwrap_or_default();
            assert!(found == *text, "docs/reference/{path} is not what the definition says; {REMEDY}");
        }
        let written: BTreeSet<&str> = pages.iter().filter_map(|(path, _)| path.strip_prefix("verbs/")).collect();
        for entry in fs::read_dir(folder.join("verbs")).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            assert!(written.contains(name.as_str()), "docs/reference/verbs/{name}: there is no such verb");
        }
    }

    #[test]
    fn what_is_typed_stays_and_signs_of_markdown_are_escaped() {
        assert_eq!(prose("a < b, `x*y` | *, --of-no"), "a \\< b, `x*y` \\| \\*, `--of-no`");
        assert_eq!(code("/a, /b"), "`/a`, `/b`");
    }
}
