//! The runtime folder, with files that last until the next boot: the saved palette, the ledger of grants, and journals.
//!
//! Its files decide which pages of which programs are moved, so they are trusted only if nobody but this user and root could have written
//! them: see [`check`].

use std::fs::{self, DirBuilder, File, Metadata, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use rustix::process::geteuid;

use crate::error::SystemError;
use crate::machine::sysfs::Sysfs;

/// Runtime folder of root, which holds what is known of the machine.
const MACHINES: &str = "/run/isochrome";
/// Folder in memory for runtime folders of ordinary users without a session.
const SHARED_MEMORY: &str = "/dev/shm";
/// Mode bits by which others than the owner may write: the group and everybody.
const WRITABLE_BY_OTHERS: u32 = 0o022;
/// Mode bit of a folder in which only owners may replace files.
const STICKY: u32 = 0o1000;

/// Returns the runtime folder: `$ISOCHROME_RUNTIME_DIR`, else /run/isochrome for root. For other users it is `$XDG_RUNTIME_DIR/isochrome`
/// if the session has made that folder for this user alone, else /dev/shm/isochrome-UID.
///
/// The folder may not exist yet: [`make`] makes it. Nothing in it is trusted before it was [checked](check).
pub fn folder() -> PathBuf {
    folder_of(geteuid().as_raw(), |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from))
}

fn folder_of(user: u32, variable: impl Fn(&str) -> Option<PathBuf>) -> PathBuf {
    if let Some(folder) = variable("ISOCHROME_RUNTIME_DIR") {
        return folder;
    }
    if user == 0 {
        return PathBuf::from(MACHINES);
    }
    let is_own = |folder: &PathBuf| {
        let made = fs::symlink_metadata(folder);
        made.is_ok_and(|made| made.is_dir() && made.uid() == user && made.mode() & 0o7777 == 0o700)
    };
    let of_session = variable("XDG_RUNTIME_DIR").filter(is_own).map(|folder| folder.join("isochrome"));
    of_session.unwrap_or_else(|| Path::new(SHARED_MEMORY).join(format!("isochrome-{user}")))
}

/// Returns the machine's own folder, which root has made and everybody may read; `None` if root has not made it. A user who names a folder
/// in `ISOCHROME_RUNTIME_DIR` gets no other folder.
///
/// Fails with [`SystemError::Untrusted`] if anybody but root can write to it.
pub fn machines() -> Result<Option<PathBuf>, SystemError> {
    let folder = PathBuf::from(MACHINES);
    if std::env::var_os("ISOCHROME_RUNTIME_DIR").is_some_and(|named| !named.is_empty()) || !folder.exists() {
        return Ok(None);
    }
    check_by(&folder, &[0])?;
    Ok(Some(folder))
}

/// Makes `folder` if it is missing, so that only this user may write to it, and checks it.
pub fn make(folder: &Path) -> Result<(), SystemError> {
    if let Some(parent) = folder.parent().filter(|parent| !parent.as_os_str().is_empty() && !parent.exists()) {
        fs::create_dir_all(parent).map_err(|source| unwritable(parent, source))?;
    }
    // Everybody may read what root knows of the machine.
    let mode = if geteuid().is_root() { 0o755 } else { 0o700 };
    match DirBuilder::new().mode(mode).create(folder) {
        Err(source) if source.kind() != io::ErrorKind::AlreadyExists => Err(unwritable(folder, source)),
        _ => check(folder),
    }
}

/// Fails if anybody but this user and root could have written what is in `folder`.
///
/// The path must name a folder itself, not a link. The folder must belong to this user or root, and nobody else may write to it. A folder
/// with the sticky bit, such as /dev/shm, is an exception: its files keep their owners, and [`read`] checks these. Fails with
/// [`SystemError::Untrusted`], also if the folder cannot be inspected.
pub fn check(folder: &Path) -> Result<(), SystemError> {
    check_by(folder, &[0, geteuid().as_raw()])
}

fn check_by(folder: &Path, owners: &[u32]) -> Result<(), SystemError> {
    let untrusted = |reason| SystemError::Untrusted { path: folder.to_owned(), reason };
    // A link whose name ends with a slash would be followed.
    let plain: PathBuf = folder.components().collect();
    let made = fs::symlink_metadata(plain).map_err(|error| untrusted(error.to_string()))?;
    if !made.is_dir() {
        return Err(untrusted("it is not a folder".to_owned()));
    }
    match doubt(&made, owners).filter(|_| made.mode() & STICKY == 0 || !owners.contains(&made.uid())) {
        Some(reason) => Err(untrusted(reason)),
        None => Ok(()),
    }
}

/// Returns why a file that should belong to one of `owners` cannot be trusted; `None` if it can.
fn doubt(made: &Metadata, owners: &[u32]) -> Option<String> {
    if !owners.contains(&made.uid()) {
        return Some(format!("it belongs to user {}", made.uid()));
    }
    (made.mode() & WRITABLE_BY_OTHERS != 0)
        .then(|| format!("others may write it, its mode is {:o}", made.mode() & 0o7777))
}

/// Returns the contents of the file at `path` in a runtime folder; `None` if the file does not exist.
///
/// Fails with [`SystemError::Untrusted`] if anybody but this user and root could have written it, and with [`SystemError::Unreadable`].
pub fn read(path: &Path) -> Result<Option<Vec<u8>>, SystemError> {
    let Some(mut file) = open(path)? else { return Ok(None) };
    let mut contents = Vec::new();
    file.read_to_end(&mut contents).map_err(|source| unreadable(path, source))?;
    Ok(Some(contents))
}

/// Opens the file at `path` in a runtime folder for reading, after the checks of [`read`]; `None` if the file does not exist.
pub fn open(path: &Path) -> Result<Option<File>, SystemError> {
    let folder = path.parent().unwrap_or(Path::new("."));
    if !folder.exists() {
        return Ok(None);
    }
    check(folder)?;
    // A link may lead anywhere, and opening a pipe may block forever.
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = match File::options().read(true).custom_flags(flags.bits() as i32).open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened.map_err(|source| unreadable(path, source))?,
    };
    let made = file.metadata().map_err(|source| unreadable(path, source))?;
    let reason = match made.is_file() {
        true => doubt(&made, &[0, geteuid().as_raw()]),
        false => Some("it is not a file".to_owned()),
    };
    match reason {
        Some(reason) => Err(SystemError::Untrusted { path: path.to_owned(), reason }),
        None => Ok(Some(file)),
    }
}

/// Replaces the file at `path`, whose folder exists, by `bytes`, atomically and durably: readers find the old file or the new one, even
/// after a crash.
pub fn replace(path: &Path, bytes: &[u8]) -> Result<(), SystemError> {
    // The temporary file has a name of its own, because another process may write the same file.
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

/// Returns the kernel's identifier of this boot; empty if it has none.
pub fn boot_id() -> String {
    Sysfs::system().text("proc/sys/kernel/random/boot_id").unwrap_or_default()
}

fn unreadable(path: &Path, source: io::Error) -> SystemError {
    SystemError::Unreadable { path: path.to_owned(), source, hint: "remove it, or become the user who wrote it" }
}

fn unwritable(path: &Path, source: io::Error) -> SystemError {
    SystemError::Unwritable { path: path.to_owned(), source }
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

    /// Makes a folder below `folder`, with this `mode`.
    fn with_mode(folder: &tempfile::TempDir, name: &str, mode: u32) -> PathBuf {
        let path = folder.path().join(name);
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        path
    }

    fn is_refused<T>(result: Result<T, SystemError>, why: &str) -> bool {
        let error = result.err().expect("a refusal");
        let message = error.to_string();
        matches!(error, SystemError::Untrusted { .. }) && message.contains(why) && message.contains("hint:")
    }

    #[test]
    fn the_folder_is_found_without_being_asked_for() {
        let session = tempfile::tempdir().unwrap();
        fs::set_permissions(session.path(), Permissions::from_mode(0o700)).unwrap();
        let user = fs::metadata(session.path()).unwrap().uid();
        let in_session = |name: &str| (name == "XDG_RUNTIME_DIR").then(|| session.path().to_owned());
        let named = |name: &str| (name == "ISOCHROME_RUNTIME_DIR").then(|| PathBuf::from("/named"));
        let own = |user: u32| Path::new("/dev/shm").join(format!("isochrome-{user}"));
        for user in [0, 1000] {
            assert_eq!(folder_of(user, named), Path::new("/named"));
        }
        assert_eq!(folder_of(0, in_session), Path::new("/run/isochrome"));
        assert_eq!(folder_of(1000, |_| None), own(1000));
        // `su` leaves the session of another user in the environment.
        assert_eq!(folder_of(user + 1, in_session), own(user + 1));
        if user != 0 {
            assert_eq!(folder_of(user, in_session), session.path().join("isochrome"));
            fs::set_permissions(session.path(), Permissions::from_mode(0o755)).unwrap();
            assert_eq!(folder_of(user, in_session), own(user));
        }
    }

    #[test]
    fn folders_into_which_others_may_write_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        for mode in [0o700, 0o755, 0o711, 0o1777, 0o1770] {
            make(&with_mode(&folder, &format!("{mode:o}"), mode)).unwrap();
        }
        for mode in [0o777, 0o770, 0o722, 0o702] {
            let path = with_mode(&folder, &format!("{mode:o}"), mode);
            fs::write(path.join("file"), "").unwrap();
            let why = format!("its mode is {mode:o}");
            assert!(
                is_refused(check(&path), &why)
                    && is_refused(make(&path), &why)
                    && is_refused(read(&path.join("file")), &why)
            );
        }
        let made = folder.path().join("a/b");
        make(&made).unwrap();
        assert_eq!(fs::metadata(&made).unwrap().mode() & WRITABLE_BY_OTHERS, 0);
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&made, &link).unwrap();
        assert!(is_refused(check(&link), "not a folder") && is_refused(check(&link.join("")), "not a folder"));
        assert!(is_refused(check(&folder.path().join("absent")), "No such file"));
    }

    #[test]
    fn folders_and_files_of_other_users_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let (own, others) = (with_mode(&folder, "own", 0o700), with_mode(&folder, "others", 0o1777));
        let user = fs::metadata(&own).unwrap().uid();
        assert!(is_refused(check_by(&own, &[user + 1]), &format!("belongs to user {user}")));
        assert!(is_refused(check_by(&others, &[user + 1]), &format!("belongs to user {user}")));
        // Only root can give a folder away.
        if std::os::unix::fs::chown(&others, Some(user + 1), None).is_ok() {
            assert!(is_refused(make(&others), &format!("belongs to user {}", user + 1)));
            let file = own.join("file");
            fs::write(&file, "text").unwrap();
            std::os::unix::fs::chown(&file, Some(user + 1), None).unwrap();
            assert!(is_refused(read(&file), "belongs to user"));
        }
    }

    #[test]
    fn files_are_believed_only_where_nobody_else_could_have_written_them() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        replace(&path("saved"), b"text").unwrap();
        assert_eq!(read(&path("saved")).unwrap().as_deref(), Some(&b"text"[..]));
        assert!(read(&path("absent")).unwrap().is_none() && read(&path("absent/file")).unwrap().is_none());
        fs::set_permissions(path("saved"), Permissions::from_mode(0o666)).unwrap();
        assert!(is_refused(read(&path("saved")), "its mode is 666"));
        assert!(is_refused(read(&with_mode(&folder, "folder", 0o700)), "not a file"));
        let pipe = path("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        assert!(is_refused(read(&pipe), "not a file"));
        std::os::unix::fs::symlink("/etc/passwd", path("link")).unwrap();
        assert!(matches!(read(&path("link")), Err(SystemError::Unreadable { .. })));
    }
}
