//! Assesses the state of an installation: which findings need an operator's attention, and what to do about each.

use std::time::Duration;

use serde::Serialize;

/// Number of waiting deliveries above which the status is critical.
pub const QUEUE_DEPTH_CRITICAL: u64 = 10_000;
/// Lag of the oldest due delivery above which the the workers cannot keep up.
pub const LAG_WARNING: Duration = Duration::from_secs(60);
/// Number of dead letters above which a warning is reported.
pub const DEAD_LETTERS_WARNING: u64 = 1_000;
/// Percentage of a node's slots in use above which capacity is low.
pub const SLOT_USAGE_WARNING_PERCENT: usize = 80;

/// Severity of a finding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum Level {
    /// No action needed.
    #[default]
    Ok,
    /// Needs attention, not urgently.
    Warning,
    /// Needs attention immediately.
    Critical,
}

impl Level {
    /// Returns the name used in all interfaces.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warning => "warning",
            Self::Critical => "critical",
        }
    }
}

/// Observed state of an installation. Values that could not be determined are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StatusSnapshot {
    /// Reason why the store accepts no writes; `None` if it accepts them.
    pub store_down: Option<String>,
    /// Reason why a crash of the database server can lose acknowledged events; `None` if it cannot.
    pub durability_risk: Option<String>,
    /// Whether Redis responds; `None` if none is configured.
    pub redis: Option<bool>,
    /// Whether the broker is available; `None` if none is configured.
    pub broker: Option<bool>,
    /// Whether emails to owners are being sent; `None` if email is not configured.
    pub email: Option<bool>,
    /// Size of an unconfirmed clock jump in milliseconds; `None` if there was none.
    pub clock_jump_ms: Option<i64>,
    /// Background services of the queried node that failed and wait for their restart.
    pub services_down: Vec<ServiceDown>,
    /// Whether the queried node is shutting down.
    pub draining: bool,
    /// Whether the store did not return its counts within the timeout.
    pub uncounted: bool,
    /// Number of deliveries waiting in the store.
    pub waiting: Option<u64>,
    /// Pools that have due deliveries and no live worker.
    pub unserved: Vec<String>,
    /// Time since the oldest overdue delivery of a served pool became due.
    pub lag: Option<Duration>,
    /// Requests in flight on the queried node, and their limit.
    pub slots: (usize, usize),
    /// Number of open circuits, and of those open for over an hour.
    pub open: (usize, usize),
    /// Number of dead letters.
    pub dead: Option<u64>,
}

/// A background service that failed and waits for its restart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceDown {
    /// Name of the service.
    pub name: String,
    /// Whether the node delivers incorrectly, or not at all, without it.
    pub essential: bool,
    /// Why it failed.
    pub failure: String,
}

/// A condition that needs an operator's attention.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Finding {
    /// Severity.
    pub level: Level,
    /// Machine-readable name.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub code: &'static str,
    /// Description of the problem and of the remedy.
    pub message: String,
}

impl StatusSnapshot {
    /// Returns the findings, most severe first.
    pub fn findings(&self) -> Vec<Finding> {
        let mut findings = [self.dependency_findings(), self.workload_findings()].concat();
        findings.sort_by_key(|finding| std::cmp::Reverse(finding.level));
        findings
    }

    fn dependency_findings(&self) -> Vec<Finding> {
        let mut findings = Findings::default();
        if let Some(why) = &self.store_down {
            let message = format!(
                "the store is not accepting writes: {why}; publishing is refused until it accepts them"
            );
            findings.add(Level::Critical, "store_unavailable", message);
        }
        if let Some(risk) = &self.durability_risk {
            findings.add(Level::Warning, "unsafe_durability", risk.clone());
        }
        if self.uncounted && self.store_down.is_none() {
            let message = "the store did not count waiting and dead deliveries in time: retry, and check the load of the database";
            findings.add(Level::Warning, "counts_unavailable", message);
        }
        if self.redis == Some(false) {
            let message =
                "Redis is unavailable: nodes use their local fallback; see docs/operations/redis.md";
            findings.add(Level::Warning, "redis_unavailable", message);
        }
        if self.broker == Some(false) {
            let message = "RabbitMQ is unavailable: ready deliveries are claimed from the store; see docs/operations/rabbitmq.md";
            findings.add(Level::Warning, "rabbitmq_unavailable", message);
        }
        if self.email == Some(false) {
            let message = "notification emails cannot be sent: see the log for the cause, and test the fix with redrive test-email";
            findings.add(Level::Warning, "email_unavailable", message);
        }
        if let Some(jump) = self.clock_jump_ms {
            let message = format!(
                "the clock jumped by {:+} s: nothing expires or is deleted by the new time until it has held for an \
                 hour; correct the clock, or confirm the new time with redrive clock confirm",
                jump / 1000
            );
            findings.add(Level::Critical, "clock_jump", message);
        }
        for ServiceDown { name, essential, failure } in &self.services_down {
            let level = if *essential { Level::Critical } else { Level::Warning };
            let message = format!(
                "the background service {name} of this node failed and is being restarted: {failure}; if it keeps \
                 failing, report it with the node's log"
            );
            findings.add(level, "service_down", message);
        }
        if self.draining {
            findings.add(Level::Warning, "draining", "this node is shutting down");
        }
        findings.0
    }

    fn workload_findings(&self) -> Vec<Finding> {
        let mut findings = Findings::default();
        for pool in &self.unserved {
            let message =
                format!("no worker serves the pool \"{pool}\": start one with --role worker --pool {pool}");
            findings.add(Level::Critical, "pool_unserved", message);
        }
        if let Some(waiting) = self.waiting.filter(|waiting| *waiting > QUEUE_DEPTH_CRITICAL) {
            let message = format!("{waiting} deliveries are waiting: add workers, or check what blocks them");
            findings.add(Level::Critical, "queue_depth_high", message);
        }
        if let Some(lag) = self.lag.filter(|lag| *lag > LAG_WARNING) {
            let message =
                format!("deliveries have been due for {} s: the workers cannot keep up", lag.as_secs());
            findings.add(Level::Warning, "delivery_lag_high", message);
        }
        let (used, slots) = self.slots;
        if used * 100 > slots * SLOT_USAGE_WARNING_PERCENT {
            let message = format!(
                "{used} of {slots} sending slots are in use: raise delivery.max_in_flight, or add workers"
            );
            findings.add(Level::Warning, "slots_nearly_full", message);
        }
        if self.open.1 > 0 {
            let message = format!(
                "{} circuits have been open for over an hour: inform the owners of those webhooks",
                self.open.1
            );
            findings.add(Level::Warning, "circuits_open_over_1h", message);
        }
        if let Some(dead) = self.dead.filter(|dead| *dead > DEAD_LETTERS_WARNING) {
            let message =
                format!("{dead} dead letters: check their failure reasons, then resend or purge them");
            findings.add(Level::Warning, "dead_letters_high", message);
        }
        findings.0
    }
}

/// Returns the severity of the most severe finding.
pub fn max_level(findings: &[Finding]) -> Level {
    findings.iter().map(|finding| finding.level).max().unwrap_or_default()
}

#[derive(Default)]
struct Findings(Vec<Finding>);

impl Findings {
    fn add(&mut self, level: Level, code: &'static str, message: impl Into<String>) {
        self.0.push(Finding { level, code, message: message.into() });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn codes(observed: &StatusSnapshot) -> Vec<(Level, &'static str)> {
        observed.findings().iter().map(|finding| (finding.level, finding.code)).collect()
    }

    fn down(essential: bool) -> ServiceDown {
        ServiceDown { name: "scheduler".into(), essential, failure: "panic: out of cheese".into() }
    }

    fn well() -> StatusSnapshot {
        StatusSnapshot {
            waiting: Some(QUEUE_DEPTH_CRITICAL),
            lag: Some(LAG_WARNING),
            slots: (80, 100),
            open: (3, 0),
            dead: Some(DEAD_LETTERS_WARNING),
            redis: Some(true),
            broker: Some(true),
            email: Some(true),
            ..StatusSnapshot::default()
        }
    }

    #[test]
    fn values_at_their_limits_produce_no_findings() {
        assert_eq!(codes(&well()), []);
        assert_eq!(max_level(&well().findings()), Level::Ok);
        assert_eq!(codes(&StatusSnapshot::default()), [], "unknown values cause no finding");
        let unavailable =
            StatusSnapshot { store_down: Some("connection refused".into()), uncounted: true, ..well() };
        assert_eq!(
            codes(&unavailable),
            [(Level::Critical, "store_unavailable")],
            "the cause is reported once"
        );
    }

    #[test]
    fn each_exceeded_limit_produces_one_finding() {
        let cases = [
            (
                StatusSnapshot { store_down: Some("connection refused".into()), ..well() },
                (Level::Critical, "store_unavailable"),
            ),
            (StatusSnapshot { uncounted: true, ..well() }, (Level::Warning, "counts_unavailable")),
            (
                StatusSnapshot { durability_risk: Some("fsync is off".into()), ..well() },
                (Level::Warning, "unsafe_durability"),
            ),
            (StatusSnapshot { redis: Some(false), ..well() }, (Level::Warning, "redis_unavailable")),
            (StatusSnapshot { broker: Some(false), ..well() }, (Level::Warning, "rabbitmq_unavailable")),
            (StatusSnapshot { email: Some(false), ..well() }, (Level::Warning, "email_unavailable")),
            (StatusSnapshot { clock_jump_ms: Some(-3_600_000), ..well() }, (Level::Critical, "clock_jump")),
            (StatusSnapshot { draining: true, ..well() }, (Level::Warning, "draining")),
            (StatusSnapshot { services_down: vec![down(true)], ..well() }, (Level::Critical, "service_down")),
            (StatusSnapshot { services_down: vec![down(false)], ..well() }, (Level::Warning, "service_down")),
            (StatusSnapshot { unserved: vec!["gold".into()], ..well() }, (Level::Critical, "pool_unserved")),
            (
                StatusSnapshot { waiting: Some(QUEUE_DEPTH_CRITICAL + 1), ..well() },
                (Level::Critical, "queue_depth_high"),
            ),
            (
                StatusSnapshot { lag: Some(LAG_WARNING + Duration::from_millis(1)), ..well() },
                (Level::Warning, "delivery_lag_high"),
            ),
            (StatusSnapshot { slots: (81, 100), ..well() }, (Level::Warning, "slots_nearly_full")),
            (StatusSnapshot { open: (3, 1), ..well() }, (Level::Warning, "circuits_open_over_1h")),
            (
                StatusSnapshot { dead: Some(DEAD_LETTERS_WARNING + 1), ..well() },
                (Level::Warning, "dead_letters_high"),
            ),
        ];
        for (observed, expected) in cases {
            assert_eq!(codes(&observed), [expected]);
            assert_eq!(max_level(&observed.findings()), expected.0);
        }
    }

    #[test]
    fn findings_are_sorted_by_severity() {
        let both = StatusSnapshot { redis: Some(false), waiting: Some(QUEUE_DEPTH_CRITICAL + 1), ..well() };
        assert_eq!(
            codes(&both),
            [(Level::Critical, "queue_depth_high"), (Level::Warning, "redis_unavailable")]
        );
    }
}
