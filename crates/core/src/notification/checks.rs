//! Checks for conditions that no event reports: DNS failures and secrets due for rotation.

use std::time::Duration;

use crate::{
    delivery::response::FailureCategory, security::signature::LiveSecret, statistics::rollup::Rollup,
    time::Time, webhook::failures::FailureSeries,
};

/// Time span of the attempts that are checked for DNS failures.
pub const DNS_WINDOW: Duration = Duration::from_secs(600);
/// Minimum number of attempts in the window for a result by percentage.
const DNS_MIN_ATTEMPTS: u32 = 10;
/// DNS is failing if more than this percentage of the attempts failed.
const DNS_FAILURE_PERCENT: u64 = 80;

/// Returns whether the host of a webhook could not be resolved: for too many attempts of the window, or for every
/// attempt since its last success, which are few if it gets few events.
///
/// A series counts its failures until it is reported. Later ones are known only if they are in the window.
pub fn is_dns_failing(window: &Rollup, failures: Option<&FailureSeries>) -> bool {
    let failed = dns_failures(window);
    window.attempts >= DNS_MIN_ATTEMPTS
        && u64::from(failed) * 100 > u64::from(window.attempts) * DNS_FAILURE_PERCENT
        || failures.is_some_and(|failures| {
            failures.is_only(FailureCategory::Dns) && (!failures.is_reported || window.failures() == failed)
        })
}

/// Returns how many attempts failed because the host could not be resolved.
pub fn dns_failures(window: &Rollup) -> u32 {
    window.by_category[FailureCategory::Dns as usize]
}

/// Returns whether a webhook's newest secret is due for rotation. Secrets are newest first.
pub fn is_rotation_due(secrets: &[LiveSecret], rotate_after: Duration, now: Time) -> bool {
    secrets.first().is_some_and(|newest| now >= newest.created_at + rotate_after)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::security::signature::Secret;

    fn window(attempts: u32, dns: u32) -> Rollup {
        let mut window = Rollup { attempts, ..Rollup::default() };
        window.by_category[FailureCategory::Dns as usize] = dns;
        window
    }

    #[test]
    fn dns_is_failing_above_80_percent_of_at_least_ten_attempts() {
        let is_failing = |attempts, dns| is_dns_failing(&window(attempts, dns), None);
        assert!(!is_failing(0, 0) && !is_failing(9, 9), "too few");
        assert!(is_failing(10, 10) && is_failing(10, 9));
        assert!(!is_failing(10, 8), "exactly 80 percent");
        assert!(is_failing(1_000, 801) && !is_failing(1_000, 800));
        let mut others = window(10, 0);
        others.by_category[FailureCategory::Timeout as usize] = 10;
        assert!(!is_dns_failing(&others, None), "other failures do not count");
    }

    #[test]
    fn dns_is_failing_if_it_failed_for_two_attempts_and_none_succeeded() {
        use FailureCategory::{Dns, Timeout};
        let series = |categories: &[FailureCategory]| {
            let mut series = FailureSeries::starting_at(Time::from_secs(5));
            categories.iter().for_each(|category| series.add(*category));
            series
        };
        let is_failing = |categories: &[FailureCategory]| {
            // The first of the attempts is older than the window.
            is_dns_failing(&window(1, 1), Some(&series(categories)))
        };
        assert!(is_failing(&[Dns, Dns]) && is_failing(&[Dns; 5]));
        assert!(!is_failing(&[Dns]), "one failure says nothing");
        assert!(!is_failing(&[Timeout, Dns, Dns]), "the endpoint was reached before");
        let reported = FailureSeries { is_reported: true, ..series(&[Dns; 5]) };
        assert!(is_dns_failing(&window(1, 1), Some(&reported)));
        let mut later = window(50, 1);
        later.by_category[Timeout as usize] = 49;
        assert!(!is_dns_failing(&later, Some(&reported)), "the host was resolved since");
    }

    #[test]
    fn rotation_due_depends_on_newest_secret() {
        let day = Duration::from_secs(86_400);
        let secret = |days: u32| LiveSecret {
            secret: Secret::from_bytes(&[1; 32]),
            created_at: Time::from_secs(days * 86_400),
            expires_at: None,
        };
        let at = |days: u32| Time::from_secs(days * 86_400);
        assert!(!is_rotation_due(&[secret(0)], 90 * day, at(89)));
        assert!(is_rotation_due(&[secret(0)], 90 * day, at(90)));
        assert!(!is_rotation_due(&[secret(60), secret(0)], 90 * day, at(120)), "a newer secret replaced it");
        assert!(!is_rotation_due(&[], 90 * day, at(900)));
    }
}
