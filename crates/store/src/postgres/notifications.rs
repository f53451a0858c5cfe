//! Notifications to owners: grouped occurrences, and the notifications created from them.
//!
//! Groups are locked after everything else, in the order of their keys.

use redrive_core::{
    NotificationId, TenantId, Time, WebhookId,
    notification::{
        Notification, NotificationKind, Occurrence,
        grouping::{
            self, DueGroups, GroupIntervals, GroupKey, GroupState, Groups, OccurrenceGroup, with_opposites,
        },
    },
};
use tokio_postgres::{Row, types::ToSql};

use super::{
    Postgres,
    convert::{Col, get, get_opt, plain},
    session::{Failure, Session, Tx},
    webhooks::{from_json, to_json},
};
use crate::{
    Channel, ChannelResult, ChannelStatus, Notifications, PageRequest, StoreFuture, StoredNotification,
    codes::NO_WEBHOOK,
};

macro_rules! group_columns {
    () => {
        " tenant_id, webhook_id, kind, due, count, first_at, last_at, details, suppressed_until "
    };
}
macro_rules! notification_columns {
    () => {
        " id, tenant_id, webhook_id, kind, count, first_at, last_at, details, webhook_status, email_status, attempts,
         next_attempt_at, error "
    };
}

/// Locks groups one after the other in the given order, which is that of their keys, and creates those that are
/// missing. The update changes no value. It locks a row that another transaction inserted concurrently, which a
/// `SELECT … FOR UPDATE` would not find.
const LOCK_GROUPS: &str = concat!(
    "INSERT INTO notification_groups AS s (tenant_id, webhook_id, kind, count, first_at, last_at, details)
     SELECT tenant_id, webhook_id, kind, 0, 0, 0, '{}'
     FROM unnest($1::text[], $2::uuid[], $3::smallint[]) AS i(tenant_id, webhook_id, kind)
     ON CONFLICT (tenant_id, webhook_id, kind) DO UPDATE SET count = s.count
     RETURNING",
    group_columns!()
);
/// Every row exists and is locked. An upsert finds each row by its key, whatever the planner assumes about the
/// table.
const UPSERT_GROUPS: &str = concat!(
    "INSERT INTO notification_groups (",
    group_columns!(),
    ")
     SELECT * FROM unnest($1::text[], $2::uuid[], $3::smallint[], $4::bigint[], $5::bigint[], $6::bigint[],
                          $7::bigint[], $8::text[], $9::bigint[])
     ON CONFLICT (tenant_id, webhook_id, kind) DO UPDATE SET due = excluded.due, count = excluded.count,
         first_at = excluded.first_at, last_at = excluded.last_at, details = excluded.details,
         suppressed_until = excluded.suppressed_until"
);
const SELECT_DUE_GROUPS: &str =
    "SELECT tenant_id, webhook_id, kind FROM notification_groups WHERE due <= $1 ORDER BY due LIMIT $2";
/// Locks the pending ones of these groups in the given order, which is that of their keys.
const LOCK_PENDING_GROUPS: &str = concat!(
    "SELECT s.* FROM unnest($1::text[], $2::uuid[], $3::smallint[]) AS i(tenant_id, webhook_id, kind)
     CROSS JOIN LATERAL (
         SELECT",
    group_columns!(),
    "FROM notification_groups s
         WHERE s.tenant_id = i.tenant_id AND s.webhook_id = i.webhook_id AND s.kind = i.kind AND s.due IS NOT NULL
         LIMIT 1
         FOR UPDATE) s"
);
const INSERT_NOTIFICATION: &str =
    "INSERT INTO notifications (id, tenant_id, webhook_id, kind, count, first_at, last_at, details,
         next_attempt_at)
     VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)";
const SELECT_NEXT_DUE: &str = "SELECT least((SELECT min(due) FROM notification_groups WHERE due IS NOT NULL),
         (SELECT min(next_attempt_at) FROM notifications WHERE next_attempt_at IS NOT NULL))";
const CLAIM_NOTIFICATIONS: &str = concat!(
    "UPDATE notifications SET next_attempt_at = $2, attempts = attempts + 1 WHERE id = ANY(ARRAY(
         SELECT id FROM notifications WHERE next_attempt_at <= $1 ORDER BY next_attempt_at, id LIMIT $3
         FOR UPDATE SKIP LOCKED))
     RETURNING",
    notification_columns!()
);
const RECORD_WEBHOOK_RESULT: &str =
    "UPDATE notifications SET webhook_status = $2::smallint, error = coalesce($3, error),
         next_attempt_at = CASE WHEN $2::smallint <> 0 AND email_status <> 0 THEN NULL
         ELSE coalesce($4, next_attempt_at) END
     WHERE id = $1 AND webhook_status = 0";
const RECORD_EMAIL_RESULT: &str =
    "UPDATE notifications SET email_status = $2::smallint, error = coalesce($3, error),
         next_attempt_at = CASE WHEN $2::smallint <> 0 AND webhook_status <> 0 THEN NULL
         ELSE coalesce($4, next_attempt_at) END
     WHERE id = $1 AND email_status = 0";
const LIST_ALL_NOTIFICATIONS: &str = concat!(
    "SELECT",
    notification_columns!(),
    "FROM notifications WHERE id < $1 ORDER BY id DESC LIMIT $2 OFFSET $3"
);
const LIST_NOTIFICATIONS: &str = concat!(
    "SELECT",
    notification_columns!(),
    "FROM notifications WHERE tenant_id = $1 AND id < $2 ORDER BY id DESC LIMIT $3 OFFSET $4"
);
const EARLIER_NOTIFICATIONS: &str = concat!(
    "SELECT",
    notification_columns!(),
    "FROM notifications WHERE webhook_id = $1 AND id < $2 AND tenant_id = $3 ORDER BY id DESC LIMIT $4"
);
const PRUNE_NOTIFICATIONS: &str = "DELETE FROM notifications WHERE id = ANY(ARRAY(
         SELECT id FROM notifications WHERE id < $1 AND next_attempt_at IS NULL ORDER BY id LIMIT $2
         FOR UPDATE SKIP LOCKED))";
const DELETE_SUPPRESSED_GROUPS: &str = "DELETE FROM notification_groups WHERE ctid = ANY(ARRAY(
         SELECT ctid FROM notification_groups WHERE due IS NULL AND suppressed_until < $1 ORDER BY suppressed_until
         LIMIT $2
         FOR UPDATE SKIP LOCKED))";

/// Statements whose cost must be proportional to the rows they return or change; a test checks their query plans.
#[cfg(feature = "conformance")]
pub(super) const PLANNED_STATEMENTS: [(&str, &str); 11] = [
    ("earlier notifications", EARLIER_NOTIFICATIONS),
    ("lock and create notification groups", LOCK_GROUPS),
    ("write notification groups", UPSERT_GROUPS),
    ("due notification groups", SELECT_DUE_GROUPS),
    ("lock pending notification groups", LOCK_PENDING_GROUPS),
    ("next notification", SELECT_NEXT_DUE),
    ("claim notifications", CLAIM_NOTIFICATIONS),
    ("list notifications", LIST_NOTIFICATIONS),
    ("list notifications of all tenants", LIST_ALL_NOTIFICATIONS),
    ("old notifications", PRUNE_NOTIFICATIONS),
    ("suppressed notification groups", DELETE_SUPPRESSED_GROUPS),
];

/// Adds occurrences to their groups, as the last step of the transaction that caused them.
pub(super) async fn record_occurrences(tx: &Session, occurrences: &[&Occurrence]) -> Result<(), Failure> {
    if occurrences.is_empty() {
        return Ok(());
    }
    let merged = grouping::merge(occurrences.iter().copied());
    let stored = lock_groups(tx, LOCK_GROUPS, merged.keys()).await?;
    write_groups(tx, &grouping::add_occurrences(stored, merged)).await
}

/// Locks groups by one of the statements for it, and reads them.
async fn lock_groups<'a>(
    tx: &Session,
    statement: &str,
    keys: impl Iterator<Item = &'a GroupKey>,
) -> Result<Groups, Failure> {
    let Keys { tenants, webhooks, kinds } = Keys::from_keys(keys);
    let rows = tx.query(statement, &[&tenants, &webhooks, &kinds]).await?;
    rows.iter().map(|row| Ok((read_key(row)?, read_state(row)?))).collect()
}

/// Writes groups that are locked.
async fn write_groups(tx: &Session, groups: &Groups) -> Result<(), Failure> {
    if groups.is_empty() {
        return Ok(());
    }
    let Keys { tenants, webhooks, kinds } = Keys::from_keys(groups.keys());
    let empty = OccurrenceGroup::default();
    let due: Vec<_> = groups.values().map(|state| state.open.as_ref().map(|(_, due)| Col(*due))).collect();
    let open = || groups.values().map(|state| state.open.as_ref().map_or(&empty, |(group, _)| group));
    let counts: Vec<_> = open().map(|group| group.count as i64).collect();
    let first: Vec<_> = open().map(|group| Col(group.first_at)).collect();
    let last: Vec<_> = open().map(|group| Col(group.last_at)).collect();
    let details = open().map(|group| to_json(&group.details)).collect::<Result<Vec<_>, _>>()?;
    let suppressed: Vec<_> = groups.values().map(|state| Col(state.suppressed_until)).collect();
    let values: [&(dyn ToSql + Sync); 9] =
        [&tenants, &webhooks, &kinds, &due, &counts, &first, &last, &details, &suppressed];
    tx.execute(UPSERT_GROUPS, &values).await.map(drop)
}

/// Deletes the groups of a deleted tenant, which has no recipients any more.
pub(super) async fn delete_tenant(tx: &Session, tenant_id: &TenantId) -> Result<(), Failure> {
    let delete = "DELETE FROM notification_groups WHERE ctid = ANY(ARRAY(
             SELECT ctid FROM notification_groups WHERE tenant_id = $1 ORDER BY webhook_id, kind FOR UPDATE))";
    tx.execute(delete, &[&tenant_id.as_str()]).await.map(drop)
}

/// Keys as one array per column.
struct Keys<'a> {
    tenants: Vec<&'a str>,
    webhooks: Vec<Col<WebhookId>>,
    kinds: Vec<Col<NotificationKind>>,
}

impl<'a> Keys<'a> {
    fn from_keys(keys: impl Iterator<Item = &'a GroupKey>) -> Self {
        let mut columns = Self { tenants: Vec::new(), webhooks: Vec::new(), kinds: Vec::new() };
        for (tenant_id, webhook_id, kind) in keys {
            columns.tenants.push(tenant_id.as_str());
            columns.webhooks.push(Col(webhook_id.unwrap_or(NO_WEBHOOK)));
            columns.kinds.push(Col(*kind));
        }
        columns
    }
}

impl Notifications for Postgres {
    fn record_occurrences(&self, occurrences: Vec<Occurrence>) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            let occurrences: Vec<_> = occurrences.iter().collect();
            let occurrences = &occurrences;
            self.write(|tx| async move { record_occurrences(&tx, occurrences).await }).await
        })
    }

    fn next_notification_at(&self) -> StoreFuture<'_, Option<Time>> {
        Box::pin(async move {
            self.read(|session| async move { get_opt(&session.query_one(SELECT_NEXT_DUE, &[]).await?, 0) })
                .await
        })
    }

    fn create_notifications(
        &self,
        now: Time,
        intervals: GroupIntervals,
        new_ids: Vec<NotificationId>,
    ) -> StoreFuture<'_, usize> {
        Box::pin(async move {
            loop {
                let created = self.write(|tx| create_batch(tx, now, &intervals, &new_ids)).await?;
                if let Some(count) = created {
                    return Ok(count);
                }
            }
        })
    }

    fn claim_notifications(
        &self,
        now: Time,
        claimed_until: Time,
        limit: usize,
    ) -> StoreFuture<'_, Vec<StoredNotification>> {
        Box::pin(async move {
            let taken = self.write(|tx| async move {
                let rows =
                    tx.query(CLAIM_NOTIFICATIONS, &[&Col(now), &Col(claimed_until), &(limit as i64)]).await?;
                rows.iter().map(read_notification).collect::<Result<Vec<_>, _>>()
            });
            let mut taken = taken.await?;
            taken.sort_by_key(|taken| taken.notification.id);
            Ok(taken)
        })
    }

    fn record_notification_result(
        &self,
        id: NotificationId,
        channel: Channel,
        result: ChannelResult,
    ) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            let statement = match channel {
                Channel::Webhook => RECORD_WEBHOOK_RESULT,
                Channel::Email => RECORD_EMAIL_RESULT,
            };
            let (status, error, next_at) = match result {
                ChannelResult::Done(status, error) => (status, error, None),
                ChannelResult::RetryAt(at, error) => (ChannelStatus::Pending, Some(error), Some(Col(at))),
            };
            let values: [&(dyn ToSql + Sync); 4] = [&Col(id), &Col(status), &error, &next_at];
            let values = &values;
            self.write(|tx| async move { tx.execute(statement, values).await.map(drop) }).await
        })
    }

    fn list_notifications(
        &self,
        tenant_id: TenantId,
        page: PageRequest<NotificationId>,
    ) -> StoreFuture<'_, Vec<StoredNotification>> {
        Box::pin(async move {
            let before = Col(page.after.unwrap_or(NotificationId::from_bytes([0xff; 16])));
            let (limit, offset, owner) = (i64::from(page.limit), i64::from(page.offset), tenant_id.as_str());
            let values: [&(dyn ToSql + Sync); 4] = [&owner, &before, &limit, &offset];
            let values = &values;
            self.list_for(&tenant_id, |session| async move {
                session.query(LIST_NOTIFICATIONS, values).await?.iter().map(read_notification).collect()
            })
            .await
        })
    }

    fn earlier_notifications(
        &self,
        tenant_id: TenantId,
        webhook_id: WebhookId,
        before: NotificationId,
        limit: usize,
    ) -> StoreFuture<'_, Vec<StoredNotification>> {
        Box::pin(async move {
            self.list_for(&tenant_id, |session| {
                let tenant_id = &tenant_id;
                async move {
                    let limit = limit as i64;
                    let rows = session
                        .query(
                            EARLIER_NOTIFICATIONS,
                            &[&Col(webhook_id), &Col(before), &tenant_id.as_str(), &limit],
                        )
                        .await?;
                    rows.iter().map(read_notification).collect()
                }
            })
            .await
        })
    }

    fn prune_notifications(&self, before: Time, limit: usize) -> StoreFuture<'_, usize> {
        Box::pin(async move {
            let limit = limit as i64;
            let pruned = self.write(|tx| async move {
                let old = tx
                    .execute(PRUNE_NOTIFICATIONS, &[&Col(NotificationId::first_at(before)), &limit])
                    .await?;
                let quiet = tx.execute(DELETE_SUPPRESSED_GROUPS, &[&Col(before), &limit]).await?;
                Ok(old.max(quiet))
            });
            Ok(pruned.await? as usize)
        })
    }
}

/// Lists the notifications of all tenants.
pub(super) async fn list_all(
    session: Tx,
    page: PageRequest<NotificationId>,
) -> Result<Vec<StoredNotification>, Failure> {
    let before = Col(page.after.unwrap_or(NotificationId::from_bytes([0xff; 16])));
    let (limit, offset) = (i64::from(page.limit), i64::from(page.offset));
    let rows = session.query(LIST_ALL_NOTIFICATIONS, &[&before, &limit, &offset]).await?;
    rows.iter().map(read_notification).collect()
}

/// Creates the notifications of one batch of due groups. Returns their number, or `None` if every group of the batch
/// was moved to the due time of its opposite or taken by another node, and other groups may be due.
async fn create_batch(
    tx: Tx,
    now: Time,
    intervals: &GroupIntervals,
    new_ids: &[NotificationId],
) -> Result<Option<usize>, Failure> {
    // The opposites of due groups may need as many ids again.
    let due = tx.query(SELECT_DUE_GROUPS, &[&Col(now), &(new_ids.len() as i64 / 2)]).await?;
    let due = due.iter().map(read_key).collect::<Result<Vec<_>, _>>()?;
    if due.is_empty() {
        return Ok(Some(0));
    }
    let stored = lock_groups(&tx, LOCK_PENDING_GROUPS, with_opposites(due).iter()).await?;
    let DueGroups { notifications, changed } =
        grouping::take_due_groups(stored, now, intervals, new_ids.to_vec());
    write_groups(&tx, &changed).await?;
    for notification in &notifications {
        insert(&tx, notification, now).await?;
    }
    Ok(Some(notifications.len()).filter(|count| *count > 0))
}

async fn insert(tx: &Session, notification: &Notification, now: Time) -> Result<(), Failure> {
    tx.execute(
        INSERT_NOTIFICATION,
        &[
            &Col(notification.id),
            &notification.tenant_id.as_str(),
            &notification.webhook_id.map(Col),
            &Col(notification.kind),
            &(notification.count as i64),
            &Col(notification.first_at),
            &Col(notification.last_at),
            &to_json(&notification.details)?,
            &Col(now),
        ],
    )
    .await
    .map(drop)
}

fn read_key(row: &Row) -> Result<GroupKey, Failure> {
    let webhook_id: WebhookId = get(row, 1)?;
    Ok((get(row, 0)?, Some(webhook_id).filter(|webhook_id| *webhook_id != NO_WEBHOOK), get(row, 2)?))
}

/// Reads the state of a group from the columns after its key.
fn read_state(row: &Row) -> Result<GroupState, Failure> {
    let open = match get_opt(row, 3)? {
        Some(due) => Some((read_folded(row, 4)?, due)),
        None => None,
    };
    Ok(GroupState { open, suppressed_until: get(row, 8)? })
}

fn read_folded(row: &Row, from: usize) -> Result<OccurrenceGroup, Failure> {
    Ok(OccurrenceGroup {
        count: plain::<i64>(row, from)?.unsigned_abs(),
        first_at: get(row, from + 1)?,
        last_at: get(row, from + 2)?,
        details: from_json(row, from + 3)?,
    })
}

fn read_notification(row: &Row) -> Result<StoredNotification, Failure> {
    let OccurrenceGroup { count, first_at, last_at, details } = read_folded(row, 4)?;
    let notification = Notification {
        id: get(row, 0)?,
        tenant_id: get(row, 1)?,
        webhook_id: get_opt(row, 2)?,
        kind: get(row, 3)?,
        count,
        first_at,
        last_at,
        details,
    };
    Ok(StoredNotification {
        notification,
        webhook_status: get(row, 8)?,
        email_status: get(row, 9)?,
        attempts: plain::<i32>(row, 10)?.unsigned_abs(),
        next_attempt_at: get_opt(row, 11)?,
        error: plain(row, 12)?,
    })
}
