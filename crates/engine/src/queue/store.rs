//! Claims straight from the store: lanes with something due, as much as there is room for.

use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use redrive_core::{
    TenantId, Time, WebhookId, cluster::ticket::shown_due, delivery::lane::Lane,
    security::egress_rules::HostKey,
};
use redrive_store::{Claimed, LaneClaim, LaneKey, LaneRoom, StoreError};

use crate::{
    Inner,
    dispatch::{Ready, Whom},
    membership::Term,
    registry::Hook,
};

/// Lanes looked at in one go.
const LANES: usize = 64;
/// How many lanes that are left to others are looked past at the most.
const DECLINED: usize = 2_000;
/// Deliveries and payload bytes taken in one transaction, roughly.
const MAX_ROWS: usize = 4_000;
const MAX_BYTES: usize = 8 << 20;

/// What a look into the store came to.
pub(crate) enum Round {
    /// Something was claimed: look again at once.
    Busy,
    /// Nothing is due (or nothing fits) before this time.
    Idle(Option<Time>),
}

impl Inner {
    /// How long a webhook has a first attempt wait.
    pub(super) fn first_delay(&self, webhook: WebhookId) -> Duration {
        self.registry.hook(webhook).map_or(Duration::ZERO, |hook| hook.policy.first_delay())
    }

    /// Claims what is due from lanes that are behind and have room, and from lanes nobody holds.
    pub(crate) async fn claim_round(self: &Arc<Self>) -> Result<Round, StoreError> {
        let term = self.fleet.term();
        self.leave_homes(&term).await?;
        if self.dispatch.is_draining() {
            return Ok(Round::Idle(None));
        }
        let now = self.clock.now();
        if self.fleet.is_shared() {
            // What was held back until now is asked for at once: nobody holds its lanes.
            let moves = self.dispatch.wake_up(now);
            self.carry_out(moves);
        }
        // Lanes that this node left to others stay on the list: it looks past as many as those were.
        let most = LANES + self.fleet.declined.load(Relaxed).min(DECLINED);
        let due = self.store.due_lanes(term.epoch, self.settings.pools.clone(), now, most).await?;
        let more_due = due.lanes.len() >= most;
        let mut declined = 0;
        let mut rooms = self.served(self.dispatch.take_hungry());
        for key in due.lanes {
            if rooms.iter().map(|room| room.room).sum::<usize>() >= MAX_ROWS {
                break;
            }
            let hook = match self.registry.find(&*self.store, key.webhook).await {
                Ok(hook) => hook,
                // One webhook that cannot be read must not keep all others waiting.
                Err(StoreError::Refused(why)) => {
                    tracing::error!(webhook_id = %key.webhook, error = why, "a webhook cannot be read, and is sent nothing");
                    continue;
                }
                Err(error) => {
                    self.dispatch.claim_failed(&rooms);
                    return Err(error);
                }
            };
            if hook.as_ref().is_some_and(|hook| !hook.tenant.is_served()) {
                declined += 1;
                continue;
            }
            if rooms.iter().any(|room| room.key == key) {
                continue;
            }
            let room = self.reserve_lane(hook.as_deref(), key);
            if room.room == 0 && self.fleet.is_shared() {
                // Others may have room.
                self.dispatch.decline(&room.key);
                declined += 1;
            } else {
                // Asking for a lane without room still counts: it is held from then on, and asks for itself.
                rooms.push(room);
            }
        }
        let before = self.fleet.declined.swap(declined, Relaxed);
        if rooms.is_empty() {
            // All that it saw was for others: there may be more behind them.
            let more_behind = declined >= most && before < declined;
            return Ok(if more_behind { Round::Busy } else { Round::Idle(due.next_wake) });
        }
        for room in &mut rooms {
            room.alone = self.claims_alone(&room.key);
        }
        let bytes = self.dispatch.reserve_bytes(MAX_BYTES);
        let _transfer = self.transfers.open();
        let claims = self.store.claim(term.epoch, now, rooms.clone(), bytes).await;
        let taken = match claims {
            Ok(claims) => {
                // A lane that gives nothing and is due all the same is just being filled, or emptied by another
                // node: whoever does so rings.
                let gave = claims.iter().any(|claim| claim.more || !claim.deliveries.is_empty());
                for (room, claim) in rooms.iter().zip(claims) {
                    self.take_in(&term, room, claim);
                }
                Ok(if gave || more_due { Round::Busy } else { Round::Idle(due.next_wake) })
            }
            Err(error) => {
                self.dispatch.claim_failed(&rooms);
                Err(error)
            }
        };
        self.dispatch.release_bytes(bytes);
        taken
    }

    /// Without the lanes whose tenants were given to other nodes since.
    fn served(self: &Arc<Self>, rooms: Vec<LaneRoom>) -> Vec<LaneRoom> {
        let is_served =
            |room: &LaneRoom| self.registry.hook(room.key.webhook).is_none_or(|hook| hook.tenant.is_served());
        let (served, others): (Vec<_>, Vec<_>) = rooms.into_iter().partition(is_served);
        for room in &others {
            let moves = self.dispatch.claimed(room, Vec::new(), false);
            self.carry_out(moves);
        }
        if !others.is_empty() {
            // Whoever does serve them could not see lanes that are held here.
            let (inner, term) = (self.clone(), self.fleet.term());
            let webhooks = others.into_iter().map(|room| room.key.webhook).collect();
            self.runtime.spawn(async move {
                if let Err(error) = inner.store.leave(term.epoch, webhooks).await {
                    tracing::warn!(%error, "lanes that others serve are still held here");
                }
            });
        }
        served
    }

    fn reserve_lane(self: &Arc<Self>, hook: Option<&Hook>, key: LaneKey) -> LaneRoom {
        // A webhook that is gone still has its deliveries ended one by one.
        let nobody = TenantId::default();
        let whom = match hook {
            Some(hook) => {
                self.foresee(hook);
                self.whom(hook)
            }
            None => Whom {
                webhook: key.webhook,
                tenant: &nobody,
                max_in_flight: self.settings.webhook_max_in_flight as usize,
                tenant_max_in_flight: usize::MAX,
                host: HostKey::default(),
            },
        };
        self.dispatch.reserve_lane(whom, key.lane)
    }

    fn take_in(self: &Arc<Self>, term: &Arc<Term>, room: &LaneRoom, claim: LaneClaim) {
        if room.alone && !claim.deliveries.is_empty() {
            self.fleet.homes.moved_in(room.key.webhook);
            if let Some(hook) = self.registry.hook(room.key.webhook) {
                self.move_on(&hook);
            }
        }
        let delay = self.first_delay(room.key.webhook);
        let ready = |claimed| ready(claimed, term, &room.key.lane, delay);
        let deliveries = claim.deliveries.into_iter().map(ready).collect();
        let moves = self.dispatch.claimed(room, deliveries, claim.more);
        self.carry_out(moves);
    }
}

/// A delivery that was leased. `delay` is how long its webhook has a first attempt wait.
pub(super) fn ready(claimed: Claimed, term: &Arc<Term>, lane: &Lane, delay: Duration) -> Ready {
    Ready {
        id: claimed.id,
        term: term.clone(),
        webhook: claimed.webhook,
        lane: lane.clone(),
        event: claimed.event,
        format: claimed.format,
        attempt: claimed.attempt_count + 1,
        created_at: claimed.created_at,
        // A ticket that was lost makes it late, and not due later.
        due: shown_due(claimed.created_at, claimed.due, claimed.attempt_count, delay),
        rescues: claimed.rescues,
        deaths: claimed.deaths,
        began: None,
    }
}
