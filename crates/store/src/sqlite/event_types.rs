//! The catalogue of event types.

use redrive_core::TenantId;
use rusqlite::{Connection, OptionalExtension, Row, Transaction};

use super::{
    Sqlite, changes,
    convert::{Col, get},
    transaction::WriteTransaction,
};
use crate::{Answer, Change, Changed, EventType, EventTypes, PageRequest, Registered, VersionedType};

const COLUMNS: &str =
    "tenant, name, revision, archived, description, example, schema, created_at, updated_at";

impl EventTypes for Sqlite {
    fn create_event_type(&self, event_type: EventType, most: usize) -> Answer<'_, Registered> {
        self.write(move |transaction| {
            let tenant = &event_type.tenant;
            if find(transaction, tenant, &event_type.name)?.is_some() {
                return Ok(Registered::Exists);
            }
            let there: i64 = transaction
                .prepare_cached("SELECT count(*) FROM event_types WHERE tenant = ?")?
                .query_row([tenant.as_str()], |row| row.get(0))?;
            if there >= most as i64 {
                return Ok(Registered::TooMany);
            }
            let Some(version) = next_version(transaction, tenant)? else { return Ok(Registered::Missing) };
            store(transaction, &event_type, version)?;
            Ok(Registered::Done)
        })
    }

    fn change_event_type(&self, event_type: EventType, revision: i64) -> Answer<'_, Changed> {
        self.write(move |transaction| {
            let tenant = &event_type.tenant;
            let Some(now) = find(transaction, tenant, &event_type.name)? else { return Ok(Changed::Missing) };
            if now.revision != revision {
                return Ok(Changed::Stale);
            }
            let Some(version) = next_version(transaction, tenant)? else { return Ok(Changed::Missing) };
            store(transaction, &event_type, version)?;
            Ok(Changed::Done { version })
        })
    }

    fn delete_event_type(&self, tenant: TenantId, name: String) -> Answer<'_, bool> {
        self.write(move |transaction| {
            let deleted = transaction
                .prepare_cached("DELETE FROM event_types WHERE tenant = ? AND name = ?")?
                .execute((tenant.as_str(), name))?;
            if deleted == 1 {
                next_version(transaction, &tenant)?;
            }
            Ok(deleted == 1)
        })
    }

    fn event_type(&self, tenant: TenantId, name: String) -> Answer<'_, Option<VersionedType>> {
        self.list_for(tenant.clone(), move |connection| find(connection, &tenant, &name))
    }

    fn list_event_types(
        &self,
        tenant: TenantId,
        archived: Option<bool>,
        page: PageRequest<String>,
    ) -> Answer<'_, Vec<EventType>> {
        self.list_for(tenant.clone(), move |connection| {
            let after = page.after.unwrap_or_default();
            connection
                .prepare_cached(&format!(
                    "SELECT {COLUMNS} FROM event_types
                     WHERE tenant = ?1 AND name > ?2 AND (?3 IS NULL OR archived = ?3)
                     ORDER BY name LIMIT ?4 OFFSET ?5"
                ))?
                .query_map((tenant.as_str(), after, archived, page.limit, page.offset), |row| {
                    Ok(read(row)?.event_type)
                })?
                .collect()
        })
    }

    fn event_types_since(
        &self,
        tenant: TenantId,
        revision: i64,
        limit: usize,
    ) -> Answer<'_, Vec<VersionedType>> {
        self.read(move |connection| {
            connection
                .prepare_cached(&format!(
                    "SELECT {COLUMNS} FROM event_types WHERE tenant = ? AND revision > ? ORDER BY revision LIMIT ?"
                ))?
                .query_map((tenant.as_str(), revision, limit as i64), read)?
                .collect()
        })
    }

    fn event_type_names(&self, tenant: TenantId) -> Answer<'_, Vec<String>> {
        self.read(move |connection| {
            connection
                .prepare_cached("SELECT name FROM event_types WHERE tenant = ? ORDER BY name")?
                .query_map([tenant.as_str()], |row| row.get(0))?
                .collect()
        })
    }
}

/// The version at which the tenant's catalogue changes now. None: there is no such tenant.
fn next_version(transaction: &WriteTransaction<'_>, tenant: &TenantId) -> rusqlite::Result<Option<i64>> {
    let version = transaction
        .prepare_cached(
            "UPDATE tenants SET config_version = config_version + 1, types_version = config_version + 1
             WHERE id = ? AND deleted_at IS NULL RETURNING config_version",
        )?
        .query_row([tenant.as_str()], |row| row.get(0))
        .optional()?;
    changes::tell(transaction, &Change::Tenant(tenant.clone()))?;
    Ok(version)
}

fn find(connection: &Connection, tenant: &TenantId, name: &str) -> rusqlite::Result<Option<VersionedType>> {
    connection
        .prepare_cached(&format!("SELECT {COLUMNS} FROM event_types WHERE tenant = ? AND name = ?"))?
        .query_row((tenant.as_str(), name), read)
        .optional()
}

fn store(transaction: &Transaction<'_>, event_type: &EventType, version: i64) -> rusqlite::Result<()> {
    transaction
        .prepare_cached(&format!(
            "INSERT OR REPLACE INTO event_types ({COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
        ))?
        .execute((
            event_type.tenant.as_str(),
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
        tenant: get(row, 0)?,
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
