//! Who is dead, and when a node must take itself for dead.
//!
//! Every node raises a counter in the store, and reads those of the others. Nobody compares clocks: an observer
//! counts a node as dead when it has seen the same counter for a whole lease, by its own monotonic clock, over
//! reads that went well. The node itself begins nothing once half a lease has passed since it sent the last
//! beat that the store took. So before anybody declares it dead, it has been silent for half a lease.

use std::{collections::BTreeMap, time::Duration};

use crate::time::Time;

/// How often to beat, and how often to read what the others did, for this lease.
pub fn interval(lease: Duration) -> Duration {
    (lease / 5).min(Duration::from_secs(1))
}

/// What one node knows of the others. All times are of its own monotonic clock.
#[derive(Clone, Debug)]
pub struct Observer {
    lease: Duration,
    last_read: Option<Duration>,
    /// By epoch.
    seen: BTreeMap<i64, Sighting>,
}

#[derive(Clone, Copy, Debug)]
struct Sighting {
    counter: i64,
    since: Duration,
}

impl Observer {
    /// Has seen nobody yet.
    pub fn new(lease: Duration) -> Self {
        Self { lease, last_read: None, seen: BTreeMap::new() }
    }

    /// Takes note of a successful read of all other nodes, each with its epoch and its counter, which was
    /// answered at `at`; gives the epochs that are dead.
    ///
    /// After more than half a lease without a read all observations begin anew: the store was away, or the
    /// observer was, and that is not held against anybody.
    ///
    /// The verdict is about what was read. A node may have come back since, so whoever acts on it must do so
    /// only if the counter in the store is still the one that was read.
    pub fn read(&mut self, at: Duration, beats: impl IntoIterator<Item = (i64, i64)>) -> Vec<i64> {
        let steady = self.last_read.is_some_and(|last| at.saturating_sub(last) <= self.lease / 2);
        self.last_read = Some(at);
        let before = std::mem::take(&mut self.seen);
        for (epoch, counter) in beats {
            let same = before.get(&epoch).filter(|sighting| steady && sighting.counter == counter);
            self.seen.insert(epoch, same.copied().unwrap_or(Sighting { counter, since: at }));
        }
        let dead = |sighting: &Sighting| at.saturating_sub(sighting.since) >= self.lease;
        self.seen.iter().filter(|(_, sighting)| dead(sighting)).map(|(epoch, _)| *epoch).collect()
    }
}

/// A heartbeat that the store has taken.
#[derive(Clone, Copy, Debug)]
pub struct Heartbeat {
    /// When it was sent, by the node's monotonic clock.
    pub sent: Duration,
    /// When its result arrived, by the same clock.
    pub received: Duration,
    /// What time it was by the store's clock; none if the store has none.
    pub store_time: Option<Time>,
}

/// What a node knows of itself: until when it may begin requests.
#[derive(Clone, Copy, Debug)]
pub struct Pulse {
    lease: Duration,
    /// When the last beat that the store has confirmed was sent.
    sent: Option<Duration>,
    /// The last heartbeat with a store time.
    last: Option<Heartbeat>,
}

impl Pulse {
    /// No beat was confirmed yet: nothing may be sent.
    pub fn new(lease: Duration) -> Self {
        Self { lease, sent: None, last: None }
    }

    /// The store has confirmed the beat that was sent at `sent`: when it was sent, not when the answer came,
    /// since nobody knows how long the answer took.
    pub fn confirmed(&mut self, sent: Duration) {
        self.sent = self.sent.max(Some(sent));
    }

    /// Takes a heartbeat that the store has confirmed. Returns false if it gives no right to send.
    ///
    /// If the store's clock advanced by more than half a lease further than this node's, the node was paused with
    /// its clock (a suspended virtual machine), or the store's clock jumped. A paused node may have been declared
    /// dead, so nothing is sent until the next heartbeat has been confirmed.
    pub fn beat(&mut self, beat: Heartbeat) -> bool {
        let is_paused = match (self.last, beat.store_time) {
            (Some(last), Some(now)) => {
                let by_store = now.since(last.store_time.unwrap_or(now));
                let here = beat.received.saturating_sub(last.sent);
                by_store > here + self.lease / 2
            }
            _ => false,
        };
        if beat.store_time.is_some() {
            self.last = Some(beat);
        }
        if is_paused {
            self.sent = None;
        } else {
            self.confirmed(beat.sent);
        }
        !is_paused
    }

    /// Whether a request may begin now.
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

    fn observer() -> Observer {
        Observer::new(ms(LEASE))
    }

    #[test]
    fn the_interval_follows_the_lease_up_to_a_second() {
        assert_eq!(interval(ms(1000)), ms(200));
        assert_eq!(interval(ms(5000)), ms(1000));
        assert_eq!(interval(ms(60_000)), ms(1000));
    }

    #[test]
    fn a_counter_that_stands_for_a_whole_lease_is_dead() {
        let mut observer = observer();
        assert!(observer.read(ms(50), [(1, 7), (2, 7)]).is_empty());
        assert!(observer.read(ms(550), [(1, 7), (2, 8)]).is_empty());
        assert!(observer.read(ms(1049), [(1, 7), (2, 9)]).is_empty());
        assert_eq!(observer.read(ms(1050), [(1, 7), (2, 9)]), [1]);
        assert_eq!(observer.read(ms(1100), [(1, 7), (2, 9)]), [1], "until it is listed no longer");
        assert!(observer.read(ms(1200), [(1, 8), (2, 9)]).is_empty(), "it was alive after all");
    }

    #[test]
    fn a_counter_that_goes_back_has_changed() {
        let mut observer = observer();
        for (at, counter) in [(0, 7), (500, 6), (1000, 6), (1499, 6)] {
            assert!(observer.read(ms(at), [(1, counter)]).is_empty(), "{at}");
        }
        assert_eq!(observer.read(ms(1500), [(1, 6)]), [1]);
    }

    #[test]
    fn who_is_listed_no_longer_is_forgotten() {
        let mut observer = observer();
        observer.read(ms(0), [(1, 7)]);
        observer.read(ms(500), []);
        assert!(observer.read(ms(1000), [(1, 7)]).is_empty());
        assert!(observer.read(ms(1500), [(1, 7)]).is_empty());
        assert_eq!(observer.read(ms(2000), [(1, 7)]), [1]);
    }

    #[test]
    fn nobody_dies_of_an_outage() {
        let mut observer = observer();
        observer.read(ms(0), [(1, 7), (2, 7)]);
        observer.read(ms(500), [(1, 7), (2, 7)]);
        assert!(observer.read(ms(1001), [(1, 7), (2, 7)]).is_empty(), "the reads were interrupted");
        assert!(observer.read(ms(1501), [(1, 7), (2, 8)]).is_empty());
        assert_eq!(observer.read(ms(2001), [(1, 7), (2, 9)]), [1]);
    }

    #[test]
    fn a_node_may_send_for_half_a_lease_after_a_beat() {
        let mut pulse = Pulse::new(ms(LEASE));
        assert!(!pulse.may_send(ms(0)));
        pulse.confirmed(ms(100));
        assert!(pulse.may_send(ms(100)) && pulse.may_send(ms(600)) && !pulse.may_send(ms(601)));
        pulse.confirmed(ms(50));
        assert!(pulse.may_send(ms(600)), "a late answer to an earlier beat takes nothing away");
    }

    fn beat(sent: u64, store_time: i64) -> Heartbeat {
        let store_time = Some(Time::from_millis(1_790_000_000_000 + store_time));
        Heartbeat { sent: ms(sent), received: ms(sent + 10), store_time }
    }

    #[test]
    fn paused_node_sends_after_the_next_heartbeat() {
        let mut pulse = Pulse::new(ms(LEASE));
        assert!(pulse.beat(beat(0, 0)) && pulse.beat(beat(200, 200)));
        // The node stood still for a minute, and so did its clock.
        assert!(!pulse.beat(beat(400, 60_400)));
        assert!(!pulse.may_send(ms(410)));
        assert!(pulse.beat(beat(600, 60_600)));
        assert!(pulse.may_send(ms(610)));
    }

    #[test]
    fn pause_is_measured_to_the_millisecond() {
        // From the first sent to the second received: 210 ms; half a lease more is allowed.
        for (store_time, may_send) in [(210, true), (710, true), (711, false), (-5000, true)] {
            let mut pulse = Pulse::new(ms(LEASE));
            pulse.beat(beat(0, 0));
            assert_eq!(pulse.beat(beat(200, store_time)), may_send, "{store_time}");
            assert_eq!(pulse.may_send(ms(210)), may_send, "{store_time}");
        }
    }

    #[test]
    fn heartbeat_without_a_store_time_counts() {
        let mut pulse = Pulse::new(ms(LEASE));
        assert!(pulse.beat(Heartbeat { store_time: None, ..beat(0, 0) }));
        assert!(pulse.may_send(ms(0)));
    }

    /// A read of the other node's counter, and what is done about it.
    #[derive(Clone, Copy, Debug)]
    struct Read {
        /// When the store looked.
        looked: u64,
        /// When the answer was there.
        answered: u64,
        /// When the store would take a verdict that follows from it.
        acted: u64,
    }

    /// When a node with these beats is declared dead: by each verdict that the store takes.
    fn deaths(commits: &[u64], reads: &[Read]) -> Vec<u64> {
        let counter = |at| commits.iter().filter(|commit| **commit <= at).count() as i64;
        let (mut observer, mut deaths) = (observer(), Vec::new());
        for read in reads {
            let seen = counter(read.looked);
            let dead = !observer.read(ms(read.answered), [(1, seen)]).is_empty();
            if dead && counter(read.acted) == seen {
                deaths.push(read.acted);
            }
        }
        deaths
    }

    /// Times at which the store is up, then down, and so on.
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

    /// From one beat or read to the next: as it should be, late, or after having been stopped.
    fn pause() -> impl Strategy<Value = u64> {
        prop_oneof![8 => 1..=250u64, 2 => 1..=600u64, 1 => 1..=3000u64]
    }

    /// How long something is under way.
    fn delay() -> impl Strategy<Value = u64> {
        prop_oneof![6 => 0..=20u64, 1 => 0..=900u64]
    }

    /// The reads of a node, one after the other, that the store is there for.
    fn reads(steps: Vec<(u64, u64, u64, u64)>, outages: &Outages) -> Vec<Read> {
        let mut answered = 0;
        let mut reads = Vec::new();
        for (pause, there, back, until_acted) in steps {
            let looked = answered + pause + there;
            answered = looked + back;
            reads.push(Read { looked, answered, acted: answered + until_acted });
        }
        reads.retain(|read| outages.is_up(read.looked));
        reads
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        /// Whatever is late, lost or stopped: whoever is declared dead has begun nothing for half a lease.
        #[test]
        fn nobody_sends_who_is_declared_dead(
            beats in vec((pause(), delay()), 0..40),
            steps in vec((pause(), delay(), delay(), delay()), 1..60),
            outages in outages(1..2000),
        ) {
            let mut sent = 0;
            let mut beats: Vec<(u64, u64)> = beats.into_iter().map(|(pause, delay)| {
                sent += pause;
                (sent, sent + delay)
            }).collect();
            beats.retain(|(_, committed)| outages.is_up(*committed));
            let commits: Vec<u64> = beats.iter().map(|(_, committed)| *committed).collect();
            for death in deaths(&commits, &reads(steps, &outages)) {
                // At worst the answer to each beat came at once.
                let mut pulse = Pulse::new(ms(LEASE));
                beats.iter().filter(|(_, committed)| *committed <= death).for_each(|(sent, _)| {
                    pulse.confirmed(ms(*sent));
                });
                prop_assert!(!pulse.may_send(ms(death)));
                prop_assert!(!pulse.may_send(ms(death - LEASE / 2) + Duration::from_nanos(1)));
            }
        }

        /// A node that tries to beat every quarter of a lease lives through all outages, if each leaves the
        /// store up for long enough that one beat gets through.
        #[test]
        fn nobody_dies_who_beats(
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
        fn whoever_stops_is_dead_before_long_if_reads_go_well(
            (interval, steps) in (1..=LEASE / 2)
                .prop_flat_map(|interval| (Just(interval), vec(interval.div_ceil(2)..=interval, 1..20))),
            beats in vec(1..=250u64, 0..20),
        ) {
            let mut at = 0;
            let commits: Vec<u64> = beats.into_iter().map(|pause| {
                at += pause;
                at
            }).collect();
            let last = at;
            let (mut at, mut reads) = (0, Vec::new());
            for step in steps.iter().cycle() {
                reads.push(Read { looked: at, answered: at, acted: at });
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
