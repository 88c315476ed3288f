//! `isochrome watch`: shows tasks over time, in slices between context switches.

use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, IsTerminal, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, ensure};
use isochrome_host::counters::events::Event;
use isochrome_host::interrupt;
use isochrome_host::machine::steal::CpuTicks;
use isochrome_host::machine::sysfs::Sysfs;
use isochrome_host::sched::SchedError;
use isochrome_host::sched::slices::{Slices, proved_events};
use isochrome_host::sys::clock;
use isochrome_model::evidence::RawFile;
use isochrome_model::machine::Machine;
use isochrome_model::units::{CpuId, Ns};
use isochrome_model::watch::{
    CSV_HEAD, Cost, CpuSteal, Entry, RecordCost, SCHEMA, SCHEMA_BEFORE, State, Watched, csv_line,
};
use isochrome_report::figure;
use serde::{Deserialize, Serialize};

use crate::args::WatchOptions;
use crate::context::listed_cpus;
use crate::verdict::Verdict;
use crate::view::{KeyAction, View};
use crate::{evidence, files, hints, metrics};

/// Time between two checks of the terminal's keys and of whether the program has ended; each check takes a system call.
const ASIDE: Duration = Duration::from_millis(10);

/// Error text for a terminal that fails.
const DRAWING: &str = "the terminal cannot be drawn on\n  hint: isochrome watch ... | cat";

/// Schema of the printed JSON.
pub const WATCHED: &str = "isochrome-watch/1";

/// The first line of a record.
#[derive(Serialize, Deserialize)]
struct Head {
    schema: String,
    /// Machine on which the record was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    machine: Option<Machine>,
    /// Time at which the record was made, in seconds since 1970-01-01 UTC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    taken_unix_s: Option<u64>,
}

impl Head {
    /// Returns the head of a record that begins now on this machine.
    fn new() -> Head {
        let taken_unix_s = SystemTime::now().duration_since(UNIX_EPOCH).map(|since| since.as_secs()).ok();
        let machine = Sysfs::system().machine().map(|(machine, _)| machine).ok();
        Head { schema: SCHEMA.to_owned(), machine, taken_unix_s }
    }
}

/// A file that slices are written to during the watch.
struct Sink(PathBuf, BufWriter<File>);

impl Sink {
    fn create(path: &PathBuf) -> Result<Sink> {
        let file = File::create(path);
        let file = file.with_context(|| format!("{}: cannot write\n  hint: does the folder exist?", path.display()))?;
        Ok(Sink(path.clone(), BufWriter::new(file)))
    }

    fn write(&mut self, text: &str) -> Result<()> {
        self.1.write_all(text.as_bytes()).with_context(|| self.full())
    }

    /// Writes the rest of the buffer. Fails if there is no room for it.
    fn finish(mut self) -> Result<()> {
        self.1.flush().with_context(|| self.full())
    }

    fn full(&self) -> String {
        format!("{}: cannot write\n  hint: is there room on the disk?", self.0.display())
    }
}

/// Returns the absolute path without links and `..`, also of a file that does not exist yet.
fn absolute(path: &Path) -> PathBuf {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let new = || Some(folder.canonicalize().ok()?.join(path.file_name()?));
    path.canonicalize().ok().or_else(new).unwrap_or_else(|| path.to_owned())
}

/// The files that slices are written to during the watch.
struct Sinks {
    record: Option<Sink>,
    csv: Option<Sink>,
}

impl Sinks {
    fn new(options: &WatchOptions, head: &Head) -> Result<Sinks> {
        let files = [&options.replay, &options.record, &options.csv, &options.output, &options.svg]
            .map(|path| path.as_deref().map(absolute));
        for (at, file) in files.iter().enumerate() {
            ensure!(
                file.is_none() || !files[at + 1..].contains(file),
                "{}: would be overwritten while it is read or written for something else\n  hint: give --replay, --record, --csv, --output and --svg different files",
                file.as_deref().unwrap_or(Path::new("")).display()
            );
        }
        let begun = |path: &Option<PathBuf>, head: &str| -> Result<Option<Sink>> {
            let mut sink = path.as_ref().map(Sink::create).transpose()?;
            sink.iter_mut().try_for_each(|sink| sink.write(head))?;
            Ok(sink)
        };
        let record = begun(&options.record, &(serde_json::to_string(head)? + "\n"))?;
        Ok(Sinks { record, csv: begun(&options.csv, CSV_HEAD)? })
    }

    fn note(&mut self, entry: &Entry) -> Result<()> {
        if let Some(record) = &mut self.record {
            record.write(&(serde_json::to_string(entry)? + "\n"))?;
        }
        if let (Some(csv), Entry::Slice(slice)) = (&mut self.csv, entry) {
            csv.write(&csv_line(slice))?;
        }
        Ok(())
    }

    fn finish(self) -> Result<()> {
        self.record.into_iter().chain(self.csv).try_for_each(Sink::finish)
    }
}

pub fn run(options: &WatchOptions) -> Result<Verdict> {
    let head = Head::new();
    let mut sinks = Sinks::new(options, &head)?;
    let (watched, head) = match &options.replay {
        Some(path) => replay(path, &mut sinks)?,
        None => (live(options, &mut sinks)?, head),
    };
    sinks.finish()?;
    leave(options, &watched, head)?;
    files::show(options.json, &files::versioned(WATCHED, &watched), || watched.text(options.rows, files::width()))?;
    Ok(if watched.lost + watched.counters_taken > 0 { Verdict::Inconclusive } else { Verdict::Holds })
}

/// Writes evidence and a figure of the tasks that are shown, to the files in `options`.
fn leave(options: &WatchOptions, watched: &Watched, head: Head) -> Result<()> {
    let shown = watched.longest(options.rows);
    files::write_if(&options.svg, || figure::of_sections("Tasks over time", [&shown.section()]))?;
    let Some(path) = &options.output else { return Ok(()) };
    let mut warnings = watched.state.notes.clone();
    let machine = match head.machine {
        Some(machine) => machine,
        None => {
            let warning =
                "The record does not name its machine: the description is of the machine on which it was replayed.";
            warnings.push(warning.to_owned());
            Sysfs::system().machine()?.0
        }
    };
    let mut raw = Vec::new();
    for path in [&options.replay, &options.record, &options.csv].into_iter().flatten() {
        raw.push(RawFile { path: path.display().to_string(), sha256: files::sha256_of(path)? });
    }
    let mut evidence = evidence::about(&machine, &raw, warnings);
    evidence.taken_unix_s = head.taken_unix_s.unwrap_or(evidence.taken_unix_s);
    evidence.sections = vec![shown.section()];
    files::write_json(path, &evidence)
}

/// Reads the record at `path`, passes its slices to `sinks`, and returns what was watched and the head of the record.
fn replay(path: &Path, sinks: &mut Sinks) -> Result<(Watched, Head)> {
    let shown = path.display();
    let hint = "hint: isochrome watch --record FILE writes such files";
    let file = File::open(path).with_context(|| format!("{shown}: cannot be read\n  {hint}"))?;
    let mut lines = BufReader::new(file).lines();
    let head = lines.next().with_context(|| format!("{shown}: is empty\n  {hint}"))??;
    let head: Option<Head> = serde_json::from_str(&head).ok();
    let head = head.filter(|head| [SCHEMA, SCHEMA_BEFORE].contains(&head.schema.as_str()));
    let head = head.with_context(|| format!("{shown}: is not a record of slices ({SCHEMA})\n  {hint}"))?;
    let mut watched = Watched::default();
    for (number, line) in lines.enumerate() {
        let entry: Entry = serde_json::from_str(&line?)
            .with_context(|| format!("{shown}: line {}: not a slice\n  {hint}", number + 2))?;
        sinks.note(&entry)?;
        watched.note(&entry);
    }
    Ok((watched, head))
}

/// A program that is killed when the watch ends.
struct Program(Child);

impl Program {
    /// Starts the program that `words` name. `silent`: whether to disconnect its standard streams, because it shares the terminal with the
    /// display.
    fn start(words: &[String], silent: bool) -> Result<Program> {
        let (name, arguments) = words.split_first().context("no program\n  hint: isochrome watch -- CMD")?;
        let mut command = Command::new(name);
        command.args(arguments);
        // Ctrl-C is meant for the watch. Without a process group of its own the program would get it too, and end first.
        command.process_group(0);
        if silent {
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        }
        let child = command.spawn().with_context(|| format!("{name}: cannot be started\n  hint: is it in PATH?"))?;
        Ok(Program(child))
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // The program may have ended by itself, so errors are ignored.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A watch in progress.
struct Live<'o> {
    options: &'o WatchOptions,
    cpus: Vec<CpuId>,
    slices: Slices,
    notes: Vec<String>,
    /// Cost of a record to the CPU on which the record is written.
    record: Option<RecordCost>,
    program: Option<Program>,
    /// Text that is served to Prometheus.
    page: Arc<Mutex<String>>,
    view: Option<View>,
    /// Ticks of the CPUs, and CPU time of this process, at the beginning of the watch.
    before: (Vec<Option<CpuTicks>>, Ns),
    begin: Instant,
    reads: u64,
    watched: Watched,
}

fn live(options: &WatchOptions, sinks: &mut Sinks) -> Result<Watched> {
    let mut live = Live::open(options)?;
    let interval = Duration::from_nanos(options.interval.0);
    let (mut shown, mut aside, mut ended) = (live.begin, live.begin, false);
    loop {
        let (mut action, ended_before) = (KeyAction::Nothing, ended);
        if aside.elapsed() >= ASIDE {
            aside = Instant::now();
            ended = live.program.as_mut().is_some_and(|program| !matches!(program.0.try_wait(), Ok(None)));
            if let Some(view) = &mut live.view {
                action = view.keys(&live.watched).context(DRAWING)?;
            }
        }
        // The last switch away from a program comes after the program's end, so one more read is made.
        let over = ended_before
            || action == KeyAction::Quit
            || interrupt::interrupted()
            || options.duration.is_some_and(|limit| live.begin.elapsed() >= Duration::from_nanos(limit.0));
        live.read(sinks)?;
        if over || shown.elapsed() >= interval {
            shown = Instant::now();
            live.sum_up(sinks)?;
            action = KeyAction::Change;
        }
        if let Some(view) = live.view.as_mut().filter(|_| action == KeyAction::Change) {
            view.show(&live.watched).context(DRAWING)?;
        }
        if over {
            return Ok(live.watched);
        }
        std::thread::sleep(Duration::from_nanos(options.every.0));
    }
}

/// Describes what ends a watch without a given length; `None` if its length is given.
fn end_of(options: &WatchOptions) -> Option<&'static str> {
    match (options.duration, options.program.as_slice()) {
        (Some(_), _) => None,
        (None, []) => Some("watching until Ctrl-C (--duration 10s ends it by itself)"),
        (None, _) => Some("watching until the program ends, or until Ctrl-C"),
    }
}

impl<'o> Live<'o> {
    fn open(options: &'o WatchOptions) -> Result<Live<'o>> {
        if let Some(line) = end_of(options) {
            eprintln!("{line}");
        }
        let sysfs = Sysfs::system();
        let online = sysfs.online_cpus()?;
        let cpus = match &options.cpu {
            Some(list) => listed_cpus(list, &online)?,
            None => online,
        };
        let (mut slices, notes) = open(options, &sysfs, &cpus)?;
        notes.iter().for_each(|note| eprintln!("{note}"));
        // A task that polls would take part in this measurement, so the cost is not measured with polling.
        let record = if options.poll.is_none() { slices.record_cost() } else { None };
        let terminal = io::stdout().is_terminal() && !options.json;
        // Events are recorded from here on. So neither threads that these processes start now nor the first events of the program are
        // missed.
        for pid in &options.pids {
            slices.attach(*pid)?;
        }
        let mut program = None;
        if !options.program.is_empty() {
            let started = Program::start(&options.program, terminal)?;
            slices.follow([started.0.id() as i32]);
            program = Some(started);
        }
        let page = Arc::new(Mutex::new(String::new()));
        if let Some(address) = options.prometheus {
            metrics::publish(address, &page)?;
        }
        let before = (ticks(&cpus), own_time());
        let view = if terminal { Some(View::open().context(DRAWING)?) } else { None };
        let (begin, watched) = (Instant::now(), Watched::default());
        Ok(Live { options, cpus, slices, notes, record, program, page, view, before, begin, reads: 0, watched })
    }

    /// Adds the entries that were recorded since the last call.
    fn read(&mut self, sinks: &mut Sinks) -> Result<()> {
        self.reads += 1;
        let mut fresh = Vec::new();
        self.slices.drain(&mut fresh)?;
        fresh.iter().try_for_each(|entry| self.note(entry, sinks))
    }

    fn note(&mut self, entry: &Entry, sinks: &mut Sinks) -> Result<()> {
        sinks.note(entry)?;
        self.watched.note(entry);
        Ok(())
    }

    /// Adds the facts about the watch as a whole: its cost, steal time, source of events, and notes.
    fn sum_up(&mut self, sinks: &mut Sinks) -> Result<()> {
        let seconds = self.begin.elapsed().as_secs_f64();
        let cost = Some(Cost {
            cpu_share: own_time().0.saturating_sub(self.before.1.0) as f64 / 1e9 / seconds,
            reads_per_second: self.reads as f64 / seconds,
            events_per_second: self.slices.seen() as f64 / seconds,
            polls_per_second: self.slices.polls().map(|polls| polls as f64 / seconds),
            record: self.record,
        });
        for entry in self.slices.stopped() {
            self.note(&entry, sinks)?;
        }
        let steal = steal_since(&self.cpus, &self.before.0, ticks(&self.cpus));
        let source = Some(self.slices.source().to_owned());
        self.note(&Entry::State(State { steal, cost, source, notes: self.notes.clone() }), sinks)?;
        if self.options.prometheus.is_some() {
            *self.page.lock().unwrap_or_else(PoisonError::into_inner) = self.watched.prometheus();
        }
        Ok(())
    }
}

/// Returns the CPU time of this process.
fn own_time() -> Ns {
    clock::process_cpu(std::process::id() as i32).unwrap_or_default()
}

/// Returns the ticks of each of `cpus`; `None` where the kernel does not count them.
fn ticks(cpus: &[CpuId]) -> Vec<Option<CpuTicks>> {
    let sysfs = Sysfs::system();
    cpus.iter().map(|cpu| CpuTicks::read(&sysfs, Some(*cpu))).collect()
}

/// Returns the steal time of each CPU since `before`, without the CPUs for which the kernel does not count it.
fn steal_since(cpus: &[CpuId], before: &[Option<CpuTicks>], now: Vec<Option<CpuTicks>>) -> Vec<CpuSteal> {
    let of_cpu = |((cpu, now), before): ((&CpuId, Option<CpuTicks>), &Option<CpuTicks>)| {
        Some(CpuSteal { cpu: *cpu, share: now?.steal_share_since((*before)?)? })
    };
    cpus.iter().zip(now).zip(before).filter_map(of_cpu).collect()
}

/// Opens the source of events. Returns it with notes on what it cannot report.
fn open(options: &WatchOptions, sysfs: &Sysfs, cpus: &[CpuId]) -> Result<(Slices, Vec<String>)> {
    let (slices, mut notes) = open_best(options, sysfs, cpus)?;
    notes.extend(slices.notes().iter().map(|note| format!("polling: {}: {}", note.subject, note.reason)));
    Ok((slices, notes))
}

/// Opens the source that reports the most among those that this user may open. Returns it with notes on what it cannot report.
fn open_best(options: &WatchOptions, sysfs: &Sysfs, cpus: &[CpuId]) -> Result<(Slices, Vec<String>)> {
    let all = options.pids.is_empty() && options.program.is_empty();
    let open = |counted: &[Event]| match options.poll {
        Some(period) => Slices::polled(cpus, all, counted, period),
        None => Slices::open(cpus, all, counted),
    };
    let counted = proved_events(&sysfs.processor()?, options.level);
    let uncounted = match counted.map_err(SchedError::from).and_then(|events| open(&events)) {
        Ok(slices) => return Ok((slices, Vec::new())),
        Err(error) => error,
    };
    match open(&[]) {
        Ok(slices) => {
            let note = format!(
                "no counters are read: misses, instructions and cycles are absent, times and switches come from the scheduler\n{}",
                hints::text(&uncounted)
            );
            Ok((slices, vec![note]))
        }
        // Every user may watch threads of their own.
        Err(refused) if !all && options.poll.is_none() => {
            let note = format!(
                "the kernel reports to this user only when the watched threads get and leave a CPU: misses, instructions and cycles are absent, \
                 and a wait for a device counts as sleep, which ends a job\n{}",
                hints::text(&refused)
            );
            Ok((Slices::open_own(cpus)?, vec![note]))
        }
        Err(refused) => Err(refused.into()),
    }
}
