//! Unsubscriptions of email addresses, per kind of notification.

use std::sync::Arc;

use redrive_core::{TenantId, notification::NotificationKind};

use super::{Harness, at, page};
use crate::{PageRequest, Tenant, Unsubscription};

const JANE: &str = "Jane.O'Neil+\u{1f600}@example.com";
const OPS: &str = "ops@example.com";

async fn unsubscribe(harness: &Harness, address: &str, kind: NotificationKind) -> bool {
    harness.store().unsubscribe(harness.tenant_id.clone(), address.into(), kind, at(5)).await.unwrap()
}

async fn listed(harness: &Harness) -> Vec<(String, NotificationKind)> {
    let listed = harness.store().list_unsubscribed(harness.tenant_id.clone(), page(100)).await.unwrap();
    listed.into_iter().map(|one| (one.address, one.kind)).collect()
}

pub async fn unsubscription_is_stored_by_kind(harness: &mut Arc<Harness>) {
    assert!(unsubscribe(harness, JANE, NotificationKind::DeliveryDead).await);
    assert!(
        !unsubscribe(harness, JANE, NotificationKind::DeliveryDead).await,
        "a repeated unsubscription changes nothing"
    );
    assert!(unsubscribe(harness, OPS, NotificationKind::SecretRotationDue).await);
    Harness::reopen(harness).await;
    let all = || vec![OPS.to_owned(), JANE.to_owned(), "else@example.com".to_owned()];
    for (kind, expected) in [
        (NotificationKind::DeliveryDead, vec![JANE]),
        (NotificationKind::SecretRotationDue, vec![OPS]),
        (NotificationKind::CircuitOpened, vec![]),
    ] {
        let found = harness.store().unsubscribed(harness.tenant_id.clone(), kind, all()).await.unwrap();
        assert_eq!(found, expected, "{kind:?}");
    }
    let unknown = harness
        .store()
        .unsubscribed(harness.tenant_id.clone(), NotificationKind::SecretRotationDue, vec![])
        .await
        .unwrap();
    assert_eq!(unknown, [""; 0]);
}

pub async fn resubscribe_removes_one_kind_or_all(harness: &Arc<Harness>) {
    for kind in NotificationKind::ALL {
        unsubscribe(harness, JANE, kind).await;
    }
    unsubscribe(harness, OPS, NotificationKind::SecretRotationDue).await;
    let again =
        |address: &str, kind| harness.store().resubscribe(harness.tenant_id.clone(), address.into(), kind);
    assert_eq!(again(JANE, Some(NotificationKind::SecretRotationDue)).await.unwrap(), 1);
    assert_eq!(again(JANE, Some(NotificationKind::SecretRotationDue)).await.unwrap(), 0);
    assert_eq!(again(JANE, None).await.unwrap(), NotificationKind::ALL.len() - 1);
    assert_eq!(listed(harness).await, [(OPS.to_owned(), NotificationKind::SecretRotationDue)]);
}

pub async fn unsubscriptions_are_listed_in_order_in_pages(harness: &Arc<Harness>) {
    for (address, kind) in [
        (OPS, NotificationKind::SecretRotationDue),
        (OPS, NotificationKind::DeliveryDead),
        (JANE, NotificationKind::QuotaReached),
    ] {
        unsubscribe(harness, address, kind).await;
    }
    let first =
        Unsubscription { address: JANE.into(), kind: NotificationKind::QuotaReached, unsubscribed_at: at(5) };
    let one = |after| PageRequest { after, offset: 0, limit: 1 };
    let found = harness.store().list_unsubscribed(harness.tenant_id.clone(), one(None)).await.unwrap();
    assert_eq!(found, std::slice::from_ref(&first));
    let rest = PageRequest { after: Some(first.cursor()), offset: 0, limit: 100 };
    let rest = harness.store().list_unsubscribed(harness.tenant_id.clone(), rest).await.unwrap();
    assert_eq!(
        rest.iter().map(|one| one.kind).collect::<Vec<_>>(),
        [NotificationKind::DeliveryDead, NotificationKind::SecretRotationDue]
    );
    let next = harness
        .store()
        .list_unsubscribed(harness.tenant_id.clone(), one(Some(rest[0].cursor())))
        .await
        .unwrap();
    assert_eq!(next, rest[1..]);
    let last = PageRequest { after: None, offset: 2, limit: 5 };
    assert_eq!(harness.store().list_unsubscribed(harness.tenant_id.clone(), last).await.unwrap(), rest[1..]);
}

pub async fn unsubscriptions_belong_to_the_tenant_and_are_deleted_with_it(harness: &Arc<Harness>) {
    let other = TenantId::parse("globex").unwrap();
    let gone = |tenant_id: &TenantId| {
        harness.store().unsubscribe(tenant_id.clone(), OPS.into(), NotificationKind::DeliveryDead, at(5))
    };
    assert!(!gone(&other).await.unwrap(), "the tenant does not exist");
    let tenant = Tenant {
        id: other.clone(),
        metadata: Default::default(),
        name: None,
        rules: Default::default(),
        created_at: at(1),
    };
    harness.store().create_tenant(tenant).await.unwrap();
    assert!(gone(&other).await.unwrap());
    assert_eq!(listed(harness).await, []);
    let back = harness.store().resubscribe(harness.tenant_id.clone(), OPS.into(), None).await.unwrap();
    assert_eq!(back, 0, "the unsubscription of another tenant is not changed");
    let request =
        harness.store().unsubscribed(other.clone(), NotificationKind::DeliveryDead, vec![OPS.into()]);
    assert_eq!(request.await.unwrap(), [OPS]);
    harness.store().delete_tenant(other.clone(), at(9)).await.unwrap();
    let request =
        harness.store().unsubscribed(other.clone(), NotificationKind::DeliveryDead, vec![OPS.into()]);
    assert_eq!(request.await.unwrap(), [""; 0]);
    assert!(!gone(&other).await.unwrap(), "a deleted tenant accepts no unsubscription");
}
