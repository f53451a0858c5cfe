//! The roles of callers, and the expected result for each.

use redrive_core::Time;
use redrive_tests::{id, millis, text, user_login::LoginBrowser};
use serde_json::{Value, json};

use super::{
    fixture::{ACME, Fixture, GLOBEX, SESSION_PREFIX},
    table::{RequiredRole, Row},
};

/// The role of a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// A caller without a key.
    Anonymous,
    /// A caller with a malformed key.
    Malformed,
    /// A caller with a revoked key.
    Revoked,
    /// A caller with an expired key.
    Expired,
    /// A caller with another tenant's key that has all scopes.
    OtherTenant,
    /// A caller with another tenant's portal session.
    OtherPortal,
    /// An admin who acts for another tenant.
    AdminForOther,
    /// A caller with the tenant's own key and the scope `publish`.
    Publisher,
    /// A caller with the tenant's own key and the scope `read`.
    Reader,
    /// A caller with the tenant's own key and the scope `manage`.
    Manager,
    /// A caller with the tenant's portal session, which has the default capabilities.
    Portal,
    /// A portal session with only the capability `view`.
    PortalViewer,
    /// A portal session with only the capability `manage_endpoints`.
    PortalEndpoints,
    /// A portal session with only the capability `resend`.
    PortalResend,
    /// A portal session with only the capability `secrets`.
    PortalSecrets,
    /// An admin who acts for the tenant.
    AdminForOwner,
    /// A user with the role viewer, on a page about the tenant.
    ViewerUser,
    /// A user with the role operator, on a page about the tenant.
    OperatorUser,
    /// A user with the role admin, on a page about the tenant.
    AdminUser,
}

/// The expected result of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expectation {
    /// This status, without data of the tenant.
    Refused(u16),
    /// Success, without data of the tenant.
    Own,
    /// Success on the tenant's objects.
    Allowed,
    /// Not tested: the route does not distinguish tenants, or works only once.
    NotAsked,
}

impl Role {
    /// All roles.
    const ALL: [Self; 19] = [
        Self::Anonymous,
        Self::Malformed,
        Self::Revoked,
        Self::Expired,
        Self::OtherTenant,
        Self::OtherPortal,
        Self::AdminForOther,
        Self::Publisher,
        Self::Reader,
        Self::Manager,
        Self::Portal,
        Self::PortalViewer,
        Self::PortalEndpoints,
        Self::PortalResend,
        Self::PortalSecrets,
        Self::AdminForOwner,
        Self::ViewerUser,
        Self::OperatorUser,
        Self::AdminUser,
    ];

    /// Returns the capabilities of a portal session of the tenant, or `None` for other roles.
    fn capabilities(self) -> Option<&'static [&'static str]> {
        Some(match self {
            Self::Portal => &["view", "manage_endpoints", "resend", "secrets"],
            Self::PortalViewer => &["view"],
            Self::PortalEndpoints => &["manage_endpoints"],
            Self::PortalResend => &["resend"],
            Self::PortalSecrets => &["secrets"],
            _ => return None,
        })
    }

    /// Returns the expected result for this role on a route that takes a tenant or does not.
    pub(crate) fn due(self, row: &Row, takes_tenant: bool) -> Expectation {
        // A tenant is deleted once, with the admin key.
        if self == Self::AdminUser && row.method == "DELETE" && row.path == "/v1/tenants/{id}" {
            return Expectation::NotAsked;
        }
        if let Some(allowed) = self.allows_user(row.need) {
            return if allowed { Expectation::Allowed } else { Expectation::Refused(403) };
        }
        let need = match row.need {
            RequiredRole::AllTenants => RequiredRole::Admin,
            RequiredRole::Erase => RequiredRole::Operate,
            need => need,
        };
        let foreign = if row.names_an_object() { Expectation::Refused(404) } else { Expectation::Own };
        if let Some(capabilities) = self.capabilities() {
            let needed = match need {
                RequiredRole::Public => return Expectation::Own,
                RequiredRole::Admin | RequiredRole::Publish | RequiredRole::Operate => {
                    return Expectation::Refused(403);
                }
                RequiredRole::Read => return Expectation::Allowed,
                RequiredRole::Endpoints => "manage_endpoints",
                RequiredRole::Resend => "resend",
                RequiredRole::Secrets => "secrets",
                RequiredRole::AllTenants | RequiredRole::Erase => unreachable!("replaced above"),
            };
            return if capabilities.contains(&needed) {
                Expectation::Allowed
            } else {
                Expectation::Refused(403)
            };
        }
        match (self, need) {
            (Self::AdminForOther | Self::AdminForOwner, RequiredRole::Public) => Expectation::NotAsked,
            (_, RequiredRole::Public) => Expectation::Own,
            (Self::Anonymous | Self::Malformed | Self::Revoked | Self::Expired, _) => {
                Expectation::Refused(401)
            }
            (Self::AdminForOwner, _) => Expectation::Allowed,
            (Self::AdminForOther, RequiredRole::Admin) => Expectation::NotAsked,
            (Self::AdminForOther, _) if takes_tenant => foreign,
            (Self::AdminForOther, _) => Expectation::NotAsked,
            (_, RequiredRole::Admin) => Expectation::Refused(403),
            (Self::OtherPortal, RequiredRole::Publish | RequiredRole::Operate) => Expectation::Refused(403),
            (Self::OtherTenant | Self::OtherPortal, _) => foreign,
            (Self::Publisher, RequiredRole::Publish)
            | (Self::Reader, RequiredRole::Read)
            | (
                Self::Manager,
                RequiredRole::Read
                | RequiredRole::Operate
                | RequiredRole::Endpoints
                | RequiredRole::Resend
                | RequiredRole::Secrets,
            ) => Expectation::Allowed,
            _ => Expectation::Refused(403),
        }
    }

    /// Returns whether a user with this role may call routes that need this. Returns `None` for other roles, and for
    /// public routes.
    fn allows_user(self, need: RequiredRole) -> Option<bool> {
        match (self, need) {
            (_, RequiredRole::Public) => None,
            (Self::ViewerUser, need) => Some(matches!(need, RequiredRole::Read | RequiredRole::AllTenants)),
            (Self::OperatorUser, need) => Some(!matches!(need, RequiredRole::Admin | RequiredRole::Erase)),
            (Self::AdminUser, _) => Some(true),
            _ => None,
        }
    }

    /// Returns the tenant that this role names in its requests.
    pub(crate) fn names_tenant(self) -> Option<&'static str> {
        match self {
            Self::AdminForOther => Some(GLOBEX),
            Self::AdminForOwner | Self::ViewerUser | Self::OperatorUser | Self::AdminUser => Some(ACME),
            _ => None,
        }
    }
}

/// A role with all its variants of the `Authorization` header.
pub(crate) struct Caller {
    pub(crate) role: Role,
    pub(crate) authorizations: Vec<Option<String>>,
}

/// Returns one caller for each role.
pub(crate) async fn callers(fixture: &Fixture) -> Vec<Caller> {
    let mut callers = Vec::new();
    for role in Role::ALL {
        callers.push(Caller { role, authorizations: authorizations(fixture, role).await });
    }
    callers
}

async fn authorizations(fixture: &Fixture, role: Role) -> Vec<Option<String>> {
    let scoped = async |tenant, scopes| vec![Some(bearer(&new_key(fixture, tenant, scopes).await))];
    match role {
        Role::Anonymous => vec![None],
        Role::Malformed => malformed(fixture.redrive.key()).into_iter().map(Some).collect(),
        Role::Revoked => vec![Some(bearer(&revoked(fixture).await))],
        Role::OtherTenant => scoped(GLOBEX, json!(["publish", "read", "manage"])).await,
        Role::Publisher => scoped(ACME, json!(["publish"])).await,
        Role::Reader => scoped(ACME, json!(["read"])).await,
        Role::Manager => scoped(ACME, json!(["manage"])).await,
        Role::AdminForOther | Role::AdminForOwner => vec![Some(bearer(fixture.redrive.key()))],
        Role::ViewerUser => vec![Some(user_session(fixture, "readers").await)],
        Role::OperatorUser => vec![Some(user_session(fixture, "support").await)],
        Role::AdminUser => vec![Some(user_session(fixture, "platform").await)],
        Role::Expired => vec![Some(bearer(&expired(fixture).await))],
        Role::OtherPortal => vec![Some(bearer(&portal_token(fixture, GLOBEX, None).await))],
        // A session created without capabilities has the default ones.
        Role::Portal => vec![Some(bearer(&portal_token(fixture, ACME, None).await))],
        Role::PortalViewer | Role::PortalEndpoints | Role::PortalResend | Role::PortalSecrets => {
            vec![Some(bearer(&portal_token(fixture, ACME, role.capabilities()).await))]
        }
    }
}

/// Logs a user of this group in, and returns the session with the token of its pages, for `call`.
async fn user_session(fixture: &Fixture, group: &str) -> String {
    fixture.provider.set_user(group, "Jane Doe", &[group]);
    let browser = LoginBrowser::new(&fixture.redrive, "").logged_in().await;
    let token = browser.token("/dashboard/session").await;
    format!("{SESSION_PREFIX}{} {token}", browser.cookie)
}

fn bearer(key: &str) -> String {
    format!("Bearer {key}")
}

/// Returns malformed headers that resemble one with this key.
fn malformed(key: &str) -> Vec<String> {
    let (shorter, _) = key.split_at(key.len() - 1);
    vec![
        String::new(),
        "Bearer".into(),
        "Bearer ".into(),
        "Bearer null".into(),
        key.into(),
        bearer("rdk_x"),
        bearer(shorter),
        bearer(&format!("{key}0")),
        bearer(&key.to_uppercase()),
        bearer(&format!("{key} {key}")),
        bearer(&format!("\"{key}\"")),
        format!("Basic {key}"),
        format!("Token {key}"),
    ]
}

async fn new_key(fixture: &Fixture, tenant: &str, scopes: Value) -> String {
    text(&fixture.key(tenant, json!({"scopes": scopes})).await["key"]).to_owned()
}

/// Returns a key that worked until it was revoked.
async fn revoked(fixture: &Fixture) -> String {
    let key = fixture.key(ACME, json!({})).await;
    let secret = text(&key["key"]).to_owned();
    let api = fixture.admin.with_key(&secret);
    api.get("/v1/webhooks").await.expect(200);
    fixture.admin.delete(&format!("/v1/tenants/{ACME}/api-keys/{}", id(&key))).await.expect(204);
    secret
}

/// Returns a key that worked until it expired.
async fn expired(fixture: &Fixture) -> String {
    let now = millis(&fixture.key(ACME, json!({})).await["created_at"]);
    let soon = Time::from_millis(now + 2_000).to_string();
    let secret = text(&fixture.key(ACME, json!({"expires_at": soon})).await["key"]).to_owned();
    let api = fixture.admin.with_key(&secret);
    api.get("/v1/webhooks").await.expect(200);
    while api.get("/v1/webhooks").await.status != 401 {
        assert!(clock(fixture).await < now + 20_000, "a key still works long after {soon}");
    }
    secret
}

/// Returns the server's time, in milliseconds.
async fn clock(fixture: &Fixture) -> i64 {
    millis(&fixture.admin.publish("what.time.is.it", json!(null)).await["timestamp"])
}

/// Returns the token of a new portal session.
async fn portal_token(fixture: &Fixture, tenant: &str, capabilities: Option<&[&str]>) -> String {
    let session = json!({"tenant_id": tenant, "capabilities": capabilities});
    let session = fixture.admin.post("/v1/portal-sessions", session).await.expect(201);
    text(&session["token"]).to_owned()
}
