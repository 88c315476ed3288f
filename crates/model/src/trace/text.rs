//! Traces as lines of text.

use std::io::Read;

use super::{Access, BATCH, Kind, Source, TraceError};

/// Bytes read at a time; a line is shorter.
const BUFFER_BYTES: usize = 64 << 10;

/// The largest access of a program that is believed: a page.
const BYTES_MAX: u32 = 4096;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Dialect {
    Din,
    Lackey,
}

pub(super) struct Text {
    dialect: Dialect,
    buffer: Vec<u8>,
    /// What of the buffer is read and not yet parsed.
    begin: usize,
    end: usize,
    line: u64,
    at_end: bool,
}

impl Text {
    pub fn new(dialect: Dialect) -> Text {
        Text { dialect, buffer: vec![0; BUFFER_BYTES], begin: 0, end: 0, line: 0, at_end: false }
    }

    /// Fills the batch, unless the trace ends.
    pub fn read<R: Read>(&mut self, source: &mut Source<R>, batch: &mut Vec<Access>) -> Result<(), TraceError> {
        while batch.len() < BATCH {
            let parsed = match self.dialect {
                Dialect::Din => lines(&self.buffer[self.begin..self.end], batch, din),
                Dialect::Lackey => lines(&self.buffer[self.begin..self.end], batch, lackey),
            };
            self.line += parsed.lines;
            let consumed = self.begin..self.begin + parsed.bytes;
            self.begin = consumed.end;
            if let Some(what) = parsed.wrong {
                let text = self.buffer[self.begin..self.end].split(|byte| *byte == b'\n').next().unwrap_or_default();
                let text = String::from_utf8_lossy(&text[..text.len().min(60)]).into_owned();
                return Err(TraceError::Line { name: source.name.clone(), line: self.line + 1, what, text });
            }
            if batch.len() >= BATCH {
                break;
            }
            if self.at_end {
                return Ok(());
            }
            self.buffer.copy_within(self.begin..self.end, 0);
            self.end -= self.begin;
            self.begin = 0;
            if self.end == self.buffer.len() {
                let text = String::from_utf8_lossy(&self.buffer[..60]).into_owned();
                let (name, line) = (source.name.clone(), self.line + 1);
                return Err(TraceError::Line { name, line, what: "a line without end", text });
            }
            let filled = source.fill(&mut self.buffer[self.end..])?;
            self.end += filled;
            if self.end < self.buffer.len() {
                // The last line may lack its end.
                self.buffer[self.end] = b'\n';
                self.end += 1;
                self.at_end = true;
            }
        }
        Ok(())
    }
}

struct Parsed {
    bytes: usize,
    lines: u64,
    wrong: Option<&'static str>,
}

/// Parses whole lines until they end or the batch is full. `line` gets the text from the beginning of a line, and returns
/// where in it the line's text was left.
fn lines(
    text: &[u8],
    batch: &mut Vec<Access>,
    line: impl Fn(&[u8], &mut Vec<Access>) -> Result<usize, &'static str>,
) -> Parsed {
    let mut parsed = Parsed { bytes: 0, lines: 0, wrong: None };
    // Only up to the last line end, so that no line is parsed that is still to be completed.
    let Some(end) = text.iter().rposition(|byte| *byte == b'\n') else { return parsed };
    while parsed.bytes <= end && batch.len() < BATCH {
        let rest = &text[parsed.bytes..=end];
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

/// Values of hexadecimal digits; 255 for everything else.
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

/// Up to eight hexadecimal digits that a blank or line end follows within the first eight bytes, and their number; all eight if
/// none follows yet. `None` where a byte is no digit, for the slow way to say why.
///
/// Eight characters are looked at as one word: a character is told by additions that carry into the highest bit of its byte.
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
    // The digits come to stand behind zero bytes, which count as digits 0 below.
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

/// The usual line, a label, a blank, up to 16 digits and the line end; its length up to the line end.
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

/// A hexadecimal number at the beginning of the text, and its length; the text contains a line end.
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
