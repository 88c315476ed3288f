//! Measurement of unmodified programs, alone and beside others.
//!
//! *Time slices* are given by this process, by SCHED_FIFO priorities: on the shared CPU all programs wait at a low priority, and one at a time
//! gets a higher priority. SCHED_DEADLINE would serve as well, but admits no program that is bound to one CPU. In the control
//! programs that only spin have the slices of the co-runners; in the slices of absent co-runners this process spins. A program that blocks in
//! its slice leaves the rest of it to the others.
//!
//! *Co-runners end too.* Replacements, started and moved to their colors beforehand, are stopped until they are needed. If they run out, the run
//! continues without co-runners and is censored: with co-runners the run would have taken at least as long. If a co-runner fails, or ends much
//! sooner than it does alone, the run is discarded.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use isochrome_host::counters::events::LevelEvents;
use isochrome_host::interrupt;
use isochrome_host::machine::setting::RealtimeRequest;
use isochrome_host::process::Pid;
use isochrome_host::recolor::RecolorError;
use isochrome_host::sys::launch::End;
use isochrome_model::taskset::programs::Partitioning;
use isochrome_model::units::{CpuId, Ns};

use super::process::{Process, RUNNING, Start, WAITING};
use super::run::{Counting, Run};
use super::{COLUMNS, Condition, Sharing, cpu};
use crate::error::LabError;
use crate::runner::{Experiment, Recorder};
use crate::samples::{Arm, Judged};

/// Time between two checks whether a program on its own CPU has ended.
const CHECK: Duration = Duration::from_millis(1);
/// Factor by which a run may exceed its time alone before co-runners run out.
const RESERVE: f64 = 1.5;
/// Greatest number of stopped co-runners of one program.
const READY_MAX: u64 = 16;
/// Number of successive failures of a program that ends the experiment.
const FAILURES_MAX: u32 = 3;

/// The programs to measure, the conditions, and the CPUs.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Command lines of the programs.
    pub programs: Vec<Vec<String>>,
    /// For each program, the indices of the programs that run beside it.
    pub beside: Vec<Vec<usize>>,
    /// Command line of a program that only spins, and does not end.
    pub spinner: Vec<String>,
    /// For each program, the number of jobs in a run, if release messages start its jobs. Such a program is started once for a block. `None` if
    /// it runs to its end.
    pub jobs: Vec<Option<u64>>,
    /// The conditions to measure.
    pub conditions: Vec<Condition>,
    /// CPU on which a program is measured.
    pub cpu: CpuId,
    /// CPUs on which the co-runners run if they do not share the CPU of the measured program.
    pub others: Vec<CpuId>,
    /// CPU time of a program before its mark.
    pub warm_up: Ns,
    /// Greatest time from a program's mark to its end when it runs alone.
    pub limit: Ns,
    /// Whether programs may have real-time priorities, which time slices need.
    pub realtime: bool,
    /// For each program, the file by which it joins the resource group that has its cache ways; empty without ways.
    pub joins: Vec<PathBuf>,
    /// Cache levels to count, with events that are known to work; empty without counters.
    pub levels: Vec<LevelEvents>,
}

/// Moves the pages of a program, given by its index, to its colors.
pub type MoveToColors<'a> = dyn FnMut(usize, Pid) -> Result<(), RecolorError> + 'a;

/// Returns the conditions that can be measured. `beside` lists the co-runners of each program, and `others` is the number of CPUs for
/// co-runners: 0 rules out inter-core conditions. Intra-core conditions, one for each of `slices`, need `realtime` priorities. Each is measured
/// with the whole cache shared, and with the cache divided by each of `parts`.
pub fn conditions(
    beside: &[Vec<usize>],
    others: usize,
    realtime: bool,
    slices: &[Ns],
    parts: &[Partitioning],
) -> Vec<Condition> {
    let slices = if realtime { slices } else { &[] };
    let shared = slices.iter().map(|slice| (Sharing::IntraCore, *slice));
    let apart = (others > 0).then_some((Sharing::InterCore, Ns(0)));
    let mut conditions = Vec::new();
    for (sharing, slice_ns) in apart.into_iter().chain(shared) {
        for program in (0..beside.len()).filter(|program| !beside[*program].is_empty()) {
            for partitioning in [Partitioning::None].iter().chain(parts) {
                conditions.push(Condition { sharing, program, slice_ns, partitioning: *partitioning });
            }
        }
    }
    conditions
}

/// The experiment. The calling thread has to run on the CPU of the setup, with a real-time priority if the programs get one.
pub struct Programs<'s, 'p> {
    setup: &'s Setup,
    move_to_colors: &'p mut MoveToColors<'p>,
    /// For each program, the time of a run alone; `None` until it is known, and always for programs that are only co-runners.
    lengths: Vec<Option<Ns>>,
    /// The measured program of this block; `None` if release messages do not start its jobs.
    subject: Option<Process>,
    /// Stopped co-runners at or after their mark, each with its program and its partitioning.
    ready: Vec<(usize, Partitioning, Process)>,
    /// Stopped spinners, which take the places of co-runners in controls on one CPU.
    spinners: Vec<Process>,
    /// For each program, the number of failures since its last success.
    failed: Vec<u32>,
    /// Descriptions of failures of programs beside others; their runs and blocks are discarded.
    pub failures: Vec<String>,
}

impl<'s, 'p> Programs<'s, 'p> {
    /// Returns the experiment of `setup`; `move_to_colors` moves its programs to their colors.
    pub fn new(setup: &'s Setup, move_to_colors: &'p mut MoveToColors<'p>) -> Programs<'s, 'p> {
        let programs = setup.programs.len();
        let (lengths, failed) = (vec![None; programs], vec![0; programs]);
        Programs {
            setup,
            move_to_colors,
            lengths,
            subject: None,
            ready: Vec::new(),
            spinners: Vec::new(),
            failed,
            failures: Vec::new(),
        }
    }

    fn start(&mut self, program: usize, partitioning: Partitioning) -> Result<Option<Process>, LabError> {
        let (colors, ways) = match partitioning {
            Partitioning::None => (false, false),
            Partitioning::Colors => (true, false),
            Partitioning::Ways => (false, true),
            Partitioning::Both => (true, true),
        };
        let timed = self.is_measured(program);
        let mut move_to_colors = |pid| (self.move_to_colors)(program, pid);
        let start = Start {
            words: &self.setup.programs[program],
            released: self.setup.jobs[program].is_some(),
            timed,
            joins: self.setup.joins.get(program).filter(|_| ways),
            move_to_colors: if colors { Some(&mut move_to_colors) } else { None },
        };
        Process::start(self.setup, start)
    }

    /// Returns the time of a run of `program`; `None` if the run is discarded. `end` tells how the program ended, and `cpu` is its CPU time by
    /// then.
    ///
    /// Fails if the program failed when it ran alone, or failed [`FAILURES_MAX`] times in a row.
    fn judge(&mut self, program: usize, process: &Process, (end, cpu): (End, Ns)) -> Result<Option<Ns>, LabError> {
        match process.judge(end, cpu, self.lengths[program]) {
            Ok(took) => {
                self.failed[program] = 0;
                Ok(Some(took))
            }
            Err(what) if self.is_measured(program) && self.lengths[program].is_none() => {
                Err(process.unfit(what, "run it by hand: it must end by itself with exit code 0"))
            }
            Err(what) => {
                self.failed[program] += 1;
                if self.failed[program] >= FAILURES_MAX {
                    let hint = "run it twice at the same time by hand: programs that share files, ports or devices get into each other's way";
                    let again = "times one after the other, and not when it ran alone";
                    return Err(process.unfit(format!("{what}: {FAILURES_MAX} {again}"), hint));
                }
                self.failures.push(format!("{} {what}", process.name));
                Ok(None)
            }
        }
    }

    fn is_measured(&self, program: usize) -> bool {
        self.setup.conditions.iter().any(|condition| condition.program == program)
    }

    /// Starts processes of the co-runner `program` and stops them at their marks, as many as are needed beside a run that takes `length` alone.
    /// An interrupt ends this early.
    fn reserve(&mut self, program: usize, partitioning: Partitioning, length: Option<Ns>) -> Result<(), LabError> {
        let runs =
            self.lengths[program].zip(length).map_or(0.0, |(own, of)| RESERVE * of.0 as f64 / own.0.max(1) as f64);
        let enough = (1 + runs.ceil() as u64).min(READY_MAX) as usize;
        let is_one = |(of, by, _): &&(usize, Partitioning, Process)| (*of, *by) == (program, partitioning);
        while self.ready.iter().filter(is_one).count() < enough {
            let Some(process) = self.start(program, partitioning)? else { break };
            self.ready.push((program, partitioning, process));
        }
        Ok(())
    }

    fn next(&mut self, program: usize, partitioning: Partitioning) -> Option<Process> {
        let at = self.ready.iter().position(|(of, by, _)| (*of, *by) == (program, partitioning))?;
        Some(self.ready.remove(at).2)
    }

    /// Returns `count` spinners; `None` for those that an interrupt kept from starting.
    fn spinners(&mut self, count: usize) -> Result<Vec<Option<Process>>, LabError> {
        while self.spinners.len() < count {
            let words = &self.setup.spinner;
            let start = Start { words, released: false, timed: false, joins: None, move_to_colors: None };
            let Some(spinner) = Process::start(self.setup, start)? else { break };
            self.spinners.push(spinner);
        }
        let started = count.min(self.spinners.len());
        let mut spinners: Vec<Option<Process>> = self.spinners.drain(..started).map(Some).collect();
        spinners.resize_with(count, || None);
        Ok(spinners)
    }

    /// Makes one run beside `others` and returns its values. In the control spinners take their places, and in the reference they are absent.
    /// `None` if a program failed, or on an interrupt.
    ///
    /// On one CPU, the spinners are programs, too: what it costs to switch between programs is the same in the control as in the treatment.
    fn run(&mut self, condition: Condition, arm: Arm, others: &[usize]) -> Result<Option<Vec<f64>>, LabError> {
        let Some(mut run) = self.begin(condition, arm, others)? else { return Ok(None) };
        let setup = self.setup;
        let spinning = if run.sharing() == Sharing::InterCore && arm == Arm::Control { others.len() } else { 0 };
        let over = AtomicBool::new(false);
        let took = thread::scope(|scope| {
            for cpu in &setup.others[..spinning] {
                scope.spawn(|| {
                    let settings = RealtimeRequest::new().pin(*cpu);
                    let _settings = if setup.realtime { settings.fifo(RUNNING) } else { settings }.apply();
                    while !over.load(Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                });
            }
            let took = self.alternate(&mut run);
            over.store(true, Ordering::Relaxed);
            took
        })?;
        let values = run.values(took, &setup.levels);
        self.keep(run)?;
        Ok(values)
    }

    /// Lets the measured program and its co-runners continue from their marks, and returns their run; `None` on an interrupt.
    fn begin<'r>(&mut self, condition: Condition, arm: Arm, others: &'r [usize]) -> Result<Option<Run<'r>>, LabError> {
        let (setup, program) = (self.setup, condition.program);
        let together = arm == Arm::Treatment;
        for other in others.iter().filter(|_| together) {
            self.reserve(*other, condition.partitioning, self.lengths[program])?;
        }
        let subject = self.subject.take();
        let subject =
            subject.map_or_else(|| self.start(program, condition.partitioning), |subject| Ok(Some(subject)))?;
        let Some(mut subject) = subject else { return Ok(None) };
        if let Some(jobs) = setup.jobs[program] {
            subject.release(jobs)?;
        }
        let mates: Vec<Option<Process>> = match (arm, condition.sharing) {
            (Arm::Treatment, _) => others.iter().map(|other| self.next(*other, condition.partitioning)).collect(),
            (Arm::Control, Sharing::IntraCore) => self.spinners(others.len())?,
            _ => others.iter().map(|_| None).collect(),
        };
        let counting = Counting::of(&subject, &setup.levels);
        let run = Run { condition, arm, others, subject, mates, counting, censored: false };
        for (at, mate) in run.mates.iter().enumerate() {
            if let Some(mate) = mate {
                let (cpu, priority) = run.target(at, setup);
                mate.go_on(cpu, priority)?;
            }
        }
        let priority = if run.is_in_slices() { WAITING } else { RUNNING };
        run.subject.go_on(setup.cpu, setup.realtime.then_some(priority))?;
        Ok(Some(run))
    }

    /// Gives the program, and on a shared CPU its co-runners, their time slices until it has completed the run. Returns the time of the run;
    /// `None` if the run is discarded or interrupted.
    fn alternate(&mut self, run: &mut Run<'_>) -> Result<Option<Ns>, LabError> {
        let in_slices = run.is_in_slices();
        let (slots, slice) = match in_slices {
            true => (1 + run.others.len(), Duration::from_nanos(run.condition.slice_ns.0)),
            false => (1, CHECK),
        };
        // Beside others, a run may take twice the time that it needs alone in its share of the CPU.
        let times = if run.arm == Arm::Reference { 1 } else { 2 * slots as u64 };
        let limit = Duration::from_nanos(self.setup.limit.0.saturating_mul(times));
        let begin = Instant::now();
        let mut until = begin;
        for slot in (0..slots).cycle() {
            until += slice;
            run.give_slice(slot, until, in_slices);
            run.counting.note_threads(&run.subject);
            if !self.replace_ended(run)? {
                return Ok(None);
            }
            if let Some(end) = run.subject.completed()? {
                return self.judge(run.condition.program, &run.subject, end);
            }
            if interrupt::interrupted() {
                return Ok(None);
            }
            if begin.elapsed() > limit {
                let what = format!("has not ended after {:.0} s", limit.as_secs_f64());
                return Err(run.subject.unfit(what, "a program that ends by itself, or a longer limit"));
            }
        }
        unreachable!("a cycle of one slot or more does not end")
    }

    /// Replaces co-runners that have ended. Returns `false` if one of them failed, as the program then did not have its co-runners for the whole
    /// run.
    fn replace_ended(&mut self, run: &mut Run<'_>) -> Result<bool, LabError> {
        if run.arm != Arm::Treatment {
            return Ok(true);
        }
        for at in 0..run.mates.len() {
            let Some(mate) = run.mates[at].as_mut() else { continue };
            let Some(end) = mate.end()? else { continue };
            if self.judge(run.others[at], mate, end)?.is_none() {
                return Ok(false);
            }
            let next = self.next(run.others[at], run.condition.partitioning);
            run.censored |= next.is_none();
            if let Some(next) = &next {
                let (cpu, priority) = run.target(at, self.setup);
                next.go_on(cpu, priority)?;
            }
            run.mates[at] = next;
        }
        Ok(true)
    }

    /// Stops the processes that have not ended and keeps them for the next run.
    fn keep(&mut self, run: Run<'_>) -> Result<(), LabError> {
        let Run { condition, arm, others, mut subject, mates, .. } = run;
        let running = self.setup.realtime.then_some(RUNNING);
        if self.setup.jobs[condition.program].is_some() {
            subject.hold(running)?;
            self.subject = Some(subject);
        }
        for (mate, other) in mates.into_iter().zip(others) {
            if let Some(mut mate) = mate.filter(|mate| !mate.ended) {
                mate.hold(running)?;
                match arm {
                    Arm::Treatment => self.ready.insert(0, (*other, condition.partitioning, mate)),
                    _ => self.spinners.push(mate),
                }
            }
        }
        Ok(())
    }
}

impl Experiment for Programs<'_, '_> {
    type Condition = Condition;
    const JUDGED: Judged = super::JUDGED;

    fn columns(&self) -> Vec<String> {
        let levels = self.setup.levels.iter().map(|events| events.level);
        let counts = levels.flat_map(|level| [format!("L{level}_hits"), format!("L{level}_misses")]);
        COLUMNS.map(str::to_owned).into_iter().chain(counts).collect()
    }

    fn conditions(&self) -> Vec<Condition> {
        self.setup.conditions.clone()
    }

    /// Measures one block. Before that, measures the time alone of each program whose time alone is unknown. A block is discarded if one of its
    /// runs failed.
    fn block(&mut self, condition: Condition, recorder: &mut Recorder<Condition>) -> Result<(), LabError> {
        let mut others = self.setup.beside[condition.program].clone();
        recorder.rng.shuffle(&mut others);
        if condition.sharing == Sharing::InterCore {
            others.truncate(self.setup.others.len());
        }
        for program in [condition.program].iter().chain(&others) {
            if self.lengths[*program].is_none() && self.is_measured(*program) {
                let open = Condition { program: *program, partitioning: Partitioning::None, ..condition };
                self.subject = None;
                let Some(run) = self.run(open, Arm::Reference, &[])? else { return Ok(()) };
                self.lengths[*program] = Some(Ns(cpu(&run) as u64));
            }
        }
        self.subject = None;
        let arms = [Arm::Reference, Arm::Control, Arm::Treatment];
        recorder.measure(condition, &arms, |arm| self.run(condition, arm, &others))
    }
}

#[cfg(test)]
mod tests {
    use isochrome_host::counters::events::PAGE_FAULTS;
    use isochrome_host::sys::clock::process_cpu;

    use super::*;
    use crate::interference::tests::open;
    use crate::runner::Amount;
    use crate::samples::Block;

    #[test]
    fn what_cannot_be_shared_is_left_out() {
        let slices = [Ns(1), Ns(2)];
        let beside = [vec![1], vec![0], vec![]];
        let found = conditions(&beside, 1, true, &slices, &[Partitioning::Colors, Partitioning::Ways]);
        // Two programs have co-runners, on other CPUs and in slices of two lengths, each with three partitionings.
        assert_eq!(found.len(), 2 * 3 * 3);
        assert!(conditions(&beside, 0, true, &slices, &[]).iter().all(|it| it.sharing == Sharing::IntraCore));
        assert!(conditions(&beside, 2, false, &slices, &[]).iter().all(|it| it.sharing == Sharing::InterCore));
        assert!(conditions(&beside, 0, false, &slices, &[Partitioning::Ways]).is_empty());
    }

    /// Recorded blocks, and the failures for which other blocks were discarded.
    type Measured = (Vec<Block<Condition>>, Vec<String>);

    /// Runs the experiment on shell scripts that share the cache, without real-time priorities.
    fn tried(scripts: &[&str], levels: &[LevelEvents], warm_up: Ns, limit: Ns) -> Result<Measured, String> {
        tried_by(Partitioning::None, &mut |_, _| Ok(()), scripts, levels, (warm_up, limit))
    }

    /// Returns the setup of an experiment on shell scripts that share the cache of two CPUs, without real-time priorities.
    fn setup(
        partitioning: Partitioning,
        scripts: &[&str],
        levels: &[LevelEvents],
        (warm_up, limit): (Ns, Ns),
    ) -> Setup {
        let programs: Vec<Vec<String>> =
            scripts.iter().map(|script| ["sh", "-c", script].map(str::to_owned).to_vec()).collect();
        let cpus = isochrome_host::machine::setting::allowed_cpus().unwrap();
        let beside: Vec<Vec<usize>> =
            (0..programs.len()).map(|own| (0..programs.len()).filter(|other| *other != own).collect()).collect();
        Setup {
            conditions: (0..programs.len())
                .map(|program| Condition { partitioning, ..open(Sharing::InterCore, program) })
                .collect(),
            jobs: vec![None; programs.len()],
            programs,
            beside,
            spinner: ["sh", "-c", "while :; do :; done"].map(str::to_owned).to_vec(),
            cpu: cpus[0],
            // If there is only one CPU, the co-runners share it with the program.
            others: vec![cpus[cpus.len() - 1]],
            warm_up,
            limit,
            realtime: false,
            joins: Vec::new(),
            levels: levels.to_vec(),
        }
    }

    /// Runs the experiment on shell scripts, which `move_to_colors` moves to their colors if `partitioning` gives them colors.
    fn tried_by<'p>(
        partitioning: Partitioning,
        move_to_colors: &'p mut MoveToColors<'p>,
        scripts: &[&str],
        levels: &[LevelEvents],
        (warm_up, limit): (Ns, Ns),
    ) -> Result<Measured, String> {
        let setup = setup(partitioning, scripts, levels, (warm_up, limit));
        let mut experiment = Programs::new(&setup, move_to_colors);
        let mut recorder = Recorder::new(&Amount { blocks: 2, samples: 1, seed: 1, cpu: setup.cpu, limit: None });
        for condition in setup.conditions.repeat(2) {
            experiment.block(condition, &mut recorder).map_err(|error| error.to_string())?;
        }
        Ok((recorder.into_blocks(), experiment.failures))
    }

    const SECOND: Ns = Ns(1_000_000_000);
    const MINUTE: Ns = Ns(60_000_000_000);
    /// Script that takes some tens of ms of CPU time.
    const LOOP: &str = "i=0; while [ $i -lt 40000 ]; do i=$((i+1)); done";
    /// Warm-up of these experiments.
    const BEGINNING: Ns = Ns(20_000_000);

    /// Returns a script that begins its work only when it continues from its mark, however late it is stopped there.
    fn held(script: &str) -> String {
        format!("trap on=1 CONT; until [ \"$on\" ]; do :; done; {script}")
    }

    #[test]
    fn a_program_that_ends_before_its_mark_is_named_with_what_helps() {
        let error = tried(&["echo too quick >&2"], &[], SECOND, SECOND).unwrap_err();
        assert!(
            error.contains("ended within its first 1000 ms on a CPU (exit code 0; on standard error: too quick)"),
            "{error}"
        );
        assert!(error.contains("a shorter warm-up"), "{error}");
        let error = tried(&["exit 7"], &[], SECOND, SECOND).unwrap_err();
        assert!(error.contains("exit code 7; it wrote nothing") && error.contains("run it by hand"), "{error}");
    }

    /// A busy machine may move pages slowly, which must not end the experiment with an error.
    #[test]
    fn a_program_that_is_on_its_colors_too_late_is_started_again() {
        const WARM_UP: Ns = Ns(8_000_000);
        let late = |pid: Pid| {
            let begin = Instant::now();
            let has_it = |cpu: Ns| cpu.0 > 2 * WARM_UP.0;
            while begin.elapsed() < Duration::from_secs(10) && !process_cpu(pid.0).is_ok_and(has_it) {
                thread::sleep(CHECK);
            }
            Ok(())
        };
        let script = [LOOP; 3].join("; ");
        let tried = |move_to_colors: &mut MoveToColors<'_>| {
            tried_by(Partitioning::Colors, move_to_colors, &[&script, &script], &[], (WARM_UP, MINUTE))
        };
        let mut starts = 0;
        let (blocks, _) = tried(&mut |_, pid| {
            starts += 1;
            if starts == 1 { late(pid) } else { Ok(()) }
        })
        .unwrap();
        assert!(!blocks.is_empty());
        let error = tried(&mut |_, pid| late(pid)).unwrap_err();
        assert!(error.contains("until it was on its colors") && error.contains("a longer warm-up"), "{error}");
    }

    #[test]
    fn a_program_that_fails_alone_or_never_ends_is_named_with_what_helps() {
        let fails = held(&format!("{LOOP}; echo no file of that name >&2; exit 3"));
        let error = tried(&[&fails], &[], BEGINNING, MINUTE).unwrap_err();
        assert!(error.contains("failed (exit code 3; on standard error: no file of that name)"), "{error}");
        let error = tried(&["while :; do :; done"], &[], BEGINNING, Ns(100_000_000)).unwrap_err();
        assert!(error.contains("has not ended after 0 s") && error.contains("a longer limit"), "{error}");
    }

    #[test]
    fn a_run_whose_co_runner_fails_does_not_count_and_one_that_always_fails_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let been = folder.path().join("been");
        // Fails at its end in every run but the first.
        let fails = format!("{LOOP}; [ -e {0} ] && {{ echo {0} is there >&2; exit 5; }}; touch {0}", been.display());
        let fails = held(&fails);
        let long = held(&format!("{LOOP}; {LOOP}; {LOOP}"));
        let error = tried(&[&long, &fails], &[], BEGINNING, MINUTE).unwrap_err();
        assert!(error.contains("exit code 5") && error.contains("is there): 3 times one after the other"), "{error}");
        assert!(error.contains("twice at the same time"), "{error}");
        // Fails in its second run only.
        let once = format!(
            "{LOOP}; [ -e {0}.2 ] || {{ [ -e {0}.1 ] && touch {0}.2 && exit 5; touch {0}.1; }}; exit 0",
            been.display()
        );
        let once = held(&once);
        let (blocks, failures) = tried(&[&long, &once], &[], BEGINNING, MINUTE).unwrap();
        assert!(matches!(&failures[..], [failure] if failure.contains("failed (exit code 5")), "{failures:?}");
        assert!(blocks.len() < 4, "{blocks:?}");
    }

    /// Uses an event that the kernel counts on any machine, in place of cache events.
    #[test]
    fn what_a_program_did_from_its_mark_to_its_end_is_counted() {
        let faults = LevelEvents { level: 1, accesses: vec![PAGE_FAULTS], misses: vec![PAGE_FAULTS] };
        // The shell runs the loop itself, in one thread.
        let (blocks, _) = tried(&[&held(LOOP), &held(LOOP)], &[faults], BEGINNING, MINUTE).unwrap();
        assert!(!blocks.is_empty());
        for run in blocks.iter().flat_map(|block| &block.samples) {
            assert!(matches!(run.values[..], [_, _, 0.0, misses] if misses >= 0.0), "{run:?}");
        }
    }

    /// Without real-time priorities the programs share the CPU as the scheduler sees fit, and the spinner has some of it all the same.
    #[test]
    fn on_one_cpu_a_program_spins_in_the_control_and_is_stopped_after_it() {
        let setup = setup(Partitioning::None, &[&held(LOOP), &held(LOOP)], &[], (BEGINNING, MINUTE));
        let mut left_alone = |_, _| Ok(());
        let mut experiment = Programs::new(&setup, &mut left_alone);
        let mut run = |arm| {
            assert!(experiment.run(open(Sharing::IntraCore, 0), arm, &[1]).unwrap().is_some(), "{arm:?}");
            let of_spinner = |spinner: &Process| (spinner.pid, process_cpu(spinner.pid.0).unwrap().0);
            experiment.spinners.iter().map(of_spinner).collect::<Vec<_>>()
        };
        assert!(run(Arm::Reference).is_empty() && run(Arm::Treatment).is_empty());
        // The first control starts the spinner, and the second lets the same one continue.
        let (first, second) = (run(Arm::Control), run(Arm::Control));
        let ([(started, before)], [(kept, after)]) = (&first[..], &second[..]) else { panic!("{first:?} {second:?}") };
        assert!(started == kept && after > before, "{first:?} {second:?}");
    }

    #[test]
    fn a_run_that_outlasts_its_co_runners_goes_on_and_is_censored() {
        let folder = tempfile::tempdir().unwrap();
        let ended = folder.path().join("ended").display().to_string();
        std::fs::write(&ended, "").unwrap();
        // The experiment starts the short program 16 times. The long one works on after the last of them has ended.
        let short = held(&format!("echo >> {ended}"));
        let long =
            format!("n=0; while [ $n -lt 16 ]; do n=0; while read line; do n=$((n+1)); done < {ended}; done; {LOOP}");
        let long = held(&long);
        let setup = setup(Partitioning::None, &[&long, &short], &[], (BEGINNING, MINUTE));
        let mut left_alone = |_, _| Ok(());
        let mut experiment = Programs::new(&setup, &mut left_alone);
        experiment.lengths = vec![Some(Ns(1000)), Some(Ns(1))];
        let censored = [Arm::Treatment, Arm::Reference, Arm::Control]
            .map(|arm| experiment.run(open(Sharing::InterCore, 0), arm, &[1]).unwrap().unwrap()[1]);
        assert_eq!(censored, [1.0, 0.0, 0.0]);
    }
}
