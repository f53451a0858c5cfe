//! How an installation is doing, judged: what of all that can be seen needs somebody, and what to do about it.

use std::time::Duration;

use serde::Serialize;

/// More waiting than this needs somebody at once.
pub const DEEP: u64 = 10_000;
/// Due for longer than this, and whoever should send does not keep up.
pub const LATE: Duration = Duration::from_secs(60);
/// More dead letters than this are worth a look.
pub const MANY_DEAD: u64 = 1_000;
/// A larger part of a node's slots than this, in percent, leaves little room.
pub const FULL_PERCENT: usize = 80;

/// How urgent it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum Level {
    /// All is well.
    #[default]
    Ok,
    /// Somebody should look when there is time.
    Warning,
    /// Somebody should look now.
    Critical,
}

impl Level {
    /// The name used everywhere.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warning => "warning",
            Self::Critical => "critical",
        }
    }
}

/// What was seen of an installation. What could not be found out is left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observed {
    /// Why the store takes no writes, if it takes none.
    pub store_down: Option<String>,
    /// Why a crash of the database server can lose acknowledged events, if it can.
    pub durability_risk: Option<String>,
    /// Whether Redis answers; none where there is none.
    pub redis: Option<bool>,
    /// Whether the broker is there; none where there is none.
    pub broker: Option<bool>,
    /// Whether mails to owners go out; none where none are sent.
    pub mail: Option<bool>,
    /// By how many milliseconds the clock jumped without being confirmed, if it did.
    pub clock_jump_ms: Option<i64>,
    /// Whether the node that was asked is shutting down.
    pub draining: bool,
    /// Whether the store did not say in time how much there is.
    pub uncounted: bool,
    /// Deliveries that wait in the store.
    pub waiting: Option<u64>,
    /// Pools that nobody sends for and that have something due.
    pub unserved: Vec<String>,
    /// For how long the longest overdue delivery of a pool that somebody sends for has been due.
    pub lag: Option<Duration>,
    /// Requests under way on the node that was asked, and how many there may be.
    pub slots: (usize, usize),
    /// Circuits that are open, and those that have been for over an hour.
    pub open: (usize, usize),
    /// Dead letters.
    pub dead: Option<u64>,
}

/// Something that needs somebody.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Finding {
    /// How urgent it is.
    pub level: Level,
    /// A name for programs.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub code: &'static str,
    /// What is wrong, and what to do.
    pub message: String,
}

impl Observed {
    /// What needs somebody, the most urgent first.
    pub fn findings(&self) -> Vec<Finding> {
        let mut findings = [self.of_parts(), self.of_work()].concat();
        findings.sort_by_key(|finding| std::cmp::Reverse(finding.level));
        findings
    }

    fn of_parts(&self) -> Vec<Finding> {
        let mut findings = Findings::default();
        if let Some(why) = &self.store_down {
            let message = format!("the store takes no writes: {why}; publishing is refused until it does");
            findings.add(Level::Critical, "store_down", message);
        }
        if let Some(risk) = &self.durability_risk {
            findings.add(Level::Warning, "unsafe_durability", risk.clone());
        }
        if self.uncounted && self.store_down.is_none() {
            let message = "the store did not say in time what waits and what is dead: ask again, and see how busy it is";
            findings.add(Level::Warning, "uncounted", message);
        }
        if self.redis == Some(false) {
            let message = "Redis does not answer: nodes go by what they know; see docs/operations/redis.md";
            findings.add(Level::Warning, "redis_down", message);
        }
        if self.broker == Some(false) {
            let message =
                "RabbitMQ is away: ready work goes through the store; see docs/operations/rabbitmq.md";
            findings.add(Level::Warning, "rabbitmq_down", message);
        }
        if self.mail == Some(false) {
            let message = "mails to owners do not go out: the log says why; redrive check-mail finds out whether they do again";
            findings.add(Level::Warning, "mail_down", message);
        }
        if let Some(jump) = self.clock_jump_ms {
            let message = format!(
                "the clock jumped by {:+} s: nothing expires or is deleted by the new time until it has held for an \
                 hour; correct the clock, or confirm the new time with redrive clock confirm",
                jump / 1000
            );
            findings.add(Level::Critical, "clock_jump", message);
        }
        if self.draining {
            findings.add(Level::Warning, "draining", "the node that was asked is shutting down");
        }
        findings.0
    }

    fn of_work(&self) -> Vec<Finding> {
        let mut findings = Findings::default();
        for pool in &self.unserved {
            let message =
                format!("no node sends for the pool \"{pool}\": start one with --role worker --pool {pool}");
            findings.add(Level::Critical, "pool_unserved", message);
        }
        if let Some(waiting) = self.waiting.filter(|waiting| *waiting > DEEP) {
            let message = format!("{waiting} deliveries wait: add workers, or find what holds them up");
            findings.add(Level::Critical, "queue_deep", message);
        }
        if let Some(lag) = self.lag.filter(|lag| *lag > LATE) {
            let message = format!("deliveries have been due for {} s: workers do not keep up", lag.as_secs());
            findings.add(Level::Warning, "late", message);
        }
        let (used, slots) = self.slots;
        if used * 100 > slots * FULL_PERCENT {
            let message = format!(
                "{used} of {slots} sending slots are taken: raise delivery.max_in_flight, or add workers"
            );
            findings.add(Level::Warning, "slots_full", message);
        }
        if self.open.1 > 0 {
            let message =
                format!("{} circuits have been open for over an hour: their owners should know", self.open.1);
            findings.add(Level::Warning, "circuits_open_long", message);
        }
        if let Some(dead) = self.dead.filter(|dead| *dead > MANY_DEAD) {
            let message = format!("{dead} dead letters: see why they died, then redrive or discard them");
            findings.add(Level::Warning, "many_dead", message);
        }
        findings.0
    }
}

/// How urgent the most urgent is.
pub fn worst(findings: &[Finding]) -> Level {
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

    fn codes(observed: &Observed) -> Vec<(Level, &'static str)> {
        observed.findings().iter().map(|finding| (finding.level, finding.code)).collect()
    }

    fn well() -> Observed {
        Observed {
            waiting: Some(DEEP),
            lag: Some(LATE),
            slots: (80, 100),
            open: (3, 0),
            dead: Some(MANY_DEAD),
            redis: Some(true),
            broker: Some(true),
            mail: Some(true),
            ..Observed::default()
        }
    }

    #[test]
    fn what_is_just_within_its_bounds_is_well() {
        assert_eq!(codes(&well()), []);
        assert_eq!(worst(&well().findings()), Level::Ok);
        assert_eq!(codes(&Observed::default()), [], "what cannot be seen is not judged");
        let away = Observed { store_down: Some("away".into()), uncounted: true, ..well() };
        assert_eq!(codes(&away), [(Level::Critical, "store_down")], "and why is told once");
    }

    #[test]
    fn each_thing_beyond_its_bounds_is_told_by_itself() {
        let cases = [
            (Observed { store_down: Some("away".into()), ..well() }, (Level::Critical, "store_down")),
            (Observed { uncounted: true, ..well() }, (Level::Warning, "uncounted")),
            (
                Observed { durability_risk: Some("fsync is off".into()), ..well() },
                (Level::Warning, "unsafe_durability"),
            ),
            (Observed { redis: Some(false), ..well() }, (Level::Warning, "redis_down")),
            (Observed { broker: Some(false), ..well() }, (Level::Warning, "rabbitmq_down")),
            (Observed { mail: Some(false), ..well() }, (Level::Warning, "mail_down")),
            (Observed { clock_jump_ms: Some(-3_600_000), ..well() }, (Level::Critical, "clock_jump")),
            (Observed { draining: true, ..well() }, (Level::Warning, "draining")),
            (Observed { unserved: vec!["gold".into()], ..well() }, (Level::Critical, "pool_unserved")),
            (Observed { waiting: Some(DEEP + 1), ..well() }, (Level::Critical, "queue_deep")),
            (Observed { lag: Some(LATE + Duration::from_millis(1)), ..well() }, (Level::Warning, "late")),
            (Observed { slots: (81, 100), ..well() }, (Level::Warning, "slots_full")),
            (Observed { open: (3, 1), ..well() }, (Level::Warning, "circuits_open_long")),
            (Observed { dead: Some(MANY_DEAD + 1), ..well() }, (Level::Warning, "many_dead")),
        ];
        for (observed, expected) in cases {
            assert_eq!(codes(&observed), [expected]);
            assert_eq!(worst(&observed.findings()), expected.0);
        }
    }

    #[test]
    fn the_most_urgent_comes_first() {
        let both = Observed { redis: Some(false), waiting: Some(DEEP + 1), ..well() };
        assert_eq!(codes(&both), [(Level::Critical, "queue_deep"), (Level::Warning, "redis_down")]);
    }
}
