//! Tests of `run`, with fakes of the programs and of the measure.

use std::time::{Duration, Instant};

use isochrome_model::stats::SIGNIFICANT;

use super::conclude::blocks_of;
use super::measure::{MayGoOn, Measure, Reading, Trouble};
use super::party::Party;
use super::place::{Place, PlaceError};
use super::run::{Experiment, Recorded, Settings, last_look, once, order, preparation, run};
use super::{Condition, Placed, Statistic};

/// Where the fake programs are, and how placements and windows go wrong.
#[derive(Default)]
struct Fake {
    condition: Option<Condition>,
    /// Number of colors of the victim apart, and the number on which it cannot be placed.
    own: u32,
    too_few: u32,
    placements: u64,
    restored: u64,
    /// Placements, by number, that leave the pages off color, fail, or are refused.
    wrong: Vec<u64>,
    failing: Vec<u64>,
    refused: Option<u64>,
}

fn placed(on_color: f64) -> Vec<Placed> {
    vec![Placed { pages: 100, immovable: 0, moved: 100, on_color, crowding: 1.0, verified: None }]
}

/// A fake of the programs' placement that tells the measure where they are.
struct FakePlace<'f>(&'f std::cell::RefCell<Fake>);

impl Place for FakePlace<'_> {
    fn divide(&mut self, own: u32) {
        self.0.borrow_mut().own = own;
    }

    fn place(&mut self, condition: Condition) -> Result<Vec<Placed>, PlaceError> {
        let mut fake = self.0.borrow_mut();
        let number = fake.placements;
        fake.placements += 1;
        fake.condition = Some(condition);
        match number {
            number if fake.refused == Some(number) => Err(PlaceError::Refused("no".to_owned())),
            number if fake.failing.contains(&number) => Err(PlaceError::Failed("not now".to_owned())),
            number if fake.wrong.contains(&number) => Ok(placed(0.5)),
            _ if fake.own == fake.too_few && condition == Condition::Apart && fake.own > 0 => Ok(placed(0.9)),
            _ => Ok(placed(1.0)),
        }
    }

    fn verify(&mut self, _: Condition, placed: &mut [Placed]) {
        placed.iter_mut().for_each(|placed| placed.verified = Some(1.0));
    }

    fn look_again(&mut self, _: Condition, _: &mut [Placed]) -> Result<(), PlaceError> {
        Ok(())
    }

    fn restore(&mut self) -> Vec<String> {
        self.0.borrow_mut().restored += 1;
        vec!["put back".to_owned()]
    }
}

type Value<'f> = dyn FnMut(u64, Option<Condition>) -> Result<f64, Trouble> + 'f;

/// A fake measure: `value` gives the value of each window, by its number and the placement.
struct FakeMeasure<'f> {
    fake: &'f std::cell::RefCell<Fake>,
    windows: u64,
    value: &'f mut Value<'f>,
}

impl Measure for FakeMeasure<'_> {
    fn unit(&self) -> &str {
        "µs"
    }

    fn window(&mut self, _: Duration, may_go_on: &mut MayGoOn<'_>) -> Result<Reading, Trouble> {
        self.windows += 1;
        let value = (self.value)(self.windows - 1, self.fake.borrow().condition)?;
        if !may_go_on() {
            return Err(Trouble::Stopped);
        }
        Ok(Reading::Values(vec![value; 3]))
    }
}

fn settings() -> Settings {
    Settings {
        blocks: 10,
        found: 3,
        window: Duration::ZERO,
        settle: Duration::ZERO,
        limit: None,
        seed: 5,
        statistic: Statistic::Median,
        margin: 0.03,
        stops_early: true,
        curve: Vec::new(),
    }
}

fn sleeper(seconds: &str) -> Party {
    Party::start(&["sleep".to_owned(), seconds.to_owned()], false, None).unwrap().0
}

/// Runs an experiment on fakes beside programs that sleep.
fn recorded(
    settings: &Settings,
    fake: Fake,
    mut value: impl FnMut(u64, Option<Condition>) -> Result<f64, Trouble>,
) -> (Recorded, Fake) {
    let (mut victim, mut neighbor) = (sleeper("60"), sleeper("60"));
    let fake = std::cell::RefCell::new(fake);
    let recorded = run(Experiment {
        settings,
        victim: &mut victim,
        neighbor: Some(&mut neighbor),
        place: &mut FakePlace(&fake),
        measure: &mut FakeMeasure { fake: &fake, windows: 0, value: &mut value },
        neighbor_lines: None,
        progress: &mut |_| {},
    });
    (recorded, fake.into_inner())
}

/// Returns 100, 80 where the programs are apart, and a little noise.
fn gain(number: u64, condition: Option<Condition>) -> Result<f64, Trouble> {
    let base = if condition == Some(Condition::Apart) { 80.0 } else { 100.0 };
    Ok(base + (number * 7 % 11) as f64 / 10.0)
}

#[test]
fn every_order_of_a_block_comes_equally_often() {
    let mut rng = fastrand::Rng::with_seed(3);
    let mut counts = std::collections::BTreeMap::new();
    for _ in 0..2400 {
        *counts.entry(order(&mut rng, &[])).or_insert(0u64) += 1;
    }
    // 24 orders, 100 of each expected: the standard deviation is 9.8.
    assert_eq!(counts.len(), 24);
    assert!(counts.values().all(|count| (60..=140).contains(count)), "{counts:?}");
    let block = order(&mut rng, &[]);
    assert!(
        [Condition::Spread, Condition::Apart].iter().all(|it| block
            .iter()
            .filter(|cell| cell.condition == *it)
            .count()
            == 2)
    );
}

#[test]
fn an_experiment_stops_as_soon_as_its_answer_is_known() {
    let (done, fake) = recorded(&settings(), Fake::default(), gain);
    // The first look comes after 4 of 10 blocks, and one in 6^4 orders is as extreme on either side: 2/1296 is below 0.004.
    assert_eq!((done.ended.as_str(), done.as_planned, done.looks.len()), ("the answer was known", true, 1));
    assert!((done.looks[0].effect.p - 2.0 / 1296.0).abs() < 1e-12);
    assert_eq!((done.windows.len(), fake.placements, fake.restored), (3 + 16, 16, 1));
    // Each block has one window of each condition whose pages were tested by eviction.
    assert_eq!(done.windows.iter().filter(|window| window.placed.iter().any(|it| it.verified.is_some())).count(), 8);
    // As found comes first and is not placed.
    assert!(done.windows[..3].iter().all(|window| window.condition == Condition::AsFound && window.placed.is_empty()));
    let to_the_end = Settings { stops_early: false, ..settings() };
    let (done, _) = recorded(&to_the_end, Fake::default(), gain);
    assert_eq!((done.windows.len(), done.looks.len()), (3 + 40, 4));
    assert_eq!(last_look(&done, &settings()).unwrap().look.level, 0.5 * SIGNIFICANT);
}

#[test]
fn windows_are_left_out_by_their_placement_and_never_by_their_value() {
    // Placement 1 is wrong, placement 7 fails: two blocks are given up. Values that are far off stay.
    let fake = Fake { wrong: vec![1], failing: vec![7], ..Fake::default() };
    let wild = |number: u64, condition| Ok(gain(number, condition)? * if number == 11 { 1000.0 } else { 1.0 });
    let (done, _) = recorded(&Settings { stops_early: false, ..settings() }, fake, wild);
    let excluded: Vec<&String> = done.windows.iter().filter_map(|window| window.excluded.as_ref()).collect();
    assert_eq!(excluded.len(), 2);
    assert!(excluded[0].contains("50 % of the pages were on color") && excluded[1].contains("not now"), "{excluded:?}");
    assert_eq!(blocks_of(&done.windows, |window| window.value).len(), 10);
    let wild: Vec<f64> =
        done.windows.iter().filter_map(|window| window.value.filter(|value| *value > 1000.0)).collect();
    assert_eq!(wild.len(), 1);
    assert_eq!(done.ended, "all windows were measured");
}

#[test]
fn a_program_that_refuses_to_be_moved_ends_the_experiment_and_what_was_measured_stays() {
    let (done, fake) = recorded(&settings(), Fake { refused: Some(6), ..Fake::default() }, gain);
    assert_eq!((done.ended.as_str(), done.as_planned), ("a program cannot be moved: no", false));
    assert_eq!((done.windows.len(), fake.restored, done.left.as_slice()), (3 + 6, 1, &["put back".to_owned()][..]));
}

#[test]
fn a_load_generator_that_keeps_failing_ends_the_experiment_and_one_failure_does_not() {
    let failing = |number: u64, condition| match number {
        5 => Err(Trouble::Failed("refused".to_owned())),
        _ => gain(number, condition),
    };
    let (done, _) = recorded(&settings(), Fake::default(), failing);
    assert!(done.as_planned && done.windows.iter().filter(|window| window.excluded.is_some()).count() == 1);
    let broken = |number: u64, condition| match number {
        8.. => Err(Trouble::Failed("refused".to_owned())),
        _ => gain(number, condition),
    };
    let (done, fake) = recorded(&settings(), Fake::default(), broken);
    assert_eq!(done.ended, "4 windows in a row did not count, the last: refused");
    assert!(!done.as_planned && fake.restored == 1 && blocks_of(&done.windows, |window| window.value).len() == 1);
}

#[test]
fn windows_without_enough_values_do_not_count() {
    let (done, _) = recorded(&Settings { statistic: Statistic::P99, ..settings() }, Fake::default(), gain);
    assert!(done.ended.ends_with("3 values, and 99 % quantile takes 100"), "{}", done.ended);
}

#[test]
fn a_victim_or_a_neighbor_that_is_killed_ends_the_experiment_and_what_was_measured_stays() {
    for victim_dies in [true, false] {
        let (mut victim, mut neighbor) = (sleeper("60"), sleeper("60"));
        let doomed = if victim_dies { victim.pid } else { neighbor.pid };
        let fake = std::cell::RefCell::new(Fake::default());
        let mut value = |number: u64, condition| {
            if number == 9 {
                isochrome_host::sys::launch::send(doomed.0, 9).unwrap();
                while doomed.start_time().is_some() {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
            gain(number, condition)
        };
        let done = run(Experiment {
            settings: &settings(),
            victim: &mut victim,
            neighbor: Some(&mut neighbor),
            place: &mut FakePlace(&fake),
            measure: &mut FakeMeasure { fake: &fake, windows: 0, value: &mut value },
            neighbor_lines: None,
            progress: &mut |_| {},
        });
        let who = if victim_dies { "victim" } else { "neighbor" };
        assert_eq!((done.ended, done.as_planned), (format!("the {who} has ended (signal 9)"), false));
        // Three windows as found, six in blocks, and the one that was interrupted.
        assert_eq!((done.windows.len(), done.windows[9].excluded.as_deref()), (10, Some("interrupted")));
        assert_eq!(fake.borrow().restored, 1);
    }
}

#[test]
fn an_experiment_ends_when_its_time_is_over() {
    let limited = Settings { limit: Some(Duration::ZERO), ..settings() };
    let (done, fake) = recorded(&limited, Fake::default(), gain);
    assert_eq!((done.ended.as_str(), done.as_planned, fake.placements), ("its time was over", true, 0));
}

#[test]
fn a_curve_has_every_number_of_colors_in_every_block_and_finds_the_knee() {
    // Placements of the victim on 16 colors go wrong, so that number is left out.
    let of_curve = Settings { curve: vec![1, 2, 4, 8, 16], blocks: 12, ..settings() };
    let (mut victim, fake) = (sleeper("60"), std::cell::RefCell::new(Fake { too_few: 16, ..Fake::default() }));
    // From four colors on nothing more is gained.
    let mut value = |number: u64, condition: Option<Condition>| {
        let own = fake.borrow().own;
        let base = if condition == Some(Condition::Apart) { 100.0 / f64::from(own.min(4)) } else { 60.0 };
        Ok(base * (1.0 + (number * 7 % 11) as f64 / 1000.0))
    };
    let done = run(Experiment {
        settings: &of_curve,
        victim: &mut victim,
        neighbor: None,
        place: &mut FakePlace(&fake),
        measure: &mut FakeMeasure { fake: &fake, windows: 0, value: &mut value },
        neighbor_lines: None,
        progress: &mut |_| {},
    });
    assert_eq!((done.curve.as_slice(), done.ended.as_str()), (&[1, 2, 4, 8][..], "all windows were measured"));
    let counting = done.windows.iter().filter(|window| window.excluded.is_none()).count();
    assert!(counting >= 3 + 12 * 5 && done.windows.len() - counting == 2, "{counting} of {}", done.windows.len());
    let program = crate::compare::Program { name: "victim".to_owned(), pid: 1, colors: vec![0], cpus: vec![0] };
    let about = crate::compare::About {
        victim: program,
        neighbor: None,
        level: 2,
        colors: 16,
        measure: String::new(),
        unit: String::new(),
        larger_is_better: false,
        expected: Vec::new(),
        refill_us: None,
        placing_s: 0.0,
    };
    let result = crate::compare::conclude(done, &of_curve, about);
    // 100, 50, 25 and 25 against 60, in a noise of 1 %.
    let expected = [(1, 0.667), (2, -0.167), (4, -0.583), (8, -0.583)];
    assert_eq!(result.curve.len(), expected.len());
    for (step, (colors, effect)) in result.curve.iter().zip(expected) {
        assert!(step.colors == colors && (step.effect.estimate - effect).abs() < 0.02, "{step:?}");
    }
    // Of 2^12 orders one is as extreme on either side, and four numbers are judged together.
    assert!(result.curve.iter().all(|step| (step.p - 4.0 * 2.0 / 4096.0).abs() < 1e-12));
    assert_eq!((result.knee, result.effect, result.same), (Some(4), None, None));
}

#[test]
fn a_program_started_anew_is_moved_for_a_window_apart_and_left_alone_for_one_as_found() {
    let window = |condition, seconds: &str| {
        let (mut victim, fake) = (sleeper(seconds), std::cell::RefCell::new(Fake::default()));
        while seconds == "0" && victim.ended().is_none() {
            std::thread::sleep(Duration::from_millis(1));
        }
        let experiment = Experiment {
            settings: &settings(),
            victim: &mut victim,
            neighbor: None,
            place: &mut FakePlace(&fake),
            measure: &mut FakeMeasure { fake: &fake, windows: 0, value: &mut gain },
            neighbor_lines: None,
            progress: &mut |_| {},
        };
        let window = once(experiment, Instant::now(), 7, condition);
        (window, fake.into_inner().placements)
    };
    let (found, placements) = window(Condition::AsFound, "60");
    let found = found.unwrap();
    assert_eq!((found.block, found.condition, found.value, placements), (Some(7), Condition::AsFound, Some(100.0), 0));
    assert!(found.placed.is_empty() && found.excluded.is_none());
    let (apart, placements) = window(Condition::Apart, "60");
    let apart = apart.unwrap();
    assert_eq!((apart.block, apart.condition, apart.value, placements), (Some(7), Condition::Apart, Some(80.0), 1));
    assert_eq!(apart.placed[0].verified, Some(1.0));
    let (none, _) = window(Condition::Apart, "0");
    assert!(none.unwrap_err().starts_with("the victim has ended"));
}

#[test]
fn preparation_is_the_time_from_a_window_to_one_apart_whose_pages_were_tested() {
    let (done, _) = recorded(&Settings { stops_early: false, ..settings() }, Fake::default(), gain);
    let mut windows = done.windows;
    for (number, window) in windows.iter_mut().enumerate() {
        let is_tested = window.condition == Condition::Apart && !window.again;
        // A window takes 4 s, and it takes 3 s until the next begins, or 6 s until one with tests.
        (window.at_s, window.length_s) = (10.0 * number as f64, if is_tested { 4.0 } else { 7.0 });
    }
    let before_tests: Vec<usize> = (1..windows.len()).filter(|at| windows[*at].length_s == 4.0).collect();
    before_tests.into_iter().for_each(|at| windows[at - 1].length_s = 4.0);
    assert_eq!(preparation(&windows), Duration::from_secs(6));
    assert_eq!(preparation(&windows[..3]), Duration::ZERO);
}
