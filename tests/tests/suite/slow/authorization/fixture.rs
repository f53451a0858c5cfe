//! Two tenants on a real server, each with something of everything.

use redrive_testkit::{Answer, Api, Receiver, Redrive, Reply};
use redrive_tests::{delivery_is, delivery_of, entries, id, text};
use serde_json::{Value, json};

use super::{
    document::{Document, Route},
    table::Row,
};

/// The tenant whose things everybody is after.
pub(crate) const ACME: &str = "acme";
/// The tenant that others act for.
pub(crate) const GLOBEX: &str = "globex";

/// A server with both tenants, and where their events go.
pub(crate) struct World {
    pub(crate) redrive: Redrive,
    pub(crate) admin: Api,
    pub(crate) document: Document,
    receiver: Receiver,
}

/// A tenant with a key that may do everything for it.
pub(crate) struct Tenant {
    pub(crate) name: &'static str,
    pub(crate) api: Api,
    pub(crate) things: Things,
}

/// Something of everything that a tenant can have.
#[derive(Clone)]
pub(crate) struct Things {
    pub(crate) tenant: &'static str,
    /// An active webhook, with deliveries that succeeded and that were given up.
    pub(crate) webhook: String,
    /// A paused one, with a delivery that waits.
    pub(crate) paused: String,
    pub(crate) event: String,
    /// A delivery of `event` to `webhook` that was given up.
    pub(crate) dead: String,
    /// One that was delivered to `webhook`.
    pub(crate) delivered: String,
    /// One that waits at `paused`.
    pub(crate) pending: String,
    /// A bulk operation that is to begin much later.
    pub(crate) operation: String,
    /// The name of an event type.
    pub(crate) event_type: String,
    /// An API key's id.
    pub(crate) key: String,
    /// An admin key's id.
    pub(crate) session: String,
    pub(crate) admin_key: String,
}

impl World {
    pub(crate) async fn start() -> Self {
        let redrive = Redrive::start().await;
        let admin = redrive.api();
        let document = Document::of(&admin).await;
        let receiver = Receiver::with(|arrival| match arrival.json()["data"]["fails"] == true {
            true => Reply::status(400).body("refused"),
            false => Reply::status(200),
        })
        .await;
        Self { redrive, admin, document, receiver }
    }

    /// Makes a tenant that has something of everything.
    pub(crate) async fn tenant(&self, name: &'static str) -> Tenant {
        self.admin.post("/v1/tenants", json!({"id": name, "name": secret_of(name)})).await.expect(201);
        let key = self.key(name, json!({"name": secret_of(name)})).await;
        let api = self.admin.with_key(text(&key["key"]));
        let things = self.things(name, &api).await;
        Tenant { name, api, things }
    }

    /// Makes an API key of a tenant.
    pub(crate) async fn key(&self, tenant: &str, body: Value) -> Value {
        self.admin.post(&format!("/v1/tenants/{tenant}/api-keys"), body).await.expect(201)
    }

    /// Makes one more of everything for a tenant. Webhooks want event types that no others want.
    pub(crate) async fn things(&self, tenant: &'static str, api: &Api) -> Things {
        let number = entries(&api.get("/v1/webhooks?limit=500").await.expect(200)).len();
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
        delivery_is(api, id(&delivered), "delivered").await;
        delivery_is(api, id(&dead), "dead").await;
        let pending = delivery_of(api, &waiting).await;
        // It names its webhook: a portal session sees no operation that may work on the operator's webhooks.
        let filter = json!({"event_types": [secret], "webhook_ids": [id(&webhook)]});
        let later = json!({"start_at": "2100-01-01T00:00:00Z", "filter": filter});
        let operation = api.post("/v1/dlq/retry-batch", later).await.expect(202);
        // Names are the tenants' own: these are of one tenant alone.
        let event_type = format!("type-of-{tenant}.{number}0");
        let registered = json!({"name": event_type, "description": secret});
        api.post("/v1/event-types", registered).await.expect(201);
        let key = self.key(tenant, json!({"scopes": ["read"]})).await;
        let admin_key = self.admin.post("/v1/admin-keys", json!({})).await.expect(201);
        let session = self.admin.post("/v1/portal-sessions", json!({"tenant_id": tenant})).await.expect(201);
        let own = |object: &Value| id(object).to_owned();
        Things {
            tenant,
            webhook: own(&webhook),
            paused: own(&paused),
            event: own(&refused),
            dead: own(&dead),
            delivered: own(&delivered),
            pending: own(&pending),
            operation: own(&operation),
            event_type,
            key: own(&key),
            admin_key: own(&admin_key),
            session: own(&session),
        }
    }

    /// Everything that a tenant has, as it is now.
    pub(crate) async fn picture(&self, tenant: &Tenant) -> Vec<Value> {
        let mut shown = Vec::new();
        for listing in ["webhooks", "events", "deliveries", "dlq", "dlq/batch-operations", "event-types"] {
            shown.push(tenant.api.get(&format!("/v1/{listing}?limit=500")).await.expect(200));
        }
        for part in ["", "/api-keys?limit=500"] {
            let mut part = self.admin.get(&format!("/v1/tenants/{}{part}", tenant.name)).await.expect(200);
            // A key is also used by a call that is refused, and the time of its last use is stored later.
            for key in part["data"].as_array_mut().into_iter().flatten() {
                key.as_object_mut().and_then(|key| key.remove("last_used_at"));
            }
            shown.push(part);
        }
        shown
    }
}

/// A text in everything that a tenant has and can write texts into.
pub(crate) fn secret_of(tenant: &str) -> String {
    format!("only {tenant} knows")
}

impl Things {
    /// A path with these things in its places.
    pub(crate) fn fill(&self, path: &str) -> String {
        let id = match path.split('/').nth(2) {
            Some("webhooks") if path.ends_with("/resume") => &self.paused,
            Some("webhooks") => &self.webhook,
            Some("events") => &self.event,
            Some("deliveries") if path.ends_with("/cancel") => &self.pending,
            Some("deliveries") => &self.dead,
            Some("dlq") => &self.operation,
            Some("portal-sessions") => &self.session,
            _ => self.tenant,
        };
        let key = if path.starts_with("/v1/admin-keys") { &self.admin_key } else { &self.key };
        let path = path.replace("{name}", &self.event_type);
        let path = path.replace("{id}", id).replace("{delivery_id}", &self.dead).replace("{key_id}", key);
        assert!(!path.contains('{'), "tell Things::fill what belongs into {path}");
        path
    }

    /// Ids that look like these and are nobody's.
    pub(crate) fn nobodys(&self) -> Self {
        fn other(id: &str) -> String {
            let (rest, last) = id.split_at(id.len() - 1);
            format!("{rest}{}", if last == "0" { "1" } else { "0" })
        }
        Self {
            tenant: "nobody",
            webhook: other(&self.webhook),
            paused: other(&self.paused),
            event: other(&self.event),
            dead: other(&self.dead),
            delivered: other(&self.delivered),
            pending: other(&self.pending),
            operation: other(&self.operation),
            event_type: other(&self.event_type),
            key: other(&self.key),
            admin_key: other(&self.admin_key),
            session: other(&self.session),
        }
    }

    /// Panics if an answer tells anything of these things.
    #[track_caller]
    pub(crate) fn are_not_in(&self, answer: &Answer, why: &str) {
        let body = String::from_utf8_lossy(&answer.body);
        let ids = [&self.webhook, &self.paused, &self.event, &self.dead, &self.delivered, &self.pending];
        let ids = ids.into_iter().chain([&self.event_type, &self.operation, &self.key]);
        let mut told = ids.filter(|id| body.contains(*id));
        assert_eq!(told.next(), None, "{why}: {body}");
        assert!(!body.contains(&secret_of(self.tenant)), "{why}: {body}");
    }
}

/// Calls a route. `authorization` is the header of that name, as it is.
pub(crate) async fn call(
    api: &Api,
    row: &Row,
    path: &str,
    body: &str,
    authorization: Option<&str>,
) -> Answer {
    let mut headers = Vec::new();
    if !body.is_empty() {
        headers.push(("content-type", "application/json"));
    }
    headers.extend(authorization.map(|value| ("authorization", value)));
    api.without_key().raw(row.method, path, &headers, body.to_owned()).await
}

impl Row {
    pub(crate) fn route(&self) -> Route {
        Route { method: self.method.into(), path: self.path.into() }
    }
}
