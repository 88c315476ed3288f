//! Messages of errors, with the options and verbs that help. The crates below do not know that somebody typed a command line: what they advise
//! is completed here.

use std::borrow::Cow;
use std::error::Error;

use isochrome_host::color::ColorError;
use isochrome_host::counters::CounterError;
use isochrome_host::error::SystemError;
use isochrome_host::load::flooder::FloodError;
use isochrome_host::load::net::NetError;
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

/// Formats an error and its causes from the outside in, each once and with its hint.
pub fn text(error: &(dyn Error + 'static)) -> String {
    let mut text = String::new();
    for cause in std::iter::successors(Some(error), |error| error.source()) {
        let plain = cause.to_string();
        let whole = format!("{plain}{}", hint(cause));
        if text.contains(&plain) {
            text = text.replacen(&plain, &whole, 1);
        } else {
            // Hints come last, so a further cause goes before them.
            let at = text.find("\n  hint:").unwrap_or(text.len());
            let separator = if text.is_empty() { "" } else { ": " };
            text.insert_str(at, &format!("{separator}{whole}"));
        }
    }
    text
}

/// What follows the message of `error` itself, which ends with a hint or not.
fn hint(error: &(dyn Error + 'static)) -> Cow<'static, str> {
    if let Some(error) = error.downcast_ref() {
        color(error)
    } else if let Some(error) = error.downcast_ref() {
        recolor(error)
    } else {
        Cow::Borrowed(other(error))
    }
}

fn color(error: &ColorError) -> Cow<'static, str> {
    Cow::Borrowed(match error {
        ColorError::NoSuchLevel { .. } => "; `isochrome doctor` lists the levels",
        ColorError::OneColor { .. } => "; `isochrome doctor` lists the colors of every level",
        ColorError::NothingAsked => ": --colors 0-3",
        ColorError::ColorExhausted { .. } => " (--memory)",
        ColorError::TooLittleMemory { needed, .. } => {
            return format!("\n  hint: --memory {}K", needed.0.div_ceil(1024)).into();
        }
        ColorError::TimingBlurred { .. } => ": `isochrome palette --by counters`",
        ColorError::NoEviction { .. } => "; `isochrome probe` shows how well it keeps its contents",
        ColorError::CacheUnsteady { .. } | ColorError::CacheNotKept { .. } => {
            "; `isochrome probe` measures how long each CPU's cache keeps its contents"
        }
        ColorError::FramesHidden | ColorError::BitsContradicted { .. } => ": `isochrome palette --by timing`",
        ColorError::ReferenceInDoubt { .. } => " (--cpu)",
        ColorError::NoSavedPalette { .. } | ColorError::PaletteUntested { .. } => {
            ": isochrome palette --save --memory 4G"
        }
        ColorError::NoReference { .. }
        | ColorError::NotOpenedThere { .. }
        | ColorError::SavedPaletteStale { .. }
        | ColorError::SavedPaletteForeign { .. }
        | ColorError::SavedPaletteDamaged { .. }
        | ColorError::PaletteContradicted { .. } => ": isochrome palette --save",
        ColorError::ColorsHeld { .. } => {
            "; `isochrome ps` lists grants, --colors auto:N finds free ones, --group NAME on both shares them"
        }
        ColorError::TooFewFreeColors { .. } => ": `isochrome ps`",
        _ => "",
    })
}

fn recolor(error: &RecolorError) -> Cow<'static, str> {
    Cow::Borrowed(match error {
        RecolorError::Itself => ": run `isochrome recolor` as a program of its own",
        RecolorError::AsynchronousIo { .. } => ": --force",
        RecolorError::Trace { pid, .. } | RecolorError::Memory { pid, .. } | RecolorError::Unrepaired { pid } => {
            return format!(": isochrome recolor --repair {pid}").into();
        }
        RecolorError::NoColors => "\n  hint: --colors 0-3",
        RecolorError::TooLittleMemory { .. } => " (--max-memory)",
        _ => "",
    })
}

fn other(error: &(dyn Error + 'static)) -> &'static str {
    if let Some(error) = error.downcast_ref() {
        match error {
            SystemError::NoCode { .. } => "; --kind data needs none",
            _ => "",
        }
    } else if let Some(error) = error.downcast_ref() {
        match error {
            CounterError::Failed { .. } => "; see `isochrome doctor`",
            CounterError::NoMissEvent { .. } => ": `isochrome palette --by timing`",
            CounterError::NoMissRatio { .. } => ": --level 1 to 3",
            _ => "",
        }
    } else if let Some(error) = error.downcast_ref() {
        match error {
            SchedError::SwitchesForbidden { .. } => {
                "; `isochrome watch PID` and `isochrome watch -- CMD` watch processes of your own"
            }
            _ => "",
        }
    } else if let Some(error) = error.downcast_ref() {
        match error {
            FloodError::NoDoublePurge(_) => ": `isochrome lab flood --pattern write`",
            FloodError::Color(_) => "",
        }
    } else if let Some(error) = error.downcast_ref() {
        match error {
            NetError::Tap { .. } => ": --path memory",
            _ => "",
        }
    } else if let Some(error) = error.downcast_ref() {
        match error {
            RecordError::Program { .. } => ", behind `--`",
            RecordError::Plugin { .. } => "; --by lackey",
            RecordError::Nothing { hint, .. } if hint.contains("lackey") => ": --by lackey",
            _ => "",
        }
    } else if let Some(error) = error.downcast_ref() {
        match error {
            LabError::TooFewColors { .. } => ": --level",
            LabError::LateOnColors { .. } => ": --warm-up",
            LabError::Unfit { hint, .. } if hint.ends_with("warm-up") => ": --warm-up",
            LabError::Unfit { hint, .. } if hint.ends_with("limit") => ": --limit",
            _ => "",
        }
    } else {
        of_the_model(error)
    }
}

fn of_the_model(error: &(dyn Error + 'static)) -> &'static str {
    if let Some(error) = error.downcast_ref() {
        match error {
            RatioError::Outside(_) => "\n  hint: --miss-ratio 33%",
            RatioError::TooFewWords { .. } => ": --locality temporal, or --locality combined",
        }
    } else if let Some(ReadError::Missing { field, alternative: "", .. }) = error.downcast_ref() {
        match *field {
            "cores" => ", or give --cores N",
            "partitions" => ", or give --partitions N",
            "memory_mib" => ", or give --memory SIZE",
            _ => ", or give --refill TIME",
        }
    } else if let Some(PlanError::Cpus { .. }) = error.downcast_ref() {
        ": leave --cores away"
    } else if let Some(error) = error.downcast_ref() {
        match error {
            ExportError::Empty => ": isochrome plan",
            ExportError::Partition { .. } => ": --partitions",
            ExportError::NoWays { .. } => ": --ways 16",
            _ => "",
        }
    } else if let Some(error) = error.downcast_ref() {
        match error {
            WaysError::NoneLeft { .. } => ": --partitions",
            WaysError::Gaps { .. } => ": isochrome plan --method bfd",
            WaysError::Count { .. } => ": --ways",
            WaysError::Classes { .. } => ": isochrome plan --objective partitions",
            _ => "",
        }
    } else if error.is::<Misshapen>() {
        ": isochrome palette --samples FILE"
    } else {
        ""
    }
}

#[cfg(test)]
mod tests {
    use isochrome_model::units::Bytes;

    use super::*;

    #[test]
    fn a_hint_of_the_command_stands_behind_the_message_that_it_completes() {
        let limit = ColorError::TooLittleMemory { limit: Bytes(4096), needed: Bytes(65_536) };
        let whole = "a memory limit of 4 KiB is too small to tell colors apart, 64 KiB are needed\n  hint: --memory 64K";
        assert_eq!(text(&limit), whole);
        // Those that contain it, and say what it says, do not repeat it.
        assert_eq!(text(&LabError::Flood(FloodError::Color(limit))), whole);
        let unmeasured = RecolorError::Unmeasured { pid: 7, source: ColorError::ReferenceInDoubt { doubt: "noise".into() } };
        let context = anyhow::Error::from(unmeasured).context("not moved\n  hint: wait");
        assert_eq!(
            text(&*context),
            "not moved: process 7: the colors of its pages cannot be measured: the palette is in doubt: noise\n  hint: try \
             again when the machine is quieter, or on another CPU (--cpu)\n  hint: wait"
        );
        assert_eq!(text(&RecolorError::NoColors), "no colors were given\n  hint: --colors 0-3");
    }
}
