//! Unmodified programs, alone and beside others, measured: the experiment of [Kim2013, §3]. What is measured and what follows from it is in
//! [`isochrome_model::interference`].
//!
//! How far an unmodified program is cannot be seen from outside, but its end can: a run is timed from a *mark*, when the program has had a CPU for
//! so long, to its end, by the time for which it had a CPU. At the mark it stands still (SIGSTOP) until everybody is ready. What moving its pages
//! cost before is not part of it.
//!
//! *Turns* are given by this program, with SCHED_FIFO: on the shared CPU all wait at a low priority, and the one whose turn it is has a higher one
//! for as long. SCHED_DEADLINE, which promises the same, admits no program that is bound to one CPU. Where nobody has a turn this program spins,
//! which is the control as well; a program that waits in its turn leaves the rest of it to the others.
//!
//! Co-runners end too. Others of them, started and moved to their colors beforehand, stand still until they are needed. One that fails, or ends much
//! sooner than it does alone, was no co-runner: the run does not count.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use isochrome_model::interference::{Block, Condition, Run, Sharing};
use isochrome_model::taskset::programs::Partitioning;
use isochrome_model::units::{CpuId, Cycles, Ns};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Pid as RawPid, WaitId, WaitIdOptions, waitid};
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::counters::Counters;
use crate::error::HostError;
use crate::events::{LevelEvents, events_of_levels};
use crate::interrupt;
use crate::jobs::JobError;
use crate::jobs::line::command;
use crate::recolor::RecolorError;
use crate::recolor::process::Pid;
use crate::setting::RealtimeRequest;
use crate::sys::clock::{self, process_cpu};
use crate::sys::launch::{self, End, Launch};
use crate::sys::scheduling::Scheduling;

/// Priority of programs that have a CPU: below that of this one, which gives turns.
const RUNNING: u8 = 20;
/// Priority of programs whose turn it is not.
const WAITING: u8 = 10;
/// After which part of its warm-up a program is moved to its colors: by then it has most of its memory.
const WARM_UP_SHARE: u64 = 4;
/// Between two looks at how far a program is.
const GLANCE: Duration = Duration::from_micros(200);
/// How long a program may take to its mark.
const LIMIT: Duration = Duration::from_secs(20);
/// How much longer than alone a run may take before co-runners are used up.
const RESERVE: f64 = 1.5;
/// Co-runners of one program that stand ready, at most.
const READY_MAX: u64 = 16;
/// Programs that end within such a share of their time alone have not done the same.
const EARLY: f64 = 0.25;
/// Failures of a program one after the other that end the experiment.
const FAILURES_MAX: u32 = 3;
/// How much of what a program that failed has said last is told.
const SAID_BYTES: usize = 400;
/// SIGKILL, SIGCONT and SIGSTOP.
const KILL: i32 = 9;
const CONTINUE: i32 = 18;
const STOP: i32 = 19;

/// How much to run.
#[derive(Clone, Debug)]
pub struct InterferenceRequest<'a> {
    /// Command lines.
    pub programs: &'a [Vec<String>],
    /// Where a program is measured.
    pub cpu: CpuId,
    /// Where its co-runners run, if not there.
    pub others: &'a [CpuId],
    /// Length of a turn.
    pub turn: Ns,
    /// From a turn of a program to its next; a multiple.
    pub period: Ns,
    /// Time on a CPU before the mark.
    pub warm_up: Ns,
    /// What is measured.
    pub conditions: &'a [Condition],
    /// How long a program may take from its mark to its end, alone.
    pub limit: Ns,
    /// Whether programs may have real-time priorities. Turns need them.
    pub realtime: bool,
    /// By program, the file by which it joins the group that has its ways; none without ways.
    pub joins: &'a [PathBuf],
    /// Levels to count, by events that proved to count; none without counters.
    pub levels: &'a [LevelEvents],
    /// Blocks of each condition.
    pub blocks: usize,
    /// Seed of every random choice.
    pub seed: u64,
}

/// Moves the pages of a program, by its number, to its colors.
pub type Place<'a> = dyn FnMut(usize, Pid) -> Result<(), RecolorError> + 'a;

/// What was measured.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// Blocks in the order run.
    pub blocks: Vec<Block>,
    /// What kept runs, and so their blocks, from counting, in words: programs that failed.
    pub failures: Vec<String>,
}

/// A program that runs, or stands still at its mark. Dropped, it is ended with all that it started.
struct Player {
    name: String,
    pid: Pid,
    /// Its threads at the mark.
    threads: Vec<i32>,
    /// Time it had a CPU until then.
    mark: Ns,
    ended: bool,
    /// What it says to standard error: memory.
    said: File,
}

impl Player {
    /// Starts the program `words`, has it run until it has had `cpu` for the warm-up, and stops it. Meanwhile `place` moves its pages. `None` if
    /// it was interrupted.
    fn start(
        request: &InterferenceRequest<'_>,
        words: &[String],
        joins: Option<&PathBuf>,
        place: Option<&mut dyn FnMut(Pid) -> Result<(), RecolorError>>,
    ) -> Result<Option<Player>, HostError> {
        let name = words.join(" ");
        let failed = |source| JobError::Start { program: name.clone(), source };
        let launch = Launch {
            cpus: Some(vec![request.cpu.0]),
            scheduling: request.realtime.then(|| Scheduling::fifo(RUNNING)),
            attached: true,
            own_pid: Vec::new(),
            joins: joins
                .map(|path| File::options().write(true).open(path).map(Arc::new))
                .transpose()
                .map_err(failed)?
                .into_iter()
                .collect(),
            ..Launch::default()
        };
        let mut command = command(words).map_err(failed)?;
        launch.prepare(&mut command);
        let said = memfd_create("said", MemfdFlags::CLOEXEC).map_err(|error| failed(error.into()))?;
        let said = File::from(said);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(said.try_clone().map_err(failed)?);
        let child = command.spawn().map_err(failed)?;
        let pid = Pid(child.id() as i32);
        let mut player = Player { name, pid, threads: Vec::new(), mark: Ns(0), ended: false, said };
        let mut moving = 0;
        if let Some(place) = place {
            if !player.run_until(Ns(request.warm_up.0 / WARM_UP_SHARE), request.warm_up)? {
                return Ok(None);
            }
            let threads = pid.threads()?;
            let before = (player.cpu()?, player.cpu_of(&threads));
            place(pid)?;
            // Helpers that moved its pages were threads of it.
            let now = player.cpu()?;
            moving = (now.0 - before.0.0).saturating_sub(player.cpu_of(&threads).saturating_sub(before.1));
            // Else it would be timed from another instant than without colors.
            if now.0 > request.warm_up.0 + moving {
                let [took, warm_up] = [now.0 - moving, request.warm_up.0].map(|ns| ns as f64 / 1e6);
                let what = format!(
                    "had a CPU for {took:.0} ms until it was on its colors, longer than its warm-up of {warm_up:.0} ms"
                );
                return Err(player.unfit(what, "a longer --warm-up"));
            }
        }
        if !player.run_until(Ns(request.warm_up.0 + moving), request.warm_up)? {
            return Ok(None);
        }
        player.hold()?;
        player.threads = pid.threads()?;
        player.mark = player.cpu()?;
        if player.threads.is_empty() {
            let how = player.end()?.map_or_else(String::new, |(end, cpu)| {
                format!(" after {:.0} ms on a CPU ({})", cpu.0 as f64 / 1e6, player.last_words(end))
            });
            return Err(player.unfit(format!("ended at its mark{how}"), "another --warm-up"));
        }
        Ok(Some(player))
    }

    fn unfit(&self, what: String, hint: &'static str) -> HostError {
        JobError::Unfit { program: self.name.clone(), what, hint }.into()
    }

    fn pipe(&self, source: io::Error) -> HostError {
        JobError::Pipe { program: self.name.clone(), source }.into()
    }

    /// Time it has had a CPU so far.
    fn cpu(&self) -> Result<Ns, HostError> {
        process_cpu(self.pid.0).map_err(|source| self.pipe(source))
    }

    /// Time that `threads` have had a CPU so far, in ns.
    fn cpu_of(&self, threads: &[i32]) -> u64 {
        let time = |thread: &i32| -> Option<u64> {
            let text = self.pid.text(&format!("task/{thread}/schedstat")).ok()?;
            text.split_ascii_whitespace().next()?.parse().ok()
        };
        threads.iter().filter_map(time).sum()
    }

    /// How it ended, and what it said last.
    fn last_words(&self, end: End) -> String {
        let length = self.said.metadata().map_or(0, |about| about.len());
        let mut bytes = vec![0; SAID_BYTES.min(length as usize)];
        let begin = length - bytes.len() as u64;
        let read = self.said.read_at(&mut bytes, begin).unwrap_or(0);
        let said = String::from_utf8_lossy(&bytes[..read]);
        match said.trim() {
            "" => format!("{end}; it said nothing on standard error"),
            said => format!("{end}; on standard error: {said}"),
        }
    }

    /// What a run took, or why it does not count; `alone`: what it takes alone.
    fn judge(&self, end: End, cpu: Ns, alone: Ns) -> Result<Ns, String> {
        let took = Ns(cpu.0.saturating_sub(self.mark.0));
        if end != End::Code(0) {
            Err(format!("failed ({})", self.last_words(end)))
        } else if (took.0 as f64) < EARLY * alone.0 as f64 {
            let [took, alone] = [took, alone].map(|time| time.0 as f64 / 1e6);
            Err(format!(
                "ended {took:.1} ms behind its mark, and {alone:.1} ms when it ran alone ({})",
                self.last_words(end)
            ))
        } else {
            Ok(took)
        }
    }

    /// Whether it got there: it did not if there was an interrupt.
    fn run_until(&mut self, cpu: Ns, warm_up: Ns) -> Result<bool, HostError> {
        let begin = Instant::now();
        while self.cpu()? < cpu {
            if interrupt::interrupted() {
                return Ok(false);
            }
            if let Some((end, _)) = self.end()? {
                let hint = match end {
                    End::Code(0) => "a program that takes longer, or a shorter --warm-up",
                    _ => "run it by hand: it must end by itself with exit code 0",
                };
                let what =
                    format!("ended within its first {} ms on a CPU ({})", warm_up.0 as f64 / 1e6, self.last_words(end));
                return Err(self.unfit(what, hint));
            }
            if begin.elapsed() > LIMIT {
                let what = format!("has not had a CPU for {} ms after {LIMIT:?}", warm_up.0 as f64 / 1e6);
                return Err(self.unfit(what, "a program that computes, in a process of its own, on a CPU that is free"));
            }
            thread::sleep(GLANCE);
        }
        Ok(true)
    }

    /// Stops it, and waits until it has.
    fn hold(&mut self) -> Result<(), HostError> {
        let pid = WaitId::Pid(RawPid::from_raw(self.pid.0).expect("a process has a number"));
        let either = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        launch::send(-self.pid.0, STOP).map_err(|source| self.pipe(source))?;
        waitid(pid.clone(), either).map_err(|error| self.pipe(error.into()))?;
        // That it has stopped is told once; of one that has ended there is nothing to be told.
        let _ = waitid(pid, WaitIdOptions::STOPPED | WaitIdOptions::NOHANG);
        Ok(())
    }

    /// Lets it go on, on `cpu`.
    fn go_on(&self, cpu: CpuId, priority: Option<u8>) -> Result<(), HostError> {
        let mut set = CpuSet::new();
        set.set(cpu.0 as usize);
        for thread in &self.threads {
            // One that has ended since needs no CPU.
            let _ = sched_setaffinity(RawPid::from_raw(*thread), &set);
        }
        if let Some(priority) = priority {
            self.set_priority(priority);
        }
        launch::send(-self.pid.0, CONTINUE).map_err(|source| self.pipe(source))
    }

    /// Of all threads that it has now: it may have started some since its mark.
    fn set_priority(&self, priority: u8) {
        for thread in self.pid.threads().unwrap_or_default() {
            let _ = Scheduling::fifo(priority).apply_to(thread);
        }
    }

    /// Its end, and how long it had a CPU altogether.
    fn end(&mut self) -> Result<Option<(End, Ns)>, HostError> {
        let end = launch::ended(self.pid.0).map_err(|source| self.pipe(source))?;
        self.ended |= end.is_some();
        Ok(end)
    }
}

impl Drop for Player {
    fn drop(&mut self) {
        let _ = launch::send(-self.pid.0, KILL);
        if !self.ended {
            let pid = RawPid::from_raw(self.pid.0).expect("a process has a number");
            let _ = waitid(WaitId::Pid(pid), WaitIdOptions::EXITED);
        }
    }
}

/// Who is there beside the program that is measured.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Company {
    Nobody,
    Spinning,
    Programs,
}

/// Programs and who stands ready.
struct Stage<'r, 'p> {
    request: &'r InterferenceRequest<'r>,
    place: &'r mut Place<'p>,
    rng: fastrand::Rng,
    /// Time of a run alone, by program; 0 until it is known.
    lengths: Vec<Ns>,
    /// Co-runners at their mark or behind it, by program and what they have parts by.
    ready: Vec<(usize, Partitioning, Player)>,
    /// How often each program has failed since it last did not.
    failed: Vec<u32>,
    failures: Vec<String>,
}

impl Stage<'_, '_> {
    fn player(&mut self, program: usize, partitioning: Partitioning) -> Result<Option<Player>, HostError> {
        let (words, joins) = (&self.request.programs[program], self.request.joins.get(program));
        let mut place = |pid| (self.place)(program, pid);
        match partitioning {
            Partitioning::None => Player::start(self.request, words, None, None),
            Partitioning::Colors => Player::start(self.request, words, None, Some(&mut place)),
            Partitioning::Ways => Player::start(self.request, words, joins, None),
            Partitioning::Both => Player::start(self.request, words, joins, Some(&mut place)),
        }
    }

    /// What the run of `program` took that has ended so, or `None` where it does not count.
    ///
    /// Fails when it failed alone, or again and again.
    fn judge(&mut self, program: usize, player: &Player, (end, cpu): (End, Ns)) -> Result<Option<Ns>, HostError> {
        let alone = self.lengths[program];
        match player.judge(end, cpu, alone) {
            Ok(took) => {
                self.failed[program] = 0;
                Ok(Some(took))
            }
            Err(what) if alone.0 == 0 => {
                Err(player.unfit(what, "run it by hand: it must end by itself with exit code 0"))
            }
            Err(what) => {
                self.failed[program] += 1;
                if self.failed[program] >= FAILURES_MAX {
                    let hint = "run it twice at the same time by hand: programs that share files, ports or devices get into each other's way";
                    return Err(player.unfit(
                        format!("{what}: {FAILURES_MAX} times one after the other, and not when it ran alone"),
                        hint,
                    ));
                }
                self.failures.push(format!("{} {what}", player.name));
                Ok(None)
            }
        }
    }

    /// Has enough co-runners of `program` stand ready for a run of another one that takes `length` alone, unless it is interrupted.
    fn prepare(&mut self, program: usize, partitioning: Partitioning, length: Ns) -> Result<(), HostError> {
        let each = self.lengths[program].0.max(1);
        let enough = 1 + (RESERVE * length.0 as f64 / each as f64).ceil() as u64;
        if enough > READY_MAX {
            return Err(JobError::Unfit {
                program: self.request.programs[program].join(" "),
                what: format!("runs for {} ms, another one for {} ms", each as f64 / 1e6, length.0 as f64 / 1e6),
                hint: "programs of more equal length",
            }
            .into());
        }
        while (self.ready.iter().filter(|(of, has, _)| (*of, *has) == (program, partitioning)).count() as u64) < enough
        {
            let Some(player) = self.player(program, partitioning)? else { break };
            self.ready.push((program, partitioning, player));
        }
        Ok(())
    }

    fn next(&mut self, program: usize, partitioning: Partitioning) -> Option<Player> {
        let at = self.ready.iter().position(|(of, has, _)| (*of, *has) == (program, partitioning))?;
        Some(self.ready.remove(at).2)
    }

    /// One run; `None` if the co-runners were used up, somebody failed, or it was interrupted.
    fn run(&mut self, condition: Condition, company: Company) -> Result<Option<Run>, HostError> {
        let request = self.request;
        let Condition { sharing, program, partitioning } = condition;
        let mut others: Vec<usize> = (0..request.programs.len()).filter(|other| *other != program).collect();
        self.rng.shuffle(&mut others);
        if sharing == Sharing::InterCore {
            others.truncate(request.others.len());
        }
        if company == Company::Programs {
            let length = self.lengths[program];
            others.iter().try_for_each(|other| self.prepare(*other, partitioning, length))?;
        }
        let Some(mut subject) = self.player(program, partitioning)? else { return Ok(None) };
        let by_turns = sharing == Sharing::IntraCore && company != Company::Nobody;
        let mut mates: Vec<Option<Player>> = others.iter().map(|_| None).collect();
        if company == Company::Programs {
            for (mate, other) in mates.iter_mut().zip(&others) {
                *mate = self.next(*other, partitioning);
            }
        }
        let place_of = |mate: usize| match sharing {
            Sharing::InterCore => (request.others[mate], request.realtime.then_some(RUNNING)),
            Sharing::IntraCore => (request.cpu, Some(WAITING)),
        };
        // They count one thread. Of a program with more, or where they were there before and are not now, the run has none.
        let events = events_of_levels(request.levels);
        let counters = (!events.is_empty() && subject.threads.len() == 1)
            .then(|| Counters::of_thread(&events, subject.pid.0).ok())
            .flatten();
        let counted = counters.as_ref().and_then(|counters| counters.read().ok());
        for (at, mate) in mates.iter().enumerate() {
            if let Some(mate) = mate {
                let (cpu, priority) = place_of(at);
                mate.go_on(cpu, priority)?;
            }
        }
        subject.go_on(request.cpu, request.realtime.then_some(if by_turns { WAITING } else { RUNNING }))?;

        let slots = if by_turns { (request.period.0 / request.turn.0.max(1)) as usize } else { 1 };
        let turn = Duration::from_nanos(request.turn.0);
        // By turns it takes as many times as long, and beside others it may take twice as long.
        let times = if company == Company::Nobody { 1 } else { 2 * slots as u64 };
        let limit = Duration::from_nanos(request.limit.0.saturating_mul(times));
        let spinning = (sharing == Sharing::InterCore && company == Company::Spinning) as usize * others.len();
        let over = AtomicBool::new(false);
        let mut alone = true;
        let total = thread::scope(|scope| -> Result<Option<Ns>, HostError> {
            for cpu in &request.others[..spinning] {
                scope.spawn(|| {
                    let settings = RealtimeRequest::new().pin(*cpu);
                    let _settings = if request.realtime { settings.fifo(RUNNING) } else { settings }.apply();
                    while !over.load(Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                });
            }
            let mut turns = || -> Result<Option<Ns>, HostError> {
                let begin = Instant::now();
                let mut until = begin;
                for slot in (0..slots).cycle() {
                    until += turn;
                    let left = || until.saturating_duration_since(Instant::now());
                    let whose = if slot == 0 { Some(&subject) } else { mates.get(slot - 1).and_then(Option::as_ref) };
                    match whose {
                        Some(player) => {
                            if by_turns {
                                player.set_priority(RUNNING);
                            }
                            thread::sleep(left());
                            if by_turns {
                                player.set_priority(WAITING);
                            }
                        }
                        None => {
                            let ticks = left().as_nanos() as u64 * clock::rate_hz() / 1_000_000_000;
                            clock::spin_until(Cycles(clock::now().0 + ticks));
                        }
                    }
                    alone &= counters.is_none() || subject.pid.threads().map_or(true, |threads| threads.len() <= 1);
                    // Who failed before the program ended was not beside it.
                    for (at, mate) in mates.iter_mut().enumerate() {
                        let Some(ended) = mate.as_mut() else { continue };
                        if let Some(end) = ended.end()? {
                            if self.judge(others[at], ended, end)?.is_none() {
                                return Ok(None);
                            }
                            *mate = self.next(others[at], partitioning);
                            let Some(mate) = mate else { return Ok(None) };
                            let (cpu, priority) = place_of(at);
                            mate.go_on(cpu, priority)?;
                        }
                    }
                    if let Some(end) = subject.end()? {
                        return self.judge(program, &subject, end);
                    }
                    if interrupt::interrupted() {
                        return Ok(None);
                    }
                    if begin.elapsed() > limit {
                        let what = format!("has not ended after {:.0} s", limit.as_secs_f64());
                        return Err(subject.unfit(what, "a program that ends by itself, or a longer --limit"));
                    }
                }
                unreachable!("a cycle of one slot or more does not end")
            };
            let total = turns();
            over.store(true, Ordering::Relaxed);
            total
        })?;
        for (mate, other) in mates.into_iter().zip(&others) {
            if let Some(mut mate) = mate.filter(|mate| !mate.ended) {
                mate.hold()?;
                self.ready.insert(0, (*other, partitioning, mate));
            }
        }
        let counts = counters.zip(counted).filter(|_| alone).and_then(|(counters, before)| {
            Some(counters.between(&before, &counters.read().ok()?).ok()?.values().to_vec())
        });
        let asked = |counts: Vec<u64>| request.levels.iter().map(|level| level.asked(&events, &counts)).collect();
        Ok(total.map(|cpu| Run { cpu, asked: counts.map(asked).unwrap_or_default() }))
    }
}

/// The conditions that can be measured with so many CPUs for others, with real-time priorities or without; programs share everything, or have
/// parts of their own by one of `parts`.
pub fn conditions(programs: usize, others: usize, realtime: bool, parts: &[Partitioning]) -> Vec<Condition> {
    let mut conditions = Vec::new();
    for sharing in [Sharing::InterCore, Sharing::IntraCore] {
        let possible = match sharing {
            Sharing::InterCore => others > 0,
            Sharing::IntraCore => realtime,
        };
        for program in (0..programs).filter(|_| possible) {
            for partitioning in [Partitioning::None].iter().chain(parts) {
                conditions.push(Condition { sharing, program, partitioning: *partitioning });
            }
        }
    }
    conditions
}

/// Measures. The calling thread is to run on the CPU of the request, with a real-time priority if programs are to have one.
///
/// `progress` is called after each block with the number done and of all; an interrupt ends the run, and the block under way is left out, as is one whose
/// co-runners were used up or failed.
///
/// Fails when a program cannot be measured so: [`JobError::Unfit`].
pub fn interference(
    request: &InterferenceRequest<'_>,
    place: &mut Place<'_>,
    mut progress: impl FnMut(usize, usize),
) -> Result<Measured, HostError> {
    let mut stage = Stage {
        request,
        place,
        rng: fastrand::Rng::with_seed(request.seed),
        lengths: vec![Ns(0); request.programs.len()],
        ready: Vec::new(),
        failed: vec![0; request.programs.len()],
        failures: Vec::new(),
    };
    for program in 0..request.programs.len() {
        let alone = Condition { sharing: Sharing::InterCore, program, partitioning: Partitioning::None };
        let Some(run) = stage.run(alone, Company::Nobody)? else { return Ok(Measured::default()) };
        stage.lengths[program] = run.cpu;
    }
    let mut order: Vec<Condition> = request.conditions.iter().flat_map(|it| vec![*it; request.blocks]).collect();
    stage.rng.shuffle(&mut order);
    let (total, mut blocks) = (order.len(), Vec::with_capacity(order.len()));
    for (done, condition) in order.into_iter().enumerate() {
        let mut companies = [Company::Nobody, Company::Programs, Company::Spinning];
        if stage.rng.bool() {
            companies.reverse();
        }
        let mut runs = [None, None, None];
        for company in companies {
            runs[company as usize] = stage.run(condition, company)?;
            // Without one of its runs the block is left out.
            if runs[company as usize].is_none() {
                break;
            }
        }
        if let [Some(alone), Some(control), Some(together)] = runs {
            blocks.push(Block { condition, alone, control, together });
        }
        progress(done + 1, total);
        if interrupt::interrupted() {
            break;
        }
    }
    Ok(Measured { blocks, failures: stage.failures })
}

#[cfg(test)]
mod tests {
    use isochrome_model::interference::Asked;

    use super::*;
    use crate::events::PAGE_FAULTS;

    #[test]
    fn what_cannot_be_shared_is_left_out() {
        assert_eq!(conditions(4, 1, true, &[Partitioning::Colors, Partitioning::Ways]).len(), 2 * 4 * 3);
        let open = |it: &Condition| it.partitioning == Partitioning::None;
        assert!(conditions(3, 0, true, &[]).iter().all(|it| it.sharing == Sharing::IntraCore && open(it)));
        assert!(conditions(3, 2, false, &[]).iter().all(|it| it.sharing == Sharing::InterCore));
        assert!(conditions(3, 0, false, &[Partitioning::Ways]).is_empty());
    }

    /// The loop is the shell's own work, or that of a child for which it waits.
    fn cpu_of_a_shell_that_ends(by_a_child: bool) -> Ns {
        let work = "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done; exit 3";
        let script = if by_a_child { format!("sh -c '{work}'; exit 3") } else { work.to_owned() };
        let mut child = std::process::Command::new("sh").args(["-c", &script]).spawn().unwrap();
        let pid = child.id() as i32;
        let (end, cpu) = loop {
            if let Some(ended) = launch::ended(pid).unwrap() {
                break ended;
            }
            thread::sleep(GLANCE);
        };
        assert_eq!(end, End::Code(3));
        assert!(child.wait().is_err(), "its end is taken once");
        cpu
    }

    #[test]
    fn what_the_children_of_a_program_do_is_not_its_own_time() {
        let (own, childs) = (cpu_of_a_shell_that_ends(false), cpu_of_a_shell_that_ends(true));
        assert!(own.0 > 5_000_000 && childs.0 < own.0 / 4, "{own:?} {childs:?}");
    }

    /// What becomes of shell scripts.
    fn tried(scripts: &[&str], levels: &[LevelEvents], warm_up: Ns, limit: Ns) -> Result<Measured, String> {
        let programs: Vec<Vec<String>> =
            scripts.iter().map(|script| ["sh", "-c", script].map(str::to_owned).to_vec()).collect();
        let cpus = crate::setting::allowed_cpus().unwrap();
        // With one CPU only they are beside it on that.
        let others = [cpus[cpus.len() - 1]];
        let request = InterferenceRequest {
            programs: &programs,
            cpu: cpus[0],
            others: &others,
            turn: Ns(1_000_000),
            period: Ns(2_000_000),
            warm_up,
            conditions: &conditions(programs.len(), others.len(), false, &[]),
            limit,
            realtime: false,
            joins: &[],
            levels,
            blocks: 2,
            seed: 1,
        };
        interference(&request, &mut |_, _| Ok(()), |_, _| {}).map_err(|error| error.to_string())
    }

    const SECOND: Ns = Ns(1_000_000_000);
    const MINUTE: Ns = Ns(60_000_000_000);
    /// Behind a mark at its beginning.
    const LOOP: &str = "i=0; while [ $i -lt 40000 ]; do i=$((i+1)); done";
    const BEGINNING: Ns = Ns(2_000_000);

    #[test]
    fn a_program_that_ends_before_its_mark_is_named_with_what_helps() {
        let error = tried(&["echo too quick >&2"], &[], SECOND, SECOND).unwrap_err();
        assert!(
            error.contains("ended within its first 1000 ms on a CPU (exit code 0; on standard error: too quick)"),
            "{error}"
        );
        assert!(error.contains("--warm-up"), "{error}");
        let error = tried(&["exit 7"], &[], SECOND, SECOND).unwrap_err();
        assert!(error.contains("exit code 7; it said nothing") && error.contains("run it by hand"), "{error}");
    }

    #[test]
    fn a_program_that_fails_alone_or_never_ends_is_named_with_what_helps() {
        let error = tried(&[&format!("{LOOP}; echo no file of that name >&2; exit 3")], &[], BEGINNING, MINUTE);
        let error = error.unwrap_err();
        assert!(error.contains("failed (exit code 3; on standard error: no file of that name)"), "{error}");
        let error = tried(&["while :; do :; done"], &[], BEGINNING, Ns(100_000_000)).unwrap_err();
        assert!(error.contains("has not ended after 0 s") && error.contains("--limit"), "{error}");
    }

    #[test]
    fn a_run_whose_co_runner_fails_does_not_count_and_one_that_always_fails_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let been = folder.path().join("been");
        // Not the first time, and then at its end.
        let fails = format!("{LOOP}; [ -e {0} ] && {{ echo {0} is there >&2; exit 5; }}; touch {0}", been.display());
        let long = format!("{LOOP}; {LOOP}; {LOOP}");
        let error = tried(&[&long, &fails], &[], BEGINNING, MINUTE).unwrap_err();
        assert!(error.contains("exit code 5") && error.contains("is there): 3 times one after the other"), "{error}");
        assert!(error.contains("twice at the same time"), "{error}");
        // Once only.
        let once = format!(
            "{LOOP}; [ -e {0}.2 ] || {{ [ -e {0}.1 ] && touch {0}.2 && exit 5; touch {0}.1; }}; exit 0",
            been.display()
        );
        let measured = tried(&[&long, &once], &[], BEGINNING, MINUTE).unwrap();
        assert!(matches!(&measured.failures[..], [failure] if failure.contains("failed (exit code 5")), "{measured:?}");
        assert!(measured.blocks.len() < 4, "{measured:?}");
    }

    #[test]
    fn a_program_that_does_less_than_alone_has_failed() {
        let player = |mark| Player {
            name: String::new(),
            // Of nobody: nothing is ended when it is dropped.
            pid: Pid(i32::MAX),
            threads: Vec::new(),
            mark: Ns(mark),
            ended: true,
            said: File::open("/dev/null").unwrap(),
        };
        assert_eq!(player(10).judge(End::Code(0), Ns(110), Ns(100)), Ok(Ns(100)));
        assert_eq!(player(10).judge(End::Code(0), Ns(36), Ns(100)), Ok(Ns(26)));
        assert!(player(10).judge(End::Code(0), Ns(34), Ns(100)).unwrap_err().contains("when it ran alone"));
        assert!(player(10).judge(End::Signal(11), Ns(110), Ns(100)).unwrap_err().contains("signal 11"));
    }

    /// By an event that the kernel counts on any machine, in place of those of caches.
    #[test]
    fn what_a_program_did_from_its_mark_to_its_end_is_counted() {
        let faults = LevelEvents { level: 1, accesses: vec![PAGE_FAULTS], misses: vec![PAGE_FAULTS] };
        // The shell's own, in one thread.
        let measured = tried(&[LOOP, LOOP], &[faults], BEGINNING, MINUTE).unwrap();
        for run in measured.blocks.iter().flat_map(|block| [&block.alone, &block.control, &block.together]) {
            assert!(matches!(run.asked[..], [Asked { hits: 0, .. }]), "{run:?}");
        }
        assert!(!measured.blocks.is_empty());
    }
}
