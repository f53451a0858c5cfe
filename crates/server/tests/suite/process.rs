//! Runs the binary with only the given settings: commands to their end, and servers until they listen.

use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Output, Stdio},
    time::Instant,
};

use redrive_testkit::WAIT_TIMEOUT;

/// An admin key.
pub(crate) const ADMIN_KEY: (&str, &str) = ("REDRIVE_ADMIN_KEY", "0123456789abcdef0123456789abcdef");
/// A master key.
pub(crate) const MASTER_KEY: (&str, &str) =
    ("REDRIVE_SECRETS_MASTER_KEY", "BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc=");

/// Returns the command, without the settings of the user who runs the tests.
pub(crate) fn redrive_command(folder: &Path, arguments: &[&str], environment: &[(&str, &str)]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_redrive"));
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("REDRIVE_")) {
        command.env_remove(name);
    }
    command.current_dir(folder).args(arguments).envs(environment.iter().copied()).stdin(Stdio::null());
    command
}

/// Runs a command to its end.
pub(crate) fn run(folder: &Path, arguments: &[&str], environment: &[(&str, &str)]) -> Output {
    redrive_command(folder, arguments, environment).output().unwrap()
}

/// Returns what a command printed on standard output.
pub(crate) fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Returns what a command printed on standard error.
pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Runs a command that must succeed, and returns its standard output.
#[track_caller]
pub(crate) fn run_ok(folder: &Path, arguments: &[&str], environment: &[(&str, &str)]) -> String {
    let output = run(folder, arguments, environment);
    assert!(output.status.success(), "{arguments:?}: {}{}", stdout(&output), stderr(&output));
    stdout(&output)
}

/// Runs a command that must fail with exit code 1, and returns its message.
#[track_caller]
pub(crate) fn run_failing(folder: &Path, arguments: &[&str], environment: &[(&str, &str)]) -> String {
    let output = run(folder, arguments, environment);
    assert_eq!(output.status.code(), Some(1), "{arguments:?}: {}{}", stdout(&output), stderr(&output));
    message(&stderr(&output))
}

/// Returns the message of a failed command, without log records.
pub(crate) fn message(stderr: &str) -> String {
    let line = stderr.lines().rev().find_map(|line| line.strip_prefix("error: "));
    line.unwrap_or_else(|| panic!("no message: {stderr}")).to_owned()
}

/// What became of a server.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Started {
    /// It listens on this URL. The process was killed.
    Listening(String),
    /// It exited with this message.
    Refused(String),
}

struct KilledOnDrop(Child);

impl Drop for KilledOnDrop {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// Starts a server and returns whether it listens.
pub(crate) fn start(folder: &Path, arguments: &[&str], environment: &[(&str, &str)]) -> Started {
    let errors = tempfile::NamedTempFile::new().unwrap();
    let mut command = redrive_command(folder, arguments, environment);
    command.stdout(Stdio::piped()).stderr(errors.reopen().unwrap());
    let mut server = KilledOnDrop(command.spawn().unwrap());
    let (sender, lines) = std::sync::mpsc::channel();
    let stdout = BufReader::new(server.0.stdout.take().unwrap());
    let reader = std::thread::spawn(move || {
        stdout.lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
    });
    let deadline = Instant::now() + WAIT_TIMEOUT;
    let mut ended = false;
    let started = loop {
        match lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(line) => {
                if let Some((_, url)) = line.split_once("is listening on ") {
                    break Some(url.to_owned());
                }
            }
            Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => {
                ended = true;
                break None;
            }
            Err(_) => break None,
        }
    };
    if ended {
        server.0.wait().unwrap();
    }
    drop(server);
    let _ = reader.join();
    let text = std::fs::read_to_string(errors.path()).unwrap();
    match started {
        Some(url) => Started::Listening(url),
        None if ended => Started::Refused(message(&text)),
        None => panic!("{arguments:?} neither listens nor exits within {WAIT_TIMEOUT:?}: {text}"),
    }
}
