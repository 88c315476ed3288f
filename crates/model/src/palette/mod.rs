//! Page colors: which pages compete for the same sets of a cache.
//!
//! Color is a property of a page *frame*. On bare metal the color is a few bits of the frame number, and on processors that
//! hash the set index it is a linear function of them. A virtual machine sees frame numbers that differ from those that the
//! cache sees, so there the color comes from a table made by measuring. The host collects [`samples::Samples`], and
//! [`infer()`] derives the palette from them.

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

/// How a frame number determines a color.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "rule", rename_all = "snake_case")]
pub enum Rule {
    /// The color consists of the set-index bits above the page offset: it is the frame number modulo the number of colors.
    Bits,
    /// Bit i of the color is the parity of the frame number under `masks[i]`.
    Linear {
        /// One mask for each bit of the color.
        masks: Vec<u64>,
    },
    /// The color is not a function of the frame number. The colors of the measured frames are valid for this boot only.
    Table {
        /// The measured frames, ascending.
        frames: Vec<FrameNumber>,
        /// Color of each frame. In the file this field has another name, because `colors` is the number of colors there.
        #[serde(rename = "frame_colors")]
        colors: Vec<Color>,
    },
    /// The kernel hides frame numbers. Colors are known only for the pages that were measured, inside the process that measured
    /// them.
    Hidden,
}

/// The colors of one cache level.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Palette {
    /// Version of the format: [`SCHEMA`].
    pub schema: String,
    /// Cache level whose colors these are.
    pub level: u8,
    /// Number of colors.
    pub colors: u32,
    /// How a frame number determines a color.
    #[serde(flatten)]
    pub rule: Rule,
    /// [`Machine::fingerprint`](crate::machine::Machine::fingerprint) of the machine on which the palette was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<String>,
    /// Identifier of the boot in which the palette was measured. A table is valid in this boot only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_id: Option<String>,
}

impl Palette {
    /// Returns the color of `frame`; `None` if the palette does not know it.
    pub fn color_of(&self, frame: FrameNumber) -> Option<Color> {
        match &self.rule {
            Rule::Bits => Some(Color((frame.0 % u64::from(self.colors.max(1))) as u16)),
            Rule::Linear { masks } => Some(Color(gf2::color_under(masks, frame.0))),
            Rule::Table { frames, colors } => frames.binary_search(&frame).ok().and_then(|i| colors.get(i).copied()),
            Rule::Hidden => None,
        }
    }

    /// Forgets every aligned block of `frames_per_block` frames of which all frames are known, and returns how many frames
    /// it forgot.
    ///
    /// A virtual machine that reports free memory returns such a block to its host once it is free. When the block is used again, it
    /// may be backed by other frames of the host, of other colors.
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

    /// Returns the frames whose color was measured one by one, ascending; `None` if a rule gives the color of every frame.
    pub fn frames(&self) -> Option<&[FrameNumber]> {
        match &self.rule {
            Rule::Table { frames, .. } => Some(frames),
            Rule::Hidden => Some(&[]),
            Rule::Bits | Rule::Linear { .. } => None,
        }
    }
}
