//! Manual pages, the reference of the book, and completions, from the same definition as the parser.

#[cfg(test)]
mod examples;
mod markdown;
mod roff;

use std::path::Path;

use anyhow::Result;
use clap::{Command, CommandFactory};

use crate::args::{Arguments, GROUPS};
use crate::files;
use crate::verdict::Verdict;

/// Writes one manual page per verb into `folder`.
pub fn pages(folder: &Path) -> Result<Verdict> {
    let shown = folder.display();
    files::make_folder(folder)?;
    let all = Verb::all();
    for verb in &all {
        files::write(&folder.join(format!("{}.1", verb.page())), &roff::page(verb, &all))?;
    }
    eprintln!("manual pages written to {shown}; read one with: man {shown}/isochrome.1");
    Ok(Verdict::Holds)
}

/// Writes the pages of the reference into `folder`.
pub fn reference(folder: &Path) -> Result<Verdict> {
    for (path, text) in markdown::pages() {
        let path = folder.join(path);
        files::make_folder(path.parent().expect("a page lies in a folder"))?;
        files::write(&path, &text)?;
    }
    eprintln!("reference written to {}", folder.display());
    Ok(Verdict::Holds)
}

/// Prints the completion script for `shell`.
pub fn completions(shell: clap_complete::Shell) -> Result<Verdict> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "isochrome", &mut script);
    files::print_whole(&String::from_utf8_lossy(&script))?;
    Ok(Verdict::Holds)
}

/// A verb with its sub-verbs, as it is documented.
struct Verb {
    /// Words of the verb, such as `lab filter`; empty for the command itself.
    path: String,
    command: Command,
    /// The part of the verb's help after its options.
    help: Help,
}

impl Verb {
    /// Returns the command itself and all visible verbs, each before its sub-verbs.
    fn all() -> Vec<Verb> {
        // Every verb would get a sub-verb `help`.
        let mut command = Arguments::command().disable_help_subcommand(true);
        command.build();
        let mut found = Vec::new();
        Verb::add(String::new(), command, &mut found);
        found
    }

    fn add(path: String, command: Command, found: &mut Vec<Verb>) {
        let inner: Vec<Command> = command.get_subcommands().filter(|verb| !verb.is_hide_set()).cloned().collect();
        found.push(Verb { help: Help::of(&command), path: path.clone(), command });
        for command in inner {
            Verb::add(format!("{path} {}", command.get_name()).trim_start().to_owned(), command, found);
        }
    }

    /// Returns the command with the words of the verb, such as `isochrome lab filter`.
    fn name(&self) -> String {
        format!("isochrome {}", self.path).trim_end().to_owned()
    }

    /// Returns the name of the verb's manual page, such as `isochrome-lab-filter`.
    fn page(&self) -> String {
        self.name().replace(' ', "-")
    }

    /// Returns the description of the verb, a sentence without a full stop.
    fn about(&self) -> String {
        self.command.get_about().map(ToString::to_string).unwrap_or_default()
    }

    /// Returns the usage of the verb, in one line or several.
    fn usage(&self) -> Vec<String> {
        let usage = self.command.clone().render_usage().to_string();
        usage.trim_start_matches("Usage:").lines().map(|line| line.trim().to_owned()).collect()
    }

    /// Returns the names of manual pages to read next: of the parent verb, of the verb's sub-verbs, and of its group.
    fn related(&self, all: &[Verb]) -> Vec<String> {
        let outer = self.path.rsplit_once(' ').map_or("", |(outer, _)| outer);
        let first = self.path.split(' ').next().unwrap_or_default();
        let group = GROUPS.iter().find(|(_, verbs)| verbs.contains(&self.path.as_str())).map_or(&[][..], |(_, it)| it);
        let is_related = |other: &&Verb| {
            let is_inner = other.path.rsplit_once(' ').map_or("", |(outer, _)| outer) == self.path;
            other.path == outer || other.path == first || is_inner || group.contains(&other.path.as_str())
        };
        all.iter().filter(|other| other.path != self.path).filter(is_related).map(Verb::page).collect()
    }
}

/// The part of a verb's help after its options.
#[derive(Default)]
struct Help {
    /// Command lines, ready to be typed.
    examples: Vec<String>,
    /// Further notes, as one paragraph; may be empty.
    notes: String,
}

impl Help {
    /// Returns the part of the help of `command` after its options.
    fn of(command: &Command) -> Help {
        let text = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        let mut help = Help::default();
        for line in text.lines() {
            match line.strip_prefix("  ") {
                Some(example) => help.examples.push(example.to_owned()),
                // The table of exit codes says more.
                None if line.starts_with("Example") || line.starts_with("Exit codes:") => {}
                // Sentences are broken at the width of a terminal.
                None if help.notes.is_empty() => help.notes.push_str(line),
                None => help.notes += &format!(" {line}"),
            }
        }
        help
    }
}

/// Splits `text` at backticks into plain and typed pieces, each with whether it is typed.
fn typed(text: &str) -> impl Iterator<Item = (bool, &str)> {
    text.split('`').enumerate().map(|(number, piece)| (number % 2 == 1, piece)).filter(|(_, piece)| !piece.is_empty())
}
