//! Snapshot of everything a store returns, and delivery of everything that is pending.

use std::{collections::BTreeSet, fmt::Debug, sync::Arc};

use redrive_core::delivery::outcome::Outcome;
use redrive_core::{
    DeliveryStatus, TenantId, Time, WebhookId,
    protection::breaker::SavedCircuit,
    statistics::traffic::Resolution,
    webhook::{WebhookState, uid::WebhookUid},
};
use redrive_store::{
    DeliveryFilter, EventFilter, LaneCapacity, NewNode, OutcomeRecord, RecordResult, StatusFilter, Store,
    StoreStats, Versioned, Visibility,
    conformance::{Harness, at, closed, page},
};

use super::sample_data::{creation_key, later};

/// Results of all reads, one per line.
#[derive(Default)]
struct Snapshot(Vec<String>);

impl Snapshot {
    fn add(&mut self, what: &str, seen: &(impl Debug + ?Sized)) {
        self.0.push(format!("{what}: {seen:?}"));
    }

    fn all<T: Debug>(&mut self, what: &str, seen: Vec<T>) {
        self.add(&format!("number of {what}"), &seen.len());
        for one in seen {
            self.add(what, &one);
        }
    }
}

pub(crate) async fn pools(store: &dyn Store) -> Vec<String> {
    let tenants = store.list_tenants(page(100)).await.unwrap();
    let pools: BTreeSet<_> = tenants.iter().map(|tenant| tenant.rules.pool().to_owned()).collect();
    pools.into_iter().collect()
}

/// Returns the results of all reads of a store.
pub(crate) async fn take_snapshot(store: &dyn Store) -> Vec<String> {
    let mut snapshot = Snapshot::default();
    let tenants = store.list_tenants(page(100)).await.unwrap();
    snapshot.all("admin key", store.list_keys(None, page(100)).await.unwrap());
    for tenant in &tenants {
        snapshot.add("tenant", tenant);
        add_tenant(&mut snapshot, store, &tenant.id).await;
    }
    let mut live = store.live_keys().await.unwrap();
    live.sort_by_key(|key| key.id);
    snapshot.all("live key", live);
    let mut with_pending_cancels = store.webhooks_to_cancel_for().await.unwrap();
    with_pending_cancels.sort_by_key(|webhook| webhook.id);
    snapshot.all("webhook with pending cancels", with_pending_cancels);
    let mut runtimes = store.list_runtime().await.unwrap();
    runtimes.sort_by_key(|runtime| runtime.webhook_id);
    snapshot.all("runtime", runtimes);
    snapshot.all("oldest", store.oldest_waiting(None, 100).await.unwrap());
    snapshot.add("next notification", &store.next_notification_at().await.unwrap());
    snapshot.add("due", &store.webhooks_with_due_action(at(0), 100, Vec::new()).await.unwrap());
    let epoch = store.join(NewNode { name: "looking".into(), ..NewNode::default() }, at(0)).await.unwrap();
    for pool in pools(store).await {
        for now in [at(0), at(60), at(150), at(100_000), later()] {
            let mut due = store.due_lanes(epoch, vec![pool.clone()], now, 1000).await.unwrap();
            due.lanes.sort();
            snapshot.add(&format!("due of {pool} at {now:?}"), &due);
        }
    }
    // Returns the object that was started; no other one is started while it exists.
    snapshot.add("archive", &store.next_object(0, 1).await.unwrap());
    let stats = store.stats().await.unwrap();
    snapshot.add("stats", &StoreStats { commits: 0, statements: 0, ..stats });
    snapshot.0
}

async fn add_tenant(snapshot: &mut Snapshot, store: &dyn Store, tenant_id: &TenantId) {
    snapshot.all("notice", store.list_notifications(tenant_id.clone(), page(100)).await.unwrap());
    snapshot.add("created object", &store.created_object(creation_key(tenant_id)).await.unwrap());
    let uids = vec![WebhookUid::parse("crm:EU-1").unwrap()];
    snapshot.all("webhook by uid", store.webhooks_by_uid(tenant_id.clone(), uids).await.unwrap());
    snapshot.all("key", store.list_keys(Some(tenant_id.clone()), page(100)).await.unwrap());
    for version in [0, 1, 3] {
        let changes = store.config_changes(tenant_id.clone(), version, 100).await.unwrap();
        snapshot.add("configuration", &changes);
    }
    let unsubscribed = store.list_unsubscribed(tenant_id.clone(), page(100)).await.unwrap();
    snapshot.all("unsubscribed", unsubscribed);
    let addresses = ["jane@example.com", "ops@example.com"].map(str::to_owned).to_vec();
    snapshot.all("email address", store.email_addresses(tenant_id.clone(), addresses).await.unwrap());
    snapshot.all("event type", store.event_types_since(tenant_id.clone(), 0, 100).await.unwrap());
    snapshot
        .all("webhook", store.list_webhooks(tenant_id.clone(), Visibility::All, page(100)).await.unwrap());
    let events =
        store.list_events(tenant_id.clone(), EventFilter::default(), page(1000)).await.unwrap().found;
    snapshot.all("event", events);
    let filter = DeliveryFilter::default;
    let deliveries = store.list_deliveries(tenant_id.clone(), filter(), page(1000)).await.unwrap().found;
    let webhooks: BTreeSet<WebhookId> = deliveries.iter().map(|delivery| delivery.webhook_id).collect();
    for delivery in &deliveries {
        snapshot.add("delivery", delivery);
        let attempts = store.attempts(tenant_id.clone(), delivery.id).await.unwrap();
        snapshot.all("attempt", attempts.unwrap());
    }
    snapshot.all("dead", store.list_dead(tenant_id.clone(), filter(), page(1000)).await.unwrap().found);
    for resolution in Resolution::ALL {
        snapshot.all("traffic", store.traffic(tenant_id.clone(), resolution, Time::default()).await.unwrap());
    }
    let mut failing = store.failures(tenant_id.clone(), Time::default(), 1000).await.unwrap();
    failing.by_webhook.sort_unstable();
    snapshot.add("failures", &failing);

    snapshot.all("incident", store.incidents(tenant_id.clone(), Visibility::All, 100).await.unwrap());
    snapshot.all("circuit", store.circuits(tenant_id.clone(), Visibility::All, 100).await.unwrap());
    snapshot.add("backlogged", &store.backlogged(tenant_id.clone(), 1000).await.unwrap());
    snapshot.add("number of dead letters", &store.count_dead_up_to(tenant_id.clone(), 1000).await.unwrap());
    let counted = store.count_dead(tenant_id.clone(), filter(), [at(100), at(50)], 1000).await.unwrap();
    let mut groups: Vec<_> = counted.groups.iter().map(|group| format!("{group:?}")).collect();
    groups.sort();
    snapshot.all("dead, counted", groups);
    for webhook_id in webhooks {
        snapshot.all("webhook, deleted or not", store.webhooks_by_id(vec![webhook_id]).await.unwrap());
        snapshot.add("backlog", &store.backlogs(None, vec![webhook_id], at(150), 1000).await.unwrap());
        snapshot.all(
            "open",
            store.circuit_periods(tenant_id.clone(), webhook_id, Time::default(), 100).await.unwrap(),
        );
        snapshot.all("minute", store.rollups(None, vec![webhook_id], Time::default()).await.unwrap());
        snapshot.add(
            "last success",
            &store.last_successes(Some(TenantId::default()), vec![webhook_id]).await.unwrap(),
        );
    }
}

/// Unblocks every webhook and delivers everything that is waiting. Returns every claimed delivery with its lane.
pub(crate) async fn deliver_all(store: &dyn Store, harness: &Harness) -> Vec<String> {
    for runtime in store.list_runtime().await.unwrap() {
        if let Some(circuit) = runtime.circuit {
            let closed = SavedCircuit { generation: circuit.generation + 1, since: later(), ..closed() };
            store.set_circuit(runtime.tenant_id, runtime.webhook_id, closed, None).await.unwrap();
        }
    }
    let tenants = store.list_tenants(page(100)).await.unwrap();
    for tenant in &tenants {
        for webhook in store.list_webhooks(tenant.id.clone(), Visibility::All, page(100)).await.unwrap() {
            if webhook.state == WebhookState::Paused {
                let versioned = store.webhook(tenant.id.clone(), webhook.id).await.unwrap().unwrap();
                let Versioned { mut webhook, revision } = versioned;
                webhook.state = WebhookState::Active;
                store.change_webhook(webhook, revision, None).await.unwrap();
            }
        }
    }
    let pools = pools(store).await;
    let epoch = store
        .join(NewNode { name: "sending".into(), pools: pools.clone(), ..NewNode::default() }, later())
        .await
        .unwrap();
    let mut claims = Vec::new();
    loop {
        let due = store.due_lanes(epoch, pools.clone(), later(), 1000).await.unwrap();
        if due.lanes.is_empty() {
            assert_eq!(due.next_wake, None, "a lane has a wake time but is never due");
            break;
        }
        let lanes = due.lanes.into_iter().map(|key| LaneCapacity::new(key, 1000)).collect();
        for claim in store.claim(epoch, later(), lanes, usize::MAX).await.unwrap() {
            let claimed = claim.deliveries.iter().map(|claimed| format!("{:?} {claimed:?}", claim.key));
            claims.extend(claimed);
            for claimed in claim.deliveries {
                let outcome =
                    harness.outcome(claimed.id, claimed.attempt_count + 1, Outcome::Delivered, later());
                let (tenant_id, webhook_id) = (claimed.event.tenant_id.clone(), claimed.webhook_id);
                record(store, OutcomeRecord { epoch, tenant_id, webhook_id, ..outcome }).await;
            }
        }
    }
    for tenant in tenants {
        let pending = Some(StatusFilter::Exactly(DeliveryStatus::Pending));
        let filter = DeliveryFilter { status: pending, ..DeliveryFilter::default() };
        assert_eq!(store.list_deliveries(tenant.id, filter, page(10)).await.unwrap().found, []);
    }
    // The order of lanes is not specified.
    claims.sort_by_key(|claim| claim.split_once("} ").map(|(key, _)| key.to_owned()));
    claims
}

async fn record(store: &dyn Store, outcome: OutcomeRecord) {
    let (sender, reply) = tokio::sync::oneshot::channel();
    store.record(Arc::new(outcome), Box::new(move |result| drop(sender.send(result))));
    assert_eq!(reply.await.unwrap(), Ok(RecordResult::Recorded { config_version: None }));
}
