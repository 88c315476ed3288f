//! Sharing: whether the writes of one CPU evict the lines of another CPU from a level.
//!
//! Virtual machines declare what the host makes them declare, and hide which of their CPUs are threads of one core. So sharing is
//! tested: CPU A primes the level, CPU B floods four times the level, A walks its lines. As a paired control B spins for the same
//! time. Neighbors outside the machine may empty the level as well, in some seconds and not in others. Each round takes an extra
//! sample without a flood, and the round is left out if that sample shows such a loss. The samples that are compared do not affect
//! this choice.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use isochrome_model::flood::{Flood, Leaves};
use isochrome_model::machine::CacheLevel;
use isochrome_model::stats::median;
use isochrome_model::units::{Bytes, CpuId, Cycles};

use crate::color::ColorError;
use crate::interrupt;
use crate::machine::setting::RealtimeRequest;
use crate::machine::sysfs::Note;
use crate::sys::clock;
use crate::sys::memory::Arena;

use super::{Primed, failed, measured, memory, name, note};

/// Size of a flood as a multiple of the level.
const FLOOD: u64 = 4;
/// Largest share lost without a flood in an undisturbed round.
const UNDISTURBED: f64 = 0.3;
/// Difference of the shares lost with and without a flood above which the level counts as shared.
const SHARED: f64 = 0.3;
/// Least number of undisturbed rounds for a conclusion.
const ROUNDS_MIN: usize = 20;
/// Number of undisturbed rounds after which a test ends.
const ROUNDS_WANTED: usize = 60;
/// Number of rounds after which a test ends if no round was undisturbed.
const HOPELESS: usize = 10;
/// Number of tests of a pair of CPUs. Hosts move virtual CPUs from core to core, so two virtual CPUs may share a core now and not a second
/// later.
const TESTS: usize = 3;
/// Time after which a test ends.
const TIME: Duration = Duration::from_millis(700);
/// Time between two tests of a pair.
const PAUSE: Duration = Duration::from_millis(300);

/// Shares lost in three consecutive samples.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Round {
    /// Share lost without a flood; it decides whether the round counts.
    pub gate: f64,
    /// Share lost with a flood.
    pub flooded: f64,
    /// Share lost without a flood.
    pub control: f64,
}

impl Round {
    fn is_undisturbed(&self) -> bool {
        self.gate <= UNDISTURBED
    }
}

/// Returns the median shares lost with and without a flood in the undisturbed rounds; `None` if there are too few rounds, or if too much is
/// lost without a flood for an effect to show.
pub fn effect(rounds: &[Round]) -> Option<(f64, f64)> {
    let undisturbed: Vec<Round> = rounds.iter().copied().filter(Round::is_undisturbed).collect();
    let of = |share: fn(&Round) -> f64| median(&undisturbed.iter().map(share).collect::<Vec<f64>>());
    let (flooded, control) = (of(|r| r.flooded)?, of(|r| r.control)?);
    (undisturbed.len() >= ROUNDS_MIN && control + SHARED < 0.9).then_some((flooded, control))
}

/// Whether the flood evicts lines; `None` if the rounds are inconclusive.
pub fn is_shared(rounds: &[Round]) -> Option<bool> {
    effect(rounds).map(is_eviction)
}

fn is_eviction((flooded, control): (f64, f64)) -> bool {
    flooded - control > SHARED
}

/// State of the partner: it has carried out the last command and waits.
const WAIT: u32 = 0;
/// Command to the partner: flood the level.
const FLOOD_NOW: u32 = 1;
/// Command to the partner: spin for as long as a flood takes.
const SPIN_NOW: u32 = 2;
/// Command to the partner: end.
const END: u32 = 3;
/// State of the partner: it cannot run on its CPU.
const FAILED: u32 = 4;

/// Guard that ends the partner when it is dropped, also by a panic. Otherwise the partner would spin forever, and the scope would wait for it.
struct EndOnDrop<'a>(&'a AtomicU32);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(END, Ordering::Release);
    }
}

fn partner(task: &AtomicU32, cpu: CpuId, arena: &Arena, flood: Flood) {
    let pinned = RealtimeRequest::new().pin(cpu).apply();
    if !pinned.notes().is_empty() {
        task.store(FAILED, Ordering::Release);
        return;
    }
    // The first flood makes the memory resident; the second one shows how long a flood takes.
    let mut took = Cycles(0);
    for _ in 0..2 {
        let begin = clock::now();
        arena.carry_out(flood.accesses());
        took = Cycles(clock::now().0 - begin.0);
    }
    // The caller waits for this before its first command. If the caller has given up, END stays.
    let _ = task.compare_exchange(FLOOD_NOW, WAIT, Ordering::AcqRel, Ordering::Acquire);
    loop {
        let requested = task.load(Ordering::Acquire);
        match requested {
            FLOOD_NOW => {
                let begin = clock::now();
                arena.carry_out(flood.accesses());
                took = Cycles(clock::now().0 - begin.0);
            }
            SPIN_NOW => clock::spin_until(Cycles(clock::now().0 + took.0)),
            WAIT => {
                std::hint::spin_loop();
                continue;
            }
            _ => return,
        }
        // If END came during the work, it stays.
        let _ = task.compare_exchange(requested, WAIT, Ordering::AcqRel, Ordering::Acquire);
    }
}

/// Measures rounds of the calling thread against a partner on CPU `other`; `None` if the partner cannot run there. Fails if memory for
/// the flood cannot be mapped.
///
/// `level`: size of the level that `primed` walks over.
pub fn rounds(primed: &mut Primed, other: CpuId, level: Bytes) -> Result<Option<Vec<Round>>, ColorError> {
    let line_bytes = Bytes(primed.sizes.line_bytes as u64);
    let flood = Flood { area: Bytes(FLOOD * level.0), line_bytes, passes: 1, leaves: Leaves::Dirty };
    let arena = memory(flood.area.0)?;
    // The partner replaces this first command by WAIT when it is ready.
    let task = AtomicU32::new(FLOOD_NOW);
    Ok(std::thread::scope(|scope| {
        let end = EndOnDrop(&task);
        scope.spawn(|| {
            // This moves the whole arena into the thread: memory is owned by one thread at a time.
            let arena = arena;
            partner(&task, other, &arena, flood);
        });
        let answered = || {
            loop {
                match task.load(Ordering::Acquire) {
                    WAIT => return true,
                    FAILED => return false,
                    _ => std::hint::spin_loop(),
                }
            }
        };
        if !answered() {
            return None;
        }
        let mut sample = |what: u32| {
            primed.prime();
            task.store(what, Ordering::Release);
            answered();
            primed.share_gone()
        };
        let begin = Instant::now();
        let mut rng = fastrand::Rng::with_seed(u64::from(other.0));
        let (mut rounds, mut undisturbed) = (Vec::new(), 0);
        while undisturbed < ROUNDS_WANTED && begin.elapsed() < TIME && !interrupt::interrupted() {
            let gate = sample(SPIN_NOW);
            let (flooded, control);
            if rng.bool() {
                (flooded, control) = (sample(FLOOD_NOW), sample(SPIN_NOW));
            } else {
                control = sample(SPIN_NOW);
                flooded = sample(FLOOD_NOW);
            }
            let round = Round { gate, flooded, control };
            undisturbed += usize::from(round.is_undisturbed());
            rounds.push(round);
            if undisturbed == 0 && rounds.len() >= HOPELESS {
                break;
            }
        }
        drop(end);
        Some(rounds)
    }))
}

/// Results of the tests of a pair of CPUs.
struct Tests {
    /// Medians with and without a flood, of every conclusive test.
    effects: Vec<(f64, f64)>,
    /// Number of rounds of all tests.
    rounds: usize,
    /// Number of undisturbed rounds of all tests.
    undisturbed: usize,
}

/// Tests `cpu`, on which the calling thread runs, against `other` several times; fails with a note on why the pair could not be tested.
fn tests(level: &CacheLevel, primed: &mut Primed, cpu: CpuId, other: CpuId) -> Result<Tests, Note> {
    let mut tests = Tests { effects: Vec::new(), rounds: 0, undisturbed: 0 };
    for test in 0..TESTS {
        if interrupt::interrupted() {
            break;
        }
        if test > 0 {
            std::thread::sleep(PAUSE);
        }
        let rounds = match rounds(primed, other, level.geometry.value.cache_bytes()) {
            Ok(Some(rounds)) => rounds,
            Ok(None) => {
                let reason =
                    format!("no thread may run on CPU {}, so it was not tested against CPU {}", other.0, cpu.0);
                return Err(note(&name(level), reason, "widen this cgroup's cpuset.cpus"));
            }
            Err(error) => {
                let what = format!("whether CPUs {} and {} evict each other was not tested", cpu.0, other.0);
                return Err(failed(&name(level), &what, &error));
            }
        };
        tests.rounds += rounds.len();
        tests.undisturbed += rounds.iter().filter(|round| round.is_undisturbed()).count();
        tests.effects.extend(effect(&rounds));
    }
    Ok(tests)
}

/// Tests `cpu`, on which the calling thread runs, against each of `others`. Writes into `level` whether CPUs were seen to share it,
/// and adds notes on contradictions to the declaration.
pub(super) fn measure(
    level: &mut CacheLevel,
    primed: &mut Primed,
    cpu: CpuId,
    others: &[CpuId],
    notes: &mut Vec<Note>,
) {
    let subject = name(level);
    let (mut seen, mut decided) = (false, 0);
    for &other in others {
        let pair = format!("CPUs {} and {}", cpu.0, other.0);
        let tests = match tests(level, primed, cpu, other) {
            Ok(tests) => tests,
            Err(why_not) => {
                notes.push(why_not);
                continue;
            }
        };
        let Tests { effects, rounds, undisturbed } = tests;
        let together = level.shared_by.value.iter().any(|group| group.contains(&cpu) && group.contains(&other));
        // The test with the largest difference is reported: one test in which the CPUs share the level shows that they can.
        let Some(&(flooded, control)) = effects.iter().max_by(|a, b| (a.0 - a.1).total_cmp(&(b.0 - b.1))) else {
            notes.push(note(
                &subject,
                format!(
                    "whether {pair} evict each other is unknown: the primed lines outlast a test without a flood in {undisturbed} of {rounds} rounds"
                ),
                "something else uses it; try again when the machine and its host are idle",
            ));
            continue;
        };
        decided += 1;
        let evicting = effects.iter().filter(|&&effect| is_eviction(effect)).count();
        let (lost, without) = (100.0 * flooded, 100.0 * control);
        seen |= evicting > 0;
        if evicting > 0 && !together {
            let private = if level.serves(other) { "declared private to each" } else { "not declared to share it" };
            let moved = if evicting < effects.len() { ", and the host moves them between cores" } else { "" };
            notes.push(note(
                &subject,
                format!(
                    "{pair} evict each other in {evicting} of {} tests although it is {private}: {lost:.0} % is lost when the other \
                     writes, {without:.0} % when it spins; they behave as hardware threads of one core{moved}",
                    effects.len()
                ),
                "do not count on separate caches for tasks on these CPUs; ask the host for whole, pinned cores",
            ));
        } else if evicting == 0 && together {
            notes.push(note(
                &subject,
                format!(
                    "{pair} are declared to share it, but do not evict each other: {lost:.0} % against {without:.0} %"
                ),
                "the cache may be partitioned, or the declaration of the host is wrong",
            ));
        }
    }
    // One pair suffices to know that CPUs share the level. That no CPUs share it is known only if every pair was decided.
    level.sharing_seen = (seen || decided > 0 && decided == others.len()).then(|| measured(seen));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rounds(count: usize, gate: f64, flooded: f64, control: f64) -> Vec<Round> {
        vec![Round { gate, flooded, control }; count]
    }

    #[test]
    fn a_level_that_the_other_empties_is_shared() {
        assert_eq!(is_shared(&rounds(20, 0.0, 0.95, 0.05)), Some(true));
        assert_eq!(is_shared(&rounds(20, 0.0, 0.06, 0.05)), Some(false));
    }

    #[test]
    fn too_few_rounds_and_a_noisy_control_are_inconclusive() {
        assert_eq!(is_shared(&rounds(19, 0.0, 1.0, 0.0)), None);
        assert_eq!(is_shared(&rounds(200, 0.4, 1.0, 0.0)), None);
        // A control that has lost most leaves no room in which a flood could show.
        assert_eq!(is_shared(&rounds(200, 0.1, 0.95, 0.7)), None);
        assert_eq!(is_shared(&[]), None);
    }

    #[test]
    fn noisy_rounds_do_not_count_beside_undisturbed_ones() {
        let mut mixed = rounds(30, 0.1, 0.1, 0.1);
        mixed.extend(rounds(300, 0.9, 1.0, 0.2));
        assert_eq!(is_shared(&mixed), Some(false));
    }

    #[test]
    fn noise_that_comes_and_goes_at_random_is_not_taken_for_sharing() {
        // Each sample finds the level emptied with probability 0.6, whatever the other CPU does: choosing rounds by the control
        // itself would compare 1.0 with 0.0.
        let mut rng = fastrand::Rng::with_seed(1);
        let mut sample = || f64::from(u8::from(rng.f64() < 0.6));
        let rounds: Vec<Round> =
            (0..1000).map(|_| Round { gate: sample(), flooded: sample(), control: sample() }).collect();
        assert_ne!(is_shared(&rounds), Some(true));
    }
}
