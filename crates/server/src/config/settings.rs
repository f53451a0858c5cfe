//! List of all settings, each with the reason for its default. `docs/configuration.md` lists the same settings.

/// One setting.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// Key in the configuration file.
    pub key: &'static str,
    /// Purpose, and reason for the default.
    pub reason: &'static str,
}

const fn setting(key: &'static str, reason: &'static str) -> Setting {
    Setting { key, reason }
}

/// All settings, in the order of the configuration file.
pub const SETTINGS: &[Setting] = &[
    setting(
        "role",
        "all, api (takes events and sends nothing) or worker (sends and takes nothing). Also --role.",
    ),
    setting("node", "This node's name, shown with every attempt. The host's name unless set."),
    setting("pools", "The pools of tenants that this node sends for. Also --pool, once for each."),
    setting(
        "server.listen",
        "Address and port. Loopback unless you say otherwise; across a network use TLS.",
    ),
    setting(
        "server.drain_timeout",
        "How long requests under way may finish at shutdown; as long as a request may take.",
    ),
    setting("server.max_connections", "API connections at once; more wait to be accepted."),
    setting(
        "server.max_connections_per_address",
        "API connections at once from one address, so that no one takes all; trusted proxies have no limit.",
    ),
    setting(
        "server.header_timeout",
        "How long a client may take for a TLS handshake, and for the head of a request.",
    ),
    setting("server.body_timeout", "How long a client may take to send a body."),
    setting("server.write_timeout", "How long a client may go without reading anything of its answer."),
    setting(
        "server.idle_timeout",
        "How long a connection may rest between requests; longer than proxies keep theirs.",
    ),
    setting("server.tls_cert", "A PEM file with the certificate chain. With it the API speaks TLS itself."),
    setting("server.tls_key", "A PEM file with the certificate's private key."),
    setting(
        "server.public_url",
        "How links that are given to people begin, such as https://hooks.example.com. As each request says unless set.",
    ),
    setting(
        "server.trusted_proxies",
        "Networks of proxies whose X-Forwarded-* is believed. None: anybody can write those headers.",
    ),
    setting(
        "server.cors_origins",
        "Origins whose pages may call the API from a browser. None: keys do not belong into pages.",
    ),
    setting(
        "database.url",
        "Where everything is kept: sqlite:PATH, or postgres://USER@HOST:PORT/DATABASE for many nodes.",
    ),
    setting("database.password", "The password of the PostgreSQL server, so that the URL needs none."),
    setting("database.password_file", "A file that holds the password, for secret mounts."),
    setting(
        "database.write_connections",
        "Connections of this node for scheduling and administrative writes; PostgreSQL only.",
    ),
    setting(
        "database.read_connections",
        "Connections of this node for listings and other reads of users; PostgreSQL only.",
    ),
    setting("database.connect_timeout", "How long connecting to PostgreSQL may take."),
    setting("database.statement_timeout", "How long a write may take, and wait for a connection."),
    setting("database.query_timeout", "How long a question may take; a page of the API needs far less."),
    setting(
        "database.auto_migrate",
        "Whether an older schema is brought up to date at the start. Off: only by `redrive migrate`.",
    ),
    setting(
        "database.allow_unsafe_durability",
        "Whether to use a PostgreSQL server that can lose acknowledged events when it crashes: for tests.",
    ),
    setting(
        "amqp.url",
        "A RabbitMQ server that tells nodes which send of ready work: amqp[s]://USER@HOST:PORT/VHOST. Also --amqp.",
    ),
    setting("amqp.password", "The password of the RabbitMQ server, so that the URL needs none."),
    setting("amqp.password_file", "A file that holds the password, for secret mounts."),
    setting(
        "amqp.namespace",
        "What all names at RabbitMQ begin with, so that several installations can share one virtual host.",
    ),
    setting(
        "amqp.prefetch",
        "Tickets of one queue that a node has in hand; each names up to 100 deliveries.",
    ),
    setting(
        "cluster.lease",
        "A node that was silent for so long is dead, and the others take over. Longer than hiccups are.",
    ),
    setting(
        "redis.url",
        "A Redis through which nodes share limits and circuits: redis[s]://USER@HOST:PORT. Also --redis.",
    ),
    setting("redis.password", "The password of the Redis server, so that the URL needs none."),
    setting("redis.password_file", "A file that holds the password, for secret mounts."),
    setting("redis.ca_file", "A file with the certificate to trust for rediss://, instead of the system's."),
    setting(
        "redis.namespace",
        "What all keys begin with, so that several installations can share one server.",
    ),
    setting("redis.timeout", "How long an answer may take before a node goes by what it knows."),
    setting("auth.admin_key", "The key that may do everything. Also REDRIVE_ADMIN_KEY."),
    setting("auth.admin_key_file", "A file that holds the admin key, for secret mounts."),
    setting("secrets.master_key", "The key that secrets are sealed with: 32 random bytes in base64."),
    setting("secrets.master_key_file", "A file that holds the master key, for secret mounts."),
    setting("secrets.master_key_command", "A command that prints the master key, for key managers."),
    setting(
        "secrets.additional_master_key_files",
        "Files with other master keys that may have sealed something: the one before, or the next one.",
    ),
    setting(
        "secrets.rotation_reminder_after",
        "How old a webhook's secret may be before its owner is told to change it. 0 for any age.",
    ),
    setting("audit.retention", "How long it is remembered who changed what. Long enough for an audit."),
    setting(
        "egress.allow_http",
        "Whether webhooks may use plain http. Off: payloads would travel in the clear.",
    ),
    setting(
        "egress.allow_networks",
        "Private networks that webhooks may reach. None: strangers choose the URLs.",
    ),
    setting("egress.deny_networks", "Networks that are never reached, public ones too. Wins over all else."),
    setting(
        "egress.allow_hosts",
        "The only hosts that webhooks may call, such as *.example.com. Empty: all. Opens no private address.",
    ),
    setting(
        "egress.deny_hosts",
        "Hosts that webhooks may not call, such as *.example.com. Wins over all else.",
    ),
    setting(
        "egress.ports",
        "The only ports that webhooks may call. Empty: all but those of mail, shells, databases and the like.",
    ),
    setting("egress.dns_servers", "Name servers to ask instead of the system's."),
    setting("egress.connect_timeout", "How long connecting to an endpoint may take."),
    setting("egress.dns_timeout", "How long looking a name up may take."),
    setting("egress.max_response_bytes", "How much of an answer is read; only 1 KiB of it is kept."),
    setting(
        "egress.max_requests_per_host",
        "Requests in flight to one destination host, over all tenants. Protects third parties; 0 for any number.",
    ),
    setting(
        "egress.max_connections_per_address",
        "Open connections to one IP address per node, whatever the host's name. 0 for any number.",
    ),
    setting("delivery.max_in_flight", "Requests under way at once; one counts until its outcome is stored."),
    setting(
        "delivery.webhook_max_in_flight",
        "Requests at once to a webhook that does not say otherwise; kind to small servers.",
    ),
    setting("delivery.max_deliveries_in_memory", "Deliveries held in memory; more wait in the store."),
    setting("delivery.max_payload_bytes_in_memory", "Payload bytes held in memory."),
    setting(
        "delivery.max_deliveries_per_lane",
        "Deliveries held in memory for one webhook, so that no webhook takes all the room.",
    ),
    setting("events.max_payload_bytes", "The largest payload; larger ones are refused with 413."),
    setting("events.idempotency_window", "How long a repeated idempotency key gives the first event back."),
    setting(
        "events.max_hops",
        "How many deliveries an event may have come through when it is published; beyond that it is a loop.",
    ),
    setting(
        "sources",
        "Queues of RabbitMQ whose messages are published as events: tables that begin with [[sources]]. None.",
    ),
    setting(
        "retention.events",
        "How long events are kept, with their deliveries and attempts. A quarter; 0 for ever. Tenants may differ.",
    ),
    setting(
        "retention.dead_letters",
        "How long dead letters are kept, with their attempts. A month to send them again; 0 for ever.",
    ),
    setting(
        "archive.url",
        "A folder, or s3://BUCKET/PREFIX: what is forgotten is kept there first. None: it is gone.",
    ),
    setting("archive.endpoint", "Where the bucket is, if not at Amazon, such as https://minio.example.com."),
    setting("archive.region", "The bucket's region."),
    setting(
        "archive.access_key_id",
        "The key that may write there; the machine's own role if there is none.",
    ),
    setting("archive.secret_access_key", "The secret that goes with the key."),
    setting("archive.secret_access_key_file", "A file that holds the secret, for secret mounts."),
    setting(
        "retry.schedule",
        "Delay before each attempt. Default: 0, 5s, 5m, 30m, 2h, 5h, 10h, 14h, 20h, 24h.",
    ),
    setting(
        "retry.base_delay_ms",
        "First delay of the exponential form, instead of a schedule. Default there: 30000.",
    ),
    setting("retry.backoff_multiplier", "Growth of the exponential form. Default there: 2."),
    setting("retry.max_attempts", "Attempts of the exponential form. Default there: 10."),
    setting(
        "retry.max_delay_ms",
        "The longest delay, and the longest Retry-After that is honoured. Default: 24 h.",
    ),
    setting("retry.jitter", "Spread of delays, so that retries do not come in waves. Default: 0.1."),
    setting("retry.timeout_ms", "How long an endpoint may take to answer. Default: 30000."),
    setting("retry.timeout_growth_factor", "Growth of the timeout per attempt, up to threefold. Default: 1."),
    setting("retry.retry_on", "default, or all to retry every answer that is not 2xx."),
    setting(
        "retry.permanent_status_codes",
        "Answers that end a delivery at once. Default: 400, 401, 403, 404, 410, 413, 414, 415, 451.",
    ),
    setting("retry.give_up_after", "The age at which a delivery is given up whatever happens. Default: 5d."),
    setting("circuit_breaker.enabled", "Whether circuits open by themselves. Default: true."),
    setting("circuit_breaker.window_size_ms", "The calls of this long a time are looked at. Default: 60000."),
    setting(
        "circuit_breaker.minimum_throughput",
        "With fewer calls in the window a circuit does not open. Default: 20.",
    ),
    setting(
        "circuit_breaker.error_threshold_percentage",
        "A circuit opens when this share of the calls failed. Default: 60.",
    ),
    setting(
        "circuit_breaker.sleep_window_ms",
        "How long a circuit stays open, doubled at each failed recovery. Default: 30000.",
    ),
    setting("circuit_breaker.half_open_max_calls", "How many probes find out about recovery. Default: 5."),
    setting(
        "circuit_breaker.half_open_success_threshold",
        "The share of probes that must succeed for a circuit to close. Default: 0.6.",
    ),
    setting(
        "limits.webhook.requests_per_minute",
        "How fast one webhook is sent to that does not say otherwise. No limit unless set.",
    ),
    setting("limits.webhook.burst", "How many at once after a pause. Default: one second's worth."),
    setting(
        "limits.tenant.requests_per_minute",
        "How fast is sent for a tenant that was given no limit of its own. No limit unless set.",
    ),
    setting("limits.tenant.burst", "How many at once after a pause. Default: one second's worth."),
    setting(
        "limits.tenant.max_in_flight",
        "Requests at once for a tenant that was given no number of its own. No limit unless set.",
    ),
    setting(
        "limits.global.requests_per_second",
        "How fast is sent for all together, to spare the network around. No limit unless set.",
    ),
    setting("limits.global.burst", "How many at once after a pause. Default: one second's worth."),
    setting("limits.api.requests_per_minute", "Calls of the API by one key. No limit unless set."),
    setting("limits.api.burst", "How many at once after a pause. Default: one second's worth."),
    setting(
        "limits.caps.max_in_flight",
        "The highest max_in_flight that a webhook may have. Stored webhooks with more are sent to with this.",
    ),
    setting(
        "limits.caps.requests_per_minute",
        "The highest rate that a webhook may have, and the rate of webhooks without one. No cap unless set.",
    ),
    setting("limits.caps.burst", "The highest burst that a webhook may have. No cap unless set."),
    setting(
        "limits.caps.max_attempts",
        "The most attempts of one delivery, in whatever way they are asked for.",
    ),
    setting("limits.caps.min_retry_delay", "The shortest delay between two attempts of one delivery."),
    setting(
        "limits.caps.timeout_ms",
        "The longest timeout of one attempt, growth included, in milliseconds.",
    ),
    setting(
        "limits.caps.webhooks_per_tenant",
        "How many webhooks one tenant may have, whatever its quota says.",
    ),
    setting(
        "webhooks.require_verification",
        "For whose webhooks the URL must be verified: always, portal (those of portal sessions) or never.",
    ),
    setting(
        "webhooks.disable_after",
        "A webhook that has only failed for so long is disabled: nobody looks after it. 0 for never.",
    ),
    setting("smtp.host", "The mail server through which owners are told of trouble. No mails without one."),
    setting("smtp.port", "Its port. 587 for starttls, 465 for tls and 25 for none, unless set."),
    setting(
        "smtp.tls",
        "starttls, tls (from the first byte on) or none, which is refused to other machines unless allowed.",
    ),
    setting("smtp.allow_plaintext", "Whether mails and the password may go to another machine in clear."),
    setting("smtp.ca_file", "The certificate of an authority to trust, instead of the public ones."),
    setting("smtp.username", "Who logs in. Nobody unless set."),
    setting("smtp.password", "The password. Better in a file or in the environment."),
    setting("smtp.password_file", "A file that holds the password."),
    setting(
        "smtp.from",
        "Who mails are from, such as Redrive <redrive@example.com>. Its domain names mails, too.",
    ),
    setting(
        "smtp.timeout",
        "How long the mail server may take for one step. One that hangs must not hold up the others.",
    ),
    setting(
        "smtp.max_per_minute",
        "How many mails this node sends in a minute. Most mail servers refuse much more.",
    ),
    setting("smtp.language", "en or de: the language of mails to tenants that chose none."),
    setting(
        "smtp.confirm_addresses",
        "Whether an address receives notifications only after its holder has confirmed it. Otherwise tenants can have \
         e-mails sent to anybody.",
    ),
    setting("smtp.trusted_domains", "Domains whose addresses need no confirmation, such as your own."),
    setting(
        "smtp.max_per_hour_per_tenant",
        "Notification e-mails for one tenant in an hour. Others are suppressed and listed.",
    ),
    setting("smtp.max_per_day_per_tenant", "The same in a day."),
    setting(
        "smtp.max_per_hour_per_address",
        "Notification e-mails to one address in an hour, over all tenants. Others are suppressed and listed.",
    ),
    setting("smtp.max_per_day_per_address", "The same in a day."),
    setting(
        "notifications.group_interval",
        "How long further dead deliveries of a webhook are gathered once one was told. An hour is soon enough.",
    ),
    setting(
        "notifications.circuit_group_interval",
        "The same for circuits that open and recover. Shorter, since these are the first to tell of an outage.",
    ),
    setting(
        "notifications.repeat_interval",
        "How long nothing more is said of names that are not found, and of quotas, while that lasts.",
    ),
    setting("notifications.secret_repeat_interval", "The same for secrets that are due to be changed."),
    setting(
        "log.level",
        "What is worth a line: error, warn, info, debug, or a filter such as info,redrive_engine=debug.",
    ),
    setting("log.format", "What a line looks like: text for people, json for machines."),
    setting(
        "tracing.otlp_endpoint",
        "A collector for traces that speaks OTLP over HTTP, such as http://127.0.0.1:4318. None: no spans are made.",
    ),
    setting("tracing.otlp_headers", "Headers for it, such as authorization=Bearer TOKEN,x-team=hooks."),
    setting("tracing.otlp_headers_file", "A file that holds the headers, for secret mounts."),
    setting("tracing.ca_file", "A file with a certificate to trust for https, beside the usual ones."),
    setting(
        "tracing.sample_ratio",
        "The share of events that begin a trace. A publisher with a trace decides for itself.",
    ),
    setting("tracing.service_name", "What this installation is called in traces."),
    setting("tracing.timeout", "How long the collector may take for one batch."),
    setting(
        "metrics.by_tenant",
        "Whether deliveries are counted for each tenant on /metrics. Off: anybody who may look sees the names.",
    ),
    setting("metrics.by_webhook", "Whether they are counted for each webhook. Off: there may be very many."),
    setting("metrics.by_event_type", "Whether they are counted for each event type. Off: tenants name them."),
    setting(
        "metrics.max_values",
        "How many tenants, webhooks and event types, each, are counted apart; the rest together as other.",
    ),
    setting(
        "dev.clock_speed",
        "Runs the clock of retries faster, to see days of retries in seconds; `redrive dev` only.",
    ),
    setting(
        "dev.clock_skew",
        "Makes this machine's clock wrong by so much, to see that nodes agree; `redrive dev` only.",
    ),
];

/// Returns the name of the environment variable of a setting.
pub fn env_name(key: &str) -> String {
    match key {
        // The admin key is the most commonly set variable, so its name is short.
        "auth.admin_key" => "REDRIVE_ADMIN_KEY".into(),
        _ => format!("REDRIVE_{}", key.replace('.', "_").to_uppercase()),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::config::{Config, Profile};

    fn keys_of(prefix: &str, value: &serde_json::Value, keys: &mut BTreeSet<String>) {
        match value {
            serde_json::Value::Object(members) => {
                for (name, member) in members {
                    keys_of(
                        &format!("{prefix}{}{name}", if prefix.is_empty() { "" } else { "." }),
                        member,
                        keys,
                    );
                }
            }
            _ => {
                keys.insert(prefix.to_owned());
            }
        }
    }

    fn listed() -> BTreeSet<String> {
        SETTINGS.iter().map(|setting| setting.key.to_owned()).collect()
    }

    #[test]
    fn every_setting_is_listed() {
        let config = serde_json::to_value(Config::defaults(Profile::Dev)).unwrap();
        let mut keys = BTreeSet::new();
        keys_of("", &config, &mut keys);
        // Sections whose settings are all optional serialize without them, so these keys are not found here.
        let listed = listed();
        let unlisted: Vec<_> = keys.difference(&listed).filter(|key| *key != "retry").collect();
        assert!(unlisted.is_empty(), "not in SETTINGS: {unlisted:?}");
    }

    #[test]
    fn every_listed_setting_exists() {
        for setting in SETTINGS {
            // A list has the wrong type for most settings; the error must not be "unknown".
            let file = format!("{} = []", setting.key);
            let error = crate::config::load::parse(Profile::Dev, &file, []).err().map(|e| e.to_string());
            assert!(!error.unwrap_or_default().contains("unknown"), "{}", setting.key);
        }
    }

    #[test]
    fn documentation_lists_exactly_all_settings() {
        let page = include_str!("../../../../docs/configuration.md");
        let documented: BTreeSet<String> = page
            .lines()
            .filter_map(|line| line.strip_prefix("| `")?.split_once('`').map(|(key, _)| key.to_owned()))
            .collect();
        assert_eq!(documented, listed());
        for setting in SETTINGS {
            assert!(page.contains(&env_name(setting.key)), "{} is not named", env_name(setting.key));
        }
    }
}
