//! `isochrome import`: task sets of other tools.

use anyhow::{Context, Result};
use isochrome_model::taskset::rtapp;

use crate::args::{ImportForm, ImportOptions};
use crate::{Verdict, files};

pub fn run(options: &ImportOptions) -> Result<Verdict> {
    let text = files::read(&options.file)?;
    let ImportForm::RtApp = options.form;
    let imported = rtapp::import(&text).with_context(|| options.file.display().to_string())?;
    imported.left_out.iter().for_each(|what| eprintln!("left out: {what}"));
    match &options.output {
        Some(path) => files::write(path, &imported.text)?,
        None => files::print(&imported.text)?,
    }
    Ok(Verdict::Holds)
}
