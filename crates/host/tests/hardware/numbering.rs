//! Numbers of colors, and which frames have them.

use std::fs::File;
use std::path::Path;

use isochrome_host::color::known::{KnownColors, on_a_cpu};
use isochrome_host::color::ledger::{self, GrantRequest, Ledger, Owner, Sharing, Wanted};
use isochrome_host::color::reference::{Numbers, Ready, Reference};
use isochrome_host::color::reserve::Reserve;
use isochrome_host::color::saved::Boot;
use isochrome_host::color::{ColorError, Target, pagemap, resident};
use isochrome_host::machine::sysfs::Sysfs;
use isochrome_host::sys::memory::{Arena, page_bytes};
use isochrome_model::machine::Machine;
use isochrome_model::units::{Bytes, Color};

use crate::thread::allowed_cpus;

/// Returns the pages of known color that are saved in `folder`, finding them first if necessary. Their colors get the numbers of `machines`, if
/// given.
pub fn numbered(machine: &Machine, folder: &Path, machines: Option<&Reference>) -> Result<Ready, ColorError> {
    let cpus = allowed_cpus();
    let target = Target::of(machine, None, cpus[0])?;
    let boot = Boot::of(machine, &Sysfs::system());
    on_a_cpu(&cpus, || Reference::obtain_as(folder, target, 1, &boot, machines))
}

pub fn an_ordinary_users_colors_get_the_machines_numbers_and_programs_keep_theirs() {
    let (machine, _) = Sysfs::system().machine().unwrap();
    let (machines, own) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let theirs = numbered(&machine, machines.path(), None).unwrap().reference;
    let before = numbered(&machine, own.path(), None).unwrap();
    assert_eq!(before.numbers, Numbers::New);
    let owner = Owner::of(std::process::id()).unwrap();
    let cache = machine.data_level(before.reference.level).unwrap();
    let colors = before.reference.colors();
    let (first, last) = (Color(0), Color(colors as u16 - 1));
    let request = GrantRequest {
        owner: owner.clone(),
        sharing: Sharing::Exclusive,
        cache,
        color_count: colors,
        cpus: vec![allowed_cpus()[0]],
        wanted: Wanted::Colors(vec![first, last]),
    };
    Ledger::open(own.path()).unwrap().grant(request).unwrap();

    let mut now = numbered(&machine, own.path(), Some(&theirs)).unwrap();
    assert_eq!((&now.numbers, &now.reference.numbering), (&Numbers::Machines, &theirs.numbering));
    let in_order: Vec<Color> = (0..colors as u16).map(Color).collect();
    assert_eq!(theirs.order_by(&mut now.tester).complete(now.tester.colors()), Some(in_order));
    // The program keeps its colors. Their new numbers are found by their pages.
    let number_now = |color: Color| {
        let page = before.reference.sets[usize::from(color.0)][0];
        Color(now.reference.sets.iter().position(|set| set.contains(&page)).unwrap() as u16)
    };
    let mut expected = [first, last].map(number_now).to_vec();
    expected.sort_unstable();
    assert_eq!(ledger::colors_of(own.path(), &owner, now.reference.level), Some(expected));
    // The next command keeps the numbers.
    let next = numbered(&machine, own.path(), Some(&theirs)).unwrap();
    assert_eq!((next.numbers, next.reference.sets), (Numbers::Kept, now.reference.sets));
}

pub fn what_was_learned_under_numbers_that_another_command_has_replaced_is_forgotten() {
    let (machine, _) = Sysfs::system().machine().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let find = || numbered(&machine, folder.path(), None).unwrap();
    let first = find().reference;
    let file = folder.path().join(format!("reference-l{}", first.level));
    let mut known = KnownColors::measured(first, None, false, allowed_cpus());
    let arena = Arena::map(1).unwrap();
    arena.touch(&[0], 64);
    let address = arena.address() as u64;
    let pagemap = File::open("/proc/self/pagemap").unwrap();
    let page = (address, pagemap::entries(&pagemap, address / page_bytes() as u64, 1).unwrap()[0]);
    known.learn(1, page, Color(0));
    assert_eq!((known.adopt(find()), known.of(1, page)), (Numbers::Kept, Some(Color(0))));

    std::fs::remove_file(file).unwrap();
    let others = find();
    assert_eq!((others.numbers, find().numbers), (Numbers::New, Numbers::Kept));
    assert_eq!((known.adopt(find()), known.of(1, page)), (Numbers::Replaced, None));
}

pub fn frames_of_a_reserve_are_measured_by_tests_of_this_process() {
    let (machine, _) = Sysfs::system().machine().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let reference = numbered(&machine, folder.path(), None).unwrap().reference;
    let measured = || KnownColors::measured(reference.clone(), None, false, allowed_cpus());
    let (first, second) = (measured(), measured());
    let cpus = allowed_cpus();
    let mut reserve = Reserve::new(&first, Bytes(8 << 20)).unwrap();
    assert_eq!((reserve.held(), reserve.listed(), reserve.has_unknown()), (2048, 0, true));
    for known in [&first, &second] {
        // What the other one has measured is unknown to this one.
        reserve.refill(known);
        while reserve.has_unknown() {
            let measure = || reserve.measure(known, &mut reference.tester(1)?.expect("the pages are there"));
            on_a_cpu(&cpus, measure).unwrap();
        }
        assert!(100 * reserve.listed() > 99 * 2048, "{} of 2048", reserve.listed());
    }
    let mappings = resident::mappings(std::process::id()).unwrap();
    let frames = mappings.iter().flat_map(|mapping| &mapping.pages).filter_map(|page| page.frame);
    let both: Vec<_> = frames.filter_map(|frame| first.of_frame(frame).zip(second.of_frame(frame))).collect();
    let equal = both.iter().filter(|(first, second)| first == second).count();
    assert!(100 * both.len() > 98 * 2048 && 100 * equal > 99 * both.len(), "{equal} of {}", both.len());
}
