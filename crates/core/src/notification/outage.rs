//! One email per outage: several kinds of notifications may report the same one, and an owner gets the first of them.

use super::{Notification, NotificationKind};
use crate::delivery::response::FailureCategory;

/// Number of earlier notifications about a webhook that are considered.
pub const MAX_EARLIER: usize = 20;

impl NotificationKind {
    /// Returns whether it reports that an endpoint does not accept requests, or accepts them again.
    pub fn is_about_outage(self) -> bool {
        self.reports_outage() || matches!(self, Self::CircuitRecovered | Self::WebhookRecovered)
    }

    fn reports_outage(self) -> bool {
        matches!(self, Self::CircuitOpened | Self::WebhookFailing | Self::DnsFailing)
    }
}

/// Returns the kind of the notification that has informed, or will inform, the owner of the same fact as this one, if
/// there is one: recipients of that kind get no email about this. `earlier` are the notifications about the same
/// webhook before this one, newest first.
pub fn covering_kind(this: &Notification, earlier: &[Notification]) -> Option<NotificationKind> {
    // From the oldest on, since a notification that is covered itself covers nothing.
    let mut known: Vec<(&Notification, Option<NotificationKind>)> = Vec::with_capacity(earlier.len() + 1);
    for one in earlier.iter().take(MAX_EARLIER).rev().chain([this]) {
        let covering = covered_by(one, &known);
        known.push((one, covering));
    }
    known.pop().and_then(|(_, covering)| covering)
}

fn covered_by(
    this: &Notification,
    earlier: &[(&Notification, Option<NotificationKind>)],
) -> Option<NotificationKind> {
    let latest = |kind| earlier.iter().rev().find(|(one, _)| one.kind == kind);
    match this.kind {
        NotificationKind::CircuitRecovered => {
            let (_, covering) = latest(NotificationKind::CircuitOpened)?;
            covering.map(|_| NotificationKind::WebhookRecovered)
        }
        NotificationKind::WebhookRecovered => {
            let (_, covering) = latest(NotificationKind::WebhookFailing)?;
            covering
                .filter(|kind| *kind == NotificationKind::CircuitOpened)
                .map(|_| NotificationKind::CircuitRecovered)
        }
        kind if kind.reports_outage() => {
            let since = this.details.since?;
            let covers = |(one, covering): &&(&Notification, Option<NotificationKind>)| {
                one.kind != kind
                    && one.kind.reports_outage()
                    && covering.is_none()
                    && one.last_at >= since
                    && (one.kind != NotificationKind::DnsFailing || is_caused_by_dns(this))
            };
            earlier.iter().rev().find(covers).map(|(one, _)| one.kind)
        }
        _ => None,
    }
}

fn is_caused_by_dns(notification: &Notification) -> bool {
    notification.details.reason.as_deref() == Some(FailureCategory::Dns.name())
}

#[cfg(test)]
mod tests {
    use NotificationKind::{
        CircuitOpened, CircuitRecovered, DeliveryDead, DnsFailing, WebhookFailing, WebhookRecovered,
    };
    use proptest::prelude::*;

    use super::*;
    use crate::{
        id::{NotificationId, WebhookId},
        notification::OccurrenceDetails,
        tenancy::TenantId,
        time::Time,
    };

    fn notification(kind: NotificationKind, at: u32, since: Option<u32>, reason: &str) -> Notification {
        let at = Time::from_secs(at);
        Notification {
            id: NotificationId::new(at, &[1; 10]),
            tenant_id: TenantId::default(),
            webhook_id: Some(WebhookId::from_bytes([1; 16])),
            kind,
            count: 1,
            first_at: at,
            last_at: at,
            details: OccurrenceDetails {
                reason: Some(reason.into()),
                since: since.map(Time::from_secs),
                ..OccurrenceDetails::default()
            },
        }
    }

    /// Returns what covers each of these notifications, given oldest first as kind, time and start of the failures.
    fn coverage(history: &[(NotificationKind, u32, Option<u32>)]) -> Vec<Option<NotificationKind>> {
        coverage_with("timeout", history)
    }

    fn coverage_with(
        reason: &str,
        history: &[(NotificationKind, u32, Option<u32>)],
    ) -> Vec<Option<NotificationKind>> {
        let all: Vec<_> =
            history.iter().map(|(kind, at, since)| notification(*kind, *at, *since, reason)).collect();
        let before = |index: usize| -> Vec<Notification> { all[..index].iter().rev().cloned().collect() };
        (0..all.len()).map(|index| covering_kind(&all[index], &before(index))).collect()
    }

    #[test]
    fn first_report_of_an_outage_covers_the_second_and_its_recovery() {
        assert_eq!(
            coverage(&[
                (WebhookFailing, 10, Some(5)),
                (CircuitOpened, 11, Some(5)),
                (WebhookRecovered, 60, Some(5)),
                (CircuitRecovered, 61, None),
            ]),
            [None, Some(WebhookFailing), None, Some(WebhookRecovered)]
        );
        assert_eq!(
            coverage(&[
                (CircuitOpened, 10, Some(9)),
                (WebhookFailing, 11, Some(9)),
                (WebhookRecovered, 60, Some(9)),
                (CircuitRecovered, 61, None),
            ]),
            [None, Some(CircuitOpened), Some(CircuitRecovered), None]
        );
    }

    #[test]
    fn next_outage_is_reported_again() {
        assert_eq!(
            coverage(&[
                (WebhookFailing, 10, Some(5)),
                (WebhookRecovered, 20, Some(5)),
                (CircuitOpened, 40, Some(30)),
                (CircuitRecovered, 50, None),
                (WebhookFailing, 90, Some(80)),
            ]),
            [None; 5]
        );
        // The first series ended without a success: the webhook was paused.
        assert_eq!(coverage(&[(WebhookFailing, 10, Some(5)), (CircuitOpened, 40, Some(30))]), [None, None]);
    }

    #[test]
    fn repeated_notifications_of_one_kind_are_not_covered() {
        assert_eq!(coverage(&[(CircuitOpened, 10, Some(5)), (CircuitOpened, 40, Some(5))]), [None, None]);
        assert_eq!(coverage(&[(DnsFailing, 10, Some(5)), (DnsFailing, 90_000, Some(5))]), [None, None]);
    }

    #[test]
    fn dns_notification_covers_only_failures_with_that_reason() {
        let history =
            [(DnsFailing, 10, Some(5)), (WebhookFailing, 12, Some(5)), (WebhookRecovered, 60, Some(5))];
        assert_eq!(coverage_with("dns", &history), [None, Some(DnsFailing), None], "only one has a recovery");
        assert_eq!(coverage_with("timeout", &history), [None, None, None]);
        let history = [(WebhookFailing, 10, Some(5)), (DnsFailing, 12, Some(5))];
        assert_eq!(coverage_with("dns", &history), [None, Some(WebhookFailing)]);
    }

    #[test]
    fn other_kinds_cover_nothing_and_are_not_covered() {
        assert_eq!(
            coverage(&[(DeliveryDead, 10, None), (WebhookFailing, 11, Some(5)), (DeliveryDead, 12, None)]),
            [None; 3]
        );
        assert_eq!(coverage(&[(CircuitRecovered, 10, None), (WebhookRecovered, 11, Some(5))]), [None, None]);
    }

    proptest! {
        /// Whatever the order of the kinds, the owner gets at least one email about each series of failures, and at most
        /// one of each kind about it.
        #[test]
        fn every_series_is_emailed(kinds in prop::collection::vec(0..3usize, 1..MAX_EARLIER), dns: bool) {
            let kinds = kinds.iter().map(|kind| [WebhookFailing, CircuitOpened, DnsFailing][*kind]);
            let history: Vec<_> = kinds.enumerate().map(|(at, kind)| (kind, 10 + at as u32, Some(5))).collect();
            let covered = coverage_with(if dns { "dns" } else { "timeout" }, &history);
            prop_assert_eq!(covered[0], None);
            for ((kind, ..), covering) in history.iter().zip(&covered) {
                let Some(covering) = covering else { continue };
                prop_assert!(covering != kind);
                let sent = history.iter().zip(&covered).any(|((kind, ..), by)| kind == covering && by.is_none());
                prop_assert!(sent, "{kind:?} is covered by {covering:?}, which is emailed");
            }
        }
    }
}
