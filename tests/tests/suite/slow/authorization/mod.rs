//! Who may do what: every route of the API by every kind of caller, from the server's own description.
//!
//! What each route needs is in `table`; a route without a row there fails, and so does a row without a route.

mod cross_tenant;
mod document;
mod fixture;
mod roles;
mod table;

use std::collections::BTreeSet;

use redrive_testkit::Answer;
use serde_json::Value;

use self::{
    cross_tenant::shown,
    document::{Document, TenantIn},
    fixture::{ACME, GLOBEX, Tenant, Things, World, call},
    roles::{Caller, Due, callers},
    table::{Need, Row, TABLE},
};

#[tokio::test]
async fn the_table_and_the_document_have_the_same_routes() {
    let world = World::start().await;
    let documented: BTreeSet<_> = world.document.routes().into_iter().collect();
    let known: BTreeSet<_> = TABLE.iter().map(Row::route).collect();
    assert_eq!(known.len(), TABLE.len(), "a route has two rows");
    let unknown: Vec<_> = documented.difference(&known).collect();
    assert!(unknown.is_empty(), "say in the table who may call {unknown:#?}");
    let gone: Vec<_> = known.difference(&documented).collect();
    assert!(gone.is_empty(), "the table has routes that the document has not: {gone:#?}");
}

#[tokio::test]
async fn every_route_answers_every_caller_as_the_table_says() {
    let world = World::start().await;
    let acme = world.tenant(ACME).await;
    world.tenant(GLOBEX).await;
    let callers = callers(&world).await;

    // First all that must change nothing, then what may.
    let before = world.picture(&acme).await;
    let (mut refused, mut allowed) = (0, 0);
    for row in TABLE {
        for caller in &callers {
            refused += outsider(&world, &acme.things, row, caller).await;
        }
    }
    assert_eq!(before, world.picture(&acme).await, "somebody changed what is not theirs");
    for row in TABLE {
        let mut let_in = 0;
        for caller in &callers {
            let_in += insider(&world, &acme, row, caller).await;
        }
        // A route that refused everybody would pass for a safe one.
        assert!(let_in > 0 || row.need == Need::Public, "nobody was let in at {} {}", row.method, row.path);
        allowed += let_in;
    }
    let (routes, roles) = (TABLE.len(), callers.len());
    println!("{routes} routes x {roles} roles: {refused} calls kept out, {allowed} let in");
}

fn due(world: &World, row: &Row, caller: &Caller) -> Due {
    caller.role.due(row, world.document.tenant_in(&row.route()) != TenantIn::Nowhere)
}

/// A call of a route for these things, with the tenant that the caller says it acts for.
async fn ask(
    world: &World,
    row: &Row,
    caller: &Caller,
    things: &Things,
    authorization: Option<&str>,
) -> Answer {
    let (path, body) = for_tenant(&world.document, row, &things.fill(row.path), caller.role.names_tenant());
    call(&world.admin, row, &path, &body, authorization).await
}

/// A path and a body that name a tenant, where the route takes one.
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

/// Calls a route as somebody who must see and change nothing of the tenant's. Gives the number of calls.
async fn outsider(world: &World, things: &Things, row: &Row, caller: &Caller) -> usize {
    let due = due(world, row, caller);
    if matches!(due, Due::Allowed | Due::NotAsked) {
        return 0;
    }
    for authorization in caller.authorizations.iter().map(Option::as_deref) {
        let answer = ask(world, row, caller, things, authorization).await;
        let why = format!("{} {} by {:?} ({authorization:?})", row.method, row.path, caller.role);
        things.are_not_in(&answer, &why);
        let text = String::from_utf8_lossy(&answer.body);
        match due {
            Due::Refused(status) => assert_eq!(answer.status, status, "{why}: {text}"),
            Due::Own => assert_eq!(answer.status, row.success, "{why}: {text}"),
            Due::Allowed | Due::NotAsked => panic!("{why}: {text}"),
        }
        if due == Due::Refused(404) {
            let nothing = ask(world, row, caller, &things.nobodys(), authorization).await;
            let why = format!("{why}: others' things must look like none");
            assert_eq!(shown(&answer), shown(&nothing), "{why}");
        }
    }
    caller.authorizations.len()
}

/// Calls a route as somebody who may, on things of its own. Gives the number of calls.
async fn insider(world: &World, acme: &Tenant, row: &Row, caller: &Caller) -> usize {
    if due(world, row, caller) != Due::Allowed {
        return 0;
    }
    let fresh = row.path.contains('{');
    for authorization in caller.authorizations.iter().map(Option::as_deref) {
        let things = if fresh { world.things(ACME, &acme.api).await } else { acme.things.clone() };
        let answer = ask(world, row, caller, &things, authorization).await;
        let text = String::from_utf8_lossy(&answer.body);
        let why = format!("{} {} by {:?}: {text}", row.method, row.path, caller.role);
        assert_eq!(answer.status, row.success, "{why}");
    }
    caller.authorizations.len()
}
