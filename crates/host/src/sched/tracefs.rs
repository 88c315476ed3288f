//! Scheduler events of some CPUs from tracefs: switches, wake-ups, and accounted run time.
//!
//! An instance of tracefs has a ring of fixed size for every CPU. The kernel writes an event in about 0.3 us, and this module reads events
//! in batches, from any CPU. The watched CPU has no other work than writing. Times are CLOCK_MONOTONIC. The format of the rings is
//! described by `events/header_page` and `events/header_event` of tracefs.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use isochrome_model::units::{CpuId, Ns};

use super::error::SchedError;
use super::source::Source;
use super::{EventKind, SchedEvent, ThreadName, switch_out};
use crate::error::SystemError;
use crate::machine::sysfs::Sysfs;
use crate::sys::mount::Mount;
use crate::sys::perf::GroupReading;

/// Size of the ring of each CPU, in KiB.
const RING_KIB: u64 = 4096;

/// Usual mount points of tracefs.
const MOUNT_POINTS: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];

/// Prefix of the names of instances that isochrome makes; the number of the process follows.
const INSTANCE: &str = "isochrome-";

/// Numbers of the events that are read, with the offsets of their fields.
struct Layout {
    switch: [usize; 5],
    waking: [usize; 2],
    wakeup: [usize; 2],
    ran: [usize; 3],
    fork: [usize; 3],
}

/// Returns the number of `event` and the offsets of its fields `names`, from the folder `events`.
pub(crate) fn fields<const N: usize>(events: &Path, event: &str, names: [&str; N]) -> Result<Vec<usize>, SystemError> {
    let path = events.join(event).join("format");
    let text = read(&path)?;
    let malformed =
        || SystemError::Malformed { path: path.clone(), text: String::new(), expected: "the form of an event" };
    let id = text.lines().find_map(|line| line.strip_prefix("ID:")?.trim().parse().ok()).ok_or_else(malformed)?;
    let mut found = vec![id];
    for name in names {
        let offset = text.lines().find_map(|line| {
            let (declaration, rest) = line.split_once(';')?;
            let declared = declaration.rsplit([' ', '\t']).next()?.split('[').next()?;
            let offset = rest.trim().strip_prefix("offset:")?.split(';').next()?;
            (declared == name).then(|| offset.parse().ok())?
        });
        found.push(offset.ok_or_else(malformed)?);
    }
    Ok(found)
}

fn array<const N: usize>(values: Vec<usize>) -> [usize; N] {
    values.try_into().expect("as many fields as were requested")
}

impl Layout {
    fn read(events: &Path) -> Result<Layout, SchedError> {
        Ok(Layout {
            // The state is a long, which is read as on 64-bit kernels.
            switch: array(fields(events, "sched_switch", ["prev_pid", "prev_state", "next_pid", "next_comm"])?),
            waking: array(fields(events, "sched_waking", ["pid"])?),
            wakeup: array(fields(events, "sched_wakeup", ["pid"])?),
            ran: array(fields(events, "sched_stat_runtime", ["pid", "runtime"])?),
            fork: array(fields(events, "sched_process_fork", ["parent_pid", "child_pid"])?),
        })
    }

    /// Decodes the bytes of an event; `None` if it is not one of those that are read.
    fn decode(&self, bytes: &[u8]) -> Option<EventKind> {
        let id = usize::from(u16::from_ne_bytes(bytes.get(..2)?.try_into().ok()?));
        let number = |at: usize| Some(i32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        let long = |at: usize| Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        match id {
            _ if id == self.switch[0] => Some(EventKind::Switch {
                from: number(self.switch[1])?,
                reason: switch_out(long(self.switch[2])?),
                to: number(self.switch[3])?,
                from_name: ThreadName::default(),
                reading: GroupReading::default(),
                to_name: ThreadName(bytes.get(self.switch[4]..self.switch[4] + 16)?.try_into().ok()?),
            }),
            _ if id == self.waking[0] => Some(EventKind::Waking { thread: number(self.waking[1])? }),
            _ if id == self.wakeup[0] => Some(EventKind::Wakeup { thread: number(self.wakeup[1])? }),
            _ if id == self.ran[0] => {
                Some(EventKind::Runtime { thread: number(self.ran[1])?, time: Ns(long(self.ran[2])?) })
            }
            _ if id == self.fork[0] => {
                Some(EventKind::Fork { parent: number(self.fork[1])?, child: number(self.fork[2])? })
            }
            _ => None,
        }
    }
}

/// Passes the time and the bytes of every event in a page of a ring to `each`, and returns the number of events lost before the page.
///
/// The page has a header of 16 bytes: the time of the first event, and the size of the data.
pub(super) fn page_events(page: &[u8], mut each: impl FnMut(Ns, &[u8])) -> u64 {
    const HEADER: usize = 16;
    const MISSED: u64 = 1 << 31;
    const MISSED_STORED: u64 = 1 << 30;
    const SIZE: u64 = (1 << 20) - 1;
    const PADDING: u32 = 29;
    const EXTEND: u32 = 30;
    const STAMP: u32 = 31;
    let word = |at: usize| page.get(at..at + 4).map(|b| u32::from_ne_bytes([b[0], b[1], b[2], b[3]]));
    let long = |at: usize| Some(u64::from(word(at)?) | u64::from(word(at + 4)?) << 32);
    let (Some(mut time), Some(commit)) = (long(0), long(8)) else { return 0 };
    let end = HEADER + (commit & SIZE) as usize;
    let lost = match commit & (MISSED | MISSED_STORED) {
        0 => 0,
        bits if bits & MISSED_STORED != 0 => long(end).unwrap_or(1),
        _ => 1,
    };
    let mut at = HEADER;
    while at + 4 <= end.min(page.len()) {
        let Some(head) = word(at) else { break };
        let (kind, delta) = (head & 31, u64::from(head >> 5));
        let next = || word(at + 4).map(u64::from);
        match kind {
            PADDING if delta == 0 => break,
            PADDING => at += 4 + next().unwrap_or(u64::from(u32::MAX)) as usize,
            EXTEND => {
                time = time.wrapping_add((next().unwrap_or(0) << 27) + delta);
                at += 8;
            }
            STAMP => {
                time = (next().unwrap_or(0) << 27) + delta;
                at += 8;
            }
            0 => {
                time = time.wrapping_add(delta);
                let length = next().unwrap_or(u64::from(u32::MAX)) as usize;
                each(Ns(time), page.get(at + 8..at + 4 + length).unwrap_or_default());
                at += 4 + length;
            }
            words => {
                time = time.wrapping_add(delta);
                let length = 4 * words as usize;
                each(Ns(time), page.get(at + 4..at + 4 + length).unwrap_or_default());
                at += 4 + length;
            }
        }
    }
    lost
}

/// A source of scheduler events by tracefs.
pub struct Tracefs {
    folder: PathBuf,
    cpus: Vec<CpuId>,
    /// The watched CPUs whose switches are not recorded now.
    off: Vec<CpuId>,
    rings: Vec<(CpuId, File)>,
    layout: Layout,
    page: Vec<u8>,
    lost: u64,
    /// Mount of tracefs, if it is mounted for this process alone.
    _mount: Option<Mount>,
}

fn read(path: &Path) -> Result<String, SystemError> {
    fs::read_to_string(path).map_err(|source| SystemError::Unreadable {
        path: path.to_owned(),
        source,
        hint: "events of the scheduler take root, and a kernel with CONFIG_FTRACE",
    })
}

fn write(path: &Path, text: &str) -> Result<(), SchedError> {
    fs::write(path, text).map_err(|source| SchedError::Events { path: path.to_owned(), source })
}

/// Returns the path of tracefs, which is mounted for this process alone if it is not mounted yet.
pub(crate) fn tracefs() -> Result<(PathBuf, Option<Mount>), SchedError> {
    if let Some(root) = MOUNT_POINTS.iter().map(Path::new).find(|root| root.join("instances").exists()) {
        return Ok((root.to_owned(), None));
    }
    let mount = Mount::new("tracefs").map_err(|source| SchedError::Events { path: MOUNT_POINTS[0].into(), source })?;
    Ok((mount.path(), Some(mount)))
}

/// Removes instances of processes that have ended.
pub fn remove_left() {
    let Some(root) = MOUNT_POINTS.iter().map(Path::new).find(|root| root.join("instances").exists()) else { return };
    for entry in fs::read_dir(root.join("instances")).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let owner = name.to_str().and_then(|name| name.strip_prefix(INSTANCE)?.split('.').next()?.parse::<u32>().ok());
        if owner.is_some_and(|owner| !Path::new(&format!("/proc/{owner}")).exists()) {
            // An instance that is still in use stays until the next time.
            let _ = fs::remove_dir(entry.path());
        }
    }
}

impl Tracefs {
    /// Records from now on the switches on `cpus`. Events of single threads are recorded once [`follow`](Self::follow) names the threads.
    ///
    /// Fails with [`SchedError::Events`] if the kernel has no such events or this user may not read them.
    pub fn open(cpus: &[CpuId]) -> Result<Tracefs, SchedError> {
        let (root, mount) = tracefs()?;
        // A process may open several sources, each with an instance of its own.
        static NUMBER: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let folder = root.join("instances").join(format!("{INSTANCE}{}.{number}", std::process::id()));
        fs::create_dir(&folder).map_err(|source| SchedError::Events { path: folder.clone(), source })?;
        let layout = Layout::read(&folder.join("events/sched"));
        let mut source = Tracefs {
            folder,
            cpus: cpus.to_vec(),
            off: Vec::new(),
            rings: Vec::new(),
            // The layout is replaced below. The instance is removed even if reading the layout fails.
            layout: Layout { switch: [0; 5], waking: [0; 2], wakeup: [0; 2], ran: [0; 3], fork: [0; 3] },
            page: vec![0; 1 << 16],
            lost: 0,
            _mount: mount,
        };
        source.layout = layout?;
        source.set_up()?;
        Ok(source)
    }

    fn set_up(&mut self) -> Result<(), SchedError> {
        write(&self.folder.join("tracing_on"), "0")?;
        write(&self.folder.join("trace_clock"), "mono")?;
        write(&self.folder.join("buffer_size_kb"), &RING_KIB.to_string())?;
        self.record_switches()?;
        for cpu in Sysfs::system().online_cpus()? {
            let path = self.folder.join(format!("per_cpu/cpu{}/trace_pipe_raw", cpu.0));
            let ring = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(&path);
            self.rings.push((cpu, ring.map_err(|source| SchedError::Events { path, source })?));
        }
        write(&self.folder.join("tracing_on"), "1")
    }

    /// Records the switches on all CPUs that are not turned off.
    fn record_switches(&self) -> Result<(), SchedError> {
        let on = self.cpus.iter().filter(|cpu| !self.off.contains(cpu));
        self.record("sched_switch", &on.map(|cpu| format!("CPU == {}", cpu.0)).collect::<Vec<_>>())
    }

    /// Records `event` from now on whenever it meets one of `conditions`, and never if there are none.
    fn record(&self, event: &str, conditions: &[String]) -> Result<(), SchedError> {
        let folder = self.folder.join("events/sched").join(event);
        if !conditions.is_empty() {
            write(&folder.join("filter"), &conditions.join(" || "))?;
        }
        write(&folder.join("enable"), if conditions.is_empty() { "0" } else { "1" })
    }
}

impl Source for Tracefs {
    fn drain(&mut self, events: &mut Vec<SchedEvent>) -> Result<(), SchedError> {
        let Tracefs { rings, page, layout, lost, folder, .. } = self;
        for (cpu, ring) in rings {
            // A ring that fills as fast as it is read must not keep the others waiting.
            for _ in 0..2 * RING_KIB {
                let bytes = match ring.read(page) {
                    Ok(0) => break,
                    Ok(bytes) => bytes,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                    Err(source) => return Err(SchedError::Events { path: folder.clone(), source }),
                };
                *lost += page_events(&page[..bytes], |at, bytes| {
                    if let Some(kind) = layout.decode(bytes) {
                        events.push(SchedEvent { at, cpu: *cpu, kind });
                    }
                });
            }
        }
        Ok(())
    }

    fn follow(&mut self, threads: &[i32], others: &[i32]) -> Result<(), SchedError> {
        let here = self.cpus.iter().map(|cpu| format!("CPU == {}", cpu.0));
        let those = |field: &'static str| threads.iter().map(move |thread| format!("{field} == {thread}"));
        // Any CPU may account the time.
        let accounted = here.chain(those("pid")).chain(others.iter().map(|thread| format!("pid == {thread}")));
        for (event, any) in [
            ("sched_waking", those("pid").collect::<Vec<_>>()),
            ("sched_wakeup", those("pid").collect()),
            ("sched_process_fork", those("parent_pid").collect()),
            ("sched_stat_runtime", accounted.collect()),
        ] {
            self.record(event, if threads.is_empty() { &[] } else { &any[..] })?;
        }
        Ok(())
    }

    fn enable(&mut self, cpu: CpuId, on: bool) -> Result<(), SchedError> {
        self.off.retain(|other| *other != cpu);
        if !on {
            self.off.push(cpu);
        }
        self.record_switches()
    }

    fn lost(&self) -> u64 {
        self.lost
    }

    fn name(&self) -> &'static str {
        "tracefs"
    }
}

impl Drop for Tracefs {
    fn drop(&mut self) {
        self.rings.clear();
        // An instance that stays is removed by the next start.
        let _ = fs::write(self.folder.join("tracing_on"), "0");
        let _ = fs::write(self.folder.join("events/enable"), "0");
        let _ = fs::remove_dir(&self.folder);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(time: u64, commit: u64, words: &[u32]) -> Vec<u8> {
        let mut bytes = [time.to_ne_bytes(), commit.to_ne_bytes()].concat();
        words.iter().for_each(|word| bytes.extend(word.to_ne_bytes()));
        bytes
    }

    #[test]
    fn events_of_a_page_are_read_with_their_times() {
        // An event of 2 words, 5 ns after the beginning of the page; an event with a separate length, after an extension by 3 * 2^27 + 1 ns; a
        // discarded event; and an event after an absolute time.
        let words = [
            2 | 5 << 5,
            0xa,
            0xb, // time 105
            30 | 1 << 5,
            3, // + 3 * 2^27 + 1
            7 << 5,
            8,
            0xc, // length 8: one word, 7 ns later
            29 | 9 << 5,
            4, // discarded
            31 | 2 << 5,
            1, // time 2^27 + 2
            1 | 4 << 5,
            0xd,
        ];
        let mut seen = Vec::new();
        let lost = page_events(&page(100, 4 * words.len() as u64, &words), |at, bytes| {
            seen.push((at.0, bytes.chunks(4).map(|b| b[0]).collect::<Vec<_>>()));
        });
        let extended = 105 + 3 * (1 << 27) + 1 + 7;
        assert_eq!(seen, [(105, vec![0xa, 0xb]), (extended, vec![0xc]), ((1 << 27) + 6, vec![0xd])]);
        assert_eq!(lost, 0);
    }

    #[test]
    fn lost_events_are_counted_and_cut_pages_do_not_matter() {
        let stored = page(0, 8 | 1 << 31 | 1 << 30, &[1 | 1 << 5, 0xa, 12, 0]);
        assert_eq!(page_events(&stored, |_, _| {}), 12);
        for cut in 0..stored.len() {
            page_events(&stored[..cut], |_, _| {});
        }
        // Times of garbage have no end.
        page_events(&page(u64::MAX - 1, 24, &[1 | 1 << 5, 0xa, 30 | 1 << 5, 3, 1 | 2 << 5, 0xb]), |_, _| {});
        // Reading garbage must end.
        let garbage: Vec<u8> = (0..4096u32).map(|i| (i * 37 % 251) as u8).collect();
        page_events(&garbage, |_, _| {});
    }
}
