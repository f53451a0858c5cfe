//! Storing events with everything they fan out to.

use std::collections::HashMap;

use redrive_core::{DeliveryStatus, EventId, TenantId, event::Event};
use rusqlite::{OptionalExtension, Transaction};
use sha2::{Digest, Sha256};

use super::{
    Sqlite,
    convert::{Col, get},
    lanes::{self, Place, Rescued},
    nodes,
};
use crate::{Birth, Done, Epoch, KeyClaim, NewDelivery, NewEvent, Publish, Published};

impl Publish for Sqlite {
    fn publish(&self, event: NewEvent, done: Done<Published>) {
        self.writer.publish(event, done);
    }
}

/// A tenant's row, read once per batch and written back once.
#[derive(Clone, Copy)]
struct Counter {
    next_seq: i64,
    config_version: i64,
}

/// The publishes of one transaction.
pub(super) struct Publishing<'a> {
    transaction: &'a Transaction<'a>,
    tenants: HashMap<TenantId, Option<Counter>>,
    live: HashMap<Epoch, bool>,
}

impl<'a> Publishing<'a> {
    pub(super) fn new(transaction: &'a Transaction<'a>) -> Self {
        Self { transaction, tenants: HashMap::new(), live: HashMap::new() }
    }

    pub(super) fn apply(&mut self, new: &NewEvent) -> rusqlite::Result<Published> {
        let tenant = &new.event.tenant;
        let Some(counter) = self.counter(tenant)? else { return Ok(Published::NoTenant) };
        if let Some(claim) = &new.claim
            && let Some(taken) = key_taken(self.transaction, &new.event, claim)?
        {
            return Ok(taken);
        }
        if !self.is_live(new.epoch)? {
            return Ok(Published::Fenced);
        }
        if counter.config_version != new.config_version {
            return Ok(Published::ConfigChanged);
        }
        let next = Counter { next_seq: counter.next_seq + 1, ..counter };
        self.tenants.insert(tenant.clone(), Some(next));
        if let Some(claim) = &new.claim {
            take_key(self.transaction, &new.event, claim)?;
        }
        insert_event(self.transaction, &new.event, counter.next_seq)?;
        for delivery in &new.deliveries {
            insert_delivery(self.transaction, &new.event, delivery, counter.next_seq, new.epoch)?;
        }
        Ok(Published::New { sequence_number: counter.next_seq })
    }

    /// Writes the tenants' counters back.
    pub(super) fn finish(self) -> rusqlite::Result<()> {
        let mut update = self.transaction.prepare_cached("UPDATE tenants SET next_seq = ?2 WHERE id = ?1")?;
        for (tenant, counter) in self.tenants {
            if let Some(counter) = counter {
                update.execute((tenant.as_str(), counter.next_seq))?;
            }
        }
        Ok(())
    }

    fn counter(&mut self, tenant: &TenantId) -> rusqlite::Result<Option<Counter>> {
        if let Some(counter) = self.tenants.get(tenant) {
            return Ok(*counter);
        }
        let counter = self
            .transaction
            .prepare_cached("SELECT next_seq, config_version FROM tenants WHERE id = ?")?
            .query_row([tenant.as_str()], |row| {
                Ok(Counter { next_seq: row.get(0)?, config_version: row.get(1)? })
            })
            .optional()?;
        self.tenants.insert(tenant.clone(), counter);
        Ok(counter)
    }

    fn is_live(&mut self, epoch: Epoch) -> rusqlite::Result<bool> {
        if let Some(live) = self.live.get(&epoch) {
            return Ok(*live);
        }
        let live = nodes::is_live(self.transaction, epoch)?;
        self.live.insert(epoch, live);
        Ok(live)
    }
}

fn key_hash(event: &Event) -> [u8; 32] {
    Sha256::digest(event.idempotency_key.as_deref().unwrap_or_default()).into()
}

fn key_taken(
    transaction: &Transaction<'_>,
    event: &Event,
    claim: &KeyClaim,
) -> rusqlite::Result<Option<Published>> {
    let holder = transaction
        .prepare_cached(
            "SELECT event, body_hash FROM idempotency WHERE tenant = ?1 AND key_hash = ?2 AND expires_at > ?3",
        )?
        .query_row((event.tenant.as_str(), key_hash(event), Col(claim.confirmed_now)), |row| {
            Ok((get::<EventId>(row, 0)?, row.get::<_, [u8; 32]>(1)?))
        })
        .optional()?;
    Ok(holder.map(|(event, body_hash)| match body_hash == claim.body_hash {
        true => Published::Duplicate { event },
        false => Published::KeyReused { event },
    }))
}

fn take_key(transaction: &Transaction<'_>, event: &Event, claim: &KeyClaim) -> rusqlite::Result<()> {
    transaction.prepare_cached("INSERT OR REPLACE INTO idempotency VALUES (?, ?, ?, ?, ?)")?.execute((
        event.tenant.as_str(),
        key_hash(event),
        Col(event.id),
        claim.body_hash,
        Col(claim.expires_at),
    ))?;
    Ok(())
}

fn insert_event(transaction: &Transaction<'_>, event: &Event, seq: i64) -> rusqlite::Result<()> {
    transaction
        .prepare_cached("INSERT INTO events VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, NULL)")?
        .execute((
            Col(event.id),
            event.tenant.as_str(),
            seq,
            &*event.event_type,
            Col(event.timestamp),
            event.idempotency_key.as_deref(),
            event.source.as_deref(),
            event.subject.as_deref(),
            Col(event.priority),
            event.metadata.as_deref(),
            event.trace.as_ref().map(|trace| trace.to_bytes()),
            event.hops,
            &event.data[..],
        ))?;
    Ok(())
}

fn insert_delivery(
    transaction: &Transaction<'_>,
    event: &Event,
    new: &NewDelivery,
    seq: i64,
    epoch: Epoch,
) -> rusqlite::Result<()> {
    transaction
        .prepare_cached(
            "INSERT INTO deliveries (id, tenant, event, webhook, round, status, format, priority, created_at)
             VALUES (?, ?, ?, ?, 1, ?, ?, ?, ?)",
        )?
        .execute((
            Col(new.id),
            event.tenant.as_str(),
            Col(event.id),
            Col(new.webhook),
            Col(DeliveryStatus::Pending),
            Col(new.format),
            Col(event.priority),
            Col(event.timestamp),
        ))?;
    let place = Place { delivery: new.id, webhook: new.webhook, lane: new.lane.clone(), seq };
    match new.birth {
        Birth::Leased => lanes::lease(transaction, &place, epoch, Rescued::default()),
        Birth::Waiting(due) => lanes::wait(transaction, &place, due, event.timestamp, Rescued::default()),
    }
}
