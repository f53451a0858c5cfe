//! Many nodes: webhooks that one of them alone sends to, who is there, and what each should know.

use std::sync::Arc;

use redrive_core::{
    protection::breaker::{CircuitState, SavedCircuit},
    tenancy::DEFAULT_POOL,
};

use super::{Bench, RETRY, at, closed};
use crate::{Birth, Change, Claimed, Epoch, LaneRoom, Next, Outcome, Roll};

/// What an epoch gets of the bench's webhook, in its usual lane.
async fn claim(bench: &Bench, epoch: Epoch, now: i64, room: usize, alone: bool) -> Vec<Claimed> {
    let lanes = vec![LaneRoom { alone, ..LaneRoom::new(bench.lane(), room) }];
    let mut claims = bench.store().claim(epoch, at(now), lanes, 1 << 20).await.unwrap();
    claims.remove(0).deliveries
}

async fn sees_due(bench: &Bench, epoch: Epoch, now: i64) -> bool {
    let due = bench.store().due_lanes(epoch, vec![DEFAULT_POOL.into()], at(now), 10).await.unwrap();
    !due.lanes.is_empty()
}

/// Makes deliveries wait that are due at these times.
async fn wait_for(bench: &Bench, due: &[i64]) {
    for due in due {
        bench.publish_new(bench.new_event(at(0), Birth::Waiting(at(*due)))).await;
    }
}

pub async fn what_is_claimed_alone_is_kept_from_others(bench: &Arc<Bench>) {
    let other = bench.new_epoch().await;
    wait_for(bench, &[0, 100]).await;
    assert_eq!(claim(bench, bench.epoch, 0, 10, true).await.len(), 1);
    assert!(!sees_due(bench, other, 100).await);
    assert!(sees_due(bench, bench.epoch, 100).await, "its home sees it");
    assert!(claim(bench, other, 100, 10, false).await.is_empty());
    assert!(claim(bench, other, 100, 10, true).await.is_empty());
    assert_eq!(claim(bench, bench.epoch, 100, 10, false).await.len(), 1);
}

pub async fn a_home_gets_the_lanes_that_others_held(bench: &Arc<Bench>) {
    let other = bench.new_epoch().await;
    wait_for(bench, &[0, 0]).await;
    let retry = bench.own(RETRY);
    bench.waiting_in(&RETRY, at(0), at(0)).await;
    assert_eq!(claim(bench, other, 0, 1, false).await.len(), 1, "one more is due: the lane is held");
    let alone = vec![LaneRoom { alone: true, ..LaneRoom::new(retry, 10) }];
    bench.store().claim(bench.epoch, at(0), alone, 1 << 20).await.unwrap();
    assert!(!sees_due(bench, bench.epoch, 0).await);
    assert!(claim(bench, other, 0, 10, false).await.is_empty());
    assert!(sees_due(bench, bench.epoch, 0).await);
    assert_eq!(claim(bench, bench.epoch, 0, 10, true).await.len(), 1);
}

pub async fn a_home_that_was_left_is_free(bench: &Arc<Bench>) {
    let other = bench.new_epoch().await;
    wait_for(bench, &[0, 100]).await;
    claim(bench, bench.epoch, 0, 10, true).await;
    bench.store().leave(other, vec![bench.webhook]).await.unwrap();
    assert!(!sees_due(bench, other, 100).await, "nobody else can give it up");
    bench.store().leave(bench.epoch, vec![bench.webhook]).await.unwrap();
    assert!(sees_due(bench, other, 100).await);
    assert_eq!(claim(bench, other, 100, 10, true).await.len(), 1);
}

pub async fn who_leaves_holds_no_lanes(bench: &Arc<Bench>) {
    let other = bench.new_epoch().await;
    wait_for(bench, &[0, 0]).await;
    assert_eq!(claim(bench, other, 0, 1, false).await.len(), 1);
    assert!(!sees_due(bench, bench.epoch, 0).await, "it is held");
    bench.store().leave(other, vec![bench.webhook]).await.unwrap();
    assert_eq!(claim(bench, bench.epoch, 0, 10, false).await.len(), 1);
}

pub async fn a_home_goes_when_all_that_its_node_had_is_back(bench: &Arc<Bench>) {
    let dead = bench.new_epoch().await;
    wait_for(bench, &[0, 0, 0]).await;
    assert_eq!(claim(bench, dead, 0, 10, true).await.len(), 3);
    assert!(!bench.store().rescue(dead, at(50), 2).await.unwrap().finished);
    assert!(claim(bench, bench.epoch, 50, 10, true).await.is_empty(), "it has one more");
    assert!(bench.store().rescue(dead, at(50), 2).await.unwrap().finished);
    assert_eq!(claim(bench, bench.epoch, 50, 10, true).await.len(), 3);
    assert!(bench.store().others(bench.epoch).await.unwrap().is_empty(), "it left nothing behind");
}

pub async fn finding_nothing_makes_no_home(bench: &Arc<Bench>) {
    let other = bench.new_epoch().await;
    wait_for(bench, &[100]).await;
    assert!(claim(bench, other, 0, 10, true).await.is_empty());
    assert_eq!(claim(bench, bench.epoch, 100, 10, false).await.len(), 1);
}

pub async fn what_has_no_home_is_given_to_anybody(bench: &Arc<Bench>) {
    let other = bench.new_epoch().await;
    wait_for(bench, &[0, 100]).await;
    let first = claim(bench, other, 0, 10, false).await.remove(0).id;
    assert_eq!(claim(bench, bench.epoch, 100, 10, true).await.len(), 1);
    // What it had before the webhook got a home is still its own to record.
    let outcome = bench.outcome(first, 1, Next::Delivered, at(101));
    bench.record(Outcome { epoch: other, ..outcome }).await;
}

pub async fn a_beat_tells_who_is_there(bench: &Arc<Bench>) {
    let other = bench.new_epoch().await;
    let beats = |roll: &Roll| roll.nodes.iter().map(|node| (node.epoch, node.beats)).collect::<Vec<_>>();
    let roll = bench.store().beat(bench.epoch).await.unwrap();
    assert!(roll.alive);
    assert_eq!(beats(&roll), [(bench.epoch, 1), (other, 0)]);
    assert_eq!(roll.nodes[1].pools, [DEFAULT_POOL]);
    bench.store().beat(other).await.unwrap();
    let roll = bench.store().beat(bench.epoch).await.unwrap();
    assert_eq!(beats(&roll), [(bench.epoch, 2), (other, 1)]);
}

pub async fn an_epoch_that_is_over_beats_no_more(bench: &Arc<Bench>) {
    let other = bench.new_epoch().await;
    bench.store().rescue(other, at(0), 10).await.unwrap();
    let roll = bench.store().beat(other).await.unwrap();
    assert!(!roll.alive);
    assert_eq!(roll.nodes.iter().map(|node| node.epoch).collect::<Vec<_>>(), [bench.epoch]);
}

pub async fn an_epoch_that_has_beaten_since_is_not_ended(bench: &Arc<Bench>) {
    let other = bench.new_epoch().await;
    bench.store().beat(other).await.unwrap();
    assert!(!bench.store().end(other, 0).await.unwrap());
    assert!(bench.store().beat(other).await.unwrap().alive);
    assert!(bench.store().end(other, 2).await.unwrap());
    assert!(!bench.store().beat(other).await.unwrap().alive);
    assert!(!bench.store().end(other, 2).await.unwrap(), "it is over");
}

pub async fn changes_are_told_from_a_mark_on(bench: &Arc<Bench>) {
    if !bench.store().is_shared() {
        return unshared_store_reports_no_changes(bench).await;
    }
    let begin = bench.store().changes(None).await.unwrap();
    assert_eq!(begin.changes, [], "what was before is known otherwise");
    let webhook = bench.new_webhook().await.id;
    let leased = bench.leased(at(0)).await;
    let told = |since| async move { bench.store().changes(Some(since)).await.unwrap() };
    let first = told(begin.mark).await;
    assert_eq!(first.changes, [Change::Webhook(bench.tenant.clone(), webhook)]);
    let first = told(first.mark).await;
    assert_eq!(first.changes, [], "each change is returned once");
    bench.store().set_circuit(bench.tenant.clone(), webhook, closed(), None).await.unwrap();
    bench.cancel(leased, at(1)).await;
    let tenant = bench.store().tenant(bench.tenant.clone()).await.unwrap().unwrap();
    bench.store().change_tenant(tenant).await.unwrap();
    let second = told(first.mark).await;
    let expected =
        [Change::Tenant(bench.tenant.clone()), Change::Gate(webhook), Change::Cancel(bench.webhook, leased)];
    assert_eq!(second.changes, expected);
    bench.store().forget_changes(second.mark.clone()).await.unwrap();
    assert_eq!(told(second.mark).await.changes, []);
}

async fn unshared_store_reports_no_changes(bench: &Arc<Bench>) {
    let begin = bench.store().changes(None).await.unwrap();
    let webhook = bench.new_webhook().await.id;
    bench.store().set_circuit(bench.tenant.clone(), webhook, closed(), None).await.unwrap();
    let leased = bench.leased(at(0)).await;
    bench.cancel(leased, at(1)).await;
    let changes = bench.store().changes(Some(begin.mark.clone())).await.unwrap();
    assert_eq!((changes.mark, changes.changes), (begin.mark.clone(), vec![]));
    bench.store().forget_changes(begin.mark).await.unwrap();
}

pub async fn the_trouble_of_some_is_told(bench: &Arc<Bench>) {
    let other = bench.new_webhook().await.id;
    let open = SavedCircuit { state: CircuitState::Open, generation: 1, ..closed() };
    for webhook in [bench.webhook, other] {
        bench.store().set_circuit(bench.tenant.clone(), webhook, open.clone(), None).await.unwrap();
    }
    let told = bench.store().trouble_of(vec![other, bench.webhook_id()]).await.unwrap();
    assert_eq!(told.iter().map(|runtime| runtime.webhook).collect::<Vec<_>>(), [other]);
    assert_eq!(told[0].circuit, Some(open));
}
