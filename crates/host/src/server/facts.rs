//! Facts about a process that decide to which class of a policy it belongs.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use isochrome_model::policy::Facts;
use isochrome_model::units::{Bytes, Ns};
use rustix::param::clock_ticks_per_second;
use rustix::time::{ClockId, clock_gettime};

use crate::process::{Pid, ProcessError, status_of};

/// Flag of threads of the kernel. [Linux, include/linux/sched.h, PF_KTHREAD]
const KERNEL_THREAD: u64 = 0x0020_0000;

/// The names of the users of this machine, by number.
#[derive(Clone, Debug, Default)]
pub struct Users(BTreeMap<u32, String>);

impl Users {
    /// Reads the names in /etc/passwd. Users that are listed elsewhere have no name here.
    pub fn of_this_machine() -> Users {
        Users::of(&fs::read_to_string("/etc/passwd").unwrap_or_default())
    }

    fn of(passwd: &str) -> Users {
        let user = |line: &str| {
            let mut fields = line.split(':');
            let (name, number) = (fields.next()?, fields.nth(1)?);
            Some((number.parse().ok()?, name.to_owned()))
        };
        Users(passwd.lines().filter_map(user).collect())
    }

    /// Returns the name of the user `number`, or the number where there is no name.
    pub fn name(&self, number: &str) -> String {
        let name = number.parse().ok().and_then(|number: u32| self.0.get(&number).cloned());
        name.unwrap_or_else(|| number.to_owned())
    }
}

/// Returns the processes that run now.
pub fn processes() -> Vec<Pid> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).map(Pid).collect()
}

/// Returns the facts about `pid`, and its start time in ticks since boot.
pub fn facts(pid: Pid, users: &Users) -> Result<(Facts, u64), ProcessError> {
    let status = pid.text("status")?;
    let first = |key| status_of(&status, key).split_ascii_whitespace().next().unwrap_or_default();
    let started = pid.stat(22)?;
    let exe = fs::read_link(pid.path("exe")).ok().map(|path| path.to_string_lossy().into_owned());
    let exe = exe.map(|path| path.strip_suffix(" (deleted)").unwrap_or(&path).to_owned());
    let facts = Facts {
        pid: pid.0,
        parent: first("PPid").parse().unwrap_or(0),
        name: status_of(&status, "Name").to_owned(),
        vm: exe.as_deref().filter(|exe| is_qemu(exe)).and_then(|_| machine_of(&pid.text("cmdline").ok()?)),
        exe,
        cgroups: groups_in(&pid.text("cgroup")?),
        user: users.name(first("Uid")),
        is_kernel_thread: pid.stat(9)? & KERNEL_THREAD != 0,
        is_traced: first("TracerPid") != "0",
        age: Ns(since_boot().0.saturating_sub(started * (1_000_000_000 / clock_ticks_per_second()))),
        resident: Bytes(first("VmRSS").parse().unwrap_or(0) << 10),
    };
    Ok((facts, started))
}

/// Returns the control groups of `pid`, without the roots; none if it has ended.
pub fn groups(pid: Pid) -> Vec<String> {
    groups_in(&pid.text("cgroup").unwrap_or_default())
}

/// Returns the innermost control group of `pid` that this process is not in as well.
pub fn group_of_its_own(pid: Pid) -> Option<String> {
    let shared = groups(Pid(std::process::id() as i32));
    groups(pid).into_iter().filter(|group| !shared.contains(group)).max_by_key(String::len)
}

fn groups_in(text: &str) -> Vec<String> {
    let mut groups: Vec<String> = Vec::new();
    for line in text.lines() {
        // hierarchy:controllers:path
        let path = line.splitn(3, ':').nth(2).unwrap_or_default();
        if path != "/" && !groups.iter().any(|known| known == path) {
            groups.push(path.to_owned());
        }
    }
    groups
}

fn since_boot() -> Ns {
    let now = clock_gettime(ClockId::Boottime);
    Ns(now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64)
}

/// Whether the file `exe` is one of QEMU's system emulators.
fn is_qemu(exe: &str) -> bool {
    let name = Path::new(exe).file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    name.starts_with("qemu-system-") || name == "qemu-kvm"
}

/// Returns the name of the virtual machine by the arguments of QEMU, which end with zero bytes. [qemu(1), -name]
fn machine_of(arguments: &str) -> Option<String> {
    let mut arguments = arguments.split('\0');
    arguments.find(|argument| *argument == "-name" || *argument == "--name")?;
    let parts = arguments.next()?.split(',');
    let named = |part: &str| match part.split_once('=') {
        Some(("guest", name)) => Some(name.to_owned()),
        Some(_) => None,
        None => Some(part.to_owned()),
    };
    parts.filter_map(named).find(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_have_names_where_they_are_listed() {
        let users = Users::of("root:x:0:0:root:/root:/bin/bash\nrobot:x:1000:1000::/home/robot:/bin/sh\nbroken\n");
        assert_eq!((users.name("0"), users.name("1000"), users.name("7")), ("root".into(), "robot".into(), "7".into()));
    }

    #[test]
    fn a_virtual_machine_is_known_by_its_name() {
        assert!(is_qemu("/usr/bin/qemu-system-x86_64") && !is_qemu("/usr/bin/qemu-img"));
        let name = |arguments: &[&str]| machine_of(&arguments.join("\0"));
        assert_eq!(name(&["qemu", "-name", "plc"]).as_deref(), Some("plc"));
        assert_eq!(name(&["qemu", "-m", "64", "-name", "guest=plc,debug-threads=on"]).as_deref(), Some("plc"));
        assert_eq!(name(&["qemu", "-name", "plc,process=qemu-plc", "-nographic"]).as_deref(), Some("plc"));
        assert_eq!((name(&["qemu", "-name"]), name(&["qemu", "-m", "64"])), (None, None));
    }

    #[test]
    fn this_process_is_known() {
        let own = Pid(std::process::id() as i32);
        let (facts, started) = facts(own, &Users::of_this_machine()).unwrap();
        assert_eq!((facts.pid, Some(started)), (own.0, own.start_time()));
        assert_eq!(facts.exe.map(Into::into), std::env::current_exe().ok());
        assert!(!facts.is_kernel_thread && facts.resident > Bytes(1 << 20) && facts.age < Ns(3_600_000_000_000));
        assert!(processes().contains(&own));
    }
}
