//! Lease audit: finds leases, claimed lanes and assignments that this epoch owns according to the store but that this
//! node's memory does not know. A delivery with such a lease is never sent, nor are its successors in an ordered
//! lane; otherwise only the end of the epoch would free it.
//!
//! A check reads the store, then waits until every transfer that was open at that time has ended, then compares
//! with memory. A lease that is committed and not handed over yet is therefore not suspected, however slow the
//! machine is. Findings of two consecutive checks are recovered.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use redrive_core::{DeliveryId, WebhookId};
use redrive_store::{Claim, Epoch, LaneKey, Leases, StoreError};
use tokio_util::sync::CancellationToken;

use crate::{
    Settings,
    clock::{Clock, monotonic_now},
    cluster::membership::Membership,
    dispatch::Dispatcher,
    metrics::Metrics,
    routing::Router,
    wakeups::Wakeups,
};

/// Rows read per store call.
const PAGE_SIZE: usize = 1_000;
/// Time that a check waits for open transfers; if it runs out, the check is repeated later.
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(30);
/// A check is repeated no sooner than this multiple of its duration.
const MIN_PAUSE_FACTOR: u32 = 20;
const MAX_LOGGED_IDS: usize = 10;

/// Leases, lanes and assignments that an epoch owns in the store and that memory does not know.
#[derive(Default)]
struct Unknown {
    leases: BTreeSet<DeliveryId>,
    lanes: BTreeSet<LaneKey>,
    assignments: BTreeSet<WebhookId>,
}

impl Unknown {
    /// Returns the findings common to both checks.
    fn confirmed_by(&self, other: &Self) -> Self {
        Self {
            leases: self.leases.intersection(&other.leases).copied().collect(),
            lanes: self.lanes.intersection(&other.lanes).cloned().collect(),
            assignments: self.assignments.intersection(&other.assignments).copied().collect(),
        }
    }
}

/// Recovers what this node owns in the store and does not know in memory.
pub(crate) struct LeaseAuditor {
    pub(crate) claims: Arc<dyn Claim>,
    pub(crate) leases: Arc<dyn Leases>,
    pub(crate) clock: Clock,
    pub(crate) settings: Arc<Settings>,
    pub(crate) membership: Arc<Membership>,
    pub(crate) router: Arc<Router>,
    pub(crate) dispatcher: Arc<Dispatcher>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) wakeups: Arc<Wakeups>,
    pub(crate) stop: CancellationToken,
}

impl LeaseAuditor {
    /// Checks and recovers periodically until the engine stops.
    pub(crate) async fn run(self: Arc<Self>) {
        let interval = self.settings.lease_audit_interval;
        let (mut last, mut pause) = ((Epoch(0), Unknown::default()), interval);
        loop {
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.stop.cancelled() => return,
            }
            let started = monotonic_now();
            let epoch = self.membership.current_epoch().epoch;
            let found = match self.find_unknown(epoch).await {
                Ok(found) => found.unwrap_or_default(),
                Err(error) => {
                    tracing::debug!(%error, "lease audit failed; will retry");
                    Unknown::default()
                }
            };
            if last.0 == epoch {
                self.recover(epoch, found.confirmed_by(&last.1)).await;
            }
            last = (epoch, found);
            pause = interval.max(monotonic_now().saturating_sub(started) * MIN_PAUSE_FACTOR);
        }
    }

    /// Returns the entries that memory does not know; `None` if store and memory cannot be compared now.
    async fn find_unknown(&self, epoch: Epoch) -> Result<Option<Unknown>, StoreError> {
        let is_comparable = || {
            self.membership.current_epoch().epoch == epoch
                && !self.membership.current_epoch().is_ended()
                && !self.dispatcher.queues.is_draining()
        };
        if !is_comparable() {
            return Ok(None);
        }
        let (mut unknown, mut after, mut read) = (Unknown::default(), None, 0);
        while read < self.settings.max_deliveries {
            let owned = self.leases.owned_by(epoch, after, PAGE_SIZE).await?;
            read += owned.leases.len();
            let is_last = owned.leases.len() < PAGE_SIZE;
            after = owned.leases.last().copied();
            unknown
                .leases
                .extend(owned.leases.into_iter().filter(|id| !self.dispatcher.queues.tracks_lease(*id)));
            unknown.lanes.extend(owned.lanes);
            unknown.assignments.extend(owned.assignments);
            if is_last {
                break;
            }
        }
        if !self.dispatcher.lease_transfers.wait_for_open(TRANSFER_TIMEOUT).await || !is_comparable() {
            return Ok(None);
        }
        unknown.leases.retain(|id| !self.dispatcher.queues.tracks_lease(*id));
        unknown.lanes.retain(|key| !self.dispatcher.queues.tracks_lane(key));
        unknown.assignments.retain(|webhook_id| !self.dispatcher.assignments.is_assigned_here(*webhook_id));
        Ok(Some(unknown))
    }

    /// Releases unknown leases. Adds unknown lanes and assignments to memory, which releases them once they are idle.
    async fn recover(&self, epoch: Epoch, lost: Unknown) {
        let Unknown { leases, lanes, assignments } = lost;
        if leases.is_empty() && lanes.is_empty() && assignments.is_empty() {
            return;
        }
        let first: Vec<_> = leases.iter().take(MAX_LOGGED_IDS).map(ToString::to_string).collect();
        tracing::error!(
            epoch = epoch.0,
            leases = leases.len(),
            lanes = lanes.len(),
            assignments = assignments.len(),
            delivery_ids = first.join(" "),
            "recovering leases that this node owned and did not know"
        );
        self.metrics.recovered("assignment", assignments.len());
        assignments.iter().for_each(|webhook_id| self.dispatcher.assignments.assign(*webhook_id));
        self.metrics.recovered("lane", lanes.len());
        for key in lanes {
            let webhook = self.router.get_or_load(key.webhook_id).await.ok().flatten();
            match &webhook {
                Some(webhook) => self.dispatcher.resume_lane(webhook, &key.lane),
                // The webhook was deleted: no node needs to claim the lane exclusively.
                None => {
                    let released = self.claims.release_assignments(epoch, vec![key.webhook_id]).await;
                    released
                        .unwrap_or_else(|error| tracing::debug!(%error, "lane is still claimed; will retry"));
                }
            }
        }
        let (leases, now) = (Vec::from_iter(leases), self.clock.now());
        for part in leases.chunks(PAGE_SIZE) {
            let due = part.iter().map(|id| (*id, now)).collect();
            match self.leases.release(epoch, now, due).await {
                Ok(released) => self.metrics.recovered("lease", released),
                Err(error) => tracing::warn!(%error, "releasing unknown leases failed; will retry"),
            }
        }
        self.wakeups.claims.wake();
    }
}
