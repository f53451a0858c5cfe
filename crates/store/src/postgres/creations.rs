//! Creating objects at most once per idempotency key.

use super::{
    Postgres,
    convert::{Col, hash, plain},
    event_types, operations,
    session::{Failure, Session, Tx},
    tenancy, webhooks,
};
use crate::{
    CreatedObject, CreationKey, CreationResult, Creations, NewObject, StoreFuture, sealed::SealedWebhook,
};

/// Reserves a key. A transaction that creates an object under the same key waits here until this one has ended. Reserves
/// nothing if the key is in use.
const RESERVE: &str = "INSERT INTO creation_keys (tenant_id, key_hash, body_hash, object, expires_at)
     VALUES ($1, $2, $3, $4, $5)
     ON CONFLICT (tenant_id, key_hash) DO UPDATE SET body_hash = excluded.body_hash, object = excluded.object,
         expires_at = excluded.expires_at
     WHERE creation_keys.expires_at <= $6";
const RELEASE: &str = "DELETE FROM creation_keys WHERE tenant_id = $1 AND key_hash = $2";
const FIND: &str =
    "SELECT object, body_hash FROM creation_keys WHERE tenant_id = $1 AND key_hash = $2 AND expires_at > $3";

impl Creations for Postgres {
    fn create(&self, object: NewObject, key: CreationKey) -> StoreFuture<'_, CreationResult> {
        Box::pin(async move {
            let id = object.id();
            let sealed = object.seal(&self.shared.seals)?;
            let created = self.administer(|tx| create_once(tx, &sealed, &id, &key)).await?;
            self.shared.hints.change();
            Ok(created)
        })
    }

    fn created_object(&self, key: CreationKey) -> StoreFuture<'_, Option<CreatedObject>> {
        Box::pin(async move {
            let key = &key;
            self.read_for_user(|session| async move { find(&session, key).await }).await
        })
    }
}

async fn find(session: &Session, key: &CreationKey) -> Result<Option<CreatedObject>, Failure> {
    let values: [&(dyn tokio_postgres::types::ToSql + Sync); 3] =
        [&key.tenant(), &&key.key_hash[..], &Col(key.confirmed_now)];
    let row = session.query_opt(FIND, &values).await?;
    row.map(|row| Ok(CreatedObject { id: plain(&row, 0)?, body_hash: hash(&row, 1)? })).transpose()
}

async fn create_once(
    tx: Tx,
    object: &NewObject<SealedWebhook>,
    id: &str,
    key: &CreationKey,
) -> Result<CreationResult, Failure> {
    let (tenant, hash) = (key.tenant(), &key.key_hash[..]);
    let reserved = tx
        .execute(
            RESERVE,
            &[&tenant, &hash, &&key.body_hash[..], &id, &Col(key.expires_at), &Col(key.confirmed_now)],
        )
        .await?;
    if reserved == 0 {
        // The key cannot have expired or been pruned since then, by the same confirmed time.
        return find(&tx, key).await?.map(CreationResult::KeyUsed).ok_or(Failure::Contention);
    }
    let result = create(&tx, object).await?;
    if !matches!(result, CreationResult::Created { .. }) {
        tx.execute(RELEASE, &[&tenant, &hash]).await?;
    }
    Ok(result)
}

async fn create(tx: &Tx, object: &NewObject<SealedWebhook>) -> Result<CreationResult, Failure> {
    const CREATED: CreationResult = CreationResult::Created { version: 0 };
    Ok(match object {
        NewObject::Webhook(webhook, Some(circuit)) => {
            webhooks::store_with_circuit(tx.clone(), webhook, None, circuit).await?.into()
        }
        NewObject::Webhook(webhook, None) => webhooks::create(tx.clone(), webhook).await?.into(),
        NewObject::Tenant(tenant) => match tenancy::create_tenant(tx.clone(), tenant).await? {
            true => CREATED,
            false => CreationResult::Exists,
        },
        NewObject::Key(key) => match tenancy::create_key(tx.clone(), key).await? {
            true => CREATED,
            false => CreationResult::NoTenant,
        },
        NewObject::EventType(event_type, max) => {
            event_types::create(tx.clone(), event_type, *max).await?.into()
        }
        NewObject::Operation(operation) => {
            operations::create(tx.clone(), operation).await?;
            CREATED
        }
    })
}
