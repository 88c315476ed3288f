//! Ways to send and receive packets: a stack whose card is memory, the same over a TAP device, and the kernel's sockets.

mod driver;
mod error;
pub mod kernel;
pub mod stack;
pub mod tap;
pub mod wired;

use isochrome_model::net::Packet;

pub use self::error::NetError;

/// A path on which an experiment sends and receives packets.
pub trait Traffic {
    /// Sends a packet of `bytes`, and returns what it cost.
    fn send(&mut self, bytes: usize) -> Result<Packet, NetError>;
    /// Takes the sent packet off the wire, outside of the measurement, and checks its contents.
    fn drain(&mut self, bytes: usize) -> Result<(), NetError>;
    /// Requests a packet of `bytes`, and returns what that cost.
    fn request(&mut self, bytes: usize) -> Result<Packet, NetError>;
    /// Has a packet of `bytes` arrive from the wire, outside of the measurement.
    fn arrive(&mut self, bytes: usize) -> Result<(), NetError>;
    /// Takes the packet that arrived, returns what that cost, and checks its contents outside of the measurement.
    fn take(&mut self, bytes: usize) -> Result<Packet, NetError>;
}
