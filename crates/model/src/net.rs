//! What a network stack costs per packet, and what of it is the cache: the experiment of [Loeser1999, §3 and 4].
//!
//! A stack of three components, each of which could be a server of its own: the driver, which moves frames to and from the card; the
//! server, which reserves, accounts and polices, and knows the protocols; and the client. Sending copies nothing in main memory;
//! receiving copies every byte twice.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::flood::Pattern;
use crate::stats::{HighWaterMark, Sorted, median, quiet_blocks};
use crate::units::{Cycles, Ns};

/// A part of the stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Component {
    /// Moves frames to and from the card.
    Driver,
    /// Reserves, polices, speaks the protocols.
    Server,
    /// Sends and receives.
    Client,
}

impl Component {
    /// All of them, as indexed.
    pub const ALL: [Component; 3] = [Component::Driver, Component::Server, Component::Client];
}

/// Whose time it is: attributes the time of an operation to the components that it passes through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meter {
    at: Component,
    since: Cycles,
    spent: [Cycles; 3],
}

impl Meter {
    /// Begins `now`, in the client.
    pub fn start(now: Cycles) -> Meter {
        Meter { at: Component::Client, since: now, spent: Default::default() }
    }

    /// From `now` on it is the time of `next`.
    #[inline]
    pub fn pass_to(&mut self, next: Component, now: Cycles) {
        self.spent[self.at as usize].0 += now.0.saturating_sub(self.since.0);
        (self.at, self.since) = (next, now);
    }

    /// What each component has spent until `now`.
    pub fn stop(mut self, now: Cycles) -> [Cycles; 3] {
        self.pass_to(Component::Client, now);
        self.spent
    }
}

/// What a packet costs the stack, as it is reserved: the time of one of `bytes` is `packet + bytes x byte`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost {
    /// Time of a packet without its bytes.
    pub packet: Ns,
    /// Time of a byte, in picoseconds.
    pub byte_ps: u64,
}

impl Cost {
    /// Time of a packet of `bytes`.
    pub fn of(self, bytes: usize) -> Ns {
        Ns(self.packet.0.saturating_add((bytes as u64).saturating_mul(self.byte_ps) / 1000))
    }
}

/// What a connection asks for, in each direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reservation {
    /// Packets a second.
    pub packets_per_s: u64,
    /// Bytes of the largest packet.
    pub bytes_max: usize,
    /// Packets that may come at once.
    pub burst: u64,
}

/// Why a connection or a packet was turned away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The time asked for is not left.
    #[error(
        "{asked_ppm} millionths of the CPU are asked for and {left_ppm} are left\n  hint: fewer or smaller packets a second, or end another connection"
    )]
    Admission {
        /// Share of the CPU asked for, in millionths.
        asked_ppm: u64,
        /// What is left.
        left_ppm: u64,
    },
    /// The packet is larger than what was reserved.
    #[error("a packet of {bytes} bytes, and {bytes_max} were reserved")]
    TooLarge {
        /// Its size.
        bytes: usize,
        /// The size reserved.
        bytes_max: usize,
    },
    /// The account of the connection is empty.
    #[error("a packet costs {cost_ns} ns and the account holds {left_ns}: faster than was reserved")]
    Account {
        /// What it costs.
        cost_ns: u64,
        /// What there is.
        left_ns: u64,
    },
}

/// Who may have how much of the CPU: connections are admitted while the time they reserve fits.
#[derive(Clone, Debug)]
pub struct Admission {
    cost: Cost,
    limit_ppm: u64,
    reserved_ppm: u64,
}

impl Admission {
    /// At most `limit_ppm` millionths of the CPU for packets of this `cost`.
    pub fn new(cost: Cost, limit_ppm: u64) -> Admission {
        Admission { cost, limit_ppm, reserved_ppm: 0 }
    }

    /// Accounts for sending and receiving, both full at `now`; or the time reserved does not fit, and nothing is reserved.
    pub fn admit(&mut self, reservation: Reservation, now: Ns) -> Result<[TokenBucket; 2], Refused> {
        let cost = self.cost.of(reservation.bytes_max);
        // ns a second are thousandths of a millionth. Rounded up: what is promised must be there.
        let ppm = u128::from(reservation.packets_per_s) * u128::from(cost.0);
        let one_way = u64::try_from(ppm.div_ceil(1000)).unwrap_or(u64::MAX);
        let (asked_ppm, left_ppm) = (one_way.saturating_mul(2), self.limit_ppm - self.reserved_ppm);
        if asked_ppm > left_ppm {
            return Err(Refused::Admission { asked_ppm, left_ppm });
        }
        self.reserved_ppm += asked_ppm;
        let full = u128::from(cost.0) * u128::from(reservation.burst.max(1)) * PPM;
        let bucket = TokenBucket {
            cost: self.cost,
            bytes_max: reservation.bytes_max,
            rate_ppm: one_way,
            full,
            tokens: full,
            at: now,
        };
        Ok([bucket; 2])
    }
}

const PPM: u128 = 1_000_000;

/// The account of a connection, in time: it fills with the share of the CPU that was reserved, up to a burst, and every packet takes
/// out what it costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenBucket {
    cost: Cost,
    bytes_max: usize,
    rate_ppm: u64,
    /// Millionths of ns, so that nothing is lost to rounding however often it is asked.
    full: u128,
    tokens: u128,
    at: Ns,
}

impl TokenBucket {
    /// Takes out the cost of a packet of `bytes` at `now`; or refuses it, and takes nothing.
    #[inline]
    pub fn take(&mut self, bytes: usize, now: Ns) -> Result<(), Refused> {
        if bytes > self.bytes_max {
            return Err(Refused::TooLarge { bytes, bytes_max: self.bytes_max });
        }
        let elapsed = now.0.saturating_sub(self.at.0);
        self.tokens = self.full.min(self.tokens + u128::from(elapsed) * u128::from(self.rate_ppm));
        self.at = now;
        let cost = self.cost.of(bytes);
        match self.tokens.checked_sub(u128::from(cost.0) * PPM) {
            Some(left) => {
                self.tokens = left;
                Ok(())
            }
            None => Err(Refused::Account { cost_ns: cost.0, left_ns: (self.tokens / PPM) as u64 }),
        }
    }
}

/// Through what packets go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Path {
    /// smoltcp and a card that is memory.
    Memory,
    /// smoltcp and a TAP device, behind which is the kernel's UDP.
    Tap,
    /// The kernel's UDP, over the loopback device.
    Kernel,
}

/// Which way a packet goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// Out. Flooded once before.
    Send,
    /// In. Flooded before the request and again before the packet is taken from the card.
    Receive,
}

/// What floods what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Setting {
    /// All components share the cache, which is flooded by mere writing.
    Naive,
    /// All components share the cache, which is flooded by the pattern chosen.
    Flooded,
    /// Each component has colors of its own, and that pattern floods the others.
    Partitioned,
}

/// What is measured together: times of different conditions are never mixed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Condition {
    /// Which way.
    pub direction: Direction,
    /// Bytes of a packet's payload.
    pub bytes: usize,
    /// What floods what.
    pub setting: Setting,
}

/// One packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Time that each component spent on it, as indexed by [`Component`].
    pub spent: [Cycles; 3],
}

impl Packet {
    /// Time of all components together.
    pub fn total(&self) -> Cycles {
        Cycles(self.spent.iter().map(|spent| spent.0).sum())
    }
}

/// Packets through the same memory, one after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// What was measured.
    pub condition: Condition,
    /// Packets after a flood.
    pub packets: Vec<Packet>,
    /// The paired control: packets after spinning for as long.
    pub control: Vec<Packet>,
}

/// What a packet costs in one condition.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// What was measured.
    #[serde(flatten)]
    pub condition: Condition,
    /// Median time after a flood, in ns.
    pub flooded_ns: f64,
    /// Median time of the control, in ns.
    pub control_ns: f64,
    /// By what share of its own control a block takes longer after a flood: the median. The clock of the core may change from block to
    /// block; this does not.
    pub overhead: f64,
    /// Median time after a flood of driver, server and client, in ns.
    pub flooded_by_component_ns: [f64; 3],
    /// The same of the control.
    pub control_by_component_ns: [f64; 3],
    /// The longest time after a flood, in ns. An observation, not a bound.
    pub flooded_ns_max: HighWaterMark,
    /// Blocks run.
    pub blocks: u64,
    /// Blocks that count.
    pub blocks_quiet: u64,
}

/// The experiment on one path.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Net {
    /// Through what the packets went.
    pub path: Path,
    /// Cache level that was flooded and divided.
    pub level: u8,
    /// The flood that is held against mere writing.
    pub pattern: Pattern,
    /// Colors of driver, server, client and flooder where they are divided.
    pub colors: [u32; 4],
    /// Cycles of the counter that packets were timed by, per second: those of the processor's time stamps, as in the paper; 0 where an older file
    /// does not tell.
    #[serde(default)]
    pub counter_hz: u64,
    /// Every condition, by direction, size and setting.
    pub points: Vec<Point>,
}

/// Blocks whose control is so much slower than the first decile of the same condition do not count. More than a core's clock changes: each
/// block is held against its own control, and one block with a fast clock must not shut out all others.
const TOLERANCE: f64 = 0.2;
const QUIET: f64 = 0.1;
/// Size at which the paper states its overheads: the usual limit on an Ethernet.
pub const BYTES_STATED: usize = 1500;
/// Quiet blocks of every setting that a size needs for a conclusion.
const QUIET_MIN: u64 = 5;
/// Share of the sizes at which partitioning must lie between the others.
pub const BETWEEN_AT_LEAST: f64 = 0.8;

/// The points of `blocks`, whose times are ticks of `counter_hz` per second.
///
/// Of the settings of one direction and size the same number of quietest blocks counts.
pub fn conclude(blocks: &[Block], counter_hz: u64) -> Vec<Point> {
    let mut groups: BTreeMap<(Direction, usize), BTreeMap<Setting, Vec<&Block>>> = BTreeMap::new();
    for block in blocks.iter().filter(|block| !block.packets.is_empty() && !block.control.is_empty()) {
        let Condition { direction, bytes, setting } = block.condition;
        groups.entry((direction, bytes)).or_default().entry(setting).or_default().push(block);
    }
    groups.values().flat_map(|group| conclude_group(group, counter_hz)).collect()
}

/// Either kind of a block's packets.
type PacketsOf = fn(&Block) -> &[Packet];

fn conclude_group(group: &BTreeMap<Setting, Vec<&Block>>, counter_hz: u64) -> Vec<Point> {
    let ns = |ticks: f64| ticks * 1e9 / counter_hz as f64;
    let typical = |packets: &[Packet], of: &dyn Fn(&Packet) -> Cycles| {
        median(&packets.iter().map(|packet| of(packet).0 as f64).collect::<Vec<_>>()).unwrap_or_default()
    };
    let total = |packet: &Packet| packet.total();
    let controls: Vec<Vec<u64>> = group
        .values()
        .map(|blocks| {
            let controls: Vec<u64> = blocks.iter().map(|block| typical(&block.control, &total) as u64).collect();
            let quiet = Sorted::of(controls.iter().copied()).map_or(0, |sorted| sorted.quantile(QUIET));
            controls.into_iter().map(|control| control.max(quiet)).collect()
        })
        .collect();
    let quiet = quiet_blocks(&controls, TOLERANCE);
    let point = |(blocks, kept): (&Vec<&Block>, &Vec<usize>)| {
        let kept: Vec<&Block> = kept.iter().map(|block| blocks[*block]).collect();
        let over = |packets: PacketsOf, of: &dyn Fn(&Packet) -> Cycles| {
            median(&kept.iter().map(|block| typical(packets(block), of)).collect::<Vec<_>>()).map(ns)
        };
        let (flooded, control): (PacketsOf, PacketsOf) = (|block| &block.packets, |block| &block.control);
        let by_component = |packets| {
            Component::ALL.map(|part| over(packets, &|packet| packet.spent[part as usize]).unwrap_or_default())
        };
        let overheads: Vec<f64> = kept
            .iter()
            .map(|block| typical(&block.packets, &total) / typical(&block.control, &total).max(1.0) - 1.0)
            .collect();
        let longest: Vec<u64> = kept
            .iter()
            .flat_map(|block| &block.packets)
            .map(|packet| ns(packet.total().0 as f64).round() as u64)
            .collect();
        Some(Point {
            condition: kept.first()?.condition,
            flooded_ns: over(flooded, &total)?,
            control_ns: over(control, &total)?,
            overhead: median(&overheads)?,
            flooded_by_component_ns: by_component(flooded),
            control_by_component_ns: by_component(control),
            flooded_ns_max: HighWaterMark::of(&longest)?,
            blocks: blocks.len() as u64,
            blocks_quiet: kept.len() as u64,
        })
    };
    group.values().zip(&quiet.kept).filter_map(point).collect()
}

/// The times of one size and direction: the time alone, and what becomes of it by the overhead of each setting.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Row {
    /// Bytes of a packet.
    pub bytes: usize,
    /// Not flooded: the control of what shares the cache.
    pub alone_ns: f64,
    /// Flooded by mere writing.
    pub naive_ns: f64,
    /// Flooded by the pattern chosen.
    pub flooded_ns: f64,
    /// Flooded, with colors of their own.
    pub partitioned_ns: f64,
    /// By what share colors of their own lengthen a packet by themselves, not flooded.
    pub colors_alone: f64,
    /// The plain medians of what was flooded, without and with colors of their own: with what fewer colors cost, and with what the core's clock did
    /// from block to block.
    pub plain_ns: [f64; 2],
    /// Quiet blocks of each setting.
    pub blocks_quiet: u64,
}

impl Row {
    /// Whether enough blocks were quiet.
    pub fn is_conclusive(&self) -> bool {
        self.blocks_quiet >= QUIET_MIN
    }

    /// Whether partitioning lies between the others.
    pub fn is_between(&self) -> bool {
        self.alone_ns < self.partitioned_ns && self.partitioned_ns < self.flooded_ns
    }

    /// The same by the plain medians.
    pub fn is_plainly_between(&self) -> bool {
        let [flooded, partitioned] = self.plain_ns;
        self.alone_ns < partitioned && partitioned < flooded
    }

    /// By how much a packet takes longer than alone, in percent: after a flood by mere writing, after the one chosen, partitioned.
    pub fn overheads(&self) -> [f64; 3] {
        [self.naive_ns, self.flooded_ns, self.partitioned_ns].map(|ns| 100.0 * (ns / self.alone_ns - 1.0))
    }
}

impl Direction {
    /// Both.
    pub const ALL: [Direction; 2] = [Direction::Send, Direction::Receive];

    /// What the paper saw at [`BYTES_STATED`]: overhead in percent after a flood, and partitioned. [Loeser1999, §4]
    pub fn paper(self) -> [f64; 2] {
        match self {
            Direction::Send => [78.0, 26.0],
            Direction::Receive => [310.0, 90.0],
        }
    }
}

impl Net {
    /// The point of one condition.
    pub fn point(&self, condition: Condition) -> Option<&Point> {
        self.points.iter().find(|point| point.condition == condition)
    }

    /// The sizes of which every setting was measured.
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
                blocks_quiet: flooded.blocks_quiet,
            })
        };
        sizes.into_iter().filter_map(row).collect()
    }

    /// Share of the sizes at which partitioning lies between the others, as `is` tells; `None` where nothing was measured.
    pub fn between(&self, direction: Direction, is: fn(&Row) -> bool) -> Option<f64> {
        let rows = self.rows(direction);
        let between = rows.iter().filter(|row| is(row)).count();
        (!rows.is_empty()).then(|| between as f64 / rows.len() as f64)
    }

    /// The size nearest to the one the paper states its overheads for.
    pub fn stated(&self, direction: Direction) -> Option<Row> {
        self.rows(direction).into_iter().min_by_key(|row| row.bytes.abs_diff(BYTES_STATED))
    }

    /// Whether both directions were measured, with enough quiet blocks at every size.
    pub fn is_conclusive(&self) -> bool {
        Direction::ALL.iter().all(|direction| {
            let rows = self.rows(*direction);
            !rows.is_empty() && rows.iter().all(Row::is_conclusive)
        })
    }

    /// Whether both directions were measured and partitioning lies between the others often enough.
    pub fn holds(&self) -> bool {
        Direction::ALL
            .iter()
            .all(|direction| self.between(*direction, Row::is_between).is_some_and(|share| share >= BETWEEN_AT_LEAST))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    const COST: Cost = Cost { packet: Ns(1000), byte_ps: 500 };
    const RESERVATION: Reservation = Reservation { packets_per_s: 1000, bytes_max: 2000, burst: 2 };

    #[test]
    fn time_is_attributed_to_whom_it_passes_through_and_none_is_lost() {
        let mut meter = Meter::start(Cycles(100));
        meter.pass_to(Component::Server, Cycles(110));
        meter.pass_to(Component::Driver, Cycles(140));
        meter.pass_to(Component::Server, Cycles(200));
        meter.pass_to(Component::Client, Cycles(205));
        assert_eq!(meter.stop(Cycles(212)), [60, 35, 17].map(Cycles));
    }

    #[test]
    fn a_connection_is_admitted_while_the_time_it_reserves_fits() {
        // 1000 packets a second of 1000 + 2000 x 0.5 ns are 2 ms a second; two ways 4000 millionths.
        let mut admission = Admission::new(COST, 10_000);
        admission.admit(RESERVATION, Ns(0)).unwrap();
        admission.admit(RESERVATION, Ns(0)).unwrap();
        let refused = admission.admit(RESERVATION, Ns(0)).unwrap_err();
        assert_eq!(refused, Refused::Admission { asked_ppm: 4000, left_ppm: 2000 });
        admission.admit(Reservation { packets_per_s: 500, ..RESERVATION }, Ns(0)).unwrap();
        let endless = Reservation { packets_per_s: u64::MAX, bytes_max: usize::MAX, burst: 1 };
        assert!(matches!(admission.admit(endless, Ns(0)), Err(Refused::Admission { left_ppm: 0, .. })));
    }

    #[test]
    fn an_account_allows_a_burst_and_then_the_rate_reserved() {
        let [mut account, mut other] = Admission::new(COST, 1_000_000).admit(RESERVATION, Ns(0)).unwrap();
        // A burst of two packets of the largest size, 2000 ns each.
        assert_eq!([account.take(2000, Ns(0)), account.take(2000, Ns(0))], [Ok(()), Ok(())]);
        assert_eq!(account.take(2000, Ns(0)), Err(Refused::Account { cost_ns: 2000, left_ns: 0 }));
        // 2 ns come in a microsecond: after half a millisecond there is enough for one of no bytes, after a whole one for the largest.
        assert_eq!(account.take(2000, Ns(500_000)), Err(Refused::Account { cost_ns: 2000, left_ns: 1000 }));
        assert_eq!(account.take(0, Ns(500_000)), Ok(()));
        assert_eq!(account.take(2000, Ns(1_500_000)), Ok(()));
        assert_eq!(other.take(2001, Ns(0)), Err(Refused::TooLarge { bytes: 2001, bytes_max: 2000 }));
        // It never holds more than the burst.
        let late = Ns(60_000_000_000);
        assert_eq!([other.take(2000, late), other.take(2000, late)], [Ok(()), Ok(())]);
        assert!(other.take(0, late).is_err());
    }

    #[test]
    fn asking_often_loses_nothing_to_rounding() {
        let reservation = Reservation { packets_per_s: 1, bytes_max: 0, burst: 1 };
        let [mut account, _] = Admission::new(COST, 1_000_000).admit(reservation, Ns(0)).unwrap();
        account.take(0, Ns(0)).unwrap();
        let taken = (1..=1_000_000u64).filter(|ms| account.take(0, Ns(ms * 1000)).is_ok()).count();
        // One packet a second, asked every microsecond for one second.
        assert_eq!(taken, 1);
    }

    /// Sizes of 1, 1500 and 8192 bytes; a nanosecond a tick.
    pub(crate) fn measured() -> Net {
        let packet = |total: u64| Packet { spent: [Cycles(total / 2), Cycles(total - total / 2 - 100), Cycles(100)] };
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
                    for noise in [0, 0, 0, 0, 0, 5 * alone] {
                        blocks.push(Block {
                            condition,
                            packets: vec![packet(flooded + noise); 4],
                            control: vec![packet(alone + noise); 4],
                        });
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
    fn a_packet_costs_what_its_quiet_blocks_say() {
        let net = measured();
        assert_eq!(net.points.len(), 2 * 3 * 3);
        let condition = Condition { direction: Direction::Send, bytes: 1500, setting: Setting::Flooded };
        let point = net.point(condition).unwrap();
        // The sixth block was disturbed.
        assert_eq!((point.blocks, point.blocks_quiet, point.flooded_ns_max.n), (6, 5, 20));
        assert_eq!((point.flooded_ns, point.control_ns), (7500.0, 2500.0));
        assert_eq!(point.flooded_by_component_ns, [3750.0, 3650.0, 100.0]);
        assert_eq!((point.flooded_ns_max.value, point.overhead), (7500, 2.0));
    }

    #[test]
    fn one_block_with_a_fast_clock_does_not_shut_out_the_others() {
        let condition = Condition { direction: Direction::Send, bytes: 1, setting: Setting::Flooded };
        let packets = |time: u64| vec![Packet { spent: [Cycles(time), Cycles(0), Cycles(0)] }; 3];
        let block = |time: u64| Block { condition, packets: packets(2 * time), control: packets(time) };
        let mut blocks = vec![block(1000); 19];
        blocks.push(block(500));
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
        // Where few colors cost more by themselves than the flood of all, the overhead does not tell, but the plain medians do.
        let mut slow = fewer;
        for point in slow.points.iter_mut().filter(|point| point.condition.setting == Setting::Partitioned) {
            (point.control_ns, point.flooded_ns) = (4.0 * point.control_ns, 4.0 * point.flooded_ns);
        }
        assert!(slow.holds());
        assert_eq!(slow.between(Direction::Send, Row::is_plainly_between), Some(0.0));
    }

    #[test]
    fn too_few_quiet_blocks_of_one_size_are_inconclusive() {
        let mut net = measured();
        assert!(net.is_conclusive());
        let few = |point: &mut Point| point.blocks_quiet = QUIET_MIN - 1;
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
