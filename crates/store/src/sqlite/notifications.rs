//! What owners are told: what stands, folded, and the notices that are made of it.

use redrive_core::{
    NoticeId, TenantId, Time, WebhookId,
    notification::{
        Cause, Facts, Notice,
        grouping::{self, Folded, Folds, Key, Open, to_tell, with_counterparts},
    },
};
use rusqlite::{Connection, OptionalExtension, Row, Transaction};

use super::{
    Sqlite,
    convert::{Col, get, get_opt},
    webhooks::{from_json, to_json},
};
use crate::{Answer, Channel, Notices, PageRequest, StoredNotice, Telling, Told, codes::NO_WEBHOOK};

/// As `core::notice::fold` says.
const NOTE: &str = "INSERT INTO standing (tenant, webhook, kind, due, count, first_at, last_at, facts)
     VALUES (?1, ?2, ?3, ?4, ?5, ?4, ?6, ?7)
     ON CONFLICT DO UPDATE SET
         due = CASE WHEN due IS NULL THEN max(?4, quiet_until) ELSE due END,
         count = CASE WHEN due IS NULL THEN ?5 WHEN ?8 THEN count + ?5 ELSE max(count, ?5) END,
         first_at = CASE WHEN due IS NULL THEN ?4 ELSE min(first_at, ?4) END,
         facts = CASE WHEN due IS NULL OR ?6 >= last_at THEN ?7 ELSE facts END,
         last_at = CASE WHEN due IS NULL THEN ?6 ELSE max(last_at, ?6) END
     WHERE ?8 OR ?6 >= quiet_until";
/// The counterpart of a kind, where it has one, is 3 less it.
const DUE: &str = "SELECT tenant, webhook, kind FROM standing s WHERE due <= ?1 AND NOT EXISTS (
         SELECT 1 FROM standing o WHERE o.tenant = s.tenant AND o.webhook = s.webhook AND o.kind = 3 - s.kind
             AND o.due > ?1)
     ORDER BY due LIMIT ?2";
const OPEN: &str = "SELECT due, count, first_at, last_at, facts FROM standing
     WHERE tenant = ? AND webhook = ? AND kind = ? AND due IS NOT NULL";
const QUIET: &str = "UPDATE standing SET due = NULL, facts = '{}', quiet_until = ?4
     WHERE tenant = ?1 AND webhook = ?2 AND kind = ?3";
const MAKE: &str = "INSERT INTO notices (id, tenant, webhook, kind, count, first_at, last_at, facts, next_at)
     VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)";
const NOTICE: &str =
    "SELECT id, tenant, webhook, kind, count, first_at, last_at, facts, event, mail, tries, next_at,
         error FROM notices";
const NEXT: &str = "SELECT min((SELECT min(due) FROM standing WHERE due IS NOT NULL),
         (SELECT min(next_at) FROM notices WHERE next_at IS NOT NULL)),
     coalesce((SELECT min(due) FROM standing WHERE due IS NOT NULL),
         (SELECT min(next_at) FROM notices WHERE next_at IS NOT NULL))";
const TAKE: &str = "UPDATE notices SET next_at = ?2, tries = tries + 1 WHERE id IN (
         SELECT id FROM notices WHERE next_at <= ?1 ORDER BY next_at, id LIMIT ?3)
     RETURNING id, tenant, webhook, kind, count, first_at, last_at, facts, event, mail, tries, next_at, error";
const OLD: &str = "DELETE FROM notices WHERE id IN (
         SELECT id FROM notices WHERE id < ? AND next_at IS NULL ORDER BY id LIMIT ?)";
const LONG_QUIET: &str = "DELETE FROM standing WHERE (tenant, webhook, kind) IN (
         SELECT tenant, webhook, kind FROM standing WHERE due IS NULL AND quiet_until < ? LIMIT ?)";

/// The statements whose cost must follow what they answer or change: a test explains their plans.
#[cfg(feature = "conformance")]
pub(super) const BOUNDED: [&str; 5] = [DUE, NEXT, TAKE, OLD, LONG_QUIET];

/// Adds causes to what stands, in the transaction of what caused them.
pub(super) fn note<'a>(
    transaction: &Transaction<'_>,
    causes: impl IntoIterator<Item = &'a Cause>,
) -> rusqlite::Result<()> {
    for ((tenant, webhook, kind), causes) in grouping::merge(causes) {
        transaction.prepare_cached(NOTE)?.execute((
            tenant.as_str(),
            Col(webhook.unwrap_or(NO_WEBHOOK)),
            Col(kind),
            Col(causes.first_at),
            causes.count as i64,
            Col(causes.last_at),
            to_json(&causes.facts)?,
            kind.counts_repeats(),
        ))?;
    }
    Ok(())
}

impl Notices for Sqlite {
    fn note(&self, causes: Vec<Cause>) -> Answer<'_, ()> {
        self.write(move |transaction| note(transaction, &causes))
    }

    fn next_notice(&self) -> Answer<'_, Option<Time>> {
        self.read(move |connection| {
            connection.prepare_cached(NEXT)?.query_row((), |row| {
                let (both, either): (Option<Time>, Option<Time>) = (get_opt(row, 0)?, get_opt(row, 1)?);
                Ok(both.or(either))
            })
        })
    }

    fn make_notices(&self, now: Time, folds: Folds, fresh: Vec<NoticeId>) -> Answer<'_, usize> {
        self.write(move |transaction| {
            let due = transaction
                .prepare_cached(DUE)?
                .query_map((Col(now), fresh.len() as i64 / 2), read_key)?
                .collect::<rusqlite::Result<Vec<Key>>>()?;
            let mut open = Vec::new();
            for key in with_counterparts(due) {
                open.extend(read_open(transaction, key)?);
            }
            let notices = to_tell(open, now, fresh);
            for notice in &notices {
                make(transaction, notice, now, &folds)?;
            }
            Ok(notices.len())
        })
    }

    fn take_notices(&self, now: Time, hold_until: Time, limit: usize) -> Answer<'_, Vec<StoredNotice>> {
        self.write(move |transaction| {
            let mut taken = transaction
                .prepare_cached(TAKE)?
                .query_map((Col(now), Col(hold_until), limit as i64), read_notice)?
                .collect::<rusqlite::Result<Vec<_>>>()?;
            taken.sort_by_key(|taken| taken.notice.id);
            Ok(taken)
        })
    }

    fn notice_told(&self, id: NoticeId, channel: Channel, told: Told) -> Answer<'_, ()> {
        self.write(move |transaction| {
            let (this, other) = match channel {
                Channel::Event => ("event", "mail"),
                Channel::Mail => ("mail", "event"),
            };
            let (telling, error, next_at) = match told {
                Told::Over(telling, error) => (telling, error, None),
                Told::Later(at, error) => (Telling::Waiting, Some(error), Some(Col(at))),
            };
            transaction
                .prepare_cached(&format!(
                    "UPDATE notices SET {this} = ?2, error = coalesce(?3, error),
                         next_at = CASE WHEN ?2 <> 0 AND {other} <> 0 THEN NULL ELSE coalesce(?4, next_at) END
                     WHERE id = ?1 AND {this} = 0"
                ))?
                .execute((Col(id), Col(telling), error, next_at))?;
            Ok(())
        })
    }

    fn list_notices(&self, tenant: TenantId, page: PageRequest<NoticeId>) -> Answer<'_, Vec<StoredNotice>> {
        self.list_for(tenant.clone(), move |connection| list(connection, &tenant, page))
    }

    fn forget_notices(&self, before: Time, limit: usize) -> Answer<'_, usize> {
        self.write(move |transaction| {
            let old = transaction.execute(OLD, (Col(NoticeId::first_at(before)), limit as i64))?;
            let quiet = transaction.execute(LONG_QUIET, (Col(before), limit as i64))?;
            Ok(old.max(quiet))
        })
    }
}

fn list(
    connection: &Connection,
    tenant: &TenantId,
    page: PageRequest<NoticeId>,
) -> rusqlite::Result<Vec<StoredNotice>> {
    let before = page.after.unwrap_or(NoticeId::from_bytes([0xff; 16]));
    connection
        .prepare_cached(&format!("{NOTICE} WHERE tenant = ? AND id < ? ORDER BY id DESC LIMIT ? OFFSET ?"))?
        .query_map((tenant.as_str(), Col(before), page.limit, page.offset), read_notice)?
        .collect()
}

fn read_key(row: &Row<'_>) -> rusqlite::Result<Key> {
    let webhook: WebhookId = get(row, 1)?;
    Ok((get(row, 0)?, Some(webhook).filter(|webhook| *webhook != NO_WEBHOOK), get(row, 2)?))
}

fn read_folded(row: &Row<'_>, from: usize) -> rusqlite::Result<Folded> {
    Ok(Folded {
        count: row.get::<_, i64>(from)?.unsigned_abs(),
        first_at: get(row, from + 1)?,
        last_at: get(row, from + 2)?,
        facts: from_json::<Facts>(row, from + 3)?,
    })
}

fn read_open(transaction: &Transaction<'_>, key: Key) -> rusqlite::Result<Option<Open>> {
    let (tenant, webhook, kind) = &key;
    let open = transaction
        .prepare_cached(OPEN)?
        .query_row((tenant.as_str(), Col(webhook.unwrap_or(NO_WEBHOOK)), Col(*kind)), |row| {
            Ok((get(row, 0)?, read_folded(row, 1)?))
        })
        .optional()?;
    Ok(open.map(|(due, folded)| Open { key, folded, due }))
}

fn make(transaction: &Transaction<'_>, notice: &Notice, now: Time, folds: &Folds) -> rusqlite::Result<()> {
    let (tenant, kind) = (notice.tenant.as_str(), Col(notice.kind));
    let webhook = Col(notice.webhook.unwrap_or(NO_WEBHOOK));
    let quiet_until = Col(now + folds.of(notice.kind));
    transaction.prepare_cached(QUIET)?.execute((tenant, webhook, kind, quiet_until))?;
    transaction.prepare_cached(MAKE)?.execute((
        Col(notice.id),
        tenant,
        notice.webhook.map(Col),
        kind,
        notice.count as i64,
        Col(notice.first_at),
        Col(notice.last_at),
        to_json(&notice.facts)?,
        Col(now),
    ))?;
    Ok(())
}

fn read_notice(row: &Row<'_>) -> rusqlite::Result<StoredNotice> {
    let Folded { count, first_at, last_at, facts } = read_folded(row, 4)?;
    let notice = Notice {
        id: get(row, 0)?,
        tenant: get(row, 1)?,
        webhook: get_opt(row, 2)?,
        kind: get(row, 3)?,
        count,
        first_at,
        last_at,
        facts,
    };
    Ok(StoredNotice {
        notice,
        event: get(row, 8)?,
        mail: get(row, 9)?,
        tries: row.get(10)?,
        next_at: get_opt(row, 11)?,
        error: row.get(12)?,
    })
}
