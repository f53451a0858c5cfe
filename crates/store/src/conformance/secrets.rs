//! What is confidential is sealed, and can be sealed anew.

use std::sync::Arc;

use redrive_core::{
    webhook::confidential::{EndpointAuth, Hidden},
    webhook::{Webhook, WebhookSpec},
};

use super::{Bench, at};
use crate::{Changed, Rewrapped};

/// A webhook with everything that is confidential.
fn confiding(bench: &Bench) -> Webhook {
    let webhook = bench.webhook_of(&bench.tenant);
    let spec = WebhookSpec {
        headers: [("x-api-key".to_owned(), Hidden::new("header"))].into(),
        auth: Some(EndpointAuth::Basic { username: "me".into(), password: Hidden::new("password") }),
        ..webhook.spec
    };
    Webhook { spec, ..webhook }
}

pub async fn what_is_confidential_comes_back_as_it_was(bench: &mut Arc<Bench>) {
    let webhook = confiding(bench);
    let created = bench.store().create_webhook(webhook.clone()).await.unwrap();
    assert!(matches!(created, Changed::Done { .. }));
    Bench::reopen(bench).await;
    let found = bench.store().webhook(bench.tenant.clone(), webhook.id).await.unwrap().unwrap();
    assert_eq!(found.webhook, webhook);
    let listed = bench.store().webhooks_by_id(vec![webhook.id]).await.unwrap();
    assert_eq!(listed, std::slice::from_ref(&webhook));
    // A change by hand seals it anew.
    let changed = Webhook { updated_at: at(9), ..webhook };
    bench.store().change_webhook(changed.clone(), found.revision, None).await.unwrap();
    let found = bench.store().webhook(bench.tenant.clone(), changed.id).await.unwrap().unwrap();
    assert_eq!(found.webhook, changed);
}

pub async fn it_is_known_which_master_keys_are_in_use(bench: &Arc<Bench>) {
    bench.store().create_webhook(confiding(bench)).await.unwrap();
    assert_eq!(bench.store().sealed_with().await.unwrap().len(), 1);
    // All of them are sealed with the current key: there is nothing to do.
    let mut after = None;
    let mut looked = 0;
    loop {
        let Rewrapped { last, changed } = bench.store().rewrap(after, 1).await.unwrap();
        assert_eq!(changed, 0);
        if last.is_none() {
            break;
        }
        assert!(last > after);
        (after, looked) = (last, looked + 1);
    }
    assert_eq!(looked, 2);
}
