//! Programs whose accesses and misses are known. A system call that nothing else makes stands for each of them, and the kernel counts it by a
//! tracepoint, for a thread or on a CPU, wherever it would count an event of the processor.

use std::collections::HashMap;
use std::fs;
use std::io::BufRead;
use std::process::Command;
use std::sync::mpsc::sync_channel;
use std::thread;
use std::time::Duration;

use isochrome_host::machine::setting::RealtimeRequest;
use isochrome_model::units::CpuId;
use nix::unistd::{getpgid, getsid};

use super::counters::Pmu;
use crate::trial::NotRun;

/// First argument of this executable if it is to be one of the programs.
const TWO_THREADS: &str = "two-threads";
const JOBS: &str = "jobs";

/// Codes of the events of a Zen for the second level: reads, and reads that miss.
pub const READS: u64 = 0xf864;
pub const READ_MISSES: u64 = 0x0864;

/// How often each of two threads gets the CPU, and how often it accesses memory then.
pub const TURNS: u64 = 50;
pub const ACCESSES: u64 = 1000;

/// Becomes the program that the arguments name, and returns whether they name one.
pub fn run() -> bool {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        Some(TWO_THREADS) => two_threads(CpuId(arguments[1].parse().expect("a CPU"))),
        Some(JOBS) => jobs(arguments[1].parse().expect("misses per job")),
        _ => return false,
    }
    true
}

/// Returns the command of a program with two threads on `cpu`. No access of the first thread misses, and half of the accesses of the other thread
/// miss.
pub fn of_two_threads(cpu: u32) -> [String; 3] {
    [this(), TWO_THREADS.to_owned(), cpu.to_string()]
}

/// Returns the command of a program whose jobs have `misses` misses each. A job begins at each line of input.
pub fn of_jobs(misses: u64) -> [String; 3] {
    [this(), JOBS.to_owned(), misses.to_string()]
}

fn this() -> String {
    std::env::current_exe().expect("this test").display().to_string()
}

fn access() {
    let _ = getpgid(None);
}

fn miss() {
    let _ = getsid(None);
}

fn two_threads(cpu: CpuId) {
    let work = |missing: bool| {
        for access_number in 0..ACCESSES {
            access();
            if missing && access_number % 2 == 0 {
                miss();
            }
        }
    };
    thread::scope(|scope| {
        let ((to_second, from_first), (to_first, from_second)) = (sync_channel::<()>(0), sync_channel::<()>(0));
        let begin = to_first.clone();
        let thread =
            |name: &str, missing, sender: std::sync::mpsc::SyncSender<()>, receiver: std::sync::mpsc::Receiver<()>| {
                let body = move || {
                    let _settings = RealtimeRequest::new().pin(cpu).apply();
                    for _ in 0..TURNS {
                        receiver.recv().expect("the other thread");
                        work(missing);
                        // The other thread may have ended.
                        let _ = sender.send(());
                    }
                    // With this sleep, the last slice ends like the others.
                    thread::sleep(Duration::from_millis(20));
                };
                thread::Builder::new().name(name.to_owned()).spawn_scoped(scope, body).expect("a thread");
            };
        thread("hits", false, to_second, from_second);
        thread("misses", true, to_first, from_first);
        begin.send(()).expect("the first thread");
    });
}

fn jobs(misses: u64) {
    println!("ready");
    for line in std::io::stdin().lock().lines() {
        if line.is_err() {
            return;
        }
        (0..misses).for_each(|_| miss());
        println!("done");
    }
}

/// Makes the accesses and misses of these programs the events that are counted on a CPU.
pub fn count(pmu: &mut Pmu) -> Result<(), NotRun> {
    let [reads, misses, other] = tracepoints(["getpgid", "getsid", "getppid"])?;
    pmu.stand_ins = HashMap::from([(READS, reads), (READ_MISSES, misses)]);
    pmu.other_stand_in = Some(other);
    Ok(())
}

/// Returns the numbers of the tracepoints at the beginning of system calls.
fn tracepoints<const N: usize>(calls: [&str; N]) -> Result<[u64; N], NotRun> {
    let folder = tempfile::tempdir().expect("a folder");
    let paths = calls.map(|call| format!("events/syscalls/sys_enter_{call}/id"));
    // Mounted for the shell alone.
    let script = "mount -t tracefs none \"$0\" && cd \"$0\" && cat \"$@\"";
    let output = Command::new("unshare").args(["-m", "sh", "-c", script]).arg(folder.path()).args(&paths).output();
    let output = output.map_err(|error| NotRun(format!("unshare: {error}")))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let numbers: Vec<u64> = text.lines().filter_map(|line| line.parse().ok()).collect();
    let why = || format!("no tracepoints of system calls: {}", String::from_utf8_lossy(&output.stderr));
    numbers.try_into().map_err(|_| NotRun(why()))
}

/// Returns the last CPU that this process may run on.
pub fn last_cpu() -> u32 {
    let status = fs::read_to_string("/proc/self/status").expect("a status");
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).expect("a list of CPUs");
    list.trim().rsplit([',', '-']).next().and_then(|last| last.parse().ok()).expect("a CPU")
}
