//! `isochrome report`: evidence made readable.

use anyhow::{Context, Result};
use isochrome_lab::read_evidence;
use isochrome_model::evidence::{SCHEMA, SCHEMA_1};
use isochrome_report::{html, text::table};

use crate::args::ReportOptions;
use crate::{Verdict, files};

pub fn run(options: &ReportOptions) -> Result<Verdict> {
    let folder = options.evidence.is_dir();
    let path = if folder { options.evidence.join("evidence.json") } else { options.evidence.clone() };
    let text = files::read_versioned(&path, &[SCHEMA, SCHEMA_1])?;
    let evidence = read_evidence(&text).with_context(|| files::not_whole(&path))?;
    let text = if options.text { table(&evidence) } else { html(&evidence) };
    match &options.output {
        Some(path) => files::write(path, &text)?,
        None => files::print(&text)?,
    }
    Ok(Verdict::Holds)
}
