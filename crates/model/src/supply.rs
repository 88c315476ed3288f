//! The supply of a CPU: how much of any window of time a hypervisor or the kernel may withhold.
//!
//! A thread that only reads the clock sees a gap wherever it did not have its CPU. [`Supply`] sums up the gaps of such recordings by two
//! functions of the length w of a window:
//!
//! ```text
//! B(w) = max over all t of the time withheld in [t, t + w)          N(w) = max over all t of the number of gaps that touch [t, t + w)
//! ```
//!
//! w - B(w) is a supply-bound function: the least time that tasks have in any window of length w. It is what the analysis of restricted supply
//! rests on (see [`analysis`](crate::analysis)).
//!
//! Both functions are maxima over windows, and a window of length a + b is a window of length a followed by one of length b. So
//! `B(a + b) <= B(a) + B(b)`, and the same holds for N. This extends them beyond the longest window that was observed.
//!
//! The functions are stored as steps. Between two steps, both have the value of the next one, so a stored function is never below the observed
//! maximum. No step is shorter than the longest gap g. This costs nothing, because no job with work to do responds within a window that
//! can be withheld as a whole, and B(w) = w up to g.
//!
//! An observed maximum is not a bound on what a hypervisor will do. The charged supply is an assumption of the analysis, like a measured
//! [cost](crate::costs).

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::machine::{Fact, Source};
use crate::units::{CpuId, Ns, format_list};

/// Divisor of a step's window. The next step's window is longer by the quotient, 12.5 %, so that there are about six steps in an octave.
const GROWTH: u64 = 8;

/// A time for which a CPU was withheld from the thread that watched the clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    /// Start of the gap, from the beginning of the recording.
    pub start: Ns,
    /// Length of the gap.
    pub length: Ns,
}

impl Gap {
    fn end_ns(self) -> u64 {
        self.start.0 + self.length.0
    }
}

/// The gaps that a thread saw while it watched the clock without a pause.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recording {
    /// Length of the recording.
    pub length: Ns,
    /// The gaps, ascending and apart from each other, all within the recording.
    pub gaps: Vec<Gap>,
}

impl Recording {
    /// Returns the most time, in ns, that is withheld in any window of `window_ns`.
    ///
    /// The withheld time changes with the start t of the window as fast as t leaves gaps and t + w enters them. So it is largest where the window
    /// begins with a gap or ends with one.
    fn withheld_ns(&self, window_ns: u64) -> u64 {
        let gaps = &self.gaps;
        let (mut most, mut after, mut whole) = (0, 0, 0);
        for (index, gap) in gaps.iter().enumerate() {
            // `whole`: length of all gaps from this one on that end within a window that begins with this one.
            let end = gap.start.0.saturating_add(window_ns);
            while gaps.get(after).is_some_and(|next| next.end_ns() <= end) {
                whole += gaps[after].length.0;
                after += 1;
            }
            let partly = gaps.get(after).map_or(0, |next| end.saturating_sub(next.start.0));
            most = most.max(whole + partly);
            // The window may end within its first gap.
            match after == index {
                true => after += 1,
                false => whole -= gap.length.0,
            }
        }
        let (mut first, mut whole) = (0, 0);
        for gap in gaps {
            whole += gap.length.0;
            let start = gap.end_ns().saturating_sub(window_ns);
            while gaps[first].end_ns() <= start {
                whole -= gaps[first].length.0;
                first += 1;
            }
            most = most.max(whole - start.saturating_sub(gaps[first].start.0));
        }
        most
    }

    /// Returns the largest number of gaps that any window of `window_ns` touches.
    fn interruptions(&self, window_ns: u64) -> u64 {
        let (mut first, mut most) = (0, 0);
        for (last, gap) in self.gaps.iter().enumerate() {
            // A window touches the end of one gap and the start of a later one if it is longer than the time between them.
            while gap.start.0.saturating_sub(self.gaps[first].end_ns()) >= window_ns && first < last {
                first += 1;
            }
            most = most.max(last - first + 1);
        }
        most as u64
    }
}

/// One step of a [`Supply`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Step {
    /// Longest window, in ns, for which this step holds.
    pub window_ns: u64,
    /// Most time withheld in any such window, in ns.
    pub withheld_ns: u64,
    /// Most times that the CPU was withheld in any such window. A time that is only partly within the window counts.
    pub interruptions: u64,
}

/// The most time that may be withheld from a CPU in windows of every length. Without steps nothing is withheld.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "Vec<Step>", into = "Vec<Step>")]
#[schemars(with = "Vec<Step>")]
pub struct Supply {
    /// The steps, ascending in all three numbers; the windows strictly.
    steps: Vec<Step>,
}

impl Supply {
    /// Sums up `recordings` of one CPU. The longest step is as long as the shortest recording, so that all of them contribute to every step.
    ///
    /// Panics if gaps overlap, are not in order, or lie outside of their recording.
    ///
    /// ```
    /// use isochrome_model::supply::{Gap, Recording, Supply};
    /// use isochrome_model::units::Ns;
    ///
    /// let gaps = [100, 400, 450].map(|start| Gap { start: Ns(start), length: Ns(20) }).to_vec();
    /// let supply = Supply::of(&[Recording { length: Ns(1000), gaps }]);
    /// // A window of 70 ns can hold the last two gaps.
    /// assert_eq!((supply.withheld_ns(70), supply.interruptions(70)), (40, 2));
    /// // No more is withheld from 2000 ns than from twice 1000 ns.
    /// assert_eq!(supply.withheld_ns(2000), 120);
    /// ```
    pub fn of(recordings: &[Recording]) -> Supply {
        for Recording { length, gaps } in recordings {
            let in_order = gaps.windows(2).all(|pair| pair[0].end_ns() <= pair[1].start.0);
            let within = gaps.last().is_none_or(|gap| gap.end_ns() <= length.0);
            assert!(in_order && within && gaps.iter().all(|gap| gap.length > Ns(0)), "a recording has disjoint gaps");
        }
        let longest = recordings.iter().flat_map(|recording| &recording.gaps).map(|gap| gap.length.0).max();
        let shortest = recordings.iter().map(|recording| recording.length.0).min();
        let (Some(longest), Some(shortest)) = (longest, shortest) else { return Supply::default() };
        let last = shortest.max(longest);
        let next = |window: &u64| (*window < last).then(|| (window + (window / GROWTH).max(1)).min(last));
        let windows = std::iter::successors(Some(longest), next);
        let most = |of: &dyn Fn(&Recording) -> u64| recordings.iter().map(of).max().unwrap_or(0);
        Supply::merged(windows.map(|window_ns| Step {
            window_ns,
            withheld_ns: most(&|recording| recording.withheld_ns(window_ns)),
            interruptions: most(&|recording| recording.interruptions(window_ns)),
        }))
    }

    /// Creates a supply of ascending steps. Steps that differ in nothing but their windows become one.
    fn merged(all: impl Iterator<Item = Step>) -> Supply {
        let mut steps: Vec<Step> = Vec::new();
        for step in all {
            match steps.last_mut() {
                Some(last) if (last.withheld_ns, last.interruptions) == (step.withheld_ns, step.interruptions) => {
                    last.window_ns = step.window_ns;
                }
                _ => steps.push(step),
            }
        }
        Supply { steps }
    }

    /// Returns the supply of a CPU that may behave like either of two CPUs: for every window the larger values.
    ///
    /// Below the longest gap of one CPU its first step counts, which withholds more than the shorter windows of the other have. No more is
    /// withheld of a window than the window.
    pub fn or(&self, other: &Supply) -> Supply {
        let mut windows: Vec<u64> = self.steps.iter().chain(&other.steps).map(|step| step.window_ns).collect();
        windows.sort_unstable();
        windows.dedup();
        Supply::merged(windows.into_iter().map(|window_ns| Step {
            window_ns,
            withheld_ns: self.withheld_ns(window_ns).max(other.withheld_ns(window_ns)).min(window_ns),
            interruptions: self.interruptions(window_ns).max(other.interruptions(window_ns)),
        }))
    }

    /// Whether nothing is ever withheld.
    pub fn is_full(&self) -> bool {
        self.steps.is_empty()
    }

    /// Returns the steps, ascending.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Returns the most time, in ns, that may be withheld in a window of `window_ns`: B(w).
    pub fn withheld_ns(&self, window_ns: u64) -> u64 {
        self.sum(window_ns, |step| step.withheld_ns)
    }

    /// Returns the largest number of times that the CPU may be withheld in a window of `window_ns`: N(w).
    pub fn interruptions(&self, window_ns: u64) -> u64 {
        self.sum(window_ns, |step| step.interruptions)
    }

    /// Returns `value` for a window of `window_ns`. A window longer than the last step consists of windows of that step and a shorter one.
    fn sum(&self, window_ns: u64, value: impl Fn(&Step) -> u64) -> u64 {
        let Some(last) = self.steps.last() else { return 0 };
        let (whole, rest) = match window_ns <= last.window_ns {
            true => (0, window_ns),
            false => (window_ns / last.window_ns, window_ns % last.window_ns),
        };
        let of_rest = match rest {
            0 => 0,
            _ => value(&self.steps[self.steps.partition_point(|step| step.window_ns < rest)]),
        };
        whole.saturating_mul(value(last)).saturating_add(of_rest)
    }
}

impl TryFrom<Vec<Step>> for Supply {
    type Error = String;

    fn try_from(steps: Vec<Step>) -> Result<Supply, String> {
        let possible = |step: &Step| step.window_ns > 0 && step.withheld_ns <= step.window_ns;
        if let Some(step) = steps.iter().find(|step| !possible(step)) {
            return Err(format!("{} ns withheld in a window of {} ns", step.withheld_ns, step.window_ns));
        }
        if let Some(step) = steps.iter().find(|step| (step.withheld_ns > 0) != (step.interruptions > 0)) {
            return Err(format!("{} ns withheld in {} interruptions", step.withheld_ns, step.interruptions));
        }
        let ascends = |pair: &[Step]| {
            pair[0].window_ns < pair[1].window_ns
                && pair[0].withheld_ns <= pair[1].withheld_ns
                && pair[0].interruptions <= pair[1].interruptions
        };
        match steps.windows(2).all(ascends) {
            true => Ok(Supply { steps }),
            false => Err("the steps of a supply do not ascend".to_owned()),
        }
    }
}

impl From<Supply> for Vec<Step> {
    fn from(supply: Supply) -> Vec<Step> {
        supply.steps
    }
}

/// The supply of one CPU as it was observed, or as its operator declares it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CpuSupply {
    /// The CPU.
    pub cpu: CpuId,
    /// Time of the measurement, in seconds since 1970 (UTC).
    #[serde(default)]
    pub measured_at: u64,
    /// Time for which the clock was watched, in ns.
    #[serde(default)]
    pub watched_ns: Ns,
    /// Longest time between two readings of the clock, in ns, that does not count as a gap.
    #[serde(default)]
    pub threshold_ns: Ns,
    /// Whether the watching thread had a real-time priority. Without one, other programs cause gaps as well.
    #[serde(default)]
    pub realtime: bool,
    /// Number of gaps.
    #[serde(default)]
    pub gaps: u64,
    /// The time that may be withheld, in steps.
    pub steps: Supply,
}

/// Which supply bounds charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SupplyChoice {
    /// The supply that was measured, or that its operator declares.
    Measured,
    /// The full supply: nothing is ever withheld.
    Full,
}

/// The supply that bounds charge, with its origin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ChargedSupply {
    /// CPUs whose supply is known. Bounds charge the worst of them on every core.
    pub cpus: Vec<CpuId>,
    /// Source of the supply.
    pub source: Source,
    /// Shortest time for which one of the CPUs was watched, in ns.
    pub watched_ns: Ns,
    /// Longest time between two readings of the clock, in ns, that does not count as a gap.
    pub threshold_ns: Ns,
    /// The most time that may be withheld from any of the CPUs, for every window.
    pub steps: Supply,
}

impl ChargedSupply {
    /// Returns the worst of the supplies of several CPUs; `None` without CPUs.
    pub fn of(known: &[Fact<CpuSupply>]) -> Option<ChargedSupply> {
        let each = || known.iter().map(|fact| &fact.value);
        let is_measured = known.iter().all(|fact| fact.source == Source::Measured);
        Some(ChargedSupply {
            cpus: each().map(|of| of.cpu).collect(),
            source: if is_measured { Source::Measured } else { Source::Declared },
            watched_ns: each().map(|of| of.watched_ns).min()?,
            threshold_ns: each().map(|of| of.threshold_ns).max()?,
            steps: each().fold(Supply::default(), |worst, of| worst.or(&of.steps)),
        })
    }
}

/// Windows for which a supply is described in words, in ns.
const DESCRIBED: [(u64, &str); 4] =
    [(1_000_000, "1 ms"), (10_000_000, "10 ms"), (100_000_000, "100 ms"), (1_000_000_000, "1 s")];

impl fmt::Display for Supply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_full() {
            return f.write_str("nothing is withheld");
        }
        f.write_str("at most ")?;
        for (index, (window_ns, name)) in DESCRIBED.into_iter().enumerate() {
            let withheld = self.withheld_ns(window_ns).min(window_ns) as f64 / 1e6;
            let (comma, times) = (if index > 0 { ", " } else { "" }, self.interruptions(window_ns));
            write!(f, "{comma}{withheld:.3} ms in {times} gaps of any {name}")?;
        }
        Ok(())
    }
}

impl fmt::Display for ChargedSupply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cpus = format_list(&self.cpus.iter().map(|cpu| cpu.0).collect::<Vec<_>>());
        let plural = if self.cpus.len() == 1 { "" } else { "s" };
        match self.source {
            Source::Measured => {
                let (watched, threshold) = (self.watched_ns.0 as f64 / 1e9, self.threshold_ns.0 as f64 / 1e3);
                write!(
                    f,
                    "the supply of CPU{plural} {cpus}, observed for {watched:.1} s each in gaps of more than {threshold} us: {}",
                    self.steps
                )
            }
            _ => write!(f, "the declared supply of CPU{plural} {cpus}: {}", self.steps),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn recording(gaps: &[(u64, u64)], length: u64) -> Recording {
        let gaps = gaps.iter().map(|&(start, length)| Gap { start: Ns(start), length: Ns(length) }).collect();
        Recording { length: Ns(length), gaps }
    }

    /// Reference implementation of B(w) and N(w) within one recording: tries all windows, in steps of half a nanosecond.
    fn tried(recording: &Recording, window_ns: u64) -> (u64, u64) {
        let window = 2 * window_ns;
        let starts = 0..=(2 * recording.length.0).saturating_sub(window);
        let each = starts.map(|start| {
            let part = |gap: &Gap| (2 * gap.end_ns()).min(start + window).saturating_sub((2 * gap.start.0).max(start));
            let touched = recording.gaps.iter().filter(|gap| part(gap) > 0).count() as u64;
            (recording.gaps.iter().map(part).sum::<u64>().div_ceil(2), touched)
        });
        each.fold((0, 0), |most, one| (most.0.max(one.0), most.1.max(one.1)))
    }

    /// Recordings of up to 200 ns with gaps of up to 12 ns.
    fn recordings() -> impl Strategy<Value = Vec<Recording>> {
        let one = prop::collection::vec((1u64..30, 1u64..12), 0..12).prop_map(|each| {
            let (mut now, mut gaps) = (0, Vec::new());
            for (pause, length) in each {
                gaps.push((now + pause, length));
                now += pause + length;
            }
            recording(&gaps, now.max(60))
        });
        prop::collection::vec(one, 1..4)
    }

    #[test]
    fn the_steps_of_three_gaps_are_those_counted_by_hand() {
        // Gaps at 10..14, 20..22 and 90..91.
        let supply = Supply::of(&[recording(&[(10, 4), (20, 2), (90, 1)], 100)]);
        // Of 12 ns, 10..22 is withheld except for 14..20. A window of 7 ns touches the first two gaps, and holds 13..14 and 20..22 at most, which
        // is less than the first gap. A window of 77 ns touches all gaps, and one of 81 ns holds them.
        assert_eq!([4, 7, 12, 60].map(|window| supply.withheld_ns(window)), [4, 4, 6, 6]);
        assert_eq!([1, 6, 7, 60].map(|window| supply.interruptions(window)), [1, 1, 2, 2]);
        assert_eq!((supply.withheld_ns(81), supply.interruptions(81)), (7, 3));
        assert_eq!((supply.withheld_ns(0), supply.interruptions(0)), (0, 0));
        // Twice the whole recording, and 5 ns more.
        assert_eq!((supply.withheld_ns(205), supply.interruptions(205)), (14 + 4, 6 + 1));
    }

    #[test]
    fn without_gaps_nothing_is_withheld() {
        let full = Supply::of(&[recording(&[], 100)]);
        assert!(full.is_full() && full == Supply::of(&[]));
        assert_eq!((full.withheld_ns(u64::MAX), full.interruptions(u64::MAX)), (0, 0));
    }

    #[test]
    fn a_hundred_thousand_gaps_become_few_steps() {
        let mut random = fastrand::Rng::with_seed(18);
        let (mut now, mut gaps) = (0, Vec::new());
        for _ in 0..100_000 {
            now += random.u64(1_000..80_000);
            let length = random.u64(5_000..20_000);
            gaps.push((now, length));
            now += length;
        }
        let supply = Supply::of(&[recording(&gaps, now)]);
        // From 20 us to 5 s are 18 octaves of about six steps.
        assert!((80..130).contains(&supply.steps().len()), "{}", supply.steps().len());
    }

    #[test]
    fn steps_that_no_recording_gives_are_refused() {
        let read = |text: &str| serde_json::from_str::<Supply>(text).map_err(|error| error.to_string());
        let supply = Supply::of(&[recording(&[(10, 4), (20, 2)], 100)]);
        assert_eq!(read(&serde_json::to_string(&supply).unwrap()), Ok(supply));
        let step = |window: u64, withheld: u64| {
            format!(r#"{{"window_ns": {window}, "withheld_ns": {withheld}, "interruptions": 1}}"#)
        };
        assert!(read(&format!("[{}]", step(5, 6))).unwrap_err().contains("6 ns withheld in a window of 5 ns"));
        let never = r#"[{"window_ns": 5, "withheld_ns": 2, "interruptions": 0}]"#;
        assert!(read(never).unwrap_err().contains("2 ns withheld in 0 interruptions"));
        assert!(read(&format!("[{}, {}]", step(5, 4), step(6, 3))).unwrap_err().contains("do not ascend"));
        assert!(read(&format!("[{}, {}]", step(5, 4), step(5, 4))).unwrap_err().contains("do not ascend"));
    }

    #[test]
    fn the_worst_of_two_cpus_is_charged() {
        let often = Supply::of(&[recording(&[(10, 2), (20, 2), (30, 2), (40, 2)], 60)]);
        let long = Supply::of(&[recording(&[(10, 7)], 60)]);
        let fact = |cpu, steps: &Supply, watched| Fact {
            value: CpuSupply {
                cpu: CpuId(cpu),
                measured_at: 0,
                watched_ns: Ns(watched),
                threshold_ns: Ns(1),
                realtime: true,
                gaps: 1,
                steps: steps.clone(),
            },
            source: Source::Measured,
        };
        let charged = ChargedSupply::of(&[fact(0, &often, 70), fact(1, &long, 60)]).unwrap();
        assert_eq!((charged.watched_ns, charged.source), (Ns(60), Source::Measured));
        assert_eq!((charged.steps.withheld_ns(7), charged.steps.interruptions(60)), (7, 4));
        assert_eq!(ChargedSupply::of(&[]), None);
    }

    proptest! {
        #[test]
        fn no_window_of_a_recording_has_less_than_the_supply_says(recordings in recordings(), window in 1u64..300) {
            let supply = Supply::of(&recordings);
            for recording in &recordings {
                let (withheld, touched) = tried(recording, window);
                prop_assert!(withheld <= supply.withheld_ns(window), "{withheld} in {window}: {supply:?}");
                prop_assert!(touched <= supply.interruptions(window), "{touched} times in {window}: {supply:?}");
            }
        }

        #[test]
        fn the_worst_of_two_supplies_is_read_back_and_covers_both(one in recordings(), other in recordings(), window in 1u64..300) {
            let worst = Supply::of(&one).or(&Supply::of(&other));
            let text = serde_json::to_string(&worst).unwrap();
            prop_assert_eq!(serde_json::from_str::<Supply>(&text).map_err(|error| error.to_string()), Ok(worst.clone()));
            for recording in one.iter().chain(&other) {
                let (withheld, touched) = tried(recording, window);
                prop_assert!(withheld <= worst.withheld_ns(window), "{withheld} in {window}: {worst:?}");
                prop_assert!(touched <= worst.interruptions(window), "{touched} times in {window}: {worst:?}");
            }
        }

        #[test]
        fn at_its_steps_a_supply_is_what_was_observed(recordings in recordings()) {
            let shortest = recordings.iter().map(|recording| recording.length.0).min().unwrap();
            for step in Supply::of(&recordings).steps().iter().filter(|step| step.window_ns <= shortest) {
                let each = recordings.iter().map(|recording| tried(recording, step.window_ns));
                let most = each.fold((0, 0), |most, one| (most.0.max(one.0), most.1.max(one.1)));
                prop_assert_eq!(most, (step.withheld_ns, step.interruptions));
            }
        }

        #[test]
        fn a_supply_grows_with_the_window_and_halves_add_up_to_no_less(recordings in recordings(), a in 0u64..400, b in 0u64..400) {
            let supply = Supply::of(&recordings);
            let of = |window| (supply.withheld_ns(window), supply.interruptions(window));
            prop_assert!(of(a + b).0 >= of(a).0 && of(a + b).1 >= of(a).1);
            // Beyond the longest step this is how a supply is extended. Steps round up, so it need not hold before.
            let last = supply.steps().last().map_or(0, |step| step.window_ns);
            prop_assert!(of(a + last).0 <= of(a).0 + of(last).0 && of(a + last).1 <= of(a).1 + of(last).1);
        }
    }
}
