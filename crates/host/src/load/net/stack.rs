//! A user-space network stack in three components: driver, server and client. [Loeser1999, §2.2]
//!
//! The protocols are those of smoltcp. Sending copies nothing in main memory: the client writes into memory that it shares with the
//! server, and the driver moves the packet from there into the card. Receiving copies every byte twice: from the card's memory into the
//! server, which must find the connection first, and from the server to the client. The card computes the checksums of packets.

use std::fs::File;
use std::net::Ipv4Addr;

use isochrome_model::net::{Admission, Component, Cost, Meter, Packet, Refused, Reservation, TokenBucket};
use isochrome_model::units::Ns;
use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet, SocketStorage};
use smoltcp::socket::udp;
use smoltcp::time::Instant;
use smoltcp::wire::{EthernetAddress, IpCidr, IpEndpoint};

pub use super::driver::{BYTES_MAX, Driver, ETHERNET, FRAME_MAX};
use super::error::NetError;
use crate::sys::clock;
use crate::sys::heap::{BackingMemory, Heap};

/// Port of every connection, at both ends.
pub const PORT: u16 = 7;
/// The time that is passed to smoltcp. It never changes: no protocol in use depends on time, and smoltcp must not forget a neighbor during
/// a measurement.
const NOW: Instant = Instant::ZERO;

/// A source of memory for each component.
pub trait ComponentMemory {
    /// Runs `make` with its allocations in the memory of `component`, and returns its result.
    fn within<T>(&self, component: Component, make: impl FnOnce() -> T) -> T;
}

/// Ordinary memory for all components.
pub struct OrdinaryMemory;

impl ComponentMemory for OrdinaryMemory {
    fn within<T>(&self, _: Component, make: impl FnOnce() -> T) -> T {
        make()
    }
}

/// Takes the memory of each component from a heap of its own.
impl<M: BackingMemory> ComponentMemory for [Heap<M>; 3] {
    fn within<T>(&self, component: Component, make: impl FnOnce() -> T) -> T {
        self[component as usize].enter(make)
    }
}

/// The server: admits clients, keeps each within its reservation, and implements the protocols.
struct Server {
    interface: Interface,
    sockets: SocketSet<'static>,
    admission: Admission,
    connections: Vec<Account>,
}

/// State that the server keeps for a connection.
struct Account {
    socket: SocketHandle,
    peer: IpEndpoint,
    send: TokenBucket,
    receive: TokenBucket,
}

/// One end of a wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The end that is measured.
    Near,
    /// The peer of the end that is measured.
    Far,
}

impl End {
    fn number(self) -> u8 {
        match self {
            End::Near => 1,
            End::Far => 2,
        }
    }

    /// Returns the IP address of this end, in a /24 network.
    pub fn address(self) -> Ipv4Addr {
        Ipv4Addr::new(10, 77, 0, self.number())
    }

    /// Returns the hardware address of this end, a locally administered one.
    pub fn hardware(self) -> [u8; 6] {
        [2, 0, 0, 0, 0, self.number()]
    }

    fn other(self) -> End {
        match self {
            End::Near => End::Far,
            End::Far => End::Near,
        }
    }
}

impl Server {
    fn new(driver: &mut Driver, end: End, admission: Admission) -> Server {
        let hardware = EthernetAddress(end.hardware());
        let mut interface = Interface::new(Config::new(hardware.into()), driver, NOW);
        interface.update_ip_addrs(|addresses| {
            addresses.push(IpCidr::new(end.address().into(), 24)).expect("there is room for one address");
        });
        Server {
            interface,
            sockets: SocketSet::new(Vec::from([SocketStorage::EMPTY])),
            admission,
            connections: Vec::new(),
        }
    }
}

/// The client: the application that sends and receives packets.
struct Client {
    /// Number of the client's connection at the server.
    connection: usize,
    received: Vec<u8>,
}

/// A stack of all three components.
pub struct Stack {
    driver: Box<Driver>,
    server: Box<Server>,
    client: Box<Client>,
}

/// Parameters of a stack.
#[derive(Clone, Copy, Debug)]
pub struct StackRequest {
    /// End of the wire that the stack is at.
    pub end: End,
    /// Estimated cost of packets.
    pub cost: Cost,
    /// Share of the CPU that may be reserved, in millionths.
    pub limit_ppm: u64,
    /// Reservation of the client.
    pub reservation: Reservation,
}

fn packet_buffer(payload: Vec<u8>) -> udp::PacketBuffer<'static> {
    udp::PacketBuffer::new(vec![udp::PacketMetadata::EMPTY; 2], payload)
}

/// Returns the current time of the CPU's counter, in ns.
fn now_ns() -> Ns {
    Ns((clock::now().0 as f64 * (1e9 / clock::rate_hz() as f64)) as u64)
}

impl Stack {
    /// Builds the components, each in its own memory, and admits the client. If there is a `device`, frames are written to it
    /// and read from it without waiting; otherwise they stay in the card's memory until they are taken. Fails if the client is not admitted.
    pub fn build(
        memory: &impl ComponentMemory,
        request: StackRequest,
        device: Option<File>,
    ) -> Result<Stack, NetError> {
        let StackRequest { end, cost, limit_ppm, reservation } = request;
        let mut driver = memory.within(Component::Driver, || Box::new(Driver::new(device)));
        let (mut client, shared) = memory.within(Component::Client, || {
            let client = Client { connection: 0, received: vec![0; BYTES_MAX] };
            // The client writes only the stamp later, so every packet that it sends has these contents.
            (Box::new(client), packet_buffer((0..BYTES_MAX).map(content).collect()))
        });
        let server = memory.within(Component::Server, || {
            let mut server = Box::new(Server::new(&mut driver, end, Admission::new(cost, limit_ppm)));
            client.connection = server.connect(end, shared, reservation)?;
            Ok::<_, Refused>(server)
        })?;
        Ok(Stack { driver, server, client })
    }

    /// Returns the driver, through which the wire takes and delivers frames.
    pub fn driver(&mut self) -> &mut Driver {
        &mut self.driver
    }

    /// Sends a packet of `bytes`, stamped with `stamp`, and returns the time that each component spent on it.
    #[inline]
    pub fn send(&mut self, bytes: usize, stamp: u8) -> Result<Packet, NetError> {
        let Stack { driver, server, client } = self;
        driver.stopwatch.0.set(Meter::start(clock::now()));
        let write = |packet: &mut [u8]| {
            driver.stopwatch.pass_to(Component::Client);
            if let Some(first) = packet.first_mut() {
                *first = stamp;
            }
            driver.stopwatch.pass_to(Component::Server);
        };
        driver.stopwatch.pass_to(Component::Server);
        server.send(client.connection, bytes, write)?;
        server.interface.poll_egress(NOW, &mut **driver, &mut server.sockets);
        driver.stopwatch.pass_to(Component::Client);
        Ok(Packet { spent: driver.stopwatch.0.get().stop(clock::now()) })
    }

    /// Requests a packet of up to `bytes`. This is the first part of receiving, before the wait for the card.
    #[inline]
    pub fn request(&mut self, bytes: usize) -> Result<Packet, NetError> {
        let Stack { driver, server, client } = self;
        driver.stopwatch.0.set(Meter::start(clock::now()));
        client.received[..bytes].first().map(std::hint::black_box);
        driver.stopwatch.pass_to(Component::Server);
        server.expect(client.connection, bytes)?;
        driver.stopwatch.pass_to(Component::Driver);
        // The driver checks that the card has room for the packet.
        std::hint::black_box(driver.has_room());
        driver.stopwatch.pass_to(Component::Client);
        Ok(Packet { spent: driver.stopwatch.0.get().stop(clock::now()) })
    }

    /// Takes a packet of `bytes` from the card and hands it to the client. This is the second part of receiving.
    #[inline]
    pub fn take(&mut self, bytes: usize) -> Result<Packet, NetError> {
        let Stack { driver, server, client } = self;
        driver.stopwatch.0.set(Meter::start(clock::now()));
        // The driver handles the card's interrupt.
        driver.stopwatch.pass_to(Component::Driver);
        server.interface.poll_ingress_single(NOW, &mut **driver, &mut server.sockets);
        driver.stopwatch.pass_to(Component::Server);
        let came = server.take(client.connection, &mut client.received)?;
        driver.stopwatch.pass_to(Component::Client);
        std::hint::black_box(client.received.first());
        let packet = Packet { spent: driver.stopwatch.0.get().stop(clock::now()) };
        if came == Some(bytes) { Ok(packet) } else { Err(NetError::Lost { bytes }) }
    }

    /// Receives a packet of `bytes` that the interface has already processed, without measuring the time.
    pub fn collect(&mut self, bytes: usize) -> Result<(), NetError> {
        let came = self.server.take(self.client.connection, &mut self.client.received)?;
        if came == Some(bytes) { Ok(()) } else { Err(NetError::Lost { bytes }) }
    }

    /// Processes all frames that have arrived, such as ARP requests, and sends the pending frames.
    pub fn settle(&mut self) {
        self.server.interface.poll(NOW, &mut *self.driver, &mut self.server.sockets);
    }

    /// Checks that the packet received last begins with the contents of a packet of `bytes` bytes with this stamp.
    pub fn check(&self, bytes: usize, stamp: u8) -> Result<(), NetError> {
        let as_sent = self.client.received[..bytes].iter().copied().eq(payload(bytes, stamp));
        if as_sent { Ok(()) } else { Err(NetError::Corrupt { bytes }) }
    }
}

impl Server {
    /// Admits a client whose packets lie in `shared`, and returns the number of its connection; fails if the reservation is refused.
    fn connect(
        &mut self,
        end: End,
        shared: udp::PacketBuffer<'static>,
        reservation: Reservation,
    ) -> Result<usize, Refused> {
        let [send, receive] = self.admission.admit(reservation, now_ns())?;
        let mut socket = udp::Socket::new(packet_buffer(vec![0; BYTES_MAX]), shared);
        socket.bind(PORT).expect("the socket is new and the port is not 0");
        let socket = self.sockets.add(socket);
        self.connections.push(Account { socket, peer: (end.other().address(), PORT).into(), send, receive });
        Ok(self.connections.len() - 1)
    }

    #[inline]
    fn send(&mut self, connection: usize, bytes: usize, write: impl FnOnce(&mut [u8])) -> Result<(), NetError> {
        let account = &mut self.connections[connection];
        account.send.take(bytes, now_ns())?;
        let socket = self.sockets.get_mut::<udp::Socket<'_>>(account.socket);
        write(socket.send(bytes, account.peer).map_err(|_| NetError::Lost { bytes })?);
        Ok(())
    }

    #[inline]
    fn expect(&mut self, connection: usize, bytes: usize) -> Result<(), NetError> {
        let account = &mut self.connections[connection];
        let socket = self.sockets.get::<udp::Socket<'_>>(account.socket);
        std::hint::black_box((socket.can_recv(), account.receive));
        // The account is charged when the packet arrives.
        if bytes > BYTES_MAX { Err(NetError::Lost { bytes }) } else { Ok(()) }
    }

    #[inline]
    fn take(&mut self, connection: usize, into: &mut [u8]) -> Result<Option<usize>, NetError> {
        let account = &mut self.connections[connection];
        let socket = self.sockets.get_mut::<udp::Socket<'_>>(account.socket);
        let Ok((packet, _)) = socket.recv() else { return Ok(None) };
        // A packet beyond the reservation is dropped here, before it costs the second copy.
        account.receive.take(packet.len(), now_ns())?;
        into[..packet.len()].copy_from_slice(packet);
        Ok(Some(packet.len()))
    }
}

/// Returns byte `index` of the contents that every packet has, except for the stamp in the first byte.
fn content(index: usize) -> u8 {
    (index as u32).wrapping_mul(0x9e37_79b1).to_le_bytes()[3]
}

/// Returns the contents of a packet of `bytes` bytes, at least one, with this stamp.
pub fn payload(bytes: usize, stamp: u8) -> impl Iterator<Item = u8> {
    std::iter::once(stamp).chain((1..bytes).map(content))
}

/// Carries frames between two stacks until neither has any left.
pub fn carry(one: &mut Stack, other: &mut Stack) {
    let mut carried = true;
    while carried {
        carried = false;
        for _ in 0..2 {
            while let Some(frame) = one.driver.take_sent() {
                carried |= other.driver.arrive(frame);
            }
            other.settle();
            std::mem::swap(one, other);
        }
    }
}

/// Lets two stacks learn each other's addresses, by sending packets in both directions.
pub fn meet(near: &mut Stack, far: &mut Stack) -> Result<(), NetError> {
    for round in 0..2 {
        for from_near in [true, false] {
            let (from, to) = if from_near { (&mut *near, &mut *far) } else { (&mut *far, &mut *near) };
            from.send(1, round)?;
            carry(from, to);
            // While the peer's hardware address is unknown, the stack sends an ARP request first and the packet after the reply.
            from.settle();
            carry(from, to);
            while to.server.take(to.client.connection, &mut to.client.received)?.is_some() {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::driver::{HEADERS, SLOTS};
    use super::*;

    const GENEROUS: Reservation = Reservation { packets_per_s: 10_000, bytes_max: BYTES_MAX, burst: 1_000_000 };

    fn request(end: End) -> StackRequest {
        let cost = Cost { packet: Ns(1000), byte_ps: 250 };
        StackRequest { end, cost, limit_ppm: 900_000, reservation: GENEROUS }
    }

    fn pair() -> (Stack, Stack) {
        let mut near = Stack::build(&OrdinaryMemory, request(End::Near), None).unwrap();
        let mut far = Stack::build(&OrdinaryMemory, request(End::Far), None).unwrap();
        meet(&mut near, &mut far).unwrap();
        (near, far)
    }

    #[test]
    fn bytes_arrive_as_they_were_sent() {
        let (mut near, mut far) = pair();
        for (round, bytes) in [1, 2, 63, 64, 1500, 4096, BYTES_MAX].into_iter().enumerate() {
            let stamp = round as u8 + 1;
            near.send(bytes, stamp).unwrap();
            let frame = near.driver().take_sent().expect("the frame is in the card").to_vec();
            assert_eq!(frame.len(), bytes + HEADERS);
            assert!(near.driver().take_sent().is_none(), "one packet is one frame");
            far.request(bytes).unwrap();
            assert!(far.driver().arrive(&frame));
            far.take(bytes).unwrap();
            far.check(bytes, stamp).unwrap();
            assert!(
                matches!(far.check(bytes, stamp.wrapping_add(1)), Err(NetError::Corrupt { bytes: of }) if of == bytes)
            );
        }
    }

    #[test]
    fn a_packet_that_never_came_is_missed() {
        let (mut near, _far) = pair();
        near.request(100).unwrap();
        assert!(matches!(near.take(100), Err(NetError::Lost { bytes: 100 })));
    }

    #[test]
    fn every_component_is_charged_its_part_of_what_an_operation_takes() {
        let (mut near, mut far) = pair();
        let begin = clock::now();
        let sent = near.send(BYTES_MAX, 9).unwrap();
        let whole = clock::now().0 - begin.0;
        assert!(sent.total().0 <= whole && sent.total().0 > 0, "{sent:?} of {whole}");
        let frame = near.driver().take_sent().unwrap().to_vec();
        let asked = far.request(BYTES_MAX).unwrap();
        far.driver().arrive(&frame);
        let taken = far.take(BYTES_MAX).unwrap();
        for packet in [sent, taken] {
            assert!(packet.spent.iter().all(|spent| spent.0 > 0), "{packet:?}");
        }
        assert!(asked.total().0 > 0);
    }

    #[test]
    fn who_sends_more_than_was_reserved_is_refused() {
        let slow = Reservation { packets_per_s: 0, bytes_max: 1000, burst: 2 };
        let mut near =
            Stack::build(&OrdinaryMemory, StackRequest { reservation: slow, ..request(End::Near) }, None).unwrap();
        near.send(1000, 0).unwrap();
        near.send(1000, 0).unwrap();
        assert!(matches!(near.send(1000, 0), Err(NetError::Refused(Refused::Account { .. }))));
        assert!(matches!(near.send(1001, 0), Err(NetError::Refused(Refused::TooLarge { .. }))));
    }

    #[test]
    fn who_is_sent_more_than_was_reserved_does_not_get_it() {
        let (mut near, _) = pair();
        let slow = Reservation { packets_per_s: 0, bytes_max: 1000, burst: 1 };
        let mut far =
            Stack::build(&OrdinaryMemory, StackRequest { reservation: slow, ..request(End::Far) }, None).unwrap();
        for stamp in 0..2 {
            near.send(1000, stamp).unwrap();
            let frame = near.driver().take_sent().unwrap().to_vec();
            far.driver().arrive(&frame);
            let taken = far.take(1000);
            assert_eq!(taken.is_ok(), stamp == 0, "{taken:?}");
        }
        far.check(1000, 0).unwrap();
    }

    #[test]
    fn a_client_that_reserves_more_than_there_is_is_not_admitted() {
        let greedy = Reservation { packets_per_s: 1_000_000, ..GENEROUS };
        let outcome = Stack::build(&OrdinaryMemory, StackRequest { reservation: greedy, ..request(End::Near) }, None);
        assert!(matches!(outcome.err(), Some(NetError::Refused(Refused::Admission { .. }))));
    }

    #[test]
    fn frames_that_the_card_has_no_room_for_are_dropped() {
        let (mut near, _far) = pair();
        assert!(!near.driver().arrive(&vec![0; FRAME_MAX + 1]));
        let arrived = (0..SLOTS + 1).filter(|_| near.driver().arrive(&[0; 64])).count();
        assert!(arrived <= SLOTS);
    }
}
