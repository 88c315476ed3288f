//! Locks on single bytes of a file, which end with the open file: by closing it, or with the process that holds it.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// Takes a shared lock on byte `at` of `file`, which is open for reading. Nobody ever locks a byte exclusively, so this does not wait.
pub fn share_byte(file: &File, at: u64) -> io::Result<()> {
    control(file, libc::F_OFD_SETLK, libc::F_RDLCK, at).map(drop)
}

/// Whether another open file holds a shared lock on byte `at` of the same file.
pub fn is_byte_shared(file: &File, at: u64) -> io::Result<bool> {
    control(file, libc::F_OFD_GETLK, libc::F_WRLCK, at).map(|found| i32::from(found.l_type) != libc::F_UNLCK)
}

fn control(file: &File, command: libc::c_int, kind: libc::c_int, at: u64) -> io::Result<libc::flock> {
    let at = libc::off_t::try_from(at).map_err(io::Error::other)?;
    let mut lock = libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: at,
        l_len: 1,
        l_pid: 0,
    };
    // SAFETY: both commands take the address of a `flock`, which is a live, exclusively borrowed structure of integers; the kernel
    // reads it, and writes at most the same structure back.
    let result = unsafe { libc::fcntl(file.as_raw_fd(), command, &raw mut lock) };
    if result == 0 { Ok(lock) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shared_byte_is_seen_by_others_until_its_file_is_closed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("bytes");
        let open = || File::options().read(true).write(true).create(true).truncate(false).open(&path).unwrap();
        let (mine, other, watching) = (open(), open(), open());
        share_byte(&mine, 7).unwrap();
        share_byte(&other, 7).unwrap();
        assert!(is_byte_shared(&watching, 7).unwrap());
        assert!(!is_byte_shared(&watching, 8).unwrap());
        drop(mine);
        assert!(is_byte_shared(&watching, 7).unwrap());
        drop(other);
        assert!(!is_byte_shared(&watching, 7).unwrap());
    }
}
