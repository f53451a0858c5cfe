//! A real SMTP server (aiosmtpd) that records emails and fails on request.

use std::{
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use serde_json::Value;
use tempfile::TempDir;

use crate::{Api, WAIT_TIMEOUT, python_with};

/// The server's program: it writes emails as lines of JSON, and reads commands as lines.
const SCRIPT: &str = include_str!("smtp.py");

/// The encryption of connections to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protection {
    /// No TLS.
    Plain,
    /// `STARTTLS` is required before anything else.
    StartTls,
    /// TLS from the first byte on.
    Tls,
}

/// A received email.
#[derive(Clone, Debug)]
pub struct ReceivedMail {
    /// The envelope sender.
    pub from: String,
    /// The envelope recipients.
    pub to: Vec<String>,
    /// The parsed headers, in order.
    pub headers: Vec<(String, String)>,
    /// The plain text.
    pub text: String,
    /// The HTML.
    pub html: String,
    /// The content types of its MIME parts, the whole message first.
    pub parts: Vec<String>,
    /// The defects that the parser found.
    pub defects: Vec<String>,
    /// Whether it was received over TLS.
    pub tls: bool,
}

impl ReceivedMail {
    /// Returns the header of this name, or an empty string.
    pub fn header(&self, name: &str) -> &str {
        let found = self.headers.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
        found.map_or("", |(_, value)| value)
    }

    /// Returns the path of the link that confirms an address, if this is a confirmation email.
    pub fn confirmation_path(&self) -> Option<String> {
        let link = self.text.split_whitespace().find(|word| word.contains("/confirm/"))?;
        let (_, rest) = link.split_once("://")?;
        Some(format!("/{}", rest.split_once('/')?.1))
    }

    fn read(line: &Value) -> Self {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let texts = |value: &Value| value.as_array().into_iter().flatten().map(text).collect();
        let pair = |value: &Value| (text(&value[0]), text(&value[1]));
        Self {
            from: text(&line["from"]),
            to: texts(&line["to"]),
            headers: line["headers"].as_array().into_iter().flatten().map(pair).collect(),
            text: text(&line["text"]),
            html: text(&line["html"]),
            parts: texts(&line["parts"]),
            defects: texts(&line["defects"]),
            tls: line["tls"] == true,
        }
    }
}

/// An SMTP server on a loopback port, until dropped.
pub struct Smtp {
    child: Child,
    commands: Mutex<ChildStdin>,
    port: u16,
    emails: Arc<Mutex<Vec<ReceivedMail>>>,
    replies: std::sync::mpsc::Receiver<Value>,
    folder: TempDir,
}

impl Smtp {
    /// Starts a server without authentication.
    pub fn start(protection: Protection) -> Self {
        Self::start_with(protection, None)
    }

    /// Starts a server that requires this user and password.
    pub fn start_with(protection: Protection, login: Option<(&str, &str)>) -> Self {
        let python = python_with(&["aiosmtpd==1.4.6"]);
        let folder = TempDir::new().expect("no temporary directory");
        certify(folder.path());
        let script = folder.path().join("smtp.py");
        std::fs::write(&script, SCRIPT).expect("cannot write the script");
        let kind = match protection {
            Protection::Plain => "plain",
            Protection::StartTls => "starttls",
            Protection::Tls => "tls",
        };
        let (user, password) = login.unwrap_or_default();
        let mut child = Command::new(python)
            .arg(script)
            .args([kind, user, password])
            .current_dir(folder.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("cannot start the SMTP server");
        let commands = Mutex::new(child.stdin.take().expect("stdin is piped"));
        let output = BufReader::new(child.stdout.take().expect("stdout is piped"));
        let emails: Arc<Mutex<Vec<ReceivedMail>>> = Arc::default();
        let (sender, replies) = std::sync::mpsc::channel();
        let recorded = emails.clone();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                let line: Value = serde_json::from_str(&line).unwrap_or_default();
                match line["email"].is_object() {
                    true => recorded.lock().push(ReceivedMail::read(&line["email"])),
                    false => drop(sender.send(line)),
                }
            }
        });
        let mut server = Self { child, commands, port: 0, emails, replies, folder };
        server.port = u16::try_from(server.reply()["port"].as_u64().unwrap_or_default()).unwrap_or_default();
        assert_ne!(server.port, 0, "the SMTP server has no port");
        server
    }

    fn reply(&self) -> Value {
        self.replies.recv_timeout(WAIT_TIMEOUT).expect("the SMTP server does not reply")
    }

    fn command(&self, command: &str) {
        writeln!(self.commands.lock(), "{command}").expect("the SMTP server is gone");
        self.reply();
    }

    /// Returns its port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the path of the CA certificate that signed the server's certificate.
    pub fn ca_file(&self) -> PathBuf {
        self.folder.path().join("ca.pem")
    }

    /// Returns the environment variables that make Redrive send through this server.
    pub fn env(&self, protection: Protection) -> Vec<(String, String)> {
        let tls = match protection {
            Protection::Plain => "none",
            Protection::StartTls => "starttls",
            Protection::Tls => "tls",
        };
        let mut env = vec![
            ("REDRIVE_SMTP_HOST".to_owned(), "localhost".to_owned()),
            ("REDRIVE_SMTP_PORT".to_owned(), self.port.to_string()),
            ("REDRIVE_SMTP_TLS".to_owned(), tls.to_owned()),
            ("REDRIVE_SMTP_FROM".to_owned(), "Redrive <redrive@sender.example>".to_owned()),
            ("REDRIVE_SMTP_MAX_PER_MINUTE".to_owned(), "10000".to_owned()),
        ];
        if protection != Protection::Plain {
            env.push(("REDRIVE_SMTP_CA_FILE".to_owned(), self.ca_file().display().to_string()));
        }
        env
    }

    /// Sets the reply to every recipient: `451 4.3.0 not now`, `550 5.1.1 unknown mailbox`, `hang` for no reply, or empty
    /// for success.
    pub fn reply_with(&self, response: &str) {
        self.command(&format!("reply {response}"));
    }

    /// Sets the reply to one recipient.
    pub fn reply_to(&self, address: &str, response: &str) {
        self.command(&format!("to {address} {response}"));
    }

    /// Stops listening, and closes all connections.
    pub fn stop_listening(&self) {
        self.command("down");
    }

    /// Listens again on the same port.
    pub fn resume_listening(&self) {
        self.command("up");
    }

    /// Returns the emails received so far.
    pub fn emails(&self) -> Vec<ReceivedMail> {
        self.emails.lock().clone()
    }

    /// Returns the emails received so far, without confirmation emails.
    pub fn notifications(&self) -> Vec<ReceivedMail> {
        self.emails().into_iter().filter(|email| email.confirmation_path().is_none()).collect()
    }

    /// Waits for the confirmation email to an address, and follows its link.
    pub async fn confirm(&self, api: &Api, address: &str) {
        let path_for = |emails: &[ReceivedMail]| {
            let to = |email: &&ReceivedMail| email.to == [address];
            emails.iter().filter(to).filter_map(ReceivedMail::confirmation_path).next_back()
        };
        let emails = self.wait_until(|emails| path_for(emails).is_some()).await;
        let path = path_for(&emails).expect("the confirmation email was received");
        let form = [("content-type", "application/x-www-form-urlencoded")];
        let response = api.without_key().raw("POST", &path, &form, "").await;
        assert_eq!(response.status, 200, "{path} does not confirm");
    }

    /// Waits until `count` emails were received, and returns them.
    pub async fn wait_for(&self, count: usize) -> Vec<ReceivedMail> {
        self.wait_until(|emails| emails.len() >= count).await
    }

    /// Waits until `wanted` holds for the emails received, and returns them.
    pub async fn wait_until(&self, wanted: impl Fn(&[ReceivedMail]) -> bool) -> Vec<ReceivedMail> {
        // Digests are sent late.
        let end = Instant::now() + 4 * WAIT_TIMEOUT;
        loop {
            let emails = self.emails();
            if wanted(&emails) {
                return emails;
            }
            assert!(
                Instant::now() < end,
                "the emails were not received within the timeout; {} were: {emails:#?}",
                emails.len()
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

impl Drop for Smtp {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Creates a certificate authority, and a certificate for this machine.
fn certify(folder: &Path) {
    let ca_key = KeyPair::generate().expect("a key");
    let mut ca = CertificateParams::new(Vec::new()).expect("parameters");
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let certificate = ca.self_signed(&ca_key).expect("an authority");
    let key = KeyPair::generate().expect("a key");
    let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
    let own = CertificateParams::new(names).expect("parameters");
    let own = own.signed_by(&key, &Issuer::new(ca, ca_key)).expect("a certificate");
    let write = |name: &str, text: String| std::fs::write(folder.join(name), text).expect("cannot write");
    write("ca.pem", certificate.pem());
    write("cert.pem", own.pem());
    write("key.pem", key.serialize_pem());
}
