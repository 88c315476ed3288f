//! Manual pages and completions, from the same definition as the parser.

use std::path::Path;

use anyhow::{Context as _, Result};
use clap::CommandFactory;

use crate::args::Arguments;
use crate::files;
use crate::verdict::Verdict;

/// Writes one manual page per verb into `folder`.
pub fn pages(folder: &Path) -> Result<Verdict> {
    let shown = folder.display();
    files::make_folder(folder)?;
    clap_mangen::generate_to(Arguments::command(), folder).with_context(|| format!("{shown}: cannot write"))?;
    eprintln!("manual pages written to {shown}; read one with: man {shown}/isochrome.1");
    Ok(Verdict::Holds)
}

/// Prints the completion script for `shell`.
pub fn completions(shell: clap_complete::Shell) -> Result<Verdict> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "isochrome", &mut script);
    files::print(&String::from_utf8_lossy(&script))?;
    Ok(Verdict::Holds)
}
