//! Metrics and alerts of an idle node report unavailable dependencies, and their recovery.

use redrive_testkit::{Postgres, Prometheus, RabbitMq, Redis, Redrive};
use redrive_tests::cluster::node;

use super::root;

fn firing(alert: &str) -> String {
    format!("count(ALERTS{{alertname=\"{alert}\",alertstate=\"firing\"}})")
}

mod extended {
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn outages_of_dependencies_and_their_recovery_are_reported() {
        let (mut postgres, mut redis, mut broker) =
            tokio::join!(Postgres::start(), Redis::start(), RabbitMq::start());
        let setup = node(&postgres.url(), "a").arg("--redis").arg(redis.url());
        let redrive = Redrive::start_with(setup.env("REDRIVE_AMQP_URL", broker.url())).await;
        let rules = root().join("deploy/prometheus/alerts.yml");
        let prometheus = Prometheus::start(&[("a", redrive.address())], &[&rules]).await;
        let parts = ["webhook_store_up", "webhook_redis_up", "webhook_amqp_up"];
        for part in parts {
            prometheus.wait_for_value(part, 1.0).await;
        }
        postgres.kill().await;
        redis.kill().await;
        broker.kill().await;
        for part in parts {
            prometheus.wait_for_value(part, 0.0).await;
        }
        prometheus.wait_for_value("webhook_redis_fallback_active", 1.0).await;
        for alert in ["RedriveStoreFailures", "RedriveRedisAndStoreDown", "RedriveRabbitMqUnavailable"] {
            prometheus.wait_for_value(&firing(alert), 1.0).await;
        }
        postgres.start_again().await;
        redis.start_again().await;
        broker.start_again().await;
        for part in parts {
            prometheus.wait_for_value(part, 1.0).await;
        }
        prometheus.wait_for_value("webhook_redis_fallback_active", 0.0).await;
        prometheus.wait_for_value("redrive_store_consecutive_failures", 0.0).await;
        prometheus.wait_for_value("max(redrive_amqp_consecutive_failures)", 0.0).await;
    }
}
