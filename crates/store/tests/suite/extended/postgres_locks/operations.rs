//! The operations of a store, each as one step that takes its input from what the others left behind.

use std::{
    sync::{Arc, atomic::Ordering::SeqCst},
    time::Duration,
};

use redrive_core::delivery::outcome::Outcome;
use redrive_core::{
    DeadReason, DeliveryId, FailureCategory, KeyId, NotificationId, OperationId, TenantId, WebhookId,
    cluster::clock_discipline::ClockStep,
    delivery::{
        bulk_operation::{OperationFilter, OperationKind, OperationState, OperationTarget},
        lane::{Lane, Priority},
    },
    event::PayloadFormat,
    notification::{
        NotificationKind, Occurrence, OccurrenceDetails,
        confirmation::ConfirmedBy,
        grouping::GroupIntervals,
        mail_limit::{MailPurpose, SendLimit},
    },
    protection::breaker::{CircuitState, SavedCircuit},
    statistics::rollup::Rollup,
    tenancy::{TenantRules, user_role::UserRole},
    webhook::{WebhookState, failures::FailingRule},
};
use redrive_store::{
    ApiKey, BrowserSession, Change, ClaimedDelivery, DisableWebhook, EmailReservation, EventType,
    FailingChange, IdempotencyReservation, InitialState, LaneCapacity, LaneKey, MinuteRollup, NewEvent,
    NewRound, Operation as BulkOperation, OperationProgress, OperationRequest, OperationStep, OutcomeRecord,
    PruneRequest, PublishResult, RecordResult, SessionUser, StoreError, Task, Tenant, TicketEntry,
    UpdateResult, WebhookEffects,
    conformance::{FRESH, RETRY, at, closed, order},
};
use tokio::sync::oneshot;

use super::harness::{KnownDelivery, Node};

/// Time of all operations: everything that was published is due.
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
    Backfill, Purge, SetCircuit, StoreWithCircuit, PauseWebhook, DisableWebhook, DeleteWebhook, Sweep, Expire, ChangeTenant,
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
        | Operation::StoreWithCircuit
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
    let mut replies = Vec::new();
    for _ in 0..3 {
        let tenant_id = node.pick_tenant();
        let Some(config) = node.store.config_changes(tenant_id.clone(), 0, 100).await? else { continue };
        let mut webhooks: Vec<_> = config
            .webhooks
            .iter()
            .filter(|webhook| webhook.state.receives_events())
            .map(|webhook| webhook.id)
            .collect();
        webhooks.truncate(1 + node.pick(3));
        if node.pick(2) == 0 {
            webhooks.reverse();
        }
        let time = at(node.pick(100) as i64);
        let mut event = node.shared.harness.event(time);
        event.tenant_id = tenant_id.clone();
        event.subject = Some("customer-1".into());
        let lanes: Vec<_> = webhooks
            .into_iter()
            .map(|webhook_id| {
                let priority = [Priority::High, Priority::Normal, Priority::Low][node.pick(3)];
                let lane = match kinds {
                    Kinds::InOrder => order(["", "a", "b"][node.pick(3)]),
                    _ => Lane::Unordered { priority, retry: false },
                };
                let initial_state = match node.pick(4) {
                    0 => InitialState::Leased,
                    later => InitialState::Waiting(at(later as i64 * 300)),
                };
                (LaneKey { webhook_id, lane }, initial_state)
            })
            .collect();
        let mut new = node.shared.harness.fan_out_to(event, &lanes);
        (new.epoch, new.config_version) = (node.epoch, config.version);
        if let Kinds::Keyed = kinds {
            add_key(node, &mut new);
        }
        let (sender, reply) = oneshot::channel();
        let known: Vec<_> = known_of(&new, &tenant_id);
        node.store.publish(new, Box::new(move |result| drop(sender.send(result))));
        replies.push((known, reply));
    }
    for (known, reply) in replies {
        if let PublishResult::New { .. } = reply.await.unwrap()? {
            node.shared.add_known(known);
        }
    }
    Ok(())
}

fn add_key(node: &mut Node, new: &mut NewEvent) {
    let key = format!("key-{}", node.pick(20));
    Arc::get_mut(&mut new.event).unwrap().idempotency_key = Some(key.into_boxed_str());
    let expires_at = at(200 + node.pick(1_000) as i64);
    new.idempotency =
        Some(IdempotencyReservation { body_hash: [7; 32], expires_at, confirmed_now: new.event.timestamp });
}

fn known_of(new: &NewEvent, tenant_id: &TenantId) -> Vec<KnownDelivery> {
    let known = new.deliveries.iter().map(|delivery| KnownDelivery {
        id: delivery.id,
        event_id: new.event.id,
        tenant_id: tenant_id.clone(),
        webhook_id: delivery.webhook_id,
    });
    known.collect()
}

/// Claims from each due lane, up to the given capacity.
async fn claim(node: &mut Node, capacity: usize, alone: bool) -> Result<Vec<ClaimedDelivery>, StoreError> {
    let pools = POOLS.map(str::to_owned).to_vec();
    let due = node.store.due_lanes(node.epoch, pools, at(NOW), 20).await?;
    let capacities = due
        .lanes
        .into_iter()
        .map(|key| LaneCapacity { exclusive: alone, ..LaneCapacity::new(key, capacity) })
        .collect();
    let claims = node.store.claim(node.epoch, at(NOW), capacities, 1 << 20).await?;
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
        .filter(|(_, recorded)| matches!(recorded, RecordResult::CancelRequested(_)))
        .map(|(outcome, _)| OutcomeRecord { record_despite_cancel: true, ..outcome })
        .collect();
    record_all(node, &again).await.map(drop)
}

async fn record_all(node: &Node, outcomes: &[OutcomeRecord]) -> Result<Vec<RecordResult>, StoreError> {
    let submit = |outcome: &OutcomeRecord| {
        let (sender, reply) = oneshot::channel();
        node.store.record(Arc::new(outcome.clone()), Box::new(move |result| drop(sender.send(result))));
        reply
    };
    let replies: Vec<_> = outcomes.iter().map(submit).collect();
    let mut recorded = Vec::new();
    for response in replies {
        recorded.push(response.await.unwrap()?);
    }
    Ok(recorded)
}

fn outcome(node: &mut Node, operation: Operation, claimed: &ClaimedDelivery) -> OutcomeRecord {
    let next = match operation {
        Operation::RecordDelivered => Outcome::Delivered,
        Operation::RecordDead | Operation::RecordDisable => Outcome::Dead(DeadReason::Exhausted),
        _ => Outcome::Retry { at: at(node.pick(NOW as usize) as i64) },
    };
    let harness = &node.shared.harness;
    let outcome = harness.outcome(claimed.id, claimed.attempt_count + 1, next, at(NOW));
    let (tenant_id, webhook_id) = (claimed.event.tenant_id.clone(), claimed.webhook_id);
    let outcome = OutcomeRecord { epoch: node.epoch, tenant_id: tenant_id.clone(), webhook_id, ..outcome };
    match operation {
        Operation::RecordDead => OutcomeRecord {
            occurrences: vec![cause(&tenant_id, webhook_id, NotificationKind::DeliveryDead)],
            ..outcome
        },
        Operation::RecordDisable => {
            let disable = DisableWebhook { reason: "gone".into(), url: "https://example.com/webhook".into() };
            let occurrences = vec![cause(&tenant_id, webhook_id, NotificationKind::WebhookDisabled)];
            OutcomeRecord { disable: Some(disable), occurrences, ..outcome }
        }
        Operation::RecordEffects => {
            let category = FailureCategory::Timeout;
            let rule = FailingRule { after_failures: 2, after: Duration::ZERO };
            let failed = FailingChange::Failed { since: at(NOW), category, rule };
            let failing = [failed, FailingChange::Recovered][node.pick(2)];
            let effects = WebhookEffects {
                circuit: (node.pick(2) == 0).then(|| Box::new(circuit(node))),
                pause_until: (node.pick(2) == 0).then(|| at(node.pick(NOW as usize) as i64)),
                failing: Some(failing),
            };
            let occurrences = vec![cause(&tenant_id, webhook_id, NotificationKind::CircuitOpened)];
            OutcomeRecord { effects, occurrences, ..outcome }
        }
        _ => outcome,
    }
}

fn cause(tenant_id: &TenantId, webhook_id: WebhookId, kind: NotificationKind) -> Occurrence {
    let (tenant_id, webhook_id) = (tenant_id.clone(), Some(webhook_id));
    Occurrence { tenant_id, webhook_id, kind, at: at(NOW), count: 1, details: OccurrenceDetails::default() }
}

/// Returns a circuit that is newer than all before it, closed or blocking until a time in the past.
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
        let tenant_id = node.pick_tenant();
        let wanted = node.pick_deliveries(&tenant_id, 6).into_iter().map(|one| {
            let lane = [FRESH, RETRY][node.pick(2)].clone();
            TicketEntry { key: LaneKey { webhook_id: one.webhook_id, lane }, delivery_id: one.id }
        });
        let wanted = wanted.collect::<Vec<_>>();
        let taken = node.store.claim_tickets(node.epoch, at(NOW), at(NOW), wanted, 1 << 20).await?;
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
            let webhooks = claimed.iter().map(|one| one.webhook_id).collect();
            node.store.release_assignments(node.epoch, webhooks).await?;
        }
        _ => {}
    }
    release(node, claimed).await
}

async fn release(node: &Node, claimed: Vec<ClaimedDelivery>) -> Result<(), StoreError> {
    let back = claimed.into_iter().map(|one| (one.id, one.due)).collect();
    node.store.release(node.epoch, at(NOW), back).await.map(drop)
}

async fn redrive(node: &mut Node, operation: Operation) -> Result<(), StoreError> {
    let tenant_id = node.pick_tenant();
    let Some(one) = node.pick_deliveries(&tenant_id, 1).pop() else { return Ok(()) };
    match operation {
        Operation::Cancel => {
            node.store.cancel(tenant_id, one.id, "not needed".into(), at(NOW)).await?;
        }
        Operation::Retry => {
            let options = again(node, &one);
            node.store.retry(tenant_id, one.id, options, at(NOW)).await?;
        }
        _ => {
            let id = node.shared.harness.delivery_id(one.event_id.time());
            let rounds = vec![NewRound {
                id,
                webhook_id: one.webhook_id,
                format: PayloadFormat::Envelope,
                lane: RETRY,
            }];
            node.store.replay(tenant_id, one.event_id, rounds, None, at(NOW)).await?;
        }
    }
    Ok(())
}

fn again(node: &mut Node, one: &KnownDelivery) -> redrive_store::RedriveOptions {
    let mut options = node.shared.harness.redrive_options(node.shared.harness.delivery_id(one.id.time()));
    options.priority = [None, Some(Priority::High), Some(Priority::Low)][node.pick(3)];
    options
}

/// Creates a bulk operation, claims it and performs one step of it.
async fn step_bulk_operation(node: &mut Node, operation: Operation) -> Result<(), StoreError> {
    let tenant_id = node.pick_tenant();
    let mut picked = node.pick_deliveries(&tenant_id, 12);
    if operation == Operation::Backfill {
        // A step must name each event only once for a webhook.
        picked.sort_by_key(|one| one.event_id);
        picked.dedup_by_key(|one| one.event_id);
    }
    let tasks: Vec<_> = picked
        .into_iter()
        .map(|one| match operation {
            Operation::CancelMany => Task::Cancel(one.id, "not needed".into()),
            Operation::RetryMany => Task::Retry(one.id, again(node, &one)),
            Operation::Purge => Task::Purge(one.id),
            _ => {
                let (id, webhook_id) =
                    (node.shared.harness.delivery_id(one.event_id.time()), node.pick_webhook().1);
                let lane = order(["", "a"][node.pick(2)]);
                let round = NewRound { id, webhook_id, format: PayloadFormat::Envelope, lane };
                Task::Send(one.event_id, round, Priority::Normal)
            }
        })
        .collect();
    let id = OperationId::new(at(1), &node.shared.harness.next());
    node.store.create_operation(bulk_operation(id, &tenant_id)).await?;
    node.store.claim_operations(node.epoch, Vec::new(), at(NOW), 1000).await?;
    let epoch = node.epoch;
    let then = Some(OperationState::Delivering);
    let step = OperationStep { id, tenant_id, epoch, tasks, passed: 0, cursor: None, then, at: at(NOW) };
    node.store.step_operation(step).await?;
    node.store.collect_operation_results(id, epoch, None, 100).await?;
    node.store.complete_operation(id, epoch, at(NOW)).await
}

fn bulk_operation(id: OperationId, tenant_id: &TenantId) -> BulkOperation {
    let order = OperationRequest {
        kind: OperationKind::Retry,
        among: OperationTarget::Dead,
        selection: OperationFilter::default(),
        rate: None,
        priority: None,
    };
    BulkOperation {
        id,
        tenant_id: tenant_id.clone(),
        order,
        state: OperationState::Scheduled,
        created_by: "test".into(),
        created_at: at(1),
        start_at: at(1),
        began_at: None,
        finished_at: None,
        updated_at: at(1),
        claimed_by: None,
        cursor: None,
        progress: OperationProgress::default(),
        rate_since: None,
    }
}

async fn change_webhook(node: &mut Node, operation: Operation) -> Result<(), StoreError> {
    let (tenant_id, webhook_id) = node.pick_webhook();
    match operation {
        Operation::SetCircuit => {
            let circuit = circuit(node);
            let occurrence = cause(&tenant_id, webhook_id, NotificationKind::CircuitOpened);
            node.store.set_circuit(tenant_id, webhook_id, circuit, Some(occurrence)).await.map(drop)
        }
        Operation::StoreWithCircuit => store_with_circuit(node, &tenant_id, webhook_id).await,
        Operation::PauseWebhook => {
            let state = [WebhookState::Paused, WebhookState::Active][node.pick(2)].clone();
            set_state(node, &tenant_id, webhook_id, state).await
        }
        Operation::DisableWebhook => {
            let state = [WebhookState::Disabled("test".into()), WebhookState::Active][node.pick(2)].clone();
            set_state(node, &tenant_id, webhook_id, state).await?;
            cancel_pending(node).await
        }
        Operation::DeleteWebhook => {
            set_state(node, &tenant_id, webhook_id, WebhookState::Deleted).await?;
            let new = node.shared.harness.webhook_of(&tenant_id);
            if let UpdateResult::Updated { .. } = node.store.create_webhook(new.clone()).await? {
                for entry in node.shared.webhooks.lock().iter_mut().filter(|(_, id)| *id == webhook_id) {
                    entry.1 = new.id;
                }
            }
            cancel_pending(node).await
        }
        Operation::Sweep => {
            set_state(node, &tenant_id, webhook_id, WebhookState::Disabled("test".into())).await?;
            cancel_pending(node).await?;
            set_state(node, &tenant_id, webhook_id, WebhookState::Active).await
        }
        _ => {
            let occurrence = cause(&tenant_id, webhook_id, NotificationKind::DeliveryDead);
            node.store.expire_deliveries(webhook_id, at(50), at(NOW), 5, Some(occurrence)).await.map(drop)
        }
    }
}

/// Stores a new webhook with its circuit, or replaces one.
async fn store_with_circuit(
    node: &mut Node,
    tenant_id: &TenantId,
    webhook_id: WebhookId,
) -> Result<(), StoreError> {
    let circuit = circuit(node);
    if node.pick(2) == 0 {
        let new = node.shared.harness.webhook_of(tenant_id);
        return node.store.store_webhook_with_circuit(new, None, circuit).await.map(drop);
    }
    let Some(found) = node.store.webhook(tenant_id.clone(), webhook_id).await? else { return Ok(()) };
    node.store.store_webhook_with_circuit(found.webhook, Some(found.revision), circuit).await.map(drop)
}

async fn set_state(
    node: &Node,
    tenant_id: &TenantId,
    webhook_id: WebhookId,
    state: WebhookState,
) -> Result<(), StoreError> {
    let Some(mut found) = node.store.webhook(tenant_id.clone(), webhook_id).await? else { return Ok(()) };
    found.webhook.state = state;
    let occurrence = cause(tenant_id, webhook_id, NotificationKind::WebhookDisabled);
    node.store.change_webhook(found.webhook, found.revision, Some(occurrence)).await.map(drop)
}

async fn cancel_pending(node: &Node) -> Result<(), StoreError> {
    for webhook in node.store.webhooks_to_cancel_for().await? {
        node.store.cancel_pending(webhook.id, "disabled".into(), at(NOW), 7).await?;
    }
    Ok(())
}

/// Claims deliveries as a node that is then declared dead, and rescues them.
async fn rescue(node: &mut Node) -> Result<(), StoreError> {
    let alive = node.epoch;
    let dead = node.store.join(Default::default(), at(0)).await?;
    node.epoch = dead;
    publish(node, Kinds::Plain).await?;
    let claimed = claim(node, 3, true).await;
    node.epoch = alive;
    if let Some(first) = claimed?.first() {
        node.store.cancel(first.event.tenant_id.clone(), first.id, "not needed".into(), at(NOW)).await?;
    }
    for _ in 0..5 {
        if node.store.rescue(dead, at(NOW), 4).await?.finished {
            break;
        }
    }
    for other in node.store.other_epochs(alive).await? {
        // Another task may have been stopped in the middle of a rescue.
        if other.0 < dead.0 && other.0 > 4 {
            node.store.rescue(other, at(NOW), 100).await?;
        }
    }
    Ok(())
}

async fn delete_old(node: &mut Node, operation: Operation) -> Result<(), StoreError> {
    let tenant_id = node.pick_tenant();
    let archive = node.pick(2) == 0;
    match operation {
        Operation::PruneEvents => {
            let request = PruneRequest { tenant_id, before: at(100), after: None, rows: 5, archive };
            node.store.prune_events(request).await?;
        }
        Operation::PruneDead => {
            let request =
                PruneRequest { tenant_id, before: at(NOW + 1), after: None::<DeliveryId>, rows: 5, archive };
            node.store.prune_dead(request).await?;
        }
        _ => {
            let Some(one) = node.pick_deliveries(&tenant_id, 1).pop() else { return Ok(()) };
            node.store.erase(tenant_id.clone(), one.event_id, at(NOW)).await?;
            node.store.erase_responses(tenant_id, one.event_id, 10).await?;
        }
    }
    if let Some(object) = node.store.next_object(1, 1 << 20).await? {
        node.store.object_stored(object.name).await?;
    }
    Ok(())
}

async fn administer(node: &mut Node, operation: Operation) -> Result<(), StoreError> {
    let (tenant_id, webhook_id) = node.pick_webhook();
    match operation {
        Operation::ChangeTenant => {
            let pool = Some(POOLS[node.pick(2)].to_owned());
            let rules = TenantRules { pool, ..TenantRules::default() };
            let tenant =
                Tenant { id: tenant_id, metadata: Default::default(), name: None, rules, created_at: at(0) };
            node.store.change_tenant(tenant).await.map(drop)
        }
        Operation::ChangeEventTypes => change_event_types(node, tenant_id).await,
        Operation::Beat => node.store.heartbeat(node.epoch).await.map(drop),
        Operation::Notify => {
            let kinds = [
                NotificationKind::DeliveryDead,
                NotificationKind::CircuitOpened,
                NotificationKind::CircuitRecovered,
                NotificationKind::WebhookDisabled,
            ];
            let mut occurrences: Vec<_> =
                kinds.into_iter().map(|kind| cause(&tenant_id, webhook_id, kind)).collect();
            occurrences.push(Occurrence { webhook_id: None, ..occurrences[0].clone() });
            node.store.record_occurrences(occurrences).await?;
            let fresh = (0..40).map(|_| NotificationId::new(at(NOW), &node.shared.harness.next())).collect();
            node.store.create_notifications(at(NOW + 10), GroupIntervals::default(), fresh).await?;
            node.store.claim_notifications(at(NOW + 10), at(NOW + 20), 10).await?;
            node.store.prune_notifications(at(NOW + 10), 10).await.map(drop)
        }
        Operation::AddFigures => {
            let minutes = node.shared.webhooks.lock().clone();
            let minutes = minutes.into_iter().map(|(tenant_id, webhook_id)| MinuteRollup {
                tenant_id,
                webhook_id,
                minute: at(0),
                rollup: Rollup { attempts: 2, successes: 1, ..Rollup::default() },
            });
            let minutes = minutes.collect();
            node.store.add_rollups(minutes, Vec::new()).await?;
            node.store.prune_rollups(at(-1), 10).await.map(drop)
        }
        Operation::UseKeys => use_keys(node, tenant_id).await,
        Operation::Rewrap => node.store.rewrap(None, 10).await.map(drop),
        Operation::SetTimeBack => {
            node.store.store_confirmed_time(at(NOW)).await?;
            node.store.confirm_clock().await?;
            let clock_step = ClockStep { from: at(0), by: Duration::from_millis(1) };
            node.store.adjust_pauses_for_clock_step(clock_step).await?;
            let after = node.store.adjust_due_for_clock_step(clock_step, at(NOW), None, 2).await?;
            node.store.adjust_due_for_clock_step(clock_step, at(NOW), after, 10).await.map(drop)
        }
        _ => {
            node.store.prune_idempotency_keys(at(NOW), 10).await?;
            let cursor = node.store.changes(None).await?.cursor;
            let changes = node.store.changes(Some(cursor.clone())).await?.changes;
            let _keys = changes.iter().filter(|change| matches!(change, Change::Keys)).count();
            node.store.prune_changes(cursor).await?;
            node.store
                .unsubscribe(
                    tenant_id.clone(),
                    "a@example.com".into(),
                    NotificationKind::DeliveryDead,
                    at(NOW),
                )
                .await?;
            node.store.resubscribe(tenant_id.clone(), "a@example.com".into(), None).await?;
            send_mails(node, tenant_id).await?;
            node.store.prune_operations(at(NOW + 1), 10).await.map(drop)
        }
    }
}

/// Reserves, sends and confirms emails to two mailboxes that all tenants share.
async fn send_mails(node: &mut Node, tenant_id: TenantId) -> Result<(), StoreError> {
    let address = ["a@example.com", "b@example.com"][node.pick(2)].to_owned();
    let reservation = EmailReservation {
        tenant_id: tenant_id.clone(),
        address: address.clone(),
        purpose: MailPurpose::Confirmation,
        at: at(NOW),
        per_tenant: SendLimit::default(),
        per_mailbox: SendLimit::default(),
    };
    node.store.request_confirmation(reservation.clone()).await?;
    node.store.take_confirmations(at(NOW), 10).await?;
    node.store.retry_confirmation(tenant_id.clone(), address.clone(), at(NOW + 1)).await?;
    node.store.confirm_address(tenant_id, address, ConfirmedBy::Holder, at(NOW)).await?;
    node.store.reserve_email(reservation.clone()).await?;
    node.store.release_email(reservation).await?;
    node.store.prune_email_addresses(at(NOW + 1), at(NOW + 1), 10).await.map(drop)
}

async fn change_event_types(node: &mut Node, tenant_id: TenantId) -> Result<(), StoreError> {
    let name = format!("order.created{}", node.pick(3));
    let new = EventType {
        tenant_id: tenant_id.clone(),
        name: name.clone(),
        description: None,
        example: None,
        schema: None,
        archived: false,
        created_at: at(0),
        updated_at: at(0),
    };
    node.store.create_event_type(new.clone(), 100).await?;
    if let Some(found) = node.store.event_type(tenant_id.clone(), name.clone()).await? {
        node.store.change_event_type(EventType { archived: true, ..new }, found.revision).await?;
    }
    node.store.delete_event_type(tenant_id, name).await.map(drop)
}

async fn use_keys(node: &mut Node, tenant_id: TenantId) -> Result<(), StoreError> {
    let keys: Vec<_> = (0..8u8).map(|n| KeyId::from_bytes([n; 16])).collect();
    if node.store.list_keys(Some(tenant_id.clone()), redrive_store::conformance::page(1)).await?.is_empty() {
        for (n, id) in keys.iter().enumerate() {
            let mut hash = [n as u8; 32];
            hash[..tenant_id.as_str().len().min(8)]
                .copy_from_slice(&tenant_id.as_str().as_bytes()[..tenant_id.as_str().len().min(8)]);
            let tenant_id = Some(tenant_id.clone());
            let key = ApiKey {
                id: *id,
                tenant_id,
                installation: false,
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
    node.store.record_key_use(uses).await?;
    use_sessions(node).await?;
    tokio::time::sleep(Duration::from_millis(1)).await;
    node.store.revoke_key(Some(tenant_id), KeyId::from_bytes([9; 16]), at(NOW)).await.map(drop)
}

/// Returns the user of a login; `None` for every other number.
fn session_user(login: u8) -> Option<SessionUser> {
    login.is_multiple_of(2).then(|| SessionUser {
        issuer: "https://id.example.com".into(),
        subject: "u-1".into(),
        name: "Jane".into(),
        role: UserRole::Viewer,
        login_hash: [login; 32],
    })
}

/// Logs in and out with one key on all nodes.
async fn use_sessions(node: &mut Node) -> Result<(), StoreError> {
    let key_hash = [7; 32];
    for _ in 0..3 {
        let id = [node.pick(200) as u8; 32];
        let session = BrowserSession {
            id,
            key_hash,
            user: session_user(node.pick(100) as u8),
            created_at: at(NOW),
            expires_at: at(NOW + 1),
        };
        // Another node may have created one with the same id or login.
        drop(node.store.create_browser_session(session, 2).await);
    }
    node.store.prune_browser_sessions(at(NOW + 2), 2).await?;
    node.store.delete_browser_sessions_of_key(key_hash).await.map(drop)
}
