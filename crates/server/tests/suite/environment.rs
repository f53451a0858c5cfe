//! The environment as the binary sees it: variables that Kubernetes sets, settings that look like them, and mistakes.

use crate::process::{ADMIN_KEY, MASTER_KEY, Started, run_failing, run_ok, start};

/// Returns the variables that Kubernetes sets in every container for a Service with one port.
fn service_variables(service: &str, port: u16) -> Vec<(String, String)> {
    let prefix = service.to_uppercase().replace('-', "_");
    let url = format!("tcp://10.0.0.1:{port}");
    [
        ("SERVICE_HOST".to_owned(), "10.0.0.1".to_owned()),
        ("SERVICE_PORT".to_owned(), port.to_string()),
        ("SERVICE_PORT_HTTP".to_owned(), port.to_string()),
        ("PORT".to_owned(), url.clone()),
        (format!("PORT_{port}_TCP"), url),
        (format!("PORT_{port}_TCP_PROTO"), "tcp".to_owned()),
        (format!("PORT_{port}_TCP_PORT"), port.to_string()),
        (format!("PORT_{port}_TCP_ADDR"), "10.0.0.1".to_owned()),
    ]
    .into_iter()
    .map(|(name, value)| (format!("{prefix}_{name}"), value))
    .collect()
}

#[test]
fn server_starts_with_the_variables_of_kubernetes_services() {
    let folder = tempfile::tempdir().unwrap();
    // The last two have variables that are named like settings: REDRIVE_SMTP_PORT and REDRIVE_SERVER_PORT.
    let services =
        ["redrive", "redrive-api", "redrive-worker", "redrive-postgres-rw", "redrive-smtp", "redrive-server"];
    let variables: Vec<_> =
        services.iter().zip(8_080..).flat_map(|(name, port)| service_variables(name, port)).collect();
    assert!(variables.iter().any(|(name, _)| name == "REDRIVE_SMTP_PORT"));
    let mut environment = vec![ADMIN_KEY, MASTER_KEY];
    environment.extend(variables.iter().map(|(name, value)| (&**name, &**value)));
    let arguments = ["--listen", "127.0.0.1:0", "--database-url", "sqlite:redrive.db"];
    let started = start(folder.path(), &[&["serve"], &arguments[..]].concat(), &environment);
    assert!(matches!(started, Started::Listening(_)), "{started:?}");
    // None of them changes a setting.
    let show = ["config", "show", "--database-url", "sqlite:redrive.db"];
    let without = run_ok(folder.path(), &show, &[ADMIN_KEY, MASTER_KEY]);
    assert_eq!(run_ok(folder.path(), &show, &environment), without);
    // A real setting among them is read.
    environment.push(("REDRIVE_DELIVERY_MAX_IN_FLIGHT", "77"));
    assert!(run_ok(folder.path(), &show, &environment).contains("max_in_flight = 77"));
}

#[test]
fn misspelled_settings_are_refused_with_a_suggestion() {
    let folder = tempfile::tempdir().unwrap();
    for (name, value, expected) in [
        ("REDRIVE_SERVER_LISTN", "127.0.0.1:80", "did you mean REDRIVE_SERVER_LISTEN?"),
        ("REDRIVE_SMTP_PROT", "25", "did you mean REDRIVE_SMTP_PORT?"),
        ("REDRIVE_SMPT_PORT", "25", "did you mean REDRIVE_SMTP_PORT?"),
        ("REDRIVE_PORT", "8080", "unknown setting REDRIVE_PORT"),
        ("REDRIVE_SERVICE_PORT", "http", "unknown setting REDRIVE_SERVICE_PORT"),
    ] {
        let message = run_failing(folder.path(), &["config", "show"], &[(name, value)]);
        assert!(message.contains(name) && message.contains(expected), "{message}");
    }
}

#[test]
fn setting_that_ends_in_port_is_read_if_it_is_a_number() {
    let folder = tempfile::tempdir().unwrap();
    let show = ["config", "show"];
    let smtp = [("REDRIVE_SMTP_HOST", "localhost"), ("REDRIVE_SMTP_FROM", "a@example.com")];
    let shown = run_ok(folder.path(), &show, &[&smtp[..], &[("REDRIVE_SMTP_PORT", "2525")]].concat());
    assert!(shown.contains("port = 2525"), "{shown}");
    let message = run_failing(folder.path(), &show, &[("REDRIVE_SMTP_PORT", "smtp")]);
    assert!(message.starts_with("smtp.port: "), "{message}");
}

#[test]
fn variable_that_is_not_text_is_no_panic() {
    use std::{ffi::OsStr, os::unix::ffi::OsStrExt};

    let folder = tempfile::tempdir().unwrap();
    let mut command = crate::process::redrive_command(folder.path(), &["config", "show"], &[]);
    let output = command.env("OTHER_PROGRAM", OsStr::from_bytes(b"\xff\xfe")).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    // A setting is refused, and its value, which may be a secret, is not printed.
    let mut command = crate::process::redrive_command(folder.path(), &["config", "show"], &[]);
    let output = command.env("REDRIVE_ADMIN_KEY", OsStr::from_bytes(b"secret\xff")).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let message = crate::process::message(&String::from_utf8_lossy(&output.stderr));
    assert_eq!(message, "REDRIVE_ADMIN_KEY: must be text in UTF-8");
}
