//! Releases of preempting tasks, after given numbers of accesses of another task or at given times of their CPU's clock.

use std::collections::VecDeque;

use crate::sim::scenario::{Scenario, ScenarioError};

/// Points at which one task is released.
pub(super) struct Releases {
    pub(super) by: usize,
    /// The task whose accesses are counted; `None` for the CPU's clock.
    pub(super) of: Option<usize>,
    at: VecDeque<u64>,
    every: Option<u64>,
    /// Number of multiples of `every` that have passed.
    multiples: u64,
}

impl Releases {
    pub(super) fn next(&self) -> Option<u64> {
        let regular = self.every.and_then(|every| every.checked_mul(self.multiples + 1));
        self.at.front().copied().into_iter().chain(regular).min()
    }

    /// Returns how many releases have passed since the last call, up to the count or clock `now`.
    pub(super) fn passed(&mut self, now: u64) -> u64 {
        let listed = self.at.iter().take_while(|at| **at <= now).count();
        self.at.drain(..listed);
        let multiples = self.every.map_or(0, |every| now / every);
        listed as u64 + multiples - std::mem::replace(&mut self.multiples, multiples)
    }
}

impl Scenario {
    /// Returns the releases that the scenario's preemptions define, one element for each preemption.
    pub(super) fn releases(&self) -> Result<Vec<Releases>, ScenarioError> {
        let setting = |what: String, hint| Err(ScenarioError::Setting { what, hint });
        let mut all = Vec::new();
        for preemption in &self.preemptions {
            let by = self.task(&preemption.by)?;
            let of = preemption.of.as_deref().map(|name| self.task(name)).transpose()?;
            let (at, every) = match of {
                Some(_) => (&preemption.at_accesses, preemption.every_accesses),
                None => (&preemption.at_cycles, preemption.every_cycles),
            };
            let of_the_other = match of {
                Some(_) => !preemption.at_cycles.is_empty() || preemption.every_cycles.is_some(),
                None => !preemption.at_accesses.is_empty() || preemption.every_accesses.is_some(),
            };
            if of_the_other || at.is_empty() && every.is_none() {
                return setting(
                    format!("nothing says when {} preempts", preemption.by),
                    "give `of` with `at_accesses` or `every_accesses`, or else `at_cycles` or `every_cycles`",
                );
            }
            if every == Some(0) {
                return setting(format!("{} preempts every 0", preemption.by), "give at least 1");
            }
            if of.is_some_and(|of| of == by || self.tasks[of].cpu != self.tasks[by].cpu) {
                return setting(
                    format!("{} cannot preempt {}", self.tasks[by].name, preemption.of.as_deref().unwrap_or_default()),
                    "`by` and `of` are two tasks of one CPU",
                );
            }
            let mut at = at.clone();
            at.sort_unstable();
            at.dedup();
            all.push(Releases { by, of, at: at.into(), every, multiples: 0 });
        }
        Ok(all)
    }
}
