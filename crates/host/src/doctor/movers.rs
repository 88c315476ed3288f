//! Checks of the mechanisms that move pages to other frames without the program's knowledge.

use super::{Check, ROOT, Status};
use crate::machine::sysfs::Sysfs;

/// Returns a check of each mechanism of this kernel that moves pages to other frames without the program's knowledge, so that its colors
/// drift.
pub fn movers(sysfs: &Sysfs) -> Vec<Check> {
    let mut all = vec![compaction(sysfs)];
    all.extend(proactive_compaction(sysfs));
    all.extend(huge_pages(sysfs));
    all.push(same_page_merging(sysfs));
    all.push(numa_balancing(sysfs));
    all.extend(swap(sysfs));
    all.extend(free_page_reporting(sysfs));
    all
}

fn compaction(sysfs: &Sysfs) -> Check {
    const NAME: &str = "compaction";
    match sysfs.text("proc/sys/vm/compact_unevictable_allowed").as_deref() {
        None => Check::new(NAME, Status::Ok, "not in this kernel", "it moves no pages"),
        Some("0") => Check::new(NAME, Status::Ok, "spares locked pages", "colors of locked memory last"),
        Some(_) => Check::new(NAME, Status::Limited, "may move locked pages", "colors can change while a task runs")
            .remedy("sysctl vm.compact_unevictable_allowed=0", ROOT),
    }
}

fn proactive_compaction(sysfs: &Sysfs) -> Option<Check> {
    const NAME: &str = "compaction in advance";
    Some(match sysfs.text("proc/sys/vm/compaction_proactiveness")?.as_str() {
        "0" => Check::new(NAME, Status::Ok, "off", "pages are moved only when large blocks of memory are requested"),
        level => Check::new(
            NAME,
            Status::Limited,
            format!("vm.compaction_proactiveness {level}"),
            "the kernel moves pages in the background to make large blocks: their colors drift",
        )
        .remedy("sysctl vm.compaction_proactiveness=0", ROOT),
    })
}

pub(super) fn huge_pages(sysfs: &Sysfs) -> Option<Check> {
    const FILE: &str = "sys/kernel/mm/transparent_hugepage/enabled";
    let text = sysfs.text(FILE)?;
    let mode = text.split_once('[')?.1.split_once(']')?.0;
    Some(match mode {
        "always" => Check::new(
            "transparent huge pages",
            Status::Limited,
            mode,
            "a huge page has every color; it is split when moved, which takes milliseconds, and may form again",
        )
        .remedy(format!("echo madvise > /{FILE}"), ROOT),
        _ => Check::new("transparent huge pages", Status::Ok, mode, "pages stay small unless a program asks otherwise"),
    })
}

fn same_page_merging(sysfs: &Sysfs) -> Check {
    const NAME: &str = "same-page merging";
    match sysfs.text("sys/kernel/mm/ksm/run").as_deref() {
        None => Check::new(NAME, Status::Ok, "not in this kernel", "it moves no pages"),
        Some("1") => Check::new(
            NAME,
            Status::Limited,
            "on",
            "equal pages become one frame, and get another when written: their colors drift, and merged pages cannot be moved",
        )
        .remedy("echo 2 > /sys/kernel/mm/ksm/run", ROOT),
        Some(_) => Check::new(NAME, Status::Ok, "off", "it moves no pages"),
    }
}

fn numa_balancing(sysfs: &Sysfs) -> Check {
    const NAME: &str = "NUMA balancing";
    match sysfs.text("proc/sys/kernel/numa_balancing").as_deref() {
        None => Check::new(NAME, Status::Ok, "not in this kernel", "it moves no pages"),
        Some("0") => Check::new(NAME, Status::Ok, "off", "it moves no pages"),
        Some(_) => Check::new(NAME, Status::Limited, "on", "pages move to the node that uses them: their colors drift")
            .remedy("sysctl kernel.numa_balancing=0", ROOT),
    }
}

pub(super) fn swap(sysfs: &Sysfs) -> Option<Check> {
    let areas = sysfs.text("proc/swaps")?.lines().skip(1).filter(|line| !line.trim().is_empty()).count();
    Some(match areas {
        0 => Check::new("swap", Status::Ok, "off", "pages stay where they are"),
        _ => Check::new(
            "swap",
            Status::Limited,
            format!("{areas} in use"),
            "a page that was swapped out returns in another frame",
        )
        .remedy("swapoff -a", ROOT),
    })
}

pub(super) fn free_page_reporting(sysfs: &Sysfs) -> Option<Check> {
    let frames = sysfs.reported_block_frames()?;
    let check = Check::new(
        "free page reporting",
        Status::Limited,
        format!("free memory goes to the host in blocks of {frames} pages"),
        "memory that was free lies on other frames of the host when it is used again, so its colors change",
    );
    Some(check.remedy("echo 10 > /sys/module/page_reporting/parameters/page_reporting_order", ROOT))
}
