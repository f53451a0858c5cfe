//! Sample events of a demo: types, payloads and tenants.

use serde_json::{Value, json};

/// Event type that a tenant of the demo publishes.
pub(super) struct Sample {
    /// Tenant that publishes the events.
    pub(super) tenant: &'static str,
    /// Event type.
    pub(super) name: &'static str,
    /// Description of the event type.
    pub(super) description: &'static str,
    /// JSON Schema of the payloads.
    pub(super) schema: fn() -> Value,
    payload: fn(&mut DemoRng<'_>) -> (String, Value),
}

impl Sample {
    /// Generates subject and payload of an event. The random values are uniform in [0, 1).
    pub(super) fn generate(&self, mut random: impl FnMut() -> f64) -> (String, Value) {
        (self.payload)(&mut DemoRng(&mut random))
    }

    const fn new(tenant: &'static str, kind: Kind) -> Self {
        let (name, description, schema, payload) = kind;
        Self { tenant, name, description, schema, payload }
    }
}

/// Random values in the forms that payloads need.
struct DemoRng<'a>(&'a mut dyn FnMut() -> f64);

impl DemoRng<'_> {
    fn number(&mut self, min: u64, max: u64) -> u64 {
        (min + ((self.0)() * (max - min + 1) as f64) as u64).min(max)
    }

    fn pick<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.number(0, all.len() as u64 - 1) as usize]
    }

    fn hex(&mut self, digits: usize) -> String {
        (0..digits).map(|_| self.pick(b"0123456789abcdef") as char).collect()
    }
}

type Kind = (&'static str, &'static str, fn() -> Value, fn(&mut DemoRng<'_>) -> (String, Value));

/// All event types of all tenants, in the order in which the first events are published. Each type occurs once per
/// tenant.
pub(super) static ALL: [Sample; 12] = [
    Sample::new("default", ORDER_CREATED),
    Sample::new("acme", ORDER_CREATED),
    Sample::new("default", INVOICE_PAID),
    Sample::new("globex", SWAP_CONFIRMED),
    Sample::new("default", USER_SIGNED_UP),
    Sample::new("acme", INVOICE_PAID),
    Sample::new("default", ORDER_SHIPPED),
    Sample::new("default", SWAP_CONFIRMED),
    Sample::new("acme", USER_SIGNED_UP),
    Sample::new("globex", PAYOUT_SENT),
    Sample::new("acme", INVOICE_OVERDUE),
    Sample::new("acme", ORDER_SHIPPED),
];

/// Picks a sample by a random value that is uniform in [0, 1).
pub(super) fn pick_sample(random: f64) -> &'static Sample {
    &ALL[((random * ALL.len() as f64) as usize).min(ALL.len() - 1)]
}

/// Names for payloads. The last one is an XSS attempt.
const NAMES: [&str; 8] = [
    "Ada Lovelace",
    "Zoë Müller",
    "李小龍",
    "Grace Hopper",
    "Nnamdi Okafor",
    "Siobhán O'Brien",
    "Łukasz Żak",
    "<img src=x onerror=\"document.title = 'hacked'\">",
];

/// Returns the schema of an object whose properties are all required.
fn object(properties: &Value) -> Value {
    let required: Vec<String> =
        properties.as_object().into_iter().flatten().map(|(name, _)| name.clone()).collect();
    json!({"type": "object", "properties": properties, "required": required})
}

fn text() -> Value {
    json!({"type": "string", "minLength": 1})
}

fn money() -> Value {
    json!({"type": "integer", "minimum": 0, "description": "in the smallest unit of the currency"})
}

fn currency() -> Value {
    json!({"enum": ["EUR", "USD", "GBP"]})
}

const ORDER_CREATED: Kind = (
    "order.created",
    "A customer has placed an order. It is not paid yet.",
    || {
        let item = object(&json!({"sku": text(), "quantity": {"type": "integer", "minimum": 1}}));
        object(&json!({
            "order_id": text(), "customer": text(), "total": money(), "currency": currency(),
            "items": {"type": "array", "items": item, "minItems": 1},
        }))
    },
    |rng| {
        let id = format!("ord_{}", rng.hex(10));
        let item = |rng: &mut DemoRng<'_>| json!({"sku": rng.pick(&["mug-blue", "tee-xl", "poster-a2", "sticker-set"]), "quantity": rng.number(1, 4)});
        let items: Vec<Value> = (0..rng.number(1, 3)).map(|_| item(rng)).collect();
        let data = json!({
            "order_id": id, "customer": rng.pick(&NAMES), "total": rng.number(500, 25_000),
            "currency": rng.pick(&["EUR", "USD", "GBP"]), "items": items,
        });
        (id, data)
    },
);

const ORDER_SHIPPED: Kind = (
    "order.shipped",
    "A parcel has left the warehouse.",
    || object(&json!({"order_id": text(), "carrier": text(), "tracking_number": text()})),
    |rng| {
        let id = format!("ord_{}", rng.hex(10));
        let carrier = rng.pick(&["DHL", "UPS", "PostNord"]);
        let data = json!({"order_id": id, "carrier": carrier, "tracking_number": rng.hex(16).to_uppercase()});
        (id, data)
    },
);

const INVOICE_PAID: Kind = (
    "invoice.paid",
    "An invoice was paid in full.",
    || {
        let method = json!({"enum": ["card", "sepa_debit", "bank_transfer"]});
        object(&json!({"invoice_id": text(), "amount": money(), "currency": currency(), "method": method}))
    },
    |rng| {
        let id = format!("inv_{}", rng.number(10_000, 99_999));
        let data = json!({
            "invoice_id": id, "amount": rng.number(900, 480_000), "currency": rng.pick(&["EUR", "USD", "GBP"]),
            "method": rng.pick(&["card", "sepa_debit", "bank_transfer"]),
        });
        (id, data)
    },
);

const INVOICE_OVERDUE: Kind = (
    "invoice.overdue",
    "An invoice has not been paid in time.",
    || {
        let days = json!({"type": "integer", "minimum": 1});
        object(&json!({"invoice_id": text(), "amount": money(), "currency": currency(), "days_late": days}))
    },
    |rng| {
        let id = format!("inv_{}", rng.number(10_000, 99_999));
        let data = json!({
            "invoice_id": id, "amount": rng.number(900, 480_000), "currency": rng.pick(&["EUR", "USD", "GBP"]),
            "days_late": rng.number(1, 60),
        });
        (id, data)
    },
);

const USER_SIGNED_UP: Kind = (
    "user.signed_up",
    "A user has created an account and confirmed the email address.",
    || object(&json!({"user_id": text(), "name": text(), "plan": {"enum": ["free", "team", "business"]}})),
    |rng| {
        let id = format!("usr_{}", rng.hex(12));
        let plan = rng.pick(&["free", "free", "free", "team", "business"]);
        let data = json!({"user_id": id, "name": rng.pick(&NAMES), "plan": plan});
        (id, data)
    },
);

const SWAP_CONFIRMED: Kind = (
    "swap.confirmed",
    "A swap has enough confirmations to be final.",
    || {
        let side =
            object(&json!({"asset": text(), "amount": {"type": "string", "pattern": "^[0-9]+\\.[0-9]+$"}}));
        let count = json!({"type": "integer", "minimum": 1});
        object(&json!({"swap_id": text(), "from": side, "to": side, "confirmations": count}))
    },
    |rng| {
        let id = format!("swp_{}", rng.hex(16));
        let amount = |rng: &mut DemoRng<'_>| format!("{}.{:06}", rng.number(0, 40), rng.number(1, 999_999));
        let data = json!({
            "swap_id": id, "confirmations": rng.number(2, 12),
            "from": {"asset": rng.pick(&["BTC", "ETH"]), "amount": amount(rng)},
            "to": {"asset": rng.pick(&["USDC", "DAI"]), "amount": amount(rng)},
        });
        (id, data)
    },
);

const PAYOUT_SENT: Kind = (
    "payout.sent",
    "A payout was sent to a bank account.",
    || {
        let account =
            json!({"type": "string", "pattern": "^[0-9]{4}$", "description": "the last four digits"});
        object(&json!({"payout_id": text(), "amount": money(), "currency": currency(), "account": account}))
    },
    |rng| {
        let id = format!("pay_{}", rng.hex(10));
        let data = json!({
            "payout_id": id, "amount": rng.number(10_000, 2_000_000), "currency": rng.pick(&["EUR", "USD"]),
            "account": format!("{:04}", rng.number(0, 9_999)),
        });
        (id, data)
    },
);

#[cfg(test)]
mod tests {
    use std::{collections::HashSet, sync::LazyLock};

    use proptest::prelude::*;
    use redrive_core::event::schema::Schema;

    use super::*;

    #[test]
    fn samples_are_unique_and_cover_three_tenants() {
        let all: HashSet<_> = ALL.iter().map(|sample| (sample.tenant, sample.name)).collect();
        assert_eq!(all.len(), ALL.len());
        let tenants: HashSet<_> = ALL.iter().map(|sample| sample.tenant).collect();
        assert!(tenants.contains("default") && tenants.contains("acme") && tenants.len() == 3);
    }

    #[test]
    fn every_sample_is_picked() {
        let found: HashSet<_> =
            (0..1000).map(|n| pick_sample(f64::from(n) / 1000.0)).map(|s| (s.tenant, s.name)).collect();
        assert_eq!(found.len(), ALL.len());
        pick_sample(0.999_999_999_999_999_9);
    }

    proptest! {
        #[test]
        fn payloads_match_their_schemas(rolls in proptest::collection::vec(0.0..1.0f64, 1..50)) {
            // Compiling a schema takes longer than checking a payload.
            static SCHEMAS: LazyLock<Vec<Schema>> = LazyLock::new(|| {
                ALL.iter().map(|sample| Schema::parse(&(sample.schema)().to_string()).unwrap()).collect()
            });
            for (sample, schema) in ALL.iter().zip(&*SCHEMAS) {
                let mut rolls = rolls.iter().copied().cycle();
                let (subject, data) = sample.generate(|| rolls.next().unwrap());
                prop_assert!(!subject.is_empty());
                let checked = schema.check(data.to_string().as_bytes());
                prop_assert!(checked.is_ok(), "{}: {data}: {checked:?}", sample.name);
            }
        }
    }
}
