//! Policies of the memory server: classes of programs, the colors that each class gets, and which programs belong to which class.
//! [Liedtke1997, §5.1: the operator gives colors to tasks or groups]
//!
//! A process belongs to the first class, in the order of the file, that has a matching member.

mod assign;
mod read;

use std::fmt;

use glob::Pattern;

pub use self::assign::{AssignError, Assigned, assign, changes};
pub use self::read::{PolicyError, read};
use crate::units::{Bytes, Ns};

/// A policy.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Policy {
    /// The classes, in the order of the file.
    pub classes: Vec<Class>,
    /// Size of the reserve of frames that the server holds; `None` without a reserve.
    pub reserve: Option<Bytes>,
}

/// A class of programs.
#[derive(Clone, Debug, PartialEq)]
pub struct Class {
    /// Name of the class.
    pub name: String,
    /// The part of the cache that the class gets.
    pub share: Share,
    /// Whether no other class has the colors of this one.
    pub exclusive: bool,
    /// Longest time for which a program of the class stands still at a time; `None` for the default.
    pub max_pause: Option<Ns>,
    /// Descriptions of the programs that belong to the class.
    pub members: Vec<Member>,
    /// Users who may put their own processes into the class by request; `*` for all of them. Root always may.
    pub clients: Vec<String>,
}

/// A part of the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Share {
    /// At least this many bytes, rounded up to whole colors.
    Bytes(Bytes),
    /// This many percent of the cache, rounded up to whole colors.
    Percent(u32),
    /// This many colors, the lowest that are free.
    Count(u32),
    /// These colors.
    List(Vec<u32>),
    /// All colors that no other class has for itself.
    Rest,
}

/// A description of programs. All patterns that are given must match.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Member {
    /// Pattern of the systemd unit. The pattern `*` also matches programs without a unit.
    pub unit: Option<Pattern>,
    /// Pattern of the control group, from the root of its hierarchy.
    pub cgroup: Option<Pattern>,
    /// Pattern of the executable file.
    pub exe: Option<Pattern>,
    /// Name of the user.
    pub user: Option<String>,
    /// Pattern of the name of a virtual machine, which QEMU was given (`-name`).
    pub vm: Option<Pattern>,
}

/// Facts about a process that decide to which class it belongs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Number of the process.
    pub pid: i32,
    /// Number of the parent process.
    pub parent: i32,
    /// Name of the process.
    pub name: String,
    /// The executable file; `None` for threads of the kernel.
    pub exe: Option<String>,
    /// The control groups, from the roots of their hierarchies.
    pub cgroups: Vec<String>,
    /// Name of the user, or the number where there is no name.
    pub user: String,
    /// Name of the virtual machine, if the process runs one.
    pub vm: Option<String>,
    /// Whether the process is a thread of the kernel.
    pub is_kernel_thread: bool,
    /// Whether another process traces the process.
    pub is_traced: bool,
    /// Time since the process was started.
    pub age: Ns,
    /// Resident memory of the process.
    pub resident: Bytes,
}

/// Age below which a process does not belong to a class that has the rest.
pub const YOUNG: Ns = Ns(1_000_000_000);
/// Resident memory below which a process does not belong to a class that has the rest.
pub const SMALL: Bytes = Bytes(1 << 20);

/// Why a process is left alone although a member of a class matches it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeftAlone {
    /// The process is the first one, on which all others depend.
    First,
    /// The process is the server itself.
    Server,
    /// The process is a thread of the kernel.
    Kernel,
    /// Another program traces the process.
    Traced,
    /// The process has run for less than [`YOUNG`], and its class has the rest.
    Young,
    /// The process has less memory than [`SMALL`], and its class has the rest.
    Small,
}

impl fmt::Display for LeftAlone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LeftAlone::First => "it is process 1",
            LeftAlone::Server => "it is the server",
            LeftAlone::Kernel => "it is a thread of the kernel",
            LeftAlone::Traced => "another program traces it",
            LeftAlone::Young => "it was started less than a second ago",
            LeftAlone::Small => "it has less than 1 MiB of memory",
        })
    }
}

impl LeftAlone {
    /// Whether the reason goes away by itself.
    pub fn passes(self) -> bool {
        matches!(self, LeftAlone::Young | LeftAlone::Small | LeftAlone::Traced)
    }
}

/// Decision about a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Belongs {
    /// The process belongs to the class with this index, by the member with the second index; `None` if it was put there by request.
    To(usize, Option<usize>),
    /// The process would belong to the class with this index, but is left alone.
    LeftAlone(usize, LeftAlone),
    /// No member matches.
    Nowhere,
}

impl Policy {
    /// Decides which class the process with these `facts` belongs to. `server`: number of the server's own process. `requested`: the class into
    /// which it was put by request, which comes before the members of all classes.
    pub fn class_of(&self, facts: &Facts, server: i32, requested: Option<&str>) -> Belongs {
        let matching = |class: &Class| class.members.iter().position(|member| member.matches(facts));
        let by_request = requested.and_then(|name| Some((self.class(name)?, None)));
        let by_member =
            || self.classes.iter().enumerate().find_map(|(index, class)| Some((index, Some(matching(class)?))));
        let found = by_request.or_else(by_member);
        let Some((class, member)) = found else { return Belongs::Nowhere };
        let has_rest = self.classes[class].share == Share::Rest;
        let why = match facts {
            Facts { pid: 1, .. } => LeftAlone::First,
            facts if facts.pid == server => LeftAlone::Server,
            Facts { is_kernel_thread: true, .. } => LeftAlone::Kernel,
            Facts { is_traced: true, .. } => LeftAlone::Traced,
            facts if has_rest && facts.age < YOUNG => LeftAlone::Young,
            facts if has_rest && facts.resident < SMALL => LeftAlone::Small,
            _ => return Belongs::To(class, member),
        };
        Belongs::LeftAlone(class, why)
    }
}

impl Policy {
    /// Returns the index of the class `name`.
    pub fn class(&self, name: &str) -> Option<usize> {
        self.classes.iter().position(|class| class.name == name)
    }

    /// Adds a class that has `cache` for itself, before the classes that have the rest. Its members come by request.
    pub fn add_class(&mut self, name: &str, cache: Bytes) {
        let at = self.classes.iter().position(|class| class.share == Share::Rest).unwrap_or(self.classes.len());
        let class = Class {
            name: name.to_owned(),
            share: Share::Bytes(cache),
            exclusive: true,
            max_pause: None,
            members: Vec::new(),
            clients: Vec::new(),
        };
        self.classes.insert(at, class);
    }
}

impl Class {
    /// Whether `user` may put own processes into the class by request.
    pub fn admits(&self, user: &str) -> bool {
        self.clients.iter().any(|client| client == user || client == "*")
    }
}

impl Facts {
    /// Returns the systemd unit of the process: the innermost control group that is named like one.
    pub fn unit(&self) -> Option<&str> {
        const KINDS: [&str; 3] = [".service", ".scope", ".slice"];
        let names = self.cgroups.iter().flat_map(|group| group.rsplit('/'));
        let is_unit = |name: &&str| KINDS.iter().any(|kind| name.len() > kind.len() && name.ends_with(kind));
        names.into_iter().find(is_unit)
    }
}

impl Member {
    /// Whether all patterns match a process with these `facts`.
    pub fn matches(&self, facts: &Facts) -> bool {
        let all = |pattern: &Pattern| pattern.as_str() == "*";
        let fits = |pattern: &Option<Pattern>, text: Option<&str>| {
            pattern.as_ref().is_none_or(|pattern| all(pattern) || text.is_some_and(|text| pattern.matches(text)))
        };
        // A virtual machine is matched by its name alone, and only if it is one.
        let is_vm = self.vm.as_ref().is_none_or(|pattern| facts.vm.as_ref().is_some_and(|name| pattern.matches(name)));
        let in_group = |pattern: &Pattern| facts.cgroups.iter().any(|group| pattern.matches(group));
        fits(&self.unit, facts.unit())
            && self.cgroup.as_ref().is_none_or(in_group)
            && fits(&self.exe, facts.exe.as_deref())
            && self.user.as_ref().is_none_or(|user| *user == facts.user)
            && is_vm
    }
}

impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |pattern: &Option<Pattern>| pattern.as_ref().map(|pattern| pattern.as_str().to_owned());
        let named = [
            ("unit", text(&self.unit)),
            ("cgroup", text(&self.cgroup)),
            ("exe", text(&self.exe)),
            ("user", self.user.clone()),
            ("vm", text(&self.vm)),
        ];
        let parts = named.into_iter().filter_map(|(name, pattern)| Some(format!("{name} = {:?}", pattern?)));
        f.write_str(&parts.collect::<Vec<_>>().join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy() -> Policy {
        let text = r#"
            [class.control]
            cache = "128K"
            members = [ { unit = "robot-*.service" }, { exe = "/opt/robot/control", user = "robot" }, { cgroup = "/rt/*" } ]
            [class.guest]
            colors = 2
            members = [ { vm = "plc" } ]
            [class.batch]
            cache = "rest"
            members = [ { unit = "*" } ]
        "#;
        read(text).unwrap()
    }

    fn facts() -> Facts {
        Facts { pid: 100, user: "root".to_owned(), age: Ns(u64::MAX), resident: Bytes(1 << 30), ..Facts::default() }
    }

    #[test]
    fn a_process_belongs_to_the_first_class_that_matches() {
        let of = |facts: Facts| policy().class_of(&facts, 7, None);
        let in_group = |group: &str| Facts { cgroups: vec![group.to_owned()], ..facts() };
        assert_eq!(of(in_group("/system.slice/robot-arm.service")), Belongs::To(0, Some(0)));
        assert_eq!(of(in_group("/system.slice/robot-arm.service/worker")), Belongs::To(0, Some(0)));
        assert_eq!(of(in_group("/rt/loop")), Belongs::To(0, Some(2)));
        let control = Facts { exe: Some("/opt/robot/control".to_owned()), user: "robot".to_owned(), ..facts() };
        assert_eq!(of(control.clone()), Belongs::To(0, Some(1)));
        assert_eq!(of(Facts { user: "alice".to_owned(), ..control }), Belongs::To(2, Some(0)));
        assert_eq!(of(Facts { vm: Some("plc".to_owned()), ..facts() }), Belongs::To(1, Some(0)));
        assert_eq!(of(facts()), Belongs::To(2, Some(0)), "`*` matches programs without a unit");
        let empty = Policy::default();
        assert_eq!(empty.class_of(&facts(), 7, None), Belongs::Nowhere);
    }

    #[test]
    fn a_request_comes_before_the_members_and_a_class_by_request_before_the_rest() {
        let mut policy = policy();
        let in_group = Facts { cgroups: vec!["/rt/loop".to_owned()], ..facts() };
        assert_eq!(policy.class_of(&in_group, 7, Some("guest")), Belongs::To(1, None));
        assert_eq!(policy.class_of(&in_group, 7, Some("no such class")), Belongs::To(0, Some(2)));
        let first = Facts { pid: 1, ..facts() };
        assert_eq!(policy.class_of(&first, 7, Some("guest")), Belongs::LeftAlone(1, LeftAlone::First));
        let before = assign(&policy, 16, Bytes(64 << 10)).unwrap();
        policy.add_class("container", Bytes(100 << 10));
        let after = assign(&policy, 16, Bytes(64 << 10)).unwrap();
        assert_eq!((policy.class("container"), policy.class("batch")), (Some(2), Some(3)));
        assert_eq!((&after[..2], &after[2].colors[..]), (&before[..2], &[4, 5][..]), "the others keep their colors");
    }

    #[test]
    fn what_must_not_be_moved_is_left_alone() {
        let of = |facts: Facts| match policy().class_of(&facts, 7, None) {
            Belongs::LeftAlone(_, why) => Some(why),
            _ => None,
        };
        assert_eq!(of(Facts { pid: 1, ..facts() }), Some(LeftAlone::First));
        assert_eq!(of(Facts { pid: 7, ..facts() }), Some(LeftAlone::Server));
        assert_eq!(of(Facts { is_kernel_thread: true, ..facts() }), Some(LeftAlone::Kernel));
        assert_eq!(of(Facts { is_traced: true, ..facts() }), Some(LeftAlone::Traced));
        assert_eq!(of(Facts { age: Ns(YOUNG.0 - 1), ..facts() }), Some(LeftAlone::Young));
        assert_eq!(of(Facts { resident: Bytes(SMALL.0 - 1), ..facts() }), Some(LeftAlone::Small));
        // What has its own colors is moved as soon as it runs.
        let young = Facts { cgroups: vec!["/rt/loop".to_owned()], age: Ns(0), resident: Bytes(0), ..facts() };
        assert_eq!(of(young), None);
    }
}
