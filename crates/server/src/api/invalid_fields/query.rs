//! Compares the parameters of a query string with those of the operation, and describes every difference.

use std::borrow::Cow;

use redrive_core::field_error::closest_match;
use serde_json::Value;
use url::form_urlencoded;

use super::{
    body::{MAX_LISTED, invalid_text, outside_range},
    schema::Schema,
    words::expected_type,
};
use crate::{
    app::parse::words::quoted,
    problem::{InvalidField, InvalidFieldCode},
};

/// Returns every difference between a query string and the parameters of an operation, up to [`MAX_LISTED`].
pub(super) fn invalid_parameters(document: &Value, operation: &Value, query: &str) -> Vec<InvalidField> {
    let parameters = operation.get("parameters").and_then(Value::as_array);
    let known: Vec<_> = parameters
        .into_iter()
        .flatten()
        .filter(|parameter| parameter.get("in").is_some_and(|place| place == "query"))
        .filter_map(|parameter| Some((parameter.get("name")?.as_str()?, parameter.get("schema")?)))
        .collect();
    let names: Vec<_> = known.iter().map(|(name, _)| *name).collect();
    let mut found = Vec::new();
    let mut given: Vec<Cow<'_, str>> = Vec::new();
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        if found.len() >= MAX_LISTED {
            break;
        }
        let schema = known
            .iter()
            .find(|(known, _)| *known == name)
            .and_then(|(_, schema)| Schema::new(document, schema));
        let Some(schema) = schema else {
            if !names.contains(&name.as_ref()) {
                found.push(unknown_parameter(&name, &names));
            }
            continue;
        };
        let is_list = schema.types().contains(&"array");
        let wrong = match given.contains(&name) && !is_list {
            true => Some((InvalidFieldCode::InvalidValue, "is given twice".to_owned())),
            false => invalid_value(schema, &value, is_list),
        };
        found.extend(wrong.map(|(code, message)| InvalidField { field: name.to_string(), code, message }));
        given.push(name);
    }
    found
}

fn unknown_parameter(name: &str, known: &[&str]) -> InvalidField {
    let message = match closest_match(name, known) {
        Some(closest) => format!("unknown parameter; did you mean {closest}?"),
        None if known.is_empty() => "unknown parameter; there are no query parameters".to_owned(),
        None => format!("unknown parameter; the parameters are {}", known.join(", ")),
    };
    InvalidField { field: name.to_owned(), code: InvalidFieldCode::UnknownField, message }
}

fn invalid_value(schema: Schema<'_>, text: &str, is_list: bool) -> Option<(InvalidFieldCode, String)> {
    if is_list {
        let items = schema.inner("items")?;
        return text
            .split(',')
            .filter(|item| !item.is_empty())
            .find_map(|item| invalid_value(items, item, false));
    }
    let types: Vec<_> = schema.types().into_iter().filter(|name| *name != "null").collect();
    let expected = match types.as_slice() {
        ["integer"] => match text.parse::<i128>() {
            Ok(number) => return Some((InvalidFieldCode::OutOfRange, outside_range(schema, number as f64)?)),
            Err(_) => "integer",
        },
        ["boolean"] if matches!(text, "true" | "false") => return None,
        ["boolean"] => "boolean",
        _ => return invalid_text(schema, text),
    };
    let message = format!("must be {}, got {}", expected_type(expected), quoted(text));
    Some((InvalidFieldCode::WrongType, message))
}
