//! Tenants with their keys and event types, sessions, and the audit log.

use redrive_core::{AuditId, KeyId, TenantId, Time};

use crate::{
    ApiKey, AuditEnd, AuditEntry, AuditFilter, BrowserSession, EventType, PageRequest, RegisterResult,
    SessionCursor, StoreFuture, Tenant, UpdateResult, VersionedType,
};

/// Tenants and API keys.
pub trait Tenancy: Send + Sync {
    /// Creates a tenant; returns `false` if it exists.
    fn create_tenant(&self, tenant: Tenant) -> StoreFuture<'_, bool>;
    /// Replaces a tenant's name and rules; returns `false` if there is no such tenant. Earlier fan-outs are refused.
    fn change_tenant(&self, tenant: Tenant) -> StoreFuture<'_, bool>;
    /// Deletes a tenant: its keys are revoked, its publishes are refused, and its name is never used again. Its
    /// webhooks must have been deleted before. Returns `false` if there is no such tenant.
    fn delete_tenant(&self, id: TenantId, now: Time) -> StoreFuture<'_, bool>;
    /// Returns a tenant.
    fn tenant(&self, id: TenantId) -> StoreFuture<'_, Option<Tenant>>;
    /// Lists tenants by name.
    fn list_tenants(&self, page: PageRequest<TenantId>) -> StoreFuture<'_, Vec<Tenant>>;
    /// Stores a key; returns `false` if its tenant does not exist.
    fn create_key(&self, key: ApiKey) -> StoreFuture<'_, bool>;
    /// Returns every key that is not revoked.
    fn live_keys(&self) -> StoreFuture<'_, Vec<ApiKey>>;
    /// Lists the keys of a tenant, or the admin keys if `None`; including revoked ones, newest first.
    fn list_keys(
        &self,
        tenant_id: Option<TenantId>,
        page: PageRequest<KeyId>,
    ) -> StoreFuture<'_, Vec<ApiKey>>;
    /// Revokes a key; returns `false` if the tenant has no such live key.
    fn revoke_key(&self, tenant_id: Option<TenantId>, id: KeyId, now: Time) -> StoreFuture<'_, bool>;
    /// Records when keys were last used.
    fn record_key_use(&self, uses: Vec<(KeyId, Time)>) -> StoreFuture<'_, ()>;
    /// Prunes up to `limit` keys of portal sessions that ended before this time.
    fn prune_sessions(&self, before: Time, limit: usize) -> StoreFuture<'_, usize>;
}

/// The catalogue of event types. Every change is a change of the tenant's configuration.
pub trait EventTypes: Send + Sync {
    /// Registers an event type, unless the tenant already has `max`.
    fn create_event_type(&self, event_type: EventType, max: usize) -> StoreFuture<'_, RegisterResult>;
    /// Replaces an event type that has not changed since `revision`.
    fn change_event_type(&self, event_type: EventType, revision: i64) -> StoreFuture<'_, UpdateResult>;
    /// Deletes an event type; returns `false` if there is none of this name.
    fn delete_event_type(&self, tenant_id: TenantId, name: String) -> StoreFuture<'_, bool>;
    /// Returns an event type.
    fn event_type(&self, tenant_id: TenantId, name: String) -> StoreFuture<'_, Option<VersionedType>>;
    /// Lists a tenant's event types by name.
    fn list_event_types(
        &self,
        tenant_id: TenantId,
        archived: Option<bool>,
        page: PageRequest<String>,
    ) -> StoreFuture<'_, Vec<EventType>>;
}

/// The event types that nodes keep in memory.
pub trait EventTypeChanges: Send + Sync {
    /// Returns the first `limit` event types that changed after `revision`, in the order of their changes.
    fn event_types_since(
        &self,
        tenant_id: TenantId,
        revision: i64,
        limit: usize,
    ) -> StoreFuture<'_, Vec<VersionedType>>;
    /// Returns the names of all event types of a tenant.
    fn event_type_names(&self, tenant_id: TenantId) -> StoreFuture<'_, Vec<String>>;
}

/// Browser sessions. Revoking a key or deleting a tenant deletes the sessions that were started with the keys. A user
/// counts as a key, identified by `key_hash`.
pub trait BrowserSessions: Send + Sync {
    /// Stores a session and deletes the oldest of the same key, so that at most `max_per_key` remain. Returns `false` and
    /// stores nothing if a session of the same login of a user exists.
    fn create_browser_session(&self, session: BrowserSession, max_per_key: usize) -> StoreFuture<'_, bool>;
    /// Returns the session with this id, whether expired or not.
    fn browser_session(&self, id: [u8; 32]) -> StoreFuture<'_, Option<BrowserSession>>;
    /// Deletes a session; returns `false` if there is none with this id.
    fn delete_browser_session(&self, id: [u8; 32]) -> StoreFuture<'_, bool>;
    /// Returns the sessions of a key that expire after `now`, newest first.
    fn browser_sessions_of_key(&self, key_hash: [u8; 32], now: Time) -> StoreFuture<'_, Vec<BrowserSession>>;
    /// Lists the sessions of users, whatever the user, that expire after `now`, newest first: for admins only.
    fn list_user_sessions(
        &self,
        now: Time,
        page: PageRequest<SessionCursor>,
    ) -> StoreFuture<'_, Vec<BrowserSession>>;
    /// Deletes all sessions of a key, and returns their number.
    fn delete_browser_sessions_of_key(&self, key_hash: [u8; 32]) -> StoreFuture<'_, usize>;
    /// Deletes up to `limit` sessions that expired before this time, and returns their number.
    fn prune_browser_sessions(&self, before: Time, limit: usize) -> StoreFuture<'_, usize>;
}

/// The audit log. Entries are only ever added, and pruned when they are old.
pub trait Audit: Send + Sync {
    /// Records that a change is about to be made.
    fn begin_audit(&self, entry: AuditEntry) -> StoreFuture<'_, ()>;
    /// Records the result of a change, once.
    fn finish_audit(&self, id: AuditId, end: AuditEnd) -> StoreFuture<'_, ()>;
    /// Lists the entries of a tenant, or of all if `None`, newest first.
    fn list_audit(&self, filter: AuditFilter, page: PageRequest<AuditId>)
    -> StoreFuture<'_, Vec<AuditEntry>>;
    /// Prunes up to `limit` entries before this time.
    fn prune_audit(&self, before: Time, limit: usize) -> StoreFuture<'_, usize>;
}
