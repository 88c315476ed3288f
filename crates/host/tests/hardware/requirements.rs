//! Requirements of tests: each function returns the reason why the machine cannot run a test.

use std::process::Command;

use isochrome_host::counters::events::PAGE_FAULTS;
use isochrome_host::counters::{Counters, usable_slots};
use isochrome_host::error::without_hint;
use isochrome_host::load::net::tap;
use isochrome_host::machine::setting::RealtimeRequest;
use isochrome_host::machine::sysfs::Sysfs;
use isochrome_host::sched::bpf::BpfEvents;
use isochrome_host::sched::open;
use isochrome_host::sched::slices::{Slices, proved_events};
use isochrome_host::sched::tracefs::Tracefs;
use isochrome_host::sys::scheduling::Scheduling;
use rustix::thread::{CapabilitySet, capabilities};

use crate::counters::l2_misses;
use crate::numbering::numbered;
use crate::thread::{allowed_cpus, on_a_thread};

pub fn counts_instructions() -> Result<(), String> {
    match usable_slots() {
        Ok(slots) if slots.usable > 0 => Ok(()),
        Ok(slots) => Err(slots.defect.map_or_else(|| "no counter runs".to_owned(), |defect| defect.to_string())),
        Err(error) => Err(without_hint(&error)),
    }
}

pub fn may_count_page_faults() -> Result<(), String> {
    Counters::open(&[PAGE_FAULTS]).map(drop).map_err(|error| without_hint(&error))
}

pub fn counts_l2_misses() -> Result<(), String> {
    counts_instructions()?;
    let processor = Sysfs::system().processor().map_err(|error| without_hint(&error))?;
    l2_misses(&processor)
        .map(drop)
        .ok_or_else(|| format!("no event for second-level misses of {} is known", processor.name))
}

pub fn has_two_cpus() -> Result<(), String> {
    match allowed_cpus().len() {
        0 | 1 => Err("only one CPU is allowed to this process".to_owned()),
        _ => Ok(()),
    }
}

pub fn has_colors() -> Result<(), String> {
    let (machine, _) = Sysfs::system().machine().map_err(|error| without_hint(&error))?;
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    numbered(&machine, folder.path(), None).map(drop).map_err(|error| without_hint(&error))
}

pub fn fifo_is_permitted() -> Result<(), String> {
    on_a_thread(|| Scheduling::fifo(1).apply()).map_err(|error| format!("SCHED_FIFO: {error}"))
}

pub fn has_tap() -> Result<(), String> {
    tap::open().map(drop).map_err(|error| without_hint(&error))
}

pub fn has_qemu_for_arm() -> Result<(), String> {
    let found = Command::new("qemu-aarch64").arg("--version").output();
    found.map(drop).map_err(|error| format!("qemu-aarch64: {error} (Debian package qemu-user)"))
}

pub fn may_lock() -> Result<(), String> {
    let settings = RealtimeRequest::new().lock_memory().apply();
    match settings.notes().first() {
        Some(note) => Err(format!("{}: {}", note.subject, note.reason)),
        None => Ok(()),
    }
}

pub fn may_lock_and_trace() -> Result<(), String> {
    may_lock()?;
    match capabilities(None).map_err(|error| error.to_string())?.effective.contains(CapabilitySet::SYS_PTRACE) {
        true => Ok(()),
        false => Err("CAP_SYS_PTRACE is missing".to_owned()),
    }
}

pub fn records_two_cpus_by_tracefs() -> Result<(), String> {
    has_two_cpus()?;
    Tracefs::open(&[allowed_cpus()[0]]).map(drop).map_err(|error| without_hint(&error))
}

pub fn runs_programs_in_the_kernel() -> Result<(), String> {
    BpfEvents::of_switches(&[allowed_cpus()[0]], &[]).map(drop).map_err(|error| error.to_string())
}

pub fn sees_processes() -> Result<(), String> {
    runs_programs_in_the_kernel()?;
    open::of_processes().map(drop).ok_or_else(|| "processes have other numbers here than in the kernel".to_owned())
}

pub fn switches_are_recorded() -> Result<(), String> {
    Slices::open(&[allowed_cpus()[0]], true, &[]).map(drop).map_err(|error| without_hint(&error))
}

pub fn counts_miss_ratios() -> Result<(), String> {
    let processor = Sysfs::system().processor().map_err(|error| without_hint(&error))?;
    proved_events(&processor, 2).map_err(|error| without_hint(&error))?;
    switches_are_recorded()
}

/// Requirement of tests that every machine can run.
pub fn nothing() -> Result<(), String> {
    Ok(())
}
