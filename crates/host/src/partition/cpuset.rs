//! CPUs reserved for the programs that join them: each CPU becomes a cpuset partition of cgroup v2, and so a root domain of its own.
//!
//! [Linux, Documentation/admin-guide/cgroup-v2.rst, Cpuset]. Where partitions cannot be made, the reason is reported, and no change stays.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use isochrome_model::units::CpuId;
use serde::{Deserialize, Serialize};

/// Attempts at removing a group whose last process may be about to end.
const ATTEMPTS: u32 = 50;

/// Partitions of single CPUs, with the data needed to remove them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Partitions {
    root: PathBuf,
    /// Whether making these partitions switches the cpuset controller on for groups below the root, because it was off.
    switched_on: bool,
    groups: Vec<(CpuId, PathBuf)>,
}

/// Returns the folder where cgroup v2 is mounted: `$ISOCHROME_CGROUP`, else its first mount; `None` if it is not mounted.
pub fn root() -> Option<PathBuf> {
    if let Some(named) = std::env::var_os("ISOCHROME_CGROUP").filter(|value| !value.is_empty()) {
        return Some(named.into());
    }
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let mut fields = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    fields.find(|fields| fields.get(2) == Some(&"cgroup2")).map(|fields| PathBuf::from(fields[1]))
}

/// Writes a file that must exist, in one call; fails with the path and the error.
fn write(path: &Path, text: &str) -> Result<(), String> {
    let written = fs::File::options().write(true).open(path);
    let written = written.and_then(|mut file| io::Write::write_all(&mut file, text.as_bytes()));
    written.map_err(|error| format!("{}: {error}", path.display()))
}

/// Removes a group, if it exists, as soon as its processes have ended; fails if they do not end soon.
fn remove(group: &Path) -> io::Result<()> {
    for _ in 0..ATTEMPTS {
        match fs::remove_dir(group) {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => std::thread::sleep(Duration::from_millis(10)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            other => return other,
        }
    }
    fs::remove_dir(group)
}

impl Partitions {
    /// Returns the partitions that process `owner` would make for `cpus`, without changing anything. Fails with the reason if they cannot
    /// be made.
    pub fn intended(owner: u32, cpus: &[CpuId]) -> Result<Partitions, String> {
        let root = root().ok_or("cgroup v2 is not mounted")?;
        let read = |file: &str| fs::read_to_string(root.join(file)).unwrap_or_default();
        let names = |text: String| text.split_whitespace().any(|controller| controller == "cpuset");
        if !names(read("cgroup.controllers")) {
            return Err("cgroup v2 does not have the cpuset controller here (that of v1 may have it)".to_owned());
        }
        let switched_on = !names(read("cgroup.subtree_control"));
        let group = |cpu: &CpuId| (*cpu, root.join(format!("isochrome-{owner}-cpu{}", cpu.0)));
        Ok(Partitions { switched_on, groups: cpus.iter().map(group).collect(), root })
    }

    /// Makes the partitions. If that fails, [`undo`](Self::undo) removes those that were made before.
    pub fn make(&self) -> Result<(), String> {
        if self.switched_on {
            write(&self.root.join("cgroup.subtree_control"), "+cpuset")?;
        }
        for (cpu, group) in &self.groups {
            fs::create_dir(group).map_err(|error| format!("{}: {error}", group.display()))?;
            write(&group.join("cpuset.cpus"), &cpu.0.to_string())?;
            let state = group.join("cpuset.cpus.partition");
            write(&state, "root")?;
            // If the kernel cannot form the partition, the file reads `root invalid`, with the reason in parentheses.
            let state = fs::read_to_string(state).unwrap_or_default();
            if state.trim() != "root" {
                return Err(format!("CPU {} gets no partition: {}", cpu.0, state.trim()));
            }
        }
        Ok(())
    }

    /// Returns the file by which a process joins the partition of `cpu`; `None` if `cpu` has none.
    pub fn of(&self, cpu: CpuId) -> Option<PathBuf> {
        self.groups.iter().find(|(of, _)| *of == cpu).map(|(_, group)| group.join("cgroup.procs"))
    }

    /// Removes the partitions and so returns their CPUs to all programs; fails with the reason if a group stays.
    pub fn undo(&self) -> Result<(), String> {
        let mut stays = Ok(());
        for (_, group) in &self.groups {
            if let Err(error) = remove(group) {
                // At least the CPU of the group is returned to all programs.
                let _ = write(&group.join("cpuset.cpus.partition"), "member");
                stays = Err(format!(
                    "{}: cannot be removed: {error}\n  hint: end the processes in its cgroup.procs; the next start tries again",
                    group.display()
                ));
            }
        }
        // The kernel lets the controller be switched off even while other groups use it, and they would lose their CPUs.
        if self.switched_on && !self.is_used() {
            let _ = write(&self.root.join("cgroup.subtree_control"), "-cpuset");
        }
        stays
    }

    /// Whether any group below the root is assigned CPUs by the controller.
    fn is_used(&self) -> bool {
        let groups = fs::read_dir(&self.root).into_iter().flatten().flatten();
        let cpus = groups.map(|group| fs::read_to_string(group.path().join("cpuset.cpus")).unwrap_or_default());
        cpus.into_iter().any(|cpus| !cpus.trim().is_empty())
    }
}
