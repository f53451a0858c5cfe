//! Stores events with their fan-out.

use std::collections::HashMap;

use redrive_core::{DeliveryStatus, EventId, TenantId, event::Event};
use rusqlite::{OptionalExtension, Transaction};
use sha2::{Digest, Sha256};

use super::{
    Sqlite,
    convert::{Col, get},
    lanes::{self, LanePosition, ReleaseCounts},
    nodes,
};
use crate::{
    Completion, Epoch, IdempotencyReservation, InitialState, NewDelivery, NewEvent, Publish, PublishResult,
};

impl Publish for Sqlite {
    fn publish(&self, event: NewEvent, done: Completion<PublishResult>) {
        self.writer.publish(event, done);
    }
}

/// Counters of a tenant's row, read once per batch and written back once.
#[derive(Clone, Copy)]
struct TenantCounter {
    next_seq: i64,
    config_version: i64,
}

/// Publishes of one transaction.
pub(super) struct PublishBatch<'a> {
    transaction: &'a Transaction<'a>,
    tenants: HashMap<TenantId, Option<TenantCounter>>,
    live: HashMap<Epoch, bool>,
}

impl<'a> PublishBatch<'a> {
    pub(super) fn new(transaction: &'a Transaction<'a>) -> Self {
        Self { transaction, tenants: HashMap::new(), live: HashMap::new() }
    }

    pub(super) fn apply(&mut self, new: &NewEvent) -> rusqlite::Result<PublishResult> {
        let tenant_id = &new.event.tenant_id;
        let Some(counter) = self.counter(tenant_id)? else { return Ok(PublishResult::NoTenant) };
        if let Some(reservation) = &new.idempotency
            && let Some(taken) = find_key_holder(self.transaction, &new.event, reservation)?
        {
            return Ok(taken);
        }
        if !self.is_live(new.epoch)? {
            return Ok(PublishResult::Fenced);
        }
        if counter.config_version != new.config_version {
            return Ok(PublishResult::ConfigChanged);
        }
        let next = TenantCounter { next_seq: counter.next_seq + 1, ..counter };
        self.tenants.insert(tenant_id.clone(), Some(next));
        if let Some(reservation) = &new.idempotency {
            insert_idempotency_key(self.transaction, &new.event, reservation)?;
        }
        insert_event(self.transaction, new, counter.next_seq)?;
        for delivery in &new.deliveries {
            insert_delivery(self.transaction, &new.event, delivery, counter.next_seq, new.epoch)?;
        }
        Ok(PublishResult::New { sequence_number: counter.next_seq })
    }

    /// Writes the tenants' counters back.
    pub(super) fn finish(self) -> rusqlite::Result<()> {
        let mut update = self.transaction.prepare_cached("UPDATE tenants SET next_seq = ?2 WHERE id = ?1")?;
        for (tenant_id, counter) in self.tenants {
            if let Some(counter) = counter {
                update.execute((tenant_id.as_str(), counter.next_seq))?;
            }
        }
        Ok(())
    }

    fn counter(&mut self, tenant_id: &TenantId) -> rusqlite::Result<Option<TenantCounter>> {
        if let Some(counter) = self.tenants.get(tenant_id) {
            return Ok(*counter);
        }
        let counter = self
            .transaction
            .prepare_cached("SELECT next_seq, config_version FROM tenants WHERE id = ?")?
            .query_row([tenant_id.as_str()], |row| {
                Ok(TenantCounter { next_seq: row.get(0)?, config_version: row.get(1)? })
            })
            .optional()?;
        self.tenants.insert(tenant_id.clone(), counter);
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

fn find_key_holder(
    transaction: &Transaction<'_>,
    event: &Event,
    reservation: &IdempotencyReservation,
) -> rusqlite::Result<Option<PublishResult>> {
    let holder = transaction
        .prepare_cached(
            "SELECT event_id, body_hash FROM idempotency_keys WHERE tenant_id = ?1 AND key_hash = ?2
             AND expires_at > ?3",
        )?
        .query_row((event.tenant_id.as_str(), key_hash(event), Col(reservation.confirmed_now)), |row| {
            Ok((get::<EventId>(row, 0)?, row.get::<_, [u8; 32]>(1)?))
        })
        .optional()?;
    Ok(holder.map(|(event_id, body_hash)| match body_hash == reservation.body_hash {
        true => PublishResult::Duplicate { event_id },
        false => PublishResult::KeyReused { event_id },
    }))
}

fn insert_idempotency_key(
    transaction: &Transaction<'_>,
    event: &Event,
    reservation: &IdempotencyReservation,
) -> rusqlite::Result<()> {
    transaction.prepare_cached("INSERT OR REPLACE INTO idempotency_keys VALUES (?, ?, ?, ?, ?)")?.execute(
        (
            event.tenant_id.as_str(),
            key_hash(event),
            Col(event.id),
            reservation.body_hash,
            Col(reservation.expires_at),
        ),
    )?;
    Ok(())
}

fn insert_event(transaction: &Transaction<'_>, new: &NewEvent, seq: i64) -> rusqlite::Result<()> {
    let event = &new.event;
    transaction
        .prepare_cached(
            "INSERT INTO events (id, tenant_id, seq, event_type, timestamp, idempotency_key, source, subject, priority,
                 metadata, trace, hops, data, edited_from)
             VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        )?
        .execute((
            Col(event.id),
            event.tenant_id.as_str(),
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
            new.edited_from.map(Col),
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
            "INSERT INTO deliveries (id, tenant_id, event_id, webhook_id, round, status, format, priority, created_at)
             VALUES (?, ?, ?, ?, 1, ?, ?, ?, ?)",
        )?
        .execute((
            Col(new.id),
            event.tenant_id.as_str(),
            Col(event.id),
            Col(new.webhook_id),
            Col(DeliveryStatus::Pending),
            Col(new.format),
            Col(event.priority),
            Col(event.timestamp),
        ))?;
    let position =
        LanePosition { delivery_id: new.id, webhook_id: new.webhook_id, lane: new.lane.clone(), seq };
    match new.initial_state {
        InitialState::Leased => lanes::lease(transaction, &position, epoch, ReleaseCounts::default()),
        InitialState::Waiting(due) => {
            lanes::insert_waiting(transaction, &position, due, event.timestamp, ReleaseCounts::default())
        }
    }
}
