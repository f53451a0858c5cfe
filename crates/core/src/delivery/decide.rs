//! What happens to a delivery after an attempt: done, tried again, or given up on.
//!
//! The one place where that is decided. It changes nothing itself; the engine carries the answer out.

use std::time::Duration;

use crate::{
    delivery::DeadReason,
    delivery::response::{Failure, FailureCategory, Verdict},
    delivery::retry::{RetryPolicy, minimum_delay},
    time::Time,
};

/// Failures that time seldom mends (bad certificates, refused addresses) get this many attempts.
const HOPELESS_ATTEMPTS: u32 = 3;

/// After so many deaths of a process while sending it, a delivery is taken to be the cause.
pub const POISON_DEATHS: u32 = 3;

/// Where a delivery stands right after an attempt.
#[derive(Clone, Copy, Debug)]
pub struct Situation<'a> {
    /// The number of the attempt just made; the first is 1.
    pub attempt: u32,
    /// When the delivery was made.
    pub created_at: Time,
    /// The confirmed time: a delivery expires by it, not by a clock that may have jumped.
    pub confirmed_now: Time,
    /// Whether somebody called the delivery off while the attempt was under way.
    pub cancel_requested: bool,
    /// The webhook's retry policy.
    pub policy: &'a RetryPolicy,
}

/// What becomes of the delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// It is done.
    Delivered,
    /// It is tried again.
    Retry {
        /// When.
        at: Time,
    },
    /// It is given up on.
    Dead(DeadReason),
    /// It was called off, and the attempt under way did not get through.
    Cancelled,
}

/// A decision, and what follows for the webhook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decided {
    /// What becomes of the delivery.
    pub decision: Decision,
    /// Whether the endpoint is gone for good, so that nothing more should be sent to it.
    pub disable_webhook: bool,
    /// Until when the endpoint wants to get nothing at all, where it said so.
    pub hold_until: Option<Time>,
}

/// Decides what an attempt's verdict means for its delivery. `roll` is uniform in [0, 1).
pub fn decide(situation: &Situation<'_>, verdict: &Verdict, now: Time, roll: f64) -> Decided {
    match verdict {
        // What the endpoint has taken is delivered, even if it was called off meanwhile.
        Verdict::Success => {
            Decided { decision: Decision::Delivered, disable_webhook: false, hold_until: None }
        }
        Verdict::Failed(failure) => Decided {
            decision: after_failure(situation, failure, now, roll),
            disable_webhook: failure.gone,
            hold_until: hold_until(situation.policy, failure, now),
        },
    }
}

/// When a delivery that was made at `created_at` is given up on, come what may.
pub fn gives_up_at(created_at: Time, policy: &RetryPolicy) -> Time {
    created_at + policy.give_up_after.get()
}

/// Whether a webhook has only failed for too long: nothing but failures came back since `failing_since`, the
/// last of them now, and that is as long as it may. No length: never.
pub fn has_failed_for_too_long(failing_since: Option<Time>, at_most: Option<Duration>, now: Time) -> bool {
    failing_since.zip(at_most).is_some_and(|(since, at_most)| now.since(since) >= at_most)
}

/// 429 speaks for the whole endpoint: until its `Retry-After`, or for the shortest wait after a 429 if it names
/// none, the webhook's other deliveries wait too.
fn hold_until(policy: &RetryPolicy, failure: &Failure, now: Time) -> Option<Time> {
    if failure.category != FailureCategory::RateLimit {
        return None;
    }
    let longest = Duration::from_millis(policy.max_delay_ms);
    let wait = failure.retry_after.map_or(minimum_delay(failure.category), |asked| asked.min(longest));
    Some(now + wait)
}

fn after_failure(situation: &Situation<'_>, failure: &Failure, now: Time, roll: f64) -> Decision {
    if situation.cancel_requested {
        return Decision::Cancelled;
    }
    if let Some(reason) = hopeless(situation, failure) {
        return Decision::Dead(reason);
    }
    let Situation { attempt, created_at, confirmed_now, policy, .. } = *situation;
    let delay = policy.delay(attempt, failure.category, failure.retry_after, roll);
    if confirmed_now + delay >= gives_up_at(created_at, policy) {
        // Better dead in plain sight now than pending for a retry that would never be made.
        return Decision::Dead(DeadReason::Expired);
    }
    Decision::Retry { at: now + delay }
}

/// Why there is no further attempt, whenever it would be. The most telling reason goes first.
fn hopeless(situation: &Situation<'_>, failure: &Failure) -> Option<DeadReason> {
    let attempt = situation.attempt;
    if failure.permanent {
        return Some(DeadReason::Permanent);
    }
    match failure.category {
        FailureCategory::Tls if attempt >= HOPELESS_ATTEMPTS => Some(DeadReason::TlsLimit),
        FailureCategory::BlockedAddress if attempt >= HOPELESS_ATTEMPTS => Some(DeadReason::BlockedAddress),
        _ if attempt >= situation.policy.max_attempts() => Some(DeadReason::Exhausted),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::time::Span;

    const CREATED: i64 = 1_700_000_000_000;
    const DAY: u64 = 86_400;

    fn failed(category: FailureCategory) -> Failure {
        Failure { category, permanent: false, retry_after: None, gone: false }
    }

    fn created() -> Time {
        Time::from_millis(CREATED)
    }

    fn situation(attempt: u32, policy: &RetryPolicy) -> Situation<'_> {
        let (created_at, confirmed_now) = (created(), created());
        Situation { attempt, created_at, confirmed_now, cancel_requested: false, policy }
    }

    #[test]
    fn delivery_expires_by_confirmed_time() {
        let policy = RetryPolicy::default();
        let now = created() + Duration::from_secs(140 * DAY);
        let failure = Verdict::Failed(failed(FailureCategory::ServerError));
        let decided = decide(&situation(1, &policy), &failure, now, 0.5);
        assert!(matches!(decided.decision, Decision::Retry { at } if at > now), "the jump is not confirmed");
        let confirmed = Situation { confirmed_now: now, ..situation(1, &policy) };
        assert_eq!(decide(&confirmed, &failure, now, 0.5).decision, Decision::Dead(DeadReason::Expired));
    }

    /// The decision so many seconds after the delivery was made, with the jitter at its middle.
    fn decide_at(attempt: u32, failure: Failure, seconds: u64, policy: &RetryPolicy) -> Decision {
        let now = created() + Duration::from_secs(seconds);
        let situation = Situation { confirmed_now: now, ..situation(attempt, policy) };
        decide(&situation, &Verdict::Failed(failure), now, 0.5).decision
    }

    #[test]
    fn a_webhook_may_fail_for_so_long_and_no_longer() {
        let day = Duration::from_secs(DAY);
        let failed_for = |secs, at_most| {
            has_failed_for_too_long(Some(created()), at_most, created() + Duration::from_secs(secs))
        };
        assert!(!failed_for(DAY - 1, Some(day)));
        assert!(failed_for(DAY, Some(day)));
        assert!(!failed_for(1_000 * DAY, None), "never, if there is no length");
        assert!(!has_failed_for_too_long(None, Some(day), created()), "it does not fail");
    }

    #[test]
    fn only_429_holds_the_whole_webhook_back() {
        let policy = RetryPolicy { max_delay_ms: 300_000, ..RetryPolicy::default() };
        let held = |category, retry_after| {
            let failure = Failure { retry_after, ..failed(category) };
            let hold = hold_until(&policy, &failure, created());
            hold.map(|until| until.since(created()).as_secs())
        };
        let secs = |secs| Some(Duration::from_secs(secs));
        assert_eq!(held(FailureCategory::RateLimit, secs(5)), Some(5), "what it asked for");
        assert_eq!(held(FailureCategory::RateLimit, secs(86_400)), Some(300), "within reason");
        assert_eq!(held(FailureCategory::RateLimit, None), Some(60), "the shortest wait after a 429");
        assert_eq!(held(FailureCategory::ServerError, secs(5)), None);
    }

    #[test]
    fn a_failure_is_tried_again_after_the_policys_wait() {
        let policy = RetryPolicy::default();
        let decision = decide_at(2, failed(FailureCategory::ServerError), 10, &policy);
        assert_eq!(decision, Decision::Retry { at: created() + Duration::from_secs(310) });
        let asked =
            Failure { retry_after: Some(Duration::from_secs(100)), ..failed(FailureCategory::RateLimit) };
        // Upward jitter only: the middle of 100 to 110 seconds.
        assert_eq!(
            decide_at(1, asked, 0, &policy),
            Decision::Retry { at: created() + Duration::from_secs(105) }
        );
    }

    #[test]
    fn deaths_have_their_reasons() {
        let policy = RetryPolicy::default();
        let dead = |attempt, failure| match decide_at(attempt, failure, 0, &policy) {
            Decision::Dead(reason) => Some(reason),
            _ => None,
        };
        let permanent = Failure { permanent: true, ..failed(FailureCategory::ClientError) };
        assert_eq!(dead(1, permanent), Some(DeadReason::Permanent));
        assert_eq!(dead(2, failed(FailureCategory::Tls)), None);
        assert_eq!(dead(3, failed(FailureCategory::Tls)), Some(DeadReason::TlsLimit));
        assert_eq!(dead(2, failed(FailureCategory::BlockedAddress)), None);
        assert_eq!(dead(3, failed(FailureCategory::BlockedAddress)), Some(DeadReason::BlockedAddress));
        assert_eq!(dead(9, failed(FailureCategory::Network)), None);
        assert_eq!(dead(10, failed(FailureCategory::Network)), Some(DeadReason::Exhausted));
    }

    #[test]
    fn no_retry_is_planned_for_after_the_end() {
        let policy = RetryPolicy { jitter: 0.0, ..RetryPolicy::default() };
        let error = failed(FailureCategory::ServerError);
        assert_eq!(gives_up_at(created(), &policy), created() + Duration::from_secs(5 * DAY));
        assert_eq!(decide_at(1, error, 5 * DAY - 5, &policy), Decision::Dead(DeadReason::Expired));
        let last = created() + Duration::from_secs(5 * DAY - 1);
        assert_eq!(decide_at(1, error, 5 * DAY - 6, &policy), Decision::Retry { at: last });
        assert_eq!(decide_at(10, error, 6 * DAY, &policy), Decision::Dead(DeadReason::Exhausted));
    }

    #[test]
    fn calling_off_yields_to_success_and_beats_everything_else() {
        let policy = RetryPolicy::default();
        let situation = Situation { cancel_requested: true, ..situation(1, &policy) };
        let delivered = Decided { decision: Decision::Delivered, disable_webhook: false, hold_until: None };
        assert_eq!(decide(&situation, &Verdict::Success, created(), 0.0), delivered);
        let gone = Failure { permanent: true, gone: true, ..failed(FailureCategory::ClientError) };
        let cancelled = Decided { decision: Decision::Cancelled, disable_webhook: true, hold_until: None };
        assert_eq!(decide(&situation, &Verdict::Failed(gone), created(), 0.0), cancelled);
    }

    fn any_failure() -> impl Strategy<Value = Failure> {
        let category = proptest::sample::select(&FailureCategory::ALL);
        let asked = proptest::option::of((0..u64::MAX).prop_map(Duration::from_secs));
        (category, any::<bool>(), asked, any::<bool>()).prop_map(
            |(category, permanent, retry_after, gone)| Failure { category, permanent, retry_after, gone },
        )
    }

    proptest! {
        #[test]
        fn every_delivery_ends(failures in proptest::collection::vec(any_failure(), 60), roll in 0.0..1.0f64) {
            let policy = RetryPolicy::default();
            let mut now = created();
            let mut ended = false;
            for (attempt, failure) in (1..).zip(&failures) {
                let situation = Situation { confirmed_now: now, ..situation(attempt, &policy) };
                let decided = decide(&situation, &Verdict::Failed(*failure), now, roll);
                prop_assert_eq!(decided.disable_webhook, failure.gone);
                match decided.decision {
                    Decision::Retry { at } => {
                        prop_assert!(attempt < policy.max_attempts());
                        prop_assert!(at >= now && at < gives_up_at(created(), &policy));
                        now = at;
                    }
                    Decision::Dead(_) => {
                        ended = true;
                        break;
                    }
                    other => prop_assert!(false, "{:?}", other),
                }
            }
            prop_assert!(ended);
        }

        #[test]
        fn no_time_is_out_of_bounds(
            attempt in any::<u32>(), created in any::<i64>(), now in any::<i64>(), failure in any_failure(),
            give_up in 1u64..2_592_000, roll in 0.0..1.0f64,
        ) {
            let policy = RetryPolicy { give_up_after: Span::secs(give_up), ..RetryPolicy::default() };
            let created_at = Time::from_millis(created);
            let confirmed_now = Time::from_millis(now);
            let situation =
                Situation { attempt, created_at, confirmed_now, cancel_requested: false, policy: &policy };
            let decided = decide(&situation, &Verdict::Failed(failure), Time::from_millis(now), roll);
            if let Decision::Retry { at } = decided.decision {
                prop_assert!(at < gives_up_at(created_at, &policy));
            }
        }
    }
}
