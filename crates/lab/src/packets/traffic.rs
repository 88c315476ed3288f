//! Packets through a stack whose components have colors of their own, or share the cache.
//!
//! All components run in one thread, one after the other, as they would if each component waited for the next. The cost of switching between
//! servers is not included. In every condition, code and stack lie where the system has put them.

use isochrome_host::color::Target;
use isochrome_host::color::pool::FramePool;
use isochrome_host::load::flooder::{Flooder, reserved_colors};
use isochrome_host::load::net::{Traffic, kernel::Sockets, tap, tap::Tapped, wired::Wired};
use isochrome_host::sys::clock;
use isochrome_host::sys::heap::Heap;
use isochrome_host::sys::tap::Tap;
use isochrome_model::flood::Pattern;
use isochrome_model::geometry::Geometry;
use isochrome_model::net::Component;
use isochrome_model::units::{Color, Cycles, Ns};

use super::{Condition, Direction, Path, Setting};
use crate::error::LabError;
use crate::runner::{Experiment, Recorder};
use crate::samples::{Arm, Judged};

/// Number of pages of the heaps of driver, server and client.
const HEAP_PAGES: [usize; 3] = [12, 12, 8];
/// Unrecorded packets before a block.
const WARM_UP: usize = 2;

/// The colors of each component and of the flooder if each has its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Division {
    /// Colors of driver, server and client.
    pub components: [Vec<Color>; 3],
    /// Colors of the flooder.
    pub flooder: Vec<Color>,
    /// Colors that the components share if none has its own: all except those that the flooder reserves. [Loeser1999, §3.2.2]
    pub shared: Vec<Color>,
}

impl Division {
    /// Divides `colors` colors, of which the flooder reserves `reserved`. Driver and client get an eighth each, the server three sixteenths, and
    /// the flooder the rest. `path` decides which components have memory that can be colored. `None` if there are too few colors.
    pub fn of(colors: u32, reserved: usize, path: Path) -> Option<Division> {
        let all: Vec<Color> = (0..colors as u16).map(Color).collect();
        let share = |sixteenths: usize| (all.len() * sixteenths / 16).max(1);
        let counts = match path {
            Path::Memory | Path::Tap => [share(2), share(3), share(2)],
            // Driver and server are in the kernel, whose memory lies in all colors.
            Path::Kernel => [0, 0, share(2)],
        };
        let flooder = all.len().checked_sub(counts.iter().sum()).filter(|left| *left >= reserved.max(1))?;
        let mut rest = all[flooder..].iter().copied();
        let components = counts.map(|count| rest.by_ref().take(count).collect());
        Some(Division { components, flooder: all[..flooder].to_vec(), shared: all[reserved..].to_vec() })
    }
}

/// Returns the number of pages of every color that the pool must have.
pub fn pages_per_color(target: Target, first: Option<Geometry>) -> usize {
    Flooder::pages_per_color(target.geometry, first) + HEAP_PAGES.iter().sum::<usize>()
}

/// The experiment of sending and receiving packets on one path.
pub struct Sending<'a> {
    pool: &'a FramePool,
    target: Target,
    first: Option<Geometry>,
    path: Path,
    /// The colors of each component and of the flooder.
    pub division: Division,
    /// Payload sizes of the packets, in bytes.
    pub sizes: Vec<usize>,
    /// Flood that is compared with mere writing.
    pub pattern: Pattern,
    /// Pause before each packet, so that no packet waits for the one before.
    pub gap: Ns,
    /// The TAP device that all blocks use, as making and removing a namespace for each block would disturb the measurement. `None` if the path
    /// needs none.
    tap: Option<Tap>,
}

impl<'a> Sending<'a> {
    /// Returns the experiment on `path` in memory of `pool`, whose colors are those of `target`. `first` is the first data level. By default
    /// packets are of one byte, the flood merely writes, and there is no pause.
    ///
    /// Fails if there are too few colors, or if the path needs a TAP device and none can be opened.
    pub fn new(
        pool: &'a FramePool,
        target: Target,
        first: Option<Geometry>,
        path: Path,
    ) -> Result<Sending<'a>, LabError> {
        let colors = pool.colors();
        let division = Division::of(colors, reserved_colors(first), path).ok_or(LabError::TooFewColors { colors })?;
        let tap = if path == Path::Tap { Some(tap::open()?) } else { None };
        let (sizes, pattern, gap) = (vec![1], Pattern::Write, Ns(0));
        Ok(Sending { pool, target, first, path, division, sizes, pattern, gap, tap })
    }
}

impl Experiment for Sending<'_> {
    type Condition = Condition;
    const JUDGED: Judged = super::JUDGED;

    fn columns(&self) -> Vec<String> {
        super::COLUMNS.map(str::to_owned).to_vec()
    }

    fn conditions(&self) -> Vec<Condition> {
        let settings = [Setting::Naive, Setting::Flooded, Setting::Partitioned];
        let of = |&bytes: &usize| {
            let both =
                Direction::ALL.into_iter().flat_map(move |direction| settings.map(|setting| (direction, setting)));
            both.map(move |(direction, setting)| Condition { direction, bytes, setting })
        };
        self.sizes.iter().flat_map(of).collect()
    }

    fn block(&mut self, condition: Condition, recorder: &mut Recorder<Condition>) -> Result<(), LabError> {
        let Condition { direction, bytes, setting } = condition;
        // Placement alone changes results, so each block has other pages.
        self.pool.shuffle(&mut recorder.rng);
        let all: Vec<Color> = (0..self.pool.colors() as u16).map(Color).collect();
        let (flooded, pattern) = match setting {
            Setting::Naive => (&all, Pattern::Write),
            Setting::Flooded => (&all, self.pattern),
            Setting::Partitioned => (&self.division.flooder, self.pattern),
        };
        let flooder = Flooder::new(self.pool, self.target.geometry, self.first, flooded, pattern)?;
        let memory = |component: Component| {
            let own = &self.division.components[component as usize];
            let colors = if setting == Setting::Partitioned { own } else { &self.division.shared };
            Ok::<_, LabError>(Heap::new(self.pool.take(colors, HEAP_PAGES[component as usize])?)?)
        };
        let memories =
            || Ok::<_, LabError>([memory(Component::Driver)?, memory(Component::Server)?, memory(Component::Client)?]);
        let mut traffic: Box<dyn Traffic> = match (self.path, &self.tap) {
            (Path::Kernel, _) => Box::new(Sockets::open(memory(Component::Client)?)?),
            (_, Some(tap)) => Box::new(Tapped::build(memories()?, tap)?),
            (_, None) => Box::new(Wired::build(memories()?)?),
        };
        let gap = (self.gap.0 as f64 * clock::rate_hz() as f64 / 1e9) as u64;
        for _ in 0..WARM_UP {
            packet(&mut *traffic, direction, bytes, || {})?;
        }
        recorder.measure(condition, &[Arm::Control, Arm::Treatment], |arm| {
            // This unrecorded packet reloads the lines that the last flood has evicted.
            packet(&mut *traffic, direction, bytes, || {})?;
            clock::spin_until(Cycles(clock::now().0 + gap));
            packet(
                &mut *traffic,
                direction,
                bytes,
                || if arm == Arm::Treatment { flooder.run() } else { flooder.spin() },
            )
            .map(Some)
        })
    }
}

/// Sends or receives one packet and returns the ticks of driver, server and client. `disturb` runs before each part of the operation.
fn packet(
    traffic: &mut dyn Traffic,
    direction: Direction,
    bytes: usize,
    disturb: impl Fn(),
) -> Result<Vec<f64>, LabError> {
    disturb();
    match direction {
        Direction::Send => {
            let packet = traffic.send(bytes)?;
            traffic.drain(bytes)?;
            Ok(packet.spent.map(|ticks| ticks.0 as f64).to_vec())
        }
        Direction::Receive => {
            let requested = traffic.request(bytes)?;
            // The card puts the packet into memory while the stack waits. The flood comes after that, so that the packet too has been evicted.
            traffic.arrive(bytes)?;
            disturb();
            let taken = traffic.take(bytes)?;
            Ok(requested
                .spent
                .iter()
                .zip(taken.spent)
                .map(|(requested, taken)| (requested.0 + taken.0) as f64)
                .collect())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use isochrome_host::load::net::NetError;
    use isochrome_model::net::Packet;

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
        struct Instant;
        const PACKET: Packet = Packet { spent: [Cycles(1), Cycles(2), Cycles(3)] };
        impl Traffic for Instant {
            fn send(&mut self, _: usize) -> Result<Packet, NetError> {
                Ok(PACKET)
            }
            fn drain(&mut self, _: usize) -> Result<(), NetError> {
                Ok(())
            }
            fn request(&mut self, _: usize) -> Result<Packet, NetError> {
                Ok(PACKET)
            }
            fn arrive(&mut self, _: usize) -> Result<(), NetError> {
                Ok(())
            }
            fn take(&mut self, _: usize) -> Result<Packet, NetError> {
                Ok(PACKET)
            }
        }
        for (direction, expected, spent) in
            [(Direction::Send, 1, [1.0, 2.0, 3.0]), (Direction::Receive, 2, [2.0, 4.0, 6.0])]
        {
            let floods = std::cell::Cell::new(0);
            let packet = packet(&mut Instant, direction, 1500, || floods.set(floods.get() + 1)).unwrap();
            assert_eq!((floods.get(), packet), (expected, spent.to_vec()), "{direction:?}");
        }
    }
}
