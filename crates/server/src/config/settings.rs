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
        "Role of the node: all, api (serves the API, sends nothing) or worker (only sends). Default: all. Also --role.",
    ),
    setting("node", "Name of the node, shown with every attempt. Default: the host name."),
    setting(
        "pools",
        "Worker pools that the node serves. Default: default. Also --pool, repeated for each pool.",
    ),
    setting("server.listen", "Listen address and port. Loopback by default; use TLS to listen on a network."),
    setting(
        "server.drain_timeout",
        "Time that requests in flight have to finish at shutdown. Default: the timeout of one request.",
    ),
    setting(
        "server.max_connections",
        "Maximum open API connections. Further connections wait to be accepted.",
    ),
    setting(
        "server.max_connections_per_address",
        "Maximum API connections from one address. Behind a trusted proxy, requests in progress per client count.",
    ),
    setting(
        "server.header_timeout",
        "Timeout of the TLS handshake, and separately of receiving a request header.",
    ),
    setting("server.body_timeout", "Timeout of receiving a request body."),
    setting("server.write_timeout", "Maximum time without progress while a client reads its response."),
    setting(
        "server.idle_timeout",
        "Maximum idle time of a connection between requests; longer than the idle timeout of common proxies.",
    ),
    setting(
        "server.tls_cert",
        "PEM file with the certificate chain. If it is set, the server terminates TLS itself.",
    ),
    setting("server.tls_key", "PEM file with the private key of the certificate."),
    setting(
        "server.public_url",
        "Base URL of links, such as https://hooks.example.com. Default: the URL of each request.",
    ),
    setting(
        "server.trusted_proxies",
        "Networks of proxies whose X-Forwarded-* headers are trusted. Default: none, as any client can send them.",
    ),
    setting(
        "server.cors_origins",
        "Origins whose pages may call the API from a browser. Default: none, as pages should not contain keys.",
    ),
    setting(
        "database.url",
        "Store: sqlite:PATH for one node, or postgres://USER@HOST:PORT/DATABASE for several.",
    ),
    setting("database.password", "Password of the PostgreSQL user, instead of one in the URL."),
    setting("database.password_file", "File that contains the password, for secret mounts."),
    setting(
        "database.write_connections",
        "Connections of this node for scheduling and administrative writes. PostgreSQL only.",
    ),
    setting(
        "database.read_connections",
        "Connections of this node for listings and other read-only queries. PostgreSQL only.",
    ),
    setting("database.connect_timeout", "Timeout of connecting to PostgreSQL."),
    setting("database.statement_timeout", "Timeout of a write, and of waiting for a connection."),
    setting("database.query_timeout", "Timeout of a read-only query. A page of the API needs far less."),
    setting(
        "database.auto_migrate",
        "Whether an older schema is migrated at startup. If off, run `redrive migrate`.",
    ),
    setting(
        "database.allow_unsafe_durability",
        "Whether a PostgreSQL server is accepted that can lose acknowledged events in a crash. For tests only.",
    ),
    setting(
        "amqp.url",
        "RabbitMQ server that distributes ready work to nodes: amqp[s]://USER@HOST:PORT/VHOST. Also --amqp.",
    ),
    setting("amqp.password", "Password of the RabbitMQ user, instead of one in the URL."),
    setting("amqp.password_file", "File that contains the password, for secret mounts."),
    setting(
        "amqp.namespace",
        "Prefix of all queue and exchange names, so that several installations can share one virtual host.",
    ),
    setting(
        "amqp.prefetch",
        "Maximum unacknowledged tickets per queue and node. Each ticket names up to 100 deliveries.",
    ),
    setting(
        "cluster.lease",
        "Time without a heartbeat after which a node is declared dead. Longer than ordinary pauses.",
    ),
    setting(
        "redis.url",
        "Redis server through which nodes share limits and circuits: redis[s]://USER@HOST:PORT. Also --redis.",
    ),
    setting("redis.password", "Password of the Redis user, instead of one in the URL."),
    setting("redis.password_file", "File that contains the password, for secret mounts."),
    setting("redis.ca_file", "File with the CA certificate to trust for rediss://, instead of the system's."),
    setting("redis.namespace", "Prefix of all keys, so that several installations can share one server."),
    setting("redis.timeout", "Timeout of a reply, after which a node uses its local fallback."),
    setting("auth.admin_key", "Admin key, which allows everything. Also REDRIVE_ADMIN_KEY."),
    setting("auth.admin_key_file", "File that contains the admin key, for secret mounts."),
    setting("secrets.master_key", "Master key that secrets are encrypted with: 32 random bytes in base64."),
    setting("secrets.master_key_file", "File that contains the master key, for secret mounts."),
    setting("secrets.master_key_command", "Command that prints the master key, for key managers."),
    setting(
        "secrets.additional_master_key_files",
        "Files with additional master keys that stored secrets may use: the previous key, or the next one.",
    ),
    setting(
        "secrets.rotation_reminder_after",
        "Age of a webhook's secret after which its owner is reminded to rotate it. 0 for never.",
    ),
    setting("audit.retention", "Retention of the audit log. Long enough for a yearly audit."),
    setting(
        "egress.allow_http",
        "Whether webhooks may use plain http. Off by default, as payloads would be sent unencrypted.",
    ),
    setting(
        "egress.allow_networks",
        "Private networks that webhooks may reach. Default: none, as untrusted users choose the URLs.",
    ),
    setting(
        "egress.deny_networks",
        "Networks that are never reached, including public ones. Takes precedence over all other rules.",
    ),
    setting(
        "egress.allow_hosts",
        "The only hosts that webhooks may call, such as *.example.com. Empty: all. Allows no private address.",
    ),
    setting(
        "egress.deny_hosts",
        "Hosts that webhooks may not call, such as *.example.com. Takes precedence over all other rules.",
    ),
    setting(
        "egress.ports",
        "The only ports that webhooks may call. Empty: all except those of email, shells, databases and similar.",
    ),
    setting("egress.dns_servers", "DNS servers to use instead of the system's."),
    setting("egress.connect_timeout", "Timeout of connecting to an endpoint."),
    setting("egress.dns_timeout", "Timeout of resolving a host."),
    setting("egress.max_response_bytes", "Maximum bytes read of a response. Only 1 KiB of it is stored."),
    setting(
        "egress.max_requests_per_host",
        "Maximum requests in flight to one host, over all tenants. Protects third parties. 0 for no limit.",
    ),
    setting(
        "egress.max_connections_per_address",
        "Maximum open connections of this node to one IP address, over all host names. 0 for no limit.",
    ),
    setting(
        "delivery.max_in_flight",
        "Maximum requests in flight. A request counts until its outcome is stored.",
    ),
    setting(
        "delivery.webhook_max_in_flight",
        "Maximum requests in flight to a webhook without its own limit. Low, to protect small servers.",
    ),
    setting(
        "delivery.max_deliveries_in_memory",
        "Maximum deliveries in memory. Further deliveries wait in the store.",
    ),
    setting("delivery.max_payload_bytes_in_memory", "Maximum payload bytes in memory."),
    setting(
        "delivery.max_deliveries_per_lane",
        "Maximum deliveries in memory per lane of a webhook, so that no lane uses all of the memory.",
    ),
    setting("events.max_payload_bytes", "Maximum payload size. Larger payloads are rejected with 413."),
    setting(
        "events.idempotency_window",
        "Time for which a repeated idempotency key returns the first event.",
    ),
    setting(
        "events.max_hops",
        "Maximum deliveries that an event may have passed through when it is published. More indicate a loop.",
    ),
    setting(
        "sources",
        "RabbitMQ queues whose messages are published as events, as [[sources]] tables. Default: none.",
    ),
    setting(
        "retention.events",
        "Retention of events with their deliveries and attempts. Default: a quarter; 0 for ever. Tenants may differ.",
    ),
    setting(
        "retention.dead_letters",
        "Retention of dead letters with their attempts. Default: a month, to resend them; 0 for ever.",
    ),
    setting(
        "archive.url",
        "Folder or s3://BUCKET/PREFIX that stores data before it is pruned. Default: none, pruned data is lost.",
    ),
    setting(
        "archive.endpoint",
        "URL of the S3 service, such as https://minio.example.com. Default: Amazon S3.",
    ),
    setting("archive.region", "Region of the bucket."),
    setting("archive.access_key_id", "Access key with write permission. Default: the role of the machine."),
    setting("archive.secret_access_key", "Secret of the access key."),
    setting("archive.secret_access_key_file", "File that contains the secret, for secret mounts."),
    setting(
        "retry.schedule",
        "Delay before each attempt. Default: 0, 5s, 5m, 30m, 2h, 5h, 10h, 14h, 20h, 24h.",
    ),
    setting(
        "retry.base_delay_ms",
        "First delay of exponential backoff, which replaces the schedule. Default: 30000.",
    ),
    setting("retry.backoff_multiplier", "Growth factor of exponential backoff. Default: 2."),
    setting("retry.max_attempts", "Maximum attempts of exponential backoff. Default: 10."),
    setting("retry.max_delay_ms", "Maximum delay, and maximum Retry-After that is respected. Default: 24 h."),
    setting("retry.jitter", "Random spread of delays, so that retries do not arrive in waves. Default: 0.1."),
    setting("retry.timeout_ms", "Timeout of the first attempt. Default: 30000."),
    setting(
        "retry.timeout_growth_factor",
        "Growth factor of the timeout per attempt, up to three times the first. Default: 1.",
    ),
    setting(
        "retry.retry_on",
        "Responses that are retried: default, or all for every response other than 2xx.",
    ),
    setting(
        "retry.permanent_status_codes",
        "Responses that are not retried. Default: 400, 401, 403, 404, 410, 413, 414, 415, 451.",
    ),
    setting("retry.give_up_after", "Age at which a delivery is marked dead. Default: 5d."),
    setting("circuit_breaker.enabled", "Whether circuits open automatically. Default: true."),
    setting("circuit_breaker.window_size_ms", "Window in which attempts are counted. Default: 60000."),
    setting(
        "circuit_breaker.minimum_throughput",
        "Minimum attempts in the window before a circuit can open. Default: 20.",
    ),
    setting(
        "circuit_breaker.error_threshold_percentage",
        "Percentage of failed attempts at which a circuit opens. Default: 60.",
    ),
    setting(
        "circuit_breaker.sleep_window_ms",
        "Time for which a circuit stays open, doubled after each failed recovery. Default: 30000.",
    ),
    setting("circuit_breaker.half_open_max_calls", "Maximum probes of a half-open circuit. Default: 5."),
    setting(
        "circuit_breaker.half_open_success_threshold",
        "Share of probes that must succeed for a circuit to close. Default: 0.6.",
    ),
    setting(
        "limits.webhook.requests_per_minute",
        "Send rate limit of a webhook without its own limit. Unlimited unless set.",
    ),
    setting(
        "limits.webhook.burst",
        "Requests that may be sent together after idle time. Default: one second of the rate.",
    ),
    setting(
        "limits.tenant.requests_per_minute",
        "Send rate limit of a tenant without its own limit. Unlimited unless set.",
    ),
    setting(
        "limits.tenant.burst",
        "Requests that may be sent together after idle time. Default: one second of the rate.",
    ),
    setting(
        "limits.tenant.max_in_flight",
        "Maximum requests in flight of a tenant without its own limit. Unlimited unless set.",
    ),
    setting(
        "limits.global.requests_per_second",
        "Send rate limit of the whole cluster, in requests per second. Unlimited unless set.",
    ),
    setting(
        "limits.global.burst",
        "Requests that may be sent together after idle time. Default: one second of the rate.",
    ),
    setting("limits.api.requests_per_minute", "Rate limit of API calls per key. Unlimited unless set."),
    setting(
        "limits.api.burst",
        "API calls that are allowed together after idle time. Default: one second of the rate.",
    ),
    setting(
        "limits.caps.max_in_flight",
        "Upper bound of a webhook's max_in_flight, also for stored webhooks with a higher value.",
    ),
    setting(
        "limits.caps.requests_per_minute",
        "Upper bound of a webhook's send rate, and the rate of webhooks without one. No cap unless set.",
    ),
    setting("limits.caps.burst", "Upper bound of a webhook's burst. No cap unless set."),
    setting("limits.caps.max_attempts", "Upper bound of the attempts of one delivery."),
    setting("limits.caps.min_retry_delay", "Minimum delay between two attempts of one delivery."),
    setting(
        "limits.caps.timeout_ms",
        "Upper bound of the timeout of one attempt, including its growth, in milliseconds.",
    ),
    setting("limits.caps.webhooks_per_tenant", "Maximum webhooks of one tenant, regardless of its quota."),
    setting(
        "webhooks.require_verification",
        "Webhooks whose URL must be verified: always, portal (those of portal sessions) or never.",
    ),
    setting(
        "webhooks.disable_after",
        "Time without a successful attempt after which a failing webhook is disabled. 0 for never.",
    ),
    setting("smtp.host", "SMTP server for emails to owners. No emails are sent unless set."),
    setting("smtp.port", "Port of the SMTP server. Default: 587 for starttls, 465 for tls, 25 for none."),
    setting(
        "smtp.tls",
        "Encryption: starttls, tls (from the first byte) or none, which only loopback allows by default.",
    ),
    setting(
        "smtp.allow_plaintext",
        "Whether emails and the password may be sent unencrypted to another machine.",
    ),
    setting("smtp.ca_file", "File with the CA certificate to trust, instead of the public ones."),
    setting("smtp.username", "User name. No authentication unless set."),
    setting("smtp.password", "Password. Prefer a file or the environment."),
    setting("smtp.password_file", "File that contains the password."),
    setting(
        "smtp.from",
        "Sender of emails, such as Redrive <redrive@example.com>. Its domain is also used in message ids.",
    ),
    setting(
        "smtp.timeout",
        "Timeout of one SMTP command, so that a hanging server does not block other emails.",
    ),
    setting(
        "smtp.max_per_minute",
        "Maximum emails per minute of this node. Most SMTP servers reject much more.",
    ),
    setting("smtp.language", "Language of emails to tenants that have not chosen one: en or de."),
    setting(
        "smtp.confirm_addresses",
        "Whether an address receives notifications only after its holder has confirmed it. If off, tenants can have \
         emails sent to any address.",
    ),
    setting("smtp.trusted_domains", "Domains whose addresses need no confirmation, such as your own."),
    setting(
        "smtp.max_per_hour_per_tenant",
        "Maximum notification emails per hour for one tenant. Further ones are suppressed and listed.",
    ),
    setting("smtp.max_per_day_per_tenant", "Maximum notification emails per day for one tenant."),
    setting(
        "smtp.max_per_hour_per_address",
        "Maximum notification emails per hour to one address, over all tenants. Further ones are suppressed.",
    ),
    setting(
        "smtp.max_per_day_per_address",
        "Maximum notification emails per day to one address, over all tenants.",
    ),
    setting(
        "notifications.group_interval",
        "Interval in which further dead deliveries of a webhook are grouped after a notification.",
    ),
    setting(
        "notifications.circuit_group_interval",
        "Group interval for circuits. Shorter, as they are the first sign of an outage.",
    ),
    setting(
        "notifications.repeat_interval",
        "Interval between notifications about a lasting condition: DNS failures and quotas.",
    ),
    setting(
        "notifications.secret_repeat_interval",
        "Interval between notifications about a secret due for rotation.",
    ),
    setting(
        "log.level",
        "Log level: error, warn, info or debug, or a filter such as info,redrive_engine=debug.",
    ),
    setting("log.format", "Log format: text for people, json for machines."),
    setting(
        "tracing.otlp_endpoint",
        "OTLP/HTTP collector for traces, such as http://127.0.0.1:4318. No spans are created unless set.",
    ),
    setting(
        "tracing.otlp_headers",
        "Headers for the collector, such as authorization=Bearer TOKEN,x-team=hooks.",
    ),
    setting("tracing.otlp_headers_file", "File that contains the headers, for secret mounts."),
    setting(
        "tracing.ca_file",
        "File with a CA certificate to trust for https, in addition to the default ones.",
    ),
    setting(
        "tracing.sample_ratio",
        "Share of events that start a trace. The publisher's own trace takes precedence.",
    ),
    setting("tracing.service_name", "Service name of this installation in traces."),
    setting("tracing.timeout", "Timeout of sending one batch to the collector."),
    setting(
        "metrics.by_tenant",
        "Whether /metrics counts deliveries per tenant. Off by default, as it shows the names to every reader.",
    ),
    setting(
        "metrics.by_webhook",
        "Whether /metrics counts deliveries per webhook. Off by default, as there may be very many.",
    ),
    setting(
        "metrics.by_event_type",
        "Whether /metrics counts deliveries per event type. Off by default, as tenants choose the names.",
    ),
    setting(
        "metrics.max_values",
        "Maximum tenants, webhooks and event types, each, with their own series. The rest is counted as other.",
    ),
    setting(
        "dev.clock_speed",
        "Factor by which the clock of retries runs faster, to see days of retries in seconds. `redrive dev` only.",
    ),
    setting(
        "dev.clock_skew",
        "Simulated clock error of this machine, to test that nodes agree. `redrive dev` only.",
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
