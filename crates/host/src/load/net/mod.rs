//! Ways to send and receive packets: a stack whose card is memory, a stack over a TAP device, and the kernel's sockets.

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
    /// Sends a packet of `bytes`, and returns the time that each component spent on it.
    fn send(&mut self, bytes: usize) -> Result<Packet, NetError>;
    /// Takes the sent packet off the wire, outside of the measurement, and checks its contents.
    fn drain(&mut self, bytes: usize) -> Result<(), NetError>;
    /// Requests a packet of `bytes`, and returns the time that each component spent on the request.
    fn request(&mut self, bytes: usize) -> Result<Packet, NetError>;
    /// Makes a packet of `bytes` arrive from the wire, outside of the measurement.
    fn arrive(&mut self, bytes: usize) -> Result<(), NetError>;
    /// Takes the packet that arrived, and returns the time that each component spent on it. The check of the contents is not measured.
    fn take(&mut self, bytes: usize) -> Result<Packet, NetError>;
}
