//! Successes of the endpoint since a delivery died: the fact by which people judge whether a resend makes sense.

use std::time::Duration;

use redrive_core::{Time, WebhookId};
use redrive_store::MinuteRollup;

use super::{App, AppError, TenantSelection, deliveries::DeliveryDetails};

const MINUTE: Duration = Duration::from_secs(60);
/// Time for which attempts per minute are kept, without the current hour.
const COUNTED_TIME: Duration = Duration::from_secs(24 * 3600);

/// Successful attempts of a webhook since one of its deliveries died.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndpointSuccesses {
    /// Their number.
    pub count: u64,
    /// Whether the delivery died earlier than the counted 24 hours.
    pub is_older: bool,
}

impl App {
    /// Adds the successes of their endpoints to dead deliveries.
    pub(super) async fn add_endpoint_successes(
        &self,
        tenants: &TenantSelection,
        details: &mut [DeliveryDetails],
    ) -> Result<(), AppError> {
        let died_at = |one: &DeliveryDetails| one.delivery.dead_reason.and(one.delivery.ended_at);
        let mut webhooks: Vec<_> =
            details.iter().filter(|one| died_at(one).is_some()).map(|one| one.delivery.webhook_id).collect();
        webhooks.sort_unstable();
        webhooks.dedup();
        let Some(first) = details.iter().filter_map(died_at).min() else { return Ok(()) };
        let oldest = self.engine.clock().now().saturating_sub(COUNTED_TIME);
        let since = first.saturating_sub(MINUTE).max(oldest);
        let minutes = self.engine.rollups(tenants.tenant_id(), webhooks, since).await?;
        for one in details {
            if let Some(died_at) = died_at(one) {
                let count = successes_since(&minutes, one.delivery.webhook_id, died_at.max(oldest));
                one.endpoint_successes = Some(EndpointSuccesses { count, is_older: died_at < oldest });
            }
        }
        Ok(())
    }
}

/// Counts the successes of a webhook after a time. Of the minute of this time, which has earlier ones too, only the last
/// one is known to be later.
fn successes_since(minutes: &[MinuteRollup], webhook_id: WebhookId, since: Time) -> u64 {
    let later = |minute: &&MinuteRollup| minute.webhook_id == webhook_id && minute.minute + MINUTE > since;
    let successes = |minute: &MinuteRollup| match minute.minute > since {
        true => u64::from(minute.rollup.successes),
        false => u64::from(minute.rollup.last_success_at.is_some_and(|at| at > since)),
    };
    minutes.iter().filter(later).map(successes).sum()
}

#[cfg(test)]
mod tests {
    use redrive_core::statistics::rollup::Rollup;

    use super::*;

    #[test]
    fn successes_are_counted_after_the_given_time() {
        let webhook = |n: u8| WebhookId::from_bytes([n; 16]);
        let minute = |n: u8, start: u32, successes: u32, last: u32| MinuteRollup {
            tenant_id: redrive_core::TenantId::default(),
            webhook_id: webhook(n),
            minute: Time::from_secs(start),
            rollup: Rollup {
                attempts: successes,
                successes,
                last_success_at: Some(Time::from_secs(last)),
                ..Rollup::default()
            },
        };
        let minutes =
            [minute(1, 0, 5, 59), minute(1, 60, 3, 90), minute(1, 120, 4, 130), minute(2, 120, 9, 130)];
        let since = |secs: u32| successes_since(&minutes, webhook(1), Time::from_secs(secs));
        assert_eq!(since(180), 0);
        assert_eq!(since(131), 0, "the last success of the minute was earlier");
        assert_eq!(since(121), 1, "at least one success was later");
        assert_eq!(since(100), 4);
        assert_eq!(since(80), 5);
        assert_eq!(since(59), 7);
    }
}
