//! Samples of pages and evictions, which the host collects to infer a palette.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::geometry::Geometry;
use crate::units::{Bytes, FrameNumber};

/// Version of the samples file.
pub const SCHEMA: &str = "isochrome-palette-samples/1";

/// Method by which evictions or colors were observed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Method {
    /// Frame-number bits, verified by eviction tests.
    Bits,
    /// Time of a walk over the page, inside the measuring process alone.
    Timing,
    /// Demand misses, counted by hardware counters.
    Counters,
}

impl Method {
    /// Returns the name used on the command line and in files.
    pub fn name(self) -> &'static str {
        match self {
            Method::Bits => "bits",
            Method::Timing => "timing",
            Method::Counters => "counters",
        }
    }
}

/// Pages that evict each other.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Group {
    /// Pages of the eviction set, by their numbers in [`Samples::pages`].
    pub set: Vec<u32>,
}

/// Observations of one page.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PageSample {
    /// Frame of the page, if the kernel shows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frame: Option<FrameNumber>,
    /// Eviction tests. Each holds, for every group in order, the percentage of the page's lines that the group's eviction set
    /// evicted.
    #[serde(rename = "looks")]
    pub tests: Vec<Vec<u8>>,
}

/// All observations from which a palette is inferred.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Samples {
    /// Version of the format: [`SCHEMA`].
    pub schema: String,
    /// Cache level that was measured.
    pub level: u8,
    /// Declared geometry of the level.
    pub geometry: Geometry,
    /// Bytes per page.
    pub page_bytes: Bytes,
    /// Method by which evictions were observed.
    pub method: Method,
    /// Groups of pages that evict each other.
    pub groups: Vec<Group>,
    /// Cross table: row i, column j has the share (0 to 1) of a page of group i that the eviction set of group j evicts.
    pub cross: Vec<Vec<f32>>,
    /// Pages that were classified.
    pub pages: Vec<PageSample>,
}

/// Error for samples that do not fit together, because the file was cut or edited.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{what} has {found} entries where {expected} are due\n  hint: the samples were cut or edited; collect them again"
)]
pub struct Misshapen {
    /// Name of the part that does not fit.
    pub what: String,
    /// Number of entries found.
    pub found: usize,
    /// Number of entries expected.
    pub expected: usize,
}

impl Samples {
    /// Checks that every test, the cross table and each of its rows have one entry per group. With [`Method::Bits`] there
    /// must also be one group per color. The sizes of a page and of a line must not be zero, and the cache must have a size.
    pub fn check(&self) -> Result<(), Misshapen> {
        if self.page_bytes.0 == 0 || self.geometry.line_bytes.0 == 0 || self.geometry.checked_bytes().is_none() {
            return Err(Misshapen { what: "a page, a line or a cache".to_owned(), found: 0, expected: 1 });
        }
        let groups = self.groups.len();
        if self.method == Method::Bits {
            let expected = self.geometry.color_count(self.page_bytes) as usize;
            if groups != expected {
                return Err(Misshapen { what: "the list of groups".to_owned(), found: groups, expected });
            }
        }
        let fits = |what: &dyn Fn() -> String, found: usize| {
            if found == groups { Ok(()) } else { Err(Misshapen { what: what(), found, expected: groups }) }
        };
        fits(&|| "the cross table".to_owned(), self.cross.len())?;
        for (i, row) in self.cross.iter().enumerate() {
            fits(&|| format!("row {i} of the cross table"), row.len())?;
        }
        for (i, page) in self.pages.iter().enumerate() {
            for test in &page.tests {
                fits(&|| format!("a test of page {i}"), test.len())?;
            }
        }
        Ok(())
    }
}
