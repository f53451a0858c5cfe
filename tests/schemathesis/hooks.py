"""Puts ids of real things into most of the requests, which would ask for things that do not exist otherwise.

What there is, by kind, is in the JSON file that $REDRIVE_THINGS names. How often each operation gave each status
is written to the one that $REDRIVE_TALLY names, so that whoever runs this knows that answers were more than errors.
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

# One request in so many stays as it was made.
AS_IT_WAS = 4

TALLY = collections.defaultdict(collections.Counter)


def roll(case, salt):
    """A number that is the same for the same request, so that a run can be repeated."""
    text = f"{salt} {case.method} {case.path} {case.path_parameters} {case.query} {case.body}"
    return zlib.crc32(text.encode("utf-8", "surrogatepass"))


def one_of(kind, number):
    return THINGS[kind][number % len(THINGS[kind])]


def real_path(case, number):
    parameters = case.path_parameters or {}
    kind = "".join(case.path.split("/")[2:3])
    if "delivery_id" in parameters:
        # A delivery goes with its webhook.
        parameters["id"], parameters["delivery_id"] = one_of("pairs", number)
    elif case.method == "DELETE" and case.path == "/v1/tenants/{id}":
        # Others have to be there for the other operations.
        parameters["id"] = one_of("doomed", number)
    elif case.path == "/v1/webhooks/{id}" and case.method == "DELETE" or case.path.endswith("/disable"):
        # Nothing can be sent again to a webhook that is gone, or off.
        parameters["id"] = one_of("fleeting", number)
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
        # The one that has to name a tenant.
        case.body["tenant_id"] = one_of("tenants", number)
    for part in (case.body, case.body.get("filter")) if isinstance(case.body, dict) else ():
        if isinstance(part, dict) and part.get("webhook_ids"):
            part["webhook_ids"] = [one_of("webhooks", number)]


def spare(case):
    """Bulk operations over everything would leave nothing for the others to be tried on."""
    if case.path.endswith("-batch") and not case.meta.is_negative_at(ParameterLocation.BODY):
        body = case.body if isinstance(case.body, dict) else {}
        case.body = {**body, "filter": {"event_types": ["nobody.subscribed"]}}
        case.media_type = "application/json"


def spare_tenant(case):
    """The tenant that others rely on stays: its name is learned from listings, too."""
    parameters = case.path_parameters or {}
    if case.method == "DELETE" and case.path == "/v1/tenants/{id}" and parameters.get("id") in THINGS["tenants"]:
        parameters["id"] = one_of("doomed", roll(case, "spare"))


def without_tenant(fields):
    """Almost every tenant that is made up does not exist, and neither does what it is asked for."""
    if isinstance(fields, dict):
        fields.pop("tenant_id", None)


PLACES = {
    ParameterLocation.PATH: real_path,
    ParameterLocation.QUERY: real_query,
    ParameterLocation.BODY: real_body,
}


@schemathesis.hook
def before_call(context, case, kwargs):
    spare_tenant(case)
    if case.meta is None:
        return
    # There the ids are of what was made the step before, which has to be looked for where it was made.
    if case.meta.phase.name == TestPhase.STATEFUL:
        without_tenant(case.query)
        without_tenant(case.body)
        spare(case)
        return
    for place, put in PLACES.items():
        number = roll(case, place.value)
        # What is wrong on purpose stays wrong.
        if number % AS_IT_WAS and not case.meta.is_negative_at(place):
            put(case, number // AS_IT_WAS)
    spare(case)
    spare_tenant(case)


@schemathesis.hook
def after_call(context, case, response):
    TALLY[case.operation.label][str(response.status_code)] += 1


@atexit.register
def write_tally():
    with open(os.environ["REDRIVE_TALLY"], "w") as file:
        json.dump(TALLY, file)
