//! Fits the help into 80 columns.

use clap::Command;

/// Width of the help, in columns.
const WIDTH: usize = 80;

/// Returns `command` with the examples in its help, and in the help of its verbs, broken into lines of at most [`WIDTH`] columns. The examples are
/// broken as a shell allows, so that they can still be copied.
pub fn fitted(command: Command) -> Command {
    let help = command.get_after_help().map(|help| broken(&help.to_string()));
    help.into_iter().fold(command, Command::after_help).mut_subcommands(fitted)
}

/// Breaks the lines of `help` that are examples and too long, at spaces outside quotes.
fn broken(help: &str) -> String {
    let mut lines = Vec::new();
    for line in help.lines() {
        let mut rest = line.to_owned();
        while line.starts_with("  ") && rest.chars().count() > WIDTH {
            let mut quoted = false;
            let spaces = rest.char_indices().filter(|(_, c)| {
                quoted ^= *c == '\'';
                *c == ' ' && !quoted
            });
            // The indentation is not a place to break, and ` \\` has to fit behind the rest.
            let within = |at: &usize| *at > 8 && rest[..*at].chars().count() <= WIDTH - 2;
            let Some(at) = spaces.map(|(at, _)| at).filter(within).last() else { break };
            let (now, later) = rest.split_at(at);
            lines.push(format!("{now} \\"));
            rest = format!("      {}", later.trim_start());
        }
        lines.push(rest);
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::args::Arguments;

    #[test]
    fn help_fits_80_columns_and_its_examples_can_be_copied() {
        let mut commands = vec![fitted(Arguments::command())];
        while let Some(mut command) = commands.pop() {
            command.build();
            commands.extend(command.get_subcommands().cloned());
            for help in [command.render_help(), command.render_long_help()] {
                for line in help.to_string().lines() {
                    // One word cannot be broken.
                    let fits = line.chars().count() <= WIDTH || !line.trim().contains(' ');
                    assert!(fits, "{}: {line}", command.get_name());
                }
            }
        }
        let example = "  isochrome compare --victim 'taskset -c 1 ./control' --neighbor 'taskset -c 1 ./batch' --measure wakeups -o report";
        let shown = broken(example);
        assert_eq!(shown.replace(" \\\n      ", " "), example);
        assert!(shown.lines().all(|line| line.chars().count() <= WIDTH), "{shown}");
    }
}
