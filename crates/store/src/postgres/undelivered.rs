//! Index of deliveries that failed so far, are dead or were cancelled, so that they are found among millions of
//! successful ones. Every transaction that changes a delivery's state, other than a success at the first attempt,
//! must update it.

use redrive_core::{DeliveryId, DeliveryStatus};

use super::{
    convert::Col,
    session::{Failure, Session},
};

macro_rules! take_over {
    ($which:literal) => {
        concat!(
            "INSERT INTO undelivered (delivery_id, tenant_id, webhook_id, status, category, code)
     SELECT id, tenant_id, webhook_id, status, failure_category, last_status_code FROM deliveries
     WHERE status <> $1 AND (status <> $2 OR failure_category IS NOT NULL)",
            $which,
            " ON CONFLICT (delivery_id) DO UPDATE SET status = excluded.status, category = excluded.category,
            code = excluded.code
     WHERE (undelivered.status, undelivered.category, undelivered.code)
         IS DISTINCT FROM (excluded.status, excluded.category, excluded.code)"
        )
    };
}
const INSERT_UNDELIVERED: &str = take_over!(" AND id = ANY($3::uuid[])");
/// Inserts rows for all deliveries, after a copy.
pub(super) const INSERT_ALL_UNDELIVERED: &str = take_over!("");
const DELETE_UNDELIVERED: &str = "DELETE FROM undelivered WHERE delivery_id = ANY($1::uuid[])";

/// Statements whose cost must be proportional to the rows they change; a test checks their query plans.
#[cfg(feature = "conformance")]
pub(super) const PLANNED_STATEMENTS: [(&str, &str); 2] =
    [("insert undelivered", INSERT_UNDELIVERED), ("delete undelivered", DELETE_UNDELIVERED)];

/// Inserts or updates rows of deliveries that have failed so far, are dead or were cancelled.
pub(super) async fn record(tx: &Session, deliveries: &[Col<DeliveryId>]) -> Result<(), Failure> {
    if !deliveries.is_empty() {
        let (delivered, pending) = (Col(DeliveryStatus::Delivered), Col(DeliveryStatus::Pending));
        tx.execute(INSERT_UNDELIVERED, &[&delivered, &pending, &deliveries]).await?;
    }
    Ok(())
}

/// Deletes the rows of deliveries that were delivered after all.
pub(super) async fn clear(tx: &Session, deliveries: &[Col<DeliveryId>]) -> Result<(), Failure> {
    if !deliveries.is_empty() {
        tx.execute(DELETE_UNDELIVERED, &[&deliveries]).await?;
    }
    Ok(())
}
