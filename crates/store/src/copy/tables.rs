//! Tables of a copy: the order in which each is read, and the target type of each column.

/// Type of a column in the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `uuid`.
    Id,
    /// `text`.
    Text,
    /// `bytea`, from bytes or from text.
    Bytes,
    /// `smallint`.
    Small,
    /// `integer`.
    Int,
    /// `integer` that holds an unsigned 32-bit value.
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
    /// Reads the column by this expression instead of its name.
    const fn read_with(self, read: &'static str) -> Self {
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

/// Copy of one source table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TableCopy {
    /// Name of the table in the source.
    pub(crate) name: &'static str,
    /// Target table.
    pub(crate) into: &'static str,
    /// `FROM` clause; the table itself is `t`.
    from: &'static str,
    /// Condition on its rows.
    only: Option<&'static str>,
    /// Sort order of the read, and position to resume from.
    pub(crate) key: &'static [Column],
    /// Columns of the target.
    pub(crate) columns: &'static [Column],
    /// Whether the target has monthly partitions; the time in the first column's id selects the partition.
    pub(crate) monthly: bool,
}

impl TableCopy {
    /// Creates the copy of a table into a target table of the same name.
    const fn new(
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

    /// Returns the query that reads the table from its first row, or from the row after a key. The key follows the
    /// columns. `now` is the time at which the leases of the stopped source are returned.
    pub(crate) fn select(&self, after: bool, now: i64) -> String {
        let reads = self.columns.iter().chain(self.key).map(Column::read).collect::<Vec<_>>().join(", ");
        let key = self.key.iter().map(Column::read).collect::<Vec<_>>().join(", ");
        let values = vec!["?"; self.key.len()].join(", ");
        let after = after.then(|| format!("({key}) > ({values})"));
        let only: Vec<_> = self.only.map(str::to_owned).into_iter().chain(after).collect();
        let only = if only.is_empty() { String::new() } else { format!("WHERE {}", only.join(" AND ")) };
        format!("SELECT {reads} FROM {} {only} ORDER BY {key}", self.from).replace(":now", &now.to_string())
    }

    /// Returns the `COPY` statement that writes the table in binary format.
    pub(crate) fn copy_in(&self) -> String {
        let columns = self.columns.iter().map(|column| column.name).collect::<Vec<_>>().join(", ");
        format!("COPY {} ({columns}) FROM STDIN (FORMAT binary)", self.into)
    }
}

/// Returns the index of a table in [`TABLE_COPIES`].
pub(crate) fn position(name: &str) -> Option<usize> {
    TABLE_COPIES.iter().position(|step| step.name == name)
}

/// All tables in the order in which they are copied. Lanes are created again at the end; nodes, assignments and
/// the change log are of no use to other nodes. Browser sessions are not copied: people log in again.
pub(crate) const TABLE_COPIES: [TableCopy; 27] = [
    TableCopy::new(
        "tenants",
        "tenants t",
        &[text("id")],
        &[
            text("id"),
            text("name"),
            big("next_seq"),
            big("config_version"),
            big("event_types_version"),
            text("rules"),
            text("pool").read_with("coalesce(json_extract(t.rules, '$.pool'), 'default')"),
            big("created_at"),
            big("deleted_at"),
            text("metadata"),
        ],
    ),
    TableCopy::new(
        "api_keys",
        "api_keys t",
        &[id("id")],
        &[
            id("id"),
            text("tenant_id"),
            text("name"),
            bytes("hash"),
            bits("scopes"),
            flag("session"),
            text("networks"),
            big("created_at"),
            big("expires_at"),
            big("revoked_at"),
            big("last_used_at"),
            flag("installation"),
        ],
    ),
    TableCopy::new(
        "event_types",
        "event_types t",
        &[text("tenant_id"), text("name")],
        &[
            text("tenant_id"),
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
    TableCopy::new(
        "unsubscriptions",
        "unsubscriptions t",
        &[text("tenant_id"), text("address"), text("kind")],
        &[text("tenant_id"), text("address"), text("kind"), big("unsubscribed_at")],
    ),
    TableCopy::new(
        "email_addresses",
        "email_addresses t",
        &[text("tenant_id"), text("address")],
        &[
            text("tenant_id"),
            text("address"),
            big("requested_at"),
            int("requests"),
            big("confirmed_at"),
            small("confirmed_by"),
            big("send_at"),
        ],
    ),
    TableCopy::new(
        "email_usage",
        "email_usage t",
        &[small("scope"), text("key"), small("purpose")],
        &[small("scope"), text("key"), small("purpose"), text("usage"), big("updated_at")],
    ),
    TableCopy::new(
        "webhooks",
        "webhooks t",
        &[id("id")],
        &[
            id("id"),
            text("tenant_id"),
            big("revision"),
            text("state"),
            text("spec"),
            bytes("sealed"),
            flag("deleted"),
            flag("cancel_pending"),
            flag("managed_by_operator"),
            big("expires_at"),
            big("created_at"),
            big("updated_at"),
            text("uid"),
        ],
    ),
    TableCopy::new(
        "webhook_runtime",
        "webhook_runtime t",
        &[id("webhook_id")],
        &[
            id("webhook_id"),
            text("tenant_id"),
            flag("paused"),
            big("paused_until"),
            text("circuit"),
            big("generation"),
            big("circuit_until"),
            big("circuit_since"),
            big("failing_since"),
            text("failures"),
        ],
    ),
    TableCopy::new(
        "circuit_periods",
        "circuit_periods t",
        &[id("webhook_id"), big("opened_at")],
        &[
            id("webhook_id"),
            text("tenant_id"),
            big("opened_at"),
            big("ended_at"),
            flag("forced"),
            text("counts"),
            flag("continues"),
            big("closed_at"),
        ],
    ),
    TableCopy::new(
        "rollups",
        "rollups t",
        &[id("webhook_id"), big("minute")],
        &[
            id("webhook_id"),
            big("minute"),
            text("tenant_id"),
            big("attempts"),
            big("successes"),
            flag("failed"),
            bytes("categories"),
            bytes("latencies"),
            big("last_success_at"),
        ],
    ),
    TableCopy::new(
        "webhook_successes",
        "webhook_successes t",
        &[id("webhook_id")],
        &[id("webhook_id"), big("minute"), big("last_success_at")],
    ),
    TableCopy::new(
        "tenant_rollups",
        "tenant_rollups t",
        &[text("tenant_id"), big("resolution"), big("start")],
        &[
            text("tenant_id"),
            small("resolution"),
            big("start"),
            big("attempts"),
            big("successes"),
            bytes("categories"),
            bytes("latencies"),
            big("last_success_at"),
            big("delivered"),
            big("dead"),
            big("cancelled"),
            big("expires_at"),
        ],
    ),
    TableCopy::new(
        "idempotency_keys",
        "idempotency_keys t",
        &[text("tenant_id"), bytes("key_hash")],
        &[text("tenant_id"), bytes("key_hash"), id("event_id"), bytes("body_hash"), big("expires_at")],
    ),
    TableCopy::new(
        "creation_keys",
        "creation_keys t",
        &[text("tenant_id"), bytes("key_hash")],
        &[text("tenant_id"), bytes("key_hash"), bytes("body_hash"), text("object"), big("expires_at")],
    ),
    TableCopy::new(
        "events",
        "events t",
        &[big("rowid")],
        &[
            id("id"),
            text("tenant_id"),
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
            id("edited_from"),
        ],
    )
    .monthly(),
    TableCopy::new(
        "deliveries",
        // A delivery with a requested cancellation ends cancelled, as it does when its lease is rescued.
        "deliveries t LEFT JOIN leased l ON l.delivery_id = t.id AND l.cancel IS NOT NULL",
        &[id("id")],
        &[
            id("id"),
            text("tenant_id"),
            id("event_id"),
            id("webhook_id"),
            int("round"),
            small("status").read_with("iif(l.cancel IS NULL, t.status, 4)"),
            small("format"),
            small("priority"),
            int("attempt_count"),
            small("last_status_code"),
            small("failure_category"),
            bytes("last_error"),
            small("dead_reason"),
            bytes("cancel_reason").read_with("coalesce(l.cancel, t.cancel_reason)"),
            big("created_at"),
            big("ended_at").read_with("iif(l.cancel IS NULL, t.ended_at, :now)"),
            id("replay_of"),
            id("redriven_as"),
            big("purged_at"),
        ],
    )
    .monthly(),
    TableCopy::new(
        "attempts",
        "attempts t",
        &[id("delivery_id"), big("number")],
        &[
            id("delivery_id"),
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
    TableCopy::new(
        "attempt_index",
        "attempt_index t",
        &[id("id")],
        &[
            id("id"),
            text("tenant_id"),
            id("webhook_id"),
            id("delivery_id"),
            small("status"),
            small("category"),
            small("code"),
        ],
    ),
    TableCopy::new(
        "waiting",
        "waiting t",
        &[id("delivery_id")],
        &[
            id("delivery_id"),
            id("webhook_id"),
            text("lane"),
            big("sort_key"),
            big("seq"),
            big("due"),
            big("created_at"),
            int("abnormal_releases"),
            int("crash_count"),
        ],
    ),
    // The node that leased these is gone: they are rescued and due immediately.
    TableCopy {
        into: "waiting",
        only: Some("t.cancel IS NULL"),
        ..TableCopy::new(
            "leased",
            "leased t CROSS JOIN deliveries d ON d.id = t.delivery_id",
            &[id("delivery_id")],
            &[
                id("delivery_id"),
                id("webhook_id"),
                text("lane"),
                big("sort_key").read_with("iif(t.lane < 'A', 0, :now)"),
                big("seq"),
                big("due").read_with(":now"),
                big("created_at").read_with("d.created_at"),
                int("abnormal_releases").read_with("t.abnormal_releases + 1"),
                int("crash_count").read_with("t.crash_count + t.sending"),
            ],
        )
    },
    // The target assigns new numbers; objects that were started keep their names.
    TableCopy::new(
        "archive_outbox",
        "archive_outbox t",
        &[big("number")],
        &[text("day"), text("object"), big("events"), big("deliveries"), big("attempts"), bytes("frame")],
    ),
    TableCopy::new(
        "dead",
        "dead t",
        &[id("delivery_id")],
        &[
            id("delivery_id"),
            text("tenant_id"),
            id("webhook_id"),
            text("event_type"),
            small("category"),
            small("reason"),
            big("died_at"),
        ],
    ),
    TableCopy::new(
        "audit",
        "audit t",
        &[id("id")],
        &[
            id("id"),
            text("tenant_id"),
            text("actor"),
            id("key_id"),
            text("address"),
            text("action"),
            text("object"),
            text("result"),
            text("before"),
            text("after"),
            text("subject"),
        ],
    ),
    TableCopy::new(
        "notification_groups",
        "notification_groups t",
        &[text("tenant_id"), id("webhook_id"), small("kind")],
        &[
            text("tenant_id"),
            id("webhook_id"),
            small("kind"),
            big("due"),
            big("count"),
            big("first_at"),
            big("last_at"),
            text("details"),
            big("suppressed_until"),
        ],
    ),
    TableCopy::new(
        "notifications",
        "notifications t",
        &[id("id")],
        &[
            id("id"),
            text("tenant_id"),
            id("webhook_id"),
            small("kind"),
            big("count"),
            big("first_at"),
            big("last_at"),
            text("details"),
            small("webhook_status"),
            small("email_status"),
            int("attempts"),
            big("next_attempt_at"),
            text("error"),
        ],
    ),
    // The claims are not copied: the first node that starts resumes the operations.
    TableCopy::new(
        "operations",
        "operations t",
        &[id("id")],
        &[
            id("id"),
            text("tenant_id"),
            text("request"),
            text("state"),
            flag("open"),
            text("created_by"),
            big("created_at"),
            big("start_at"),
            big("started_at"),
            big("finished_at"),
            big("updated_at"),
            id("cursor_event_id"),
            id("cursor_delivery_id"),
            big("total"),
            big("already_delivered"),
            big("done"),
            big("skipped"),
            big("delivered"),
            big("failed"),
            big("cancelled"),
            text("errors"),
            big("rate_since"),
            big("rate_base"),
        ],
    ),
    TableCopy::new(
        "operation_items",
        "operation_items t",
        &[id("operation_id"), id("delivery_id")],
        &[id("operation_id"), id("delivery_id")],
    ),
];

#[cfg(test)]
mod tests {
    use redrive_core::DeliveryStatus;

    use super::*;
    use crate::codes::Code;

    #[test]
    fn constants_in_statements_match_their_codes() {
        assert_eq!(DeliveryStatus::Cancelled.code(), 4);
        assert_eq!(redrive_core::tenancy::DEFAULT_POOL, "default");
    }

    #[test]
    fn table_is_read_from_the_start_or_after_a_key() {
        let step = TABLE_COPIES[position("circuit_periods").unwrap()];
        let all = step.select(false, 7);
        assert!(all.ends_with("FROM circuit_periods t  ORDER BY t.webhook_id, t.opened_at"), "{all}");
        let rest = step.select(true, 7);
        assert!(rest.contains("WHERE (t.webhook_id, t.opened_at) > (?, ?) ORDER BY"), "{rest}");
        let leased = TABLE_COPIES[position("leased").unwrap()].select(true, 7);
        assert!(leased.contains("iif(t.lane < 'A', 0, 7)"), "{leased}");
        assert!(leased.contains("WHERE t.cancel IS NULL AND (t.delivery_id) > (?) ORDER BY"), "{leased}");
    }
}
