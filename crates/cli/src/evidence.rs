//! Puts evidence together: what was measured, where, when and by which command, and the files with all samples.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use isochrome_host::interrupt;
use isochrome_host::machine::setting::RealtimeSettings;
use isochrome_host::machine::sysfs::Note;
use isochrome_model::evidence::{Evidence, PaletteEvidence, RawFile, SCHEMA, Section};
use isochrome_model::machine::Machine;

use crate::context::Context;

/// Returns evidence of a measurement in `context`, dated now; see [`about`].
pub fn of(
    context: &Context,
    palette: Option<PaletteEvidence>,
    sections: Vec<Section>,
    raw: &[RawFile],
    warnings: Vec<String>,
) -> Evidence {
    Evidence {
        seed: Some(context.seed),
        cpu: Some(context.cpu),
        palette,
        sections,
        ..about(&context.machine, raw, warnings)
    }
}

/// Returns evidence of a measurement on `machine`, dated now. If the measurement was interrupted, the first warning reports that.
pub fn about(machine: &Machine, raw: &[RawFile], mut warnings: Vec<String>) -> Evidence {
    if interrupt::interrupted() {
        warnings.insert(0, "Interrupted: measurements that were not complete are missing.".to_owned());
    }
    Evidence {
        schema: SCHEMA.to_owned(),
        isochrome: env!("CARGO_PKG_VERSION").to_owned(),
        taken_unix_s: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
        command: command_line(),
        seed: None,
        cpu: None,
        fingerprint: machine.fingerprint(),
        machine: machine.clone(),
        palette: None,
        sections: Vec::new(),
        warnings,
        raw: raw.to_vec(),
    }
}

/// Returns the command line, with the program's name but not its path.
fn command_line() -> Vec<String> {
    let mut command: Vec<String> =
        std::env::args_os().map(|argument| argument.to_string_lossy().into_owned()).collect();
    if let Some(program) = command.first_mut() {
        *program =
            Path::new(program.as_str()).file_name().map_or_else(String::new, |n| n.to_string_lossy().into_owned());
    }
    command
}

/// Returns the warnings that a reader needs to judge the numbers. `counted`: whether misses were counted.
pub fn warnings(context: &Context, counted: bool, settings: &RealtimeSettings) -> Vec<String> {
    let mut warnings = Vec::new();
    if let Some(hypervisor) = &context.machine.hypervisor {
        warnings.push(format!(
            "This is a virtual machine ({hypervisor}): other guests share caches and CPUs unseen. Only accepted blocks count; their number \
             is stated with every result."
        ));
    }
    if !counted {
        warnings.push(
            "No performance counters of cache misses here: lines lost are judged by time, and miss counts are absent."
                .to_owned(),
        );
    }
    warnings.extend(context.warnings(settings));
    warnings
}

/// Formats a note as a warning.
pub fn note_text(note: &Note) -> String {
    format!("{}: {} (hint: {})", note.subject, note.reason, note.hint)
}
