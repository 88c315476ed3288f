//! JSON Schema of everything that the tool prints or writes as JSON, made from the types. The schemas are stored in `docs/reference/schemas`.

mod page;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use isochrome_host::coloring::report as coloring_report;
use isochrome_host::server::Status;
use isochrome_lab::miss_ratio::Comparison;
use isochrome_lab::{compare, conflicts, crpd, flood, interference, kernels, packets, switch};
use isochrome_model::evidence::{self, Evidence};
use isochrome_model::machine::{self, Machine};

use isochrome_model::palette::{self, Palette, Samples, samples};
use isochrome_model::papers;
use isochrome_model::placement;
use isochrome_model::plan::Plan;
use isochrome_model::plan::allocation::Analyzed;
use isochrome_model::profile::{self, Profile};
use isochrome_model::running::Run;
use isochrome_model::taskset::PLAN_SCHEMA;
use isochrome_model::watch::Watched;
use schemars::generate::{SchemaGenerator, SchemaSettings};
use schemars::{JsonSchema, Schema};
use serde_json::{Value, json};

use crate::bench::Kernel;
use crate::results::{Printed, schema};
use crate::{doctor, map, plan, policy, ps, recolor, simulate, watch};

/// Environment variable that makes the test write the schema files.
const WRITE: &str = "ISOCHROME_WRITE_SCHEMAS";

fn generator() -> SchemaGenerator {
    SchemaSettings::draft2020_12().for_serialize().into_generator()
}

/// Returns the schema of `T`, whose `schema` field holds `id`, with its name.
fn of<T: JsonSchema>(id: &str) -> (String, Value) {
    named(id, generator().into_root_schema_for::<T>())
}

/// Returns the schema of an experiment's printed result, with its name.
fn of_experiment<T: JsonSchema>(section: &str) -> (String, Value) {
    of::<Printed<T>>(&schema(section))
}

fn named(id: &str, schema: Schema) -> (String, Value) {
    let mut schema = schema.to_value();
    schema["title"] = id.into();
    schema["properties"]["schema"] = json!({"const": id});
    // A field that two flattened types have in common is listed twice.
    let required = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).chain(["schema"]);
    schema["required"] = required.collect::<BTreeSet<_>>().into_iter().collect();
    (id.to_owned(), schema)
}

/// Returns the schema of evidence, which describes the numbers of each kind of section.
fn of_evidence() -> (String, Value) {
    let mut generator = generator();
    let sections = [
        ("run", generator.subschema_for::<Run>()),
        ("watch", generator.subschema_for::<Watched>()),
        ("kernels", generator.subschema_for::<kernels::Kernels>()),
        ("compare", generator.subschema_for::<compare::Compared>()),
        ("conflicts", generator.subschema_for::<conflicts::Numbers<'_>>()),
        ("crpd", generator.subschema_for::<crpd::Crpd>()),
        ("switch", generator.subschema_for::<switch::Switches>()),
        ("interference", generator.subschema_for::<interference::Interference>()),
        ("flood", generator.subschema_for::<flood::Numbers<'_>>()),
        ("packets", generator.subschema_for::<packets::Packets>()),
        ("miss_ratio", generator.subschema_for::<Comparison>()),
    ];
    let (id, mut schema) = named(evidence::SCHEMA, generator.into_root_schema_for::<Evidence>());
    let of_numbers = sections.map(|(id, numbers)| {
        json!({"if": {"properties": {"id": {"const": id}}}, "then": {"properties": {"numbers": numbers}}})
    });
    schema["$defs"]["Section"]["allOf"] = of_numbers.to_vec().into();
    (id, schema)
}

/// Returns all schemas with their names.
fn all() -> Vec<(String, Value)> {
    vec![
        of::<isochrome_host::doctor::Examination>(doctor::SCHEMA),
        of::<Machine>(machine::SCHEMA),
        of::<crate::palette::Outcome>(crate::palette::SCHEMA),
        of::<Palette>(palette::SCHEMA),
        of::<Samples>(samples::SCHEMA),
        of::<map::Outcome>(placement::SCHEMA),
        of::<ps::Held>(ps::SCHEMA),
        of_experiment::<Kernel<'_>>("kernels"),
        of_experiment::<compare::Compared>("compare"),
        of_experiment::<conflicts::Numbers<'_>>("conflicts"),
        of_experiment::<crpd::Crpd>("crpd"),
        of_experiment::<switch::Switches>("switch"),
        of_experiment::<packets::Packets>("packets"),
        of_experiment::<interference::Interference>("interference"),
        of_experiment::<flood::Numbers<'_>>("flood"),
        of::<crate::flood::Flooded>(crate::flood::SCHEMA),
        of_experiment::<Comparison>("miss_ratio"),
        of::<papers::Numbers>(papers::SCHEMA),
        of::<simulate::Outcome>(simulate::SCHEMA),
        of::<simulate::Curve>(simulate::CURVE_SCHEMA),
        of::<simulate::Floods>(simulate::FLOODS_SCHEMA),
        of::<isochrome_model::sim::scenario::Outcome>(simulate::SCENARIO_SCHEMA),
        of::<Watched>(watch::WATCHED),
        of::<Profile>(profile::SCHEMA),
        of::<Plan>(PLAN_SCHEMA),
        of::<Analyzed>(plan::ANALYSIS_SCHEMA),
        of::<recolor::Shown>(coloring_report::SCHEMA),
        of::<recolor::Repair>(recolor::REPAIR_SCHEMA),
        of::<Status>(policy::STATUS_SCHEMA),
        of_evidence(),
    ]
}

/// Fails unless the file at `path` in docs/reference holds `text`; writes it if [`WRITE`] is set.
fn stored(path: &str, text: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference").join(path);
    if std::env::var_os(WRITE).is_some() {
        fs::write(&file, text).unwrap();
    }
    let found = fs::read_to_string(&file).unwrap_or_default();
    assert!(found == text, "docs/reference/{path} differs from the types; {WRITE}=1 writes it");
}

#[test]
fn schemas_are_those_of_the_types() {
    let mut names = Vec::new();
    let all = all();
    for (id, schema) in &all {
        let name = id.strip_prefix("isochrome-").and_then(|id| id.split('/').next()).expect("isochrome-NAME/NUMBER");
        stored(&format!("schemas/{name}.json"), &(serde_json::to_string_pretty(schema).unwrap() + "\n"));
        names.push(format!("{name}.json"));
    }
    names.sort_unstable();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/schemas");
    let mut found: Vec<String> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    found.sort_unstable();
    assert_eq!(found, names);
    stored("schemas.md", &page::page(&all));
}
