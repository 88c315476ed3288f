//! Scheduling policies of threads, read and set by direct system calls, because musl's `sched_setscheduler` always fails.

use std::io;

/// Scheduling policy with its priority and all other attributes of sched_setattr(2) that belong to it.
#[derive(Clone, Copy, Debug)]
pub struct Scheduling(libc::sched_attr);

/// Size of the structure as first published, which every kernel since 3.14 accepts.
const ATTRIBUTE_BYTES: u32 = size_of::<libc::sched_attr>() as u32;

impl Scheduling {
    /// Returns SCHED_FIFO at `priority`, 1 to 99.
    pub fn fifo(priority: u8) -> Scheduling {
        Scheduling(libc::sched_attr {
            size: ATTRIBUTE_BYTES,
            sched_policy: libc::SCHED_FIFO as u32,
            sched_flags: 0,
            sched_nice: 0,
            sched_priority: u32::from(priority),
            sched_runtime: 0,
            sched_deadline: 0,
            sched_period: 0,
        })
    }

    /// Returns SCHED_OTHER with nice value 0.
    pub fn other() -> Scheduling {
        let policy = libc::SCHED_OTHER as u32;
        Scheduling(libc::sched_attr { sched_policy: policy, sched_priority: 0, ..Scheduling::fifo(1).0 })
    }

    /// Returns SCHED_IDLE: less than any other thread that wants the CPU.
    pub fn idle() -> Scheduling {
        Scheduling(libc::sched_attr { sched_policy: libc::SCHED_IDLE as u32, ..Scheduling::other().0 })
    }

    /// Returns SCHED_DEADLINE with `runtime` ns in every `period` ns, within `deadline` ns of the period's beginning. Threads and programs
    /// started under it are SCHED_OTHER.
    pub fn deadline(runtime: u64, deadline: u64, period: u64) -> Scheduling {
        Scheduling(libc::sched_attr {
            sched_policy: libc::SCHED_DEADLINE as u32,
            sched_flags: libc::SCHED_FLAG_RESET_ON_FORK as u64,
            sched_priority: 0,
            sched_runtime: runtime,
            sched_deadline: deadline,
            sched_period: period,
            ..Scheduling::fifo(1).0
        })
    }

    /// Returns the scheduling of the calling thread.
    pub fn current() -> io::Result<Scheduling> {
        let mut attributes = Scheduling::fifo(1).0;
        // SAFETY: the kernel writes at most `ATTRIBUTE_BYTES` bytes to the address given, which is a live, exclusively borrowed structure of
        // exactly that size whose fields are integers, so any bytes are valid. Thread 0 is the calling thread.
        let result = unsafe {
            libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, ATTRIBUTE_BYTES, 0 as libc::c_uint)
        };
        if result == 0 { Ok(Scheduling(attributes)) } else { Err(io::Error::last_os_error()) }
    }

    /// Returns the priority under SCHED_FIFO; `None` under any other policy.
    pub fn fifo_priority(&self) -> Option<u8> {
        let fifo = self.0.sched_policy == libc::SCHED_FIFO as u32;
        fifo.then(|| u8::try_from(self.0.sched_priority).ok())?
    }

    /// Whether the policy is SCHED_OTHER, SCHED_BATCH or SCHED_IDLE, which give no real-time guarantees.
    pub fn is_ordinary(&self) -> bool {
        let policy = self.0.sched_policy as libc::c_int;
        matches!(policy, libc::SCHED_OTHER | libc::SCHED_BATCH | libc::SCHED_IDLE)
    }

    /// Whether the policy is SCHED_OTHER.
    pub fn is_other(&self) -> bool {
        self.0.sched_policy == libc::SCHED_OTHER as u32
    }

    /// Returns this scheduling with the nice value raised by `steps`, within -20 to 19.
    pub fn nicer_by(&self, steps: i32) -> Scheduling {
        Scheduling(libc::sched_attr { sched_nice: (self.0.sched_nice + steps).clamp(-20, 19), ..self.0 })
    }

    /// Whether the policy is SCHED_DEADLINE.
    pub fn is_deadline(&self) -> bool {
        self.0.sched_policy == libc::SCHED_DEADLINE as u32
    }

    /// Sets this scheduling for the calling thread.
    pub fn apply(&self) -> io::Result<()> {
        self.apply_to(0)
    }

    /// Sets this scheduling for `thread`, which may belong to another program; 0 is the calling thread.
    pub fn apply_to(&self, thread: i32) -> io::Result<()> {
        let mut attributes = libc::sched_attr { size: ATTRIBUTE_BYTES, ..self.0 };
        // SAFETY: the kernel reads `size` bytes from the address given, which is a live, exclusively borrowed structure of exactly that size; if
        // the kernel rejects the size, it writes the size that it knows into the first field, which is part of the structure.
        let result = unsafe { libc::syscall(libc::SYS_sched_setattr, thread, &raw mut attributes, 0 as libc::c_uint) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

impl std::fmt::Display for Scheduling {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0.sched_policy as libc::c_int {
            libc::SCHED_OTHER => write!(f, "SCHED_OTHER nice {}", self.0.sched_nice),
            libc::SCHED_BATCH => write!(f, "SCHED_BATCH nice {}", self.0.sched_nice),
            libc::SCHED_IDLE => write!(f, "SCHED_IDLE"),
            libc::SCHED_FIFO => write!(f, "SCHED_FIFO {}", self.0.sched_priority),
            libc::SCHED_RR => write!(f, "SCHED_RR {}", self.0.sched_priority),
            libc::SCHED_DEADLINE => write!(
                f,
                "SCHED_DEADLINE {}/{}/{} ns",
                self.0.sched_runtime, self.0.sched_deadline, self.0.sched_period
            ),
            other => write!(f, "policy {other}"),
        }
    }
}
