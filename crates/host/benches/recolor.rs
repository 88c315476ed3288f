//! Compares the time of recoloring a process of 64 MiB with that of touching 64 MiB for the first time, and measures the cost of a watch to
//! a program.
//!
//! `cargo bench -p isochrome-host --bench recolor` measures; under `cargo test` the same code runs on a small size. The 16 colors are a random
//! function of the frame number, as in a virtual machine, so neighboring frames seldom both have allowed colors.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use isochrome_host::color::known::KnownColors;
use isochrome_host::color::reserve::Reserve;
use isochrome_host::color::resident;
use isochrome_host::process::{Pid, ProcessError};
use isochrome_host::recolor::watch::Watch;
use isochrome_host::recolor::{Anew, Limits, MAX_PAUSE, RecolorError, Wanted, recolor};
use isochrome_host::sys::memory::{Arena, page_bytes};
use isochrome_model::palette::{Palette, Rule, SCHEMA};
use isochrome_model::stats::median;
use isochrome_model::units::{Bytes, Color};

/// Environment variable that makes this program the target, which is recolored.
const TARGET: &str = "ISOCHROME_BENCH_RECOLOR_TARGET";

fn main() -> ExitCode {
    if std::env::var_os(TARGET).is_some() {
        target();
        return ExitCode::SUCCESS;
    }
    if let Err(error) = resident::mappings(std::process::id()) {
        // If frame numbers are hidden, nothing can be measured. That is not a defect.
        println!("not measured: {error}");
        return ExitCode::SUCCESS;
    }
    let measuring = std::env::args().any(|argument| argument == "--bench");
    let (bytes, repeats, seconds) = if measuring { (64 << 20, 15, 1.0) } else { (1 << 20, 2, 0.2) };
    let run = || -> Result<(), RecolorError> {
        // Pages are moved in a single pause, or in as many pauses as needed. Between pauses the program runs for as long as a pause took.
        for (colors, max_pause) in [(8, WHOLE), (4, WHOLE), (8, MAX_PAUSE), (4, MAX_PAUSE)] {
            speed(bytes, repeats, colors, max_pause, false)?;
        }
        // The frames come from a reserve, as the memory server has one.
        for max_pause in [WHOLE, MAX_PAUSE] {
            speed(bytes, repeats, 4, max_pause, true)?;
        }
        watched(bytes, repeats, seconds)
    };
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        // Without the right to trace, nothing can be measured. That is not a defect.
        Err(error @ RecolorError::Process(ProcessError::Denied { .. })) => {
            println!("not measured: {error}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs as the target, which answers each line of input with a number: `touch BYTES` with the time in us that touching so many bytes of fresh
/// memory takes, and `work MS` with the steps of work per us of its own CPU time.
fn target() {
    let mut memory = None;
    for line in std::io::stdin().lines().map_while(Result::ok) {
        let (order, number) = line.split_once(' ').expect("an order and a number");
        let number: usize = number.parse().expect("a number");
        match order {
            "touch" => {
                drop(memory.take());
                let begin = Instant::now();
                let mut arena = Arena::map(number / page_bytes()).expect("memory");
                touch(arena.bytes_mut());
                println!("{}", begin.elapsed().as_secs_f64() * 1e6);
                memory = Some(arena);
            }
            _ => {
                let (begin, used) = (Instant::now(), own_time());
                let mut steps = 0u64;
                while begin.elapsed() < Duration::from_millis(number as u64) {
                    touch(memory.as_mut().expect("memory was touched before").bytes_mut());
                    steps += 1;
                }
                println!("{}", steps as f64 / (own_time() - used));
            }
        }
    }
}

/// Returns the CPU time of this process in us.
fn own_time() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 * 1e6 + time.tv_nsec as f64 / 1e3
}

/// Writes to every page.
fn touch(memory: &mut [u8]) {
    for page in memory.chunks_mut(page_bytes()) {
        page[0] = page[0].wrapping_add(1);
    }
    std::hint::black_box(memory);
}

struct Target {
    process: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Target {
    fn new() -> Target {
        let mut process = Command::new(std::env::current_exe().expect("this program has a file"))
            .env(TARGET, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("this program starts");
        let (orders, answers) = (process.stdin.take().expect("a pipe"), process.stdout.take().expect("a pipe"));
        Target { process, orders, answers: BufReader::new(answers) }
    }

    fn pid(&self) -> Pid {
        Pid(self.process.id() as i32)
    }

    fn order(&mut self, order: &str) {
        writeln!(self.orders, "{order}").expect("the target listens");
    }

    fn answer(&mut self) -> f64 {
        let mut line = String::new();
        self.answers.read_line(&mut line).expect("the target answers");
        line.trim().parse().expect("a number")
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

const COLORS: u32 = 16;

/// Returns colors by random functions of the frame number, which differ for each `drawing`.
fn random_colors(drawing: usize) -> KnownColors {
    let mut rng = fastrand::Rng::with_seed(drawing as u64);
    let masks = (0..COLORS.ilog2()).map(|_| rng.u64(..)).collect();
    let (schema, rule) = (SCHEMA.to_owned(), Rule::Linear { masks });
    KnownColors::trusted(Palette { schema, level: 2, colors: COLORS, rule, fingerprint: None, boot_id: None })
}

/// Prints the number of pauses by their length, in steps of 5 ms.
fn print_pauses(pauses_ns: &mut [u64]) {
    const STEP_NS: u64 = 5_000_000;
    pauses_ns.sort_unstable();
    let Some(last) = pauses_ns.len().checked_sub(1) else { return println!("  no pauses") };
    let at = |share: f64| pauses_ns[(last as f64 * share) as usize] as f64 / 1e6;
    let counts: Vec<String> = pauses_ns
        .chunk_by(|a, b| a / STEP_NS == b / STEP_NS)
        .map(|pauses| {
            let from = pauses[0] / STEP_NS * STEP_NS / 1_000_000;
            format!("{from} to {} ms: {}", from + STEP_NS / 1_000_000, pauses.len())
        })
        .collect();
    println!(
        "  {} pauses: p50 {:.1} ms, p99 {:.1} ms, max {:.1} ms; {}",
        pauses_ns.len(),
        at(0.5),
        at(0.99),
        at(1.0),
        counts.join(", ")
    );
}

/// A pause limit that no pause reaches.
const WHOLE: Duration = Duration::from_secs(10);

const LIMITS: Limits =
    Limits { memory: Bytes(4 << 30), force: false, max_pause: MAX_PAUSE, gives_way: false, part: None };

/// Times recoloring to `count` of the colors and plain touching, alternately. Colors are drawn anew every time, because a target gets
/// frames that the last one gave back.
///
/// `with_reserve`: whether the frames are handed over from a reserve of six times the memory, which is filled before the time is taken.
fn speed(
    bytes: usize,
    repeats: usize,
    count: u16,
    max_pause: Duration,
    with_reserve: bool,
) -> Result<(), RecolorError> {
    let limits = Limits { max_pause, ..LIMITS };
    let colors: Vec<Color> = (0..count).map(Color).collect();
    let (mut touching, mut recoloring, mut pauses) = (Vec::new(), Vec::new(), Vec::new());
    let (mut moved, mut touched, mut pauses_ns) = (0, 0, Vec::new());
    for repeat in 0..repeats {
        let known = random_colors(repeat);
        // This leaves the free memory in the same state every time.
        touch(Arena::map(16 * bytes / page_bytes()).expect("memory").bytes_mut());
        let reserve = with_reserve.then(|| Mutex::new(Reserve::new(&known, Bytes(6 * bytes as u64)).expect("memory")));
        let reserve = reserve.as_ref();
        let wanted =
            Wanted { known: &known, colors: &colors, spread: false, anew: Anew::Nothing, reserve, places: &[] };
        let mut target = Target::new();
        target.order(&format!("touch {bytes}"));
        touching.push(target.answer());
        let begin = Instant::now();
        let report = recolor(target.pid(), &wanted, &limits)?;
        recoloring.push(begin.elapsed().as_secs_f64() * 1e6);
        pauses.push(report.pauses_ns.iter().sum::<u64>() as f64 / 1e3);
        pauses_ns.extend(&report.pauses_ns);
        moved += report.moved();
        touched += report.touched.0;
    }
    let middle = |times: &[f64]| median(times).unwrap_or(f64::NAN) / 1e3;
    println!(
        "recolor {} to {count} of {COLORS} colors{} in pauses of at most {max_pause:?}: {:.1} ms (pause {:.1} ms), {} pages moved, {} touched; first touch {:.1} ms; ratio {:.2}, of the \
         pause {:.2}",
        Bytes(bytes as u64),
        if with_reserve { " from a reserve" } else { "" },
        middle(&recoloring),
        middle(&pauses),
        moved / repeats,
        Bytes(touched / repeats as u64),
        middle(&touching),
        middle(&recoloring) / middle(&touching),
        middle(&pauses) / middle(&touching),
    );
    print_pauses(&mut pauses_ns);
    Ok(())
}

/// Rounds of the watch per second during the measurement. Ordinary use has one; many more make the cost stand out from the noise.
const ROUNDS_A_SECOND: f64 = 100.0;

/// Measures the cost of a round of the watch in which nothing has moved: isochrome's own CPU time, and the additional CPU time of the
/// program for the same work, with and without a watch alternately.
fn watched(bytes: usize, repeats: usize, seconds: f64) -> Result<(), RecolorError> {
    let colors: Vec<Color> = (0..4).map(Color).collect();
    let known = random_colors(0);
    let wanted =
        Wanted { known: &known, colors: &colors, spread: false, anew: Anew::Nothing, reserve: None, places: &[] };
    let mut target = Target::new();
    target.order(&format!("touch {bytes}"));
    target.answer();
    let mut watch = Watch::default();
    watch.round(&[target.pid()], &wanted, &LIMITS);
    let (mut slowed, mut looking, mut rounds) = (Vec::new(), Vec::new(), 0);
    for _ in 0..repeats {
        target.order(&format!("work {}", (seconds * 1000.0) as u64));
        let plain = target.answer();
        target.order(&format!("work {}", (seconds * 1000.0) as u64));
        let begin = Instant::now();
        while begin.elapsed().as_secs_f64() < seconds {
            let (used, sweeps) = (own_time(), watch.tally().sweeps);
            if let Some((_, error)) = watch.round(&[target.pid()], &wanted, &LIMITS).pop() {
                return Err(error);
            }
            rounds += 1;
            // A round that moves something costs more and is not counted here.
            if watch.tally().sweeps == sweeps {
                looking.push(own_time() - used);
            }
            std::thread::sleep(Duration::from_secs_f64(1.0 / ROUNDS_A_SECOND));
        }
        slowed.push(plain / target.answer() - 1.0);
    }
    // The cost of a round in us is the slowdown of a second of CPU time, divided by the number of rounds in that second.
    let a_second = f64::from(rounds) / (repeats as f64 * seconds);
    let (own, theirs) = (mean(&looking), mean(&slowed) * 1e6 / a_second);
    let spread = 1.96 * deviation(&slowed) / (slowed.len() as f64).sqrt() * 1e6 / a_second;
    println!(
        "watching {} in which nothing moves: a round takes {own:.0} us of isochrome's CPU time and {theirs:.0} us +- {spread:.0} (95 %) of the \
         program's; with a round each second that is {:.3} % + {:.3} % of a CPU; {} rounds, {:.0} a second, of which {} moved something",
        Bytes(bytes as u64),
        own / 1e4,
        theirs / 1e4,
        rounds,
        a_second,
        watch.tally().sweeps.saturating_sub(1),
    );
    Ok(())
}

fn mean(numbers: &[f64]) -> f64 {
    numbers.iter().sum::<f64>() / numbers.len() as f64
}

fn deviation(numbers: &[f64]) -> f64 {
    let mean = mean(numbers);
    (numbers.iter().map(|n| (n - mean).powi(2)).sum::<f64>() / (numbers.len() as f64 - 1.0).max(1.0)).sqrt()
}
