//! Roles of a node.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Role of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum Role {
    /// Serves the API and sends deliveries.
    #[default]
    All,
    /// Serves the API, but sends no deliveries.
    Api,
    /// Sends deliveries, but accepts no events.
    Worker,
}

impl Role {
    /// Every role.
    pub const ALL: [Self; 3] = [Self::All, Self::Api, Self::Worker];

    /// Returns the canonical name.
    pub fn name(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Api => "api",
            Self::Worker => "worker",
        }
    }

    /// Parses a name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.name() == name)
    }

    /// Returns whether the node sends deliveries.
    pub fn sends(self) -> bool {
        matches!(self, Self::All | Self::Worker)
    }

    /// Returns whether the node serves the API.
    pub fn serves_api(self) -> bool {
        matches!(self, Self::All | Self::Api)
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn role_names_match_serialization() {
        for role in Role::ALL {
            assert_eq!(serde_json::to_string(&role).unwrap(), format!("\"{role}\""));
            assert_eq!(Role::parse(role.name()), Some(role));
        }
        assert_eq!(Role::parse("All"), None);
    }

    #[test]
    fn roles_send_and_serve_as_documented() {
        let does = |role: Role| (role.sends(), role.serves_api());
        assert_eq!(Role::default(), Role::All);
        assert_eq!(Role::ALL.map(does), [(true, true), (false, true), (true, false)]);
    }
}
