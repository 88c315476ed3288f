//! The resident pages of a process, classified by what a recoloring has to do with them.

use std::collections::BTreeMap;

use isochrome_model::units::FrameNumber;
use schemars::JsonSchema;
use serde::Serialize;

use super::error::RecolorError;
use super::page_map::PageMap;
use super::wanted::Wanted;
use crate::color::pagemap::PageEntry;
use crate::process::{Pid, Region};

/// The resident pages of one mapping, counted by what a recoloring did or would do with them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct RegionReport {
    /// First address of the mapping.
    pub start: u64,
    /// First address behind the mapping.
    pub end: u64,
    /// File of the mapping, or the kernel's name in brackets; empty for anonymous memory.
    pub name: String,
    /// Number of resident pages.
    pub resident: usize,
    /// Number of pages that had an allowed color already.
    pub on_color: usize,
    /// Number of pages off color that were moved to an allowed color, or would be.
    pub moved: usize,
    /// Number of pages off color that cannot be moved.
    pub immovable: usize,
    /// The pages that cannot be moved, counted by the reason.
    pub why: BTreeMap<String, usize>,
}

impl RegionReport {
    /// Counts a page that cannot be moved, for the reason `why`.
    pub(super) fn leave(&mut self, why: &str) {
        self.immovable += 1;
        match self.why.get_mut(why) {
            Some(pages) => *pages += 1,
            None => drop(self.why.insert(why.to_owned(), 1)),
        }
    }
}

/// A page that is off color and can be moved.
pub struct OffColorPage {
    /// Index of the page's mapping.
    pub region: usize,
    pub address: u64,
    /// Whether the kernel refills the page with a frame that is freed just before, as it cannot be moved.
    pub refilled: bool,
}

/// A page of plain memory that is on color. If it is moved to another zone, the kernel can refill another page with its frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Donor {
    /// Index of the page's mapping.
    pub region: usize,
    pub address: u64,
    /// Index of its color among those allowed.
    pub color: usize,
    pub frame: Option<FrameNumber>,
}

/// The resident pages of a process, classified by color.
#[derive(Default)]
pub struct Classified {
    /// Report on each mapping, as a recoloring would leave it.
    pub reports: Vec<RegionReport>,
    /// Pages that have to move, ascending.
    pub off_color: Vec<OffColorPage>,
    /// Addresses of pages that have an allowed color, ascending.
    pub on_color: Vec<u64>,
    /// The pages of plain memory among those with an allowed color.
    pub donors: Vec<Donor>,
    /// Frames of all pages; empty where frame numbers are hidden.
    pub frames: Vec<FrameNumber>,
    /// For each mapping with pages off color, the number of its pages of each allowed color.
    pub held: BTreeMap<usize, Vec<usize>>,
}

/// Reason why a page stays that the kernel has merged with equal pages: the kernel would merge it again.
const MERGED: &str = "is merged with equal pages";

/// Whether the kernel has merged a page of `region` with equal pages (KSM).
fn is_merged(region: &Region, entry: PageEntry) -> bool {
    region.mergeable && !entry.of_file() && entry.shares_its_frame()
}

/// Classifies every resident page. Pages with the frame `zero` are left out.
pub fn classify(
    pid: Pid,
    regions: &[Region],
    map: &PageMap,
    wanted: &Wanted,
    zero: Option<FrameNumber>,
) -> Result<Classified, RecolorError> {
    let mut classified = Classified::default();
    // The vsyscall page lies outside of user space and has no entry.
    for (number, region) in regions.iter().enumerate().filter(|(_, region)| region.name != "[vsyscall]") {
        let mut report = RegionReport {
            start: region.start,
            end: region.end,
            name: region.name.clone(),
            resident: 0,
            on_color: 0,
            moved: 0,
            immovable: 0,
            why: BTreeMap::new(),
        };
        let mut held = vec![0; wanted.colors.len()];
        for (page, entry) in map.resident(region.start, region.end)? {
            if zero.is_some() && entry.frame() == zero {
                continue;
            }
            report.resident += 1;
            classified.frames.extend(entry.frame());
            if let Some(color) = wanted.allowed_page(pid, page, entry) {
                report.on_color += 1;
                classified.on_color.push(page);
                held[color] += 1;
                if region.immovable.is_none() && region.is_plain_memory() && !is_merged(region, entry) {
                    classified.donors.push(Donor { region: number, address: page, color, frame: entry.frame() });
                }
            } else if let Some(why) = region.immovable.or(is_merged(region, entry).then_some(MERGED)) {
                report.leave(why);
            } else {
                report.moved += 1;
                classified.off_color.push(OffColorPage {
                    region: number,
                    address: page,
                    refilled: !region.is_plain_memory(),
                });
            }
        }
        if report.moved > 0 {
            classified.held.insert(number, held);
        }
        if report.resident > 0 {
            classified.reports.push(report);
        }
    }
    Ok(classified)
}
