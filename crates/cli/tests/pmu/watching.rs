//! Counts of threads that share a CPU go to the right one.

use serde_json::Value;

use super::counters::Defect;
use super::machine::Machine;
use super::programs::{ACCESSES, TURNS, count, last_cpu, of_two_threads};
use crate::trial::{NotRun, Outcome};

/// Returns what `watch` reports of two threads that pass a CPU to each other.
fn watched(machine: &mut Machine, more: &[&str]) -> Result<Value, NotRun> {
    count(&mut machine.kernel.pmu)?;
    let program = of_two_threads(last_cpu());
    let program: Vec<&str> = program.iter().map(String::as_str).collect();
    machine.json(&[&["watch", "--json", "--level", "2"], more, &["--"], &program[..]].concat())
}

/// Returns accesses and misses of the thread of this name; `None` if it has no counts.
fn counts_of(result: &Value, name: &str) -> Option<[u64; 2]> {
    let task = result["tasks"].as_object().unwrap().values().find(|task| task["name"] == name)?;
    let [accesses, misses] = ["accesses", "misses"].map(|of| task["counts"][of].as_u64());
    accesses.zip(misses).map(Into::into)
}

/// Returns accesses and misses of the thread of this name.
fn counts(result: &Value, name: &str) -> [u64; 2] {
    counts_of(result, name).unwrap_or_else(|| panic!("{name} in {result}"))
}

/// No access of one thread misses, and half of those of the other. The counts come from a program in the kernel, or from rings if the kernel runs no
/// such program.
fn attributed(mut machine: Machine, source: &str) -> Outcome {
    let result = watched(&mut machine, &[])?;
    if result["source"] != source {
        return Err(NotRun(format!("switches are not reported by {source}, but by {}", result["source"])));
    }
    let all = TURNS * ACCESSES;
    let [[accesses, misses], [others, other_misses]] = [counts(&result, "hits"), counts(&result, "misses")];
    // Some kernels do not report how an idle CPU passes to a thread: that slice is unknown, and with it its counts. Every other access is
    // where it belongs, and so is every miss. A slice may end between an access and its miss.
    assert!(accesses <= all && accesses * 10 > all * 9 && misses == 0, "{result}");
    assert!(others <= all && others * 10 > all * 9, "{result}");
    assert!((2 * other_misses).abs_diff(others) <= TURNS, "{result}");
    assert_eq!(result["counters_taken"], 0, "{result}");
    Ok(())
}

pub fn by_bpf() -> Outcome {
    attributed(Machine::new(Defect::None), "programs in the kernel (eBPF)")
}

pub fn by_rings() -> Outcome {
    let mut machine = Machine::new(Defect::None);
    machine.environment.push(("ISOCHROME_WITHOUT_BPF", "1".to_owned()));
    attributed(machine, "rings of performance events")
}

/// A task that polls attributes all counts since the last poll to the thread that it interrupts. That can be the wrong thread, also one that is not
/// watched, so that few counts are left on a busy CPU, or a thread has none. But nothing is counted twice.
pub fn by_polling() -> Outcome {
    let result = watched(&mut Machine::new(Defect::None), &["--poll", "1kHz"])?;
    let both = ["hits", "misses"].map(|name| counts_of(&result, name).unwrap_or_default());
    let [accesses, misses] = [0, 1].map(|of| both.iter().map(|counts| counts[of]).sum::<u64>());
    if accesses == 0 {
        return Err(NotRun("the CPU was so busy that no poll interrupted one of the threads".to_owned()));
    }
    let all = 2 * TURNS * ACCESSES;
    assert!(accesses <= all && misses <= all / 4, "{result}");
    Ok(())
}

/// If the counters cannot be trusted, times and switches are reported without counts, with the reason.
pub fn uncounted() -> Outcome {
    let cases = [
        (Defect::Few(3), "4 events were requested, 3 counters work here"),
        (Defect::DeadSlot(2), "2 counters work here (in a group of 3, counter 3 reads 0 instead of 1000000)"),
        (Defect::NoMisses, "read 0 during 262144 cache misses"),
        (Defect::Refused(2, 0), "no such performance counter"),
    ];
    for (defect, reason) in cases {
        let result = watched(&mut Machine::new(defect), &[])?;
        let tasks: Vec<&Value> = result["tasks"].as_object().unwrap().values().collect();
        assert!(tasks.iter().any(|task| task["name"] == "hits"), "{defect:?}: {result}");
        assert!(tasks.iter().all(|task| task["counts"].is_null()), "{defect:?}: {result}");
        let note = result["notes"][0].as_str().unwrap();
        assert!(note.contains("no counters are read") && note.contains(reason), "{defect:?}: {note}");
    }
    Ok(())
}
