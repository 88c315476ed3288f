//! Arguments: the one definition behind parser, help, manual pages and completions. Parsing has no side effects.

mod compare;
mod groups;
mod lab;
mod measure;
mod model;
mod place;
mod plan;
pub mod reference;
mod width;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{ArgMatches, Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use isochrome_model::analysis::Analysis;
use isochrome_model::export::Target;
use isochrome_model::flood::Pattern;
use isochrome_model::miss_ratio::{Locality, Touches};
use isochrome_model::plan::{Method, Objective};
use isochrome_model::replacement::Replacement;
use isochrome_model::taskset::RefillChoice;
use isochrome_model::taskset::programs::Partitioning;
use isochrome_model::units::{Bytes, Ns, ParseError};

pub use compare::*;
pub use groups::*;
pub use lab::*;
pub use measure::*;
pub use model::*;
pub use place::*;
pub use plan::*;

/// The visible verbs as help shows them, grouped by purpose.
pub const GROUPS: [(&str, &[&str]); 6] = [
    ("Place", &["exec", "recolor", "map", "ps", "serve", "policy"]),
    ("Measure", &["doctor", "probe", "palette", "watch", "compare"]),
    ("Plan and run", &["profile", "plan", "analyze", "run", "export", "import", "sweep"]),
    ("Model", &["simulate", "trace"]),
    ("Lab", &["lab"]),
    ("Other", &["demo", "report", "generate"]),
];

/// A verb that is a program of its own, `isochrome-NAME`. Help lists it among the others.
pub struct SeparateVerb {
    pub name: &'static str,
    /// Description of the verb.
    pub about: &'static str,
    /// How to get the program.
    pub hint: &'static str,
}

/// All known verbs that are programs of their own.
pub const SEPARATE: [SeparateVerb; 1] = [SeparateVerb {
    name: "sweep",
    about: "Run an experiment over many random task sets (in Python)",
    hint: "pip install './crates/python[sweep]' in the repository; or install the wheel that `make wheel` builds there",
}];

/// Former verbs, each with the verb that it is now a part of. Old command lines keep working.
const MOVED: [(&str, &str); 4] =
    [("flood", "lab"), ("workload", "lab"), ("man", "generate"), ("completions", "generate")];

/// Returns the template for the help of the whole command. clap has no groups of verbs, so their list is part of the template.
fn help_template() -> String {
    let verbs = Verb::augment_subcommands(clap::Command::new(""));
    let (header, literal) = (verbs.get_styles().get_header(), verbs.get_styles().get_literal());
    let mut list = String::new();
    for (title, names) in GROUPS {
        list += &format!("{header}{title}:{header:#}\n");
        for name in names {
            let own = verbs.find_subcommand(name).and_then(clap::Command::get_about).map(ToString::to_string);
            let separate = SEPARATE.iter().find(|verb| verb.name == *name).map(|verb| verb.about.to_owned());
            let about = own.or(separate).expect("a verb says what it does");
            list += &format!("  {literal}{name:<8}{literal:#}  {about}\n");
        }
        list.push('\n');
    }
    format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{list}{header}Options:{header:#}\n{{options}}{{after-help}}"
    )
}

/// Gives real-time tasks on stock Linux their own part of the cache, and shows what that is worth.
#[derive(Debug, Parser)]
#[command(
    name = "isochrome",
    version,
    propagate_version = true,
    max_term_width = 80,
    help_template = help_template(),
    after_help = "Exit codes: 0 success and all requirements met, 1 error, 2 a bound or threshold was violated, 3 inconclusive.\n\
                  Start with `isochrome doctor`, or see everything at once with `isochrome demo`."
)]
pub struct Arguments {
    /// The verb to carry out.
    #[command(subcommand)]
    pub verb: Verb,
    /// Files that the options have the verb write.
    #[arg(skip)]
    pub outputs: Vec<PathBuf>,
}

/// Options that name a file to write.
const OUTPUTS: [&str; 6] = ["output", "raw", "svg", "gantt", "samples", "csv"];

impl Arguments {
    /// Parses a command line. As with `env` or `nice`, a program needs no `--` before it. Where a verb takes processes or a program, the
    /// first word that is not a number begins the program.
    pub fn of(words: impl IntoIterator<Item = OsString>) -> Result<Arguments, clap::Error> {
        let mut words: Vec<OsString> = words.into_iter().collect();
        // The verb follows `help` in `isochrome help flood`.
        let first = 1 + words.iter().skip(1).take_while(|word| *word == "help").count();
        if let Some((_, parent)) = MOVED.iter().find(|(moved, _)| words.get(first).is_some_and(|word| word == moved)) {
            words.insert(first, parent.into());
        }
        let mut definition = Arguments::command();
        let verb = words.get(1).filter(|verb| *verb == "map" || *verb == "watch");
        if let Some(verb) = verb.and_then(|verb| definition.find_subcommand_mut(verb)) {
            // The options are known only once the verb is built.
            verb.build();
            let takes_value = |word: &str| {
                verb.get_opts().any(|option| match word.strip_prefix("--") {
                    Some(name) => option.get_long() == Some(name),
                    None => word.len() == 2 && word.chars().nth(1) == option.get_short(),
                })
            };
            let mut at = 2;
            while let Some(word) = words.get(at).map(|word| word.to_string_lossy().into_owned()) {
                if word == "--" {
                    break;
                }
                if !word.starts_with('-') && word.parse::<u64>().is_err() {
                    words.insert(at, "--".into());
                    break;
                }
                at += if word.starts_with('-') && takes_value(&word) { 2 } else { 1 };
            }
        }
        let matches = width::fitted(Arguments::command()).try_get_matches_from(words)?;
        let arguments = Arguments::from_arg_matches(&matches).map_err(|error| error.format(&mut definition))?;
        Ok(Arguments { outputs: outputs(&Arguments::command(), &matches), ..arguments })
    }
}

/// Returns the files that the options in `matches` of `command` and of its verb name for results. Folders are not among them.
fn outputs(command: &clap::Command, matches: &ArgMatches) -> Vec<PathBuf> {
    let is_file = |name: &str| {
        let options = command.get_arguments().filter(|option| option.get_id() == name);
        options.filter_map(|option| option.get_value_names()).any(|names| names.iter().any(|name| name == "FILE"))
    };
    let path = |name: &str| matches.try_get_one::<PathBuf>(name).ok().flatten().cloned();
    let mut paths: Vec<PathBuf> = OUTPUTS.into_iter().filter(|name| is_file(name)).filter_map(path).collect();
    if let Some((verb, matches)) = matches.subcommand()
        && let Some(verb) = command.find_subcommand(verb)
    {
        paths.extend(outputs(verb, matches));
    }
    paths
}

/// Verbs of the isochrome command.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Show what this machine allows, and how to allow more
    #[command(
        after_help = "Examples:\n  isochrome doctor\n  isochrome doctor --json | jq '.checks[] | select(.status != \"ok\")'\n  \
                      isochrome doctor --fix --dry-run\n  isochrome doctor --fix\n  isochrome doctor --fix --yes --persistent\n  isochrome doctor --undo\n\
                      --fix sets only what one write takes back, what ends no program, and what gives nobody more\n\
                      rights: how the kernel moves pages, and the number of mappings. --undo leaves alone what\n\
                      somebody else has changed since. Both need root."
    )]
    Doctor(DoctorOptions),
    /// Measure the caches: latencies, refill time, sharing, retention
    #[command(
        after_help = "Examples:\n  isochrome probe\n  isochrome probe --cpu 1 -o machine.json\nWithout --cpu every CPU is probed."
    )]
    Probe(ProbeOptions),
    /// Find the page colors of a cache level
    #[command(after_help = "Examples:\n  isochrome palette\n  isochrome palette --by timing --pages 65536 --json\n  \
                            isochrome palette --verify --again timing\n  isochrome palette -o palette.json --samples samples.json\n  \
                            isochrome palette --replay samples.json\n  isochrome palette --save --memory 4G")]
    Palette(PaletteOptions),
    /// Show the colors, conflicts and expected misses of a program's memory
    #[command(
        after_help = "Examples:\n  isochrome map $(pidof redis-server)\n  isochrome map --verify -o map.svg python3 -c 'x = [0] * 10**7; input()'\n  \
                      isochrome map --watch --json 1234 | jq .total.sum\nThe color of a frame comes from the palette that `isochrome palette --save` has saved."
    )]
    Map(MapOptions),
    /// List who holds which colors, and how much memory lies in them
    #[command(
        after_help = "Examples:\n  isochrome ps\n  isochrome ps --json | jq '.grants[] | select(.memory.drift > 0.005)'\nPrograms that a listed process has started are shown below it. Shared memory is counted, although it is never moved."
    )]
    Ps {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Keep the programs of a policy on the colors of their classes
    #[command(
        after_help = "Examples:\n  isochrome serve --config examples/serve/policy.toml\n  isochrome policy reload\nA policy is read again at SIGHUP or by `isochrome policy reload`; one that cannot be used is refused, and the old one stays in force. Programs run on as they are when the server ends."
    )]
    Serve(ServeOptions),
    /// Check and explain the policy of `serve`
    #[command(
        after_help = "Examples:\n  isochrome policy check examples/serve/policy.toml\n  isochrome policy diff new.toml\n  isochrome policy explain $(pidof redis-server)\n  isochrome policy join control --pid $(pidof filter)\n  isochrome policy status --json | jq '.classes[].members[] | select(.off_color > 0)'"
    )]
    Policy {
        /// The operation to carry out.
        #[command(subcommand)]
        verb: PolicyVerb,
    },
    /// Show in short what own colors are worth here, and write a report
    #[command(
        args_conflicts_with_subcommands = true,
        after_help = "Examples:\n  isochrome demo\n  isochrome demo --full\n  isochrome demo --quick -o /tmp/report\n  isochrome demo --model cortex-a53 --mhz 1200\n  isochrome demo taskset"
    )]
    Demo(DemoOptions),
    /// Count cache events of a program on a modeled machine
    #[command(
        subcommand_negates_reqs = true,
        args_conflicts_with_subcommands = true,
        after_help = "Examples:\n  isochrome simulate --machine zen3 --workload matmul\n  \
                      isochrome simulate --level 32K:8:64:lru:wb:wa --level 512K:8:64:lru:wb:wa --trace prog.din --json\n  \
                      valgrind --tool=lackey --trace-mem=yes ls 2>&1 | isochrome simulate --machine cortex-a72 --trace - --format lackey\n  \
                      isochrome simulate --scenario examples/interference.toml --svg interference.svg\n  \
                      isochrome simulate curve --level 1M:16:64 --workload fft:points=4096 --svg curve.svg\n  \
                      isochrome simulate flood --machine pentium-ii\n  isochrome simulate machines"
    )]
    Simulate(Box<SimulateOptions>),
    /// Record the memory accesses of a program, for `simulate`
    #[command(
        after_help = "Examples:\n  isochrome trace ls -l\n  isochrome trace --by lackey --format din -o ls.din ls -l\n\
                      Needs valgrind, or qemu-user and a C compiler (Debian packages valgrind; qemu-user, gcc, libc6-dev)."
    )]
    Trace(TraceOptions),
    /// Show what tasks do over time, switch by switch
    #[command(
        after_help = "Examples:\n  isochrome watch --cpu 1 --duration 10s\n  isochrome watch $(pidof control) --csv slices.csv\n  \
                      isochrome watch --record run.slices -- ./control --rate 1000\n  isochrome watch --replay run.slices --json\n  \
                      isochrome watch --cpu 0-3 --prometheus 9187\n  isochrome watch -o watch.json --svg watch.svg -- ./control; isochrome report watch.json -o watch.html\n\
                      Without root (or CAP_PERFMON, CAP_DAC_READ_SEARCH, CAP_IPC_LOCK) you can watch only your own processes, by PID or -- CMD, and see only times and switches."
    )]
    Watch(WatchOptions),
    /// Measure what own colors are worth to a program that runs
    #[command(
        after_help = "Examples:\n  isochrome compare --victim $(pidof redis-server) --measure socket:ping:127.0.0.1:6379 --neighbor $(pidof batch)\n  \
                      isochrome compare --victim 'taskset -c 1 ./control' --neighbor 'taskset -c 1 ./batch' --measure wakeups -o report\n  \
                      isochrome compare --victim 4711 --measure 'command:pgbench -R 100 -T 2 bench' --statistic mean\n\
                      Windows with the pages of both programs spread over all colors, and with each on its own, come in random order. Ctrl-C\n\
                      finishes and reports. Exit code 0: an effect, or none above --margin; 3: neither can be told; 1: nothing was measured."
    )]
    Compare(Box<CompareOptions>),
    /// Measure how long tasks execute with each share of the cache
    #[command(after_help = "Examples:\n  isochrome profile examples/robot/taskset.toml -o profile.json\n  \
                      isochrome profile taskset.toml --exceed 1e-4 --margin 10 -o profile.json\n  \
                      isochrome profile taskset.toml --from-trace zen3 --mhz 3500 --trace control=control.iso --trace fft=workload:fft:points=1024\n\
                      An interrupted profile continues where it ended. The next step is: isochrome plan profile.json -o plan.json")]
    Profile(ProfileOptions),
    /// Assign tasks to cores and cache partitions so that deadlines hold
    #[command(
        after_help = "Examples:\n  isochrome plan examples/kim2013-table1.json --cores 4 --memory 1G --copies 4\n  \
                      isochrome plan tasks.toml --objective utilization --time-limit 30s --json -o plan.json\n  \
                      isochrome plan examples/kim2013-table1.json --cores 4 --memory 1G --copies 2 --compare"
    )]
    Plan(PlanOptions),
    /// Compute response-time bounds of tasks for a given allocation
    #[command(after_help = "Examples:\n  isochrome analyze tasks.json --allocation plan.json\n  \
                      isochrome analyze tasks.json --allocation plan.json --analysis combined-multiset --json")]
    Analyze(AnalyzeOptions),
    /// Write a plan as configuration for resctrl, OCI, Xen, Jailhouse, ...
    #[command(
        after_help = "Examples:\n  isochrome export resctrl plan.json --ways 16 | sh -s control=4711\n  isochrome export xen plan.json -o guests\n  \
                      isochrome export oci plan.json --ways 20 --least-ways 2 --cache-id 0"
    )]
    Export(ExportOptions),
    /// Run the programs of a plan, and check every job against its bound
    #[command(after_help = "Examples:\n  isochrome run plan.json -o out --duration 30s\n  \
                      isochrome run plan.json --hyperperiods 100 --on-violation stop\n  isochrome run plan.json -o out --duration 30s --compare none\n  \
                      isochrome run plan.json -o out --junit out/junit.xml\n\
                      Needs root, for real-time priorities, scheduler events and the colors of frames.")]
    Run(RunPlanOptions),
    /// Move the pages of a running program onto chosen colors
    #[command(
        after_help = "Examples:\n  isochrome recolor 4711 --colors 0-3\n  isochrome recolor 4711 --colors 0-3 --dry-run --json\n  \
                      isochrome recolor 4711 --repair\nContents and addresses stay the same. Shared memory is not moved. The program gets no transparent huge pages from then on.\n\
                      If isochrome is killed with SIGKILL, the program may wait, with extra memory mapped, until --repair. If it is killed just as it\n\
                      stops a thread, one system call such as epoll_wait may end with EINTR."
    )]
    Recolor(RecolorOptions),
    /// Run a program on chosen colors, and keep it there
    #[command(after_help = "Examples:\n  isochrome exec --colors 0-3 ./control --rate 1000\n  \
                      isochrome exec --colors auto:4 --cpu 2,3 --fifo 20 --ready line:started ./server\nThe exit status is that of the program.\n\
                      If isochrome is killed with SIGKILL, the program runs on without it. If it is killed while it moves pages, the program\n\
                      waits, unharmed, until `isochrome recolor PID --repair`.")]
    Exec(ExecOptions),
    /// Convert a file of another tool into a task set
    #[command(
        after_help = "Example:\n  isochrome import rt-app workload.json -o taskset.toml\nSettings without a counterpart are listed on standard error."
    )]
    Import {
        /// Tool that the file belongs to
        #[arg(value_parser = [PossibleValue::new("rt-app").help("A workload of rt-app, as JSON")])]
        form: String,
        /// File to convert; `-` for standard input
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// Write the task set to this file instead of standard output
        #[arg(short, long, value_name = "FILE")]
        output: Option<PathBuf>,
    },
    /// Run jobs of a built-in workload, one for every line on standard input
    #[command(hide = true)]
    Job(JobOptions),
    /// Make a report from evidence
    #[command(
        after_help = "Examples:\n  isochrome report report/evidence.json -o report/index.html\n  isochrome report run --text\n  isochrome report run --junit -o junit.xml\n  isochrome report crpd.json --markdown -o crpd.md\n  isochrome report - < evidence.json > r.html"
    )]
    Report {
        /// Evidence file, or the folder that contains it; `-` for standard input
        evidence: PathBuf,
        /// Write the report to this file instead of standard output
        #[arg(short, long, value_name = "FILE")]
        output: Option<PathBuf>,
        #[command(flatten)]
        form: ReportForm,
    },
    /// Run experiments: interference, preemption, switches, packets, floods
    #[command(
        subcommand,
        alias = "bench",
        after_help = "Examples:\n  isochrome lab filter --taps 4096 --json\n  isochrome lab matmul --slice-us 25\n  \
                      isochrome lab dct --colors 0-3\n  isochrome lab combined -o combined.json\n  isochrome lab fft --points 2048 --raw jobs.csv\n  isochrome lab conflicts -o conflicts.json\n  isochrome lab crpd --colors 0-7 -o crpd.json\n  isochrome lab switch\n  \
                      isochrome lab net --svg net.svg"
    )]
    Lab(Experiment),
    /// Write manual pages, the reference of the book, or shell completions
    #[command(
        subcommand,
        after_help = "Examples:\n  isochrome generate man\n  isochrome generate reference docs/reference\n  isochrome generate completions bash"
    )]
    Generate(Generated),
}

/// Documents that are generated from the definition of the arguments.
#[derive(Debug, Subcommand)]
pub enum Generated {
    /// Write the manual pages
    #[command(after_help = "Example:\n  isochrome generate man -o /usr/local/share/man/man1")]
    Man {
        /// Folder to write the pages to
        #[arg(short, long, value_name = "DIR", default_value = "man")]
        output: PathBuf,
    },
    /// Write the reference as Markdown: verbs, environment, files, exit codes
    #[command(after_help = "Example:\n  isochrome generate reference docs/reference")]
    Reference {
        /// Folder to write the pages to
        #[arg(value_name = "DIR")]
        output: PathBuf,
    },
    /// Print a completion script for a shell
    #[command(after_help = "Example:\n  isochrome generate completions bash > /etc/bash_completion.d/isochrome")]
    Completions {
        /// Shell that the script is for
        shell: clap_complete::Shell,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Verb, clap::Error> {
        Arguments::of(line.split(' ').map(OsString::from)).map(|arguments| arguments.verb)
    }

    #[test]
    fn help_shows_every_visible_verb_once_and_on_one_line() {
        let mut shown: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| *names).copied().collect();
        let verbs = Verb::augment_subcommands(clap::Command::new(""));
        let mut visible: Vec<&str> =
            verbs.get_subcommands().filter(|verb| !verb.is_hide_set()).map(clap::Command::get_name).collect();
        assert!(SEPARATE.iter().all(|verb| !visible.contains(&verb.name)), "a verb hides a program of that name");
        visible.extend(SEPARATE.iter().map(|verb| verb.name));
        shown.sort_unstable();
        visible.sort_unstable();
        assert_eq!(shown, visible);
        let help = Arguments::command().render_help().to_string();
        for line in help.lines().filter(|line| line.starts_with("  ")) {
            assert!(line.chars().count() <= 80, "{line}");
        }
    }

    #[test]
    fn former_verbs_are_those_of_their_new_places() {
        for (old, new) in [
            ("bench filter --taps 64 --json", "lab filter --taps 64 --json"),
            ("bench interference --limit 3s", "lab interference --limit 3s"),
            ("flood --verify --looks 3", "lab flood --verify --looks 3"),
            ("workload --miss-ratio 33% --search", "lab workload --miss-ratio 33% --search"),
            ("man -o folder", "generate man -o folder"),
            ("completions fish", "generate completions fish"),
        ] {
            let [old, new] = [old, new].map(|line| format!("{:?}", parsed(&format!("isochrome {line}")).expect(line)));
            assert_eq!(old, new);
        }
        let help = |line| parsed(line).expect_err("help is not a verb").to_string();
        assert_eq!(help("isochrome help flood"), help("isochrome help lab flood"));
    }

    #[test]
    fn an_unknown_verb_suggests_the_nearest() {
        for (line, nearest) in [("isochrome palete", "'palette'"), ("isochrome lab crdp", "'crpd'")] {
            let message = parsed(line).expect_err("there is no such verb").to_string();
            assert!(message.contains("similar") && message.contains(nearest), "{message}");
        }
    }

    #[test]
    fn files_that_are_to_be_written_are_known_before_the_verb_begins() {
        for (line, files) in [
            ("isochrome plan set.json -o plan.json --gantt a.svg", &["plan.json", "a.svg"][..]),
            ("isochrome lab crpd --raw jobs.csv --output crpd.json", &["crpd.json", "jobs.csv"]),
            ("isochrome profile set.toml", &["profile.json"]),
            // A folder is made, and a file to read is there already.
            ("isochrome demo -o folder", &[]),
            ("isochrome palette --replay samples.json", &[]),
        ] {
            let found = Arguments::of(line.split(' ').map(OsString::from)).expect(line).outputs;
            assert_eq!(found, files.iter().map(PathBuf::from).collect::<Vec<_>>(), "{line}");
        }
    }

    #[test]
    fn a_program_needs_no_dashes_and_what_follows_it_is_its_own() {
        Arguments::command().debug_assert();
        for (line, command) in [
            ("isochrome exec --colors 0-3 program -c 1 --colors all", "program -c 1 --colors all"),
            ("isochrome exec --colors 0-3 -- program -c 1", "program -c 1"),
            ("isochrome exec --colors 0-3 -- -program", "-program"),
            ("isochrome exec --colors 0-3 program -- --help", "program -- --help"),
            ("isochrome exec --colors=0-3 -o out program --json", "program --json"),
        ] {
            let Ok(Verb::Exec(options)) = parsed(line) else { panic!("{line}") };
            assert_eq!(options.command.join(" ".as_ref()), command, "{line}");
            assert_eq!(options.colors.colors.as_deref(), Some("0-3"), "{line}");
        }
        for line in ["isochrome exec --colors 0-3", "isochrome exec --colors 0-3 --", "isochrome exec --absent program"]
        {
            assert!(parsed(line).is_err(), "{line}");
        }
        let Ok(Verb::Trace(options)) = parsed("isochrome trace --data-only ls -l") else { panic!("trace") };
        assert_eq!((options.data_only, options.command.join(" ".as_ref())), (true, "ls -l".into()));
    }

    #[test]
    fn a_number_is_a_process_and_anything_else_begins_a_program() {
        for (line, pid, program, json) in [
            ("isochrome map 12 --json", Some(12), "", true),
            ("isochrome map --json 12", Some(12), "", true),
            ("isochrome map sleep 10 --json", None, "sleep 10 --json", false),
            ("isochrome map --json -o map.svg --after 1s sleep 10", None, "sleep 10", true),
            ("isochrome map --json --cpu=1 -- 12 -x", None, "12 -x", true),
        ] {
            let Ok(Verb::Map(options)) = parsed(line) else { panic!("{line}") };
            assert_eq!(
                (options.pid, options.program.join(" "), options.json),
                (pid, program.to_owned(), json),
                "{line}"
            );
        }
        for line in ["isochrome map", "isochrome map 12 sleep 10", "isochrome map 99999999999"] {
            assert!(parsed(line).is_err(), "{line}");
        }
        for (line, pids, program) in [
            ("isochrome watch 1 2 --json", &[1, 2][..], ""),
            ("isochrome watch --duration 1s sleep 10", &[], "sleep 10"),
            ("isochrome watch 1 --json -- sleep 10", &[1], "sleep 10"),
        ] {
            let Ok(Verb::Watch(options)) = parsed(line) else { panic!("{line}") };
            assert_eq!((&options.pids[..], options.program.join(" ")), (pids, program.to_owned()), "{line}");
        }
    }
}
