//! The kernel's UDP path. Only the memory of the application can have colors here, not that of the kernel.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use isochrome_model::net::{Component, Packet};
use isochrome_model::units::Cycles;

use super::Traffic;
use super::error::NetError;
use super::stack::BYTES_MAX;
use crate::color::pool::ColoredRegion;
use crate::sys::clock;
use crate::sys::heap::Heap;

fn trouble(source: io::Error) -> NetError {
    NetError::Socket { device: "the loopback device", source }
}

/// Two sockets on the loopback device. The fields drop in order, so allocations are dropped before their memory.
pub struct Sockets {
    near: UdpSocket,
    far: UdpSocket,
    addresses: [SocketAddr; 2],
    /// Buffers for the packets that the application sends and receives, in its own memory.
    sent: Vec<u8>,
    received: Vec<u8>,
    /// Buffer for the packets that the other end receives.
    far_received: Vec<u8>,
    stamp: u8,
    _heap: Heap<ColoredRegion>,
}

impl Sockets {
    /// Opens both sockets. The application's buffers lie in `heap`.
    pub fn open(heap: Heap<ColoredRegion>) -> Result<Sockets, NetError> {
        let open = || {
            let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
            socket.set_read_timeout(Some(Duration::from_secs(1)))?;
            let address = socket.local_addr()?;
            Ok((socket, address))
        };
        let (near, near_address) = open().map_err(trouble)?;
        let (far, far_address) = open().map_err(trouble)?;
        let (sent, received) = heap.enter(|| (vec![0x5a; BYTES_MAX], vec![0; BYTES_MAX]));
        heap.check()?;
        let addresses = [near_address, far_address];
        Ok(Sockets { near, far, addresses, sent, received, far_received: vec![0; BYTES_MAX], stamp: 0, _heap: heap })
    }

    fn timed<T>(work: impl FnOnce() -> io::Result<T>) -> Result<(T, Packet), NetError> {
        let begin = clock::now();
        let done = work();
        let time = Cycles(clock::now().0 - begin.0);
        let mut spent = [Cycles(0); 3];
        spent[Component::Server as usize] = time;
        Ok((done.map_err(trouble)?, Packet { spent }))
    }

    fn check(received: &[u8], came: usize, bytes: usize, stamp: u8) -> Result<(), NetError> {
        if came != bytes {
            return Err(NetError::Lost { bytes });
        }
        let as_sent = received[0] == stamp && received[1..bytes].iter().all(|byte| *byte == 0x5a);
        if as_sent { Ok(()) } else { Err(NetError::Corrupt { bytes }) }
    }
}

impl Traffic for Sockets {
    fn send(&mut self, bytes: usize) -> Result<Packet, NetError> {
        self.stamp = self.stamp.wrapping_add(1);
        let [_, far] = self.addresses;
        let (_, packet) = Sockets::timed(|| {
            self.sent[0] = self.stamp;
            self.near.send_to(&self.sent[..bytes], far)
        })?;
        Ok(packet)
    }

    fn drain(&mut self, bytes: usize) -> Result<(), NetError> {
        let (came, _) = self.far.recv_from(&mut self.far_received).map_err(trouble)?;
        Sockets::check(&self.far_received, came, bytes, self.stamp)
    }

    fn request(&mut self, _: usize) -> Result<Packet, NetError> {
        // The kernel needs no request: it accepts packets for every bound port.
        Ok(Packet { spent: [Cycles(0); 3] })
    }

    fn arrive(&mut self, bytes: usize) -> Result<(), NetError> {
        self.stamp = self.stamp.wrapping_add(1);
        let mut packet = vec![0x5a; bytes];
        packet[0] = self.stamp;
        let [near, _] = self.addresses;
        self.far.send_to(&packet, near).map_err(trouble)?;
        Ok(())
    }

    fn take(&mut self, bytes: usize) -> Result<Packet, NetError> {
        let ((came, _), packet) = Sockets::timed(|| self.near.recv_from(&mut self.received))?;
        Sockets::check(&self.received, came, bytes, self.stamp)?;
        Ok(packet)
    }
}
