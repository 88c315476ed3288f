//! Facts about a machine, each with its source.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::costs::Costs;
use crate::geometry::Geometry;
use crate::replacement::ReplacementTest;
use crate::supply::CpuSupply;
use crate::units::{Bytes, CpuId, Ns};

/// Version of the machine file.
pub const SCHEMA: &str = "isochrome-machine/1";

/// Source of a fact.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// Read from /sys or /proc.
    Sysfs,
    /// Read by the processor's own identification instruction.
    Cpuid,
    /// Measured by isochrome on this machine.
    Measured,
    /// Stated by the user or by a data sheet.
    Declared,
}

/// A value with its source.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Fact<T> {
    /// The value.
    pub value: T,
    /// Source of the value.
    pub source: Source,
}

/// Contents of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Holds {
    /// Data only.
    Data,
    /// Instructions only.
    Instruction,
    /// Data and instructions.
    Unified,
}

/// Time to reload one color of a level: Δ of [Kim2013, §3].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Refill {
    /// Refill time if the lines to be replaced are clean.
    pub clean_ns: Ns,
    /// Refill time if every line to be replaced is dirty and must be written back.
    pub dirty_ns: Ns,
    /// Number of lines of one color; both times are for this many lines.
    pub lines: u64,
}

/// How a CPU waits while retention is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Waiting {
    /// The CPU spins in a loop that touches no memory.
    Busy,
    /// The thread sleeps in a system call, and the CPU is free for others.
    Asleep,
}

/// Share of a primed cache that is lost during a wait in which this CPU touched nothing.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Retention {
    /// CPU that was measured.
    pub cpu: CpuId,
    /// How the CPU waited.
    pub waiting: Waiting,
    /// Length of the wait.
    pub wait_ns: Ns,
    /// Median share of the lines lost, 0 to 1.
    pub lost_median: f64,
    /// Lowest share of all samples.
    pub lost_min: f64,
    /// Highest share of all samples.
    pub lost_max: f64,
    /// Number of samples.
    #[serde(alias = "looks")]
    pub samples: u32,
}

/// One cache level of one kind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CacheLevel {
    /// Number of the level: 1, 2, 3...
    pub level: u8,
    /// Contents of the cache.
    pub holds: Holds,
    /// Size and shape.
    pub geometry: Fact<Geometry>,
    /// CPUs in groups that share one instance of the cache, as declared by the source.
    pub shared_by: Fact<Vec<Vec<CpuId>>>,
    /// Whether two CPUs were observed to evict each other's lines at this level; `None` if this was not tested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sharing_seen: Option<Fact<bool>>,
    /// Time of one dependent load that hits this level, in ns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load_ns: Option<Fact<f64>>,
    /// Refill time per color.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refill: Option<Fact<Refill>>,
    /// Result of testing the replacement policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replacement: Option<Fact<ReplacementTest>>,
    /// Shares of the contents that the level loses, for several waits.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub retention: Vec<Retention>,
}

impl CacheLevel {
    /// Whether this cache serves `cpu`, as declared by the source.
    pub fn serves(&self, cpu: CpuId) -> bool {
        self.shared_by.value.iter().any(|group| group.contains(&cpu))
    }

    /// Whether `cpu` shares this cache with no other CPU, as declared by the source.
    pub fn is_private_to(&self, cpu: CpuId) -> bool {
        self.shared_by.value.iter().any(|group| group.as_slice() == [cpu])
    }
}

/// All that is known about a machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Machine {
    /// Version of the format: [`SCHEMA`].
    pub schema: String,
    /// Processor architecture, as `uname -m` prints it.
    pub architecture: String,
    /// Model name of the processor.
    pub cpu_model: String,
    /// Hypervisor, if this is a virtual machine whose hypervisor identifies itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hypervisor: Option<String>,
    /// Online CPUs.
    pub cpus: Vec<CpuId>,
    /// Bytes per page.
    pub page_bytes: Bytes,
    /// Rate of the constant-rate counter in ticks per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counter_hz: Option<Fact<u64>>,
    /// Smallest step of the constant-rate counter, in ticks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counter_quantum: Option<Fact<f64>>,
    /// Time of one dependent load from main memory, in ns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_load_ns: Option<Fact<f64>>,
    /// Measured time of one dependent load, in ns, for memory of several sizes that a chain of such loads visits in random order.
    /// Sizes ascend. The facts `load_ns` and `memory_load_ns` are read from this curve.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub latency: Vec<(Bytes, f64)>,
    /// Cache levels, innermost first.
    pub levels: Vec<CacheLevel>,
    /// Costs that the response-time analysis charges because they were measured here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub costs: Option<Costs>,
    /// Supply of each CPU on which the clock was watched.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub supply: Vec<Fact<CpuSupply>>,
}

impl Machine {
    /// Returns the first cache of `level` that holds data, for display; `None` if there is none. If cores differ, there are
    /// several such caches, and a measurement needs [that of its CPU](Self::data_level_of).
    pub fn data_level(&self, level: u8) -> Option<&CacheLevel> {
        self.levels.iter().find(|l| l.level == level && l.holds != Holds::Instruction)
    }

    /// Returns the cache of `level` that holds data of `cpu`; `None` if there is none.
    ///
    /// If several CPUs share the cache and its geometry counts the sets of all slices, as /sys does, the colors by
    /// [`Geometry::color_count`] are an upper bound, because the slice hash hides some of them.
    pub fn data_level_of(&self, level: u8, cpu: CpuId) -> Option<&CacheLevel> {
        self.levels.iter().find(|l| l.level == level && l.holds != Holds::Instruction && l.serves(cpu))
    }

    /// Returns the size of `level` as measured by loads on `cpu`: the largest memory of the latency curve at which the time of a
    /// load is nearer, by ratio, to that of this level than to that of the next one. `None` if this was not measured, or the two
    /// times are too close to be distinguished.
    pub fn felt_bytes(&self, level: u8, cpu: CpuId) -> Option<Bytes> {
        /// Least ratio of two load times that can be distinguished.
        const APART: f64 = 1.5;
        let load = self.data_level_of(level, cpu)?.load_ns?.value;
        let next = self.data_level_of(level + 1, cpu).map_or(self.memory_load_ns, |level| level.load_ns)?.value;
        let between = (next >= APART * load).then(|| (load * next).sqrt())?;
        self.latency.iter().take_while(|(_, time)| *time <= between).last().map(|(size, _)| *size)
    }

    /// Returns the level to color by default for `cpu`: beyond the first level, the outermost one that is private to the CPU and has more than one
    /// color, else the innermost one with more than one color. The first level is colored only if no other one can be: what is evicted there is
    /// found in the next one. `None` if no level can be colored.
    pub fn colorable_level(&self, cpu: CpuId) -> Option<&CacheLevel> {
        let colorable = |is_first: bool| {
            self.levels.iter().filter(move |l| {
                let colors = l.geometry.value.color_count(self.page_bytes);
                l.holds != Holds::Instruction && l.serves(cpu) && (l.level == 1) == is_first && colors > 1
            })
        };
        let private = colorable(false).filter(|l| l.is_private_to(cpu)).max_by_key(|l| l.level);
        private.or_else(|| colorable(false).min_by_key(|l| l.level)).or_else(|| colorable(true).next())
    }

    /// Returns a SHA-256, in hexadecimal, of the properties that stay the same as long as the machine does: architecture, processor model,
    /// hypervisor, CPUs, page size, and the declared geometry and sharing of every level. Measured values are not included.
    pub fn fingerprint(&self) -> String {
        #[derive(Serialize)]
        struct Identity<'a> {
            architecture: &'a str,
            cpu_model: &'a str,
            hypervisor: &'a Option<String>,
            cpus: &'a [CpuId],
            page_bytes: Bytes,
            levels: Vec<(u8, Holds, Geometry, &'a [Vec<CpuId>])>,
        }
        let identity = Identity {
            architecture: &self.architecture,
            cpu_model: &self.cpu_model,
            hypervisor: &self.hypervisor,
            cpus: &self.cpus,
            page_bytes: self.page_bytes,
            levels: self
                .levels
                .iter()
                .map(|l| (l.level, l.holds, l.geometry.value, l.shared_by.value.as_slice()))
                .collect(),
        };
        let bytes = serde_json::to_vec(&identity).expect("a machine's identity is plain data");
        Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn level(level: u8, kib: u64, load: f64) -> CacheLevel {
        let geometry = Geometry::of_size(Bytes(kib << 10), 8, Bytes(64)).unwrap();
        CacheLevel {
            level,
            holds: Holds::Unified,
            geometry: Fact { value: geometry, source: Source::Sysfs },
            shared_by: Fact { value: vec![vec![CpuId(0)]], source: Source::Sysfs },
            sharing_seen: None,
            load_ns: Some(Fact { value: load, source: Source::Measured }),
            refill: None,
            replacement: None,
            retention: Vec::new(),
        }
    }

    fn machine(levels: Vec<CacheLevel>) -> Machine {
        Machine {
            schema: SCHEMA.to_owned(),
            architecture: String::new(),
            cpu_model: String::new(),
            hypervisor: None,
            cpus: vec![CpuId(0)],
            page_bytes: Bytes(4096),
            counter_hz: None,
            counter_quantum: None,
            memory_load_ns: None,
            latency: Vec::new(),
            levels,
            costs: None,
            supply: Vec::new(),
        }
    }

    #[test]
    fn a_level_is_felt_as_far_as_loads_take_its_time() {
        // Latencies of a virtual machine on Zen 3: 1.5 ns up to 32 KiB, 4 ns up to 256, then rising to 16 ns; 144 ns from memory.
        let curve = [
            (16, 1.5),
            (32, 1.6),
            (40, 3.6),
            (128, 4.0),
            (256, 4.0),
            (430, 7.9),
            (512, 9.6),
            (1024, 15.5),
            (65536, 144.0),
        ];
        let machine = Machine {
            memory_load_ns: Some(Fact { value: 144.0, source: Source::Measured }),
            latency: curve.map(|(kib, time)| (Bytes(kib << 10), time)).to_vec(),
            ..machine(vec![level(1, 32, 1.5), level(2, 512, 4.0), level(3, 32768, 15.5)])
        };
        let felt = |number| machine.felt_bytes(number, CpuId(0));
        // Halfway by ratio between 4 and 15.5 ns is 7.9.
        assert_eq!((felt(1), felt(2), felt(3)), (Some(Bytes(32 << 10)), Some(Bytes(256 << 10)), Some(Bytes(1 << 20))));
        assert_eq!(felt(4), None);
        // Two levels whose load times are too close cannot be distinguished.
        let levels = vec![level(1, 32, 1.5), level(2, 512, 2.0), level(3, 32768, 15.5)];
        assert_eq!(Machine { levels, ..machine.clone() }.felt_bytes(1, CpuId(0)), None);
        // The time of a load from memory was not measured.
        assert_eq!(Machine { memory_load_ns: None, ..machine }.felt_bytes(3, CpuId(0)), None);
    }

    #[test]
    fn the_first_level_is_colored_only_if_no_other_one_can_be() {
        let of_cpus = |number, kib, groups: &[&[u32]]| {
            let shared_by = groups.iter().map(|group| group.iter().copied().map(CpuId).collect()).collect();
            CacheLevel { shared_by: Fact { value: shared_by, source: Source::Sysfs }, ..level(number, kib, 1.0) }
        };
        let colored = |levels: &[CacheLevel], cpu| {
            let machine = machine(levels.to_vec());
            machine.colorable_level(CpuId(cpu)).map(|level| (level.level, level.geometry.value.cache_bytes().0 >> 10))
        };
        // 64 KiB in 8 ways are two colors.
        let first = of_cpus(1, 64, &[&[0], &[1], &[2], &[3]]);
        let private = of_cpus(2, 512, &[&[0], &[1], &[2], &[3]]);
        let shared = of_cpus(3, 2048, &[&[0, 1, 2, 3]]);
        assert_eq!(colored(&[first.clone(), private, shared], 1), Some((2, 512)));
        // Two clusters, each with a second level of its own, which is the last one.
        let clusters = [first.clone(), of_cpus(2, 512, &[&[0, 1]]), of_cpus(2, 2048, &[&[2, 3]])];
        assert_eq!([0, 3].map(|cpu| colored(&clusters, cpu)), [Some((2, 512)), Some((2, 2048))]);
        assert_eq!(colored(&[first], 0), Some((1, 64)));
        assert_eq!(colored(&[level(1, 32, 1.0)], 0), None);
    }
}
