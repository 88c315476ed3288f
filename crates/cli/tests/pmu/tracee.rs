//! Runs a command whose system calls are answered by the test where these concern counters: a debugger that stops at every system call
//! (ptrace(2)) changes calls when they are made and results before the program sees them.
//!
//! Only the program and its threads are traced. Programs that it starts are not: isochrome may trace them itself.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use nix::errno::Errno;
use nix::libc;
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use super::kernel::{After, Kernel};
use crate::trial::NotRun;

/// Time after which a command is ended.
const LIMIT: Duration = Duration::from_secs(120);

/// A system call of the traced program.
pub struct Call<'a> {
    pub number: i64,
    pub arguments: [u64; 6],
    /// Return value of the call, or a negative error number.
    pub result: i64,
    /// Address in the thread's stack below which nothing is in use.
    pub free_stack: u64,
    pub pid: Pid,
    memory: &'a File,
}

impl Call<'_> {
    pub fn read(&self, address: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.memory.read_exact_at(&mut bytes, address).expect("memory of the traced program");
        bytes
    }

    pub fn write(&self, address: u64, bytes: &[u8]) {
        self.memory.write_all_at(bytes, address).expect("memory of the traced program");
    }

    /// Returns the text at `address` up to its end, or up to the end of readable memory.
    pub fn text(&self, address: u64) -> String {
        let mut bytes = vec![0; 4096];
        let read = self.memory.read_at(&mut bytes, address).unwrap_or(0);
        let end = bytes[..read].iter().position(|byte| *byte == 0).unwrap_or(read);
        String::from_utf8_lossy(&bytes[..end]).into_owned()
    }
}

/// A thread that is traced.
#[derive(Default)]
struct Thread {
    /// The registers at the begin of the system call that the thread is in, and what is to be done at its end.
    inside: Option<(libc::user_regs_struct, After)>,
}

struct Tracer<'a> {
    kernel: &'a mut Kernel,
    leader: Pid,
    /// Memory of the program once it has begun. Before, the shell that starts it is traced, and nothing is answered.
    memory: Option<File>,
    threads: HashMap<i32, Thread>,
}

/// Runs `command`, whose calls `kernel` answers where they concern counters. The calling thread may have no other child.
///
/// A user who may not trace is a reason not to run a test.
pub fn output(command: &Command, kernel: &mut Kernel) -> Result<Output, NotRun> {
    // The shell waits until it is traced.
    let mut stopped = Command::new("sh");
    stopped.args(["-c", "kill -STOP $$; exec \"$@\"", "sh"]).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => stopped.env(name, value),
            None => stopped.env_remove(name),
        };
    }
    let mut child =
        stopped.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("a shell starts");
    let [stdout, stderr] = readers(&mut child);
    let leader = Pid::from_raw(child.id() as i32);
    let status = waitpid(leader, Some(WaitPidFlag::WUNTRACED)).expect("the shell stops");
    assert!(matches!(status, WaitStatus::Stopped(..)), "{status:?}");
    let options = Options::PTRACE_O_TRACESYSGOOD
        | Options::PTRACE_O_TRACECLONE
        | Options::PTRACE_O_TRACEEXEC
        | Options::PTRACE_O_EXITKILL;
    if let Err(error) = ptrace::seize(leader, options) {
        let _ = kill(leader, Signal::SIGKILL);
        let _ = child.wait();
        return Err(NotRun(format!("a process of this user may not be traced: {error}")));
    }
    let (finished, waited) = channel::<()>();
    let watchdog = thread::spawn(move || {
        if waited.recv_timeout(LIMIT) == Err(RecvTimeoutError::Timeout) {
            let _ = kill(leader, Signal::SIGKILL);
        }
    });
    kill(leader, Signal::SIGCONT).expect("the shell goes on");
    let status = Tracer { kernel, leader, memory: None, threads: HashMap::new() }.run();
    drop(finished);
    watchdog.join().expect("the watchdog ends");
    let [stdout, stderr] = [stdout, stderr].map(|reader| reader.join().expect("a reader ends"));
    Ok(Output { status, stdout, stderr })
}

/// Returns threads that read what `child` prints.
fn readers(child: &mut Child) -> [thread::JoinHandle<Vec<u8>>; 2] {
    fn reader(mut pipe: impl Read + Send + 'static) -> thread::JoinHandle<Vec<u8>> {
        thread::spawn(move || {
            let mut bytes = Vec::new();
            pipe.read_to_end(&mut bytes).expect("the command's output");
            bytes
        })
    }
    [reader(child.stdout.take().expect("a pipe")), reader(child.stderr.take().expect("a pipe"))]
}

impl Tracer<'_> {
    /// Returns how the program ended.
    fn run(mut self) -> ExitStatus {
        loop {
            let status = waitpid(None, Some(WaitPidFlag::__WALL | WaitPidFlag::__WNOTHREAD)).expect("a traced thread");
            let (pid, signal) = match status {
                WaitStatus::Exited(pid, code) if pid == self.leader => return ExitStatus::from_raw(code << 8),
                WaitStatus::Signaled(pid, signal, _) if pid == self.leader => {
                    return ExitStatus::from_raw(signal as i32);
                }
                WaitStatus::PtraceSyscall(pid) => {
                    self.at_call(pid);
                    (pid, None)
                }
                WaitStatus::PtraceEvent(pid, _, libc::PTRACE_EVENT_EXEC) => {
                    let memory = OpenOptions::new().read(true).write(true).open(format!("/proc/{pid}/mem"));
                    self.memory = Some(memory.expect("memory of the traced program"));
                    (pid, None)
                }
                WaitStatus::PtraceEvent(pid, ..) => (pid, None),
                WaitStatus::Stopped(pid, signal) => (pid, Some(signal)),
                _ => continue,
            };
            // The thread may have been killed since then.
            match ptrace::syscall(pid, signal) {
                Ok(()) | Err(Errno::ESRCH) => {}
                Err(error) => panic!("{pid}: {error}"),
            }
        }
    }

    fn at_call(&mut self, pid: Pid) {
        let Some(memory) = &self.memory else { return };
        let (Ok(info), Ok(mut registers)) = (ptrace::syscall_info(pid), ptrace::getregs(pid)) else { return };
        let thread = self.threads.entry(pid.as_raw()).or_default();
        let r = &registers;
        let arguments = [r.rdi, r.rsi, r.rdx, r.r10, r.r8, r.r9];
        // The 128 bytes below the stack pointer belong to the function that is executed. [System V ABI, AMD64, 3.2.2]
        let free_stack = (r.rsp - 256) & !7;
        let number = r.orig_rax as i64;
        let mut call = Call { number, arguments, result: r.rax as i64, free_stack, pid, memory };
        if info.op == libc::PTRACE_SYSCALL_INFO_ENTRY {
            let Some(after) = self.kernel.begin(&mut call) else { return };
            thread.inside = Some((registers, after));
            registers.orig_rax = call.number as u64;
            let [rdi, rsi, rdx, r10, r8, r9] = call.arguments;
            (registers.rdi, registers.rsi, registers.rdx) = (rdi, rsi, rdx);
            (registers.r10, registers.r8, registers.r9) = (r10, r8, r9);
        } else {
            let Some((before, after)) = thread.inside.take() else { return };
            call.number = before.orig_rax as i64;
            call.arguments = [before.rdi, before.rsi, before.rdx, before.r10, before.r8, before.r9];
            self.kernel.end(after, &mut call);
            // The program finds its registers as the kernel would have left them.
            registers.rax = call.result as u64;
            (registers.rdi, registers.rsi, registers.rdx) = (before.rdi, before.rsi, before.rdx);
            (registers.r10, registers.r8, registers.r9) = (before.r10, before.r8, before.r9);
        }
        // The thread may have been killed since then.
        let _ = ptrace::setregs(pid, registers);
    }
}
