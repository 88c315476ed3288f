//! State of the thread that a test runs on.

use isochrome_model::units::{CpuId, parse_list};

/// Returns a field of the calling thread's status file.
pub fn status(field: &str) -> String {
    let text = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':')).unwrap_or_default().trim().to_owned()
}

pub fn allowed_cpus() -> Vec<CpuId> {
    let cpus = parse_list(&status("Cpus_allowed_list"), 1 << 16).unwrap();
    cpus.into_iter().map(CpuId).collect()
}

pub fn timer_slack() -> String {
    std::fs::read_to_string("/proc/thread-self/timerslack_ns")
        .or_else(|_| std::fs::read_to_string(format!("/proc/{}/timerslack_ns", std::process::id())))
        .unwrap()
}

pub fn on_a_thread<T: Send + 'static>(body: impl FnOnce() -> T + Send + 'static) -> T {
    std::thread::spawn(body).join().unwrap()
}
