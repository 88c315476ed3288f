//! Reservation of CPU time for tasks that are scheduled by deadlines.
//!
//! SCHED_DEADLINE runs each task in a constant-bandwidth server by earliest deadline first: Q ns in every period T, within D of the beginning of the
//! period. If Σ Q/D ≤ 1 on a CPU (the density test, sufficient for D ≤ T), every server gives its task Q within D, no matter what the other tasks do.
//! So a job that needs at most Q, with all cache delays, is complete by its deadline. It is not proved here that a job needs at most Q. The
//! reservation is the time that eq. 1 charges a job, without the preemption delays that the job suffers, plus a share of the CPU time that is left.
//! [Linux, Documentation/scheduler/sched-deadline.rst, §2 and §4]

/// The reservation that a task needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Need {
    /// Execution time of a job, in ns.
    pub time_ns: u64,
    /// Whether the task gets exactly this time, even if the CPU has room for more.
    pub fixed: bool,
    /// Relative deadline, in ns, at most the period.
    pub deadline_ns: u64,
}

/// Returns the execution time to reserve for each task of a CPU, in ns, and the density Σ Q/D of all reservations.
///
/// The time that the CPU has left up to a density of `most` is distributed in proportion to the needs that are not fixed. If the needs exceed `most`,
/// each task gets its need, and the returned density exceeds `most`: then nothing is proved.
pub fn reserve(needs: &[Need], most: f64) -> (Vec<u64>, f64) {
    let density = |fixed: bool| -> f64 {
        needs.iter().filter(|need| need.fixed == fixed).map(|need| need.time_ns as f64 / need.deadline_ns as f64).sum()
    };
    let (fixed, free) = (density(true), density(false));
    let factor = if free > 0.0 { ((most - fixed) / free).max(1.0) } else { 1.0 };
    let runtime = |need: &Need| match need.fixed {
        true => need.time_ns,
        // Rounded down, because the sum of the densities must not exceed `most`.
        false => ((need.time_ns as f64 * factor) as u64).clamp(need.time_ns, need.deadline_ns.max(need.time_ns)),
    };
    let reserved: Vec<u64> = needs.iter().map(runtime).collect();
    let sum = reserved.iter().zip(needs).map(|(runtime, need)| *runtime as f64 / need.deadline_ns as f64).sum();
    (reserved, sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn need(time_ns: u64, deadline_ns: u64) -> Need {
        Need { time_ns, fixed: false, deadline_ns }
    }

    #[test]
    fn what_a_cpu_has_left_is_dealt_out_in_proportion() {
        // Densities 0.2 and 0.3: the factor up to 0.95 is 1.9.
        let (reserved, density) = reserve(&[need(200, 1000), need(600, 2000)], 0.95);
        assert_eq!(reserved, [380, 1140]);
        assert!((density - 0.95).abs() < 1e-9, "{density}");
    }

    #[test]
    fn a_budget_is_reserved_as_it_is() {
        // A density of 0.25 is fixed; 0.7 is left for a density of 0.35.
        let fixed = Need { fixed: true, ..need(250, 1000) };
        assert_eq!(reserve(&[fixed, need(350, 1000)], 0.95).0, [250, 700]);
    }

    #[test]
    fn tasks_that_need_more_than_there_is_get_what_they_need_and_prove_nothing() {
        let (reserved, density) = reserve(&[need(700, 1000), need(300, 1000)], 0.95);
        assert_eq!(reserved, [700, 300]);
        assert!(density > 0.95);
        // A reservation must also fit before the deadline.
        assert_eq!(reserve(&[need(10, 1000)], 5.0).0, [1000]);
    }
}
