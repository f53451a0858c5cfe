//! Which queue a delivery waits in: priority, fresh or retry, or a place in an order.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

/// How urgent a delivery is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum Priority {
    /// Before the others.
    High,
    /// As usual.
    #[default]
    Normal,
    /// After the others, but never starved.
    Low,
}

impl Priority {
    /// Every priority, the most urgent first.
    pub const ALL: [Self; 3] = [Self::High, Self::Normal, Self::Low];

    /// The name used everywhere.
    pub fn name(self) -> &'static str {
        match self {
            Self::High => "high",
            Self::Normal => "normal",
            Self::Low => "low",
        }
    }
}

/// Which of a webhook's deliveries wait for one another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum Ordering {
    /// None: each goes as soon as it can.
    #[default]
    None,
    /// Those of one event type, in the order of publishing.
    PerEventType,
    /// All, in the order of publishing.
    Strict,
}

/// What a delivery waits in, stamped when it is made: changing the webhook's ordering changes later
/// deliveries only.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lane {
    /// Nothing to wait for: due ones go by priority, fresh ones and retries apart.
    Free {
        /// How urgent.
        priority: Priority,
        /// Whether it was tried before, or is sent again because a person said so.
        retry: bool,
    },
    /// One at a time, in the order of sequence numbers. The key tells orders of one webhook apart.
    Ordered(Box<str>),
}

/// A lane's class: what share of the sending slots it gets. Fresh high is 0, low retries are 5.
pub const CLASSES: usize = 6;

impl Lane {
    /// The lane of a delivery that is being made.
    pub fn at_birth(ordering: Ordering, event_type: &str, priority: Priority, redriven: bool) -> Self {
        match ordering {
            Ordering::None => Self::Free { priority, retry: redriven },
            Ordering::PerEventType => Self::Ordered(event_type.into()),
            Ordering::Strict => Self::Ordered("".into()),
        }
    }

    /// The lane after a failed attempt. An order is kept through retries.
    pub fn for_retry(&self) -> Self {
        match self {
            Self::Free { priority, .. } => Self::Free { priority: *priority, retry: true },
            Self::Ordered(key) => Self::Ordered(key.clone()),
        }
    }

    /// The lane with another priority. Order comes before priority.
    pub fn with_priority(&self, priority: Priority) -> Self {
        match self {
            Self::Free { retry, .. } => Self::Free { priority, retry: *retry },
            Self::Ordered(key) => Self::Ordered(key.clone()),
        }
    }

    /// Whether deliveries in it wait for one another.
    pub fn is_ordered(&self) -> bool {
        matches!(self, Self::Ordered(_))
    }

    /// The share it gets: ordered lanes count as fresh ones of normal priority.
    pub fn class(&self) -> usize {
        match self {
            Self::Free { priority, retry } => *priority as usize + 3 * usize::from(*retry),
            Self::Ordered(_) => Priority::Normal as usize,
        }
    }

    /// The lane as a short text, for the store.
    pub fn code(&self) -> Cow<'_, str> {
        const FREE: [&str; CLASSES] = ["hf", "nf", "lf", "hr", "nr", "lr"];
        match self {
            Self::Free { .. } => Cow::Borrowed(FREE[self.class()]),
            Self::Ordered(key) => Cow::Owned(format!("={key}")),
        }
    }

    /// Reads a code.
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
            "f" => Some(Self::Free { priority, retry: false }),
            "r" => Some(Self::Free { priority, retry: true }),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_lane_is_read_back_from_its_code() {
        let mut lanes = vec![Lane::Ordered("".into()), Lane::Ordered("order.paid".into())];
        for priority in Priority::ALL {
            lanes.extend([false, true].map(|retry| Lane::Free { priority, retry }));
        }
        for lane in lanes {
            assert_eq!(Lane::parse(&lane.code()), Some(lane));
        }
        for bad in ["", "h", "xf", "hx", "hff", "ähm"] {
            assert_eq!(Lane::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn an_order_is_kept_whatever_happens_to_its_deliveries() {
        let strict = Lane::at_birth(Ordering::Strict, "a.b", Priority::High, false);
        assert_eq!(strict, Lane::at_birth(Ordering::Strict, "c.d", Priority::Low, true));
        assert_eq!(strict.for_retry(), strict);
        assert_eq!(strict.with_priority(Priority::Low), strict);
        let of = |event_type| Lane::at_birth(Ordering::PerEventType, event_type, Priority::Normal, false);
        assert_eq!(of("a.b"), of("a.b"));
        assert_ne!(of("a.b"), of("c.d"));
    }

    #[test]
    fn a_failed_delivery_leaves_the_fresh_ones_and_keeps_its_priority() {
        let fresh = Lane::at_birth(Ordering::None, "a.b", Priority::High, false);
        assert_eq!(fresh.for_retry(), Lane::Free { priority: Priority::High, retry: true });
        assert_eq!(fresh.for_retry().with_priority(Priority::Low).code(), "lr");
    }
}
