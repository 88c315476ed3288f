//! Memory that belongs to a program alone, without the pages that it shares with files.

use isochrome_model::units::Bytes;

use crate::process::Pid;

/// Memory that a program may use in addition to its declared memory, for data of libraries, stack and allocator.
pub(super) const MEMORY_SLACK: Bytes = Bytes(1 << 20);

/// Returns the resident memory of a process without the pages that it shares with files; `None` if it cannot be read. [proc_pid_statm(5)]
pub(super) fn own_memory(pid: Pid) -> Option<Bytes> {
    let text = pid.text("statm").ok()?;
    let mut pages = text.split_whitespace().skip(1).map(|pages| pages.parse::<u64>().ok());
    let (resident, shared) = (pages.next()??, pages.next()??);
    Some(Bytes(resident.checked_sub(shared)? * rustix::param::page_size() as u64))
}

/// Returns the size of the part of [`own_memory`] that consists of copies of file pages in mappings that the process cannot write; 0 if it is
/// unknown. Moving file pages to colors makes such copies. [proc_pid_smaps(5)]
pub(super) fn copies_of_files(pid: Pid) -> Bytes {
    copies_in(&pid.text("smaps").unwrap_or_default())
}

fn copies_in(smaps: &str) -> Bytes {
    let (mut kib, mut in_file) = (0, false);
    for line in smaps.lines() {
        match line.split_whitespace().collect::<Vec<_>>()[..] {
            ["Anonymous:", anonymous, _] if in_file => kib += anonymous.parse::<u64>().unwrap_or(0),
            [range, permissions, _, _, inode, ..] if !range.ends_with(':') => {
                in_file = inode != "0" && !permissions.contains('w');
            }
            _ => {}
        }
    }
    Bytes(kib << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_what_is_anonymous_in_files_that_cannot_be_written() {
        let mapping =
            |head: &str, anonymous| format!("{head}\nSize: 900 kB\nAnonymous: {anonymous} kB\nVmFlags: rd mr mw me\n");
        let smaps = [
            mapping("55d0c4a00000-55d0c4b00000 r-xp 00001000 fe:00 1234                       /usr/bin/task", 16),
            mapping("55d0c4b00000-55d0c4c00000 rw-p 00002000 fe:00 1234                       /usr/bin/task", 64),
            mapping("55d0c5000000-55d0c5100000 rw-p 00000000 00:00 0                          [heap]", 256),
            mapping("7f0000000000-7f0000100000 r--p 00000000 00:00 0 ", 512),
            mapping("7f0000200000-7f0000300000 r--p 00000000 fe:00 77                         /lib/libc.so.6", 8),
        ];
        assert_eq!(copies_in(&smaps.concat()), Bytes(24 << 10));
    }
}
