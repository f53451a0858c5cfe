//! The operations of a store, each as one step that finds its own input among what the others left behind.

use std::{sync::Arc, sync::atomic::Ordering::SeqCst, time::Duration};

use redrive_core::{
    DeadReason, DeliveryId, KeyId, NoticeId, OperationId, TenantId, WebhookId,
    cluster::clock_discipline::SetBack,
    delivery::bulk_operation::{Among, OperationKind, OperationState, Selection},
    delivery::lane::{Lane, Priority},
    event::PayloadFormat,
    notification::{
        Cause, Facts, Kind,
        confirmation::ConfirmedBy,
        grouping::Folds,
        mail_limit::{MailPurpose, SendLimit},
    },
    protection::breaker::{CircuitState, SavedCircuit},
    statistics::rollup::Rollup,
    tenancy::TenantRules,
    webhook::WebhookState,
};
use redrive_store::{
    ApiKey, Birth, BrowserSession, Change, Changed, Claimed, Disable, Effects, EventType, Failing, KeyClaim,
    LaneKey, LaneRoom, MailReservation, MinuteRollup, NewEvent, NewRound, Next, Old,
    Operation as BulkOperation, OperationOrder, OperationStep, Outcome, Published, Recorded, StoreError,
    Tally, Task, Tenant, Wanted,
    conformance::{FRESH, RETRY, at, closed, order},
};
use tokio::sync::oneshot;

use super::harness::{KnownDelivery, Node};

/// The time of all operations: everything that was published is due.
const NOW: i64 = 1_000;
const POOLS: [&str; 2] = ["default", "other"];

macro_rules! operations {
    ($($name:ident),* $(,)?) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Operation { $($name),* }

        impl Operation {
            pub(crate) const ALL: &[Self] = &[$(Self::$name),*];
        }
    };
}
operations! {
    PublishPlain, PublishKeyed, PublishInOrder, RecordDelivered, RecordRetry, RecordDead, RecordEffects,
    RecordDisable, Release, TakeByTicket, MarkSending, LeaveHome, Cancel, CancelMany, Retry, RetryMany, Replay,
    Backfill, Purge, SetCircuit, PauseWebhook, DisableWebhook, DeleteWebhook, Sweep, Expire, ChangeTenant,
    ChangeEventTypes, Rescue, Beat, PruneEvents, PruneDead, EraseEvent, Notify, AddFigures, UseKeys, ForgetOld,
    Rewrap, SetTimeBack,
}

/// Runs an operation once. A publish comes first, so that there is always something to do.
pub(crate) async fn run(node: &mut Node, operation: Operation) {
    let name = format!("{operation:?}");
    let shared = node.shared.clone();
    let result = match operation {
        Operation::PublishPlain => publish(node, Kinds::Plain).await,
        Operation::PublishKeyed => publish(node, Kinds::Keyed).await,
        Operation::PublishInOrder => publish(node, Kinds::InOrder).await,
        other => {
            if node.pick(2) == 0 {
                shared.check("PublishPlain", publish(node, Kinds::Plain).await);
            }
            run_on_published(node, other).await
        }
    };
    shared.check(&name, result);
}

async fn run_on_published(node: &mut Node, operation: Operation) -> Result<(), StoreError> {
    match operation {
        Operation::RecordDelivered
        | Operation::RecordRetry
        | Operation::RecordDead
        | Operation::RecordEffects
        | Operation::RecordDisable => record_claimed(node, operation).await,
        Operation::Release | Operation::TakeByTicket | Operation::MarkSending | Operation::LeaveHome => {
            lease(node, operation).await
        }
        Operation::Cancel | Operation::Retry | Operation::Replay => redrive(node, operation).await,
        Operation::CancelMany | Operation::RetryMany | Operation::Backfill | Operation::Purge => {
            step_bulk_operation(node, operation).await
        }
        Operation::SetCircuit
        | Operation::PauseWebhook
        | Operation::DisableWebhook
        | Operation::DeleteWebhook
        | Operation::Sweep
        | Operation::Expire => change_webhook(node, operation).await,
        Operation::Rescue => rescue(node).await,
        Operation::PruneEvents | Operation::PruneDead | Operation::EraseEvent => {
            delete_old(node, operation).await
        }
        _ => administer(node, operation).await,
    }
}

enum Kinds {
    Plain,
    Keyed,
    InOrder,
}

/// Publishes a batch for both tenants, with deliveries in several lanes of several webhooks.
async fn publish(node: &mut Node, kinds: Kinds) -> Result<(), StoreError> {
    let mut answers = Vec::new();
    for _ in 0..3 {
        let tenant = node.pick_tenant();
        let Some(config) = node.store.config_changes(tenant.clone(), 0, 100).await? else { continue };
        let mut webhooks: Vec<_> = config
            .webhooks
            .iter()
            .filter(|webhook| webhook.state.gets_events())
            .map(|webhook| webhook.id)
            .collect();
        webhooks.truncate(1 + node.pick(3));
        if node.pick(2) == 0 {
            webhooks.reverse();
        }
        let time = at(node.pick(100) as i64);
        let mut event = node.shared.bench.event(time);
        event.tenant = tenant.clone();
        event.subject = Some("customer-1".into());
        let lanes: Vec<_> = webhooks
            .into_iter()
            .map(|webhook| {
                let priority = [Priority::High, Priority::Normal, Priority::Low][node.pick(3)];
                let lane = match kinds {
                    Kinds::InOrder => order(["", "a", "b"][node.pick(3)]),
                    _ => Lane::Free { priority, retry: false },
                };
                let birth = match node.pick(4) {
                    0 => Birth::Leased,
                    later => Birth::Waiting(at(later as i64 * 300)),
                };
                (LaneKey { webhook, lane }, birth)
            })
            .collect();
        let mut new = node.shared.bench.fan_out_to(event, &lanes);
        (new.epoch, new.config_version) = (node.epoch, config.version);
        if let Kinds::Keyed = kinds {
            add_key(node, &mut new);
        }
        let (answer, answered) = oneshot::channel();
        let known: Vec<_> = known_of(&new, &tenant);
        node.store.publish(new, Box::new(move |result| drop(answer.send(result))));
        answers.push((known, answered));
    }
    for (known, answered) in answers {
        if let Published::New { .. } = answered.await.unwrap()? {
            node.shared.add_known(known);
        }
    }
    Ok(())
}

fn add_key(node: &mut Node, new: &mut NewEvent) {
    let key = format!("key-{}", node.pick(20));
    Arc::get_mut(&mut new.event).unwrap().idempotency_key = Some(key.into_boxed_str());
    let expires_at = at(200 + node.pick(1_000) as i64);
    new.claim = Some(KeyClaim { body_hash: [7; 32], expires_at, confirmed_now: new.event.timestamp });
}

fn known_of(new: &NewEvent, tenant: &TenantId) -> Vec<KnownDelivery> {
    let known = new.deliveries.iter().map(|delivery| KnownDelivery {
        id: delivery.id,
        event: new.event.id,
        tenant: tenant.clone(),
        webhook: delivery.webhook,
    });
    known.collect()
}

/// Claims up to so many deliveries of each lane that has something due.
async fn claim(node: &mut Node, room: usize, alone: bool) -> Result<Vec<Claimed>, StoreError> {
    let pools = POOLS.map(str::to_owned).to_vec();
    let due = node.store.due_lanes(node.epoch, pools, at(NOW), 20).await?;
    let rooms = due.lanes.into_iter().map(|key| LaneRoom { alone, ..LaneRoom::new(key, room) }).collect();
    let claims = node.store.claim(node.epoch, at(NOW), rooms, 1 << 20).await?;
    Ok(claims.into_iter().flat_map(|claim| claim.deliveries).collect())
}

/// Claims and records all outcomes as one batch.
async fn record_claimed(node: &mut Node, operation: Operation) -> Result<(), StoreError> {
    let mut claimed = claim(node, 4, false).await?;
    if node.pick(2) == 0 {
        claimed.reverse();
    }
    let outcomes: Vec<_> = claimed.iter().map(|one| outcome(node, operation, one)).collect();
    let recorded = record_all(node, &outcomes).await?;
    let again: Vec<_> = outcomes
        .into_iter()
        .zip(recorded)
        .filter(|(_, recorded)| matches!(recorded, Recorded::CancelRequested(_)))
        .map(|(outcome, _)| Outcome { knows_cancel: true, ..outcome })
        .collect();
    record_all(node, &again).await.map(drop)
}

async fn record_all(node: &Node, outcomes: &[Outcome]) -> Result<Vec<Recorded>, StoreError> {
    let submit = |outcome: &Outcome| {
        let (answer, answered) = oneshot::channel();
        node.store.record(Arc::new(outcome.clone()), Box::new(move |result| drop(answer.send(result))));
        answered
    };
    let answers: Vec<_> = outcomes.iter().map(submit).collect();
    let mut recorded = Vec::new();
    for answer in answers {
        recorded.push(answer.await.unwrap()?);
    }
    Ok(recorded)
}

fn outcome(node: &mut Node, operation: Operation, claimed: &Claimed) -> Outcome {
    let next = match operation {
        Operation::RecordDelivered => Next::Delivered,
        Operation::RecordDead | Operation::RecordDisable => Next::Dead { reason: DeadReason::Exhausted },
        _ => Next::Retry { due: at(node.pick(NOW as usize) as i64) },
    };
    let bench = &node.shared.bench;
    let outcome = bench.outcome(claimed.id, claimed.attempt_count + 1, next, at(NOW));
    let (tenant, webhook) = (claimed.event.tenant.clone(), claimed.webhook);
    let outcome = Outcome { epoch: node.epoch, tenant: tenant.clone(), webhook, ..outcome };
    match operation {
        Operation::RecordDead => {
            Outcome { causes: vec![cause(&tenant, webhook, Kind::DeliveryDead)], ..outcome }
        }
        Operation::RecordDisable => {
            let disable = Disable { reason: "gone".into(), url: "https://example.com/hook".into() };
            let causes = vec![cause(&tenant, webhook, Kind::WebhookDisabled)];
            Outcome { disable: Some(disable), causes, ..outcome }
        }
        Operation::RecordEffects => {
            let failing = [Failing::Since(at(NOW)), Failing::Over][node.pick(2)];
            let effects = Effects {
                circuit: (node.pick(2) == 0).then(|| Box::new(circuit(node))),
                hold_until: (node.pick(2) == 0).then(|| at(node.pick(NOW as usize) as i64)),
                failing: Some(failing),
            };
            let causes = vec![cause(&tenant, webhook, Kind::CircuitOpened)];
            Outcome { effects, causes, ..outcome }
        }
        _ => outcome,
    }
}

fn cause(tenant: &TenantId, webhook: WebhookId, kind: Kind) -> Cause {
    let (tenant, webhook) = (tenant.clone(), Some(webhook));
    Cause { tenant, webhook, kind, at: at(NOW), count: 1, facts: Facts::default() }
}

/// A circuit that is newer than all before it, and blocks for a time that is over.
fn circuit(node: &mut Node) -> SavedCircuit {
    let generation = node.shared.generation.fetch_add(1, SeqCst);
    let closed = SavedCircuit { generation, since: at(generation as i64), ..closed() };
    match node.pick(2) {
        0 => closed,
        _ => SavedCircuit { state: CircuitState::Open, until: Some(at(NOW - 1)), ..closed },
    }
}

async fn lease(node: &mut Node, operation: Operation) -> Result<(), StoreError> {
    if operation == Operation::TakeByTicket {
        let tenant = node.pick_tenant();
        let wanted = node.pick_deliveries(&tenant, 6).into_iter().map(|one| {
            let lane = [FRESH, RETRY][node.pick(2)].clone();
            Wanted { key: LaneKey { webhook: one.webhook, lane }, delivery: one.id }
        });
        let wanted = wanted.collect::<Vec<_>>();
        let taken = node.store.take(node.epoch, at(NOW), at(NOW), wanted, 1 << 20).await?;
        return release(node, taken).await;
    }
    let claimed = claim(node, 3, operation == Operation::LeaveHome).await?;
    match operation {
        Operation::MarkSending => {
            for one in &claimed {
                node.store.mark_sending(node.epoch, one.id).await?;
            }
        }
        Operation::LeaveHome => {
            let webhooks = claimed.iter().map(|one| one.webhook).collect();
            node.store.leave(node.epoch, webhooks).await?;
        }
        _ => {}
    }
    release(node, claimed).await
}

async fn release(node: &Node, claimed: Vec<Claimed>) -> Result<(), StoreError> {
    let back = claimed.into_iter().map(|one| (one.id, one.due)).collect();
    node.store.release(node.epoch, at(NOW), back).await.map(drop)
}

async fn redrive(node: &mut Node, operation: Operation) -> Result<(), StoreError> {
    let tenant = node.pick_tenant();
    let Some(one) = node.pick_deliveries(&tenant, 1).pop() else { return Ok(()) };
    match operation {
        Operation::Cancel => {
            node.store.cancel(tenant, one.id, "not needed".into(), at(NOW)).await?;
        }
        Operation::Retry => {
            let again = again(node, &one);
            node.store.retry(tenant, one.id, again, at(NOW)).await?;
        }
        _ => {
            let id = node.shared.bench.delivery_id(one.event.time());
            let rounds =
                vec![NewRound { id, webhook: one.webhook, format: PayloadFormat::Envelope, lane: RETRY }];
            node.store.replay(tenant, one.event, rounds, None, at(NOW)).await?;
        }
    }
    Ok(())
}

fn again(node: &mut Node, one: &KnownDelivery) -> redrive_store::Again {
    let mut again = node.shared.bench.again(node.shared.bench.delivery_id(one.id.time()));
    again.priority = [None, Some(Priority::High), Some(Priority::Low)][node.pick(3)];
    again
}

/// Creates a bulk operation, takes it and does one step of it.
async fn step_bulk_operation(node: &mut Node, operation: Operation) -> Result<(), StoreError> {
    let tenant = node.pick_tenant();
    let mut picked = node.pick_deliveries(&tenant, 12);
    if operation == Operation::Backfill {
        // A step names each event once for a webhook.
        picked.sort_by_key(|one| one.event);
        picked.dedup_by_key(|one| one.event);
    }
    let tasks: Vec<_> = picked
        .into_iter()
        .map(|one| match operation {
            Operation::CancelMany => Task::Cancel(one.id, "not needed".into()),
            Operation::RetryMany => Task::Retry(one.id, again(node, &one)),
            Operation::Purge => Task::Purge(one.id),
            _ => {
                let (id, webhook) = (node.shared.bench.delivery_id(one.event.time()), node.pick_webhook().1);
                let lane = order(["", "a"][node.pick(2)]);
                let round = NewRound { id, webhook, format: PayloadFormat::Envelope, lane };
                Task::Send(one.event, round, Priority::Normal)
            }
        })
        .collect();
    let id = OperationId::new(at(1), &node.shared.bench.next());
    node.store.create_operation(bulk_operation(id, &tenant)).await?;
    node.store.take_operations(node.epoch, Vec::new(), at(NOW), 1000).await?;
    let epoch = node.epoch;
    let then = Some(OperationState::Delivering);
    let step = OperationStep { id, tenant, epoch, tasks, passed: 0, cursor: None, then, at: at(NOW) };
    node.store.step_operation(step).await?;
    node.store.settle_operation(id, epoch, None, 100).await?;
    node.store.close_operation(id, epoch, at(NOW)).await
}

fn bulk_operation(id: OperationId, tenant: &TenantId) -> BulkOperation {
    let order = OperationOrder {
        kind: OperationKind::Retry,
        among: Among::Dead,
        selection: Selection::default(),
        rate: None,
        priority: None,
    };
    BulkOperation {
        id,
        tenant: tenant.clone(),
        order,
        state: OperationState::Scheduled,
        created_by: "test".into(),
        created_at: at(1),
        start_at: at(1),
        began_at: None,
        finished_at: None,
        updated_at: at(1),
        held_by: None,
        cursor: None,
        tally: Tally::default(),
        pace_from: None,
    }
}

async fn change_webhook(node: &mut Node, operation: Operation) -> Result<(), StoreError> {
    let (tenant, webhook) = node.pick_webhook();
    match operation {
        Operation::SetCircuit => {
            let circuit = circuit(node);
            let cause = cause(&tenant, webhook, Kind::CircuitOpened);
            node.store.set_circuit(tenant, webhook, circuit, Some(cause)).await.map(drop)
        }
        Operation::PauseWebhook => {
            let state = [WebhookState::Paused, WebhookState::Active][node.pick(2)].clone();
            set_state(node, &tenant, webhook, state).await
        }
        Operation::DisableWebhook => {
            let state = [WebhookState::Disabled("test".into()), WebhookState::Active][node.pick(2)].clone();
            set_state(node, &tenant, webhook, state).await?;
            sweep(node).await
        }
        Operation::DeleteWebhook => {
            set_state(node, &tenant, webhook, WebhookState::Deleted).await?;
            let new = node.shared.bench.webhook_of(&tenant);
            if let Changed::Done { .. } = node.store.create_webhook(new.clone()).await? {
                for entry in node.shared.webhooks.lock().iter_mut().filter(|(_, id)| *id == webhook) {
                    entry.1 = new.id;
                }
            }
            sweep(node).await
        }
        Operation::Sweep => {
            set_state(node, &tenant, webhook, WebhookState::Disabled("test".into())).await?;
            sweep(node).await?;
            set_state(node, &tenant, webhook, WebhookState::Active).await
        }
        _ => {
            let cause = cause(&tenant, webhook, Kind::DeliveryDead);
            node.store.expire(webhook, at(50), at(NOW), 5, Some(cause)).await.map(drop)
        }
    }
}

async fn set_state(
    node: &Node,
    tenant: &TenantId,
    webhook: WebhookId,
    state: WebhookState,
) -> Result<(), StoreError> {
    let Some(mut found) = node.store.webhook(tenant.clone(), webhook).await? else { return Ok(()) };
    found.webhook.state = state;
    let cause = cause(tenant, webhook, Kind::WebhookDisabled);
    node.store.change_webhook(found.webhook, found.revision, Some(cause)).await.map(drop)
}

async fn sweep(node: &Node) -> Result<(), StoreError> {
    for webhook in node.store.sweeping().await? {
        node.store.sweep(webhook.id, "disabled".into(), at(NOW), 7).await?;
    }
    Ok(())
}

/// Leases something as a node that is then declared dead, and rescues it.
async fn rescue(node: &mut Node) -> Result<(), StoreError> {
    let alive = node.epoch;
    let dead = node.store.join(Default::default(), at(0)).await?;
    node.epoch = dead;
    publish(node, Kinds::Plain).await?;
    let claimed = claim(node, 3, true).await;
    node.epoch = alive;
    if let Some(first) = claimed?.first() {
        node.store.cancel(first.event.tenant.clone(), first.id, "not needed".into(), at(NOW)).await?;
    }
    for _ in 0..5 {
        if node.store.rescue(dead, at(NOW), 4).await?.finished {
            break;
        }
    }
    for other in node.store.others(alive).await? {
        // Another task may have been stopped in the middle of a rescue.
        if other.0 < dead.0 && other.0 > 4 {
            node.store.rescue(other, at(NOW), 100).await?;
        }
    }
    Ok(())
}

async fn delete_old(node: &mut Node, operation: Operation) -> Result<(), StoreError> {
    let tenant = node.pick_tenant();
    let archive = node.pick(2) == 0;
    match operation {
        Operation::PruneEvents => {
            let old = Old { tenant, before: at(100), after: None, rows: 5, archive };
            node.store.prune_events(old).await?;
        }
        Operation::PruneDead => {
            let old = Old { tenant, before: at(NOW + 1), after: None::<DeliveryId>, rows: 5, archive };
            node.store.prune_dead(old).await?;
        }
        _ => {
            let Some(one) = node.pick_deliveries(&tenant, 1).pop() else { return Ok(()) };
            node.store.erase(tenant.clone(), one.event, at(NOW)).await?;
            node.store.erase_answers(tenant, one.event, 10).await?;
        }
    }
    if let Some(object) = node.store.next_object(1, 1 << 20).await? {
        node.store.object_stored(object.name).await?;
    }
    Ok(())
}

async fn administer(node: &mut Node, operation: Operation) -> Result<(), StoreError> {
    let (tenant, webhook) = node.pick_webhook();
    match operation {
        Operation::ChangeTenant => {
            let pool = Some(POOLS[node.pick(2)].to_owned());
            let rules = TenantRules { pool, ..TenantRules::default() };
            let tenant = Tenant { id: tenant, name: None, rules, created_at: at(0) };
            node.store.change_tenant(tenant).await.map(drop)
        }
        Operation::ChangeEventTypes => change_event_types(node, tenant).await,
        Operation::Beat => node.store.beat(node.epoch).await.map(drop),
        Operation::Notify => {
            let kinds =
                [Kind::DeliveryDead, Kind::CircuitOpened, Kind::CircuitRecovered, Kind::WebhookDisabled];
            let mut causes: Vec<_> = kinds.into_iter().map(|kind| cause(&tenant, webhook, kind)).collect();
            causes.push(Cause { webhook: None, ..causes[0].clone() });
            node.store.note(causes).await?;
            let fresh = (0..40).map(|_| NoticeId::new(at(NOW), &node.shared.bench.next())).collect();
            node.store.make_notices(at(NOW + 10), Folds::default(), fresh).await?;
            node.store.take_notices(at(NOW + 10), at(NOW + 20), 10).await?;
            node.store.forget_notices(at(NOW + 10), 10).await.map(drop)
        }
        Operation::AddFigures => {
            let minutes = node.shared.webhooks.lock().clone();
            let minutes = minutes.into_iter().map(|(tenant, webhook)| MinuteRollup {
                tenant,
                webhook,
                minute: at(0),
                rollup: Rollup { attempts: 2, successes: 1, ..Rollup::default() },
            });
            let minutes = minutes.collect();
            node.store.add_figures(minutes, Vec::new()).await?;
            node.store.forget_rollups(at(-1), 10).await.map(drop)
        }
        Operation::UseKeys => use_keys(node, tenant).await,
        Operation::Rewrap => node.store.rewrap(None, 10).await.map(drop),
        Operation::SetTimeBack => {
            node.store.store_confirmed_time(at(NOW)).await?;
            node.store.confirm_clock().await?;
            let set_back = SetBack { from: at(0), by: Duration::from_millis(1) };
            node.store.set_holds_back(set_back).await?;
            let after = node.store.set_due_back(set_back, at(NOW), None, 2).await?;
            node.store.set_due_back(set_back, at(NOW), after, 10).await.map(drop)
        }
        _ => {
            node.store.forget_keys(at(NOW), 10).await?;
            let mark = node.store.changes(None).await?.mark;
            let changes = node.store.changes(Some(mark.clone())).await?.changes;
            let _keys = changes.iter().filter(|change| matches!(change, Change::Keys)).count();
            node.store.forget_changes(mark).await?;
            node.store
                .unsubscribe(tenant.clone(), "a@example.com".into(), Kind::DeliveryDead, at(NOW))
                .await?;
            node.store.resubscribe(tenant.clone(), "a@example.com".into(), None).await?;
            send_mails(node, tenant).await?;
            node.store.forget_operations(at(NOW + 1), 10).await.map(drop)
        }
    }
}

/// Two mailboxes that all tenants write to.
async fn send_mails(node: &mut Node, tenant: TenantId) -> Result<(), StoreError> {
    let address = ["a@example.com", "b@example.com"][node.pick(2)].to_owned();
    let reservation = MailReservation {
        tenant: tenant.clone(),
        address: address.clone(),
        purpose: MailPurpose::Confirmation,
        at: at(NOW),
        per_tenant: SendLimit::default(),
        per_mailbox: SendLimit::default(),
    };
    node.store.request_confirmation(reservation.clone()).await?;
    node.store.take_confirmations(at(NOW), 10).await?;
    node.store.retry_confirmation(tenant.clone(), address.clone(), at(NOW + 1)).await?;
    node.store.confirm_address(tenant, address, ConfirmedBy::Holder, at(NOW)).await?;
    node.store.reserve_mail(reservation.clone()).await?;
    node.store.release_mail(reservation).await?;
    node.store.prune_mail_addresses(at(NOW + 1), at(NOW + 1), 10).await.map(drop)
}

async fn change_event_types(node: &mut Node, tenant: TenantId) -> Result<(), StoreError> {
    let name = format!("order.created{}", node.pick(3));
    let new = EventType {
        tenant: tenant.clone(),
        name: name.clone(),
        description: None,
        example: None,
        schema: None,
        archived: false,
        created_at: at(0),
        updated_at: at(0),
    };
    node.store.create_event_type(new.clone(), 100).await?;
    if let Some(found) = node.store.event_type(tenant.clone(), name.clone()).await? {
        node.store.change_event_type(EventType { archived: true, ..new }, found.revision).await?;
    }
    node.store.delete_event_type(tenant, name).await.map(drop)
}

async fn use_keys(node: &mut Node, tenant: TenantId) -> Result<(), StoreError> {
    let keys: Vec<_> = (0..8u8).map(|n| KeyId::from_bytes([n; 16])).collect();
    if node.store.list_keys(Some(tenant.clone()), redrive_store::conformance::page(1)).await?.is_empty() {
        for (n, id) in keys.iter().enumerate() {
            let mut hash = [n as u8; 32];
            hash[..tenant.as_str().len().min(8)]
                .copy_from_slice(&tenant.as_str().as_bytes()[..tenant.as_str().len().min(8)]);
            let tenant = Some(tenant.clone());
            let key = ApiKey {
                id: *id,
                tenant,
                name: "k".into(),
                hash,
                scopes: 1,
                session: false,
                networks: Vec::new(),
                created_at: at(0),
                expires_at: None,
                revoked_at: None,
                last_used_at: None,
            };
            // Another node may have created it.
            drop(node.store.create_key(key).await);
        }
    }
    let mut uses: Vec<_> = keys.into_iter().map(|id| (id, at(NOW))).collect();
    uses.reverse();
    node.store.note_key_use(uses).await?;
    use_sessions(node).await?;
    tokio::time::sleep(Duration::from_millis(1)).await;
    node.store.revoke_key(Some(tenant), KeyId::from_bytes([9; 16]), at(NOW)).await.map(drop)
}

/// Logs in and out with one key on all nodes.
async fn use_sessions(node: &mut Node) -> Result<(), StoreError> {
    let key_hash = [7; 32];
    for _ in 0..3 {
        let id = [node.pick(200) as u8; 32];
        let session = BrowserSession { id, key_hash, created_at: at(NOW), expires_at: at(NOW + 1) };
        // Another node may have created one with the same id.
        drop(node.store.create_browser_session(session, 2).await);
    }
    node.store.prune_browser_sessions(at(NOW + 2), 2).await?;
    node.store.delete_browser_sessions_of_key(key_hash).await.map(drop)
}
