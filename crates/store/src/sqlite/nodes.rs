//! Epochs of nodes, and the rescue of leases of dead epochs.

use redrive_core::Time;
use rusqlite::Transaction;

use super::{
    Sqlite, changes, claim,
    convert::{Col, get},
    lanes::{LanePosition, ReleaseCounts},
    webhooks::{from_json, to_json},
};
use crate::{
    BatchProgress, ChangeCursor, ChangeLog, Changes, ClusterView, Epoch, Hint, NewNode, Node, Nodes,
    StoreFuture,
};

impl Nodes for Sqlite {
    fn join(&self, node: NewNode, now: Time) -> StoreFuture<'_, Epoch> {
        self.write(move |transaction| {
            transaction.execute(
                "INSERT INTO nodes (incarnation, name, role, pools, joined_at) VALUES (?, ?, ?, ?, ?)",
                (node.incarnation, node.name, Col(node.role), to_json(&node.pools)?, Col(now)),
            )?;
            Ok(Epoch(transaction.last_insert_rowid()))
        })
    }

    fn heartbeat(&self, epoch: Epoch) -> StoreFuture<'_, ClusterView> {
        self.write(move |transaction| {
            let beaten = transaction
                .prepare_cached("UPDATE nodes SET heartbeats = heartbeats + 1 WHERE epoch = ?")?
                .execute([epoch.0])?;
            let nodes = transaction
                .prepare_cached(
                    "SELECT epoch, name, role, pools, heartbeats, incarnation FROM nodes ORDER BY epoch",
                )?
                .query_map((), |row| {
                    Ok(Node {
                        epoch: Epoch(row.get(0)?),
                        name: row.get(1)?,
                        role: get(row, 2)?,
                        pools: from_json(row, 3)?,
                        heartbeats: row.get(4)?,
                        incarnation: row.get(5)?,
                    })
                })?
                .collect::<rusqlite::Result<_>>()?;
            Ok(ClusterView { alive: beaten == 1, time: None, server: None, nodes })
        })
    }

    fn is_shared(&self) -> bool {
        self.shared
    }

    fn other_epochs(&self, than: Epoch) -> StoreFuture<'_, Vec<Epoch>> {
        self.read(move |connection| {
            connection
                .prepare_cached(
                    "SELECT epoch FROM nodes WHERE epoch <> ?1
                     UNION SELECT epoch FROM leased WHERE epoch <> ?1
                     UNION SELECT claimed_by FROM lanes WHERE claimed_by IS NOT NULL AND claimed_by <> ?1
                     UNION SELECT epoch FROM webhook_assignments WHERE epoch <> ?1",
                )?
                .query_map([than.0], |row| row.get(0).map(Epoch))?
                .collect()
        })
    }

    fn end_epoch(&self, epoch: Epoch, heartbeats: i64) -> StoreFuture<'_, bool> {
        self.write(move |transaction| {
            let end = "DELETE FROM nodes WHERE epoch = ? AND heartbeats = ?";
            transaction.execute(end, (epoch.0, heartbeats)).map(|ended| ended == 1)
        })
    }

    fn rescue(&self, dead: Epoch, now: Time, limit: usize) -> StoreFuture<'_, BatchProgress> {
        self.write(move |transaction| {
            // The node row first: from here on the dead epoch can neither record nor insert.
            transaction.execute("DELETE FROM nodes WHERE epoch = ?", [dead.0])?;
            transaction.execute("UPDATE lanes SET claimed_by = NULL WHERE claimed_by = ?", [dead.0])?;
            let orphans = take_orphans(transaction, dead, limit)?;
            for orphan in &orphans {
                let cancel = orphan.cancel.as_deref();
                claim::return_to_lane(
                    transaction,
                    &orphan.position,
                    orphan.release_counts,
                    cancel,
                    now,
                    now,
                )?;
            }
            let finished = orphans.len() < limit;
            if finished {
                // Last, so that no other node is assigned before all leases of the dead epoch are back in their lanes.
                transaction.execute("DELETE FROM webhook_assignments WHERE epoch = ?", [dead.0])?;
            }
            Ok(BatchProgress { changed: orphans.len(), finished })
        })
    }
}

impl ChangeLog for Sqlite {
    fn changes(&self, since: Option<ChangeCursor>) -> StoreFuture<'_, Changes> {
        if !self.shared {
            return Box::pin(async { Ok(Changes { cursor: ChangeCursor::at(0), changes: Vec::new() }) });
        }
        self.read(move |connection| changes::read_since(connection, since.as_ref()))
    }

    fn prune_changes(&self, before: ChangeCursor) -> StoreFuture<'_, ()> {
        self.write(move |transaction| changes::prune(transaction, &before))
    }

    fn on_hint(&self, _call: Box<dyn Fn(Hint) + Send + Sync>) {}

    fn set_hint_transport(&self, _carry: Box<dyn Fn(Hint) -> bool + Send + Sync>) {}
}

/// Returns whether an epoch has a node row. Only then may it create leases.
pub(super) fn is_live(transaction: &Transaction<'_>, epoch: Epoch) -> rusqlite::Result<bool> {
    transaction.prepare_cached("SELECT 1 FROM nodes WHERE epoch = ?")?.exists([epoch.0])
}

struct Orphan {
    position: LanePosition,
    release_counts: ReleaseCounts,
    cancel: Option<String>,
}

fn take_orphans(transaction: &Transaction<'_>, dead: Epoch, limit: usize) -> rusqlite::Result<Vec<Orphan>> {
    transaction
        .prepare_cached(
            "DELETE FROM leased WHERE delivery_id IN (SELECT delivery_id FROM leased WHERE epoch = ? LIMIT ?)
             RETURNING delivery_id, webhook_id, lane, seq, abnormal_releases, crash_count, sending, cancel",
        )?
        .query_map((dead.0, limit as i64), |row| {
            let position = LanePosition {
                delivery_id: get(row, 0)?,
                webhook_id: get(row, 1)?,
                lane: get(row, 2)?,
                seq: row.get(3)?,
            };
            let sending: u32 = row.get(6)?;
            let release_counts = ReleaseCounts {
                abnormal_releases: row.get::<_, u32>(4)? + 1,
                crash_count: row.get::<_, u32>(5)? + sending,
            };
            Ok(Orphan { position, release_counts, cancel: row.get(7)? })
        })?
        .collect()
}
