//! Authorization: every route of the API called by every role, from the server's own OpenAPI document.
//!
//! The role that each route requires is in `table`; a route without a row there fails, and so does a row without a
//! route.

mod cross_tenant;
mod document;
mod fixture;
mod roles;
mod table;

use std::collections::BTreeSet;

use redrive_testkit::ApiResponse;
use serde_json::Value;

use self::{
    cross_tenant::visible,
    document::{Document, TenantIn},
    fixture::{ACME, Fixture, GLOBEX, Tenant, TenantObjects, call},
    roles::{Caller, Expectation, callers},
    table::{RequiredRole, Row, TABLE},
};

#[tokio::test]
async fn table_and_api_document_have_the_same_routes() {
    let fixture = Fixture::start().await;
    let documented: BTreeSet<_> = fixture.document.routes().into_iter().collect();
    let known: BTreeSet<_> = TABLE.iter().map(Row::route).collect();
    assert_eq!(known.len(), TABLE.len(), "a route has two rows");
    let unknown: Vec<_> = documented.difference(&known).collect();
    assert!(unknown.is_empty(), "the table has no row for {unknown:#?}");
    let gone: Vec<_> = known.difference(&documented).collect();
    assert!(gone.is_empty(), "the table has routes that the document has not: {gone:#?}");
}

#[tokio::test]
async fn every_route_authorizes_every_role_as_the_table_says() {
    let fixture = Fixture::start().await;
    let acme = fixture.tenant(ACME).await;
    fixture.tenant(GLOBEX).await;
    let callers = callers(&fixture).await;

    // First all calls that must change nothing, then those that may.
    let before = fixture.snapshot(&acme).await;
    let (mut refused, mut allowed) = (0, 0);
    for row in TABLE {
        for caller in &callers {
            refused += outsider(&fixture, &acme.things, row, caller).await;
        }
    }
    assert_eq!(before, fixture.snapshot(&acme).await, "a caller changed objects of another tenant");
    for row in TABLE {
        let mut let_in = 0;
        for caller in &callers {
            let_in += insider(&fixture, &acme, row, caller).await;
        }
        // A route that rejects every caller would look safe without being tested.
        assert!(
            let_in > 0 || row.need == RequiredRole::Public,
            "no role was allowed to call {} {}",
            row.method,
            row.path
        );
        allowed += let_in;
    }
    let (routes, roles) = (TABLE.len(), callers.len());
    println!("{routes} routes x {roles} roles: {refused} calls rejected, {allowed} allowed");
}

fn due(fixture: &Fixture, row: &Row, caller: &Caller) -> Expectation {
    caller.role.due(row, fixture.document.tenant_in(&row.route()) != TenantIn::Nowhere)
}

/// Calls a route for these objects, naming the tenant that the caller acts for.
async fn call_route(
    fixture: &Fixture,
    row: &Row,
    caller: &Caller,
    things: &TenantObjects,
    authorization: Option<&str>,
) -> ApiResponse {
    let (path, body) = for_tenant(&fixture.document, row, &things.fill(row.path), caller.role.names_tenant());
    call(&fixture.admin, row, &path, &body, authorization).await
}

/// Returns a path and a body that name a tenant, if the route takes one.
pub(crate) fn for_tenant(
    document: &Document,
    row: &Row,
    path: &str,
    tenant: Option<&str>,
) -> (String, String) {
    let (path, body) = (path.to_owned(), row.fresh_body());
    match (tenant, document.tenant_in(&row.route())) {
        (Some(tenant), TenantIn::Query) => (format!("{path}?tenant_id={tenant}"), body),
        (Some(tenant), TenantIn::Body) => {
            let mut fields: Value = serde_json::from_str(&body).unwrap();
            fields["tenant_id"] = tenant.into();
            (path, fields.to_string())
        }
        _ => (path, body),
    }
}

/// Calls a route as a role that must neither see nor change the tenant's objects. Returns the number of calls.
async fn outsider(fixture: &Fixture, things: &TenantObjects, row: &Row, caller: &Caller) -> usize {
    let due = due(fixture, row, caller);
    if matches!(due, Expectation::Allowed | Expectation::NotAsked) {
        return 0;
    }
    for authorization in caller.authorizations.iter().map(Option::as_deref) {
        let response = call_route(fixture, row, caller, things, authorization).await;
        let why = format!("{} {} by {:?} ({authorization:?})", row.method, row.path, caller.role);
        things.assert_not_leaked(&response, &why);
        let text = String::from_utf8_lossy(&response.body);
        match due {
            Expectation::Refused(status) => assert_eq!(response.status, status, "{why}: {text}"),
            Expectation::Own => assert_eq!(response.status, row.success, "{why}: {text}"),
            Expectation::Allowed | Expectation::NotAsked => panic!("{why}: {text}"),
        }
        if due == Expectation::Refused(404) {
            let nothing = call_route(fixture, row, caller, &things.nonexistent_ids(), authorization).await;
            let why = format!("{why}: foreign objects must look nonexistent");
            assert_eq!(visible(&response), visible(&nothing), "{why}");
        }
    }
    caller.authorizations.len()
}

/// Calls a route as an authorized role, on its own objects. Returns the number of calls.
async fn insider(fixture: &Fixture, acme: &Tenant, row: &Row, caller: &Caller) -> usize {
    if due(fixture, row, caller) != Expectation::Allowed {
        return 0;
    }
    // Reading an object leaves it as it is for the next caller.
    let fresh = row.path.contains('{') && row.method != "GET";
    for authorization in caller.authorizations.iter().map(Option::as_deref) {
        let things = if fresh { fixture.things(ACME, &acme.api).await } else { acme.things.clone() };
        let response = call_route(fixture, row, caller, &things, authorization).await;
        let text = String::from_utf8_lossy(&response.body);
        let why = format!("{} {} by {:?}: {text}", row.method, row.path, caller.role);
        assert_eq!(response.status, row.success, "{why}");
    }
    caller.authorizations.len()
}
