//! What floods achieved, for the terminal.

use std::fmt::Write;

use super::format;
use crate::flood::verify::{LEFT_AT_MOST, Verification};

/// The self-check of the flooder, a line for each pattern.
pub fn text(verified: &Verification) -> String {
    let mut text = format!(
        "floods of L{} ({} ways, {} inside), {} lines of a victim looked at; lines gone judged {}\n\n{:<13} {:>8} {:>9} {:>8} {:>15} {:>24} {:>11} {:>9}\n",
        verified.level,
        verified.ways[1],
        verified.ways[0],
        verified.lines,
        if verified.counted { "by counters" } else { "by time, between the controls" },
        "flood",
        "memory",
        "takes us",
        "gone",
        "controls",
        "ns: there / after / gone",
        "write-backs",
        "quiet"
    );
    for flood in &verified.achieved {
        let _ = writeln!(
            text,
            "{:<13} {:>8} {:>9.1} {:>6.1} % {:>15} {:>24} {:>11} {:>9}",
            flood.pattern,
            flood.memory.to_string(),
            flood.flood_ns / 1e3,
            100.0 * flood.gone,
            flood.gone_controls.map_or(format::DASH.to_owned(), |[there, gone]| {
                format!("{:.1}, {:.1} %", 100.0 * there, 100.0 * gone)
            }),
            format!("{:.1} / {:.1} / {:.1}", flood.hit_ns, flood.flooded_ns, flood.sure_ns),
            flood.write_backs_per_refill.map_or(format::DASH.to_owned(), |count| format!("{count:.2}")),
            format!("{}/{}", flood.blocks_quiet, flood.blocks)
        );
    }
    text.push('\n');
    for flood in verified.achieved.iter().filter(|flood| flood.falls_short()) {
        let _ = writeln!(
            text,
            "{} leaves {:.1} % of the lines, more than {:.0} %: it does not flood this cache",
            flood.pattern,
            100.0 * (1.0 - flood.gone),
            100.0 * LEFT_AT_MOST
        );
    }
    for pattern in &verified.not_tried {
        let _ = writeln!(text, "{} was not tried: {}", pattern.pattern, pattern.reason);
    }
    match verified.worst() {
        Some(worst) => {
            let _ = writeln!(
                text,
                "worst: {}; a load after it takes {:.1} ns, {:.1} where the line is there",
                worst.pattern, worst.flooded_ns, worst.hit_ns
            );
        }
        None => text.push_str("no block was quiet: nothing can be said of any flood\n"),
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flood::verify::tests::verified;

    #[test]
    fn a_flood_that_falls_short_is_named_and_so_is_the_worst() {
        let text = text(&verified());
        assert!(text.contains("read leaves 50.0 % of the lines"), "{text}");
        assert!(!text.contains("write leaves"), "{text}");
        assert!(text.contains("double-purge was not tried: the first level is direct-mapped"), "{text}");
        assert!(text.contains("worst: write; a load after it takes 40.0 ns, 4.0 where"), "{text}");
        let nothing = crate::flood::verify::Verification { achieved: vec![], ..verified() };
        assert!(super::text(&nothing).contains("no block was quiet"));
    }
}
