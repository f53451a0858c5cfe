//! Extractors for the viewer of a page and the tenant that is viewed.

use axum::{
    extract::{FromRequestParts, RawPathParams},
    http::{StatusCode, request::Parts},
};
use redrive_core::TenantId;

use super::page::{PageContext, PageError, allowed};
use crate::{
    api::AppState,
    app::{
        Actor, AppError, Caller, Capability, ErrorCode, Scope, TenantView,
        auth::Role,
        session::{self, Session},
    },
    problem::Problem,
    request::{client_address, cookie},
};

/// A logged-in viewer.
#[derive(Clone)]
pub(super) struct Viewer {
    /// The viewer's key and address.
    pub(super) by: Actor,
    /// CSRF token that the pages send with every change.
    pub(super) token: String,
    /// The viewer's session.
    pub(super) session: Session,
    /// Whether this is a demo with simulated data.
    pub(super) is_demo: bool,
}

impl Viewer {
    /// Returns whether the viewer is an admin.
    pub(super) fn is_admin(&self) -> bool {
        self.by.role == Role::Admin
    }

    /// Returns whether the viewer may view the data of every tenant.
    pub(super) fn may_view_all_tenants(&self) -> bool {
        self.by.may_view_all_tenants()
    }

    /// Returns whether the viewer may make changes that require this capability of a portal session.
    pub(super) fn may_change(&self, capability: Capability) -> bool {
        self.by.require_scope(Scope::Manage).is_ok() && self.by.is_capable(capability)
    }

    /// Returns whether the viewer may publish.
    pub(super) fn may_publish(&self) -> bool {
        self.by.require_scope(Scope::Publish).is_ok()
    }
}

/// Returns the start page of a caller: the overview of its tenant.
pub(super) fn home_url(caller: &Caller) -> String {
    let tenant_id = caller.role.tenant_id().cloned().unwrap_or_default();
    format!("/dashboard/t/{tenant_id}")
}

impl FromRequestParts<AppState> for Viewer {
    type Rejection = PageError;

    async fn from_request_parts(parts: &mut Parts, app: &AppState) -> Result<Self, PageError> {
        // A live page is rendered with the viewer that subscribed to it.
        if let Some(known) = parts.extensions.get::<Self>() {
            return Ok(known.clone());
        }
        let address = client_address(&parts.extensions);
        let cookie = cookie::session(&parts.headers, cookie::is_secure(&parts.extensions));
        let session = match cookie {
            Some(cookie) => app.session(cookie, address).await?,
            None => None,
        };
        let Some((session, token)) = session.zip(cookie.map(session::token)) else {
            let next = parts.uri.path_and_query().map(ToString::to_string).unwrap_or_default();
            return Err(PageError::LogIn { next });
        };
        // Pages and API calls share the rate limit of their key.
        if let Some(throttle) = app.throttle()
            && let Some(seconds) =
                throttle.acquire(app.engine(), session.caller.rate_limit_id()).await.retry_after
        {
            let detail = format!("too many pages were requested by this key or user; reload in {seconds} s");
            return Err(Problem::new(StatusCode::TOO_MANY_REQUESTS, ErrorCode::RateLimited, detail).into());
        }
        let actor = Actor { caller: session.caller.clone(), address };
        Ok(Self { by: actor, token, session, is_demo: app.rules().demo })
    }
}

/// A viewer of a tenant that it may view. Other tenants are reported as not found.
pub(super) struct TenantViewer {
    /// The viewer.
    pub(super) viewer: Viewer,
    /// The tenant, and how much of its data is visible.
    pub(super) tenant: TenantView,
    /// The id in the path, if there is one.
    id: Option<String>,
}

impl TenantViewer {
    /// Returns the layout's data for a page in this section.
    pub(super) fn layout(&self, section: &'static str) -> PageContext {
        PageContext::new(&self.viewer, self.tenant.as_str(), section)
    }

    /// Returns the id in the path. An invalid id is reported as not found.
    pub(super) fn id<T: std::str::FromStr>(&self, what: &'static str) -> Result<T, PageError> {
        let parsed = self.id.as_deref().and_then(|id| id.parse().ok());
        parsed.ok_or_else(|| AppError::NotFound(what).into())
    }

    /// Rejects viewers that may not change what publishers rely on, as the API does.
    pub(super) fn require_operate(&self) -> Result<(), PageError> {
        allowed(self.viewer.by.require_scope(Scope::Manage))?;
        allowed(self.viewer.by.reject_portal_session())
    }

    /// Returns the id in the path as text.
    pub(super) fn name(&self) -> &str {
        self.id.as_deref().unwrap_or_default()
    }
}

impl FromRequestParts<AppState> for TenantViewer {
    type Rejection = PageError;

    async fn from_request_parts(parts: &mut Parts, app: &AppState) -> Result<Self, PageError> {
        let viewer = Viewer::from_request_parts(parts, app).await?;
        allowed(viewer.by.require_scope(Scope::Read))?;
        let named = path_param(parts, app, "tenant").await?.ok_or(AppError::NotFound("tenant"))?;
        let tenant = app.resolve_tenant_in_path(&viewer.by, &named).await?;
        Ok(Self { viewer, tenant, id: path_param(parts, app, "id").await? })
    }
}

/// Returns a path parameter by its name.
async fn path_param(parts: &mut Parts, app: &AppState, wanted: &str) -> Result<Option<String>, PageError> {
    let params = RawPathParams::from_request_parts(parts, app).await;
    let params = params.map_err(|_| AppError::NotFound("page"))?;
    Ok(params.iter().find(|(name, _)| *name == wanted).map(|(_, value)| value.to_owned()))
}

/// A viewer of all tenants, for pages that concern more than one.
pub(super) struct AllTenantsViewer(Viewer);

impl AllTenantsViewer {
    /// Returns the layout's data for a page in this section. The menu links to the default tenant.
    pub(super) fn layout(&self, section: &'static str) -> PageContext {
        PageContext::new(&self.0, TenantId::DEFAULT, section)
    }

    /// Returns the viewer's key or user, and address.
    pub(super) fn actor(&self) -> &Actor {
        &self.0.by
    }
}

impl FromRequestParts<AppState> for AllTenantsViewer {
    type Rejection = PageError;

    async fn from_request_parts(parts: &mut Parts, app: &AppState) -> Result<Self, PageError> {
        let viewer = Viewer::from_request_parts(parts, app).await?;
        allowed(viewer.by.require_all_tenants().map(|_| ()))?;
        Ok(Self(viewer))
    }
}

/// A viewer that is an admin, for pages that concern all tenants.
pub(super) struct AdminViewer {
    viewer: Viewer,
    /// The id in the path, if there is one.
    id: Option<String>,
}

impl AdminViewer {
    /// Returns the layout's data for a page in this section. The menu links to the default tenant.
    pub(super) fn layout(&self, section: &'static str) -> PageContext {
        self.layout_for(&TenantId::default(), section)
    }

    /// Returns the layout's data for a page about a tenant. The menu links to that tenant.
    pub(super) fn layout_for(&self, tenant_id: &TenantId, section: &'static str) -> PageContext {
        PageContext::new(&self.viewer, tenant_id.as_str(), section)
    }

    /// Returns the id in the path as text.
    pub(super) fn name(&self) -> &str {
        self.id.as_deref().unwrap_or_default()
    }
}

impl FromRequestParts<AppState> for AdminViewer {
    type Rejection = PageError;

    async fn from_request_parts(parts: &mut Parts, app: &AppState) -> Result<Self, PageError> {
        let viewer = Viewer::from_request_parts(parts, app).await?;
        allowed(viewer.by.require_admin())?;
        Ok(Self { viewer, id: path_param(parts, app, "id").await? })
    }
}
