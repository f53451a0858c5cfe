//! The house keeps its rooms: what may be used where, read from the sources themselves.

use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn files_of_kind(kind: &str, folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files_of_kind(kind, &path, found);
        } else if path.extension().is_some_and(|extension| extension == kind) {
            found.push(path);
        }
    }
}

/// The code of a crate by file, without comments and without the tests at the end of files.
fn code_of(crate_name: &str) -> Vec<(String, String)> {
    let folder = root().join("crates").join(crate_name).join("src");
    let mut files = Vec::new();
    files_of_kind("rs", &folder, &mut files);
    assert!(!files.is_empty(), "no sources in {}", folder.display());
    let code = |path: PathBuf| {
        let text = std::fs::read_to_string(&path).unwrap();
        let (text, tests) = text.split_once("#[cfg(test)]\nmod tests {\n").unwrap_or((&text, "}\n"));
        // Nothing may hide behind the tests.
        assert!(
            tests.find("\n}\n").is_none_or(|end| end + 3 == tests.len()),
            "{}: code behind tests",
            path.display()
        );
        let lines = text.lines().filter(|line| !line.trim_start().starts_with("//"));
        let name = path.strip_prefix(root().join("crates")).unwrap().display().to_string();
        (name, lines.collect::<Vec<_>>().join("\n"))
    };
    files.into_iter().map(code).collect()
}

/// Whether a word of SQL stands in code in whatever case, not as a part of another word or a method of ours.
fn says_sql(code: &str, word: &str) -> bool {
    let code = code.to_lowercase();
    let apart = |c: char| !c.is_ascii_alphanumeric() && !"_.:".contains(c);
    code.match_indices(word).any(|(at, _)| code[..at].chars().next_back().is_none_or(apart))
}

/// Every place outside `allowed` where one of `words` stands in the code of `crates`.
fn strays(crates: &[&str], words: &[&str], allowed: &[&str]) -> Vec<String> {
    let mut found = Vec::new();
    for (file, code) in crates.iter().flat_map(|name| code_of(name)) {
        if allowed.iter().any(|place| file.starts_with(place)) {
            continue;
        }
        for word in words.iter().filter(|word| code.contains(**word)) {
            found.push(format!("{file}: {word}"));
        }
    }
    found
}

const ALL: [&str; 5] = ["core", "store", "egress", "engine", "server"];

#[test]
fn core_does_no_input_or_output() {
    let words = [
        "tokio",
        "std::fs",
        "std::io::Read",
        "std::process",
        "std::env",
        "TcpStream",
        "async fn",
        "rusqlite",
        "postgres",
    ];
    assert_eq!(strays(&["core"], &words, &[]), [] as [String; 0]);
}

/// The types and functions that reach out, by themselves: whoever wants to use one has to name it somewhere,
/// however it is imported or renamed.
const REACHES_OUT: [&str; 30] = [
    "SmtpTransport",
    "object_store::",
    "TcpStream",
    "TcpSocket",
    "UdpSocket",
    "UnixStream",
    "UnixDatagram",
    "ToSocketAddrs",
    "lookup_host",
    "hickory",
    "hyper::client",
    "client::conn",
    "client::legacy",
    "client::connect",
    "HttpConnector",
    "TlsConnector",
    "reqwest",
    "socket2",
    "rustix::net",
    "libc::",
    "Command::new",
    "process::Command",
    "tokio_postgres::connect",
    "tokio_postgres::{Client, Config",
    "NoTls",
    "config.connect(",
    "Manager::",
    "Connection::connect",
    "ConnectionBuilder",
    "AMQPUri",
];

/// What would hide a name: imports of everything in a module, and code from elsewhere.
const HIDES: [&str; 6] = ["net::*", "process::*", "hyper::*", "hyper_util::*", "include!(", "#[path"];

#[test]
fn only_the_way_out_opens_connections() {
    // The command line may talk to the operator's own server, the store to the operator's own database, and the
    // engine to the operator's own RabbitMQ.
    let own = [
        "server/src/cli/remote.rs",
        "server/src/cli/pinned.rs",
        "store/src/postgres/connect.rs",
        "engine/src/amqp/",
        // Spans go to the operator's own collector, and the archive to the operator's bucket.
        "server/src/upstream.rs",
        "server/src/otlp/collector.rs",
        // The mail server is the operator's own; tenants choose recipients and nothing else.
        "server/src/mail/smtp.rs",
    ];
    // The archive is where the operator says, and what is put there is named by Redrive alone.
    let allowed = [&own[..], &["egress/src/", "server/src/archive/"]].concat();
    let mut found = strays(&ALL, &REACHES_OUT, &allowed);
    // A connection that came in has the same type as one that goes out; it is not made there.
    let accepts = |file: &str| file.starts_with("server/src/http/");
    let http: String =
        code_of("server").into_iter().filter(|(file, _)| accepts(file)).map(|(_, code)| code).collect();
    assert!(http.contains("accept(") && !http.contains("connect("), "the server only accepts");
    found.retain(|stray| !accepts(stray) || !stray.ends_with(": TcpStream"));
    // The operator's own command prints the master key; nobody else can name one.
    let prints_key =
        ["Command::new", "process::Command"].map(|word| format!("server/src/config/secrets.rs: {word}"));
    found.retain(|stray| !prints_key.contains(stray));
    let runs: String = code_of("server")
        .into_iter()
        .filter(|(file, _)| file.ends_with("config/secrets.rs"))
        .map(|(_, code)| code)
        .collect();
    assert_eq!(runs.matches("Command::new").count(), 1);
    assert_eq!(found, [] as [String; 0]);
    assert_eq!(strays(&ALL, &HIDES, &[]), [] as [String; 0]);
}

#[test]
fn the_way_out_is_where_it_is_looked_for() {
    // Were the words wrong, or the folder, the test above would find nothing ever.
    for word in ["TcpStream", "UdpSocket", "hickory", "client::legacy", "TlsConnector"] {
        assert!(!strays(&["egress"], &[word], &[]).is_empty(), "{word} is not even in egress");
    }
    // Names are resolved in one file, sockets opened in one, and nothing is dialled but by the guard.
    assert_eq!(strays(&["egress"], &["hickory"], &["egress/src/resolver.rs"]), [] as [String; 0]);
    let dials = ["TcpStream::connect", "UdpSocket", "TcpSocket", "legacy::connect::HttpConnector"];
    assert_eq!(strays(&["egress"], &dials, &["egress/src/connector.rs"]), [] as [String; 0]);
    let connector = code_of("egress").into_iter().find(|(file, _)| file.ends_with("connector.rs")).unwrap().1;
    assert_eq!(connector.matches("TcpStream::connect").count(), 1, "one place dials");
    let (guarded, dialled) = (connector.find("self.guard(").unwrap(), connector.find("self.reach(").unwrap());
    assert!(guarded < dialled, "the guard comes first");
}

#[test]
fn every_crate_is_looked_at() {
    let folders = std::fs::read_dir(root().join("crates")).unwrap();
    let mut names: Vec<String> =
        folders.map(|folder| folder.unwrap().file_name().into_string().unwrap()).collect();
    names.retain(|name| name != "testkit");
    names.sort();
    let mut all = ALL;
    all.sort_unstable();
    assert_eq!(names, all);
}

#[test]
fn only_the_way_out_depends_on_what_reaches_out() {
    let clients = [
        ("hickory-resolver", &["egress"][..]),
        ("hickory-proto", &[]),
        ("hickory-net", &[]),
        // The server accepts TLS connections, its command line connects to the server, and the engine to RabbitMQ.
        ("tokio-rustls", &["egress", "engine", "server"]),
        ("rustls", &["egress", "engine", "server", "store"]),
        ("hyper", &["egress", "server"]),
        ("hyper-util", &["egress", "server"]),
        ("reqwest", &[]),
        ("ureq", &[]),
        ("curl", &[]),
        ("isahc", &[]),
        ("attohttpc", &[]),
        ("socket2", &[]),
        ("mio", &[]),
        ("tonic", &[]),
        ("tokio-tungstenite", &[]),
        // What goes to the operator's mail server; the connection is made in one place.
        ("lettre", &["server"]),
        // What goes over connections to RabbitMQ; they are made in one place.
        ("lapin", &["engine", "server"]),
        ("redrive-testkit", &[]),
    ];
    for name in ALL {
        let manifest = std::fs::read_to_string(root().join("crates").join(name).join("Cargo.toml")).unwrap();
        let dependencies = manifest.split("[dev-dependencies]").next().unwrap();
        for (client, allowed) in clients {
            assert!(
                !depends_on(dependencies, client) || allowed.contains(&name),
                "{name} must not depend on {client}"
            );
        }
    }
    assert!(depends_on("hyper.workspace = true", "hyper") && depends_on("hyper = \"1\"", "hyper"));
    assert!(!depends_on("hyper-util.workspace = true", "hyper"));
}

/// Whether the lines of a manifest name a dependency, under its own name or renamed.
fn depends_on(dependencies: &str, name: &str) -> bool {
    dependencies.lines().any(|line| {
        line.starts_with(&format!("{name}."))
            || line.starts_with(&format!("{name} ="))
            || line.contains(&format!("package = \"{name}\""))
    })
}

#[test]
fn only_one_file_reads_clocks_and_rolls_dice() {
    let words = [
        "SystemTime::now",
        "Instant::now",
        "Timestamp::now",
        "rand::rng(",
        "rand::random",
        "now_v7",
        "datetime(",
    ];
    // The conformance suite measures, for people to read.
    let allowed = ["engine/src/clock.rs", "store/src/conformance/scale.rs"];
    assert_eq!(strays(&ALL, &words, &allowed), [] as [String; 0]);
}

/// The words by which SQLite and PostgreSQL tell the time, or roll dice.
const CLOCKS: [&str; 16] = [
    "now()",
    "clock_timestamp",
    "statement_timestamp",
    "transaction_timestamp",
    "timeofday(",
    "current_timestamp",
    "current_time",
    "current_date",
    "localtimestamp",
    "localtime",
    "datetime(",
    "strftime(",
    "julianday(",
    "unixepoch(",
    "random(",
    "gen_random_uuid",
];

#[test]
fn few_statements_ask_a_database_for_the_time() {
    let mut found = Vec::new();
    let mut scripts = Vec::new();
    files_of_kind("sql", &root().join("crates/store/src"), &mut scripts);
    assert!(scripts.len() >= 2, "the migrations of both backends");
    let scripts = scripts.into_iter().map(|path| {
        let text = std::fs::read_to_string(&path).unwrap();
        let lines = text.lines().map(|line| line.split("--").next().unwrap());
        (path.file_name().unwrap().display().to_string(), lines.collect::<Vec<_>>().join("\n"))
    });
    for (file, code) in code_of("store").into_iter().chain(scripts) {
        found
            .extend(CLOCKS.iter().filter(|word| says_sql(&code, word)).map(|word| format!("{file}: {word}")));
    }
    found.sort();
    // Nodes set their clocks by it, and a copy notes when it was begun.
    let allowed =
        ["store/src/postgres/import.rs: clock_timestamp", "store/src/postgres/nodes.rs: clock_timestamp"];
    assert_eq!(found, allowed);
    assert!(says_sql("SELECT Now()", "now()") && says_sql("(now(), 1)", "now()"));
    assert!(!says_sql("clock.now() + snow() + Clock::now()", "now()"));
}

#[test]
fn outcomes_are_written_and_work_is_claimed_in_one_place_each() {
    assert_eq!(
        strays(&["engine", "server"], &["store.record("], &["engine/src/record.rs"]),
        [] as [String; 0]
    );
    assert_eq!(
        strays(&["engine", "server"], &[".claim(", "store.take("], &["engine/src/queue/"]),
        [] as [String; 0]
    );
}

#[test]
fn backends_hold_no_policy() {
    let words = ["retry::", "decide::", "outcome::", "signature::sign", "jitter", "backoff"];
    assert_eq!(strays(&["store"], &words, &["store/src/conformance/"]), [] as [String; 0]);
}

#[test]
fn surfaces_change_things_only_through_the_use_cases() {
    // Handlers know the application; the store's verbs and the engine's are behind it.
    let words = [
        ".create_webhook(webhook",
        ".change_webhook(webhook",
        "store().retry",
        "store().cancel",
        "store().replay",
    ];
    assert_eq!(strays(&["server"], &words, &["server/src/app/"]), [] as [String; 0]);
}

#[test]
fn dependencies_point_one_way() {
    let order = ["core", "store", "egress", "engine", "server"];
    // What each crate must not know.
    for (name, unknown) in [
        (
            "core",
            &[
                "redrive-store",
                "redrive-egress",
                "redrive-engine",
                "tokio",
                "hyper",
                "rusqlite",
                "tokio-postgres",
            ][..],
        ),
        ("store", &["redrive-egress", "redrive-engine", "hyper"]),
        ("egress", &["redrive-store", "redrive-engine", "rusqlite", "tokio-postgres"]),
        ("engine", &["axum", "rusqlite", "tokio-postgres"]),
        ("server", &["rusqlite", "tokio-postgres"]),
    ] {
        assert!(order.contains(&name));
        let manifest = std::fs::read_to_string(root().join("crates").join(name).join("Cargo.toml")).unwrap();
        let dependencies = manifest.split("[dev-dependencies]").next().unwrap();
        for dependency in unknown {
            assert!(!depends_on(dependencies, dependency), "{name} must not depend on {dependency}");
        }
    }
}

/// The tests that a table of a document names: `file.rs`: `test`, `test`. A file outside of `crates`
/// is in `tests/tests/suite`.
fn tests_named_in(document: &str) -> Vec<(PathBuf, String)> {
    let text = std::fs::read_to_string(root().join(document)).unwrap();
    let mut named = Vec::new();
    for line in text.lines().filter(|line| line.starts_with('|')) {
        let Some(cell) = line.trim_end_matches('|').rsplit('|').next() else { continue };
        let mut file = None;
        for word in cell.split('`').skip(1).step_by(2) {
            if word.ends_with(".rs") {
                let folder =
                    if word.starts_with("crates/") { root() } else { root().join("tests/tests/suite") };
                file = Some(folder.join(word));
                assert!(file.as_ref().is_some_and(|file| file.is_file()), "{document} names {word}");
            } else if let Some(file) = &file {
                named.push((file.clone(), word.to_owned()));
            }
        }
    }
    named
}

#[test]
fn tests_named_in_the_threat_model_exist() {
    let named = tests_named_in("docs/threat-model.md");
    assert!(named.len() > 10, "the tables name too few tests: {}", named.len());
    for (file, test) in named {
        let code = std::fs::read_to_string(&file).unwrap();
        let is_there = [format!("fn {test}("), format!("({test}")].iter().any(|form| code.contains(form));
        assert!(is_there, "{} has no test {test}", file.display());
    }
}
