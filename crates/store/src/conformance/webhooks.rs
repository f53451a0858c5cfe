//! Webhooks, the version that fan-out is checked against, and sweeping up after one that has ended.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
};

use redrive_core::{
    DeliveryStatus, TenantId, Time, WebhookId,
    delivery::lane::Ordering,
    delivery::retry::RetryConfig,
    event::event_type::Pattern,
    event::{Event, PayloadFormat},
    notification::Kind,
    protection::breaker::BreakerConfig,
    protection::limiter::RateLimit,
    routing::filter::Filter,
    security::signature::{HeaderForm, LiveSecret, Secret, SignatureConfig},
    time::Span,
    webhook::confidential::{EndpointAuth, Hidden},
    webhook::verification::Verification,
    webhook::{ManagedBy, Owner, Webhook, WebhookSpec, WebhookState},
};

use super::{Bench, END, FRESH, RETRY, at, order, page, together};
use crate::{
    Birth, Changed, DeliveryFilter, Expiring, NewEvent, Next, PageRequest, Published, Step, StoreError,
    Versioned, Visibility,
};

fn disabled() -> WebhookState {
    WebhookState::Disabled("by its owner".into())
}

async fn sweep(bench: &Bench, webhook: WebhookId, limit: usize) -> Step {
    bench.store().sweep(webhook, "swept up".into(), at(70), limit).await.unwrap()
}

async fn changes(bench: &Bench, version: i64) -> (i64, BTreeSet<WebhookId>) {
    let changes = bench.store().config_changes(bench.tenant.clone(), version, 1_000).await.unwrap().unwrap();
    (changes.version, changes.webhooks.iter().map(|webhook| webhook.id).collect())
}

pub async fn a_webhook_is_kept_as_it_was_given(bench: &Arc<Bench>) {
    let secret =
        |n, expires_at| LiveSecret { secret: Secret::from_bytes(&[n; 32]), created_at: at(1), expires_at };
    let webhook = Webhook {
        spec: WebhookSpec {
            url: "https://example.com/ünïcode?a='b\"".into(),
            description: Some("two\nlines".into()),
            owner: Some(Owner {
                id: Some("o1".into()),
                email: Some("jane@example.com".into()),
                mute: vec![Kind::DeliveryDead],
            }),
            events: ["order.*", "*", "a.b"].map(|text| Pattern::parse(text).unwrap()).to_vec(),
            subjects: vec!["order-1".into()],
            // A number that no machine holds, and spaces: as it was written.
            filter: Some(Filter::parse(r#"{"path": "/n",  "eq": 123456789012345678901234567890}"#).unwrap()),
            payload_format: PayloadFormat::Data,
            signature: SignatureConfig { header_form: HeaderForm::Sha256, ..SignatureConfig::default() },
            retry_config: RetryConfig {
                schedule: Some(vec![Span::secs(1), Span::millis(250)]),
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
            headers: [("x-own".into(), Hidden::new("1"))].into(),
            verify_url: true,
            verified_url: Some("https://example.com/before".into()),
            challenged_at: Some(at(50)),
            managed_by: ManagedBy::Operator,
            auth: Some(EndpointAuth::Bearer { token: Hidden::new("token") }),
            metadata: [("note".into(), "\u{1f600}".into())].into(),
            expires_at: Some(at(123_456)),
        },
        secrets: vec![secret(1, None), secret(2, Some(at(99)))],
        state: disabled(),
        created_at: at(1),
        updated_at: at(2),
        ..bench.webhook_of(&bench.tenant)
    };
    let Changed::Done { version } = bench.store().create_webhook(webhook.clone()).await.unwrap() else {
        panic!("the tenant exists")
    };
    let kept = bench.stored_webhook(webhook.id).await;
    assert_eq!(kept, Versioned { webhook, revision: version });
}

pub async fn a_webhook_needs_its_tenant(bench: &Arc<Bench>) {
    let webhook = bench.webhook_of(&TenantId::parse("nobody").unwrap());
    assert_eq!(bench.store().create_webhook(webhook.clone()).await.unwrap(), Changed::Missing);
    assert_eq!(bench.store().webhooks_by_id(vec![webhook.id]).await.unwrap(), []);
    let other = bench.new_tenant("globex").await;
    assert_eq!(bench.store().webhook(other, bench.webhook).await.unwrap(), None);
}

pub async fn a_change_needs_the_revision_it_was_made_from(bench: &Arc<Bench>) {
    let Versioned { mut webhook, revision } = bench.stored_webhook(bench.webhook).await;
    webhook.spec.description = Some("mine".into());
    let changed = bench.store().change_webhook(webhook.clone(), revision, None).await.unwrap();
    let Changed::Done { version } = changed else { panic!("{changed:?}") };
    assert!(version > revision);
    let theirs = Webhook { state: disabled(), ..webhook.clone() };
    assert_eq!(bench.store().change_webhook(theirs, revision, None).await.unwrap(), Changed::Stale);
    assert_eq!(bench.stored_webhook(bench.webhook).await, Versioned { webhook, revision: version });
    assert_eq!(changes(bench, version).await, (version, [].into()), "a refused change changes nothing");

    // A change to another webhook is no change to this one.
    bench.new_webhook().await;
    let Versioned { webhook, revision } = bench.stored_webhook(bench.webhook).await;
    let changed = bench.store().change_webhook(webhook, revision, None).await.unwrap();
    assert!(matches!(changed, Changed::Done { .. }), "{changed:?}");
}

pub async fn what_is_not_there_cannot_be_changed(bench: &Arc<Bench>) {
    let Versioned { webhook, revision } = bench.stored_webhook(bench.webhook).await;
    let unknown = bench.webhook_of(&bench.tenant);
    assert_eq!(bench.store().change_webhook(unknown, revision, None).await.unwrap(), Changed::Missing);
    let tenant = bench.new_tenant("globex").await;
    let theirs = Webhook { tenant, ..webhook.clone() };
    assert_eq!(bench.store().change_webhook(theirs, revision, None).await.unwrap(), Changed::Missing);
    assert_eq!(bench.stored_webhook(bench.webhook).await.webhook, webhook);

    let revision = bench.set_state(bench.webhook, WebhookState::Deleted).await;
    assert_eq!(bench.store().webhook(bench.tenant.clone(), bench.webhook).await.unwrap(), None);
    assert_eq!(bench.store().change_webhook(webhook, revision, None).await.unwrap(), Changed::Missing);
}

pub async fn changes_are_told_since_a_version(bench: &Arc<Bench>) {
    let (start, all) = changes(bench, 0).await;
    assert_eq!((start, all), (bench.version(), [bench.webhook].into()));
    assert_eq!(changes(bench, start).await, (start, [].into()));

    let (a, b) = (bench.new_webhook().await.id, bench.new_webhook().await.id);
    let created = bench.version();
    assert_eq!(changes(bench, start).await, (created, [a, b].into()));
    bench.set_state(b, disabled()).await;
    let gone = bench.set_state(a, WebhookState::Deleted).await;
    assert_eq!(changes(bench, created).await, (gone, [a, b].into()), "deletions are told");
    assert_eq!(changes(bench, 0).await, (gone, [bench.webhook, b].into()), "but not to one who starts anew");
    let told = bench.store().config_changes(bench.tenant.clone(), created, 1_000).await.unwrap().unwrap();
    let state = |id| told.webhooks.iter().find(|webhook| webhook.id == id).unwrap().state.clone();
    assert_eq!((state(a), state(b)), (WebhookState::Deleted, disabled()));
}

pub async fn changes_are_told_in_pages_that_lead_to_the_same_end(bench: &Arc<Bench>) {
    for _ in 0..4 {
        bench.new_webhook().await;
    }
    bench.set_state(bench.webhook, disabled()).await;
    let (end, all) = changes(bench, 0).await;
    let (mut version, mut seen, mut pages) = (0, BTreeSet::new(), 0);
    loop {
        let page = bench.store().config_changes(bench.tenant.clone(), version, 2).await.unwrap().unwrap();
        assert!(page.webhooks.len() <= 2 && page.version > version);
        seen.extend(page.webhooks.iter().map(|webhook| webhook.id));
        (version, pages) = (page.version, pages + 1);
        if !page.more {
            break;
        }
        assert!(page.version < end, "a fan-out made from a part of it is refused");
    }
    assert_eq!((version, seen.into_iter().collect::<Vec<_>>()), (end, all.into_iter().collect::<Vec<_>>()));
    assert_eq!(pages, 3);
}

pub async fn a_tenants_version_is_its_own(bench: &Arc<Bench>) {
    let other = bench.new_tenant("globex").await;
    let before = bench.version();
    let theirs = bench.webhook_of(&other);
    assert!(matches!(bench.store().create_webhook(theirs.clone()).await.unwrap(), Changed::Done { .. }));
    assert_eq!(changes(bench, before).await, (before, [].into()));
    bench.publish_new(bench.new_event(at(0), Birth::Leased)).await;
    let told = bench.store().config_changes(other, 0, 1_000).await.unwrap().unwrap();
    assert_eq!(told.webhooks, [theirs]);
    let nobody = TenantId::parse("nobody").unwrap();
    assert!(bench.store().config_changes(nobody, 0, 1_000).await.unwrap().is_none());
}

pub async fn webhooks_are_listed_newest_first_in_pages(bench: &Arc<Bench>) {
    let mut expected = vec![bench.webhook];
    for _ in 0..6 {
        expected.insert(0, bench.new_webhook().await.id);
    }
    let deleted = expected.remove(3);
    bench.set_state(deleted, WebhookState::Deleted).await;
    bench.set_state(expected[0], disabled()).await;
    let other = bench.new_tenant("globex").await;
    bench.store().create_webhook(bench.webhook_of(&other)).await.unwrap();

    let list = |after, offset, limit| list_ids(bench, Visibility::All, PageRequest { after, offset, limit });
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

async fn list_ids(bench: &Bench, visibility: Visibility, page: PageRequest<WebhookId>) -> Vec<WebhookId> {
    let listed = bench.store().list_webhooks(bench.tenant.clone(), visibility, page).await.unwrap();
    listed.iter().map(|webhook| webhook.id).collect()
}

pub async fn operator_managed_webhooks_are_not_counted_by_pages(bench: &Arc<Bench>) {
    let mut expected = vec![bench.webhook];
    let mut all = expected.clone();
    for n in 0..12 {
        let id = match n % 4 {
            0 => bench.new_webhook().await.id,
            _ => bench.operator_webhook(WebhookState::Active).await,
        };
        all.insert(0, id);
        if n % 4 == 0 {
            expected.insert(0, id);
        }
    }
    let list = |after, offset, limit| {
        list_ids(bench, Visibility::TenantManaged, PageRequest { after, offset, limit })
    };
    assert_eq!(list(None, 0, 100).await, expected);
    assert_eq!(list(None, 0, 2).await, expected[..2], "a page is full in spite of what it leaves out");
    assert_eq!(list(None, 1, 2).await, expected[1..3], "an offset counts what is listed alone");
    assert_eq!(list(Some(expected[1]), 0, 1).await, expected[2..3]);
    let page = PageRequest { after: None, offset: 0, limit: 100 };
    assert_eq!(list_ids(bench, Visibility::All, page).await, all);
}

pub async fn webhooks_are_found_by_id_even_deleted(bench: &Arc<Bench>) {
    let other = bench.new_tenant("globex").await;
    let theirs = bench.webhook_of(&other);
    bench.store().create_webhook(theirs.clone()).await.unwrap();
    bench.set_state(bench.webhook, WebhookState::Deleted).await;
    let ids = vec![bench.webhook, bench.webhook_id(), theirs.id];
    let mut found = bench.store().webhooks_by_id(ids).await.unwrap();
    found.sort_by_key(|webhook| webhook.id);
    assert_eq!(found.len(), 2);
    assert_eq!((found[0].id, &found[0].state), (bench.webhook, &WebhookState::Deleted));
    assert_eq!(found[1], theirs);
    let of_tenant = async |tenant: &TenantId| {
        let ids = vec![bench.webhook, bench.webhook_id(), theirs.id];
        let found = bench.store().tenant_webhooks_by_id(tenant.clone(), ids).await.unwrap();
        found.iter().map(|webhook| webhook.id).collect::<Vec<_>>()
    };
    assert_eq!(of_tenant(&bench.tenant).await, [bench.webhook]);
    assert_eq!(of_tenant(&other).await, [theirs.id]);
}

pub async fn sweeping_cancels_in_bounded_steps(bench: &Arc<Bench>) {
    let mut waiting = Vec::new();
    for n in 0..7 {
        waiting.push(bench.waiting(at(n), at(n * 1000)).await);
    }
    let leased = bench.leased(at(0)).await;
    let elsewhere = bench.webhook_id();
    bench.publish_new(bench.fan_out(bench.event(at(0)), &[(elsewhere, Birth::Waiting(at(0)))])).await;
    bench.set_state(bench.webhook, disabled()).await;
    let listed = bench.store().sweeping().await.unwrap();
    assert_eq!(listed.iter().map(|webhook| webhook.id).collect::<Vec<_>>(), [bench.webhook]);

    let mut swept = 0;
    loop {
        let step = sweep(bench, bench.webhook, 3).await;
        assert!(step.moved <= 3);
        swept += step.moved;
        if step.finished {
            break;
        }
    }
    assert_eq!(swept, 7);
    for id in waiting {
        let ended = bench.delivery(id).await;
        assert_eq!((ended.status, ended.ended_at), (DeliveryStatus::Cancelled, Some(at(70))));
        assert_eq!((ended.cancel_reason.as_deref(), ended.due), (Some("swept up"), None));
    }
    assert_eq!(bench.store().sweeping().await.unwrap(), []);
    assert_eq!(bench.due_lanes(at(END)).await, [bench.lane_of(elsewhere)]);
    bench.ends(leased, Next::Delivered, at(80)).await;
}

pub async fn sweeping_empties_every_lane(bench: &Arc<Bench>) {
    for (n, lane) in (0..).zip([FRESH, RETRY, order("a"), order("b"), order("")]) {
        bench.waiting_in(&lane, at(0), at(10 * n)).await;
        bench.waiting_in(&lane, at(0), at(0)).await;
    }
    bench.set_state(bench.webhook, disabled()).await;
    let mut moved = 0;
    loop {
        let step = sweep(bench, bench.webhook, 4).await;
        moved += step.moved;
        if step.finished {
            break;
        }
    }
    let look = bench.look(at(END)).await;
    assert_eq!((moved, look.lanes, look.next_wake), (10, vec![], None));
    assert_eq!(bench.store().oldest(None, 10).await.unwrap(), []);
}

pub async fn sweeping_stops_when_the_webhook_is_enabled_again(bench: &Arc<Bench>) {
    for n in 0..5 {
        bench.waiting(at(n), at(n)).await;
    }
    bench.set_state(bench.webhook, disabled()).await;
    assert_eq!(sweep(bench, bench.webhook, 2).await, Step { moved: 2, finished: false });
    bench.set_state(bench.webhook, WebhookState::Active).await;
    assert_eq!(sweep(bench, bench.webhook, 2).await, Step { moved: 0, finished: true });
    assert_eq!(bench.store().sweeping().await.unwrap(), []);
    assert_eq!(bench.claim(at(10)).await.len(), 3, "what was not swept up is delivered");
}

pub async fn an_active_webhook_is_not_swept(bench: &Arc<Bench>) {
    let id = bench.waiting(at(0), at(0)).await;
    let nothing = Step { moved: 0, finished: true };
    assert_eq!(sweep(bench, bench.webhook, 10).await, nothing);
    assert_eq!(sweep(bench, bench.webhook_id(), 10).await, nothing);
    assert_eq!(bench.claim_one(at(0)).await.id, id);
}

pub async fn sweeping_is_remembered_across_reopening(bench: &mut Arc<Bench>) {
    for n in 0..3 {
        bench.waiting(at(n), at(n)).await;
    }
    let other = bench.new_webhook().await.id;
    bench.set_state(bench.webhook, WebhookState::Deleted).await;
    bench.set_state(other, disabled()).await;
    assert_eq!(sweep(bench, bench.webhook, 2).await, Step { moved: 2, finished: false });
    assert_eq!(sweep(bench, other, 2).await, Step { moved: 0, finished: true });
    Bench::reopen(bench).await;
    let listed = bench.store().sweeping().await.unwrap();
    assert_eq!(listed.len(), 1);
    assert_eq!((listed[0].id, &listed[0].state), (bench.webhook, &WebhookState::Deleted));
    assert_eq!(sweep(bench, bench.webhook, 2).await, Step { moved: 1, finished: true });
    assert_eq!(bench.store().sweeping().await.unwrap(), []);
}

async fn expires(bench: &Bench, id: WebhookId, expires_at: Option<i64>) {
    let Versioned { mut webhook, revision } = bench.stored_webhook(id).await;
    webhook.spec.expires_at = expires_at.map(at);
    let changed = bench.store().change_webhook(webhook, revision, None).await.unwrap();
    assert!(matches!(changed, Changed::Done { .. }), "{changed:?}");
}

pub async fn webhooks_whose_time_is_over_are_told(bench: &mut Arc<Bench>) {
    let mut ids = Vec::new();
    for n in 0..5 {
        ids.push(bench.new_webhook().await.id);
        expires(bench, ids[n as usize], Some(100 * (n + 1))).await;
    }
    Bench::reopen(bench).await;
    let expiring = |now, limit| bench.store().expiring(at(now), limit, Vec::new());
    let of = |ids: &[WebhookId]| -> Vec<_> { ids.iter().map(|id| (bench.tenant.clone(), *id)).collect() };
    assert_eq!(expiring(99, 10).await.unwrap(), Expiring { expired: vec![], next: Some(at(100)) });
    assert_eq!(expiring(100, 10).await.unwrap(), Expiring { expired: of(&ids[..1]), next: Some(at(200)) });
    assert_eq!(expiring(500, 10).await.unwrap(), Expiring { expired: of(&ids), next: None });
    assert_eq!(expiring(500, 2).await.unwrap().expired, of(&ids[..2]), "the longest over first");

    // Those that get no events any more are left alone, and so are those given more time.
    bench.set_state(ids[0], disabled()).await;
    bench.set_state(ids[1], WebhookState::Deleted).await;
    bench.set_state(ids[2], WebhookState::Paused).await;
    expires(bench, ids[3], Some(900)).await;
    expires(bench, ids[4], None).await;
    let left = Expiring { expired: of(&ids[2..3]), next: Some(at(900)) };
    assert_eq!(expiring(500, 10).await.unwrap(), left);
    bench.set_state(ids[0], WebhookState::Active).await;
    assert_eq!(expiring(500, 10).await.unwrap().expired, of(&[ids[0], ids[2]]), "enabled, its time is over");
}

pub async fn due_verifications_of_tenants_that_are_left_out_are_skipped(bench: &mut Arc<Bench>) {
    for n in 0..4 {
        let verification = Verification::begin(at(100 + n), false);
        bench.set_state(bench.new_webhook().await.id, WebhookState::PendingVerification(verification)).await;
    }
    let over = bench.new_webhook().await.id;
    expires(bench, over, Some(150)).await;
    let other = bench.new_tenant("globex").await;
    let mut webhook = bench.webhook_of(&other);
    webhook.state = WebhookState::PendingVerification(Verification::begin(at(200), false));
    bench.store().create_webhook(webhook.clone()).await.unwrap();
    let found = bench.store().expiring(at(500), 10, Vec::new()).await.unwrap();
    assert_eq!(found.expired.len(), 6);
    let found = bench.store().expiring(at(500), 2, vec![bench.tenant.clone()]).await.unwrap();
    let (own, theirs) = ((bench.tenant.clone(), over), (other.clone(), webhook.id));
    assert_eq!(found, Expiring { expired: vec![own.clone(), theirs], next: None });
    let found = bench.store().expiring(at(500), 10, vec![bench.tenant.clone(), other]).await.unwrap();
    assert_eq!(found.expired, [own], "one that is to be disabled is not left out");
}

/// What a publisher knows of a tenant's webhooks.
#[derive(Default)]
struct Known {
    version: i64,
    webhooks: BTreeSet<WebhookId>,
}

impl Known {
    async fn refresh(&mut self, bench: &Bench) {
        let (version, webhooks) = changes(bench, self.version).await;
        self.version = version;
        self.webhooks.extend(webhooks);
    }

    /// Publishes an event by what is known, learning anew as often as that was out of date.
    async fn publish(&mut self, bench: &Bench, event: Event) -> Result<NewEvent, StoreError> {
        loop {
            let to: Vec<_> = self.webhooks.iter().map(|id| (*id, Birth::Waiting(at(0)))).collect();
            let new = NewEvent { config_version: self.version, ..bench.fan_out(event.clone(), &to) };
            match bench.try_publish(new.clone()).await? {
                Published::New { .. } => return Ok(new),
                Published::ConfigChanged => self.refresh(bench).await,
                other => panic!("{other:?}"),
            }
        }
    }
}

async fn webhooks_of(bench: &Bench, event: &Event) -> BTreeSet<WebhookId> {
    let filter = DeliveryFilter { event: Some(event.id), ..DeliveryFilter::default() };
    let deliveries =
        bench.store().list_deliveries(bench.tenant.clone(), filter, page(1000)).await.unwrap().found;
    deliveries.iter().map(|delivery| delivery.webhook).collect()
}

pub async fn no_event_misses_a_webhook_created_before_it(bench: &Arc<Bench>) {
    let created = Arc::new(Mutex::new(BTreeSet::from([bench.webhook])));
    let publisher = |n: i64| {
        let (bench, created) = (bench.clone(), created.clone());
        async move {
            let mut known = Known::default();
            for i in 0..25 {
                let time: Time = at(n * 1000 + i);
                let acknowledged = created.lock().unwrap().clone();
                let new = known.publish(&bench, bench.event(time)).await.unwrap();
                let owed = webhooks_of(&bench, &new.event).await;
                assert!(acknowledged.is_subset(&owed), "{:?}", acknowledged.difference(&owed));
            }
        }
    };
    let creator = {
        let (bench, created) = (bench.clone(), created.clone());
        async move {
            for _ in 0..12 {
                let webhook = bench.new_webhook().await;
                created.lock().unwrap().insert(webhook.id);
                // Let some events through under each version.
                for _ in 0..3 {
                    bench.store().ping().await.unwrap();
                }
            }
        }
    };
    let creator = tokio::spawn(creator);
    together((0..4).map(publisher)).await;
    creator.await.unwrap();
    let mut known = Known::default();
    let last = known.publish(bench, bench.event(at(9999))).await.unwrap();
    assert_eq!(webhooks_of(bench, &last.event).await, *created.lock().unwrap());
}
