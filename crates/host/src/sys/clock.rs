//! The machine's constant-rate counter, and the clocks of the system.

use std::io;
use std::sync::OnceLock;

use isochrome_model::units::{Cycles, Ns};

/// Whether the processor has the instruction by which [`now`] reads the counter. It is missing in the first x86-64 processors, some early
/// Atoms, and virtual machines that hide it. Without it [`now`] ends the process, so a program should call this once at its start.
pub fn usable() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        // Leaf 0x8000_0001, EDX bit 27.
        let features = raw_cpuid::CpuId::new().get_extended_processor_and_feature_identifiers();
        features.is_some_and(|features| features.has_rdtscp())
    }
    // The generic timer is part of every aarch64 processor.
    #[cfg(not(target_arch = "x86_64"))]
    true
}

/// Returns the present value of the counter. Loads before the call have completed, and loads after it have not begun.
#[inline(always)]
pub fn now() -> Cycles {
    #[cfg(target_arch = "x86_64")]
    {
        let mut cpu = 0;
        // SAFETY: both instructions touch only registers and `cpu`. lfence is part of x86-64. rdtscp is not: where it is missing, as `usable`
        // reports beforehand, it traps, and the process ends there without having touched memory. rdtscp waits for earlier loads, and the lfence
        // after it holds back later loads.
        unsafe {
            let ticks = core::arch::x86_64::__rdtscp(&mut cpu);
            core::arch::x86_64::_mm_lfence();
            Cycles(ticks)
        }
    }
    #[cfg(target_arch = "aarch64")]
    {
        let ticks: u64;
        // SAFETY: Linux lets user space read cntvct_el0; dsb and isb only order this thread's accesses.
        unsafe {
            core::arch::asm!("dsb ld", "isb", "mrs {}, cntvct_el0", "isb", out(reg) ticks, options(nostack, preserves_flags));
        }
        Cycles(ticks)
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    compile_error!("isochrome needs a counter that user space can read: x86-64 and aarch64 have one");
}

/// Returns the time since the start of the system, by the clock that is never set.
pub fn monotonic() -> Ns {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Ns(now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64)
}

/// Returns the CPU time of the calling thread, without steal time where the kernel knows of it.
pub fn thread_cpu() -> Ns {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Ns(now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64)
}

/// Sleeps until [`monotonic`] reads `until`; a signal wakes it earlier.
pub fn sleep_until(until: Ns) {
    let until =
        rustix::time::Timespec { tv_sec: (until.0 / 1_000_000_000) as _, tv_nsec: (until.0 % 1_000_000_000) as _ };
    let _ = rustix::thread::clock_nanosleep_absolute(rustix::time::ClockId::Monotonic, &until);
}

/// Returns the CPU time of process `pid`, all its threads together. It excludes steal time where the kernel knows of it.
pub fn process_cpu(pid: i32) -> io::Result<Ns> {
    /// The scheduler's own clock among the clocks of a process. [Linux, include/linux/posix-timers.h, CPUCLOCK_SCHED]
    const SCHEDULER: libc::clockid_t = 2;
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the time is written to a live, exclusively borrowed structure; the clock is a number, which the kernel checks.
    match unsafe { libc::clock_gettime((!pid << 3) | SCHEDULER, &mut now) } {
        0 => Ok(Ns(now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64)),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Busy-waits until the counter has passed `until`, touching no memory but its own stack.
#[inline]
pub fn spin_until(until: Cycles) {
    while now() < until {
        std::hint::spin_loop();
    }
}

/// Returns the counter's ticks per second, measured once.
pub fn rate_hz() -> u64 {
    static RATE: OnceLock<u64> = OnceLock::new();
    *RATE.get_or_init(measure_rate_hz)
}

/// Measures the ticks per second against the operating system's monotonic clock over about 20 ms.
fn measure_rate_hz() -> u64 {
    // Takes the median of three spans, because a span is wrong if the host took the CPU away between its two readings.
    let mut rates = [0u64; 3];
    for rate in &mut rates {
        let (wall, ticks) = (std::time::Instant::now(), now());
        while wall.elapsed() < std::time::Duration::from_millis(7) {
            std::hint::spin_loop();
        }
        let (ticks, wall) = (now().0 - ticks.0, wall.elapsed());
        *rate = (ticks as f64 / wall.as_secs_f64()) as u64;
    }
    rates.sort_unstable();
    rates[1]
}

/// Returns the ticks between two readings in immediate succession: the minimum of many attempts.
pub fn overhead() -> Cycles {
    let empty = |_| {
        let begin = now();
        Cycles(now().0 - begin.0)
    };
    (0..1000).map(empty).min().unwrap_or_default()
}

/// Measures the counter's step, in ticks: the smallest nonzero difference between two successive readings. Differences that
/// occur in fewer than one of a hundred readings are left out.
///
/// The result is an upper bound: a counter that steps more often than it can be read shows the time of a reading instead.
pub fn measure_quantum() -> f64 {
    let mut steps: Vec<u64> = Vec::with_capacity(4096);
    let mut last = now().0;
    while steps.len() < 4096 {
        // Unordered readings follow each other faster than a coarse counter steps.
        let ticks = raw();
        if ticks != last {
            steps.push(ticks.wrapping_sub(last));
            last = ticks;
        }
    }
    smallest_common(&mut steps) as f64
}

/// Returns the smallest of `steps` that is not an accident: at least one in a hundred steps is no larger than it. An accident is, for example, that
/// the thread changed the CPU between two readings. Panics if there are no steps.
fn smallest_common(steps: &mut [u64]) -> u64 {
    let rank = steps.len().div_ceil(100) - 1;
    *steps.select_nth_unstable(rank).1
}

#[inline(always)]
fn raw() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: rdtsc exists on every x86-64 processor and touches only registers.
    unsafe {
        core::arch::x86_64::_rdtsc()
    }
    #[cfg(not(target_arch = "x86_64"))]
    now().0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_quantum_is_the_smallest_difference_that_is_no_accident() {
        // A counter of 22.5 ticks per step, in whole ticks; interrupted now and then.
        let mut steps: Vec<u64> = [22, 23, 45, 22, 23, 9000].repeat(100);
        assert_eq!(smallest_common(&mut steps), 22);
        // 5 accidents among 605 steps are fewer than one in a hundred; 7 among 607 are more.
        steps.extend([1; 5]);
        assert_eq!(smallest_common(&mut steps), 22);
        steps.extend([1; 2]);
        assert_eq!(smallest_common(&mut steps), 1);
        assert_eq!(smallest_common(&mut [36]), 36);
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no clock of CPU time")]
    fn a_process_that_computes_spends_time_on_a_cpu() {
        let pid = std::process::id() as i32;
        let begin = process_cpu(pid).unwrap();
        let until = monotonic().0 + 1_000_000;
        while monotonic().0 < until {
            std::hint::spin_loop();
        }
        assert!(process_cpu(pid).unwrap() > begin);
        // No process has so large a number.
        assert!(process_cpu(1 << 23).is_err());
    }

    #[test]
    fn where_the_counter_is_usable_it_goes_on() {
        assert!(usable(), "the tests of this crate time things");
        let begin = now();
        spin_until(Cycles(begin.0 + 1));
        assert!(now() > begin);
    }
}
