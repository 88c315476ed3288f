//! The CPUs near the memory of a process, on machines whose memory is divided among nodes (NUMA).

use std::collections::BTreeMap;

use isochrome_model::units::CpuId;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::machine::sysfs::Sysfs;
use crate::process::Pid;

/// Guard that keeps this thread, and the helpers that it creates, on CPUs of the node that holds most of a process's memory.
///
/// The kernel takes frames from the node of the CPU that touches memory. Frames of another node would be slow for the process, and NUMA balancing
/// would soon replace them by frames of any color. Nothing is changed on a machine with one node, or if this program may not run on the node.
pub struct Near {
    /// The CPUs that the thread may run on otherwise; `None` if nothing was changed.
    before: Option<CpuSet>,
}

impl Near {
    /// Goes to the CPUs near the memory of `pid`.
    pub fn to(pid: Pid) -> Near {
        let go = || {
            let before = sched_getaffinity(None).ok()?;
            let mut near = CpuSet::new();
            let allowed = |cpu: &CpuId| (cpu.0 as usize) < CpuSet::MAX_CPU && before.is_set(cpu.0 as usize);
            cpus_near(&Sysfs::system(), || pid.text("numa_maps").ok())?
                .iter()
                .filter(|cpu| allowed(cpu))
                .for_each(|cpu| near.set(cpu.0 as usize));
            (near.count() > 0 && sched_setaffinity(None, &near).is_ok()).then_some(before)
        };
        Near { before: go() }
    }
}

impl Drop for Near {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            // The thread ran on these CPUs before.
            let _ = sched_setaffinity(None, &before);
        }
    }
}

/// Returns the CPUs of the node that holds most of the anonymous memory of a process; `None` if the memory of the machine is one node, or if the
/// kernel does not show the nodes of the process's memory. `numa_maps`: how to read /proc/PID/numa_maps of the process.
fn cpus_near(sysfs: &Sysfs, numa_maps: impl FnOnce() -> Option<String>) -> Option<Vec<CpuId>> {
    if sysfs.text("sys/devices/system/node/has_memory")?.parse::<u32>().is_ok() {
        return None;
    }
    let (node, _) = pages_by_node(&numa_maps()?).into_iter().max_by_key(|(_, pages)| *pages)?;
    sysfs.cpus_in(&format!("sys/devices/system/node/node{node}/cpulist")).ok()?
}

/// Returns the number of pages on each node of the mappings with anonymous memory, given the text of /proc/PID/numa_maps. [numa(7)]
fn pages_by_node(numa_maps: &str) -> BTreeMap<u32, u64> {
    let mut pages = BTreeMap::new();
    for line in numa_maps.lines().filter(|line| line.contains(" anon=")) {
        let counts = line.split_ascii_whitespace().filter_map(|word| word.strip_prefix('N')?.split_once('='));
        for (node, count) in counts.filter_map(|(node, count)| Some((node.parse().ok()?, count.parse::<u64>().ok()?))) {
            *pages.entry(node).or_default() += count;
        }
    }
    pages
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::sysfs::fake::Fake;

    const NUMA_MAPS: &str = "\
        55d0c8a00000 default file=/usr/bin/python3.13 mapped=700 N0=700 kernelpagesize_kB=4\n\
        55d0c9200000 default heap anon=300 dirty=300 N0=100 N1=200 kernelpagesize_kB=4\n\
        7f0000000000 bind:1 anon=40 dirty=40 active=0 N1=40 kernelpagesize_kB=4\n\
        7f0000800000 default file=/nowhere anon=2 dirty=2 N0=2 kernelpagesize_kB=4\n\
        7ffc00000000 default stack\n";

    #[test]
    fn anonymous_memory_is_counted_by_node() {
        assert_eq!(pages_by_node(NUMA_MAPS), [(0, 102), (1, 240)].into());
    }

    #[test]
    fn the_cpus_near_a_process_are_those_of_the_node_with_most_of_its_memory() {
        let near = |has_memory: &str, numa_maps: Option<&str>| {
            let node = "sys/devices/system/node";
            let files = [("has_memory", has_memory), ("node0/cpulist", "0-3\n"), ("node1/cpulist", "4,6\n")];
            let files = files.map(|(file, text)| (format!("{node}/{file}"), text));
            let machine = Fake::new(&files.each_ref().map(|(file, text)| (file.as_str(), *text)));
            cpus_near(&machine.files(), || numa_maps.map(str::to_owned))
        };
        assert_eq!(near("0-1\n", Some(NUMA_MAPS)), Some(vec![CpuId(4), CpuId(6)]));
        assert_eq!(near("0-1\n", Some("7ffc00000000 default stack\n")), None);
        assert_eq!(near("0-1\n", None), None);
        assert_eq!(near("0\n", Some(NUMA_MAPS)), None);
    }
}
