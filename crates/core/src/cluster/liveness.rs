//! Failure detection: which nodes are dead, and when a node must stop sending because it may be declared dead.
//!
//! Every node raises a counter in the store and reads the counters of the others. Clocks are never compared: a
//! node is declared dead when another has read the same counter for a whole lease, by its own monotonic clock,
//! over successful reads. The node itself starts no request once half a lease has passed since it sent the last
//! heartbeat that the store confirmed. It has therefore been silent for half a lease before any node declares it
//! dead.

use std::{collections::BTreeMap, time::Duration};

use crate::time::Time;

/// Returns the interval of heartbeats and of reads of the other nodes, for this lease.
pub fn heartbeat_interval(lease: Duration) -> Duration {
    (lease / 5).min(Duration::from_secs(1))
}

/// Failure detector of one node for all others. All times are of its own monotonic clock.
#[derive(Clone, Debug)]
pub struct FailureDetector {
    lease: Duration,
    last_read: Option<Duration>,
    /// By epoch.
    last_seen: BTreeMap<i64, LastSeen>,
}

#[derive(Clone, Copy, Debug)]
struct LastSeen {
    counter: i64,
    since: Duration,
}

impl FailureDetector {
    /// Returns a detector without observations.
    pub fn new(lease: Duration) -> Self {
        Self { lease, last_read: None, last_seen: BTreeMap::new() }
    }

    /// Records a successful read of all other nodes, each with its epoch and its counter, that completed at `at`.
    /// Returns the epochs that are dead.
    ///
    /// After more than half a lease without a read all observations start again: the store or this node was
    /// unavailable, which says nothing about the other nodes.
    ///
    /// The result refers to the counters that were read. A node may have recovered since, so the caller must act
    /// only if the counter in the store is still the one that was read.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use redrive_core::cluster::liveness::FailureDetector;
    ///
    /// let ms = Duration::from_millis;
    /// let mut detector = FailureDetector::new(ms(1_000));
    /// assert!(detector.observe(ms(0), [(1, 7), (2, 7)]).is_empty());
    /// assert!(detector.observe(ms(500), [(1, 7), (2, 8)]).is_empty());
    /// // The counter of epoch 1 has not changed for a whole lease.
    /// assert_eq!(detector.observe(ms(1_000), [(1, 7), (2, 9)]), [1]);
    /// // After a gap in the reads no node is declared dead before another whole lease has passed.
    /// assert!(detector.observe(ms(9_000), [(1, 7), (2, 9)]).is_empty());
    /// ```
    pub fn observe(&mut self, at: Duration, heartbeats: impl IntoIterator<Item = (i64, i64)>) -> Vec<i64> {
        let steady = self.last_read.is_some_and(|last| at.saturating_sub(last) <= self.lease / 2);
        self.last_read = Some(at);
        let before = std::mem::take(&mut self.last_seen);
        for (epoch, counter) in heartbeats {
            let same = before.get(&epoch).filter(|sighting| steady && sighting.counter == counter);
            self.last_seen.insert(epoch, same.copied().unwrap_or(LastSeen { counter, since: at }));
        }
        let dead = |sighting: &LastSeen| at.saturating_sub(sighting.since) >= self.lease;
        self.last_seen.iter().filter(|(_, sighting)| dead(sighting)).map(|(epoch, _)| *epoch).collect()
    }
}

/// A heartbeat that the store has confirmed.
#[derive(Clone, Copy, Debug)]
pub struct Heartbeat {
    /// When it was sent, by the node's monotonic clock.
    pub sent: Duration,
    /// When its result arrived, by the same clock.
    pub received: Duration,
    /// The time of the store's clock; `None` if the store has none.
    pub store_time: Option<Time>,
}

/// A node's own right to send: until when it may start requests.
#[derive(Clone, Copy, Debug)]
pub struct SendLease {
    lease: Duration,
    /// When the last confirmed heartbeat was sent.
    sent: Option<Duration>,
    /// The last heartbeat with a store time.
    last: Option<Heartbeat>,
}

impl SendLease {
    /// Returns a lease without a confirmed heartbeat: nothing may be sent.
    pub fn new(lease: Duration) -> Self {
        Self { lease, sent: None, last: None }
    }

    /// Records that the store confirmed the heartbeat sent at `sent`. The time of sending counts, not that of the
    /// result, since the result may have been delayed by any amount.
    pub fn renew(&mut self, sent: Duration) {
        self.sent = self.sent.max(Some(sent));
    }

    /// Records a heartbeat that the store has confirmed. Returns `false` if it gives no right to send.
    ///
    /// If the store's clock advanced by more than half a lease further than this node's, the node was paused with
    /// its clock (a suspended virtual machine), or the store's clock jumped. A paused node may have been declared
    /// dead, so nothing is sent until the next heartbeat has been confirmed.
    pub fn heartbeat(&mut self, heartbeat: Heartbeat) -> bool {
        let is_paused = match (self.last, heartbeat.store_time) {
            (Some(last), Some(now)) => {
                let by_store = now.duration_since(last.store_time.unwrap_or(now));
                let here = heartbeat.received.saturating_sub(last.sent);
                by_store > here + self.lease / 2
            }
            _ => false,
        };
        if heartbeat.store_time.is_some() {
            self.last = Some(heartbeat);
        }
        if is_paused {
            self.sent = None;
        } else {
            self.renew(heartbeat.sent);
        }
        !is_paused
    }

    /// Returns whether a request may start now.
    pub fn may_send(&self, now: Duration) -> bool {
        self.sent.is_some_and(|sent| now.saturating_sub(sent) <= self.lease / 2)
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    const LEASE: u64 = 1000;

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn observer() -> FailureDetector {
        FailureDetector::new(ms(LEASE))
    }

    #[test]
    fn heartbeat_interval_follows_lease_up_to_a_second() {
        assert_eq!(heartbeat_interval(ms(1000)), ms(200));
        assert_eq!(heartbeat_interval(ms(5000)), ms(1000));
        assert_eq!(heartbeat_interval(ms(60_000)), ms(1000));
    }

    #[test]
    fn counter_unchanged_for_a_whole_lease_is_dead() {
        let mut observer = observer();
        assert!(observer.observe(ms(50), [(1, 7), (2, 7)]).is_empty());
        assert!(observer.observe(ms(550), [(1, 7), (2, 8)]).is_empty());
        assert!(observer.observe(ms(1049), [(1, 7), (2, 9)]).is_empty());
        assert_eq!(observer.observe(ms(1050), [(1, 7), (2, 9)]), [1]);
        assert_eq!(
            observer.observe(ms(1100), [(1, 7), (2, 9)]),
            [1],
            "reported until the epoch is no longer listed"
        );
        assert!(observer.observe(ms(1200), [(1, 8), (2, 9)]).is_empty(), "a changed counter means alive");
    }

    #[test]
    fn lower_counter_counts_as_changed() {
        let mut observer = observer();
        for (at, counter) in [(0, 7), (500, 6), (1000, 6), (1499, 6)] {
            assert!(observer.observe(ms(at), [(1, counter)]).is_empty(), "{at}");
        }
        assert_eq!(observer.observe(ms(1500), [(1, 6)]), [1]);
    }

    #[test]
    fn unlisted_epoch_is_removed() {
        let mut observer = observer();
        observer.observe(ms(0), [(1, 7)]);
        observer.observe(ms(500), []);
        assert!(observer.observe(ms(1000), [(1, 7)]).is_empty());
        assert!(observer.observe(ms(1500), [(1, 7)]).is_empty());
        assert_eq!(observer.observe(ms(2000), [(1, 7)]), [1]);
    }

    #[test]
    fn outage_declares_no_node_dead() {
        let mut observer = observer();
        observer.observe(ms(0), [(1, 7), (2, 7)]);
        observer.observe(ms(500), [(1, 7), (2, 7)]);
        assert!(
            observer.observe(ms(1001), [(1, 7), (2, 7)]).is_empty(),
            "interrupted reads declare no node dead"
        );
        assert!(observer.observe(ms(1501), [(1, 7), (2, 8)]).is_empty());
        assert_eq!(observer.observe(ms(2001), [(1, 7), (2, 9)]), [1]);
    }

    #[test]
    fn node_may_send_for_half_a_lease_after_heartbeat() {
        let mut send_lease = SendLease::new(ms(LEASE));
        assert!(!send_lease.may_send(ms(0)));
        send_lease.renew(ms(100));
        assert!(
            send_lease.may_send(ms(100)) && send_lease.may_send(ms(600)) && !send_lease.may_send(ms(601))
        );
        send_lease.renew(ms(50));
        assert!(
            send_lease.may_send(ms(600)),
            "a late reply to an earlier heartbeat does not shorten the lease"
        );
    }

    fn heartbeat(sent: u64, store_time: i64) -> Heartbeat {
        let store_time = Some(Time::from_millis(1_790_000_000_000 + store_time));
        Heartbeat { sent: ms(sent), received: ms(sent + 10), store_time }
    }

    #[test]
    fn paused_node_sends_after_the_next_heartbeat() {
        let mut send_lease = SendLease::new(ms(LEASE));
        assert!(send_lease.heartbeat(heartbeat(0, 0)) && send_lease.heartbeat(heartbeat(200, 200)));
        // The node and its clock were paused for a minute.
        assert!(!send_lease.heartbeat(heartbeat(400, 60_400)));
        assert!(!send_lease.may_send(ms(410)));
        assert!(send_lease.heartbeat(heartbeat(600, 60_600)));
        assert!(send_lease.may_send(ms(610)));
    }

    #[test]
    fn pause_is_measured_to_the_millisecond() {
        // From the first sent to the second received: 210 ms; half a lease more is allowed.
        for (store_time, may_send) in [(210, true), (710, true), (711, false), (-5000, true)] {
            let mut send_lease = SendLease::new(ms(LEASE));
            send_lease.heartbeat(heartbeat(0, 0));
            assert_eq!(send_lease.heartbeat(heartbeat(200, store_time)), may_send, "{store_time}");
            assert_eq!(send_lease.may_send(ms(210)), may_send, "{store_time}");
        }
    }

    #[test]
    fn heartbeat_without_a_store_time_counts() {
        let mut send_lease = SendLease::new(ms(LEASE));
        assert!(send_lease.heartbeat(Heartbeat { store_time: None, ..heartbeat(0, 0) }));
        assert!(send_lease.may_send(ms(0)));
    }

    /// A read of the other node's counter, and the action that follows.
    #[derive(Clone, Copy, Debug)]
    struct Read {
        /// When the store read the counter.
        started_at: u64,
        /// When the result arrived.
        finished_at: u64,
        /// When the store would commit a declaration of death that follows from it.
        acted: u64,
    }

    /// Returns when a node with these heartbeats is declared dead: once per declaration that the store commits.
    fn deaths(commits: &[u64], reads: &[Read]) -> Vec<u64> {
        let counter = |at| commits.iter().filter(|commit| **commit <= at).count() as i64;
        let (mut observer, mut deaths) = (observer(), Vec::new());
        for read in reads {
            let seen = counter(read.started_at);
            let dead = !observer.observe(ms(read.finished_at), [(1, seen)]).is_empty();
            if dead && counter(read.acted) == seen {
                deaths.push(read.acted);
            }
        }
        deaths
    }

    /// Alternating times at which the store is up and down.
    #[derive(Clone, Debug)]
    struct Outages(Vec<(u64, u64)>);

    impl Outages {
        fn is_up(&self, at: u64) -> bool {
            let mut end = 0;
            for (up, down) in &self.0 {
                if at < end + up {
                    return true;
                }
                end += up + down;
                if at < end {
                    return false;
                }
            }
            true
        }
    }

    fn outages(up: std::ops::Range<u64>) -> impl Strategy<Value = Outages> {
        vec((up, prop_oneof![0..500u64, 0..3000u64]), 0..6).prop_map(Outages)
    }

    /// Generates the time between two heartbeats or reads: regular, late, or after a pause of the node.
    fn pause() -> impl Strategy<Value = u64> {
        prop_oneof![8 => 1..=250u64, 2 => 1..=600u64, 1 => 1..=3000u64]
    }

    /// Generates the duration of a message.
    fn delay() -> impl Strategy<Value = u64> {
        prop_oneof![6 => 0..=20u64, 1 => 0..=900u64]
    }

    /// Returns the sequential reads of a node for which the store is up.
    fn reads(steps: Vec<(u64, u64, u64, u64)>, outages: &Outages) -> Vec<Read> {
        let mut response = 0;
        let mut reads = Vec::new();
        for (pause, request_delay, reply_delay, until_acted) in steps {
            let read_at = response + pause + request_delay;
            response = read_at + reply_delay;
            reads.push(Read { started_at: read_at, finished_at: response, acted: response + until_acted });
        }
        reads.retain(|read| outages.is_up(read.started_at));
        reads
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        /// For arbitrary delays, losses and pauses: a node that is declared dead has started no request for half a lease.
        #[test]
        fn dead_node_has_stopped_sending_half_a_lease_before(
            heartbeats in vec((pause(), delay()), 0..40),
            steps in vec((pause(), delay(), delay(), delay()), 1..60),
            outages in outages(1..2000),
        ) {
            let mut sent = 0;
            let mut heartbeats: Vec<(u64, u64)> = heartbeats.into_iter().map(|(pause, delay)| {
                sent += pause;
                (sent, sent + delay)
            }).collect();
            heartbeats.retain(|(_, committed)| outages.is_up(*committed));
            let commits: Vec<u64> = heartbeats.iter().map(|(_, committed)| *committed).collect();
            for death in deaths(&commits, &reads(steps, &outages)) {
                // Worst case: the result of each heartbeat arrived immediately.
                let mut send_lease = SendLease::new(ms(LEASE));
                heartbeats.iter().filter(|(_, committed)| *committed <= death).for_each(|(sent, _)| {
                    send_lease.renew(ms(*sent));
                });
                prop_assert!(!send_lease.may_send(ms(death)));
                prop_assert!(!send_lease.may_send(ms(death - LEASE / 2) + Duration::from_nanos(1)));
            }
        }

        /// A node that sends a heartbeat every quarter of a lease survives all outages that leave the store up long enough
        /// for one heartbeat in between.
        #[test]
        fn node_with_heartbeats_survives_outages(
            pauses in vec(1..=LEASE / 4, 100),
            steps in vec((pause(), delay(), delay(), delay()), 1..60),
            outages in outages(LEASE / 4..2000),
        ) {
            let reads = reads(steps, &outages);
            let end = reads.iter().map(|read| read.acted).max().unwrap_or(0);
            let mut at = 0;
            let mut commits: Vec<u64> = pauses.iter().cycle().map(|pause| {
                at += pause;
                at
            }).take_while(|at| *at <= end).collect();
            commits.retain(|at| outages.is_up(*at));
            let deaths = deaths(&commits, &reads);
            prop_assert!(deaths.is_empty(), "{deaths:?}");
        }

        #[test]
        fn stopped_node_is_declared_dead_if_reads_succeed(
            (interval, steps) in (1..=LEASE / 2)
                .prop_flat_map(|interval| (Just(interval), vec(interval.div_ceil(2)..=interval, 1..20))),
            heartbeats in vec(1..=250u64, 0..20),
        ) {
            let mut at = 0;
            let commits: Vec<u64> = heartbeats.into_iter().map(|pause| {
                at += pause;
                at
            }).collect();
            let last = at;
            let (mut at, mut reads) = (0, Vec::new());
            for step in steps.iter().cycle() {
                reads.push(Read { started_at: at, finished_at: at, acted: at });
                at += step;
                if at > last + LEASE + 2 * interval {
                    break;
                }
            }
            let death = deaths(&commits, &reads).first().copied();
            prop_assert!(death.is_some_and(|death| death >= last + LEASE && death <= last + LEASE + 2 * interval));
        }
    }
}
