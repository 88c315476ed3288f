//! The compact binary format.
//!
//! A trace begins with `isotrace` and the version as one byte (1). Blocks follow, each with the number of its accesses (u32,
//! little-endian), the number of bytes that follow (u32), and a zstd frame. A block of 0 accesses and 0 bytes ends the trace; a
//! trace without such a block is truncated.
//!
//! Inside a frame, every access begins with the byte `kind + 4 x bytes`, with kind 0 read, 1 write, 2 fetch and bytes up to 63.
//! If bytes is 0, a varint with the number of bytes follows. Last comes the difference between the address and that of the
//! previous access of the same kind, as a zigzag varint. Every block starts from address 0. Varints are LEB128.

use std::io::{Read, Write};

use ruzstd::decoding::StreamingDecoder;
use ruzstd::encoding::{CompressionLevel, compress};

use super::{Access, BATCH, Kind, Source, TraceError};

const MAGIC: &[u8; 9] = b"isotrace\x01";
/// Number of accesses per block.
const BLOCK: usize = 1 << 16;
/// Maximum number of bytes of one encoded access: head, size, difference.
const ACCESS_BYTES_MAX: usize = 1 + 5 + 10;

/// Writes a trace in the compact format.
pub struct Writer<W: Write> {
    output: W,
    block: Vec<u8>,
    count: u32,
    previous: [u64; 3],
}

impl<W: Write> Writer<W> {
    /// Creates a writer, and writes the beginning of the trace.
    pub fn new(mut output: W) -> std::io::Result<Writer<W>> {
        output.write_all(MAGIC)?;
        Ok(Writer { output, block: Vec::new(), count: 0, previous: [0; 3] })
    }

    /// Appends accesses.
    pub fn write(&mut self, accesses: &[Access]) -> std::io::Result<()> {
        for access in accesses {
            let kind = match access.kind {
                Kind::Read => 0,
                Kind::Write => 1,
                Kind::Fetch => 2u8,
            };
            if access.bytes < 64 {
                self.block.push(kind + 4 * access.bytes as u8);
            } else {
                self.block.push(kind);
                varint(u64::from(access.bytes), &mut self.block);
            }
            let previous = &mut self.previous[usize::from(kind)];
            let difference = access.address.wrapping_sub(*previous) as i64;
            varint((difference << 1 ^ difference >> 63) as u64, &mut self.block);
            *previous = access.address;
            self.count += 1;
            if self.count as usize == BLOCK {
                self.end_block()?;
            }
        }
        Ok(())
    }

    /// Ends the trace, and returns the output. A trace that was not ended cannot be read.
    pub fn finish(mut self) -> std::io::Result<W> {
        if self.count > 0 {
            self.end_block()?;
        }
        self.output.write_all(&[0; 8])?;
        self.output.flush()?;
        Ok(self.output)
    }

    fn end_block(&mut self) -> std::io::Result<()> {
        let mut frame = Vec::new();
        compress(self.block.as_slice(), &mut frame, CompressionLevel::Fastest);
        self.output.write_all(&self.count.to_le_bytes())?;
        self.output.write_all(&(frame.len() as u32).to_le_bytes())?;
        self.output.write_all(&frame)?;
        self.block.clear();
        self.count = 0;
        self.previous = [0; 3];
        Ok(())
    }
}

fn varint(mut number: u64, into: &mut Vec<u8>) {
    while number >= 128 {
        into.push(number as u8 | 128);
        number >>= 7;
    }
    into.push(number as u8);
}

/// Reads the blocks of a trace one after the other.
#[derive(Default)]
pub(super) struct Blocks {
    begun: bool,
    ended: bool,
    block: Vec<u8>,
    at: usize,
    left: u32,
    previous: [u64; 3],
}

impl Blocks {
    pub fn read<R: Read>(&mut self, source: &mut Source<R>, batch: &mut Vec<Access>) -> Result<(), TraceError> {
        while batch.len() < BATCH && !self.ended {
            if self.left == 0 {
                self.next_block(source)?;
                continue;
            }
            for _ in 0..(BATCH - batch.len()).min(self.left as usize) {
                let access = self.access().ok_or_else(|| source.wrong("an access is cut off or out of range"))?;
                batch.push(access);
                self.left -= 1;
            }
            if self.left == 0 && self.at != self.block.len() {
                return Err(source.wrong("a block holds more than it says"));
            }
        }
        Ok(())
    }

    fn next_block<R: Read>(&mut self, source: &mut Source<R>) -> Result<(), TraceError> {
        if !self.begun {
            let mut magic = [0; MAGIC.len()];
            if source.fill(&mut magic)? < magic.len() || magic != *MAGIC {
                return Err(source.wrong("this is not a trace in isochrome's compact form, version 1"));
            }
            self.begun = true;
        }
        let mut head = [0; 8];
        if source.fill(&mut head)? < head.len() {
            return Err(source.wrong("the trace is truncated"));
        }
        let [count, length] =
            [&head[..4], &head[4..]].map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]));
        if (count, length) == (0, 0) {
            self.ended = true;
            return Ok(());
        }
        if count == 0 || count as usize > BLOCK || length as usize > 2 * BLOCK * ACCESS_BYTES_MAX {
            return Err(source.wrong(format!("a block cannot have {count} accesses in {length} bytes")));
        }
        let mut frame = vec![0; length as usize];
        if source.fill(&mut frame)? < frame.len() {
            return Err(source.wrong("the trace is truncated"));
        }
        let damaged = |source: &Source<R>| source.wrong("a block is damaged");
        let decoder = StreamingDecoder::new(frame.as_slice()).map_err(|_| damaged(source))?;
        self.block.clear();
        // One byte more than is valid is read, to detect a frame that would fill the memory.
        let most = count as usize * ACCESS_BYTES_MAX;
        decoder.take(most as u64 + 1).read_to_end(&mut self.block).map_err(|_| damaged(source))?;
        if self.block.len() > most {
            return Err(damaged(source));
        }
        (self.at, self.left, self.previous) = (0, count, [0; 3]);
        Ok(())
    }

    fn access(&mut self) -> Option<Access> {
        let head = *self.block.get(self.at)?;
        self.at += 1;
        let kind = [Kind::Read, Kind::Write, Kind::Fetch].get(usize::from(head & 3)).copied()?;
        let bytes = if head >> 2 == 0 { u32::try_from(self.varint()?).ok()? } else { u32::from(head >> 2) };
        let zigzag = self.varint()?;
        let previous = &mut self.previous[usize::from(head & 3)];
        *previous = previous.wrapping_add((zigzag >> 1) ^ (zigzag & 1).wrapping_neg());
        (bytes > 0).then_some(Access { address: *previous, bytes, kind })
    }

    fn varint(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = *self.block.get(self.at)?;
            self.at += 1;
            if shift == 63 && byte > 1 {
                return None;
            }
            number |= u64::from(byte & 127) << shift;
            if byte < 128 {
                return Some(number);
            }
        }
        None
    }
}
