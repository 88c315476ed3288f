//! Tests that need hardware, kernel features or privileges that not every machine has.
//!
//! Each test states its requirement. If the machine does not meet it, the test is reported as ignored with the reason, never as passed;
//! `HARDWARE_REQUIRED=1` makes that a failure. To add a test, write its body as a function of a module and add it to the list in `main`.

mod alternating;
mod counters;
mod interrupts;
mod locks;
mod machine_code;
mod numbering;
mod packets;
mod probing;
mod requirements;
mod settings;
mod slices;
mod sources;
mod thread;
#[path = "../../../cli/tests/trial/mod.rs"]
mod trial;

use std::process::ExitCode;

use libtest_mimic::Trial;

use interrupts::{CHILD, interrupt_twice};
use locks::{LOCKED_CHILD, lock_and_wait};
use requirements::*;
use trial::{NotRun, run, trial};

/// Makes a list of tests, each with its requirement. A test has the name of its function.
macro_rules! hardware_tests {
    ($($module:ident::$name:ident if $requirement:ident,)*) => {
        vec![$(hardware_test(stringify!($name), $requirement, $module::$name)),*]
    };
}

fn main() -> ExitCode {
    if std::env::var_os(CHILD).is_some() {
        return interrupt_twice();
    }
    if std::env::var_os(LOCKED_CHILD).is_some() {
        lock_and_wait();
    }
    run(hardware_tests![
        counters::a_group_is_read_with_all_its_counts if may_count_page_faults,
        counters::counters_count_a_known_loop_alike if counts_instructions,
        counters::second_level_misses_are_counted if counts_l2_misses,
        counters::more_events_than_slots_are_refused if counts_instructions,
        slices::page_faults_of_two_threads_that_share_a_cpu_go_to_the_right_one if switches_are_recorded,
        slices::page_faults_are_those_of_the_right_thread_by_programs_in_the_kernel_too if runs_programs_in_the_kernel,
        sources::all_sources_report_the_same_switches_wake_ups_and_times if runs_programs_in_the_kernel,
        sources::programs_in_the_kernel_see_starts_and_executed_programs_but_no_threads if sees_processes,
        sources::tracefs_goes_on_recording_one_cpu_when_another_is_turned_off if records_two_cpus_by_tracefs,
        slices::misses_of_two_threads_that_share_a_cpu_go_to_the_right_one if counts_miss_ratios,
        slices::polls_put_counts_down_to_whom_they_interrupt if switches_are_recorded,
        machine_code::the_machine_code_for_arm_visits_every_line_in_order_in_every_pass if has_qemu_for_arm,
        settings::affinity_is_restored_after_drop if has_two_cpus,
        settings::settings_are_restored_after_a_panic if has_two_cpus,
        settings::timer_slack_is_set_and_restored if nothing,
        settings::an_impossible_setting_is_reported if nothing,
        settings::a_denied_policy_is_reported if nothing,
        settings::the_policy_is_set_and_restored if fifo_is_permitted,
        settings::memory_is_locked_until_the_last_guard_goes if may_lock,
        interrupts::the_second_interrupt_ends_the_program if nothing,
        probing::loads_take_longer_the_further_out_they_are_answered if nothing,
        probing::a_probe_fills_facts_within_their_ranges_and_leaves_the_thread_where_it_was if nothing,
        packets::packets_of_every_size_cross_the_tap_device_both_ways_unaltered if has_tap,
        packets::a_tap_device_is_in_no_namespace_but_its_own_and_gone_when_it_is_closed if has_tap,
        settings::prefaulting_stops_before_the_stack_ends if nothing,
        locks::touching_the_memory_of_a_program_leaves_its_own_locks if may_lock_and_trace,
        numbering::an_ordinary_users_colors_get_the_machines_numbers_and_programs_keep_theirs if has_colors,
        numbering::what_was_learned_under_numbers_that_another_command_has_replaced_is_forgotten if has_colors,
        numbering::frames_of_a_reserve_are_measured_and_have_their_colors_where_they_are_handed_out if has_colors,
    ])
}

/// Makes a test of `body` that is ignored if `requirement` returns a reason why it cannot run here.
fn hardware_test(name: &'static str, requirement: fn() -> Result<(), String>, body: fn()) -> Trial {
    trial(name, move || {
        requirement().map_err(NotRun)?;
        body();
        Ok(())
    })
}
