//! Stopping threads of another process, reading and setting their registers, and making them issue system calls.
//!
//! Threads are seized and interrupted, which neither they nor their parent notice. If a thread was stopped in a system call, its registers then
//! hold an error number that no program ever sees. The kernel restarts the call when the thread continues, provided that the thread has the same
//! registers as at the stop and continues from this same stop. [Linux, kernel/ptrace.c; arch/x86/kernel/signal.c]

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io;
use std::time::{Duration, Instant};

use isochrome_model::seccomp::Instruction;

use super::registers::WORDS;
pub use super::registers::{BlockedCall, Registers, may_be_interrupted};
use crate::interrupt::interrupted;

/// A thread, by the number that the kernel gives it.
pub type ThreadId = i32;

/// Longest time for a system call that another program is made to issue. The call may have to unmap or lock much memory.
const CALL_LIMIT: Duration = Duration::from_secs(60);

/// Longest time for a system call of another program once this program was asked to end.
const LAST_LIMIT: Duration = Duration::from_millis(1200);

/// Times by which a thread must have stopped.
#[derive(Clone, Copy, Debug)]
pub struct StopLimit {
    /// Limit for a thread that waits for something, such as a device or a child after vfork.
    pub waiting: Instant,
    /// Limit for a thread that only waits for a CPU, which it gets in the end even on a loaded machine.
    pub runnable: Instant,
}

/// `PTRACE_EVENT_STOP`. [Linux, include/uapi/linux/ptrace.h]
const EVENT_STOP: i32 = 128;

/// Event that a traced thread reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Report {
    /// The thread stopped because it was asked to, or because it is new.
    Stopped,
    /// The thread stopped at the beginning or the end of a system call.
    SystemCall,
    /// The thread stopped after it created this new thread.
    Cloned(ThreadId),
    /// The thread stopped before this signal is delivered to it.
    Signal(i32),
    /// The thread has ended.
    Gone,
}

/// Whether a thread in this system call may wait for a child that uses its memory, as after vfork. Such a thread does not stop before the
/// child has ended or executed another program.
pub fn lends_memory(call: libc::c_long) -> bool {
    #[cfg(target_arch = "x86_64")]
    if call == libc::SYS_vfork {
        return true;
    }
    call == libc::SYS_clone || call == libc::SYS_clone3
}

fn ptrace(request: libc::c_uint, thread: ThreadId, address: usize, data: usize) -> io::Result<libc::c_long> {
    // SAFETY: every caller below passes, for `request`, numbers or the address of a live structure of the size that ptrace(2) defines for it;
    // the requests change the traced thread, not the memory of this process.
    match unsafe { libc::ptrace(request as _, thread, address, data) } {
        -1 => Err(io::Error::last_os_error()),
        value => Ok(value),
    }
}

thread_local! {
    /// Threads that this thread traces, and whose end it has to wait for.
    static TRACED: RefCell<BTreeSet<ThreadId>> = const { RefCell::new(BTreeSet::new()) };
}

fn add_traced(thread: ThreadId) {
    TRACED.with_borrow_mut(|traced| traced.insert(thread));
}

const OPTIONS: i32 = libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_TRACECLONE;

/// Begins to trace `thread`, which continues to run. Threads that it makes are traced as well, and start out stopped.
///
/// When this process ends, the kernel ends the tracing and lets all threads continue.
pub fn seize(thread: ThreadId) -> io::Result<()> {
    ptrace(libc::PTRACE_SEIZE as _, thread, 0, OPTIONS as usize).map(|_| add_traced(thread))
}

/// Begins to trace `thread` as [`seize`] does, but not the threads that it makes; [`trace_clones`] adds those.
pub fn seize_alone(thread: ThreadId) -> io::Result<()> {
    ptrace(libc::PTRACE_SEIZE as _, thread, 0, 0).map(|_| add_traced(thread))
}

/// Makes the kernel also trace the threads that the stopped `thread` creates from now on.
pub fn trace_clones(thread: ThreadId) -> io::Result<()> {
    ptrace(libc::PTRACE_SETOPTIONS as _, thread, 0, OPTIONS as usize).map(drop)
}

/// Asks a seized thread to stop.
pub fn interrupt(thread: ThreadId) -> io::Result<()> {
    ptrace(libc::PTRACE_INTERRUPT as _, thread, 0, 0).map(drop)
}

/// Lets a stopped thread continue, and delivers `signal` to it unless that is 0.
pub fn go_on(thread: ThreadId, signal: i32) -> io::Result<()> {
    ptrace(libc::PTRACE_CONT as _, thread, 0, signal as usize).map(drop)
}

/// Lets a stopped thread continue to the next beginning or end of a system call.
pub(super) fn go_on_to_call(thread: ThreadId) -> io::Result<()> {
    ptrace(libc::PTRACE_SYSCALL as _, thread, 0, 0).map(drop)
}

/// Ends the tracing of a stopped thread, which continues; `signal` is delivered to it unless that is 0.
pub fn detach(thread: ThreadId, signal: i32) -> io::Result<()> {
    ptrace(libc::PTRACE_DETACH as _, thread, 0, signal as usize)?;
    TRACED.with_borrow_mut(|traced| traced.remove(&thread));
    Ok(())
}

/// Waits for the traced threads that have ended, so that their parents learn of it. A process that ends while it is traced stays a zombie that its
/// parent cannot see until then. [Linux, kernel/exit.c, wait_consider_task]
///
/// Must not be called while the end of a thread is still to be [`reported`].
pub fn reap_ended() {
    TRACED.with_borrow_mut(|traced| {
        traced.retain(|thread| {
            let mut status = 0;
            // SAFETY: waitpid writes one number to the address of a live, exclusively borrowed one.
            let mut wait = || unsafe { libc::waitpid(*thread, &raw mut status, libc::WNOHANG | libc::__WALL) };
            is_own_child(*thread) || !has_ended(*thread) || wait() == 0
        });
    });
}

/// Time for which a report is waited for busily. A thread on this CPU can report only once this one sleeps.
const SOON: Duration = Duration::from_micros(25);

/// Waits until `thread` reports an event, and returns the event.
///
/// Fails with `TimedOut` if `thread` reports nothing within `limit`.
pub fn report_within(thread: ThreadId, limit: Duration) -> io::Result<Report> {
    let begin = Instant::now();
    loop {
        let elapsed = begin.elapsed();
        match reported(thread)? {
            Some(report) => return Ok(report),
            None if elapsed > limit => return Err(io::ErrorKind::TimedOut.into()),
            // Most threads stop within microseconds. A thread that does not may need this CPU to stop.
            None if elapsed < SOON => std::hint::spin_loop(),
            // Each look takes time from a thread that works on this CPU, so a long wait has few.
            None => std::thread::sleep((elapsed / 16).clamp(Duration::from_micros(20), Duration::from_micros(500))),
        }
    }
}

/// Waits until `thread`, which issues a system call, reports an event, and returns the event.
///
/// A main thread that was killed reports nothing as long as another traced thread of its process has not been waited for. So whether
/// `thread` has ended is also looked up. Fails with `TimedOut` if the report takes more than a minute, or more than about a second after
/// this program was asked to end.
pub fn report_of(thread: ThreadId) -> io::Result<Report> {
    let begin = Instant::now();
    loop {
        match report_within(thread, Duration::from_millis(20)) {
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                let limit = if interrupted() { LAST_LIMIT } else { CALL_LIMIT };
                if has_ended(thread) {
                    return Ok(Report::Gone);
                }
                if begin.elapsed() > limit {
                    return Err(error);
                }
            }
            report => return report,
        }
    }
}

/// Returns the event that `thread` reports, without waiting; `None` if there is none.
pub fn reported(thread: ThreadId) -> io::Result<Option<Report>> {
    loop {
        match wait(thread, libc::WNOHANG) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            found => return found,
        }
    }
}

/// Returns the event that `thread` reports; `None` if there is none and `flags` contains WNOHANG.
///
/// The end of a child of this process is not consumed, so that a later wait for the child still finds it. The end of any other process is consumed,
/// because its parent learns of it only then. [Linux, kernel/exit.c, wait_task_zombie]
fn wait(thread: ThreadId, flags: i32) -> io::Result<Option<Report>> {
    // SAFETY: all zeros are a valid siginfo_t, which is made of integers.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    let wanted = libc::WEXITED | libc::WSTOPPED | libc::__WALL;
    let peek = |info: &mut libc::siginfo_t, flags| {
        // SAFETY: waitid writes one siginfo_t to the address of a live, exclusively borrowed one.
        match unsafe { libc::waitid(libc::P_PID, thread as libc::id_t, info, flags) } {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        }
    };
    peek(&mut info, wanted | libc::WNOWAIT | flags)?;
    // SAFETY: waitid filled in the fields of a child's report, or left all of them zero.
    let (found, status) = unsafe { (info.si_pid(), info.si_status()) };
    if found == 0 {
        return Ok(None);
    }
    if info.si_code != libc::CLD_TRAPPED && info.si_code != libc::CLD_STOPPED {
        if !is_own_child(thread) {
            peek(&mut info, wanted)?;
            TRACED.with_borrow_mut(|traced| traced.remove(&thread));
        }
        return Ok(Some(Report::Gone));
    }
    peek(&mut info, wanted)?;
    let signal = status & 0xff;
    Ok(Some(match status >> 8 {
        EVENT_STOP => Report::Stopped,
        libc::PTRACE_EVENT_CLONE => {
            let mut made: libc::c_ulong = 0;
            ptrace(libc::PTRACE_GETEVENTMSG as _, thread, 0, &raw mut made as usize)?;
            add_traced(made as ThreadId);
            Report::Cloned(made as ThreadId)
        }
        _ if signal == libc::SIGTRAP | 0x80 => Report::SystemCall,
        _ => Report::Signal(signal),
    }))
}

/// Whether `thread` is the main thread of a child of this process.
fn is_own_child(thread: ThreadId) -> bool {
    status_has(thread, &format!("Tgid:\t{thread}\n")) && status_has(thread, &format!("PPid:\t{}\n", std::process::id()))
}

/// Whether `thread` has ended, even if nobody has waited for it yet.
fn has_ended(thread: ThreadId) -> bool {
    !std::path::Path::new(&format!("/proc/{thread}")).exists()
        || status_has(thread, "State:\tZ")
        || status_has(thread, "State:\tX")
}

/// Whether the kernel's status file of `thread` contains `text`.
fn status_has(thread: ThreadId, text: &str) -> bool {
    let status = std::fs::read(format!("/proc/{thread}/status")).unwrap_or_default();
    String::from_utf8_lossy(&status).contains(text)
}

/// Waits until an interrupted thread has stopped, and returns the last time at which it had not stopped yet; `None` if the thread has ended.
/// Signals that reach the thread before its stop are delivered.
///
/// Fails with `TimedOut` when it has not stopped within `limit`.
pub fn stopped(thread: ThreadId, limit: StopLimit) -> io::Result<Option<Instant>> {
    /// Precision to which the time of the stop is known.
    const RESOLUTION: Duration = Duration::from_millis(1);
    loop {
        let seen = Instant::now();
        let report = match report_within(thread, limit.waiting.saturating_duration_since(seen).min(RESOLUTION)) {
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                if seen < limit.waiting {
                    continue;
                }
                if seen < limit.runnable && status_has(thread, "State:\tR") {
                    std::thread::sleep(Duration::from_micros(100));
                    continue;
                }
                return Err(error);
            }
            report => report?,
        };
        let signal = match report {
            Report::Stopped => return Ok(Some(seen)),
            Report::Gone => return Ok(None),
            Report::Signal(signal) => signal,
            // A thread made just before the stop is found among the threads of the process; it is traced already.
            Report::Cloned(_) | Report::SystemCall => 0,
        };
        // Each stop, whatever its reason, ends the request to stop. [Linux, kernel/signal.c, ptrace_stop]
        interrupt(thread)?;
        go_on(thread, signal)?;
    }
}

/// Note type of the general registers. [Linux, include/uapi/linux/elf.h]
const NT_PRSTATUS: usize = 1;

/// Returns the general registers of a stopped thread.
///
/// Fails with `Unsupported` if the thread belongs to a program of another word size.
pub fn registers(thread: ThreadId) -> io::Result<Registers> {
    let mut words = [0u64; WORDS];
    let mut buffer = libc::iovec { iov_base: words.as_mut_ptr().cast(), iov_len: size_of_val(&words) };
    ptrace(libc::PTRACE_GETREGSET as _, thread, NT_PRSTATUS, &raw mut buffer as usize)?;
    if buffer.iov_len != size_of_val(&words) {
        return Err(io::ErrorKind::Unsupported.into());
    }
    Ok(Registers(words))
}

/// Sets the general registers of a stopped thread.
pub fn set_registers(thread: ThreadId, registers: &Registers) -> io::Result<()> {
    let mut words = registers.0;
    let mut buffer = libc::iovec { iov_base: words.as_mut_ptr().cast(), iov_len: size_of_val(&words) };
    ptrace(libc::PTRACE_SETREGSET as _, thread, NT_PRSTATUS, &raw mut buffer as usize).map(drop)
}

/// Makes a thread that has stopped at the beginning of a system call leave out the call. The registers of the thread stay as they are, but for the
/// result.
#[cfg(all(test, target_arch = "x86_64"))]
pub(super) fn skip_call(thread: ThreadId) -> io::Result<()> {
    let mut registers = registers(thread)?;
    registers.0[super::registers::register::CALL] = u64::MAX;
    set_registers(thread, &registers)
}

/// Makes a thread that has stopped at the beginning of a system call leave out the call. The registers of the thread stay as they are, but for the
/// result.
#[cfg(all(test, target_arch = "aarch64"))]
pub(super) fn skip_call(thread: ThreadId) -> io::Result<()> {
    /// Note type of the number of the system call. [Linux, include/uapi/linux/elf.h]
    const NT_ARM_SYSTEM_CALL: usize = 0x404;
    let mut none = -1i32;
    let mut buffer = libc::iovec { iov_base: (&raw mut none).cast(), iov_len: size_of_val(&none) };
    ptrace(libc::PTRACE_SETREGSET as _, thread, NT_ARM_SYSTEM_CALL, &raw mut buffer as usize).map(drop)
}

/// Returns the mask of signals that a stopped thread blocks. In a call such as ppoll, which replaces the mask while it waits, this is the mask
/// after the call.
pub fn blocked_signals(thread: ThreadId) -> io::Result<u64> {
    let mut mask = 0u64;
    ptrace(libc::PTRACE_GETSIGMASK as _, thread, size_of::<u64>(), &raw mut mask as usize)?;
    Ok(mask)
}

/// Sets the signals that a stopped thread blocks.
pub fn block_signals(thread: ThreadId, mask: u64) -> io::Result<()> {
    ptrace(libc::PTRACE_SETSIGMASK as _, thread, size_of::<u64>(), &raw const mask as usize).map(drop)
}

/// `PTRACE_GET_RSEQ_CONFIGURATION` (Linux 5.13). [Linux, include/uapi/linux/ptrace.h]
const GET_RSEQ_CONFIGURATION: libc::c_uint = 0x420f;

#[repr(C)]
#[derive(Default)]
struct RseqConfiguration {
    address: u64,
    size: u32,
    signature: u32,
    flags: u32,
    padding: u32,
}

/// Returns the address of the restartable-sequence area of a stopped thread; `None` if it has none.
pub fn restartable_area(thread: ThreadId) -> Option<u64> {
    let mut found = RseqConfiguration::default();
    let size = size_of::<RseqConfiguration>();
    ptrace(GET_RSEQ_CONFIGURATION, thread, size, &raw mut found as usize).ok()?;
    (found.address != 0).then_some(found.address)
}

/// `AUDIT_ARCH_X86_64`. [Linux, include/uapi/linux/audit.h]
#[cfg(target_arch = "x86_64")]
pub const ARCHITECTURE: u32 = 0xc000_003e;
/// `AUDIT_ARCH_AARCH64`. [Linux, include/uapi/linux/audit.h]
#[cfg(target_arch = "aarch64")]
pub const ARCHITECTURE: u32 = 0xc000_00b7;

/// Returns the seccomp filters of a stopped thread. Only root may read filters, and only if it runs outside of containers and has no filters
/// itself.
pub fn filters(thread: ThreadId) -> io::Result<Vec<Vec<Instruction>>> {
    /// `PTRACE_SECCOMP_GET_FILTER`. [Linux, include/uapi/linux/ptrace.h]
    const GET_FILTER: libc::c_uint = 0x420c;
    let mut filters = Vec::new();
    loop {
        let length = match ptrace(GET_FILTER, thread, filters.len(), 0) {
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(filters),
            length => length? as usize,
        };
        let mut filter = vec![libc::sock_filter { code: 0, jt: 0, jf: 0, k: 0 }; length];
        ptrace(GET_FILTER, thread, filters.len(), filter.as_mut_ptr() as usize)?;
        filters.push(
            filter
                .into_iter()
                .map(|it| Instruction { code: it.code, jump_true: it.jt, jump_false: it.jf, operand: it.k })
                .collect(),
        );
    }
}

/// Writes one word into the memory of a stopped thread, regardless of the memory's protection.
pub fn poke(thread: ThreadId, address: u64, word: u64) -> io::Result<()> {
    ptrace(libc::PTRACE_POKEDATA as _, thread, address as usize, word as usize).map(drop)
}

/// Outcome of a system call made by another program.
#[derive(Clone, Copy, Debug)]
pub struct Answer {
    /// Result of the call; -4095 to -1 are error numbers.
    pub result: i64,
    /// Thread that the call created, which is stopped and traced, by its number in the namespace of this process. In its own container the
    /// thread may have another number.
    pub made: Option<ThreadId>,
}

/// Makes a stopped thread issue a system call. `cave`: address of a system-call instruction in its memory.
///
/// The registers are changed, and the thread is left stopped at the end of the call. `held_back` gathers signals that could not be blocked and
/// arrived during the call.
pub fn remote_call(
    thread: ThreadId,
    cave: u64,
    number: libc::c_long,
    arguments: [u64; 6],
    held_back: &mut Vec<i32>,
) -> io::Result<Answer> {
    set_registers(thread, &registers(thread)?.at(cave).calling(number, arguments))?;
    let (mut stops, mut new) = (0, None);
    while stops < 2 {
        go_on_to_call(thread)?;
        match report_of(thread)? {
            Report::SystemCall => stops += 1,
            Report::Cloned(made) => {
                if report_of(made)? == Report::Gone {
                    return Err(io::Error::from_raw_os_error(libc::ESRCH));
                }
                new = Some(made);
            }
            Report::Signal(signal) => held_back.push(signal),
            Report::Stopped => {}
            Report::Gone => return Err(io::Error::from_raw_os_error(libc::ESRCH)),
        }
    }
    Ok(Answer { result: registers(thread)?.result(), made: new })
}

/// Code of the instruction that makes a system call.
#[cfg(target_arch = "x86_64")]
pub const CALL_INSTRUCTION: [u8; 2] = [0x0f, 0x05];
/// Code of the instruction that makes a system call.
#[cfg(target_arch = "aarch64")]
pub const CALL_INSTRUCTION: [u8; 4] = [0x01, 0, 0, 0xd4];

/// Lets a stopped thread, whose next instruction makes a system call, make that call, and stops it there at once: a call that waits is interrupted,
/// any other ends.
pub fn stop_in_call(thread: ThreadId, held_back: &mut Vec<i32>) -> io::Result<()> {
    loop {
        go_on_to_call(thread)?;
        match report_of(thread)? {
            Report::SystemCall => return to_plain_stop(thread, held_back),
            Report::Signal(signal) => held_back.push(signal),
            Report::Gone => return Err(io::Error::from_raw_os_error(libc::ESRCH)),
            Report::Stopped | Report::Cloned(_) => {}
        }
    }
}

/// Brings a stopped thread to a kind of stop from which the kernel restarts system calls.
pub fn to_plain_stop(thread: ThreadId, held_back: &mut Vec<i32>) -> io::Result<()> {
    interrupt(thread)?;
    loop {
        go_on(thread, 0)?;
        match report_of(thread)? {
            Report::Stopped => return Ok(()),
            Report::Signal(signal) => held_back.push(signal),
            Report::Gone => return Err(io::Error::from_raw_os_error(libc::ESRCH)),
            Report::SystemCall | Report::Cloned(_) => {}
        }
    }
}

/// Whether processes `a` and `b` share one address space; `false` if the kernel does not tell.
pub fn same_memory(a: i32, b: i32) -> bool {
    /// `KCMP_VM`. [Linux, include/uapi/linux/kcmp.h]
    const MEMORY: libc::c_int = 1;
    // SAFETY: kcmp takes numbers and touches no memory.
    unsafe { libc::syscall(libc::SYS_kcmp, a, b, MEMORY, 0, 0) == 0 }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::process::{Child, Command, Stdio};
    use std::sync::mpsc::channel;

    use super::*;
    use crate::sys::launch;

    /// Traces and kills the child of a shell, and calls `end` with its number. Returns the exit code that the shell then prints, or "nothing" if the
    /// shell has not learned of the end within 10 s.
    fn told_to_the_parent(end: impl FnOnce(ThreadId)) -> String {
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 600 & echo $!; wait $!; echo $?"]).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut shell = command.spawn().unwrap();
        let mut lines = BufReader::new(shell.stdout.take().unwrap()).lines();
        let child: ThreadId = lines.next().unwrap().unwrap().parse().unwrap();
        seize(child).unwrap();
        launch::send(child, libc::SIGKILL).unwrap();
        end(child);
        let (sender, told) = channel();
        std::thread::spawn(move || sender.send(lines.next().unwrap().unwrap()));
        // This thread must not end before that: the kernel tells the parent when the tracer ends.
        let told = told.recv_timeout(Duration::from_secs(10)).unwrap_or_else(|_| "nothing".to_owned());
        shell.kill().unwrap();
        shell.wait().unwrap();
        told
    }

    #[test]
    fn a_parent_learns_of_the_end_of_its_traced_child() {
        assert_eq!(told_to_the_parent(|child| assert_eq!(report_of(child).unwrap(), Report::Gone)), "137");
    }

    #[test]
    fn a_parent_learns_of_the_end_of_a_child_that_nobody_has_looked_at() {
        let reap = |child| {
            let begin = Instant::now();
            while !has_ended(child) && begin.elapsed() < Duration::from_secs(10) {
                std::thread::sleep(Duration::from_millis(1));
            }
            reap_ended();
            assert!(TRACED.with_borrow(BTreeSet::is_empty));
        };
        assert_eq!(told_to_the_parent(reap), "137");
    }

    #[test]
    fn a_thread_that_makes_threads_all_the_time_stops() {
        let endless = "import _thread\nprint(flush=True)\nwhile True: _thread.start_new_thread(int, ())";
        let mut command = Command::new("python3");
        let mut program = command.args(["-c", endless]).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let number = program.id() as ThreadId;
        BufReader::new(program.stdout.take().unwrap()).read_line(&mut String::new()).unwrap();
        let let_all_go = || {
            let traced = TRACED.with_borrow(BTreeSet::clone);
            for thread in traced.into_iter().filter(|thread| *thread != number) {
                if !matches!(report_of(thread), Err(_) | Ok(Report::Gone)) {
                    let _ = detach(thread, 0);
                }
            }
            detach(number, 0)
        };
        let stops = (0..1000).all(|_| {
            seize(number).and_then(|()| interrupt(number)).unwrap();
            let limit = Instant::now() + Duration::from_secs(10);
            let stop = stopped(number, StopLimit { waiting: limit, runnable: limit });
            let stops = stop.is_ok_and(|seen| seen.is_some()) && let_all_go().is_ok();
            std::thread::sleep(Duration::from_millis(1));
            stops
        });
        program.kill().unwrap();
        program.wait().unwrap();
        assert!(stops);
    }

    #[test]
    fn the_end_of_an_own_child_is_left_for_who_waits_for_it() {
        let mut child: Child = Command::new("sleep").arg("600").spawn().unwrap();
        let number = child.id() as ThreadId;
        seize(number).unwrap();
        child.kill().unwrap();
        assert_eq!(report_of(number).unwrap(), Report::Gone);
        reap_ended();
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&child.wait().unwrap()), Some(libc::SIGKILL));
    }
}
