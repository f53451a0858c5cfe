//! Ids that the application chooses for its own objects, such as `org_01EHZNVPK3SFK441A1RGBFSHRT`.
//!
//! They are compared byte by byte, so upper and lower case differ. An id needs no quoting in a path, a query string, a
//! header, a metric label, a log line or a file name, and is never `.`, `..` or `*`.

/// Maximum length of an id.
pub const MAX_EXTERNAL_ID_CHARS: usize = 128;
/// Regular expression of the ids, for the API document.
pub const EXTERNAL_ID_PATTERN: &str = "^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$";
/// Description of the ids for error messages.
pub const EXTERNAL_ID_RULE: &str =
    "must be 1 to 128 characters of A-Z, a-z, 0-9, '.', '_', '-' and ':', and begin with a letter or digit";

/// Returns whether a text can be an id.
pub fn is_external_id(text: &str) -> bool {
    let allowed = |c: u8| c.is_ascii_alphanumeric() || b"._-:".contains(&c);
    text.len() <= MAX_EXTERNAL_ID_CHARS
        && text.bytes().next().is_some_and(|first| first.is_ascii_alphanumeric())
        && text.bytes().all(allowed)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ids_of_identity_and_billing_providers_are_accepted() {
        for good in [
            "org_01EHZNVPK3SFK441A1RGBFSHRT",
            "org_2NNEqL2nrIRdJ194ndJqAHwEfxC",
            "cus_NffrFeUfNV2Hib",
            "acct_1032D82eZvKYlo2C",
            "auth0:6630f1c2b9",
            "018f3b1c-7a5e-7c40-b0a8-f3d2c1e0a9b8",
            "eu.acme:prod-1_a",
            "0",
            &"x".repeat(MAX_EXTERNAL_ID_CHARS),
        ] {
            assert!(is_external_id(good), "{good}");
        }
    }

    #[test]
    fn ids_that_would_need_quoting_are_refused() {
        for bad in [
            "",
            ".",
            "..",
            ".a",
            "-a",
            "_a",
            ":a",
            "*",
            "a*",
            "a b",
            "a/b",
            "a\\b",
            "a%2e",
            "a?b",
            "a#b",
            "a,b",
            "a\n",
            "ä",
            "a\u{301}",
            "a\0",
            &"x".repeat(MAX_EXTERNAL_ID_CHARS + 1),
        ] {
            assert!(!is_external_id(bad), "{bad:?}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(5_000))]

        #[test]
        fn accepted_ids_are_unchanged_in_urls_and_match_the_pattern(
            text in prop_oneof!["[a-zA-Z0-9._:-]{0,140}", "[a-zA-Z0-9]\\PC?[a-z.:]{0,5}", any::<String>()],
        ) {
            let pattern = matches_pattern(&text);
            prop_assert_eq!(is_external_id(&text), pattern);
            if pattern {
                let url = url::Url::parse(&format!("http://host/v1/tenants/{text}/api-keys")).unwrap();
                prop_assert_eq!(url.path(), format!("/v1/tenants/{text}/api-keys"));
                let encoded: String = url::form_urlencoded::byte_serialize(text.as_bytes()).collect();
                prop_assert_eq!(encoded.replace("%3A", ":"), text);
            }
        }
    }

    /// Matches [`EXTERNAL_ID_PATTERN`], by hand and character by character.
    fn matches_pattern(text: &str) -> bool {
        let mut chars = text.chars();
        let Some('A'..='Z' | 'a'..='z' | '0'..='9') = chars.next() else { return false };
        let rest: Vec<char> = chars.collect();
        let is_allowed = |c: &char| matches!(c, 'A'..='Z' | 'a'..='z' | '0'..='9' | '.' | '_' | ':' | '-');
        rest.len() <= 127 && rest.iter().all(is_allowed)
    }
}
