//! The real binary as a process: started, signalled, killed and started again as a user would.
//!
//! All its output is recorded, and shown if the test that owns it panics.

use std::{
    io::{BufRead, BufReader, Read},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Output, Stdio},
    sync::Arc,
    thread::JoinHandle,
    time::Duration,
};

use tempfile::TempDir;

use crate::{Api, MovableClock, WAIT_TIMEOUT, watch_cell::WatchCell};

/// The master key of every server that a test starts: 32 times the same byte, in base64.
const MASTER_KEY: &str = "BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc=";
const ADMIN_KEY: &str = "rdk_test_0123456789abcdef0123456789abcdef";
const LISTENING: &str = "listening on http";

/// The command line and environment of the binary; `redrive dev` in a new directory by default.
#[derive(Default)]
pub struct Setup {
    binary: Option<PathBuf>,
    command: Option<String>,
    data_dir: Option<PathBuf>,
    listen: Option<String>,
    database_url: Option<String>,
    without_database_url: bool,
    args: Vec<String>,
    env: Vec<(String, String)>,
    without_env: Vec<String>,
}

impl Setup {
    /// Creates the setup of `redrive dev` in a new directory.
    pub fn new() -> Self {
        Self::default()
    }

    /// Keeps the data in this directory, which is not removed afterwards.
    pub fn data_dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.data_dir = Some(dir.into());
        self
    }

    /// Listens here instead of on a free loopback port.
    pub fn listen(mut self, address: impl Into<String>) -> Self {
        self.listen = Some(address.into());
        self
    }

    /// Uses another database than `redrive.db` in the data directory.
    pub fn database_url(mut self, url: impl Into<String>) -> Self {
        self.database_url = Some(url.into());
        self
    }

    /// Passes no database URL, for a command that has its own.
    pub fn without_database_url(mut self) -> Self {
        self.without_database_url = true;
        self
    }

    /// Starts a node of this role.
    pub fn role(self, role: &str) -> Self {
        self.arg("--role").arg(role)
    }

    /// Adds an argument.
    pub fn arg(mut self, arg: impl Into<String>) -> Self {
        self.args.push(arg.into());
        self
    }

    /// Adds an environment variable.
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    /// Uses a wall clock that the test can move.
    pub fn clock(mut self, clock: &MovableClock) -> Self {
        let text = |value: std::ffi::OsString| value.to_string_lossy().into_owned();
        self.env.extend(clock.environment().into_iter().map(|(name, value)| (name.to_owned(), text(value))));
        self
    }

    /// Removes a variable that is set by default, such as the admin key.
    pub fn without_env(mut self, name: impl Into<String>) -> Self {
        self.without_env.push(name.into());
        self
    }

    /// Runs another command than `dev`.
    pub fn command(mut self, command: impl Into<String>) -> Self {
        self.command = Some(command.into());
        self
    }

    /// Runs another binary than the one in the target directory of the tests.
    pub fn binary(mut self, binary: impl Into<PathBuf>) -> Self {
        self.binary = Some(binary.into());
        self
    }

    /// Runs a process that should exit by itself, such as one that rejects its settings, and returns its output;
    /// panics if it still runs after `WAIT_TIMEOUT`.
    pub async fn run_to_end(self) -> Output {
        let dir = TempDir::new().expect("no temporary directory");
        let data_dir = self.data_dir.clone().unwrap_or_else(|| dir.path().to_path_buf());
        let mut child = self.start(&data_dir, SocketAddr::from(([127, 0, 0, 1], 0)));
        let started = tokio::time::Instant::now();
        while child.try_wait().expect("cannot wait for redrive").is_none() {
            if started.elapsed() > WAIT_TIMEOUT {
                child.kill().ok();
                let output = child.wait_with_output().expect("cannot wait for redrive");
                panic!(
                    "redrive still runs after {WAIT_TIMEOUT:?}:\n{}",
                    String::from_utf8_lossy(&output.stdout)
                );
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        child.wait_with_output().expect("cannot read the output of redrive")
    }

    fn start(&self, data_dir: &Path, listen: SocketAddr) -> Child {
        let binary = self.binary.clone().unwrap_or_else(binary);
        assert!(
            binary.exists(),
            "no redrive binary at {}; build it with: cargo build -p redrive",
            binary.display()
        );
        let listen = self.listen.clone().unwrap_or_else(|| listen.to_string());
        let database = || format!("sqlite:{}", data_dir.join("redrive.db").display());
        let database_url =
            (!self.without_database_url).then(|| self.database_url.clone().unwrap_or_else(database));
        let mut command = Command::new(&binary);
        // Removes the user's own Redrive settings, so that they do not change what is tested.
        for (name, _) in
            std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("REDRIVE_"))
        {
            command.env_remove(name);
        }
        command
            .arg(self.command.as_deref().unwrap_or("dev"))
            .args(["--listen", &listen])
            .args(database_url.iter().flat_map(|url| ["--database-url", url]))
            .args(&self.args)
            .env("REDRIVE_ADMIN_KEY", ADMIN_KEY)
            .env("REDRIVE_SECRETS_MASTER_KEY", MASTER_KEY)
            // The shared PostgreSQL server of the tests runs without fsync for speed.
            .env("REDRIVE_DATABASE_ALLOW_UNSAFE_DURABILITY", "true")
            .env("NO_COLOR", "1")
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .current_dir(data_dir)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        for name in &self.without_env {
            command.env_remove(name);
        }
        command.spawn().unwrap_or_else(|error| panic!("cannot start {}: {error}", binary.display()))
    }
}

/// Returns `REDRIVE_BIN`, or the binary next to the running test, which is `<target>/debug/deps/<test>`.
pub fn binary() -> PathBuf {
    if let Some(named) = std::env::var_os("REDRIVE_BIN") {
        return named.into();
    }
    let test = std::env::current_exe().expect("a test has an executable path");
    test.ancestors().nth(2).expect("a test runs inside the target directory").join("redrive")
}

/// The output of the process, across restarts.
#[derive(Default)]
struct ProcessOutput {
    text: String,
    /// The address of the current process, once it was printed.
    address: Option<SocketAddr>,
    /// The number of output streams (of two) that have ended.
    ended: usize,
}

/// The real binary, started as a user would. Killed when dropped.
pub struct Redrive {
    setup: Setup,
    data_dir: PathBuf,
    /// The temporary directory, removed on drop if this test created it.
    _owned_dir: Option<TempDir>,
    child: Child,
    readers: Vec<JoinHandle<()>>,
    printed: Arc<WatchCell<ProcessOutput>>,
    address: SocketAddr,
    api: Api,
}

impl Redrive {
    /// Starts `redrive dev` in a new directory and waits until it listens.
    pub async fn start() -> Self {
        Self::start_with(Setup::new()).await
    }

    /// Starts the binary with this setup and waits until it listens.
    pub async fn start_with(setup: Setup) -> Self {
        let owned_dir = setup.data_dir.is_none().then(|| TempDir::new().expect("no temporary directory"));
        let data_dir = match (&setup.data_dir, &owned_dir) {
            (Some(given), _) => std::path::absolute(given).expect("a data directory needs a path"),
            (None, owned) => owned.as_ref().unwrap().path().to_path_buf(),
        };
        let anywhere = SocketAddr::from(([127, 0, 0, 1], 0));
        let child = setup.start(&data_dir, anywhere);
        let mut redrive = Self {
            setup,
            data_dir,
            _owned_dir: owned_dir,
            child,
            readers: Vec::new(),
            printed: Arc::default(),
            address: anywhere,
            api: Api::new(anywhere, ADMIN_KEY),
        };
        redrive.wait_listening().await;
        redrive
    }

    /// Returns a client with the admin key. Clients from before a restart still work after it.
    pub fn api(&self) -> Api {
        self.api.clone()
    }

    /// Returns the admin key.
    pub fn key(&self) -> &str {
        ADMIN_KEY
    }

    /// Returns the listen address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the data directory.
    pub fn data_dir(&self) -> &Path {
        &self.data_dir
    }

    /// Returns the process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns everything printed so far, on both streams, across restarts.
    pub fn output(&self) -> String {
        self.printed.read(|printed| printed.text.clone())
    }

    /// Waits until this text was printed; panics after `WAIT_TIMEOUT`.
    pub async fn wait_output(&self, text: &str) {
        let check = |printed: &ProcessOutput| printed.text.contains(text).then_some(());
        let found = self.printed.wait_for(WAIT_TIMEOUT, check).await;
        assert!(found.is_some(), "not within {WAIT_TIMEOUT:?}: the output {text:?}");
    }

    /// Waits until this text was printed `times` times; panics after `WAIT_TIMEOUT`.
    pub async fn wait_output_times(&self, text: &str, times: usize) {
        let check = |printed: &ProcessOutput| (printed.text.matches(text).count() >= times).then_some(());
        let found = self.printed.wait_for(WAIT_TIMEOUT, check).await;
        assert!(found.is_some(), "not within {WAIT_TIMEOUT:?}: the output {text:?}, {times} times");
    }

    /// Kills the process with `SIGKILL` and waits until it has ended.
    pub fn kill(&mut self) {
        self.child.kill().expect("cannot kill redrive");
        self.child.wait().expect("cannot wait for redrive");
        self.join_readers();
    }

    /// Starts it again on the same data and port, after killing it if it still runs.
    pub async fn restart(&mut self) {
        self.kill();
        self.child = self.setup.start(&self.data_dir, self.address);
        self.wait_listening().await;
    }

    /// Sends a signal: `TERM`, `INT`, `STOP`, `CONT` and the like.
    pub fn signal(&self, name: &str) {
        let pid = self.pid().to_string();
        let sent = Command::new("kill").args(["-s", name, &pid]).status().expect("no `kill` command here");
        assert!(sent.success(), "kill -s {name} {pid} failed; output of redrive:\n{}", self.output());
    }

    /// Waits until the process exits by itself; panics if it still runs after `within`.
    pub async fn wait_exit(&mut self, within: Duration) -> ExitStatus {
        let started = tokio::time::Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("cannot wait for redrive") {
                self.join_readers();
                return status;
            }
            assert!(started.elapsed() < within, "redrive still runs after {within:?}");
            // Polled, because the exit of another process does not wake this task.
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Waits until the new process prints its listen address.
    async fn wait_listening(&mut self) {
        self.printed.change(|printed| (printed.address, printed.ended) = (None, 0));
        let stdout = self.child.stdout.take().expect("stdout is piped");
        let stderr = self.child.stderr.take().expect("stderr is piped");
        self.readers = vec![self.keep(stdout, true), self.keep(stderr, false)];
        let check = |printed: &ProcessOutput| match (printed.address, printed.ended) {
            (Some(address), _) => Some(Some(address)),
            (None, 2) => Some(None),
            _ => None,
        };
        match self.printed.wait_for(WAIT_TIMEOUT, check).await {
            Some(Some(address)) => self.address = address,
            Some(None) => panic!("redrive ended before it was listening:\n{}", self.take_output()),
            None => panic!("no \"{LISTENING}…\" within {WAIT_TIMEOUT:?}:\n{}", self.take_output()),
        }
        self.api = Api::new(self.address, ADMIN_KEY);
    }

    /// Records an output stream on its own thread, so that a busy test never blocks the process.
    fn keep(&self, stream: impl Read + Send + 'static, announces: bool) -> JoinHandle<()> {
        let printed = Arc::clone(&self.printed);
        std::thread::spawn(move || {
            let mut stream = BufReader::new(stream);
            let mut line = Vec::new();
            while stream.read_until(b'\n', &mut line).is_ok_and(|length| length > 0) {
                let text = String::from_utf8_lossy(&line);
                printed.change(|printed| {
                    printed.text.push_str(&text);
                    if announces && printed.address.is_none() {
                        printed.address = address_in(&text);
                    }
                });
                line.clear();
            }
            printed.change(|printed| printed.ended += 1);
        })
    }

    /// Takes the output for a panic message, so that dropping this value does not print it again.
    fn take_output(&self) -> String {
        self.printed.change(|printed| std::mem::take(&mut printed.text))
    }

    /// Waits until the remaining output of an ended process is read.
    fn join_readers(&mut self) {
        for reader in self.readers.drain(..) {
            reader.join().expect("reading the output of redrive failed");
        }
    }
}

/// Panics if the output contains a secret. Checked for every server of every suite.
fn assert_no_secrets_printed(output: &str) {
    // Keys that `redrive dev` generates are printed on purpose; they contain none of these.
    let never = [ADMIN_KEY, MASTER_KEY, "whsec_", "rdp_", "planted"];
    if let Some(line) = output.lines().find(|line| never.iter().any(|secret| line.contains(secret))) {
        panic!("redrive printed a secret: {line}");
    }
}

impl Drop for Redrive {
    fn drop(&mut self) {
        // The process may have ended already, and a panic here would hide the test's own panic.
        self.child.kill().ok();
        self.child.wait().ok();
        for reader in self.readers.drain(..) {
            reader.join().ok();
        }
        let output = self.output();
        if !std::thread::panicking() {
            // Tests of this file run scripts instead of the binary, which print the admin key.
            if self.setup.binary.is_none() {
                assert_no_secrets_printed(&output);
            }
            return;
        }
        if !output.is_empty() {
            eprintln!("--- output of redrive ---\n{output}--- end of output ---");
        }
    }
}

/// Parses the address in a line such as `… listening on http://127.0.0.1:8080/ …`.
fn address_in(line: &str) -> Option<SocketAddr> {
    let (_, rest) = line.split_once(LISTENING)?;
    let rest = rest.strip_prefix('s').unwrap_or(rest).strip_prefix("://")?;
    let end = rest.find(|c: char| !c.is_ascii_hexdigit() && !"[]:.".contains(c)).unwrap_or(rest.len());
    rest[..end].trim_end_matches('.').parse().ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    /// Runs a shell script instead of the binary: `sh <script> --listen <address> …`.
    fn script(dir: &TempDir, text: &str) -> Setup {
        let path = dir.path().join("script.sh");
        std::fs::write(&path, text).unwrap();
        Setup::new().binary("/bin/sh").command(path.to_str().unwrap())
    }

    const LISTENS: &str = "trap 'echo bye; exit 3' TERM
echo warming up >&2
echo args: \"$@\" $EXTRA $REDRIVE_ADMIN_KEY in $(pwd)
[ $2 = 127.0.0.1:0 ] && port=4711 || port=${2#*:}
echo \"run: listening on http://127.0.0.1:$port\"
while :; do sleep 0.01; done";

    #[tokio::test]
    async fn process_restarts_on_its_port_after_a_kill() {
        let dir = TempDir::new().unwrap();
        let setup = script(&dir, LISTENS).arg("--fast").env("EXTRA", "extra");
        let mut redrive = Redrive::start_with(setup).await;
        assert_eq!(redrive.address().to_string(), "127.0.0.1:4711");
        let first = redrive.pid();
        redrive.kill();
        redrive.restart().await;
        assert_ne!(redrive.pid(), first);
        assert_eq!(redrive.address().port(), 4711);

        redrive.signal("TERM");
        redrive.wait_output("bye").await;
        assert_eq!(redrive.wait_exit(WAIT_TIMEOUT).await.code(), Some(3));
        let (output, home) = (redrive.output(), redrive.data_dir().display().to_string());
        let expected = format!(
            "args: --listen 127.0.0.1:4711 --database-url sqlite:{home}/redrive.db --fast extra {ADMIN_KEY} in {home}"
        );
        assert!(output.contains(&expected), "{output}");
        assert_eq!(output.matches("warming up").count(), 2, "{output}");
        assert!(output.contains("bye"), "{output}");
    }

    #[tokio::test]
    async fn several_processes_can_share_one_database() {
        let dir = TempDir::new().unwrap();
        let node = |role| script(&dir, LISTENS).database_url("postgres://there/redrive").role(role);
        let (api, worker) =
            tokio::join!(Redrive::start_with(node("api")), Redrive::start_with(node("worker")));
        assert_ne!((api.pid(), api.data_dir()), (worker.pid(), worker.data_dir()));
        for (redrive, role) in [(api, "api"), (worker, "worker")] {
            let expected = format!("--database-url postgres://there/redrive --role {role} ");
            assert!(redrive.output().contains(&expected), "{}", redrive.output());
        }
    }

    #[tokio::test]
    async fn given_data_dir_is_used_and_kept() {
        let dir = TempDir::new().unwrap();
        let mut redrive = Redrive::start_with(script(&dir, LISTENS).data_dir(dir.path())).await;
        assert_eq!(redrive.data_dir(), dir.path());
        redrive.signal("KILL");
        assert_eq!(redrive.wait_exit(WAIT_TIMEOUT).await.signal(), Some(9));
        drop(redrive);
        assert!(dir.path().exists());
    }

    #[tokio::test]
    async fn run_to_end_returns_status_and_output() {
        let dir = TempDir::new().unwrap();
        let text = "echo at $2 with $4 and ${REDRIVE_ADMIN_KEY:-no key}; echo refused >&2; exit 2";
        let setup = script(&dir, text).listen("0.0.0.0:1").database_url("sqlite:x");
        let ended = setup.without_env("REDRIVE_ADMIN_KEY").run_to_end().await;
        assert_eq!(ended.status.code(), Some(2));
        assert_eq!(String::from_utf8_lossy(&ended.stdout), "at 0.0.0.0:1 with sqlite:x and no key\n");
        assert_eq!(String::from_utf8_lossy(&ended.stderr), "refused\n");
    }

    #[tokio::test]
    #[should_panic(expected = "redrive ended before it was listening:\nno such flag")]
    async fn early_exit_panics_with_its_output() {
        let dir = TempDir::new().unwrap();
        Redrive::start_with(script(&dir, "echo no such flag >&2; exit 2")).await;
    }

    #[tokio::test]
    #[should_panic(expected = "no redrive binary at /nowhere/redrive; build it with: cargo build -p redrive")]
    async fn missing_binary_panics_with_a_build_hint() {
        Redrive::start_with(Setup::new().binary("/nowhere/redrive")).await;
    }

    #[test]
    fn listen_address_is_parsed_from_a_line() {
        let found = |line: &str| address_in(line).map(|address| address.to_string());
        for (line, address) in [
            ("INFO listening on http://127.0.0.1:80\n", Some("127.0.0.1:80")),
            ("listening on http://127.0.0.1:80/docs.", Some("127.0.0.1:80")),
            ("listening on http://127.0.0.1:80.", Some("127.0.0.1:80")),
            ("listening on http://[::1]:80 (dev)", Some("[::1]:80")),
            ("listening on https://127.0.0.1:443", Some("127.0.0.1:443")),
            ("listening on http://somewhere", None),
            ("listening", None),
        ] {
            assert_eq!(found(line).as_deref(), address, "{line}");
        }
    }
}
