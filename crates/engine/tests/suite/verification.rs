//! Endpoint verification: tenants share the slots for challenges.

use crate::harness::{START, world};
use redrive_core::{
    TenantId,
    tenancy::TenantRules,
    webhook::{WebhookState, verification::Verification},
};
use redrive_store::Tenant;
use redrive_testkit::{MisbehavingReceiver, Misbehavior, Receiver, Reply};

/// Number of unresponsive endpoints; more than one page of due webhooks.
const TARPITS: usize = 550;

#[tokio::test(flavor = "multi_thread")]
async fn due_verifications_of_one_tenant_do_not_block_another() {
    let harness = world().await;
    let globex = TenantId::parse("globex").unwrap();
    let tenant = Tenant {
        id: globex.clone(),
        metadata: Default::default(),
        name: None,
        rules: TenantRules::default(),
        created_at: START,
    };
    assert!(harness.store.create_tenant(tenant).await.unwrap());
    let tarpit = MisbehavingReceiver::start(Misbehavior::NeverAnswers).await;
    let pending = || WebhookState::PendingVerification(Verification::begin(START, false));
    for _ in 0..TARPITS {
        harness.create_webhook(&tarpit.url(), |webhook| webhook.state = pending()).await;
    }
    let receiver = Receiver::with(|arrival| Reply::status(200).body(arrival.body.clone())).await;
    let webhook = harness
        .create_webhook(&receiver.url(), |webhook| {
            webhook.tenant_id = globex.clone();
            webhook.state = pending();
        })
        .await;
    harness
        .eventually("the other tenant's endpoint was challenged and echoed", async || {
            let found = harness.store.webhook(globex.clone(), webhook.id).await.unwrap().unwrap();
            found.webhook.state == WebhookState::Active
        })
        .await;
    assert!(tarpit.connections() <= 16, "{} endpoints of one tenant were challenged", tarpit.connections());
}
