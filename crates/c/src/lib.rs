//! C interface of isochrome. `include/isochrome.h`, which is written by hand, documents the interface; `tests/header.rs` compiles a C program
//! with that header and this library, and runs it.
//!
//! Every function converts pointers into references, lists and results, and calls `isochrome-host`.

#![allow(unsafe_code)]

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_uint, c_void};
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::process::{Command, Stdio};
use std::ptr;
use std::slice;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use isochrome_host::color::pagemap;
use isochrome_host::color::pool::{ColoredRegion, FramePool};
use isochrome_host::color::{Collection, ColorError, Survey, Target};
use isochrome_host::machine::setting::{RealtimeRequest, allowed_cpus};
use isochrome_host::machine::sysfs::Sysfs;
use isochrome_host::run::marks::{Edge, MarkWriter};
use isochrome_host::server::places::Placing;
use isochrome_host::server::socket::{self, Ask};
use isochrome_host::sys::clock;
use isochrome_host::sys::memory::page_bytes;
use isochrome_model::palette::Palette;
use isochrome_model::units::{Bytes, Color};

/// Largest number of surveys; a further one is made only while the result is in doubt.
const ATTEMPTS: u32 = 3;

/// Handle to memory of known colors; the header calls it `struct isochrome`.
pub struct Isochrome {
    pool: FramePool,
    palette: Palette,
    /// Regions that were allocated, by their address.
    regions: Mutex<BTreeMap<usize, ColoredRegion>>,
}

impl Isochrome {
    fn open(level: Option<u8>, memory: Bytes) -> Result<Isochrome, String> {
        if !clock::usable() {
            return Err("this processor's counter cannot be read in order (no RDTSCP)\n  hint: in a virtual machine, ask the host to pass it on".to_owned());
        }
        fn message(error: impl ToString) -> String {
            error.to_string()
        }
        let sysfs = Sysfs::system();
        let (machine, _) = sysfs.machine().map_err(message)?;
        let processor = sysfs.processor().map_err(message)?;
        let cpu = *allowed_cpus().map_err(message)?.last().ok_or("this process may run on no CPU")?;
        let target = Target::of(&machine, level, cpu).map_err(message)?;
        let _pinned = RealtimeRequest::new().pin(cpu).apply();
        let mut doubt = String::new();
        for _ in 0..ATTEMPTS {
            let survey = Survey::start(target, memory, &processor, fastrand::u64(..));
            let mut survey = match survey {
                Err(error) if error.may_pass() => {
                    doubt = error.to_string();
                    continue;
                }
                survey => survey.map_err(message)?,
            };
            survey.classify(survey.pages_at_most()).map_err(message)?;
            let verification = survey.verify();
            let Collection { arena, inference, .. } = survey.finish();
            if inference.doubts.is_empty() && verification.holds() {
                let pool = FramePool::new(arena, &inference.page_colors, inference.palette.colors);
                return Ok(Isochrome { pool, palette: inference.palette, regions: Mutex::default() });
            }
            doubt = inference.doubts.first().map_or("a color fails an eviction test".to_owned(), ToString::to_string);
        }
        Err(format!("the colors are in doubt: {doubt}\n  hint: try again when the machine is less busy"))
    }

    fn regions(&self) -> MutexGuard<'_, BTreeMap<usize, ColoredRegion>> {
        // A panic while the map is locked leaves the map intact, so the map of a poisoned lock can still be used.
        self.regions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn alloc(&self, colors: &[u16], bytes: usize) -> Result<usize, ColorError> {
        let colors: Vec<Color> = colors.iter().copied().map(Color).collect();
        let region = self.pool.take(&colors, bytes.div_ceil(page_bytes()))?;
        let address = region.arena().address();
        self.regions().insert(address, region);
        Ok(address)
    }

    fn color_of(&self, address: usize) -> Option<Color> {
        if let Some((start, region)) = self.regions().range(..=address).next_back()
            && let Some(color) = region.page_colors().nth((address - start) / page_bytes())
        {
            return Some(color);
        }
        let page = (address / page_bytes()) as u64;
        let mut found = Vec::new();
        pagemap::resident(&File::open("/proc/self/pagemap").ok()?, page..page + 1, &mut found).ok()?;
        self.palette.color_of(found.first()?.frame?)
    }
}

thread_local! {
    static ERROR: RefCell<CString> = RefCell::default();
}

fn fail(text: impl ToString) {
    // A C string ends at its first zero byte, so zero bytes in the message become spaces.
    let text = CString::new(text.to_string().replace('\0', " ")).unwrap_or_default();
    ERROR.with(|error| *error.borrow_mut() = text);
}

/// Measures the colors of memory and returns a handle; null if that fails. See the header.
#[unsafe(no_mangle)]
pub extern "C" fn isochrome_open(level: c_uint, bytes: usize) -> *mut Isochrome {
    let Ok(level) = u8::try_from(level) else {
        fail(format!("there is no cache level {level}\n  hint: 0 is the level that isochrome would color"));
        return ptr::null_mut();
    };
    match Isochrome::open((level > 0).then_some(level), Bytes(bytes as u64)) {
        Ok(isochrome) => Box::into_raw(Box::new(isochrome)),
        Err(error) => {
            fail(error);
            ptr::null_mut()
        }
    }
}

/// Frees the handle and all memory that came from it. See the header.
///
/// # Safety
///
/// `isochrome` is null, or came from [`isochrome_open`] and was not closed. Neither the handle nor memory from it is used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isochrome_close(isochrome: *mut Isochrome) {
    if !isochrome.is_null() {
        // SAFETY: by the contract `isochrome` is the box that `isochrome_open` gave away, and nobody else uses it.
        drop(unsafe { Box::from_raw(isochrome) });
    }
}

/// Returns the number of colors. See the header.
///
/// # Safety
///
/// `isochrome` came from [`isochrome_open`] and was not closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isochrome_color_count(isochrome: *const Isochrome) -> c_uint {
    // SAFETY: by the contract `isochrome` points to a living value, which is only ever shared.
    unsafe { &*isochrome }.pool.colors()
}

/// Returns the number of free pages of a color; 0 for a color that does not exist. See the header.
///
/// # Safety
///
/// `isochrome` came from [`isochrome_open`] and was not closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isochrome_pages_left(isochrome: *const Isochrome, color: u16) -> usize {
    // SAFETY: by the contract `isochrome` points to a living value, which is only ever shared.
    unsafe { &*isochrome }.pool.available().get(usize::from(color)).copied().unwrap_or(0)
}

/// Allocates memory of chosen colors; null if that fails. See the header.
///
/// # Safety
///
/// `isochrome` came from [`isochrome_open`] and was not closed; `colors` points to `color_count` numbers, or `color_count` is 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isochrome_alloc(
    isochrome: *mut Isochrome,
    colors: *const u16,
    color_count: usize,
    bytes: usize,
) -> *mut c_void {
    // SAFETY: by the contract `isochrome` points to a living value, which is only ever shared, and `colors` to `color_count` numbers. The
    // pointer of an empty list may be null, which no slice may be, so it is not used.
    let (isochrome, colors) =
        unsafe { (&*isochrome, if color_count == 0 { &[][..] } else { slice::from_raw_parts(colors, color_count) }) };
    match isochrome.alloc(colors, bytes) {
        // Rust does not access the mapping while the caller has its address.
        Ok(address) => ptr::with_exposed_provenance_mut(address),
        Err(error) => {
            fail(error);
            ptr::null_mut()
        }
    }
}

/// Frees memory that [`isochrome_alloc`] returned; -1 if `memory` did not come from there. See the header.
///
/// # Safety
///
/// `isochrome` came from [`isochrome_open`] and was not closed. `memory`, if it came from [`isochrome_alloc`], is not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isochrome_free(isochrome: *mut Isochrome, memory: *mut c_void) -> c_int {
    // SAFETY: by the contract `isochrome` points to a living value, which is only ever shared.
    let isochrome = unsafe { &*isochrome };
    if memory.is_null() || isochrome.regions().remove(&memory.addr()).is_some() {
        return 0;
    }
    fail(
        "this memory was not handed out here, or was given back already\n  hint: pass what isochrome_alloc returned, once",
    );
    -1
}

/// Returns the color of the page at `address`; -1 if the color is not known. See the header.
///
/// # Safety
///
/// `isochrome` came from [`isochrome_open`] and was not closed. `address` may have any value.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isochrome_color_of(isochrome: *const Isochrome, address: *const c_void) -> c_int {
    // SAFETY: by the contract `isochrome` points to a living value, which is only ever shared.
    match unsafe { &*isochrome }.color_of(address.addr()) {
        Some(color) => c_int::from(color.0),
        None => {
            fail("the color of this page is not known\n  hint: it is for memory from isochrome_alloc");
            -1
        }
    }
}

/// Runs `isochrome recolor` for this process. If the command fails, returns what it printed on standard error.
fn recolor_me(colors: &str, palette: Option<&OsStr>) -> Result<(), String> {
    let program = std::env::var_os("ISOCHROME").unwrap_or_else(|| "isochrome".into());
    let mut command = Command::new(&program);
    command.args(["recolor", &std::process::id().to_string(), "--json", "--colors", colors]);
    if let Some(palette) = palette {
        command.arg("--palette").arg(palette);
    }
    let output = command.stdin(Stdio::null()).output().map_err(|error| {
        format!(
            "{}: {error}\n  hint: put the isochrome command into PATH, or its path into the environment variable ISOCHROME",
            program.display()
        )
    })?;
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).trim_end().to_owned()) }
}

/// Moves all movable memory of this process onto `colors`; -1 if that fails. See the header.
///
/// # Safety
///
/// `colors` is a string that ends with a zero byte. `palette` is null or such a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isochrome_recolor_me(colors: *const c_char, palette: *const c_char) -> c_int {
    // SAFETY: by the contract `colors` points to a string that ends with a zero byte, and so does `palette` unless it is null.
    let (colors, palette) = unsafe { (CStr::from_ptr(colors), (!palette.is_null()).then(|| CStr::from_ptr(palette))) };
    let palette = palette.map(|palette| OsStr::from_bytes(palette.to_bytes()));
    match recolor_me(&colors.to_string_lossy(), palette) {
        Ok(()) => 0,
        Err(error) => {
            fail(error);
            -1
        }
    }
}

/// Has the memory server keep memory of this process on some of its colors; -1 if it does not. See the header.
///
/// # Safety
///
/// `colors` is null or a string that ends with a zero byte. `memory` is not dereferenced.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isochrome_place(memory: *const c_void, bytes: usize, colors: *const c_char) -> c_int {
    // SAFETY: by the contract `colors` points to a string that ends with a zero byte unless it is null.
    let colors = (!colors.is_null()).then(|| unsafe { CStr::from_ptr(colors) }.to_string_lossy().into_owned());
    let placing = Placing { pid: None, start: memory.addr() as u64, bytes: bytes as u64, colors };
    match socket::ask_server(Ask::Place(placing)) {
        Ok(_) => 0,
        Err(error) => {
            fail(error.to_string());
            -1
        }
    }
}

fn mark(edge: Edge) {
    static WRITER: OnceLock<Option<MarkWriter>> = OnceLock::new();
    if let Some(writer) = WRITER.get_or_init(MarkWriter::inherited) {
        writer.mark(edge);
    }
}

/// Marks the beginning of a job of the calling thread. See the header.
#[unsafe(no_mangle)]
pub extern "C" fn isochrome_job_begin() {
    mark(Edge::Begin);
}

/// Marks the end of a job of the calling thread. See the header.
#[unsafe(no_mangle)]
pub extern "C" fn isochrome_job_end() {
    mark(Edge::End);
}

/// Returns the message of the last error in this thread; empty if there was none. See the header.
#[unsafe(no_mangle)]
pub extern "C" fn isochrome_error() -> *const c_char {
    ERROR.with(|error| error.borrow().as_ptr())
}
