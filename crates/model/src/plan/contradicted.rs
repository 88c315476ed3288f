//! Bounds that assume LRU, checked against a measurement of the replacement policy.

use super::Plan;
use super::allocation::{Analyzed, Core};
use crate::analysis::Charges;
use crate::analysis::sharing::refills;
use crate::replacement::{Contradicted, ReplacementTest};
use crate::taskset::TaskSet;

impl Plan {
    /// Returns the plan with the contradiction between `test` and its bounds, if there is one.
    pub fn checked_against(self, test: Option<ReplacementTest>) -> Plan {
        let tasks = self.cores.iter().flat_map(|core| {
            let charged = core.recurrence.as_ref().filter(|known| known.charges.by(known.analysis).refill_ns > 0);
            let refilled = charged.map(|known| refills(&known.tasks, known.charges));
            let named = core.tasks.iter().zip(refilled.unwrap_or_default());
            named.filter(|(_, refilled)| *refilled).map(|(task, _)| task.name.clone())
        });
        let contradicted = Contradicted::of(self.replacement, tasks.collect(), test);
        Plan { contradicted, ..self }
    }
}

impl Analyzed {
    /// Returns the result with the contradiction between `test` and its bounds, which are those of `cores`, if there is one.
    pub fn checked_against(self, set: &TaskSet, cores: &[Core], test: Option<ReplacementTest>) -> Analyzed {
        // `charges` are those that the analysis applies.
        let charged = if self.charges.refill_ns > 0 { refilled_tasks(set, cores) } else { Vec::new() };
        let contradicted = Contradicted::of(set.platform().replacement, charged, test);
        Analyzed { contradicted, ..self }
    }
}

/// Returns the names of the tasks that refill partitions.
pub(super) fn refilled_tasks(set: &TaskSet, cores: &[Core]) -> Vec<String> {
    let charges = Charges::of(set);
    let of_core = |core: &Core| {
        let named = core.members.iter().zip(refills(&core.tasks, charges));
        named.filter(|(_, refilled)| *refilled).map(|(&task, _)| set.tasks()[task].name.clone()).collect::<Vec<_>>()
    };
    cores.iter().flat_map(of_core).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::Analysis;
    use crate::plan::{PlanError, Request, analysis_text, plan, plan_text};
    use crate::replacement::Replacement;
    use crate::replacement::tests::test_of;
    use crate::taskset::read::allocation;
    use crate::taskset::tests::{platform, task};
    use crate::taskset::{Platform, TaskSet};

    /// Returns three tasks on one core with three partitions. Each gains more from a second partition than it costs to share one.
    fn set(replacement: Replacement) -> TaskSet {
        let tasks = ["a", "b", "c"].map(|name| task(name, 1_000_000, 0, &[200_000, 50_000, 50_000]));
        TaskSet::new(Platform { replacement, ..platform(1, 3, 64, 1_000) }, tasks.to_vec()).unwrap().0
    }

    fn planned(set: &TaskSet) -> Plan {
        plan(set, &Request { objective: crate::plan::Objective::Utilization, ..Request::default() }).unwrap()
    }

    #[test]
    fn only_under_lru_do_plans_share_partitions_and_only_then_are_they_contradicted() {
        let failed = Some(test_of(60, 40));
        let lru = planned(&set(Replacement::Lru));
        let sharing = |plan: &Plan| {
            let mut used: Vec<u32> =
                plan.cores.iter().flat_map(|core| &core.tasks).flat_map(|task| task.partitions.clone()).collect();
            used.sort_unstable();
            used.windows(2).any(|pair| pair[0] == pair[1])
        };
        assert!(lru.schedulable && sharing(&lru));
        assert_eq!(lru.clone().checked_against(None), lru);
        assert_eq!(lru.clone().checked_against(Some(test_of(100, 0))), lru);
        let contradicted = lru.checked_against(failed);
        let tasks = &contradicted.contradicted.as_ref().unwrap().tasks;
        assert!(tasks.len() >= 2, "{tasks:?}");
        let text = plan_text(&set(Replacement::Lru), &contradicted, &[]);
        assert!(
            text.contains("\nschedulable by kim2013 if replacement were LRU: ") && text.contains("NOT SOUND: "),
            "{text}"
        );

        let any = planned(&set(Replacement::Any));
        assert!(any.schedulable && !sharing(&any));
        assert_eq!(any.clone().checked_against(failed), any);
        let text = plan_text(&set(Replacement::Any), &any, &[]);
        assert!(!text.contains("LRU") && text.contains("partitions are exclusive to a task"), "{text}");
    }

    #[test]
    fn bounds_that_charge_no_refill_are_not_contradicted() {
        let text = r#"{"cores":[{"tasks":[{"name":"a","partitions":[0]},{"name":"b","partitions":[1]},{"name":"c","partitions":[0,2]}]}]}"#;
        let contradicted = |set: &TaskSet, analysis| {
            let (allocated, _) = allocation(text, set).unwrap();
            let cores = Core::all(set, &allocated, analysis);
            let analyzed = Analyzed::of(set, &allocated, &cores, analysis, false);
            analyzed.checked_against(set, &cores, Some(test_of(60, 40))).contradicted.is_some()
        };
        let set = set(Replacement::Lru);
        let free = set.on(Platform { refill_ns: 0, ..set.platform().clone() }).unwrap();
        assert!(contradicted(&set, Analysis::Kim2013));
        assert!(!contradicted(&set, Analysis::NoInterference) && !contradicted(&free, Analysis::Kim2013));
        assert_eq!(planned(&free).checked_against(Some(test_of(60, 40))).contradicted, None);
    }

    #[test]
    fn every_method_shares_nothing_if_any_policy_may_replace() {
        use crate::plan::tests::random_set;
        let mut random = fastrand::Rng::with_seed(11);
        for _ in 0..60 {
            let set = random_set(&mut random, 4, 2, 6);
            let set = set
                .on(Platform { replacement: Replacement::Any, cold_start: false, ..set.platform().clone() })
                .unwrap();
            for method in [
                crate::plan::Method::Optimal,
                crate::plan::Method::Cata,
                crate::plan::Method::Bfd,
                crate::plan::Method::Wfd,
            ] {
                let plan = plan(&set, &Request { method, ..Request::default() }).unwrap();
                for core in &plan.cores {
                    let tasks = &core.recurrence.as_ref().unwrap().tasks;
                    assert!(!refills(tasks, Charges::of(&set)).contains(&true), "{method} {core:?}");
                }
            }
        }
    }

    #[test]
    fn a_cold_start_is_refused_if_any_policy_may_replace() {
        let set = set(Replacement::Any);
        let cold = set.on(Platform { cold_start: true, ..set.platform().clone() }).unwrap();
        assert_eq!(plan(&cold, &Request::default()), Err(PlanError::ColdStart));
    }

    #[test]
    fn an_allocation_that_shares_is_named_and_has_no_bound_if_any_policy_may_replace() {
        let text = r#"{"cores":[{"tasks":[{"name":"a","partitions":[0]},{"name":"b","partitions":[1]},{"name":"c","partitions":[0,2]}]}]}"#;
        let analyzed = |replacement, test| {
            let set = set(replacement);
            let (allocated, _) = allocation(text, &set).unwrap();
            let cores = Core::all(&set, &allocated, Analysis::Kim2013);
            let analyzed = Analyzed::of(&set, &allocated, &cores, Analysis::Kim2013, false);
            let analyzed = analyzed.checked_against(&set, &cores, test);
            let text = analysis_text(&set, &cores, &analyzed);
            (analyzed, text)
        };
        let failed = Some(test_of(60, 40));
        let (any, text) = analyzed(Replacement::Any, failed);
        assert!(!any.schedulable && any.contradicted.is_none());
        assert_eq!(any.without_bound, ["a", "c"]);
        assert!(text.contains("no bound for a, c and the tasks that they delay: they share partitions"), "{text}");
        let (lru, text) = analyzed(Replacement::Lru, failed);
        assert!(lru.schedulable && lru.without_bound.is_empty());
        assert_eq!(lru.contradicted.unwrap().tasks, ["a", "c"]);
        assert!(
            text.contains("schedulable by kim2013 if replacement were LRU") && text.contains("NOT SOUND: "),
            "{text}"
        );
    }
}
