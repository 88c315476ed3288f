//! Writes traces in any of the formats.

use std::io::{self, Write};

use super::{Access, Format, Kind, Writer};

/// Writes a trace in one of the formats. Dinero's format has no sizes, and raw addresses have neither sizes nor instruction
/// fetches: these are left out.
pub struct AnyWriter<W: Write> {
    form: Form<W>,
}

enum Form<W: Write> {
    Din(W),
    Lackey(W),
    U64(W),
    Iso(Writer<W>),
}

impl<W: Write> AnyWriter<W> {
    /// Creates a writer of a trace. The output should be buffered.
    pub fn new(format: Format, output: W) -> io::Result<AnyWriter<W>> {
        let form = match format {
            Format::Din => Form::Din(output),
            Format::Lackey => Form::Lackey(output),
            Format::U64 => Form::U64(output),
            Format::Iso => Form::Iso(Writer::new(output)?),
        };
        Ok(AnyWriter { form })
    }

    /// Appends accesses.
    pub fn write(&mut self, accesses: &[Access]) -> io::Result<()> {
        match &mut self.form {
            Form::Din(output) => accesses.iter().try_for_each(|Access { address, kind, .. }| {
                let label = match kind {
                    Kind::Read => 0,
                    Kind::Write => 1,
                    Kind::Fetch => 2,
                };
                writeln!(output, "{label} {address:x}")
            }),
            Form::Lackey(output) => accesses.iter().try_for_each(|Access { address, bytes, kind }| {
                let label = match kind {
                    Kind::Read => " L",
                    Kind::Write => " S",
                    Kind::Fetch => "I ",
                };
                writeln!(output, "{label} {address:08x},{bytes}")
            }),
            Form::U64(output) => {
                let data = accesses.iter().filter(|access| access.kind != Kind::Fetch);
                data.into_iter().try_for_each(|Access { address, kind, .. }| {
                    let word = address & (u64::MAX >> 1) | u64::from(*kind == Kind::Write) << 63;
                    output.write_all(&word.to_le_bytes())
                })
            }
            Form::Iso(writer) => writer.write(accesses),
        }
    }

    /// Ends the trace, and returns the output.
    pub fn finish(self) -> io::Result<W> {
        let mut output = match self.form {
            Form::Din(output) | Form::Lackey(output) | Form::U64(output) => output,
            Form::Iso(writer) => writer.finish()?,
        };
        output.flush()?;
        Ok(output)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::Reader;

    #[test]
    fn what_is_written_in_any_form_reads_back_but_for_what_the_form_cannot_say() {
        let access = |address, bytes, kind| Access { address, bytes, kind };
        let accesses = [
            access(0x40_1000, 3, Kind::Fetch),
            access(0x7fff_ffff_e000, 8, Kind::Write),
            access(0x10, 64, Kind::Read),
            access(0x40_1003, 1, Kind::Fetch),
        ];
        for format in [Format::Din, Format::Lackey, Format::U64, Format::Iso] {
            let mut writer = AnyWriter::new(format, Vec::new()).unwrap();
            accesses.chunks(3).for_each(|chunk| writer.write(chunk).unwrap());
            let bytes = writer.finish().unwrap();
            let mut found = Vec::new();
            Reader::new(format, "written", bytes.as_slice()).for_each(|batch| found.extend_from_slice(batch)).unwrap();
            let sizes = !matches!(format, Format::Din | Format::U64);
            let expected: Vec<Access> = accesses
                .into_iter()
                .filter(|access| format != Format::U64 || access.kind != Kind::Fetch)
                .map(|access| Access { bytes: if sizes { access.bytes } else { 1 }, ..access })
                .collect();
            assert_eq!(found, expected, "{format:?}");
        }
    }
}
