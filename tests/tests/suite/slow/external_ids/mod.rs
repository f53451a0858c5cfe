//! Ids that the application chooses: tenants, uids of webhooks, and requests that are repeated with a key.

mod creations;
mod tenants;
mod uids;

use redrive_testkit::{Api, ApiResponse, Postgres, Redrive, Setup};
use redrive_tests::cluster;
use serde_json::Value;

const JSON: (&str, &str) = ("content-type", "application/json");

/// Ids as WorkOS, Clerk, Stripe and Auth0 give them, and some that differ only in case.
const CUSTOMER_IDS: [&str; 7] = [
    "org_01EHZNVPK3SFK441A1RGBFSHRT",
    "org_2NNEqL2nrIRdJ194ndJqAHwEfxC",
    "cus_NffrFeUfNV2Hib",
    "auth0:6630f1c2b9.eu",
    "Acme",
    "ACME",
    "new",
];

/// Two nodes on one PostgreSQL.
async fn two_nodes() -> (impl Sized, Vec<Redrive>) {
    let database = Postgres::shared().await;
    let nodes = cluster::nodes(&database.url(), 2).await;
    (database, nodes)
}

/// One node on SQLite.
async fn one_node() -> Vec<Redrive> {
    vec![Redrive::start_with(Setup::new()).await]
}

fn apis(nodes: &[Redrive]) -> Vec<Api> {
    nodes.iter().map(Redrive::api).collect()
}

async fn post_with_key(api: &Api, path: &str, key: &str, body: &Value) -> ApiResponse {
    api.raw("POST", path, &[JSON, ("Idempotency-Key", key)], body.to_string()).await
}

/// Sends 50 concurrent requests, to the nodes in turn, and returns the responses.
async fn fifty<F, R>(apis: &[Api], request: R) -> Vec<ApiResponse>
where
    R: Fn(Api, usize) -> F,
    F: Future<Output = ApiResponse> + Send + 'static,
{
    let requests = (0..50).map(|n| tokio::spawn(request(apis[n % apis.len()].clone(), n)));
    let requests: Vec<_> = requests.collect();
    let mut responses = Vec::new();
    for request in requests {
        responses.push(request.await.unwrap());
    }
    responses
}
