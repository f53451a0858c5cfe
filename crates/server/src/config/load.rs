//! Loads settings from the file, the environment and flags; each overrides the one before it. An unknown setting
//! is an error that names the closest known setting.

use std::path::{Path, PathBuf};

use toml::{Table, Value};

use super::{
    Config, Profile, SETTINGS, env_name, kubernetes, secret, secret_files,
    settings::{is_secret, setting},
    sources,
};

/// Reason why the settings are rejected.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The configuration file cannot be read.
    #[error("the configuration file {path} cannot be read: {reason}")]
    File {
        /// Path of the file.
        path: PathBuf,
        /// Cause of the failure.
        reason: String,
    },
    /// A secret file cannot be read.
    #[error("{setting}: {path} cannot be read: {reason}; check the path and its permissions")]
    SecretFile {
        /// The setting that names the file.
        setting: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// Cause of the failure.
        reason: String,
    },
    /// A file that holds a secret is readable or writable by other users.
    #[error(
        "{setting}: {path} contains a secret and is accessible to other users of this machine; run: {fix}"
    )]
    Exposed {
        /// The setting that names the file, or whose value it holds.
        setting: String,
        /// Path of the file.
        path: PathBuf,
        /// Command that restricts the file's permissions.
        fix: String,
    },
    /// The file is not valid TOML.
    #[error("the configuration file is not valid TOML: {0}")]
    Syntax(String),
    /// A setting does not exist.
    #[error("unknown setting {setting}{}", nearest(setting))]
    Unknown {
        /// The setting as written.
        setting: String,
    },
    /// A value is invalid.
    #[error("{setting}: {reason}")]
    Invalid {
        /// The setting.
        setting: String,
        /// The problem, and what would be valid.
        reason: String,
    },
}

/// Returns a suggestion with the known setting closest to this one.
fn nearest(setting: &str) -> String {
    let is_env = setting.starts_with("REDRIVE_");
    let name = |key: &str| if is_env { env_name(key) } else { key.to_owned() };
    let written = setting.strip_prefix("REDRIVE_").unwrap_or(setting).to_lowercase();
    // A section alone, or a key without its section, counts as a match too.
    let distance = |key: &str| {
        let (section, rest) = key.split_once('.').unwrap_or((key, key));
        let last = key.rsplit('.').next().unwrap_or(key);
        let whole = key.replace('.', "_");
        let spellings = [key, whole.as_str(), section, rest, last];
        spellings.iter().map(|known| strsim::damerau_levenshtein(known, &written)).min()
    };
    let best = SETTINGS.iter().min_by_key(|known| distance(&known.key));
    best.map_or_else(String::new, |best| format!("; did you mean {}?", name(&best.key)))
}

/// Settings given by command-line flags.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    /// `--role`.
    pub role: Option<String>,
    /// `--listen`.
    pub listen: Option<String>,
    /// `--database-url`.
    pub database_url: Option<String>,
    /// `--redis`.
    pub redis_url: Option<String>,
    /// `--amqp`.
    pub amqp_url: Option<String>,
    /// All values of `--pool`.
    pub pools: Vec<String>,
}

/// Reads all settings of a profile and validates them.
pub fn load(profile: Profile, file: Option<&Path>, flags: &Overrides) -> Result<Config, ConfigError> {
    let text = match file {
        Some(path) => std::fs::read_to_string(path)
            .map_err(|error| ConfigError::File { path: path.to_owned(), reason: error.to_string() })?,
        None => String::new(),
    };
    let mut config = read(profile, &text, environment()?, flags)?;
    if let Some(path) = file {
        // `read` has already parsed the text as TOML.
        let secret = text.parse().ok().and_then(|table| secret_files::secret_in(&table));
        config.file_with_secret = secret.map(|setting| (setting, path.to_owned()));
    }
    secret::read_files(&mut config)?;
    config.validate(profile)?;
    Ok(config)
}

/// Sections that a demo takes from the environment. The others name a real installation (its store, keys, servers and
/// recipients), or would keep the demo from calling its own receivers.
const DEMO_SECTIONS: [&str; 14] = [
    "audit",
    "circuit_breaker",
    "delivery",
    "dev",
    "events",
    "limits",
    "log",
    "metrics",
    "notifications",
    "oidc",
    "retention",
    "retry",
    "server",
    "tracing",
];

/// Which environment variables a demo uses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DemoEnvironment {
    /// Names of the variables whose settings apply.
    pub used: Vec<String>,
    /// Names of the variables that a demo ignores.
    pub ignored: Vec<String>,
}

/// Applies to `defaults` the environment variables that a demo uses.
pub fn load_demo(defaults: &Config) -> Result<(Config, DemoEnvironment), ConfigError> {
    let (mut config, environment) = read_demo(defaults, environment()?)?;
    secret::read_files(&mut config)?;
    Ok((config, environment))
}

fn read_demo(
    defaults: &Config,
    variables: Vec<(String, String)>,
) -> Result<(Config, DemoEnvironment), ConfigError> {
    let mut table = Table::new();
    let mut environment = DemoEnvironment::default();
    for (name, value) in variables {
        if kubernetes::is_service_variable(&name, &value) {
            continue;
        }
        let setting = SETTINGS.iter().find(|setting| setting.env == name);
        match setting.filter(|setting| is_for_demo(&setting.key)) {
            Some(setting) => {
                set(&mut table, &setting.key, env_value(&setting.key, &value));
                environment.used.push(name);
            }
            None => environment.ignored.push(name),
        }
    }
    environment.used.sort_unstable();
    environment.ignored.sort_unstable();
    Ok((merge(defaults, table)?, environment))
}

/// Returns whether a demo takes a setting from the environment.
fn is_for_demo(key: &str) -> bool {
    let section = key.split_once('.').map_or(key, |(section, _)| section);
    DEMO_SECTIONS.contains(&section) || matches!(key, "node" | "webhooks.disable_after")
}

/// Returns the environment variables whose names begin with `REDRIVE_`. Fails if the value of one is not UTF-8.
fn environment() -> Result<Vec<(String, String)>, ConfigError> {
    let all = std::env::vars_os().map(|(name, value)| (name.to_string_lossy().into_owned(), value));
    let own = all.filter(|(name, _)| name.starts_with("REDRIVE_"));
    own.map(|(name, value)| match value.into_string() {
        Ok(value) => Ok((name, value)),
        Err(_) => Err(ConfigError::Invalid { setting: name, reason: "must be text in UTF-8".into() }),
    })
    .collect()
}

/// Applies a file's text, environment variables and flags to the defaults.
fn read(
    profile: Profile,
    text: &str,
    environment: impl IntoIterator<Item = (String, String)>,
    flags: &Overrides,
) -> Result<Config, ConfigError> {
    let mut table: Table = text.parse().map_err(|error| not_toml(text, &error))?;
    reject_unknown("", &table)?;
    for (name, value) in environment {
        if !name.starts_with("REDRIVE_") || kubernetes::is_service_variable(&name, &value) {
            continue;
        }
        let Some(setting) = SETTINGS.iter().find(|setting| setting.env == name) else {
            return Err(ConfigError::Unknown { setting: name });
        };
        set(&mut table, &setting.key, env_value(&setting.key, &value));
    }
    let Overrides { role, listen, database_url, redis_url, amqp_url, pools } = flags;
    let given = [
        ("role", role),
        ("server.listen", listen),
        ("database.url", database_url),
        ("redis.url", redis_url),
        ("amqp.url", amqp_url),
    ];
    for (key, value) in given {
        if let Some(value) = value {
            set(&mut table, key, Value::String(value.clone()));
        }
    }
    if !pools.is_empty() {
        set(&mut table, "pools", Value::Array(pools.iter().cloned().map(Value::String).collect()));
    }
    merge(&Config::defaults(profile), table)
}

/// Returns an error with the line number and the problem, but without the text, which may be a secret.
fn not_toml(text: &str, error: &toml::de::Error) -> ConfigError {
    let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
    let line = before.matches('\n').count() + 1;
    ConfigError::Syntax(format!("line {line}: {}", error.message()))
}

fn reject_unknown(prefix: &str, table: &Table) -> Result<(), ConfigError> {
    for (name, value) in table {
        let key = format!("{prefix}{name}");
        match value {
            Value::Table(inner)
                if SETTINGS.iter().any(|setting| setting.key.starts_with(&format!("{key}."))) =>
            {
                reject_unknown(&format!("{key}."), inner)?;
            }
            _ if setting(&key).is_some() => {}
            _ => return Err(ConfigError::Unknown { setting: key }),
        }
    }
    Ok(())
}

/// Parses an environment variable. Node names and secrets are strings; other values are read as TOML, or else as
/// strings.
pub(super) fn env_value(key: &str, value: &str) -> Value {
    if key == "node" || is_secret(key) {
        return Value::String(value.into());
    }
    let as_toml =
        format!("value = {value}").parse::<Table>().ok().and_then(|mut table| table.remove("value"));
    as_toml.unwrap_or_else(|| Value::String(value.into()))
}

/// Checks that a setting takes a value, written as in an environment variable.
pub(super) fn parse_value(key: &str, value: &str) -> Result<(), ConfigError> {
    let mut table = Table::new();
    set(&mut table, key, env_value(key, value));
    merge(&Config::defaults(Profile::Serve), table).map(drop)
}

fn set(table: &mut Table, key: &str, value: Value) {
    match key.split_once('.') {
        None => {
            table.insert(key.into(), value);
        }
        Some((section, rest)) => {
            let inner = table.entry(section).or_insert_with(|| Value::Table(Table::new()));
            if let Value::Table(inner) = inner {
                set(inner, rest, value);
            }
        }
    }
}

fn merge(defaults: &Config, changes: Table) -> Result<Config, ConfigError> {
    let mut merged = to_table(defaults)?;
    overlay(&mut merged, changes);
    serde_path_to_error::deserialize(Value::Table(merged)).map_err(|error| {
        let setting = error.path().to_string();
        let message = error.into_inner().message().to_owned();
        let reason = match is_secret(&setting) {
            true => "must be a string in quotes".into(),
            false => sources::without_secrets(&setting, message.clone())
                .unwrap_or_else(|| format!("{message}{}", hint(&setting))),
        };
        ConfigError::Invalid { setting, reason }
    })
}

/// Merges changes into a table recursively.
fn overlay(table: &mut Table, changes: Table) {
    for (name, value) in changes {
        match (table.get_mut(&name), value) {
            (Some(Value::Table(old)), Value::Table(new)) => overlay(old, new),
            (_, value) => {
                table.insert(name, value);
            }
        }
    }
}

/// Returns an example of a valid value for settings whose error message does not give one.
fn hint(setting: &str) -> &'static str {
    match setting.split('[').next() {
        Some("egress.allow_networks" | "server.trusted_proxies") => {
            "; write a list of networks, such as [\"10.0.0.0/8\", \"192.168.1.7/32\"]"
        }
        Some("server.cors_origins") => "; write a list of origins, such as [\"https://app.example.com\"]",
        Some("egress.deny_networks") => "; write a list of networks, such as [\"203.0.113.0/24\"]",
        Some("egress.allow_hosts" | "egress.deny_hosts") => {
            "; write a list of host names, such as [\"hooks.example.com\", \"*.example.org\"]"
        }
        Some("egress.ports") => "; write a list of ports and ranges, such as [\"443\", \"8000-8999\"]",
        Some("egress.dns_servers") => "; write a list of hosts with ports, such as [\"10.0.0.2:53\"]",
        Some("log.format") => "; write text or json",
        Some("role") => "; write all, api or worker",
        Some("pools") => "; write a list of names, such as [\"default\", \"gold\"]",
        _ => "",
    }
}

fn to_table(config: &Config) -> Result<Table, ConfigError> {
    Table::try_from(config).map_err(|error| ConfigError::Syntax(error.to_string()))
}

/// Reads settings from a file's text and environment variables, without flags.
#[cfg(test)]
pub(super) fn parse(
    profile: Profile,
    text: &str,
    environment: impl IntoIterator<Item = (String, String)>,
) -> Result<Config, ConfigError> {
    read(profile, text, environment, &Overrides::default())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use redrive_core::Role;

    use super::*;
    use crate::config::Backend;

    fn env(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect()
    }

    #[test]
    fn environment_overrides_file() {
        let file = "[delivery]\nmax_in_flight = 7\nmax_deliveries_per_lane = 9";
        let config = parse(Profile::Serve, file, env(&[("REDRIVE_DELIVERY_MAX_IN_FLIGHT", "8")])).unwrap();
        assert_eq!((config.delivery.max_in_flight, config.delivery.max_deliveries_per_lane), (8, 9));
        assert_eq!(config.delivery.max_deliveries_in_memory, 20_000, "the rest keeps its default");
    }

    #[test]
    fn demo_uses_only_settings_that_concern_no_real_installation() {
        let mut defaults = Config::defaults(Profile::Dev);
        defaults.log.level = "warn".into();
        let variables = env(&[
            ("REDRIVE_LIMITS_WEBHOOK_REQUESTS_PER_MINUTE", "90"),
            ("REDRIVE_LOG_FORMAT", "json"),
            ("REDRIVE_DATABASE_URL", "postgres://db.example/real"),
            ("REDRIVE_ADMIN_KEY", "0123456789abcdef0123456789abcdef"),
            ("REDRIVE_EGRESS_ALLOW_HTTP", "false"),
            ("REDRIVE_NO_SUCH_SETTING", "1"),
        ]);
        let (config, environment) = read_demo(&defaults, variables).unwrap();
        assert_eq!(environment.used, ["REDRIVE_LIMITS_WEBHOOK_REQUESTS_PER_MINUTE", "REDRIVE_LOG_FORMAT"]);
        assert_eq!(environment.ignored.len(), 4);
        assert_eq!((config.limits.webhook.requests_per_minute, &*config.log.level), (Some(90), "warn"));
        let untouched = Config { limits: config.limits.clone(), log: config.log.clone(), ..defaults };
        assert_eq!(to_table(&config).unwrap(), to_table(&untouched).unwrap());
        let invalid = read_demo(&untouched, env(&[("REDRIVE_EVENTS_MAX_HOPS", "many")])).unwrap_err();
        assert!(invalid.to_string().starts_with("events.max_hops: "), "{invalid}");
    }

    #[test]
    fn unknown_setting_error_suggests_closest_match() {
        let error = |file: &str, vars: &[(&str, &str)]| {
            parse(Profile::Serve, file, env(vars)).unwrap_err().to_string()
        };
        assert_eq!(
            error("[delivery]\nmax_inflight = 7", &[]),
            "unknown setting delivery.max_inflight; did you mean delivery.max_in_flight?"
        );
        assert_eq!(
            error("", &[("REDRIVE_SERVER_LISTENS", "x")]),
            "unknown setting REDRIVE_SERVER_LISTENS; did you mean REDRIVE_SERVER_LISTEN?"
        );
        assert_eq!(error("[delivry]", &[]), "unknown setting delivry; did you mean delivery.max_in_flight?");
        assert_eq!(error("listen = 1", &[]), "unknown setting listen; did you mean server.listen?");
        let listen = error("", &[("REDRIVE_LISTEN", "x")]);
        assert_eq!(listen, "unknown setting REDRIVE_LISTEN; did you mean REDRIVE_SERVER_LISTEN?");
    }

    #[test]
    fn invalid_value_error_names_the_setting() {
        let error = |file: &str| parse(Profile::Serve, file, []).unwrap_err().to_string();
        let listen = error("[server]\nlisten = \"localhost\"");
        assert!(listen.starts_with("server.listen: ") && listen.contains("127.0.0.1:8080"), "{listen}");
        assert!(
            error("[delivery]\nmax_deliveries_in_memory = \"many\"")
                .starts_with("delivery.max_deliveries_in_memory: ")
        );
        assert!(error("[egress]\nallow_networks = [\"10.0.0.0/99\"]").starts_with("egress.allow_networks"));
        assert!(error("not toml").contains("not valid TOML"));
    }

    #[test]
    fn environment_accepts_lists_and_durations() {
        let vars = env(&[
            ("REDRIVE_EGRESS_ALLOW_NETWORKS", "[\"10.0.0.0/8\"]"),
            ("REDRIVE_RETRY_SCHEDULE", "[0, \"5s\"]"),
            ("REDRIVE_SERVER_DRAIN_TIMEOUT", "10s"),
            ("REDRIVE_ADMIN_KEY", "12345678901234567890123456789012"),
        ]);
        let config = parse(Profile::Serve, "", vars).unwrap();
        assert_eq!(config.egress.allow_networks.len(), 1);
        assert_eq!(config.retry_policy().unwrap().max_attempts(), 2);
        assert_eq!(config.server.drain_timeout.as_duration().as_secs(), 10);
        assert_eq!(config.auth.admin_key.unwrap().reveal(), "12345678901234567890123456789012");
    }

    #[test]
    fn egress_lists_are_parsed_and_validated() {
        let file = "[egress]\ndeny_networks = [\"203.0.113.0/24\"]\nallow_hosts = [\"*.Example.com.\"]";
        let vars = env(&[
            ("REDRIVE_EGRESS_DENY_HOSTS", "[\"bad.example.com\"]"),
            ("REDRIVE_EGRESS_PORTS", "[443, \"8000-8999\"]"),
            ("REDRIVE_EGRESS_DNS_SERVERS", "[\"127.0.0.1:5353\", \"[::1]:53\"]"),
        ]);
        let config = parse(Profile::Serve, file, vars).unwrap();
        config.validate(Profile::Serve).unwrap();
        let reach = config.egress.reach(None);
        assert!(reach.check_name("a.example.com", 443).is_ok());
        assert!(reach.check_name("bad.example.com", 443).is_err());
        assert!(reach.check_name("a.example.com", 80).is_err());
        assert!(reach.check_address([203, 0, 113, 1].into()).is_err());
        assert_eq!(config.egress.dns_servers.len(), 2);
        let shown = toml::to_string(&config.egress).unwrap();
        assert!(shown.contains("allow_hosts = [\"*.example.com\"]"), "{shown}");
        for (setting, value, expected) in [
            ("egress.deny_networks", "[\"x\"]", "203.0.113.0/24"),
            ("egress.deny_hosts", "[\"10.0.0.1\"]", "egress.deny_networks"),
            ("egress.allow_hosts", "\"example.com\"", "a list of host names"),
            ("egress.ports", "[\"http\"]", "8000-8999"),
            ("egress.dns_servers", "[\"10.0.0.2\"]", "10.0.0.2:53"),
        ] {
            let message = parse(Profile::Serve, &format!("{setting} = {value}"), []).unwrap_err().to_string();
            assert!(message.starts_with(setting) && message.contains(expected), "{message}");
        }
        let port = parse(Profile::Serve, "egress.dns_servers = [\"10.0.0.2:0\"]", []).unwrap();
        assert!(port.validate(Profile::Serve).unwrap_err().to_string().contains("usually 53"));
    }

    #[test]
    fn unsafe_settings_are_rejected() {
        let refused = |profile, file: &str| {
            parse(profile, file, []).unwrap().validate(profile).unwrap_err().to_string()
        };
        assert!(refused(Profile::Dev, "[server]\nlisten = \"0.0.0.0:80\"").contains("redrive serve"));
        assert!(refused(Profile::Serve, "[dev]\nclock_speed = 2.0").contains("clock_speed"));
        assert!(refused(Profile::Serve, "[dev]\nclock_skew = \"-1s\"").contains("outside `redrive dev`"));
        assert!(
            refused(Profile::Serve, "[egress]\nallow_networks = [\"0.0.0.0/0\"]").contains("whole internet")
        );
        assert!(refused(Profile::Serve, "[auth]\nadmin_key = \"short\"").contains("32 characters"));
        assert!(refused(Profile::Serve, "[database]\nurl = \"mysql://x\"").contains("sqlite:PATH"));
        assert!(refused(Profile::Serve, "[log]\nlevel = \"loud\"").contains("is not a level"));
        assert!(refused(Profile::Serve, "[egress]\nconnect_timeout = 0").contains("10ms"));
        assert!(refused(Profile::Serve, "[retry]\njitter = 3.0").starts_with("retry.jitter"));
    }

    #[test]
    fn breaker_limits_and_pools_reach_engine_settings() {
        let file =
            "pools = [\"gold\"]\n[circuit_breaker]\nminimum_throughput = 3\n[limits.webhook]\nburst = 9";
        let vars = env(&[
            ("REDRIVE_LIMITS_WEBHOOK_REQUESTS_PER_MINUTE", "600"),
            ("REDRIVE_LIMITS_TENANT_MAX_IN_FLIGHT", "50"),
            ("REDRIVE_CIRCUIT_BREAKER_SLEEP_WINDOW_MS", "5000"),
            ("REDRIVE_WEBHOOKS_DISABLE_AFTER", "0"),
        ]);
        let settings = parse(Profile::Serve, file, vars).unwrap().engine_settings().unwrap();
        let limit = settings.webhook_rate_limit.unwrap();
        assert_eq!((limit.requests_per_minute, limit.burst), (600, Some(9)));
        assert_eq!((settings.tenant_rate_limit, settings.tenant_max_in_flight), (None, Some(50)));
        assert_eq!((settings.breaker.minimum_throughput, settings.breaker.half_open_max_calls), (3, 5));
        assert_eq!(settings.breaker.sleep_window.as_secs(), 5);
        assert_eq!((settings.disable_after, settings.pools), (None, vec!["gold".to_owned()]));
        let defaults = Config::defaults(Profile::Serve).engine_settings().unwrap();
        assert_eq!(defaults.disable_after.map(|after| after.as_secs()), Some(5 * 86_400));
        assert_eq!(defaults.pools, ["default"]);
    }

    #[test]
    fn invalid_breaker_limits_and_pools_are_rejected() {
        let refused = |file: &str| {
            let config = parse(Profile::Serve, file, []).unwrap();
            config.validate(Profile::Serve).unwrap_err().to_string()
        };
        for (setting, value) in [
            ("circuit_breaker.window_size_ms", "0"),
            ("circuit_breaker.minimum_throughput", "0"),
            ("circuit_breaker.error_threshold_percentage", "101"),
            ("circuit_breaker.sleep_window_ms", "1"),
            ("circuit_breaker.half_open_max_calls", "0"),
            ("circuit_breaker.half_open_success_threshold", "0"),
            ("limits.webhook.requests_per_minute", "6000001"),
            ("limits.webhook.burst", "0"),
            ("limits.tenant.requests_per_minute", "0"),
            ("limits.tenant.burst", "1"),
            ("limits.tenant.max_in_flight", "0"),
            ("limits.global.requests_per_second", "0"),
            ("limits.global.burst", "1"),
            ("limits.api.requests_per_minute", "0"),
            ("limits.api.burst", "1"),
            ("pools", "[]"),
            ("pools", "[\"Not a name\"]"),
        ] {
            let message = refused(&format!("{setting} = {value}"));
            assert!(message.starts_with(&format!("{setting}: ")), "{message}");
        }
        let text = parse(Profile::Serve, "", env(&[("REDRIVE_POOLS", "gold")])).unwrap_err().to_string();
        assert!(text.starts_with("pools: ") && text.contains("a list of names"), "{text}");
        let typo = parse(Profile::Serve, "[limits.tenants]", []).unwrap_err().to_string();
        assert!(typo.contains("did you mean limits.tenant."), "{typo}");
    }

    #[test]
    fn node_and_database_settings_are_loaded() {
        let file =
            "role = \"api\"\nnode = \"web-1\"\n[cluster]\nlease = \"8s\"\n[database]\nauto_migrate = false";
        let vars = env(&[
            ("REDRIVE_ROLE", "worker"),
            ("REDRIVE_DATABASE_URL", "postgres://me@db/redrive"),
            ("REDRIVE_DATABASE_PASSWORD", "0123"),
            ("REDRIVE_DATABASE_WRITE_CONNECTIONS", "20"),
            ("REDRIVE_DEV_CLOCK_SKEW", "-1.5s"),
        ]);
        let config = parse(Profile::Dev, file, vars.clone()).unwrap();
        config.validate(Profile::Dev).unwrap();
        assert_eq!(config.dev.clock_skew.millis(), -1_500);
        let settings = config.engine_settings().unwrap();
        assert_eq!((settings.node.as_str(), settings.role), ("web-1", Role::Worker));
        assert_eq!(settings.lease.as_secs(), 8);
        let Backend::Postgres(options) = config.database.backend().unwrap() else { panic!("{config:?}") };
        assert_eq!((options.writers, options.migrate), (20, false));
        assert_eq!(options.password.as_deref(), Some("0123"), "a string although it could be a number");
        let flags = Overrides { role: Some("all".into()), ..Overrides::default() };
        assert_eq!(read(Profile::Dev, file, vars, &flags).unwrap().role, Role::All, "flags win");
        let wrong = parse(Profile::Serve, "role = \"boss\"", []).unwrap_err().to_string();
        assert!(wrong.starts_with("role: ") && wrong.ends_with("; write all, api or worker"), "{wrong}");
    }

    /// Generates valid and invalid values.
    fn any_value() -> impl Strategy<Value = String> {
        prop_oneof![
            "-?[0-9]{1,20}(\\.[0-9]{1,3})?|inf|nan|true|false",
            "\"[0-9]{1,6}(ms|s|m|h|d)\"",
            "\"(sqlite:|postgres://)?[a-z0-9.:@/?%-]{0,24}\"",
            "\\[(\"[a-z0-9./]{0,12}\",?){0,3}\\]",
            "\\{[a-z]{1,4} = [0-9]\\}",
            "\\PC{0,20}",
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1_000))]

        #[test]
        fn any_value_is_accepted_or_rejected_with_setting_name(
            setting in proptest::sample::select(SETTINGS.as_slice()), value in any_value(), dev: bool,
        ) {
            let profile = if dev { Profile::Dev } else { Profile::Serve };
            let names = |error: &ConfigError| match error {
                ConfigError::Invalid { setting: named, .. } => setting.key.starts_with(named.split('[').next().unwrap_or(named)) || named.starts_with(&setting.key),
                ConfigError::Unknown { setting: named } => named.starts_with(&setting.key),
                ConfigError::Syntax(_) => true,
                ConfigError::File { .. } | ConfigError::SecretFile { .. } | ConfigError::Exposed { .. } => false,
            };
            let by_file = parse(profile, &format!("{} = {value}", setting.key), []);
            let by_env = parse(profile, "", env(&[(setting.env.as_str(), value.as_str())]));
            for read in [by_file, by_env] {
                match read.and_then(|config| config.validate(profile).map(|()| config)) {
                    // A validated configuration is usable.
                    Ok(config) => prop_assert!(config.engine_settings().is_ok() && config.retry_policy().is_ok()),
                    Err(error) => prop_assert!(names(&error), "{} = {}: {}", setting.key, value, error),
                }
            }
        }

        #[test]
        fn parsing_arbitrary_file_never_panics(text in prop_oneof!["([a-z.\\[\\]= \"0-9\n]{0,12}){0,6}", any::<String>()]) {
            let _ = parse(Profile::Serve, &text, []).map(|config| config.validate(Profile::Serve));
        }
    }
}
