//! Packets of the TAP device.

use std::fs::{read_dir, read_link, read_to_string};
use std::path::PathBuf;

use isochrome_host::load::net::stack::{BYTES_MAX, End, OrdinaryMemory, PORT, Stack, StackRequest, payload};
use isochrome_host::load::net::tap;
use isochrome_host::sys::tap::Tap;
use isochrome_model::net::{Cost, Reservation};
use isochrome_model::units::Ns;

use crate::thread::on_a_thread;

pub fn packets_of_every_size_cross_the_tap_device_both_ways_unaltered() {
    let Tap { card, socket } = tap::open().unwrap();
    let reservation = Reservation { packets_per_s: 10_000, bytes_max: BYTES_MAX, burst: 100_000 };
    let cost = Cost { packet: Ns(1000), byte_ps: 250 };
    let request = StackRequest { end: End::Near, cost, limit_ppm: 900_000, reservation };
    let mut stack = Stack::build(&OrdinaryMemory, request, Some(card)).unwrap();
    let mut received = vec![0; BYTES_MAX + 1];
    // The first packet waits until the kernel has reported its hardware address.
    stack.send(1, 0).unwrap();
    stack.settle();
    assert_eq!(socket.recv(&mut received).unwrap(), 1);
    for bytes in 1..=BYTES_MAX {
        let stamp = bytes as u8;
        stack.send(bytes, stamp).unwrap();
        let (came, from) = socket.recv_from(&mut received).unwrap();
        assert_eq!((came, from), (bytes, (End::Near.address(), PORT).into()));
        assert!(received[..bytes].iter().copied().eq(payload(bytes, stamp)), "{bytes} bytes sent");

        let packet: Vec<u8> = payload(bytes, stamp).map(|byte| !byte).collect();
        socket.send_to(&packet, from).unwrap();
        stack.request(bytes).unwrap();
        stack.take(bytes).unwrap();
        assert!(stack.check(bytes, stamp).is_err(), "what was received is not what was sent");
        socket.send_to(&received[..bytes], from).unwrap();
        stack.take(bytes).unwrap();
        stack.check(bytes, stamp).unwrap();
    }
    assert!(stack.take(1).is_err(), "nothing else was on the wire");
}

/// Returns the network devices that the calling thread sees.
fn network_devices() -> Vec<String> {
    let text = read_to_string("/proc/thread-self/net/dev").unwrap();
    text.lines().filter_map(|line| Some(line.split_once(':')?.0.trim().to_owned())).collect()
}

fn network_namespace() -> PathBuf {
    read_link("/proc/thread-self/ns/net").unwrap()
}

pub fn a_tap_device_is_in_no_namespace_but_its_own_and_gone_when_it_is_closed() {
    let (before, own) = (network_devices(), network_namespace());
    let tap = tap::open().unwrap();
    assert_eq!((network_devices(), network_namespace()), (before.clone(), own.clone()));
    drop(tap);
    on_a_thread(move || {
        let tap = Tap::open_here(tap::wire()).unwrap();
        assert_ne!(network_namespace(), own);
        assert_eq!(network_devices(), ["lo", "tap0"]);
        drop(tap);
        assert_eq!(network_devices(), ["lo"]);
    });
    // The namespaces are gone: they had no names, no open file holds one, and no thread is in one.
    let open = read_dir("/proc/self/fd").unwrap().flatten();
    let held: Vec<_> = open.filter_map(|file| read_link(file.path()).ok()).collect();
    assert!(held.iter().all(|target| !target.ends_with("tun") && !target.to_string_lossy().starts_with("net:")));
    let threads = read_dir("/proc/self/task").unwrap().flatten();
    let elsewhere = threads.filter_map(|thread| read_link(thread.path().join("ns/net")).ok());
    assert!(elsewhere.into_iter().all(|namespace| namespace == network_namespace()));
    assert_eq!(network_devices(), before);
}
