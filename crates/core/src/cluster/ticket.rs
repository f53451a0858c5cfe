//! Tickets: which deliveries are ready, told to whoever may send them. A ticket is a hint: the store is the truth, and
//! one that is lost, doubled, late or wrong costs time and nothing else.

use std::{collections::BTreeMap, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{DeliveryId, Time, WebhookId};

/// How long a delivery that a ticket was issued for is left to whoever takes it by that ticket. Then it is claimed from
/// the store like any other, whatever became of the ticket.
pub const GRACE: Duration = Duration::from_secs(5);

/// Deliveries that one ticket names at the most, when it is written.
pub const MOST: usize = 100;

/// What may be read: more than is written, so that a later version may write more.
const MOST_READ: usize = 1_000;
const MOST_BYTES: usize = 256 << 10;

/// The version of what is written.
const VERSION: u32 = 1;

/// Deliveries of one priority and one pool that are ready, by webhook. It is written as JSON that people can read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ticket {
    v: u32,
    /// For each webhook, its deliveries.
    pub ready: BTreeMap<WebhookId, Vec<DeliveryId>>,
}

impl Default for Ticket {
    fn default() -> Self {
        Self { v: VERSION, ready: BTreeMap::new() }
    }
}

/// Why something is no ticket.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadTicket {
    /// It has more bytes than a ticket may have.
    #[error("it has {0} bytes, and a ticket has {MOST_BYTES} at the most")]
    TooLarge(usize),
    /// It is something else.
    #[error("it is no ticket ({0})")]
    Unreadable(String),
    /// It was written by a version of Redrive that is to come.
    #[error("it is of version {0}, and this node reads version {VERSION}")]
    Version(u32),
    /// It names too many deliveries.
    #[error("it names {0} deliveries, and a ticket names {MOST_READ} at the most")]
    TooMany(usize),
}

impl Ticket {
    /// Adds a delivery.
    pub fn add(&mut self, webhook: WebhookId, delivery: DeliveryId) {
        self.ready.entry(webhook).or_default().push(delivery);
    }

    /// How many deliveries it names.
    pub fn len(&self) -> usize {
        self.ready.values().map(Vec::len).sum()
    }

    /// Whether it names none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The ticket as it is sent.
    pub fn write(&self) -> Vec<u8> {
        // Ids and a number: nothing that could not be written.
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Reads a ticket that was sent.
    pub fn read(bytes: &[u8]) -> Result<Self, BadTicket> {
        #[derive(Deserialize)]
        struct Version {
            v: u32,
        }
        if bytes.len() > MOST_BYTES {
            return Err(BadTicket::TooLarge(bytes.len()));
        }
        let unreadable = |error: serde_json::Error| BadTicket::Unreadable(error.to_string());
        // Another version may look quite different.
        let Version { v } = serde_json::from_slice(bytes).map_err(unreadable)?;
        if v != VERSION {
            return Err(BadTicket::Version(v));
        }
        let ticket: Self = serde_json::from_slice(bytes).map_err(unreadable)?;
        match ticket.len() {
            count if count > MOST_READ => Err(BadTicket::TooMany(count)),
            _ => Ok(ticket),
        }
    }
}

/// Until when what a ticket names may be due to be taken by it: whoever issued it may have a clock that is ahead of
/// this one, by as much as the grace. What is due later than that was put off since.
pub fn takes_until(now: Time) -> Time {
    now + 2 * GRACE
}

/// When a delivery that has not been tried yet was due for those who look at it: at once, if it only waits for whoever
/// takes its ticket. `delay` is how long its webhook has a first attempt wait.
pub fn shown_due(created_at: Time, due: Time, attempts: u32, delay: Duration) -> Time {
    let ticketed = attempts == 0 && delay.is_zero() && due <= created_at + GRACE;
    if ticketed { due.min(created_at) } else { due }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::id::Randomness;

    fn time(millis: i64) -> Time {
        Time::from_millis(millis)
    }

    fn random(n: u64) -> Randomness {
        let mut bytes = Randomness::default();
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
    fn a_ticket_is_json_that_people_can_read() {
        let written = String::from_utf8(ticket(1, 2).write()).unwrap();
        let (webhook, deliveries) = ticket(1, 2).ready.pop_first().unwrap();
        let (first, second) = (deliveries[0], deliveries[1]);
        assert_eq!(written, format!(r#"{{"v":1,"ready":{{"{webhook}":["{first}","{second}"]}}}}"#));
        assert!(written.contains("wh_") && written.contains("dlv_"), "{written}");
    }

    #[test]
    fn what_is_no_ticket_is_told_apart() {
        use BadTicket as Bad;
        assert!(matches!(Ticket::read(b"hello"), Err(Bad::Unreadable(_))));
        assert!(matches!(Ticket::read(b"{}"), Err(Bad::Unreadable(_))));
        assert!(matches!(Ticket::read(br#"{"v":1}"#), Err(Bad::Unreadable(_))));
        assert!(matches!(Ticket::read(br#"{"v":1,"ready":{"wh_1":[]}}"#), Err(Bad::Unreadable(_))));
        assert_eq!(Ticket::read(br#"{"v":2,"of":"another kind"}"#), Err(Bad::Version(2)));
        assert_eq!(Ticket::read(&vec![b' '; 300_000]), Err(Bad::TooLarge(300_000)));
        assert_eq!(Ticket::read(&ticket(1, 1_001).write()), Err(Bad::TooMany(1_001)));
        let full = ticket(100, 10);
        assert_eq!(Ticket::read(&full.write()), Ok(full), "as many as may be read do fit");
        assert_eq!(Ticket::read(br#"{"v":1,"ready":{},"more":1}"#), Ok(Ticket::default()));
    }

    #[test]
    fn a_clock_that_is_behind_takes_what_is_fresh() {
        let (issued, behind) = (time(100_000), time(100_000 - 5_000));
        assert!(issued + GRACE <= takes_until(behind));
        assert!(issued + GRACE + Duration::from_secs(6) > takes_until(issued), "it was put off");
    }

    #[test]
    fn what_waits_for_its_ticket_is_shown_as_due_since_it_was_made() {
        let grace = GRACE.as_millis() as i64;
        let shown = |due, attempts, delay| shown_due(time(1_000), time(due), attempts, delay).millis();
        assert_eq!(shown(1_000 + grace, 0, Duration::ZERO), 1_000);
        assert_eq!(shown(1_001 + grace, 0, Duration::ZERO), 1_001 + grace, "it was put off since");
        assert_eq!(shown(1_000 + grace, 0, GRACE), 1_000 + grace, "its webhook wants it so");
        assert_eq!(shown(1_000 + grace, 1, Duration::ZERO), 1_000 + grace, "it is a retry");
        assert_eq!(shown(500, 0, Duration::ZERO), 500);
    }

    proptest! {
        #[test]
        fn any_ticket_is_read_as_it_was_written(webhooks in 0..12u64, deliveries in 0..12u64) {
            let ticket = ticket(webhooks, deliveries);
            prop_assert_eq!(ticket.len() as u64, webhooks * deliveries);
            prop_assert_eq!(Ticket::read(&ticket.write()), Ok(ticket));
        }

        #[test]
        fn nothing_that_is_read_does_harm(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Ticket::read(&bytes);
        }
    }
}
