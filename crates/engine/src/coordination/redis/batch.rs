//! From what lies on the desk to one batch, and from its answer back to whoever waits.

use std::{collections::HashMap, sync::Arc};

use redrive_core::{
    FailureCategory, Time, WebhookId,
    dispatch::gate::{Scope, WaitingOn},
    protection::breaker::{Call, SavedCircuit, Transition},
};
use tokio::sync::oneshot;

use super::{
    Asked, Desk, Given, Op, Reported, Token,
    slots::Slots,
    wire::{
        About, Answered, AskFor, Batch, Granted, Limit, Policy, Probe, Saved, Section, Who, Why, counts,
        place,
    },
};
use crate::{
    coordination::{CircuitAction, Grant, Learnt, Local, Moved},
    registry::Hook,
};

/// How soon to ask again for a slot that there is none of.
const SLOT_AGAIN_MS: i64 = 20;

/// Who waits for what of the answer.
enum Waiter {
    /// The section and the place of each ask.
    Admit(Vec<(usize, usize)>, oneshot::Sender<Vec<Given>>),
    Report(usize, oneshot::Sender<Reported>),
    Act(usize, oneshot::Sender<Option<Moved>>),
    Look(oneshot::Sender<()>),
    Token(usize, oneshot::Sender<Token>),
}

/// A batch, and who waits for it.
pub(crate) struct Taken {
    batch: Batch,
    /// The webhook of each section; none if only its slots are talked about.
    hooks: Vec<Option<Arc<Hook>>>,
    places: HashMap<WebhookId, usize>,
    waiters: Vec<Waiter>,
}

/// What was learnt about a circuit that nobody waited for.
pub(crate) struct Heard {
    pub(crate) hook: Arc<Hook>,
    pub(crate) learnt: Learnt,
    /// It has moved, and this has to be stored.
    pub(crate) moved: Option<Moved>,
    /// It is half open, and wants to see so many deliveries.
    pub(crate) trickle: Option<usize>,
}

impl Taken {
    pub(super) fn new(desk: Desk, slots: &Slots, local: &Local) -> Self {
        let batch = Batch {
            drain: desk.drain,
            work: desk.work,
            change: desk.change,
            categories: FailureCategory::ALL.len(),
            ..Batch::default()
        };
        let mut taken = Self {
            batch,
            hooks: Vec::new(),
            places: HashMap::new(),
            waiters: Vec::with_capacity(desk.ops.len()),
        };
        for (hook, count) in desk.succeeded.into_values() {
            taken.section(&hook, local).1.succeeded += count;
        }
        for op in desk.ops {
            taken.add(op, local);
        }
        for (webhook, cap) in slots.to_tell() {
            let (_, section) = taken.section_of(webhook, None);
            section.cap.get_or_insert(cap);
        }
        for section in &mut taken.batch.webhooks {
            if let Some(cap) = section.cap {
                let (hold, used) = slots.tell(section.id, cap);
                (section.hold, section.used) = (Some(hold), used);
                section.need =
                    Some(section.asks.iter().filter(|AskFor(_, _, has_slot)| !has_slot).count() as u32);
            }
        }
        taken
    }

    /// Whether there is nothing to say.
    pub(crate) fn is_empty(&self) -> bool {
        let Batch { drain, work, change, webhooks, tokens, .. } = &self.batch;
        !(*drain || *work || *change) && webhooks.is_empty() && tokens.is_empty() && self.waiters.is_empty()
    }

    pub(super) fn written(&self) -> String {
        serde_json::to_string(&self.batch).unwrap_or_default()
    }

    fn section_of(&mut self, id: WebhookId, hook: Option<&Arc<Hook>>) -> (usize, &mut Section) {
        let webhooks = &mut self.batch.webhooks;
        let place = *self.places.entry(id).or_insert_with(|| {
            webhooks.push(Section::new(id));
            self.hooks.push(hook.cloned());
            webhooks.len() - 1
        });
        (place, &mut webhooks[place])
    }

    /// The section of a webhook, with what is known of its circuit.
    fn section(&mut self, hook: &Arc<Hook>, local: &Local) -> (usize, &mut Section) {
        let is_new = !self.places.contains_key(&hook.id);
        let (place, section) = self.section_of(hook.id, Some(hook));
        if is_new {
            let known = local.presented(hook.id);
            section.policy = Some(Policy::from(&*hook.breaker));
            section.knows = known.as_ref().map_or(0, |known| known.saved.generation);
            section.saved = known
                .filter(|known| known.newer || !known.saved.is_default())
                .map(|known| Saved::from(&known.saved));
        }
        (place, section)
    }

    fn add(&mut self, op: Op, local: &Local) {
        match op {
            Op::Admit(asks, answer) => {
                let places = asks.iter().map(|asked| self.ask(asked, local)).collect();
                self.waiters.push(Waiter::Admit(places, answer));
            }
            Op::Report(hook, call, probe, answer) => {
                let (place_in_batch, section) = self.section(&hook, local);
                match (probe, call) {
                    (Some(ticket), call) => {
                        let (went, category) = match call {
                            Call::Succeeded => (1, 0),
                            Call::Failed(category) => (0, place(category)),
                            Call::Ignored => (-1, 0),
                        };
                        section.probes.push(Probe(ticket >> 16, ticket & 0xffff, went, category));
                    }
                    (None, Call::Succeeded) => section.succeeded += 1,
                    (None, Call::Failed(category)) => section.failed.push(place(category)),
                    (None, Call::Ignored) => {}
                }
                self.waiters.push(Waiter::Report(place_in_batch, answer));
            }
            Op::Act(hook, action, answer) => {
                let (place, section) = self.section(&hook, local);
                match action {
                    CircuitAction::Reset => (section.reset, section.force) = (true, None),
                    CircuitAction::Force(forced) => section.force = Some((&forced).into()),
                }
                self.waiters.push(Waiter::Act(place, answer));
            }
            Op::Look(hook, answer) => {
                self.section(&hook, local).1.look = true;
                self.waiters.extend(answer.map(Waiter::Look));
            }
            Op::Tell(answer) => self.waiters.push(Waiter::Look(answer)),
            Op::Token(name, limit, answer) => {
                self.batch.tokens.push(Limit::new(limit, name));
                self.waiters.push(Waiter::Token(self.batch.tokens.len() - 1, answer));
            }
        }
    }

    fn ask(&mut self, asked: &Asked, local: &Local) -> (usize, usize) {
        let hook = &asked.hook;
        let (place, section) = self.section(hook, local);
        if section.asks.is_empty() {
            section.cap = Some(hook.max_in_flight);
            section.own = hook.rate_limit().map(|limit| Limit::new(limit, hook.id.to_string()));
            section.tenant =
                hook.tenant.rate_limit().map(|limit| Limit::new(limit, format!("tenant:{}", hook.tenant.id)));
            section.global = local.global().map(|limit| Limit::new(limit, "all".to_owned()));
        }
        section.asks.push(AskFor(asked.event, asked.patience, asked.has_slot));
        (place, section.asks.len() - 1)
    }

    /// Hands the answer round. Gives what was learnt beside, and when Redis began to remember.
    pub(super) fn apply(self, answer: &Answered, slots: &Arc<Slots>, local: &Local) -> (Vec<Heard>, Time) {
        let now = Time::from_millis(answer.now);
        let mut heard: Vec<Option<Heard>> = Vec::with_capacity(self.hooks.len());
        for ((section, hook), about) in self.batch.webhooks.iter().zip(&self.hooks).zip(&answer.webhooks) {
            if let (Some(told), Some(answered)) = (section.hold, about.slots) {
                let goes = section.asks.iter().zip(&about.grants).filter(|(ask, granted)| {
                    let AskFor(_, _, has_slot) = ask;
                    !has_slot && matches!(granted, Granted::Go { .. })
                });
                slots.answered(section.id, told, goes.count() as u32, answered);
            }
            heard.push(hook.as_ref().map(|hook| learn(hook, about, local, now)));
        }
        for waiter in self.waiters {
            // Whoever has gone away does not need it.
            match waiter {
                Waiter::Admit(places, to) => {
                    let given = places.iter().map(|(place, index)| {
                        let section = &self.batch.webhooks[*place];
                        let has_slot = section.asks.get(*index).is_some_and(|ask| ask.2);
                        let about = answer.webhooks.get(*place);
                        let granted = about.and_then(|about| Some((about, about.grants.get(*index)?)));
                        let grant =
                            granted.map_or(Grant::NoProbe, |(about, granted)| grant(about, *granted, now));
                        if let (
                            Some(hook),
                            Grant::Wait { until: Some(until), why: WaitingOn::RateLimit, scope },
                        ) = (&self.hooks[*place], grant)
                        {
                            local.noted(hook, scope, until);
                        }
                        let slot = (matches!(grant, Grant::Go { .. }) && !has_slot)
                            .then(|| slots.granted(section.id));
                        (grant, slot)
                    });
                    drop(to.send(given.collect()));
                }
                // A move that nobody is there for any more is stored like one that nobody waited for.
                Waiter::Report(place, to) => {
                    if let Some(Some(heard)) = heard.get_mut(place) {
                        let reported = Reported { moved: heard.moved.take(), trickle: heard.trickle };
                        heard.moved = to.send(reported).err().and_then(|back| back.moved);
                    }
                }
                Waiter::Act(place, to) => {
                    if let Some(Some(heard)) = heard.get_mut(place) {
                        heard.moved = to.send(heard.moved.take()).err().flatten();
                    }
                }
                Waiter::Look(to) => drop(to.send(())),
                Waiter::Token(index, to) => {
                    if let Some((due, remaining)) = answer.tokens.get(index) {
                        let due = (*due > 0).then(|| Time::from_millis(*due));
                        let _ = to.send(Token { due, remaining: *remaining, now });
                    }
                }
            }
        }
        (heard.into_iter().flatten().collect(), Time::from_millis(answer.began))
    }
}

/// Has what is known here follow what Redis says of a circuit.
fn learn(hook: &Arc<Hook>, about: &About, local: &Local, now: Time) -> Heard {
    let saved: Option<SavedCircuit> = about.saved.clone().map(SavedCircuit::from);
    let trickle = about.probes.map(|[under_way, left, ..]| (under_way + left) as usize);
    let trial = about.probes.map(|[under_way, _, answered, successes]| (under_way + answered, successes));
    let moved = about.from.zip(saved.clone()).map(|(from, saved)| Moved {
        webhook: hook.id,
        tenant: hook.tenant.id.clone(),
        transition: Transition { from, to: saved.state, at: saved.since },
        saved,
        trickle,
    });
    let learnt = local.adopt(hook, saved, about.counts.as_deref().map(counts), trial, moved.is_some(), now);
    Heard { hook: hook.clone(), learnt, moved, trickle }
}

fn grant(about: &About, granted: Granted, now: Time) -> Grant {
    match granted {
        Granted::Go { circuit, probe } => {
            let ticket = |number| about.generation.unwrap_or(0) << 16 | number;
            Grant::Go { probe: probe.map(ticket), circuit }
        }
        Granted::Wait { why, scope, until } => {
            let scope = match scope {
                Who::Webhook => Scope::Webhook,
                Who::Tenant => Scope::Tenant,
                Who::Node => Scope::Node,
            };
            let (why, until) = match why {
                Why::Circuit => (WaitingOn::CircuitOpen, until),
                Why::Slots => (WaitingOn::InFlightLimit, Some(now.millis() + SLOT_AGAIN_MS)),
                Why::Tokens => (WaitingOn::RateLimit, until),
            };
            Grant::Wait { until: until.map(Time::from_millis), why, scope }
        }
        Granted::Probed { until } => Grant::Probed { until: Time::from_millis(until) },
        Granted::NoProbe => Grant::NoProbe,
    }
}
