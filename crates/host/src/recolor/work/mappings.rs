//! The mappings of pages that are about to be moved: they are registered with a userfaultfd, made writable, and restored.

use std::collections::{BTreeMap, BTreeSet};

use super::{Due, Work};
use crate::process::Protection;
use crate::recolor::error::RecolorError;
use crate::recolor::hold::Hold;
use crate::sys::agent::{Entry, MoveMethod};

impl Work<'_, '_> {
    /// Prepares the mappings of the pages `due`. Returns the mappings whose pages must stay, with the reason.
    ///
    /// Mappings whose pages are moved are registered, so that a thread that touches a page during its move waits. Ranges in which the helper
    /// has to write are made writable. `methods`: the move methods, corrected where a mapping cannot be registered.
    pub(super) fn make_ready(
        &self,
        hold: &mut Hold,
        userfault: Option<u64>,
        due: &[Due],
        methods: &mut [MoveMethod],
    ) -> Result<BTreeMap<(u64, u64), &'static str>, RecolorError> {
        let mut refused = BTreeMap::new();
        let entry = |(start, end): (u64, u64), method: MoveMethod, run: u64| Entry {
            page: start,
            slot: end - start,
            method: method as u32,
            run: run as u32,
            status: 0,
        };
        if let Some(descriptor) = userfault {
            // The scratch memory, then the mappings.
            let mut mappings = vec![(self.area.layout.scratch, self.area.layout.pool)];
            mappings.extend(
                due.iter()
                    .zip(&*methods)
                    .filter(|(_, method)| **method == MoveMethod::Move)
                    .map(|(due, _)| due.mapping),
            );
            mappings.dedup();
            let table: Vec<Entry> =
                mappings.iter().map(|mapping| entry(*mapping, MoveMethod::Register, descriptor)).collect();
            let mut cannot = BTreeSet::new();
            for (mapping, entry) in mappings.iter().zip(self.run(hold, &table, (None, None), None)?.0) {
                if entry.status == -i64::from(libc::EBUSY) {
                    refused.insert(*mapping, "is served by the program's own userfaultfd");
                } else if entry.status != 0 {
                    cannot.insert(*mapping);
                }
            }
            let nowhere = cannot.contains(&mappings[0]);
            for (due, method) in due.iter().zip(methods.iter_mut()) {
                if *method == MoveMethod::Move && (nowhere || cannot.contains(&due.mapping)) {
                    *method = MoveMethod::Replace;
                }
            }
        }
        let protection = |due: &Due| self.plan.regions[self.plan.pages[due.at].region].protection;
        let writing: Vec<Due> =
            due.iter().zip(&*methods).filter(|(_, method)| **method != MoveMethod::Move).map(|(due, _)| *due).collect();
        let closed: Vec<_> = writing
            .chunk_by(|due, next| due.mapping == next.mapping)
            .map(|dues| (dues[0].mapping, self.opened(dues), protection(&dues[0])))
            .filter(|(.., protection)| !(protection.read && protection.write))
            .collect();
        if closed.is_empty() {
            return Ok(refused);
        }
        let protections = closed.iter().map(|(_, (start, end), protection)| (*start, end - start, protection.bits()));
        hold.journal.protections.extend(protections);
        // The journal is written once for all ranges: restoring the protection of an unchanged range does no harm.
        hold.journal.write()?;
        let open = |(_, range, protection): &(_, (u64, u64), Protection)| {
            entry(*range, MoveMethod::Protect, Protection { read: true, write: true, ..*protection }.bits())
        };
        let table: Vec<Entry> = closed.iter().map(open).collect();
        for ((mapping, ..), entry) in closed.iter().zip(self.run(hold, &table, (None, None), None)?.0) {
            if entry.status != 0 {
                refused.insert(*mapping, "cannot be made writable");
            }
        }
        Ok(refused)
    }

    /// Returns the range of the mapping to make writable for `dues`, which are pages of one mapping in ascending order. The range extends
    /// to the next page of the plan, or to the end of the mapping.
    ///
    /// The kernel visits every resident page of the range. In the whole mapping of a large program's code that could take a whole pause. The
    /// kernel splits the mapping at the ends of the range. It joins the parts again only after each of them was writable for a moment, so the
    /// ranges of all pauses together must leave no gaps.
    /// [Linux, mm/mprotect.c, mprotect_fixup: VM_ACCOUNT stays]
    fn opened(&self, dues: &[Due]) -> (u64, u64) {
        let (first, last) = (dues[0], dues[dues.len() - 1]);
        let (start, end) = first.mapping;
        let planned = |at: usize| self.plan.pages.get(at).map(|planned| planned.page);
        let inside = |page: &u64| (start..end).contains(page);
        let goes_on = first.at.checked_sub(1).and_then(planned).is_some_and(|page| inside(&page));
        let begin = if goes_on { self.plan.pages[first.at].page } else { start };
        (begin, planned(last.at + 1).filter(inside).unwrap_or(end))
    }

    /// Restores the protections of mappings.
    pub(super) fn put_back_protections(&self, hold: &mut Hold) -> Result<(), RecolorError> {
        let entry = |(page, slot, bits): &(u64, u64, u64)| Entry {
            page: *page,
            slot: *slot,
            method: MoveMethod::Protect as u32,
            run: *bits as u32,
            status: 0,
        };
        let table: Vec<Entry> = hold.journal.protections.iter().map(entry).collect();
        // A few calls take less time than a helper. Failed restorations are repeated, and reported, when the process is released.
        if table.len() > 4 && self.run(hold, &table, (None, None), None)?.0.iter().all(|entry| entry.status == 0) {
            hold.journal.protections.clear();
        }
        Ok(())
    }
}
