//! A signal that threads of this process send each other, and receive only by waiting for it.

use std::io;

use rustix::thread::Pid;

/// Signal that is sent. Nothing else in this program uses SIGUSR2.
const SIGNAL: libc::c_int = libc::SIGUSR2;

/// Guard that blocks the signal for the thread that created the guard, and for threads that this thread starts afterwards.
pub struct ThreadSignal {
    set: libc::sigset_t,
    before: libc::sigset_t,
}

impl ThreadSignal {
    /// Blocks the signal for the calling thread. Drop the guard on the same thread, which restores the former signal mask.
    pub fn keep() -> io::Result<ThreadSignal> {
        // SAFETY: a sigset_t is made of integers, so zeros are valid.
        let (mut set, mut before): (libc::sigset_t, libc::sigset_t) = unsafe { std::mem::zeroed() };
        // SAFETY: the calls take the addresses of live, exclusively borrowed sets, and the number of an existing signal.
        let result = unsafe {
            libc::sigemptyset(&mut set);
            libc::sigaddset(&mut set, SIGNAL);
            libc::pthread_sigmask(libc::SIG_BLOCK, &set, &mut before)
        };
        if result == 0 { Ok(ThreadSignal { set, before }) } else { Err(io::Error::from_raw_os_error(result)) }
    }

    /// Sends the signal to `thread` of this process.
    pub fn send(&self, thread: Pid) -> io::Result<()> {
        let process = rustix::process::getpid().as_raw_nonzero().get();
        // SAFETY: the call takes three numbers and touches no memory of this process; the signal is blocked wherever it is waited for.
        match unsafe { libc::syscall(libc::SYS_tgkill, process, thread.as_raw_nonzero().get(), SIGNAL) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Waits until the signal is sent to the calling thread.
    pub fn wait(&self) -> io::Result<()> {
        loop {
            // SAFETY: the set is read; nothing is written, as no place for details is given.
            match unsafe { libc::sigwaitinfo(&self.set, std::ptr::null_mut()) } {
                SIGNAL => return Ok(()),
                _ => {
                    let error = io::Error::last_os_error();
                    if error.kind() != io::ErrorKind::Interrupted {
                        return Err(error);
                    }
                }
            }
        }
    }

    /// Discards the signal if it is pending for the calling thread.
    pub fn forget(&self) {
        let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: set and time are read; nothing is written, as no place for details is given.
        while unsafe { libc::sigtimedwait(&self.set, std::ptr::null_mut(), &now) } == SIGNAL {}
    }
}

impl Drop for ThreadSignal {
    fn drop(&mut self) {
        // A pending signal would act as soon as it is unblocked.
        self.forget();
        // SAFETY: the set is read; the call in `keep` has written it.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.before, std::ptr::null_mut()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_sent_to_a_thread_is_taken_by_it() {
        let signal = ThreadSignal::keep().unwrap();
        let here = rustix::thread::gettid();
        std::thread::scope(|scope| {
            scope.spawn(|| signal.send(here).unwrap());
            signal.wait().unwrap();
        });
        // A pending signal would end the process when it is unblocked, unless the guard discards it.
        signal.send(here).unwrap();
        drop(signal);
    }
}
