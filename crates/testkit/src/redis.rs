//! Throwaway Redis servers, from the program of the distribution's package.
//!
//! Starting one takes milliseconds, so each test that needs one has its own. It keeps everything in memory, on a
//! free port of 127.0.0.1; no other server of this machine is ever touched.

use std::{
    fmt::Write as _,
    fs::{self, File},
    io::{self, Write as _},
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
};

use crate::{
    Proxy, WAIT_TIMEOUT,
    service::{ErrorContext, ProcessGuard, Server, User, blocking, free_port, make_certificates},
};

/// A private server to stop, kill, freeze and start again. Killed and removed when dropped, and shortly after the
/// test process ends for any reason.
pub struct Redis {
    /// `None` while the server is stopped.
    keeper: Option<ProcessGuard>,
    /// The configuration, the log, and certificates.
    folder: TempDir,
    /// The port without TLS.
    plain: u16,
    /// The TLS port, if it supports TLS.
    tls: Option<u16>,
}

impl Redis {
    /// Starts a new, empty server.
    pub async fn start() -> Self {
        Self::start_server(false).await
    }

    /// Starts a new server with TLS and a certificate for 127.0.0.1 and localhost from its own certificate authority.
    pub async fn start_with_tls() -> Self {
        Self::start_server(true).await
    }

    /// Returns the URL, with TLS if the server supports it.
    pub fn url(&self) -> String {
        self.url_at(self.address(), "")
    }

    /// Returns the URL through a proxy in front of [`address`](Self::address).
    pub fn url_through(&self, proxy: &Proxy) -> String {
        self.url_at(proxy.address(), "")
    }

    /// Creates a user with a password and rules in the syntax of `ACL SETUSER`, which survive a restart; returns the
    /// URL for this user.
    pub async fn add_user(&self, name: &str, password: &str, rules: &[&str]) -> String {
        let password_rule = format!(">{password}");
        let words = [&["ACL", "SETUSER", name, "on", &password_rule], rules].concat();
        assert_eq!(self.command(&words).await, "OK");
        let path = self.config();
        let mut config = File::options().append(true).open(&path).with_context(&path);
        writeln!(config, "user {name} on {password_rule} {}", rules.join(" ")).with_context(&path);
        self.url_at(self.address(), &format!("{name}:{password}@"))
    }

    /// Returns the address, which does not change across restarts.
    pub fn address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.tls.unwrap_or(self.plain)))
    }

    /// Returns the path of the CA certificate to trust; panics for a server without TLS.
    pub fn ca_path(&self) -> PathBuf {
        assert!(self.tls.is_some(), "this server has no certificate; start it with Redis::start_with_tls");
        self.folder.path().join("ca.pem")
    }

    /// Runs a command and returns the reply as text, one line per list element. Panics if it fails.
    pub async fn command(&self, words: &[&str]) -> String {
        let request = tokio::time::timeout(WAIT_TIMEOUT, ask(self.plain, words)).await;
        let reply = request.unwrap_or_else(|_| panic!("{words:?}: no reply within {WAIT_TIMEOUT:?}"));
        reply.unwrap_or_else(|error| panic!("{words:?}: {error}"))
    }

    /// Shuts the server down cleanly, and waits until it has ended.
    pub async fn stop(&mut self) {
        self.end("TERM").await;
    }

    /// Ends the server as a crash would, and waits until it has ended.
    pub async fn kill(&mut self) {
        self.end("KILL").await;
    }

    /// Starts it again on the same port, empty, and waits until it accepts connections; panics if it still runs.
    pub async fn start_again(&mut self) {
        let ended = self.keeper.as_mut().is_none_or(ProcessGuard::has_ended);
        assert!(ended, "the server still runs; stop or kill it first");
        assert!(self.launch().await, "the server did not start again");
    }

    /// Suspends the process: its connections stay open, and it sends no replies until [`thaw`](Self::thaw).
    pub fn freeze(&mut self) {
        self.keeper.as_mut().expect("the server runs").freeze(true);
    }

    /// Resumes the process, which then handles everything it was sent while frozen.
    pub fn thaw(&mut self) {
        self.keeper.as_mut().expect("the server runs").freeze(false);
    }

    async fn start_server(tls: bool) -> Self {
        let mut redis = blocking(move || {
            let folder = TempDir::with_prefix("redrive-test-redis-").expect("no temporary directory");
            if tls {
                make_certificates(User::CURRENT_USER, folder.path(), folder.path());
            }
            Self { keeper: None, folder, plain: 0, tls: None }
        })
        .await;
        // Another process may take a port before the server does.
        for _ in 0..5 {
            (redis.plain, redis.tls) = (free_port(), tls.then(free_port));
            redis.configure();
            if redis.launch().await {
                return redis;
            }
        }
        panic!("the server did not start");
    }

    fn configure(&self) {
        let folder = self.folder.path();
        let mut config = format!(
            "bind 127.0.0.1\nport {}\ndir {}\nsave \"\"\nappendonly no\ndaemonize no\n",
            self.plain,
            folder.display()
        );
        if let Some(port) = self.tls {
            let [certificate, key, ca] =
                ["server.crt", "server.key", "ca.pem"].map(|name| folder.join(name).display().to_string());
            let written = write!(
                config,
                "tls-port {port}\ntls-cert-file {certificate}\ntls-key-file {key}\n\
                 tls-ca-cert-file {ca}\ntls-auth-clients no\n"
            );
            written.expect("text can be written into text");
        }
        fs::write(self.config(), config).with_context(folder);
    }

    fn config(&self) -> PathBuf {
        self.folder.path().join("redis.conf")
    }

    /// Starts it and waits until it accepts connections. Returns `false` if it has ended instead.
    async fn launch(&mut self) -> bool {
        let server = Server {
            name: "redis",
            crash: "KILL",
            folder: self.folder.path().to_owned(),
            user: User::CURRENT_USER,
            words: vec![program(&std::env::var_os("PATH").unwrap_or_default()).into(), self.config().into()],
            settings: Vec::new(),
            foreign: &["REDIS"],
        };
        let keeper = self.keeper.insert(ProcessGuard::start(&server));
        keeper.is_ready(|| is_ready(self.plain, self.folder.path())).await
    }

    async fn end(&mut self, signal: &str) {
        if let Some(keeper) = self.keeper.take() {
            keeper.end(signal).await;
        }
    }

    fn url_at(&self, address: SocketAddr, user: &str) -> String {
        let scheme = if self.tls.is_some() { "rediss" } else { "redis" };
        format!("{scheme}://{user}{address}")
    }
}

/// Returns the path of the server's program; panics with an installation hint if it is missing.
fn program(path: &std::ffi::OsStr) -> PathBuf {
    let mut names = std::env::split_paths(path)
        .flat_map(|folder| ["redis-server", "valkey-server"].map(|name| folder.join(name)));
    names.find(|path| path.exists()).unwrap_or_else(|| {
        panic!("the tests need a Redis server to start; install it with: sudo apt-get install redis-server")
    })
}

/// Returns whether the server of this folder accepts connections, and not another one that took the port first.
async fn is_ready(port: u16, folder: &Path) -> bool {
    let request = tokio::time::timeout(Duration::from_secs(1), ask(port, &["CONFIG", "GET", "dir"])).await;
    let canonical = fs::canonicalize(folder).with_context(folder);
    request.is_ok_and(|message| {
        message.is_ok_and(|message| message.lines().nth(1).map(Path::new) == Some(&canonical))
    })
}

/// Sends one command on a new connection and returns the reply.
async fn ask(port: u16, words: &[&str]) -> io::Result<String> {
    let mut stream = BufReader::new(TcpStream::connect(("127.0.0.1", port)).await?);
    let mut question = format!("*{}\r\n", words.len());
    words.iter().for_each(|word| question.push_str(&format!("${}\r\n{word}\r\n", word.len())));
    stream.write_all(question.as_bytes()).await?;
    reply(&mut stream).await
}

async fn reply(stream: &mut BufReader<TcpStream>) -> io::Result<String> {
    let mut line = String::new();
    if stream.read_line(&mut line).await? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let Some((kind, rest)) = line.trim_end().split_at_checked(1) else {
        return Err(io::Error::other("a reply without a type"));
    };
    let count = || rest.parse::<i64>().map_err(io::Error::other);
    match kind {
        "+" | ":" => Ok(rest.to_owned()),
        "$" => {
            let Ok(count) = usize::try_from(count()?) else { return Ok(String::new()) };
            let mut text = vec![0; count + 2];
            stream.read_exact(&mut text).await?;
            text.truncate(count);
            Ok(String::from_utf8_lossy(&text).into_owned())
        }
        "*" => {
            let mut members = Vec::new();
            for _ in 0..count()? {
                members.push(Box::pin(reply(stream)).await?);
            }
            Ok(members.join("\n"))
        }
        _ => Err(io::Error::other(rest.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "install it with: sudo apt-get install redis-server")]
    fn missing_server_panics_with_an_install_hint() {
        program("/nowhere:/nowhere/else".as_ref());
    }
}
