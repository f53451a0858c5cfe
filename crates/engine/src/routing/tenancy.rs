//! Current settings of a tenant, and this node's share of its limits.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use parking_lot::RwLock;
use redrive_core::{
    TenantId,
    cluster::limit_share::LimitShare,
    protection::limiter::RateLimit,
    tenancy::{TenantQuotas, TenantRules},
};

use crate::{
    cluster::limit_shares::{self, LimitShares},
    settings::Settings,
};

/// Current settings of a tenant.
#[derive(Debug)]
pub struct TenantContext {
    /// Tenant id.
    pub id: TenantId,
    /// Number that stands for the tenant where connections are shared among tenants.
    pub(crate) key: u64,
    rules: RwLock<TenantRules>,
    /// Index of its pool among those that this node serves.
    pool: AtomicUsize,
    shares: Arc<LimitShares>,
    default_rate: Option<RateLimit>,
    default_max_in_flight: usize,
}

/// Index of a pool that this node does not serve.
const UNSERVED_POOL: usize = usize::MAX;

impl TenantContext {
    pub(crate) fn new(id: TenantId, settings: &Settings, shares: Arc<LimitShares>) -> Self {
        let mut hasher = DefaultHasher::new();
        id.hash(&mut hasher);
        let context = Self {
            id,
            key: hasher.finish(),
            rules: RwLock::default(),
            pool: AtomicUsize::new(UNSERVED_POOL),
            shares,
            default_rate: settings.tenant_rate_limit,
            default_max_in_flight: settings.tenant_max_in_flight.unwrap_or(usize::MAX),
        };
        context.set(TenantRules::default());
        context
    }

    pub(crate) fn set(&self, rules: TenantRules) {
        self.pool.store(self.shares.pool_index(rules.pool()).unwrap_or(UNSERVED_POOL), Relaxed);
        *self.rules.write() = rules;
    }

    /// Returns this node's share among the nodes that serve its pool.
    pub(crate) fn limit_share(&self) -> LimitShare {
        self.shares.pool_share(self.pool.load(Relaxed))
    }

    /// Returns this node's share of limits that Redis can count: the whole while Redis responds.
    pub(crate) fn local_share(&self) -> LimitShare {
        if self.shares.is_undivided() { LimitShare::WHOLE } else { self.limit_share() }
    }

    /// Returns its rate limit over all nodes.
    fn total_rate(&self) -> Option<RateLimit> {
        self.rules.read().rate_limit.or(self.default_rate)
    }

    /// Returns its rate limit on this node.
    pub(crate) fn rate_limit(&self) -> Option<RateLimit> {
        self.total_rate().map(|limit| limit_shares::share_of_rate(self.local_share(), limit))
    }

    /// Returns its maximum number of requests in flight on this node.
    pub(crate) fn max_in_flight(&self) -> usize {
        let max = self.rules.read().max_in_flight.map_or(self.default_max_in_flight, |max| max as usize);
        self.limit_share().split_count(max).max(1)
    }

    /// Returns its quotas.
    pub fn quotas(&self) -> TenantQuotas {
        self.rules.read().quotas
    }

    /// Returns whether this node sends for it: it serves its pool and has a share of its rate limit.
    pub(crate) fn may_send_here(&self) -> bool {
        self.is_pool_served_here() && self.shares.has_allowance(self.local_share(), || self.total_rate())
    }

    /// Returns whether this node serves its pool.
    pub(crate) fn is_pool_served_here(&self) -> bool {
        self.pool.load(Relaxed) != UNSERVED_POOL
    }

    /// Returns its pool.
    pub(crate) fn pool(&self) -> String {
        self.rules.read().pool().to_owned()
    }
}
