//! Processes and control groups that were put into classes by request: the rules for requests, and the file that keeps them when the server is
//! restarted.
//!
//! Root may put anything into any class, and may ask for a class of its own for a control group. Other users may put their own processes into
//! classes that name them as clients, if no exclusive class has these processes by the policy.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use isochrome_model::policy::{Belongs, Facts, Policy, Share};
use isochrome_model::units::{Bytes, parse_list};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::facts::{Users, facts, group_of_its_own};
use super::places::Placed;
use crate::color::ledger::Owner;
use crate::error::SystemError;
use crate::process::{Pid, ProcessError, status_of};
use crate::runtime;

/// Version of the file format.
const SCHEMA: &str = "isochrome-requests/1";
/// Name of the file in the runtime folder.
const FILE: &str = "requests.json";
/// Most processes and control groups that a user may have in classes by request.
const PROCESSES_MAX: usize = 1000;

/// The client that makes a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Number of the client's process, in the server's PID namespace.
    pub pid: i32,
    /// Number of the client's user.
    pub uid: u32,
}

/// A request to put a process, or its control group, into a class.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Join {
    /// The class.
    pub into: Destination,
    /// Number of the process; `None` for the process that asks.
    #[serde(default)]
    pub pid: Option<i32>,
    /// Whether all processes of the control group of this process are meant, including later ones.
    #[serde(default)]
    pub group: bool,
    /// Some of the colors of the class, as a list such as `0-1`, where 0 is the first color of the class; `None` for all.
    #[serde(default)]
    pub colors: Option<String>,
}

/// A requested class.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Destination {
    /// A class of the policy.
    Class(String),
    /// A class of its own with this much of the cache, as long as the control group has processes.
    Cache(Bytes),
}

/// A request that was granted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// Name of the class.
    pub class: String,
    /// The process or control group that was put into the class.
    pub who: Who,
    /// Number of the user who made the request.
    pub uid: u32,
    /// The requested size, if the class is the request's own.
    pub cache: Option<Bytes>,
    /// Indices of its colors among those of the class; `None` for all.
    pub colors: Option<Vec<u32>>,
}

/// A process or control group that was put into a class.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Who {
    /// A process, and the processes that it forks.
    Process(Owner),
    /// A control group, by its path from the root of its hierarchy.
    Group(String),
}

/// Why a request is refused.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// The policy has no such class.
    #[error("there is no class {class}\n  hint: the classes are {there}")]
    NoSuchClass {
        /// The name.
        class: String,
        /// Names of all classes.
        there: String,
    },
    /// The class is not open to the user.
    #[error(
        "user {user} may put nothing into class {class}\n  hint: `clients = [\"{user}\"]` in this class of the policy allows it"
    )]
    NotAClient {
        /// The user.
        user: String,
        /// The class.
        class: String,
    },
    /// The process belongs to somebody else.
    #[error("process {pid} belongs to another user\n  hint: only root may put it into a class")]
    NotYours {
        /// The process.
        pid: i32,
    },
    /// The process has a class already, which has its colors for itself.
    #[error(
        "process {pid} belongs to class {class} by the policy or by request of root\n  hint: only root may put it into another one"
    )]
    Taken {
        /// The process.
        pid: i32,
        /// The class of the process.
        class: String,
    },
    /// Only root may do this.
    #[error("only root may put control groups into classes, or have classes of their own")]
    OnlyRoot,
    /// The client is in another PID namespace than the server.
    #[error(
        "the process that asks is in a container, where processes have other numbers\n  hint: ask without a number, for the process itself"
    )]
    OtherNumbers,
    /// The class has no such colors.
    #[error("class {class} has {count} colors, 0 to {}, and `{colors}` lists others\n  hint: color 0 is the first one of the class", count - 1)]
    NoSuchColors {
        /// The class.
        class: String,
        /// The requested colors.
        colors: String,
        /// Number of its colors.
        count: usize,
    },
    /// The class has the colors that other classes leave.
    #[error("class {class} has the rest, so its colors change\n  hint: ask for all of them, without a list")]
    Unsteady {
        /// The class.
        class: String,
    },
    /// The process is in no control group that the server is not in as well.
    #[error("process {pid} is in no control group of its own\n  hint: ask for the process alone")]
    NoGroup {
        /// The process.
        pid: i32,
    },
    /// The process is in no class.
    #[error("process {pid} is in no class\n  hint: isochrome policy explain {pid} says why")]
    InNoClass {
        /// The process.
        pid: i32,
    },
    /// The memory is empty, or goes beyond the end of the addresses.
    #[error("{bytes} bytes from {start:#x} on: an address and a size of memory are needed")]
    NoMemory {
        /// Address of the first byte.
        start: u64,
        /// Size in bytes.
        bytes: u64,
    },
    /// The process has no such colors.
    #[error("process {pid} has {count} colors, 0 to {}, and `{colors}` lists others\n  hint: color 0 is its first one", count - 1)]
    ColorsOutOfRange {
        /// The process.
        pid: i32,
        /// The requested colors.
        colors: String,
        /// Number of its colors.
        count: usize,
    },
    /// The process or its user has too many places.
    #[error(
        "process {pid} would have more than {most} places, or its user more than {of_user}\n  hint: give up some, or take larger ones"
    )]
    TooManyPlaces {
        /// The process.
        pid: i32,
        /// Most places of a process.
        most: usize,
        /// Most places of a user.
        of_user: usize,
    },
    /// The user has too many processes in classes by request.
    #[error(
        "user {user} has {PROCESSES_MAX} processes in classes by request, which is the most there can be\n  hint: a member of the policy such as {{ user = \"{user}\" }} has no such limit"
    )]
    TooMany {
        /// The user.
        user: String,
    },
    /// The process cannot be inspected.
    #[error("{0}")]
    Process(#[from] ProcessError),
    /// The policy with the new class cannot be put in force, or the request cannot be written down.
    #[error("{0}")]
    Server(String),
}

/// Content of the file.
#[derive(Serialize, Deserialize)]
struct RequestsFile {
    schema: String,
    boot_id: String,
    requests: Vec<Request>,
    #[serde(default)]
    places: Vec<Placed>,
}

/// The requests that were granted, which are in a file as well.
#[derive(Default)]
pub struct Requests {
    path: PathBuf,
    granted: Vec<Request>,
    /// Places inside of processes.
    pub places: Vec<Placed>,
}

impl Requests {
    /// Returns the requests in the file in `folder`. A file of another version or an earlier boot counts as empty.
    ///
    /// Fails if others could have written the file.
    pub fn open(folder: &Path) -> Result<Requests, SystemError> {
        let path = folder.join(FILE);
        let file = runtime::read(&path)?.and_then(|bytes| serde_json::from_slice::<RequestsFile>(&bytes).ok());
        let file = file.filter(|file| file.schema == SCHEMA && file.boot_id == runtime::boot_id());
        let (granted, places) = file.map(|file| (file.requests, file.places)).unwrap_or_default();
        Ok(Requests { path, granted, places })
    }

    /// Returns the requests.
    pub fn granted(&self) -> &[Request] {
        &self.granted
    }

    /// Returns `policy` with the classes of requests.
    pub fn added_to(&self, policy: &Policy) -> Policy {
        let mut policy = policy.clone();
        for request in &self.granted {
            if let Some(cache) = request.cache
                && policy.class(&request.class).is_none()
            {
                policy.add_class(&request.class, cache);
            }
        }
        policy
    }

    /// Returns the request about the process with these `facts`, which was started at `started`: about itself, or about a control group that
    /// it is in.
    pub fn about(&self, facts: &Facts, started: u64) -> Option<&Request> {
        let is_about = |request: &&Request| match &request.who {
            Who::Process(owner) => owner.pid as i32 == facts.pid && owner.start_ticks == started,
            Who::Group(group) => facts.cgroups.iter().any(|own| own == group || is_inside(own, group)),
        };
        // The latest counts.
        self.granted.iter().rev().find(is_about)
    }

    /// Adds the process with these `facts` if there is a request about its parent, and none about itself. Returns whether it was added.
    pub fn inherit(&mut self, facts: &Facts, started: u64) -> bool {
        let is_parent =
            |request: &&Request| matches!(&request.who, Who::Process(owner) if owner.pid as i32 == facts.parent);
        let Some(request) = self.granted.iter().rev().find(is_parent) else { return false };
        if self.about(facts, started).is_some() || self.count(request.uid) >= PROCESSES_MAX {
            return false;
        }
        let own = Owner { pid: facts.pid as u32, start_ticks: started, name: facts.name.clone() };
        self.granted.push(Request { who: Who::Process(own), ..request.clone() });
        true
    }

    /// Returns the number of requests of the user `uid`.
    fn count(&self, uid: u32) -> usize {
        self.granted.iter().filter(|granted| granted.uid == uid).count()
    }

    /// Adds `request`, and removes an earlier request about the same process or group. [`save`](Requests::save) writes the file.
    pub fn add(&mut self, request: Request) {
        self.granted.retain(|granted| granted.who != request.who);
        self.granted.push(request);
    }

    /// Puts the requests back that were `granted` before.
    pub fn restore(&mut self, granted: Vec<Request>) {
        self.granted = granted;
    }

    /// Removes requests about processes that have ended, and about control groups unless `groups` has them or a group inside them.
    pub fn drop_ended(&mut self, groups: &BTreeSet<String>) {
        self.granted.retain(|request| match &request.who {
            Who::Process(owner) => owner.is_alive(),
            Who::Group(group) => groups.iter().any(|there| there == group || is_inside(there, group)),
        });
        self.places.retain(Placed::is_alive);
    }

    /// Writes the requests to the file.
    pub fn save(&self) -> Result<(), SystemError> {
        let file = RequestsFile {
            schema: SCHEMA.to_owned(),
            boot_id: runtime::boot_id(),
            requests: self.granted.clone(),
            places: self.places.clone(),
        };
        runtime::replace(&self.path, &serde_json::to_vec(&file).unwrap_or_default())
    }

    /// Returns the request for `join` by `peer`, if `peer` may ask for it. `policy` is in force, and its classes have `colors` colors each.
    pub fn judge(
        &self,
        join: &Join,
        peer: Peer,
        policy: &Policy,
        colors: &[usize],
        users: &Users,
    ) -> Result<Request, RequestError> {
        let is_root = peer.uid == 0;
        if (join.group || matches!(join.into, Destination::Cache(_))) && !is_root {
            return Err(RequestError::OnlyRoot);
        }
        let pid = process_of(peer, join.pid)?;
        let (facts, started) = facts(pid, users)?;
        let user = users.name(&peer.uid.to_string());
        if self.count(peer.uid) >= PROCESSES_MAX {
            return Err(RequestError::TooMany { user });
        }
        let group = || group_of_its_own(pid).ok_or(RequestError::NoGroup { pid: pid.0 });
        let who = if join.group { Who::Group(group()?) } else { Who::Process(Owner::of(pid.0 as u32)?) };
        if let Destination::Cache(cache) = join.into {
            // Two groups may have the same last component, and the policy may have a class of that name.
            let class = match &who {
                Who::Group(group) => group.clone(),
                Who::Process(owner) => format!("/proc/{}", owner.pid),
            };
            return Ok(Request { class, who, uid: peer.uid, cache: Some(cache), colors: None });
        }
        let Destination::Class(name) = &join.into else { return Err(RequestError::OnlyRoot) };
        let Some(index) = policy.class(name) else {
            let there: Vec<&str> = policy.classes.iter().map(|class| class.name.as_str()).collect();
            return Err(RequestError::NoSuchClass { class: name.clone(), there: there.join(", ") });
        };
        let class = &policy.classes[index];
        if !is_root {
            if !class.admits(&user) {
                return Err(RequestError::NotAClient { user, class: name.clone() });
            }
            let by_policy = || match policy.class_of(&facts, std::process::id() as i32, None) {
                Belongs::To(of, _) if of != index && policy.classes[of].exclusive => Some(&policy.classes[of].name),
                _ => None,
            };
            let taken = match self.about(&facts, started) {
                Some(request) => Some(&request.class).filter(|_| request.uid != peer.uid),
                None => by_policy(),
            };
            if let Some(class) = taken {
                return Err(RequestError::Taken { pid: pid.0, class: class.clone() });
            }
        }
        let chosen = match &join.colors {
            None => None,
            Some(_) if class.share == Share::Rest => return Err(RequestError::Unsteady { class: name.clone() }),
            Some(list) => {
                let count = colors[index];
                let indices = parse_list(list, count as u32).ok().filter(|indices| !indices.is_empty());
                let wrong = || RequestError::NoSuchColors { class: name.clone(), colors: list.clone(), count };
                Some(indices.ok_or_else(wrong)?)
            }
        };
        Ok(Request { class: name.clone(), who, uid: peer.uid, cache: None, colors: chosen })
    }
}

/// Returns the process that `peer` asks about: the one with the number `pid`, or itself.
///
/// Fails with [`RequestError::OtherNumbers`], and with [`RequestError::NotYours`] if the process belongs to another user and `peer` is not root.
pub fn process_of(peer: Peer, pid: Option<i32>) -> Result<Pid, RequestError> {
    let pid = match pid {
        Some(_) if !counts_like_this(peer.pid) => return Err(RequestError::OtherNumbers),
        pid => Pid(pid.unwrap_or(peer.pid)),
    };
    if peer.uid != 0 && !belongs_to(pid, peer.uid)? {
        return Err(RequestError::NotYours { pid: pid.0 });
    }
    Ok(pid)
}

/// Whether control group `inner` lies inside of `outer`.
fn is_inside(inner: &str, outer: &str) -> bool {
    inner.strip_prefix(outer).is_some_and(|rest| rest.starts_with('/'))
}

/// Whether the real, effective, saved and file system user of `pid` are all `uid`. A program that has the rights of another user does not belong
/// to its caller.
fn belongs_to(pid: Pid, uid: u32) -> Result<bool, ProcessError> {
    let status = pid.text("status")?;
    let uids: Vec<&str> = status_of(&status, "Uid").split_ascii_whitespace().collect();
    Ok(!uids.is_empty() && uids.iter().all(|own| *own == uid.to_string()))
}

/// Whether `pid` is in the same PID namespace as this process.
fn counts_like_this(pid: i32) -> bool {
    let namespace = |pid: Pid| fs::read_link(pid.path("ns/pid")).ok();
    let own = namespace(Pid(std::process::id() as i32));
    own.is_some() && namespace(Pid(pid)) == own
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command};

    struct Sleeper(Child);

    impl Sleeper {
        fn new() -> Sleeper {
            Sleeper(Command::new("sleep").arg("60").spawn().unwrap())
        }

        fn pid(&self) -> i32 {
            self.0.id() as i32
        }
    }

    impl Drop for Sleeper {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    /// Returns a policy in which this user's programs have no class, and the number of colors of each class.
    fn policy(clients: &str) -> (Policy, Vec<usize>) {
        let text = format!(
            "[class.control]\ncolors = 4\nclients = [{clients}]\n[class.batch]\ncache = \"rest\"\nmembers = [{{ exe = \"/no/such\" }}]\nclients = [{clients}]\n"
        );
        (isochrome_model::policy::read(&text).unwrap(), vec![4, 12])
    }

    fn join(class: &str) -> Join {
        Join { into: Destination::Class(class.to_owned()), pid: None, group: false, colors: None }
    }

    #[test]
    fn users_may_only_ask_for_their_own_processes_in_classes_that_name_them() {
        let sleeper = Sleeper::new();
        let own = rustix::process::getuid().as_raw();
        let users = Users::default();
        let (closed, colors) = policy("\"somebody else\"");
        let (open, _) = policy(&format!("\"{}\"", own + 1));
        let ask = |join: &Join, uid: u32, policy: &Policy| {
            let peer = Peer { pid: std::process::id() as i32, uid };
            Requests::default().judge(join, peer, policy, &colors, &users)
        };
        // Another user, whose number is no user's of this process, may not.
        let other = own + 1;
        let of = |pid| Join { pid: Some(pid), ..join("control") };
        assert!(matches!(ask(&of(sleeper.pid()), other, &open), Err(RequestError::NotYours { .. })));
        assert!(matches!(ask(&of(i32::MAX), other, &open), Err(RequestError::Process(_))));
        assert!(matches!(ask(&Join { group: true, ..join("control") }, other, &open), Err(RequestError::OnlyRoot)));
        let cache = Join { into: Destination::Cache(Bytes(1 << 17)), ..join("") };
        assert!(matches!(ask(&cache, other, &open), Err(RequestError::OnlyRoot)));
        if own != 0 {
            return;
        }
        // Root may all of it, whatever the policy says.
        let granted = ask(&of(sleeper.pid()), 0, &closed).unwrap();
        assert!(matches!(granted.who, Who::Process(owner) if owner.pid as i32 == sleeper.pid()));
        assert!(matches!(ask(&join("contrl"), 0, &closed), Err(RequestError::NoSuchClass { .. })));
        assert_eq!(ask(&cache, 0, &closed).unwrap().cache, Some(Bytes(1 << 17)));
        for (list, chosen) in [("0-1", Some(vec![0, 1])), ("3", Some(vec![3])), ("4", None), ("-1", None), ("", None)] {
            let request = Join { colors: Some(list.to_owned()), ..join("control") };
            assert_eq!(ask(&request, 0, &closed).ok().and_then(|granted| granted.colors), chosen, "{list}");
        }
        let unsteady = Join { colors: Some("0".to_owned()), ..join("batch") };
        assert!(matches!(ask(&unsteady, 0, &closed), Err(RequestError::Unsteady { .. })));
    }

    #[test]
    fn requests_last_as_long_as_what_they_are_about() {
        let folder = tempfile::tempdir().unwrap();
        let sleeper = Sleeper::new();
        let mut requests = Requests::open(folder.path()).unwrap();
        let request = |who, cache| Request { class: "control".to_owned(), who, uid: 0, cache, colors: None };
        requests.add(request(Who::Process(Owner::of(sleeper.pid() as u32).unwrap()), None));
        requests.add(request(Who::Group("/pods/a".to_owned()), Some(Bytes(1))));
        requests.save().unwrap();
        let mut again = Requests::open(folder.path()).unwrap();
        assert_eq!(again.granted(), requests.granted());
        let (asleep, started) = facts(Pid(sleeper.pid()), &Users::default()).unwrap();
        assert_eq!(again.about(&asleep, started).map(|request| request.class.as_str()), Some("control"));
        assert_eq!(again.about(&asleep, started + 1), None, "another process with the same number");
        let inside = |group: &str| Facts { cgroups: vec![group.to_owned()], ..Facts::default() };
        let is_about = |group: &str| again.about(&inside(group), 0).is_some();
        assert_eq!(["/pods/a", "/pods/a/b", "/pods/ab", "/pods"].map(is_about), [true, true, false, false]);
        let own = Pid(std::process::id() as i32);
        let (child, started) = facts(own, &Users::default()).unwrap();
        let child = Facts { parent: sleeper.pid(), ..child };
        assert!(again.inherit(&child, started) && !again.inherit(&child, started) && again.granted().len() == 3);
        drop(sleeper);
        again.drop_ended(&BTreeSet::from(["/pods/a/b".to_owned()]));
        assert_eq!(again.granted().len(), 2, "the child and the group go on");
        again.drop_ended(&BTreeSet::from(["/pods/b".to_owned()]));
        assert_eq!(again.granted().len(), 1, "the group has gone");
    }

    #[test]
    fn a_file_of_another_version_counts_as_empty() {
        let folder = tempfile::tempdir().unwrap();
        for text in ["{\"schema\":\"isochrome-requests/2\",\"boot_id\":\"\",\"requests\":[]}", "nonsense"] {
            runtime::replace(&folder.path().join(FILE), text.as_bytes()).unwrap();
            assert!(Requests::open(folder.path()).unwrap().granted().is_empty());
        }
    }
}
