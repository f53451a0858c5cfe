//! Tickets: messages that name deliveries ready to be claimed. A ticket is a hint, and the store is the source of
//! truth: a lost, duplicate, late or wrong ticket costs time only.

use std::{collections::BTreeMap, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{DeliveryId, Time, WebhookId};

/// Time for which a ticketed delivery is reserved for the node that receives the ticket. Afterwards it is claimed
/// from the store like any other delivery, whether or not the ticket arrived.
pub const TICKET_CLAIM_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum number of deliveries in a ticket that this version writes.
pub const MAX_DELIVERIES: usize = 100;

/// Maximum number of deliveries in a ticket that is read: higher than on write, so that a later version may write
/// more.
const MAX_DELIVERIES_ON_READ: usize = 1_000;
const MAX_BYTES: usize = 256 << 10;

/// Format version of the tickets that are written.
const VERSION: u32 = 1;

/// Ready deliveries of one priority and one pool, by webhook. Encoded as human-readable JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ticket {
    v: u32,
    /// Deliveries by webhook.
    pub ready: BTreeMap<WebhookId, Vec<DeliveryId>>,
}

impl Default for Ticket {
    fn default() -> Self {
        Self { v: VERSION, ready: BTreeMap::new() }
    }
}

/// Error of decoding a ticket.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidTicket {
    /// The message exceeds the maximum size of a ticket.
    #[error("ticket has {0} bytes; at most {MAX_BYTES} are allowed")]
    TooLarge(usize),
    /// The message is not a ticket.
    #[error("message is not a ticket: {0}")]
    Unreadable(String),
    /// The ticket has a format version that this node does not support.
    #[error("ticket has version {0}; this node reads version {VERSION}")]
    Version(u32),
    /// The ticket names too many deliveries.
    #[error("ticket names {0} deliveries; at most {MAX_DELIVERIES_ON_READ} are allowed")]
    LimitReached(usize),
}

impl Ticket {
    /// Adds a delivery.
    pub fn add(&mut self, webhook_id: WebhookId, delivery_id: DeliveryId) {
        self.ready.entry(webhook_id).or_default().push(delivery_id);
    }

    /// Returns the number of deliveries it names.
    pub fn len(&self) -> usize {
        self.ready.values().map(Vec::len).sum()
    }

    /// Returns whether it names no deliveries.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Encodes the ticket for sending.
    pub fn encode(&self) -> Vec<u8> {
        // Serialisation cannot fail: the ticket holds only ids and a number.
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Decodes a received ticket.
    pub fn decode(bytes: &[u8]) -> Result<Self, InvalidTicket> {
        #[derive(Deserialize)]
        struct Version {
            v: u32,
        }
        if bytes.len() > MAX_BYTES {
            return Err(InvalidTicket::TooLarge(bytes.len()));
        }
        let unreadable = |error: serde_json::Error| InvalidTicket::Unreadable(error.to_string());
        // Read the version first: another version may have a different structure.
        let Version { v } = serde_json::from_slice(bytes).map_err(unreadable)?;
        if v != VERSION {
            return Err(InvalidTicket::Version(v));
        }
        let ticket: Self = serde_json::from_slice(bytes).map_err(unreadable)?;
        match ticket.len() {
            count if count > MAX_DELIVERIES_ON_READ => Err(InvalidTicket::LimitReached(count)),
            _ => Ok(ticket),
        }
    }
}

/// Returns the latest due time of a delivery that may still be claimed by ticket: the issuer's clock may be ahead
/// of this node's by up to `TICKET_CLAIM_TIMEOUT`. A delivery due later was postponed after the ticket was issued.
pub fn due_limit(now: Time) -> Time {
    now + 2 * TICKET_CLAIM_TIMEOUT
}

/// Returns the due time to display for a delivery: its creation time, if it has no attempt yet and waits only for
/// its ticket to be claimed. `delay` is the webhook's delay before the first attempt.
pub fn displayed_due(created_at: Time, due: Time, attempts: u32, delay: Duration) -> Time {
    let ticketed = attempts == 0 && delay.is_zero() && due <= created_at + TICKET_CLAIM_TIMEOUT;
    if ticketed { due.min(created_at) } else { due }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::id::RandomBytes;

    fn time(millis: i64) -> Time {
        Time::from_millis(millis)
    }

    fn random(n: u64) -> RandomBytes {
        let mut bytes = RandomBytes::default();
        bytes.iter_mut().zip(n.to_be_bytes().into_iter().cycle()).for_each(|(to, from)| *to = from);
        bytes
    }

    fn ticket(webhooks: u64, deliveries: u64) -> Ticket {
        let mut ticket = Ticket::default();
        for webhook in 0..webhooks {
            for delivery in 0..deliveries {
                let id = DeliveryId::new(time(2_000), &random(webhook << 32 | delivery));
                ticket.add(WebhookId::new(time(1_000), &random(webhook)), id);
            }
        }
        ticket
    }

    #[test]
    fn ticket_is_human_readable_json() {
        let written = String::from_utf8(ticket(1, 2).encode()).unwrap();
        let (webhook_id, deliveries) = ticket(1, 2).ready.pop_first().unwrap();
        let (first, second) = (deliveries[0], deliveries[1]);
        assert_eq!(written, format!(r#"{{"v":1,"ready":{{"{webhook_id}":["{first}","{second}"]}}}}"#));
        assert!(written.contains("wh_") && written.contains("dlv_"), "{written}");
    }

    #[test]
    fn invalid_tickets_are_refused_with_reason() {
        use InvalidTicket as Bad;
        assert!(matches!(Ticket::decode(b"hello"), Err(Bad::Unreadable(_))));
        assert!(matches!(Ticket::decode(b"{}"), Err(Bad::Unreadable(_))));
        assert!(matches!(Ticket::decode(br#"{"v":1}"#), Err(Bad::Unreadable(_))));
        assert!(matches!(Ticket::decode(br#"{"v":1,"ready":{"wh_1":[]}}"#), Err(Bad::Unreadable(_))));
        assert_eq!(Ticket::decode(br#"{"v":2,"of":"another kind"}"#), Err(Bad::Version(2)));
        assert_eq!(Ticket::decode(&vec![b' '; 300_000]), Err(Bad::TooLarge(300_000)));
        assert_eq!(Ticket::decode(&ticket(1, 1_001).encode()), Err(Bad::LimitReached(1_001)));
        let full = ticket(100, 10);
        assert_eq!(
            Ticket::decode(&full.encode()),
            Ok(full),
            "the maximum number of deliveries fits into the maximum size"
        );
        assert_eq!(Ticket::decode(br#"{"v":1,"ready":{},"more":1}"#), Ok(Ticket::default()));
    }

    #[test]
    fn node_with_slow_clock_accepts_fresh_ticket() {
        let (issued, behind) = (time(100_000), time(100_000 - 5_000));
        assert!(issued + TICKET_CLAIM_TIMEOUT <= due_limit(behind));
        assert!(
            issued + TICKET_CLAIM_TIMEOUT + Duration::from_secs(6) > due_limit(issued),
            "a delivery due later is not claimed"
        );
    }

    #[test]
    fn ticketed_delivery_is_displayed_as_due_since_creation() {
        let grace = TICKET_CLAIM_TIMEOUT.as_millis() as i64;
        let shown = |due, attempts, delay| displayed_due(time(1_000), time(due), attempts, delay).millis();
        assert_eq!(shown(1_000 + grace, 0, Duration::ZERO), 1_000);
        assert_eq!(shown(1_001 + grace, 0, Duration::ZERO), 1_001 + grace, "it was rescheduled");
        assert_eq!(
            shown(1_000 + grace, 0, TICKET_CLAIM_TIMEOUT),
            1_000 + grace,
            "the webhook has a first delay"
        );
        assert_eq!(shown(1_000 + grace, 1, Duration::ZERO), 1_000 + grace, "it is a retry");
        assert_eq!(shown(500, 0, Duration::ZERO), 500);
    }

    proptest! {
        #[test]
        fn tickets_round_trip(webhooks in 0..12u64, deliveries in 0..12u64) {
            let ticket = ticket(webhooks, deliveries);
            prop_assert_eq!(ticket.len() as u64, webhooks * deliveries);
            prop_assert_eq!(Ticket::decode(&ticket.encode()), Ok(ticket));
        }

        #[test]
        fn decoding_arbitrary_bytes_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Ticket::decode(&bytes);
        }
    }
}
