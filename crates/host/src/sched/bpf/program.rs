//! The programs that the kernel runs at its tracepoints. Each writes a record to the ring if the event concerns a watched CPU or thread.
//!
//! The instructions are generated here, for the offsets of fields in the running kernel. So no compiler is needed, and no object file that
//! must match its source. [Linux, Documentation/bpf/standardization/instruction-set.rst]

use super::btf::Btf;
use crate::error::SystemError;

/// Size of the head, with which every record begins. In a record of a switch two names follow, and for each counter its count, the time for
/// which it was enabled, and the time for which it ran.
pub const HEAD_BYTES: usize = 40;
pub const NAME_BYTES: usize = 16;
pub const COUNTER_BYTES: usize = 24;

/// Offsets of the fields of a record.
pub mod field {
    pub const KIND: usize = 0;
    pub const CPU: usize = 4;
    pub const AT: usize = 8;
    /// Number of records of the CPU that had no room so far.
    pub const LOST: usize = 16;
    /// The thread that leaves, is woken, is accounted time, or starts another; the process that was started or has executed a program.
    pub const THREAD: usize = 20;
    /// The thread that gets the CPU, or is started.
    pub const OTHER: usize = 24;
    /// `prev_state` of the thread that leaves.
    pub const STATE: usize = 28;
    /// Whether the thread that leaves is preempted, or the accounted time.
    pub const VALUE: usize = 32;
}

/// Kinds of records.
pub mod kind {
    pub const SWITCH: u32 = 1;
    pub const WAKEUP: u32 = 2;
    pub const RUNTIME: u32 = 3;
    pub const FORK: u32 = 4;
    pub const WAKING: u32 = 5;
    pub const STARTED: u32 = 6;
}

/// Bit in the map of CPUs: switches of the CPU are recorded. The other bits count records without room.
pub const WATCHED: u32 = 1 << 31;

/// Flag in the map of threads: the thread's wake-ups, the threads that it starts, and time accounted to it are recorded.
pub const FOLLOWED: u32 = 1;
/// Flag in the map of threads: time accounted to the thread is recorded.
pub const ACCOUNTED: u32 = 2;

/// File descriptors of the maps that the programs use.
#[derive(Clone, Copy)]
pub struct Maps<'a> {
    /// File descriptor of the map of CPUs, with [`WATCHED`] and the number of records lost.
    pub cpus: i32,
    /// File descriptor of the map of threads, with [`FOLLOWED`] or [`ACCOUNTED`].
    pub threads: i32,
    /// File descriptor of the ring buffer that takes the records.
    pub ring: i32,
    /// For each counted event, the file descriptor of the map with its counter by CPU.
    pub counters: &'a [i32],
}

/// Offsets of the fields of a thread in `task_struct`.
#[derive(Clone, Copy)]
pub struct Layout {
    number: i16,
    process: i16,
    name: i16,
}

impl Layout {
    /// Returns the offsets in the kernel that `btf` describes.
    pub fn of(btf: &Btf) -> Result<Layout, SystemError> {
        let offset = |field| btf.offset("task_struct", field);
        Ok(Layout { number: offset("pid")?, process: offset("tgid")?, name: offset("comm")? })
    }
}

/// Registers that keep their values over calls. Register 0 holds the result of a call, calls destroy 1 to 5, and 10 is the end of the
/// stack.
const CONTEXT: u8 = 6;
const CPU: u8 = 7;
const RECORD: u8 = 8;
const CPU_NUMBER: u8 = 9;
const STACK: u8 = 10;

/// Helper functions of the kernel. [Linux, include/uapi/linux/bpf.h, enum bpf_func_id]
const MAP_LOOKUP: i32 = 1;
const CLOCK: i32 = 5;
const THIS_CPU: i32 = 8;
const COUNTER: i32 = 55;
const RESERVE: i32 = 131;
const SUBMIT: i32 = 132;

/// Flag for records that do not wake the reader, which polls: `BPF_RB_NO_WAKEUP`.
const NO_WAKEUP: i32 = 1;

/// Instructions of a program that is being generated.
#[derive(Default)]
struct Code(Vec<u64>);

/// Indices of jumps whose target is not set yet.
type Jumps = Vec<usize>;

impl Code {
    fn push(&mut self, operation: u8, to: u8, from: u8, offset: i16, value: i32) {
        let registers = u64::from(from << 4 | to);
        let (offset, value) = (u64::from(offset as u16), u64::from(value as u32));
        self.0.push(u64::from(operation) | registers << 8 | offset << 16 | value << 32);
    }

    fn copy(&mut self, to: u8, from: u8) {
        self.push(0xbf, to, from, 0, 0);
    }

    fn set(&mut self, to: u8, value: i32) {
        self.push(0xb7, to, 0, 0, value);
    }

    fn add(&mut self, to: u8, value: i32) {
        self.push(0x07, to, 0, 0, value);
    }

    fn load_word(&mut self, to: u8, base: u8, offset: i16) {
        self.push(0x61, to, base, offset, 0);
    }

    fn load_long(&mut self, to: u8, base: u8, offset: i16) {
        self.push(0x79, to, base, offset, 0);
    }

    fn store_word(&mut self, base: u8, offset: usize, from: u8) {
        self.push(0x63, base, from, offset as i16, 0);
    }

    fn store_long(&mut self, base: u8, offset: usize, from: u8) {
        self.push(0x7b, base, from, offset as i16, 0);
    }

    fn store_word_on_stack(&mut self, offset: i16, from: u8) {
        self.push(0x63, STACK, from, offset, 0);
    }

    /// Loads the address of a map into register `to`, by two instructions.
    fn load_map(&mut self, to: u8, map: i32) {
        const OF_DESCRIPTOR: u8 = 1;
        self.push(0x18, to, OF_DESCRIPTOR, 0, map);
        self.push(0, 0, 0, 0, 0);
    }

    fn call(&mut self, helper: i32) {
        self.push(0x85, 0, 0, 0, helper);
    }

    fn jump_if_zero(&mut self, register: u8) -> usize {
        self.push(0x15, register, 0, 0, 0);
        self.0.len() - 1
    }

    fn jump_unless_zero(&mut self, register: u8) -> usize {
        self.push(0x55, register, 0, 0, 0);
        self.0.len() - 1
    }

    /// Makes the next instruction the target of `jumps`.
    fn land(&mut self, jumps: impl IntoIterator<Item = usize>) {
        for jump in jumps {
            let offset = (self.0.len() - jump - 1) as u64;
            self.0[jump] |= offset << 16;
        }
    }

    /// Ends the program with the result 0.
    fn exit(&mut self) {
        self.set(0, 0);
        self.push(0x95, 0, 0, 0, 0);
    }

    /// Looks up the word on the stack at `offset` in `map`. Register 0 then holds the address of the value, or 0.
    fn look_up(&mut self, map: i32, offset: i16) {
        self.load_map(1, map);
        self.copy(2, STACK);
        self.add(2, i32::from(offset));
        self.call(MAP_LOOKUP);
    }

    /// Saves the arguments, the number of the CPU, and the address of its value in the map of CPUs. Returns the jumps to take if there is
    /// no value.
    fn begin(&mut self, maps: &Maps) -> Jumps {
        self.copy(CONTEXT, 1);
        self.call(THIS_CPU);
        self.copy(CPU_NUMBER, 0);
        self.store_word_on_stack(-4, CPU_NUMBER);
        self.look_up(maps.cpus, -4);
        let unknown = self.jump_if_zero(0);
        self.copy(CPU, 0);
        vec![unknown]
    }

    /// Jumps if the CPU is not watched, and returns the jump.
    fn unless_watched(&mut self) -> usize {
        self.load_word(1, CPU, 0);
        // Shifts right by 31.
        self.push(0x77, 1, 0, 0, 31);
        self.jump_if_zero(1)
    }

    /// Loads the number of the thread in argument `argument` into register 1.
    fn thread_of(&mut self, argument: i16, layout: Layout) {
        self.load_long(2, CONTEXT, 8 * argument);
        self.load_word(1, 2, layout.number);
    }

    /// Jumps if thread `argument` is not the first of its process, and returns the jump.
    fn unless_process(&mut self, argument: i16, layout: Layout) -> usize {
        self.thread_of(argument, layout);
        self.load_word(3, 2, layout.process);
        // Jumps if the registers differ.
        self.push(0x5d, 1, 3, 0, 0);
        self.0.len() - 1
    }

    /// Jumps if thread `argument` has no flag of `flags` in the map of threads, and returns the jumps.
    fn unless_thread(&mut self, maps: &Maps, layout: Layout, argument: i16, flags: u32) -> Jumps {
        self.thread_of(argument, layout);
        self.store_word_on_stack(-8, 1);
        self.look_up(maps.threads, -8);
        let unknown = self.jump_if_zero(0);
        self.load_word(1, 0, 0);
        // Bitwise and.
        self.push(0x57, 1, 0, 0, flags as i32);
        vec![unknown, self.jump_if_zero(1)]
    }

    /// Reserves a record of `bytes` bytes and fills in its head. If there is no room, counts the record as lost and ends.
    fn reserve(&mut self, maps: &Maps, bytes: usize, kind: u32) {
        self.load_map(1, maps.ring);
        self.set(2, bytes as i32);
        self.set(3, 0);
        self.call(RESERVE);
        let got = self.jump_unless_zero(0);
        self.set(1, 1);
        // Adds atomically.
        self.push(0xc3, CPU, 1, 0, 0);
        self.exit();
        self.land([got]);
        self.copy(RECORD, 0);
        self.call(CLOCK);
        self.store_long(RECORD, field::AT, 0);
        self.set(1, kind as i32);
        self.store_word(RECORD, field::KIND, 1);
        self.store_word(RECORD, field::CPU, CPU_NUMBER);
        self.load_word(1, CPU, 0);
        self.store_word(RECORD, field::LOST, 1);
    }

    /// Writes the number of thread `argument` to `field` of the record.
    fn store_thread(&mut self, layout: Layout, argument: i16, field: usize) {
        self.thread_of(argument, layout);
        self.store_word(RECORD, field, 1);
    }

    fn store_zero(&mut self, words: &[usize], longs: &[usize]) {
        self.set(1, 0);
        words.iter().for_each(|offset| self.store_word(RECORD, *offset, 1));
        longs.iter().for_each(|offset| self.store_long(RECORD, *offset, 1));
    }

    /// Passes the record to the reader and ends. `jumps` lead to the end without a record.
    fn submit(mut self, jumps: Jumps) -> Vec<u64> {
        self.copy(1, RECORD);
        self.set(2, NO_WAKEUP);
        self.call(SUBMIT);
        self.land(jumps);
        self.exit();
        self.0
    }
}

/// Returns the program for `sched_switch`. The arguments are: preempted, the thread that leaves, the thread that comes, and the state of
/// the former.
pub fn switch(maps: &Maps, layout: Layout) -> Vec<u64> {
    let mut code = Code::default();
    let mut end = code.begin(maps);
    end.push(code.unless_watched());
    let names = HEAD_BYTES;
    let counters = names + 2 * NAME_BYTES;
    code.reserve(maps, counters + COUNTER_BYTES * maps.counters.len(), kind::SWITCH);
    for (argument, thread, name) in [(1, field::THREAD, names), (2, field::OTHER, names + NAME_BYTES)] {
        code.store_thread(layout, argument, thread);
        for half in [0, 8] {
            code.load_long(1, 2, layout.name + half);
            code.store_long(RECORD, name + half as usize, 1);
        }
    }
    code.load_long(1, CONTEXT, 24);
    code.store_word(RECORD, field::STATE, 1);
    code.load_long(1, CONTEXT, 0);
    code.store_long(RECORD, field::VALUE, 1);
    for (position, counter) in maps.counters.iter().enumerate() {
        code.load_map(1, *counter);
        // The flag that selects the counter of this CPU: the lower 32 bits are set.
        code.push(0xb4, 2, 0, 0, -1);
        code.copy(3, RECORD);
        code.add(3, (counters + COUNTER_BYTES * position) as i32);
        code.set(4, COUNTER_BYTES as i32);
        code.call(COUNTER);
    }
    code.submit(end)
}

/// Returns the program for `sched_waking` or `sched_wakeup`, whose records are of this kind. The argument is the thread that is woken.
pub fn wakeup(maps: &Maps, layout: Layout, kind: u32) -> Vec<u64> {
    let mut code = Code::default();
    let mut end = code.begin(maps);
    end.extend(code.unless_thread(maps, layout, 0, FOLLOWED));
    code.reserve(maps, HEAD_BYTES, kind);
    code.store_thread(layout, 0, field::THREAD);
    code.store_zero(&[field::OTHER, field::STATE], &[field::VALUE]);
    code.submit(end)
}

/// Returns the program for `sched_stat_runtime`. The arguments are the thread and the time that is accounted to it.
pub fn runtime(maps: &Maps, layout: Layout) -> Vec<u64> {
    let mut code = Code::default();
    let mut end = code.begin(maps);
    // On a watched CPU the time of every thread is recorded.
    code.load_word(1, CPU, 0);
    code.push(0x77, 1, 0, 0, 31);
    let watched = code.jump_unless_zero(1);
    end.extend(code.unless_thread(maps, layout, 0, FOLLOWED | ACCOUNTED));
    code.land([watched]);
    code.reserve(maps, HEAD_BYTES, kind::RUNTIME);
    code.store_thread(layout, 0, field::THREAD);
    code.store_zero(&[field::OTHER, field::STATE], &[]);
    code.load_long(1, CONTEXT, 8);
    code.store_long(RECORD, field::VALUE, 1);
    code.submit(end)
}

/// Returns the program for `sched_process_fork`. The arguments are the thread that starts another, and the new thread. `all`: records all
/// threads, not only followed ones.
pub fn fork(maps: &Maps, layout: Layout, all: bool) -> Vec<u64> {
    let mut code = Code::default();
    let mut end = code.begin(maps);
    if !all {
        end.extend(code.unless_thread(maps, layout, 0, FOLLOWED));
    }
    code.reserve(maps, HEAD_BYTES, kind::FORK);
    code.store_thread(layout, 0, field::THREAD);
    code.store_thread(layout, 1, field::OTHER);
    code.store_zero(&[field::STATE], &[field::VALUE]);
    code.submit(end)
}

/// Returns the program for a tracepoint whose argument `argument` is a thread that was started or has executed a program: `sched_process_fork` or
/// `sched_process_exec`. Threads that are not the first of their process are left out.
pub fn started(maps: &Maps, layout: Layout, argument: i16) -> Vec<u64> {
    let mut code = Code::default();
    let mut end = code.begin(maps);
    end.push(code.unless_process(argument, layout));
    code.reserve(maps, HEAD_BYTES, kind::STARTED);
    code.store_thread(layout, argument, field::THREAD);
    code.store_zero(&[field::OTHER, field::STATE], &[field::VALUE]);
    code.submit(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_are_those_of_the_instruction_set() {
        let mut code = Code::default();
        code.copy(6, 1);
        code.load_map(1, 5);
        let jump = code.jump_if_zero(0);
        code.load_word(1, 7, 4);
        code.land([jump]);
        code.exit();
        // r6 = r1; r1 = map 5 ll; if r0 == 0 goto +1; r1 = *(u32 *)(r7 + 4); r0 = 0; exit
        let expected = [0x16bf, 0x5_0000_1118, 0, 0x1_0015, 0x4_7161, 0xb7, 0x95];
        assert_eq!(code.0, expected);
    }
}
