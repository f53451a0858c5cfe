//! Claims straight from the store: lanes with something due, as much as there is room for.

use std::sync::Arc;

use redrive_core::Time;
use redrive_store::{Claimed, LaneClaim, LaneRoom, StoreError};

use crate::{Inner, dispatch::Ready};

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
        if self.dispatch.is_draining() {
            return Ok(Round::Idle(None));
        }
        let now = self.clock.now();
        let due = self.store.due_lanes(now, LANES).await?;
        let mut rooms = self.dispatch.take_hungry();
        for webhook in due.lanes {
            if rooms.iter().map(|room| room.room).sum::<usize>() >= MAX_ROWS {
                break;
            }
            // Asking for a lane without room still counts: it is held from then on, and asks for itself.
            if rooms.iter().all(|room| room.webhook != webhook) {
                rooms.push(self.dispatch.reserve_lane(webhook));
            }
        }
        if rooms.is_empty() {
            return Ok(Round::Idle(due.next_wake));
        }
        let bytes = self.dispatch.reserve_bytes(MAX_BYTES);
        let claims = self.store.claim(self.epoch, now, rooms.clone(), bytes).await;
        let taken = match claims {
            Ok(claims) => {
                for (room, claim) in rooms.into_iter().zip(claims) {
                    self.take_in(room, claim).await;
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

    async fn take_in(self: &Arc<Self>, room: LaneRoom, claim: LaneClaim) {
        // A webhook that cannot be read now is looked up again at the gate.
        let hook = self.registry.find(&*self.store, claim.webhook).await.ok().flatten();
        let max_in_flight = hook.map_or(self.settings.webhook_max_in_flight, |hook| hook.max_in_flight);
        let deliveries = claim.deliveries.into_iter().map(|claimed| (ready(claimed), max_in_flight));
        let moves = self.dispatch.claimed(room, deliveries, claim.more);
        self.carry_out(moves);
    }
}

fn ready(claimed: Claimed) -> Ready {
    Ready {
        id: claimed.id,
        webhook: claimed.webhook,
        event: claimed.event,
        format: claimed.format,
        attempt: claimed.attempt_count + 1,
        created_at: claimed.created_at,
        due: claimed.due,
        rescues: claimed.rescues,
        deaths: claimed.deaths,
    }
}
