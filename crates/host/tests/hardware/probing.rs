//! Probing of the machine.

use std::time::{Duration, Instant};

use isochrome_host::color::pool::FramePool;
use isochrome_host::color::{Survey, Target};
use isochrome_host::machine::setting::RealtimeRequest;
use isochrome_host::machine::sysfs::{Processor, Sysfs};
use isochrome_host::probe::{ProbeRequest, latency, probe};
use isochrome_model::costs::SAMPLES_MIN;
use isochrome_model::machine::{Holds, Machine};
use isochrome_model::palette::Method;
use isochrome_model::units::{Bytes, CpuId};

use crate::thread::{allowed_cpus, timer_slack};

pub fn loads_take_longer_the_further_out_they_are_answered() {
    let (machine, _) = Sysfs::system().machine().unwrap();
    let last = machine.levels.iter().map(|l| l.geometry.value.cache_bytes()).max().unwrap_or(Bytes(32 << 20));
    let largest = Bytes((2 * last.0).clamp(16 << 20, 128 << 20));
    let curve = latency::curve(largest, last, Bytes(64), 1, Duration::from_secs(60)).unwrap();
    assert!(curve.len() > 8, "{curve:?}");
    // Noise only lengthens loads. So the shortest time of each doubling of the size is compared, with a tolerance for the remaining noise.
    let octaves: Vec<f64> =
        curve.chunks(4).map(|points| points.iter().map(|p| p.1).fold(f64::INFINITY, f64::min)).collect();
    assert!(octaves.windows(2).all(|pair| pair[1] > 0.6 * pair[0]), "{octaves:?}");
    if last.0 * 2 <= largest.0 && curve.last().is_some_and(|p| p.0.0 > last.0) {
        assert!(octaves[octaves.len() - 1] > 3.0 * octaves[0], "{octaves:?}");
    }
}

/// Returns pages of known colors, and the cache level of the colors; `None` if the colors of this machine cannot be found.
fn pool(machine: &Machine, cpu: CpuId) -> Option<(FramePool, u8)> {
    let _pinned = RealtimeRequest::new().pin(cpu).apply();
    let target = Target::of(machine, None, cpu).ok()?;
    let mut survey = Survey::start_by(
        Method::Timing,
        target,
        Survey::memory(target, Bytes(32 << 20)).ok()?,
        &Processor::default(),
        1,
    )
    .ok()?;
    survey.classify(100 * target.geometry.color_count(machine.page_bytes) as usize).ok()?;
    let collection = survey.finish();
    let colors = collection.inference.palette.colors;
    Some((FramePool::new(collection.arena, &collection.inference.page_colors, colors), target.level))
}

pub fn a_probe_fills_facts_within_their_ranges_and_leaves_the_thread_where_it_was() {
    let before = (allowed_cpus(), timer_slack());
    let (mut machine, _) = Sysfs::system().machine().unwrap();
    let fingerprint = machine.fingerprint();
    let cpus = before.0.iter().take(2).copied().collect();
    let pool = pool(&machine, before.0[0]);
    let colored = pool.as_ref().map(|(pool, level)| (pool, *level));
    let begin = Instant::now();
    let notes = probe(&mut machine, colored, &ProbeRequest { cpus, seed: 1 }, |_| {});
    println!("{:?}\n{machine:#?}\n{notes:#?}", begin.elapsed());
    assert_eq!((allowed_cpus(), timer_slack()), before);
    assert_eq!(machine.fingerprint(), fingerprint, "measured values are not part of the machine's identity");
    assert!(machine.counter_hz.unwrap().value > 1_000_000);
    assert!(machine.counter_quantum.unwrap().value >= 1.0);
    for level in &machine.levels {
        if let Some(refill) = level.refill {
            assert_eq!(refill.value.lines, level.geometry.value.lines_per_color(machine.page_bytes));
            assert!(refill.value.clean_ns.0 > 0 && refill.value.dirty_ns.0 > 0);
        }
        if let Some(test) = level.replacement.map(|fact| fact.value) {
            assert_eq!(Some(test.level), colored.map(|(_, level)| level), "only the level of the colors is tested");
            for share in [test.cyclic, test.reused, test.fitting] {
                assert!(0.0 <= share.low && share.low <= share.median, "{test}");
                assert!(share.median <= share.high && share.high <= 1.0, "{test}");
            }
            // More lines than fit are missed no less often than lines that fit.
            assert!(test.cyclic.high >= test.fitting.low && test.blocks >= 12, "{test}");
        }
        for sample in &level.retention {
            assert!(
                0.0 <= sample.lost_min
                    && sample.lost_min <= sample.lost_median
                    && sample.lost_median <= sample.lost_max
            );
            assert!(sample.lost_max <= 1.0 && sample.samples >= 15);
        }
        if level.holds == Holds::Instruction {
            assert!(level.sharing_seen.is_none() && level.retention.is_empty() && level.load_ns.is_none());
        }
    }
    if let Some((_, level)) = colored {
        let is_tested = machine.levels.iter().any(|known| known.level == level && known.replacement.is_some());
        let is_explained = notes.iter().any(|note| note.subject.starts_with("replacement"));
        assert!(
            is_tested || is_explained,
            "the replacement policy is neither tested nor is it said why not: {notes:?}"
        );
    }
    if let Some(costs) = &machine.costs {
        for (name, cost) in costs.of_every_set().chain(costs.refill.map(|cost| ("refill", cost))) {
            assert!(
                0 < cost.median_ns.0 && cost.median_ns <= cost.high_ns && cost.high_ns < cost.charged_ns,
                "{name}: {cost}"
            );
            assert!(cost.samples as usize >= SAMPLES_MIN, "{name}: {cost}");
        }
        // Lines that are loaded one after the other from outside the level take longer than lines in the level.
        let level = machine.data_level_of(costs.level, costs.cpu).unwrap();
        if let (Some(cost), Some(load)) = (costs.refill, level.load_ns) {
            let lines = level.geometry.value.lines_per_color(machine.page_bytes);
            assert!(cost.high_ns.0 as f64 > lines as f64 * load.value, "{cost}, a load takes {} ns", load.value);
        }
    }
    for note in notes {
        assert!(!note.subject.is_empty() && !note.reason.is_empty() && !note.hint.is_empty(), "{note:?}");
    }
}
