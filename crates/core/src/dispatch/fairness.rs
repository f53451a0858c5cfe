//! Who is next, and who may take another place: the rules by which classes and tenants share.

use crate::delivery::lane::CLASSES;

/// How many turns each class gets while all of them are waiting, in the order of
/// [`crate::lane::Lane::class`]: fresh high, normal and low, then retries of high, normal and low.
pub const WEIGHTS: [u32; CLASSES] = [64, 16, 4, 16, 4, 1];

/// What a turn costs each class: the less, the more turns it gets. Every weight divides the largest.
const COSTS: [u64; CLASSES] = {
    let mut costs = [0; CLASSES];
    let mut class = 0;
    while class < CLASSES {
        costs[class] = (WEIGHTS[0] / WEIGHTS[class]) as u64;
        class += 1;
    }
    costs
};

/// Whose turn it is. Each class pays for its turns, and the one that has paid the least is next.
#[derive(Clone, Debug, Default)]
pub struct Turns {
    paid: [u64; CLASSES],
}

impl Turns {
    /// Whose turn it is among the classes that are ready; none if none is.
    pub fn next(&mut self, ready: [bool; CLASSES]) -> Option<usize> {
        let next = (0..CLASSES).filter(|class| ready[*class]).min_by_key(|class| self.paid[*class])?;
        let least = self.paid[next];
        for class in (0..CLASSES).filter(|class| !ready[*class]) {
            // Whoever has nothing to do saves nothing up for later.
            self.paid[class] = self.paid[class].max(least);
        }
        Some(next)
    }

    /// The class has made use of its turn.
    pub fn took(&mut self, class: usize) {
        self.paid[class] += COSTS[class];
    }
}

/// How many times as much as is free one tenant may hold.
pub const TENANT_FACTOR: usize = 4;
/// How many times as much as is free all retries together may hold.
pub const RETRY_FACTOR: usize = 1;

/// Whether somebody who holds `by_this` of the `used` places may take another one.
///
/// Nobody may hold more than `factor` times what is free. A lone taker thus gets `factor / (factor + 1)` of
/// all there is; `k` that take in turns get equal parts and leave `1 / (factor * k + 1)`. So there is always
/// something left for a newcomer, as long as there are more places than `factor * k`; and while places are
/// short, those that become free go to whoever holds few.
pub fn may_take(capacity: usize, used: usize, by_this: usize, factor: usize) -> bool {
    used < capacity && by_this < factor.saturating_mul(capacity - used)
}

/// How many more places somebody may take at one go; see [`may_take`].
pub fn allowance(capacity: usize, used: usize, by_this: usize, factor: usize) -> usize {
    if !may_take(capacity, used, by_this, factor) {
        return 0;
    }
    // Each place taken makes the share smaller, too.
    let free = capacity - used;
    ((factor.saturating_mul(free) - by_this) / (factor + 1)).clamp(1, free)
}

/// How many places in memory one lane of a webhook may hold: enough to keep its requests going, no more than a
/// part of what is free, and a few in any case. So even many slow webhooks of one tenant leave room for its
/// quick ones. Retries are in no hurry, and taking many in at once would hold up whatever is fresh.
pub fn lane_room(capacity: usize, used: usize, max_in_flight: usize, retry: bool) -> usize {
    const PART: usize = 16;
    const FEW: usize = 16;
    let ahead = if retry { 2 } else { 32 };
    max_in_flight.saturating_mul(ahead).min(capacity.saturating_sub(used) / PART).max(FEW)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ALL: [bool; CLASSES] = [true; CLASSES];

    impl Turns {
        /// Gives the next turn, and has it made use of.
        fn pick(&mut self, ready: [bool; CLASSES]) -> Option<usize> {
            let class = self.next(ready)?;
            self.took(class);
            Some(class)
        }
    }

    fn turns(turns: &mut Turns, ready: [bool; CLASSES], picks: usize) -> [u32; CLASSES] {
        let mut counts = [0; CLASSES];
        (0..picks).filter_map(|_| turns.pick(ready)).for_each(|class| counts[class] += 1);
        counts
    }

    #[test]
    fn what_may_be_taken_at_one_go_may_be_taken_one_by_one() {
        for used in 0..=100 {
            for by_this in 0..=used {
                let at_one_go = allowance(100, used, by_this, 4);
                let one_by_one = (0..).take_while(|n| may_take(100, used + n, by_this + n, 4)).count();
                assert!(at_one_go <= one_by_one && (one_by_one == 0 || at_one_go > 0), "{used} {by_this}");
                assert!(one_by_one - at_one_go <= 1, "{used} {by_this}: {at_one_go} of {one_by_one}");
            }
        }
    }

    #[test]
    fn many_slow_webhooks_leave_room_for_a_quick_one() {
        let (capacity, mut used) = (20_000, 0);
        for _ in 0..80 {
            used += lane_room(capacity, used, 5, false).min(allowance(capacity, used, used, TENANT_FACTOR));
        }
        assert!(allowance(capacity, used, used, TENANT_FACTOR) >= 16, "{used}");
        assert_eq!(
            lane_room(capacity, 0, 32, false),
            1_024,
            "one that is let do much at once may be far ahead"
        );
        assert_eq!(lane_room(capacity, 0, 1, false), 32);
        assert_eq!(lane_room(capacity, 0, 64, true), 128, "but not with retries");
    }

    #[test]
    fn turns_are_shared_by_weight() {
        let round: u32 = WEIGHTS.iter().sum();
        let mut all = Turns::default();
        for _ in 0..3 {
            assert_eq!(turns(&mut all, ALL, round as usize), WEIGHTS);
        }
        let pair = [false, true, false, false, false, true];
        assert_eq!(turns(&mut Turns::default(), pair, 170), [0, 160, 0, 0, 0, 10]);
        assert_eq!(Turns::default().next([false; CLASSES]), None);
    }

    #[test]
    fn who_was_idle_has_saved_nothing_up() {
        let mut picks = Turns::default();
        let without_high = [false, true, true, true, true, true];
        turns(&mut picks, without_high, 100_000);
        let counts = turns(&mut picks, ALL, 105);
        assert!((63..=65).contains(&counts[0]), "{counts:?}");
    }

    #[test]
    fn a_class_that_comes_back_is_next_before_long() {
        let mut picks = Turns::default();
        turns(&mut picks, [true, true, false, true, true, true], 100_000);
        let counts = turns(&mut picks, ALL, CLASSES);
        assert!(counts[2] >= 1, "{counts:?}");
    }

    /// Takes for one after the other until nobody may take any more, and says what each has got.
    fn greedy(capacity: usize, takers: usize, factor: usize) -> Vec<usize> {
        let mut held = vec![0; takers];
        loop {
            let before: usize = held.iter().sum();
            for taker in 0..takers {
                let used = held.iter().sum();
                held[taker] += usize::from(may_take(capacity, used, held[taker], factor));
            }
            if held.iter().sum::<usize>() == before {
                return held;
            }
        }
    }

    #[test]
    fn a_lone_taker_leaves_its_part() {
        assert_eq!(greedy(100, 1, TENANT_FACTOR), [80]);
        assert_eq!(greedy(100, 1, RETRY_FACTOR), [50]);
        assert_eq!(greedy(90, 2, TENANT_FACTOR), [40, 40]);
        assert_eq!(greedy(1, 1, RETRY_FACTOR), [1], "the last place is of use to somebody");
        assert!(!may_take(0, 0, 0, 4) && !may_take(5, 5, 0, 4) && !may_take(5, 9, 0, 4));
        assert!(may_take(usize::MAX, 1, usize::MAX - 1, usize::MAX));
    }

    proptest! {
        #[test]
        fn two_that_stay_ready_are_never_apart_by_more_than_one_turn(
            ready in proptest::collection::vec(any::<[bool; CLASSES]>(), 1..400),
            one in 0..CLASSES, other in 0..CLASSES,
        ) {
            let (mut picks, mut counts) = (Turns::default(), [0u64; CLASSES]);
            for mut ready in ready {
                (ready[one], ready[other]) = (true, true);
                counts[picks.pick(ready).unwrap()] += 1;
                let (of_one, of_other) = (counts[one] * COSTS[one], counts[other] * COSTS[other]);
                prop_assert!(of_one.abs_diff(of_other) <= COSTS[one].max(COSTS[other]));
            }
        }

        #[test]
        fn nobody_ready_starves(
            before in proptest::collection::vec(any::<[bool; CLASSES]>(), 0..300),
            others in proptest::collection::vec(any::<[bool; CLASSES]>(), 120), class in 0..CLASSES,
        ) {
            let mut picks = Turns::default();
            before.into_iter().for_each(|ready| _ = picks.pick(ready));
            let picked = others.into_iter().any(|mut ready| {
                ready[class] = true;
                picks.pick(ready) == Some(class)
            });
            prop_assert!(picked);
        }

        #[test]
        fn only_the_ready_are_picked(ready in any::<[bool; CLASSES]>()) {
            let picked = Turns::default().pick(ready);
            prop_assert_eq!(picked.is_some(), ready.contains(&true));
            prop_assert!(picked.is_none_or(|class| ready[class]));
        }

        #[test]
        fn greedy_takers_share_alike_and_leave_room(
            capacity in 1..5000usize, takers in 1..20usize, factor in 1..8usize,
        ) {
            let held = greedy(capacity, takers, factor);
            let free = capacity - held.iter().sum::<usize>();
            prop_assert!(free >= capacity / (factor * takers + 1));
            let (least, most) = (held.iter().min().unwrap(), held.iter().max().unwrap());
            prop_assert!(most - least <= 1);
            if capacity > factor * takers {
                prop_assert!(may_take(capacity, capacity - free, 0, factor));
            }
        }

        #[test]
        fn one_after_the_other_each_leaves_its_part_of_the_rest(
            capacity in 1..5000usize, takers in 1..5u32, factor in 1..8usize,
        ) {
            let mut used = 0;
            for _ in 0..takers {
                let mut held = 0;
                while may_take(capacity, used, held, factor) {
                    (used, held) = (used + 1, held + 1);
                }
            }
            prop_assert!(capacity - used >= capacity / (factor + 1).pow(takers));
        }
    }
}
