//! Settings whose structs belong to other crates, where webhooks and tenants use them too.

use redrive_core::{delivery::retry::RetryConfig, protection::breaker::BreakerConfig, webhook::caps::Caps};

use super::settings::foreign_section;

foreign_section! { RetryConfig {
    /// Delay before each attempt, the first included; numbers are seconds. About three days, so that deliveries
    /// survive an outage of a weekend.
    ///
    /// Default: `[0, "5s", "5m", "30m", "2h", "5h", "10h", "14h", "20h", "24h"]`
    schedule,
    /// First delay of exponential backoff, which replaces the schedule as soon as this, `retry.backoff_multiplier`
    /// or `retry.max_attempts` is set.
    ///
    /// Default: 30000 for exponential backoff
    base_delay_ms,
    /// Factor of each further delay of exponential backoff.
    ///
    /// Default: 2 for exponential backoff
    backoff_multiplier,
    /// Total number of attempts of exponential backoff.
    ///
    /// Default: 10 for exponential backoff
    max_attempts,
    /// The longest exponential delay, and the longest `Retry-After` that is honoured: a day.
    ///
    /// Default: 86400000
    max_delay_ms,
    /// Share by which each delay is lengthened or shortened at random, so that retries do not come in waves.
    ///
    /// Default: 0.1
    jitter,
    /// Timeout of a response.
    ///
    /// Default: 30000
    timeout_ms,
    /// Factor of the timeout from one attempt to the next, up to three times the first.
    ///
    /// Default: 1
    timeout_growth_factor,
    /// `all` retries every response that is not 2xx.
    ///
    /// Default: `default`
    retry_on,
    /// Responses that end a delivery immediately, since another attempt would not change them.
    ///
    /// Default: `[400, 401, 403, 404, 410, 413, 414, 415, 451]`
    permanent_status_codes,
    /// Age at which a delivery is dead in any case, so that no delivery waits forever.
    ///
    /// Default: `5d`
    give_up_after,
} }

foreign_section! { BreakerConfig {
    /// Whether a webhook's circuit opens automatically when its endpoint fails, so that Redrive does not overload
    /// an endpoint that is down.
    ///
    /// Default: `true`
    enabled,
    /// Length of the window in which attempts are counted.
    ///
    /// Default: 60000
    window_size_ms,
    /// With fewer attempts in the window a circuit does not open: a few failures are no outage.
    ///
    /// Default: 20
    minimum_throughput,
    /// A circuit opens when at least this share of the attempts in the window failed.
    ///
    /// Default: 60
    error_threshold_percentage,
    /// Time for which a circuit stays open; doubled at each failed recovery, up to a day.
    ///
    /// Default: 30000
    sleep_window_ms,
    /// Number of probes that test whether an endpoint has recovered.
    ///
    /// Default: 5
    half_open_max_calls,
    /// Share of probes that must succeed for a circuit to close.
    ///
    /// Default: 0.6
    half_open_success_threshold,
} }

foreign_section! { Caps {
    /// The highest `max_in_flight` that a webhook may have; see [caps](#caps). 1 to 1000.
    max_in_flight,
    /// The highest rate limit that a webhook may have, and the rate limit of webhooks without one. 1 to 6000000.
    requests_per_minute,
    /// The highest burst that a webhook may have. 1 to 1000000.
    burst,
    /// The most attempts of one delivery. 1 to 50.
    max_attempts,
    /// The shortest delay between two attempts of one delivery; at most 1h.
    min_retry_delay,
    /// The longest timeout of one attempt in milliseconds, growth included. 100 to 360000.
    timeout_ms,
    /// Maximum number of webhooks of one tenant, regardless of its quota. 1 to 1000000.
    webhooks_per_tenant,
} }
