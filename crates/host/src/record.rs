//! Records the memory accesses of a program: under valgrind's lackey, or under QEMU's user mode with a plugin of our own.
//!
//! Both tools run the program unmodified and pass its accesses on through a pipe, which they open by its name in `/proc`. The program keeps its
//! standard streams. Children that the program starts are not recorded.

use std::env;
use std::ffi::{OsStr, OsString};
use std::io::{self, PipeReader, Read};
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::process::{Command, ExitStatus};
use std::thread;

use isochrome_model::named;
use isochrome_model::trace::{Access, Format, Kind, Reader, TraceError};
use tempfile::TempDir;

/// Source of the plugin.
const PLUGIN: &str = include_str!("record/plugin.c");

named! {
    /// Tool that records a program.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum By, "a tool that records programs" {
        /// QEMU if it and a C compiler are installed, else lackey.
        Auto = "auto",
        /// Valgrind's lackey, which is slower but needs no compiler.
        Lackey = "lackey",
        /// QEMU's user mode, with a plugin.
        Qemu = "qemu",
    }
}

/// Why a program could not be recorded.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// A tool is missing.
    #[error("{tool} is not installed\n  hint: apt-get install {package}")]
    Absent {
        /// Name of the tool.
        tool: String,
        /// Debian package that contains the tool.
        package: &'static str,
    },
    /// The program does not exist.
    #[error("{program}: not found\n  hint: give its path, or a name in PATH")]
    Program {
        /// Program that was given.
        program: String,
    },
    /// The plugin does not compile.
    #[error(
        "cc cannot build the QEMU plugin:\n{message}\n  hint: lackey needs no compiler; apt-get install gcc libc6-dev"
    )]
    Plugin {
        /// Output of the compiler.
        message: String,
    },
    /// A step of the recording failed, such as starting the tool or creating a pipe.
    #[error("{what}: {source}\n  hint: is there room in the temporary folder, and memory for another process?")]
    Start {
        /// Step that failed.
        what: String,
        /// Cause of the failure.
        source: io::Error,
    },
    /// The data from the pipe is not a valid trace.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// The tool recorded no accesses.
    #[error("{tool} recorded nothing and ended with {status}\n  hint: {hint}")]
    Nothing {
        /// Name of the tool.
        tool: String,
        /// Exit status of the tool.
        status: ExitStatus,
        /// Likely reason for the empty recording.
        hint: &'static str,
    },
}

/// Result of a recording.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// Name of the tool that recorded.
    pub tool: String,
    /// Number of accesses recorded.
    pub accesses: u64,
    /// Exit status of the program.
    pub status: ExitStatus,
}

/// Runs a program to its end, and passes its accesses to `each`, in order and in batches. An error of `each` ends the recording.
pub fn record<E: From<RecordError>>(
    by: By,
    program: &OsStr,
    arguments: &[OsString],
    each: &mut dyn FnMut(&[Access]) -> Result<(), E>,
) -> Result<Recorded, E> {
    let path =
        in_path(program).ok_or_else(|| RecordError::Program { program: program.to_string_lossy().into_owned() })?;
    let tool = Tool::find(by)?;
    let (from_tool, to_us) = io::pipe().map_err(|source| RecordError::Start { what: "a pipe".to_owned(), source })?;
    let mut command = tool.command(&format!("/proc/{}/fd/{}", std::process::id(), to_us.as_raw_fd()));
    command.arg(path).args(arguments);
    let failed = |what: &str| {
        let what = what.to_owned();
        move |source| RecordError::Start { what, source }
    };
    let mut child = command.spawn().map_err(failed(tool.name()))?;
    // The tool opens the pipe by the descriptor of our write end, so this end stays open until the tool has ended.
    let waiting = thread::spawn(move || {
        let status = child.wait();
        drop(to_us);
        status
    });
    let mut accesses = 0;
    let mut hand_over = |batch: &[Access]| {
        accesses += batch.len() as u64;
        each(batch)
    };
    // If reading ends early, the read end is closed, and the tool stops at its next write.
    let outcome = match tool {
        Tool::Lackey => read_lackey(from_tool, &mut hand_over),
        Tool::Qemu { .. } => read_records(from_tool, &mut hand_over),
    };
    let status = waiting.join().unwrap_or_else(|_| Err(io::Error::other("the waiting thread is gone")));
    outcome?;
    let status = status.map_err(failed("waiting for it"))?;
    let name = tool.name().to_owned();
    if accesses == 0 {
        let hint = match tool {
            Tool::Lackey => "its message stands above; is it a program of this machine?",
            Tool::Qemu { .. } => {
                "its message stands above; a QEMU newer than 8.2 needs its qemu-plugin.h; or record with lackey"
            }
        };
        return Err(RecordError::Nothing { tool: name, status, hint }.into());
    }
    Ok(Recorded { tool: name, accesses, status })
}

/// An installed tool.
enum Tool {
    Lackey,
    Qemu { plugin: TempDir },
}

/// Name of QEMU's user mode for programs of this machine.
const QEMU: &str = if cfg!(target_arch = "aarch64") { "qemu-aarch64" } else { "qemu-x86_64" };

impl Tool {
    fn find(by: By) -> Result<Tool, RecordError> {
        let absent = |tool: &str, package| RecordError::Absent { tool: tool.to_owned(), package };
        let lackey =
            || in_path("valgrind".as_ref()).map(|_| Tool::Lackey).ok_or_else(|| absent("valgrind", "valgrind"));
        let qemu = || {
            in_path(QEMU.as_ref()).ok_or_else(|| absent(QEMU, "qemu-user"))?;
            in_path("cc".as_ref()).ok_or_else(|| absent("cc", "gcc libc6-dev"))?;
            Ok(Tool::Qemu { plugin: build_plugin()? })
        };
        match by {
            By::Lackey => lackey(),
            By::Qemu => qemu(),
            By::Auto => qemu().or_else(|_: RecordError| lackey()),
        }
    }

    fn name(&self) -> &'static str {
        match self {
            Tool::Lackey => "valgrind",
            Tool::Qemu { .. } => QEMU,
        }
    }

    /// Returns the command that runs the tool and makes it write to `out`. The caller adds the program.
    fn command(&self, out: &str) -> Command {
        let mut command = Command::new(self.name());
        match self {
            Tool::Lackey => {
                command.args([
                    "--tool=lackey",
                    "--trace-mem=yes",
                    "--basic-counts=no",
                    "--child-silent-after-fork=yes",
                    "--quiet",
                ]);
                command.arg(format!("--log-file={out}"));
            }
            Tool::Qemu { plugin } => {
                let mut setting = plugin.path().join(PLUGIN_FILE).into_os_string();
                setting.push(format!(",out={out}"));
                command.arg("-plugin").arg(setting);
            }
        }
        command
    }
}

const PLUGIN_FILE: &str = "plugin.so";

/// Builds the plugin in a new folder, which is removed when the returned value is dropped.
fn build_plugin() -> Result<TempDir, RecordError> {
    let failed = |what: &'static str| move |source| RecordError::Start { what: what.to_owned(), source };
    let folder = tempfile::tempdir().map_err(failed("a temporary folder"))?;
    let source = folder.path().join("plugin.c");
    std::fs::write(&source, PLUGIN).map_err(failed("the plugin's source"))?;
    // Newer headers of QEMU include glib's headers. Without pkg-config the plugin is built without the flags for them.
    let glib = Command::new("pkg-config").args(["--cflags", "glib-2.0"]).output();
    let flags = glib.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    let output = Command::new("cc")
        .args(["-O2", "-shared", "-fPIC", "-fvisibility=hidden", "-o"])
        .arg(folder.path().join(PLUGIN_FILE))
        .arg(&source)
        .args(flags.split_whitespace())
        .arg("-lpthread")
        .output()
        .map_err(failed("cc"))?;
    if output.status.success() {
        return Ok(folder);
    }
    Err(RecordError::Plugin { message: String::from_utf8_lossy(&output.stderr).trim_end().to_owned() })
}

/// Returns the path of `program`, which is a path or the name of a file in PATH; `None` if there is no such file.
fn in_path(program: &OsStr) -> Option<PathBuf> {
    let given = PathBuf::from(program);
    if given.components().count() > 1 {
        return given.is_file().then_some(given);
    }
    env::split_paths(&env::var_os("PATH")?).map(|folder| folder.join(program)).find(|path| path.is_file())
}

fn read_lackey<E: From<RecordError>>(
    input: PipeReader,
    each: &mut dyn FnMut(&[Access]) -> Result<(), E>,
) -> Result<(), E> {
    let mut reader = Reader::new(Format::Lackey, "lackey", input);
    loop {
        let batch = reader.next_batch().map_err(RecordError::from)?;
        if batch.is_empty() {
            return Ok(());
        }
        each(batch)?;
    }
}

/// Size of one record of the plugin, in bytes.
const RECORD: usize = 16;

fn read_records<E: From<RecordError>>(
    mut input: PipeReader,
    each: &mut dyn FnMut(&[Access]) -> Result<(), E>,
) -> Result<(), E> {
    let mut bytes = vec![0; 4096 * RECORD];
    let mut filled = 0;
    let mut batch = Vec::new();
    loop {
        let read = input
            .read(&mut bytes[filled..])
            .map_err(|source| RecordError::Start { what: "reading from the plugin".to_owned(), source })?;
        if read == 0 {
            return Ok(());
        }
        filled += read;
        let (records, _) = bytes[..filled].as_chunks::<RECORD>();
        batch.clear();
        batch.extend(records.iter().filter_map(access));
        each(&batch)?;
        let used = records.len() * RECORD;
        bytes.copy_within(used..filled, 0);
        filled -= used;
    }
}

/// Returns the access that a record of the plugin describes; `None` if the record is malformed.
fn access(record: &[u8; RECORD]) -> Option<Access> {
    let word = |at: usize| u32::from_ne_bytes([record[at], record[at + 1], record[at + 2], record[at + 3]]);
    let (address, _) = record.split_first_chunk()?;
    let kind = *[Kind::Read, Kind::Write, Kind::Fetch].get(word(12) as usize)?;
    Some(Access { address: u64::from_ne_bytes(*address), bytes: word(8), kind })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_of_the_plugin_is_an_access() {
        let mut record = [0; RECORD];
        record[..8].copy_from_slice(&0x1234_5678_9abc_u64.to_ne_bytes());
        record[8..12].copy_from_slice(&4u32.to_ne_bytes());
        record[12..].copy_from_slice(&1u32.to_ne_bytes());
        assert_eq!(access(&record), Some(Access { address: 0x1234_5678_9abc, bytes: 4, kind: Kind::Write }));
        record[12] = 9;
        record[15] = 9;
        assert_eq!(access(&record), None);
    }

    #[test]
    fn a_program_that_is_not_there_is_named() {
        let found = record::<RecordError>(By::Auto, "no-such-program".as_ref(), &[], &mut |_| Ok(()));
        assert!(found.unwrap_err().to_string().contains("no-such-program: not found"));
    }
}
