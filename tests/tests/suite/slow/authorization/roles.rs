//! Who calls, and what each of them is to get.

use redrive_core::Time;
use redrive_tests::{id, millis, text};
use serde_json::{Value, json};

use super::{
    fixture::{ACME, GLOBEX, World},
    table::{Need, Row},
};

/// Somebody who calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Without a key.
    Stranger,
    /// With something that is no key.
    Malformed,
    /// With a key that was revoked.
    Revoked,
    /// With a key whose time is over.
    Expired,
    /// With another tenant's key that may do everything there.
    OtherTenant,
    /// With another tenant's portal session.
    OtherPortal,
    /// An admin who acts for another tenant.
    AdminForOther,
    /// With the tenant's own key, for publishing alone.
    Publisher,
    /// For reading alone.
    Reader,
    /// For managing alone.
    Manager,
    /// With the tenant's portal session, which has the default capabilities.
    Portal,
    /// With one that may only look.
    PortalViewer,
    /// With one that may only manage endpoints.
    PortalEndpoints,
    /// With one that may only send again.
    PortalResend,
    /// With one that may only handle secrets.
    PortalSecrets,
    /// An admin who acts for the tenant.
    AdminForOwner,
}

/// What a caller is to get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    /// This status, and nothing of the tenant's.
    Refused(u16),
    /// What the route is for, but nothing of the tenant's.
    Own,
    /// What the route is for.
    Allowed,
    /// Nothing that could be asked: the route knows no tenants.
    NotAsked,
}

impl Role {
    /// Whom the matrix has a column for.
    const ALL: [Self; 16] = [
        Self::Stranger,
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
    ];

    /// The capabilities of a portal session of the tenant; `None` for other callers.
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

    /// What this caller is to get from a route, which takes a tenant or does not.
    pub(crate) fn due(self, row: &Row, takes_tenant: bool) -> Due {
        let foreign = if row.names_an_object() { Due::Refused(404) } else { Due::Own };
        if let Some(capabilities) = self.capabilities() {
            let needed = match row.need {
                Need::Public => return Due::Own,
                Need::Admin | Need::Publish | Need::Operate => return Due::Refused(403),
                Need::Read => return Due::Allowed,
                Need::Endpoints => "manage_endpoints",
                Need::Resend => "resend",
                Need::Secrets => "secrets",
            };
            return if capabilities.contains(&needed) { Due::Allowed } else { Due::Refused(403) };
        }
        match (self, row.need) {
            (Self::AdminForOther | Self::AdminForOwner, Need::Public) => Due::NotAsked,
            (_, Need::Public) => Due::Own,
            (Self::Stranger | Self::Malformed | Self::Revoked | Self::Expired, _) => Due::Refused(401),
            (Self::AdminForOwner, _) => Due::Allowed,
            (Self::AdminForOther, Need::Admin) => Due::NotAsked,
            (Self::AdminForOther, _) if takes_tenant => foreign,
            (Self::AdminForOther, _) => Due::NotAsked,
            (_, Need::Admin) => Due::Refused(403),
            (Self::OtherPortal, Need::Publish | Need::Operate) => Due::Refused(403),
            (Self::OtherTenant | Self::OtherPortal, _) => foreign,
            (Self::Publisher, Need::Publish)
            | (Self::Reader, Need::Read)
            | (Self::Manager, Need::Read | Need::Operate | Need::Endpoints | Need::Resend | Need::Secrets) => {
                Due::Allowed
            }
            _ => Due::Refused(403),
        }
    }

    /// The tenant that this caller says it acts for.
    pub(crate) fn names_tenant(self) -> Option<&'static str> {
        match self {
            Self::AdminForOther => Some(GLOBEX),
            Self::AdminForOwner => Some(ACME),
            _ => None,
        }
    }
}

/// A role with what it sends as `Authorization`, in every form that it comes in.
pub(crate) struct Caller {
    pub(crate) role: Role,
    pub(crate) authorizations: Vec<Option<String>>,
}

/// Everybody.
pub(crate) async fn callers(world: &World) -> Vec<Caller> {
    let mut callers = Vec::new();
    for role in Role::ALL {
        callers.push(Caller { role, authorizations: authorizations(world, role).await });
    }
    callers
}

async fn authorizations(world: &World, role: Role) -> Vec<Option<String>> {
    let scoped = async |tenant, scopes| vec![Some(bearer(&new_key(world, tenant, scopes).await))];
    match role {
        Role::Stranger => vec![None],
        Role::Malformed => malformed(world.redrive.key()).into_iter().map(Some).collect(),
        Role::Revoked => vec![Some(bearer(&revoked(world).await))],
        Role::OtherTenant => scoped(GLOBEX, json!(["publish", "read", "manage"])).await,
        Role::Publisher => scoped(ACME, json!(["publish"])).await,
        Role::Reader => scoped(ACME, json!(["read"])).await,
        Role::Manager => scoped(ACME, json!(["manage"])).await,
        Role::AdminForOther | Role::AdminForOwner => vec![Some(bearer(world.redrive.key()))],
        Role::Expired => vec![Some(bearer(&expired(world).await))],
        Role::OtherPortal => vec![Some(bearer(&portal_token(world, GLOBEX, None).await))],
        // The default capabilities are those of a session for which none are named.
        Role::Portal => vec![Some(bearer(&portal_token(world, ACME, None).await))],
        Role::PortalViewer | Role::PortalEndpoints | Role::PortalResend | Role::PortalSecrets => {
            vec![Some(bearer(&portal_token(world, ACME, role.capabilities()).await))]
        }
    }
}

fn bearer(key: &str) -> String {
    format!("Bearer {key}")
}

/// What could pass for a header with this key by mistake.
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

async fn new_key(world: &World, tenant: &str, scopes: Value) -> String {
    text(&world.key(tenant, json!({"scopes": scopes})).await["key"]).to_owned()
}

/// A key that worked until it was revoked.
async fn revoked(world: &World) -> String {
    let key = world.key(ACME, json!({})).await;
    let secret = text(&key["key"]).to_owned();
    let api = world.admin.with_key(&secret);
    api.get("/v1/webhooks").await.expect(200);
    world.admin.delete(&format!("/v1/tenants/{ACME}/api-keys/{}", id(&key))).await.expect(204);
    secret
}

/// A key that worked until its time was over.
async fn expired(world: &World) -> String {
    let now = millis(&world.key(ACME, json!({})).await["created_at"]);
    let soon = Time::from_millis(now + 2_000).to_string();
    let secret = text(&world.key(ACME, json!({"expires_at": soon})).await["key"]).to_owned();
    let api = world.admin.with_key(&secret);
    api.get("/v1/webhooks").await.expect(200);
    while api.get("/v1/webhooks").await.status != 401 {
        assert!(clock(world).await < now + 20_000, "a key still works long after {soon}");
    }
    secret
}

/// The server's own time, in milliseconds.
async fn clock(world: &World) -> i64 {
    millis(&world.admin.publish("what.time.is.it", json!(null)).await["timestamp"])
}

/// What a browser in a tenant's portal sends.
async fn portal_token(world: &World, tenant: &str, capabilities: Option<&[&str]>) -> String {
    let session = json!({"tenant_id": tenant, "capabilities": capabilities});
    let session = world.admin.post("/v1/portal-sessions", session).await.expect(201);
    text(&session["token"]).to_owned()
}
