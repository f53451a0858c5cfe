//! What nodes share through Redis, where there is one: asking it, hearing it, and going on without it.
//!
//! While it answers, any node may send to any webhook that keeps no order, and Redis says what all of them together
//! may do. While it does not, the fleet is one without Redis: homes, and each node its part; see `homes` and `shares`.

use std::{sync::Arc, time::Duration};

use redis::RedisError;
use redrive_core::{
    Time, maintenance::backoff::Backoff, protection::breaker::Call, protection::limiter::RateLimit,
};
use redrive_store::Hint;
use tokio::time::{sleep, timeout};

use crate::{
    Engine, Inner,
    clock::{roll, ticks},
    coordination::{
        Changed, Learnt, Report,
        redis::{Ear, Heard, Link, News, Shared, Taken, Token, advice},
    },
    registry::Hook,
};

/// The least time between two batches somebody waits for: more fit into each.
const BREATH: Duration = Duration::from_millis(1);
/// How long what nobody waits for may lie on the desk.
const LAZY: Duration = Duration::from_millis(20);
/// How often Redis is asked whether it is there, if nothing else is asked.
const BEAT: Duration = Duration::from_secs(1);
/// How long the end of a node waits for Redis.
const GOODBYE: Duration = Duration::from_millis(500);
/// The longest wait between two tries to reach Redis: it is to be found soon.
const LONGEST: Duration = Duration::from_secs(3);
/// A Redis that answered for so long was there.
const STEADY: Duration = Duration::from_secs(2);
/// After so long without news they are asked for anew.
const SILENT: Duration = Duration::from_secs(30);
/// Things carried out by one batch.
const MOST: usize = 1_000;
/// For so long a node may be without Redis, right after its start for instance, and nobody has to care.
const SOON: Duration = Duration::from_secs(1);

impl Inner {
    /// What is shared, while Redis answers.
    pub(crate) fn shared(&self) -> Option<&Arc<Shared>> {
        self.shared.as_ref().filter(|shared| shared.is_up())
    }

    /// Tells all nodes how a request went. Gives what this changed, here and for all.
    pub(crate) async fn tell_all(&self, hook: &Arc<Hook>, report: Report) -> Changed {
        let now = self.clock.now();
        let Some(shared) = self.shared() else { return self.coordination.report(hook, report, now) };
        let reported = match (report.call, report.probe) {
            (Call::Succeeded, None) => {
                shared.succeeded(hook);
                return self.coordination.note(hook, report, now);
            }
            (Call::Ignored, None) => return self.coordination.note(hook, report, now),
            (call, probe) => shared.report(hook, call, probe).await,
        };
        match reported {
            Ok(reported) => Changed {
                circuit: reported.moved,
                trickle: reported.trickle,
                ..self.coordination.note(hook, report, now)
            },
            Err(_) => self.coordination.report(hook, report, now),
        }
    }

    /// Keeps in touch with Redis for as long as the engine runs.
    pub(crate) async fn keep_sharing(self: Arc<Self>, shared: Arc<Shared>, mut link: Link) {
        let (mut away_since, mut backoff) = (ticks(), Backoff::default());
        // What was said last, so that a Redis that comes and goes is worth two lines and no more.
        let (mut said_away, mut said_back) = (None, false);
        let server = link.server();
        loop {
            match link.connect(self.clock.now()).await {
                Ok(()) => {
                    self.return_to(&shared, ticks().saturating_sub(away_since)).await;
                    if !said_back {
                        tracing::info!(server, "Redis answers: limits and circuits are shared through it");
                    }
                    let began = ticks();
                    let Some((error, unanswered)) = self.serve(&shared, &mut link).await else { return };
                    away_since = ticks();
                    self.go_alone(&shared, unanswered);
                    let steady = away_since.saturating_sub(began) >= STEADY;
                    said_back = !steady;
                    if steady {
                        backoff.reset();
                        said_away = None;
                    }
                    say_away(&server, &error, &mut said_away);
                }
                Err(error) => say_away(&server, &error, &mut said_away),
            }
            tokio::select! {
                () = sleep(backoff.next(roll()).min(LONGEST)) => {}
                () = self.stop.cancelled() => return,
            }
        }
    }

    /// Redis answers: it decides from now on. It is told what has happened meanwhile.
    async fn return_to(self: &Arc<Self>, shared: &Arc<Shared>, away: Duration) {
        let moved_by_others = match away > SOON {
            true => self.store.troubled().await.unwrap_or_default(),
            false => Vec::new(),
        };
        let now = self.clock.now();
        for runtime in moved_by_others {
            // What others stored and this node has not heard of yet: they may be gone.
            if let Some(hook) = self.registry.hook(runtime.webhook) {
                self.coordination.learn(&hook, Some(runtime), self.coordination.moves(), now);
            }
        }
        let troubled = self.coordination.troubled(&|webhook| self.registry.hook(webhook));
        self.coordination.follow();
        shared.begin(away > SOON);
        for hook in troubled {
            shared.look_soon(hook);
        }
        self.shares.set_whole(true);
        self.shares_changed();
        self.metrics.redis_up.set(1);
        self.metrics.redis_fallback.set(0);
        self.fleet.news.missed_some();
    }

    /// Redis is away: this node goes by itself, as one of a fleet without Redis. Only then those hear of it that wait
    /// for an answer, and whatever they begin goes by the rules of that fleet.
    fn go_alone(self: &Arc<Self>, shared: &Arc<Shared>, unanswered: Taken) {
        shared.close();
        self.coordination.go_alone(self.clock.now());
        self.shares.set_whole(false);
        drop(unanswered);
        shared.clear();
        self.metrics.redis_up.set(0);
        self.metrics.redis_fallback.set(1);
        self.shares_changed();
        // What the store knows counts now.
        self.fleet.news.missed_some();
        self.gate_alarm.notify_one();
    }

    /// Carries batches until Redis answers no more, or the engine stops.
    async fn serve(self: &Arc<Self>, shared: &Arc<Shared>, link: &mut Link) -> Option<(RedisError, Taken)> {
        let hearing = tokio::spawn(self.clone().keep_hearing(shared.clone(), link.ear()));
        let mut began: Option<Time> = None;
        let mut sent = ticks();
        let ended = loop {
            tokio::select! {
                () = shared.posted() => {}
                () = sleep(LAZY) => {}
                () = self.stop.cancelled() => break None,
            }
            let taken = shared.take(MOST);
            if taken.is_empty() && ticks().saturating_sub(sent) < BEAT {
                continue;
            }
            sent = ticks();
            self.metrics.redis_round_trips.inc();
            match link.send(taken, shared, self.clock.now()).await {
                Ok((heard, memory)) => {
                    for heard in heard {
                        self.heed(heard);
                    }
                    if began.replace(memory).is_some_and(|before| before != memory) {
                        // It has lost its memory: it is told what is known here.
                        shared.tell_slots_again();
                        for hook in self.coordination.troubled(&|webhook| self.registry.hook(webhook)) {
                            shared.look_soon(hook);
                        }
                    }
                }
                Err(failed) => break Some(failed),
            }
            sleep(BREATH).await;
        };
        hearing.abort();
        ended
    }

    /// Acts on what was learnt about a circuit.
    fn heed(self: &Arc<Self>, heard: Heard) {
        let Heard { hook, learnt, moved, trickle } = heard;
        if let Some(moved) = moved {
            self.moved(&hook, moved);
        } else if let (Learnt::Nothing, Some(trickle)) = (learnt, trickle) {
            // A probe may have been lost: another one takes its place.
            let moves = self.dispatch.unpark(self.whom(&hook), Some(trickle));
            self.carry_out(moves);
        } else {
            self.act_on_learnt(&hook, learnt);
        }
        self.gate_alarm.notify_one();
    }

    /// Heeds what other nodes tell, for as long as it is not aborted.
    async fn keep_hearing(self: Arc<Self>, shared: Arc<Shared>, ear: Ear) {
        loop {
            if let Ok(mut hearing) = ear.listen().await {
                // Something may have been told while nobody listened.
                self.alarm.ring();
                self.fleet.news.is_there();
                // A connection that is silent for long may be none.
                while let Ok(Some(news)) = timeout(SILENT, hearing.next()).await {
                    match news {
                        News::Work => self.alarm.ring(),
                        News::Change => self.fleet.news.is_there(),
                        News::Slots(webhook, nodes) => shared.slots_wanted(webhook, nodes),
                        News::Circuit(webhook) => {
                            if let Some(hook) = self.registry.hook(webhook) {
                                shared.look_soon(hook);
                            }
                        }
                    }
                }
            }
            sleep(Backoff::FIRST).await;
        }
    }

    /// Has the store's hints go through Redis while that answers.
    pub(crate) fn hint_through(self: &Arc<Self>, shared: &Arc<Shared>) {
        let shared = shared.clone();
        self.store.carry_hints(Box::new(move |hint| shared.hint(hint == Hint::Work, hint == Hint::Change)));
    }
}

/// Says that Redis is away, once for each reason.
fn say_away(server: &str, error: &RedisError, said: &mut Option<String>) {
    // Some are told in several lines.
    let reason = error.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
    if said.as_deref() != Some(&reason) {
        let advice = advice(error);
        tracing::warn!(
            server,
            reason,
            "Redis is away; this node goes by what it knows until it is back{}{advice}",
            if advice.is_empty() { "" } else { ". What to do: " }
        );
        *said = Some(reason);
    }
}

impl Engine {
    /// Gives back what this node holds of what all share, as far as that can be done at once.
    pub(crate) async fn give_up_shared(&self) {
        if let Some(shared) = self.0.shared() {
            // If it fails it ends by itself, a little later.
            let _ = timeout(GOODBYE, shared.give_up()).await;
        }
    }

    /// Whether Redis answers; none where there is none.
    pub fn redis_up(&self) -> Option<bool> {
        self.0.shared.as_ref().map(|shared| shared.is_up())
    }

    /// Whether there is a Redis that does not answer, so that every node goes by itself.
    pub fn is_in_fallback(&self) -> bool {
        self.redis_up() == Some(false)
    }

    /// Takes a token of a bucket that all nodes share, under a name of its own. None: there is no Redis, or it is
    /// away.
    pub async fn shared_token(&self, name: String, limit: RateLimit) -> Option<Token> {
        self.0.shared()?.token(name, limit).await.ok()
    }

    /// Brings what is known of a webhook's circuit up to date, for people to read.
    pub(crate) async fn look_at(&self, hook: &Arc<Hook>) {
        if let Some(shared) = self.0.shared() {
            // What is known will do if nobody answers.
            let _ = shared.look(hook).await;
        }
    }
}
