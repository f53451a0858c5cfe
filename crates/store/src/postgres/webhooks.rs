//! Webhooks, the configuration version that fan-out is checked against, and cancelling what inactive webhooks still
//! have.

use std::collections::HashMap;

use redrive_core::{
    TenantId, Time, WebhookId,
    notification::Occurrence,
    protection::breaker::SavedCircuit,
    security::vault::{KEY_ID_PREFIX_BYTES, MasterKeyId, sealing_key_id_from_prefix},
    tenancy::TenantRules,
    webhook::{Webhook, WebhookState, uid::WebhookUid},
};
use serde::{Serialize, de::DeserializeOwned};
use tokio_postgres::Row;

use super::{
    Postgres, changes,
    convert::{Col, get, plain},
    failures,
    lanes::{self, Keys},
    notifications, redrive, runtime_state,
    session::{Failure, Session, Tx},
    successes, tenancy,
};
use crate::{
    BatchProgress, Cancellations, Change, Config, ConfigChanges, PageRequest, RewrapProgress, Secrets,
    StoreFuture, UpdateResult, Versioned, Visibility, WebhookLabel, Webhooks,
    sealed::{SealedVersion, SealedWebhook},
};

macro_rules! webhooks {
    ($rest:literal) => {
        concat!(
            "SELECT id, tenant_id, revision, state, spec, sealed, created_at, updated_at FROM webhooks ",
            $rest
        )
    };
}

const IDS_BY_UID: &str =
    "SELECT uid, id FROM webhooks WHERE tenant_id = $1 AND uid = ANY($2::text[]) AND NOT deleted";
const LIST_LABELS: &str = "SELECT id, uid, spec::json ->> 'url', spec::json ->> 'description' FROM webhooks
     WHERE tenant_id = $1 AND NOT deleted AND id < $2 AND NOT ($5::boolean AND managed_by_operator)
     ORDER BY id DESC LIMIT $3 OFFSET $4";
/// Deletes up to $2 waiting deliveries in locked lanes.
const DELETE_WAITING: &str = "DELETE FROM waiting WHERE delivery_id = ANY(ARRAY(
         SELECT w.delivery_id FROM unnest($3::text[]) AS k(lane) CROSS JOIN LATERAL (
             SELECT w.delivery_id FROM waiting w WHERE w.webhook_id = $1 AND w.lane = k.lane COLLATE \"C\"
             ORDER BY w.sort_key, w.seq LIMIT $2) w LIMIT $2))
     RETURNING delivery_id, lane";
const HAS_WAITING: &str = "SELECT 1 FROM waiting WHERE webhook_id = $1 LIMIT 1";
/// Webhooks are locked after tenants and before `webhook_runtime` rows.
const LOCK_WEBHOOKS: &str =
    "SELECT id FROM webhooks WHERE id = ANY($1::uuid[]) ORDER BY id FOR NO KEY UPDATE";

impl Webhooks for Postgres {
    fn create_webhook(&self, webhook: Webhook) -> StoreFuture<'_, UpdateResult> {
        Box::pin(async move {
            let webhook = self.shared.seals.seal(webhook)?;
            let created = self.write(|tx| create(tx, &webhook)).await?;
            self.shared.hints.change();
            Ok(created)
        })
    }

    fn store_webhook_with_circuit(
        &self,
        webhook: Webhook,
        revision: Option<i64>,
        circuit: SavedCircuit,
    ) -> StoreFuture<'_, UpdateResult> {
        Box::pin(async move {
            let webhook = self.shared.seals.seal(webhook)?;
            let changed = self.administer(|tx| store_with_circuit(tx, &webhook, revision, &circuit)).await?;
            self.shared.hints.change();
            Ok(changed)
        })
    }

    fn change_webhook(
        &self,
        webhook: Webhook,
        revision: i64,
        occurrence: Option<Occurrence>,
    ) -> StoreFuture<'_, UpdateResult> {
        Box::pin(async move {
            let webhook = self.shared.seals.seal(webhook)?;
            let changed = self.administer(|tx| change(tx, &webhook, revision, occurrence.as_ref())).await?;
            self.shared.hints.change();
            Ok(changed)
        })
    }

    fn webhooks_by_uid(
        &self,
        tenant_id: TenantId,
        uids: Vec<WebhookUid>,
    ) -> StoreFuture<'_, Vec<(WebhookUid, WebhookId)>> {
        Box::pin(async move {
            let named: Vec<&str> = uids.iter().map(WebhookUid::as_str).collect();
            let (tenant_id, named) = (tenant_id.as_str(), &named);
            let rows = self
                .read_for_user(|session| async move { session.query(IDS_BY_UID, &[&tenant_id, named]).await })
                .await?;
            let ids = rows.iter().map(|row| Ok((plain::<String>(row, 0)?, get(row, 1)?)));
            let ids: HashMap<String, WebhookId> = ids.collect::<Result<_, Failure>>()?;
            let id_of = |uid: WebhookUid| ids.get(uid.as_str()).copied().map(|id| (uid, id));
            Ok(uids.into_iter().filter_map(id_of).collect())
        })
    }

    fn webhook(&self, tenant_id: TenantId, id: WebhookId) -> StoreFuture<'_, Option<Versioned>> {
        Box::pin(async move {
            let found = self.list_for(&tenant_id, |session| {
                let tenant_id = &tenant_id;
                async move { find(&session, tenant_id, id).await }
            });
            self.shared.seals.open_version(found.await?)
        })
    }

    fn tenant_webhooks_by_id(
        &self,
        tenant_id: TenantId,
        ids: Vec<WebhookId>,
    ) -> StoreFuture<'_, Vec<Webhook>> {
        Box::pin(async move {
            let ids: Vec<_> = ids.into_iter().map(Col).collect();
            let mut found = self.list_for(&tenant_id, |session| sealed_by_ids(session, &ids)).await?;
            found.retain(|one| one.webhook.tenant_id == tenant_id);
            self.shared.seals.open_all(found)
        })
    }

    fn list_webhooks(
        &self,
        tenant_id: TenantId,
        visibility: Visibility,
        page: PageRequest<WebhookId>,
    ) -> StoreFuture<'_, Vec<Webhook>> {
        Box::pin(async move {
            let found =
                self.list_for(&tenant_id, |session| list(session, &tenant_id, visibility, page)).await?;
            self.shared.seals.open_all(found)
        })
    }

    fn list_webhook_labels(
        &self,
        tenant_id: TenantId,
        visibility: Visibility,
        page: PageRequest<WebhookId>,
    ) -> StoreFuture<'_, Vec<WebhookLabel>> {
        Box::pin(async move {
            self.list_for(&tenant_id, |session| list_labels(session, &tenant_id, visibility, page)).await
        })
    }
}

impl Cancellations for Postgres {
    fn webhooks_to_cancel_for(&self) -> StoreFuture<'_, Vec<Webhook>> {
        Box::pin(async move {
            self.read(|session| async move {
                let rows = session.query(webhooks!("WHERE cancel_pending"), &[]).await?;
                rows.iter().map(|row| Ok(read_webhook(row)?.webhook)).collect()
            })
            .await
        })
    }

    fn cancel_pending(
        &self,
        webhook_id: WebhookId,
        reason: String,
        now: Time,
        limit: usize,
    ) -> StoreFuture<'_, BatchProgress> {
        Box::pin(async move { self.write(|tx| cancel_batch(tx, webhook_id, &reason, now, limit)).await })
    }
}

impl Config for Postgres {
    fn webhooks_by_id(&self, ids: Vec<WebhookId>) -> StoreFuture<'_, Vec<Webhook>> {
        Box::pin(async move {
            let ids: Vec<_> = ids.into_iter().map(Col).collect();
            let found = self.read(|session| sealed_by_ids(session, &ids)).await?;
            self.shared.seals.open_all(found)
        })
    }

    fn rules_of_tenants(&self, ids: Vec<TenantId>) -> StoreFuture<'_, Vec<(TenantId, TenantRules)>> {
        Box::pin(async move { self.read(|session| tenancy::rules_of(session, &ids)).await })
    }

    fn config_changes(
        &self,
        tenant_id: TenantId,
        version: i64,
        limit: usize,
    ) -> StoreFuture<'_, Option<ConfigChanges>> {
        Box::pin(async move {
            let found = self.read(|session| config_changes(session, &tenant_id, version, limit)).await?;
            let Some((version, more, rules, event_types_version, webhooks)) = found else { return Ok(None) };
            let webhooks = self.shared.seals.open_all(webhooks)?;
            Ok(Some(ConfigChanges { version, more, rules, event_types_version, webhooks }))
        })
    }
}

impl Secrets for Postgres {
    fn encryption_keys(&self) -> StoreFuture<'_, Vec<MasterKeyId>> {
        Box::pin(async move {
            let heads = "SELECT DISTINCT substr(sealed, 1, $1::integer) FROM webhooks";
            let rows = self
                .read(|session| async move { session.query(heads, &[&(KEY_ID_PREFIX_BYTES as i32)]).await })
                .await?;
            let head = |row: &Row| plain::<Vec<u8>>(row, 0).ok();
            Ok(rows.iter().filter_map(head).filter_map(|head| sealing_key_id_from_prefix(&head)).collect())
        })
    }

    fn rewrap(&self, after: Option<WebhookId>, limit: usize) -> StoreFuture<'_, RewrapProgress> {
        Box::pin(async move {
            let after = Col(after.unwrap_or(WebhookId::from_bytes([0; 16])));
            let next = webhooks!("WHERE id > $1 ORDER BY id LIMIT $2");
            let found = self.read(|session| async move {
                let rows = session.query(next, &[&after, &(limit as i64)]).await?;
                rows.iter().map(read_webhook).collect::<Result<Vec<_>, _>>()
            });
            let found = found.await?;
            let last = found.last().map(|one| one.webhook.id);
            let mut changed = 0;
            for one in &found {
                let Some(rewrapped) = self.shared.seals.rewrap(one)? else { continue };
                let rewrapped = &rewrapped;
                // A concurrent change of the webhook seals it with the current key anyway.
                let replace = "UPDATE webhooks SET sealed = $3 WHERE id = $1 AND sealed = $2";
                let replaced = self.write(|tx| async move {
                    tx.execute(replace, &[&Col(one.webhook.id), &one.sealed, rewrapped]).await
                });
                changed += replaced.await? as usize;
            }
            Ok(RewrapProgress { last, changed })
        })
    }
}

/// Stores a new webhook.
pub(super) async fn create(tx: Tx, sealed: &SealedWebhook) -> Result<UpdateResult, Failure> {
    if sealed.webhook.spec.uid.is_some() {
        // The tenant's lock prevents that another transaction stores the uid after the check.
        tenancy::lock(&tx, &sealed.webhook.tenant_id).await?;
    }
    if is_uid_taken(&tx, &sealed.webhook).await? {
        return Ok(UpdateResult::Exists);
    }
    let version = store(&tx, sealed).await?;
    Ok(version.map_or(UpdateResult::NotFound, |version| UpdateResult::Updated { version }))
}

/// Returns whether another webhook of the tenant has the uid of this one. The tenant must be locked.
async fn is_uid_taken(tx: &Session, webhook: &Webhook) -> Result<bool, Failure> {
    let Some(uid) = webhook.spec.uid.as_ref().filter(|_| webhook.state != WebhookState::Deleted) else {
        return Ok(false);
    };
    let holder = "SELECT 1 FROM webhooks WHERE tenant_id = $1 AND uid = $2 AND NOT deleted AND id <> $3";
    tx.exists(holder, &[&webhook.tenant_id.as_str(), &uid.as_str(), &Col(webhook.id)]).await
}

async fn change(
    tx: Tx,
    sealed: &SealedWebhook,
    revision: i64,
    occurrence: Option<&Occurrence>,
) -> Result<UpdateResult, Failure> {
    let webhook = &sealed.webhook;
    // Lock the tenant's row first, as a publish does, so that the webhook does not change concurrently.
    tenancy::lock(&tx, &webhook.tenant_id).await?;
    lock(&tx, [webhook.id]).await?;
    let Some(now) = find(&tx, &webhook.tenant_id, webhook.id).await? else {
        return Ok(UpdateResult::NotFound);
    };
    if now.revision != revision {
        return Ok(UpdateResult::Stale);
    }
    if is_uid_taken(&tx, webhook).await? {
        return Ok(UpdateResult::Exists);
    }
    let Some(version) = store(&tx, sealed).await? else { return Ok(UpdateResult::NotFound) };
    notifications::record_occurrences(&tx, occurrence.as_slice()).await?;
    Ok(UpdateResult::Updated { version })
}

/// Stores a new webhook, or one that has not changed since `revision`, together with its circuit.
pub(super) async fn store_with_circuit(
    tx: Tx,
    sealed: &SealedWebhook,
    revision: Option<i64>,
    circuit: &SavedCircuit,
) -> Result<UpdateResult, Failure> {
    let webhook = &sealed.webhook;
    tenancy::lock(&tx, &webhook.tenant_id).await?;
    if let Some(revision) = revision {
        lock(&tx, [webhook.id]).await?;
        let Some(found) = find(&tx, &webhook.tenant_id, webhook.id).await? else {
            return Ok(UpdateResult::NotFound);
        };
        runtime_state::lock_to_change(&tx, webhook.id).await?;
        if found.revision != revision
            || runtime_state::circuit_generation(&tx, webhook.id).await? > circuit.generation
        {
            return Ok(UpdateResult::Stale);
        }
    }
    if is_uid_taken(&tx, webhook).await? {
        return Ok(UpdateResult::Exists);
    }
    let Some(version) = store_unpaused(&tx, sealed).await? else { return Ok(UpdateResult::NotFound) };
    runtime_state::pause(&tx, webhook).await?;
    runtime_state::set_circuit(&tx, &webhook.tenant_id, webhook.id, circuit).await?;
    lanes::recompute_lanes(&tx, webhook.id).await?;
    changes::append(&tx, &Change::Runtime(webhook.id)).await?;
    Ok(UpdateResult::Updated { version })
}

async fn sealed_by_ids(session: Tx, ids: &[Col<WebhookId>]) -> Result<Vec<SealedWebhook>, Failure> {
    let rows = session.query(webhooks!("WHERE id = ANY($1::uuid[])"), &[&ids]).await?;
    rows.iter().map(read_webhook).collect()
}

async fn list(
    session: Tx,
    tenant_id: &TenantId,
    visibility: Visibility,
    page: PageRequest<WebhookId>,
) -> Result<Vec<SealedWebhook>, Failure> {
    // Ids are listed in descending order, so the greatest possible id starts at the first row.
    let after = page.after.unwrap_or(WebhookId::from_bytes([0xff; 16]));
    let listed = webhooks!(
        "WHERE tenant_id = $1 AND NOT deleted AND id < $2 AND NOT ($5::boolean AND managed_by_operator)
         ORDER BY id DESC LIMIT $3 OFFSET $4"
    );
    let (limit, offset) = (i64::from(page.limit), i64::from(page.offset));
    let restricted = visibility.is_restricted();
    let rows =
        session.query(listed, &[&tenant_id.as_str(), &Col(after), &limit, &offset, &restricted]).await?;
    rows.iter().map(read_webhook).collect()
}

async fn list_labels(
    session: Tx,
    tenant_id: &TenantId,
    visibility: Visibility,
    page: PageRequest<WebhookId>,
) -> Result<Vec<WebhookLabel>, Failure> {
    let after = Col(page.after.unwrap_or(WebhookId::from_bytes([0xff; 16])));
    let (limit, offset) = (i64::from(page.limit), i64::from(page.offset));
    let restricted = visibility.is_restricted();
    let rows =
        session.query(LIST_LABELS, &[&tenant_id.as_str(), &after, &limit, &offset, &restricted]).await?;
    let read = |row: &Row| {
        let (uid, url, description) = (plain(row, 1)?, plain(row, 2)?, plain(row, 3)?);
        Ok(WebhookLabel { id: get(row, 0)?, uid, url, description })
    };
    rows.iter().map(read).collect()
}

/// Lists the webhooks of all tenants.
pub(super) async fn list_all(
    session: Tx,
    page: PageRequest<WebhookId>,
) -> Result<Vec<SealedWebhook>, Failure> {
    let after = Col(page.after.unwrap_or(WebhookId::from_bytes([0xff; 16])));
    let (limit, offset) = (i64::from(page.limit), i64::from(page.offset));
    let listed = webhooks!("WHERE NOT deleted AND id < $1 ORDER BY id DESC LIMIT $2 OFFSET $3");
    session.query(listed, &[&after, &limit, &offset]).await?.iter().map(read_webhook).collect()
}

async fn config_changes(
    session: Tx,
    tenant_id: &TenantId,
    version: i64,
    limit: usize,
) -> Result<Option<(i64, bool, TenantRules, i64, Vec<SealedWebhook>)>, Failure> {
    // Read the version first: a webhook that changes after it has a higher revision and is read by the next call.
    let now =
        "SELECT config_version, rules, event_types_version FROM tenants WHERE id = $1 AND deleted_at IS NULL";
    let Some(row) = session.query_opt(now, &[&tenant_id.as_str()]).await? else { return Ok(None) };
    let (now, rules, event_types_version) = (plain(&row, 0)?, from_json(&row, 1)?, plain(&row, 2)?);
    let changed = webhooks!(
        "WHERE tenant_id = $1 AND revision > $2 AND revision <= $4 AND ($2 > 0 OR NOT deleted) ORDER BY revision
         LIMIT $3"
    );
    let rows = session.query(changed, &[&tenant_id.as_str(), &version, &(limit as i64), &now]).await?;
    let (mut webhooks, mut last) = (Vec::new(), now);
    for row in &rows {
        webhooks.push(read_webhook(row)?);
        last = plain(row, 2)?;
    }
    let more = webhooks.len() == limit;
    // Each change has its own version, so the last revision read is a version that existed.
    Ok(Some((if more { last } else { now }, more, rules, event_types_version, webhooks)))
}

async fn cancel_batch(
    tx: Tx,
    webhook_id: WebhookId,
    reason: &str,
    now: Time,
    limit: usize,
) -> Result<BatchProgress, Failure> {
    // Checked inside the transaction: a webhook that was enabled again keeps its deliveries.
    let wanted = "SELECT 1 FROM webhooks WHERE id = $1 AND cancel_pending FOR NO KEY UPDATE";
    if !tx.exists(wanted, &[&Col(webhook_id)]).await? {
        return Ok(BatchProgress { changed: 0, finished: true });
    }
    // An exclusive lock, since the row may be deleted: upgrading a shared lock later could deadlock.
    runtime_state::lock_to_change(&tx, webhook_id).await?;
    let locked = lanes::lock_all(&tx, webhook_id).await?;
    let lanes: Vec<_> = locked.iter().map(|(_, lane)| lane.as_str()).collect();
    let mut keys = Keys::new();
    let mut cancelled = Vec::new();
    for row in tx.query(DELETE_WAITING, &[&Col(webhook_id), &(limit as i64), &lanes]).await? {
        cancelled.push(get(&row, 0)?);
        keys.insert((webhook_id, plain(&row, 1)?));
    }
    redrive::end_cancelled(&tx, &cancelled, reason, now).await?;
    // After every step and not only at the end: if the webhook is enabled again, the next delivery of an ordered lane
    // is now its first.
    lanes::set_by_first(&tx, &keys).await?;
    // A lane that was created after the others were locked is left to the next step.
    let finished = cancelled.len() < limit && !tx.exists(HAS_WAITING, &[&Col(webhook_id)]).await?;
    if finished {
        tx.execute("UPDATE webhooks SET cancel_pending = false WHERE id = $1", &[&Col(webhook_id)]).await?;
        runtime_state::delete_runtime(&tx, webhook_id).await?;
        successes::delete(&tx, webhook_id).await?;
    }
    Ok(BatchProgress { changed: cancelled.len(), finished })
}

/// Locks the webhooks until the end of the transaction.
pub(super) async fn lock(tx: &Session, webhooks: impl IntoIterator<Item = WebhookId>) -> Result<(), Failure> {
    let webhooks: Vec<_> = webhooks.into_iter().map(Col).collect();
    tx.query(LOCK_WEBHOOKS, &[&webhooks]).await?;
    Ok(())
}

/// Returns the stored webhooks with these ids, including deleted ones, without their secrets.
pub(super) async fn by_ids(
    session: &Session,
    ids: impl IntoIterator<Item = WebhookId>,
) -> Result<HashMap<WebhookId, Webhook>, Failure> {
    let ids: Vec<_> = ids.into_iter().map(Col).collect();
    let rows = session.query(webhooks!("WHERE id = ANY($1::uuid[])"), &[&ids]).await?;
    rows.iter().map(|row| read_webhook(row).map(|found| (found.webhook.id, found.webhook))).collect()
}

/// Returns a webhook that is not deleted.
pub(super) async fn find(
    session: &Session,
    tenant_id: &TenantId,
    id: WebhookId,
) -> Result<Option<SealedVersion>, Failure> {
    let found = webhooks!("WHERE id = $1 AND tenant_id = $2 AND NOT deleted");
    let Some(row) = session.query_opt(found, &[&Col(id), &tenant_id.as_str()]).await? else {
        return Ok(None);
    };
    Ok(Some(SealedVersion { webhook: read_webhook(&row)?, revision: plain(&row, 2)? }))
}

/// Writes a webhook under the tenant's next version. An existing webhook must be locked. Returns `None` if the
/// tenant does not exist.
pub(super) async fn store(tx: &Session, sealed: &SealedWebhook) -> Result<Option<i64>, Failure> {
    let version = store_unpaused(tx, sealed).await?;
    if version.is_some() && runtime_state::pause(tx, &sealed.webhook).await? {
        lanes::recompute_lanes(tx, sealed.webhook.id).await?;
    }
    Ok(version)
}

/// Writes a webhook as `store` does, in a transaction that has locked all lanes of the webhook.
pub(super) async fn store_with_lanes(tx: &Session, sealed: &SealedWebhook) -> Result<Option<i64>, Failure> {
    let version = store_unpaused(tx, sealed).await?;
    if version.is_some() && runtime_state::pause(tx, &sealed.webhook).await? {
        lanes::settle_locked(tx, sealed.webhook.id).await?;
    }
    Ok(version)
}

async fn store_unpaused(tx: &Session, sealed: &SealedWebhook) -> Result<Option<i64>, Failure> {
    let SealedWebhook { webhook, sealed } = sealed;
    let next = "UPDATE tenants SET config_version = config_version + 1
                WHERE id = $1 AND deleted_at IS NULL RETURNING config_version";
    let Some(row) = tx.query_opt(next, &[&webhook.tenant_id.as_str()]).await? else { return Ok(None) };
    let version: i64 = plain(&row, 0)?;
    failures::end_by_state_change(tx, webhook).await?;
    tx.execute(
        "INSERT INTO webhooks (id, tenant_id, revision, state, spec, sealed, created_at, updated_at, deleted,
         cancel_pending,
                               expires_at, managed_by_operator, uid)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)
         ON CONFLICT (id) DO UPDATE SET tenant_id = excluded.tenant_id, revision = excluded.revision,
             state = excluded.state, spec = excluded.spec, sealed = excluded.sealed,
             created_at = excluded.created_at, updated_at = excluded.updated_at, deleted = excluded.deleted,
             cancel_pending = excluded.cancel_pending, expires_at = excluded.expires_at,
             managed_by_operator = excluded.managed_by_operator, uid = excluded.uid",
        &[
            &Col(webhook.id),
            &webhook.tenant_id.as_str(),
            &version,
            &to_json(&webhook.state)?,
            &to_json(&webhook.spec)?,
            sealed,
            &Col(webhook.created_at),
            &Col(webhook.updated_at),
            &(webhook.state == WebhookState::Deleted),
            &webhook.state.cancels_deliveries(),
            &webhook.next_action_at().map(Col),
            &webhook.spec.is_operator_managed(),
            &webhook.spec.uid.as_ref().map(WebhookUid::as_str),
        ],
    )
    .await?;
    changes::append(tx, &Change::Webhook(webhook.tenant_id.clone(), webhook.id)).await?;
    Ok(Some(version))
}

fn read_webhook(row: &Row) -> Result<SealedWebhook, Failure> {
    let webhook = Webhook {
        id: get(row, 0)?,
        tenant_id: get(row, 1)?,
        state: from_json(row, 3)?,
        spec: from_json(row, 4)?,
        secrets: Vec::new(),
        created_at: get(row, 6)?,
        updated_at: get(row, 7)?,
    };
    Ok(SealedWebhook { webhook, sealed: plain(row, 5)? })
}

pub(super) fn to_json<T: Serialize>(value: &T) -> Result<String, Failure> {
    Ok(serde_json::to_string(value)?)
}

pub(super) fn from_json<T: DeserializeOwned>(row: &Row, column: usize) -> Result<T, Failure> {
    Ok(serde_json::from_str(plain(row, column)?)?)
}
