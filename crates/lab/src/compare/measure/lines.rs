//! Numbers that a program prints while it runs.

use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use regex_lite::Regex;

use super::{MayGoOn, Measure, Reading, Trouble, sleep};

/// Longest line that is read.
const LINE_MAX: usize = 64 << 10;

/// Reads the numbers that a program prints. Each number belongs to the window in which its line was read.
///
/// A terminal has to be the program's standard output: a program that writes to a pipe prints many lines at once, long after their time.
pub struct Lines {
    numbers: Arc<Mutex<Vec<f64>>>,
}

impl Lines {
    /// Reads lines from `output` in a thread of its own until it ends. The first group of `pattern` matches the numbers.
    pub fn of(output: OwnedFd, pattern: Regex) -> Lines {
        let numbers = Arc::new(Mutex::new(Vec::new()));
        let theirs = Arc::clone(&numbers);
        std::thread::spawn(move || {
            let (mut output, mut line, mut bytes) = (File::from(output), Vec::new(), [0; 4096]);
            // A terminal whose other side is closed fails to be read; either is the end.
            while let Ok(length @ 1..) = output.read(&mut bytes) {
                for byte in &bytes[..length] {
                    match byte {
                        b'\n' => {
                            let found = numbers_in(&String::from_utf8_lossy(&line), &pattern);
                            theirs.lock().unwrap_or_else(PoisonError::into_inner).extend(found);
                            line.clear();
                        }
                        byte if line.len() < LINE_MAX => line.push(*byte),
                        _ => {}
                    }
                }
            }
        });
        Lines { numbers }
    }

    /// Returns the numbers read since the last call.
    pub fn take(&mut self) -> Vec<f64> {
        std::mem::take(&mut *self.numbers.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Returns the numbers in `text`: the first group of each match of `pattern`.
pub(super) fn numbers_in(text: &str, pattern: &Regex) -> Vec<f64> {
    let number = |found: regex_lite::Captures<'_>| found.get(1)?.as_str().replace(',', "").parse::<f64>().ok();
    pattern.captures_iter(text).filter_map(number).filter(|number| number.is_finite()).collect()
}

impl Measure for Lines {
    fn unit(&self) -> &str {
        ""
    }

    fn window(&mut self, length: Duration, may_go_on: &mut MayGoOn<'_>) -> Result<Reading, Trouble> {
        self.take();
        sleep(length, may_go_on)?;
        Ok(Reading::Values(self.take()))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::time::Instant;

    use super::*;

    #[test]
    fn the_numbers_of_a_window_are_those_printed_in_it() {
        let (read, write) = std::io::pipe().unwrap();
        let mut lines = Lines::of(read.into(), Regex::new(r"took ([0-9.]+) us").unwrap());
        let mut write = write;
        let numbers = Arc::clone(&lines.numbers);
        let wait_for = |count: usize| {
            let begin = Instant::now();
            while numbers.lock().unwrap().len() < count && begin.elapsed() < Duration::from_secs(60) {
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        writeln!(write, "took 1 us").unwrap();
        wait_for(1);
        let mut printed = false;
        let mut print = || {
            if !std::mem::replace(&mut printed, true) {
                // A line in two parts, one without a number, one with two.
                write!(write, "took 2").unwrap();
                writeln!(write, ".5 us\nnothing\ntook 3 us, took 4 us").unwrap();
                wait_for(3);
            }
            true
        };
        let reading = lines.window(Duration::from_millis(100), &mut print).unwrap();
        assert_eq!(reading, Reading::Values(vec![2.5, 3.0, 4.0]));
        assert_eq!(lines.window(Duration::from_secs(9), &mut || false), Err(Trouble::Stopped));
    }
}
