//! `isochrome report`: evidence made readable.

use anyhow::Result;
use isochrome_model::evidence::{self, Evidence};
use isochrome_model::report::{html, text::table};

use crate::args::ReportOptions;
use crate::{Verdict, files};

pub fn run(options: &ReportOptions) -> Result<Verdict> {
    let folder = options.evidence.is_dir();
    let path = if folder { options.evidence.join("evidence.json") } else { options.evidence.clone() };
    let evidence: Evidence = files::read_json(&path, evidence::SCHEMA)?;
    let text = if options.text { table(&evidence) } else { html(&evidence) };
    match &options.output {
        Some(path) => files::write(path, &text)?,
        None => files::print(&text)?,
    }
    Ok(Verdict::Holds)
}
