//! `isochrome export`: a plan in the words of other systems.

use std::path::Path;

use anyhow::{Context as _, Result};
use isochrome_host::partition::resctrl::{self, Mounted};
use isochrome_model::export::ways::WayRules;
use isochrome_model::export::{Cache, File, Target, write};
use isochrome_model::plan::Plan;
use isochrome_model::units::parse_list;

use crate::args::ExportOptions;
use crate::{Verdict, files};

/// Upper bound of cache numbers, which lie below it.
const CACHES_MAX: u32 = 1 << 16;

/// Carries out `isochrome export`.
pub fn run(options: &ExportOptions) -> Result<Verdict> {
    let shown = options.plan.display();
    let plan: Plan = serde_json::from_str(&files::read(&options.plan)?)
        .with_context(|| format!("{shown}: not a plan\n  hint: isochrome plan TASKS -o plan.json"))?;
    let ids = parse_list(&options.cache_id, CACHES_MAX).context("--cache-id")?;
    let level = options.level.or(plan.programs.as_ref().map(|programs| programs.level)).unwrap_or(3);
    let ways = rules(options, level)?;
    let highest = plan.cores.iter().flat_map(|core| &core.tasks).flat_map(|task| &task.partitions).max();
    let partitions = match (options.partitions, &ways) {
        (Some(partitions), _) => partitions,
        // A partition for each way, unless told otherwise.
        (None, Some(ways)) => ways.count,
        (None, None) => highest.copied().unwrap_or(1),
    };
    let cache = Cache { level, ids, ways };
    let files = write(&plan, options.target, &cache, partitions)?;
    match &options.output {
        Some(folder) => save(&files, folder)?,
        None => files::print(&together(&files))?,
    }
    Ok(Verdict::Holds)
}

/// Returns the rules for masks: as options give them, else as this machine's resctrl says. `None` if neither is known or no ways are needed.
fn rules(options: &ExportOptions, level: u8) -> Result<Option<WayRules>> {
    if let Some(count) = options.ways {
        return Ok(Some(WayRules {
            count,
            least: options.least_ways,
            sparse: options.sparse,
            classes: options.classes,
        }));
    }
    let takes_ways = matches!(options.target, Target::Resctrl | Target::Oci | Target::Pqos | Target::Jailhouse);
    let root = resctrl::root();
    if !takes_ways || !root.join("schemata").exists() {
        return Ok(None);
    }
    Ok(Some(resctrl::rules(&Mounted::at(&root)?, level)?))
}

fn save(files: &[File], folder: &Path) -> Result<()> {
    files::make_folder(folder)?;
    for file in files {
        let path = folder.join(&file.name);
        files::write(&path, &file.text)?;
        eprintln!("{}", path.display());
    }
    Ok(())
}

/// Joins files for printing: a single one as it is, several with headings as `head` shows them.
fn together(files: &[File]) -> String {
    match files {
        [file] => file.text.clone(),
        files => {
            let shown: Vec<String> = files.iter().map(|file| format!("==> {} <==\n{}", file.name, file.text)).collect();
            shown.join("\n")
        }
    }
}
