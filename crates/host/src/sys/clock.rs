//! The machine's constant-rate counter.

use std::sync::OnceLock;

use isochrome_model::units::Cycles;

/// The counter now. Loads before the call have completed, loads after it have not begun.
#[inline(always)]
pub fn now() -> Cycles {
    #[cfg(target_arch = "x86_64")]
    {
        let mut cpu = 0;
        // SAFETY: rdtscp and lfence exist on every x86-64 processor made since 2008 and touch only registers and `cpu`.
        // rdtscp waits for earlier loads, the lfence behind it holds back later ones.
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

/// Waits, touching no memory but its own stack, until the counter has passed `until`.
#[inline]
pub fn spin_until(until: Cycles) {
    while now() < until {
        std::hint::spin_loop();
    }
}

/// Ticks per second, measured once.
pub fn rate_hz() -> u64 {
    static RATE: OnceLock<u64> = OnceLock::new();
    *RATE.get_or_init(measure_rate_hz)
}

/// Ticks per second, measured against the operating system's monotonic clock over about 20 ms.
fn measure_rate_hz() -> u64 {
    // Three spans, the median: a span in which the host took the CPU away between the two readings is off.
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

/// Ticks between two readings with nothing between them: the fewest of many.
pub fn overhead() -> Cycles {
    let empty = |_| {
        let begin = now();
        Cycles(now().0 - begin.0)
    };
    (0..1000).map(empty).min().unwrap_or_default()
}

/// Smallest step of the counter, in ticks: the median of the nonzero differences between readings, halved down to what
/// the smallest tenth of them shows.
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
    steps.sort_unstable();
    let low = &steps[..steps.len() / 4];
    low.iter().sum::<u64>() as f64 / low.len() as f64
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
