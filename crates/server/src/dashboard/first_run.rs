//! The first steps: a webhook, a test event, and seeing it arrive. Shown until there is more to see than that, by
//! `first_run.html` within the overview.

use redrive_core::{DeliveryStatus, webhook::Webhook};
use redrive_store::{DeliveryFilter, PageRequest};

use super::page::Failed;
use crate::{
    api::AppState,
    app::{TenantView, deliveries::Seen},
};

/// With more deliveries than this, nobody needs to be shown how.
const A_FEW: u32 = 5;

/// How far somebody has come.
pub(super) struct FirstRun {
    /// The webhook that was made.
    pub(super) webhook: Option<Webhook>,
    /// What was sent last.
    pub(super) last: Option<Seen>,
    /// What has arrived.
    pub(super) arrived: Option<Seen>,
}

impl FirstRun {
    /// How far a tenant has come; none if it is past its first steps.
    pub(super) async fn of(app: &AppState, tenant: &TenantView) -> Result<Option<Self>, Failed> {
        let two = PageRequest { after: None, offset: 0, limit: 2 };
        let mut webhooks = app.list_webhooks(tenant.clone(), two).await?;
        if webhooks.len() > 1 {
            return Ok(None);
        }
        let few = PageRequest { after: None, offset: 0, limit: A_FEW + 1 };
        let sent = app.list_deliveries(tenant.clone(), DeliveryFilter::default(), few).await?.found;
        if sent.len() > A_FEW as usize {
            return Ok(None);
        }
        let has_arrived = |seen: &&Seen| seen.delivery.status == DeliveryStatus::Delivered;
        let arrived = sent.iter().find(has_arrived).cloned();
        Ok(Some(Self { webhook: webhooks.pop(), last: sent.into_iter().next(), arrived }))
    }

    /// The class of a step.
    pub(super) fn class(&self, is_done: bool) -> &'static str {
        if is_done { "done" } else { "" }
    }

    /// Whether what was sent last was tried, and did not arrive.
    pub(super) fn has_failed(&self) -> bool {
        let failed =
            |seen: &Seen| seen.delivery.attempt_count > 0 && seen.delivery.status != DeliveryStatus::InFlight;
        self.arrived.is_none() && self.last.as_ref().is_some_and(failed)
    }
}
