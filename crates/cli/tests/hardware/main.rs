//! Tests of the command on the machine that they run on.
//!
//! A shared machine can be too noisy to measure on. So these tests assert what must hold of any answer: its files, its form, and that the tool says
//! when it is not sure. They assert a measured result only if the tool itself calls it conclusive. A test that needs a conclusion, or an answer that
//! the machine cannot give, is reported as ignored with the reason. `HARDWARE_REQUIRED=1` makes that a failure.

mod costs;
mod doctoring;
mod fixture;
mod packets;
mod palette;
mod placing;
mod tracing;
#[path = "../trial/mod.rs"]
mod trial;
mod watching;
mod workload;

use std::process::ExitCode;

use trial::{run as run_trials, trial};

fn main() -> ExitCode {
    let trials = vec![
        trial("palette_by_timing_finds_the_colors_or_says_that_it_is_not_sure", palette::palette_by_timing),
        trial("palette_classifies_again_as_before", palette::palette_again),
        trial("palette_without_privileges_needs_no_frame_numbers", palette::palette_unprivileged),
        trial("bench_filter_reports_every_condition_with_equal_n", costs::bench_filter),
        trial("doctor_makes_the_harmless_settings_and_takes_them_back", doctoring::fix_and_undo),
        trial("doctor_changes_settings_for_root_only", doctoring::without_root),
        trial("a_saved_palette_maps_a_program_and_is_verified", palette::map_of_a_program),
        trial("an_unprivileged_user_starts_a_program_on_colors", placing::exec_unprivileged),
        trial("a_program_gets_its_colors_with_nothing_set_up", placing::exec_as_root),
        trial("a_program_gets_its_colors_after_the_pages_of_known_color_were_lost", placing::exec_after_loss),
        trial("exec_stands_aside_while_its_program_is_recolored_and_takes_the_colors_over", placing::exec_stands_aside),
        trial("bench_conflicts_tells_the_miss_penalty", costs::bench_conflicts),
        trial("bench_switch_tells_direct_part_and_cache_part", costs::bench_switch),
        trial("a_workload_is_executed_and_reported_with_its_prediction", workload::workload),
        trial("a_search_lists_every_try_and_claims_only_what_was_measured_twice", workload::workload_search),
        trial("watch_sees_a_program_get_its_cpu_again_and_again", watching::watch),
        trial(
            "watch_without_privilege_sees_ones_own_programs_and_says_what_it_does_not_know",
            watching::watch_unprivileged,
        ),
        trial("watch_polls_at_the_rate_asked_for_and_tells_what_that_costs", watching::watch_polls),
        trial("flood_verifies_each_pattern_and_names_the_worst", packets::flood_verify),
        trial("bench_net_reports_every_size_both_ways_and_draws_the_figures", packets::bench_net),
        trial("packets_cross_a_tap_device_where_the_kernels_settings_are_read_only", packets::bench_net_read_only),
        trial("bench_crpd_of_data_delays_larger_working_sets_for_longer", costs::bench_crpd_of_data),
        trial("bench_crpd_of_code_has_every_size_walk_and_condition", costs::bench_crpd_of_code),
        trial(
            "bench_interference_runs_every_program_alone_beside_spinning_and_beside_others",
            costs::bench_interference,
        ),
        trial("demo_leaves_a_report_evidence_and_raw_jobs", costs::demo),
        trial("trace_by_lackey_has_every_load_store_and_fetch", || tracing::trace("lackey")),
        trial("trace_by_qemu_has_every_load_store_and_fetch", || tracing::trace("qemu")),
    ];
    run_trials(trials)
}
