//! Reports the progress of long work on standard error: the present step, how far it is, how much longer it may take, and the next step.
//!
//! On a terminal this is one line that is redrawn all the time. Elsewhere it is a line of text, the first after [`FIRST`] and another every
//! [`EVERY`]. Work that ends sooner prints nothing. One thread reports all steps: it reports the innermost step under way.

use std::borrow::Cow;
use std::io::{IsTerminal, Write, stderr};
use std::sync::{Mutex, Once, PoisonError};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressFinish, ProgressStyle, WeakProgressBar};

/// Time from the first step to the first line.
const FIRST: Duration = Duration::from_secs(1);
/// Time between two lines.
const EVERY: Duration = Duration::from_secs(5);
/// Time between two drawings of a line on a terminal.
const TICK: Duration = Duration::from_millis(200);

/// Duration of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Takes {
    /// The duration follows from the remaining parts, by the rate of those that are done.
    ByParts,
    /// The duration is known.
    For(Duration),
    /// The duration has a limit.
    AtMost(Duration),
    /// The duration is described by these words.
    Words(&'static str),
}

/// A step that is reported until its bar is finished or dropped.
struct Told {
    bar: WeakProgressBar,
    takes: Takes,
    /// Whether indicatif draws the step itself if standard error is a terminal.
    is_drawn: bool,
}

/// The steps under way, the innermost last.
static STEPS: Mutex<Vec<Told>> = Mutex::new(Vec::new());

/// Begins a step of `length` equal parts. `next`: what follows it; empty if nothing does.
pub fn parts(what: impl Into<Cow<'static, str>>, length: u64, next: impl Into<Cow<'static, str>>) -> ProgressBar {
    begin(ProgressBar::new(length), "{msg} {wide_bar} {pos}/{len}, {eta} left{prefix}", what, Takes::ByParts, next)
}

/// Begins a step that has no parts to count.
pub fn step(what: impl Into<Cow<'static, str>>, takes: Takes, next: impl Into<Cow<'static, str>>) -> ProgressBar {
    begin(ProgressBar::new_spinner(), "{spinner} {msg}, {elapsed} so far{prefix}", what, takes, next)
}

/// Begins the reading of `bytes` bytes.
pub fn reading(what: impl Into<Cow<'static, str>>, bytes: u64) -> ProgressBar {
    let template = "{msg} {wide_bar} {bytes}/{total_bytes}, {eta} left{prefix}";
    begin(ProgressBar::new(bytes), template, what, Takes::ByParts, "")
}

/// Prints `text` on standard error without disturbing the line about `bar`.
pub fn tell(bar: &ProgressBar, text: &str) {
    bar.suspend(|| eprintln!("{text}"));
}

/// Begins all the work of a verb. Lines report it while no inner step is under way, also on a terminal.
pub fn whole(verb: &'static str) -> ProgressBar {
    let bar = ProgressBar::hidden().with_message(verb);
    register(&bar, Takes::Words("the time is not known"), false);
    bar
}

fn begin(
    bar: ProgressBar,
    template: &str,
    what: impl Into<Cow<'static, str>>,
    takes: Takes,
    next: impl Into<Cow<'static, str>>,
) -> ProgressBar {
    let next = next.into();
    let next = if next.is_empty() { next } else { format!("; next: {next}").into() };
    let what = match &takes {
        Takes::ByParts => what.into(),
        takes => format!("{} ({})", what.into(), limit(takes)).into(),
    };
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    // A step that is dropped, for instance by an error, disappears from the terminal.
    let bar = bar.with_style(style).with_message(what).with_prefix(next).with_finish(ProgressFinish::AndClear);
    if !bar.is_hidden() {
        bar.enable_steady_tick(TICK);
    }
    register(&bar, takes, true);
    bar
}

/// Adds a step. The first step starts the thread that reports all steps. It begins before any measurement pins its thread, so the new thread may run
/// everywhere.
fn register(bar: &ProgressBar, takes: Takes, is_drawn: bool) {
    static TELLER: Once = Once::new();
    let mut steps = STEPS.lock().unwrap_or_else(PoisonError::into_inner);
    steps.retain(|step| step.bar.upgrade().is_some_and(|bar| !bar.is_finished()));
    steps.push(Told { bar: bar.downgrade(), takes, is_drawn });
    TELLER.call_once(|| {
        // Without the thread nothing is told, and nothing else suffers.
        let _ = std::thread::Builder::new().name("progress".to_owned()).spawn(tell_all);
    });
}

/// Reports the innermost step at intervals, forever.
fn tell_all() {
    let on_terminal = stderr().is_terminal();
    let mut wait = FIRST;
    loop {
        std::thread::sleep(wait);
        // There is nothing to say between two verbs.
        wait = FIRST;
        let steps = STEPS.lock().unwrap_or_else(PoisonError::into_inner);
        let under_way = |step: &Told| step.bar.upgrade().filter(|bar| !bar.is_finished());
        let innermost = steps.iter().rev().find_map(|step| Some((under_way(step)?, step.takes.clone(), step.is_drawn)));
        drop(steps);
        let Some((bar, takes, is_drawn)) = innermost else { continue };
        wait = EVERY;
        if on_terminal && is_drawn {
            continue;
        }
        let parts = bar.length().filter(|length| *length > 0).map(|length| (bar.position(), length));
        let parts = parts.filter(|_| takes == Takes::ByParts);
        let line = line(&bar.message(), bar.elapsed(), parts.map(|parts| (parts, bar.eta())), &bar.prefix());
        // Whoever does not read standard error does not want to know.
        let _ = writeln!(stderr(), "{line}");
    }
}

/// Returns the time that a step takes, as far as it is known beforehand.
fn limit(takes: &Takes) -> String {
    match takes {
        Takes::ByParts => String::new(),
        Takes::For(time) => format!("takes {}", seconds(*time)),
        Takes::AtMost(time) => format!("at most {}", seconds(*time)),
        Takes::Words(words) => (*words).to_owned(),
    }
}

/// Returns the line about a step. `parts`: the number of parts done and of all parts, and the time that the remaining parts take.
fn line(what: &str, elapsed: Duration, parts: Option<((u64, u64), Duration)>, next: &str) -> String {
    let mut line = format!("isochrome: {what}");
    if let Some(((done, all), left)) = parts {
        line += &format!(": {} %", 100 * u128::from(done.min(all)) / u128::from(all));
        // The first part is still under way, or the last one is being put away.
        if done > 0 && done < all {
            line += &format!(", about {} left", seconds(left));
        }
    }
    line + &format!(", {} so far{next}", seconds(elapsed))
}

/// Formats a time for people who wait.
fn seconds(time: Duration) -> String {
    let seconds = time.as_secs_f64().round() as u64;
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", (seconds + 30) / 60),
        _ => format!("{} h", (seconds + 1800) / 3600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_what_is_done_how_far_it_is_how_much_longer_it_takes_and_what_follows() {
        let time = Duration::from_secs;
        let half = line("profiling", time(20), Some(((5, 10), time(20))), "; next: isochrome plan");
        assert_eq!(half, "isochrome: profiling: 50 %, about 20 s left, 20 s so far; next: isochrome plan");
        // Before the first part has ended there is no rate, and so no estimate.
        let begun = line("profiling", time(1), Some(((0, 10), time(0))), "");
        assert_eq!(begun, "isochrome: profiling: 0 %, 1 s so far");
        assert_eq!(line("probe", time(7200), None, ""), "isochrome: probe, 2 h so far");
    }

    #[test]
    fn a_step_of_known_length_says_it_from_the_start() {
        let bar = step("supply of CPU 1", Takes::For(Duration::from_secs(5)), "the report");
        assert_eq!(bar.message(), "supply of CPU 1 (takes 5 s)");
        assert_eq!(bar.prefix(), "; next: the report");
        assert_eq!(limit(&Takes::AtMost(Duration::from_secs(150))), "at most 3 min");
    }
}
