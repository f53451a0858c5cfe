//! Publishing: determines the result of each event of a batch.
//!
//! Events without idempotency keys are stored by one statement, in one round trip. For the others the tenants and
//! keys are read first, without locks, and the same statement then checks that they have not changed. If they
//! have, nothing is stored and the batch is read again. The lock on the tenant's row serializes publishes of one
//! tenant over all nodes: sequence order is commit order. See `publish_statement`.

use std::collections::{BTreeSet, HashMap};

use redrive_core::{EventId, TenantId, Time, event::Event};
use sha2::{Digest, Sha256};
use tokio_postgres::types::ToSql;

use super::{
    Postgres, Shared,
    convert::{get, hash, plain},
    publish_statement::Insertion,
    session::{Failure, Sessions, Tx},
    writer,
};
use crate::{Completion, NewEvent, Publish, PublishResult};

/// Live epochs. They cannot end before the commit, since ending one deletes its locked row.
pub(super) const LOCK_LIVE_EPOCHS: &str =
    "SELECT epoch FROM nodes WHERE epoch = ANY($1::bigint[]) FOR KEY SHARE";
/// Configuration versions of tenants, and which of the epochs are live. Nothing is locked.
const READ_TENANTS: &str = "SELECT t.id, t.config_version, ARRAY(
         SELECT n.epoch FROM nodes n WHERE n.epoch = ANY($2::bigint[]))
     FROM tenants t WHERE t.id = ANY($1::text[])";
const READ_KEYS: &str = "SELECT i.tenant_id, i.key_hash, i.event_id, i.body_hash, i.expires_at
     FROM unnest($1::text[], $2::bytea[]) AS k(tenant_id, key_hash) CROSS JOIN LATERAL (
         SELECT * FROM idempotency_keys i WHERE i.tenant_id = k.tenant_id COLLATE \"C\" AND i.key_hash = k.key_hash
         LIMIT 1) i";
/// Tenants whose rows are not locked by another transaction.
const SELECT_UNLOCKED: &str =
    "SELECT id FROM tenants WHERE id = ANY($1::text[]) ORDER BY id FOR NO KEY UPDATE SKIP LOCKED";

/// Statements whose cost must be proportional to the rows they read; a test checks their query plans.
#[cfg(feature = "conformance")]
pub(super) const PLANNED_STATEMENTS: [(&str, &str); 4] = [
    ("live epochs", LOCK_LIVE_EPOCHS),
    ("tenants of a batch", READ_TENANTS),
    ("keys", READ_KEYS),
    ("unlocked tenants", SELECT_UNLOCKED),
];

impl Publish for Postgres {
    fn publish(&self, event: NewEvent, done: Completion<PublishResult>) {
        self.writer.publish(event, done);
    }
}

/// State of the tenants and keys of a batch, read without locks.
#[derive(Default)]
struct BatchState {
    live_epochs: BTreeSet<i64>,
    config_versions: HashMap<TenantId, i64>,
    key_holders: HashMap<(TenantId, [u8; 32]), KeyHolder>,
    /// Latest expiry among the keys that an event of the batch replaces.
    replaceable_until: Time,
}

/// Event that holds an idempotency key.
#[derive(Clone, Copy)]
struct KeyHolder {
    event_id: EventId,
    body_hash: [u8; 32],
    expires_at: Time,
    /// `false` for an event of the same batch.
    is_stored: bool,
}

/// What to do with an event.
enum Decision {
    Store,
    Result(PublishResult),
}

/// Publishes events of one epoch on a connection of `sessions`. Results are in the order of the events. A result
/// is `None` if the event's tenant was not as expected: nothing was stored, and the event must be retried with
/// `read_first`.
pub(super) async fn publish_group(
    shared: &Shared,
    sessions: &Sessions,
    events: &[&NewEvent],
    read_first: bool,
) -> Result<Vec<Option<PublishResult>>, Failure> {
    let tx = sessions.get().await?;
    // A connection that is dropped between request and reply must not be used again.
    tx.set_dirty(true);
    let published = match Insertion::new(events.to_vec(), Time::default()) {
        Some(insertion) if !read_first && insertion.needs_no_reading() => {
            let numbers = store(shared, &tx, &insertion).await;
            numbers.map(|numbers| numbers.into_iter().map(to_published).collect())
        }
        _ => publish_after_reading(shared, &tx, events).await,
    };
    match &published {
        Ok(_) => tx.set_dirty(false),
        Err(Failure::TimedOut) => {}
        Err(failure) if failure.is_commit_uncertain() => {}
        Err(_) => tx.roll_back().await,
    }
    published
}

fn to_published(sequence_number: Option<i64>) -> Option<PublishResult> {
    sequence_number.map(|sequence_number| PublishResult::New { sequence_number })
}

/// Reads the tenants and keys of the events, and stores the events that are new.
async fn publish_after_reading(
    shared: &Shared,
    tx: &Tx,
    events: &[&NewEvent],
) -> Result<Vec<Option<PublishResult>>, Failure> {
    let mut state = read(tx, events).await?;
    let decisions: Vec<_> = events.iter().map(|new| state.decide(new)).collect();
    let is_new = |decision: &Decision| matches!(decision, Decision::Store);
    let new: Vec<_> =
        events.iter().zip(&decisions).filter(|(_, decision)| is_new(decision)).map(|(new, _)| *new).collect();
    let mut numbers = Vec::new();
    let mut changed: BTreeSet<&TenantId> = BTreeSet::new();
    if !new.is_empty() {
        let insertion = Insertion::new(new, state.replaceable_until)
            .ok_or_else(|| Failure::InvalidData("events of several epochs were published together".into()))?;
        numbers = store(shared, tx, &insertion).await?;
        let stored = insertion.events().iter().zip(&numbers);
        changed.extend(stored.filter(|(_, number)| number.is_none()).map(|(new, _)| &new.event.tenant_id));
    }
    let mut numbers = numbers.into_iter();
    let result = |(new, decision): (&&NewEvent, Decision)| match decision {
        Decision::Store => to_published(numbers.next().flatten()),
        // It may be a duplicate of an event of this batch that was not stored.
        Decision::Result(_) if changed.contains(&new.event.tenant_id) => None,
        Decision::Result(published) => Some(published),
    };
    Ok(events.iter().zip(decisions).map(result).collect())
}

/// Runs the statement that takes all locks, stores and commits.
async fn store(shared: &Shared, tx: &Tx, insertion: &Insertion<'_>) -> Result<Vec<Option<i64>>, Failure> {
    match insertion.run(tx, shared.doubts.fence()).await {
        Ok(first) => {
            tx.set_dirty(true);
            Ok(insertion.sequence_numbers(&first))
        }
        Err(failure) => {
            if failure.is_commit_uncertain() {
                tracing::warn!(error = %failure, "it is not known whether a batch of publishes was committed");
                writer::mark_uncertain(shared, insertion.events().iter().copied());
            }
            Err(failure)
        }
    }
}

async fn read(tx: &Tx, events: &[&NewEvent]) -> Result<BatchState, Failure> {
    tx.prepare(&[READ_TENANTS, READ_KEYS]).await?;
    let epochs: Vec<_> = events.iter().map(|new| new.epoch.0).collect::<BTreeSet<_>>().into_iter().collect();
    let tenants: BTreeSet<_> = events.iter().map(|new| new.event.tenant_id.as_str()).collect();
    let tenants: Vec<_> = tenants.into_iter().collect();
    let keyed: Vec<_> = events.iter().filter(|new| new.idempotency.is_some()).collect();
    let owners: Vec<_> = keyed.iter().map(|new| new.event.tenant_id.as_str()).collect();
    let hashes: Vec<_> = keyed.iter().map(|new| key_hash(&new.event).to_vec()).collect();
    let keys = async {
        match keyed.is_empty() {
            true => Ok(Vec::new()),
            false => tx.query(READ_KEYS, &[&owners, &hashes]).await,
        }
    };
    let values: [&(dyn ToSql + Sync); 2] = [&tenants, &epochs];
    let (tenants, keys) = tokio::join!(biased; tx.query(READ_TENANTS, &values), keys);
    let mut state = BatchState::default();
    for row in tenants? {
        state.config_versions.insert(get(&row, 0)?, plain(&row, 1)?);
        state.live_epochs.extend(plain::<Vec<i64>>(&row, 2)?);
    }
    for row in keys? {
        let (event_id, body_hash, expires_at) = (get(&row, 2)?, hash(&row, 3)?, get(&row, 4)?);
        let holder = KeyHolder { event_id, body_hash, expires_at, is_stored: true };
        state.key_holders.insert((get(&row, 0)?, hash(&row, 1)?), holder);
    }
    Ok(state)
}

impl BatchState {
    fn decide(&mut self, new: &NewEvent) -> Decision {
        let tenant_id = &new.event.tenant_id;
        let Some(config_version) = self.config_versions.get(tenant_id) else {
            return Decision::Result(PublishResult::NoTenant);
        };
        let key = new
            .idempotency
            .as_ref()
            .map(|reservation| ((tenant_id.clone(), key_hash(&new.event)), reservation));
        let holder = key.as_ref().and_then(|(key, _)| self.key_holders.get(key).copied());
        if let (Some(holder), Some((_, reservation))) = (holder, &key)
            && holder.expires_at > reservation.confirmed_now
        {
            return Decision::Result(match holder.body_hash == reservation.body_hash {
                true => PublishResult::Duplicate { event_id: holder.event_id },
                false => PublishResult::KeyReused { event_id: holder.event_id },
            });
        }
        if !self.live_epochs.contains(&new.epoch.0) {
            return Decision::Result(PublishResult::Fenced);
        }
        if *config_version != new.config_version {
            return Decision::Result(PublishResult::ConfigChanged);
        }
        if let Some((key, reservation)) = key {
            if let Some(expired) = holder.filter(|holder| holder.is_stored) {
                self.replaceable_until = self.replaceable_until.max(expired.expires_at);
            }
            let (event_id, body_hash, expires_at) =
                (new.event.id, reservation.body_hash, reservation.expires_at);
            self.key_holders.insert(key, KeyHolder { event_id, body_hash, expires_at, is_stored: false });
        }
        Decision::Store
    }
}

pub(super) fn key_hash(event: &Event) -> [u8; 32] {
    Sha256::digest(event.idempotency_key.as_deref().unwrap_or_default()).into()
}

/// Returns the tenants whose rows are currently locked by another transaction.
pub(super) async fn locked_tenants<'a>(
    sessions: &Sessions,
    tenants: &BTreeSet<&'a TenantId>,
) -> Result<BTreeSet<&'a TenantId>, Failure> {
    let names: Vec<_> = tenants.iter().map(|tenant| tenant.as_str()).collect();
    let names = &names;
    let rows = sessions.read(|tx| async move { tx.query(SELECT_UNLOCKED, &[names]).await }).await?;
    let unlocked: BTreeSet<TenantId> = rows.iter().map(|row| get(row, 0)).collect::<Result<_, _>>()?;
    Ok(tenants.iter().copied().filter(|tenant| !unlocked.contains(*tenant)).collect())
}
