//! A server with a keeper: a shell that runs it, sends it the signals that its test asks for, and ends it when
//! there is no test any more.

use std::{
    ffi::{OsStr, OsString},
    fs::File,
    io::Write,
    path::PathBuf,
    process::{Child, ChildStdin, Command, Stdio},
    time::Duration,
};

use tokio::time::Instant;

use super::{Told, User, said};
use crate::PATIENCE;

/// Runs the server until it ends. Lines from the test name signals for it; when there is no test any more, the
/// server and its folder go too.
const KEEPER: &str = r#"
folder=$1 crash=$2
shift 2
exec 3<&0
"$@" 3<&- </dev/null &
server=$!
{
    while read -r signal <&3; do
        kill -s "$signal" $server
        case $signal in STOP | CONT) ;; *) exit ;; esac
    done
    kill -s CONT $server
    kill -s "$crash" $server
    while kill -0 $server; do sleep 0.1; done
    rm -rf "$folder"
} 2>/dev/null &
exec 3<&- </dev/null
wait $server
"#;

/// How to run a server.
pub(crate) struct Server {
    /// What it is called in messages.
    pub(crate) name: &'static str,
    /// The signal that ends it at once.
    pub(crate) crash: &'static str,
    /// Where it has its log, and all else.
    pub(crate) folder: PathBuf,
    pub(crate) user: User,
    /// The program and its arguments.
    pub(crate) words: Vec<OsString>,
    /// Its environment, beside the tests' own.
    pub(crate) settings: Vec<(&'static str, OsString)>,
    /// Settings in the environment that begin like this are of the person who runs the tests, and must not change
    /// what is tested.
    pub(crate) foreign: &'static [&'static str],
}

impl Server {
    /// A shell in a session of its own that runs `script` with the folder, the last signal, and the server's words.
    pub(super) fn shell(&self, session: &[&str], script: &str) -> Command {
        let path = self.folder.join("log");
        let log = File::options().create(true).append(true).open(&path).told(&path);
        let mut command = Command::new("setsid");
        command.args(session).args(["sh", "-c", script]).arg(format!("{}-keeper", self.name));
        command.arg(&self.folder).arg(self.crash);
        // The server never outlives its keeper.
        command.arg("setpriv").arg(format!("--pdeathsig={}", self.crash)).args(self.user.words());
        command.args(&self.words);
        command.stdout(log.try_clone().told(&path)).stderr(log);
        self.settle(&mut command);
        command
    }

    /// Gives a command the server's environment.
    pub(crate) fn settle(&self, command: &mut Command) {
        let foreign = |name: &OsStr| {
            let name = name.to_string_lossy();
            self.foreign.iter().any(|start| name.starts_with(start))
        };
        for (name, _) in std::env::vars_os().filter(|(name, _)| foreign(name)) {
            command.env_remove(name);
        }
        command.envs(self.settings.iter().map(|(name, value)| (name, value))).current_dir("/");
    }
}

/// The keeper of a server of one's own, while the server runs. Both end when this is dropped.
pub(crate) struct Keeper {
    name: &'static str,
    crash: &'static str,
    folder: PathBuf,
    child: Child,
    orders: Option<ChildStdin>,
}

impl Keeper {
    /// Starts the server, which may not be ready yet.
    pub(crate) fn start(server: &Server) -> Self {
        let mut child =
            server.shell(&[], KEEPER).stdin(Stdio::piped()).spawn().expect("no `setsid` command here");
        let orders = child.stdin.take();
        Self { name: server.name, crash: server.crash, folder: server.folder.clone(), child, orders }
    }

    /// Waits until the server is ready; false when it has ended instead.
    pub(crate) async fn is_ready<Ready: Future<Output = bool>>(&mut self, ready: impl Fn() -> Ready) -> bool {
        let (name, started) = (self.name, Instant::now());
        while !ready().await {
            if self.has_ended() {
                return false;
            }
            assert!(started.elapsed() < 2 * PATIENCE, "{name} is not ready after {:?}", 2 * PATIENCE);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        true
    }

    /// Whether the server has ended.
    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("cannot wait for it").is_some()
    }

    /// Stops the server in its tracks, or lets it go on.
    pub(crate) fn freeze(&mut self, frozen: bool) {
        self.order(if frozen { "STOP" } else { "CONT" });
    }

    /// Ends the server by a signal, and waits until it is gone.
    pub(crate) async fn end(mut self, signal: &str) {
        self.last_order(signal);
        let (name, started) = (self.name, Instant::now());
        while !self.has_ended() {
            assert!(started.elapsed() < PATIENCE, "{name} still runs after {PATIENCE:?}");
            // The end of another process wakes nobody here.
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    fn order(&mut self, signal: &str) {
        if let Some(orders) = &mut self.orders {
            writeln!(orders, "{signal}").ok();
        }
    }

    /// A keeper without a last order would take the test for gone, and remove the folder.
    fn last_order(&mut self, signal: &str) {
        // What is frozen does not hear most signals.
        self.order("CONT");
        self.order(signal);
        self.orders = None;
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        // Gone already is fine, and a panic here would hide the first one.
        let crash = self.crash;
        self.last_order(crash);
        self.child.wait().ok();
        if std::thread::panicking() {
            let (name, said) = (self.name, said(&self.folder));
            eprintln!("--- output of {name} ---\n{said}--- end of output ---");
        }
    }
}
