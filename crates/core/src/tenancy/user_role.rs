//! Roles of users who log in to the dashboard, and how the groups of the identity provider grant them.

/// Role of a user in all tenants. A greater role includes the smaller ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum UserRole {
    /// Reads everything of any tenant, without keys and secrets.
    Viewer,
    /// Also changes webhooks, deliveries and event types, and publishes events.
    Operator,
    /// May do everything.
    Admin,
}

impl UserRole {
    /// All roles, the smallest first.
    pub const ALL: [Self; 3] = [Self::Viewer, Self::Operator, Self::Admin];

    /// Returns the name used in the API, the settings and the dashboard.
    pub fn name(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::Operator => "operator",
            Self::Admin => "admin",
        }
    }
}

/// Names of the groups whose members have each role.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RoleGroups {
    /// Groups of viewers.
    pub viewer: Vec<String>,
    /// Groups of operators.
    pub operator: Vec<String>,
    /// Groups of admins.
    pub admin: Vec<String>,
}

impl RoleGroups {
    /// Returns the greatest role that one of these groups grants. Returns `None` if none of them grants a role. Names
    /// are compared exactly, because providers distinguish upper and lower case.
    pub fn role_of<S: AsRef<str>>(&self, groups: &[S]) -> Option<UserRole> {
        let names = |role| match role {
            UserRole::Viewer => &self.viewer,
            UserRole::Operator => &self.operator,
            UserRole::Admin => &self.admin,
        };
        let is_member = |role: &UserRole| {
            groups.iter().any(|group| names(*role).iter().any(|name| name == group.as_ref()))
        };
        UserRole::ALL.into_iter().rev().find(is_member)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn greatest_role_of_all_groups_is_granted() {
        let named = |name: &str| vec![name.to_owned(), format!("{name}-too")];
        let groups =
            RoleGroups { viewer: named("readers"), operator: named("support"), admin: named("platform") };
        for (of, role) in [
            (&["readers"][..], Some(UserRole::Viewer)),
            (&["support-too"], Some(UserRole::Operator)),
            (&["readers", "platform", "support"], Some(UserRole::Admin)),
            (&["unknown", "readers"], Some(UserRole::Viewer)),
            (&["Readers", "reader", "readers ", ""], None),
            (&[], None),
        ] {
            assert_eq!(groups.role_of(of), role, "{of:?}");
        }
        assert_eq!(RoleGroups::default().role_of(&[""]), None);
    }
}
