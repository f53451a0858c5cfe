//! Webhooks, the configuration version that fan-out is checked against, and cancelling pending deliveries.

use redrive_core::delivery::outcome::Outcome;
use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
};

use redrive_core::{
    DeliveryStatus, TenantId, Time, WebhookId,
    delivery::{lane::Ordering, retry::RetryConfig},
    event::{Event, PayloadFormat, event_type::Pattern},
    notification::NotificationKind,
    protection::{breaker::BreakerConfig, limiter::RateLimit},
    routing::filter::Filter,
    security::signature::{HeaderForm, LiveSecret, Secret, SignatureConfig},
    time::HumanDuration,
    webhook::{
        ManagedBy, Owner, Webhook, WebhookSpec, WebhookState,
        confidential::{EndpointAuth, SecretString},
        uid::WebhookUid,
        verification::Verification,
    },
};

use super::{END, FRESH, Harness, RETRY, at, order, page, together};
use crate::{
    BatchProgress, DeliveryFilter, InitialState, NewEvent, PageRequest, PublishResult, StoreError,
    UpdateResult, Versioned, Visibility, WebhookLabel, WebhooksWithDueAction,
};

fn disabled() -> WebhookState {
    WebhookState::Disabled("disabled by the owner".into())
}

async fn cancel_batch(harness: &Harness, webhook_id: WebhookId, limit: usize) -> BatchProgress {
    harness.store().cancel_pending(webhook_id, "webhook disabled".into(), at(70), limit).await.unwrap()
}

async fn changes(harness: &Harness, version: i64) -> (i64, BTreeSet<WebhookId>) {
    let changes =
        harness.store().config_changes(harness.tenant_id.clone(), version, 1_000).await.unwrap().unwrap();
    (changes.version, changes.webhooks.iter().map(|webhook| webhook.id).collect())
}

pub async fn webhook_is_stored_unchanged(harness: &Arc<Harness>) {
    let secret =
        |n, expires_at| LiveSecret { secret: Secret::from_bytes(&[n; 32]), created_at: at(1), expires_at };
    let webhook = Webhook {
        spec: WebhookSpec {
            uid: Some(WebhookUid::parse("crm:EU-1.orders_2").unwrap()),
            url: "https://example.com/ünïcode?a='b\"".into(),
            description: Some("two\nlines".into()),
            owner: Some(Owner {
                id: Some("o1".into()),
                email: Some("jane@example.com".into()),
                muted_kinds: vec![NotificationKind::DeliveryDead],
            }),
            events: ["order.*", "*", "a.b"].map(|text| Pattern::parse(text).unwrap()).to_vec(),
            subjects: vec!["order-1".into()],
            // A number beyond machine precision and extra spaces must be stored as written.
            filter: Some(Filter::parse(r#"{"path": "/n",  "eq": 123456789012345678901234567890}"#).unwrap()),
            payload_format: PayloadFormat::Data,
            signature: SignatureConfig { header_format: HeaderForm::Sha256, ..SignatureConfig::default() },
            retry_config: RetryConfig {
                schedule: Some(vec![HumanDuration::secs(1), HumanDuration::millis(250)]),
                jitter: Some(0.25),
                ..RetryConfig::default()
            },
            circuit_breaker_config: BreakerConfig {
                enabled: Some(false),
                error_threshold_percentage: Some(12.5),
                ..BreakerConfig::default()
            },
            rate_limit: Some(RateLimit { requests_per_minute: 7, burst: Some(3) }),
            ordering_guarantee: Ordering::PerEventType,
            max_in_flight: Some(9),
            headers: [("x-own".into(), SecretString::new("1"))].into(),
            verify_url: true,
            verified_url: Some("https://example.com/before".into()),
            challenged_at: Some(at(50)),
            managed_by: ManagedBy::Operator,
            auth: Some(EndpointAuth::Bearer { token: SecretString::new("token") }),
            // JSON values are stored as written, spaces and long numbers included.
            metadata: serde_json::from_str(
                r#"{"note": "😀", "n": 123456789012345678901234567890, "f": 1.00, "list": [ 1, {"a" : null} ]}"#,
            )
            .unwrap(),
            expires_at: Some(at(123_456)),
        },
        secrets: vec![secret(1, None), secret(2, Some(at(99)))],
        state: disabled(),
        created_at: at(1),
        updated_at: at(2),
        ..harness.webhook_of(&harness.tenant_id)
    };
    let UpdateResult::Updated { version } = harness.store().create_webhook(webhook.clone()).await.unwrap()
    else {
        panic!("the tenant exists")
    };
    let kept = harness.stored_webhook(webhook.id).await;
    assert_eq!(kept, Versioned { webhook, revision: version });
}

pub async fn webhook_requires_its_tenant(harness: &Arc<Harness>) {
    let webhook = harness.webhook_of(&TenantId::parse("unknown").unwrap());
    assert_eq!(harness.store().create_webhook(webhook.clone()).await.unwrap(), UpdateResult::NotFound);
    assert_eq!(harness.store().webhooks_by_id(vec![webhook.id]).await.unwrap(), []);
    let other = harness.new_tenant("globex").await;
    assert_eq!(harness.store().webhook(other, harness.webhook_id).await.unwrap(), None);
}

pub async fn webhook_change_requires_the_current_revision(harness: &Arc<Harness>) {
    let Versioned { mut webhook, revision } = harness.stored_webhook(harness.webhook_id).await;
    webhook.spec.description = Some("mine".into());
    let changed = harness.store().change_webhook(webhook.clone(), revision, None).await.unwrap();
    let UpdateResult::Updated { version } = changed else { panic!("{changed:?}") };
    assert!(version > revision);
    let theirs = Webhook { state: disabled(), ..webhook.clone() };
    assert_eq!(harness.store().change_webhook(theirs, revision, None).await.unwrap(), UpdateResult::Stale);
    assert_eq!(harness.stored_webhook(harness.webhook_id).await, Versioned { webhook, revision: version });
    assert_eq!(changes(harness, version).await, (version, [].into()), "a rejected change has no effect");

    // A change of another webhook does not change this one's revision.
    harness.new_webhook().await;
    let Versioned { webhook, revision } = harness.stored_webhook(harness.webhook_id).await;
    let changed = harness.store().change_webhook(webhook, revision, None).await.unwrap();
    assert!(matches!(changed, UpdateResult::Updated { .. }), "{changed:?}");
}

pub async fn unknown_foreign_or_deleted_webhook_cannot_be_changed(harness: &Arc<Harness>) {
    let Versioned { webhook, revision } = harness.stored_webhook(harness.webhook_id).await;
    let unknown = harness.webhook_of(&harness.tenant_id);
    assert_eq!(
        harness.store().change_webhook(unknown, revision, None).await.unwrap(),
        UpdateResult::NotFound
    );
    let tenant_id = harness.new_tenant("globex").await;
    let theirs = Webhook { tenant_id, ..webhook.clone() };
    assert_eq!(harness.store().change_webhook(theirs, revision, None).await.unwrap(), UpdateResult::NotFound);
    assert_eq!(harness.stored_webhook(harness.webhook_id).await.webhook, webhook);

    let revision = harness.set_state(harness.webhook_id, WebhookState::Deleted).await;
    assert_eq!(harness.store().webhook(harness.tenant_id.clone(), harness.webhook_id).await.unwrap(), None);
    assert_eq!(
        harness.store().change_webhook(webhook, revision, None).await.unwrap(),
        UpdateResult::NotFound
    );
}

pub async fn config_changes_are_returned_since_a_version(harness: &Arc<Harness>) {
    let (start, all) = changes(harness, 0).await;
    assert_eq!((start, all), (harness.version(), [harness.webhook_id].into()));
    assert_eq!(changes(harness, start).await, (start, [].into()));

    let (a, b) = (harness.new_webhook().await.id, harness.new_webhook().await.id);
    let created = harness.version();
    assert_eq!(changes(harness, start).await, (created, [a, b].into()));
    harness.set_state(b, disabled()).await;
    let gone = harness.set_state(a, WebhookState::Deleted).await;
    assert_eq!(
        changes(harness, created).await,
        (gone, [a, b].into()),
        "deletions are in the configuration changes"
    );
    assert_eq!(
        changes(harness, 0).await,
        (gone, [harness.webhook_id, b].into()),
        "a reader that starts at version 0 does not get deletions"
    );
    let changes =
        harness.store().config_changes(harness.tenant_id.clone(), created, 1_000).await.unwrap().unwrap();
    let state = |id| changes.webhooks.iter().find(|webhook| webhook.id == id).unwrap().state.clone();
    assert_eq!((state(a), state(b)), (WebhookState::Deleted, disabled()));
}

pub async fn config_changes_in_pages_reach_the_same_version(harness: &Arc<Harness>) {
    for _ in 0..4 {
        harness.new_webhook().await;
    }
    harness.set_state(harness.webhook_id, disabled()).await;
    let (end, all) = changes(harness, 0).await;
    let (mut version, mut seen, mut pages) = (0, BTreeSet::new(), 0);
    loop {
        let page =
            harness.store().config_changes(harness.tenant_id.clone(), version, 2).await.unwrap().unwrap();
        assert!(page.webhooks.len() <= 2 && page.version > version);
        seen.extend(page.webhooks.iter().map(|webhook| webhook.id));
        (version, pages) = (page.version, pages + 1);
        if !page.more {
            break;
        }
        assert!(page.version < end, "a fan-out computed from a partial read has a stale version");
    }
    assert_eq!((version, seen.into_iter().collect::<Vec<_>>()), (end, all.into_iter().collect::<Vec<_>>()));
    assert_eq!(pages, 3);
}

pub async fn config_version_is_separate_per_tenant(harness: &Arc<Harness>) {
    let other = harness.new_tenant("globex").await;
    let before = harness.version();
    let theirs = harness.webhook_of(&other);
    assert!(matches!(
        harness.store().create_webhook(theirs.clone()).await.unwrap(),
        UpdateResult::Updated { .. }
    ));
    assert_eq!(changes(harness, before).await, (before, [].into()));
    harness.publish_new(harness.new_event(at(0), InitialState::Leased)).await;
    let changes = harness.store().config_changes(other, 0, 1_000).await.unwrap().unwrap();
    assert_eq!(changes.webhooks, [theirs]);
    let unknown = TenantId::parse("unknown").unwrap();
    assert!(harness.store().config_changes(unknown, 0, 1_000).await.unwrap().is_none());
}

pub async fn webhooks_are_listed_newest_first_in_pages(harness: &Arc<Harness>) {
    let mut expected = vec![harness.webhook_id];
    for _ in 0..6 {
        expected.insert(0, harness.new_webhook().await.id);
    }
    let deleted = expected.remove(3);
    harness.set_state(deleted, WebhookState::Deleted).await;
    harness.set_state(expected[0], disabled()).await;
    let other = harness.new_tenant("globex").await;
    harness.store().create_webhook(harness.webhook_of(&other)).await.unwrap();

    let list =
        |after, offset, limit| list_ids(harness, Visibility::All, PageRequest { after, offset, limit });
    assert_eq!(list(None, 0, 100).await, expected);
    assert_eq!(list(None, 4, 100).await, expected[4..]);
    let (mut walked, mut after): (Vec<WebhookId>, _) = (vec![], None);
    loop {
        let listed = list(after, 0, 4).await;
        after = listed.last().copied();
        walked.extend(&listed);
        if listed.len() < 4 {
            break;
        }
    }
    assert_eq!(walked, expected);
}

pub async fn webhook_labels_are_those_of_the_listed_webhooks(harness: &Arc<Harness>) {
    let mut described = harness.webhook_of(&harness.tenant_id);
    described.spec.description = Some("orders of \"EMEA\"".into());
    harness.store().create_webhook(described.clone()).await.unwrap();
    harness.operator_webhook(WebhookState::Active).await;
    let deleted = harness.new_webhook().await.id;
    harness.set_state(deleted, WebhookState::Deleted).await;
    let other = harness.new_tenant("globex").await;
    harness.store().create_webhook(harness.webhook_of(&other)).await.unwrap();
    for visibility in [Visibility::All, Visibility::TenantManaged] {
        for (offset, limit) in [(0, 100), (1, 1)] {
            let page = PageRequest { after: None, offset, limit };
            let tenant_id = || harness.tenant_id.clone();
            let webhooks = harness.store().list_webhooks(tenant_id(), visibility, page).await.unwrap();
            let expected: Vec<_> = webhooks.into_iter().map(WebhookLabel::from).collect();
            let found = harness.store().list_webhook_labels(tenant_id(), visibility, page).await.unwrap();
            assert_eq!(found, expected);
            assert!(limit == 1 || found.iter().any(|one| one.description == described.spec.description));
        }
    }
    let page = PageRequest { after: Some(described.id), offset: 0, limit: 9 };
    let older = harness.store().list_webhook_labels(harness.tenant_id.clone(), Visibility::All, page);
    assert_eq!(older.await.unwrap().iter().map(|one| one.id).collect::<Vec<_>>(), [harness.webhook_id]);
}

async fn list_ids(harness: &Harness, visibility: Visibility, page: PageRequest<WebhookId>) -> Vec<WebhookId> {
    let listed = harness.store().list_webhooks(harness.tenant_id.clone(), visibility, page).await.unwrap();
    listed.iter().map(|webhook| webhook.id).collect()
}

pub async fn hidden_operator_managed_webhooks_do_not_count_in_pages(harness: &Arc<Harness>) {
    let mut expected = vec![harness.webhook_id];
    let mut all = expected.clone();
    for n in 0..12 {
        let id = match n % 4 {
            0 => harness.new_webhook().await.id,
            _ => harness.operator_webhook(WebhookState::Active).await,
        };
        all.insert(0, id);
        if n % 4 == 0 {
            expected.insert(0, id);
        }
    }
    let list = |after, offset, limit| {
        list_ids(harness, Visibility::TenantManaged, PageRequest { after, offset, limit })
    };
    assert_eq!(list(None, 0, 100).await, expected);
    assert_eq!(list(None, 0, 2).await, expected[..2], "hidden webhooks do not shorten a page");
    assert_eq!(list(None, 1, 2).await, expected[1..3], "an offset counts listed webhooks only");
    assert_eq!(list(Some(expected[1]), 0, 1).await, expected[2..3]);
    let page = PageRequest { after: None, offset: 0, limit: 100 };
    assert_eq!(list_ids(harness, Visibility::All, page).await, all);
}

pub async fn deleted_webhooks_are_found_by_id(harness: &Arc<Harness>) {
    let other = harness.new_tenant("globex").await;
    let theirs = harness.webhook_of(&other);
    harness.store().create_webhook(theirs.clone()).await.unwrap();
    harness.set_state(harness.webhook_id, WebhookState::Deleted).await;
    let ids = vec![harness.webhook_id, harness.webhook_id(), theirs.id];
    let mut found = harness.store().webhooks_by_id(ids).await.unwrap();
    found.sort_by_key(|webhook| webhook.id);
    assert_eq!(found.len(), 2);
    assert_eq!((found[0].id, &found[0].state), (harness.webhook_id, &WebhookState::Deleted));
    assert_eq!(found[1], theirs);
    let of_tenant = async |tenant_id: &TenantId| {
        let ids = vec![harness.webhook_id, harness.webhook_id(), theirs.id];
        let found = harness.store().tenant_webhooks_by_id(tenant_id.clone(), ids).await.unwrap();
        found.iter().map(|webhook| webhook.id).collect::<Vec<_>>()
    };
    assert_eq!(of_tenant(&harness.tenant_id).await, [harness.webhook_id]);
    assert_eq!(of_tenant(&other).await, [theirs.id]);
}

pub async fn cancel_pending_works_in_bounded_steps(harness: &Arc<Harness>) {
    let mut waiting = Vec::new();
    for n in 0..7 {
        waiting.push(harness.waiting(at(n), at(n * 1000)).await);
    }
    let leased = harness.leased(at(0)).await;
    let other_tenants = harness.webhook_id();
    harness
        .publish_new(harness.fan_out(harness.event(at(0)), &[(other_tenants, InitialState::Waiting(at(0)))]))
        .await;
    harness.set_state(harness.webhook_id, disabled()).await;
    let listed = harness.store().webhooks_to_cancel_for().await.unwrap();
    assert_eq!(listed.iter().map(|webhook| webhook.id).collect::<Vec<_>>(), [harness.webhook_id]);

    let mut cancelled = 0;
    loop {
        let step = cancel_batch(harness, harness.webhook_id, 3).await;
        assert!(step.changed <= 3);
        cancelled += step.changed;
        if step.finished {
            break;
        }
    }
    assert_eq!(cancelled, 7);
    for id in waiting {
        let ended = harness.delivery(id).await;
        assert_eq!((ended.status, ended.ended_at), (DeliveryStatus::Cancelled, Some(at(70))));
        assert_eq!((ended.cancel_reason.as_deref(), ended.due), (Some("webhook disabled"), None));
    }
    assert_eq!(harness.store().webhooks_to_cancel_for().await.unwrap(), []);
    assert_eq!(harness.due_lanes(at(END)).await, [harness.lane_of(other_tenants)]);
    harness.ends(leased, Outcome::Delivered, at(80)).await;
}

pub async fn cancel_pending_empties_every_lane(harness: &Arc<Harness>) {
    for (n, lane) in (0..).zip([FRESH, RETRY, order("a"), order("b"), order("")]) {
        harness.waiting_in(&lane, at(0), at(10 * n)).await;
        harness.waiting_in(&lane, at(0), at(0)).await;
    }
    harness.set_state(harness.webhook_id, disabled()).await;
    let mut moved_count = 0;
    loop {
        let step = cancel_batch(harness, harness.webhook_id, 4).await;
        moved_count += step.changed;
        if step.finished {
            break;
        }
    }
    let query = harness.due_lanes_for_default_pool(at(END)).await;
    assert_eq!((moved_count, query.lanes, query.next_wake), (10, vec![], None));
    assert_eq!(harness.store().oldest_waiting(None, 10).await.unwrap(), []);
}

pub async fn cancel_pending_stops_when_the_webhook_is_enabled_again(harness: &Arc<Harness>) {
    for n in 0..5 {
        harness.waiting(at(n), at(n)).await;
    }
    harness.set_state(harness.webhook_id, disabled()).await;
    assert_eq!(
        cancel_batch(harness, harness.webhook_id, 2).await,
        BatchProgress { changed: 2, finished: false }
    );
    harness.set_state(harness.webhook_id, WebhookState::Active).await;
    assert_eq!(
        cancel_batch(harness, harness.webhook_id, 2).await,
        BatchProgress { changed: 0, finished: true }
    );
    assert_eq!(harness.store().webhooks_to_cancel_for().await.unwrap(), []);
    assert_eq!(harness.claim(at(10)).await.len(), 3, "the remaining deliveries are delivered");
}

pub async fn cancel_pending_skips_an_active_webhook(harness: &Arc<Harness>) {
    let id = harness.waiting(at(0), at(0)).await;
    let nothing = BatchProgress { changed: 0, finished: true };
    assert_eq!(cancel_batch(harness, harness.webhook_id, 10).await, nothing);
    assert_eq!(cancel_batch(harness, harness.webhook_id(), 10).await, nothing);
    assert_eq!(harness.claim_one(at(0)).await.id, id);
}

pub async fn cancel_pending_continues_after_reopening(harness: &mut Arc<Harness>) {
    for n in 0..3 {
        harness.waiting(at(n), at(n)).await;
    }
    let other = harness.new_webhook().await.id;
    harness.set_state(harness.webhook_id, WebhookState::Deleted).await;
    harness.set_state(other, disabled()).await;
    assert_eq!(
        cancel_batch(harness, harness.webhook_id, 2).await,
        BatchProgress { changed: 2, finished: false }
    );
    assert_eq!(cancel_batch(harness, other, 2).await, BatchProgress { changed: 0, finished: true });
    Harness::reopen(harness).await;
    let listed = harness.store().webhooks_to_cancel_for().await.unwrap();
    assert_eq!(listed.len(), 1);
    assert_eq!((listed[0].id, &listed[0].state), (harness.webhook_id, &WebhookState::Deleted));
    assert_eq!(
        cancel_batch(harness, harness.webhook_id, 2).await,
        BatchProgress { changed: 1, finished: true }
    );
    assert_eq!(harness.store().webhooks_to_cancel_for().await.unwrap(), []);
}

async fn expires(harness: &Harness, id: WebhookId, expires_at: Option<i64>) {
    let Versioned { mut webhook, revision } = harness.stored_webhook(id).await;
    webhook.spec.expires_at = expires_at.map(at);
    let changed = harness.store().change_webhook(webhook, revision, None).await.unwrap();
    assert!(matches!(changed, UpdateResult::Updated { .. }), "{changed:?}");
}

pub async fn expired_webhooks_are_listed(harness: &mut Arc<Harness>) {
    let mut ids = Vec::new();
    for n in 0..5 {
        ids.push(harness.new_webhook().await.id);
        expires(harness, ids[n as usize], Some(100 * (n + 1))).await;
    }
    Harness::reopen(harness).await;
    let due = |now, limit| harness.store().webhooks_with_due_action(at(now), limit, Vec::new());
    let of =
        |ids: &[WebhookId]| -> Vec<_> { ids.iter().map(|id| (harness.tenant_id.clone(), *id)).collect() };
    assert_eq!(due(99, 10).await.unwrap(), WebhooksWithDueAction { due: vec![], next: Some(at(100)) });
    assert_eq!(
        due(100, 10).await.unwrap(),
        WebhooksWithDueAction { due: of(&ids[..1]), next: Some(at(200)) }
    );
    assert_eq!(due(500, 10).await.unwrap(), WebhooksWithDueAction { due: of(&ids), next: None });
    assert_eq!(due(500, 2).await.unwrap().due, of(&ids[..2]), "the longest expired come first");

    // Webhooks that receive no events, and those with a later expiry, are not listed.
    harness.set_state(ids[0], disabled()).await;
    harness.set_state(ids[1], WebhookState::Deleted).await;
    harness.set_state(ids[2], WebhookState::Paused).await;
    expires(harness, ids[3], Some(900)).await;
    expires(harness, ids[4], None).await;
    let left = WebhooksWithDueAction { due: of(&ids[2..3]), next: Some(at(900)) };
    assert_eq!(due(500, 10).await.unwrap(), left);
    harness.set_state(ids[0], WebhookState::Active).await;
    assert_eq!(due(500, 10).await.unwrap().due, of(&[ids[0], ids[2]]), "an enabled webhook expires again");
}

pub async fn due_verifications_of_excluded_tenants_are_skipped(harness: &mut Arc<Harness>) {
    for n in 0..4 {
        let verification = Verification::begin(at(100 + n), false);
        harness
            .set_state(harness.new_webhook().await.id, WebhookState::PendingVerification(verification))
            .await;
    }
    let over = harness.new_webhook().await.id;
    expires(harness, over, Some(150)).await;
    let other = harness.new_tenant("globex").await;
    let mut webhook = harness.webhook_of(&other);
    webhook.state = WebhookState::PendingVerification(Verification::begin(at(200), false));
    harness.store().create_webhook(webhook.clone()).await.unwrap();
    let found = harness.store().webhooks_with_due_action(at(500), 10, Vec::new()).await.unwrap();
    assert_eq!(found.due.len(), 6);
    let found =
        harness.store().webhooks_with_due_action(at(500), 2, vec![harness.tenant_id.clone()]).await.unwrap();
    let (own, theirs) = ((harness.tenant_id.clone(), over), (other.clone(), webhook.id));
    assert_eq!(found, WebhooksWithDueAction { due: vec![own.clone(), theirs], next: None });
    let found = harness
        .store()
        .webhooks_with_due_action(at(500), 10, vec![harness.tenant_id.clone(), other])
        .await
        .unwrap();
    assert_eq!(found.due, [own], "an expired webhook of an excluded tenant is listed");
}

/// A publisher's view of a tenant's webhooks.
#[derive(Default)]
struct Known {
    version: i64,
    webhooks: BTreeSet<WebhookId>,
}

impl Known {
    async fn refresh(&mut self, harness: &Harness) {
        let (version, webhooks) = changes(harness, self.version).await;
        self.version = version;
        self.webhooks.extend(webhooks);
    }

    /// Publishes an event by the known webhooks, refreshing them whenever they were out of date.
    async fn publish(&mut self, harness: &Harness, event: Event) -> Result<NewEvent, StoreError> {
        loop {
            let to: Vec<_> = self.webhooks.iter().map(|id| (*id, InitialState::Waiting(at(0)))).collect();
            let new = NewEvent { config_version: self.version, ..harness.fan_out(event.clone(), &to) };
            match harness.try_publish(new.clone()).await? {
                PublishResult::New { .. } => return Ok(new),
                PublishResult::ConfigChanged => self.refresh(harness).await,
                other => panic!("{other:?}"),
            }
        }
    }
}

async fn webhooks_of(harness: &Harness, event: &Event) -> BTreeSet<WebhookId> {
    let filter = DeliveryFilter { event_id: Some(event.id), ..DeliveryFilter::default() };
    let deliveries =
        harness.store().list_deliveries(harness.tenant_id.clone(), filter, page(1000)).await.unwrap().found;
    deliveries.iter().map(|delivery| delivery.webhook_id).collect()
}

pub async fn event_reaches_every_webhook_created_before_it(harness: &Arc<Harness>) {
    let created = Arc::new(Mutex::new(BTreeSet::from([harness.webhook_id])));
    let publisher = |n: i64| {
        let (harness, created) = (harness.clone(), created.clone());
        async move {
            let mut entry = Known::default();
            for i in 0..25 {
                let time: Time = at(n * 1000 + i);
                let acknowledged = created.lock().unwrap().clone();
                let new = entry.publish(&harness, harness.event(time)).await.unwrap();
                let owed = webhooks_of(&harness, &new.event).await;
                assert!(acknowledged.is_subset(&owed), "{:?}", acknowledged.difference(&owed));
            }
        }
    };
    let creator = {
        let (harness, created) = (harness.clone(), created.clone());
        async move {
            for _ in 0..12 {
                let webhook = harness.new_webhook().await;
                created.lock().unwrap().insert(webhook.id);
                // Gives publishers time to publish some events under each version.
                for _ in 0..3 {
                    harness.store().ping().await.unwrap();
                }
            }
        }
    };
    let creator = tokio::spawn(creator);
    together((0..4).map(publisher)).await;
    creator.await.unwrap();
    let mut entry = Known::default();
    let last = entry.publish(harness, harness.event(at(9999))).await.unwrap();
    assert_eq!(webhooks_of(harness, &last.event).await, *created.lock().unwrap());
}
