//! Finds RabbitMQ's programs, runs them regardless of the user who runs the tests, and sends commands to a running
//! node.

use std::{
    ffi::{OsStr, OsString},
    fs,
    hash::{BuildHasher, RandomState},
    io::Write as _,
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::atomic::{AtomicUsize, Ordering},
};

use crate::service::{ErrorContext, Server, User, free_port, make_certificates};

/// The folder where Debian installs the versions of RabbitMQ.
const DEBIAN: &str = "/usr/lib/rabbitmq/lib";
/// Starts epmd and then replaces the shell by the server, so that epmd's parent is the server and epmd ends with
/// it.
const LAUNCH: &str = r#"
setpriv --pdeathsig=KILL epmd &
tries=0
until epmd -names >/dev/null 2>&1; do
    tries=$((tries + 1))
    [ $tries -lt 100 ] || exit 1
    sleep 0.05
done
exec "$0"
"#;
/// Erlang options for low CPU use on small machines, and without an epmd that outlives its server.
const ERLANG: &str = "+S 1:1 +A 4 +sbwt none -start_epmd false -kernel inet_dist_use_interface {127,0,0,1}";

/// A node, running or not, as its folder describes it.
#[derive(Clone)]
pub(super) struct Node {
    folder: PathBuf,
    port: u16,
    /// The TLS port, or 0.
    tls: u16,
    distribution: u16,
    directory: u16,
    cookie: String,
}

impl Node {
    /// Creates a node in an empty folder.
    pub(super) fn new(folder: &Path, tls: bool) -> Self {
        let user = user();
        let home = user.make_folder(folder, "data");
        let cookie = format!("{:016X}", RandomState::new().hash_one(0));
        let path = home.join(".erlang.cookie");
        fs::write(&path, &cookie).with_context(&path);
        user.give(&path, 0o400);
        if tls {
            make_certificates(user, folder, &home);
        }
        let [port, distribution, directory] = [(); 3].map(|()| free_port());
        let tls = if tls { free_port() } else { 0 };
        let node = Self { folder: folder.to_owned(), port, tls, distribution, directory, cookie };
        node.configure();
        node
    }

    /// Reads the node of this folder. Returns `None` if its creation has not completed.
    pub(super) fn in_folder(folder: &Path) -> Option<Self> {
        let text = fs::read_to_string(folder.join("node")).ok()?;
        let (ports, cookie) = text.rsplit_once(' ')?;
        let ports: Vec<u16> = ports.split(' ').map(|port| port.parse().ok()).collect::<Option<_>>()?;
        let &[port, tls, distribution, directory] = ports.as_slice() else { return None };
        Some(Self { folder: folder.to_owned(), port, tls, distribution, directory, cookie: cookie.into() })
    }

    fn configure(&self) {
        let Self { folder, port, tls, distribution, directory, cookie } = self;
        let home = self.data_folder();
        let mut config = format!(
            "listeners.tcp.local = 127.0.0.1:{port}\nlog.console = true\nlog.console.level = warning\nlog.file = false\n\
             vm_memory_high_watermark.absolute = 1GB\ndisk_free_limit.absolute = 1MB\n"
        );
        if *tls > 0 {
            let (ca, home) = (folder.join("ca.pem"), home.display());
            config.push_str(&format!(
                "listeners.ssl.local = 127.0.0.1:{tls}\nssl_options.cacertfile = {}\n\
                 ssl_options.certfile = {home}/server.crt\nssl_options.keyfile = {home}/server.key\n\
                 ssl_options.verify = verify_none\n",
                ca.display()
            ));
        }
        for (name, text) in [("rabbitmq.conf", config.as_str()), ("enabled_plugins", "[].\n")] {
            let path = home.join(name);
            fs::write(&path, text).with_context(&path);
            user().give(&path, 0o600);
        }
        let path = folder.join("node");
        // Written last and atomically: a process that finds this file finds a complete node.
        let draft = folder.join("node.draft");
        fs::write(&draft, format!("{port} {tls} {distribution} {directory} {cookie}")).with_context(&draft);
        fs::rename(&draft, &path).with_context(&path);
    }

    /// Returns the address, with the TLS port if it supports TLS.
    pub(super) fn address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], if self.tls > 0 { self.tls } else { self.port }))
    }

    /// Returns the URL scheme.
    pub(super) fn scheme(&self) -> &'static str {
        if self.tls > 0 { "amqps" } else { "amqp" }
    }

    /// Returns the address without TLS, which every node has.
    pub(super) fn plain_address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.port))
    }

    fn data_folder(&self) -> PathBuf {
        self.folder.join("data")
    }

    fn name(&self) -> String {
        format!("redrive{}@localhost", self.port)
    }

    /// Returns the command that runs it.
    pub(super) fn server(&self) -> Server {
        let script = script("rabbitmq-server");
        let folder = self.data_folder();
        let settings: Vec<(_, OsString)> = vec![
            ("HOME", folder.clone().into()),
            ("RABBITMQ_NODENAME", self.name().into()),
            ("RABBITMQ_MNESIA_BASE", folder.join("mnesia").into()),
            ("RABBITMQ_LOG_BASE", folder.join("log").into()),
            ("RABBITMQ_LOGS", "-".into()),
            ("RABBITMQ_CONFIG_FILE", folder.join("rabbitmq.conf").into()),
            ("RABBITMQ_ADVANCED_CONFIG_FILE", folder.join("none.config").into()),
            ("RABBITMQ_CONF_ENV_FILE", folder.join("none.env").into()),
            ("RABBITMQ_ENABLED_PLUGINS_FILE", folder.join("enabled_plugins").into()),
            ("RABBITMQ_DIST_PORT", self.distribution.to_string().into()),
            ("ERL_EPMD_PORT", self.directory.to_string().into()),
            ("ERL_EPMD_ADDRESS", "127.0.0.1".into()),
            ("RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS", ERLANG.into()),
            ("RABBITMQ_CTL_ERL_ARGS", "-start_epmd false".into()),
            // Makes the script replace itself by the server instead of waiting for it in a shell.
            ("RUNNING_UNDER_SYSTEMD", "1".into()),
        ];
        Server {
            name: "rabbitmq",
            crash: "KILL",
            folder: self.folder.clone(),
            user: user(),
            words: ["sh".into(), "-c".into(), LAUNCH.into(), script.into()].into(),
            settings,
            foreign: &["RABBITMQ", "ERL_", "NOTIFY_SOCKET"],
        }
    }

    /// Returns whether it runs and accepts connections.
    pub(super) fn is_ready(&self) -> bool {
        TcpStream::connect(self.plain_address()).is_ok()
            && self.evaluate("rabbit:is_running().").is_ok_and(|response| response == "true")
    }

    /// Deletes all its data; must not be called while it runs.
    pub(super) fn reset(&self) {
        let path = self.data_folder().join("mnesia");
        fs::remove_dir_all(&path).with_context(&path);
    }

    /// Evaluates an Erlang expression in the node, which takes milliseconds. Returns the result or the error output.
    pub(super) fn evaluate(&self, expression: &str) -> Result<String, String> {
        // Concurrent callers must not use the same Erlang node name.
        static COUNTER: AtomicUsize = AtomicUsize::new(0);
        let asker = format!("t{}n{}", std::process::id(), COUNTER.fetch_add(1, Ordering::Relaxed));
        let mut command = Command::new("erl_call");
        command.args(["-h", &asker, "-sname", &self.name(), "-c", &self.cookie, "-timeout", "20", "-e"]);
        command.env("ERL_EPMD_PORT", self.directory.to_string());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("no `erl_call` command here");
        let mut stdin = child.stdin.take().expect("stdin is piped");
        // The write fails if `erl_call` has already ended; its output then has the reason.
        writeln!(stdin, "{expression}").ok();
        drop(stdin);
        let output = child.wait_with_output().expect("cannot wait for erl_call");
        let message = String::from_utf8_lossy(&output.stdout);
        let response = message.trim().strip_prefix("{ok, ").and_then(|rest| rest.strip_suffix('}'));
        response
            .map(str::to_owned)
            .ok_or_else(|| format!("{message}{}", String::from_utf8_lossy(&output.stderr)))
    }

    /// Runs `rabbitmqctl`, which takes about a second, and returns its output. Panics if it fails.
    pub(super) fn ctl(&self, words: &[&str]) -> String {
        let server = self.server();
        let mut command = Command::new("setpriv");
        command.args(server.user.words()).arg(script("rabbitmqctl")).arg("--quiet").args(words);
        server.apply_environment(&mut command);
        let output = command.stdin(Stdio::null()).output().expect("no `setpriv` command here");
        let message = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            output.status.success(),
            "rabbitmqctl {words:?} failed with {}:\n{message}{}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
        message
    }
}

/// Returns the user that runs RabbitMQ if the tests run as root.
fn user() -> User {
    let remedy = "RabbitMQ should not run as root; create a user: sudo adduser --system rabbitmq";
    User::other_than_root(&["rabbitmq", "nobody"], remedy)
}

fn script(name: &str) -> PathBuf {
    newest(Path::new(DEBIAN), &std::env::var_os("PATH").unwrap_or_default(), name)
}

/// Returns a script of the newest version, or the first one on the path.
fn newest(versions: &Path, path: &OsStr, name: &str) -> PathBuf {
    let number =
        |version: &str| version.split('.').map(|part| part.parse().unwrap_or(0)).collect::<Vec<u32>>();
    let mut found: Vec<_> = fs::read_dir(versions)
        .into_iter()
        .flatten()
        .filter_map(|entry| {
            let path = entry.ok()?.path();
            let version = path.file_name()?.to_str()?.strip_prefix("rabbitmq_server-")?;
            Some((number(version), path.join("sbin")))
        })
        .collect();
    found.sort_unstable_by(|a, b| b.cmp(a));
    let installed = found.into_iter().map(|(_, folder)| folder);
    let mut scripts = installed.chain(std::env::split_paths(path)).map(|folder| folder.join(name));
    scripts.find(|path| path.exists()).unwrap_or_else(|| {
        panic!(
            "the tests need a RabbitMQ server to start; install it with: sudo apt-get install rabbitmq-server"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newest_version_is_chosen() {
        let dir = tempfile::TempDir::new().unwrap();
        for version in ["3.9.27", "3.10.8", "3.8.1"] {
            let folder = dir.path().join(format!("rabbitmq_server-{version}/sbin"));
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("rabbitmq-server"), "").unwrap();
        }
        let found = newest(dir.path(), OsStr::new(""), "rabbitmq-server");
        assert_eq!(found, dir.path().join("rabbitmq_server-3.10.8/sbin/rabbitmq-server"));
    }

    #[test]
    #[should_panic(expected = "install it with: sudo apt-get install rabbitmq-server")]
    fn missing_server_panics_with_an_install_hint() {
        newest(Path::new("/nowhere"), OsStr::new("/nowhere/else"), "rabbitmq-server");
    }
}
