//! Tenants' event types in memory: which types may be published, and the schemas of their payloads.
//!
//! A catalogue has the version of the webhooks it is cached with: the store refuses a publish that was checked
//! against an older version, and it is checked again. A schema is compiled on first use, once per node.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, OnceLock},
};

use redrive_core::{
    TenantId,
    event::{Event, schema::Schema},
};
use redrive_store::{Store, StoreError, VersionedType};

use crate::{
    Inner,
    checking::{BatchState, COMPILE_WORK},
    publish::PublishError,
};

/// Number of event types read per query.
const PAGE_SIZE: usize = 64;

/// One tenant's event types at one version.
#[derive(Clone, Debug, Default)]
pub(crate) struct Catalogue {
    pub(crate) version: i64,
    by_name: HashMap<Box<str>, Arc<TypeRule>>,
}

/// Rules of one event type.
#[derive(Debug)]
pub(crate) struct TypeRule {
    archived: bool,
    schema: Option<Box<str>>,
    compiled: OnceLock<Option<Schema>>,
}

/// Status of an event's type in the catalogue.
#[derive(Clone, Debug)]
pub(crate) enum TypeStatus {
    /// It is not registered and does not need to be.
    Unrestricted,
    /// It is registered with these rules.
    Registered(Arc<TypeRule>),
    /// It must be registered and is not.
    Unregistered,
}

impl Catalogue {
    pub(crate) fn status_of(&self, event_type: &str, strict: bool) -> TypeStatus {
        match self.by_name.get(event_type) {
            Some(rule) => TypeStatus::Registered(rule.clone()),
            None if strict => TypeStatus::Unregistered,
            None => TypeStatus::Unrestricted,
        }
    }

    /// Returns the catalogue updated to `version`. Rows that are read may be newer; then `version` is no longer the
    /// tenant's current one, and the caller refreshes again.
    pub(crate) async fn refresh(
        &self,
        store: &dyn Store,
        tenant_id: &TenantId,
        version: i64,
    ) -> Result<Self, StoreError> {
        let mut catalogue = Self { version, by_name: self.by_name.clone() };
        let mut since = self.version;
        loop {
            let changed = store.event_types_since(tenant_id.clone(), since, PAGE_SIZE).await?;
            let more = changed.len() == PAGE_SIZE;
            since = changed.last().map_or(since, |last| last.revision);
            for VersionedType { event_type, .. } in changed {
                let rule = TypeRule {
                    archived: event_type.archived,
                    schema: event_type.schema.map(String::into_boxed_str),
                    compiled: OnceLock::new(),
                };
                catalogue.by_name.insert(event_type.name.into_boxed_str(), Arc::new(rule));
            }
            if !more {
                break;
            }
        }
        let names: HashSet<_> = store.event_type_names(tenant_id.clone()).await?.into_iter().collect();
        catalogue.by_name.retain(|name, _| names.contains(&**name));
        Ok(catalogue)
    }
}

impl TypeRule {
    fn schema(&self) -> Option<&Schema> {
        let text = self.schema.as_deref()?;
        let compile = || match Schema::parse(text) {
            Ok(schema) => Some(schema),
            // The schema was validated when it was saved; validation rules that became stricter must not block events.
            Err(invalid) => {
                tracing::error!(%invalid, "stored schema is unusable; its payloads are not validated");
                None
            }
        };
        self.compiled.get_or_init(compile).as_ref()
    }

    fn check(&self, data: &[u8]) -> Result<(), PublishError> {
        let Some(schema) = self.schema() else { return Ok(()) };
        schema
            .check(data)
            .map_err(|violation| PublishError::SchemaViolation(violation.into_field_error("data")))
    }
}

impl Inner {
    /// Checks an event against the catalogue. Fails if its type or payload is not allowed.
    pub(crate) async fn check_event_type(
        &self,
        event: &Event,
        status: &TypeStatus,
        batch: Option<&BatchState>,
    ) -> Result<(), PublishError> {
        let rule = match status {
            TypeStatus::Unrestricted => return Ok(()),
            TypeStatus::Unregistered => return Err(PublishError::Unregistered(event.event_type.clone())),
            TypeStatus::Registered(rule) if rule.archived => {
                return Err(PublishError::Archived(event.event_type.clone()));
            }
            TypeStatus::Registered(rule) => rule,
        };
        if rule.schema.is_none() {
            return Ok(());
        }
        if rule.compiled.get().is_none() {
            let compiled = rule.clone();
            self.run_work(&event.tenant_id, COMPILE_WORK, batch, move || compiled.schema().is_some()).await?;
        }
        let Some(schema) = rule.schema() else { return Ok(()) };
        let (rule, data) = (rule.clone(), event.data.clone());
        let work = schema.max_work(&data);
        self.run_work(&event.tenant_id, work, batch, move || rule.check(&data)).await?
    }
}
