//! What systemd sees of the process: readiness, watchdog, reload and stop, and the socket that it passes.

use std::{
    os::unix::{fs::PermissionsExt, net::UnixDatagram},
    path::{Path, PathBuf},
};

use redrive_testkit::{Redrive, Setup, WAIT_TIMEOUT};

/// The socket at which systemd would listen.
struct NotifySocket {
    socket: UnixDatagram,
    path: PathBuf,
}

impl NotifySocket {
    fn bind(folder: &Path) -> Self {
        let path = folder.join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_read_timeout(Some(WAIT_TIMEOUT)).unwrap();
        Self { socket, path }
    }

    fn setup(&self) -> Setup {
        Setup::new().command("serve").env("NOTIFY_SOCKET", self.path.to_str().unwrap())
    }

    /// Returns the next message, as lines.
    fn next(&self) -> Vec<String> {
        let mut bytes = [0; 4_096];
        let length = self.socket.recv(&mut bytes).expect("no message to systemd");
        String::from_utf8_lossy(&bytes[..length]).lines().map(str::to_owned).collect()
    }

    /// Returns the next message that is no watchdog message.
    fn next_state(&self) -> Vec<String> {
        std::iter::repeat_with(|| self.next()).find(|lines| lines != &["WATCHDOG=1"]).unwrap()
    }
}

/// Writes a program that changes its environment or its open files, then becomes the binary.
fn wrapper(folder: &Path, text: &str) -> PathBuf {
    let path = folder.join("wrapper");
    let binary = redrive_testkit::binary().display().to_string();
    std::fs::write(&path, text.replace("BINARY", &binary)).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path
}

#[tokio::test(flavor = "multi_thread")]
async fn readiness_reload_and_stop_are_reported_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let systemd = NotifySocket::bind(folder.path());
    let mut server = Redrive::start_with(systemd.setup()).await;
    assert_eq!(systemd.next(), ["READY=1"]);
    assert_eq!(server.api().get("/readyz").await.status, 200, "it is ready when it says so");
    for _ in 0..2 {
        server.signal("HUP");
        let reloading = systemd.next();
        assert_eq!(reloading[0], "RELOADING=1");
        let time = reloading[1].strip_prefix("MONOTONIC_USEC=").expect("systemd needs the time");
        assert!(time.parse::<u64>().unwrap() > 0);
        assert_eq!(systemd.next(), ["READY=1"]);
    }
    server.signal("TERM");
    assert_eq!(systemd.next(), ["STOPPING=1"]);
    assert!(server.wait_exit(WAIT_TIMEOUT).await.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn watchdog_is_kept_alive_only_while_tasks_run() {
    let folder = tempfile::tempdir().unwrap();
    let systemd = NotifySocket::bind(folder.path());
    let script = "#!/bin/sh\nWATCHDOG_PID=$$ exec BINARY \"$@\"\n";
    let setup = systemd.setup().env("WATCHDOG_USEC", "300000").binary(wrapper(folder.path(), script));
    let server = Redrive::start_with(setup).await;
    assert_eq!(systemd.next_state(), ["READY=1"]);
    for _ in 0..5 {
        assert_eq!(systemd.next(), ["WATCHDOG=1"]);
    }
    server.signal("STOP");
    // One may have been sent before the process stopped.
    systemd.socket.set_nonblocking(true).unwrap();
    while systemd.socket.recv(&mut [0; 64]).is_ok() {}
    systemd.socket.set_nonblocking(false).unwrap();
    systemd.socket.set_read_timeout(Some(std::time::Duration::from_millis(600))).unwrap();
    assert!(systemd.socket.recv(&mut [0; 64]).is_err(), "a process that does nothing sends nothing");
    systemd.socket.set_read_timeout(Some(WAIT_TIMEOUT)).unwrap();
    server.signal("CONT");
    assert_eq!(systemd.next(), ["WATCHDOG=1"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn watchdog_of_another_process_is_ignored() {
    let folder = tempfile::tempdir().unwrap();
    let systemd = NotifySocket::bind(folder.path());
    let server =
        Redrive::start_with(systemd.setup().env("WATCHDOG_USEC", "30000").env("WATCHDOG_PID", "1")).await;
    assert_eq!(systemd.next(), ["READY=1"]);
    server.signal("HUP");
    assert_eq!(systemd.next()[0], "RELOADING=1", "no watchdog message comes before it");
}

/// Listens on a free port, queues a connection, and passes the socket as systemd does.
const ACTIVATION: &str = r#"#!/usr/bin/env python3
import os, socket, sys
listener = socket.socket()
listener.bind(("127.0.0.1", 0))
listener.listen(16)
open("port", "w").write(str(listener.getsockname()[1]))
if listener.fileno() != 3:
    os.dup2(listener.fileno(), 3)
os.set_inheritable(3, True)
os.environ.update(LISTEN_FDS="1", LISTEN_PID=LISTEN_PID_VALUE)
os.execv("BINARY", ["BINARY", *sys.argv[1:]])
"#;

#[tokio::test(flavor = "multi_thread")]
async fn passed_socket_is_used_instead_of_the_listen_address() {
    let folder = tempfile::tempdir().unwrap();
    let script = ACTIVATION.replace("LISTEN_PID_VALUE", "str(os.getpid())");
    // The process could not listen there itself.
    let setup = Setup::new().command("serve").listen("192.0.2.1:80").binary(wrapper(folder.path(), &script));
    let mut server = Redrive::start_with(setup).await;
    let port = std::fs::read_to_string(server.data_dir().join("port")).unwrap();
    assert_eq!(server.address().port().to_string(), port);
    assert_eq!(server.api().get("/readyz").await.status, 200);
    server.signal("TERM");
    assert!(server.wait_exit(WAIT_TIMEOUT).await.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn socket_passed_to_another_process_is_ignored() {
    let folder = tempfile::tempdir().unwrap();
    let script = ACTIVATION.replace("LISTEN_PID_VALUE", "\"1\"");
    let setup = Setup::new().command("serve").binary(wrapper(folder.path(), &script));
    let server = Redrive::start_with(setup).await;
    let port = std::fs::read_to_string(server.data_dir().join("port")).unwrap();
    assert_ne!(server.address().port().to_string(), port);
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_notify_socket_does_not_stop_the_server() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("nothing-listens").display().to_string();
    let mut server = Redrive::start_with(Setup::new().command("serve").env("NOTIFY_SOCKET", path)).await;
    assert_eq!(server.api().get("/readyz").await.status, 200);
    server.signal("TERM");
    assert!(server.wait_exit(WAIT_TIMEOUT).await.success());
}
