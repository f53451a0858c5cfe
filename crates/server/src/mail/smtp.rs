//! SMTP client, and the classification of SMTP errors. The operator chooses the server, so it is called directly,
//! without the egress rules, like the database.

use std::{
    net::IpAddr,
    time::{Duration, SystemTime},
};

use lettre::{
    Address, AsyncSmtpTransport, AsyncTransport, Message, Tokio1Executor,
    message::{
        Mailbox, MultiPart,
        header::{HeaderName, HeaderValue},
    },
    transport::smtp::{
        Error, PoolConfig,
        authentication::{Credentials, Mechanism},
        client::{Certificate, CertificateStore, Tls, TlsParameters},
        extension::ClientId,
    },
};
use parking_lot::Mutex;
use redrive_core::Time;

use super::render::Mail;
use crate::config::{ConfigError, Smtp, SmtpTls};

type Transport = AsyncSmtpTransport<Tokio1Executor>;

/// Maximum number of idle connections, and how long they are kept.
const MAX_IDLE_CONNECTIONS: u32 = 2;
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// Reason why an email was not sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SmtpError {
    /// The recipient was rejected permanently.
    Refused(String),
    /// This email was not accepted now; others may be.
    Deferred(String),
    /// No email can be sent now: the server is unavailable, or a setting is wrong.
    Unavailable(String),
    /// The server's reply was not received, so it may have accepted the email.
    Unknown(String),
}

/// An email with its envelope.
pub(crate) struct OutgoingMail<'a> {
    /// Address of the recipient.
    pub(crate) to: &'a str,
    /// Content.
    pub(crate) email: &'a Mail,
    /// Local part of the Message-ID, without brackets and domain; the same for every attempt.
    pub(crate) id: &'a str,
    /// Date of the email.
    pub(crate) at: Time,
    /// Unsubscribe link.
    pub(crate) unsubscribe: Option<&'a str>,
}

/// Client of the SMTP server.
pub(crate) struct SmtpClient {
    config: Smtp,
    from: Mailbox,
    transport: Mutex<Transport>,
}

impl SmtpClient {
    /// Creates the configured client. Returns `None` if email is not configured.
    pub(crate) fn new(config: &Smtp) -> Result<Option<Self>, ConfigError> {
        if config.host.is_none() {
            return Ok(None);
        }
        let from = config.sender()?;
        let transport = Mutex::new(build_transport(config, &from)?);
        Ok(Some(Self { config: config.clone(), from, transport }))
    }

    /// Returns the sender of emails.
    pub(crate) fn from(&self) -> &Mailbox {
        &self.from
    }

    /// Sends an email.
    pub(crate) async fn send(&self, outgoing: &OutgoingMail<'_>) -> Result<(), SmtpError> {
        let message = build_message(&self.from, outgoing)?;
        let transport = self.transport.lock().clone();
        // `smtp.timeout` applies to each SMTP command; this is the timeout of the whole exchange.
        let wait = self.config.timeout.as_duration() * 3;
        let mut sending = Sending { client: self, is_complete: false };
        let sent = tokio::time::timeout(wait, transport.send(message)).await;
        sending.is_complete = sent.is_ok();
        match sent {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(self.explain(&error)),
            Err(_) => {
                let (location, timeout) = (self.server_address(), wait.as_secs_f32());
                Err(SmtpError::Unknown(format!(
                    "{location} did not respond within {timeout} s; check that smtp.host and smtp.port name an SMTP \
                     server, and that smtp.tls matches the port"
                )))
            }
        }
    }

    /// Connects to the server, logs in if configured, and sends nothing.
    pub(crate) async fn check_connection(&self) -> Result<(), String> {
        let transport = self.transport.lock().clone();
        let wait = self.config.timeout.as_duration() * 3;
        match tokio::time::timeout(wait, transport.test_connection()).await {
            Ok(Ok(true)) => Ok(()),
            Ok(Ok(false)) => Err(format!("{} closed the connection", self.server_address())),
            Ok(Err(error)) => match self.explain(&error) {
                SmtpError::Refused(why)
                | SmtpError::Deferred(why)
                | SmtpError::Unavailable(why)
                | SmtpError::Unknown(why) => Err(why),
            },
            Err(_) => Err(format!("{} did not respond within {} s", self.server_address(), wait.as_secs())),
        }
    }

    fn server_address(&self) -> String {
        let host = self.config.host.as_deref().unwrap_or_default();
        format!("the SMTP server {host}:{}", self.config.port())
    }

    /// Classifies an error, with a message that says what to do about it.
    fn explain(&self, error: &Error) -> SmtpError {
        let (location, message) = (self.server_address(), error_text(error));
        let Some(code) = error.status().map(u16::from) else {
            if message.to_lowercase().contains("smtputf8") {
                return SmtpError::Refused(format!(
                    "{location} does not accept international addresses ({message})"
                ));
            }
            let explained = self.explain_timeout(error, &location, &message);
            // After an open connection has failed, it is unknown whether the server accepted the email.
            let is_certain = error.is_client() || error.is_tls() || is_connect_failure(&message);
            return if is_certain {
                SmtpError::Unavailable(explained)
            } else {
                SmtpError::Unknown(explained)
            };
        };
        let from = self.from.email.to_string().to_lowercase();
        let lower = message.to_lowercase();
        let about_sender = lower.contains(&from) || lower.contains("sender") || lower.contains("mail from");
        match code {
            530 | 534 | 535 | 538 | 454 | 432 => SmtpError::Unavailable(format!(
                "{location} refused the login ({message}); check smtp.username and smtp.password, and whether the \
                 account requires an app password"
            )),
            421 => SmtpError::Unavailable(format!(
                "{location} accepts no emails now ({message}); sending is retried"
            )),
            400..500 => {
                SmtpError::Deferred(format!("{location} deferred the email ({message}); sending is retried"))
            }
            500..=504 => SmtpError::Unavailable(format!(
                "{location} rejected a command ({message}); check that smtp.port is a submission port, 587 or 465"
            )),
            _ if about_sender => SmtpError::Deferred(format!(
                "{location} refused the sender {from} ({message}); set smtp.from to an address that the account may \
                 send from"
            )),
            _ => SmtpError::Refused(format!("{location} refused the recipient ({message})")),
        }
    }

    fn explain_timeout(&self, error: &Error, location: &str, message: &str) -> String {
        let lower = message.to_lowercase();
        if lower.contains("starttls") {
            return format!(
                "{location} offers no STARTTLS; set smtp.tls = \"tls\" with port 465, or \"none\" for a server on \
                 this machine"
            );
        }
        if lower.contains("authentication mechanism") {
            return format!(
                "{location} offers no supported authentication; remove smtp.username if it requires none, or use a \
                 submission port, 587 or 465"
            );
        }
        if error.is_tls()
            || ["certificate", "tls", "corrupt message", "handshake"].iter().any(|word| lower.contains(word))
        {
            return format!(
                "no secure connection to {location} ({message}); check that smtp.host is the name in its certificate, \
                 that smtp.tls matches the port (starttls for 587, tls for 465), and set smtp.ca_file if the \
                 certificate is issued by your own CA"
            );
        }
        if lower.contains("lookup") || lower.contains("resolve") {
            return format!(
                "{location} cannot be resolved ({message}); check the spelling of smtp.host, and the DNS"
            );
        }
        if error.is_response() || error.is_client() {
            return format!(
                "{location} does not speak SMTP ({message}); check smtp.port, and that smtp.tls matches it \
                 (starttls for 587, tls for 465)"
            );
        }
        format!(
            "{location} cannot be reached ({message}); check smtp.host and smtp.port, and that no firewall blocks \
             the connection"
        )
    }
}

/// An email being sent. If the send is abandoned before the reply, dropping this discards the connections, so that
/// the late reply is not attributed to another email.
struct Sending<'a> {
    client: &'a SmtpClient,
    is_complete: bool,
}

impl Drop for Sending<'_> {
    fn drop(&mut self) {
        if !self.is_complete
            && let Ok(fresh) = build_transport(&self.client.config, &self.client.from)
        {
            *self.client.transport.lock() = fresh;
        }
    }
}

/// Returns whether an error means that no connection was established.
fn is_connect_failure(message: &str) -> bool {
    message.starts_with("Connection error")
}

/// Formats an error with its sources on one line.
fn error_text(error: &Error) -> String {
    let mut parts = vec![error.to_string()];
    let mut source = std::error::Error::source(error);
    while let Some(inner) = source {
        let text = inner.to_string();
        if !parts.iter().any(|part| part.contains(&text)) {
            parts.push(text);
        }
        source = inner.source();
    }
    redrive_core::notification::mail_text::one_line(&parts.join(": "), 300)
}

fn build_transport(config: &Smtp, from: &Mailbox) -> Result<Transport, ConfigError> {
    let host = config.host.clone().unwrap_or_default();
    let tls = match config.tls {
        SmtpTls::None => Tls::None,
        SmtpTls::Starttls => Tls::Required(tls_parameters(config, host.clone())?),
        SmtpTls::Tls => Tls::Wrapper(tls_parameters(config, host.clone())?),
    };
    let domain = from.email.domain();
    let hello = match domain.parse::<IpAddr>() {
        Ok(IpAddr::V4(ip)) => ClientId::Ipv4(ip),
        Ok(IpAddr::V6(ip)) => ClientId::Ipv6(ip),
        Err(_) => ClientId::Domain(domain.to_owned()),
    };
    let pool = PoolConfig::new().max_size(MAX_IDLE_CONNECTIONS).idle_timeout(IDLE_TIMEOUT);
    let mut builder = Transport::builder_dangerous(host)
        .port(config.port())
        .tls(tls)
        .hello_name(hello)
        .timeout(Some(config.timeout.as_duration()))
        .pool_config(pool);
    if let (Some(user), Some(password)) = (&config.username, &config.password) {
        let credentials = Credentials::new(user.clone(), password.reveal().to_owned());
        builder = builder.credentials(credentials).authentication(vec![Mechanism::Plain, Mechanism::Login]);
    }
    Ok(builder.build())
}

fn tls_parameters(config: &Smtp, host: String) -> Result<TlsParameters, ConfigError> {
    let invalid = |error: Error| ConfigError::Invalid {
        setting: if config.ca_file.is_some() { "smtp.ca_file" } else { "smtp.host" }.into(),
        reason: error_text(&error),
    };
    let mut builder = TlsParameters::builder(host);
    if let Some(ca) = config.ca()? {
        let ca = Certificate::from_pem(ca.as_bytes()).map_err(invalid)?;
        builder = builder.certificate_store(CertificateStore::None).add_root_certificate(ca);
    }
    builder.build_rustls().map_err(invalid)
}

/// Builds the MIME message.
fn build_message(from: &Mailbox, outgoing: &OutgoingMail<'_>) -> Result<Message, SmtpError> {
    let bad = |reason: String| SmtpError::Refused(format!("the email cannot be built: {reason}"));
    let to: Address = outgoing.to.parse().map_err(|error| bad(format!("{:?}: {error}", outgoing.to)))?;
    let at = SystemTime::UNIX_EPOCH + Duration::from_millis(u64::try_from(outgoing.at.millis()).unwrap_or(0));
    let mut builder = Message::builder()
        .from(from.clone())
        .to(Mailbox::new(None, to))
        .subject(&outgoing.email.subject)
        .date(at)
        .message_id(Some(format!("<{}@{}>", outgoing.id, from.email.domain())))
        .raw_header(unencoded_header("Auto-Submitted", "auto-generated".into()))
        .raw_header(unencoded_header("X-Auto-Response-Suppress", "All".into()));
    // Only links that cannot end the header line are added.
    if let Some(link) =
        outgoing.unsubscribe.filter(|link| link.bytes().all(|c| c.is_ascii_graphic() && c != b'>'))
    {
        builder = builder
            .raw_header(unencoded_header("List-Unsubscribe", format!("<{link}>")))
            .raw_header(unencoded_header("List-Unsubscribe-Post", "List-Unsubscribe=One-Click".into()));
    }
    let parts = MultiPart::alternative_plain_html(outgoing.email.text.clone(), outgoing.email.html.clone());
    builder.multipart(parts).map_err(|error| bad(error.to_string()))
}

/// Builds a header that is written unencoded; a long link must not be encoded.
fn unencoded_header(name: &'static str, value: String) -> HeaderValue {
    HeaderValue::dangerous_new_pre_encoded(HeaderName::new_from_ascii_str(name), value.clone(), value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn formatted(subject: &str, to: &str, unsubscribe: Option<&str>) -> String {
        let email = Mail { subject: subject.into(), text: "plain ä".into(), html: "<p>rich ä</p>".into() };
        let at = Time::from_millis(1_793_000_000_000);
        let outgoing = OutgoingMail { to, email: &email, id: "ntf_1.abc", at, unsubscribe };
        let from = "Redrive <redrive@example.com>".parse().unwrap();
        String::from_utf8(build_message(&from, &outgoing).unwrap().formatted()).unwrap()
    }

    #[test]
    fn email_has_automation_and_unsubscribe_headers() {
        let link = format!("https://hooks.example.com/unsubscribe/{}", "A".repeat(400));
        let email = formatted("Three deliveries", "jane@example.com", Some(&link));
        for line in [
            "From: Redrive <redrive@example.com>\r\n",
            "To: jane@example.com\r\n",
            "Subject: Three deliveries\r\n",
            "Message-ID: <ntf_1.abc@example.com>\r\n",
            "Date: Mon, 26 Oct 2026 07:33:20 +0000\r\n",
            "Auto-Submitted: auto-generated\r\n",
            "List-Unsubscribe-Post: List-Unsubscribe=One-Click\r\n",
            "Content-Type: multipart/alternative;",
        ] {
            assert!(email.contains(line), "{line}\n{email}");
        }
        assert!(email.contains(&format!("List-Unsubscribe: <{link}>\r\n")), "{email}");
        assert!(!formatted("x", "jane@example.com", None).contains("List-Unsubscribe"));
    }

    #[test]
    fn line_breaks_in_subject_or_link_add_no_header() {
        let email = formatted(
            "a\r\nBcc: evil@example.com\r\n\r\nbody",
            "jane@example.com",
            Some("https://x/\r\nBcc: y"),
        );
        let head = email.split("\r\n\r\n").next().unwrap();
        assert!(!head.lines().any(|line| line.starts_with("Bcc")), "{head}");
        assert!(!head.contains("List-Unsubscribe"), "{head}");
    }
}
