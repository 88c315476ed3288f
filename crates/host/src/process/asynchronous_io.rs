//! Whether the kernel or a device may access the memory of a process while its threads stand still: descriptors, pinned memory, direct I/O.

use std::fs;
use std::time::Duration;

use isochrome_model::units::Bytes;

use super::regions::{DEVICE, RING, Region};
use super::{Pid, ProcessError, ThreadState, status_of};

/// Open files of a process that are relevant to a recoloring.
#[derive(Clone, Debug, Default)]
pub struct Descriptors {
    /// Descriptors that are userfaultfds.
    pub userfaults: Vec<i32>,
    /// Descriptors that are io_urings.
    pub rings: Vec<i32>,
    /// Number of descriptors of any kind, as the kernel counts them; 0 before Linux 6.2.
    pub count: u64,
}

/// File systems whose direct I/O takes references to pages instead of pinning them. [Linux, callers of iov_iter_get_pages2 and
/// iov_iter_get_pages_alloc2; fuse before Linux 6.14]
const UNPINNED: [&str; 8] = ["nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "fuse", "virtiofs"];

/// Target of the link in /proc/PID/fd of a descriptor that is a userfaultfd.
const USERFAULT: &str = "anon_inode:[userfaultfd]";

/// Name of the mapping of a ring of performance events.
const EVENTS: &str = "anon_inode:[perf_event]";

impl Pid {
    /// Returns the open files of the process that are relevant to a recoloring.
    pub fn descriptors(self) -> Result<Descriptors, ProcessError> {
        let mut found = Descriptors { count: self.descriptor_count()?, ..Descriptors::default() };
        for entry in fs::read_dir(self.path("fd")).map_err(self.failed("fd"))?.flatten() {
            let Ok(target) = fs::read_link(entry.path()) else { continue };
            let list = match target.to_str() {
                Some(USERFAULT) => &mut found.userfaults,
                Some("anon_inode:[io_uring]") => &mut found.rings,
                _ => continue,
            };
            list.extend(entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()));
        }
        Ok(found)
    }

    /// Whether the process has an io_uring, or more than `most` descriptors, which are too many to examine.
    pub fn has_rings(self, most: usize) -> Result<bool, ProcessError> {
        let few = fs::read_dir(self.path("fd")).map_err(self.failed("fd"))?.nth(most).is_none();
        Ok(!few || !self.descriptors()?.rings.is_empty())
    }

    /// Returns the number of descriptors of the process; 0 before Linux 6.2.
    pub fn descriptor_count(self) -> Result<u64, ProcessError> {
        Ok(fs::metadata(self.path("fd")).map_err(self.failed("fd"))?.len())
    }

    /// Whether `descriptor` of the process is a userfaultfd.
    pub fn is_userfault(self, descriptor: i32) -> bool {
        fs::read_link(self.path(&format!("fd/{descriptor}"))).is_ok_and(|target| target.as_os_str() == USERFAULT)
    }

    /// Returns a sign that the kernel or a device may access the memory of the process while its threads stand still, worded for a message;
    /// `None` if there is no sign.
    pub fn asynchronous_io(self, regions: &[Region]) -> Result<Option<&'static str>, ProcessError> {
        let threads = self.thread_numbers()?;
        if threads.into_iter().any(|thread| self.thread_state(thread).is_some_and(ThreadState::is_kernel_worker)) {
            return Ok(Some("threads of the kernel"));
        }
        if !self.descriptors()?.rings.is_empty() {
            return Ok(Some("an io_uring"));
        }
        if self.pinned()?.0 > 0 {
            return Ok(Some("pinned memory"));
        }
        Ok(regions.iter().find_map(|region| match region.immovable {
            Some(RING) => Some("asynchronous I/O"),
            Some(DEVICE) => Some("memory of a device"),
            _ => None,
        }))
    }

    /// Returns the amount of memory of the process that is pinned for devices.
    fn pinned(self) -> Result<Bytes, ProcessError> {
        let status = self.status("VmPin")?;
        let kib = status.split_ascii_whitespace().next().and_then(|kib| kib.parse::<u64>().ok());
        Ok(Bytes(kib.unwrap_or(0) * 1024))
    }

    /// Returns the type of a file system that does direct I/O without pinning pages, if the process has a file open there for direct I/O;
    /// `None` if it has no such file open. The kernel would move such pages although they are in use.
    pub fn unpinned_direct_io(self) -> Result<Option<String>, ProcessError> {
        let mut mounts = None;
        for entry in fs::read_dir(self.path("fdinfo")).map_err(self.failed("fdinfo"))?.flatten() {
            let Ok(info) = fs::read_to_string(entry.path()) else { continue };
            let flags = i32::from_str_radix(status_of(&info, "flags"), 8).unwrap_or(0);
            if flags & libc::O_DIRECT == 0 {
                continue;
            }
            if mounts.is_none() {
                mounts = Some(self.text("mountinfo")?);
            }
            let kind = mounts.as_deref().and_then(|mounts| file_system_of(mounts, status_of(&info, "mnt_id")));
            let base = |kind: &str| kind.split('.').next().map(str::to_owned);
            if let Some(kind) = kind.and_then(base).filter(|kind| UNPINNED.contains(&kind.as_str())) {
                return Ok(Some(kind));
            }
        }
        Ok(None)
    }

    /// Returns how much memory of the process is pinned by anything other than buffers that it registered with io_urings and rings of performance
    /// events. Such a ring is the kernel's own memory, but counts as pinned where the rings of its user are larger than the kernel permits to
    /// each user (kernel.perf_event_mlock_kb).
    pub fn pinned_otherwise(self) -> Result<Bytes, ProcessError> {
        let pinned = self.pinned()?;
        if pinned.0 == 0 {
            return Ok(pinned);
        }
        let rings = self.descriptors()?.rings;
        let registered = rings.into_iter().map(|ring| self.registered(ring)).sum::<Result<u64, ProcessError>>()?;
        let mappings = self.mappings()?;
        let of_events = mappings.iter().filter(|region| region.name == EVENTS).map(|region| region.end - region.start);
        Ok(Bytes(pinned.0.saturating_sub(registered + of_events.sum::<u64>())))
    }

    /// Returns the most bytes that the buffers registered with the io_uring `ring` can pin; 0 where the kernel does not list the buffers.
    fn registered(self, ring: i32) -> Result<u64, ProcessError> {
        /// Attempts at reading the buffers, which the kernel leaves out while the ring is busy.
        const ATTEMPTS: u32 = 20;
        for _ in 0..ATTEMPTS {
            let text = self.text(&format!("fdinfo/{ring}"))?;
            if let Some(bytes) = registered_buffers(&text) {
                return Ok(bytes);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(0)
    }
}

/// Returns the file system type that /proc/PID/mountinfo names for the mount with the ID `mount`; `None` if there is no such mount.
fn file_system_of<'a>(mountinfo: &'a str, mount: &str) -> Option<&'a str> {
    let line = mountinfo.lines().find(|line| line.split(' ').next() == Some(mount))?;
    // A dash ends the optional fields.
    line.split_once(" - ")?.1.split(' ').next()
}

/// Returns the most bytes that the registered buffers listed in an io_uring's /proc/PID/fdinfo can pin; `None` if the text does not
/// mention buffers at all.
///
/// A buffer in a huge page pins the whole page. [Linux, io_uring/fdinfo.c and io_uring/rsrc.c]
fn registered_buffers(fdinfo: &str) -> Option<u64> {
    const HUGE: u64 = 2 << 20;
    let mut lines = fdinfo.lines().skip_while(|line| !line.starts_with("UserBufs:"));
    let count: usize = lines.next()?.split_ascii_whitespace().nth(1)?.parse().ok()?;
    let mut bytes = 0;
    for line in lines.take(count) {
        // `    0: 0x7f0000000000/65536`, or `    0: <none>`.
        let Some((address, length)) = line.split_once("0x").and_then(|(_, rest)| rest.split_once('/')) else {
            continue;
        };
        let (start, length) = (u64::from_str_radix(address, 16).ok()?, length.trim().parse::<u64>().ok()?);
        bytes += (start + length).next_multiple_of(HUGE) - start / HUGE * HUGE;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn the_file_system_of_an_open_file_is_found_by_its_mount() {
        let mounts = "\
24 1 254:1 / / rw,relatime - ext4 /dev/vda1 rw
241 24 0:51 / /mnt/a\\040b rw,relatime shared:90 master:1 - nfs4 server:/export rw,vers=4.2
242 24 0:52 / /media rw - fuse.sshfs host: rw
";
        let kinds = ["24", "241", "242", "2", ""].map(|mount| file_system_of(mounts, mount));
        assert_eq!(kinds, [Some("ext4"), Some("nfs4"), Some("fuse.sshfs"), None, None]);
    }

    #[test]
    fn direct_io_on_a_local_file_system_is_refused_nothing() {
        let file = tempfile::NamedTempFile::new_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let options = libc::O_DIRECT;
        let direct = std::os::unix::fs::OpenOptionsExt::custom_flags(File::options().read(true), options).open(&file);
        // Not every file system supports direct I/O.
        if let Ok(_direct) = direct {
            assert_eq!(Pid(std::process::id() as i32).unpinned_direct_io().unwrap(), None);
        }
    }

    #[test]
    fn registered_buffers_are_counted_as_all_that_they_may_pin() {
        let text = "pos:\t0\nUserFiles:\t1\nUserBufs:\t3\n    0: 0x7f0000000000/65536\n    1: <none>\n    2: 0x7f00001ff000/8192\nPollList:\n";
        // The first buffer pins one huge page, and the last one two, because it lies across a border.
        assert_eq!(registered_buffers(text), Some(6 << 20));
        assert_eq!(registered_buffers("UserBufs:\t0\n"), Some(0));
        assert_eq!(registered_buffers("SqMask:\t0x3\n"), None);
    }
}
