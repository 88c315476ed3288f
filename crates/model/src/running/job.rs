//! One job as it was observed, and its line in a CSV file.

use crate::units::Ns;

/// One job as it was observed. Times count from the first release of the run, in ns of the monotonic clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JobRecord {
    /// Index of the task in the run.
    pub task: usize,
    /// Number of the job among the jobs of the task, from 0.
    pub instance: u64,
    /// Time at which the job was released.
    pub release: Ns,
    /// Time at which the job first had the CPU.
    pub start: Ns,
    /// Time at which the job was complete.
    pub completion: Ns,
    /// Time for which the job had the CPU, without steal time.
    pub execution: Ns,
    /// Steal time that can have made the job late: all steal time since the busy period of the job began. The busy period is the time since
    /// the CPU last had no job of this or a higher priority. It may begin before the release. The field includes the time for which the
    /// line that releases the job was not written although the previous job was complete, or may not have been written.
    pub steal_time: Ns,
    /// Number of times that the hypervisor took the CPU in the busy period. One more is counted if it took the CPU before the busy period, but after
    /// the last job of one of these priorities had begun, because the lines that those jobs left in the cache are then displaced.
    pub steals: u32,
    /// Steal time until the busy period began, or until shortly before. Interrupts that waited in this time are served in the busy period.
    pub steal_before: Ns,
    /// Time from the beginning of the busy period to the release of the job.
    pub busy: Ns,
    /// Steal time while the job itself had the CPU. `execution` leaves it out, and may be too small by at most this time.
    pub deducted: Ns,
    /// Misses of the partitioned level; `None` if they were not counted.
    pub misses: Option<u64>,
    /// Number of times that another thread took the CPU from the job.
    pub preemptions: u32,
}

impl JobRecord {
    /// Returns the response time: the time from release to completion.
    pub fn response(&self) -> Ns {
        Ns(self.completion.0.saturating_sub(self.release.0))
    }

    /// Names of the columns of [`csv_line`](Self::csv_line).
    pub const CSV_HEADER: &str = "block,partitioned,task,instance,release_ns,start_ns,completion_ns,response_ns,execution_ns,misses,preemptions,steals,steal_ns\n";

    /// Appends the job as a line of a CSV file. A field that was not measured is empty.
    ///
    /// `block`: number of the block. Times and instances count from the first release of the block.
    pub fn csv_line(&self, block: u64, partitioned: bool, task: &str, line: &mut String) {
        // This runs for every job, and formatting by `write!` would take a large part of the time for recording.
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
