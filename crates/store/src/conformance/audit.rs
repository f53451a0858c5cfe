//! The log of who changed what.

use std::sync::Arc;

use redrive_core::{AuditId, KeyId, TenantId};

use super::{Bench, at, page};
use crate::{AuditEnd, AuditEntry, AuditFilter, PageRequest};

fn entry(bench: &Bench, time: i64, tenant: Option<&TenantId>, action: &str) -> AuditEntry {
    AuditEntry {
        id: AuditId::new(at(time), &bench.next()),
        tenant: tenant.cloned(),
        actor: "deploy \u{1f511}".into(),
        key: Some(KeyId::new(at(0), &bench.next())),
        address: Some("2001:db8::1".parse().unwrap()),
        action: action.into(),
        object: Some("wh_1".into()),
        end: None,
    }
}

async fn begin(bench: &Bench, time: i64, tenant: Option<&TenantId>, action: &str) -> AuditEntry {
    let entry = entry(bench, time, tenant, action);
    bench.store().begin_audit(entry.clone()).await.unwrap();
    entry
}

async fn list(bench: &Bench, filter: AuditFilter) -> Vec<AuditEntry> {
    bench.store().list_audit(filter, page(100)).await.unwrap()
}

fn end(result: &str) -> AuditEnd {
    let (before, after) = (Some("{\"a\":1}".to_owned()), Some("{\"a\":2}".to_owned()));
    AuditEnd { result: result.into(), object: None, before, after }
}

pub async fn an_entry_is_there_before_its_end_and_ends_once(bench: &mut Arc<Bench>) {
    let mut entry = begin(bench, 1, Some(&bench.tenant.clone()), "webhook.update").await;
    assert_eq!(list(bench, AuditFilter::default()).await, [entry.clone()]);
    let made = AuditEnd { object: Some("wh_2".into()), ..end("done") };
    bench.store().finish_audit(entry.id, made).await.unwrap();
    bench.store().finish_audit(entry.id, end("something else")).await.unwrap();
    Bench::reopen(bench).await;
    entry.object = Some("wh_2".into());
    entry.end = Some(end("done"));
    assert_eq!(list(bench, AuditFilter::default()).await, [entry]);
}

pub async fn entries_are_found_by_tenant_action_object_and_time(bench: &Arc<Bench>) {
    let other = bench.new_tenant("globex").await;
    let of_none = begin(bench, 1, None, "tenant.create").await;
    let own = begin(bench, 2, Some(&bench.tenant), "webhook.create").await;
    let others = begin(bench, 3, Some(&other), "webhook.delete").await;
    let all = AuditFilter::default;
    assert_eq!(list(bench, all()).await, [others.clone(), own.clone(), of_none.clone()]);
    let tenant = AuditFilter { tenant: Some(bench.tenant.clone()), ..all() };
    assert_eq!(list(bench, tenant).await, std::slice::from_ref(&own));
    let action = AuditFilter { action: Some("webhook.".into()), ..all() };
    assert_eq!(list(bench, action).await, [others.clone(), own.clone()]);
    assert_eq!(list(bench, AuditFilter { action: Some("%".into()), ..all() }).await, []);
    assert_eq!(list(bench, AuditFilter { object: Some("wh_9".into()), ..all() }).await, []);
    let times = AuditFilter { from: Some(at(2)), to: Some(at(3)), ..all() };
    assert_eq!(list(bench, times).await, std::slice::from_ref(&own));
    let next = PageRequest { after: Some(others.id), offset: 0, limit: 1 };
    assert_eq!(bench.store().list_audit(all(), next).await.unwrap(), [own]);
}

pub async fn old_entries_are_forgotten_in_bounded_steps(bench: &Arc<Bench>) {
    for time in 0..5 {
        begin(bench, time, None, "tenant.create").await;
    }
    assert_eq!(bench.store().forget_audit(at(4), 3).await.unwrap(), 3);
    assert_eq!(bench.store().forget_audit(at(4), 3).await.unwrap(), 1);
    assert_eq!(list(bench, AuditFilter::default()).await.len(), 1);
}
