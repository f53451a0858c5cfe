//! Builds one batch from the pending operations, and dispatches its reply to the waiters.

use std::{collections::HashMap, sync::Arc};

use redrive_core::{
    FailureCategory, Time, WebhookId,
    dispatch::gate::{LimitScope, WaitingOn},
    protection::breaker::{CallOutcome, SavedCircuit, Transition},
};
use tokio::sync::oneshot;

use super::{
    DecisionWithSlot, Op, PendingOps, RedisAdmissionRequest, ReportReply, TokenReply,
    slots::Slots,
    wire::{
        Batch, BatchReply, Limit, Policy, Probe, Section, WaitCause, WaitScope, WebhookReply, WireAsk,
        WireCircuit, WireGrant, category_index, counts,
    },
};
use crate::{
    coordinate::{AdmissionDecision, CircuitAction, CircuitChange, LocalCoordinator, RuntimeChange},
    routing::ResolvedWebhook,
};

/// Delay before an unavailable slot is requested again.
const SLOT_RETRY_MS: i64 = 20;

/// Waiter for a part of the reply.
enum ReplyTarget {
    /// For each request, the index of its section and its position there.
    Admit(Vec<(usize, usize)>, oneshot::Sender<Vec<DecisionWithSlot>>),
    Report(usize, oneshot::Sender<ReportReply>),
    Act(usize, oneshot::Sender<Option<CircuitChange>>),
    Done(oneshot::Sender<()>),
    Token(usize, oneshot::Sender<TokenReply>),
}

/// A batch and the waiters for its reply.
pub(crate) struct PreparedBatch {
    batch: Batch,
    /// The webhook of each section; `None` if the section is only about its slots.
    webhooks: Vec<Option<Arc<ResolvedWebhook>>>,
    indexes: HashMap<WebhookId, usize>,
    waiters: Vec<ReplyTarget>,
}

/// State of a circuit in the reply, beyond what the waiters receive.
pub(crate) struct CircuitUpdate {
    pub(crate) webhook: Arc<ResolvedWebhook>,
    pub(crate) runtime_change: RuntimeChange,
    /// A transition that must be stored.
    pub(crate) change: Option<CircuitChange>,
    /// Maximum number of deliveries of a half-open circuit in memory.
    pub(crate) half_open_max_in_memory: Option<usize>,
}

impl PreparedBatch {
    pub(super) fn new(pending: PendingOps, slots: &Slots, local: &LocalCoordinator) -> Self {
        let batch = Batch {
            drain: pending.drain,
            work: pending.work,
            change: pending.change,
            categories: FailureCategory::ALL.len(),
            ..Batch::default()
        };
        let mut prepared = Self {
            batch,
            webhooks: Vec::new(),
            indexes: HashMap::new(),
            waiters: Vec::with_capacity(pending.ops.len()),
        };
        for (webhook, count) in pending.successes.into_values() {
            prepared.section(&webhook, local).1.succeeded += count;
        }
        for op in pending.ops {
            prepared.add(op, local);
        }
        for (webhook_id, cap) in slots.to_renew() {
            let (_, section) = prepared.section_of(webhook_id, None);
            section.cap.get_or_insert(cap);
        }
        for section in &mut prepared.batch.webhooks {
            if let Some(cap) = section.cap {
                let (hold, used) = slots.held_count(section.id, cap);
                (section.hold, section.used) = (Some(hold), used);
                section.need =
                    Some(section.asks.iter().filter(|WireAsk(_, _, has_slot)| !has_slot).count() as u32);
            }
        }
        prepared
    }

    /// Returns whether there is nothing to send.
    pub(crate) fn is_empty(&self) -> bool {
        let Batch { drain, work, change, webhooks, tokens, .. } = &self.batch;
        !(*drain || *work || *change) && webhooks.is_empty() && tokens.is_empty() && self.waiters.is_empty()
    }

    pub(super) fn written(&self) -> String {
        serde_json::to_string(&self.batch).unwrap_or_default()
    }

    fn section_of(&mut self, id: WebhookId, webhook: Option<&Arc<ResolvedWebhook>>) -> (usize, &mut Section) {
        let webhooks = &mut self.batch.webhooks;
        let index = *self.indexes.entry(id).or_insert_with(|| {
            webhooks.push(Section::new(id));
            self.webhooks.push(webhook.cloned());
            webhooks.len() - 1
        });
        (index, &mut webhooks[index])
    }

    /// Returns the section of a webhook, created with the known state of its circuit.
    fn section(&mut self, webhook: &Arc<ResolvedWebhook>, local: &LocalCoordinator) -> (usize, &mut Section) {
        let is_new = !self.indexes.contains_key(&webhook.id);
        let (index, section) = self.section_of(webhook.id, Some(webhook));
        if is_new {
            let known = local.known_circuit(webhook.id);
            section.policy = Some(Policy::from(&*webhook.breaker));
            section.knows = known.as_ref().map_or(0, |known| known.saved.generation);
            section.saved = known
                .filter(|known| known.newer || !known.saved.is_default())
                .map(|known| WireCircuit::from(&known.saved));
        }
        (index, section)
    }

    fn add(&mut self, op: Op, local: &LocalCoordinator) {
        match op {
            Op::Admit(asks, reply) => {
                let positions = asks.iter().map(|query| self.ask(query, local)).collect();
                self.waiters.push(ReplyTarget::Admit(positions, reply));
            }
            Op::Report(webhook, call, probe, reply) => {
                let (index, section) = self.section(&webhook, local);
                match (probe, call) {
                    (Some(probe_id), call) => {
                        let (went, category) = match call {
                            CallOutcome::Succeeded => (1, 0),
                            CallOutcome::Failed(category) => (0, category_index(category)),
                            CallOutcome::Ignored => (-1, 0),
                        };
                        section.probes.push(Probe(probe_id >> 16, probe_id & 0xffff, went, category));
                    }
                    (None, CallOutcome::Succeeded) => section.succeeded += 1,
                    (None, CallOutcome::Failed(category)) => section.failed.push(category_index(category)),
                    (None, CallOutcome::Ignored) => {}
                }
                self.waiters.push(ReplyTarget::Report(index, reply));
            }
            Op::Act(webhook, action, reply) => {
                let (index, section) = self.section(&webhook, local);
                match action {
                    CircuitAction::Reset => (section.reset, section.force) = (true, None),
                    CircuitAction::Force(forced) => section.force = Some((&forced).into()),
                }
                self.waiters.push(ReplyTarget::Act(index, reply));
            }
            Op::Refresh(webhook, reply) => {
                self.section(&webhook, local).1.want_counts = true;
                self.waiters.extend(reply.map(ReplyTarget::Done));
            }
            Op::Flush(reply) => self.waiters.push(ReplyTarget::Done(reply)),
            Op::Token(name, limit, reply) => {
                self.batch.tokens.push(Limit::new(limit, name));
                self.waiters.push(ReplyTarget::Token(self.batch.tokens.len() - 1, reply));
            }
        }
    }

    fn ask(&mut self, query: &RedisAdmissionRequest, local: &LocalCoordinator) -> (usize, usize) {
        let webhook = &query.webhook;
        let (index, section) = self.section(webhook, local);
        if section.asks.is_empty() {
            section.cap = Some(webhook.max_in_flight);
            section.own = webhook.rate_limit().map(|limit| Limit::new(limit, webhook.id.to_string()));
            section.tenant = webhook
                .tenant
                .rate_limit()
                .map(|limit| Limit::new(limit, format!("tenant:{}", webhook.tenant.id)));
            section.global = local.global().map(|limit| Limit::new(limit, "all".to_owned()));
        }
        section.asks.push(WireAsk(query.event_id, query.probe_timeout, query.has_slot));
        (index, section.asks.len() - 1)
    }

    /// Dispatches the reply to the waiters. Returns the circuit updates, and the start time of the state in Redis.
    pub(super) fn dispatch_replies(
        self,
        reply: &BatchReply,
        slots: &Arc<Slots>,
        local: &LocalCoordinator,
    ) -> (Vec<CircuitUpdate>, Time) {
        let now = Time::from_millis(reply.now);
        let mut updates: Vec<Option<CircuitUpdate>> = Vec::with_capacity(self.webhooks.len());
        for ((section, webhook), webhook_reply) in
            self.batch.webhooks.iter().zip(&self.webhooks).zip(&reply.webhooks)
        {
            if let (Some(reported_slots), Some(response)) = (section.hold, webhook_reply.slots) {
                let goes = section.asks.iter().zip(&webhook_reply.grants).filter(|(ask, granted)| {
                    let WireAsk(_, _, has_slot) = ask;
                    !has_slot && matches!(granted, WireGrant::Go { .. })
                });
                slots.apply_reply(section.id, reported_slots, goes.count() as u32, response);
            }
            updates.push(webhook.as_ref().map(|webhook| merge_circuit(webhook, webhook_reply, local, now)));
        }
        for waiter in self.waiters {
            // A waiter that was dropped does not need its reply.
            match waiter {
                ReplyTarget::Admit(positions, to) => {
                    let given = positions.iter().map(|(position, index)| {
                        let section = &self.batch.webhooks[*position];
                        let has_slot = section.asks.get(*index).is_some_and(|ask| ask.2);
                        let webhook_reply = reply.webhooks.get(*position);
                        let granted = webhook_reply.and_then(|webhook_reply| {
                            Some((webhook_reply, webhook_reply.grants.get(*index)?))
                        });
                        let decision = granted
                            .map_or(AdmissionDecision::NoProbe, |(webhook_reply, granted)| {
                                decision_from_wire(webhook_reply, *granted, now)
                            });
                        if let (
                            Some(webhook),
                            AdmissionDecision::Wait {
                                until: Some(until),
                                reason: WaitingOn::RateLimit,
                                scope,
                            },
                        ) = (&self.webhooks[*position], decision)
                        {
                            local.record_token_wait(webhook, scope, until, now);
                        }
                        let slot = (matches!(decision, AdmissionDecision::Go { .. }) && !has_slot)
                            .then(|| slots.granted(section.id));
                        (decision, slot)
                    });
                    drop(to.send(given.collect()));
                }
                // If the waiter is gone, the transition is returned as an update and persisted there.
                ReplyTarget::Report(position, to) => {
                    if let Some(Some(update)) = updates.get_mut(position) {
                        let reported = ReportReply {
                            change: update.change.take(),
                            half_open_max_in_memory: update.half_open_max_in_memory,
                        };
                        update.change = to.send(reported).err().and_then(|unsent| unsent.change);
                    }
                }
                ReplyTarget::Act(position, to) => {
                    if let Some(Some(update)) = updates.get_mut(position) {
                        update.change = to.send(update.change.take()).err().flatten();
                    }
                }
                ReplyTarget::Done(to) => drop(to.send(())),
                ReplyTarget::Token(index, to) => {
                    if let Some((due, remaining)) = reply.tokens.get(index) {
                        let due = (*due > 0).then(|| Time::from_millis(*due));
                        let _ = to.send(TokenReply { due, remaining: *remaining, now });
                    }
                }
            }
        }
        (updates.into_iter().flatten().collect(), Time::from_millis(reply.started_at))
    }
}

/// Merges the state of a circuit from the reply into the local state.
fn merge_circuit(
    webhook: &Arc<ResolvedWebhook>,
    reply: &WebhookReply,
    local: &LocalCoordinator,
    now: Time,
) -> CircuitUpdate {
    let saved: Option<SavedCircuit> = reply.saved.clone().map(SavedCircuit::from);
    let half_open_max_in_memory = reply.probes.map(|[in_flight, left, ..]| (in_flight + left) as usize);
    let half_open_counts =
        reply.probes.map(|[in_flight, _, response, successes]| (in_flight + response, successes));
    let change = reply.from.zip(saved.clone()).map(|(from, saved)| CircuitChange {
        webhook_id: webhook.id,
        tenant_id: webhook.tenant.id.clone(),
        transition: Transition { from, to: saved.state, at: saved.since },
        saved,
        half_open_max_in_memory,
    });
    let runtime_change = local.merge_from_redis(
        webhook,
        saved,
        reply.counts.as_deref().map(counts),
        half_open_counts,
        change.is_some(),
        now,
    );
    CircuitUpdate { webhook: webhook.clone(), runtime_change, change, half_open_max_in_memory }
}

fn decision_from_wire(reply: &WebhookReply, granted: WireGrant, now: Time) -> AdmissionDecision {
    match granted {
        WireGrant::Go { circuit, probe } => {
            let probe_id = |number| reply.generation.unwrap_or(0) << 16 | number;
            AdmissionDecision::Go { probe: probe.map(probe_id), circuit }
        }
        WireGrant::Wait { why, scope, until } => {
            let scope = match scope {
                WaitScope::Webhook => LimitScope::Webhook,
                WaitScope::Tenant => LimitScope::Tenant,
                WaitScope::Node => LimitScope::Node,
            };
            let (reason, until) = match why {
                WaitCause::Circuit => (WaitingOn::CircuitOpen, until),
                WaitCause::Slots => (WaitingOn::InFlightLimit, Some(now.millis() + SLOT_RETRY_MS)),
                WaitCause::Tokens => (WaitingOn::RateLimit, until),
            };
            AdmissionDecision::Wait { until: until.map(Time::from_millis), reason, scope }
        }
        WireGrant::Probed { until } => AdmissionDecision::AlreadyProbed { until: Time::from_millis(until) },
        WireGrant::NoProbe => AdmissionDecision::NoProbe,
    }
}
