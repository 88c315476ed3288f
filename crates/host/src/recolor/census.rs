//! Where the pages of a process are, by color.

use isochrome_model::units::Color;

use super::{Pid, RecolorError, Wanted, zero_frame};

/// Where the pages of a process are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Census {
    /// Number of pages that can be moved, by color.
    pub by_color: Vec<u64>,
    /// Number of pages of anonymous memory that can be moved, by color. Anonymous memory holds most of the data that a program works on.
    pub anonymous: Vec<u64>,
    /// Number of pages that can be moved and whose color is not known.
    pub unknown: u64,
    /// Number of pages that cannot be moved.
    pub immovable: u64,
}

impl Census {
    /// Adds the pages of another process.
    pub fn add(&mut self, other: &Census) {
        self.by_color.iter_mut().zip(&other.by_color).for_each(|(sum, pages)| *sum += pages);
        self.anonymous.iter_mut().zip(&other.anonymous).for_each(|(sum, pages)| *sum += pages);
        self.unknown += other.unknown;
        self.immovable += other.immovable;
    }

    /// Returns the number of pages that can be moved.
    pub fn movable(&self) -> u64 {
        self.by_color.iter().sum::<u64>() + self.unknown
    }

    /// Returns the share (0 to 1) of the movable pages that lie in `colors`; 1 without such pages.
    pub fn share_on(&self, colors: &[Color]) -> f64 {
        let on: u64 = colors.iter().filter_map(|color| self.by_color.get(usize::from(color.0))).sum();
        if self.movable() == 0 { 1.0 } else { on as f64 / self.movable() as f64 }
    }

    /// Returns how uneven the placement on `colors` is. This is the pages of the most frequent color divided by an even share, or an even share
    /// divided by the pages of the rarest color (at least one), whichever is more.
    ///
    /// The value is computed for all movable pages and for the anonymous ones, and the larger result is returned. A placement with fewer than `few`
    /// pages per color counts as even.
    pub fn crowding(&self, colors: &[Color], few: f64) -> f64 {
        let of = |pages: &[u64]| {
            let even = pages.iter().sum::<u64>() as f64 / colors.len().max(1) as f64;
            let of_color = || colors.iter().filter_map(|color| pages.get(usize::from(color.0)).copied());
            let (most, least) = (of_color().max().unwrap_or(0), of_color().min().unwrap_or(0).max(1));
            if even < few { 1.0 } else { (most as f64 / even).max(even / least as f64) }
        };
        of(&self.by_color).max(of(&self.anonymous))
    }
}

/// Returns where the pages of `pid` are, without stopping or changing the process.
pub fn census(pid: Pid, wanted: &Wanted) -> Result<Census, RecolorError> {
    let (regions, map, zero) = (pid.regions()?, pid.page_map()?, zero_frame());
    let none = vec![0; wanted.color_count()];
    let mut census = Census { by_color: none.clone(), anonymous: none, ..Census::default() };
    for region in regions.iter().filter(|region| region.name != "[vsyscall]") {
        for (page, entry) in map.resident(region.start, region.end)? {
            if zero.is_some() && entry.frame() == zero {
                continue;
            }
            if region.immovable.is_some() {
                census.immovable += 1;
                continue;
            }
            let color = wanted.known.of(pid.0, (page, entry)).map(|color| usize::from(color.0));
            match color.filter(|color| *color < census.by_color.len()) {
                Some(color) => {
                    census.by_color[color] += 1;
                    census.anonymous[color] += u64::from(!entry.of_file() && !region.of_file);
                }
                None => census.unknown += 1,
            }
        }
    }
    Ok(census)
}
