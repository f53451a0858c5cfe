//! What all nodes decide together, through Redis: circuits, tokens and slots.
//!
//! Whoever wants something puts it on the desk. One task takes all that lies there, makes one batch of it, has the
//! script carry it out, and hands the answers round; see `link`. While Redis is away nobody is asked: every node goes
//! by what it knows, as it does in a fleet without Redis.

mod batch;
mod link;
mod slots;
#[cfg(test)]
pub(super) mod tests;
mod wire;

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use parking_lot::Mutex;
use redrive_core::{EventId, Time, WebhookId, protection::breaker::Call, protection::limiter::RateLimit};
use tokio::sync::{Notify, oneshot};

pub(crate) use self::{
    batch::{Heard, Taken},
    link::{Ear, Link, News, advice},
    slots::{Slot, Slots},
};
use super::{CircuitAction, Grant, Local, Moved};
use crate::registry::Hook;

/// Redis does not answer: everybody goes by what they know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Away;

/// A delivery that is about to be sent.
pub(crate) struct Asked {
    pub(crate) hook: Arc<Hook>,
    pub(crate) event: EventId,
    /// How long its answer may take, in milliseconds.
    pub(crate) patience: u64,
    /// Whether it has one of the slots that this node holds.
    pub(crate) has_slot: bool,
}

/// What came of asking for one: the grant, and the slot that came with it.
pub(crate) type Given = (Grant, Option<Slot>);

/// What a report to all has changed.
#[derive(Debug, Default)]
pub(crate) struct Reported {
    pub(crate) moved: Option<Moved>,
    /// How many deliveries a half-open circuit wants to see at once.
    pub(crate) trickle: Option<usize>,
}

/// Where a bucket stands after a token was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token {
    /// When there is one; none if it was taken.
    pub due: Option<Time>,
    /// How many are left.
    pub remaining: u32,
    /// The time by which this was said.
    pub now: Time,
}

/// Something that somebody waits for.
enum Op {
    Admit(Vec<Asked>, oneshot::Sender<Vec<Given>>),
    Report(Arc<Hook>, Call, Option<u64>, oneshot::Sender<Reported>),
    Act(Arc<Hook>, CircuitAction, oneshot::Sender<Option<Moved>>),
    Look(Arc<Hook>, Option<oneshot::Sender<()>>),
    Token(String, RateLimit, oneshot::Sender<Token>),
    /// Only to know that what was said before is known.
    Tell(oneshot::Sender<()>),
}

/// What waits for the next round trip.
#[derive(Default)]
struct Desk {
    ops: Vec<Op>,
    /// Calls that succeeded: nobody waits for what comes of them.
    succeeded: BTreeMap<WebhookId, (Arc<Hook>, u32)>,
    work: bool,
    change: bool,
    drain: bool,
}

/// See the module.
pub(crate) struct Shared {
    desk: Mutex<Desk>,
    /// Somebody waits for an answer.
    posted: Notify,
    up: AtomicBool,
    pub(crate) slots: Arc<Slots>,
    pub(crate) local: Arc<Local>,
}

impl Shared {
    pub(crate) fn new(local: Arc<Local>) -> Self {
        Self {
            desk: Mutex::default(),
            posted: Notify::new(),
            up: AtomicBool::new(false),
            slots: Arc::default(),
            local,
        }
    }

    /// Whether Redis answers.
    pub(crate) fn is_up(&self) -> bool {
        self.up.load(Relaxed)
    }

    /// Redis answers. What was taken from buckets while it did not is unknown to it, if it had to be `drain`ed.
    pub(crate) fn begin(&self, drain: bool) {
        self.desk.lock().drain |= drain;
        self.slots.begin();
        self.up.store(true, Relaxed);
    }

    /// Redis does not answer any more: nobody asks it from now on.
    pub(crate) fn close(&self) {
        // Under the lock: what is put on the desk after this would never be taken.
        let _desk = self.desk.lock();
        self.up.store(false, Relaxed);
        self.slots.forget_all();
    }

    /// Whoever waits for an answer waits no longer.
    pub(crate) fn clear(&self) {
        let desk = std::mem::take(&mut *self.desk.lock());
        drop(desk);
    }

    /// Gives all slots back, and returns when Redis knows.
    pub(crate) async fn give_up(&self) {
        self.slots.give_up_all();
        let _ = self.post(Op::Tell).await;
    }

    async fn post<T>(&self, op: impl FnOnce(oneshot::Sender<T>) -> Op) -> Result<T, Away> {
        let (answer, answered) = oneshot::channel();
        {
            let desk = &mut *self.desk.lock();
            // Looked at under the lock: what is put here after the end would never be taken.
            if !self.is_up() {
                return Err(Away);
            }
            desk.ops.push(op(answer));
        }
        self.posted.notify_one();
        answered.await.map_err(|_| Away)
    }

    /// Which of these may be sent now: one grant for each, in their order. A grant takes its tokens and its slot.
    pub(crate) async fn admit(&self, asks: Vec<Asked>) -> Result<Vec<Given>, Away> {
        self.post(|answer| Op::Admit(asks, answer)).await
    }

    /// Takes note of a call that may move the circuit: one that failed, or a probe.
    pub(crate) async fn report(
        &self,
        hook: &Arc<Hook>,
        call: Call,
        probe: Option<u64>,
    ) -> Result<Reported, Away> {
        self.post(|answer| Op::Report(hook.clone(), call, probe, answer)).await
    }

    /// Takes note of a call that succeeded, soon.
    pub(crate) fn succeeded(&self, hook: &Arc<Hook>) {
        if self.is_up() && hook.breaker.enabled {
            self.desk.lock().succeeded.entry(hook.id).or_insert_with(|| (hook.clone(), 0)).1 += 1;
        }
    }

    /// Does with a circuit what a person wants.
    pub(crate) async fn act(&self, hook: &Arc<Hook>, action: CircuitAction) -> Result<Option<Moved>, Away> {
        self.post(|answer| Op::Act(hook.clone(), action, answer)).await
    }

    /// Learns how a webhook's circuit is now.
    pub(crate) async fn look(&self, hook: &Arc<Hook>) -> Result<(), Away> {
        self.post(|answer| Op::Look(hook.clone(), Some(answer))).await
    }

    /// The same, not waited for.
    pub(crate) fn look_soon(&self, hook: Arc<Hook>) {
        let desk = &mut *self.desk.lock();
        if self.is_up() {
            desk.ops.push(Op::Look(hook, None));
            self.posted.notify_one();
        }
    }

    /// Takes a token from a bucket of this name.
    pub(crate) async fn token(&self, name: String, limit: RateLimit) -> Result<Token, Away> {
        self.post(|answer| Op::Token(name, limit, answer)).await
    }

    /// Tells the other nodes that something is due, or has changed. False: it cannot.
    pub(crate) fn hint(&self, work: bool, change: bool) -> bool {
        let desk = &mut *self.desk.lock();
        if !self.is_up() {
            return false;
        }
        desk.work |= work;
        desk.change |= change;
        self.posted.notify_one();
        true
    }

    /// Returns when somebody waits for an answer.
    pub(crate) async fn posted(&self) {
        self.posted.notified().await;
    }

    /// Takes what lies on the desk, and what has to be said about slots.
    pub(crate) fn take(&self, most: usize) -> Taken {
        let mut desk = std::mem::take(&mut *self.desk.lock());
        if desk.ops.len() > most {
            let rest = desk.ops.split_off(most);
            self.desk.lock().ops.splice(0..0, rest);
            self.posted.notify_one();
        }
        Taken::new(desk, &self.slots, &self.local)
    }

    /// Redis may have forgotten which slots are held.
    pub(crate) fn tell_slots_again(&self) {
        self.slots.tell_again();
        self.posted.notify_one();
    }

    /// So many nodes want slots of this webhook, and one of them has none.
    pub(crate) fn slots_wanted(&self, webhook: WebhookId, nodes: u32) {
        if self.slots.wanted(webhook, nodes) {
            self.posted.notify_one();
        }
    }
}
