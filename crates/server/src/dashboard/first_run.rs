//! First steps guide: create a webhook, send a test event, see it arrive. `first_run.html` shows it on the
//! overview until the tenant has more than one webhook or more than a few deliveries.

use redrive_core::{DeliveryStatus, webhook::Webhook};
use redrive_store::{DeliveryFilter, PageRequest};

use super::page::PageError;
use crate::{
    api::AppState,
    app::{TenantView, deliveries::DeliveryDetails},
};

/// Maximum number of deliveries with which the guide is still shown.
const GUIDE_MAX_DELIVERIES: u32 = 5;

/// Progress of a tenant in the guide.
pub(super) struct FirstRun {
    /// The tenant's webhook, if it has created one.
    pub(super) webhook: Option<Webhook>,
    /// The latest delivery.
    pub(super) last: Option<DeliveryDetails>,
    /// The latest delivery that succeeded.
    pub(super) arrived: Option<DeliveryDetails>,
}

impl FirstRun {
    /// Returns the progress of a tenant, or `None` if it does not need the guide any more.
    pub(super) async fn load(app: &AppState, tenant: &TenantView) -> Result<Option<Self>, PageError> {
        let two = PageRequest { after: None, offset: 0, limit: 2 };
        let mut webhooks = app.list_webhooks(tenant.clone(), two).await?;
        if webhooks.len() > 1 {
            return Ok(None);
        }
        let few = PageRequest { after: None, offset: 0, limit: GUIDE_MAX_DELIVERIES + 1 };
        let sent = app.list_deliveries(tenant.clone(), DeliveryFilter::default(), few).await?.found;
        if sent.len() > GUIDE_MAX_DELIVERIES as usize {
            return Ok(None);
        }
        let has_arrived = |details: &&DeliveryDetails| details.delivery.status == DeliveryStatus::Delivered;
        let arrived = sent.iter().find(has_arrived).cloned();
        Ok(Some(Self { webhook: webhooks.pop(), last: sent.into_iter().next(), arrived }))
    }

    /// Returns the CSS class of a step.
    pub(super) fn class(&self, is_done: bool) -> &'static str {
        if is_done { "done" } else { "" }
    }

    /// Returns whether the latest delivery was attempted and none has succeeded.
    pub(super) fn has_failed(&self) -> bool {
        let failed = |details: &DeliveryDetails| {
            details.delivery.attempt_count > 0 && details.delivery.status != DeliveryStatus::InFlight
        };
        self.arrived.is_none() && self.last.as_ref().is_some_and(failed)
    }
}
