//! Hints between nodes, by LISTEN and NOTIFY: that something is due, or has changed. They may be lost, so
//! everybody also looks now and then. However much happens, few are sent: while one is on its way, the next
//! waits and stands for all that came meanwhile.

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

use super::{Options, connect::Way};
use crate::Hint;

/// The least time between two hints of a node.
const PAUSE: Duration = Duration::from_millis(2);
/// How long to wait before connecting again.
const AGAIN: Duration = Duration::from_millis(500);

type Call = Box<dyn Fn(Hint) + Send + Sync>;
type Carry = Box<dyn Fn(Hint) -> bool + Send + Sync>;

/// What is to be told, and who wants to be told.
#[derive(Default)]
struct Board {
    work: AtomicBool,
    change: AtomicBool,
    posted: Notify,
    call: OnceLock<Call>,
    /// Whoever takes hints to the others in the database's stead.
    carry: OnceLock<Carry>,
}

/// Sends hints and hears those of others.
pub(super) struct Hints {
    board: Arc<Board>,
    task: AbortHandle,
}

impl Drop for Hints {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Hints {
    pub(super) fn start(way: &Way, schema: &str, options: &Options) -> Self {
        let board = Arc::new(Board::default());
        let desk = Desk {
            way: way.clone(),
            channel: format!("redrive_{schema}").chars().take(63).collect(),
            patience: options.statement_timeout,
            board: board.clone(),
        };
        Self { board, task: tokio::spawn(desk.work()).abort_handle() }
    }

    /// Something waits and is due.
    pub(super) fn work(&self) {
        if !self.board.is_carried(Hint::Work) {
            self.board.work.store(true, Relaxed);
            self.board.posted.notify_one();
        }
    }

    /// Something has changed.
    pub(super) fn change(&self) {
        if !self.board.is_carried(Hint::Change) {
            self.board.change.store(true, Relaxed);
            self.board.posted.notify_one();
        }
    }

    /// Who takes hints to the others; the first one counts.
    pub(super) fn carry(&self, carry: Carry) {
        let _ = self.board.carry.set(carry);
    }

    /// Whom to tell; the first one counts.
    pub(super) fn tell(&self, call: Call) {
        let _ = self.board.call.set(call);
    }
}

struct Desk {
    way: Way,
    channel: String,
    patience: Duration,
    board: Arc<Board>,
}

impl Desk {
    async fn work(self) {
        loop {
            match self.way.connect().await {
                Ok((client, mut messages)) => {
                    let board = self.board.clone();
                    let hearing = async move {
                        while let Some(Ok(message)) = messages.next().await {
                            if let AsyncMessage::Notification(note) = message {
                                board.heard(note.payload());
                            }
                        }
                    };
                    tokio::select! {
                        () = hearing => {}
                        _ = self.send(&client) => {}
                    }
                }
                Err(error) => tracing::debug!(%error, "no connection for hints; nodes look by themselves"),
            }
            tokio::time::sleep(AGAIN).await;
        }
    }

    async fn send(&self, client: &Client) -> Result<(), tokio_postgres::Error> {
        client.batch_execute(&format!("LISTEN \"{}\"", self.channel.replace('"', ""))).await?;
        let notify = client.prepare("SELECT pg_notify($1, $2)").await?;
        // Something may have happened while nobody listened.
        self.board.heard("work");
        self.board.heard("change");
        loop {
            self.board.posted.notified().await;
            for (flag, payload) in [(&self.board.work, "work"), (&self.board.change, "change")] {
                if flag.swap(false, Relaxed) {
                    let sent = async { client.execute(&notify, &[&self.channel, &payload]).await };
                    if !matches!(tokio::time::timeout(self.patience, sent).await, Ok(Ok(_))) {
                        return Ok(());
                    }
                }
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}

impl Board {
    /// Whether somebody else takes a hint to the other nodes. This one hears it at once.
    fn is_carried(&self, hint: Hint) -> bool {
        let carried = self.carry.get().is_some_and(|carry| carry(hint));
        if carried && let Some(call) = self.call.get() {
            call(hint);
        }
        carried
    }

    fn heard(&self, payload: &str) {
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
