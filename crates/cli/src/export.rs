//! `isochrome export`: writes a plan as configuration for other systems.

use std::path::Path;

use anyhow::{Context as _, Result};
use isochrome_host::partition::resctrl::{self, Mounted};
use isochrome_model::export::ways::WayRules;
use isochrome_model::export::{Cache, File, Target, write};
use isochrome_model::plan::Plan;
use isochrome_model::units::parse_list;

use crate::args::ExportOptions;
use crate::files;
use crate::verdict::Verdict;

/// Exclusive upper bound of cache numbers.
const CACHES_MAX: u32 = 1 << 16;

/// Carries out `isochrome export`.
pub fn run(options: &ExportOptions) -> Result<Verdict> {
    let text = files::read(&options.plan)?;
    let hint = "isochrome plan profile.json -o plan.json";
    let plan: Plan =
        serde_json::from_str(&text).with_context(|| files::of_another_kind(&options.plan, &text, "a plan", hint))?;
    let ids = parse_list(&options.cache_id, CACHES_MAX).context("--cache-id")?;
    let level = options.level.or(plan.programs.as_ref().map(|programs| programs.level)).unwrap_or(3);
    let ways = rules(options, level)?;
    let highest = plan.cores.iter().flat_map(|core| &core.tasks).flat_map(|task| &task.partitions).max();
    let partitions = match (options.partitions, &ways) {
        (Some(partitions), _) => partitions,
        // By default each way is a partition.
        (None, Some(ways)) => ways.count,
        (None, None) => highest.map_or(1, |highest| highest.saturating_add(1)),
    };
    let cache = Cache { level, ids, ways };
    let files = write(&plan, options.target, &cache, partitions)?;
    match &options.output {
        Some(folder) => save(&files, folder)?,
        None => files::print_whole(&together(&files))?,
    }
    Ok(Verdict::Holds)
}

/// Returns the rules for masks from the options, else from this machine's resctrl. `None` if the options give none, and the target takes no ways
/// or resctrl is not mounted.
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

/// Joins files for printing: a single file as it is, several with headings like those of `head`.
fn together(files: &[File]) -> String {
    match files {
        [file] => file.text.clone(),
        files => {
            let shown: Vec<String> = files.iter().map(|file| format!("==> {} <==\n{}", file.name, file.text)).collect();
            shown.join("\n")
        }
    }
}
