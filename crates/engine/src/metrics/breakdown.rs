//! Breakdowns of delivery metrics by tenant, webhook and event type, if configured. Each has a hard cap: further
//! values are counted together as `other`, so that no tenant can exhaust memory.

use std::{borrow::Borrow, collections::HashMap, fmt::Debug, hash::Hash};

use parking_lot::RwLock;
use prometheus_client::{
    encoding::{EncodeLabelSet, LabelSetEncoder},
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};
use redrive_core::{TenantId, WebhookId, delivery::outcome::Outcome};

/// Label value for everything beyond the cap.
const OVERFLOW_LABEL: &str = "other";

/// Optional breakdowns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BreakdownSettings {
    /// One series per tenant.
    pub by_tenant: bool,
    /// One series per webhook.
    pub by_webhook: bool,
    /// One series per event type.
    pub by_event_type: bool,
    /// Maximum number of tenants, of webhooks and of event types with their own series.
    pub max_values: usize,
}

/// Labels of a series: the breakdown value, and the result of the deliveries.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Labels {
    kind: &'static str,
    value: Box<str>,
    outcome: &'static str,
}

impl EncodeLabelSet for Labels {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> std::fmt::Result {
        [(self.kind, &*self.value), ("status", self.outcome)].encode(encoder)
    }
}

/// One breakdown with its cap.
struct CappedFamily<K> {
    kind: &'static str,
    max_values: usize,
    family: Family<Labels, Counter>,
    known: RwLock<HashMap<K, [Counter; 4]>>,
    other: [Counter; 4],
}

impl<K: Eq + Hash> CappedFamily<K> {
    fn new(kind: &'static str, name: &str, max: usize, registry: &mut Registry) -> Self {
        let family = Family::<Labels, Counter>::default();
        let help = format!(
            "Attempts and ended deliveries by {kind}; values after the first {max} are counted as {OVERFLOW_LABEL:?}"
        );
        registry.register(name, help, family.clone());
        let known = RwLock::default();
        Self { kind, max_values: max, other: new_counters(&family, kind, OVERFLOW_LABEL), family, known }
    }

    fn count<Q>(&self, key: &Q, outcome: &Outcome, count: u64)
    where
        K: Borrow<Q> + for<'a> From<&'a Q>,
        Q: Eq + Hash + ToString + ?Sized,
    {
        {
            let known = self.known.read();
            let counters = match known.get(key) {
                Some(counters) => Some(counters),
                None if known.len() >= self.max_values => Some(&self.other),
                None => None,
            };
            if let Some(counters) = counters {
                counters[outcome.index()].inc_by(count);
                return;
            }
        }
        let mut known = self.known.write();
        if !known.contains_key(key) && known.len() >= self.max_values {
            drop(known);
            self.other[outcome.index()].inc_by(count);
            return;
        }
        let counters = known
            .entry(K::from(key))
            .or_insert_with(|| new_counters(&self.family, self.kind, &key.to_string()));
        counters[outcome.index()].inc_by(count);
    }
}

fn new_counters(family: &Family<Labels, Counter>, kind: &'static str, value: &str) -> [Counter; 4] {
    Outcome::LABELS
        .map(|outcome| family.get_or_create(&Labels { kind, value: value.into(), outcome }).clone())
}

/// Webhook id as a map key that can be created from a reference, as strings can.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key(WebhookId);

impl Borrow<WebhookId> for Key {
    fn borrow(&self) -> &WebhookId {
        &self.0
    }
}

impl From<&WebhookId> for Key {
    fn from(id: &WebhookId) -> Self {
        Self(*id)
    }
}

/// All configured breakdowns.
pub(super) struct Breakdowns {
    tenants: Option<CappedFamily<Box<str>>>,
    webhooks: Option<CappedFamily<Key>>,
    event_types: Option<CappedFamily<Box<str>>>,
}

impl Breakdowns {
    /// Creates and registers the configured breakdowns. Returns `None` if none is configured.
    pub(super) fn new(series: BreakdownSettings, registry: &mut Registry) -> Option<Self> {
        let BreakdownSettings { by_tenant, by_webhook, by_event_type, max_values: max } = series;
        if !(by_tenant || by_webhook || by_event_type) {
            return None;
        }
        Some(Self {
            tenants: by_tenant
                .then(|| CappedFamily::new("tenant", "redrive_tenant_deliveries", max, registry)),
            webhooks: by_webhook
                .then(|| CappedFamily::new("webhook", "redrive_webhook_deliveries", max, registry)),
            event_types: by_event_type
                .then(|| CappedFamily::new("event_type", "redrive_event_type_deliveries", max, registry)),
        })
    }

    /// Counts `count` deliveries in each breakdown whose value is known.
    pub(super) fn count(
        &self,
        outcome: &Outcome,
        tenant_id: &TenantId,
        webhook_id: WebhookId,
        event_type: Option<&str>,
        count: u64,
    ) {
        if let Some(tenants) = &self.tenants {
            tenants.count(tenant_id.as_str(), outcome, count);
        }
        if let Some(webhooks) = &self.webhooks {
            webhooks.count(&webhook_id, outcome, count);
        }
        if let (Some(event_types), Some(event_type)) = (&self.event_types, event_type) {
            event_types.count(event_type, outcome, count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rendered(registry: &Registry) -> String {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, registry).unwrap();
        text
    }

    fn webhook(n: u32) -> WebhookId {
        let mut bytes = [0; 16];
        bytes[12..].copy_from_slice(&n.to_be_bytes());
        WebhookId::from_bytes(bytes)
    }

    #[test]
    fn no_breakdowns_without_configuration() {
        let mut registry = Registry::default();
        assert!(
            Breakdowns::new(
                BreakdownSettings { max_values: 100, ..BreakdownSettings::default() },
                &mut registry
            )
            .is_none()
        );
        assert_eq!(rendered(&registry), "# EOF\n");
    }

    #[test]
    fn values_beyond_cap_are_counted_as_other() {
        let mut registry = Registry::default();
        let series =
            BreakdownSettings { by_tenant: true, by_webhook: true, by_event_type: true, max_values: 2 };
        let by = Breakdowns::new(series, &mut registry).unwrap();
        for n in 0..1_000 {
            let tenant_id = TenantId::parse(&format!("t{n}")).unwrap();
            let event_type = format!("type.{n}");
            by.count(
                &Outcome::Dead(redrive_core::DeadReason::Expired),
                &tenant_id,
                webhook(n),
                Some(&event_type).filter(|_| n > 0).map(|x| &**x),
                3,
            );
        }
        by.count(&Outcome::Delivered, &TenantId::parse("t1").unwrap(), webhook(1), Some("type.1"), 1);
        let text = rendered(&registry);
        for line in [
            "redrive_tenant_deliveries_total{tenant=\"t1\",status=\"dead\"} 3",
            "redrive_tenant_deliveries_total{tenant=\"t1\",status=\"delivered\"} 1",
            "redrive_tenant_deliveries_total{tenant=\"other\",status=\"dead\"} 2994",
            "redrive_event_type_deliveries_total{event_type=\"type.2\",status=\"dead\"} 3",
            "redrive_event_type_deliveries_total{event_type=\"other\",status=\"dead\"} 2991",
            "redrive_webhook_deliveries_total{webhook=\"other\",status=\"dead\"} 2994",
        ] {
            assert!(text.lines().any(|reported| reported == line), "{line} is not in\n{text}");
        }
        assert_eq!(text.lines().filter(|line| !line.starts_with('#')).count(), 3 * 3 * 4, "a hard cap");
    }
}
