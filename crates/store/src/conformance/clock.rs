//! Persisted clock state, and due times after the clock was set back.

use std::{sync::Arc, time::Duration};

use redrive_core::{Time, cluster::clock_discipline::ClockStep};

use super::{Harness, RETRY, at, ids, order};
use crate::{ClockState, InitialState, PartitionDrop, PruneRequest};

const DAY: i64 = 24 * 3_600_000;

/// From this time of the case on, the clock was six days ahead.
const WRONG: i64 = 6 * DAY;
const CLOCK_STEP_MS: i64 = 6 * DAY;

async fn adjust_due_for_clock_step(harness: &Harness, now: Time, limit: usize) {
    let clock_step = ClockStep { from: at(WRONG), by: Duration::from_millis(CLOCK_STEP_MS.unsigned_abs()) };
    let mut after = None;
    loop {
        after = harness.store().adjust_due_for_clock_step(clock_step, now, after, limit).await.unwrap();
        if after.is_none() {
            return;
        }
    }
}

pub async fn clock_state_survives_reopening(harness: &mut Arc<Harness>) {
    let state = |confirmed_at, confirmations| ClockState { confirmed_at, confirmations };
    assert_eq!(harness.store().clock_state().await.unwrap(), ClockState::default());
    harness.store().store_confirmed_time(at(5)).await.unwrap();
    assert_eq!(harness.store().clock_state().await.unwrap(), state(Some(at(5)), 0));
    assert_eq!(harness.store().confirm_clock().await.unwrap(), 1);
    assert_eq!(harness.store().confirm_clock().await.unwrap(), 2);
    // A confirmed time may be earlier than the previous one: an operator confirmed a clock that was set back.
    harness.store().store_confirmed_time(at(3)).await.unwrap();
    Harness::reopen(harness).await;
    assert_eq!(harness.store().clock_state().await.unwrap(), state(Some(at(3)), 2));
}

pub async fn due_times_set_by_a_wrong_clock_are_moved(harness: &Arc<Harness>) {
    let before = harness.waiting(at(0), at(1_000)).await;
    let wrong = harness.waiting(at(WRONG), at(WRONG + 500)).await;
    let retry = harness.waiting_in(&RETRY, at(0), at(WRONG + 2_000)).await;
    let ordered = harness.waiting_in(&order("a"), at(0), at(WRONG + 700)).await;
    let second = harness.waiting_in(&order("a"), at(0), at(WRONG + 300)).await;
    adjust_due_for_clock_step(harness, at(100), 1).await;
    let claimed = |time| async move { ids(&harness.claim(at(time)).await) };
    assert_eq!(claimed(499).await, []);
    assert_eq!(claimed(500).await, [wrong], "the corrected due time decides the order in a lane");
    assert_eq!(claimed(699).await, [], "an ordered lane waits for its first delivery");
    assert_eq!(claimed(700).await, [ordered, second]);
    assert_eq!(claimed(999).await, []);
    assert_eq!(claimed(1_000).await, [before], "a due time set by the correct clock is unchanged");
    assert_eq!(claimed(1_999).await, []);
    assert_eq!(claimed(2_000).await, [retry]);
}

pub async fn moved_due_times_wake_their_lanes(harness: &Arc<Harness>) {
    let other_tenants = harness.new_webhook().await.id;
    harness.waiting(at(WRONG), at(WRONG)).await;
    harness
        .publish_new(
            harness.fan_out(harness.event(at(WRONG)), &[(other_tenants, InitialState::Waiting(at(WRONG)))]),
        )
        .await;
    let due = || async { harness.due_lanes(at(10)).await.len() };
    assert_eq!(due().await, 0);
    adjust_due_for_clock_step(harness, at(10), 10).await;
    assert_eq!(due().await, 2);
}

pub async fn pending_deliveries_keep_their_partition_at_any_time(harness: &Arc<Harness>) {
    let waiting = harness.waiting(at(0), at(9_000)).await;
    let leased = harness.leased(at(1)).await;
    for _ in 0..3 {
        let dropped = harness.store().drop_oldest_partition(at(4000 * DAY), false, 100).await.unwrap();
        assert!(
            dropped == PartitionDrop::None || dropped == PartitionDrop::Dropped { months: 0 },
            "{dropped:?}"
        );
        let request = PruneRequest {
            tenant_id: harness.tenant_id.clone(),
            before: at(4000 * DAY),
            after: None,
            rows: 100,
            archive: false,
        };
        assert_eq!(harness.store().prune_events(request).await.unwrap().left.events, 0);
    }
    for id in [waiting, leased] {
        assert!(harness.store().delivery(harness.tenant_id.clone(), id).await.unwrap().is_some());
    }
    // `drain` sends the pending deliveries at the end of the case, so their payloads must still exist.
}
