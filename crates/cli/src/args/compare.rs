//! Options of `compare`.

use isochrome_lab::compare::Statistic;
use isochrome_lab::compare::measure::{Quantity, Target};

use super::*;

/// Options of `compare`.
#[derive(Debug, Args)]
pub struct CompareOptions {
    /// Program to measure: the number of its process, or a command line to start
    #[arg(long, value_name = "PID|CMD")]
    pub victim: String,
    /// Program beside it: the number of its process, or a command line to start
    #[arg(long, value_name = "PID|CMD")]
    pub neighbor: Option<String>,
    /// Colors of the victim where the programs are apart: how many, such as 4, or which, such as 0-3 [default: half of them]
    #[arg(long, value_name = "N|LIST")]
    pub colors: Option<String>,
    /// Colors of the neighbor where the programs are apart: rest, or a list
    #[arg(long, value_name = "LIST", default_value = "rest")]
    pub neighbor_colors: String,
    /// What to measure: wakeups or wakeups:execution (response or execution time per wake-up, in µs), lines:REGEX (numbers that the victim
    /// prints), command:CMD (a load generator, run once per window), socket:ping|echo|connect|http:ADDRESS (a built-in prober),
    /// uprobe:FILE:FUNCTION (time from call to return), marks (jobs that the victim marks by isochrome.h), counter:EVENT (events per
    /// second, such as page-faults), throughput:WHAT (how many of these per second)
    #[arg(long, value_name = "WHAT")]
    pub measure: Measured,
    /// Pattern of the number that a load generator prints; redis-benchmark, pgbench, ab and wrk need none
    #[arg(long, value_name = "REGEX")]
    pub number: Option<String>,
    /// Statistic that sums up a window in one number
    #[arg(long, value_parser = statistic(), default_value = "median")]
    pub statistic: Statistic,
    /// Count larger numbers as better, as for a throughput
    #[arg(long)]
    pub larger_is_better: bool,
    /// Pattern of the numbers by which the neighbor prints its progress
    #[arg(long, value_name = "REGEX", requires = "neighbor")]
    pub neighbor_lines: Option<String>,
    /// Largest number of windows, which come in blocks of four: two spread and two apart
    #[arg(long, value_name = "N", default_value_t = 40, value_parser = clap::value_parser!(u64).range(8..=4000))]
    pub windows: u64,
    /// Length of a window; a window with a load generator lasts until the generator ends
    #[arg(long, value_name = "TIME", default_value = "1s")]
    pub window: Ns,
    /// Time after each move that is not measured
    #[arg(long, value_name = "TIME", default_value = "200ms")]
    pub settle: Ns,
    /// Number of windows before anything is moved
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u64).range(0..=1000))]
    pub found: u64,
    /// Number of times that the programs are started anew for one window as found and for one apart, if both are given as command lines
    /// [default: 8]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(0..=1000))]
    pub restarts: Option<u64>,
    /// Time that programs that are started here run before anything is measured
    #[arg(long, value_name = "TIME", default_value = "1s")]
    pub warm_up: Ns,
    /// Begin no further window after this time
    #[arg(long = "for", value_name = "TIME")]
    pub limit: Option<Ns>,
    /// Effect, in percent, below which it would not matter: the experiment stops when a larger one is ruled out
    #[arg(long, value_name = "PERCENT", default_value_t = 3.0)]
    pub margin: f64,
    /// Measure the victim with 1, 2, 4, 8, 12 and 16 colors of its own, as far as there are so many, and say how many are worth giving
    // Hidden: few colors are too often not reached by all pages of a program here, and such numbers are left out.
    #[arg(long, hide = true, conflicts_with_all = ["colors", "neighbor_colors", "restarts"])]
    pub curve: bool,
    /// Measure all windows, even when the answer is known
    #[arg(long)]
    pub all_windows: bool,
    /// Measure even where nothing can be won
    #[arg(long)]
    pub anyway: bool,
    /// Number of requests per second of the built-in prober
    #[arg(long, value_name = "RATE", default_value_t = 1000.0)]
    pub rate: f64,
    /// Cache level [default: of those beyond level 1 with several colors the outermost private one, else the innermost]
    #[arg(long, value_name = "N")]
    pub level: Option<u8>,
    /// Stop the programs for at most this long at a time while pages are moved [default: 15ms]
    #[arg(long, value_name = "TIME")]
    pub max_pause: Option<Ns>,
    /// Move pages even if they cannot be distinguished from pinned memory or memory of asynchronous I/O
    #[arg(long)]
    pub force: bool,
    /// Sources of the colors of frames.
    #[command(flatten)]
    pub frames: Frames,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Write evidence, a report and all windows to this folder
    #[arg(short, long, value_name = "DIR")]
    pub output: Option<PathBuf>,
}

impl CompareOptions {
    /// Returns options that choose the colors of both programs.
    pub fn chosen(&self) -> ChosenColors {
        ChosenColors {
            colors: Some("all".to_owned()),
            spread: true,
            frames: self.frames.clone(),
            level: self.level,
            max_pause: self.max_pause,
            force: self.force,
            ..ChosenColors::default()
        }
    }
}

/// Quantity that is measured of the victim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Measured {
    /// Time per wake-up.
    Wakeups(Quantity),
    /// Numbers that the victim prints, by a pattern.
    Lines(String),
    /// Number that a load generator prints, by the generator's command line.
    Command(String),
    /// Response time of a server on this machine, by its address.
    Socket(Target),
    /// Duration of the calls of a function, by the file that holds it and its name.
    Calls(PathBuf, String),
    /// Jobs that the victim marks itself.
    Marks,
    /// Events of a counter, by its name.
    Counter(String),
    /// Number of these events per second.
    Throughput(Box<Measured>),
}

impl Measured {
    /// Returns the measured quantity and the statistic of a window. The statistic is `asked`, except for numbers per second.
    pub fn with_statistic(&self, asked: Statistic) -> (&Measured, Statistic) {
        match self {
            Measured::Throughput(of) => (of, Statistic::Throughput),
            Measured::Counter(_) => (self, Statistic::Throughput),
            other => (other, asked),
        }
    }
}

impl std::str::FromStr for Measured {
    type Err = String;

    fn from_str(text: &str) -> Result<Measured, String> {
        match text.split_once(':') {
            None if text == "wakeups" => Ok(Measured::Wakeups(Quantity::Response)),
            Some(("wakeups", "response")) => Ok(Measured::Wakeups(Quantity::Response)),
            Some(("wakeups", "execution")) => Ok(Measured::Wakeups(Quantity::Execution)),
            Some(("lines", pattern)) if !pattern.is_empty() => Ok(Measured::Lines(pattern.to_owned())),
            Some(("command", command)) if !command.trim().is_empty() => {
                Ok(Measured::Command(command.trim().to_owned()))
            }
            Some(("socket", target)) => target.parse().map(Measured::Socket),
            Some(("uprobe", function)) => match function.rsplit_once(':') {
                Some((file, name)) if !file.is_empty() && !name.is_empty() => {
                    Ok(Measured::Calls(file.into(), name.to_owned()))
                }
                _ => Err("write uprobe:FILE:FUNCTION, such as uprobe:/usr/sbin/nginx:ngx_http_process_request".to_owned()),
            },
            None if text == "marks" => Ok(Measured::Marks),
            Some(("counter", event)) if !event.is_empty() => Ok(Measured::Counter(event.to_owned())),
            Some(("throughput", of)) => match of.parse()? {
                Measured::Counter(_) | Measured::Throughput(_) => Err("this measure is a number per second already".to_owned()),
                of => Ok(Measured::Throughput(Box::new(of))),
            },
            _ => Err(
                "write wakeups, lines:REGEX, command:CMD, socket:ping:127.0.0.1:6379, uprobe:FILE:FUNCTION, marks, counter:EVENT or throughput: before one of them"
                    .to_owned(),
            ),
        }
    }
}

fn statistic() -> impl TypedValueParser<Value = Statistic> {
    one_of(&[
        ("median", "The median of all values"),
        ("p99", "The value that 1 % exceed; takes 100 values in a window"),
        ("p99.9", "The value that one in a thousand exceeds; takes 1000 values in a window"),
        ("mean", "The mean of all values"),
        ("throughput", "Values per second, or the rate that the load generator reports"),
    ])
}
