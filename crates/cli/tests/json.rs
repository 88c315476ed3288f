//! Checks the JSON that is printed and written against the schemas in `docs/reference/schemas`.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use isochrome_lab::read_evidence;
use serde_json::{Value, json};

fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

/// Runs `line`, in which `%` stands for `folder`, and returns the result that it prints.
fn printed(line: &str, folder: &Path) -> Value {
    let arguments = line.split(' ').map(|word| word.replace('%', folder.to_str().unwrap()));
    let mut command = Command::new(env!("CARGO_BIN_EXE_isochrome"));
    command.args(arguments).current_dir(repository("")).env("ISOCHROME_RUNTIME_DIR", folder.join("runtime"));
    let output = command.output().unwrap();
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{line}: {error}: {}", String::from_utf8_lossy(&output.stderr)))
}

fn read(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

/// A validator of those keywords of JSON Schema that the files in `docs/reference/schemas` use. Other keywords are an error.
struct Schema(Value);

impl Schema {
    /// Returns the schema that `result` names.
    fn of(result: &Value) -> Schema {
        let id = result["schema"].as_str().unwrap_or_else(|| panic!("no schema in {result:.200}"));
        let name = id.strip_prefix("isochrome-").and_then(|id| id.split('/').next()).unwrap();
        Schema(read(&repository(&format!("docs/reference/schemas/{name}.json"))))
    }

    /// Fails if `value` does not match `schema`, or has a key that the schema does not describe.
    fn check(&self, schema: &Value, value: &Value) -> Result<(), String> {
        match schema {
            Value::Bool(true) => return Ok(()),
            Value::Bool(false) => return Err("must be absent".to_owned()),
            // A schema without any other keyword accepts every value.
            Value::Object(says) if says.keys().all(|keyword| keyword == "description") => return Ok(()),
            _ => {}
        }
        let mut described = BTreeSet::new();
        self.apply(schema, value, &mut described)?;
        match value.as_object().and_then(|all| all.keys().find(|key| !described.contains(*key))) {
            Some(key) => Err(format!("`{key}` is not described")),
            None => Ok(()),
        }
    }

    /// Does the same as [`check`](Self::check), and adds the described keys to `described`.
    fn apply(&self, schema: &Value, value: &Value, described: &mut BTreeSet<String>) -> Result<(), String> {
        let fail = |what: String| Err(format!("{what}: {value:.100}"));
        for (keyword, says) in schema.as_object().ok_or("a schema is an object")? {
            match keyword.as_str() {
                "$defs" | "$schema" | "title" | "description" | "format" | "default" => {}
                // These keywords are read together with `properties` and `if`.
                "additionalProperties" | "then" => {}
                "$ref" => {
                    let name = says.as_str().and_then(|path| path.strip_prefix("#/$defs/")).ok_or("a path")?;
                    self.apply(&self.0["$defs"][name], value, described)?;
                }
                "type" => {
                    let types = says.as_array().map_or(std::slice::from_ref(says), Vec::as_slice);
                    if !types.iter().any(|name| is_of_type(value, name)) {
                        return fail(format!("is not {says}"));
                    }
                }
                "const" if value != says => return fail(format!("is not {says}")),
                "enum" if !says.as_array().is_some_and(|all| all.contains(value)) => {
                    return fail(format!("is none of {says}"));
                }
                "minimum" | "maximum" | "minItems" | "maxItems" => {
                    if let Some(compared) = exceeds(keyword, value, says) {
                        return fail(format!("{compared} {says}"));
                    }
                }
                "const" | "enum" => {}
                "required" => {
                    let absent = |key: &&Value| value.is_object() && value.get(key.as_str().unwrap()).is_none();
                    if let Some(key) = says.as_array().unwrap().iter().find(absent) {
                        return fail(format!("has no {key}"));
                    }
                }
                "properties" => {
                    for (key, of_key) in says.as_object().unwrap() {
                        described.insert(key.clone());
                        if let Some(part) = value.get(key) {
                            self.check(of_key, part).map_err(|error| format!("{key}: {error}"))?;
                        }
                    }
                }
                "patternProperties" => {
                    for (pattern, of_key) in says.as_object().unwrap() {
                        assert!(["^\\d+$", "^-?\\d+$"].contains(&pattern.as_str()), "{pattern} is not a whole number");
                        let whole = |key: &str| key.parse::<i64>().is_ok();
                        for (key, part) in value.as_object().into_iter().flatten().filter(|(key, _)| whole(key)) {
                            described.insert(key.clone());
                            self.check(of_key, part).map_err(|error| format!("{key}: {error}"))?;
                        }
                    }
                }
                "items" => {
                    for part in value.as_array().into_iter().flatten() {
                        self.check(says, part).map_err(|error| format!("[]: {error}"))?;
                    }
                }
                "prefixItems" => {
                    for (part, of_part) in value.as_array().into_iter().flatten().zip(says.as_array().unwrap()) {
                        self.check(of_part, part).map_err(|error| format!("[]: {error}"))?;
                    }
                }
                "allOf" => says.as_array().unwrap().iter().try_for_each(|one| self.apply(one, value, described))?,
                "anyOf" | "oneOf" => self.apply_one(keyword == "oneOf", says, value, described)?,
                "if" => {
                    if self.apply(says, value, &mut BTreeSet::new()).is_ok() {
                        self.apply(&schema["then"], value, described)?;
                    }
                }
                other => panic!("{other}: not a keyword that this reads"),
            }
        }
        if let (Some(rest), Some(all)) = (schema.get("additionalProperties"), value.as_object()) {
            let others: Vec<&String> = all.keys().filter(|key| !described.contains(*key)).collect();
            for key in others {
                described.insert(key.clone());
                self.check(rest, &all[key]).map_err(|error| format!("{key}: {error}"))?;
            }
        }
        Ok(())
    }

    /// Applies those of the `schemas` that `value` matches. Fails if it matches no schema, or several in spite of `only_one`.
    fn apply_one(
        &self,
        only_one: bool,
        schemas: &Value,
        value: &Value,
        described: &mut BTreeSet<String>,
    ) -> Result<(), String> {
        let mut errors = Vec::new();
        let schemas = schemas.as_array().unwrap();
        for schema in schemas {
            let mut of_one = BTreeSet::new();
            match self.apply(schema, value, &mut of_one) {
                Ok(()) => described.extend(of_one),
                Err(error) => errors.push(error),
            }
        }
        let matching = schemas.len() - errors.len();
        if matching == 0 || only_one && matching > 1 {
            return Err(format!("matches {matching} of {}: {errors:?}", schemas.len()));
        }
        Ok(())
    }
}

fn is_of_type(value: &Value, name: &Value) -> bool {
    match name.as_str() {
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("boolean") => value.is_boolean(),
        Some("null") => value.is_null(),
        Some("integer") => value.is_u64() || value.is_i64(),
        Some("number") => value.is_number(),
        _ => panic!("type {name}"),
    }
}

/// Returns how `value` exceeds the `limit` that `keyword` sets; `None` if it does not.
fn exceeds(keyword: &str, value: &Value, limit: &Value) -> Option<&'static str> {
    let limit = limit.as_f64().unwrap();
    let number = value.as_f64();
    let items = value.as_array().map(|all| all.len() as f64);
    match keyword {
        "minimum" if number? < limit => Some("is less than"),
        "maximum" if number? > limit => Some("is more than"),
        "minItems" if items? < limit => Some("has fewer than"),
        "maxItems" if items? > limit => Some("has more than"),
        _ => None,
    }
}

/// Checks that `result` matches the schema that it names.
fn fits(what: &str, result: &Value) {
    let schema = Schema::of(result);
    schema.check(&schema.0, result).unwrap_or_else(|error| panic!("{what}: {error}"));
}

#[test]
fn what_needs_no_hardware_prints_what_its_schema_says() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let set = "cpus = \"2-3\"\nlevel = 2\n[[tasks]]\nname = \"walk\"\ncommand = \"./walk\"\nperiod = \"100us\"\nmemory = \"64K\"\n";
    fs::write(folder.join("set.toml"), set).unwrap();
    for line in [
        "doctor --json",
        "palette --replay crates/model/tests/data/zen3-vm-samples.json --json",
        "simulate --machine zen3 --workload fft:points=256 --json",
        "simulate curve --level 64K:4:64 --workload fft:points=256 --verify --json",
        "simulate flood --machine pentium-ii --json",
        "simulate --scenario examples/interference.toml --json",
        "plan examples/kim2013-table1.json --cores 4 --memory 1G --objective partitions,refill --json -o %/plan.json",
        "analyze examples/kim2013-table1.json --cores 4 --allocation %/plan.json --json",
        "profile %/set.toml --from-trace i7-2600 --mhz 1000 --trace walk=workload:walk:area=16K,stride=64,passes=4 -o %/profile.json --json",
        "plan %/profile.json --json",
        "ps --json",
        "lab crpd --machine i7-2600 --mhz 1000 --json",
        "lab workload --miss-ratio 0.33 --machine zen3 --policy lru --json",
        "lab paper sebek2002/table-1 --json",
    ] {
        fits(line, &printed(line, folder));
    }
    fits("plan -o", &read(&folder.join("plan.json")));
    fits("palette --samples", &read(&repository("crates/model/tests/data/zen3-vm-samples.json")));
}

#[test]
fn evidence_of_the_corpus_is_what_its_schema_says() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let slices = [
        r#"{"schema":"isochrome-slices/2"}"#,
        r#"{"cpu":0,"thread":7,"name":"control","begin":0,"end":1000,"left":"preempted","counts":{"accesses":8000,"misses":4000,"instructions":1,"cycles":2}}"#,
        r#"{"cpu":1,"thread":7,"name":"control","begin":2000,"end":2500,"left":"asleep"}"#,
    ];
    fs::write(folder.join("slices"), slices.join("\n")).unwrap();
    fits("watch", &printed("watch --replay %/slices --json -o %/evidence.json", folder));
    let mut evidence = read(&folder.join("evidence.json"));
    fits("watch -o", &evidence);

    // Recorded results, written as evidence of the first version, are read as evidence of the present version.
    let recorded = |name: &str| read(&repository("crates/lab/tests/corpus").join(name));
    evidence["schema"] = "isochrome-evidence/1".into();
    for (key, numbers) in [
        ("experiments", json!([recorded("filter.json"), recorded("fft.json"), recorded("matmul.json")])),
        ("conflicts", json!([recorded("conflicts.json")])),
        ("crpd", json!([recorded("crpd_data.json"), recorded("crpd_code.json")])),
        ("switches", json!([recorded("switch.json")])),
        ("interference", json!([recorded("interference.json")])),
        ("floods", json!([recorded("flood.json")])),
        ("packets", recorded("net.json")["paths"].clone()),
    ] {
        evidence[key] = numbers;
    }
    let evidence = read_evidence(&evidence.to_string()).unwrap();
    assert_eq!(evidence.sections.len(), 8);
    let mut today = serde_json::to_value(&evidence).unwrap();
    today["schema"] = isochrome_model::evidence::SCHEMA.into();
    fits("the corpus", &today);
}

#[test]
fn what_a_schema_does_not_say_is_found() {
    let plan = json!({"schema": "isochrome-repair/1", "pid": 1, "repaired": true});
    fits("a repair", &plan);
    let schema = Schema::of(&plan);
    for (key, wrong, error) in [
        ("pid", json!("1"), "pid: is not \"integer\""),
        ("repaired", Value::Null, "repaired: is not \"boolean\""),
        ("schema", json!("isochrome-repair/2"), "schema: is not \"isochrome-repair/1\""),
        ("other", json!(1), "`other` is not described"),
    ] {
        let mut plan = plan.clone();
        plan[key] = wrong;
        let found = schema.check(&schema.0, &plan).unwrap_err();
        assert!(found.starts_with(error), "{key}: {found}");
    }
    assert!(
        schema.check(&schema.0, &json!({"schema": "isochrome-repair/1"})).unwrap_err().starts_with("has no \"pid\"")
    );
}
