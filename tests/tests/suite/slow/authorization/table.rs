//! The required role of every API route. A new route fails the authorization test until it has a row.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use RequiredRole::{Admin, AllTenants, Endpoints, Erase, Operate, Public, Publish, Read, Resend, Secrets};

/// The required role of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequiredRole {
    /// No key.
    Public,
    /// A key of the tenant with the scope `publish`.
    Publish,
    /// A key of the tenant with the scope `read`, or `manage`, which includes it.
    Read,
    /// A key with the scope `manage`, or a portal session with the capability `manage_endpoints`.
    Endpoints,
    /// A key with the scope `manage`, or a portal session with the capability `resend`.
    Resend,
    /// A key with the scope `manage`, or a portal session with the capability `secrets`.
    Secrets,
    /// A key with the scope `manage`, and no portal session.
    Operate,
    /// As `Operate`, but not a user with the role operator.
    Erase,
    /// An admin key, or a user of any role.
    AllTenants,
    /// An admin key, or a user with the role admin.
    Admin,
}

/// A route, its required role, and a call of it that succeeds.
pub(crate) struct Row {
    pub(crate) method: &'static str,
    pub(crate) path: &'static str,
    pub(crate) need: RequiredRole,
    /// The body to send; empty for none. `{unique}` is replaced by a new number each time.
    pub(crate) body: &'static str,
    /// The response status for an authorized caller.
    pub(crate) success: u16,
}

impl Row {
    /// Returns the body with a unique value in it.
    pub(crate) fn fresh_body(&self) -> String {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        self.body.replace("{unique}", &NEXT.fetch_add(1, Relaxed).to_string())
    }

    /// Returns whether the path names an object of a tenant.
    pub(crate) fn names_an_object(&self) -> bool {
        self.path.contains('{') && !matches!(self.need, Admin | AllTenants)
    }
}

const fn row(
    method: &'static str,
    path: &'static str,
    need: RequiredRole,
    body: &'static str,
    success: u16,
) -> Row {
    Row { method, path, need, body, success }
}

const WEBHOOK: &str = r#"{"url": "https://example.com/", "events": ["never.published"]}"#;
const EVENT: &str = r#"{"event_type": "no.subscribers", "data": 1}"#;
const BATCH: &str = r#"{"events": [{"event_type": "no.subscribers", "data": 1}]}"#;
const CHANGE: &str = r#"{"description": "changed"}"#;

/// Every route of the API.
pub(crate) const TABLE: &[Row] = &[
    row("GET", "/healthz", Public, "", 200),
    row("GET", "/readyz", Public, "", 200),
    row("GET", "/metrics", Public, "", 200),
    row("GET", "/metrics/tenants", Admin, "", 200),
    row("GET", "/v1/webhooks", Read, "", 200),
    row("POST", "/v1/webhooks", Endpoints, WEBHOOK, 201),
    row("GET", "/v1/webhooks/{id}", Read, "", 200),
    row("PUT", "/v1/webhooks/{id}", Endpoints, CHANGE, 200),
    row("PATCH", "/v1/webhooks/{id}", Endpoints, CHANGE, 200),
    row("DELETE", "/v1/webhooks/{id}", Endpoints, "", 204),
    row("POST", "/v1/webhooks/{id}/rotate-secret", Secrets, "{}", 200),
    row("POST", "/v1/webhooks/{id}/test", Endpoints, "{}", 202),
    row("POST", "/v1/webhooks/{id}/filter/test", Read, r#"{"data": {}}"#, 200),
    row("POST", "/v1/webhooks/{id}/pause", Endpoints, "{}", 200),
    row("POST", "/v1/webhooks/{id}/resume", Endpoints, "{}", 200),
    row("POST", "/v1/webhooks/{id}/enable", Endpoints, "{}", 200),
    row("POST", "/v1/webhooks/{id}/disable", Endpoints, "{}", 200),
    row("POST", "/v1/webhooks/{id}/verify", Endpoints, "{}", 200),
    row("PATCH", "/v1/webhooks/{id}/circuit-breaker", Endpoints, r#"{"action": "reset"}"#, 200),
    row("GET", "/v1/webhooks/{id}/health", Read, "", 200),
    row(
        "POST",
        "/v1/webhooks/{id}/backfill",
        Resend,
        r#"{"from": "2026-01-01T00:00:00Z", "dry_run": true}"#,
        200,
    ),
    row("GET", "/v1/webhooks/{id}/deliveries", Read, "", 200),
    row("POST", "/v1/webhooks/{id}/deliveries/{delivery_id}/retry", Resend, "{}", 202),
    row("GET", "/v1/events", Read, "", 200),
    row("POST", "/v1/events", Publish, EVENT, 202),
    row("POST", "/v1/events/batch", Publish, BATCH, 202),
    // Without a path and a value there is nothing to search for.
    row("GET", "/v1/events/search", Read, "", 400),
    row("GET", "/v1/search", Read, "", 200),
    row("GET", "/v1/events/{id}", Read, "", 200),
    row("GET", "/v1/events/{id}/deliveries", Read, "", 200),
    row("GET", "/v1/events/{id}/attempts", Read, "", 200),
    row("POST", "/v1/events/{id}/replay", Resend, "{}", 202),
    row("POST", "/v1/events/{id}/resend-edited", Publish, r#"{"data": {}}"#, 202),
    row("POST", "/v1/events/{id}/erase", Erase, "", 200),
    row("POST", "/v1/events/erase", Erase, r#"{"subject": "unknown"}"#, 200),
    row("GET", "/v1/deliveries", Read, "", 200),
    row("GET", "/v1/deliveries/{id}", Read, "", 200),
    row("GET", "/v1/deliveries/{id}/attempts", Read, "", 200),
    row("GET", "/v1/attempts", Read, "", 200),
    row("GET", "/v1/attempts/{id}", Read, "", 200),
    row("POST", "/v1/deliveries/{id}/retry", Resend, "{}", 202),
    row("POST", "/v1/deliveries/{id}/cancel", Resend, "{}", 202),
    row(
        "POST",
        "/v1/deliveries/retry-batch",
        Resend,
        r#"{"filter": {"event_types": ["no.subscribers"]}}"#,
        202,
    ),
    row(
        "POST",
        "/v1/deliveries/cancel-batch",
        Resend,
        r#"{"filter": {"event_types": ["no.subscribers"]}}"#,
        200,
    ),
    row("GET", "/v1/dlq", Read, "", 200),
    row("POST", "/v1/dlq/retry-batch", Resend, r#"{"filter": {"event_types": ["no.subscribers"]}}"#, 202),
    row("DELETE", "/v1/dlq", Resend, "", 200),
    row("GET", "/v1/dlq/batch-operations", Read, "", 200),
    row("GET", "/v1/dlq/batch-operations/{id}", Read, "", 200),
    row("POST", "/v1/dlq/batch-operations/{id}/pause", Resend, "{}", 200),
    row("POST", "/v1/dlq/batch-operations/{id}/resume", Resend, "{}", 200),
    row("POST", "/v1/dlq/batch-operations/{id}/cancel", Resend, "{}", 200),
    row("GET", "/v1/dlq/stats", Read, "", 200),
    row("GET", "/v1/dlq/export", Read, "", 200),
    row("GET", "/v1/deliveries/export", Read, "", 200),
    row("GET", "/v1/events/export", Read, "", 200),
    row("GET", "/v1/event-types", Read, "", 200),
    row("POST", "/v1/event-types", Operate, r#"{"name": "created.by.the.test.{unique}"}"#, 201),
    row("GET", "/v1/event-types/{name}", Read, "", 200),
    row("PUT", "/v1/event-types/{name}", Operate, CHANGE, 200),
    row("PATCH", "/v1/event-types/{name}", Operate, CHANGE, 200),
    row("DELETE", "/v1/event-types/{name}", Operate, "", 204),
    row("GET", "/v1/notification-preferences", Read, "", 200),
    row(
        "PATCH",
        "/v1/notification-preferences",
        Endpoints,
        r#"{"muted_kinds": ["secret.rotation_due"]}"#,
        200,
    ),
    row("GET", "/v1/notification-preferences/unsubscriptions", Read, "", 200),
    row("POST", "/v1/notification-preferences/confirm", Admin, r#"{"email": "jane@example.com"}"#, 200),
    row(
        "POST",
        "/v1/notification-preferences/confirmations",
        Endpoints,
        r#"{"email": "jane@example.com"}"#,
        409,
    ),
    row("GET", "/v1/tenants", AllTenants, "", 200),
    row("POST", "/v1/tenants", Admin, r#"{"id": "created-by-the-test-{unique}"}"#, 201),
    row("GET", "/v1/tenants/{id}", AllTenants, "", 200),
    row("PATCH", "/v1/tenants/{id}", Admin, r#"{"name": "changed"}"#, 200),
    row("GET", "/v1/tenants/{id}/api-keys", Admin, "", 200),
    row("POST", "/v1/tenants/{id}/api-keys", Admin, r#"{"scopes": ["read"]}"#, 201),
    row("DELETE", "/v1/tenants/{id}/api-keys/{key_id}", Admin, "", 204),
    row("POST", "/v1/portal-sessions", Admin, r#"{"tenant_id": "acme"}"#, 201),
    row("DELETE", "/v1/portal-sessions/{id}", Admin, "", 204),
    row("GET", "/v1/notifications", Read, "", 200),
    row("GET", "/v1/overview", Read, "", 200),
    row("GET", "/v1/audit-log", Admin, "", 200),
    row("GET", "/v1/status", AllTenants, "", 200),
    row("GET", "/v1/clock", Admin, "", 200),
    row("POST", "/v1/clock/confirm", Admin, "{}", 200),
    row("POST", "/v1/secrets/rotate-master-key", Admin, "{}", 200),
    row("GET", "/v1/user-sessions", Admin, "", 200),
    // No session has this id.
    row("DELETE", "/v1/user-sessions/{session_id}", Admin, "", 404),
    row("DELETE", "/v1/users/{subject}/sessions", Admin, "", 200),
    row("GET", "/v1/admin-keys", Admin, "", 200),
    row("POST", "/v1/admin-keys", Admin, "{}", 201),
    row("DELETE", "/v1/admin-keys/{key_id}", Admin, "", 204),
    // Last, because the objects of a deleted tenant can no longer be accessed.
    row("DELETE", "/v1/tenants/{id}", Admin, "", 204),
];
