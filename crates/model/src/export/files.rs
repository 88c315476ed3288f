//! Writes the files of an export.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::json;

use super::ways::{Arrangement, arrange, groups};
use super::{Cache, ExportError, File, Target};
use crate::plan::{CorePlan, Plan, TaskPlan};
use crate::units::format_list;

/// Writes a plan with `partitions` partitions per cache as files for `target`.
///
/// Fails with [`ExportError`] if some part of the plan cannot be exported to `target`.
pub fn write(plan: &Plan, target: Target, cache: &Cache, partitions: u32) -> Result<Vec<File>, ExportError> {
    if !plan.unplaced.is_empty() {
        return Err(ExportError::Unplaced { tasks: plan.unplaced.clone() });
    }
    if plan.placed().next().is_none() {
        return Err(ExportError::Empty);
    }
    for (_, _, task) in plan.placed() {
        if let Some(partition) = task.partitions.iter().find(|partition| **partition >= partitions) {
            return Err(ExportError::Partition { task: task.name.clone(), partition: *partition, count: partitions });
        }
    }
    let ways = || -> Result<Arrangement, ExportError> {
        let rules = cache.ways.as_ref().ok_or(ExportError::NoWays { target })?;
        Ok(arrange(plan, partitions, rules)?)
    };
    let one = |name: &str, text: String| vec![File { name: name.to_owned(), text }];
    Ok(match target {
        Target::Resctrl => one("resctrl.sh", resctrl(plan, cache, &ways()?)),
        Target::Pqos => one("pqos.sh", pqos(plan, cache, &ways()?)),
        Target::Palloc => one("palloc.sh", palloc(plan)),
        Target::Oci => oci(plan, cache, &ways()?),
        Target::Systemd => systemd(plan, cache.ways.is_some().then(ways).transpose()?.as_ref())?,
        Target::Xen => plan.cores.iter().map(xen).collect(),
        Target::Bao => plan.cores.iter().map(bao).collect::<Result<_, _>>()?,
        Target::Jailhouse if cache.level != 3 => return Err(ExportError::Level { target, level: cache.level }),
        Target::Jailhouse => jailhouse(plan, &ways()?),
    })
}

/// Formats partitions as a list of colors.
fn colors(partitions: &[u32]) -> String {
    let mut colors = partitions.to_vec();
    colors.sort_unstable();
    format_list(&colors)
}

/// Replaces all characters of a name that have a meaning in a shell, a file system or a unit file.
fn plain(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-') { c } else { '-' }).collect()
}

/// Puts text into single quotes for a shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// Makes text safe for one line of a comment.
fn comment(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect::<String>().replace("*/", "* /")
}

fn names<'a>(tasks: impl IntoIterator<Item = &'a TaskPlan>) -> String {
    let names: Vec<&str> = tasks.into_iter().map(|task| task.name.as_str()).collect();
    comment(&names.join(", "))
}

/// A class of service, or resctrl group, with its tasks. Classes are numbered from 1 in the order of cores and masks.
struct Class<'a> {
    number: usize,
    core: usize,
    mask: u64,
    tasks: Vec<&'a TaskPlan>,
}

impl Class<'_> {
    fn group(&self) -> String {
        format!("isochrome-{}", self.number)
    }
}

fn classes<'a>(plan: &'a Plan, ways: &Arrangement) -> Vec<Class<'a>> {
    let class = |(at, ((core, mask), tasks)): (usize, ((usize, u64), Vec<usize>))| Class {
        number: at + 1,
        core,
        mask,
        tasks: tasks.into_iter().map(|task| &plan.cores[core].tasks[task]).collect(),
    };
    groups(plan, ways).into_iter().enumerate().map(class).collect()
}

/// Returns the mask of the ways for everything else that runs, for every instance of the cache that the plan uses.
fn others(plan: &Plan, cache: &Cache, ways: &Arrangement) -> BTreeMap<u32, u64> {
    let mut masks = BTreeMap::new();
    for (core, mask) in ways.others.iter().enumerate().take(plan.cores.len()) {
        masks.entry(cache.id(core)).and_modify(|all| *all &= mask).or_insert(*mask);
    }
    masks
}

/// Formats a line of `schemata`.
fn schemata(level: u8, masks: impl IntoIterator<Item = (u32, u64)>) -> String {
    let masks: Vec<String> = masks.into_iter().map(|(id, mask)| format!("{id}={mask:x}")).collect();
    format!("L{level}:{}", masks.join(";"))
}

/// Appends the end of a script that takes `TASK=PID` arguments.
fn assignments(script: &mut String, lines: impl IntoIterator<Item = (String, String)>) {
    script.push_str("\n# Arguments such as NAME=PID put a task that runs where it belongs.\nfor task in \"$@\"; do\n  pid=${task##*=}\n  case \"${task%=*}\" in\n");
    for (name, command) in lines {
        let _ = writeln!(script, "    {}) {command} ;;", quoted(&name));
    }
    script.push_str("    *) echo \"$task: not a task of this plan\" >&2; exit 1 ;;\n  esac\ndone\n");
}

fn resctrl(plan: &Plan, cache: &Cache, ways: &Arrangement) -> String {
    let mut script = "#!/bin/sh
# Cache ways by resctrl. Masks limit what may be loaded where, not what hits: lines loaded before stay until they are evicted.
set -eu
root=${RESCTRL:-/sys/fs/resctrl}
[ -e \"$root/schemata\" ] || mount -t resctrl resctrl \"$root\"
put() {
  printf '%s\\n' \"$2\" > \"$root/$1\" || { echo \"$1: $2: $(cat \"$root/info/last_cmd_status\")\" >&2; exit 1; }
}
# Everything else gives way first.
"
    .to_owned();
    let _ = writeln!(script, "put schemata '{}'", schemata(cache.level, others(plan, cache, ways)));
    let classes = classes(plan, ways);
    for class in &classes {
        let (group, core) = (class.group(), &plan.cores[class.core]);
        let line = schemata(cache.level, [(cache.id(class.core), class.mask)]);
        let _ = writeln!(script, "# CPU {}: {}", core.cpu, names(class.tasks.iter().copied()));
        let _ = writeln!(script, "mkdir -p \"$root/{group}\"\nput {group}/schemata '{line}'");
    }
    let lines = classes.iter().flat_map(|class| {
        class.tasks.iter().map(|task| (task.name.clone(), format!("put {}/tasks \"$pid\"", class.group())))
    });
    assignments(&mut script, lines);
    script
}

fn pqos(plan: &Plan, cache: &Cache, ways: &Arrangement) -> String {
    let kind = if cache.level == 2 { "l2" } else { "llc" };
    let mut script = "#!/bin/sh\n# Cache ways by pqos, through the operating system (-I).\nset -eu\n".to_owned();
    for (id, mask) in others(plan, cache, ways) {
        let _ = writeln!(script, "pqos -I -e '{kind}@{id}:0={mask:#x}'");
    }
    let classes = classes(plan, ways);
    for class in &classes {
        let (id, mask, number) = (cache.id(class.core), class.mask, class.number);
        let _ = writeln!(script, "# CPU {}: {}", plan.cores[class.core].cpu, names(class.tasks.iter().copied()));
        let _ = writeln!(script, "pqos -I -e '{kind}@{id}:{number}={mask:#x}'");
    }
    let lines = classes.iter().flat_map(|class| {
        class.tasks.iter().map(|task| (task.name.clone(), format!("pqos -I -a \"pid:{}=$pid\"", class.number)))
    });
    assignments(&mut script, lines);
    script
}

fn palloc(plan: &Plan) -> String {
    let mut script = "#!/bin/sh
# Page colors by PALLOC's control groups.
set -eu
root=${PALLOC:-/sys/fs/cgroup/palloc}
"
    .to_owned();
    let group = |at: usize| format!("isochrome-{}", at + 1);
    let tasks: Vec<_> = plan.placed().collect();
    for (at, (_, core, task)) in tasks.iter().enumerate() {
        let group = group(at);
        let _ = writeln!(script, "# CPU {}: {}", core.cpu, comment(&task.name));
        let _ = writeln!(
            script,
            "mkdir -p \"$root/{group}\"\nprintf '%s\\n' '{}' > \"$root/{group}/palloc.bins\"",
            colors(&task.partitions)
        );
    }
    let lines = tasks.iter().enumerate().map(|(at, (_, _, task))| {
        (task.name.clone(), format!("printf '%s\\n' \"$pid\" > \"$root/{}/cgroup.procs\"", group(at)))
    });
    assignments(&mut script, lines);
    script
}

fn oci(plan: &Plan, cache: &Cache, ways: &Arrangement) -> Vec<File> {
    let fragments = classes(plan, ways).into_iter().flat_map(|class| {
        let line = schemata(cache.level, [(cache.id(class.core), class.mask)]);
        let group = class.group();
        let fragment = json!({ "linux": { "intelRdt": { "closID": group, "schemata": [line] } } });
        let cpu = plan.cores[class.core].cpu;
        let text = format!("{fragment:#}\n");
        class.tasks.into_iter().map(move |task| File { name: file_name(cpu, task, "json"), text: text.clone() })
    });
    fragments.collect()
}

fn file_name(cpu: u32, task: &TaskPlan, kind: &str) -> String {
    format!("cpu{cpu}-{}.{kind}", plain(&task.name))
}

fn xen(core: &CorePlan) -> File {
    let ranges: Vec<String> = colors(&core.partitions).split(',').map(|range| format!("\"{range}\"")).collect();
    let text = format!(
        "# Guest for the tasks of CPU {cpu}: {tasks}\nvcpus = 1\ncpus = \"{cpu}\"\nllc_colors = [{}]\n",
        ranges.join(", "),
        cpu = core.cpu,
        tasks = names(&core.tasks),
    );
    File { name: format!("cpu{}.cfg", core.cpu), text }
}

fn bao(core: &CorePlan) -> Result<File, ExportError> {
    let bit = |what, number| 1u64.checked_shl(number).ok_or(ExportError::Mask { what, number, bits: u64::BITS });
    let mut mask = 0;
    for color in &core.partitions {
        mask |= bit("color", *color)?;
    }
    let text = format!(
        "/* Virtual machine for the tasks of CPU {}: {} */\n.colors = {mask:#x},\n.platform = {{ .cpu_num = 1 }},\n.cpu_affinity = {:#x},\n",
        core.cpu,
        names(&core.tasks),
        bit("CPU", core.cpu)?,
    );
    Ok(File { name: format!("cpu{}.c", core.cpu), text })
}

fn jailhouse(plan: &Plan, ways: &Arrangement) -> Vec<File> {
    let cell = |(core, masks): (&CorePlan, &Vec<u64>)| {
        let all = masks.iter().fold(0, |all, mask| all | mask);
        let text = format!(
            "/* Cell for the tasks of CPU {}: {} */\n.cache_regions = {{\n\t{{\n\t\t.start = {},\n\t\t.size = {},\n\t\t.type = JAILHOUSE_CACHE_L3,\n\t}},\n}},\n",
            core.cpu,
            names(&core.tasks),
            all.trailing_zeros(),
            all.count_ones(),
        );
        File { name: format!("cpu{}.c", core.cpu), text }
    };
    plan.cores.iter().zip(&ways.tasks).filter(|(core, _)| !core.tasks.is_empty()).map(cell).collect()
}

/// Highest SCHED_FIFO priority that the units request, which leaves higher ones to kernel threads that everything waits
/// for.
const FIFO_HIGHEST: usize = 80;

fn systemd(plan: &Plan, ways: Option<&Arrangement>) -> Result<Vec<File>, ExportError> {
    let programs = plan.programs.iter().flat_map(|programs| &programs.tasks);
    let commands: BTreeMap<&str, &[String]> =
        programs.map(|program| (program.name.as_str(), program.command.as_slice())).collect();
    let group_of: BTreeMap<&str, String> = ways
        .map(|ways| classes(plan, ways))
        .into_iter()
        .flatten()
        .flat_map(|class| class.tasks.iter().map(|task| (task.name.as_str(), class.group())).collect::<Vec<_>>())
        .collect();
    let mut files = Vec::new();
    for core in &plan.cores {
        for (rank, task) in core.tasks.iter().enumerate() {
            let command = commands.get(task.name.as_str()).filter(|command| !command.is_empty());
            let command = command.ok_or_else(|| ExportError::NoCommand { task: task.name.clone() })?;
            let priority = FIFO_HIGHEST.saturating_sub(rank).max(1);
            let words: Vec<String> = command.iter().map(|word| unit_word(word)).collect();
            let start = match group_of.get(task.name.as_str()) {
                // The shell joins the group and becomes the program; `$$` is a dollar sign in a unit.
                Some(group) => format!(
                    "/bin/sh -c 'echo \"$$$$\" > \"$$0\" && exec \"$$@\"' /sys/fs/resctrl/{group}/tasks {}\nCPUAffinity={}\nCPUSchedulingPolicy=fifo\nCPUSchedulingPriority={priority}",
                    words.join(" "),
                    core.cpu,
                ),
                None => format!(
                    "/usr/bin/env isochrome exec --colors {} --cpu {} --fifo {priority} -- {}",
                    colors(&task.partitions),
                    core.cpu,
                    words.join(" "),
                ),
            };
            let text = format!(
                "[Unit]\nDescription={}\n\n[Service]\nExecStart={start}\nLimitMEMLOCK=infinity\nLimitRTPRIO=99\n\n[Install]\nWantedBy=multi-user.target\n",
                comment(&task.name).replace('%', "%%"),
            );
            files.push(File { name: file_name(core.cpu, task, "service"), text });
        }
    }
    Ok(files)
}

/// Quotes a word for `ExecStart=`.
fn unit_word(word: &str) -> String {
    let mut text = String::from('"');
    for c in word.chars() {
        match c {
            '"' | '\\' => text.extend(['\\', c]),
            '$' | '%' => text.extend([c, c]),
            c if c.is_control() => {
                let _ = write!(text, "\\x{:02x}", u32::from(c));
            }
            c => text.push(c),
        }
    }
    text + "\""
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cpu_that_fits_no_mask_is_not_called_a_color() {
        let core = CorePlan { cpu: 64, partitions: vec![0], utilization: 0.1, tasks: Vec::new(), recurrence: None };
        let refused = |core: &CorePlan| bao(core).unwrap_err().to_string();
        assert_eq!(refused(&core), "CPU 64 does not fit a mask of 64 bits");
        assert_eq!(
            refused(&CorePlan { cpu: 0, partitions: vec![64], ..core }),
            "color 64 does not fit a mask of 64 bits"
        );
    }
}
