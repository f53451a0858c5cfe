//! What nodes remember about their clock, and due times after time went back.

use std::{sync::Arc, time::Duration};

use redrive_core::{Time, cluster::clock_discipline::SetBack};

use super::{Bench, RETRY, at, ids, order};
use crate::{Birth, ClockState, Dropped, Old};

const DAY: i64 = 24 * 3_600_000;

/// Time was wrong by six days, from this time of the case on.
const WRONG: i64 = 6 * DAY;
const SET_BACK_MS: i64 = 6 * DAY;

async fn set_due_back(bench: &Bench, now: Time, limit: usize) {
    let set_back = SetBack { from: at(WRONG), by: Duration::from_millis(SET_BACK_MS.unsigned_abs()) };
    let mut after = None;
    loop {
        after = bench.store().set_due_back(set_back, now, after, limit).await.unwrap();
        if after.is_none() {
            return;
        }
    }
}

pub async fn clock_state_survives_reopening(bench: &mut Arc<Bench>) {
    let state = |confirmed_at, confirmations| ClockState { confirmed_at, confirmations };
    assert_eq!(bench.store().clock_state().await.unwrap(), ClockState::default());
    bench.store().store_confirmed_time(at(5)).await.unwrap();
    assert_eq!(bench.store().clock_state().await.unwrap(), state(Some(at(5)), 0));
    assert_eq!(bench.store().confirm_clock().await.unwrap(), 1);
    assert_eq!(bench.store().confirm_clock().await.unwrap(), 2);
    // A confirmed time may be earlier than the one before: an operator confirmed a clock that was set back.
    bench.store().store_confirmed_time(at(3)).await.unwrap();
    Bench::reopen(bench).await;
    assert_eq!(bench.store().clock_state().await.unwrap(), state(Some(at(3)), 2));
}

pub async fn due_times_of_a_wrong_clock_are_moved(bench: &Arc<Bench>) {
    let before = bench.waiting(at(0), at(1_000)).await;
    let wrong = bench.waiting(at(WRONG), at(WRONG + 500)).await;
    let retry = bench.waiting_in(&RETRY, at(0), at(WRONG + 2_000)).await;
    let ordered = bench.waiting_in(&order("a"), at(0), at(WRONG + 700)).await;
    let second = bench.waiting_in(&order("a"), at(0), at(WRONG + 300)).await;
    set_due_back(bench, at(100), 1).await;
    let claimed = |time| async move { ids(&bench.claim(at(time)).await) };
    assert_eq!(claimed(499).await, []);
    assert_eq!(claimed(500).await, [wrong], "the earliest of a lane comes first, whatever it was before");
    assert_eq!(claimed(699).await, [], "an order waits for its first");
    assert_eq!(claimed(700).await, [ordered, second]);
    assert_eq!(claimed(999).await, []);
    assert_eq!(claimed(1_000).await, [before], "planned by the right time");
    assert_eq!(claimed(1_999).await, []);
    assert_eq!(claimed(2_000).await, [retry]);
}

pub async fn moved_due_times_are_looked_at(bench: &Arc<Bench>) {
    let elsewhere = bench.new_webhook().await.id;
    bench.waiting(at(WRONG), at(WRONG)).await;
    bench.publish_new(bench.fan_out(bench.event(at(WRONG)), &[(elsewhere, Birth::Waiting(at(WRONG)))])).await;
    let due = || async { bench.due_lanes(at(10)).await.len() };
    assert_eq!(due().await, 0);
    set_due_back(bench, at(10), 10).await;
    assert_eq!(due().await, 2);
}

pub async fn pending_deliveries_keep_their_month_whatever_the_time(bench: &Arc<Bench>) {
    let waiting = bench.waiting(at(0), at(9_000)).await;
    let leased = bench.leased(at(1)).await;
    for _ in 0..3 {
        let dropped = bench.store().drop_month(at(4000 * DAY), false, 100).await.unwrap();
        assert!(dropped == Dropped::None || dropped == Dropped::Some { months: 0 }, "{dropped:?}");
        let old = Old {
            tenant: bench.tenant.clone(),
            before: at(4000 * DAY),
            after: None,
            rows: 100,
            archive: false,
        };
        assert_eq!(bench.store().prune_events(old).await.unwrap().left.events, 0);
    }
    for id in [waiting, leased] {
        assert!(bench.store().delivery(bench.tenant.clone(), id).await.unwrap().is_some());
    }
    // The end of every case sends what is pending, with its payload.
}
