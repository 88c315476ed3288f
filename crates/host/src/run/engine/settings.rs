//! Settings of the machine that a run changes or depends on, with their values before, during and after the run.

use std::path::Path;

use isochrome_model::running::Setting;

use crate::machine::idle::{self, IdleHold};
use crate::machine::sysfs::Sysfs;
use crate::run::shielding::CpuShield;

/// The settings before a run, and the idle-state hold during it.
pub(super) struct Settings {
    throttling: String,
    latency: String,
    latency_during: String,
    idle_hold: IdleHold,
}

impl Settings {
    /// Reads the settings, and keeps idle CPUs out of states that take long to leave.
    pub(super) fn hold() -> Settings {
        let (throttling, before) = (throttling(), latency());
        let idle_hold = IdleHold::new(Path::new("/"));
        Settings { throttling, latency: before, latency_during: latency(), idle_hold }
    }

    /// Restores everything, including the affinities of threads in `shield`. Returns the settings with their values, and a description of what
    /// could not be restored.
    ///
    /// `alone`: whether other programs were kept off the CPUs. `locked`: describes which memory was locked.
    pub(super) fn restore(self, shield: CpuShield, alone: bool, locked: String) -> (Vec<Setting>, Option<String>) {
        drop(self.idle_hold);
        let (moved, staying) = (shield.moved(), shield.staying);
        let threads = |count| format!("{count} thread{}", if count == 1 { "" } else { "s" });
        let [before, during, after] = match &shield.by_affinity {
            _ if !alone => ["left", "left", "left"].map(str::to_owned),
            Some(why) => [
                threads(moved + staying),
                format!("{} that may run nowhere else; kept off by affinity: {why}", threads(staying)),
                String::new(),
            ],
            None => ["anywhere", "kept off by a partition of cgroup v2 for each CPU", "anywhere"].map(str::to_owned),
        };
        let restored = shield.restore();
        let after = if after.is_empty() { format!("CPUs given back to {}", threads(restored.threads)) } else { after };
        let setting = |name: &str, before, during, after| Setting { name: name.to_owned(), before, during, after };
        let settings = vec![
            setting("other programs on the CPUs of the tasks", before, during, after),
            setting("memory of the tasks", "not locked".to_owned(), locked, "theirs, and they have ended".to_owned()),
            setting("kernel.sched_rt_runtime_us", self.throttling.clone(), self.throttling, throttling()),
            setting("latency of idle CPUs (cpu_dma_latency)", self.latency, self.latency_during, latency()),
        ];
        (settings, restored.trouble)
    }
}

fn throttling() -> String {
    Sysfs::system().text("proc/sys/kernel/sched_rt_runtime_us").unwrap_or_default().trim().to_owned()
}

fn latency() -> String {
    idle::latency(Path::new("/"))
}
