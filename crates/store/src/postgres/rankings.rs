//! Rankings of the tenants and webhooks of the whole store.
//!
//! Dead letters are counted in bounded reads in the order of an index. Rollups are read by tenant, so that only those of the requested
//! minutes are touched.

use redrive_core::{
    TenantId, WebhookId,
    protection::breaker::{CircuitState, SavedCircuit},
    statistics::traffic::Resolution,
};
use tokio_postgres::Row;

use super::{
    Postgres,
    convert::{Col, get, plain},
    session::{Failure, Tx, Values},
};
use crate::{
    AttemptSums, DeadLetterRanking, Rankings, StoreFuture, TrafficRanking, TrafficRankingRequest,
    UnclosedCircuit, WebhookOfTenant,
    model::{
        DEAD_LETTERS_PER_READ, DeadLetterCount, DeadLetterCursor, DeadLetterSums, TENANTS_PER_READ, in_order,
    },
};

/// Counts the dead letters after one in the order of an index. The server may have no maximum of ids.
const COUNT_DEAD: &str =
    "SELECT (SELECT d.tenant_id FROM dead d WHERE d.delivery_id = counted.last LIMIT 1), webhook_id, n, last
     FROM (SELECT webhook_id, count(*) AS n, max(delivery_id::text COLLATE \"C\")::uuid AS last
           FROM (SELECT d.webhook_id, d.delivery_id FROM dead d WHERE (d.webhook_id, d.delivery_id) > ($1, $2)
                 ORDER BY d.webhook_id, d.delivery_id LIMIT $3) page
           GROUP BY webhook_id OFFSET 0) AS counted
     ORDER BY webhook_id";
const RANK_TENANTS: &str = "SELECT tenant_id, attempts, failures, dead, all_attempts, all_failures, failing, all_dead, dying,
         by_failures, by_dead
     FROM (SELECT *, (sum(attempts) OVER ())::bigint AS all_attempts,
               (sum(failures) OVER ())::bigint AS all_failures,
               count(*) FILTER (WHERE attempts >= $5 AND 100 * failures > $4 * attempts) OVER () AS failing,
               (sum(dead) OVER ())::bigint AS all_dead, count(*) FILTER (WHERE dead > 0) OVER () AS dying,
               row_number() OVER (ORDER BY failures = 0, $4 * attempts - 100 * failures, tenant_id) AS by_failures,
               row_number() OVER (ORDER BY dead DESC, tenant_id) AS by_dead
           FROM (SELECT t.id AS tenant_id, r.attempts, r.failures, r.dead
                 FROM (SELECT id FROM tenants WHERE id > $7 ORDER BY id LIMIT $8) t CROSS JOIN LATERAL
                     (SELECT coalesce(sum(attempts) FILTER (WHERE start >= $1), 0)::bigint AS attempts,
                          coalesce(sum(attempts - successes) FILTER (WHERE start >= $1), 0)::bigint AS failures,
                          coalesce(sum(dead) FILTER (WHERE start >= $2), 0)::bigint AS dead
                      FROM tenant_rollups
                      WHERE tenant_id = t.id AND resolution = $3 AND start >= least($1, $2)) r
                 WHERE r.attempts + r.dead > 0) counted) placed
     WHERE by_failures <= $6 OR by_dead <= $6";
/// Failures are summed over the minutes that have one, attempts over all minutes.
const RANK_WEBHOOKS: &str = "SELECT failures, attempts,
         count(*) FILTER (WHERE attempts >= $3 AND 100 * failures > $2 * attempts) OVER () AS failing,
         tenant_id, webhook_id
     FROM (SELECT r.webhook_id, r.tenant_id, r.failures,
               (SELECT sum(a.attempts)::bigint FROM rollups a
                WHERE a.webhook_id = r.webhook_id AND a.minute >= $1) AS attempts
           FROM (SELECT id FROM tenants WHERE id > $5 ORDER BY id LIMIT $6) t CROSS JOIN LATERAL
               (SELECT webhook_id, tenant_id, sum(attempts - successes)::bigint AS failures
                FROM rollups WHERE tenant_id = t.id AND failed AND minute >= $1
                GROUP BY webhook_id, tenant_id) r OFFSET 0) counted
     ORDER BY $2 * attempts - 100 * failures, webhook_id LIMIT $4";
const LAST_TENANT: &str = "SELECT id FROM tenants WHERE id > $1 ORDER BY id LIMIT 1 OFFSET $2";
const LONGEST_UNCLOSED_CIRCUITS: &str =
    "SELECT tenant_id, webhook_id, least(failing_since, circuit_since) AS since, circuit FROM webhook_runtime
     WHERE circuit IS NOT NULL AND circuit::json ->> 'state' <> 'closed' AND circuit::json ->> 'forced' IS NULL
     ORDER BY since, webhook_id LIMIT $1";

/// Statements whose cost must be proportional to what they count; a test checks their query plans.
#[cfg(feature = "conformance")]
pub(super) const PLANNED_STATEMENTS: [(&str, &str); 1] = [("count dead letters by webhook", COUNT_DEAD)];

impl Rankings for Postgres {
    fn rank_dead_letters(&self, max: usize) -> StoreFuture<'_, DeadLetterRanking> {
        Box::pin(async move {
            let (mut sums, mut after) = (DeadLetterSums::default(), Some(DeadLetterCursor::default()));
            while let Some(start) = after {
                after = sums.add(self.read_for_user(|session| count_dead(session, start)).await?);
            }
            Ok(sums.into_ranking(max))
        })
    }

    fn rank_traffic(&self, request: TrafficRankingRequest) -> StoreFuture<'_, TrafficRanking> {
        Box::pin(async move {
            let (mut ranking, mut after) = (TrafficRanking::default(), Some(String::new()));
            while let Some(start) = after {
                let read = self.read_for_user(|session| rank_page(session, request, &start));
                let (page, last) = read.await?;
                ranking.merge(page, &request);
                after = last;
            }
            Ok(ranking)
        })
    }

    fn longest_unclosed_circuits(&self, max: usize) -> StoreFuture<'_, Vec<UnclosedCircuit>> {
        let max = max as i64;
        Box::pin(async move {
            let read = |row: &Row| -> Result<_, Failure> {
                let circuit: Option<SavedCircuit> = serde_json::from_str(plain(row, 3)?).ok();
                let state = circuit.map_or(CircuitState::Closed, |circuit| circuit.state);
                Ok(UnclosedCircuit { webhook: webhook(row, 0)?, state, since: get(row, 2)? })
            };
            self.read_for_user(|session| async move {
                let rows = session.query(LONGEST_UNCLOSED_CIRCUITS, &[&max]).await?;
                rows.iter().map(read).collect()
            })
            .await
        })
    }
}

/// Counts the dead letters of one read by webhook, in the order of webhooks.
async fn count_dead(session: Tx, after: DeadLetterCursor) -> Result<Vec<DeadLetterCount>, Failure> {
    let start: Values<'_> =
        &[&Col(after.webhook_id), &Col(after.delivery_id), &(DEAD_LETTERS_PER_READ as i64)];
    let rows = session.query(COUNT_DEAD, start).await?;
    let read = |row: &Row| {
        Ok(DeadLetterCount { webhook: webhook(row, 0)?, count: number(row, 2)?, last: get(row, 3)? })
    };
    rows.iter().map(read).collect()
}

/// Ranks the tenants after this one that one read covers. Returns the last of them if there are more.
async fn rank_page(
    session: Tx,
    request: TrafficRankingRequest,
    after: &str,
) -> Result<(TrafficRanking, Option<String>), Failure> {
    let mut ranking = TrafficRanking::default();
    let (attempts_from, dead_from) = (Col(request.attempts_from), Col(request.dead_from));
    let percent = i64::from(request.tolerated_failure_percent);
    let (min_attempts, max) = (request.min_attempts as i64, request.max as i64);
    let minute = Col(Resolution::Minute);
    let tenants = TENANTS_PER_READ as i64;
    let values: Values<'_> =
        &[&attempts_from, &dead_from, &minute, &percent, &min_attempts, &max, &after, &tenants];
    let rows = session.query(RANK_TENANTS, values).await?;
    let (mut by_failures, mut by_dead) = (Vec::new(), Vec::new());
    for row in &rows {
        let tenant_id: TenantId = get(row, 0)?;
        let sums = AttemptSums { attempts: number(row, 1)?, failures: number(row, 2)? };
        by_failures.push((number(row, 9)?, (tenant_id.clone(), sums)));
        by_dead.push((number(row, 10)?, (tenant_id, number(row, 3)?)));
        ranking.tenants.total = AttemptSums { attempts: number(row, 4)?, failures: number(row, 5)? };
        ranking.tenants.count = number(row, 6)?;
        (ranking.dead.total, ranking.dead.count) = (number(row, 7)?, number(row, 8)?);
    }
    ranking.webhooks.total = ranking.tenants.total;
    ranking.tenants.top = in_order(by_failures, request.max, |sums| sums.failures > 0);
    ranking.dead.top = in_order(by_dead, request.max, |dead| *dead > 0);
    let values: Values<'_> = &[&attempts_from, &percent, &min_attempts, &max, &after, &tenants];
    let rows = session.query(RANK_WEBHOOKS, values).await?;
    for row in &rows {
        let sums = AttemptSums { failures: number(row, 0)?, attempts: number(row, 1)? };
        ranking.webhooks.count = number(row, 2)?;
        ranking.webhooks.top.push((webhook(row, 3)?, sums));
    }
    let last = session.query(LAST_TENANT, &[&after, &(tenants - 1)]).await?;
    Ok((ranking, last.first().map(|row| plain(row, 0)).transpose()?))
}

fn webhook(row: &Row, column: usize) -> Result<WebhookOfTenant, Failure> {
    let webhook_id: WebhookId = get(row, column + 1)?;
    Ok(WebhookOfTenant { tenant_id: get(row, column)?, webhook_id })
}

fn number(row: &Row, column: usize) -> Result<u64, Failure> {
    plain::<i64>(row, column).map(i64::unsigned_abs)
}
