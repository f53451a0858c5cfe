//! Tokens that are available now, for the metrics.

use std::sync::Arc;

use redrive_core::{
    TenantId, Time, WebhookId,
    dispatch::gate::LimitScope,
    protection::limiter::{Bucket, RateLimit},
};

use super::local::{Authority, LocalCoordinator, State};
use crate::routing::{ResolvedWebhook, TenantContext};

/// Tokens in the emptiest bucket of each kind on this node; `None` if no bucket of the kind is in use. While Redis has
/// the buckets, this node knows only the empty ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AvailableTokens {
    /// Buckets of webhooks.
    pub webhook: Option<u32>,
    /// Buckets of tenants.
    pub tenant: Option<u32>,
    /// Bucket of all requests together.
    pub cluster: Option<u32>,
}

/// Copies of the buckets in use.
struct Buckets {
    webhooks: Vec<(WebhookId, Bucket)>,
    tenants: Vec<(TenantId, Bucket)>,
    global: Option<Bucket>,
}

impl LocalCoordinator {
    /// Returns the tokens in the emptiest bucket of each kind.
    pub(crate) fn available_tokens(
        &self,
        now: Time,
        find: &dyn Fn(WebhookId) -> Option<Arc<ResolvedWebhook>>,
        find_tenant: &dyn Fn(&TenantId) -> Arc<TenantContext>,
    ) -> AvailableTokens {
        let buckets = {
            let state = self.state.lock();
            if state.authority == Authority::Redis {
                return empty_buckets(&state, now);
            }
            // The limits are looked up without the lock, which every admission needs.
            let webhooks =
                state.webhooks.iter().map(|(webhook_id, entry)| (*webhook_id, entry.bucket.clone()));
            let tenants = state.tenants.iter().map(|(tenant_id, bucket)| (tenant_id.clone(), bucket.clone()));
            Buckets { webhooks: webhooks.collect(), tenants: tenants.collect(), global: state.global.clone() }
        };
        let tokens = |limit: Option<RateLimit>, bucket: &Bucket| Some(bucket.remaining(&limit?, now));
        let of_webhook = |(webhook_id, bucket): &(WebhookId, Bucket)| {
            tokens(find(*webhook_id).and_then(|webhook| webhook.rate_limit()), bucket)
        };
        let of_tenant =
            |(tenant_id, bucket): &(TenantId, Bucket)| tokens(find_tenant(tenant_id).rate_limit(), bucket);
        AvailableTokens {
            webhook: buckets.webhooks.iter().filter_map(of_webhook).min(),
            tenant: buckets.tenants.iter().filter_map(of_tenant).min(),
            cluster: buckets.global.and_then(|bucket| tokens(self.shares.global_rate(), &bucket)),
        }
    }
}

/// Returns 0 for each kind of bucket in Redis for which a delivery waits.
fn empty_buckets(state: &State, now: Time) -> AvailableTokens {
    let mut tokens = AvailableTokens::default();
    for (scope, due) in state.webhooks.values().filter_map(|entry| entry.token) {
        if due > now {
            match scope {
                LimitScope::Webhook => tokens.webhook = Some(0),
                LimitScope::Tenant => tokens.tenant = Some(0),
                LimitScope::Node => tokens.cluster = Some(0),
                LimitScope::Host => {}
            }
        }
    }
    tokens
}
