//! Which deliveries did not simply arrive, so that they are found among millions that did. Whoever changes how
//! a delivery stands, other than delivering it at the first attempt, tells here in the same transaction.

use redrive_core::{DeliveryId, DeliveryStatus};

use super::{
    convert::Col,
    session::{Failure, Session},
};

macro_rules! take_over {
    ($which:literal) => {
        concat!(
            "INSERT INTO undelivered (delivery, tenant, webhook, status, category, code)
     SELECT id, tenant, webhook, status, failure_category, last_status_code FROM deliveries
     WHERE status <> $1 AND (status <> $2 OR failure_category IS NOT NULL)",
            $which,
            " ON CONFLICT (delivery) DO UPDATE SET status = excluded.status, category = excluded.category,
            code = excluded.code
     WHERE (undelivered.status, undelivered.category, undelivered.code)
         IS DISTINCT FROM (excluded.status, excluded.category, excluded.code)"
        )
    };
}
const NOTE: &str = take_over!(" AND id = ANY($3::uuid[])");
/// For all there are, which are not there yet.
pub(super) const NOTE_ALL: &str = take_over!("");
const CLEAR: &str = "DELETE FROM undelivered WHERE delivery = ANY($1::uuid[])";

/// The statements whose cost must follow what they change: a test explains their plans.
#[cfg(feature = "conformance")]
pub(super) const PLANNED: [(&str, &str); 2] = [("note what failed", NOTE), ("note what arrived", CLEAR)];

/// Notes how deliveries stand that have failed so far, or are over without having arrived.
pub(super) async fn note(tx: &Session, deliveries: &[Col<DeliveryId>]) -> Result<(), Failure> {
    if !deliveries.is_empty() {
        let (delivered, pending) = (Col(DeliveryStatus::Delivered), Col(DeliveryStatus::Pending));
        tx.execute(NOTE, &[&delivered, &pending, &deliveries]).await?;
    }
    Ok(())
}

/// Notes that deliveries have arrived after all.
pub(super) async fn clear(tx: &Session, deliveries: &[Col<DeliveryId>]) -> Result<(), Failure> {
    if !deliveries.is_empty() {
        tx.execute(CLEAR, &[&deliveries]).await?;
    }
    Ok(())
}
