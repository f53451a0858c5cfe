//! Several nodes on one PostgreSQL, and what happens when the way to it breaks.

// A test that cannot go on should panic.
#![allow(clippy::unwrap_used)]

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use redrive_core::DeliveryStatus;
use redrive_store::{
    Birth, Epoch, Hint, LaneKey, LaneRoom, Next, OpenError, Outcome, Published, Recorded, Store, StoreError,
    conformance::{Bench, Opened, at, order, page},
    postgres::{Options, Postgres},
};
use redrive_testkit::{Database, Proxy};
use tokio::sync::Notify;

/// Few connections, and no patience: what a test breaks should show soon.
fn options(url: String) -> Options {
    Options {
        writers: 4,
        readers: 2,
        connect_timeout: Duration::from_secs(1),
        statement_timeout: Duration::from_secs(2),
        ..Options::at(url).sealed_by(redrive_testkit::vault())
    }
}

async fn store(url: String) -> Arc<dyn Store> {
    Arc::new(Postgres::open(&options(url)).await.unwrap())
}

async fn bench(store: Arc<dyn Store>, database: Database) -> Arc<Bench> {
    let never = Box::new(|| -> redrive_store::conformance::Reopening { panic!("nobody opens it again") });
    Bench::new(Opened { store, keep: Box::new(database), reopen: never }).await
}

/// Waits until something holds, for at most so long.
async fn eventually(what: &str, within: Duration, mut holds: impl AsyncFnMut() -> bool) {
    let waited = tokio::time::timeout(within, async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    waited.await.unwrap_or_else(|_| panic!("waited {within:?} in vain: {what}"));
}

async fn record(store: &dyn Store, outcome: Outcome) -> Recorded {
    let (answer, answered) = tokio::sync::oneshot::channel();
    store.record(Arc::new(outcome), Box::new(move |result| drop(answer.send(result))));
    answered.await.unwrap().unwrap()
}

/// Claims what is due as this node and records it as delivered, one look after the other. Gives how many.
async fn work(bench: &Bench, store: &dyn Store, epoch: Epoch, now: i64) -> usize {
    let due = store.due_lanes(epoch, vec!["default".into()], at(now), 100).await.unwrap();
    let rooms = due.lanes.into_iter().map(|key| LaneRoom::new(key, 7)).collect();
    let mut done = 0;
    for claim in store.claim(epoch, at(now), rooms, 1 << 20).await.unwrap() {
        for claimed in claim.deliveries {
            let outcome = bench.outcome(claimed.id, claimed.attempt_count + 1, Next::Delivered, at(now));
            let outcome = Outcome { epoch, webhook: claimed.webhook, ..outcome };
            match record(store, outcome.clone()).await {
                Recorded::Done { .. } => {}
                // Called off meanwhile; it arrived all the same.
                Recorded::CancelRequested(_) => {
                    let again = record(store, Outcome { knows_cancel: true, ..outcome }).await;
                    assert_eq!(again, Recorded::Done { config_version: None });
                }
                other => panic!("{other:?}"),
            }
            done += 1;
        }
        if claim.more {
            // Held: given back for whoever looks next.
            store.release(epoch, at(now), Vec::new()).await.unwrap();
            let again = vec![LaneRoom::new(claim.key, 1000)];
            for rest in store.claim(epoch, at(now), again, 1 << 20).await.unwrap() {
                let back = rest.deliveries.iter().map(|one| (one.id, one.due)).collect();
                store.release(epoch, at(now), back).await.unwrap();
            }
        }
    }
    done
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_that_do_everything_at_once_lose_nothing() {
    const EVENTS: u64 = 600;
    let database = redrive_testkit::Postgres::shared().await;
    let url = database.url();
    let stores = [store(url.clone()).await, store(url.clone()).await, store(url).await];
    let bench = bench(stores[0].clone(), database).await;
    let hooks = [bench.webhook, bench.new_webhook().await.id, bench.new_webhook().await.id];
    let published = Arc::new(AtomicU64::new(0));
    let mut tasks = Vec::new();
    for (place, store) in stores.iter().cloned().enumerate() {
        let (bench, published) = (bench.clone(), published.clone());
        let epoch = store.join(Default::default(), at(0)).await.unwrap();
        let publishing = {
            let (bench, store, published) = (bench.clone(), store.clone(), published.clone());
            async move {
                let mut ids = Vec::new();
                while published.fetch_add(1, SeqCst) < EVENTS {
                    let lanes = hooks.map(|webhook| {
                        let lane =
                            if webhook == hooks[1] { order("") } else { redrive_store::conformance::FRESH };
                        (LaneKey { webhook, lane }, Birth::Waiting(at(0)))
                    });
                    let mut new = bench.fan_out_to(bench.event(at(0)), &lanes);
                    new.epoch = epoch;
                    ids.extend(new.deliveries.iter().map(|delivery| delivery.id));
                    let (answer, answered) = tokio::sync::oneshot::channel();
                    store.publish(new, Box::new(move |result| drop(answer.send(result))));
                    let published = answered.await.unwrap();
                    assert!(matches!(published, Ok(Published::New { .. })), "{published:?}");
                    if ids.len() % 30 == 3 {
                        // In everybody's way: call one off, make another due, block and unblock a webhook.
                        let tenant = bench.tenant.clone();
                        let last = ids[ids.len() - 1];
                        store.cancel(tenant.clone(), last, "changed my mind".into(), at(1)).await.unwrap();
                        let first = ids[ids.len() / 2];
                        let again = bench.again(bench.delivery_id(at(0)));
                        store.retry(tenant.clone(), first, again, at(1)).await.unwrap();
                        let circuit = redrive_store::conformance::closed();
                        store.set_circuit(tenant, hooks[place], circuit, None).await.unwrap();
                    }
                }
            }
        };
        let working = async move {
            let mut idle = 0;
            while idle < 20 {
                let done = work(&bench, &*store, epoch, 2).await;
                let over = published.load(SeqCst) >= EVENTS;
                idle = if done == 0 && over { idle + 1 } else { 0 };
                if done == 0 {
                    tokio::time::sleep(Duration::from_millis(3)).await;
                }
            }
        };
        tasks.push(tokio::spawn(publishing));
        tasks.push(tokio::spawn(working));
    }
    for task in tasks {
        task.await.unwrap();
    }
    // Whatever is left, such as what an order still has behind it, is delivered: nothing is lost.
    bench.drain().await;
    let events = bench
        .store()
        .list_events(bench.tenant.clone(), Default::default(), page(10_000))
        .await
        .unwrap()
        .found;
    let numbers: BTreeSet<_> = events.iter().map(|stored| stored.sequence_number).collect();
    assert_eq!(numbers.len() as u64, EVENTS, "one number each, over all nodes");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_connection_leaves_no_lease_that_nobody_knows_of() {
    let database = redrive_testkit::Postgres::shared().await;
    let proxy = Proxy::to(database.address()).await;
    let through = store(database.url_through(&proxy)).await;
    let direct = store(database.url()).await;
    let bench = bench(direct, database).await;
    let epoch = through.join(Default::default(), at(0)).await.unwrap();
    let mut known = BTreeSet::new();
    for round in 0..40 {
        let answers: Vec<_> = (0..10)
            .map(|_| {
                let mut new = bench.new_event(at(0), Birth::Leased);
                new.epoch = epoch;
                let id = new.deliveries[0].id;
                let (answer, answered) = tokio::sync::oneshot::channel();
                through.publish(new, Box::new(move |result| drop(answer.send(result))));
                (id, answered)
            })
            .collect();
        if round % 2 == 0 {
            tokio::time::sleep(Duration::from_micros(300 * (round % 7))).await;
            proxy.cut();
        }
        for (id, answered) in answers {
            match answered.await.unwrap() {
                Ok(Published::New { .. }) => drop(known.insert(id)),
                Err(StoreError::Unavailable(_)) => {}
                other => panic!("{other:?}"),
            }
        }
    }
    // The next publish that works settles all doubt.
    eventually("the store works again", Duration::from_secs(10), async || through.ping().await.is_ok()).await;
    let mut last = bench.new_event(at(0), Birth::Leased);
    last.epoch = epoch;
    known.insert(last.deliveries[0].id);
    let (answer, answered) = tokio::sync::oneshot::channel();
    through.publish(last, Box::new(move |result| drop(answer.send(result))));
    assert!(matches!(answered.await.unwrap(), Ok(Published::New { .. })));
    let leased = bench.store().vitals().await.unwrap().leased;
    assert_eq!(leased, known.len() as u64, "leases in the store are those that the node knows of");
    bench.drain().await;
    for id in known {
        assert_eq!(bench.status(id).await, DeliveryStatus::Delivered, "what was acknowledged is there");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_does_not_answer_is_given_up_on_and_found_again() {
    let database = redrive_testkit::Postgres::shared().await;
    let proxy = Proxy::to(database.address()).await;
    let through = store(database.url_through(&proxy)).await;
    let bench = bench(through.clone(), database).await;
    for broken in [Proxy::stall as fn(&Proxy), Proxy::refuse] {
        broken(&proxy);
        let refused = tokio::time::timeout(
            Duration::from_secs(8),
            bench.try_publish(bench.new_event(at(0), Birth::Waiting(at(0)))),
        );
        let refused = refused.await.expect("an answer in time");
        assert!(matches!(refused, Err(StoreError::Unavailable(_))), "{refused:?}");
        assert!(matches!(through.ping().await, Err(StoreError::Unavailable(_))));
        proxy.pass();
        eventually("it is found again", Duration::from_secs(10), async || through.ping().await.is_ok()).await;
        eventually("it takes events again", Duration::from_secs(10), async || {
            bench.try_publish(bench.new_event(at(0), Birth::Waiting(at(0)))).await.is_ok()
        })
        .await;
    }
    bench.drain().await;
}

/// Whoever empties a lane waits for nobody who fills it, and misses nothing of what comes.
#[tokio::test(flavor = "multi_thread")]
async fn a_lane_that_is_being_filled_is_neither_waited_for_nor_closed() {
    let database = redrive_testkit::Postgres::shared().await;
    let (mut client, connection) =
        tokio_postgres::connect(&database.url(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let store = store(database.url()).await;
    let bench = bench(store.clone(), database).await;
    bench.publish(bench.new_event(at(0), Birth::Waiting(at(0)))).await;
    bench.publish(bench.new_event(at(1), Birth::Waiting(at(1)))).await;
    // Somebody else's commit is under way: what it puts into the lane nobody sees yet.
    let filling = client.transaction().await.unwrap();
    filling.batch_execute("SELECT 1 FROM lanes FOR KEY SHARE").await.unwrap();
    let lane = bench.lane();
    let looked = tokio::time::timeout(Duration::from_secs(2), work(&bench, &*store, bench.epoch, 10));
    assert_eq!(looked.await.expect("nobody is waited for"), 2);
    let due = store.due_lanes(bench.epoch, vec!["default".into()], at(10), 10).await.unwrap();
    assert_eq!(due.lanes, std::slice::from_ref(&lane), "it is looked at again");
    filling.commit().await.unwrap();
    assert_eq!(work(&bench, &*store, bench.epoch, 10).await, 0);
    let due = store.due_lanes(bench.epoch, vec!["default".into()], at(10), 10).await.unwrap();
    assert_eq!(due.lanes, [], "nothing is in it");
    bench.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn hints_reach_other_nodes() {
    let database = redrive_testkit::Postgres::shared().await;
    let other = store(database.url()).await;
    let (work, change) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let rings = (work.clone(), change.clone());
    other.on_hint(Box::new(move |hint| match hint {
        Hint::Work => rings.0.notify_one(),
        Hint::Change => rings.1.notify_one(),
    }));
    let one = store(database.url()).await;
    let bench = bench(one, database).await;
    // Those that everybody gets at the start are over.
    tokio::time::sleep(Duration::from_millis(300)).await;
    for ring in [&work, &change] {
        let _ = tokio::time::timeout(Duration::from_millis(1), ring.notified()).await;
    }
    bench.waiting(at(0), at(0)).await;
    tokio::time::timeout(Duration::from_secs(5), work.notified()).await.expect("work is hinted at");
    bench.new_webhook().await;
    tokio::time::timeout(Duration::from_secs(5), change.notified()).await.expect("a change is hinted at");
    bench.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn months_are_made_ahead_by_any_node_at_once() {
    let database = redrive_testkit::Postgres::shared().await;
    let stores = [store(database.url()).await, store(database.url()).await, store(database.url()).await];
    let made = stores.iter().cloned().map(|store| tokio::spawn(async move { store.prepare(at(0)).await }));
    for made in made.collect::<Vec<_>>() {
        made.await.unwrap().unwrap();
    }
    let months = "SELECT string_agg(relid::text, ' ' ORDER BY relid::text) FROM pg_partition_tree('events') WHERE isleaf";
    assert_eq!(database.query(months).await, [["events_2023_09 events_2023_10 events_2023_11"]]);
    // An event of a month that nobody thought of makes it.
    let bench = bench(stores[0].clone(), database).await;
    let far = 400 * 24 * 3600 * 1000;
    let id = bench.waiting(at(far), at(far)).await;
    assert_eq!(bench.status(id).await, DeliveryStatus::Pending);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_databases_clock_is_told() {
    let database = redrive_testkit::Postgres::shared().await;
    let store = store(database.url()).await;
    let epoch = store.join(Default::default(), at(0)).await.unwrap();
    let told = store.beat(epoch).await.unwrap().time.unwrap().millis();
    let now: i64 =
        database.query("SELECT (extract(epoch FROM now()) * 1000)::bigint").await[0][0].parse().unwrap();
    assert!((now - told).abs() < 60_000, "{told} {now}");
    assert!(store.beat(Epoch(0)).await.unwrap().time.is_some(), "nobody needs an epoch to ask");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_way_is_as_safe_as_its_url_asks() {
    let server = redrive_testkit::Postgres::start_with_tls().await;
    let ca = server.ca_path().display().to_string();
    let with = |query: &str| options(format!("{}?{query}", server.url()));
    for good in [
        "sslmode=disable".to_owned(),
        "sslmode=prefer".to_owned(),
        "sslmode=require".to_owned(),
        format!("sslmode=verify-ca&sslrootcert={ca}"),
        format!("sslmode=verify-full&sslrootcert={ca}"),
    ] {
        let store = Postgres::open(&with(&good)).await.unwrap_or_else(|error| panic!("{good}: {error}"));
        (&store as &dyn Store).ping().await.unwrap();
        let encrypted = server.query("SELECT count(*) FROM pg_stat_ssl WHERE ssl").await;
        assert_eq!(encrypted == [["0"]], good == "sslmode=disable", "{good}");
    }
    // A certificate that nobody we trust has signed.
    let error = Postgres::open(&with("sslmode=verify-full")).await.err().unwrap();
    assert!(matches!(error, OpenError::Unreachable { .. }), "{error}");
    let error = Postgres::open(&with("sslmode=sometimes")).await.err().unwrap().to_string();
    assert!(error.contains("use disable, prefer, require, verify-ca or verify-full"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_reached_is_named_without_its_password() {
    let url = "postgres://redrive:hunter2@127.0.0.1:1/redrive";
    let error = Postgres::open(&options(url.into())).await.err().unwrap().to_string();
    assert!(error.contains("127.0.0.1:1/redrive") && !error.contains("hunter2"), "{error}");
    assert!(!format!("{:?}", options(url.into())).contains("hunter2"));
}
