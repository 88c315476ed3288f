//! Cost of a network stack per packet, and the cache's part of that cost: the experiment of [Loeser1999, §3 and 4].

mod section;
mod traffic;

use isochrome_model::flood::Pattern;
use isochrome_model::stats::{BLOCKS_MIN, Effect, HighWaterMark, median};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::samples::{Accepted, Arm, Block, Judged, accept};

pub use section::section;
pub use traffic::{Division, Sending, pages_per_color};

/// Path that packets take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Path {
    /// smoltcp with a card in memory.
    Memory,
    /// smoltcp with a TAP device that leads to the kernel's UDP.
    Tap,
    /// The kernel's UDP over the loopback device.
    Kernel,
}

/// Direction of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// The packet is sent. A flood comes before the packet.
    Send,
    /// The packet is received. A flood comes before the request, and another before the packet is taken from the card.
    Receive,
}

/// Kind of flood, and use of the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Setting {
    /// All components share the cache, and the flood merely writes.
    Naive,
    /// All components share the cache, and the flood follows the chosen pattern.
    Flooded,
    /// Each component has colors of its own, and the chosen pattern floods the other colors.
    Partitioned,
}

/// Condition of a block. Times of different conditions are never mixed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub struct Condition {
    /// Direction of the packet.
    pub direction: Direction,
    /// Bytes of a packet's payload.
    pub bytes: usize,
    /// Kind of flood, and use of the cache.
    pub setting: Setting,
}

/// The values of a sample: ticks that driver, server and client spent on a packet.
pub const COLUMNS: [&str; 3] = ["driver", "server", "client"];

/// Returns the ticks of all components together.
fn total(packet: &[f64]) -> f64 {
    packet.iter().sum()
}

/// A block is not accepted if its packets after spinning are slow, as that shows a disturbance.
pub const JUDGED: Judged = Judged { cost: total, canary: None };

/// Cost of a packet in one condition.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Point {
    /// Condition of the measurement.
    #[serde(flatten)]
    pub condition: Condition,
    /// Median time after a flood, in ns.
    pub flooded_ns: f64,
    /// Median time of the control, in ns.
    pub control_ns: f64,
    /// Share by which packets take longer after a flood than in the control of the same block: the effect. Unlike times, it does not depend on
    /// the clock of the core, which may change from block to block.
    pub overhead: f64,
    /// 95 % confidence interval of the effect; `None` for fewer than six blocks, and in files of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval: Option<[f64; 2]>,
    /// Median times of driver, server and client after a flood, in ns.
    pub flooded_by_component_ns: [f64; 3],
    /// Median times of driver, server and client in the control, in ns.
    pub control_by_component_ns: [f64; 3],
    /// Longest time after a flood, in ns. This is an observation, not a bound.
    pub flooded_ns_max: HighWaterMark,
    /// Number of blocks run.
    pub blocks: u64,
    /// Number of accepted blocks.
    pub blocks_quiet: u64,
}

/// Result of the experiment on one path.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Net {
    /// Path of the packets.
    pub path: Path,
    /// Cache level that was flooded and divided.
    pub level: u8,
    /// Flood that is compared with mere writing.
    pub pattern: Pattern,
    /// Number of colors of driver, server, client and flooder if they are divided.
    pub colors: [u32; 4],
    /// Rate in Hz of the counter by which packets were timed: the processor's time-stamp counter, as in the paper. The rate is 0 in older files,
    /// which lack it.
    #[serde(default)]
    pub counter_hz: u64,
    /// Results of all conditions, ordered by direction, size and setting.
    pub points: Vec<Point>,
}

/// Cost of packets on every path.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Packets {
    /// Results on the paths.
    pub paths: Vec<Net>,
}

/// Packet size in bytes at which the paper states its overheads: the usual limit on an Ethernet.
pub const BYTES_STATED: usize = 1500;
/// Share of the packet sizes at which the partitioned time must lie between the times alone and flooded.
pub const BETWEEN_AT_LEAST: f64 = 0.8;

/// Returns one point for each condition in `blocks`, which are of one path. Times in `blocks` are ticks of a counter of `counter_hz` Hz.
pub fn conclude(blocks: &[Block<Condition>], counter_hz: u64) -> Vec<Point> {
    let ns = |ticks: f64| ticks * 1e9 / counter_hz as f64;
    let point = |accepted: &Accepted<'_, Condition>| {
        let overhead = |block: &&Block<Condition>| block.difference(total) / block.median(Arm::Control, total).max(1.0);
        let overhead = Effect::of(&accepted.blocks.iter().map(overhead).collect::<Vec<_>>())?;
        // Median over the blocks, because packets of one block are more alike than packets of several blocks.
        let over = |arm, of: &dyn Fn(&[f64]) -> f64| {
            let blocks: Vec<f64> = accepted.blocks.iter().map(|block| block.median(arm, of)).collect();
            ns(median(&blocks).unwrap_or_default())
        };
        let by_component = |arm| [0, 1, 2].map(|part| over(arm, &|packet| packet[part]));
        Some(Point {
            condition: accepted.condition,
            flooded_ns: over(Arm::Treatment, &total),
            control_ns: over(Arm::Control, &total),
            overhead: overhead.estimate,
            interval: overhead.interval,
            flooded_by_component_ns: by_component(Arm::Treatment),
            control_by_component_ns: by_component(Arm::Control),
            flooded_ns_max: accepted.longest(Arm::Treatment, |packet| ns(total(packet)))?,
            blocks: accepted.run,
            blocks_quiet: accepted.n(),
        })
    };
    accept(blocks, &JUDGED).iter().filter_map(point).collect()
}

/// The times of one packet size and direction: the time alone, and that time lengthened by the overhead of each setting.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Row {
    /// Bytes of a packet's payload.
    pub bytes: usize,
    /// Time without a flood, in ns: the control of [`Setting::Flooded`].
    pub alone_ns: f64,
    /// Time after a flood by mere writing, in ns.
    pub naive_ns: f64,
    /// Time after a flood by the chosen pattern, in ns.
    pub flooded_ns: f64,
    /// Time after a flood by the chosen pattern if each component has its own colors, in ns.
    pub partitioned_ns: f64,
    /// Share by which own colors lengthen a packet by themselves, without a flood.
    pub colors_alone: f64,
    /// Plain medians of the flooded times, in ns, without and with own colors. They include the cost of having fewer colors and any change of
    /// the core's clock from block to block.
    pub plain_ns: [f64; 2],
    /// Number of accepted blocks of the setting that has the fewest.
    pub blocks_quiet: u64,
}

impl Row {
    /// Whether every setting has enough accepted blocks.
    pub fn is_conclusive(&self) -> bool {
        self.blocks_quiet >= BLOCKS_MIN
    }

    /// Whether the partitioned time lies between the times alone and flooded.
    pub fn is_between(&self) -> bool {
        self.alone_ns < self.partitioned_ns && self.partitioned_ns < self.flooded_ns
    }

    /// Whether the partitioned time lies between the times alone and flooded if plain medians are taken for the partitioned and the flooded time.
    pub fn is_plainly_between(&self) -> bool {
        let [flooded, partitioned] = self.plain_ns;
        self.alone_ns < partitioned && partitioned < flooded
    }

    /// Returns by how much a packet takes longer than alone, in percent: after a flood by mere writing, after a flood by the chosen pattern, and
    /// after that flood with own colors.
    pub fn overheads(&self) -> [f64; 3] {
        [self.naive_ns, self.flooded_ns, self.partitioned_ns].map(|ns| 100.0 * (ns / self.alone_ns - 1.0))
    }
}

impl Direction {
    /// Both directions.
    pub const ALL: [Direction; 2] = [Direction::Send, Direction::Receive];

    /// Returns the overheads that the paper reports at [`BYTES_STATED`], in percent: after a flood, and partitioned. [Loeser1999, §4]
    pub fn paper(self) -> [f64; 2] {
        match self {
            Direction::Send => [78.0, 26.0],
            Direction::Receive => [310.0, 90.0],
        }
    }
}

impl Net {
    /// Returns the point of one condition; `None` if it was not measured.
    pub fn point(&self, condition: Condition) -> Option<&Point> {
        self.points.iter().find(|point| point.condition == condition)
    }

    /// Returns a row for each packet size at which every setting was measured.
    pub fn rows(&self, direction: Direction) -> Vec<Row> {
        let of = |bytes, setting| self.point(Condition { direction, bytes, setting });
        let mut sizes: Vec<usize> = self.points.iter().map(|point| point.condition.bytes).collect();
        sizes.sort_unstable();
        sizes.dedup();
        let row = |bytes| {
            let (naive, flooded) = (of(bytes, Setting::Naive)?, of(bytes, Setting::Flooded)?);
            let partitioned = of(bytes, Setting::Partitioned)?;
            let alone_ns = flooded.control_ns;
            let with = |point: &Point| alone_ns * (1.0 + point.overhead);
            Some(Row {
                bytes,
                alone_ns,
                naive_ns: with(naive),
                flooded_ns: with(flooded),
                partitioned_ns: with(partitioned),
                colors_alone: partitioned.control_ns / alone_ns - 1.0,
                plain_ns: [flooded.flooded_ns, partitioned.flooded_ns],
                blocks_quiet: naive.blocks_quiet.min(flooded.blocks_quiet).min(partitioned.blocks_quiet),
            })
        };
        sizes.into_iter().filter_map(row).collect()
    }

    /// Returns the share of the packet sizes whose row satisfies `is`; `None` if nothing was measured.
    pub fn between(&self, direction: Direction, is: fn(&Row) -> bool) -> Option<f64> {
        let rows = self.rows(direction);
        let between = rows.iter().filter(|row| is(row)).count();
        (!rows.is_empty()).then(|| between as f64 / rows.len() as f64)
    }

    /// Returns the row of the packet size nearest to [`BYTES_STATED`]; `None` if nothing was measured.
    pub fn stated(&self, direction: Direction) -> Option<Row> {
        self.rows(direction).into_iter().min_by_key(|row| row.bytes.abs_diff(BYTES_STATED))
    }

    /// Whether both directions were measured, with enough accepted blocks at every size.
    pub fn is_conclusive(&self) -> bool {
        Direction::ALL.iter().all(|direction| {
            let rows = self.rows(*direction);
            !rows.is_empty() && rows.iter().all(Row::is_conclusive)
        })
    }

    /// Whether both directions were measured, and the partitioned time lies between the others at [`BETWEEN_AT_LEAST`] of the sizes or more.
    pub fn holds(&self) -> bool {
        Direction::ALL
            .iter()
            .all(|direction| self.between(*direction, Row::is_between).is_some_and(|share| share >= BETWEEN_AT_LEAST))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::samples::Sample;

    /// Returns a block in which packets take `flooded` ticks after a flood and `alone` ticks after spinning.
    fn block(condition: Condition, flooded: u64, alone: u64) -> Block<Condition> {
        let packet = |arm, total: u64| {
            let values = [total / 2, total - total / 2 - 100, 100].map(|ticks| ticks as f64).to_vec();
            vec![Sample { arm, values }; 4]
        };
        let samples = [packet(Arm::Treatment, flooded), packet(Arm::Control, alone)].concat();
        Block { condition, steal_ns: 0, elapsed_ns: 1, samples }
    }

    /// Returns results for sizes of 1, 1500 and 8192 bytes, measured by a counter whose tick is a nanosecond.
    pub(crate) fn measured() -> Net {
        let mut blocks = Vec::new();
        for direction in Direction::ALL {
            for bytes in [1, 1500, 8192usize] {
                let alone = 1000 + bytes as u64;
                for (setting, flooded) in [
                    (Setting::Naive, 2 * alone),
                    (Setting::Flooded, 3 * alone),
                    // At 8192 bytes partitioning brings nothing.
                    (Setting::Partitioned, if bytes == 8192 { 3 * alone } else { alone * 3 / 2 }),
                ] {
                    let condition = Condition { direction, bytes, setting };
                    for noise in [0, 0, 0, 0, 0, 0, 5 * alone] {
                        blocks.push(block(condition, flooded + noise, alone + noise));
                    }
                }
            }
        }
        Net {
            path: Path::Memory,
            level: 2,
            pattern: Pattern::DoublePurge,
            colors: [2, 3, 2, 9],
            counter_hz: 1_000_000_000,
            points: conclude(&blocks, 1_000_000_000),
        }
    }

    #[test]
    fn a_packet_costs_what_its_accepted_blocks_say() {
        let net = measured();
        assert_eq!(net.points.len(), 2 * 3 * 3);
        let condition = Condition { direction: Direction::Send, bytes: 1500, setting: Setting::Flooded };
        let point = net.point(condition).unwrap();
        // The seventh block was disturbed.
        assert_eq!((point.blocks, point.blocks_quiet, point.flooded_ns_max.n), (7, 6, 24));
        assert_eq!((point.flooded_ns, point.control_ns), (7500.0, 2500.0));
        assert_eq!(point.flooded_by_component_ns, [3750.0, 3650.0, 100.0]);
        assert_eq!((point.flooded_ns_max.value, point.overhead), (7500, 2.0));
    }

    #[test]
    fn one_block_with_a_fast_clock_does_not_shut_out_the_others() {
        let condition = Condition { direction: Direction::Send, bytes: 1, setting: Setting::Flooded };
        let mut blocks = vec![block(condition, 2000, 1000); 19];
        blocks.push(block(condition, 1000, 500));
        let point = conclude(&blocks, 1_000_000_000)[0];
        assert_eq!((point.blocks_quiet, point.overhead, point.control_ns), (20, 1.0, 1000.0));
    }

    #[test]
    fn partitioning_is_held_against_the_two_others_at_each_size() {
        let net = measured();
        for direction in Direction::ALL {
            assert_eq!(net.rows(direction).iter().map(Row::is_between).collect::<Vec<_>>(), [true, true, false]);
            assert_eq!(net.stated(direction).unwrap().overheads(), [100.0, 200.0, 50.0]);
            assert_eq!(net.between(direction, Row::is_plainly_between), Some(2.0 / 3.0));
        }
        assert!(!net.holds(), "two of three are less than four of five");
        let fewer = Net { points: net.points.iter().filter(|p| p.condition.bytes < 8192).copied().collect(), ..net };
        assert!(fewer.holds());
        // If few colors cost more by themselves than a flood of all colors, the plain medians show this cost, and the overhead does not.
        let mut slow = fewer;
        for point in slow.points.iter_mut().filter(|point| point.condition.setting == Setting::Partitioned) {
            (point.control_ns, point.flooded_ns) = (4.0 * point.control_ns, 4.0 * point.flooded_ns);
        }
        assert!(slow.holds());
        assert_eq!(slow.between(Direction::Send, Row::is_plainly_between), Some(0.0));
    }

    #[test]
    fn too_few_accepted_blocks_of_one_size_are_inconclusive() {
        let mut net = measured();
        assert!(net.is_conclusive());
        let few = |point: &mut Point| point.blocks_quiet = BLOCKS_MIN - 1;
        let last = net.points.iter_mut().filter(|point| point.condition.direction == Direction::Receive);
        last.filter(|point| point.condition.bytes == 8192).for_each(few);
        assert!(!net.is_conclusive());
        let one_way = net.points.iter().filter(|point| point.condition.direction == Direction::Send).copied();
        assert!(!Net { points: one_way.collect(), ..measured() }.is_conclusive());
        assert!(!Net { points: vec![], ..measured() }.is_conclusive());
    }

    #[test]
    fn nothing_measured_is_nothing_held() {
        assert!(conclude(&[], 1).is_empty());
        let nothing = Net { points: vec![], ..measured() };
        assert_eq!((nothing.between(Direction::Send, Row::is_between), nothing.holds()), (None, false));
    }
}
