//! Parses JSON objects; an error names the field and the reason.

use std::{fmt, marker::PhantomData};

use redrive_core::{
    FieldError,
    event::json_nesting::{MAX_PAYLOAD_NESTING, is_nested_deeper},
};
use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, MapAccess, Visitor, value::MapAccessDeserializer},
};

use super::words::rephrase;
use crate::app::{AppError, ErrorCode};

/// Maximum nesting of a body: that of a payload, plus an event in a list in an object.
const MAX_BODY_NESTING: usize = MAX_PAYLOAD_NESTING + 3;

/// Rejects a body that is nested too deeply before it is parsed. Otherwise the nesting could be as deep as the
/// body is long, and the parser keeps a stack of that size.
pub(crate) fn check_nesting(body: &[u8]) -> Result<(), AppError> {
    if !is_nested_deeper(body, MAX_BODY_NESTING) {
        return Ok(());
    }
    let detail = format!(
        "the body is nested too deeply: lists and objects may be nested {MAX_PAYLOAD_NESTING} levels deep in a payload"
    );
    Err(AppError::malformed(ErrorCode::InvalidBody, detail))
}

/// Parses a JSON object; an error names the field and the reason.
pub(crate) fn parse_object<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, AppError> {
    check_nesting(body)?;
    // Serde would also accept an array with the values in field order.
    let is_object = body.trim_ascii_start().starts_with(b"{");
    if !is_object && serde_json::from_slice::<IgnoredAny>(body).is_ok() {
        let what = "the body must be a JSON object; the API documentation shows its fields";
        return Err(AppError::malformed(ErrorCode::InvalidBody, what));
    }
    // Tracking the path of a field costs time, so the body is parsed again with tracking only after an error.
    let value = serde_json::from_slice(body).map_err(|error| {
        let (error, path) = locate_error::<T>(body).unwrap_or((error, ".".into()));
        // serde_json reports a number in place of an enum name as a syntax error, although the JSON is valid.
        match error.is_syntax() && path != "." && serde_json::from_slice::<IgnoredAny>(body).is_ok() {
            true => {
                FieldError::new(path, "must be one of the strings listed in the API documentation").into()
            }
            false => bad_json(&error, &path),
        }
    })?;
    Ok(value)
}

fn locate_error<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Option<(serde_json::Error, String)> {
    let mut reader = serde_json::Deserializer::from_slice(body);
    let error = serde_path_to_error::deserialize::<_, T>(&mut reader).err()?;
    let path = error.path().to_string();
    Some((error.into_inner(), path))
}

fn bad_json(error: &serde_json::Error, path: &str) -> AppError {
    let detail = error.to_string();
    if error.is_syntax() || error.is_eof() {
        let detail = format!("the body is not valid JSON: {detail}");
        return AppError::malformed(ErrorCode::InvalidJson, detail);
    }
    let index = detail.rfind(" at line ").unwrap_or(detail.len());
    let message = &detail[..index];
    // The message names a missing, unknown or repeated field; for other errors the field is where the parser stopped.
    let named = ["missing field `", "unknown field `", "duplicate field `"];
    let named =
        named.iter().find_map(|what| message.strip_prefix(what)).and_then(|rest| rest.split('`').next());
    let field = match (path, named) {
        (".", None) => return AppError::malformed(ErrorCode::InvalidBody, message),
        (".", Some(named)) => named.to_owned(),
        (path, Some(named)) if !message.starts_with("unknown") => format!("{path}.{named}"),
        (path, _) => path.to_owned(),
    };
    // Redrive's own types begin the message with the field name, which must not appear twice.
    let message = match message.split_once(": ") {
        Some((text, rest)) if field.starts_with(text) => rest,
        _ => message,
    };
    FieldError::new(field, rephrase(message)).into()
}

/// Deserializes a field so that null (clear it) differs from a missing field (leave it unchanged).
pub(crate) fn nullable<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    value: D,
) -> Result<Option<Option<T>>, D::Error> {
    Option::deserialize(value).map(Some)
}

/// Deserializes like `nullable`, but accepts only a JSON object as the value.
pub(crate) fn nullable_object<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    value: D,
) -> Result<Option<Option<T>>, D::Error> {
    object(value).map(Some)
}

/// Deserializes an object or null. Serde would otherwise also accept an array with the values in field order.
pub(crate) fn object<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    value: D,
) -> Result<Option<T>, D::Error> {
    let object = Option::<Object<T>>::deserialize(value)?;
    Ok(object.map(|Object(value)| value))
}

struct Object<T>(T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(value: D) -> Result<Self, D::Error> {
        value.deserialize_map(ObjectVisitor(PhantomData))
    }
}

struct ObjectVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for ObjectVisitor<T> {
    type Value = Object<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<M: MapAccess<'de>>(self, map: M) -> Result<Self::Value, M::Error> {
        T::deserialize(MapAccessDeserializer::new(map)).map(Object)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use redrive_core::{protection::limiter::RateLimit, time::HumanDuration};

    use super::*;

    #[derive(Debug, Default, Deserialize)]
    #[serde(deny_unknown_fields, default)]
    struct Input {
        #[serde(deserialize_with = "nullable")]
        name: Option<Option<String>>,
        #[serde(deserialize_with = "nullable_object")]
        rate_limit: Option<Option<RateLimit>>,
        spans: Option<Vec<HumanDuration>>,
    }

    /// Generates nearly valid JSON, possibly truncated.
    fn any_body() -> impl Strategy<Value = Vec<u8>> {
        let value = "null|-?[0-9]{1,22}(\\.[0-9]{1,3})?(e[0-9]{1,3})?|\"\\PC{0,6}\"|\\[[0-9, ]{0,8}\\]|\\{\\}|\
                     \\{\"(requests_per_minute|burst)\": ?[0-9]{1,12}\\}";
        let field = (proptest::sample::select(&["name", "rate_limit", "spans", "é`: x"]), value)
            .prop_map(|(name, value)| format!("\"{name}\": {value}"));
        let body = (proptest::collection::vec(field, 0..3), 0..80usize).prop_map(|(fields, max)| {
            let mut body = format!("{{{}}}", fields.join(",")).into_bytes();
            body.truncate(max);
            body
        });
        prop_oneof![3 => body, 1 => any::<Vec<u8>>(), 1 => any::<String>().prop_map(String::into_bytes)]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(5_000))]

        #[test]
        fn arbitrary_body_is_parsed_or_rejected_with_details(body in any_body()) {
            match parse_object::<Input>(&body) {
                Ok(_) => {
                    let value: serde_json::Value = serde_json::from_slice(&body).unwrap();
                    prop_assert!(value.is_object());
                    let limit = value.get("rate_limit");
                    prop_assert!(limit.is_none_or(|limit| limit.is_object() || limit.is_null()), "{}", value);
                }
                Err(error) => {
                    prop_assert!(matches!(error, AppError::Malformed { .. } | AppError::Invalid(_)), "{:?}", error);
                    prop_assert!(!error.to_string().is_empty());
                }
            }
        }
    }

    #[test]
    fn null_differs_from_missing_field() {
        let read = |body: &str| parse_object::<Input>(body.as_bytes()).unwrap();
        assert_eq!((read("{}").name, read("{}").rate_limit), (None, None));
        let cleared = read(r#"{"name": null, "rate_limit": null}"#);
        assert_eq!((cleared.name, cleared.rate_limit), (Some(None), Some(None)));
        let set = read(r#"{"rate_limit": {"requests_per_minute": 5}, "spans": ["1s"]}"#);
        assert_eq!(set.rate_limit, Some(Some(RateLimit::per_minute(5))));
        assert_eq!(set.spans, Some(vec![HumanDuration::secs(1)]));
    }
}
