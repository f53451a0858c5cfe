//! Limits of one payload search over a large history, and its end when the client disconnects.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use redrive_testkit::{Api, Database, Postgres, Proxy, Redrive, Setup, WAIT_TIMEOUT};
use redrive_tests::{entries, text};
use serde_json::Value;
use tokio::{io::AsyncWriteExt, net::TcpStream};

/// Limits of one request.
const MAX_SCANNED_EVENTS: u64 = 1_000_000;
const MAX_SEARCH_TIME: Duration = Duration::from_secs(5);
/// Finds the oldest event.
const SEARCH: &str = "/v1/events/search?path=order.id&value=needle";
/// Delay of each message between the node and its database. A step of a search takes at least two of them, and reads
/// at most 2,000 events.
const DELAY: Duration = Duration::from_millis(60);
const MAX_SLOW_STEPS: u64 = MAX_SEARCH_TIME.as_millis() as u64 / (2 * DELAY.as_millis() as u64) + 1;

fn now_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis().try_into().unwrap()
}

/// Writes events of the last 100 seconds into an SQLite database that no server has open.
fn fill_sqlite(path: &std::path::Path, count: u64) {
    let store = rusqlite::Connection::open(path).unwrap();
    let sql = format!(
        r#"PRAGMA synchronous = OFF;
        INSERT INTO events (id, tenant_id, seq, event_type, timestamp, priority, data)
        WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {count})
        SELECT unhex(printf('%012x70018%015x', ms, n)), 'default', 1000000 + n,
            iif(n = 1, 'bench.rare', 'bench.history'), ms, 2,
            CAST(iif(n = 1, '{{"order":{{"id":"needle"}}}}', '{{"n":1}}') AS BLOB)
        FROM (SELECT n, {} + 99000 * n / {count} AS ms FROM numbers);
        PRAGMA wal_checkpoint(TRUNCATE)"#,
        now_ms() - 100_000
    );
    store.execute_batch(&sql).unwrap();
}

/// Returns the statement that writes such events into a PostgreSQL database.
fn fill_postgres(count: u64) -> String {
    format!(
        r#"INSERT INTO events (id, tenant_id, seq, event_type, timestamp, priority, data)
        SELECT (lpad(to_hex(ms), 12, '0') || '70018' || lpad(to_hex(n), 15, '0'))::uuid, 'default', 1000000 + n,
            CASE WHEN n = 1 THEN 'bench.rare' ELSE 'bench.history' END, ms, 2,
            convert_to(CASE WHEN n = 1 THEN '{{"order":{{"id":"needle"}}}}' ELSE '{{"n":1}}' END, 'UTF8')
        FROM (SELECT n, {} + 99000 * n / {count} AS ms FROM generate_series(1, {count}::bigint) n) numbered"#,
        now_ms() - 100_000
    )
}

fn scanned(found: &Value) -> u64 {
    found["progress"]["scanned"].as_u64().unwrap()
}

/// Continues a search until its range is searched. Returns the responses.
async fn search_to_the_end(api: &Api, query: &str, first: Value) -> Vec<Value> {
    let mut responses = vec![first];
    while let Some(cursor) = responses[responses.len() - 1]["next_cursor"].as_str() {
        let next = api.get(&format!("{SEARCH}{query}&cursor={cursor}")).await.expect(200);
        responses.push(next);
    }
    let last = &responses[responses.len() - 1]["progress"];
    assert_eq!(last["scanned_to"], last["from"], "the whole range was searched");
    responses
}

/// Returns the value of a metric.
async fn count(api: &Api, metric: &str) -> u64 {
    let page = String::from_utf8(api.get("/metrics").await.body.to_vec()).unwrap();
    let count = page.lines().find_map(|line| line.strip_prefix(metric)?.strip_prefix(' '));
    count.unwrap_or_else(|| panic!("no {metric} in\n{page}")).parse().unwrap()
}

/// Returns how many searches ended in this way.
async fn ended(api: &Api, outcome: &str) -> u64 {
    count(api, &format!("redrive_payload_searches_total{{outcome=\"{outcome}\"}}")).await
}

async fn wait_for_count(api: &Api, metric: &str, expected: u64) {
    let reached = async {
        while count(api, metric).await != expected {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let reached = tokio::time::timeout(WAIT_TIMEOUT, reached).await;
    reached.unwrap_or_else(|_| panic!("{metric} is not {expected}"));
}

#[tokio::test(flavor = "multi_thread")]
async fn request_ends_after_a_million_events_and_its_cursor_continues() {
    let count = MAX_SCANNED_EVENTS + 200_000;
    let folder = tempfile::tempdir().unwrap();
    let mut redrive = Redrive::start_with(Setup::new().data_dir(folder.path())).await;
    redrive.kill();
    fill_sqlite(&folder.path().join("redrive.db"), count);
    redrive.restart().await;
    let api = redrive.api();
    // Payloads of other types are not read, so that a million events take much less than five seconds.
    let query = "&event_type=bench.rare";
    let first = api.get(&format!("{SEARCH}{query}")).await.expect(200);
    assert_eq!((scanned(&first), entries(&first).len()), (MAX_SCANNED_EVENTS, 0), "{first}");
    let progress = &first["progress"];
    assert!(text(&progress["from"]) < text(&progress["scanned_to"]), "{progress}");
    assert!(text(&progress["scanned_to"]) < text(&progress["to"]), "{progress}");
    let responses = search_to_the_end(&api, query, first).await;
    assert_eq!(responses.iter().map(scanned).collect::<Vec<_>>(), [MAX_SCANNED_EVENTS, 200_000]);
    assert_eq!(text(&entries(&responses[1])[0]["event_type"]), "bench.rare");
    assert_eq!((ended(&api, "limited").await, ended(&api, "complete").await), (1, 1));
    let week =
        redrive.api().get(&format!("{SEARCH}&from=2024-01-01&to=2024-01-08T00:00:01Z")).await.expect(400);
    assert_eq!(week["field"], "from");
    assert!(text(&week["detail"]).contains("at most 7 days"), "{week}");
}

/// A node whose database responds slowly while `DELAY` is set, with events.
async fn slow(count: u64) -> (Redrive, Proxy, Database) {
    let database = Postgres::shared().await;
    let proxy = Proxy::to(database.address()).await;
    let redrive = Redrive::start_with(Setup::new().database_url(database.url_through(&proxy))).await;
    database.execute(&fill_postgres(count)).await;
    proxy.delay(DELAY);
    (redrive, proxy, database)
}

#[tokio::test(flavor = "multi_thread")]
async fn request_ends_after_five_seconds_and_its_cursor_continues() {
    let count = 2_000 * (MAX_SLOW_STEPS + 10);
    let (redrive, proxy, _database) = slow(count).await;
    let api = redrive.api();
    let started = Instant::now();
    let first = api.get(SEARCH).await.expect(200);
    let took = started.elapsed();
    assert!(took >= MAX_SEARCH_TIME, "it ended after {took:?} and {} events", scanned(&first));
    assert!((1..=2_000 * MAX_SLOW_STEPS).contains(&scanned(&first)), "{first}");
    assert!(entries(&first).is_empty() && first["next_cursor"].is_string(), "{first}");
    proxy.pass();
    let responses = search_to_the_end(&api, "", first).await;
    assert_eq!(responses.iter().map(scanned).sum::<u64>(), count);
    let found: Vec<_> = responses.iter().flat_map(entries).collect();
    assert_eq!(found.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn search_ends_when_its_client_disconnects() {
    let (redrive, proxy, _database) = slow(2_000 * (MAX_SLOW_STEPS + 10)).await;
    let api = redrive.api();
    let mut client = TcpStream::connect(redrive.address()).await.unwrap();
    let key = redrive.key();
    let request = format!("GET {SEARCH} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {key}\r\n\r\n");
    client.write_all(request.as_bytes()).await.unwrap();
    wait_for_count(&api, "redrive_payload_searches_running", 1).await;
    drop(client);
    proxy.pass();
    wait_for_count(&api, "redrive_payload_searches_total{outcome=\"cancelled\"}", 1).await;
    wait_for_count(&api, "redrive_payload_searches_running", 0).await;
    assert_eq!((ended(&api, "limited").await, ended(&api, "complete").await), (0, 0), "no other search ran");
    let found = api.get(SEARCH).await.expect(200);
    assert_eq!(entries(&found).len(), 1, "another search of the caller may run");
}
