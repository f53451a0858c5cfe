//! Rescue of dead nodes' leases: complete, with correct counts, and never returned to the dead node.

use redrive_core::delivery::outcome::Outcome;
use std::sync::Arc;

use redrive_core::DeliveryStatus;

use super::{END, Harness, at};
use crate::{BatchProgress, CancelResult, Epoch, OutcomeRecord, RecordResult};

/// Leases the only due delivery to a new node that dies, after it started to send if `sending`.
async fn claim_and_die(harness: &Harness, sending: bool) {
    let epoch = harness.new_epoch().await;
    let claimed = harness.claim_as(epoch, at(100)).await;
    assert_eq!(claimed.len(), 1);
    if sending {
        assert!(harness.store().mark_sending(epoch, claimed[0].id).await.unwrap());
    }
    assert_eq!(harness.rescue(epoch, at(100)).await, 1);
}

pub async fn rescued_deliveries_are_due_immediately(harness: &Arc<Harness>) {
    let (a, b) = (harness.leased(at(0)).await, harness.leased(at(0)).await);
    assert_eq!(harness.rescue(harness.epoch, at(60)).await, 2);
    assert_eq!(harness.due_lanes(at(59)).await, []);
    assert_eq!(harness.due_lanes(at(60)).await, [harness.lane()]);
    let epoch = harness.new_epoch().await;
    let claim = harness.claim_lane_as(epoch, harness.lane(), at(60), 10).await;
    let rescued: Vec<_> =
        claim.deliveries.iter().map(|one| (one.id, one.abnormal_releases, one.due)).collect();
    assert_eq!(rescued, [(a, 1, at(60)), (b, 1, at(60))]);
}

pub async fn sender_deaths_are_counted_only_while_sending(harness: &Arc<Harness>) {
    harness.waiting(at(0), at(0)).await;
    claim_and_die(harness, false).await;
    claim_and_die(harness, true).await;
    claim_and_die(harness, false).await;
    claim_and_die(harness, true).await;
    let claimed = harness.claim_one(at(100)).await;
    assert_eq!((claimed.abnormal_releases, claimed.crash_count), (4, 2));
    // Releasing a delivery keeps its counts and clears its sending mark.
    assert!(harness.store().mark_sending(harness.epoch, claimed.id).await.unwrap());
    harness.store().release(harness.epoch, at(100), vec![(claimed.id, at(100))]).await.unwrap();
    claim_and_die(harness, false).await;
    let claimed = harness.claim_one(at(100)).await;
    assert_eq!((claimed.abnormal_releases, claimed.crash_count), (5, 2));
}

pub async fn panicked_deliveries_count_as_sender_deaths(harness: &Arc<Harness>) {
    harness.waiting(at(0), at(0)).await;
    for deaths in 0..3 {
        let (now, due) = (at(10 * i64::from(deaths)), at(10 * i64::from(deaths) + 10));
        let claimed = harness.claim_one(now).await;
        assert_eq!((claimed.abnormal_releases, claimed.crash_count), (deaths, deaths));
        let other = harness.new_epoch().await;
        let released = harness.store().release_crashed(other, now, vec![(claimed.id, due)]).await.unwrap();
        assert_eq!(released, 0, "another epoch has no lease of it");
        let twice = vec![(claimed.id, due), (claimed.id, due)];
        assert_eq!(harness.store().release_crashed(harness.epoch, now, twice).await.unwrap(), 1);
        assert_eq!(harness.due_lanes(now).await, []);
        assert_eq!(harness.due_lanes(due).await, [harness.lane()]);
    }
    let claimed = harness.claim_one(at(30)).await;
    assert_eq!((claimed.abnormal_releases, claimed.crash_count), (3, 3));
}

pub async fn attempt_clears_rescue_and_death_counts(harness: &Arc<Harness>) {
    let id = harness.waiting(at(0), at(0)).await;
    claim_and_die(harness, true).await;
    harness.claim_one(at(100)).await;
    harness.ends(id, Outcome::Retry { at: at(200) }, at(150)).await;
    let claimed = harness.claim_one(at(200)).await;
    assert_eq!((claimed.abnormal_releases, claimed.crash_count), (0, 0));
}

pub async fn rescue_works_in_bounded_steps(harness: &Arc<Harness>) {
    for n in 0..10 {
        harness.leased(at(n)).await;
    }
    let rescuer = harness.new_epoch().await;
    let mut moved_count = Vec::new();
    loop {
        let step = harness.store().rescue(harness.epoch, at(50), 3).await.unwrap();
        assert!(step.changed <= 3);
        moved_count.push(step.changed);
        if step.finished {
            break;
        }
        assert_eq!(
            harness.store().other_epochs(rescuer).await.unwrap(),
            [harness.epoch],
            "the rescue is not finished"
        );
    }
    assert_eq!(moved_count.iter().sum::<usize>(), 10);
    assert_eq!(harness.store().other_epochs(rescuer).await.unwrap(), []);
    assert_eq!(harness.store().stats().await.unwrap().waiting, [0, 10, 0]);
}

pub async fn rescue_ends_cancelled_deliveries(harness: &Arc<Harness>) {
    let (off, on) = (harness.leased(at(0)).await, harness.leased(at(0)).await);
    let request =
        harness.store().cancel(harness.tenant_id.clone(), off, "enough".into(), at(1)).await.unwrap();
    assert_eq!(request, CancelResult::Requested);
    assert_eq!(harness.rescue(harness.epoch, at(60)).await, 2);
    let ended = harness.delivery(off).await;
    assert_eq!((ended.status, ended.ended_at), (DeliveryStatus::Cancelled, Some(at(60))));
    assert_eq!((ended.cancel_reason.as_deref(), ended.due), (Some("enough"), None));
    assert_eq!(harness.delivery(on).await.due, Some(at(60)));
}

pub async fn rescue_releases_held_lanes(harness: &Arc<Harness>) {
    for n in 0..5 {
        harness.waiting(at(n), at(n)).await;
    }
    assert!(harness.claim_lane(harness.lane(), at(10), 2).await.has_more_due);
    assert_eq!(harness.due_lanes(at(END)).await, []);
    assert_eq!(harness.rescue(harness.epoch, at(20)).await, 2);
    assert_eq!(harness.due_lanes(at(10)).await, [harness.lane()]);
    let epoch = harness.new_epoch().await;
    let claim = harness.claim_lane_as(epoch, harness.lane(), at(20), 10).await;
    assert_eq!((claim.deliveries.len(), claim.has_more_due), (5, false));
}

pub async fn other_epochs_lists_live_nodes_and_unrescued_epochs(harness: &Arc<Harness>) {
    let others = |than| async move {
        let mut others = harness.store().other_epochs(than).await.unwrap();
        others.sort_unstable();
        others
    };
    assert_eq!(others(harness.epoch).await, []);
    let (a, b) = (harness.new_epoch().await, harness.new_epoch().await);
    assert_eq!(others(harness.epoch).await, [a, b]);
    assert_eq!(others(a).await, [harness.epoch, b]);
    harness.leased(at(0)).await;
    harness.leased(at(0)).await;
    assert!(!harness.store().rescue(harness.epoch, at(1), 1).await.unwrap().finished);
    assert_eq!(others(a).await, [harness.epoch, b], "one lease is left");
    harness.rescue(harness.epoch, at(1)).await;
    assert_eq!(others(a).await, [b]);
}

pub async fn rescue_without_leases_moves_nothing(harness: &Arc<Harness>) {
    let id = harness.leased(at(0)).await;
    let never = Epoch(harness.epoch.0 + 1000);
    let nothing = BatchProgress { changed: 0, finished: true };
    assert_eq!(harness.store().rescue(never, at(1), 10).await.unwrap(), nothing);
    harness.ends(id, Outcome::Delivered, at(2)).await;
    assert_eq!(harness.rescue(harness.epoch, at(3)).await, 0);
    assert_eq!(harness.store().rescue(harness.epoch, at(4), 10).await.unwrap(), nothing);
    assert_eq!(harness.status(id).await, DeliveryStatus::Delivered);
}

pub async fn epochs_are_never_reused(harness: &mut Arc<Harness>) {
    let mut used = vec![harness.epoch];
    for _ in 0..3 {
        let epoch = harness.new_epoch().await;
        assert!(!used.contains(&epoch));
        used.push(epoch);
        harness.rescue(epoch, at(1)).await;
        Harness::reopen(harness).await;
    }
    harness.rescue(harness.epoch, at(2)).await;
    Harness::reopen(harness).await;
    assert!(!used.contains(&harness.new_epoch().await), "no epoch is reused, even when no row is left");
}

pub async fn leases_survive_reopening(harness: &mut Arc<Harness>) {
    let id = harness.leased(at(0)).await;
    assert!(harness.store().mark_sending(harness.epoch, id).await.unwrap());
    Harness::reopen(harness).await;
    let epoch = harness.new_epoch().await;
    assert_eq!(harness.store().other_epochs(epoch).await.unwrap(), [harness.epoch]);
    assert_eq!(harness.due_lanes(at(END)).await, []);
    assert_eq!(harness.rescue(harness.epoch, at(60)).await, 1);
    let claimed = &harness.claim_as(epoch, at(60)).await[0];
    assert_eq!((claimed.id, claimed.abnormal_releases, claimed.crash_count), (id, 1, 1));
    let outcome = OutcomeRecord { epoch, ..harness.outcome(id, 1, Outcome::Delivered, at(61)) };
    assert_eq!(harness.record(outcome).await, RecordResult::Recorded { config_version: None });
}
