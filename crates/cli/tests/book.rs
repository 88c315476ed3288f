//! The examples of the book and of README.md, as tests: one for each page.
//!
//! - `console` blocks hold commands behind `$ `, each with what it prints. They are run in a folder of their own that looks like the
//!   repository. A line of `...` stands for any lines, `[..]` for anything in a line. The exit code is 0, or N with `console,exit=N`.
//! - `console,hardware` blocks need a machine that can be measured, `console,root` blocks root as well. Their output is not compared; they end
//!   with 0 or 3. Where the tool says that it cannot, the test is ignored with what it says.
//! - `toml` blocks are policies and task sets, which the tool can read; `c` blocks compile; `python` blocks are Python.

mod trial;

use std::fs;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Output, Stdio};

use isochrome_model::policy;
use isochrome_model::taskset::programs::declared;
use isochrome_model::taskset::read::{Overrides, task_set};
use snapbox::IntoData;
use trial::{NotRun, Outcome, trial};

/// Longest time for a command, in seconds.
const LIMIT: &str = "120";

/// Folders of the repository that examples find in their folder.
const SHOWN: [&str; 5] = ["crates", "docs", "examples", "machines", "scripts"];

fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

/// A fenced block of a page.
struct Block {
    /// Number of the line after the fence.
    line: usize,
    /// Words behind the fence, which commas separate.
    words: Vec<String>,
    text: String,
}

impl Block {
    fn has(&self, word: &str) -> bool {
        self.words.iter().any(|it| it == word)
    }

    /// Returns the commands, each with its line and what it prints.
    fn commands(&self) -> Vec<(usize, String, String)> {
        let mut found: Vec<(usize, String, String)> = Vec::new();
        for (number, line) in (self.line..).zip(self.text.lines()) {
            match (line.strip_prefix("$ "), found.last_mut()) {
                (Some(command), _) => found.push((number, command.to_owned(), String::new())),
                (None, Some((_, command, printed))) if command.ends_with('\\') && printed.is_empty() => {
                    *command += &format!("\n{line}");
                }
                (None, Some((_, _, printed))) => *printed += &format!("{line}\n"),
                (None, None) => panic!("line {number}: `{line}` comes before any command"),
            }
        }
        found
    }
}

/// Returns the fenced blocks of a page.
fn blocks(page: &str) -> Vec<Block> {
    let mut found = Vec::new();
    let mut open: Option<Block> = None;
    for (number, line) in (1..).zip(page.lines()) {
        match (line.strip_prefix("```"), &mut open) {
            (Some(info), None) => {
                let words = info.split([',', ' ']).filter(|word| !word.is_empty()).map(str::to_owned).collect();
                open = Some(Block { line: number + 1, words, text: String::new() });
            }
            (Some(_), block) => found.extend(block.take()),
            (None, Some(block)) => block.text += &format!("{line}\n"),
            (None, None) => {}
        }
    }
    assert!(open.is_none(), "a block is not closed");
    found
}

/// Returns the paths of README.md and of all pages of the book, from the root of the repository.
fn pages() -> Vec<String> {
    let mut found = vec!["README.md".to_owned()];
    let mut folders = vec!["docs".to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(repository(&folder)).unwrap() {
            let entry = entry.unwrap();
            let path = format!("{folder}/{}", entry.file_name().to_str().unwrap());
            if entry.file_type().unwrap().is_dir() {
                folders.push(path);
            } else if path.ends_with(".md") {
                found.push(path);
            }
        }
    }
    found.sort_unstable();
    found
}

/// A folder in which the commands of a page run one after the other, with a runtime folder of its own.
struct Shell(tempfile::TempDir);

impl Shell {
    fn new() -> Result<Shell, NotRun> {
        // Measured pages lie in the runtime folder, and keep their frames in memory only.
        let folder = tempfile::tempdir_in("/dev/shm").map_err(|error| NotRun(format!("/dev/shm: {error}")))?;
        for name in SHOWN {
            symlink(fs::canonicalize(repository(name)).unwrap(), folder.path().join(name)).unwrap();
        }
        Ok(Shell(folder))
    }

    /// Runs `command`. Standard output has both outputs, as at a terminal.
    fn run(&self, command: &str) -> Output {
        let own = Path::new(env!("CARGO_BIN_EXE_isochrome")).parent().unwrap();
        let folders = std::env::var_os("PATH").unwrap_or_default();
        let folders = std::iter::once(own.to_owned()).chain(std::env::split_paths(&folders));
        let mut shell = Command::new("timeout");
        shell.args(["--kill-after=5", LIMIT, "sh", "-c", &format!("exec 2>&1\n{command}")]);
        shell.env("PATH", std::env::join_paths(folders).unwrap()).env("COLUMNS", "100").stdin(Stdio::null());
        shell.env("ISOCHROME_RUNTIME_DIR", self.0.path().join("runtime"));
        shell.current_dir(self.0.path()).output().expect("timeout and sh are there")
    }
}

/// Runs the blocks of `page` that need no hardware, and compares what they print.
fn deterministic(page: &str, blocks: &[Block]) -> Outcome {
    let shell = Shell::new()?;
    for block in blocks {
        let exit = block.words.iter().find_map(|word| word.strip_prefix("exit=")).unwrap_or("0");
        for (line, command, expected) in block.commands() {
            let output = shell.run(&command);
            let printed = String::from_utf8(output.stdout).expect("output is text");
            // On a busy machine even short work may take long enough to print progress lines.
            let progress = |line: &&str| line.starts_with("isochrome: ") && line.contains(" s so far");
            let printed: String = printed.split_inclusive('\n').filter(|line| !progress(line)).collect();
            let code = output.status.code();
            assert_eq!(code, exit.parse().ok(), "{page}:{line}: exit code of `{command}`, which printed:\n{printed}");
            let place = format!("{page}:{line}: {command}");
            let compared = snapbox::Assert::new().try_eq(Some(&place), printed.into_data(), expected.into_data());
            compared.unwrap_or_else(|error| panic!("{error}"));
        }
    }
    Ok(())
}

/// Runs the blocks of `page` that need hardware, for their exit codes.
fn on_hardware(page: &str, blocks: &[Block]) -> Outcome {
    let shell = Shell::new()?;
    for block in blocks {
        if block.has("root") && !rustix::process::geteuid().is_root() {
            return Err(NotRun("it takes root".to_owned()));
        }
        for (line, command, _) in block.commands() {
            let output = shell.run(&command);
            let printed = String::from_utf8_lossy(&output.stdout).into_owned();
            // clap begins with `error:`, which no machine excuses.
            let refused = printed.lines().find(|line| line.starts_with("isochrome: "));
            match (output.status.code(), refused) {
                (Some(0 | 3), _) => {}
                (Some(1 | 125), Some(why)) => return Err(NotRun(why.to_owned())),
                (code, _) => panic!("{page}:{line}: `{command}` ended with {code:?}: {printed}"),
            }
        }
    }
    Ok(())
}

/// Checks that the TOML of a page can be read, without a field that nobody knows: as a policy if it has classes, else as a task set, with programs or
/// for `plan`. A block without tasks goes on with the block with tasks before it.
fn toml_is_read(page: &str, blocks: &[Block]) -> Outcome {
    let mut before = "";
    for block in blocks {
        let has_tasks = block.text.contains("[[tasks]]");
        let troubles = if block.text.contains("[class.") {
            vec![policy::read(&block.text).err().map(|error| error.to_string()).unwrap_or_default()]
        } else {
            let whole = format!("{}\n{}", block.text, if has_tasks { "" } else { before });
            let unknown = |mut warnings: Vec<String>| {
                warnings.retain(|warning| warning.contains("not a field known"));
                warnings.join("; ")
            };
            let programs = declared(&whole).map(|(_, warnings)| unknown(warnings));
            let tasks = task_set(&whole, Overrides::default()).map(|(_, warnings)| unknown(warnings));
            [programs, tasks].map(|read| read.unwrap_or_else(|error| error.to_string())).to_vec()
        };
        assert!(troubles.iter().any(String::is_empty), "{page}:{}: {}", block.line, troubles.join("\nor: "));
        before = if has_tasks { &block.text } else { before };
    }
    Ok(())
}

/// Passes every block to `command`, which must accept it.
fn accepted(page: &str, blocks: &[Block], command: &[&str]) -> Outcome {
    for block in blocks {
        let mut command = Command::new(command[0])
            .args(&command[1..])
            .stdin(Stdio::piped())
            .spawn()
            .map_err(|error| NotRun(format!("{}: {error}", command[0])))?;
        command.stdin.take().expect("a pipe").write_all(block.text.as_bytes()).unwrap();
        assert!(command.wait().unwrap().success(), "{page}:{}", block.line);
    }
    Ok(())
}

fn main() -> ExitCode {
    let mut trials = Vec::new();
    for page in pages() {
        let mut add = |what: &str, blocks: Vec<Block>, test: fn(&str, &[Block]) -> Outcome| {
            if !blocks.is_empty() {
                let (name, page) = (format!("{what}_of_{page}").leak(), page.clone());
                trials.push(trial(name, move || test(&page, &blocks)));
            }
        };
        let mut commands = Vec::new();
        let mut measuring = Vec::new();
        let mut toml = Vec::new();
        let mut c = Vec::new();
        let mut python = Vec::new();
        for block in blocks(&fs::read_to_string(repository(&page)).unwrap()) {
            match block.words.first().map(String::as_str) {
                Some("console") if block.has("hardware") || block.has("root") => measuring.push(block),
                Some("console") => commands.push(block),
                Some("toml") => toml.push(block),
                Some("c") => c.push(block),
                Some("python") => python.push(block),
                _ => {}
            }
        }
        add("commands", commands, deterministic);
        add("commands_on_hardware", measuring, on_hardware);
        add("toml", toml, toml_is_read);
        add("c", c, |page, blocks| {
            let include = repository("crates/c/include");
            accepted(
                page,
                blocks,
                &["cc", "-std=c11", "-Wall", "-Werror", "-fsyntax-only", "-xc", "-I", include.to_str().unwrap(), "-"],
            )
        });
        add("python", python, |page, blocks| {
            accepted(page, blocks, &["python3", "-c", "import ast, sys; ast.parse(sys.stdin.read())"])
        });
    }
    trial::run(trials)
}
