//! `isochrome serve` and `isochrome policy`: the memory server, and what can be said of its policy.

use std::fmt::Write as _;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use isochrome_host::color::Target;
use isochrome_host::machine::setting::allowed_cpus;
use isochrome_host::machine::sysfs::Sysfs;
use isochrome_host::process::Pid;
use isochrome_host::server::socket::{self, Ask, Say};
use isochrome_host::server::{Server, Status};
use isochrome_host::{interrupt, runtime};
use isochrome_model::policy::{self, Assigned, Policy};
use isochrome_model::units::{Bytes, format_list};
use rustix::fs::{FlockOperation, flock};

use crate::args::{ChosenColors, PolicyVerb, ServeOptions};
use crate::context::seed;
use crate::verdict::Verdict;
use crate::{coloring, files, hints, notify};

/// Schema of the printed status.
pub const STATUS_SCHEMA: &str = "isochrome-status/1";

/// Longest time between two checks for signals.
const GLANCE: Duration = Duration::from_millis(100);

/// What clients are told without waiting for a round to end.
struct Published {
    status: Status,
    policy: String,
}

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
    let server = Server::new(all, policy).with_context(|| shown(&options.config))?;
    let published = Arc::new(RwLock::new(Published { status: server.status(), policy: text }));
    let server = Arc::new(Mutex::new(server));
    listen(&folder, &server, &published)?;
    eprint!("{}", table(&published.read().unwrap_or_else(PoisonError::into_inner).status));
    notify::say("READY=1");
    let mut watchdog = Watchdog::of_service();
    while !interrupt::interrupted() {
        if hung_up.swap(false, Ordering::Relaxed) {
            notify::say("RELOADING=1");
            reload(&options.config, &mut held(&server), &published);
            notify::say("READY=1");
        }
        let rest = {
            let mut server = held(&server);
            let rest = server.round();
            published.write().unwrap_or_else(PoisonError::into_inner).status = server.status();
            rest
        };
        watchdog.feed();
        std::thread::sleep(rest.min(GLANCE));
    }
    notify::say("STOPPING=1");
    Ok(Verdict::Holds)
}

fn held(server: &Mutex<Server>) -> MutexGuard<'_, Server> {
    server.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads the policy in `path` and puts it in force. If it cannot be used, the old one stays in force, which is said.
fn reload(path: &Path, server: &mut Server, published: &RwLock<Published>) {
    let done = read(path).and_then(|(text, policy)| {
        let changes = server.put_in_force(policy).with_context(|| shown(path))?;
        Ok((text, changes))
    });
    match done {
        Ok((text, changes)) => {
            published.write().unwrap_or_else(PoisonError::into_inner).policy = text;
            let changes = if changes.is_empty() { "nothing changes".to_owned() } else { changes.join("\n  ") };
            eprintln!("isochrome: the policy was read again:\n  {changes}");
        }
        Err(error) => eprintln!("isochrome: the old policy stays in force: {}", hints::text(&*error)),
    }
}

/// Answers the requests of clients.
fn listen(folder: &Path, server: &Arc<Mutex<Server>>, published: &Arc<RwLock<Published>>) -> Result<()> {
    let (server, published) = (Arc::clone(server), Arc::clone(published));
    let answerer = move |ask| {
        let published = || published.read().unwrap_or_else(PoisonError::into_inner);
        match ask {
            Ask::Status => Say::Status(published().status.clone()),
            Ask::Policy => Say::Text(published().policy.clone()),
            Ask::Explain(pid) => match held(&server).explain(Pid(pid)) {
                Ok(text) => Say::Text(text),
                Err(error) => Say::Error(hints::text(&error)),
            },
        }
    };
    let path = socket::path_in(folder);
    socket::listen(folder, Arc::new(answerer)).with_context(|| path.display().to_string())
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
                "a server runs already\n  hint: isochrome policy status shows it; kill -HUP makes it read its policy again"
            )
        }
        Err(error) => Err(error).with_context(|| path.display().to_string()),
    }
}

/// Tells the service manager again and again that the server works. [sd_watchdog_enabled(3)]
struct Watchdog {
    /// Half of the time after which the manager gives the server up; `None` if it does not ask.
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

fn shown(path: &Path) -> String {
    path.display().to_string()
}

/// Returns the text of the policy in `path`, and the policy.
fn read(path: &Path) -> Result<(String, Policy)> {
    let hint = "hint: examples/serve/policy.toml is one to begin with";
    let text = std::fs::read_to_string(path).with_context(|| format!("{} cannot be read\n  {hint}", path.display()))?;
    let policy = policy::read(&text).with_context(|| shown(path))?;
    Ok((text, policy))
}

/// Returns the colors that the classes of `policy` get on this machine.
fn assigned(policy: &Policy, level: Option<u8>) -> Result<Vec<Assigned>> {
    let (machine, _) = Sysfs::system().machine()?;
    let cpu = *allowed_cpus()?.first().context("there is no CPU")?;
    let geometry = Target::of(&machine, level, cpu)?.geometry;
    let count = geometry.color_count(machine.page_bytes);
    Ok(policy::assign(policy, count, Bytes(geometry.cache_bytes().0 / u64::from(count.max(1))))?)
}

/// Asks the server that runs.
fn ask(what: Ask) -> Result<Say> {
    match socket::ask(&runtime::folder(), what) {
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {
            bail!("no server runs\n  hint: isochrome serve --config FILE")
        }
        answer => match answer.context("the server does not answer")? {
            Say::Error(error) => bail!("{error}"),
            say => Ok(say),
        },
    }
}

pub fn policy(verb: &PolicyVerb) -> Result<Verdict> {
    match verb {
        PolicyVerb::Check { file, level } => {
            let (_, policy) = read(file)?;
            let assigned = assigned(&policy, *level).with_context(|| shown(file))?;
            let mut text = String::new();
            for (class, assigned) in policy.classes.iter().zip(&assigned) {
                let rounded = assigned.rounded_from.map(|size| format!(" ({size} rounded up)")).unwrap_or_default();
                let own = if class.exclusive { "its own" } else { "shared" };
                let colors = format_list(&assigned.colors);
                writeln!(text, "{}: {} colors{rounded}, {own}: {colors}", class.name, assigned.colors.len())?;
                class.members.iter().try_for_each(|member| writeln!(text, "  {member}"))?;
            }
            files::print(&text)?;
        }
        PolicyVerb::Diff { file, level } => {
            let (_, new) = read(file)?;
            let Say::Text(text) = ask(Ask::Policy)? else { bail!("the server answers something else") };
            let old = policy::read(&text).context("the policy in force")?;
            let (before, after) = (assigned(&old, *level)?, assigned(&new, *level).with_context(|| shown(file))?);
            let changes = policy::changes((&old, &before), (&new, &after));
            files::print(&changes.iter().fold(String::new(), |text, line| text + line + "\n"))?;
        }
        PolicyVerb::Explain { pid } => {
            let Say::Text(text) = ask(Ask::Explain(*pid))? else { bail!("the server answers something else") };
            files::print(&(text + "\n"))?;
        }
        PolicyVerb::Status { json } => {
            let Say::Status(status) = ask(Ask::Status)? else { bail!("the server answers something else") };
            files::show(*json, &files::versioned(STATUS_SCHEMA, &status), || table(&status))?;
        }
    }
    Ok(Verdict::Holds)
}

/// Returns the state of the server as a table.
fn table(status: &Status) -> String {
    let mut text = String::new();
    for class in &status.classes {
        let own = if class.exclusive { "its own" } else { "shared" };
        text += &format!(
            "{}: colors {} of {} at level {}, {own}\n",
            class.class, class.colors, status.colors, status.level
        );
        for member in &class.members {
            let percent = 100.0 * member.on_color as f64 / (member.on_color + member.off_color).max(1) as f64;
            let state = match (&member.trouble, member.seconds_to_colors) {
                (Some(trouble), _) => format!("not moved: {trouble}"),
                (None, None) => "on its way".to_owned(),
                (None, Some(seconds)) => format!("there after {seconds:.2} s"),
            };
            let pause = member.pause_ns_max as f64 / 1e6;
            text += &format!(
                "  {:>8} {:<16} {percent:>5.1} % of {} pages on color, {} cannot be moved, pauses up to {pause:.1} ms, {state}\n",
                member.pid,
                member.name,
                member.on_color + member.off_color,
                member.immovable
            );
        }
    }
    text + &format!("{} processes are left alone\n", status.left_alone)
}
