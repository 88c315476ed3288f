//! The ledger of grants: which colors of which cache belong to whom. [Liedtke1997, §5.1: colors go to tasks or groups for exclusive
//! use.]
//!
//! The ledger is one file in the [runtime folder](crate::runtime). Every change is made under a lock and replaces the file as a whole, so a
//! crash leaves either the old ledger or the new one. A grant lives as long as its owner, which is identified by process number and start
//! time. Grants of owners that have ended do not count, and are dropped at the next change.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::{Path, PathBuf};

use isochrome_model::units::{Color, CpuId, format_list};
use rustix::fs::{FlockOperation, flock};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::color::error::ColorError;
use crate::color::resident;
use crate::error::SystemError;
use crate::process::{Pid, ProcessError};
use crate::runtime;

/// Version of the file format.
const SCHEMA: &str = "isochrome-ledger/1";
/// Name of the ledger's file.
const FILE: &str = "ledger.json";

/// A process that holds colors, distinguished from a later process with the same number.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Owner {
    /// Process number.
    pub pid: u32,
    /// Start time of the process, in ticks since boot: field 22 of /proc/PID/stat.
    pub start_ticks: u64,
    /// Name of the process, for people.
    pub name: String,
}

/// Owners are equal if number and start time are: a process stays the same when it executes another program or changes its name.
impl PartialEq for Owner {
    fn eq(&self, other: &Owner) -> bool {
        (self.pid, self.start_ticks) == (other.pid, other.start_ticks)
    }
}

impl Eq for Owner {}

impl Owner {
    /// Returns the process that runs as `pid` now.
    ///
    /// Fails with [`ProcessError::NoSuchProcess`].
    pub fn of(pid: u32) -> Result<Owner, ProcessError> {
        let start_ticks = Pid(pid as i32).start_time().ok_or(ProcessError::NoSuchProcess { pid })?;
        Ok(Owner { pid, start_ticks, name: resident::command(pid)? })
    }

    /// Whether the process still runs. A process that has ended counts as ended even before its parent has waited for it.
    pub fn is_alive(&self) -> bool {
        Pid(self.pid as i32).start_time() == Some(self.start_ticks)
    }
}

/// Who may use the colors of a grant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Sharing {
    /// Only the owner of the grant.
    Exclusive,
    /// Every owner that names the same group.
    Group(String),
}

/// The colors that are requested.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// Exactly these colors.
    Colors(Vec<Color>),
    /// This many colors: first those that the group holds already, then the lowest that nobody else holds.
    Free(usize),
}

/// Colors of one cache level that belong to an owner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Grant {
    /// The process that holds the colors.
    pub owner: Owner,
    /// Who else may use the colors.
    pub sharing: Sharing,
    /// Cache level.
    pub level: u8,
    /// CPUs on which the owner runs, ascending.
    pub cpus: Vec<CpuId>,
    /// Colors, ascending.
    pub colors: Vec<Color>,
}

/// A request for colors to the ledger.
#[derive(Clone, Debug)]
pub struct GrantRequest<'a> {
    /// Owner who is to get the colors.
    pub owner: Owner,
    /// Who else may use the colors.
    pub sharing: Sharing,
    /// Level of the cache whose colors are requested.
    pub level: u8,
    /// The CPUs of each instance of the cache. Owners on CPUs that share an instance get different colors.
    pub shared_by: &'a [Vec<CpuId>],
    /// Number of colors of the cache.
    pub color_count: u32,
    /// CPUs on which the owner runs.
    pub cpus: Vec<CpuId>,
    /// The colors that are requested.
    pub wanted: Wanted,
}

/// The content of the ledger as it is written to its file.
#[derive(Serialize, Deserialize)]
struct LedgerFile {
    schema: String,
    boot_id: String,
    /// For each level, the [numbering](crate::color::reference::Reference::numbering) of its colors.
    #[serde(default)]
    numberings: BTreeMap<u8, String>,
    grants: Vec<Grant>,
}

/// An open ledger. Only one process at a time has the ledger of a folder open.
pub struct Ledger {
    path: PathBuf,
    boot_id: String,
    /// Lock that is held while the ledger is open.
    _lock: File,
    numberings: BTreeMap<u8, String>,
    grants: Vec<Grant>,
}

impl Ledger {
    /// Opens the ledger in `folder`, and waits while another process has it open.
    ///
    /// Grants of owners that have ended and of an earlier boot are ignored, and the next change removes them from the file.
    pub fn open(folder: &Path) -> Result<Ledger, SystemError> {
        runtime::make(folder)?;
        let lock_path = folder.join("ledger.lock");
        let lock = File::options().create(true).truncate(false).write(true).open(&lock_path);
        let lock = lock.map_err(|source| SystemError::Unwritable { path: lock_path.clone(), source })?;
        flock(&lock, FlockOperation::LockExclusive)
            .map_err(|error| SystemError::Unwritable { path: lock_path, source: error.into() })?;
        let LedgerFile { boot_id, numberings, grants, .. } = file_in(folder)?;
        Ok(Ledger { path: folder.join(FILE), boot_id, _lock: lock, numberings, grants })
    }

    /// Returns all grants, in the order in which they were made.
    pub fn grants(&self) -> &[Grant] {
        &self.grants
    }

    /// Grants colors to an owner, in place of the colors of this level that the owner held before, and returns the grant.
    ///
    /// Fails with [`ColorError::ColorsHeld`] when another owner holds one of the colors, shares an instance of the cache, and is not in the
    /// same group. Also fails with [`ColorError::TooFewFreeColors`], [`ColorError::NoSuchColor`] and [`ColorError::NothingAsked`]. Nothing
    /// changes in these cases.
    pub fn grant(&mut self, request: GrantRequest<'_>) -> Result<Grant, ColorError> {
        let GrantRequest { owner, sharing, level, shared_by, color_count, mut cpus, wanted } = request;
        cpus.sort_unstable();
        cpus.dedup();
        let others = || {
            let apart = |grant: &&Grant| grant.owner != owner && grant.level == level;
            self.grants.iter().filter(apart).filter(|grant| meet(shared_by, &grant.cpus, &cpus))
        };
        let shares =
            |grant: &&Grant| matches!((&grant.sharing, &sharing), (Sharing::Group(a), Sharing::Group(b)) if a == b);
        let strangers = || others().filter(|grant| !shares(grant));
        let colors: BTreeSet<Color> = match wanted {
            Wanted::Colors(colors) => colors.into_iter().collect(),
            Wanted::Free(count) => {
                let held: BTreeSet<Color> = strangers().flat_map(|grant| grant.colors.iter().copied()).collect();
                let of_group: BTreeSet<Color> =
                    others().filter(shares).flat_map(|grant| grant.colors.iter().copied()).collect();
                let all = || (0..color_count as u16).map(Color).filter(|color| !held.contains(color));
                let first = all().filter(|color| of_group.contains(color));
                let free: BTreeSet<Color> =
                    first.chain(all().filter(|color| !of_group.contains(color))).take(count).collect();
                if free.len() < count {
                    return Err(ColorError::TooFewFreeColors {
                        wanted: count,
                        free: free.len(),
                        held_by: names(strangers()),
                    });
                }
                free
            }
        };
        let colors: Vec<Color> = colors.into_iter().collect();
        if colors.is_empty() {
            return Err(ColorError::NothingAsked);
        }
        if let Some(color) = colors.iter().find(|color| u32::from(color.0) >= color_count) {
            return Err(ColorError::NoSuchColor { color: color.0, count: color_count as usize });
        }
        if let Some(holder) = strangers().find(|grant| grant.colors.iter().any(|color| colors.contains(color))) {
            let common: Vec<u32> =
                colors.iter().filter(|color| holder.colors.contains(color)).map(|color| u32::from(color.0)).collect();
            let cpus: Vec<u32> = holder.cpus.iter().map(|cpu| cpu.0).collect();
            return Err(ColorError::ColorsHeld {
                colors: format_list(&common),
                owner: holder.owner.name.clone(),
                pid: holder.owner.pid,
                cpus: format_list(&cpus),
                level,
            });
        }
        let grant = Grant { owner, sharing, level, cpus, colors };
        self.grants.retain(|held| (&held.owner, held.level) != (&grant.owner, grant.level));
        self.grants.push(grant.clone());
        self.write()?;
        Ok(grant)
    }

    /// Removes all grants of `owner`, and returns whether there were any.
    pub fn release(&mut self, owner: &Owner) -> Result<bool, SystemError> {
        let before = self.grants.len();
        self.grants.retain(|grant| grant.owner != *owner);
        let released = self.grants.len() < before;
        if released {
            self.write()?;
        }
        Ok(released)
    }

    /// Records that `numbering` numbers the colors of `level` from now on. `order` holds the new number for each old number; without `order`,
    /// grants keep their numbers.
    pub fn renumber(&mut self, level: u8, numbering: &str, order: Option<&[Color]>) -> Result<(), SystemError> {
        if self.numberings.get(&level).is_some_and(|now| now == numbering) {
            return Ok(());
        }
        self.numberings.insert(level, numbering.to_owned());
        if let Some(order) = order {
            for grant in self.grants.iter_mut().filter(|grant| grant.level == level) {
                let new = |color: &Color| order.get(usize::from(color.0)).copied().unwrap_or(*color);
                grant.colors = grant.colors.iter().map(new).collect();
                grant.colors.sort_unstable();
            }
        }
        self.write()
    }

    fn write(&self) -> Result<(), SystemError> {
        let (schema, boot_id) = (SCHEMA.to_owned(), self.boot_id.clone());
        let file = LedgerFile { schema, boot_id, numberings: self.numberings.clone(), grants: self.grants.clone() };
        let mut text = serde_json::to_vec_pretty(&file).expect("grants are plain data");
        text.push(b'\n');
        runtime::replace(&self.path, &text)
    }
}

/// Returns the grants in the ledger in `folder` whose owners are alive, to read only.
///
/// This neither waits for a process that has the ledger open nor needs permission to change it.
pub fn grants_in(folder: &Path) -> Result<Vec<Grant>, SystemError> {
    Ok(file_in(folder)?.grants)
}

/// Reads the ledger in `folder` if it is of this boot, without grants whose owners have ended.
fn file_in(folder: &Path) -> Result<LedgerFile, SystemError> {
    let (schema, boot_id) = (SCHEMA.to_owned(), runtime::boot_id());
    let written = read(&folder.join(FILE))?.filter(|file| file.boot_id == boot_id);
    let mut file = written.unwrap_or(LedgerFile { schema, boot_id, numberings: BTreeMap::new(), grants: Vec::new() });
    file.grants.retain(|grant| grant.owner.is_alive());
    Ok(file)
}

/// Returns the numbering of the colors of `level` by the ledger in `folder`; `None` if there is no entry, or if the ledger cannot be read.
pub fn numbering_of(folder: &Path, level: u8) -> Option<String> {
    file_in(folder).ok()?.numberings.remove(&level)
}

/// Returns the colors of `level` that `owner` holds by the ledger in `folder`; `None` if it holds none, or if the ledger cannot be read.
pub fn colors_of(folder: &Path, owner: &Owner, level: u8) -> Option<Vec<Color>> {
    let grants = grants_in(folder).ok()?;
    grants.into_iter().find(|grant| grant.owner == *owner && grant.level == level).map(|grant| grant.colors)
}

/// Reads the ledger file at `path`. Returns `None` if there is no file yet.
fn read(path: &Path) -> Result<Option<LedgerFile>, SystemError> {
    const HINT: &str =
        "run as root; if the file is damaged, remove it: grants are then forgotten, programs keep their colors";
    let failed = |source| SystemError::Unreadable { path: path.to_owned(), source, hint: HINT };
    let Some(text) = runtime::read(path)? else { return Ok(None) };
    let file: LedgerFile = serde_json::from_slice(&text).map_err(|error| failed(error.into()))?;
    if file.schema != SCHEMA {
        return Err(failed(std::io::Error::other(format!("its schema is `{}`, not `{SCHEMA}`", file.schema))));
    }
    Ok(Some(file))
}

/// Whether one of `groups` has CPUs of both lists.
fn meet(groups: &[Vec<CpuId>], a: &[CpuId], b: &[CpuId]) -> bool {
    let uses = |group: &[CpuId], cpus: &[CpuId]| group.iter().any(|cpu| cpus.contains(cpu));
    groups.iter().any(|group| uses(group, a) && uses(group, b))
}

fn names<'a>(grants: impl Iterator<Item = &'a Grant>) -> String {
    let names: BTreeSet<String> = grants.map(|grant| format!("{} ({})", grant.owner.name, grant.owner.pid)).collect();
    if names.is_empty() { "nobody".to_owned() } else { names.into_iter().collect::<Vec<_>>().join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::sysfs::Sysfs;
    use std::fs;
    use std::process::{Child, Command};

    /// Returns the instances of a cache that serve the CPUs of each group.
    fn cache(groups: &[&[u32]]) -> Vec<Vec<CpuId>> {
        groups.iter().map(|group| group.iter().map(|cpu| CpuId(*cpu)).collect()).collect()
    }

    /// A process that runs until it is dropped.
    struct Sleeper(Child);

    impl Sleeper {
        fn start() -> (Sleeper, Owner) {
            let child = Command::new("sleep").arg("600").spawn().unwrap();
            // Until the child executes `sleep`, it has the name of this process.
            while resident::command(child.id()).unwrap() != "sleep" {
                std::thread::yield_now();
            }
            let owner = Owner::of(child.id()).unwrap();
            (Sleeper(child), owner)
        }
    }

    impl Drop for Sleeper {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    fn request<'a>(owner: &Owner, shared_by: &'a [Vec<CpuId>], cpus: &[u32], wanted: Wanted) -> GrantRequest<'a> {
        let cpus = cpus.iter().map(|cpu| CpuId(*cpu)).collect();
        let (owner, sharing) = (owner.clone(), Sharing::Exclusive);
        GrantRequest { owner, sharing, level: 2, shared_by, color_count: 16, cpus, wanted }
    }

    fn colors(range: std::ops::Range<u16>) -> Wanted {
        Wanted::Colors(range.map(Color).collect())
    }

    #[test]
    fn a_process_that_takes_another_name_keeps_its_grant() {
        let folder = tempfile::tempdir().unwrap();
        let mut ledger = Ledger::open(folder.path()).unwrap();
        let (_sleeper, owner) = Sleeper::start();
        ledger.grant(request(&owner, &cache(&[&[0]]), &[0], colors(0..4))).unwrap();
        let renamed = Owner { name: "another".to_owned(), ..owner };
        ledger.grant(request(&renamed, &cache(&[&[0]]), &[0], colors(2..6))).unwrap();
        assert_eq!(colors_of(folder.path(), &renamed, 2), Some((2..6).map(Color).collect()));
    }

    #[test]
    fn an_overlap_is_refused_with_the_owners_name_only_where_the_cache_is_shared() {
        let folder = tempfile::tempdir().unwrap();
        let mut ledger = Ledger::open(folder.path()).unwrap();
        let (private, shared) = (cache(&[&[0], &[1]]), cache(&[&[0, 1]]));
        let ((_a, a), (_b, b)) = (Sleeper::start(), Sleeper::start());
        ledger.grant(request(&a, &private, &[0], colors(0..4))).unwrap();
        // A CPU with a cache of its own: the same colors are free there.
        ledger.grant(request(&b, &private, &[1], colors(0..4))).unwrap();
        assert!(ledger.release(&b).unwrap());
        for (cache, cpus) in [(&private, &[0][..]), (&private, &[0, 1]), (&shared, &[1])] {
            let error = ledger.grant(request(&b, cache, cpus, colors(3..6))).unwrap_err();
            let message = error.to_string();
            assert!(matches!(error, ColorError::ColorsHeld { .. }), "{message}");
            assert!(
                message.contains("sleep") && message.contains(&a.pid.to_string()) && message.contains("hint:"),
                "{message}"
            );
        }
        assert_eq!(ledger.grants().len(), 1);
        // An owner may exchange its own colors.
        ledger.grant(request(&a, &private, &[0], colors(2..5))).unwrap();
        assert_eq!(ledger.grants()[0].colors, [2, 3, 4].map(Color));
    }

    #[test]
    fn members_of_a_group_share_and_strangers_do_not() {
        let folder = tempfile::tempdir().unwrap();
        let mut ledger = Ledger::open(folder.path()).unwrap();
        let cache = cache(&[&[0, 1]]);
        let ((_a, a), (_b, b), (_c, c)) = (Sleeper::start(), Sleeper::start(), Sleeper::start());
        let of_group = |owner: &Owner, name: &str, wanted| GrantRequest {
            sharing: Sharing::Group(name.to_owned()),
            ..request(owner, &cache, &[0], wanted)
        };
        ledger.grant(of_group(&a, "audio", colors(4..8))).unwrap();
        // A member that requests free colors gets the colors of its group first.
        assert_eq!(ledger.grant(of_group(&b, "audio", Wanted::Free(4))).unwrap().colors, [4, 5, 6, 7].map(Color));
        assert!(matches!(ledger.grant(of_group(&c, "video", colors(7..9))), Err(ColorError::ColorsHeld { .. })));
        assert!(matches!(ledger.grant(request(&c, &cache, &[1], colors(7..9))), Err(ColorError::ColorsHeld { .. })));
    }

    #[test]
    fn free_colors_are_the_lowest_that_nobody_holds() {
        let folder = tempfile::tempdir().unwrap();
        let mut ledger = Ledger::open(folder.path()).unwrap();
        let cache = cache(&[&[0, 1]]);
        let ((_a, a), (_b, b)) = (Sleeper::start(), Sleeper::start());
        ledger.grant(request(&a, &cache, &[0], Wanted::Colors([1, 3, 4].map(Color).to_vec()))).unwrap();
        let granted = ledger.grant(request(&b, &cache, &[1], Wanted::Free(4))).unwrap();
        assert_eq!(granted.colors, [0, 2, 5, 6].map(Color));
        // 16 colors, 3 of which another owner holds.
        let error = ledger.grant(request(&b, &cache, &[1], Wanted::Free(14))).unwrap_err();
        assert!(matches!(error, ColorError::TooFewFreeColors { wanted: 14, free: 13, .. }), "{error}");
        assert!(matches!(ledger.grant(request(&b, &cache, &[1], Wanted::Free(0))), Err(ColorError::NothingAsked)));
        let beyond = ledger.grant(request(&b, &cache, &[1], colors(15..17)));
        assert!(matches!(beyond, Err(ColorError::NoSuchColor { color: 16, count: 16 })));
        assert_eq!(ledger.grants()[1], granted);
    }

    #[test]
    fn grants_last_beyond_the_tool_and_end_with_their_owner() {
        let folder = tempfile::tempdir().unwrap();
        let cache = cache(&[&[0]]);
        let (sleeper, owner) = Sleeper::start();
        Ledger::open(folder.path()).unwrap().grant(request(&owner, &cache, &[0], colors(0..2))).unwrap();
        assert_eq!(grants_in(folder.path()).unwrap().len(), 1);
        drop(sleeper);
        assert_eq!(Ledger::open(folder.path()).unwrap().grants(), []);
        // A process of the same number that started at another time is another owner.
        let (_other, now) = Sleeper::start();
        let before = Owner { start_ticks: now.start_ticks + 1, ..now };
        Ledger::open(folder.path()).unwrap().grant(request(&before, &cache, &[0], colors(0..2))).unwrap();
        assert_eq!(Ledger::open(folder.path()).unwrap().grants(), []);
    }

    #[test]
    fn grants_keep_their_colors_when_the_colors_get_other_numbers() {
        let folder = tempfile::tempdir().unwrap();
        let cache = cache(&[&[0]]);
        let (_sleeper, owner) = Sleeper::start();
        let mut ledger = Ledger::open(folder.path()).unwrap();
        ledger.renumber(2, "own", None).unwrap();
        ledger.grant(request(&owner, &cache, &[0], colors(0..3))).unwrap();
        let reversed: Vec<Color> = (0..16).rev().map(Color).collect();
        for _ in 0..2 {
            // The second call changes nothing.
            ledger.renumber(2, "machine's", Some(&reversed)).unwrap();
            ledger.renumber(3, "of another level", Some(&reversed)).unwrap();
        }
        drop(ledger);
        assert_eq!(colors_of(folder.path(), &owner, 2), Some((13..16).map(Color).collect()));
        assert_eq!(numbering_of(folder.path(), 2).as_deref(), Some("machine's"));
    }

    #[test]
    fn of_many_that_ask_at_once_one_gets_the_color() {
        let folder = tempfile::tempdir().unwrap();
        let owners: Vec<(Sleeper, Owner)> = (0..8).map(|_| Sleeper::start()).collect();
        let cache = cache(&[&[0]]);
        let granted: usize = std::thread::scope(|scope| {
            let ask = |owner: &Owner| {
                let mut ledger = Ledger::open(folder.path()).unwrap();
                usize::from(ledger.grant(request(owner, &cache, &[0], colors(5..6))).is_ok())
            };
            let threads: Vec<_> = owners.iter().map(|(_, owner)| scope.spawn(move || ask(owner))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!((granted, Ledger::open(folder.path()).unwrap().grants().len()), (1, 1));
    }

    #[test]
    fn a_damaged_or_foreign_ledger_is_refused_and_one_of_an_earlier_boot_is_empty() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger.json");
        for text in ["", "{", r#"{"schema":"isochrome-ledger/9","boot_id":"","grants":[]}"#] {
            fs::write(&path, text).unwrap();
            let error = Ledger::open(folder.path()).err().unwrap();
            assert!(error.to_string().contains("hint:"), "{error}");
        }
        fs::remove_file(&path).unwrap();
        let owner = Owner::of(std::process::id()).unwrap();
        Ledger::open(folder.path()).unwrap().grant(request(&owner, &cache(&[&[0]]), &[0], colors(0..2))).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        let boot_id = Sysfs::system().text("proc/sys/kernel/random/boot_id").unwrap();
        fs::write(&path, text.replace(&boot_id, "an earlier one")).unwrap();
        assert_eq!(Ledger::open(folder.path()).unwrap().grants(), []);
    }
}
