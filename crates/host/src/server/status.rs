//! State of the server, as clients get it.

use std::collections::BTreeMap;

use isochrome_model::units::Bytes;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::machine::sysfs::Sysfs;
use crate::recolor::watch::PauseCounts;
use crate::sys::memory::page_bytes;

/// State of the server, as clients get it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Status {
    /// Cache level of the colors.
    pub level: u8,
    /// Number of colors of the level.
    pub colors: u32,
    /// Classes, in the order of the policy.
    pub classes: Vec<ClassStatus>,
    /// Number of processes that are left alone: they belong to no class, or must not be moved.
    pub left_alone: usize,
    /// Number of pages in the reserve of frames; 0 without one, and while memory is short.
    pub reserve_pages: usize,
    /// Number of pages in the reserve whose color is known and needed.
    #[serde(default)]
    pub reserve_known: usize,
}

/// State of a class.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ClassStatus {
    /// Name of the class.
    pub class: String,
    /// Colors of the class, as a list such as `0-3,8`.
    pub colors: String,
    /// Whether no other class has these colors.
    pub exclusive: bool,
    /// Memory of the machine whose frames have these colors, in bytes, including memory that others use.
    pub memory: Bytes,
    /// Pauses of the members since the policy was read.
    pub pauses: PauseCounts,
    /// Members of the class.
    pub members: Vec<MemberStatus>,
}

/// State of a member.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MemberStatus {
    /// Number of the process.
    pub pid: i32,
    /// Name of the process.
    pub name: String,
    /// Number of resident pages at the last inspection.
    pub resident: usize,
    /// Number of resident pages that are on color.
    pub on_color: usize,
    /// Number of resident pages that are off color and can be moved.
    pub off_color: usize,
    /// Number of resident pages that cannot be moved, by reason; they include shared memory and files.
    pub immovable: BTreeMap<String, usize>,
    /// Number of times that pages were moved.
    pub sweeps: u64,
    /// Number of pages that the kernel had given other frames.
    pub drifted: u64,
    /// Longest time for which the process stood still, in ns.
    pub pause_ns_max: u64,
    /// Time from when the process was noticed until it was on its colors, in s; `None` if it is not yet.
    pub seconds_to_colors: Option<f64>,
    /// Number of pages that eviction tests judged, and number of these pages that were on color; `None` if no tests were made.
    pub verified: Option<(usize, usize)>,
    /// Reason why the process could not be moved at the last attempt.
    pub trouble: Option<String>,
}

impl ClassStatus {
    /// Returns the resident memory of the members, if that is more than four fifths of the memory with the colors of the class. There may then be too
    /// few frames for it. [Kim2013, co-partitioning of memory and cache]
    pub fn crowded(&self) -> Option<Bytes> {
        let pages: usize = self.members.iter().map(|member| member.on_color + member.off_color).sum();
        let bytes = Bytes((pages * page_bytes()) as u64);
        (bytes.0 > self.memory.0 / 5 * 4).then_some(bytes)
    }
}

/// Memory in use that the server does not move, so that it may have any color.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unmanaged {
    /// Memory of the kernel: its objects, stacks, page tables and data by CPU.
    pub kernel: Bytes,
    /// Files that the kernel keeps in memory.
    pub files: Bytes,
    /// Shared memory, including that of members.
    pub shared: Bytes,
    /// Memory of programs that are not members, without shared memory.
    pub programs: Bytes,
}

impl Status {
    /// Returns the memory of this machine that is not managed; `None` if the kernel does not report it.
    pub fn unmanaged(&self) -> Option<Unmanaged> {
        self.unmanaged_of(&Sysfs::system())
    }

    /// Returns the memory of the machine of `sysfs` that is not managed; `None` if it is not reported. [proc(5), /proc/meminfo]
    fn unmanaged_of(&self, sysfs: &Sysfs) -> Option<Unmanaged> {
        let of = |name: &str| sysfs.memory(name).map_or(0, |bytes| bytes.0);
        let pages = |class: &ClassStatus| -> usize { class.members.iter().map(|of| of.on_color + of.off_color).sum() };
        let managed = self.classes.iter().map(pages).sum::<usize>() * page_bytes();
        let shared = of("Shmem");
        Some(Unmanaged {
            kernel: Bytes(["Slab", "KernelStack", "PageTables", "Percpu"].into_iter().map(of).sum()),
            files: Bytes((of("Cached") + of("Buffers")).saturating_sub(shared)),
            shared: Bytes(shared),
            programs: Bytes(sysfs.memory("AnonPages")?.0.saturating_sub(managed as u64)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_whose_colors_hold_too_little_memory_is_crowded() {
        let page = page_bytes() as u64;
        let member = MemberStatus { on_color: 50, off_color: 35, ..MemberStatus::default() };
        let of =
            |memory| ClassStatus { memory: Bytes(memory), members: vec![member.clone()], ..ClassStatus::default() };
        assert_eq!(of(100 * page).crowded(), Some(Bytes(85 * page)));
        assert_eq!(of(200 * page).crowded(), None);
    }

    #[test]
    fn what_members_have_is_taken_off_what_programs_have() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("proc")).unwrap();
        let text = "Buffers: 1 kB\nCached: 100 kB\nAnonPages: 4000 kB\nShmem: 30 kB\nSlab: 7 kB\nPageTables: 5 kB\n";
        std::fs::write(folder.path().join("proc/meminfo"), text).unwrap();
        let member = MemberStatus { on_color: 100, off_color: 1, ..MemberStatus::default() };
        let class = ClassStatus { members: vec![member], ..ClassStatus::default() };
        let status = Status { classes: vec![class], ..Status::default() };
        let expected = Unmanaged {
            kernel: Bytes(12 << 10),
            files: Bytes(71 << 10),
            shared: Bytes(30 << 10),
            programs: Bytes((4000 << 10) - 101 * page_bytes() as u64),
        };
        assert_eq!(status.unmanaged_of(&Sysfs::at(folder.path())), Some(expected));
    }
}
