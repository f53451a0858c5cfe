//! Hints between nodes by LISTEN and NOTIFY: deliveries are due, or something has changed. Hints may be lost, so
//! nodes also poll. Hints are coalesced: while one is being sent, the next one waits and covers everything that
//! happened since.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use futures_util::StreamExt;
use tokio::{sync::Notify, task::AbortHandle};
use tokio_postgres::{AsyncMessage, Client};

use super::{Options, connect::ServerConfig};
use crate::Hint;

/// Minimum time between two hints of a node.
const MIN_NOTIFY_INTERVAL: Duration = Duration::from_millis(2);
/// Delay before reconnecting.
const RECONNECT_DELAY: Duration = Duration::from_millis(500);

type HintCallback = Box<dyn Fn(Hint) + Send + Sync>;
type HintTransport = Box<dyn Fn(Hint) -> bool + Send + Sync>;

/// Hints to be sent, and the callback for received ones.
#[derive(Default)]
struct HintState {
    work: AtomicBool,
    change: AtomicBool,
    posted: Notify,
    call: OnceLock<HintCallback>,
    /// Transport that sends hints to other nodes instead of the database.
    transport: OnceLock<HintTransport>,
}

/// Sends hints and receives those of other nodes.
pub(super) struct Hints {
    board: Arc<HintState>,
    task: AbortHandle,
}

impl Drop for Hints {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Hints {
    pub(super) fn start(way: &ServerConfig, schema: &str, options: &Options) -> Self {
        let board = Arc::new(HintState::default());
        let task = HintTask {
            way: way.clone(),
            channel: format!("redrive_{schema}").chars().take(63).collect(),
            timeout: options.statement_timeout,
            board: board.clone(),
        };
        Self { board, task: tokio::spawn(task.work()).abort_handle() }
    }

    /// Sends a hint that deliveries are due.
    pub(super) fn work(&self) {
        if !self.board.try_transport(Hint::Work) {
            self.board.work.store(true, Relaxed);
            self.board.posted.notify_one();
        }
    }

    /// Sends a hint that something has changed.
    pub(super) fn change(&self) {
        if !self.board.try_transport(Hint::Change) {
            self.board.change.store(true, Relaxed);
            self.board.posted.notify_one();
        }
    }

    /// Sets the transport for hints; later calls have no effect.
    pub(super) fn set_transport(&self, carry: HintTransport) {
        let _ = self.board.transport.set(carry);
    }

    /// Sets the callback for received hints; later calls have no effect.
    pub(super) fn set_callback(&self, call: HintCallback) {
        let _ = self.board.call.set(call);
    }
}

struct HintTask {
    way: ServerConfig,
    channel: String,
    timeout: Duration,
    board: Arc<HintState>,
}

impl HintTask {
    async fn work(self) {
        loop {
            match self.way.connect().await {
                Ok((client, mut messages)) => {
                    let board = self.board.clone();
                    let hearing = async move {
                        while let Some(Ok(message)) = messages.next().await {
                            if let AsyncMessage::Notification(note) = message {
                                board.on_notify(note.payload());
                            }
                        }
                    };
                    tokio::select! {
                        () = hearing => {}
                        _ = self.send(&client) => {}
                    }
                }
                Err(error) => tracing::debug!(%error, "no connection for hints; nodes poll instead"),
            }
            tokio::time::sleep(RECONNECT_DELAY).await;
        }
    }

    async fn send(&self, client: &Client) -> Result<(), tokio_postgres::Error> {
        client.batch_execute(&format!("LISTEN \"{}\"", self.channel.replace('"', ""))).await?;
        let notify = client.prepare("SELECT pg_notify($1, $2)").await?;
        // Hints may have been missed before LISTEN.
        self.board.on_notify("work");
        self.board.on_notify("change");
        loop {
            self.board.posted.notified().await;
            for (flag, payload) in [(&self.board.work, "work"), (&self.board.change, "change")] {
                if flag.swap(false, Relaxed) {
                    let sent = async { client.execute(&notify, &[&self.channel, &payload]).await };
                    if !matches!(tokio::time::timeout(self.timeout, sent).await, Ok(Ok(_))) {
                        return Ok(());
                    }
                }
            }
            tokio::time::sleep(MIN_NOTIFY_INTERVAL).await;
        }
    }
}

impl HintState {
    /// Passes a hint to the transport, if there is one, and then calls this node's callback immediately. Returns
    /// whether the transport accepted it.
    fn try_transport(&self, hint: Hint) -> bool {
        let carried = self.transport.get().is_some_and(|carry| carry(hint));
        if carried && let Some(call) = self.call.get() {
            call(hint);
        }
        carried
    }

    fn on_notify(&self, payload: &str) {
        let hint = match payload {
            "work" => Hint::Work,
            "change" => Hint::Change,
            _ => return,
        };
        if let Some(call) = self.call.get() {
            call(hint);
        }
    }
}
