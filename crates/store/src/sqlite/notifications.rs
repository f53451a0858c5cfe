//! Notifications to owners: grouped occurrences, and the notifications created from them.

use redrive_core::{
    NotificationId, TenantId, Time, WebhookId,
    notification::{
        Notification, Occurrence, OccurrenceDetails,
        grouping::{
            self, DueGroups, GroupIntervals, GroupKey, GroupState, Groups, OccurrenceGroup, with_opposites,
        },
    },
};
use rusqlite::{Connection, OptionalExtension, Row, Transaction};

use super::{
    Sqlite,
    convert::{Col, get, get_opt},
    webhooks::{from_json, to_json},
};
use crate::{
    Channel, ChannelResult, ChannelStatus, Notifications, PageRequest, StoreFuture, StoredNotification,
    codes::NO_WEBHOOK,
};

const SELECT_GROUP: &str =
    "SELECT due, count, first_at, last_at, details, suppressed_until FROM notification_groups
     WHERE tenant_id = ? AND webhook_id = ? AND kind = ?";
const UPSERT_GROUP: &str =
    "INSERT INTO notification_groups (tenant_id, webhook_id, kind, due, count, first_at, last_at,
         details, suppressed_until)
     VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
     ON CONFLICT DO UPDATE SET due = excluded.due, count = excluded.count, first_at = excluded.first_at,
         last_at = excluded.last_at, details = excluded.details, suppressed_until = excluded.suppressed_until";
const SELECT_DUE_GROUPS: &str =
    "SELECT tenant_id, webhook_id, kind FROM notification_groups WHERE due <= ? ORDER BY due LIMIT ?";
const INSERT_NOTIFICATION: &str =
    "INSERT INTO notifications (id, tenant_id, webhook_id, kind, count, first_at, last_at, details,
         next_attempt_at)
     VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)";
const SELECT_NOTIFICATION: &str =
    "SELECT id, tenant_id, webhook_id, kind, count, first_at, last_at, details, webhook_status, email_status, attempts,
     next_attempt_at, error FROM notifications";
const SELECT_EARLIER: &str =
    "SELECT id, tenant_id, webhook_id, kind, count, first_at, last_at, details, webhook_status,
     email_status, attempts, next_attempt_at, error FROM notifications INDEXED BY notifications_by_webhook
     WHERE webhook_id = ? AND id < ? AND tenant_id = ? ORDER BY id DESC LIMIT ?";
const SELECT_NEXT_DUE: &str = "SELECT min((SELECT min(due) FROM notification_groups WHERE due IS NOT NULL),
         (SELECT min(next_attempt_at) FROM notifications WHERE next_attempt_at IS NOT NULL)),
     coalesce((SELECT min(due) FROM notification_groups WHERE due IS NOT NULL),
         (SELECT min(next_attempt_at) FROM notifications WHERE next_attempt_at IS NOT NULL))";
const CLAIM_NOTIFICATIONS: &str = "UPDATE notifications SET next_attempt_at = ?2, attempts = attempts + 1 WHERE id IN (
         SELECT id FROM notifications WHERE next_attempt_at <= ?1 ORDER BY next_attempt_at, id LIMIT ?3)
     RETURNING id, tenant_id, webhook_id, kind, count, first_at, last_at, details, webhook_status, email_status,
     attempts, next_attempt_at, error";
const PRUNE_NOTIFICATIONS: &str = "DELETE FROM notifications WHERE id IN (
         SELECT id FROM notifications WHERE id < ? AND next_attempt_at IS NULL ORDER BY id LIMIT ?)";
const DELETE_SUPPRESSED_GROUPS: &str = "DELETE FROM notification_groups WHERE (tenant_id, webhook_id, kind) IN (
         SELECT tenant_id, webhook_id, kind FROM notification_groups WHERE due IS NULL AND suppressed_until < ?
         LIMIT ?)";

/// Statements whose cost must be proportional to the rows they return or change; a test checks their query plans.
#[cfg(feature = "conformance")]
pub(super) const BOUNDED_STATEMENTS: [&str; 7] = [
    SELECT_GROUP,
    SELECT_EARLIER,
    SELECT_DUE_GROUPS,
    SELECT_NEXT_DUE,
    CLAIM_NOTIFICATIONS,
    PRUNE_NOTIFICATIONS,
    DELETE_SUPPRESSED_GROUPS,
];

/// Adds occurrences to their groups, in the transaction that caused them.
pub(super) fn record_occurrences<'a>(
    transaction: &Transaction<'_>,
    occurrences: impl IntoIterator<Item = &'a Occurrence>,
) -> rusqlite::Result<()> {
    let merged = grouping::merge(occurrences);
    let stored = read_groups(transaction, merged.keys())?;
    write_groups(transaction, &grouping::add_occurrences(stored, merged))
}

fn read_groups<'a>(
    transaction: &Transaction<'_>,
    keys: impl Iterator<Item = &'a GroupKey>,
) -> rusqlite::Result<Groups> {
    let mut stored = Groups::new();
    for key in keys {
        let (tenant_id, webhook_id, kind) = key;
        let state = transaction
            .prepare_cached(SELECT_GROUP)?
            .query_row((tenant_id.as_str(), Col(webhook_id.unwrap_or(NO_WEBHOOK)), Col(*kind)), read_state)
            .optional()?;
        stored.extend(state.map(|state| (key.clone(), state)));
    }
    Ok(stored)
}

fn write_groups(transaction: &Transaction<'_>, groups: &Groups) -> rusqlite::Result<()> {
    let empty = OccurrenceGroup::default();
    for ((tenant_id, webhook_id, kind), state) in groups {
        let (group, due) = match &state.open {
            Some((group, due)) => (group, Some(Col(*due))),
            None => (&empty, None),
        };
        transaction.prepare_cached(UPSERT_GROUP)?.execute((
            tenant_id.as_str(),
            Col(webhook_id.unwrap_or(NO_WEBHOOK)),
            Col(*kind),
            due,
            group.count as i64,
            Col(group.first_at),
            Col(group.last_at),
            to_json(&group.details)?,
            Col(state.suppressed_until),
        ))?;
    }
    Ok(())
}

impl Notifications for Sqlite {
    fn record_occurrences(&self, occurrences: Vec<Occurrence>) -> StoreFuture<'_, ()> {
        self.write(move |transaction| record_occurrences(transaction, &occurrences))
    }

    fn next_notification_at(&self) -> StoreFuture<'_, Option<Time>> {
        self.read(move |connection| {
            connection.prepare_cached(SELECT_NEXT_DUE)?.query_row((), |row| {
                let (both, either): (Option<Time>, Option<Time>) = (get_opt(row, 0)?, get_opt(row, 1)?);
                Ok(both.or(either))
            })
        })
    }

    fn create_notifications(
        &self,
        now: Time,
        intervals: GroupIntervals,
        new_ids: Vec<NotificationId>,
    ) -> StoreFuture<'_, usize> {
        self.write(move |transaction| {
            loop {
                if let Some(count) = create_batch(transaction, now, &intervals, &new_ids)? {
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
        self.write(move |transaction| {
            let mut taken = transaction
                .prepare_cached(CLAIM_NOTIFICATIONS)?
                .query_map((Col(now), Col(claimed_until), limit as i64), read_notification)?
                .collect::<rusqlite::Result<Vec<_>>>()?;
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
        self.write(move |transaction| {
            let (this, other) = match channel {
                Channel::Webhook => ("webhook_status", "email_status"),
                Channel::Email => ("email_status", "webhook_status"),
            };
            let (status, error, next_at) = match result {
                ChannelResult::Done(status, error) => (status, error, None),
                ChannelResult::RetryAt(at, error) => (ChannelStatus::Pending, Some(error), Some(Col(at))),
            };
            transaction
                .prepare_cached(&format!(
                    "UPDATE notifications SET {this} = ?2, error = coalesce(?3, error),
                         next_attempt_at = CASE WHEN ?2 <> 0 AND {other} <> 0 THEN NULL
                         ELSE coalesce(?4, next_attempt_at) END
                     WHERE id = ?1 AND {this} = 0"
                ))?
                .execute((Col(id), Col(status), error, next_at))?;
            Ok(())
        })
    }

    fn list_notifications(
        &self,
        tenant_id: TenantId,
        page: PageRequest<NotificationId>,
    ) -> StoreFuture<'_, Vec<StoredNotification>> {
        self.list_for(tenant_id.clone(), move |connection| list(connection, &tenant_id, page))
    }

    fn earlier_notifications(
        &self,
        tenant_id: TenantId,
        webhook_id: WebhookId,
        before: NotificationId,
        limit: usize,
    ) -> StoreFuture<'_, Vec<StoredNotification>> {
        self.list_for(tenant_id.clone(), move |connection| {
            connection
                .prepare_cached(SELECT_EARLIER)?
                .query_map(
                    (Col(webhook_id), Col(before), tenant_id.as_str(), limit as i64),
                    read_notification,
                )?
                .collect()
        })
    }

    fn prune_notifications(&self, before: Time, limit: usize) -> StoreFuture<'_, usize> {
        self.write(move |transaction| {
            let old = transaction
                .execute(PRUNE_NOTIFICATIONS, (Col(NotificationId::first_at(before)), limit as i64))?;
            let quiet = transaction.execute(DELETE_SUPPRESSED_GROUPS, (Col(before), limit as i64))?;
            Ok(old.max(quiet))
        })
    }
}

fn list(
    connection: &Connection,
    tenant_id: &TenantId,
    page: PageRequest<NotificationId>,
) -> rusqlite::Result<Vec<StoredNotification>> {
    let before = page.after.unwrap_or(NotificationId::from_bytes([0xff; 16]));
    connection
        .prepare_cached(&format!(
            "{SELECT_NOTIFICATION} WHERE tenant_id = ? AND id < ? ORDER BY id DESC LIMIT ? OFFSET ?"
        ))?
        .query_map((tenant_id.as_str(), Col(before), page.limit, page.offset), read_notification)?
        .collect()
}

/// Lists the notifications of all tenants.
pub(super) fn list_all(
    connection: &Connection,
    page: PageRequest<NotificationId>,
) -> rusqlite::Result<Vec<StoredNotification>> {
    let before = page.after.unwrap_or(NotificationId::from_bytes([0xff; 16]));
    connection
        .prepare_cached(&format!("{SELECT_NOTIFICATION} WHERE id < ? ORDER BY id DESC LIMIT ? OFFSET ?"))?
        .query_map((Col(before), page.limit, page.offset), read_notification)?
        .collect()
}

fn read_key(row: &Row<'_>) -> rusqlite::Result<GroupKey> {
    let webhook_id: WebhookId = get(row, 1)?;
    Ok((get(row, 0)?, Some(webhook_id).filter(|webhook_id| *webhook_id != NO_WEBHOOK), get(row, 2)?))
}

fn read_folded(row: &Row<'_>, from: usize) -> rusqlite::Result<OccurrenceGroup> {
    Ok(OccurrenceGroup {
        count: row.get::<_, i64>(from)?.unsigned_abs(),
        first_at: get(row, from + 1)?,
        last_at: get(row, from + 2)?,
        details: from_json::<OccurrenceDetails>(row, from + 3)?,
    })
}

fn read_state(row: &Row<'_>) -> rusqlite::Result<GroupState> {
    let open = match get_opt(row, 0)? {
        Some(due) => Some((read_folded(row, 1)?, due)),
        None => None,
    };
    Ok(GroupState { open, suppressed_until: get(row, 5)? })
}

/// Creates the notifications of one batch of due groups. Returns their number, or `None` if every group of the batch
/// was moved to the due time of its opposite, and other groups may be due.
fn create_batch(
    transaction: &Transaction<'_>,
    now: Time,
    intervals: &GroupIntervals,
    new_ids: &[NotificationId],
) -> rusqlite::Result<Option<usize>> {
    // The opposites of due groups may need as many ids again.
    let due = transaction
        .prepare_cached(SELECT_DUE_GROUPS)?
        .query_map((Col(now), new_ids.len() as i64 / 2), read_key)?
        .collect::<rusqlite::Result<Vec<GroupKey>>>()?;
    if due.is_empty() {
        return Ok(Some(0));
    }
    let stored = read_groups(transaction, with_opposites(due).iter())?;
    let DueGroups { notifications, changed } =
        grouping::take_due_groups(stored, now, intervals, new_ids.to_vec());
    write_groups(transaction, &changed)?;
    for notification in &notifications {
        insert(transaction, notification, now)?;
    }
    Ok(Some(notifications.len()).filter(|count| *count > 0))
}

fn insert(transaction: &Transaction<'_>, notification: &Notification, now: Time) -> rusqlite::Result<()> {
    transaction.prepare_cached(INSERT_NOTIFICATION)?.execute((
        Col(notification.id),
        notification.tenant_id.as_str(),
        notification.webhook_id.map(Col),
        Col(notification.kind),
        notification.count as i64,
        Col(notification.first_at),
        Col(notification.last_at),
        to_json(&notification.details)?,
        Col(now),
    ))?;
    Ok(())
}

fn read_notification(row: &Row<'_>) -> rusqlite::Result<StoredNotification> {
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
        attempts: row.get(10)?,
        next_attempt_at: get_opt(row, 11)?,
        error: row.get(12)?,
    })
}
