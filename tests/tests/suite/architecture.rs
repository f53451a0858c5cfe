//! Architecture tests: forbidden APIs and dependencies per crate, found by scanning the sources.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

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

/// Returns the code of a crate by file, without comments and without the tests at the end of files.
fn code_of(crate_name: &str) -> Vec<(String, String)> {
    let folder = root().join("crates").join(crate_name).join("src");
    let mut files = Vec::new();
    files_of_kind("rs", &folder, &mut files);
    assert!(!files.is_empty(), "no sources in {}", folder.display());
    let code = |path: PathBuf| {
        let text = std::fs::read_to_string(&path).unwrap();
        let (text, tests) = text.split_once("#[cfg(test)]\nmod tests {\n").unwrap_or((&text, "}\n"));
        // Code after the tests would not be scanned.
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

/// Returns whether code contains a SQL word in any case, and not as part of another word or as a Rust method.
fn contains_sql(code: &str, word: &str) -> bool {
    let code = code.to_lowercase();
    let apart = |c: char| !c.is_ascii_alphanumeric() && !"_.:".contains(c);
    code.match_indices(word).any(|(at, _)| code[..at].chars().next_back().is_none_or(apart))
}

/// Returns every occurrence of one of `words` in the code of `crates` outside `allowed`.
fn find_violations(crates: &[&str], words: &[&str], allowed: &[&str]) -> Vec<String> {
    let mut found = Vec::new();
    for (file, code) in crates.iter().flat_map(|name| code_of(name)) {
        if allowed.iter().any(|location| file.starts_with(location)) {
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
    assert_eq!(find_violations(&["core"], &words, &[]), [] as [String; 0]);
}

/// Types and functions that access the network or other processes. Code that uses one must name it somewhere,
/// however it is imported or renamed.
const NETWORK_APIS: [&str; 30] = [
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

/// Constructs that would hide a name: glob imports, and code included from elsewhere.
const HIDING_IMPORTS: [&str; 6] =
    ["net::*", "process::*", "hyper::*", "hyper_util::*", "include!(", "#[path"];

#[test]
fn only_egress_opens_connections() {
    // The command line may connect to the operator's own server, the store to the operator's database, and the engine
    // to the operator's RabbitMQ.
    let own = [
        "server/src/cli/remote.rs",
        "server/src/cli/pinned_tls.rs",
        "store/src/postgres/connect.rs",
        "engine/src/amqp/",
        // Spans go to the operator's collector, and the archive to the operator's bucket.
        "server/src/upstream.rs",
        "server/src/otlp/collector.rs",
        // The identity provider is the operator's, and users choose no part of its URLs.
        "server/src/oidc/http.rs",
        // Names in the operator's own settings: the listen address and name servers.
        "server/src/config/host_port.rs",
        // The SMTP server is the operator's; tenants choose only recipients.
        "server/src/mail/smtp.rs",
    ];
    // The operator sets the location of the archive, and only Redrive names its objects.
    let allowed = [&own[..], &["egress/src/", "server/src/archive/"]].concat();
    let mut found = find_violations(&ALL, &NETWORK_APIS, &allowed);
    // An accepted connection has the same type as an outgoing one, but is not opened there.
    let accepts = |file: &str| file.starts_with("server/src/http/");
    let http: String =
        code_of("server").into_iter().filter(|(file, _)| accepts(file)).map(|(_, code)| code).collect();
    assert!(http.contains("accept(") && !http.contains("connect("), "the server only accepts");
    found.retain(|stray| !accepts(stray) || !stray.ends_with(": TcpStream"));
    // Runs the operator's configured command that prints the master key; no other caller can set it.
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
    assert_eq!(find_violations(&ALL, &HIDING_IMPORTS, &[]), [] as [String; 0]);
}

#[test]
fn egress_connects_in_one_place_behind_the_guard() {
    // If the words or the folder were wrong, the test above would never find anything.
    for word in ["TcpStream", "UdpSocket", "hickory", "client::legacy", "TlsConnector"] {
        assert!(!find_violations(&["egress"], &[word], &[]).is_empty(), "{word} is not even in egress");
    }
    // Names are resolved in one file, sockets are opened in one file, and every connection passes the guard first.
    assert_eq!(find_violations(&["egress"], &["hickory"], &["egress/src/resolver.rs"]), [] as [String; 0]);
    let dials = ["TcpStream::connect", "UdpSocket", "TcpSocket", "legacy::connect::HttpConnector"];
    assert_eq!(find_violations(&["egress"], &dials, &["egress/src/connector.rs"]), [] as [String; 0]);
    let connector = code_of("egress").into_iter().find(|(file, _)| file.ends_with("connector.rs")).unwrap().1;
    assert_eq!(connector.matches("TcpStream::connect").count(), 1, "one place dials");
    let (guarded, dialled) =
        (connector.find("self.guard(").unwrap(), connector.find("self.connect_checked(").unwrap());
    assert!(guarded < dialled, "the guard comes first");
}

#[test]
fn every_crate_is_scanned() {
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
fn only_allowed_crates_depend_on_network_clients() {
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
        // Emails to the operator's SMTP server; the connection is opened in one place.
        ("lettre", &["server"]),
        // Messages over connections to RabbitMQ, which are opened in one place.
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

/// Returns whether the lines of a manifest name a dependency, under its own name or renamed.
fn depends_on(dependencies: &str, name: &str) -> bool {
    dependencies.lines().any(|line| {
        line.starts_with(&format!("{name}."))
            || line.starts_with(&format!("{name} ="))
            || line.contains(&format!("package = \"{name}\""))
    })
}

#[test]
fn only_one_file_reads_clocks_and_random_values() {
    let words = [
        "SystemTime::now",
        "Instant::now",
        "Timestamp::now",
        "rand::rng(",
        "rand::random",
        "now_v7",
        "datetime(",
    ];
    // The conformance suite prints measurements.
    let allowed = ["engine/src/clock.rs", "store/src/conformance/scale.rs"];
    assert_eq!(find_violations(&ALL, &words, &allowed), [] as [String; 0]);
}

/// The SQL words for the current time and for random values in SQLite and PostgreSQL.
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
fn only_allowed_statements_read_the_database_clock() {
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
        found.extend(
            CLOCKS.iter().filter(|word| contains_sql(&code, word)).map(|word| format!("{file}: {word}")),
        );
    }
    found.sort();
    // Nodes synchronize their clocks with the store, and a copy records its start time.
    let allowed =
        ["store/src/postgres/import.rs: clock_timestamp", "store/src/postgres/nodes.rs: clock_timestamp"];
    assert_eq!(found, allowed);
    assert!(contains_sql("SELECT Now()", "now()") && contains_sql("(now(), 1)", "now()"));
    assert!(!contains_sql("clock.now() + snow() + Clock::now()", "now()"));
}

#[test]
fn outcomes_and_claims_each_have_one_call_site() {
    assert_eq!(
        find_violations(&["engine", "server"], &["store.record("], &["engine/src/record/"]),
        [] as [String; 0]
    );
    assert_eq!(
        find_violations(
            &["engine", "server"],
            &[".claim(", "store.claim_tickets("],
            &["engine/src/schedule/"]
        ),
        [] as [String; 0]
    );
}

#[test]
fn backends_contain_no_policy() {
    let words = ["retry::", "decide::", "response::", "signature::sign", "jitter", "backoff"];
    assert_eq!(find_violations(&["store"], &words, &["store/src/conformance/"]), [] as [String; 0]);
}

#[test]
fn tenants_are_read_together_only_after_an_admin_check() {
    // The use cases over all tenants take an `AllTenants`, which only the check of an admin key creates.
    let reads = [
        "_of_all_tenants(",
        ".tenant_of_event(",
        ".tenant_of_delivery(",
        ".tenant_of_webhook(",
        ".tenant_activity(",
        ".waiting_by_webhook(",
        ".webhooks_by_id(",
    ];
    let own = ["server/src/app/across_tenants/", "server/src/app/traffic.rs"];
    let found = find_violations(&["server"], &reads, &own);
    let allowed = |line: &String| {
        line.starts_with("server/src/app/tenants.rs") || line.starts_with("server/src/api/tenants.rs")
    };
    assert!(found.iter().all(allowed), "{found:#?}");
    assert_eq!(find_violations(&["server"], &["AllTenants(())"], &own[..1]), [] as [String; 0]);
}

#[test]
fn handlers_change_data_only_through_the_application_layer() {
    // Handlers call the application layer, never the store or the engine directly.
    let words = [
        ".create_webhook(webhook",
        ".change_webhook(webhook",
        "store().retry",
        "store().cancel",
        "store().replay",
    ];
    assert_eq!(find_violations(&["server"], &words, &["server/src/app/"]), [] as [String; 0]);
}

/// Modules of the server that must not import others, and what they must not import. A lower module holds what two of them
/// share: `problem` and `request` for the API and the HTTP server, `app::parse` for the API and the sources.
const MODULES_APART: [(&str, &[&str]); 5] = [
    ("server/src/sources/", &["api", "dashboard", "http"]),
    ("server/src/http/", &["api", "app", "dashboard", "sources"]),
    ("server/src/api/", &["dashboard", "http", "sources"]),
    ("server/src/app/", &["api", "dashboard", "http", "problem", "sources"]),
    ("server/src/request/", &["api", "app", "dashboard", "http", "problem", "sources"]),
];

/// Returns the modules of its crate that code imports or names, such as `api` in `use crate::{api::AppState, app::App}`.
fn modules_named_in(code: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (at, word) in code.match_indices("crate::") {
        let rest = &code[at + word.len()..];
        let Some(list) = rest.strip_prefix('{') else {
            found.extend(first_segment(rest));
            continue;
        };
        let mut depth = 0;
        let mut begin = 0;
        for (index, c) in list.char_indices() {
            match c {
                '{' => depth += 1,
                ',' | '}' if depth == 0 => {
                    found.extend(first_segment(list[begin..index].trim_start()));
                    begin = index + 1;
                    if c == '}' {
                        break;
                    }
                }
                '}' => depth -= 1,
                _ => {}
            }
        }
    }
    found
}

/// Returns the identifier at the beginning of a path.
fn first_segment(path: &str) -> Option<String> {
    let end = path.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(path.len());
    (end > 0).then(|| path[..end].to_owned())
}

#[test]
fn modules_of_the_server_do_not_import_each_other() {
    let code = code_of("server");
    let mut found = Vec::new();
    for (folder, forbidden) in MODULES_APART {
        let files: Vec<_> = code.iter().filter(|(file, _)| file.starts_with(folder)).collect();
        assert!(!files.is_empty(), "no sources in {folder}");
        for (file, code) in files {
            let named = modules_named_in(code);
            found.extend(
                forbidden.iter().filter(|name| named.contains(**name)).map(|name| format!("{file}: {name}")),
            );
        }
    }
    assert_eq!(found, [] as [String; 0]);
    let named = modules_named_in(
        "use crate::{\n    api::{self, Problem},\n    app::App,\n};\nlet x = crate::http::serve();",
    );
    assert_eq!(named, ["api", "app", "http"].map(str::to_owned).into());
}

#[test]
fn dependencies_point_one_way() {
    let order = ["core", "store", "egress", "engine", "server"];
    // The dependencies that each crate must not have.
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

/// The modules of the engine in their order: a module imports only modules before it. The order is explained in
/// `crates/engine/src/lib.rs`.
const ENGINE_MODULES: [&str; 29] = [
    "clock",
    "ids",
    "amqp",
    "mailer",
    "spans",
    "metrics",
    "settings",
    "supervision",
    "wakeups",
    "tenant_slots",
    "dns_suspects",
    "cluster::limit_shares",
    "cluster::membership",
    "routing",
    "rollup_buffer",
    "coordinate",
    "dispatch",
    "occurrences",
    "trace",
    "send",
    "record",
    "attempt_runner",
    "schedule",
    "publish",
    "cluster",
    "control",
    "services",
    "engine",
    "assemble",
];

/// Returns the position of the module in `ENGINE_MODULES` that a path such as `cluster::membership::Membership` is in.
fn engine_module(path: &str) -> Option<usize> {
    let is_in = |module: &str| {
        path.strip_prefix(module).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
    };
    let found = (0..ENGINE_MODULES.len()).filter(|index| is_in(ENGINE_MODULES[*index]));
    found.max_by_key(|index| ENGINE_MODULES[*index].len())
}

/// Returns the paths that a list of imports names, with nested braces expanded: `a::{b, c::{d, e}}`.
fn expand_imports(imports: &str) -> Vec<String> {
    let Some(open) = imports.find('{') else { return vec![imports.trim().to_owned()] };
    let (prefix, inner) = (&imports[..open], &imports[open + 1..imports.rfind('}').unwrap()]);
    let (mut depth, mut start, mut parts) = (0, 0, Vec::new());
    for (index, letter) in inner.char_indices() {
        match letter {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&inner[start..index]);
                start = index + 1;
            }
            _ => {}
        }
    }
    parts.push(&inner[start..]);
    let named = parts.into_iter().map(str::trim).filter(|part| !part.is_empty());
    named.flat_map(|part| expand_imports(&format!("{prefix}{part}"))).collect()
}

/// Returns the paths that the code of a file imports from its own crate.
fn crate_imports(code: &str) -> Vec<String> {
    let statements = code.split("use crate::").skip(1).filter_map(|rest| rest.split(';').next());
    statements.flat_map(|imports| expand_imports(&imports.split_whitespace().collect::<String>())).collect()
}

#[test]
fn engine_modules_import_only_modules_before_them() {
    let (mut violations, mut imports) = (Vec::new(), 0);
    for (file, code) in code_of("engine") {
        let path = file.trim_start_matches("engine/src/").trim_end_matches(".rs").trim_end_matches("/mod");
        // The root exports everything, and `testing` is compiled for unit tests only.
        if path == "lib" || path == "testing" {
            continue;
        }
        let module = path.replace('/', "::");
        let own = engine_module(&module).unwrap_or_else(|| panic!("{module} is not in ENGINE_MODULES"));
        for import in crate_imports(&code) {
            imports += 1;
            // What the crate exports at its root is imported from there.
            let used = engine_module(&import).or_else(|| exported_by(&import));
            let used = used.unwrap_or_else(|| panic!("{module} imports the unknown module {import}"));
            if used > own {
                violations.push(format!("{module} must not import {import}"));
            }
        }
    }
    assert!(imports > 300, "too few imports were found: {imports}");
    assert_eq!(violations, [] as [String; 0]);
}

/// Returns the module whose type the engine exports at its root.
fn exported_by(name: &str) -> Option<usize> {
    let lib = std::fs::read_to_string(root().join("crates/engine/src/lib.rs")).unwrap();
    let exports = lib.split("pub use ").skip(1).filter_map(|rest| rest.split(';').next());
    let mut paths = exports.flat_map(|paths| expand_imports(&paths.split_whitespace().collect::<String>()));
    let found = paths.find(|path| path.rsplit("::").next() == Some(name))?;
    engine_module(&found)
}

#[test]
fn engine_has_no_central_struct() {
    // Components name what they take; a struct with everything would let any module call any other.
    assert_eq!(find_violations(&["engine"], &["struct Inner", "impl Inner"], &[]), [] as [String; 0]);
    let mut largest = 0;
    for (file, code) in code_of("engine") {
        for body in code.split("struct ").skip(1).filter_map(|rest| rest.split("\n}").next()) {
            let fields = body.lines().skip(1).filter(|line| line.starts_with("    ") && line.contains(": "));
            let count = fields.count();
            largest = largest.max(count);
            // The limits of the settings and the counters of the dispatcher are lists, not dependencies.
            let is_list = ["settings.rs", "metrics/mod.rs", "dispatch/state.rs", "routing/webhook.rs"];
            assert!(
                count <= 19 || is_list.iter().any(|list| file.ends_with(list)),
                "a struct in {file} has {count} fields; divide it"
            );
        }
    }
    assert!(largest > 10, "no struct was read");
}

/// Returns the tests that the tables of a document name: `file.rs`: `test`, `test`. A file outside of `crates` is
/// in `tests/tests/suite`.
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
