//! Files that make settings at every start: one for sysctl and one for systemd-tmpfiles.
//!
//! Each setting has a comment with its former value, so that the file can be undone when nothing else remembers it. A file counts as
//! isochrome's only as a whole: it is removed if its text is exactly what isochrome writes for the settings in its comments.

use std::fs;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::Setting;
use crate::machine::distribution::{sysctl_file, tmpfiles_file};
use crate::machine::sysfs::Sysfs;

/// First line of the files that make the settings at every start.
const HEADER: &str = "# Made by `isochrome doctor --fix --persistent`; `isochrome doctor --undo` removes this file.\n";
/// Start of a line that records a former value in such a file.
const FORMER: &str = "# former: ";

/// A setting that was made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Made {
    /// The file, below the root.
    pub(super) file: String,
    /// Text to write in order to restore the former value.
    pub(super) before: String,
    /// The value that was written.
    pub(super) now: String,
}

impl Made {
    pub(super) fn setting(&self) -> Setting {
        Setting::of_file(&self.file, &self.now)
    }

    /// Whether the file is a setting of the kernel, and not another file that a damaged journal names.
    pub(super) fn is_plausible(&self) -> bool {
        let is_setting = self.file.starts_with("proc/sys/") || self.file.starts_with("sys/");
        is_setting && !self.file.split('/').any(|part| part == "..") && !self.now.contains('\n')
    }
}

/// A file that makes settings at every start.
#[derive(Debug)]
pub(super) struct DropIn {
    path: &'static str,
    /// Whether the settings in the file are those of sysctl. Otherwise they are files of /sys.
    is_sysctl: bool,
}

impl DropIn {
    const SYSCTL: DropIn = DropIn { path: "/etc/sysctl.d/60-isochrome.conf", is_sysctl: true };
    const FILES: DropIn = DropIn { path: "/etc/tmpfiles.d/60-isochrome.conf", is_sysctl: false };

    /// Returns the files that isochrome may have written.
    pub(super) fn possible() -> [DropIn; 2] {
        [DropIn::SYSCTL, DropIn::FILES]
    }

    /// Returns the files that this machine applies when it starts.
    pub(super) fn all(files: &Sysfs) -> Vec<DropIn> {
        let read = [sysctl_file(files), tmpfiles_file(files)];
        DropIn::possible().into_iter().filter(|file| read.contains(&Some(file.path))).collect()
    }

    pub(super) fn takes(&self, made: &Made) -> bool {
        made.file.starts_with("proc/sys/") == self.is_sysctl
    }

    /// Returns the text of a file with these settings.
    pub(super) fn text(lines: &[Made]) -> String {
        let line = |made: &Made| {
            let former = serde_json::to_string(made).expect("a setting is plain data");
            format!("{FORMER}{former}\n{}\n", made.setting().line())
        };
        HEADER.to_owned() + &lines.iter().map(line).collect::<String>()
    }

    /// Returns the path of the file on the machine of `files`.
    pub(super) fn path(&self, files: &Sysfs) -> PathBuf {
        files.path(self.path.trim_start_matches('/'))
    }

    fn read(&self, files: &Sysfs) -> Option<String> {
        fs::read_to_string(self.path(files)).ok()
    }

    /// Whether isochrome has written the file, perhaps with changes by others since.
    pub(super) fn is_ours(&self, files: &Sysfs) -> bool {
        self.read(files).is_some_and(|text| text.starts_with(HEADER))
    }

    /// Returns the settings in the file; `None` if it does not exist or holds anything that isochrome did not write.
    pub(super) fn made(&self, files: &Sysfs) -> Option<Vec<Made>> {
        let text = self.read(files)?;
        let lines = text.lines().filter_map(|line| serde_json::from_str(line.strip_prefix(FORMER)?).ok());
        let lines: Vec<Made> = lines.filter(Made::is_plausible).collect();
        (DropIn::text(&lines) == text).then_some(lines)
    }
}
