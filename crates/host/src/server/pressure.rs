//! Shortage of memory, as the kernel reports it.

use std::fs;

/// Returns the share of the last ten seconds in which some task waited for memory, in percent; `None` where the kernel does not report it. [Linux,
/// Documentation/accounting/psi.rst]
pub fn memory_stalls() -> Option<f64> {
    of_text(&fs::read_to_string("/proc/pressure/memory").ok()?)
}

fn of_text(text: &str) -> Option<f64> {
    let some = text.lines().find_map(|line| line.strip_prefix("some "))?;
    some.split(' ').find_map(|field| field.strip_prefix("avg10="))?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_of_some_tasks_in_ten_seconds_is_read() {
        let text =
            "some avg10=1.25 avg60=0.50 avg300=0.10 total=12345\nfull avg10=0.75 avg60=0.00 avg300=0.00 total=99\n";
        assert_eq!((of_text(text), of_text("")), (Some(1.25), None));
    }
}
