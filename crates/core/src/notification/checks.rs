//! What is found out by looking, not by something that happens: names that are not found, secrets that are old.

use std::time::Duration;

use crate::{
    delivery::response::FailureCategory, security::signature::LiveSecret, statistics::rollup::Rollup,
    time::Time,
};

/// How long a webhook's lookups are looked at together.
pub const DNS_WINDOW: Duration = Duration::from_secs(600);
/// Fewer attempts tell nothing.
const DNS_LEAST: u32 = 10;
/// More than this part of them, in percent, is too many.
const DNS_PERCENT: u64 = 80;

/// Whether the name of a webhook's host could not be looked up for too many of these attempts.
pub fn dns_fails(window: &Rollup) -> bool {
    let failed = dns_failures(window);
    window.attempts >= DNS_LEAST && u64::from(failed) * 100 > u64::from(window.attempts) * DNS_PERCENT
}

/// How many attempts failed because the name could not be looked up.
pub fn dns_failures(window: &Rollup) -> u32 {
    window.by_category[FailureCategory::Dns as usize]
}

/// Whether a webhook's newest secret is so old that it should be changed. Secrets are newest first.
pub fn secret_is_due(secrets: &[LiveSecret], rotate_after: Duration, now: Time) -> bool {
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
    fn names_fail_beyond_four_fifths_of_ten_attempts_or_more() {
        assert!(!dns_fails(&window(0, 0)) && !dns_fails(&window(9, 9)), "too few");
        assert!(dns_fails(&window(10, 10)) && dns_fails(&window(10, 9)));
        assert!(!dns_fails(&window(10, 8)), "just four fifths");
        assert!(dns_fails(&window(1_000, 801)) && !dns_fails(&window(1_000, 800)));
        let mut others = window(10, 0);
        others.by_category[FailureCategory::Timeout as usize] = 10;
        assert!(!dns_fails(&others), "other failures are none of these");
    }

    #[test]
    fn a_secret_is_due_by_the_age_of_the_newest() {
        let day = Duration::from_secs(86_400);
        let made = |days: u32| LiveSecret {
            secret: Secret::from_bytes(&[1; 32]),
            created_at: Time::from_secs(days * 86_400),
            expires_at: None,
        };
        let at = |days: u32| Time::from_secs(days * 86_400);
        assert!(!secret_is_due(&[made(0)], 90 * day, at(89)));
        assert!(secret_is_due(&[made(0)], 90 * day, at(90)));
        assert!(!secret_is_due(&[made(60), made(0)], 90 * day, at(120)), "it was changed since");
        assert!(!secret_is_due(&[], 90 * day, at(900)));
    }
}
