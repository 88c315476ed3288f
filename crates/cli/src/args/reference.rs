//! Environment variables, files and exit codes: the parts of the command line that are not options.
//!
//! Manual pages and the reference of the book are made from these tables; see `documents`. A test compares them with the sources: every
//! variable that is read is in them, and no other.

/// One thing that verbs read, write or end with.
pub struct Entry {
    /// Name of a variable, path of a file, or exit code. Words in capitals, such as PID, stand for a value.
    pub name: &'static str,
    /// Verbs that the entry concerns, each with its sub-verbs; empty for all verbs. `!exec` is all but `exec`.
    pub verbs: &'static [&'static str],
    /// Meaning of the entry, in whole sentences. Backticks enclose what is typed.
    pub meaning: &'static str,
}

impl Entry {
    /// Whether the entry concerns the verb with this path, such as `lab filter`.
    pub fn concerns(&self, path: &str) -> bool {
        let verb = path.split(' ').next().unwrap_or_default();
        let is_among = |of: &&str| of.strip_prefix('!').map_or(*of == verb || *of == path, |but| but != verb);
        self.verbs.is_empty() || self.verbs.iter().any(is_among)
    }
}

/// Entries of one kind, under a title.
pub struct Table {
    /// Title of the entries.
    pub title: &'static str,
    /// What the entries have in common, in whole sentences.
    pub about: &'static str,
    /// The entries, in the order in which they are shown.
    pub entries: &'static [Entry],
}

impl Table {
    /// Returns the entries that concern the verb at `path`; all of them for the empty path.
    pub fn of(&self, path: &str) -> impl Iterator<Item = &'static Entry> {
        self.entries.iter().filter(move |entry| path.is_empty() || entry.concerns(path))
    }
}

const fn entry(name: &'static str, verbs: &'static [&'static str], meaning: &'static str) -> Entry {
    Entry { name, verbs, meaning }
}

/// Verbs whose exit code is their own, and not that of a program.
const ANSWERING: &[&str] = &["!exec"];
/// Verbs that move programs to colors, or say on which colors programs are.
const COLORED: &[&str] =
    &["exec", "recolor", "map", "ps", "serve", "policy", "compare", "profile", "run", "lab interference", "demo"];
/// Verbs that move pages of other programs.
const MOVERS: &[&str] = &["exec", "recolor", "serve", "compare", "profile", "run", "lab interference", "demo"];
/// Verbs that run the programs of a task set.
const RUNNERS: &[&str] = &["run", "profile", "demo"];
/// Verbs that look at single switches of the scheduler.
const WATCHERS: &[&str] = &["watch", "run", "profile", "demo", "serve", "compare", "doctor"];

/// Environment variables that are read.
pub const ENVIRONMENT: &[Table] = &[
    Table {
        title: "Settings",
        about: "Variables for users. One that is empty counts as not set.",
        entries: &[
            entry(
                "ISOCHROME_RUNTIME_DIR",
                &[],
                "Folder for files that last until the next boot. Without it: `/run/isochrome` for root; for others \
                 `$XDG_RUNTIME_DIR/isochrome`, or `/dev/shm/isochrome-UID` where a session has made no folder for this user alone. A user \
                 who sets it does not see root's knowledge of the machine.",
            ),
            entry(
                "XDG_RUNTIME_DIR",
                &[],
                "Folder of the session, in which users other than root have their runtime folder.",
            ),
            entry(
                "PATH",
                &["exec", "run", "profile", "trace", "compare", "lab", "map", "watch"],
                "Folders that are searched for programs that are named without a slash.",
            ),
            entry(
                "ISOCHROME_RESCTRL",
                &["run", "profile", "export", "lab interference", "demo"],
                "Folder where resctrl is mounted, instead of `/sys/fs/resctrl`.",
            ),
            entry(
                "ISOCHROME_CGROUP",
                RUNNERS,
                "Folder where control groups of version 2 are mounted, instead of their first mount in `/proc/self/mounts`.",
            ),
        ],
    },
    Table {
        title: "From a service manager",
        about: "Set by systemd for services; see sd_notify(3), sd_watchdog_enabled(3) and sd_listen_fds(3).",
        entries: &[
            entry(
                "NOTIFY_SOCKET",
                &["exec", "serve"],
                "Socket of the service manager. `serve` reports there when it is ready, reloads and ends. `exec` gives its program a socket \
                 of its own and passes on the program's messages; `READY=1` is passed on once the program is on its colors.",
            ),
            entry(
                "WATCHDOG_USEC",
                &["serve"],
                "Time in microseconds within which the service manager expects a sign of life. `serve` gives one after half of it.",
            ),
            entry(
                "WATCHDOG_PID",
                &["exec"],
                "If it is the number of isochrome's own process, the program gets its own number instead.",
            ),
            entry(
                "LISTEN_PID",
                &["exec"],
                "If it is the number of isochrome's own process, the program gets its own number instead, so that sockets are passed on.",
            ),
        ],
    },
    Table {
        title: "For programs that are run",
        about: "Between isochrome and programs: those that it starts, and those that use its C library.",
        entries: &[
            entry(
                "ISOCHROME_RUN",
                RUNNERS,
                "Identifies the programs of a run, so that they are found and ended if isochrome was killed. Not to be set by hand.",
            ),
            entry(
                "ISOCHROME_MARKS",
                &["run", "profile", "compare"],
                "Descriptor of the memory in which a program marks where its jobs begin and end; read by `isochrome_job_begin` and `isochrome_job_end` of the C library.",
            ),
            entry(
                "ISOCHROME",
                &["recolor"],
                "Path of the isochrome command, for programs that use the C library and call `isochrome_recolor_me`. Without it the command is looked for in `PATH`.",
            ),
        ],
    },
    Table {
        title: "For tests",
        about: "They hide features of the machine, so that tests cover machines without them.",
        entries: &[
            entry(
                "ISOCHROME_WITHOUT_BPF",
                WATCHERS,
                "If it is set, no program is loaded into the kernel: switches come from performance events and tracefs.",
            ),
            entry(
                "ISOCHROME_WITHOUT_MOVE",
                MOVERS,
                "If it is set, pages are moved as on a kernel without UFFDIO_MOVE (before Linux 6.8).",
            ),
        ],
    },
    Table {
        title: "Read by libraries",
        about: "Variables with their usual meaning.",
        entries: &[
            entry(
                "NO_COLOR",
                &[],
                "If it is not empty, text has no colors. `CLICOLOR=0` and `TERM=dumb` have the same effect; `CLICOLOR_FORCE=1` keeps colors \
                 where the output is not a terminal.",
            ),
            entry("COLUMNS", &[], "Width of help where the output is not a terminal, in characters."),
            entry("TMPDIR", &["trace"], "Folder for temporary files, instead of `/tmp`."),
            entry(
                "RAYON_NUM_THREADS",
                &["plan", "simulate"],
                "Number of threads that compute, instead of one for each CPU.",
            ),
        ],
    },
];

/// Files that are read, written or changed. Files that are named on the command line are described with their option.
pub const FILES: &[Table] = &[
    Table {
        title: "Configuration",
        about: "isochrome reads no file of settings. All settings are on the command line, except for the policy of the memory server.",
        entries: &[
            entry("/etc/isochrome/policy.toml", &["serve", "policy"], "The policy, unless another file is named."),
            entry("/etc/passwd", &["serve", "policy"], "Names of users in the policy."),
        ],
    },
    Table {
        title: "The runtime folder",
        about: "Holds facts about the machine, the owners of colors, and journals with which the next command undoes the changes of a \
        killed one. It is trusted only if nobody but its user and root can write to it. It lies in memory, so that a boot removes it. Users \
        other than root have one of their own: see ISOCHROME_RUNTIME_DIR.",
        entries: &[
            entry(
                "/run/isochrome/palette-lN",
                &["palette", "exec", "recolor", "map", "ps", "serve", "compare", "profile", "run", "lab", "demo"],
                "Colors of all frames at cache level N, as `isochrome palette --save` wrote them. Beside it lies a lock, `palette-lN.lock`.",
            ),
            entry(
                "/run/isochrome/reference-lN",
                COLORED,
                "Pages of known color at cache level N, with which the colors of other pages are tested. The pages themselves lie in `reference-lN.PID-NUMBER.pages` beside it, which no process but isochrome maps, or in /dev/shm.",
            ),
            entry(
                "/run/isochrome/ledger.json",
                COLORED,
                "The ledger: which process has which colors to itself, or shares them with which group.",
            ),
            entry(
                "/run/isochrome/recolor-PID.json",
                MOVERS,
                "Journal of pages being moved: the state to restore in the process PID if isochrome is killed. `isochrome recolor PID \
                 --repair` restores it.",
            ),
            entry(
                "/run/isochrome/colors-PID.json",
                MOVERS,
                "Colors measured in the process PID, handed over to the next command that works on it.",
            ),
            entry(
                "/run/isochrome/claims",
                MOVERS,
                "Locks by which a command that looks after a process gives way to another one.",
            ),
            entry(
                "/run/isochrome/run-PID.json",
                &[],
                "Journal of a run: affinities of other threads and partitions of CPUs, as they were before. The next command of any kind restores them if the run was killed.",
            ),
            entry(
                "/run/isochrome/resctrl.json",
                &[],
                "Journal of the cache ways that were given to groups. The next command of any kind takes them back if the run was killed.",
            ),
            entry(
                "/run/isochrome/requests.json",
                &["serve"],
                "Processes and control groups that were put into classes by request, for a server that is started again.",
            ),
            entry(
                "/run/isochrome/serve.sock",
                &["serve", "policy", "exec"],
                "Socket of the memory server. Everybody may ask; the policy says who may join what.",
            ),
            entry(
                "/run/isochrome/*.lock",
                &[],
                "Locks: one for the ledger, one for each palette, one for moving pages, one for the server.",
            ),
            entry(
                "/dev/shm/isochrome-UID",
                &[],
                "Pages of known color where the runtime folder is not in memory; for users other than root without a session, their runtime folder. `isochrome-0` is root's.",
            ),
        ],
    },
    Table {
        title: "Results",
        about: "Written into the folder that `-o` names.",
        entries: &[
            entry("DIR/index.html", &["run", "demo", "compare"], "The report: one file, to be read without a network."),
            entry(
                "DIR/evidence.json",
                &["run", "demo", "compare", "report"],
                "The evidence: everything that the report says, from which `isochrome report` makes it again.",
            ),
            entry(
                "DIR/*.csv",
                &["run", "demo", "compare"],
                "Every sample: jobs, blocks or windows. The evidence has their check sums.",
            ),
        ],
    },
    Table {
        title: "Interfaces of the kernel",
        about: "Changes of a run are undone at its end, or by the next command of any kind if the run was killed.",
        entries: &[
            entry(
                "/proc/self/pagemap, /proc/PID/pagemap",
                &[
                    "palette", "exec", "recolor", "map", "ps", "serve", "compare", "profile", "run", "lab", "demo",
                    "doctor",
                ],
                "Read: frames of pages. Numbers of frames take CAP_SYS_ADMIN; without it colors are measured.",
            ),
            entry(
                "/proc/PID/mem",
                MOVERS,
                "Written, while the process is held still by ptrace(2): the code of the helper that moves pages from inside.",
            ),
            entry(
                "/dev/userfaultfd",
                MOVERS,
                "Opened inside the process whose pages are moved, if the process may not use userfaultfd(2).",
            ),
            entry("/sys/devices/system", &[], "Read: CPUs, caches, governors, isolation, the clock."),
            entry(
                "/sys/class/dmi, /sys/hypervisor, /sys/firmware/devicetree",
                &[],
                "Read: which machine this is, and whether it is a virtual one.",
            ),
            entry(
                "/sys/kernel/mm, /sys/module/page_reporting, /sys/bus/virtio",
                &["doctor", "probe", "serve"],
                "Read: the mechanisms that move, merge or take away pages: huge pages, KSM, balloons.",
            ),
            entry(
                "/sys/fs/resctrl/isochrome-*",
                &["run", "profile", "lab interference", "demo"],
                "Groups of resctrl that are made for the length of a run, with their cache ways.",
            ),
            entry(
                "/sys/fs/cgroup/isochrome-PID-cpuN",
                RUNNERS,
                "Partitions of CPUs (cpuset of cgroup v2) that are made for the length of a run, with `+cpuset` in `cgroup.subtree_control`. Without them other programs are kept off by their affinity.",
            ),
            entry(
                "/sys/fs/cgroup",
                &["exec", "serve", "policy"],
                "Read: limits of memory, so that no more is touched than the control group of a program may have.",
            ),
            entry(
                "/dev/cpu_dma_latency",
                RUNNERS,
                "Held open for the length of a run, so that idle CPUs stay out of states that take long to leave.",
            ),
            entry(
                "/sys/kernel/tracing/instances/isochrome-PID.N",
                WATCHERS,
                "An instance of tracefs for scheduler events, where no program can be loaded into the kernel; also below `/sys/kernel/debug/tracing`.",
            ),
            entry(
                "/sys/kernel/btf/vmlinux",
                WATCHERS,
                "Read: the types of the kernel, for programs that are loaded into it.",
            ),
            entry(
                "/sys/kernel/debug/sched",
                &["run", "doctor"],
                "Read: the fair server, which takes time from real-time tasks since Linux 6.12.",
            ),
            entry(
                "/sys/bus/event_source/devices",
                &["compare"],
                "Read: how to count the calls of a function (uprobe).",
            ),
            entry(
                "/proc/sys/kernel/sched_rt_runtime_us",
                &["run", "doctor", "probe"],
                "Read: how much of a CPU real-time tasks may use.",
            ),
            entry(
                "/proc/pressure/memory, /proc/vmstat, /proc/loadavg",
                &["serve"],
                "Read: whether memory is short, pages have been moved or programs started since the last reading.",
            ),
            entry(
                "/dev/net/tun",
                &["lab"],
                "A network device for `lab net --path tap`, in a network namespace of its own, in which IPv6 is switched off (`/proc/sys/net/ipv6/conf/default/disable_ipv6`).",
            ),
        ],
    },
];

/// Exit codes.
pub const EXITS: &[Table] = &[
    Table {
        title: "All verbs but exec",
        about: "Any other code is a failure of isochrome itself.",
        entries: &[
            entry(
                "0",
                ANSWERING,
                "Success. The request was carried out, and all requirements hold. Help and the version end with 0, and so does a command \
                 whose output was closed by its reader.",
            ),
            entry(
                "1",
                ANSWERING,
                "Error: wrong arguments, a file that cannot be used, or a machine that does not allow the request. The message gives the \
                 reason and a remedy (`hint:`).",
            ),
            entry("2", &["run", "demo"], "Violated: a job exceeded its bound or its deadline."),
            entry("2", &["plan", "analyze"], "Violated: the set is not schedulable."),
            entry(
                "2",
                &["lab"],
                "Violated: a threshold of the experiment is exceeded, for example by a flood that leaves lines (`lab flood --verify`).",
            ),
            entry("2", &["map"], "Violated: the palette is wrong (`map --verify`)."),
            entry("2", &["simulate"], "Violated: the full simulator counts otherwise (`simulate curve --verify`)."),
            entry(
                "3",
                &["analyze", "compare", "demo", "lab", "map", "palette", "plan", "profile", "recolor", "run", "watch"],
                "Inconclusive: no conclusion can be drawn, because the machine was too noisy, a measurement contradicts an assumption of \
                 the bounds, or the command was interrupted. This is an answer, not an error.",
            ),
        ],
    },
    Table {
        title: "exec",
        about: "As with env(1), so that scripts see the exit code of the program.",
        entries: &[
            entry("CODE", &["exec"], "The exit code of the program."),
            entry("128+SIGNAL", &["exec"], "The program was ended by this signal."),
            entry(
                "125",
                &["exec"],
                "isochrome itself failed: wrong arguments, or with `--strict` a program that cannot have its colors.",
            ),
            entry("126", &["exec"], "The program was found and cannot be executed."),
            entry("127", &["exec"], "The program was not found."),
        ],
    },
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::{Path, PathBuf};

    use regex_lite::Regex;

    use super::super::Arguments;
    use super::*;
    use clap::CommandFactory;

    /// Returns every source file below `folder` that is compiled into the tool or the C library, with its code before the tests.
    fn sources(folder: &Path, found: &mut Vec<(PathBuf, String)>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap();
            if path.is_dir() && name != "tests" {
                sources(&path, found);
            } else if name.ends_with(".rs") && !["schemas.rs", "reference.rs", "tests.rs"].contains(&name) {
                let text = fs::read_to_string(&path).unwrap();
                let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap().to_owned();
                found.push((path, code));
            }
        }
    }

    fn all_sources() -> Vec<(PathBuf, String)> {
        let mut found = Vec::new();
        for name in ["model", "report", "host", "lab", "cli", "c"] {
            sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name).join("src"), &mut found);
        }
        assert!(found.len() > 200, "{} files", found.len());
        found
    }

    #[test]
    fn every_variable_that_is_read_is_documented_and_every_documented_one_is_read() {
        let name = Regex::new(r#""([A-Z][A-Z_]{3,})""#).unwrap();
        let mut read = BTreeSet::new();
        for (path, code) in all_sources() {
            if !["env::var(", "env::var_os(", "}/environ"].iter().any(|call| code.contains(call)) {
                continue;
            }
            let names: Vec<String> = name.captures_iter(&code).map(|found| found[1].to_owned()).collect();
            // A word of sd_notify(3), and no variable.
            let names: Vec<String> = names.into_iter().filter(|name| name != "MAINPID").collect();
            assert!(!names.is_empty(), "{}: reads a variable whose name is elsewhere", path.display());
            read.extend(names);
        }
        let ours = ENVIRONMENT.iter().filter(|table| table.title != "Read by libraries");
        let documented: BTreeSet<String> = ours.flat_map(|table| table.entries).map(|it| it.name.to_owned()).collect();
        assert_eq!(read, documented);
    }

    #[test]
    fn every_place_outside_of_proc_that_the_code_names_is_documented() {
        let place = Regex::new(r#""/?((?:etc|run|sys|dev)/[a-z0-9_./-]+)"#).unwrap();
        // What an entry names before the first word that stands for something else.
        let names = FILES.iter().flat_map(|table| table.entries).flat_map(|entry| entry.name.split(", "));
        let fixed: Vec<&str> =
            names.map(|name| name.split(|sign: char| sign.is_uppercase() || sign == '*').next().unwrap()).collect();
        for (path, code) in all_sources() {
            for found in place.captures_iter(&code).map(|found| format!("/{}", &found[1])) {
                // Plans for other systems, a policy that is made, and the devices that every program has.
                let elsewhere = path.components().any(|part| part.as_os_str() == "export")
                    || found == "/dev/null"
                    || found == "/dev/zero";
                let is_documented = fixed.iter().any(|known| found.starts_with(known) || known.starts_with(&found));
                assert!(elsewhere || is_documented, "{}: {found}", path.display());
            }
        }
    }

    #[test]
    fn entries_name_verbs_that_there_are() {
        let command = Arguments::command();
        for entry in [ENVIRONMENT, FILES, EXITS].into_iter().flatten().flat_map(|table| table.entries) {
            for path in entry.verbs.iter().map(|path| path.trim_start_matches('!')) {
                let mut at = &command;
                for word in path.split(' ') {
                    at = at.find_subcommand(word).unwrap_or_else(|| panic!("{}: no verb {path}", entry.name));
                }
            }
            assert!(entry.meaning.ends_with(['.', ')']), "{}: whole sentences", entry.name);
        }
        for verb in command.get_subcommands().filter(|verb| !verb.is_hide_set() && verb.get_name() != "help") {
            assert!(EXITS.iter().any(|table| table.of(verb.get_name()).next().is_some()), "{}", verb.get_name());
        }
    }
}
