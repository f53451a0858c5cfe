"""Puts ids of existing objects into most requests, because random ids would only lead to 404.

The ids, by kind, are in the JSON file that $REDRIVE_THINGS names. The number of responses by operation and status is
written to the file that $REDRIVE_TALLY names, so that the caller can check that each operation also succeeded.
"""

import atexit
import collections
import json
import os
import zlib

import schemathesis
from schemathesis.core.parameters import ParameterLocation
from schemathesis.generation.meta import TestPhase

with open(os.environ["REDRIVE_THINGS"]) as file:
    THINGS = json.load(file)

# One request in this many is sent as generated.
UNCHANGED_INTERVAL = 4

TALLY = collections.defaultdict(collections.Counter)


def hash_of(case, salt):
    """Returns a number that is the same for the same request, so that a run can be repeated."""
    text = f"{salt} {case.method} {case.path} {case.path_parameters} {case.query} {case.body}"
    return zlib.crc32(text.encode("utf-8", "surrogatepass"))


def one_of(kind, number):
    return THINGS[kind][number % len(THINGS[kind])]


def real_path(case, number):
    parameters = case.path_parameters or {}
    kind = "".join(case.path.split("/")[2:3])
    if "delivery_id" in parameters:
        # A delivery is only found under its own webhook.
        parameters["id"], parameters["delivery_id"] = one_of("pairs", number)
    elif case.method == "DELETE" and case.path == "/v1/tenants/{id}":
        # The other tenants are needed by the other operations.
        parameters["id"] = one_of("disposable-tenants", number)
    elif case.path == "/v1/webhooks/{id}" and case.method == "DELETE" or case.path.endswith("/disable"):
        # A deleted or disabled webhook could not be used by the other operations.
        parameters["id"] = one_of("disposable-webhooks", number)
    elif case.path == "/v1/events/{id}/erase":
        parameters["id"] = one_of("erasable", number)
    elif "id" in parameters and kind in THINGS:
        parameters["id"] = one_of(kind, number)
    if "name" in parameters:
        parameters["name"] = one_of("event-types", number)
    if "key_id" in parameters:
        parameters["key_id"] = one_of("keys" if kind == "tenants" else "admin-keys", number)


def real_query(case, number):
    without_tenant(case.query)
    if case.query and "webhook_id" in case.query:
        case.query["webhook_id"] = one_of("webhooks", number)


def real_body(case, number):
    without_tenant(case.body)
    if case.path == "/v1/portal-sessions" and isinstance(case.body, dict):
        # This operation requires a tenant.
        case.body["tenant_id"] = one_of("tenants", number)
    for part in (case.body, case.body.get("filter")) if isinstance(case.body, dict) else ():
        if isinstance(part, dict) and part.get("webhook_ids"):
            part["webhook_ids"] = [one_of("webhooks", number)]


def restrict_bulk(case):
    """Restricts bulk operations to unused event types, since other operations need the existing objects."""
    if case.path.endswith("-batch") and not case.meta.is_negative_at(ParameterLocation.BODY):
        body = case.body if isinstance(case.body, dict) else {}
        case.body = {**body, "filter": {"event_types": ["no.subscribers"]}}
        case.media_type = "application/json"


def protect_tenants(case):
    """Deletes a disposable tenant instead of one that other operations need: listings return those names too."""
    parameters = case.path_parameters or {}
    if case.method == "DELETE" and case.path == "/v1/tenants/{id}" and parameters.get("id") in THINGS["tenants"]:
        parameters["id"] = one_of("disposable-tenants", hash_of(case, "tenant"))


def without_tenant(fields):
    """Removes the tenant: a generated one does not exist, so no object would be found in it."""
    if isinstance(fields, dict):
        fields.pop("tenant_id", None)


SETTERS = {
    ParameterLocation.PATH: real_path,
    ParameterLocation.QUERY: real_query,
    ParameterLocation.BODY: real_body,
}


@schemathesis.hook
def before_call(context, case, kwargs):
    protect_tenants(case)
    if case.meta is None:
        return
    # In this phase the ids come from the previous step, in the default tenant.
    if case.meta.phase.name == TestPhase.STATEFUL:
        without_tenant(case.query)
        without_tenant(case.body)
        restrict_bulk(case)
        return
    for place, set_ids in SETTERS.items():
        number = hash_of(case, place.value)
        # Values that are invalid on purpose are not replaced.
        if number % UNCHANGED_INTERVAL and not case.meta.is_negative_at(place):
            set_ids(case, number // UNCHANGED_INTERVAL)
    restrict_bulk(case)
    protect_tenants(case)


@schemathesis.hook
def filter_case(context, case):
    """Leaves out null where a body is optional: it counts as no body, which is valid. Hooks for bodies alone are not called for
    the cases of the coverage phase."""
    is_required = case.operation.definition.raw.get("requestBody", {}).get("required", False)
    return case.body is not None or is_required


@schemathesis.hook
def after_call(context, case, response):
    TALLY[case.operation.label][str(response.status_code)] += 1


@atexit.register
def write_tally():
    with open(os.environ["REDRIVE_TALLY"], "w") as file:
        json.dump(TALLY, file)
