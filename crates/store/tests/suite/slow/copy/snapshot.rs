//! What a store shows, all of it, and delivering all that is left.

use std::{collections::BTreeSet, fmt::Debug, sync::Arc};

use redrive_core::{
    DeliveryStatus, TenantId, Time, WebhookId, protection::breaker::SavedCircuit, statistics::traffic::Grain,
    webhook::WebhookState,
};
use redrive_store::{
    DeliveryFilter, EventFilter, LaneRoom, NewNode, Next, Outcome, Recorded, StatusFilter, Store, Versioned,
    Visibility, Vitals,
    conformance::{Bench, at, closed, page},
};

use super::sample_data::later;

/// Every answer to every question, one a line.
#[derive(Default)]
struct Picture(Vec<String>);

impl Picture {
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

/// Everything that can be asked.
pub(crate) async fn of(store: &dyn Store) -> Vec<String> {
    let mut picture = Picture::default();
    let tenants = store.list_tenants(page(100)).await.unwrap();
    picture.all("admin key", store.list_keys(None, page(100)).await.unwrap());
    for tenant in &tenants {
        picture.add("tenant", tenant);
        of_tenant(&mut picture, store, &tenant.id).await;
    }
    let mut live = store.live_keys().await.unwrap();
    live.sort_by_key(|key| key.id);
    picture.all("live key", live);
    let mut sweeping = store.sweeping().await.unwrap();
    sweeping.sort_by_key(|webhook| webhook.id);
    picture.all("sweeping", sweeping);
    let mut troubled = store.troubled().await.unwrap();
    troubled.sort_by_key(|runtime| runtime.webhook);
    picture.all("troubled", troubled);
    picture.all("oldest", store.oldest(None, 100).await.unwrap());
    picture.add("next notice", &store.next_notice().await.unwrap());
    picture.add("expiring", &store.expiring(at(0), 100, Vec::new()).await.unwrap());
    let epoch = store.join(NewNode { name: "looking".into(), ..NewNode::default() }, at(0)).await.unwrap();
    for pool in pools(store).await {
        for now in [at(0), at(60), at(150), at(100_000), later()] {
            let mut due = store.due_lanes(epoch, vec![pool.clone()], now, 1000).await.unwrap();
            due.lanes.sort();
            picture.add(&format!("due of {pool} at {now:?}"), &due);
        }
    }
    // The object that was begun; asking begins none while there is one.
    picture.add("archive", &store.next_object(0, 1).await.unwrap());
    let vitals = store.vitals().await.unwrap();
    picture.add("vitals", &Vitals { commits: 0, statements: 0, ..vitals });
    picture.0
}

async fn of_tenant(picture: &mut Picture, store: &dyn Store, tenant: &TenantId) {
    picture.all("notice", store.list_notices(tenant.clone(), page(100)).await.unwrap());
    picture.all("key", store.list_keys(Some(tenant.clone()), page(100)).await.unwrap());
    for version in [0, 1, 3] {
        let changes = store.config_changes(tenant.clone(), version, 100).await.unwrap();
        picture.add("configuration", &changes);
    }
    let unsubscribed = store.list_unsubscribed(tenant.clone(), page(100)).await.unwrap();
    picture.all("unsubscribed", unsubscribed);
    let addresses = ["jane@example.com", "ops@example.com"].map(str::to_owned).to_vec();
    picture.all("mail address", store.mail_addresses(tenant.clone(), addresses).await.unwrap());
    picture.all("event type", store.event_types_since(tenant.clone(), 0, 100).await.unwrap());
    picture.all("webhook", store.list_webhooks(tenant.clone(), Visibility::All, page(100)).await.unwrap());
    let events = store.list_events(tenant.clone(), EventFilter::default(), page(1000)).await.unwrap().found;
    picture.all("event", events);
    let filter = DeliveryFilter::default;
    let deliveries = store.list_deliveries(tenant.clone(), filter(), page(1000)).await.unwrap().found;
    let webhooks: BTreeSet<WebhookId> = deliveries.iter().map(|delivery| delivery.webhook).collect();
    for delivery in &deliveries {
        picture.add("delivery", delivery);
        let attempts = store.attempts(tenant.clone(), delivery.id).await.unwrap();
        picture.all("attempt", attempts.unwrap());
    }
    picture.all("dead", store.list_dead(tenant.clone(), filter(), page(1000)).await.unwrap().found);
    for grain in Grain::ALL {
        picture.all("traffic", store.traffic(tenant.clone(), grain, Time::default()).await.unwrap());
    }
    let mut failing = store.failures(tenant.clone(), Time::default(), 1000).await.unwrap();
    failing.by_webhook.sort_unstable();
    picture.add("failures", &failing);
    picture.all("incident", store.incidents(tenant.clone(), Visibility::All, 100).await.unwrap());
    picture.all("circuit", store.circuits(tenant.clone(), Visibility::All, 100).await.unwrap());
    picture.add("backlogged", &store.backlogged(tenant.clone(), 1000).await.unwrap());
    picture.add("size of the dead", &store.dead_size(tenant.clone(), 1000).await.unwrap());
    let counted = store.count_dead(tenant.clone(), filter(), [at(100), at(50)], 1000).await.unwrap();
    let mut groups: Vec<_> = counted.groups.iter().map(|group| format!("{group:?}")).collect();
    groups.sort();
    picture.all("dead, counted", groups);
    for webhook in webhooks {
        picture.all("webhook, deleted or not", store.webhooks_by_id(vec![webhook]).await.unwrap());
        picture.add("backlog", &store.backlogs(None, vec![webhook], at(150), 1000).await.unwrap());
        picture
            .all("open", store.circuit_periods(tenant.clone(), webhook, Time::default(), 100).await.unwrap());
        picture.all("minute", store.rollups(None, vec![webhook], Time::default()).await.unwrap());
        picture.add(
            "last success",
            &store.last_successes(TenantId::default(), vec![(webhook, Time::FOREVER)]).await.unwrap(),
        );
    }
}

/// Unblocks every webhook and delivers all that waits. Gives every claim with what was in it.
pub(crate) async fn deliver_all(store: &dyn Store, bench: &Bench) -> Vec<String> {
    for runtime in store.troubled().await.unwrap() {
        if let Some(circuit) = runtime.circuit {
            let closed = SavedCircuit { generation: circuit.generation + 1, since: later(), ..closed() };
            store.set_circuit(runtime.tenant, runtime.webhook, closed, None).await.unwrap();
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
            assert_eq!(due.next_wake, None, "something would be looked at later");
            break;
        }
        let lanes = due.lanes.into_iter().map(|key| LaneRoom::new(key, 1000)).collect();
        for claim in store.claim(epoch, later(), lanes, usize::MAX).await.unwrap() {
            let claimed = claim.deliveries.iter().map(|claimed| format!("{:?} {claimed:?}", claim.key));
            claims.extend(claimed);
            for claimed in claim.deliveries {
                let outcome = bench.outcome(claimed.id, claimed.attempt_count + 1, Next::Delivered, later());
                let (tenant, webhook) = (claimed.event.tenant.clone(), claimed.webhook);
                record(store, Outcome { epoch, tenant, webhook, ..outcome }).await;
            }
        }
    }
    for tenant in tenants {
        let pending = Some(StatusFilter::Is(DeliveryStatus::Pending));
        let filter = DeliveryFilter { status: pending, ..DeliveryFilter::default() };
        assert_eq!(store.list_deliveries(tenant.id, filter, page(10)).await.unwrap().found, []);
    }
    // Which of several lanes comes first is nobody's promise.
    claims.sort_by_key(|claim| claim.split_once("} ").map(|(key, _)| key.to_owned()));
    claims
}

async fn record(store: &dyn Store, outcome: Outcome) {
    let (answer, answered) = tokio::sync::oneshot::channel();
    store.record(Arc::new(outcome), Box::new(move |result| drop(answer.send(result))));
    assert_eq!(answered.await.unwrap(), Ok(Recorded::Done { config_version: None }));
}
