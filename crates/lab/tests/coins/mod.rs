//! An invented experiment: how much longer a coin takes to fall if it is thrown higher.

use isochrome_lab::error::LabError;
use isochrome_lab::runner::{Experiment, Recorder};
use isochrome_lab::samples::{Arm, Block, Judged, accept};
use isochrome_model::evidence::figure::{Bar, Bars, Hue};
use isochrome_model::evidence::{Section, Standing};
use isochrome_model::stats::holm;
use serde::{Deserialize, Serialize};

/// Condition of the experiment: the coin that is tossed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Condition {
    /// Value of the coin, in cents.
    pub cents: u64,
}

/// The experiment of tossing coins.
pub struct Coins;

impl Experiment for Coins {
    type Condition = Condition;
    const JUDGED: Judged = Judged { cost: |fall| fall[0], canary: None };

    fn columns(&self) -> Vec<String> {
        vec!["fall_ns".to_owned()]
    }

    fn conditions(&self) -> Vec<Condition> {
        [1, 5].map(|cents| Condition { cents }).to_vec()
    }

    fn block(&mut self, condition: Condition, recorder: &mut Recorder<Condition>) -> Result<(), LabError> {
        let noise = recorder.rng.f64();
        recorder.measure(condition, &[Arm::Control, Arm::Treatment], |arm| {
            let higher = if arm == Arm::Treatment { 10.0 * condition.cents as f64 } else { 0.0 };
            Ok(Some(vec![100.0 + higher + noise]))
        })
    }
}

/// Returns the section of a report on the experiment.
pub fn section(blocks: &[Block<Condition>]) -> Section {
    let accepted = accept(blocks, &Coins::JUDGED);
    let effects: Vec<_> =
        accepted.iter().filter_map(|it| Some((it.condition.cents, it.effect(|fall| fall[0])?))).collect();
    let p = holm(&effects.iter().map(|(_, effect)| effect.p).collect::<Vec<_>>());
    let holds = p.iter().all(|p| *p <= 0.05);
    let standing = if holds { Standing::Holds } else { Standing::Inconclusive };
    let headline = (Some(standing), "Coins that are thrown higher fall longer.".to_owned(), "Made up.".to_owned());
    let rows = effects.iter().map(|(cents, effect)| vec![cents.to_string(), format!("{:.1}", effect.estimate)]);
    let bar = |(cents, effect): &(u64, isochrome_model::stats::Effect)| Bar {
        name: format!("{cents} cents"),
        parts: [100.0, effect.estimate],
        hue: Hue::Unpartitioned,
        text: format!("{:.0}", effect.estimate),
    };
    Section::new("coins", "Coins", headline, &effects)
        .figure(Bars { title: "Falls".to_owned(), bars: effects.iter().map(bar).collect() })
        .table(&["cents", "longer, ns"], rows)
}
