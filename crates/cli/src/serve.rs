//! `isochrome serve`: the memory server.

use std::fs::File;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use isochrome_host::doctor::{self, movers};
use isochrome_host::machine::setting::allowed_cpus;
use isochrome_host::machine::sysfs::Sysfs;
use isochrome_host::probe::retention::Monitor;
use isochrome_host::process::Pid;
use isochrome_host::recolor::watch::PauseCounts;
use isochrome_host::server::published::Published;
use isochrome_host::server::requests::{Peer, RequestError};
use isochrome_host::server::socket::{self, Ask, Say};
use isochrome_host::server::{MemberStatus, Server, Status, Unmanaged};
use isochrome_host::{interrupt, runtime};
use isochrome_model::machine::Retention;
use rustix::fs::{FlockOperation, flock};

use crate::args::{ChosenColors, ServeOptions};
use crate::context::seed;
use crate::policy::{read, shown, table};
use crate::verdict::Verdict;
use crate::{coloring, hints, metrics, notify};

/// Longest time between two checks for signals.
const GLANCE: Duration = Duration::from_millis(100);
/// Shortest time between two rounds. Clients that wait for the server are served in this time.
const TURN: Duration = Duration::from_millis(1);
/// Time between two samples of how long the caches keep their contents.
const SAMPLED_EVERY: Duration = Duration::from_secs(60);
/// Longest time until a change is reported to clients.
const REPORT: Duration = Duration::from_secs(1);

pub fn run(options: &ServeOptions) -> Result<Verdict> {
    let (text, policy) = read(&options.config)?;
    let folder = runtime::folder();
    runtime::make(&folder)?;
    let _only = only_server(&folder)?;
    let hung_up = interrupt::on_hangup()?;
    let chosen = ChosenColors {
        level: options.level,
        max_pause: options.max_pause,
        ..options.frames.colors("all", options.level)
    };
    let all = coloring::resolve(&chosen, allowed_cpus()?, seed(options.frames.seed))?;
    let server = Server::new(all, policy, &folder).with_context(|| shown(&options.config))?;
    let published = Arc::new(Published::new(server.status(), text));
    let server = Arc::new(Mutex::new(server));
    listen(&folder, &options.config, &server, &published)?;
    let page = Arc::new(Mutex::new(String::new()));
    let retention = Arc::new(Mutex::new(Vec::new()));
    if let Some(address) = options.metrics {
        metrics::publish(address, &page)?;
        monitor(&retention, seed(options.frames.seed))?;
    }
    eprint!("{}", table(&published.status()));
    say_what_moves_pages();
    notify::say("READY=1");
    let (mut watchdog, mut reported) = (Watchdog::of_service(), Instant::now());
    while !interrupt::interrupted() {
        if hung_up.swap(false, Ordering::Relaxed) {
            notify::say("RELOADING=1");
            // The reason was printed.
            let _ = reload(&options.config, &mut held(&server), &published);
            notify::say("READY=1");
        }
        let rest = {
            let mut server = held(&server);
            let rest = server.round();
            // After a round in which nothing was done, at most who is there has changed.
            if rest.is_zero() || reported.elapsed() >= REPORT {
                let status = server.status();
                if options.metrics.is_some() {
                    *held(&page) = metrics_of(&status, &held(&retention));
                }
                published.report(status);
                reported = Instant::now();
            }
            rest
        };
        watchdog.feed();
        std::thread::sleep(rest.clamp(TURN, GLANCE));
    }
    notify::say("STOPPING=1");
    Ok(Verdict::Holds)
}

/// Names what moves pages of members on this machine, because the server spends time on moving them back.
fn say_what_moves_pages() {
    let checks = movers(&Sysfs::system()).into_iter().filter(|check| check.status != doctor::Status::Ok);
    let names: Vec<String> = checks.map(|check| check.name).collect();
    if !names.is_empty() {
        eprintln!(
            "isochrome: colors drift here by {}. The server moves such pages back; `isochrome doctor` says how to prevent it",
            names.join(", ")
        );
    }
}

fn held<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Samples the retention of the caches every minute, in a thread of its own.
fn monitor(retention: &Arc<Mutex<Vec<(u8, Retention)>>>, seed: u64) -> Result<()> {
    let (machine, _) = Sysfs::system().machine()?;
    let mut monitor = Monitor::new(&machine, &allowed_cpus()?, seed);
    let retention = Arc::clone(retention);
    let body = move || {
        loop {
            let sampled = monitor.sample();
            *held(&retention) = sampled;
            std::thread::sleep(SAMPLED_EVERY);
        }
    };
    std::thread::Builder::new().name("retention".to_owned()).spawn(body)?;
    Ok(())
}

/// Reads the policy in `path` and puts it in force. If it cannot be used, the old one stays in force. The outcome is printed and returned, in words.
fn reload(path: &Path, server: &mut Server, published: &Published) -> Result<String, String> {
    let done = read(path).and_then(|(text, policy)| {
        let changes = server.put_in_force(policy).with_context(|| shown(path))?;
        Ok((text, changes))
    });
    let done = match done {
        Ok((text, changes)) => {
            published.report_policy(text);
            published.report(server.status());
            let changes = if changes.is_empty() { "nothing changes".to_owned() } else { changes.join("\n  ") };
            Ok(format!("the policy was read again:\n  {changes}"))
        }
        Err(error) => Err(format!("the old policy stays in force: {}", hints::text(&*error))),
    };
    let (Ok(text) | Err(text)) = &done;
    eprintln!("isochrome: {text}");
    done
}

/// Answers the requests of clients. The policy is in `config`.
fn listen(folder: &Path, config: &Path, server: &Arc<Mutex<Server>>, published: &Arc<Published>) -> Result<()> {
    let (server, published, config) = (Arc::clone(server), Arc::clone(published), config.to_owned());
    let own = rustix::process::geteuid().as_raw();
    let answerer = move |ask, peer: Peer| match ask {
        Ask::Status => Say::Status(published.status()),
        Ask::Next(number) => {
            let (number, status) = published.next(number);
            Say::Changed(number, status)
        }
        Ask::Policy => Say::Text(published.policy()),
        Ask::Explain(pid) => match held(&server).explain(Pid(pid)) {
            Ok(text) => Say::Text(text),
            Err(error) => Say::Error(hints::text(&error)),
        },
        Ask::Reload if ![0, own].contains(&peer.uid) => {
            Say::Error("only root and the user of the server may have the policy read again".to_owned())
        }
        Ask::Reload => match reload(&config, &mut held(&server), &published) {
            Ok(done) => Say::Text(done),
            Err(error) => Say::Error(error),
        },
        Ask::Join(join) => granted(&mut held(&server), &published, peer, |server| server.request(&join, peer)),
        Ask::Place(placing) => granted(&mut held(&server), &published, peer, |server| server.place(&placing, peer)),
    };
    let path = socket::path_in(folder);
    socket::listen(folder, Arc::new(answerer)).with_context(|| path.display().to_string())
}

/// Returns the answer to a request that `grant` grants or refuses, and publishes the changes.
fn granted(
    server: &mut Server,
    published: &Published,
    peer: Peer,
    grant: impl FnOnce(&mut Server) -> Result<String, RequestError>,
) -> Say {
    match grant(server) {
        Ok(done) => {
            eprintln!("isochrome: user {}, process {}: {done}", peer.uid, peer.pid);
            published.report(server.status());
            Say::Text(done)
        }
        Err(error) => Say::Error(hints::text(&error)),
    }
}

/// Makes sure that no other server runs with the same runtime folder, as long as the returned file is open.
fn only_server(folder: &Path) -> Result<File> {
    let path = folder.join("serve.lock");
    let opened = File::options().create(true).truncate(false).write(true).open(&path);
    let lock = opened.with_context(|| path.display().to_string())?;
    match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(lock),
        Err(error) if error == rustix::io::Errno::WOULDBLOCK => {
            bail!(
                "a server runs already\n  hint: isochrome policy status shows it; isochrome policy reload makes it read its policy again"
            )
        }
        Err(error) => Err(error).with_context(|| path.display().to_string()),
    }
}

/// Tells the service manager again and again that the server works. [sd_watchdog_enabled(3)]
struct Watchdog {
    /// Half of the time after which the manager gives the server up; `None` if the manager does not watch the server.
    every: Option<Duration>,
    fed: Instant,
}

impl Watchdog {
    fn of_service() -> Watchdog {
        let time = std::env::var("WATCHDOG_USEC").ok().and_then(|time| time.parse().ok());
        Watchdog { every: time.map(|time| Duration::from_micros(time) / 2), fed: Instant::now() }
    }

    fn feed(&mut self) {
        if self.every.is_some_and(|every| self.fed.elapsed() >= every) {
            notify::say("WATCHDOG=1");
            self.fed = Instant::now();
        }
    }
}

/// Returns the state of the server, and the retention of cache levels, as metrics for Prometheus.
fn metrics_of(status: &Status, retention: &[(u8, Retention)]) -> String {
    let escape = |name: &str| name.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', " ");
    let mut text = String::new();
    let mut family = |name: &str, kind: &str, help: &str, value: &dyn Fn(&MemberStatus) -> f64| {
        text += &format!("# HELP isochrome_{name} {help}\n# TYPE isochrome_{name} {kind}\n");
        for class in &status.classes {
            for member in &class.members {
                let labels = format!(
                    "class=\"{}\",pid=\"{}\",name=\"{}\"",
                    escape(&class.class),
                    member.pid,
                    escape(&member.name)
                );
                text += &format!("isochrome_{name}{{{labels}}} {}\n", value(member));
            }
        }
    };
    family("pages_on_color", "gauge", "Resident pages on the colors of the class.", &|member| member.on_color as f64);
    family("pages_off_color", "gauge", "Resident pages off color that can be moved.", &|member| {
        member.off_color as f64
    });
    family("pages_immovable", "gauge", "Resident pages that cannot be moved.", &|member| {
        member.immovable.values().sum::<usize>() as f64
    });
    family("sweeps_total", "counter", "Number of times that pages were moved.", &|member| member.sweeps as f64);
    family("drifted_pages_total", "counter", "Pages that the kernel had given other frames.", &|member| {
        member.drifted as f64
    });
    family("pause_seconds_max", "gauge", "Longest pause so far; not a bound.", &|member| {
        member.pause_ns_max as f64 / 1e9
    });
    family("trouble", "gauge", "1 if the last attempt to move pages failed.", &|member| {
        f64::from(member.trouble.is_some())
    });
    text += "# HELP isochrome_pause_seconds Times for which members stood still while pages were moved.\n# TYPE isochrome_pause_seconds histogram\n";
    for class in &status.classes {
        let (label, mut below) = (format!("class=\"{}\"", escape(&class.class)), 0);
        for (count, limit) in class.pauses.counts.iter().zip(PauseCounts::LIMITS_NS) {
            below += count;
            text += &format!("isochrome_pause_seconds_bucket{{{label},le=\"{}\"}} {below}\n", limit as f64 / 1e9);
        }
        let (all, sum) = (class.pauses.counts.iter().sum::<u64>(), class.pauses.sum_ns as f64 / 1e9);
        text += &format!("isochrome_pause_seconds_bucket{{{label},le=\"+Inf\"}} {all}\n");
        text +=
            &format!("isochrome_pause_seconds_sum{{{label}}} {sum}\nisochrome_pause_seconds_count{{{label}}} {all}\n");
    }
    for (name, help, value) in [
        ("reserve_pages", "Pages in the reserve of frames.", status.reserve_pages),
        ("reserve_known", "Pages in the reserve of frames whose color is known.", status.reserve_known),
        ("left_alone", "Processes that are left alone.", status.left_alone),
    ] {
        text += &format!("# HELP isochrome_{name} {help}\n# TYPE isochrome_{name} gauge\nisochrome_{name} {value}\n");
    }
    if let Some(Unmanaged { kernel, files, shared, programs }) = status.unmanaged() {
        text += "# HELP isochrome_unmanaged_bytes Memory in use that no class manages, which may have any color.\n\
                 # TYPE isochrome_unmanaged_bytes gauge\n";
        for (of, bytes) in [("kernel", kernel), ("files", files), ("shared", shared), ("programs", programs)] {
            text += &format!("isochrome_unmanaged_bytes{{of=\"{of}\"}} {}\n", bytes.0);
        }
    }
    if !retention.is_empty() {
        text += "# HELP isochrome_retention_lost_ratio Median share of the contents of a cache level that is lost after a wait in which the \
        CPU touched nothing.\n\
                 # TYPE isochrome_retention_lost_ratio gauge\n";
    }
    for (level, Retention { cpu, wait_ns, lost_median, .. }) in retention {
        let (cpu, wait) = (cpu.0, wait_ns.0 as f64 / 1e9);
        text += &format!(
            "isochrome_retention_lost_ratio{{level=\"{level}\",cpu=\"{cpu}\",wait_seconds=\"{wait}\"}} {lost_median}\n"
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use isochrome_host::server::ClassStatus;
    use isochrome_model::machine::Waiting;
    use isochrome_model::units::{CpuId, Ns};

    #[test]
    fn metrics_have_a_line_for_each_member_and_pauses_as_a_histogram() {
        let mut class = ClassStatus { class: "a\"b".to_owned(), ..ClassStatus::default() };
        class.members.push(MemberStatus { pid: 7, name: "x".to_owned(), on_color: 90, ..MemberStatus::default() });
        (class.pauses.counts[2], class.pauses.counts[9], class.pauses.sum_ns) = (3, 1, 250_000_000);
        let retention = Retention {
            cpu: CpuId(1),
            waiting: Waiting::Busy,
            wait_ns: Ns(50_000),
            lost_median: 0.25,
            lost_min: 0.0,
            lost_max: 1.0,
            samples: 20,
        };
        let status = Status { classes: vec![class], reserve_pages: 5, ..Status::default() };
        let text = metrics_of(&status, &[(2, retention)]);
        for line in [
            "isochrome_pages_on_color{class=\"a\\\"b\",pid=\"7\",name=\"x\"} 90",
            "isochrome_pause_seconds_bucket{class=\"a\\\"b\",le=\"0.002\"} 0",
            "isochrome_pause_seconds_bucket{class=\"a\\\"b\",le=\"0.005\"} 3",
            "isochrome_pause_seconds_bucket{class=\"a\\\"b\",le=\"+Inf\"} 4",
            "isochrome_pause_seconds_sum{class=\"a\\\"b\"} 0.25",
            "isochrome_reserve_pages 5",
            "isochrome_retention_lost_ratio{level=\"2\",cpu=\"1\",wait_seconds=\"0.00005\"} 0.25",
        ] {
            assert!(text.lines().any(|other| other == line), "{line}\n{text}");
        }
    }
}
