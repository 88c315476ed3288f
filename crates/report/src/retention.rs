//! The meaning of measured retention, in words.

use isochrome_model::machine::{CacheLevel, Retention, Waiting};

use isochrome_model::evidence::format;

/// Share of lost lines below which a cache counts as keeping its contents.
const KEPT: f64 = 0.1;

/// Describes what the measured retention of `level` means for experiments on it, in one or two plain sentences.
///
/// The half-life is the wait at which the median loss of the worst measured CPU reaches one half while it waits busily.
pub fn retention_sentence(level: &CacheLevel) -> String {
    // The sentence is also for terminals, which need no no-break spaces.
    sentence(level).replace('\u{a0}', " ")
}

fn sentence(level: &CacheLevel) -> String {
    let name = format!("L{}", level.level);
    let Some((verdict, worst)) = verdict(&level.retention, Waiting::Busy) else {
        return match verdict(&level.retention, Waiting::Asleep) {
            Some((Verdict::HalfLife(ns), _)) => {
                format!("Contents of {name}: half-life about {} while the CPU sleeps.", format::nanoseconds(ns))
            }
            Some((Verdict::Kept { .. }, _)) => format!("{name} keeps its contents while the CPU sleeps."),
            Some(_) => format!("{name} loses part of its contents while the CPU sleeps."),
            None => format!("How well {name} keeps its contents was not measured."),
        };
    };
    let shared = level.shared_by.value.iter().any(|group| group.len() > 1);
    let seen = level.sharing_seen.is_some_and(|seen| seen.value);
    let cause = match (shared, seen) {
        (true, _) => "its other users fill it",
        (false, true) => "another CPU shares it, though it is declared private",
        (false, false) => "something you cannot see shares it",
    };
    let asleep = match self::verdict(&level.retention, Waiting::Asleep) {
        Some((Verdict::HalfLife(ns), _)) if !matches!(verdict, Verdict::HalfLife(_)) => {
            format!(
                " While the CPU sleeps half is gone after {}: the kernel and other tasks run there.",
                format::nanoseconds(ns)
            )
        }
        _ => String::new(),
    };
    match verdict {
        Verdict::HalfLife(ns) => {
            let undisturbed = if worst.lost_min < KEPT {
                " At some times nothing was lost: experiments must keep only undisturbed blocks."
            } else {
                ""
            };
            let half_life = format::nanoseconds(ns);
            format!(
                "Contents of {name}: half-life about {half_life}: {cause}. Effects of partitioning at periods above that cannot \
                 be seen here.{undisturbed}"
            )
        }
        Verdict::Part { lost, ns } => {
            let wait = format::nanoseconds(ns);
            format!(
                "{name} loses {} within {wait} although its CPU touches nothing: {cause}. Effects of partitioning below that \
                 share cannot be seen at periods of {wait}.{asleep}",
                format::share(lost)
            )
        }
        Verdict::Kept { ns } => {
            let wait = format::nanoseconds(ns);
            format!("{name} keeps its contents: {} is gone after {wait}.{asleep}", format::share(worst.lost_median))
        }
    }
}

enum Verdict {
    HalfLife(f64),
    Part { lost: f64, ns: f64 },
    Kept { ns: f64 },
}

/// Returns the verdict on the worst CPU that waited as `waiting`, with the sample that decides it; `None` if there are no samples.
fn verdict(retention: &[Retention], waiting: Waiting) -> Option<(Verdict, &Retention)> {
    let mut samples: Vec<&Retention> =
        retention.iter().filter(|r| r.waiting == waiting && r.lost_median.is_finite()).collect();
    samples.sort_by_key(|sample| (sample.cpu, sample.wait_ns));
    let of_each_cpu: Vec<&[&Retention]> = samples.chunk_by(|a, b| a.cpu == b.cpu).collect();
    let half = of_each_cpu.iter().filter_map(|samples| half_life(samples)).min_by(|a, b| a.0.total_cmp(&b.0));
    if let Some((ns, sample)) = half {
        return Some((Verdict::HalfLife(ns), sample));
    }
    let worst = *samples.iter().max_by(|a, b| a.lost_median.total_cmp(&b.lost_median))?;
    let longest = samples.iter().map(|sample| sample.wait_ns.0).max()? as f64;
    Some(if worst.lost_median < KEPT {
        (Verdict::Kept { ns: longest }, worst)
    } else {
        (Verdict::Part { lost: worst.lost_median, ns: worst.wait_ns.0 as f64 }, worst)
    })
}

/// Returns the wait in ns at which one CPU's median loss reaches one half, and the first sample that does. Between two waits it is interpolated
/// by the logarithm of the wait; `None` if no loss reaches one half.
fn half_life<'a>(samples: &[&'a Retention]) -> Option<(f64, &'a Retention)> {
    let first = samples.iter().position(|sample| sample.lost_median >= 0.5)?;
    let (after, after_ns) = (samples[first], samples[first].wait_ns.0 as f64);
    let Some(before) = first.checked_sub(1).map(|i| samples[i]).filter(|before| before.wait_ns.0 > 0) else {
        return Some((after_ns, after));
    };
    let part = (0.5 - before.lost_median) / (after.lost_median - before.lost_median);
    let before_ns = before.wait_ns.0 as f64;
    Some((before_ns * (after_ns / before_ns).powf(part), after))
}

#[cfg(test)]
mod tests {
    use super::*;
    use isochrome_model::geometry::Geometry;
    use isochrome_model::machine::{Fact, Holds, Source};
    use isochrome_model::units::{Bytes, CpuId, Ns};

    fn level(samples: &[(Waiting, u64, f64, f64)]) -> CacheLevel {
        let sysfs = |value| Fact { value, source: Source::Sysfs };
        CacheLevel {
            level: 2,
            holds: Holds::Unified,
            geometry: Fact { value: Geometry::of_size(Bytes(512 << 10), 8, Bytes(64)).unwrap(), source: Source::Sysfs },
            shared_by: sysfs(vec![vec![CpuId(0)], vec![CpuId(1)]]),
            sharing_seen: None,
            load_ns: None,
            refill: None,
            replacement: None,
            retention: samples
                .iter()
                .map(|&(waiting, us, lost_median, lost_min)| Retention {
                    cpu: CpuId(0),
                    waiting,
                    wait_ns: Ns(us * 1000),
                    lost_median,
                    lost_min,
                    lost_max: 1.0,
                    samples: 9,
                })
                .collect(),
        }
    }

    #[test]
    fn a_half_life_lies_between_the_waits_around_one_half() {
        // 0.4 at 100 us, 0.6 at 400 us: half way on the logarithm is the geometric mean, 200 us.
        let text = retention_sentence(&level(&[
            (Waiting::Busy, 10, 0.05, 0.0),
            (Waiting::Busy, 100, 0.4, 0.0),
            (Waiting::Busy, 400, 0.6, 0.02),
        ]));
        assert!(text.contains("half-life about 200 µs: something you cannot see shares it"), "{text}");
        assert!(text.contains("keep only undisturbed blocks"), "{text}");
    }

    #[test]
    fn a_sharer_that_was_seen_is_named_instead_of_an_unseen_one() {
        let mut level = level(&[(Waiting::Busy, 100, 0.6, 0.0)]);
        level.sharing_seen = Some(Fact { value: true, source: Source::Measured });
        assert!(retention_sentence(&level).contains("another CPU shares it, though it is declared private"));
    }

    #[test]
    fn a_level_that_keeps_its_contents_is_not_accused() {
        let text = retention_sentence(&level(&[(Waiting::Busy, 10_000, 0.02, 0.0), (Waiting::Asleep, 1000, 0.7, 0.5)]));
        assert_eq!(
            text,
            "L2 keeps its contents: 2.0 % is gone after 10.0 ms. While the CPU sleeps half is gone after 1.00 ms: the kernel and \
             other tasks run there."
        );
        assert!(retention_sentence(&level(&[(Waiting::Busy, 10_000, 0.3, 0.0)])).contains("loses 30 % within 10.0 ms"));
        assert!(retention_sentence(&level(&[])).contains("not measured"));
    }
}
