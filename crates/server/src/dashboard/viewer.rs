//! Who looks at a page, and at whose things.

use axum::{
    extract::{FromRequestParts, RawPathParams},
    http::{StatusCode, request::Parts},
};
use redrive_core::TenantId;

use super::page::{Failed, Frame, allowed};
use crate::{
    api::{AppState, Problem, client_address},
    app::{
        Actor, AppError, Caller, Capability, Scope, TenantView,
        auth::Role,
        session::{self, Session},
    },
    http::cookie,
};

/// Somebody who is logged in.
#[derive(Clone)]
pub(super) struct Viewer {
    /// Who it is.
    pub(super) by: Actor,
    /// What their pages send with every change.
    pub(super) token: String,
    /// The session.
    pub(super) session: Session,
    /// Whether what they see is made up.
    pub(super) is_demo: bool,
}

impl Viewer {
    /// Whether it is an admin.
    pub(super) fn is_admin(&self) -> bool {
        self.by.role == Role::Admin
    }

    /// Whether changes are allowed for which a portal session needs this capability.
    pub(super) fn may_change(&self, capability: Capability) -> bool {
        self.by.must_have(Scope::Manage).is_ok() && self.by.is_capable(capability)
    }

    /// Whether publishing is allowed.
    pub(super) fn may_publish(&self) -> bool {
        self.by.must_have(Scope::Publish).is_ok()
    }
}

/// Where somebody begins: the overview of their tenant.
pub(super) fn home_of(caller: &Caller) -> String {
    let tenant = match &caller.role {
        Role::Admin => TenantId::default(),
        Role::Tenant { tenant, .. } => tenant.clone(),
    };
    format!("/dashboard/t/{tenant}")
}

impl FromRequestParts<AppState> for Viewer {
    type Rejection = Failed;

    async fn from_request_parts(parts: &mut Parts, app: &AppState) -> Result<Self, Failed> {
        // A page that is rendered again for somebody who listens.
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
            return Err(Failed::LogIn { next });
        };
        // Pages count like calls: whoever has a key has one allowance.
        if let Some(throttle) = app.throttle()
            && let Some(seconds) = throttle.call(app.engine(), session.caller.key).await.retry_after
        {
            let detail = format!("too many pages were asked for with this key; reload in {seconds} s");
            return Err(Problem::new(StatusCode::TOO_MANY_REQUESTS, "rate_limited", detail).into());
        }
        let by = Actor { caller: session.caller.clone(), address };
        Ok(Self { by, token, session, is_demo: app.rules().demo })
    }
}

/// Somebody who looks at a tenant's things, and may. Another tenant than one's own is not there.
pub(super) struct Looking {
    /// Who.
    pub(super) viewer: Viewer,
    /// At whose things, and how much of them is shown.
    pub(super) tenant: TenantView,
    /// The rest of the path: the id of what is looked at, if there is one.
    id: Option<String>,
}

impl Looking {
    /// The frame of a page in this room.
    pub(super) fn frame(&self, room: &'static str) -> Frame {
        Frame::of(&self.viewer, self.tenant.as_str(), room)
    }

    /// The id in the path. One that cannot be an id is an id of nothing.
    pub(super) fn id<T: std::str::FromStr>(&self, what: &'static str) -> Result<T, Failed> {
        let parsed = self.id.as_deref().and_then(|id| id.parse().ok());
        parsed.ok_or_else(|| AppError::NotFound(what).into())
    }

    /// Refuses whoever may not change what those who publish rely on: the API would, too.
    pub(super) fn must_operate(&self) -> Result<(), Failed> {
        allowed(self.viewer.by.must_have(Scope::Manage))?;
        allowed(self.viewer.by.must_not_be_session())
    }

    /// What stands in the path where an id would.
    pub(super) fn name(&self) -> &str {
        self.id.as_deref().unwrap_or_default()
    }
}

impl FromRequestParts<AppState> for Looking {
    type Rejection = Failed;

    async fn from_request_parts(parts: &mut Parts, app: &AppState) -> Result<Self, Failed> {
        let viewer = Viewer::from_request_parts(parts, app).await?;
        allowed(viewer.by.must_have(Scope::Read))?;
        let missing = AppError::NotFound("tenant");
        let tenant = in_path(parts, app, "tenant").await?;
        let tenant = tenant.and_then(|name| TenantId::parse(&name).ok()).ok_or(missing)?;
        let own = viewer.by.acts_for(Some(tenant.as_str())).map_err(|_| AppError::NotFound("tenant"))?;
        let tenant = app.acts_for(&viewer.by, Some(own.as_str())).await?;
        Ok(Self { viewer, tenant, id: in_path(parts, app, "id").await? })
    }
}

/// A part of the path, by its name.
async fn in_path(parts: &mut Parts, app: &AppState, wanted: &str) -> Result<Option<String>, Failed> {
    let params = RawPathParams::from_request_parts(parts, app).await;
    let params = params.map_err(|_| AppError::NotFound("page"))?;
    Ok(params.iter().find(|(name, _)| *name == wanted).map(|(_, value)| value.to_owned()))
}

/// Somebody who looks at what concerns all tenants, and may.
pub(super) struct Administering {
    viewer: Viewer,
    /// The rest of the path: the id of what is looked at, if there is one.
    id: Option<String>,
}

impl Administering {
    /// The frame of a page in this room. The menu leads to the tenant that is always there.
    pub(super) fn frame(&self, room: &'static str) -> Frame {
        self.frame_of(&TenantId::default(), room)
    }

    /// The frame of a page about one tenant, where the menu leads too.
    pub(super) fn frame_of(&self, tenant: &TenantId, room: &'static str) -> Frame {
        Frame::of(&self.viewer, tenant.as_str(), room)
    }

    /// What stands in the path where an id would.
    pub(super) fn name(&self) -> &str {
        self.id.as_deref().unwrap_or_default()
    }
}

impl FromRequestParts<AppState> for Administering {
    type Rejection = Failed;

    async fn from_request_parts(parts: &mut Parts, app: &AppState) -> Result<Self, Failed> {
        let viewer = Viewer::from_request_parts(parts, app).await?;
        allowed(viewer.by.must_be_admin())?;
        Ok(Self { viewer, id: in_path(parts, app, "id").await? })
    }
}
