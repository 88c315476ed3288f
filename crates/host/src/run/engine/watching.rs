//! Watches a run: jobs are released, observed and checked against their requirements, until the time is over or something ends the run.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;

use isochrome_model::running::{JobRecord, Limit, Requirement, Violation};
use isochrome_model::taskset::programs::Jobs;
use isochrome_model::units::{CpuId, Ns};
use rustix::time::{ClockId, clock_gettime};

use super::memory::{MEMORY_SLACK, copies_of_files, own_memory};
use super::session::{Session, Started};
use super::{BATCH, OnViolation};
use crate::error::without_hint;
use crate::interrupt;
use crate::machine::sysfs::Sysfs;
use crate::run::error::RunError;
use crate::run::gaps::WatchBeside;
use crate::run::marks::{Edge, Mark, MarkReader};
use crate::run::planned::Planned;
use crate::run::releases::{LATE_MAX, MessageDriven, ReleaseMessage, release};
use crate::sched::EventKind;
use crate::sched::jobs::events::JobEvents;
use crate::sched::jobs::{JobTracker, Observation, Observed};
use crate::sys::clock::monotonic;
use crate::sys::launch;

/// Minimum time between two checks of the memory of programs.
const MEMORY_CHECK_INTERVAL: Ns = Ns(100_000_000);

/// Time that is added to four periods to get the age at which a job counts as never completed. A hypervisor may withhold a CPU for several
/// hundred ms, and that is not a failure of the program. A program that never sleeps must be ended before it has spent the 0.95 s of a second
/// after which the kernel stops all real-time programs (kernel.sched_rt_runtime_us).
const OVERDUE: Ns = Ns(500_000_000);

/// Maximum number of violations that are recorded with all details.
const DETAILED_MAX: usize = 20;

/// Signal to a program whose job exceeded a limit, if requested.
const SIGUSR1: i32 = 10;

/// Returns the age, in ns, at which a job counts as never completed.
fn patience(requirement: &Requirement) -> u64 {
    4 * requirement.period.0 + OVERDUE.0
}

/// Makes `watch` track the jobs of `task`, which `thread` executes.
fn follow(watch: &mut JobTracker, task: usize, planned: &Planned, thread: i32) {
    // Programs of a CPU are in the order of their priorities. Under SCHED_DEADLINE any job can delay any other, so all have the same rank.
    let rank = if planned.scheduling.is_some_and(|it| it.is_deadline()) { 0 } else { task };
    watch.follow(task, thread, planned.program.jobs, planned.cpu, rank);
}

/// Tells the releasing thread on drop that the run is over, also when a panic unwinds.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Session<'_, '_> {
    /// Watches the programs until the run is over. Returns the length of the run from the first release, and the message-driven programs.
    pub(super) fn watch(
        &mut self,
        events: &mut JobEvents,
        cpus: &[CpuId],
        threads: &[Option<i32>],
        message_driven: Vec<MessageDriven>,
    ) -> Result<(Ns, Vec<MessageDriven>), RunError> {
        let hypervisor = Sysfs::system().is_virtual();
        let mut watch = JobTracker::new(self.started.len(), cpus, self.begin, events.are_counted(), hypervisor);
        for (task, thread) in threads.iter().enumerate() {
            if let Some(thread) = thread.filter(|_| !self.started[task].gone) {
                follow(&mut watch, task, &self.request.programs[task], thread);
            }
        }
        let (over, (tell, heard)) = (AtomicBool::new(false), mpsc::channel());
        let first = self.begin;
        let cpu_time = |of: ClockId| {
            let time = clock_gettime(of);
            time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
        };
        let elsewhere = crate::machine::setting::allowed_cpus()?.into_iter().find(|cpu| !cpus.contains(cpu));
        let cpu_before = cpu_time(ClockId::ProcessCPUTime);
        let (until, (message_driven, releases)) = std::thread::scope(|scope| {
            let over = Over(&over);
            let releasing = (!message_driven.is_empty()).then(|| {
                let over = over.0;
                scope.spawn(move || {
                    let message_driven = release(message_driven, first, elsewhere, over, &tell);
                    (message_driven, Ns(cpu_time(ClockId::ThreadCPUTime)))
                })
            });
            let until = self.batches(events, &mut watch, &heard);
            drop(over);
            // A panic of the releasing thread has been reported already, and no programs are returned.
            (until, releasing.and_then(|thread| thread.join().ok()).unwrap_or_default())
        });
        self.watches.values().for_each(WatchBeside::stop);
        self.overhead.tool_cpu = Ns(cpu_time(ClockId::ProcessCPUTime) - cpu_before);
        self.overhead.release_cpu = releases;
        self.overhead.elapsed = self.since_begin();
        let marks = self.started.iter().filter_map(|started| started.marks.as_ref());
        self.overhead.lost = events.lost() + marks.map(MarkReader::lost).sum::<u64>();
        let until = until?;
        let duration = Ns(until.0.saturating_sub(self.begin.0)).min(self.request.length);
        for message in heard.try_iter() {
            self.hear_after(message, Ns(self.begin.0 + duration.0));
        }
        for task in 0..self.started.len() {
            if self.wakes_itself(task) && !self.started[task].gone {
                self.clocks[task].end(duration, &mut self.releases[task]);
            }
        }
        Ok((duration, message_driven))
    }

    /// Processes events in batches until the run is over. Returns the time until which all events have been processed.
    fn batches(
        &mut self,
        events: &mut JobEvents,
        watch: &mut JobTracker,
        heard: &mpsc::Receiver<ReleaseMessage>,
    ) -> Result<Ns, RunError> {
        let (mut observations, mut jobs) = (Vec::<Observation>::new(), Vec::new());
        let mut horizon = Ns(0);
        let mut checked = Ns(0);
        let mut lost = events.lost();
        let end = Ns(self.begin.0 + self.request.length.0);
        let requirements = self.request.programs.iter().filter_map(|planned| planned.requirement.as_ref());
        let patience = requirements.map(patience).max().unwrap_or(0);
        loop {
            std::thread::sleep(BATCH);
            let now = monotonic();
            let over = self.stop || interrupt::interrupted() || self.started.iter().all(|one| one.gone);
            let awaited =
                || now.0 < end.0 + patience && (0..self.started.len()).any(|task| self.pending(task, watch).is_some());
            let last = over || (now >= end && !awaited());
            let waiting = observations.len();
            self.overhead.events += events.drain(&mut observations)?;
            if events.lost() > lost {
                lost = events.lost();
                watch.lose();
            }
            for observation in &observations[waiting..] {
                if let Observed::Scheduler(_, EventKind::Fork { parent, child }) = observation.what {
                    self.forked(parent, child);
                }
            }
            for message in heard.try_iter() {
                self.hear(message, &mut observations);
            }
            self.read_marks(watch, &mut observations);
            // All events from before the previous batch was read have arrived by now.
            observations.sort_by_key(|observation| observation.at);
            let ripe = if last { observations.len() } else { observations.partition_point(|one| one.at < horizon) };
            for observation in observations.drain(..ripe) {
                watch.note(observation);
            }
            // All events before `known` have been processed.
            let known = std::mem::replace(&mut horizon, now);
            let pending: Vec<_> =
                (0..self.started.len()).map(|task| self.pending(task, watch).filter(|_| last)).collect();
            if last {
                self.unfinished(now, watch);
                watch.lose();
            }
            watch.take(&mut jobs);
            for job in jobs.drain(..) {
                self.complete(&job, watch);
            }
            if self.begins.is_none() && now >= self.begin {
                self.begins = Some(self.placements());
            }
            if last {
                for (task, pending) in pending.into_iter().enumerate() {
                    let Some((release, _)) = pending else { continue };
                    self.releases[task].unfinished += 1;
                    self.woke(task, Ns(release.0 - self.begin.0));
                }
                self.note_ends();
                return Ok(now);
            }
            self.overdue(known, watch);
            self.note_ends();
            if now.0 >= checked.0 + MEMORY_CHECK_INTERVAL.0 {
                checked = now;
                self.check_memory();
            }
            for task in 0..self.started.len() {
                if self.started[task].gone {
                    watch.forget(task);
                }
            }
        }
    }

    fn hear(&mut self, message: ReleaseMessage, observations: &mut Vec<Observation>) {
        match message {
            ReleaseMessage::Released { task, due, at, written, waited } => {
                // A late write by this program is not charged to the task; waiting for the task's previous job is.
                let release = if waited { due } else { at };
                if !waited {
                    let late = &mut self.overhead.release_late_max;
                    *late = (*late).max(Ns(at.0.saturating_sub(due.0)));
                }
                self.releases[task].seen += u64::from(release.0 < self.begin.0 + self.request.length.0);
                observations.push(Observation { at, what: Observed::Released(task, release) });
                if written.0 - at.0 > LATE_MAX.0 {
                    observations.push(Observation { at: written, what: Observed::HeldUp(task, at) });
                }
            }
            ReleaseMessage::Skipped { task, due, at } => {
                self.releases[task].skipped += u64::from(due.0 < self.begin.0 + self.request.length.0);
                self.overhead.releases_skipped += 1;
                self.overhead.held_up_max = self.overhead.held_up_max.max(Ns(at.0 - due.0));
            }
            // These messages arrive only after the run is over.
            ReleaseMessage::Unwritten { .. } => {}
            ReleaseMessage::Answered { task, at } => {
                observations.push(Observation { at, what: Observed::Answered(task) })
            }
            ReleaseMessage::Failed { task, error } => {
                self.note_ends();
                self.give_up(task, without_hint(&error));
            }
        }
    }

    /// Counts releases before `until` that are reported after the last batch of events.
    fn hear_after(&mut self, message: ReleaseMessage, until: Ns) {
        match message {
            ReleaseMessage::Released { task, due, at, waited, .. } => {
                let release = if waited { due } else { at };
                let counts = release < until;
                self.releases[task].seen += u64::from(counts);
                self.releases[task].unfinished += u64::from(counts);
            }
            ReleaseMessage::Skipped { task, due, .. } => {
                self.releases[task].skipped += u64::from(due < until);
                self.overhead.releases_skipped += u64::from(due < until);
            }
            ReleaseMessage::Unwritten { task, due } => self.releases[task].unwritten += u64::from(due < until),
            ReleaseMessage::Answered { .. } | ReleaseMessage::Failed { .. } => {}
        }
    }

    fn read_marks(&mut self, watch: &mut JobTracker, observations: &mut Vec<Observation>) {
        let mut marks: Vec<Mark> = Vec::new();
        for (task, started) in self.started.iter_mut().enumerate() {
            let Some(reader) = &mut started.marks else { continue };
            reader.read(&mut marks);
            for Mark { at, thread, edge } in marks.drain(..) {
                // The marks show which thread executes the jobs.
                if watch.thread(task) != Some(thread as i32) {
                    follow(watch, task, &self.request.programs[task], thread as i32);
                }
                let what = if edge == Edge::Begin { Observed::Begins(task) } else { Observed::Ends(task) };
                observations.push(Observation { at, what });
            }
        }
    }

    fn complete(&mut self, job: &JobRecord, watch: &JobTracker) {
        if job.release >= self.request.length {
            return;
        }
        let Some(requirement) = &self.request.programs[job.task].requirement else { return };
        let limits = requirement.violated_by(job.response(), job.execution);
        self.woke(job.task, job.release);
        if let Err(error) = (self.hooks.record)(job) {
            self.unrecorded.get_or_insert(error);
            self.stop = true;
        }
        if !limits.is_empty() && self.reported.get(&job.task) != Some(&job.instance) {
            self.violated(job, limits, watch);
        }
    }

    /// Whether `task` has a timing requirement and releases its own jobs.
    fn wakes_itself(&self, task: usize) -> bool {
        let planned = &self.request.programs[task];
        planned.requirement.is_some() && planned.program.jobs != Jobs::Line
    }

    /// Counts a release of `task` if the task wakes itself. Calls must be in the order of the releases. Releases by lines are counted when the
    /// lines are written.
    fn woke(&mut self, task: usize, release: Ns) {
        if self.wakes_itself(task) {
            self.clocks[task].count(release, &mut self.releases[task]);
        }
    }

    fn violated(&mut self, job: &JobRecord, limits: Vec<Limit>, watch: &JobTracker) {
        if self.violations.len() < DETAILED_MAX {
            let before = Ns(job.release.0.saturating_sub(job.response().0 / 2));
            self.violations.push(Violation {
                task: self.names[job.task].clone(),
                instance: job.instance,
                limits,
                release: job.release,
                response: job.response(),
                execution: job.execution,
                steal_time: job.steal_time,
                timeline: watch.timeline(job.task, before, job.completion, &self.names),
            });
        }
        if self.request.watches_gaps {
            let (cpu, begin) = (self.request.programs[job.task].cpu, self.begin);
            self.watches.entry(cpu).or_insert_with(|| WatchBeside::begin(cpu, begin));
        }
        match self.request.on_violation {
            OnViolation::Trace => {}
            OnViolation::Signal => {
                let _ = launch::send(self.started[job.task].pid.0, SIGUSR1);
            }
            OnViolation::Stop => self.stop = true,
        }
    }

    /// Returns the release time and the number of the incomplete job of `task`; `None` if there is no such job, or if it does not count.
    fn pending(&self, task: usize, watch: &JobTracker) -> Option<(Ns, u64)> {
        let counts = self.request.programs[task].requirement.is_some() && !self.started[task].gone;
        let end = Ns(self.begin.0 + self.request.length.0);
        watch.pending(task).filter(|(release, _)| counts && *release < end)
    }

    /// Records a failure for each task whose job is not complete at the end but exceeds a limit already, because no record of this job will
    /// follow.
    fn unfinished(&mut self, now: Ns, watch: &JobTracker) {
        for task in 0..self.started.len() {
            let Some(requirement) = &self.request.programs[task].requirement else { continue };
            let Some((release, instance)) = self.pending(task, watch) else { continue };
            let response = Ns(now.0.saturating_sub(release.0));
            if let Some(limit) = requirement.violated_by(response, Ns(0)).first() {
                let since = response.0 as f64 / 1e6;
                self.fail(task, format!("its job {instance} was not complete at the end, {since:.1} ms after its release, which exceeds its {limit}"));
            }
        }
    }

    /// Reports incomplete jobs that exceed a limit already, and kills programs that never sleep or do not complete a job in time.
    fn overdue(&mut self, now: Ns, watch: &mut JobTracker) {
        for task in 0..self.started.len() {
            if self.started[task].gone {
                continue;
            }
            let Some(requirement) = &self.request.programs[task].requirement else { continue };
            if let Some((release, instance)) = self.pending(task, watch) {
                let response = Ns(now.0.saturating_sub(release.0));
                let limits = requirement.violated_by(response, Ns(0));
                if !limits.is_empty() && self.reported.get(&task) != Some(&instance) {
                    self.reported.insert(task, instance);
                    let release = Ns(release.0 - self.begin.0);
                    let completion = Ns(release.0 + response.0);
                    let job = JobRecord { task, instance, release, completion, ..JobRecord::default() };
                    self.violated(&job, limits, watch);
                }
            }
            let patience = patience(requirement);
            if let Some(awake) = watch.awake(task, now).filter(|awake| awake.0 > patience) {
                let what =
                    format!("has not slept for {:.0} ms and keeps the CPU from the others", awake.0 as f64 / 1e6);
                self.give_up(task, what);
            } else if let Some((release, _)) = self
                .pending(task, watch)
                // A job that waits for the CPU is late because of other tasks.
                .filter(|(release, _)| watch.asleep(task) && now.0 > release.0 + patience)
            {
                let since = (now.0 - release.0) as f64 / 1e6;
                self.give_up(task, format!("has not completed a job for {since:.0} ms"));
            }
        }
    }

    fn forked(&mut self, parent: i32, child: i32) {
        let of = |started: &Started| Path::new(&format!("/proc/{}/task/{parent}", started.pid.0)).exists();
        let Some(task) = self.started.iter().position(of) else { return };
        // A new thread of the same program is not another process.
        if !Path::new(&format!("/proc/{}/task/{child}", self.started[task].pid.0)).exists() {
            self.fail(task, format!("started another process ({child}), which is not part of the plan"));
        }
    }

    fn check_memory(&mut self) {
        for task in 0..self.started.len() {
            let started = &mut self.started[task];
            let Some(memory) = own_memory(started.pid).filter(|_| !started.gone) else { continue };
            started.memory = started.memory.max(memory);
            let declared = self.request.programs[task].program.memory;
            let allowed = declared.0 + MEMORY_SLACK.0;
            // Copies are counted only if they matter, because counting takes longer.
            let too_much = || memory.0 > allowed + copies_of_files(started.pid).0;
            if declared.0 > 0 && memory.0 > allowed && too_much() {
                self.give_up(
                    task,
                    format!("has {memory} of memory of its own, more than the {declared} it was planned with"),
                );
            }
        }
    }
}
