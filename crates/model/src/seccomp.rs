//! Evaluates seccomp filters, which are programs for the classic BPF machine, for a system call. [Linux, net/core/filter.c,
//! kernel/seccomp.c; seccomp(2)]

/// An instruction of a filter: `struct sock_filter`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instruction {
    /// Operation code.
    pub code: u16,
    /// Number of instructions to skip if a condition holds.
    pub jump_true: u8,
    /// Number of instructions to skip if the condition does not hold.
    pub jump_false: u8,
    /// The operand.
    pub operand: u32,
}

/// A system call as a filter sees it: `struct seccomp_data`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// Number of the system call.
    pub number: u32,
    /// `AUDIT_ARCH_...` of the machine.
    pub architecture: u32,
    /// Address behind the instruction that makes the call.
    pub instruction: u64,
    /// Arguments of the call.
    pub arguments: [u64; 6],
}

/// Verdict of a filter on a system call; the strictest is the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// The call is made.
    Allowed,
    /// The call is not made, and fails with this error number.
    Fails(u16),
    /// The thread or the process is killed or gets a signal, or another process decides.
    Forbidden,
}

/// Size of `struct seccomp_data`, in bytes.
const CALL_BYTES: u32 = 64;

impl Call {
    /// Returns the word at this offset of `struct seccomp_data` on a little-endian machine; `None` if the offset is not that
    /// of a word.
    fn word(&self, offset: u32) -> Option<u32> {
        let half = |value: u64| (value >> (8 * (offset % 8))) as u32;
        match offset {
            _ if !offset.is_multiple_of(4) => None,
            0 => Some(self.number),
            4 => Some(self.architecture),
            8 | 12 => Some(half(self.instruction)),
            16..CALL_BYTES => Some(half(self.arguments[(offset as usize - 16) / 8])),
            _ => None,
        }
    }
}

/// Returns the verdict of `filter` on `call`; `None` if the kernel would not accept the filter.
///
/// Jumps go forward only, so the evaluation ends.
pub fn verdict(filter: &[Instruction], call: &Call) -> Option<Verdict> {
    /// Number of memory words of a filter. [Linux, include/uapi/linux/bpf_common.h, BPF_MEMWORDS]
    const WORDS: usize = 16;
    let (mut a, mut x, mut memory) = (0u32, 0u32, [0u32; WORDS]);
    let mut at = 0usize;
    loop {
        let Instruction { code, jump_true, jump_false, operand } = *filter.get(at)?;
        at += 1;
        // Bits 0-2 are the class; bit 3 says that the second operand is X.
        let second = if code & 8 == 0 { operand } else { x };
        match code {
            // BPF_LD and BPF_LDX: of the call (BPF_W | BPF_ABS), its size (BPF_LEN), a constant (BPF_IMM), memory (BPF_MEM).
            0x20 => a = call.word(operand)?,
            0x80 => a = CALL_BYTES,
            0x81 => x = CALL_BYTES,
            0x00 => a = operand,
            0x01 => x = operand,
            0x60 => a = *memory.get(operand as usize)?,
            0x61 => x = *memory.get(operand as usize)?,
            // BPF_ST, BPF_STX.
            0x02 => *memory.get_mut(operand as usize)? = a,
            0x03 => *memory.get_mut(operand as usize)? = x,
            // BPF_ALU. A division by zero ends a filter with 0, which kills.
            0x04 | 0x0c => a = a.wrapping_add(second),
            0x14 | 0x1c => a = a.wrapping_sub(second),
            0x24 | 0x2c => a = a.wrapping_mul(second),
            0x34 | 0x3c if second == 0 => return Some(Verdict::Forbidden),
            0x34 | 0x3c => a /= second,
            0x44 | 0x4c => a |= second,
            0x54 | 0x5c => a &= second,
            0x64 | 0x6c => a = a.wrapping_shl(second),
            0x74 | 0x7c => a = a.wrapping_shr(second),
            0x84 => a = a.wrapping_neg(),
            0xa4 | 0xac => a ^= second,
            // BPF_JMP: BPF_JA, BPF_JEQ, BPF_JGT, BPF_JGE, BPF_JSET.
            0x05 => at = at.checked_add(operand as usize)?,
            0x15 | 0x1d | 0x25 | 0x2d | 0x35 | 0x3d | 0x45 | 0x4d => {
                let holds = match code & 0xf0 {
                    0x10 => a == second,
                    0x20 => a > second,
                    0x30 => a >= second,
                    _ => a & second != 0,
                };
                at += usize::from(if holds { jump_true } else { jump_false });
            }
            // BPF_MISC: BPF_TAX, BPF_TXA.
            0x07 => x = a,
            0x87 => a = x,
            // BPF_RET: of a constant, of A.
            0x06 => return Some(of_action(operand)),
            0x16 => return Some(of_action(a)),
            _ => return None,
        }
    }
}

/// Returns the verdict for the action that a filter returns. [Linux, include/uapi/linux/seccomp.h, SECCOMP_RET_...]
fn of_action(action: u32) -> Verdict {
    match action >> 16 {
        0x7fff | 0x7ffc => Verdict::Allowed,
        0x0005 => Verdict::Fails(action as u16),
        _ => Verdict::Forbidden,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn instruction(code: u16, jump_true: u8, jump_false: u8, operand: u32) -> Instruction {
        Instruction { code, jump_true, jump_false, operand }
    }

    const ALLOW: u32 = 0x7fff_0000;
    const KILL: u32 = 0x8000_0000;

    fn call(number: u32) -> Call {
        // AUDIT_ARCH_X86_64.
        Call { number, architecture: 0xc000_003e, instruction: 0x1_0000_0002, arguments: [0; 6] }
    }

    #[test]
    fn the_example_of_the_manual_tells_calls_and_architectures_apart() {
        // seccomp(2), "EXAMPLES": kills another architecture, fails one call with an error, and allows the rest.
        let filter = [
            instruction(0x20, 0, 0, 4),
            instruction(0x15, 0, 5, 0xc000_003e),
            instruction(0x20, 0, 0, 0),
            instruction(0x35, 3, 0, 0x4000_0000),
            instruction(0x15, 0, 1, 59),
            instruction(0x06, 0, 0, 0x0005_0000 | 99),
            instruction(0x06, 0, 0, ALLOW),
            instruction(0x06, 0, 0, KILL),
        ];
        assert_eq!(verdict(&filter, &call(59)), Some(Verdict::Fails(99)));
        assert_eq!(verdict(&filter, &call(60)), Some(Verdict::Allowed));
        assert_eq!(verdict(&filter, &call(0x4000_0000 + 60)), Some(Verdict::Forbidden));
        assert_eq!(verdict(&filter, &Call { architecture: 0x4000_0003, ..call(60) }), Some(Verdict::Forbidden));
    }

    #[test]
    fn arguments_are_seen_in_halves_lower_first() {
        let at =
            |offset| [instruction(0x20, 0, 0, offset), instruction(0x15, 0, 1, 0x22), instruction(0x06, 0, 0, ALLOW)];
        let filter = |offset| [&at(offset)[..], &[instruction(0x06, 0, 0, KILL)]].concat();
        let call = Call { arguments: [0x11_0000_0022, 0, 0, 0, 0, 0x22_0000_0033], ..call(1) };
        for (offset, expected) in
            [(16, Verdict::Allowed), (20, Verdict::Forbidden), (56, Verdict::Forbidden), (60, Verdict::Allowed)]
        {
            assert_eq!(verdict(&filter(offset), &call), Some(expected), "at {offset}");
        }
        // The call is made at 0x1_0000_0002. The lower half, 2, is returned as an action that kills.
        assert_eq!(verdict(&[instruction(0x20, 0, 0, 8), instruction(0x16, 0, 0, 0)], &call), Some(Verdict::Forbidden));
        for outside in [1, 2, 62, 64, u32::MAX] {
            assert_eq!(verdict(&filter(outside), &call), None, "at {outside}");
        }
    }

    #[test]
    fn the_machine_calculates() {
        // Each case starts with A = 12 and X = 5. The operation, with X or with the constant 3, gives the listed result.
        let result = |code, operand| {
            let start = [instruction(0x01, 0, 0, 5), instruction(0x00, 0, 0, 12), instruction(code, 0, 0, operand)];
            (0..64).find(|expected| {
                let end =
                    [instruction(0x15, 0, 1, *expected), instruction(0x06, 0, 0, ALLOW), instruction(0x06, 0, 0, KILL)];
                verdict(&[&start[..], &end[..]].concat(), &call(0)) == Some(Verdict::Allowed)
            })
        };
        let expected = [
            (0x04, 15),
            (0x0c, 17),
            (0x14, 9),
            (0x1c, 7),
            (0x24, 36),
            (0x2c, 60),
            (0x34, 4),
            (0x3c, 2),
            (0x44, 15),
            (0x4c, 13),
            (0x54, 0),
            (0x5c, 4),
            (0x74, 1),
            (0x7c, 0),
            (0xa4, 15),
            (0xac, 9),
            (0x87, 5),
            (0x07, 12),
        ];
        for (code, value) in expected {
            assert_eq!(result(code, 3), Some(value), "{code:#x}");
        }
        assert_eq!(result(0x64, 2), Some(48));
        assert_eq!((result(0x34, 0), result(0x80, 0), result(0x61, 20)), (None, None, None));
        let kept =
            [instruction(0, 0, 0, ALLOW), instruction(2, 0, 0, 7), instruction(0, 0, 0, 1), instruction(0x60, 0, 0, 7)];
        let kept = [&kept[..], &[instruction(0x16, 0, 0, 0)]].concat();
        assert_eq!(verdict(&kept, &call(0)), Some(Verdict::Allowed));
    }

    #[test]
    fn what_is_no_filter_gives_no_verdict() {
        for filter in [
            vec![],
            vec![instruction(0x20, 0, 0, 0)],
            vec![instruction(0x05, 0, 0, u32::MAX)],
            vec![instruction(0x15, 9, 9, 0)],
            vec![instruction(0x02, 0, 0, 16)],
            // A load of packet bytes, which a system call does not have.
            vec![instruction(0x30, 0, 0, 0), instruction(0x06, 0, 0, ALLOW)],
        ] {
            assert_eq!(verdict(&filter, &call(0)), None, "{filter:?}");
        }
        // Traced, reported to another process, a signal, and a killed thread.
        for action in [0x7ff0_0000, 0x7fc0_0000, 0x0003_0000, 0] {
            assert_eq!(verdict(&[instruction(0x06, 0, 0, action)], &call(0)), Some(Verdict::Forbidden));
        }
        assert_eq!(verdict(&[instruction(0x06, 0, 0, 0x7ffc_0000)], &call(0)), Some(Verdict::Allowed));
    }
}
