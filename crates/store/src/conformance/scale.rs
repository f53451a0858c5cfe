//! Parked work costs nothing: a claim touches what is ready, however much waits for later, behind something
//! that blocks its webhook, or behind another one of its order.

use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, Instant},
};

use redrive_core::{
    WebhookId,
    protection::breaker::{CircuitState, SavedCircuit},
};

use super::{Bench, END, FRESH, at, closed, order};
use crate::{Birth, LaneKey, LaneRoom, Published};

/// How many deliveries are parked. A million can be asked for; the default is quick.
const ROWS: &str = "REDRIVE_CONFORMANCE_ROWS";
const LANES: usize = 1000;

fn rows() -> usize {
    std::env::var(ROWS).ok().map_or(100_000, |rows| rows.parse().expect("a number of rows"))
}

/// Parks so many deliveries, taking turns with these lanes.
async fn park(bench: &Bench, lanes: &[(LaneKey, Birth)], rows: usize) {
    let mut left = rows;
    while left > 0 {
        // A few at a time, so that they share commits and memory stays small.
        let mut answers = Vec::new();
        for _ in 0..left.min(5000).div_ceil(lanes.len()) {
            let to = &lanes[..left.min(lanes.len())];
            left -= to.len();
            answers.push(bench.submit(bench.fan_out_to(bench.event(at(0)), to)));
        }
        for answer in answers {
            assert!(matches!(answer.await.unwrap(), Ok(Published::New { .. })));
        }
    }
}

/// Makes one delivery ready on each lane and claims them all; gives the time of the quickest claim.
async fn claim_ready(bench: &Bench, lanes: &[LaneKey]) -> Duration {
    let mut quickest = Duration::MAX;
    for _ in 0..20 {
        let to: Vec<_> = lanes.iter().map(|lane| (lane.clone(), Birth::Waiting(at(0)))).collect();
        bench.publish_new(bench.fan_out_to(bench.event(at(0)), &to)).await;
        quickest = quickest.min(timed_claim(bench, lanes).await);
    }
    quickest
}

#[expect(clippy::disallowed_methods, reason = "the time is shown to people; nothing is decided by it")]
async fn timed_claim(bench: &Bench, lanes: &[LaneKey]) -> Duration {
    let rooms = lanes.iter().map(|lane| LaneRoom::new(lane.clone(), 1000)).collect();
    let started = Instant::now();
    let due = bench.look(at(1)).await;
    let claims = bench.store().claim(bench.epoch, at(1), rooms, usize::MAX).await.unwrap();
    let took = started.elapsed();
    assert_eq!(
        BTreeSet::from_iter(due.lanes),
        BTreeSet::from_iter(lanes.iter().cloned()),
        "ready lanes alone"
    );
    for claim in claims {
        assert_eq!((claim.deliveries.len(), claim.more), (1, false), "ready deliveries alone");
    }
    took
}

/// Blocks a webhook until the end.
async fn block(bench: &Bench, webhook: WebhookId) {
    let state = CircuitState::Open;
    let circuit = SavedCircuit { state, generation: 1, until: Some(at(END)), ..closed() };
    bench.store().set_circuit(bench.tenant.clone(), webhook, circuit, None).await.unwrap();
}

pub async fn parked_deliveries_cost_a_claim_nothing(bench: &Arc<Bench>) {
    bench.leave_undrained();
    let lanes: Vec<_> = (0..LANES).map(|_| bench.lane_of(bench.webhook_id())).collect();
    // Half of the ready work is on lanes with much that is parked, half on lanes of its own.
    let own = (0..10).map(|_| bench.lane_of(bench.webhook_id()));
    let ready: Vec<_> = lanes[..10].iter().cloned().chain(own).collect();
    let alone = claim_ready(bench, &ready).await;
    let rows = rows();
    let later: Vec<_> = lanes.into_iter().map(|lane| (lane, Birth::Waiting(at(END)))).collect();
    park(bench, &later, rows).await;
    let due = bench.look(at(1)).await;
    assert_eq!((due.lanes, due.next_wake), (vec![], Some(at(END))));

    // Due as far as they go: all of one webhook that is blocked, and all behind the first of one order.
    let blocked = bench.webhook_id();
    block(bench, blocked).await;
    let parked = LaneKey { webhook: blocked, lane: FRESH };
    park(bench, &[(parked, Birth::Waiting(at(0)))], rows / 10).await;
    let behind = LaneKey { webhook: bench.webhook_id(), lane: order("") };
    park(bench, &[(behind.clone(), Birth::Waiting(at(END)))], 1).await;
    park(bench, &[(behind, Birth::Waiting(at(0)))], rows / 10).await;

    let among = claim_ready(bench, &ready).await;
    let parked = (rows + 2 * (rows / 10) + 1) as u64;
    assert_eq!(bench.store().vitals().await.unwrap().waiting, [0, parked, 0], "what is parked stays parked");
    eprintln!("claiming 20 ready deliveries took {alone:?} alone and {among:?} among {parked} parked ones");
}
