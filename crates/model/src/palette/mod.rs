//! Page colors: which pages compete for the same sets of a cache.
//!
//! Color is a property of a page *frame*. On bare metal it is a few bits of the frame number, on processors that hash the
//! set index a linear function of them, and inside a virtual machine, where the frame numbers one sees are not those the
//! cache sees, nothing but a table made by measuring. [`samples::Samples`] are what the host collects; [`infer()`]
//! concludes.

pub mod decode;
pub mod infer;
pub mod merge;
pub mod samples;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::gf2;
use crate::units::{Color, FrameNumber};

pub use infer::{Doubt, Inference, agreement, infer};
pub use merge::{Merged, merge};
pub use samples::{Group, Method, PageSample, Samples};

/// Version of the palette file.
pub const SCHEMA: &str = "isochrome-palette/1";

/// How a frame number leads to a color.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "rule", rename_all = "snake_case")]
pub enum Rule {
    /// The set-index bits above the page offset: the frame number modulo the number of colors.
    Bits,
    /// Bit i of the color is the parity of the frame number under `masks[i]`.
    Linear {
        /// One mask per color bit.
        masks: Vec<u64>,
    },
    /// No function of the frame number: the frames measured, for this boot only.
    Table {
        /// Frames, ascending.
        frames: Vec<FrameNumber>,
        /// The color of each; in files beside the number of colors, so under another name.
        #[serde(rename = "frame_colors")]
        colors: Vec<Color>,
    },
    /// Frame numbers are hidden here: colors are known only of the pages measured, inside the process that measured them.
    Hidden,
}

/// The colors of one cache level.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Palette {
    /// [`SCHEMA`].
    pub schema: String,
    /// Cache level.
    pub level: u8,
    /// Number of colors.
    pub colors: u32,
    /// How a frame leads to its color.
    #[serde(flatten)]
    pub rule: Rule,
    /// [`Machine::fingerprint`](crate::machine::Machine::fingerprint) of the machine it was measured on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<String>,
    /// The boot it was measured in: a table holds for that one only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_id: Option<String>,
}

impl Palette {
    /// Color of `frame`; `None` when the palette does not know it.
    pub fn color_of(&self, frame: FrameNumber) -> Option<Color> {
        match &self.rule {
            Rule::Bits => Some(Color((frame.0 % u64::from(self.colors.max(1))) as u16)),
            Rule::Linear { masks } => Some(Color(gf2::color_under(masks, frame.0))),
            Rule::Table { frames, colors } => frames.binary_search(&frame).ok().and_then(|i| colors.get(i).copied()),
            Rule::Hidden => None,
        }
    }

    /// Forgets the frames of every aligned block of `frames_per_block` frames of which all are known; says how many.
    ///
    /// A virtual machine that reports free memory gives such a block back to its host once it is free, and finds it on other frames of
    /// the host, of other colors, when it is used again.
    pub fn forget_whole_blocks(&mut self, frames_per_block: u64) -> usize {
        let Rule::Table { frames, colors } = &mut self.rule else { return 0 };
        let before = frames.len();
        let block = |frame: &FrameNumber| frame.0 / frames_per_block.max(1);
        let mut kept = Vec::with_capacity(before);
        let mut at = 0;
        for run in frames.chunk_by(|a, b| block(a) == block(b)) {
            if (run.len() as u64) < frames_per_block {
                kept.extend(run.iter().copied().zip(colors[at..].iter().copied()));
            }
            at += run.len();
        }
        (*frames, *colors) = kept.into_iter().unzip();
        before - frames.len()
    }

    /// Frames whose color was measured one by one, ascending; `None` where a rule gives the color of every frame.
    pub fn frames(&self) -> Option<&[FrameNumber]> {
        match &self.rule {
            Rule::Table { frames, .. } => Some(frames),
            Rule::Hidden => Some(&[]),
            Rule::Bits | Rule::Linear { .. } => None,
        }
    }
}
