//! A made-up machine for tests: a temporary folder that stands for the root of its file system.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use tempfile::TempDir;

use super::Sysfs;

/// The files of a made-up machine, which are removed at the end.
pub(crate) struct Fake {
    root: TempDir,
}

impl Fake {
    /// Makes a machine with these files, each a path below the root and a text.
    pub(crate) fn new(files: &[(&str, &str)]) -> Fake {
        let fake = Fake { root: tempfile::tempdir().unwrap() };
        files.iter().for_each(|(file, text)| fake.write(file, text));
        fake
    }

    pub(crate) fn files(&self) -> Sysfs {
        Sysfs::at(self.root.path())
    }

    pub(crate) fn write(&self, file: &str, text: &str) {
        let path = self.root.path().join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    pub(crate) fn text(&self, file: &str) -> String {
        fs::read_to_string(self.root.path().join(file)).unwrap()
    }

    pub(crate) fn make_executable(&self, file: &str) {
        fs::set_permissions(self.root.path().join(file), fs::Permissions::from_mode(0o755)).unwrap();
    }
}
