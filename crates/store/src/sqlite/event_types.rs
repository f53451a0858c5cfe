//! The catalogue of event types.

use redrive_core::TenantId;
use rusqlite::{Connection, OptionalExtension, Row, Transaction};

use super::{
    Sqlite, changes,
    convert::{Col, get},
    transaction::WriteTransaction,
};
use crate::{
    Change, EventType, EventTypeChanges, EventTypes, PageRequest, RegisterResult, StoreFuture, UpdateResult,
    VersionedType,
};

const COLUMNS: &str =
    "tenant_id, name, revision, archived, description, example, schema, created_at, updated_at";

impl EventTypes for Sqlite {
    fn create_event_type(&self, event_type: EventType, max: usize) -> StoreFuture<'_, RegisterResult> {
        self.write(move |transaction| create(transaction, &event_type, max))
    }

    fn change_event_type(&self, event_type: EventType, revision: i64) -> StoreFuture<'_, UpdateResult> {
        self.write(move |transaction| {
            let tenant_id = &event_type.tenant_id;
            let Some(now) = find(transaction, tenant_id, &event_type.name)? else {
                return Ok(UpdateResult::NotFound);
            };
            if now.revision != revision {
                return Ok(UpdateResult::Stale);
            }
            let Some(version) = next_version(transaction, tenant_id)? else {
                return Ok(UpdateResult::NotFound);
            };
            store(transaction, &event_type, version)?;
            Ok(UpdateResult::Updated { version })
        })
    }

    fn delete_event_type(&self, tenant_id: TenantId, name: String) -> StoreFuture<'_, bool> {
        self.write(move |transaction| {
            let deleted = transaction
                .prepare_cached("DELETE FROM event_types WHERE tenant_id = ? AND name = ?")?
                .execute((tenant_id.as_str(), name))?;
            if deleted == 1 {
                next_version(transaction, &tenant_id)?;
            }
            Ok(deleted == 1)
        })
    }

    fn event_type(&self, tenant_id: TenantId, name: String) -> StoreFuture<'_, Option<VersionedType>> {
        self.list_for(tenant_id.clone(), move |connection| find(connection, &tenant_id, &name))
    }

    fn list_event_types(
        &self,
        tenant_id: TenantId,
        archived: Option<bool>,
        page: PageRequest<String>,
    ) -> StoreFuture<'_, Vec<EventType>> {
        self.list_for(tenant_id.clone(), move |connection| {
            let after = page.after.unwrap_or_default();
            connection
                .prepare_cached(&format!(
                    "SELECT {COLUMNS} FROM event_types
                     WHERE tenant_id = ?1 AND name > ?2 AND (?3 IS NULL OR archived = ?3)
                     ORDER BY name LIMIT ?4 OFFSET ?5"
                ))?
                .query_map((tenant_id.as_str(), after, archived, page.limit, page.offset), |row| {
                    Ok(read(row)?.event_type)
                })?
                .collect()
        })
    }
}

impl EventTypeChanges for Sqlite {
    fn event_types_since(
        &self,
        tenant_id: TenantId,
        revision: i64,
        limit: usize,
    ) -> StoreFuture<'_, Vec<VersionedType>> {
        self.read(move |connection| {
            connection
                .prepare_cached(&format!(
                    "SELECT {COLUMNS} FROM event_types WHERE tenant_id = ? AND revision > ? ORDER BY revision LIMIT ?"
                ))?
                .query_map((tenant_id.as_str(), revision, limit as i64), read)?
                .collect()
        })
    }

    fn event_type_names(&self, tenant_id: TenantId) -> StoreFuture<'_, Vec<String>> {
        self.read(move |connection| {
            connection
                .prepare_cached("SELECT name FROM event_types WHERE tenant_id = ? ORDER BY name")?
                .query_map([tenant_id.as_str()], |row| row.get(0))?
                .collect()
        })
    }
}

/// Registers an event type, unless the tenant already has `max`.
pub(super) fn create(
    transaction: &WriteTransaction<'_>,
    event_type: &EventType,
    max: usize,
) -> rusqlite::Result<RegisterResult> {
    let tenant_id = &event_type.tenant_id;
    if find(transaction, tenant_id, &event_type.name)?.is_some() {
        return Ok(RegisterResult::Exists);
    }
    let there: i64 = transaction
        .prepare_cached("SELECT count(*) FROM event_types WHERE tenant_id = ?")?
        .query_row([tenant_id.as_str()], |row| row.get(0))?;
    if there >= max as i64 {
        return Ok(RegisterResult::LimitReached);
    }
    let Some(version) = next_version(transaction, tenant_id)? else { return Ok(RegisterResult::NotFound) };
    store(transaction, event_type, version)?;
    Ok(RegisterResult::Done)
}

/// Returns the next version of the tenant's catalogue. Returns `None` if the tenant does not exist.
fn next_version(transaction: &WriteTransaction<'_>, tenant_id: &TenantId) -> rusqlite::Result<Option<i64>> {
    let version = transaction
        .prepare_cached(
            "UPDATE tenants SET config_version = config_version + 1, event_types_version = config_version + 1
             WHERE id = ? AND deleted_at IS NULL RETURNING config_version",
        )?
        .query_row([tenant_id.as_str()], |row| row.get(0))
        .optional()?;
    changes::append(transaction, &Change::Tenant(tenant_id.clone()))?;
    Ok(version)
}

fn find(
    connection: &Connection,
    tenant_id: &TenantId,
    name: &str,
) -> rusqlite::Result<Option<VersionedType>> {
    connection
        .prepare_cached(&format!("SELECT {COLUMNS} FROM event_types WHERE tenant_id = ? AND name = ?"))?
        .query_row((tenant_id.as_str(), name), read)
        .optional()
}

fn store(transaction: &Transaction<'_>, event_type: &EventType, version: i64) -> rusqlite::Result<()> {
    transaction
        .prepare_cached(&format!(
            "INSERT OR REPLACE INTO event_types ({COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
        ))?
        .execute((
            event_type.tenant_id.as_str(),
            &event_type.name,
            version,
            event_type.archived,
            &event_type.description,
            &event_type.example,
            &event_type.schema,
            Col(event_type.created_at),
            Col(event_type.updated_at),
        ))?;
    Ok(())
}

fn read(row: &Row<'_>) -> rusqlite::Result<VersionedType> {
    let event_type = EventType {
        tenant_id: get(row, 0)?,
        name: row.get(1)?,
        archived: row.get(3)?,
        description: row.get(4)?,
        example: row.get(5)?,
        schema: row.get(6)?,
        created_at: get(row, 7)?,
        updated_at: get(row, 8)?,
    };
    Ok(VersionedType { event_type, revision: row.get(2)? })
}
