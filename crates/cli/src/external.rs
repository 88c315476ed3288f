//! Verbs that are programs of their own: `isochrome NAME` runs `isochrome-NAME` from PATH, as git and cargo find their subcommands.
//!
//! A verb of isochrome always comes first, so no program in PATH takes over `isochrome run`. Entries of PATH that are empty or relative are
//! not searched: they mean the current folder, where anybody may have put a program.

use std::env;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::CommandFactory as _;
use clap::error::ErrorKind;

use crate::args::{Arguments, SEPARATE};

/// Replaces this process by an external program if `words` name one. The parser has refused `words` with `error`.
///
/// The program gets this process's arguments, standard streams and signals, and its exit code is the command's. `isochrome help NAME` asks it for
/// `--help`. Returns only if no program was executed: the error message, or `None` if the words are simply wrong.
pub fn replace(words: &[OsString], error: &clap::Error) -> Option<String> {
    if error.kind() != ErrorKind::InvalidSubcommand {
        return None;
    }
    let help_of_program = [OsString::from("--help")];
    let (name, arguments) = match words {
        [_, help, name] if help == "help" => (name, &help_of_program[..]),
        [_, name, arguments @ ..] => (name, arguments),
        _ => return None,
    };
    // The refused word may be one that a verb of isochrome does not know, as in `isochrome lab sweep`.
    if !is_name(name) || Arguments::command().find_subcommand(name).is_some() {
        return None;
    }
    let mut program = OsString::from("isochrome-");
    program.push(name);
    let Some(path) = find(&program, &env::var_os("PATH").unwrap_or_default()) else {
        let verb = SEPARATE.iter().find(|verb| name == verb.name)?;
        let program = program.display();
        return Some(format!(
            "{} is a separate program, {program}, which is not in PATH\n  hint: {}",
            verb.name, verb.hint
        ));
    };
    let error = Command::new(&path).args(arguments).exec();
    Some(format!("{}: cannot be executed: {error}\n  hint: `file {0}` says what it is", path.display()))
}

/// Returns whether `word` can be part of a program's name: neither a path nor an option.
fn is_name(word: &OsStr) -> bool {
    !word.is_empty() && !word.as_bytes().starts_with(b"-") && !word.as_bytes().contains(&b'/')
}

/// Returns the first executable file called `program` in an absolute entry of `path`.
fn find(program: &OsStr, path: &OsStr) -> Option<PathBuf> {
    let is_executable =
        |file: &Path| file.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0);
    env::split_paths(path)
        .filter(|folder| folder.is_absolute())
        .map(|folder| folder.join(program))
        .find(|file| is_executable(file))
}
