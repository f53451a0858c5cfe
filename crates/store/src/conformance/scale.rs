//! Cost of parked deliveries: a claim reads only what is ready, however many deliveries are due later, blocked by
//! their webhook, or behind another one of their order.

use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, Instant},
};

use redrive_core::{
    WebhookId,
    protection::breaker::{CircuitState, SavedCircuit},
};

use super::{END, FRESH, Harness, at, closed, order};
use crate::{InitialState, LaneCapacity, LaneKey, PublishResult};

/// Environment variable with the number of parked deliveries; the default is small enough for a quick run.
const ROWS: &str = "REDRIVE_CONFORMANCE_ROWS";
const LANES: usize = 1000;

fn rows() -> usize {
    std::env::var(ROWS).ok().map_or(100_000, |rows| rows.parse().expect("a number of rows"))
}

/// Parks `rows` deliveries, distributed over these lanes.
async fn park(harness: &Harness, lanes: &[(LaneKey, InitialState)], rows: usize) {
    let mut left = rows;
    while left > 0 {
        // A few thousand at a time, so that they share commits and memory use stays small.
        let mut replies = Vec::new();
        for _ in 0..left.min(5000).div_ceil(lanes.len()) {
            let to = &lanes[..left.min(lanes.len())];
            left -= to.len();
            replies.push(harness.submit(harness.fan_out_to(harness.event(at(0)), to)));
        }
        for response in replies {
            assert!(matches!(response.await.unwrap(), Ok(PublishResult::New { .. })));
        }
    }
}

/// Creates one ready delivery in each lane and claims them all; returns the duration of the fastest claim.
async fn claim_ready(harness: &Harness, lanes: &[LaneKey]) -> Duration {
    let mut quickest = Duration::MAX;
    for _ in 0..20 {
        let to: Vec<_> = lanes.iter().map(|lane| (lane.clone(), InitialState::Waiting(at(0)))).collect();
        harness.publish_new(harness.fan_out_to(harness.event(at(0)), &to)).await;
        quickest = quickest.min(timed_claim(harness, lanes).await);
    }
    quickest
}

#[expect(clippy::disallowed_methods, reason = "the time is only printed in a failure message")]
async fn timed_claim(harness: &Harness, lanes: &[LaneKey]) -> Duration {
    let capacities = lanes.iter().map(|lane| LaneCapacity::new(lane.clone(), 1000)).collect();
    let started = Instant::now();
    let due = harness.due_lanes_for_default_pool(at(1)).await;
    let claims = harness.store().claim(harness.epoch, at(1), capacities, usize::MAX).await.unwrap();
    let took = started.elapsed();
    assert_eq!(
        BTreeSet::from_iter(due.lanes),
        BTreeSet::from_iter(lanes.iter().cloned()),
        "ready lanes alone"
    );
    for claim in claims {
        assert_eq!((claim.deliveries.len(), claim.has_more_due), (1, false), "ready deliveries alone");
    }
    took
}

/// Blocks a webhook until `END` by an open circuit.
async fn block(harness: &Harness, webhook_id: WebhookId) {
    let state = CircuitState::Open;
    let circuit = SavedCircuit { state, generation: 1, until: Some(at(END)), ..closed() };
    harness.store().set_circuit(harness.tenant_id.clone(), webhook_id, circuit, None).await.unwrap();
}

pub async fn claim_cost_does_not_depend_on_parked_deliveries(harness: &Arc<Harness>) {
    harness.leave_undrained();
    let lanes: Vec<_> = (0..LANES).map(|_| harness.lane_of(harness.webhook_id())).collect();
    // Half of the ready deliveries are in lanes with many parked ones, half in lanes of their own.
    let own = (0..10).map(|_| harness.lane_of(harness.webhook_id()));
    let ready: Vec<_> = lanes[..10].iter().cloned().chain(own).collect();
    let alone = claim_ready(harness, &ready).await;
    let rows = rows();
    let later: Vec<_> = lanes.into_iter().map(|lane| (lane, InitialState::Waiting(at(END)))).collect();
    park(harness, &later, rows).await;
    let due = harness.due_lanes_for_default_pool(at(1)).await;
    assert_eq!((due.lanes, due.next_wake), (vec![], Some(at(END))));

    // These are due themselves: all deliveries of a blocked webhook, and all behind the first of one order.
    let blocked = harness.webhook_id();
    block(harness, blocked).await;
    let parked = LaneKey { webhook_id: blocked, lane: FRESH };
    park(harness, &[(parked, InitialState::Waiting(at(0)))], rows / 10).await;
    let behind = LaneKey { webhook_id: harness.webhook_id(), lane: order("") };
    park(harness, &[(behind.clone(), InitialState::Waiting(at(END)))], 1).await;
    park(harness, &[(behind, InitialState::Waiting(at(0)))], rows / 10).await;

    let among = claim_ready(harness, &ready).await;
    let parked = (rows + 2 * (rows / 10) + 1) as u64;
    assert_eq!(
        harness.store().stats().await.unwrap().waiting,
        [0, parked, 0],
        "a parked delivery is not claimed"
    );
    eprintln!("claiming 20 ready deliveries took {alone:?} alone and {among:?} among {parked} parked ones");
}
