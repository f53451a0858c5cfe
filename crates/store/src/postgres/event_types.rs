//! The catalogue of event types.

use redrive_core::TenantId;
use tokio_postgres::Row;

use super::{
    Postgres, changes,
    convert::{Col, get, plain},
    session::{Failure, Session, Tx},
    tenancy,
};
use crate::{
    Change, EventType, EventTypeChanges, EventTypes, PageRequest, RegisterResult, StoreFuture, UpdateResult,
    VersionedType,
};

macro_rules! event_types {
    ($rest:literal) => {
        concat!(
            "SELECT tenant_id, name, revision, archived, description, example, schema, created_at, updated_at
             FROM event_types ",
            $rest
        )
    };
}

impl EventTypes for Postgres {
    fn create_event_type(&self, event_type: EventType, max: usize) -> StoreFuture<'_, RegisterResult> {
        Box::pin(async move {
            let registered = self.administer(|tx| create(tx, &event_type, max)).await?;
            self.shared.hints.change();
            Ok(registered)
        })
    }

    fn change_event_type(&self, event_type: EventType, revision: i64) -> StoreFuture<'_, UpdateResult> {
        Box::pin(async move {
            let changed = self.administer(|tx| change(tx, &event_type, revision)).await?;
            self.shared.hints.change();
            Ok(changed)
        })
    }

    fn delete_event_type(&self, tenant_id: TenantId, name: String) -> StoreFuture<'_, bool> {
        Box::pin(async move {
            let deleted = self.administer(|tx| delete(tx, &tenant_id, &name)).await?;
            self.shared.hints.change();
            Ok(deleted)
        })
    }

    fn event_type(&self, tenant_id: TenantId, name: String) -> StoreFuture<'_, Option<VersionedType>> {
        Box::pin(async move {
            let (tenant_id, name) = (&tenant_id, &name);
            self.list_for(tenant_id, |session| async move { find(&session, tenant_id, name).await }).await
        })
    }

    fn list_event_types(
        &self,
        tenant_id: TenantId,
        archived: Option<bool>,
        page: PageRequest<String>,
    ) -> StoreFuture<'_, Vec<EventType>> {
        Box::pin(async move {
            self.list_for(&tenant_id, |session| list(session, &tenant_id, archived, &page)).await
        })
    }
}

impl EventTypeChanges for Postgres {
    fn event_types_since(
        &self,
        tenant_id: TenantId,
        revision: i64,
        limit: usize,
    ) -> StoreFuture<'_, Vec<VersionedType>> {
        Box::pin(async move {
            let since = event_types!("WHERE tenant_id = $1 AND revision > $2 ORDER BY revision LIMIT $3");
            let tenant_id = &tenant_id;
            self.read(|session| async move {
                let rows = session.query(since, &[&tenant_id.as_str(), &revision, &(limit as i64)]).await?;
                rows.iter().map(read).collect()
            })
            .await
        })
    }

    fn event_type_names(&self, tenant_id: TenantId) -> StoreFuture<'_, Vec<String>> {
        Box::pin(async move {
            let names = "SELECT name FROM event_types WHERE tenant_id = $1 ORDER BY name";
            let tenant_id = &tenant_id;
            self.read(|session| async move {
                let rows = session.query(names, &[&tenant_id.as_str()]).await?;
                rows.iter().map(|row| plain(row, 0)).collect()
            })
            .await
        })
    }
}

/// Registers an event type, unless the tenant already has `max`.
pub(super) async fn create(tx: Tx, event_type: &EventType, max: usize) -> Result<RegisterResult, Failure> {
    let tenant_id = &event_type.tenant_id;
    // The tenant's lock prevents concurrent registrations.
    tenancy::lock(&tx, tenant_id).await?;
    if find(&tx, tenant_id, &event_type.name).await?.is_some() {
        return Ok(RegisterResult::Exists);
    }
    let count = "SELECT count(*) FROM event_types WHERE tenant_id = $1";
    let there = tx.query_opt(count, &[&tenant_id.as_str()]).await?;
    let there: i64 = there.map_or(Ok(0), |row| plain(&row, 0))?;
    if there >= max as i64 {
        return Ok(RegisterResult::LimitReached);
    }
    let Some(version) = next_version(&tx, tenant_id).await? else { return Ok(RegisterResult::NotFound) };
    store(&tx, event_type, version).await?;
    Ok(RegisterResult::Done)
}

async fn change(tx: Tx, event_type: &EventType, revision: i64) -> Result<UpdateResult, Failure> {
    let tenant_id = &event_type.tenant_id;
    // Lock the tenant's row first, as a publish does, so that it does not change concurrently.
    tenancy::lock(&tx, tenant_id).await?;
    let Some(now) = find(&tx, tenant_id, &event_type.name).await? else { return Ok(UpdateResult::NotFound) };
    if now.revision != revision {
        return Ok(UpdateResult::Stale);
    }
    let Some(version) = next_version(&tx, tenant_id).await? else { return Ok(UpdateResult::NotFound) };
    store(&tx, event_type, version).await?;
    Ok(UpdateResult::Updated { version })
}

async fn delete(tx: Tx, tenant_id: &TenantId, name: &str) -> Result<bool, Failure> {
    tenancy::lock(&tx, tenant_id).await?;
    let delete = "DELETE FROM event_types WHERE tenant_id = $1 AND name = $2";
    let deleted = tx.execute(delete, &[&tenant_id.as_str(), &name]).await?;
    if deleted == 1 {
        next_version(&tx, tenant_id).await?;
    }
    Ok(deleted == 1)
}

/// Returns the next version of the tenant's catalogue. Returns `None` if the tenant does not exist.
async fn next_version(tx: &Session, tenant_id: &TenantId) -> Result<Option<i64>, Failure> {
    let next =
        "UPDATE tenants SET config_version = config_version + 1, event_types_version = config_version + 1
                WHERE id = $1 AND deleted_at IS NULL RETURNING config_version";
    let row = tx.query_opt(next, &[&tenant_id.as_str()]).await?;
    changes::append(tx, &Change::Tenant(tenant_id.clone())).await?;
    row.map(|row| plain(&row, 0)).transpose()
}

async fn find(session: &Session, tenant_id: &TenantId, name: &str) -> Result<Option<VersionedType>, Failure> {
    let found = event_types!("WHERE tenant_id = $1 AND name = $2");
    let row = session.query_opt(found, &[&tenant_id.as_str(), &name]).await?;
    row.as_ref().map(read).transpose()
}

async fn list(
    session: Tx,
    tenant_id: &TenantId,
    archived: Option<bool>,
    page: &PageRequest<String>,
) -> Result<Vec<EventType>, Failure> {
    let listed = event_types!(
        "WHERE tenant_id = $1 AND name > $2 AND ($3::boolean IS NULL OR archived = $3) ORDER BY name LIMIT $4 OFFSET $5"
    );
    let after = page.after.as_deref().unwrap_or_default();
    let (limit, offset) = (i64::from(page.limit), i64::from(page.offset));
    let rows = session.query(listed, &[&tenant_id.as_str(), &after, &archived, &limit, &offset]).await?;
    rows.iter().map(|row| Ok(read(row)?.event_type)).collect()
}

async fn store(tx: &Session, event_type: &EventType, version: i64) -> Result<(), Failure> {
    tx.execute(
        "INSERT INTO event_types (tenant_id, name, revision, archived, description, example, schema, created_at,
                                  updated_at)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
         ON CONFLICT (tenant_id, name) DO UPDATE SET revision = excluded.revision, archived = excluded.archived,
             description = excluded.description, example = excluded.example, schema = excluded.schema,
             created_at = excluded.created_at, updated_at = excluded.updated_at",
        &[
            &event_type.tenant_id.as_str(),
            &event_type.name,
            &version,
            &event_type.archived,
            &event_type.description,
            &event_type.example,
            &event_type.schema,
            &Col(event_type.created_at),
            &Col(event_type.updated_at),
        ],
    )
    .await?;
    Ok(())
}

fn read(row: &Row) -> Result<VersionedType, Failure> {
    let event_type = EventType {
        tenant_id: get(row, 0)?,
        name: plain(row, 1)?,
        archived: plain(row, 3)?,
        description: plain(row, 4)?,
        example: plain(row, 5)?,
        schema: plain(row, 6)?,
        created_at: get(row, 7)?,
        updated_at: get(row, 8)?,
    };
    Ok(VersionedType { event_type, revision: plain(row, 2)? })
}
