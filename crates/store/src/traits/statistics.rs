//! Statistics: rollups, rankings, and the health of the store.

use std::collections::BTreeMap;

use redrive_core::{
    TenantId, Time, WebhookId, maintenance::durability::Durability, statistics::traffic::Resolution,
    statistics::traffic::Traffic,
};

use crate::{
    DeadLetterRanking, MinuteRollup, StoreFuture, TenantRollup, TrafficRanking, TrafficRankingRequest,
    UnclosedCircuit, WebhookFailures,
};

/// Statistics of webhooks and tenants, per minute and per hour.
pub trait Statistics: Send + Sync {
    /// Adds minute rollups of webhooks and rollups of tenants, atomically.
    fn add_rollups(&self, minutes: Vec<MinuteRollup>, traffic: Vec<TenantRollup>) -> StoreFuture<'_, ()>;
    /// Returns the minute rollups of these webhooks from this time on, by webhook, oldest first. `for_tenant` is the
    /// tenant that asked; `None` for the engine itself.
    fn rollups(
        &self,
        for_tenant: Option<TenantId>,
        webhooks: Vec<WebhookId>,
        from: Time,
    ) -> StoreFuture<'_, Vec<MinuteRollup>>;
    /// Counts the successful attempts of each of these webhooks after a time, from minute rollups. Of the minute of this
    /// time, which has earlier successes too, only the last success is known to be later. Returns one count for each pair,
    /// in their order. `for_tenant` is the tenant that asked; `None` for an admin of all tenants.
    fn count_successes(
        &self,
        for_tenant: Option<TenantId>,
        webhooks: Vec<(WebhookId, Time)>,
    ) -> StoreFuture<'_, Vec<u64>>;
    /// Returns the last success of each of these webhooks, however long ago it was; webhooks without one are left out.
    /// It is exact while the minute rollup of the success is kept, and at most a minute too early from then on.
    /// `for_tenant` is the tenant that asked; `None` for an admin of all tenants.
    fn last_successes(
        &self,
        for_tenant: Option<TenantId>,
        webhooks: Vec<WebhookId>,
    ) -> StoreFuture<'_, Vec<(WebhookId, Time)>>;
    /// Returns a tenant's rollups per minute or hour from this time on, oldest first.
    fn traffic(
        &self,
        tenant_id: TenantId,
        resolution: Resolution,
        from: Time,
    ) -> StoreFuture<'_, Vec<(Time, Traffic)>>;
    /// Returns the sums of all tenants' rollups per minute or hour from this time on, oldest first: for admins only.
    fn traffic_of_all_tenants(
        &self,
        resolution: Resolution,
        from: Time,
    ) -> StoreFuture<'_, Vec<(Time, Traffic)>>;
    /// Returns the number of failed attempts from this time on, by webhook. Reads at most the latest `max` minute
    /// rollups with a failure.
    fn failures(&self, tenant_id: TenantId, from: Time, max: usize) -> StoreFuture<'_, WebhookFailures>;
    /// Prunes up to `limit` minute rollups of webhooks before this time.
    fn prune_rollups(&self, before: Time, limit: usize) -> StoreFuture<'_, usize>;
    /// Prunes up to `limit` tenant rollups whose retention has ended.
    fn prune_traffic(&self, now: Time, limit: usize) -> StoreFuture<'_, usize>;
}

/// Rankings of the tenants and webhooks of the whole store, for operators. Each call reads counters of all tenants, so
/// callers run one at a time and not for each request.
pub trait Rankings: Send + Sync {
    /// Returns the `max` tenants and the `max` webhooks with the most dead letters.
    fn rank_dead_letters(&self, max: usize) -> StoreFuture<'_, DeadLetterRanking>;
    /// Returns the tenants and webhooks with the most failed attempts beyond what is tolerated, and the tenants with the
    /// most dead deliveries, from a minute on.
    fn rank_traffic(&self, request: TrafficRankingRequest) -> StoreFuture<'_, TrafficRanking>;
    /// Returns the `max` circuits, of those that are not closed, whose webhooks have had no success for the longest time.
    fn longest_unclosed_circuits(&self, max: usize) -> StoreFuture<'_, Vec<UnclosedCircuit>>;
}

/// Health of the store, and statistics for metrics.
pub trait Health: Send + Sync {
    /// Checks that the store can be written now.
    fn ping(&self) -> StoreFuture<'_, ()>;
    /// Returns the server settings that decide whether commits survive a crash; `None` for a store without a server.
    fn durability(&self) -> StoreFuture<'_, Option<Durability>>;
    /// Returns, for each pool with due deliveries in the store, since when the longest overdue one is due. Of the
    /// lanes that nodes have claimed, at most a thousand are read.
    fn overdue(&self, now: Time) -> StoreFuture<'_, BTreeMap<String, Time>>;
    /// Returns statistics for the metrics.
    fn stats(&self) -> StoreFuture<'_, StoreStats>;
    /// Returns how many tenants have more than `max` dead letters.
    fn count_tenants_with_dead_letters_over(&self, max: usize) -> StoreFuture<'_, u64>;
    /// Returns how many reads this process has run since the store was opened.
    fn read_count(&self) -> u64;
}

/// Statistics of a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreStats {
    /// Transactions committed since the start.
    pub commits: u64,
    /// Statements sent to the server since the start; 0 for a store without a server.
    pub statements: u64,
    /// Deliveries waiting in the store, by priority; ordered ones count as normal.
    pub waiting: [u64; 3],
    /// Leased deliveries.
    pub leased: u64,
    /// Dead deliveries that were not redriven.
    pub dead: u64,
    /// Webhooks that were not deleted.
    pub webhooks: u64,
}
