//! No JSON of a user makes its readers panic: machines, models of machines, samples of a palette and profiles, and what commands compute of them first.
#![no_main]

use isochrome_model::machine::Machine;
use isochrome_model::palette::infer;
use isochrome_model::palette::samples::Samples;
use isochrome_model::profile::Profile;
use isochrome_model::replacement::ReplacementTest;
use isochrome_model::sim::MachineModel;
use isochrome_model::units::CpuId;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(machine) = serde_json::from_str::<Machine>(text) {
        machine.fingerprint();
        machine.colorable_level(CpuId(0));
        for level in 0..4 {
            machine.felt_bytes(level, CpuId(0));
        }
    }
    if let Ok(model) = serde_json::from_str::<MachineModel>(text)
        && model.check().is_ok()
    {
        model.colors();
        let _ = model.hierarchy(2);
    }
    if let Ok(samples) = serde_json::from_str::<Samples>(text)
        && samples.check().is_ok()
    {
        infer(&samples);
    }
    let _ = serde_json::from_str::<Profile>(text);
    ReplacementTest::stated(text);
});
