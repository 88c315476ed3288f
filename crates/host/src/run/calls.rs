//! Calls of a function in any program, as the kernel reports them by breakpoints that it sets (uprobes). The program is not changed.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use isochrome_model::units::{CpuId, Ns};
use object::{Object as _, ObjectSegment as _, ObjectSymbol as _};

use super::marks::{Edge, Mark};
use crate::process::Pid;
use crate::sys::perf::Ring;

/// Size of the ring of each CPU, which holds about 30 000 calls.
const RING_BYTES: usize = 1 << 21;

/// Most functions with a similar name that an error lists.
const SIMILAR_MAX: usize = 5;

/// Error of recording the calls of a function.
#[derive(Debug, thiserror::Error)]
pub enum CallsError {
    /// The file cannot be read.
    #[error("{path}: {source}\n  hint: the program or library that holds the function, such as /usr/sbin/nginx")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Error from the kernel.
        source: io::Error,
    },
    /// The file is not a program or library.
    #[error("{path}: no program or library: {source}")]
    NoProgram {
        /// The file.
        path: PathBuf,
        /// Error of reading it.
        source: object::Error,
    },
    /// The file has no function of this name.
    #[error("{path}: no function `{name}`{similar}")]
    NoFunction {
        /// The file.
        path: PathBuf,
        /// Name of the function.
        name: String,
        /// Functions with a similar name, and a hint.
        similar: String,
    },
    /// The kernel does not report the calls.
    #[error(
        "calls of `{name}` in {path} are not reported: {source}\n  hint: run as root, on a kernel with CONFIG_UPROBE_EVENTS"
    )]
    Refused {
        /// The file.
        path: PathBuf,
        /// Name of the function.
        name: String,
        /// Error from the kernel.
        source: io::Error,
    },
}

/// Reports when threads of a process enter a function and return from it.
pub struct CallReader {
    /// The ring of each CPU, with the identifiers of entering and returning.
    rings: Vec<(Ring, [u64; 2])>,
    lost: u64,
}

impl CallReader {
    /// Reports the calls of the function `name` of the file `path` on `cpus` from now on.
    pub fn open(cpus: &[CpuId], path: &Path, name: &str) -> Result<CallReader, CallsError> {
        let offset = offset_of(path, name)?;
        let refused = |source| CallsError::Refused { path: path.to_owned(), name: name.to_owned(), source };
        let rings = cpus.iter().map(|cpu| Ring::open_calls(cpu.0, path, offset, RING_BYTES));
        Ok(CallReader { rings: rings.collect::<io::Result<_>>().map_err(refused)?, lost: 0 })
    }

    /// Appends the calls since the last reading by threads of the processes `of`, CPU by CPU: a mark for each entry and each return.
    pub fn read(&mut self, of: &[Pid], marks: &mut Vec<Mark>) {
        for (ring, identifiers) in &mut self.rings {
            ring.drain(|kind, _, body| match parse(kind, body, *identifiers) {
                Some(Record::Call { process, mark }) if of.contains(&Pid(process)) => marks.push(mark),
                Some(Record::Lost(records)) => self.lost += records,
                _ => {}
            });
        }
    }

    /// Returns the number of records that were lost so far.
    pub fn lost(&self) -> u64 {
        self.lost
    }
}

/// A record of a ring.
#[derive(Debug, PartialEq, Eq)]
enum Record {
    /// A thread of `process` has entered the function or returned from it.
    Call { process: i32, mark: Mark },
    /// This number of records was lost.
    Lost(u64),
}

/// Returns the content of a record of kind `kind`; `None` for other kinds, and for records that are cut off. [perf_event_open(2), "MMAP layout"]
fn parse(kind: u32, body: &[u8], [entering, returning]: [u64; 2]) -> Option<Record> {
    const LOST: u32 = 2;
    const SAMPLE: u32 = 9;
    let word = |at: usize| Some(u32::from_ne_bytes(body.get(at..at + 4)?.try_into().ok()?));
    let long = |at: usize| Some(u64::from_ne_bytes(body.get(at..at + 8)?.try_into().ok()?));
    match kind {
        // The identifier of the event, and the number of records lost.
        LOST => Some(Record::Lost(long(8)?)),
        // Process, thread, time, and the identifier of the event.
        SAMPLE => {
            let edge = match long(16)? {
                id if id == entering => Edge::Begin,
                id if id == returning => Edge::End,
                _ => return None,
            };
            let mark = Mark { at: Ns(long(8)?), thread: word(4)?, edge };
            Some(Record::Call { process: word(0)? as i32, mark })
        }
        _ => None,
    }
}

/// Returns the position of the function `name` in the file `path`, in bytes.
fn offset_of(path: &Path, name: &str) -> Result<u64, CallsError> {
    let bytes = fs::read(path).map_err(|source| CallsError::Unreadable { path: path.to_owned(), source })?;
    let file =
        object::File::parse(&*bytes).map_err(|source| CallsError::NoProgram { path: path.to_owned(), source })?;
    let functions = || file.symbols().chain(file.dynamic_symbols()).filter(|symbol| symbol.is_definition());
    let names = || functions().filter_map(|symbol| symbol.name().ok());
    let address = functions().find(|symbol| symbol.name() == Ok(name)).map(|symbol| symbol.address());
    let offset = address.and_then(|address| {
        let around = |start: u64, size: u64| (start..start + size).contains(&address);
        let segment = file.segments().find(|segment| around(segment.address(), segment.size()))?;
        Some(segment.file_range().0 + (address - segment.address()))
    });
    offset.ok_or_else(|| {
        let mut similar: Vec<&str> = names().filter(|other| other.contains(name)).collect();
        similar.sort_unstable_by_key(|other| (other.len(), *other));
        similar.dedup();
        similar.truncate(SIMILAR_MAX);
        let similar = match (similar.is_empty(), names().next()) {
            (false, _) => format!("\n  hint: it has {}", similar.join(", ")),
            (true, Some(_)) => {
                "\n  hint: `nm -D` and `nm` list its functions; those of C++ and Rust have longer names".to_owned()
            }
            (true, None) => {
                "\n  hint: it was stripped of all names; name a function of a library that it calls".to_owned()
            }
        };
        CallsError::NoFunction { path: path.to_owned(), name: name.to_owned(), similar }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_tells_who_entered_or_returned_when() {
        let record = |id: u64| {
            let words = [7u32, 8].into_iter().flat_map(u32::to_ne_bytes);
            words.chain([1000u64, id].into_iter().flat_map(u64::to_ne_bytes)).collect::<Vec<u8>>()
        };
        let mark = |edge| Some(Record::Call { process: 7, mark: Mark { at: Ns(1000), thread: 8, edge } });
        assert_eq!(parse(9, &record(31), [31, 32]), mark(Edge::Begin));
        assert_eq!(parse(9, &record(32), [31, 32]), mark(Edge::End));
        assert_eq!(parse(9, &record(33), [31, 32]), None);
        let lost: Vec<u8> = [31u64, 5].into_iter().flat_map(u64::to_ne_bytes).collect();
        assert_eq!(parse(2, &lost, [31, 32]), Some(Record::Lost(5)));
        for cut in 0..record(31).len() {
            assert_eq!(parse(9, &record(31)[..cut], [31, 32]), None, "{cut}");
        }
    }

    #[test]
    fn a_function_is_found_in_this_program_and_others_are_named() {
        let own = std::env::current_exe().unwrap();
        assert!(offset_of(&own, "main").is_ok_and(|offset| offset > 0));
        let error = offset_of(&own, "rust_begin_unwin").unwrap_err().to_string();
        assert!(error.contains("rust_begin_unwind"), "{error}");
        let error = offset_of(Path::new("/proc/self/stat"), "main").unwrap_err().to_string();
        assert!(error.contains("no program or library"), "{error}");
        let error = offset_of(Path::new("/no/such/file"), "main").unwrap_err().to_string();
        assert!(error.contains("hint"), "{error}");
    }
}
