//! The kernel as the traced program sees it: counters by a script, and files that describe another machine.

use std::collections::{BTreeMap, HashSet};
use std::path::PathBuf;

use nix::libc;

use super::cache::{Cache, PAGE_BYTES, PRESENT};
use super::counters::{Attributes, Pmu};
use super::tracee::Call;

/// Action at the end of a system call.
pub enum After {
    /// The program gets this result.
    Answer(i64),
    /// The program gets a descriptor of counter `Attributes` in the group of a leader, in place of the one for an event of the kernel.
    Opened(Attributes, Option<i32>),
    /// The kernel has opened an event that stands for a counter; these are the original bytes of the changed attributes.
    StoodIn(u64, Vec<u8>),
    /// Memory of the size of the memory under test was mapped.
    Mapped,
    /// The pagemap of the program was opened, or a part of it was read.
    OpenedPagemap,
    ReadPagemap,
    /// Only the arguments were changed.
    Nothing,
}

/// The kernel as the traced program sees it: its counters, its files, and its answers.
pub struct Kernel {
    pub pmu: Pmu,
    pub cache: Option<Cache>,
    /// Files and folders in whose place others are opened.
    pub files: BTreeMap<String, PathBuf>,
    /// Descriptors of the pagemap of the program.
    pagemaps: HashSet<i32>,
}

impl Kernel {
    pub fn new(pmu: Pmu) -> Kernel {
        Kernel { pmu, cache: None, files: BTreeMap::new(), pagemaps: HashSet::new() }
    }

    /// Changes a call that begins, and returns what is to be done at its end; `None` if the call does not concern this kernel.
    pub fn begin(&mut self, call: &mut Call) -> Option<After> {
        let [first, second, third, ..] = call.arguments;
        let descriptor = first as i32;
        match call.number {
            libc::SYS_perf_event_open => self.open_counter(call),
            libc::SYS_read if self.pmu.has(descriptor) => Some(self.read_counter(call)),
            libc::SYS_ioctl if self.pmu.has(descriptor) => {
                let result = self.pmu.control(descriptor, second as u32, |id| call.write(third, &id.to_ne_bytes()));
                call.number = libc::SYS_getpid;
                Some(After::Answer(result))
            }
            libc::SYS_close => {
                self.pmu.close(descriptor);
                self.pagemaps.remove(&descriptor);
                None
            }
            libc::SYS_mmap => {
                let anonymous = call.arguments[3] & libc::MAP_ANONYMOUS as u64 != 0;
                let cache = self.cache.as_ref()?;
                (anonymous && second == cache.bytes).then_some(After::Mapped)
            }
            libc::SYS_pread64 if self.pagemaps.contains(&descriptor) => Some(After::ReadPagemap),
            libc::SYS_openat
            | libc::SYS_newfstatat
            | libc::SYS_statx
            | libc::SYS_readlinkat
            | libc::SYS_faccessat
            | libc::SYS_faccessat2 => self.other_file(call, 1),
            libc::SYS_open | libc::SYS_stat | libc::SYS_lstat | libc::SYS_access | libc::SYS_readlink => {
                self.other_file(call, 0)
            }
            _ => None,
        }
    }

    /// Completes a call at its end.
    pub fn end(&mut self, after: After, call: &mut Call) {
        match after {
            After::Answer(result) => call.result = result,
            After::Opened(attributes, leader) if call.result >= 0 => {
                self.pmu.opened(call.result as i32, attributes, leader);
            }
            After::StoodIn(address, bytes) => call.write(address, &bytes),
            After::Mapped if call.result > 0 => {
                let cache = self.cache.as_mut().expect("a cache");
                cache.base = Some(call.result as u64);
            }
            After::OpenedPagemap if call.result >= 0 => {
                self.pagemaps.insert(call.result as i32);
            }
            After::ReadPagemap => self.show_frames(call),
            _ => {}
        }
    }

    fn open_counter(&mut self, call: &mut Call) -> Option<After> {
        let [address, pid, _, group, ..] = call.arguments;
        let attributes = Attributes::of(&call.read(address, 48), pid as i32);
        let group = group as i32;
        let leader = self.pmu.has(group).then_some(group);
        if leader.is_none() && !attributes.needs_hardware() {
            return None;
        }
        if let Err(error) = self.pmu.may_open(leader) {
            call.number = libc::SYS_getpid;
            return Some(After::Answer(-i64::from(error)));
        }
        // Counters of a CPU are read by the kernel itself, so an event that it does count stands for them.
        if pid as i32 == -1 {
            let [kind, config] = self.pmu.stand_in(&attributes)?;
            let before = call.read(address, 48);
            call.write(address, &attributes.replaced(&before, kind, config));
            return Some(After::StoodIn(address, before));
        }
        // A descriptor that is good for nothing else.
        (call.number, call.arguments) = (libc::SYS_eventfd2, [0, libc::EFD_CLOEXEC as u64, 0, 0, 0, 0]);
        Some(After::Opened(attributes, leader))
    }

    /// Answers a reading. In place of it, the pages under test are taken out of the page table, so that the next reading sees which of them
    /// were touched since.
    fn read_counter(&mut self, call: &mut Call) -> After {
        let [descriptor, buffer, room, ..] = call.arguments;
        let mut missed = None;
        call.number = libc::SYS_getpid;
        if let Some(cache) = &mut self.cache
            && let Some(base) = cache.base
        {
            let touched = cache.touched(call.pid);
            if !touched.is_empty() {
                missed = Some(cache.touch(&touched));
            }
            (call.number, call.arguments) =
                (libc::SYS_madvise, [base, cache.bytes, libc::MADV_DONTNEED as u64, 0, 0, 0]);
        }
        match self.pmu.read(descriptor as i32, missed) {
            Ok(words) if words.len() as u64 * 8 <= room => {
                let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
                call.write(buffer, &bytes);
                After::Answer(bytes.len() as i64)
            }
            Ok(_) => After::Answer(-i64::from(libc::ENOSPC)),
            Err(error) => After::Answer(-i64::from(error)),
        }
    }

    /// Makes a call open another file, if there is one in place of the file it names.
    fn other_file(&mut self, call: &mut Call, position: usize) -> Option<After> {
        let path = call.text(call.arguments[position]);
        if path == "/proc/self/pagemap" && self.cache.is_some() {
            return Some(After::OpenedPagemap);
        }
        let (of, by) = self.files.iter().find(|(of, _)| path.starts_with(of.as_str()))?;
        let mut other = format!("{}{}", by.display(), &path[of.len()..]).into_bytes();
        other.push(0);
        let address = call.free_stack - (other.len() as u64).next_multiple_of(8);
        call.write(address, &other);
        call.arguments[position] = address;
        Some(After::Nothing)
    }

    /// Writes the frames of the cache's model over those that the kernel reported for the memory under test.
    fn show_frames(&self, call: &Call) {
        let Some(cache) = &self.cache else { return };
        let Some(base) = cache.base else { return };
        let [_, buffer, _, offset, ..] = call.arguments;
        let first = offset / 8;
        for at in 0..call.result.max(0) as u64 / 8 {
            let page = (first + at).wrapping_sub(base / PAGE_BYTES);
            if page < cache.pages() {
                call.write(buffer + 8 * at, &(PRESENT | (cache.frame)(page)).to_ne_bytes());
            }
        }
    }
}
