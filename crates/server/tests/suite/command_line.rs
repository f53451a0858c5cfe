//! Tests of the command line through the binary.

use std::{
    path::Path,
    process::{Command, Output},
};

use redrive_testkit::{Redrive, Setup};

fn redrive(folder: &Path, arguments: &[&str]) -> Output {
    redrive_with(folder, arguments, &[])
}

fn redrive_with(folder: &Path, arguments: &[&str], environment: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_redrive"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("REDRIVE_")) {
        command.env_remove(name);
    }
    command.current_dir(folder).args(arguments).envs(environment.iter().copied()).output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn version_and_help_are_printed() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(
        stdout(&redrive(folder.path(), &["--version"])),
        format!("redrive {}\n", env!("CARGO_PKG_VERSION"))
    );
    let help = stdout(&redrive(folder.path(), &["--help"]));
    for command in ["dev", "serve", "keys", "migrate", "config"] {
        assert!(help.contains(command), "{help}");
    }
}

#[test]
fn configuration_is_shown_and_checked() {
    let folder = tempfile::tempdir().unwrap();
    let secret = [("REDRIVE_ADMIN_KEY", "0123456789abcdef0123456789abcdef")];
    let shown = stdout(&redrive_with(folder.path(), &["config", "show"], &secret));
    assert!(shown.contains("[delivery]") && shown.contains("allow_http = false"), "{shown}");
    assert!(shown.contains("[redacted]") && !shown.contains("0123456789abcdef"), "{shown}");
    let dev = stdout(&redrive(folder.path(), &["config", "show", "--dev"]));
    assert!(dev.contains("allow_http = true"), "{dev}");
    std::fs::write(folder.path().join("c.toml"), "[delivery]\nmax_inflight = 3\n").unwrap();
    let bad = redrive(folder.path(), &["config", "check", "--config", "c.toml"]);
    assert_eq!(bad.status.code(), Some(1));
    assert_eq!(
        stderr(&bad),
        "error: unknown setting delivery.max_inflight; did you mean delivery.max_in_flight?\n"
    );
    let missing = redrive(folder.path(), &["config", "check", "--config", "nowhere.toml"]);
    assert!(stderr(&missing).contains("nowhere.toml cannot be read"), "{}", stderr(&missing));
    std::fs::write(folder.path().join("c.toml"), "[delivery]\nmax_in_flight = 3\n").unwrap();
    let flags = ["config", "show", "--config", "c.toml", "--listen", "127.0.0.1:9"];
    let shown = redrive_with(folder.path(), &flags, &[("REDRIVE_SERVER_LISTEN", "127.0.0.1:8")]);
    assert!(
        stdout(&shown).contains("listen = \"127.0.0.1:9\""),
        "flags beat the environment: {}",
        stdout(&shown)
    );
    assert!(stdout(&shown).contains("max_in_flight = 3"));
}

#[test]
fn pool_flag_is_repeatable_and_validated() {
    let folder = tempfile::tempdir().unwrap();
    let show = ["config", "show", "--pool", "default", "--pool", "gold"];
    let shown = stdout(&redrive_with(folder.path(), &show, &[("REDRIVE_POOLS", "[\"other\"]")]));
    assert!(shown.contains(r#"pools = ["default", "gold"]"#), "flags beat the environment: {shown}");
    let plain = stdout(&redrive(folder.path(), &["config", "show"]));
    assert!(plain.contains(r#"pools = ["default"]"#), "{plain}");
    let bad = stderr(&redrive(folder.path(), &["serve", "--pool", "Gold!"]));
    assert!(bad.contains("pools: \"Gold!\" must be 1 to 64 characters"), "{bad}");
    let twice = stderr(&redrive(folder.path(), &["dev", "--pool", "a", "--pool", "a"]));
    assert!(twice.contains("pools: names \"a\" twice"), "{twice}");
}

#[test]
fn unsafe_settings_prevent_start() {
    let folder = tempfile::tempdir().unwrap();
    let message = |arguments: &[&str], environment: &[(&str, &str)]| {
        let output = redrive_with(folder.path(), arguments, environment);
        assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
        stderr(&output)
    };
    let no_master = message(&["serve", "--listen", "127.0.0.1:0"], &[]);
    assert!(no_master.contains("redrive secrets new-key > master.key"), "{no_master}");
    let master = stdout(&redrive(folder.path(), &["secrets", "new-key"]));
    let master = ("REDRIVE_SECRETS_MASTER_KEY", master.trim());
    let no_key = message(&["serve", "--listen", "127.0.0.1:0"], &[master]);
    assert!(
        no_key.contains("REDRIVE_ADMIN_KEY") && no_key.contains("redrive keys create --admin"),
        "{no_key}"
    );
    let short = message(&["serve"], &[("REDRIVE_ADMIN_KEY", "short")]);
    assert!(short.contains("32 characters"), "{short}");
    let open_dev = message(&["dev", "--listen", "0.0.0.0:0"], &[]);
    assert!(open_dev.contains("must be a loopback address"), "{open_dev}");
    let mysql = message(&["dev", "--database-url", "mysql://localhost/x"], &[]);
    assert!(mysql.contains("sqlite:PATH or postgres://"), "{mysql}");
    let typo = message(&["dev"], &[("REDRIVE_ADMIN_KEYS", "x")]);
    assert!(typo.contains("did you mean REDRIVE_ADMIN_KEY?"), "{typo}");
}

#[test]
fn keys_are_created_listed_and_revoked_without_server() {
    let folder = tempfile::tempdir().unwrap();
    let output = redrive(folder.path(), &["keys", "create", "--name", "shop", "--scope", "publish,read"]);
    let key = stdout(&output);
    assert!(key.starts_with("rdk_") && key.trim().len() == 68, "{key} {}", stderr(&output));
    let listed = stdout(&redrive(folder.path(), &["keys", "list"]));
    assert!(
        listed.contains("active") && listed.contains("publish,read") && listed.contains("shop"),
        "{listed}"
    );
    assert!(!listed.contains(key.trim()), "the key itself is not shown again");
    let id = listed.split_whitespace().next().unwrap();
    assert!(redrive(folder.path(), &["keys", "revoke", id]).status.success());
    assert!(stdout(&redrive(folder.path(), &["keys", "list"])).contains("revoked"));
    let again = redrive(folder.path(), &["keys", "revoke", id]);
    assert!(stderr(&again).contains("no active key"), "{}", stderr(&again));
    let unknown = redrive(folder.path(), &["keys", "create", "--tenant", "unknown"]);
    assert!(stderr(&unknown).contains("no such tenant: unknown"), "{}", stderr(&unknown));
}

#[tokio::test]
async fn keys_are_managed_through_server_that_holds_database() {
    let server = Redrive::start().await;
    let folder = server.data_dir().to_owned();
    let database = format!("sqlite:{}", folder.join("redrive.db").display());
    let address = server.address().to_string();
    let environment = [("REDRIVE_ADMIN_KEY", server.key().to_owned())];
    let run = |arguments: Vec<String>| {
        let (folder, environment) = (folder.clone(), environment.clone());
        let (database, address) = (database.clone(), address.clone());
        tokio::task::spawn_blocking(move || {
            let mut all: Vec<&str> = arguments.iter().map(String::as_str).collect();
            all.extend(["--database-url", &database, "--listen", &address]);
            let environment: Vec<_> =
                environment.iter().map(|(name, value)| (*name, value.as_str())).collect();
            redrive_with(&folder, &all, &environment)
        })
    };
    let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let output = run(words("keys create --name till")).await.unwrap();
    let key = stdout(&output).trim().to_owned();
    let api = server.api().with_key(&key);
    assert_eq!(api.get("/v1/events").await.status, 200, "{}", stderr(&output));
    let listed = stdout(&run(words("keys list")).await.unwrap());
    let id = listed.split_whitespace().next().unwrap().to_owned();
    assert!(run(words(&format!("keys revoke {id}"))).await.unwrap().status.success());
    assert_eq!(api.get("/v1/events").await.status, 401, "the revocation is effective immediately");
}

#[tokio::test]
async fn stored_admin_key_is_sufficient_to_serve() {
    let folder = tempfile::tempdir().unwrap();
    let output =
        redrive(folder.path(), &["keys", "create", "--admin", "--database-url", "sqlite:redrive.db"]);
    let key = stdout(&output).trim().to_owned();
    let setup = Setup::new().data_dir(folder.path()).command("serve");
    let server = Redrive::start_with(setup).await;
    assert_eq!(server.api().with_key(&key).get("/v1/tenants").await.status, 200);
}
