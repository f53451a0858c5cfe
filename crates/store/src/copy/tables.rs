//! What is copied, table by table: in which order it is read, and what each column becomes.

/// What a column is in the copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `uuid`.
    Id,
    /// `text`.
    Text,
    /// `bytea`, from bytes or from a text.
    Bytes,
    /// `smallint`.
    Small,
    /// `integer`.
    Int,
    /// `integer` that holds 32 bits without a sign.
    Bits,
    /// `bigint`.
    Big,
    /// `boolean`.
    Flag,
}

/// A column of the copy, and how it is read from the source.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Column {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    read: Option<&'static str>,
}

impl Column {
    /// Reads it in another way than by its name.
    const fn by(self, read: &'static str) -> Self {
        Self { read: Some(read), ..self }
    }

    fn read(&self) -> String {
        self.read.map_or_else(|| format!("t.{}", self.name), str::to_owned)
    }
}

macro_rules! kinds {
    ($($name:ident = $kind:ident),*) => {$(
        const fn $name(name: &'static str) -> Column {
            Column { name, kind: Kind::$kind, read: None }
        }
    )*};
}
kinds!(id = Id, text = Text, bytes = Bytes, small = Small, int = Int, bits = Bits, big = Big, flag = Flag);

/// One table of the source.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    /// What it is called in the source.
    pub(crate) name: &'static str,
    /// The table that it goes into.
    pub(crate) into: &'static str,
    /// Where it is read from; the table itself is `t`.
    from: &'static str,
    /// Which of its rows.
    only: Option<&'static str>,
    /// The order in which it is read: what tells where to go on.
    pub(crate) key: &'static [Column],
    /// What becomes of it.
    pub(crate) columns: &'static [Column],
    /// Whether it is kept by month; the first column tells which.
    pub(crate) monthly: bool,
}

impl Step {
    /// A table that is copied as it is.
    const fn of(
        name: &'static str,
        from: &'static str,
        key: &'static [Column],
        columns: &'static [Column],
    ) -> Self {
        Self { name, into: name, from, only: None, key, columns, monthly: false }
    }

    const fn monthly(self) -> Self {
        Self { monthly: true, ..self }
    }

    /// How it is read: from its first row on, or from the one after a key. The key comes after the columns.
    /// `now` is when the leases of a source that has stopped are given back.
    pub(crate) fn select(&self, after: bool, now: i64) -> String {
        let reads = self.columns.iter().chain(self.key).map(Column::read).collect::<Vec<_>>().join(", ");
        let key = self.key.iter().map(Column::read).collect::<Vec<_>>().join(", ");
        let values = vec!["?"; self.key.len()].join(", ");
        let after = after.then(|| format!("({key}) > ({values})"));
        let only: Vec<_> = self.only.map(str::to_owned).into_iter().chain(after).collect();
        let only = if only.is_empty() { String::new() } else { format!("WHERE {}", only.join(" AND ")) };
        format!("SELECT {reads} FROM {} {only} ORDER BY {key}", self.from).replace(":now", &now.to_string())
    }

    /// How it is written, in PostgreSQL's own form of rows.
    pub(crate) fn copy_in(&self) -> String {
        let columns = self.columns.iter().map(|column| column.name).collect::<Vec<_>>().join(", ");
        format!("COPY {} ({columns}) FROM STDIN (FORMAT binary)", self.into)
    }
}

/// Where a step is among [`STEPS`].
pub(crate) fn position(name: &str) -> Option<usize> {
    STEPS.iter().position(|step| step.name == name)
}

/// Everything, in the order in which it is copied. Lanes are created again at the end; nodes, homes and changes are of no use to
/// other nodes. Browser sessions are not copied: people log in again.
pub(crate) const STEPS: [Step; 24] = [
    Step::of(
        "tenants",
        "tenants t",
        &[text("id")],
        &[
            text("id"),
            text("name"),
            big("next_seq"),
            big("config_version"),
            big("types_version"),
            text("rules"),
            text("pool").by("coalesce(json_extract(t.rules, '$.pool'), 'default')"),
            big("created_at"),
            big("deleted_at"),
        ],
    ),
    Step::of(
        "api_keys",
        "api_keys t",
        &[id("id")],
        &[
            id("id"),
            text("tenant"),
            text("name"),
            bytes("hash"),
            bits("scopes"),
            flag("session"),
            text("networks"),
            big("created_at"),
            big("expires_at"),
            big("revoked_at"),
            big("last_used_at"),
        ],
    ),
    Step::of(
        "event_types",
        "event_types t",
        &[text("tenant"), text("name")],
        &[
            text("tenant"),
            text("name"),
            big("revision"),
            flag("archived"),
            text("description"),
            text("example"),
            text("schema"),
            big("created_at"),
            big("updated_at"),
        ],
    ),
    Step::of(
        "unsubscribed",
        "unsubscribed t",
        &[text("tenant"), text("address"), text("kind")],
        &[text("tenant"), text("address"), text("kind"), big("at")],
    ),
    Step::of(
        "mail_addresses",
        "mail_addresses t",
        &[text("tenant"), text("address")],
        &[
            text("tenant"),
            text("address"),
            big("requested_at"),
            int("requests"),
            big("confirmed_at"),
            small("confirmed_by"),
            big("send_at"),
        ],
    ),
    Step::of(
        "mail_usage",
        "mail_usage t",
        &[small("scope"), text("key"), small("purpose")],
        &[small("scope"), text("key"), small("purpose"), text("usage"), big("updated_at")],
    ),
    Step::of(
        "webhooks",
        "webhooks t",
        &[id("id")],
        &[
            id("id"),
            text("tenant"),
            big("revision"),
            text("state"),
            text("spec"),
            bytes("sealed"),
            flag("deleted"),
            flag("sweeping"),
            flag("managed_by_operator"),
            big("expires_at"),
            big("created_at"),
            big("updated_at"),
        ],
    ),
    Step::of(
        "runtime",
        "runtime t",
        &[id("webhook")],
        &[
            id("webhook"),
            text("tenant"),
            flag("paused"),
            big("hold_until"),
            text("circuit"),
            big("generation"),
            big("circuit_until"),
            big("circuit_since"),
            big("failing_since"),
        ],
    ),
    Step::of(
        "circuit_periods",
        "circuit_periods t",
        &[id("webhook"), big("opened_at")],
        &[id("webhook"), text("tenant"), big("opened_at"), big("ended_at"), flag("forced"), text("counts")],
    ),
    Step::of(
        "rollups",
        "rollups t",
        &[id("webhook"), big("minute")],
        &[
            id("webhook"),
            big("minute"),
            text("tenant"),
            big("attempts"),
            big("successes"),
            flag("failed"),
            bytes("categories"),
            bytes("latencies"),
            big("last_success_at"),
        ],
    ),
    Step::of(
        "tenant_rollups",
        "tenant_rollups t",
        &[text("tenant"), big("grain"), big("start")],
        &[
            text("tenant"),
            small("grain"),
            big("start"),
            big("attempts"),
            big("successes"),
            bytes("categories"),
            bytes("latencies"),
            big("last_success_at"),
            big("delivered"),
            big("dead"),
            big("cancelled"),
            big("kept_until"),
        ],
    ),
    Step::of(
        "idempotency",
        "idempotency t",
        &[text("tenant"), bytes("key_hash")],
        &[text("tenant"), bytes("key_hash"), id("event"), bytes("body_hash"), big("expires_at")],
    ),
    Step::of(
        "events",
        "events t",
        &[big("rowid")],
        &[
            id("id"),
            text("tenant"),
            big("seq"),
            text("event_type"),
            big("timestamp"),
            text("idempotency_key"),
            text("source"),
            text("subject"),
            small("priority"),
            bytes("metadata"),
            bytes("trace"),
            small("hops"),
            bytes("data"),
            big("erased_at"),
        ],
    )
    .monthly(),
    Step::of(
        "deliveries",
        // What was to be called off ends so, as it does when its lease is rescued.
        "deliveries t LEFT JOIN leased l ON l.delivery = t.id AND l.cancel IS NOT NULL",
        &[id("id")],
        &[
            id("id"),
            text("tenant"),
            id("event"),
            id("webhook"),
            int("round"),
            small("status").by("iif(l.cancel IS NULL, t.status, 4)"),
            small("format"),
            small("priority"),
            int("attempt_count"),
            small("last_status_code"),
            small("failure_category"),
            bytes("last_error"),
            small("dead_reason"),
            bytes("cancel_reason").by("coalesce(l.cancel, t.cancel_reason)"),
            big("created_at"),
            big("ended_at").by("iif(l.cancel IS NULL, t.ended_at, :now)"),
            id("replay_of"),
            id("redriven_as"),
            big("purged_at"),
        ],
    )
    .monthly(),
    Step::of(
        "attempts",
        "attempts t",
        &[id("delivery"), big("number")],
        &[
            id("delivery"),
            int("number"),
            id("id"),
            small("status"),
            small("failure_category"),
            small("http_status_code"),
            bytes("error_message"),
            bytes("custom_headers"),
            bytes("response_headers"),
            bytes("response_body_sample"),
            big("dns_us"),
            big("connect_us"),
            big("tls_us"),
            big("ttfb_us"),
            big("total_us"),
            big("scheduled_at"),
            big("executed_at"),
            big("next_retry_at"),
            small("circuit"),
            text("worker"),
        ],
    )
    .monthly(),
    Step::of(
        "waiting",
        "waiting t",
        &[id("delivery")],
        &[
            id("delivery"),
            id("webhook"),
            text("lane"),
            big("place"),
            big("seq"),
            big("due"),
            big("created_at"),
            int("rescues"),
            int("deaths"),
        ],
    ),
    // Whoever had these is gone: they are rescued, and due at once.
    Step {
        into: "waiting",
        only: Some("t.cancel IS NULL"),
        ..Step::of(
            "leased",
            "leased t CROSS JOIN deliveries d ON d.id = t.delivery",
            &[id("delivery")],
            &[
                id("delivery"),
                id("webhook"),
                text("lane"),
                big("place").by("iif(t.lane < 'A', 0, :now)"),
                big("seq"),
                big("due").by(":now"),
                big("created_at").by("d.created_at"),
                int("rescues").by("t.rescues + 1"),
                int("deaths").by("t.deaths + t.sending"),
            ],
        )
    },
    // Numbers are made anew; objects that were begun keep their names.
    Step::of(
        "archive",
        "archive t",
        &[big("number")],
        &[text("day"), text("object"), big("events"), big("deliveries"), big("attempts"), bytes("frame")],
    ),
    Step::of(
        "dead",
        "dead t",
        &[id("delivery")],
        &[
            id("delivery"),
            text("tenant"),
            id("webhook"),
            text("event_type"),
            small("category"),
            small("reason"),
            big("died_at"),
        ],
    ),
    Step::of(
        "audit",
        "audit t",
        &[id("id")],
        &[
            id("id"),
            text("tenant"),
            text("actor"),
            id("key"),
            text("address"),
            text("action"),
            text("object"),
            text("result"),
            text("before"),
            text("after"),
        ],
    ),
    Step::of(
        "standing",
        "standing t",
        &[text("tenant"), id("webhook"), small("kind")],
        &[
            text("tenant"),
            id("webhook"),
            small("kind"),
            big("due"),
            big("count"),
            big("first_at"),
            big("last_at"),
            text("facts"),
            big("quiet_until"),
        ],
    ),
    Step::of(
        "notices",
        "notices t",
        &[id("id")],
        &[
            id("id"),
            text("tenant"),
            id("webhook"),
            small("kind"),
            big("count"),
            big("first_at"),
            big("last_at"),
            text("facts"),
            small("event"),
            small("mail"),
            int("tries"),
            big("next_at"),
            text("error"),
        ],
    ),
    // Nobody carries them on: the first node that comes does.
    Step::of(
        "operations",
        "operations t",
        &[id("id")],
        &[
            id("id"),
            text("tenant"),
            text("asked"),
            text("state"),
            flag("open"),
            text("created_by"),
            big("created_at"),
            big("start_at"),
            big("began_at"),
            big("finished_at"),
            big("updated_at"),
            id("cursor_event"),
            id("cursor_delivery"),
            big("total"),
            big("done"),
            big("skipped"),
            big("delivered"),
            big("failed"),
            big("cancelled"),
            text("errors"),
            big("pace_from"),
            big("pace_done"),
        ],
    ),
    Step::of(
        "operation_items",
        "operation_items t",
        &[id("operation"), id("delivery")],
        &[id("operation"), id("delivery")],
    ),
];

#[cfg(test)]
mod tests {
    use redrive_core::DeliveryStatus;

    use super::*;
    use crate::codes::Code;

    #[test]
    fn numbers_in_statements_mean_what_they_should() {
        assert_eq!(DeliveryStatus::Cancelled.code(), 4);
        assert_eq!(redrive_core::tenancy::DEFAULT_POOL, "default");
    }

    #[test]
    fn a_step_is_read_from_its_beginning_and_from_a_key_on() {
        let step = STEPS[position("circuit_periods").unwrap()];
        let all = step.select(false, 7);
        assert!(all.ends_with("FROM circuit_periods t  ORDER BY t.webhook, t.opened_at"), "{all}");
        let rest = step.select(true, 7);
        assert!(rest.contains("WHERE (t.webhook, t.opened_at) > (?, ?) ORDER BY"), "{rest}");
        let leased = STEPS[position("leased").unwrap()].select(true, 7);
        assert!(leased.contains("iif(t.lane < 'A', 0, 7)"), "{leased}");
        assert!(leased.contains("WHERE t.cancel IS NULL AND (t.delivery) > (?) ORDER BY"), "{leased}");
    }
}
