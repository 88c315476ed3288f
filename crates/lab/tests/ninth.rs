//! Tests that a ninth experiment needs only a folder of its own: the runner, acceptance, evidence, raw samples and reports stay unchanged.

mod coins;
#[allow(dead_code)]
mod synthetic;

use coins::{Coins, section};
use isochrome_lab::read_evidence;
use isochrome_lab::runner::{Amount, Experiment, run};
use isochrome_lab::samples::{csv, read};
use isochrome_model::evidence::{Evidence, Standing};
use isochrome_model::layout::WIDTH;
use isochrome_model::units::CpuId;
use isochrome_report::{html, text};

#[test]
fn a_made_up_experiment_is_run_kept_read_and_shown() {
    let amount = Amount { blocks: 12, samples: 4, seed: 1, cpu: CpuId(0), limit: None };
    // With two conditions, 7 blocks suffice: their smallest p is 1/64, below 0.05 / 2.
    assert!(
        amount.power(2).starts_with("2 conditions: an effect can be significant from 7 accepted blocks on; 12 show")
    );
    assert!(Amount { blocks: 3, ..amount }.power(2).ends_with("3 cannot show a significant effect"));
    let mut done = Vec::new();
    let blocks = run(&mut Coins, &amount, &mut |at, total| done.push((at, total))).unwrap();
    assert_eq!((done.first(), done.last()), (Some(&(1, 24)), Some(&(24, 24))));
    assert_eq!(read(&csv(&blocks, &Coins.columns())), Some(blocks.clone()));
    let section = section(&blocks);
    assert_eq!(section.standing, Some(Standing::Holds));
    let evidence = Evidence { sections: vec![section], ..synthetic::minimal() };
    assert_eq!(read_evidence(&serde_json::to_string(&evidence).unwrap()).unwrap(), evidence);
    let (html, text) = (html(&evidence), text::table(&evidence, WIDTH));
    assert!(html.contains("<h2>Coins</h2>") && html.contains("5 cents") && html.contains("✓ holds"), "{html}");
    assert!(text.contains("    1        10.0\n    5        50.0\n"), "{text}");
}
