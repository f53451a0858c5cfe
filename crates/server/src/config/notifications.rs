//! Notification settings: when a webhook is reported as failing, and how long occurrences are grouped.

use redrive_core::{
    notification::grouping::GroupIntervals,
    time::HumanDuration,
    webhook::failures::{FailingRule, MIN_FAILURES},
};
use serde::{Deserialize, Serialize};

use super::settings::section;

section! {
    /// When webhooks are reported as failing, and intervals during which no further notification of a kind is sent about
    /// the same webhook.
    #[derive(Clone, Debug, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    pub struct Notifications {
        /// Time for which further dead deliveries of a webhook, or further times that it was disabled, are
        /// [grouped](notifications.md#grouping) after a notification; at least `1s`.
        pub group_interval: HumanDuration,
        /// Number of failed attempts without a success after which a webhook is reported as
        /// [failing](notifications.md#failing-webhooks); 2 to 1000.
        pub failing_after_failures: u32,
        /// Time without a success after which a webhook is reported as failing, if at least two attempts failed in it;
        /// at least `1s`.
        pub failing_after: HumanDuration,
        /// Time for which a circuit that opens and recovers again, or a webhook that fails and recovers again, is
        /// [grouped](notifications.md#grouping) after a notification; at least `1s`.
        pub circuit_group_interval: HumanDuration,
        /// Time between repeated notifications about failing DNS resolution, or about a quota that is reached, while
        /// that lasts.
        pub repeat_interval: HumanDuration,
        /// Time between repeated notifications about a secret that is due for rotation; at least `1s`.
        pub secret_repeat_interval: HumanDuration,
    }
}

impl Default for Notifications {
    fn default() -> Self {
        let GroupIntervals { usual, circuit, repeat_interval: remind, secret } = GroupIntervals::default();
        let span = |duration: std::time::Duration| HumanDuration::secs(duration.as_secs());
        let FailingRule { after_failures, after } = FailingRule::default();
        Self {
            failing_after_failures: after_failures,
            failing_after: span(after),
            group_interval: span(usual),
            circuit_group_interval: span(circuit),
            repeat_interval: span(remind),
            secret_repeat_interval: span(secret),
        }
    }
}

impl Notifications {
    /// Returns the intervals as the engine uses them.
    pub(super) fn group_intervals(&self) -> GroupIntervals {
        GroupIntervals {
            usual: self.group_interval.as_duration(),
            circuit: self.circuit_group_interval.as_duration(),
            repeat_interval: self.repeat_interval.as_duration(),
            secret: self.secret_repeat_interval.as_duration(),
        }
    }

    /// Returns when failures are reported, as the engine uses it.
    pub(super) fn failing_rule(&self) -> FailingRule {
        FailingRule { after_failures: self.failing_after_failures, after: self.failing_after.as_duration() }
    }

    /// Returns whether the number of failures is out of range.
    pub(super) fn has_invalid_failures(&self) -> bool {
        !(MIN_FAILURES..=1_000).contains(&self.failing_after_failures)
    }

    /// Returns the first interval below 1 s, which would send a notification for almost every failure.
    pub(super) fn too_short(&self) -> Option<&'static str> {
        let all = [
            ("notifications.failing_after", self.failing_after),
            ("notifications.group_interval", self.group_interval),
            ("notifications.circuit_group_interval", self.circuit_group_interval),
            ("notifications.repeat_interval", self.repeat_interval),
            ("notifications.secret_repeat_interval", self.secret_repeat_interval),
        ];
        all.into_iter().find(|(_, span)| *span < HumanDuration::secs(1)).map(|(setting, _)| setting)
    }
}
