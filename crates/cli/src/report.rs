//! `isochrome report`: formats evidence as a report.

use std::path::Path;

use anyhow::{Context as _, Result};
use isochrome_lab::read_evidence;
use isochrome_model::evidence::{SCHEMA, SCHEMA_1};
use isochrome_model::layout::WIDTH;
use isochrome_report::{html, junit, markdown, text::table};

use crate::args::ReportForm;
use crate::files;
use crate::verdict::Verdict;

pub fn run(path: &Path, output: Option<&Path>, form: ReportForm) -> Result<Verdict> {
    let (folder, path) = (path, if path.is_dir() { path.join("evidence.json") } else { path.to_owned() });
    anyhow::ensure!(
        folder == path || path.exists(),
        "{}: holds no evidence.json\n  hint: `isochrome demo -o {0}` writes one, and so does `isochrome run plan.json -o {0}`",
        folder.display()
    );
    let text = files::read_versioned(&path, &[SCHEMA, SCHEMA_1])?;
    let evidence = read_evidence(&text).with_context(|| files::not_whole(&path, SCHEMA))?;
    let width = if output.is_some() { WIDTH } else { files::width() };
    let text = match form {
        ReportForm { text: true, .. } => table(&evidence, width),
        ReportForm { markdown: true, .. } => markdown(&evidence),
        ReportForm { junit: true, .. } => junit(&evidence),
        ReportForm { .. } => html(&evidence),
    };
    output.map_or_else(|| files::print_whole(&text), |path| files::write(path, &text))?;
    Ok(Verdict::Holds)
}
