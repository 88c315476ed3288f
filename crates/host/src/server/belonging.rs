//! Membership in classes: finds processes, decides to which class each belongs, and makes them members.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use isochrome_model::policy::{Belongs, Class, Facts, Share};
use isochrome_model::units::Color;

use super::facts::{self, Users, facts, processes};
use super::notice::Started;
use super::places::places_of;
use super::requests::Requests;
use super::{ClassColors, DECIDE_AGAIN, Decision, FRESH, IDLE, Member, Portion, Server};
use crate::color::ledger::{self, Grant, Sharing};
use crate::process::Pid;
use crate::recolor::watch::Watch;
use crate::runtime;

impl Server {
    /// Decides to which class processes belong: the processes that were `started`, and those whose decision is due again. If it is not known which
    /// processes were started, lists all processes, and forgets those that have ended.
    pub(super) fn look(&mut self, started: Started) {
        let server = std::process::id() as i32;
        let mut known: BTreeSet<i32> = self.decisions.keys().copied().collect();
        let started = match started {
            Started::These(started) => started,
            Started::Nothing => BTreeSet::new(),
            Started::Unknown => {
                let alive: BTreeSet<i32> = processes().iter().map(|pid| pid.0).collect();
                self.decisions.retain(|pid, _| alive.contains(pid));
                self.members.retain(|pid, _| alive.contains(pid));
                known = alive;
                self.users = Users::of_this_machine();
                BTreeSet::new()
            }
        };
        let now = Instant::now();
        let is_decided = |decision: &Decision| {
            let passes = matches!(decision.belongs, Belongs::LeftAlone(_, why) if why.passes());
            now > decision.fresh_until && decision.at.elapsed() < if passes { IDLE } else { DECIDE_AGAIN }
        };
        let undecided: Vec<Pid> = known
            .union(&started)
            .filter(|pid| started.contains(pid) || !self.decisions.get(pid).is_some_and(is_decided))
            .map(|pid| Pid(*pid))
            .collect();
        if undecided.is_empty() {
            return;
        }
        // Programs that hold colors themselves are kept on them by the `exec` that started them.
        let grants = ledger::grants_in(&runtime::folder()).unwrap_or_default();
        let holders: BTreeSet<u32> = grants.iter().map(|grant| grant.owner.pid).collect();
        self.keep_off(&grants);
        let mut inherited = false;
        for pid in undecided {
            let Ok((facts, started)) = facts(pid, &self.users) else {
                // It has ended since then.
                self.decisions.remove(&pid.0);
                continue;
            };
            inherited |= self.requests.inherit(&facts, started);
            let request = self.requests.about(&facts, started);
            let colors = request.and_then(|request| request.colors.clone());
            let belongs = match self.policy.class_of(&facts, server, request.map(|request| request.class.as_str())) {
                Belongs::To(..) if holders.contains(&(pid.0 as u32)) => Belongs::Nowhere,
                belongs => belongs,
            };
            self.admit(pid, &facts, started, belongs, colors);
            let age = Duration::from_nanos(facts.age.0);
            let fresh_until = now + FRESH.saturating_sub(age);
            self.decisions.insert(pid.0, Decision { belongs, at: now, fresh_until });
        }
        if inherited {
            // Without the file, the next server would not know them: this one does.
            let _ = self.requests.save();
        }
    }

    /// Forgets requests about processes and control groups that have ended, and the classes that were made for them.
    pub(super) fn purge(&mut self) {
        let count = |requests: &Requests| requests.granted().len() + requests.places.len();
        let before = count(&self.requests);
        if before == 0 {
            return;
        }
        self.requests.drop_ended(&groups());
        if count(&self.requests) < before {
            let _ = self.requests.save();
            if self.requests.added_to(&self.filed) != self.policy {
                // Classes were taken away only, so there is nothing that could be refused; else they are taken away next time.
                let _ = self.put_in_force(self.filed.clone());
            }
        }
    }

    /// Takes the colors that other programs hold for themselves from the classes that have the rest, as long as something is left.
    fn keep_off(&mut self, grants: &[Grant]) {
        let (server, level) = (std::process::id(), self.all.level());
        let of_others =
            |grant: &&Grant| grant.owner.pid != server && grant.level == level && grant.sharing == Sharing::Exclusive;
        let theirs: BTreeSet<Color> =
            grants.iter().filter(of_others).flat_map(|grant| grant.colors.iter().copied()).collect();
        let with_rest = |(class, _): &(&Class, &mut ClassColors)| class.share == Share::Rest;
        for (index, (_, class)) in
            self.policy.classes.iter().zip(&mut self.classes).enumerate().filter(|(_, it)| with_rest(it))
        {
            let all = class.assigned.colors.iter().map(|color| Color(*color as u16));
            let left: Vec<Color> = all.filter(|color| !theirs.contains(color)).collect();
            if left.is_empty() || left == class.coloring.colors() {
                continue;
            }
            let limits = class.coloring.limits;
            class.coloring = self.all.of_another(left, self.all.cpus().to_vec());
            class.coloring.limits = limits;
            let now = Instant::now();
            for member in self.members.values_mut().filter(|member| member.class == index) {
                (member.vitals, member.next) = (None, now);
            }
        }
    }

    /// Makes the process a member of its class, if it is not one yet.
    ///
    /// `colors`: indices of the process's colors among those of the class; `None` for all.
    fn admit(&mut self, pid: Pid, facts: &Facts, started: u64, belongs: Belongs, colors: Option<Vec<u32>>) {
        let class = match belongs {
            Belongs::To(class, _) => Some(class),
            Belongs::LeftAlone(..) | Belongs::Nowhere => None,
        };
        let Some(class) = class else {
            self.members.remove(&pid.0);
            return;
        };
        let now = Instant::now();
        let of_class = &self.classes[class].coloring;
        // The colors of a class that has the rest change, so its members have all of them.
        let has_rest = self.policy.classes[class].share == Share::Rest;
        let colors = colors.filter(|_| !has_rest);
        let chosen = chosen_of(of_class.colors(), colors.as_deref());
        let places = places_of(&self.requests.places, pid.0, started, chosen.len());
        let portion = Portion { colors, places: if has_rest { Vec::new() } else { places } };
        let own = (portion != Portion::default())
            .then(|| of_class.of_another(chosen, of_class.cpus().to_vec()).with_places(portion.places.clone()));
        let is_same = |member: &Member| {
            member.started == started && member.class == class && member.portion.colors == portion.colors
        };
        if let Some(member) = self.members.get_mut(&pid.0).filter(|member| is_same(member)) {
            // It may have executed another program.
            member.name.clone_from(&facts.name);
            if member.portion != portion {
                (member.portion, member.own) = (portion, own);
                (member.vitals, member.next) = (None, now);
            }
            return;
        }
        let member = Member {
            name: facts.name.clone(),
            started,
            class,
            portion,
            own,
            since: now,
            watch: Watch::default(),
            vitals: None,
            inspected: None,
            next: now,
            failures: 0,
            trouble: None,
            seconds_to_colors: None,
            verified: None,
            untested: false,
        };
        self.members.insert(pid.0, member);
    }
}

/// Returns the colors of a process whose class has the colors `of_class`: those with the `indices`, or all.
fn chosen_of(of_class: &[Color], indices: Option<&[u32]>) -> Vec<Color> {
    let indices = indices.unwrap_or_default();
    let chosen: Vec<Color> = indices.iter().filter_map(|index| of_class.get(*index as usize).copied()).collect();
    // A reload may have given the class fewer colors.
    if chosen.is_empty() { of_class.to_vec() } else { chosen }
}

/// Returns the control groups that processes are in.
pub(super) fn groups() -> BTreeSet<String> {
    processes().into_iter().flat_map(facts::groups).collect()
}
