//! Where everything is kept: a file of one's own, or a PostgreSQL server that nodes share. Whatever is shown of
//! it is shown without the password.

use std::{fmt, path::PathBuf, time::Duration};

use redrive_core::time::Span;
use redrive_store::postgres::Options;
use serde::{Deserialize, Serialize};
use url::{Url, form_urlencoded};

use super::{ConfigError, Hidden};

/// The store.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Database {
    /// Where it is: `sqlite:PATH` or `postgres://USER@HOST:PORT/DATABASE`.
    pub url: DatabaseUrl,
    /// The password of a PostgreSQL server.
    pub password: Option<Hidden>,
    /// A file that holds the password.
    pub password_file: Option<PathBuf>,
    /// Connections that write.
    pub write_connections: usize,
    /// Connections that only read.
    pub read_connections: usize,
    /// How long connecting may take.
    pub connect_timeout: Span,
    /// How long a write may take.
    pub statement_timeout: Span,
    /// How long a question may take.
    pub query_timeout: Span,
    /// Whether an older schema is brought up to date at the start.
    pub migrate: bool,
    /// Whether to use a PostgreSQL server that can lose acknowledged events when it crashes.
    pub allow_unsafe_durability: bool,
}

impl Default for Database {
    fn default() -> Self {
        Self {
            url: DatabaseUrl("sqlite:redrive-data/redrive.db".into()),
            password: None,
            password_file: None,
            write_connections: 6,
            read_connections: 3,
            connect_timeout: Span::secs(3),
            statement_timeout: Span::secs(10),
            query_timeout: Span::secs(2),
            migrate: true,
            allow_unsafe_durability: false,
        }
    }
}

/// A database's URL: never shown with its password.
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
        // What cannot be read may have a password anywhere.
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

/// What a URL may say after the question mark. Other things have settings of their own, or cannot be.
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
    /// Whether it names a PostgreSQL server.
    fn is_server(&self) -> bool {
        self.0.starts_with("postgres://") || self.0.starts_with("postgresql://")
    }

    /// The URL of a server without its password, and the password. Errors repeat nothing of it.
    fn read(&self) -> Result<(Url, Option<String>), String> {
        if !self.is_server() {
            return Err("must be sqlite:PATH or postgres://USER@HOST:PORT/DATABASE".into());
        }
        let spelling = "write what is special in it as % and two digits, such as %40 for @, %2F for / and %23 for \
                        #, and the password best into database.password_file";
        let unreadable = |reason: &str| format!("cannot be read ({reason}); {spelling}");
        let mut url = Url::parse(&self.0).map_err(|error| unreadable(&error.to_string()))?;
        if url.fragment().is_some() {
            return Err(unreadable("there is a # in it"));
        }
        // With a / or a ? in the password, the rest of it would pass for the name of a database.
        if url.path().contains('@') || url.query().is_some_and(|query| query.contains('@')) {
            return Err(unreadable("there is an @ behind its host"));
        }
        let mut password = url.password().map(decoded);
        let mut rest: Vec<(String, String)> = Vec::new();
        for (name, value) in url.query_pairs() {
            match &*name {
                name if !PARAMETERS.contains(&name) => {
                    let known = PARAMETERS.join(", ");
                    return Err(format!(
                        "has a parameter after its ? that is not known; use only {known}, and {spelling}"
                    ));
                }
                "password" => password = Some(value.into_owned()),
                "sslmode" if !SSL_MODES.contains(&&*value) => {
                    return Err(format!("has an sslmode that is not known; use {}", SSL_MODES.join(", ")));
                }
                _ => rest.push((name.into_owned(), value.into_owned())),
            }
        }
        let host = rest.iter().find(|(name, _)| name == "host").map(|(_, host)| host.clone());
        let host = host.unwrap_or_else(|| decoded(url.host_str().unwrap_or_default()));
        // The store reaches servers by TCP alone.
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

/// A part of a URL as it was before it was put into one.
fn decoded(part: &str) -> String {
    let pair = format!("part={}", part.replace('+', "%2B").replace('&', "%26"));
    form_urlencoded::parse(pair.as_bytes()).map(|(_, value)| value.into_owned()).collect()
}

/// What keeps everything.
#[derive(Clone, Debug)]
pub enum Backend {
    /// A file of this process alone.
    Sqlite(PathBuf),
    /// A server that nodes share.
    Postgres(Box<Options>),
}

impl Backend {
    /// Where a file beside the data is, or would be if the data were a file.
    pub fn beside(&self, name: &str) -> PathBuf {
        match self {
            Self::Sqlite(path) => path.with_file_name(name),
            Self::Postgres(_) => PathBuf::from("redrive-data").join(name),
        }
    }
}

impl Backend {
    /// The same backend with `cluster.lease`, by which the server ends sessions of nodes that do not respond.
    pub fn with_lease(mut self, lease: Duration) -> Self {
        if let Self::Postgres(options) = &mut self {
            options.lease = lease;
        }
        self
    }

    /// Refuses what only nodes that share a store have a use for.
    pub(super) fn must_be_shared(&self, setting: &str) -> Result<(), ConfigError> {
        match self {
            Self::Postgres(_) => Ok(()),
            Self::Sqlite(_) => Err(ConfigError::Invalid {
                setting: setting.into(),
                reason: "is for nodes that share a PostgreSQL database, and with SQLite there is one process alone; \
                         leave it out, or set database.url to postgres://USER@HOST:PORT/DATABASE"
                    .into(),
            }),
        }
    }
}

impl fmt::Display for Backend {
    /// What kind it is, for people.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sqlite(_) => "SQLite",
            Self::Postgres(_) => "PostgreSQL",
        })
    }
}

impl Database {
    /// What keeps everything, and how it is to be used.
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
            connect_timeout: self.connect_timeout.get(),
            statement_timeout: self.statement_timeout.get(),
            query_timeout: self.query_timeout.get(),
            migrate: self.migrate,
            allow_unsafe_durability: self.allow_unsafe_durability,
            ..Options::at(url)
        })))
    }

    /// Checks what a type alone cannot.
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
            if !(Span::millis(100)..=Span::secs(300)).contains(&span) {
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
    fn a_url_names_a_file_or_a_server() {
        for (url, path) in [("sqlite:a/b.db", "a/b.db"), ("sqlite:///var/b.db", "/var/b.db")] {
            assert!(matches!(at(url).backend(), Ok(Backend::Sqlite(found)) if found == *path), "{url}");
        }
        let plain = options(&at("postgresql://me@db:5433/redrive?sslmode=verify-full&sslrootcert=/ca.pem"));
        assert_eq!(plain.url, "postgresql://me@db:5433/redrive?sslmode=verify-full&sslrootcert=%2Fca.pem");
        assert_eq!((plain.password, plain.writers, plain.readers), (None, 6, 3));
        assert!(at("postgres:///redrive?host=db&user=me").validate().is_ok());
    }

    #[test]
    fn the_password_is_taken_out_of_the_url() {
        for (url, password) in [
            ("postgres://me:se%40c+r%26et@db/redrive", "se@c+r&et"),
            ("postgres://me@db/redrive?password=se%40cret", "se@cret"),
            ("postgres://me:@db/redrive", ""),
        ] {
            let options = options(&at(url));
            assert_eq!(options.url, "postgres://me@db/redrive");
            assert_eq!(options.password.unwrap_or_default(), password);
        }
        let password = Some(Hidden::new("another"));
        let given = Database { password, ..at("postgres://me:old@db/redrive") };
        assert_eq!(options(&given).password.as_deref(), Some("another"), "the setting is what counts");
    }

    #[test]
    fn what_cannot_be_says_what_to_write_and_tells_no_password() {
        for (url, mentions) in [
            ("mysql://me:hunter2@db/x", "sqlite:PATH or postgres://"),
            ("me:hunter2@db", "sqlite:PATH or postgres://"),
            ("sqlite:", "names no file"),
            ("postgres://me:hun/ter2@db/x", "%2F for /"),
            ("postgres://me:1/hunter2@db/x", "an @ behind its host"),
            ("postgres://me:1?user=hunter2@db/x", "an @ behind its host"),
            ("postgres://me:1#hunter2@db/x", "%23 for #"),
            ("postgres://me:1?hunter2@db/x", "an @ behind its host"),
            ("postgres://me:hunter2@db/x?connect_timeout=5", "not known; use only application_name"),
            ("postgres://me:hunter2@db/x?sslmode=hunter2", "use disable, prefer, require"),
            ("postgres:///hunter2", "names no host"),
            ("postgres:///x?host=/run/hunter2", "names a Unix socket; write postgres://"),
            ("postgres://me:hunter2@%2Frun/x", "names a Unix socket; write postgres://"),
        ] {
            let said = at(url).validate().unwrap_err().to_string();
            assert!(said.starts_with("database.url: ") && said.contains(mentions), "{said}");
            let shown = format!("{said} {:?} {}", at(url), serde_json::to_string(&at(url)).unwrap());
            assert!(!shown.contains("ter2"), "{shown}");
        }
    }

    #[test]
    fn a_good_url_is_shown_without_its_password() {
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
    fn numbers_and_times_have_bounds() {
        let said = |change: fn(&mut Database)| {
            let mut database = at("postgres://db/x");
            change(&mut database);
            database.validate().unwrap_err().to_string()
        };
        assert!(said(|d| d.write_connections = 1).starts_with("database.write_connections: must be from 2"));
        assert!(said(|d| d.read_connections = 0).starts_with("database.read_connections: "));
        assert!(said(|d| d.connect_timeout = Span::secs(0)).starts_with("database.connect_timeout: "));
        assert!(said(|d| d.statement_timeout = Span::secs(301)).starts_with("database.statement_timeout: "));
        assert!(said(|d| d.query_timeout = Span::millis(99)).contains("from 100ms to 5m"));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(5_000))]

        #[test]
        fn a_password_is_never_shown_however_the_url_is_written(
            scheme in "postgres(ql)?://|mysql:|", before in "[a-z0-9/?#@:%&=.]{0,8}", after in "[0-9/?#@:%&=.]{0,8}",
            rest in "@db(:[0-9]{1,5})?(/x)?([?&](password|host|user|dbname)=[a-z]{0,3}){0,2}",
        ) {
            let database = at(&format!("{scheme}me:{before}hunter2{after}{rest}"));
            let said = database.validate().err().map(|error| error.to_string()).unwrap_or_default();
            let shown = format!("{said} {database:?} {}", serde_json::to_string(&database).unwrap());
            prop_assert!(!shown.contains("hunter2"), "{}", shown);
        }
    }
}
