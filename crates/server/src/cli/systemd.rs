//! Tells systemd about the state of the process, and takes the socket that systemd passes. Without systemd each of these
//! does nothing.

use std::{io, net::TcpListener, time::Duration};

use sd_notify::NotifyState;

/// Reports that requests are accepted, and keeps the watchdog alive from then on.
///
/// The watchdog messages come from a task, so systemd restarts a process whose runtime no longer runs its tasks.
pub(super) fn notify_ready() {
    notify(&[NotifyState::Ready]);
    let Some(timeout) = sd_notify::watchdog_enabled().filter(|timeout| !timeout.is_zero()) else { return };
    tokio::spawn(async move {
        let mut interval = tokio::time::interval(message_interval(timeout));
        loop {
            interval.tick().await;
            notify(&[NotifyState::Watchdog]);
        }
    });
}

/// Two messages may be late before systemd restarts the process.
fn message_interval(timeout: Duration) -> Duration {
    timeout / 3
}

/// Reports that the process drains and will exit.
pub(super) fn notify_stopping() {
    notify(&[NotifyState::Stopping]);
}

/// Reports that the settings are read again. [`notify_reloaded`] must follow.
pub(super) fn notify_reloading() {
    // systemd ignores the message without the time.
    if let Ok(now) = NotifyState::monotonic_usec_now() {
        notify(&[NotifyState::Reloading, now]);
    }
}

/// Reports that reading the settings has ended.
pub(super) fn notify_reloaded() {
    notify(&[NotifyState::Ready]);
}

fn notify(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::debug!(%error, "notifying systemd failed");
    }
}

/// Returns the first listening socket that systemd passed to this process, in non-blocking mode.
pub(super) fn take_listener() -> io::Result<Option<TcpListener>> {
    let listener = listenfd::ListenFd::from_env().take_tcp_listener(0)?;
    if let Some(listener) = &listener {
        listener.set_nonblocking(true)?;
    }
    Ok(listener)
}
