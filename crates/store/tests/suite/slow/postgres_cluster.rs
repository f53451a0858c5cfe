//! Several nodes on one PostgreSQL, and what happens when the way to it breaks.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use redrive_core::{DeliveryStatus, event::Event};
use redrive_store::{
    Birth, Change, Epoch, Hint, KeyClaim, LaneKey, LaneRoom, NewEvent, Next, OpenError, Outcome, Published,
    Recorded, Store, StoreError,
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
        allow_unsafe_durability: true,
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
async fn a_claim_whose_commit_reply_is_lost_is_undone_on_an_idle_node() {
    let database = redrive_testkit::Postgres::shared().await;
    let proxy = Proxy::to(database.address()).await;
    let through = store(database.url_through(&proxy)).await;
    let url = database.url();
    let direct = store(url.clone()).await;
    let bench = bench(direct, database).await;
    let epoch = through.join(Default::default(), at(0)).await.unwrap();
    let new = bench.new_event(at(0), Birth::Waiting(at(0)));
    let key = LaneKey { webhook: bench.webhook, lane: new.deliveries[0].lane.clone() };
    bench.publish(new).await;
    let room = LaneRoom { alone: true, ..LaneRoom::new(key, 10) };

    proxy.lose_reply_to(b"COMMIT");
    let committed = eventually("the claim is committed", Duration::from_secs(10), async || {
        bench.store().vitals().await.unwrap().leased == 1
    });
    let (claimed, ()) = tokio::join!(through.claim(epoch, at(1), vec![room.clone()], 1 << 20), committed);
    assert!(matches!(claimed, Err(StoreError::Unavailable(_))), "{claimed:?}");

    // The node does nothing further, and still the lease, the lane and the assignment are given up.
    eventually("another node may claim it", Duration::from_secs(10), async || {
        let claims = bench.store().claim(bench.epoch, at(1), vec![room.clone()], 1 << 20).await.unwrap();
        claims.iter().any(|claim| !claim.deliveries.is_empty())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_are_read_once_however_long_another_transaction_runs() {
    let database = redrive_testkit::Postgres::shared().await;
    let url = database.url();
    let direct = store(url.clone()).await;
    let bench = bench(direct, database).await;
    let (foreign, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    // A transaction with an id of its own keeps the oldest running transaction where it is.
    foreign.batch_execute("BEGIN; SELECT pg_current_xact_id()").await.unwrap();
    let mut mark = bench.store().changes(None).await.unwrap().mark;
    for _ in 0..20 {
        let webhook = bench.new_webhook().await;
        let read = bench.store().changes(Some(mark)).await.unwrap();
        assert_eq!(read.changes, [Change::Webhook(bench.tenant.clone(), webhook.id)]);
        let again = bench.store().changes(Some(read.mark)).await.unwrap();
        assert_eq!(again.changes, [], "what was read is not read again");
        mark = again.mark;
    }
    foreign.batch_execute("INSERT INTO changes (kind) VALUES (3); COMMIT").await.unwrap();
    let late = bench.store().changes(Some(mark)).await.unwrap();
    assert_eq!(late.changes, [Change::Keys], "a change of the oldest transaction is not missed");
    assert_eq!(bench.store().changes(Some(late.mark)).await.unwrap().changes, []);
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

/// A rescue that waits for a lease which another transaction changes must take the changed lease too.
#[tokio::test(flavor = "multi_thread")]
async fn lease_that_changes_during_a_rescue_is_rescued() {
    let database = redrive_testkit::Postgres::shared().await;
    let (mut client, connection) =
        tokio_postgres::connect(&database.url(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let store = store(database.url()).await;
    let bench = bench(store.clone(), database).await;
    for time in 0..3 {
        bench.publish(bench.new_event(at(time), Birth::Leased)).await;
    }
    let rescuer = bench.new_epoch().await;
    let change = client.transaction().await.unwrap();
    change.batch_execute("UPDATE leased SET sending = 1").await.unwrap();
    let rescue = {
        let (store, dead) = (store.clone(), bench.epoch);
        tokio::spawn(async move { store.rescue(dead, at(10), 100).await })
    };
    eventually("the rescue waits for the change", Duration::from_secs(5), async || {
        let waiting =
            "SELECT count(*) FROM pg_locks WHERE NOT granted AND transactionid = pg_current_xact_id()::xid";
        change.query_one(waiting, &[]).await.unwrap().get::<_, i64>(0) == 1
    })
    .await;
    change.commit().await.unwrap();
    let step = rescue.await.unwrap().unwrap();
    assert_eq!((step.moved, step.finished), (3, true));
    assert_eq!(store.others(rescuer).await.unwrap(), [], "nothing of the dead node is left");
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
async fn write_that_was_stopped_reports_its_cause() {
    let database = redrive_testkit::Postgres::shared().await;
    let (mut client, connection) =
        tokio_postgres::connect(&database.url(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let store = store(database.url()).await;
    let bench = bench(store.clone(), database).await;
    let tenant = store.tenant(bench.tenant.clone()).await.unwrap().unwrap();
    let blocking = client.transaction().await.unwrap();
    blocking.batch_execute("SELECT 1 FROM tenants FOR UPDATE").await.unwrap();
    let error = store.change_tenant(tenant.clone()).await.unwrap_err().to_string();
    // Whichever of the two timeouts is shorter, the error names it.
    assert!(error.contains("canceling statement due to"), "{error}");
    assert!(error.contains("57014") || error.contains("55P03"), "{error}");
    blocking.rollback().await.unwrap();
    assert!(store.change_tenant(tenant).await.unwrap());
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

async fn publish(store: &dyn Store, new: NewEvent) -> Result<Published, StoreError> {
    let (answer, answered) = tokio::sync::oneshot::channel();
    store.publish(new, Box::new(move |result| drop(answer.send(result))));
    answered.await.unwrap()
}

/// An event with this key, published by this node.
fn keyed(bench: &Bench, epoch: Epoch, key: String) -> NewEvent {
    let event = Event { idempotency_key: Some(key.into()), ..bench.event(at(0)) };
    let claim = Some(KeyClaim { body_hash: [1; 32], expires_at: at(1_000), confirmed_now: at(0) });
    NewEvent { claim, epoch, ..bench.fan_out(event, &[(bench.webhook, Birth::Leased)]) }
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_that_take_the_same_keys_store_each_event_once() {
    const KEYS: usize = 150;
    let database = redrive_testkit::Postgres::shared().await;
    let url = database.url();
    let stores = [store(url.clone()).await, store(url.clone()).await, store(url).await];
    let bench = bench(stores[0].clone(), database).await;
    let mut publishing = Vec::new();
    for store in &stores {
        let epoch = store.join(Default::default(), at(0)).await.unwrap();
        for n in 0..KEYS {
            let (store, new) = (store.clone(), keyed(&bench, epoch, format!("key-{n}")));
            publishing.push(tokio::spawn(async move { (n, publish(&*store, new).await.unwrap()) }));
        }
    }
    let mut results = Vec::new();
    for one in publishing {
        results.push(one.await.unwrap());
    }
    for n in 0..KEYS {
        let of_key: Vec<_> = results.iter().filter(|(key, _)| *key == n).map(|(_, result)| result).collect();
        let new = of_key.iter().filter(|result| matches!(result, Published::New { .. })).count();
        assert_eq!(new, 1, "one event for a key: {of_key:?}");
        let others: BTreeSet<_> = of_key
            .iter()
            .filter_map(|result| match result {
                Published::Duplicate { event } => Some(*event),
                _ => None,
            })
            .collect();
        assert_eq!(others.len(), 1, "the others get that event's id: {of_key:?}");
    }
    let listed = bench.store().list_events(bench.tenant.clone(), Default::default(), page(1000)).await;
    assert_eq!(listed.unwrap().found.len(), KEYS);
}

#[tokio::test(flavor = "multi_thread")]
async fn locked_tenant_blocks_only_its_own_publishes() {
    let database = redrive_testkit::Postgres::shared().await;
    let url = database.url();
    let impatient = store(url.clone()).await;
    let patient = Options { statement_timeout: Duration::from_secs(30), ..options(url.clone()) };
    let store: Arc<dyn Store> = Arc::new(Postgres::open(&patient).await.unwrap());
    let bench = bench(store.clone(), database).await;
    let other = bench.new_tenant("globex").await;
    let config_version = store.config_changes(other.clone(), 0, 1_000).await.unwrap().unwrap().version;
    let epoch = store.join(Default::default(), at(0)).await.unwrap();
    let (client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    client.batch_execute("BEGIN").await.unwrap();
    let lock = "SELECT 1 FROM tenants WHERE id = $1 FOR UPDATE";
    client.query(lock, &[&bench.tenant.as_str()]).await.unwrap();
    // All of them are gathered into few batches, and every batch has both tenants.
    let mut blocked = Vec::new();
    let mut free = Vec::new();
    for n in 0..20 {
        let (to, new) = (store.clone(), keyed(&bench, epoch, format!("blocked-{n}")));
        blocked.push(tokio::spawn(async move { publish(&*to, new).await }));
        let to = store.clone();
        let event = Event { tenant: other.clone(), ..bench.event(at(0)) };
        let new = NewEvent { config_version, epoch, ..bench.fan_out(event, &[]) };
        free.push(tokio::spawn(async move { publish(&*to, new).await }));
    }
    for one in free {
        let published = tokio::time::timeout(Duration::from_secs(5), one).await.expect("it does not wait");
        assert!(matches!(published.unwrap(), Ok(Published::New { .. })));
    }
    store.ping().await.expect("one locked tenant does not make a node unready");
    assert!(blocked.iter().all(|one| !one.is_finished()), "the locked tenant waits");
    client.batch_execute("COMMIT").await.unwrap();
    let mut numbers = BTreeSet::new();
    for one in blocked {
        match one.await.unwrap() {
            Ok(Published::New { sequence_number }) => numbers.insert(sequence_number),
            other => panic!("{other:?}"),
        };
    }
    assert_eq!(numbers.len(), 20);

    // A lock that lasts longer than a statement may take: the publish fails, and says why.
    client.batch_execute("BEGIN").await.unwrap();
    client.query(lock, &[&bench.tenant.as_str()]).await.unwrap();
    let late = publish(&*impatient, keyed(&bench, epoch, "late".into())).await;
    assert!(matches!(late, Err(StoreError::Busy(_))), "{late:?}");
    client.batch_execute("COMMIT").await.unwrap();
    let again = publish(&*store, keyed(&bench, epoch, "late".into())).await;
    assert!(matches!(again, Ok(Published::New { .. })), "nothing was stored: {again:?}");
}

/// A node that stands still inside a transaction loses its session, and so does one whose connection is cut.
#[tokio::test(flavor = "multi_thread")]
async fn change_whose_connection_is_lost_before_its_commit_is_repeated() {
    let database = redrive_testkit::Postgres::shared().await;
    let proxy = Proxy::to(database.address()).await;
    let (mut client, connection) =
        tokio_postgres::connect(&database.url(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let store = store(database.url_through(&proxy)).await;
    let bench = bench(store.clone(), database).await;
    let tenant = store.tenant(bench.tenant.clone()).await.unwrap().unwrap();
    let blocking = client.transaction().await.unwrap();
    blocking.batch_execute("SELECT 1 FROM tenants FOR UPDATE").await.unwrap();
    let change = {
        let store = store.clone();
        tokio::spawn(async move { store.change_tenant(tenant).await })
    };
    eventually("the change waits for the lock", Duration::from_secs(5), async || {
        let waiting =
            "SELECT count(*) FROM pg_stat_activity WHERE pg_backend_pid() = ANY(pg_blocking_pids(pid))";
        blocking.query_one(waiting, &[]).await.unwrap().get::<_, i64>(0) == 1
    })
    .await;
    proxy.cut();
    blocking.rollback().await.unwrap();
    assert_eq!(change.await.unwrap(), Ok(true));
}

/// Large events of a blocked tenant must not use up what may wait to be published.
#[tokio::test(flavor = "multi_thread")]
async fn blocked_tenant_leaves_room_for_others() {
    let database = redrive_testkit::Postgres::shared().await;
    let url = database.url();
    let small =
        Options { max_waiting: 40, statement_timeout: Duration::from_secs(30), ..options(url.clone()) };
    let store: Arc<dyn Store> = Arc::new(Postgres::open(&small).await.unwrap());
    let bench = bench(store.clone(), database).await;
    let other = bench.new_tenant("globex").await;
    let config_version = store.config_changes(other.clone(), 0, 1_000).await.unwrap().unwrap().version;
    let epoch = store.join(Default::default(), at(0)).await.unwrap();
    let (mut client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let blocking = client.transaction().await.unwrap();
    blocking
        .query("SELECT 1 FROM tenants WHERE id = $1 FOR UPDATE", &[&bench.tenant.as_str()])
        .await
        .unwrap();
    let mut blocked = tokio::task::JoinSet::new();
    for n in 0..60 {
        let (to, new) = (store.clone(), keyed(&bench, epoch, format!("blocked-{n}")));
        blocked.spawn(async move { publish(&*to, new).await });
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    // The first batch has found the lock by then, and its events are in the queue of the tenant.
    tokio::time::sleep(Duration::from_secs(1)).await;
    for _ in 0..10 {
        let event = Event { tenant: other.clone(), ..bench.event(at(0)) };
        let new = NewEvent { config_version, epoch, ..bench.fan_out(event, &[]) };
        let published = publish(&*store, new).await;
        assert!(matches!(published, Ok(Published::New { .. })), "{published:?}");
    }
    blocking.rollback().await.unwrap();
    let results = blocked.join_all().await;
    let stored = results.iter().filter(|result| matches!(result, Ok(Published::New { .. }))).count();
    assert!((1..=20).contains(&stored), "half of the queue is for blocked tenants: {stored}");
    let is_refused =
        |result: &Result<_, _>| matches!(result, Err(StoreError::Overloaded | StoreError::Busy(_)));
    assert_eq!(results.iter().filter(|result| is_refused(result)).count(), 60 - stored);
}
