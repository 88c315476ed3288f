//! Context switches of CPUs, each with what the counters of its CPU said then.
//!
//! The tracepoint `sched_switch` leads a group of counters on every CPU; the kernel writes a record to the ring of the CPU whenever it is
//! passed: when, who leaves and how, who comes, and the whole group as it read then. So what was counted between two records is that of who
//! had the CPU, and nothing runs on the CPU but that writing. The rings are memory shared with the kernel: to look at them takes no system
//! call. Counters are not needed: a group of the tracepoint alone tells who had the CPU when.

use isochrome_model::units::{CpuId, Ns};

use crate::counters::open_error;
use crate::error::HostError;
use crate::events::{Code, Event as Counted};
use crate::jobs::timeline::{self, Left, Name, fields, tracefs};
use crate::sys::perf::{GROUP_LIMIT, GroupReading, Ring};

/// Memory of the ring of each CPU: about 29 000 switches.
const RING_BYTES: usize = 1 << 22;

/// Something that happened on a CPU.
pub type Event = timeline::Event<What>;

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// The CPU passed from one thread to another.
    Switch {
        /// Who had it; 0 for nobody.
        from: i32,
        /// The name of who had it.
        name: Name,
        /// How it left.
        left: Left,
        /// Who has it; 0 for nobody.
        to: i32,
        /// The counters of the CPU.
        reading: GroupReading,
    },
    /// A thread or process is started.
    Fork {
        /// By which thread.
        parent: i32,
        /// Its number.
        child: i32,
    },
    /// The kernel had no room for some records before this.
    Lost {
        /// How many.
        records: u64,
    },
    /// A task of our own has read the counters of its CPU.
    Poll {
        /// What they said.
        reading: GroupReading,
    },
}

/// Where the fields of the tracepoint lie: name, number and state of who leaves, number of who comes.
type Layout = [usize; 4];

/// What a record of kind `kind` says. [perf_event_open(2), "MMAP layout"]
///
/// `None` for kinds that do not matter, and for records that are cut off.
fn parse(kind: u32, body: &[u8], layout: &Layout) -> Option<(Ns, What)> {
    const LOST: u32 = 2;
    const FORK: u32 = 7;
    const SAMPLE: u32 = 9;
    let word = |at: usize| Some(i32::from_ne_bytes(body.get(at..at + 4)?.try_into().ok()?));
    let long = |at: usize| Some(u64::from_ne_bytes(body.get(at..at + 8)?.try_into().ok()?));
    match kind {
        // The event's number, how many, when.
        LOST => Some((Ns(long(16)?), What::Lost { records: long(8)? })),
        // Process, parent process, thread, parent thread, when.
        FORK => Some((Ns(long(16)?), What::Fork { parent: word(12)?, child: word(8)? })),
        // When; events of the group, times enabled and running, a count each, the tracepoint's first; length of the tracepoint's fields, they.
        SAMPLE => {
            let events = usize::try_from(long(8)?).ok().filter(|events| (1..=1 + GROUP_LIMIT).contains(events))?;
            let mut reading = GroupReading { enabled_ns: long(16)?, running_ns: long(24)?, ..GroupReading::default() };
            for (position, count) in reading.counts.iter_mut().take(events - 1).enumerate() {
                *count = long(32 + 8 * (1 + position))?;
            }
            let fields = 32 + 8 * events + 4;
            let [name, from, state, to] = layout.map(|offset| fields + offset);
            let what = What::Switch {
                from: word(from)?,
                name: Name(body.get(name..name + 16)?.try_into().ok()?),
                // The state is a long: that of 64-bit kernels is read.
                left: Left::of(long(state)?),
                to: word(to)?,
                reading,
            };
            Some((Ns(long(0)?), what))
        }
        _ => None,
    }
}

/// Switches, as they are recorded.
pub struct Switches {
    rings: Vec<(CpuId, Ring)>,
    layout: Layout,
    /// Where tracefs is, if it is mounted for this process alone.
    _mount: Option<crate::sys::mount::Mount>,
}

impl Switches {
    /// Records, from now on, switches and starts of threads on `cpus`, and with every switch what `counted` came to until then, in user mode.
    ///
    /// Fails with [`HostError::Events`] where the kernel does not give its events to this user, and as [`crate::counters`] does where it has no
    /// such counters or others have them.
    pub fn open(cpus: &[CpuId], counted: &[Counted]) -> Result<Switches, HostError> {
        let (root, mount) = tracefs()?;
        let events = root.join("events/sched");
        let found = fields(&events, "sched_switch", ["prev_comm", "prev_pid", "prev_state", "next_pid"])?;
        let (id, layout) = found.split_first().expect("the number of the event and as many fields as were asked for");
        let layout = layout.try_into().expect("as many fields as were asked for");
        let codes: Vec<Code> = counted.iter().map(|event| event.code).collect();
        let mut rings = Vec::new();
        for cpu in cpus {
            let ring = Ring::open(cpu.0, *id as u64, &codes, RING_BYTES);
            let mut ring = ring.map_err(|(position, source)| match position {
                Some(position) => open_error(counted[position].name, source),
                None => HostError::Events { path: events.join("sched_switch"), source },
            })?;
            if let Some(first) = counted.first().filter(|_| !ring.counts()) {
                let source = std::io::Error::from_raw_os_error(libc::EBUSY);
                return Err(HostError::Counters { event: first.name.to_owned(), action: "starting", source });
            }
            rings.push((*cpu, ring));
        }
        Ok(Switches { rings, layout, _mount: mount })
    }

    /// Moves what was recorded since the last call behind `events`, CPU by CPU.
    pub fn drain(&mut self, events: &mut Vec<Event>) {
        for (cpu, ring) in &mut self.rings {
            ring.drain(|kind, body| {
                if let Some((at, what)) = parse(kind, body, &self.layout) {
                    events.push(Event { at, cpu: *cpu, what });
                }
            });
        }
    }

    /// Gives up the CPUs whose counters the kernel has taken off the hardware: nothing is recorded there any more.
    pub fn stopped(&mut self) -> Vec<CpuId> {
        self.rings.extract_if(.., |(_, ring)| !ring.counts()).map(|(cpu, _)| cpu).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As on Linux 6.18.
    const LAYOUT: Layout = [8, 24, 32, 56];

    fn longs(longs: &[u64]) -> Vec<u8> {
        longs.iter().flat_map(|long| long.to_ne_bytes()).collect()
    }

    /// The record of a switch from 7, called `task`, which sleeps, to 8, at 1000.
    fn switch() -> Vec<u8> {
        // Three events: the tracepoint, passed 5 times, and two counters.
        let mut body = longs(&[1000, 3, 900, 800, 5, 40, 10]);
        body.extend(68u32.to_ne_bytes());
        let mut raw = vec![0; 64];
        raw[8..12].copy_from_slice(b"task");
        raw[24..28].copy_from_slice(&7i32.to_ne_bytes());
        raw[32..40].copy_from_slice(&1u64.to_ne_bytes());
        raw[56..60].copy_from_slice(&8i32.to_ne_bytes());
        body.extend(raw);
        body
    }

    #[test]
    fn a_record_tells_who_left_how_and_what_the_counters_said() {
        let (at, what) = parse(9, &switch(), &LAYOUT).unwrap();
        let What::Switch { from, name, left, to, reading } = what else { panic!("{what:?}") };
        assert_eq!((at, from, name.to_string().as_str(), left, to), (Ns(1000), 7, "task", Left::Asleep, 8));
        // The count of the tracepoint itself is left out.
        assert_eq!((reading.enabled_ns, reading.running_ns, &reading.counts[..3]), (900, 800, &[40, 10, 0][..]));
    }

    #[test]
    fn starts_and_losses_are_read() {
        let mut fork: Vec<u8> = [20i32, 10, 21, 11].iter().flat_map(|word| word.to_ne_bytes()).collect();
        fork.extend(longs(&[500, 500]));
        assert_eq!(parse(7, &fork, &LAYOUT), Some((Ns(500), What::Fork { parent: 11, child: 21 })));
        assert_eq!(parse(2, &longs(&[3, 12, 600]), &LAYOUT), Some((Ns(600), What::Lost { records: 12 })));
    }

    #[test]
    fn records_that_are_cut_off_or_mean_nothing_say_nothing() {
        let whole = switch();
        for cut in 0..whole.len() - 4 {
            assert_eq!(parse(9, &whole[..cut], &LAYOUT), None, "{cut}");
        }
        // Kinds that were not asked for, and groups larger than there are.
        assert_eq!(parse(5, &whole, &LAYOUT), None);
        for events in [0, 18, u64::MAX] {
            let mut garbage = whole.clone();
            garbage[8..16].copy_from_slice(&events.to_ne_bytes());
            assert_eq!(parse(9, &garbage, &LAYOUT), None);
        }
    }
}
