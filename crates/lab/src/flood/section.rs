//! The section of a report on the self-check of the flooder.

use isochrome_model::evidence::figure::{Bar, Bars, Hue};
use isochrome_model::evidence::format::DASH;
use isochrome_model::evidence::{Section, Standing};

use super::{Achieved, LEFT_AT_MOST, Verification};

/// Returns the conclusions, one sentence each.
fn findings(verified: &Verification) -> Vec<String> {
    let short = verified.achieved.iter().filter(|flood| flood.falls_short()).map(|flood| {
        let (left, most) = (100.0 * (1.0 - flood.gone), 100.0 * LEFT_AT_MOST);
        format!(
            "{} leaves {left:.1} % of the lines, more than {most:.0} %: it does not flood this cache",
            flood.pattern
        )
    });
    let not_tried = verified.not_tried.iter().map(|not| format!("{} was not tried: {}", not.pattern, not.reason));
    short.chain(not_tried).chain(verified.parameters.clone()).collect()
}

fn headline(verified: &Verification) -> (Option<Standing>, String, String) {
    let judged = if verified.counted { "counted" } else { "judged by time, between two controls" };
    let basis = format!(
        "{} lines of a victim in L{} tested each time; lines gone are {judged}.",
        verified.lines, verified.level
    );
    let Some(worst) = verified.worst() else {
        let text = "The effect of floods cannot be concluded from this run: no block was accepted.";
        return (Some(Standing::Inconclusive), text.to_owned(), basis);
    };
    let sentence = format!(
        "After the worst flood, {}, {:.1} % of a victim’s lines are gone, and a load takes {:.1} ns instead of {:.1}.",
        worst.pattern,
        100.0 * worst.gone,
        worst.flooded_ns,
        worst.hit_ns
    );
    (Some(if worst.falls_short() { Standing::Violated } else { Standing::Holds }), sentence, basis)
}

/// Returns the section of a report on the self-check of the flooder.
pub fn section(verified: &Verification) -> Section {
    let bar = |flood: &Achieved| Bar {
        name: flood.pattern.to_string(),
        parts: [flood.hit_ns, flood.flooded_ns - flood.hit_ns],
        hue: Hue::Unpartitioned,
        text: format!("{:.1} of {:.1}", flood.flooded_ns, flood.sure_ns),
    };
    let row = |flood: &Achieved| {
        let controls = flood.gone_controls.map(|[there, gone]| format!("{:.1}, {:.1} %", 100.0 * there, 100.0 * gone));
        vec![
            flood.pattern.to_string(),
            flood.memory.to_string(),
            format!("{:.1}", flood.flood_ns / 1e3),
            format!("{:.1} %", 100.0 * flood.gone),
            controls.unwrap_or(DASH.to_owned()),
            format!("{:.1} / {:.1} / {:.1}", flood.hit_ns, flood.flooded_ns, flood.sure_ns),
            flood.write_backs_per_refill.map_or(DASH.to_owned(), |count| format!("{count:.2}")),
            format!("{}/{}", flood.blocks_quiet, flood.blocks),
        ]
    };
    Section::new("flood", "What a flood leaves", headline(verified), &verified.numbers())
        .text(format!(
            "A victim of {} lines in the colors of L{} ({} ways, {} inside) is loaded, then the cache is flooded, then the victim is loaded \
             again. A bar is the time of such a load: the time for a line that is still cached, and the additional time. [Loeser1999, §3]",
            verified.lines, verified.level, verified.ways[1], verified.ways[0]
        ))
        .figure(Bars {
            title: "Time of a load after a flood, of that of a line that is surely gone, ns".to_owned(),
            bars: verified.achieved.iter().map(bar).collect(),
        })
        .table(
            &["flood", "memory", "takes, µs", "gone", "controls", "ns: there / after / gone", "write-backs", "blocks"],
            verified.achieved.iter().map(row),
        )
        .findings(findings(verified))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flood::tests::verified;
    use isochrome_report::chart::draw;

    /// Returns the text of `section` in lines so long that sentences are seldom broken.
    fn text(section: &Section) -> String {
        isochrome_report::text::section(section, 200)
    }

    #[test]
    fn a_flood_that_falls_short_is_named_and_so_is_the_worst() {
        let checked = section(&verified());
        let text = text(&checked);
        assert!(text.contains("read leaves 50.0 % of the lines"), "{text}");
        assert!(!text.contains("write leaves"), "{text}");
        assert!(text.contains("double-purge was not tried: the first level is direct-mapped"), "{text}");
        assert!(checked.standing == Some(Standing::Holds) && checked.headline.contains("worst flood, write"));
        let nothing = section(&Verification { achieved: vec![], ..verified() });
        assert!(nothing.standing == Some(Standing::Inconclusive) && nothing.headline.contains("no block was accepted"));
    }

    #[test]
    fn the_figure_has_a_bar_for_each_flood() {
        let svg = draw(section(&verified()).figures().next().unwrap()).0.into_string();
        assert!(svg.contains("write") && svg.contains("read") && !svg.contains("NaN"), "{svg}");
    }
}
