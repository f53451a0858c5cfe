//! Claims straight from the store: lanes with something due, as much as there is room for.

use std::sync::Arc;

use redrive_core::{TenantId, Time, lane::Lane};
use redrive_store::{Claimed, LaneClaim, LaneKey, LaneRoom, StoreError};

use crate::{
    Inner,
    dispatch::{Ready, Whom},
    fleet::Term,
    registry::Hook,
};

/// Lanes looked at in one go.
const LANES: usize = 64;
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
        let due = self.store.due_lanes(term.epoch, self.settings.pools.clone(), now, LANES).await?;
        let mut rooms = self.served(self.dispatch.take_hungry());
        for key in due.lanes {
            if rooms.iter().map(|room| room.room).sum::<usize>() >= MAX_ROWS {
                break;
            }
            let hook = self.registry.find(&*self.store, key.webhook).await?;
            if hook.as_ref().is_some_and(|hook| !hook.tenant.is_served()) {
                continue;
            }
            if rooms.iter().any(|room| room.key == key) {
                continue;
            }
            let room = self.reserve_lane(hook.as_deref(), key);
            if room.room == 0 && self.fleet.is_shared() {
                // Others may have room.
                self.dispatch.decline(&room.key);
            } else {
                // Asking for a lane without room still counts: it is held from then on, and asks for itself.
                rooms.push(room);
            }
        }
        if rooms.is_empty() {
            return Ok(Round::Idle(due.next_wake));
        }
        for room in &mut rooms {
            room.alone = self.claims_alone(&room.key);
        }
        let bytes = self.dispatch.reserve_bytes(MAX_BYTES);
        let claims = self.store.claim(term.epoch, now, rooms.clone(), bytes).await;
        let taken = match claims {
            Ok(claims) => {
                for (room, claim) in rooms.iter().zip(claims) {
                    self.take_in(&term, room, claim);
                }
                Ok(Round::Busy)
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
        for room in others {
            let moves = self.dispatch.claimed(&room, Vec::new(), false);
            self.carry_out(moves);
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
        let ready = |claimed| ready(claimed, term, &room.key.lane);
        let deliveries = claim.deliveries.into_iter().map(ready).collect();
        let moves = self.dispatch.claimed(room, deliveries, claim.more);
        self.carry_out(moves);
    }
}

fn ready(claimed: Claimed, term: &Arc<Term>, lane: &Lane) -> Ready {
    Ready {
        id: claimed.id,
        term: term.clone(),
        webhook: claimed.webhook,
        lane: lane.clone(),
        event: claimed.event,
        format: claimed.format,
        attempt: claimed.attempt_count + 1,
        created_at: claimed.created_at,
        due: claimed.due,
        rescues: claimed.rescues,
        deaths: claimed.deaths,
        began: None,
    }
}
