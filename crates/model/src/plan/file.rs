//! Plans in files: they name their schema, and those of the first version number partitions from 1.

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::Plan;
use crate::taskset::{Numbering, PLAN_SCHEMA};

impl Serialize for Plan {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct File<'a> {
            schema: &'static str,
            #[serde(flatten, serialize_with = "Plan::serialize")]
            plan: &'a Plan,
        }
        File { schema: PLAN_SCHEMA, plan: self }.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Plan {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct File {
            schema: Option<String>,
            #[serde(flatten, deserialize_with = "Plan::deserialize")]
            plan: Plan,
        }
        let File { schema, plan } = Deserialize::deserialize(deserializer)?;
        let numbering = Numbering::of_plan(schema.as_deref()).map_err(D::Error::custom)?;
        plan.renumbered(numbering).map_err(|number| {
            D::Error::custom(format!("{number} is not a partition: plans of this schema number them from 1"))
        })
    }
}

impl Plan {
    /// Returns the plan with its partitions numbered from 0, where `numbering` is that of its file. Fails with a number that no partition has in
    /// the file.
    fn renumbered(mut self, numbering: Numbering) -> Result<Self, u32> {
        for core in &mut self.cores {
            core.partitions = numbering.partitions(core.partitions.iter().copied())?;
            for task in &mut core.tasks {
                task.partitions = numbering.partitions(task.partitions.iter().copied())?;
            }
            for task in core.recurrence.iter_mut().flat_map(|recurrence| &mut recurrence.tasks) {
                task.partitions = numbering.partitions(task.partitions.iter())?;
                task.useful = numbering.partitions(task.useful.iter())?;
            }
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::taskset::PartitionSet;

    /// A plan of the first version, as that version wrote it.
    const FIRST: &str = include_str!("../../tests/data/plan-1.json");

    #[test]
    fn a_plan_of_the_first_version_is_read_with_partitions_from_0() {
        // In the file, task a has partition 2, and task b has 1 and 2.
        let plan: Plan = serde_json::from_str(FIRST).unwrap();
        let [core] = plan.cores.as_slice() else { panic!("{} cores", plan.cores.len()) };
        assert_eq!(core.partitions, [0, 1]);
        let of_tasks: Vec<&[u32]> = core.tasks.iter().map(|task| task.partitions.as_slice()).collect();
        assert_eq!(of_tasks, [&[1][..], &[0, 1]]);
        let sets = [PartitionSet::range(1, 1), PartitionSet::range(0, 2)];
        let replayed = &core.recurrence.as_ref().unwrap().tasks;
        assert_eq!([replayed[0].partitions, replayed[1].partitions], sets);
        assert_eq!([replayed[0].useful, replayed[1].useful], sets);
    }

    #[test]
    fn a_plan_is_written_in_the_second_version_and_read_as_it_was() {
        let plan: Plan = serde_json::from_str(FIRST).unwrap();
        let text = serde_json::to_string(&plan).unwrap();
        assert!(text.starts_with(r#"{"schema":"isochrome-plan/2","schedulable":true,"#), "{text}");
        assert_eq!(serde_json::from_str::<Plan>(&text).unwrap(), plan);
    }

    #[test]
    fn numbers_below_the_first_partition_and_later_versions_are_refused() {
        let refused = |from: &str, to: &str| {
            let text = FIRST.replace(from, to);
            assert_ne!(text, FIRST);
            serde_json::from_str::<Plan>(&text).unwrap_err().to_string()
        };
        let zero = refused(r#""partitions":[1,2]"#, r#""partitions":[0,2]"#);
        assert!(zero.contains("0 is not a partition: plans of this schema number them from 1"), "{zero}");
        let later = refused("isochrome-plan/1", "isochrome-plan/3");
        assert!(later.contains("schema is `isochrome-plan/3`, not `isochrome-plan/2`"), "{later}");
    }
}
