//! What holds for everything of one tenant, as it is now, and this node's part of it.

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
    cluster::limit_share::Share,
    protection::limiter::RateLimit,
    tenancy::{TenantQuotas, TenantRules},
};

use crate::{
    limit_shares::{self, Shares},
    settings::Settings,
};

/// What holds for everything of one tenant, as it is now.
#[derive(Debug)]
pub struct Tenancy {
    /// The tenant.
    pub id: TenantId,
    /// Its key among the owners of connections.
    pub(crate) key: u64,
    rules: RwLock<TenantRules>,
    /// The place of its pool among those that this node serves.
    pool: AtomicUsize,
    shares: Arc<Shares>,
    default_rate: Option<RateLimit>,
    default_max_in_flight: usize,
}

/// The place of a pool that this node does not serve.
const NOWHERE: usize = usize::MAX;

impl Tenancy {
    pub(crate) fn new(id: TenantId, settings: &Settings, shares: Arc<Shares>) -> Self {
        let mut hasher = DefaultHasher::new();
        id.hash(&mut hasher);
        let tenancy = Self {
            id,
            key: hasher.finish(),
            rules: RwLock::default(),
            pool: AtomicUsize::new(NOWHERE),
            shares,
            default_rate: settings.tenant_rate_limit,
            default_max_in_flight: settings.tenant_max_in_flight.unwrap_or(usize::MAX),
        };
        tenancy.set(TenantRules::default());
        tenancy
    }

    pub(crate) fn set(&self, rules: TenantRules) {
        self.pool.store(self.shares.place_of(rules.pool()).unwrap_or(NOWHERE), Relaxed);
        *self.rules.write() = rules;
    }

    /// This node's share among all that send for it.
    pub(crate) fn share(&self) -> Share {
        self.shares.of_pool(self.pool.load(Relaxed))
    }

    /// This node's share of what Redis counts for all: everything while Redis does.
    pub(crate) fn part(&self) -> Share {
        if self.shares.is_whole() { Share::ALONE } else { self.share() }
    }

    /// How fast is sent for it, by all nodes together.
    fn whole_rate(&self) -> Option<RateLimit> {
        self.rules.read().rate_limit.or(self.default_rate)
    }

    /// How fast this node sends for it.
    pub(crate) fn rate_limit(&self) -> Option<RateLimit> {
        self.whole_rate().map(|limit| limit_shares::part(self.part(), limit))
    }

    /// Requests of this node at once.
    pub(crate) fn max_in_flight(&self) -> usize {
        let most = self.rules.read().max_in_flight.map_or(self.default_max_in_flight, |most| most as usize);
        self.share().of_count(most).max(1)
    }

    /// How much it may have and do.
    pub fn quotas(&self) -> TenantQuotas {
        self.rules.read().quotas
    }

    /// Whether this node sends for it.
    pub(crate) fn is_served(&self) -> bool {
        self.is_of_our_pools() && self.shares.has_part(self.part(), || self.whole_rate())
    }

    /// Whether it was given to a pool that this node serves.
    pub(crate) fn is_of_our_pools(&self) -> bool {
        self.pool.load(Relaxed) != NOWHERE
    }

    /// The pool that sends for it.
    pub(crate) fn pool(&self) -> String {
        self.rules.read().pool().to_owned()
    }
}
