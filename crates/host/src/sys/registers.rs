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
            .map_err(|words: Vec<u64>| format!("{} words are not {WORDS} registers", words.len()))
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
    /// Identification (Armv8.5), as that of the vDSO is. The type of the branch is cleared, because the instruction there need not be a landing pad.
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
        (self.result() == -i64::from(libc::EINTR) && may_be_interrupted(call as libc::c_long))
            .then(|| self.made_again())
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

    /// Returns `None`: not implemented on this architecture, for the reason given at [`calls_to_sleep`](Self::calls_to_sleep).
    #[cfg(target_arch = "aarch64")]
    pub fn begun_again(&self) -> Option<Registers> {
        None
    }

    /// Returns `None`: on this architecture the result takes the place of the first argument, so [`repeated_as`](Self::repeated_as) is needed.
    #[cfg(target_arch = "aarch64")]
    pub fn repeated(&self) -> Option<Registers> {
        None
    }

    /// Returns `None`: on this architecture [`repeated`](Self::repeated) is enough.
    #[cfg(target_arch = "x86_64")]
    pub fn repeated_as(&self, _call: &BlockedCall) -> Option<Registers> {
        None
    }

    /// Returns the registers with which the thread repeats `call`, which it was blocked in before its stop, if the call has ended with EINTR; `None`
    /// for anything else.
    ///
    /// The time limit of the repeated call begins anew. It also [waits](Self::calls_to_wait), so that a signal can end it.
    #[cfg(target_arch = "aarch64")]
    pub fn repeated_as(&self, call: &BlockedCall) -> Option<Registers> {
        /// Size of the instruction, in bytes.
        const INSTRUCTION_BYTES: u64 = 4;
        let is_this = self.call() == call.number && self.instruction() == call.instruction;
        let mut again = self.at(self.instruction() - INSTRUCTION_BYTES);
        again.0[register::ARGUMENTS[0]] = call.first_argument;
        (is_this && may_be_interrupted(call.number) && self.result() == -i64::from(libc::EINTR)).then_some(again)
    }

    /// Returns `false`: on this architecture the kernel decides by the registers how a system call goes on, whichever stop the thread continues from.
    #[cfg(target_arch = "x86_64")]
    pub fn calls_to_sleep(&self) -> bool {
        false
    }

    /// Whether the next instruction, if it is that of a system call, makes one that the kernel continues where it was, by `restart_syscall`, only
    /// if the thread continues from the stop in which it was interrupted. [Linux, arch/arm64/kernel/signal.c, do_signal]
    #[cfg(target_arch = "aarch64")]
    pub fn calls_to_sleep(&self) -> bool {
        matches!(self.call(), libc::SYS_nanosleep | libc::SYS_clock_nanosleep | libc::SYS_futex)
    }

    /// Returns `false`, for the reason given at [`calls_to_sleep`](Self::calls_to_sleep).
    #[cfg(target_arch = "x86_64")]
    pub fn calls_to_wait(&self) -> bool {
        false
    }

    /// Whether the next instruction, if it is that of a system call, makes one that a signal ends only if the thread continues from the stop in
    /// which it was interrupted.
    #[cfg(target_arch = "aarch64")]
    pub fn calls_to_wait(&self) -> bool {
        let waits = matches!(
            self.call(),
            libc::SYS_restart_syscall
                | libc::SYS_ppoll
                | libc::SYS_pselect6
                | libc::SYS_wait4
                | libc::SYS_waitid
                | libc::SYS_flock
        );
        waits || may_be_interrupted(self.call()) || self.calls_to_sleep()
    }

    /// Returns `false`, for the reason given at [`calls_to_sleep`](Self::calls_to_sleep).
    #[cfg(target_arch = "x86_64")]
    pub fn calls_to_break_off(&self) -> bool {
        false
    }

    /// Whether the call that the next instruction makes, if it makes one, may end with EINTR when its thread is stopped: see [`may_be_interrupted`].
    #[cfg(target_arch = "aarch64")]
    pub fn calls_to_break_off(&self) -> bool {
        may_be_interrupted(self.call())
    }

    /// Returns the number of the system call that the next instruction makes, if it makes one.
    #[cfg(target_arch = "aarch64")]
    fn call(&self) -> libc::c_long {
        self.0[register::NUMBER] as libc::c_long
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
pub fn may_be_interrupted(call: libc::c_long) -> bool {
    #[cfg(target_arch = "x86_64")]
    if call == libc::SYS_epoll_wait {
        return true;
    }
    matches!(
        call,
        libc::SYS_epoll_pwait
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

/// The system call that a thread is blocked in, as the kernel shows it without stopping the thread. \[proc_pid_syscall(5)\]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockedCall {
    /// Number of the call; -1 if the thread is blocked outside of system calls.
    pub number: libc::c_long,
    /// First argument of the call.
    pub first_argument: u64,
    /// Address of the instruction behind that of the call.
    pub instruction: u64,
}

impl BlockedCall {
    /// Returns the call that a file `syscall` shows; `None` if the thread runs.
    pub fn parse(text: &str) -> Option<BlockedCall> {
        let hexadecimal = |field: &str| u64::from_str_radix(field.strip_prefix("0x")?, 16).ok();
        let mut fields = text.split_ascii_whitespace();
        let number = fields.next()?.parse().ok()?;
        let first_argument = hexadecimal(fields.next()?)?;
        Some(BlockedCall { number, first_argument, instruction: hexadecimal(fields.next_back()?)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_call_that_a_thread_is_blocked_in_is_read_from_the_file_of_the_kernel() {
        let text = "22 0x4 0xffffd2a0 0x10 0xffffffff 0x0 0x8 0xffffd290 0xffff9f2c\n";
        let call = BlockedCall { number: 22, first_argument: 4, instruction: 0xffff_9f2c };
        assert_eq!(BlockedCall::parse(text), Some(call));
        assert_eq!(BlockedCall::parse("-1 0xffffd290 0xffff9f2c\n").map(|call| call.number), Some(-1));
        assert_eq!(["running\n", "", "22\n", "22 0x4\n"].map(BlockedCall::parse), [None; 4]);
    }

    #[cfg(target_arch = "aarch64")]
    #[test]
    fn a_call_that_was_broken_off_is_repeated_with_its_first_argument_if_the_thread_was_seen_in_it() {
        let mut stopped = Registers([7; WORDS]);
        stopped.0[register::NUMBER] = libc::SYS_epoll_pwait as u64;
        stopped.0[register::RESULT] = -i64::from(libc::EINTR) as u64;
        let call = BlockedCall { number: libc::SYS_epoll_pwait, first_argument: 4, instruction: 0x1004 };
        let stopped = stopped.at(0x1004);
        let again = stopped.repeated_as(&call).unwrap();
        assert_eq!((again.instruction(), again.0[register::ARGUMENTS[0]], again.0[1]), (0x1000, 4, 7));
        assert!(again.calls_to_wait());
        assert_eq!(stopped.repeated_as(&BlockedCall { instruction: 0x2004, ..call }), None);
        assert_eq!(stopped.repeated_as(&BlockedCall { number: libc::SYS_read, ..call }), None);
        assert_eq!(stopped.at(0x1008).repeated_as(&call), None);
    }

    #[cfg(target_arch = "aarch64")]
    #[test]
    fn a_thread_that_stopped_after_an_indirect_branch_may_continue_anywhere() {
        let mut stopped = Registers([1; WORDS]);
        // Carry and a branch of type 2.
        stopped.0[register::STATE] = 1 << 29 | 2 << 10;
        let elsewhere = stopped.at(0x1000);
        assert_eq!((elsewhere.instruction(), elsewhere.0[register::STATE]), (0x1000, 1 << 29));
    }
}
