//! Epochs, and giving back what a dead one had.

use std::{collections::BTreeSet, sync::atomic::Ordering::Relaxed};

use redrive_core::Time;

use super::{
    Postgres, changes,
    convert::{Col, get, plain},
    leases,
    session::{Failure, Session, Tx, Values},
    write_on,
};
use crate::{Answer, Changes, Epoch, Hint, Mark, NewNode, Node, Nodes, Roll, Step};

/// Every epoch that has leases. Those are many, epochs are few: each is looked up after the one before it.
const LEASING: &str = "WITH RECURSIVE leasing(epoch) AS (
         (SELECT epoch FROM leased ORDER BY epoch LIMIT 1)
         UNION ALL
         SELECT (SELECT l.epoch FROM leased l WHERE l.epoch > o.epoch ORDER BY l.epoch LIMIT 1)
         FROM leasing o WHERE o.epoch IS NOT NULL)
     SELECT epoch FROM leasing WHERE epoch IS NOT NULL";
/// Everybody who has anything else.
const OWNERS: &str = "SELECT epoch FROM nodes
     UNION SELECT held_by FROM lanes WHERE held_by IS NOT NULL
     UNION SELECT epoch FROM homes";
/// In their order: two nodes may rescue the same epoch.
const DELETE_HOMES: &str = "DELETE FROM homes WHERE webhook = ANY(ARRAY(
         SELECT webhook FROM homes WHERE epoch = $1 ORDER BY webhook FOR UPDATE))";
/// A statement of its own locks them: see [`leases::take_leases`].
const LOCK_ORPHANS: &str =
    "SELECT delivery FROM leased WHERE epoch = $1 ORDER BY delivery LIMIT $2 FOR UPDATE";

impl Nodes for Postgres {
    fn join(&self, node: NewNode, now: Time) -> Answer<'_, Epoch> {
        Box::pin(async move { write_on(&self.shared.heartbeats, |tx| join(tx, &node, now)).await })
    }

    fn beat(&self, epoch: Epoch) -> Answer<'_, Roll> {
        Box::pin(async move {
            if epoch == Epoch::NONE {
                // Users ask for the list of nodes. They must not delay a heartbeat.
                return self.read_for_user(|session| async move { read_roll(&session, false).await }).await;
            }
            let roll = write_on(&self.shared.heartbeats, |tx| beat(tx, epoch)).await?;
            Ok(Roll { server: self.server_identity().await, ..roll })
        })
    }

    fn is_shared(&self) -> bool {
        true
    }

    fn others(&self, than: Epoch) -> Answer<'_, Vec<Epoch>> {
        Box::pin(async move { self.read(|session| others(session, than)).await })
    }

    fn end(&self, epoch: Epoch, beats: i64) -> Answer<'_, bool> {
        Box::pin(async move {
            let end = "DELETE FROM nodes WHERE epoch = $1 AND beats = $2";
            let ended = |tx: Tx| async move { Ok(tx.execute(end, &[&epoch.0, &beats]).await? == 1) };
            write_on(&self.shared.rescues, ended).await
        })
    }

    fn rescue(&self, dead: Epoch, now: Time, limit: usize) -> Answer<'_, Step> {
        Box::pin(async move {
            write_on(&self.shared.rescues, |tx| finish(tx, dead)).await?;
            let step = write_on(&self.shared.rescues, |tx| rescue(tx, dead, now, limit)).await?;
            self.shared.hints.work();
            Ok(step)
        })
    }

    fn changes(&self, since: Option<Mark>) -> Answer<'_, Changes> {
        Box::pin(async move {
            self.read(|session| {
                let since = since.clone();
                async move { changes::since(&session, since).await }
            })
            .await
        })
    }

    fn forget_changes(&self, before: Mark) -> Answer<'_, ()> {
        Box::pin(async move {
            self.write(|tx| {
                let before = &before;
                async move { changes::forget(&tx, before).await }
            })
            .await
        })
    }

    fn on_hint(&self, call: Box<dyn Fn(Hint) + Send + Sync>) {
        self.shared.hints.tell(call);
    }

    fn carry_hints(&self, carry: Box<dyn Fn(Hint) -> bool + Send + Sync>) {
        self.shared.hints.carry(carry);
    }
}

impl Postgres {
    /// Which server this is. Returns `None` where the server does not say, and does not ask it again if it refuses.
    async fn server_identity(&self) -> Option<String> {
        if self.shared.hides_identity.load(Relaxed) {
            return None;
        }
        match self.shared.heartbeats.read(server_identity).await {
            Ok(identity) => Some(identity),
            Err(failure) => {
                if failure.is_refusal() {
                    self.shared.hides_identity.store(true, Relaxed);
                    tracing::warn!(
                        error = %failure,
                        "database does not report its identity; a fail-over is noticed by heartbeats alone"
                    );
                }
                None
            }
        }
    }
}

async fn join(tx: Tx, node: &NewNode, now: Time) -> Result<Epoch, Failure> {
    let joined = "INSERT INTO nodes (epoch, name, role, pools, joined_at, incarnation)
         VALUES ((nextval('node_numbers') << 16) + ($5::bigint & 65535), $1, $2, $3, $4, $5) RETURNING epoch";
    let values: Values<'_> = &[&node.name, &Col(node.role), &node.pools, &Col(now), &node.incarnation];
    let row = tx.query_one(joined, values).await?;
    Ok(Epoch(plain(&row, 0)?))
}

async fn beat(tx: Tx, epoch: Epoch) -> Result<Roll, Failure> {
    let beaten = tx.execute("UPDATE nodes SET beats = beats + 1 WHERE epoch = $1", &[&epoch.0]).await?;
    read_roll(&tx, beaten == 1).await
}

async fn read_roll(session: &Session, alive: bool) -> Result<Roll, Failure> {
    let rows = session
        .query("SELECT epoch, name, role, pools, beats, incarnation FROM nodes ORDER BY epoch", &[])
        .await?;
    let nodes = rows
        .iter()
        .map(|row| {
            let (name, role, pools, beats) = (plain(row, 1)?, get(row, 2)?, plain(row, 3)?, plain(row, 4)?);
            let (epoch, incarnation) = (Epoch(plain(row, 0)?), plain(row, 5)?);
            Ok(Node { epoch, incarnation, name, role, pools, beats })
        })
        .collect::<Result<_, Failure>>()?;
    // The one place that asks the database what time it is: nodes set their clocks by it.
    let row = session.query_one("SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint", &[]).await?;
    Ok(Roll { alive, time: Some(Time::from_millis(plain(&row, 0)?)), server: None, nodes })
}

/// Which server this is, as long as its role may ask: what identifies its data, and the timeline that a promotion
/// changes. Asked outside of the transaction, since a server that refuses the question would abort it.
async fn server_identity(session: Tx) -> Result<String, Failure> {
    let identity = "SELECT (SELECT system_identifier FROM pg_control_system())::text || '/'
                        || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)";
    plain(&session.query_one(identity, &[]).await?, 0)
}

async fn others(session: Tx, than: Epoch) -> Result<Vec<Epoch>, Failure> {
    let mut epochs: BTreeSet<i64> = leasing(&session).await?.into_iter().collect();
    for row in session.query(OWNERS, &[]).await? {
        epochs.insert(plain(&row, 0)?);
    }
    epochs.remove(&than.0);
    Ok(epochs.into_iter().map(Epoch).collect())
}

/// Every epoch that has leases.
pub(super) async fn leasing(session: &Session) -> Result<Vec<i64>, Failure> {
    session.query(LEASING, &[]).await?.iter().map(|row| plain(row, 0)).collect()
}

/// First the row: from here on the dead one can neither record nor insert. Whatever it was about to commit is
/// waited for.
async fn finish(tx: Tx, dead: Epoch) -> Result<(), Failure> {
    tx.execute("DELETE FROM nodes WHERE epoch = $1", &[&dead.0]).await?;
    let held = "SELECT webhook, lane FROM lanes WHERE held_by = $1 ORDER BY webhook, lane FOR NO KEY UPDATE";
    if tx.exists(held, &[&dead.0]).await? {
        tx.execute("UPDATE lanes SET held_by = NULL WHERE held_by = $1", &[&dead.0]).await?;
    }
    Ok(())
}

async fn rescue(tx: Tx, dead: Epoch, now: Time, limit: usize) -> Result<Step, Failure> {
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let rows = tx.query(LOCK_ORPHANS, &[&dead.0, &limit]).await?;
    let leases = rows.iter().map(|row| Ok((dead, get(row, 0)?))).collect::<Result<Vec<_>, Failure>>()?;
    let mut orphans = leases::take_leases(&tx, &leases).await?;
    for orphan in &mut orphans {
        orphan.rescued.rescues += 1;
        orphan.rescued.deaths += orphan.sending;
    }
    let moved = orphans.len();
    leases::locks_for(&orphans, |_| now).lock(&tx).await?;
    leases::give_back(&tx, orphans, |_| now, now).await?;
    let finished = (moved as i64) < limit;
    if finished {
        // Last: nobody else is at home there before all that the dead one had is back.
        tx.execute(DELETE_HOMES, &[&dead.0]).await?;
    }
    Ok(Step { moved, finished })
}
