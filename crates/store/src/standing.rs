//! What both backends do alike with what stands to be told.

use std::collections::BTreeSet;

use redrive_core::{
    DeliveryId, NoticeId, Time, WebhookId, event_type,
    notice::{
        Cause, Facts, Notice,
        fold::{Folded, Key},
    },
};

/// What stands for the tenant as a whole, where a webhook is stored.
pub(crate) const NO_WEBHOOK: WebhookId = WebhookId::from_bytes([0; 16]);

/// A cause with how many of these dead deliveries it is about, and the last of them; none if there is no such. Deliveries
/// of Redrive's own events do not count.
pub(crate) fn died_of(cause: Cause, dead: Vec<(DeliveryId, String)>) -> Option<Cause> {
    let ours = |(_, event_type): &(DeliveryId, String)| !event_type::is_reserved(event_type);
    let dead: Vec<_> = dead.into_iter().filter(ours).collect();
    let count = u32::try_from(dead.len()).unwrap_or(u32::MAX);
    let (delivery, event_type) = dead.into_iter().max()?;
    let facts = Facts { delivery: Some(delivery), event_type: Some(event_type), ..cause.facts };
    Some(Cause { count, facts, ..cause })
}

/// Something that was not told yet.
pub(crate) struct Open {
    pub(crate) key: Key,
    pub(crate) folded: Folded,
    pub(crate) due: Time,
}

/// These, each with its counterpart, in the order in which they are locked.
pub(crate) fn with_counterparts(found: Vec<Key>) -> BTreeSet<Key> {
    let counterpart = |(tenant, webhook, kind): &Key| Some((tenant.clone(), *webhook, kind.counterpart()?));
    let others: Vec<_> = found.iter().filter_map(counterpart).collect();
    found.into_iter().chain(others).collect()
}

/// Notices of what is due, and of nothing whose counterpart is not; in the order in which they are to be read.
pub(crate) fn to_tell(open: Vec<Open>, now: Time, fresh: Vec<NoticeId>) -> Vec<Notice> {
    let waits: BTreeSet<Key> = open.iter().filter(|one| one.due > now).map(|one| one.key.clone()).collect();
    let is_due = |one: &Open| {
        let (tenant, webhook, kind) = &one.key;
        let counterpart = kind.counterpart().map(|other| (tenant.clone(), *webhook, other));
        one.due <= now && counterpart.is_none_or(|other| !waits.contains(&other))
    };
    let mut due: Vec<_> = open.into_iter().filter(is_due).collect();
    due.sort_by_key(|one| (one.folded.last_at, one.key.2));
    let mut ids = fresh;
    ids.sort_unstable();
    let notice = |(one, id): (Open, NoticeId)| {
        let (tenant, webhook, kind) = one.key;
        let Folded { count, first_at, last_at, facts } = one.folded;
        Notice { id, tenant, webhook, kind, count, first_at, last_at, facts }
    };
    due.into_iter().zip(ids).map(notice).collect()
}
