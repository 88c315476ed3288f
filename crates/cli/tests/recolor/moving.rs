//! Tests of programs that are hard to move.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use isochrome_host::color::known::KnownColors;
use isochrome_host::process::Pid;
use isochrome_host::recolor::watch::Watch;
use isochrome_host::recolor::{Anew, Limits, MAX_PAUSE, Part, Wanted, recolor};
use isochrome_model::units::{Bytes, Color};
use serde_json::{Value, json as object};

use crate::fixture::Fixture;
use crate::refusing::outside;
use crate::target::{json, left_behind, on_color, pauses_of, rounds, succeeding, sum};
use crate::trial::{NotRun, Outcome};

/// Checks that a program is recolored while it waits in open(2). No process opens the other end of the FIFO, so the program has reserved a
/// descriptor that is not open yet.
pub fn opening(fixture: &Fixture) -> Outcome {
    let fifo = fixture.path("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().expect("mkfifo starts").success());
    let mut process = Command::new("sh").args(["-c", "read line < $0", fifo.to_str().unwrap()]).spawn().unwrap();
    let waits = || {
        let state = fs::read_to_string(format!("/proc/{}/stat", process.id())).unwrap();
        state.contains(") S ") && fs::metadata(format!("/proc/{}/fd", process.id())).unwrap().len() > 3
    };
    let begin = Instant::now();
    while !waits() {
        assert!(begin.elapsed() < Duration::from_secs(10), "the program does not wait");
        std::thread::sleep(Duration::from_millis(5));
    }
    // This selects the move method that is dangerous for memory that the kernel writes to during a move.
    let (report, moved) = fixture.moved(process.id(), "0-3", |command| {
        command.env("ISOCHROME_WITHOUT_MOVE", "1");
    });
    let left = left_behind(&report).into_iter().cloned().collect::<Vec<_>>();
    process.kill().unwrap();
    process.wait().unwrap();
    assert_eq!(left, Vec::<Value>::new());
    assert!(moved > 50, "{moved}");
    Ok(())
}

/// Returns the colors of all pages by the palette of the fixture.
fn known_by_bits(fixture: &Fixture) -> KnownColors {
    let palette = fs::read_to_string(fixture.path("bits.json")).unwrap();
    KnownColors::trusted(serde_json::from_str(&palette).unwrap())
}

/// Returns the share of the movable pages of `pid` that have one of the first four colors.
fn share_on_first_four(fixture: &Fixture, pid: u32) -> f64 {
    let (on_color, off_color, _) = on_color(fixture, pid, "0-3");
    on_color as f64 / (on_color + off_color) as f64
}

/// Checks that a recoloring of a part of the pages ends with the pause in which its time runs out, and leaves the other pages to the next recoloring.
pub fn in_parts(fixture: &Fixture) -> Outcome {
    let target = fixture.target("alone")?;
    target.goes_on();
    let (known, colors) = (known_by_bits(fixture), (0..4).map(Color).collect::<Vec<_>>());
    let wanted =
        Wanted { known: &known, colors: &colors, spread: false, anew: Anew::Nothing, reserve: None, places: &[] };
    let max_pause = Duration::from_millis(3);
    let moved = |part| {
        let limits = Limits { memory: Bytes(1 << 30), force: false, max_pause, gives_way: false, part };
        let report = recolor(Pid(target.pid() as i32), &wanted, &limits).unwrap();
        (report.moved(), report.waiting)
    };
    // The memory of the program is more than such a pause moves.
    let short = Some(Part { pages: usize::MAX, time: Duration::ZERO });
    let parts = [moved(short), moved(short), moved(None)];
    let counts = target.goes_on();
    assert_eq!((counts.wrong, counts.broken_off), (0, 0));
    assert!(parts[0].1 > parts[1].1 && parts[1].1 > 0 && parts[2].1 == 0, "{parts:?}");
    assert!(parts.iter().all(|(moved, _)| *moved > 0), "{parts:?}");
    Ok(())
}

/// Checks that a program on a quarter of the colors is spread over all of them, although all of its pages have an allowed color.
pub fn spread(fixture: &Fixture) -> Outcome {
    let target = fixture.target("alone")?;
    target.goes_on();
    fixture.recolored(target.pid(), "0-3");
    let share = || share_on_first_four(fixture, target.pid());
    assert!(share() > 0.98, "{}", share());
    let spread = |dry: bool| {
        let mut command = fixture.recolor(target.pid(), "all");
        command.arg("--spread").args(dry.then_some("--dry-run"));
        json(&succeeding(command))
    };
    let expected = spread(true)["expected"]["pages"].as_u64().unwrap();
    let report = spread(false);
    assert!(expected > 50 && report["sweeps"].as_u64() > Some(0), "{expected}: {report}");
    assert_eq!(left_behind(&report), Vec::<&Value>::new());
    assert!((0.2..0.3).contains(&share()), "{}", share());
    let counts = target.goes_on();
    assert_eq!((counts.wrong, counts.broken_off), (0, 0));
    Ok(())
}

/// Checks that every page of a program is spread, also pages that wait because a round moves only a part of them. Pages that wait while no frames
/// are left stay where they are, because they already have an allowed color.
pub fn spread_in_parts(fixture: &Fixture) -> Outcome {
    let target = fixture.target("alone")?;
    target.goes_on();
    fixture.recolored(target.pid(), "0-3");
    let (known, colors) = (known_by_bits(fixture), (0..16).map(Color).collect::<Vec<_>>());
    let wanted =
        Wanted { known: &known, colors: &colors, spread: true, anew: Anew::Nothing, reserve: None, places: &[] };
    let part = Some(Part { pages: 1000, time: Duration::from_secs(1) });
    let limits = Limits { memory: Bytes(1 << 30), force: false, max_pause: MAX_PAUSE, gives_way: false, part };
    let pids = [Pid(target.pid() as i32)];
    let mut watch = Watch::drawing_anew();
    assert!(watch.round(&pids, &wanted, &limits).is_empty() && watch.is_waiting());
    let errors = watch.round(&pids, &wanted, &Limits { memory: Bytes(0), ..limits });
    assert!(errors.is_empty() && !watch.is_waiting(), "{errors:?} {:?}", watch.tally());
    let mut watch = Watch::drawing_anew();
    let mut rounds = 0;
    while rounds == 0 || watch.is_waiting() {
        assert!(watch.round(&pids, &wanted, &limits).is_empty());
        rounds += 1;
    }
    let share = share_on_first_four(fixture, target.pid());
    assert!((0.2..0.3).contains(&share), "{share} after {rounds} rounds");
    let counts = target.goes_on();
    assert_eq!((counts.wrong, counts.broken_off), (0, 0));
    Ok(())
}

/// Checks that a program gets frames of a color although another program holds the frames of this color in 1 GiB. That program has given back
/// all its other frames, and the kernel hands those out first.
pub fn drought(fixture: &Fixture) -> Outcome {
    let thp = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
    if thp.is_empty() || thp.contains("[never]") {
        return Err(NotRun("the kernel has no huge pages, which frames of all colors come with".to_owned()));
    }
    let holder = fixture.target("holder")?;
    let target = fixture.target("alone")?;
    target.goes_on();
    let (report, moved) = fixture.moved(target.pid(), "5", |_| {});
    println!("{moved} pages, {} KiB touched", report["touched_bytes_max"].as_u64().unwrap() / 1024);
    assert_eq!(left_behind(&report), Vec::<&Value>::new());
    assert_eq!(report["off_color"], 0, "{report}");
    let counts = target.goes_on();
    assert_eq!((counts.wrong, counts.broken_off), (0, 0));
    drop(holder);
    Ok(())
}

/// The value that a setting of the kernel had. It is restored when this is dropped.
struct Restored(PathBuf, String);

impl Restored {
    fn after_setting(path: PathBuf, value: &str) -> io::Result<Restored> {
        let before = fs::read_to_string(&path)?;
        fs::write(&path, value)?;
        // One of several values is in brackets.
        let chosen = before.split_once('[').and_then(|(_, rest)| rest.split(']').next()).unwrap_or(&before).to_owned();
        Ok(Restored(path, chosen))
    }
}

impl Drop for Restored {
    fn drop(&mut self) {
        fs::write(&self.0, &self.1).unwrap();
    }
}

/// Returns the frames of the pages of process `pid` in its mappings of at least 64 MiB, by their address, and whether all these mappings get no huge
/// pages.
fn frames_of_large_mappings(pid: u32) -> (BTreeMap<u64, u64>, bool) {
    let map = Pid(pid as i32).page_map().unwrap();
    let regions = Pid(pid as i32).regions().unwrap();
    let large = || regions.iter().filter(|region| region.end - region.start >= 64 << 20 && region.immovable.is_none());
    let pages = large().flat_map(|region| map.resident(region.start, region.end).unwrap());
    (pages.map(|(page, entry)| (page, entry.frame().unwrap().0)).collect(), large().all(|region| region.refuses_huge))
}

/// Returns the number of huge pages that page faults of all programs have got so far.
fn huge_pages_touched() -> u64 {
    let text = fs::read_to_string("/proc/vmstat").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("thp_fault_alloc "));
    line.map_or(0, |number| number.parse().unwrap())
}

/// Checks that pages on color keep their frames while frames of a rare color are drawn in huge pages. The kernel joins pages to huge pages as fast as it
/// can meanwhile.
pub fn joined(fixture: &Fixture) -> Outcome {
    let folder = Path::new("/sys/kernel/mm/transparent_hugepage");
    if !folder.exists() {
        return Err(NotRun("the kernel has no huge pages".to_owned()));
    }
    let mut restored = Vec::new();
    for (name, value) in
        [("enabled", "always"), ("khugepaged/scan_sleep_millisecs", "0"), ("khugepaged/alloc_sleep_millisecs", "0")]
    {
        let setting = Restored::after_setting(folder.join(name), value);
        restored.push(setting.map_err(|error| NotRun(format!("{name} of huge pages cannot be set: {error}")))?);
    }
    let _holder = fixture.target("holder")?;
    let target = fixture.target("plain")?;
    let touched = huge_pages_touched();
    let mut command = fixture.recolor(target.pid(), "5,6");
    command.arg("--spread");
    succeeding(command);
    let (before, _) = frames_of_large_mappings(target.pid());
    let on_color: Vec<u64> = before.iter().filter(|(_, frame)| **frame % 16 == 5).map(|(page, _)| *page).collect();
    fixture.recolored(target.pid(), "5");
    let touched = huge_pages_touched() - touched;
    if on_color.len() < 1_000 || touched < 16 {
        let pages = on_color.len();
        return Err(NotRun(format!("pages with frames of the rare color: {pages}, huge pages touched: {touched}")));
    }
    let (after, refused) = frames_of_large_mappings(target.pid());
    assert!(refused, "frames were drawn in {touched} huge pages, and the program may have some, too");
    let other = on_color.iter().filter(|page| before.get(page) != after.get(page)).count();
    // The host of a virtual machine, or compaction, may move a page.
    assert!(other < 100, "{other} of {} pages on color got other frames", on_color.len());
    println!("{} pages on color, {touched} huge pages touched", on_color.len());
    Ok(())
}

pub fn many_mappings(fixture: &Fixture) -> Outcome {
    let target = fixture.target("mappings")?;
    target.goes_on();
    let (report, moved) = fixture.moved(target.pid(), "0-3", |_| {});
    let mut pauses = pauses_of(&report);
    pauses.sort_unstable();
    let (median, longest) = (pauses[pauses.len() / 2], pauses[pauses.len() - 1]);
    println!("{moved} pages in {} pauses: median {} us, longest {} us", pauses.len(), median / 1000, longest / 1000);
    assert!(moved > 10_000);
    // Other programs may lengthen a single pause by any time. The benchmark measures pauses on a machine where nothing else runs.
    assert!(median < 250_000_000, "{median} ns");
    let counts = target.goes_on();
    assert_eq!((counts.wrong, counts.broken_off), (0, 0));
    Ok(())
}

/// Checks that many pages are moved per pause. Making the whole mapping writable at once would take as long as a pause may last.
pub fn large_library(fixture: &Fixture) -> Outcome {
    let target = fixture.target("library")?;
    target.goes_on();
    let mappings = || {
        let maps = fs::read_to_string(format!("/proc/{}/maps", target.pid())).unwrap();
        maps.lines().filter(|line| line.ends_with("counts-library.so")).map(str::to_owned).collect::<Vec<_>>()
    };
    let before = mappings();
    let (report, moved) = fixture.moved(target.pid(), "0-7", |_| {});
    let pauses = pauses_of(&report).len() as u64;
    println!("{moved} pages in {pauses} pauses");
    // Half of the 65 536 pages move, or fewer if the file got frames that an earlier program has left on these colors.
    assert!(moved > 5_000 && report["off_color"].as_u64().unwrap() < 100, "{report}");
    assert!(20 * pauses < moved, "{moved} pages in {pauses} pauses");
    // The mappings that were split for the moves are joined again.
    assert_eq!((mappings(), before.len()), (before, 1));
    let counts = target.goes_on();
    assert_eq!((counts.wrong, counts.broken_off), (0, 0));
    Ok(())
}

/// A program that fills tables with random bytes in 24 threads, and checks the sum of each table before it is dropped.
const JAVA: &str = r#"
import java.util.Random;
import java.util.zip.CRC32;

public class Sums {
    static long sum(byte[] bytes) {
        CRC32 sum = new CRC32();
        sum.update(bytes);
        return sum.getValue();
    }

    public static void main(String[] arguments) throws Exception {
        for (int number = 0; number < 24; number++) {
            Random random = new Random(number);
            Thread thread = new Thread(() -> {
                byte[][] kept = new byte[256][];
                long[] sums = new long[256];
                for (;;) {
                    int at = random.nextInt(256);
                    if (kept[at] != null && sum(kept[at]) != sums[at]) {
                        System.out.println("wrong");
                        System.exit(1);
                    }
                    kept[at] = new byte[1 + random.nextInt(8192)];
                    random.nextBytes(kept[at]);
                    sums[at] = sum(kept[at]);
                }
            });
            thread.setDaemon(true);
            thread.start();
        }
        System.out.println("ready");
        System.in.read();
        System.out.println("right");
    }
}
"#;

pub fn java(fixture: &Fixture) -> Outcome {
    let source = fixture.path("Sums.java");
    fs::write(&source, JAVA).unwrap();
    let mut command = Command::new("java");
    command.args(["-Xmx128m", "-XX:+UseG1GC"]).arg(&source).stdin(Stdio::piped()).stdout(Stdio::piped());
    let Ok(mut process) = command.spawn() else { return Err(NotRun("java is not installed".to_owned())) };
    let mut lines = BufReader::new(process.stdout.take().unwrap());
    let mut line = String::new();
    lines.read_line(&mut line).unwrap();
    if line != "ready\n" {
        let _ = process.kill();
        return Err(NotRun(format!("java does not run a program from its source: {}", process.wait().unwrap())));
    }
    let rounds = rounds().div_ceil(10);
    let (mut moved, mut pauses) = (0, Vec::new());
    for round in 0..rounds {
        // Half of the colors are allowed: fewer would need more memory than the tests touch.
        let colors = if round % 2 == 0 { "0-7" } else { "8-15" };
        let (report, pages) = fixture.moved(process.id(), colors, |_| {});
        moved += pages;
        pauses.extend(pauses_of(&report));
        assert_eq!(process.try_wait().unwrap(), None, "the program has ended");
    }
    drop(process.stdin.take());
    line.clear();
    lines.read_line(&mut line).unwrap();
    assert_eq!((line.as_str(), process.wait().unwrap().code()), ("right\n", Some(0)));
    pauses.sort_unstable();
    println!(
        "java: {rounds} recolorings, {moved} pages, {} pauses, median {} us",
        pauses.len(),
        pauses[pauses.len() / 2] / 1000
    );
    Ok(())
}

pub fn asynchronous(fixture: &Fixture) -> Outcome {
    let mut untried = Vec::new();
    for mode in ["uring", "pinned", "aio", "device"] {
        let mut target = match fixture.target(mode) {
            Ok(target) => target,
            Err(NotRun(why)) => {
                untried.push(why);
                continue;
            }
        };
        // If no move method is safe, the whole program is left alone.
        let before = outside(target.pid());
        let mut without = fixture.recolor(target.pid(), "0-3");
        let output = without.env("ISOCHROME_WITHOUT_MOVE", "1").output().unwrap();
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{message}");
        assert!(message.contains("UFFDIO_MOVE") && message.contains("hint:"), "{message}");
        assert_eq!(outside(target.pid()), before, "{mode}");
        let (report, moved) = fixture.moved(target.pid(), "0-3", |_| {});
        let left = |why: &str| report["immovable"][why].as_u64().unwrap_or(0);
        println!("{mode}: {moved} moved, {} pinned", left("is pinned or busy"));
        assert!(moved > 0, "{mode}: {report}");
        assert!(mode == "pinned" || left("is pinned or busy") == 0, "{mode}: {report}");
        // Some of the 16 pinned pages have the colors by chance.
        assert!(mode != "pinned" || left("is pinned or busy") > 0, "{mode}: {report}");
        assert_eq!(target.process.try_wait().unwrap(), None, "{mode}");
    }
    if untried.is_empty() { Ok(()) } else { Err(NotRun(format!("the others are moved: {}", untried.join("; ")))) }
}

/// Checks that a program with a ring of performance events is moved where the rings of its user are larger than permitted to each user.
pub fn ring_of_events(fixture: &Fixture) -> Outcome {
    const PERMITTED: &str = "/proc/sys/kernel/perf_event_mlock_kb";
    let not_run = |error: io::Error| NotRun(format!("{PERMITTED}: {error}"));
    let before = fs::read_to_string(PERMITTED).map_err(not_run)?;
    fs::write(PERMITTED, "0").map_err(not_run)?;
    let target = fixture.target("device");
    fs::write(PERMITTED, before).unwrap();
    let target = target?;
    let status = fs::read_to_string(format!("/proc/{}/status", target.pid())).unwrap();
    let pinned = status.lines().find_map(|line| line.strip_prefix("VmPin:")).unwrap();
    if pinned.trim() != "8 kB" {
        return Err(NotRun(format!("a ring of 8 KiB counts as {} of pinned memory", pinned.trim())));
    }
    let (report, moved) = fixture.moved(target.pid(), "0-3", |_| {});
    assert!(moved > 0, "{report}");
    Ok(())
}

pub fn dry_run_and_second_sweep(fixture: &Fixture) -> Outcome {
    // This target does not fork. After a fork a program gets other frames for what it writes next, and these would be counted too.
    let target = fixture.target("alone")?;
    target.goes_on();
    let mut dry = fixture.recolor(target.pid(), "5-8");
    dry.arg("--dry-run");
    let planned = json(&succeeding(dry));
    assert_eq!((&planned["event"], &planned["moved"]), (&object!("dry_run"), &object!(false)));
    let pages = sum(&planned, "moved");
    assert!(planned["pauses_ns"].as_array().unwrap().is_empty() && pages > 500, "{planned}");
    assert_eq!(planned["expected"]["pages"].as_u64(), Some(pages));
    assert!(!fixture.repair(target.pid()), "there is nothing to repair");
    let (_, moved) = fixture.moved(target.pid(), "5-8", |_| {});
    let (on_color, off_color, immovable) = on_color(fixture, target.pid(), "5-8");
    println!("{moved} moved; then {on_color} on color, {off_color} off color, {immovable} immovable");
    assert!(on_color as f64 >= 0.995 * (on_color + off_color) as f64, "{on_color} on color, {off_color} off color");
    Ok(())
}
