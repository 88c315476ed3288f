//! What can go wrong between isochrome and the machine.

use std::io;
use std::path::PathBuf;

use crate::load::kernels::KernelError;
use crate::process::ProcessError;
use crate::recolor::RecolorError;
use crate::sys::heap::TooManyHeaps;
use isochrome_model::units::{Bytes, ParseError};

/// Trouble with the machine or with what it was asked to do; each message carries the values and a hint.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// A file of the kernel could not be read.
    #[error("{path}: {source}\n  hint: {hint}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
        /// What to do.
        hint: &'static str,
    },
    /// A file of the kernel says something that isochrome does not understand.
    #[error(
        "{path}: `{text}` is not {expected}\n  hint: this kernel writes the file in an unknown form; please report it with `uname -r`"
    )]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What it says, shortened.
        text: String,
        /// What it should say.
        expected: &'static str,
    },
    /// A list in a file of the kernel is not a list.
    #[error("{path}: {source}")]
    List {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: ParseError,
    },
    /// The processor, or the hypervisor above it, offers no performance counters.
    #[error(
        "{event}: this machine offers no such performance counter ({source})\n  hint: in a virtual machine ask the host for a virtual PMU; what isochrome can do by timing it does without counters"
    )]
    CountersAbsent {
        /// The event asked for.
        event: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// The kernel keeps performance counters from this user.
    #[error(
        "{event}: performance counters are not permitted, kernel.perf_event_paranoid is {paranoid} ({source})\n  hint: as root: sysctl kernel.perf_event_paranoid=2"
    )]
    CountersForbidden {
        /// The event asked for.
        event: String,
        /// `kernel.perf_event_paranoid`, or `unknown`.
        paranoid: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// A performance counter could not be opened or read for another reason.
    #[error(
        "{event}: {action} the performance counter failed: {source}\n  hint: another tool may hold the counters; see `isochrome doctor`"
    )]
    Counters {
        /// The event asked for.
        event: String,
        /// What was being done.
        action: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// More events were asked for than counters work here.
    #[error("{asked} events were asked for, {usable} counters work here{}\n  hint: count fewer events at once", defect.as_deref().map(|f| format!(" ({f})")).unwrap_or_default())]
    CountersTooFew {
        /// Events asked for.
        asked: usize,
        /// Counters that passed the self-test together.
        usable: usize,
        /// What is wrong with the next one, if it failed the self-test.
        defect: Option<String>,
    },
    /// A counter opens and runs but does not count.
    #[error(
        "{event}: the counter runs but read {counted} during {lines} cache misses\n  hint: the hypervisor or the processor does not implement this event; leave it out"
    )]
    CounterDead {
        /// The event.
        event: String,
        /// What it counted.
        counted: u64,
        /// Least number of events that happened.
        lines: u64,
    },
    /// The counters did not count all the time, so their values are too small.
    #[error(
        "the counters ran for {running_ns} of {enabled_ns} ns\n  hint: another tool shares them, or the thread ran on a CPU of another type; count fewer events, or pin the thread"
    )]
    CountersInterrupted {
        /// Time for which counting was asked, in ns.
        enabled_ns: u64,
        /// Time for which the group was on the hardware, in ns.
        running_ns: u64,
    },
    /// Signal handlers could not be installed.
    #[error(
        "installing the handler of signal {signal} failed: {source}\n  hint: run outside of what blocks sigaction, such as a seccomp filter"
    )]
    Signal {
        /// Signal number.
        signal: i32,
        /// What the kernel said.
        source: io::Error,
    },
    /// The caches do not admit a double purge.
    #[error("{0}\n  hint: the other patterns need nothing of the kind: `isochrome lab flood --pattern write`")]
    NoDoublePurge(#[from] isochrome_model::flood::NoDoublePurge),
    /// A packet was refused, lost or altered.
    #[error(transparent)]
    Net(#[from] crate::load::net::stack::NetError),
    /// A socket could not be used.
    #[error("UDP over {device}: {source}\n  hint: is the device up? `ip link`")]
    Socket {
        /// Over what.
        device: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// There is no TAP device to be had.
    #[error(
        "a TAP device in a network namespace: {action}: {source}\n  hint: run as root where /dev/net/tun and network namespaces are permitted; the other paths need neither: --path memory"
    )]
    Tap {
        /// What was being done.
        action: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// There are too few colors for every component to have its own.
    #[error(
        "{colors} colors are too few for driver, server, client and flooder\n  hint: --level, for a level of more colors"
    )]
    TooFewColors {
        /// How many there are.
        colors: u32,
    },
    /// Memory could not be had.
    #[error("{pages} pages of memory: {source}\n  hint: lower the memory asked for, or raise `ulimit -v`")]
    Memory {
        /// Pages asked for.
        pages: usize,
        /// What the kernel said.
        source: io::Error,
    },
    /// A walk that hits the level takes about as long as one that misses it.
    #[error(
        "a walk over {lines} cached lines takes {hit_ticks} ticks and over {lines} evicted ones {miss_ticks}: too close to tell apart\n  hint: give the process a CPU of its own, or use hardware counters where there are any: `isochrome palette --by counters`"
    )]
    TimingBlurred {
        /// Ticks of a walk that hits, third quartile.
        hit_ticks: u64,
        /// Ticks of a walk that misses, first quartile.
        miss_ticks: u64,
        /// Lines per walk.
        lines: u32,
    },
    /// No set of pages was found that evicts others.
    #[error(
        "no set of pages evicts others from level {level}\n  hint: the level may be larger or shared with a busy neighbor; `isochrome probe` shows how well it keeps its contents"
    )]
    NoEviction {
        /// Cache level.
        level: u8,
    },
    /// A region of no pages or no colors was asked for.
    #[error(
        "memory of no pages or no colors was asked for\n  hint: name at least one color, such as --colors 0-3, and one page"
    )]
    NothingAsked,
    /// A color that does not exist.
    #[error("there is no color {color}: the level has {count} colors, numbered from 0\n  hint: the last is {}", count.saturating_sub(1))]
    NoSuchColor {
        /// Color asked for.
        color: u16,
        /// Colors there are.
        count: usize,
    },
    /// Too few pages of a color.
    #[error(
        "color {color} has {free} free pages, {wanted} are needed\n  hint: raise the memory limit (--memory), or use more colors"
    )]
    ColorExhausted {
        /// The color.
        color: u16,
        /// Pages needed of it.
        wanted: usize,
        /// Pages free.
        free: usize,
    },
    /// The kernel refused to move pages.
    #[error(
        "{pages} pages could not be put in place: {source}\n  hint: if this kernel lacks UFFDIO_MOVE (Linux 6.8), raise vm.max_map_count"
    )]
    MoveFailed {
        /// Pages to be moved.
        pages: usize,
        /// What the kernel said.
        source: io::Error,
    },
    /// The machine has no such cache level.
    #[error("this machine declares no data cache of level {level}\n  hint: `isochrome doctor` lists the levels")]
    NoSuchLevel {
        /// Level asked for.
        level: u8,
    },
    /// A level has a single color.
    #[error("{} has a single page color, so pages cannot be kept apart in it\n  hint: `isochrome doctor` lists the colors of every level; where the processor offers it, ways can be partitioned through resctrl", level.map_or_else(|| "every cache level".to_owned(), |l| format!("level {l}")))]
    OneColor {
        /// Level asked for; all where it is none.
        level: Option<u8>,
    },
    /// A memory limit too small to find colors in.
    #[error("a memory limit of {limit} is too small to tell colors apart, {needed} are needed\n  hint: --memory {}K", needed.0.div_ceil(1024))]
    TooLittleMemory {
        /// The limit given.
        limit: Bytes,
        /// The least that is needed.
        needed: Bytes,
    },
    /// Frame numbers read as zero.
    #[error(
        "/proc/self/pagemap: frame numbers read as zero, CAP_SYS_ADMIN is missing\n  hint: run as root, or let the palette be measured: `isochrome palette --by timing`"
    )]
    FramesHidden,
    /// Pages of known color are wanted, and their colors are not certain.
    #[error(
        "the palette is in doubt: {doubt}\n  hint: try again when the machine is quieter, or on another CPU (--cpu)"
    )]
    ReferenceInDoubt {
        /// What speaks against them.
        doubt: String,
    },
    /// The helper that times pages inside a process was not given a CPU.
    #[error("the helper that times them does not answer\n  hint: try again when the machine is quieter")]
    NoAnswer,
    /// A cache loses its contents by itself faster than they can be looked at.
    #[error(
        "this CPU's cache loses its contents by itself: in {disturbed} of {tests} eviction tests pages were gone that nothing competed with\n  hint: try again when the machine is quieter, or on another CPU; `isochrome probe` measures how long each CPU's cache keeps its contents"
    )]
    CacheUnsteady {
        /// Tests that were disturbed.
        disturbed: u64,
        /// Tests made.
        tests: u64,
    },
    /// A cache has lost its contents a moment after they were touched.
    #[error(
        "this CPU's cache loses its contents by itself: a walk over {lines} lines touched a moment before takes {hit_ticks} ticks, as long as over evicted ones ({miss_ticks}), and {inner_ticks} where they are in the level inside\n  hint: another program or a neighbor on the host uses this cache: try again later, or on another CPU; `isochrome probe` measures how long each CPU's cache keeps its contents"
    )]
    CacheNotKept {
        /// Lines of the walk.
        lines: u32,
        /// Ticks of the walk where its lines should be in the level.
        hit_ticks: u64,
        /// Ticks of the walk where its lines were evicted.
        miss_ticks: u64,
        /// Ticks of the walk where its lines are in the level inside.
        inner_ticks: u64,
    },
    /// Memory of a process cannot be read by process_vm_readv(2).
    #[error(
        "the memory of a process cannot be read: {source}\n  hint: its user or root may (see kernel.yama.ptrace_scope), unless a filter of this container forbids process_vm_readv"
    )]
    RemoteUnreadable {
        /// What the kernel said.
        source: io::Error,
    },
    /// A signal asked to finish.
    #[error("interrupted\n  hint: nothing was changed")]
    Interrupted,
    /// Eviction tests contradict the colors computed from frame bits.
    #[error(
        "frame-number bits do not give the color here: {wrong} of {tested} {what} fail the eviction test, as in virtual machines and where the set index is hashed\n  hint: let the palette be measured: `isochrome palette --by timing`"
    )]
    BitsContradicted {
        /// What was tested: colors or pages.
        what: &'static str,
        /// Those that failed.
        wrong: usize,
        /// How many were tested.
        tested: usize,
    },
    /// No event is known that counts the misses of a level.
    #[error(
        "no event is known that counts the misses of {touches} in level {level} on `{processor}`\n  hint: use time instead: `isochrome palette --by timing`"
    )]
    NoMissEvent {
        /// Cache level.
        level: u8,
        /// What misses.
        touches: isochrome_model::miss_ratio::Touches,
        /// Processor model.
        processor: String,
    },
    /// No events are known from which the miss ratio of a level follows.
    #[error(
        "no events are known that count accesses and misses of level {level} on `{processor}`\n  hint: another level may have them: --level 1 to 3"
    )]
    NoMissRatio {
        /// Cache level.
        level: u8,
        /// Processor model.
        processor: String,
    },
    /// A kernel cannot be had, or computed a wrong result.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// The kernel tells this user nothing of who else has a CPU.
    #[error(
        "who has a CPU when is not reported to this user, kernel.perf_event_paranoid is {paranoid}: {refused}\n  hint: watch processes of your own (isochrome watch PID, or -- CMD); run as root; or, as root: setcap cap_perfmon,cap_dac_read_search,cap_ipc_lock=ep PATH of isochrome"
    )]
    SwitchesForbidden {
        /// `kernel.perf_event_paranoid`, or `unknown`.
        paranoid: String,
        /// What was refused.
        refused: String,
    },
    /// The kernel does not even tell this user of his own threads.
    #[error(
        "switches of one's own threads are not reported to this user, kernel.perf_event_paranoid is {paranoid}: {source}\n  hint: as root: sysctl kernel.perf_event_paranoid=2; in a container, its seccomp filter must permit perf_event_open; if memory is refused: sysctl kernel.perf_event_mlock_kb=516"
    )]
    OwnSwitchesForbidden {
        /// `kernel.perf_event_paranoid`, or `unknown`.
        paranoid: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// A thread that has started before cannot be watched.
    #[error(
        "thread {thread}: cannot be watched: {source}\n  hint: without privilege only processes of one's own, which are not setuid; too many open files: ulimit -n, one per thread and CPU"
    )]
    ThreadNotWatched {
        /// Which.
        thread: i32,
        /// What the kernel said.
        source: io::Error,
    },
    /// Events of the scheduler are not to be had.
    #[error(
        "{path}: events of the scheduler cannot be recorded: {source}\n  hint: run as root, on a kernel with CONFIG_FTRACE; in a container, pass tracefs on"
    )]
    Events {
        /// The file.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// Another run has the CPU.
    #[error(
        "CPU {cpu} is that of another run (process {pid})\n  hint: wait for its end, or choose another CPU in the task set"
    )]
    CpuTaken {
        /// The CPU.
        cpu: u32,
        /// Process of the other run.
        pid: u32,
    },
    /// A program does not do its jobs.
    #[error(transparent)]
    Job(#[from] crate::run::JobError),
    /// The kernel says nothing of a process.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// A process was not recolored.
    #[error(transparent)]
    Recolor(#[from] RecolorError),
    /// All heaps are taken.
    #[error("{0}\n  hint: memory that outlived its heap is kept for good; this is a bug, please report it")]
    Heap(#[from] TooManyHeaps),
    /// Nothing is allocated on chosen pages.
    #[error(
        "a task's memory does not lie on the chosen pages\n  hint: the program must declare isochrome_host::sys::heap::HeapAllocator as its global allocator"
    )]
    NoHeapAllocator,
    /// Code that was made cannot be executed.
    #[error(
        "memory cannot be made executable: {source}\n  hint: --kind data; a security policy may forbid it, and code is made for x86-64 and aarch64 only"
    )]
    NoCode {
        /// What the kernel said.
        source: io::Error,
    },
    /// Two tasks cannot pass the CPU to each other.
    #[error(
        "{action}: {source}\n  hint: real-time priorities and a second thread take root, or limits (RLIMIT_RTPRIO) that allow them"
    )]
    Passing {
        /// What was done.
        action: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// A task allocates more than its working set says.
    #[error(
        "a task needs {} bytes, {spilled} more than it says\n  hint: this is a bug in the kernel's working set, please report it with the command line", used + spilled
    )]
    HeapTooSmall {
        /// Bytes on the chosen pages.
        used: usize,
        /// Bytes that did not fit.
        spilled: usize,
    },
    /// No such process.
    #[error("there is no process {pid}\n  hint: `ps -e` lists them; it may have ended")]
    NoSuchProcess {
        /// Process asked for.
        pid: u32,
    },
    /// A process without memory of its own.
    #[error(
        "process {pid} ({command}) has no memory of its own: it is a thread of the kernel, or it has ended\n  hint: choose a user's process"
    )]
    NoUserMemory {
        /// The process.
        pid: u32,
        /// Its name.
        command: String,
    },
    /// A process of another user.
    #[error("process {pid} ({command}): its memory is not shown: {source}\n  hint: run as root, or as its owner")]
    ProcessDenied {
        /// The process.
        pid: u32,
        /// Its name.
        command: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// Colors that belong to another.
    #[error(
        "colors {colors} of level {level} belong to {owner} (process {pid}, CPUs {cpus})\n  hint: choose others (`isochrome ps` lists grants, --colors auto:N finds free ones), or share them: --group NAME on both"
    )]
    ColorsHeld {
        /// Colors asked for that it holds, as a list.
        colors: String,
        /// Name of the owner.
        owner: String,
        /// Its process.
        pid: u32,
        /// CPUs of its grant, as a list.
        cpus: String,
        /// Cache level.
        level: u8,
    },
    /// Fewer free colors than asked for.
    #[error(
        "{wanted} free colors were asked for, {free} are left; others are held by {held_by}\n  hint: ask for fewer, or end one of them: `isochrome ps`"
    )]
    TooFewFreeColors {
        /// Colors asked for.
        wanted: usize,
        /// Colors that nobody else holds.
        free: usize,
        /// Who holds the others.
        held_by: String,
    },
    /// Programs hold colors by the pages that were to be replaced.
    #[error(
        "{owners} hold colors by the pages of known color that are saved: new ones would have other numbers\n  hint: wait until they have ended (`isochrome ps`)"
    )]
    ReferenceInUse {
        /// Who.
        owners: String,
    },
    /// A file of isochrome's own could not be written.
    #[error("{path}: {source}\n  hint: run as root, or name a folder you may write to in ISOCHROME_RUNTIME_DIR")]
    Unwritable {
        /// The file or folder.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// What is in a folder, or a file, may have been written by somebody else.
    #[error(
        "{path}: what it holds is not believed: {reason}\n  hint: remove it, or name a folder in ISOCHROME_RUNTIME_DIR into which nobody else may write"
    )]
    Untrusted {
        /// The file or folder.
        path: PathBuf,
        /// What speaks against it.
        reason: String,
    },
    /// No palette is saved.
    #[error(
        "{path}: no palette of level {level} is saved\n  hint: measure and save it, as root: isochrome palette --save --memory 4G"
    )]
    NoSavedPalette {
        /// Where it would be.
        path: PathBuf,
        /// Cache level.
        level: u8,
    },
    /// No pages of known color are saved.
    #[error(
        "{path}: no pages of known color are saved for level {level}\n  hint: isochrome palette --save, as the user who will start programs on colors"
    )]
    NoReference {
        /// What would say which they are.
        path: PathBuf,
        /// Cache level.
        level: u8,
    },
    /// A program cannot open the pages of known color.
    #[error(
        "{path}: {source}, as the program opens it\n  hint: it must be able to read the file; if there is none any more: isochrome palette --save"
    )]
    NotOpenedThere {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The saved palette is of an earlier boot.
    #[error(
        "{path}: the saved palette is stale: it was measured before this boot, and frames have other colors since\n  hint: measure and save it again: isochrome palette --save"
    )]
    SavedPaletteStale {
        /// The file.
        path: PathBuf,
    },
    /// The saved palette is of another machine.
    #[error(
        "{path}: the saved palette is of another machine or cache\n  hint: measure and save it here: isochrome palette --save"
    )]
    SavedPaletteForeign {
        /// The file.
        path: PathBuf,
    },
    /// The saved palette is cut, edited or of another version.
    #[error(
        "{path}: not a whole saved palette of this version\n  hint: measure and save it again: isochrome palette --save"
    )]
    SavedPaletteDamaged {
        /// The file.
        path: PathBuf,
    },
    /// Too few frames that the palette knows could be had to test it.
    #[error(
        "the palette cannot be tested: of {pages} pages of fresh memory it knows the frames of {known}, too few of some color\n  hint: measure more of the memory that is free: isochrome palette --save --memory 4G"
    )]
    PaletteUntested {
        /// Pages looked up.
        pages: usize,
        /// Pages whose frames the palette knows.
        known: usize,
    },
    /// Eviction tests contradict the palette.
    #[error(
        "the palette does not hold any more: {wrong} of {tested} colors fail the eviction test, so frames were remapped\n  hint: measure and save it again: isochrome palette --save"
    )]
    PaletteContradicted {
        /// Colors that failed.
        wrong: usize,
        /// Colors tested.
        tested: usize,
    },
    /// There is no resctrl to be used.
    #[error(
        "{path}: {source}\n  hint: mount -t resctrl resctrl /sys/fs/resctrl; where that fails, this machine does not divide its caches by ways: use colors"
    )]
    ResctrlAbsent {
        /// Where it should be mounted.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// Caches of this level are not divided by ways.
    #[error(
        "resctrl does not divide caches of level {level} here\n  hint: `ls /sys/fs/resctrl/info` says which it does; those split into code and data (mount option cdp) are not supported"
    )]
    ResctrlLevel {
        /// Which.
        level: u8,
    },
    /// Groups of an earlier run are still there.
    #[error(
        "resctrl has a group {group} that an earlier run has made\n  hint: if none is running: rmdir /sys/fs/resctrl/{group}"
    )]
    ResctrlLeft {
        /// Its name.
        group: String,
    },
    /// The kernel refused a change.
    #[error("resctrl: {what}: {source}{}\n  hint: {hint}", if said.is_empty() || said == "ok" { String::new() } else { format!(" ({said})") })]
    Resctrl {
        /// What was being done.
        what: String,
        /// `info/last_cmd_status`.
        said: String,
        /// What the call returned.
        source: io::Error,
        /// What to do.
        hint: &'static str,
    },
    /// The eviction set of a color evicts no more.
    #[error(
        "pages of known color {color} do not evict each other any more: they were given other frames\n  hint: try again, and they are measured anew"
    )]
    ReferenceLost {
        /// The color.
        color: u16,
    },
    /// Pages of known color evict those of other colors: some are no longer what they were.
    #[error(
        "pages of known color evict pages of other colors: they were given other frames; of {pairs} eviction tests beside a control without a traversal, {by_set} lost such a page in the test alone, and {by_itself} in the control alone\n  hint: try again, and they are measured anew"
    )]
    ReferenceMixed {
        /// Pairs in which the test alone lost a page that nothing should have competed with.
        by_set: u64,
        /// Pairs in which the control alone did.
        by_itself: u64,
        /// Pairs of a test and its control.
        pairs: usize,
    },
    /// The CPUs this thread may run on could not be learned.
    #[error(
        "the CPUs this process may run on: {source}\n  hint: run outside of what blocks sched_getaffinity, such as a seccomp filter"
    )]
    Affinity {
        /// What the kernel said.
        source: io::Error,
    },
}

impl HostError {
    /// Whether a disturbance can be the cause, so that trying again makes sense.
    pub fn may_pass(&self) -> bool {
        matches!(
            self,
            HostError::TimingBlurred { .. }
                | HostError::NoEviction { .. }
                | HostError::PaletteContradicted { .. }
                | HostError::ReferenceInDoubt { .. }
                | HostError::ReferenceLost { .. }
                | HostError::ReferenceMixed { .. }
                | HostError::CacheUnsteady { .. }
                | HostError::CacheNotKept { .. }
                | HostError::NoAnswer
        )
    }
}
