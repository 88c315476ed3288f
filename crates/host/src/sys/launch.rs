//! Starting a program with settings of its own, and living beside it: signals, its end.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::Duration;

use isochrome_model::units::Ns;
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
use rustix::thread::{CpuSet, sched_setaffinity};

use super::clock::process_cpu;
use super::scheduling::Scheduling;

/// How a program is started.
#[derive(Clone, Debug, Default)]
pub struct Launch {
    /// Where it may run; everywhere if `None`.
    pub cpus: Option<Vec<u32>>,
    /// How it is scheduled; as its parent if `None`.
    pub scheduling: Option<Scheduling>,
    /// Variables of its environment besides those of its parent.
    pub environment: Vec<(String, String)>,
    /// Files by which it joins groups before it begins: it writes `0`, which stands for itself, into each.
    pub joins: Vec<Arc<File>>,
    /// Whether it is ended when the thread that starts it ends, however that ends, and gets no signals from the terminal.
    pub attached: bool,
}

/// Signals that end or inform a program: those that a wrapper passes on.
const PASSED_ON: [i32; 9] = [
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGTERM,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGALRM,
    libc::SIGWINCH,
    libc::SIGCONT,
];

/// A signal that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Its number.
    pub signal: i32,
    /// Whether a process sent it. One from a terminal reaches all programs of the foreground by itself.
    pub sent: bool,
}

/// The signals that this program passes on, and SIGCHLD, kept from acting on the calling thread.
pub struct Signals {
    kept: libc::sigset_t,
    before: libc::sigset_t,
}

impl Signals {
    /// Keeps them until the program ends. To be called while the program has one thread.
    pub fn keep() -> io::Result<Signals> {
        // SAFETY: a sigset_t is made of integers; sigemptyset makes both defined.
        let (mut kept, mut before): (libc::sigset_t, libc::sigset_t) = unsafe { std::mem::zeroed() };
        // SAFETY: all three take the addresses of live, exclusively borrowed sets, and numbers of existing signals.
        let result = unsafe {
            libc::sigemptyset(&mut kept);
            for signal in PASSED_ON.into_iter().chain([libc::SIGCHLD]) {
                libc::sigaddset(&mut kept, signal);
            }
            libc::pthread_sigmask(libc::SIG_BLOCK, &kept, &mut before)
        };
        if result == 0 { Ok(Signals { kept, before }) } else { Err(io::Error::from_raw_os_error(result)) }
    }

    /// The next signal to arrive within `limit`.
    pub fn next(&self, limit: Duration) -> Option<Arrival> {
        let limit = libc::timespec { tv_sec: limit.as_secs() as _, tv_nsec: limit.subsec_nanos() as _ };
        // SAFETY: all zeros are a valid siginfo_t, which is made of integers.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        // SAFETY: the set and the time are read, and one siginfo_t is written to a live, exclusively borrowed one.
        let signal = unsafe { libc::sigtimedwait(&self.kept, &mut info, &limit) };
        // Numbers above 0 come from the kernel, those up to 0 from processes. [sigaction(2), si_code]
        (signal > 0).then_some(Arrival { signal, sent: info.si_code <= 0 })
    }

    /// Starts `command` as `launch` says, with the signals blocked that were before [`keep`](Self::keep).
    pub fn start(&self, command: &mut Command, launch: &Launch) -> io::Result<Child> {
        let before = self.before;
        launch.prepare(command);
        // SAFETY: between fork and exec the closure makes one system call: it allocates nothing and takes no lock.
        unsafe {
            command.pre_exec(move || match libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut()) {
                0 => Ok(()),
                error => Err(io::Error::from_raw_os_error(error)),
            });
        }
        command.spawn()
    }
}

impl Launch {
    /// Has `command` start so. Its pages are kept from being joined to huge ones, which have no color.
    pub fn prepare(&self, command: &mut Command) {
        let mut cpus = None;
        if let Some(list) = &self.cpus {
            let mut set = CpuSet::new();
            list.iter().filter(|cpu| (**cpu as usize) < CpuSet::MAX_CPU).for_each(|cpu| set.set(*cpu as usize));
            cpus = Some(set);
        }
        let (scheduling, attached, joins) = (self.scheduling, self.attached, self.joins.clone());
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        if attached {
            command.process_group(0);
        }
        // SAFETY: between fork and exec the closure makes system calls only: it allocates nothing and takes no lock.
        unsafe {
            command.pre_exec(move || {
                if attached {
                    libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0);
                }
                libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0);
                for file in &joins {
                    if libc::write(file.as_raw_fd(), c"0".as_ptr().cast(), 1) != 1 {
                        return Err(io::Error::last_os_error());
                    }
                }
                if let Some(set) = &cpus {
                    sched_setaffinity(None, set)?;
                }
                if let Some(scheduling) = &scheduling {
                    scheduling.apply()?;
                }
                Ok(())
            });
        }
    }
}

/// Sends `signal` to process `pid`.
pub fn send(pid: i32, signal: i32) -> io::Result<()> {
    // SAFETY: kill takes numbers and touches no memory of this process.
    if unsafe { libc::kill(pid, signal) } == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Makes this process the parent of descendants whose own parent ends.
pub fn adopt_orphans() -> io::Result<()> {
    // SAFETY: this request takes a number and touches no memory.
    match unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// By itself, with this code.
    Code(i32),
    /// By this signal.
    Signal(i32),
}

impl std::fmt::Display for End {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            End::Code(code) => write!(f, "exit code {code}"),
            End::Signal(signal) => write!(f, "signal {signal}"),
        }
    }
}

impl End {
    fn of(status: i32) -> End {
        if libc::WIFSIGNALED(status) {
            End::Signal(libc::WTERMSIG(status))
        } else {
            End::Code(libc::WEXITSTATUS(status))
        }
    }
}

/// The end of child `pid`, and for how long it had a CPU itself, without its children; `None` while it has not ended.
pub fn ended(pid: i32) -> io::Result<Option<(End, Ns)>> {
    let child = Pid::from_raw(pid).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
    let seen = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    if waitid(WaitId::Pid(child), seen)?.is_none() {
        return Ok(None);
    }
    // Until its end is taken its clock is there.
    let cpu = process_cpu(pid)?;
    let mut status = 0;
    // SAFETY: waitpid writes one integer to the address of a live, exclusively borrowed one.
    match unsafe { libc::waitpid(pid, &mut status, 0) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(Some((End::of(status), cpu))),
    }
}

/// Takes the end of every child that has ended; that of `pid`, if it is among them.
pub fn ends(pid: i32) -> Option<End> {
    let mut end = None;
    loop {
        let mut status = 0;
        // SAFETY: waitpid writes one integer to the address of a live one.
        let ended = unsafe { libc::waitpid(-1, &mut status, libc::WNOHANG) };
        if ended <= 0 {
            return end;
        }
        if ended == pid {
            end = Some(End::of(status));
        }
    }
}

/// Ends this process as another one ended: by `signal`, without a memory dump of its own. Returns where that does not end it.
pub fn end_by(signal: i32) {
    let no_dump = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the limit is read from a live structure; the other calls take numbers and the address of a live set. The handler is the
    // kernel's default one.
    unsafe {
        libc::setrlimit(libc::RLIMIT_CORE, &no_dump);
        libc::signal(signal, libc::SIG_DFL);
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, signal);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &set, std::ptr::null_mut());
        libc::raise(signal);
    }
}
