//! The catalogue of event types.

use redrive_core::TenantId;
use tokio_postgres::Row;

use super::{
    Postgres, changes,
    convert::{Col, get, plain},
    session::{Failure, Session, Tx},
    tenancy,
};
use crate::{Answer, Change, Changed, EventType, EventTypes, PageRequest, Registered, VersionedType};

macro_rules! event_types {
    ($rest:literal) => {
        concat!(
            "SELECT tenant, name, revision, archived, description, example, schema, created_at, updated_at
             FROM event_types ",
            $rest
        )
    };
}

impl EventTypes for Postgres {
    fn create_event_type(&self, event_type: EventType, most: usize) -> Answer<'_, Registered> {
        Box::pin(async move {
            let registered = self.administer(|tx| create(tx, &event_type, most)).await?;
            self.shared.hints.change();
            Ok(registered)
        })
    }

    fn change_event_type(&self, event_type: EventType, revision: i64) -> Answer<'_, Changed> {
        Box::pin(async move {
            let changed = self.administer(|tx| change(tx, &event_type, revision)).await?;
            self.shared.hints.change();
            Ok(changed)
        })
    }

    fn delete_event_type(&self, tenant: TenantId, name: String) -> Answer<'_, bool> {
        Box::pin(async move {
            let deleted = self.administer(|tx| delete(tx, &tenant, &name)).await?;
            self.shared.hints.change();
            Ok(deleted)
        })
    }

    fn event_type(&self, tenant: TenantId, name: String) -> Answer<'_, Option<VersionedType>> {
        Box::pin(async move {
            let (tenant, name) = (&tenant, &name);
            self.list_for(tenant, |session| async move { find(&session, tenant, name).await }).await
        })
    }

    fn list_event_types(
        &self,
        tenant: TenantId,
        archived: Option<bool>,
        page: PageRequest<String>,
    ) -> Answer<'_, Vec<EventType>> {
        Box::pin(
            async move { self.list_for(&tenant, |session| list(session, &tenant, archived, &page)).await },
        )
    }

    fn event_types_since(
        &self,
        tenant: TenantId,
        revision: i64,
        limit: usize,
    ) -> Answer<'_, Vec<VersionedType>> {
        Box::pin(async move {
            let since = event_types!("WHERE tenant = $1 AND revision > $2 ORDER BY revision LIMIT $3");
            let tenant = &tenant;
            self.read(|session| async move {
                let rows = session.query(since, &[&tenant.as_str(), &revision, &(limit as i64)]).await?;
                rows.iter().map(read).collect()
            })
            .await
        })
    }

    fn event_type_names(&self, tenant: TenantId) -> Answer<'_, Vec<String>> {
        Box::pin(async move {
            let names = "SELECT name FROM event_types WHERE tenant = $1 ORDER BY name";
            let tenant = &tenant;
            self.read(|session| async move {
                let rows = session.query(names, &[&tenant.as_str()]).await?;
                rows.iter().map(|row| plain(row, 0)).collect()
            })
            .await
        })
    }
}

async fn create(tx: Tx, event_type: &EventType, most: usize) -> Result<Registered, Failure> {
    let tenant = &event_type.tenant;
    // Nobody registers another one meanwhile.
    tenancy::lock(&tx, tenant).await?;
    if find(&tx, tenant, &event_type.name).await?.is_some() {
        return Ok(Registered::Exists);
    }
    let count = "SELECT count(*) FROM event_types WHERE tenant = $1";
    let there = tx.query_opt(count, &[&tenant.as_str()]).await?;
    let there: i64 = there.map_or(Ok(0), |row| plain(&row, 0))?;
    if there >= most as i64 {
        return Ok(Registered::TooMany);
    }
    let Some(version) = next_version(&tx, tenant).await? else { return Ok(Registered::Missing) };
    store(&tx, event_type, version).await?;
    Ok(Registered::Done)
}

async fn change(tx: Tx, event_type: &EventType, revision: i64) -> Result<Changed, Failure> {
    let tenant = &event_type.tenant;
    // The tenant's row first, as whoever publishes: nobody changes it meanwhile.
    tenancy::lock(&tx, tenant).await?;
    let Some(now) = find(&tx, tenant, &event_type.name).await? else { return Ok(Changed::Missing) };
    if now.revision != revision {
        return Ok(Changed::Stale);
    }
    let Some(version) = next_version(&tx, tenant).await? else { return Ok(Changed::Missing) };
    store(&tx, event_type, version).await?;
    Ok(Changed::Done { version })
}

async fn delete(tx: Tx, tenant: &TenantId, name: &str) -> Result<bool, Failure> {
    tenancy::lock(&tx, tenant).await?;
    let delete = "DELETE FROM event_types WHERE tenant = $1 AND name = $2";
    let deleted = tx.execute(delete, &[&tenant.as_str(), &name]).await?;
    if deleted == 1 {
        next_version(&tx, tenant).await?;
    }
    Ok(deleted == 1)
}

/// The version at which the tenant's catalogue changes now. None: there is no such tenant.
async fn next_version(tx: &Session, tenant: &TenantId) -> Result<Option<i64>, Failure> {
    let next = "UPDATE tenants SET config_version = config_version + 1, types_version = config_version + 1
                WHERE id = $1 AND deleted_at IS NULL RETURNING config_version";
    let row = tx.query_opt(next, &[&tenant.as_str()]).await?;
    changes::tell(tx, &Change::Tenant(tenant.clone())).await?;
    row.map(|row| plain(&row, 0)).transpose()
}

async fn find(session: &Session, tenant: &TenantId, name: &str) -> Result<Option<VersionedType>, Failure> {
    let found = event_types!("WHERE tenant = $1 AND name = $2");
    let row = session.query_opt(found, &[&tenant.as_str(), &name]).await?;
    row.as_ref().map(read).transpose()
}

async fn list(
    session: Tx,
    tenant: &TenantId,
    archived: Option<bool>,
    page: &PageRequest<String>,
) -> Result<Vec<EventType>, Failure> {
    let listed = event_types!(
        "WHERE tenant = $1 AND name > $2 AND ($3::boolean IS NULL OR archived = $3) ORDER BY name LIMIT $4 OFFSET $5"
    );
    let after = page.after.as_deref().unwrap_or_default();
    let (limit, offset) = (i64::from(page.limit), i64::from(page.offset));
    let rows = session.query(listed, &[&tenant.as_str(), &after, &archived, &limit, &offset]).await?;
    rows.iter().map(|row| Ok(read(row)?.event_type)).collect()
}

async fn store(tx: &Session, event_type: &EventType, version: i64) -> Result<(), Failure> {
    tx.execute(
        "INSERT INTO event_types (tenant, name, revision, archived, description, example, schema, created_at,
                                  updated_at)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
         ON CONFLICT (tenant, name) DO UPDATE SET revision = excluded.revision, archived = excluded.archived,
             description = excluded.description, example = excluded.example, schema = excluded.schema,
             created_at = excluded.created_at, updated_at = excluded.updated_at",
        &[
            &event_type.tenant.as_str(),
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
        tenant: get(row, 0)?,
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
