"""Pages of the dashboard and its login, shared by the benchmark scripts."""

import http.client
import os
import sys
import urllib.parse

# Every page; `{…}` is replaced by ids of existing objects.
PAGES = [
    "/dashboard/t/default",
    "/dashboard/t/default?range=30d",
    "/dashboard/t/default/webhooks",
    "/dashboard/t/default/webhooks/{webhook_id}",
    "/dashboard/t/default/deliveries",
    "/dashboard/t/default/deliveries?status=dead",
    "/dashboard/t/default/deliveries?status_code=5xx",
    "/dashboard/t/default/deliveries?event_type=no.such.type",
    "/dashboard/t/default/deliveries/{id}",
    "/dashboard/t/default/events",
    "/dashboard/t/default/events/{event_id}",
    "/dashboard/t/default/dead",
    "/dashboard/t/default/operations",
    "/dashboard/t/default/event-types",
    "/dashboard/admin/tenants",
    "/dashboard/admin/keys",
    "/dashboard/admin/audit",
    "/dashboard/admin/settings",
]


def log_in(address):
    """Returns the cookie of a new session. The admin key is in REDRIVE_ADMIN_KEY."""
    connection = http.client.HTTPConnection(address, timeout=30)
    form = urllib.parse.urlencode({"key": os.environ["REDRIVE_ADMIN_KEY"], "next": ""})
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    connection.request("POST", "/dashboard/login", body=form, headers=headers)
    response = connection.getresponse()
    response.read()
    if response.status != 303:
        sys.exit(f"login returned {response.status}")
    return response.getheader("Set-Cookie").split(";")[0]
