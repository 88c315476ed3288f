//! Options of the verbs that find colors and put programs on them.

use std::net::SocketAddr;

use super::measure::address;
use super::*;

/// Options of `probe`.
#[derive(Debug, Args)]
pub struct ProbeOptions {
    /// The CPU, the cache level and the method.
    #[command(flatten)]
    pub measurement: MeasurementOptions,
    /// Time for which the clock is watched on each CPU, for the supply that the analysis charges; 0s leaves it out
    #[arg(long, value_name = "TIME", default_value = "5s")]
    pub supply_time: Ns,
    /// Destination of the result.
    #[command(flatten)]
    pub output: Output,
}

/// Options of `palette`.
#[derive(Debug, Args)]
#[command(mut_arg("output", |output| output.help("Write the palette to this file, for --palette of other commands")))]
pub struct PaletteOptions {
    /// The CPU, the cache level and the method.
    #[command(flatten)]
    pub measurement: MeasurementOptions,
    /// Number of pages to classify [default: 8192; with --save all pages of --memory]
    #[arg(long, value_name = "N")]
    pub pages: Option<usize>,
    /// Save the color of every measured frame for later commands of this boot; repeated use adds frames
    #[arg(long)]
    pub save: bool,
    /// Verify the colors by a test that does not use the eviction sets
    #[arg(long)]
    pub verify: bool,
    /// Find the colors of the same pages again by this method, and compare the results; repeatable
    #[arg(long, value_enum, value_name = "METHOD")]
    pub again: Vec<By>,
    /// Destination of the result.
    #[command(flatten)]
    pub output: Output,
    /// Write all samples to this file, for --replay
    #[arg(long, value_name = "FILE")]
    pub samples: Option<PathBuf>,
    /// Infer the palette from saved samples instead of measuring; `-` for standard input
    #[arg(long, value_name = "FILE", conflicts_with_all = ["verify", "again", "samples", "save"])]
    pub replay: Option<PathBuf>,
}

/// Options of `map`.
#[derive(Debug, Args)]
pub struct MapOptions {
    /// Process to show
    #[arg(value_name = "PID", required_unless_present = "program", conflicts_with = "program")]
    pub pid: Option<u32>,
    /// Program to start, with its arguments
    #[arg(value_name = "CMD", last = true)]
    pub program: Vec<String>,
    /// Time from the start of the program CMD until its memory is shown
    #[arg(long, value_name = "TIME", default_value = "500ms")]
    pub after: Ns,
    /// Show the map again and again until the process ends
    #[arg(long)]
    pub watch: bool,
    /// Time between two maps with --watch
    #[arg(long, value_name = "TIME", default_value = "1s")]
    pub interval: Ns,
    /// Measure the colors of fresh memory without the saved palette, and compare them with it
    #[arg(long)]
    pub verify: bool,
    /// CPU to test the palette on [default: the last one allowed]
    #[arg(long, value_name = "CPU")]
    pub cpu: Option<u32>,
    /// Cache level [default: of those beyond level 1 with several colors the outermost private one, else the innermost]
    #[arg(long, value_name = "N")]
    pub level: Option<u8>,
    /// Use at most this much memory to test the palette [default: 1G]
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<Bytes>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Draw the heat map to this file, as SVG
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

/// Options of `recolor`.
#[derive(Debug, Args)]
pub struct RecolorOptions {
    /// Process to recolor
    #[arg(value_parser = clap::value_parser!(i32).range(1..))]
    pub pid: i32,
    /// Colors for the process, and options for moving its pages onto them.
    #[command(flatten)]
    pub colors: ChosenColors,
    /// Recolor the descendants of the process as well
    #[arg(long)]
    pub tree: bool,
    /// Report what would be moved and touched, and how long that takes, without doing it
    #[arg(long)]
    pub dry_run: bool,
    /// Undo what a killed recoloring has left in the process
    #[arg(long, conflicts_with = "dry_run")]
    pub repair: bool,
    /// Destination of the result.
    #[command(flatten)]
    pub output: Output,
}

/// Options of `exec`.
#[derive(Debug, Args)]
pub struct ExecOptions {
    /// Colors for the program, and options for moving its pages onto them.
    #[command(flatten)]
    pub colors: ChosenColors,
    /// Have the memory server (`isochrome serve`) put the program into this class of its policy, and keep it there; --colors are then some of the
    /// colors of the class, where 0 is its first one
    #[arg(long, value_name = "NAME", conflicts_with_all = ["exclusive", "group", "spread", "level", "max_pause", "force", "cpu", "fifo", "deadline", "ready", "interval", "no_follow_forks", "strict", "dry_run", "json", "output"])]
    pub class: Option<String>,
    /// CPUs that the program may run on
    #[arg(long, value_name = "LIST")]
    pub cpu: Option<String>,
    /// Run the program under SCHED_FIFO at this priority
    #[arg(long, value_name = "PRIORITY", value_parser = clap::value_parser!(u8).range(1..=99), conflicts_with = "deadline")]
    pub fifo: Option<u8>,
    /// Run the program under SCHED_DEADLINE, with this runtime in every period, such as 2ms:10ms
    #[arg(long, value_name = "RUNTIME:PERIOD")]
    pub deadline: Option<String>,
    /// When the program is ready to be moved: settle:TIME (its memory has not grown for TIME, or it has run for 2s), sd_notify, line:TEXT
    /// (it has printed a line with TEXT; its standard output becomes a pipe), or signal (it has sent SIGUSR1 to its parent)
    #[arg(long, value_name = "WHEN", default_value = "settle:100ms")]
    pub ready: Ready,
    /// Time between two checks of the program's pages
    #[arg(long, value_name = "TIME", default_value = "1s")]
    pub interval: Ns,
    /// Do not move programs that the program starts
    #[arg(long)]
    pub no_follow_forks: bool,
    /// Do not start the program if it cannot get its colors now, instead of running it without them
    #[arg(long)]
    pub strict: bool,
    /// Start the program and report what would be moved and touched, and how long that takes, without doing it
    #[arg(long)]
    pub dry_run: bool,
    /// Print reports as JSON lines on standard error: when the program is on its colors, and at the end
    #[arg(long)]
    pub json: bool,
    /// Write the report to this file, as JSON: when the program is on its colors, and again at the end
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Program to run, with its arguments; options of isochrome come before it
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM ARGS")]
    pub command: Vec<OsString>,
}

/// Condition under which a program is ready to be moved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ready {
    /// The resident memory of the program has not grown for this time.
    Settle(Ns),
    /// The program has sent READY=1 to the socket in NOTIFY_SOCKET.
    SdNotify,
    /// The program has printed a line that contains this text.
    Line(String),
    /// The program has sent SIGUSR1 to its parent.
    Signal,
}

impl std::str::FromStr for Ready {
    type Err = String;

    fn from_str(text: &str) -> Result<Ready, String> {
        match text.split_once(':') {
            Some(("settle", time)) => time.parse().map(Ready::Settle).map_err(|error: ParseError| error.to_string()),
            Some(("line", text)) if !text.is_empty() => Ok(Ready::Line(text.to_owned())),
            None if text == "sd_notify" => Ok(Ready::SdNotify),
            None if text == "signal" => Ok(Ready::Signal),
            _ => Err("write settle:100ms, sd_notify, line:TEXT or signal".to_owned()),
        }
    }
}

/// Options of `serve`.
#[derive(Debug, Args)]
pub struct ServeOptions {
    /// Policy: classes, their part of the cache, and who belongs to them
    #[arg(long, value_name = "FILE", default_value = "/etc/isochrome/policy.toml")]
    pub config: PathBuf,
    /// Sources of the colors of frames.
    #[command(flatten)]
    pub frames: Frames,
    /// Cache level [default: of those beyond level 1 with several colors the outermost private one, else the innermost]
    #[arg(long, value_name = "N")]
    pub level: Option<u8>,
    /// Stop a program for at most this long at a time while pages are moved, unless its class says otherwise [default: 15ms]
    #[arg(long, value_name = "TIME")]
    pub max_pause: Option<Ns>,
    /// Serve metrics for Prometheus at this address, or at this port of the loopback device
    #[arg(long, value_name = "ADDR", value_parser = address)]
    pub metrics: Option<SocketAddr>,
}

/// Operations of `policy`.
#[derive(Debug, Subcommand)]
pub enum PolicyVerb {
    /// Check a policy, and show which colors each class would get here
    Check {
        /// Policy to check
        #[arg(value_name = "FILE", default_value = "/etc/isochrome/policy.toml")]
        file: PathBuf,
        /// Cache level [default: of those beyond level 1 with several colors the outermost private one, else the innermost]
        #[arg(long, value_name = "N")]
        level: Option<u8>,
    },
    /// Show the changes that a policy would make to the one in force
    Diff {
        /// Policy to compare
        #[arg(value_name = "FILE", default_value = "/etc/isochrome/policy.toml")]
        file: PathBuf,
        /// Cache level [default: of those beyond level 1 with several colors the outermost private one, else the innermost]
        #[arg(long, value_name = "N")]
        level: Option<u8>,
    },
    /// Show to which class a process belongs, and why
    Explain {
        /// Number of the process
        pid: i32,
    },
    /// Have the memory server put a process into a class; root may do this for all processes, other users for their own in classes that name them as
    /// clients
    Join {
        /// Class of the policy
        #[arg(required_unless_present_any = ["oci", "cache"])]
        class: Option<String>,
        /// Number of the process
        #[arg(long, value_name = "PID", required_unless_present = "oci", value_parser = clap::value_parser!(i32).range(1..))]
        pid: Option<i32>,
        /// Put all processes of its control group into the class, including later ones
        #[arg(long)]
        cgroup: bool,
        /// Only some colors of the class, such as 0-1, where 0 is its first one
        #[arg(long, value_name = "LIST", requires = "class")]
        colors: Option<String>,
        /// Create a class with this much of the cache, which lasts as long as the control group has processes
        #[arg(long, value_name = "SIZE", conflicts_with = "class")]
        cache: Option<Bytes>,
        /// As a hook of an OCI runtime: read the container's state from standard input, and follow its annotations isochrome.class and
        /// isochrome.cache; the container is started in any case, unless --strict is given
        #[arg(long, conflicts_with_all = ["class", "pid", "cgroup", "cache"])]
        oci: bool,
        /// Fail if a container with an annotation cannot be put into its class
        #[arg(long, requires = "oci")]
        strict: bool,
    },
    /// Have the server read its policy again, and wait until the new one is in force
    ///
    /// A policy that cannot be used is refused with the reason, and the old one stays in force (exit code 1). Root and the server's own user may do this.
    Reload,
    /// Show the classes in force, with their members and the placement of the members' pages
    Status {
        /// Print JSON
        #[arg(long)]
        json: bool,
        /// Print the state again whenever it has changed, until a signal comes or the server ends
        #[arg(long)]
        follow: bool,
    },
}
