//! The unit of isolation. A tenant's id is a short name that its operator chose.

use std::{fmt, sync::Arc};

use serde::{Deserialize, Serialize};

use crate::invalid::Invalid;

/// A tenant's name: 1 to 64 of `a-z 0-9 _ -`, beginning with a letter or digit. Cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TenantId(Arc<str>);

impl TenantId {
    /// The name of the tenant that always exists.
    pub const DEFAULT: &'static str = "default";

    /// Checks a name.
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        let allowed = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'_' || c == b'-';
        let starts_well = text.bytes().next().is_some_and(|c| c.is_ascii_alphanumeric());
        if text.len() > 64 || !starts_well || !text.bytes().all(allowed) {
            return Err(Invalid::new(
                "tenant_id",
                "must be 1 to 64 characters of a-z, 0-9, _ and -, and begin with a letter or digit",
            ));
        }
        Ok(Self(text.into()))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for TenantId {
    fn default() -> Self {
        Self(Self::DEFAULT.into())
    }
}

impl fmt::Display for TenantId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for TenantId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for TenantId {
    type Error = Invalid;

    fn try_from(text: String) -> Result<Self, Invalid> {
        Self::parse(&text)
    }
}

impl From<TenantId> for String {
    fn from(id: TenantId) -> String {
        id.0.as_ref().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked() {
        for good in ["default", "acme-2", "a", "0_x"] {
            assert!(TenantId::parse(good).is_ok(), "{good}");
        }
        for bad in ["", "-a", "Acme", "a b", "a/b", "ä", &"x".repeat(65)] {
            assert!(TenantId::parse(bad).is_err(), "{bad}");
        }
    }
}
