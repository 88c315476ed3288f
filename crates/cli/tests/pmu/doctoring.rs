//! Tests of the messages of `doctor` about counters.

use nix::libc;

use super::counters::Defect;
use super::machine::Machine;
use crate::trial::Outcome;

pub fn slots() -> Outcome {
    let cases = [
        (Defect::None, "ok", "8 work together"),
        (Defect::Few(4), "ok", "4 work together"),
        (Defect::Few(2), "limited", "2 work together"),
        (Defect::DeadSlot(5), "ok", "5 work together; in a group of 6, counter 6 reads 0 instead of 1000000"),
        (Defect::DeadSlot(0), "missing", "0 work together; in a group of 1, counter 1 reads 0 instead of 200000"),
        // The first group has the counter for itself.
        (Defect::Multiplexed, "limited", "1 work together"),
        (Defect::Refused(libc::ENOENT, 0), "missing", "none (No such file or directory"),
        (Defect::Refused(libc::EACCES, 0), "missing", "forbidden, kernel.perf_event_paranoid is "),
        (Defect::Refused(libc::EMFILE, 3), "missing", "Too many open files"),
        (Defect::Gone(2), "missing", "reading the performance counter failed"),
    ];
    for (defect, status, expected) in cases {
        let found = Machine::new(defect).json(&["doctor", "--json"])?;
        let checks = found["checks"].as_array().unwrap();
        let check = checks.iter().find(|check| check["name"] == "performance counters").unwrap();
        assert_eq!(check["status"], status, "{defect:?}: {check}");
        assert!(check["found"].as_str().unwrap().contains(expected), "{defect:?}: {check}");
    }
    Ok(())
}
