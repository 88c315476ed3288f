//! Cache descriptions and hypervisor name from the processor itself. The caches come from CPUID leaf 4 on Intel, leaf 0x8000001D on AMD.

use isochrome_model::machine::Holds;
use isochrome_model::units::{Bytes, CpuId};
use raw_cpuid::{CacheType, CpuId as Identification, Hypervisor};
use rustix::thread::{CpuSet, sched_setaffinity};

use super::caches::Described;

/// Returns the caches of `cpu`; an empty list if no thread can run on `cpu` or the processor does not describe its caches.
pub(super) fn caches(cpu: CpuId) -> Vec<Described> {
    // CPUID describes the CPU that executes it, so a thread executes it on `cpu`. A separate thread keeps the caller's affinity unchanged.
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
                        // In a fully associative cache every line is a way, and the leaf's field does not hold that number.
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

/// Returns the name of the hypervisor; `None` if CPUID names none.
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
