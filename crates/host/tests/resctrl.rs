//! Tests of the whole path from a plan to masks, on an imitation of resctrl that refuses the same requests as the kernel.

mod kernel;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;

use isochrome_host::partition::resctrl::{Group, ResctrlError, Tree, Ways, repair, rules};

use kernel::State;

/// A resctrl tree in memory.
#[derive(Clone)]
struct Fake(Rc<RefCell<State>>);

impl Fake {
    fn new() -> Fake {
        Fake(Rc::new(RefCell::new(State::new(3))))
    }

    fn masks(&self, group: &str) -> Option<[u64; 2]> {
        self.0.borrow().groups.get(group).copied()
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.0.borrow_mut());
    }
}

impl Tree for Fake {
    fn read(&self, path: &str) -> io::Result<String> {
        self.0.borrow().read(path)
    }

    fn write(&mut self, path: &str, text: &str) -> io::Result<()> {
        self.0.borrow_mut().write(path, text)
    }

    fn make(&mut self, group: &str) -> io::Result<()> {
        self.0.borrow_mut().make(group)
    }

    fn remove(&mut self, group: &str) -> io::Result<()> {
        self.0.borrow_mut().remove(group)
    }

    fn groups(&self) -> io::Result<Vec<String>> {
        Ok(self.0.borrow().names())
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
    // Cache instances that are not named keep their masks.
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
    assert!(isochrome_host::partition::resctrl::rules(&fake, 3).unwrap().sparse);
    assert!(matches!(isochrome_host::partition::resctrl::rules(&fake, 2), Err(ResctrlError::Level { level: 2 })));
}

/// Returns the error of giving ways to `groups` after `prepare`, which the kernel must refuse. Checks that nothing stays changed.
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
fn what_the_kernel_refuses_is_reported_in_its_words_and_undone() {
    let errors = [
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
    for (error, words) in errors {
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
    assert!(matches!(second.err(), Some(ResctrlError::Left { group }) if group == "isochrome-1"));
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
        // Five calls give everything. With fewer calls, the tool is killed before the end.
        assert_eq!(ways.is_ok(), calls == 5, "{calls}");
        std::mem::forget(ways);
        fake.change(|state| state.calls_left = None);
        assert!(repair(&mut fake.clone(), folder.path()).unwrap(), "{calls}");
        assert_eq!(fake.0.borrow().groups, BTreeMap::from([(String::new(), [0xffff; 2])]), "{calls}");
        assert!(!repair(&mut fake.clone(), folder.path()).unwrap());
    }
}

#[test]
fn a_group_that_is_busy_is_reported_and_its_journal_stays() {
    let (fake, folder) = (Fake::new(), folder());
    let ways = Ways::give(fake.clone(), 3, &others(), &[group("1", 0xf)], folder.path()).unwrap();
    fake.change(|state| state.busy = Some("isochrome-1".to_owned()));
    let error = ways.restore().unwrap_err().to_string();
    assert!(error.contains("removing group isochrome-1") && error.contains("hint: another tool"), "{error}");
    fake.change(|state| state.busy = None);
    assert!(repair(&mut fake.clone(), folder.path()).unwrap());
    assert_eq!(fake.0.borrow().groups, BTreeMap::from([(String::new(), [0xffff; 2])]));
}

#[test]
fn ways_that_go_out_of_use_without_a_word_are_given_back_and_changed_masks_are_seen() {
    let (fake, folder) = (Fake::new(), folder());
    let ways = Ways::give(fake.clone(), 3, &others(), &[group("1", 0xf)], folder.path()).unwrap();
    assert_eq!(ways.changed("1"), None);
    fake.change(|state| {
        state.groups.insert("isochrome-1".to_owned(), [0x3, 0xffff]);
    });
    assert_eq!(ways.changed("1").as_deref(), Some("L3:0=f was written, and 3 is there"));
    drop(ways);
    assert_eq!(fake.0.borrow().groups, BTreeMap::from([(String::new(), [0xffff; 2])]));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}
