//! Housekeeping and health.

use std::sync::Arc;

use redrive_core::DeadReason;

use super::{Bench, at};
use crate::{Birth, Next};

pub async fn a_store_that_works_answers(bench: &Arc<Bench>) {
    assert_eq!(bench.store().ping().await, Ok(()));
    assert_eq!(bench.publish_new(bench.new_event(at(0), Birth::Leased)).await, 1, "asking changes nothing");
}

pub async fn vitals_tell_what_waits_and_what_is_dead(bench: &Arc<Bench>) {
    let vitals = || async { bench.store().vitals().await.unwrap() };
    let before = vitals().await;
    assert_eq!((before.waiting, before.dead), (0, 0));
    bench.waiting(at(0), at(0)).await;
    bench.waiting(at(0), at(9000)).await;
    let id = bench.leased(at(0)).await;
    assert_eq!(vitals().await.waiting, 2);
    bench.ends(id, Next::Dead { reason: DeadReason::Expired }, at(1)).await;
    bench.claim_one(at(0)).await;
    let after = vitals().await;
    assert_eq!((after.waiting, after.dead), (1, 1));
    assert!(after.commits > before.commits);
    bench.store().retry(bench.tenant.clone(), id, bench.delivery_id(at(0)), at(2)).await.unwrap();
    assert_eq!((vitals().await.waiting, vitals().await.dead), (2, 0));
}
