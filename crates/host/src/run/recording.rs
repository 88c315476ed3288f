//! Records the jobs of a run: writes them to a file as they complete, and sums them up by task and side.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use isochrome_model::evidence::RawFile;
use isochrome_model::running::{Comparison, JobRecord, Requirement, Tally, TaskOutcome, Window};
use isochrome_model::units::Ns;
use sha2::{Digest, Sha256};

use super::engine::Outcome;
use super::planned::Planned;

/// Name of the file of jobs in the folder of a run.
pub const JOBS: &str = "jobs.csv";

/// Length of a window of a comparison.
const WINDOW: Ns = Ns(250_000_000);

/// Bytes of jobs kept in memory before they are written; they are written every second in any case.
const UNWRITTEN: usize = 64 << 10;

/// Records the jobs of a run: writes them to a file, and keeps the tallies of both sides.
pub struct Recorder {
    file: File,
    hash: Sha256,
    unwritten: String,
    unwritten_jobs: u64,
    last: Instant,
    bytes: u64,
    /// Number of jobs in the file.
    pub written: u64,
    names: Vec<String>,
    /// Tallies of the tasks as planned, and without partitions.
    tallies: [Vec<Option<Tally>>; 2],
    /// Windows of each side, by task. They are filled only if the sides are compared.
    windows: [Vec<Vec<Window>>; 2],
    comparing: bool,
}

impl Recorder {
    /// Creates the file of jobs in `folder`. `comparing`: whether windows are kept, to compare the two sides.
    pub fn new(folder: &Path, planned: &[Planned], comparing: bool) -> io::Result<Recorder> {
        let file = File::create(folder.join(JOBS))?;
        let requirements: Vec<Option<Requirement>> =
            planned.iter().map(|planned| planned.requirement.clone()).collect();
        let tallies = || requirements.iter().map(|requirement| requirement.clone().map(Tally::new)).collect();
        let windows = || vec![Vec::new(); planned.len()];
        Ok(Recorder {
            file,
            hash: Sha256::new(),
            unwritten: JobRecord::CSV_HEADER.to_owned(),
            unwritten_jobs: 0,
            last: Instant::now(),
            bytes: 0,
            written: 0,
            names: planned.iter().map(|planned| planned.program.name.clone()).collect(),
            tallies: [tallies(), tallies()],
            windows: [windows(), windows()],
            comparing,
        })
    }

    /// Returns the recorder of block `number`. `partitioned`: whether the block runs with the planned partitions.
    pub fn block(&mut self, number: u64, partitioned: bool) -> BlockRecord<'_> {
        let tasks = self.names.len();
        BlockRecord { recorder: self, number, partitioned, window: vec![(0, Window::new(number)); tasks] }
    }

    /// Writes the jobs that are not in the file yet. After an error the file ends with the last job of the previous successful call.
    fn flush(&mut self) -> io::Result<()> {
        let written = self.file.write_all(self.unwritten.as_bytes());
        if written.is_err() {
            // Removes what this call has written, which may end within a line.
            let _ = self.file.set_len(self.bytes);
        } else {
            self.bytes += self.unwritten.len() as u64;
            self.written += self.unwritten_jobs;
            self.hash.update(self.unwritten.as_bytes());
        }
        self.unwritten.clear();
        self.unwritten_jobs = 0;
        self.last = Instant::now();
        written
    }

    /// Writes the remaining jobs. Returns the name of the file and its hash.
    pub fn close(&mut self) -> io::Result<RawFile> {
        self.flush()?;
        self.file.sync_all()?;
        let sha256 = self.hash.clone().finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(RawFile { path: JOBS.to_owned(), sha256 })
    }

    /// Returns the time in which 99 % of the jobs of any task are complete whose jobs exceeded a limit when run as planned, if steal time does
    /// not excuse them.
    pub fn accused(&self) -> Option<Ns> {
        let [planned, _] = &self.tallies;
        planned.iter().flatten().filter_map(Tally::accused).max()
    }

    /// Returns the outcome of each task with a requirement when run as planned, with the placements and the releases of `ran`.
    pub fn outcomes(&self, programs: &[Planned], ran: &Outcome) -> Vec<TaskOutcome> {
        let [planned, _] = &self.tallies;
        let tasks = planned.iter().zip(programs).zip(ran.placements.iter().zip(&ran.releases));
        tasks
            .filter_map(|((tally, program), (placements, releases))| {
                let (cpu, releases) = (Some(program.cpu), Some(*releases));
                let outcome = TaskOutcome { cpu, releases, ..tally.as_ref()?.outcome() };
                Some(outcome.with_placements(placements.clone()))
            })
            .collect()
    }

    /// Returns the comparison of the two sides over `blocks` pairs of blocks.
    pub fn compared(&self, planned: &[Planned], blocks: u64) -> Comparison {
        let tasks = planned.iter().enumerate().filter(|(_, planned)| planned.requirement.is_some());
        let sides = |task: usize| self.windows.each_ref().map(|side| &side[task][..]);
        Comparison::of(WINDOW, blocks, tasks.map(|(task, _)| (self.names[task].as_str(), sides(task))))
    }
}

/// Records the jobs of one block.
pub struct BlockRecord<'a> {
    recorder: &'a mut Recorder,
    number: u64,
    partitioned: bool,
    /// Number of the open window of each task, and the window's jobs so far.
    window: Vec<(u64, Window)>,
}

impl BlockRecord<'_> {
    /// Records a job. Fails if the job cannot be written.
    pub fn record(&mut self, job: &JobRecord) -> io::Result<()> {
        let side = usize::from(!self.partitioned);
        if let Some(tally) = &mut self.recorder.tallies[side][job.task] {
            tally.push(job);
        }
        if self.recorder.comparing {
            let number = job.release.0 / WINDOW.0;
            if self.window[job.task].0 != number {
                self.close_window(job.task);
                self.window[job.task].0 = number;
            }
            self.window[job.task].1.push(job);
        }
        let Recorder { names, unwritten, .. } = &mut *self.recorder;
        job.csv_line(self.number, self.partitioned, &names[job.task], unwritten);
        self.recorder.unwritten_jobs += 1;
        if self.recorder.unwritten.len() > UNWRITTEN || self.recorder.last.elapsed() > Duration::from_secs(1) {
            self.recorder.flush()?;
        }
        Ok(())
    }

    fn close_window(&mut self, task: usize) {
        let window = std::mem::replace(&mut self.window[task].1, Window::new(self.number));
        if window.jobs > 0 {
            self.recorder.windows[usize::from(!self.partitioned)][task].push(window);
        }
    }

    /// Ends the block, and completes its open windows.
    pub fn end(&mut self) {
        (0..self.window.len()).for_each(|task| self.close_window(task));
    }
}
