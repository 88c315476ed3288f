//! `isochrome ps`: lists the grants of colors, and how much memory of each process lies in them.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use isochrome_host::color::ledger::{self, Grant, Sharing};
use isochrome_host::color::resident;
use isochrome_host::color::saved::{self, Boot};
use isochrome_host::machine::sysfs::Sysfs;
use isochrome_host::process::{Pid, ProcessError};
use isochrome_host::runtime;
use isochrome_model::layout::{Align, Table};
use isochrome_model::palette::Palette;
use isochrome_model::placement::{Kind, Placement, Residence};
use isochrome_model::printable;
use isochrome_model::units::{Bytes, Color, FrameNumber, format_list};
use schemars::JsonSchema;
use serde::Serialize;

use crate::verdict::Verdict;
use crate::{files, hints};

/// Schema of the printed JSON.
pub const SCHEMA: &str = "isochrome-ps/1";

/// All grants of colors.
#[derive(Serialize, JsonSchema)]
pub struct Held {
    /// The grants in the ledger.
    grants: Vec<Row>,
}

/// A grant, with the processes that use it: its owner and the owner's descendants.
#[derive(Serialize, JsonSchema)]
struct Row {
    #[serde(flatten)]
    grant: Grant,
    #[serde(flatten)]
    process: Process,
}

/// A process that a grant covers.
#[derive(Serialize, JsonSchema)]
struct Process {
    pid: u32,
    name: String,
    /// Resident memory of the process; `None` if it cannot be seen.
    memory: Option<Memory>,
    /// Processes that it started, without those that have grants of their own.
    children: Vec<Process>,
}

/// Resident memory of a process, in pages.
#[derive(Serialize, JsonSchema)]
struct Memory {
    /// Resident memory by kind.
    #[serde(flatten)]
    residence: Residence,
    /// Number of pages that can be moved to other colors.
    movable: u64,
    /// Sizes in KiB.
    kib: Kib,
    /// Movable pages by color; `None` if no palette is saved.
    #[serde(flatten)]
    colors: Option<Colors>,
    /// Number of pages that other processes of the same tree map too, so that each process counts them. `None` if frames cannot be seen.
    in_tree_too: Option<u64>,
    #[serde(skip)]
    frames: BTreeSet<FrameNumber>,
}

/// Sizes in KiB.
#[derive(Serialize, JsonSchema)]
struct Kib {
    resident: u64,
    movable: u64,
    immovable: BTreeMap<Kind, u64>,
}

/// Movable pages by color.
#[derive(Serialize, JsonSchema)]
struct Colors {
    /// Number of pages of each color, and of unknown color.
    #[serde(flatten)]
    placement: Placement,
    /// Number of pages of a known color that was not granted.
    drifted: u64,
    /// Drifted pages as a share (0 to 1) of the pages of known color.
    drift: f64,
}

/// Inputs for examining the processes of one grant.
struct Inspection<'a> {
    colors: &'a [Color],
    palette: Option<&'a Palette>,
    page: Bytes,
    /// Processes that own grants: their memory is shown with their own grants.
    owners: &'a BTreeSet<u32>,
}

pub fn run(json: bool) -> Result<Verdict> {
    let folder = runtime::folder();
    let grants = ledger::grants_in(&folder)?;
    let sysfs = Sysfs::system();
    let (machine, _) = sysfs.machine()?;
    let boot = Boot::of(&machine, &sysfs);
    let owners: BTreeSet<u32> = grants.iter().map(|grant| grant.owner.pid).collect();
    let (mut notes, mut has_palettes) = (BTreeSet::new(), true);
    let mut held = Held { grants: Vec::new() };
    for grant in grants {
        // Here the palette is only for display. Commands that rely on a palette test it first.
        let palette = saved::load(&folder, grant.level, &boot).map_err(|error| notes.insert(hints::text(&error))).ok();
        has_palettes &= palette.is_some();
        let inspection =
            Inspection { colors: &grant.colors, palette: palette.as_ref(), page: machine.page_bytes, owners: &owners };
        let mut process = inspection.process(grant.owner.pid, grant.owner.name.clone(), &mut notes);
        process.count_common();
        held.grants.push(Row { grant, process });
    }
    notes.iter().for_each(|note| eprintln!("{note}"));
    files::show(json, &files::versioned(SCHEMA, &held), || {
        text(&held.grants, machine.page_bytes, has_palettes, files::width())
    })?;
    Ok(Verdict::Holds)
}

impl Inspection<'_> {
    /// Returns process `pid` with its memory and its descendants. `notes` receives the reasons why memory could not be read.
    fn process(&self, pid: u32, name: String, notes: &mut BTreeSet<String>) -> Process {
        let memory = self.memory(pid).map_err(|error| notes.insert(hints::text(&error))).ok();
        let children = Pid(pid as i32).children().into_iter().map(|child| child.0 as u32);
        let children = children.filter(|child| !self.owners.contains(child)).filter_map(|child| {
            // A child that has ended since then is left out.
            let name = resident::command(child).ok()?;
            Some(self.process(child, name, notes))
        });
        Process { pid, name, memory, children: children.collect() }
    }

    fn memory(&self, pid: u32) -> Result<Memory, ProcessError> {
        let (mut residence, mut private) = (Residence::default(), Vec::new());
        let mut frames = BTreeSet::new();
        for mapping in resident::seen_mappings(pid)? {
            residence.add(mapping.kind, &mapping.pages);
            if mapping.kind.is_counted() {
                frames.extend(mapping.pages.iter().filter_map(|page| page.frame));
            }
            if mapping.kind == Kind::Private {
                private.extend(mapping.pages);
            }
        }
        let colors = self.palette.filter(|_| !frames.is_empty()).map(|palette| {
            let placement = Placement::of(&private, palette);
            let drifted = placement.outside(self.colors);
            Colors { drift: drifted as f64 / placement.known().max(1) as f64, drifted, placement }
        });
        let kib = |pages: u64| pages * self.page.0 / 1024;
        let movable = residence.movable();
        let kib = Kib {
            resident: kib(residence.resident),
            movable: kib(movable),
            immovable: residence.immovable.iter().map(|(kind, pages)| (*kind, kib(*pages))).collect(),
        };
        Ok(Memory { residence, movable, kib, colors, in_tree_too: None, frames })
    }
}

impl Process {
    /// Counts, for every process of the tree, its frames that another process of the tree maps as well.
    fn count_common(&mut self) {
        let mut mapped_by = BTreeMap::<FrameNumber, u32>::new();
        self.each(&mut |memory| memory.frames.iter().for_each(|frame| *mapped_by.entry(*frame).or_default() += 1));
        self.each(&mut |memory| {
            let common = memory.frames.iter().filter(|frame| mapped_by[frame] > 1).count() as u64;
            memory.in_tree_too = (!memory.frames.is_empty()).then_some(common);
        });
    }

    fn each(&mut self, act: &mut impl FnMut(&mut Memory)) {
        self.memory.iter_mut().for_each(&mut *act);
        self.children.iter_mut().for_each(|child| child.each(act));
    }

    /// Adds the rows of the process and its descendants to `table`, names indented by `indent`.
    fn rows(&self, table: &mut Table, grant: &Grant, page: Bytes, indent: &str, is_last: bool) {
        let (branch, below) = match (indent, is_last) {
            // The first row is that of the owner.
            ("", _) => ("", " "),
            (_, true) => ("\\_ ", "    "),
            (_, false) => ("\\_ ", "|   "),
        };
        let name = format!("{indent}{branch}{}", printable::line(&self.name));
        let kib = |pages: u64| format!("{} KiB", pages * page.0 / 1024);
        let unknown = || "?".to_owned();
        let [resident, movable, drift, uncolored, per_color, immovable] = match &self.memory {
            None => [(); 6].map(|()| unknown()),
            Some(Memory { residence, movable, colors, .. }) => {
                let immovable = residence.immovable_text(page);
                let [drift, uncolored, per_color] = match colors {
                    None => [(); 3].map(|()| unknown()),
                    Some(Colors { placement, drift, .. }) => {
                        let held =
                            grant.colors.iter().map(|color| placement.per_color.get(usize::from(color.0)).copied());
                        let held = held.map(|pages| (pages.unwrap_or(0) * page.0 / 1024).to_string());
                        let held = held.collect::<Vec<_>>().join(" ");
                        [format!("{:.1} %", drift * 100.0), kib(placement.unknown), format!("{held} KiB")]
                    }
                };
                let immovable = if immovable.is_empty() { "none".to_owned() } else { immovable };
                [kib(residence.resident), kib(*movable), drift, uncolored, per_color, immovable]
            }
        };
        let cells = [self.pid.to_string(), name, resident, movable, drift, uncolored];
        table.noted(cells, format!("{per_color}; immovable: {immovable}"));
        let indent = format!("{indent}{below}");
        for (at, child) in self.children.iter().enumerate() {
            child.rows(table, grant, page, &indent, at + 1 == self.children.len());
        }
    }

    /// Whether the colors of the memory of this process or of a descendant are not known.
    fn has_unknown_colors(&self) -> bool {
        let is_unknown = self.memory.as_ref().is_none_or(|memory| memory.colors.is_none());
        is_unknown || self.children.iter().any(Process::has_unknown_colors)
    }

    /// Returns the largest number of pages that one process of the tree shares with others of the tree.
    fn common(&self) -> u64 {
        let own = self.memory.as_ref().and_then(|memory| memory.in_tree_too).unwrap_or(0);
        own.max(self.children.iter().map(Process::common).max().unwrap_or(0))
    }
}

/// Formats the grants, each with the processes that use it. `has_palettes`: whether the palettes of all grants are saved.
fn text(rows: &[Row], page: Bytes, has_palettes: bool, width: usize) -> String {
    if rows.is_empty() {
        return "no colors are granted\n".to_owned();
    }
    let mut text = String::new();
    for Row { grant, process } in rows {
        let cpus: Vec<u32> = grant.cpus.iter().map(|cpu| cpu.0).collect();
        let colors: Vec<u32> = grant.colors.iter().map(|color| u32::from(color.0)).collect();
        let sharing = match &grant.sharing {
            Sharing::Exclusive => "exclusive".to_owned(),
            Sharing::Group(name) => format!("group {}", printable::line(name)),
        };
        text += &format!(
            "colors {} of level {} on CPUs {}, {sharing}:\n",
            format_list(&colors),
            grant.level,
            format_list(&cpus)
        );
        let numbers = ["resident", "movable", "drift", "unknown"].map(|head| (head, Align::Right));
        let heads = [("pid", Align::Right), ("process", Align::Left)].into_iter().chain(numbers);
        let mut table = Table::new(heads).keys(2).indented(2).notes("movable memory per color granted; immovable");
        process.rows(&mut table, grant, page, "", true);
        text += &table.text(width);
    }
    text.push_str(
        "movable: private memory; drift: share of it, as far as its color is known, outside of the colors granted; immovable memory stays \
         in the colors it has\n",
    );
    let common = rows.iter().map(|row| row.process.common()).max().unwrap_or(0);
    if common > 0 {
        text.push_str("processes of one tree share memory, which is counted in each of them (--json: in_tree_too)\n");
    }
    if rows.iter().any(|row| row.process.has_unknown_colors()) {
        text += match has_palettes {
            true => {
                "?: the kernel does not show this user where the memory of the process lies\n  hint: sudo isochrome ps\n"
            }
            false => {
                "?: no palette with the colors of frames is saved; colors that `exec` has measured for its program are known to it alone\n  hint: \
                 isochrome palette --save --memory 4G\n"
            }
        };
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use isochrome_host::color::ledger::Owner;
    use isochrome_model::layout::{WIDTH, columns};
    use isochrome_model::placement::ResidentPage;
    use isochrome_model::units::CpuId;

    fn process(pid: u32, name: &str, frames: &[u64], children: Vec<Process>) -> Process {
        let pages: Vec<ResidentPage> = frames
            .iter()
            .map(|frame| ResidentPage { page: *frame, frame: Some(FrameNumber(*frame)), anonymous: true })
            .collect();
        let mut residence = Residence::default();
        residence.add(Kind::Private, &pages);
        residence.add(Kind::SharedMemory, &pages);
        let placement = Placement { per_color: vec![pages.len() as u64 - 1, 1], unknown: 0 };
        let memory = Memory {
            movable: residence.movable(),
            residence,
            kib: Kib { resident: 0, movable: 0, immovable: BTreeMap::new() },
            colors: Some(Colors { drift: 0.25, drifted: 1, placement }),
            in_tree_too: None,
            frames: frames.iter().copied().map(FrameNumber).collect(),
        };
        Process { pid, name: name.to_owned(), memory: Some(memory), children }
    }

    fn row() -> Row {
        let grandchild = process(4, "writer", &[20, 21], Vec::new());
        let children = vec![process(3, "one", &[2, 10], vec![grandchild]), process(5, "two", &[11], Vec::new())];
        let owner = Owner { pid: 2, start_ticks: 1, name: "server".to_owned() };
        let mut process = process(2, "server", &[1, 2, 3, 4], children);
        process.count_common();
        let grant = Grant {
            owner,
            sharing: Sharing::Exclusive,
            level: 2,
            cpus: vec![CpuId(1), CpuId(2)],
            colors: vec![Color(0)],
        };
        Row { grant, process }
    }

    #[test]
    fn a_tree_is_shown_as_one_and_shared_memory_is_named() {
        let text = text(&[row()], Bytes(4096), true, 200);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "colors 0 of level 2 on CPUs 1-2, exclusive:");
        for (line, what) in
            [(2, "    2  server "), (3, "    3   \\_ one "), (4, "    4   |   \\_ writer "), (5, "    5   \\_ two ")]
        {
            assert!(lines[line].starts_with(what), "{what}: {text}");
        }
        for what in ["32 KiB", "16 KiB", "25.0 %", "12 KiB; immovable: 16 KiB shared memory"] {
            assert!(lines[2].contains(what), "{what}: {text}");
        }
        // The columns are aligned.
        assert!(lines[2..6].iter().all(|line| line.find(" KiB") == lines[2].find(" KiB")), "{text}");
        assert!(text.contains("counted in each of them"));
    }

    #[test]
    fn a_name_with_escape_sequences_stays_text_in_its_row() {
        let hostile = "\u{1b}[2J\u{9b}m\n9 root\u{202e}\0";
        let mut row = row();
        row.process.name = hostile.to_owned();
        row.process.children[0].name = hostile.to_owned();
        row.grant.sharing = Sharing::Group(hostile.to_owned());
        let shown = text(&[row], Bytes(4096), true, 200);
        assert!(shown.chars().all(|c| printable::is_printable(c) || c == '\n'), "{shown:?}");
        // The grant, the headings, four processes, and two lines of explanation.
        assert_eq!(shown.lines().count(), 8, "{shown}");
    }

    #[test]
    fn rows_fit_80_columns_and_what_is_unknown_is_explained() {
        let mut row = row();
        row.process.name = "a-long-name-of-15".to_owned();
        row.grant.colors = (0..16).map(Color).collect();
        let memory = row.process.children[0].memory.as_mut().unwrap();
        memory.movable = 123_456_789;
        memory.colors = None;
        let shown = text(&[row], Bytes(4096), false, WIDTH);
        let table = shown.lines().filter(|line| !line.starts_with(|c: char| c.is_alphabetic() || c == '?'));
        assert!(table.clone().count() >= 10 && table.clone().all(|line| columns(line) <= WIDTH), "{shown}");
        assert!(shown.ends_with("  hint: isochrome palette --save --memory 4G\n"), "{shown}");
        assert!(!text(&[self::row()], Bytes(4096), true, WIDTH).contains("hint"), "nothing is unknown");
    }

    #[test]
    fn what_processes_of_a_tree_share_is_counted_in_each() {
        let json = serde_json::to_value([row()]).unwrap();
        let server = &json[0];
        // Frame 2 belongs to both `server` and `one`.
        let counted = [server, &server["children"][0], &server["children"][1]].map(|one| &one["memory"]["in_tree_too"]);
        assert_eq!(counted, [1, 1, 0]);
        assert_eq!(server["children"][0]["children"][0]["name"], "writer");
        assert_eq!((&server["memory"]["resident"], &server["memory"]["movable"]), (&8.into(), &4.into()));
        assert_eq!((&server["memory"]["immovable"]["shared_memory"], &server["owner"]["pid"]), (&4.into(), &2.into()));
    }
}
