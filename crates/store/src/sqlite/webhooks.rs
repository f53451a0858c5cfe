//! Webhooks, the configuration version that fan-out is checked against, and cancelling what inactive webhooks still
//! have.

use redrive_core::{
    TenantId, Time, WebhookId,
    notification::Occurrence,
    protection::breaker::SavedCircuit,
    security::vault::{KEY_ID_PREFIX_BYTES, MasterKeyId, sealing_key_id_from_prefix},
    tenancy::TenantRules,
    webhook::{Webhook, WebhookState, uid::WebhookUid},
};
use rusqlite::{Connection, OptionalExtension, Row, Transaction, types::FromSqlError};
use serde::{Serialize, de::DeserializeOwned};

use super::{
    Sqlite, changes,
    convert::{Col, get},
    failures, lanes, notifications, redrive, runtime_state, successes, tenancy,
    transaction::WriteTransaction,
};
use crate::{
    BatchProgress, Cancellations, Change, Config, ConfigChanges, PageRequest, RewrapProgress, Secrets,
    StoreFuture, UpdateResult, Versioned, Visibility, WebhookLabel, Webhooks,
    sealed::{SealedVersion, SealedWebhook},
};

const COLUMNS: &str = "id, tenant_id, revision, state, spec, sealed, created_at, updated_at";
const ID_BY_UID: &str = "SELECT id FROM webhooks WHERE tenant_id = ? AND uid = ? AND deleted = 0";
const LIST_LABELS: &str =
    "SELECT id, uid, json_extract(spec, '$.url'), json_extract(spec, '$.description') FROM webhooks
     WHERE tenant_id = ?1 AND deleted = 0 AND (?2 IS NULL OR id < ?2) AND NOT (?5 AND managed_by_operator)
     ORDER BY id DESC LIMIT ?3 OFFSET ?4";

impl Webhooks for Sqlite {
    fn create_webhook(&self, webhook: Webhook) -> StoreFuture<'_, UpdateResult> {
        let webhook = match self.seals.seal(webhook) {
            Ok(webhook) => webhook,
            Err(error) => return Box::pin(async { Err(error) }),
        };
        self.write(move |transaction| create(transaction, &webhook))
    }

    fn store_webhook_with_circuit(
        &self,
        webhook: Webhook,
        revision: Option<i64>,
        circuit: SavedCircuit,
    ) -> StoreFuture<'_, UpdateResult> {
        let sealed = match self.seals.seal(webhook) {
            Ok(sealed) => sealed,
            Err(error) => return Box::pin(async { Err(error) }),
        };
        self.write(move |transaction| store_with_circuit(transaction, &sealed, revision, &circuit))
    }

    fn change_webhook(
        &self,
        webhook: Webhook,
        revision: i64,
        occurrence: Option<Occurrence>,
    ) -> StoreFuture<'_, UpdateResult> {
        let webhook = match self.seals.seal(webhook) {
            Ok(webhook) => webhook,
            Err(error) => return Box::pin(async { Err(error) }),
        };
        self.write(move |transaction| {
            let Some(now) = find(transaction, &webhook.webhook.tenant_id, webhook.webhook.id)? else {
                return Ok(UpdateResult::NotFound);
            };
            if now.revision != revision {
                return Ok(UpdateResult::Stale);
            }
            if is_uid_taken(transaction, &webhook.webhook)? {
                return Ok(UpdateResult::Exists);
            }
            Ok(match store(transaction, &webhook)? {
                Some(version) => {
                    notifications::record_occurrences(transaction, &occurrence)?;
                    UpdateResult::Updated { version }
                }
                None => UpdateResult::NotFound,
            })
        })
    }

    fn webhooks_by_uid(
        &self,
        tenant_id: TenantId,
        uids: Vec<WebhookUid>,
    ) -> StoreFuture<'_, Vec<(WebhookUid, WebhookId)>> {
        self.read_for_user(move |connection| {
            let mut by_uid = connection.prepare_cached(ID_BY_UID)?;
            let mut found = Vec::with_capacity(uids.len());
            for uid in uids {
                let id =
                    by_uid.query_row((tenant_id.as_str(), uid.as_str()), |row| get(row, 0)).optional()?;
                found.extend(id.map(|id| (uid, id)));
            }
            Ok(found)
        })
    }

    fn webhook(&self, tenant_id: TenantId, id: WebhookId) -> StoreFuture<'_, Option<Versioned>> {
        let found = self.list_for(tenant_id.clone(), move |connection| find(connection, &tenant_id, id));
        Box::pin(async { self.seals.open_version(found.await?) })
    }

    fn tenant_webhooks_by_id(
        &self,
        tenant_id: TenantId,
        ids: Vec<WebhookId>,
    ) -> StoreFuture<'_, Vec<Webhook>> {
        let found = self.list_for(tenant_id.clone(), move |connection| {
            let mut found = by_ids(connection, ids)?;
            found.retain(|one| one.webhook.tenant_id == tenant_id);
            Ok(found)
        });
        Box::pin(async { self.seals.open_all(found.await?) })
    }

    fn list_webhooks(
        &self,
        tenant_id: TenantId,
        visibility: Visibility,
        page: PageRequest<WebhookId>,
    ) -> StoreFuture<'_, Vec<Webhook>> {
        let found = self.list_for(tenant_id.clone(), move |connection| {
            let after = page.after.map(Col);
            let values = (tenant_id.as_str(), after, page.limit, page.offset, visibility.is_restricted());
            connection
                .prepare_cached(&format!(
                    "SELECT {COLUMNS} FROM webhooks
                     WHERE tenant_id = ?1 AND deleted = 0 AND (?2 IS NULL OR id < ?2)
                         AND NOT (?5 AND managed_by_operator)
                     ORDER BY id DESC LIMIT ?3 OFFSET ?4"
                ))?
                .query_map(values, read_webhook)?
                .collect()
        });
        Box::pin(async { self.seals.open_all(found.await?) })
    }

    fn list_webhook_labels(
        &self,
        tenant_id: TenantId,
        visibility: Visibility,
        page: PageRequest<WebhookId>,
    ) -> StoreFuture<'_, Vec<WebhookLabel>> {
        self.list_for(tenant_id.clone(), move |connection| {
            let after = page.after.map(Col);
            let values = (tenant_id.as_str(), after, page.limit, page.offset, visibility.is_restricted());
            let read = |row: &Row<'_>| {
                let (uid, url, description) = (row.get(1)?, row.get(2)?, row.get(3)?);
                Ok(WebhookLabel { id: get(row, 0)?, uid, url, description })
            };
            connection.prepare_cached(LIST_LABELS)?.query_map(values, read)?.collect()
        })
    }
}

/// Lists the webhooks of all tenants.
pub(super) fn list_all(
    connection: &Connection,
    page: PageRequest<WebhookId>,
) -> rusqlite::Result<Vec<SealedWebhook>> {
    let before = Col(page.after.unwrap_or(WebhookId::from_bytes([0xff; 16])));
    connection
        .prepare_cached(&format!(
            "SELECT {COLUMNS} FROM webhooks INDEXED BY webhooks_listed_by_id
             WHERE deleted = 0 AND id < ? ORDER BY id DESC LIMIT ? OFFSET ?"
        ))?
        .query_map((before, page.limit, page.offset), read_webhook)?
        .collect()
}

impl Cancellations for Sqlite {
    fn webhooks_to_cancel_for(&self) -> StoreFuture<'_, Vec<Webhook>> {
        self.read(|connection| {
            connection
                .prepare_cached(&format!("SELECT {COLUMNS} FROM webhooks WHERE cancel_pending = 1"))?
                .query_map((), |row| Ok(read_webhook(row)?.webhook))?
                .collect()
        })
    }

    fn cancel_pending(
        &self,
        webhook_id: WebhookId,
        reason: String,
        now: Time,
        limit: usize,
    ) -> StoreFuture<'_, BatchProgress> {
        self.write(move |transaction| cancel_batch(transaction, webhook_id, &reason, now, limit))
    }
}

impl Config for Sqlite {
    fn webhooks_by_id(&self, ids: Vec<WebhookId>) -> StoreFuture<'_, Vec<Webhook>> {
        let found = self.read(move |connection| by_ids(connection, ids));
        Box::pin(async { self.seals.open_all(found.await?) })
    }

    fn rules_of_tenants(&self, ids: Vec<TenantId>) -> StoreFuture<'_, Vec<(TenantId, TenantRules)>> {
        self.read(move |connection| tenancy::rules_of(connection, ids))
    }

    fn config_changes(
        &self,
        tenant_id: TenantId,
        version: i64,
        limit: usize,
    ) -> StoreFuture<'_, Option<ConfigChanges>> {
        let found = self.read(move |connection| {
            // One snapshot, so that the version and the webhooks are consistent.
            let snapshot = connection.unchecked_transaction()?;
            let now = snapshot
                .prepare_cached("SELECT config_version, rules, event_types_version FROM tenants WHERE id = ?
                 AND deleted_at IS NULL")?
                .query_row([tenant_id.as_str()], |row| Ok((row.get(0)?, from_json(row, 1)?, row.get(2)?)))
                .optional()?;
            let Some((now, rules, event_types_version)) = now else { return Ok(None) };
            let mut changed = snapshot.prepare_cached(&format!(
                "SELECT {COLUMNS} FROM webhooks WHERE tenant_id = ?1 AND revision > ?2 AND (?2 > 0 OR deleted = 0)
                 ORDER BY revision LIMIT ?3"
            ))?;
            let mut rows = changed.query((tenant_id.as_str(), version, limit as i64))?;
            let (mut webhooks, mut last) = (Vec::new(), now);
            while let Some(row) = rows.next()? {
                webhooks.push(read_webhook(row)?);
                last = row.get(2)?;
            }
            let more = webhooks.len() == limit;
            // Each change has its own version, so the last revision read is a version that existed.
            Ok(Some((if more { last } else { now }, more, rules, event_types_version, webhooks)))
        });
        Box::pin(async {
            let Some((version, more, rules, event_types_version, webhooks)) = found.await? else {
                return Ok(None);
            };
            let webhooks = self.seals.open_all(webhooks)?;
            Ok(Some(ConfigChanges { version, more, rules, event_types_version, webhooks }))
        })
    }
}

impl Secrets for Sqlite {
    fn encryption_keys(&self) -> StoreFuture<'_, Vec<MasterKeyId>> {
        self.read(encryption_keys)
    }

    fn rewrap(&self, after: Option<WebhookId>, limit: usize) -> StoreFuture<'_, RewrapProgress> {
        let found = self.read(move |connection| {
            connection
                .prepare(&format!(
                    "SELECT {COLUMNS} FROM webhooks WHERE ?1 IS NULL OR id > ?1 ORDER BY id LIMIT ?2"
                ))?
                .query_map((after.map(Col), limit as i64), read_webhook)?
                .collect::<rusqlite::Result<Vec<_>>>()
        });
        Box::pin(async move {
            let found = found.await?;
            let last = found.last().map(|one| one.webhook.id);
            let mut changed = 0;
            for one in found {
                let Some(rewrapped) = self.seals.rewrap(&one)? else { continue };
                // A concurrent change of the webhook seals it with the current key anyway.
                let replace = "UPDATE webhooks SET sealed = ?3 WHERE id = ?1 AND sealed = ?2";
                changed += self
                    .write(move |transaction| {
                        transaction.execute(replace, (Col(one.webhook.id), one.sealed, rewrapped))
                    })
                    .await?;
            }
            Ok(RewrapProgress { last, changed })
        })
    }
}

fn by_ids(connection: &Connection, ids: Vec<WebhookId>) -> rusqlite::Result<Vec<SealedWebhook>> {
    let mut by_id = connection.prepare_cached(&format!("SELECT {COLUMNS} FROM webhooks WHERE id = ?"))?;
    let mut found = Vec::with_capacity(ids.len());
    for id in ids {
        found.extend(by_id.query_row([Col(id)], read_webhook).optional()?);
    }
    Ok(found)
}

fn cancel_batch(
    transaction: &Transaction<'_>,
    webhook_id: WebhookId,
    reason: &str,
    now: Time,
    limit: usize,
) -> rusqlite::Result<BatchProgress> {
    // Checked inside the transaction: a webhook that was enabled again keeps its deliveries.
    let still_wanted = transaction
        .prepare_cached("SELECT 1 FROM webhooks WHERE id = ? AND cancel_pending = 1")?
        .exists([Col(webhook_id)])?;
    if !still_wanted {
        return Ok(BatchProgress { changed: 0, finished: true });
    }
    let cancelled = transaction
        .prepare_cached(
            "DELETE FROM waiting WHERE delivery_id IN (SELECT delivery_id FROM waiting WHERE webhook_id = ? LIMIT ?)
             RETURNING delivery_id, lane",
        )?
        .query_map((Col(webhook_id), limit as i64), |row| Ok((get(row, 0)?, row.get(1)?)))?
        .collect::<rusqlite::Result<Vec<_>>>()?;
    for (delivery_id, _) in &cancelled {
        redrive::end_cancelled(transaction, *delivery_id, reason, now)?;
    }
    // After every step and not only at the end: if the webhook is enabled again, the next delivery of an ordered lane
    // is now its first.
    lanes::recompute_wake_for(transaction, webhook_id, cancelled.iter().map(|(_, lane): &(_, String)| lane))?;
    let finished = cancelled.len() < limit;
    if finished {
        transaction.execute("UPDATE webhooks SET cancel_pending = 0 WHERE id = ?", [Col(webhook_id)])?;
        runtime_state::delete_runtime(transaction, webhook_id)?;
        successes::delete(transaction, webhook_id)?;
    }
    Ok(BatchProgress { changed: cancelled.len(), finished })
}

/// Returns the stored webhook with this id, even if it was deleted, without its secrets.
pub(super) fn by_id(connection: &Connection, id: WebhookId) -> rusqlite::Result<Option<Webhook>> {
    connection
        .prepare_cached(&format!("SELECT {COLUMNS} FROM webhooks WHERE id = ?"))?
        .query_row([Col(id)], |row| read_webhook(row).map(|found| found.webhook))
        .optional()
}

pub(super) fn find(
    connection: &Connection,
    tenant_id: &TenantId,
    id: WebhookId,
) -> rusqlite::Result<Option<SealedVersion>> {
    connection
        .prepare_cached(&format!(
            "SELECT {COLUMNS} FROM webhooks WHERE id = ? AND tenant_id = ? AND deleted = 0"
        ))?
        .query_row((Col(id), tenant_id.as_str()), |row| {
            Ok(SealedVersion { webhook: read_webhook(row)?, revision: row.get(2)? })
        })
        .optional()
}

/// Returns the ids of the master keys that stored secrets are encrypted with.
pub(super) fn encryption_keys(connection: &Connection) -> rusqlite::Result<Vec<MasterKeyId>> {
    let heads = connection
        .prepare("SELECT DISTINCT substr(sealed, 1, ?) FROM webhooks")?
        .query_map([KEY_ID_PREFIX_BYTES as i64], |row| row.get(0))?
        .collect::<rusqlite::Result<Vec<Vec<u8>>>>()?;
    Ok(heads.iter().filter_map(|head| sealing_key_id_from_prefix(head)).collect())
}

/// Returns whether another webhook of the tenant has the uid of this one.
fn is_uid_taken(connection: &Connection, webhook: &Webhook) -> rusqlite::Result<bool> {
    let Some(uid) = webhook.spec.uid.as_ref().filter(|_| webhook.state != WebhookState::Deleted) else {
        return Ok(false);
    };
    let mut by_uid = connection.prepare_cached(ID_BY_UID)?;
    let holder =
        by_uid.query_row((webhook.tenant_id.as_str(), uid.as_str()), |row| get(row, 0)).optional()?;
    Ok(holder.is_some_and(|id: WebhookId| id != webhook.id))
}

/// Stores a new webhook.
pub(super) fn create(
    transaction: &WriteTransaction<'_>,
    webhook: &SealedWebhook,
) -> rusqlite::Result<UpdateResult> {
    if is_uid_taken(transaction, &webhook.webhook)? {
        return Ok(UpdateResult::Exists);
    }
    Ok(match store(transaction, webhook)? {
        Some(version) => UpdateResult::Updated { version },
        None => UpdateResult::NotFound,
    })
}

/// Stores a new webhook, or one that has not changed since `revision`, together with its circuit.
pub(super) fn store_with_circuit(
    transaction: &WriteTransaction<'_>,
    sealed: &SealedWebhook,
    revision: Option<i64>,
    circuit: &SavedCircuit,
) -> rusqlite::Result<UpdateResult> {
    let webhook = &sealed.webhook;
    if let Some(revision) = revision {
        let Some(found) = find(transaction, &webhook.tenant_id, webhook.id)? else {
            return Ok(UpdateResult::NotFound);
        };
        if found.revision != revision
            || runtime_state::circuit_generation(transaction, webhook.id)? > circuit.generation
        {
            return Ok(UpdateResult::Stale);
        }
    }
    if is_uid_taken(transaction, webhook)? {
        return Ok(UpdateResult::Exists);
    }
    let Some(version) = store(transaction, sealed)? else { return Ok(UpdateResult::NotFound) };
    runtime_state::set_circuit(transaction, &webhook.tenant_id, webhook.id, circuit)?;
    lanes::recompute_lanes(transaction, webhook.id)?;
    changes::append(transaction, &Change::Runtime(webhook.id))?;
    Ok(UpdateResult::Updated { version })
}

/// Writes a webhook under the tenant's next version. Its uid must be free. Returns `None` if the tenant does not exist.
pub(super) fn store(
    transaction: &WriteTransaction<'_>,
    sealed: &SealedWebhook,
) -> rusqlite::Result<Option<i64>> {
    let SealedWebhook { webhook, sealed } = sealed;
    let version = transaction
        .prepare_cached(
            "UPDATE tenants SET config_version = config_version + 1
             WHERE id = ? AND deleted_at IS NULL RETURNING config_version",
        )?
        .query_row([webhook.tenant_id.as_str()], |row| row.get(0))
        .optional()?;
    let Some(version) = version else { return Ok(None) };
    failures::end_by_state_change(transaction, webhook)?;
    transaction
        .prepare_cached(&format!(
            "INSERT INTO webhooks ({COLUMNS}, deleted, cancel_pending, expires_at, managed_by_operator, uid)
             VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
             ON CONFLICT (id) DO UPDATE SET tenant_id = excluded.tenant_id, revision = excluded.revision,
                 state = excluded.state, spec = excluded.spec, sealed = excluded.sealed,
                 created_at = excluded.created_at, updated_at = excluded.updated_at, deleted = excluded.deleted,
                 cancel_pending = excluded.cancel_pending, expires_at = excluded.expires_at,
                 managed_by_operator = excluded.managed_by_operator, uid = excluded.uid"
        ))?
        .execute((
            Col(webhook.id),
            webhook.tenant_id.as_str(),
            version,
            to_json(&webhook.state)?,
            to_json(&webhook.spec)?,
            sealed,
            Col(webhook.created_at),
            Col(webhook.updated_at),
            webhook.state == WebhookState::Deleted,
            webhook.state.cancels_deliveries(),
            webhook.next_action_at().map(Col),
            webhook.spec.is_operator_managed(),
            webhook.spec.uid.as_ref().map(WebhookUid::as_str),
        ))?;
    runtime_state::pause(transaction, webhook)?;
    changes::append(transaction, &Change::Webhook(webhook.tenant_id.clone(), webhook.id))?;
    Ok(Some(version))
}

fn read_webhook(row: &Row<'_>) -> rusqlite::Result<SealedWebhook> {
    let webhook = Webhook {
        id: get(row, 0)?,
        tenant_id: get(row, 1)?,
        state: from_json(row, 3)?,
        spec: from_json(row, 4)?,
        secrets: Vec::new(),
        created_at: get(row, 6)?,
        updated_at: get(row, 7)?,
    };
    Ok(SealedWebhook { webhook, sealed: row.get(5)? })
}

pub(super) fn to_json<T: Serialize>(value: &T) -> rusqlite::Result<String> {
    serde_json::to_string(value).map_err(|error| rusqlite::Error::ToSqlConversionFailure(error.into()))
}

pub(super) fn from_json<T: DeserializeOwned>(row: &Row<'_>, column: usize) -> rusqlite::Result<T> {
    let text = row.get_ref(column)?.as_str()?;
    serde_json::from_str(text).map_err(|error| FromSqlError::other(error).into())
}
