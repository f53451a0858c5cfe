//! Lanes: the queue that a delivery waits in, by priority and fresh or retry, or by ordering key.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

/// Priority of a delivery.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum Priority {
    /// Preferred over the others.
    High,
    /// The default.
    #[default]
    Normal,
    /// Behind the others, but never starved.
    Low,
}

impl Priority {
    /// Every priority, highest first.
    pub const ALL: [Self; 3] = [Self::High, Self::Normal, Self::Low];

    /// Returns the canonical name.
    pub fn name(self) -> &'static str {
        match self {
            Self::High => "high",
            Self::Normal => "normal",
            Self::Low => "low",
        }
    }
}

/// Which deliveries of a webhook are sent in order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum Ordering {
    /// No order: each delivery is sent as soon as possible.
    #[default]
    None,
    /// Deliveries of one event type, in the order of publishing.
    PerEventType,
    /// All deliveries, in the order of publishing.
    Strict,
}

/// Queue of a delivery, stored when it is created: changing the webhook's ordering affects later deliveries only.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lane {
    /// Not ordered: due deliveries are sent by priority, with separate lanes for fresh ones and retries.
    Unordered {
        /// Priority.
        priority: Priority,
        /// Whether it is of the retry class: attempted before, or a resend.
        retry: bool,
    },
    /// One at a time, in the order of sequence numbers. The key distinguishes several ordering keys of one webhook.
    Ordered(Box<str>),
}

/// Number of classes. The class of a lane decides its share of the sending slots: fresh high is 0, low retries
/// are 5.
pub const CLASS_COUNT: usize = 6;

impl Lane {
    /// Returns the lane of a new delivery.
    ///
    /// ```
    /// use redrive_core::delivery::lane::{Lane, Ordering, Priority};
    ///
    /// let lane = Lane::for_new_delivery(Ordering::None, "order.paid", Priority::High, false);
    /// assert_eq!((lane.class(), lane.for_retry().class()), (0, 3));
    /// // An ordered delivery stays in its lane when it is retried, and its priority is ignored.
    /// let ordered = Lane::for_new_delivery(Ordering::PerEventType, "order.paid", Priority::High, false);
    /// assert_eq!(ordered.for_retry(), ordered);
    /// assert_eq!(ordered.with_priority(Priority::Low).class(), Priority::Normal as usize);
    /// ```
    pub fn for_new_delivery(
        ordering: Ordering,
        event_type: &str,
        priority: Priority,
        redriven: bool,
    ) -> Self {
        match ordering {
            Ordering::None => Self::Unordered { priority, retry: redriven },
            Ordering::PerEventType => Self::Ordered(event_type.into()),
            Ordering::Strict => Self::Ordered("".into()),
        }
    }

    /// Returns the lane after a failed attempt. Ordering is kept through retries.
    pub fn for_retry(&self) -> Self {
        match self {
            Self::Unordered { priority, .. } => Self::Unordered { priority: *priority, retry: true },
            Self::Ordered(key) => Self::Ordered(key.clone()),
        }
    }

    /// Returns the lane with another priority. Ordering takes precedence over priority.
    pub fn with_priority(&self, priority: Priority) -> Self {
        match self {
            Self::Unordered { retry, .. } => Self::Unordered { priority, retry: *retry },
            Self::Ordered(key) => Self::Ordered(key.clone()),
        }
    }

    /// Returns whether deliveries in the lane wait for one another.
    pub fn is_ordered(&self) -> bool {
        matches!(self, Self::Ordered(_))
    }

    /// Returns the class; ordered lanes count as fresh with normal priority.
    pub fn class(&self) -> usize {
        match self {
            Self::Unordered { priority, retry } => *priority as usize + 3 * usize::from(*retry),
            Self::Ordered(_) => Priority::Normal as usize,
        }
    }

    /// Returns the lane as a short text, for the store.
    pub fn code(&self) -> Cow<'_, str> {
        const UNORDERED_CODES: [&str; CLASS_COUNT] = ["hf", "nf", "lf", "hr", "nr", "lr"];
        match self {
            Self::Unordered { .. } => Cow::Borrowed(UNORDERED_CODES[self.class()]),
            Self::Ordered(key) => Cow::Owned(format!("={key}")),
        }
    }

    /// Parses a code.
    pub fn parse(code: &str) -> Option<Self> {
        if let Some(key) = code.strip_prefix('=') {
            return Some(Self::Ordered(key.into()));
        }
        let (priority, kind) = code.split_at_checked(1)?;
        let priority = match priority {
            "h" => Priority::High,
            "n" => Priority::Normal,
            "l" => Priority::Low,
            _ => return None,
        };
        match kind {
            "f" => Some(Self::Unordered { priority, retry: false }),
            "r" => Some(Self::Unordered { priority, retry: true }),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lane_code_round_trips() {
        let mut lanes = vec![Lane::Ordered("".into()), Lane::Ordered("order.paid".into())];
        for priority in Priority::ALL {
            lanes.extend([false, true].map(|retry| Lane::Unordered { priority, retry }));
        }
        for lane in lanes {
            assert_eq!(Lane::parse(&lane.code()), Some(lane));
        }
        for bad in ["", "h", "xf", "hx", "hff", "ähm"] {
            assert_eq!(Lane::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn ordered_lane_survives_retry_and_priority_change() {
        let strict = Lane::for_new_delivery(Ordering::Strict, "a.b", Priority::High, false);
        assert_eq!(strict, Lane::for_new_delivery(Ordering::Strict, "c.d", Priority::Low, true));
        assert_eq!(strict.for_retry(), strict);
        assert_eq!(strict.with_priority(Priority::Low), strict);
        let of =
            |event_type| Lane::for_new_delivery(Ordering::PerEventType, event_type, Priority::Normal, false);
        assert_eq!(of("a.b"), of("a.b"));
        assert_ne!(of("a.b"), of("c.d"));
    }

    #[test]
    fn failed_delivery_moves_to_retry_lane_and_keeps_priority() {
        let fresh = Lane::for_new_delivery(Ordering::None, "a.b", Priority::High, false);
        assert_eq!(fresh.for_retry(), Lane::Unordered { priority: Priority::High, retry: true });
        assert_eq!(fresh.for_retry().with_priority(Priority::Low).code(), "lr");
    }
}
