//! Tests that traces are streamed: simulator, curve and reader together hold at most 16 MiB in all threads, for a trace of any
//! length.

use std::io::Read;

use isochrome_model::geometry::Geometry;
use isochrome_model::sim::{Level, Semantics, Simulator, StackDistances};
use isochrome_model::trace::{Access, Format, Reader, Writer};
use isochrome_model::units::Bytes;
use peak_alloc::PeakAlloc;

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

/// A reader that repeats the same bytes without storing the repetitions.
struct Repeated<'a> {
    stretch: &'a [u8],
    at: usize,
    times_left: u64,
}

impl Read for Repeated<'_> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        if self.at == self.stretch.len() {
            self.at = 0;
            self.times_left -= 1;
        }
        if self.times_left == 0 {
            return Ok(0);
        }
        let bytes = (&self.stretch[self.at..]).read(into)?;
        self.at += bytes;
        Ok(bytes)
    }
}

/// Returns the peak number of bytes allocated while a trace is read and counted, and the number of accesses of the trace.
fn most_bytes(format: Format, input: impl Read + Send) -> (usize, u64) {
    let before = MEMORY.current_usage();
    MEMORY.reset_peak_usage();
    let level = |kib: u64| Level::lru("", Geometry::of_size(Bytes(kib << 10), 8, Bytes(64)).unwrap());
    let mut simulator = Simulator::chain(vec![level(32), level(512)], Semantics::default()).unwrap();
    let mut distances = StackDistances::new(Geometry { set_count: 1024, ways: 16, line_bytes: Bytes(64) }).unwrap();
    let both = |batch: &[Access]| {
        simulator.run(batch);
        distances.run(batch);
    };
    let accesses = Reader::new(format, "memory", input).for_each(both).unwrap();
    (MEMORY.peak_usage() - before, accesses)
}

/// Returns 10 000 accesses spread over 64 MiB.
fn stretch() -> Vec<Access> {
    (0..10_000u64).map(|i| i * 0x9e37_79b9 % (64 << 20)).map(Access::read).collect()
}

fn holds_no_more_for_a_longer_trace(format: Format, stretch: &[u8]) {
    let held = |times_left| most_bytes(format, Repeated { stretch, at: 0, times_left });
    let ((short, few), (long, many)) = (held(30), held(900));
    assert_eq!((few, many), (300_000, 9_000_000));
    // The longer trace alone would take more than 128 MiB. The bytes held vary a little, because chance decides which thread
    // parses which piece.
    assert!(long <= short + (1 << 20), "{format:?}: {short} and {long} bytes held");
    assert!(long <= 16 << 20, "{format:?}: {long} bytes");
}

/// This is the only test of the file, because memory of concurrent tests would be counted too.
#[test]
fn traces_are_streamed() {
    let din: String = stretch().iter().map(|access| format!("0 {:x}\n", access.address)).collect();
    holds_no_more_for_a_longer_trace(Format::Din, din.as_bytes());
    let lackey: String = stretch().iter().map(|access| format!(" L {:08x},1\n", access.address)).collect();
    holds_no_more_for_a_longer_trace(Format::Lackey, lackey.as_bytes());
    let raw: Vec<u8> = stretch().iter().flat_map(|access| access.address.to_le_bytes()).collect();
    holds_no_more_for_a_longer_trace(Format::U64, &raw);
    let mut writer = Writer::new(Vec::new()).unwrap();
    (0..300).for_each(|_| writer.write(&stretch()).unwrap());
    let trace = writer.finish().unwrap();
    let (held, accesses) = most_bytes(Format::Iso, trace.as_slice());
    assert_eq!(accesses, 3_000_000);
    assert!(held <= 16 << 20, "{held} bytes");
}
