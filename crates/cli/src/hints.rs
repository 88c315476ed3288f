//! Formats error messages with hints that name options and verbs. The library crates do not know the command line, so this module completes
//! their hints.

use std::error::Error;
use std::ffi::OsString;

use isochrome_host::color::ColorError;
use isochrome_host::counters::CounterError;
use isochrome_host::doctor::FixError;
use isochrome_host::error::SystemError;
use isochrome_host::load::flooder::FloodError;
use isochrome_host::load::net::NetError;
use isochrome_host::process::ProcessError;
use isochrome_host::recolor::RecolorError;
use isochrome_host::record::RecordError;
use isochrome_host::sched::SchedError;
use isochrome_lab::error::LabError;
use isochrome_model::export::ExportError;
use isochrome_model::export::ways::WaysError;
use isochrome_model::miss_ratio::RatioError;
use isochrome_model::palette::samples::Misshapen;
use isochrome_model::plan::PlanError;
use isochrome_model::taskset::read::ReadError;

use crate::usage;

/// Hint for machines whose free memory has few frames of some colors.
pub const RARE_FRAMES: &str = "\n  hint: free memory has few frames of some colors: as root, `echo 1 >/proc/sys/vm/compact_memory` joins what is free, or let more of it be searched: --memory 4G";

/// A command that reads a task set which comes with isochrome.
const TASK_SET: &str = "isochrome plan examples/kim2013-table1.json --cores 4 --memory 1G --copies 4";

/// Formats an error and its causes from the outside in, each once and with its hint.
pub fn text(error: &(dyn Error + 'static)) -> String {
    let (mut text, mut next) = (String::new(), Some(error));
    while let Some(cause) = next {
        let plain = cause.to_string();
        let whole = format!("{plain}{}", hint(cause));
        if text.contains(&plain) {
            text = text.replacen(&plain, &whole, 1);
        } else {
            // Hints come last, so a further cause is inserted before them.
            let at = text.find("\n  hint:").unwrap_or(text.len());
            let separator = if text.is_empty() { "" } else { ": " };
            text.insert_str(at, &format!("{separator}{whole}"));
        }
        next = cause.source();
    }
    text
}

/// Formats an error of the command line `words` as [`text`] does. Where no cause knows what to do, a hint shows how the verb is used.
pub fn whole(error: &(dyn Error + 'static), words: &[OsString]) -> String {
    let mut text = text(error);
    if let Some(pid) = kernel_thread(error) {
        text += &format!("\n  hint: {}", usage::again(words, &pid, "PID"));
    }
    if !text.contains("hint:") {
        text += &format!("\n  hint: {}", usage::example_hint(words));
    }
    text
}

/// Returns the number of the process if `error` says that the process has no memory because it is a thread of the kernel.
fn kernel_thread(error: &(dyn Error + 'static)) -> Option<String> {
    let mut next = Some(error);
    while let Some(cause) = next {
        if let Some(RecolorError::KernelThread { pid }) = cause.downcast_ref() {
            return Some(pid.to_string());
        }
        let process = match cause.downcast_ref() {
            Some(RecolorError::Process(process)) => Some(process),
            _ => cause.downcast_ref(),
        };
        if let Some(ProcessError::NoUserMemory { pid, .. }) = process {
            return Some(pid.to_string());
        }
        next = cause.source();
    }
    None
}

/// Returns the text to append to the message of `error` itself, which may already end with a hint; empty if there is nothing to append.
fn hint(error: &(dyn Error + 'static)) -> String {
    macro_rules! hints {
        ($($pattern:pat $(if $applies:expr)? => $hint:expr;)*) => {$(
            if let Some($pattern) = error.downcast_ref() $(&& $applies)? {
                return $hint.into();
            }
        )*};
    }
    hints! {
        ColorError::NoSuchLevel { .. } => "; `isochrome doctor` lists the levels";
        ColorError::OneColor { .. } => "; `isochrome doctor` lists the colors of every level";
        ColorError::NothingAsked => ": --colors 0-3";
        ColorError::ColorExhausted { .. } => " (--memory)";
        ColorError::TooLittleMemory { needed, .. } => format!("\n  hint: --memory {}K", needed.0.div_ceil(1024));
        ColorError::TimingBlurred { .. } => ": `isochrome palette --by counters`";
        ColorError::NoEviction { .. } => "; `isochrome probe` shows how well it keeps its contents";
        ColorError::CacheUnsteady { .. } | ColorError::CacheNotKept { .. } =>
            "; `isochrome probe` measures how long each CPU's cache keeps its contents";
        ColorError::FramesHidden | ColorError::BitsContradicted { .. } => ": `isochrome palette --by timing`";
        ColorError::ReferenceInDoubt { .. } => " (--cpu)";
        ColorError::NoSavedPalette { .. } | ColorError::PaletteUntested { .. } =>
            ": isochrome palette --save --memory 4G";
        ColorError::NoReference { .. }
            | ColorError::NotOpenedThere { .. }
            | ColorError::SavedPaletteStale { .. }
            | ColorError::SavedPaletteForeign { .. }
            | ColorError::SavedPaletteDamaged { .. }
            | ColorError::PaletteContradicted { .. } => ": isochrome palette --save";
        ColorError::ColorsHeld { .. } =>
            "; `isochrome ps` lists grants, --colors auto:N finds free ones, --group NAME on both shares them";
        ColorError::TooFewFreeColors { .. } => ": `isochrome ps`";
        RecolorError::Itself => ": run `isochrome recolor PID --colors 0-3` as a program of its own";
        RecolorError::AsynchronousIo { .. } => ": --force";
        RecolorError::Trace { pid, .. } | RecolorError::Memory { pid, .. } | RecolorError::Unrepaired { pid } =>
            format!(": isochrome recolor --repair {pid}");
        RecolorError::NoColors => "\n  hint: --colors 0-3";
        RecolorError::TooLittleMemory { .. } => " (--max-memory)";
        SystemError::NoCode { .. } => "; --kind data needs none";
        CounterError::Failed { .. } => "; see `isochrome doctor`";
        CounterError::NoMissEvent { .. } => ": `isochrome palette --by timing`";
        CounterError::NoMissRatio { .. } => ": --level 1 to 3";
        FixError::NotAtStart => ": `isochrome doctor --fix --yes`";
        FixError::Foreign { .. } => "; or leave --persistent out";
        SchedError::SwitchesForbidden { .. } =>
            "; `isochrome watch PID` and `isochrome watch -- CMD` watch processes of your own";
        FloodError::NoDoublePurge(_) => ": `isochrome lab flood --pattern write`";
        NetError::Tap { .. } => ": --path memory";
        RecordError::Program { .. } => ", behind `--`";
        RecordError::Plugin { .. } => "; --by lackey";
        RecordError::Nothing { hint, .. } if hint.contains("lackey") => ": --by lackey";
        LabError::NoCanaries { .. } => " (--cpu, --level)";
        LabError::TooFewColors { .. } => ": --level";
        LabError::MissedMark { .. } => ": --warm-up";
        LabError::Unfit { hint, .. } if hint.ends_with("warm-up") => ": --warm-up";
        LabError::Unfit { hint, .. } if hint.ends_with("limit") => ": --limit";
        RatioError::Outside(_) => "\n  hint: --miss-ratio 33%";
        RatioError::TooFewWords { .. } => ": --locality temporal, or --locality combined";
        ReadError::Syntax { .. } => format!(
            "; docs/reference/planning.md lists its fields\n  hint: one that can be read: {TASK_SET}"
        );
        ReadError::Missing { field: "cores", .. } => ", or give --cores N";
        ReadError::Missing { field: "partitions", .. } => ", or give --partitions N";
        ReadError::Missing { field: "memory_mib", .. } => ", or give --memory SIZE";
        ReadError::Missing { alternative: "", .. } => ", or give --refill TIME";
        PlanError::Cpus { .. } => ": leave --cores out";
        ExportError::Empty => ": isochrome plan";
        ExportError::Partition { .. } => ": --partitions";
        ExportError::NoWays { .. } => ": --ways 16";
        WaysError::NoneLeft { .. } => ": --partitions";
        WaysError::Gaps { .. } | WaysError::CutShort { .. } => ": isochrome plan --method bfd";
        WaysError::Count { .. } => ": --ways";
        WaysError::Classes { .. } => ": isochrome plan --objective partitions";
        Misshapen { .. } => ": isochrome palette --samples FILE";
    }
    String::new()
}

#[cfg(test)]
mod tests {
    use isochrome_model::units::Bytes;

    use super::*;

    #[test]
    fn a_hint_of_the_command_stands_behind_the_message_that_it_completes() {
        let limit = ColorError::TooLittleMemory { limit: Bytes(4096), needed: Bytes(65_536) };
        let whole =
            "a memory limit of 4 KiB is too small to tell colors apart, 64 KiB are needed\n  hint: --memory 64K";
        assert_eq!(text(&limit), whole);
        // An error that contains this one and prints the same message does not repeat it.
        assert_eq!(text(&LabError::Flood(FloodError::Color(limit))), whole);
        let unmeasured =
            RecolorError::Unmeasured { pid: 7, source: ColorError::ReferenceInDoubt { doubt: "noise".into() } };
        let context = anyhow::Error::from(unmeasured).context("not moved\n  hint: wait");
        assert_eq!(
            text(&*context),
            "not moved: process 7: the colors of its pages cannot be measured: the palette is in doubt: noise\n  hint: try \
             again when the machine is less busy, or on another CPU (--cpu)\n  hint: wait"
        );
        assert_eq!(text(&RecolorError::NoColors), "no colors were given\n  hint: --colors 0-3");
    }
}
