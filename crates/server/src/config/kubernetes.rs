//! Recognizes the environment variables that Kubernetes sets in every container for each Service of its namespace.
//!
//! A Service whose name begins with `redrive` has variables that begin with `REDRIVE_`. They are not settings, and must
//! not stop the start. A misspelled setting must still be reported, so the values are checked as well as the names.

/// Protocols of the ports of a Service.
const PROTOCOLS: [&str; 3] = ["tcp", "udp", "sctp"];

/// Returns whether Kubernetes sets this variable for a Service, whatever the Service is called.
pub(super) fn is_service_variable(name: &str, value: &str) -> bool {
    let (name, value) = (name.to_ascii_uppercase(), value.trim());
    if name.ends_with("_SERVICE_HOST") {
        return true;
    }
    if name.ends_with("_SERVICE_PORT") || name.contains("_SERVICE_PORT_") {
        return is_port(value);
    }
    if name.ends_with("_PORT") && is_port_url(value) {
        return true;
    }
    // REDRIVE_PORT_8080_TCP and REDRIVE_PORT_8080_TCP_PROTO, …_PORT and …_ADDR.
    let Some((_, rest)) = name.rsplit_once("_PORT_") else { return false };
    let mut parts = rest.split('_');
    let (port, protocol, detail) = (parts.next(), parts.next(), parts.next());
    let known_protocol =
        protocol.is_some_and(|protocol| PROTOCOLS.iter().any(|known| protocol.eq_ignore_ascii_case(known)));
    port.is_some_and(is_port)
        && known_protocol
        && matches!(detail, None | Some("PROTO" | "PORT" | "ADDR"))
        && parts.next().is_none()
}

fn is_port(text: &str) -> bool {
    text.parse::<u16>().is_ok()
}

/// Returns whether a value looks like `tcp://10.96.0.17:8080`.
fn is_port_url(value: &str) -> bool {
    value
        .split_once("://")
        .is_some_and(|(scheme, address)| PROTOCOLS.contains(&scheme) && address.contains(':'))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::config::{ConfigError, Profile, SETTINGS, load::parse};

    /// Returns the variables that Kubernetes sets for a Service with one named port.
    fn variables(service: &str, port: u16, protocol: &str) -> Vec<(String, String)> {
        let prefix = service.to_uppercase().replace('-', "_");
        let (address, upper) = ("10.96.0.17", protocol.to_uppercase());
        let url = format!("{protocol}://{address}:{port}");
        vec![
            (format!("{prefix}_SERVICE_HOST"), address.to_owned()),
            (format!("{prefix}_SERVICE_PORT"), port.to_string()),
            (format!("{prefix}_SERVICE_PORT_HTTP_API"), port.to_string()),
            (format!("{prefix}_PORT"), url.clone()),
            (format!("{prefix}_PORT_{port}_{upper}"), url),
            (format!("{prefix}_PORT_{port}_{upper}_PROTO"), protocol.to_owned()),
            (format!("{prefix}_PORT_{port}_{upper}_PORT"), port.to_string()),
            (format!("{prefix}_PORT_{port}_{upper}_ADDR"), address.to_owned()),
        ]
    }

    proptest! {
        #[test]
        fn variables_of_any_service_are_ignored(
            name in "(-[a-z][a-z0-9]{0,8}){0,3}", port: u16, protocol in proptest::sample::select(&PROTOCOLS[..]),
        ) {
            let service = format!("redrive{name}");
            for (name, value) in variables(&service, port, protocol) {
                prop_assert!(is_service_variable(&name, &value), "{name}={value}");
            }
            prop_assert!(parse(Profile::Serve, "", variables(&service, port, protocol)).is_ok());
        }
    }

    #[test]
    fn service_named_like_a_setting_does_not_change_it() {
        // The variables of a Service named redrive-smtp contain REDRIVE_SMTP_PORT, which is a setting.
        let config = parse(Profile::Serve, "", variables("redrive-smtp", 25, "tcp")).unwrap();
        assert_eq!(config.smtp.port, crate::config::Config::defaults(Profile::Serve).smtp.port);
        let vars = [("REDRIVE_SMTP_PORT".to_owned(), "2525".to_owned())];
        assert_eq!(parse(Profile::Serve, "", vars).unwrap().smtp.port, Some(2525));
    }

    #[test]
    fn misspelled_settings_are_still_rejected() {
        for (name, value) in [
            ("REDRIVE_PORT", "8080"),
            ("REDRIVE_LISTEN_PORT", "8080"),
            ("REDRIVE_SMPT_PORT", "25"),
            ("REDRIVE_SERVICE_PORT", "tcp://1.2.3.4:1"),
            ("REDRIVE_EGRESS_PORT_443", "443"),
        ] {
            let vars = [(name.to_owned(), value.to_owned())];
            let error = parse(Profile::Serve, "", vars).unwrap_err();
            assert!(matches!(error, ConfigError::Unknown { .. }), "{name}: {error}");
        }
    }

    #[test]
    fn valid_settings_are_not_service_variables() {
        for setting in SETTINGS.iter() {
            for value in ["8080", "text", "true", "127.0.0.1:80", "https://a.example:1"] {
                assert!(!is_service_variable(&setting.env, value), "{}={value}", setting.env);
            }
        }
    }
}
