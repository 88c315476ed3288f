//! A TAP device in a network namespace of its own. The kernel's stack in that namespace receives the frames that are written to the device, and
//! frames that the stack sends are read from the device.
//!
//! The namespace has no name, and exists only as long as the device or the socket in it is open. When both are closed, the kernel removes the
//! namespace and the device, however the process ends.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::thread;
use std::time::Duration;

use super::mount::Mount;

/// Name of the device inside the namespace, where the only other device is the loopback.
const DEVICE: &[u8] = b"tap0";
/// Flags of a neighbor entry that is complete and permanent. [linux/if_arp.h]
const NEIGHBOR: i32 = 0x02 | 0x04;
/// Longest time that the socket waits for a packet.
const PATIENCE: Duration = Duration::from_secs(1);

/// Addresses of the two ends of the wire, and the largest packet.
#[derive(Clone, Copy, Debug)]
pub struct TapRequest {
    /// Address of the end that reads and writes frames.
    pub near: Ipv4Addr,
    /// Hardware address of the near end.
    pub near_hardware: [u8; 6],
    /// Address of the kernel's end, in the same /24 network.
    pub far: Ipv4Addr,
    /// Port of the kernel's socket.
    pub port: u16,
    /// Bytes of the largest packet, without the Ethernet header.
    pub mtu: usize,
}

/// A TAP device, and the kernel's end of the wire.
pub struct Tap {
    /// File of the device. A read returns one frame that the kernel has sent, or fails with `WouldBlock` if there is none. A write passes one
    /// frame to the kernel.
    pub card: File,
    /// UDP socket of the kernel's stack at the far end.
    pub socket: UdpSocket,
}

/// A step of the setup that failed.
#[derive(Debug)]
pub struct Failure {
    /// Action that failed.
    pub action: &'static str,
    /// Error that the kernel returned.
    pub source: io::Error,
}

fn failed(action: &'static str) -> impl Fn(io::Error) -> Failure {
    move |source| Failure { action, source }
}

fn device() -> libc::ifreq {
    // SAFETY: an ifreq is made of integers.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // The bytes after the name stay zero, which terminates the name.
    request.ifr_name.iter_mut().zip(DEVICE).for_each(|(to, from)| *to = *from as _);
    request
}

fn internet(address: Ipv4Addr) -> libc::sockaddr {
    let mut data = [0; 14];
    // The address follows the port.
    data[2..6].copy_from_slice(&address.octets().map(|byte| byte as _));
    libc::sockaddr { sa_family: libc::AF_INET as _, sa_data: data }
}

fn hardware(address: [u8; 6]) -> libc::sockaddr {
    let mut data = [0; 14];
    data[..6].copy_from_slice(&address.map(|byte| byte as _));
    libc::sockaddr { sa_family: libc::ARPHRD_ETHER, sa_data: data }
}

fn control(file: RawFd, code: libc::c_ulong, request: &mut libc::ifreq) -> io::Result<()> {
    // SAFETY: the codes used here read and write one ifreq, which is live and exclusively borrowed.
    match unsafe { libc::ioctl(file, code as _, request as *mut libc::ifreq) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Disables IPv6 for all devices that are made in this namespace from now on.
fn without_ipv6() -> io::Result<()> {
    const SETTING: &str = "sys/net/ipv6/conf/default/disable_ipv6";
    let written = match fs::write(Path::new("/proc").join(SETTING), "1") {
        // Containers mount /proc/sys read-only. A new mount of /proc is writable.
        Err(error) if error.kind() == io::ErrorKind::ReadOnlyFilesystem => {
            let proc = Mount::new("proc")?;
            fs::write(proc.path().join(SETTING), "1")
        }
        written => written,
    };
    match written {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        written => written,
    }
}

impl Tap {
    /// Opens a TAP device in a network namespace of its own. The calling thread stays in its namespace.
    pub fn open(request: TapRequest) -> Result<Tap, Failure> {
        let thread = thread::Builder::new().name("tap".to_owned()).spawn(move || Tap::open_here(request));
        thread.map_err(failed("starting a thread"))?.join().expect("making a TAP device does not panic")
    }

    /// Makes a network namespace with a TAP device, and moves the calling thread into it.
    ///
    /// Needs CAP_SYS_ADMIN and CAP_NET_ADMIN.
    pub fn open_here(request: TapRequest) -> Result<Tap, Failure> {
        let TapRequest { near, near_hardware, far, port, mtu } = request;
        // SAFETY: unshare takes a number, touches no memory, and changes the network namespace of the calling thread only.
        if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
            return Err(failed("making a network namespace")(io::Error::last_os_error()));
        }
        // With IPv6, the kernel would send frames that no program requested.
        without_ipv6().map_err(failed("turning IPv6 off there"))?;
        let card = OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open("/dev/net/tun");
        let card = card.map_err(failed("opening /dev/net/tun"))?;
        let mut made = device();
        made.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI) as _;
        control(card.as_raw_fd(), libc::TUNSETIFF as _, &mut made).map_err(failed("making a TAP device"))?;

        let any = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).map_err(failed("opening a socket there"))?;
        let set = |action, code: libc::c_ulong, fill: &dyn Fn(&mut libc::ifreq)| {
            let mut request = device();
            fill(&mut request);
            control(any.as_raw_fd(), code, &mut request).map_err(failed(action))
        };
        set("setting its MTU", libc::SIOCSIFMTU as _, &|it| it.ifr_ifru.ifru_mtu = mtu as _)?;
        set("setting its address", libc::SIOCSIFADDR as _, &|it| it.ifr_ifru.ifru_addr = internet(far))?;
        let mask = internet(Ipv4Addr::new(255, 255, 255, 0));
        set("setting its network", libc::SIOCSIFNETMASK as _, &|it| it.ifr_ifru.ifru_netmask = mask)?;
        set("bringing it up", libc::SIOCSIFFLAGS as _, &|it| it.ifr_ifru.ifru_flags = libc::IFF_UP as _)?;
        // A permanent neighbor entry prevents ARP requests in the middle of a measurement.
        // SAFETY: an arpreq is made of integers.
        let mut neighbor: libc::arpreq = unsafe { std::mem::zeroed() };
        (neighbor.arp_pa, neighbor.arp_ha, neighbor.arp_flags) = (internet(near), hardware(near_hardware), NEIGHBOR);
        // SAFETY: the code reads one arpreq, which is live and exclusively borrowed.
        if unsafe { libc::ioctl(any.as_raw_fd(), libc::SIOCSARP as _, &mut neighbor as *mut libc::arpreq) } != 0 {
            return Err(failed("naming its neighbor")(io::Error::last_os_error()));
        }
        let socket = UdpSocket::bind(SocketAddrV4::new(far, port)).map_err(failed("opening a socket there"))?;
        socket.set_read_timeout(Some(PATIENCE)).map_err(failed("opening a socket there"))?;
        Ok(Tap { card, socket })
    }

    /// Duplicates the descriptors of the device and of the socket.
    pub fn try_clone(&self) -> io::Result<Tap> {
        Ok(Tap { card: self.card.try_clone()?, socket: self.socket.try_clone()? })
    }
}
