//! Where programs are put on colors that are bits of the frame number: they need no measurement, and are the same on every machine.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use isochrome_host::color::resident;
use tempfile::TempDir;

use crate::trial::NotRun;

/// A folder with a palette, and journals and grants of its own.
pub struct Stage {
    pub folder: TempDir,
}

impl Stage {
    pub fn new() -> Result<Stage, NotRun> {
        if let Err(error) = resident::mappings(std::process::id()) {
            return Err(NotRun(error.to_string()));
        }
        let folder = tempfile::tempdir().unwrap();
        let palette = r#"{"schema":"isochrome-palette/1","level":2,"colors":16,"rule":"bits"}"#;
        fs::write(folder.path().join("bits.json"), palette).unwrap();
        Ok(Stage { folder })
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The command.
    pub fn tool(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_isochrome"));
        command.env("ISOCHROME_RUNTIME_DIR", self.folder.path());
        command
    }

    /// `verb` with colors.
    pub fn isochrome(&self, verb: &str, colors: &str) -> Command {
        let mut command = self.tool();
        command.args([verb, "--max-memory", "1G", "--colors", colors, "--trust-palette", "--palette"]);
        command.arg(self.path("bits.json"));
        command
    }
}
