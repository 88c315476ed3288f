//! No files under /sys, /proc and /etc make the readers of machines and the checks of doctor panic, and a machine that is accepted has consistent caches.
//!
//! The input is parts `file<TAB>contents` with a byte 1 between them, where a file is a number in the list below.
#![no_main]

use std::fs;
use std::path::PathBuf;
use std::sync::LazyLock;
use std::time::Duration;

use isochrome_host::doctor::{Trials, examination};
use isochrome_host::machine::steal::CpuTicks;
use isochrome_host::machine::sysfs::Sysfs;
use isochrome_model::units::CpuId;
use libfuzzer_sys::fuzz_target;

const FILES: [&str; 36] = [
    "proc/cpuinfo",
    "proc/meminfo",
    "proc/zoneinfo",
    "proc/self/smaps",
    "sys/devices/system/cpu/online",
    "sys/devices/system/cpu/cpu0/cache/index0/level",
    "sys/devices/system/cpu/cpu0/cache/index0/type",
    "sys/devices/system/cpu/cpu0/cache/index0/size",
    "sys/devices/system/cpu/cpu0/cache/index0/ways_of_associativity",
    "sys/devices/system/cpu/cpu0/cache/index0/coherency_line_size",
    "sys/devices/system/cpu/cpu0/cache/index0/number_of_sets",
    "sys/devices/system/cpu/cpu0/cache/index0/shared_cpu_list",
    "sys/devices/system/cpu/cpu0/cache/index0/id",
    "sys/module/page_reporting/parameters/page_reporting_order",
    "sys/hypervisor/type",
    "page_bytes",
    "proc/stat",
    "proc/loadavg",
    "proc/buddyinfo",
    "proc/swaps",
    "proc/self/status",
    "proc/self/mounts",
    "proc/1/comm",
    "proc/sys/kernel/sched_rt_runtime_us",
    "proc/sys/kernel/sched_rt_period_us",
    "proc/sys/vm/max_map_count",
    "sys/kernel/mm/transparent_hugepage/enabled",
    "sys/kernel/mm/transparent_hugepage/hpage_pmd_size",
    "sys/kernel/mm/ksm/run",
    "sys/kernel/mm/ksm/pages_sharing",
    "sys/devices/system/cpu/isolated",
    "sys/devices/system/cpu/nohz_full",
    "sys/devices/system/cpu/smt/active",
    "sys/bus/virtio/drivers/virtio_balloon/virtio0/features",
    "etc/os-release",
    "etc/default/grub",
];

/// Permissions and abilities of this machine that the checks judge together with the files.
static TRIALS: LazyLock<Trials> = LazyLock::new(|| Trials::run(Duration::ZERO));

/// A folder of this process in memory, with a machine of one CPU and one cache, of which the inputs replace files.
static ROOT: LazyLock<PathBuf> = LazyLock::new(|| std::env::temp_dir().join(format!("isochrome-fuzz-{}", std::process::id())));

fuzz_target!(|text: &str| {
    let _ = fs::remove_dir_all(&*ROOT);
    let plain = ["", "", "", "", "0", "2", "Unified", "1024K", "16", "64", "1024", "0", "0", "9", "", "4096"];
    let mut contents = [""; FILES.len()];
    contents[..plain.len()].copy_from_slice(&plain);
    for line in text.split('\u{1}') {
        if let Some((file, content)) = line.split_once('\t')
            && let Some(place) = file.parse::<usize>().ok().and_then(|file| contents.get_mut(file))
        {
            *place = content;
        }
    }
    for (file, content) in FILES.iter().zip(contents).filter(|(_, content)| !content.is_empty()) {
        let path = ROOT.join(file);
        fs::create_dir_all(path.parent().expect("a file lies in a folder")).expect("a folder can be made");
        fs::write(path, content).expect("a file can be written");
    }
    let sysfs = Sysfs::at(&ROOT);
    if let Ok((machine, _)) = sysfs.machine() {
        machine.fingerprint();
        if let Some(level) = machine.colorable_level(CpuId(0)) {
            assert!(level.level > 0);
        }
    }
    sysfs.reported_block_frames();
    sysfs.normal_zone_start();
    sysfs.running_threads();
    sysfs.is_virtual();
    sysfs.huge_page_bytes();
    sysfs.largest_order();
    if let Some(ticks) = CpuTicks::read(&sysfs, None) {
        ticks.steal_share_since(ticks);
        ticks.steal_since(ticks);
    }
    examination(&sysfs, &TRIALS);
    let _ = fs::remove_dir_all(&*ROOT);
});
