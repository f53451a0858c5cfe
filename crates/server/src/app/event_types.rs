//! Event type catalogue: create, change, delete and list event types.

use redrive_core::{
    FieldError, TenantId,
    event::{event_type, schema::Schema},
};
use redrive_store::{
    CreationKey, CreationResult, EventType, NewObject, PageRequest, UpdateResult, VersionedType,
};
use serde_json::{Value, json};

use super::{
    Actor, App, AppError, ErrorCode,
    audit::{AuditChange, AuditedAction},
    creations::key_used,
};

/// Maximum number of event types per tenant.
pub const MAX_EVENT_TYPES: usize = 500;
/// Maximum length of a description and of an example, in bytes.
const MAX_DESCRIPTION: usize = 4096;
const MAX_EXAMPLE: usize = 64 * 1024;

impl App {
    /// Registers an event type. With an idempotency key, it is registered only if that key was not used before.
    pub async fn create_event_type(
        &self,
        actor: &Actor,
        tenant_id: TenantId,
        name: String,
        fill: impl FnOnce(&mut EventType),
        key: Option<CreationKey>,
    ) -> Result<EventType, AppError> {
        event_type::validate(&name).map_err(|invalid| FieldError::new("name", invalid.message))?;
        if event_type::is_reserved(&name) {
            return Err(FieldError::new(
                "name",
                "must not begin with \"redrive.\", which is reserved; choose another name",
            )
            .into());
        }
        let now = self.engine.clock().now();
        let mut event_type = EventType {
            tenant_id: tenant_id.clone(),
            name: name.clone(),
            description: None,
            example: None,
            schema: None,
            archived: false,
            created_at: now,
            updated_at: now,
        };
        fill(&mut event_type);
        self.check_event_type(&event_type).await?;
        let audited = AuditedAction {
            action: "event_type.create",
            tenant: Some(&tenant_id),
            object: Some(name.clone()),
        };
        self.with_audit(actor, audited, async {
            let new = event_type.clone();
            let registered = match key {
                None => self.store().create_event_type(new, MAX_EVENT_TYPES).await?.into(),
                Some(key) => self.store().create(NewObject::EventType(new, MAX_EVENT_TYPES), key).await?,
            };
            match registered {
                CreationResult::Created { .. } => {}
                CreationResult::KeyUsed(_) => return Err(key_used()),
                CreationResult::NoTenant => return Err(AppError::NotFound("tenant")),
                CreationResult::Exists => {
                    let detail = format!(
                        "the event type {name} already exists; PATCH /v1/event-types/{name} changes it"
                    );
                    return Err(AppError::conflict(ErrorCode::EventTypeExists, detail));
                }
                CreationResult::LimitReached => {
                    let detail =
                        format!("the tenant has the maximum of {MAX_EVENT_TYPES} event types; delete some");
                    return Err(AppError::conflict(ErrorCode::TooManyEventTypes, detail));
                }
            }
            self.engine.catalogue_changed(&tenant_id).await?;
            let after = Some(audit_json(&event_type));
            Ok((event_type, AuditChange { after, ..AuditChange::default() }))
        })
        .await
    }

    /// Changes an event type. Events published before are not validated again.
    pub async fn change_event_type(
        &self,
        actor: &Actor,
        tenant_id: TenantId,
        name: String,
        change: impl Fn(&mut EventType),
    ) -> Result<EventType, AppError> {
        let audited = AuditedAction {
            action: "event_type.update",
            tenant: Some(&tenant_id),
            object: Some(name.clone()),
        };
        self.with_audit(actor, audited, async {
            loop {
                let found = self.store().event_type(tenant_id.clone(), name.clone()).await?;
                let VersionedType { event_type: old, revision } =
                    found.ok_or(AppError::NotFound("event type"))?;
                let mut new = old.clone();
                change(&mut new);
                self.check_event_type(&new).await?;
                new.updated_at = self.engine.clock().now();
                match self.store().change_event_type(new.clone(), revision).await? {
                    UpdateResult::Updated { .. } => {
                        self.engine.catalogue_changed(&tenant_id).await?;
                        let (before, after) = (Some(audit_json(&old)), Some(audit_json(&new)));
                        return Ok((new, AuditChange { before, after, object: None }));
                    }
                    UpdateResult::NotFound | UpdateResult::Exists => {
                        return Err(AppError::NotFound("event type"));
                    }
                    UpdateResult::Stale => {}
                }
            }
        })
        .await
    }

    /// Deletes an event type. Its events are kept.
    pub async fn delete_event_type(
        &self,
        actor: &Actor,
        tenant_id: TenantId,
        name: String,
    ) -> Result<(), AppError> {
        let audited = AuditedAction {
            action: "event_type.delete",
            tenant: Some(&tenant_id),
            object: Some(name.clone()),
        };
        self.with_audit(actor, audited, async {
            let before = self.event_type(tenant_id.clone(), name.clone()).await?;
            if !self.store().delete_event_type(tenant_id.clone(), name).await? {
                return Err(AppError::NotFound("event type"));
            }
            self.engine.catalogue_changed(&tenant_id).await?;
            Ok(((), AuditChange { before: Some(audit_json(&before)), ..AuditChange::default() }))
        })
        .await
    }

    /// Validates an event type; on a check thread if it has a schema, because compiling one takes milliseconds.
    async fn check_event_type(&self, event_type: &EventType) -> Result<(), AppError> {
        if event_type.schema.is_none() {
            return check(event_type);
        }
        let checked = event_type.clone();
        self.engine.run_check(&event_type.tenant_id, move || check(&checked)).await?
    }

    /// Returns one event type.
    pub async fn event_type(&self, tenant_id: TenantId, name: String) -> Result<EventType, AppError> {
        let found = self.store().event_type(tenant_id, name).await?;
        Ok(found.ok_or(AppError::NotFound("event type"))?.event_type)
    }

    /// Returns the names of all event types, including archived ones.
    pub async fn event_type_names(&self, tenant_id: TenantId) -> Result<Vec<String>, AppError> {
        let mut names = self.store().event_type_names(tenant_id).await?;
        names.sort_unstable();
        Ok(names)
    }

    /// Lists event types by name.
    pub async fn list_event_types(
        &self,
        tenant_id: TenantId,
        archived: Option<bool>,
        page: PageRequest<String>,
    ) -> Result<Vec<EventType>, AppError> {
        Ok(self.store().list_event_types(tenant_id, archived, page).await?)
    }
}

fn check(event_type: &EventType) -> Result<(), AppError> {
    if event_type.description.as_ref().is_some_and(|text| text.len() > MAX_DESCRIPTION || text.contains('\0'))
    {
        let message = format!("must be at most {MAX_DESCRIPTION} bytes, without NUL characters");
        return Err(FieldError::new("description", message).into());
    }
    if event_type.example.as_ref().is_some_and(|text| text.len() > MAX_EXAMPLE) {
        return Err(FieldError::new("example", format!("must be at most {MAX_EXAMPLE} bytes as JSON")).into());
    }
    let Some(text) = &event_type.schema else { return Ok(()) };
    let schema = Schema::parse(text)?;
    let Some(example) = &event_type.example else { return Ok(()) };
    schema.check(example.as_bytes()).map_err(|violation| {
        let FieldError { field, message } = violation.into_field_error("example");
        let message =
            format!("does not fit the schema: {message}; change both together, or send null for it");
        FieldError::new(field, message).into()
    })
}

/// Returns the audit representation of an event type, with all fields.
fn audit_json(event_type: &EventType) -> Value {
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
