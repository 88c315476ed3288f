//! Numbers of colors, and which frames have them.

use std::collections::HashMap;
use std::fs::File;
use std::path::Path;

use isochrome_host::color::known::{KnownColors, all_colors, on_a_cpu};
use isochrome_host::color::ledger::{self, GrantRequest, Ledger, Owner, Sharing, Wanted};
use isochrome_host::color::reference::{Numbers, Ready, Reference};
use isochrome_host::color::reserve::Reserve;
use isochrome_host::color::saved::Boot;
use isochrome_host::color::tester::Effort;
use isochrome_host::color::{ColorError, Target, pagemap, resident};
use isochrome_host::machine::sysfs::Sysfs;
use isochrome_host::sys::memory::{Arena, page_bytes};
use isochrome_model::machine::Machine;
use isochrome_model::palette::decode::Answer;
use isochrome_model::units::{Bytes, Color, FrameNumber};

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
        level: cache.level,
        shared_by: &cache.shared_by.value,
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

pub fn frames_of_a_reserve_are_measured_and_have_their_colors_where_they_are_handed_out() {
    /// Frames that are handed over at a time: fewer than the kernel keeps in the list of a CPU.
    const PORTION: usize = 64;
    let (machine, _) = Sysfs::system().machine().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let reference = numbered(&machine, folder.path(), None).unwrap().reference;
    let known = KnownColors::measured(reference.clone(), None, false, allowed_cpus());
    let (cpus, colors) = (allowed_cpus(), all_colors(&known));
    let mut reserve = Reserve::new(&known, Bytes(8 << 20)).unwrap();
    assert_eq!((reserve.held(), reserve.listed(), reserve.has_unknown()), (2048, 0, true));
    let tester = || Ok::<_, ColorError>(reference.tester(1)?.expect("the pages are there"));
    while reserve.has_unknown() {
        on_a_cpu(&cpus, || reserve.measure(&known, &mut tester()?)).unwrap();
    }
    assert!(100 * reserve.listed() > 99 * 2048, "{} of 2048", reserve.listed());

    // Other tests, of pages of this test that get the frames, say the same of them.
    let mappings = resident::mappings(std::process::id()).unwrap();
    let frames = mappings.iter().flat_map(|mapping| &mapping.pages).filter_map(|page| page.frame);
    let by_reserve: HashMap<FrameNumber, Color> =
        frames.filter_map(|frame| known.of_frame(frame).map(|color| (frame, color))).collect();
    let count = 1024 / PORTION * PORTION;
    let mut arena = Arena::map(count).unwrap();
    let mut numbers = vec![count.div_ceil(colors.len()); colors.len()];
    on_a_cpu(&cpus[..1], || {
        for first in (0..count).step_by(PORTION) {
            reserve.give(&colors, &mut numbers, PORTION);
            // A page that is only read gets no frame of its own.
            (first..first + PORTION).for_each(|page| arena.bytes_mut()[page * page_bytes()] = 1);
        }
        Ok::<_, ColorError>(())
    })
    .unwrap();
    let arrived: Vec<(u32, Color)> = (0..)
        .zip(pagemap::frames(&arena, 0..count))
        .filter_map(|(page, frame)| Some((page, *by_reserve.get(&frame?)?)))
        .collect();
    assert!(2 * arrived.len() > count, "{} of {count} arrived", arrived.len());
    let pages: Vec<u32> = arrived.iter().map(|(page, _)| *page).collect();
    let mut tester = on_a_cpu(&cpus, tester).unwrap();
    let first = tester.eviction_test.set_second(arena, &pages, false);
    let numbers: Vec<u32> = pages.iter().map(|page| first + page).collect();
    let answers = on_a_cpu(&cpus, || tester.classify(&numbers, &colors, Effort::STATEMENT)).unwrap();
    let decided: Vec<(Color, Answer)> =
        arrived.iter().zip(answers).filter_map(|((_, color), answer)| Some((*color, answer?))).collect();
    let equal = decided.iter().filter(|(color, answer)| *answer == Answer::Color(*color)).count();
    assert!(2 * decided.len() > arrived.len(), "{} of {} decided", decided.len(), arrived.len());
    assert!(100 * equal > 98 * decided.len(), "{equal} of {} have their colors", decided.len());
}
