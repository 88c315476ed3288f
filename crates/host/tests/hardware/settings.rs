//! Settings of threads, and their restoration.

use std::panic::{catch_unwind, resume_unwind};

use isochrome_host::machine::setting::RealtimeRequest;
use isochrome_host::sys::scheduling::Scheduling;
use isochrome_model::units::{Bytes, CpuId, Ns};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};

use crate::thread::{allowed_cpus, on_a_thread, status, timer_slack};

pub fn affinity_is_restored_after_drop() {
    let before = allowed_cpus();
    let last = *before.last().unwrap();
    let settings = RealtimeRequest::new().pin(last).apply();
    assert_eq!(settings.notes(), []);
    assert_eq!(allowed_cpus(), [last]);
    drop(settings);
    assert_eq!(allowed_cpus(), before);
}

pub fn settings_are_restored_after_a_panic() {
    let before = (allowed_cpus(), timer_slack(), Scheduling::current().unwrap().to_string());
    let last = *before.0.last().unwrap();
    // `resume_unwind` unwinds without printing a panic message.
    let outcome = catch_unwind(|| {
        let _settings = RealtimeRequest::new().pin(last).timer_slack(Ns(1)).fifo(1).apply();
        assert_eq!(allowed_cpus(), [last]);
        resume_unwind(Box::new("a job failed"));
    });
    assert!(outcome.is_err());
    assert_eq!((allowed_cpus(), timer_slack(), Scheduling::current().unwrap().to_string()), before);
}

pub fn timer_slack_is_set_and_restored() {
    let before = timer_slack();
    let settings = RealtimeRequest::new().timer_slack(Ns(1)).apply();
    assert_eq!(settings.notes(), []);
    assert_eq!(settings.changes().len(), 1);
    assert_eq!(timer_slack().trim(), "1");
    assert_eq!(settings.restore(), []);
    assert_eq!(timer_slack(), before);
}

pub fn an_impossible_setting_is_reported() {
    let before = allowed_cpus();
    for absent in [1023, u32::MAX] {
        let settings = RealtimeRequest::new().pin(CpuId(absent)).apply();
        assert_eq!(settings.notes().len(), 1);
        assert!(!settings.notes()[0].hint.is_empty());
        assert_eq!(settings.changes(), []);
    }
    assert_eq!(allowed_cpus(), before);
}

/// Without the capability and with a limit of 0 the kernel denies the policy to every user.
pub fn a_denied_policy_is_reported() {
    let limit = getrlimit(Resource::Rtprio);
    setrlimit(Resource::Rtprio, Rlimit { current: Some(0), ..limit }).unwrap();
    on_a_thread(|| {
        let held = capabilities(None).unwrap();
        set_capabilities(None, CapabilitySets { effective: CapabilitySet::empty(), ..held }).unwrap();
        let settings = RealtimeRequest::new().fifo(1).apply();
        assert_eq!(settings.notes()[0].subject, "SCHED_FIFO 1");
        assert!(settings.notes()[0].hint.contains("cap_sys_nice"));
        assert_eq!(settings.changes(), []);
    });
    setrlimit(Resource::Rtprio, limit).unwrap();
}

pub fn the_policy_is_set_and_restored() {
    let before = Scheduling::current().unwrap().to_string();
    let settings = RealtimeRequest::new().timer_slack(Ns(1)).fifo(7).apply();
    assert_eq!(settings.notes(), []);
    assert_eq!(Scheduling::current().unwrap().to_string(), "SCHED_FIFO 7");
    assert_eq!(settings.restore(), []);
    assert_eq!(Scheduling::current().unwrap().to_string(), before);
}

pub fn memory_is_locked_until_the_last_guard_goes() {
    let outer = RealtimeRequest::new().lock_memory().apply();
    assert_ne!(status("VmLck"), "0 kB");
    on_a_thread(|| drop(RealtimeRequest::new().lock_memory().apply()));
    assert_ne!(status("VmLck"), "0 kB");
    drop(outer);
    assert_eq!(status("VmLck"), "0 kB");
}

pub fn prefaulting_stops_before_the_stack_ends() {
    let stack = 1 << 20;
    let thread = std::thread::Builder::new().stack_size(stack).spawn(move || {
        assert_eq!(RealtimeRequest::new().prefault_stack(Bytes(64 << 10)).apply().notes(), []);
        // A request for more than the stack has must not overflow the stack, and is reported.
        assert_eq!(RealtimeRequest::new().prefault_stack(Bytes(64 << 20)).apply().notes().len(), 1);
    });
    thread.unwrap().join().unwrap();
}
