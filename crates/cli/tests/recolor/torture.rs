//! Torture tests: a program that checks its own memory is recolored again and again, and the tool is killed while it works.

use std::fs;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::fixture::Fixture;
use crate::target::{journals, left_behind, pauses_of, random_colors, rounds};
use crate::trial::Outcome;

pub fn recolored_again_and_again(fixture: &Fixture) -> Outcome {
    torture(fixture, rounds(), |_| {})
}

/// Recolors the target by the move method for kernels without UFFDIO_MOVE, in a fifth of the rounds, and then kills the tool again and again.
pub fn recolored_without_moves(fixture: &Fixture) -> Outcome {
    let without = |command: &mut Command| {
        command.env("ISOCHROME_WITHOUT_MOVE", "1");
    };
    torture(fixture, rounds().div_ceil(5), without)?;
    kills(fixture, rounds().div_ceil(5), without)
}

fn torture(fixture: &Fixture, rounds: usize, changed: impl Fn(&mut Command)) -> Outcome {
    let target = fixture.target("torture")?;
    target.goes_on();
    let mut rng = fastrand::Rng::with_seed(1);
    let (mut moved, mut pauses) = (0, Vec::new());
    for round in 0..rounds {
        let (report, pages) = fixture.moved(target.pid(), &random_colors(&mut rng), &changed);
        assert_eq!(left_behind(&report), Vec::<&Value>::new(), "in round {round}");
        moved += pages;
        pauses.extend(pauses_of(&report));
        let counts = target.counts();
        assert_eq!((counts.wrong, counts.broken_off, counts.broken_off_epoll), (0, 0, 0), "in round {round}");
    }
    let counts = target.goes_on();
    assert_eq!((counts.wrong, counts.broken_off, counts.broken_off_epoll), (0, 0, 0));
    pauses.sort_unstable();
    println!("{rounds} recolorings, {moved} pages, median pause {} us, {counts:?}", pauses[pauses.len() / 2] / 1000);
    // Every round but the first finds pages on other colors.
    assert!(moved > 200 * rounds as u64, "{moved}");
    Ok(())
}

/// Recolors a target of another `mode` again and again. Its counts must stay right.
fn recolored_without_harm(fixture: &Fixture, mode: &str, rounds: usize) -> Outcome {
    let target = fixture.target(mode)?;
    target.goes_on();
    let mut rng = fastrand::Rng::with_seed(3);
    let (mut moved, mut pauses) = (0, Vec::new());
    for round in 0..rounds {
        let (report, pages) = fixture.moved(target.pid(), &random_colors(&mut rng), |_| {});
        moved += pages;
        pauses.extend(pauses_of(&report));
        let counts = target.counts();
        assert_eq!((counts.wrong, counts.broken_off), (0, 0), "in round {round}");
    }
    let counts = target.goes_on();
    assert_eq!((counts.wrong, counts.broken_off), (0, 0));
    pauses.sort_unstable();
    let at = |share: f64| pauses[((pauses.len() - 1) as f64 * share) as usize] / 1000;
    println!(
        "{mode}: {rounds} recolorings, {moved} pages, {} pauses: median {} us, 99 % {} us, longest {} us, {counts:?}",
        pauses.len(),
        at(0.5),
        at(0.99),
        at(1.0)
    );
    assert!(moved > 50 * rounds as u64, "{moved}");
    Ok(())
}

pub fn reading_by_rings(fixture: &Fixture) -> Outcome {
    recolored_without_harm(fixture, "rings", rounds())
}

pub fn killed_with_rings(fixture: &Fixture) -> Outcome {
    kill_target(fixture, "rings", rounds().div_ceil(2), |_| {})
}

pub fn beginning_others(fixture: &Fixture) -> Outcome {
    recolored_without_harm(fixture, "vforks", rounds().div_ceil(5))
}

/// Checks that a recoloring does not take the working memory of another recoloring for memory of the program.
pub fn by_two_at_a_time(fixture: &Fixture) -> Outcome {
    let target = fixture.target("torture")?;
    target.goes_on();
    let resident = |report: &Value| report["resident"].as_u64().unwrap();
    let own = resident(&fixture.recolored(target.pid(), "0-3"));
    for round in 0..rounds().div_ceil(5) as u32 {
        let color = (4 + 2 * (round % 6)).to_string();
        let mut other = fixture.recolor(target.pid(), &color);
        let other = other.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the command starts");
        // By then the other command is in the middle of its work.
        std::thread::sleep(Duration::from_millis(u64::from(5 + 7 * (round % 10))));
        let report = fixture.recolored(target.pid(), "0-3");
        other.wait_with_output().unwrap();
        assert!(resident(&report) < 2 * own, "{} pages where the program has {own}", resident(&report));
    }
    let counts = target.goes_on();
    assert_eq!((counts.wrong, counts.broken_off, counts.broken_off_epoll), (0, 0, 0));
    Ok(())
}

/// Checks that SIGTERM ends the tool at any moment, also while it waits for another recoloring, and that nothing is left behind.
pub fn interrupted(fixture: &Fixture) -> Outcome {
    let target = fixture.target("rings")?;
    target.goes_on();
    let mut rng = fastrand::Rng::with_seed(5);
    let begin = Instant::now();
    fixture.recolored(target.pid(), "0-3");
    let whole = begin.elapsed();
    let lock = fs::File::create(fixture.path("recolor.lock")).unwrap();
    for round in 0..rounds().div_ceil(5) {
        if round % 4 == 3 {
            lock.lock().unwrap();
        }
        let mut tool = fixture.recolor(target.pid(), &random_colors(&mut rng));
        let mut tool = tool.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(whole.mul_f64(rng.f64()));
        let asked = Instant::now();
        assert!(Command::new("kill").arg(tool.id().to_string()).status().unwrap().success());
        while tool.try_wait().unwrap().is_none() {
            // The documentation promises two seconds; a loaded machine gets more.
            assert!(asked.elapsed() < Duration::from_secs(10), "in round {round} the tool does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
        lock.unlock().unwrap();
        assert!(!fixture.repair(target.pid()), "in round {round} something is left to repair");
        let counts = target.goes_on();
        assert_eq!((counts.wrong, counts.broken_off), (0, 0), "in round {round}");
    }
    assert_eq!(journals(fixture), Vec::<String>::new());
    Ok(())
}

pub fn killed_again_and_again(fixture: &Fixture) -> Outcome {
    kills(fixture, rounds(), |_| {})
}

fn kills(fixture: &Fixture, rounds: usize, changed: impl Fn(&mut Command)) -> Outcome {
    kill_target(fixture, "torture", rounds, changed)
}

fn kill_target(fixture: &Fixture, mode: &str, rounds: usize, changed: impl Fn(&mut Command)) -> Outcome {
    let target = fixture.target(mode)?;
    target.goes_on();
    let mut rng = fastrand::Rng::with_seed(2);
    let begin = Instant::now();
    fixture.recolored(target.pid(), "0-3");
    let whole = begin.elapsed();
    let (mut repaired, mut finished) = (0, 0);
    for round in 0..rounds {
        let mut command = fixture.recolor(target.pid(), &random_colors(&mut rng));
        changed(&mut command);
        let mut tool = command.stdout(Stdio::null()).spawn().unwrap();
        std::thread::sleep(whole.mul_f64(rng.f64()));
        let _ = tool.kill();
        finished += usize::from(tool.wait().unwrap().success());
        repaired += usize::from(fixture.repair(target.pid()));
        let counts = target.goes_on();
        // If the tool is killed between stopping a thread and setting its registers, the only system call that a stop interrupts stays
        // interrupted.
        assert_eq!((counts.wrong, counts.broken_off), (0, 0), "in round {round}: {counts:?}");
    }
    println!("{rounds} kills: {finished} came too late, {repaired} left something to repair, {:?}", target.counts());
    let report = fixture.recolored(target.pid(), "4-7");
    assert!(mode != "torture" || left_behind(&report).is_empty(), "{report}");
    let maps = fs::read_to_string(format!("/proc/{}/smaps", target.pid())).unwrap();
    assert!(!maps.contains(" um"), "a userfaultfd is left");
    assert_eq!(journals(fixture), Vec::<String>::new());
    Ok(())
}

/// Checks that no journal is left if a program is killed while it is recolored.
pub fn ending(fixture: &Fixture) -> Outcome {
    let mut rng = fastrand::Rng::with_seed(5);
    let mut cut_short = 0;
    for _ in 0..rounds() {
        let mut target = fixture.target("alone")?;
        let recolor =
            fixture.recolor(target.pid(), "0-3").stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(rng.u64(0..400)));
        target.process.kill().unwrap();
        let killed = Instant::now();
        let ended = recolor.wait_with_output().unwrap();
        let (said, waited) = (String::from_utf8_lossy(&ended.stderr), killed.elapsed());
        // What a dead process would be waited for must not be its system call, for which there is a minute.
        assert!(waited < Duration::from_secs(10), "the tool ended {waited:?} after the program: {said}");
        cut_short += u32::from(!ended.status.success());
        assert_eq!(journals(fixture), Vec::<String>::new(), "{said}");
    }
    println!("{cut_short} of {} recolorings were cut short", rounds());
    Ok(())
}
