//! Long work says on standard error that it goes on, also where that is a pipe.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The first line is due after 1 s and the others every 5 s. On a busy machine they come later, with the time that has passed.
const LATEST: Duration = Duration::from_secs(60);

#[test]
fn long_work_in_a_pipe_is_not_silent() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_isochrome"));
    command.args(["simulate", "--machine", "zen3", "--workload", "walk:area=1M,stride=64,passes=1000000"]);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let begin = Instant::now();
    let lines = BufReader::new(child.stderr.take().unwrap()).lines();
    for (number, line) in lines.take(3).enumerate() {
        let line = line.unwrap();
        assert!(line.contains("playing the workload") && line.contains("so far"), "{line}");
        let seconds = line.split(" s so far").next().and_then(|said| said.rsplit(' ').next()?.parse::<u64>().ok());
        assert!(seconds.is_some_and(|seconds| seconds > 5 * number as u64), "line {number}: {line}");
        assert!(begin.elapsed() < LATEST, "{:?} until {line}", begin.elapsed());
    }
    let seen = begin.elapsed();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(seen > Duration::from_secs(8), "three lines within {seen:?}");
}
