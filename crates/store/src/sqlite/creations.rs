//! Creating objects at most once per idempotency key.

use rusqlite::{Connection, OptionalExtension};

use super::{
    Sqlite, convert::Col, event_types, operations, tenancy, transaction::WriteTransaction, webhooks,
};
use crate::{
    CreatedObject, CreationKey, CreationResult, Creations, NewObject, StoreFuture, sealed::SealedWebhook,
};

impl Creations for Sqlite {
    fn create(&self, object: NewObject, key: CreationKey) -> StoreFuture<'_, CreationResult> {
        let id = object.id();
        let sealed = match object.seal(&self.seals) {
            Ok(sealed) => sealed,
            Err(error) => return Box::pin(async { Err(error) }),
        };
        self.write(move |transaction| {
            if let Some(used) = find(transaction, &key)? {
                return Ok(CreationResult::KeyUsed(used));
            }
            let result = create(transaction, sealed)?;
            if let CreationResult::Created { .. } = result {
                transaction
                    .prepare_cached(
                        "INSERT OR REPLACE INTO creation_keys (tenant_id, key_hash, body_hash, object, expires_at)
                         VALUES (?, ?, ?, ?, ?)",
                    )?
                    .execute((key.tenant(), key.key_hash, key.body_hash, id, Col(key.expires_at)))?;
            }
            Ok(result)
        })
    }

    fn created_object(&self, key: CreationKey) -> StoreFuture<'_, Option<CreatedObject>> {
        self.read_for_user(move |connection| find(connection, &key))
    }
}

fn find(connection: &Connection, key: &CreationKey) -> rusqlite::Result<Option<CreatedObject>> {
    connection
        .prepare_cached(
            "SELECT object, body_hash FROM creation_keys WHERE tenant_id = ? AND key_hash = ? AND expires_at > ?",
        )?
        .query_row((key.tenant(), key.key_hash, Col(key.confirmed_now)), |row| {
            Ok(CreatedObject { id: row.get(0)?, body_hash: row.get(1)? })
        })
        .optional()
}

fn create(
    transaction: &WriteTransaction<'_>,
    object: NewObject<SealedWebhook>,
) -> rusqlite::Result<CreationResult> {
    const CREATED: CreationResult = CreationResult::Created { version: 0 };
    Ok(match object {
        NewObject::Webhook(webhook, Some(circuit)) => {
            webhooks::store_with_circuit(transaction, &webhook, None, &circuit)?.into()
        }
        NewObject::Webhook(webhook, None) => webhooks::create(transaction, &webhook)?.into(),
        NewObject::Tenant(tenant) => match tenancy::create_tenant(transaction, &tenant)? {
            true => CREATED,
            false => CreationResult::Exists,
        },
        NewObject::Key(key) => match tenancy::create_key(transaction, &key)? {
            true => CREATED,
            false => CreationResult::NoTenant,
        },
        NewObject::EventType(event_type, max) => event_types::create(transaction, &event_type, max)?.into(),
        NewObject::Operation(operation) => {
            operations::create(transaction, &operation)?;
            CREATED
        }
    })
}
