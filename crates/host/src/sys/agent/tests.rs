//! Tests of the agent's code on a kernel that moves pages without reporting them, refuses to move them, or is busy.
//!
//! A traced process executes the code on memory whose pages all differ. At chosen system calls the test plays the kernel: it suppresses the call,
//! or lets it happen and replaces what is reported. Before the process ends, every page must still have its contents.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::{CAVE, DONE, Entry, MoveMethod, NEIGHBOR, RUN, Table, WAIT, bytes_of, code, record_from};
use crate::color::pagemap::{self, PageEntry};
use crate::sys::memory::page_bytes;
use crate::sys::trace::{self, Registers, Report, StopLimit};
use crate::sys::userfault;

/// Time after which the agent is taken to hang. The cases with the most calls take about a second, and half a minute in an emulated machine.
const LIMIT: Duration = Duration::from_secs(120);

// Areas of the traced memory, by the number of their first page. The table and its entries lie in the first page.
const SAVED: u64 = 1;
const STACK: u64 = 2;
const PROGRAM: u64 = 4;
const PROGRAM_PAGES: u64 = 10;
const POOL: u64 = PROGRAM + PROGRAM_PAGES + 1;
const POOL_PAGES: u64 = 10;
const SCRATCH: u64 = POOL + POOL_PAGES + 1;
const PAGES: u64 = SCRATCH + RUN as u64;

/// Offset of the first entry from the table, in bytes.
const ENTRIES_AT: u64 = 512;

/// Page of the program, slot of the pool and [`Entry::run`] of each entry. Pages 3 and 6 are not moved.
const ENTRIES: [(u64, u64, u32); 8] = [
    (0, 0, 5),
    (1, 1, NEIGHBOR),
    // A neighbor in the program, but not in the pool.
    (2, 3, NEIGHBOR),
    // A neighbor in the pool, but not in the program.
    (4, 4, 1),
    (5, 5, NEIGHBOR),
    (7, 7, 2),
    (8, 8, NEIGHBOR),
    (9, 9, 1),
];

/// [`Entry::status`] of each entry.
type Statuses = [i64; ENTRIES.len()];

/// A system call of the agent that a rule can play.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    /// The scratch memory is dropped.
    DropScratch,
    /// Pages are moved out to the scratch memory.
    Out,
    /// Pages of the pool are moved in.
    In,
    /// A page is moved from the scratch memory to where it was.
    PutBack,
}
use Call::{DropScratch, In, Out, PutBack};

/// Behavior of the played kernel in a system call.
#[derive(Clone, Copy, Debug)]
enum Play {
    /// Does nothing, and reports this error.
    Refuse(i32),
    /// Moves the first `pages` pages of the request, but reports only `counted` pages and this error.
    Move { pages: u64, counted: u64, error: i32 },
}
use Play::{Move, Refuse};

/// Number of pages or calls: all of them.
const ALL: u64 = 1 << 32;

/// The calls of a kind that are played, how many of them, and what is played. A call is played by the first rule that has calls left.
#[derive(Clone, Copy, Debug)]
struct Rule(Call, u64, Play);

/// A claim about the agent, and how it is tested.
struct Case {
    claim: &'static str,
    /// Whether the scratch memory holds other pages at the beginning.
    scratch_is_full: bool,
    rules: &'static [Rule],
    statuses: Statuses,
}

const fn case(claim: &'static str, rules: &'static [Rule], statuses: Statuses) -> Case {
    Case { claim, scratch_is_full: false, rules, statuses }
}

const fn case_with_full_scratch(claim: &'static str, rules: &'static [Rule], statuses: Statuses) -> Case {
    Case { claim, scratch_is_full: true, rules, statuses }
}

const ALL_DONE: Statuses = [DONE; ENTRIES.len()];

/// Returns the statuses if the pages of the first `count` entries are left with `error` and the others are moved.
const fn left(count: usize, error: i32) -> Statuses {
    let (mut statuses, mut entry) = (ALL_DONE, 0);
    while entry < count {
        statuses[entry] = -(error as i64);
        entry += 1;
    }
    statuses
}

const fn all_left(error: i32) -> Statuses {
    left(ENTRIES.len(), error)
}

/// All pages of the request are moved, and none is reported, because they are there already.
const UNREPORTED: Play = Move { pages: ALL, counted: 0, error: libc::EEXIST };
/// Only the first page of the request is moved, and it is not reported.
const FIRST_UNREPORTED: Play = Move { pages: 1, counted: 0, error: libc::EEXIST };
/// All pages of the request are moved, and only the first is reported.
const FIRST_REPORTED: Play = Move { pages: ALL, counted: 1, error: libc::EAGAIN };
/// All pages of the request are moved, but the request seems to have found them busy.
const SEEMINGLY_BUSY: Play = Move { pages: ALL, counted: 0, error: libc::EAGAIN };
/// The first page of the request is moved and reported.
const FIRST_MOVED: Play = Move { pages: 1, counted: 1, error: libc::EAGAIN };

const CASES: &[Case] = &[
    case("pages are moved if everything is reported", &[], ALL_DONE),
    // Moving out.
    case("pages moved out without a report are moved", &[Rule(Out, ALL, UNREPORTED)], ALL_DONE),
    case("one page moved out without a report is moved", &[Rule(Out, ALL, FIRST_UNREPORTED)], ALL_DONE),
    case("pages moved out after the first one, unreported, are moved", &[Rule(Out, ALL, FIRST_REPORTED)], ALL_DONE),
    case("pages moved out one by one are moved", &[Rule(Out, ALL, FIRST_MOVED)], ALL_DONE),
    case(
        "pages moved out without a report once they were busy are moved",
        &[Rule(Out, 3, Refuse(libc::EAGAIN)), Rule(Out, ALL, UNREPORTED)],
        ALL_DONE,
    ),
    case("pages that are busy for an instant are moved", &[Rule(Out, 5, Refuse(libc::EAGAIN))], ALL_DONE),
    case("a page that has been shared is moved", &[Rule(Out, 1, Refuse(libc::EBUSY))], ALL_DONE),
    case("pages that stay busy are left", &[Rule(Out, ALL, Refuse(libc::EAGAIN))], all_left(libc::EAGAIN)),
    case("pages that stay shared are left", &[Rule(Out, ALL, Refuse(libc::EBUSY))], all_left(libc::EBUSY)),
    case("the first page is left if there is none", &[Rule(Out, 1, Refuse(libc::ENOENT))], left(1, libc::ENOENT)),
    case("pages that cannot be moved out are left", &[Rule(Out, ALL, Refuse(libc::EINVAL))], all_left(libc::EINVAL)),
    // Moving in.
    case("pages moved in without a report are moved", &[Rule(In, ALL, UNREPORTED)], ALL_DONE),
    case("one page moved in without a report is moved", &[Rule(In, ALL, FIRST_UNREPORTED)], ALL_DONE),
    case("pages moved in after the first one, unreported, are moved", &[Rule(In, ALL, FIRST_REPORTED)], ALL_DONE),
    case("pages moved in one by one are moved", &[Rule(In, ALL, FIRST_MOVED)], ALL_DONE),
    case("new frames that are busy for an instant are moved in", &[Rule(In, 5, Refuse(libc::EAGAIN))], ALL_DONE),
    case(
        "pages moved without a report out and in are moved",
        &[Rule(Out, ALL, UNREPORTED), Rule(In, 3, Refuse(libc::EAGAIN)), Rule(In, ALL, UNREPORTED)],
        ALL_DONE,
    ),
    case(
        "pages that are moved and reported as busy are moved",
        &[Rule(Out, ALL, SEEMINGLY_BUSY), Rule(In, ALL, SEEMINGLY_BUSY)],
        ALL_DONE,
    ),
    // Putting back.
    case(
        "pages whose new frames are refused are put back",
        &[Rule(In, ALL, Refuse(libc::ENOMEM))],
        all_left(libc::ENOMEM),
    ),
    case(
        "only the page whose new frame is refused is put back",
        &[Rule(In, 1000, Refuse(libc::ENOMEM))],
        left(1, libc::ENOMEM),
    ),
    case(
        "pages put back without a report are put back",
        &[Rule(In, ALL, Refuse(libc::ENOMEM)), Rule(PutBack, ALL, UNREPORTED)],
        all_left(libc::ENOMEM),
    ),
    case(
        "pages that are put back and reported as busy are put back",
        &[Rule(In, ALL, Refuse(libc::ENOMEM)), Rule(PutBack, ALL, SEEMINGLY_BUSY)],
        all_left(libc::ENOMEM),
    ),
    case(
        "pages that cannot be put back for a while are put back",
        &[
            Rule(In, ALL, Refuse(libc::ENOMEM)),
            Rule(PutBack, 3, Refuse(libc::ENOMEM)),
            Rule(PutBack, 3, Refuse(libc::EAGAIN)),
        ],
        all_left(libc::ENOMEM),
    ),
    case(
        "pages moved out without a report are put back",
        &[Rule(Out, ALL, UNREPORTED), Rule(In, ALL, Refuse(libc::ENOMEM))],
        all_left(libc::ENOMEM),
    ),
    // The scratch memory.
    case_with_full_scratch("pages are moved if the scratch memory is full", &[], ALL_DONE),
    case_with_full_scratch(
        "pages of a run are left if the scratch memory stays full",
        &[Rule(DropScratch, 1, Refuse(libc::EINVAL))],
        left(5, libc::EINVAL),
    ),
    case_with_full_scratch(
        "all pages are left if the scratch memory always stays full",
        &[Rule(DropScratch, ALL, Refuse(libc::EINVAL))],
        all_left(libc::EINVAL),
    ),
];

/// Indices of registers among the words of [`Registers`].
#[cfg(target_arch = "x86_64")]
mod register {
    use std::mem::offset_of;

    pub const FIRST_ARGUMENT: usize = offset_of!(libc::user_regs_struct, rdi) / 8;
    pub const SECOND_ARGUMENT: usize = offset_of!(libc::user_regs_struct, rsi) / 8;
    pub const THIRD_ARGUMENT: usize = offset_of!(libc::user_regs_struct, rdx) / 8;
    pub const RESULT: usize = offset_of!(libc::user_regs_struct, rax) / 8;
    pub const CALL: usize = offset_of!(libc::user_regs_struct, orig_rax) / 8;
}
#[cfg(target_arch = "aarch64")]
mod register {
    pub const FIRST_ARGUMENT: usize = 0;
    pub const SECOND_ARGUMENT: usize = 1;
    pub const THIRD_ARGUMENT: usize = 2;
    pub const RESULT: usize = 0;
    pub const CALL: usize = 8;
}

// Offsets in `struct uffdio_move`, in bytes. [Linux, include/uapi/linux/userfaultfd.h]
const LENGTH_AT: u64 = 16;
const MOVED_AT: u64 = 32;

/// Returns the contents of a page of the traced memory: words that lie nowhere else.
fn contents(page: u64) -> Vec<u8> {
    (0..page_bytes() as u64 / 8).flat_map(|word| (page << 32 | word).to_ne_bytes()).collect()
}

/// Number of pages that this system has migrated, which gives them other frames.
fn migrations() -> Option<String> {
    let counters = std::fs::read_to_string("/proc/vmstat").unwrap_or_default();
    counters.lines().find(|line| line.starts_with("pgmigrate_success ")).map(str::to_owned)
}

fn memory_of(process: &Child) -> io::Result<File> {
    File::options().read(true).write(true).open(format!("/proc/{}/mem", process.id()))
}

/// A process that executes the agent's code, and is killed when this is dropped.
struct Traced {
    child: Child,
    memory: File,
    /// Address of an instruction that makes a system call.
    cave: u64,
    /// Address of the memory that the agent works on.
    base: u64,
    end: Instant,
}

impl Drop for Traced {
    fn drop(&mut self) {
        // Both fail only if the process has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Traced {
    /// Starts a process, and stops it before it does anything of interest.
    fn start() -> io::Result<Traced> {
        let child = Command::new("sleep").arg("60").stdin(Stdio::null()).stdout(Stdio::null()).spawn()?;
        let mut traced = Traced { memory: memory_of(&child)?, child, cave: 0, base: 0, end: Instant::now() + LIMIT };
        trace::seize(traced.thread())?;
        trace::interrupt(traced.thread())?;
        trace::stopped(traced.thread(), StopLimit { waiting: traced.end, runnable: traced.end })?;
        // The file that was opened before may show the memory from before the process executed its program.
        traced.memory = memory_of(&traced.child)?;
        // What the program would have done next does not matter any more. At the very instruction that made the present system call, the kernel
        // would change the number of the first call to that of `restart_syscall`. [Linux, arch/arm64/kernel/signal.c, do_signal]
        traced.cave = trace::registers(traced.thread())?.instruction() + 8;
        traced.memory.write_all_at(&CAVE[..WAIT as usize], traced.cave)?;
        Ok(traced)
    }

    fn thread(&self) -> trace::ThreadId {
        self.child.id() as trace::ThreadId
    }

    /// Makes the process issue a system call, and returns the result.
    fn call(&self, number: libc::c_long, arguments: [u64; 6]) -> io::Result<u64> {
        match trace::remote_call(self.thread(), self.cave, number, arguments, &mut Vec::new())?.result {
            error @ -4095..=-1 => Err(io::Error::from_raw_os_error(-error as i32)),
            result => Ok(result as u64),
        }
    }

    /// Makes the process map `pages` pages of zeros.
    fn map(&self, pages: u64, protection: i32) -> io::Result<u64> {
        let (bytes, flags) = (pages * page_bytes() as u64, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        self.call(libc::SYS_mmap, [0, bytes, protection as u64, flags as u64, u64::MAX, 0])
    }

    fn address(&self, page: u64) -> u64 {
        self.base + page * page_bytes() as u64
    }

    fn word(&self, address: u64) -> io::Result<u64> {
        let mut bytes = [0; 8];
        self.memory.read_exact_at(&mut bytes, address)?;
        Ok(u64::from_ne_bytes(bytes))
    }

    fn set_word(&self, address: u64, word: u64) -> io::Result<()> {
        self.memory.write_all_at(&word.to_ne_bytes(), address)
    }

    /// Makes the process open a userfaultfd, and register the program's pages and the scratch memory with it.
    fn register(&self) -> io::Result<u64> {
        let flags = userfault::USER_MODE_ONLY | libc::O_CLOEXEC | libc::O_NONBLOCK;
        let userfault = self.call(libc::SYS_userfaultfd, [flags as u64, 0, 0, 0, 0, 0])?;
        let request = self.address(SAVED);
        let ask = |number: u64, words: [u64; 3]| -> io::Result<()> {
            (0..).zip(words).try_for_each(|(index, word)| self.set_word(request + 8 * index, word))?;
            self.call(libc::SYS_ioctl, [userfault, number, request, 0, 0, 0]).map(drop)
        };
        ask(u64::from(userfault::UFFDIO_API), [userfault::API, 0, 0])?;
        for (first, pages) in [(PROGRAM, PROGRAM_PAGES), (SCRATCH, RUN as u64)] {
            let bytes = pages * page_bytes() as u64;
            ask(userfault::UFFDIO_REGISTER, [self.address(first), bytes, userfault::REGISTER_MODE_MISSING])?;
        }
        Ok(userfault)
    }

    /// Fills the memory of the process, and lets it continue in the agent's code.
    fn prepare(&mut self, scratch_is_full: bool) -> io::Result<()> {
        let entry_point = self.map(code().len().div_ceil(page_bytes()) as u64, libc::PROT_READ | libc::PROT_EXEC)?;
        self.memory.write_all_at(code(), entry_point)?;
        self.base = self.map(PAGES, libc::PROT_READ | libc::PROT_WRITE)?;
        let bytes = PAGES * page_bytes() as u64;
        // A kernel without huge pages refuses the advice, and needs none.
        let _ = self.call(libc::SYS_madvise, [self.base, bytes, libc::MADV_NOHUGEPAGE as u64, 0, 0, 0]);
        let scratch = if scratch_is_full { SCRATCH..PAGES } else { 0..0 };
        for page in (PROGRAM..PROGRAM + PROGRAM_PAGES).chain(POOL..POOL + POOL_PAGES).chain(scratch) {
            self.memory.write_all_at(&contents(page), self.address(page))?;
        }
        let table = Table {
            userfault: self.register()? as i64,
            entries: self.base + ENTRIES_AT,
            count: ENTRIES.len() as u64,
            scratch: self.address(SCRATCH),
            page_bytes: page_bytes() as u64,
            advice: libc::MADV_DONTNEED as u64,
            begun: 0,
            request: [0; 6],
            saved: self.address(SAVED),
            deadline: u64::MAX,
            ended: 0,
        };
        self.memory.write_all_at(bytes_of(&table), self.base)?;
        for (at, (page, slot, run)) in (table.entries..).step_by(size_of::<Entry>()).zip(ENTRIES) {
            let (page, slot) = (self.address(PROGRAM + page), self.address(POOL + slot));
            let entry = Entry { page, slot, method: MoveMethod::Move as u32, run, status: 0 };
            self.memory.write_all_at(bytes_of(&entry), at)?;
        }
        let registers = trace::registers(self.thread())?.at(entry_point).with_argument(self.base);
        trace::set_registers(self.thread(), &registers.with_stack(self.address(STACK + 1)))
    }

    /// Lets the process continue to the next beginning or end of a system call, and returns its registers.
    fn next_stop(&self) -> io::Result<Vec<u64>> {
        let left = self.end.checked_duration_since(Instant::now()).ok_or(io::ErrorKind::TimedOut)?;
        trace::go_on_to_call(self.thread())?;
        match trace::report_within(self.thread(), left)? {
            Report::SystemCall => Ok(trace::registers(self.thread())?.into()),
            report => Err(io::Error::other(format!("the agent met {report:?}"))),
        }
    }

    fn set_registers(&self, words: Vec<u64>) -> io::Result<()> {
        trace::set_registers(self.thread(), &Registers::try_from(words).map_err(io::Error::other)?)
    }

    /// Returns the kind of the call that begins; `None` if it is of no kind that can be played.
    fn kind(&self, words: &[u64]) -> io::Result<Option<Call>> {
        let scratch = self.address(SCRATCH)..self.address(PAGES);
        let first = words[register::FIRST_ARGUMENT];
        Ok(match words[register::CALL] as libc::c_long {
            libc::SYS_madvise if scratch.contains(&first) => Some(DropScratch),
            libc::SYS_ioctl if words[register::SECOND_ARGUMENT] == userfault::UFFDIO_MOVE => {
                let request = words[register::THIRD_ARGUMENT];
                let (to, from) = (self.word(request)?, self.word(request + 8)?);
                match (scratch.contains(&to), scratch.contains(&from)) {
                    (true, _) => Some(Out),
                    (_, true) => Some(PutBack),
                    _ => Some(In),
                }
            }
            _ => None,
        })
    }

    /// Plays the kernel during the call that begins with the registers `words`. Returns `false` if the kernel itself did not do what was to be
    /// reported wrongly.
    fn play(&self, mut words: Vec<u64>, play: Play) -> io::Result<bool> {
        let request = words[register::THIRD_ARGUMENT];
        let is_move = words[register::CALL] as libc::c_long == libc::SYS_ioctl;
        let (counted_bytes, error) = match play {
            Refuse(error) => {
                trace::skip_call(self.thread())?;
                words = self.next_stop()?;
                (0, error)
            }
            Move { pages, counted, error } => {
                let length = self.word(request + LENGTH_AT)?;
                self.set_word(request + LENGTH_AT, length.min(pages * page_bytes() as u64))?;
                words = self.next_stop()?;
                self.set_word(request + LENGTH_AT, length)?;
                if words[register::RESULT] != 0 {
                    return Ok(false);
                }
                if counted * page_bytes() as u64 >= length {
                    return Ok(true);
                }
                (counted * page_bytes() as u64, error)
            }
        };
        let error = -i64::from(error) as u64;
        words[register::RESULT] = error;
        self.set_registers(words)?;
        if is_move {
            self.set_word(request + MOVED_AT, if counted_bytes > 0 { counted_bytes } else { error })?;
        }
        Ok(true)
    }

    /// Lets the agent work to its end and plays the kernel by `rules`. Returns how many calls each rule has played.
    fn work(&self, rules: &[Rule]) -> io::Result<Vec<u64>> {
        let mut played = vec![0; rules.len()];
        loop {
            let words = self.next_stop()?;
            if words[register::CALL] as libc::c_long == libc::SYS_exit {
                return Ok(played);
            }
            let kind = self.kind(&words)?;
            let applies = |(Rule(call, times, _), played): (&Rule, &u64)| Some(*call) == kind && played < times;
            match rules.iter().zip(&played).position(applies) {
                Some(rule) => played[rule] += u64::from(self.play(words, rules[rule].2)?),
                None => self.next_stop().map(drop)?,
            }
        }
    }

    fn frames(&self, first: u64, count: u64) -> io::Result<Vec<PageEntry>> {
        let pagemap = File::open(format!("/proc/{}/pagemap", self.child.id()))?;
        pagemap::entries(&pagemap, self.address(first) / page_bytes() as u64, count as usize)
    }

    /// Checks what the agent has done in `case`: the contents of the program's pages, and the table.
    fn check(&self, case: &Case) -> io::Result<()> {
        let mut wrong = Vec::new();
        let mut found = vec![0; page_bytes()];
        for page in PROGRAM..PROGRAM + PROGRAM_PAGES {
            self.memory.read_exact_at(&mut found, self.address(page))?;
            if found != contents(page) {
                wrong.push(format!("page {} holds {:x?}", page - PROGRAM, &found[..8]));
            }
        }
        let mut bytes = [0; size_of::<Table>()];
        self.memory.read_exact_at(&mut bytes, self.base)?;
        // The agent has also tried to begin an entry after the last one.
        let begun = record_from::<Table>(&bytes).begun;
        if begun != ENTRIES.len() as u64 + 1 {
            wrong.push(format!("{begun} entries were begun"));
        }
        let mut statuses = [0; ENTRIES.len()];
        let mut bytes = [0; size_of::<Entry>()];
        for (index, status) in statuses.iter_mut().enumerate() {
            self.memory.read_exact_at(&mut bytes, self.base + ENTRIES_AT + (index * size_of::<Entry>()) as u64)?;
            *status = record_from::<Entry>(&bytes).status;
        }
        if statuses != case.statuses {
            wrong.push(format!("the statuses are {statuses:?}"));
        }
        if wrong.is_empty() { Ok(()) } else { Err(io::Error::other(wrong.join(", "))) }
    }
}

/// Checks that each page that was moved has the frame of its slot, and each other page its former frame.
fn check_frames(program: &[PageEntry], pool: &[PageEntry], now: &[PageEntry], statuses: &Statuses) -> io::Result<()> {
    for ((page, slot, _), status) in ENTRIES.iter().zip(statuses) {
        let wanted = if *status == DONE { pool[*slot as usize] } else { program[*page as usize] };
        let (wanted, found) = (wanted.frame(), now[*page as usize].frame());
        if wanted.is_some() && found.is_some() && wanted != found {
            return Err(io::Error::other(format!("page {page} has {found:?} instead of {wanted:?}")));
        }
    }
    Ok(())
}

fn run(case: &Case) -> io::Result<()> {
    let mut traced = Traced::start()?;
    traced.prepare(case.scratch_is_full)?;
    let migrated = migrations();
    let (program, pool) = (traced.frames(PROGRAM, PROGRAM_PAGES)?, traced.frames(POOL, POOL_PAGES)?);
    let played = traced.work(case.rules)?;
    traced.check(case)?;
    let now = traced.frames(PROGRAM, PROGRAM_PAGES)?;
    // Pages that the kernel has migrated since then have other frames.
    if migrated == migrations() {
        check_frames(&program, &pool, &now, &case.statuses)?;
    }
    for (Rule(call, times, play), played) in case.rules.iter().zip(played) {
        if played == 0 || (*times != ALL && played != *times) {
            return Err(io::Error::other(format!("{play:?} was played at {played} calls {call:?}")));
        }
    }
    Ok(())
}

/// Returns why the agent cannot run here; `None` if it can.
fn obstacle() -> Option<String> {
    match userfault::features_for_user_mode() {
        Err(error) => Some(format!("userfaultfd cannot be opened: {error}")),
        Ok(features) if features & userfault::FEATURE_MOVE == 0 => Some("this kernel lacks UFFDIO_MOVE".to_owned()),
        Ok(_) => {
            let started = Traced::start();
            started.err().map(|error| format!("no process can be traced: {error}"))
        }
    }
}

#[test]
fn every_page_keeps_its_contents_whatever_the_kernel_reports() {
    if let Some(reason) = obstacle() {
        assert!(std::env::var_os("HARDWARE_REQUIRED").is_none(), "{reason}");
        // Unlike what is printed, this is shown even if the test passes.
        let _ = writeln!(io::stderr(), "the agent was not tested: {reason}");
        return;
    }
    let failures: Vec<String> = CASES
        .iter()
        .filter_map(|case| run(case).err().map(|error| format!("not true: {}: {error}", case.claim)))
        .collect();
    assert!(failures.is_empty(), "{} of {} cases\n{}", failures.len(), CASES.len(), failures.join("\n"));
}
