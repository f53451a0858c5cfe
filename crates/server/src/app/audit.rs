//! Audit log. An entry is written before the change, so that no change is without one, and completed after it. An
//! entry must never contain a secret.

use std::{net::IpAddr, ops::Deref, sync::Arc};

use redrive_core::{AuditId, TenantId, Time, webhook::Webhook};
use redrive_engine::clock;
use redrive_store::{ApiKey, AuditEnd, AuditEntry, AuditFilter, PageRequest, Store, StoreError, Tenant};
use serde_json::{Value, json};

use super::{App, AppError, Caller, Scope, auth::User};

/// Authenticated caller and the address of the request.
#[derive(Clone, Debug)]
pub struct Actor {
    /// Authenticated caller.
    pub caller: Arc<Caller>,
    /// Client address, if known.
    pub address: Option<IpAddr>,
}

impl Deref for Actor {
    type Target = Caller;

    fn deref(&self) -> &Caller {
        &self.caller
    }
}

/// Action to be audited, and its object.
pub(super) struct AuditedAction<'a> {
    /// Name of the action, such as `webhook.update`.
    pub(super) action: &'static str,
    /// Tenant that the object belongs to; `None` if it belongs to no tenant.
    pub(super) tenant: Option<&'a TenantId>,
    /// Id of the object; `None` if it has none yet.
    pub(super) object: Option<String>,
}

/// Recorded effect of an action, without secrets.
#[derive(Default)]
pub(super) struct AuditChange {
    /// Id of a newly created object.
    pub(super) object: Option<String>,
    /// State of the object before the change.
    pub(super) before: Option<Value>,
    /// State of the object after the change.
    pub(super) after: Option<Value>,
}

impl App {
    /// Runs an action with an audit entry that is written before it and completed afterwards.
    pub(super) async fn with_audit<T>(
        &self,
        actor: &Actor,
        audited: AuditedAction<'_>,
        work: impl Future<Output = Result<(T, AuditChange), AppError>>,
    ) -> Result<T, AppError> {
        let id = AuditId::new(self.engine.clock().now(), &clock::random_id_bytes());
        let entry = AuditEntry {
            id,
            tenant_id: audited.tenant.cloned(),
            actor: actor.name.clone(),
            subject: actor.user.as_ref().map(User::audit_subject),
            key: actor.key,
            address: actor.address,
            action: audited.action.to_owned(),
            object: audited.object,
            end: None,
        };
        self.store().begin_audit(entry).await?;
        let done = work.await;
        let end = match &done {
            Ok((_, change)) => {
                let text = |value: &Option<Value>| value.as_ref().map(Value::to_string);
                AuditEnd {
                    result: "done".into(),
                    object: change.object.clone(),
                    before: text(&change.before),
                    after: text(&change.after),
                }
            }
            Err(error) => AuditEnd { result: error.to_string(), object: None, before: None, after: None },
        };
        if let Err(error) = self.store().finish_audit(id, end).await {
            tracing::warn!(%error, audit_id = %id, "audit log entry could not be completed");
        }
        done.map(|(done, _)| done)
    }

    /// Lists audit entries, newest first.
    pub async fn list_audit(
        &self,
        filter: AuditFilter,
        page: PageRequest<AuditId>,
    ) -> Result<Vec<AuditEntry>, AppError> {
        Ok(self.store().list_audit(filter, page).await?)
    }
}

/// Writes the audit entry for a command that changes the store without a server. Returns the entry to complete.
pub async fn begin_cli_entry(
    store: &dyn Store,
    now: Time,
    action: &'static str,
    tenant_id: Option<TenantId>,
    object: Option<String>,
) -> Result<AuditId, StoreError> {
    let id = AuditId::new(now, &clock::random_id_bytes());
    let actor = "command line".to_owned();
    let entry = AuditEntry {
        id,
        tenant_id,
        actor,
        subject: None,
        key: None,
        address: None,
        action: action.to_owned(),
        object,
        end: None,
    };
    store.begin_audit(entry).await?;
    Ok(id)
}

/// Completes an entry written by `begin_cli_entry`.
pub async fn finish_cli_entry(
    store: &dyn Store,
    id: AuditId,
    object: Option<String>,
    done: bool,
) -> Result<(), StoreError> {
    let result = if done { "done" } else { "not found" }.to_owned();
    store.finish_audit(id, AuditEnd { result, object, before: None, after: None }).await
}

/// Returns the audit representation of a webhook, without confidential values.
pub(super) fn webhook_json(webhook: &Webhook) -> Value {
    let mut shown = serde_json::to_value(&webhook.spec).unwrap_or_default();
    shown["state"] = json!(webhook.state.name());
    if let Some(reason) = webhook.state.cancel_reason() {
        shown["disabled_reason"] = json!(reason);
    }
    shown["headers"] = webhook.spec.headers.keys().cloned().collect();
    shown["auth"] = json!(webhook.spec.auth.as_ref().map(|auth| auth.kind()));
    let secret = |live: &redrive_core::security::signature::LiveSecret| json!({"created_at": live.created_at, "expires_at": live.expires_at});
    shown["secrets"] = webhook.secrets.iter().map(secret).collect();
    shown
}

/// Returns the audit representation of a tenant.
pub(super) fn tenant_json(tenant: &Tenant) -> Value {
    json!({"id": tenant.id, "name": tenant.name, "metadata": tenant.metadata, "rules": tenant.rules})
}

/// Returns the audit representation of a key, without its hash.
pub(super) fn key_json(key: &ApiKey) -> Value {
    json!({
        "id": key.id,
        "name": key.name,
        "scopes": Scope::from_bits(key.scopes),
        "session": key.session,
        "allowed_networks": key.networks,
        "expires_at": key.expires_at,
    })
}
