//! Two plain programs on one CPU, spread over all colors against apart: the first answer of the demonstration.

use std::ffi::OsString;
use std::fmt::Write;

use anyhow::Result;
use isochrome_lab::compare::{Compared, csv, section};
use isochrome_model::evidence::Section;
use isochrome_model::evidence::format;

use crate::args::{Arguments, DemoOptions, Verb};
use crate::context::Context;
use crate::{compare, files};

/// Memory of the walk, in KiB: a part of every common second level.
const WALK_KIB: u32 = 128;
/// Memory of the writer, in KiB.
const WRITE_KIB: u32 = 2048;
/// Longest bar, in characters.
const BAR: f64 = 40.0;

/// Compares a walk and a writer that know nothing of colors. Returns the section and all windows; `None` where nothing can be won.
pub fn measure(options: &DemoOptions, context: &Context) -> Result<Option<(Section, String)>> {
    let (own, cpu) = (std::env::current_exe()?, context.cpu.0);
    let job = |work: &str| format!("'{}' job --cpu {cpu} {work}", own.display());
    let (windows, window) = if options.quick { ("16", "200ms") } else { ("40", "500ms") };
    eprintln!(
        "two plain programs on CPU {cpu}: one walks over {WALK_KIB} KiB every 2 ms, one writes to {WRITE_KIB} KiB"
    );
    let mut words: Vec<OsString> = vec!["isochrome".into(), "compare".into()];
    let mut option = |name: &str, value: String| words.extend([name.into(), OsString::from(value)]);
    option("--victim", job(&format!("walk {WALK_KIB} --every 2ms")));
    option("--neighbor", job(&format!("write {WRITE_KIB} --every 0s")));
    option("--measure", "lines:took ([0-9.]+) us".to_owned());
    option("--windows", windows.to_owned());
    option("--window", window.to_owned());
    option("--settle", "100ms".to_owned());
    option("--for", "45s".to_owned());
    option("--restarts", "0".to_owned());
    let Verb::Compare(options) = Arguments::of(words)?.verb else { unreachable!("the words are those of compare") };
    let Some(measured) = compare::measured(&options, context)? else { return Ok(None) };
    let measured = Compared { unit: "µs".to_owned(), ..named(measured) };
    let section = section(&measured);
    files::print(&format!("{}\n{}\n", section.headline, bars(&measured)))?;
    Ok(Some((section, csv(&measured))))
}

/// Returns the result with names for people in place of command lines.
fn named(mut measured: Compared) -> Compared {
    measured.victim.name = format!("walk over {WALK_KIB} KiB");
    if let Some(neighbor) = &mut measured.neighbor {
        neighbor.name = format!("writer to {WRITE_KIB} KiB");
    }
    measured
}

/// Draws the distributions in each condition as bars.
fn bars(measured: &Compared) -> String {
    let shares = [(0.1, "10 %"), (0.5, "50 %"), (0.9, "90 %"), (0.99, "99 %")];
    let value = |quantiles: &[(f64, f64)], share: f64| quantiles.iter().find(|it| it.0 == share).map(|it| it.1);
    let most = measured.distributions.iter().filter_map(|it| value(&it.quantiles, 0.99)).fold(0.0, f64::max);
    let mut text = String::new();
    for distribution in &measured.distributions {
        for (number, (share, name)) in shares.into_iter().enumerate() {
            let Some(value) = value(&distribution.quantiles, share) else { continue };
            let condition = if number == 0 { distribution.condition.name() } else { "" };
            let bar = "█".repeat((BAR * value / most).round().max(1.0) as usize);
            let _ = writeln!(text, "  {condition:<9}{name:>5} {bar} {} {}", format::significant(value), measured.unit);
        }
    }
    text
}
