//! Memory traces: the accesses of a program, in order.
//!
//! A [`Reader`] reads any of four formats from any stream, in batches and bounded memory. A [`Writer`] writes the compact
//! format, and an [`AnyWriter`] writes any of the four.

mod compact;
mod text;
mod write;

use std::io::{ErrorKind, Read};

use crate::named;
pub use crate::sim::{Access, Kind};
pub use compact::Writer;
pub use write::AnyWriter;

/// Number of accesses that are handed over at a time.
const BATCH: usize = 1 << 14;

named! {
    /// Format of a trace.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum Format, "a trace format" {
        /// Dinero's text format. Each line has a label (0 read, 1 write, 2 instruction fetch; or r, w, i) and a hexadecimal address.
        /// The rest of the line is ignored, and every access is one byte.
        Din = "din",
        /// Output of `valgrind --tool=lackey --trace-mem=yes`: ` L`, ` S`, ` M` (a load and a store) and `I ` lines of
        /// `address,bytes`. Lines that begin with `==` are valgrind's own and skipped.
        Lackey = "lackey",
        /// Little-endian 64-bit addresses, each an access of one byte. Bit 63 is set for writes.
        U64 = "u64",
        /// The compact binary format of isochrome, which [`Writer`] writes.
        Iso = "iso",
    }
}

/// Reasons why a trace cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// A line of text is not an access.
    #[error("{name}:{line}: {what}: `{text}`")]
    Line {
        /// Name of the trace.
        name: String,
        /// Number of the line, counted from 1.
        line: u64,
        /// Description of the error.
        what: &'static str,
        /// The beginning of the line.
        text: String,
    },
    /// Binary data that are not a valid trace.
    #[error("{name}: byte {offset}: {what}")]
    Binary {
        /// Name of the trace.
        name: String,
        /// Offset of the error, in bytes from the beginning.
        offset: u64,
        /// Description of the error.
        what: String,
    },
    /// The stream cannot be read.
    #[error("{name}: {source}")]
    Read {
        /// Name of the trace.
        name: String,
        /// The error of the stream.
        source: std::io::Error,
    },
}

/// Reads a trace in batches.
pub struct Reader<R> {
    form: Form,
    source: Source<R>,
    /// Accesses that were read, in order: one batch, or several where threads share the work.
    batches: Vec<Vec<Access>>,
    /// Number of batches that were handed over.
    handed: usize,
}

enum Form {
    Text(text::Text),
    U64,
    Iso(compact::Blocks),
}

impl<R: Read> Reader<R> {
    /// Creates a reader. `name` is shown in error messages. Text is parsed by rayon's threads; their number does not change
    /// the result.
    pub fn new(format: Format, name: &str, input: R) -> Reader<R> {
        Reader::with_workers(format, name, input, rayon::current_num_threads())
    }

    fn with_workers(format: Format, name: &str, input: R, workers: usize) -> Reader<R> {
        let form = match format {
            Format::Din => Form::Text(text::Text::new(text::Dialect::Din, workers)),
            Format::Lackey => Form::Text(text::Text::new(text::Dialect::Lackey, workers)),
            Format::U64 => Form::U64,
            Format::Iso => Form::Iso(compact::Blocks::default()),
        };
        let source = Source { name: name.to_owned(), input, offset: 0 };
        Reader { form, source, batches: Vec::new(), handed: 0 }
    }

    /// Returns the next accesses; an empty slice at the end of the trace.
    pub fn next_batch(&mut self) -> Result<&[Access], TraceError> {
        while self.batches.get(self.handed).is_none_or(Vec::is_empty) {
            self.handed += 1;
            if self.handed >= self.batches.len() {
                self.handed = 0;
                read(&mut self.form, &mut self.source, &mut self.batches)?;
                if self.batches.iter().all(Vec::is_empty) {
                    return Ok(&[]);
                }
            }
        }
        self.handed += 1;
        Ok(&self.batches[self.handed - 1])
    }

    /// Calls `each` for all remaining accesses, batch by batch, and returns their number.
    pub fn for_each(&mut self, mut each: impl FnMut(&[Access])) -> Result<u64, TraceError>
    where
        R: Send,
    {
        self.try_for_each(|batch| {
            each(batch);
            Ok(())
        })
    }

    /// Calls `each` for all remaining accesses, batch by batch, until it fails, and returns the number of accesses. While
    /// `each` runs, another thread reads on.
    pub fn try_for_each<E: From<TraceError>>(
        &mut self,
        mut each: impl FnMut(&[Access]) -> Result<(), E>,
    ) -> Result<u64, E>
    where
        R: Send,
    {
        let Reader { form, source, batches, handed } = self;
        let mut ready: Vec<_> = batches.drain(..).skip(std::mem::take(handed)).collect();
        let mut next = Vec::new();
        let mut count = 0;
        loop {
            let mut outcome = Ok(());
            rayon::in_place_scope(|scope| {
                scope.spawn(|_| outcome = read(form, source, &mut next));
                ready.iter().filter(|batch| !batch.is_empty()).try_for_each(|batch| {
                    count += batch.len() as u64;
                    each(batch)
                })
            })?;
            outcome?;
            std::mem::swap(&mut ready, &mut next);
            if ready.iter().all(Vec::is_empty) {
                return Ok(count);
            }
        }
    }
}

/// Replaces the batches by the next ones. All batches are empty at the end of the trace.
fn read<R: Read>(form: &mut Form, source: &mut Source<R>, batches: &mut Vec<Vec<Access>>) -> Result<(), TraceError> {
    batches.resize_with(batches.len().max(1), Vec::new);
    batches.iter_mut().for_each(Vec::clear);
    match form {
        Form::Text(text) => text.read(source, batches),
        Form::U64 => read_u64(source, &mut batches[0]),
        Form::Iso(blocks) => blocks.read(source, &mut batches[0]),
    }
}

/// The stream, and the position up to which it has been read.
struct Source<R> {
    name: String,
    input: R,
    offset: u64,
}

impl<R: Read> Source<R> {
    /// Reads until `into` is full or the stream ends, and returns the number of bytes read.
    fn fill(&mut self, into: &mut [u8]) -> Result<usize, TraceError> {
        let mut filled = 0;
        while filled < into.len() {
            match self.input.read(&mut into[filled..]) {
                Ok(0) => break,
                Ok(bytes) => filled += bytes,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(source) => return Err(TraceError::Read { name: self.name.clone(), source }),
            }
        }
        self.offset += filled as u64;
        Ok(filled)
    }

    fn wrong(&self, what: impl Into<String>) -> TraceError {
        TraceError::Binary { name: self.name.clone(), offset: self.offset, what: what.into() }
    }
}

fn read_u64<R: Read>(source: &mut Source<R>, batch: &mut Vec<Access>) -> Result<(), TraceError> {
    let mut bytes = [0; 8 * BATCH];
    let filled = source.fill(&mut bytes)?;
    let (words, rest) = bytes[..filled].as_chunks::<8>();
    if !rest.is_empty() {
        return Err(source.wrong(format!("the trace ends {} bytes into an address", rest.len())));
    }
    batch.extend(words.iter().map(|word| {
        let word = u64::from_le_bytes(*word);
        let kind = if word >> 63 == 1 { Kind::Write } else { Kind::Read };
        Access { address: word & (u64::MAX >> 1), bytes: 1, kind }
    }));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(format: Format, bytes: &[u8]) -> Result<Vec<Access>, TraceError> {
        let mut all = Vec::new();
        Reader::new(format, "trace", bytes).for_each(|batch| all.extend_from_slice(batch))?;
        Ok(all)
    }

    #[test]
    fn din_labels_are_read_write_and_fetch() {
        let accesses = read(Format::Din, b"0 1f00\n1 0xAbc ignored\r\n\n2 7fffffffffffffff\n  w 10").unwrap();
        let expected =
            [(0x1f00, Kind::Read), (0xabc, Kind::Write), (0x7fff_ffff_ffff_ffff, Kind::Fetch), (0x10, Kind::Write)];
        assert_eq!(accesses, expected.map(|(address, kind)| Access { address, bytes: 1, kind }));
    }

    #[test]
    fn lackey_modifies_are_a_load_and_a_store() {
        let text = b"==12== Lackey\nI  04010173,3\n S 1ffe7e2f0,8\n L 04222cac,4\n M 0421c7cc,16\n==12== \n";
        let access = |address, bytes, kind| Access { address, bytes, kind };
        let expected = [
            access(0x0401_0173, 3, Kind::Fetch),
            access(0x1_ffe7_e2f0, 8, Kind::Write),
            access(0x0422_2cac, 4, Kind::Read),
            access(0x0421_c7cc, 16, Kind::Read),
            access(0x0421_c7cc, 16, Kind::Write),
        ];
        assert_eq!(read(Format::Lackey, text).unwrap(), expected);
    }

    #[test]
    fn a_malformed_line_is_named_by_trace_and_number() {
        let cases: [(Format, &[u8], &str); 9] = [
            (Format::Din, b"0 1\n0 2\n7 3\n", "trace:3: unknown label"),
            (Format::Din, b"0\n", "trace:1: no address"),
            (Format::Din, b"0 1\n\n0 xyz\n", "trace:3: no hexadecimal address"),
            (Format::Din, b"0 11112222333344445\n", "trace:1: address beyond 64 bits"),
            (Format::Din, &[b'0'; 100_000], "trace:1: a line without end"),
            (Format::Lackey, b" L 10,4\n L 20\n", "trace:2: no size"),
            (Format::Lackey, b" L 10,0\n", "trace:1: size is not 1 to 4096"),
            (Format::Lackey, b" L 10,99999999999\n", "trace:1: size is not 1 to 4096"),
            (Format::Lackey, b" X 10,4\n", "trace:1: unknown label"),
        ];
        for (format, text, message) in cases {
            let error = read(format, text).unwrap_err().to_string();
            assert!(error.contains(message), "{error}");
        }
    }

    #[test]
    fn a_truncated_binary_trace_says_where() {
        let error = read(Format::U64, &[1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0]).unwrap_err().to_string();
        assert_eq!(error, "trace: byte 11: the trace ends 3 bytes into an address");
        let mut bytes = Vec::new();
        let mut writer = Writer::new(&mut bytes).unwrap();
        writer.write(&[Access::read(1), Access::write(2)]).unwrap();
        writer.finish().unwrap();
        assert_eq!(read(Format::Iso, &bytes).unwrap(), [Access::read(1), Access::write(2)]);
        for length in 0..bytes.len() {
            assert!(matches!(read(Format::Iso, &bytes[..length]), Err(TraceError::Binary { .. })), "{length}");
        }
    }

    fn access() -> impl Strategy<Value = Access> {
        let kind = prop_oneof![Just(Kind::Read), Just(Kind::Write), Just(Kind::Fetch)];
        (any::<u64>(), 0u32..60, 1u32..300, kind).prop_map(|(address, shift, bytes, kind)| Access {
            address: address >> shift,
            bytes,
            kind,
        })
    }

    proptest! {
        #[test]
        fn the_compact_form_reads_back(accesses in proptest::collection::vec(access(), 0..200), repeat in 1usize..200) {
            let accesses: Vec<Access> = accesses.iter().cycle().take(accesses.len() * repeat).copied().collect();
            let mut bytes = Vec::new();
            let mut writer = Writer::new(&mut bytes).unwrap();
            writer.write(&accesses).unwrap();
            writer.finish().unwrap();
            prop_assert_eq!(read(Format::Iso, &bytes).unwrap(), accesses);
        }

        #[test]
        fn no_input_makes_a_reader_panic(bytes in proptest::collection::vec(any::<u8>(), 0..2000), text in "[012rwiLSM =,x0-9a-f\n]{0,400}") {
            for format in [Format::Din, Format::Lackey, Format::U64, Format::Iso] {
                let _ = read(format, &bytes);
                let _ = read(format, text.as_bytes());
            }
            let framed: Vec<u8> = b"isotrace\x01".iter().chain(&bytes).copied().collect();
            let _ = read(Format::Iso, &framed);
        }

        /// Lines have up to 400 characters, so that a piece can end anywhere in a line.
        #[test]
        fn any_number_of_threads_reads_the_same(
            lines in proptest::collection::vec((0u8..3, any::<u64>(), 0usize..400), 1..200),
            repeat in 1usize..40,
            bad in proptest::option::of(any::<proptest::sample::Index>()),
            batches: bool,
        ) {
            let mut lines: Vec<String> =
                lines.iter().map(|(label, address, rest)| format!("{label} {address:x} {}", "x".repeat(*rest))).collect();
            let count = lines.len();
            lines = lines.into_iter().cycle().take(count * repeat).collect();
            if let Some(bad) = bad {
                let bad = bad.index(lines.len());
                lines.splice(bad.., lines[bad..].iter().map(|line| line.replace(' ', "?")).collect::<Vec<_>>());
            }
            let text = lines.join("\n");
            let read = |workers| {
                let mut reader = Reader::with_workers(Format::Din, "trace", text.as_bytes(), workers);
                let mut all = Vec::new();
                // The test reads in either way, and changes between the two.
                if batches {
                    all.extend_from_slice(reader.next_batch().map_err(|error| error.to_string())?);
                }
                reader.for_each(|batch| all.extend_from_slice(batch)).map_err(|error| error.to_string())?;
                Ok::<_, String>(all)
            };
            let alone = read(1);
            if let Some(bad) = bad {
                let named = format!("trace:{}: ", bad.index(lines.len()) + 1);
                prop_assert!(alone.as_ref().is_err_and(|error| error.starts_with(&named)), "{:?}", alone);
            } else {
                prop_assert_eq!(alone.as_ref().map(Vec::len), Ok(lines.len()));
            }
            for workers in [2, 3, 8] {
                prop_assert_eq!(&read(workers), &alone, "{} workers", workers);
            }
        }

        #[test]
        fn din_reads_as_its_definition(lines in proptest::collection::vec((0u8..3, any::<u64>(), 0u32..64), 0..3000)) {
            let line = |(i, (label, address, shift)): (usize, &(u8, u64, u32))| {
                let address = address >> shift;
                if i % 3 == 0 { format!("{label} {address:X}\n") } else { format!("{label} {address:x}\n") }
            };
            let text: String = lines.iter().enumerate().map(line).collect();
            let kinds = [Kind::Read, Kind::Write, Kind::Fetch];
            let expected: Vec<Access> = lines
                .iter()
                .map(|(label, address, shift)| Access { address: address >> shift, bytes: 1, kind: kinds[usize::from(*label)] })
                .collect();
            prop_assert_eq!(read(Format::Din, text.as_bytes()).unwrap(), expected);
        }
    }
}
