//! Why packets are not sent or received.

use std::io;

use isochrome_model::net::Refused;

use crate::sys::heap::HeapError;

/// Trouble with packets, and with what they pass through.
#[derive(Debug, thiserror::Error)]
pub enum NetError {
    /// A connection or a packet was refused.
    #[error("{0}")]
    Refused(#[from] Refused),
    /// A packet did not reach its destination.
    #[error("a packet of {bytes} bytes did not arrive\n  hint: please report it, with the seed")]
    Lost {
        /// Bytes of the packet.
        bytes: usize,
    },
    /// A packet arrived with other contents than were sent.
    #[error("a packet of {bytes} bytes arrived with other contents\n  hint: please report it, with the seed")]
    Corrupt {
        /// Bytes of the packet.
        bytes: usize,
    },
    /// A socket could not be used.
    #[error("UDP over {device}: {source}\n  hint: is the device up? `ip link`")]
    Socket {
        /// Over what.
        device: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// There is no TAP device to be had.
    #[error(
        "a TAP device in a network namespace: {action}: {source}\n  hint: run as root where /dev/net/tun and network namespaces are permitted; the other paths need neither"
    )]
    Tap {
        /// What was being done.
        action: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// The components have no memory of their own.
    #[error("{0}")]
    Heap(#[from] HeapError),
}
