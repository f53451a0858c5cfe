//! The listing of attempts, and the attempt index: every attempt other than prompt successes.

use std::collections::HashMap;

use redrive_core::{AttemptId, DeliveryId, FailureCategory, TenantId, Time, WebhookId, id::min_bytes_at};
use rusqlite::{Connection, OptionalExtension, Row, Transaction};

use super::{
    Sqlite,
    convert::{Col, get, get_opt},
    history::{ATTEMPT, TENANT_COLUMN, read_attempt},
    listing::{Sql, is_tenant_managed},
};
use crate::{
    Attempt, AttemptCount, AttemptCursor, AttemptFilter, Attempts, ListedAttempt, ListingPage, OutcomeRecord,
    PageRequest, StoreError, StoreFuture, StoredAttempt,
    access_path::{IdRange, ListedTenants},
    attempt_listing::{AttemptCandidate, AttemptWalk, IndexedAttempt, PossiblePrompt},
};

/// Builds the statement that reads rows of the index, newest first.
fn indexed_statement(tenants: ListedTenants<'_>, filter: &AttemptFilter, range: IdRange, rows: usize) -> Sql {
    let mut sql = Sql::new("SELECT id, delivery_id, status, category, code FROM attempt_index WHERE true");
    match (filter.webhook_id, tenants.one()) {
        (Some(webhook_id), _) => sql.and("webhook_id = ?", Col(webhook_id)),
        (None, Some(tenant_id)) => {
            sql.and("tenant_id = ?", tenant_id.as_str().to_owned());
            if let [category] = filter.failure_categories[..] {
                sql.and("category = ?", Col(category));
            }
        }
        (None, None) => {}
    }
    newest(&mut sql, range, rows);
    sql
}

/// Builds the statement that reads what prompt successes are found by: deliveries of the webhook, events of the tenant, or
/// all deliveries.
fn prompt_statement(tenants: ListedTenants<'_>, filter: &AttemptFilter, range: IdRange, rows: usize) -> Sql {
    let mut sql;
    match (filter.webhook_id, tenants.one()) {
        (Some(webhook_id), _) => {
            sql = Sql::new("SELECT id FROM deliveries WHERE true");
            sql.and("webhook_id = ?", Col(webhook_id));
        }
        (None, Some(tenant_id)) => {
            sql = Sql::new("SELECT id FROM events WHERE true");
            sql.and("tenant_id = ?", tenant_id.as_str().to_owned());
        }
        (None, None) => sql = Sql::new("SELECT id FROM deliveries WHERE true"),
    }
    newest(&mut sql, range, rows);
    sql
}

fn newest(sql: &mut Sql, range: IdRange, rows: usize) {
    sql.and("id >= ?", range.low);
    sql.and("id < ?", range.high);
    sql.bind(" ORDER BY id DESC LIMIT ?", rows as i64);
}

/// The rows that are counted are bounded before they are compared with the tenant, to which the webhook belongs.
const SELECT_RESULTS: &str = "SELECT code, category, tenant_id = ?4 FROM attempt_index
     WHERE webhook_id = ?1 AND id >= ?2 ORDER BY id DESC LIMIT ?3";

const SELECT_DELIVERIES: &str = "SELECT id FROM deliveries WHERE event_id = ?";

fn attempt_statement(filter: &AttemptFilter) -> String {
    let visible = match filter.tenant_managed_only {
        true => format!(" AND {}", is_tenant_managed("d.webhook_id")),
        false => String::new(),
    };
    format!(
        "{ATTEMPT} WHERE d.id = ?1 AND (?2 IS NULL OR d.tenant_id = ?2)
             AND (a.id = ?3 OR (?3 IS NULL AND a.number = 1
                  AND NOT EXISTS (SELECT 1 FROM attempt_index x WHERE x.id = a.id))){visible}"
    )
}

/// Finds an attempt through the index, or through the deliveries that its id names.
fn one_statement() -> [String; 2] {
    [
        format!(
            "{ATTEMPT} WHERE d.id = (SELECT delivery_id FROM attempt_index WHERE id = ?1) AND a.id = ?1
                 AND d.tenant_id = ?2"
        ),
        format!("{ATTEMPT} WHERE d.id BETWEEN ?3 AND ?4 AND a.number = 1 AND a.id = ?1 AND d.tenant_id = ?2"),
    ]
}

fn read_indexed(row: &Row<'_>) -> rusqlite::Result<IndexedAttempt> {
    Ok(IndexedAttempt {
        id: get(row, 0)?,
        delivery_id: get(row, 1)?,
        status: get(row, 2)?,
        category: get_opt(row, 3)?,
        code: row.get(4)?,
    })
}

impl Attempts for Sqlite {
    fn list_attempts(
        &self,
        tenant_id: TenantId,
        filter: AttemptFilter,
        page: PageRequest<AttemptCursor>,
    ) -> StoreFuture<'_, ListingPage<ListedAttempt, AttemptCursor>> {
        let listed = self.list_for(tenant_id.clone(), move |connection| {
            list(connection, ListedTenants::One(&tenant_id), &filter, &page)
        });
        Box::pin(async move { listed.await?.ok_or(StoreError::OffsetTooFar) })
    }

    fn count_indexed_attempts(
        &self,
        tenant_id: TenantId,
        webhook_id: WebhookId,
        from: Time,
        max: usize,
    ) -> StoreFuture<'_, Vec<AttemptCount>> {
        self.list_for(tenant_id.clone(), move |connection| {
            let key = (Col(webhook_id), min_bytes_at(from), max as i64, tenant_id.as_str());
            let mut results = connection.prepare_cached(SELECT_RESULTS)?;
            let mut rows = results.query(key)?;
            let mut counts = HashMap::<(Option<u16>, Option<FailureCategory>), usize>::new();
            while let Some(row) = rows.next()? {
                if row.get(2)? {
                    *counts.entry((row.get(0)?, get_opt(row, 1)?)).or_default() += 1;
                }
            }
            let count = |((code, category), count)| AttemptCount { code, category, count };
            Ok(counts.into_iter().map(count).collect())
        })
    }

    fn attempt(&self, tenant_id: TenantId, id: AttemptId) -> StoreFuture<'_, Option<StoredAttempt>> {
        self.list_for(tenant_id.clone(), move |connection| {
            let [indexed, prompt] = one_statement();
            let mut found = connection
                .prepare_cached(&indexed)?
                .query_row((Col(id), tenant_id.as_str()), read_attempt)
                .optional()?;
            if found.is_none() {
                let (first, last) = id.possible_deliveries();
                found = connection
                    .prepare_cached(&prompt)?
                    .query_row((Col(id), tenant_id.as_str(), Col(first), Col(last)), read_attempt)
                    .optional()?;
            }
            Ok(found)
        })
    }

    fn tenant_of_attempt(&self, id: AttemptId) -> StoreFuture<'_, Option<TenantId>> {
        self.read_for_user(move |connection| {
            let [indexed, prompt] = SELECT_TENANT;
            let mut found =
                connection.prepare_cached(indexed)?.query_row([Col(id)], |row| get(row, 0)).optional()?;
            if found.is_none() {
                let (first, last) = id.possible_deliveries();
                found = connection
                    .prepare_cached(prompt)?
                    .query_row((Col(id), Col(first), Col(last)), |row| get(row, 0))
                    .optional()?;
            }
            Ok(found)
        })
    }
}

/// Statements that find the tenant of an attempt, in the same ways.
const SELECT_TENANT: [&str; 2] = [
    "SELECT tenant_id FROM attempt_index WHERE id = ?",
    "SELECT d.tenant_id FROM deliveries d CROSS JOIN attempts a ON a.delivery_id = d.id
     WHERE a.id = ? AND a.number = 1 AND d.id BETWEEN ? AND ?",
];

pub(super) fn list(
    connection: &Connection,
    tenants: ListedTenants<'_>,
    filter: &AttemptFilter,
    page: &PageRequest<AttemptCursor>,
) -> rusqlite::Result<Option<ListingPage<ListedAttempt, AttemptCursor>>> {
    let mut walk = AttemptWalk::new(filter, page);
    while let Some(reads) = walk.next_reads() {
        let sql = indexed_statement(tenants, filter, reads.indexed, reads.rows);
        let mut statement = connection.prepare_cached(&sql.text)?;
        let indexed =
            statement.query_map(&sql.values()[..], read_indexed)?.collect::<rusqlite::Result<Vec<_>>>()?;
        let prompt = match reads.prompt {
            Some(range) => read_prompt(connection, tenants, filter, range, reads.rows)?,
            None => Vec::new(),
        };
        let step = walk.merge(&reads, &indexed, &prompt);
        let mut read = Vec::new();
        for candidates in walk.chunks(&step) {
            read.extend(read_candidates(connection, tenants, filter, candidates)?);
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

fn read_prompt(
    connection: &Connection,
    tenants: ListedTenants<'_>,
    filter: &AttemptFilter,
    range: IdRange,
    rows: usize,
) -> rusqlite::Result<Vec<PossiblePrompt>> {
    let sql = prompt_statement(tenants, filter, range, rows);
    let mut statement = connection.prepare_cached(&sql.text)?;
    let mut found = statement.query(&sql.values()[..])?;
    let mut deliveries = connection.prepare_cached(SELECT_DELIVERIES)?;
    let mut read = Vec::new();
    while let Some(row) = found.next()? {
        let position: [u8; 16] = row.get(0)?;
        if filter.webhook_id.is_some() || tenants.one().is_none() {
            read.push(PossiblePrompt { position, delivery_id: Some(DeliveryId::from_bytes(position)) });
            continue;
        }
        let before = read.len();
        for delivery_id in deliveries.query_map([position], |row| get(row, 0))? {
            read.push(PossiblePrompt { position, delivery_id: Some(delivery_id?) });
        }
        if read.len() == before {
            read.push(PossiblePrompt { position, delivery_id: None });
        }
    }
    Ok(read)
}

fn read_candidates(
    connection: &Connection,
    tenants: ListedTenants<'_>,
    filter: &AttemptFilter,
    candidates: &[AttemptCandidate],
) -> rusqlite::Result<Vec<ListedAttempt>> {
    let mut statement = connection.prepare_cached(&attempt_statement(filter))?;
    let mut read = Vec::new();
    for candidate in candidates {
        let tenant_id = tenants.one().map(TenantId::as_str);
        let key = (Col(candidate.delivery_id), tenant_id, candidate.id.map(Col));
        let listed = |row: &Row<'_>| {
            let (tenant_id, stored) = (get(row, TENANT_COLUMN)?, read_attempt(row)?);
            Ok(ListedAttempt { tenant_id, stored, cursor: candidate.cursor })
        };
        read.extend(statement.query_row(key, listed).optional()?);
    }
    Ok(read)
}

/// Adds an attempt to the index, unless it is a prompt success.
pub(super) fn index(
    transaction: &Transaction<'_>,
    outcome: &OutcomeRecord,
    attempt: &Attempt,
) -> rusqlite::Result<()> {
    if attempt.status.is_prompt_success(attempt.number, outcome.delivery_id, attempt.executed_at) {
        return Ok(());
    }
    transaction
        .prepare_cached(
            "INSERT INTO attempt_index (id, tenant_id, webhook_id, delivery_id, status, category, code)
             VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
        )?
        .execute((
            Col(attempt.id),
            outcome.tenant_id.as_str(),
            Col(outcome.webhook_id),
            Col(outcome.delivery_id),
            Col(attempt.status),
            attempt.failure_category.map(Col),
            attempt.http_status_code,
        ))?;
    Ok(())
}

/// Returns every statement of the listing; a test checks their query plans.
#[cfg(feature = "conformance")]
pub(super) fn planned() -> Vec<(String, String)> {
    use redrive_core::{FailureCategory, WebhookId};
    let of_webhook =
        AttemptFilter { webhook_id: Some(WebhookId::from_bytes([1; 16])), ..AttemptFilter::default() };
    let of_category =
        AttemptFilter { failure_categories: vec![FailureCategory::Timeout], ..AttemptFilter::default() };
    let (tenant_id, range) = (TenantId::default(), IdRange { low: [0; 16], high: [9; 16] });
    let tenant = ListedTenants::One(&tenant_id);
    let restricted = AttemptFilter { tenant_managed_only: true, ..AttemptFilter::default() };
    let mut planned = Vec::new();
    for (name, tenants, filter) in [
        ("of a tenant", tenant, AttemptFilter::default()),
        ("to a webhook", tenant, of_webhook),
        ("of a category", tenant, of_category),
        ("to tenant-managed webhooks", tenant, restricted),
        ("of all tenants", ListedTenants::All, AttemptFilter::default()),
    ] {
        let indexed = indexed_statement(tenants, &filter, range, 9);
        let prompt = prompt_statement(tenants, &filter, range, 9);
        planned.push((format!("attempts {name}: indexed"), indexed.text));
        planned.push((format!("attempts {name}: prompt"), prompt.text));
        planned.push((format!("attempts {name}: attempt"), attempt_statement(&filter)));
    }
    planned.push(("attempts by result".into(), SELECT_RESULTS.into()));
    planned.push(("deliveries of an event".into(), SELECT_DELIVERIES.into()));
    planned.extend(SELECT_TENANT.map(|statement| ("tenant of an attempt".to_owned(), statement.to_owned())));
    planned.extend(one_statement().map(|statement| ("one attempt".to_owned(), statement)));
    planned
}
