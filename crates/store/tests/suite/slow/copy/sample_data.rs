//! Sample data: a source store that contains rows of every kind.

use std::{path::Path, sync::Arc, time::Duration};

use bytes::Bytes;
use redrive_core::delivery::outcome::Outcome;
use redrive_core::{
    AuditId, DeadReason, FailureCategory, KeyId, NotificationId, OperationId, TenantId, Time, WebhookId,
    delivery::{
        bulk_operation::{OperationFilter, OperationKind, OperationState, OperationTarget},
        lane::{Lane, Priority},
    },
    event::{Event, PayloadFormat, trace::Trace},
    notification::{
        NotificationKind, Occurrence, OccurrenceDetails,
        confirmation::ConfirmedBy,
        grouping::GroupIntervals,
        mail_limit::{CONFIRMATIONS_PER_MAILBOX, CONFIRMATIONS_PER_TENANT, MailPurpose},
    },
    protection::{
        breaker::{CircuitState, Forced, SavedCircuit},
        limiter::RateLimit,
    },
    statistics::{
        rollup::Rollup,
        traffic::{Resolution, Traffic},
    },
    tenancy::TenantRules,
    webhook::{WebhookState, failures::FailingRule, uid::WebhookUid},
};
use redrive_store::{
    ApiKey, AuditEnd, AuditEntry, CancelResult, Channel, ChannelResult, CreationKey, CreationResult,
    EmailReservation, EndedCounts, EraseResult, EventType, FailingChange, IdempotencyReservation,
    InitialState, LaneKey, MinuteRollup, NewEvent, NewObject, NewRound, Operation, OperationProgress,
    OperationRequest, OperationStep, OutcomeRecord, PruneRequest, RecordResult, RedriveResult,
    RegisterResult, ReplayResult, ScanCursor, Task, Tenant, TenantRollup, WebhookEffects,
    conformance::{FRESH, Harness, Opened, RETRY, Reopening, at, closed, order},
    sqlite::{Options, Sqlite},
};

const DAY: i64 = 24 * 3600 * 1000;
const DONE: RecordResult = RecordResult::Recorded { config_version: None };

/// Creates a harness on an embedded database at this path.
pub(crate) async fn bench_at(path: &Path) -> Arc<Harness> {
    let store = Arc::new(Sqlite::open(&Options::at(path).with_vault(redrive_testkit::vault())).unwrap());
    let reopen = Box::new(|| -> Reopening { unreachable!("the store is opened once") });
    Harness::new(Opened { store, keep: Box::new(()), reopen }).await
}

/// Creates a source that contains rows of every kind, and leaves it as if its process had been killed.
pub(crate) async fn create(path: &Path) {
    let harness = bench_at(path).await;
    tenants(&harness).await;
    keys(&harness).await;
    let (tenant_id, jane) = (harness.tenant_id.clone(), "jane@example.com".to_owned());
    harness.store().unsubscribe(tenant_id, jane, NotificationKind::DeliveryDead, at(4)).await.unwrap();
    email_addresses(&harness).await;
    history(&harness).await;
    archived(&harness).await;
    operation(&harness).await;
    rounds(&harness).await;
    leases(&harness).await;
    orders(&harness).await;
    states(&harness).await;
    gates(&harness).await;
    audit(&harness).await;
    notifications(&harness).await;
}

/// Adds one address with a requested confirmation, and one that is confirmed.
async fn email_addresses(harness: &Harness) {
    let (tenant_id, store) = (harness.tenant_id.clone(), harness.store());
    let reservation = EmailReservation {
        tenant_id: tenant_id.clone(),
        address: "jane@example.com".into(),
        purpose: MailPurpose::Confirmation,
        at: at(4),
        per_tenant: CONFIRMATIONS_PER_TENANT,
        per_mailbox: CONFIRMATIONS_PER_MAILBOX,
    };
    store.request_confirmation(reservation).await.unwrap();
    store.confirm_address(tenant_id, "ops@example.com".into(), ConfirmedBy::Operator, at(5)).await.unwrap();
}

/// Adds a bulk operation that has queued a delivery and is not finished.
async fn operation(harness: &Harness) {
    let dead = harness.dead(at(3)).await;
    let order = OperationRequest {
        kind: OperationKind::Retry,
        among: OperationTarget::Dead,
        selection: OperationFilter::default(),
        rate: Some(5),
        priority: None,
    };
    let id = OperationId::new(at(1), &harness.next());
    let operation = Operation {
        id,
        tenant_id: harness.tenant_id.clone(),
        order,
        state: OperationState::Scheduled,
        created_by: "admin".into(),
        created_at: at(1),
        start_at: at(1),
        began_at: None,
        finished_at: None,
        updated_at: at(1),
        claimed_by: None,
        cursor: None,
        progress: OperationProgress::default(),
        rate_since: None,
    };
    harness.store().create_operation(operation).await.unwrap();
    harness.store().claim_operations(harness.epoch, Vec::new(), at(5), 1).await.unwrap();
    let position = ScanCursor { event_id: harness.delivery(dead).await.event_id, delivery_id: Some(dead) };
    let step = OperationStep {
        id,
        tenant_id: harness.tenant_id.clone(),
        epoch: harness.epoch,
        tasks: vec![Task::Retry(dead, harness.redrive_options(harness.delivery_id(at(3))))],
        passed: 0,
        cursor: Some(position),
        then: None,
        at: at(6),
    };
    harness.store().step_operation(step).await.unwrap();
}

/// Adds a group that was sent, a group that is pending, and a notification that is being sent.
async fn notifications(harness: &Harness) {
    let store = harness.store();
    let occurrence = |kind, webhook_id, count| Occurrence {
        tenant_id: harness.tenant_id.clone(),
        webhook_id,
        kind,
        at: at(1),
        count,
        details: OccurrenceDetails {
            message: Some("too many \u{1f511}".into()),
            ..OccurrenceDetails::default()
        },
    };
    let dead = occurrence(NotificationKind::DeliveryDead, Some(harness.webhook_id), 3);
    store
        .record_occurrences(vec![dead.clone(), occurrence(NotificationKind::QuotaReached, None, 1)])
        .await
        .unwrap();
    let fresh = (0..10).map(|_| NotificationId::new(at(2), &harness.next())).collect();
    assert_eq!(store.create_notifications(at(2), GroupIntervals::default(), fresh).await.unwrap(), 2);
    let taken = store.claim_notifications(at(2), at(3), 1).await.unwrap();
    let result = ChannelResult::RetryAt(at(4), "no route".into());
    store.record_notification_result(taken[0].notification.id, Channel::Email, result).await.unwrap();
    store.record_occurrences(vec![dead]).await.unwrap();
}

async fn audit(harness: &Harness) {
    let entry = AuditEntry {
        id: AuditId::new(at(1), &harness.next()),
        tenant_id: Some(harness.tenant_id.clone()),
        actor: "Jane \u{1f511}".into(),
        subject: Some("u-1".into()),
        key: None,
        address: Some("10.0.0.1".parse().unwrap()),
        action: "webhook.create".into(),
        object: None,
        end: None,
    };
    harness.store().begin_audit(entry.clone()).await.unwrap();
    let (before, after) = (None, Some("{}".into()));
    let end = AuditEnd { result: "done".into(), object: Some("wh_1".into()), before, after };
    harness.store().finish_audit(entry.id, end).await.unwrap();
}

/// Returns the key under which a webhook of the sample data was created.
pub(crate) fn creation_key(tenant_id: &TenantId) -> CreationKey {
    CreationKey {
        tenant_id: Some(tenant_id.clone()),
        key_hash: [0xc5; 32],
        body_hash: [7; 32],
        expires_at: Time::FAR_FUTURE,
        confirmed_now: at(0),
    }
}

async fn tenants(harness: &Harness) {
    let store = harness.store();
    let default = store.tenant(TenantId::default()).await.unwrap().unwrap();
    store.change_tenant(Tenant { name: Some("Ours \u{1f511}".into()), ..default }).await.unwrap();
    let rules = TenantRules {
        pool: Some("eu".into()),
        rate_limit: Some(RateLimit { requests_per_minute: 60, burst: Some(5) }),
        max_in_flight: Some(3),
        ..TenantRules::default()
    };
    let id = TenantId::parse("globex").unwrap();
    store
        .create_tenant(Tenant {
            id: id.clone(),
            metadata: serde_json::from_str(r#"{"plan": "gold \ud83d\udd11", "seats": 1.00}"#).unwrap(),
            name: None,
            rules,
            created_at: at(7),
        })
        .await
        .unwrap();
    let mut webhook = harness.webhook_of(&id);
    webhook.spec.uid = Some(WebhookUid::parse("crm:EU-1").unwrap());
    let created = store.create(NewObject::Webhook(Box::new(webhook), None), creation_key(&id)).await.unwrap();
    assert!(matches!(created, CreationResult::Created { .. }), "{created:?}");
    for (name, archived) in [("order.created", false), ("order.old", true)] {
        let event_type = EventType {
            tenant_id: id.clone(),
            name: name.into(),
            description: Some("An order was placed \u{1f511}".into()),
            example: (!archived).then(|| r#"{"nul": "\u0000"}"#.into()),
            schema: Some(r#"{"type":  "object"}"#.into()),
            archived,
            created_at: at(1),
            updated_at: at(2),
        };
        assert_eq!(store.create_event_type(event_type, 10).await.unwrap(), RegisterResult::Done);
    }
    let webhook = harness.webhook_of(&id);
    store.create_webhook(webhook.clone()).await.unwrap();
    let config_version = store.config_changes(id.clone(), 0, 10).await.unwrap().unwrap().version;
    for time in [at(1), at(20 * DAY)] {
        let event = Event { tenant_id: id.clone(), ..harness.event(time) };
        let new = harness.fan_out(event, &[(webhook.id, InitialState::Waiting(time))]);
        harness.publish_new(NewEvent { config_version, ..new }).await;
    }
}

async fn keys(harness: &Harness) {
    let tenants = [None, Some(harness.tenant_id.clone()), Some(harness.tenant_id.clone())];
    for (n, tenant_id) in (1..).zip(tenants) {
        let id = KeyId::new(at(0), &harness.next());
        let key = ApiKey {
            id,
            tenant_id: tenant_id.clone(),
            installation: false,
            name: format!("deploy {n} \u{1f511}"),
            hash: [n; 32],
            scopes: u32::MAX - u32::from(n),
            created_at: at(3),
            session: false,
            networks: vec!["10.0.0.0/8".parse().unwrap()],
            expires_at: Some(at(DAY)),
            last_used_at: Some(at(4)),
            revoked_at: None,
        };
        assert!(harness.store().create_key(key).await.unwrap());
        if n == 3 {
            assert!(harness.store().revoke_key(tenant_id, id, at(9)).await.unwrap());
        }
    }
}

/// Adds events of several months with unusual bytes, deliveries with several attempts, idempotency keys and
/// rollups.
async fn history(harness: &Harness) {
    for bytes in [&b""[..], b"\0", b"a\0b", b"\xff\xfe\xc3\x28", b"\xed\xa0\x80", b"'; DROP TABLE events; --"]
    {
        let event = Event {
            data: Bytes::from_static(bytes),
            metadata: Some(Bytes::from_static(bytes)),
            trace: Trace::from_headers("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "a=b")
                .map(Box::new),
            source: Some("shop \u{1f600}".into()),
            subject: Some("'\"\\N\t".into()),
            priority: Priority::High,
            ..harness.event(at(-40 * DAY))
        };
        let new = harness.fan_out(event, &[(harness.webhook_id, InitialState::Leased)]);
        let id = new.deliveries[0].id;
        harness.publish_new(new).await;
        for number in 1..=3 {
            let time = at(i64::from(number) * 1000);
            let next = if number < 3 { Outcome::Retry { at: time } } else { Outcome::Delivered };
            let mut outcome = harness.outcome(id, number, next, time);
            let attempt = outcome.attempt.as_mut().unwrap();
            attempt.response_body_sample = Some(Bytes::from_static(bytes));
            attempt.custom_headers = Some(Bytes::from_static(bytes));
            attempt.error_message = Some("received \0 \u{fffd} \u{1f600}".into());
            assert_eq!(harness.record(outcome).await, DONE);
            if number < 3 {
                assert_eq!(harness.claim_one(time).await.id, id);
            }
        }
    }
    harness.publish_new(harness.fan_out(harness.event(at(2)), &[])).await;
    for key in ["a", "b"] {
        let event = Event { idempotency_key: Some(key.into()), ..harness.event(at(3)) };
        let idempotency = Some(IdempotencyReservation {
            body_hash: [7; 32],
            expires_at: at(90 * DAY),
            confirmed_now: at(0),
        });
        harness.publish_new(NewEvent { idempotency, ..harness.fan_out(event, &[]) }).await;
    }
    for minute in 0..5 {
        let mut rollup = Rollup::default();
        rollup.add(900, None, at(minute * 60_000));
        rollup.add(70_000_000, Some(FailureCategory::Timeout), at(minute * 60_000 + 1));
        let (tenant_id, start) = (harness.tenant_id.clone(), at(minute * 60_000));
        let ended = EndedCounts { delivered: 3, dead: 2, cancelled: 1 };
        let traffic = Resolution::ALL.map(|resolution| TenantRollup {
            tenant_id: tenant_id.clone(),
            resolution,
            start,
            expires_at: resolution.expires_at(start),
            traffic: Traffic { sent: rollup.clone(), ended },
        });
        let minute = MinuteRollup { tenant_id, webhook_id: harness.webhook_id, minute: start, rollup };
        harness.store().add_rollups(vec![minute], traffic.to_vec()).await.unwrap();
    }
}

/// Adds rows to the archive outbox, some of them in an object that was started, and an erased event.
async fn archived(harness: &Harness) {
    for n in 0..4 {
        harness.publish_new(harness.fan_out(harness.event(at(-80 * DAY + n * DAY)), &[])).await;
    }
    let request = PruneRequest {
        tenant_id: harness.tenant_id.clone(),
        before: at(-60 * DAY),
        after: None,
        rows: 10,
        archive: true,
    };
    assert_eq!(harness.store().prune_events(request).await.unwrap().left.events, 4);
    assert!(harness.store().next_object(0, 1).await.unwrap().is_some());
    let event = harness.event(at(-30 * DAY));
    let id = event.id;
    harness.publish_new(harness.fan_out(event, &[])).await;
    assert_eq!(
        harness.store().erase(harness.tenant_id.clone(), id, at(5)).await.unwrap(),
        EraseResult::Erased
    );
}

/// Adds deliveries that are dead, redriven, replayed and cancelled.
async fn rounds(harness: &Harness) {
    harness.dead(at(10)).await;
    let again = harness.dead(at(11)).await;
    let new = harness.redrive_options(harness.delivery_id(at(11)));
    assert!(matches!(harness.retry(again, new, at(12)).await, RedriveResult::NewRound(_)));
    let delivered = harness.leased(at(13)).await;
    harness.ends(delivered, Outcome::Delivered, at(14)).await;
    let event_id = harness.delivery(delivered).await.event_id;
    let round = NewRound {
        id: harness.delivery_id(at(13)),
        webhook_id: harness.webhook_id,
        format: PayloadFormat::Data,
        lane: RETRY,
    };
    let replayed =
        harness.store().replay(harness.tenant_id.clone(), event_id, vec![round], None, at(15)).await;
    assert!(matches!(replayed.unwrap(), ReplayResult::Done(_)));
    let cancelled = harness.waiting(at(16), at(17)).await;
    let reason = "a\0b \u{1f600}".to_owned();
    let cancelled = harness.store().cancel(harness.tenant_id.clone(), cancelled, reason, at(17));
    assert_eq!(cancelled.await.unwrap(), CancelResult::Done);
    let failed = harness.leased(at(18)).await;
    harness.ends(failed, Outcome::Dead(DeadReason::Permanent), at(19)).await;
}

/// Adds leases of a stopped node, some of them cancelled, and a lane that it has claimed.
async fn leases(harness: &Harness) {
    harness.leased(at(30)).await;
    let called_off = harness.leased(at(31)).await;
    assert_eq!(harness.cancel(called_off, at(32)).await, CancelResult::Requested);
    let webhook_id = harness.new_webhook().await.id;
    for time in [at(33), at(34)] {
        let new = harness.fan_out(harness.event(time), &[(webhook_id, InitialState::Waiting(time))]);
        harness.publish_new(new).await;
    }
    let claim = harness.claim_lane(harness.lane_of(webhook_id), at(35), 1).await;
    assert!(claim.has_more_due && claim.deliveries.len() == 1, "the lane is claimed");
    assert!(harness.store().mark_sending(harness.epoch, claim.deliveries[0].id).await.unwrap());
    for priority in Priority::ALL {
        harness.waiting_in(&Lane::Unordered { priority, retry: false }, at(36), at(100)).await;
        harness.waiting_in(&Lane::Unordered { priority, retry: true }, at(36), at(200)).await;
    }
}

/// Adds ordered lanes whose first delivery is waiting, leased, or leased and cancelled.
async fn orders(harness: &Harness) {
    for (key, called_off) in [("", None), ("order.created", Some(false)), ("order.paid", Some(true))] {
        let lane = order(key);
        let first = harness.waiting_in(&lane, at(40), at(41)).await;
        harness.waiting_in(&lane, at(42), at(43)).await;
        harness.waiting_in(&lane, at(42), at(10_000)).await;
        let Some(called_off) = called_off else { continue };
        let claim = harness.claim_lane(harness.own(lane), at(41), 1).await;
        assert_eq!(claim.deliveries[0].id, first);
        if called_off {
            assert_eq!(harness.cancel(first, at(44)).await, CancelResult::Requested);
        }
    }
}

/// Creates a webhook with due deliveries.
async fn busy_webhook(harness: &Harness) -> WebhookId {
    let id = harness.new_webhook().await.id;
    let to =
        [FRESH, order("x")].map(|lane| (LaneKey { webhook_id: id, lane }, InitialState::Waiting(at(50))));
    harness.publish_new(harness.fan_out_to(harness.event(at(50)), &to[..1])).await;
    harness.publish_new(harness.fan_out_to(harness.event(at(51)), &to[1..])).await;
    id
}

async fn states(harness: &Harness) {
    for state in [WebhookState::Paused, WebhookState::Disabled("too slow".into()), WebhookState::Deleted] {
        let id = busy_webhook(harness).await;
        harness.set_state(id, state).await;
    }
    let mut expiring = harness.webhook_of(&harness.tenant_id);
    expiring.spec.expires_at = Some(at(100 * DAY));
    harness.store().create_webhook(expiring).await.unwrap();
    // The harness learns the configuration version from this change, since the webhook above was not created through
    // it.
    let webhook_id = harness.new_webhook().await.id;
    harness.set_state(webhook_id, WebhookState::Active).await;
}

async fn gates(harness: &Harness) {
    let open = SavedCircuit {
        state: CircuitState::Open,
        generation: 3,
        since: at(60),
        until: Some(at(60_000)),
        sleep_ms: 30_000,
        ..closed()
    };
    let forced = Forced { open: true, until: None, by: "jane".into() };
    let forced = SavedCircuit { until: None, forced: Some(forced), ..open.clone() };
    let half_open = SavedCircuit {
        state: CircuitState::HalfOpen,
        generation: 4,
        since: at(70_000),
        until: None,
        ..open.clone()
    };
    for circuits in [vec![open.clone()], vec![forced], vec![open, half_open]] {
        let webhook_id = busy_webhook(harness).await;
        for circuit in circuits {
            harness.store().set_circuit(harness.tenant_id.clone(), webhook_id, circuit, None).await.unwrap();
        }
    }
    let held = busy_webhook(harness).await;
    let failing = Some(FailingChange::Failed {
        since: at(80),
        category: FailureCategory::Timeout,
        rule: FailingRule::default(),
    });
    for effects in [
        WebhookEffects { pause_until: Some(at(0) + Duration::from_secs(3600)), ..WebhookEffects::default() },
        WebhookEffects { failing, ..WebhookEffects::default() },
    ] {
        let new = harness.fan_out(harness.event(at(80)), &[(held, InitialState::Leased)]);
        let id = new.deliveries[0].id;
        harness.publish_new(new).await;
        let outcome = harness.outcome(id, 1, Outcome::Retry { at: at(90) }, at(81));
        assert_eq!(harness.record(OutcomeRecord { webhook_id: held, effects, ..outcome }).await, DONE);
    }
}

/// Returns a time after everything that was copied.
pub(crate) fn later() -> Time {
    Time::parse("2200-01-01T00:00:00Z").unwrap()
}
