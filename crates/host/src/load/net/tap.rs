//! The stack over a TAP device. The stack's driver reads and writes frames by system calls; the peer is the kernel's UDP in a separate
//! network namespace.

use std::io;

use isochrome_model::net::Packet;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::error::NetError;
use super::stack::{BYTES_MAX, ETHERNET, End, FRAME_MAX, PORT, Stack, payload};
use super::{Traffic, wired::near};
use crate::color::pool::ColoredRegion;
use crate::sys::heap::Heap;
use crate::sys::tap::{Tap, TapRequest};

/// Longest wait for a frame from the device.
const PATIENCE: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

fn trouble(source: io::Error) -> NetError {
    NetError::Socket { device: "a TAP device", source }
}

/// Returns the request for a wire with a stack at the near end and the kernel at the far end, on which no packet is fragmented.
pub fn wire() -> TapRequest {
    let (near, far) = (End::Near.address(), End::Far.address());
    TapRequest { near, near_hardware: End::Near.hardware(), far, port: PORT, mtu: FRAME_MAX - ETHERNET }
}

/// Opens a TAP device for the request of [`wire`].
///
/// Fails with [`NetError::Tap`] where there are no rights, no device or no namespaces.
pub fn open() -> Result<Tap, NetError> {
    Tap::open(wire()).map_err(|failure| NetError::Tap { action: failure.action, source: failure.source })
}

/// A stack in the memory of its components, over a TAP device. The fields drop in order, so allocations are dropped before their memory.
pub struct Tapped {
    near: Stack,
    tap: Tap,
    stamp: u8,
    /// Buffer for the packets that the kernel receives.
    received: Vec<u8>,
    _heaps: [Heap<ColoredRegion>; 3],
}

impl Tapped {
    /// Builds a stack in `heaps` over the device `tap`.
    pub fn build(heaps: [Heap<ColoredRegion>; 3], tap: &Tap) -> Result<Tapped, NetError> {
        let tap = tap.try_clone().map_err(trouble)?;
        let near = near(&heaps, Some(tap.card.try_clone().map_err(trouble)?))?;
        let mut tapped = Tapped { near, tap, stamp: 0, received: vec![0; BYTES_MAX], _heaps: heaps };
        // The first frame is an ARP request for the kernel's hardware address. The packet follows after the reply.
        tapped.near.send(1, 0)?;
        tapped.wait(1)?;
        tapped.near.settle();
        tapped.drain(1)?;
        Ok(tapped)
    }

    /// Waits until the device has a frame to read; fails with [`NetError::Lost`] if none comes within [`PATIENCE`].
    fn wait(&self, bytes: usize) -> Result<(), NetError> {
        match poll(&mut [PollFd::new(&self.tap.card, PollFlags::IN)], Some(&PATIENCE)) {
            Ok(0) => Err(NetError::Lost { bytes }),
            Ok(_) => Ok(()),
            Err(error) => Err(trouble(error.into())),
        }
    }
}

impl Traffic for Tapped {
    fn send(&mut self, bytes: usize) -> Result<Packet, NetError> {
        self.stamp = self.stamp.wrapping_add(1);
        self.near.send(bytes, self.stamp)
    }

    fn drain(&mut self, bytes: usize) -> Result<(), NetError> {
        let came = self.tap.socket.recv(&mut self.received).map_err(trouble)?;
        if came != bytes {
            return Err(NetError::Lost { bytes });
        }
        let as_sent = self.received[..bytes].iter().copied().eq(payload(bytes, self.stamp));
        if as_sent { Ok(()) } else { Err(NetError::Corrupt { bytes }) }
    }

    fn request(&mut self, bytes: usize) -> Result<Packet, NetError> {
        self.near.request(bytes)
    }

    fn arrive(&mut self, bytes: usize) -> Result<(), NetError> {
        self.stamp = self.stamp.wrapping_add(1);
        let packet: Vec<u8> = payload(bytes, self.stamp).collect();
        self.tap.socket.send_to(&packet, (End::Near.address(), PORT)).map_err(trouble)?;
        self.wait(bytes)
    }

    fn take(&mut self, bytes: usize) -> Result<Packet, NetError> {
        let packet = self.near.take(bytes)?;
        self.near.check(bytes, self.stamp)?;
        Ok(packet)
    }
}
