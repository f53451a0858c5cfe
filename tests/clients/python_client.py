"""Creates a webhook, publishes an event, lists its delivery and resends it, with the client of openapi-python-client."""

import os
import time

from generated.api.deliveries import list_deliveries, retry_delivery
from generated.api.events import publish_event
from generated.api.webhooks import create_webhook, update_webhook
from generated.client import AuthenticatedClient
from generated.models import (
    DeliveryPage,
    EventCreate,
    InvalidFieldCode,
    Problem,
    PublishedEvent,
    Retry,
    Webhook,
    WebhookCreate,
    WebhookUpdate,
)
from generated.models.list_deliveries_status import ListDeliveriesStatus

client = AuthenticatedClient(base_url=os.environ["REDRIVE_URL"], token=os.environ["REDRIVE_KEY"])


def deliveries(webhook, count):
    """Waits until a webhook has this number of delivered deliveries. The test ends the process if that takes too long."""
    while True:
        page = list_deliveries.sync(client=client, webhook_id=[webhook.id], status=ListDeliveriesStatus.DELIVERED)
        assert isinstance(page, DeliveryPage), page
        if len(page.data) == count:
            return page.data
        time.sleep(0.05)


webhook = create_webhook.sync(client=client, body=WebhookCreate(url=os.environ["RECEIVER_URL"], events=["order.*"]))
assert isinstance(webhook, Webhook), webhook
assert webhook.description is None and webhook.created_at.tzinfo is not None, webhook

event = publish_event.sync(client=client, body=EventCreate(event_type="order.created", data={"order": 42}))
assert isinstance(event, PublishedEvent), event

[delivery] = deliveries(webhook, 1)
assert delivery.event_id == event.id, delivery
resent = retry_delivery.sync(client=client, id=delivery.id)
assert isinstance(resent, Retry), resent
both = deliveries(webhook, 2)
assert any(one.replay_of == delivery.id and one.round_ == 2 for one in both), both

wrong = update_webhook.sync(client=client, id=webhook.id, body=WebhookUpdate(max_in_flight=0))
assert isinstance(wrong, Problem), wrong
assert wrong.errors[0].field == "max_in_flight" and wrong.errors[0].code == InvalidFieldCode.OUT_OF_RANGE, wrong
