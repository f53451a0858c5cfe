//! Two tenants on a real server, each with objects of every kind.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use redrive_testkit::{Api, ApiResponse, IdentityProvider, Receiver, Redrive, Reply, Setup};
use redrive_tests::{delivery_of, id, text, wait_for_status};
use serde_json::{Value, json};

use super::{
    document::{Document, Route},
    table::Row,
};

/// The tenant whose objects are accessed.
pub(crate) const ACME: &str = "acme";
/// The tenant of foreign callers.
pub(crate) const GLOBEX: &str = "globex";

/// A server with both tenants, and the receiver of their events.
pub(crate) struct Fixture {
    pub(crate) redrive: Redrive,
    pub(crate) admin: Api,
    pub(crate) document: Document,
    /// The provider that users log in with.
    pub(crate) provider: IdentityProvider,
    receiver: Receiver,
}

/// A tenant with a client whose key has all scopes.
pub(crate) struct Tenant {
    pub(crate) name: &'static str,
    pub(crate) api: Api,
    pub(crate) things: TenantObjects,
}

/// One object of every kind that a tenant can have.
#[derive(Clone)]
pub(crate) struct TenantObjects {
    pub(crate) tenant: &'static str,
    /// An active webhook, with a delivered and a dead delivery.
    pub(crate) webhook: String,
    /// A paused webhook, with a pending delivery.
    pub(crate) paused: String,
    pub(crate) event: String,
    /// A dead delivery of `event` to `webhook`.
    pub(crate) dead: String,
    /// The attempt of `dead`.
    pub(crate) attempt: String,
    /// A delivery that succeeded at `webhook`.
    pub(crate) delivered: String,
    /// A pending delivery of `paused`.
    pub(crate) pending: String,
    /// A bulk operation that is scheduled far in the future.
    pub(crate) operation: String,
    /// The name of an event type.
    pub(crate) event_type: String,
    /// The id of an API key.
    pub(crate) key: String,
    /// The id of a portal session.
    pub(crate) session: String,
    pub(crate) admin_key: String,
}

impl Fixture {
    pub(crate) async fn start() -> Self {
        let provider = IdentityProvider::start().await;
        let settings = provider.settings().into_iter();
        let setup = settings.fold(Setup::new(), |setup, (name, value)| setup.env(name, value));
        let redrive = Redrive::start_with(setup).await;
        let admin = redrive.api();
        let document = Document::load(&admin).await;
        let receiver = Receiver::with(|arrival| match arrival.json()["data"]["fails"] == true {
            true => Reply::status(400).body("refused"),
            false => Reply::status(200),
        })
        .await;
        Self { redrive, admin, document, provider, receiver }
    }

    /// Creates a tenant with objects of every kind.
    pub(crate) async fn tenant(&self, name: &'static str) -> Tenant {
        self.admin.post("/v1/tenants", json!({"id": name, "name": secret_of(name)})).await.expect(201);
        let key = self.key(name, json!({"name": secret_of(name)})).await;
        let api = self.admin.with_key(text(&key["key"]));
        let things = self.things(name, &api).await;
        Tenant { name, api, things }
    }

    /// Creates an API key of a tenant.
    pub(crate) async fn key(&self, tenant: &str, body: Value) -> Value {
        self.admin.post(&format!("/v1/tenants/{tenant}/api-keys"), body).await.expect(201)
    }

    /// Creates one more object of every kind for a tenant. Each webhook subscribes to event types of its own.
    pub(crate) async fn things(&self, tenant: &'static str, api: &Api) -> TenantObjects {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let number = NEXT.fetch_add(1, Relaxed);
        let (sent, held) = (format!("sent.{number}"), format!("held.{number}"));
        let url = self.receiver.url();
        let once = json!({"max_attempts": 1});
        let secret = secret_of(tenant);
        let sends = json!({"events": [sent], "retry_config": once, "description": secret});
        let webhook = api.create_webhook(&url, sends).await;
        let holds = json!({"events": [held], "state": "paused", "description": secret});
        let paused = api.create_webhook(&url, holds).await;

        let taken = api.publish(&sent, json!({"secret": secret})).await;
        let refused = api.publish(&sent, json!({"secret": secret, "fails": true})).await;
        let waiting = api.publish(&held, json!({"secret": secret})).await;
        let delivered = delivery_of(api, &taken).await;
        let dead = delivery_of(api, &refused).await;
        wait_for_status(api, id(&delivered), "delivered").await;
        wait_for_status(api, id(&dead), "dead").await;
        let pending = delivery_of(api, &waiting).await;
        let attempts = api.get(&format!("/v1/deliveries/{}/attempts", id(&dead))).await.expect(200);
        // The filter names its webhook: portal sessions do not see operations that may include the operator's webhooks.
        let filter = json!({"event_types": [secret], "webhook_ids": [id(&webhook)]});
        let later = json!({"start_at": "2100-01-01T00:00:00Z", "filter": filter});
        let operation = api.post("/v1/dlq/retry-batch", later).await.expect(202);
        // Type names are scoped to a tenant; this one is unique to it.
        let event_type = format!("type-of-{tenant}.{number}0");
        let registered = json!({"name": event_type, "description": secret});
        api.post("/v1/event-types", registered).await.expect(201);
        let key = self.key(tenant, json!({"scopes": ["read"]})).await;
        let admin_key = self.admin.post("/v1/admin-keys", json!({})).await.expect(201);
        let session = self.admin.post("/v1/portal-sessions", json!({"tenant_id": tenant})).await.expect(201);
        let own = |object: &Value| id(object).to_owned();
        TenantObjects {
            tenant,
            webhook: own(&webhook),
            paused: own(&paused),
            event: own(&refused),
            dead: own(&dead),
            attempt: own(&attempts["data"][0]),
            delivered: own(&delivered),
            pending: own(&pending),
            operation: own(&operation),
            event_type,
            key: own(&key),
            admin_key: own(&admin_key),
            session: own(&session),
        }
    }

    /// Returns the current state of all objects of a tenant.
    pub(crate) async fn snapshot(&self, tenant: &Tenant) -> Vec<Value> {
        let mut shown = Vec::new();
        for listing in ["webhooks", "events", "deliveries", "dlq", "dlq/batch-operations", "event-types"] {
            shown.push(tenant.api.get(&format!("/v1/{listing}?limit=500")).await.expect(200));
        }
        for part in ["", "/api-keys?limit=500"] {
            let mut part = self.admin.get(&format!("/v1/tenants/{}{part}", tenant.name)).await.expect(200);
            // A rejected call counts as use of a key too, and the time of last use is stored later.
            for key in part["data"].as_array_mut().into_iter().flatten() {
                key.as_object_mut().and_then(|key| key.remove("last_used_at"));
            }
            shown.push(part);
        }
        shown
    }
}

/// Returns a text that is in every text field of a tenant's objects.
pub(crate) fn secret_of(tenant: &str) -> String {
    format!("only {tenant} knows")
}

impl TenantObjects {
    /// Replaces the placeholders of a path by the ids of these objects.
    pub(crate) fn fill(&self, path: &str) -> String {
        let id = match path.split('/').nth(2) {
            Some("webhooks") if path.ends_with("/resume") => &self.paused,
            Some("webhooks") => &self.webhook,
            Some("events") => &self.event,
            Some("deliveries") if path.ends_with("/cancel") => &self.pending,
            Some("deliveries") => &self.dead,
            Some("attempts") => &self.attempt,
            Some("dlq") => &self.operation,
            Some("portal-sessions") => &self.session,
            _ => self.tenant,
        };
        let key = if path.starts_with("/v1/admin-keys") { &self.admin_key } else { &self.key };
        let path = path.replace("{name}", &self.event_type).replace("{subject}", "nobody");
        let path = path.replace("{session_id}", &"A".repeat(43));
        let path = path.replace("{id}", id).replace("{delivery_id}", &self.dead).replace("{key_id}", key);
        assert!(!path.contains('{'), "add the placeholder of {path} to Things::fill");
        path
    }

    /// Returns ids of the same form that do not exist.
    pub(crate) fn nonexistent_ids(&self) -> Self {
        fn other(id: &str) -> String {
            let (rest, last) = id.split_at(id.len() - 1);
            format!("{rest}{}", if last == "0" { "1" } else { "0" })
        }
        Self {
            tenant: "unknown",
            webhook: other(&self.webhook),
            paused: other(&self.paused),
            event: other(&self.event),
            dead: other(&self.dead),
            attempt: other(&self.attempt),
            delivered: other(&self.delivered),
            pending: other(&self.pending),
            operation: other(&self.operation),
            event_type: other(&self.event_type),
            key: other(&self.key),
            admin_key: other(&self.admin_key),
            session: other(&self.session),
        }
    }

    /// Panics if a response contains data of these objects.
    #[track_caller]
    pub(crate) fn assert_not_leaked(&self, response: &ApiResponse, why: &str) {
        let body = String::from_utf8_lossy(&response.body);
        let ids = [&self.webhook, &self.paused, &self.event, &self.dead, &self.delivered, &self.pending];
        let ids = ids.into_iter().chain([&self.attempt, &self.event_type, &self.operation, &self.key]);
        let mut reported = ids.filter(|id| body.contains(*id));
        assert_eq!(reported.next(), None, "{why}: {body}");
        assert!(!body.contains(&secret_of(self.tenant)), "{why}: {body}");
    }
}

/// Begins an `authorization` that is a session of a browser: its cookie and the token of its pages.
pub(crate) const SESSION_PREFIX: &str = "session ";

/// Calls a route. `authorization` is the unmodified value of that header, or a session.
pub(crate) async fn call(
    api: &Api,
    row: &Row,
    path: &str,
    body: &str,
    authorization: Option<&str>,
) -> ApiResponse {
    let mut headers = Vec::new();
    if !body.is_empty() {
        headers.push(("content-type", "application/json"));
    }
    let session = authorization.and_then(|value| value.strip_prefix(SESSION_PREFIX)?.split_once(' '));
    match (session, authorization) {
        (Some((cookie, token)), _) => headers.extend([("cookie", cookie), ("x-redrive-token", token)]),
        (None, Some(value)) => headers.push(("authorization", value)),
        (None, None) => {}
    }
    api.without_key().raw(row.method, path, &headers, body.to_owned()).await
}

impl Row {
    pub(crate) fn route(&self) -> Route {
        Route { method: self.method.into(), path: self.path.into() }
    }
}
