//! Storing events with everything they fan out to.
//!
//! A batch takes two round trips: one to lock the tenants it is for and to see what holds for them, one to
//! write it all and commit. The lock makes publishing of one tenant a queue over all nodes: sequence order is
//! commit order, a fan-out is checked against what nobody can change meanwhile, and a key is seen by all. Events
//! without keys take a shorter way, see `plain`.

use std::collections::{BTreeSet, HashMap};

use redrive_core::{DeliveryStatus, EventId, TenantId, Time, event::Event};
use sha2::{Digest, Sha256};
use tokio_postgres::types::ToSql;

use super::{
    Postgres,
    convert::{Col, get, hash, plain},
    lanes::{self, Place, Rescued, WAIT, Wait, Waits},
    session::{Failure, Tx},
};
use crate::{Birth, Done, Epoch, NewEvent, Publish, Published, codes::Code};

/// Which epochs still stand; they stay so until the commit, since ending one needs its row.
pub(super) const LIVE: &str = "SELECT epoch FROM nodes WHERE epoch = ANY($1::bigint[]) FOR KEY SHARE";
/// What holds for tenants, and which of the epochs still stand; both stay so until the commit.
const LOOK: &str = "WITH live AS (SELECT epoch FROM nodes WHERE epoch = ANY($2::bigint[]) FOR KEY SHARE)
     SELECT t.id, t.next_seq, t.config_version, (SELECT array_agg(live.epoch) FROM live)
     FROM tenants t WHERE t.id = ANY($1::text[]) ORDER BY t.id FOR NO KEY UPDATE OF t";
const KEYS: &str = "SELECT i.tenant, i.key_hash, i.event, i.body_hash, i.expires_at
     FROM unnest($1::text[], $2::bytea[]) AS k(tenant, key_hash) CROSS JOIN LATERAL (
         SELECT * FROM idempotency i WHERE i.tenant = k.tenant COLLATE \"C\" AND i.key_hash = k.key_hash LIMIT 1) i";
const TAKE_KEYS: &str = "INSERT INTO idempotency (tenant, key_hash, event, body_hash, expires_at)
     SELECT * FROM unnest($1::text[], $2::bytea[], $3::uuid[], $4::bytea[], $5::bigint[])
     ON CONFLICT (tenant, key_hash) DO UPDATE
     SET event = excluded.event, body_hash = excluded.body_hash, expires_at = excluded.expires_at";
/// Everything that is new, and the tenants' counters.
const INSERT: &str = "WITH counted AS (
         UPDATE tenants t SET next_seq = ($2::bigint[])[array_position($1::text[], t.id)]
         WHERE t.id = ANY($1::text[])),
     new_events AS (
         INSERT INTO events (id, tenant, seq, event_type, timestamp, idempotency_key, source, subject,
                             priority, metadata, data, trace)
         SELECT * FROM unnest($3::uuid[], $4::text[], $5::bigint[], $6::text[], $7::bigint[], $8::text[],
                              $9::text[], $10::text[], $11::smallint[], $12::bytea[], $13::bytea[], $14::bytea[])),
     new_deliveries AS (
         INSERT INTO deliveries (id, tenant, event, webhook, round, status, format, priority, created_at)
         SELECT d.id, d.tenant, d.event, d.webhook, 1, $15::smallint, d.format, d.priority, d.created_at
         FROM unnest($16::uuid[], $17::text[], $18::uuid[], $19::uuid[], $20::smallint[], $21::smallint[],
                     $22::bigint[]) AS d(id, tenant, event, webhook, format, priority, created_at))
     INSERT INTO leased (epoch, delivery, webhook, lane, seq)
     SELECT * FROM unnest($23::bigint[], $24::uuid[], $25::uuid[], $26::text[], $27::bigint[])";
/// The statements whose cost must follow what they write: a test explains their plans.
#[cfg(feature = "conformance")]
pub(super) const PLANNED: [(&str, &str); 4] =
    [("live epochs", LIVE), ("tenants", LOOK), ("keys", KEYS), ("publish", INSERT)];

impl Publish for Postgres {
    fn publish(&self, event: NewEvent, done: Done<Published>) {
        self.writer.publish(event, done);
    }
}

/// A tenant's row, read once per batch and written back once.
#[derive(Clone, Copy)]
struct Counter {
    next_seq: i64,
    config_version: i64,
    changed: bool,
}

/// Who has an idempotency key.
#[derive(Clone, Copy)]
struct Holder {
    event: EventId,
    body_hash: [u8; 32],
    expires_at: Time,
}

/// What holds for the events of one batch.
#[derive(Default)]
struct Known {
    live: BTreeSet<i64>,
    tenants: HashMap<TenantId, Counter>,
    keys: HashMap<(TenantId, [u8; 32]), Holder>,
}

/// Publishes a batch in one transaction. `told` is set just before the commit, from when on a failure leaves
/// its result in doubt.
pub(super) async fn commit(tx: &Tx, batch: &[&NewEvent], told: &mut bool) -> Result<Vec<Published>, Failure> {
    tx.prepare(&[LOOK, KEYS, TAKE_KEYS, INSERT, WAIT]).await?;
    let mut known = look(tx, batch).await?;
    let published: Vec<_> = batch.iter().map(|new| known.decide(new)).collect();
    let new: Vec<_> = batch
        .iter()
        .zip(&published)
        .filter_map(|(new, published)| match published {
            Published::New { sequence_number } => Some((*new, *sequence_number)),
            _ => None,
        })
        .collect();
    if new.is_empty() {
        tx.commit().await?;
        return Ok(published);
    }
    let waits = waits(&new);
    let waiting = Waits::new(&waits);
    if waiting.is_simple() {
        *told = true;
        let wait = async {
            match waits.is_empty() {
                true => Ok(()),
                false => waiting.insert(tx).await,
            }
        };
        let (keys, inserted, waiting, committed) = tokio::join!(
            biased;
            take_keys(tx, &new),
            insert(tx, &known, &new),
            wait,
            tx.commit_unseen(),
        );
        keys?;
        inserted?;
        waiting?;
        committed?;
    } else {
        take_keys(tx, &new).await?;
        insert(tx, &known, &new).await?;
        lanes::wait(tx, &waits).await?;
        *told = true;
        tx.commit_unseen().await?;
    }
    tx.committed();
    Ok(published)
}

async fn look(tx: &Tx, batch: &[&NewEvent]) -> Result<Known, Failure> {
    let epochs: Vec<_> = batch.iter().map(|new| new.epoch.0).collect::<BTreeSet<_>>().into_iter().collect();
    let tenants: BTreeSet<_> = batch.iter().map(|new| new.event.tenant.as_str()).collect();
    let tenants: Vec<_> = tenants.into_iter().collect();
    let claims: Vec<_> = batch.iter().filter(|new| new.claim.is_some()).collect();
    let owners: Vec<_> = claims.iter().map(|new| new.event.tenant.as_str()).collect();
    let hashes: Vec<_> = claims.iter().map(|new| key_hash(&new.event).to_vec()).collect();
    let keys = async {
        match claims.is_empty() {
            true => Ok(Vec::new()),
            false => tx.query(KEYS, &[&owners, &hashes]).await,
        }
    };
    let values: [&(dyn ToSql + Sync); 2] = [&tenants, &epochs];
    let (begun, tenants, keys) = tokio::join!(biased; tx.begin(), tx.query(LOOK, &values), keys);
    begun?;
    let mut known = Known::default();
    for row in tenants? {
        let counter = Counter { next_seq: plain(&row, 1)?, config_version: plain(&row, 2)?, changed: false };
        known.tenants.insert(get(&row, 0)?, counter);
        known.live.extend(plain::<Option<Vec<i64>>>(&row, 3)?.into_iter().flatten());
    }
    for row in keys? {
        let holder = Holder { event: get(&row, 2)?, body_hash: hash(&row, 3)?, expires_at: get(&row, 4)? };
        known.keys.insert((get(&row, 0)?, hash(&row, 1)?), holder);
    }
    Ok(known)
}

impl Known {
    fn decide(&mut self, new: &NewEvent) -> Published {
        let tenant = &new.event.tenant;
        let Some(counter) = self.tenants.get_mut(tenant) else { return Published::NoTenant };
        let key = new.claim.as_ref().map(|claim| ((tenant.clone(), key_hash(&new.event)), claim));
        if let Some((key, claim)) = &key
            && let Some(holder) = self.keys.get(key)
            && holder.expires_at > new.event.timestamp
        {
            return match holder.body_hash == claim.body_hash {
                true => Published::Duplicate { event: holder.event },
                false => Published::KeyReused { event: holder.event },
            };
        }
        if !self.live.contains(&new.epoch.0) {
            return Published::Fenced;
        }
        if counter.config_version != new.config_version {
            return Published::ConfigChanged;
        }
        if let Some((key, claim)) = key {
            let holder =
                Holder { event: new.event.id, body_hash: claim.body_hash, expires_at: claim.expires_at };
            self.keys.insert(key, holder);
        }
        let sequence_number = counter.next_seq;
        counter.next_seq += 1;
        counter.changed = true;
        Published::New { sequence_number }
    }
}

fn key_hash(event: &Event) -> [u8; 32] {
    Sha256::digest(event.idempotency_key.as_deref().unwrap_or_default()).into()
}

/// An event that is new, with its place.
type New<'a> = (&'a NewEvent, i64);

async fn take_keys(tx: &Tx, new: &[New<'_>]) -> Result<(), Failure> {
    let mut claims: Vec<_> = new
        .iter()
        .filter_map(|(new, _)| Some((&new.event, new.claim.as_ref()?, key_hash(&new.event))))
        .collect();
    if claims.is_empty() {
        return Ok(());
    }
    // A key that expired and was taken twice in one batch belongs to the last.
    let mut seen = BTreeSet::new();
    claims.reverse();
    claims.retain(|(event, _, hash)| seen.insert((event.tenant.clone(), *hash)));
    tx.execute(
        TAKE_KEYS,
        &[
            &claims.iter().map(|(event, ..)| event.tenant.as_str()).collect::<Vec<_>>(),
            &claims.iter().map(|(_, _, hash)| &hash[..]).collect::<Vec<_>>(),
            &claims.iter().map(|(event, ..)| Col(event.id)).collect::<Vec<_>>(),
            &claims.iter().map(|(_, claim, _)| &claim.body_hash[..]).collect::<Vec<_>>(),
            &claims.iter().map(|(_, claim, _)| Col(claim.expires_at)).collect::<Vec<_>>(),
        ],
    )
    .await?;
    Ok(())
}

async fn insert(tx: &Tx, known: &Known, new: &[New<'_>]) -> Result<(), Failure> {
    let changed: Vec<_> = known.tenants.iter().filter(|(_, counter)| counter.changed).collect();
    let events: Vec<_> = new.iter().map(|(new, _)| &*new.event).collect();
    let deliveries: Vec<_> = new
        .iter()
        .flat_map(|(new, seq)| {
            new.deliveries.iter().map(move |delivery| (&*new.event, delivery, *seq, new.epoch))
        })
        .collect();
    let leased: Vec<_> =
        deliveries.iter().filter(|(_, delivery, ..)| delivery.birth == Birth::Leased).collect();
    let codes: Vec<_> = leased.iter().map(|(_, delivery, ..)| delivery.lane.code()).collect();
    tx.execute(
        INSERT,
        &[
            &changed.iter().map(|(tenant, _)| tenant.as_str()).collect::<Vec<_>>(),
            &changed.iter().map(|(_, counter)| counter.next_seq).collect::<Vec<_>>(),
            &events.iter().map(|event| Col(event.id)).collect::<Vec<_>>(),
            &events.iter().map(|event| event.tenant.as_str()).collect::<Vec<_>>(),
            &new.iter().map(|(_, seq)| *seq).collect::<Vec<_>>(),
            &events.iter().map(|event| &*event.event_type).collect::<Vec<_>>(),
            &events.iter().map(|event| Col(event.timestamp)).collect::<Vec<_>>(),
            &events.iter().map(|event| event.idempotency_key.as_deref()).collect::<Vec<_>>(),
            &events.iter().map(|event| event.source.as_deref()).collect::<Vec<_>>(),
            &events.iter().map(|event| event.subject.as_deref()).collect::<Vec<_>>(),
            &events.iter().map(|event| Col(event.priority)).collect::<Vec<_>>(),
            &events.iter().map(|event| event.metadata.as_deref()).collect::<Vec<_>>(),
            &events.iter().map(|event| &event.data[..]).collect::<Vec<_>>(),
            &events
                .iter()
                .map(|event| event.trace.as_ref().map(|trace| trace.to_bytes()))
                .collect::<Vec<_>>(),
            &DeliveryStatus::Pending.code(),
            &deliveries.iter().map(|(_, delivery, ..)| Col(delivery.id)).collect::<Vec<_>>(),
            &deliveries.iter().map(|(event, ..)| event.tenant.as_str()).collect::<Vec<_>>(),
            &deliveries.iter().map(|(event, ..)| Col(event.id)).collect::<Vec<_>>(),
            &deliveries.iter().map(|(_, delivery, ..)| Col(delivery.webhook)).collect::<Vec<_>>(),
            &deliveries.iter().map(|(_, delivery, ..)| Col(delivery.format)).collect::<Vec<_>>(),
            &deliveries.iter().map(|(event, ..)| Col(event.priority)).collect::<Vec<_>>(),
            &deliveries.iter().map(|(event, ..)| Col(event.timestamp)).collect::<Vec<_>>(),
            &leased.iter().map(|(_, _, _, Epoch(epoch))| *epoch).collect::<Vec<_>>(),
            &leased.iter().map(|(_, delivery, ..)| Col(delivery.id)).collect::<Vec<_>>(),
            &leased.iter().map(|(_, delivery, ..)| Col(delivery.webhook)).collect::<Vec<_>>(),
            &codes.iter().map(|code| &**code).collect::<Vec<_>>(),
            &leased.iter().map(|(_, _, seq, _)| *seq).collect::<Vec<_>>(),
        ],
    )
    .await?;
    Ok(())
}

/// Those that are born waiting.
fn waits(new: &[New<'_>]) -> Vec<Wait> {
    let mut waits = Vec::new();
    for (new, seq) in new {
        for delivery in &new.deliveries {
            if let Birth::Waiting(due) = delivery.birth {
                let place = Place {
                    delivery: delivery.id,
                    webhook: delivery.webhook,
                    lane: delivery.lane.clone(),
                    seq: *seq,
                };
                waits.push(Wait { place, due, created_at: new.event.timestamp, rescued: Rescued::default() });
            }
        }
    }
    waits
}
