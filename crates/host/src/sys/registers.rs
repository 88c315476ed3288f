//! The general registers of a thread, and what they show of the system call that the thread is in.

/// Number of words of `struct user_regs_struct`.
pub(super) const WORDS: usize = size_of::<libc::user_regs_struct>() / 8;

/// General registers of a stopped thread, in the kernel's order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(into = "Vec<u64>", try_from = "Vec<u64>")]
pub struct Registers(pub(super) [u64; WORDS]);

impl From<Registers> for Vec<u64> {
    fn from(registers: Registers) -> Vec<u64> {
        registers.0.to_vec()
    }
}

impl TryFrom<Vec<u64>> for Registers {
    type Error = String;

    fn try_from(words: Vec<u64>) -> Result<Registers, String> {
        words
            .try_into()
            .map(Registers)
            .map_err(|words: Vec<u64>| format!("{} words are no {WORDS} registers", words.len()))
    }
}

/// Indices of registers among the words of `struct user_regs_struct`.
#[cfg(target_arch = "x86_64")]
pub(super) mod register {
    pub const ARGUMENTS: [usize; 6] = [14, 13, 12, 7, 9, 8];
    pub const RESULT: usize = 10;
    pub const NUMBER: usize = 10;
    /// `orig_rax`: the number of the system call that the thread is in, or -1.
    pub const CALL: usize = 15;
    pub const INSTRUCTION: usize = 16;
    pub const STACK: usize = 19;
}
#[cfg(target_arch = "aarch64")]
pub(super) mod register {
    pub const ARGUMENTS: [usize; 6] = [0, 1, 2, 3, 4, 5];
    pub const RESULT: usize = 0;
    pub const NUMBER: usize = 8;
    pub const STACK: usize = 31;
    pub const INSTRUCTION: usize = 32;
    /// `pstate`.
    pub const STATE: usize = 33;
}

impl Registers {
    /// Returns the address of the next instruction.
    pub fn instruction(&self) -> u64 {
        self.0[register::INSTRUCTION]
    }

    /// Returns the result of the last system call.
    pub fn result(&self) -> i64 {
        self.0[register::RESULT] as i64
    }

    /// Returns these registers, changed to continue at `instruction` with no system call to restart.
    #[cfg(target_arch = "x86_64")]
    pub fn at(mut self, instruction: u64) -> Registers {
        self.0[register::INSTRUCTION] = instruction;
        self.0[register::CALL] = u64::MAX;
        self
    }

    /// Returns these registers, changed to continue at `instruction`.
    ///
    /// If the thread stopped just after an indirect branch, it would have to continue at a landing pad in code that is guarded by Branch Target
    /// Identification (Armv8.5), as that of the vDSO is. The type of the branch is cleared, because `instruction` is none.
    #[cfg(target_arch = "aarch64")]
    pub fn at(mut self, instruction: u64) -> Registers {
        /// PSTATE.BTYPE.
        const BRANCH_TYPE: u64 = 3 << 10;
        self.0[register::INSTRUCTION] = instruction;
        self.0[register::STATE] &= !BRANCH_TYPE;
        self
    }

    /// Returns these registers with `argument` as first argument of a function.
    pub fn with_argument(mut self, argument: u64) -> Registers {
        self.0[register::ARGUMENTS[0]] = argument;
        self
    }

    /// Returns these registers with the stack pointer at `stack`.
    pub fn with_stack(mut self, stack: u64) -> Registers {
        self.0[register::STACK] = stack;
        self
    }

    pub(super) fn calling(mut self, number: libc::c_long, arguments: [u64; 6]) -> Registers {
        for (index, value) in register::ARGUMENTS.iter().zip(arguments) {
            self.0[*index] = value;
        }
        self.0[register::NUMBER] = number as u64;
        self
    }

    /// Returns the registers with which the thread repeats a system call that ended with EINTR although no signal caused this; `None` for
    /// anything else. Only calls that the kernel does not restart itself are repeated (signal(7), "Interruption of system calls by stop
    /// signals").
    ///
    /// The time limit of the repeated call begins anew.
    #[cfg(target_arch = "x86_64")]
    pub fn repeated(&self) -> Option<Registers> {
        let call = self.0[register::CALL];
        (self.result() == -i64::from(libc::EINTR) && breaks_off(call as libc::c_long)).then(|| self.made_again())
    }

    /// Returns the registers with which the thread makes its present system call once more.
    #[cfg(target_arch = "x86_64")]
    fn made_again(&self) -> Registers {
        /// Size of the `syscall` instruction, in bytes.
        const SYSCALL_BYTES: u64 = 2;
        let mut again = self.at(self.instruction() - SYSCALL_BYTES);
        again.0[register::NUMBER] = self.0[register::CALL];
        again
    }

    /// Returns the registers with which the thread repeats a system call that the kernel would continue by `restart_syscall`; `None` for
    /// anything else. The time limit of the repeated call begins anew.
    #[cfg(target_arch = "x86_64")]
    pub fn begun_again(&self) -> Option<Registers> {
        /// `ERESTART_RESTARTBLOCK`. [Linux, include/linux/errno.h]
        const RESTART_BLOCK: i64 = 516;
        (self.result() == -RESTART_BLOCK && self.in_call()).then(|| self.made_again())
    }

    /// Returns `None`: not implemented on this architecture, for the reason given at [`repeated`](Self::repeated).
    #[cfg(target_arch = "aarch64")]
    pub fn begun_again(&self) -> Option<Registers> {
        None
    }

    /// Returns `None`: this architecture's kernel replaces the result by the first argument before a tracer sees it.
    #[cfg(target_arch = "aarch64")]
    pub fn repeated(&self) -> Option<Registers> {
        None
    }

    /// Whether the thread is in a system call, as far as the registers show it.
    #[cfg(target_arch = "x86_64")]
    pub fn in_call(&self) -> bool {
        self.0[register::CALL] as i64 >= 0
    }

    /// Returns `false`: on this architecture the registers do not show whether the thread is in a system call.
    #[cfg(target_arch = "aarch64")]
    pub fn in_call(&self) -> bool {
        false
    }
}

/// Whether this system call may end with EINTR when its thread is stopped, because the kernel does not restart it itself. \[signal(7),
/// "Interruption of system calls by stop signals"\]
#[cfg(target_arch = "x86_64")]
pub fn breaks_off(call: libc::c_long) -> bool {
    matches!(
        call,
        libc::SYS_epoll_wait
            | libc::SYS_epoll_pwait
            | libc::SYS_epoll_pwait2
            | libc::SYS_semop
            | libc::SYS_semtimedop
            | libc::SYS_rt_sigtimedwait
            | libc::SYS_io_getevents
            | libc::SYS_read
            | libc::SYS_readv
            | libc::SYS_write
            | libc::SYS_writev
            | libc::SYS_recvfrom
            | libc::SYS_recvmsg
            | libc::SYS_recvmmsg
            | libc::SYS_sendto
            | libc::SYS_sendmsg
            | libc::SYS_sendmmsg
            | libc::SYS_accept
            | libc::SYS_accept4
            | libc::SYS_connect
    )
}

/// Returns `false`: not implemented on this architecture, for the reason given at [`Registers::repeated`].
#[cfg(target_arch = "aarch64")]
pub fn breaks_off(_call: libc::c_long) -> bool {
    false
}

#[cfg(all(test, target_arch = "aarch64"))]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_stopped_after_an_indirect_branch_may_continue_anywhere() {
        let mut stopped = Registers([1; WORDS]);
        // Carry and a branch of type 2.
        stopped.0[register::STATE] = 1 << 29 | 2 << 10;
        let elsewhere = stopped.at(0x1000);
        assert_eq!((elsewhere.instruction(), elsewhere.0[register::STATE]), (0x1000, 1 << 29));
    }
}
