//! Starts programs with settings of their own, receives the signals to pass on to them, and reports how they ended.

use std::collections::BTreeMap;
use std::ffi::{CString, OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::Duration;

use isochrome_model::units::Ns;
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
use rustix::thread::{CpuSet, sched_setaffinity};

use super::clock::process_cpu;
use super::scheduling::Scheduling;

/// Settings with which a program is started.
#[derive(Clone, Debug, Default)]
pub struct Launch {
    /// CPUs that the program may run on; all if `None`.
    pub cpus: Option<Vec<u32>>,
    /// Scheduling of the program; that of its parent if `None`.
    pub scheduling: Option<Scheduling>,
    /// Environment variables that are added to those of its parent.
    pub environment: Vec<(String, String)>,
    /// Files by which the program joins groups before it begins: it writes `0`, which stands for itself, into each.
    pub joins: Vec<Arc<File>>,
    /// Whether the program is killed when the thread that started it ends, for whatever reason, and gets no signals from the terminal.
    pub attached: bool,
    /// Whether pages of the program may be joined to huge pages, as they would be without isochrome.
    pub huge_pages: bool,
    /// Names of environment variables that hold the program's own process number. [`Signals::start`] sets them. This must be empty for a
    /// `command` with a first argument or a `PATH` of its own.
    pub own_pid: Vec<String>,
}

/// Signals that end or inform a program, which a wrapper passes on.
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
    /// Number of the signal.
    pub signal: i32,
    /// Whether a process sent it. A signal from a terminal reaches all programs of the foreground by itself.
    pub sent: bool,
}

/// The signals that this program passes on, and SIGCHLD. They are blocked, so they do not act on the calling thread.
pub struct Signals {
    kept: libc::sigset_t,
    before: libc::sigset_t,
}

impl Signals {
    /// Blocks these signals until the program ends. Call this while the program has one thread.
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

    /// Waits for the next signal; `None` if none arrives within `limit`.
    pub fn next(&self, limit: Duration) -> Option<Arrival> {
        let limit = libc::timespec { tv_sec: limit.as_secs() as _, tv_nsec: limit.subsec_nanos() as _ };
        // SAFETY: all zeros are a valid siginfo_t, which is made of integers.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        // SAFETY: the set and the time are read, and one siginfo_t is written to a live, exclusively borrowed one.
        let signal = unsafe { libc::sigtimedwait(&self.kept, &mut info, &limit) };
        // Numbers above 0 come from the kernel, those up to 0 from processes. [sigaction(2), si_code]
        (signal > 0).then_some(Arrival { signal, sent: info.si_code <= 0 })
    }

    /// Starts `command` with the settings in `launch`, and with the signals blocked that were blocked before [`keep`](Self::keep).
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
        if !launch.own_pid.is_empty() {
            // This closure must be the last one, because it returns only if it fails.
            let mut image = Image::of(command, &launch.own_pid)?;
            // SAFETY: between fork and exec the closure writes into existing memory and makes system calls: it allocates nothing and takes no
            // lock.
            unsafe { command.pre_exec(move || Err(image.become_it())) };
        }
        command.spawn()
    }
}

impl Launch {
    /// Prepares `command` to start with these settings. If the settings do not allow huge pages, which have no color, the program's pages are kept
    /// from being joined to huge pages.
    pub fn prepare(&self, command: &mut Command) {
        let mut cpus = None;
        if let Some(list) = &self.cpus {
            let mut set = CpuSet::new();
            list.iter().filter(|cpu| (**cpu as usize) < CpuSet::MAX_CPU).for_each(|cpu| set.set(*cpu as usize));
            cpus = Some(set);
        }
        let (scheduling, attached, huge_pages, joins) =
            (self.scheduling, self.attached, self.huge_pages, self.joins.clone());
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
                if !huge_pages {
                    libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0);
                }
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

/// A program to execute, with variables that must hold the number of its process. The number is known only between fork and exec, when the
/// environment can no longer be built.
struct Image {
    program: CString,
    arguments: Vec<CString>,
    /// Variables as `NAME=` with room for a number behind it.
    own: Vec<Vec<u8>>,
    environment: Vec<CString>,
    /// Null-terminated lists of pointers to the strings above, for the kernel.
    pointers: [Vec<*const libc::c_char>; 2],
}

// SAFETY: the pointers are to memory that the image owns and that stays where it is when the image moves.
unsafe impl Send for Image {}
// SAFETY: as above; a shared reference to an image gives no access to the pointers.
unsafe impl Sync for Image {}

impl Image {
    fn of(command: &Command, own: &[String]) -> io::Result<Image> {
        let text = |text: &OsStr| CString::new(text.as_bytes());
        let mut variables: BTreeMap<OsString, OsString> = std::env::vars_os().collect();
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => variables.insert(name.to_owned(), value.to_owned()),
                None => variables.remove(name),
            };
        }
        own.iter().for_each(|name| drop(variables.remove(OsStr::new(name))));
        let joined =
            variables.into_iter().map(|(name, value)| CString::new([name.as_bytes(), b"=", value.as_bytes()].concat()));
        let environment = joined.collect::<Result<Vec<_>, _>>()?;
        let own: Vec<Vec<u8>> = own.iter().map(|name| format!("{name}={:PID_DIGITS$}\0", "").into_bytes()).collect();
        let program = text(command.get_program())?;
        let rest = command.get_args().map(text).collect::<Result<Vec<_>, _>>()?;
        let arguments: Vec<CString> = std::iter::once(program.clone()).chain(rest).collect();
        let end = [std::ptr::null()];
        let argument_pointers = arguments.iter().map(|text| text.as_ptr()).chain(end).collect();
        let variable_pointers = environment.iter().map(|text| text.as_ptr());
        let variable_pointers =
            variable_pointers.chain(own.iter().map(|text| text.as_ptr().cast())).chain(end).collect();
        Ok(Image { program, arguments, own, environment, pointers: [argument_pointers, variable_pointers] })
    }

    /// Makes this process become the program. Returns only if that fails, with the reason. Allocates nothing.
    fn become_it(&mut self) -> io::Error {
        debug_assert_eq!(self.pointers[0].len(), self.arguments.len() + 1);
        debug_assert_eq!(self.pointers[1].len(), self.environment.len() + self.own.len() + 1);
        let mut digits = [0; PID_DIGITS];
        let mut pid = std::process::id();
        let mut first = PID_DIGITS;
        while first == PID_DIGITS || pid > 0 {
            first -= 1;
            digits[first] = b'0' + (pid % 10) as u8;
            pid /= 10;
        }
        for variable in &mut self.own {
            let at = variable.len() - 1 - PID_DIGITS;
            variable[at..at + PID_DIGITS - first].copy_from_slice(&digits[first..]);
            variable[at + PID_DIGITS - first] = 0;
        }
        let [arguments, environment] = &self.pointers;
        // SAFETY: the strings end with a zero byte, the lists of pointers to them with a null pointer; all are owned by this image.
        unsafe { libc::execvpe(self.program.as_ptr(), arguments.as_ptr(), environment.as_ptr()) };
        io::Error::last_os_error()
    }
}

/// Number of digits of the largest process number, an i32.
const PID_DIGITS: usize = 10;

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
    /// The process ended by itself, with this exit code.
    Code(i32),
    /// The process was ended by this signal.
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

/// Returns how child `pid` ended and its own CPU time, without that of its children; `None` if it has not ended.
///
/// If the child has ended, kills all that is left in its process group, if it had one of its own. After that, `pid` may become the number of
/// another process.
pub fn ended(pid: i32) -> io::Result<Option<(End, Ns)>> {
    let child = Pid::from_raw(pid).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
    let seen = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    if waitid(WaitId::Pid(child), seen)?.is_none() {
        return Ok(None);
    }
    // Until the child is reaped, its number is not reused and its clock exists. If it had no process group of its own, nothing is killed.
    let _ = send(-pid, libc::SIGKILL);
    let cpu = process_cpu(pid)?;
    let mut status = 0;
    // SAFETY: waitpid writes one integer to the address of a live, exclusively borrowed one.
    match unsafe { libc::waitpid(pid, &mut status, 0) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(Some((End::of(status), cpu))),
    }
}

/// Reaps child `pid` if it has ended, and returns its end. Otherwise reaps the other children that have ended.
///
/// A child that this process traces may have reported a stop. Such a report is left for the tracer, and must not be taken for an end.
pub fn ends(pid: i32) -> Option<End> {
    let end = end_of(libc::P_PID, pid as libc::id_t).map(|(_, end)| end);
    // Other children are orphans that were adopted. If one of them has stopped, those after it wait for the next call.
    let mut others = std::iter::from_fn(|| end_of(libc::P_ALL, 0));
    end.or_else(|| others.find(|(child, _)| *child == pid).map(|(_, end)| end))
}

/// Reaps the first child that has something to report, if it has ended, and returns its number and how it ended.
fn end_of(kind: libc::idtype_t, id: libc::id_t) -> Option<(i32, End)> {
    // SAFETY: all zeros are a valid siginfo_t, which is made of integers.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    // SAFETY: waitid writes one siginfo_t to the address of a live, exclusively borrowed one.
    let waited = unsafe { libc::waitid(kind, id, &mut info, libc::WEXITED | libc::WNOHANG | libc::WNOWAIT) };
    // SAFETY: waitid filled in the fields of a child's report, or left all of them zero.
    let child = unsafe { info.si_pid() };
    if waited != 0 || child == 0 || !matches!(info.si_code, libc::CLD_EXITED | libc::CLD_KILLED | libc::CLD_DUMPED) {
        return None;
    }
    let mut status = 0;
    // SAFETY: waitpid writes one integer to the address of a live one.
    let ended = unsafe { libc::waitpid(child, &mut status, libc::WNOHANG) };
    (ended == child).then(|| (child, End::of(status)))
}

/// Ends this process as another one ended: by `signal`, without a core dump. Returns if `signal` does not end it.
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Stdio;

    fn start(command: &mut Command) -> io::Result<Child> {
        let own_pid = vec!["WATCHDOG_PID".to_owned(), "LISTEN_PID".to_owned()];
        Signals::keep()?.start(command, &Launch { own_pid, ..Launch::default() })
    }

    #[test]
    fn a_program_finds_its_own_number_in_its_environment_and_the_rest_as_it_was() {
        let mut command = Command::new("sh");
        command.args([
            "-c",
            r#"echo "$$ $WATCHDOG_PID $LISTEN_PID $ONE:$HOME:$PATH"; tr '\0' '\n' < /proc/$$/environ | grep -c _PID="#,
        ]);
        command.env("ONE", "a=b c").env_remove("HOME").env("WATCHDOG_PID", "1").stdout(Stdio::piped());
        let child = start(&mut command).unwrap();
        let pid = child.id();
        let printed = String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap();
        assert_eq!(printed, format!("{pid} {pid} {pid} a=b c::{}\n2\n", std::env::var("PATH").unwrap()));
    }

    #[test]
    fn what_cannot_be_started_is_reported_by_whoever_wanted_it() {
        let folder = tempfile::tempdir().unwrap();
        for (program, kind) in
            [("/absent/program".as_ref(), io::ErrorKind::NotFound), (folder.path(), io::ErrorKind::PermissionDenied)]
        {
            assert_eq!(start(&mut Command::new(program)).unwrap_err().kind(), kind);
        }
    }
}
