//! PostgreSQL failover: the primary dies, and a streaming replica is promoted.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use crate::{
    cluster_harness::named,
    harness::{Harness, START, draft, start},
};
use redrive_core::{DeliveryStatus, EventId, TenantId, delivery::lane::Ordering};
use redrive_engine::{Settings, clock::Clock};
use redrive_store::{EventFilter, PageRequest, postgres};
use redrive_testkit::{Postgres, Proxy, Receiver};

/// Time within which everything must be delivered after a promotion. An idle machine takes less than 30 s, which the
/// test prints; other tests that run beside it make it longer.
const MAX_RECOVERY: Duration = Duration::from_secs(90);
const REPLICATION_LAG: Duration = Duration::from_millis(100);

async fn node(url: &str, name: &str, clock: &Clock) -> Harness {
    let options = postgres::Options {
        writers: 4,
        readers: 2,
        connect_timeout: Duration::from_secs(1),
        statement_timeout: Duration::from_secs(3),
        ..postgres::Options::at(url).with_vault(redrive_testkit::vault())
    };
    let store = Arc::new(postgres::Postgres::open(&options).await.unwrap());
    let settings = Settings { lease: Duration::from_secs(3), ..named(name) };
    let engine = start(store.clone(), clock.clone(), settings).await;
    Harness { engine, store, clock: clock.clone(), _keep: Arc::new(()) }
}

/// Publishes until stopped. Returns the acknowledged events.
async fn publish(harness: &Harness, from: usize, stop: &AtomicBool) -> BTreeSet<EventId> {
    let mut acknowledged = BTreeSet::new();
    for n in from.. {
        if stop.load(SeqCst) {
            break;
        }
        match harness.engine.publish(draft(n)).await {
            Ok(receipt) => drop(acknowledged.insert(receipt.event_id)),
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
    acknowledged
}

/// Kills the primary under load and promotes the replica. Returns the number of acknowledged events that it lacks.
async fn fail_over(synchronous: bool) -> usize {
    let mut primary = Postgres::start().await;
    let link = Proxy::to(primary.address()).await;
    let replica = primary.start_replica(&link).await;
    if synchronous {
        primary.execute("ALTER SYSTEM SET synchronous_standby_names = '*'").await;
        primary.execute("SELECT pg_reload_conf()").await;
    }
    let url = primary.url_of_either(&replica);
    let clock = Clock::manual(START);
    let nodes = [node(&url, "a", &clock).await, node(&url, "b", &clock).await];
    let epochs: Vec<_> = nodes.iter().map(|node| node.engine.epoch()).collect();
    let receiver = Receiver::start().await;
    nodes[0].create_webhook(&receiver.url(), |webhook| webhook.spec.max_in_flight = Some(10)).await;
    nodes[0]
        .create_webhook(&receiver.url(), |webhook| webhook.spec.ordering_guarantee = Ordering::Strict)
        .await;

    let stop = AtomicBool::new(false);
    let failing = async {
        receiver.wait_for(300).await;
        if !synchronous {
            link.stall();
            tokio::time::sleep(REPLICATION_LAG).await;
        }
        primary.kill().await;
        link.refuse();
        replica.promote().await;
        let promoted = Instant::now();
        tokio::time::sleep(Duration::from_secs(5)).await;
        stop.store(true, SeqCst);
        promoted
    };
    let (promoted, a, b) =
        tokio::join!(failing, publish(&nodes[0], 0, &stop), publish(&nodes[1], 1_000_000, &stop));

    let mut pending = usize::MAX;
    while pending > 0 {
        assert!(promoted.elapsed() < MAX_RECOVERY, "{pending} are still pending");
        tokio::time::sleep(Duration::from_millis(200)).await;
        let Ok(stats) = nodes[0].store.stats().await else { continue };
        let undelivered = replica.query("SELECT count(*) FROM deliveries WHERE ended_at IS NULL").await;
        pending = undelivered[0][0].parse::<usize>().unwrap() + stats.leased as usize;
    }
    let took = promoted.elapsed();
    eprintln!("everything was delivered {took:?} after the promotion, publishing included");
    for (node, epoch) in nodes.iter().zip(epochs) {
        assert_ne!(node.engine.epoch(), epoch, "every node has rejoined");
    }
    let delivered = nodes[0].deliveries().await;
    assert!(delivered.iter().all(|one| one.status == DeliveryStatus::Delivered));

    let mut stored = BTreeSet::new();
    let mut after = None;
    loop {
        let page = PageRequest { after, offset: 0, limit: 1_000 };
        let listed = nodes[0].store.list_events(TenantId::default(), EventFilter::default(), page).await;
        let found = listed.unwrap().found;
        let Some(last) = found.last() else { break };
        after = Some(last.event.id);
        stored.extend(found.iter().map(|one| one.event.id));
    }
    let lost = a.union(&b).filter(|id| !stored.contains(id)).count();
    eprintln!("{} events were acknowledged", a.len() + b.len());
    lost
}

mod extended {
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn asynchronous_failover_leaves_no_leases() {
        let acknowledged_lost = fail_over(false).await;
        println!("{acknowledged_lost} acknowledged events were not replicated");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn synchronous_failover_loses_no_acknowledged_event() {
        assert_eq!(fail_over(true).await, 0);
    }
}
