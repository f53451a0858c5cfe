"""Steps of the walkers. Each thread has its own random generator, derived from the seed."""

import collections
import random
import threading
import time

from receivers import BEHAVIOURS

TENANTS = ["default", "acme", "zebra"]
TYPES = ["order.created", "order.paid", "invoice.sent", "user.deleted"]
SUBJECTS = ["customer-1", "customer-2", "customer-3"]
MAX_WEBHOOKS = 6
# Short delays, so that a run of a minute includes retries and dead deliveries.
RETRY = {"base_delay_ms": 200, "backoff_multiplier": 2, "max_attempts": 6, "max_delay_ms": 2000, "timeout_ms": 1500}
BREAKER = {"minimum_throughput": 5}
ORDERINGS = ["none", "per_event_type", "strict"]
PRIORITIES = ["high", "normal", "low"]


class State:
    """State shared by all threads: webhooks, acknowledged events, and counters."""

    def __init__(self):
        self.lock = threading.Lock()
        self.webhooks = {tenant: [] for tenant in TENANTS}
        self.control = {}
        self.acked = {}
        self.subjects = {}
        self.recent = collections.deque(maxlen=400)
        self.deliveries = collections.deque(maxlen=400)
        self.operations = collections.deque(maxlen=40)
        self.counts = collections.Counter()
        self.failures = []
        self.names = 0
        # Deliveries that a walker cancelled, and events that it may have erased.
        self.cancelled = set()
        self.erased = set()
        self.erased_subjects = set()

    def next_name(self):
        with self.lock:
            self.names += 1
            return f"receiver-{self.names}"

    def count(self, what):
        with self.lock:
            self.counts[what] += 1


class Stepper(threading.Thread):
    """A thread that runs random steps until it is stopped."""

    def __init__(self, name, seed, cluster, receivers, state, stop):
        super().__init__(name=name, daemon=True)
        self.random = random.Random(f"{seed}-{name}")
        self.cluster, self.receivers, self.state, self.stop = cluster, receivers, state, stop

    def run(self):
        while not self.stop.is_set():
            try:
                self.step()
            except Exception as error:  # A bug in the walk must fail the run.
                self.state.failures.append(f"{self.name}: {type(error).__name__}: {error}")
                self.stop.wait(1)

    def call(self, method, path, body=None, tenant=None):
        """Calls a random node. A 500 is a failure; no response or a 503 is expected during faults."""
        node = self.random.choice(self.cluster.nodes)
        if tenant:
            path += ("&" if "?" in path else "?") + f"tenant_id={tenant}"
        status, response = node.call(method, path, body)
        self.state.count(f"status {status}")
        if status == 500:
            self.state.failures.append(f"{method} {path} on {node.name}: 500 {response}")
        return status, response

    def tenant(self):
        return self.random.choice(TENANTS)


class Publisher(Stepper):
    """Publishes single events and batches, with and without keys, and repeats unacknowledged ones."""

    published = 0

    def set_up(self):
        """Creates the tenants, and for each a control webhook that no walker changes."""
        for tenant in TENANTS:
            if tenant != "default":
                self.call("POST", "/v1/tenants", {"id": tenant})
            name = f"control-{tenant}"
            body = {"url": self.receivers.url(name), "events": ["*"], "payload_format": "data", "retry_config": RETRY}
            status, response = self.call("POST", "/v1/webhooks", body, tenant)
            if status != 201:
                raise RuntimeError(f"no webhook could be created: {status} {response}")
            self.state.control[tenant] = (response["id"], name)

    def step(self):
        tenant = self.tenant()
        events = [self.event() for _ in range(self.random.choice([1, 1, 1, 5, 20]))]
        if self.random.random() < 0.1 and self.state.recent:
            self.publish_duplicate()
        for _ in range(20):
            left = self.publish(tenant, events)
            if not left or self.stop.is_set():
                break
            # Only events with a key can be published again without creating a duplicate.
            events = [event for event in left if "idempotency_key" in event]
            self.stop.wait(0.2)
        self.stop.wait(self.random.uniform(0, 0.1))

    def event(self):
        self.published += 1
        key = f"{self.name}-{self.published}"
        event = {"event_type": self.random.choice(TYPES), "data": {"key": key}}
        event["priority"] = self.random.choice(PRIORITIES)
        if self.random.random() < 0.3:
            event["subject"] = self.random.choice(SUBJECTS)
        if self.random.random() < 0.6:
            event["idempotency_key"] = key
        return event

    def publish(self, tenant, events):
        """Returns the events that were not acknowledged."""
        if len(events) == 1:
            status, response = self.call("POST", "/v1/events", events[0], tenant)
            responses = [dict(response or {}, status=status)]
        else:
            status, response = self.call("POST", "/v1/events/batch", {"events": events}, tenant)
            responses = response["data"] if status in (200, 202, 207) and response else [{"status": status}] * len(events)
        left = []
        for event, response in zip(events, responses):
            if response["status"] in (200, 202):
                self.acknowledged(tenant, event, response)
            elif response["status"] in (None, 503, 429):
                left.append(event)
        return left

    def acknowledged(self, tenant, event, response):
        key = event["data"]["key"]
        with self.state.lock:
            if key in self.state.acked and self.state.acked[key][1] != response["id"]:
                self.state.failures.append(f"{key} was acknowledged as {self.state.acked[key][1]} and {response['id']}")
            self.state.acked[key] = (tenant, response["id"], response.get("deliveries"), response["duplicate"])
            if "subject" in event:
                self.state.subjects[response["id"]] = event["subject"]
            self.state.recent.append((tenant, response["id"], event))
            self.state.counts["duplicates acknowledged"] += response["duplicate"]

    def publish_duplicate(self):
        with self.state.lock:
            tenant, event_id, event = self.random.choice(list(self.state.recent))
        if "idempotency_key" not in event:
            return
        status, response = self.call("POST", "/v1/events", event, tenant)
        if status in (200, 202) and (not response["duplicate"] or response["id"] != event_id):
            self.state.failures.append(f"the key of {event_id} was used again for {response}")


class Walker(Stepper):
    """Changes webhooks, tenants and event types, and retries, replays, cancels, purges, erases and lists."""

    STEPS = {
        "create_webhook": 6, "patch_webhook": 8, "switch_webhook": 12, "delete_webhook": 3, "change_circuit": 6,
        "rotate_secret": 2, "test_webhook": 2, "change_receiver": 8, "find_deliveries": 10, "retry": 8, "cancel": 6,
        "replay": 5, "bulk": 8, "change_operation": 3, "backfill": 2, "purge": 2, "erase": 2, "change_tenant": 3,
        "event_types": 3, "list": 6, "keys": 1,
    }

    def step(self):
        name = self.random.choices(list(self.STEPS), list(self.STEPS.values()))[0]
        self.state.count(f"step {name}")
        getattr(self, name)()
        self.stop.wait(self.random.uniform(0, 0.1))

    def webhook(self):
        """Returns a random tenant with one of its webhooks, or None for the webhook."""
        tenant = self.tenant()
        with self.state.lock:
            known = list(self.state.webhooks[tenant])
        return (tenant, *self.random.choice(known)) if known else (tenant, None, None)

    def flow_control(self):
        body = {"ordering_guarantee": self.random.choice(ORDERINGS)}
        body["max_in_flight"] = self.random.choice([None, 1, 2, 10])
        limit = {"requests_per_minute": self.random.choice([600, 6000, 60000]), "burst": self.random.choice([1, 50])}
        body["rate_limit"] = self.random.choice([None, limit])
        return body

    def create_webhook(self):
        tenant, name = self.tenant(), self.state.next_name()
        with self.state.lock:
            if len(self.state.webhooks[tenant]) >= MAX_WEBHOOKS:
                return
        events = self.random.choice([["*"], ["order.*"], TYPES[:2], ["invoice.sent"]])
        body = {"url": self.receivers.url(name), "events": events, "payload_format": "data", "retry_config": RETRY}
        body.update(self.flow_control(), circuit_breaker_config=BREAKER)
        status, response = self.call("POST", "/v1/webhooks", body, tenant)
        if status == 201:
            with self.state.lock:
                self.state.webhooks[tenant].append((response["id"], name))

    def patch_webhook(self):
        tenant, webhook_id, _ = self.webhook()
        if webhook_id:
            self.call("PATCH", f"/v1/webhooks/{webhook_id}", self.flow_control(), tenant)

    def switch_webhook(self):
        tenant, webhook_id, _ = self.webhook()
        action = self.random.choice(["pause", "resume", "resume", "disable", "enable", "enable"])
        if webhook_id:
            self.call("POST", f"/v1/webhooks/{webhook_id}/{action}", None, tenant)

    def delete_webhook(self):
        tenant, webhook_id, name = self.webhook()
        if webhook_id and self.call("DELETE", f"/v1/webhooks/{webhook_id}", None, tenant)[0] == 204:
            with self.state.lock:
                if (webhook_id, name) in self.state.webhooks[tenant]:
                    self.state.webhooks[tenant].remove((webhook_id, name))

    def change_circuit(self):
        tenant, webhook_id, _ = self.webhook()
        action = self.random.choice(["force_open", "force_close", "reset", "reset"])
        body = {"action": action}
        if action != "reset":
            body["duration_seconds"] = self.random.randint(1, 5)
        if webhook_id:
            self.call("PATCH", f"/v1/webhooks/{webhook_id}/circuit-breaker", body, tenant)

    def rotate_secret(self):
        tenant, webhook_id, _ = self.webhook()
        if webhook_id:
            self.call("POST", f"/v1/webhooks/{webhook_id}/rotate-secret", {"overlap": "1m"}, tenant)

    def test_webhook(self):
        tenant, webhook_id, _ = self.webhook()
        if webhook_id:
            self.call("POST", f"/v1/webhooks/{webhook_id}/test", None, tenant)

    def change_receiver(self):
        _, _, name = self.webhook()
        if name:
            self.receivers.set_behaviour(name, self.random.choices(list(BEHAVIOURS), list(BEHAVIOURS.values()))[0])

    def find_deliveries(self):
        tenant = self.tenant()
        status = self.random.choice(["pending", "dead", "delivered", "cancelled"])
        code, response = self.call("GET", f"/v1/deliveries?status={status}&limit=20", None, tenant)
        if code == 200:
            with self.state.lock:
                self.state.deliveries.extend((tenant, one["id"]) for one in response["data"])

    def delivery(self):
        with self.state.lock:
            return self.random.choice(list(self.state.deliveries)) if self.state.deliveries else (None, None)

    def retry(self):
        tenant, delivery_id = self.delivery()
        if delivery_id:
            body = self.random.choice([None, {"priority": self.random.choice(PRIORITIES)}])
            self.call("POST", f"/v1/deliveries/{delivery_id}/retry", body, tenant)

    def cancel(self):
        tenant, delivery_id = self.delivery()
        if delivery_id:
            with self.state.lock:
                self.state.cancelled.add(delivery_id)
            self.call("POST", f"/v1/deliveries/{delivery_id}/cancel", None, tenant)

    def replay(self):
        with self.state.lock:
            found = self.random.choice(list(self.state.recent)) if self.state.recent else None
        if found:
            self.call("POST", f"/v1/events/{found[1]}/replay", None, found[0])

    def bulk(self):
        tenant, webhook_id, _ = self.webhook()
        choices = [
            ("/v1/dlq/retry-batch", {"rate_limit": {"requests_per_second": 500}}),
            ("/v1/dlq/retry-batch", {"filter": {"event_types": [self.random.choice(TYPES)]}}),
            ("/v1/deliveries/retry-batch", {"filter": {"statuses": ["cancelled"], "webhook_ids": [webhook_id]}}),
            ("/v1/deliveries/retry-batch", {"filter": {"statuses": ["pending"]}, "priority": "high"}),
            ("/v1/deliveries/cancel-batch", {"filter": {"webhook_ids": [webhook_id]}}),
        ]
        path, body = self.random.choice(choices)
        if webhook_id:
            self.follow(tenant, self.call("POST", path, body, tenant))

    def follow(self, tenant, response):
        status, response = response
        if status in (200, 202) and response and "id" in response:
            with self.state.lock:
                self.state.operations.append((tenant, response["id"]))

    def change_operation(self):
        with self.state.lock:
            found = self.random.choice(list(self.state.operations)) if self.state.operations else None
        if found:
            tenant, operation_id = found
            self.call("GET", f"/v1/dlq/batch-operations/{operation_id}", None, tenant)
            for action in self.random.choice([["pause", "resume"], ["cancel"], ["pause", "resume"]]):
                self.call("POST", f"/v1/dlq/batch-operations/{operation_id}/{action}", None, tenant)

    def backfill(self):
        tenant, webhook_id, _ = self.webhook()
        if webhook_id:
            since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - self.random.randint(1, 20)))
            body = {"from": since, "rate_limit": {"requests_per_second": 200}}
            self.follow(tenant, self.call("POST", f"/v1/webhooks/{webhook_id}/backfill", body, tenant))

    def purge(self):
        tenant = self.tenant()
        query = self.random.choice(["", f"?event_type={self.random.choice(TYPES)}"])
        self.follow(tenant, self.call("DELETE", f"/v1/dlq{query}", None, tenant))

    def erase(self):
        with self.state.lock:
            found = self.random.choice(list(self.state.recent)) if self.state.recent else None
        if found and self.random.random() < 0.7:
            with self.state.lock:
                self.state.erased.add(found[1])
            self.call("POST", f"/v1/events/{found[1]}/erase", None, found[0])
        elif found:
            tenant, subject = self.tenant(), self.random.choice(SUBJECTS)
            with self.state.lock:
                self.state.erased_subjects.add((tenant, subject))
            self.call("POST", "/v1/events/erase", {"subject": subject}, tenant)

    def change_tenant(self):
        tenant = self.random.choice(TENANTS[1:])
        limit = {"requests_per_minute": 60000, "burst": 100}
        changes = [{"name": "renamed"}, {"rate_limit": limit}, {"rate_limit": None}, {"max_in_flight": 20}]
        changes += [{"max_in_flight": None}, {"quotas": {"max_events_per_day": 10_000_000}}, {"quotas": None}]
        # Nodes serve only the pool `default`: deliveries wait while their tenant is in another one.
        changes += [{"pool": "other"}, {"pool": "default"}, {"pool": "default"}]
        self.call("PATCH", f"/v1/tenants/{tenant}", self.random.choice(changes))

    def event_types(self):
        tenant, name = self.tenant(), f"catalogue.type{self.random.randint(1, 5)}"
        self.call("POST", "/v1/event-types", {"name": name, "description": "walk"}, tenant)
        self.call("PATCH", f"/v1/event-types/{name}", {"archived": self.random.random() < 0.5}, tenant)
        if self.random.random() < 0.5:
            self.call("DELETE", f"/v1/event-types/{name}", None, tenant)

    def list(self):
        paths = ["/v1/webhooks", "/v1/events?limit=50", "/v1/dlq?limit=50", "/v1/dlq/stats", "/v1/deliveries?limit=100"]
        paths += ["/v1/dlq/batch-operations", "/v1/notifications", "/v1/event-types"]
        self.call("GET", self.random.choice(paths), None, self.tenant())
        self.call("GET", self.random.choice(["/v1/status", "/metrics", "/v1/audit-log", "/v1/tenants"]))

    def keys(self):
        tenant = self.random.choice(TENANTS[1:])
        status, response = self.call("POST", f"/v1/tenants/{tenant}/api-keys", {"name": "walk"})
        if status == 201:
            self.call("DELETE", f"/v1/tenants/{tenant}/api-keys/{response['id']}")


class Faults(Stepper):
    """Kills, freezes, restarts or disconnects one node at a time; the other nodes continue."""

    def step(self):
        self.stop.wait(self.random.uniform(1, 6))
        if self.stop.is_set():
            return
        fault = self.random.choice(["kill", "kill", "freeze", "freeze", "restart", "cut"])
        node = self.random.choice(self.cluster.nodes)
        self.state.count(f"fault {fault}")
        getattr(self, fault)(node)

    def kill(self, node):
        node.kill()
        self.stop.wait(self.random.uniform(0, 3))
        self.start_again(node)

    def restart(self, node):
        node.end()
        self.start_again(node)

    def freeze(self, node):
        # Some freezes are shorter than a lease and some are longer.
        node.freeze()
        self.stop.wait(self.random.uniform(0.5, 8))
        node.resume()

    def cut(self, _):
        if self.cluster.postgres:
            self.cluster.postgres.cut_connections(self.random.randint(1, 30))

    def start_again(self, node):
        node.start()
        end = time.monotonic() + 30
        while not node.is_ready() and time.monotonic() < end and not self.stop.is_set():
            self.stop.wait(0.1)
