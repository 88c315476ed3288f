//! A relay for the messages of sd_notify(3). `exec` stays the main process of the service, the program sends its messages to a socket of the
//! relay, and the relay passes them on to the service manager.
//!
//! Changes that the relay makes:
//!
//! - `READY=1` is held back until [`Relay::release`], because the service is ready only when it is on its colors. A `BARRIER=1` behind a held
//!   `READY=1` is held too, because a barrier asks whether all earlier messages have arrived. `STOPPING=1` releases the held messages, because a
//!   program that stops is not moved any more. All other messages are passed on at once, with their descriptors.
//! - `MAINPID=` and its variants are dropped. By default (`NotifyAccess=main`) a service manager listens to the main process only. If another
//!   process became the main process, the manager would drop the relay's messages.
//! - Messages of processes that do not descend from this one are dropped. So are messages of processes that ended before their message was read,
//!   because their descent cannot be checked any more. Service managers do the same, which is why systemd-notify(1) waits for a barrier.
//!   [sd_notify(3), notes]

use std::collections::VecDeque;
use std::env;
use std::ffi::OsStr;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use isochrome_host::process::Pid;
use isochrome_host::sys::launch::Launch;
use rustix::cmsg_space;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::net::sockopt::set_socket_passcred;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, recvmsg, sendmsg_addr, socket_with,
};

/// Environment variable that names the socket for messages about a program's state.
const SOCKET: &str = "NOTIFY_SOCKET";
/// Environment variables in which a service manager puts the process ID of the process that it addresses. [sd_watchdog_enabled(3),
/// sd_listen_fds(3)]
const ADDRESSEES: [&str; 2] = ["WATCHDOG_PID", "LISTEN_PID"];
/// Largest size of a message that is passed on, in bytes. Service managers accept 4096 bytes.
const MESSAGE_BYTES: usize = 1 << 16;
/// Most descriptors that one message can carry. [Linux, include/net/scm.h, SCM_MAX_FD]
const DESCRIPTORS: usize = 253;
/// Longest wait for the last messages, once the program has ended.
const LAST_MESSAGES: Duration = Duration::from_secs(1);

/// Passes `message` about this process on to the service manager, if there is one. [sd_notify(3)]
pub fn say(message: &str) {
    let Some(name) = env::var_os(SOCKET) else { return };
    let address = match name.as_bytes() {
        [b'@', rest @ ..] => SocketAddr::from_abstract_name(rest),
        _ => SocketAddr::from_pathname(&name),
    };
    // A manager that does not listen misses nothing that this process could put right.
    let _ = address.and_then(|address| UnixDatagram::unbound()?.send_to_addr(message.as_bytes(), &address));
}

/// A socket for the messages of a program, and the thread that passes them on.
pub struct Relay {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// State that is shared by the relay and its thread.
struct Shared {
    is_ready: AtomicBool,
    released: AtomicBool,
    finished: AtomicBool,
    dropped: AtomicU32,
    /// Event that wakes the thread after `released` or `finished` was set.
    wake: OwnedFd,
}

impl Relay {
    /// Creates a relay and makes the program of `command` send its messages there. The relay passes messages on to the socket that this
    /// process's own `NOTIFY_SOCKET` names, if it is set. Variables by which a service manager addresses this process get the program's own
    /// process ID through `launch`.
    ///
    /// The thread gets the signal mask of the caller. Fails if `NOTIFY_SOCKET` names a socket that is not a Unix socket.
    pub fn new(command: &mut Command, launch: &mut Launch) -> Result<Relay> {
        let outside = env::var_os(SOCKET).filter(|name| !name.is_empty());
        let manager = outside.as_deref().map(Manager::at).transpose()?;
        let own = std::process::id().to_string();
        let ours = ADDRESSEES.into_iter().filter(|name| env::var_os(name).is_some_and(|pid| pid == own.as_str()));
        launch.own_pid.extend(ours.map(str::to_owned));
        Relay::between(command, manager)
    }

    fn between(command: &mut Command, manager: Option<Manager>) -> Result<Relay> {
        // Programs that have changed their root directory can reach an abstract name too. The credentials of a sender decide whether its
        // messages are accepted.
        let name = format!("isochrome-notify-{}-{:016x}", std::process::id(), fastrand::u64(..));
        let address = SocketAddr::from_abstract_name(&name)?;
        let socket = UnixDatagram::bind_addr(&address).context("a socket for sd_notify")?;
        set_socket_passcred(&socket, true).context("credentials of senders")?;
        command.env(SOCKET, format!("@{name}"));
        let shared = Arc::new(Shared {
            is_ready: AtomicBool::new(false),
            released: AtomicBool::new(false),
            finished: AtomicBool::new(false),
            dropped: AtomicU32::new(0),
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        });
        let worker = Worker { socket, manager, shared: Arc::clone(&shared), held: VecDeque::new() };
        let thread = thread::Builder::new().name("notify".to_owned()).spawn(move || worker.run())?;
        Ok(Relay { shared, thread: Some(thread) })
    }

    /// Whether the program has sent `READY=1`.
    pub fn is_ready(&self) -> bool {
        self.shared.is_ready.load(Ordering::Acquire)
    }

    /// Returns the number of messages that were dropped, because of who sent them or because they were too long.
    #[cfg(test)]
    pub fn dropped(&self) -> u32 {
        self.shared.dropped.load(Ordering::Relaxed)
    }

    /// Passes on the held `READY=1`. From now on, later ones are passed on at once.
    pub fn release(&self) {
        self.shared.tell(&self.shared.released);
    }

    /// Passes on all messages of a program that has ended, for at most a second.
    pub fn finish(mut self) {
        self.shared.tell(&self.shared.finished);
        let Some(thread) = self.thread.take() else { return };
        let limit = Instant::now() + LAST_MESSAGES;
        while !thread.is_finished() && Instant::now() < limit {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        // The thread ends by itself when it has passed everything on.
        self.shared.tell(&self.shared.finished);
    }
}

impl Shared {
    fn tell(&self, flag: &AtomicBool) {
        flag.store(true, Ordering::Release);
        // The write fails only if the event's counter is full, and then the thread wakes up too.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }
}

/// A message: lines of text, and descriptors that are sent with them.
#[derive(Debug)]
struct Message {
    text: Vec<u8>,
    descriptors: Vec<OwnedFd>,
}

/// The socket of the service manager.
#[derive(Debug)]
struct Manager {
    address: SocketAddrUnix,
    socket: OwnedFd,
}

impl Manager {
    fn at(name: &OsStr) -> Result<Manager> {
        let address = match name.as_bytes() {
            [b'@', name @ ..] => SocketAddrUnix::new_abstract_name(name),
            path @ [b'/', ..] => SocketAddrUnix::new(path),
            _ => bail!(
                "NOTIFY_SOCKET={} is not a socket that messages can be passed on to\n  hint: a path, or a name with `@` before it",
                name.display()
            ),
        };
        Manager::to(address.with_context(|| format!("NOTIFY_SOCKET={}", name.display()))?)
    }

    fn to(address: SocketAddrUnix) -> Result<Manager> {
        let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
        Ok(Manager { address, socket })
    }

    /// Sends `message`. If that fails, an error is printed and the program runs on. If the manager's queue is full, only the relay's thread
    /// waits.
    fn pass_on(&self, message: &Message) {
        let descriptors: Vec<_> = message.descriptors.iter().map(OwnedFd::as_fd).collect();
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(DESCRIPTORS))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
        }
        let sent = rustix::io::retry_on_intr(|| {
            let text = [IoSlice::new(&message.text)];
            sendmsg_addr(&self.socket, &self.address, &text, &mut ancillary, SendFlags::NOSIGNAL)
        });
        if let Err(error) = sent {
            eprintln!("isochrome: a message of the program did not reach the service manager: {error}");
        }
    }
}

/// State of the relay's thread.
struct Worker {
    socket: UnixDatagram,
    manager: Option<Manager>,
    shared: Arc<Shared>,
    /// A held `READY=1` and the messages that wait behind it.
    held: VecDeque<Message>,
}

impl Worker {
    fn run(mut self) {
        loop {
            // The flag is read before the messages, so every message that was sent before the flag was set is passed on.
            let finished = self.shared.finished.load(Ordering::Acquire);
            if finished || self.shared.released.load(Ordering::Acquire) {
                self.let_go();
            }
            match self.receive() {
                Ok(Some(message)) => self.take(message),
                Ok(None) => {}
                Err(rustix::io::Errno::AGAIN) if finished => return,
                Err(rustix::io::Errno::AGAIN) => self.wait(),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => {
                    eprintln!("isochrome: messages of the program cannot be read: {error}");
                    return;
                }
            }
        }
    }

    fn wait(&self) {
        let mut polled = [PollFd::new(&self.socket, PollFlags::IN), PollFd::new(&self.shared.wake, PollFlags::IN)];
        // An interrupted wait only ends early.
        let _ = poll(&mut polled, None);
        let _ = rustix::io::read(&self.shared.wake, &mut [0u8; 8]);
    }

    /// Receives the next message; `None` if it is dropped.
    fn receive(&self) -> rustix::io::Result<Option<Message>> {
        let mut text = vec![0; MESSAGE_BYTES];
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(DESCRIPTORS), ScmCredentials(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let received = recvmsg(&self.socket, &mut [IoSliceMut::new(&mut text)], &mut ancillary, flags)?;
        let (mut sender, mut descriptors) = (None, Vec::new());
        for part in ancillary.drain() {
            match part {
                RecvAncillaryMessage::ScmRights(rights) => descriptors.extend(rights),
                RecvAncillaryMessage::ScmCredentials(credentials) => sender = Some(credentials.pid.as_raw_pid()),
                _ => {}
            }
        }
        let whole = !received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC);
        if !whole || !sender.is_some_and(descends_from_this) {
            self.shared.dropped.fetch_add(1, Ordering::Relaxed);
            return Ok(None);
        }
        text.truncate(received.bytes);
        Ok(Some(Message { text, descriptors }))
    }

    /// Passes on `message`, except for the parts that are held or dropped.
    fn take(&mut self, message: Message) {
        let Message { text, descriptors } = message;
        let Lines { mut passed, ready, stopping } = Lines::of(&text);
        if ready {
            self.shared.is_ready.store(true, Ordering::Release);
        }
        let released = self.shared.released.load(Ordering::Acquire);
        if released || stopping {
            self.let_go();
        }
        if ready && released {
            passed.push(READY);
        }
        let passed = Message { text: passed.join(&b'\n'), descriptors };
        if passed.text == BARRIER && !self.held.is_empty() {
            self.held.push_back(passed);
        } else if !passed.text.is_empty() {
            self.pass_on(&passed);
        }
        if ready && !released {
            self.held.push_back(Message { text: READY.to_vec(), descriptors: Vec::new() });
        }
    }

    fn let_go(&mut self) {
        while let Some(message) = self.held.pop_front() {
            self.pass_on(&message);
        }
    }

    /// Passes `message` on to the manager. Without a manager the message's descriptors are closed on return, which is all that a barrier waits
    /// for.
    fn pass_on(&self, message: &Message) {
        if let Some(manager) = &self.manager {
            manager.pass_on(message);
        }
    }
}

/// Line that reports that the program has started, or has read its settings again.
const READY: &[u8] = b"READY=1";
/// Line that requests that the message's descriptor be closed once all earlier messages have arrived.
const BARRIER: &[u8] = b"BARRIER=1";

/// Contents of a message, by lines.
#[derive(Debug, PartialEq, Eq)]
struct Lines<'a> {
    /// Lines that are passed on as they are.
    passed: Vec<&'a [u8]>,
    /// Whether one of the lines is `READY=1`.
    ready: bool,
    /// Whether one of the lines is `STOPPING=1`.
    stopping: bool,
}

impl Lines<'_> {
    fn of(text: &[u8]) -> Lines<'_> {
        let mut lines = Lines { passed: Vec::new(), ready: false, stopping: false };
        for line in text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            // These are `MAINPID=`, `MAINPIDFD=` and `MAINPIDFDID=`.
            let names_main = line.starts_with(b"MAINPID");
            lines.ready |= line == READY;
            lines.stopping |= line == b"STOPPING=1";
            if line != READY && !names_main {
                lines.passed.push(line);
            }
        }
        lines
    }
}

/// Whether process `pid` is a descendant of this one.
fn descends_from_this(pid: i32) -> bool {
    let own = std::process::id() as i32;
    // The chain ends at process 1, which has no visible parent.
    std::iter::successors(Pid(pid).parent(), |parent| parent.parent()).any(|parent| parent.0 == own)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::linux::net::SocketAddrExt;
    use std::process::{Child, Stdio};

    use rustix::net::{SendAncillaryBuffer, sendmsg};

    /// A service manager that receives messages.
    struct Outside {
        socket: UnixDatagram,
        _folder: tempfile::TempDir,
    }

    impl Outside {
        fn new() -> (Outside, Manager) {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("notify");
            let socket = UnixDatagram::bind(&path).unwrap();
            socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
            let manager = Manager::at(path.as_os_str()).unwrap();
            (Outside { socket, _folder: folder }, manager)
        }

        fn next(&self) -> (String, Vec<OwnedFd>) {
            let mut text = [0; 4096];
            let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(DESCRIPTORS))];
            let mut ancillary = RecvAncillaryBuffer::new(&mut space);
            let received =
                recvmsg(&self.socket, &mut [IoSliceMut::new(&mut text)], &mut ancillary, RecvFlags::CMSG_CLOEXEC);
            let bytes = received.expect("a message in ten seconds").bytes;
            let descriptors = ancillary.drain().flat_map(|part| match part {
                RecvAncillaryMessage::ScmRights(rights) => rights.collect(),
                _ => Vec::new(),
            });
            (String::from_utf8(text[..bytes].to_vec()).unwrap(), descriptors.collect())
        }

        fn text(&self) -> String {
            self.next().0
        }

        fn is_silent(&self) -> bool {
            self.socket.set_nonblocking(true).unwrap();
            let waits = self.socket.recv(&mut [0; 4096]).is_ok();
            self.socket.set_nonblocking(false).unwrap();
            !waits
        }
    }

    /// A program that sends each of its arguments as a message of sd_notify, except for three words: `barrier` sends a barrier and waits until
    /// the other end of its pipe is closed, `fd` sends a file that contains "kept", and `pause` waits for a line of input.
    const PROGRAM: &str = r#"
import array, os, socket, sys, tempfile
name = os.environ["NOTIFY_SOCKET"]
name = "\0" + name[1:] if name[0] == "@" else name
s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
def send(text, *fds):
    s.sendmsg([text.encode()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else [], 0, name)
for word in sys.argv[1:]:
    if word == "barrier":
        r, w = os.pipe()
        send("BARRIER=1", w)
        os.close(w)
        print("asked", flush=True)
        os.read(r, 1)
        print("passed", flush=True)
    elif word == "fd":
        f = tempfile.TemporaryFile()
        f.write(b"kept")
        f.flush()
        send("FDSTORE=1\nFDNAME=one", f.fileno())
    elif word == "pause":
        print("pause", flush=True)
        sys.stdin.readline()
    else:
        send(word.replace("OWN", str(os.getpid())))
"#;

    /// Starts a relay, and a program that sends `words`.
    fn program(manager: Option<Manager>, words: &[&str]) -> (Relay, Child) {
        let mut command = Command::new("python3");
        command.args(["-c", PROGRAM]).args(words).stdin(Stdio::piped()).stdout(Stdio::piped());
        let relay = Relay::between(&mut command, manager).unwrap();
        let child = command.spawn().expect("python3 is installed");
        (relay, child)
    }

    fn line(child: &mut Child) -> String {
        let output = child.stdout.as_mut().unwrap();
        let mut line = String::new();
        let mut byte = [0];
        while output.read(&mut byte).unwrap() == 1 && byte[0] != b'\n' {
            line.push(byte[0] as char);
        }
        line
    }

    fn go_on(child: &mut Child) {
        child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    }

    #[test]
    fn ready_waits_for_the_release_and_nothing_else_does() {
        let (outside, manager) = Outside::new();
        let words = ["STATUS=starts", "READY=1\nSTATUS=runs", "WATCHDOG=1", "pause", "RELOADING=1", "READY=1", "pause"];
        let (relay, mut child) = program(Some(manager), &words);
        assert_eq!([outside.text(), outside.text(), outside.text()], ["STATUS=starts", "STATUS=runs", "WATCHDOG=1"]);
        assert_eq!(line(&mut child), "pause");
        assert!(relay.is_ready() && outside.is_silent());
        relay.release();
        assert_eq!(outside.text(), "READY=1");
        // After the release, `READY=1` is passed on at once.
        go_on(&mut child);
        assert_eq!([outside.text(), outside.text()], ["RELOADING=1", "READY=1"]);
        go_on(&mut child);
        child.wait().unwrap();
        assert_eq!(relay.dropped(), 0);
        relay.finish();
        assert!(outside.is_silent());
    }

    #[test]
    fn a_barrier_is_passed_once_what_came_before_has_arrived() {
        let (outside, manager) = Outside::new();
        let words = ["STATUS=1", "barrier", "READY=1", "barrier", "pause"];
        let (relay, mut child) = program(Some(manager), &words);
        assert_eq!(line(&mut child), "asked");
        assert_eq!(outside.text(), "STATUS=1");
        let (text, pipe) = outside.next();
        assert_eq!((text.as_str(), pipe.len()), ("BARRIER=1", 1));
        // The manager closes its descriptor, and no other process has one.
        drop(pipe);
        assert_eq!([line(&mut child), line(&mut child)], ["passed", "asked"]);
        assert!(outside.is_silent());
        relay.release();
        assert_eq!(outside.text(), "READY=1");
        drop(outside.next());
        assert_eq!([line(&mut child), line(&mut child)], ["passed", "pause"]);
        go_on(&mut child);
        child.wait().unwrap();
    }

    #[test]
    fn a_file_to_be_stored_arrives_as_it_was_sent() {
        let (outside, manager) = Outside::new();
        let (_relay, mut child) = program(Some(manager), &["fd", "pause"]);
        let (text, mut files) = outside.next();
        assert_eq!(text, "FDSTORE=1\nFDNAME=one");
        let mut bytes = [0; 5];
        assert_eq!(rustix::io::pread(files.pop().unwrap(), &mut bytes, 0), Ok(4));
        assert_eq!(&bytes[..4], b"kept");
        go_on(&mut child);
        child.wait().unwrap();
    }

    #[test]
    fn isochrome_stays_the_main_process() {
        let (outside, manager) = Outside::new();
        let words = ["MAINPID=OWN\nSTATUS=on", "MAINPID=OWN", "STATUS=off", "pause"];
        let (relay, mut child) = program(Some(manager), &words);
        assert_eq!([outside.text(), outside.text()], ["STATUS=on", "STATUS=off"]);
        go_on(&mut child);
        child.wait().unwrap();
        relay.finish();
    }

    #[test]
    fn what_others_say_is_dropped_and_what_descendants_say_is_not() {
        let (outside, manager) = Outside::new();
        let mut command = Command::new("sh");
        // The message comes from a program that another program started. The barrier keeps it alive until its message was read, as with
        // systemd-notify.
        command.args(["-c", r#"python3 -c "$0" STATUS=child barrier; read line"#, PROGRAM]).stdin(Stdio::piped());
        command.stdout(Stdio::null());
        let relay = Relay::between(&mut command, Some(manager)).unwrap();
        let name = command.get_envs().find(|(name, _)| *name == SOCKET).unwrap().1.unwrap().to_owned();
        let mut child = command.spawn().unwrap();
        assert_eq!(outside.text(), "STATUS=child");
        drop(outside.next());
        // This process does not descend from itself, so its message is dropped.
        let socket = UnixDatagram::unbound().unwrap();
        let address = SocketAddr::from_abstract_name(&name.as_bytes()[1..]).unwrap();
        socket.connect_addr(&address).unwrap();
        sendmsg(&socket, &[IoSlice::new(READY)], &mut SendAncillaryBuffer::default(), SendFlags::empty()).unwrap();
        go_on(&mut child);
        child.wait().unwrap();
        let limit = Instant::now() + Duration::from_secs(10);
        while relay.dropped() == 0 && Instant::now() < limit {
            thread::sleep(Duration::from_millis(1));
        }
        assert_eq!((relay.dropped(), relay.is_ready()), (1, false));
        relay.release();
        relay.finish();
        assert!(outside.is_silent());
    }

    #[test]
    fn without_a_manager_it_is_still_known_who_is_ready_and_barriers_are_passed() {
        let (relay, mut child) = program(None, &["barrier", "READY=1", "barrier", "pause"]);
        assert_eq!([line(&mut child), line(&mut child), line(&mut child)], ["asked", "passed", "asked"]);
        // `READY=1` was sent before the second barrier, but the relay may not have read it yet.
        let limit = Instant::now() + Duration::from_secs(10);
        while !relay.is_ready() && Instant::now() < limit {
            thread::sleep(Duration::from_millis(1));
        }
        assert!(relay.is_ready());
        relay.release();
        assert_eq!([line(&mut child), line(&mut child)], ["passed", "pause"]);
        go_on(&mut child);
        child.wait().unwrap();
    }

    #[test]
    fn what_a_program_says_last_is_passed_on() {
        for last in ["READY=1", "STOPPING=1"] {
            let (outside, manager) = Outside::new();
            let (relay, mut child) = program(Some(manager), &["READY=1", last, "pause"]);
            assert_eq!(line(&mut child), "pause");
            relay.finish();
            assert_eq!([outside.text(), outside.text()], ["READY=1", last]);
            go_on(&mut child);
            child.wait().unwrap();
        }
    }

    #[test]
    fn a_manager_that_does_not_listen_is_no_reason_to_stop() {
        let (outside, manager) = Outside::new();
        drop(outside);
        let (relay, mut child) = program(Some(manager), &["STATUS=1", "READY=1", "barrier"]);
        assert_eq!(line(&mut child), "asked");
        relay.release();
        assert_eq!(line(&mut child), "passed");
        assert!(child.wait().unwrap().success());
        for name in ["vsock:2:1234", "relative"] {
            assert!(Manager::at(OsStr::new(name)).unwrap_err().to_string().contains("hint:"));
        }
    }

    #[test]
    fn lines_are_distinguished_whatever_is_in_them() {
        let lines = Lines::of;
        let of = |passed: &[&'static [u8]], ready, stopping| Lines { passed: passed.to_vec(), ready, stopping };
        assert_eq!(lines(b"READY=1"), of(&[], true, false));
        assert_eq!(lines(b"READY=1\n"), of(&[], true, false));
        assert_eq!(lines(b"STATUS=READY=1\nREADY=10\n"), of(&[b"STATUS=READY=1", b"READY=10"], false, false));
        assert_eq!(lines(b"MAINPIDFD=1\nSTOPPING=1"), of(&[b"STOPPING=1"], false, true));
        assert_eq!(lines(b"\xff\0\n\n"), of(&[b"\xff\0"], false, false));
    }
}
