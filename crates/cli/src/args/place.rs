//! Options of the verbs that find colors and put programs on them.

use super::*;

/// Options of `probe`.
#[derive(Debug, Args)]
pub struct ProbeOptions {
    /// Where to measure.
    #[command(flatten)]
    pub place: Place,
    /// Where the result goes.
    #[command(flatten)]
    pub output: Output,
}

/// Options of `palette`.
#[derive(Debug, Args)]
#[command(mut_arg("output", |output| output.help("Write the palette here, for --palette of other commands")))]
pub struct PaletteOptions {
    /// Where to measure.
    #[command(flatten)]
    pub place: Place,
    /// Pages to classify [default: 8192; with --save all of --memory]
    #[arg(long, value_name = "N")]
    pub pages: Option<usize>,
    /// Save the color of every frame measured, for this boot: later commands find it, and measuring more adds to it
    #[arg(long)]
    pub save: bool,
    /// Put the colors to a test that does not use the eviction sets
    #[arg(long)]
    pub verify: bool,
    /// Find the colors of the same pages again by this method, and compare; repeatable
    #[arg(long, value_enum, value_name = "METHOD")]
    pub again: Vec<By>,
    /// Where the result goes.
    #[command(flatten)]
    pub output: Output,
    /// Write everything that was seen here, to be replayed
    #[arg(long, value_name = "FILE")]
    pub samples: Option<PathBuf>,
    /// Conclude from saved samples instead of measuring; `-` for standard input
    #[arg(long, value_name = "FILE", conflicts_with_all = ["verify", "again", "samples", "save"])]
    pub replay: Option<PathBuf>,
}

/// Options of `map`.
#[derive(Debug, Args)]
pub struct MapOptions {
    /// Process
    #[arg(value_name = "PID", required_unless_present = "program", conflicts_with = "program")]
    pub pid: Option<u32>,
    /// Program to start, with its arguments
    #[arg(value_name = "CMD", last = true)]
    pub program: Vec<String>,
    /// Look at a program that is started after this time
    #[arg(long, value_name = "TIME", default_value = "500ms")]
    pub after: Ns,
    /// Look again and again, until it ends
    #[arg(long)]
    pub watch: bool,
    /// Time between looks
    #[arg(long, value_name = "TIME", default_value = "1s")]
    pub interval: Ns,
    /// Measure colors of fresh memory without the saved palette, and compare
    #[arg(long)]
    pub verify: bool,
    /// CPU to test the palette on [default: the last one allowed]
    #[arg(long, value_name = "CPU")]
    pub cpu: Option<u32>,
    /// Cache level [default: the outermost private one with more than one color]
    #[arg(long, value_name = "N")]
    pub level: Option<u8>,
    /// Limit of the memory used to test the palette [default: 1G]
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<Bytes>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Draw the heat map here, as SVG
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

/// Options of `recolor`.
#[derive(Debug, Args)]
pub struct RecolorOptions {
    /// Number of the process
    #[arg(value_parser = clap::value_parser!(i32).range(1..))]
    pub pid: i32,
    /// Which colors.
    #[command(flatten)]
    pub colors: ChosenColors,
    /// All processes below it as well
    #[arg(long)]
    pub tree: bool,
    /// Say what would be moved and touched, and how long that takes, and touch nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Put right what a recoloring that was killed has left
    #[arg(long, conflicts_with = "dry_run")]
    pub repair: bool,
    /// Where the result goes.
    #[command(flatten)]
    pub output: Output,
}

/// Options of `exec`.
#[derive(Debug, Args)]
pub struct ExecOptions {
    /// Which colors.
    #[command(flatten)]
    pub colors: ChosenColors,
    /// CPUs that the program may run on
    #[arg(long, value_name = "LIST")]
    pub cpu: Option<String>,
    /// Run it as SCHED_FIFO at this priority
    #[arg(long, value_name = "PRIORITY", value_parser = clap::value_parser!(u8).range(1..=99), conflicts_with = "deadline")]
    pub fifo: Option<u8>,
    /// Run it as SCHED_DEADLINE: so much time in every period, such as 2ms:10ms
    #[arg(long, value_name = "RUNTIME:PERIOD")]
    pub deadline: Option<String>,
    /// When it is ready to be moved: settle:TIME (its memory has not grown for so long, or it runs for 2s), sd_notify, line:TEXT (it printed a line that
    /// holds the text; its standard output is then a pipe), signal (it sent SIGUSR1 to its parent)
    #[arg(long, value_name = "WHEN", default_value = "settle:100ms")]
    pub ready: Ready,
    /// Time between two looks at its pages
    #[arg(long, value_name = "TIME", default_value = "1s")]
    pub interval: Ns,
    /// Leave programs that it starts where they are
    #[arg(long)]
    pub no_follow_forks: bool,
    /// Refuse to start a program that cannot be put on its colors now, instead of letting it run where it is
    #[arg(long)]
    pub strict: bool,
    /// Say what would be touched and moved, and how long that takes; start the program, and leave it where it is
    #[arg(long)]
    pub dry_run: bool,
    /// Print what was done as JSON lines on standard error: when the program is on its colors, and at the end
    #[arg(long)]
    pub json: bool,
    /// Write what was done here, as JSON: when the program is on its colors, and again at the end
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// The program and its arguments; options go before it
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM ARGS")]
    pub command: Vec<OsString>,
}

/// When a program is ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ready {
    /// Its resident memory has not grown for this time.
    Settle(Ns),
    /// It has sent READY=1 to the socket in NOTIFY_SOCKET.
    SdNotify,
    /// It has printed a line that holds this.
    Line(String),
    /// It has sent SIGUSR1 to its parent.
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
