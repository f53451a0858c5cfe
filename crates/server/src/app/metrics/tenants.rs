//! Metrics that name tenants and webhooks: the worst ones of the whole store, and the sums of all others.
//!
//! Every value is a gauge over a fixed window. A counter whose series comes and goes with its rank would be read as a
//! restart.

use std::{hash::Hash, sync::Arc, time::Duration};

use parking_lot::Mutex;
use prometheus_client::{
    metrics::{family::Family, gauge::ConstGauge},
    registry::Registry,
};
use redrive_core::{
    TenantId, Time,
    protection::breaker::CircuitState,
    statistics::{
        ranking::{
            MIN_SIGNIFICANT_ATTEMPTS, NamedEntries, STICKY_FACTOR, TOLERATED_FAILURE_PERCENT, unnamed_count,
        },
        traffic::Resolution,
    },
};
use redrive_engine::CircuitCounts;
use redrive_store::{
    AttemptSums, Ranking, StoreError, TrafficRankingRequest, UnclosedCircuit, WebhookOfTenant,
};

use super::{Exposition, cached_query::CachedQuery, gauge};
use crate::app::App;

/// Label value for everything that is not named.
const OTHER: &str = "other";
/// Window of attempts. It ends now, and begins with a minute.
const ATTEMPTS_WINDOW: Duration = Duration::from_secs(9 * 60);
/// Window of dead deliveries.
const DEAD_WINDOW: Duration = Duration::from_secs(59 * 60);
/// Age after which values are no longer reported.
const MAX_AGE: Duration = Duration::from_secs(10 * 60);
/// Time that a scrape waits for newer values. Longer than for counts: this page is scraped less often, and its values would
/// otherwise always be those of the scrape before.
const SCRAPE_WAIT: Duration = Duration::from_secs(1);

type TenantLabels = [(&'static str, String); 1];
type WebhookLabels = [(&'static str, String); 2];
type CircuitLabels = [(&'static str, String); 3];
type Gauge = prometheus_client::metrics::gauge::Gauge;

/// Computes the values, and remembers what is named.
pub(crate) struct TenantMetrics {
    query: CachedQuery<Arc<TenantValues>>,
    named: Mutex<NamedLists>,
}

impl Default for TenantMetrics {
    fn default() -> Self {
        Self { query: CachedQuery::new(MAX_AGE, SCRAPE_WAIT), named: Mutex::default() }
    }
}

/// What is named in each list.
#[derive(Default)]
struct NamedLists {
    dlq_tenants: NamedEntries<TenantId>,
    dlq_webhooks: NamedEntries<WebhookOfTenant>,
    dead: NamedEntries<TenantId>,
    tenants: NamedEntries<TenantId>,
    webhooks: NamedEntries<WebhookOfTenant>,
}

/// Values of the whole store.
struct TenantValues {
    dlq_tenants: List<TenantId, u64>,
    dlq_webhooks: List<WebhookOfTenant, u64>,
    dead: List<TenantId, u64>,
    tenants: List<TenantId, AttemptSums>,
    webhooks: List<WebhookOfTenant, AttemptSums>,
    circuits: Vec<UnclosedCircuit>,
    circuit_counts: CircuitCounts,
}

/// Named entries, the sum of the others, and how many of the others meet the condition of the ranking.
struct List<K, V> {
    named: Vec<(K, V)>,
    other: V,
    unnamed: u64,
}

impl<K: Clone + Eq + Hash, V: Copy> List<K, V> {
    fn new(ranking: Ranking<K, V>, named: &mut NamedEntries<K>, max: usize, without: fn(V, V) -> V) -> Self {
        let Ranking { top, total, count } = ranking;
        let selected = named.select(top, max);
        let unnamed = unnamed_count(count, selected.iter().map(|(place, ..)| *place));
        let other = selected.iter().fold(total, |left, (_, _, value)| without(left, *value));
        Self { named: selected.into_iter().map(|(_, key, value)| (key, value)).collect(), other, unnamed }
    }
}

fn attempts_without(all: AttemptSums, one: AttemptSums) -> AttemptSums {
    AttemptSums {
        attempts: all.attempts.saturating_sub(one.attempts),
        failures: all.failures.saturating_sub(one.failures),
    }
}

impl App {
    /// Returns the metrics that name tenants and webhooks. Values are omitted while the store does not respond.
    pub async fn tenant_metrics_text(self: &Arc<Self>, exposition: Exposition) -> String {
        let app = self.clone();
        let values = self.tenant_metrics.query.get(async move { app.query_tenants().await }).await;
        let mut registry = Registry::default();
        if let Some(values) = values {
            let age = ConstGauge::new(values.age().as_secs_f64());
            registry.register("redrive_tenant_metrics_age_seconds", "Age of the values of this page", age);
            let duration = ConstGauge::new(values.duration.as_secs_f64());
            let help = "Time that computing the values of this page took";
            registry.register("redrive_tenant_metrics_duration_seconds", help, duration);
            values.value.register(&mut registry);
        }
        exposition.encode(&[&registry])
    }

    async fn query_tenants(&self) -> Result<Arc<TenantValues>, StoreError> {
        let now = self.engine.clock().now();
        let max = self.rules.max_named_values;
        let wide = max.saturating_mul(STICKY_FACTOR);
        let from = |window: Duration| Resolution::Minute.start(now.saturating_sub(window));
        let request = TrafficRankingRequest {
            attempts_from: from(ATTEMPTS_WINDOW),
            dead_from: from(DEAD_WINDOW),
            tolerated_failure_percent: TOLERATED_FAILURE_PERCENT,
            min_attempts: MIN_SIGNIFICANT_ATTEMPTS,
            max: wide,
        };
        let letters = self.store().rank_dead_letters(wide).await?;
        let traffic = self.store().rank_traffic(request).await?;
        let circuits = self.store().longest_unclosed_circuits(max).await?;
        let named = &mut *self.tenant_metrics.named.lock();
        Ok(Arc::new(TenantValues {
            dlq_tenants: List::new(letters.tenants, &mut named.dlq_tenants, max, u64::saturating_sub),
            dlq_webhooks: List::new(letters.webhooks, &mut named.dlq_webhooks, max, u64::saturating_sub),
            dead: List::new(traffic.dead, &mut named.dead, max, u64::saturating_sub),
            tenants: List::new(traffic.tenants, &mut named.tenants, max, attempts_without),
            webhooks: List::new(traffic.webhooks, &mut named.webhooks, max, attempts_without),
            circuits,
            circuit_counts: self.engine.circuits(),
        }))
    }
}

impl TenantValues {
    fn register(&self, registry: &mut Registry) {
        let help = "Dead letters of a tenant, of the whole store: aggregate with max, not sum";
        by_tenant(registry, "redrive_tenant_dlq_size", help, &self.dlq_tenants, |count| *count);
        let help = "Dead letters of a webhook, of the whole store: aggregate with max, not sum";
        by_webhook(registry, "redrive_webhook_dlq_size", help, &self.dlq_webhooks, |count| *count);
        let help = "Deliveries of a tenant marked dead in the last hour, redriven or not, of the whole store: aggregate \
                    with max, not sum";
        by_tenant(registry, "redrive_tenant_dlq_entries_1h", help, &self.dead, |count| *count);
        let help =
            "Attempts of a tenant in the last ten minutes, of the whole store: aggregate with max, not sum";
        by_tenant(registry, "redrive_tenant_attempts_10m", help, &self.tenants, |sums| sums.attempts);
        let help = "Failed attempts of a tenant in the last ten minutes, of the whole store: aggregate with max, not sum";
        by_tenant(registry, "redrive_tenant_failed_attempts_10m", help, &self.tenants, |sums| sums.failures);
        let help =
            "Attempts of a webhook in the last ten minutes, of the whole store: aggregate with max, not sum";
        by_webhook(registry, "redrive_webhook_attempts_10m", help, &self.webhooks, |sums| sums.attempts);
        let help = "Failed attempts of a webhook in the last ten minutes, of the whole store: aggregate with max, not sum";
        by_webhook(registry, "redrive_webhook_failed_attempts_10m", help, &self.webhooks, |sums| {
            sums.failures
        });
        let help = "Webhooks with a low success rate in the last ten minutes that this page does not name";
        gauge(registry, "redrive_webhooks_failing_unnamed", help, self.webhooks.unnamed);
        self.register_circuits(registry);
    }

    fn register_circuits(&self, registry: &mut Registry) {
        let states = Family::<CircuitLabels, Gauge>::default();
        let failing = Family::<WebhookLabels, Gauge>::default();
        let mut left = [
            (CircuitState::Open, self.circuit_counts.open.saturating_sub(self.circuit_counts.forced_open)),
            (CircuitState::HalfOpen, self.circuit_counts.half_open),
        ];
        for UnclosedCircuit { webhook, state, since } in &self.circuits {
            let [tenant, id] = webhook_labels(webhook);
            states.get_or_create(&[tenant.clone(), id.clone(), ("state", state.name().to_owned())]).set(1);
            failing.get_or_create(&[tenant, id]).set(unix_seconds(*since));
            if let Some((_, count)) = left.iter_mut().find(|(other, _)| other == state) {
                *count = count.saturating_sub(1);
            }
        }
        for (state, count) in left {
            let labels = [
                ("tenant", OTHER.to_owned()),
                ("webhook", OTHER.to_owned()),
                ("state", state.name().to_owned()),
            ];
            states.get_or_create(&labels).set(i64::try_from(count).unwrap_or(i64::MAX));
        }
        let help = "1 for a circuit that is neither closed nor forced; \"other\" counts those that are not named. Of the whole \
                    store: aggregate with max, not sum";
        registry.register("redrive_webhook_circuit_state", help, states);
        let help = "Time of the first failure since the last success of a webhook whose circuit is not closed; of the last \
                    transition of the circuit if there was none";
        registry.register("redrive_webhook_circuit_failing_since_timestamp_seconds", help, failing);
    }
}

fn unix_seconds(time: Time) -> i64 {
    time.millis().div_euclid(1_000)
}

fn webhook_labels(webhook: &WebhookOfTenant) -> WebhookLabels {
    [("tenant", webhook.tenant_id.to_string()), ("webhook", webhook.webhook_id.to_string())]
}

fn by_tenant<V>(
    registry: &mut Registry,
    name: &str,
    help: &str,
    list: &List<TenantId, V>,
    value: fn(&V) -> u64,
) {
    let family = Family::<TenantLabels, Gauge>::default();
    // A tenant that is called "other" is counted there too.
    let named = list.named.iter().map(|(tenant_id, of_tenant)| (tenant_id.to_string(), value(of_tenant)));
    for (tenant, count) in named.chain([(OTHER.to_owned(), value(&list.other))]) {
        add(&family.get_or_create(&[("tenant", tenant)]), count);
    }
    registry.register(name, help, family);
}

fn by_webhook<V>(
    registry: &mut Registry,
    name: &str,
    help: &str,
    list: &List<WebhookOfTenant, V>,
    value: fn(&V) -> u64,
) {
    let family = Family::<WebhookLabels, Gauge>::default();
    let named = list.named.iter().map(|(webhook, of_webhook)| (webhook_labels(webhook), value(of_webhook)));
    let other = ([("tenant", OTHER.to_owned()), ("webhook", OTHER.to_owned())], value(&list.other));
    for (labels, count) in named.chain([other]) {
        add(&family.get_or_create(&labels), count);
    }
    registry.register(name, help, family);
}

fn add(gauge: &Gauge, count: u64) {
    gauge.inc_by(i64::try_from(count).unwrap_or(i64::MAX));
}
