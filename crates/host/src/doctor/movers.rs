//! Checks of the mechanisms that move pages to other frames without the program's knowledge.

use super::remedy::{Action, sysctl, write};
use super::{Check, Gain, Price, Status};
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
            .fix(sysctl("vm.compact_unevictable_allowed", 0), Gain::Colors, Price::Harmless),
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
        .fix(sysctl("vm.compaction_proactiveness", 0), Gain::Colors, Price::Harmless),
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
        .fix(
            write(FILE, "madvise", Some("transparent_hugepage=madvise".to_owned())),
            Gain::Colors,
            Price::Harmless,
        ),
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
        .fix(write("sys/kernel/mm/ksm/run", 2, None), Gain::Colors, unmerging(sysfs)),
        Some(_) => Check::new(NAME, Status::Ok, "off", "it moves no pages"),
    }
}

/// Returns the price of giving every merged page a frame of its own again: memory, which may be short.
fn unmerging(sysfs: &Sysfs) -> Price {
    let merged = sysfs.text("sys/kernel/mm/ksm/pages_sharing").and_then(|pages| pages.parse::<u64>().ok());
    let needed = merged.zip(sysfs.page_bytes().ok()).map(|(pages, page)| pages.saturating_mul(page.0));
    match needed.zip(sysfs.memory("MemAvailable")) {
        Some((needed, available)) if needed <= available.0 / 2 => Price::Harmless,
        _ => Price::Host,
    }
}

fn numa_balancing(sysfs: &Sysfs) -> Check {
    const NAME: &str = "NUMA balancing";
    match sysfs.text("proc/sys/kernel/numa_balancing").as_deref() {
        None => Check::new(NAME, Status::Ok, "not in this kernel", "it moves no pages"),
        Some("0") => Check::new(NAME, Status::Ok, "off", "it moves no pages"),
        Some(_) => Check::new(NAME, Status::Limited, "on", "pages move to the node that uses them: their colors drift")
            .fix(sysctl("kernel.numa_balancing", 0), Gain::Colors, Price::Harmless),
    }
}

pub(super) fn swap(sysfs: &Sysfs) -> Option<Check> {
    let text = sysfs.text("proc/swaps")?;
    let areas: Vec<&str> = text.lines().skip(1).filter_map(|line| line.split_whitespace().next()).collect();
    Some(match areas.as_slice() {
        [] => Check::new("swap", Status::Ok, "off", "pages stay where they are"),
        areas => Check::new(
            "swap",
            Status::Limited,
            format!("{} in use", areas.len()),
            "a page that was swapped out returns in another frame",
        )
        .fix(
            Action::Run { now: "swapoff -a".to_owned(), lasting: without_swap(sysfs, areas).map(str::to_owned) },
            Gain::Colors,
            Price::Host,
        ),
    })
}

/// Returns the command that keeps these areas unused after the next boot; `None` if it is not known who uses them.
fn without_swap(sysfs: &Sysfs, areas: &[&str]) -> Option<&'static str> {
    let in_table = |text: String| {
        let mut lines = text.lines().filter(|line| !line.trim_start().starts_with('#'));
        lines.any(|line| line.split_whitespace().nth(2) == Some("swap"))
    };
    if areas.iter().all(|area| area.starts_with("/dev/zram")) {
        // An empty file takes the place of the distribution's own.
        let generator = "usr/lib/systemd/system-generators/zram-generator";
        sysfs.has(generator).then_some(": > /etc/systemd/zram-generator.conf")
    } else if areas.contains(&"/var/swap") && sysfs.has_program("dphys-swapfile") {
        Some("systemctl disable dphys-swapfile")
    } else if sysfs.text("etc/fstab").is_some_and(in_table) {
        Some("sed -i '/^[^#].*[[:space:]]swap[[:space:]]/s/^/#/' /etc/fstab")
    } else {
        None
    }
}

pub(super) fn free_page_reporting(sysfs: &Sysfs) -> Option<Check> {
    const ORDER: &str = "sys/module/page_reporting/parameters/page_reporting_order";
    /// Order of the largest block on most machines with pages of 4 KiB.
    const USUAL: u32 = 10;
    let frames = sysfs.reported_block_frames()?;
    let check = Check::new(
        "free page reporting",
        Status::Limited,
        format!("free memory goes to the host in blocks of {frames} pages"),
        "memory that was free lies on other frames of the host when it is used again, so its colors change; larger blocks go there less often",
    );
    let largest = sysfs.largest_order().unwrap_or(USUAL);
    let order = sysfs.text(ORDER).and_then(|order| order.parse::<u32>().ok());
    Some(match order {
        Some(order) if order < largest => check.fix(
            write(ORDER, largest, Some(format!("page_reporting.page_reporting_order={largest}"))),
            Gain::Colors,
            Price::Harmless,
        ),
        // There are no larger blocks, or the kernel does not let one choose.
        _ => check,
    })
}
