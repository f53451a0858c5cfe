//! The catalogue of event types.

use std::sync::Arc;

use redrive_core::TenantId;

use super::{Bench, at, page, together};
use crate::{Birth, Changed, EventType, NewEvent, PageRequest, Published, Registered, VersionedType};

fn event_type(tenant: &TenantId, name: &str) -> EventType {
    EventType {
        tenant: tenant.clone(),
        name: name.into(),
        description: Some("Somebody ordered \u{1f600}".into()),
        example: Some(r#"{"order":  1e999, "nul": "\u0000"}"#.into()),
        schema: Some(r#"{"type":  "object"}"#.into()),
        archived: false,
        created_at: at(1),
        updated_at: at(2),
    }
}

async fn create(bench: &Bench, name: &str) -> EventType {
    let made = event_type(&bench.tenant, name);
    assert_eq!(bench.store().create_event_type(made.clone(), 100).await.unwrap(), Registered::Done);
    made
}

async fn find(bench: &Bench, name: &str) -> Option<VersionedType> {
    bench.store().event_type(bench.tenant.clone(), name.into()).await.unwrap()
}

async fn names(bench: &Bench, archived: Option<bool>, page: PageRequest<String>) -> Vec<String> {
    let listed = bench.store().list_event_types(bench.tenant.clone(), archived, page).await.unwrap();
    listed.into_iter().map(|one| one.name).collect()
}

async fn versions(bench: &Bench) -> (i64, i64) {
    let changes = bench.store().config_changes(bench.tenant.clone(), 0, 100).await.unwrap().unwrap();
    (changes.version, changes.types_version)
}

pub async fn a_type_is_kept_as_it_was_given(bench: &mut Arc<Bench>) {
    let full = create(bench, "order.created").await;
    let bare =
        EventType { description: None, example: None, schema: None, ..event_type(&bench.tenant, "bare") };
    assert_eq!(bench.store().create_event_type(bare.clone(), 100).await.unwrap(), Registered::Done);
    Bench::reopen(bench).await;
    assert_eq!(find(bench, "order.created").await.unwrap().event_type, full);
    assert_eq!(find(bench, "bare").await.unwrap().event_type, bare);
    assert_eq!(find(bench, "Order.Created").await, None);
}

pub async fn a_name_is_taken_once_and_there_are_only_so_many(bench: &Arc<Bench>) {
    let first = create(bench, "order.created").await;
    let again = EventType { description: None, ..first.clone() };
    assert_eq!(bench.store().create_event_type(again, 100).await.unwrap(), Registered::Exists);
    assert_eq!(find(bench, "order.created").await.unwrap().event_type, first);
    let second = event_type(&bench.tenant, "order.paid");
    assert_eq!(bench.store().create_event_type(second.clone(), 1).await.unwrap(), Registered::TooMany);
    assert_eq!(find(bench, "order.paid").await, None);
    let nobody = TenantId::parse("nobody").unwrap();
    let lost = bench.store().create_event_type(event_type(&nobody, "order.paid"), 100).await.unwrap();
    assert_eq!(lost, Registered::Missing);
    let many = (0..10).map(|n| {
        let (bench, one) = (bench.clone(), event_type(&bench.tenant, &format!("many.{}", n % 5)));
        async move { bench.store().create_event_type(one, 4).await.unwrap() }
    });
    let made = together(many).await.into_iter().filter(|made| *made == Registered::Done).count();
    assert_eq!((made, names(bench, None, page(100)).await.len()), (3, 4), "one was there");
}

pub async fn only_what_was_read_is_changed(bench: &Arc<Bench>) {
    create(bench, "order.created").await;
    let VersionedType { event_type: mut one, revision } = find(bench, "order.created").await.unwrap();
    (one.archived, one.schema, one.updated_at) = (true, None, at(9));
    let Changed::Done { version } = bench.store().change_event_type(one.clone(), revision).await.unwrap()
    else {
        panic!("it was as it was read")
    };
    assert_eq!(
        find(bench, "order.created").await,
        Some(VersionedType { event_type: one.clone(), revision: version })
    );
    assert_eq!(bench.store().change_event_type(one.clone(), revision).await.unwrap(), Changed::Stale);
    assert!(bench.store().delete_event_type(bench.tenant.clone(), "order.created".into()).await.unwrap());
    assert!(!bench.store().delete_event_type(bench.tenant.clone(), "order.created".into()).await.unwrap());
    assert_eq!(bench.store().change_event_type(one, version).await.unwrap(), Changed::Missing);
    assert_eq!(find(bench, "order.created").await, None);
}

pub async fn types_are_listed_by_name(bench: &Arc<Bench>) {
    for name in ["b", "a.b", "B", "a-b", "c", "a"] {
        create(bench, name).await;
    }
    let VersionedType { event_type: one, revision } = find(bench, "c").await.unwrap();
    bench.store().change_event_type(EventType { archived: true, ..one }, revision).await.unwrap();
    // By bytes, on every store.
    assert_eq!(names(bench, None, page(100)).await, ["B", "a", "a-b", "a.b", "b", "c"]);
    assert_eq!(names(bench, Some(true), page(100)).await, ["c"]);
    assert_eq!(names(bench, Some(false), page(2)).await, ["B", "a"]);
    let next = PageRequest { after: Some("a".to_owned()), offset: 0, limit: 2 };
    assert_eq!(names(bench, None, next).await, ["a-b", "a.b"]);
    let skipped = PageRequest { after: None, offset: 4, limit: 10 };
    assert_eq!(names(bench, None, skipped).await, ["b", "c"]);
}

pub async fn tenants_have_their_own(bench: &Arc<Bench>) {
    create(bench, "order.created").await;
    let other = bench.new_tenant("globex").await;
    let store = bench.store();
    assert_eq!(store.event_type(other.clone(), "order.created".into()).await.unwrap(), None);
    assert_eq!(store.list_event_types(other.clone(), None, page(10)).await.unwrap(), []);
    assert_eq!(store.event_type_names(other.clone()).await.unwrap(), [] as [String; 0]);
    assert_eq!(store.event_types_since(other.clone(), 0, 10).await.unwrap(), []);
    assert!(!store.delete_event_type(other.clone(), "order.created".into()).await.unwrap());
    let one = event_type(&other, "order.created");
    assert_eq!(store.change_event_type(one.clone(), 1).await.unwrap(), Changed::Missing);
    assert_eq!(store.create_event_type(one, 1).await.unwrap(), Registered::Done);
    assert!(find(bench, "order.created").await.is_some());
}

pub async fn every_change_is_a_version_of_its_own(bench: &Arc<Bench>) {
    let (before, types) = versions(bench).await;
    assert_eq!(types, 0, "whoever has none need not look");
    create(bench, "a").await;
    create(bench, "b").await;
    let (now, types) = versions(bench).await;
    assert_eq!((now, types), (before + 2, before + 2));
    let since = async |version| {
        let changed = bench.store().event_types_since(bench.tenant.clone(), version, 10).await.unwrap();
        changed.into_iter().map(|one| (one.event_type.name, one.revision)).collect::<Vec<_>>()
    };
    assert_eq!(since(0).await, [("a".to_owned(), before + 1), ("b".to_owned(), before + 2)]);
    let VersionedType { event_type: one, revision } = find(bench, "a").await.unwrap();
    bench.store().change_event_type(one, revision).await.unwrap();
    assert_eq!(since(before + 2).await, [("a".to_owned(), before + 3)]);
    bench.store().delete_event_type(bench.tenant.clone(), "b".into()).await.unwrap();
    assert_eq!(versions(bench).await, (before + 4, before + 4));
    assert_eq!(bench.store().event_type_names(bench.tenant.clone()).await.unwrap(), ["a"]);
    // A webhook is none of the catalogue's business.
    bench.store().create_webhook(bench.webhook_of(&bench.tenant)).await.unwrap();
    assert_eq!(versions(bench).await, (before + 5, before + 4));
}

pub async fn whoever_checked_by_an_older_catalogue_is_refused(bench: &Arc<Bench>) {
    let (config_version, _) = versions(bench).await;
    create(bench, "order.created").await;
    let new = bench.fan_out(bench.event(at(5)), &[(bench.webhook, Birth::Waiting(at(5)))]);
    let stale = NewEvent { config_version, ..new };
    assert_eq!(bench.try_publish(stale).await.unwrap(), Published::ConfigChanged);
}
