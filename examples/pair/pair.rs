//! Two programs that know nothing of colors share a CPU and hand over to each other: `victim.c` works on 64 KiB, `partner.c` dirties 1 MiB
//! between two of its jobs, or spins for as long, as chance will have it. How many lines does the victim lose, and how many when both are
//! started by `isochrome exec`, on colors of their own? With `--serve`, nobody starts them so: a memory server has a class for each.
//!
//! The pair without and the pair with colors are there at the same time and take turns, block by block, in random order; each
//! run has new processes on new pages. A block counts if its control was quiet: its median within 5 % of the lines of the quietest control of
//! the same condition. The effect is flood minus control of the same block. Every job is kept in a table.
//!
//! Exit codes: 0 both bars hold, 1 could not run, 2 one is violated, 3 inconclusive.

use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use isochrome_model::stats::median;
use serde::Serialize;
use serde_json::{Map, Value};

/// Lines of the victim's set.
const LINES: f64 = 1024.0;
/// A control is quiet up to so many lines above the quietest of its condition.
const QUIET: f64 = 0.05 * LINES;
/// And the quietest without colors loses at most so many: else something unseen empties the cache all the time.
const QUIET_AT_ALL: f64 = 0.25 * LINES;
/// Quiet blocks of each condition for a verdict.
const BLOCKS_AT_LEAST: usize = 8;
/// The effect left with colors is to be at most this share of the effect without.
const EXCESS_BAR: f64 = 0.05;
/// Lines lost under flood with colors are to be at most this share of those lost without.
const FLOOD_BAR: f64 = 0.30;
/// Real-time priority of both programs.
const PRIORITY: &str = "40";
/// For programs to get onto their colors.
const PATIENCE: Duration = Duration::from_secs(60);

/// Lines lost by a program to its neighbor on the CPU, without and with colors.
#[derive(Parser)]
struct Options {
    /// Folder with the programs `victim` and `partner`
    #[arg(long, default_value = ".")]
    programs: PathBuf,
    /// The isochrome command
    #[arg(long, default_value = "isochrome")]
    isochrome: PathBuf,
    /// CPU that all run on
    #[arg(long, default_value_t = 1)]
    cpu: u32,
    /// Times that all programs are started
    #[arg(long, default_value_t = 5)]
    runs: u32,
    /// Blocks per run and condition
    #[arg(long, default_value_t = 60)]
    blocks: u32,
    /// Jobs per block, control included
    #[arg(long, default_value_t = 40)]
    jobs: usize,
    /// Memory whose colors are measured first
    #[arg(long, default_value = "2G")]
    memory: String,
    /// Palette to use instead of measuring one
    #[arg(long)]
    palette: Option<PathBuf>,
    /// Believe that palette without eviction tests
    #[arg(long, requires = "palette")]
    trust_palette: bool,
    /// Have a memory server color the programs, which are started as they are, once
    #[arg(long)]
    serve: bool,
    /// Seed of every random choice
    #[arg(long)]
    seed: Option<u64>,
    /// Every job
    #[arg(long, default_value = "pair.csv")]
    csv: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Where palette and grants of this experiment are kept
    #[arg(skip)]
    runtime: PathBuf,
}

impl Options {
    /// The command, with a runtime folder of its own: of what was measured earlier and kept nothing is used, since colors of frames that were
    /// free meanwhile need not have lasted.
    fn isochrome(&self) -> Command {
        let mut command = Command::new(&self.isochrome);
        command.env("ISOCHROME_RUNTIME_DIR", &self.runtime);
        command
    }

    /// Adds the palette, where one is named, to the arguments of `exec` or `recolor`.
    fn add_palette(&self, command: &mut Command) {
        if let Some(palette) = &self.palette {
            command.arg("--palette").arg(palette);
        }
        if self.trust_palette {
            command.arg("--trust-palette");
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Condition {
    Unmanaged,
    Managed,
}

const CONDITIONS: [Condition; 2] = [Condition::Unmanaged, Condition::Managed];

impl Condition {
    fn name(self) -> &'static str {
        match self {
            Condition::Unmanaged => "unmanaged",
            Condition::Managed => "managed",
        }
    }
}

/// Medians of a block, in lines lost.
struct Block {
    condition: Condition,
    flood: f64,
    control: f64,
}

fn main() -> ExitCode {
    match run(Options::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("pair: {error:#}");
            ExitCode::from(1)
        }
    }
}

fn run(mut options: Options) -> Result<ExitCode> {
    let home = Folder::new("home")?;
    options.runtime.clone_from(&home.0);
    let options = &options;
    ensure!(options.jobs >= 10, "too few jobs in a block for a median of flood and control\n  hint: --jobs 40");
    let seed = options.seed.unwrap_or_else(|| fastrand::u64(..1_000_000));
    let mut rng = fastrand::Rng::with_seed(seed);
    let Some(colors) = color_count(options)? else {
        eprintln!("pair: inconclusive, the palette is in doubt\n  hint: try again when the machine is less busy");
        return Ok(ExitCode::from(3));
    };
    ensure!(colors >= 4, "{colors} colors cannot be split into a quarter and the rest");
    let lists = [format!("0-{}", colors / 4 - 1), format!("{}-{}", colors / 4, colors - 1)];
    eprintln!(
        "{colors} colors: the victim gets {}, the partner {}; CPU {}, seed {seed}",
        lists[0], lists[1], options.cpu
    );
    let mut table = "run,condition,block,job,kind,ticks,lost,there_ticks,gone_ticks\n".to_owned();
    let (mut blocks, mut placements, mut by) = (Vec::new(), Vec::new(), String::new());
    let _server = options.serve.then(|| Server::start(options, &lists)).transpose()?;
    // With a server, programs without colors lose next to nothing after the first run, presumably because they get frames that others have given back.
    for run in 0..if options.serve { 1 } else { options.runs } {
        let folder = folder(options, run)?;
        let mut pairs = [
            Pair::start(options, &folder.0, None, rng.u64(..))?,
            Pair::start(options, &folder.0, Some(&lists), rng.u64(..))?,
        ];
        by.clone_from(&pairs[0].by);
        match options.serve {
            true => placements.extend(pairs[1].wait_for_server(options)?),
            false => pairs[1].wait_for_colors(options, &lists)?,
        }
        let mut turns: Vec<usize> = (0..2 * options.blocks as usize).map(|turn| turn % 2).collect();
        rng.shuffle(&mut turns);
        for (number, turn) in turns.into_iter().enumerate() {
            let (there, gone, jobs) = pairs[turn].block(options.jobs)?;
            let of = |kind: char| -> Vec<f64> { jobs.iter().filter(|job| job.0 == kind).map(|job| job.2).collect() };
            for (job, (kind, ticks, lost)) in jobs.iter().enumerate() {
                let (condition, kind) = (CONDITIONS[turn].name(), if *kind == 'f' { "flood" } else { "control" });
                writeln!(table, "{run},{condition},{number},{job},{kind},{ticks},{lost},{there},{gone}")?;
            }
            // By chance a block may have jobs of one kind only.
            if let (Some(flood), Some(control)) = (median(&of('f')), median(&of('s'))) {
                blocks.push(Block { condition: CONDITIONS[turn], flood, control });
            }
        }
        for pair in pairs {
            placements.extend(pair.end()?);
        }
    }
    fs::write(&options.csv, table).with_context(|| format!("{}", options.csv.display()))?;
    let outcome = conclude(blocks, by, seed, placements);
    if options.json {
        println!("{}", serde_json::to_string_pretty(&outcome)?);
    } else {
        print!("{}", text(&outcome));
        println!("every job: {}", options.csv.display());
    }
    Ok(ExitCode::from(match outcome.verdict {
        "holds" => 0,
        "violated" => 2,
        _ => 3,
    }))
}

/// The number of colors, by a palette measured now and saved, or the one named; `None` if it is in doubt.
fn color_count(options: &Options) -> Result<Option<u64>> {
    let text = match &options.palette {
        Some(path) => fs::read_to_string(path).with_context(|| format!("{}", path.display()))?,
        None => {
            eprintln!("measuring the colors of {} of memory", options.memory);
            let mut command = options.isochrome();
            command.args([
                "palette",
                "--save",
                "--json",
                "--memory",
                &options.memory,
                "--cpu",
                &options.cpu.to_string(),
            ]);
            let output = command.stderr(Stdio::inherit()).output();
            let output = output.with_context(|| format!("{}", options.isochrome.display()))?;
            match output.status.code() {
                Some(0) => String::from_utf8(output.stdout)?,
                Some(3) => return Ok(None),
                _ => bail!("isochrome palette --save: {}", output.status),
            }
        }
    };
    let palette: Value = serde_json::from_str(&text)?;
    palette["colors"].as_u64().map(Some).context("the palette says no number of colors")
}

/// A folder that is removed when it is dropped.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Result<Folder> {
        let path = std::env::temp_dir().join(format!("isochrome-pair-{}-{name}", std::process::id()));
        fs::create_dir(&path).with_context(|| format!("{}", path.display()))?;
        Ok(Folder(path))
    }
}

/// A folder with the pipes of both conditions.
fn folder(options: &Options, run: u32) -> Result<Folder> {
    let folder = Folder::new(&run.to_string())?;
    for condition in CONDITIONS {
        for way in ["to", "from"] {
            let fifo = fifo(&folder.0, condition, way);
            let made = Command::new("mkfifo").arg(&fifo).status().context("mkfifo")?;
            ensure!(made.success(), "{}: {made}", fifo.display());
        }
    }
    for program in ["victim", "partner"] {
        let path = options.programs.join(program);
        ensure!(path.exists(), "{}: is not there\n  hint: make -C examples/pair", path.display());
    }
    Ok(folder)
}

fn fifo(folder: &Path, condition: Condition, way: &str) -> PathBuf {
    folder.join(format!("{}-{way}", condition.name()))
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A memory server with a class for the victim and one for the partner. Members are copies of the programs in its folder.
struct Server(Child);

impl Server {
    fn start(options: &Options, lists: &[String; 2]) -> Result<Server> {
        let mut policy = String::new();
        for (name, list) in ["victim", "partner"].iter().zip(lists) {
            let program = options.runtime.join(name);
            fs::copy(options.programs.join(name), &program).with_context(|| format!("{}", program.display()))?;
            let exe = program.display();
            write!(policy, "[class.{name}]\ncolors = \"{list}\"\nmembers = [{{ exe = \"{exe}\" }}]\n\n")?;
        }
        let config = options.runtime.join("policy.toml");
        fs::write(&config, policy)?;
        let mut command = options.isochrome();
        command.args(["serve", "--max-memory", "1G", "--config"]).arg(&config);
        options.add_palette(&mut command);
        let child = command.spawn().with_context(|| format!("{}", options.isochrome.display()))?;
        Ok(Server(child))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A program, perhaps under `isochrome exec`.
struct Program {
    child: Child,
    output: BufReader<ChildStdout>,
    /// Where `exec` writes what it did.
    report: Option<PathBuf>,
}

/// A victim and its partner.
struct Pair {
    victim: Program,
    partner: Program,
    commands: ChildStdin,
    pids: [String; 2],
    /// How lines are told to be lost.
    by: String,
}

impl Pair {
    fn start(options: &Options, folder: &Path, lists: Option<&[String; 2]>, seed: u64) -> Result<Pair> {
        let condition = if lists.is_some() { Condition::Managed } else { Condition::Unmanaged };
        let (to, from) = (fifo(folder, condition, "to"), fifo(folder, condition, "from"));
        let start = |name: &str, list: Option<&String>| -> Result<Program> {
            let cpu = options.cpu.to_string();
            let report = list.filter(|_| !options.serve).map(|_| folder.join(format!("{name}.json")));
            let is_member = list.is_some() && options.serve;
            let programs = if is_member { &options.runtime } else { &options.programs };
            let mut command = match (list, &report) {
                (Some(list), Some(report)) => {
                    let mut command = options.isochrome();
                    command.args(["exec", "--colors", list, "--cpu", &cpu, "--fifo", PRIORITY, "--max-memory", "1G"]);
                    command.args(["--ready", "line:ready", "-o"]).arg(report);
                    options.add_palette(&mut command);
                    command.arg("--");
                    command
                }
                _ => {
                    let mut command = Command::new("chrt");
                    command.args(["-f", PRIORITY, "taskset", "-c", &cpu]);
                    command
                }
            };
            command.arg(programs.join(name)).args([&to, &from]);
            if name == "victim" {
                command.arg(seed.to_string());
            }
            command.stdin(Stdio::piped()).stdout(Stdio::piped());
            let mut child = command.spawn().with_context(|| format!("{name} cannot be started"))?;
            let output = BufReader::new(child.stdout.take().context("its output is a pipe")?);
            Ok(Program { child, output, report })
        };
        let mut partner = start("partner", lists.map(|lists| &lists[1]))?;
        let mut victim = start("victim", lists.map(|lists| &lists[0]))?;
        let commands = victim.child.stdin.take().context("its input is a pipe")?;
        let said = [victim.line()?, partner.line()?];
        let word = |line: &str, at: usize| line.split_whitespace().nth(at).unwrap_or_default().to_owned();
        let pids = [word(&said[0], 1), word(&said[1], 1)];
        Ok(Pair { victim, partner, commands, pids, by: word(&said[0], 3) })
    }

    /// Waits until both programs are on their colors.
    fn wait_for_colors(&self, options: &Options, lists: &[String; 2]) -> Result<()> {
        let begin = Instant::now();
        for (pid, list) in self.pids.iter().zip(lists) {
            loop {
                let mut command = options.isochrome();
                command.args(["recolor", pid, "--dry-run", "--json", "--colors", list]);
                options.add_palette(&mut command);
                let output = command.stderr(Stdio::null()).output()?;
                // A palette test that a neighbor disturbed is made again.
                if output.status.success() {
                    let report: Value = serde_json::from_slice(&output.stdout)?;
                    let regions = report["regions"].as_array().context("a report has regions")?;
                    if regions.iter().all(|region| region["moved"] == 0) {
                        break;
                    }
                }
                ensure!(begin.elapsed() < PATIENCE, "process {pid} does not get onto colors {list}");
                std::thread::sleep(Duration::from_millis(200));
            }
        }
        Ok(())
    }

    /// Waits until both programs are on their colors, and returns their status by the server.
    fn wait_for_server(&self, options: &Options) -> Result<Vec<Value>> {
        let begin = Instant::now();
        loop {
            let output = options.isochrome().args(["policy", "status", "--json"]).output()?;
            let status: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
            let classes = status["classes"].as_array().cloned().unwrap_or_default();
            let members = classes.iter().flat_map(|class| class["members"].as_array().cloned().unwrap_or_default());
            let there = members.filter(|member| member["off_color"] == 0 && member["seconds_to_colors"].is_f64());
            let mut there: Vec<Value> = there.filter(|member| self.pids.contains(&member["pid"].to_string())).collect();
            if there.len() == self.pids.len() {
                there.iter_mut().for_each(|member| member["program"] = member["name"].clone());
                return Ok(there);
            }
            ensure!(begin.elapsed() < PATIENCE, "the server does not get the programs onto their colors: {status}");
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// Ticks of the set when it is there and when it is gone; of every job what the partner did, ticks, lines lost.
    #[allow(clippy::type_complexity)]
    fn block(&mut self, count: usize) -> Result<(f64, f64, Vec<(char, u64, f64)>)> {
        writeln!(self.commands, "{count}")?;
        let mut jobs = Vec::with_capacity(count);
        loop {
            let line = self.victim.line()?;
            let fields: Vec<&str> = line.split_whitespace().collect();
            match fields[..] {
                ["end", there, gone] => {
                    ensure!(jobs.len() == count, "the victim did {} of {count} jobs", jobs.len());
                    return Ok((there.parse()?, gone.parse()?, jobs));
                }
                [kind, ticks, lost] => {
                    jobs.push((kind.chars().next().context("a kind")?, ticks.parse()?, lost.parse()?));
                }
                _ => bail!("the victim says `{line}`"),
            }
        }
    }

    /// Ends both; what `exec` says of them.
    fn end(self) -> Result<Vec<Value>> {
        let Pair { victim, partner, commands, .. } = self;
        drop(commands);
        let mut reports = Vec::new();
        for (name, mut program) in [("victim", victim), ("partner", partner)] {
            let status = program.child.wait()?;
            ensure!(status.success(), "{name}: {status} (4: it read other bytes than it wrote)");
            if let Some(path) = program.report {
                let mut report: Value = serde_json::from_str(&fs::read_to_string(path)?)?;
                report["program"] = name.into();
                reports.push(report);
            }
        }
        Ok(reports)
    }
}

impl Program {
    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        ensure!(self.output.read_line(&mut line)? > 0, "the program ended: {:?}", self.child.try_wait());
        Ok(line)
    }
}

/// A median over blocks and its 95 % confidence interval, by order statistics.
#[derive(Clone, Copy, Serialize)]
struct Estimate {
    median: f64,
    low: f64,
    high: f64,
}

impl Estimate {
    /// The `k`-th smallest and largest of `n` values enclose the median with 95 % confidence for `k = (n - 1.96 √n) / 2`.
    fn of(mut values: Vec<f64>) -> Option<Estimate> {
        let median = median(&values)?;
        values.sort_by(f64::total_cmp);
        let n = values.len();
        let k = ((n as f64 - 1.96 * (n as f64).sqrt()) / 2.0).max(0.0) as usize;
        Some(Estimate { median, low: values[k], high: values[n - 1 - k] })
    }
}

/// Lines lost in one condition.
#[derive(Serialize)]
struct Effect {
    condition: &'static str,
    blocks: usize,
    quiet: usize,
    quietest_control: Option<f64>,
    flood: Option<Estimate>,
    control: Option<Estimate>,
    excess: Option<Estimate>,
}

#[derive(Serialize)]
struct Outcome {
    by: String,
    seed: u64,
    effects: Vec<Effect>,
    /// Managed over unmanaged.
    excess_ratio: Option<f64>,
    flood_ratio: Option<f64>,
    verdict: &'static str,
    why: String,
    placements: Vec<Value>,
}

fn effect(blocks: &[Block], condition: Condition) -> Effect {
    let all: Vec<&Block> = blocks.iter().filter(|block| block.condition == condition).collect();
    let quietest = all.iter().map(|block| block.control).min_by(f64::total_cmp);
    let quiet: Vec<&Block> =
        all.iter().copied().filter(|block| quietest.is_some_and(|least| block.control <= least + QUIET)).collect();
    let estimate = |of: fn(&Block) -> f64| Estimate::of(quiet.iter().map(|block| of(block)).collect());
    Effect {
        condition: condition.name(),
        blocks: all.len(),
        quiet: quiet.len(),
        quietest_control: quietest,
        flood: estimate(|block| block.flood),
        control: estimate(|block| block.control),
        excess: estimate(|block| block.flood - block.control),
    }
}

fn conclude(blocks: Vec<Block>, by: String, seed: u64, placements: Vec<Value>) -> Outcome {
    let effects: Vec<Effect> = CONDITIONS.map(|condition| effect(&blocks, condition)).into();
    let [unmanaged, managed] = &effects[..] else { unreachable!("there are two conditions") };
    let mut outcome = Outcome {
        by,
        seed,
        excess_ratio: None,
        flood_ratio: None,
        verdict: "inconclusive",
        why: String::new(),
        placements,
        effects: Vec::new(),
    };
    if let (Some(plain), Some(colored), Some(plain_flood), Some(colored_flood)) =
        (unmanaged.excess, managed.excess, unmanaged.flood, managed.flood)
    {
        outcome.excess_ratio = Some(colored.median / plain.median);
        outcome.flood_ratio = Some(colored_flood.median / plain_flood.median);
        let bars = [
            (colored, EXCESS_BAR * plain.median, "the effect with colors"),
            (colored_flood, FLOOD_BAR * plain_flood.median, "lines lost under flood with colors"),
        ];
        (outcome.verdict, outcome.why) = if unmanaged.quiet.min(managed.quiet) < BLOCKS_AT_LEAST {
            ("inconclusive", format!("fewer than {BLOCKS_AT_LEAST} quiet blocks"))
        } else if unmanaged.quietest_control.is_none_or(|lost| lost > QUIET_AT_ALL) {
            ("inconclusive", "no control was quiet: something unseen empties this cache".to_owned())
        } else if plain.low <= 0.0 {
            ("inconclusive", "there is no effect to take away".to_owned())
        } else if let Some((estimate, bar, what)) = bars.iter().find(|(estimate, bar, _)| estimate.low > *bar) {
            ("violated", format!("{what}: at least {:.0}, the bar is {bar:.0}", estimate.low))
        } else if let Some((estimate, bar, what)) = bars.iter().find(|(estimate, bar, _)| estimate.high > *bar) {
            ("inconclusive", format!("{what}: {:.0} to {:.0}, the bar is {bar:.0}", estimate.low, estimate.high))
        } else {
            ("holds", "both bars, with 95 % confidence".to_owned())
        };
    }
    outcome.effects = effects;
    outcome
}

fn text(outcome: &Outcome) -> String {
    let mut text = format!(
        "lines lost of {LINES} per job, by {}; median over quiet blocks [95 % confidence]\n{:<10} {:>14} {:>20} {:>20} {:>20}\n",
        outcome.by, "", "quiet blocks", "flood", "control", "flood - control"
    );
    for effect in &outcome.effects {
        let shown = |estimate: Option<Estimate>| {
            estimate.map_or("-".to_owned(), |e| format!("{:.0} [{:.0}, {:.0}]", e.median, e.low, e.high))
        };
        let _ = writeln!(
            text,
            "{:<10} {:>14} {:>20} {:>20} {:>20}",
            effect.condition,
            format!("{} of {}", effect.quiet, effect.blocks),
            shown(effect.flood),
            shown(effect.control),
            shown(effect.excess)
        );
    }
    let percent = |ratio: Option<f64>| ratio.map_or("-".to_owned(), |ratio| format!("{:.1} %", ratio * 100.0));
    let _ = writeln!(
        text,
        "managed / unmanaged: effect {} (bar {:.0} %), lines lost under flood {} (bar {:.0} %)",
        percent(outcome.excess_ratio),
        EXCESS_BAR * 100.0,
        percent(outcome.flood_ratio),
        FLOOD_BAR * 100.0
    );
    for report in &outcome.placements {
        let immovable: u64 =
            report["immovable"].as_object().into_iter().flat_map(Map::values).filter_map(Value::as_u64).sum();
        let _ = writeln!(
            text,
            "{}: {} of {} resident pages on its colors, {immovable} cannot be moved, {} drifted",
            report["program"], report["on_color"], report["resident"], report["drifted"]
        );
    }
    let _ = writeln!(text, "{}: {}", outcome.verdict, outcome.why);
    text
}
