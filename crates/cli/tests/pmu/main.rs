//! Tests of the code that needs counters of the processor. A script answers for the counters: correct ones, and ones with the defects that were seen
//! or are to be expected.
//!
//! The kernel is asked for counters by system calls, and a debugger answers those ([`tracee`]). A group of counters that the program reads itself
//! counts by a script ([`counters`]); what misses a cache follows from the pages that the program has really touched ([`cache`]). For counters that
//! the kernel reads, at switches of a CPU, the debugger has it count tracepoints that stand for accesses and misses ([`programs`]). So all code of
//! the tool runs unchanged on the machine's kernel. Only the counting by a processor is not tested here.

#[cfg(target_arch = "x86_64")]
mod cache;
#[cfg(target_arch = "x86_64")]
mod counters;
#[cfg(target_arch = "x86_64")]
mod doctoring;
#[cfg(target_arch = "x86_64")]
mod interference;
#[cfg(target_arch = "x86_64")]
mod jobs;
#[cfg(target_arch = "x86_64")]
mod kernel;
#[cfg(target_arch = "x86_64")]
mod machine;
#[cfg(target_arch = "x86_64")]
mod palette;
#[cfg(target_arch = "x86_64")]
mod programs;
#[cfg(target_arch = "x86_64")]
mod tracee;
#[path = "../trial/mod.rs"]
mod trial;
#[cfg(target_arch = "x86_64")]
mod watching;

use std::process::ExitCode;

#[cfg(target_arch = "x86_64")]
fn main() -> ExitCode {
    use trial::{run, trial};

    if programs::run() {
        return ExitCode::SUCCESS;
    }
    run(vec![
        trial("counters_find_the_color_of_every_page_under_a_hashed_index", palette::by_counters),
        trial("frame_bits_and_counters_agree_on_every_page", palette::methods_agree),
        trial("counters_contradict_frame_bits_that_mean_nothing", palette::wrong_bits),
        trial("a_defect_of_the_counters_ends_a_survey_with_its_reason", palette::defects),
        trial("frame_bits_are_not_confirmed_by_counters_that_were_taken_away", palette::unconfirmed_bits),
        trial("few_counters_or_a_dead_sixth_one_suffice_for_a_survey", palette::usable),
        trial("doctor_says_how_many_counters_work_together_and_what_is_wrong_with_the_next", doctoring::slots),
        trial("watch_puts_misses_down_to_the_right_thread_by_programs_in_the_kernel", watching::by_bpf),
        trial("watch_puts_misses_down_to_the_right_thread_by_rings", watching::by_rings),
        trial("watch_counts_nothing_twice_if_tasks_poll", watching::by_polling),
        trial("watch_goes_on_without_counters_that_do_not_count", watching::uncounted),
        trial("every_job_of_a_run_has_its_own_misses_by_programs_in_the_kernel", jobs::by_bpf),
        trial("every_job_of_a_run_has_its_own_misses_by_rings", jobs::by_rings),
        trial("misses_of_jobs_need_one_counter", jobs::with_few_counters),
        trial("a_run_says_why_misses_are_not_counted", jobs::uncounted),
        trial("hits_and_misses_of_every_level_are_those_of_the_measured_program", interference::levels),
        trial("levels_are_left_out_where_counters_are_few_and_runs_where_they_fail", interference::defects),
    ])
}

#[cfg(not(target_arch = "x86_64"))]
fn main() -> ExitCode {
    use trial::{NotRun, run, trial};

    let why = || Err(NotRun("system calls are answered through the registers of x86-64".to_owned()));
    run(vec![trial("what_needs_counters_on_counters_by_a_script", why)])
}
