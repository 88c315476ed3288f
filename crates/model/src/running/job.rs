//! One job, as it was seen, and its line in a CSV file.

use crate::units::Ns;

/// One job, as it was seen. Times count from the first release of the run, in ns of the monotonic clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JobRecord {
    /// Which task, by its index in the run.
    pub task: usize,
    /// Which of its jobs, from 0.
    pub instance: u64,
    /// When it was to begin.
    pub release: Ns,
    /// When it first had the CPU.
    pub start: Ns,
    /// When it was complete.
    pub completion: Ns,
    /// Time it had the CPU, without steal time.
    pub execution: Ns,
    /// Time for which the hypervisor withheld the CPU that can have made the job late: since the CPU last had no job of this or a higher
    /// priority, which may be longer ago than the release.
    pub steal_time: Ns,
    /// How often it did so. One more where it took the CPU before that, and after the last job of one of these priorities had begun: what their
    /// jobs left in the cache is displaced.
    pub steals: u32,
    /// Steal time until that time began, or until shortly before: interrupts that waited meanwhile are served in it.
    pub steal_before: Ns,
    /// For how long its CPU had always had a job of this or a higher priority when it was released.
    pub busy: Ns,
    /// Steal time while the job itself had the CPU. Execution leaves it out, and may be too small by as much at most.
    pub deducted: Ns,
    /// Misses of the partitioned level, where they are counted.
    pub misses: Option<u64>,
    /// How often another thread took the CPU from it.
    pub preemptions: u32,
}

impl JobRecord {
    /// From release to completion.
    pub fn response(&self) -> Ns {
        Ns(self.completion.0.saturating_sub(self.release.0))
    }

    /// The names of the columns of [`csv_line`](Self::csv_line).
    pub const CSV_HEADER: &str = "block,partitioned,task,instance,release_ns,start_ns,completion_ns,response_ns,execution_ns,misses,preemptions,steals,steal_ns\n";

    /// Appends the job as a line of a CSV file; an empty field was not measured.
    ///
    /// `block`: times and instances count from its first release.
    pub fn csv_line(&self, block: u64, partitioned: bool, task: &str, line: &mut String) {
        // For every job: by `write!` it would be a good part of what recording takes.
        let mut digits = itoa::Buffer::new();
        let mut number = |line: &mut String, value: u64, behind: char| {
            line.push_str(digits.format(value));
            line.push(behind);
        };
        number(line, block, ',');
        number(line, u64::from(partitioned), ',');
        line.push_str(task);
        line.push(',');
        let times = [self.release, self.start, self.completion, self.response(), self.execution];
        number(line, self.instance, ',');
        times.into_iter().for_each(|time| number(line, time.0, ','));
        match self.misses {
            Some(misses) => number(line, misses, ','),
            None => line.push(','),
        }
        number(line, u64::from(self.preemptions), ',');
        number(line, u64::from(self.steals), ',');
        number(line, self.steal_time.0, '\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::running::fixture::job;

    #[test]
    fn a_job_is_a_line_with_an_empty_field_for_what_was_not_measured() {
        let (mut lines, job) = (String::new(), job(3, 850, 200, 7));
        job.csv_line(2, true, "control", &mut lines);
        JobRecord { misses: Some(18), preemptions: 1, ..job }.csv_line(0, false, "b", &mut lines);
        let expected = "2,1,control,3,3000,3010,3850,850,200,,0,1,7\n0,0,b,3,3000,3010,3850,850,200,18,1,1,7\n";
        assert_eq!(lines, expected);
        assert_eq!(JobRecord::CSV_HEADER.split(',').count(), expected.lines().next().unwrap().split(',').count());
    }
}
