//! Deliveries by tenant, webhook and event type, where the operator asked for it. Each kind has a hard cap: whoever
//! comes after it is counted together with all others of that kind, so that no tenant can fill the memory.

use std::{borrow::Borrow, collections::HashMap, fmt::Debug, hash::Hash};

use parking_lot::RwLock;
use prometheus_client::{
    encoding::{EncodeLabelSet, LabelSetEncoder},
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};
use redrive_core::{TenantId, WebhookId};

use super::Fate;

/// What those are counted as that come after the cap.
const OTHER: &str = "other";

/// Which series there are beside the usual ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Series {
    /// One for each tenant.
    pub by_tenant: bool,
    /// One for each webhook.
    pub by_webhook: bool,
    /// One for each event type.
    pub by_event_type: bool,
    /// How many tenants, webhooks and event types, each, have series of their own.
    pub most: usize,
}

/// Whom a series is about, and what became of the deliveries.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Labels {
    kind: &'static str,
    value: Box<str>,
    fate: &'static str,
}

impl EncodeLabelSet for Labels {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> std::fmt::Result {
        [(self.kind, &*self.value), ("status", self.fate)].encode(encoder)
    }
}

/// One kind of them.
struct Capped<K> {
    kind: &'static str,
    most: usize,
    family: Family<Labels, Counter>,
    known: RwLock<HashMap<K, [Counter; 4]>>,
    other: [Counter; 4],
}

impl<K: Eq + Hash> Capped<K> {
    fn new(kind: &'static str, name: &str, most: usize, registry: &mut Registry) -> Self {
        let family = Family::<Labels, Counter>::default();
        let help = format!(
            "Attempts and ends of deliveries by {kind}; those of all after the first {most} are counted as {OTHER:?}"
        );
        registry.register(name, help, family.clone());
        let known = RwLock::default();
        Self { kind, most, other: make(&family, kind, OTHER), family, known }
    }

    fn count<Q>(&self, key: &Q, fate: Fate, count: u64)
    where
        K: Borrow<Q> + for<'a> From<&'a Q>,
        Q: Eq + Hash + ToString + ?Sized,
    {
        {
            let known = self.known.read();
            let counters = match known.get(key) {
                Some(counters) => Some(counters),
                None if known.len() >= self.most => Some(&self.other),
                None => None,
            };
            if let Some(counters) = counters {
                counters[fate as usize].inc_by(count);
                return;
            }
        }
        let mut known = self.known.write();
        if !known.contains_key(key) && known.len() >= self.most {
            drop(known);
            self.other[fate as usize].inc_by(count);
            return;
        }
        let counters =
            known.entry(K::from(key)).or_insert_with(|| make(&self.family, self.kind, &key.to_string()));
        counters[fate as usize].inc_by(count);
    }
}

fn make(family: &Family<Labels, Counter>, kind: &'static str, value: &str) -> [Counter; 4] {
    Fate::ALL
        .map(|fate| family.get_or_create(&Labels { kind, value: value.into(), fate: fate.name() }).clone())
}

/// A webhook as a key, so that it can be made from a reference as a text can.
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

/// All of them that somebody asked for.
pub(super) struct By {
    tenants: Option<Capped<Box<str>>>,
    webhooks: Option<Capped<Key>>,
    event_types: Option<Capped<Box<str>>>,
}

impl By {
    /// Makes and lists them; none if nobody asked for any.
    pub(super) fn new(series: Series, registry: &mut Registry) -> Option<Self> {
        let Series { by_tenant, by_webhook, by_event_type, most } = series;
        if !(by_tenant || by_webhook || by_event_type) {
            return None;
        }
        Some(Self {
            tenants: by_tenant.then(|| Capped::new("tenant", "redrive_tenant_deliveries", most, registry)),
            webhooks: by_webhook
                .then(|| Capped::new("webhook", "redrive_webhook_deliveries", most, registry)),
            event_types: by_event_type
                .then(|| Capped::new("event_type", "redrive_event_type_deliveries", most, registry)),
        })
    }

    /// Counts so many of them. What is not known is not counted by it.
    pub(super) fn count(
        &self,
        fate: Fate,
        tenant: &TenantId,
        webhook: WebhookId,
        event_type: Option<&str>,
        count: u64,
    ) {
        if let Some(tenants) = &self.tenants {
            tenants.count(tenant.as_str(), fate, count);
        }
        if let Some(webhooks) = &self.webhooks {
            webhooks.count(&webhook, fate, count);
        }
        if let (Some(event_types), Some(event_type)) = (&self.event_types, event_type) {
            event_types.count(event_type, fate, count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(registry: &Registry) -> String {
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
    fn nobody_asked_so_nothing_is_kept() {
        let mut registry = Registry::default();
        assert!(By::new(Series { most: 100, ..Series::default() }, &mut registry).is_none());
        assert_eq!(told(&registry), "# EOF\n");
    }

    #[test]
    fn whoever_comes_after_the_cap_is_counted_with_all_others() {
        let mut registry = Registry::default();
        let series = Series { by_tenant: true, by_webhook: true, by_event_type: true, most: 2 };
        let by = By::new(series, &mut registry).unwrap();
        for n in 0..1_000 {
            let tenant = TenantId::parse(&format!("t{n}")).unwrap();
            let event_type = format!("type.{n}");
            by.count(Fate::Dead, &tenant, webhook(n), Some(&event_type).filter(|_| n > 0).map(|x| &**x), 3);
        }
        by.count(Fate::Delivered, &TenantId::parse("t1").unwrap(), webhook(1), Some("type.1"), 1);
        let text = told(&registry);
        for line in [
            "redrive_tenant_deliveries_total{tenant=\"t1\",status=\"dead\"} 3",
            "redrive_tenant_deliveries_total{tenant=\"t1\",status=\"delivered\"} 1",
            "redrive_tenant_deliveries_total{tenant=\"other\",status=\"dead\"} 2994",
            "redrive_event_type_deliveries_total{event_type=\"type.2\",status=\"dead\"} 3",
            "redrive_event_type_deliveries_total{event_type=\"other\",status=\"dead\"} 2991",
            "redrive_webhook_deliveries_total{webhook=\"other\",status=\"dead\"} 2994",
        ] {
            assert!(text.lines().any(|told| told == line), "{line} is not in\n{text}");
        }
        assert_eq!(text.lines().filter(|line| !line.starts_with('#')).count(), 3 * 3 * 4, "a hard cap");
    }
}
