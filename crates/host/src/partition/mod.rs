//! Parts of the machine that programs get for themselves, besides colors: cache ways (resctrl) and CPUs (cpusets).

pub mod cpuset;
pub mod resctrl;
