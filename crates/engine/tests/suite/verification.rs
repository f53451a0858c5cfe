//! Asking endpoints to echo a challenge: tenants share the slots for it.

use crate::harness::{START, world};
use redrive_core::{
    TenantId, tenancy::TenantRules, webhook::WebhookState, webhook::verification::Verification,
};
use redrive_store::Tenant;
use redrive_testkit::{Hostile, Hostility, Receiver, Reply};

/// More than are looked at in one step.
const TARPITS: usize = 550;

#[tokio::test(flavor = "multi_thread")]
async fn many_due_verifications_of_one_tenant_do_not_hide_those_of_another() {
    let world = world().await;
    let globex = TenantId::parse("globex").unwrap();
    let tenant = Tenant { id: globex.clone(), name: None, rules: TenantRules::default(), created_at: START };
    assert!(world.store.create_tenant(tenant).await.unwrap());
    let tarpit = Hostile::start(Hostility::NeverAnswers).await;
    let pending = || WebhookState::PendingVerification(Verification::begin(START, false));
    for _ in 0..TARPITS {
        world.hook(&tarpit.url(), |hook| hook.state = pending()).await;
    }
    let receiver = Receiver::with(|arrival| Reply::status(200).body(arrival.body.clone())).await;
    let hook = world
        .hook(&receiver.url(), |hook| {
            hook.tenant = globex.clone();
            hook.state = pending();
        })
        .await;
    world
        .eventually("the other tenant's endpoint was asked and echoed", async || {
            let found = world.store.webhook(globex.clone(), hook.id).await.unwrap().unwrap();
            found.webhook.state == WebhookState::Active
        })
        .await;
    assert!(tarpit.connections() <= 16, "{} endpoints of one tenant were asked", tarpit.connections());
}
