//! A source with something of everything in it.

use std::{path::Path, sync::Arc, time::Duration};

use bytes::Bytes;
use redrive_core::{
    AuditId, DeadReason, FailureCategory, KeyId, NoticeId, OperationId, TenantId, Time, WebhookId,
    delivery::bulk_operation::{Among, OperationKind, OperationState, Selection},
    delivery::lane::{Lane, Priority},
    event::trace::Trace,
    event::{Event, PayloadFormat},
    notification::{
        Cause, Facts, Kind,
        confirmation::ConfirmedBy,
        grouping::Folds,
        mail_limit::{CONFIRMATIONS_PER_MAILBOX, CONFIRMATIONS_PER_TENANT, MailPurpose},
    },
    protection::breaker::{CircuitState, Forced, SavedCircuit},
    protection::limiter::RateLimit,
    statistics::rollup::Rollup,
    statistics::traffic::{Grain, Traffic},
    tenancy::TenantRules,
    webhook::WebhookState,
};
use redrive_store::{
    ApiKey, AuditEnd, AuditEntry, Birth, Cancelled, Channel, Effects, Ended, Erased, EventType, Failing,
    KeyClaim, LaneKey, MailReservation, MinuteRollup, NewEvent, NewRound, Next, Old, Operation,
    OperationOrder, OperationStep, Outcome, Recorded, Redriven, Registered, Replayed, Tally, Task, Tenant,
    TenantRollup, Told, WalkCursor,
    conformance::{Bench, FRESH, Opened, RETRY, Reopening, at, closed, order},
    sqlite::{Options, Sqlite},
};

const DAY: i64 = 24 * 3600 * 1000;
const DONE: Recorded = Recorded::Done { config_version: None };

/// A bench on an embedded database at this path.
pub(crate) async fn bench_at(path: &Path) -> Arc<Bench> {
    let store = Arc::new(Sqlite::open(&Options::at(path).sealed_by(redrive_testkit::vault())).unwrap());
    let reopen = Box::new(|| -> Reopening { unreachable!("it is opened once") });
    Bench::new(Opened { store, keep: Box::new(()), reopen }).await
}

/// Makes a source with everything in it, and leaves it as if it had been killed.
pub(crate) async fn make(path: &Path) {
    let bench = bench_at(path).await;
    tenants(&bench).await;
    keys(&bench).await;
    let (tenant, jane) = (bench.tenant.clone(), "jane@example.com".to_owned());
    bench.store().unsubscribe(tenant, jane, Kind::DeliveryDead, at(4)).await.unwrap();
    mail_addresses(&bench).await;
    history(&bench).await;
    archived(&bench).await;
    operation(&bench).await;
    rounds(&bench).await;
    leases(&bench).await;
    orders(&bench).await;
    states(&bench).await;
    gates(&bench).await;
    audit(&bench).await;
    notices(&bench).await;
}

/// One address that was asked, and one that is confirmed.
async fn mail_addresses(bench: &Bench) {
    let (tenant, store) = (bench.tenant.clone(), bench.store());
    let reservation = MailReservation {
        tenant: tenant.clone(),
        address: "jane@example.com".into(),
        purpose: MailPurpose::Confirmation,
        at: at(4),
        per_tenant: CONFIRMATIONS_PER_TENANT,
        per_mailbox: CONFIRMATIONS_PER_MAILBOX,
    };
    store.request_confirmation(reservation).await.unwrap();
    store.confirm_address(tenant, "ops@example.com".into(), ConfirmedBy::Operator, at(5)).await.unwrap();
}

/// A bulk operation that has queued something, and is not through.
async fn operation(bench: &Bench) {
    let dead = bench.dead(at(3)).await;
    let order = OperationOrder {
        kind: OperationKind::Retry,
        among: Among::Dead,
        selection: Selection::default(),
        rate: Some(5),
        priority: None,
    };
    let id = OperationId::new(at(1), &bench.next());
    let operation = Operation {
        id,
        tenant: bench.tenant.clone(),
        order,
        state: OperationState::Scheduled,
        created_by: "admin".into(),
        created_at: at(1),
        start_at: at(1),
        began_at: None,
        finished_at: None,
        updated_at: at(1),
        held_by: None,
        cursor: None,
        tally: Tally::default(),
        pace_from: None,
    };
    bench.store().create_operation(operation).await.unwrap();
    bench.store().take_operations(bench.epoch, Vec::new(), at(5), 1).await.unwrap();
    let place = WalkCursor { event: bench.delivery(dead).await.event, delivery: Some(dead) };
    let step = OperationStep {
        id,
        tenant: bench.tenant.clone(),
        epoch: bench.epoch,
        tasks: vec![Task::Retry(dead, bench.again(bench.delivery_id(at(3))))],
        passed: 0,
        cursor: Some(place),
        then: None,
        at: at(6),
    };
    bench.store().step_operation(step).await.unwrap();
}

/// Something that was told, something that is to be told, and a notice on its way.
async fn notices(bench: &Bench) {
    let store = bench.store();
    let cause = |kind, webhook, count| Cause {
        tenant: bench.tenant.clone(),
        webhook,
        kind,
        at: at(1),
        count,
        facts: Facts { message: Some("too many \u{1f511}".into()), ..Facts::default() },
    };
    let dead = cause(Kind::DeliveryDead, Some(bench.webhook), 3);
    store.note(vec![dead.clone(), cause(Kind::QuotaReached, None, 1)]).await.unwrap();
    let fresh = (0..10).map(|_| NoticeId::new(at(2), &bench.next())).collect();
    assert_eq!(store.make_notices(at(2), Folds::default(), fresh).await.unwrap(), 2);
    let taken = store.take_notices(at(2), at(3), 1).await.unwrap();
    let told = Told::Later(at(4), "no route".into());
    store.notice_told(taken[0].notice.id, Channel::Mail, told).await.unwrap();
    store.note(vec![dead]).await.unwrap();
}

async fn audit(bench: &Bench) {
    let entry = AuditEntry {
        id: AuditId::new(at(1), &bench.next()),
        tenant: Some(bench.tenant.clone()),
        actor: "admin".into(),
        key: None,
        address: Some("10.0.0.1".parse().unwrap()),
        action: "webhook.create".into(),
        object: None,
        end: None,
    };
    bench.store().begin_audit(entry.clone()).await.unwrap();
    let (before, after) = (None, Some("{}".into()));
    let end = AuditEnd { result: "done".into(), object: Some("wh_1".into()), before, after };
    bench.store().finish_audit(entry.id, end).await.unwrap();
}

async fn tenants(bench: &Bench) {
    let store = bench.store();
    let default = store.tenant(TenantId::default()).await.unwrap().unwrap();
    store.change_tenant(Tenant { name: Some("Ours \u{1f511}".into()), ..default }).await.unwrap();
    let rules = TenantRules {
        pool: Some("eu".into()),
        rate_limit: Some(RateLimit { requests_per_minute: 60, burst: Some(5) }),
        max_in_flight: Some(3),
        ..TenantRules::default()
    };
    let id = TenantId::parse("globex").unwrap();
    store.create_tenant(Tenant { id: id.clone(), name: None, rules, created_at: at(7) }).await.unwrap();
    for (name, archived) in [("order.created", false), ("order.old", true)] {
        let event_type = EventType {
            tenant: id.clone(),
            name: name.into(),
            description: Some("Somebody ordered \u{1f511}".into()),
            example: (!archived).then(|| r#"{"nul": "\u0000"}"#.into()),
            schema: Some(r#"{"type":  "object"}"#.into()),
            archived,
            created_at: at(1),
            updated_at: at(2),
        };
        assert_eq!(store.create_event_type(event_type, 10).await.unwrap(), Registered::Done);
    }
    let webhook = bench.webhook_of(&id);
    store.create_webhook(webhook.clone()).await.unwrap();
    let config_version = store.config_changes(id.clone(), 0, 10).await.unwrap().unwrap().version;
    for time in [at(1), at(20 * DAY)] {
        let event = Event { tenant: id.clone(), ..bench.event(time) };
        let new = bench.fan_out(event, &[(webhook.id, Birth::Waiting(time))]);
        bench.publish_new(NewEvent { config_version, ..new }).await;
    }
}

async fn keys(bench: &Bench) {
    let tenants = [None, Some(bench.tenant.clone()), Some(bench.tenant.clone())];
    for (n, tenant) in (1..).zip(tenants) {
        let id = KeyId::new(at(0), &bench.next());
        let key = ApiKey {
            id,
            tenant: tenant.clone(),
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
        assert!(bench.store().create_key(key).await.unwrap());
        if n == 3 {
            assert!(bench.store().revoke_key(tenant, id, at(9)).await.unwrap());
        }
    }
}

/// Events of several months, with odd bytes; deliveries that were tried several times; keys; minutes.
async fn history(bench: &Bench) {
    for bytes in [&b""[..], b"\0", b"a\0b", b"\xff\xfe\xc3\x28", b"\xed\xa0\x80", b"'; DROP TABLE events; --"]
    {
        let event = Event {
            data: Bytes::from_static(bytes),
            metadata: Some(Bytes::from_static(bytes)),
            trace: Trace::of_caller("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "a=b")
                .map(Box::new),
            source: Some("shop \u{1f600}".into()),
            subject: Some("'\"\\N\t".into()),
            priority: Priority::High,
            ..bench.event(at(-40 * DAY))
        };
        let new = bench.fan_out(event, &[(bench.webhook, Birth::Leased)]);
        let id = new.deliveries[0].id;
        bench.publish_new(new).await;
        for number in 1..=3 {
            let time = at(i64::from(number) * 1000);
            let next = if number < 3 { Next::Retry { due: time } } else { Next::Delivered };
            let mut outcome = bench.outcome(id, number, next, time);
            let attempt = outcome.attempt.as_mut().unwrap();
            attempt.response_body_sample = Some(Bytes::from_static(bytes));
            attempt.custom_headers = Some(Bytes::from_static(bytes));
            attempt.error_message = Some("it said \0 \u{fffd} \u{1f600}".into());
            assert_eq!(bench.record(outcome).await, DONE);
            if number < 3 {
                assert_eq!(bench.claim_one(time).await.id, id);
            }
        }
    }
    bench.publish_new(bench.fan_out(bench.event(at(2)), &[])).await;
    for key in ["a", "b"] {
        let event = Event { idempotency_key: Some(key.into()), ..bench.event(at(3)) };
        let claim = Some(KeyClaim { body_hash: [7; 32], expires_at: at(90 * DAY), confirmed_now: at(0) });
        bench.publish_new(NewEvent { claim, ..bench.fan_out(event, &[]) }).await;
    }
    for minute in 0..5 {
        let mut rollup = Rollup::default();
        rollup.add(900, None, at(minute * 60_000));
        rollup.add(70_000_000, Some(FailureCategory::Timeout), at(minute * 60_000 + 1));
        let (tenant, start) = (bench.tenant.clone(), at(minute * 60_000));
        let ended = Ended { delivered: 3, dead: 2, cancelled: 1 };
        let traffic = Grain::ALL.map(|grain| TenantRollup {
            tenant: tenant.clone(),
            grain,
            start,
            kept_until: grain.kept_until(start),
            traffic: Traffic { sent: rollup.clone(), ended },
        });
        let minute = MinuteRollup { tenant, webhook: bench.webhook, minute: start, rollup };
        bench.store().add_figures(vec![minute], traffic.to_vec()).await.unwrap();
    }
}

/// What was pruned and waits for the archive, some of it in an object that was begun; and what was erased.
async fn archived(bench: &Bench) {
    for n in 0..4 {
        bench.publish_new(bench.fan_out(bench.event(at(-80 * DAY + n * DAY)), &[])).await;
    }
    let old =
        Old { tenant: bench.tenant.clone(), before: at(-60 * DAY), after: None, rows: 10, archive: true };
    assert_eq!(bench.store().prune_events(old).await.unwrap().left.events, 4);
    assert!(bench.store().next_object(0, 1).await.unwrap().is_some());
    let event = bench.event(at(-30 * DAY));
    let id = event.id;
    bench.publish_new(bench.fan_out(event, &[])).await;
    assert_eq!(bench.store().erase(bench.tenant.clone(), id, at(5)).await.unwrap(), Erased::Now);
}

/// What is dead, was sent again or was called off.
async fn rounds(bench: &Bench) {
    bench.dead(at(10)).await;
    let again = bench.dead(at(11)).await;
    let new = bench.again(bench.delivery_id(at(11)));
    assert!(matches!(bench.retry(again, new, at(12)).await, Redriven::NewRound(_)));
    let delivered = bench.leased(at(13)).await;
    bench.ends(delivered, Next::Delivered, at(14)).await;
    let event = bench.delivery(delivered).await.event;
    let round = NewRound {
        id: bench.delivery_id(at(13)),
        webhook: bench.webhook,
        format: PayloadFormat::Data,
        lane: RETRY,
    };
    let replayed = bench.store().replay(bench.tenant.clone(), event, vec![round], None, at(15)).await;
    assert!(matches!(replayed.unwrap(), Replayed::Done(_)));
    let cancelled = bench.waiting(at(16), at(17)).await;
    let reason = "a\0b \u{1f600}".to_owned();
    let cancelled = bench.store().cancel(bench.tenant.clone(), cancelled, reason, at(17));
    assert_eq!(cancelled.await.unwrap(), Cancelled::Done);
    let failed = bench.leased(at(18)).await;
    bench.ends(failed, Next::Dead { reason: DeadReason::Permanent }, at(19)).await;
}

/// What a node had when it stopped, called off or not, and what it held.
async fn leases(bench: &Bench) {
    bench.leased(at(30)).await;
    let called_off = bench.leased(at(31)).await;
    assert_eq!(bench.cancel(called_off, at(32)).await, Cancelled::Requested);
    let webhook = bench.new_webhook().await.id;
    for time in [at(33), at(34)] {
        let new = bench.fan_out(bench.event(time), &[(webhook, Birth::Waiting(time))]);
        bench.publish_new(new).await;
    }
    let claim = bench.claim_lane(bench.lane_of(webhook), at(35), 1).await;
    assert!(claim.more && claim.deliveries.len() == 1, "the lane is held");
    assert!(bench.store().mark_sending(bench.epoch, claim.deliveries[0].id).await.unwrap());
    for priority in Priority::ALL {
        bench.waiting_in(&Lane::Free { priority, retry: false }, at(36), at(100)).await;
        bench.waiting_in(&Lane::Free { priority, retry: true }, at(36), at(200)).await;
    }
}

/// Orders that begin with what waits, with what a node had, and with what is called off.
async fn orders(bench: &Bench) {
    for (key, called_off) in [("", None), ("order.created", Some(false)), ("order.paid", Some(true))] {
        let lane = order(key);
        let first = bench.waiting_in(&lane, at(40), at(41)).await;
        bench.waiting_in(&lane, at(42), at(43)).await;
        bench.waiting_in(&lane, at(42), at(10_000)).await;
        let Some(called_off) = called_off else { continue };
        let claim = bench.claim_lane(bench.own(lane), at(41), 1).await;
        assert_eq!(claim.deliveries[0].id, first);
        if called_off {
            assert_eq!(bench.cancel(first, at(44)).await, Cancelled::Requested);
        }
    }
}

/// A webhook to which something is due.
async fn busy_webhook(bench: &Bench) -> WebhookId {
    let id = bench.new_webhook().await.id;
    let to = [FRESH, order("x")].map(|lane| (LaneKey { webhook: id, lane }, Birth::Waiting(at(50))));
    bench.publish_new(bench.fan_out_to(bench.event(at(50)), &to[..1])).await;
    bench.publish_new(bench.fan_out_to(bench.event(at(51)), &to[1..])).await;
    id
}

async fn states(bench: &Bench) {
    for state in [WebhookState::Paused, WebhookState::Disabled("too slow".into()), WebhookState::Deleted] {
        let id = busy_webhook(bench).await;
        bench.set_state(id, state).await;
    }
    let mut expiring = bench.webhook_of(&bench.tenant);
    expiring.spec.expires_at = Some(at(100 * DAY));
    bench.store().create_webhook(expiring).await.unwrap();
    // Not through the bench: what it publishes from here on is made from this version.
    let webhook = bench.new_webhook().await.id;
    bench.set_state(webhook, WebhookState::Active).await;
}

async fn gates(bench: &Bench) {
    let open = SavedCircuit {
        state: CircuitState::Open,
        generation: 3,
        since: at(60),
        until: Some(at(60_000)),
        sleep_ms: 30_000,
        ..closed()
    };
    let forced = Forced { open: true, until: None, by: "somebody".into() };
    let forced = SavedCircuit { until: None, forced: Some(forced), ..open.clone() };
    let half_open = SavedCircuit {
        state: CircuitState::HalfOpen,
        generation: 4,
        since: at(70_000),
        until: None,
        ..open.clone()
    };
    for circuits in [vec![open.clone()], vec![forced], vec![open, half_open]] {
        let webhook = busy_webhook(bench).await;
        for circuit in circuits {
            bench.store().set_circuit(bench.tenant.clone(), webhook, circuit, None).await.unwrap();
        }
    }
    let held = busy_webhook(bench).await;
    let failing = Some(Failing::Since(at(80)));
    for effects in [
        Effects { hold_until: Some(at(0) + Duration::from_secs(3600)), ..Effects::default() },
        Effects { failing, ..Effects::default() },
    ] {
        let new = bench.fan_out(bench.event(at(80)), &[(held, Birth::Leased)]);
        let id = new.deliveries[0].id;
        bench.publish_new(new).await;
        let outcome = bench.outcome(id, 1, Next::Retry { due: at(90) }, at(81));
        assert_eq!(bench.record(Outcome { webhook: held, effects, ..outcome }).await, DONE);
    }
}

/// A time after everything that was copied.
pub(crate) fn later() -> Time {
    Time::parse("2200-01-01T00:00:00Z").unwrap()
}
