//! Processes that are started or execute another program, by programs in the kernel.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;

use super::btf::Btf;
use super::program::{self, Layout, Maps, field};
use super::{EXEC, FORK, attach, possible_cpus, refused};
use crate::sched::SchedError;
use crate::sys::bpf::{Map, MapKind, RingMemory};

/// Memory for records, which holds about 5000 of them.
const RING_BYTES: usize = 1 << 18;

/// A record of the processes that were started, or have executed another program.
pub struct StartedProcesses {
    /// For each CPU, the number of records that had no room.
    cpus: Map,
    possible: u32,
    records: RingMemory,
    /// Number of records without room at the last call.
    lost: u64,
    /// The maps, and the attached programs, which are detached when this is dropped.
    _kept: ([Map; 2], [OwnedFd; 2]),
}

impl StartedProcesses {
    /// Records from now on which processes are started or execute a program, on all CPUs.
    ///
    /// Fails with [`SchedError::Events`] if the kernel runs no programs for this user, and with [`SchedError::System`] if it does not describe its
    /// types.
    pub fn open() -> Result<StartedProcesses, SchedError> {
        let btf = Btf::of_kernel()?;
        let (layout, possible) = (Layout::of(&btf)?, possible_cpus()?);
        let map = |kind, entries| Map::new(kind, entries).map_err(|source| refused("map", source));
        let (cpus, threads) = (map(MapKind::Array, possible)?, map(MapKind::Hash, 1)?);
        let ring = map(MapKind::Ring, RING_BYTES as u32)?;
        let records = RingMemory::map(&ring, RING_BYTES).map_err(|source| refused("ring", source))?;
        let maps =
            Maps { cpus: cpus.number(), threads: threads.number(), ring: ring.number(), counters: Default::default() };
        let started = |tracepoint, argument| attach(&btf, tracepoint, &program::started(&maps, layout, argument));
        let attached = [started(FORK, 1)?, started(EXEC, 0)?];
        Ok(StartedProcesses { cpus, possible, records, lost: 0, _kept: ([threads, ring], attached) })
    }

    /// Returns the processes that were started or have executed a program since the last call, some of which may have ended; `None` if the kernel had
    /// no room for all of them. Makes one system call for each CPU.
    pub fn since_last(&mut self) -> Option<BTreeSet<i32>> {
        let mut started = BTreeSet::new();
        self.records.drain(|record| {
            let process = record.get(field::THREAD..field::THREAD + 4).and_then(|bytes| bytes.try_into().ok());
            started.extend(process.map(i32::from_ne_bytes));
        });
        let lost: u64 = (0..self.possible).map(|cpu| u64::from(self.cpus.get(cpu).unwrap_or(0))).sum();
        let is_complete = std::mem::replace(&mut self.lost, lost) == lost;
        is_complete.then_some(started)
    }
}
