//! No text makes the reader of task sets panic, and what it accepts can be analyzed.
#![no_main]

use isochrome_model::analysis::{Analysis, Charges, Workspace, core_tasks, schedulable};
use isochrome_model::taskset::PartitionSet;
use isochrome_model::taskset::read::{Overrides, task_set};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok((set, _)) = task_set(text, Overrides::default()) {
        let members: Vec<_> = (0..set.tasks().len().min(16)).map(|task| (task, PartitionSet::range(0, 1))).collect();
        for analysis in Analysis::ALL {
            schedulable(&core_tasks(&set, &members), Charges::of(&set), analysis, &mut Workspace::default());
        }
    }
});
