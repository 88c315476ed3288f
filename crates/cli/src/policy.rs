//! `isochrome policy`: checks and compares policies, and queries the memory server.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use isochrome_host::color::Target;
use isochrome_host::interrupt;
use isochrome_host::machine::setting::allowed_cpus;
use isochrome_host::machine::sysfs::Sysfs;
use isochrome_host::process::Pid;
use isochrome_host::server::requests::{Destination, Join};
use isochrome_host::server::socket::{self, Ask, Say};
use isochrome_host::server::{Status, Unmanaged, facts};
use isochrome_model::policy::{self, Assigned, Policy};
use isochrome_model::printable;
use isochrome_model::units::{Bytes, format_list};
use serde::Deserialize;

use crate::args::PolicyVerb;
use crate::verdict::Verdict;
use crate::{files, hints};

/// Time between two queries of a server whose state has not changed.
const AGAIN: Duration = Duration::from_millis(100);
/// Schema of the printed status.
pub const STATUS_SCHEMA: &str = "isochrome-status/1";

pub fn shown(path: &Path) -> String {
    path.display().to_string()
}

/// Returns the text of the policy in `path`, and the policy.
pub fn read(path: &Path) -> Result<(String, Policy)> {
    let hint = "hint: an example: isochrome serve --config examples/serve/policy.toml";
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

/// Sends a request to the server, and returns the response, a text.
fn ask_text(what: Ask) -> Result<String> {
    match socket::ask_server(what)? {
        Say::Text(text) => Ok(text),
        _ => bail!("the server sent an answer of another kind"),
    }
}

/// Has the server put a process or control group into a class. Returns the class and its colors, in words.
pub fn join(join: Join) -> Result<String> {
    ask_text(Ask::Join(join))
}

/// State of a container, as its runtime passes it to hooks. [OCI runtime specification, State]
#[derive(Deserialize)]
struct Container {
    id: String,
    #[serde(default)]
    pid: i32,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

/// Returns the request in the annotations of `container`; `None` if they contain none.
fn request_of(container: &Container) -> Result<Option<Join>> {
    let annotation = |name: &str| container.annotations.get(&format!("isochrome.{name}"));
    let into = match (annotation("class"), annotation("cache")) {
        (None, None) => return Ok(None),
        (Some(_), Some(_)) => bail!("isochrome.class and isochrome.cache are both given\n  hint: keep one of them"),
        (Some(class), None) => Destination::Class(class.clone()),
        (None, Some(size)) => {
            let size =
                size.parse().with_context(|| format!("isochrome.cache={size}\n  hint: isochrome.cache=128KiB"))?;
            Destination::Cache(size)
        }
    };
    // Containers without a control group of their own are followed by their processes.
    let group = facts::group_of_its_own(Pid(container.pid)).is_some();
    Ok(Some(Join { into, pid: Some(container.pid), group, colors: annotation("colors").cloned() }))
}

/// Puts the container whose state is on standard input where its annotations request. Without `strict`, a failure is only printed.
fn hook(strict: bool) -> Result<Verdict> {
    let container: Container = serde_json::from_reader(io::stdin().lock())
        .context("standard input is not a state of a container\n  hint: an OCI runtime runs this as a hook")?;
    match request_of(&container).and_then(|request| request.map(join).transpose()) {
        Ok(None) => {}
        Ok(Some(done)) => eprintln!("isochrome: container {}: {done}", container.id),
        Err(error) if strict => return Err(error.context(format!("container {}", container.id))),
        Err(error) => {
            eprintln!("isochrome: container {} runs without colors: {}", container.id, hints::text(&*error));
        }
    }
    Ok(Verdict::Holds)
}

pub fn run(verb: &PolicyVerb) -> Result<Verdict> {
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
            let text = ask_text(Ask::Policy)?;
            let old = policy::read(&text).context("the policy in force")?;
            let (before, after) = (assigned(&old, *level)?, assigned(&new, *level).with_context(|| shown(file))?);
            let changes = policy::changes((&old, &before), (&new, &after));
            files::print(&changes.iter().fold(String::new(), |text, line| text + line + "\n"))?;
        }
        PolicyVerb::Reload => {
            files::print(&(ask_text(Ask::Reload)? + "\n"))?;
        }
        PolicyVerb::Explain { pid } => {
            files::print(&(ask_text(Ask::Explain(*pid))? + "\n"))?;
        }
        PolicyVerb::Join { oci: true, strict, .. } => return hook(*strict),
        PolicyVerb::Join { class, pid, cgroup, colors, cache, .. } => {
            let into = match (class, cache) {
                (Some(class), _) => Destination::Class(class.clone()),
                (None, Some(cache)) => Destination::Cache(*cache),
                (None, None) => bail!("no class was named\n  hint: isochrome policy join control --pid 123"),
            };
            let done = join(Join { into, pid: *pid, group: *cgroup, colors: colors.clone() })?;
            files::print(&(done + "\n"))?;
        }
        PolicyVerb::Status { json, follow } => {
            let mut last = 0;
            loop {
                let Say::Changed(number, status) = socket::ask_server(Ask::Next(last))? else {
                    bail!("the server sent an answer of another kind")
                };
                if number != last {
                    let gap = if last > 0 { "\n" } else { "" };
                    files::show(*json, &files::versioned(STATUS_SCHEMA, &status), || gap.to_owned() + &table(&status))?;
                }
                if !follow || interrupt::interrupted() {
                    break;
                }
                // If many wait for a change, some are answered at once.
                let is_same = std::mem::replace(&mut last, number) == number;
                std::thread::sleep(if is_same { AGAIN } else { Duration::ZERO });
            }
        }
    }
    Ok(Verdict::Holds)
}

/// Returns the state of the server as a table.
pub fn table(status: &Status) -> String {
    let mut text = String::new();
    for class in &status.classes {
        let own = if class.exclusive { "its own" } else { "shared" };
        text += &format!(
            "{}: colors {} of {} at level {}, {own}\n",
            class.class, class.colors, status.colors, status.level
        );
        if let Some(memory) = class.crowded() {
            text += &format!(
                "  its members have {memory}, and {} of this machine's memory has these colors\n",
                class.memory
            );
        }
        for member in &class.members {
            let percent = 100.0 * member.on_color as f64 / (member.on_color + member.off_color).max(1) as f64;
            let state = match (&member.trouble, member.seconds_to_colors) {
                (Some(trouble), _) => format!("not moved: {}", printable::line(trouble)),
                (None, None) => "on its way".to_owned(),
                (None, Some(seconds)) => format!("there after {seconds:.2} s"),
            };
            let pause = member.pause_ns_max as f64 / 1e6;
            let immovable: usize = member.immovable.values().sum();
            let why: Vec<String> =
                member.immovable.iter().map(|(why, pages)| format!("{pages} {}", printable::line(why))).collect();
            let why = if why.is_empty() { String::new() } else { format!(" ({})", why.join(", ")) };
            text += &format!(
                "  {:>8} {:<16} {percent:>5.1} % of {} pages on color\n{}{immovable} cannot be moved{why}, pauses up to {pause:.1} ms, {state}\n",
                member.pid,
                printable::line(&member.name),
                member.on_color + member.off_color,
                " ".repeat(11),
            );
        }
    }
    text += &format!("{} processes are left alone\n", status.left_alone);
    if status.reserve_pages > 0 {
        let (pages, known) = (status.reserve_pages, status.reserve_known);
        text += &format!("reserve of {pages} frames, {known} of known color\n");
    }
    if let Some(Unmanaged { kernel, files, shared, programs }) = status.unmanaged() {
        text += &format!(
            "memory that no class manages: kernel {kernel}, files {files}, shared memory {shared}, other programs {programs}\n"
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use isochrome_host::server::{ClassStatus, MemberStatus};
    use isochrome_model::layout;

    use super::*;

    #[test]
    fn a_member_with_escape_sequences_in_its_name_stays_text_in_its_row() {
        let hostile = "\u{1b}[2J\u{9b}m\n9 root\u{202e}\0";
        let member = MemberStatus {
            name: hostile.to_owned(),
            immovable: [(hostile.to_owned(), 1)].into(),
            trouble: Some(hostile.to_owned()),
            ..MemberStatus::default()
        };
        let class = ClassStatus { class: "control".to_owned(), members: vec![member], ..ClassStatus::default() };
        let text = table(&Status { classes: vec![class], ..Status::default() });
        assert!(text.chars().all(|c| printable::is_printable(c) || c == '\n'), "{text:?}");
        assert_eq!(text.matches("9 root").count(), 3);
        assert!(text.lines().all(|line| !line.starts_with("9 root")), "{text}");
    }

    #[test]
    fn a_member_with_much_to_say_fits_80_columns() {
        let member = MemberStatus {
            pid: 4_194_303,
            name: "a-name-of-15-ch".to_owned(),
            on_color: 123_456_789,
            immovable: [("shared memory".to_owned(), 12_345), ("locked for a device".to_owned(), 12)].into(),
            ..MemberStatus::default()
        };
        let class = ClassStatus { class: "control".to_owned(), members: vec![member], ..ClassStatus::default() };
        let text = layout::fit(&table(&Status { classes: vec![class], ..Status::default() }), layout::WIDTH);
        assert!(text.lines().all(|line| layout::columns(line) <= layout::WIDTH), "{text}");
        assert!(text.contains("on its way"), "{text}");
    }

    #[test]
    fn annotations_of_a_container_name_a_class_or_a_size() {
        let request = |annotations: &str| {
            let text = format!(
                "{{\"ociVersion\":\"1.0.2\",\"id\":\"c\",\"status\":\"created\",\"pid\":2147483647,\"bundle\":\"/b\",\"annotations\":{annotations}}}"
            );
            request_of(&serde_json::from_str(&text).unwrap())
        };
        assert_eq!(request("{}").unwrap(), None);
        let into = |annotations| request(annotations).unwrap().unwrap().into;
        assert_eq!(into("{\"isochrome.class\":\"control\"}"), Destination::Class("control".to_owned()));
        assert_eq!(into("{\"isochrome.cache\":\"128KiB\",\"other\":\"x\"}"), Destination::Cache(Bytes(128 << 10)));
        assert!(request("{\"isochrome.cache\":\"much\"}").is_err());
        assert!(request("{\"isochrome.cache\":\"1M\",\"isochrome.class\":\"control\"}").is_err());
    }
}
