//! `isochrome trace`: records the memory accesses of a program.

use std::fs::File;
use std::io::BufWriter;
use std::path::PathBuf;

use anyhow::{Context as _, Result, anyhow};
use isochrome_host::record::record;
use isochrome_model::trace::{AnyWriter, Kind};

use crate::args::TraceOptions;
use crate::verdict::Verdict;

pub fn run(options: &TraceOptions) -> Result<Verdict> {
    let [program, arguments @ ..] = options.command.as_slice() else {
        return Err(anyhow!("no program\n  hint: isochrome trace -- ls -l"));
    };
    let path = options.output.clone().unwrap_or_else(|| PathBuf::from(format!("trace.{}", options.format)));
    let shown = path.display();
    let cannot = || format!("{shown}: cannot write\n  hint: does the folder exist, and is there room?");
    let file = File::create(&path).with_context(cannot)?;
    let mut writer = AnyWriter::new(options.format, BufWriter::new(file)).with_context(cannot)?;
    let mut kept = Vec::new();
    let recorded = record::<anyhow::Error>(options.by, program, arguments, &mut |batch| {
        kept.clear();
        kept.extend(batch.iter().filter(|access| !options.data_only || access.kind != Kind::Fetch));
        writer.write(&kept).with_context(cannot)
    });
    let recorded = match recorded {
        Ok(recorded) => recorded,
        Err(error) => {
            // The file is not a whole trace.
            let _ = std::fs::remove_file(&path);
            return Err(error);
        }
    };
    writer.finish().with_context(cannot)?;
    eprintln!(
        "{shown}: {} accesses by {}; the program ended with {}",
        recorded.accesses, recorded.tool, recorded.status
    );
    Ok(Verdict::Holds)
}
