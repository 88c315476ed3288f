//! Signs that pages of a process may have other frames than before.

use std::fs;

use crate::process::Pid;

/// The kernel's counters of events that move pages without the program's knowledge: migration (compaction, NUMA balancing, memory taken offline), and
/// huge pages that are made or split. [Linux, mm/vmstat.c]
const COUNTERS: [&str; 6] = [
    "pgmigrate_success",
    "thp_migration_success",
    "thp_collapse_alloc",
    "thp_split_page",
    "numa_pages_migrated",
    "ksm_swpin_copy",
];

/// Values that are compared from one inspection to the next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Vitals {
    /// Start time of the process, in ticks since boot.
    pub started: u64,
    /// Number of page faults of the process so far. Each page that it touches for the first time, or that the kernel brings back, causes one.
    faults: u64,
    /// Sum of the kernel's counters.
    moved: u64,
}

/// Returns the sum of the kernel's counters of moved pages.
pub fn moved_by_the_kernel() -> u64 {
    sum_of(&fs::read_to_string("/proc/vmstat").unwrap_or_default())
}

fn sum_of(vmstat: &str) -> u64 {
    let value = |line: &str| {
        let (name, value) = line.split_once(' ')?;
        COUNTERS.contains(&name).then(|| value.trim().parse::<u64>().ok())?
    };
    vmstat.lines().filter_map(value).sum()
}

impl Vitals {
    /// Returns the vitals of `pid`, given the number of pages that the kernel has moved so far; `None` if the process has ended.
    pub fn of(pid: Pid, moved: u64) -> Option<Vitals> {
        // Fields 10 and 12 are minor and major faults. Those of children that have ended are fields 11 and 13.
        let [minor, major, started] = pid.stats([10, 12, 22]).ok()?;
        Some(Vitals { started, faults: minor + major, moved })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_counters_of_moved_pages_are_added() {
        assert_eq!(sum_of("nr_free_pages 100\npgmigrate_success 3\npgmigrate_fail 50\nthp_split_page 4\n"), 7);
    }

    #[test]
    fn a_touched_page_shows() {
        let own = Pid(std::process::id() as i32);
        let before = Vitals::of(own, 0).unwrap();
        let memory = vec![1u8; 8 << 20];
        assert!(std::hint::black_box(memory)[4096] == 1 && Vitals::of(own, 0).unwrap() != before);
        assert_eq!(Vitals::of(Pid(i32::MAX), 0), None);
    }
}
