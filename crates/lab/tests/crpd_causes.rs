//! Tests of why the preemption delay of code with one jump per line does not grow linearly: suspected causes are switched off one by one.
//!
//! The machine is a modeled AMD Zen 3. Level 1 has 512 lines for instructions. Level 2 has 8 ways and 16 colors. The task has 8 of the colors,
//! into which 4096 lines fit. A line costs 1 cycle in level 1, 8 more in level 2 and 34 more in level 3.

use isochrome_lab::crpd::modeled::{FrontEnd, Request, play};
use isochrome_lab::crpd::{LINEAR_R_SQUARED, PASSES, Walk, conclude};
use isochrome_model::machine::Holds;
use isochrome_model::miss_ratio::Touches;
use isochrome_model::sim::{MachineModel, Policy};
use isochrome_model::stats::{Line, Straightness};
use isochrome_model::units::Color;

/// A core that fetches 8 lines ahead and stores 2048 jumps: one for each of half of the lines that fit.
const AHEAD: FrontEnd = FrontEnd { ahead: 8, jumps: 2048, redirect_cycles: 12, lines_per_jump: 1 };

fn zen3(policy: Policy) -> MachineModel {
    let mut machine = MachineModel::named("zen3").unwrap();
    machine.levels.iter_mut().filter(|level| !level.shared).for_each(|level| level.cache.policy = policy);
    machine
}

/// Returns the machine without level 1.
fn without_level_1(mut machine: MachineModel) -> MachineModel {
    machine.levels.retain(|level| level.holds == Holds::Unified);
    machine.timing.read_cycles.remove(0);
    machine.timing.write_cycles.remove(0);
    machine
}

/// Returns the numbers of lines, with the delays in cycles, for working sets of 10, 20 ... 90 % of the lines that fit.
fn delays(machine: &MachineModel, front_end: FrontEnd, walk: Walk) -> Vec<(f64, f64)> {
    let level = &machine.levels.iter().find(|level| level.cache.name == "L2").unwrap().cache;
    let percents: Vec<u32> = (10..=90).step_by(10).collect();
    let colors: Vec<Color> = (0..8).map(Color).collect();
    let request = Request {
        machine,
        level,
        touches: Touches::Code,
        front_end,
        walks: &[walk],
        percents: &percents,
        colors: &colors,
        passes: PASSES,
    };
    let points = conclude(&play(&request).unwrap(), PASSES, 1_000_000_000);
    let open = points.iter().filter(|point| !point.condition.partitioned);
    open.map(|point| (point.lines as f64, point.delay_ns)).collect()
}

/// Whether the experiment concludes that the delays lie on a straight line.
fn is_line(name: &str, delays: &[(f64, f64)]) -> bool {
    let line = Line::through(delays).unwrap();
    // Nothing is random, so repetitions of a delay are equal.
    let groups: Vec<(f64, Vec<f64>)> = delays.iter().map(|(lines, delay)| (*lines, vec![*delay; 2])).collect();
    let straight = Straightness::of(&groups).unwrap();
    println!("{name}: {:.2} cycles per line, r2 {:.4}, bend {:.4}", line.slope, line.r_squared, straight.bend);
    line.r_squared >= LINEAR_R_SQUARED && straight.holds()
}

/// Whether every delay of a number of lines within `lines` is `cycles` per line, to 2 % and 70 cycles in all.
fn costs(delays: &[(f64, f64)], lines: std::ops::RangeInclusive<f64>, cycles: f64) -> bool {
    let mut among = delays.iter().filter(|(count, _)| lines.contains(count));
    among.all(|(lines, delay)| (delay / lines - cycles).abs() <= 0.02 * cycles.max(1.0) + 70.0 / lines)
}

#[test]
fn neither_two_levels_nor_the_replacement_bend_the_line() {
    // Under random replacement, the k-th line that comes back to a set evicts one of the task's own lines with probability (k - 1)/8. So a set
    // of k lines has up to k(k - 1)/16 more misses: a bend of at most 4 %.
    for policy in ["lru", "tree-plru", "fifo", "random=1"].map(|text| text.parse::<Policy>().unwrap()) {
        let two = delays(&zen3(policy), FrontEnd::SERIAL, Walk::InOrder);
        let one = delays(&without_level_1(zen3(policy)), FrontEnd::SERIAL, Walk::InOrder);
        assert!(is_line(&format!("{policy}, two levels"), &two));
        assert!(is_line(&format!("{policy}, level 2 alone"), &one));
        // A refill reads the line from level 3, and moves a line of the flood there: 34 cycles each. Only at 10 % does the whole working set of
        // 409 lines fit into level 1. Then each line costs 8 cycles more than without a flood, 3272 cycles in all. The straight line leaves a
        // residual of 2036 of these, 0.9 % of a rise of 68 x 3277.
        if !matches!(policy, Policy::Random { .. }) {
            assert!(costs(&one, 0.0..=4096.0, 68.0) && costs(&two, 513.0..=4096.0, 68.0), "{one:?} {two:?}");
            assert!(costs(&two, 0.0..=512.0, 76.0), "{two:?}");
        }
    }
}

#[test]
fn jumps_that_the_predictor_does_not_store_bend_the_line() {
    let machine = zen3(Policy::TreePlru);
    for (walk, beyond) in [(Walk::InOrder, 0.0), (Walk::Random, 68.0)] {
        let judge = |name: &str, front_end| {
            let delays = delays(&machine, front_end, walk);
            (is_line(&format!("{walk:?}, {name}"), &delays), delays)
        };
        // While jumps are predicted, 8 lines are fetched at once, and each delays the task by an eighth of its refill. Without predictions, the
        // task waits for the target of each jump. In order, the following lines are fetched during these waits, which hide the refills. At
        // random, the fetch of a line begins only when its address is known, and the task waits for the whole refill.
        let (line, bent) = judge("2048 jumps", AHEAD);
        assert!(!line && costs(&bent, 513.0..=2048.0, 68.0 / 8.0) && costs(&bent, 2049.0..=4096.0, beyond), "{bent:?}");
        for (name, front_end) in [
            ("all jumps", FrontEnd { jumps: usize::MAX, ..AHEAD }),
            ("2048 jumps, one in 4 lines", FrontEnd { lines_per_jump: 4, ..AHEAD }),
            ("waiting for each line", FrontEnd::SERIAL),
        ] {
            assert!(judge(name, front_end).0, "{walk:?}, {name}");
        }
    }
}
