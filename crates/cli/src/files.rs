//! Reads and writes files, including `-` and standard output.

use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use isochrome_model::evidence::RawFile;
use isochrome_model::{layout, printable};
use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};

use crate::args::Output;

/// Reads the text of `path`, or standard input if it is `-`.
pub fn read(path: &Path) -> Result<String> {
    let mut text = String::new();
    if path == Path::new("-") {
        io::stdin().read_to_string(&mut text).context("standard input")?;
    } else {
        text = fs::read_to_string(path).with_context(|| format!("{} cannot be read", path.display()))?;
    }
    Ok(text)
}

/// Reads the JSON in `path`, whose `schema` must be `schema`.
pub fn read_json<T: DeserializeOwned>(path: &Path, schema: &str) -> Result<T> {
    let text = read_versioned(path, &[schema])?;
    serde_json::from_str(&text).with_context(|| not_whole(path, schema))
}

/// Returns the error text for a file that has the right schema but not the contents that the schema describes.
pub fn not_whole(path: &Path, schema: &str) -> String {
    format!("{}: not a whole file of its kind\n  hint: write the file again: {}", path.display(), written_by(schema))
}

/// Returns the command that writes files whose schema is `schema`, or that shows one.
fn written_by(schema: &str) -> &'static str {
    match schema.split('/').next().unwrap_or_default() {
        "isochrome-profile" => "isochrome profile taskset.toml -o profile.json",
        "isochrome-plan" => "isochrome plan profile.json -o plan.json",
        "isochrome-palette-samples" => "isochrome palette --samples samples.json",
        "isochrome-palette" => "isochrome palette -o palette.json",
        "isochrome-machine" => "isochrome probe -o machine.json",
        "isochrome-described" => "isochrome simulate --machine zen3 --workload matmul",
        _ => "isochrome demo -o report",
    }
}

/// Kinds of files: the schema without its version, the name, and what to type for a file of the kind, which is `@` there.
const KINDS: [(&str, &str, &str); 6] = [
    ("isochrome-profile/", "a profile", "isochrome plan @ -o plan.json"),
    ("isochrome-plan/", "a plan", "isochrome run @"),
    ("isochrome-evidence/", "evidence", "isochrome report @ --text"),
    ("isochrome-palette-samples/", "samples of a palette", "isochrome palette --replay @"),
    ("isochrome-palette/", "a palette", "isochrome exec --palette @ --colors 0-3 ./program"),
    ("isochrome-machine/", "a probed machine", "isochrome plan profile.json --machine @"),
];

/// Returns the error text for the file at `path` that is not `wanted`, such as "a plan". If its text is of another known kind, the hint says what to
/// do with a file of that kind. Otherwise the hint is `hint`.
pub fn of_another_kind(path: &Path, text: &str, wanted: &str, hint: &str) -> String {
    let shown = path.display().to_string();
    match kind(text) {
        Some((_, name, next)) if *name != wanted => {
            format!("{shown}: not {wanted} but {name}\n  hint: {}", next.replace('@', &shown))
        }
        _ => format!("{shown}: not {wanted}\n  hint: {hint}"),
    }
}

/// Returns the entry of [`KINDS`] for a file with this text, if it is JSON with a known schema.
pub fn kind(text: &str) -> Option<&'static (&'static str, &'static str, &'static str)> {
    let schema = serde_json::from_str::<Versioned>(text).ok()?.schema?;
    KINDS.iter().find(|(prefix, ..)| schema.starts_with(prefix))
}

/// The beginning of every file of JSON that isochrome writes.
#[derive(serde::Deserialize)]
struct Versioned {
    schema: Option<String>,
}

/// Reads the text of the JSON in `path`, whose `schema` must be one of `schemas`, the newest first.
pub fn read_versioned(path: &Path, schemas: &[&str]) -> Result<String> {
    let text = read(path)?;
    let shown = path.display();
    let found: Versioned = serde_json::from_str(&text).with_context(|| {
        let writer = written_by(schemas[0]);
        format!("{shown}: not a JSON object\n  hint: choose another file, or write it again: {writer}")
    })?;
    if found.schema.as_deref().is_some_and(|schema| schemas.contains(&schema)) {
        return Ok(text);
    }
    let family = |schema: &str| schema.split('/').next().map(str::to_owned);
    let hint = match kind(&text).filter(|(prefix, ..)| family(prefix) != family(schemas[0])) {
        Some((_, name, next)) => format!("it is {name}: {}", next.replace('@', &shown.to_string())),
        None => "the file was written by another version of isochrome, or is another kind of file".to_owned(),
    };
    let found = found.schema.map_or_else(|| "missing".to_owned(), |schema| format!("`{schema}`"));
    anyhow::bail!("{shown}: schema is {found}, not `{}`\n  hint: {hint}", schemas[0])
}

/// Writes `text` to `path` atomically: through a new file beside it, so that an interrupted write leaves the old one. Other targets, such as
/// `/dev/stdout` or a pipe, are written to directly.
pub fn write(path: &Path, text: &str) -> Result<()> {
    let written = if fs::metadata(path).is_ok_and(|found| !found.is_file()) {
        fs::write(path, text)
    } else {
        // A link stays, and what it points to is replaced.
        let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let mut beside = path.as_os_str().to_owned();
        beside.push(".new");
        let written = fs::write(&beside, text).and_then(|()| fs::rename(&beside, &path));
        if written.is_err() {
            // Half a file helps nobody, least of all on a full disk.
            let _ = fs::remove_file(&beside);
        }
        written
    };
    written.map_err(|error| unwritable(path, error))
}

/// Returns the error that `path` cannot be written.
fn unwritable(path: &Path, error: io::Error) -> anyhow::Error {
    let shown = path.display();
    let hint = match error.kind() {
        io::ErrorKind::StorageFull => "make room (`df -h` shows where there is some), or choose another folder",
        io::ErrorKind::IsADirectory => "it is a folder; name a file in it",
        _ => "does the folder exist, and may you write there?",
    };
    anyhow::Error::new(error).context(format!("{shown}: cannot write\n  hint: {hint}"))
}

/// Fails as [`write()`] would if the folder of `path` does not exist or cannot be written to. Long work checks that before it begins.
pub fn check_writable(path: &Path) -> Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if path.is_dir() {
        return Err(unwritable(path, io::ErrorKind::IsADirectory.into()));
    }
    // What exists and is not a file needs no new file beside it.
    let target = if path.exists() && !path.is_file() { path } else { parent };
    rustix::fs::access(target, rustix::fs::Access::WRITE_OK).map_err(|error| unwritable(path, error.into()))
}

/// Writes the result of `text` to `path`, if there is a path.
pub fn write_if(path: &Option<PathBuf>, text: impl FnOnce() -> String) -> Result<()> {
    path.as_ref().map_or(Ok(()), |path| write(path, &text()))
}

/// Writes samples to `path`, and returns the entry about that file for the evidence.
pub fn write_raw(path: &Path, samples: &str) -> Result<RawFile> {
    write(path, samples)?;
    Ok(RawFile { path: path.display().to_string(), sha256: sha256(samples) })
}

/// Creates `folder` and its parent folders where they are missing.
pub fn make_folder(folder: &Path) -> Result<()> {
    let shown = folder.display();
    fs::create_dir_all(folder).with_context(|| format!("{shown}: cannot create\n  hint: choose another folder with -o"))
}

/// Returns the SHA-256 of the file at `path`, which may be larger than memory, in hexadecimal.
pub fn sha256_of(path: &Path) -> Result<String> {
    let shown = path.display();
    let mut file = fs::File::open(path).with_context(|| format!("{shown}"))?;
    let (mut hash, mut buffer) = (Sha256::new(), vec![0; 1 << 16]);
    loop {
        match file.read(&mut buffer).with_context(|| format!("{shown}"))? {
            0 => return Ok(hex(hash)),
            length => hash.update(&buffer[..length]),
        }
    }
}

/// Writes `value` to `path` as JSON.
pub fn write_json(path: &Path, value: &impl Serialize) -> Result<()> {
    write(path, &(serde_json::to_string_pretty(value)? + "\n"))
}

/// Writes `value` to `path` as JSON on one line, for files that are too large to be read by people.
pub fn write_json_compact(path: &Path, value: &impl Serialize) -> Result<()> {
    write(path, &(serde_json::to_string(value)? + "\n"))
}

/// Returns the width of lines on standard output: that of the terminal, but at least the width that is used without a terminal.
pub fn width() -> usize {
    let terminal = rustix::termios::tcgetwinsize(io::stdout()).ok();
    terminal.map_or(layout::WIDTH, |size| usize::from(size.ws_col).max(layout::WIDTH))
}

/// Prints `text` on standard output for people: without control sequences for the terminal, and with lines broken that are wider than [`width`].
pub fn print(text: &str) -> Result<()> {
    print_whole(&layout::fit(&printable::lines(text), width()))
}

/// Prints `text`, which is the content of a file, on standard output, without control sequences for the terminal.
pub fn print_whole(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(printable::lines(text).as_bytes()).and_then(|()| out.flush()).map_err(|error| match error.kind() {
        io::ErrorKind::BrokenPipe => NobodyListens.into(),
        _ => error.into(),
    })
}

/// The reader of standard output has closed it, as `head` does.
#[derive(Debug, thiserror::Error)]
#[error("standard output is closed")]
struct NobodyListens;

/// Prints `value` on standard output as one line of JSON.
pub fn print_json(value: &impl Serialize) -> Result<()> {
    print_whole(&(printable::json(&serde_json::to_string(value)?) + "\n"))
}

/// Prints `value` as JSON if `json` is set, else `text`.
pub fn show(json: bool, value: &impl Serialize, text: impl FnOnce() -> String) -> Result<()> {
    if json { print_json(value) } else { print(&text()) }
}

/// Writes `value` to the file that `output` names, if any, and shows it.
pub fn leave(output: &Output, value: &impl Serialize, text: impl FnOnce() -> String) -> Result<()> {
    output.output.as_ref().map_or(Ok(()), |path| write_json(path, value))?;
    show(output.json, value, text)
}

/// Returns `result` with the name of its schema in front. All JSON that isochrome prints or writes begins with such a name.
pub fn versioned<T: Serialize>(schema: &'static str, result: &T) -> impl Serialize {
    #[derive(Serialize)]
    struct Versioned<'a, T> {
        schema: &'static str,
        #[serde(flatten)]
        result: &'a T,
    }
    Versioned { schema, result }
}

/// Whether `error` only means that the reader of standard output has closed it, as `head` does.
pub fn nobody_listens(error: &anyhow::Error) -> bool {
    error.is::<NobodyListens>()
}

/// Returns the SHA-256 of `content`, in hexadecimal.
pub fn sha256(content: impl AsRef<[u8]>) -> String {
    hex(Sha256::new_with_prefix(content))
}

/// Returns the hash of everything that `hash` has taken in, in hexadecimal.
fn hex(hash: Sha256) -> String {
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}
