//! What packets cost after a flood, with and without colors: the experiment of [Loeser1999, §3.1 and 4]. What is measured and what follows
//! from it is in [`isochrome_model::net`].
//!
//! All components run in one thread, one after the other, as they would if each waited for the next; what the switches between servers
//! cost is not part of it. Their data lies in colors of their own, or all share the cache. Code and stack lie where the system has put
//! them, in every condition.

pub mod kernel;
pub mod stack;
pub mod tap;

use std::fs::File;

use isochrome_model::flood::Pattern;
use isochrome_model::geometry::Geometry;
use isochrome_model::net::{Block, Component, Condition, Cost, Direction, Packet, Path, Reservation, Setting};
use isochrome_model::units::{Color, Cycles, Ns};

use crate::error::HostError;
use crate::flooder::{Flooder, reserved_colors};
use crate::interrupt;
use crate::palette::Target;
use crate::pool::{ColoredRegion, FramePool};
use crate::sys::clock;
use crate::sys::heap::Heap;
use kernel::Sockets;
use stack::{Anywhere, BYTES_MAX, End, NetError, Stack, StackRequest, carry, meet};
use tap::Tapped;

/// Pages of the heaps of driver, server and client.
const HEAP_PAGES: [usize; 3] = [12, 12, 8];
/// What the server reckons a packet to cost, and what the client reserves: more than this experiment sends.
const COST: Cost = Cost { packet: Ns(1000), byte_ps: 250 };
const RESERVATION: Reservation = Reservation { packets_per_s: 20_000, bytes_max: BYTES_MAX, burst: 10_000 };
/// Share of the CPU that the server may promise, in millionths.
const LIMIT_PPM: u64 = 900_000;
/// Turns before a block that are not recorded.
const WARM_UP: usize = 2;

/// How much to run.
#[derive(Clone, Debug)]
pub struct NetRequest {
    /// Through what.
    pub path: Path,
    /// Bytes of the packets, each at most [`BYTES_MAX`].
    pub sizes: Vec<usize>,
    /// The flood that is held against mere writing.
    pub pattern: Pattern,
    /// Blocks of each size and setting.
    pub blocks: usize,
    /// Packets of each kind in a block.
    pub packets: usize,
    /// Pause before each packet, so that none waits for the one before.
    pub gap: Ns,
    /// Seed of every random choice.
    pub seed: u64,
}

/// Who has which colors where each has its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Division {
    /// Of driver, server and client.
    pub components: [Vec<Color>; 3],
    /// Of the flooder.
    pub flooder: Vec<Color>,
    /// What the components share where none has its own: all but those that the flooder keeps for itself. [Loeser1999, §3.2.2]
    pub shared: Vec<Color>,
}

impl Division {
    /// Of `colors` colors, of which a flooder keeps `reserved`: an eighth for the driver and for the client, three sixteenths for the
    /// server, the rest for the flooder. `path` says who has memory of its own to color. `None` where there are too few.
    pub fn of(colors: u32, reserved: usize, path: Path) -> Option<Division> {
        let all: Vec<Color> = (0..colors as u16).map(Color).collect();
        let share = |sixteenths: usize| (all.len() * sixteenths / 16).max(1);
        let counts = match path {
            Path::Memory | Path::Tap => [share(2), share(3), share(2)],
            // The kernel's memory lies in all colors, whatever is done.
            Path::Kernel => [0, 0, share(2)],
        };
        let flooder = all.len().checked_sub(counts.iter().sum()).filter(|left| *left >= reserved.max(1))?;
        let mut rest = all[flooder..].iter().copied();
        let components = counts.map(|count| rest.by_ref().take(count).collect());
        Some(Division { components, flooder: all[..flooder].to_vec(), shared: all[reserved..].to_vec() })
    }
}

/// Something that sends and receives packets for the experiment.
trait Traffic {
    /// Sends a packet.
    fn send(&mut self, bytes: usize) -> Result<Packet, HostError>;
    /// Takes what was sent off the wire, outside of what is measured, and holds that it is what was sent.
    fn drain(&mut self, bytes: usize) -> Result<(), HostError>;
    /// Asks for a packet.
    fn request(&mut self, bytes: usize) -> Result<Packet, HostError>;
    /// Has a packet come from the wire, outside of what is measured.
    fn arrive(&mut self, bytes: usize) -> Result<(), HostError>;
    /// Takes the packet, and holds, outside of what is measured, that it is what has come.
    fn take(&mut self, bytes: usize) -> Result<Packet, HostError>;
}

/// A stack in memory of its components, and what it talks to in ordinary memory. The fields drop in order: what was allocated before its
/// memory.
struct Wired {
    near: Stack,
    far: Stack,
    stamp: u8,
    frame: Vec<u8>,
    _heaps: [Heap<ColoredRegion>; 3],
}

fn stack_request(end: End) -> StackRequest {
    StackRequest { end, cost: COST, limit_ppm: LIMIT_PPM, reservation: RESERVATION }
}

/// The stack that is measured, in `heaps`.
fn near(heaps: &[Heap<ColoredRegion>; 3], device: Option<File>) -> Result<Stack, HostError> {
    let stack = Stack::build(heaps, stack_request(End::Near), device)?;
    for heap in heaps {
        if heap.used() == 0 {
            return Err(HostError::NoHeapAllocator);
        }
        if heap.spilled() > 0 {
            return Err(HostError::HeapTooSmall { used: heap.used(), spilled: heap.spilled() });
        }
    }
    Ok(stack)
}

impl Wired {
    fn build(heaps: [Heap<ColoredRegion>; 3]) -> Result<Wired, HostError> {
        let mut near = near(&heaps, None)?;
        let mut far = Stack::build(&Anywhere, stack_request(End::Far), None)?;
        meet(&mut near, &mut far)?;
        Ok(Wired { near, far, stamp: 0, frame: Vec::new(), _heaps: heaps })
    }
}

impl Traffic for Wired {
    fn send(&mut self, bytes: usize) -> Result<Packet, HostError> {
        self.stamp = self.stamp.wrapping_add(1);
        Ok(self.near.send(bytes, self.stamp)?)
    }

    fn drain(&mut self, bytes: usize) -> Result<(), HostError> {
        carry(&mut self.near, &mut self.far);
        self.far.collect(bytes)?;
        Ok(self.far.check(bytes, self.stamp)?)
    }

    fn request(&mut self, bytes: usize) -> Result<Packet, HostError> {
        Ok(self.near.request(bytes)?)
    }

    fn arrive(&mut self, bytes: usize) -> Result<(), HostError> {
        self.stamp = self.stamp.wrapping_add(1);
        self.far.send(bytes, self.stamp)?;
        self.frame.clear();
        self.frame.extend_from_slice(self.far.driver().take_sent().ok_or(NetError::Lost { bytes })?);
        if self.near.driver().arrive(&self.frame) { Ok(()) } else { Err(NetError::Lost { bytes }.into()) }
    }

    fn take(&mut self, bytes: usize) -> Result<Packet, HostError> {
        let packet = self.near.take(bytes)?;
        self.near.check(bytes, self.stamp)?;
        Ok(packet)
    }
}

/// Pages of every color that the pool must have.
pub fn pages_per_color(target: Target, first: Option<Geometry>) -> usize {
    Flooder::pages_per_color(target.geometry, first) + HEAP_PAGES.iter().sum::<usize>()
}

/// Measures on the calling thread, in memory of `pool`, whose colors are those of `target`, divided by `division`; `first`: the first data
/// level.
///
/// `progress` is called after each block with the number done and of all; an interrupt ends the run after the block under way. Fails when
/// the pool has too few pages, where there is no TAP device for a path that needs one, and when a packet is lost or altered.
pub fn net(
    pool: &FramePool,
    target: Target,
    first: Option<Geometry>,
    division: &Division,
    request: &NetRequest,
    mut progress: impl FnMut(usize, usize),
) -> Result<Vec<Block>, HostError> {
    // One for all blocks: making and removing a namespace each time would disturb what is measured.
    let tap = if request.path == Path::Tap { Some(tap::open()?) } else { None };
    let mut rng = fastrand::Rng::with_seed(request.seed);
    let mut order = Vec::new();
    for &bytes in &request.sizes {
        for setting in [Setting::Naive, Setting::Flooded, Setting::Partitioned] {
            order.extend(vec![(bytes, setting); request.blocks]);
        }
    }
    rng.shuffle(&mut order);
    let all: Vec<Color> = (0..pool.colors() as u16).map(Color).collect();
    let total = order.len();
    let mut blocks = Vec::with_capacity(2 * total);
    for (done, (bytes, setting)) in order.into_iter().enumerate() {
        if interrupt::interrupted() {
            break;
        }
        // Placement alone changes results, so each block has other pages.
        pool.shuffle(&mut rng);
        let (flooded, pattern) = match setting {
            Setting::Naive => (&all, Pattern::Write),
            Setting::Flooded => (&all, request.pattern),
            Setting::Partitioned => (&division.flooder, request.pattern),
        };
        let flooder = Flooder::new(pool, target.geometry, first, flooded, pattern)?;
        let memory = |component: Component| {
            let own = &division.components[component as usize];
            let colors = if setting == Setting::Partitioned { own } else { &division.shared };
            Ok::<_, HostError>(Heap::new(pool.take(colors, HEAP_PAGES[component as usize])?)?)
        };
        let memories =
            || Ok::<_, HostError>([memory(Component::Driver)?, memory(Component::Server)?, memory(Component::Client)?]);
        let mut traffic: Box<dyn Traffic> = match (request.path, &tap) {
            (Path::Kernel, _) => Box::new(Sockets::open(memory(Component::Client)?)?),
            (_, Some(tap)) => Box::new(Tapped::build(memories()?, tap)?),
            (_, None) => Box::new(Wired::build(memories()?)?),
        };
        blocks.extend(block(&mut *traffic, &flooder, bytes, setting, request, &mut rng)?);
        progress(done + 1, total);
    }
    Ok(blocks)
}

/// A block of each direction, their packets mixed.
fn block(
    traffic: &mut dyn Traffic,
    flooder: &Flooder,
    bytes: usize,
    setting: Setting,
    request: &NetRequest,
    rng: &mut fastrand::Rng,
) -> Result<[Block; 2], HostError> {
    let mut blocks = Direction::ALL.map(|direction| {
        let condition = Condition { direction, bytes, setting };
        Block { condition, packets: Vec::new(), control: Vec::new() }
    });
    let mut kinds: Vec<(usize, bool)> = (0..4 * request.packets).map(|i| (i % 2, i / 2 % 2 == 0)).collect();
    rng.shuffle(&mut kinds);
    let gap = (request.gap.0 as f64 * clock::rate_hz() as f64 / 1e9) as u64;
    for kind in (0..2).cycle().take(2 * WARM_UP) {
        packet(traffic, Direction::ALL[kind], bytes, || {})?;
    }
    for (direction, flooded) in kinds {
        let disturb = || if flooded { flooder.run() } else { flooder.spin() };
        // What the last flood has left is brought back before the packet that counts.
        packet(traffic, Direction::ALL[direction], bytes, || {})?;
        clock::spin_until(Cycles(clock::now().0 + gap));
        let packet = packet(traffic, Direction::ALL[direction], bytes, disturb)?;
        let Block { packets, control, .. } = &mut blocks[direction];
        if flooded { packets.push(packet) } else { control.push(packet) }
    }
    Ok(blocks)
}

/// One packet: `disturb` comes before each part of the operation.
fn packet(
    traffic: &mut dyn Traffic,
    direction: Direction,
    bytes: usize,
    disturb: impl Fn(),
) -> Result<Packet, HostError> {
    disturb();
    match direction {
        Direction::Send => {
            let packet = traffic.send(bytes)?;
            traffic.drain(bytes)?;
            Ok(packet)
        }
        Direction::Receive => {
            let asked = traffic.request(bytes)?;
            // The card puts the packet into memory while the stack waits. The flood comes after it: the oldest state it can be found in.
            traffic.arrive(bytes)?;
            disturb();
            let taken = traffic.take(bytes)?;
            let spent = std::array::from_fn(|part| Cycles(asked.spent[part].0 + taken.spent[part].0));
            Ok(Packet { spent })
        }
    }
}

/// The division of `pool` for `path` beside a flooder of `target`; the error says how many colors there are.
pub fn divide(pool: &FramePool, first: Option<Geometry>, path: Path) -> Result<Division, HostError> {
    let colors = pool.colors();
    Division::of(colors, reserved_colors(first), path).ok_or(HostError::TooFewColors { colors })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_color_has_one_owner_and_nobody_goes_without() {
        for colors in [6, 8, 16, 64, 1024] {
            let division = Division::of(colors, 2, Path::Memory).unwrap();
            let mut owned: Vec<Color> =
                division.components.iter().flatten().chain(&division.flooder).copied().collect();
            assert!(division.components.iter().all(|colors| !colors.is_empty()));
            owned.sort_unstable();
            assert_eq!(owned, (0..colors as u16).map(Color).collect::<Vec<_>>());
            assert!(division.shared.iter().all(|color| !division.flooder[..2].contains(color)));
        }
        let sixteen = Division::of(16, 2, Path::Memory).unwrap();
        assert_eq!(sixteen.components.map(|colors| colors.len()), [2, 3, 2]);
        assert_eq!(Division::of(16, 2, Path::Kernel).unwrap().flooder.len(), 14);
        assert_eq!(Division::of(4, 2, Path::Memory), None);
    }

    #[test]
    fn each_part_of_an_operation_has_its_disturbance() {
        let heapless = Stack::build(&Anywhere, stack_request(End::Near), None).unwrap();
        let far = Stack::build(&Anywhere, stack_request(End::Far), None).unwrap();
        struct Plain {
            near: Stack,
            far: Stack,
        }
        impl Traffic for Plain {
            fn send(&mut self, bytes: usize) -> Result<Packet, HostError> {
                Ok(self.near.send(bytes, 1)?)
            }
            fn drain(&mut self, bytes: usize) -> Result<(), HostError> {
                carry(&mut self.near, &mut self.far);
                self.far.collect(bytes)?;
                Ok(self.far.check(bytes, 1)?)
            }
            fn request(&mut self, bytes: usize) -> Result<Packet, HostError> {
                Ok(self.near.request(bytes)?)
            }
            fn arrive(&mut self, bytes: usize) -> Result<(), HostError> {
                self.far.send(bytes, 1)?;
                let frame = self.far.driver().take_sent().unwrap().to_vec();
                assert!(self.near.driver().arrive(&frame));
                Ok(())
            }
            fn take(&mut self, bytes: usize) -> Result<Packet, HostError> {
                Ok(self.near.take(bytes)?)
            }
        }
        let mut plain = Plain { near: heapless, far };
        meet(&mut plain.near, &mut plain.far).unwrap();
        for (direction, expected) in [(Direction::Send, 1), (Direction::Receive, 2)] {
            let floods = std::cell::Cell::new(0);
            packet(&mut plain, direction, 1500, || floods.set(floods.get() + 1)).unwrap();
            assert_eq!(floods.get(), expected, "{direction:?}");
        }
    }
}
