//! The folder of what lasts until the next boot: the saved palette, the ledger of grants.

use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rustix::process::geteuid;

use crate::error::HostError;
use crate::sysfs::Sysfs;

/// `$ISOCHROME_RUNTIME_DIR`, else /run/isochrome for root and `$XDG_RUNTIME_DIR/isochrome` for others; for those without one,
/// /run/isochrome as well, which they may read.
///
/// What is not root's own is not seen by other users.
pub fn folder() -> PathBuf {
    let named = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(folder) = named("ISOCHROME_RUNTIME_DIR") {
        return folder;
    }
    let own = named("XDG_RUNTIME_DIR").filter(|_| !geteuid().is_root());
    own.map_or_else(|| PathBuf::from("/run/isochrome"), |folder| folder.join("isochrome"))
}

/// Makes `folder`, where it is missing.
pub fn make(folder: &Path) -> Result<(), HostError> {
    fs::create_dir_all(folder).map_err(|source| unwritable(folder, source))
}

/// Writes `bytes` to `path`, whose folder is there, as a whole and for good: a reader, or whoever comes after a crash, finds the old
/// file or the new one.
pub fn replace(path: &Path, bytes: &[u8]) -> Result<(), HostError> {
    // A name of its own: another process may be writing the same file.
    let beside = path.with_extension(format!("{}.new", std::process::id()));
    let write = || -> io::Result<()> {
        let mut file = File::create(&beside)?;
        file.set_permissions(Permissions::from_mode(0o644))?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&beside, path)
    };
    write().map_err(|source| {
        let _ = fs::remove_file(&beside);
        unwritable(path, source)
    })
}

/// What the kernel calls this boot; empty where it does not say.
pub fn boot_id() -> String {
    Sysfs::system().text("proc/sys/kernel/random/boot_id").unwrap_or_default()
}

fn unwritable(path: &Path, source: io::Error) -> HostError {
    HostError::Unwritable { path: path.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_as_a_whole_and_nothing_stays_beside_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("palette-l2");
        for text in ["first, and longer", "second"] {
            replace(&path, text.as_bytes()).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        let error = replace(&folder.path().join("absent/file"), b"").unwrap_err();
        assert!(error.to_string().contains("hint:"), "{error}");
    }
}
