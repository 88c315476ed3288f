//! Traces as lines of text.

use std::io::Read;

use rayon::prelude::*;

use super::{Access, Kind, Source, TraceError};

/// Bytes of text that a worker parses at a time. Every line must be shorter.
const PIECE_BYTES: usize = 64 << 10;

/// Maximum number of workers. This many workers parse faster than accesses can be counted, and each worker takes memory.
const WORKERS_MAX: usize = 8;

/// Largest access of a program that is accepted as valid: a page.
const BYTES_MAX: u32 = 4096;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Dialect {
    Din,
    Lackey,
}

pub(super) struct Text {
    dialect: Dialect,
    /// Buffer for the text, with a piece for each worker.
    buffer: Vec<u8>,
    /// Begin of the text that was read and is not yet parsed.
    begin: usize,
    end: usize,
    line: u64,
    at_end: bool,
}

impl Text {
    pub fn new(dialect: Dialect, workers: usize) -> Text {
        let buffer = vec![0; workers.clamp(1, WORKERS_MAX) * PIECE_BYTES];
        Text { dialect, buffer, begin: 0, end: 0, line: 0, at_end: false }
    }

    /// Parses a piece of the text into each batch, and adds batches as needed. All batches stay empty at the end of the
    /// trace.
    pub fn read<R: Read>(&mut self, source: &mut Source<R>, batches: &mut Vec<Vec<Access>>) -> Result<(), TraceError> {
        let workers = self.buffer.len() / PIECE_BYTES;
        batches.resize_with(batches.len().max(workers), Vec::new);
        while batches.iter().all(Vec::is_empty) && !(self.at_end && self.begin == self.end) {
            self.fill(source)?;
            let mut pieces = Vec::with_capacity(workers);
            let wrong = |line, what, text: &[u8]| {
                let text = String::from_utf8_lossy(&text[..text.len().min(60)]).into_owned();
                Err(TraceError::Line { name: source.name.clone(), line, what, text })
            };
            let mut endless = None;
            while pieces.len() < workers && self.begin < self.end {
                let rest = &self.buffer[self.begin..self.end];
                let window = &rest[..rest.len().min(PIECE_BYTES)];
                let Some(line_end) = window.iter().rposition(|byte| *byte == b'\n') else {
                    endless = (window.len() == PIECE_BYTES).then_some(window);
                    break;
                };
                pieces.push(&window[..=line_end]);
                self.begin += line_end + 1;
            }
            let dialect = self.dialect;
            let parse = |(piece, batch): (&&[u8], &mut Vec<Access>)| match dialect {
                Dialect::Din => lines(piece, batch, din),
                Dialect::Lackey => lines(piece, batch, lackey),
            };
            let parsed: Vec<Parsed> = pieces.par_iter().zip(batches.par_iter_mut()).map(parse).collect();
            for (piece, parsed) in pieces.iter().zip(parsed) {
                self.line += parsed.lines;
                if let Some(what) = parsed.wrong {
                    let text = piece[parsed.bytes..].split(|byte| *byte == b'\n').next().unwrap_or_default();
                    return wrong(self.line + 1, what, text);
                }
            }
            if let Some(text) = endless {
                return wrong(self.line + 1, "a line without end", text);
            }
        }
        Ok(())
    }

    /// Reads until the buffer is full or the trace ends.
    fn fill<R: Read>(&mut self, source: &mut Source<R>) -> Result<(), TraceError> {
        self.buffer.copy_within(self.begin..self.end, 0);
        self.end -= self.begin;
        self.begin = 0;
        self.end += source.fill(&mut self.buffer[self.end..])?;
        if self.end < self.buffer.len() && !self.at_end {
            // The last line may lack its line end.
            self.buffer[self.end] = b'\n';
            self.end += 1;
            self.at_end = true;
        }
        Ok(())
    }
}

struct Parsed {
    bytes: usize,
    lines: u64,
    wrong: Option<&'static str>,
}

/// Parses lines up to a wrong one. `line` gets the text from the beginning of a line, and returns the offset at which it stopped
/// parsing it.
fn lines(
    text: &[u8],
    batch: &mut Vec<Access>,
    line: impl Fn(&[u8], &mut Vec<Access>) -> Result<usize, &'static str>,
) -> Parsed {
    let mut parsed = Parsed { bytes: 0, lines: 0, wrong: None };
    while parsed.bytes < text.len() {
        let rest = &text[parsed.bytes..];
        let left = match line(rest, batch) {
            Ok(left) => left,
            Err(what) => return Parsed { wrong: Some(what), ..parsed },
        };
        let skipped = rest[left..].iter().position(|byte| *byte == b'\n');
        let Some(skipped) = skipped else { return parsed };
        parsed.bytes += left + skipped + 1;
        parsed.lines += 1;
    }
    parsed
}

/// Values of the hexadecimal digits by character; 255 for every other character.
const DIGITS: [u8; 256] = {
    let mut digits = [255; 256];
    let mut digit = 0;
    while digit < 16 {
        digits[b"0123456789abcdef"[digit] as usize] = digit as u8;
        digits[b"0123456789ABCDEF"[digit] as usize] = digit as u8;
        digit += 1;
    }
    digits
};

/// Parses up to eight hexadecimal digits, and returns their value and number. They end at the first blank or line end; eight
/// digits need no end. Returns `None` for any other text, which the slow parser must handle.
///
/// The eight characters are tested as one word. Additions that carry into the highest bit of a byte classify its character.
#[inline]
fn eight_digits(text: &[u8]) -> Option<(u64, usize)> {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const HIGH: u64 = 0x80 * ONES;
    let word = u64::from_le_bytes(*text.first_chunk()?);
    let at_least = |word: u64, byte: u64| word + (0x80 - byte) * ONES;
    if word & HIGH != 0 {
        return None;
    }
    let digits = ((!at_least(word, 0x21) & HIGH).trailing_zeros() / 8) as usize;
    if digits == 0 {
        return None;
    }
    // The shift puts zero bytes in front of the digits; they count as digits 0 below.
    let ignored = 64 - 8 * digits as u32;
    let word = word << ignored;
    let small = word | ((0x20 * ONES) << ignored);
    let decimal = at_least(small, 0x30) & !at_least(small, 0x3a);
    let letter = at_least(small, 0x61) & !at_least(small, 0x67);
    if (decimal | letter) & (HIGH << ignored) != HIGH << ignored {
        return None;
    }
    let nibbles = (word & (0x0f * ONES)) + 9 * (word >> 6 & ONES);
    let pairs = nibbles.swap_bytes();
    let pairs = (pairs | pairs >> 4) & 0x00ff_00ff_00ff_00ff;
    let fours = (pairs | pairs >> 8) & 0x0000_ffff_0000_ffff;
    Some(((fours | fours >> 16) & 0xffff_ffff, digits))
}

/// Parses a line of the usual form: a label, a blank, up to 16 digits and the line end. Returns the access and the length up to
/// the line end; `None` for a line of another form.
#[inline]
fn usual_din(text: &[u8]) -> Option<(Access, usize)> {
    let [label @ b'0'..=b'2', b' ', digits @ ..] = text else { return None };
    let (mut address, mut length) = eight_digits(digits)?;
    if length == 8 && digits.get(8) != Some(&b'\n') {
        let (lower, more) = eight_digits(&digits[8..])?;
        address = address << (4 * more) | lower;
        length += more;
    }
    let kind = [Kind::Read, Kind::Write, Kind::Fetch][usize::from(label - b'0')];
    (digits.get(length) == Some(&b'\n')).then_some((Access { address, bytes: 1, kind }, 2 + length))
}

/// Parses a hexadecimal number at the beginning of the text, and returns its value and length. The text must contain a line
/// end.
#[inline]
fn hexadecimal(text: &[u8]) -> Result<(u64, usize), &'static str> {
    let prefix = if let [b'0', b'x' | b'X', ..] = text { 2 } else { 0 };
    let digits = &text[prefix..];
    let mut number = 0;
    let mut length = 0;
    while let Some(digit) = digits.get(length).map(|byte| DIGITS[usize::from(*byte)]).filter(|digit| *digit < 16) {
        if number >> 60 != 0 {
            return Err("address beyond 64 bits");
        }
        number = number << 4 | u64::from(digit);
        length += 1;
    }
    if length == 0 { Err("no hexadecimal address") } else { Ok((number, prefix + length)) }
}

#[inline]
fn blanks(text: &[u8]) -> usize {
    text.iter().position(|byte| !matches!(byte, b' ' | b'\t' | b'\r')).unwrap_or(text.len())
}

#[inline]
fn din(text: &[u8], batch: &mut Vec<Access>) -> Result<usize, &'static str> {
    if let Some((access, length)) = usual_din(text) {
        batch.push(access);
        return Ok(length);
    }
    let mut at = blanks(text);
    let kind = match text.get(at) {
        Some(b'0' | b'r') => Kind::Read,
        Some(b'1' | b'w') => Kind::Write,
        Some(b'2' | b'i') => Kind::Fetch,
        Some(b'\n') | None => return Ok(at),
        Some(_) => return Err("unknown label (0 read, 1 write, 2 fetch)"),
    };
    at += 1;
    let gap = blanks(&text[at..]);
    if text.get(at + gap).is_none_or(|byte| *byte == b'\n') {
        return Err("no address behind the label");
    }
    if gap == 0 {
        return Err("unknown label (0 read, 1 write, 2 fetch)");
    }
    at += gap;
    let (address, length) = hexadecimal(&text[at..])?;
    batch.push(Access { address, bytes: 1, kind });
    Ok(at + length)
}

fn lackey(text: &[u8], batch: &mut Vec<Access>) -> Result<usize, &'static str> {
    if text.starts_with(b"==") {
        return Ok(2);
    }
    let mut at = blanks(text);
    let kinds: &[Kind] = match text.get(at) {
        Some(b'L') => &[Kind::Read],
        Some(b'S') => &[Kind::Write],
        Some(b'M') => &[Kind::Read, Kind::Write],
        Some(b'I') => &[Kind::Fetch],
        Some(b'\n') | None => return Ok(at),
        Some(_) => return Err("unknown label (I, L, S or M)"),
    };
    at += 1;
    at += blanks(&text[at..]);
    let (address, length) = hexadecimal(&text[at..])?;
    at += length;
    if text.get(at) != Some(&b',') {
        return Err("no size behind the address");
    }
    at += 1;
    let digits = text[at..].iter().take(5).take_while(|byte| byte.is_ascii_digit()).count();
    let bytes = text[at..at + digits].iter().fold(0, |number, digit| 10 * number + u32::from(digit - b'0'));
    if !(1..=BYTES_MAX).contains(&bytes) {
        return Err("size is not 1 to 4096");
    }
    batch.extend(kinds.iter().map(|kind| Access { address, bytes, kind: *kind }));
    Ok(at + digits)
}
