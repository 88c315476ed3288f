//! The mappings of a process, as the kernel lists them, and why the pages of some must not be moved.

use std::fs::File;

use isochrome_model::placement::Kind;
use isochrome_model::units::Bytes;

use super::{Pid, ProcessError};
use crate::sys::mapping::{self, Found};

/// A mapping of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Region {
    /// First address of the mapping.
    pub start: u64,
    /// First address behind the mapping.
    pub end: u64,
    /// The accesses that the mapping permits.
    pub protection: Protection,
    /// The file, or the kernel's name in brackets; empty for anonymous memory.
    pub name: String,
    /// Whether the mapping is backed by a file.
    pub of_file: bool,
    /// Whether writes to the mapping are visible to others who map the same memory.
    pub shared: bool,
    /// Resident memory of the mapping.
    pub resident: Bytes,
    /// Whether the pages of the mapping are locked.
    pub locked: bool,
    /// Whether part of the mapping is in huge pages.
    pub huge: bool,
    /// Whether the mapping gets no huge pages, as advised (MADV_NOHUGEPAGE).
    pub refuses_huge: bool,
    /// Whether the kernel may merge the pages of the mapping with equal pages (KSM).
    pub mergeable: bool,
    /// Why the pages of the mapping must not be moved; `None` if they may be.
    pub immovable: Option<&'static str>,
}

impl Region {
    /// Whether the mapping is anonymous memory to read and write that is not locked, whose pages UFFDIO_MOVE moves.
    pub fn is_plain_memory(&self) -> bool {
        let plain = Protection { read: true, write: true, execute: false };
        self.protection == plain && !self.of_file && !self.locked
    }

    /// Whether the kernel may join private pages of the mapping to a huge page of `huge` bytes, where the process may have huge pages.
    pub fn may_have_huge_page(&self, huge: u64) -> bool {
        let Protection { read, write, execute } = self.protection;
        let may_be_touched = read || write || execute;
        self.immovable.is_none()
            && !self.refuses_huge
            && may_be_touched
            && self.start.next_multiple_of(huge) + huge <= self.end
    }
}

/// The accesses that a mapping permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Protection {
    /// Whether reading is permitted.
    pub read: bool,
    /// Whether writing is permitted.
    pub write: bool,
    /// Whether executing is permitted.
    pub execute: bool,
}

impl Protection {
    /// Returns the protection as the bits that mprotect(2) takes.
    pub fn bits(self) -> u64 {
        let bit = |set: bool, bit: i32| if set { bit as u64 } else { 0 };
        bit(self.read, libc::PROT_READ) | bit(self.write, libc::PROT_WRITE) | bit(self.execute, libc::PROT_EXEC)
    }
}

impl Region {
    /// Returns the permissions as /proc/PID/maps writes them: `rwx`, and `p`rivate or `s`hared.
    pub fn permissions(&self) -> String {
        let Protection { read, write, execute } = self.protection;
        let letters = [(read, 'r', '-'), (write, 'w', '-'), (execute, 'x', '-'), (self.shared, 's', 'p')];
        letters.into_iter().map(|(set, yes, no)| if set { yes } else { no }).collect()
    }

    /// Returns the kind of memory that is mapped.
    pub fn kind(&self) -> Kind {
        match self.immovable {
            None => Kind::Private,
            Some(DEVICE) => Kind::Device,
            Some(HUGE) => Kind::Hugetlbfs,
            Some(KERNELS) => Kind::Kernel,
            // The kernel lists anonymous shared memory as a file named /dev/zero.
            Some(SHARED) if self.name.starts_with("/dev/zero") => Kind::SharedMemory,
            Some(SHARED) if self.name.starts_with("/memfd:") => Kind::Memfd,
            Some(SHARED) if self.name.starts_with("/dev/shm/") => Kind::DevShm,
            Some(SHARED) if self.name.starts_with("/SYSV") => Kind::SysV,
            Some(SHARED) => Kind::SharedFile,
            Some(_) => Kind::InUse,
        }
    }

    /// Whether `other` is a mapping of the same memory with the same protection, as far as /proc/PID/maps shows.
    fn is_like(&self, other: &Region) -> bool {
        let kind = |region: &Region| (region.protection, region.shared, region.of_file);
        kind(self) == kind(other) && self.name == other.name
    }
}

/// Parses the text of /proc/PID/smaps or /proc/PID/maps, and returns the mappings in ascending order, without overlaps; `None` if the
/// text is malformed.
///
/// The text of maps does not show which memory is resident or locked, nor every reason why a mapping is immovable.
pub fn regions_of(smaps: &str) -> Option<Vec<Region>> {
    let mut regions: Vec<Region> = Vec::new();
    for line in smaps.lines() {
        let mut words = line.split_ascii_whitespace();
        let Some(first) = words.next() else { continue };
        if let Some(key) = first.strip_suffix(':') {
            let region = regions.last_mut()?;
            match key {
                "Rss" => region.resident = Bytes(words.next()?.parse::<u64>().ok()? * 1024),
                "AnonHugePages" => region.huge = words.next()? != "0",
                "ProtectionKey" if words.next() != Some("0") => region.immovable = Some("has a protection key"),
                "VmFlags" => {
                    for flag in words {
                        region.locked |= flag == "lo";
                        region.mergeable |= flag == "mg";
                        region.refuses_huge |= flag == "nh";
                        region.immovable = match immovable_by(flag) {
                            Some(why @ (DEVICE | HUGE)) if region.immovable == Some(SHARED) => Some(why),
                            found => region.immovable.or(found),
                        };
                    }
                }
                _ => {}
            }
            continue;
        }
        let (start, end) = first.split_once('-')?;
        let protection = words.next()?.as_bytes();
        let (_offset, _device, inode) = (words.next()?, words.next()?, words.next()?);
        // The name may hold spaces.
        let name = line.splitn(6, ' ').nth(5).unwrap_or_default().trim_start().to_owned();
        let immovable = match name.as_str() {
            "[vsyscall]" => Some(KERNELS),
            name if name.starts_with("[vvar") || name == "[vdso]" || name == "[uprobes]" => Some(KERNELS),
            "/[aio]" | "/[aio] (deleted)" => Some(RING),
            _ => None,
        };
        let shared = protection.get(3) == Some(&b's');
        regions.push(Region {
            start: u64::from_str_radix(start, 16).ok()?,
            end: u64::from_str_radix(end, 16).ok()?,
            protection: Protection {
                read: protection.first() == Some(&b'r'),
                write: protection.get(1) == Some(&b'w'),
                execute: protection.get(2) == Some(&b'x'),
            },
            name,
            of_file: inode != "0",
            shared,
            resident: Bytes(0),
            locked: false,
            huge: false,
            refuses_huge: false,
            mergeable: false,
            immovable: immovable.or(shared.then_some(SHARED)),
        });
    }
    // The program runs between the reads of parts of the text: a mapping that is joined to the next one between two reads is listed once more.
    let mut behind = 0;
    regions.retain_mut(|region| {
        region.start = region.start.max(behind);
        behind = behind.max(region.end);
        region.start < region.end
    });
    Some(regions)
}

/// Returns why pages of a mapping with the VmFlag `flag` must not be moved; `None` if the flag does not matter. [Linux,
/// Documentation/filesystems/proc.rst, VmFlags]
fn immovable_by(flag: &str) -> Option<&'static str> {
    match flag {
        "sh" => Some(SHARED),
        "pf" | "io" | "mm" => Some(DEVICE),
        "ht" => Some(HUGE),
        "um" | "uw" | "ui" => Some("is served by the program's own userfaultfd"),
        "ss" => Some("is a shadow stack"),
        _ => None,
    }
}

/// Reason for a mapping of huge pages of hugetlbfs.
const HUGE: &str = "is made of huge pages of hugetlbfs";

/// Reason for pages that the kernel maps into every process.
pub const KERNELS: &str = "is the kernel's";

/// Reason for memory that other processes may map as well.
const SHARED: &str = "is shared memory";

/// Reason for a ring of asynchronous I/O requests, as libaio uses it.
pub(super) const RING: &str = "is a ring of asynchronous I/O";

/// Reason for memory of a device.
pub const DEVICE: &str = "is memory of a device";

impl Pid {
    /// Returns the mappings of the process.
    pub fn regions(self) -> Result<Vec<Region>, ProcessError> {
        let text = self.text("smaps")?;
        regions_of(&text).ok_or(ProcessError::Malformed { path: self.path("smaps") })
    }

    /// Returns the mappings of the process, without reading which memory is resident or locked.
    pub fn mappings(self) -> Result<Vec<Region>, ProcessError> {
        regions_of(&self.text("maps")?).ok_or(ProcessError::Malformed { path: self.path("maps") })
    }

    /// Returns the mappings of the process, given its earlier mappings `known`. Mappings in `ours`, an address and a length in
    /// bytes, are left out.
    ///
    /// If the mappings are still the same, `known` is returned unchanged: the kernel takes milliseconds to count the resident memory.
    pub fn regions_now(self, known: Vec<Region>, ours: (u64, u64)) -> Result<Vec<Region>, ProcessError> {
        let theirs = |region: &Region| region.end <= ours.0 || ours.0 + ours.1 <= region.start;
        let mut now = self.mappings()?;
        now.retain(theirs);
        if now.len() == known.len()
            && now
                .iter()
                .zip(&known)
                .all(|(now, known)| (now.start, now.end) == (known.start, known.end) && now.is_like(known))
        {
            return Ok(known);
        }
        let mut regions = self.regions()?;
        regions.retain(theirs);
        Ok(regions)
    }
}

/// Mappings of a process as they are now.
pub struct Mappings {
    pid: Pid,
    maps: File,
    /// All mappings, if the kernel cannot look up single mappings (before Linux 6.11); else `None`.
    all: Option<Vec<Region>>,
}

impl Mappings {
    /// Opens the mappings of `pid`.
    pub fn of(pid: Pid) -> Result<Mappings, ProcessError> {
        let maps = File::open(pid.path("maps")).map_err(pid.failed("maps"))?;
        let mut found = Mappings { pid, maps, all: None };
        match mapping::at(&found.maps, 0) {
            Err(error) if error.raw_os_error() == Some(libc::ENOTTY) => found.all = Some(pid.mappings()?),
            Err(error) => return Err(pid.failed("maps")(error)),
            Ok(_) => {}
        }
        Ok(found)
    }

    /// Returns the first address and the end of the mapping around `address`, if it has the protection and kind of `region`; else `None`.
    ///
    /// The mapping may have grown, shrunk, or been joined to another one since `region` was read.
    pub fn around(&self, address: u64, region: &Region) -> Result<Option<(u64, u64)>, ProcessError> {
        if let Some(all) = &self.all {
            let next = all.partition_point(|now| now.start <= address);
            let now = all[..next].last().filter(|now| address < now.end && now.is_like(region));
            return Ok(now.map(|now| (now.start, now.end)));
        }
        let Protection { read, write, execute } = region.protection;
        let like = |now: &Found| {
            now.permissions == [read, write, execute, region.shared] && (now.inode != 0) == region.of_file
        };
        Ok(self.at(address)?.filter(like).map(|now| (now.start, now.end)))
    }

    /// Returns the end of the mapping around `address`, if that is private and may be read and executed; else `None`.
    pub fn executable_end(&self, address: u64) -> Result<Option<u64>, ProcessError> {
        if let Some(all) = &self.all {
            let found = all.iter().find(|region| (region.start..region.end).contains(&address));
            let wanted = |region: &&Region| region.protection.read && region.protection.execute && !region.shared;
            return Ok(found.filter(wanted).map(|region| region.end));
        }
        let found = self.at(address)?.filter(|now| now.permissions[0] && now.permissions[2] && !now.permissions[3]);
        Ok(found.map(|now| now.end))
    }

    fn at(&self, address: u64) -> Result<Option<Found>, ProcessError> {
        mapping::at(&self.maps, address).map_err(self.pid.failed("maps"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMAPS: &str = "\
55f4c3a00000-55f4c3a21000 rw-p 00000000 00:00 0                          [heap]
Size:                132 kB
Rss:                 100 kB
VmFlags: rd wr mr mw me ac lo sd mg
7f2b3c000000-7f2b3c001000 r-xp 00001000 fe:00 1234                       /usr/lib/a library.so (deleted)
Rss:                   4 kB
ProtectionKey:         0
VmFlags: rd ex mr mw me sd
7f2b3d000000-7f2b3d001000 rw-s 00000000 00:01 77                         /dev/shm/x
Rss:                   4 kB
VmFlags: rd wr sh mr mw me ms sd
7f2b3e000000-7f2b3e001000 rw-p 00000000 00:00 0 
Rss:                   4 kB
ProtectionKey:         3
VmFlags: rd wr mr mw me ac sd
7f2b3f000000-7f2b3f001000 rw-p 00000000 00:00 0 
Rss:                   4 kB
ProtectionKey:         0
VmFlags: rd wr mr mw me ac sd um
7f2b40000000-7f2b40001000 rw-s 00000000 00:10 9                          /dev/a device
Rss:                   4 kB
VmFlags: rd wr sh mr mw me ms pf io dc de dd
7f2b41000000-7f2b41001000 r--p 00000000 00:00 0                          [vvar]
Rss:                   4 kB
VmFlags: rd mr pf io de dd
";

    #[test]
    fn mappings_are_read_with_what_keeps_them_in_place() {
        let regions = regions_of(SMAPS).unwrap();
        assert_eq!(regions.len(), 7);
        let heap = &regions[0];
        assert_eq!((heap.start, heap.end, heap.resident), (0x55f4_c3a0_0000, 0x55f4_c3a2_1000, Bytes(100 << 10)));
        assert!(heap.locked && !heap.of_file && heap.immovable.is_none() && heap.protection.bits() == 3);
        assert!(heap.mergeable && !regions[1].mergeable);
        assert_eq!(regions[1].name, "/usr/lib/a library.so (deleted)");
        assert_eq!(
            regions.iter().map(Region::permissions).collect::<Vec<_>>(),
            ["rw-p", "r-xp", "rw-s", "rw-p", "rw-p", "rw-s", "r--p"]
        );
        assert!(regions[1].of_file && regions[1].immovable.is_none() && regions[1].protection.bits() == 5);
        assert_eq!(regions[2].immovable, Some("is shared memory"));
        assert_eq!(regions[3].immovable, Some("has a protection key"));
        assert_eq!(regions[4].immovable, Some("is served by the program's own userfaultfd"));
        assert_eq!(regions[5].immovable, Some(DEVICE));
        assert_eq!(regions[6].immovable, Some("is the kernel's"));
    }

    #[test]
    fn a_mapping_that_is_listed_again_counts_once() {
        // The first mapping was joined to the next one after it was listed. The last mapping lies below one that is listed before it.
        let text = "1000-3000 rw-p 0 0 0\n1000-5000 rw-p 0 0 0\n8000-9000 rw-p 0 0 0\n7000-8000 rw-p 0 0 0\n";
        let regions = regions_of(text).unwrap();
        let found: Vec<(u64, u64)> = regions.iter().map(|region| (region.start, region.end)).collect();
        assert_eq!(found, [(0x1000, 0x3000), (0x3000, 0x5000), (0x8000, 0x9000)]);
    }

    #[test]
    fn what_is_no_smaps_is_no_list_of_mappings() {
        for text in ["x", "1-2", "zz-1 rw-p 0 0 0", "Rss: 4 kB", "1-2 rw-p 0 0 0\nRss: many"] {
            assert_eq!(regions_of(text), None, "{text}");
        }
    }
}
