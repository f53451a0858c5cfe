//! Scans of payloads: bounded by rows and bytes, filtered by event type and time, isolated by tenant.

use std::sync::Arc;

use redrive_core::{EventId, event::Event};

use super::{Harness, at};
use crate::{PayloadPage, PayloadScan};

const EVENTS: i64 = 30;

/// Publishes events of two types, whose payloads have different sizes. Returns their ids with type and size, newest first.
async fn publish_samples(harness: &Harness) -> Vec<(EventId, &'static str, usize)> {
    let mut published = Vec::new();
    for n in 0..EVENTS {
        let event_type = ["order.created", "order.paid"][n as usize % 2];
        let data = format!("\"{}\"", "x".repeat(10 + 7 * (n as usize % 5)));
        let event =
            Event { event_type: event_type.into(), data: data.clone().into(), ..harness.event(at(10 * n)) };
        published.push((event.id, event_type, data.len()));
        harness.publish_new(harness.fan_out(event, &[])).await;
    }
    published.reverse();
    published
}

fn everything() -> PayloadScan {
    PayloadScan {
        event_types: Vec::new(),
        from: at(0),
        to: at(10 * EVENTS),
        after: None,
        rows: 1_000,
        max_bytes: usize::MAX / 2,
    }
}

async fn scan(harness: &Harness, scan: PayloadScan) -> PayloadPage {
    harness.store().scan_payloads(harness.tenant_id.clone(), scan).await.unwrap()
}

pub async fn payloads_are_scanned_newest_first_in_bounded_steps(harness: &Arc<Harness>) {
    let all = publish_samples(harness).await;
    for event_types in [&[][..], &["order.paid"], &["order.paid", "order.created"], &["nothing", "x\0"]] {
        for (from, to) in [(0, 10 * EVENTS), (50, 200), (200, 50)] {
            let in_time = |id: &EventId| (at(from)..at(to)).contains(&id.time());
            let is_wanted = |name: &str| event_types.is_empty() || event_types.contains(&name);
            let read = all.iter().filter(|(id, ..)| in_time(id));
            let expected: Vec<_> =
                read.clone().filter(|(_, name, _)| is_wanted(name)).map(|one| one.0).collect();
            for (rows, max_bytes) in [(1_000, usize::MAX / 2), (7, usize::MAX / 2), (1_000, 60), (3, 1)] {
                let (mut found, mut scanned, mut after) = (Vec::new(), 0, None);
                loop {
                    let step = PayloadScan {
                        event_types: event_types.iter().copied().map(Into::into).collect(),
                        from: at(from),
                        to: at(to),
                        after,
                        rows,
                        max_bytes,
                    };
                    let page = scan(harness, step).await;
                    assert!(page.scanned <= rows, "bounded by rows");
                    let bytes: usize = page.payloads.iter().map(|(_, data)| data.len()).sum();
                    assert!(bytes <= max_bytes || page.payloads.len() == 1, "bounded by bytes");
                    scanned += page.scanned;
                    found.extend(page.payloads.iter().map(|(id, _)| *id));
                    if page.finished {
                        break;
                    }
                    assert!(page.last.is_some() && page.last != after, "each step makes progress");
                    after = page.last;
                }
                assert_eq!(found, expected, "{event_types:?} {from} {to} {rows} {max_bytes}");
                assert_eq!(scanned, read.clone().count());
            }
        }
    }
    let (newest, _, size) = all[0];
    let page = scan(harness, everything()).await;
    assert_eq!((page.payloads[0].0, page.payloads[0].1.len()), (newest, size));
}

pub async fn payloads_of_other_tenants_are_not_scanned(harness: &Arc<Harness>) {
    publish_samples(harness).await;
    let other = harness.new_tenant("globex").await;
    let page = harness.store().scan_payloads(other, everything()).await.unwrap();
    assert_eq!(page, PayloadPage { finished: true, ..PayloadPage::default() });
}
