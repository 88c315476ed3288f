//! The keys of all schemas as a page of the book.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use regex_lite::Regex;
use serde_json::Value;

/// Returns the page: a table for each schema, with a row for each key, however deep.
pub fn page(schemas: &[(String, Value)]) -> String {
    let mut page = String::from(
        "# Keys of all JSON\n\n<!-- Made from the types: `ISOCHROME_WRITE_SCHEMAS=1 cargo test -p isochrome-cli schemas`. -->\n\n\
         Meaning of the keys of each object, as paths for `jq`: `a.b` is the key `b` of the object `a`, `a[]` each element of an array, and \
         `a.*` the \
         value of any key. A path without a type holds what the rows below it say. [JSON](json.md) says which command prints which object.\n",
    );
    for (id, schema) in schemas {
        let name = id.strip_prefix("isochrome-").and_then(|id| id.split('/').next()).expect("isochrome-NAME/NUMBER");
        let about = description(schema, schema).lines().next().map(|line| format!("{}\n\n", escaped(line)));
        let _ = write!(page, "\n## {name}\n\n{}", about.unwrap_or_default());
        let _ = write!(page, "`{id}`, [{name}.json](schemas/{name}.json)\n\n| key | type | meaning |\n|---|---|---|\n");
        let mut rows = Rows { root: schema, shown: BTreeSet::new(), text: String::new() };
        rows.add(schema, "", &[]);
        page += &rows.text;
    }
    page
}

/// Rows of a table.
struct Rows<'a> {
    root: &'a Value,
    /// Paths that have a row: variants of one object may have keys in common.
    shown: BTreeSet<String>,
    text: String,
}

impl<'a> Rows<'a> {
    /// Adds a row for each key below `schema`, whose own path is `path`. `inside`: the definitions that lead here, for types that hold themselves.
    fn add(&mut self, schema: &'a Value, path: &str, inside: &[&str]) {
        if let Some(name) = schema["$ref"].as_str().filter(|name| !inside.contains(name)) {
            self.add(resolved(schema, self.root), path, &[inside, &[name]].concat());
        }
        for variants in ["allOf", "anyOf", "oneOf"] {
            for variant in schema[variants].as_array().into_iter().flatten() {
                self.add(variant, path, inside);
            }
        }
        for (key, value) in schema["properties"].as_object().into_iter().flatten() {
            let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
            if self.shown.insert(path.clone()) {
                let meaning = description(value, self.root).split_whitespace().collect::<Vec<_>>().join(" ");
                let _ = writeln!(self.text, "| `{path}` | {} | {} |", kind(value, self.root), escaped(&meaning));
            }
            self.add(value, &path, inside);
        }
        for (keyword, sign) in [("items", "[]"), ("additionalProperties", ".*")] {
            if schema[keyword].is_object() {
                self.add(&schema[keyword], &format!("{path}{sign}"), inside);
            }
        }
    }
}

/// Returns the definition that `schema` refers to, or `schema` itself.
fn resolved<'a>(schema: &'a Value, root: &'a Value) -> &'a Value {
    let name = schema["$ref"].as_str().and_then(|path| path.strip_prefix("#/$defs/"));
    name.map_or(schema, |name| &root["$defs"][name])
}

/// Returns the description in `schema`, or else the one in its definition.
fn description<'a>(schema: &'a Value, root: &'a Value) -> &'a str {
    schema["description"].as_str().or(resolved(schema, root)["description"].as_str()).unwrap_or_default()
}

/// Returns the type of the values of `schema`, in words.
fn kind(schema: &Value, root: &Value) -> String {
    let schema = resolved(schema, root);
    let list = |values: &[Value]| values.iter().map(|value| format!("`{value}`")).collect::<Vec<_>>().join(", ");
    if let Some(value) = schema.get("const") {
        return format!("`{value}`");
    }
    if let Some(values) = schema["enum"].as_array() {
        return list(values);
    }
    for variants in ["anyOf", "oneOf"] {
        if let Some(variants) = schema[variants].as_array() {
            let mut kinds: Vec<String> = variants.iter().map(|variant| kind(variant, root)).collect();
            kinds.dedup();
            return kinds.join(" or ");
        }
    }
    let types = schema["type"].as_array().map_or(std::slice::from_ref(&schema["type"]), Vec::as_slice);
    let named = types.iter().filter_map(Value::as_str).map(|name| match name {
        "array" if schema["items"].is_object() => format!("array of {}", kind(&schema["items"], root)),
        name => name.to_owned(),
    });
    named.collect::<Vec<_>>().join(" or ")
}

/// Returns `text` for a cell of a table, without the links of its Rust documentation.
fn escaped(text: &str) -> String {
    let link = Regex::new(r"\[([^\[\]]+)\]\([\w:]+\)|\[(`[^`]+`)\]").expect("a valid pattern");
    link.replace_all(text, "${1}${2}").replace('|', "\\|").replace('<', "\\<")
}
