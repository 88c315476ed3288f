//! Performance events by processor: the raw code of each event, the quantity that it counts, and the document that defines it.
//!
//! The table is small, so that every number can be checked against its source. An event that is not in the table is not counted, because a
//! code that means something else on another processor is worse than no code. On machines with two types of core, the table has the events of
//! the larger type, to which the kernel sends raw events.

use isochrome_model::miss_ratio::Touches;
use serde::Serialize;

use crate::machine::sysfs::Processor;
pub use crate::sys::perf::Code;

/// Quantity that an event counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Quantity {
    /// Instructions retired.
    Instructions,
    /// Cycles of the core while it is not halted.
    Cycles,
    /// Page faults, counted by the kernel on any machine.
    PageFaults,
    /// Accesses to the first-level data cache.
    L1DataAccesses,
    /// Retired loads.
    Loads,
    /// Retired loads that miss the first level.
    L1LoadMisses,
    /// Lines brought into the first-level data cache.
    L1DataRefills,
    /// Reads that miss the first-level data cache, by the kernel's generic event for them.
    L1DataReadMisses,
    /// Fetches that miss the first-level instruction cache, by the kernel's generic event for them.
    L1CodeMisses,
    /// Accesses to the second level.
    L2Accesses,
    /// Reads of data that request the second level, without prefetches into it.
    L2DataReads,
    /// Reads of data that request the second level and miss it, without prefetches into it.
    L2DataReadMisses,
    /// Data requests of the core that miss the second level, without prefetches.
    L2DataMisses,
    /// Requests for code that miss the second level.
    L2CodeMisses,
    /// Requests of the core, for data or code, that miss the second level.
    L2Misses,
    /// Retired loads that miss the second level.
    L2LoadMisses,
    /// Lines brought into the second level.
    L2Refills,
    /// Lines written back by the second level. If the third level is filled by lines that leave the second, clean lines count too.
    L2WriteBacks,
    /// Reads, or requests of any kind, that reach the last level.
    LastLevelAccesses,
    /// Reads, or requests of any kind, that reach the last level and miss it.
    LastLevelMisses,
    /// Retired loads, or reads, that miss the last level.
    LastLevelLoadMisses,
    /// Demanded lines brought into the first level from the second.
    FillsFromL2,
    /// Demanded lines brought into the first level from the third, or from the second level of a neighbor below the same third level.
    FillsFromL3,
    /// Demanded lines brought into the first level from main memory.
    FillsFromMemory,
}

impl Quantity {
    /// Returns the kind of access, data or code, of which this quantity must count every miss; `None` if it need not count every miss.
    ///
    /// The misses are those of a walk in random order through memory much larger than the second level, where every line misses. A counter of
    /// such a quantity that stays near zero on this walk does not work.
    pub fn counts_every_random_miss_of(self) -> Option<Touches> {
        match self {
            Quantity::L1DataRefills
            | Quantity::L1DataReadMisses
            | Quantity::L2Accesses
            | Quantity::L2DataReads
            | Quantity::L2DataReadMisses
            | Quantity::L2DataMisses
            | Quantity::L2Misses
            | Quantity::L2Refills => Some(Touches::Data),
            Quantity::L1CodeMisses | Quantity::L2CodeMisses => Some(Touches::Code),
            _ => None,
        }
    }
}

/// One row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Event {
    /// The quantity that the event counts.
    pub quantity: Quantity,
    /// Name of the event in the processor's manual.
    pub name: &'static str,
    /// Code by which the event is requested from the kernel.
    pub code: Code,
    /// Document that defines the name and the code.
    pub source: &'static str,
}

/// The event that counts instructions retired, on any processor.
pub const INSTRUCTIONS: Event = Event {
    quantity: Quantity::Instructions,
    name: "instructions",
    code: Code::Instructions,
    source: "Linux, perf_event_open(2), PERF_COUNT_HW_INSTRUCTIONS",
};

/// The event that counts cycles of the core, on any processor.
pub const CYCLES: Event = Event {
    quantity: Quantity::Cycles,
    name: "cycles",
    code: Code::Cycles,
    source: "Linux, perf_event_open(2), PERF_COUNT_HW_CPU_CYCLES",
};

/// The event that counts page faults, on any machine.
pub const PAGE_FAULTS: Event = Event {
    quantity: Quantity::PageFaults,
    name: "page-faults",
    code: Code::PageFaults,
    source: "Linux, perf_event_open(2), PERF_COUNT_SW_PAGE_FAULTS",
};

/// The event that counts reads that miss the first-level data cache, on any processor for which the kernel knows such an event.
pub const L1_DATA_READ_MISSES: Event = Event {
    quantity: Quantity::L1DataReadMisses,
    name: "L1-dcache-load-misses",
    code: Code::L1DataReadMisses,
    source: "Linux, perf_event_open(2), PERF_COUNT_HW_CACHE_L1D",
};

/// The event that counts fetches that miss the first-level instruction cache, on any processor for which the kernel knows such an event.
pub const L1_CODE_READ_MISSES: Event = Event {
    quantity: Quantity::L1CodeMisses,
    name: "L1-icache-load-misses",
    code: Code::L1CodeReadMisses,
    source: "Linux, perf_event_open(2), PERF_COUNT_HW_CACHE_L1I",
};

const fn raw(quantity: Quantity, name: &'static str, code: u64, source: &'static str) -> Event {
    Event { quantity, name, code: Code::Raw(code), source }
}

const AMD_L2: &str = "AMD PPR, families 17h, 19h and 1Ah, PMCx064; Linux, tools/perf/pmu-events/arch/x86/amdzen*";
const AMD_FILLS: &str =
    "AMD PPR, families 17h (model 30h on), 19h and 1Ah, PMCx043; Linux, tools/perf/pmu-events/arch/x86/amdzen[2-5]";
const AMD_DISPATCH: &str = "AMD PPR, families 17h, 19h and 1Ah, PMCx029; Linux, tools/perf/pmu-events/arch/x86/amdzen*, all data cache accesses";
const INTEL: &str = "Intel SDM volume 3, chapter 20; Linux, tools/perf/pmu-events/arch/x86/";
const ARM: &str = "Arm Architecture Reference Manual for A-profile, section D13.12, common event numbers";

/// Events of every Zen generation: the first four of [`ZEN_2`]. The generic `cache-misses` is also PMCx064, with data and code, and no
/// last-level event.
const ZEN: &[Event] = ZEN_2.split_at(4).0;

/// Events of Zen 2 and later. The first generation does not document the sources of fills.
const ZEN_2: &[Event] = &[
    raw(Quantity::L2DataReads, "l2_cache_req_stat.dc_access_in_l2", 0xf864, AMD_L2),
    raw(Quantity::L2DataMisses, "l2_cache_req_stat.ls_rd_blk_c", 0x0864, AMD_L2),
    raw(Quantity::L2Misses, "l2_cache_req_stat.ic_dc_miss_in_l2", 0x0964, AMD_L2),
    raw(Quantity::L2CodeMisses, "l2_cache_req_stat.ic_fill_miss", 0x0164, AMD_L2),
    raw(Quantity::FillsFromL2, "ls_dmnd_fills_from_sys.local_l2", 0x0143, AMD_FILLS),
    raw(Quantity::FillsFromL3, "ls_dmnd_fills_from_sys.local_ccx", 0x0243, AMD_FILLS),
    raw(Quantity::FillsFromMemory, "ls_dmnd_fills_from_sys.dram_io", 0x4843, AMD_FILLS),
    raw(Quantity::L1DataAccesses, "ls_dispatch.all_dc_accesses", 0x0729, AMD_DISPATCH),
];

/// Events of Sandy Bridge and Ivy Bridge, which number their second-level events differently.
const INTEL_BEFORE_HASWELL: &[Event] = &[
    raw(Quantity::LastLevelAccesses, "LONGEST_LAT_CACHE.REFERENCE", 0x4f2e, INTEL),
    raw(Quantity::LastLevelMisses, "LONGEST_LAT_CACHE.MISS", 0x412e, INTEL),
    raw(Quantity::L1DataRefills, "L1D.REPLACEMENT", 0x0151, INTEL),
    raw(Quantity::L2WriteBacks, "L2_TRANS.L2_WB", 0x40f0, INTEL),
    raw(Quantity::L2CodeMisses, "L2_RQSTS.CODE_RD_MISS", 0x2024, INTEL),
];

/// Events of Haswell and later.
const INTEL_CORE: &[Event] = &[
    raw(Quantity::L2Misses, "L2_RQSTS.MISS", 0x3f24, INTEL),
    raw(Quantity::Loads, "MEM_INST_RETIRED.ALL_LOADS", 0x81d0, INTEL),
    raw(Quantity::L1LoadMisses, "MEM_LOAD_RETIRED.L1_MISS", 0x08d1, INTEL),
    raw(Quantity::L2DataReads, "L2_RQSTS.ALL_DEMAND_DATA_RD", 0xe124, INTEL),
    raw(Quantity::L2DataReadMisses, "L2_RQSTS.DEMAND_DATA_RD_MISS", 0x2124, INTEL),
    raw(Quantity::LastLevelAccesses, "LONGEST_LAT_CACHE.REFERENCE", 0x4f2e, INTEL),
    raw(Quantity::LastLevelMisses, "LONGEST_LAT_CACHE.MISS", 0x412e, INTEL),
    raw(Quantity::L2LoadMisses, "MEM_LOAD_RETIRED.L2_MISS", 0x10d1, INTEL),
    raw(Quantity::LastLevelLoadMisses, "MEM_LOAD_RETIRED.L3_MISS", 0x20d1, INTEL),
    raw(Quantity::L1DataRefills, "L1D.REPLACEMENT", 0x0151, INTEL),
    raw(Quantity::L2WriteBacks, "L2_TRANS.L2_WB", 0x40f0, INTEL),
    raw(Quantity::L2CodeMisses, "L2_RQSTS.CODE_RD_MISS", 0x2424, INTEL),
];

/// Events of Ice Lake: all of [`INTEL_CORE`] but the first, because Intel's event list says that L2_RQSTS.MISS is not supported on ICL and
/// ICX.
const INTEL_ICE_LAKE: &[Event] = INTEL_CORE.split_at(1).1;

/// Events of Armv8.0: those of [`ARM_V8_1`] without the last level, because LL_CACHE_MISS_RD came with Armv8.1.
const ARM_V8_0: &[Event] = ARM_V8_1.split_at(5).0;

const ARM_V8_1: &[Event] = &[
    raw(Quantity::L1DataAccesses, "L1D_CACHE", 0x04, ARM),
    raw(Quantity::L1DataRefills, "L1D_CACHE_REFILL", 0x03, ARM),
    raw(Quantity::L2Accesses, "L2D_CACHE", 0x16, ARM),
    raw(Quantity::L2Refills, "L2D_CACHE_REFILL", 0x17, ARM),
    raw(Quantity::L2WriteBacks, "L2D_CACHE_WB", 0x18, ARM),
    raw(Quantity::LastLevelAccesses, "LL_CACHE_RD", 0x36, ARM),
    raw(Quantity::LastLevelLoadMisses, "LL_CACHE_MISS_RD", 0x37, ARM),
];

/// Returns the events of `processor`; an empty list if the processor is not in the table.
///
/// Models of family 6 are numbered as in [Linux, arch/x86/include/asm/intel-family.h].
pub fn events_of(processor: &Processor) -> &'static [Event] {
    match (processor.vendor.as_str(), processor.family, processor.model) {
        ("AuthenticAMD", 0x17, ..0x30) => ZEN,
        ("AuthenticAMD", 0x17 | 0x19 | 0x1a, _) => ZEN_2,
        // Sandy Bridge, Ivy Bridge.
        ("GenuineIntel", 6, 0x2a | 0x2d | 0x3a | 0x3e) => INTEL_BEFORE_HASWELL,
        // Haswell, Broadwell.
        ("GenuineIntel", 6, 0x3c | 0x3f | 0x45 | 0x46 | 0x3d | 0x47 | 0x4f | 0x56) => INTEL_CORE,
        // Skylake, Kaby Lake, Comet Lake.
        ("GenuineIntel", 6, 0x4e | 0x5e | 0x55 | 0x8e | 0x9e | 0xa5 | 0xa6) => INTEL_CORE,
        // Ice Lake.
        ("GenuineIntel", 6, 0x7d | 0x7e | 0x6a | 0x6c) => INTEL_ICE_LAKE,
        // Tiger Lake, Rocket Lake, Alder Lake, Raptor Lake, Sapphire Rapids, Emerald Rapids.
        ("GenuineIntel", 6, 0x8c | 0x8d | 0xa7 | 0x97 | 0x9a | 0xb7 | 0xba | 0xbf | 0x8f | 0xcf) => INTEL_CORE,
        // Cortex-A53, A57, A72, A73 are Armv8.0.
        _ if processor.is_arm() && matches!((processor.implementer, processor.part), (0x41, 0xd03 | 0xd07..=0xd09)) => {
            ARM_V8_0
        }
        _ if processor.is_arm() => ARM_V8_1,
        _ => &[],
    }
}

/// Returns the event of `processor` that counts `quantity`; `None` if the table has none.
pub fn event(processor: &Processor, quantity: Quantity) -> Option<Event> {
    [INSTRUCTIONS, CYCLES, PAGE_FAULTS, L1_DATA_READ_MISSES, L1_CODE_READ_MISSES]
        .iter()
        .chain(events_of(processor))
        .find(|event| event.quantity == quantity)
        .copied()
}

/// Returns the events of `processor` that count demand misses of data or code in the cache of `level`, the best one first.
pub fn miss_events(processor: &Processor, level: u8, touches: Touches) -> impl Iterator<Item = Event> + '_ {
    use Quantity::*;
    let quantities: &[Quantity] = match (level, touches) {
        (1, Touches::Data) => &[L1DataRefills, L1DataReadMisses],
        (1, Touches::Code) => &[L1CodeMisses],
        (2, Touches::Data) => &[L2DataMisses, L2Misses, L2LoadMisses, L2Refills],
        // The events for both kinds count data misses, too, but a loop of code has hardly any.
        (2, Touches::Code) => &[L2CodeMisses, L2Misses, L2Refills],
        (3, Touches::Data) => &[LastLevelLoadMisses],
        (3, Touches::Code) => &[LastLevelMisses],
        _ => &[],
    };
    quantities.iter().filter_map(|quantity| event(processor, *quantity))
}

/// Returns the events for miss ratios of the cache of `level`: accesses, misses among these, instructions, cycles. Returns `None` if no pair
/// of events is known in which the misses are a part of the accesses.
pub fn miss_ratio_events(processor: &Processor, level: u8) -> Option<[Event; 4]> {
    use Quantity::*;
    let pairs: &[[Quantity; 2]] = match level {
        1 => &[[L1DataAccesses, L1DataRefills], [Loads, L1LoadMisses]],
        2 => &[[L2DataReads, L2DataMisses], [L2DataReads, L2DataReadMisses], [L2Accesses, L2Refills]],
        3 => &[[LastLevelAccesses, LastLevelMisses], [LastLevelAccesses, LastLevelLoadMisses]],
        _ => &[],
    };
    let known = |quantity| event(processor, quantity);
    pairs.iter().find_map(|[all, missed]| Some([known(*all)?, known(*missed)?, INSTRUCTIONS, CYCLES]))
}

/// Events that count the requests to a level, each request by exactly one event, and events that count the misses among these requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LevelEvents {
    /// Number of the level.
    pub level: u8,
    /// Events that together count the requests to the level.
    pub accesses: Vec<Event>,
    /// Events that together count the requests that miss the level.
    pub misses: Vec<Event>,
}

/// Returns the events that count hits and misses of each level on `processor`, innermost first, without levels that have no such events.
pub fn level_events(processor: &Processor) -> Vec<LevelEvents> {
    use Quantity::*;
    let known = |list: &[Quantity]| list.iter().map(|it| event(processor, *it)).collect::<Option<Vec<Event>>>();
    let of = |level: u8| {
        // The first choice counts by the sources of demanded lines. The second counts by loads, each of which counts at every level that it
        // misses. The last choice is the events for miss ratios.
        let found = match level {
            1 => [
                (known(&[L1DataAccesses]), known(&[FillsFromL2, FillsFromL3, FillsFromMemory])),
                (known(&[Loads]), known(&[L1LoadMisses])),
            ],
            2 => [
                (known(&[FillsFromL2, FillsFromL3, FillsFromMemory]), known(&[FillsFromL3, FillsFromMemory])),
                (known(&[L1LoadMisses]), known(&[L2LoadMisses])),
            ],
            _ => [
                (known(&[FillsFromL3, FillsFromMemory]), known(&[FillsFromMemory])),
                (known(&[L2LoadMisses]), known(&[LastLevelLoadMisses])),
            ],
        };
        let found = found.into_iter().find_map(|(accesses, misses)| Some((accesses?, misses?)));
        let ratio = || miss_ratio_events(processor, level).map(|[all, missed, ..]| (vec![all], vec![missed]));
        found.or_else(ratio).map(|(accesses, misses)| LevelEvents { level, accesses, misses })
    };
    (1..=3).filter_map(of).collect()
}

/// Returns the events of `levels`, each once.
pub fn events_of_levels(levels: &[LevelEvents]) -> Vec<Event> {
    let mut events = Vec::new();
    for event in levels.iter().flat_map(|level| level.accesses.iter().chain(&level.misses)) {
        if !events.contains(event) {
            events.push(*event);
        }
    }
    events
}

/// Drops innermost levels until `slots` counters can count the rest at once, and returns the remaining levels. Outer levels are kept, because
/// evictions by other programs show there.
pub fn levels_within(mut levels: Vec<LevelEvents>, slots: usize) -> Vec<LevelEvents> {
    while events_of_levels(&levels).len() > slots {
        levels.remove(0);
    }
    levels
}

impl LevelEvents {
    /// Returns hits and misses of the level from the `counts` of `events`, which contain all events of the level.
    pub fn requests(&self, events: &[Event], counts: &[u64]) -> [u64; 2] {
        let sum = |of: &[Event]| -> u64 {
            events.iter().zip(counts).filter(|(event, _)| of.contains(event)).map(|(_, count)| count).sum()
        };
        let misses = sum(&self.misses);
        [sum(&self.accesses).saturating_sub(misses), misses]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn x86(vendor: &str, family: u32, model: u32) -> Processor {
        Processor::from_cpuinfo(&format!(
            "processor\t: 0\nvendor_id\t: {vendor}\ncpu family\t: {family}\nmodel\t\t: {model}\n"
        ))
    }

    fn arm(part: &str) -> Processor {
        Processor::from_cpuinfo(&format!("processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: {part}\n"))
    }

    fn code(processor: &Processor, quantity: Quantity) -> Option<Code> {
        event(processor, quantity).map(|event| event.code)
    }

    #[test]
    fn every_zen_counts_second_level_data_misses_alike() {
        // Zen, Zen 2, Zen 3, Zen 4, Zen 5.
        for (family, model) in [(0x17, 0x01), (0x17, 0x71), (0x19, 0x01), (0x19, 0x61), (0x1a, 0x44)] {
            assert_eq!(code(&x86("AuthenticAMD", family, model), Quantity::L2DataMisses), Some(Code::Raw(0x0864)));
        }
        assert_eq!(code(&x86("AuthenticAMD", 0x17, 0x01), Quantity::FillsFromL2), None);
        assert_eq!(code(&x86("AuthenticAMD", 0x19, 0x01), Quantity::FillsFromMemory), Some(Code::Raw(0x4843)));
        // Bulldozer means something else by 0x64.
        assert!(events_of(&x86("AuthenticAMD", 0x15, 0x02)).is_empty());
    }

    #[test]
    fn intel_codes_are_used_only_where_they_mean_the_same() {
        assert_eq!(code(&x86("GenuineIntel", 6, 0x55), Quantity::L2Misses), Some(Code::Raw(0x3f24)));
        assert_eq!(code(&x86("GenuineIntel", 6, 0x6a), Quantity::L2Misses), None);
        assert_eq!(code(&x86("GenuineIntel", 6, 0x6a), Quantity::L2LoadMisses), Some(Code::Raw(0x10d1)));
        // i7-2600.
        assert_eq!(code(&x86("GenuineIntel", 6, 42), Quantity::L2Misses), None);
        assert_eq!(code(&x86("GenuineIntel", 6, 42), Quantity::L1DataRefills), Some(Code::Raw(0x0151)));
        // An Atom.
        assert!(events_of(&x86("GenuineIntel", 6, 0x5c)).is_empty());
    }

    #[test]
    fn arm_cores_have_the_common_events_of_their_version() {
        assert_eq!(code(&arm("0xd08"), Quantity::L2Refills), Some(Code::Raw(0x17)));
        assert_eq!(code(&arm("0xd08"), Quantity::LastLevelLoadMisses), None);
        assert_eq!(code(&arm("0xd0c"), Quantity::LastLevelLoadMisses), Some(Code::Raw(0x37)));
    }

    #[test]
    fn miss_ratios_have_numerators_that_are_part_of_their_denominators() {
        let codes = |processor: &Processor, level| {
            miss_ratio_events(processor, level).map(|events| [events[0].code, events[1].code])
        };
        let raw = |all, missed| Some([Code::Raw(all), Code::Raw(missed)]);
        // The first code has all bits of the unit mask, the second one those of the misses.
        assert_eq!(codes(&x86("AuthenticAMD", 0x19, 0x01), 2), raw(0xf864, 0x0864));
        assert_eq!(codes(&x86("GenuineIntel", 6, 0x6a), 2), raw(0xe124, 0x2124));
        assert_eq!(codes(&x86("GenuineIntel", 6, 0x55), 3), raw(0x4f2e, 0x412e));
        assert_eq!(codes(&arm("0xd08"), 2), raw(0x16, 0x17));
        assert_eq!(codes(&arm("0xd0c"), 3), raw(0x36, 0x37));
        assert_eq!(codes(&arm("0xd08"), 1), raw(0x04, 0x03));
        // The third level of Zen cannot be counted for a thread, and Sandy Bridge has no event for such reads.
        assert_eq!(codes(&x86("AuthenticAMD", 0x19, 0x01), 3), None);
        assert_eq!(codes(&x86("GenuineIntel", 6, 42), 2), None);
        assert_eq!(codes(&x86("GenuineIntel", 6, 0x55), 4), None);
    }

    #[test]
    fn misses_of_a_level_are_counted_by_an_event_for_what_is_touched() {
        let codes = |processor: &Processor, level, touches| -> Vec<Code> {
            miss_events(processor, level, touches).map(|event| event.code).collect()
        };
        let (zen_3, skylake, sandy) =
            (x86("AuthenticAMD", 0x19, 0x01), x86("GenuineIntel", 6, 0x55), x86("GenuineIntel", 6, 42));
        let a72 = arm("0xd08");
        // PMCx064: 0x08 data, 0x01 code, 0x09 both. L2_RQSTS: other bits before Haswell.
        assert_eq!(codes(&zen_3, 2, Touches::Data), [Code::Raw(0x0864), Code::Raw(0x0964)]);
        assert_eq!(codes(&zen_3, 2, Touches::Code), [Code::Raw(0x0164), Code::Raw(0x0964)]);
        assert_eq!(codes(&skylake, 2, Touches::Code), [Code::Raw(0x2424), Code::Raw(0x3f24)]);
        assert_eq!(codes(&sandy, 2, Touches::Code), [Code::Raw(0x2024)]);
        assert_eq!(codes(&a72, 2, Touches::Code), [Code::Raw(0x17)]);
        // Level 1 falls back to the kernel's generic event, also on a processor that is not in the table.
        assert_eq!(codes(&skylake, 1, Touches::Data), [Code::Raw(0x0151), Code::L1DataReadMisses]);
        for processor in [&zen_3, &a72, &Processor::default()] {
            assert_eq!(codes(processor, 1, Touches::Code), [Code::L1CodeReadMisses]);
        }
        assert_eq!(codes(&Processor::default(), 1, Touches::Data), [Code::L1DataReadMisses]);
        // The third level of Zen cannot be counted for a thread.
        assert_eq!(codes(&zen_3, 3, Touches::Data), []);
        assert_eq!(codes(&skylake, 3, Touches::Code), [Code::Raw(0x412e)]);
        for touches in [Touches::Data, Touches::Code] {
            for event in miss_events(&zen_3, 2, touches).chain(miss_events(&zen_3, 1, touches)) {
                let proof = event.quantity.counts_every_random_miss_of();
                assert!(proof.is_some(), "{} is believed without proof", event.name);
            }
        }
    }

    #[test]
    fn hits_and_misses_of_each_level_are_sums_of_what_is_counted() {
        let asked = |processor: &Processor, readings: &[(Quantity, u64)]| {
            let levels = level_events(processor);
            let events = events_of_levels(&levels);
            let count = |event: &Event| readings.iter().find(|(of, _)| *of == event.quantity).unwrap().1;
            let counts: Vec<u64> = events.iter().map(count).collect();
            levels.iter().map(|level| level.requests(&events, &counts)).collect::<Vec<_>>()
        };
        use Quantity::*;
        // Zen 3: of 1000 accesses 80 lines came from the second level, 15 from the third, 5 from memory.
        let zen = [(L1DataAccesses, 1000), (FillsFromL2, 80), (FillsFromL3, 15), (FillsFromMemory, 5)];
        assert_eq!(asked(&x86("AuthenticAMD", 0x19, 0x01), &zen), [[900, 100], [80, 20], [15, 5]]);
        let loads = [(Loads, 1000), (L1LoadMisses, 100), (L2LoadMisses, 20), (LastLevelLoadMisses, 5)];
        assert_eq!(asked(&x86("GenuineIntel", 6, 0x55), &loads), [[900, 100], [80, 20], [15, 5]]);
        let arm_events = [(L1DataAccesses, 1000), (L1DataRefills, 100), (L2Accesses, 150), (L2Refills, 20)];
        assert_eq!(asked(&arm("0xd08"), &arm_events), [[900, 100], [130, 20]]);
        assert!(level_events(&Processor::default()).is_empty());
    }

    #[test]
    fn where_counters_are_few_the_outer_levels_are_counted() {
        let levels = |processor: &Processor, slots| {
            levels_within(level_events(processor), slots).iter().map(|level| level.level).collect::<Vec<_>>()
        };
        let zen = x86("AuthenticAMD", 0x19, 0x01);
        assert_eq!((levels(&zen, 4), levels(&zen, 3), levels(&zen, 2)), (vec![1, 2, 3], vec![2, 3], vec![3]));
        assert_eq!((levels(&arm("0xd0c"), 6), levels(&arm("0xd0c"), 4)), (vec![1, 2, 3], vec![2, 3]));
        assert!(levels(&zen, 0).is_empty());
    }

    #[test]
    fn an_unknown_processor_has_instructions_only() {
        assert!(events_of(&Processor::default()).is_empty());
        assert_eq!(event(&Processor::default(), Quantity::Instructions), Some(INSTRUCTIONS));
    }
}
