//! `redrive doctor` against real servers: what is right, and what is wrong with what to do about it.

use std::path::Path;

use redrive_testkit::{Fault, IdentityProvider, Postgres, Protection, RabbitMq, Redis, Redrive, Setup, Smtp};
use serde_json::Value;
use tokio::task::spawn_blocking;

use crate::process::{ADMIN_KEY, MASTER_KEY, run, stderr, stdout};

/// Lines that the command printed, and its exit code.
struct Findings {
    code: Option<i32>,
    text: String,
}

impl Findings {
    /// Returns the first finding about a subject, with its level.
    #[track_caller]
    fn about(&self, subject: &str) -> (String, String) {
        let line = self.text.lines().find_map(|line| {
            let (level, rest) = line.split_once(' ')?;
            let text = rest.trim_start().strip_prefix(subject)?;
            text.starts_with(' ').then(|| (level.to_owned(), text.trim_start().to_owned()))
        });
        line.unwrap_or_else(|| panic!("nothing about {subject}:\n{}", self.text))
    }

    #[track_caller]
    fn expect(&self, subject: &str, level: &str, text: &str) {
        let (found, message) = self.about(subject);
        assert!(
            found == level && message.contains(text),
            "{subject} is {found}: {message}\nexpected {level}: {text}"
        );
    }
}

/// Value of a variable that is removed.
const UNSET: &str = "unset";

async fn doctor(folder: &Path, environment: &[(&str, String)]) -> Findings {
    let (folder, mut all) = (folder.to_owned(), vec![(ADMIN_KEY.0, ADMIN_KEY.1.to_owned())]);
    all.push((MASTER_KEY.0, MASTER_KEY.1.to_owned()));
    all.push(("REDRIVE_SERVER_LISTEN", "127.0.0.1:0".to_owned()));
    all.retain(|(name, _)| !environment.iter().any(|(given, _)| given == name));
    let set = environment.iter().filter(|(_, value)| value != UNSET);
    all.extend(set.map(|(name, value)| (leaked(name), value.clone())));
    let output = spawn_blocking(move || {
        let environment: Vec<_> = all.iter().map(|(name, value)| (*name, value.as_str())).collect();
        run(&folder, &["doctor"], &environment)
    });
    let output = output.await.unwrap();
    Findings { code: output.status.code(), text: stdout(&output) + &stderr(&output) }
}

/// Names of variables in a test live as long as the process.
fn leaked(name: &str) -> &'static str {
    Box::leak(name.to_owned().into_boxed_str())
}

#[tokio::test(flavor = "multi_thread")]
async fn embedded_store_is_examined_before_and_while_a_server_runs() {
    let folder = tempfile::tempdir().unwrap();
    let database = ("REDRIVE_DATABASE_URL", format!("sqlite:{}", folder.path().join("redrive.db").display()));
    let before = doctor(folder.path(), std::slice::from_ref(&database)).await;
    assert!(before.code.is_some_and(|code| code < 2), "{}", before.text);
    before.expect("configuration", "ok", "valid");
    before.expect("listen", "ok", "is free");
    before.expect("folder", "ok", "the database does not exist yet");
    let server = Redrive::start_with(Setup::new().data_dir(folder.path()).command("serve")).await;
    let listen = ("REDRIVE_SERVER_LISTEN", server.address().to_string());
    let running = doctor(folder.path(), &[database.clone(), listen]).await;
    running.expect("configuration", "ok", "valid");
    running.expect("listen", "ok", "a running Redrive listens on");
    running.expect("database", "ok", "has schema version");
    running.expect("permissions", "ok", "");
    running.expect("clock", "ok", "not behind");
    drop(server);
    // A low limit of open files, as a shell would set it.
    let script = format!("ulimit -n 300; exec {} doctor", env!("CARGO_BIN_EXE_redrive"));
    let low = std::process::Command::new("sh")
        .args(["-c", &script])
        .env(ADMIN_KEY.0, ADMIN_KEY.1)
        .env(MASTER_KEY.0, MASTER_KEY.1)
        .env(database.0, &database.1)
        .output()
        .unwrap();
    assert_eq!(low.status.code(), Some(1), "{}", stdout(&low));
    assert!(
        stdout(&low).contains("warning   open files     the limit of 300 open files is below"),
        "{}",
        stdout(&low)
    );
    assert!(stdout(&low).contains("LimitNOFILE"), "{}", stdout(&low));
}

#[tokio::test(flavor = "multi_thread")]
async fn identity_provider_is_contacted_and_its_name_compared() {
    let folder = tempfile::tempdir().unwrap();
    let provider = IdentityProvider::start().await;
    let mut environment = provider.settings();
    environment.push(("REDRIVE_SERVER_PUBLIC_URL", "https://hooks.example.com".into()));
    let good = doctor(folder.path(), &environment).await;
    good.expect("oidc", "ok", "is reachable, and its keys can be read");
    provider.set_fault(Fault::DiscoveryOfOtherIssuer);
    let other = doctor(folder.path(), &environment).await;
    other.expect(
        "oidc",
        "critical",
        "it names itself \"https://other.example.com\"; set oidc.issuer to exactly this",
    );
    assert_eq!(other.code, Some(2), "{}", other.text);
    drop(provider);
    let down = doctor(folder.path(), &environment).await;
    down.expect("oidc", "critical", "cannot be reached");
    for found in [good, other, down] {
        assert!(!found.text.contains("s3cr%t"), "{}", found.text);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn broken_settings_are_critical_and_name_the_remedy() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(
        folder.path().join("text.db"),
        "this is no database, and it is longer than the header of one",
    )
    .unwrap();
    for (name, value, subject, expected) in [
        ("REDRIVE_SERVER_LISTN", "x", "configuration", "did you mean REDRIVE_SERVER_LISTEN?"),
        ("REDRIVE_SECRETS_MASTER_KEY", "short", "configuration", "secrets.master_key"),
        ("REDRIVE_SERVER_LISTEN", "no-such-host.invalid:80", "listen", "set server.listen"),
        ("REDRIVE_DATABASE_URL", "sqlite:text.db/redrive.db", "folder", "cannot be written by this user"),
        ("REDRIVE_DATABASE_URL", "sqlite:text.db", "database", "choose another place"),
        (
            "REDRIVE_EGRESS_DNS_SERVERS",
            "[\"no-such-host.invalid:53\"]",
            "configuration",
            "cannot be resolved",
        ),
    ] {
        let found = doctor(folder.path(), &[(name, value.to_owned())]).await;
        assert_eq!(found.code, Some(2), "{name}={value}: {}", found.text);
        found.expect(subject, "critical", expected);
        let critical = found.text.lines().filter(|line| line.starts_with("critical ")).count();
        assert_eq!(critical, 1, "{name}={value} is reported once: {}", found.text);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn reachable_servers_are_ok() {
    let folder = tempfile::tempdir().unwrap();
    let (postgres, redis, vhost) = tokio::join!(Postgres::start(), Redis::start(), RabbitMq::shared());
    let smtp = Smtp::start(Protection::StartTls);
    let source = format!(r#"[{{type = "amqp", name = "shop", url = "{}", queue = "q"}}]"#, vhost.url());
    let mut environment = vec![
        ("REDRIVE_DATABASE_URL", postgres.url()),
        ("REDRIVE_DATABASE_ALLOW_UNSAFE_DURABILITY", "true".to_owned()),
        ("REDRIVE_REDIS_URL", redis.url()),
        ("REDRIVE_AMQP_URL", vhost.url()),
        ("REDRIVE_SOURCES", source),
        ("REDRIVE_SERVER_PUBLIC_URL", "https://hooks.example.com".to_owned()),
    ];
    environment
        .extend(smtp.env(Protection::StartTls).into_iter().map(|(name, value)| (leaked(&name), value)));
    let new = doctor(folder.path(), &environment).await;
    new.expect("database", "ok", "has no tables yet");
    let node = Redrive::start_with(Setup::new().database_url(postgres.url())).await;
    node.api().create_webhook("http://127.0.0.1:9000", Value::Null).await;
    let found = doctor(folder.path(), &environment).await;
    assert!(found.code.is_some_and(|code| code < 2), "{}", found.text);
    found.expect("configuration", "ok", "valid");
    found.expect("clock", "ok", "from the database's");
    found.expect("master key", "ok", "can be read");
    found.expect("redis", "ok", "reachable, and its scripts run");
    found.expect("rabbitmq", "ok", "is reachable");
    assert_eq!(found.text.matches(" is reachable").count(), 2, "tickets and the source: {}", found.text);
    found.expect("smtp", "ok", "redrive test-email");
    assert!(smtp.emails().is_empty(), "no email is sent");
    drop(node);

    // A master key that cannot read the secrets in the database, and no admin key.
    environment
        .push(("REDRIVE_SECRETS_MASTER_KEY", "CAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAg=".to_owned()));
    environment.push((ADMIN_KEY.0, UNSET.to_owned()));
    let wrong = doctor(folder.path(), &environment).await;
    assert_eq!(wrong.code, Some(2), "{}", wrong.text);
    wrong.expect("master key", "critical", "secrets.additional_master_key_files");
    wrong.expect("admin key", "critical", "redrive keys create --admin");
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_and_unreachable_servers_are_critical() {
    let folder = tempfile::tempdir().unwrap();
    let (postgres, redis, vhost) = tokio::join!(Postgres::start(), Redis::start(), RabbitMq::shared());
    let smtp = Smtp::start_with(Protection::StartTls, Some(("user", "right")));
    let wrong_database = format!("{}_missing", postgres.url());
    postgres.execute("CREATE ROLE limited LOGIN").await;
    let wrong_role = postgres.url().replacen("//redrive@", "//limited@", 1);
    let wrong_redis = redis.add_user("limited", "secret", &["-@all", "+ping"]).await;
    let wrong_vhost = format!("{}_missing", vhost.url());
    let unresolvable = "no-such-host.invalid";
    for (name, value, subject, expected) in [
        (
            "REDRIVE_DATABASE_URL",
            "postgres://redrive@127.0.0.1:1/x".to_owned(),
            "database",
            "check database.url",
        ),
        ("REDRIVE_DATABASE_URL", format!("postgres://redrive@{unresolvable}/x"), "database", unresolvable),
        ("REDRIVE_DATABASE_URL", wrong_database, "database", "redrive_missing"),
        ("REDRIVE_DATABASE_URL", wrong_role, "database", "GRANT CREATE ON SCHEMA public TO limited"),
        ("REDRIVE_REDIS_URL", "redis://127.0.0.1:1".to_owned(), "redis", "check redis.url"),
        ("REDRIVE_REDIS_URL", format!("redis://{unresolvable}"), "redis", unresolvable),
        ("REDRIVE_REDIS_URL", wrong_redis, "redis", "check redis.url"),
        ("REDRIVE_AMQP_URL", "amqp://127.0.0.1:1".to_owned(), "rabbitmq", "check amqp.url"),
        ("REDRIVE_AMQP_URL", format!("amqp://{unresolvable}"), "rabbitmq", unresolvable),
        ("REDRIVE_AMQP_URL", wrong_vhost, "rabbitmq", "the virtual host"),
    ] {
        let mut environment = vec![("REDRIVE_DATABASE_ALLOW_UNSAFE_DURABILITY", "true".to_owned())];
        if name != "REDRIVE_DATABASE_URL" {
            environment.push(("REDRIVE_DATABASE_URL", postgres.url()));
        }
        environment.push((name, value.clone()));
        let found = doctor(folder.path(), &environment).await;
        assert_eq!(found.code, Some(2), "{name}={value}: {}", found.text);
        found.expect(subject, "critical", expected);
    }
    let login = |password: &str| {
        let mut environment: Vec<_> =
            smtp.env(Protection::StartTls).into_iter().map(|(name, value)| (leaked(&name), value)).collect();
        environment.retain(|(name, _)| *name != "REDRIVE_SMTP_USERNAME" && *name != "REDRIVE_SMTP_PASSWORD");
        environment.push(("REDRIVE_SERVER_PUBLIC_URL", "https://hooks.example.com".to_owned()));
        environment.push(("REDRIVE_SMTP_USERNAME", "user".to_owned()));
        environment.push(("REDRIVE_SMTP_PASSWORD", password.to_owned()));
        environment
    };
    doctor(folder.path(), &login("right")).await.expect("smtp", "ok", "reachable");
    let found = doctor(folder.path(), &login("planted")).await;
    found.expect("smtp", "critical", "smtp.password");
    assert!(!found.text.contains("planted"), "{}", found.text);
    let mut closed = login("right");
    closed.retain(|(name, _)| *name != "REDRIVE_SMTP_PORT");
    closed.push(("REDRIVE_SMTP_PORT", "1".to_owned()));
    doctor(folder.path(), &closed).await.expect("smtp", "critical", "");
}

#[tokio::test(flavor = "multi_thread")]
async fn database_that_can_lose_events_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let database = Postgres::shared().await;
    let environment = vec![("REDRIVE_DATABASE_URL", database.url())];
    let found = doctor(folder.path(), &environment).await;
    assert_eq!(found.code, Some(2), "{}", found.text);
    found.expect("database", "critical", "fsync");
}
