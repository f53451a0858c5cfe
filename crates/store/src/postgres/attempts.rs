//! The listing of attempts, and the attempt index: every attempt other than prompt successes.

use redrive_core::{
    AttemptId, DeliveryId, TenantId, Time, WebhookId, delivery::outcome::AttemptStatus, id::min_bytes_at,
};
use tokio_postgres::{Row, types::ToSql};

use super::{
    Postgres,
    convert::{Col, get, get_opt, plain},
    history::{ATTEMPT, ATTEMPT_COLUMNS, read_attempt},
    session::{Failure, Session, Tx},
};
use crate::{
    Attempt, AttemptCount, AttemptCursor, AttemptFilter, Attempts, ListedAttempt, ListingPage, OutcomeRecord,
    PageRequest, StoreError, StoreFuture, StoredAttempt,
    access_path::{IdRange, ListedTenants},
    attempt_listing::{AttemptCandidate, AttemptReads, AttemptWalk, IndexedAttempt, PossiblePrompt},
};

macro_rules! indexed {
    ($key:literal) => {
        concat!(
            "SELECT x.id, x.delivery_id, x.status, x.category, x.code FROM attempt_index x WHERE ",
            $key,
            " AND x.id >= $2 AND x.id < $3 ORDER BY x.id DESC LIMIT $4"
        )
    };
}
const INDEXED_OF_TENANT: &str = indexed!("x.tenant_id = $1");
const INDEXED_OF_WEBHOOK: &str = indexed!("x.webhook_id = $1");
const INDEXED_OF_CATEGORY: &str = indexed!("x.tenant_id = $1 AND x.category = $5");
/// The rows that are counted are bounded before they are compared with the tenant, to which the webhook belongs.
const COUNT_INDEXED: &str = "SELECT c.code, c.category, count(*) FROM (
         SELECT x.tenant_id, x.code, x.category FROM attempt_index x
         WHERE x.webhook_id = $1 AND x.id >= $2 ORDER BY x.id DESC LIMIT $3) c
     WHERE c.tenant_id = $4 GROUP BY c.code, c.category";
const INDEXED_OF_ALL: &str = "SELECT x.id, x.delivery_id, x.status, x.category, x.code FROM attempt_index x
     WHERE x.id >= $1 AND x.id < $2 ORDER BY x.id DESC LIMIT $3";
/// Prompt successes are found through deliveries: those of the webhook, those of the tenant's events, or all.
const PROMPT_OF_ALL: &str = "SELECT d.id, d.id FROM deliveries d
     WHERE d.id >= $1 AND d.id < $2 ORDER BY d.id DESC LIMIT $3";
const PROMPT_OF_WEBHOOK: &str = "SELECT d.id, d.id FROM deliveries d
     WHERE d.webhook_id = $1 AND d.id >= $2 AND d.id < $3 ORDER BY d.id DESC LIMIT $4";
/// The ids of an event's deliveries have the event's millisecond, so they are in the same monthly partition.
const PROMPT_OF_TENANT: &str = "SELECT e.id, d.id FROM (
         SELECT e.id FROM events e WHERE e.tenant_id = $1 AND e.id >= $2 AND e.id < $3
         ORDER BY e.id DESC LIMIT $4) e
     LEFT JOIN LATERAL (
         SELECT d.id FROM deliveries d WHERE d.event_id = e.id
             AND d.id >= (left(e.id::text, 13) || '-0000-0000-000000000000')::uuid
             AND d.id <= (left(e.id::text, 13) || '-ffff-ffff-ffffffffffff')::uuid OFFSET 0) d ON true";

macro_rules! attempt_of_delivery {
    ($attempt:literal) => {
        concat!(
            "CROSS JOIN LATERAL (SELECT * FROM deliveries d WHERE d.id = c.delivery_id LIMIT 1) d
             CROSS JOIN LATERAL (SELECT * FROM attempts a WHERE a.delivery_id = d.id AND ",
            $attempt,
            " OFFSET 0) a "
        )
    };
}
/// Attempts of candidates, with the position of each candidate in the list, and their tenants. Without a tenant they may
/// be of any.
const CANDIDATES: &str = concat!(
    ", c.position, d.tenant_id FROM unnest($2::uuid[], $3::uuid[]) WITH ORDINALITY AS c(delivery_id, attempt_id, position) ",
    attempt_of_delivery!(
        "(a.id = c.attempt_id OR (c.attempt_id IS NULL AND a.number = 1
         AND NOT EXISTS (SELECT 1 FROM attempt_index x WHERE x.id = a.id OFFSET 0)))"
    ),
    "WHERE ($1::text IS NULL OR d.tenant_id = $1) AND (NOT $4::boolean OR NOT coalesce(
         (SELECT h.managed_by_operator FROM webhooks h WHERE h.id = d.webhook_id LIMIT 1), false))"
);
const INDEXED_ATTEMPT: &str = concat!(
    " FROM (SELECT x.delivery_id FROM attempt_index x WHERE x.id = $2 LIMIT 1) c ",
    attempt_of_delivery!("a.id = $2"),
    "WHERE d.tenant_id = $1"
);
const PROMPT_ATTEMPT: &str = concat!(
    " FROM (SELECT p.id AS delivery_id FROM deliveries p WHERE p.id >= $3 AND p.id <= $4 OFFSET 0) c ",
    attempt_of_delivery!("a.number = 1 AND a.id = $2"),
    "WHERE d.tenant_id = $1"
);
const INDEXED_TENANT: &str = "SELECT x.tenant_id FROM attempt_index x WHERE x.id = $1";
const PROMPT_TENANT: &str = concat!(
    "SELECT d.tenant_id FROM (SELECT p.id AS delivery_id FROM deliveries p
         WHERE p.id >= $2 AND p.id <= $3 OFFSET 0) c ",
    attempt_of_delivery!("a.number = 1 AND a.id = $1")
);
const INSERT_INDEXED: &str =
    "INSERT INTO attempt_index (id, tenant_id, webhook_id, delivery_id, status, category, code)
     SELECT i.* FROM unnest($1::uuid[], $2::text[], $3::uuid[], $4::uuid[], $5::smallint[], $6::smallint[],
         $7::smallint[]) AS i ON CONFLICT DO NOTHING";

/// Statements whose cost must be proportional to the rows they read or write; a test checks their query plans.
#[cfg(feature = "conformance")]
pub(super) fn planned() -> Vec<(String, String)> {
    let attempt = |rest: &str| format!("{ATTEMPT}{rest}");
    [
        ("indexed attempts of a tenant", INDEXED_OF_TENANT.to_owned()),
        ("indexed attempts to a webhook", INDEXED_OF_WEBHOOK.to_owned()),
        ("indexed attempts of a category", INDEXED_OF_CATEGORY.to_owned()),
        ("indexed attempts of all tenants", INDEXED_OF_ALL.to_owned()),
        ("prompt successes of all tenants", PROMPT_OF_ALL.to_owned()),
        ("attempts by result", COUNT_INDEXED.to_owned()),
        ("prompt successes of a webhook", PROMPT_OF_WEBHOOK.to_owned()),
        ("prompt successes of a tenant", PROMPT_OF_TENANT.to_owned()),
        ("attempts of candidates", attempt(CANDIDATES)),
        ("one indexed attempt", attempt(INDEXED_ATTEMPT)),
        ("one prompt success", attempt(PROMPT_ATTEMPT)),
        ("tenant of an indexed attempt", INDEXED_TENANT.to_owned()),
        ("tenant of a prompt success", PROMPT_TENANT.to_owned()),
        ("index attempts", INSERT_INDEXED.to_owned()),
    ]
    .map(|(name, statement)| (name.to_owned(), statement))
    .to_vec()
}

impl Attempts for Postgres {
    fn list_attempts(
        &self,
        tenant_id: TenantId,
        filter: AttemptFilter,
        page: PageRequest<AttemptCursor>,
    ) -> StoreFuture<'_, ListingPage<ListedAttempt, AttemptCursor>> {
        Box::pin(async move {
            let tenants = ListedTenants::One(&tenant_id);
            let listed = self.list_for(&tenant_id, |session| list(session, tenants, &filter, page)).await?;
            listed.ok_or(StoreError::OffsetTooFar)
        })
    }

    fn count_indexed_attempts(
        &self,
        tenant_id: TenantId,
        webhook_id: WebhookId,
        from: Time,
        max: usize,
    ) -> StoreFuture<'_, Vec<AttemptCount>> {
        Box::pin(async move {
            self.list_for(&tenant_id, |session| {
                let tenant = tenant_id.as_str();
                async move {
                    let key: [&(dyn ToSql + Sync); 4] =
                        [&Col(webhook_id), &Col(min_bytes_at(from)), &(max as i64), &tenant];
                    session.query(COUNT_INDEXED, &key).await?.iter().map(read_count).collect()
                }
            })
            .await
        })
    }

    fn attempt(&self, tenant_id: TenantId, id: AttemptId) -> StoreFuture<'_, Option<StoredAttempt>> {
        Box::pin(async move {
            self.list_for(&tenant_id, |session| {
                let tenant = tenant_id.as_str();
                async move {
                    let indexed = format!("{ATTEMPT}{INDEXED_ATTEMPT}");
                    if let Some(row) = session.query_opt(&indexed, &[&tenant, &Col(id)]).await? {
                        return read_attempt(&row).map(Some);
                    }
                    let (first, last) = id.possible_deliveries();
                    let prompt = format!("{ATTEMPT}{PROMPT_ATTEMPT}");
                    let values: [&(dyn ToSql + Sync); 4] = [&tenant, &Col(id), &Col(first), &Col(last)];
                    session.query_opt(&prompt, &values).await?.map(|row| read_attempt(&row)).transpose()
                }
            })
            .await
        })
    }

    fn tenant_of_attempt(&self, id: AttemptId) -> StoreFuture<'_, Option<TenantId>> {
        Box::pin(async move { self.read_for_user(|session| tenant_of(session, id)).await })
    }
}

fn read_count(row: &Row) -> Result<AttemptCount, Failure> {
    let code = plain::<Option<i16>>(row, 0)?.map(|code| code as u16);
    let count = usize::try_from(plain::<i64>(row, 2)?).unwrap_or(0);
    Ok(AttemptCount { code, category: get_opt(row, 1)?, count })
}

async fn tenant_of(session: Tx, id: AttemptId) -> Result<Option<TenantId>, Failure> {
    let (first, last) = id.possible_deliveries();
    let mut found = session.query_opt(INDEXED_TENANT, &[&Col(id)]).await?;
    if found.is_none() {
        found = session.query_opt(PROMPT_TENANT, &[&Col(id), &Col(first), &Col(last)]).await?;
    }
    found.map(|row| get(&row, 0)).transpose()
}

pub(super) async fn list(
    session: Tx,
    tenants: ListedTenants<'_>,
    filter: &AttemptFilter,
    page: PageRequest<AttemptCursor>,
) -> Result<Option<ListingPage<ListedAttempt, AttemptCursor>>, Failure> {
    let mut walk = AttemptWalk::new(filter, &page);
    while let Some(reads) = walk.next_reads() {
        let indexed = read_indexed(&session, tenants, filter, &reads).await?;
        let prompt = match reads.prompt {
            Some(range) => read_prompt(&session, tenants, filter, range, reads.rows).await?,
            None => Vec::new(),
        };
        let step = walk.merge(&reads, &indexed, &prompt);
        let mut read = Vec::new();
        for candidates in walk.chunks(&step) {
            read.extend(read_candidates(&session, tenants, filter, candidates).await?);
            if walk.is_filled_by(&read) {
                break;
            }
        }
        if !walk.add(&step, read) {
            break;
        }
    }
    Ok(walk.page())
}

async fn read_indexed(
    session: &Session,
    tenants: ListedTenants<'_>,
    filter: &AttemptFilter,
    reads: &AttemptReads,
) -> Result<Vec<IndexedAttempt>, Failure> {
    let (low, high, rows) = (Col(reads.indexed.low), Col(reads.indexed.high), reads.rows as i64);
    let tenant = tenants.one().map(TenantId::as_str);
    let found = match (filter.webhook_id, tenant, &filter.failure_categories[..]) {
        (Some(webhook_id), ..) => {
            session.query(INDEXED_OF_WEBHOOK, &[&Col(webhook_id), &low, &high, &rows]).await?
        }
        (None, None, _) => session.query(INDEXED_OF_ALL, &[&low, &high, &rows]).await?,
        (None, Some(tenant), [category]) => {
            session.query(INDEXED_OF_CATEGORY, &[&tenant, &low, &high, &rows, &Col(*category)]).await?
        }
        (None, Some(tenant), _) => session.query(INDEXED_OF_TENANT, &[&tenant, &low, &high, &rows]).await?,
    };
    let read = |row: &Row| {
        Ok(IndexedAttempt {
            id: get(row, 0)?,
            delivery_id: get(row, 1)?,
            status: get(row, 2)?,
            category: get_opt(row, 3)?,
            code: plain::<Option<i16>>(row, 4)?.map(|code| code as u16),
        })
    };
    found.iter().map(read).collect()
}

async fn read_prompt(
    session: &Session,
    tenants: ListedTenants<'_>,
    filter: &AttemptFilter,
    range: IdRange,
    rows: usize,
) -> Result<Vec<PossiblePrompt>, Failure> {
    let (low, high, rows) = (Col(range.low), Col(range.high), rows as i64);
    let found = match (filter.webhook_id, tenants.one()) {
        (Some(webhook_id), _) => {
            session.query(PROMPT_OF_WEBHOOK, &[&Col(webhook_id), &low, &high, &rows]).await?
        }
        (None, Some(tenant_id)) => {
            session.query(PROMPT_OF_TENANT, &[&tenant_id.as_str(), &low, &high, &rows]).await?
        }
        (None, None) => session.query(PROMPT_OF_ALL, &[&low, &high, &rows]).await?,
    };
    let read = |row: &Row| {
        let position = *get::<DeliveryId>(row, 0)?.as_bytes();
        Ok(PossiblePrompt { position, delivery_id: get_opt(row, 1)? })
    };
    let mut prompt = found.iter().map(read).collect::<Result<Vec<_>, Failure>>()?;
    prompt.sort_unstable_by_key(|one| std::cmp::Reverse(one.position));
    Ok(prompt)
}

async fn read_candidates(
    session: &Session,
    tenants: ListedTenants<'_>,
    filter: &AttemptFilter,
    candidates: &[AttemptCandidate],
) -> Result<Vec<ListedAttempt>, Failure> {
    if candidates.is_empty() {
        return Ok(Vec::new());
    }
    let deliveries: Vec<_> = candidates.iter().map(|candidate| Col(candidate.delivery_id)).collect();
    let ids: Vec<_> = candidates.iter().map(|candidate| candidate.id.map(Col)).collect();
    let statement = format!("{ATTEMPT}{CANDIDATES}");
    let values: [&(dyn ToSql + Sync); 4] =
        [&tenants.one().map(TenantId::as_str), &deliveries, &ids, &filter.tenant_managed_only];
    let rows = session.query(&statement, &values).await?;
    let mut read = Vec::with_capacity(rows.len());
    for row in &rows {
        let position = plain::<i64>(row, ATTEMPT_COLUMNS)?.unsigned_abs() as usize;
        if let Some(candidate) = position.checked_sub(1).and_then(|at| candidates.get(at)) {
            let (tenant_id, stored) = (get(row, ATTEMPT_COLUMNS + 1)?, read_attempt(row)?);
            read.push(ListedAttempt { tenant_id, stored, cursor: candidate.cursor });
        }
    }
    read.sort_unstable_by_key(|one| std::cmp::Reverse(one.cursor));
    Ok(read)
}

/// Attempts that are not prompt successes, as one array per column of the index.
#[derive(Default)]
pub(super) struct IndexColumns<'a> {
    ids: Vec<Col<AttemptId>>,
    tenants: Vec<&'a str>,
    webhooks: Vec<Col<WebhookId>>,
    deliveries: Vec<Col<DeliveryId>>,
    statuses: Vec<Col<AttemptStatus>>,
    categories: Vec<Option<Col<redrive_core::FailureCategory>>>,
    codes: Vec<Option<i16>>,
}

impl<'a> IndexColumns<'a> {
    pub(super) fn new(outcomes: impl Iterator<Item = (&'a OutcomeRecord, &'a Attempt)>) -> Self {
        let mut columns = Self::default();
        for (outcome, attempt) in outcomes {
            if attempt.status.is_prompt_success(attempt.number, outcome.delivery_id, attempt.executed_at) {
                continue;
            }
            columns.ids.push(Col(attempt.id));
            columns.tenants.push(outcome.tenant_id.as_str());
            columns.webhooks.push(Col(outcome.webhook_id));
            columns.deliveries.push(Col(outcome.delivery_id));
            columns.statuses.push(Col(attempt.status));
            columns.categories.push(attempt.failure_category.map(Col));
            columns.codes.push(attempt.http_status_code.map(|code| code as i16));
        }
        columns
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// Returns the values in the order of the index's columns.
    pub(super) fn values(&self) -> [&(dyn ToSql + Sync); 7] {
        [
            &self.ids,
            &self.tenants,
            &self.webhooks,
            &self.deliveries,
            &self.statuses,
            &self.categories,
            &self.codes,
        ]
    }

    /// Adds the attempts to the index.
    pub(super) async fn insert(&self, tx: &Session) -> Result<(), Failure> {
        if !self.is_empty() {
            tx.execute(INSERT_INDEXED, &self.values()).await?;
        }
        Ok(())
    }
}
