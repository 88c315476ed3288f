//! No files under /sys and /proc make the reader of machines panic, and a machine that it accepts has consistent caches.
//!
//! The input is lines of `file<TAB>contents`, where a file is a number in the list below.
#![no_main]

use std::fs;
use std::path::PathBuf;
use std::sync::LazyLock;

use isochrome_host::machine::sysfs::Sysfs;
use isochrome_model::units::CpuId;
use libfuzzer_sys::fuzz_target;

const FILES: [&str; 16] = [
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
];

/// A folder of this process in memory, with a machine of one CPU and one cache, of which the inputs replace files.
static ROOT: LazyLock<PathBuf> = LazyLock::new(|| std::env::temp_dir().join(format!("isochrome-fuzz-{}", std::process::id())));

fuzz_target!(|text: &str| {
    let _ = fs::remove_dir_all(&*ROOT);
    let plain = ["", "", "", "", "0", "2", "Unified", "1024K", "16", "64", "1024", "0", "0", "9", "", "4096"];
    let mut contents: Vec<&str> = plain.to_vec();
    for line in text.split('\u{1}') {
        if let Some((file, content)) = line.split_once('\t')
            && let Some(place) = file.parse::<usize>().ok().and_then(|file| contents.get_mut(file))
        {
            *place = content;
        }
    }
    for (file, content) in FILES.iter().zip(contents) {
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
    let _ = fs::remove_dir_all(&*ROOT);
});
