//! Email addresses that receive notifications, and counts of sent emails.

use std::{sync::Arc, time::Duration};

use redrive_core::{
    TenantId, Time,
    notification::{
        confirmation::ConfirmedBy,
        mail_limit::{CONFIRMATIONS_PER_MAILBOX, CONFIRMATIONS_PER_TENANT, MailPurpose, SendLimit},
    },
};

use super::{Harness, at};
use crate::{ConfirmationRequestResult, EmailAddress, EmailReservation, EmailScope, ReserveResult, Tenant};

const JANE: &str = "jane.o'neil+\u{1f600}@example.com";
const OPS: &str = "ops@example.com";
const HOUR: i64 = 3_600_000;

fn confirmation(tenant_id: &TenantId, address: &str, now: i64) -> EmailReservation {
    EmailReservation {
        tenant_id: tenant_id.clone(),
        address: address.into(),
        purpose: MailPurpose::Confirmation,
        at: at(now),
        per_tenant: CONFIRMATIONS_PER_TENANT,
        per_mailbox: CONFIRMATIONS_PER_MAILBOX,
    }
}

async fn request(harness: &Harness, address: &str, now: i64) -> ConfirmationRequestResult {
    harness.store().request_confirmation(confirmation(&harness.tenant_id, address, now)).await.unwrap()
}

async fn known(harness: &Harness, tenant_id: &TenantId, address: &str) -> Option<EmailAddress> {
    harness.store().email_addresses(tenant_id.clone(), vec![address.into()]).await.unwrap().pop()
}

async fn confirm(harness: &Harness, tenant_id: &TenantId, address: &str, now: i64) -> bool {
    harness
        .store()
        .confirm_address(tenant_id.clone(), address.into(), ConfirmedBy::Holder, at(now))
        .await
        .unwrap()
}

async fn other_tenant(harness: &Harness) -> TenantId {
    let other = TenantId::parse("globex").unwrap();
    let tenant = Tenant {
        id: other.clone(),
        metadata: Default::default(),
        name: None,
        rules: Default::default(),
        created_at: at(1),
    };
    harness.store().create_tenant(tenant).await.unwrap();
    other
}

pub async fn confirmation_is_requested_and_claimed_once(harness: &mut Arc<Harness>) {
    assert_eq!(harness.store().next_confirmation().await.unwrap(), None);
    assert_eq!(request(harness, JANE, 5).await, ConfirmationRequestResult::Requested);
    assert_eq!(
        request(harness, JANE, 6).await,
        ConfirmationRequestResult::Requested,
        "the first request is still pending"
    );
    Harness::reopen(harness).await;
    assert_eq!(harness.store().next_confirmation().await.unwrap(), Some(at(5)));
    assert_eq!(harness.store().take_confirmations(at(4), 10).await.unwrap(), []);
    let expected = EmailAddress {
        tenant_id: harness.tenant_id.clone(),
        address: JANE.into(),
        requested_at: Some(at(5)),
        requests: 1,
        confirmed: None,
        send_at: None,
    };
    assert_eq!(harness.store().take_confirmations(at(5), 10).await.unwrap(), std::slice::from_ref(&expected));
    assert_eq!(harness.store().take_confirmations(at(5), 10).await.unwrap(), []);
    assert_eq!(known(harness, &harness.tenant_id, JANE).await, Some(expected));
    assert_eq!(known(harness, &harness.tenant_id, OPS).await, None);
}

pub async fn confirmed_address_gets_no_further_requests(harness: &mut Arc<Harness>) {
    request(harness, JANE, 5).await;
    assert!(confirm(harness, &harness.tenant_id, JANE, 7).await);
    assert!(!confirm(harness, &harness.tenant_id, JANE, 8).await, "a repeated confirmation changes nothing");
    Harness::reopen(harness).await;
    let found = known(harness, &harness.tenant_id, JANE).await.unwrap();
    assert_eq!((found.confirmed, found.send_at), (Some((at(7), ConfirmedBy::Holder)), None));
    assert_eq!(harness.store().take_confirmations(at(9), 10).await.unwrap(), []);
    assert_eq!(request(harness, JANE, 3 * HOUR).await, ConfirmationRequestResult::AlreadyConfirmed);
    let operator = ConfirmedBy::Operator;
    let marked =
        harness.store().confirm_address(harness.tenant_id.clone(), OPS.into(), operator, at(9)).await;
    assert!(marked.unwrap(), "an operator confirms without a request");
    let found = known(harness, &harness.tenant_id, OPS).await.unwrap();
    assert_eq!((found.confirmed, found.requests), (Some((at(9), operator)), 0));
}

pub async fn tenant_and_mailbox_limits_hold_across_tenants_and_reopening(harness: &mut Arc<Harness>) {
    let other = other_tenant(harness).await;
    let mut sent = 0;
    for hour in 0..10 {
        for tenant_id in [harness.tenant_id.clone(), other.clone()] {
            // Addresses that differ only in their tag share one mailbox.
            let address = format!("victim+{hour}@example.com");
            let request = confirmation(&tenant_id, &address, hour * HOUR);
            let result = harness.store().request_confirmation(request).await.unwrap();
            sent += usize::from(result == ConfirmationRequestResult::Requested);
            if sent == 3 && hour > 3 {
                assert!(
                    matches!(result, ConfirmationRequestResult::LimitReached(EmailScope::Mailbox, until)
                        if until >= at(30 * 24 * HOUR)),
                    "{result:?}"
                );
            }
        }
        Harness::reopen(harness).await;
    }
    assert_eq!(sent, 3);
    let now = 11 * HOUR;
    let mut last = ConfirmationRequestResult::Requested;
    for n in 0..25 {
        last = request(harness, &format!("{n}@example.com"), now).await;
    }
    assert!(matches!(last, ConfirmationRequestResult::LimitReached(EmailScope::Tenant, _)), "{last:?}");
    let request = confirmation(&other, "24@example.com", now);
    let result = harness.store().request_confirmation(request).await.unwrap();
    assert_eq!(result, ConfirmationRequestResult::Requested, "each tenant has its own limit");
}

pub async fn refused_request_stores_no_address(harness: &Arc<Harness>) {
    for n in 0..20 {
        assert_eq!(
            request(harness, &format!("{n}@example.com"), 5).await,
            ConfirmationRequestResult::Requested
        );
    }
    assert!(matches!(
        request(harness, "next@example.com", 5).await,
        ConfirmationRequestResult::LimitReached(..)
    ));
    assert_eq!(known(harness, &harness.tenant_id, "next@example.com").await, None);
    let unknown = confirmation(&TenantId::parse("unknown").unwrap(), OPS, 5);
    let result = harness.store().request_confirmation(unknown).await.unwrap();
    assert_eq!(result, ConfirmationRequestResult::NotFound);
}

pub async fn concurrent_requests_and_claims_never_exceed_the_limits(harness: &Arc<Harness>) {
    let other = other_tenant(harness).await;
    let mut running = Vec::new();
    for n in 0..40 {
        let (harness, other) = (harness.clone(), other.clone());
        running.push(tokio::spawn(async move {
            let tenant_id = if n % 2 == 0 { harness.tenant_id.clone() } else { other };
            let result =
                harness.store().request_confirmation(confirmation(&tenant_id, "victim@example.com", 5)).await;
            let taken = harness.store().take_confirmations(at(5), 3).await.unwrap().len();
            (result.unwrap(), taken)
        }));
    }
    let mut taken = 0;
    for one in running {
        taken += one.await.unwrap().1;
    }
    taken += harness.store().take_confirmations(at(5), 10).await.unwrap().len();
    assert_eq!(taken, 1, "one confirmation per hour across all nodes");
}

fn notification(tenant_id: &TenantId, address: &str, now: Time) -> EmailReservation {
    let limit = |max| SendLimit { max_per_hour: Some(max), ..SendLimit::default() };
    EmailReservation {
        tenant_id: tenant_id.clone(),
        address: address.into(),
        purpose: MailPurpose::Notification,
        at: now,
        per_tenant: limit(3),
        per_mailbox: limit(2),
    }
}

pub async fn released_reservation_can_be_reserved_again(harness: &mut Arc<Harness>) {
    let reserve = async |harness: &Harness, address: &str, now| {
        let reservation = notification(&harness.tenant_id, address, at(now));
        match harness.store().reserve_email(reservation).await.unwrap() {
            ReserveResult::Reserved => None,
            ReserveResult::LimitReached(scope, _) => Some(scope),
        }
    };
    assert_eq!(reserve(harness, OPS, 1).await, None);
    assert_eq!(reserve(harness, OPS, 2).await, None);
    assert_eq!(reserve(harness, OPS, 3).await, Some(EmailScope::Mailbox));
    Harness::reopen(harness).await;
    assert_eq!(reserve(harness, JANE, 3).await, None, "a refused reservation does not count for the tenant");
    assert_eq!(reserve(harness, JANE, 4).await, Some(EmailScope::Tenant));
    harness.store().release_email(notification(&harness.tenant_id, OPS, at(1))).await.unwrap();
    assert_eq!(reserve(harness, OPS, 4).await, None);
    assert_eq!(reserve(harness, OPS, 5).await, Some(EmailScope::Tenant));
    let purpose = confirmation(&harness.tenant_id, OPS, 5);
    let other = harness.store().request_confirmation(purpose).await.unwrap();
    assert_eq!(other, ConfirmationRequestResult::Requested, "each purpose has its own limits");
}

pub async fn unsent_confirmation_is_retried_unless_already_confirmed(harness: &Arc<Harness>) {
    request(harness, JANE, 5).await;
    request(harness, OPS, 5).await;
    assert_eq!(harness.store().take_confirmations(at(5), 10).await.unwrap().len(), 2);
    confirm(harness, &harness.tenant_id, OPS, 6).await;
    for address in [JANE, OPS, "else@example.com"] {
        harness.store().retry_confirmation(harness.tenant_id.clone(), address.into(), at(9)).await.unwrap();
    }
    assert_eq!(harness.store().next_confirmation().await.unwrap(), Some(at(9)));
    let taken = harness.store().take_confirmations(at(9), 10).await.unwrap();
    assert_eq!(taken.iter().map(|one| (one.address.as_str(), one.requests)).collect::<Vec<_>>(), [(JANE, 1)]);
}

pub async fn only_unconfirmed_addresses_and_old_usage_are_pruned(harness: &Arc<Harness>) {
    for (address, now) in [("old@example.com", 5), (JANE, 5), (OPS, 50)] {
        request(harness, address, now).await;
    }
    confirm(harness, &harness.tenant_id, JANE, 6).await;
    let store = harness.store();
    assert_eq!(store.prune_email_addresses(at(50), at(5), 10).await.unwrap(), 1);
    assert_eq!(known(harness, &harness.tenant_id, "old@example.com").await, None);
    assert!(known(harness, &harness.tenant_id, JANE).await.is_some());
    assert!(known(harness, &harness.tenant_id, OPS).await.is_some());
    assert!(
        matches!(request(harness, "old@example.com", 60).await, ConfirmationRequestResult::LimitReached(..)),
        "pruning an address does not reset its limit"
    );
    assert!(store.prune_email_addresses(at(5), at(51), 10).await.unwrap() >= 2);
    assert_eq!(request(harness, "old@example.com", 60).await, ConfirmationRequestResult::Requested);
    assert_eq!(store.prune_email_addresses(at(5), at(5), 10).await.unwrap(), 0);
    let week = Duration::from_secs(7 * 24 * 3600);
    let later = at(60) + week;
    assert_eq!(store.prune_email_addresses(later, at(0), 1).await.unwrap(), 1, "the limit bounds one step");
}

pub async fn addresses_belong_to_the_tenant_and_are_deleted_with_it(harness: &Arc<Harness>) {
    let other = other_tenant(harness).await;
    assert!(confirm(harness, &other, OPS, 5).await);
    assert_eq!(known(harness, &harness.tenant_id, OPS).await, None);
    assert_eq!(request(harness, OPS, 5).await, ConfirmationRequestResult::Requested);
    harness.store().delete_tenant(other.clone(), at(9)).await.unwrap();
    assert_eq!(known(harness, &other, OPS).await, None);
    assert!(!confirm(harness, &other, OPS, 10).await, "a deleted tenant accepts no confirmation");
    assert!(known(harness, &harness.tenant_id, OPS).await.is_some());
    let request = confirmation(&other, JANE, 10);
    let result = harness.store().request_confirmation(request).await.unwrap();
    assert_eq!(result, ConfirmationRequestResult::NotFound);
}
