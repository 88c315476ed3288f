//! Parts of the machine that programs get for themselves, beside colors: cache ways (resctrl) and CPUs (cpusets).

pub mod cpuset;
pub mod resctrl;
