//! The events of a demo: what they are called, what they look like, and whose they are.

use serde_json::{Value, json};

/// A kind of event that a tenant of the demo publishes.
pub(super) struct Sample {
    /// Whose events these are.
    pub(super) tenant: &'static str,
    /// Their type.
    pub(super) name: &'static str,
    /// What they mean.
    pub(super) description: &'static str,
    /// What their payloads have to look like.
    pub(super) schema: fn() -> Value,
    payload: fn(&mut Dice<'_>) -> (String, Value),
}

impl Sample {
    /// What an event of this kind is about, and its payload. Each roll is uniform in [0, 1).
    pub(super) fn make(&self, mut roll: impl FnMut() -> f64) -> (String, Value) {
        (self.payload)(&mut Dice(&mut roll))
    }

    const fn of(tenant: &'static str, kind: Kind) -> Self {
        let (name, description, schema, payload) = kind;
        Self { tenant, name, description, schema, payload }
    }
}

/// Chance, in the forms that payloads need.
struct Dice<'a>(&'a mut dyn FnMut() -> f64);

impl Dice<'_> {
    fn number(&mut self, least: u64, most: u64) -> u64 {
        (least + ((self.0)() * (most - least + 1) as f64) as u64).min(most)
    }

    fn pick<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.number(0, all.len() as u64 - 1) as usize]
    }

    fn hex(&mut self, digits: usize) -> String {
        (0..digits).map(|_| self.pick(b"0123456789abcdef") as char).collect()
    }
}

type Kind = (&'static str, &'static str, fn() -> Value, fn(&mut Dice<'_>) -> (String, Value));

/// Every kind of every tenant, in the order in which the first ones are published. Nothing has more than one home
/// in the catalogue of a tenant.
pub(super) static ALL: [Sample; 12] = [
    Sample::of("default", ORDER_CREATED),
    Sample::of("acme", ORDER_CREATED),
    Sample::of("default", INVOICE_PAID),
    Sample::of("globex", SWAP_CONFIRMED),
    Sample::of("default", USER_SIGNED_UP),
    Sample::of("acme", INVOICE_PAID),
    Sample::of("default", ORDER_SHIPPED),
    Sample::of("default", SWAP_CONFIRMED),
    Sample::of("acme", USER_SIGNED_UP),
    Sample::of("globex", PAYOUT_SENT),
    Sample::of("acme", INVOICE_OVERDUE),
    Sample::of("acme", ORDER_SHIPPED),
];

/// One of them; `roll` is uniform in [0, 1).
pub(super) fn one_of_all(roll: f64) -> &'static Sample {
    &ALL[((roll * ALL.len() as f64) as usize).min(ALL.len() - 1)]
}

/// The last of these is no friend.
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

/// An object all of whose members must be there.
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
    |dice| {
        let id = format!("ord_{}", dice.hex(10));
        let item = |dice: &mut Dice<'_>| json!({"sku": dice.pick(&["mug-blue", "tee-xl", "poster-a2", "sticker-set"]), "quantity": dice.number(1, 4)});
        let items: Vec<Value> = (0..dice.number(1, 3)).map(|_| item(dice)).collect();
        let data = json!({
            "order_id": id, "customer": dice.pick(&NAMES), "total": dice.number(500, 25_000),
            "currency": dice.pick(&["EUR", "USD", "GBP"]), "items": items,
        });
        (id, data)
    },
);

const ORDER_SHIPPED: Kind = (
    "order.shipped",
    "A parcel has left the warehouse.",
    || object(&json!({"order_id": text(), "carrier": text(), "tracking_number": text()})),
    |dice| {
        let id = format!("ord_{}", dice.hex(10));
        let carrier = dice.pick(&["DHL", "UPS", "PostNord"]);
        let data =
            json!({"order_id": id, "carrier": carrier, "tracking_number": dice.hex(16).to_uppercase()});
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
    |dice| {
        let id = format!("inv_{}", dice.number(10_000, 99_999));
        let data = json!({
            "invoice_id": id, "amount": dice.number(900, 480_000), "currency": dice.pick(&["EUR", "USD", "GBP"]),
            "method": dice.pick(&["card", "sepa_debit", "bank_transfer"]),
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
    |dice| {
        let id = format!("inv_{}", dice.number(10_000, 99_999));
        let data = json!({
            "invoice_id": id, "amount": dice.number(900, 480_000), "currency": dice.pick(&["EUR", "USD", "GBP"]),
            "days_late": dice.number(1, 60),
        });
        (id, data)
    },
);

const USER_SIGNED_UP: Kind = (
    "user.signed_up",
    "Somebody has made an account and confirmed the e-mail address.",
    || object(&json!({"user_id": text(), "name": text(), "plan": {"enum": ["free", "team", "business"]}})),
    |dice| {
        let id = format!("usr_{}", dice.hex(12));
        let plan = dice.pick(&["free", "free", "free", "team", "business"]);
        let data = json!({"user_id": id, "name": dice.pick(&NAMES), "plan": plan});
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
    |dice| {
        let id = format!("swp_{}", dice.hex(16));
        let amount = |dice: &mut Dice<'_>| format!("{}.{:06}", dice.number(0, 40), dice.number(1, 999_999));
        let data = json!({
            "swap_id": id, "confirmations": dice.number(2, 12),
            "from": {"asset": dice.pick(&["BTC", "ETH"]), "amount": amount(dice)},
            "to": {"asset": dice.pick(&["USDC", "DAI"]), "amount": amount(dice)},
        });
        (id, data)
    },
);

const PAYOUT_SENT: Kind = (
    "payout.sent",
    "Money is on its way to a bank account.",
    || {
        let account =
            json!({"type": "string", "pattern": "^[0-9]{4}$", "description": "the last four digits"});
        object(&json!({"payout_id": text(), "amount": money(), "currency": currency(), "account": account}))
    },
    |dice| {
        let id = format!("pay_{}", dice.hex(10));
        let data = json!({
            "payout_id": id, "amount": dice.number(10_000, 2_000_000), "currency": dice.pick(&["EUR", "USD"]),
            "account": format!("{:04}", dice.number(0, 9_999)),
        });
        (id, data)
    },
);

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;
    use redrive_core::event::schema::Schema;

    use super::*;

    #[test]
    fn there_are_several_tenants_and_kinds_and_none_twice() {
        let all: HashSet<_> = ALL.iter().map(|sample| (sample.tenant, sample.name)).collect();
        assert_eq!(all.len(), ALL.len());
        let tenants: HashSet<_> = ALL.iter().map(|sample| sample.tenant).collect();
        assert!(tenants.contains("default") && tenants.contains("acme") && tenants.len() == 3);
    }

    #[test]
    fn each_is_published() {
        let found: HashSet<_> =
            (0..1000).map(|n| one_of_all(f64::from(n) / 1000.0)).map(|s| (s.tenant, s.name)).collect();
        assert_eq!(found.len(), ALL.len());
        one_of_all(0.999_999_999_999_999_9);
    }

    proptest! {
        #[test]
        fn every_payload_fits_its_schema(rolls in proptest::collection::vec(0.0..1.0f64, 1..50)) {
            for sample in &ALL {
                let mut rolls = rolls.iter().copied().cycle();
                let (subject, data) = sample.make(|| rolls.next().unwrap());
                prop_assert!(!subject.is_empty());
                let schema = Schema::parse(&(sample.schema)().to_string()).unwrap();
                let checked = schema.check(data.to_string().as_bytes());
                prop_assert!(checked.is_ok(), "{}: {data}: {checked:?}", sample.name);
            }
        }
    }
}
