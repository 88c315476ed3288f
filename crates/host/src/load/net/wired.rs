//! A stack whose card is memory, and its peer.

use std::fs::File;

use isochrome_model::net::{Cost, Packet, Reservation};
use isochrome_model::units::Ns;

use super::Traffic;
use super::error::NetError;
use super::stack::{BYTES_MAX, End, OrdinaryMemory, Stack, StackRequest, carry, meet};
use crate::color::pool::ColoredRegion;
use crate::sys::heap::Heap;

/// Cost of a packet as the server estimates it.
const COST: Cost = Cost { packet: Ns(1000), byte_ps: 250 };
/// Reservation of the client: more than the experiments send.
const RESERVATION: Reservation = Reservation { packets_per_s: 20_000, bytes_max: BYTES_MAX, burst: 10_000 };
/// Share of the CPU that the server may reserve, in millionths.
const LIMIT_PPM: u64 = 900_000;

/// A stack in the memory of its components, and its peer in ordinary memory. The fields drop in order, so
/// allocations are dropped before their memory.
pub struct Wired {
    near: Stack,
    far: Stack,
    stamp: u8,
    frame: Vec<u8>,
    _heaps: [Heap<ColoredRegion>; 3],
}

fn stack_request(end: End) -> StackRequest {
    StackRequest { end, cost: COST, limit_ppm: LIMIT_PPM, reservation: RESERVATION }
}

/// Builds the stack that is measured, in `heaps`. Fails if a heap is not used, or is too small.
pub(super) fn near(heaps: &[Heap<ColoredRegion>; 3], device: Option<File>) -> Result<Stack, NetError> {
    let stack = Stack::build(heaps, stack_request(End::Near), device)?;
    for heap in heaps {
        heap.check()?;
    }
    Ok(stack)
}

impl Wired {
    /// Builds both stacks, the near one in `heaps`.
    pub fn build(heaps: [Heap<ColoredRegion>; 3]) -> Result<Wired, NetError> {
        let mut near = near(&heaps, None)?;
        let mut far = Stack::build(&OrdinaryMemory, stack_request(End::Far), None)?;
        meet(&mut near, &mut far)?;
        Ok(Wired { near, far, stamp: 0, frame: Vec::new(), _heaps: heaps })
    }
}

impl Traffic for Wired {
    fn send(&mut self, bytes: usize) -> Result<Packet, NetError> {
        self.stamp = self.stamp.wrapping_add(1);
        self.near.send(bytes, self.stamp)
    }

    fn drain(&mut self, bytes: usize) -> Result<(), NetError> {
        carry(&mut self.near, &mut self.far);
        self.far.collect(bytes)?;
        self.far.check(bytes, self.stamp)
    }

    fn request(&mut self, bytes: usize) -> Result<Packet, NetError> {
        self.near.request(bytes)
    }

    fn arrive(&mut self, bytes: usize) -> Result<(), NetError> {
        self.stamp = self.stamp.wrapping_add(1);
        self.far.send(bytes, self.stamp)?;
        self.frame.clear();
        self.frame.extend_from_slice(self.far.driver().take_sent().ok_or(NetError::Lost { bytes })?);
        if self.near.driver().arrive(&self.frame) { Ok(()) } else { Err(NetError::Lost { bytes }) }
    }

    fn take(&mut self, bytes: usize) -> Result<Packet, NetError> {
        let packet = self.near.take(bytes)?;
        self.near.check(bytes, self.stamp)?;
        Ok(packet)
    }
}
