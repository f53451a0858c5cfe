//! The catalogue of event types.

use std::sync::Arc;

use redrive_core::TenantId;

use super::{Harness, at, page, together};
use crate::{
    EventType, InitialState, NewEvent, PageRequest, PublishResult, RegisterResult, UpdateResult,
    VersionedType,
};

fn event_type(tenant_id: &TenantId, name: &str) -> EventType {
    EventType {
        tenant_id: tenant_id.clone(),
        name: name.into(),
        description: Some("An order was placed \u{1f600}".into()),
        example: Some(r#"{"order":  1e999, "nul": "\u0000"}"#.into()),
        schema: Some(r#"{"type":  "object"}"#.into()),
        archived: false,
        created_at: at(1),
        updated_at: at(2),
    }
}

async fn create(harness: &Harness, name: &str) -> EventType {
    let created = event_type(&harness.tenant_id, name);
    assert_eq!(harness.store().create_event_type(created.clone(), 100).await.unwrap(), RegisterResult::Done);
    created
}

async fn find(harness: &Harness, name: &str) -> Option<VersionedType> {
    harness.store().event_type(harness.tenant_id.clone(), name.into()).await.unwrap()
}

async fn names(harness: &Harness, archived: Option<bool>, page: PageRequest<String>) -> Vec<String> {
    let listed = harness.store().list_event_types(harness.tenant_id.clone(), archived, page).await.unwrap();
    listed.into_iter().map(|one| one.name).collect()
}

async fn versions(harness: &Harness) -> (i64, i64) {
    let changes = harness.store().config_changes(harness.tenant_id.clone(), 0, 100).await.unwrap().unwrap();
    (changes.version, changes.event_types_version)
}

pub async fn event_type_is_stored_unchanged(harness: &mut Arc<Harness>) {
    let full = create(harness, "order.created").await;
    let bare = EventType {
        description: None,
        example: None,
        schema: None,
        ..event_type(&harness.tenant_id, "bare")
    };
    assert_eq!(harness.store().create_event_type(bare.clone(), 100).await.unwrap(), RegisterResult::Done);
    Harness::reopen(harness).await;
    assert_eq!(find(harness, "order.created").await.unwrap().event_type, full);
    assert_eq!(find(harness, "bare").await.unwrap().event_type, bare);
    assert_eq!(find(harness, "Order.Created").await, None);
}

pub async fn event_type_names_are_unique_and_limited_in_number(harness: &Arc<Harness>) {
    let first = create(harness, "order.created").await;
    let again = EventType { description: None, ..first.clone() };
    assert_eq!(harness.store().create_event_type(again, 100).await.unwrap(), RegisterResult::Exists);
    assert_eq!(find(harness, "order.created").await.unwrap().event_type, first);
    let second = event_type(&harness.tenant_id, "order.paid");
    assert_eq!(
        harness.store().create_event_type(second.clone(), 1).await.unwrap(),
        RegisterResult::LimitReached
    );
    assert_eq!(find(harness, "order.paid").await, None);
    let unknown = TenantId::parse("unknown").unwrap();
    let lost = harness.store().create_event_type(event_type(&unknown, "order.paid"), 100).await.unwrap();
    assert_eq!(lost, RegisterResult::NotFound);
    let many = (0..10).map(|n| {
        let (harness, one) = (harness.clone(), event_type(&harness.tenant_id, &format!("many.{}", n % 5)));
        async move { harness.store().create_event_type(one, 4).await.unwrap() }
    });
    let created = together(many).await.into_iter().filter(|result| *result == RegisterResult::Done).count();
    assert_eq!(
        (created, names(harness, None, page(100)).await.len()),
        (3, 4),
        "one event type existed before"
    );
}

pub async fn change_needs_the_current_revision(harness: &Arc<Harness>) {
    create(harness, "order.created").await;
    let VersionedType { event_type: mut one, revision } = find(harness, "order.created").await.unwrap();
    (one.archived, one.schema, one.updated_at) = (true, None, at(9));
    let UpdateResult::Updated { version } =
        harness.store().change_event_type(one.clone(), revision).await.unwrap()
    else {
        panic!("the revision is current")
    };
    assert_eq!(
        find(harness, "order.created").await,
        Some(VersionedType { event_type: one.clone(), revision: version })
    );
    assert_eq!(harness.store().change_event_type(one.clone(), revision).await.unwrap(), UpdateResult::Stale);
    assert!(
        harness.store().delete_event_type(harness.tenant_id.clone(), "order.created".into()).await.unwrap()
    );
    assert!(
        !harness.store().delete_event_type(harness.tenant_id.clone(), "order.created".into()).await.unwrap()
    );
    assert_eq!(harness.store().change_event_type(one, version).await.unwrap(), UpdateResult::NotFound);
    assert_eq!(find(harness, "order.created").await, None);
}

pub async fn event_types_are_listed_by_name(harness: &Arc<Harness>) {
    for name in ["b", "a.b", "B", "a-b", "c", "a"] {
        create(harness, name).await;
    }
    let VersionedType { event_type: one, revision } = find(harness, "c").await.unwrap();
    harness.store().change_event_type(EventType { archived: true, ..one }, revision).await.unwrap();
    // Every store sorts by bytes.
    assert_eq!(names(harness, None, page(100)).await, ["B", "a", "a-b", "a.b", "b", "c"]);
    assert_eq!(names(harness, Some(true), page(100)).await, ["c"]);
    assert_eq!(names(harness, Some(false), page(2)).await, ["B", "a"]);
    let next = PageRequest { after: Some("a".to_owned()), offset: 0, limit: 2 };
    assert_eq!(names(harness, None, next).await, ["a-b", "a.b"]);
    let skipped = PageRequest { after: None, offset: 4, limit: 10 };
    assert_eq!(names(harness, None, skipped).await, ["b", "c"]);
}

pub async fn event_types_are_separate_per_tenant(harness: &Arc<Harness>) {
    create(harness, "order.created").await;
    let other = harness.new_tenant("globex").await;
    let store = harness.store();
    assert_eq!(store.event_type(other.clone(), "order.created".into()).await.unwrap(), None);
    assert_eq!(store.list_event_types(other.clone(), None, page(10)).await.unwrap(), []);
    assert_eq!(store.event_type_names(other.clone()).await.unwrap(), [] as [String; 0]);
    assert_eq!(store.event_types_since(other.clone(), 0, 10).await.unwrap(), []);
    assert!(!store.delete_event_type(other.clone(), "order.created".into()).await.unwrap());
    let one = event_type(&other, "order.created");
    assert_eq!(store.change_event_type(one.clone(), 1).await.unwrap(), UpdateResult::NotFound);
    assert_eq!(store.create_event_type(one, 1).await.unwrap(), RegisterResult::Done);
    assert!(find(harness, "order.created").await.is_some());
}

pub async fn every_event_type_change_gets_a_new_version(harness: &Arc<Harness>) {
    let (before, types) = versions(harness).await;
    assert_eq!(types, 0, "a tenant without event types has version 0");
    create(harness, "a").await;
    create(harness, "b").await;
    let (now, types) = versions(harness).await;
    assert_eq!((now, types), (before + 2, before + 2));
    let since = async |version| {
        let changed =
            harness.store().event_types_since(harness.tenant_id.clone(), version, 10).await.unwrap();
        changed.into_iter().map(|one| (one.event_type.name, one.revision)).collect::<Vec<_>>()
    };
    assert_eq!(since(0).await, [("a".to_owned(), before + 1), ("b".to_owned(), before + 2)]);
    let VersionedType { event_type: one, revision } = find(harness, "a").await.unwrap();
    harness.store().change_event_type(one, revision).await.unwrap();
    assert_eq!(since(before + 2).await, [("a".to_owned(), before + 3)]);
    harness.store().delete_event_type(harness.tenant_id.clone(), "b".into()).await.unwrap();
    assert_eq!(versions(harness).await, (before + 4, before + 4));
    assert_eq!(harness.store().event_type_names(harness.tenant_id.clone()).await.unwrap(), ["a"]);
    // A change of a webhook does not change the version of the catalogue.
    harness.store().create_webhook(harness.webhook_of(&harness.tenant_id)).await.unwrap();
    assert_eq!(versions(harness).await, (before + 5, before + 4));
}

pub async fn publish_with_stale_catalogue_is_rejected(harness: &Arc<Harness>) {
    let (config_version, _) = versions(harness).await;
    create(harness, "order.created").await;
    let new = harness.fan_out(harness.event(at(5)), &[(harness.webhook_id, InitialState::Waiting(at(5)))]);
    let stale = NewEvent { config_version, ..new };
    assert_eq!(harness.try_publish(stale).await.unwrap(), PublishResult::ConfigChanged);
}
