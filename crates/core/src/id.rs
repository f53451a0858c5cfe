//! Typed ids: UUIDv7 internally, `wh_018f…` externally. An id of one kind is never accepted as another.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use uuid::Uuid;

use crate::time::Time;

/// Ten random bytes: the part of a UUIDv7 beside its time.
pub type RandomBytes = [u8; 10];

fn uuid_v7(at: Time, random: &RandomBytes) -> Uuid {
    uuid::Builder::from_unix_timestamp_millis(at.millis().unsigned_abs(), random).into_uuid()
}

/// Error for a text that is not an id of the expected kind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected an id of the form {prefix}<32 hex digits>")]
pub struct InvalidId {
    prefix: &'static str,
}

/// Returns the bytes of the smallest id of a time, for any type of id.
pub fn min_bytes_at(at: Time) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..6].copy_from_slice(&at.millis().to_be_bytes()[2..]);
    bytes
}

macro_rules! typed_id {
    ($(#[$doc:meta])* $name:ident, $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Uuid);

        impl $name {
            /// Prefix of every id of this kind.
            pub const PREFIX: &'static str = $prefix;

            /// Creates an id from a time and ten random bytes.
            pub fn new(at: Time, random: &RandomBytes) -> Self {
                Self(uuid_v7(at, random))
            }

            /// Returns the stored form.
            pub fn as_bytes(&self) -> &[u8; 16] {
                self.0.as_bytes()
            }

            /// Builds an id from its stored form.
            pub const fn from_bytes(bytes: [u8; 16]) -> Self {
                Self(Uuid::from_bytes(bytes))
            }

            /// Returns the smallest id of a time: ids created then or later are not smaller.
            pub fn first_at(at: Time) -> Self {
                Self::from_bytes(min_bytes_at(at))
            }

            /// Returns the creation time that the id contains.
            pub fn time(&self) -> Time {
                let bytes = self.0.as_bytes();
                let millis = bytes[..6].iter().fold(0i64, |all, byte| all << 8 | i64::from(*byte));
                Time::from_millis(millis)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}{}", $prefix, self.0.simple())
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl FromStr for $name {
            type Err = InvalidId;

            fn from_str(text: &str) -> Result<Self, InvalidId> {
                let hex = text.strip_prefix($prefix).filter(|hex| hex.len() == 32);
                hex.and_then(|hex| Uuid::try_parse(hex).ok()).map(Self).ok_or(InvalidId { prefix: $prefix })
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
            }
        }
    };
}

typed_id!(
    /// A webhook: the subscription of a URL to event types.
    WebhookId, "wh_"
);
typed_id!(
    /// A published event.
    EventId, "evt_"
);
typed_id!(
    /// A delivery: one event owed to one webhook, in one round.
    DeliveryId, "dlv_"
);
typed_id!(
    /// An attempt: one HTTP request for one delivery, or its recorded failure without a request.
    AttemptId, "att_"
);
typed_id!(
    /// An entry of the audit log.
    AuditId, "aud_"
);
typed_id!(
    /// An API key's id, which is not the key itself.
    KeyId, "key_"
);
typed_id!(
    /// A bulk operation.
    OperationId, "op_"
);
typed_id!(
    /// A notification to owners.
    NotificationId, "ntf_"
);

/// Longest time after an event for which [`AttemptId::for_delivery`] stores the delivery in the id.
const MAX_STORED_DELAY_MS: i64 = 60_000;

impl AttemptId {
    /// Creates the id of an attempt. In the first minute after the event, the id contains the start of the delivery's id
    /// and the time since the event, so that [`AttemptId::possible_deliveries`] finds the delivery without an index.
    /// Later attempts have random ids.
    pub fn for_delivery(at: Time, delivery_id: DeliveryId, random: &RandomBytes) -> Self {
        let delay = at.millis() - delivery_id.time().millis();
        let mut bytes = *Self::new(at, random).as_bytes();
        if (0..MAX_STORED_DELAY_MS).contains(&delay) {
            bytes[6..14].copy_from_slice(&delivery_id.as_bytes()[6..14]);
            bytes[14..].copy_from_slice(&(delay as u16).to_be_bytes());
        }
        Self::from_bytes(bytes)
    }

    /// Returns the first and the last delivery id that the attempt can belong to if it was made in the first minute
    /// after its event. The attempts of these deliveries must still be compared with this id.
    pub fn possible_deliveries(&self) -> (DeliveryId, DeliveryId) {
        let bytes = self.as_bytes();
        let delay = i64::from(u16::from_be_bytes([bytes[14], bytes[15]]));
        let mut first = min_bytes_at(Time::from_millis((self.time().millis() - delay).max(0)));
        first[6..14].copy_from_slice(&bytes[6..14]);
        let mut last = first;
        last[14..].fill(0xff);
        (DeliveryId::from_bytes(first), DeliveryId::from_bytes(last))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn id_round_trips_through_text_and_bytes_and_keeps_its_time() {
        let at = Time::from_millis(1_700_000_000_123);
        let id = EventId::new(at, &[7; 10]);
        assert_eq!(id.to_string().parse(), Ok(id));
        assert_eq!(EventId::from_bytes(*id.as_bytes()), id);
        assert_eq!(id.time(), at);
        assert!(id < EventId::new(at + std::time::Duration::from_millis(1), &[0; 10]));
    }

    #[test]
    fn other_kinds_and_spellings_are_rejected() {
        let id = EventId::new(Time::from_millis(1), &[1; 10]).to_string();
        let hex = &id[4..];
        assert!(id.parse::<WebhookId>().is_err());
        assert!(hex.parse::<EventId>().is_err());
        assert!(format!("evt_{}", &hex[..31]).parse::<EventId>().is_err());
        assert!(format!("evt_{{{hex}}}").parse::<EventId>().is_err());
        let error = "evt_x".parse::<EventId>().unwrap_err().to_string();
        assert_eq!(error, "expected an id of the form evt_<32 hex digits>");
    }

    #[test]
    fn attempt_after_the_first_minute_or_before_its_event_has_a_random_id() {
        let created = Time::from_millis(1_700_000_000_123);
        let delivery_id = DeliveryId::new(created, &[1; 10]);
        for at in [created.millis() + MAX_STORED_DELAY_MS, created.millis() - 1] {
            let at = Time::from_millis(at);
            assert_eq!(AttemptId::for_delivery(at, delivery_id, &[9; 10]), AttemptId::new(at, &[9; 10]));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(5_000))]

        #[test]
        fn id_parse_never_panics_and_accepts_one_spelling_up_to_case(
            text in prop_oneof!["(wh|evt|dlv)_[0-9a-fA-F{}-]{30,40}", "evt_[0-9a-fA-F]{32}", any::<String>()],
        ) {
            if let Ok(id) = text.parse::<EventId>() {
                prop_assert_eq!(id.to_string(), text.to_ascii_lowercase());
                prop_assert!(id.time() <= Time::FAR_FUTURE);
                prop_assert!(text.parse::<WebhookId>().is_err());
            }
        }

        #[test]
        fn delivery_is_found_from_an_attempt_of_the_first_minute(
            delivery: [u8; 10], random: [u8; 10], delay in 0..MAX_STORED_DELAY_MS,
        ) {
            let created = Time::from_millis(1_700_000_000_123);
            let delivery_id = DeliveryId::new(created, &delivery);
            let at = Time::from_millis(created.millis() + delay);
            let id = AttemptId::for_delivery(at, delivery_id, &random);
            let (first, last) = id.possible_deliveries();
            prop_assert!(first <= delivery_id && delivery_id <= last && id.time() == at);
        }

        #[test]
        fn any_attempt_id_has_a_range_of_deliveries(bytes: [u8; 16]) {
            let (first, last) = AttemptId::from_bytes(bytes).possible_deliveries();
            prop_assert!(first <= last);
        }

        #[test]
        fn any_bytes_are_a_valid_id(bytes: [u8; 16]) {
            let id = DeliveryId::from_bytes(bytes);
            prop_assert_eq!(id.to_string().parse(), Ok(id));
            prop_assert_eq!(id.as_bytes(), &bytes);
        }
    }
}
