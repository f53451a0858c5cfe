//! Processes of the documentation's programs, and a shell that runs its commands one block after the other.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    net::{TcpListener, TcpStream},
    os::unix::process::CommandExt,
    path::Path,
    process::{Child, ChildStdin, Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};
use redrive_testkit::WAIT_TIMEOUT;

/// The timeout of one block of commands: some install packages.
const BLOCK_TIMEOUT: Duration = Duration::from_secs(300);
/// The prefix of the line that the shell prints at the end of a block.
const END: &str = "== end of block";

/// Panics, with the command that installs it on Debian, if a program does not start.
pub(crate) fn require(program: &str, version: &str, packages: &str) {
    let started = Command::new(program).arg(version).stdout(Stdio::null()).stderr(Stdio::null()).status();
    if let Err(error) = started {
        panic!("{program} did not start: {error}; on Debian: sudo apt-get install {packages}");
    }
}

/// Returns a port that no process listens on.
pub(crate) fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Waits until a process listens on this port, or no longer listens; panics after `WAIT_TIMEOUT`.
pub(crate) fn wait_listening(port: u16, listens: bool) {
    let started = Instant::now();
    while TcpStream::connect(("127.0.0.1", port)).is_ok() != listens {
        assert!(
            started.elapsed() < WAIT_TIMEOUT,
            "port {port}: not within {WAIT_TIMEOUT:?}: listens = {listens}"
        );
        // Polled, because another process opens the port.
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[derive(Default)]
struct Lines {
    lines: Vec<String>,
    ended: bool,
}

/// A process whose output is kept line by line. Killed with its children when dropped.
pub(crate) struct Program {
    child: Child,
    stdin: Option<ChildStdin>,
    printed: Arc<(Mutex<Lines>, Condvar)>,
}

impl Program {
    /// Starts a process. Its standard error goes to that of the test.
    pub(crate) fn start(command: &mut Command) -> Self {
        // The user's own settings of Redrive and the test runner's of Cargo do not reach the program.
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy();
            if name.starts_with("REDRIVE_") || (name.starts_with("CARGO_") && name != "CARGO_HOME") {
                command.env_remove(&*name);
            }
        }
        command.env_remove("RUSTC_WORKSPACE_WRAPPER").env_remove("CLIPPY_ARGS").process_group(0);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{} did not start: {error}", command.get_program().display()));
        let printed: Arc<(Mutex<Lines>, Condvar)> = Arc::default();
        let (output, kept) = (child.stdout.take().unwrap(), Arc::clone(&printed));
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                kept.0.lock().lines.push(line);
                kept.1.notify_all();
            }
            kept.0.lock().ended = true;
            kept.1.notify_all();
        });
        Self { stdin: child.stdin.take(), child, printed }
    }

    /// Returns all lines printed so far.
    pub(crate) fn lines(&self) -> Vec<String> {
        self.printed.0.lock().lines.clone()
    }

    /// Waits until `condition` returns a value for the lines printed so far; panics with them when the time
    /// is over or the output has ended.
    pub(crate) fn wait_for<T>(
        &self,
        timeout: Duration,
        what: &str,
        condition: impl Fn(&[String]) -> Option<T>,
    ) -> T {
        let deadline = Instant::now() + timeout;
        let mut printed = self.printed.0.lock();
        loop {
            if let Some(found) = condition(&printed.lines) {
                return found;
            }
            assert!(!printed.ended, "the process has ended before {what}; it printed {:#?}", printed.lines);
            let late = self.printed.1.wait_until(&mut printed, deadline).timed_out();
            assert!(!late, "not within {timeout:?}: {what}; printed: {:#?}", printed.lines);
        }
    }

    /// Waits for a line; panics after `WAIT_TIMEOUT`. A process in the background may print it behind text of another
    /// program that does not end its line, as `curl` does with a response.
    pub(crate) fn wait_line(&self, line: &str) {
        self.wait_for(WAIT_TIMEOUT, line, |lines| {
            lines.iter().any(|printed| printed.ends_with(line)).then_some(())
        });
    }

    /// Waits until the process has ended with success, and returns its lines; panics with them otherwise.
    pub(crate) fn finish(mut self) -> Vec<String> {
        drop(self.stdin.take());
        let deadline = Instant::now() + BLOCK_TIMEOUT;
        let mut printed = self.printed.0.lock();
        while !printed.ended {
            let late = self.printed.1.wait_until(&mut printed, deadline).timed_out();
            assert!(!late, "not ended within {BLOCK_TIMEOUT:?}; printed: {:#?}", printed.lines);
        }
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{status}; printed: {:#?}", printed.lines);
        printed.lines.clone()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let group = format!("-{}", self.child.id());
        Command::new("kill").args(["-s", "KILL", "--", &group]).stderr(Stdio::null()).status().ok();
        self.child.wait().ok();
    }
}

/// A session of bash, as in a user's terminal: variables and background jobs live from block to block. The
/// output of all of its processes is kept in order.
pub(crate) struct Shell {
    program: Program,
    blocks: usize,
}

impl Shell {
    /// Starts a session in a folder. It ends at the first command that fails.
    pub(crate) fn start(folder: &Path) -> Self {
        // Each response of curl ends with a line break, so that lines of other processes do not continue it.
        fs::write(folder.join(".curlrc"), "write-out = \"\\n\"\n").unwrap();
        let mut command = Command::new("bash");
        command.arg("-es").current_dir(folder).env("CURL_HOME", folder);
        let mut shell = Self { program: Program::start(&mut command), blocks: 0 };
        shell.run("exec 2>&1");
        shell
    }

    /// Runs a block of commands, and returns what was printed since it began. Panics if one of them fails.
    pub(crate) fn run(&mut self, commands: &str) -> String {
        self.blocks += 1;
        let (before, end) = (self.program.lines().len(), format!("{END} {}", self.blocks));
        // In braces, so that the commands do not read the rest of the session as their input.
        let script = format!("{{\n{commands}\n}} </dev/null\necho\necho '{end}'\n");
        self.program.stdin.as_mut().unwrap().write_all(script.as_bytes()).expect("the session has ended");
        let lines = self.program.wait_for(BLOCK_TIMEOUT, commands, |lines| {
            lines.iter().position(|line| *line == end).map(|at| lines[before..at].to_vec())
        });
        lines.join("\n").trim().to_owned()
    }

    /// Returns all lines that the session has printed.
    pub(crate) fn lines(&self) -> Vec<String> {
        self.program.lines()
    }

    /// Waits for a line of a process in the background.
    pub(crate) fn wait_line(&self, line: &str) {
        self.program.wait_line(line);
    }
}
