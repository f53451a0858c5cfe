//! Tenants and the keys that act for them.

use std::sync::Arc;

use redrive_core::{
    KeyId, TenantId,
    notification::{
        Kind,
        preferences::{Language, Notifications},
    },
    protection::limiter::RateLimit,
    tenancy::{TenantQuotas, TenantRules},
};

use super::{Bench, at, page};
use crate::{ApiKey, PageRequest, Tenant};

/// A key that is not stored yet, of the given tenant or an admin's.
fn key(bench: &Bench, tenant: Option<&TenantId>) -> ApiKey {
    let random = bench.next();
    let mut hash = [0; 32];
    hash[..10].copy_from_slice(&random);
    ApiKey {
        id: KeyId::new(at(0), &random),
        tenant: tenant.cloned(),
        name: "deploy \u{1f511}".into(),
        hash,
        scopes: 5,
        session: false,
        networks: vec!["10.0.0.0/8".parse().unwrap(), "2001:db8::/32".parse().unwrap()],
        created_at: at(3),
        expires_at: Some(at(1_000)),
        revoked_at: None,
        last_used_at: None,
    }
}

async fn new_key(bench: &Bench, tenant: Option<&TenantId>) -> ApiKey {
    let key = key(bench, tenant);
    assert!(bench.store().create_key(key.clone()).await.unwrap());
    key
}

async fn list(bench: &Bench, tenant: Option<&TenantId>) -> Vec<ApiKey> {
    bench.store().list_keys(tenant.cloned(), page(1000)).await.unwrap()
}

async fn live(bench: &Bench) -> Vec<ApiKey> {
    let mut keys = bench.store().live_keys().await.unwrap();
    keys.sort_by_key(|key| key.id);
    keys
}

pub async fn there_is_a_tenant_from_the_start(bench: &Arc<Bench>) {
    let default = bench.store().tenant(TenantId::default()).await.unwrap().unwrap();
    assert_eq!(default.id, TenantId::default());
    assert!(!bench.store().create_tenant(default).await.unwrap());
}

pub async fn a_tenant_is_made_once(bench: &Arc<Bench>) {
    let id = TenantId::parse("globex").unwrap();
    assert_eq!(bench.store().tenant(id.clone()).await.unwrap(), None);
    let rules = TenantRules {
        strict_event_types: true,
        pool: Some("slow".into()),
        rate_limit: Some(RateLimit { requests_per_minute: 60, burst: None }),
        max_in_flight: Some(3),
        quotas: TenantQuotas {
            max_webhooks: Some(4),
            max_payload_bytes: Some(9),
            retention_days: Some(7),
            ..TenantQuotas::default()
        },
        notifications: Notifications {
            emails: vec!["ops@example.com".into()],
            mute: vec![Kind::SecretDue],
            language: Some(Language::De),
        },
    };
    let tenant = Tenant { id: id.clone(), name: None, rules, created_at: at(7) };
    assert!(bench.store().create_tenant(tenant.clone()).await.unwrap());
    let again = Tenant { name: Some("Another".into()), ..tenant.clone() };
    assert!(!bench.store().create_tenant(again).await.unwrap());
    assert_eq!(bench.store().tenant(id).await.unwrap(), Some(tenant));
}

pub async fn a_tenant_can_be_changed(bench: &mut Arc<Bench>) {
    let before = bench.store().tenant(bench.tenant.clone()).await.unwrap().unwrap();
    let rules = TenantRules { max_in_flight: Some(7), ..TenantRules::default() };
    let changed = Tenant { name: None, rules: rules.clone(), ..before };
    assert!(bench.store().change_tenant(changed.clone()).await.unwrap());
    let nobody = Tenant { id: TenantId::parse("nobody").unwrap(), ..changed.clone() };
    assert!(!bench.store().change_tenant(nobody.clone()).await.unwrap());
    assert_eq!(bench.store().tenant(nobody.id).await.unwrap(), None);
    Bench::reopen(bench).await;
    assert_eq!(bench.store().tenant(bench.tenant.clone()).await.unwrap(), Some(changed));
    let told =
        bench.store().config_changes(bench.tenant.clone(), bench.version(), 1_000).await.unwrap().unwrap();
    assert_eq!((told.rules, told.webhooks), (rules, vec![]), "whoever fans out is told");
    assert!(told.version > bench.version());
}

pub async fn tenants_are_listed_by_name_in_pages(bench: &Arc<Bench>) {
    for name in ["zoo", "0-first", "mid_dle", "mid-dle", "middle"] {
        bench.new_tenant(name).await;
    }
    let list = |after: Option<&str>, offset, limit| {
        let after = after.map(|name| TenantId::parse(name).unwrap());
        async move {
            let listed = bench.store().list_tenants(PageRequest { after, offset, limit }).await.unwrap();
            listed.iter().map(|tenant| tenant.id.to_string()).collect::<Vec<_>>()
        }
    };
    // By the bytes of their names, whatever the locale.
    let all = ["0-first", "acme", "default", "mid-dle", "mid_dle", "middle", "zoo"];
    assert_eq!(list(None, 0, 1000).await, all);
    assert_eq!(list(None, 0, 3).await, all[..3]);
    assert_eq!(list(Some("default"), 0, 3).await, all[3..6]);
    assert_eq!(list(Some("default"), 2, 3).await, all[5..]);
    assert_eq!(list(Some("zoo"), 0, 3).await, all[7..]);
}

pub async fn a_key_needs_its_tenant(bench: &Arc<Bench>) {
    let nobody = TenantId::parse("nobody").unwrap();
    assert!(!bench.store().create_key(key(bench, Some(&nobody))).await.unwrap());
    assert_eq!(live(bench).await, []);
    let own = new_key(bench, Some(&bench.tenant)).await;
    let admin = new_key(bench, None).await;
    assert_eq!(live(bench).await, [own, admin]);
}

pub async fn keys_are_listed_newest_first_in_pages(bench: &Arc<Bench>) {
    let other = bench.new_tenant("globex").await;
    new_key(bench, Some(&other)).await;
    let admin = new_key(bench, None).await;
    let mut own = Vec::new();
    for _ in 0..5 {
        own.insert(0, new_key(bench, Some(&bench.tenant)).await);
    }
    assert_eq!(list(bench, Some(&bench.tenant)).await, own);
    assert_eq!(list(bench, None).await, [admin]);
    let part = |after, offset, limit| {
        bench.store().list_keys(Some(bench.tenant.clone()), PageRequest { after, offset, limit })
    };
    assert_eq!(part(None, 0, 2).await.unwrap(), own[..2]);
    assert_eq!(part(Some(own[1].id), 0, 2).await.unwrap(), own[2..4]);
    assert_eq!(part(Some(own[1].id), 2, 2).await.unwrap(), own[4..]);
}

pub async fn a_key_lives_until_it_is_revoked(bench: &Arc<Bench>) {
    for tenant in [Some(&bench.tenant), None] {
        let (a, b) = (new_key(bench, tenant).await, new_key(bench, tenant).await);
        let revoke = |time| bench.store().revoke_key(tenant.cloned(), a.id, at(time));
        assert_eq!(live(bench).await, [a.clone(), b.clone()]);
        assert!(revoke(50).await.unwrap());
        assert_eq!(live(bench).await, std::slice::from_ref(&b));
        assert!(!revoke(60).await.unwrap());
        let revoked = ApiKey { revoked_at: Some(at(50)), ..a.clone() };
        assert_eq!(list(bench, tenant).await, [b.clone(), revoked]);
        assert!(bench.store().revoke_key(tenant.cloned(), b.id, at(70)).await.unwrap());
    }
    assert_eq!(live(bench).await, []);
}

pub async fn a_key_is_revoked_by_its_owner_alone(bench: &Arc<Bench>) {
    let other = bench.new_tenant("globex").await;
    let (own, admin) = (new_key(bench, Some(&bench.tenant)).await, new_key(bench, None).await);
    let revoke = |tenant: Option<&TenantId>, id| bench.store().revoke_key(tenant.cloned(), id, at(50));
    assert!(!revoke(Some(&other), own.id).await.unwrap());
    assert!(!revoke(None, own.id).await.unwrap());
    assert!(!revoke(Some(&bench.tenant), admin.id).await.unwrap());
    assert!(!revoke(Some(&bench.tenant), KeyId::new(at(0), &bench.next())).await.unwrap());
    assert_eq!(live(bench).await, [own, admin]);
}

pub async fn tenants_and_keys_survive_reopening(bench: &mut Arc<Bench>) {
    let own = new_key(bench, Some(&bench.tenant)).await;
    let revoked = new_key(bench, None).await;
    bench.store().revoke_key(None, revoked.id, at(50)).await.unwrap();
    Bench::reopen(bench).await;
    assert_eq!(live(bench).await, [own]);
    assert!(bench.store().tenant(bench.tenant.clone()).await.unwrap().is_some());
}

pub async fn it_is_known_when_a_key_was_last_used(bench: &Arc<Bench>) {
    let (one, other) = (new_key(bench, Some(&bench.tenant)).await, new_key(bench, None).await);
    bench.store().note_key_use(vec![(one.id, at(50)), (other.id, at(60))]).await.unwrap();
    // Another node may tell later what was earlier, or of a key that is gone.
    let gone = key(bench, None).id;
    bench.store().note_key_use(vec![(one.id, at(40)), (gone, at(70))]).await.unwrap();
    let used: Vec<_> = live(bench).await.into_iter().map(|key| (key.id, key.last_used_at)).collect();
    assert_eq!(used, [(one.id, Some(at(50))), (other.id, Some(at(60)))]);
}

pub async fn sessions_are_keys_that_are_not_listed_and_go_when_they_are_over(bench: &Arc<Bench>) {
    let session = |expires_at| ApiKey { session: true, expires_at, ..key(bench, Some(&bench.tenant)) };
    let (short, long) = (session(Some(at(10))), session(Some(at(20))));
    for session in [&short, &long] {
        assert!(bench.store().create_key(session.clone()).await.unwrap());
    }
    let own = new_key(bench, Some(&bench.tenant)).await;
    assert_eq!(list(bench, Some(&bench.tenant)).await, std::slice::from_ref(&own));
    assert_eq!(live(bench).await.len(), 3);
    assert_eq!(bench.store().forget_sessions(at(11), 10).await.unwrap(), 1);
    assert_eq!(live(bench).await, [long.clone(), own.clone()]);
    assert!(bench.store().revoke_key(Some(bench.tenant.clone()), long.id, at(12)).await.unwrap());
    assert_eq!(live(bench).await, [own]);
    assert_eq!(bench.store().forget_sessions(at(2_000), 10).await.unwrap(), 1, "keys stay, sessions go");
}

pub async fn a_tenant_that_is_gone_does_nothing_and_leaves_its_name(bench: &mut Arc<Bench>) {
    let own = new_key(bench, Some(&bench.tenant)).await;
    let other = bench.new_tenant("globex").await;
    let others = new_key(bench, Some(&other)).await;
    let (tenant, version) = (bench.tenant.clone(), bench.version());
    let delivered = bench.leased(at(1)).await;
    bench.ends(delivered, crate::Next::Delivered, at(2)).await;
    assert!(bench.store().delete_tenant(tenant.clone(), at(5)).await.unwrap());
    assert!(!bench.store().delete_tenant(tenant.clone(), at(6)).await.unwrap(), "once");
    Bench::reopen(bench).await;
    assert_eq!(bench.store().tenant(tenant.clone()).await.unwrap(), None);
    assert!(bench.store().list_tenants(page(100)).await.unwrap().iter().all(|one| one.id != tenant));
    assert!(bench.store().config_changes(tenant.clone(), version, 10).await.unwrap().is_none());
    assert_eq!(live(bench).await, [others]);
    let keys = list(bench, Some(&tenant)).await;
    assert_eq!((keys[0].id, keys[0].revoked_at), (own.id, Some(at(5))));
    assert!(!bench.store().create_key(key(bench, Some(&tenant))).await.unwrap());
    let again = Tenant { id: tenant.clone(), name: None, rules: TenantRules::default(), created_at: at(9) };
    assert!(!bench.store().create_tenant(again.clone()).await.unwrap(), "nobody gets its name");
    assert!(!bench.store().change_tenant(again).await.unwrap());
    // Whoever fanned out before it went is refused.
    let published = bench.try_publish(bench.new_event(at(7), crate::Birth::Leased)).await.unwrap();
    assert_eq!(published, crate::Published::ConfigChanged);
}
