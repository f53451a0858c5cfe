//! Health of a tenant in the last hour, its status, and the orders in which tenants are listed by it.

use std::cmp::Ordering;

/// Success rate below which a tenant is failing.
const FAILING_BELOW: f64 = 0.9;
/// Success rate below which a tenant is degraded.
const DEGRADED_BELOW: f64 = 0.99;

/// Health of a tenant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TenantHealth {
    /// Deliveries that ended in the last hour.
    pub deliveries: u64,
    /// Attempts in the last hour.
    pub attempts: u64,
    /// Successful attempts in the last hour.
    pub successes: u64,
    /// Waiting deliveries, up to the counting limit.
    pub backlog: u64,
    /// Circuits that are open or half-open, without those that were forced open.
    pub open_circuits: u64,
    /// Dead letters, up to the counting limit.
    pub dead_letters: u64,
}

/// Status of a tenant, the worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TenantStatus {
    /// Fewer than 90 % of the attempts succeeded.
    Failing,
    /// Fewer than 99 % of the attempts succeeded, or a circuit is open.
    Degraded,
    /// Attempts succeed.
    Healthy,
    /// No attempts in the last hour, and nothing waits.
    Idle,
}

impl TenantStatus {
    /// Every status, the worst first.
    pub const ALL: [Self; 4] = [Self::Failing, Self::Degraded, Self::Healthy, Self::Idle];

    /// Returns the name used in all interfaces.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Failing => "failing",
            Self::Degraded => "degraded",
            Self::Healthy => "healthy",
            Self::Idle => "idle",
        }
    }
}

impl TenantHealth {
    /// Returns the ratio of successful attempts, from 0 to 1, or `None` without attempts.
    pub fn success_rate(&self) -> Option<f64> {
        (self.attempts > 0).then(|| self.successes as f64 / self.attempts as f64)
    }

    /// Returns the status.
    pub fn status(&self) -> TenantStatus {
        match self.success_rate() {
            Some(rate) if rate < FAILING_BELOW => TenantStatus::Failing,
            Some(rate) if rate < DEGRADED_BELOW => TenantStatus::Degraded,
            _ if self.open_circuits > 0 => TenantStatus::Degraded,
            None if self.backlog == 0 => TenantStatus::Idle,
            _ => TenantStatus::Healthy,
        }
    }
}

/// Field by which tenants are sorted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TenantSort {
    /// Id.
    Id,
    /// Display name, or the id of a tenant without one.
    Name,
    /// Status.
    Status,
    /// Deliveries in the last hour.
    Deliveries,
    /// Success rate in the last hour. Tenants without attempts come last.
    SuccessRate,
    /// Backlog.
    Backlog,
    /// Open circuits.
    OpenCircuits,
    /// Dead letters.
    DeadLetters,
}

impl TenantSort {
    /// Every field.
    pub const ALL: [Self; 8] = [
        Self::Id,
        Self::Name,
        Self::Status,
        Self::Deliveries,
        Self::SuccessRate,
        Self::Backlog,
        Self::OpenCircuits,
        Self::DeadLetters,
    ];

    /// Returns the name used in all interfaces.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Id => "id",
            Self::Name => "name",
            Self::Status => "status",
            Self::Deliveries => "deliveries",
            Self::SuccessRate => "success_rate",
            Self::Backlog => "backlog",
            Self::OpenCircuits => "open_circuits",
            Self::DeadLetters => "dead_letters",
        }
    }

    /// Parses a name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|sort| sort.name() == name)
    }

    /// Returns whether the order starts with the largest value unless another one is requested: names are listed from
    /// A to Z, and figures with what needs attention first.
    pub const fn is_descending_by_default(self) -> bool {
        matches!(self, Self::Deliveries | Self::Backlog | Self::OpenCircuits | Self::DeadLetters)
    }

    /// Compares two tenants, each given by its id, name and health. Equal ones are ordered by id.
    pub fn compare(self, descending: bool, a: TenantKey<'_>, b: TenantKey<'_>) -> Ordering {
        let directed = |order: Ordering| if descending { order.reverse() } else { order };
        let by_value = match self {
            Self::Id => return directed(a.id.cmp(b.id)),
            Self::Name => directed(a.sort_name().cmp(&b.sort_name())),
            Self::Status => directed(a.health.status().cmp(&b.health.status())),
            Self::Deliveries => directed(a.health.deliveries.cmp(&b.health.deliveries)),
            Self::SuccessRate => match (a.health.success_rate(), b.health.success_rate()) {
                (Some(a), Some(b)) => directed(a.total_cmp(&b)),
                (a, b) => b.is_some().cmp(&a.is_some()),
            },
            Self::Backlog => directed(a.health.backlog.cmp(&b.health.backlog)),
            Self::OpenCircuits => directed(a.health.open_circuits.cmp(&b.health.open_circuits)),
            Self::DeadLetters => directed(a.health.dead_letters.cmp(&b.health.dead_letters)),
        };
        by_value.then_with(|| a.id.cmp(b.id))
    }
}

/// What tenants are sorted by.
#[derive(Clone, Copy, Debug)]
pub struct TenantKey<'a> {
    /// Id.
    pub id: &'a str,
    /// Display name.
    pub name: Option<&'a str>,
    /// Health.
    pub health: &'a TenantHealth,
}

impl TenantKey<'_> {
    fn sort_name(&self) -> String {
        self.name.unwrap_or(self.id).to_lowercase()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn health(attempts: u64, successes: u64) -> TenantHealth {
        TenantHealth { attempts, successes, ..TenantHealth::default() }
    }

    #[test]
    fn status_follows_success_rate_and_circuits() {
        for (health, status) in [
            (health(0, 0), TenantStatus::Idle),
            (TenantHealth { backlog: 1, ..health(0, 0) }, TenantStatus::Healthy),
            (health(100, 100), TenantStatus::Healthy),
            (health(100, 99), TenantStatus::Healthy),
            (health(100, 98), TenantStatus::Degraded),
            (health(100, 90), TenantStatus::Degraded),
            (health(100, 89), TenantStatus::Failing),
            (TenantHealth { open_circuits: 1, ..health(100, 100) }, TenantStatus::Degraded),
            (TenantHealth { open_circuits: 1, ..health(0, 0) }, TenantStatus::Degraded),
            // Old dead letters do not make a tenant unhealthy.
            (TenantHealth { dead_letters: 9, ..health(1, 1) }, TenantStatus::Healthy),
        ] {
            assert_eq!(health.status(), status, "{health:?}");
        }
        assert!(TenantStatus::ALL.is_sorted());
    }

    /// Returns the ids in a sort order.
    fn sorted(sort: TenantSort, descending: bool) -> String {
        let tenants = [
            ("a", Some("Zeta"), TenantHealth { deliveries: 5, dead_letters: 1, ..health(10, 5) }),
            ("b", None, TenantHealth { backlog: 3, ..health(0, 0) }),
            ("c", Some("alpha"), TenantHealth { deliveries: 9, open_circuits: 2, ..health(10, 10) }),
            ("d", Some("Beta"), health(0, 0)),
        ];
        let mut ids: Vec<_> = tenants.iter().collect();
        ids.sort_by(|a, b| {
            let (a, b) = (
                TenantKey { id: a.0, name: a.1, health: &a.2 },
                TenantKey { id: b.0, name: b.1, health: &b.2 },
            );
            sort.compare(descending, a, b)
        });
        ids.iter().map(|one| one.0).collect()
    }

    #[test]
    fn tenants_are_sorted_by_each_field() {
        for (sort, ascending, descending) in [
            (TenantSort::Id, "abcd", "dcba"),
            (TenantSort::Name, "cbda", "adbc"),
            (TenantSort::Status, "acbd", "dbca"),
            (TenantSort::Deliveries, "bdac", "cabd"),
            (TenantSort::SuccessRate, "acbd", "cabd"),
            (TenantSort::Backlog, "acdb", "bacd"),
            (TenantSort::OpenCircuits, "abdc", "cabd"),
            (TenantSort::DeadLetters, "bcda", "abcd"),
        ] {
            assert_eq!(
                (sorted(sort, false), sorted(sort, true)),
                (ascending.into(), descending.into()),
                "{sort:?}"
            );
            assert_eq!(TenantSort::parse(sort.name()), Some(sort));
        }
        assert_eq!(TenantSort::parse("size"), None);
    }
}
