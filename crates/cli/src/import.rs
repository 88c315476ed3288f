//! `isochrome import`: converts task sets of other tools.

use std::path::Path;

use anyhow::{Context as _, Result};
use isochrome_model::taskset::rtapp;

use crate::files;
use crate::verdict::Verdict;

pub fn run(file: &Path, output: Option<&Path>) -> Result<Verdict> {
    let imported = rtapp::import(&files::read(file)?).with_context(|| file.display().to_string())?;
    imported.left_out.iter().for_each(|what| eprintln!("left out: {what}"));
    output.map_or_else(|| files::print_whole(&imported.text), |path| files::write(path, &imported.text))?;
    Ok(Verdict::Holds)
}
