//! The machine as the kernel describes it: CPUs, caches, processor, hypervisor.
//!
//! All files are read below one root, so a folder that holds `sys/` and `proc/` can describe another machine. Some Arm boards and
//! virtual machines hide the shape of a cache. Any three of size, ways, sets and line determine the fourth. If more is missing,
//! CPUID supplies the shape (x86 only); a level whose shape stays unknown is left out with a note.

mod caches;
#[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
mod cpuid;
#[cfg(test)]
pub(crate) mod fake;
mod processor;

use std::fs;
use std::path::{Path, PathBuf};

use isochrome_model::machine::{Machine, SCHEMA};
use isochrome_model::units::{Bytes, CpuId, ParseError, parse_list};
use serde::Serialize;

pub use self::processor::Processor;
use crate::error::SystemError;

/// A number of CPUs that no Linux supports (NR_CPUS is at most 8192), as a guard against nonsensical lists.
pub(crate) const CPU_LIMIT: u32 = 1 << 16;

/// The files of a kernel: of the running kernel, or copies in a folder that describes another machine.
#[derive(Clone, Debug)]
pub struct Sysfs {
    root: PathBuf,
    /// Whether the files are those of the machine that isochrome runs on. Only then is the processor examined directly.
    is_this_machine: bool,
}

/// A note on a fact that could not be found or a setting that could not be made, with the reason and the remedy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Note {
    /// The fact or the setting.
    pub subject: String,
    /// Reason of the failure.
    pub reason: String,
    /// Advice on what to do.
    pub hint: String,
}

impl Sysfs {
    /// Returns the files of the kernel that isochrome runs on.
    pub fn system() -> Sysfs {
        Sysfs { root: PathBuf::from("/"), is_this_machine: true }
    }

    /// Returns the files in the folder `root`, which holds `sys/` and `proc/` and describes a machine.
    pub fn at(root: &Path) -> Sysfs {
        Sysfs { root: root.to_owned(), is_this_machine: false }
    }

    /// Returns the path of `relative` below the root.
    pub fn path(&self, relative: &str) -> PathBuf {
        self.root.join(relative)
    }

    /// Whether there is a file or folder at `relative`. A link counts even if it leads nowhere, as links in a copy of another machine's files do.
    pub fn has(&self, relative: &str) -> bool {
        self.path(relative).symlink_metadata().is_ok()
    }

    /// Returns the names in the folder `relative`, sorted; none if it cannot be read.
    pub fn names(&self, relative: &str) -> Vec<String> {
        let entries = fs::read_dir(self.path(relative)).into_iter().flatten().flatten();
        let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        names
    }

    /// Whether `program` is in a folder of programs.
    pub fn has_program(&self, program: &str) -> bool {
        const FOLDERS: [&str; 6] = ["usr/local/sbin", "usr/local/bin", "usr/sbin", "usr/bin", "sbin", "bin"];
        FOLDERS.iter().any(|folder| self.has(&format!("{folder}/{program}")))
    }

    /// Returns the text of a file without the white space around it; `None` if it cannot be read.
    pub fn text(&self, relative: &str) -> Option<String> {
        fs::read_to_string(self.path(relative)).ok().map(|text| text.trim().to_owned())
    }

    /// Returns the size of a huge page, in bytes; `None` where the kernel has no huge pages.
    pub fn huge_page_bytes(&self) -> Option<usize> {
        let size = self.text("sys/kernel/mm/transparent_hugepage/hpage_pmd_size")?.parse().ok()?;
        let page = self.page_bytes().ok()?.0 as usize;
        Some(size).filter(|size: &usize| size.is_power_of_two() && *size > page)
    }

    /// Returns the text of a file without the white space around it; fails if the file cannot be read.
    fn required(&self, relative: &str) -> Result<String, SystemError> {
        let path = self.path(relative);
        fs::read_to_string(&path).map(|text| text.trim().to_owned()).map_err(|source| SystemError::Unreadable {
            path,
            source,
            hint: "isochrome needs /sys and /proc; mount them in this container or chroot",
        })
    }

    /// Returns the CPUs of a list file; `None` if the file cannot be read. Fails if its text is not a list.
    pub fn cpus_in(&self, relative: &str) -> Result<Option<Vec<CpuId>>, SystemError> {
        let Some(text) = self.text(relative) else { return Ok(None) };
        let cpus = parse_list(&text, CPU_LIMIT).map_err(|source| self.not_a_list(relative, source))?;
        Ok(Some(cpus.into_iter().map(CpuId).collect()))
    }

    fn not_a_list(&self, relative: &str, source: ParseError) -> SystemError {
        SystemError::List { path: self.path(relative), source }
    }

    /// Returns the online CPUs, ascending.
    pub fn online_cpus(&self) -> Result<Vec<CpuId>, SystemError> {
        const ONLINE: &str = "sys/devices/system/cpu/online";
        let text = self.required(ONLINE)?;
        let cpus = parse_list(&text, CPU_LIMIT).map_err(|source| self.not_a_list(ONLINE, source))?;
        if cpus.is_empty() {
            return Err(SystemError::Malformed {
                path: self.path(ONLINE),
                text,
                expected: "a list of at least one CPU",
            });
        }
        Ok(cpus.into_iter().map(CpuId).collect())
    }

    /// Returns the processor as /proc/cpuinfo identifies it.
    pub fn processor(&self) -> Result<Processor, SystemError> {
        Ok(Processor::from_cpuinfo(&self.required("proc/cpuinfo")?))
    }

    /// Returns the machine as the kernel and the processor declare it, and notes on the levels that had to be left out.
    ///
    /// Rates, load times and refill times are measured elsewhere and absent here.
    pub fn machine(&self) -> Result<(Machine, Vec<Note>), SystemError> {
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
            costs: None,
            supply: Vec::new(),
        };
        Ok((machine, notes))
    }

    /// Returns the page size.
    pub fn page_bytes(&self) -> Result<Bytes, SystemError> {
        if self.is_this_machine {
            return Ok(Bytes(rustix::param::page_size() as u64));
        }
        const SMAPS: &str = "proc/self/smaps";
        let text = self.required(SMAPS)?;
        let line = text.lines().find_map(|line| line.strip_prefix("KernelPageSize:"));
        line.and_then(|size| size.trim().strip_suffix("kB")?.trim().parse::<u64>().ok())
            .filter(|kib| kib.is_power_of_two())
            .map(|kib| Bytes(kib << 10))
            .ok_or_else(|| SystemError::Malformed {
                path: self.path(SMAPS),
                text: line.unwrap_or_default().to_owned(),
                expected: "a page size such as `KernelPageSize: 4 kB`",
            })
    }

    /// Returns the size, in frames, of the blocks in which this virtual machine reports free memory to its host; `None` if it does not, or if
    /// the size is unknown. A block may lie on other frames of the host afterwards. [Linux, Documentation/mm/free_page_reporting.rst]
    pub fn reported_block_frames(&self) -> Option<u64> {
        /// VIRTIO_BALLOON_F_REPORTING. [Linux, include/uapi/linux/virtio_balloon.h]
        const REPORTING: usize = 5;
        let devices = fs::read_dir(self.path("sys/bus/virtio/drivers/virtio_balloon")).ok()?;
        // The file lists the feature bits, beginning with the lowest.
        let reports = |features: String| features.as_bytes().get(REPORTING) == Some(&b'1');
        let reports =
            devices.flatten().any(|device| fs::read_to_string(device.path().join("features")).is_ok_and(reports));
        if !reports {
            return None;
        }
        let order = self.text("sys/module/page_reporting/parameters/page_reporting_order");
        match order.and_then(|order| order.parse::<u32>().ok()) {
            // The blocks of the buddy allocator are far smaller than 2^30 frames.
            Some(order) => Some(1 << order.min(30)),
            // Linux before 5.14 does not state the order, and an unset one is negative. Both mean that of a huge page.
            None => {
                let huge =
                    self.huge_page_bytes().map(|bytes| Bytes(bytes as u64)).or_else(|| self.memory("Hugepagesize"))?;
                Some(huge.0 / self.page_bytes().ok()?.0)
            }
        }
    }

    /// Returns the order of the largest block of free memory that the kernel manages; `None` if unknown. [proc_buddyinfo(5)]
    pub fn largest_order(&self) -> Option<u32> {
        /// Words before the numbers of free blocks of order 0, 1, and so on: `Node 0, zone Normal`.
        const WORDS: usize = 4;
        let text = self.text("proc/buddyinfo")?;
        let orders = text.lines().next()?.split_whitespace().count().checked_sub(WORDS + 1)?;
        u32::try_from(orders).ok()
    }

    /// Returns the memory that /proc/meminfo lists under `name`, such as `MemFree` or `MemAvailable`; `None` if there is no such entry.
    pub fn memory(&self, name: &str) -> Option<Bytes> {
        let text = self.text("proc/meminfo")?;
        let size = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        let kib: u64 = size.trim().strip_suffix("kB")?.trim().parse().ok()?;
        Some(Bytes(kib << 10))
    }

    /// Returns the architecture as `uname -m` prints it.
    fn architecture(&self, processor: &Processor) -> Result<String, SystemError> {
        // Linux 6.1 and newer report the architecture here.
        if let Some(architecture) = self.text("proc/sys/kernel/arch") {
            return Ok(architecture);
        }
        if self.is_this_machine {
            return Ok(std::env::consts::ARCH.to_owned());
        }
        match processor {
            p if p.has("lm") => Ok("x86_64".to_owned()),
            // 64-bit kernels call the vector extension `asimd`, 32-bit kernels call it `neon`.
            p if p.is_arm() && p.has("asimd") => Ok("aarch64".to_owned()),
            _ => Err(SystemError::Malformed {
                path: self.path("proc/cpuinfo"),
                text: processor.name.clone(),
                expected: "a processor of a known architecture",
            }),
        }
    }

    /// Returns the number of threads that are running or runnable now, including the calling thread; `None` if unknown. [proc_loadavg(5)]
    pub fn running_threads(&self) -> Option<usize> {
        let text = self.text("proc/loadavg")?;
        text.split_ascii_whitespace().nth(3)?.split_once('/')?.0.parse().ok()
    }

    /// Returns the number of the first frame in a zone named Normal, from which the kernel takes the frames of programs unless it is short of
    /// them; `None` if unknown. The zones below it are kept for devices that cannot reach all memory. [Linux, mm/vmstat.c, zoneinfo_show]
    pub fn normal_zone_start(&self) -> Option<u64> {
        let text = self.text("proc/zoneinfo")?;
        let zones =
            text.split("Node ").filter(|zone| zone.lines().next().is_some_and(|head| head.ends_with(" Normal")));
        let starts = zones.filter_map(|zone| zone.lines().find_map(|line| line.trim().strip_prefix("start_pfn:")));
        starts.filter_map(|start| start.trim().parse().ok()).min()
    }

    /// Whether a hypervisor identifies itself.
    pub fn is_virtual(&self) -> bool {
        self.processor().is_ok_and(|processor| self.hypervisor(&processor).is_some())
    }

    /// Returns the name of the hypervisor; `None` if no hypervisor shows itself.
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
        // Arm processors have no such flag; there the vendor of the board identifies a virtual machine.
        if processor.is_arm() { self.virtual_board() } else { None }
    }

    /// Returns the name of the board's vendor; `None` unless the board is known to be virtual.
    fn virtual_board(&self) -> Option<String> {
        let vendor = self.text("sys/class/dmi/id/sys_vendor")?;
        let product = self.text("sys/class/dmi/id/product_name").unwrap_or_default();
        let is_virtual = match vendor.as_str() {
            // Amazon also rents whole machines, such as `c6g.metal` and `r8g.metal-24xl`.
            "Amazon EC2" => !product.contains(".metal"),
            // Google also makes laptops.
            "Google" => product == "Google Compute Engine",
            vendor => ["QEMU", "VMware, Inc.", "innotek GmbH", "Xen", "Parallels", "KVM"].contains(&vendor),
        };
        is_virtual.then_some(vendor)
    }
}

#[cfg(not(any(target_arch = "x86", target_arch = "x86_64")))]
mod cpuid {
    use isochrome_model::units::CpuId;

    use super::caches::Described;

    /// Returns no caches: they cannot be read from user mode on this architecture.
    pub(super) fn caches(_: CpuId) -> Vec<Described> {
        Vec::new()
    }

    pub(super) fn hypervisor() -> Option<String> {
        None
    }
}

#[cfg(test)]
mod tests {
    use isochrome_model::machine::{CacheLevel, Source};

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
        // 1 MiB / (16 ways x 4 KiB) = 16 colors, shared by all four CPUs.
        let l2 = machine.data_level(2).unwrap();
        assert_eq!(l2.geometry.value.color_count(machine.page_bytes), 16);
        assert_eq!(groups(l2), [[0, 1, 2, 3]]);
        assert!(!l2.is_private_to(CpuId(0)));
        // The data cache of 32 KiB / (2 ways x 4 KiB) has 4 colors and is private, but no level to color while another one can be.
        assert_eq!(machine.data_level(1).unwrap().geometry.value.color_count(machine.page_bytes), 4);
        assert_eq!(machine.colorable_level(CpuId(0)).unwrap().level, 2);
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

    /// Returns a folder with `files`, each a path and its text, that describes a machine.
    fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (file, text) in files {
            let path = folder.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        folder
    }

    #[test]
    fn reported_blocks_have_the_stated_order_or_the_size_of_a_huge_page() {
        const ORDER: &str = "sys/module/page_reporting/parameters/page_reporting_order";
        let machine = [
            ("sys/bus/virtio/drivers/virtio_balloon/virtio0/features", "0000010"),
            // Arm with pages of 64 KiB: a huge page has 512 MiB.
            ("proc/self/smaps", "KernelPageSize:       64 kB\n"),
            ("sys/kernel/mm/transparent_hugepage/hpage_pmd_size", "536870912\n"),
        ];
        let frames =
            |more: &[(&str, &str)]| Sysfs::at(folder(&[&machine[..], more].concat()).path()).reported_block_frames();
        assert_eq!(frames(&[(ORDER, "5\n")]), Some(32));
        // Linux states -1 for an unset order, and has no such file before 5.14.
        assert_eq!(frames(&[(ORDER, "-1\n")]), Some(8192));
        assert_eq!(frames(&[]), Some(8192));
        let unknown = folder(&machine[..2]);
        assert_eq!(Sysfs::at(unknown.path()).reported_block_frames(), None);
    }

    #[test]
    fn an_arm_machine_is_virtual_only_if_its_vendor_makes_no_real_one_or_its_product_says_so() {
        for (vendor, product, is_virtual) in [
            ("QEMU", "KVM Virtual Machine", true),
            ("Amazon EC2", "c6g.large", true),
            ("Amazon EC2", "c6g.metal", false),
            ("Amazon EC2", "r8g.metal-24xl", false),
            ("Google", "Google Compute Engine", true),
            ("Google", "Lazor", false),
            ("Raspberry Pi Foundation", "Raspberry Pi 4 Model B", false),
        ] {
            let machine = folder(&[
                ("proc/cpuinfo", "CPU implementer : 0x41\nCPU part : 0xd0c\n"),
                ("sys/class/dmi/id/sys_vendor", vendor),
                ("sys/class/dmi/id/product_name", product),
            ]);
            assert_eq!(Sysfs::at(machine.path()).is_virtual(), is_virtual, "{vendor} {product}");
        }
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
