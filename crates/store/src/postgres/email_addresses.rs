//! Email addresses that notifications are sent to, and the number of emails sent.
//!
//! Locks are taken in one order: the tenant, the usage of the tenant, the usage of the mailbox, the address.

use redrive_core::{
    TenantId, Time,
    notification::{confirmation::ConfirmedBy, mail_limit::MailUsage},
};
use tokio_postgres::Row;

use super::{
    Postgres,
    convert::{Col, get, get_opt, plain},
    session::{Failure, Session, Tx},
    tenancy,
    webhooks::{from_json, to_json},
};
use crate::{
    ConfirmationRequestResult, EmailAddress, EmailAddresses, EmailReservation, ReserveResult, StoreFuture,
};

const SELECT_ADDRESSES: &str =
    "SELECT tenant_id, address, requested_at, requests, confirmed_at, confirmed_by, send_at
     FROM email_addresses WHERE tenant_id = $1 AND address = ANY($2) ORDER BY address";
const UPSERT_REQUEST: &str =
    "INSERT INTO email_addresses (tenant_id, address, requested_at, requests, send_at) VALUES ($1, $2, $3, 1, $3)
     ON CONFLICT (tenant_id, address) DO UPDATE
     SET requested_at = $3, requests = email_addresses.requests + 1, send_at = $3";
const SELECT_NEXT: &str =
    "SELECT send_at FROM email_addresses WHERE send_at IS NOT NULL ORDER BY send_at LIMIT 1";
const CLAIM_DUE: &str = "UPDATE email_addresses SET send_at = NULL WHERE ctid = ANY(ARRAY(
         SELECT ctid FROM email_addresses WHERE send_at <= $1 ORDER BY send_at LIMIT $2 FOR UPDATE SKIP LOCKED))
     RETURNING tenant_id, address, requested_at, requests, confirmed_at, confirmed_by, send_at";
const UPDATE_SEND_AT: &str = "UPDATE email_addresses SET send_at = $3
     WHERE tenant_id = $1 AND address = $2 AND confirmed_at IS NULL AND send_at IS NULL";
const UPSERT_CONFIRMED: &str = "INSERT INTO email_addresses (tenant_id, address, confirmed_at, confirmed_by)
     SELECT id, $2, $3, $4 FROM tenants WHERE id = $1 AND deleted_at IS NULL
     ON CONFLICT (tenant_id, address) DO UPDATE SET confirmed_at = $3, confirmed_by = $4, send_at = NULL
     WHERE email_addresses.confirmed_at IS NULL";
/// Locks the row, and creates it if it is missing.
const LOCK_USAGE: &str = "INSERT INTO email_usage (scope, key, purpose, usage, updated_at)
     VALUES ($1, $2, $3, '{}', $4)
     ON CONFLICT (scope, key, purpose) DO UPDATE SET updated_at = email_usage.updated_at RETURNING usage";
const UPDATE_USAGE: &str =
    "UPDATE email_usage SET usage = $4, updated_at = $5 WHERE scope = $1 AND key = $2 AND purpose = $3";
const DELETE_UNCONFIRMED: &str = "DELETE FROM email_addresses WHERE ctid = ANY(ARRAY(
         SELECT ctid FROM email_addresses WHERE confirmed_at IS NULL AND requested_at < $1
         ORDER BY requested_at LIMIT $2 FOR UPDATE SKIP LOCKED))";
const DELETE_USAGE: &str = "DELETE FROM email_usage WHERE ctid = ANY(ARRAY(
         SELECT ctid FROM email_usage WHERE updated_at < $1 ORDER BY updated_at LIMIT $2
         FOR UPDATE SKIP LOCKED))";

/// Statements whose cost must be proportional to the rows they return or change; a test checks their query plans.
#[cfg(feature = "conformance")]
pub(super) const PLANNED_STATEMENTS: [(&str, &str); 5] = [
    ("known email addresses", SELECT_ADDRESSES),
    ("next confirmation", SELECT_NEXT),
    ("claim confirmations", CLAIM_DUE),
    ("unconfirmed addresses", DELETE_UNCONFIRMED),
    ("old usage of email limits", DELETE_USAGE),
];

impl EmailAddresses for Postgres {
    fn request_confirmation(
        &self,
        reservation: EmailReservation,
    ) -> StoreFuture<'_, ConfirmationRequestResult> {
        Box::pin(async move { self.administer(|tx| request(tx, &reservation)).await })
    }

    fn next_confirmation(&self) -> StoreFuture<'_, Option<Time>> {
        Box::pin(async move {
            let next = self.read(|session| async move {
                let row = session.query_opt(SELECT_NEXT, &[]).await?;
                row.map(|row| get(&row, 0)).transpose()
            });
            next.await
        })
    }

    fn take_confirmations(&self, now: Time, limit: usize) -> StoreFuture<'_, Vec<EmailAddress>> {
        Box::pin(async move {
            self.write(|tx| async move {
                let rows = tx.query(CLAIM_DUE, &[&Col(now), &(limit as i64)]).await?;
                rows.iter().map(read).collect()
            })
            .await
        })
    }

    fn retry_confirmation(&self, tenant_id: TenantId, address: String, send_at: Time) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            let (tenant_id, address) = (&tenant_id, &address);
            self.write(|tx| async move {
                tx.execute(UPDATE_SEND_AT, &[&tenant_id.as_str(), address, &Col(send_at)]).await.map(drop)
            })
            .await
        })
    }

    fn confirm_address(
        &self,
        tenant_id: TenantId,
        address: String,
        by: ConfirmedBy,
        now: Time,
    ) -> StoreFuture<'_, bool> {
        Box::pin(async move {
            let (tenant_id, address) = (&tenant_id, &address);
            self.administer(|tx| async move {
                // The lock prevents a concurrent deletion of the tenant, which would leave the address behind.
                tenancy::lock(&tx, tenant_id).await?;
                let values = &(tenant_id.as_str(), address.as_str(), Col(now), Col(by));
                let confirmed =
                    tx.execute(UPSERT_CONFIRMED, &[&values.0, &values.1, &values.2, &values.3]).await?;
                Ok(confirmed == 1)
            })
            .await
        })
    }

    fn email_addresses(
        &self,
        tenant_id: TenantId,
        addresses: Vec<String>,
    ) -> StoreFuture<'_, Vec<EmailAddress>> {
        Box::pin(
            async move { self.list_for(&tenant_id, |session| find(session, &tenant_id, &addresses)).await },
        )
    }

    fn recipient_addresses(
        &self,
        tenant_id: TenantId,
        addresses: Vec<String>,
    ) -> StoreFuture<'_, Vec<EmailAddress>> {
        Box::pin(async move { self.read(|session| find(session, &tenant_id, &addresses)).await })
    }

    fn reserve_email(&self, reservation: EmailReservation) -> StoreFuture<'_, ReserveResult> {
        Box::pin(async move {
            let reservation = &reservation;
            self.write(|tx| async move { reserve(&tx, reservation).await }).await
        })
    }

    fn release_email(&self, reservation: EmailReservation) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            let reservation = &reservation;
            self.write(|tx| async move { release(&tx, reservation).await }).await
        })
    }

    fn prune_email_addresses(&self, unconfirmed: Time, usage: Time, limit: usize) -> StoreFuture<'_, usize> {
        Box::pin(async move {
            let limit = limit as i64;
            let pruned = self.write(|tx| async move {
                let addresses = tx.execute(DELETE_UNCONFIRMED, &[&Col(unconfirmed), &limit]).await?;
                let usage = tx.execute(DELETE_USAGE, &[&Col(usage), &limit]).await?;
                Ok(addresses.max(usage))
            });
            Ok(pruned.await? as usize)
        })
    }
}

async fn find(session: Tx, tenant_id: &TenantId, addresses: &[String]) -> Result<Vec<EmailAddress>, Failure> {
    let rows = session.query(SELECT_ADDRESSES, &[&tenant_id.as_str(), &addresses]).await?;
    rows.iter().map(read).collect()
}

async fn request(tx: Tx, reservation: &EmailReservation) -> Result<ConfirmationRequestResult, Failure> {
    let EmailReservation { tenant_id, address, at, .. } = reservation;
    // The lock serializes requests of one tenant, and prevents a concurrent deletion of the tenant.
    tenancy::lock(&tx, tenant_id).await?;
    let exists = "SELECT 1 FROM tenants WHERE id = $1 AND deleted_at IS NULL";
    if !tx.exists(exists, &[&tenant_id.as_str()]).await? {
        return Ok(ConfirmationRequestResult::NotFound);
    }
    let known = tx.query(SELECT_ADDRESSES, &[&tenant_id.as_str(), &vec![address.as_str()]]).await?;
    match known.first().map(read).transpose()? {
        Some(known) if known.confirmed.is_some() => return Ok(ConfirmationRequestResult::AlreadyConfirmed),
        Some(known) if known.send_at.is_some() => return Ok(ConfirmationRequestResult::Requested),
        _ => {}
    }
    if let ReserveResult::LimitReached(scope, until) = reserve(&tx, reservation).await? {
        return Ok(ConfirmationRequestResult::LimitReached(scope, until));
    }
    tx.execute(UPSERT_REQUEST, &[&tenant_id.as_str(), &address.as_str(), &Col(*at)]).await?;
    Ok(ConfirmationRequestResult::Requested)
}

/// Counts an email against both limits, or against neither.
async fn reserve(tx: &Session, reservation: &EmailReservation) -> Result<ReserveResult, Failure> {
    let (purpose, now) = (Col(reservation.purpose), Col(reservation.at));
    let mut reserved = Vec::new();
    for (scope, key, limit) in reservation.limits() {
        let row = tx.query_one(LOCK_USAGE, &[&Col(scope), &key, &purpose, &now]).await?;
        let mut usage: MailUsage = from_json(&row, 0)?;
        if let Err(until) = usage.reserve(&limit, reservation.at) {
            return Ok(ReserveResult::LimitReached(scope, until));
        }
        reserved.push((scope, key, to_json(&usage)?));
    }
    for (scope, key, usage) in &reserved {
        tx.execute(UPDATE_USAGE, &[&Col(*scope), key, &purpose, usage, &now]).await?;
    }
    Ok(ReserveResult::Reserved)
}

async fn release(tx: &Session, reservation: &EmailReservation) -> Result<(), Failure> {
    let (purpose, now) = (Col(reservation.purpose), Col(reservation.at));
    for (scope, key, _) in reservation.limits() {
        let row = tx.query_one(LOCK_USAGE, &[&Col(scope), &key, &purpose, &now]).await?;
        let mut usage: MailUsage = from_json(&row, 0)?;
        usage.release(reservation.at);
        tx.execute(UPDATE_USAGE, &[&Col(scope), &key, &purpose, &to_json(&usage)?, &now]).await?;
    }
    Ok(())
}

/// Deletes the addresses of a tenant. The caller must have locked the tenant.
pub(super) async fn delete_tenant(tx: &Session, tenant_id: &TenantId) -> Result<(), Failure> {
    let delete = "DELETE FROM email_addresses WHERE ctid = ANY(ARRAY(
             SELECT ctid FROM email_addresses WHERE tenant_id = $1 ORDER BY address FOR UPDATE))";
    tx.execute(delete, &[&tenant_id.as_str()]).await.map(drop)
}

fn read(row: &Row) -> Result<EmailAddress, Failure> {
    let confirmed_at: Option<Time> = get_opt(row, 4)?;
    Ok(EmailAddress {
        tenant_id: get(row, 0)?,
        address: plain(row, 1)?,
        requested_at: get_opt(row, 2)?,
        requests: plain::<i32>(row, 3)?.unsigned_abs(),
        confirmed: confirmed_at.zip(get_opt(row, 5)?),
        send_at: get_opt(row, 6)?,
    })
}
