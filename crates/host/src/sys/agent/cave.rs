//! The code in which a parked thread waits.

/// Code that threads execute while their process is worked on: a system-call instruction, followed by an endless wait. The length is a multiple
/// of 8 bytes.
#[cfg(target_arch = "x86_64")]
pub const CAVE: [u8; 16] = [
    0x0f, 0x05, // syscall
    0xb8, 0x22, 0, 0, 0, // mov eax, SYS_pause
    0x0f, 0x05, // syscall
    0xeb, 0xf7, // jmp back to the mov
    0, 0, 0, 0, 0,
];
/// Code as on x86-64: a system-call instruction, followed by an endless wait. There is no `pause` here, so ppoll waits for nothing.
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
