//! Who calls, with which permission, for which tenant: the extractors that authorize a request.

use std::{marker::PhantomData, sync::Arc};

use axum::{
    extract::{FromRequest, FromRequestParts, Request},
    http::{Extensions, HeaderMap, header, request::Parts},
    response::{IntoResponse, Response},
};
use redrive_core::{AttemptId, DeliveryId, EventId, OperationId, webhook::uid::WebhookRef};
use serde::Deserialize;
use utoipa::IntoParams;

use super::{
    AppState,
    extract::{Id, Ids, Json, NoBody, OptionalJson, OptionalPayloadJson, PayloadJson, Query},
};
use crate::{
    app::{
        Actor, App, AppError, Caller, Capability, Scope, TenantSelection, TenantView,
        across_tenants::ObjectId, session::is_token_of,
    },
    problem::Problem,
    request::{client_address, cookie},
};

/// Permission that a handler requires. Each handler names one in its signature, so a caller without it is rejected
/// before the body is read.
pub(crate) trait RequiredScope: Send {
    /// Returns an error if the caller lacks the permission.
    fn check(caller: &Caller) -> Result<(), AppError>;
}

/// Permission to publish events.
pub(super) struct CanPublish;
/// Permission to read a tenant's data.
pub(super) struct CanRead;
/// Permission to create and change webhooks and their settings.
pub(crate) struct ManagesEndpoints;
/// Permission to resend and cancel deliveries.
pub(super) struct Resends;
/// Permission to rotate signing secrets.
pub(super) struct RotatesSecrets;
/// Permission to manage everything of a tenant, including what publishers depend on. Not granted to portal
/// sessions.
pub(super) struct CanOperate;
/// Permission to erase payloads. Not granted to portal sessions and operators.
pub(super) struct CanErase;
/// Permission to read what concerns all tenants.
pub(super) struct ViewsAllTenants;
/// Permission for everything, in any tenant.
pub(super) struct CanAdminister;

impl RequiredScope for CanPublish {
    fn check(caller: &Caller) -> Result<(), AppError> {
        caller.require_scope(Scope::Publish)
    }
}

impl RequiredScope for CanRead {
    fn check(caller: &Caller) -> Result<(), AppError> {
        caller.require_scope(Scope::Read)
    }
}

impl RequiredScope for ManagesEndpoints {
    fn check(caller: &Caller) -> Result<(), AppError> {
        caller.require_scope(Scope::Manage)?;
        caller.require_capability(Capability::ManageEndpoints)
    }
}

impl RequiredScope for Resends {
    fn check(caller: &Caller) -> Result<(), AppError> {
        caller.require_scope(Scope::Manage)?;
        caller.require_capability(Capability::Resend)
    }
}

impl RequiredScope for RotatesSecrets {
    fn check(caller: &Caller) -> Result<(), AppError> {
        caller.require_scope(Scope::Manage)?;
        caller.require_capability(Capability::Secrets)
    }
}

impl RequiredScope for CanOperate {
    fn check(caller: &Caller) -> Result<(), AppError> {
        caller.require_scope(Scope::Manage)?;
        caller.reject_portal_session()
    }
}

impl RequiredScope for CanErase {
    fn check(caller: &Caller) -> Result<(), AppError> {
        caller.require_erasure()
    }
}

impl RequiredScope for ViewsAllTenants {
    fn check(caller: &Caller) -> Result<(), AppError> {
        caller.require_all_tenants().map(|_| ())
    }
}

impl RequiredScope for CanAdminister {
    fn check(caller: &Caller) -> Result<(), AppError> {
        caller.require_admin()
    }
}

/// Authenticated caller that has the required permission.
pub(crate) struct Authorized<N>(pub(crate) Actor, pub(crate) PhantomData<N>);

impl<N: RequiredScope> FromRequestParts<AppState> for Authorized<N> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &AppState) -> Result<Self, Problem> {
        // The rate limit middleware, if enabled, has already authenticated the caller.
        let known = parts.extensions.get::<Arc<Caller>>().cloned();
        let address = client_address(&parts.extensions);
        let caller = match known {
            Some(caller) => caller,
            None => {
                let caller = authenticate(&parts.headers, &parts.extensions, app)
                    .await?
                    .ok_or(AppError::Unauthorized)?;
                parts.extensions.insert(caller.clone());
                caller
            }
        };
        N::check(&caller)?;
        Ok(Self(Actor { caller, address }, PhantomData))
    }
}

/// Authorized request for a tenant: the caller, which has the required permission, the tenant that it acts for, and the
/// parts of the request. It is checked in this order: permission, path, query, body, tenant. So a caller without the
/// permission is rejected before its body is read.
///
/// `P`, `Q` and `B` are the extractors of the path, the query and the body; `()` and [`UnreadBody`] extract nothing.
pub(super) struct Scoped<N, P = (), Q = Query<TenantQuery>, B = UnreadBody> {
    /// The caller.
    pub(super) actor: Actor,
    /// The tenant, with what the caller may see of it.
    pub(super) tenant: TenantView,
    /// The path.
    pub(super) path: P,
    /// The query.
    pub(super) query: Q,
    /// The body.
    pub(super) body: B,
    required: PhantomData<N>,
}

/// [`Scoped`] request with a body, and the tenant as its only query parameter.
pub(super) type ScopedBody<N, P, B> = Scoped<N, P, Query<TenantQuery>, B>;

impl<N, P, Q, B> FromRequest<AppState> for Scoped<N, P, Q, B>
where
    N: RequiredScope,
    P: FromRequestParts<AppState> + PathObject + Send,
    Q: FromRequestParts<AppState> + TenantParameter + Send,
    B: FromRequest<AppState> + TenantParameter + Send,
{
    type Rejection = Response;

    async fn from_request(request: Request, app: &AppState) -> Result<Self, Response> {
        let (mut parts, body) = request.into_parts();
        let authorized = Authorized::<N>::from_request_parts(&mut parts, app).await;
        let Authorized(actor, required) = authorized.map_err(IntoResponse::into_response)?;
        let path = P::from_request_parts(&mut parts, app).await.map_err(IntoResponse::into_response)?;
        let query = Q::from_request_parts(&mut parts, app).await.map_err(IntoResponse::into_response)?;
        let body = B::from_request(Request::from_parts(parts, body), app).await;
        let body = body.map_err(IntoResponse::into_response)?;
        let named = body.tenant_id().or(query.tenant_id());
        let tenant = app.resolve_tenant_of(&actor, named, path.object()).await;
        let tenant = tenant.map_err(|error| Problem::from(error).into_response())?;
        Ok(Self { actor, tenant, path, query, body, required })
    }
}

/// Authorized request for a listing, which an admin may run over all tenants. It is checked in this order: permission,
/// query, tenant.
pub(super) struct ScopedListing<N, Q> {
    /// The tenants to list.
    pub(super) tenants: TenantSelection,
    /// The query.
    pub(super) query: Q,
    required: PhantomData<N>,
}

impl<N, Q> FromRequestParts<AppState> for ScopedListing<N, Q>
where
    N: RequiredScope,
    Q: FromRequestParts<AppState> + TenantParameter + Send,
{
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, app: &AppState) -> Result<Self, Response> {
        let authorized = Authorized::<N>::from_request_parts(parts, app).await;
        let Authorized(actor, required) = authorized.map_err(IntoResponse::into_response)?;
        let query = Q::from_request_parts(parts, app).await.map_err(IntoResponse::into_response)?;
        let tenants = app.resolve_tenants(&actor, query.tenant_id()).await;
        let tenants = tenants.map_err(|error| Problem::from(error).into_response())?;
        Ok(Self { tenants, query, required })
    }
}

/// Id of a kind of object. Those of events, deliveries and webhooks are unique over all tenants, so an admin need not
/// name the tenant.
pub(super) trait Identifies {
    /// Returns the object, if its tenant can be found by its id.
    fn object(&self) -> Option<ObjectId> {
        None
    }
}

/// Implements [`Identifies`] for ids by which a tenant can be found.
macro_rules! identifies {
    ($($id:ty => $kind:ident),+) => {$(
        impl Identifies for $id {
            fn object(&self) -> Option<ObjectId> {
                Some(ObjectId::$kind(*self))
            }
        }
    )+};
}
identifies!(EventId => Event, DeliveryId => Delivery, AttemptId => Attempt);

impl Identifies for WebhookRef {
    fn object(&self) -> Option<ObjectId> {
        match self {
            Self::Id(id) => Some(ObjectId::Webhook(*id)),
            // A uid is unique in its tenant only.
            Self::Uid(_) => None,
        }
    }
}

impl Identifies for OperationId {}

/// Path of a request, which may name an object.
pub(super) trait PathObject {
    /// Returns the object that the path names, if its tenant can be found by its id.
    fn object(&self) -> Option<ObjectId>;
}

impl PathObject for () {
    fn object(&self) -> Option<ObjectId> {
        None
    }
}

impl PathObject for axum::extract::Path<String> {
    fn object(&self) -> Option<ObjectId> {
        None
    }
}

impl<T: Identifies> PathObject for Id<T> {
    fn object(&self) -> Option<ObjectId> {
        self.0.object()
    }
}

impl<A: Identifies, B> PathObject for Ids<A, B> {
    fn object(&self) -> Option<ObjectId> {
        self.0.object()
    }
}

/// Part of a request that may name the tenant to act for.
pub(super) trait TenantParameter {
    /// Returns the tenant as the client wrote it.
    fn tenant_id(&self) -> Option<&str>;
}

/// Implements [`TenantParameter`] for types with a field `tenant_id`.
macro_rules! tenant_parameter {
    ($($name:ty),+ $(,)?) => {$(
        impl crate::api::scope::TenantParameter for $name {
            fn tenant_id(&self) -> Option<&str> {
                self.tenant_id.as_deref()
            }
        }
    )+};
}
pub(super) use tenant_parameter;

/// Query whose only parameter is the tenant to act for.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct TenantQuery {
    /// Tenant to act for; admin keys only.
    pub(super) tenant_id: Option<String>,
}

tenant_parameter!(TenantQuery);

/// Body that is not read, because the route has none.
pub(super) struct UnreadBody;

impl FromRequest<AppState> for UnreadBody {
    type Rejection = Problem;

    async fn from_request(_: Request, _: &AppState) -> Result<Self, Problem> {
        Ok(Self)
    }
}

/// Implements [`TenantParameter`] for parts of a request that name no tenant.
macro_rules! no_tenant_parameter {
    ($($name:ty),+) => {$(
        impl TenantParameter for $name {
            fn tenant_id(&self) -> Option<&str> {
                None
            }
        }
    )+};
}
no_tenant_parameter!((), UnreadBody, NoBody);

/// Implements [`TenantParameter`] for extractors by what they contain.
macro_rules! tenant_parameter_within {
    ($($name:ident $(<const $max:ident>)?),+) => {$(
        impl<T: TenantParameter $(, const $max: usize)?> TenantParameter for $name<T $(, $max)?> {
            fn tenant_id(&self) -> Option<&str> {
                self.0.tenant_id()
            }
        }
    )+};
}
tenant_parameter_within!(Query, Json<const MAX>, OptionalJson<const MAX>, PayloadJson, OptionalPayloadJson);

/// Header with the CSRF token that dashboard pages send with every call.
pub(crate) const CSRF_HEADER: &str = "x-redrive-token";

/// Authenticates the API key in the headers or the session in the cookie, including its allowed networks. An error
/// means that the store could not be queried for the session.
pub(super) async fn authenticate(
    headers: &HeaderMap,
    extensions: &Extensions,
    app: &App,
) -> Result<Option<Arc<Caller>>, AppError> {
    let from = client_address(extensions);
    let Some(authorization) = headers.get(header::AUTHORIZATION) else {
        let Some(cookie) = session_cookie(headers, extensions) else { return Ok(None) };
        return Ok(app.session(cookie, from).await?.map(|session| session.caller));
    };
    let bearer = authorization.to_str().ok().and_then(|text| text.split_once(' '));
    let key = bearer.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer")).map(|(_, key)| key.trim());
    Ok(key.and_then(|key| app.keys().caller(key, app.engine().clock().now(), from)))
}

/// Returns the session cookie if the request comes from a dashboard page. Browsers send the cookie with requests
/// from any site, but only dashboard pages know the CSRF token that belongs to it, and they never have the origin
/// `null`.
fn session_cookie<'a>(headers: &'a HeaderMap, extensions: &Extensions) -> Option<&'a str> {
    let (cookie, token) =
        (cookie::session(headers, cookie::is_secure(extensions))?, headers.get(CSRF_HEADER)?.to_str().ok()?);
    let is_hidden = headers.get(header::ORIGIN).is_some_and(|origin| origin == "null");
    (is_token_of(token, cookie) && !is_hidden).then_some(cookie)
}
