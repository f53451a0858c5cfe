//! Browser sessions.

use std::sync::Arc;

use redrive_core::{KeyId, TenantId, tenancy::user_role::UserRole};

use super::{Harness, at};
use crate::{ApiKey, BrowserSession, PageRequest, SessionUser, Tenant};

const KEY: [u8; 32] = [1; 32];
const OTHER_KEY: [u8; 32] = [2; 32];

/// Returns a session of a key that starts at `second` and lasts 100 s.
fn session(number: u8, key_hash: [u8; 32], second: i64) -> BrowserSession {
    let (created_at, expires_at) = (at(second), at(second + 100));
    BrowserSession { id: [number; 32], key_hash, user: None, created_at, expires_at }
}

/// Returns a session of a user, started by the login with this hash.
fn user_session(number: u8, login: u8, role: UserRole) -> BrowserSession {
    let user = SessionUser {
        issuer: "https://id.example.com/realms/a".into(),
        subject: "u-1".into(),
        name: "Jane \u{1f511}".into(),
        role,
        login_hash: [login; 32],
    };
    BrowserSession { user: Some(user), ..session(number, KEY, i64::from(number)) }
}

async fn create(harness: &Harness, session: &BrowserSession, max_per_key: usize) {
    assert!(harness.store().create_browser_session(session.clone(), max_per_key).await.unwrap());
}

async fn find(harness: &Harness, number: u8) -> Option<BrowserSession> {
    harness.store().browser_session([number; 32]).await.unwrap()
}

async fn create_key(harness: &Harness, tenant_id: &TenantId, hash: [u8; 32]) -> KeyId {
    let key = ApiKey {
        id: KeyId::new(at(0), &harness.next()),
        tenant_id: Some(tenant_id.clone()),
        name: "browser".into(),
        hash,
        scopes: 2,
        session: false,
        networks: vec![],
        created_at: at(0),
        expires_at: None,
        revoked_at: None,
        last_used_at: None,
    };
    assert!(harness.store().create_key(key.clone()).await.unwrap());
    key.id
}

pub async fn session_is_found_until_it_is_deleted(harness: &mut Arc<Harness>) {
    assert_eq!(find(harness, 1).await, None);
    let first = session(1, KEY, 5);
    create(harness, &first, 10).await;
    create(harness, &session(2, OTHER_KEY, 6), 10).await;
    Harness::reopen(harness).await;
    assert_eq!(find(harness, 1).await, Some(first));
    assert!(harness.store().delete_browser_session([1; 32]).await.unwrap());
    assert!(!harness.store().delete_browser_session([1; 32]).await.unwrap());
    assert_eq!(find(harness, 1).await, None);
    assert!(find(harness, 2).await.is_some(), "another session is not changed");
}

pub async fn session_of_a_user_is_returned_unchanged(harness: &mut Arc<Harness>) {
    let sessions = [
        user_session(1, 1, UserRole::Viewer),
        user_session(2, 2, UserRole::Operator),
        user_session(3, 3, UserRole::Admin),
    ];
    for session in &sessions {
        create(harness, session, 10).await;
    }
    Harness::reopen(harness).await;
    for session in &sessions {
        assert_eq!(find(harness, session.id[0]).await.as_ref(), Some(session));
    }
    let mut newest_first = sessions.to_vec();
    newest_first.reverse();
    assert_eq!(harness.store().browser_sessions_of_key(KEY, at(50)).await.unwrap(), newest_first);
}

pub async fn login_of_a_user_starts_one_session(harness: &Arc<Harness>) {
    create(harness, &user_session(1, 1, UserRole::Admin), 2).await;
    create(harness, &session(2, KEY, 2), 2).await;
    let again = user_session(3, 1, UserRole::Admin);
    assert!(!harness.store().create_browser_session(again, 2).await.unwrap());
    assert!(find(harness, 3).await.is_none());
    assert!(find(harness, 1).await.is_some() && find(harness, 2).await.is_some(), "nothing is evicted");
    create(harness, &user_session(3, 2, UserRole::Admin), 2).await;
    assert!(find(harness, 1).await.is_none(), "users have the limit of keys");
}

pub async fn session_beyond_the_limit_evicts_the_oldest_of_its_key(harness: &Arc<Harness>) {
    create(harness, &session(9, OTHER_KEY, 1), 2).await;
    // The clock was set back before the third session.
    for (number, second) in [(1, 20), (2, 30), (3, 10)] {
        create(harness, &session(number, KEY, second), 2).await;
    }
    let remaining: Vec<_> = harness
        .store()
        .browser_sessions_of_key(KEY, at(50))
        .await
        .unwrap()
        .iter()
        .map(|one| one.id[0])
        .collect();
    assert_eq!(remaining, [2, 3], "the oldest other session is deleted");
    assert!(find(harness, 9).await.is_some(), "another key has its own limit");
}

pub async fn sessions_of_a_key_are_deleted_together(harness: &Arc<Harness>) {
    for (number, key) in [(1, KEY), (2, KEY), (3, OTHER_KEY)] {
        create(harness, &session(number, key, i64::from(number)), 10).await;
    }
    let of_key = async |now| harness.store().browser_sessions_of_key(KEY, at(now)).await.unwrap();
    assert_eq!(of_key(50).await, [session(2, KEY, 2), session(1, KEY, 1)]);
    assert_eq!(of_key(101).await, [session(2, KEY, 2)], "an expired session is not listed");
    assert_eq!(harness.store().delete_browser_sessions_of_key(KEY).await.unwrap(), 2);
    assert_eq!(harness.store().delete_browser_sessions_of_key(KEY).await.unwrap(), 0);
    assert!(find(harness, 1).await.is_none() && find(harness, 3).await.is_some());
}

pub async fn sessions_of_users_are_listed_in_pages(harness: &Arc<Harness>) {
    create(harness, &session(9, OTHER_KEY, 9), 10).await;
    let mut newest_first = Vec::new();
    for number in (1..=5).rev() {
        // Two sessions began at the same time.
        let started = i64::from(number.max(2));
        let session =
            BrowserSession { created_at: at(started), ..user_session(number, number, UserRole::Admin) };
        create(harness, &session, 10).await;
        newest_first.push(session);
    }
    let list = async |now, after, offset, limit| {
        harness.store().list_user_sessions(at(now), PageRequest { after, offset, limit }).await.unwrap()
    };
    assert_eq!(list(50, None, 0, 10).await, newest_first, "the session of a key is not listed");
    let mut paged = Vec::new();
    loop {
        let page = list(50, paged.last().map(BrowserSession::cursor), 0, 2).await;
        if page.is_empty() {
            break;
        }
        paged.extend(page);
    }
    assert_eq!(paged, newest_first);
    assert_eq!(list(50, None, 3, 10).await, newest_first[3..]);
    assert_eq!(list(103, None, 0, 10).await, newest_first[..2], "expired sessions are not listed");
}

pub async fn revoked_key_ends_its_sessions(harness: &Arc<Harness>) {
    let key = create_key(harness, &harness.tenant_id, KEY).await;
    create(harness, &session(1, KEY, 1), 10).await;
    create(harness, &session(2, OTHER_KEY, 1), 10).await;
    assert!(!harness.store().revoke_key(None, key, at(2)).await.unwrap());
    assert!(find(harness, 1).await.is_some(), "the key of a tenant is not revoked by another owner");
    assert!(harness.store().revoke_key(Some(harness.tenant_id.clone()), key, at(2)).await.unwrap());
    assert!(find(harness, 1).await.is_none() && find(harness, 2).await.is_some());
}

pub async fn deleted_tenant_ends_the_sessions_of_its_keys(harness: &Arc<Harness>) {
    let other = TenantId::parse("globex").unwrap();
    let tenant = Tenant { id: other.clone(), name: None, rules: Default::default(), created_at: at(1) };
    assert!(harness.store().create_tenant(tenant).await.unwrap());
    create_key(harness, &harness.tenant_id, KEY).await;
    create_key(harness, &other, OTHER_KEY).await;
    create(harness, &session(1, KEY, 1), 10).await;
    create(harness, &session(2, OTHER_KEY, 1), 10).await;
    assert!(harness.store().delete_tenant(other, at(2)).await.unwrap());
    assert!(find(harness, 1).await.is_some() && find(harness, 2).await.is_none());
}

pub async fn expired_sessions_are_pruned_in_bounded_steps(harness: &Arc<Harness>) {
    for number in 1..=4 {
        create(harness, &session(number, KEY, i64::from(number)), 10).await;
    }
    let prune = async |second| harness.store().prune_browser_sessions(at(second), 2).await.unwrap();
    assert_eq!(prune(101).await, 0, "a session that expires at that moment is kept");
    assert_eq!((prune(104).await, prune(104).await), (2, 1));
    assert!(find(harness, 4).await.is_some());
}
