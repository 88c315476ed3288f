//! Manual pages and completions, from the same definition as the parser.

use std::fs;

use anyhow::{Context, Result};
use clap::CommandFactory;

use crate::args::{Arguments, CompletionOptions, ManOptions};
use crate::{Verdict, files};

/// Writes one manual page per verb.
pub fn pages(options: &ManOptions) -> Result<Verdict> {
    let shown = options.output.display();
    fs::create_dir_all(&options.output).with_context(|| format!("{shown}: cannot create"))?;
    clap_mangen::generate_to(Arguments::command(), &options.output)
        .with_context(|| format!("{shown}: cannot write"))?;
    eprintln!("manual pages written to {shown}; read one with: man {shown}/isochrome.1");
    Ok(Verdict::Holds)
}

/// Prints a completion script.
pub fn completions(options: &CompletionOptions) -> Result<Verdict> {
    let mut script = Vec::new();
    clap_complete::generate(options.shell, &mut Arguments::command(), "isochrome", &mut script);
    files::print(&String::from_utf8_lossy(&script))?;
    Ok(Verdict::Holds)
}
