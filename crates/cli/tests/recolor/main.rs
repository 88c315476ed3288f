//! Tests that running programs are moved to other frames and do not notice.
//!
//! Colors are bits of the frame number here, so they need no measurement and are the same on every machine. A test that the machine cannot
//! run is reported as ignored, with the reason; `HARDWARE_REQUIRED=1` makes that a failure. `RECOLOR_ROUNDS` is the number of rounds of the
//! torture tests (10 by default), `RECOLOR_FAULTS` that of system calls that are made to fail (10), or `all`.

mod exec;
mod faults;
#[path = "../fixture/mod.rs"]
mod fixture;
mod moving;
mod refusing;
mod target;
mod torture;
#[path = "../trial/mod.rs"]
mod trial;

use std::process::ExitCode;

use libtest_mimic::Trial;

use fixture::Fixture;
use trial::{Outcome, run as run_trials, trial};

fn main() -> ExitCode {
    let trials = vec![
        fixture_trial("a_program_recolored_again_and_again_reads_what_it_wrote", torture::recolored_again_and_again),
        fixture_trial(
            "a_program_whose_recoloring_is_killed_reads_what_it_wrote_after_a_repair",
            torture::killed_again_and_again,
        ),
        fixture_trial("a_program_goes_on_whichever_call_of_its_recoloring_fails", faults::every_call_fails_once),
        fixture_trial("kernels_that_cannot_move_pages_recolor_all_the_same", torture::recolored_without_moves),
        fixture_trial("a_program_that_reads_by_io_uring_reads_what_is_in_the_file", torture::reading_by_rings),
        fixture_trial(
            "a_program_whose_recoloring_is_killed_as_it_reads_by_io_uring_goes_on",
            torture::killed_with_rings,
        ),
        fixture_trial("a_program_of_java_with_24_threads_keeps_its_data", moving::java),
        fixture_trial("a_program_that_begins_others_all_the_time_is_recolored", torture::beginning_others),
        fixture_trial("a_program_that_is_about_to_open_a_file_is_recolored", moving::opening),
        fixture_trial("two_recolorings_of_a_program_leave_each_others_memory_alone", torture::by_two_at_a_time),
        fixture_trial("a_part_of_the_pages_is_moved_in_its_time", moving::in_parts),
        fixture_trial("a_program_finds_frames_of_a_color_that_another_one_has_taken_all_around", moving::drought),
        fixture_trial("pages_on_color_keep_their_frames_while_others_find_theirs_in_huge_pages", moving::joined),
        fixture_trial("a_ring_of_events_that_counts_as_pinned_is_the_kernels_own", moving::ring_of_events),
        fixture_trial("a_program_is_spread_over_all_colors_wherever_it_lay", moving::spread),
        fixture_trial("a_program_is_spread_although_its_pages_move_in_parts", moving::spread_in_parts),
        fixture_trial("a_program_with_many_mappings_stands_still_for_short_times", moving::many_mappings),
        fixture_trial("a_large_mapping_that_may_only_be_read_is_recolored_in_few_pauses", moving::large_library),
        fixture_trial("a_program_that_ends_as_it_is_recolored_leaves_no_journal", torture::ending),
        fixture_trial("a_recoloring_ends_when_it_is_asked_to", torture::interrupted),
        fixture_trial("what_may_be_written_to_by_the_kernel_is_recolored_but_for_what_is_pinned", moving::asynchronous),
        fixture_trial("what_must_not_be_touched_is_refused_and_goes_on", refusing::refusals),
        fixture_trial("a_program_whose_filter_allows_the_calls_is_recolored", refusing::filtered),
        fixture_trial("a_dry_run_stops_nothing_and_a_second_sweep_finds_nothing", moving::dry_run_and_second_sweep),
        fixture_trial("exec_passes_on_output_input_status_and_signals", exec::exec_is_transparent),
        fixture_trial("exec_moves_when_the_program_says_that_it_is_ready", exec::exec_waits_until_ready),
        fixture_trial("exec_keeps_new_memory_and_children_on_the_colors", exec::exec_follows),
        fixture_trial("exec_goes_along_with_a_program_that_begins_others_in_its_place", exec::exec_goes_along),
        fixture_trial("real_programs_give_the_same_output_on_their_colors", exec::real_programs),
        fixture_trial("redis_serves_a_benchmark_on_its_colors", exec::redis),
    ];
    run_trials(trials)
}

fn fixture_trial(name: &'static str, test: fn(&Fixture) -> Outcome) -> Trial {
    trial(name, move || test(&Fixture::new()?))
}
