//! Suggests command lines: after a command line that does not parse, and after an error that has no better hint.
//!
//! The examples are those of the help, so that there is one definition of them.

use std::ffi::OsString;
use std::io::IsTerminal;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, CommandFactory};

use crate::args::Arguments;

/// Formats an error of the parser, with a command line that parses in place of clap's reference to the help.
pub fn text(error: &clap::Error, words: &[OsString]) -> String {
    let rendered = error.render();
    let mut text = if std::io::stderr().is_terminal() { rendered.ansi().to_string() } else { rendered.to_string() };
    let asks_for_help = error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;
    if asks_for_help {
        return text;
    }
    if let Some(at) = text.find("\nFor more information, try") {
        text.truncate(at);
    }
    text + &format!("  hint: {}\n", instead(error, words))
}

/// Returns a hint that ends with a command line for the verb in `words`, to follow an error that says what is wrong but not what to do.
pub fn example_hint(words: &[OsString]) -> String {
    format!("an example is: {}", example(&words_of(words), ""))
}

/// Returns the command line `words` with `value` in place of each word that is `word`, as a shell reads it.
pub fn again(words: &[OsString], word: &str, value: &str) -> String {
    let words = words_of(words).into_iter().map(|it| if it == word { value.to_owned() } else { it });
    words.map(|word| quoted(&word)).collect::<Vec<_>>().join(" ")
}

/// Returns the command line `words` with the option `name` set to `value`, as a shell reads it.
pub fn with_option(words: &[OsString], name: &str, value: &str) -> String {
    let (mut words, mut kept) = (words_of(words).into_iter(), Vec::new());
    while let Some(word) = words.next() {
        if word == name {
            words.next();
        } else if !word.strip_prefix(name).is_some_and(|rest| rest.starts_with('=')) {
            kept.push(quoted(&word));
        }
    }
    format!("{} {name} {}", kept.join(" "), quoted(value))
}

/// Returns `word` as a shell reads it.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "-_./:,=@%+".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

/// Returns the command line to type instead of `words`.
fn instead(error: &clap::Error, words: &[OsString]) -> String {
    let words = words_of(words);
    if let Some(fixed) = verb_first(&words).filter(|fixed| parses(fixed)) {
        return format!("the verb comes first: {}", fixed.join(" "));
    }
    let named = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        // The most similar one is the last.
        Some(ContextValue::Strings(texts)) => texts.last().cloned(),
        _ => None,
    };
    if let (Some(meant), Some(typed)) = (named(ContextKind::SuggestedSubcommand), named(ContextKind::InvalidSubcommand))
    {
        let fixed: Vec<String> =
            words.iter().map(|word| if *word == typed { meant.clone() } else { word.clone() }).collect();
        return if parses(&fixed) { fixed.join(" ") } else { example(&fixed, "") };
    }
    let option = named(ContextKind::SuggestedArg).or_else(|| named(ContextKind::InvalidArg)).unwrap_or_default();
    let option = option.split([' ', '=']).next().filter(|name| name.starts_with('-')).unwrap_or_default();
    format!("an example is: {}", example(&words, option))
}

fn words_of(words: &[OsString]) -> Vec<String> {
    let mut words: Vec<String> = words.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    if let Some(own) = words.first_mut() {
        *own = "isochrome".to_owned();
    }
    words
}

fn parses(words: &[String]) -> bool {
    Arguments::of(words.iter().map(OsString::from)).is_ok()
}

/// Returns `words` with the verb in front of the options that were given before it; `None` if there are none, or no verb.
fn verb_first(words: &[String]) -> Option<Vec<String>> {
    let at = words.iter().position(|word| Arguments::command().find_subcommand(word).is_some())?;
    (at > 1).then(|| {
        let mut fixed = words.to_vec();
        let verb = fixed.remove(at);
        fixed.insert(1, verb);
        fixed
    })
}

/// Returns an example for the verb in `words`, preferably one with `option`; the call of the help if the help has no examples for it.
fn example(words: &[String], option: &str) -> String {
    let mut command = Arguments::command();
    let (mut path, mut examples) = ("isochrome".to_owned(), Vec::new());
    for word in &words[1.min(words.len())..] {
        let Some(verb) = command.find_subcommand(word).cloned() else { break };
        path = format!("{path} {}", verb.get_name());
        examples.splice(0..0, examples_of(&verb));
        command = verb;
    }
    examples
        .retain(|line: &String| line.strip_prefix(&path).is_some_and(|rest| rest.is_empty() || rest.starts_with(' ')));
    let with_option = examples.iter().find(|line| !option.is_empty() && line.split(' ').any(|word| word == option));
    with_option.or(examples.first()).cloned().unwrap_or_else(|| format!("{path} --help"))
}

/// Returns the command lines in the help of `verb`, each up to its first pipe, redirection or separator.
fn examples_of(verb: &Command) -> Vec<String> {
    let help = verb.get_after_help().map(ToString::to_string).unwrap_or_default();
    let lines = help.lines().filter_map(|line| line.strip_prefix("  ")).filter(|line| line.starts_with("isochrome "));
    lines.map(|line| line.split([';', '|', '<', '>', '&']).next().unwrap_or_default().trim().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(line: &str) -> String {
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        text(&Arguments::of(words.clone()).expect_err(line), &words)
    }

    #[test]
    fn a_line_that_does_not_parse_is_answered_with_one_that_does() {
        for (line, hint) in [
            ("isochrome --colors 0-3 exec true", "the verb comes first: isochrome exec --colors 0-3 true"),
            ("isochrome recolour 12 --colors 0-3", "isochrome recolor 12 --colors 0-3"),
            ("isochrome pallete", "isochrome palette"),
            ("isochrome lab crdp", "isochrome lab crpd"),
            ("isochrome exec --colors 0,1", "an example is: isochrome exec --colors 0-3 ./control --rate 1000"),
            ("isochrome palette --memory lots", "an example is: isochrome palette --save --memory 4G"),
            (
                "isochrome plan",
                "an example is: isochrome plan examples/kim2013-table1.json --cores 4 --memory 1G --copies 4",
            ),
        ] {
            let text = told(line);
            assert!(text.ends_with(&format!("  hint: {hint}\n")), "{line}: {text}");
            assert!(!text.contains("For more information"), "{text}");
        }
    }

    #[test]
    fn a_command_line_is_said_again_with_another_value() {
        let words: Vec<OsString> =
            ["./isochrome", "plan", "my tasks.json", "--cores", "2", "--json"].map(Into::into).into();
        assert_eq!(again(&words, "2", "N"), "isochrome plan 'my tasks.json' --cores N --json");
        assert_eq!(with_option(&words, "--cores", "3"), "isochrome plan 'my tasks.json' --json --cores 3");
        assert_eq!(with_option(&words[..2], "--cores", "3"), "isochrome plan --cores 3");
        assert_eq!(quoted("it's"), "'it'\\''s'");
    }

    /// Splits `line` into words as a shell does, with a number in place of the output of a command.
    fn shell_words(line: &str) -> Vec<String> {
        let (mut words, mut word, mut quoted, mut depth) = (Vec::new(), String::new(), false, 0);
        for c in line.replace('$', "").chars() {
            match c {
                '\'' => quoted = !quoted,
                '(' if !quoted => depth += 1,
                ')' if !quoted => {
                    depth -= 1;
                    word = "4711".to_owned();
                }
                ' ' if !quoted && depth == 0 => words.push(std::mem::take(&mut word)),
                _ => word.push(c),
            }
        }
        words.push(word);
        words
    }

    /// The tool's own parser accepts what the tool suggests after each mistake that `tests/mistakes.rs` makes, with a number for a process.
    #[test]
    fn every_command_line_that_a_message_suggests_parses() {
        let page = include_str!("../../../docs/results/mistakes.md");
        let hints = page.lines().filter(|line| line.trim_start().starts_with("hint: "));
        let suggested = hints.flat_map(|line| {
            line.split("isochrome ").skip(1).zip(line.match_indices("isochrome ")).map(|(rest, (at, _))| {
                // In a sentence a command line stands between backquotes; alone it goes to the end of the line.
                let end = if line[..at].ends_with('`') { rest.find('`') } else { None };
                format!("isochrome {}", &rest[..end.unwrap_or(rest.len())])
            })
        });
        let mut count = 0;
        for line in suggested {
            let words = shell_words(&line.replace("PID", "4711"));
            assert!(parses(&words), "{line}");
            count += 1;
        }
        assert!(count >= 20, "{count} command lines");
    }

    /// Command lines that the help gives as examples parse, with numbers in place of the output of commands.
    #[test]
    fn every_example_of_the_help_parses() {
        let mut commands = vec![Arguments::command()];
        let mut count = 0;
        while let Some(command) = commands.pop() {
            commands.extend(command.get_subcommands().cloned());
            for example in examples_of(&command) {
                let words = shell_words(&example);
                assert!(Arguments::of(words.iter().map(OsString::from)).is_ok(), "{example}");
                count += 1;
            }
        }
        assert!(count > 50, "{count} examples");
    }
}
