//! Rules that every route and type follows, so that generators accept the document.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use serde_json::{Map, Value, json};

use super::{
    names,
    sides::used_names,
    text,
    walk::{Side, each_operation_schema, each_schema, named_schemas},
};
use crate::{api, documentation::check_generated_file};

/// Verbs that the id of an operation begins with.
const VERBS: [&str; 27] = [
    "backfill", "cancel", "change", "confirm", "create", "delete", "disable", "enable", "end", "erase",
    "export", "get", "list", "pause", "publish", "purge", "replace", "replay", "resend", "resume", "retry",
    "revoke", "rotate", "search", "send", "test", "update",
];

/// Returns each operation as `GET /path`, with its description.
fn operations() -> Vec<(String, &'static Value)> {
    let paths = api::openapi()["paths"].as_object().unwrap();
    let of_path = |(path, item): (&'static String, &'static Value)| {
        let operations = item.as_object().unwrap().iter();
        operations.map(move |(method, operation)| (format!("{} {path}", method.to_uppercase()), operation))
    };
    paths.iter().flat_map(of_path).collect()
}

#[test]
fn documentation_lists_every_operation() {
    check_generated_file("docs/openapi.json", &text::to_text(api::openapi()));
}

#[test]
fn operation_ids_are_unique_and_a_verb_with_its_object() {
    let mut known = BTreeMap::new();
    for (name, operation) in operations() {
        let id = operation["operationId"].as_str().unwrap_or_default();
        let verb = id.split(|c: char| c.is_uppercase()).next().unwrap();
        let object = &id[verb.len()..];
        assert!(
            (VERBS.contains(&verb) || verb == "verify")
                && object.len() > 2
                && object.chars().all(char::is_alphanumeric),
            "{name} has the operationId {id:?}: set operation_id = \"verbObject\" in utoipa::path, such as listWebhooks; \
             verbs: {VERBS:?}"
        );
        if let Some(other) = known.insert(id, name.clone()) {
            panic!(
                "{name} and {other} have the same operationId {id}: set another operation_id in utoipa::path"
            );
        }
    }
}

#[test]
fn every_operation_and_response_is_described() {
    for (name, operation) in operations() {
        assert!(
            operation["summary"].is_string(),
            "{name} has no summary: begin the handler's doc comment with it"
        );
        for (status, response) in operation["responses"].as_object().unwrap() {
            let shared = response["$ref"].as_str().map(|name| name.trim_start_matches('#'));
            let response = shared.map_or(response, |name| api::openapi().pointer(name).unwrap());
            let is_described = response["description"].as_str().is_some_and(|text| !text.is_empty());
            assert!(
                is_described,
                "{name} does not describe its response {status}: add description = \"…\" to responses(…) in utoipa::path"
            );
        }
        for parameter in operation["parameters"].as_array().into_iter().flatten() {
            assert!(parameter["schema"].is_object(), "{name}: {parameter}");
        }
    }
}

#[test]
fn operations_are_named_after_handlers_and_responses_described_by_schemas_by_default() {
    let document = super::finish(json!({
        "components": {"schemas": {"ThingView": {"type": "object", "description": "A thing."}}},
        "paths": {"/v1/things/{id}": {"get": {
            "operationId": "get_old_thing",
            "responses": {"200": {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/ThingView"}}}}},
        }}},
    }));
    let operation = &document["paths"]["/v1/things/{id}"]["get"];
    assert_eq!(operation["operationId"], "getOldThing");
    assert_eq!(operation["responses"]["200"]["description"], "A thing.");
    assert!(document["components"]["schemas"]["Thing"].is_object(), "{document:#}");
}

#[test]
fn every_listing_returns_a_named_page() {
    for (name, operation) in operations() {
        let schema = &operation["responses"]["200"]["content"]["application/json"]["schema"];
        let page = schema["$ref"].as_str().and_then(|name| name.rsplit('/').next());
        let lists = operation["operationId"].as_str().unwrap().starts_with("list");
        assert_eq!(
            lists,
            page.is_some_and(|page| page.ends_with("Page")),
            "{name}: the ids of listings begin with list, and their body is Page<…>"
        );
        let Some(page) = page.filter(|_| lists) else { continue };
        let page = &api::openapi()["components"]["schemas"][page];
        assert_eq!(page["required"], json!(["data", "next_cursor"]), "{name}: {page}");
        assert!(page["properties"]["data"]["items"]["$ref"].is_string(), "{name}: {page}");
    }
}

#[test]
fn schema_names_are_those_of_the_objects() {
    let mut derived = serde_json::to_value(api::described().into_openapi()).unwrap();
    let schemas = named_schemas(&mut derived).unwrap();
    assert_eq!(names::collisions(schemas.keys()), Vec::<String>::new(), "rename one in names.rs");
    let mut known: BTreeSet<_> = schemas.keys().cloned().collect();
    known.extend(schemas.keys().map(|name| format!("{name}Input")));
    assert_eq!(names::unused(&known), Vec::<&str>::new(), "remove these from names.rs");
    for name in api::openapi()["components"]["schemas"].as_object().unwrap().keys() {
        let is_private = name.ends_with("View") || name.contains('_');
        assert!(!is_private, "{name} is not the name of an object: add it to names.rs");
    }
}

/// Calls `check` for every schema of the document, with a word where it is.
fn every_schema(check: &mut impl FnMut(&str, &Map<String, Value>)) {
    let mut document = api::openapi().clone();
    for (name, schema) in named_schemas(&mut document).unwrap() {
        each_schema(schema, &mut |part| check(name, part));
    }
    each_operation_schema(&mut document, &mut |side, schema| {
        let side = if side == Side::Request { "a parameter or body" } else { "a response" };
        each_schema(schema, &mut |part| check(side, part));
    });
}

#[test]
fn defaults_are_never_null_and_every_reference_exists() {
    every_schema(&mut |place, schema| {
        assert_ne!(schema.get("default"), Some(&Value::Null), "{place}");
        if let Some(reference) = schema.get("$ref").and_then(Value::as_str) {
            let known = api::openapi().pointer(reference.trim_start_matches('#'));
            assert!(known.is_some(), "{place} refers to {reference}, which is not in the document");
        }
        for name in schema.get("required").and_then(Value::as_array).into_iter().flatten() {
            assert!(schema["properties"].get(name.as_str().unwrap()).is_some(), "{place}: {name}");
        }
    });
}

#[test]
fn times_have_the_format_of_a_time() {
    let is_time = |name: &str| name.ends_with("_at") || ["from", "to", "until", "since"].contains(&name);
    let check = |place: &str, name: &str, schema: &Value| {
        let text = schema["type"].to_string();
        let is_text = text.contains("string");
        assert!(
            !is_time(name) || !is_text || schema["format"] == "date-time",
            "{place}: {name} is a time; add format = DateTime to its #[schema] or #[param]"
        );
    };
    every_schema(&mut |place, schema| {
        for (name, property) in schema.get("properties").and_then(Value::as_object).into_iter().flatten() {
            check(place, name, property);
        }
    });
    for (operation, description) in operations() {
        for parameter in description["parameters"].as_array().into_iter().flatten() {
            check(&operation, parameter["name"].as_str().unwrap(), &parameter["schema"]);
        }
    }
}

#[test]
fn filters_with_a_fixed_set_of_values_are_enumerations() {
    for (operation, description) in operations() {
        for parameter in description["parameters"].as_array().into_iter().flatten() {
            let name = parameter["name"].as_str().unwrap();
            if !["status", "state", "kind", "failure_category", "dead_reason"].contains(&name) {
                continue;
            }
            let schema = &parameter["schema"];
            let values = schema.get("items").unwrap_or(schema);
            let named = values["$ref"].as_str().map(|name| name.trim_start_matches('#'));
            let values = named.map_or(values, |name| api::openapi().pointer(name).unwrap());
            assert!(values["enum"].is_array(), "{operation}: {name} must be an enumeration: {schema}");
        }
    }
}

fn rust_files(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            rust_files(&path, files);
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            files.push(path);
        }
    }
}

/// Returns the files that define schemas.
fn sources() -> Vec<PathBuf> {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut files = Vec::new();
    for folder in ["core/src", "server/src"] {
        rust_files(&crates.join(folder), &mut files);
    }
    files
}

/// Of two types with one name, one would describe the values of both.
#[test]
fn types_with_a_schema_have_different_names() {
    let mut places: BTreeMap<String, PathBuf> = BTreeMap::new();
    for file in sources() {
        let text = fs::read_to_string(&file).unwrap();
        for part in text.split("ToSchema").skip(1) {
            let is_attribute = |line: &&str| line.starts_with("#[") || line.starts_with("///");
            let attributes: Vec<_> = part.lines().skip(1).take_while(is_attribute).collect();
            let Some(item) = part.lines().nth(1 + attributes.len()) else { continue };
            let renamed = attributes.iter().find_map(|line| line.strip_prefix("#[schema(as = "));
            let name = match (renamed, item.split_once("struct ").or(item.split_once("enum "))) {
                (_, None) => continue,
                (Some(name), _) => name,
                (None, Some((_, name))) => name,
            };
            let name = name.split(|c: char| !c.is_alphanumeric()).next().unwrap().to_owned();
            if let Some(other) = places.insert(name.clone(), file.clone()) {
                panic!("{} and {} define {name}; rename one", other.display(), file.display());
            }
        }
    }
    assert!(places.len() > 120, "{}", places.len());
}

/// `sides.rs` derives from these rules which fields a response always contains.
#[test]
fn fields_that_responses_omit_are_marked() {
    let (in_requests, in_responses) =
        used_names(&mut serde_json::to_value(api::described().into_openapi()).unwrap());
    let mut checked = 0;
    for file in sources() {
        let text = fs::read_to_string(&file).unwrap();
        for item in text.split("\n#[derive(").skip(1) {
            let Some((attributes, rest)) = item.split_once(" struct ") else { continue };
            let Some((_, fields)) = rest.split_once("{\n") else { continue };
            if !attributes.contains("ToSchema")
                || attributes.contains("\n}")
                || !attributes.contains("Serialize")
            {
                continue;
            }
            let name = rest.split(|c: char| !c.is_alphanumeric()).next().unwrap();
            if !in_responses.contains(name) {
                continue;
            }
            let is_shared = in_requests.contains(name);
            let fields = fields.split("\n}").next().unwrap();
            // Each field ends with a comma at the end of a line that is not an attribute or comment.
            for field in fields.split(",\n").filter(|field| field.contains(": Option<")) {
                let omits = field.contains("skip_serializing_if");
                let place = format!("{}: {}", file.display(), field.trim());
                match is_shared {
                    true => assert!(
                        omits,
                        "requests and responses contain this type; omit what is None:\n{place}"
                    ),
                    false => assert!(
                        !omits || field.contains("nullable = false") || field.contains("Option<Value>"),
                        "the field is omitted and never null; add #[schema(nullable = false)]:\n{place}"
                    ),
                }
                checked += 1;
            }
        }
    }
    assert!(checked > 100, "{checked}");
}
