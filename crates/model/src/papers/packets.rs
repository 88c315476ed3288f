//! [Loeser1999] on the modeled Pentium II: what a packet costs a network stack after the flood that leaves the double-purge state.
//!
//! The stack itself is not modeled, only the lines that it touches. Packets touch a fixed set of lines of data and code, and, where
//! they are copied, the lines of both buffers. The time of a packet in the best case is the paper's; the caches add to it.

use serde::Deserialize;

use super::{Played, Wrong, machine};
use crate::evidence::figure::{Chart, Dash, Hue, Line};
use crate::flood::DoublePurge;
use crate::sim::{Access, Hierarchy, Kind, MachineModel};

/// Packets of several sizes in one direction.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Packets {
    /// Name of the modeled machine.
    machine: String,
    /// Lines of data that every packet reads and writes.
    data_lines: u64,
    /// Lines of code that every packet executes.
    code_lines: u64,
    /// Copies of the whole packet in main memory.
    copies: u64,
    /// Floods of a packet: 1, or 2 for one before each half of its way.
    floods: u64,
    /// Cycles of a packet without floods, and of each of its bytes.
    best_cycles: [f64; 2],
    /// Sizes of the packets in bytes.
    sizes: Vec<u64>,
}

/// Use of the stack's colors by floods.
#[derive(Clone, Copy, PartialEq)]
enum Flooding {
    None,
    Others,
    All,
}

/// Colors of the stack: from the third on, because the flooder keeps the first two for itself. [Loeser1999, §3.2.2]
const FIRST_COLOR: u64 = 2;

impl Packets {
    pub(super) fn play(&self) -> Result<Played, Wrong> {
        let model = machine(&self.machine)?;
        let cases = [
            ("flooded", Flooding::All, Hue::Unpartitioned, Dash::Solid),
            ("partitioned", Flooding::Others, Hue::Partitioned, Dash::Dashed),
            ("best case", Flooding::None, Hue::Alone, Dash::Thin),
        ];
        let (mut played, mut lines) = (Played::default(), Vec::new());
        for (name, flooding, hue, dash) in cases {
            let mut points = Vec::new();
            for &size in &self.sizes {
                let best = self.best_cycles[0] + self.best_cycles[1] * size as f64;
                let overhead = self.cycles(&model, size, flooding)? - self.cycles(&model, size, Flooding::None)?;
                points.push((size as f64, best + overhead));
                if flooding != Flooding::None {
                    played.number(format!("{name}: overhead at {size}, %"), 100.0 * overhead / best);
                }
            }
            lines.push(Line::new(name, hue, dash, points));
        }
        let description = "The paper's time in the best case, and what the modeled caches add to it after floods.";
        played.chart("", Chart::linear("Cycles per packet", description, ["packet, bytes", "cycles"], lines));
        Ok(played)
    }

    /// Returns the cycles that the caches take for a packet of `size` bytes.
    fn cycles(&self, model: &MachineModel, size: u64, flooding: Flooding) -> Result<f64, Wrong> {
        let levels: Vec<_> = model.levels.iter().map(|level| level.cache.geometry).collect();
        let (&[.., first, second], page) = (&levels[..], model.page_bytes.0) else {
            return Err(format!("{} has no second level", model.name).into());
        };
        let pattern = DoublePurge::new(first, second)?;
        let colors = u64::from(second.color_count(model.page_bytes));
        let (line, own) = (first.line_bytes.0, FIRST_COLOR..FIRST_COLOR + colors / 2);
        // Frames of the stack's colors, far behind those of the flooder.
        let row = (pattern.area().0 / page).next_multiple_of(colors);
        let place = |number: u64, area: u64| {
            let (page_of, offset) = (number * line / page, number * line % page);
            let (round, color) = (page_of / (colors / 2), FIRST_COLOR + page_of % (colors / 2));
            (row + (area * 64 + round) * colors + color) * page + offset
        };
        let flood = |caches: &mut Hierarchy| {
            if flooding == Flooding::None {
                return;
            }
            for access in pattern.accesses() {
                if flooding == Flooding::All || !own.contains(&(access.offset.0 / page % colors)) {
                    caches.access(Access::write(access.offset.0));
                }
            }
            // The flooder's own code fills the first level for instructions.
            let code = (0..first.cache_bytes().0 / line).map(|i| (1 << 34) + i * line);
            code.for_each(|address| caches.access(Access { kind: Kind::Fetch, ..Access::read(address) }));
        };
        let mut caches = model.hierarchy(1)?;
        let mut cycles = 0;
        for packet in 0..3u64 {
            cycles = 0;
            for half in 0..self.floods {
                flood(&mut caches);
                let before = caches.clock();
                let share = |lines: u64| lines * half / self.floods..lines * (half + 1) / self.floods;
                for number in share(self.code_lines) {
                    caches.access(Access { kind: Kind::Fetch, ..Access::read(place(number, 0)) });
                }
                for number in share(self.data_lines) {
                    caches.access(Access::read(place(number, 1)));
                    caches.access(Access::write(place(number, 1)));
                }
                // The whole packet is copied on the last part of its way. The card has put it into memory, so that it is in no cache.
                if half + 1 == self.floods {
                    for (copy, number) in
                        (0..self.copies).flat_map(|copy| (0..size.div_ceil(line)).map(move |n| (copy, n)))
                    {
                        let from = if copy == 0 {
                            (1 << 35) + packet * (1 << 20) + number * line
                        } else {
                            place(number, 1 + copy)
                        };
                        caches.access(Access::read(from));
                        caches.access(Access::write(place(number, 2 + copy)));
                    }
                }
                cycles += caches.clock() - before;
            }
        }
        Ok(cycles as f64)
    }
}
