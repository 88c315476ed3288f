//! What the kernel says of the machine: CPUs, caches, processor, hypervisor.
//!
//! Everything is read below one root, so that a described machine is a folder holding `sys/` and `proc/`. Some Arm boards and
//! virtual machines hide the shape of a cache. Of size, ways, sets and line any three determine the fourth; what is still
//! missing then is asked of the processor itself (x86 only), and a level that stays incomplete is left out with a note.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use isochrome_model::geometry::Geometry;
use isochrome_model::machine::{CacheLevel, Fact, Holds, Machine, SCHEMA, Source};
use isochrome_model::units::{Bytes, CpuId, ParseError, parse_list};
use serde::Serialize;

use crate::error::HostError;

/// More CPUs than any Linux supports (NR_CPUS is at most 8192): a guard against a nonsensical list.
pub(crate) const CPU_LIMIT: u32 = 1 << 16;

/// More cache folders than any CPU has.
const CACHE_INDEX_LIMIT: u32 = 32;

/// The files of a kernel: of this one, or of a machine described in a folder.
#[derive(Clone, Debug)]
pub struct Sysfs {
    root: PathBuf,
    /// Whether this is the machine that isochrome runs on, which may then be asked directly.
    is_this_machine: bool,
}

/// Something that could not be had, why, and what helps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Note {
    /// What it is about.
    pub subject: String,
    /// Why it could not be had.
    pub reason: String,
    /// What to do.
    pub hint: String,
}

/// How the processor names itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Processor {
    /// `AuthenticAMD`, `GenuineIntel`; empty on Arm.
    pub vendor: String,
    /// Family on x86.
    pub family: u32,
    /// Model on x86.
    pub model: u32,
    /// Implementer on Arm; 0x41 is Arm itself.
    pub implementer: u32,
    /// Part on Arm; 0xd08 is the Cortex-A72.
    pub part: u32,
    /// Model in words.
    pub name: String,
    /// Feature flags.
    pub flags: Vec<String>,
}

impl Processor {
    /// The processor of the first CPU in the text of /proc/cpuinfo.
    pub fn from_cpuinfo(text: &str) -> Processor {
        let mut processor = Processor::default();
        let mut board = None;
        // The board's name comes after the last CPU, everything else is taken from the first.
        for (key, value) in text.lines().filter_map(|line| line.split_once(':')).rev() {
            let (key, value) = (key.trim(), value.trim());
            match key {
                "vendor_id" => processor.vendor = value.to_owned(),
                "cpu family" => processor.family = number(value).unwrap_or(0),
                "model" => processor.model = number(value).unwrap_or(0),
                "CPU implementer" => processor.implementer = number(value).unwrap_or(0),
                "CPU part" => processor.part = number(value).unwrap_or(0),
                "model name" => processor.name = value.to_owned(),
                "flags" | "Features" => processor.flags = value.split_whitespace().map(str::to_owned).collect(),
                "Model" => board = Some(value.to_owned()),
                _ => {}
            }
        }
        if processor.name.is_empty() && processor.part != 0 {
            processor.name = arm_name(processor.implementer, processor.part);
            if let Some(board) = board {
                processor.name = format!("{} ({board})", processor.name);
            }
        }
        processor
    }

    /// Whether the processor has `flag`.
    pub fn has(&self, flag: &str) -> bool {
        self.flags.iter().any(|f| f == flag)
    }

    /// Whether the processor was recognized as an Arm.
    pub fn is_arm(&self) -> bool {
        self.implementer != 0
    }
}

/// A decimal number, or a hexadecimal one behind `0x`.
fn number(text: &str) -> Option<u32> {
    match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// Name of an Arm core from its main id register. [Linux, arch/arm64/include/asm/cputype.h]
fn arm_name(implementer: u32, part: u32) -> String {
    match (implementer, part) {
        (0x41, 0xd03) => "Arm Cortex-A53".to_owned(),
        (0x41, 0xd05) => "Arm Cortex-A55".to_owned(),
        (0x41, 0xd07) => "Arm Cortex-A57".to_owned(),
        (0x41, 0xd08) => "Arm Cortex-A72".to_owned(),
        (0x41, 0xd09) => "Arm Cortex-A73".to_owned(),
        (0x41, 0xd0b) => "Arm Cortex-A76".to_owned(),
        (0x41, 0xd0c) => "Arm Neoverse-N1".to_owned(),
        (0x41, 0xd40) => "Arm Neoverse-V1".to_owned(),
        (0x41, 0xd49) => "Arm Neoverse-N2".to_owned(),
        _ => format!("Arm implementer {implementer:#x} part {part:#x}"),
    }
}

impl Sysfs {
    /// The kernel that isochrome runs on.
    pub fn system() -> Sysfs {
        Sysfs { root: PathBuf::from("/"), is_this_machine: true }
    }

    /// A machine described in the folder `root`, which holds `sys/` and `proc/`.
    pub fn at(root: &Path) -> Sysfs {
        Sysfs { root: root.to_owned(), is_this_machine: false }
    }

    /// Path of `relative` below the root.
    pub fn path(&self, relative: &str) -> PathBuf {
        self.root.join(relative)
    }

    /// Text of a file without the white space around it; `None` when it cannot be read.
    pub fn text(&self, relative: &str) -> Option<String> {
        fs::read_to_string(self.path(relative)).ok().map(|text| text.trim().to_owned())
    }

    /// Bytes of a huge page, where the kernel has them.
    pub fn huge_page_bytes(&self) -> Option<usize> {
        let size = self.text("sys/kernel/mm/transparent_hugepage/hpage_pmd_size")?.parse().ok()?;
        let page = self.page_bytes().ok()?.0 as usize;
        Some(size).filter(|size: &usize| size.is_power_of_two() && *size > page)
    }

    /// Text of a file that must be there.
    fn required(&self, relative: &str) -> Result<String, HostError> {
        let path = self.path(relative);
        fs::read_to_string(&path).map(|text| text.trim().to_owned()).map_err(|source| HostError::Unreadable {
            path,
            source,
            hint: "isochrome needs /sys and /proc; mount them in this container or chroot",
        })
    }

    /// CPUs of a list file; `None` when it cannot be read.
    pub fn cpus_in(&self, relative: &str) -> Result<Option<Vec<CpuId>>, HostError> {
        let Some(text) = self.text(relative) else { return Ok(None) };
        let cpus = parse_list(&text, CPU_LIMIT).map_err(|source| self.not_a_list(relative, source))?;
        Ok(Some(cpus.into_iter().map(CpuId).collect()))
    }

    fn not_a_list(&self, relative: &str, source: ParseError) -> HostError {
        HostError::List { path: self.path(relative), source }
    }

    /// Online CPUs, ascending.
    pub fn online_cpus(&self) -> Result<Vec<CpuId>, HostError> {
        const ONLINE: &str = "sys/devices/system/cpu/online";
        let text = self.required(ONLINE)?;
        let cpus = parse_list(&text, CPU_LIMIT).map_err(|source| self.not_a_list(ONLINE, source))?;
        if cpus.is_empty() {
            return Err(HostError::Malformed { path: self.path(ONLINE), text, expected: "a list of at least one CPU" });
        }
        Ok(cpus.into_iter().map(CpuId).collect())
    }

    /// How the processor names itself.
    pub fn processor(&self) -> Result<Processor, HostError> {
        Ok(Processor::from_cpuinfo(&self.required("proc/cpuinfo")?))
    }

    /// The machine as the kernel and the processor declare it, and what had to be left out.
    ///
    /// Rates, load times and refill times are measured elsewhere and absent here.
    pub fn machine(&self) -> Result<(Machine, Vec<Note>), HostError> {
        let processor = self.processor()?;
        let cpus = self.online_cpus()?;
        let (levels, notes) = self.levels(&cpus, &processor)?;
        let machine = Machine {
            schema: SCHEMA.to_owned(),
            architecture: self.architecture(&processor)?,
            hypervisor: self.hypervisor(&processor),
            cpu_model: processor.name,
            cpus,
            page_bytes: self.page_bytes()?,
            counter_hz: None,
            counter_quantum: None,
            memory_load_ns: None,
            latency: Vec::new(),
            levels,
        };
        Ok((machine, notes))
    }

    /// Bytes per page.
    pub fn page_bytes(&self) -> Result<Bytes, HostError> {
        if self.is_this_machine {
            return Ok(Bytes(rustix::param::page_size() as u64));
        }
        const SMAPS: &str = "proc/self/smaps";
        let text = self.required(SMAPS)?;
        let line = text.lines().find_map(|line| line.strip_prefix("KernelPageSize:"));
        line.and_then(|size| size.trim().strip_suffix("kB")?.trim().parse::<u64>().ok())
            .filter(|kib| kib.is_power_of_two())
            .map(|kib| Bytes(kib << 10))
            .ok_or_else(|| HostError::Malformed {
                path: self.path(SMAPS),
                text: line.unwrap_or_default().to_owned(),
                expected: "a page size such as `KernelPageSize: 4 kB`",
            })
    }

    /// Frames of the pieces in which this virtual machine gives free memory back to its host, where it does: each may lie on other frames
    /// of the host afterwards. [Linux, Documentation/mm/free_page_reporting.rst]
    pub fn reported_block_frames(&self) -> Option<u64> {
        /// VIRTIO_BALLOON_F_REPORTING. [Linux, include/uapi/linux/virtio_balloon.h]
        const REPORTING: usize = 5;
        let devices = fs::read_dir(self.path("sys/bus/virtio/drivers/virtio_balloon")).ok()?;
        // The bits are written from the lowest on.
        let reports = |features: String| features.as_bytes().get(REPORTING) == Some(&b'1');
        let reports =
            devices.flatten().any(|device| fs::read_to_string(device.path().join("features")).is_ok_and(reports));
        let order: i64 = self.text("sys/module/page_reporting/parameters/page_reporting_order")?.parse().ok()?;
        // Unset it is that of a huge page; the pieces of a buddy allocator are far smaller than the bound.
        reports.then(|| 1 << u32::try_from(order).unwrap_or(9).min(30))
    }

    /// Memory of the system under `name` in /proc/meminfo, as `MemFree` or `MemAvailable`.
    pub fn memory(&self, name: &str) -> Option<Bytes> {
        let text = self.text("proc/meminfo")?;
        let size = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        let kib: u64 = size.trim().strip_suffix("kB")?.trim().parse().ok()?;
        Some(Bytes(kib << 10))
    }

    /// Architecture as `uname -m` gives it.
    fn architecture(&self, processor: &Processor) -> Result<String, HostError> {
        // Linux 6.1 and newer say it.
        if let Some(architecture) = self.text("proc/sys/kernel/arch") {
            return Ok(architecture);
        }
        if self.is_this_machine {
            return Ok(std::env::consts::ARCH.to_owned());
        }
        match processor {
            p if p.has("lm") => Ok("x86_64".to_owned()),
            // `asimd` is what 64-bit kernels call it, 32-bit ones say `neon`.
            p if p.is_arm() && p.has("asimd") => Ok("aarch64".to_owned()),
            _ => Err(HostError::Malformed {
                path: self.path("proc/cpuinfo"),
                text: processor.name.clone(),
                expected: "a processor of a known architecture",
            }),
        }
    }

    /// Number of threads that are running or runnable now, including the calling one. [proc_loadavg(5)]
    pub fn running_threads(&self) -> Option<usize> {
        let text = self.text("proc/loadavg")?;
        text.split_ascii_whitespace().nth(3)?.split_once('/')?.0.parse().ok()
    }

    /// Whether a hypervisor shows itself.
    pub fn is_virtual(&self) -> bool {
        self.processor().is_ok_and(|processor| self.hypervisor(&processor).is_some())
    }

    /// The hypervisor, as far as it shows itself.
    fn hypervisor(&self, processor: &Processor) -> Option<String> {
        if let Some(kind) = self.text("sys/hypervisor/type") {
            return Some(kind);
        }
        if let Some(compatible) = self.text("sys/firmware/devicetree/base/hypervisor/compatible") {
            return Some(compatible.split('\0').next().unwrap_or_default().to_owned());
        }
        if processor.has("hypervisor") {
            let named = self.is_this_machine.then(cpuid::hypervisor).flatten();
            return Some(named.or_else(|| self.virtual_board()).unwrap_or_else(|| "unnamed".to_owned()));
        }
        // Arm processors have no such flag; the virtual board gives it away.
        if processor.is_arm() { self.virtual_board() } else { None }
    }

    /// Name of the board's vendor when it is known to make virtual boards only.
    fn virtual_board(&self) -> Option<String> {
        let vendor = self.text("sys/class/dmi/id/sys_vendor")?;
        ["QEMU", "Amazon EC2", "Google", "VMware, Inc.", "innotek GmbH", "Xen", "Parallels", "KVM"]
            .contains(&vendor.as_str())
            .then_some(vendor)
    }

    /// Cache levels, innermost first, and what had to be left out.
    fn levels(&self, cpus: &[CpuId], processor: &Processor) -> Result<(Vec<CacheLevel>, Vec<Note>), HostError> {
        let mut found: BTreeMap<(u8, u8), Vec<CacheLevel>> = BTreeMap::new();
        let mut notes: Vec<Note> = Vec::new();
        let mut note = |subject: String, reason: String| {
            if !notes.iter().any(|n| n.subject == subject && n.reason == reason) {
                notes.push(Note { subject, reason, hint: DECLARE.to_owned() });
            }
        };
        for &cpu in cpus {
            let folders = self.cache_folders(cpu);
            if folders.is_empty() {
                note("caches".to_owned(), format!("sysfs shows none ({})", processor.name));
            }
            // Asked at most once per CPU, and only if something is missing.
            let identified = std::cell::OnceCell::new();
            for folder in folders {
                let cache = self.read_cache(&folder);
                let Some((level, holds)) = cache.level.zip(cache.holds) else {
                    note(folder, "its level or type is missing or of an unknown kind".to_owned());
                    continue;
                };
                let subject = format!("level {level} ({})", words(holds));
                let geometry = match cache.geometry() {
                    Some(value) => Some(Fact { value, source: Source::Sysfs }),
                    None => identified
                        .get_or_init(|| if self.is_this_machine { cpuid::caches(cpu) } else { Vec::new() })
                        .iter()
                        .find(|known| known.describes(&cache))
                        .and_then(|known| known.geometry())
                        .map(|value| Fact { value, source: Source::Cpuid }),
                };
                let Some(geometry) = geometry else {
                    note(subject, format!("sysfs hides its shape ({})", cache.describe()));
                    continue;
                };
                if cache.size.is_some_and(|size| size != geometry.value.cache_bytes()) {
                    let (size, shape) = (cache.size.unwrap_or_default(), geometry.value.cache_bytes());
                    note(
                        subject.clone(),
                        format!("sysfs says {size}, but sets, ways and line make {shape}; the latter is used"),
                    );
                }
                let Some(group) = self.cpus_in(&format!("{folder}/shared_cpu_list"))?.filter(|g| g.contains(&cpu))
                else {
                    note(subject, "sysfs does not say which CPUs share it".to_owned());
                    continue;
                };
                let kinds = found.entry((level, holds as u8)).or_default();
                // On machines with two types of core one level has two shapes, each with its own groups.
                match kinds.iter_mut().find(|known| known.geometry == geometry) {
                    Some(known) if known.shared_by.value.contains(&group) => {}
                    Some(known) => known.shared_by.value.push(group),
                    None => kinds.push(CacheLevel {
                        level,
                        holds,
                        geometry,
                        shared_by: Fact { value: vec![group], source: Source::Sysfs },
                        sharing_seen: None,
                        load_ns: None,
                        refill: None,
                        retention: Vec::new(),
                    }),
                }
            }
        }
        Ok((found.into_values().flatten().collect(), notes))
    }

    /// The number of the instance of the data cache of `level` that serves `cpu`, by which resctrl names it; `None` where sysfs has none.
    pub fn cache_id(&self, level: u8, cpu: CpuId) -> Option<u32> {
        let of_data = |folder: &String| {
            let is =
                |file: &str, wanted: &str| self.text(&format!("{folder}/{file}")).is_some_and(|text| text == wanted);
            is("level", &level.to_string()) && !is("type", "Instruction")
        };
        let folder = self.cache_folders(cpu).into_iter().find(of_data)?;
        self.text(&format!("{folder}/id"))?.parse().ok()
    }

    /// Folders of the caches of `cpu`, relative to the root.
    fn cache_folders(&self, cpu: CpuId) -> Vec<String> {
        (0..CACHE_INDEX_LIMIT)
            .map(|index| format!("sys/devices/system/cpu/cpu{}/cache/index{index}", cpu.0))
            .filter(|folder| self.path(folder).is_dir())
            .collect()
    }

    fn read_cache(&self, folder: &str) -> Described {
        let text = |name: &str| self.text(&format!("{folder}/{name}"));
        // The kernel writes 0 for what it does not know.
        let count = |name: &str| text(name).and_then(|t| t.parse::<u64>().ok()).filter(|&n| n > 0);
        Described {
            level: count("level").and_then(|n| u8::try_from(n).ok()),
            holds: text("type").and_then(|t| match t.as_str() {
                "Data" => Some(Holds::Data),
                "Instruction" => Some(Holds::Instruction),
                "Unified" => Some(Holds::Unified),
                _ => None,
            }),
            size: text("size").and_then(|t| t.parse::<Bytes>().ok()).filter(|b| b.0 > 0),
            ways: count("ways_of_associativity").and_then(|n| u32::try_from(n).ok()),
            sets: count("number_of_sets"),
            line: count("coherency_line_size").map(Bytes),
        }
    }
}

const DECLARE: &str = "add the level to the machine file (`isochrome probe -o machine.json`) with set_count, ways and line_bytes from the data sheet, source `declared`";

fn words(holds: Holds) -> &'static str {
    match holds {
        Holds::Data => "data",
        Holds::Instruction => "instructions",
        Holds::Unified => "unified",
    }
}

/// One cache as far as a source describes it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Described {
    level: Option<u8>,
    holds: Option<Holds>,
    size: Option<Bytes>,
    ways: Option<u32>,
    sets: Option<u64>,
    line: Option<Bytes>,
}

impl Described {
    /// The shape, when at least three of size, ways, sets and line are known.
    fn geometry(&self) -> Option<Geometry> {
        match *self {
            Described { ways: Some(ways), sets: Some(set_count), line: Some(line_bytes), .. } => {
                // A product that overflows is no cache.
                set_count.checked_mul(u64::from(ways))?.checked_mul(line_bytes.0)?;
                Some(Geometry { set_count, ways, line_bytes })
            }
            Described { size: Some(size), ways: Some(ways), line: Some(line), .. } => {
                Geometry::of_size(size, ways, line)
            }
            Described { size: Some(size), sets: Some(sets), line: Some(line), .. } => {
                let way_bytes = sets.checked_mul(line.0)?;
                let ways = u32::try_from(size.0 / way_bytes).ok()?;
                Geometry::of_size(size, ways, line).filter(|g| g.set_count == sets)
            }
            Described { size: Some(size), sets: Some(sets), ways: Some(ways), .. } => {
                let lines = sets.checked_mul(u64::from(ways))?;
                Geometry::of_size(size, ways, Bytes(size.0 / lines)).filter(|g| g.set_count == sets)
            }
            _ => None,
        }
    }

    /// Whether this describes the same cache as `other`: whatever both say agrees.
    fn describes(&self, other: &Described) -> bool {
        fn agree<T: PartialEq>(a: Option<T>, b: Option<T>) -> bool {
            a.zip(b).is_none_or(|(a, b)| a == b)
        }
        self.level == other.level
            && self.holds == other.holds
            && agree(self.size, other.size)
            && agree(self.ways, other.ways)
            && agree(self.sets, other.sets)
            && agree(self.line, other.line)
    }

    fn describe(&self) -> String {
        fn known<T: ToString>(value: Option<T>) -> String {
            value.map_or_else(|| "unknown".to_owned(), |v| v.to_string())
        }
        format!(
            "size {}, ways {}, sets {}, line {}",
            known(self.size),
            known(self.ways),
            known(self.sets),
            known(self.line)
        )
    }
}

/// What the processor says of itself: leaf 4 on Intel, leaf 0x8000001D on AMD.
#[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
mod cpuid {
    use isochrome_model::machine::Holds;
    use isochrome_model::units::{Bytes, CpuId};
    use raw_cpuid::{CacheType, CpuId as Identification, Hypervisor};
    use rustix::thread::{CpuSet, sched_setaffinity};

    use super::Described;

    /// Caches of `cpu`; none when the thread cannot run there or the processor does not say.
    pub(super) fn caches(cpu: CpuId) -> Vec<Described> {
        // The answer is that of the CPU asked, so ask there; a thread of its own keeps the caller's affinity as it is.
        std::thread::spawn(move || {
            let cpu = cpu.0 as usize;
            if cpu >= CpuSet::MAX_CPU {
                return Vec::new();
            }
            let mut here = CpuSet::new();
            here.set(cpu);
            if sched_setaffinity(None, &here).is_err() {
                return Vec::new();
            }
            Identification::new()
                .get_cache_parameters()
                .map(|caches| {
                    caches
                        .filter_map(|cache| {
                            let holds = match cache.cache_type() {
                                CacheType::Data => Holds::Data,
                                CacheType::Instruction => Holds::Instruction,
                                CacheType::Unified => Holds::Unified,
                                CacheType::Null | CacheType::Reserved => return None,
                            };
                            // In a fully associative cache the ways are the lines; the leaf's own field is not theirs.
                            let shaped = !cache.is_fully_associative();
                            Some(Described {
                                level: Some(cache.level()),
                                holds: Some(holds),
                                size: None,
                                ways: u32::try_from(cache.associativity()).ok().filter(|_| shaped),
                                sets: Some(cache.sets() as u64),
                                line: Some(Bytes(cache.coherency_line_size() as u64)),
                            })
                        })
                        .map(|cache| Described { size: cache.geometry().map(|g| g.cache_bytes()), ..cache })
                        .collect()
                })
                .unwrap_or_default()
        })
        .join()
        .unwrap_or_default()
    }

    /// Name of the hypervisor.
    pub(super) fn hypervisor() -> Option<String> {
        Some(match Identification::new().get_hypervisor_info()?.identify() {
            Hypervisor::Unknown(b, c, d) => {
                let bytes: Vec<u8> = [b, c, d].iter().flat_map(|word| word.to_le_bytes()).collect();
                String::from_utf8_lossy(&bytes).trim_matches(['\0', ' ']).to_owned()
            }
            known => format!("{known:?}"),
        })
        .filter(|name| !name.is_empty())
    }
}

#[cfg(not(any(target_arch = "x86", target_arch = "x86_64")))]
mod cpuid {
    use isochrome_model::units::CpuId;

    use super::Described;

    /// Not readable from user mode on this architecture.
    pub(super) fn caches(_: CpuId) -> Vec<Described> {
        Vec::new()
    }

    pub(super) fn hypervisor() -> Option<String> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn described(name: &str) -> Sysfs {
        Sysfs::at(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../machines").join(name))
    }

    fn read(name: &str) -> Machine {
        let (machine, notes) = described(name).machine().unwrap();
        assert_eq!(notes, []);
        machine
    }

    fn groups(level: &CacheLevel) -> Vec<Vec<u32>> {
        level.shared_by.value.iter().map(|group| group.iter().map(|cpu| cpu.0).collect()).collect()
    }

    #[test]
    fn a_captured_virtual_machine_reads_as_it_is() {
        let machine = read("zen3-vm");
        assert_eq!(machine.architecture, "x86_64");
        assert_eq!(machine.cpu_model, "AMD EPYC");
        assert_eq!(machine.hypervisor.as_deref(), Some("unnamed"));
        assert_eq!(machine.cpus, [CpuId(0), CpuId(1)]);
        assert_eq!(machine.levels.len(), 4);
        let l2 = machine.data_level(2).unwrap();
        assert_eq!(l2.geometry.value.color_count(machine.page_bytes), 16);
        assert_eq!(l2.geometry.source, Source::Sysfs);
        assert_eq!(groups(l2), [[0], [1]]);
        let l3 = machine.data_level(3).unwrap();
        assert_eq!((l3.geometry.value.set_count, l3.geometry.value.ways), (32768, 16));
        assert_eq!(groups(l3), [[0, 1]]);
        assert_eq!(machine.colorable_level(CpuId(0)).unwrap().level, 2);
    }

    #[test]
    fn siblings_share_the_inner_levels_of_the_i7_2600() {
        // [Kim2013, §5.1]: four cores, 8 MiB 16-way L3; each core has two threads.
        let machine = read("i7-2600");
        assert_eq!(machine.cpus.len(), 8);
        assert_eq!(machine.hypervisor, None);
        for level in [1, 2] {
            assert_eq!(groups(machine.data_level(level).unwrap()), [[0, 4], [1, 5], [2, 6], [3, 7]]);
        }
        let l3 = machine.data_level(3).unwrap();
        assert_eq!(l3.geometry.value.cache_bytes(), Bytes(8 << 20));
        assert_eq!(groups(l3), [[0, 1, 2, 3, 4, 5, 6, 7]]);
    }

    #[test]
    fn an_arm_board_is_named_after_its_core() {
        let machine = read("cortex-a72");
        assert_eq!(machine.architecture, "aarch64");
        assert_eq!(machine.cpu_model, "Arm Cortex-A72 (Raspberry Pi 4 Model B Rev 1.2)");
        // 1 MiB / (16 ways x 4 KiB) = 16 colors, shared by all four.
        let l2 = machine.data_level(2).unwrap();
        assert_eq!(l2.geometry.value.color_count(machine.page_bytes), 16);
        assert_eq!(groups(l2), [[0, 1, 2, 3]]);
        assert!(!l2.is_private_to(CpuId(0)));
    }

    #[test]
    fn a_level_whose_shape_is_hidden_is_left_out_and_named() {
        let (machine, notes) = described("sparse").machine().unwrap();
        // The second level lacks its sets, which 512 KiB / (8 ways x 64 B) determines.
        assert_eq!(machine.levels.len(), 1);
        assert_eq!(machine.data_level(2).unwrap().geometry.value.set_count, 1024);
        let subjects: Vec<&str> = notes.iter().map(|note| note.subject.as_str()).collect();
        assert_eq!(subjects, ["level 1 (data)", "level 3 (unified)"]);
        assert!(notes.iter().all(|note| note.hint.contains("declared") && note.reason.contains("ways unknown")));
    }

    #[test]
    fn any_three_of_size_ways_sets_and_line_make_the_shape() {
        let full = Described {
            level: Some(2),
            holds: Some(Holds::Unified),
            size: Some(Bytes(512 << 10)),
            ways: Some(8),
            sets: Some(1024),
            line: Some(Bytes(64)),
        };
        let shape = Geometry { set_count: 1024, ways: 8, line_bytes: Bytes(64) };
        for partial in [
            full,
            Described { size: None, ..full },
            Described { ways: None, ..full },
            Described { sets: None, ..full },
            Described { line: None, ..full },
        ] {
            assert_eq!(partial.geometry(), Some(shape), "{partial:?}");
        }
        assert_eq!(Described { ways: None, sets: None, ..full }.geometry(), None);
        // Sizes that do not divide, and products beyond 64 bits.
        assert_eq!(Described { ways: None, size: Some(Bytes(1000)), ..full }.geometry(), None);
        assert_eq!(Described { sets: Some(u64::MAX), ..full }.geometry(), None);
        assert_eq!(Described { ways: None, sets: Some(u64::MAX), ..full }.geometry(), None);
    }

    #[test]
    fn another_source_fills_in_only_where_it_means_the_same_cache() {
        let known = Described {
            level: Some(2),
            holds: Some(Holds::Unified),
            size: Some(Bytes(512 << 10)),
            ways: Some(8),
            sets: Some(1024),
            line: Some(Bytes(64)),
        };
        let hidden = Described { ways: None, sets: None, ..known };
        assert!(known.describes(&hidden));
        assert!(!known.describes(&Described { size: Some(Bytes(256 << 10)), ..hidden }));
        assert!(!known.describes(&Described { level: Some(3), ..hidden }));
        assert!(!known.describes(&Described { holds: Some(Holds::Data), ..hidden }));
    }

    #[test]
    fn a_tree_without_the_files_is_an_error_and_never_a_panic() {
        let empty = tempfile::tempdir().unwrap();
        let error = Sysfs::at(empty.path()).machine().unwrap_err();
        assert!(error.to_string().contains("hint:"), "{error}");

        for (file, text) in [("sys/devices/system/cpu/online", "zero\n"), ("sys/devices/system/cpu/online", "\n")] {
            let path = empty.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
            fs::create_dir_all(empty.path().join("proc")).unwrap();
            fs::write(empty.path().join("proc/cpuinfo"), "processor : 0\n").unwrap();
            assert!(Sysfs::at(empty.path()).machine().is_err(), "{text:?}");
        }
    }

    #[test]
    fn this_machine_reads_without_trouble() {
        let (machine, _) = Sysfs::system().machine().unwrap();
        assert!(!machine.cpus.is_empty());
        assert!(machine.page_bytes.0.is_power_of_two());
    }
}
