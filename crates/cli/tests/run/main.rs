//! Tests of running the programs of a plan together: every job is observed, every failure is reported, and the machine is restored.
//!
//! Hosts are noisy, so the tests assert what happens and in which order, but not how long it takes. A test that counts jobs measures how
//! long the host withholds CPUs (`stalls`), and allows for the releases in that time. If that time is too long, the test is reported as
//! ignored, with the reason. So is a test that the machine cannot run; `HARDWARE_REQUIRED=1` makes both a failure. No test is tried twice.

mod ending;
mod failing;
mod fixture;
mod jobs;
#[path = "../../../host/tests/kernel/mod.rs"]
mod kernel;
#[path = "../mounted/mod.rs"]
mod mounted;
mod partitions;
mod placing;
mod stalls;
#[path = "../trial/mod.rs"]
mod trial;
mod ways;

use std::process::ExitCode;

use libtest_mimic::Trial;

use fixture::Fixture;
use trial::{Outcome, run as run_trials, trial};

fn main() -> ExitCode {
    let trials = vec![
        fixture_trial("every_job_is_recorded_and_checked_against_its_bound", jobs::every_job),
        fixture_trial("jobs_seen_by_the_scheduler_are_those_that_the_program_sees", jobs::wake_ups),
        fixture_trial("what_is_counted_of_a_job_is_what_its_own_thread_did", jobs::counted),
        fixture_trial("a_bound_that_no_job_can_keep_is_violated_by_all_and_can_end_the_run", jobs::violations),
        fixture_trial("what_a_program_does_wrong_is_named_and_the_others_go_on", failing::failures),
        fixture_trial("without_keep_going_the_first_failure_ends_the_run", failing::first_failure),
        fixture_trial("programs_have_their_colors_and_a_comparison_has_both_sides", placing::colors_and_comparison),
        fixture_trial("programs_lie_evenly_on_their_colors_wherever_the_kernel_put_them", placing::evenly),
        fixture_trial(
            "where_frame_numbers_are_hidden_programs_have_their_colors_by_eviction_tests",
            placing::hidden_frames,
        ),
        fixture_trial("tasks_have_their_ways_while_they_run_and_all_have_all_afterwards", ways::ways),
        fixture_trial("ways_and_colors_together_keep_everybody_else_off_the_tasks_colors", ways::ways_and_colors),
        fixture_trial("a_profile_by_ways_gives_every_profiling_run_its_ways", ways::profile_by_ways),
        fixture_trial("ways_that_cannot_be_had_are_reported_before_anything_runs", ways::no_ways),
        fixture_trial("ways_that_cannot_be_given_back_do_not_take_the_run_away", ways::busy_ways),
        fixture_trial("after_sigkill_ways_are_given_back_and_what_is_busy_is_tried_again", ways::ways_after_sigkill),
        fixture_trial("cpus_of_tasks_are_partitions_where_cgroups_allow_it", partitions::partitions),
        fixture_trial(
            "a_partition_that_cannot_be_removed_is_nobodys_cpu_no_more_and_is_tried_again",
            partitions::busy_partition,
        ),
        fixture_trial("after_sigkill_partitions_are_taken_back", partitions::partitions_after_sigkill),
        fixture_trial("memory_of_tasks_is_locked_unless_it_is_not_to_be", placing::locked),
        fixture_trial("a_reservation_that_is_refused_is_reported_with_the_reason", partitions::deadline_refused),
        fixture_trial("tasks_run_by_deadlines_on_a_cpu_that_is_a_partition", partitions::deadline),
        fixture_trial("after_sigterm_other_programs_have_their_cpus_back", ending::sigterm),
        fixture_trial("after_sigkill_the_next_start_puts_everything_back", ending::sigkill),
        fixture_trial("a_full_disk_is_an_error_and_what_was_recorded_stays", failing::full_disk),
        fixture_trial("a_plan_for_another_machine_or_without_programs_is_refused", failing::refusals),
    ];
    run_trials(trials)
}

fn fixture_trial(name: &'static str, test: fn(&Fixture) -> Outcome) -> Trial {
    trial(name, move || test(&Fixture::new()?))
}
