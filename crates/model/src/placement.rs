//! The placement of a buffer's or a program's pages over the colors of a cache, and its cost.
//!
//! A color of a cache with w ways holds w pages. For a direct-mapped cache, \[Hanemaaijer1993\] counts the number p(n) of cache
//! pages that n pages of a buffer share, and finds that run time is proportional to `sum = 2 p(2) + 3 p(3) + ...`: the pages that
//! compete. This module does the same for w ways: the pages of a color compete if there are more of them than ways.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::geometry::Geometry;
use crate::palette::Palette;
use crate::units::{Bytes, Color, FrameNumber};

/// The numbers that determine how many pages fit into one color of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ColorShape {
    /// Number of colors of the cache.
    pub colors: u32,
    /// Number of lines in a set, which is the number of pages that one color holds.
    pub ways: u32,
    /// Number of lines in a page.
    pub page_lines: u64,
}

impl ColorShape {
    /// Returns the shape of a cache of `geometry` in which `colors` colors were found.
    pub fn of(geometry: &Geometry, colors: u32, page_bytes: Bytes) -> ColorShape {
        ColorShape { colors, ways: geometry.ways, page_lines: page_bytes.0 / geometry.line_bytes.0.max(1) }
    }
}

/// A resident page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResidentPage {
    /// Virtual address divided by the page size.
    pub page: u64,
    /// Frame of the page; `None` if the kernel hides it.
    pub frame: Option<FrameNumber>,
    /// Whether the page is anonymous memory; otherwise it has the contents of a file, or is shared.
    pub anonymous: bool,
}

/// Owner and use of the memory of a mapping, which decides whether its pages can be moved to other colors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Memory of the process alone: anonymous memory, and private views of files. Only this kind can be moved.
    Private,
    /// Anonymous memory that is shared between processes.
    SharedMemory,
    /// A file without a name, as memfd_create(2) makes it.
    Memfd,
    /// A file in /dev/shm, as shm_open(3) makes it.
    DevShm,
    /// Shared memory as shmget(2) makes it.
    SysV,
    /// Any other file that is mapped shared.
    SharedFile,
    /// Huge pages of hugetlbfs.
    Hugetlbfs,
    /// Memory of a device.
    Device,
    /// Pages that the kernel maps into every process.
    Kernel,
    /// Memory that must stay because of its use by the process: protection keys, a userfaultfd of its own, asynchronous I/O, or
    /// shadow stacks.
    InUse,
}

impl Kind {
    /// Returns the name of the kind for people.
    pub fn label(self) -> &'static str {
        match self {
            Kind::Private => "private",
            Kind::SharedMemory => "shared memory",
            Kind::Memfd => "memfd",
            Kind::DevShm => "/dev/shm",
            Kind::SysV => "System V shared memory",
            Kind::SharedFile => "shared file",
            Kind::Hugetlbfs => "hugetlbfs",
            Kind::Device => "device",
            Kind::Kernel => "kernel",
            Kind::InUse => "in use",
        }
    }

    /// Returns whether the kernel counts this kind as resident memory of the process (`Rss`).
    pub fn is_counted(self) -> bool {
        !matches!(self, Kind::Hugetlbfs | Kind::Device)
    }
}

/// Resident pages of a process by kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Residence {
    /// Number of pages that the kernel counts as resident: the `Rss` of /proc/PID/smaps_rollup, which excludes hugetlbfs and
    /// devices.
    pub resident: u64,
    /// Number of private pages that do not belong to a file. They can be moved.
    pub anonymous: u64,
    /// Number of private pages with the contents of a file. They can be moved.
    pub private_file: u64,
    /// Number of pages of each kind that cannot be moved.
    pub immovable: BTreeMap<Kind, u64>,
}

impl Residence {
    /// Counts `pages` of a mapping of `kind`.
    pub fn add(&mut self, kind: Kind, pages: &[ResidentPage]) {
        let count = pages.len() as u64;
        if kind.is_counted() {
            self.resident += count;
        }
        if kind == Kind::Private {
            let anonymous = pages.iter().filter(|page| page.anonymous).count() as u64;
            self.anonymous += anonymous;
            self.private_file += count - anonymous;
        } else if count > 0 {
            *self.immovable.entry(kind).or_default() += count;
        }
    }

    /// Returns the number of pages that can be moved.
    pub fn movable(&self) -> u64 {
        self.anonymous + self.private_file
    }

    /// Formats the immovable pages, as in `"128 KiB shared memory, 4 KiB kernel"`; empty if all pages are movable.
    pub fn immovable_text(&self, page_bytes: Bytes) -> String {
        let kinds =
            self.immovable.iter().map(|(kind, pages)| format!("{} KiB {}", pages * page_bytes.0 / 1024, kind.label()));
        kinds.collect::<Vec<_>>().join(", ")
    }
}

/// Neighboring pages of a buffer. \[Hanemaaijer1993\]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Contiguity {
    /// Number of frames examined.
    pub frames: u64,
    /// Number of pairs of frames that are neighbors in physical memory.
    pub adjacent: u64,
    /// Number of adjacent pairs whose pages are also neighbors in virtual memory, in either direction.
    pub linear: u64,
}

impl Contiguity {
    /// Counts neighbors among `pages`. A frame that is mapped more than once counts once, at its lowest page.
    pub fn of(pages: &[ResidentPage]) -> Contiguity {
        let mut by_frame = BTreeMap::<FrameNumber, u64>::new();
        for ResidentPage { page, frame, .. } in pages {
            if let Some(frame) = frame {
                let lowest = by_frame.entry(*frame).or_insert(*page);
                *lowest = (*lowest).min(*page);
            }
        }
        let pairs = || by_frame.iter().zip(by_frame.iter().skip(1)).filter(|(a, b)| a.0.0 + 1 == b.0.0);
        Contiguity {
            frames: by_frame.len() as u64,
            adjacent: pairs().count() as u64,
            linear: pairs().filter(|(a, b)| a.1.abs_diff(*b.1) == 1).count() as u64,
        }
    }

    /// Returns the adjacent pairs as a share (0 to 1) of all possible pairs; `None` for fewer than two frames.
    pub fn share(&self) -> Option<f64> {
        (self.frames > 1).then(|| self.adjacent as f64 / (self.frames - 1) as f64)
    }
}

/// Expected misses per pass over all pages, in lines, in a cache that holds nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ExpectedMisses {
    /// Misses of repeated walks in order, under LRU: every line of the pages that compete, `sum x lines per page`.
    pub linear: f64,
    /// Misses of accesses in random order. Of n pages in w ways each is found with probability w/n, so this is `Σ max(0, n - w) x
    /// lines per page`.
    pub random: f64,
}

/// Number of resident pages of each color.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Placement {
    /// Number of frames of each color.
    pub per_color: Vec<u64>,
    /// Number of resident pages of unknown color, because the palette does not know the frame or the kernel hides it.
    pub unknown: u64,
}

impl Placement {
    /// Counts the colors of `pages` by `palette`. A frame that is mapped more than once occupies the cache once.
    pub fn of(pages: &[ResidentPage], palette: &Palette) -> Placement {
        let mut placement = Placement { per_color: vec![0; palette.colors as usize], unknown: 0 };
        let frames: BTreeSet<FrameNumber> = pages.iter().filter_map(|page| page.frame).collect();
        placement.unknown = pages.iter().filter(|page| page.frame.is_none()).count() as u64;
        for color in frames.into_iter().map(|frame| palette.color_of(frame)) {
            match color.and_then(|color| placement.per_color.get_mut(usize::from(color.0))) {
                Some(pages) => *pages += 1,
                None => placement.unknown += 1,
            }
        }
        placement
    }

    /// Returns the placement of a buffer whose page i has color `colors[i]`.
    pub fn of_colors(colors: impl IntoIterator<Item = Color>, count: u32) -> Placement {
        let mut placement = Placement { per_color: vec![0; count as usize], unknown: 0 };
        for color in colors {
            placement.per_color[usize::from(color.0)] += 1;
        }
        placement
    }

    /// Returns the most even placement of the same pages, without those of unknown color.
    pub fn balanced(&self) -> Placement {
        let (pages, colors) = (self.known(), self.per_color.len().max(1) as u64);
        let per_color = (0..self.per_color.len() as u64).map(|i| pages / colors + u64::from(i < pages % colors));
        Placement { per_color: per_color.collect(), unknown: 0 }
    }

    /// Returns the number of pages of known color.
    pub fn known(&self) -> u64 {
        self.per_color.iter().sum()
    }

    /// Returns the number of pages, of known and unknown color.
    pub fn pages(&self) -> u64 {
        self.known() + self.unknown
    }

    /// Returns the number of pages whose color is known and not among `colors`.
    pub fn outside(&self, colors: &[Color]) -> u64 {
        let outside = |(color, _): &(u16, &u64)| !colors.contains(&Color(*color));
        (0..).zip(&self.per_color).filter(outside).map(|(_, pages)| pages).sum()
    }

    /// Returns p(n): the number of colors that hold n pages, by n.
    pub fn counts(&self) -> BTreeMap<u64, u64> {
        let mut counts = BTreeMap::new();
        for pages in &self.per_color {
            *counts.entry(*pages).or_default() += 1;
        }
        counts
    }

    /// Returns the number of colors by their pages per way: 0 for no pages, 1 for up to `ways` pages, 2 for up to twice as many,
    /// and so on. For one way these are the counts of \[Hanemaaijer1993\].
    pub fn occupancy(&self, ways: u32) -> BTreeMap<u64, u64> {
        let mut occupancy = BTreeMap::new();
        for pages in &self.per_color {
            *occupancy.entry(pages.div_ceil(u64::from(ways.max(1)))).or_default() += 1;
        }
        occupancy
    }

    /// Returns `sum = Σ n p(n)` over all n greater than `ways`: the pages of the colors that hold more pages than fit.
    ///
    /// For one way this is the sum of \[Hanemaaijer1993\], to which the misses of a walk in order are proportional.
    pub fn sum(&self, ways: u32) -> u64 {
        self.per_color.iter().filter(|pages| **pages > u64::from(ways)).sum()
    }

    /// Returns the number of pages that do not fit: `Σ max(0, n - w)`.
    pub fn excess(&self, ways: u32) -> u64 {
        self.per_color.iter().map(|pages| pages.saturating_sub(u64::from(ways))).sum()
    }

    /// Returns the expected misses per pass of this placement in a cache of `shape`.
    pub fn expected_misses(&self, shape: ColorShape) -> ExpectedMisses {
        let lines = |pages: u64| pages as f64 * shape.page_lines as f64;
        ExpectedMisses { linear: lines(self.sum(shape.ways)), random: lines(self.excess(shape.ways)) }
    }
}

/// A placement with all quantities that follow from it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Assessment {
    /// Number of resident pages.
    pub pages: u64,
    /// Number of pages of each color, and of unknown color.
    #[serde(flatten)]
    pub placement: Placement,
    /// Number of colors by their pages per way: [`Placement::occupancy`].
    pub occupancy: BTreeMap<u64, u64>,
    /// Number of pages in overfull colors: [`Placement::sum`].
    pub sum: u64,
    /// Neighboring pages.
    pub contiguity: Contiguity,
    /// Expected misses of this placement.
    pub misses: ExpectedMisses,
    /// Expected misses of the same number of pages, spread evenly.
    pub misses_balanced: ExpectedMisses,
}

impl Assessment {
    /// Assesses the placement of `pages` by `palette` in a cache of `shape`.
    pub fn of(pages: &[ResidentPage], palette: &Palette, shape: ColorShape) -> Assessment {
        let placement = Placement::of(pages, palette);
        Assessment {
            pages: placement.pages(),
            occupancy: placement.occupancy(shape.ways),
            sum: placement.sum(shape.ways),
            contiguity: Contiguity::of(pages),
            misses: placement.expected_misses(shape),
            misses_balanced: placement.balanced().expected_misses(shape),
            placement,
        }
    }
}

/// Version of the map file.
pub const SCHEMA: &str = "isochrome-map/1";

/// One mapping of a program, with the colors of its pages.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MappingColors {
    /// First address of the mapping.
    pub start: u64,
    /// First address behind the mapping.
    pub end: u64,
    /// Permissions as in /proc/PID/maps, such as `rw-p`.
    pub permissions: String,
    /// File of the mapping, or a name such as `[heap]`; empty for anonymous memory.
    pub name: String,
    /// Kind of the memory.
    pub kind: Kind,
    /// Placement of the mapping's pages, with all quantities that follow from it.
    #[serde(flatten)]
    pub assessment: Assessment,
}

/// Colors of a program's resident pages: the map of \[Hanemaaijer1993\] for any cache.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ColorMap {
    /// Version of the format: [`SCHEMA`].
    pub schema: String,
    /// Number of the process.
    pub pid: u32,
    /// Name of the process.
    pub command: String,
    /// Cache level whose colors are shown.
    pub level: u8,
    /// Shape that determines how many pages fit into a color.
    pub shape: ColorShape,
    /// Bytes per page.
    pub page_bytes: Bytes,
    /// Placement of all pages together. A frame that is mapped more than once counts once.
    pub total: Assessment,
    /// Resident memory by kind.
    pub memory: Residence,
    /// Mappings that have resident pages, by address.
    pub mappings: Vec<MappingColors>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::palette::{Rule, SCHEMA};
    use proptest::prelude::*;

    /// Returns a placement in which p(n) colors hold n pages, for each (n, p(n)).
    fn with_counts(counts: &[(u64, usize)]) -> Placement {
        let per_color = counts.iter().flat_map(|(n, colors)| std::iter::repeat_n(*n, *colors)).collect();
        Placement { per_color, unknown: 0 }
    }

    #[test]
    fn sum_is_that_of_the_papers_tables() {
        // [Hanemaaijer1993, tables (1) and (2)]: the rows whose pages add up to 64. The last row is the worst case, all pages on four
        // colors.
        for (counts, sum) in [
            (&[(1, 64)][..], 0),
            (&[(1, 60), (2, 2)], 4),
            (&[(1, 38), (2, 13)], 26),
            (&[(1, 36), (2, 14)], 28),
            (&[(1, 34), (2, 15)], 30),
            (&[(1, 32), (2, 8), (3, 4), (4, 1)], 32),
            (&[(1, 29), (2, 10), (3, 5)], 35),
            (&[(1, 27), (2, 14), (3, 3)], 37),
            (&[(1, 50), (2, 7)], 14),
            (&[(1, 24), (2, 14), (3, 4)], 40),
            (&[(16, 4)], 64),
        ] {
            let placement = with_counts(counts);
            assert_eq!((placement.pages(), placement.sum(1)), (64, sum), "{counts:?}");
            assert_eq!(placement.occupancy(1), counts.iter().map(|(n, p)| (*n, *p as u64)).collect());
        }
    }

    #[test]
    fn with_more_ways_only_colors_that_hold_more_pages_than_ways_compete() {
        // Four colors of 8 ways with 8, 9, 20 and 0 pages: 29 compete, 1 + 12 do not fit, and 37 pages over 4 colors are 9 or 10 each.
        let placement = with_counts(&[(8, 1), (9, 1), (20, 1), (0, 1)]);
        assert_eq!((placement.sum(8), placement.excess(8)), (29, 13));
        assert_eq!(placement.occupancy(8), BTreeMap::from([(0, 1), (1, 1), (2, 1), (3, 1)]));
        let shape = ColorShape { colors: 4, ways: 8, page_lines: 64 };
        assert_eq!(placement.expected_misses(shape), ExpectedMisses { linear: 29.0 * 64.0, random: 13.0 * 64.0 });
        assert_eq!(placement.balanced().per_color, [10, 9, 9, 9]);
        assert_eq!(placement.balanced().excess(8), 5);
    }

    #[test]
    fn contiguity_counts_neighbors_as_the_paper_does() {
        // Frames 10, 11, 12 hold pages 0, 1, 7; frames 20 and 21 hold pages 3 and 2. Neighbors: 10-11, 11-12, 20-21; of these 11-12
        // are not neighbors in virtual memory.
        let pages: Vec<ResidentPage> = [(0, 10), (1, 11), (2, 21), (3, 20), (7, 12)]
            .map(|(page, frame)| ResidentPage { page, frame: Some(FrameNumber(frame)), anonymous: true })
            .into();
        let contiguity = Contiguity::of(&pages);
        assert_eq!(contiguity, Contiguity { frames: 5, adjacent: 3, linear: 2 });
        assert_eq!(contiguity.share(), Some(0.75));
        assert_eq!(Contiguity::of(&pages[..1]).share(), None);
    }

    #[test]
    fn frames_without_a_color_are_counted_and_shared_ones_counted_once() {
        let frames: Vec<FrameNumber> = (0..8).map(FrameNumber).collect();
        let rule = Rule::Table { colors: (0..8).map(|i| Color(i % 4)).collect(), frames };
        let palette = Palette { schema: SCHEMA.into(), level: 2, colors: 4, rule, fingerprint: None, boot_id: None };
        let page =
            |page: u64, frame: Option<u64>| ResidentPage { page, frame: frame.map(FrameNumber), anonymous: true };
        let pages = [page(0, Some(1)), page(1, Some(1)), page(2, Some(5)), page(3, Some(9)), page(4, None)];
        let placement = Placement::of(&pages, &palette);
        assert_eq!(placement, Placement { per_color: vec![0, 2, 0, 0], unknown: 2 });
        assert_eq!((placement.known(), placement.pages()), (2, 4));
        assert_eq!((placement.outside(&[Color(0)]), placement.outside(&[Color(1)])), (2, 0));
    }

    #[test]
    fn all_resident_memory_is_counted_by_kind() {
        let page = |page, anonymous| ResidentPage { page, frame: None, anonymous };
        let mut residence = Residence::default();
        residence.add(Kind::Private, &[page(0, true), page(1, false), page(2, true)]);
        residence.add(Kind::SharedMemory, &[page(3, false), page(4, false)]);
        residence.add(Kind::Hugetlbfs, &[page(5, false)]);
        residence.add(Kind::Memfd, &[]);
        assert_eq!((residence.resident, residence.anonymous, residence.private_file), (5, 2, 1));
        assert_eq!(residence.movable(), 3);
        assert_eq!(residence.immovable_text(Bytes(4096)), "8 KiB shared memory, 4 KiB hugetlbfs");
        let json = serde_json::to_value(&residence).unwrap();
        assert_eq!(json["immovable"], serde_json::json!({ "shared_memory": 2, "hugetlbfs": 1 }));
    }

    /// Simulates LRU with three passes in order over the pages of every color, and returns the misses of the last pass.
    fn lru_misses(per_color: &[u64], ways: usize) -> u64 {
        let mut misses = 0;
        for pages in per_color {
            let mut stack: Vec<u64> = Vec::new();
            for pass in 0..3 {
                for page in 0..*pages {
                    let found = stack.iter().position(|held| *held == page);
                    if found.is_none() && pass == 2 {
                        misses += 1;
                    }
                    found.map(|at| stack.remove(at));
                    stack.insert(0, page);
                    stack.truncate(ways);
                }
            }
        }
        misses
    }

    proptest! {
        #[test]
        fn sum_is_what_lru_misses_on_a_walk_in_order(
            per_color in prop::collection::vec(0u64..24, 1..12), ways in 1u32..12
        ) {
            let placement = Placement { per_color, unknown: 0 };
            prop_assert_eq!(placement.sum(ways), lru_misses(&placement.per_color, ways as usize));
        }

        #[test]
        fn no_placement_of_as_many_pages_leaves_fewer_out_than_the_balanced_one(
            per_color in prop::collection::vec(0u64..24, 1..12), ways in 1u32..12
        ) {
            let placement = Placement { per_color, unknown: 3 };
            let balanced = placement.balanced();
            prop_assert_eq!(balanced.known(), placement.known());
            prop_assert!(balanced.excess(ways) <= placement.excess(ways));
        }
    }
}
