//! Creates the webhooks that point at this process's receiver, and the tenants.

use std::{error::Error, time::Duration};

use serde_json::{Map, Value, json};

use crate::{
    options::{Load, Sender},
    publisher,
    wire::{self, Wire},
};

/// Timeout of one call.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);

/// A webhook to create.
pub(crate) struct WebhookRequest<'a> {
    pub(crate) tenant: Option<&'a str>,
    /// Path of its URL, which ends in the index of the webhook in the fan-out of its events.
    pub(crate) path: String,
    pub(crate) events: &'a [&'a str],
    /// Further fields.
    pub(crate) extra: Map<String, Value>,
}

/// Client of the sender's API; makes one call at a time.
pub(crate) struct Api<'a> {
    wire: Wire,
    sender: &'a Sender,
}

impl<'a> Api<'a> {
    pub(crate) async fn connect(sender: &'a Sender) -> Result<Self, Box<dyn Error>> {
        Ok(Self { wire: publisher::connect(sender.api).await?, sender })
    }

    pub(crate) async fn create_webhook(&mut self, webhook: WebhookRequest<'_>) -> Result<(), Box<dyn Error>> {
        let mut body = webhook.extra;
        let url = format!("http://127.0.0.1:{}{}", self.sender.receiver_port, webhook.path);
        body.insert("url".into(), json!(url));
        body.insert("events".into(), json!(webhook.events));
        if let Some(tenant) = webhook.tenant {
            body.insert("tenant_id".into(), json!(tenant));
        }
        self.post("/v1/webhooks", &Value::Object(body)).await
    }

    pub(crate) async fn create_tenant(&mut self, id: &str) -> Result<(), Box<dyn Error>> {
        self.post("/v1/tenants", &json!({"id": id})).await
    }

    async fn post(&mut self, path: &str, body: &Value) -> Result<(), Box<dyn Error>> {
        let request = wire::post(path, self.sender.api, &self.sender.key, &body.to_string());
        let exchange = tokio::time::timeout(CONNECT_TIMEOUT, self.wire.exchange(request.as_bytes()));
        let response =
            exchange.await.map_err(|_| format!("POST {path}: no response within {CONNECT_TIMEOUT:?}"))??;
        if !(200..300).contains(&response.status()) {
            let text = String::from_utf8_lossy(response.body);
            return Err(format!("POST {path} returned {}: {text}", response.status()).into());
        }
        Ok(())
    }
}

/// Creates `--fanout` webhooks, one after another.
pub(crate) async fn create_webhooks(sender: &Sender, load: &Load) -> Result<(), Box<dyn Error>> {
    let extra = fields(&sender.webhook_extra)?;
    let mut api = Api::connect(sender).await?;
    for webhook in 0..load.fanout {
        let path = format!("/webhook/{webhook}");
        let resolved = WebhookRequest { tenant: None, path, events: &["bench.event"], extra: extra.clone() };
        api.create_webhook(resolved).await?;
    }
    Ok(())
}

/// Parses a JSON object and returns its fields.
pub(crate) fn fields(text: &str) -> Result<Map<String, Value>, Box<dyn Error>> {
    match serde_json::from_str(text)? {
        Value::Object(fields) => Ok(fields),
        _ => Err(format!("{text} is not a JSON object").into()),
    }
}
