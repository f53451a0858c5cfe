//! A real mail server, aiosmtpd, that keeps what it gets and fails as told.

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

use crate::{Api, PATIENCE, python_with};

/// What the server runs: mails go out as lines of JSON, and commands come in as lines.
const SCRIPT: &str = include_str!("smtp.py");

/// How the way to the server is protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protection {
    /// Not at all.
    Plain,
    /// It must turn to TLS before anything is said.
    StartTls,
    /// TLS from the first byte on.
    Tls,
}

/// A mail as it arrived.
#[derive(Clone, Debug)]
pub struct Arrived {
    /// Who it is from, on its envelope.
    pub from: String,
    /// Who it is to, on its envelope.
    pub to: Vec<String>,
    /// Its headers, parsed, in their order.
    pub headers: Vec<(String, String)>,
    /// The plain text.
    pub text: String,
    /// The HTML.
    pub html: String,
    /// Its parts by type, the whole first.
    pub parts: Vec<String>,
    /// What the parser found wrong with it.
    pub defects: Vec<String>,
    /// Whether it came over TLS.
    pub tls: bool,
}

impl Arrived {
    /// The header of this name; empty if there is none.
    pub fn header(&self, name: &str) -> &str {
        let found = self.headers.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
        found.map_or("", |(_, value)| value)
    }

    /// The path of the link by which an address is confirmed, if this is a confirmation e-mail.
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

/// A mail server on a loopback port, until dropped.
pub struct Smtp {
    child: Child,
    commands: Mutex<ChildStdin>,
    port: u16,
    mails: Arc<Mutex<Vec<Arrived>>>,
    answers: std::sync::mpsc::Receiver<Value>,
    folder: TempDir,
}

impl Smtp {
    /// A server without a login.
    pub fn start(protection: Protection) -> Self {
        Self::start_with(protection, None)
    }

    /// A server that wants this user and password.
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
            .expect("cannot start the mail server");
        let commands = Mutex::new(child.stdin.take().expect("it listens"));
        let output = BufReader::new(child.stdout.take().expect("it speaks"));
        let mails: Arc<Mutex<Vec<Arrived>>> = Arc::default();
        let (sender, answers) = std::sync::mpsc::channel();
        let kept = mails.clone();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                let line: Value = serde_json::from_str(&line).unwrap_or_default();
                match line["mail"].is_object() {
                    true => kept.lock().push(Arrived::read(&line["mail"])),
                    false => drop(sender.send(line)),
                }
            }
        });
        let mut server = Self { child, commands, port: 0, mails, answers, folder };
        server.port = u16::try_from(server.answer()["port"].as_u64().unwrap_or_default()).unwrap_or_default();
        assert_ne!(server.port, 0, "the mail server has no port");
        server
    }

    fn answer(&self) -> Value {
        self.answers.recv_timeout(PATIENCE).expect("the mail server does not answer")
    }

    fn command(&self, command: &str) {
        writeln!(self.commands.lock(), "{command}").expect("the mail server is gone");
        self.answer();
    }

    /// The port that it listens on.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The certificate of the authority that has signed the server's.
    pub fn ca_file(&self) -> PathBuf {
        self.folder.path().join("ca.pem")
    }

    /// The settings of a server that sends through it, as variables of the environment.
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

    /// Answers every recipient like this from now on: `451 4.3.0 not now`, `550 5.1.1 nobody here`; `hang` for not at
    /// all. Empty for well.
    pub fn answer_with(&self, answer: &str) {
        self.command(&format!("answer {answer}"));
    }

    /// Answers one recipient like this from now on.
    pub fn answer_to(&self, address: &str, answer: &str) {
        self.command(&format!("to {address} {answer}"));
    }

    /// Stops listening, and cuts off whoever is connected.
    pub fn go_down(&self) {
        self.command("down");
    }

    /// Listens again on the same port.
    pub fn come_back(&self) {
        self.command("up");
    }

    /// What has arrived so far.
    pub fn mails(&self) -> Vec<Arrived> {
        self.mails.lock().clone()
    }

    /// What has arrived so far, without confirmation e-mails.
    pub fn notifications(&self) -> Vec<Arrived> {
        self.mails().into_iter().filter(|mail| mail.confirmation_path().is_none()).collect()
    }

    /// Waits for the confirmation e-mail to an address, and confirms it as its holder would.
    pub async fn confirm(&self, api: &Api, address: &str) {
        let path_for = |mails: &[Arrived]| {
            let to = |mail: &&Arrived| mail.to == [address];
            mails.iter().filter(to).filter_map(Arrived::confirmation_path).next_back()
        };
        let mails = self.wait_until(|mails| path_for(mails).is_some()).await;
        let path = path_for(&mails).expect("it was waited for");
        let form = [("content-type", "application/x-www-form-urlencoded")];
        let answer = api.without_key().raw("POST", &path, &form, "").await;
        assert_eq!(answer.status, 200, "{path} does not confirm");
    }

    /// Waits until so many mails have arrived, and gives them.
    pub async fn wait_for(&self, count: usize) -> Vec<Arrived> {
        self.wait_until(|mails| mails.len() >= count).await
    }

    /// Waits until what has arrived is as wanted, and gives it.
    pub async fn wait_until(&self, wanted: impl Fn(&[Arrived]) -> bool) -> Vec<Arrived> {
        // Digests take their time.
        let end = Instant::now() + 4 * PATIENCE;
        loop {
            let mails = self.mails();
            if wanted(&mails) {
                return mails;
            }
            assert!(Instant::now() < end, "the mails did not come; {} have: {mails:#?}", mails.len());
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

/// An authority, and a certificate for this machine.
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
