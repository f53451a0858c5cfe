//! Epochs of nodes, and the rescue of leases of dead epochs.

use std::{collections::BTreeSet, sync::atomic::Ordering::Relaxed};

use redrive_core::Time;

use super::{
    Postgres, changes,
    convert::{Col, get, plain},
    leases,
    session::{Failure, Session, Tx, Values},
    write_on,
};
use crate::{
    BatchProgress, ChangeCursor, ChangeLog, Changes, ClusterView, Epoch, Hint, NewNode, Node, Nodes,
    StoreFuture,
};

/// Epochs that have leases. There are many leases and few epochs: each epoch is found by an index lookup after the
/// previous one.
const SELECT_LEASING_EPOCHS: &str = "WITH RECURSIVE leasing(epoch) AS (
         (SELECT epoch FROM leased ORDER BY epoch LIMIT 1)
         UNION ALL
         SELECT (SELECT l.epoch FROM leased l WHERE l.epoch > o.epoch ORDER BY l.epoch LIMIT 1)
         FROM leasing o WHERE o.epoch IS NOT NULL)
     SELECT epoch FROM leasing WHERE epoch IS NOT NULL";
/// Epochs that have a node row, a claimed lane or an assignment.
const SELECT_EPOCH_OWNERS: &str = "SELECT epoch FROM nodes
     UNION SELECT claimed_by FROM lanes WHERE claimed_by IS NOT NULL
     UNION SELECT epoch FROM webhook_assignments";
/// Deletes in order, since two nodes may rescue the same epoch.
const DELETE_ASSIGNMENTS: &str = "DELETE FROM webhook_assignments WHERE webhook_id = ANY(ARRAY(
         SELECT webhook_id FROM webhook_assignments WHERE epoch = $1 ORDER BY webhook_id FOR UPDATE))";
/// Locks leases by a separate statement: see [`leases::delete_leases`].
const LOCK_ORPHANS: &str =
    "SELECT delivery_id FROM leased WHERE epoch = $1 ORDER BY delivery_id LIMIT $2 FOR UPDATE";

impl Nodes for Postgres {
    fn join(&self, node: NewNode, now: Time) -> StoreFuture<'_, Epoch> {
        Box::pin(async move { write_on(&self.shared.heartbeats, |tx| join(tx, &node, now)).await })
    }

    fn heartbeat(&self, epoch: Epoch) -> StoreFuture<'_, ClusterView> {
        Box::pin(async move {
            if epoch == Epoch::NONE {
                // Reads of the node list by users must not delay a heartbeat.
                return self.read_for_user(|session| async move { read_roll(&session, false).await }).await;
            }
            let cluster = write_on(&self.shared.heartbeats, |tx| heartbeat(tx, epoch)).await?;
            Ok(ClusterView { server: self.server_identity().await, ..cluster })
        })
    }

    fn is_shared(&self) -> bool {
        true
    }

    fn other_epochs(&self, than: Epoch) -> StoreFuture<'_, Vec<Epoch>> {
        Box::pin(async move { self.read(|session| others(session, than)).await })
    }

    fn end_epoch(&self, epoch: Epoch, heartbeats: i64) -> StoreFuture<'_, bool> {
        Box::pin(async move {
            let end = "DELETE FROM nodes WHERE epoch = $1 AND heartbeats = $2";
            let ended = |tx: Tx| async move { Ok(tx.execute(end, &[&epoch.0, &heartbeats]).await? == 1) };
            write_on(&self.shared.rescues, ended).await
        })
    }

    fn rescue(&self, dead: Epoch, now: Time, limit: usize) -> StoreFuture<'_, BatchProgress> {
        Box::pin(async move {
            write_on(&self.shared.rescues, |tx| finish(tx, dead)).await?;
            let step = write_on(&self.shared.rescues, |tx| rescue(tx, dead, now, limit)).await?;
            self.shared.hints.work();
            Ok(step)
        })
    }
}

impl ChangeLog for Postgres {
    fn changes(&self, since: Option<ChangeCursor>) -> StoreFuture<'_, Changes> {
        Box::pin(async move {
            self.read(|session| {
                let since = since.clone();
                async move { changes::read_since(&session, since).await }
            })
            .await
        })
    }

    fn prune_changes(&self, before: ChangeCursor) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            self.write(|tx| {
                let before = &before;
                async move { changes::prune(&tx, before).await }
            })
            .await
        })
    }

    fn on_hint(&self, call: Box<dyn Fn(Hint) + Send + Sync>) {
        self.shared.hints.set_callback(call);
    }

    fn set_hint_transport(&self, carry: Box<dyn Fn(Hint) -> bool + Send + Sync>) {
        self.shared.hints.set_transport(carry);
    }
}

impl Postgres {
    /// Returns the identity of the server. Returns `None` if the server does not report it; after a refusal it is not
    /// asked again.
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
                        "database does not report its identity; a fail-over is detected by heartbeats only"
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

async fn heartbeat(tx: Tx, epoch: Epoch) -> Result<ClusterView, Failure> {
    let beaten =
        tx.execute("UPDATE nodes SET heartbeats = heartbeats + 1 WHERE epoch = $1", &[&epoch.0]).await?;
    read_roll(&tx, beaten == 1).await
}

async fn read_roll(session: &Session, alive: bool) -> Result<ClusterView, Failure> {
    let rows = session
        .query("SELECT epoch, name, role, pools, heartbeats, incarnation FROM nodes ORDER BY epoch", &[])
        .await?;
    let nodes = rows
        .iter()
        .map(|row| {
            let (name, role, pools, beats) = (plain(row, 1)?, get(row, 2)?, plain(row, 3)?, plain(row, 4)?);
            let (epoch, incarnation) = (Epoch(plain(row, 0)?), plain(row, 5)?);
            Ok(Node { epoch, incarnation, name, role, pools, heartbeats: beats })
        })
        .collect::<Result<_, Failure>>()?;
    // The only read of the database's clock: nodes set their clocks by it.
    let row = session.query_one("SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint", &[]).await?;
    Ok(ClusterView { alive, time: Some(Time::from_millis(plain(&row, 0)?)), server: None, nodes })
}

/// Returns the identity of the server, if the role may read it: the system identifier of its data, and the
/// timeline, which a promotion changes. Runs outside the heartbeat's transaction, which a refusal would abort.
async fn server_identity(session: Tx) -> Result<String, Failure> {
    let identity = "SELECT (SELECT system_identifier FROM pg_control_system())::text || '/'
                        || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)";
    plain(&session.query_one(identity, &[]).await?, 0)
}

async fn others(session: Tx, than: Epoch) -> Result<Vec<Epoch>, Failure> {
    let mut epochs: BTreeSet<i64> = leasing(&session).await?.into_iter().collect();
    for row in session.query(SELECT_EPOCH_OWNERS, &[]).await? {
        epochs.insert(plain(&row, 0)?);
    }
    epochs.remove(&than.0);
    Ok(epochs.into_iter().map(Epoch).collect())
}

/// Returns every epoch that has leases.
pub(super) async fn leasing(session: &Session) -> Result<Vec<i64>, Failure> {
    session.query(SELECT_LEASING_EPOCHS, &[]).await?.iter().map(|row| plain(row, 0)).collect()
}

/// Ends a dead epoch. Its node row is deleted first: from then on the node can neither record nor insert. The
/// deletion waits for transactions of the node that are about to commit.
async fn finish(tx: Tx, dead: Epoch) -> Result<(), Failure> {
    tx.execute("DELETE FROM nodes WHERE epoch = $1", &[&dead.0]).await?;
    let has_leases = "SELECT webhook_id, lane FROM lanes WHERE claimed_by = $1 ORDER BY webhook_id, lane FOR NO KEY UPDATE";
    if tx.exists(has_leases, &[&dead.0]).await? {
        tx.execute("UPDATE lanes SET claimed_by = NULL WHERE claimed_by = $1", &[&dead.0]).await?;
    }
    Ok(())
}

async fn rescue(tx: Tx, dead: Epoch, now: Time, limit: usize) -> Result<BatchProgress, Failure> {
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let rows = tx.query(LOCK_ORPHANS, &[&dead.0, &limit]).await?;
    let leases = rows.iter().map(|row| Ok((dead, get(row, 0)?))).collect::<Result<Vec<_>, Failure>>()?;
    let mut orphans = leases::delete_leases(&tx, &leases).await?;
    for orphan in &mut orphans {
        orphan.release_counts.abnormal_releases += 1;
        orphan.release_counts.crash_count += orphan.sending;
    }
    let moved_count = orphans.len();
    leases::locks_for(&orphans, |_| now).lock(&tx).await?;
    leases::return_to_lanes(&tx, orphans, |_| now, now).await?;
    let finished = (moved_count as i64) < limit;
    if finished {
        // Last, so that no other node is assigned before all leases of the dead epoch are back in their lanes.
        tx.execute(DELETE_ASSIGNMENTS, &[&dead.0]).await?;
    }
    Ok(BatchProgress { changed: moved_count, finished })
}
