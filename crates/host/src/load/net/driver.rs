//! The driver of a stack: it holds the frames of the card in the order of their arrival, and measures the time of each component.

use std::cell::Cell;
use std::fs::File;
use std::io::{Read, Write};

use isochrome_model::net::{Component, Meter};
use isochrome_model::units::Cycles;
use smoltcp::phy::{Checksum, Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::time::Instant;

use crate::sys::clock;

/// Size of the largest payload, in bytes.
pub const BYTES_MAX: usize = 8192;
/// Size of the headers of Ethernet, IPv4 and UDP together, in bytes.
pub(super) const HEADERS: usize = ETHERNET + 20 + 8;
/// Size of the Ethernet header, in bytes.
pub const ETHERNET: usize = 14;
/// Size of the largest frame, in bytes.
pub const FRAME_MAX: usize = BYTES_MAX + HEADERS;
/// Number of frames that the card holds in each direction.
pub(super) const SLOTS: usize = 2;

/// Attributes the ticks of the CPU's counter to the components.
pub(super) struct Stopwatch(pub(super) Cell<Meter>);

impl Stopwatch {
    #[inline]
    pub(super) fn pass_to(&self, component: Component) {
        let mut meter = self.0.get();
        meter.pass_to(component, clock::now());
        self.0.set(meter);
    }
}

/// A frame in the card.
struct Slot {
    bytes: Vec<u8>,
    len: usize,
}

/// A ring of frames, in the order of their arrival.
struct Ring {
    slots: Vec<Slot>,
    first: usize,
    count: usize,
}

impl Ring {
    fn new() -> Ring {
        let slots = (0..SLOTS).map(|_| Slot { bytes: vec![0; FRAME_MAX], len: 0 }).collect();
        Ring { slots, first: 0, count: 0 }
    }

    /// Takes the next slot to fill; `None` if all slots are full.
    fn push(&mut self) -> Option<&mut Slot> {
        let at = (self.first + self.count) % SLOTS;
        (self.count < SLOTS).then(|| {
            self.count += 1;
            &mut self.slots[at]
        })
    }

    /// Removes the oldest frame and returns its slot; `None` if the ring is empty.
    fn pop(&mut self) -> Option<&mut Slot> {
        let at = self.first;
        (self.count > 0).then(|| {
            (self.first, self.count) = ((at + 1) % SLOTS, self.count - 1);
            &mut self.slots[at]
        })
    }
}

/// The driver: moves frames to and from the card, and owns the card's memory.
pub struct Driver {
    pub(super) stopwatch: Stopwatch,
    sent: Ring,
    arrived: Ring,
    /// Device that frames are written to and read from, each by a system call. `None` if the card consists of memory alone.
    device: Option<File>,
}

impl Driver {
    pub(super) fn new(device: Option<File>) -> Driver {
        let stopwatch = Stopwatch(Cell::new(Meter::start(Cycles(0))));
        Driver { stopwatch, sent: Ring::new(), arrived: Ring::new(), device }
    }

    /// Whether the card has room for a frame from the wire.
    #[inline]
    pub(super) fn has_room(&self) -> bool {
        self.arrived.count < SLOTS
    }

    /// Reads the next frame of the device into the card, if the device has one and the card has room.
    fn fetch(&mut self) {
        if let Some(mut device) = self.device.as_ref()
            && let Some(slot) = self.arrived.push()
        {
            match device.read(&mut slot.bytes) {
                Ok(len) => slot.len = len,
                Err(_) => self.arrived.count -= 1,
            }
        }
    }

    /// Removes and returns the oldest frame that the card has sent; `None` if no sent frame is left.
    pub fn take_sent(&mut self) -> Option<&[u8]> {
        self.sent.pop().map(|slot| &slot.bytes[..slot.len])
    }

    /// Puts `frame` from the wire into the card, and returns whether the card had room for it.
    pub fn arrive(&mut self, frame: &[u8]) -> bool {
        let Some(slot) = (frame.len() <= FRAME_MAX).then(|| self.arrived.push()).flatten() else { return false };
        slot.bytes[..frame.len()].copy_from_slice(frame);
        slot.len = frame.len();
        true
    }
}

/// A frame that the card has received.
pub struct Arrived<'a> {
    slot: &'a Slot,
    stopwatch: &'a Stopwatch,
}

impl RxToken for Arrived<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, take: F) -> R {
        self.stopwatch.pass_to(Component::Server);
        let taken = take(&self.slot.bytes[..self.slot.len]);
        self.stopwatch.pass_to(Component::Driver);
        taken
    }
}

/// A slot of the card for a frame to be sent.
pub struct Sending<'a> {
    ring: &'a mut Ring,
    device: Option<&'a File>,
    stopwatch: &'a Stopwatch,
}

impl TxToken for Sending<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, fill: F) -> R {
        self.stopwatch.pass_to(Component::Driver);
        let slot = self.ring.push().expect("a token is only given while a slot is free");
        slot.len = len;
        let filled = fill(&mut slot.bytes[..len]);
        if let Some(mut device) = self.device {
            // A frame that the device refuses is lost, as on any wire.
            let _ = device.write(&slot.bytes[..len]);
            self.ring.pop();
        }
        self.stopwatch.pass_to(Component::Server);
        filled
    }
}

impl Device for Driver {
    type RxToken<'a> = Arrived<'a>;
    type TxToken<'a> = Sending<'a>;

    fn receive(&mut self, _: Instant) -> Option<(Arrived<'_>, Sending<'_>)> {
        if self.sent.count == SLOTS {
            return None;
        }
        self.fetch();
        let slot = self.arrived.pop()?;
        let (device, stopwatch) = (self.device.as_ref(), &self.stopwatch);
        Some((Arrived { slot, stopwatch }, Sending { ring: &mut self.sent, device, stopwatch }))
    }

    fn transmit(&mut self, _: Instant) -> Option<Sending<'_>> {
        let (device, stopwatch) = (self.device.as_ref(), &self.stopwatch);
        (self.sent.count < SLOTS).then_some(Sending { ring: &mut self.sent, device, stopwatch })
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = FRAME_MAX;
        capabilities.checksum.udp = Checksum::None;
        capabilities
    }
}
