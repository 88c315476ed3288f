//! How the server notices that a process was started or has executed another program.

use std::collections::BTreeSet;
use std::fs;

use crate::sched::bpf::StartedProcesses;
use crate::sched::open;

/// Processes that were started since the last call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Started {
    /// These processes were started or have executed a program; some may have ended.
    These(BTreeSet<i32>),
    /// Some processes may have been started, but it is not known which.
    Unknown,
    /// No process was started. One may have executed another program.
    Nothing,
}

/// Notices processes, by one of several means.
pub enum Notice {
    /// By programs in the kernel, which see every process.
    Kernel(StartedProcesses),
    /// By the number that the kernel gave last, which does not change when a program is executed.
    LastNumber(Option<u64>),
}

impl Notice {
    /// Chooses the best means that this user has on this kernel.
    pub fn open() -> Notice {
        open::of_processes().map_or(Notice::LastNumber(None), Notice::Kernel)
    }

    /// Returns which processes were started since the last call.
    pub fn since_last(&mut self) -> Started {
        match self {
            Notice::Kernel(started) => started.since_last().map_or(Started::Unknown, Started::These),
            Notice::LastNumber(last) => {
                let now = last_number();
                let is_same = now.is_some() && std::mem::replace(last, now) == now;
                if is_same { Started::Nothing } else { Started::Unknown }
            }
        }
    }
}

/// Returns the number that was last given to a process or thread, which changes when one is started; `None` if the kernel does not report it.
fn last_number() -> Option<u64> {
    // [proc(5), /proc/loadavg]
    fs::read_to_string("/proc/loadavg").ok()?.split_ascii_whitespace().last()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_new_process_changes_the_last_number() {
        let mut notice = Notice::LastNumber(None);
        assert_eq!(notice.since_last(), Started::Unknown);
        Command::new("true").status().unwrap();
        assert_eq!(notice.since_last(), Started::Unknown);
    }
}
