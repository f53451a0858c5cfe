//! The real binary as a process: started, signalled, killed and started again as its user would.
//!
//! Everything it prints is kept, and shown when the test that owns it panics.

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

use crate::{Api, MovableClock, PATIENCE, watch_cell::Watched};

/// The admin key that every process is started with.
/// The master key of every server that a test starts: 32 times the same byte, in base64.
const MASTER_KEY: &str = "BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc=";
const ADMIN_KEY: &str = "rdk_test_0123456789abcdef0123456789abcdef";
const LISTENING: &str = "listening on http";

/// How to start the binary, where that differs from `redrive dev` in a fresh directory.
#[derive(Default)]
pub struct Setup {
    binary: Option<PathBuf>,
    command: Option<String>,
    data_dir: Option<PathBuf>,
    listen: Option<String>,
    database_url: Option<String>,
    own_database: bool,
    args: Vec<String>,
    env: Vec<(String, String)>,
    without_env: Vec<String>,
}

impl Setup {
    /// `redrive dev` in a fresh directory.
    pub fn new() -> Self {
        Self::default()
    }

    /// Keeps the data in this directory, which is left alone afterwards.
    pub fn data_dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.data_dir = Some(dir.into());
        self
    }

    /// Listens here instead of on a free loopback port.
    pub fn listen(mut self, address: impl Into<String>) -> Self {
        self.listen = Some(address.into());
        self
    }

    /// Another database than `redrive.db` in the data directory, where the process is started.
    pub fn database_url(mut self, url: impl Into<String>) -> Self {
        self.database_url = Some(url.into());
        self
    }

    /// Without a word about the database, for a command that knows where it is.
    pub fn own_database(mut self) -> Self {
        self.own_database = true;
        self
    }

    /// As a node of this role, beside others on the same database.
    pub fn role(self, role: &str) -> Self {
        self.arg("--role").arg(role)
    }

    /// One more argument.
    pub fn arg(mut self, arg: impl Into<String>) -> Self {
        self.args.push(arg.into());
        self
    }

    /// One more variable in the environment.
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    /// With a wall clock that the test moves.
    pub fn clock(mut self, clock: &MovableClock) -> Self {
        let text = |value: std::ffi::OsString| value.to_string_lossy().into_owned();
        self.env.extend(clock.environment().into_iter().map(|(name, value)| (name.to_owned(), text(value))));
        self
    }

    /// Without a variable that is set otherwise, such as the admin key.
    pub fn without_env(mut self, name: impl Into<String>) -> Self {
        self.without_env.push(name.into());
        self
    }

    /// Another command than `dev`.
    pub fn command(mut self, command: impl Into<String>) -> Self {
        self.command = Some(command.into());
        self
    }

    /// Another binary than the one beside the tests.
    pub fn binary(mut self, binary: impl Into<PathBuf>) -> Self {
        self.binary = Some(binary.into());
        self
    }

    /// Runs a process that should end by itself, such as one that refuses its settings, and gives what it
    /// said; panics when it still runs after 20 s.
    pub async fn run_to_end(self) -> Output {
        let dir = TempDir::new().expect("no temporary directory");
        let data_dir = self.data_dir.clone().unwrap_or_else(|| dir.path().to_path_buf());
        let mut child = self.start(&data_dir, SocketAddr::from(([127, 0, 0, 1], 0)));
        let started = tokio::time::Instant::now();
        while child.try_wait().expect("cannot wait for redrive").is_none() {
            if started.elapsed() > PATIENCE {
                child.kill().ok();
                let output = child.wait_with_output().expect("cannot wait for redrive");
                panic!("redrive still runs after {PATIENCE:?}:\n{}", String::from_utf8_lossy(&output.stdout));
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        child.wait_with_output().expect("cannot read what redrive said")
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
        let database_url = (!self.own_database).then(|| self.database_url.clone().unwrap_or_else(database));
        let mut command = Command::new(&binary);
        // Settings of the person who runs the tests must not change what is tested.
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
            // The PostgreSQL server that tests share does not flush, since that is quick.
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

/// `REDRIVE_BIN`, or the binary beside the running test, which is `<target>/debug/deps/<test>`.
pub fn binary() -> PathBuf {
    if let Some(named) = std::env::var_os("REDRIVE_BIN") {
        return named.into();
    }
    let test = std::env::current_exe().expect("a test knows where it is");
    test.ancestors().nth(2).expect("a test runs inside the target directory").join("redrive")
}

/// What the process has printed, over all its restarts.
#[derive(Default)]
struct Printed {
    text: String,
    /// Where the process that runs now listens, once it has said so.
    address: Option<SocketAddr>,
    /// How many of its two streams have ended.
    ended: usize,
}

/// The real binary, started as its user would. Killed when dropped.
pub struct Redrive {
    setup: Setup,
    data_dir: PathBuf,
    /// Removes the directory in the end, where it is ours.
    _owned_dir: Option<TempDir>,
    child: Child,
    readers: Vec<JoinHandle<()>>,
    printed: Arc<Watched<Printed>>,
    address: SocketAddr,
    api: Api,
}

impl Redrive {
    /// `redrive dev` in a fresh directory, ready for requests.
    pub async fn start() -> Self {
        Self::start_with(Setup::new()).await
    }

    /// The binary started as `setup` says, ready for requests.
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

    /// A client with the admin key. Clients taken before a restart still work after it.
    pub fn api(&self) -> Api {
        self.api.clone()
    }

    /// The admin key.
    pub fn key(&self) -> &str {
        ADMIN_KEY
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where its data is.
    pub fn data_dir(&self) -> &Path {
        &self.data_dir
    }

    /// The id of the process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Everything printed so far, on both streams, over all restarts.
    pub fn output(&self) -> String {
        self.printed.read(|printed| printed.text.clone())
    }

    /// Waits until this text has been printed; panics after 20 s.
    pub async fn wait_output(&self, text: &str) {
        let look = |printed: &Printed| printed.text.contains(text).then_some(());
        let found = self.printed.find(PATIENCE, look).await;
        assert!(found.is_some(), "waited {PATIENCE:?} in vain for the output {text:?}");
    }

    /// Waits until this text has been printed so many times; panics after 20 s.
    pub async fn wait_output_times(&self, text: &str, times: usize) {
        let look = |printed: &Printed| (printed.text.matches(text).count() >= times).then_some(());
        let found = self.printed.find(PATIENCE, look).await;
        assert!(found.is_some(), "waited {PATIENCE:?} in vain for the output {text:?}, {times} times");
    }

    /// Kills the process as a power cut would (`SIGKILL`) and waits until it is gone.
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

    /// Waits until the process ends by itself; panics when it still runs after `within`.
    pub async fn wait_exit(&mut self, within: Duration) -> ExitStatus {
        let started = tokio::time::Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("cannot wait for redrive") {
                self.join_readers();
                return status;
            }
            assert!(started.elapsed() < within, "redrive still runs after {within:?}");
            // The end of another process wakes nobody here.
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Reads what the new process prints until it says where it listens.
    async fn wait_listening(&mut self) {
        self.printed.change(|printed| (printed.address, printed.ended) = (None, 0));
        let stdout = self.child.stdout.take().expect("stdout is piped");
        let stderr = self.child.stderr.take().expect("stderr is piped");
        self.readers = vec![self.keep(stdout, true), self.keep(stderr, false)];
        let look = |printed: &Printed| match (printed.address, printed.ended) {
            (Some(address), _) => Some(Some(address)),
            (None, 2) => Some(None),
            _ => None,
        };
        match self.printed.find(PATIENCE, look).await {
            Some(Some(address)) => self.address = address,
            Some(None) => panic!("redrive ended before it was listening:\n{}", self.take_output()),
            None => panic!("no \"{LISTENING}…\" within {PATIENCE:?}:\n{}", self.take_output()),
        }
        self.api = Api::new(self.address, ADMIN_KEY);
    }

    /// Keeps what a stream brings, on a thread so that the process is never held up by a busy test.
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

    /// The output for a panic's message, so that dropping this does not show it twice.
    fn take_output(&self) -> String {
        self.printed.change(|printed| std::mem::take(&mut printed.text))
    }

    /// Waits for the last words of a process that has ended.
    fn join_readers(&mut self) {
        for reader in self.readers.drain(..) {
            reader.join().expect("reading the output of redrive failed");
        }
    }
}

/// Panics if a server has printed what must never be printed: every server of every suite is checked.
fn assert_discreet(output: &str) {
    // Keys that a server made for trying things out are shown on purpose, and begin in another way than these.
    let never = [ADMIN_KEY, MASTER_KEY, "whsec_", "rdp_", "planted"];
    if let Some(line) = output.lines().find(|line| never.iter().any(|secret| line.contains(secret))) {
        panic!("redrive printed a secret: {line}");
    }
}

impl Drop for Redrive {
    fn drop(&mut self) {
        // Gone already is fine, and a panic here would hide the first one.
        self.child.kill().ok();
        self.child.wait().ok();
        for reader in self.readers.drain(..) {
            reader.join().ok();
        }
        let output = self.output();
        if !std::thread::panicking() {
            // Tests of this file have scripts in its place.
            if self.setup.binary.is_none() {
                assert_discreet(&output);
            }
            return;
        }
        if !output.is_empty() {
            eprintln!("--- output of redrive ---\n{output}--- end of output ---");
        }
    }
}

/// The address in a line such as `… listening on http://127.0.0.1:8080/ …`.
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

    /// A shell script in the place of the binary: `sh <script> --listen <address> …`.
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
    async fn a_process_is_started_killed_and_started_again_on_its_port() {
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
        assert_eq!(redrive.wait_exit(PATIENCE).await.code(), Some(3));
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
    async fn a_given_directory_is_used_and_kept() {
        let dir = TempDir::new().unwrap();
        let mut redrive = Redrive::start_with(script(&dir, LISTENS).data_dir(dir.path())).await;
        assert_eq!(redrive.data_dir(), dir.path());
        redrive.signal("KILL");
        assert_eq!(redrive.wait_exit(PATIENCE).await.signal(), Some(9));
        drop(redrive);
        assert!(dir.path().exists());
    }

    #[tokio::test]
    async fn a_process_that_ends_by_itself_is_heard_out() {
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
    async fn an_early_end_is_told_with_its_output() {
        let dir = TempDir::new().unwrap();
        Redrive::start_with(script(&dir, "echo no such flag >&2; exit 2")).await;
    }

    #[tokio::test]
    #[should_panic(expected = "no redrive binary at /nowhere/redrive; build it with: cargo build -p redrive")]
    async fn a_missing_binary_is_told_with_its_remedy() {
        Redrive::start_with(Setup::new().binary("/nowhere/redrive")).await;
    }

    #[test]
    fn the_address_is_found_in_a_line() {
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
