//! `redrive config check` refuses whatever `redrive serve` refuses, and nothing else.

use std::{
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use crate::process::{ADMIN_KEY, MASTER_KEY, Started, message, run, run_ok, start, stderr, stdout};

/// A configuration that a server must refuse.
struct Bad {
    /// The configuration file.
    file: &'static str,
    environment: &'static [(&'static str, &'static str)],
    arguments: &'static [&'static str],
    /// Part of both messages.
    expected: &'static str,
    /// Whether the messages may differ in the reason that the system gives.
    reasons_differ: bool,
}

const fn file(file: &'static str, expected: &'static str) -> Bad {
    Bad { file, environment: &[], arguments: &[], expected, reasons_differ: false }
}

const fn environment(environment: &'static [(&'static str, &'static str)], expected: &'static str) -> Bad {
    Bad { file: "", environment, arguments: &[], expected, reasons_differ: false }
}

const fn arguments(arguments: &'static [&'static str], expected: &'static str) -> Bad {
    Bad { file: "", environment: &[], arguments, expected, reasons_differ: false }
}

/// An empty value stands for a variable that is not set.
const NOT_SET: &str = "";

const PEER: &str = "[database]\nurl = \"postgres://redrive@127.0.0.1:1/x\"\n";

fn bad_configurations() -> Vec<Bad> {
    let mut all = vec![
        // The file as a whole.
        file("[delivery]\nmax_inflight = 3", "did you mean delivery.max_in_flight?"),
        file("not toml", "not valid TOML: line 1"),
        file("[server]\nlisten = 8080", "server.listen: "),
        arguments(&["--config", "nowhere.toml"], "nowhere.toml cannot be read"),
        environment(&[("REDRIVE_SERVER_LISTN", "x")], "did you mean REDRIVE_SERVER_LISTEN?"),
        environment(&[("REDRIVE_PORT", "8080")], "unknown setting REDRIVE_PORT"),
        // Keys.
        environment(&[(MASTER_KEY.0, NOT_SET)], "no master key is configured"),
        environment(&[(MASTER_KEY.0, "short")], "secrets.master_key: must be 32 random bytes"),
        environment(
            &[(MASTER_KEY.0, NOT_SET), ("REDRIVE_SECRETS_MASTER_KEY_FILE", "/nowhere/master.key")],
            "secrets.master_key_file: /nowhere/master.key cannot be read",
        ),
        environment(
            &[(MASTER_KEY.0, NOT_SET), ("REDRIVE_SECRETS_MASTER_KEY_COMMAND", "exit 3")],
            "secrets.master_key_command: failed",
        ),
        environment(&[("REDRIVE_SECRETS_MASTER_KEY_FILE", "private")], "keep one of them"),
        environment(
            &[("REDRIVE_SECRETS_ADDITIONAL_MASTER_KEY_FILES", "[\"/nowhere/old.key\"]")],
            "secrets.additional_master_key_files: /nowhere/old.key",
        ),
        environment(&[(ADMIN_KEY.0, NOT_SET)], "no key can administer this server"),
        environment(&[(ADMIN_KEY.0, "short")], "auth.admin_key: must be at least 32 characters"),
        environment(
            &[(ADMIN_KEY.0, NOT_SET), ("REDRIVE_AUTH_ADMIN_KEY_FILE", "/nowhere/admin.key")],
            "auth.admin_key_file: /nowhere/admin.key cannot be read",
        ),
        environment(
            &[(ADMIN_KEY.0, NOT_SET), ("REDRIVE_AUTH_ADMIN_KEY_FILE", "exposed")],
            "auth.admin_key_file: exposed contains a secret and is accessible to other users",
        ),
        // The listener.
        arguments(&["--listen", "localhost"], "server.listen: must be a host and a port"),
        arguments(&["--listen", "127.0.0.1:99999"], "server.listen: must be a host and a port"),
        arguments(&["--listen", "no-such-host.invalid:8080"], "cannot listen on no-such-host.invalid:8080"),
        arguments(&["--listen", "192.0.2.1:8080"], "cannot listen on 192.0.2.1:8080"),
        file("[server]\ntls_cert = \"no.pem\"\ntls_key = \"no.pem\"", "no.pem"),
        file("[server]\ntls_cert = \"private\"\ntls_key = \"private\"", "private"),
        file("[server]\ntls_cert = \"private\"", "server.tls_cert: requires server.tls_key"),
        file("[server]\npublic_url = \"hooks.example.com\"", "server.public_url: is not a URL"),
        file("[server]\nmax_connections = 0", "server.max_connections: must be from 1"),
        file("[server]\ntrusted_proxies = [\"0.0.0.0/0\"]", "server.trusted_proxies: must not name"),
        file("[server]\ncors_origins = [\"*\"]", "server.cors_origins: must not contain"),
        // The database.
        arguments(&["--database-url", "mysql://db/x"], "database.url: must be sqlite:PATH or postgres://"),
        arguments(&["--database-url", "sqlite:"], "database.url: names no file"),
        arguments(&["--database-url", "sqlite:folder"], "folder cannot be opened"),
        arguments(&["--database-url", "sqlite:private"], "private cannot be opened"),
        arguments(&["--database-url", "sqlite:private/redrive.db"], "private/redrive.db cannot be opened"),
        arguments(
            &["--database-url", "postgres://me@127.0.0.1:1/x?sslmode=often"],
            "use disable, prefer, require, verify-ca, verify-full",
        ),
        arguments(
            &[
                "--database-url",
                "postgres://me@127.0.0.1:1/x?sslmode=verify-full&sslrootcert=/nowhere/ca.pem",
            ],
            "sslrootcert=/nowhere/ca.pem",
        ),
        arguments(&["--database-url", "postgres://me:a/b@127.0.0.1:1/x"], "database.url: cannot be read"),
        arguments(&["--role", "worker"], "role: is worker, but a SQLite database supports one process only"),
        arguments(&["--redis", "redis://127.0.0.1:1"], "redis.url: requires a PostgreSQL database"),
        arguments(&["--amqp", "amqp://127.0.0.1:1"], "amqp.url: requires a PostgreSQL database"),
        // Other servers.
        file("[smtp]\nhost = \"smtp.example.com\"", "smtp.host: requires smtp.from"),
        file(
            "[smtp]\nhost = \"smtp.example.com\"\nfrom = \"a@example.com\"",
            "smtp.confirm_addresses: needs server.public_url",
        ),
        file(
            "[smtp]\nhost = \"smtp.example.com\"\nfrom = \"a@example.com\"\nusername = \"a\"\npassword_file = \"/nowhere/p\"",
            "smtp.password_file: /nowhere/p cannot be read",
        ),
        file("[oidc]\nclient_id = \"redrive\"", "oidc.client_id: needs oidc.issuer"),
        file(
            "[oidc]\nissuer = \"http://id.example.com\"\nclient_id = \"redrive\"",
            "oidc.issuer: must begin with https://",
        ),
        file(
            "[oidc]\nissuer = \"https://id.example.com\"\nclient_id = \"redrive\"",
            "needs server.public_url",
        ),
        file(
            "server.public_url = \"https://hooks.example.com\"\n[oidc]\nissuer = \"https://id.example.com\"\nclient_id = \"redrive\"",
            "oidc.admin_groups: must name a group",
        ),
        file(
            "[oidc]\nclient_secret_file = \"/nowhere/oidc.secret\"",
            "oidc.client_secret_file: /nowhere/oidc.secret",
        ),
        file("[oidc]\nca_file = \"/nowhere/ca.pem\"", "oidc.ca_file: /nowhere/ca.pem cannot be read"),
        file("[tracing]\notlp_endpoint = \"grpc://127.0.0.1:4317\"", "tracing.otlp_endpoint: "),
        file("[archive]\nurl = \"ftp://example.com/a\"", "archive.url: "),
        file("[archive]\nurl = \"private/archive\"", "private/archive: "),
        file(
            "[egress]\ndns_servers = [\"no-such-host.invalid:53\"]",
            "egress.dns_servers: no-such-host.invalid:53",
        ),
        file("[egress]\nports = [\"http\"]", "egress.ports"),
        file("[egress]\nallow_networks = [\"10.0.0.0/99\"]", "egress.allow_networks"),
        file("[[sources]]\ntype = \"amqp\"\nname = \"shop\"\nqueue = \"q\"", "sources"),
        // Numbers, policies and names.
        file("[delivery]\nmax_in_flight = 0", "delivery.max_in_flight: must be from 1"),
        file("[delivery]\nmax_in_flight = \"many\"", "delivery.max_in_flight: "),
        file("[events]\nmax_payload_bytes = 1", "events.max_payload_bytes: must be from 1024"),
        file("[retry]\nschedule = []", "retry.schedule"),
        file("[circuit_breaker]\nminimum_throughput = 0", "circuit_breaker.minimum_throughput"),
        file("[audit]\nretention = \"1h\"", "audit.retention: must be at least 1d"),
        file("[metrics]\nmax_values = 0", "metrics.max_values: must be from 1"),
        file("[metrics]\nmax_named = 501", "metrics.max_named: must be from 1"),
        file("[metrics]\ntenants = \"all\"", "metrics.tenants: "),
        file("[log]\nlevel = \"loud\"", "log.level: "),
        file("[dev]\nclock_speed = 2.0", "dev.clock_speed: must be 1 outside"),
        file("[dev]\nclock_skew = \"-5s\"", "dev.clock_skew: must be 0 outside"),
        file("node = \"a b\"", "node: "),
        file("pools = []", "pools: must name at least one pool"),
        arguments(&["--pool", "Gold!"], "pools: \"Gold!\" must be"),
    ];
    // Settings that are valid only with PostgreSQL, which is not reached before they are checked.
    for (setting, expected) in [
        ("[redis]\nurl = \"redis://cache\"\nca_file = \"/nowhere/ca.pem\"", "redis.ca_file: /nowhere/ca.pem"),
        ("[redis]\nurl = \"http://cache\"", "redis.url: does not name a Redis server"),
        ("[amqp]\nurl = \"http://mq\"", "amqp.url: "),
        ("[cluster]\nlease = 0.5", "cluster.lease: must be from 1s to 5m"),
    ] {
        all.push(file(Box::leak(format!("{PEER}{setting}").into_boxed_str()), expected));
    }
    for case in &mut all {
        // The system tells one that a folder cannot be created, and the other that it is not a folder.
        case.reasons_differ = case.expected.starts_with("private/");
    }
    all
}

/// Creates a folder with the files that configurations name.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    write(
        &folder.path().join("private"),
        "this is text, long enough for a key and no database: 0123456789",
        0o600,
    );
    write(&folder.path().join("exposed"), "0123456789abcdef0123456789abcdef", 0o644);
    std::fs::create_dir(folder.path().join("folder")).unwrap();
    folder
}

fn write(path: &Path, text: &str, mode: u32) {
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

/// Returns the arguments after the command: defaults that the case does not set itself.
fn with_defaults<'a>(given: &[&'a str], file: &str) -> Vec<&'a str> {
    let mut all = given.to_vec();
    for (flag, value) in
        [("--config", "c.toml"), ("--listen", "127.0.0.1:0"), ("--database-url", "sqlite:data/redrive.db")]
    {
        let in_file = match flag {
            "--listen" => file.contains("listen ="),
            "--database-url" => file.contains("[database]"),
            _ => false,
        };
        if !given.contains(&flag) && !in_file {
            all.extend([flag, value]);
        }
    }
    all
}

fn environment_of<'a>(given: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    let mut all = vec![ADMIN_KEY, MASTER_KEY];
    all.retain(|(name, _)| !given.iter().any(|(given, _)| given == name));
    all.extend(given.iter().filter(|(_, value)| *value != NOT_SET));
    all
}

/// Runs `config check` and returns the reason of a refusal.
fn check(folder: &Path, arguments: &[&str], environment: &[(&str, &str)]) -> Result<String, String> {
    let words = [&["config", "check"], arguments].concat();
    let output = run(folder, &words, environment);
    match output.status.success() {
        true => Ok(stdout(&output)),
        false => Err(message(&stderr(&output))),
    }
}

#[test]
fn check_refuses_what_serve_refuses_with_the_same_message() {
    for Bad { file, environment, arguments, expected, reasons_differ } in bad_configurations() {
        let folder = folder();
        let case = format!("{file:?} {environment:?} {arguments:?}");
        std::fs::write(folder.path().join("c.toml"), file).unwrap();
        let (arguments, environment) = (with_defaults(arguments, file), environment_of(environment));
        let checked = check(folder.path(), &arguments, &environment);
        let Err(checked) = checked else { panic!("config check accepts {case}") };
        assert!(!folder.path().join("data").exists(), "config check creates a database: {case}");
        let served = start(folder.path(), &[&["serve"], &arguments[..]].concat(), &environment);
        let Started::Refused(refused) = served else { panic!("serve accepts {case}") };
        assert!(checked.contains(expected), "{case}: {checked}");
        assert!(refused.contains(expected), "{case}: {refused}");
        assert!(reasons_differ || checked == refused, "{case}:\ncheck: {checked}\nserve: {refused}");
    }
}

#[test]
fn check_and_serve_accept_host_names_and_a_new_database() {
    let folder = folder();
    let environment = environment_of(&[]);
    for listen in ["127.0.0.1:0", "localhost:0", "LOCALHOST:0", "0.0.0.0:0"] {
        let arguments = ["--listen", listen, "--database-url", "sqlite:new/redrive.db"];
        let checked = check(folder.path(), &arguments, &environment).unwrap();
        assert_eq!(checked, "The configuration is valid.\n");
        assert!(!folder.path().join("new").exists(), "nothing is created");
        let started = start(folder.path(), &[&["serve"], &arguments[..]].concat(), &environment);
        let Started::Listening(url) = started else { panic!("{listen}: {started:?}") };
        let host = if listen.starts_with('0') { "http://0.0.0.0:" } else { "http://" };
        assert!(url.starts_with(host) && !url.ends_with(":0"), "{listen}: {url}");
        std::fs::remove_dir_all(folder.path().join("new")).unwrap();
    }
}

#[test]
fn keys_in_the_database_are_part_of_the_check() {
    let folder = folder();
    let database = ["--database-url", "sqlite:data/redrive.db", "--listen", "127.0.0.1:0"];
    let without_admin_key = environment_of(&[(ADMIN_KEY.0, NOT_SET)]);
    run_ok(
        folder.path(),
        &[&["keys", "create", "--name", "shop"], &database[..]].concat(),
        &without_admin_key,
    );
    let refused = check(folder.path(), &database, &without_admin_key).unwrap_err();
    assert!(refused.contains("no key can administer this server"), "a tenant's key is none: {refused}");
    run_ok(folder.path(), &[&["keys", "create", "--admin"], &database[..]].concat(), &without_admin_key);
    assert!(check(folder.path(), &database, &without_admin_key).is_ok());
    let started = start(folder.path(), &[&["serve"], &database[..]].concat(), &without_admin_key);
    assert!(matches!(started, Started::Listening(_)), "{started:?}");
}

#[tokio::test]
async fn database_encrypted_with_another_master_key_is_refused_by_both() {
    use redrive_testkit::{Receiver, Redrive, Setup};

    let folder = tempfile::tempdir().unwrap();
    let receiver = Receiver::start().await;
    let server = Redrive::start_with(
        Setup::new()
            .data_dir(folder.path())
            .command("serve")
            .env("REDRIVE_EGRESS_ALLOW_HTTP", "true")
            .env("REDRIVE_EGRESS_ALLOW_NETWORKS", "[\"127.0.0.0/8\"]"),
    )
    .await;
    server.api().create_webhook(&receiver.url(), serde_json::Value::Null).await;
    drop(server);
    let arguments = ["--listen", "127.0.0.1:0", "--database-url", "sqlite:redrive.db"];
    let right = environment_of(&[]);
    assert!(check(folder.path(), &arguments, &right).is_ok());
    let wrong = environment_of(&[(MASTER_KEY.0, "CAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAg=")]);
    let checked = check(folder.path(), &arguments, &wrong).unwrap_err();
    assert!(checked.contains("secrets.additional_master_key_files"), "{checked}");
    let served = start(folder.path(), &[&["serve"], &arguments[..]].concat(), &wrong);
    assert_eq!(served, Started::Refused(checked));
}

#[test]
fn check_warns_of_what_it_cannot_know() {
    let folder = folder();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = taken.local_addr().unwrap().to_string();
    let arguments = ["--listen", &listen, "--database-url", "postgres://redrive@127.0.0.1:1/x"];
    let text = check(folder.path(), &arguments, &environment_of(&[])).unwrap();
    assert!(text.contains("Note: the database was not contacted; check it with: redrive doctor\n"), "{text}");
    assert!(text.contains(&format!("Note: {listen} is in use at the moment")), "{text}");
    assert!(text.ends_with("The configuration is valid.\n"), "{text}");
}

/// Returns the TOML examples of a page that are settings of Redrive.
fn examples(page: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(page).unwrap();
    let blocks = text.split("\n```toml\n").skip(1);
    blocks.map(|block| block.split_once("\n```").unwrap().0.to_owned()).collect()
}

fn pages(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let (folders, files): (Vec<_>, Vec<_>) = entries.partition(|path| path.is_dir());
    let markdown = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "md");
    folders.iter().flat_map(|folder| pages(folder)).chain(files.into_iter().filter(markdown)).collect()
}

/// Every example of the documentation is refused by both while its files are missing, and accepted by both once they exist.
#[test]
fn examples_of_the_documentation_are_accepted_or_refused_alike() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let (mut count, mut with_files) = (0, 0);
    for page in pages(&docs) {
        for example in examples(&page) {
            let case = format!("{}:\n{example}", page.display());
            let folder = folder();
            let environment = match example.contains("admin_key_file") || example.contains("master_key_file")
            {
                true => Vec::new(),
                false => environment_of(&[]),
            };
            let arguments =
                ["--config", "c.toml", "--listen", "127.0.0.1:0", "--database-url", "sqlite:redrive.db"];
            // Files of the operating system's folders are looked for in this folder.
            let mut text = example.clone();
            for place in ["/etc/redrive/tls/", "/etc/redrive/", "/run/secrets/", "/var/lib/redrive/"] {
                text = text.replace(place, &format!("{}/", folder.path().display()));
            }
            write(&folder.path().join("c.toml"), &text, 0o600);
            let names_files = text.lines().any(|line| line.contains("_file = ") || line.starts_with("tls_"));
            if names_files {
                let checked = check(folder.path(), &arguments, &environment).expect_err(&case);
                let served = start(folder.path(), &[&["serve"], &arguments[..]].concat(), &environment);
                assert_eq!(served, Started::Refused(checked), "{case}");
                create_files(folder.path(), &text);
                with_files += 1;
            }
            let checked = check(folder.path(), &arguments, &environment);
            assert!(checked.is_ok(), "{case}\n{checked:?}");
            let served = start(folder.path(), &[&["serve"], &arguments[..]].concat(), &environment);
            assert!(matches!(served, Started::Listening(_)), "{case}\n{served:?}");
            count += 1;
        }
    }
    assert!(count >= 10 && with_files >= 3, "{count} examples, {with_files} of them with files");
}

/// Creates the files that a configuration names.
fn create_files(folder: &Path, text: &str) {
    let pair = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    for line in text.lines() {
        let Some((setting, value)) = line.split_once(" = ") else { continue };
        let Some(path) = value.split('"').nth(1).filter(|path| path.starts_with(folder.to_str().unwrap()))
        else {
            continue;
        };
        let content = match setting {
            "tls_cert" => pair.cert.pem(),
            "tls_key" => pair.signing_key.serialize_pem(),
            "master_key_file" => MASTER_KEY.1.to_owned(),
            _ => ADMIN_KEY.1.to_owned(),
        };
        write(Path::new(path), &content, 0o600);
    }
}
