//! Who changed what. An entry is written before the change, so that there is no change without one, and completed
//! after it. What it holds of things is what anybody may see of them: no secret is ever in it.

use std::{net::IpAddr, ops::Deref, sync::Arc};

use redrive_core::{AuditId, TenantId, Time, webhook::Webhook};
use redrive_engine::clock;
use redrive_store::{ApiKey, AuditEnd, AuditEntry, AuditFilter, PageRequest, Store, StoreError, Tenant};
use serde_json::{Value, json};

use super::{App, AppError, Caller, Scope};

/// Somebody with a valid key, and where the call came from.
#[derive(Clone, Debug)]
pub struct Actor {
    /// Whose key it is.
    pub caller: Arc<Caller>,
    /// Where from, if that is known.
    pub address: Option<IpAddr>,
}

impl Deref for Actor {
    type Target = Caller;

    fn deref(&self) -> &Caller {
        &self.caller
    }
}

/// What is about to be done, and to what.
pub(super) struct Deed<'a> {
    /// What, such as `webhook.update`.
    pub(super) action: &'static str,
    /// Whose thing it is; none for what belongs to no tenant.
    pub(super) tenant: Option<&'a TenantId>,
    /// The thing's id; none if it has none yet.
    pub(super) object: Option<String>,
}

/// What came of it, as far as it can be shown.
#[derive(Default)]
pub(super) struct Traces {
    /// The id of something new.
    pub(super) object: Option<String>,
    /// How the thing was.
    pub(super) before: Option<Value>,
    /// How it is now.
    pub(super) after: Option<Value>,
}

impl App {
    /// Carries something out, with an entry in the log before and its completion afterwards.
    pub(super) async fn audited<T>(
        &self,
        by: &Actor,
        deed: Deed<'_>,
        work: impl Future<Output = Result<(T, Traces), AppError>>,
    ) -> Result<T, AppError> {
        let id = AuditId::new(self.engine.clock().now(), &clock::randomness());
        let entry = AuditEntry {
            id,
            tenant: deed.tenant.cloned(),
            actor: by.name.clone(),
            key: by.key,
            address: by.address,
            action: deed.action.to_owned(),
            object: deed.object,
            end: None,
        };
        self.store().begin_audit(entry).await?;
        let done = work.await;
        let end = match &done {
            Ok((_, traces)) => {
                let text = |value: &Option<Value>| value.as_ref().map(Value::to_string);
                AuditEnd {
                    result: "done".into(),
                    object: traces.object.clone(),
                    before: text(&traces.before),
                    after: text(&traces.after),
                }
            }
            Err(error) => AuditEnd { result: error.to_string(), object: None, before: None, after: None },
        };
        if let Err(error) = self.store().finish_audit(id, end).await {
            tracing::warn!(%error, audit_id = %id, "an entry of the audit log stays without its end");
        }
        done.map(|(done, _)| done)
    }

    /// Entries, newest first.
    pub async fn list_audit(
        &self,
        filter: AuditFilter,
        page: PageRequest<AuditId>,
    ) -> Result<Vec<AuditEntry>, AppError> {
        Ok(self.store().list_audit(filter, page).await?)
    }
}

/// Notes what the command line is about to do to a store without a server in between. Gives the entry to complete.
pub async fn begin_by_hand(
    store: &dyn Store,
    now: Time,
    action: &'static str,
    tenant: Option<TenantId>,
    object: Option<String>,
) -> Result<AuditId, StoreError> {
    let id = AuditId::new(now, &clock::randomness());
    let actor = "command line".to_owned();
    let entry = AuditEntry {
        id,
        tenant,
        actor,
        key: None,
        address: None,
        action: action.to_owned(),
        object,
        end: None,
    };
    store.begin_audit(entry).await?;
    Ok(id)
}

/// Completes such an entry.
pub async fn finish_by_hand(
    store: &dyn Store,
    id: AuditId,
    object: Option<String>,
    done: bool,
) -> Result<(), StoreError> {
    let result = if done { "done" } else { "there is no such thing" }.to_owned();
    store.finish_audit(id, AuditEnd { result, object, before: None, after: None }).await
}

/// What can be shown of a webhook. Its document holds nothing that is confidential.
pub(super) fn of_webhook(webhook: &Webhook) -> Value {
    let mut shown = serde_json::to_value(&webhook.spec).unwrap_or_default();
    shown["state"] = json!(webhook.state.name());
    if let Some(reason) = webhook.state.cancels_because() {
        shown["disabled_reason"] = json!(reason);
    }
    shown["headers"] = webhook.spec.headers.keys().cloned().collect();
    shown["auth"] = json!(webhook.spec.auth.as_ref().map(|auth| auth.kind()));
    let secret = |live: &redrive_core::security::signature::LiveSecret| json!({"created_at": live.created_at, "expires_at": live.expires_at});
    shown["secrets"] = webhook.secrets.iter().map(secret).collect();
    shown
}

/// What can be shown of a tenant.
pub(super) fn of_tenant(tenant: &Tenant) -> Value {
    json!({"id": tenant.id, "name": tenant.name, "rules": tenant.rules})
}

/// What can be shown of a key.
pub(super) fn of_key(key: &ApiKey) -> Value {
    json!({
        "id": key.id,
        "name": key.name,
        "scopes": Scope::from_bits(key.scopes),
        "session": key.session,
        "allowed_networks": key.networks,
        "expires_at": key.expires_at,
    })
}
