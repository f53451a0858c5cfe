//! Addresses that do not want to hear of something any more.

use std::sync::Arc;

use redrive_core::{TenantId, notification::Kind};

use super::{Bench, at, page};
use crate::{PageRequest, Tenant, Unsubscribed};

const JANE: &str = "Jane.O'Neil+\u{1f600}@example.com";
const OPS: &str = "ops@example.com";

async fn unsubscribe(bench: &Bench, address: &str, kind: Kind) -> bool {
    bench.store().unsubscribe(bench.tenant.clone(), address.into(), kind, at(5)).await.unwrap()
}

async fn listed(bench: &Bench) -> Vec<(String, Kind)> {
    let listed = bench.store().list_unsubscribed(bench.tenant.clone(), page(100)).await.unwrap();
    listed.into_iter().map(|one| (one.address, one.kind)).collect()
}

pub async fn who_unsubscribes_is_remembered_by_kind(bench: &mut Arc<Bench>) {
    assert!(unsubscribe(bench, JANE, Kind::DeliveryDead).await);
    assert!(!unsubscribe(bench, JANE, Kind::DeliveryDead).await, "once is enough");
    assert!(unsubscribe(bench, OPS, Kind::SecretDue).await);
    Bench::reopen(bench).await;
    let all = || vec![OPS.to_owned(), JANE.to_owned(), "else@example.com".to_owned()];
    for (kind, expected) in
        [(Kind::DeliveryDead, vec![JANE]), (Kind::SecretDue, vec![OPS]), (Kind::CircuitOpened, vec![])]
    {
        let found = bench.store().unsubscribed(bench.tenant.clone(), kind, all()).await.unwrap();
        assert_eq!(found, expected, "{kind:?}");
    }
    let nobody = bench.store().unsubscribed(bench.tenant.clone(), Kind::SecretDue, vec![]).await.unwrap();
    assert_eq!(nobody, [""; 0]);
}

pub async fn it_can_be_undone_by_kind_or_altogether(bench: &Arc<Bench>) {
    for kind in Kind::ALL {
        unsubscribe(bench, JANE, kind).await;
    }
    unsubscribe(bench, OPS, Kind::SecretDue).await;
    let again = |address: &str, kind| bench.store().resubscribe(bench.tenant.clone(), address.into(), kind);
    assert_eq!(again(JANE, Some(Kind::SecretDue)).await.unwrap(), 1);
    assert_eq!(again(JANE, Some(Kind::SecretDue)).await.unwrap(), 0);
    assert_eq!(again(JANE, None).await.unwrap(), Kind::ALL.len() - 1);
    assert_eq!(listed(bench).await, [(OPS.to_owned(), Kind::SecretDue)]);
}

pub async fn who_unsubscribed_is_listed_in_order_and_by_pages(bench: &Arc<Bench>) {
    for (address, kind) in [(OPS, Kind::SecretDue), (OPS, Kind::DeliveryDead), (JANE, Kind::QuotaReached)] {
        unsubscribe(bench, address, kind).await;
    }
    let first = Unsubscribed { address: JANE.into(), kind: Kind::QuotaReached, at: at(5) };
    let one = |after| PageRequest { after, offset: 0, limit: 1 };
    let found = bench.store().list_unsubscribed(bench.tenant.clone(), one(None)).await.unwrap();
    assert_eq!(found, std::slice::from_ref(&first));
    let rest = PageRequest { after: Some(first.cursor()), offset: 0, limit: 100 };
    let rest = bench.store().list_unsubscribed(bench.tenant.clone(), rest).await.unwrap();
    assert_eq!(rest.iter().map(|one| one.kind).collect::<Vec<_>>(), [Kind::DeliveryDead, Kind::SecretDue]);
    let next =
        bench.store().list_unsubscribed(bench.tenant.clone(), one(Some(rest[0].cursor()))).await.unwrap();
    assert_eq!(next, rest[1..]);
    let last = PageRequest { after: None, offset: 2, limit: 5 };
    assert_eq!(bench.store().list_unsubscribed(bench.tenant.clone(), last).await.unwrap(), rest[1..]);
}

pub async fn who_unsubscribed_is_the_tenants_own_and_goes_with_it(bench: &Arc<Bench>) {
    let other = TenantId::parse("globex").unwrap();
    let gone =
        |tenant: &TenantId| bench.store().unsubscribe(tenant.clone(), OPS.into(), Kind::DeliveryDead, at(5));
    assert!(!gone(&other).await.unwrap(), "there is no such tenant");
    let tenant = Tenant { id: other.clone(), name: None, rules: Default::default(), created_at: at(1) };
    bench.store().create_tenant(tenant).await.unwrap();
    assert!(gone(&other).await.unwrap());
    assert_eq!(listed(bench).await, []);
    let back = bench.store().resubscribe(bench.tenant.clone(), OPS.into(), None).await.unwrap();
    assert_eq!(back, 0, "another tenant's is not touched");
    let asked = bench.store().unsubscribed(other.clone(), Kind::DeliveryDead, vec![OPS.into()]);
    assert_eq!(asked.await.unwrap(), [OPS]);
    bench.store().delete_tenant(other.clone(), at(9)).await.unwrap();
    let asked = bench.store().unsubscribed(other.clone(), Kind::DeliveryDead, vec![OPS.into()]);
    assert_eq!(asked.await.unwrap(), [""; 0]);
    assert!(!gone(&other).await.unwrap(), "a tenant that is gone stays so");
}
