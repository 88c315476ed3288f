//! `isochrome lab paper`: plays the figures of the papers on modeled machines, or measures them on this one.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use isochrome_host::interrupt;
use isochrome_host::machine::sysfs::Sysfs;
use isochrome_lab::read_evidence;
use isochrome_model::evidence::{Evidence, SCHEMA as EVIDENCE, SCHEMA_1 as EVIDENCE_1};
use isochrome_model::layout;
use isochrome_model::papers::{Left, Paper, PaperFigure, SCHEMA};
use isochrome_report::papers::Entry;
use isochrome_report::{figure, text};
use serde_json::Value;

use crate::args::{Arguments, PaperOptions, Verb};
use crate::progress::{self, Takes};
use crate::verdict::Verdict;
use crate::{evidence, files};

/// Carries out `lab paper`. `carry_out` carries out the verbs that measure.
pub fn run(options: &PaperOptions, carry_out: fn(Verb) -> Result<Verdict>) -> Result<Verdict> {
    if options.list || options.names.is_empty() {
        files::print(&listed())?;
        return Ok(Verdict::Holds);
    }
    // A misspelled name is refused before anything is played.
    let papers = options.names.iter().map(|name| Paper::find(name)).collect::<Result<Vec<_>, _>>()?;
    options.output.as_deref().map_or(Ok(()), files::make_folder)?;
    let mut verdict = Verdict::Holds;
    for (number, (paper, figure)) in figures(&papers).enumerate() {
        match &options.output {
            Some(folder) if options.measured => verdict = measure(paper, figure, folder, carry_out)?,
            _ => play(options, paper, figure, number)?,
        }
        if interrupt::interrupted() {
            break;
        }
    }
    Ok(verdict)
}

fn figures(papers: &[Paper]) -> impl Iterator<Item = (&Paper, &PaperFigure)> {
    papers.iter().flat_map(|paper| paper.figures.iter().map(move |figure| (paper, figure)))
}

/// Returns a line for each figure: its name, what it shows, and whether a command measures it.
fn listed() -> String {
    let mut list = String::new();
    for (paper, figure) in figures(&Paper::all()) {
        let measured = if figure.measured.is_empty() { "" } else { "  (--measured)" };
        let line = format!("{:26} {}{measured}", figure.full_name(paper), figure.title);
        let _ = writeln!(list, "{}", layout::wrap(&line, files::width(), 27));
    }
    list
}

/// Plays a figure, prints it, and leaves it in the folder that `options` name.
fn play(options: &PaperOptions, paper: &Paper, figure: &PaperFigure, number: usize) -> Result<()> {
    let bar =
        progress::step(format!("playing {}", figure.full_name(paper)), Takes::Words("seconds, up to a minute"), "");
    let played = figure.play(paper)?;
    bar.finish_and_clear();
    let compared = figure.compare(paper, &played)?;
    let numbers = figure.numbers_of(paper, &played, &compared);
    let section = figure.section(paper, &played, &compared);
    let entry = Entry { paper, figure, compared, section, hardware: None };
    if let Some(folder) = &options.output {
        let file = |ending: &str| folder.join(format!("{}.{ending}", entry.file_name()));
        files::write(&file("svg"), &entry.svg())?;
        files::write(&file("csv"), &played.csv())?;
        files::write_json(&file("json"), &files::versioned(SCHEMA, &numbers))?;
    }
    files::show(options.json, &files::versioned(SCHEMA, &numbers), || {
        let gap = if number > 0 { "\n" } else { "" };
        format!(
            "{gap}{} ([{}], {})\n\n{}",
            entry.section.title,
            paper.cited,
            figure.place,
            text::section(&entry.section, files::width())
        )
    })
}

/// Runs the commands that measure a figure, and draws the evidence that they leave in `folder`. Returns the verdict of the last one.
fn measure(
    paper: &Paper,
    figure: &PaperFigure,
    folder: &Path,
    carry_out: fn(Verb) -> Result<Verdict>,
) -> Result<Verdict> {
    let name = figure.full_name(paper);
    let reason = figure.unmeasured.as_deref();
    ensure!(
        !figure.measured.is_empty(),
        "{name} cannot be measured: {}\n  hint: play it instead, without --measured",
        reason.unwrap_or_default()
    );
    reason.into_iter().for_each(|reason| eprintln!("{name}: {reason}"));
    let begin = folder.join(format!("{}-measured", name.replace('/', "-")));
    let mut verdict = Verdict::Holds;
    let mut all_left = Vec::new();
    for command in &figure.measured {
        let mut left = Vec::new();
        let words: Vec<OsString> = command
            .split(' ')
            .map(|word| {
                let Some(rest) = word.strip_prefix("{file}") else { return OsString::from(word) };
                let mut path = begin.clone().into_os_string();
                path.push(rest);
                left.push((rest.to_owned(), PathBuf::from(path.clone())));
                path
            })
            .collect();
        eprintln!("\n{name}: isochrome {}", words.join(" ".as_ref()).to_string_lossy());
        verdict = carry_out(Arguments::of(std::iter::once("isochrome".into()).chain(words))?.verb)?;
        for (file, path) in left.into_iter().filter(|(file, path)| file.ends_with(".json") && path.exists()) {
            all_left.push(Left { file, json: draw(&name, &path)? });
        }
        if interrupt::interrupted() {
            break;
        }
    }
    conclude(paper, figure, folder, &all_left)?;
    Ok(verdict)
}

/// Draws the figures of the evidence at `path` to a file of the same name, as SVG, and returns the JSON. A file of another kind is only read.
fn draw(name: &str, path: &Path) -> Result<Value> {
    let text = files::read(path)?;
    if files::read_versioned(path, &[EVIDENCE, EVIDENCE_1]).is_ok() {
        let evidence = read_evidence(&text)?;
        files::write(&path.with_extension("svg"), &figure::of_sections(name, &evidence.sections))?;
    }
    Ok(serde_json::from_str(&text)?)
}

/// Prints the conclusions from the files `left` beside the paper's numbers, and writes them as evidence.
fn conclude(paper: &Paper, figure: &PaperFigure, folder: &Path, left: &[Left]) -> Result<()> {
    let section = figure.hardware_section(paper, left);
    files::print(&format!("\n{}\n\n{}", section.title, text::section(&section, files::width())))?;
    let path = folder.join(format!("{}-hardware.json", figure.full_name(paper).replace('/', "-")));
    let evidence = evidence::about(&Sysfs::system().machine()?.0, &[], Vec::new());
    files::write_json(&path, &Evidence { sections: vec![section], ..evidence })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_that_measure_a_figure_are_command_lines_of_isochrome() {
        for (paper, figure) in figures(&Paper::all()) {
            for command in &figure.measured {
                let words = std::iter::once("isochrome").chain(command.split(' ')).map(OsString::from);
                Arguments::of(words).unwrap_or_else(|error| panic!("{}: {error}", figure.full_name(paper)));
            }
        }
    }
}
