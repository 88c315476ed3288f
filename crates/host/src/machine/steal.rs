//! Steal time, read from /proc/stat: time in which the hypervisor ran something else.

use isochrome_model::units::{CpuId, Ns};

use crate::machine::sysfs::Sysfs;

/// Ticks of a CPU since the start of the system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuTicks {
    /// Ticks of all kinds together.
    pub all: u64,
    /// Ticks of steal time, in which the hypervisor ran something else.
    pub steal: u64,
}

impl CpuTicks {
    /// Reads the ticks of `cpu`, or of all CPUs together if `cpu` is `None`. Returns `None` where the kernel does not count them.
    pub fn read(sysfs: &Sysfs, cpu: Option<CpuId>) -> Option<CpuTicks> {
        let stat = sysfs.text("proc/stat")?;
        let label = cpu.map_or_else(|| "cpu".to_owned(), |cpu| format!("cpu{}", cpu.0));
        let line = stat.lines().find_map(|line| line.strip_prefix(&label)?.strip_prefix(' '))?;
        // user nice system idle iowait irq softirq steal; the two guest times that follow are part of user and nice.
        let fields: Vec<u64> = line.split_whitespace().map_while(|t| t.parse().ok()).take(8).collect();
        Some(CpuTicks { all: fields.iter().sum(), steal: *fields.get(7)? })
    }

    /// Returns the share of the ticks since `before` that is steal time; `None` if no tick has passed.
    pub fn steal_share_since(self, before: CpuTicks) -> Option<f64> {
        let ticks = self.all.checked_sub(before.all).filter(|&ticks| ticks > 0)?;
        Some(self.steal.saturating_sub(before.steal) as f64 / ticks as f64)
    }

    /// Returns the steal time since `before`, to the resolution of a tick.
    pub fn steal_since(self, before: CpuTicks) -> Ns {
        let tick_ns = 1_000_000_000 / rustix::param::clock_ticks_per_second().max(1);
        Ns(self.steal.saturating_sub(before.steal) * tick_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_those_of_the_cpu_asked_for() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("proc")).unwrap();
        std::fs::write(
            root.path().join("proc/stat"),
            "cpu  500 0 200 300 0 0 0 10 0 0\ncpu0 100 0 0 100 0 0 0 4 0 0\ncpu10 1 1 1 1 1 1 1 9 0 0\nintr 5\n",
        )
        .unwrap();
        let sysfs = Sysfs::at(root.path());
        assert_eq!(CpuTicks::read(&sysfs, None), Some(CpuTicks { all: 1010, steal: 10 }));
        assert_eq!(CpuTicks::read(&sysfs, Some(CpuId(0))), Some(CpuTicks { all: 204, steal: 4 }));
        assert_eq!(CpuTicks::read(&sysfs, Some(CpuId(10))), Some(CpuTicks { all: 16, steal: 9 }));
        assert_eq!(CpuTicks::read(&sysfs, Some(CpuId(1))), None);
    }

    #[test]
    fn steal_time_is_a_difference() {
        let (before, after) = (CpuTicks { all: 1000, steal: 10 }, CpuTicks { all: 1200, steal: 12 });
        assert_eq!(after.steal_share_since(before), Some(0.01));
        assert_eq!(before.steal_share_since(before), None);
        assert_eq!(before.steal_since(after), Ns(0));
    }
}
