//! What a node is there for.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What a node does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum Role {
    /// Everything.
    #[default]
    All,
    /// Takes events and answers questions, but sends nothing.
    Api,
    /// Sends, but takes no events.
    Worker,
}

impl Role {
    /// Every role.
    pub const ALL: [Self; 3] = [Self::All, Self::Api, Self::Worker];

    /// The name used everywhere.
    pub fn name(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Api => "api",
            Self::Worker => "worker",
        }
    }

    /// Reads a name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.name() == name)
    }

    /// Whether it sends deliveries.
    pub fn sends(self) -> bool {
        matches!(self, Self::All | Self::Worker)
    }

    /// Whether it serves the API.
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
    fn names_are_those_on_the_wire() {
        for role in Role::ALL {
            assert_eq!(serde_json::to_string(&role).unwrap(), format!("\"{role}\""));
            assert_eq!(Role::parse(role.name()), Some(role));
        }
        assert_eq!(Role::parse("All"), None);
    }

    #[test]
    fn each_role_does_its_part() {
        let does = |role: Role| (role.sends(), role.serves_api());
        assert_eq!(Role::default(), Role::All);
        assert_eq!(Role::ALL.map(does), [(true, true), (false, true), (true, false)]);
    }
}
