//! Writes the table of pages that a helper moves, hands the table over, and reads it back.

use std::time::{Duration, Instant};

use super::Work;
use crate::recolor::error::RecolorError;
use crate::recolor::hold::{Hold, Pace};
use crate::recolor::scratch_area::HEADER;
use crate::sys::agent::{self, Entry, MoveMethod, NEIGHBOR, RUN, Table};
use crate::sys::clock;
use crate::sys::memory::page_bytes;

impl Work<'_, '_> {
    /// Has a helper process the entries of `table` until `deadline`, on `cpu` if that is given. Returns the finished entries and the time at
    /// which the helper ended.
    ///
    /// The helper closes the userfaultfd. Only one helper is used: each of its moves would interrupt a second helper on another CPU, and such an
    /// interrupt takes longer than the move itself.
    pub(super) fn run(
        &self,
        hold: &mut Hold,
        table: &[Entry],
        (userfault, deadline): (Option<u64>, Option<Instant>),
        cpu: Option<usize>,
    ) -> Result<(Vec<Entry>, Instant), RecolorError> {
        let layout = self.area.layout;
        let ticks = |deadline: Instant| {
            let left = deadline.saturating_duration_since(Instant::now());
            clock::now().0 + (left.as_secs_f64() * clock::rate_hz() as f64) as u64
        };
        let header = Table {
            userfault: userfault.map_or(-1, |descriptor| descriptor as i64),
            count: table.len() as u64,
            advice: self.area.means.advice,
            deadline: deadline.map_or(u64::MAX, ticks),
            ..self.area.header()
        };
        let mut bytes = agent::bytes_of(&header).to_vec();
        table.iter().for_each(|entry| bytes.extend_from_slice(agent::bytes_of(entry)));
        hold.write(&bytes, layout.table)?;
        hold.make_helper(layout.code, layout.table, layout.stack, Pace::Hurried)?;
        if let Some(cpu) = cpu {
            hold.keep_helper_on(cpu);
        }
        hold.work()?;
        hold.read(&mut bytes, layout.table)?;
        let header: Table = agent::record_from(&bytes[..HEADER as usize]);
        let done = bytes[HEADER as usize..].chunks_exact(size_of::<Entry>()).map(agent::record_from);
        let since = clock::now().0.saturating_sub(header.ended) as f64 / clock::rate_hz() as f64;
        let ended = Instant::now().checked_sub(Duration::from_secs_f64(since)).unwrap_or_else(Instant::now);
        Ok((done.take(header.begun as usize).collect(), ended))
    }
}

/// Groups successive entries with the method `Move` into runs, and marks each entry whose page directly follows the previous page in one
/// mapping.
///
/// `mappings`: the address range of the mapping that each entry lies in.
pub(super) fn join_runs(table: &mut [Entry], mappings: &[(u64, u64)]) {
    let page = page_bytes() as u64;
    let mut head = 0;
    for at in 1..table.len() {
        let before = table[at - 1];
        let entry = &mut table[at];
        if entry.method != MoveMethod::Move as u32 || before.method != entry.method || at - head >= RUN {
            head = at;
            continue;
        }
        if before.page + page == entry.page && mappings[at - 1] == mappings[at] {
            entry.run = NEIGHBOR;
        }
        table[head].run += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_moved_in_runs_and_neighbors_of_one_mapping_together() {
        let page = page_bytes() as u64;
        let entry = |number: u64, method: MoveMethod| Entry {
            page: number * page,
            slot: 0,
            method: method as u32,
            run: 1,
            status: 0,
        };
        let mut table: Vec<Entry> = (0..RUN as u64 + 2).map(|number| entry(number, MoveMethod::Move)).collect();
        table.extend([entry(100, MoveMethod::Copy), entry(101, MoveMethod::Copy), entry(200, MoveMethod::Move)]);
        table.extend([entry(300, MoveMethod::Move), entry(301, MoveMethod::Move), entry(302, MoveMethod::Move)]);
        let mut mappings = vec![(0, 1); table.len()];
        mappings[RUN + 7..].fill((1, 2));
        join_runs(&mut table, &mappings);
        let found: Vec<u32> = table.iter().map(|entry| entry.run).collect();
        let mut expected = vec![NEIGHBOR; RUN];
        expected[0] = RUN as u32;
        // Two entries remain after the full run, two are copied, and four form the last run: 300 does not follow 200, and 302 lies in another
        // mapping.
        expected.extend([2, NEIGHBOR, 1, 1, 4, 1, NEIGHBOR, 1]);
        assert_eq!(found, expected);
    }
}
