//! Encryption of confidential fields, and re-encryption with a new master key.

use std::sync::Arc;

use redrive_core::webhook::{
    Webhook, WebhookSpec,
    confidential::{EndpointAuth, SecretString},
};

use super::{Harness, at};
use crate::{RewrapProgress, UpdateResult};

/// Returns a webhook with every confidential field.
fn webhook_with_secrets(harness: &Harness) -> Webhook {
    let webhook = harness.webhook_of(&harness.tenant_id);
    let spec = WebhookSpec {
        headers: [("x-api-key".to_owned(), SecretString::new("header"))].into(),
        auth: Some(EndpointAuth::Basic { username: "me".into(), password: SecretString::new("password") }),
        ..webhook.spec
    };
    Webhook { spec, ..webhook }
}

pub async fn confidential_fields_are_returned_unchanged(harness: &mut Arc<Harness>) {
    let webhook = webhook_with_secrets(harness);
    let created = harness.store().create_webhook(webhook.clone()).await.unwrap();
    assert!(matches!(created, UpdateResult::Updated { .. }));
    Harness::reopen(harness).await;
    let found = harness.store().webhook(harness.tenant_id.clone(), webhook.id).await.unwrap().unwrap();
    assert_eq!(found.webhook, webhook);
    let listed = harness.store().webhooks_by_id(vec![webhook.id]).await.unwrap();
    assert_eq!(listed, std::slice::from_ref(&webhook));
    // A change of the webhook encrypts its fields again.
    let changed = Webhook { updated_at: at(9), ..webhook };
    harness.store().change_webhook(changed.clone(), found.revision, None).await.unwrap();
    let found = harness.store().webhook(harness.tenant_id.clone(), changed.id).await.unwrap().unwrap();
    assert_eq!(found.webhook, changed);
}

pub async fn master_keys_in_use_are_listed(harness: &Arc<Harness>) {
    harness.store().create_webhook(webhook_with_secrets(harness)).await.unwrap();
    assert_eq!(harness.store().encryption_keys().await.unwrap().len(), 1);
    // All of them are encrypted with the current key, so rewrapping changes nothing.
    let mut after = None;
    let mut looked = 0;
    loop {
        let RewrapProgress { last, changed } = harness.store().rewrap(after, 1).await.unwrap();
        assert_eq!(changed, 0);
        if last.is_none() {
            break;
        }
        assert!(last > after);
        (after, looked) = (last, looked + 1);
    }
    assert_eq!(looked, 2);
}
