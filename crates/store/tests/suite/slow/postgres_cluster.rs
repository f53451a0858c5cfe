//! Several nodes on one PostgreSQL server, and failures of the connection to it.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use redrive_core::delivery::outcome::Outcome;
use redrive_core::{DeliveryStatus, event::Event};
use redrive_store::{
    Change, Epoch, Hint, IdempotencyReservation, InitialState, LaneCapacity, LaneKey, NewEvent, OpenError,
    OutcomeRecord, PublishResult, RecordResult, Store, StoreError,
    conformance::{Harness, Opened, at, order, page},
    postgres::{Options, Postgres},
};
use redrive_testkit::{Database, Proxy, WAIT_TIMEOUT};
use tokio::sync::Notify;

/// Few connections and short timeouts, so that failures show soon.
fn options(url: String) -> Options {
    Options {
        writers: 4,
        readers: 2,
        connect_timeout: Duration::from_secs(1),
        statement_timeout: Duration::from_secs(2),
        allow_unsafe_durability: true,
        ..Options::at(url).with_vault(redrive_testkit::vault())
    }
}

/// Opens a store whose sessions outlive a stall of the machine: the server does not end their transactions, and replies
/// may take seconds.
async fn stall_tolerant_store(url: String) -> Arc<dyn Store> {
    let url = format!("{url}%20-cidle_in_transaction_session_timeout%3D60000");
    let timeout = Duration::from_secs(30);
    let options = Options { connect_timeout: timeout, statement_timeout: timeout, ..options(url) };
    Arc::new(Postgres::open(&options).await.unwrap())
}

async fn store(url: String) -> Arc<dyn Store> {
    Arc::new(Postgres::open(&options(url)).await.unwrap())
}

async fn harness_on(store: Arc<dyn Store>, database: Database) -> Arc<Harness> {
    let never = Box::new(|| -> redrive_store::conformance::Reopening {
        panic!("this test does not reopen the store")
    });
    Harness::new(Opened { store, keep: Box::new(database), reopen: never }).await
}

/// Waits until a condition holds, up to a timeout.
async fn eventually(what: &str, within: Duration, mut holds: impl AsyncFnMut() -> bool) {
    let waited = tokio::time::timeout(within, async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    waited.await.unwrap_or_else(|_| panic!("not within {within:?}: {what}"));
}

async fn record(store: &dyn Store, outcome: OutcomeRecord) -> RecordResult {
    let (sender, reply) = tokio::sync::oneshot::channel();
    store.record(Arc::new(outcome), Box::new(move |result| drop(sender.send(result))));
    reply.await.unwrap().unwrap()
}

/// Claims due deliveries as this node once and records them as delivered. Returns their number.
async fn work(harness: &Harness, store: &dyn Store, epoch: Epoch, now: i64) -> usize {
    let due = store.due_lanes(epoch, vec!["default".into()], at(now), 100).await.unwrap();
    let capacities = due.lanes.into_iter().map(|key| LaneCapacity::new(key, 7)).collect();
    let mut done = 0;
    for claim in store.claim(epoch, at(now), capacities, 1 << 20).await.unwrap() {
        for claimed in claim.deliveries {
            let outcome = harness.outcome(claimed.id, claimed.attempt_count + 1, Outcome::Delivered, at(now));
            let outcome = OutcomeRecord { epoch, webhook_id: claimed.webhook_id, ..outcome };
            match record(store, outcome.clone()).await {
                RecordResult::Recorded { .. } => {}
                // It was cancelled concurrently, but has been delivered.
                RecordResult::CancelRequested(_) => {
                    let again = record(store, OutcomeRecord { record_despite_cancel: true, ..outcome }).await;
                    assert_eq!(again, RecordResult::Recorded { config_version: None });
                }
                other => panic!("{other:?}"),
            }
            done += 1;
        }
        if claim.has_more_due {
            // The lane is claimed: claim the rest and release it, so that other nodes can claim.
            store.release(epoch, at(now), Vec::new()).await.unwrap();
            let again = vec![LaneCapacity::new(claim.key, 1000)];
            for rest in store.claim(epoch, at(now), again, 1 << 20).await.unwrap() {
                let back = rest.deliveries.iter().map(|one| (one.id, one.due)).collect();
                store.release(epoch, at(now), back).await.unwrap();
            }
        }
    }
    done
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_operations_of_several_nodes_lose_nothing() {
    const EVENTS: u64 = 600;
    let database = redrive_testkit::Postgres::shared().await;
    let url = database.url();
    let open = || stall_tolerant_store(url.clone());
    let stores = [open().await, open().await, open().await];
    let harness = harness_on(stores[0].clone(), database).await;
    let webhooks = [harness.webhook_id, harness.new_webhook().await.id, harness.new_webhook().await.id];
    let published = Arc::new(AtomicU64::new(0));
    let mut tasks = Vec::new();
    for (index, store) in stores.iter().cloned().enumerate() {
        let (harness, published) = (harness.clone(), published.clone());
        let epoch = store.join(Default::default(), at(0)).await.unwrap();
        let publishing = {
            let (harness, store, published) = (harness.clone(), store.clone(), published.clone());
            async move {
                let mut ids = Vec::new();
                while published.fetch_add(1, SeqCst) < EVENTS {
                    let lanes = webhooks.map(|webhook_id| {
                        let lane = if webhook_id == webhooks[1] {
                            order("")
                        } else {
                            redrive_store::conformance::FRESH
                        };
                        (LaneKey { webhook_id, lane }, InitialState::Waiting(at(0)))
                    });
                    let mut new = harness.fan_out_to(harness.event(at(0)), &lanes);
                    new.epoch = epoch;
                    ids.extend(new.deliveries.iter().map(|delivery| delivery.id));
                    let (sender, reply) = tokio::sync::oneshot::channel();
                    store.publish(new, Box::new(move |result| drop(sender.send(result))));
                    let published = reply.await.unwrap();
                    assert!(matches!(published, Ok(PublishResult::New { .. })), "{published:?}");
                    if ids.len() % 30 == 3 {
                        // Cause contention: cancel one delivery, make another due, and set the circuit of a webhook.
                        let tenant_id = harness.tenant_id.clone();
                        let last = ids[ids.len() - 1];
                        store.cancel(tenant_id.clone(), last, "changed my mind".into(), at(1)).await.unwrap();
                        let first = ids[ids.len() / 2];
                        let options = harness.redrive_options(harness.delivery_id(at(0)));
                        store.retry(tenant_id.clone(), first, options, at(1)).await.unwrap();
                        let circuit = redrive_store::conformance::closed();
                        store.set_circuit(tenant_id, webhooks[index], circuit, None).await.unwrap();
                    }
                }
            }
        };
        let working = async move {
            let mut idle = 0;
            while idle < 20 {
                let done = work(&harness, &*store, epoch, 2).await;
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
    // The remaining deliveries, such as those behind others in an ordered lane, are delivered: none is lost.
    harness.drain().await;
    let events = harness
        .store()
        .list_events(harness.tenant_id.clone(), Default::default(), page(10_000))
        .await
        .unwrap()
        .found;
    let numbers: BTreeSet<_> = events.iter().map(|stored| stored.sequence_number).collect();
    assert_eq!(numbers.len() as u64, EVENTS, "sequence numbers are unique across nodes");
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_connection_leaves_no_unknown_lease() {
    let database = redrive_testkit::Postgres::shared().await;
    let proxy = Proxy::to(database.address()).await;
    let through = store(database.url_through(&proxy)).await;
    let direct = store(database.url()).await;
    let harness = harness_on(direct, database).await;
    let epoch = through.join(Default::default(), at(0)).await.unwrap();
    let mut known = BTreeSet::new();
    for round in 0..40 {
        let replies: Vec<_> = (0..10)
            .map(|_| {
                let mut new = harness.new_event(at(0), InitialState::Leased);
                new.epoch = epoch;
                let id = new.deliveries[0].id;
                let (sender, reply) = tokio::sync::oneshot::channel();
                through.publish(new, Box::new(move |result| drop(sender.send(result))));
                (id, reply)
            })
            .collect();
        if round % 2 == 0 {
            tokio::time::sleep(Duration::from_micros(300 * (round % 7))).await;
            proxy.cut();
        }
        for (id, reply) in replies {
            match reply.await.unwrap() {
                Ok(PublishResult::New { .. }) => drop(known.insert(id)),
                Err(StoreError::Unavailable(_)) => {}
                other => panic!("{other:?}"),
            }
        }
    }
    // The next successful publish releases all uncertain leases.
    eventually("the store works again", WAIT_TIMEOUT, async || through.ping().await.is_ok()).await;
    let mut last = harness.new_event(at(0), InitialState::Leased);
    last.epoch = epoch;
    known.insert(last.deliveries[0].id);
    let (sender, reply) = tokio::sync::oneshot::channel();
    through.publish(last, Box::new(move |result| drop(sender.send(result))));
    assert!(matches!(reply.await.unwrap(), Ok(PublishResult::New { .. })));
    let leased = harness.store().stats().await.unwrap().leased;
    assert_eq!(leased, known.len() as u64, "the leases in the store are those that the node holds");
    harness.drain().await;
    for id in known {
        assert_eq!(harness.status(id).await, DeliveryStatus::Delivered, "an acknowledged event is stored");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn claim_with_lost_commit_reply_is_undone_on_idle_node() {
    let database = redrive_testkit::Postgres::shared().await;
    let proxy = Proxy::to(database.address()).await;
    let through = stall_tolerant_store(database.url_through(&proxy)).await;
    let url = database.url();
    let direct = store(url.clone()).await;
    let harness = harness_on(direct, database).await;
    let epoch = through.join(Default::default(), at(0)).await.unwrap();
    let new = harness.new_event(at(0), InitialState::Waiting(at(0)));
    let key = LaneKey { webhook_id: harness.webhook_id, lane: new.deliveries[0].lane.clone() };
    harness.publish(new).await;
    let capacity = LaneCapacity { exclusive: true, ..LaneCapacity::new(key, 10) };

    // The undo may follow within milliseconds, so a trigger records that the claim was committed.
    let (observer, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let trigger = "CREATE TABLE committed_claims (delivery_id uuid);
        CREATE FUNCTION record_claim() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN INSERT INTO committed_claims VALUES (NEW.delivery_id); RETURN NEW; END $$;
        CREATE TRIGGER record_claim AFTER INSERT ON leased FOR EACH ROW EXECUTE FUNCTION record_claim()";
    observer.batch_execute(trigger).await.unwrap();
    proxy.lose_reply_to(b"COMMIT");
    let claimed = through.claim(epoch, at(1), vec![capacity.clone()], 1 << 20).await;
    assert!(matches!(claimed, Err(StoreError::Unavailable(_))), "{claimed:?}");
    eventually("the claim is committed", WAIT_TIMEOUT, async || {
        observer.query("SELECT FROM committed_claims", &[]).await.unwrap().len() == 1
    })
    .await;

    // The node does nothing further, and still the lease, the lane and the assignment are released.
    eventually("another node may claim it", WAIT_TIMEOUT, async || {
        let claims =
            harness.store().claim(harness.epoch, at(1), vec![capacity.clone()], 1 << 20).await.unwrap();
        claims.iter().any(|claim| !claim.deliveries.is_empty())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_are_read_once_despite_long_transaction() {
    let database = redrive_testkit::Postgres::shared().await;
    let url = database.url();
    let direct = store(url.clone()).await;
    let harness = harness_on(direct, database).await;
    let (foreign, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    // A transaction with an assigned id keeps xmin of all snapshots from advancing.
    foreign.batch_execute("BEGIN; SELECT pg_current_xact_id()").await.unwrap();
    let mut cursor = harness.store().changes(None).await.unwrap().cursor;
    for _ in 0..20 {
        let webhook = harness.new_webhook().await;
        let read = harness.store().changes(Some(cursor)).await.unwrap();
        assert_eq!(read.changes, [Change::Webhook(harness.tenant_id.clone(), webhook.id)]);
        let again = harness.store().changes(Some(read.cursor)).await.unwrap();
        assert_eq!(again.changes, [], "a change is returned once");
        cursor = again.cursor;
    }
    foreign.batch_execute("INSERT INTO change_log (kind) VALUES (3); COMMIT").await.unwrap();
    let late = harness.store().changes(Some(cursor)).await.unwrap();
    assert_eq!(late.changes, [Change::Keys], "a change of the oldest transaction is not missed");
    assert_eq!(harness.store().changes(Some(late.cursor)).await.unwrap().changes, []);
}

#[tokio::test(flavor = "multi_thread")]
async fn unresponsive_server_fails_publishes_until_it_recovers() {
    let database = redrive_testkit::Postgres::shared().await;
    let proxy = Proxy::to(database.address()).await;
    let through = store(database.url_through(&proxy)).await;
    let harness = harness_on(through.clone(), database).await;
    for broken in [Proxy::stall as fn(&Proxy), Proxy::refuse] {
        broken(&proxy);
        let refused = tokio::time::timeout(
            Duration::from_secs(8),
            harness.try_publish(harness.new_event(at(0), InitialState::Waiting(at(0)))),
        );
        let refused = refused.await.expect("a reply within the timeout");
        assert!(matches!(refused, Err(StoreError::Unavailable(_))), "{refused:?}");
        assert!(matches!(through.ping().await, Err(StoreError::Unavailable(_))));
        proxy.pass();
        eventually("the store is found again", WAIT_TIMEOUT, async || through.ping().await.is_ok()).await;
        eventually("the store accepts events again", WAIT_TIMEOUT, async || {
            harness.try_publish(harness.new_event(at(0), InitialState::Waiting(at(0)))).await.is_ok()
        })
        .await;
    }
    harness.drain().await;
}

/// A claim that empties a lane does not wait for a concurrent insert into it, and the inserted delivery is not
/// missed.
#[tokio::test(flavor = "multi_thread")]
async fn lane_with_concurrent_insert_is_neither_awaited_nor_deleted() {
    let database = redrive_testkit::Postgres::shared().await;
    let (mut client, connection) =
        tokio_postgres::connect(&database.url(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let store = store(database.url()).await;
    let harness = harness_on(store.clone(), database).await;
    harness.publish(harness.new_event(at(0), InitialState::Waiting(at(0)))).await;
    harness.publish(harness.new_event(at(1), InitialState::Waiting(at(1)))).await;
    // Another transaction is inserting into the lane and has not committed yet.
    let filling = client.transaction().await.unwrap();
    filling.batch_execute("SELECT 1 FROM lanes FOR KEY SHARE").await.unwrap();
    let lane = harness.lane();
    let claimed_count = tokio::time::timeout(WAIT_TIMEOUT, work(&harness, &*store, harness.epoch, 10));
    assert_eq!(claimed_count.await.expect("the claim waits for no lock"), 2);
    let due = store.due_lanes(harness.epoch, vec!["default".into()], at(10), 10).await.unwrap();
    assert_eq!(due.lanes, std::slice::from_ref(&lane), "the lane is due again");
    filling.commit().await.unwrap();
    assert_eq!(work(&harness, &*store, harness.epoch, 10).await, 0);
    let due = store.due_lanes(harness.epoch, vec!["default".into()], at(10), 10).await.unwrap();
    assert_eq!(due.lanes, [], "the lane is empty");
    harness.drain().await;
}

/// A rescue that waits for a lease which another transaction is changing must rescue the changed lease too.
#[tokio::test(flavor = "multi_thread")]
async fn lease_that_changes_during_a_rescue_is_rescued() {
    let database = redrive_testkit::Postgres::shared().await;
    let (mut client, connection) =
        tokio_postgres::connect(&database.url(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    // The rescue waits for a lock here, so the timeouts must outlast a busy machine.
    let timeout = Duration::from_secs(10);
    let with_long_timeouts =
        Options { connect_timeout: timeout, statement_timeout: timeout, ..options(database.url()) };
    let store: Arc<dyn Store> = Arc::new(Postgres::open(&with_long_timeouts).await.unwrap());
    let harness = harness_on(store.clone(), database).await;
    for time in 0..3 {
        harness.publish(harness.new_event(at(time), InitialState::Leased)).await;
    }
    let rescuer = harness.new_epoch().await;
    let change = client.transaction().await.unwrap();
    change.batch_execute("UPDATE leased SET sending = 1").await.unwrap();
    let rescue = {
        let (store, dead) = (store.clone(), harness.epoch);
        tokio::spawn(async move { store.rescue(dead, at(10), 100).await })
    };
    eventually("the rescue waits for the change", WAIT_TIMEOUT, async || {
        let waiting =
            "SELECT count(*) FROM pg_locks WHERE NOT granted AND transactionid = pg_current_xact_id()::xid";
        change.query_one(waiting, &[]).await.unwrap().get::<_, i64>(0) == 1
    })
    .await;
    change.commit().await.unwrap();
    let step = rescue.await.unwrap().unwrap();
    assert_eq!((step.changed, step.finished), (3, true));
    assert_eq!(store.other_epochs(rescuer).await.unwrap(), [], "no lease or lane of the dead node is left");
    harness.drain().await;
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
    let harness = harness_on(one, database).await;
    // Wait until the hints that every node receives at the start have passed.
    tokio::time::sleep(Duration::from_millis(300)).await;
    for ring in [&work, &change] {
        let _ = tokio::time::timeout(Duration::from_millis(1), ring.notified()).await;
    }
    harness.waiting(at(0), at(0)).await;
    tokio::time::timeout(WAIT_TIMEOUT, work.notified()).await.expect("work is hinted at");
    harness.new_webhook().await;
    tokio::time::timeout(WAIT_TIMEOUT, change.notified()).await.expect("a change is hinted at");
    harness.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cancelled_write_reports_its_cause() {
    let database = redrive_testkit::Postgres::shared().await;
    let (mut client, connection) =
        tokio_postgres::connect(&database.url(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let store = store(database.url()).await;
    let harness = harness_on(store.clone(), database).await;
    let tenant = store.tenant(harness.tenant_id.clone()).await.unwrap().unwrap();
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
async fn partitions_are_created_ahead_by_concurrent_nodes() {
    let database = redrive_testkit::Postgres::shared().await;
    let stores = [store(database.url()).await, store(database.url()).await, store(database.url()).await];
    let made =
        stores.iter().cloned().map(|store| tokio::spawn(async move { store.ensure_partitions(at(0)).await }));
    for made in made.collect::<Vec<_>>() {
        made.await.unwrap().unwrap();
    }
    let months = "SELECT string_agg(relid::text, ' ' ORDER BY relid::text) FROM pg_partition_tree('events') WHERE isleaf";
    assert_eq!(database.query(months).await, [["events_2023_09 events_2023_10 events_2023_11"]]);
    // An event of any other month creates the partition it needs.
    let harness = harness_on(stores[0].clone(), database).await;
    let far = 400 * 24 * 3600 * 1000;
    let id = harness.waiting(at(far), at(far)).await;
    assert_eq!(harness.status(id).await, DeliveryStatus::Pending);
}

#[tokio::test(flavor = "multi_thread")]
async fn heartbeat_returns_database_time() {
    let database = redrive_testkit::Postgres::shared().await;
    let store = store(database.url()).await;
    let epoch = store.join(Default::default(), at(0)).await.unwrap();
    let reported = store.heartbeat(epoch).await.unwrap().time.unwrap().millis();
    let now: i64 =
        database.query("SELECT (extract(epoch FROM now()) * 1000)::bigint").await[0][0].parse().unwrap();
    assert!((now - reported).abs() < 60_000, "{reported} {now}");
    assert!(
        store.heartbeat(Epoch(0)).await.unwrap().time.is_some(),
        "a heartbeat without an epoch returns the time"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn sslmode_of_url_is_enforced() {
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
    // The certificate is not signed by a trusted CA.
    let error = Postgres::open(&with("sslmode=verify-full")).await.err().unwrap();
    assert!(matches!(error, OpenError::Unreachable { .. }), "{error}");
    let error = Postgres::open(&with("sslmode=sometimes")).await.err().unwrap().to_string();
    assert!(error.contains("use disable, prefer, require, verify-ca or verify-full"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn connection_errors_do_not_contain_the_password() {
    let url = "postgres://redrive:hunter2@127.0.0.1:1/redrive";
    let error = Postgres::open(&options(url.into())).await.err().unwrap().to_string();
    assert!(error.contains("127.0.0.1:1/redrive") && !error.contains("hunter2"), "{error}");
    assert!(!format!("{:?}", options(url.into())).contains("hunter2"));
}

async fn publish(store: &dyn Store, new: NewEvent) -> Result<PublishResult, StoreError> {
    let (sender, reply) = tokio::sync::oneshot::channel();
    store.publish(new, Box::new(move |result| drop(sender.send(result))));
    reply.await.unwrap()
}

/// Returns an event with this idempotency key, published by this epoch.
fn keyed(harness: &Harness, epoch: Epoch, key: String) -> NewEvent {
    let event = Event { idempotency_key: Some(key.into()), ..harness.event(at(0)) };
    let idempotency =
        Some(IdempotencyReservation { body_hash: [1; 32], expires_at: at(1_000), confirmed_now: at(0) });
    NewEvent { idempotency, epoch, ..harness.fan_out(event, &[(harness.webhook_id, InitialState::Leased)]) }
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_publishes_of_one_key_store_one_event() {
    const KEYS: usize = 150;
    let database = redrive_testkit::Postgres::shared().await;
    let url = database.url();
    let stores = [store(url.clone()).await, store(url.clone()).await, store(url).await];
    let harness = harness_on(stores[0].clone(), database).await;
    let mut publishing = Vec::new();
    for store in &stores {
        let epoch = store.join(Default::default(), at(0)).await.unwrap();
        for n in 0..KEYS {
            let (store, new) = (store.clone(), keyed(&harness, epoch, format!("key-{n}")));
            publishing.push(tokio::spawn(async move { (n, publish(&*store, new).await.unwrap()) }));
        }
    }
    let mut results = Vec::new();
    for one in publishing {
        results.push(one.await.unwrap());
    }
    for n in 0..KEYS {
        let of_key: Vec<_> = results.iter().filter(|(key, _)| *key == n).map(|(_, result)| result).collect();
        let new = of_key.iter().filter(|result| matches!(result, PublishResult::New { .. })).count();
        assert_eq!(new, 1, "one event for a key: {of_key:?}");
        let others: BTreeSet<_> = of_key
            .iter()
            .filter_map(|result| match result {
                PublishResult::Duplicate { event_id } => Some(*event_id),
                _ => None,
            })
            .collect();
        assert_eq!(others.len(), 1, "the others get that event's id: {of_key:?}");
    }
    let listed = harness.store().list_events(harness.tenant_id.clone(), Default::default(), page(1000)).await;
    assert_eq!(listed.unwrap().found.len(), KEYS);
}

#[tokio::test(flavor = "multi_thread")]
async fn locked_tenant_blocks_only_its_own_publishes() {
    let database = redrive_testkit::Postgres::shared().await;
    let url = database.url();
    let impatient = store(url.clone()).await;
    let patient = Options { statement_timeout: Duration::from_secs(30), ..options(url.clone()) };
    let store: Arc<dyn Store> = Arc::new(Postgres::open(&patient).await.unwrap());
    let harness = harness_on(store.clone(), database).await;
    let other = harness.new_tenant("globex").await;
    let config_version = store.config_changes(other.clone(), 0, 1_000).await.unwrap().unwrap().version;
    let epoch = store.join(Default::default(), at(0)).await.unwrap();
    let (client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    client.batch_execute("BEGIN").await.unwrap();
    let lock = "SELECT 1 FROM tenants WHERE id = $1 FOR UPDATE";
    client.query(lock, &[&harness.tenant_id.as_str()]).await.unwrap();
    // All of them are collected into few batches, and every batch contains both tenants.
    let mut blocked = Vec::new();
    let mut free = Vec::new();
    for n in 0..20 {
        let (to, new) = (store.clone(), keyed(&harness, epoch, format!("blocked-{n}")));
        blocked.push(tokio::spawn(async move { publish(&*to, new).await }));
        let to = store.clone();
        let event = Event { tenant_id: other.clone(), ..harness.event(at(0)) };
        let new = NewEvent { config_version, epoch, ..harness.fan_out(event, &[]) };
        free.push(tokio::spawn(async move { publish(&*to, new).await }));
    }
    for one in free {
        let published =
            tokio::time::timeout(WAIT_TIMEOUT, one).await.expect("another tenant's publish does not wait");
        assert!(matches!(published.unwrap(), Ok(PublishResult::New { .. })));
    }
    store.ping().await.expect("one locked tenant does not make a node unready");
    assert!(blocked.iter().all(|one| !one.is_finished()), "the locked tenant waits");
    client.batch_execute("COMMIT").await.unwrap();
    let mut numbers = BTreeSet::new();
    for one in blocked {
        match one.await.unwrap() {
            Ok(PublishResult::New { sequence_number }) => numbers.insert(sequence_number),
            other => panic!("{other:?}"),
        };
    }
    assert_eq!(numbers.len(), 20);

    // A lock that is held for longer than the statement timeout: the publish fails as busy.
    client.batch_execute("BEGIN").await.unwrap();
    client.query(lock, &[&harness.tenant_id.as_str()]).await.unwrap();
    let late = publish(&*impatient, keyed(&harness, epoch, "late".into())).await;
    assert!(matches!(late, Err(StoreError::Busy(_))), "{late:?}");
    client.batch_execute("COMMIT").await.unwrap();
    let again = publish(&*store, keyed(&harness, epoch, "late".into())).await;
    assert!(matches!(again, Ok(PublishResult::New { .. })), "nothing was stored: {again:?}");
}

/// A node that pauses inside a transaction loses its session, and so does one whose connection is cut.
#[tokio::test(flavor = "multi_thread")]
async fn write_is_retried_if_connection_is_lost_before_commit() {
    let database = redrive_testkit::Postgres::shared().await;
    let proxy = Proxy::to(database.address()).await;
    let (mut client, connection) =
        tokio_postgres::connect(&database.url(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let store = store(database.url_through(&proxy)).await;
    let harness = harness_on(store.clone(), database).await;
    let tenant = store.tenant(harness.tenant_id.clone()).await.unwrap().unwrap();
    let blocking = client.transaction().await.unwrap();
    blocking.batch_execute("SELECT 1 FROM tenants FOR UPDATE").await.unwrap();
    let change = {
        let store = store.clone();
        tokio::spawn(async move { store.change_tenant(tenant).await })
    };
    eventually("the change waits for the lock", WAIT_TIMEOUT, async || {
        let waiting =
            "SELECT count(*) FROM pg_stat_activity WHERE pg_backend_pid() = ANY(pg_blocking_pids(pid))";
        blocking.query_one(waiting, &[]).await.unwrap().get::<_, i64>(0) == 1
    })
    .await;
    proxy.cut();
    blocking.rollback().await.unwrap();
    assert_eq!(change.await.unwrap(), Ok(true));
}

/// Events of a blocked tenant must not use up the whole publish queue.
#[tokio::test(flavor = "multi_thread")]
async fn blocked_tenant_leaves_queue_capacity_for_others() {
    let database = redrive_testkit::Postgres::shared().await;
    let url = database.url();
    let small = Options {
        max_queued_publishes: 40,
        statement_timeout: Duration::from_secs(30),
        ..options(url.clone())
    };
    let store: Arc<dyn Store> = Arc::new(Postgres::open(&small).await.unwrap());
    let harness = harness_on(store.clone(), database).await;
    let other = harness.new_tenant("globex").await;
    let config_version = store.config_changes(other.clone(), 0, 1_000).await.unwrap().unwrap().version;
    let epoch = store.join(Default::default(), at(0)).await.unwrap();
    let (mut client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let blocking = client.transaction().await.unwrap();
    blocking
        .query("SELECT 1 FROM tenants WHERE id = $1 FOR UPDATE", &[&harness.tenant_id.as_str()])
        .await
        .unwrap();
    let mut blocked = tokio::task::JoinSet::new();
    for n in 0..60 {
        let (to, new) = (store.clone(), keyed(&harness, epoch, format!("blocked-{n}")));
        blocked.spawn(async move { publish(&*to, new).await });
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    // By then the first batch has run into the lock, and its events are in the tenant's queue.
    tokio::time::sleep(Duration::from_secs(1)).await;
    for _ in 0..10 {
        let event = Event { tenant_id: other.clone(), ..harness.event(at(0)) };
        let new = NewEvent { config_version, epoch, ..harness.fan_out(event, &[]) };
        let published = publish(&*store, new).await;
        assert!(matches!(published, Ok(PublishResult::New { .. })), "{published:?}");
    }
    blocking.rollback().await.unwrap();
    let results = blocked.join_all().await;
    let stored = results.iter().filter(|result| matches!(result, Ok(PublishResult::New { .. }))).count();
    assert!((1..=20).contains(&stored), "half of the queue is for blocked tenants: {stored}");
    let is_refused =
        |result: &Result<_, _>| matches!(result, Err(StoreError::Overloaded | StoreError::Busy(_)));
    assert_eq!(results.iter().filter(|result| is_refused(result)).count(), 60 - stored);
}
