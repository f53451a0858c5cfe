//! Email addresses that notifications are sent to, and the number of emails sent.

use redrive_core::{
    TenantId, Time,
    notification::{confirmation::ConfirmedBy, mail_limit::MailUsage},
};
use rusqlite::{Connection, OptionalExtension, Row, Transaction};

use super::{
    Sqlite,
    convert::{Col, get, get_opt},
    webhooks::{from_json, to_json},
};
use crate::{
    ConfirmationRequestResult, EmailAddress, EmailAddresses, EmailReservation, EmailScope, ReserveResult,
    StoreFuture,
};

const SELECT_ADDRESS: &str =
    "SELECT tenant_id, address, requested_at, requests, confirmed_at, confirmed_by, send_at
     FROM email_addresses WHERE tenant_id = ?1 AND address = ?2";
const UPSERT_REQUEST: &str =
    "INSERT INTO email_addresses (tenant_id, address, requested_at, requests, send_at) VALUES (?1, ?2, ?3, 1, ?3)
     ON CONFLICT DO UPDATE SET requested_at = ?3, requests = requests + 1, send_at = ?3";
const SELECT_NEXT: &str = "SELECT min(send_at) FROM email_addresses WHERE send_at IS NOT NULL";
const CLAIM_DUE: &str = "UPDATE email_addresses SET send_at = NULL WHERE (tenant_id, address) IN (
         SELECT tenant_id, address FROM email_addresses WHERE send_at <= ?1 ORDER BY send_at LIMIT ?2)
     RETURNING tenant_id, address, requested_at, requests, confirmed_at, confirmed_by, send_at";
const UPDATE_SEND_AT: &str = "UPDATE email_addresses SET send_at = ?3
     WHERE tenant_id = ?1 AND address = ?2 AND confirmed_at IS NULL AND send_at IS NULL";
const UPSERT_CONFIRMED: &str = "INSERT INTO email_addresses (tenant_id, address, confirmed_at, confirmed_by)
     SELECT id, ?2, ?3, ?4 FROM tenants WHERE id = ?1 AND deleted_at IS NULL
     ON CONFLICT DO UPDATE SET confirmed_at = ?3, confirmed_by = ?4, send_at = NULL WHERE confirmed_at IS NULL";
const SELECT_USAGE: &str = "SELECT usage FROM email_usage WHERE scope = ?1 AND key = ?2 AND purpose = ?3";
const UPSERT_USAGE: &str = "INSERT INTO email_usage (scope, key, purpose, usage, updated_at)
     VALUES (?1, ?2, ?3, ?4, ?5) ON CONFLICT DO UPDATE SET usage = ?4, updated_at = ?5";
const DELETE_UNCONFIRMED: &str = "DELETE FROM email_addresses WHERE (tenant_id, address) IN (
         SELECT tenant_id, address FROM email_addresses
         WHERE confirmed_at IS NULL AND requested_at < ?1 ORDER BY requested_at LIMIT ?2)";
const DELETE_USAGE: &str = "DELETE FROM email_usage WHERE (scope, key, purpose) IN (
         SELECT scope, key, purpose FROM email_usage WHERE updated_at < ?1 ORDER BY updated_at LIMIT ?2)";

/// Statements whose cost must be proportional to the rows they return or change; a test checks their query plans.
#[cfg(feature = "conformance")]
pub(super) const BOUNDED_STATEMENTS: [&str; 4] = [SELECT_NEXT, CLAIM_DUE, DELETE_UNCONFIRMED, DELETE_USAGE];

impl EmailAddresses for Sqlite {
    fn request_confirmation(
        &self,
        reservation: EmailReservation,
    ) -> StoreFuture<'_, ConfirmationRequestResult> {
        self.write(move |transaction| {
            let (tenant, address, now) =
                (reservation.tenant_id.as_str(), reservation.address.as_str(), Col(reservation.at));
            let exists = transaction
                .prepare_cached("SELECT 1 FROM tenants WHERE id = ? AND deleted_at IS NULL")?
                .exists([tenant])?;
            if !exists {
                return Ok(ConfirmationRequestResult::NotFound);
            }
            let known =
                transaction.prepare_cached(SELECT_ADDRESS)?.query_row((tenant, address), read).optional()?;
            match known {
                Some(known) if known.confirmed.is_some() => {
                    return Ok(ConfirmationRequestResult::AlreadyConfirmed);
                }
                Some(known) if known.send_at.is_some() => return Ok(ConfirmationRequestResult::Requested),
                _ => {}
            }
            if let ReserveResult::LimitReached(scope, until) = reserve(transaction, &reservation)? {
                return Ok(ConfirmationRequestResult::LimitReached(scope, until));
            }
            transaction.prepare_cached(UPSERT_REQUEST)?.execute((tenant, address, now))?;
            Ok(ConfirmationRequestResult::Requested)
        })
    }

    fn next_confirmation(&self) -> StoreFuture<'_, Option<Time>> {
        self.read(move |connection| {
            connection.prepare_cached(SELECT_NEXT)?.query_row((), |row| get_opt(row, 0))
        })
    }

    fn take_confirmations(&self, now: Time, limit: usize) -> StoreFuture<'_, Vec<EmailAddress>> {
        self.write(move |transaction| {
            transaction
                .prepare_cached(CLAIM_DUE)?
                .query_map((Col(now), limit as i64), read)?
                .collect::<rusqlite::Result<Vec<_>>>()
        })
    }

    fn retry_confirmation(&self, tenant_id: TenantId, address: String, send_at: Time) -> StoreFuture<'_, ()> {
        self.write(move |transaction| {
            transaction.prepare_cached(UPDATE_SEND_AT)?.execute((
                tenant_id.as_str(),
                address,
                Col(send_at),
            ))?;
            Ok(())
        })
    }

    fn confirm_address(
        &self,
        tenant_id: TenantId,
        address: String,
        by: ConfirmedBy,
        now: Time,
    ) -> StoreFuture<'_, bool> {
        self.write(move |transaction| {
            let values = (tenant_id.as_str(), address, Col(now), Col(by));
            Ok(transaction.prepare_cached(UPSERT_CONFIRMED)?.execute(values)? == 1)
        })
    }

    fn email_addresses(
        &self,
        tenant_id: TenantId,
        addresses: Vec<String>,
    ) -> StoreFuture<'_, Vec<EmailAddress>> {
        self.list_for(tenant_id.clone(), move |connection| find(connection, &tenant_id, addresses))
    }

    fn recipient_addresses(
        &self,
        tenant_id: TenantId,
        addresses: Vec<String>,
    ) -> StoreFuture<'_, Vec<EmailAddress>> {
        self.read(move |connection| find(connection, &tenant_id, addresses))
    }

    fn reserve_email(&self, reservation: EmailReservation) -> StoreFuture<'_, ReserveResult> {
        self.write(move |transaction| reserve(transaction, &reservation))
    }

    fn release_email(&self, reservation: EmailReservation) -> StoreFuture<'_, ()> {
        self.write(move |transaction| {
            for (scope, key, _) in reservation.limits() {
                let key = (Col(scope), key, Col(reservation.purpose));
                let Some(mut usage) = read_usage(transaction, &key)? else { continue };
                usage.release(reservation.at);
                write_usage(transaction, &key, &usage, reservation.at)?;
            }
            Ok(())
        })
    }

    fn prune_email_addresses(&self, unconfirmed: Time, usage: Time, limit: usize) -> StoreFuture<'_, usize> {
        self.write(move |transaction| {
            let addresses = transaction.execute(DELETE_UNCONFIRMED, (Col(unconfirmed), limit as i64))?;
            let usage = transaction.execute(DELETE_USAGE, (Col(usage), limit as i64))?;
            Ok(addresses.max(usage))
        })
    }
}

type UsageKey = (Col<EmailScope>, String, Col<redrive_core::notification::mail_limit::MailPurpose>);

fn find(
    connection: &Connection,
    tenant_id: &TenantId,
    addresses: Vec<String>,
) -> rusqlite::Result<Vec<EmailAddress>> {
    let mut find = connection.prepare_cached(SELECT_ADDRESS)?;
    let mut found = Vec::new();
    for address in addresses {
        found.extend(find.query_row((tenant_id.as_str(), address), read).optional()?);
    }
    found.sort_by(|one, other| one.address.cmp(&other.address));
    found.dedup();
    Ok(found)
}

fn read_usage(transaction: &Transaction<'_>, key: &UsageKey) -> rusqlite::Result<Option<MailUsage>> {
    transaction
        .prepare_cached(SELECT_USAGE)?
        .query_row((&key.0, &key.1, &key.2), |row| from_json(row, 0))
        .optional()
}

fn write_usage(
    transaction: &Transaction<'_>,
    key: &UsageKey,
    usage: &MailUsage,
    now: Time,
) -> rusqlite::Result<()> {
    transaction.prepare_cached(UPSERT_USAGE)?.execute((&key.0, &key.1, &key.2, to_json(usage)?, Col(now)))?;
    Ok(())
}

/// Counts an email against both limits, or against neither.
fn reserve(transaction: &Transaction<'_>, reservation: &EmailReservation) -> rusqlite::Result<ReserveResult> {
    let mut reserved = Vec::new();
    for (scope, key, limit) in reservation.limits() {
        let key = (Col(scope), key, Col(reservation.purpose));
        let mut usage = read_usage(transaction, &key)?.unwrap_or_default();
        if let Err(until) = usage.reserve(&limit, reservation.at) {
            return Ok(ReserveResult::LimitReached(scope, until));
        }
        reserved.push((key, usage));
    }
    for (key, usage) in reserved {
        write_usage(transaction, &key, &usage, reservation.at)?;
    }
    Ok(ReserveResult::Reserved)
}

fn read(row: &Row<'_>) -> rusqlite::Result<EmailAddress> {
    let confirmed_at: Option<Time> = get_opt(row, 4)?;
    Ok(EmailAddress {
        tenant_id: get(row, 0)?,
        address: row.get(1)?,
        requested_at: get_opt(row, 2)?,
        requests: row.get(3)?,
        confirmed: confirmed_at.zip(get_opt(row, 5)?),
        send_at: get_opt(row, 6)?,
    })
}
