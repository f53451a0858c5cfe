//! Database settings: a SQLite file of one process, or a PostgreSQL server that nodes share. The password is never
//! shown.

use std::{fmt, path::PathBuf, time::Duration};

use redrive_core::time::HumanDuration;
use redrive_store::postgres::Options;
use serde::{Deserialize, Serialize};
use url::{Url, form_urlencoded};

use super::{ConfigError, SecretSetting, settings::section};

section! {
    /// Settings of the store.
    #[derive(Clone, Debug, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    pub struct Database {
        /// The store: `sqlite:PATH`, whose folder is created if needed with access for its owner only, or
        /// `postgres://USER@HOST:PORT/DATABASE`.
        pub url: DatabaseUrl,
        /// Password of the PostgreSQL server; overrides one in the URL.
        pub password: Option<SecretSetting>,
        /// File with the password, for secret mounts; not read if `database.password` is set.
        pub password_file: Option<PathBuf>,
        /// Connections of this node to PostgreSQL for scheduling and for administrative writes, half of them each;
        /// opened on demand. Heartbeats, rescues, publishes and outcomes have [others](operations/postgres.md#sizing).
        /// 2 to 1000.
        pub write_connections: usize,
        /// Connections of this node to PostgreSQL for listings and other reads of users; one tenant uses at most half
        /// of them concurrently. 1 to 1000.
        pub read_connections: usize,
        /// Timeout for connecting to PostgreSQL. `100ms` to `5m`.
        pub connect_timeout: HumanDuration,
        /// Timeout of a PostgreSQL statement that writes, and of waiting for a connection. `100ms` to `5m`.
        pub statement_timeout: HumanDuration,
        /// Timeout of a PostgreSQL query; a longer one is stopped, so that it does not delay others. `100ms` to `5m`.
        pub query_timeout: HumanDuration,
        /// Whether a node migrates an older schema when it starts. `false`: the node does not start on an older one
        /// before [`redrive migrate`](#the-schema) has run.
        pub auto_migrate: bool,
        /// Whether to use a PostgreSQL server that can lose acknowledged events when it crashes (`fsync` or
        /// `full_page_writes` is off). For tests.
        pub allow_unsafe_durability: bool,
    }
}

impl Default for Database {
    fn default() -> Self {
        Self {
            url: DatabaseUrl("sqlite:redrive-data/redrive.db".into()),
            password: None,
            password_file: None,
            write_connections: 6,
            read_connections: 3,
            connect_timeout: HumanDuration::secs(3),
            statement_timeout: HumanDuration::secs(10),
            query_timeout: HumanDuration::secs(2),
            auto_migrate: true,
            allow_unsafe_durability: false,
        }
    }
}

/// A database URL, never shown with its password.
#[derive(Clone, Deserialize)]
pub struct DatabaseUrl(String);

impl From<&str> for DatabaseUrl {
    fn from(text: &str) -> Self {
        Self(text.into())
    }
}

impl fmt::Display for DatabaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.starts_with("sqlite:") {
            return f.write_str(&self.0);
        }
        // A URL that does not parse may contain a password anywhere.
        let Ok((mut url, password)) = self.read() else { return f.write_str("[redacted]") };
        if password.is_some() && url.set_password(Some("REDACTED")).is_ok() {
            return f.write_str(&url.as_str().replacen(":REDACTED@", ":[redacted]@", 1));
        }
        f.write_str(url.as_str())
    }
}

impl fmt::Debug for DatabaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl Serialize for DatabaseUrl {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Query parameters that a URL may have. Others have their own setting or are not supported.
const PARAMETERS: [&str; 14] = [
    "application_name",
    "channel_binding",
    "dbname",
    "host",
    "hostaddr",
    "load_balance_hosts",
    "options",
    "password",
    "port",
    "sslmode",
    "sslnegotiation",
    "sslrootcert",
    "target_session_attrs",
    "user",
];
const SSL_MODES: [&str; 5] = ["disable", "prefer", "require", "verify-ca", "verify-full"];

impl DatabaseUrl {
    /// Returns whether the URL names a PostgreSQL server.
    fn is_server(&self) -> bool {
        self.0.starts_with("postgres://") || self.0.starts_with("postgresql://")
    }

    /// Splits a PostgreSQL URL into the URL without its password, and the password. Errors do not quote the URL.
    fn read(&self) -> Result<(Url, Option<String>), String> {
        if !self.is_server() {
            return Err("must be sqlite:PATH or postgres://USER@HOST:PORT/DATABASE".into());
        }
        let spelling = "percent-encode special characters, such as %40 for @, %2F for / and %23 for \
                        #, and the password best into database.password_file";
        let unreadable = |reason: &str| format!("cannot be read ({reason}); {spelling}");
        let mut url = Url::parse(&self.0).map_err(|error| unreadable(&error.to_string()))?;
        if url.fragment().is_some() {
            return Err(unreadable("it contains a #"));
        }
        // An unescaped / or ? in the password would make the rest of it parse as the database name.
        if url.path().contains('@') || url.query().is_some_and(|query| query.contains('@')) {
            return Err(unreadable("there is an @ after the host"));
        }
        let mut password = url.password().map(percent_decoded);
        let mut rest: Vec<(String, String)> = Vec::new();
        for (name, value) in url.query_pairs() {
            match &*name {
                name if !PARAMETERS.contains(&name) => {
                    let known = PARAMETERS.join(", ");
                    return Err(format!("has an unknown query parameter; use only {known}, and {spelling}"));
                }
                "password" => password = Some(value.into_owned()),
                "sslmode" if !SSL_MODES.contains(&&*value) => {
                    return Err(format!("has an unknown sslmode; use {}", SSL_MODES.join(", ")));
                }
                _ => rest.push((name.into_owned(), value.into_owned())),
            }
        }
        let host = rest.iter().find(|(name, _)| name == "host").map(|(_, host)| host.clone());
        let host = host.unwrap_or_else(|| percent_decoded(url.host_str().unwrap_or_default()));
        // The store connects by TCP only.
        if host.is_empty() || host.starts_with('/') {
            let which = if host.is_empty() { "names no host" } else { "names a Unix socket" };
            return Err(format!("{which}; write postgres://USER@HOST:PORT/DATABASE"));
        }
        let _ = url.set_password(None);
        url.set_query(None);
        if !rest.is_empty() {
            url.query_pairs_mut().extend_pairs(rest);
        }
        Ok((url, password))
    }
}

/// Percent-decodes a part of a URL.
pub(crate) fn percent_decoded(part: &str) -> String {
    let pair = format!("part={}", part.replace('+', "%2B").replace('&', "%26"));
    form_urlencoded::parse(pair.as_bytes()).map(|(_, value)| value.into_owned()).collect()
}

/// The database behind the store.
#[derive(Clone, Debug)]
pub enum Backend {
    /// A SQLite file, used by this process only.
    Sqlite(PathBuf),
    /// A PostgreSQL server that nodes share.
    Postgres(Box<Options>),
}

impl Backend {
    /// Returns the path of a file next to the database file, or in `redrive-data` with PostgreSQL.
    pub fn sibling_path(&self, name: &str) -> PathBuf {
        match self {
            Self::Sqlite(path) => path.with_file_name(name),
            Self::Postgres(_) => PathBuf::from("redrive-data").join(name),
        }
    }
}

impl Backend {
    /// Sets `cluster.lease`, after which PostgreSQL ends the sessions of nodes that do not respond.
    pub fn with_lease(mut self, lease: Duration) -> Self {
        if let Self::Postgres(options) = &mut self {
            options.lease = lease;
        }
        self
    }

    /// Rejects a setting that requires a shared store if the store is SQLite.
    pub(super) fn require_shared_store(&self, setting: &str) -> Result<(), ConfigError> {
        match self {
            Self::Postgres(_) => Ok(()),
            Self::Sqlite(_) => Err(ConfigError::Invalid {
                setting: setting.into(),
                reason: "requires a PostgreSQL database that nodes share, but the database is SQLite; \
                         omit it, or set database.url to postgres://USER@HOST:PORT/DATABASE"
                    .into(),
            }),
        }
    }
}

impl fmt::Display for Backend {
    /// Writes the name of the database product.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sqlite(_) => "SQLite",
            Self::Postgres(_) => "PostgreSQL",
        })
    }
}

impl Database {
    /// Returns the backend that the URL names, with its connection options.
    pub fn backend(&self) -> Result<Backend, ConfigError> {
        let refused = |reason: String| ConfigError::Invalid { setting: "database.url".into(), reason };
        if let Some(path) = self.url.0.strip_prefix("sqlite:") {
            let path = path.trim_start_matches("//");
            return match path.is_empty() {
                true => Err(refused("names no file; write sqlite:PATH".into())),
                false => Ok(Backend::Sqlite(path.into())),
            };
        }
        let (url, password) = self.url.read().map_err(refused)?;
        let given = self.password.as_ref().map(|password| password.reveal().to_owned());
        Ok(Backend::Postgres(Box::new(Options {
            password: given.or(password),
            writers: self.write_connections,
            readers: self.read_connections,
            connect_timeout: self.connect_timeout.as_duration(),
            statement_timeout: self.statement_timeout.as_duration(),
            query_timeout: self.query_timeout.as_duration(),
            migrate: self.auto_migrate,
            allow_unsafe_durability: self.allow_unsafe_durability,
            ..Options::at(url)
        })))
    }

    /// Checks constraints that the types do not express.
    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        let refuse = |setting: &str, reason: &str| {
            Err(ConfigError::Invalid { setting: format!("database.{setting}"), reason: reason.into() })
        };
        self.backend()?;
        if !(2..=1_000).contains(&self.write_connections) {
            return refuse("write_connections", "must be from 2 to 1000");
        }
        if !(1..=1_000).contains(&self.read_connections) {
            return refuse("read_connections", "must be from 1 to 1000");
        }
        for (setting, span) in [
            ("connect_timeout", self.connect_timeout),
            ("statement_timeout", self.statement_timeout),
            ("query_timeout", self.query_timeout),
        ] {
            if !(HumanDuration::millis(100)..=HumanDuration::secs(300)).contains(&span) {
                return refuse(setting, "must be from 100ms to 5m");
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(url: &str) -> Database {
        Database { url: url.into(), ..Database::default() }
    }

    fn options(database: &Database) -> Options {
        match database.backend().unwrap() {
            Backend::Postgres(options) => *options,
            Backend::Sqlite(path) => panic!("{}", path.display()),
        }
    }

    #[test]
    fn url_names_sqlite_file_or_postgres_server() {
        for (url, path) in [("sqlite:a/b.db", "a/b.db"), ("sqlite:///var/b.db", "/var/b.db")] {
            assert!(matches!(at(url).backend(), Ok(Backend::Sqlite(found)) if found == *path), "{url}");
        }
        let plain = options(&at("postgresql://me@db:5433/redrive?sslmode=verify-full&sslrootcert=/ca.pem"));
        assert_eq!(plain.url, "postgresql://me@db:5433/redrive?sslmode=verify-full&sslrootcert=%2Fca.pem");
        assert_eq!((plain.password, plain.writers, plain.readers), (None, 6, 3));
        assert!(at("postgres:///redrive?host=db&user=me").validate().is_ok());
    }

    #[test]
    fn password_is_removed_from_url() {
        for (url, password) in [
            ("postgres://me:se%40c+r%26et@db/redrive", "se@c+r&et"),
            ("postgres://me@db/redrive?password=se%40cret", "se@cret"),
            ("postgres://me:@db/redrive", ""),
        ] {
            let options = options(&at(url));
            assert_eq!(options.url, "postgres://me@db/redrive");
            assert_eq!(options.password.unwrap_or_default(), password);
        }
        let password = Some(SecretSetting::new("another"));
        let given = Database { password, ..at("postgres://me:old@db/redrive") };
        assert_eq!(options(&given).password.as_deref(), Some("another"), "the setting is what counts");
    }

    #[test]
    fn invalid_url_error_names_fix_and_hides_password() {
        for (url, mentions) in [
            ("mysql://me:hunter2@db/x", "sqlite:PATH or postgres://"),
            ("me:hunter2@db", "sqlite:PATH or postgres://"),
            ("sqlite:", "names no file"),
            ("postgres://me:hun/ter2@db/x", "%2F for /"),
            ("postgres://me:1/hunter2@db/x", "an @ after the host"),
            ("postgres://me:1?user=hunter2@db/x", "an @ after the host"),
            ("postgres://me:1#hunter2@db/x", "%23 for #"),
            ("postgres://me:1?hunter2@db/x", "an @ after the host"),
            (
                "postgres://me:hunter2@db/x?connect_timeout=5",
                "unknown query parameter; use only application_name",
            ),
            ("postgres://me:hunter2@db/x?sslmode=hunter2", "use disable, prefer, require"),
            ("postgres:///hunter2", "names no host"),
            ("postgres:///x?host=/run/hunter2", "names a Unix socket; write postgres://"),
            ("postgres://me:hunter2@%2Frun/x", "names a Unix socket; write postgres://"),
        ] {
            let message = at(url).validate().unwrap_err().to_string();
            assert!(message.starts_with("database.url: ") && message.contains(mentions), "{message}");
            let shown = format!("{message} {:?} {}", at(url), serde_json::to_string(&at(url)).unwrap());
            assert!(!shown.contains("ter2"), "{shown}");
        }
    }

    #[test]
    fn valid_url_is_displayed_without_password() {
        for (url, shown) in [
            ("sqlite:redrive.db", "sqlite:redrive.db"),
            ("postgres://me@db/x?sslmode=require", "postgres://me@db/x?sslmode=require"),
            ("postgres://me:hunter2@db:1/x", "postgres://me:[redacted]@db:1/x"),
            ("postgres://me@db/x?password=hunter2", "postgres://me:[redacted]@db/x"),
            ("postgres:///x?host=db&password=hunter2", "postgres:///x?host=db"),
        ] {
            assert_eq!(DatabaseUrl::from(url).to_string(), shown);
        }
    }

    #[test]
    fn connections_and_timeouts_out_of_range_are_rejected() {
        let message = |change: fn(&mut Database)| {
            let mut database = at("postgres://db/x");
            change(&mut database);
            database.validate().unwrap_err().to_string()
        };
        assert!(
            message(|d| d.write_connections = 1).starts_with("database.write_connections: must be from 2")
        );
        assert!(message(|d| d.read_connections = 0).starts_with("database.read_connections: "));
        assert!(
            message(|d| d.connect_timeout = HumanDuration::secs(0)).starts_with("database.connect_timeout: ")
        );
        assert!(
            message(|d| d.statement_timeout = HumanDuration::secs(301))
                .starts_with("database.statement_timeout: ")
        );
        assert!(message(|d| d.query_timeout = HumanDuration::millis(99)).contains("from 100ms to 5m"));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(5_000))]

        #[test]
        fn password_is_hidden_for_any_url(
            scheme in "postgres(ql)?://|mysql:|", before in "[a-z0-9/?#@:%&=.]{0,8}", after in "[0-9/?#@:%&=.]{0,8}",
            rest in "@db(:[0-9]{1,5})?(/x)?([?&](password|host|user|dbname)=[a-z]{0,3}){0,2}",
        ) {
            let database = at(&format!("{scheme}me:{before}hunter2{after}{rest}"));
            let message = database.validate().err().map(|error| error.to_string()).unwrap_or_default();
            let shown = format!("{message} {database:?} {}", serde_json::to_string(&database).unwrap());
            prop_assert!(!shown.contains("hunter2"), "{}", shown);
        }
    }
}
