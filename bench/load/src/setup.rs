//! Creates the webhooks that the events fan out to.

use std::error::Error;

use serde_json::{Value, json};

use crate::{Options, publisher, wire};

/// Creates `--fanout` webhooks at this process's receiver, one after another.
pub(crate) async fn create_webhooks(options: &Options) -> Result<(), Box<dyn Error>> {
    let extra: Value = serde_json::from_str(&options.webhook_extra)?;
    let Value::Object(extra) = extra else { return Err("--webhook-extra must be a JSON object".into()) };
    let mut wire = publisher::connect(options.api).await?;
    for webhook in 0..options.fanout {
        let mut body = extra.clone();
        body.insert(
            "url".into(),
            json!(format!("http://127.0.0.1:{}/hook/{webhook}", options.receiver_port)),
        );
        body.insert("events".into(), json!(["bench.event"]));
        let body = Value::Object(body).to_string();
        let request = wire::post("/v1/webhooks", options.api, &options.key, &body);
        let answer = wire.exchange(request.as_bytes()).await?;
        if !(200..300).contains(&answer.status()) {
            let text = String::from_utf8_lossy(answer.body);
            return Err(format!("creating a webhook was answered {}: {text}", answer.status()).into());
        }
    }
    Ok(())
}
