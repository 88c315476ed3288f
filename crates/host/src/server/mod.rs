//! The memory server: keeps the programs of a policy on the colors of their classes. [Liedtke1997, §5.1]
//!
//! Every tenth of a second it looks which processes there are, and decides by the policy which class each belongs to. Each member is moved
//! when it is new, and inspected again when the kernel's counters say that its pages may have other frames.
//!
//! The server holds the colors that classes have for themselves in the ledger, so nobody else gets them. Members run on as they are when the
//! server ends.

pub mod facts;
pub mod socket;
mod vitals;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use isochrome_model::policy::{self, AssignError, Assigned, Belongs, Facts, Policy};
use isochrome_model::units::{Bytes, Color, format_list};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use self::facts::{Users, facts, processes};
use self::vitals::{Vitals, moved_by_the_kernel};
use crate::color::ColorError;
use crate::color::known::Verified;
use crate::color::ledger::{self, Owner};
use crate::coloring::{Coloring, Lease};
use crate::error::without_hint;
use crate::process::Pid;
use crate::recolor::RecolorError;
use crate::recolor::watch::{Tally, Watch};
use crate::runtime;

/// Time between two looks at which processes there are.
const LOOK: Duration = Duration::from_millis(100);
/// Time after which the decision about a process is made again: it may have executed another program, or have been put into another group.
const DECIDE_AGAIN: Duration = Duration::from_secs(5);
/// Age of a process below which the decision is made again at every look.
const FRESH: Duration = Duration::from_secs(3);
/// Time between two inspections of a member while it grows, and while nothing happens.
const GROWING: Duration = Duration::from_millis(100);
const IDLE: Duration = Duration::from_secs(1);
/// Time after which a member is inspected though nothing seems to have happened.
const INSPECT_ANYWAY: Duration = Duration::from_secs(60);
/// Longest time between two attempts to move a member that cannot be moved.
const REST_MAX: Duration = Duration::from_secs(60);

/// Error of the server.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The classes cannot have their colors.
    #[error("{0}")]
    Assign(#[from] AssignError),
    /// The colors cannot be had.
    #[error("{0}")]
    Color(#[from] ColorError),
}

/// A server with a policy in force.
pub struct Server {
    /// All colors.
    all: Coloring,
    policy: Policy,
    classes: Vec<ClassColors>,
    /// The colors that classes have for themselves, in the ledger; `None` if no class has any.
    lease: Option<Lease>,
    users: Users,
    decisions: BTreeMap<i32, Decision>,
    members: BTreeMap<i32, Member>,
    next_look: Instant,
}

/// A class with its colors.
struct ClassColors {
    assigned: Assigned,
    coloring: Coloring,
}

/// Decision about a process.
struct Decision {
    belongs: Belongs,
    at: Instant,
    /// Time until which the decision is made again at every look.
    fresh_until: Instant,
}

/// A process that is kept on the colors of its class.
struct Member {
    name: String,
    started: u64,
    /// Index of its class.
    class: usize,
    since: Instant,
    watch: Watch,
    vitals: Option<Vitals>,
    inspected: Option<Instant>,
    next: Instant,
    /// Number of attempts in a row that failed.
    failures: u32,
    trouble: Option<String>,
    seconds_to_colors: Option<f64>,
    verified: Option<Verified>,
}

/// State of the server, as it tells clients.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Status {
    /// Cache level of the colors.
    pub level: u8,
    /// Number of colors of the level.
    pub colors: u32,
    /// Classes, in the order of the policy.
    pub classes: Vec<ClassStatus>,
    /// Number of processes that are left alone: they belong to no class, or must not be moved.
    pub left_alone: usize,
}

/// State of a class.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ClassStatus {
    /// Name of the class.
    pub class: String,
    /// Colors of the class, as a list such as `0-3,8`.
    pub colors: String,
    /// Whether no other class has them.
    pub exclusive: bool,
    /// Its members.
    pub members: Vec<MemberStatus>,
}

/// State of a member.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MemberStatus {
    /// Number of the process.
    pub pid: i32,
    /// Name of the process.
    pub name: String,
    /// Number of resident pages at the last inspection.
    pub resident: usize,
    /// Number of these pages that are on color.
    pub on_color: usize,
    /// Number of these pages that are off color and can be moved.
    pub off_color: usize,
    /// Number of these pages that cannot be moved.
    pub immovable: usize,
    /// Number of times that pages were moved.
    pub sweeps: u64,
    /// Number of pages that the kernel had given other frames.
    pub drifted: u64,
    /// Longest time for which the process stood still, in ns.
    pub pause_ns_max: u64,
    /// Time from when the process was noticed until it was on its colors, in s; `None` if it is not yet.
    pub seconds_to_colors: Option<f64>,
    /// Number of pages that eviction tests judged, and of those found on color; `None` if none were made.
    pub verified: Option<(usize, usize)>,
    /// Why the process could not be moved at the last attempt.
    pub trouble: Option<String>,
}

impl Server {
    /// Returns a server that has `policy` in force, with colors of `all`.
    ///
    /// Fails if the classes cannot have their colors, or if others hold them.
    pub fn new(all: Coloring, policy: Policy) -> Result<Server, ServerError> {
        let mut server = Server {
            all,
            policy: Policy::default(),
            classes: Vec::new(),
            lease: None,
            users: Users::default(),
            decisions: BTreeMap::new(),
            members: BTreeMap::new(),
            next_look: Instant::now(),
        };
        server.put_in_force(policy)?;
        Ok(server)
    }

    /// Replaces the policy, and returns what changes, a line for each class. Where this fails, the old policy stays in force.
    pub fn put_in_force(&mut self, policy: Policy) -> Result<Vec<String>, ServerError> {
        let assigned = self.assign(&policy)?;
        let changes = policy::changes((&self.policy, &self.assigned()), (&policy, &assigned));
        let own: BTreeSet<u32> = policy
            .classes
            .iter()
            .zip(&assigned)
            .filter(|(class, _)| class.exclusive)
            .flat_map(|(_, assigned)| assigned.colors.iter().copied())
            .collect();
        let color = |color: &u32| Color(*color as u16);
        let lease = if own.is_empty() {
            None
        } else {
            let mut coloring = self.all.of_another(own.iter().map(color).collect(), self.all.cpus().to_vec());
            let owner = Owner::of(std::process::id()).map_err(ColorError::from)?;
            // Where the server holds colors already, this replaces them at once, or fails and changes nothing.
            Some(coloring.lease(owner)?)
        };
        if let Some(before) = std::mem::replace(&mut self.lease, lease)
            && self.lease.is_some()
        {
            // The new lease has taken the place of the old one in the ledger, so the old one must not be given back.
            std::mem::forget(before);
        }
        self.classes = policy
            .classes
            .iter()
            .zip(assigned)
            .map(|(class, assigned)| {
                let mut coloring =
                    self.all.of_another(assigned.colors.iter().map(color).collect(), self.all.cpus().to_vec());
                coloring.limits.gives_way = true;
                if let Some(time) = class.max_pause {
                    coloring.limits.max_pause = Duration::from_nanos(time.0);
                }
                ClassColors { assigned, coloring }
            })
            .collect();
        // Every process is decided about again, and every member inspected.
        (self.policy, self.users) = (policy, Users::of_this_machine());
        self.decisions.clear();
        self.members.clear();
        self.next_look = Instant::now();
        Ok(changes)
    }

    /// Returns the colors that the classes of `policy` would have.
    pub fn assign(&self, policy: &Policy) -> Result<Vec<Assigned>, AssignError> {
        let per_color =
            Bytes(self.all.cache().geometry.value.cache_bytes().0 / u64::from(self.all.color_count().max(1)));
        policy::assign(policy, self.all.color_count(), per_color)
    }

    fn assigned(&self) -> Vec<Assigned> {
        self.classes.iter().map(|class| class.assigned.clone()).collect()
    }

    /// Looks for processes and inspects the members whose time has come. Returns how long nothing has to be done then.
    pub fn round(&mut self) -> Duration {
        if Instant::now() >= self.next_look {
            self.look();
            self.next_look = Instant::now() + LOOK;
        }
        let due: Vec<i32> =
            self.members.iter().filter(|(_, member)| member.next <= Instant::now()).map(|(pid, _)| *pid).collect();
        let moved = if due.is_empty() { 0 } else { moved_by_the_kernel() };
        for pid in due {
            self.keep(Pid(pid), moved);
        }
        let next = self.members.values().map(|member| member.next).min().unwrap_or(self.next_look);
        next.min(self.next_look).saturating_duration_since(Instant::now())
    }

    /// Decides which processes belong to which class.
    fn look(&mut self) {
        let server = std::process::id() as i32;
        let running = processes();
        let alive: BTreeSet<i32> = running.iter().map(|pid| pid.0).collect();
        self.decisions.retain(|pid, _| alive.contains(pid));
        self.members.retain(|pid, _| alive.contains(pid));
        let now = Instant::now();
        let is_decided = |decision: &Decision| {
            let passes = matches!(decision.belongs, Belongs::LeftAlone(_, why) if why.passes());
            now > decision.fresh_until && decision.at.elapsed() < if passes { IDLE } else { DECIDE_AGAIN }
        };
        let undecided: Vec<Pid> =
            running.into_iter().filter(|pid| !self.decisions.get(&pid.0).is_some_and(is_decided)).collect();
        if undecided.is_empty() {
            return;
        }
        // Programs that hold colors themselves are kept on them by the `exec` that started them.
        let grants = ledger::grants_in(&runtime::folder()).unwrap_or_default();
        let holders: BTreeSet<u32> = grants.iter().map(|grant| grant.owner.pid).collect();
        for pid in undecided {
            // A process that has ended meanwhile is nowhere at the next look.
            let Ok((facts, started)) = facts(pid, &self.users) else { continue };
            let belongs = match self.policy.class_of(&facts, server) {
                Belongs::To(..) if holders.contains(&(pid.0 as u32)) => Belongs::Nowhere,
                belongs => belongs,
            };
            self.join(pid, &facts, started, belongs);
            let age = Duration::from_nanos(facts.age.0);
            let fresh_until = now + FRESH.saturating_sub(age);
            self.decisions.insert(pid.0, Decision { belongs, at: now, fresh_until });
        }
    }

    /// Makes the process a member of its class, if it is not one yet.
    fn join(&mut self, pid: Pid, facts: &Facts, started: u64, belongs: Belongs) {
        let class = match belongs {
            Belongs::To(class, _) => Some(class),
            Belongs::LeftAlone(..) | Belongs::Nowhere => None,
        };
        let is_same = |member: &Member| member.started == started && Some(member.class) == class;
        if self.members.get(&pid.0).is_some_and(is_same) {
            return;
        }
        self.members.remove(&pid.0);
        let now = Instant::now();
        let Some(class) = class else { return };
        let member = Member {
            name: facts.name.clone(),
            started,
            class,
            since: now,
            watch: Watch::default(),
            vitals: None,
            inspected: None,
            next: now,
            failures: 0,
            trouble: None,
            seconds_to_colors: None,
            verified: None,
        };
        self.members.insert(pid.0, member);
    }

    /// Inspects the member `pid`, and moves its pages that are off color, unless nothing has happened since the last time.
    fn keep(&mut self, pid: Pid, moved: u64) {
        let Some(member) = self.members.get_mut(&pid.0) else { return };
        if pid.stat(22).ok() != Some(member.started) {
            // It has ended, and another process may have its number.
            self.members.remove(&pid.0);
            self.decisions.remove(&pid.0);
            return;
        }
        let vitals = Vitals::of(pid, moved);
        let is_recent = member.inspected.is_some_and(|at| at.elapsed() < INSPECT_ANYWAY);
        if vitals == member.vitals && is_recent && member.trouble.is_none() && member.seconds_to_colors.is_some() {
            member.next = Instant::now() + IDLE;
            return;
        }
        let coloring = &self.classes[member.class].coloring;
        let errors = coloring.with(|wanted| member.watch.round(&[pid], wanted, &coloring.limits));
        member.inspected = Some(Instant::now());
        // What the move itself has touched is no change of the program's.
        member.vitals = Vitals::of(pid, moved_by_the_kernel());
        let rest = match errors.into_iter().next() {
            None => {
                (member.failures, member.trouble) = (0, None);
                let tally = member.watch.tally();
                if is_on_color(tally) && member.seconds_to_colors.is_none() {
                    member.seconds_to_colors = Some(member.since.elapsed().as_secs_f64());
                    // A test that cannot be made now says nothing about the pages.
                    member.verified = coloring.verify_sample(&[pid]).unwrap_or_default();
                }
                if tally.off_color > 0 { GROWING } else { IDLE }
            }
            Some((_, error)) => {
                coloring.renew_after(&error);
                if matches!(error, RecolorError::Unrepaired { .. }) {
                    // Left by a command or server that was killed.
                    let _ = crate::recolor::repair(pid);
                }
                member.failures += 1;
                member.trouble = Some(without_hint(&error));
                (GROWING * 2u32.saturating_pow(member.failures.min(10))).min(REST_MAX)
            }
        };
        member.next = Instant::now() + rest;
    }

    /// Returns the state of the server.
    pub fn status(&self) -> Status {
        let member = |(pid, member): (&i32, &Member)| {
            let tally = member.watch.tally();
            MemberStatus {
                pid: *pid,
                name: member.name.clone(),
                resident: tally.resident,
                on_color: tally.on_color,
                off_color: tally.off_color,
                immovable: tally.immovable.values().sum(),
                sweeps: tally.sweeps,
                drifted: tally.drifted,
                pause_ns_max: tally.pause_ns_max,
                seconds_to_colors: member.seconds_to_colors,
                verified: member.verified.map(|verified| (verified.pages, verified.on_color)),
                trouble: member.trouble.clone(),
            }
        };
        let class = |(index, class): (usize, &ClassColors)| ClassStatus {
            class: class.assigned.class.clone(),
            colors: format_list(&class.assigned.colors),
            exclusive: self.policy.classes[index].exclusive,
            members: self.members.iter().filter(|(_, member)| member.class == index).map(member).collect(),
        };
        Status {
            level: self.all.level(),
            colors: self.all.color_count(),
            classes: self.classes.iter().enumerate().map(class).collect(),
            left_alone: self.decisions.len() - self.members.len().min(self.decisions.len()),
        }
    }

    /// Returns in words to which class process `pid` belongs, and why.
    pub fn explain(&self, pid: Pid) -> Result<String, crate::process::ProcessError> {
        let (facts, started) = facts(pid, &self.users)?;
        let class = |index: usize| &self.policy.classes[index];
        let who = format!(
            "{} ({}): executable {}, user {}, groups {}",
            facts.name,
            pid.0,
            facts.exe.as_deref().unwrap_or("none"),
            facts.user,
            if facts.cgroups.is_empty() { "/".to_owned() } else { facts.cgroups.join(" ") }
        );
        let decision = match self.policy.class_of(&facts, std::process::id() as i32) {
            Belongs::To(index, member) => {
                let kept = self.members.get(&pid.0).filter(|member| member.started == started);
                let colors = format_list(&self.classes[index].assigned.colors);
                let state = match kept.map(|member| (&member.trouble, member.watch.tally())) {
                    None => "it is not managed yet, or holds colors itself".to_owned(),
                    Some((Some(trouble), _)) => format!("it could not be moved: {trouble}"),
                    Some((None, tally)) => format!("{} of {} pages are on color", tally.on_color, tally.resident),
                };
                format!(
                    "belongs to class {} (colors {colors}) by {{ {} }}; {state}",
                    class(index).name,
                    class(index).members[member]
                )
            }
            Belongs::LeftAlone(index, why) => {
                format!("would belong to class {}, but is left alone: {why}", class(index).name)
            }
            Belongs::Nowhere => "belongs to no class: no member matches".to_owned(),
        };
        Ok(format!("{who}\n{decision}"))
    }
}

/// Whether at least 99 % of the pages that can be moved are on color.
fn is_on_color(tally: &Tally) -> bool {
    100 * tally.off_color <= tally.on_color + tally.off_color && tally.resident > 0
}
