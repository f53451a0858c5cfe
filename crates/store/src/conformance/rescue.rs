//! What dead nodes leave behind: given back whole, counted right, and never theirs again.

use std::sync::Arc;

use redrive_core::DeliveryStatus;

use super::{Bench, END, at};
use crate::{Cancelled, Epoch, Next, Outcome, Recorded, Step};

/// Leases the one delivery that is due to a new node, which dies; `sending` if it had begun to send.
async fn die_with_it(bench: &Bench, sending: bool) {
    let epoch = bench.new_epoch().await;
    let claimed = bench.claim_as(epoch, at(100)).await;
    assert_eq!(claimed.len(), 1);
    if sending {
        assert!(bench.store().mark_sending(epoch, claimed[0].id).await.unwrap());
    }
    assert_eq!(bench.rescue(epoch, at(100)).await, 1);
}

pub async fn rescued_deliveries_wait_due_now(bench: &Arc<Bench>) {
    let (a, b) = (bench.leased(at(0)).await, bench.leased(at(0)).await);
    assert_eq!(bench.rescue(bench.epoch, at(60)).await, 2);
    assert_eq!(bench.due_lanes(at(59)).await, []);
    assert_eq!(bench.due_lanes(at(60)).await, [bench.lane()]);
    let epoch = bench.new_epoch().await;
    let claim = bench.claim_lane_as(epoch, bench.lane(), at(60), 10).await;
    let rescued: Vec<_> = claim.deliveries.iter().map(|one| (one.id, one.rescues, one.due)).collect();
    assert_eq!(rescued, [(a, 1, at(60)), (b, 1, at(60))]);
}

pub async fn deaths_are_counted_only_while_sending(bench: &Arc<Bench>) {
    bench.waiting(at(0), at(0)).await;
    die_with_it(bench, false).await;
    die_with_it(bench, true).await;
    die_with_it(bench, false).await;
    die_with_it(bench, true).await;
    let claimed = bench.claim_one(at(100)).await;
    assert_eq!((claimed.rescues, claimed.deaths), (4, 2));
    // Handing a delivery back forgets nothing, and it is no longer being sent.
    assert!(bench.store().mark_sending(bench.epoch, claimed.id).await.unwrap());
    bench.store().release(bench.epoch, at(100), vec![(claimed.id, at(100))]).await.unwrap();
    die_with_it(bench, false).await;
    let claimed = bench.claim_one(at(100)).await;
    assert_eq!((claimed.rescues, claimed.deaths), (5, 2));
}

pub async fn an_attempt_clears_what_a_delivery_has_been_through(bench: &Arc<Bench>) {
    let id = bench.waiting(at(0), at(0)).await;
    die_with_it(bench, true).await;
    bench.claim_one(at(100)).await;
    bench.ends(id, Next::Retry { due: at(200) }, at(150)).await;
    let claimed = bench.claim_one(at(200)).await;
    assert_eq!((claimed.rescues, claimed.deaths), (0, 0));
}

pub async fn rescue_works_in_bounded_steps(bench: &Arc<Bench>) {
    for n in 0..10 {
        bench.leased(at(n)).await;
    }
    let rescuer = bench.new_epoch().await;
    let mut moved = Vec::new();
    loop {
        let step = bench.store().rescue(bench.epoch, at(50), 3).await.unwrap();
        assert!(step.moved <= 3);
        moved.push(step.moved);
        if step.finished {
            break;
        }
        assert_eq!(bench.store().others(rescuer).await.unwrap(), [bench.epoch], "not finished yet");
    }
    assert_eq!(moved.iter().sum::<usize>(), 10);
    assert_eq!(bench.store().others(rescuer).await.unwrap(), []);
    assert_eq!(bench.store().vitals().await.unwrap().waiting, [0, 10, 0]);
}

pub async fn called_off_deliveries_end_cancelled(bench: &Arc<Bench>) {
    let (off, on) = (bench.leased(at(0)).await, bench.leased(at(0)).await);
    let asked = bench.store().cancel(bench.tenant.clone(), off, "enough".into(), at(1)).await.unwrap();
    assert_eq!(asked, Cancelled::Requested);
    assert_eq!(bench.rescue(bench.epoch, at(60)).await, 2);
    let ended = bench.delivery(off).await;
    assert_eq!((ended.status, ended.ended_at), (DeliveryStatus::Cancelled, Some(at(60))));
    assert_eq!((ended.cancel_reason.as_deref(), ended.due), (Some("enough"), None));
    assert_eq!(bench.delivery(on).await.due, Some(at(60)));
}

pub async fn held_lanes_are_freed(bench: &Arc<Bench>) {
    for n in 0..5 {
        bench.waiting(at(n), at(n)).await;
    }
    assert!(bench.claim_lane(bench.lane(), at(10), 2).await.more);
    assert_eq!(bench.due_lanes(at(END)).await, []);
    assert_eq!(bench.rescue(bench.epoch, at(20)).await, 2);
    assert_eq!(bench.due_lanes(at(10)).await, [bench.lane()]);
    let epoch = bench.new_epoch().await;
    let claim = bench.claim_lane_as(epoch, bench.lane(), at(20), 10).await;
    assert_eq!((claim.deliveries.len(), claim.more), (5, false));
}

pub async fn others_are_those_who_left_something_or_live(bench: &Arc<Bench>) {
    let others = |than| async move {
        let mut others = bench.store().others(than).await.unwrap();
        others.sort_unstable();
        others
    };
    assert_eq!(others(bench.epoch).await, []);
    let (a, b) = (bench.new_epoch().await, bench.new_epoch().await);
    assert_eq!(others(bench.epoch).await, [a, b]);
    assert_eq!(others(a).await, [bench.epoch, b]);
    bench.leased(at(0)).await;
    bench.leased(at(0)).await;
    assert!(!bench.store().rescue(bench.epoch, at(1), 1).await.unwrap().finished);
    assert_eq!(others(a).await, [bench.epoch, b], "a lease is left");
    bench.rescue(bench.epoch, at(1)).await;
    assert_eq!(others(a).await, [b]);
}

pub async fn rescuing_nobody_moves_nothing(bench: &Arc<Bench>) {
    let id = bench.leased(at(0)).await;
    let never = Epoch(bench.epoch.0 + 1000);
    let nothing = Step { moved: 0, finished: true };
    assert_eq!(bench.store().rescue(never, at(1), 10).await.unwrap(), nothing);
    bench.ends(id, Next::Delivered, at(2)).await;
    assert_eq!(bench.rescue(bench.epoch, at(3)).await, 0);
    assert_eq!(bench.store().rescue(bench.epoch, at(4), 10).await.unwrap(), nothing);
    assert_eq!(bench.status(id).await, DeliveryStatus::Delivered);
}

pub async fn epochs_are_never_used_again(bench: &mut Arc<Bench>) {
    let mut used = vec![bench.epoch];
    for _ in 0..3 {
        let epoch = bench.new_epoch().await;
        assert!(!used.contains(&epoch));
        used.push(epoch);
        bench.rescue(epoch, at(1)).await;
        Bench::reopen(bench).await;
    }
    bench.rescue(bench.epoch, at(2)).await;
    Bench::reopen(bench).await;
    assert!(!used.contains(&bench.new_epoch().await), "not even when no row is left");
}

pub async fn leases_survive_reopening(bench: &mut Arc<Bench>) {
    let id = bench.leased(at(0)).await;
    assert!(bench.store().mark_sending(bench.epoch, id).await.unwrap());
    Bench::reopen(bench).await;
    let epoch = bench.new_epoch().await;
    assert_eq!(bench.store().others(epoch).await.unwrap(), [bench.epoch]);
    assert_eq!(bench.due_lanes(at(END)).await, []);
    assert_eq!(bench.rescue(bench.epoch, at(60)).await, 1);
    let claimed = &bench.claim_as(epoch, at(60)).await[0];
    assert_eq!((claimed.id, claimed.rescues, claimed.deaths), (id, 1, 1));
    let outcome = Outcome { epoch, ..bench.outcome(id, 1, Next::Delivered, at(61)) };
    assert_eq!(bench.record(outcome).await, Recorded::Done { config_version: None });
}
