//! `isochrome doctor`: shows what this machine allows and how to allow more.

use std::fmt::Write;
use std::time::Duration;

use anyhow::Result;
use isochrome_host::doctor::{Check, Status, examine};
use schemars::JsonSchema;
use serde::Serialize;

use crate::files;
use crate::verdict::Verdict;

/// Schema of the printed JSON.
pub const SCHEMA: &str = "isochrome-doctor/1";

/// Availability of features on this machine.
#[derive(Serialize, JsonSchema)]
pub struct Examined {
    /// All checks, in the order of the text.
    checks: Vec<Check>,
}

/// Time for which steal time is watched.
const INTERVAL: Duration = Duration::from_millis(300);

pub fn run(json: bool) -> Result<Verdict> {
    let examined = Examined { checks: examine(INTERVAL) };
    files::show(json, &files::versioned(SCHEMA, &examined), || text(&examined.checks))?;
    Ok(Verdict::Holds)
}

/// Formats all checks, with reasons and remedies for those that are not in order.
fn text(checks: &[Check]) -> String {
    let mut text = String::new();
    for check in checks {
        let _ = writeln!(text, "{} {:<28} {}", sign(check.status), check.name, check.found);
        if check.status != Status::Ok {
            let _ = writeln!(text, "     {}", check.why);
            if let Some(remedy) = &check.remedy {
                let privilege = check.privilege.as_ref().map_or_else(String::new, |p| format!("   ({p})"));
                let _ = writeln!(text, "     $ {remedy}{privilege}");
            }
        }
    }
    text
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
