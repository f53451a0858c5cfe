//! Tenants and API keys.

use redrive_core::delivery::outcome::Outcome;
use std::sync::Arc;

use redrive_core::{
    KeyId, TenantId,
    notification::{
        NotificationKind,
        preferences::{Language, TenantPreferences},
    },
    protection::limiter::RateLimit,
    tenancy::{TenantQuotas, TenantRules},
};

use super::{Harness, at, page};
use crate::{ApiKey, PageRequest, Tenant};

/// Returns a key that is not stored yet, of the given tenant or an admin key.
fn key(harness: &Harness, tenant_id: Option<&TenantId>) -> ApiKey {
    let random = harness.next();
    let mut hash = [0; 32];
    hash[..10].copy_from_slice(&random);
    ApiKey {
        id: KeyId::new(at(0), &random),
        tenant_id: tenant_id.cloned(),
        installation: false,
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

async fn new_key(harness: &Harness, tenant_id: Option<&TenantId>) -> ApiKey {
    let key = key(harness, tenant_id);
    assert!(harness.store().create_key(key.clone()).await.unwrap());
    key
}

async fn list(harness: &Harness, tenant_id: Option<&TenantId>) -> Vec<ApiKey> {
    harness.store().list_keys(tenant_id.cloned(), page(1000)).await.unwrap()
}

async fn live(harness: &Harness) -> Vec<ApiKey> {
    let mut keys = harness.store().live_keys().await.unwrap();
    keys.sort_by_key(|key| key.id);
    keys
}

pub async fn default_tenant_exists_in_a_new_database(harness: &Arc<Harness>) {
    let default = harness.store().tenant(TenantId::default()).await.unwrap().unwrap();
    assert_eq!(default.id, TenantId::default());
    assert!(!harness.store().create_tenant(default).await.unwrap());
}

pub async fn tenant_is_created_once(harness: &Arc<Harness>) {
    let id = TenantId::parse("globex").unwrap();
    assert_eq!(harness.store().tenant(id.clone()).await.unwrap(), None);
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
        notifications: TenantPreferences {
            emails: vec!["ops@example.com".into()],
            muted_kinds: vec![NotificationKind::SecretRotationDue],
            language: Some(Language::De),
        },
    };
    let metadata = serde_json::from_str(r#"{"plan": "gold", "seats": 1.00}"#).unwrap();
    let tenant = Tenant { id: id.clone(), metadata, name: None, rules, created_at: at(7) };
    assert!(harness.store().create_tenant(tenant.clone()).await.unwrap());
    let again = Tenant { name: Some("Another".into()), ..tenant.clone() };
    assert!(!harness.store().create_tenant(again).await.unwrap());
    assert_eq!(harness.store().tenant(id).await.unwrap(), Some(tenant));
}

pub async fn tenant_can_be_changed(harness: &mut Arc<Harness>) {
    let before = harness.store().tenant(harness.tenant_id.clone()).await.unwrap().unwrap();
    let rules = TenantRules { max_in_flight: Some(7), ..TenantRules::default() };
    let changed = Tenant { name: None, rules: rules.clone(), ..before };
    assert!(harness.store().change_tenant(changed.clone()).await.unwrap());
    let unknown = Tenant { id: TenantId::parse("unknown").unwrap(), ..changed.clone() };
    assert!(!harness.store().change_tenant(unknown.clone()).await.unwrap());
    assert_eq!(harness.store().tenant(unknown.id).await.unwrap(), None);
    Harness::reopen(harness).await;
    assert_eq!(harness.store().tenant(harness.tenant_id.clone()).await.unwrap(), Some(changed));
    let changes = harness
        .store()
        .config_changes(harness.tenant_id.clone(), harness.version(), 1_000)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(
        (changes.rules, changes.webhooks),
        (rules, vec![]),
        "the change of the rules is in the configuration changes"
    );
    assert!(changes.version > harness.version());
}

pub async fn rules_of_several_tenants_are_read_together(harness: &Arc<Harness>) {
    let globex = harness.new_tenant("globex").await;
    let gone = harness.new_tenant("gone").await;
    let rules = TenantRules { max_in_flight: Some(7), ..TenantRules::default() };
    let before = harness.store().tenant(globex.clone()).await.unwrap().unwrap();
    assert!(harness.store().change_tenant(Tenant { rules: rules.clone(), ..before }).await.unwrap());
    assert!(harness.store().delete_tenant(gone.clone(), at(5)).await.unwrap());
    let unknown = TenantId::parse("unknown").unwrap();
    let wanted = vec![gone, globex.clone(), unknown, harness.tenant_id.clone()];
    let mut found = harness.store().rules_of_tenants(wanted).await.unwrap();
    found.sort_by(|(a, _), (b, _)| a.cmp(b));
    assert_eq!(found, [(harness.tenant_id.clone(), TenantRules::default()), (globex, rules)]);
    assert_eq!(harness.store().rules_of_tenants(vec![]).await.unwrap(), []);
}

pub async fn tenants_are_listed_by_name_in_pages(harness: &Arc<Harness>) {
    for name in ["zoo", "0-first", "mid_dle", "mid-dle", "middle"] {
        harness.new_tenant(name).await;
    }
    let list = |after: Option<&str>, offset, limit| {
        let after = after.map(|name| TenantId::parse(name).unwrap());
        async move {
            let listed = harness.store().list_tenants(PageRequest { after, offset, limit }).await.unwrap();
            listed.iter().map(|tenant| tenant.id.to_string()).collect::<Vec<_>>()
        }
    };
    // Sorted by the bytes of their names, independent of the locale.
    let all = ["0-first", "acme", "default", "mid-dle", "mid_dle", "middle", "zoo"];
    assert_eq!(list(None, 0, 1000).await, all);
    assert_eq!(list(None, 0, 3).await, all[..3]);
    assert_eq!(list(Some("default"), 0, 3).await, all[3..6]);
    assert_eq!(list(Some("default"), 2, 3).await, all[5..]);
    assert_eq!(list(Some("zoo"), 0, 3).await, all[7..]);
}

pub async fn tenant_ids_are_compared_by_their_bytes(harness: &Arc<Harness>) {
    let ids = ["ORG_1", "Org_1", "org.1", "org:1", "org_1", "org_01EHZNVPK3SFK441A1RGBFSHRT"];
    for id in ids {
        harness.new_tenant(id).await;
    }
    for id in ids {
        let id = TenantId::parse(id).unwrap();
        let found = harness.store().tenant(id.clone()).await.unwrap().unwrap();
        assert_eq!((&found.id, found.name), (&id, Some(id.as_str().to_uppercase())));
        let changes = harness.store().config_changes(id, 0, 10).await.unwrap();
        assert!(changes.unwrap().webhooks.is_empty());
    }
    assert_eq!(harness.store().tenant(TenantId::parse("oRG_1").unwrap()).await.unwrap(), None);
    let listed =
        harness.store().list_tenants(PageRequest { after: None, offset: 0, limit: 100 }).await.unwrap();
    let listed: Vec<_> = listed.iter().map(|tenant| tenant.id.as_str()).collect();
    let mut sorted = [&ids[..], &["acme", "default"]].concat();
    sorted.sort_unstable();
    assert_eq!(listed, sorted);
    let after = PageRequest { after: Some(TenantId::parse("Org_1").unwrap()), offset: 0, limit: 1 };
    assert_eq!(harness.store().list_tenants(after).await.unwrap()[0].id.as_str(), "acme");
}

pub async fn key_requires_its_tenant(harness: &Arc<Harness>) {
    let unknown = TenantId::parse("unknown").unwrap();
    assert!(!harness.store().create_key(key(harness, Some(&unknown))).await.unwrap());
    assert_eq!(live(harness).await, []);
    let own = new_key(harness, Some(&harness.tenant_id)).await;
    let admin = new_key(harness, None).await;
    assert_eq!(live(harness).await, [own, admin]);
}

pub async fn keys_are_listed_newest_first_in_pages(harness: &Arc<Harness>) {
    let other = harness.new_tenant("globex").await;
    new_key(harness, Some(&other)).await;
    let admin = new_key(harness, None).await;
    let mut own = Vec::new();
    for _ in 0..5 {
        own.insert(0, new_key(harness, Some(&harness.tenant_id)).await);
    }
    assert_eq!(list(harness, Some(&harness.tenant_id)).await, own);
    assert_eq!(list(harness, None).await, [admin]);
    let part = |after, offset, limit| {
        harness.store().list_keys(Some(harness.tenant_id.clone()), PageRequest { after, offset, limit })
    };
    assert_eq!(part(None, 0, 2).await.unwrap(), own[..2]);
    assert_eq!(part(Some(own[1].id), 0, 2).await.unwrap(), own[2..4]);
    assert_eq!(part(Some(own[1].id), 2, 2).await.unwrap(), own[4..]);
}

pub async fn key_is_live_until_revoked(harness: &Arc<Harness>) {
    for tenant_id in [Some(&harness.tenant_id), None] {
        let (a, b) = (new_key(harness, tenant_id).await, new_key(harness, tenant_id).await);
        let revoke = |time| harness.store().revoke_key(tenant_id.cloned(), a.id, at(time));
        assert_eq!(live(harness).await, [a.clone(), b.clone()]);
        assert!(revoke(50).await.unwrap());
        assert_eq!(live(harness).await, std::slice::from_ref(&b));
        assert!(!revoke(60).await.unwrap());
        let revoked = ApiKey { revoked_at: Some(at(50)), ..a.clone() };
        assert_eq!(list(harness, tenant_id).await, [b.clone(), revoked]);
        assert!(harness.store().revoke_key(tenant_id.cloned(), b.id, at(70)).await.unwrap());
    }
    assert_eq!(live(harness).await, []);
}

pub async fn key_is_revoked_only_by_its_owner(harness: &Arc<Harness>) {
    let other = harness.new_tenant("globex").await;
    let (own, admin) = (new_key(harness, Some(&harness.tenant_id)).await, new_key(harness, None).await);
    let revoke =
        |tenant_id: Option<&TenantId>, id| harness.store().revoke_key(tenant_id.cloned(), id, at(50));
    assert!(!revoke(Some(&other), own.id).await.unwrap());
    assert!(!revoke(None, own.id).await.unwrap());
    assert!(!revoke(Some(&harness.tenant_id), admin.id).await.unwrap());
    assert!(!revoke(Some(&harness.tenant_id), KeyId::new(at(0), &harness.next())).await.unwrap());
    assert_eq!(live(harness).await, [own, admin]);
}

pub async fn tenants_and_keys_survive_reopening(harness: &mut Arc<Harness>) {
    let own = new_key(harness, Some(&harness.tenant_id)).await;
    let revoked = new_key(harness, None).await;
    harness.store().revoke_key(None, revoked.id, at(50)).await.unwrap();
    Harness::reopen(harness).await;
    assert_eq!(live(harness).await, [own]);
    assert!(harness.store().tenant(harness.tenant_id.clone()).await.unwrap().is_some());
}

pub async fn last_use_of_a_key_is_recorded(harness: &Arc<Harness>) {
    let (one, other) = (new_key(harness, Some(&harness.tenant_id)).await, new_key(harness, None).await);
    harness.store().record_key_use(vec![(one.id, at(50)), (other.id, at(60))]).await.unwrap();
    // Another node may report an earlier use later, or a use of a key that no longer exists.
    let gone = key(harness, None).id;
    harness.store().record_key_use(vec![(one.id, at(40)), (gone, at(70))]).await.unwrap();
    let used: Vec<_> = live(harness).await.into_iter().map(|key| (key.id, key.last_used_at)).collect();
    assert_eq!(used, [(one.id, Some(at(50))), (other.id, Some(at(60)))]);
}

pub async fn portal_sessions_are_unlisted_keys_and_pruned_when_ended(harness: &Arc<Harness>) {
    let session = |expires_at| ApiKey { session: true, expires_at, ..key(harness, Some(&harness.tenant_id)) };
    let (short, long) = (session(Some(at(10))), session(Some(at(20))));
    for session in [&short, &long] {
        assert!(harness.store().create_key(session.clone()).await.unwrap());
    }
    let own = new_key(harness, Some(&harness.tenant_id)).await;
    assert_eq!(list(harness, Some(&harness.tenant_id)).await, std::slice::from_ref(&own));
    assert_eq!(live(harness).await.len(), 3);
    assert_eq!(harness.store().prune_sessions(at(11), 10).await.unwrap(), 1);
    assert_eq!(live(harness).await, [long.clone(), own.clone()]);
    assert!(harness.store().revoke_key(Some(harness.tenant_id.clone()), long.id, at(12)).await.unwrap());
    assert_eq!(live(harness).await, [own]);
    assert_eq!(
        harness.store().prune_sessions(at(2_000), 10).await.unwrap(),
        1,
        "expired sessions are pruned and keys are kept"
    );
}

pub async fn deleted_tenant_is_inactive_and_its_name_stays_reserved(harness: &mut Arc<Harness>) {
    let own = new_key(harness, Some(&harness.tenant_id)).await;
    let other = harness.new_tenant("globex").await;
    let others = new_key(harness, Some(&other)).await;
    let (tenant_id, version) = (harness.tenant_id.clone(), harness.version());
    let delivered = harness.leased(at(1)).await;
    harness.ends(delivered, Outcome::Delivered, at(2)).await;
    assert!(harness.store().delete_tenant(tenant_id.clone(), at(5)).await.unwrap());
    assert!(!harness.store().delete_tenant(tenant_id.clone(), at(6)).await.unwrap(), "once");
    Harness::reopen(harness).await;
    assert_eq!(harness.store().tenant(tenant_id.clone()).await.unwrap(), None);
    assert!(harness.store().list_tenants(page(100)).await.unwrap().iter().all(|one| one.id != tenant_id));
    assert!(harness.store().config_changes(tenant_id.clone(), version, 10).await.unwrap().is_none());
    assert_eq!(live(harness).await, [others]);
    let keys = list(harness, Some(&tenant_id)).await;
    assert_eq!((keys[0].id, keys[0].revoked_at), (own.id, Some(at(5))));
    assert!(!harness.store().create_key(key(harness, Some(&tenant_id))).await.unwrap());
    let again = Tenant {
        id: tenant_id.clone(),
        metadata: Default::default(),
        name: None,
        rules: TenantRules::default(),
        created_at: at(9),
    };
    assert!(
        !harness.store().create_tenant(again.clone()).await.unwrap(),
        "the id of a deleted tenant is not reused"
    );
    assert!(!harness.store().change_tenant(again).await.unwrap());
    // An event fanned out before the deletion is rejected.
    let published = harness.try_publish(harness.new_event(at(7), crate::InitialState::Leased)).await.unwrap();
    assert_eq!(published, crate::PublishResult::ConfigChanged);
}
