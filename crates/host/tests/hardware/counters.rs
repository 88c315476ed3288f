//! Counters of the processor.

use std::hint::black_box;

use isochrome_host::counters::events::{Event, INSTRUCTIONS, PAGE_FAULTS, Quantity, event};
use isochrome_host::counters::{CounterError, Counters, usable_slots};
use isochrome_host::machine::sysfs::{Processor, Sysfs};

/// Page faults are counted without hardware, so this tests the reading itself wherever perf is permitted.
pub fn a_group_is_read_with_all_its_counts() {
    let counters = Counters::open(&[PAGE_FAULTS; 3]).unwrap();
    let before = counters.read().unwrap();
    let memory = black_box(vec![1u8; 64 << 20]);
    let after = counters.read().unwrap();
    drop(memory);
    let counts = counters.between(&before, &after).unwrap();
    // 64 MiB are at least 32 huge pages.
    assert!(matches!(counts.values(), [a, b, c] if *a >= 32 && a == b && b == c), "{counts:?}");
    // Counts that go back are not counts.
    let error = counters.between(&after, &before).unwrap_err();
    assert!(matches!(error, CounterError::WentBack { before, after, .. } if before > after), "{error}");
}

pub fn counters_count_a_known_loop_alike() {
    let slots = usable_slots().unwrap();
    let counters = Counters::open(&vec![INSTRUCTIONS; slots.usable]).unwrap();
    let before = counters.read().unwrap();
    for round in 0..100_000 {
        black_box(round);
    }
    let after = counters.read().unwrap();
    let counts = counters.between(&before, &after).unwrap();
    let (least, most) = (*counts.values().iter().min().unwrap(), *counts.values().iter().max().unwrap());
    assert!(least >= 100_000, "{counts:?}");
    assert!(most - least <= most / 20, "{counts:?}");
}

pub fn second_level_misses_are_counted() {
    let processor = Sysfs::system().processor().unwrap();
    // Opening the counters proves the event: it counted a walk that must miss. Nothing runs between these two readings.
    let counters = Counters::open(&[l2_misses(&processor).unwrap()]).unwrap();
    let before = counters.read().unwrap();
    let after = counters.read().unwrap();
    assert!(counters.between(&before, &after).unwrap().values()[0] < 10_000);
}

pub fn more_events_than_slots_are_refused() {
    let error = Counters::open(&[INSTRUCTIONS; 9]).unwrap_err();
    assert!(error.to_string().contains("hint:"), "{error}");
}

pub fn l2_misses(processor: &Processor) -> Option<Event> {
    [Quantity::L2DataMisses, Quantity::L2Refills, Quantity::L2Misses].iter().find_map(|&q| event(processor, q))
}
