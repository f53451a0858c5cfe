//! The catalogue of event types: registering, changing, forgetting, showing.

use redrive_core::{Invalid, TenantId, event::event_type, event::schema::Schema};
use redrive_store::{Changed, EventType, PageRequest, Registered, VersionedType};
use serde_json::{Value, json};

use super::{
    Actor, App, AppError,
    audit::{Deed, Traces},
};

/// The most event types of one tenant.
pub const MOST: usize = 500;
/// The longest description and the longest example.
const MAX_DESCRIPTION: usize = 4096;
const MAX_EXAMPLE: usize = 64 * 1024;

impl App {
    /// Registers an event type.
    pub async fn create_event_type(
        &self,
        by: &Actor,
        tenant: TenantId,
        name: String,
        fill: impl FnOnce(&mut EventType),
    ) -> Result<EventType, AppError> {
        event_type::validate(&name).map_err(|invalid| Invalid::new("name", invalid.message))?;
        if event_type::is_reserved(&name) {
            return Err(
                Invalid::new("name", "event types beginning with \"redrive.\" are Redrive's own").into()
            );
        }
        let now = self.engine.clock().now();
        let mut made = EventType {
            tenant: tenant.clone(),
            name: name.clone(),
            description: None,
            example: None,
            schema: None,
            archived: false,
            created_at: now,
            updated_at: now,
        };
        fill(&mut made);
        self.check_event_type(&made).await?;
        let deed = Deed { action: "event_type.create", tenant: Some(&tenant), object: Some(name.clone()) };
        self.audited(by, deed, async {
            match self.store().create_event_type(made.clone(), MOST).await? {
                Registered::Done => {}
                Registered::Missing => return Err(AppError::NotFound("tenant")),
                Registered::Exists => {
                    let detail = format!(
                        "the event type {name} is registered; PATCH /v1/event-types/{name} changes it"
                    );
                    return Err(AppError::conflict("event_type_exists", detail));
                }
                Registered::TooMany => {
                    let detail =
                        format!("there are {MOST} event types, as many as a tenant may have; delete some");
                    return Err(AppError::conflict("too_many_event_types", detail));
                }
            }
            self.engine.catalogue_changed(&tenant).await?;
            let after = Some(shown(&made));
            Ok((made, Traces { after, ..Traces::default() }))
        })
        .await
    }

    /// Changes an event type. What was published before is not looked at again.
    pub async fn change_event_type(
        &self,
        by: &Actor,
        tenant: TenantId,
        name: String,
        change: impl Fn(&mut EventType),
    ) -> Result<EventType, AppError> {
        let deed = Deed { action: "event_type.update", tenant: Some(&tenant), object: Some(name.clone()) };
        self.audited(by, deed, async {
            loop {
                let found = self.store().event_type(tenant.clone(), name.clone()).await?;
                let VersionedType { event_type: old, revision } =
                    found.ok_or(AppError::NotFound("event type"))?;
                let mut new = old.clone();
                change(&mut new);
                self.check_event_type(&new).await?;
                new.updated_at = self.engine.clock().now();
                match self.store().change_event_type(new.clone(), revision).await? {
                    Changed::Done { .. } => {
                        self.engine.catalogue_changed(&tenant).await?;
                        let (before, after) = (Some(shown(&old)), Some(shown(&new)));
                        return Ok((new, Traces { before, after, object: None }));
                    }
                    Changed::Missing => return Err(AppError::NotFound("event type")),
                    Changed::Stale => {}
                }
            }
        })
        .await
    }

    /// Forgets an event type. Events of it stay.
    pub async fn delete_event_type(
        &self,
        by: &Actor,
        tenant: TenantId,
        name: String,
    ) -> Result<(), AppError> {
        let deed = Deed { action: "event_type.delete", tenant: Some(&tenant), object: Some(name.clone()) };
        self.audited(by, deed, async {
            let before = self.event_type(tenant.clone(), name.clone()).await?;
            if !self.store().delete_event_type(tenant.clone(), name).await? {
                return Err(AppError::NotFound("event type"));
            }
            self.engine.catalogue_changed(&tenant).await?;
            Ok(((), Traces { before: Some(shown(&before)), ..Traces::default() }))
        })
        .await
    }

    /// Checks an event type, away from the runtime if it has a schema: compiling one takes milliseconds.
    async fn check_event_type(&self, event_type: &EventType) -> Result<(), AppError> {
        if event_type.schema.is_none() {
            return check(event_type);
        }
        let checked = event_type.clone();
        self.engine.run_check(&event_type.tenant, move || check(&checked)).await?
    }

    /// One event type.
    pub async fn event_type(&self, tenant: TenantId, name: String) -> Result<EventType, AppError> {
        let found = self.store().event_type(tenant, name).await?;
        Ok(found.ok_or(AppError::NotFound("event type"))?.event_type)
    }

    /// The names of all of them, archived ones too.
    pub async fn event_type_names(&self, tenant: TenantId) -> Result<Vec<String>, AppError> {
        let mut names = self.store().event_type_names(tenant).await?;
        names.sort_unstable();
        Ok(names)
    }

    /// Event types by name.
    pub async fn list_event_types(
        &self,
        tenant: TenantId,
        archived: Option<bool>,
        page: PageRequest<String>,
    ) -> Result<Vec<EventType>, AppError> {
        Ok(self.store().list_event_types(tenant, archived, page).await?)
    }
}

fn check(event_type: &EventType) -> Result<(), AppError> {
    if event_type.description.as_ref().is_some_and(|text| text.len() > MAX_DESCRIPTION || text.contains('\0'))
    {
        let message = format!("must be at most {MAX_DESCRIPTION} bytes, without NUL characters");
        return Err(Invalid::new("description", message).into());
    }
    if event_type.example.as_ref().is_some_and(|text| text.len() > MAX_EXAMPLE) {
        return Err(Invalid::new("example", format!("must be at most {MAX_EXAMPLE} bytes as JSON")).into());
    }
    let Some(text) = &event_type.schema else { return Ok(()) };
    let schema = Schema::parse(text)?;
    let Some(example) = &event_type.example else { return Ok(()) };
    schema.check(example.as_bytes()).map_err(|misfit| {
        let Invalid { field, message } = misfit.of("example");
        let message =
            format!("does not fit the schema: {message}; change both together, or send null for it");
        Invalid::new(field, message).into()
    })
}

/// What the audit log shows of an event type: all of it.
fn shown(event_type: &EventType) -> Value {
    let json =
        |text: &Option<String>| text.as_ref().and_then(|text| serde_json::from_str::<Value>(text).ok());
    json!({
        "name": event_type.name,
        "description": event_type.description,
        "example": json(&event_type.example),
        "schema": json(&event_type.schema),
        "archived": event_type.archived,
    })
}
