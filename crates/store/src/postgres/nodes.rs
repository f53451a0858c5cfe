//! Epochs, and giving back what a dead one had.

use std::collections::BTreeSet;

use redrive_core::Time;

use super::{
    Postgres, changes,
    convert::{Col, get, plain},
    leases,
    session::{Failure, Session, Tx},
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
const ORPHANS: &str = "DELETE FROM leased WHERE epoch = $1 AND ctid = ANY(ARRAY(
         SELECT ctid FROM leased WHERE epoch = $1 ORDER BY delivery LIMIT $2 FOR UPDATE))
     RETURNING delivery, webhook, lane, seq, rescues + 1, deaths, sending, cancel";

impl Nodes for Postgres {
    fn join(&self, node: NewNode, now: Time) -> Answer<'_, Epoch> {
        Box::pin(async move { self.write(|tx| join(tx, &node, now)).await })
    }

    fn beat(&self, epoch: Epoch) -> Answer<'_, Roll> {
        Box::pin(async move { self.write(|tx| beat(tx, epoch)).await })
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
            self.write(|tx| async move { Ok(tx.execute(end, &[&epoch.0, &beats]).await? == 1) }).await
        })
    }

    fn rescue(&self, dead: Epoch, now: Time, limit: usize) -> Answer<'_, Step> {
        Box::pin(async move {
            self.write(|tx| finish(tx, dead)).await?;
            let step = self.write(|tx| rescue(tx, dead, now, limit)).await?;
            self.shared.hints.work();
            Ok(step)
        })
    }

    fn changes(&self, since: Option<Mark>) -> Answer<'_, Changes> {
        Box::pin(
            async move { self.read(|session| async move { changes::since(&session, since).await }).await },
        )
    }

    fn forget_changes(&self, before: Mark) -> Answer<'_, ()> {
        Box::pin(async move { self.write(|tx| async move { changes::forget(&tx, before).await }).await })
    }

    fn on_hint(&self, call: Box<dyn Fn(Hint) + Send + Sync>) {
        self.shared.hints.tell(call);
    }

    fn carry_hints(&self, carry: Box<dyn Fn(Hint) -> bool + Send + Sync>) {
        self.shared.hints.carry(carry);
    }
}

async fn join(tx: Tx, node: &NewNode, now: Time) -> Result<Epoch, Failure> {
    let joined = "INSERT INTO nodes (name, role, pools, joined_at) VALUES ($1, $2, $3, $4) RETURNING epoch";
    let row = tx.query_one(joined, &[&node.name, &Col(node.role), &node.pools, &Col(now)]).await?;
    Ok(Epoch(plain(&row, 0)?))
}

async fn beat(tx: Tx, epoch: Epoch) -> Result<Roll, Failure> {
    let beaten = tx.execute("UPDATE nodes SET beats = beats + 1 WHERE epoch = $1", &[&epoch.0]).await?;
    let rows = tx.query("SELECT epoch, name, role, pools, beats FROM nodes ORDER BY epoch", &[]).await?;
    let nodes = rows
        .iter()
        .map(|row| {
            let (name, role, pools, beats) = (plain(row, 1)?, get(row, 2)?, plain(row, 3)?, plain(row, 4)?);
            Ok(Node { epoch: Epoch(plain(row, 0)?), name, role, pools, beats })
        })
        .collect::<Result<_, Failure>>()?;
    // The one place that asks the database what time it is: nodes set their clocks by it.
    let row = tx.query_one("SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint", &[]).await?;
    Ok(Roll { alive: beaten == 1, time: Some(Time::from_millis(plain(&row, 0)?)), nodes })
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
    let held = "SELECT webhook, lane FROM lanes WHERE held_by = $1 ORDER BY webhook, lane FOR UPDATE";
    if tx.exists(held, &[&dead.0]).await? {
        tx.execute("UPDATE lanes SET held_by = NULL WHERE held_by = $1", &[&dead.0]).await?;
    }
    Ok(())
}

async fn rescue(tx: Tx, dead: Epoch, now: Time, limit: usize) -> Result<Step, Failure> {
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let rows = tx.query(ORPHANS, &[&dead.0, &limit]).await?;
    let mut orphans = rows.iter().map(leases::read_orphan).collect::<Result<Vec<_>, _>>()?;
    for orphan in &mut orphans {
        orphan.rescued.deaths += orphan.sending;
    }
    let moved = orphans.len();
    leases::give_back(&tx, orphans, |_| now, now).await?;
    let finished = (moved as i64) < limit;
    if finished {
        // Last: nobody else is at home there before all that the dead one had is back.
        tx.execute("DELETE FROM homes WHERE epoch = $1", &[&dead.0]).await?;
    }
    Ok(Step { moved, finished })
}
