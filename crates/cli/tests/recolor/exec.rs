//! Tests of programs that `exec` starts and keeps on colors.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::fixture::Fixture;
use crate::target::{json, on_color, succeeding};
use crate::trial::{NotRun, Outcome};

pub fn exec_is_transparent(fixture: &Fixture) -> Outcome {
    let exec = |script: &str| {
        let mut command = fixture.isochrome("exec", "0-3");
        command.args(["--ready", "settle:50ms", "--interval", "100ms", "--", "sh", "-c", script]);
        command
    };
    let output = exec("echo out; echo err >&2; sleep 0.5; exit 7").output().unwrap();
    assert_eq!((output.status.code(), &*output.stdout), (Some(7), &b"out\n"[..]));
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    // On a busy machine the program may end before any of its pages is moved.
    let ends = ["sweep", "ended before it was on its colors"];
    assert!(message.lines().any(|line| line == "err") && ends.iter().any(|end| message.contains(end)), "{message}");
    let mut child = exec("read line; echo \"$line\"").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(400));
    child.stdin.take().unwrap().write_all(b"through\n").unwrap();
    assert_eq!(child.wait_with_output().unwrap().stdout, b"through\n");
    // A signal that ends the program ends the tool in the same way.
    let output = exec("sleep 0.3; kill -KILL $$").output().unwrap();
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&output.status), Some(9));
    // A signal to the tool reaches the program.
    let mut child = exec("trap 'echo caught; exit 3' TERM; echo begun; while :; do sleep 0.05; done")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    lines.read_line(&mut line).unwrap();
    std::thread::sleep(Duration::from_millis(400));
    assert!(Command::new("kill").arg(child.id().to_string()).status().unwrap().success());
    lines.read_to_string(&mut line).unwrap();
    assert_eq!((line.as_str(), child.wait().unwrap().code()), ("begun\ncaught\n", Some(3)));
    let mut missing = fixture.isochrome("exec", "0-3");
    let output = missing.args(["--", "/no/such/program"]).output().unwrap();
    assert_eq!(output.status.code(), Some(127));
    assert!(String::from_utf8_lossy(&output.stderr).contains("cannot be started"));
    let mut not_executable = fixture.isochrome("exec", "0-3");
    let output = not_executable.arg(fixture.path("bits.json")).output().unwrap();
    assert_eq!(output.status.code(), Some(126));
    // Without its colors a program does not start with --strict, and runs as usual otherwise.
    let asked = |strict: bool| {
        let mut command = fixture.isochrome("exec", "0-16");
        command.args(strict.then_some("--strict")).args(["sh", "-c", "echo ran; exit 7"]).output().unwrap()
    };
    let [strict, not] = [true, false].map(asked);
    assert_eq!((strict.status.code(), &*strict.stdout), (Some(125), &b""[..]));
    assert_eq!((not.status.code(), &*not.stdout), (Some(7), &b"ran\n"[..]));
    let message = String::from_utf8_lossy(&not.stderr).into_owned();
    assert!(
        message.contains("the program runs, but is not on its colors: ") && message.contains("out of range"),
        "{message}"
    );
    Ok(())
}

pub fn exec_waits_until_ready(fixture: &Fixture) -> Outcome {
    let scripts = [
        ("line:now", "sleep 0.3; echo now; read line", "now\n"),
        ("signal", "sleep 0.3; kill -USR1 $PPID; read line", ""),
        ("settle:100ms", "read line", ""),
    ];
    for (ready, script, message) in scripts {
        let outcome = fixture.path("outcome.json");
        let mut command = fixture.isochrome("exec", "0-3");
        command.args(["--ready", ready, "-o"]).arg(&outcome).args(["--", "sh", "-c", &format!("{script}; true")]);
        let output = fixture.until_on_colors(command, &outcome);
        assert_eq!((output.status.code(), &*String::from_utf8_lossy(&output.stdout)), (Some(0), message), "{output:?}");
        let outcome: Value = serde_json::from_str(&fs::read_to_string(&outcome).unwrap()).unwrap();
        fs::remove_file(fixture.path("outcome.json")).unwrap();
        let at = outcome["seconds_to_colors"].as_f64().unwrap_or_else(|| panic!("{ready}: {outcome}"));
        assert!(at >= if ready.starts_with("settle") { 0.1 } else { 0.3 }, "{ready}: {outcome}");
        assert!(outcome["resident"].as_u64().unwrap() > 100, "{ready}: {outcome}");
    }
    Ok(())
}

pub fn exec_goes_along(fixture: &Fixture) -> Outcome {
    // The shell executes another program again and again, as wrappers do. Colors are maintained all the time, so that some work is under
    // way whenever another program begins. If another program begins between two stops of the process, its pages are left where they are, without
    // harm. Each of the last seven programs goes on once it is on its colors.
    let script = fixture.path("again.sh");
    let text = "n=$1; [ $n = 0 ] && exec echo end\n[ $n -le 7 ] && echo $$ && read\nexec bash \"$0\" $((n - 1))\n";
    fs::write(&script, text).unwrap();
    let outcome = fixture.path("outcome.json");
    let mut command = fixture.isochrome("exec", "0-3");
    command.args(["--ready", "settle:1ms", "--interval", "1ms", "-o"]).arg(&outcome);
    command.args(["--", "bash"]).arg(&script).arg("277");
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut last = String::new();
    for line in &mut lines {
        last = line.unwrap();
        if let Ok(pid) = last.parse() {
            child = until_on_colors(fixture, child, (pid, "0-3"), 300);
            input.write_all(b"\n").unwrap();
        }
    }
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success() && last == "end", "{last}: {}", String::from_utf8_lossy(&output.stderr));
    let outcome: Value = serde_json::from_str(&fs::read_to_string(outcome).unwrap()).unwrap();
    assert_eq!(outcome["errors"], serde_json::json!([]), "{outcome}");
    println!("{outcome}");
    // A sweep at least was needed for each of the seven.
    assert!(outcome["sweeps"].as_u64().unwrap() >= 7, "{outcome}");
    Ok(())
}

pub fn exec_follows(fixture: &Fixture) -> Outcome {
    if Command::new("python3").arg("--version").output().is_err() {
        return Err(NotRun("python3 is not installed".to_owned()));
    }
    // A parent and a child that both grow. Each reports when it has grown, and waits for the end of its input.
    let grow = "import os,time\nos.fork()\nkept=[]\nfor i in range(60):\n kept.append(bytearray(b'x'*100000))\n \
                time.sleep(0.02)\nos.write(1,b'%d\\n'%os.getpid())\nos.read(0,1)\nassert all(k==b'x'*100000 for k in kept)\n";
    let mut command = fixture.isochrome("exec", "8-11");
    command.args(["--ready", "settle:50ms", "--interval", "200ms", "--", "python3", "-c", grow]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let pids: Vec<u32> = lines.by_ref().take(2).map(|line| line.unwrap().parse().unwrap()).collect();
    if pids.len() < 2 {
        let output = child.wait_with_output().unwrap();
        panic!("{} after {pids:?}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    }
    for pid in pids {
        child = until_on_colors(fixture, child, (pid, "8-11"), 1500);
    }
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

/// Waits until more than `least` pages of process `pid` are on `colors` and at most 0.5 % of its movable pages are off color. Returns `exec`, the
/// process that keeps them there. Panics after a minute.
fn until_on_colors(fixture: &Fixture, mut exec: Child, (pid, colors): (u32, &str), least: u64) -> Child {
    let begin = Instant::now();
    loop {
        let (on_color, off_color, immovable) = on_color(fixture, pid, colors);
        if on_color as f64 >= 0.995 * (on_color + off_color) as f64 && on_color > least {
            println!("process {pid}: {on_color} on color, {off_color} off color, {immovable} immovable");
            return exec;
        }
        if begin.elapsed() > Duration::from_secs(60) {
            let report = json(&fixture.recolor(pid, colors).arg("--dry-run").output().unwrap());
            drop(exec.stdin.take());
            let _ = Command::new("kill").args(["-KILL", &pid.to_string()]).status();
            let output = exec.wait_with_output().unwrap();
            let message = String::from_utf8_lossy(&output.stderr).into_owned();
            panic!("{on_color} on color, {off_color} off color: {report}; {message}");
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Checks that programs from Debian packages give the same output on their colors.
pub fn real_programs(fixture: &Fixture) -> Outcome {
    let sql = "create table t(a integer primary key, b text, c real);\
               with recursive n(i) as (select 1 union all select i+1 from n where i<60000) insert into t select i, hex(i*7919), i/3.0 from n;\
               create index u on t(b); select count(*), sum(length(b)), round(sum(c),3) from t where b like '%3%';\
               with recursive n(i) as (select 1 union all select i+1 from n where i<6000000) select sum(i*i%1013) from n;";
    let numeric = "import math,array\nx=array.array('d',(math.sin(i) for i in range(200000)))\ns=0.0\nfor r in range(300):\n \
                   s+=sum(v*v for v in x)\nprint(repr(s))";
    let shell = "i=0; s=0; while [ $i -lt 600000 ]; do i=$((i+1)); s=$(((s+i*i)%1000003)); done; echo $s";
    let programs: [(&str, &str, Vec<&str>); 4] = [
        ("sqlite3", "sqlite3", vec![":memory:", sql]),
        ("python3", "python3", vec!["-c", numeric]),
        ("busybox-static (static)", "busybox", vec!["sh", "-c", shell]),
        ("rt-tests", "cyclictest", vec!["-q", "-t2", "-i1000", "-l1500", "--policy=fifo", "-p50", "-m"]),
    ];
    let (mut ran, mut not_checked) = (0, Vec::new());
    for (package, program, arguments) in programs {
        let Ok(plain) = Command::new(program).args(&arguments).output() else {
            not_checked.push(format!("{package} is not installed"));
            continue;
        };
        let outcome = fixture.path("outcome.json");
        let mut command = fixture.isochrome("exec", "0-3");
        command.args(["--ready", "settle:100ms", "--interval", "200ms", "-o"]).arg(&outcome).arg("--").arg(program);
        let colored = command.args(&arguments).output().unwrap();
        let message = String::from_utf8_lossy(&colored.stderr).into_owned();
        assert_eq!(colored.status.code(), plain.status.code(), "{program}: {message}");
        // The latencies that cyclictest prints differ from run to run; the number of its lines must not.
        let comparable = |text: &[u8]| {
            let text = String::from_utf8_lossy(text).into_owned();
            if program == "cyclictest" { format!("{} lines", text.lines().count()) } else { text }
        };
        assert_eq!(comparable(&colored.stdout), comparable(&plain.stdout), "{program}");
        let outcome: Value = serde_json::from_str(&fs::read_to_string(outcome).unwrap()).unwrap();
        println!("{program}: {outcome}");
        if outcome["seconds_to_colors"].is_null() && outcome["errors"].as_array().unwrap().is_empty() {
            not_checked.push(format!("{program} ended before it was on its colors"));
            continue;
        }
        assert!(
            outcome["sweeps"].as_u64().unwrap() > 0 && outcome["errors"].as_array().unwrap().is_empty(),
            "{outcome}"
        );
        let number = |key: &str| outcome[key].as_u64().unwrap();
        let immovable: u64 = outcome["immovable"].as_object().unwrap().values().map(|n| n.as_u64().unwrap()).sum();
        let resident = number("resident");
        assert!(resident > 50 && number("on_color") + immovable >= resident * 995 / 1000, "{program}: {outcome}");
        ran += 1;
    }
    if not_checked.is_empty() {
        Ok(())
    } else {
        Err(NotRun(format!("{ran} programs passed, but {}", not_checked.join(", "))))
    }
}

pub fn redis(fixture: &Fixture) -> Outcome {
    if Command::new("redis-server").arg("--version").output().is_err() {
        return Err(NotRun("redis-server is not installed".to_owned()));
    }
    let socket = fixture.path("redis.sock");
    let outcome = fixture.path("outcome.json");
    let mut command = fixture.isochrome("exec", "4-7");
    command.args(["--ready", "line:ready to accept", "--interval", "200ms", "-o"]).arg(&outcome);
    command
        .args(["--", "redis-server", "--port", "0", "--save", "", "--appendonly", "no", "--unixsocket"])
        .arg(&socket);
    let mut server = command.stdout(Stdio::null()).spawn().unwrap();
    let begin = Instant::now();
    while !socket.exists() {
        assert!(begin.elapsed() < Duration::from_secs(20), "redis-server does not begin");
        std::thread::sleep(Duration::from_millis(20));
    }
    let mut bench = Command::new("redis-benchmark");
    bench.arg("-s").arg(&socket).args([
        "-n",
        "20000",
        "-c",
        "20",
        "-t",
        "set,get,lpush,lrange_100",
        "-r",
        "5000",
        "-d",
        "200",
        "-q",
    ]);
    let benchmark = succeeding(bench);
    let message = String::from_utf8_lossy(&benchmark.stdout).into_owned();
    assert!(message.matches("requests per second").count() >= 4, "{message}");
    let client = |arguments: &[&str]| {
        let mut client = Command::new("redis-cli");
        client.arg("-s").arg(&socket).args(arguments);
        String::from_utf8_lossy(&succeeding(client).stdout).trim().to_owned()
    };
    assert_eq!(client(&["set", "name", "value"]), "OK");
    let pid: u32 = client(&["info", "server"])
        .lines()
        .find_map(|line| line.strip_prefix("process_id:"))
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    let begin = Instant::now();
    loop {
        let (on_color, off_color, immovable) = on_color(fixture, pid, "4-7");
        println!("redis-server: {on_color} on color, {off_color} off color, {immovable} immovable\n{message}");
        if on_color as f64 >= 0.995 * (on_color + off_color) as f64 {
            break;
        }
        assert!(begin.elapsed() < Duration::from_secs(60), "it does not get onto its colors");
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(client(&["get", "name"]), "value");
    let mut stop = Command::new("redis-cli");
    stop.arg("-s").arg(&socket).args(["shutdown", "nosave"]);
    let _ = stop.output();
    assert!(server.wait().unwrap().success());
    println!("{}", fs::read_to_string(outcome).unwrap());
    Ok(())
}
