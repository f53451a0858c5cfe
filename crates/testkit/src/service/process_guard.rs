//! A guard process for a server: a shell that runs it, forwards signals from its test, and ends it when the test
//! process is gone.

use std::{
    ffi::{OsStr, OsString},
    fs::File,
    io::Write,
    path::PathBuf,
    process::{Child, ChildStdin, Command, Stdio},
    time::Duration,
};

use tokio::time::Instant;

use super::{ErrorContext, User, server_log};
use crate::WAIT_TIMEOUT;

/// Runs the server until it ends. Each line on stdin names a signal to send to it; when stdin closes without a
/// final signal, the test process is gone, and the server is killed and its folder removed. A file in the folder exists
/// while the server is stopped, since the kernel stops a process some time after the signal was sent.
const GUARD_SCRIPT: &str = r#"
folder=$1 crash=$2
shift 2
exec 3<&0
"$@" 3<&- </dev/null &
server=$!
{
    while read -r signal <&3; do
        kill -s "$signal" $server
        case $signal in
        STOP)
            until grep -q '^State:.T' /proc/$server/status || ! kill -0 $server; do sleep 0.01; done
            : >"$folder/stopped"
            ;;
        CONT) rm -f "$folder/stopped" ;;
        *) exit ;;
        esac
    done
    kill -s CONT $server
    kill -s "$crash" $server
    while kill -0 $server; do sleep 0.1; done
    rm -rf "$folder"
} 2>/dev/null &
exec 3<&- </dev/null
wait $server
"#;

/// The command that runs a server.
pub(crate) struct Server {
    /// The name used in messages.
    pub(crate) name: &'static str,
    /// The signal that ends it immediately.
    pub(crate) crash: &'static str,
    /// The folder of its log and all its data.
    pub(crate) folder: PathBuf,
    pub(crate) user: User,
    /// The program and its arguments.
    pub(crate) words: Vec<OsString>,
    /// Environment variables added to those of the tests.
    pub(crate) settings: Vec<(&'static str, OsString)>,
    /// Prefixes of environment variables that are removed, so that the user's own settings do not change what is
    /// tested.
    pub(crate) foreign: &'static [&'static str],
}

impl Server {
    /// Builds a shell, in its own session, that runs `script` with the folder, the crash signal and the server's
    /// command.
    pub(super) fn shell(&self, session: &[&str], script: &str) -> Command {
        let path = self.folder.join("log");
        let log = File::options().create(true).append(true).open(&path).with_context(&path);
        let mut command = Command::new("setsid");
        command.args(session).args(["sh", "-c", script]).arg(format!("{}-keeper", self.name));
        command.arg(&self.folder).arg(self.crash);
        // The server never outlives its guard process.
        command.arg("setpriv").arg(format!("--pdeathsig={}", self.crash)).args(self.user.words());
        command.args(&self.words);
        command.stdout(log.try_clone().with_context(&path)).stderr(log);
        self.apply_environment(&mut command);
        command
    }

    /// Sets the server's environment on a command.
    pub(crate) fn apply_environment(&self, command: &mut Command) {
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

/// The guard process of a private server. Both end when this value is dropped.
pub(crate) struct ProcessGuard {
    name: &'static str,
    crash: &'static str,
    folder: PathBuf,
    child: Child,
    orders: Option<ChildStdin>,
}

impl ProcessGuard {
    /// Starts the server without waiting until it is ready.
    pub(crate) fn start(server: &Server) -> Self {
        let mut child =
            server.shell(&[], GUARD_SCRIPT).stdin(Stdio::piped()).spawn().expect("no `setsid` command here");
        let orders = child.stdin.take();
        Self { name: server.name, crash: server.crash, folder: server.folder.clone(), child, orders }
    }

    /// Waits until the server is ready. Returns `false` if it has ended instead.
    pub(crate) async fn is_ready<Ready: Future<Output = bool>>(
        &mut self,
        delivery: impl Fn() -> Ready,
    ) -> bool {
        let (name, started) = (self.name, Instant::now());
        while !delivery().await {
            if self.has_ended() {
                return false;
            }
            assert!(started.elapsed() < 2 * WAIT_TIMEOUT, "{name} is not ready after {:?}", 2 * WAIT_TIMEOUT);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        true
    }

    /// Returns whether the server has ended.
    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("cannot wait for it").is_some()
    }

    /// Suspends or resumes the server process, and waits until it has stopped or continued.
    pub(crate) fn freeze(&mut self, frozen: bool) {
        self.send_signal(if frozen { "STOP" } else { "CONT" });
        let (marker, started) = (self.folder.join("stopped"), Instant::now());
        while marker.exists() != frozen {
            assert!(started.elapsed() < WAIT_TIMEOUT, "{} did not react to the signal", self.name);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Ends the server with a signal, and waits until it has ended.
    pub(crate) async fn end(mut self, signal: &str) {
        self.last_order(signal);
        let (name, started) = (self.name, Instant::now());
        while !self.has_ended() {
            assert!(started.elapsed() < WAIT_TIMEOUT, "{name} still runs after {WAIT_TIMEOUT:?}");
            // Polled, because the exit of another process does not wake this task.
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    fn send_signal(&mut self, signal: &str) {
        if let Some(orders) = &mut self.orders {
            writeln!(orders, "{signal}").ok();
        }
    }

    /// Sends the final signal and closes stdin. Without a final signal, the guard would assume that the test is gone
    /// and remove the folder.
    fn last_order(&mut self, signal: &str) {
        // A suspended process does not handle most signals.
        self.send_signal("CONT");
        self.send_signal(signal);
        self.orders = None;
    }
}

impl Drop for ProcessGuard {
    fn drop(&mut self) {
        // The process may have ended already, and a panic here would hide the test's own panic.
        let crash = self.crash;
        self.last_order(crash);
        self.child.wait().ok();
        if std::thread::panicking() {
            let (name, message) = (self.name, server_log(&self.folder));
            eprintln!("--- output of {name} ---\n{message}--- end of output ---");
        }
    }
}
