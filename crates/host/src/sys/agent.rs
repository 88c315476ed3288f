//! The code that a helper thread runs inside another process to give its pages other frames.
//!
//! The code is position-independent, needs no memory but its table, and finishes the table on its own: nobody has to be there
//! for it. Meanwhile no other thread of the process may run. Contents of a page are at every instant in at least one of three
//! places: the page, the scratch memory, the new frame; and the helper goes on until they are in the page again.
//!
//! Where frame numbers are hidden, it also measures which pages evict which; for that the other threads may run.

use std::slice;

/// Largest number of pages that are moved at a time.
pub const RUN: usize = 64;

/// Method by which an entry of the table is carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum MoveMethod {
    /// Moves a page: UFFDIO_MOVE to scratch memory, a copy, and UFFDIO_MOVE of the new frame into place.
    Move = 0,
    /// Moves a page of a file that is mapped privately and was not written to: gives the new frame back to the system and writes to the
    /// page. The kernel then makes the private copy in the frame that was freed last.
    Copy = 1,
    /// Moves any other page: saves it, drops it, gives the new frame back, writes to the page, and restores the saved contents.
    Replace = 2,
    /// Moves no page, but gives the kernel the advice `run` about the memory from `page` on, `slot` bytes. The result is the status.
    Advise = 3,
    /// Moves no page, but registers the memory from `page` on, `slot` bytes, with the userfaultfd `run`. The result of the ioctl is the
    /// status.
    Register = 5,
    /// Moves no page, but gives the memory from `page` on, `slot` bytes, the protection `run`. The result of mprotect is the status.
    Protect = 6,
    /// No page: answers the requests of a [`TestHeader`] at the address `page`, until the last request is made.
    Test = 4,
}

/// A page to be moved, as the agent reads it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Entry {
    /// Address of the page.
    pub page: u64,
    /// Address of the page of the pool whose frame the page is to have.
    pub slot: u64,
    /// Move method: a [`MoveMethod`] as a number.
    pub method: u32,
    /// In the first entry of a run (pages that are moved at a time): the number of its entries; in the others: [`NEIGHBOR`], or 1 if the page
    /// is no neighbor. In entries for no page: what their [`MoveMethod`] says, or 1 if it says nothing.
    pub run: u32,
    /// 0 before the entry is handled; afterwards [`DONE`], or a negative error number if the page was left as it was.
    pub status: i64,
}

/// [`Entry::run`] within a run, of a page that follows the previous one in the same mapping, so that both are moved out together.
pub const NEIGHBOR: u32 = 0;

/// [`Entry::status`] of a page that was given its new frame.
pub const DONE: i64 = 2;

/// Arguments of the agent's code; the entries are separate.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Table {
    /// A userfaultfd with which all pages to be moved are registered. It is closed at the end.
    pub userfault: i64,
    /// Address of the first entry.
    pub entries: u64,
    /// Number of entries.
    pub count: u64,
    /// Address of [`RUN`] empty pages.
    pub scratch: u64,
    /// Bytes of a page.
    pub page_bytes: u64,
    /// The advice that drops pages: MADV_DONTNEED, or the one that drops locked pages too.
    pub advice: u64,
    /// Number of entries that are finished.
    pub done: u64,
    /// A `struct uffdio_move`, followed by room for an error number.
    pub request: [u64; 6],
    /// Address of a page in which another one can be saved.
    pub saved: u64,
    /// Counter value after which no entry but the first, and no run but the first, is begun.
    pub deadline: u64,
    /// Value of the counter when the last entry was finished.
    pub ended: u64,
}

/// Offset of the deadline in a [`Table`], in bytes.
pub const DEADLINE_AT: u64 = std::mem::offset_of!(Table, deadline) as u64;

/// Requests for eviction tests: how long walks over some pages take after others were traversed. The pages are only read.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct TestHeader {
    /// Number of the latest request; [`LAST`] tells the agent that there will be no more.
    pub request: u64,
    /// Number of the latest request that was answered.
    pub answer: u64,
    /// Ticks without a request after which the agent ends, because whoever makes the requests must be dead.
    pub patience: u64,
    /// Number of traversals of each set.
    pub passes: u64,
    /// Address of the first of the [tests](Test).
    pub tests: u64,
    /// Number of tests.
    pub tests_len: u64,
    /// Number of tests that are still to be taken.
    pub left: u64,
}

/// One eviction test.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Test {
    /// Address of the addresses of the pages that are traversed.
    pub set: u64,
    /// Number of pages in the set.
    pub set_len: u64,
    /// Address of the addresses of the pages that are touched before the traversal and walked after it.
    pub targets: u64,
    /// Number of targets.
    pub targets_len: u64,
    /// Address of the offsets of the words that are touched in each page of the set.
    pub order: u64,
    /// Number of offsets in the order.
    pub order_len: u64,
    /// Number of offsets, from the first on, that are touched and walked in the targets: a power of two.
    pub walked_len: u64,
    /// Address where the ticks of each walk are written.
    pub ticks: u64,
}

/// Value of [`TestHeader::request`] that tells the agent to end.
pub const LAST: u64 = u64::MAX;

// What the code below relies on.
const _: () = assert!(size_of::<Entry>() == 32 && size_of::<Table>() == 128);
const _: () = assert!(size_of::<TestHeader>() == 56 && size_of::<Test>() == 64);

/// Returns the bytes of `record`, as they lie in memory.
pub fn bytes_of<T: Record>(record: &T) -> &[u8] {
    // SAFETY: a `Record` is a `repr(C)` structure of integers without padding, so all its bytes are initialized.
    unsafe { slice::from_raw_parts(std::ptr::from_ref(record).cast(), size_of::<T>()) }
}

/// Returns the record that `bytes` hold. Panics when they have another size than `T`.
pub fn record_from<T: Record>(bytes: &[u8]) -> T {
    assert_eq!(bytes.len(), size_of::<T>());
    // SAFETY: the bytes are as many as a `Record` has, which is made of integers alone, so that any bytes are one.
    unsafe { bytes.as_ptr().cast::<T>().read_unaligned() }
}

/// Structures of integers without padding.
///
/// # Safety
///
/// Every byte belongs to a field, and every combination of bytes is a value.
pub unsafe trait Record: Copy {}
// SAFETY: two u64, two u32 and one i64, in this order: no padding (32 bytes, asserted above).
unsafe impl Record for Entry {}
// SAFETY: sixteen words (128 bytes, asserted above).
unsafe impl Record for Table {}
// SAFETY: seven words (56 bytes, asserted above).
unsafe impl Record for TestHeader {}
// SAFETY: eight words (64 bytes, asserted above).
unsafe impl Record for Test {}

/// Returns the helper's code. Its entry is its first byte; it needs the address of the [`Table`] as argument and a stack of 64 bytes.
pub fn code() -> &'static [u8] {
    let (begin, end) = (&raw const isochrome_agent_begin, &raw const isochrome_agent_end);
    // SAFETY: the assembler put both labels into one section, the second behind the first; the text between them is readable
    // and never changes.
    unsafe { slice::from_raw_parts(begin, end.addr() - begin.addr()) }
}

/// A system-call instruction, followed by an endless wait, which threads execute while their process is worked on. It is a multiple of
/// words of 8 bytes.
#[cfg(target_arch = "x86_64")]
pub const CAVE: [u8; 16] = [
    0x0f, 0x05, // syscall
    0xb8, 0x22, 0, 0, 0, // mov eax, SYS_pause
    0x0f, 0x05, // syscall
    0xeb, 0xf7, // jmp back to the mov
    0, 0, 0, 0, 0,
];
/// System-call instruction, then an endless wait, as on x86-64. There is no `pause` here, so ppoll waits for nothing.
#[cfg(target_arch = "aarch64")]
pub const CAVE: [u8; 40] = [
    0x01, 0, 0, 0xd4, // svc 0
    0, 0, 0x80, 0xd2, // mov x0, 0
    0x01, 0, 0x80, 0xd2, // mov x1, 0
    0x02, 0, 0x80, 0xd2, // mov x2, 0
    0x03, 0, 0x80, 0xd2, // mov x3, 0
    0x04, 0, 0x80, 0xd2, // mov x4, 0
    0x28, 0x09, 0x80, 0xd2, // mov x8, SYS_ppoll (73)
    0x01, 0, 0, 0xd4, // svc 0
    0xf9, 0xff, 0xff, 0x17, // b back to the first mov
    0x1f, 0x20, 0x03, 0xd5, // nop
];

/// Offset in the cave, in bytes, at which the wait begins.
#[cfg(target_arch = "x86_64")]
pub const WAIT: u64 = 2;
/// Offset in the cave, in bytes, at which the wait begins.
#[cfg(target_arch = "aarch64")]
pub const WAIT: u64 = 4;

/// Name and number of the system call in which a thread waits in the cave.
#[cfg(target_arch = "x86_64")]
pub const WAITING_CALL: (&str, libc::c_long) = ("pause", libc::SYS_pause);
/// Name and number of the system call in which a thread waits in the cave.
#[cfg(target_arch = "aarch64")]
pub const WAITING_CALL: (&str, libc::c_long) = ("ppoll", libc::SYS_ppoll);

unsafe extern "C" {
    static isochrome_agent_begin: u8;
    static isochrome_agent_end: u8;
}

#[cfg(target_arch = "x86_64")]
std::arch::global_asm!(
    ".pushsection .text.isochrome_agent, \"ax\", @progbits",
    ".globl isochrome_agent_begin",
    ".hidden isochrome_agent_begin",
    ".globl isochrome_agent_end",
    ".hidden isochrome_agent_end",
    "isochrome_agent_begin:",
    "cld",
    "mov rbx, rdi",
    // rbx: table, r12: entry, r13: page within the run, r14: pages of the run, r15: tries
    "mov r12, [rbx + 8]",
    "2:",
    "mov rax, [rbx + 48]",
    "cmp rax, [rbx + 16]",
    "jae 90f",
    "test rax, rax",
    "jz 9f",
    "rdtsc",
    "shl rdx, 32",
    "or rax, rdx",
    "cmp rax, [rbx + 112]",
    "jae 90f",
    "9:",
    "mov eax, [r12 + 16]",
    "test eax, eax",
    "jz 20f",
    "cmp eax, 1",
    "je 3f",
    "cmp eax, 4",
    "je 50f",
    "cmp eax, 5",
    "je 70f",
    "cmp eax, 6",
    "je 71f",
    "cmp eax, 3",
    "jne 6f",
    "mov rdi, [r12]",
    "mov rsi, [r12 + 8]",
    "mov edx, [r12 + 20]",
    "mov eax, 28", // madvise
    "syscall",
    "jmp 5f",
    // UFFDIO_REGISTER for pages that are missing.
    "70:",
    "mov rax, [r12]",
    "mov [rbx + 56], rax",
    "mov rax, [r12 + 8]",
    "mov [rbx + 64], rax",
    "mov qword ptr [rbx + 72], 1",
    "mov qword ptr [rbx + 80], 0",
    "mov edi, [r12 + 20]",
    "mov esi, 0xc020aa00",
    "lea rdx, [rbx + 56]",
    "mov eax, 16", // ioctl
    "syscall",
    "jmp 5f",
    "71:",
    "mov rdi, [r12]",
    "mov rsi, [r12 + 8]",
    "mov edx, [r12 + 20]",
    "mov eax, 10", // mprotect
    "syscall",
    "jmp 5f",
    // Save and drop.
    "6:",
    "mov rdi, [rbx + 104]",
    "mov rsi, [r12]",
    "call 80f",
    "mov rdi, [r12]",
    "call 82f",
    "test rax, rax",
    "js 5f",
    // Free the new frame and have the kernel take it.
    "3:",
    "mov rdi, [r12 + 8]",
    "call 82f",
    "mov rax, [r12]",
    "lock or byte ptr [rax], 0",
    "cmp dword ptr [r12 + 16], 2",
    "jne 4f",
    "mov rdi, [r12]",
    "mov rsi, [rbx + 104]",
    "call 80f",
    "4:",
    "mov eax, 2",
    "5:",
    "mov [r12 + 24], rax",
    "add r12, 32",
    "inc qword ptr [rbx + 48]",
    "jmp 2b",
    // A run to be moved. Out to the scratch memory, neighbors together:
    "20:",
    "mov r14d, [r12 + 20]",
    "xor r13d, r13d",
    "xor r15d, r15d",
    "21:",
    "cmp r13, r14",
    "jae 30f",
    "mov rax, r13",
    "imul rax, [rbx + 32]",
    "add rax, [rbx + 24]",
    "mov [rbx + 56], rax",
    "mov rdx, r13",
    "shl rdx, 5",
    "add rdx, r12",
    "mov rax, [rdx]",
    "mov [rbx + 64], rax",
    "mov rcx, r13",
    "xor eax, eax",
    "25:",
    "add rax, [rbx + 32]",
    "add rdx, 32",
    "inc rcx",
    "cmp rcx, r14",
    "jae 26f",
    "cmp dword ptr [rdx + 20], 0",
    "je 25b",
    "26:",
    "mov [rbx + 72], rax",
    "call 84f",
    "mov rcx, [rbx + 88]",
    "test rcx, rcx",
    "jle 23f",
    "22:",
    "mov rdx, r13",
    "shl rdx, 5",
    "mov qword ptr [r12 + rdx + 24], 1",
    "inc r13",
    "sub rcx, [rbx + 32]",
    "jg 22b",
    "xor r15d, r15d",
    "jmp 21b",
    "23:",
    "inc r15",
    "cmp r15, 200",
    "ja 24f",
    "cmp rax, -11",
    "je 21b",
    "cmp rax, -16",
    "jne 24f",
    // Busy because it is shared since a fork: a write gives the process a page of its own.
    "mov rax, [rbx + 64]",
    "lock or byte ptr [rax], 0",
    "mov rax, -16",
    "jmp 21b",
    "24:",
    "mov rdx, r13",
    "shl rdx, 5",
    "mov [r12 + rdx + 24], rax",
    "inc r13",
    "xor r15d, r15d",
    "jmp 21b",
    // Copy what was moved out:
    "30:",
    "xor r13d, r13d",
    "31:",
    "cmp r13, r14",
    "jae 40f",
    "mov rdx, r13",
    "shl rdx, 5",
    "cmp qword ptr [r12 + rdx + 24], 1",
    "jne 32f",
    "mov rdi, [r12 + rdx + 8]",
    "mov rsi, r13",
    "imul rsi, [rbx + 32]",
    "add rsi, [rbx + 24]",
    "call 80f",
    "32:",
    "inc r13",
    "jmp 31b",
    // New frames in, neighbors that are neighbors in the pool, too, together:
    "40:",
    "xor r13d, r13d",
    "41:",
    "xor r15d, r15d",
    "42:",
    "cmp r13, r14",
    "jae 60f",
    "mov rdx, r13",
    "shl rdx, 5",
    "add rdx, r12",
    "cmp qword ptr [rdx + 24], 1",
    "jne 49f",
    "mov rax, [rdx]",
    "mov [rbx + 56], rax",
    "mov rax, [rdx + 8]",
    "mov [rbx + 64], rax",
    "mov rcx, r13",
    "43:",
    "add rax, [rbx + 32]",
    "add rdx, 32",
    "inc rcx",
    "cmp rcx, r14",
    "jae 44f",
    "cmp qword ptr [rdx + 24], 1",
    "jne 44f",
    "cmp dword ptr [rdx + 20], 0",
    "jne 44f",
    "cmp rax, [rdx + 8]",
    "je 43b",
    "44:",
    "sub rax, [rbx + 64]",
    "mov [rbx + 72], rax",
    "call 84f",
    "mov rcx, [rbx + 88]",
    "test rcx, rcx",
    "jle 46f",
    "45:",
    "mov rdx, r13",
    "shl rdx, 5",
    "mov qword ptr [r12 + rdx + 24], 2",
    "inc r13",
    "sub rcx, [rbx + 32]",
    "jg 45b",
    "jmp 41b",
    "46:",
    "cmp rax, -17",
    "je 48f",
    "inc r15",
    "cmp r15, 1000",
    "jb 42b",
    // It cannot be moved in, so the old frame goes back.
    "mov [rbx + 96], rax",
    "47:",
    "mov rdx, r13",
    "imul rdx, [rbx + 32]",
    "add rdx, [rbx + 24]",
    "mov [rbx + 64], rdx",
    "mov rdx, [rbx + 32]",
    "mov [rbx + 72], rdx",
    "call 84f",
    "cmp rax, -17",
    "je 48f",
    "test rax, rax",
    "jnz 47b",
    "mov rax, [rbx + 96]",
    "mov rdx, r13",
    "shl rdx, 5",
    "mov [r12 + rdx + 24], rax",
    "jmp 49f",
    // Something is there already: it becomes what it has to be.
    "48:",
    "mov rdx, r13",
    "shl rdx, 5",
    "mov rdi, [r12 + rdx]",
    "mov rsi, [r12 + rdx + 8]",
    "mov qword ptr [r12 + rdx + 24], 2",
    "call 80f",
    "49:",
    "inc r13",
    "jmp 41b",
    // Old frames go back to the system.
    "60:",
    "mov rdi, [rbx + 24]",
    "mov rsi, r14",
    "imul rsi, [rbx + 32]",
    "call 83f",
    "add [rbx + 48], r14",
    "shl r14, 5",
    "add r12, r14",
    "jmp 2b",
    // Eviction tests. r13: header, rbp: test, r14: what is counted, r15: when it began.
    "50:",
    "mov r13, [r12]",
    "51:",
    "call 87f",
    "mov r15, rax",
    "52:",
    "pause",
    "mov rcx, [r13]",
    "cmp rcx, -1",
    "je 4b",
    "cmp rcx, [r13 + 8]",
    "jne 53f",
    "call 87f",
    "sub rax, r15",
    "cmp rax, [r13 + 16]",
    "jb 52b",
    "jmp 4b",
    "53:",
    "mov rbp, [r13 + 32]",
    "mov rax, [r13 + 40]",
    "mov [r13 + 48], rax",
    "57:",
    "cmp qword ptr [r13 + 48], 0",
    "je 59f",
    "mov rsi, [rbp + 16]",
    "mov rcx, [rbp + 24]",
    "mov r10, [rbp + 48]",
    "call 88f",
    "mov r14, [r13 + 24]",
    "54:",
    "test r14, r14",
    "jz 55f",
    "mov rsi, [rbp]",
    "mov rcx, [rbp + 8]",
    "mov r10, [rbp + 40]",
    "call 88f",
    "dec r14",
    "jmp 54b",
    "55:",
    "cmp r14, [rbp + 24]",
    "jae 58f",
    "mov rsi, [rbp + 16]",
    "mov rdi, [rsi + r14 * 8]",
    "mov rsi, [rbp + 32]",
    "mov r8, [rbp + 48]",
    "xor ecx, ecx",
    // The traversal may have pushed out the order of the walk, which would be taken for what it pushed out of the page.
    "60:",
    "mov r9, [rsi + rcx * 8]",
    "inc rcx",
    "cmp rcx, r8",
    "jb 60b",
    // Each target in another order, as cores learn: from another place of the list on, in steps of another odd number.
    "lea r10, [r14 * 2 + 1]",
    "lea r11, [r8 - 1]",
    "call 87f",
    "mov r15, rax",
    "mov rcx, r14",
    "and rcx, r11",
    "xor r9d, r9d",
    // Each load waits for the one before, whatever that one read.
    "56:",
    "add r9, [rsi + rcx * 8]",
    "mov r9, [rdi + r9]",
    "and r9, 0",
    "add rcx, r10",
    "and rcx, r11",
    "dec r8",
    "jnz 56b",
    "call 87f",
    "sub rax, r15",
    "mov rdx, [rbp + 56]",
    "mov [rdx + r14 * 8], rax",
    "inc r14",
    "jmp 55b",
    "58:",
    "add rbp, 64",
    "dec qword ptr [r13 + 48]",
    "jmp 57b",
    "59:",
    "mov rcx, [r13]",
    "mov [r13 + 8], rcx",
    "jmp 51b",
    // Touches the first r10 lines of the order in each of the rcx pages whose addresses lie at rsi, the last first: a core that learned in
    // which order they follow each other would fetch them ahead of the walk.
    "88:",
    "test rcx, rcx",
    "jz 89f",
    "mov rdi, [rsi]",
    "mov r9, [rbp + 32]",
    "mov r8, r10",
    "81:",
    "mov rdx, [r9 + r8 * 8 - 8]",
    "mov rdx, [rdi + rdx]",
    "dec r8",
    "jnz 81b",
    "add rsi, 8",
    "dec rcx",
    "jmp 88b",
    "89:",
    "ret",
    // The counter, in order.
    "87:",
    "lfence",
    "rdtsc",
    "lfence",
    "shl rdx, 32",
    "or rax, rdx",
    "ret",
    // Copies a page from rsi to rdi.
    "80:",
    "mov rcx, [rbx + 32]",
    "shr rcx, 3",
    "rep movsq",
    "ret",
    // Drops the page at rdi; rsi bytes.
    "82:",
    "mov rsi, [rbx + 32]",
    "83:",
    "mov rdx, [rbx + 40]",
    "mov eax, 28", // madvise
    "syscall",
    "ret",
    // UFFDIO_MOVE as the request says.
    "84:",
    "xor eax, eax",
    "mov [rbx + 80], rax",
    "mov [rbx + 88], rax",
    "mov rdi, [rbx]",
    "mov esi, 0xc028aa05",
    "lea rdx, [rbx + 56]",
    "mov eax, 16", // ioctl
    "syscall",
    "ret",
    "90:",
    "rdtsc",
    "shl rdx, 32",
    "or rax, rdx",
    "mov [rbx + 120], rax",
    "mov rdi, [rbx]",
    "mov eax, 3", // close
    "syscall",
    "xor edi, edi",
    "mov eax, 60", // exit
    "syscall",
    "isochrome_agent_end:",
    ".popsection",
);

#[cfg(target_arch = "aarch64")]
std::arch::global_asm!(
    ".pushsection .text.isochrome_agent, \"ax\", @progbits",
    ".globl isochrome_agent_begin",
    ".hidden isochrome_agent_begin",
    ".globl isochrome_agent_end",
    ".hidden isochrome_agent_end",
    "isochrome_agent_begin:",
    // x19: table, x20: entry, x21: page within the run, x22: pages of the run, x23: tries, x24: bytes of a page
    "mov x19, x0",
    "ldr x20, [x19, 8]",
    "ldr x24, [x19, 32]",
    "2:",
    "ldp x9, x10, [x19, 16]", // count, scratch
    "ldr x11, [x19, 48]",
    "cmp x11, x9",
    "b.hs 90f",
    "cbz x11, 9f",
    "mrs x9, cntvct_el0",
    "ldr x10, [x19, 112]",
    "cmp x9, x10",
    "b.hs 90f",
    "9:",
    "ldr w9, [x20, 16]",
    "cbz w9, 20f",
    "cmp w9, 1",
    "b.eq 3f",
    "cmp w9, 4",
    "b.eq 50f",
    "cmp w9, 5",
    "b.eq 70f",
    "cmp w9, 6",
    "b.eq 71f",
    "cmp w9, 3",
    "b.ne 6f",
    "ldp x0, x1, [x20]",
    "ldr w2, [x20, 20]",
    "mov x8, 233", // madvise
    "svc 0",
    "b 5f",
    // UFFDIO_REGISTER for pages that are missing.
    "70:",
    "ldp x9, x10, [x20]",
    "stp x9, x10, [x19, 56]",
    "mov x9, 1",
    "stp x9, xzr, [x19, 72]",
    "ldr w0, [x20, 20]",
    "movz x1, 0xaa00",
    "movk x1, 0xc020, lsl 16",
    "add x2, x19, 56",
    "mov x8, 29", // ioctl
    "svc 0",
    "b 5f",
    "71:",
    "ldp x0, x1, [x20]",
    "ldr w2, [x20, 20]",
    "mov x8, 226", // mprotect
    "svc 0",
    "b 5f",
    "6:",
    "ldr x0, [x19, 104]",
    "ldr x1, [x20]",
    "bl 80f",
    "ldr x0, [x20]",
    "bl 82f",
    "tbnz x0, 63, 5f",
    "3:",
    "ldr x0, [x20, 8]",
    "bl 82f",
    "ldr x9, [x20]",
    "bl 86f",
    "ldr w9, [x20, 16]",
    "cmp w9, 2",
    "b.ne 4f",
    "ldr x0, [x20]",
    "ldr x1, [x19, 104]",
    "bl 80f",
    "4:",
    "mov x0, 2",
    "5:",
    "str x0, [x20, 24]",
    "add x20, x20, 32",
    "ldr x9, [x19, 48]",
    "add x9, x9, 1",
    "str x9, [x19, 48]",
    "b 2b",
    "20:",
    "ldr w22, [x20, 20]",
    "mov x21, 0",
    "mov x23, 0",
    "21:",
    "cmp x21, x22",
    "b.hs 30f",
    "ldr x10, [x19, 24]",
    "madd x10, x21, x24, x10",
    "add x11, x20, x21, lsl 5",
    "ldr x12, [x11]",
    "stp x10, x12, [x19, 56]",
    "mov x13, x21",
    "mov x9, 0",
    "25:",
    "add x9, x9, x24",
    "add x11, x11, 32",
    "add x13, x13, 1",
    "cmp x13, x22",
    "b.hs 26f",
    "ldr w12, [x11, 20]",
    "cbz w12, 25b",
    "26:",
    "str x9, [x19, 72]",
    "bl 84f",
    "ldr x9, [x19, 88]",
    "cmp x9, 0",
    "b.le 23f",
    "mov x11, 1",
    "22:",
    "add x10, x20, x21, lsl 5",
    "str x11, [x10, 24]",
    "add x21, x21, 1",
    "subs x9, x9, x24",
    "b.gt 22b",
    "mov x23, 0",
    "b 21b",
    "23:",
    "add x23, x23, 1",
    "cmp x23, 200",
    "b.hi 24f",
    "cmn x0, 11",
    "b.eq 21b",
    "cmn x0, 16",
    "b.ne 24f",
    "ldr x9, [x19, 64]",
    "bl 86f",
    "b 21b",
    "24:",
    "add x10, x20, x21, lsl 5",
    "str x0, [x10, 24]",
    "add x21, x21, 1",
    "mov x23, 0",
    "b 21b",
    "30:",
    "mov x21, 0",
    "31:",
    "cmp x21, x22",
    "b.hs 40f",
    "add x10, x20, x21, lsl 5",
    "ldr x11, [x10, 24]",
    "cmp x11, 1",
    "b.ne 32f",
    "ldr x0, [x10, 8]",
    "ldr x1, [x19, 24]",
    "madd x1, x21, x24, x1",
    "bl 80f",
    "32:",
    "add x21, x21, 1",
    "b 31b",
    "40:",
    "mov x21, 0",
    "41:",
    "mov x23, 0",
    "42:",
    "cmp x21, x22",
    "b.hs 60f",
    "add x10, x20, x21, lsl 5",
    "ldr x11, [x10, 24]",
    "cmp x11, 1",
    "b.ne 49f",
    "ldp x9, x12, [x10]",
    "stp x9, x12, [x19, 56]",
    "mov x13, x21",
    "43:",
    "add x12, x12, x24",
    "add x10, x10, 32",
    "add x13, x13, 1",
    "cmp x13, x22",
    "b.hs 44f",
    "ldr x11, [x10, 24]",
    "cmp x11, 1",
    "b.ne 44f",
    "ldr w11, [x10, 20]",
    "cbnz w11, 44f",
    "ldr x11, [x10, 8]",
    "cmp x12, x11",
    "b.eq 43b",
    "44:",
    "ldr x11, [x19, 64]",
    "sub x12, x12, x11",
    "str x12, [x19, 72]",
    "bl 84f",
    "ldr x9, [x19, 88]",
    "cmp x9, 0",
    "b.le 46f",
    "mov x11, 2",
    "45:",
    "add x10, x20, x21, lsl 5",
    "str x11, [x10, 24]",
    "add x21, x21, 1",
    "subs x9, x9, x24",
    "b.gt 45b",
    "b 41b",
    "46:",
    "cmn x0, 17",
    "b.eq 48f",
    "add x23, x23, 1",
    "cmp x23, 1000",
    "b.lo 42b",
    "str x0, [x19, 96]",
    "47:",
    "ldr x9, [x19, 24]",
    "madd x9, x21, x24, x9",
    "stp x9, x24, [x19, 64]",
    "bl 84f",
    "cmn x0, 17",
    "b.eq 48f",
    "cbnz x0, 47b",
    "ldr x0, [x19, 96]",
    "add x10, x20, x21, lsl 5",
    "str x0, [x10, 24]",
    "b 49f",
    "48:",
    "add x10, x20, x21, lsl 5",
    "mov x11, 2",
    "str x11, [x10, 24]",
    "ldp x0, x1, [x10]",
    "bl 80f",
    "49:",
    "add x21, x21, 1",
    "b 41b",
    "60:",
    "ldr x0, [x19, 24]",
    "mul x1, x22, x24",
    "bl 83f",
    "ldr x9, [x19, 48]",
    "add x9, x9, x22",
    "str x9, [x19, 48]",
    "add x20, x20, x22, lsl 5",
    "b 2b",
    // Eviction tests. x21: header, x25: test, x26: tests left, x22: what is counted, x23: when it began.
    "50:",
    "ldr x21, [x20]",
    "51:",
    "bl 87f",
    "mov x23, x0",
    "52:",
    "yield",
    "ldar x9, [x21]",
    "cmn x9, 1",
    "b.eq 4b",
    "ldp x10, x11, [x21, 8]", // answer, patience
    "cmp x9, x10",
    "b.ne 53f",
    "bl 87f",
    "sub x0, x0, x23",
    "cmp x0, x11",
    "b.lo 52b",
    "b 4b",
    "53:",
    "ldp x25, x26, [x21, 32]",
    "57:",
    "cbz x26, 59f",
    "ldp x1, x2, [x25, 16]", // targets
    "ldr x15, [x25, 48]",
    "bl 88f",
    "ldr x22, [x21, 24]",
    "54:",
    "cbz x22, 55f",
    "ldp x1, x2, [x25]", // set
    "ldr x15, [x25, 40]",
    "bl 88f",
    "sub x22, x22, 1",
    "b 54b",
    "55:",
    "ldp x1, x2, [x25, 16]",
    "cmp x22, x2",
    "b.hs 58f",
    "ldr x12, [x1, x22, lsl 3]",
    "ldr x13, [x25, 32]", // order
    "ldr x14, [x25, 48]",
    // The traversal may have pushed out the order of the walk, which would be taken for what it pushed out of the page.
    "60:",
    "ldr x9, [x13], 8",
    "subs x14, x14, 1",
    "b.ne 60b",
    "ldr x13, [x25, 32]",
    "ldr x14, [x25, 48]",
    // Each target in another order, as on x86-64.
    "lsl x16, x22, 1",
    "add x16, x16, 1",
    "sub x17, x14, 1",
    "bl 87f",
    "mov x23, x0",
    "and x15, x22, x17",
    "mov x9, 0",
    // Each load waits for the one before, whatever that one read.
    "56:",
    "ldr x10, [x13, x15, lsl 3]",
    "add x9, x9, x10",
    "ldr x9, [x12, x9]",
    "and x9, x9, xzr",
    "add x15, x15, x16",
    "and x15, x15, x17",
    "subs x14, x14, 1",
    "b.ne 56b",
    "bl 87f",
    "sub x0, x0, x23",
    "ldr x10, [x25, 56]",
    "str x0, [x10, x22, lsl 3]",
    "add x22, x22, 1",
    "b 55b",
    "58:",
    "add x25, x25, 64",
    "sub x26, x26, 1",
    "b 57b",
    "59:",
    "ldr x9, [x21]",
    "add x10, x21, 8",
    "stlr x9, [x10]",
    "b 51b",
    // Touches the first x15 lines of the order in each of the x2 pages whose addresses lie at x1, the last first, as above.
    "88:",
    "cbz x2, 89f",
    "ldr x12, [x1], 8",
    "ldr x13, [x25, 32]",
    "mov x14, x15",
    "85:",
    "sub x14, x14, 1",
    "ldr x9, [x13, x14, lsl 3]",
    "ldr x9, [x12, x9]",
    "cbnz x14, 85b",
    "sub x2, x2, 1",
    "b 88b",
    "89:",
    "ret",
    // The counter, in order.
    "87:",
    "dsb ld",
    "isb",
    "mrs x0, cntvct_el0",
    "isb",
    "ret",
    // Copies a page from x1 to x0.
    "80:",
    "add x9, x0, x24",
    "81:",
    "ldp x10, x11, [x1], 16",
    "stp x10, x11, [x0], 16",
    "cmp x0, x9",
    "b.lo 81b",
    "ret",
    // Drops the page at x0; x1 bytes.
    "82:",
    "mov x1, x24",
    "83:",
    "ldr x2, [x19, 40]",
    "mov x8, 233", // madvise
    "svc 0",
    "ret",
    // UFFDIO_MOVE as the request says.
    "84:",
    "stp xzr, xzr, [x19, 80]",
    "ldr x0, [x19]",
    "movz x1, 0xaa05",
    "movk x1, 0xc028, lsl 16",
    "add x2, x19, 56",
    "mov x8, 29", // ioctl
    "svc 0",
    "ret",
    // Writes what is there already to the byte at x9.
    "86:",
    "ldxrb w10, [x9]",
    "stxrb w11, w10, [x9]",
    "cbnz w11, 86b",
    "ret",
    "90:",
    "mrs x9, cntvct_el0",
    "str x9, [x19, 120]",
    "ldr x0, [x19]",
    "mov x8, 57", // close
    "svc 0",
    "mov x0, 0",
    "mov x8, 93", // exit
    "svc 0",
    "isochrome_agent_end:",
    ".popsection",
);
