//! `isochrome report`: evidence made readable.

use anyhow::Result;
use isochrome_model::evidence::{self, Evidence};
use isochrome_model::report::{html, text::table};

use crate::args::ReportOptions;
use crate::{Verdict, files};

pub fn run(options: &ReportOptions) -> Result<Verdict> {
    let evidence: Evidence = files::read_json(&options.evidence, evidence::SCHEMA)?;
    let text = if options.text { table(&evidence) } else { html(&evidence) };
    match &options.output {
        Some(path) => files::write(path, &text)?,
        None => files::print(&text)?,
    }
    Ok(Verdict::Holds)
}
