//! The event payload of a notification, sent to operational webhooks.

use serde::Serialize;

use super::{Notification, NotificationKind};
use crate::{
    id::{DeliveryId, NotificationId, WebhookId},
    time::Time,
    webhook::Webhook,
};

/// The data of the event.
#[derive(Serialize)]
struct NotificationPayload<'a> {
    notification_id: NotificationId,
    kind: NotificationKind,
    webhook: Option<WebhookRef<'a>>,
    count: u64,
    first_at: Time,
    last_at: Time,
    reason: Option<&'a str>,
    message: Option<&'a str>,
    delivery_id: Option<DeliveryId>,
    event_type: Option<&'a str>,
    until: Option<Time>,
    since: Option<Time>,
    failures: Option<u32>,
}

/// The webhook that a notification is about.
#[derive(Serialize)]
struct WebhookRef<'a> {
    id: WebhookId,
    host: Option<String>,
    description: Option<&'a str>,
}

/// Returns the event data of a notification. `webhook` is the webhook it is about, if it is known.
pub fn to_event_data(notification: &Notification, webhook: Option<&Webhook>) -> serde_json::Result<Vec<u8>> {
    let about = |id| WebhookRef {
        id,
        host: webhook.and_then(|webhook| webhook.spec.host()),
        description: webhook.and_then(|webhook| webhook.spec.description.as_deref()),
    };
    let details = &notification.details;
    serde_json::to_vec(&NotificationPayload {
        notification_id: notification.id,
        kind: notification.kind,
        webhook: notification.webhook_id.map(about),
        count: notification.count,
        first_at: notification.first_at,
        last_at: notification.last_at,
        reason: details.reason.as_deref(),
        message: details.message.as_deref(),
        delivery_id: details.delivery_id,
        event_type: details.event_type.as_deref(),
        until: details.until,
        since: details.since,
        failures: details.failures,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        notification::OccurrenceDetails,
        tenancy::TenantId,
        webhook::{WebhookSpec, WebhookState},
    };

    fn notification(webhook_id: Option<WebhookId>) -> Notification {
        Notification {
            id: NotificationId::new(Time::from_secs(60), &[1; 10]),
            tenant_id: TenantId::default(),
            webhook_id,
            kind: NotificationKind::DeliveryDead,
            count: 3,
            first_at: Time::from_secs(10),
            last_at: Time::from_secs(20),
            details: OccurrenceDetails {
                reason: Some("permanent".into()),
                message: Some("no \"".into()),
                ..OccurrenceDetails::default()
            },
        }
    }

    #[test]
    fn event_data_identifies_webhook_without_secrets() {
        let webhook = Webhook {
            id: WebhookId::new(Time::default(), &[2; 10]),
            tenant_id: TenantId::default(),
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
        let data = to_event_data(&notification(Some(webhook.id)), Some(&webhook)).unwrap();
        assert!(!String::from_utf8_lossy(&data).contains("s3cret"));
        let data: serde_json::Value = serde_json::from_slice(&data).unwrap();
        let expected = serde_json::json!({
            "notification_id": notification(None).id.to_string(),
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
            "since": null,
            "failures": null,
        });
        assert_eq!(data, expected);
        let of_tenant: serde_json::Value =
            serde_json::from_slice(&to_event_data(&notification(None), None).unwrap()).unwrap();
        assert!(of_tenant["webhook"].is_null());
    }
}
