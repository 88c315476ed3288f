//! Colors by counters, on a modeled cache that sees what the command really touches.

use isochrome_model::palette::{Samples, infer};
use nix::libc;

use super::counters::Defect;
use super::machine::{COLORS, MEMORY, Machine, color_of, hashed, low_bits};
use crate::trial::Outcome;

/// Number of pages that are classified.
const PAGES: usize = 512;

/// Returns the arguments of a survey of [`PAGES`] pages.
fn survey<'a>(by: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let arguments = ["palette", "--json", "--memory", MEMORY, "--pages", "512", "--seed", "1", "--by", by];
    [&arguments[..], more].concat()
}

/// A hash of the frame bits is found by eviction tests alone, and no page has a wrong color.
pub fn by_counters() -> Outcome {
    let mut machine = Machine::new(Defect::None).with_colors(hashed);
    let path = machine.folder.path().join("samples.json").display().to_string();
    let found = machine.json(&survey("counters", &["--verify", "--samples", &path]))?;
    assert_eq!((&found["method"], &found["colors"]), (&"counters".into(), &COLORS.into()), "{found}");
    assert_eq!((&found["doubts"], &found["ambiguous"]), (&serde_json::json!([]), &0.into()), "{found}");
    let shares = found["verification"]["shares"].as_array().unwrap();
    assert!(shares.iter().all(|color| color["thrashes"] == 1.0 && color["fits"] == 0.0), "{found}");
    assert!(found["rule"].as_str().unwrap().contains("parities of frame-number bits"), "{found}");

    let samples: Samples = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let colors = infer(&samples).page_colors;
    assert_eq!(colors.len(), PAGES);
    // The numbers of the colors are the tool's own: two pages have one color if they have one in the cache.
    let mut numbers = [None; COLORS];
    for (page, color) in colors.iter().enumerate() {
        let number = &mut numbers[color_of(page as u64, hashed)];
        assert!(color.is_some() && *number.get_or_insert(*color) == *color, "page {page}: {color:?} and {number:?}");
    }
    numbers.sort();
    assert!(numbers.windows(2).all(|pair| pair[0] != pair[1]), "{numbers:?}");
    Ok(())
}

/// Frame bits that are right are confirmed by counters, and the methods agree on every page.
pub fn methods_agree() -> Outcome {
    let mut machine = Machine::new(Defect::None).with_colors(low_bits);
    let found = machine.json(&survey("bits", &["--again", "counters"]))?;
    assert_eq!((&found["method"], &found["doubts"]), (&"bits".into(), &serde_json::json!([])), "{found}");
    assert_eq!((&found["again"][0]["method"], &found["again"][0]["agreement"]), (&"counters".into(), &1.0.into()));
    // Without a method, the bits are tried first.
    let found = machine.json(&survey("auto", &[]))?;
    assert_eq!(found["method"], "bits", "{found}");
    Ok(())
}

/// Frame bits that do not decide the color are contradicted by counters. The counters replace them if no method was asked for.
pub fn wrong_bits() -> Outcome {
    let mut machine = Machine::new(Defect::None).with_colors(hashed);
    let output = machine.output(&survey("bits", &[]))?;
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && message.contains("frame-number bits"), "{message}");
    let found = machine.json(&survey("auto", &[]))?;
    assert_eq!((&found["method"], &found["doubts"]), (&"counters".into(), &serde_json::json!([])), "{found}");
    Ok(())
}

/// Every defect ends a survey by counters at once, with the reason and a remedy for it.
pub fn defects() -> Outcome {
    let cases = [
        (Defect::Refused(libc::ENOENT, 0), "no such performance counter", "virtual PMU"),
        (Defect::Refused(libc::EACCES, 0), "not permitted", "sysctl kernel.perf_event_paranoid=2"),
        (Defect::Refused(libc::EMFILE, 0), "opening the performance counter failed", "ulimit -n"),
        // Here the first groups open.
        (Defect::Refused(libc::EMFILE, 3), "instructions: opening the performance counter failed", "ulimit -n"),
        (Defect::Stuck, "0 counters work here", "use time instead"),
        (Defect::DeadSlot(0), "counter 1 reads 0", "use time instead"),
        (Defect::NoMisses, "read 0 during 262144 cache misses", "leave it out"),
        (Defect::Multiplexed, "ran for 500000 of 1000000 ns", "another tool shares them"),
        (Defect::JumpsBack(2), "counter 1 reads 0", "use time instead"),
        (Defect::Gone(1), "reading the performance counter failed", "another tool may hold the counters"),
        // In the middle of the search for eviction sets, and of the classification.
        (Defect::Gone(500), "reading the performance counter failed", "another tool may hold the counters"),
        (Defect::Gone(3500), "reading the performance counter failed", "another tool may hold the counters"),
    ];
    for (defect, reason, remedy) in cases {
        let mut machine = Machine::new(defect).with_colors(low_bits);
        let output = machine.output(&survey("counters", &[]))?;
        let message = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{defect:?}: {message}");
        assert!(message.contains(reason) && message.contains(remedy), "{defect:?}: {message}");
        assert!(output.stdout.is_empty(), "{defect:?}");
        // A search that goes on without counters tests for minutes.
        assert!(machine.kernel.pmu.readings < 10_000, "{defect:?}: {} readings", machine.kernel.pmu.readings);
    }
    Ok(())
}

/// Frame bits do not count as confirmed if the counters can no longer be read.
pub fn unconfirmed_bits() -> Outcome {
    // While the groups of the bits are tested, and while a sample of the pages is.
    for reading in [200, 600] {
        let mut machine = Machine::new(Defect::Gone(reading)).with_colors(low_bits);
        let output = machine.output(&survey("bits", &[]))?;
        let message = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{reading}: {message}");
        assert!(message.contains("reading the performance counter failed"), "{reading}: {message}");
    }
    Ok(())
}

/// A survey succeeds with fewer counters than usual, with a dead sixth counter, and with a single count that goes back.
pub fn usable() -> Outcome {
    for defect in [Defect::Few(1), Defect::Few(4), Defect::DeadSlot(5), Defect::JumpsBack(1000)] {
        let mut machine = Machine::new(defect).with_colors(low_bits);
        let found = machine.json(&survey("counters", &[]))?;
        assert_eq!(
            (&found["colors"], &found["doubts"]),
            (&COLORS.into(), &serde_json::json!([])),
            "{defect:?}: {found}"
        );
    }
    // A hypervisor that hides the first of the two events for these misses.
    let mut machine = Machine::new(Defect::HiddenEvent(super::programs::READ_MISSES)).with_colors(low_bits);
    let found = machine.json(&survey("counters", &[]))?;
    assert_eq!(found["colors"], COLORS, "{found}");
    Ok(())
}
