//! Errors of sending and receiving packets.

use std::io;

use isochrome_model::net::Refused;

use crate::sys::heap::HeapError;

/// Error of sending or receiving packets, or of setting up their path.
#[derive(Debug, thiserror::Error)]
pub enum NetError {
    /// A connection or a packet was refused.
    #[error("{0}")]
    Refused(#[from] Refused),
    /// A packet did not reach its destination.
    #[error("a packet of {bytes} bytes did not arrive\n  hint: please report it, with the seed")]
    Lost {
        /// Size of the packet, in bytes.
        bytes: usize,
    },
    /// A packet arrived with other contents than were sent.
    #[error("a packet of {bytes} bytes arrived with other contents\n  hint: please report it, with the seed")]
    Corrupt {
        /// Size of the packet, in bytes.
        bytes: usize,
    },
    /// A socket could not be used.
    #[error("UDP over {device}: {source}\n  hint: is the device up? `ip link`")]
    Socket {
        /// Name of the device that the socket uses.
        device: &'static str,
        /// Error that the kernel reported.
        source: io::Error,
    },
    /// No TAP device could be set up.
    #[error(
        "a TAP device in a network namespace: {action}: {source}\n  hint: run as root where /dev/net/tun and network namespaces are permitted; the other paths need neither"
    )]
    Tap {
        /// The action that failed.
        action: &'static str,
        /// Error that the kernel reported.
        source: io::Error,
    },
    /// The heap of a component is not used, or is too small.
    #[error("{0}")]
    Heap(#[from] HeapError),
}
