//! Fair sharing: weighted scheduling of classes, and dynamic limits on the capacity that one tenant may hold.

use crate::delivery::lane::CLASS_COUNT;

/// Number of turns of each class while all of them have work, in the order of
/// [`crate::delivery::lane::Lane::class`]: fresh high, normal and low, then retries of high, normal and low.
pub const CLASS_WEIGHTS: [u32; CLASS_COUNT] = [64, 16, 4, 16, 4, 1];

/// Cost of a turn of each class: a lower cost means more turns. Every weight divides the largest.
const CLASS_COSTS: [u64; CLASS_COUNT] = {
    let mut costs = [0; CLASS_COUNT];
    let mut class = 0;
    while class < CLASS_COUNT {
        costs[class] = (CLASS_WEIGHTS[0] / CLASS_WEIGHTS[class]) as u64;
        class += 1;
    }
    costs
};

/// Weighted scheduler: each class is charged for its turns, and the class that was charged the least is next.
///
/// ```
/// use redrive_core::dispatch::fairness::ClassScheduler;
///
/// let mut scheduler = ClassScheduler::default();
/// // Only fresh deliveries of high and of low priority are ready: weights 64 and 4.
/// let ready = [true, false, true, false, false, false];
/// let mut turns = [0; 6];
/// for _ in 0..17 {
///     let class = scheduler.next(ready).unwrap();
///     scheduler.charge(class);
///     turns[class] += 1;
/// }
/// // Low priority is not starved: it gets one turn in 17.
/// assert_eq!(turns, [16, 0, 1, 0, 0, 0]);
/// ```
#[derive(Clone, Debug, Default)]
pub struct ClassScheduler {
    /// Cost of the turns of each class so far, as in virtual-time fair queueing.
    virtual_time: [u64; CLASS_COUNT],
}

impl ClassScheduler {
    /// Returns the next class among those that are ready, or `None` if none is.
    pub fn next(&mut self, ready: [bool; CLASS_COUNT]) -> Option<usize> {
        let next =
            (0..CLASS_COUNT).filter(|class| ready[*class]).min_by_key(|class| self.virtual_time[*class])?;
        let min = self.virtual_time[next];
        for class in (0..CLASS_COUNT).filter(|class| !ready[*class]) {
            // An idle class accumulates no credit.
            self.virtual_time[class] = self.virtual_time[class].max(min);
        }
        Some(next)
    }

    /// Charges the class for its turn.
    pub fn charge(&mut self, class: usize) {
        self.virtual_time[class] += CLASS_COSTS[class];
    }
}

/// How many times the free capacity one tenant may hold: its `alpha`, see [`may_take`].
pub const TENANT_FACTOR: usize = 4;
/// How many times the free capacity all retries together may hold: their `alpha`, see [`may_take`].
pub const RETRY_FACTOR: usize = 1;

/// Returns whether a holder that has `held` of the `used` units may take another one of `total` units, which are slots
/// or memory.
///
/// This is the dynamic-threshold scheme of shared-memory switches (Choudhury and Hahne): the limit of every holder
/// is `alpha` times the free slots, so it falls as slots become scarce. A single holder thus gets
/// `alpha / (alpha + 1)` of the capacity; `k` holders that take in turns get equal shares and leave
/// `1 / (alpha * k + 1)`. A new holder therefore always finds a free slot if the capacity exceeds `alpha * k`; and
/// while slots are scarce, released ones go to holders that have few.
///
/// ```
/// use redrive_core::dispatch::fairness::{TENANT_FACTOR, may_take};
///
/// let mut used = 0;
/// while may_take(100, used, used, TENANT_FACTOR) {
///     used += 1;
/// }
/// // A tenant that is alone stops at 80 of 100 slots, although the others are free: another tenant finds a slot.
/// assert_eq!(used, 80);
/// assert!(may_take(100, used, 0, TENANT_FACTOR));
/// ```
pub fn may_take(total: usize, used: usize, held: usize, alpha: usize) -> bool {
    used < total && held < alpha.saturating_mul(total - used)
}

/// Returns how many more slots a holder may take in one step; see [`may_take`].
pub fn allowance(total: usize, used: usize, held: usize, alpha: usize) -> usize {
    if !may_take(total, used, held, alpha) {
        return 0;
    }
    // Each slot taken also reduces the holder's limit.
    let free = total - used;
    ((alpha.saturating_mul(free) - held) / (alpha + 1)).clamp(1, free)
}

/// Returns how many deliveries of one lane may be in memory: enough to keep its requests going, at most a
/// fraction of the free capacity, and at least a few. Even many slow webhooks of one tenant thus leave capacity
/// for its fast ones. Retries are less urgent, and loading many of them would delay fresh deliveries.
pub fn lane_capacity(capacity: usize, used: usize, max_in_flight: usize, retry: bool) -> usize {
    const FREE_DIVISOR: usize = 16;
    const MIN_LANE_DELIVERIES: usize = 16;
    // Queued deliveries per request that may be in flight.
    let queue_factor = if retry { 2 } else { 32 };
    max_in_flight
        .saturating_mul(queue_factor)
        .min(capacity.saturating_sub(used) / FREE_DIVISOR)
        .max(MIN_LANE_DELIVERIES)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ALL: [bool; CLASS_COUNT] = [true; CLASS_COUNT];

    impl ClassScheduler {
        /// Returns the next class and charges it.
        fn pick(&mut self, ready: [bool; CLASS_COUNT]) -> Option<usize> {
            let class = self.next(ready)?;
            self.charge(class);
            Some(class)
        }
    }

    fn turns(scheduler: &mut ClassScheduler, ready: [bool; CLASS_COUNT], picks: usize) -> [u32; CLASS_COUNT] {
        let mut counts = [0; CLASS_COUNT];
        (0..picks).filter_map(|_| scheduler.pick(ready)).for_each(|class| counts[class] += 1);
        counts
    }

    #[test]
    fn allowance_matches_repeated_may_take() {
        for used in 0..=100 {
            for held in 0..=used {
                let at_one_go = allowance(100, used, held, 4);
                let one_by_one = (0..).take_while(|n| may_take(100, used + n, held + n, 4)).count();
                assert!(at_one_go <= one_by_one && (one_by_one == 0 || at_one_go > 0), "{used} {held}");
                assert!(one_by_one - at_one_go <= 1, "{used} {held}: {at_one_go} of {one_by_one}");
            }
        }
    }

    #[test]
    fn slow_webhooks_leave_capacity_for_a_fast_one() {
        let (capacity, mut used) = (20_000, 0);
        for _ in 0..80 {
            used +=
                lane_capacity(capacity, used, 5, false).min(allowance(capacity, used, used, TENANT_FACTOR));
        }
        assert!(allowance(capacity, used, used, TENANT_FACTOR) >= 16, "{used}");
        assert_eq!(
            lane_capacity(capacity, 0, 32, false),
            1_024,
            "a webhook with a high limit may queue more"
        );
        assert_eq!(lane_capacity(capacity, 0, 1, false), 32);
        assert_eq!(lane_capacity(capacity, 0, 64, true), 128, "retries may queue less");
    }

    #[test]
    fn turns_are_shared_by_weight() {
        let round: u32 = CLASS_WEIGHTS.iter().sum();
        let mut all = ClassScheduler::default();
        for _ in 0..3 {
            assert_eq!(turns(&mut all, ALL, round as usize), CLASS_WEIGHTS);
        }
        let pair = [false, true, false, false, false, true];
        assert_eq!(turns(&mut ClassScheduler::default(), pair, 170), [0, 160, 0, 0, 0, 10]);
        assert_eq!(ClassScheduler::default().next([false; CLASS_COUNT]), None);
    }

    #[test]
    fn idle_class_accumulates_no_credit() {
        let mut picks = ClassScheduler::default();
        let without_high = [false, true, true, true, true, true];
        turns(&mut picks, without_high, 100_000);
        let counts = turns(&mut picks, ALL, 105);
        assert!((63..=65).contains(&counts[0]), "{counts:?}");
    }

    #[test]
    fn returning_class_is_served_soon() {
        let mut picks = ClassScheduler::default();
        turns(&mut picks, [true, true, false, true, true, true], 100_000);
        let counts = turns(&mut picks, ALL, CLASS_COUNT);
        assert!(counts[2] >= 1, "{counts:?}");
    }

    /// Lets holders take slots in turns until none may take more. Returns the slots of each.
    fn greedy(capacity: usize, takers: usize, alpha: usize) -> Vec<usize> {
        let mut held = vec![0; takers];
        loop {
            let before: usize = held.iter().sum();
            for taker in 0..takers {
                let used = held.iter().sum();
                held[taker] += usize::from(may_take(capacity, used, held[taker], alpha));
            }
            if held.iter().sum::<usize>() == before {
                return held;
            }
        }
    }

    #[test]
    fn single_holder_leaves_free_share() {
        assert_eq!(greedy(100, 1, TENANT_FACTOR), [80]);
        assert_eq!(greedy(100, 1, RETRY_FACTOR), [50]);
        assert_eq!(greedy(90, 2, TENANT_FACTOR), [40, 40]);
        assert_eq!(greedy(1, 1, RETRY_FACTOR), [1], "the only slot may be taken");
        assert!(!may_take(0, 0, 0, 4) && !may_take(5, 5, 0, 4) && !may_take(5, 9, 0, 4));
        assert!(may_take(usize::MAX, 1, usize::MAX - 1, usize::MAX));
    }

    proptest! {
        #[test]
        fn ready_classes_differ_by_at_most_one_turn(
            ready in proptest::collection::vec(any::<[bool; CLASS_COUNT]>(), 1..400),
            one in 0..CLASS_COUNT, other in 0..CLASS_COUNT,
        ) {
            let (mut picks, mut counts) = (ClassScheduler::default(), [0u64; CLASS_COUNT]);
            for mut ready in ready {
                (ready[one], ready[other]) = (true, true);
                counts[picks.pick(ready).unwrap()] += 1;
                let (of_one, of_other) = (counts[one] * CLASS_COSTS[one], counts[other] * CLASS_COSTS[other]);
                prop_assert!(of_one.abs_diff(of_other) <= CLASS_COSTS[one].max(CLASS_COSTS[other]));
            }
        }

        #[test]
        fn ready_class_never_starves(
            before in proptest::collection::vec(any::<[bool; CLASS_COUNT]>(), 0..300),
            others in proptest::collection::vec(any::<[bool; CLASS_COUNT]>(), 120), class in 0..CLASS_COUNT,
        ) {
            let mut picks = ClassScheduler::default();
            before.into_iter().for_each(|ready| _ = picks.pick(ready));
            let picked = others.into_iter().any(|mut ready| {
                ready[class] = true;
                picks.pick(ready) == Some(class)
            });
            prop_assert!(picked);
        }

        #[test]
        fn only_ready_classes_are_picked(ready in any::<[bool; CLASS_COUNT]>()) {
            let picked = ClassScheduler::default().pick(ready);
            prop_assert_eq!(picked.is_some(), ready.contains(&true));
            prop_assert!(picked.is_none_or(|class| ready[class]));
        }

        #[test]
        fn greedy_holders_get_equal_shares_and_leave_capacity(
            capacity in 1..5000usize, takers in 1..20usize, alpha in 1..8usize,
        ) {
            let held = greedy(capacity, takers, alpha);
            let free = capacity - held.iter().sum::<usize>();
            prop_assert!(free >= capacity / (alpha * takers + 1));
            let (min, max) = (held.iter().min().unwrap(), held.iter().max().unwrap());
            prop_assert!(max - min <= 1);
            if capacity > alpha * takers {
                prop_assert!(may_take(capacity, capacity - free, 0, alpha));
            }
        }

        #[test]
        fn sequential_holders_each_leave_a_share_of_the_rest(
            capacity in 1..5000usize, takers in 1..5u32, alpha in 1..8usize,
        ) {
            let mut used = 0;
            for _ in 0..takers {
                let mut held = 0;
                while may_take(capacity, used, held, alpha) {
                    (used, held) = (used + 1, held + 1);
                }
            }
            prop_assert!(capacity - used >= capacity / (alpha + 1).pow(takers));
        }
    }
}
