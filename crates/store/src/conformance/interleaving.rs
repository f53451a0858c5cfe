//! Ordered lanes under random interleavings of all operations, reproducible from fixed seeds.

use redrive_core::delivery::outcome::Outcome;
use std::sync::Arc;

use redrive_core::{DeadReason, DeliveryId, delivery::lane::Lane};

use super::{END, Harness, at, order};
use crate::{CancelResult, Epoch, OutcomeRecord, RecordResult, RedriveOptions, RedriveResult};

const KEYS: [&str; 3] = ["", "a", "b"];
const STEPS: usize = 350;
const DONE: RecordResult = RecordResult::Recorded { config_version: None };

/// A random number generator with a seed.
struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % bound
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum At {
    Waiting { due: i64 },
    Leased { node: Epoch, cancel: bool },
    Over,
}

#[derive(Debug)]
struct Entry {
    id: DeliveryId,
    at: At,
    attempts: u32,
    redriven: bool,
}

/// Model of one ordered lane: its deliveries in the order of their creation.
#[derive(Default)]
struct Line {
    entries: Vec<Entry>,
    /// The node whose last claim returned `more` and that still has claimed the lane.
    holder: Option<Epoch>,
}

impl Line {
    /// Returns the deliveries that have not ended, in order.
    fn rest(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().filter(|entry| entry.at != At::Over)
    }

    fn leases(&self) -> impl Iterator<Item = (DeliveryId, Epoch)> {
        self.entries.iter().filter_map(|entry| match entry.at {
            At::Leased { node, .. } => Some((entry.id, node)),
            _ => None,
        })
    }

    fn get(&mut self, id: DeliveryId) -> &mut Entry {
        self.entries.iter_mut().find(|entry| entry.id == id).unwrap()
    }
}

struct Interleaving<'a> {
    harness: &'a Harness,
    chance: Chance,
    now: i64,
    lines: [Line; 3],
    nodes: Vec<Epoch>,
    /// The epoch of a dead node that is being rescued.
    dying: Option<Epoch>,
}

impl Interleaving<'_> {
    fn lane(key: usize) -> Lane {
        order(KEYS[key])
    }

    async fn publish(&mut self, key: usize) {
        let due = self.now + [0, 0, 0, 40, 200][self.chance.below(5)];
        let id = self.harness.waiting_in(&Self::lane(key), at(self.now), at(due)).await;
        self.lines[key].entries.push(Entry { id, at: At::Waiting { due }, attempts: 0, redriven: false });
    }

    /// A node claims from a lane; the result is compared with the model.
    async fn claim(&mut self, key: usize) {
        let node = self.nodes[self.chance.below(self.nodes.len())];
        let capacity = self.chance.below(4);
        let lane = self.harness.own(Self::lane(key));
        let claim = self.harness.claim_lane_as(node, lane, at(self.now), capacity).await;
        let line = &mut self.lines[key];
        let now = self.now;
        let is_due = |entry: &&Entry| matches!(entry.at, At::Waiting { due } if due <= now);
        let due: Vec<_> = line.rest().take_while(is_due).map(|entry| entry.id).collect();
        let (expected, more) = match line.leases().next() {
            None => (&due[..capacity.min(due.len())], due.len() > capacity),
            Some((_, other)) if other != node => (&[][..], false),
            Some(_) => {
                // `more` depends on the first waiting delivery, whether or not leased ones precede it.
                let waits = line.rest().find(|entry| matches!(entry.at, At::Waiting { .. }));
                (&[][..], waits.as_ref().is_some_and(is_due))
            }
        };
        let given: Vec<_> = claim.deliveries.iter().map(|one| one.id).collect();
        assert_eq!((&given[..], claim.has_more_due), (expected, more), "at {now}, of {KEYS:?}[{key}]");
        for id in given {
            line.get(id).at = At::Leased { node, cancel: false };
        }
        line.holder = claim.has_more_due.then_some(node);
    }

    /// A node sends its first delivery of a lane. If that is not the first of the lane, it releases all of them.
    async fn send(&mut self, key: usize) {
        let line = &self.lines[key];
        let Some((id, node)) = line.leases().next() else { return };
        let is_first = line.rest().next().is_some_and(|first| first.id == id);
        match Some(node) == self.dying {
            true if is_first => self.record_late(key, id, node).await,
            true => {}
            false if is_first => self.record(key, id, node).await,
            false => self.release(key, node).await,
        }
    }

    /// A dying node still records an outcome: it owns its leases until the rescue takes them away one by one.
    async fn record_late(&mut self, key: usize, id: DeliveryId, node: Epoch) {
        let entry = self.lines[key].get(id);
        let late = self.harness.outcome(id, entry.attempts + 1, Outcome::Delivered, at(self.now));
        let response =
            self.harness.record(OutcomeRecord { epoch: node, record_despite_cancel: true, ..late }).await;
        assert_eq!(response, DONE);
        entry.at = At::Over;
    }

    async fn record(&mut self, key: usize, id: DeliveryId, node: Epoch) {
        let due = self.now + [0, 30, 300][self.chance.below(3)];
        let next = match self.chance.below(4) {
            0 => Outcome::Dead(DeadReason::Exhausted),
            1 => Outcome::Retry { at: at(due) },
            _ => Outcome::Delivered,
        };
        let line = &mut self.lines[key];
        assert_eq!(
            line.rest().next().map(|first| first.id),
            Some(id),
            "a later delivery of the order was started first"
        );
        let entry = line.get(id);
        entry.attempts += 1;
        let mut outcome = self.harness.outcome(id, entry.attempts, next.clone(), at(self.now));
        outcome.epoch = node;
        entry.at = match next {
            Outcome::Retry { .. } => At::Waiting { due },
            _ => At::Over,
        };
        let mut response = self.harness.record(outcome.clone()).await;
        if let RecordResult::CancelRequested(reason) = response {
            let decided = if next == Outcome::Delivered { next } else { Outcome::Cancelled(reason) };
            self.lines[key].get(id).at = At::Over;
            response = self
                .harness
                .record(OutcomeRecord { outcome: decided, record_despite_cancel: true, ..outcome })
                .await;
        }
        assert_eq!(response, DONE);
    }

    async fn release(&mut self, key: usize, node: Epoch) {
        let line = &mut self.lines[key];
        let back: Vec<_> = line.leases().map(|(id, _)| (id, at(self.now))).collect();
        for (id, _) in &back {
            let entry = line.get(*id);
            let called_off = matches!(entry.at, At::Leased { cancel: true, .. });
            entry.at = if called_off { At::Over } else { At::Waiting { due: self.now } };
        }
        line.holder = line.holder.filter(|holder| *holder != node);
        let count = back.len();
        assert_eq!(self.harness.store().release(node, at(self.now), back).await.unwrap(), count);
    }

    async fn cancel(&mut self, key: usize) {
        let rest: Vec<_> = self.lines[key].rest().map(|entry| entry.id).collect();
        if rest.is_empty() {
            return;
        }
        let id = rest[self.chance.below(rest.len())];
        let response = self.harness.cancel(id, at(self.now)).await;
        let entry = self.lines[key].get(id);
        match &mut entry.at {
            At::Waiting { .. } => {
                assert_eq!(response, CancelResult::Done);
                entry.at = At::Over;
            }
            At::Leased { cancel, .. } => {
                assert_eq!(response, CancelResult::Requested);
                *cancel = true;
            }
            At::Over => unreachable!("the delivery has not ended"),
        }
    }

    /// Redrives an ended delivery, which goes to the end of the lane.
    async fn redrive(&mut self, key: usize) {
        let line = &mut self.lines[key];
        let mut over = line.entries.iter_mut().filter(|entry| entry.at == At::Over && !entry.redriven);
        let Some(old) = over.next() else { return };
        old.redriven = true;
        let id = self.harness.delivery_id(old.id.time());
        let options = RedriveOptions { id, lane: Self::lane(key), priority: None, unless_purged: false };
        assert_eq!(self.harness.retry(old.id, options, at(self.now)).await, RedriveResult::NewRound(id));
        let at = At::Waiting { due: self.now };
        line.entries.push(Entry { id, at, attempts: 0, redriven: false });
    }

    /// A node dies and is rescued step by step; another one starts in its place.
    async fn crash(&mut self) {
        let dead = match self.dying {
            Some(dead) => dead,
            None => {
                let victim = self.chance.below(self.nodes.len());
                std::mem::replace(&mut self.nodes[victim], self.harness.new_epoch().await)
            }
        };
        let step = self.harness.store().rescue(dead, at(self.now), 2).await.unwrap();
        self.dying = (!step.finished).then_some(dead);
        for line in &mut self.lines {
            line.holder = line.holder.filter(|holder| *holder != dead);
            for entry in &mut line.entries {
                let At::Leased { node, cancel } = entry.at else { continue };
                if node == dead && !self.harness.store().mark_sending(dead, entry.id).await.unwrap() {
                    entry.at = if cancel { At::Over } else { At::Waiting { due: self.now } };
                }
            }
        }
    }

    /// Asserts that every lane whose first delivery is due will be listed as due soon, unless a node has claimed it.
    async fn assert_lanes_listed(&self) {
        let due = self.harness.due_lanes(at(self.now + 50)).await;
        for (key, line) in self.lines.iter().enumerate() {
            let first = line.rest().next().map(|entry| entry.at);
            let could_go = matches!(first, Some(At::Waiting { due }) if due <= self.now);
            let is_listed = due.contains(&self.harness.own(Self::lane(key)));
            if could_go && line.holder.is_none() && line.leases().next().is_none() {
                assert!(is_listed, "{:?} has a due delivery but is not listed at {}", KEYS[key], self.now);
            }
            if line.rest().all(|entry| !matches!(entry.at, At::Waiting { .. })) {
                assert!(!is_listed, "{:?} is listed but has no waiting delivery", KEYS[key]);
            }
        }
    }

    async fn step(&mut self) {
        let key = self.chance.below(KEYS.len());
        match self.chance.below(20) {
            0..5 => self.publish(key).await,
            5..10 => self.claim(key).await,
            10..16 => self.send(key).await,
            16 => self.cancel(key).await,
            17 => self.redrive(key).await,
            18 => self.crash().await,
            _ => self.now += self.chance.below(100) as i64,
        }
        self.assert_lanes_listed().await;
    }
}

async fn run(fixture: &Harness, seed: u64) {
    let mut nodes = Vec::new();
    for _ in 0..3 {
        nodes.push(fixture.new_epoch().await);
    }
    let (chance, lines) = (Chance(seed), Default::default());
    let mut interleaving = Interleaving { harness: fixture, chance, now: 0, lines, nodes, dying: None };
    for _ in 0..STEPS {
        interleaving.step().await;
    }
    // All deliveries end if one node keeps claiming and sending.
    interleaving.now = END / 2;
    while interleaving.dying.is_some() {
        interleaving.crash().await;
    }
    interleaving.nodes.truncate(1);
    for key in 0..KEYS.len() {
        while interleaving.lines[key].rest().next().is_some() {
            let has_lease = interleaving.lines[key].leases().next().is_some();
            if has_lease {
                interleaving.send(key).await
            } else {
                interleaving.claim(key).await
            }
            interleaving.assert_lanes_listed().await;
            interleaving.now += 1000;
        }
    }
}

pub async fn random_interleavings_never_break_an_order(harness: &Arc<Harness>) {
    for seed in [1, 2, 3, 5, 8] {
        run(harness, seed).await;
    }
}
