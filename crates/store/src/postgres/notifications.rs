//! What owners are told: what stands, folded, and the notices that are made of it.
//!
//! What stands is locked after everything else, in the order of its keys.

use redrive_core::{
    NoticeId, TenantId, Time, WebhookId,
    notification::{
        Cause, Kind, Notice,
        grouping::{self, Folded, Folds, Key, Open, to_tell, with_counterparts},
    },
};
use tokio_postgres::{Row, types::ToSql};

use super::{
    Postgres,
    convert::{Col, get, get_opt, plain},
    session::{Failure, Session, Tx},
    webhooks::{from_json, to_json},
};
use crate::{Answer, Channel, Notices, PageRequest, StoredNotice, Telling, Told, codes::NO_WEBHOOK};

macro_rules! notice {
    () => {
        " id, tenant, webhook, kind, count, first_at, last_at, facts, event, mail, tries, next_at, error "
    };
}

/// As `core::notice::fold` says. Rows are taken in the order given, which is that of their keys.
const NOTE: &str = "INSERT INTO standing AS s (tenant, webhook, kind, due, count, first_at, last_at, facts)
     SELECT tenant, webhook, kind, first_at, count, first_at, last_at, facts
     FROM unnest($1::text[], $2::uuid[], $3::smallint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::text[])
         AS i(tenant, webhook, kind, count, first_at, last_at, facts)
     ON CONFLICT (tenant, webhook, kind) DO UPDATE SET
         due = CASE WHEN s.due IS NULL THEN greatest(excluded.first_at, s.quiet_until) ELSE s.due END,
         count = CASE WHEN s.due IS NULL THEN excluded.count
             WHEN s.kind = ANY($8::smallint[]) THEN s.count + excluded.count
             ELSE greatest(s.count, excluded.count) END,
         first_at = CASE WHEN s.due IS NULL THEN excluded.first_at ELSE least(s.first_at, excluded.first_at) END,
         facts = CASE WHEN s.due IS NULL OR excluded.last_at >= s.last_at THEN excluded.facts ELSE s.facts END,
         last_at = CASE WHEN s.due IS NULL THEN excluded.last_at ELSE greatest(s.last_at, excluded.last_at) END
     WHERE s.kind = ANY($8::smallint[]) OR excluded.last_at >= s.quiet_until";
/// The counterpart of a kind, where it has one, is 3 less it.
const DUE: &str = "SELECT tenant, webhook, kind FROM standing s WHERE due <= $1 AND NOT EXISTS (
         SELECT 1 FROM standing o WHERE o.tenant = s.tenant AND o.webhook = s.webhook AND o.kind = 3 - s.kind
             AND o.due > $1)
     ORDER BY due LIMIT $2";
const OPEN: &str =
    "SELECT s.* FROM unnest($1::text[], $2::uuid[], $3::smallint[]) AS i(tenant, webhook, kind)
     CROSS JOIN LATERAL (
         SELECT s.tenant, s.webhook, s.kind, s.due, s.count, s.first_at, s.last_at, s.facts FROM standing s
         WHERE s.tenant = i.tenant AND s.webhook = i.webhook AND s.kind = i.kind AND s.due IS NOT NULL LIMIT 1
         FOR UPDATE) s";
const QUIET: &str = "UPDATE standing s SET due = NULL, facts = '{}', quiet_until = i.quiet_until
     FROM unnest($1::text[], $2::uuid[], $3::smallint[], $4::bigint[]) AS i(tenant, webhook, kind, quiet_until)
     WHERE s.tenant = i.tenant AND s.webhook = i.webhook AND s.kind = i.kind";
const MAKE: &str = "INSERT INTO notices (id, tenant, webhook, kind, count, first_at, last_at, facts, next_at)
     VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)";
const NEXT: &str = "SELECT least((SELECT min(due) FROM standing WHERE due IS NOT NULL),
         (SELECT min(next_at) FROM notices WHERE next_at IS NOT NULL))";
const TAKE: &str = concat!(
    "UPDATE notices SET next_at = $2, tries = tries + 1 WHERE id = ANY(ARRAY(
         SELECT id FROM notices WHERE next_at <= $1 ORDER BY next_at, id LIMIT $3 FOR UPDATE SKIP LOCKED))
     RETURNING",
    notice!()
);
const TOLD_EVENT: &str = "UPDATE notices SET event = $2::smallint, error = coalesce($3, error),
         next_at = CASE WHEN $2::smallint <> 0 AND mail <> 0 THEN NULL ELSE coalesce($4, next_at) END
     WHERE id = $1 AND event = 0";
const TOLD_MAIL: &str = "UPDATE notices SET mail = $2::smallint, error = coalesce($3, error),
         next_at = CASE WHEN $2::smallint <> 0 AND event <> 0 THEN NULL ELSE coalesce($4, next_at) END
     WHERE id = $1 AND mail = 0";
const LIST: &str = concat!(
    "SELECT",
    notice!(),
    "FROM notices WHERE tenant = $1 AND id < $2 ORDER BY id DESC LIMIT $3 OFFSET $4"
);
const OLD: &str = "DELETE FROM notices WHERE id = ANY(ARRAY(
         SELECT id FROM notices WHERE id < $1 AND next_at IS NULL ORDER BY id LIMIT $2 FOR UPDATE SKIP LOCKED))";
const LONG_QUIET: &str = "DELETE FROM standing WHERE ctid = ANY(ARRAY(
         SELECT ctid FROM standing WHERE due IS NULL AND quiet_until < $1 ORDER BY quiet_until LIMIT $2
         FOR UPDATE SKIP LOCKED))";

/// The statements whose cost must follow what they answer or change: a test explains their plans.
#[cfg(feature = "conformance")]
pub(super) const PLANNED: [(&str, &str); 7] = [
    ("due to be told", DUE),
    ("what stands", OPEN),
    ("next notice", NEXT),
    ("take notices", TAKE),
    ("list notices", LIST),
    ("old notices", OLD),
    ("long quiet", LONG_QUIET),
];

/// Adds causes to what stands, in the transaction of what caused them, after everything else.
pub(super) async fn note(tx: &Session, causes: &[&Cause]) -> Result<(), Failure> {
    if causes.is_empty() {
        return Ok(());
    }
    let merged = grouping::merge(causes.iter().copied());
    let keys = Keys::of(merged.keys());
    let values = || merged.values();
    let counts: Vec<_> = values().map(|causes| causes.count as i64).collect();
    let first: Vec<_> = values().map(|causes| Col(causes.first_at)).collect();
    let last: Vec<_> = values().map(|causes| Col(causes.last_at)).collect();
    let facts = values().map(|causes| to_json(&causes.facts)).collect::<Result<Vec<_>, _>>()?;
    let counted: Vec<_> = Kind::ALL.into_iter().filter(|kind| kind.counts_repeats()).map(Col).collect();
    let Keys { tenants, webhooks, kinds } = &keys;
    tx.execute(NOTE, &[tenants, webhooks, kinds, &counts, &first, &last, &facts, &counted]).await?;
    Ok(())
}

/// Nobody is left to be told anything.
pub(super) async fn forget_tenant(tx: &Session, tenant: &TenantId) -> Result<(), Failure> {
    let forget = "DELETE FROM standing WHERE ctid = ANY(ARRAY(
             SELECT ctid FROM standing WHERE tenant = $1 ORDER BY webhook, kind FOR UPDATE))";
    tx.execute(forget, &[&tenant.as_str()]).await.map(drop)
}

/// Keys as columns.
struct Keys<'a> {
    tenants: Vec<&'a str>,
    webhooks: Vec<Col<WebhookId>>,
    kinds: Vec<Col<Kind>>,
}

impl<'a> Keys<'a> {
    fn of(keys: impl Iterator<Item = &'a Key>) -> Self {
        let mut columns = Self { tenants: Vec::new(), webhooks: Vec::new(), kinds: Vec::new() };
        for (tenant, webhook, kind) in keys {
            columns.tenants.push(tenant.as_str());
            columns.webhooks.push(Col(webhook.unwrap_or(NO_WEBHOOK)));
            columns.kinds.push(Col(*kind));
        }
        columns
    }
}

impl Notices for Postgres {
    fn note(&self, causes: Vec<Cause>) -> Answer<'_, ()> {
        Box::pin(async move {
            let causes: Vec<_> = causes.iter().collect();
            let causes = &causes;
            self.write(|tx| async move { note(&tx, causes).await }).await
        })
    }

    fn next_notice(&self) -> Answer<'_, Option<Time>> {
        Box::pin(async move {
            self.read(|session| async move { get_opt(&session.query_one(NEXT, &[]).await?, 0) }).await
        })
    }

    fn make_notices(&self, now: Time, folds: Folds, fresh: Vec<NoticeId>) -> Answer<'_, usize> {
        Box::pin(async move { self.write(|tx| make(tx, now, &folds, &fresh)).await })
    }

    fn take_notices(&self, now: Time, hold_until: Time, limit: usize) -> Answer<'_, Vec<StoredNotice>> {
        Box::pin(async move {
            let taken = self.write(|tx| async move {
                let rows = tx.query(TAKE, &[&Col(now), &Col(hold_until), &(limit as i64)]).await?;
                rows.iter().map(read_notice).collect::<Result<Vec<_>, _>>()
            });
            let mut taken = taken.await?;
            taken.sort_by_key(|taken| taken.notice.id);
            Ok(taken)
        })
    }

    fn notice_told(&self, id: NoticeId, channel: Channel, told: Told) -> Answer<'_, ()> {
        Box::pin(async move {
            let statement = match channel {
                Channel::Event => TOLD_EVENT,
                Channel::Mail => TOLD_MAIL,
            };
            let (telling, error, next_at) = match told {
                Told::Over(telling, error) => (telling, error, None),
                Told::Later(at, error) => (Telling::Waiting, Some(error), Some(Col(at))),
            };
            let values: [&(dyn ToSql + Sync); 4] = [&Col(id), &Col(telling), &error, &next_at];
            let values = &values;
            self.write(|tx| async move { tx.execute(statement, values).await.map(drop) }).await
        })
    }

    fn list_notices(&self, tenant: TenantId, page: PageRequest<NoticeId>) -> Answer<'_, Vec<StoredNotice>> {
        Box::pin(async move {
            let before = Col(page.after.unwrap_or(NoticeId::from_bytes([0xff; 16])));
            let (limit, offset, owner) = (i64::from(page.limit), i64::from(page.offset), tenant.as_str());
            let values: [&(dyn ToSql + Sync); 4] = [&owner, &before, &limit, &offset];
            let values = &values;
            self.list_for(&tenant, |session| async move {
                session.query(LIST, values).await?.iter().map(read_notice).collect()
            })
            .await
        })
    }

    fn forget_notices(&self, before: Time, limit: usize) -> Answer<'_, usize> {
        Box::pin(async move {
            let limit = limit as i64;
            let forgotten = self.write(|tx| async move {
                let old = tx.execute(OLD, &[&Col(NoticeId::first_at(before)), &limit]).await?;
                let quiet = tx.execute(LONG_QUIET, &[&Col(before), &limit]).await?;
                Ok(old.max(quiet))
            });
            Ok(forgotten.await? as usize)
        })
    }
}

async fn make(tx: Tx, now: Time, folds: &Folds, fresh: &[NoticeId]) -> Result<usize, Failure> {
    let most = fresh.len() as i64 / 2;
    let due = tx.query(DUE, &[&Col(now), &most]).await?;
    let due = due.iter().map(read_key).collect::<Result<Vec<_>, _>>()?;
    if due.is_empty() {
        return Ok(0);
    }
    let keys = with_counterparts(due);
    let Keys { tenants, webhooks, kinds } = Keys::of(keys.iter());
    let open = tx.query(OPEN, &[&tenants, &webhooks, &kinds]).await?;
    let read = |row: &Row| Ok(Open { key: read_key(row)?, due: get(row, 3)?, folded: read_folded(row, 4)? });
    let open = open.iter().map(read).collect::<Result<Vec<_>, Failure>>()?;
    let notices = to_tell(open, now, fresh.to_vec());
    let told: Vec<Key> =
        notices.iter().map(|notice| (notice.tenant.clone(), notice.webhook, notice.kind)).collect();
    let Keys { tenants, webhooks, kinds } = Keys::of(told.iter());
    let quiet: Vec<_> = told.iter().map(|(_, _, kind)| Col(now + folds.of(*kind))).collect();
    tx.execute(QUIET, &[&tenants, &webhooks, &kinds, &quiet]).await?;
    for notice in &notices {
        insert(&tx, notice, now).await?;
    }
    Ok(notices.len())
}

async fn insert(tx: &Session, notice: &Notice, now: Time) -> Result<(), Failure> {
    tx.execute(
        MAKE,
        &[
            &Col(notice.id),
            &notice.tenant.as_str(),
            &notice.webhook.map(Col),
            &Col(notice.kind),
            &(notice.count as i64),
            &Col(notice.first_at),
            &Col(notice.last_at),
            &to_json(&notice.facts)?,
            &Col(now),
        ],
    )
    .await
    .map(drop)
}

fn read_key(row: &Row) -> Result<Key, Failure> {
    let webhook: WebhookId = get(row, 1)?;
    Ok((get(row, 0)?, Some(webhook).filter(|webhook| *webhook != NO_WEBHOOK), get(row, 2)?))
}

fn read_folded(row: &Row, from: usize) -> Result<Folded, Failure> {
    Ok(Folded {
        count: plain::<i64>(row, from)?.unsigned_abs(),
        first_at: get(row, from + 1)?,
        last_at: get(row, from + 2)?,
        facts: from_json(row, from + 3)?,
    })
}

fn read_notice(row: &Row) -> Result<StoredNotice, Failure> {
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
        tries: plain::<i32>(row, 10)?.unsigned_abs(),
        next_at: get_opt(row, 11)?,
        error: plain(row, 12)?,
    })
}
