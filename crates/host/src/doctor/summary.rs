//! Summary of an examination: what the machine can do, what it cannot do, and what to do first.

use isochrome_model::machine::Machine;
use isochrome_model::miss_ratio::Touches;
use schemars::JsonSchema;
use serde::Serialize;

use super::{Check, Gain, Price, Status, Trials, memory};
use crate::counters::events::miss_events;
use crate::machine::sysfs::Sysfs;

/// Number of fixes that are named as the first ones.
const FIRST: usize = 3;

/// A fix that is worth doing, with everything that it improves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Step {
    /// Names of the checks that the fix improves.
    pub checks: Vec<String>,
    /// The command.
    pub command: String,
    /// Command that makes the effect last beyond the next boot, if that is another one.
    pub persistent: Option<String>,
    /// How the command's program is installed, if it is missing.
    pub package: Option<String>,
    /// Who may run the command.
    pub privilege: String,
    /// Reason for the fix.
    pub why: String,
    /// Cost of the fix for the rest of the machine.
    pub price: Price,
    /// Whether isochrome applies the fix on request (`doctor --fix`).
    pub fixable: bool,
}

/// Returns the most useful fixes, the first one first.
///
/// Fixes are ordered by price first: harmless fixes, then fixes that weaken a protection, then fixes that cost the whole machine something. The list
/// can be followed from the top until a price is too high. Fixes of one price are ordered by benefit: fixes that give an ability, then fixes that
/// keep colors, then fixes that make times steadier. Other fixes are in the order of the checks. A command that improves several checks is named
/// once.
pub(super) fn first_steps(checks: &[Check]) -> Vec<Step> {
    let mut ranked: Vec<((Price, Gain), &Check)> =
        checks.iter().filter_map(|check| Some(((check.price?, check.gain?), check))).collect();
    ranked.sort_by_key(|(rank, _)| *rank);
    let mut steps: Vec<Step> = Vec::new();
    for ((price, _), check) in ranked {
        let Some(command) = &check.remedy else { continue };
        match steps.iter_mut().find(|step| step.command == *command) {
            Some(step) => step.checks.push(check.name.clone()),
            None => steps.push(Step {
                checks: vec![check.name.clone()],
                command: command.clone(),
                persistent: check.persistent.clone(),
                package: check.package.clone(),
                privilege: check.privilege.clone().unwrap_or_default(),
                why: check.why.clone(),
                price,
                fixable: check.fixable,
            }),
        }
    }
    steps.truncate(FIRST);
    steps
}

/// Returns what the machine can do and what it cannot do, each as phrases for people. A phrase about what is impossible ends with the names of
/// the checks that say why.
pub(super) fn abilities(
    files: &Sysfs,
    machine: Option<&Machine>,
    trials: &Trials,
    checks: &[Check],
    movers: &[Check],
) -> (Vec<String>, Vec<String>) {
    let (mut can, mut cannot) = (Vec::new(), Vec::new());
    let mut judge = |able: bool, what: String, reasons: &str| match able {
        true => can.push(what),
        false => cannot.push(format!("{what} ({reasons})")),
    };
    let level = machine.and_then(|machine| {
        let level = machine.colorable_level(*machine.cpus.first()?)?;
        Some((level.geometry.value.color_count(machine.page_bytes), level.level))
    });
    match level {
        Some((colors, level)) => judge(true, format!("color pages ({colors} colors in level {level})"), ""),
        None => judge(false, "color pages".to_owned(), "no cache level with colors is known"),
    }
    let moves = trials.userfault_user.is_ok() || trials.userfault_full.is_ok();
    let reach = memory::traceable(files, trials.may_trace_all);
    let what = format!("move {}", reach.unwrap_or("running programs"));
    let reasons = if moves { "tracing processes" } else { "moving pages" };
    judge(moves && reach.is_some(), what, reasons);
    judge(trials.fifo.is_ok(), "run jobs before everything else".to_owned(), "SCHED_FIFO");
    let counts = trials.counters.as_ref().is_ok_and(|slots| slots.usable > 0)
        && files.processor().is_ok_and(|processor| miss_events(&processor, 2, Touches::Data).next().is_some());
    judge(counts, "count misses".to_owned(), "performance counters");
    let has_ways = checks.iter().any(|check| check.name == "resctrl" && check.status == Status::Ok);
    judge(has_ways, "partition ways".to_owned(), "resctrl");
    let drift: Vec<&str> =
        movers.iter().filter(|mover| mover.status != Status::Ok).map(|mover| mover.name.as_str()).collect();
    judge(drift.is_empty(), "keep every page on its color".to_owned(), &drift.join(", "));
    (can, cannot)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{described, generous};
    use super::super::{Status, examination};
    use super::*;
    use crate::doctor::remedy::run;

    fn check(name: &str, command: &str, gain: Gain, price: Price) -> Check {
        let mut check = Check::new(name, Status::Limited, "", format!("why {name}")).fix(run(command), gain, price);
        check.remedy = Some(command.to_owned());
        check
    }

    #[test]
    fn what_is_harmless_comes_first_and_then_what_is_most_useful() {
        let checks = [
            check("isolation", "isolate", Gain::Times, Price::Host),
            check("paranoia", "trust", Gain::Ability, Price::Protection),
            check("merging", "part", Gain::Colors, Price::Harmless),
            check("frames", "setcap", Gain::Ability, Price::Protection),
            check("ways", "mount", Gain::Ability, Price::Harmless),
            check("priority", "setcap", Gain::Ability, Price::Protection),
            Check::new("advised", Status::Limited, "", "").advice("look elsewhere", "none"),
        ];
        let names = |steps: &[Step]| steps.iter().map(|step| step.command.clone()).collect::<Vec<_>>();
        let steps = first_steps(&checks);
        assert_eq!(names(&steps), ["mount", "part", "trust"]);
        // Without the harmless ones the next are named, a command for two checks once.
        let steps = first_steps(&[&checks[..2], &checks[3..4], &checks[5..]].concat());
        assert_eq!(names(&steps), ["trust", "setcap", "isolate"]);
        assert_eq!(steps[1].checks, ["frames", "priority"]);
        assert_eq!(first_steps(&checks[6..]), []);
    }

    #[test]
    fn a_summary_says_what_the_machine_can_do_and_why_not_more() {
        let found = examination(&described("zen3-vm"), &generous());
        assert!(found.can.contains(&"color pages (16 colors in level 2)".to_owned()), "{:?}", found.can);
        assert!(found.can.contains(&"move running programs".to_owned()));
        assert!(found.can.contains(&"run jobs before everything else".to_owned()));
        assert!(found.cannot.contains(&"partition ways (resctrl)".to_owned()), "{:?}", found.cannot);
        let trials =
            Trials { may_trace_all: false, fifo: Err(std::io::Error::from_raw_os_error(libc::EPERM)), ..generous() };
        let found = examination(&described("zen3-vm"), &trials);
        assert!(found.can.contains(&"move running programs of this user".to_owned()), "{:?}", found.can);
        assert!(found.cannot.contains(&"run jobs before everything else (SCHED_FIFO)".to_owned()));
    }
}
