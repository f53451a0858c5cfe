//! Several nodes: assigned webhooks, cluster membership, and the change feed.

use redrive_core::delivery::outcome::Outcome;
use std::sync::Arc;

use redrive_core::{
    protection::breaker::{CircuitState, SavedCircuit},
    tenancy::DEFAULT_POOL,
};

use super::{Harness, RETRY, at, closed};
use crate::{Change, ClaimedDelivery, ClusterView, Epoch, InitialState, LaneCapacity, OutcomeRecord};

/// Claims for an epoch from the fresh lane of the harness's webhook.
async fn claim(
    harness: &Harness,
    epoch: Epoch,
    now: i64,
    capacity: usize,
    alone: bool,
) -> Vec<ClaimedDelivery> {
    let lanes = vec![LaneCapacity { exclusive: alone, ..LaneCapacity::new(harness.lane(), capacity) }];
    let mut claims = harness.store().claim(epoch, at(now), lanes, 1 << 20).await.unwrap();
    claims.remove(0).deliveries
}

async fn sees_due(harness: &Harness, epoch: Epoch, now: i64) -> bool {
    let due = harness.store().due_lanes(epoch, vec![DEFAULT_POOL.into()], at(now), 10).await.unwrap();
    !due.lanes.is_empty()
}

/// Creates waiting deliveries that are due at these times.
async fn wait_for(harness: &Harness, due: &[i64]) {
    for due in due {
        harness.publish_new(harness.new_event(at(0), InitialState::Waiting(at(*due)))).await;
    }
}

pub async fn exclusively_claimed_webhook_is_hidden_from_other_nodes(harness: &Arc<Harness>) {
    let other = harness.new_epoch().await;
    wait_for(harness, &[0, 100]).await;
    assert_eq!(claim(harness, harness.epoch, 0, 10, true).await.len(), 1);
    assert!(!sees_due(harness, other, 100).await);
    assert!(sees_due(harness, harness.epoch, 100).await, "the assigned node sees it");
    assert!(claim(harness, other, 100, 10, false).await.is_empty());
    assert!(claim(harness, other, 100, 10, true).await.is_empty());
    assert_eq!(claim(harness, harness.epoch, 100, 10, false).await.len(), 1);
}

pub async fn assigned_node_gets_lanes_held_by_other_nodes(harness: &Arc<Harness>) {
    let other = harness.new_epoch().await;
    wait_for(harness, &[0, 0]).await;
    let retry = harness.own(RETRY);
    harness.waiting_in(&RETRY, at(0), at(0)).await;
    assert_eq!(
        claim(harness, other, 0, 1, false).await.len(),
        1,
        "the lane is claimed because one more delivery is due"
    );
    let alone = vec![LaneCapacity { exclusive: true, ..LaneCapacity::new(retry, 10) }];
    harness.store().claim(harness.epoch, at(0), alone, 1 << 20).await.unwrap();
    assert!(!sees_due(harness, harness.epoch, 0).await);
    assert!(claim(harness, other, 0, 10, false).await.is_empty());
    assert!(sees_due(harness, harness.epoch, 0).await);
    assert_eq!(claim(harness, harness.epoch, 0, 10, true).await.len(), 1);
}

pub async fn released_assignment_is_free(harness: &Arc<Harness>) {
    let other = harness.new_epoch().await;
    wait_for(harness, &[0, 100]).await;
    claim(harness, harness.epoch, 0, 10, true).await;
    harness.store().release_assignments(other, vec![harness.webhook_id]).await.unwrap();
    assert!(!sees_due(harness, other, 100).await, "only the assigned node can release its assignment");
    harness.store().release_assignments(harness.epoch, vec![harness.webhook_id]).await.unwrap();
    assert!(sees_due(harness, other, 100).await);
    assert_eq!(claim(harness, other, 100, 10, true).await.len(), 1);
}

pub async fn release_assignments_also_releases_held_lanes(harness: &Arc<Harness>) {
    let other = harness.new_epoch().await;
    wait_for(harness, &[0, 0]).await;
    assert_eq!(claim(harness, other, 0, 1, false).await.len(), 1);
    assert!(!sees_due(harness, harness.epoch, 0).await, "the lane is claimed by another node");
    harness.store().release_assignments(other, vec![harness.webhook_id]).await.unwrap();
    assert_eq!(claim(harness, harness.epoch, 0, 10, false).await.len(), 1);
}

pub async fn assignment_of_dead_node_ends_when_all_leases_are_rescued(harness: &Arc<Harness>) {
    let dead = harness.new_epoch().await;
    wait_for(harness, &[0, 0, 0]).await;
    assert_eq!(claim(harness, dead, 0, 10, true).await.len(), 3);
    assert!(!harness.store().rescue(dead, at(50), 2).await.unwrap().finished);
    assert!(
        claim(harness, harness.epoch, 50, 10, true).await.is_empty(),
        "the dead epoch has one more lease"
    );
    assert!(harness.store().rescue(dead, at(50), 2).await.unwrap().finished);
    assert_eq!(claim(harness, harness.epoch, 50, 10, true).await.len(), 3);
    assert!(
        harness.store().other_epochs(harness.epoch).await.unwrap().is_empty(),
        "the dead epoch has no leases or lanes left"
    );
}

pub async fn empty_exclusive_claim_creates_no_assignment(harness: &Arc<Harness>) {
    let other = harness.new_epoch().await;
    wait_for(harness, &[100]).await;
    assert!(claim(harness, other, 0, 10, true).await.is_empty());
    assert_eq!(claim(harness, harness.epoch, 100, 10, false).await.len(), 1);
}

pub async fn unassigned_webhook_can_be_claimed_by_any_node(harness: &Arc<Harness>) {
    let other = harness.new_epoch().await;
    wait_for(harness, &[0, 100]).await;
    let first = claim(harness, other, 0, 10, false).await.remove(0).id;
    assert_eq!(claim(harness, harness.epoch, 100, 10, true).await.len(), 1);
    // The node can still record deliveries that it leased before the webhook was assigned.
    let outcome = harness.outcome(first, 1, Outcome::Delivered, at(101));
    harness.record(OutcomeRecord { epoch: other, ..outcome }).await;
}

pub async fn heartbeat_returns_the_cluster_view(harness: &Arc<Harness>) {
    let other = harness.new_epoch().await;
    let beats = |cluster: &ClusterView| {
        cluster.nodes.iter().map(|node| (node.epoch, node.heartbeats)).collect::<Vec<_>>()
    };
    let cluster = harness.store().heartbeat(harness.epoch).await.unwrap();
    assert!(cluster.alive);
    assert_eq!(beats(&cluster), [(harness.epoch, 1), (other, 0)]);
    assert_eq!(cluster.nodes[1].pools, [DEFAULT_POOL]);
    harness.store().heartbeat(other).await.unwrap();
    let cluster = harness.store().heartbeat(harness.epoch).await.unwrap();
    assert_eq!(beats(&cluster), [(harness.epoch, 2), (other, 1)]);
}

pub async fn ended_epoch_cannot_heartbeat(harness: &Arc<Harness>) {
    let other = harness.new_epoch().await;
    harness.store().rescue(other, at(0), 10).await.unwrap();
    let cluster = harness.store().heartbeat(other).await.unwrap();
    assert!(!cluster.alive);
    assert_eq!(cluster.nodes.iter().map(|node| node.epoch).collect::<Vec<_>>(), [harness.epoch]);
}

pub async fn epoch_with_newer_heartbeat_is_not_ended(harness: &Arc<Harness>) {
    let other = harness.new_epoch().await;
    harness.store().heartbeat(other).await.unwrap();
    assert!(!harness.store().end_epoch(other, 0).await.unwrap());
    assert!(harness.store().heartbeat(other).await.unwrap().alive);
    assert!(harness.store().end_epoch(other, 2).await.unwrap());
    assert!(!harness.store().heartbeat(other).await.unwrap().alive);
    assert!(!harness.store().end_epoch(other, 2).await.unwrap(), "the epoch has already ended");
}

pub async fn changes_are_returned_since_a_cursor(harness: &Arc<Harness>) {
    if !harness.store().is_shared() {
        return unshared_store_reports_no_changes(harness).await;
    }
    let begin = harness.store().changes(None).await.unwrap();
    assert_eq!(begin.changes, [], "the first read returns only a cursor");
    let webhook_id = harness.new_webhook().await.id;
    let leased = harness.leased(at(0)).await;
    let reported = |since| async move { harness.store().changes(Some(since)).await.unwrap() };
    let first = reported(begin.cursor).await;
    assert_eq!(first.changes, [Change::Webhook(harness.tenant_id.clone(), webhook_id)]);
    let first = reported(first.cursor).await;
    assert_eq!(first.changes, [], "each change is returned once");
    harness.store().set_circuit(harness.tenant_id.clone(), webhook_id, closed(), None).await.unwrap();
    harness.cancel(leased, at(1)).await;
    let tenant = harness.store().tenant(harness.tenant_id.clone()).await.unwrap().unwrap();
    harness.store().change_tenant(tenant).await.unwrap();
    let second = reported(first.cursor).await;
    let expected = [
        Change::Tenant(harness.tenant_id.clone()),
        Change::Runtime(webhook_id),
        Change::Cancel(harness.webhook_id, leased),
    ];
    assert_eq!(second.changes, expected);
    harness.store().prune_changes(second.cursor.clone()).await.unwrap();
    assert_eq!(reported(second.cursor).await.changes, []);
}

async fn unshared_store_reports_no_changes(harness: &Arc<Harness>) {
    let begin = harness.store().changes(None).await.unwrap();
    let webhook_id = harness.new_webhook().await.id;
    harness.store().set_circuit(harness.tenant_id.clone(), webhook_id, closed(), None).await.unwrap();
    let leased = harness.leased(at(0)).await;
    harness.cancel(leased, at(1)).await;
    let changes = harness.store().changes(Some(begin.cursor.clone())).await.unwrap();
    assert_eq!((changes.cursor, changes.changes), (begin.cursor.clone(), vec![]));
    harness.store().prune_changes(begin.cursor).await.unwrap();
}

pub async fn runtime_of_named_webhooks_is_returned(harness: &Arc<Harness>) {
    let other = harness.new_webhook().await.id;
    let open = SavedCircuit { state: CircuitState::Open, generation: 1, ..closed() };
    for webhook_id in [harness.webhook_id, other] {
        harness.store().set_circuit(harness.tenant_id.clone(), webhook_id, open.clone(), None).await.unwrap();
    }
    let reported = harness.store().get_runtime(vec![other, harness.webhook_id()]).await.unwrap();
    assert_eq!(reported.iter().map(|runtime| runtime.webhook_id).collect::<Vec<_>>(), [other]);
    assert_eq!(reported[0].circuit, Some(open));
}
