//! Grouping of occurrences: the first is sent immediately, those that follow within an interval are sent together
//! after it.
//!
//! Each kind and webhook has a state: the pending occurrences, and until when nothing is sent. A store reads the
//! states of the affected groups, applies [`add_occurrences`] or [`take_due_groups`], and writes back what changed.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use super::{Notification, NotificationKind, Occurrence, OccurrenceDetails};
use crate::{
    event::event_type,
    id::{DeliveryId, NotificationId, WebhookId},
    tenancy::TenantId,
    time::Time,
};

impl NotificationKind {
    /// Returns whether each occurrence is counted. A lasting condition is not: it is reported again only while it
    /// lasts, since a repetition during the quiet interval adds nothing and may be outdated when the interval ends.
    pub fn counts_repeats(self) -> bool {
        match self {
            Self::CircuitOpened
            | Self::CircuitRecovered
            | Self::WebhookFailing
            | Self::WebhookRecovered
            | Self::WebhookDisabled
            | Self::DeliveryDead => true,
            Self::DnsFailing | Self::SecretRotationDue | Self::QuotaReached => false,
        }
    }

    /// Returns whether it reports a transition of a circuit.
    pub fn is_circuit_transition(self) -> bool {
        matches!(self, Self::CircuitOpened | Self::CircuitRecovered)
    }

    /// Returns the opposite kind. While both are pending for one webhook they are sent together, once both are due,
    /// the later one last, so that the last notification is the current state.
    pub fn opposite(self) -> Option<Self> {
        match self {
            Self::CircuitOpened => Some(Self::CircuitRecovered),
            Self::CircuitRecovered => Some(Self::CircuitOpened),
            Self::WebhookFailing => Some(Self::WebhookRecovered),
            Self::WebhookRecovered => Some(Self::WebhookFailing),
            _ => None,
        }
    }
}

/// Minimum intervals between two notifications of one kind about the same webhook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupIntervals {
    /// For dead deliveries and disabled webhooks.
    pub usual: Duration,
    /// For circuits, opened and recovered, and for webhooks, failing and recovered.
    pub circuit: Duration,
    /// For lasting conditions: DNS failures, quotas.
    pub repeat_interval: Duration,
    /// For secrets due for rotation.
    pub secret: Duration,
}

impl Default for GroupIntervals {
    fn default() -> Self {
        Self {
            usual: Duration::from_secs(3600),
            circuit: Duration::from_secs(15 * 60),
            repeat_interval: Duration::from_secs(24 * 3600),
            secret: Duration::from_secs(7 * 24 * 3600),
        }
    }
}

impl GroupIntervals {
    /// Returns the interval of a kind.
    pub fn for_kind(&self, kind: NotificationKind) -> Duration {
        match kind {
            NotificationKind::CircuitOpened
            | NotificationKind::CircuitRecovered
            | NotificationKind::WebhookFailing
            | NotificationKind::WebhookRecovered => self.circuit,
            NotificationKind::WebhookDisabled | NotificationKind::DeliveryDead => self.usual,
            NotificationKind::DnsFailing | NotificationKind::QuotaReached => self.repeat_interval,
            NotificationKind::SecretRotationDue => self.secret,
        }
    }
}

/// Key of a group: tenant, webhook, kind.
pub type GroupKey = (TenantId, Option<WebhookId>, NotificationKind);

/// Groups by key, in locking order.
pub type Groups = BTreeMap<GroupKey, GroupState>;

/// Occurrences of one kind about one webhook or tenant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OccurrenceGroup {
    /// Number of occurrences.
    pub count: u64,
    /// Time of the first occurrence.
    pub first_at: Time,
    /// Time of the last occurrence.
    pub last_at: Time,
    /// Details of the last occurrence.
    pub details: OccurrenceDetails,
}

impl OccurrenceGroup {
    fn from_occurrence(occurrence: &Occurrence) -> Self {
        let (at, details) = (occurrence.at, occurrence.details.clone());
        Self { count: u64::from(occurrence.count), first_at: at, last_at: at, details }
    }

    fn add(&mut self, kind: NotificationKind, other: Self) {
        self.count = match kind.counts_repeats() {
            true => self.count + other.count,
            false => self.count.max(other.count),
        };
        self.first_at = self.first_at.min(other.first_at);
        if other.last_at >= self.last_at {
            (self.last_at, self.details) = (other.last_at, other.details);
        }
    }
}

/// Groups occurrences by key, in the order of their keys.
pub fn merge<'a>(
    occurrences: impl IntoIterator<Item = &'a Occurrence>,
) -> BTreeMap<GroupKey, OccurrenceGroup> {
    let mut merged = BTreeMap::<GroupKey, OccurrenceGroup>::new();
    for occurrence in occurrences {
        let key = (occurrence.tenant_id.clone(), occurrence.webhook_id, occurrence.kind);
        match merged.get_mut(&key) {
            Some(group) => group.add(occurrence.kind, OccurrenceGroup::from_occurrence(occurrence)),
            None => drop(merged.insert(key, OccurrenceGroup::from_occurrence(occurrence))),
        }
    }
    merged
}

/// State of one group. A store keeps it in a row, and reads and writes it as a whole.
///
/// ```
/// use redrive_core::{
///     Time,
///     notification::{
///         NotificationKind, OccurrenceDetails,
///         grouping::{GroupIntervals, GroupState, OccurrenceGroup},
///     },
/// };
///
/// let (kind, intervals) = (NotificationKind::DeliveryDead, GroupIntervals::default());
/// let at = Time::from_secs(1_000);
/// let once = || OccurrenceGroup { count: 1, first_at: at, last_at: at, details: OccurrenceDetails::default() };
/// let mut state = GroupState::default();
/// state.add_occurrences(kind, once());
/// assert_eq!(state.take_due(kind, at, &intervals), Some(once()));
/// // Later occurrences wait for the end of the interval and are sent as one group.
/// state.add_occurrences(kind, once());
/// state.add_occurrences(kind, once());
/// assert_eq!(state.take_due(kind, at, &intervals), None);
/// assert_eq!(state.take_due(kind, at + intervals.usual, &intervals).unwrap().count, 2);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupState {
    /// The pending occurrences, and when they are due.
    pub open: Option<(OccurrenceGroup, Time)>,
    /// Until when nothing more is sent.
    pub suppressed_until: Time,
}

impl GroupState {
    /// Adds occurrences. Returns `false` if the state did not change: a lasting condition was reported again while
    /// it is suppressed.
    pub fn add_occurrences(&mut self, kind: NotificationKind, occurrences: OccurrenceGroup) -> bool {
        if !kind.counts_repeats() && occurrences.last_at < self.suppressed_until {
            return false;
        }
        match &mut self.open {
            Some((open, _)) => open.add(kind, occurrences),
            None => {
                let due = occurrences.first_at.max(self.suppressed_until);
                self.open = Some((occurrences, due));
            }
        }
        true
    }

    /// Takes the pending occurrences if they are due.
    pub fn take_due(
        &mut self,
        kind: NotificationKind,
        now: Time,
        intervals: &GroupIntervals,
    ) -> Option<OccurrenceGroup> {
        let (group, _) = self.open.take_if(|(_, due)| *due <= now)?;
        self.suppressed_until = now + intervals.for_kind(kind);
        Some(group)
    }
}

/// Returns an occurrence with the number of these dead deliveries and the last of them, or `None` if there are
/// none. Deliveries of Redrive's own events do not count.
pub fn with_dead_count(occurrence: Occurrence, dead: Vec<(DeliveryId, String)>) -> Option<Occurrence> {
    let ours = |(_, event_type): &(DeliveryId, String)| !event_type::is_reserved(event_type);
    let dead: Vec<_> = dead.into_iter().filter(ours).collect();
    let count = u32::try_from(dead.len()).unwrap_or(u32::MAX);
    let (delivery_id, event_type) = dead.into_iter().max()?;
    let details = OccurrenceDetails {
        delivery_id: Some(delivery_id),
        event_type: Some(event_type),
        ..occurrence.details
    };
    Some(Occurrence { count, details, ..occurrence })
}

fn opposite_key((tenant_id, webhook_id, kind): &GroupKey) -> Option<GroupKey> {
    Some((tenant_id.clone(), *webhook_id, kind.opposite()?))
}

/// Returns these keys and those of the opposite kinds, in locking order.
pub fn with_opposites(found: Vec<GroupKey>) -> BTreeSet<GroupKey> {
    let opposites: Vec<_> = found.iter().filter_map(opposite_key).collect();
    found.into_iter().chain(opposites).collect()
}

/// Adds merged occurrences to the stored groups with their keys. A group that is not in `stored` is new. Returns the
/// groups that changed and must be stored.
pub fn add_occurrences(mut stored: Groups, occurrences: BTreeMap<GroupKey, OccurrenceGroup>) -> Groups {
    let add = |(key, occurrences): (GroupKey, OccurrenceGroup)| {
        let mut state = stored.remove(&key).unwrap_or_default();
        state.add_occurrences(key.2, occurrences).then_some((key, state))
    };
    occurrences.into_iter().filter_map(add).collect()
}

/// Result of [`take_due_groups`].
#[derive(Debug, PartialEq, Eq)]
pub struct DueGroups {
    /// The notifications to send, in the order in which they are to be read.
    pub notifications: Vec<Notification>,
    /// The groups that changed and must be stored.
    pub changed: Groups,
}

/// Takes the groups that are due and creates their notifications, at most one per id in `new_ids`.
///
/// A group whose opposite is pending and not due yet becomes due together with it. So it is no longer among the
/// due groups, and cannot keep other groups out of a limited number of them. `stored` must include the opposites:
/// see [`with_opposites`].
pub fn take_due_groups(
    stored: Groups,
    now: Time,
    intervals: &GroupIntervals,
    new_ids: Vec<NotificationId>,
) -> DueGroups {
    let due_at = |state: &GroupState| state.open.as_ref().map(|(_, due)| *due);
    let not_due: BTreeMap<GroupKey, Time> = stored
        .iter()
        .filter_map(|(key, state)| Some((key.clone(), due_at(state).filter(|due| *due > now)?)))
        .collect();
    let (mut due_groups, mut changed) = (Vec::new(), Groups::new());
    for (key, mut state) in stored {
        let Some((group, due)) = &mut state.open else { continue };
        if *due > now {
            continue;
        }
        match opposite_key(&key).and_then(|opposite| not_due.get(&opposite)) {
            Some(later) => {
                *due = *later;
                changed.insert(key, state);
            }
            None => due_groups.push((group.last_at, key, state)),
        }
    }
    due_groups.sort_by_key(|(last_at, key, _)| (*last_at, key.2));
    let mut ids = new_ids;
    ids.sort_unstable();
    let mut notifications = Vec::new();
    for ((_, key, mut state), id) in due_groups.into_iter().zip(ids) {
        let (tenant_id, webhook_id, kind) = key.clone();
        if let Some(group) = state.take_due(kind, now, intervals) {
            let OccurrenceGroup { count, first_at, last_at, details } = group;
            notifications.push(Notification {
                id,
                tenant_id,
                webhook_id,
                kind,
                count,
                first_at,
                last_at,
                details,
            });
            changed.insert(key, state);
        }
    }
    DueGroups { notifications, changed }
}

#[cfg(test)]
mod tests;
