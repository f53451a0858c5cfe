//! A notice as the data of an event, which operational webhooks receive.

use serde::Serialize;

use super::{Kind, Notice};
use crate::{
    id::{DeliveryId, NoticeId, WebhookId},
    time::Time,
    webhook::Webhook,
};

/// The data of the event.
#[derive(Serialize)]
struct Data<'a> {
    notice_id: NoticeId,
    kind: Kind,
    webhook: Option<About<'a>>,
    count: u64,
    first_at: Time,
    last_at: Time,
    reason: Option<&'a str>,
    message: Option<&'a str>,
    delivery_id: Option<DeliveryId>,
    event_type: Option<&'a str>,
    until: Option<Time>,
}

/// The webhook that a notice is about.
#[derive(Serialize)]
struct About<'a> {
    id: WebhookId,
    host: Option<String>,
    description: Option<&'a str>,
}

/// The data of the event that a notice is told by. The webhook is the one that it is about, if it is known.
pub fn event_data(notice: &Notice, webhook: Option<&Webhook>) -> serde_json::Result<Vec<u8>> {
    let about = |id| About {
        id,
        host: webhook.and_then(|webhook| webhook.spec.host()),
        description: webhook.and_then(|webhook| webhook.spec.description.as_deref()),
    };
    let facts = &notice.facts;
    serde_json::to_vec(&Data {
        notice_id: notice.id,
        kind: notice.kind,
        webhook: notice.webhook.map(about),
        count: notice.count,
        first_at: notice.first_at,
        last_at: notice.last_at,
        reason: facts.reason.as_deref(),
        message: facts.message.as_deref(),
        delivery_id: facts.delivery,
        event_type: facts.event_type.as_deref(),
        until: facts.until,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{notification::Facts, tenancy::TenantId, webhook::WebhookSpec, webhook::WebhookState};

    fn notice(webhook: Option<WebhookId>) -> Notice {
        Notice {
            id: NoticeId::new(Time::from_secs(60), &[1; 10]),
            tenant: TenantId::default(),
            webhook,
            kind: Kind::DeliveryDead,
            count: 3,
            first_at: Time::from_secs(10),
            last_at: Time::from_secs(20),
            facts: Facts {
                reason: Some("permanent".into()),
                message: Some("no \"".into()),
                ..Facts::default()
            },
        }
    }

    #[test]
    fn an_event_says_what_it_is_about_and_no_secrets() {
        let webhook = Webhook {
            id: WebhookId::new(Time::default(), &[2; 10]),
            tenant: TenantId::default(),
            spec: WebhookSpec {
                url: "https://example.com/s3cret?token=s3cret#x".into(),
                description: Some("orders".into()),
                ..WebhookSpec::default()
            },
            secrets: Vec::new(),
            state: WebhookState::Active,
            created_at: Time::default(),
            updated_at: Time::default(),
        };
        let data = event_data(&notice(Some(webhook.id)), Some(&webhook)).unwrap();
        assert!(!String::from_utf8_lossy(&data).contains("s3cret"));
        let data: serde_json::Value = serde_json::from_slice(&data).unwrap();
        let expected = serde_json::json!({
            "notice_id": notice(None).id.to_string(),
            "kind": "delivery.dead",
            "webhook": {"id": webhook.id.to_string(), "host": "example.com", "description": "orders"},
            "count": 3,
            "first_at": "1970-01-01T00:00:10.000Z",
            "last_at": "1970-01-01T00:00:20.000Z",
            "reason": "permanent",
            "message": "no \"",
            "delivery_id": null,
            "event_type": null,
            "until": null,
        });
        assert_eq!(data, expected);
        let of_tenant: serde_json::Value =
            serde_json::from_slice(&event_data(&notice(None), None).unwrap()).unwrap();
        assert!(of_tenant["webhook"].is_null());
    }
}
