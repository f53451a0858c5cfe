"""Somebody who is logged in to the dashboard, for the scripts beside this one."""

import http.client
import os
import sys
import urllib.parse

# Every page; `{…}` is filled with facts about what is there.
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
    """The cookie of a new session. The admin key is in REDRIVE_ADMIN_KEY."""
    connection = http.client.HTTPConnection(address, timeout=30)
    form = urllib.parse.urlencode({"key": os.environ["REDRIVE_ADMIN_KEY"], "next": ""})
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    connection.request("POST", "/dashboard/login", body=form, headers=headers)
    answer = connection.getresponse()
    answer.read()
    if answer.status != 303:
        sys.exit(f"logging in was answered {answer.status}")
    return answer.getheader("Set-Cookie").split(";")[0]
