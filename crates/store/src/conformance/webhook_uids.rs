//! Uids of webhooks: unique among the webhooks of a tenant that are not deleted.

use std::sync::Arc;

use redrive_core::{
    TenantId, WebhookId,
    protection::breaker::Circuit,
    webhook::{Webhook, WebhookState, uid::WebhookUid},
};

use super::{Harness, at, together};
use crate::{UpdateResult, Versioned};

fn uid(text: &str) -> WebhookUid {
    WebhookUid::parse(text).unwrap()
}

fn webhook(harness: &Harness, tenant_id: &TenantId, text: &str) -> Webhook {
    let mut webhook = harness.webhook_of(tenant_id);
    webhook.spec.uid = Some(uid(text));
    webhook
}

async fn create(harness: &Harness, webhook: &Webhook) -> UpdateResult {
    harness.store().create_webhook(webhook.clone()).await.unwrap()
}

async fn named(harness: &Harness, tenant_id: &TenantId, text: &str) -> Option<WebhookId> {
    let found = harness.store().webhooks_by_uid(tenant_id.clone(), vec![uid(text)]).await.unwrap();
    found.first().map(|(_, id)| *id)
}

fn is_stored(result: &UpdateResult) -> bool {
    matches!(result, UpdateResult::Updated { .. })
}

pub async fn webhook_is_found_by_its_uid_in_its_tenant_only(harness: &Arc<Harness>) {
    let (own, other) = (harness.tenant_id.clone(), harness.new_tenant("globex").await);
    let first = webhook(harness, &own, "orders");
    let upper = webhook(harness, &own, "Orders");
    let foreign = webhook(harness, &other, "orders");
    for one in [&first, &upper, &foreign] {
        assert!(is_stored(&create(harness, one).await), "{one:?}");
    }
    harness.new_webhook().await;
    let wanted = ["Orders", "unknown", "orders"].map(uid).to_vec();
    let mut found = harness.store().webhooks_by_uid(own.clone(), wanted).await.unwrap();
    found.sort_by(|a, b| a.0.cmp(&b.0));
    assert_eq!(found, [(uid("Orders"), upper.id), (uid("orders"), first.id)]);
    assert_eq!(named(harness, &other, "orders").await, Some(foreign.id));
    assert_eq!(named(harness, &other, "Orders").await, None);
}

pub async fn uid_of_another_webhook_is_refused_and_nothing_changes(harness: &Arc<Harness>) {
    let tenant_id = harness.tenant_id.clone();
    let (first, second) = (webhook(harness, &tenant_id, "a"), webhook(harness, &tenant_id, "b"));
    assert!(is_stored(&create(harness, &first).await) && is_stored(&create(harness, &second).await));
    let again = webhook(harness, &tenant_id, "a");
    assert_eq!(create(harness, &again).await, UpdateResult::Exists);
    let circuit = Circuit::new(at(0)).to_saved();
    let with_circuit = harness.store().store_webhook_with_circuit(again.clone(), None, circuit.clone());
    assert_eq!(with_circuit.await.unwrap(), UpdateResult::Exists);
    assert_eq!(harness.store().webhook(tenant_id.clone(), again.id).await.unwrap(), None);

    let Versioned { webhook: mut stored, revision } = harness.stored_webhook(second.id).await;
    stored.spec.uid = Some(uid("a"));
    let changed = harness.store().change_webhook(stored.clone(), revision, None).await.unwrap();
    assert_eq!(changed, UpdateResult::Exists);
    let with_circuit =
        harness.store().store_webhook_with_circuit(stored, Some(revision), circuit).await.unwrap();
    assert_eq!(with_circuit, UpdateResult::Exists);
    assert_eq!(harness.stored_webhook(second.id).await.revision, revision);
    assert_eq!(harness.stored_webhook(first.id).await.webhook, first);
}

pub async fn changed_or_removed_uid_is_free(harness: &Arc<Harness>) {
    let tenant_id = harness.tenant_id.clone();
    let first = webhook(harness, &tenant_id, "a");
    assert!(is_stored(&create(harness, &first).await));
    for next in [Some("b"), None] {
        let Versioned { webhook: mut stored, revision } = harness.stored_webhook(first.id).await;
        stored.spec.uid = next.map(uid);
        assert!(is_stored(&harness.store().change_webhook(stored, revision, None).await.unwrap()));
        assert_eq!(named(harness, &tenant_id, "a").await, None);
    }
    assert_eq!(named(harness, &tenant_id, "b").await, None);
    assert!(is_stored(&create(harness, &webhook(harness, &tenant_id, "a")).await));
}

pub async fn uid_of_a_deleted_webhook_is_free(harness: &Arc<Harness>) {
    let tenant_id = harness.tenant_id.clone();
    for _ in 0..3 {
        let new = webhook(harness, &tenant_id, "a");
        assert!(is_stored(&create(harness, &new).await));
        assert_eq!(named(harness, &tenant_id, "a").await, Some(new.id));
        harness.set_state(new.id, WebhookState::Deleted).await;
        assert_eq!(named(harness, &tenant_id, "a").await, None);
    }
}

pub async fn concurrent_creations_with_one_uid_store_one_webhook(harness: &Arc<Harness>) {
    let creation = |_| {
        let harness = harness.clone();
        async move {
            let new = webhook(&harness, &harness.tenant_id, "a");
            (new.id, create(&harness, &new).await)
        }
    };
    let results = together((0..50).map(creation)).await;
    let stored: Vec<_> = results.iter().filter(|(_, result)| is_stored(result)).collect();
    assert_eq!(stored.len(), 1, "{results:?}");
    assert!(results.iter().all(|(_, result)| is_stored(result) || *result == UpdateResult::Exists));
    assert_eq!(named(harness, &harness.tenant_id, "a").await, Some(stored[0].0));
}
