//! The memory server: keeps the programs of a policy on the colors of their classes. [Liedtke1997, §5.1]
//!
//! When a process was started, and once a second, the server lists the processes, and decides by the policy to which class each belongs. It moves
//! each new member. It inspects a member again when the kernel's counters show that pages may have other frames.
//!
//! The server holds the colors that classes have for themselves in the ledger, so nobody else gets them. Members run on as they are when the
//! server ends.

mod belonging;
pub mod facts;
mod notice;
pub mod places;
mod pressure;
pub mod published;
pub mod requests;
pub mod socket;
mod status;
mod turn;
mod vitals;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant};

use isochrome_model::policy::{self, AssignError, Assigned, Belongs, Policy, Share};
use isochrome_model::printable;
use isochrome_model::units::{Bytes, Color, format_list};

use self::belonging::groups;
use self::facts::{Users, facts};
use self::notice::{Notice, Started};
use self::requests::{Join, Peer, RequestError, Requests};
pub use self::status::{ClassStatus, MemberStatus, Status, Unmanaged};
use self::turn::{COMING, Turn, next_in_turn, rest_after};
use self::vitals::{Vitals, moved_by_the_kernel};
use crate::color::ColorError;
use crate::color::ledger::Owner;
use crate::color::verified::Verified;
use crate::coloring::{Coloring, Lease};
use crate::error::{SystemError, without_hint};
use crate::machine::sysfs::Sysfs;
use crate::process::Pid;
use crate::recolor::watch::{PauseCounts, Tally, Watch};
use crate::recolor::{Limits, Part, Place, RecolorError, end_tracing};

/// Time between two listings of all processes.
const LOOK: Duration = Duration::from_millis(100);
/// Time after which the decision about a process is made again: it may have executed another program, or have been put into another group.
const DECIDE_AGAIN: Duration = Duration::from_secs(5);
/// Age of a process below which the decision is made again at every listing.
const FRESH: Duration = Duration::from_secs(3);
/// Time between two looks at a member while nothing happens.
const IDLE: Duration = Duration::from_secs(1);
/// Time without changes after which a member is looked at less often, and the time between two looks from then on.
const IDLE_FOR_LONG: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(2));
/// Time after which a member is inspected even if nothing indicates that its pages have other frames.
const INSPECT_ANYWAY: Duration = Duration::from_secs(300);
/// Time that measuring some frames of the reserve takes at most where the caches are not busy.
const MEASURED: Duration = Duration::from_millis(200);
/// Time between two refills of the reserve.
const REFILL: Duration = Duration::from_secs(1);
/// Share of the time in which some task waits for memory, in percent, above which the reserve is given back, and below which frames are taken for it.
const STALLS: (f64, f64) = (1.0, 0.1);
/// Largest number of pages that are moved at a time. Only one process is recolored at a time on the whole machine, so new members wait meanwhile.
const PAGES_AT_ONCE: usize = 1 << 15;
/// Largest number for a new member of a class that has the rest, which needs less memory to find frames, and for one that is not new and has less than
/// 1 GiB.
const PAGES_OF_THE_REST: (usize, usize) = (1 << 13, 1 << 11);
/// Time after which a member is not stopped again to move more pages. If each pause moves few pages, moving all would take minutes.
const TIME_AT_ONCE: Duration = Duration::from_secs(2);

/// Error of the server.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The classes cannot have their colors.
    #[error("{0}")]
    Assign(#[from] AssignError),
    /// The colors cannot be had.
    #[error("{0}")]
    Color(#[from] ColorError),
    /// The requests of an earlier server cannot be read.
    #[error("{0}")]
    System(#[from] SystemError),
    /// The reserve would take more than half of the memory that is available.
    #[error(
        "a reserve of {reserve} is more than half of the memory that is available\n  hint: reserve = \"{most}\", or less"
    )]
    Reserve {
        /// Size of the reserve.
        reserve: Bytes,
        /// Half of the available memory.
        most: Bytes,
    },
}

/// A server with a policy in force.
pub struct Server {
    /// All colors.
    all: Coloring,
    /// The policy as it was read.
    filed: Policy,
    /// The policy with the classes of requests.
    policy: Policy,
    requests: Requests,
    classes: Vec<ClassColors>,
    /// The colors that classes have for themselves, in the ledger; `None` if no class has any.
    lease: Option<Lease>,
    /// Memory of the machine.
    memory: Bytes,
    users: Users,
    decisions: BTreeMap<i32, Decision>,
    members: BTreeMap<i32, Member>,
    next_look: Instant,
    notice: Notice,
    /// Time of the next listing of all processes.
    next_whole_look: Instant,
    next_refill: Instant,
    /// Time before which the frames of the reserve are not measured, after an attempt has failed.
    next_measuring: Instant,
    next_purge: Instant,
    /// Whether the last turn was used for eviction tests although a member was due. The member has the next one.
    has_worked: bool,
}

/// A class with its colors.
struct ClassColors {
    assigned: Assigned,
    coloring: Coloring,
    /// Pauses of its members.
    pauses: PauseCounts,
}

/// Decision about a process.
struct Decision {
    belongs: Belongs,
    at: Instant,
    /// Time until which the decision is made again at every listing.
    fresh_until: Instant,
}

/// Colors of its class that a process has.
#[derive(Clone, Default, PartialEq)]
struct Portion {
    /// Indices of the colors among those of the class; `None` for all.
    colors: Option<Vec<u32>>,
    /// Parts of the process's memory that have only some of its colors.
    places: Vec<Place>,
}

/// A process that is kept on the colors of its class.
struct Member {
    name: String,
    started: u64,
    /// Index of its class.
    class: usize,
    portion: Portion,
    /// The member's coloring if it is not that of its class.
    own: Option<Coloring>,
    since: Instant,
    watch: Watch,
    vitals: Option<Vitals>,
    inspected: Option<Instant>,
    next: Instant,
    /// Number of attempts in a row that failed, or that brought no page to its color although nothing had changed before.
    failures: u32,
    trouble: Option<String>,
    seconds_to_colors: Option<f64>,
    verified: Option<Verified>,
    /// Whether the member has come to its colors, but no eviction tests were made yet.
    untested: bool,
}

impl Member {
    /// Whether the member is new at `time`, and not on its colors yet.
    fn is_coming(&self, time: Instant) -> bool {
        self.seconds_to_colors.is_none() && self.failures == 0 && time < self.since + COMING
    }
}

impl Server {
    /// Returns a server that has `policy` in force, with colors of `all`.
    ///
    /// Processes and control groups that an earlier server with the same `folder` put into classes by request stay there.
    ///
    /// Fails if the classes cannot have their colors, if others hold them, or if others could have written the requests.
    pub fn new(all: Coloring, policy: Policy, folder: &Path) -> Result<Server, ServerError> {
        let mut server = Server {
            all,
            filed: Policy::default(),
            policy: Policy::default(),
            requests: Requests::open(folder)?,
            classes: Vec::new(),
            lease: None,
            memory: Sysfs::system().memory("MemTotal").unwrap_or_default(),
            users: Users::default(),
            decisions: BTreeMap::new(),
            members: BTreeMap::new(),
            next_look: Instant::now(),
            notice: Notice::open(),
            next_whole_look: Instant::now(),
            next_refill: Instant::now() + REFILL,
            next_measuring: Instant::now(),
            next_purge: Instant::now() + DECIDE_AGAIN,
            has_worked: false,
        };
        server.requests.drop_ended(&groups());
        server.put_in_force(policy)?;
        Ok(server)
    }

    /// Replaces the policy, and returns the changes, a line for each class. Where this fails, the old policy stays in force.
    pub fn put_in_force(&mut self, filed: Policy) -> Result<Vec<String>, ServerError> {
        let policy = self.requests.added_to(&filed);
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
        // Members that have the rest find frames of their colors without a reserve: many frames have them.
        let listed = policy.classes.iter().zip(&assigned).filter(|(class, _)| class.share != Share::Rest);
        let mut stocked: Vec<Color> = listed.flat_map(|(_, assigned)| assigned.colors.iter().map(color)).collect();
        if stocked.is_empty() {
            stocked.extend((0..self.all.color_count()).map(|number| color(&number)));
        }
        let mut all = self.all.clone();
        if policy.reserve != self.policy.reserve {
            let available = Sysfs::system().memory("MemAvailable").map(|available| Bytes(available.0 / 2));
            if let (Some(reserve), Some(most)) = (policy.reserve, available)
                && reserve > most
            {
                return Err(ServerError::Reserve { reserve, most });
            }
            all.hold_reserve(policy.reserve).map_err(ColorError::from)?;
        }
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
        self.all = all;
        if let Some(reserve) = policy.reserve {
            self.all.stock_reserve(reserve, &stocked);
            self.next_refill = Instant::now();
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
                ClassColors { assigned, coloring, pauses: PauseCounts::default() }
            })
            .collect();
        // Every process is decided about again, and every member inspected.
        (self.filed, self.policy, self.users) = (filed, policy, Users::of_this_machine());
        self.decisions.clear();
        self.members.clear();
        self.look_at_all_now();
        Ok(changes)
    }

    /// Returns the colors that the classes of `policy` would have.
    pub fn assign(&self, policy: &Policy) -> Result<Vec<Assigned>, ServerError> {
        let cache = self.all.cache()?.geometry.value;
        let per_color = Bytes(cache.cache_bytes().0 / u64::from(self.all.color_count().max(1)));
        Ok(policy::assign(policy, self.all.color_count(), per_color)?)
    }

    fn look_at_all_now(&mut self) {
        (self.next_look, self.next_whole_look) = (Instant::now(), Instant::now());
    }

    fn assigned(&self) -> Vec<Assigned> {
        self.classes.iter().map(|class| class.assigned.clone()).collect()
    }

    /// Lists the processes if that is due, and inspects one member or tests it by eviction. Returns the time until there is more to do. Between two
    /// rounds, clients may have the server.
    pub fn round(&mut self) -> Duration {
        let begin = Instant::now();
        end_tracing();
        if begin >= self.next_look {
            let (all, seen) = (begin >= self.next_whole_look, self.notice.since_last());
            let started = if all { Started::Unknown } else { seen };
            if started == Started::Unknown {
                // What nobody reports is seen by looking: which processes have ended, and which have other control groups.
                let is_reported = matches!(self.notice, Notice::Kernel(_));
                self.next_whole_look = begin + if is_reported { DECIDE_AGAIN } else { IDLE };
            }
            self.look(started);
            self.next_look = Instant::now() + LOOK;
        }
        if Instant::now() >= self.next_refill {
            match pressure::memory_stalls() {
                Some(stalls) if stalls > STALLS.0 => self.all.give_back_reserve(),
                stalls => self.all.refill_reserve(stalls.is_none_or(|stalls| stalls <= STALLS.1)),
            }
            self.next_refill = Instant::now() + REFILL;
        }
        if Instant::now() >= self.next_purge {
            self.purge();
            self.next_purge = Instant::now() + DECIDE_AGAIN;
        }
        let mut moved = None;
        loop {
            // Members that are due soon are looked at now, so that the server wakes up once for many.
            let due = self.due(begin + LOOK / 2);
            match due {
                // A member that has the rest and always grows leaves every other turn to eviction tests.
                None | Some((_, true)) if (due.is_none() || !self.has_worked) && self.tests_or_measures() => {
                    self.has_worked = due.is_some();
                    return Duration::ZERO;
                }
                Some((pid, _)) => {
                    self.has_worked = false;
                    if self.keep(Pid(pid), *moved.get_or_insert_with(moved_by_the_kernel)) {
                        return Duration::ZERO;
                    }
                }
                None => return self.next_look.saturating_duration_since(Instant::now()),
            }
        }
    }

    /// Tests a member by eviction if that is due, and otherwise measures frames of the reserve. Returns whether there was anything to do.
    fn tests_or_measures(&mut self) -> bool {
        match self.members.iter().find(|(_, member)| member.untested).map(|(pid, _)| *pid) {
            Some(pid) => {
                self.test(pid);
                true
            }
            None => self.measures_reserve(),
        }
    }

    /// Measures some frames of the reserve whose colors are unknown. Returns whether there were any to measure now.
    fn measures_reserve(&mut self) -> bool {
        let begin = Instant::now();
        if begin < self.next_measuring {
            return false;
        }
        let measured = self.all.measure_reserve();
        // Where the caches are too busy for tests, they are made later, so that members do not wait.
        if measured.is_err() || begin.elapsed() > MEASURED {
            self.next_measuring = Instant::now() + DECIDE_AGAIN;
        }
        measured.unwrap_or(false)
    }

    /// Returns the member that is due at `time` and comes next, and whether its class has the rest.
    fn due(&self, time: Instant) -> Option<(i32, bool)> {
        next_in_turn(
            self.members.iter().map(|(pid, member)| Turn {
                pid: *pid,
                next: member.next,
                has_rest: self.policy.classes[member.class].share == Share::Rest,
                is_coming: member.is_coming(time),
            }),
            time,
        )
    }

    /// Puts a process or control group into a class for a client. Returns the outcome, in words.
    pub fn request(&mut self, join: &Join, peer: Peer) -> Result<String, RequestError> {
        // The user may have been added since.
        self.users = Users::of_this_machine();
        let colors: Vec<usize> = self.classes.iter().map(|class| class.assigned.colors.len()).collect();
        let request = self.requests.judge(join, peer, &self.policy, &colors, &self.users)?;
        let failed = |error: &dyn std::error::Error| RequestError::Server(error.to_string());
        let (class, before) = (request.class.clone(), self.requests.granted().to_vec());
        self.requests.add(request);
        let changed = self.requests.added_to(&self.filed) != self.policy;
        let done = match changed {
            true => self.put_in_force(self.filed.clone()).map(drop).map_err(|error| failed(&error)),
            false => Ok(()),
        };
        if let Err(error) = done.and_then(|()| self.requests.save().map_err(|error| failed(&error))) {
            self.requests.restore(before);
            return Err(error);
        }
        self.decisions.clear();
        self.look_at_all_now();
        let colors = self.policy.class(&class).map(|index| format_list(&self.classes[index].assigned.colors));
        Ok(format!("class {class}, colors {}", colors.unwrap_or_default()))
    }

    /// Inspects the member `pid`, and moves its pages that are off color, unless nothing has changed since the last time. Returns whether it was
    /// inspected. `moved`: the sum of the kernel's counters of moved pages.
    fn keep(&mut self, pid: Pid, moved: u64) -> bool {
        let Some(member) = self.members.get_mut(&pid.0) else { return false };
        let vitals = Vitals::of(pid, moved);
        if vitals.is_none_or(|vitals| vitals.started != member.started) {
            // It has ended, and another process may have its number.
            self.members.remove(&pid.0);
            self.decisions.remove(&pid.0);
            return false;
        }
        let idle_for = member.inspected.map(|at| at.elapsed());
        let is_recent = idle_for.is_some_and(|time| time < INSPECT_ANYWAY);
        let (is_unchanged, off_color) = (vitals == member.vitals, member.watch.tally().off_color);
        if is_unchanged && is_recent && member.trouble.is_none() && has_all_on_color(member.watch.tally()) {
            let is_long = idle_for.is_some_and(|time| time > IDLE_FOR_LONG.0);
            member.next = Instant::now() + if is_long { IDLE_FOR_LONG.1 } else { IDLE };
            return false;
        }
        let coloring = coloring_of(&self.classes[member.class], &member.own);
        let (begin, pauses) = (Instant::now(), member.watch.tally().pauses);
        let pages = match (&self.policy.classes[member.class].share, member.is_coming(begin)) {
            (Share::Rest, true) => PAGES_OF_THE_REST.0,
            // Each part begins with an inspection of all pages, which takes longer the larger the member is.
            (Share::Rest, false) => PAGES_OF_THE_REST.1.max(member.watch.tally().resident / 128),
            _ => PAGES_AT_ONCE,
        };
        let limits = Limits { part: Some(Part { pages, time: TIME_AT_ONCE }), ..coloring.limits };
        let errors = coloring.with(|wanted| member.watch.round(&[pid], wanted, &limits));
        member.inspected = Some(Instant::now());
        // What the move itself has touched is not a change of the program's.
        member.vitals = Vitals::of(pid, moved_by_the_kernel());
        let rest = match errors.into_iter().next() {
            None => {
                member.trouble = None;
                let tally = member.watch.tally();
                let is_in_vain = is_unchanged && !has_all_on_color(tally) && tally.off_color >= off_color;
                member.failures = if is_in_vain { member.failures + 1 } else { 0 };
                if is_on_color(tally) && member.seconds_to_colors.is_none() {
                    member.seconds_to_colors = Some(member.since.elapsed().as_secs_f64());
                    member.untested = true;
                }
                match (has_all_on_color(tally), member.is_coming(begin)) {
                    (true, _) => IDLE,
                    (false, true) => rest_after(member.failures),
                    // A member that grows all the time leaves the others half of the time.
                    (false, false) => begin.elapsed().max(rest_after(member.failures)),
                }
            }
            Some((_, error)) => {
                coloring.renew_after(&error);
                if matches!(error, RecolorError::Unrepaired { .. }) {
                    // Left by a command or server that was killed.
                    let _ = crate::recolor::repair(pid);
                }
                member.failures += 1;
                member.trouble = Some(without_hint(&error));
                rest_after(member.failures)
            }
        };
        member.next = Instant::now() + rest;
        self.classes[member.class].pauses.add_since(&pauses, &member.watch.tally().pauses);
        true
    }

    /// Has eviction tests judge a sample of the pages of a member.
    fn test(&mut self, pid: i32) {
        let Some(member) = self.members.get_mut(&pid) else { return };
        member.untested = false;
        // A test that cannot be made now says nothing about the pages.
        member.verified =
            coloring_of(&self.classes[member.class], &member.own).verify_sample(&[Pid(pid)]).unwrap_or_default();
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
                immovable: tally.immovable.clone(),
                sweeps: tally.sweeps,
                drifted: tally.drifted,
                pause_ns_max: tally.pause_ns_max,
                seconds_to_colors: member.seconds_to_colors,
                verified: member.verified.map(|verified| (verified.pages, verified.on_color)),
                trouble: member.trouble.clone(),
            }
        };
        let per_color = self.memory.0 / u64::from(self.all.color_count().max(1));
        let class = |(index, class): (usize, &ClassColors)| ClassStatus {
            memory: Bytes(per_color * class.coloring.colors().len() as u64),
            class: class.assigned.class.clone(),
            colors: format_list(&class.coloring.colors().iter().map(|color| u32::from(color.0)).collect::<Vec<_>>()),
            exclusive: self.policy.classes[index].exclusive,
            pauses: class.pauses,
            members: self.members.iter().filter(|(_, member)| member.class == index).map(member).collect(),
        };
        let (reserve_pages, reserve_known) = self.all.reserve_pages();
        Status {
            level: self.all.level(),
            colors: self.all.color_count(),
            classes: self.classes.iter().enumerate().map(class).collect(),
            reserve_pages,
            reserve_known,
            left_alone: self.decisions.len() - self.members.len().min(self.decisions.len()),
        }
    }

    /// Returns in words to which class process `pid` belongs, and why.
    pub fn explain(&self, pid: Pid) -> Result<String, crate::process::ProcessError> {
        let (facts, started) = facts(pid, &self.users)?;
        let class = |index: usize| &self.policy.classes[index];
        let who = printable::line(&format!(
            "{} ({}): executable {}, user {}, groups {}",
            facts.name,
            pid.0,
            facts.exe.as_deref().unwrap_or("none"),
            facts.user,
            if facts.cgroups.is_empty() { "/".to_owned() } else { facts.cgroups.join(" ") }
        ));
        let requested = self.requests.about(&facts, started).map(|request| request.class.as_str());
        let decision = match self.policy.class_of(&facts, std::process::id() as i32, requested) {
            Belongs::To(index, member) => {
                let kept = self.members.get(&pid.0).filter(|member| member.started == started);
                let colors = format_list(&self.classes[index].assigned.colors);
                let state = match kept.map(|member| (&member.trouble, member.watch.tally())) {
                    None => "it is not managed yet, or holds colors itself".to_owned(),
                    Some((Some(trouble), _)) => format!("it could not be moved: {trouble}"),
                    Some((None, tally)) => format!("{} of {} pages are on color", tally.on_color, tally.resident),
                };
                let by = match member {
                    Some(member) => format!("{{ {} }}", class(index).members[member]),
                    None => "request".to_owned(),
                };
                format!("belongs to class {} (colors {colors}) by {by}; {state}", class(index).name)
            }
            Belongs::LeftAlone(index, why) => {
                format!("would belong to class {}, but is left alone: {why}", class(index).name)
            }
            Belongs::Nowhere => "belongs to no class: no member matches".to_owned(),
        };
        Ok(format!("{who}\n{decision}"))
    }
}

/// Returns the coloring of a member: that of its class, or of its part of the class.
fn coloring_of<'c>(class: &'c ClassColors, own: &'c Option<Coloring>) -> &'c Coloring {
    own.as_ref().unwrap_or(&class.coloring)
}

/// Whether all pages that can be moved are on color.
fn has_all_on_color(tally: &Tally) -> bool {
    tally.off_color == 0 && tally.resident > 0
}

/// Whether at least 99 % of the pages that can be moved are on color.
fn is_on_color(tally: &Tally) -> bool {
    100 * tally.off_color <= tally.on_color + tally.off_color && tally.resident > 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_is_tried_again_until_its_last_page_is_on_color() {
        // On its colors, but no frame was found for the rest: it is not left alone until it touches something.
        let tally = |on_color, off_color| Tally { resident: 4542, on_color, off_color, ..Tally::default() };
        let nearly = tally(4505, 36);
        assert!(is_on_color(&nearly) && !has_all_on_color(&nearly) && has_all_on_color(&tally(4541, 0)));
    }
}
