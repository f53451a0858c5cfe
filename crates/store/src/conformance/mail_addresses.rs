//! Addresses that notifications are sent to, and how many e-mails were sent.

use std::{sync::Arc, time::Duration};

use redrive_core::{
    TenantId, Time,
    notification::{
        confirmation::ConfirmedBy,
        mail_limit::{CONFIRMATIONS_PER_MAILBOX, CONFIRMATIONS_PER_TENANT, MailPurpose, SendLimit},
    },
};

use super::{Bench, at};
use crate::{ConfirmationRequestResult, MailAddress, MailReservation, MailScope, ReserveResult, Tenant};

const JANE: &str = "jane.o'neil+\u{1f600}@example.com";
const OPS: &str = "ops@example.com";
const HOUR: i64 = 3_600_000;

fn confirmation(tenant: &TenantId, address: &str, now: i64) -> MailReservation {
    MailReservation {
        tenant: tenant.clone(),
        address: address.into(),
        purpose: MailPurpose::Confirmation,
        at: at(now),
        per_tenant: CONFIRMATIONS_PER_TENANT,
        per_mailbox: CONFIRMATIONS_PER_MAILBOX,
    }
}

async fn request(bench: &Bench, address: &str, now: i64) -> ConfirmationRequestResult {
    bench.store().request_confirmation(confirmation(&bench.tenant, address, now)).await.unwrap()
}

async fn known(bench: &Bench, tenant: &TenantId, address: &str) -> Option<MailAddress> {
    bench.store().mail_addresses(tenant.clone(), vec![address.into()]).await.unwrap().pop()
}

async fn confirm(bench: &Bench, tenant: &TenantId, address: &str, now: i64) -> bool {
    bench.store().confirm_address(tenant.clone(), address.into(), ConfirmedBy::Holder, at(now)).await.unwrap()
}

async fn other_tenant(bench: &Bench) -> TenantId {
    let other = TenantId::parse("globex").unwrap();
    let tenant = Tenant { id: other.clone(), name: None, rules: Default::default(), created_at: at(1) };
    bench.store().create_tenant(tenant).await.unwrap();
    other
}

pub async fn confirmation_is_requested_once_and_taken_once(bench: &mut Arc<Bench>) {
    assert_eq!(bench.store().next_confirmation().await.unwrap(), None);
    assert_eq!(request(bench, JANE, 5).await, ConfirmationRequestResult::Requested);
    assert_eq!(request(bench, JANE, 6).await, ConfirmationRequestResult::Requested, "the same waits still");
    Bench::reopen(bench).await;
    assert_eq!(bench.store().next_confirmation().await.unwrap(), Some(at(5)));
    assert_eq!(bench.store().take_confirmations(at(4), 10).await.unwrap(), []);
    let expected = MailAddress {
        tenant: bench.tenant.clone(),
        address: JANE.into(),
        requested_at: Some(at(5)),
        requests: 1,
        confirmed: None,
        send_at: None,
    };
    assert_eq!(bench.store().take_confirmations(at(5), 10).await.unwrap(), std::slice::from_ref(&expected));
    assert_eq!(bench.store().take_confirmations(at(5), 10).await.unwrap(), []);
    assert_eq!(known(bench, &bench.tenant, JANE).await, Some(expected));
    assert_eq!(known(bench, &bench.tenant, OPS).await, None);
}

pub async fn confirmed_address_is_asked_no_more(bench: &mut Arc<Bench>) {
    request(bench, JANE, 5).await;
    assert!(confirm(bench, &bench.tenant, JANE, 7).await);
    assert!(!confirm(bench, &bench.tenant, JANE, 8).await, "the first confirmation stays");
    Bench::reopen(bench).await;
    let found = known(bench, &bench.tenant, JANE).await.unwrap();
    assert_eq!((found.confirmed, found.send_at), (Some((at(7), ConfirmedBy::Holder)), None));
    assert_eq!(bench.store().take_confirmations(at(9), 10).await.unwrap(), []);
    assert_eq!(request(bench, JANE, 3 * HOUR).await, ConfirmationRequestResult::AlreadyConfirmed);
    let operator = ConfirmedBy::Operator;
    let marked = bench.store().confirm_address(bench.tenant.clone(), OPS.into(), operator, at(9)).await;
    assert!(marked.unwrap(), "without a request");
    let found = known(bench, &bench.tenant, OPS).await.unwrap();
    assert_eq!((found.confirmed, found.requests), (Some((at(9), operator)), 0));
}

pub async fn limits_of_tenant_and_mailbox_hold_over_tenants_and_reopening(bench: &mut Arc<Bench>) {
    let other = other_tenant(bench).await;
    let mut sent = 0;
    for hour in 0..10 {
        for tenant in [bench.tenant.clone(), other.clone()] {
            // Tags reach the same mailbox.
            let address = format!("victim+{hour}@example.com");
            let asked = confirmation(&tenant, &address, hour * HOUR);
            let result = bench.store().request_confirmation(asked).await.unwrap();
            sent += usize::from(result == ConfirmationRequestResult::Requested);
            if sent == 3 && hour > 3 {
                assert!(
                    matches!(result, ConfirmationRequestResult::LimitReached(MailScope::Mailbox, until)
                        if until >= at(30 * 24 * HOUR)),
                    "{result:?}"
                );
            }
        }
        Bench::reopen(bench).await;
    }
    assert_eq!(sent, 3);
    let now = 11 * HOUR;
    let mut last = ConfirmationRequestResult::Requested;
    for n in 0..25 {
        last = request(bench, &format!("{n}@example.com"), now).await;
    }
    assert!(matches!(last, ConfirmationRequestResult::LimitReached(MailScope::Tenant, _)), "{last:?}");
    let asked = confirmation(&other, "24@example.com", now);
    let result = bench.store().request_confirmation(asked).await.unwrap();
    assert_eq!(result, ConfirmationRequestResult::Requested, "another tenant's limit is its own");
}

pub async fn refused_request_stores_no_address(bench: &Arc<Bench>) {
    for n in 0..20 {
        assert_eq!(
            request(bench, &format!("{n}@example.com"), 5).await,
            ConfirmationRequestResult::Requested
        );
    }
    assert!(matches!(
        request(bench, "next@example.com", 5).await,
        ConfirmationRequestResult::LimitReached(..)
    ));
    assert_eq!(known(bench, &bench.tenant, "next@example.com").await, None);
    let nobody = confirmation(&TenantId::parse("nobody").unwrap(), OPS, 5);
    let result = bench.store().request_confirmation(nobody).await.unwrap();
    assert_eq!(result, ConfirmationRequestResult::NotFound);
}

pub async fn concurrent_requests_and_takers_never_exceed_the_limits(bench: &Arc<Bench>) {
    let other = other_tenant(bench).await;
    let mut running = Vec::new();
    for n in 0..40 {
        let (bench, other) = (bench.clone(), other.clone());
        running.push(tokio::spawn(async move {
            let tenant = if n % 2 == 0 { bench.tenant.clone() } else { other };
            let result =
                bench.store().request_confirmation(confirmation(&tenant, "victim@example.com", 5)).await;
            let taken = bench.store().take_confirmations(at(5), 3).await.unwrap().len();
            (result.unwrap(), taken)
        }));
    }
    let mut taken = 0;
    for one in running {
        taken += one.await.unwrap().1;
    }
    taken += bench.store().take_confirmations(at(5), 10).await.unwrap().len();
    assert_eq!(taken, 1, "one an hour, however many ask on however many nodes");
}

fn notification(tenant: &TenantId, address: &str, now: Time) -> MailReservation {
    let limit = |max| SendLimit { max_per_hour: Some(max), ..SendLimit::default() };
    MailReservation {
        tenant: tenant.clone(),
        address: address.into(),
        purpose: MailPurpose::Notification,
        at: now,
        per_tenant: limit(3),
        per_mailbox: limit(2),
    }
}

pub async fn released_reservation_can_be_reserved_again(bench: &mut Arc<Bench>) {
    let reserve = async |bench: &Bench, address: &str, now| {
        let reservation = notification(&bench.tenant, address, at(now));
        match bench.store().reserve_mail(reservation).await.unwrap() {
            ReserveResult::Reserved => None,
            ReserveResult::LimitReached(scope, _) => Some(scope),
        }
    };
    assert_eq!(reserve(bench, OPS, 1).await, None);
    assert_eq!(reserve(bench, OPS, 2).await, None);
    assert_eq!(reserve(bench, OPS, 3).await, Some(MailScope::Mailbox));
    Bench::reopen(bench).await;
    assert_eq!(reserve(bench, JANE, 3).await, None, "what was refused is not counted for the tenant");
    assert_eq!(reserve(bench, JANE, 4).await, Some(MailScope::Tenant));
    bench.store().release_mail(notification(&bench.tenant, OPS, at(1))).await.unwrap();
    assert_eq!(reserve(bench, OPS, 4).await, None);
    assert_eq!(reserve(bench, OPS, 5).await, Some(MailScope::Tenant));
    let purpose = confirmation(&bench.tenant, OPS, 5);
    let other = bench.store().request_confirmation(purpose).await.unwrap();
    assert_eq!(other, ConfirmationRequestResult::Requested, "each purpose has limits of its own");
}

pub async fn unsent_confirmation_is_retried_unless_confirmed_meanwhile(bench: &Arc<Bench>) {
    request(bench, JANE, 5).await;
    request(bench, OPS, 5).await;
    assert_eq!(bench.store().take_confirmations(at(5), 10).await.unwrap().len(), 2);
    confirm(bench, &bench.tenant, OPS, 6).await;
    for address in [JANE, OPS, "else@example.com"] {
        bench.store().retry_confirmation(bench.tenant.clone(), address.into(), at(9)).await.unwrap();
    }
    assert_eq!(bench.store().next_confirmation().await.unwrap(), Some(at(9)));
    let taken = bench.store().take_confirmations(at(9), 10).await.unwrap();
    assert_eq!(taken.iter().map(|one| (one.address.as_str(), one.requests)).collect::<Vec<_>>(), [(JANE, 1)]);
}

pub async fn unconfirmed_addresses_and_old_usage_are_pruned_and_nothing_else(bench: &Arc<Bench>) {
    for (address, now) in [("old@example.com", 5), (JANE, 5), (OPS, 50)] {
        request(bench, address, now).await;
    }
    confirm(bench, &bench.tenant, JANE, 6).await;
    let store = bench.store();
    assert_eq!(store.prune_mail_addresses(at(50), at(5), 10).await.unwrap(), 1);
    assert_eq!(known(bench, &bench.tenant, "old@example.com").await, None);
    assert!(known(bench, &bench.tenant, JANE).await.is_some());
    assert!(known(bench, &bench.tenant, OPS).await.is_some());
    assert!(
        matches!(request(bench, "old@example.com", 60).await, ConfirmationRequestResult::LimitReached(..)),
        "the limit is not reset by that"
    );
    assert!(store.prune_mail_addresses(at(5), at(51), 10).await.unwrap() >= 2);
    assert_eq!(request(bench, "old@example.com", 60).await, ConfirmationRequestResult::Requested);
    assert_eq!(store.prune_mail_addresses(at(5), at(5), 10).await.unwrap(), 0);
    let week = Duration::from_secs(7 * 24 * 3600);
    let later = at(60) + week;
    assert_eq!(store.prune_mail_addresses(later, at(0), 1).await.unwrap(), 1, "a step at a time");
}

pub async fn addresses_are_the_tenants_own_and_go_with_it(bench: &Arc<Bench>) {
    let other = other_tenant(bench).await;
    assert!(confirm(bench, &other, OPS, 5).await);
    assert_eq!(known(bench, &bench.tenant, OPS).await, None);
    assert_eq!(request(bench, OPS, 5).await, ConfirmationRequestResult::Requested);
    bench.store().delete_tenant(other.clone(), at(9)).await.unwrap();
    assert_eq!(known(bench, &other, OPS).await, None);
    assert!(!confirm(bench, &other, OPS, 10).await, "a tenant that is gone stays so");
    assert!(known(bench, &bench.tenant, OPS).await.is_some());
    let asked = confirmation(&other, JANE, 10);
    let result = bench.store().request_confirmation(asked).await.unwrap();
    assert_eq!(result, ConfirmationRequestResult::NotFound);
}
