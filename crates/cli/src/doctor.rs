//! `isochrome doctor`: shows what this machine allows and how to allow more, and makes the harmless settings on request.

mod fix;

use std::fmt::Write;
use std::time::Duration;

use anyhow::Result;
use isochrome_host::doctor::{Check, Examination, Price, Status, Step, examine};

use crate::args::DoctorOptions;
use crate::files;
use crate::verdict::Verdict;

/// Schema of the printed JSON.
pub const SCHEMA: &str = "isochrome-doctor/1";

/// Time for which steal time is watched.
const INTERVAL: Duration = Duration::from_millis(300);

pub fn run(options: &DoctorOptions) -> Result<Verdict> {
    if options.fix {
        return fix::fix(options);
    }
    if options.undo {
        return fix::undo(options.dry_run);
    }
    let examination = examine(INTERVAL);
    files::show(options.json, &files::versioned(SCHEMA, &examination), || text(&examination))?;
    Ok(Verdict::Holds)
}

/// Formats all checks, with reasons and remedies for those that are not in order, and what to do first.
fn text(examination: &Examination) -> String {
    let mut text = String::new();
    for check in &examination.checks {
        let _ = writeln!(text, "{} {:<28} {}", sign(check.status), check.name, check.found);
        if check.status != Status::Ok {
            let _ = writeln!(text, "     {}", check.why);
            if let Some(remedy) = &check.remedy {
                text += &commands("     ", remedy, check.privilege.as_deref(), check.persistent.as_deref());
                text += &package("     ", check.package.as_deref());
            }
        }
    }
    text.push('\n');
    for (who, what) in [("This machine can", &examination.can), ("It cannot", &examination.cannot)] {
        if !what.is_empty() {
            let _ = writeln!(text, "{who}: {}.", what.join(", "));
        }
    }
    text += &first(&examination.first);
    text
}

/// Formats the fixes to do first; empty if there are none.
fn first(steps: &[Step]) -> String {
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
        let _ = writeln!(text, "  {}. {}: {}.{price}", number + 1, step.checks.join(", "), step.why);
        text += &commands("     ", &step.command, Some(&step.privilege), step.persistent.as_deref());
        text += &package("     ", step.package.as_deref());
    }
    if steps.iter().any(|step| step.fixable) {
        text += "isochrome doctor --fix   makes the harmless settings, one by one; isochrome doctor --undo takes them back\n";
    }
    text
}

/// Formats a command, and the one whose effect lasts if that is another one.
fn commands(indent: &str, now: &str, privilege: Option<&str>, lasting: Option<&str>) -> String {
    let privilege = privilege.filter(|privilege| *privilege != "none");
    let whose = privilege.map_or_else(String::new, |privilege| format!("   ({privilege})"));
    let mut text = format!("{indent}$ {now}{whose}\n");
    if let Some(lasting) = lasting {
        let whose = privilege.map_or_else(String::new, |privilege| format!("{privilege}; "));
        let _ = writeln!(text, "{indent}$ {lasting}   ({whose}beyond the next boot)");
    }
    text
}

/// Formats how a missing program is installed.
fn package(indent: &str, package: Option<&str>) -> String {
    package.map_or_else(String::new, |package| format!("{indent}the program is not installed: {package}\n"))
}

/// Formats one line for each check that is not in order.
pub fn brief(checks: &[Check]) -> String {
    let fine = checks.iter().filter(|check| check.status == Status::Ok).count();
    let mut text = format!("{fine} of {} checks in order", checks.len());
    for check in checks.iter().filter(|check| check.status != Status::Ok) {
        let _ = write!(text, "\n  {} {:<28} {}", sign(check.status), check.name, check.found);
    }
    text
}

fn sign(status: Status) -> &'static str {
    match status {
        Status::Ok => "[ok]",
        Status::Limited => "[ ~]",
        Status::Missing => "[--]",
    }
}
