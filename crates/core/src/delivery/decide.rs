//! Decides the outcome of a delivery after an attempt: delivered, retry, dead or cancelled.
//!
//! This is the only place where that is decided. It has no side effects; the engine applies the decision.

use std::time::Duration;

use crate::{
    delivery::{
        DeadReason,
        outcome::Outcome,
        response::{Failure, FailureCategory, ResponseClass},
        retry::{RetryPolicy, minimum_delay},
    },
    time::Time,
};

/// Number of the attempt from which a failure that rarely resolves with time (bad certificate, denied address) makes
/// the delivery dead.
const UNRECOVERABLE_MAX_ATTEMPTS: u32 = 3;

/// Number of crashes while sending a delivery (its node died, its task panicked, or its outcome could not be stored)
/// after which the delivery is considered the cause. The first death of its node is not counted, since it is not known
/// whether the delivery was being sent.
pub const MAX_CRASHES: u32 = 3;

/// Returns the delay of a delivery after a crash: ten seconds, doubled for each crash before, up to one hour. A delivery
/// that makes its task panic is thus not started again and again.
///
/// ```
/// use std::time::Duration;
/// use redrive_core::delivery::decide::delay_after_crash;
///
/// assert_eq!(delay_after_crash(0), Duration::from_secs(10));
/// assert_eq!(delay_after_crash(2), Duration::from_secs(40));
/// assert_eq!(delay_after_crash(u32::MAX), Duration::from_secs(3600));
/// ```
pub fn delay_after_crash(crashes_before: u32) -> Duration {
    const FIRST_SECS: u64 = 10;
    const MAX_SECS: u64 = 3600;
    Duration::from_secs(FIRST_SECS.saturating_mul(1 << crashes_before.min(32)).min(MAX_SECS))
}

/// State of a delivery right after an attempt.
#[derive(Clone, Copy, Debug)]
pub struct AttemptContext<'a> {
    /// The number of the attempt just made; the first is 1.
    pub attempt: u32,
    /// When the delivery was created.
    pub created_at: Time,
    /// The confirmed time: a delivery expires by it, not by a clock that may have jumped.
    pub confirmed_now: Time,
    /// Why the delivery was cancelled while the attempt was in flight; `None` if it was not.
    pub cancel: Option<&'a str>,
    /// The webhook's retry policy.
    pub policy: &'a RetryPolicy,
}

/// What an attempt means for its delivery and for its webhook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecisionEffects {
    /// What becomes of the delivery.
    pub outcome: Outcome,
    /// Whether the endpoint is permanently gone, so that nothing more must be sent to it.
    pub disable_webhook: bool,
    /// End of the pause of all deliveries of the webhook, if the endpoint responded 429.
    pub pause_until: Option<Time>,
}

/// Decides what the response class of an attempt means for its delivery. `random` is uniform in [0, 1).
pub fn decide_outcome(
    context: &AttemptContext<'_>,
    class: &ResponseClass,
    now: Time,
    random: f64,
) -> DecisionEffects {
    match class {
        // A delivery that the endpoint accepted is delivered, even if it was cancelled in the meantime.
        ResponseClass::Success => {
            DecisionEffects { outcome: Outcome::Delivered, disable_webhook: false, pause_until: None }
        }
        ResponseClass::Failed(failure) => DecisionEffects {
            outcome: after_failure(context, failure, now, random),
            disable_webhook: failure.gone,
            pause_until: pause_until(context.policy, failure, now),
        },
    }
}

/// Returns when a delivery created at `created_at` expires.
pub fn give_up_at(created_at: Time, policy: &RetryPolicy) -> Time {
    created_at + policy.give_up_after.as_duration()
}

/// Returns whether a webhook must be disabled: it has had only failures since `failing_since`, for at least
/// `disable_after`. Without a limit it is never disabled.
pub fn should_disable(failing_since: Option<Time>, disable_after: Option<Duration>, now: Time) -> bool {
    failing_since
        .zip(disable_after)
        .is_some_and(|(since, disable_after)| now.duration_since(since) >= disable_after)
}

/// Returns the end of the pause of all deliveries of the webhook after a 429: its `Retry-After`, or the minimum delay
/// after a 429 if it has none.
fn pause_until(policy: &RetryPolicy, failure: &Failure, now: Time) -> Option<Time> {
    if failure.category != FailureCategory::RateLimit {
        return None;
    }
    let longest = Duration::from_millis(policy.max_delay_ms);
    let wait = failure
        .retry_after
        .map_or(minimum_delay(failure.category), |requested_delay| requested_delay.min(longest));
    Some(now + wait)
}

fn after_failure(context: &AttemptContext<'_>, failure: &Failure, now: Time, random: f64) -> Outcome {
    if let Some(reason) = context.cancel {
        return Outcome::Cancelled(reason.to_owned());
    }
    if let Some(reason) = no_retry_reason(context, failure) {
        return Outcome::Dead(reason);
    }
    let AttemptContext { attempt, created_at, confirmed_now, policy, .. } = *context;
    let delay = policy.delay(attempt, failure.category, failure.retry_after, random);
    if confirmed_now + delay >= give_up_at(created_at, policy) {
        // Mark it dead now: otherwise it would stay pending for a retry that is never made.
        return Outcome::Dead(DeadReason::Expired);
    }
    Outcome::Retry { at: now + delay }
}

/// Returns why no further attempt is made at any time. The most specific reason comes first.
fn no_retry_reason(context: &AttemptContext<'_>, failure: &Failure) -> Option<DeadReason> {
    let attempt = context.attempt;
    if failure.permanent {
        return Some(DeadReason::Permanent);
    }
    match failure.category {
        FailureCategory::Tls if attempt >= UNRECOVERABLE_MAX_ATTEMPTS => Some(DeadReason::TlsLimit),
        FailureCategory::BlockedAddress if attempt >= UNRECOVERABLE_MAX_ATTEMPTS => {
            Some(DeadReason::BlockedAddress)
        }
        _ if attempt >= context.policy.max_attempts() => Some(DeadReason::Exhausted),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::time::HumanDuration;

    const CREATED: i64 = 1_700_000_000_000;
    const DAY: u64 = 86_400;

    fn failed(category: FailureCategory) -> Failure {
        Failure { category, permanent: false, retry_after: None, gone: false }
    }

    fn created() -> Time {
        Time::from_millis(CREATED)
    }

    fn attempt_context(attempt: u32, policy: &RetryPolicy) -> AttemptContext<'_> {
        let (created_at, confirmed_now) = (created(), created());
        AttemptContext { attempt, created_at, confirmed_now, cancel: None, policy }
    }

    #[test]
    fn delivery_expires_by_confirmed_time() {
        let policy = RetryPolicy::default();
        let now = created() + Duration::from_secs(140 * DAY);
        let failure = ResponseClass::Failed(failed(FailureCategory::ServerError));
        let decided = decide_outcome(&attempt_context(1, &policy), &failure, now, 0.5);
        assert!(
            matches!(decided.outcome, Outcome::Retry { at } if at > now),
            "an unconfirmed jump expires nothing"
        );
        let confirmed = AttemptContext { confirmed_now: now, ..attempt_context(1, &policy) };
        assert_eq!(
            decide_outcome(&confirmed, &failure, now, 0.5).outcome,
            Outcome::Dead(DeadReason::Expired)
        );
    }

    /// Decides `seconds` seconds after the delivery was created, with a jitter in the middle of its range.
    fn decide_at(attempt: u32, failure: Failure, seconds: u64, policy: &RetryPolicy) -> Outcome {
        let now = created() + Duration::from_secs(seconds);
        let context = AttemptContext { confirmed_now: now, ..attempt_context(attempt, policy) };
        decide_outcome(&context, &ResponseClass::Failed(failure), now, 0.5).outcome
    }

    #[test]
    fn webhook_is_disabled_after_failing_for_the_limit() {
        let day = Duration::from_secs(DAY);
        let failed_for = |secs, disable_after| {
            should_disable(Some(created()), disable_after, created() + Duration::from_secs(secs))
        };
        assert!(!failed_for(DAY - 1, Some(day)));
        assert!(failed_for(DAY, Some(day)));
        assert!(!failed_for(1_000 * DAY, None), "without a limit a webhook is never disabled");
        assert!(!should_disable(None, Some(day), created()), "the webhook is not failing");
    }

    #[test]
    fn only_429_pauses_all_deliveries_of_the_webhook() {
        let policy = RetryPolicy { max_delay_ms: 300_000, ..RetryPolicy::default() };
        let paused = |category, retry_after| {
            let failure = Failure { retry_after, ..failed(category) };
            let end = pause_until(&policy, &failure, created());
            end.map(|until| until.duration_since(created()).as_secs())
        };
        let secs = |secs| Some(Duration::from_secs(secs));
        assert_eq!(paused(FailureCategory::RateLimit, secs(5)), Some(5), "Retry-After is used");
        assert_eq!(
            paused(FailureCategory::RateLimit, secs(86_400)),
            Some(300),
            "Retry-After is capped at max_delay_ms"
        );
        assert_eq!(paused(FailureCategory::RateLimit, None), Some(60), "the minimum delay after a 429");
        assert_eq!(paused(FailureCategory::ServerError, secs(5)), None);
    }

    #[test]
    fn failure_is_retried_after_policy_delay() {
        let policy = RetryPolicy::default();
        let decision = decide_at(2, failed(FailureCategory::ServerError), 10, &policy);
        assert_eq!(decision, Outcome::Retry { at: created() + Duration::from_secs(310) });
        let request =
            Failure { retry_after: Some(Duration::from_secs(100)), ..failed(FailureCategory::RateLimit) };
        // Upward jitter only: the middle of 100 to 110 seconds.
        assert_eq!(
            decide_at(1, request, 0, &policy),
            Outcome::Retry { at: created() + Duration::from_secs(105) }
        );
    }

    #[test]
    fn dead_reason_matches_failure() {
        let policy = RetryPolicy::default();
        let dead = |attempt, failure| match decide_at(attempt, failure, 0, &policy) {
            Outcome::Dead(reason) => Some(reason),
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
    fn retry_after_expiry_is_not_scheduled() {
        let policy = RetryPolicy { jitter: 0.0, ..RetryPolicy::default() };
        let error = failed(FailureCategory::ServerError);
        assert_eq!(give_up_at(created(), &policy), created() + Duration::from_secs(5 * DAY));
        assert_eq!(decide_at(1, error, 5 * DAY - 5, &policy), Outcome::Dead(DeadReason::Expired));
        let last = created() + Duration::from_secs(5 * DAY - 1);
        assert_eq!(decide_at(1, error, 5 * DAY - 6, &policy), Outcome::Retry { at: last });
        assert_eq!(decide_at(10, error, 6 * DAY, &policy), Outcome::Dead(DeadReason::Exhausted));
    }

    #[test]
    fn cancel_request_loses_to_success_and_overrides_failure() {
        let policy = RetryPolicy::default();
        let context = AttemptContext { cancel: Some("by the test"), ..attempt_context(1, &policy) };
        let delivered =
            DecisionEffects { outcome: Outcome::Delivered, disable_webhook: false, pause_until: None };
        assert_eq!(decide_outcome(&context, &ResponseClass::Success, created(), 0.0), delivered);
        let gone = Failure { permanent: true, gone: true, ..failed(FailureCategory::ClientError) };
        let cancelled = DecisionEffects {
            outcome: Outcome::Cancelled("by the test".into()),
            disable_webhook: true,
            pause_until: None,
        };
        assert_eq!(decide_outcome(&context, &ResponseClass::Failed(gone), created(), 0.0), cancelled);
    }

    fn any_failure() -> impl Strategy<Value = Failure> {
        let category = proptest::sample::select(&FailureCategory::ALL);
        let requests = proptest::option::of((0..u64::MAX).prop_map(Duration::from_secs));
        (category, any::<bool>(), requests, any::<bool>()).prop_map(
            |(category, permanent, retry_after, gone)| Failure { category, permanent, retry_after, gone },
        )
    }

    proptest! {
        #[test]
        fn every_delivery_ends(failures in proptest::collection::vec(any_failure(), 60), random in 0.0..1.0f64) {
            let policy = RetryPolicy::default();
            let mut now = created();
            let mut ended = false;
            for (attempt, failure) in (1..).zip(&failures) {
                let context = AttemptContext { confirmed_now: now, ..attempt_context(attempt, &policy) };
                let decided = decide_outcome(&context, &ResponseClass::Failed(*failure), now, random);
                prop_assert_eq!(decided.disable_webhook, failure.gone);
                match decided.outcome {
                    Outcome::Retry { at } => {
                        prop_assert!(attempt < policy.max_attempts());
                        prop_assert!(at >= now && at < give_up_at(created(), &policy));
                        now = at;
                    }
                    Outcome::Dead(_) => {
                        ended = true;
                        break;
                    }
                    other => prop_assert!(false, "{:?}", other),
                }
            }
            prop_assert!(ended);
        }

        #[test]
        fn retry_time_is_before_expiry_for_any_input(
            attempt in any::<u32>(), created in any::<i64>(), now in any::<i64>(), failure in any_failure(),
            give_up in 1u64..2_592_000, random in 0.0..1.0f64,
        ) {
            let policy = RetryPolicy { give_up_after: HumanDuration::secs(give_up), ..RetryPolicy::default() };
            let created_at = Time::from_millis(created);
            let confirmed_now = Time::from_millis(now);
            let context =
                AttemptContext { attempt, created_at, confirmed_now, cancel: None, policy: &policy };
            let decided = decide_outcome(&context, &ResponseClass::Failed(failure), Time::from_millis(now), random);
            if let Outcome::Retry { at } = decided.outcome {
                prop_assert!(at < give_up_at(created_at, &policy));
            }
        }
    }
}
