//! Cache descriptions by the processor itself: CPUID leaf 4 on Intel, leaf 0x8000001D on AMD.

use isochrome_model::machine::Holds;
use isochrome_model::units::{Bytes, CpuId};
use raw_cpuid::{CacheType, CpuId as Identification, Hypervisor};
use rustix::thread::{CpuSet, sched_setaffinity};

use super::caches::Described;

/// Returns the caches of `cpu`; none if the thread cannot run there or the processor does not describe them.
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

/// Returns the name of the hypervisor.
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
