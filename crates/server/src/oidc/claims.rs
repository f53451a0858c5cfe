//! The user that verified claims describe.

use redrive_core::security::visible_text::is_deceptive;
use serde_json::{Map, Value};

use super::error::TokenError;

/// Maximum length of a subject, as OpenID Connect defines it.
const MAX_SUBJECT_BYTES: usize = 255;
/// Maximum length of a name; a longer one is shortened.
const MAX_NAME_CHARS: usize = 100;
/// Claims that may have the name of the user, the best first.
const NAME_CLAIMS: [&str; 3] = ["name", "preferred_username", "email"];

/// A user, as the provider describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    /// Identifier that never changes.
    pub(crate) subject: String,
    /// Name of the user.
    pub(crate) name: String,
    /// Groups of the user.
    pub(crate) groups: Vec<String>,
}

impl Identity {
    /// Reads the user from verified claims.
    pub(crate) fn from_claims(
        claims: &Map<String, Value>,
        groups_claim: &str,
        name_claim: Option<&str>,
    ) -> Result<Self, TokenError> {
        let subject = claims.get("sub").and_then(Value::as_str).unwrap_or_default();
        if subject.is_empty() || subject.len() > MAX_SUBJECT_BYTES || subject.chars().any(is_hidden) {
            return Err(TokenError::Malformed);
        }
        let text = |claim: &str| at(claims, claim).and_then(Value::as_str).map(visible_name);
        let names = match name_claim {
            Some(claim) => vec![claim],
            None => NAME_CLAIMS.to_vec(),
        };
        let name = names.into_iter().filter_map(text).find(|name| !name.is_empty());
        let groups = match at(claims, groups_claim) {
            Some(Value::String(group)) => vec![group.clone()],
            Some(Value::Array(groups)) => {
                groups.iter().filter_map(Value::as_str).map(str::to_owned).collect()
            }
            _ => Vec::new(),
        };
        Ok(Self { name: name.unwrap_or_else(|| subject.to_owned()), subject: subject.to_owned(), groups })
    }
}

/// Returns a claim by its name, or by its path with dots. The name takes precedence, since some providers use URLs as
/// names.
pub(super) fn at<'a>(claims: &'a Map<String, Value>, path: &str) -> Option<&'a Value> {
    if let Some(value) = claims.get(path) {
        return Some(value);
    }
    let (first, rest) = path.split_once('.')?;
    rest.split('.').try_fold(claims.get(first)?, |value, name| value.get(name))
}

fn is_hidden(char: char) -> bool {
    is_deceptive(char) || char.is_control()
}

/// Returns a name in one line, shortened, without characters that hide others.
fn visible_name(text: &str) -> String {
    let visible: String = text.chars().filter(|char| !is_hidden(*char)).collect();
    visible.trim().chars().take(MAX_NAME_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn identity(
        claims: &Value,
        groups_claim: &str,
        name_claim: Option<&str>,
    ) -> Result<Identity, TokenError> {
        Identity::from_claims(claims.as_object().unwrap(), groups_claim, name_claim)
    }

    #[test]
    fn groups_are_found_by_name_or_path() {
        let claims = json!({
            "sub": "u-1",
            "groups": ["a", 7, "b"],
            "role": "one",
            "realm_access": {"roles": ["c"]},
            "https://example.com/groups": ["d"],
        });
        for (claim, groups) in [
            ("groups", &["a", "b"][..]),
            ("role", &["one"]),
            ("realm_access.roles", &["c"]),
            ("https://example.com/groups", &["d"]),
            ("realm_access.none", &[]),
            ("realm_access", &[]),
            ("none", &[]),
        ] {
            assert_eq!(identity(&claims, claim, None).unwrap().groups, groups, "{claim}");
        }
    }

    #[test]
    fn name_is_visible_short_and_defaults_to_subject() {
        let name = |claims: &Value, claim| identity(claims, "groups", claim).unwrap().name;
        let claims =
            json!({"sub": "u-1", "name": " ", "preferred_username": "jane", "email": "j@example.com"});
        assert_eq!(name(&claims, None), "jane");
        assert_eq!(name(&claims, Some("email")), "j@example.com");
        assert_eq!(name(&claims, Some("nickname")), "u-1");
        assert_eq!(name(&json!({"sub": "u-1", "name": "Ja\u{202e}ne\n D\u{0}oe"}), None), "Jane Doe");
        assert_eq!(name(&json!({"sub": "u-1", "name": "é".repeat(500)}), None).chars().count(), 100);
    }

    #[test]
    fn subject_is_required_visible_and_bounded() {
        for subject in
            [json!(null), json!(""), json!(7), json!("x".repeat(256)), json!("a\u{200b}b"), json!("a\nb")]
        {
            let claims = json!({"sub": subject, "groups": []});
            assert_eq!(identity(&claims, "groups", None), Err(TokenError::Malformed), "{subject}");
        }
    }
}
