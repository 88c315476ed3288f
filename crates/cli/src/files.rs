//! Reads and writes files, including `-` and standard output.

use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use isochrome_model::evidence::RawFile;
use isochrome_model::printable;
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
        text = fs::read_to_string(path).with_context(|| format!("{}", path.display()))?;
    }
    Ok(text)
}

/// Reads the JSON in `path`, whose `schema` must be `schema`.
pub fn read_json<T: DeserializeOwned>(path: &Path, schema: &str) -> Result<T> {
    let text = read_versioned(path, &[schema])?;
    serde_json::from_str(&text).with_context(|| not_whole(path))
}

/// Returns the error text for a file that has the right schema but not the contents that the schema describes.
pub fn not_whole(path: &Path) -> String {
    format!("{}: not a whole file of its kind\n  hint: write the file again", path.display())
}

/// Reads the text of the JSON in `path`, whose `schema` must be one of `schemas`, the newest first.
pub fn read_versioned(path: &Path, schemas: &[&str]) -> Result<String> {
    let text = read(path)?;
    let shown = path.display();
    #[derive(serde::Deserialize)]
    struct Versioned {
        schema: Option<String>,
    }
    let found: Versioned = serde_json::from_str(&text).with_context(|| {
        format!("{shown}: not a JSON object\n  hint: isochrome writes the file itself; write it again")
    })?;
    anyhow::ensure!(
        found.schema.as_deref().is_some_and(|schema| schemas.contains(&schema)),
        "{shown}: schema is {}, not `{}`\n  hint: the file was written by another version of isochrome, or is another kind of file",
        found.schema.map_or_else(|| "missing".to_owned(), |s| format!("`{s}`")),
        schemas[0]
    );
    Ok(text)
}

/// Writes `text` to `path` atomically: through a new file beside it, so that an interrupted write leaves the old one.
pub fn write(path: &Path, text: &str) -> Result<()> {
    let shown = path.display();
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    let beside = Path::new(&beside);
    fs::write(beside, text)
        .and_then(|()| fs::rename(beside, path))
        .with_context(|| format!("{shown}: cannot write\n  hint: does the folder exist, and may you write there?"))
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

/// Prints `text` on standard output, without what a terminal would obey.
pub fn print(text: &str) -> Result<()> {
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
    print(&(printable::json(&serde_json::to_string(value)?) + "\n"))
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
