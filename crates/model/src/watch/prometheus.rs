//! The result of a watch as metrics for Prometheus.

use std::fmt::Write;

use super::{TaskStatistics, Watched};
use crate::printable;

impl Watched {
    /// Formats the statistics in the text format of Prometheus.
    pub fn prometheus(&self) -> String {
        let mut text = String::new();
        let escape = |name: &str| printable::line(name).replace('\\', "\\\\").replace('"', "\\\"");
        let mut family = |name: &str, kind: &str, help: &str, value: &dyn Fn(&TaskStatistics) -> Option<f64>| {
            let values: Vec<_> =
                self.tasks.iter().filter_map(|(thread, task)| Some((thread, task, value(task)?))).collect();
            if values.is_empty() {
                return;
            }
            let _ = writeln!(text, "# HELP isochrome_{name} {help}\n# TYPE isochrome_{name} {kind}");
            for (thread, task, value) in values {
                let name_of_task = escape(&task.name);
                let _ = writeln!(text, "isochrome_{name}{{thread=\"{thread}\",name=\"{name_of_task}\"}} {value}");
            }
        };
        family("run_seconds_total", "counter", "Time on a CPU.", &|task| Some(task.run_ns as f64 / 1e9));
        family("slices_total", "counter", "Number of times that the task got a CPU.", &|task| Some(task.slices as f64));
        family("preemptions_total", "counter", "Number of preemptions of the task.", &|task| {
            Some(task.preemptions as f64)
        });
        family("migrations_total", "counter", "Number of slices on another CPU than the slice before.", &|task| {
            Some(task.migrations as f64)
        });
        family("slice_seconds_max", "gauge", "Longest slice seen; not a bound.", &|task| {
            Some(task.slice_ns_max.value as f64 / 1e9)
        });
        family("job_seconds_max", "gauge", "Most time on a CPU between two sleeps; not a bound.", &|task| {
            Some(task.job_ns_max?.value as f64 / 1e9)
        });
        family("instructions_total", "counter", "Instructions retired.", &|task| {
            Some(task.counts?.instructions as f64)
        });
        family("cycles_total", "counter", "Cycles of the core.", &|task| Some(task.counts?.cycles as f64));
        family("instructions_per_cycle", "gauge", "Instructions per cycle, over all of the watch.", &|task| {
            task.instructions_per_cycle()
        });
        family("misses_total", "counter", "Cache misses.", &|task| Some(task.counts?.misses as f64));
        family("accesses_total", "counter", "Cache accesses.", &|task| Some(task.counts?.accesses as f64));
        family("miss_ratio_worst", "gauge", "Highest miss ratio of a slice.", &|task| task.miss_ratio_worst);
        let mut single = |name: &str, kind: &str, help: &str, values: &[(String, f64)]| {
            if !values.is_empty() {
                let _ = writeln!(text, "# HELP isochrome_{name} {help}\n# TYPE isochrome_{name} {kind}");
            }
            for (labels, value) in values {
                let _ = writeln!(text, "isochrome_{name}{labels} {value}");
            }
        };
        let plain = |value: f64| vec![(String::new(), value)];
        let known = |value: Option<f64>| value.map_or(Vec::new(), plain);
        let lost = "Events that the kernel had no room for.";
        single("events_lost_total", "counter", lost, &plain(self.lost as f64));
        let taken = "Number of times that others took the counters of a CPU.";
        single("counters_taken_total", "counter", taken, &plain(self.counters_taken as f64));
        let steal = self.state.steal.iter().map(|steal| (format!("{{cpu=\"{}\"}}", steal.cpu.0), steal.share));
        let help = "Share of the time of a CPU that the hypervisor gave to others.";
        single("steal_ratio", "gauge", help, &steal.collect::<Vec<_>>());
        let cost = self.state.cost;
        let own = "Share of one CPU that watching takes.";
        single("watch_cpu_ratio", "gauge", own, &known(cost.map(|cost| cost.cpu_share)));
        let kernel = "Share of one CPU that the kernel takes to write events, estimated.";
        single("watch_kernel_ratio", "gauge", kernel, &known(cost.and_then(|cost| Some(cost.kernel_share()?[0]))));
        let events = "Events that the kernel writes per second.";
        single("watch_events_per_second", "gauge", events, &known(cost.map(|cost| cost.events_per_second)));
        text
    }
}

#[cfg(test)]
mod tests {
    use crate::watch::fixture::slice;
    use crate::watch::{Counts, Entry, Slice, SwitchOut, Watched};

    #[test]
    fn instructions_per_cycle_are_reported_to_prometheus() {
        let mut watched = Watched::default();
        let counts = Some(Counts { accesses: 4000, misses: 1000, instructions: 9000, cycles: 4500 });
        watched.note(&Entry::Slice(Slice { counts, ..slice(7, 0, 400, 1400, SwitchOut::Asleep) }));
        let metrics = watched.prometheus();
        assert!(metrics.contains("isochrome_instructions_per_cycle{thread=\"7\",name=\"task 7\"} 2\n"), "{metrics}");
        assert!(metrics.contains("isochrome_cycles_total{thread=\"7\",name=\"task 7\"} 4500\n"), "{metrics}");
    }
}
