//! Ways to send and receive packets: a stack whose card is memory, the same over a TAP device, and the kernel's sockets.

mod driver;
pub mod kernel;
pub mod stack;
pub mod tap;
pub mod wired;

use isochrome_model::net::Packet;

use crate::error::HostError;

/// Something that sends and receives packets for an experiment.
pub trait Traffic {
    /// Sends a packet.
    fn send(&mut self, bytes: usize) -> Result<Packet, HostError>;
    /// Takes what was sent off the wire, outside of what is measured, and checks that it is what was sent.
    fn drain(&mut self, bytes: usize) -> Result<(), HostError>;
    /// Asks for a packet.
    fn request(&mut self, bytes: usize) -> Result<Packet, HostError>;
    /// Has a packet come from the wire, outside of what is measured.
    fn arrive(&mut self, bytes: usize) -> Result<(), HostError>;
    /// Takes the packet, and holds, outside of what is measured, that it is what has come.
    fn take(&mut self, bytes: usize) -> Result<Packet, HostError>;
}
