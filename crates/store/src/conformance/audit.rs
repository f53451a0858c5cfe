//! The audit log.

use std::sync::Arc;

use redrive_core::{AuditId, KeyId, TenantId};

use super::{Harness, at, page};
use crate::{AuditEnd, AuditEntry, AuditFilter, PageRequest};

fn entry(harness: &Harness, time: i64, tenant_id: Option<&TenantId>, action: &str) -> AuditEntry {
    AuditEntry {
        id: AuditId::new(at(time), &harness.next()),
        tenant_id: tenant_id.cloned(),
        actor: "deploy \u{1f511}".into(),
        subject: Some("u-1 \u{1f511}".into()),
        key: Some(KeyId::new(at(0), &harness.next())),
        address: Some("2001:db8::1".parse().unwrap()),
        action: action.into(),
        object: Some("wh_1".into()),
        end: None,
    }
}

async fn begin(harness: &Harness, time: i64, tenant_id: Option<&TenantId>, action: &str) -> AuditEntry {
    let entry = entry(harness, time, tenant_id, action);
    harness.store().begin_audit(entry.clone()).await.unwrap();
    entry
}

async fn list(harness: &Harness, filter: AuditFilter) -> Vec<AuditEntry> {
    harness.store().list_audit(filter, page(100)).await.unwrap()
}

fn end(result: &str) -> AuditEnd {
    let (before, after) = (Some("{\"a\":1}".to_owned()), Some("{\"a\":2}".to_owned()));
    AuditEnd { result: result.into(), object: None, before, after }
}

pub async fn entry_is_visible_before_its_end_and_ends_once(harness: &mut Arc<Harness>) {
    let mut entry = begin(harness, 1, Some(&harness.tenant_id.clone()), "webhook.update").await;
    assert_eq!(list(harness, AuditFilter::default()).await, [entry.clone()]);
    let end_entry = AuditEnd { object: Some("wh_2".into()), ..end("done") };
    harness.store().finish_audit(entry.id, end_entry).await.unwrap();
    harness.store().finish_audit(entry.id, end("something else")).await.unwrap();
    Harness::reopen(harness).await;
    entry.object = Some("wh_2".into());
    entry.end = Some(end("done"));
    assert_eq!(list(harness, AuditFilter::default()).await, [entry]);
}

pub async fn entries_are_found_by_tenant_action_object_and_time(harness: &Arc<Harness>) {
    let other = harness.new_tenant("globex").await;
    let of_none = begin(harness, 1, None, "tenant.create").await;
    let own = begin(harness, 2, Some(&harness.tenant_id), "webhook.create").await;
    let others = begin(harness, 3, Some(&other), "webhook.delete").await;
    let all = AuditFilter::default;
    assert_eq!(list(harness, all()).await, [others.clone(), own.clone(), of_none.clone()]);
    let tenant = AuditFilter { tenant_id: Some(harness.tenant_id.clone()), ..all() };
    assert_eq!(list(harness, tenant).await, std::slice::from_ref(&own));
    let action = AuditFilter { action: Some("webhook.".into()), ..all() };
    assert_eq!(list(harness, action).await, [others.clone(), own.clone()]);
    assert_eq!(list(harness, AuditFilter { action: Some("%".into()), ..all() }).await, []);
    assert_eq!(list(harness, AuditFilter { object: Some("wh_9".into()), ..all() }).await, []);
    let times = AuditFilter { from: Some(at(2)), to: Some(at(3)), ..all() };
    assert_eq!(list(harness, times).await, std::slice::from_ref(&own));
    let next = PageRequest { after: Some(others.id), offset: 0, limit: 1 };
    assert_eq!(harness.store().list_audit(all(), next).await.unwrap(), [own]);
}

pub async fn old_entries_are_pruned_in_bounded_steps(harness: &Arc<Harness>) {
    for time in 0..5 {
        begin(harness, time, None, "tenant.create").await;
    }
    assert_eq!(harness.store().prune_audit(at(4), 3).await.unwrap(), 3);
    assert_eq!(harness.store().prune_audit(at(4), 3).await.unwrap(), 1);
    assert_eq!(list(harness, AuditFilter::default()).await.len(), 1);
}
