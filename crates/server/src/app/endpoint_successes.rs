//! Successes of the endpoint since a delivery died: the fact by which people judge whether a resend makes sense.

use std::time::Duration;

use super::{App, AppError, TenantSelection, deliveries::DeliveryDetails};

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
        let oldest = self.engine.clock().now().saturating_sub(COUNTED_TIME);
        let dead = |one: &DeliveryDetails| one.delivery.dead_reason.and(one.delivery.ended_at);
        let counted: Vec<_> = details
            .iter()
            .filter_map(|one| Some((one.delivery.webhook_id, dead(one)?.max(oldest))))
            .collect();
        let counts = self.engine.count_successes(tenants.tenant_id(), &counted).await?;
        let died = details.iter_mut().filter_map(|one| dead(one).map(|died_at| (one, died_at)));
        for ((one, died_at), count) in died.zip(counts) {
            one.endpoint_successes = Some(EndpointSuccesses { count, is_older: died_at < oldest });
        }
        Ok(())
    }
}
