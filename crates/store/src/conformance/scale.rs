//! Parked work costs nothing: a claim touches what is ready, however much waits for later.

use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, Instant},
};

use redrive_core::WebhookId;

use super::{Bench, END, at};
use crate::{Birth, LaneRoom, Published};

/// How many deliveries are parked. A million can be asked for; the default is quick.
const ROWS: &str = "REDRIVE_CONFORMANCE_ROWS";
const LANES: usize = 1000;

fn rows() -> usize {
    std::env::var(ROWS).ok().map_or(100_000, |rows| rows.parse().expect("a number of rows"))
}

/// Parks deliveries for later, spread over all lanes.
async fn park(bench: &Bench, lanes: &[WebhookId], rows: usize) {
    let mut left = rows;
    while left > 0 {
        // A few at a time, so that they share commits and memory stays small.
        let mut answers = Vec::new();
        for _ in 0..5 {
            let to: Vec<_> = lanes.iter().take(left).map(|lane| (*lane, Birth::Waiting(at(END)))).collect();
            left -= to.len();
            answers.push(bench.submit(bench.fan_out(bench.event(at(0)), &to)));
        }
        for answer in answers {
            assert!(matches!(answer.await.unwrap(), Ok(Published::New { .. })));
        }
    }
}

/// Makes one delivery ready on each lane and claims them all; gives the time of the quickest claim.
async fn claim_ready(bench: &Bench, lanes: &[WebhookId]) -> Duration {
    let mut quickest = Duration::MAX;
    for _ in 0..20 {
        let to: Vec<_> = lanes.iter().map(|lane| (*lane, Birth::Waiting(at(0)))).collect();
        bench.publish_new(bench.fan_out(bench.event(at(0)), &to)).await;
        quickest = quickest.min(timed_claim(bench, lanes).await);
    }
    quickest
}

#[expect(clippy::disallowed_methods, reason = "the time is shown to people; nothing is decided by it")]
async fn timed_claim(bench: &Bench, lanes: &[WebhookId]) -> Duration {
    let rooms = lanes.iter().map(|lane| LaneRoom { webhook: *lane, room: 1000 }).collect();
    let started = Instant::now();
    let due = bench.store().due_lanes(at(1), 1000).await.unwrap();
    let claims = bench.store().claim(bench.epoch, at(1), rooms, usize::MAX).await.unwrap();
    let took = started.elapsed();
    assert_eq!(
        BTreeSet::from_iter(due.lanes),
        BTreeSet::from_iter(lanes.iter().copied()),
        "ready lanes alone"
    );
    for claim in claims {
        assert_eq!((claim.deliveries.len(), claim.more), (1, false), "ready deliveries alone");
    }
    took
}

pub async fn parked_deliveries_cost_a_claim_nothing(bench: &Arc<Bench>) {
    bench.leave_undrained();
    let lanes: Vec<_> = (0..LANES).map(|_| bench.lane()).collect();
    // Half of the ready work is on lanes with much that is parked, half on lanes of its own.
    let ready: Vec<_> = lanes[..10].iter().copied().chain((0..10).map(|_| bench.lane())).collect();
    let alone = claim_ready(bench, &ready).await;
    let rows = rows();
    park(bench, &lanes, rows).await;
    let due = bench.store().due_lanes(at(1), 1000).await.unwrap();
    assert_eq!((due.lanes, due.next_wake), (vec![], Some(at(END))));
    let among = claim_ready(bench, &ready).await;
    assert_eq!(bench.store().vitals().await.unwrap().waiting, rows as u64, "what is parked stays parked");
    eprintln!("claiming 20 ready deliveries took {alone:?} alone and {among:?} among {rows} parked ones");
}
