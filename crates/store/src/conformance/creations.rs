//! Objects that are created at most once per idempotency key.

use std::sync::Arc;

use redrive_core::{
    KeyId, OperationId, TenantId, Time,
    delivery::bulk_operation::{OperationFilter, OperationKind, OperationState, OperationTarget},
    protection::breaker::Circuit,
    webhook::uid::WebhookUid,
};

use super::{Harness, at, page, together};
use crate::{
    ApiKey, CreatedObject, CreationKey, CreationResult, EventType, NewObject, Operation, OperationProgress,
    OperationRequest, Tenant,
};

/// Lifetime of keys in these cases, in milliseconds.
const LIFE: i64 = 1000;

/// Returns a key for objects of the harness's tenant. `body` stands for the hash of the body.
fn key(harness: &Harness, name: u8, body: u8, time: i64) -> CreationKey {
    CreationKey {
        tenant_id: Some(harness.tenant_id.clone()),
        key_hash: [name; 32],
        body_hash: [body; 32],
        expires_at: at(time + LIFE),
        confirmed_now: at(time),
    }
}

fn webhook(harness: &Harness) -> NewObject {
    NewObject::Webhook(Box::new(harness.webhook_of(&harness.tenant_id)), None)
}

fn tenant(id: &str) -> NewObject {
    let (metadata, rules) = (Default::default(), Default::default());
    NewObject::Tenant(Tenant {
        id: TenantId::parse(id).unwrap(),
        name: None,
        metadata,
        rules,
        created_at: at(1),
    })
}

fn api_key(harness: &Harness) -> NewObject {
    let random = harness.next();
    let mut hash = [0; 32];
    hash[..10].copy_from_slice(&random);
    NewObject::Key(ApiKey {
        id: KeyId::new(at(0), &random),
        tenant_id: Some(harness.tenant_id.clone()),
        installation: false,
        name: "deploy".into(),
        hash,
        scopes: 5,
        session: false,
        networks: Vec::new(),
        created_at: at(3),
        expires_at: None,
        revoked_at: None,
        last_used_at: None,
    })
}

fn event_type(harness: &Harness, name: &str, max: usize) -> NewObject {
    let new = EventType {
        tenant_id: harness.tenant_id.clone(),
        name: name.into(),
        description: None,
        example: None,
        schema: None,
        archived: false,
        created_at: at(1),
        updated_at: at(1),
    };
    NewObject::EventType(new, max)
}

fn operation(harness: &Harness) -> NewObject {
    NewObject::Operation(Box::new(Operation {
        id: OperationId::new(at(0), &harness.next()),
        tenant_id: harness.tenant_id.clone(),
        order: OperationRequest {
            kind: OperationKind::Retry,
            among: OperationTarget::Dead,
            selection: OperationFilter::default(),
            rate: None,
            priority: None,
        },
        state: OperationState::Scheduled,
        created_by: "test".into(),
        created_at: at(0),
        start_at: Time::FAR_FUTURE,
        began_at: None,
        finished_at: None,
        updated_at: at(0),
        claimed_by: None,
        cursor: None,
        progress: OperationProgress::default(),
        rate_since: None,
    }))
}

async fn create(harness: &Harness, object: NewObject, key: CreationKey) -> CreationResult {
    harness.store().create(object, key).await.unwrap()
}

fn is_created(result: &CreationResult) -> bool {
    matches!(result, CreationResult::Created { .. })
}

async fn webhook_count(harness: &Harness) -> usize {
    let listed = harness.store().list_webhooks(harness.tenant_id.clone(), Default::default(), page(1000));
    listed.await.unwrap().len()
}

pub async fn every_kind_of_object_is_created_once_per_key(harness: &Arc<Harness>) {
    let mut forced = harness.webhook_of(&harness.tenant_id);
    forced.spec.uid = Some(WebhookUid::parse("forced").unwrap());
    let circuit = Circuit::new(at(0)).to_saved();
    let objects = [
        webhook(harness),
        NewObject::Webhook(Box::new(forced), Some(circuit)),
        tenant("globex"),
        api_key(harness),
        event_type(harness, "order.created", 10),
        operation(harness),
    ];
    for (name, object) in objects.into_iter().enumerate() {
        let key = key(harness, name as u8, 1, 0);
        assert_eq!(harness.store().created_object(key.clone()).await.unwrap(), None);
        assert!(is_created(&create(harness, object.clone(), key.clone()).await), "{object:?}");
        let known = CreatedObject { id: object.id(), body_hash: [1; 32] };
        assert_eq!(harness.store().created_object(key.clone()).await.unwrap(), Some(known.clone()));
        assert_eq!(create(harness, object, key).await, CreationResult::KeyUsed(known));
    }
    let created = harness.store().tenant(TenantId::parse("globex").unwrap()).await.unwrap();
    assert!(created.is_some());
    let names = harness.store().event_type_names(harness.tenant_id.clone()).await.unwrap();
    assert_eq!(names, ["order.created"]);
    assert_eq!(harness.store().live_keys().await.unwrap().len(), 1);
    let operations = harness.store().list_operations(harness.tenant_id.clone(), page(10)).await.unwrap();
    assert_eq!(operations.len(), 1);
}

pub async fn key_of_another_body_names_the_first_object(harness: &Arc<Harness>) {
    let first = webhook(harness);
    assert!(is_created(&create(harness, first.clone(), key(harness, 1, 1, 0)).await));
    let before = webhook_count(harness).await;
    let known = CreatedObject { id: first.id(), body_hash: [1; 32] };
    let second = create(harness, webhook(harness), key(harness, 1, 2, 1)).await;
    assert_eq!(second, CreationResult::KeyUsed(known));
    assert_eq!(webhook_count(harness).await, before);
}

pub async fn keys_of_tenants_and_of_the_installation_are_separate(harness: &Arc<Harness>) {
    let other = harness.new_tenant("initech").await;
    assert!(is_created(&create(harness, webhook(harness), key(harness, 1, 1, 0)).await));
    let theirs = CreationKey { tenant_id: Some(other.clone()), ..key(harness, 1, 2, 0) };
    let new = NewObject::Webhook(Box::new(harness.webhook_of(&other)), None);
    assert!(is_created(&create(harness, new, theirs).await));
    let of_all = CreationKey { tenant_id: None, ..key(harness, 1, 3, 0) };
    assert!(is_created(&create(harness, tenant("globex"), of_all.clone()).await));
    let found = harness.store().created_object(of_all).await.unwrap().unwrap();
    assert_eq!((found.id.as_str(), found.body_hash), ("globex", [3; 32]));
}

pub async fn refused_creation_claims_no_key(harness: &Arc<Harness>) {
    assert!(is_created(&create(harness, event_type(harness, "a.b", 1), key(harness, 1, 1, 0)).await));
    for (object, expected) in [
        (event_type(harness, "a.b", 1), CreationResult::Exists),
        (event_type(harness, "a.c", 1), CreationResult::LimitReached),
        (tenant("default"), CreationResult::Exists),
    ] {
        assert_eq!(create(harness, object, key(harness, 2, 1, 0)).await, expected);
        assert_eq!(harness.store().created_object(key(harness, 2, 1, 0)).await.unwrap(), None);
    }
    let unknown = TenantId::parse("unknown").unwrap();
    let new = NewObject::Webhook(Box::new(harness.webhook_of(&unknown)), None);
    let of_unknown = CreationKey { tenant_id: Some(unknown), ..key(harness, 2, 1, 0) };
    assert_eq!(create(harness, new, of_unknown).await, CreationResult::NoTenant);
    assert!(is_created(&create(harness, webhook(harness), key(harness, 2, 9, 0)).await));
}

pub async fn creation_key_is_held_until_the_confirmed_time_reaches_its_expiry(harness: &Arc<Harness>) {
    let first = webhook(harness);
    assert!(is_created(&create(harness, first.clone(), key(harness, 1, 1, 0)).await));
    let late = create(harness, webhook(harness), key(harness, 1, 2, LIFE - 1)).await;
    assert!(matches!(late, CreationResult::KeyUsed(known) if known.id == first.id()));
    let second = webhook(harness);
    assert!(is_created(&create(harness, second.clone(), key(harness, 1, 2, LIFE)).await));
    let found = harness.store().created_object(key(harness, 1, 2, 2 * LIFE - 1)).await.unwrap().unwrap();
    assert_eq!(found.id, second.id());
    assert_eq!(harness.store().created_object(key(harness, 1, 2, 2 * LIFE)).await.unwrap(), None);
}

pub async fn concurrent_creations_with_one_key_create_one_object(harness: &Arc<Harness>) {
    let creation = |_| {
        let harness = harness.clone();
        async move {
            let new = webhook(&harness);
            (new.id(), create(&harness, new, key(&harness, 1, 1, 0)).await)
        }
    };
    let before = webhook_count(harness).await;
    let results = together((0..50).map(creation)).await;
    let created: Vec<_> = results.iter().filter(|(_, result)| is_created(result)).collect();
    assert_eq!(created.len(), 1, "{results:?}");
    let known = CreationResult::KeyUsed(CreatedObject { id: created[0].0.clone(), body_hash: [1; 32] });
    assert!(results.iter().all(|(_, result)| is_created(result) || *result == known), "{results:?}");
    assert_eq!(webhook_count(harness).await, before + 1);
}

pub async fn expired_creation_keys_are_pruned_in_bounded_steps(harness: &mut Arc<Harness>) {
    for name in 0..3 {
        assert!(is_created(&create(harness, webhook(harness), key(harness, name, 1, 0)).await));
    }
    assert!(is_created(&create(harness, webhook(harness), key(harness, 9, 1, 1)).await));
    Harness::reopen(harness).await;
    assert_eq!(harness.store().prune_idempotency_keys(at(LIFE - 1), 10).await.unwrap(), 0);
    for pruned in [2, 1, 0] {
        assert_eq!(harness.store().prune_idempotency_keys(at(LIFE), 2).await.unwrap(), pruned);
    }
    assert_eq!(harness.store().created_object(key(harness, 0, 1, 0)).await.unwrap(), None);
    assert!(harness.store().created_object(key(harness, 9, 1, 1)).await.unwrap().is_some());
}
