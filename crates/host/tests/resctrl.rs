//! The whole path from a plan to masks, against a tree that refuses what the kernel refuses: masks out of range, too small, with gaps
//! or overlapping an exclusive group, and more groups than classes of service.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;

use isochrome_host::error::HostError;
use isochrome_host::resctrl::{Group, Tree, Ways, repair, rules};

const EINVAL: i32 = 22;
const ENOENT: i32 = 2;
const ENOSPC: i32 = 28;
const EEXIST: i32 = 17;
const ESRCH: i32 = 3;

/// One 16-way L3 per socket, as Linux shows it on a server with two sockets.
#[derive(Clone)]
struct Fake(Rc<RefCell<State>>);

struct State {
    ways: u32,
    least: u32,
    sparse: Option<bool>,
    classes: usize,
    /// By group, "" is the default one: masks of both sockets.
    groups: BTreeMap<String, [u64; 2]>,
    exclusive: Option<String>,
    tasks: BTreeMap<String, Vec<String>>,
    status: String,
    /// Calls that change something until the tool is killed.
    calls_left: Option<u32>,
}

impl Fake {
    fn new() -> Fake {
        Fake(Rc::new(RefCell::new(State {
            ways: 16,
            least: 1,
            sparse: Some(false),
            classes: 16,
            groups: BTreeMap::from([(String::new(), [0xffff; 2])]),
            exclusive: None,
            tasks: BTreeMap::new(),
            status: "ok".to_owned(),
            calls_left: None,
        })))
    }

    fn masks(&self, group: &str) -> Option<[u64; 2]> {
        self.0.borrow().groups.get(group).copied()
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.0.borrow_mut());
    }
}

fn refused(code: i32) -> io::Error {
    io::Error::from_raw_os_error(code)
}

impl State {
    fn alive(&mut self) -> io::Result<()> {
        match &mut self.calls_left {
            Some(0) => Err(io::Error::other("killed")),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn fail(&mut self, code: i32, status: &str) -> io::Result<()> {
        self.status = status.to_owned();
        Err(refused(code))
    }

    fn schemata(&mut self, group: &str, text: &str) -> io::Result<()> {
        let Some(line) = text.strip_suffix('\n') else { return self.fail(EINVAL, "") };
        let Some(("L3", values)) = line.split_once(':') else {
            return self.fail(EINVAL, "Unknown or unsupported resource name");
        };
        let mut masks = self.groups[group];
        for value in values.split(';') {
            let (id, mask) = value.split_once('=').ok_or_else(|| refused(EINVAL))?;
            let mask = u64::from_str_radix(mask, 16).map_err(|_| refused(EINVAL))?;
            let Some(slot) = id.parse().ok().and_then(|id: usize| masks.get_mut(id)) else {
                return self.fail(EINVAL, "Invalid domain id");
            };
            *slot = mask;
            let run = mask >> mask.trailing_zeros().min(63);
            if mask == 0 || mask >> self.ways != 0 {
                return self.fail(EINVAL, "Mask out of range");
            }
            if run & (run + 1) != 0 && self.sparse != Some(true) {
                return self.fail(EINVAL, &format!("The mask {mask:x} has non-consecutive 1-bits"));
            }
            if mask.count_ones() < self.least {
                return self.fail(EINVAL, &format!("Need at least {} bits in the mask", self.least));
            }
        }
        if let Some(exclusive) = self.exclusive.as_ref().filter(|exclusive| *exclusive != group) {
            let theirs = self.groups[exclusive];
            if (0..2).any(|id| masks[id] & theirs[id] != 0 && masks[id] != self.groups[group][id]) {
                return self.fail(EINVAL, "Overlaps with exclusive group");
            }
        }
        self.groups.insert(group.to_owned(), masks);
        self.status = "ok".to_owned();
        Ok(())
    }
}

impl Tree for Fake {
    fn read(&self, path: &str) -> io::Result<String> {
        let state = self.0.borrow();
        Ok(match path {
            "info/L3/cbm_mask" => format!("{:x}\n", (1u64 << state.ways) - 1),
            "info/L3/min_cbm_bits" => format!("{}\n", state.least),
            "info/L3/num_closids" => format!("{}\n", state.classes),
            "info/L3/sparse_masks" => format!("{}\n", u8::from(state.sparse.ok_or_else(|| refused(ENOENT))?)),
            "info/last_cmd_status" => format!("{}\n", state.status),
            _ => {
                let group = path.strip_suffix("schemata").ok_or_else(|| refused(ENOENT))?.trim_end_matches('/');
                let masks = state.groups.get(group).ok_or_else(|| refused(ENOENT))?;
                format!("    MB:0=100;1=100\n    L3:0={:04x};1={:04x}\n", masks[0], masks[1])
            }
        })
    }

    fn write(&mut self, path: &str, text: &str) -> io::Result<()> {
        let mut state = self.0.borrow_mut();
        state.alive()?;
        let (group, file) = path.rsplit_once('/').unwrap_or(("", path));
        if !state.groups.contains_key(group) {
            return Err(refused(ENOENT));
        }
        match file {
            "schemata" => state.schemata(group, text),
            "tasks" if text.trim() == "999999" => state.fail(ESRCH, "No task 999999"),
            "tasks" => {
                state.tasks.entry(group.to_owned()).or_default().push(text.trim().to_owned());
                Ok(())
            }
            _ => Err(refused(ENOENT)),
        }
    }

    fn make(&mut self, group: &str) -> io::Result<()> {
        let mut state = self.0.borrow_mut();
        state.alive()?;
        if state.groups.contains_key(group) {
            return Err(refused(EEXIST));
        }
        if state.groups.len() == state.classes {
            return state.fail(ENOSPC, "Out of CLOSIDs");
        }
        // A new group has what no exclusive one has.
        let all = (1u64 << state.ways) - 1;
        let theirs = state.exclusive.as_ref().map_or([0; 2], |exclusive| state.groups[exclusive]);
        state.groups.insert(group.to_owned(), theirs.map(|mask| all & !mask));
        Ok(())
    }

    fn remove(&mut self, group: &str) -> io::Result<()> {
        let mut state = self.0.borrow_mut();
        state.alive()?;
        state.tasks.remove(group);
        state.groups.remove(group).map(|_| ()).ok_or_else(|| refused(ENOENT))
    }

    fn groups(&self) -> io::Result<Vec<String>> {
        Ok(self.0.borrow().groups.keys().filter(|name| !name.is_empty()).cloned().collect())
    }
}

fn group(name: &str, mask: u64) -> Group {
    Group { name: name.to_owned(), masks: BTreeMap::from([(0, mask)]) }
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a folder")
}

fn others() -> BTreeMap<u32, u64> {
    BTreeMap::from([(0, 0xff00)])
}

#[test]
fn ways_are_given_and_taken_back() {
    let (fake, folder) = (Fake::new(), folder());
    let mut ways = Ways::give(fake.clone(), 3, &others(), &[group("1", 0xf), group("2", 0xf0)], folder.path()).unwrap();
    // Instances that are not named keep their masks.
    assert_eq!(fake.masks(""), Some([0xff00, 0xffff]));
    assert_eq!(fake.masks("isochrome-1"), Some([0xf, 0xffff]));
    assert_eq!(fake.masks("isochrome-2"), Some([0xf0, 0xffff]));
    ways.assign("2", 4711).unwrap();
    assert_eq!(fake.0.borrow().tasks["isochrome-2"], ["4711"]);
    let error = ways.assign("2", 999_999).unwrap_err().to_string();
    assert!(error.contains("No task 999999") && error.contains("hint:"), "{error}");
    ways.restore().unwrap();
    assert_eq!(fake.0.borrow().groups, BTreeMap::from([(String::new(), [0xffff; 2])]));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn the_rules_are_read_also_where_the_kernel_is_old() {
    let fake = Fake::new();
    fake.change(|state| (state.least, state.sparse) = (2, None));
    let rules = rules(&fake, 3).unwrap();
    assert_eq!((rules.count, rules.least, rules.sparse, rules.classes), (16, 2, false, 16));
    fake.change(|state| state.sparse = Some(true));
    assert!(isochrome_host::resctrl::rules(&fake, 3).unwrap().sparse);
    assert!(matches!(isochrome_host::resctrl::rules(&fake, 2), Err(HostError::ResctrlLevel { level: 2 })));
}

/// What the kernel said when it refused, and that nothing stays changed.
fn refusal(prepare: impl FnOnce(&mut State), groups: &[Group]) -> String {
    let (fake, folder) = (Fake::new(), folder());
    fake.change(prepare);
    let before = fake.0.borrow().groups.clone();
    let error = Ways::give(fake.clone(), 3, &others(), groups, folder.path()).err().expect("refused").to_string();
    assert_eq!(fake.0.borrow().groups, before, "{error}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "{error}");
    error
}

#[test]
fn what_the_kernel_refuses_is_told_in_its_words_and_undone() {
    let told = [
        (refusal(|_| (), &[group("1", 0x5)]), "non-consecutive 1-bits"),
        (refusal(|state| state.least = 2, &[group("1", 0xc), group("2", 0x1)]), "Need at least 2 bits"),
        (refusal(|_| (), &[group("1", 0x1_0000)]), "Mask out of range"),
        (refusal(|state| state.classes = 2, &[group("1", 0x1), group("2", 0x2)]), "Out of CLOSIDs"),
        (
            refusal(
                |state| {
                    state.groups.insert("theirs".to_owned(), [0x3, 0]);
                    state.groups.insert(String::new(), [0xfffc, 0xffff]);
                    state.exclusive = Some("theirs".to_owned());
                },
                &[group("1", 0xf)],
            ),
            "Overlaps with exclusive group",
        ),
    ];
    for (error, words) in told {
        assert!(error.contains(words) && error.contains("hint:"), "{words}: {error}");
    }
}

#[test]
fn groups_of_others_stay_and_a_group_of_ours_is_not_taken_over() {
    let (fake, folder) = (Fake::new(), folder());
    fake.change(|state| {
        state.groups.insert("batch".to_owned(), [0xff00; 2]);
    });
    let ways = Ways::give(fake.clone(), 3, &others(), &[group("1", 0xf)], folder.path()).unwrap();
    let second = Ways::give(fake.clone(), 3, &others(), &[group("2", 0xf0)], folder.path());
    assert!(matches!(second.err(), Some(HostError::ResctrlLeft { group }) if group == "isochrome-1"));
    assert_eq!(fake.masks("isochrome-1"), Some([0xf, 0xffff]));
    ways.restore().unwrap();
    assert_eq!(fake.masks("batch"), Some([0xff00; 2]));
}

#[test]
fn a_run_killed_after_any_change_is_put_right_by_the_next_start() {
    for calls in 0..6 {
        let (fake, folder) = (Fake::new(), folder());
        fake.change(|state| state.calls_left = Some(calls));
        let ways = Ways::give(fake.clone(), 3, &others(), &[group("1", 0xf), group("2", 0xf0)], folder.path());
        // Killed before the end, or after everything was given.
        assert_eq!(ways.is_ok(), calls == 5, "{calls}");
        std::mem::forget(ways);
        fake.change(|state| state.calls_left = None);
        assert!(repair(&mut fake.clone(), folder.path()).unwrap(), "{calls}");
        assert_eq!(fake.0.borrow().groups, BTreeMap::from([(String::new(), [0xffff; 2])]), "{calls}");
        assert!(!repair(&mut fake.clone(), folder.path()).unwrap());
    }
}
