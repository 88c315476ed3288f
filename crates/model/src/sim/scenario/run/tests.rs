//! Small scenarios with counts and times found by hand, and tasks in partitions of their own on random machines.

use super::*;
use proptest::prelude::*;

fn outcome(text: &str, traces: &[(&str, &str)]) -> Result<Outcome, ScenarioError> {
    let scenario = Scenario::from_toml(&format!("schema = 'isochrome-scenario/1'\n{text}"))?;
    let machine = match scenario.machine_model()? {
        Some(machine) => machine,
        None => MachineModel::named(scenario.machine.as_deref().unwrap()).unwrap(),
    };
    let mut open = |name: &str| -> std::io::Result<Box<dyn Read>> {
        match traces.iter().find(|(known, _)| *known == name) {
            Some((_, text)) => Ok(Box::new(std::io::Cursor::new(text.to_string()))),
            None => Err(std::io::ErrorKind::NotFound.into()),
        }
    };
    run(&scenario, &machine, &mut open, &mut |_| true)
}

/// A level with 4 sets of 2 ways of 32-byte lines, and pages of 128 bytes: one color.
const SMALL: &str = "levels = ['256:2:32:lru:wb:wa']\npage = '128'\n";

#[test]
fn a_preemption_after_given_accesses_costs_the_refills_it_caused() {
    // Control makes two passes over 4 lines of a cache that holds 8. After 4 accesses, a task preempts it that fills the whole
    // cache.
    let outcome = outcome(
        &format!(
            "{SMALL}
            [[task]]
            name = 'control'
            workload = 'walk:area=128,stride=32,passes=2'
            [[task]]
            name = 'flooder'
            workload = 'walk:area=256,stride=32,passes=1,write=1'
            jobs = 0
            [[preemption]]
            by = 'flooder'
            of = 'control'
            at_accesses = [4]"
        ),
        &[],
    )
    .unwrap();
    let [control, flooder] = outcome.tasks.as_slice() else { panic!() };
    assert_eq!((control.jobs, control.accesses, control.preempted, control.cycles), (1, 8, 1, 8));
    assert_eq!((flooder.jobs, flooder.accesses), (1, 8));
    let causes = control.levels[0].tally.causes;
    assert_eq!((causes.cold, causes.extrinsic, causes.capacity, causes.conflict), (4, 4, 0, 0));
    assert_eq!(control.levels[0].tally.lost, 4);
    // The flooder's lines evict control's 4 lines. Then control's lines evict 4 of the flooder's lines, which are all dirty.
    let cache = &outcome.caches[0];
    assert_eq!(cache.interference.evictions, [[0, 4], [4, 0]]);
    assert_eq!(cache.interference.extrinsic_by, [[0, 0], [4, 0]]);
    assert_eq!(flooder.levels[0].tally.counts.writebacks, 4);
    assert_eq!(cache.occupancy, [[4], [4]]);
    assert_eq!(outcome.cpu_cycles, [16]);
}

#[test]
fn preemptions_by_the_clock_come_when_it_has_passed_them_and_are_lost_while_a_job_is_under_way() {
    let run = |times: &str| {
        outcome(
            &format!(
                "{SMALL}
                [[task]]
                name = 'a'
                workload = 'walk:area=32,stride=32,passes=100'
                [[task]]
                name = 'b'
                workload = 'walk:area=32,stride=32,passes=10'
                jobs = 0
                [[preemption]]
                by = 'b'
                {times}"
            ),
            &[],
        )
        .unwrap()
    };
    // b runs from 20 to 30, so 25 is lost; a's last access ends at 120.
    let outcome = run("at_cycles = [20, 25, 50]");
    assert_eq!((outcome.tasks[1].jobs, outcome.tasks[1].releases_lost, outcome.cpu_cycles[0]), (2, 1, 120));
    // Of every 17 cycles, b takes 10 and leaves 7 to a. After its first 17 accesses, a makes the other 83 in 12 pieces.
    let outcome = run("every_cycles = 17");
    assert_eq!((outcome.tasks[1].jobs, outcome.tasks[1].releases_lost), (12, 0));
    // Released in every cycle, b runs after each access of a, including the last one.
    let outcome = run("every_cycles = 1");
    assert_eq!((outcome.tasks[0].jobs, outcome.tasks[1].jobs), (1, 100));
}

#[test]
fn tasks_alternate_and_the_cpu_that_is_behind_goes_next() {
    let outcome = outcome(
        "levels = ['256:2:32:lru:wb:wa', '1K:2:32:lru:wb:wa']
        shared_levels = 1
        page = '128'
        slice_cycles = 10
        timing = { access_cycles = 1, read_cycles = [9], write_cycles = [0], memory_read_cycles = 90, memory_write_cycles = 0 }
        [[task]]
        name = 'a'
        workload = 'walk:area=32,stride=32,passes=30'
        [[task]]
        name = 'b'
        workload = 'walk:area=32,stride=32,passes=30'
        [[task]]
        name = 'other'
        cpu = 1
        workload = 'walk:area=32,stride=32,passes=1'
        background = true",
        &[],
    )
    .unwrap();
    // Each of a and b has one miss, which takes 100 cycles, and 29 hits.
    assert_eq!((outcome.tasks[0].cycles, outcome.tasks[1].cycles), (129, 129));
    // The other CPU kept up: a first access of 100 cycles, then as many hits as fit into 258 cycles.
    assert_eq!(outcome.cpu_cycles[0], 258);
    assert!((258..=260).contains(&outcome.cpu_cycles[1]), "{:?}", outcome.cpu_cycles);
    let names: Vec<&str> = outcome.levels.iter().map(|level| level.name.as_str()).collect();
    assert_eq!(names, ["L1.1", "L1.0", "L2"]);
}

#[test]
fn a_time_slice_lasts_for_its_time_however_short_the_jobs_are() {
    let outcome = outcome(
        "levels = ['64:1:32:lru:wb:wa']
        slice_cycles = 100
        timing = { access_cycles = 1, read_cycles = [], write_cycles = [], memory_read_cycles = 9, memory_write_cycles = 0 }
        [[task]]
        name = 'short'
        workload = 'walk:area=32,stride=32,passes=1'
        jobs = 200
        [[task]]
        name = 'other'
        workload = 'walk:area=32,stride=32,passes=10'
        background = true",
        &[],
    )
    .unwrap();
    let [short, other] = &outcome.tasks[..] else { panic!("{outcome:?}") };
    // The lines of both tasks compete for one way. In each time slice of `short`, the first access misses and takes 10 cycles;
    // the next 90 accesses hit. So its slices have 91, 91 and 18 accesses. In between, `other` has two slices of 91 accesses.
    assert_eq!((short.accesses, short.cycles, other.accesses), (200, 227, 182));
}

#[test]
fn a_single_writer_keeps_dirty_lines_of_others_out_of_its_colors() {
    // There are 8 colors, and the other task writes in all of them.
    let run = |single_writer: bool| {
        outcome(
            &format!(
                "levels = ['8K:2:32:lru:wb:wa']
                page = '512'
                [[task]]
                name = 'owner'
                workload = 'walk:area=2K,stride=32,passes=2'
                colors = '0-1'
                single_writer = {single_writer}
                [[task]]
                name = 'other'
                workload = 'walk:area=16K,stride=32,passes=1,write=1'
                jobs = 0
                [[preemption]]
                by = 'other'
                of = 'owner'
                at_accesses = [64]"
            ),
            &[],
        )
        .unwrap()
    };
    let written_back = |outcome: &Outcome, colors: std::ops::Range<usize>| -> u64 {
        outcome.caches[0].interference.tallies[1][colors].iter().map(|tally| tally.counts.writebacks).sum()
    };
    let (plain, single) = (run(false), run(true));
    assert!(written_back(&plain, 0..2) > 0);
    assert_eq!(written_back(&single, 0..2), 0);
    assert_eq!(written_back(&single, 2..8), written_back(&plain, 2..8));
    assert_eq!(single.tasks[0].levels[0].tally.causes, plain.tasks[0].levels[0].tally.causes);
}

#[test]
fn free_coloring_reserves_what_is_used_and_colors_reserve_their_share() {
    let outcome = outcome(
        "machine = 'pentium-133'
        memory = '5M'
        [[task]]
        name = 'colored'
        workload = 'walk:area=160K,stride=32,passes=2'
        colors = '0-31'
        [[task]]
        name = 'free'
        workload = 'walk:area=160K,stride=32,passes=2'
        colors = '32-63'
        pages = 'free'",
        &[],
    )
    .unwrap();
    let [colored, free] = outcome.tasks.as_slice() else { panic!() };
    assert_eq!((colored.pages, colored.frames_reserved), (40, Some(640)));
    assert_eq!((free.pages, free.frames_reserved), (40, Some(40)));
    let misses = |task: &TaskOutcome| task.levels.iter().find(|level| level.name == "L2").unwrap().tally.causes;
    assert_eq!(misses(colored), misses(free));
    assert_eq!(outcome.caches.last().unwrap().interference.between_tasks(), 0);
}

#[test]
fn what_cannot_be_run_is_refused_with_the_reason() {
    let task = |settings: &str| format!("{SMALL}[[task]]\nname = 'a'\n{settings}");
    let walk = "workload = 'walk:area=128,stride=32,passes=1'";
    let cases = [
        (String::new(), "either `machine` or `levels`"),
        ("levels = ['256:0:32:lru:wb:wa']".to_owned(), "0 ways"),
        ("levels = ['256:2:32:lru:wb:wa']\nshared_levels = 2".to_owned(), "2 of 1 levels"),
        ("machine = 'zen3'\nshared_levels = 1".to_owned(), "own timing"),
        (SMALL.to_owned(), "no task ever finishes"),
        (task(&format!("{walk}\nbackground = true")), "no task ever finishes"),
        (
            format!(
                "timing = {{ access_cycles = 1, read_cycles = [], write_cycles = [], memory_read_cycles = 9999999999, \
                 memory_write_cycles = 1 }}\n{}",
                task(walk)
            ),
            "more than a million cycles",
        ),
        (task("trace = 'x'\nworkload = 'matmul'"), "either `workload` or `trace`"),
        (task("trace = 'missing'"), "missing: entity not found"),
        (task("trace = 'bad'"), "bad:2: unknown label"),
        (task("trace = 'empty'"), "accesses nothing"),
        (task("trace = 'bad'\nformat = 'elf'"), "`elf` is not a trace format"),
        (task("workload = 'sieve'"), "`sieve` is not a workload"),
        (task(&format!("{walk}\ncolors = '0-7'")), "out of range"),
        (task(&format!("{walk}\ncolors = ''")), "no colors"),
        (task(&format!("{walk}\nways = {{ L9 = '0' }}")), "no level L9"),
        (task(&format!("{walk}\nways = {{ L1 = '0-5' }}")), "out of range"),
        (task(&format!("{walk}\nways = {{ L1 = '' }}")), "allows none"),
        (task(&format!("{walk}\npages = 'random'")), "need the size of the memory"),
        (task(&format!("{walk}\ncolors = '0'\npages = 'random'")), "do not keep to colors"),
        (task(&format!("{walk}\ncpu = 4000")), "more than 256"),
        (format!("cpus = 1\n{}", task(&format!("{walk}\ncpu = 1"))), "there is no CPU 1"),
        (format!("{}\n[[task]]\nname = 'a'", task(walk)), "two of this name"),
        (format!("{}\n[[preemption]]\nby = 'b'\nat_cycles = [1]", task(walk)), "task `b`"),
        (format!("{}\n[[preemption]]\nby = 'a'", task(walk)), "nothing says when a preempts"),
        (format!("{}\n[[preemption]]\nby = 'a'\nevery_cycles = 0", task(walk)), "every 0"),
        (format!("{}\n[[preemption]]\nby = 'a'\nof = 'a'\nat_accesses = [1]", task(walk)), "cannot preempt"),
        (
            format!("memory = '128'\n{}", task("workload = 'walk:area=256,stride=32,passes=1'\npages = 'random'")),
            "more than the memory",
        ),
        (task("pages = 'colourful'"), "not a scenario"),
        (task("sets = 3"), "unknown field"),
    ];
    let traces = [("bad", "0 1\nx 2\n"), ("empty", "")];
    for (text, reason) in cases {
        let error = outcome(&text, &traces).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains(reason), "{text}\n{error}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    /// Tasks with disjoint colors, ways or both never evict each other at the partitioned level [Kim2013]. This is tested on
    /// the i7-2600 and on random two-level machines, on one CPU or two, with preemptions. If the tasks share everything on the
    /// i7-2600, they do evict each other.
    #[test]
    fn tasks_in_partitions_of_their_own_never_evict_each_other(
        i7: bool,
        log_sets in 3u32..6,
        log_ways in 1u32..4,
        policy in prop::sample::select(vec!["lru", "tree-plru", "bit-plru", "fifo", "random=3", "qlru-h11-m1-r0-u0"]),
        inclusion in prop::sample::select(vec!["noninclusive", "inclusive", "exclusive"]),
        write_miss in prop::sample::select(vec!["wa", "nwa", "wau"]),
        two_cpus: bool,
        shared_first_level: bool,
        (by_colors, by_ways) in prop::sample::select(vec![(true, false), (false, true), (true, true), (false, false)]),
        split in 1u32..31,
        way_split in 1u32..15,
        seed in 0u64..1000,
    ) {
        // On a random machine every page is 4 lines of 32 bytes; the second level has 4 times the sets of the first.
        let (machine, level, colors, ways) = if i7 {
            ("machine = 'i7-2600'\n".to_owned(), "L3", 32, 16)
        } else {
            let (sets, ways) = (1u64 << log_sets, 1u64 << log_ways);
            let first = format!("{}:2:32:lru:wb:wa", sets * 2 * 32);
            let write_miss = if inclusion == "exclusive" { "wa" } else { write_miss };
            let second = format!("{}:{ways}:32:{policy}:wb:{write_miss}:{inclusion}", 4 * sets * ways * 32);
            let shared = if shared_first_level { 2 } else { 1 };
            (format!("levels = ['{first}', '{second}']\nshared_levels = {shared}\npage = '128'\n"), "L2", sets as u32, ways as u32)
        };
        let (split, way_split) = (1 + split % (colors - 1), 1 + way_split % (ways - 1));
        let part = |task: u32| {
            let colors = match (by_colors, task) {
                (false, _) => "colors = '0-1'".to_owned(),
                (true, 0) => format!("colors = '0-{}'", split - 1),
                (true, _) => format!("colors = '{split}-{}'", colors - 1),
            };
            let ways = match (by_ways, task) {
                (false, _) => String::new(),
                (true, 0) => format!("ways = {{ {level} = '0-{}' }}", way_split - 1),
                (true, _) => format!("ways = {{ {level} = '{way_split}-{}' }}", ways - 1),
            };
            format!("{colors}\n{ways}")
        };
        let area = if i7 { 2 << 20 } else { 64 << 10 };
        let text = format!(
            "{machine}
            [[task]]
            name = 'a'
            workload = 'chase:area={area},line=64,steps=6000,seed={seed}'
            {}
            [[task]]
            name = 'b'
            cpu = {}
            workload = 'walk:area={area},stride=96,passes=1,write=1'
            jobs = 2
            background = {two_cpus}
            {}
            {}",
            part(0),
            u8::from(two_cpus),
            part(1),
            if two_cpus { "" } else { "[[preemption]]\nby = 'b'\nof = 'a'\nevery_accesses = 1500" },
        );
        let outcome = outcome(&text, &[]).unwrap();
        let cache = outcome.caches.iter().find(|cache| cache.name == level).unwrap();
        let extrinsic: u64 = (0..2).map(|task| cache.interference.of_task(task).causes.extrinsic).sum();
        if by_colors || by_ways {
            prop_assert_eq!(cache.interference.between_tasks(), 0, "{}\n{:?}", text, cache.interference.evictions);
            prop_assert_eq!(extrinsic, 0);
        } else if i7 {
            prop_assert!(cache.interference.between_tasks() > 0, "{}", text);
        }
        // The tallies by task and color add up to the counts of the cache.
        let counts = outcome.levels.iter().find(|counts| counts.name == level).unwrap().counts;
        let mut sum = Tally::default();
        (0..2).for_each(|task| sum += cache.interference.of_task(task));
        prop_assert_eq!(sum.counts, counts);
        let lines: u64 = cache.occupancy.iter().flatten().sum();
        prop_assert!(lines <= cache.lines_per_color * u64::from(cache.colors));
    }
}
