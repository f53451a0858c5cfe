//! Notifications from outside: kills neither lose nor repeat one, and ten thousand dead deliveries become few
//! events.

use std::{collections::BTreeMap, time::Duration};

use redrive_testkit::{Api, Postgres, ReceivedRequest, Receiver, Redrive, Setup};
use serde_json::{Value, json};

/// Returns the number of dead deliveries that operational webhooks were notified of, each event counted once.
fn deaths(arrivals: &[ReceivedRequest]) -> u64 {
    let reported = |arrival: &ReceivedRequest| {
        let body = arrival.json();
        assert_eq!(body["type"], "redrive.delivery.dead", "{body}");
        (arrival.webhook_id().to_owned(), body["data"]["count"].as_u64().unwrap())
    };
    arrivals.iter().map(reported).collect::<BTreeMap<_, _>>().values().sum()
}

async fn webhooks(api: &Api, operations: &Receiver, refusing: &Receiver) {
    api.create_webhook(&operations.url(), json!({"events": ["redrive.delivery.dead"]})).await;
    let options = json!({"circuit_breaker_config": {"enabled": false}, "max_in_flight": 100});
    api.create_webhook(&refusing.url(), options).await;
}

async fn dead(api: &Api) -> usize {
    let listed = api.get("/v1/dlq?limit=500").await.expect(200);
    listed["data"].as_array().map_or(0, Vec::len)
}

async fn survives_kills(setup: Setup) {
    let (operations, refusing) = (Receiver::start().await, Receiver::responding(404).await);
    let setup = setup.env("REDRIVE_NOTIFICATIONS_GROUP_INTERVAL", "1s").env("REDRIVE_CLUSTER_LEASE", "1s");
    let mut redrive = Redrive::start_with(setup).await;
    webhooks(&redrive.api(), &operations, &refusing).await;
    for round in 0..6u64 {
        for n in 0..5 {
            redrive.api().publish("order.created", json!({"round": round, "n": n})).await;
        }
        // Kills at a different point each time between the responses, their recording, the notification, its event and the
        // event's delivery.
        refusing.wait_for(5 * (round as usize + 1)).await;
        tokio::time::sleep(Duration::from_millis(23 * round)).await;
        redrive.kill();
        redrive.restart().await;
    }
    let api = redrive.api();
    for _ in 0..400 {
        if dead(&api).await == 30 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(dead(&api).await, 30);
    let arrivals =
        operations.wait_until("every dead delivery is reported", |arrivals| deaths(arrivals) >= 30).await;
    assert_eq!(deaths(&arrivals), 30, "no dead delivery is reported twice");
    let shown = |page: &Value| {
        page["data"].as_array().unwrap().iter().all(|one| one["channels"]["webhook"] != "pending")
    };
    let listed = api.wait_until("all are sent", "/v1/notifications?limit=500", shown).await;
    let listed = listed["data"].as_array().unwrap().iter();
    let dead = listed.filter(|one| one["kind"] == "delivery.dead");
    assert_eq!(dead.map(|one| one["count"].as_u64().unwrap()).sum::<u64>(), 30);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn notification_survives_kills() {
    survives_kills(Setup::new()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn notification_survives_kills_on_postgresql() {
    let database = Postgres::shared().await;
    survives_kills(Setup::new().database_url(database.url())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn quota_notification_is_sent_and_listed_only_for_its_tenant() {
    let operations = Receiver::start().await;
    let redrive = Redrive::start().await;
    let admin = redrive.api();
    admin.post("/v1/tenants", json!({"id": "acme", "quotas": {"max_events_per_day": 2}})).await.expect(201);
    let webhook = json!({"url": operations.url(), "events": ["redrive.quota.reached"], "tenant_id": "acme"});
    admin.post("/v1/webhooks", webhook).await.expect(201);
    let event = json!({"event_type": "order.created", "data": {}, "tenant_id": "acme"});
    let statuses: Vec<_> = {
        let mut all = Vec::new();
        for _ in 0..6 {
            all.push(admin.post("/v1/events", &event).await.status);
        }
        all
    };
    assert_eq!(statuses, [202, 202, 429, 429, 429, 429]);
    let arrivals = operations.wait_for(1).await;
    assert_eq!(arrivals[0].json()["data"]["reason"], "max_events_per_day");
    let listed = |page: &Value| page["data"].as_array().is_some_and(|all| all.len() == 1);
    let page =
        admin.wait_until("the notification is listed", "/v1/notifications?tenant_id=acme", listed).await;
    assert_eq!(
        (&page["data"][0]["kind"], &page["data"][0]["webhook_id"]),
        (&"quota.reached".into(), &Value::Null)
    );
    assert_eq!(admin.get("/v1/notifications").await.expect(200)["data"], json!([]));
}

mod extended {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn ten_thousand_dead_deliveries_become_few_events() {
        let (operations, refusing) = (Receiver::start().await, Receiver::responding(404).await);
        let redrive =
            Redrive::start_with(Setup::new().env("REDRIVE_NOTIFICATIONS_GROUP_INTERVAL", "10s")).await;
        let api = redrive.api();
        webhooks(&api, &operations, &refusing).await;
        for part in 0..20 {
            let events: Vec<_> = (0..500)
                .map(|n| json!({"event_type": "order.created", "data": {"n": part * 500 + n}}))
                .collect();
            api.post("/v1/events/batch", json!({"events": events})).await;
        }
        let arrivals = operations.wait_until("all are reported", |arrivals| deaths(arrivals) >= 10_000).await;
        assert_eq!(deaths(&arrivals), 10_000);
        assert!(arrivals.len() <= 10, "{} events", arrivals.len());
    }
}
