//! Offsets of fields in structures of the kernel, from its description of its own types (BTF).
//!
//! [Linux, Documentation/bpf/btf.rst]

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use crate::error::SystemError;

/// Path of the description of the running kernel.
const VMLINUX: &str = "/sys/kernel/btf/vmlinux";

/// Kinds of types that are used here.
const POINTER: u32 = 2;
const STRUCT: u32 = 4;
const UNION: u32 = 5;
const TYPEDEF: u32 = 8;
const FUNCTION_PROTOTYPE: u32 = 13;

/// Most levels of unnamed structures inside each other. The kernel has two or three levels. The limit ends the search in a description in which a
/// structure holds itself.
const NESTED: u32 = 16;

/// The types of a kernel, by their numbers.
pub struct Btf {
    bytes: Vec<u8>,
    /// Offset of each type in the description. Number 0 is void, which has no description.
    types: Vec<usize>,
    strings: usize,
    /// Numbers of structures and type names, by kind and name.
    by_name: HashMap<(u32, String), u32>,
}

/// A type: its kind, its number of members, the number of the type that it refers to, and the offset of its members.
struct Type {
    kind: u32,
    members: usize,
    /// Whether the word with a member's offset also holds the width of a bit field.
    with_widths: bool,
    to: u32,
    at: usize,
}

impl Btf {
    /// Reads the types of the running kernel.
    ///
    /// Fails with [`SystemError::Unreadable`] if the kernel has no description, and with [`SystemError::Malformed`].
    pub fn of_kernel() -> Result<Btf, SystemError> {
        let path = Path::new(VMLINUX);
        let hint = "the kernel is built without CONFIG_DEBUG_INFO_BTF";
        let bytes =
            std::fs::read(path).map_err(|source| SystemError::Unreadable { path: path.to_owned(), source, hint })?;
        Btf::parse(bytes).ok_or_else(|| malformed("a description of types"))
    }

    pub fn parse(bytes: Vec<u8>) -> Option<Btf> {
        const MAGIC: u32 = 0xeb9f;
        let mut btf = Btf { bytes, types: vec![0], strings: 0, by_name: HashMap::new() };
        let header = btf.word(4)? as usize;
        let [types, length, strings] = [btf.word(8)?, btf.word(12)?, btf.word(16)?].map(|offset| offset as usize);
        if btf.word(0)? & 0xffff != MAGIC {
            return None;
        }
        btf.strings = header + strings;
        let mut at = header + types;
        let end = at + length;
        while at < end {
            let number = btf.types.len() as u32;
            btf.types.push(at);
            let name = btf.word(at)?;
            let found = btf.of(number)?;
            if matches!(found.kind, STRUCT | TYPEDEF)
                && let Some(name) = btf.text(name).filter(|name| !name.is_empty())
            {
                btf.by_name.entry((found.kind, name.to_owned())).or_insert(number);
            }
            // Number of bytes that follow the head of a type of this kind.
            let behind = match found.kind {
                1 | 14 | 17 => 4,
                3 => 12,
                STRUCT | UNION | 15 | 19 => 12 * found.members,
                6 | FUNCTION_PROTOTYPE => 8 * found.members,
                2 | 7..=12 | 16 | 18 => 0,
                _ => return None,
            };
            at = found.at + behind;
        }
        Some(btf)
    }

    fn word(&self, at: usize) -> Option<u32> {
        Some(u32::from_ne_bytes(self.bytes.get(at..at + 4)?.try_into().ok()?))
    }

    fn text(&self, offset: u32) -> Option<&str> {
        let bytes = self.bytes.get(self.strings + offset as usize..)?;
        let end = bytes.iter().position(|byte| *byte == 0)?;
        std::str::from_utf8(&bytes[..end]).ok()
    }

    fn of(&self, number: u32) -> Option<Type> {
        let at = *self.types.get(number as usize).filter(|_| number > 0)?;
        let info = self.word(at + 4)?;
        let (members, with_widths) = ((info & 0xffff) as usize, info >> 31 == 1);
        Some(Type { kind: info >> 24 & 0x1f, members, with_widths, to: self.word(at + 8)?, at: at + 12 })
    }

    /// Returns the offset in bytes of `field` in the structure `name`. The field may belong to an unnamed structure or union inside it.
    ///
    /// Fails with [`SystemError::Malformed`] if the structure or the field does not exist.
    pub fn offset(&self, name: &str, field: &str) -> Result<i16, SystemError> {
        let found =
            self.by_name.get(&(STRUCT, name.to_owned())).and_then(|number| self.offset_in(*number, field, NESTED));
        found.and_then(|bits| i16::try_from(bits / 8).ok()).ok_or_else(|| malformed("the fields of a thread"))
    }

    /// Returns the offset of `field` in bits, looked up through at most `nested` unnamed structures inside each other.
    fn offset_in(&self, number: u32, field: &str, nested: u32) -> Option<u32> {
        let of = self.of(number).filter(|of| matches!(of.kind, STRUCT | UNION))?;
        (0..of.members).find_map(|member| {
            let at = of.at + 12 * member;
            let (name, to, offset) = (self.word(at)?, self.word(at + 4)?, self.word(at + 8)?);
            let offset = if of.with_widths { offset & 0xff_ffff } else { offset };
            match self.text(name)? {
                "" => offset.checked_add(self.offset_in(to, field, nested.checked_sub(1)?)?),
                name => (name == field).then_some(offset),
            }
        })
    }

    /// Returns the number of the type of tracepoint `name`, by which a program is attached to it. `pointers`: for each argument, whether it
    /// must be a pointer.
    ///
    /// Fails with [`SystemError::Malformed`] if the kernel has no such tracepoint, or one with other arguments.
    pub fn tracepoint(&self, name: &str, pointers: &[bool]) -> Result<u32, SystemError> {
        let number = self.by_name.get(&(TYPEDEF, format!("btf_trace_{name}"))).copied();
        let fits = |number: &u32| {
            let pointer = self.of(self.of(*number)?.to).filter(|of| of.kind == POINTER)?;
            let prototype = self.of(pointer.to).filter(|of| of.kind == FUNCTION_PROTOTYPE)?;
            // The first parameter is not an argument of the tracepoint.
            let found: Option<Vec<bool>> = (1..prototype.members)
                .map(|argument| Some(self.of(self.word(prototype.at + 8 * argument + 4)?)?.kind == POINTER))
                .collect();
            found?.starts_with(pointers).then_some(())
        };
        number.filter(|number| fits(number).is_some()).ok_or_else(|| malformed("the arguments of a tracepoint"))
    }
}

fn malformed(expected: &'static str) -> SystemError {
    SystemError::Malformed { path: PathBuf::from(VMLINUX), text: String::new(), expected }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a description with the structure `task_struct { union { int pid; }; int comm; }` and a tracepoint with a pointer and a
    /// number.
    fn description() -> Vec<u8> {
        let strings = b"\0int\0pid\0comm\0task_struct\0btf_trace_sched_wakeup\0";
        let name = |name: &[u8]| strings.windows(name.len()).position(|part| part == name).unwrap() as u32;
        let head = |name: u32, kind: u32, members: u32, to: u32| [name, kind << 24 | members, to];
        let types: Vec<u32> = [
            // 1: int; 2: a union without a name; 3: the structure; 4: a pointer to it.
            [&head(name(b"int"), 1, 0, 4)[..], &[32]].concat(),
            [&head(0, UNION, 1, 4)[..], &[name(b"pid"), 1, 0]].concat(),
            [&head(name(b"task_struct"), STRUCT, 2, 8)[..], &[0, 2, 64, name(b"comm"), 1, 96]].concat(),
            head(0, POINTER, 0, 3).to_vec(),
            // 5: void (void *, struct task_struct *, int); 6: a pointer to it; 7: its name.
            [&head(0, FUNCTION_PROTOTYPE, 3, 0)[..], &[0, 4, 0, 4, 0, 1]].concat(),
            head(0, POINTER, 0, 5).to_vec(),
            head(name(b"btf_trace_sched_wakeup"), TYPEDEF, 0, 6).to_vec(),
        ]
        .concat();
        let length = 4 * types.len() as u32;
        let header = [0x1_eb9f, 24, 0, length, length, strings.len() as u32];
        let words = header.iter().chain(&types).flat_map(|word| word.to_ne_bytes());
        words.chain(*strings).collect()
    }

    #[test]
    fn fields_and_tracepoints_are_found_by_name() {
        let btf = Btf::parse(description()).unwrap();
        assert_eq!(btf.offset("task_struct", "pid").unwrap(), 8);
        assert_eq!(btf.offset("task_struct", "comm").unwrap(), 12);
        assert!(btf.offset("task_struct", "state").is_err());
        assert_eq!(btf.tracepoint("sched_wakeup", &[true, false]).unwrap(), 7);
        assert!(btf.tracepoint("sched_wakeup", &[true, true]).is_err(), "the second is not a pointer");
        assert!(btf.tracepoint("sched_switch", &[]).is_err());
    }

    #[test]
    fn a_structure_that_holds_itself_has_no_further_fields() {
        let mut bytes = description();
        // The unnamed member of the structure is type 2, the union. From here on it is type 3, the structure.
        let (header, before) = (24, 4 * (4 + 6));
        let member = header + before + 12 + 4;
        assert_eq!(bytes[member], 2);
        bytes[member] = 3;
        let btf = Btf::parse(bytes).unwrap();
        assert!(btf.offset("task_struct", "pid").is_err());
    }

    #[test]
    fn what_is_cut_off_or_no_description_is_refused() {
        let whole = description();
        for length in 0..whole.len() - 60 {
            assert!(Btf::parse(whole[..length].to_vec()).is_none(), "{length}");
        }
        assert!(Btf::parse(vec![0; 64]).is_none());
    }
}
