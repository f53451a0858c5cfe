//! The way to the mail server, and what its refusals mean. The server is the operator's own choice, so it is called
//! directly, as the database is.

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

/// Connections that are kept, and how long without a mail.
const KEPT: u32 = 2;
const KEPT_FOR: Duration = Duration::from_secs(30);

/// Why a mail did not go out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// This recipient is refused for good.
    Refused(String),
    /// This mail was not taken now; another may be.
    Deferred(String),
    /// No mail goes out now: the server is away, or somebody has to set something right.
    Later(String),
    /// The server did not respond in time, so that it may have accepted the e-mail.
    Unknown(String),
}

/// What goes into an envelope.
pub(crate) struct Letter<'a> {
    /// Who it is for.
    pub(crate) to: &'a str,
    /// What is in it.
    pub(crate) mail: &'a Mail,
    /// What it is known by, however often it is sent: without brackets and domain.
    pub(crate) id: &'a str,
    /// When it is written.
    pub(crate) at: Time,
    /// The link that ends such mails.
    pub(crate) unsubscribe: Option<&'a str>,
}

/// The way to the mail server.
pub(crate) struct Way {
    config: Smtp,
    from: Mailbox,
    transport: Mutex<Transport>,
}

impl Way {
    /// The way that is configured; none if mails are off.
    pub(crate) fn new(config: &Smtp) -> Result<Option<Self>, ConfigError> {
        if config.host.is_none() {
            return Ok(None);
        }
        let from = config.sender()?;
        let transport = Mutex::new(transport(config, &from)?);
        Ok(Some(Self { config: config.clone(), from, transport }))
    }

    /// Whom mails are from.
    pub(crate) fn from(&self) -> &Mailbox {
        &self.from
    }

    /// Sends a letter.
    pub(crate) async fn send(&self, letter: &Letter<'_>) -> Result<(), Trouble> {
        let message = message(&self.from, letter)?;
        let transport = self.transport.lock().clone();
        // Each of some steps may take its time, but all together have an end.
        let patience = self.config.timeout.get() * 3;
        let mut sending = Sending { way: self, answered: false };
        let sent = tokio::time::timeout(patience, transport.send(message)).await;
        sending.answered = sent.is_ok();
        match sent {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(self.explain(&error)),
            Err(_) => {
                let (place, timeout) = (self.place(), patience.as_secs_f32());
                Err(Trouble::Unknown(format!(
                    "{place} did not answer within {timeout} s; check that smtp.host and smtp.port name a mail \
                     server, and that smtp.tls is what it speaks on that port"
                )))
            }
        }
    }

    fn place(&self) -> String {
        let host = self.config.host.as_deref().unwrap_or_default();
        format!("the mail server {host}:{}", self.config.port())
    }

    /// What an error means, and what to do about it.
    fn explain(&self, error: &Error) -> Trouble {
        let (place, said) = (self.place(), said(error));
        let Some(code) = error.status().map(u16::from) else {
            if said.to_lowercase().contains("smtputf8") {
                return Trouble::Refused(format!("{place} takes no address with such letters ({said})"));
            }
            let explained = self.explain_silence(error, &place, &said);
            // Anything may have happened to an e-mail once a connection is open and fails.
            let is_certain = error.is_client() || error.is_tls() || is_connect_failure(&said);
            return if is_certain { Trouble::Later(explained) } else { Trouble::Unknown(explained) };
        };
        let from = self.from.email.to_string().to_lowercase();
        let lower = said.to_lowercase();
        let about_sender = lower.contains(&from) || lower.contains("sender") || lower.contains("mail from");
        match code {
            530 | 534 | 535 | 538 | 454 | 432 => Trouble::Later(format!(
                "{place} refused the login ({said}); check smtp.username and smtp.password, and whether the \
                 account needs a password for apps"
            )),
            421 => Trouble::Later(format!("{place} takes no mails now ({said}); it is tried again")),
            400..500 => Trouble::Deferred(format!("{place} cannot take it now ({said}); it is tried again")),
            500..=504 => Trouble::Later(format!(
                "{place} did not understand ({said}); check that smtp.port is one for sending mails, 587 or 465"
            )),
            _ if about_sender => Trouble::Deferred(format!(
                "{place} refused the sender {from} ({said}); set smtp.from to an address that the account may \
                 send from"
            )),
            _ => Trouble::Refused(format!("{place} refused the recipient ({said})")),
        }
    }

    fn explain_silence(&self, error: &Error, place: &str, said: &str) -> String {
        let lower = said.to_lowercase();
        if lower.contains("starttls") {
            return format!(
                "{place} offers no STARTTLS; set smtp.tls = \"tls\" with port 465, or \"none\" for a server on \
                 this machine"
            );
        }
        if lower.contains("authentication mechanism") {
            return format!(
                "{place} offers no login that is known; leave smtp.username out if it needs none, or use the port \
                 for sending mails, 587 or 465"
            );
        }
        if error.is_tls()
            || ["certificate", "tls", "corrupt message", "handshake"].iter().any(|word| lower.contains(word))
        {
            return format!(
                "no secure connection to {place} ({said}); check that smtp.host is the name in its certificate, \
                 that smtp.tls fits the port (starttls for 587, tls for 465), and name the authority in \
                 smtp.ca_file if it is your own"
            );
        }
        if lower.contains("lookup") || lower.contains("resolve") {
            return format!("{place} cannot be found ({said}); check the spelling of smtp.host, and the DNS");
        }
        if error.is_response() || error.is_client() {
            return format!(
                "{place} answers in another way than a mail server ({said}); check smtp.port, and that smtp.tls \
                 fits it (starttls for 587, tls for 465)"
            );
        }
        format!(
            "{place} cannot be reached ({said}); check smtp.host and smtp.port, and that a firewall lets this \
             machine through"
        )
    }
}

/// A mail on its way. If nobody waits for the answer any more, it must not pass for that to another mail: the connection
/// is not used again.
struct Sending<'a> {
    way: &'a Way,
    answered: bool,
}

impl Drop for Sending<'_> {
    fn drop(&mut self) {
        if !self.answered
            && let Ok(fresh) = transport(&self.way.config, &self.way.from)
        {
            *self.way.transport.lock() = fresh;
        }
    }
}

/// Whether an error says that no connection was made.
fn is_connect_failure(said: &str) -> bool {
    said.starts_with("Connection error")
}

/// All that is told of an error, in one line.
fn said(error: &Error) -> String {
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

fn transport(config: &Smtp, from: &Mailbox) -> Result<Transport, ConfigError> {
    let host = config.host.clone().unwrap_or_default();
    let tls = match config.tls {
        SmtpTls::None => Tls::None,
        SmtpTls::Starttls => Tls::Required(tls(config, host.clone())?),
        SmtpTls::Tls => Tls::Wrapper(tls(config, host.clone())?),
    };
    let domain = from.email.domain();
    let hello = match domain.parse::<IpAddr>() {
        Ok(IpAddr::V4(ip)) => ClientId::Ipv4(ip),
        Ok(IpAddr::V6(ip)) => ClientId::Ipv6(ip),
        Err(_) => ClientId::Domain(domain.to_owned()),
    };
    let pool = PoolConfig::new().max_size(KEPT).idle_timeout(KEPT_FOR);
    let mut builder = Transport::builder_dangerous(host)
        .port(config.port())
        .tls(tls)
        .hello_name(hello)
        .timeout(Some(config.timeout.get()))
        .pool_config(pool);
    if let (Some(user), Some(password)) = (&config.username, &config.password) {
        let credentials = Credentials::new(user.clone(), password.reveal().to_owned());
        builder = builder.credentials(credentials).authentication(vec![Mechanism::Plain, Mechanism::Login]);
    }
    Ok(builder.build())
}

fn tls(config: &Smtp, host: String) -> Result<TlsParameters, ConfigError> {
    let refused = |error: Error| ConfigError::Invalid {
        setting: if config.ca_file.is_some() { "smtp.ca_file" } else { "smtp.host" }.into(),
        reason: said(&error),
    };
    let mut builder = TlsParameters::builder(host);
    if let Some(ca) = config.ca()? {
        let ca = Certificate::from_pem(ca.as_bytes()).map_err(refused)?;
        builder = builder.certificate_store(CertificateStore::None).add_root_certificate(ca);
    }
    builder.build_rustls().map_err(refused)
}

/// The letter as mail servers want it.
fn message(from: &Mailbox, letter: &Letter<'_>) -> Result<Message, Trouble> {
    let bad = |reason: String| Trouble::Refused(format!("the mail cannot be written: {reason}"));
    let to: Address = letter.to.parse().map_err(|error| bad(format!("{:?}: {error}", letter.to)))?;
    let at = SystemTime::UNIX_EPOCH + Duration::from_millis(u64::try_from(letter.at.millis()).unwrap_or(0));
    let mut builder = Message::builder()
        .from(from.clone())
        .to(Mailbox::new(None, to))
        .subject(&letter.mail.subject)
        .date(at)
        .message_id(Some(format!("<{}@{}>", letter.id, from.email.domain())))
        .raw_header(plain("Auto-Submitted", "auto-generated".into()))
        .raw_header(plain("X-Auto-Response-Suppress", "All".into()));
    // Only what is certain not to end the line.
    if let Some(link) =
        letter.unsubscribe.filter(|link| link.bytes().all(|c| c.is_ascii_graphic() && c != b'>'))
    {
        builder = builder
            .raw_header(plain("List-Unsubscribe", format!("<{link}>")))
            .raw_header(plain("List-Unsubscribe-Post", "List-Unsubscribe=One-Click".into()));
    }
    let parts = MultiPart::alternative_plain_html(letter.mail.text.clone(), letter.mail.html.clone());
    builder.multipart(parts).map_err(|error| bad(error.to_string()))
}

/// A header that goes as it is: a long link must not be encoded.
fn plain(name: &'static str, value: String) -> HeaderValue {
    HeaderValue::dangerous_new_pre_encoded(HeaderName::new_from_ascii_str(name), value.clone(), value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(subject: &str, to: &str, unsubscribe: Option<&str>) -> String {
        let mail = Mail { subject: subject.into(), text: "plain ä".into(), html: "<p>rich ä</p>".into() };
        let at = Time::from_millis(1_793_000_000_000);
        let letter = Letter { to, mail: &mail, id: "ntc_1.abc", at, unsubscribe };
        let from = "Redrive <redrive@example.com>".parse().unwrap();
        String::from_utf8(message(&from, &letter).unwrap().formatted()).unwrap()
    }

    #[test]
    fn a_mail_has_the_headers_that_machines_look_for() {
        let link = format!("https://hooks.example.com/unsubscribe/{}", "A".repeat(400));
        let mail = written("Three deliveries", "jane@example.com", Some(&link));
        for line in [
            "From: Redrive <redrive@example.com>\r\n",
            "To: jane@example.com\r\n",
            "Subject: Three deliveries\r\n",
            "Message-ID: <ntc_1.abc@example.com>\r\n",
            "Date: Mon, 26 Oct 2026 07:33:20 +0000\r\n",
            "Auto-Submitted: auto-generated\r\n",
            "List-Unsubscribe-Post: List-Unsubscribe=One-Click\r\n",
            "Content-Type: multipart/alternative;",
        ] {
            assert!(mail.contains(line), "{line}\n{mail}");
        }
        assert!(mail.contains(&format!("List-Unsubscribe: <{link}>\r\n")), "{mail}");
        assert!(!written("x", "jane@example.com", None).contains("List-Unsubscribe"));
    }

    #[test]
    fn nothing_in_a_subject_or_a_link_makes_a_header() {
        let mail = written(
            "a\r\nBcc: evil@example.com\r\n\r\nbody",
            "jane@example.com",
            Some("https://x/\r\nBcc: y"),
        );
        let head = mail.split("\r\n\r\n").next().unwrap();
        assert!(!head.lines().any(|line| line.starts_with("Bcc")), "{head}");
        assert!(!head.contains("List-Unsubscribe"), "{head}");
    }
}
