//! Rankings of the tenants and webhooks of the whole store.
//!
//! Dead letters are counted in bounded reads in the order of an index. Rollups are read by tenant, so that only those of the requested
//! minutes are touched.

use redrive_core::{
    TenantId, WebhookId,
    protection::breaker::{CircuitState, SavedCircuit},
    statistics::traffic::Resolution,
};
use rusqlite::{Connection, OptionalExtension, Row};

use super::{
    Sqlite,
    convert::{Col, get},
};
use crate::{
    AttemptSums, DeadLetterRanking, Rankings, StoreFuture, TrafficRanking, TrafficRankingRequest,
    UnclosedCircuit, WebhookOfTenant,
    model::{
        DEAD_LETTERS_PER_READ, DeadLetterCount, DeadLetterCursor, DeadLetterSums, TENANTS_PER_READ, in_order,
    },
};

/// Counts the dead letters after one in the order of an index.
const COUNT_DEAD: &str =
    "SELECT (SELECT d.tenant_id FROM dead d WHERE d.delivery_id = counted.last), webhook_id, n, last
     FROM (SELECT webhook_id, count(*) AS n, max(delivery_id) AS last
           FROM (SELECT webhook_id, delivery_id FROM dead INDEXED BY dead_by_webhook
                 WHERE (webhook_id, delivery_id) > (?, ?) ORDER BY webhook_id, delivery_id LIMIT ?)
           GROUP BY webhook_id) AS counted";
/// `CROSS JOIN` makes SQLite read the tenants first.
const RANK_TENANTS: &str =
    "SELECT tenant_id, attempts, failures, dead, all_attempts, all_failures, failing, all_dead, dying,
         by_failures, by_dead
     FROM (SELECT *, sum(attempts) OVER () AS all_attempts, sum(failures) OVER () AS all_failures,
               sum(attempts >= ?5 AND 100 * failures > ?4 * attempts) OVER () AS failing,
               sum(dead) OVER () AS all_dead, sum(dead > 0) OVER () AS dying,
               row_number() OVER (ORDER BY failures = 0, ?4 * attempts - 100 * failures, tenant_id) AS by_failures,
               row_number() OVER (ORDER BY dead DESC, tenant_id) AS by_dead
           FROM (SELECT t.id AS tenant_id, sum(iif(r.start >= ?1, r.attempts, 0)) AS attempts,
                     sum(iif(r.start >= ?1, r.attempts - r.successes, 0)) AS failures,
                     sum(iif(r.start >= ?2, r.dead, 0)) AS dead
                 FROM (SELECT id FROM tenants WHERE id > ?7 ORDER BY id LIMIT ?8) t CROSS JOIN tenant_rollups r
                 WHERE r.tenant_id = t.id AND r.resolution = ?3 AND r.start >= min(?1, ?2)
                 GROUP BY t.id))
     WHERE by_failures <= ?6 OR by_dead <= ?6";
/// Failures are summed over the minutes that have one, attempts over all minutes.
const RANK_WEBHOOKS: &str =
    "SELECT failures, attempts, sum(attempts >= ?3 AND 100 * failures > ?2 * attempts) OVER () AS failing,
         tenant_id, webhook_id
     FROM (SELECT f.webhook_id, f.tenant_id, f.failures,
               (SELECT sum(a.attempts) FROM rollups a WHERE a.webhook_id = f.webhook_id AND a.minute >= ?1) AS attempts
           FROM (SELECT r.webhook_id, r.tenant_id, sum(r.attempts - r.successes) AS failures
                 FROM (SELECT id FROM tenants WHERE id > ?5 ORDER BY id LIMIT ?6) t CROSS JOIN rollups r INDEXED BY rollups_failed
                 WHERE r.tenant_id = t.id AND r.failed = 1 AND r.minute >= ?1
                 GROUP BY r.webhook_id, r.tenant_id) f)
     ORDER BY ?2 * attempts - 100 * failures, webhook_id LIMIT ?4";
const LAST_TENANT: &str = "SELECT id FROM tenants WHERE id > ? ORDER BY id LIMIT 1 OFFSET ?";
const LONGEST_UNCLOSED_CIRCUITS: &str =
    "SELECT tenant_id, webhook_id, min(coalesce(failing_since, circuit_since), circuit_since) AS since, circuit
     FROM webhook_runtime INDEXED BY webhook_runtime_circuits
     WHERE circuit IS NOT NULL AND json_extract(circuit, '$.state') <> 'closed'
         AND json_extract(circuit, '$.forced') IS NULL
     ORDER BY since, webhook_id LIMIT ?";

/// Statements whose cost must be proportional to what they count; a test checks their query plans.
#[cfg(feature = "conformance")]
pub(super) const BOUNDED_STATEMENTS: [&str; 1] = [COUNT_DEAD];

impl Rankings for Sqlite {
    fn rank_dead_letters(&self, max: usize) -> StoreFuture<'_, DeadLetterRanking> {
        Box::pin(async move {
            let (mut sums, mut after) = (DeadLetterSums::default(), Some(DeadLetterCursor::default()));
            while let Some(start) = after {
                let read = self.read_for_user(move |connection| count_dead(connection, start));
                after = sums.add(read.await?);
            }
            Ok(sums.into_ranking(max))
        })
    }

    fn rank_traffic(&self, request: TrafficRankingRequest) -> StoreFuture<'_, TrafficRanking> {
        Box::pin(async move {
            let (mut ranking, mut after) = (TrafficRanking::default(), Some(String::new()));
            while let Some(start) = after {
                let read = self.read_for_user(move |connection| rank_page(connection, &request, &start));
                let (page, last) = read.await?;
                ranking.merge(page, &request);
                after = last;
            }
            Ok(ranking)
        })
    }

    fn longest_unclosed_circuits(&self, max: usize) -> StoreFuture<'_, Vec<UnclosedCircuit>> {
        self.read_for_user(move |connection| {
            let mut statement = connection.prepare_cached(LONGEST_UNCLOSED_CIRCUITS)?;
            let read = |row: &Row<'_>| {
                let circuit: Option<SavedCircuit> = serde_json::from_str(&row.get::<_, String>(3)?).ok();
                let state = circuit.map_or(CircuitState::Closed, |circuit| circuit.state);
                Ok(UnclosedCircuit { webhook: webhook(row, 0)?, state, since: get(row, 2)? })
            };
            statement.query_map([max as i64], read)?.collect()
        })
    }
}

/// Counts the dead letters of one read by webhook, in the order of webhooks.
fn count_dead(connection: &Connection, after: DeadLetterCursor) -> rusqlite::Result<Vec<DeadLetterCount>> {
    let mut counts = connection.prepare_cached(COUNT_DEAD)?;
    let read = |row: &Row<'_>| {
        Ok(DeadLetterCount { webhook: webhook(row, 0)?, count: number(row, 2)?, last: get(row, 3)? })
    };
    let start = (Col(after.webhook_id), Col(after.delivery_id), DEAD_LETTERS_PER_READ as i64);
    let mut found: Vec<_> = counts.query_map(start, read)?.collect::<Result<_, _>>()?;
    found.sort_unstable_by_key(|one: &DeadLetterCount| one.webhook.webhook_id);
    Ok(found)
}

/// Ranks the tenants after this one that one read covers. Returns the last of them if there are more.
fn rank_page(
    connection: &Connection,
    request: &TrafficRankingRequest,
    after: &str,
) -> rusqlite::Result<(TrafficRanking, Option<String>)> {
    let mut ranking = rank_tenants(connection, request, after)?;
    let mut statement = connection.prepare_cached(RANK_WEBHOOKS)?;
    let mut rows = statement.query((
        Col(request.attempts_from),
        request.tolerated_failure_percent,
        request.min_attempts as i64,
        request.max as i64,
        after,
        TENANTS_PER_READ as i64,
    ))?;
    while let Some(row) = rows.next()? {
        let sums = AttemptSums { failures: number(row, 0)?, attempts: number(row, 1)? };
        ranking.webhooks.count = number(row, 2)?;
        ranking.webhooks.top.push((webhook(row, 3)?, sums));
    }
    let mut last = connection.prepare_cached(LAST_TENANT)?;
    let last = last.query_row((after, TENANTS_PER_READ as i64 - 1), |row| row.get(0)).optional()?;
    Ok((ranking, last))
}

fn rank_tenants(
    connection: &Connection,
    request: &TrafficRankingRequest,
    after: &str,
) -> rusqlite::Result<TrafficRanking> {
    let mut ranking = TrafficRanking::default();
    let (mut by_failures, mut by_dead) = (Vec::new(), Vec::new());
    let mut statement = connection.prepare_cached(RANK_TENANTS)?;
    let mut rows = statement.query((
        Col(request.attempts_from),
        Col(request.dead_from),
        Col(Resolution::Minute),
        request.tolerated_failure_percent,
        request.min_attempts as i64,
        request.max as i64,
        after,
        TENANTS_PER_READ as i64,
    ))?;
    while let Some(row) = rows.next()? {
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
    Ok(ranking)
}

fn webhook(row: &Row<'_>, column: usize) -> rusqlite::Result<WebhookOfTenant> {
    let webhook_id: WebhookId = get(row, column + 1)?;
    Ok(WebhookOfTenant { tenant_id: get(row, column)?, webhook_id })
}

fn number(row: &Row<'_>, column: usize) -> rusqlite::Result<u64> {
    row.get::<_, i64>(column).map(i64::unsigned_abs)
}
