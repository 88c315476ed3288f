//! `isochrome doctor`: shows what this machine allows and how to allow more, and makes the harmless settings on request.

mod fix;

use std::fmt::Write;
use std::time::Duration;

use anyhow::Result;
use isochrome_host::doctor::{Check, Examination, Price, Status, Step, examine};
use isochrome_model::layout::{WIDTH, columns, wrap};

use crate::args::DoctorOptions;
use crate::files;
use crate::verdict::Verdict;

/// Schema of the printed JSON.
pub const SCHEMA: &str = "isochrome-doctor/1";

/// Time for which steal time is watched.
const INTERVAL: Duration = Duration::from_millis(300);

/// Number of columns in front of the finding of a check.
const FOUND_AT: usize = 34;

pub fn run(options: &DoctorOptions) -> Result<Verdict> {
    if options.fix {
        return fix::fix(options);
    }
    if options.undo {
        return fix::undo(options.dry_run);
    }
    let examination = examine(INTERVAL);
    files::show(options.json, &files::versioned(SCHEMA, &examination), || text(&examination, files::width()))?;
    Ok(Verdict::Holds)
}

/// Formats all checks, with reasons and remedies for those that are not in order, and what to do first.
fn text(examination: &Examination, width: usize) -> String {
    let mut text = String::new();
    for check in &examination.checks {
        text += &found("", check, width);
        if check.status != Status::Ok {
            let _ = writeln!(text, "{}", wrap(&format!("     {}", check.why), width, 5));
            if let Some(remedy) = &check.remedy {
                text += &commands(width, remedy, check.privilege.as_deref(), check.persistent.as_deref());
                text += &package(check.package.as_deref());
            }
        }
    }
    text.push('\n');
    for (who, what) in [("This machine can", &examination.can), ("It cannot", &examination.cannot)] {
        if !what.is_empty() {
            let _ = writeln!(text, "{}", wrap(&format!("{who}: {}.", what.join(", ")), width, 2));
        }
    }
    text += &first(&examination.first, width);
    text
}

/// Formats the fixes to do first; empty if there are none.
fn first(steps: &[Step], width: usize) -> String {
    let mut text = String::new();
    if !steps.is_empty() {
        text += "\nWhat to do first:\n";
    }
    for (number, step) in steps.iter().enumerate() {
        let price = match step.price {
            Price::Harmless => "",
            Price::Protection => " Price: rights that it gives away.",
            Price::Host => " Price: paid by the whole machine.",
        };
        let line = format!("  {}. {}: {}.{price}", number + 1, step.checks.join(", "), step.why);
        let _ = writeln!(text, "{}", wrap(&line, width, 5));
        text += &commands(width, &step.command, Some(&step.privilege), step.persistent.as_deref());
        text += &package(step.package.as_deref());
    }
    if steps.iter().any(|step| step.fixable) {
        text += "isochrome doctor --fix    makes the harmless settings, one by one\n";
        text += "isochrome doctor --undo   takes them back\n";
    }
    text
}

/// Formats a command, followed by the command whose effect lasts if that is another one.
fn commands(width: usize, now: &str, privilege: Option<&str>, lasting: Option<&str>) -> String {
    let privilege = privilege.filter(|privilege| *privilege != "none");
    // A command is copied, so it stays on one line, and what is said of it goes below where there is no room behind it.
    let line = |command: &str, remark: String| {
        let command = format!("     $ {command}");
        match remark.is_empty() {
            true => command + "\n",
            false if columns(&command) + 3 + columns(&remark) <= width => format!("{command}   {remark}\n"),
            false => format!("{command}\n       {remark}\n"),
        }
    };
    let mut text = line(now, privilege.map_or_else(String::new, |privilege| format!("({privilege})")));
    if let Some(lasting) = lasting {
        let whose = privilege.map_or_else(String::new, |privilege| format!("{privilege}; "));
        text += &line(lasting, format!("({whose}beyond the next boot)"));
    }
    text
}

/// Formats how a missing program is installed.
fn package(package: Option<&str>) -> String {
    package.map_or_else(String::new, |package| format!("     the program is not installed: {package}\n"))
}

/// Formats the finding of a check, with further lines indented to the beginning of the first.
fn found(indent: &str, check: &Check, width: usize) -> String {
    let line = format!("{indent}{} {:<28} {}", sign(check.status), check.name, check.found);
    wrap(&line, width, indent.len() + FOUND_AT) + "\n"
}

/// Formats one line for each check that is not in order.
pub fn brief(checks: &[Check]) -> String {
    let fine = checks.iter().filter(|check| check.status == Status::Ok).count();
    let mut text = format!("{fine} of {} checks in order\n", checks.len());
    for check in checks.iter().filter(|check| check.status != Status::Ok) {
        text += &found("  ", check, WIDTH);
    }
    text.pop();
    text
}

fn sign(status: Status) -> &'static str {
    match status {
        Status::Ok => "[ok]",
        Status::Limited => "[ ~]",
        Status::Missing => "[--]",
    }
}

#[cfg(test)]
mod tests {
    use isochrome_model::layout::is_command;

    use super::*;

    #[test]
    fn all_but_commands_fits_80_columns() {
        let shown = text(&examine(Duration::from_millis(1)), WIDTH);
        for line in shown.lines() {
            assert!(columns(line) <= WIDTH || is_command(line), "{line}");
        }
    }

    #[test]
    fn a_long_command_stays_whole_and_the_remark_goes_below() {
        let long = "sysctl ".repeat(12);
        assert_eq!(commands(WIDTH, "sysctl a=0", Some("root"), None), "     $ sysctl a=0   (root)\n");
        let shown = commands(WIDTH, &long, Some("root"), Some("b"));
        assert_eq!(shown, format!("     $ {long}\n       (root)\n     $ b   (root; beyond the next boot)\n"));
        assert_eq!(commands(WIDTH, "c", Some("none"), None), "     $ c\n");
    }
}
